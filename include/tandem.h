/* tandem.h - the public C API of libtandem: statuses and errors.
 *
 * Conventions of every function in this library
 *   - A function that can fail returns td_status: TD_OK (0) or a negative code. It is must-check.
 *   - `td_error *err` may be NULL. It is written only on failure, with one sentence a user can act on: what was
 *     wrong, where (file, tensor, token, byte), and what was expected.
 *   - A failed constructor leaves *out NULL. A close/free function takes the address of the handle, accepts NULL
 *     and NULL-ed handles, and NULLs the handle.
 *   - The library never exits, never prints and never reads the environment: it gets options and a log callback.
 */
#ifndef TANDEM_H
#define TANDEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TD_MUST_CHECK __attribute__((warn_unused_result))
#define TD_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define TD_MUST_CHECK
#define TD_PRINTF(f, a)
#endif

/* X(name, value, text): one list yields the enum, the name and the text. */
#define TD_STATUS_LIST(X)                                                                                              \
    X(OK, 0, "success")                                                                                                \
    X(E_NOMEM, -1, "out of memory")                                                                                    \
    X(E_ARG, -2, "invalid argument")                                                                                   \
    X(E_IO, -3, "input/output error")                                                                                  \
    X(E_NOTFOUND, -4, "not found")                                                                                     \
    X(E_FORMAT, -5, "malformed file or text")                                                                          \
    X(E_MODEL, -6, "model does not fit what was asked of it")                                                          \
    X(E_SHAPE, -7, "wrong shape or type")                                                                              \
    X(E_UNSUPPORTED, -8, "not supported")                                                                              \
    X(E_LIMIT, -9, "limit exceeded")                                                                                   \
    X(E_CANCELLED, -10, "cancelled")                                                                                   \
    X(E_NUMERIC, -11, "non-finite numbers")                                                                            \
    X(E_DEVICE, -12, "device error")

typedef enum td_status {
#define TD_STATUS_ENUM(name, value, text) TD_##name = (value),
    TD_STATUS_LIST(TD_STATUS_ENUM)
#undef TD_STATUS_ENUM
} td_status;

typedef struct td_error {
    td_status status;
    int64_t position; /* byte, token or row the message speaks of; -1 when it speaks of none */
    char message[500];
} td_error;

/* "TD_E_FORMAT" and "malformed file or text"; unknown codes give "TD_E_?" and "unknown status". */
const char *td_status_name(td_status status);
const char *td_status_text(td_status status);

typedef int32_t td_token;

#ifdef __cplusplus
}
#endif
#endif
