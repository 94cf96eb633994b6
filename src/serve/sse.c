/* sse.c - event streams as text. A line end inside data is what could break an event apart, so data is written line by
 * line; everything else is a prefix and an empty line. */
#include "serve/sse.h"

#include <string.h>

/* Bytes up to the first line end, and how long that is: "\r\n" is one. */
static size_t line_length(const char *s, size_t n, size_t *end) {
    size_t i = 0;
    while (i < n && s[i] != '\n' && s[i] != '\r')
        i++;
    *end = i == n ? 0 : (s[i] == '\r' && i + 1 < n && s[i + 1] == '\n') ? 2 : 1;
    return i;
}

static td_status put_lines(td_buf *out, const char *prefix, const char *s, size_t n) {
    for (;;) {
        size_t end, length = line_length(s, n, &end);
        TD_TRY(td_buf_puts(out, prefix));
        TD_TRY(td_buf_append(out, s, length));
        TD_TRY(td_buf_putc(out, '\n'));
        if (end == 0)
            return TD_OK;
        s += length + end;
        n -= length + end;
    }
}

td_status td_sse_event(td_buf *out, const char *event, const char *data, size_t n) {
    if (event) {
        if (strpbrk(event, "\r\n"))
            return TD_E_ARG;
        TD_TRY(put_lines(out, "event: ", event, strlen(event)));
    }
    TD_TRY(put_lines(out, "data: ", data, n));
    return td_buf_putc(out, '\n');
}

td_status td_sse_done(td_buf *out) {
    return td_buf_puts(out, "data: [DONE]\n\n");
}

td_status td_sse_comment(td_buf *out, const char *text) {
    TD_TRY(put_lines(out, ": ", text, strlen(text)));
    return td_buf_putc(out, '\n');
}
