/* sse.h - server-sent events (the event stream format of the HTML standard, section 9.2): text into a buffer.
 *
 * Lines end with "\n" and an event with an empty line. Data that holds line ends (\n, \r\n or \r) becomes one "data:"
 * line each, which a client joins again with \n; so data never breaks out of its event. */
#ifndef TD_SERVE_SSE_H
#define TD_SERVE_SSE_H

#include "base/buf.h"

#define TD_SSE_TYPE "text/event-stream"
#define TD_SSE_KEEPALIVE ": keep-alive\n\n"

/* Appends one event. `event` is its name or NULL for a plain message; a name with a line end in it is TD_E_ARG and
 * leaves the buffer as it was. Other errors are the buffer's. */
td_status td_sse_event(td_buf *out, const char *event, const char *data, size_t n);
/* "data: [DONE]", what ends an OpenAI stream. */
td_status td_sse_done(td_buf *out);
/* A comment, which clients pass over. */
td_status td_sse_comment(td_buf *out, const char *text);

#endif
