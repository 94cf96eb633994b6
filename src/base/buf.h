/* buf.h - a growable byte buffer with a ceiling given at the start.
 *
 * Invariants: `data` is NULL or holds `size` bytes followed by a NUL, so text can be used as a C string. An append
 * that fails (out of memory, over the ceiling) frees the buffer and leaves it failed: later appends fail too, so a
 * chain of appends may be checked once, at its end. */
#ifndef TD_BASE_BUF_H
#define TD_BASE_BUF_H

#include "base/status.h"

typedef struct td_buf {
    char *data; /* owned; td_buf_steal hands it out */
    size_t size;
    size_t capacity;
    size_t ceiling; /* bytes; exceeding it is TD_E_LIMIT */
    td_status failed;
} td_buf;

void td_buf_init(td_buf *b, size_t ceiling);
void td_buf_free(td_buf *b);
/* Empties, keeps the memory; clears a failure. */
void td_buf_clear(td_buf *b);
td_status td_buf_append(td_buf *b, const void *bytes, size_t n);
td_status td_buf_puts(td_buf *b, const char *s);
td_status td_buf_putc(td_buf *b, char c);
td_status td_buf_printf(td_buf *b, const char *fmt, ...) TD_PRINTF(2, 3);
/* The text, never NULL unless failed; valid until the next call. */
const char *td_buf_str(td_buf *b);
/* The bytes, NUL-terminated, now the caller's (td_free); the buffer is empty. NULL when failed. */
char *td_buf_steal(td_buf *b);

#endif
