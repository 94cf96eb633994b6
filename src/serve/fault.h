/* fault.h - what is wrong with a request, in the shape OpenAI's clients know: an HTTP status and an object
 *     {"error": {"message", "type", "param", "code"}}
 *
 * Whatever reads a request takes a td_fault and fills it on failure, as the library's functions fill a td_error. */
#ifndef TD_SERVE_FAULT_H
#define TD_SERVE_FAULT_H

#include "base/buf.h"

typedef struct td_fault {
    unsigned status;      /* HTTP */
    const char *code;     /* static: "invalid_type", "context_length_exceeded", ... */
    char param[160];      /* the member it is about, "messages[2].content"; "": none */
    char message[600];    /* one sentence, printable */
    unsigned retry_after; /* seconds, for the header of that name; 0: none */
} td_fault;

/* Fills *f and returns TD_E_ARG, so that `return td_fault_set(...)` is the whole failure path. param NULL: none. */
td_status td_fault_set(td_fault *f, unsigned status, const char *code, const char *param, const char *fmt, ...)
    TD_PRINTF(5, 6);

/* The fault of a library call: what the client caused is a 400, a full queue a 429, a server that stops a 503,
 * everything else a 500. `param`: the member that the call was about, or NULL. Returns err's status. */
td_status td_fault_of(td_fault *f, const td_error *err, const char *param);

/* "invalid_request_error", "rate_limit_error", "server_error". */
const char *td_fault_type(unsigned status);

/* Appends the error object, compact. */
void td_fault_write(td_buf *out, const td_fault *f);

/* A td_http_error_body: the HTTP layer's own errors in the same shape. `user` is not used. */
void td_fault_http_body(void *user, unsigned status, const char *code, const char *message, td_buf *out);

#endif
