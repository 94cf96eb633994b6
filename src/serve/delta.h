/* delta.h - what is new in an answer: text, thoughts, pieces of tool calls.
 *
 * A stream writes a delta and clears it once a round; an answer that is not streamed is one delta that is never
 * cleared. So the two cannot differ. */
#ifndef TD_SERVE_DELTA_H
#define TD_SERVE_DELTA_H

#include "serve/json_out.h"
#include "text/reply.h"

typedef struct td_api_delta_call {
    uint32_t index;
    char *id, *name; /* owned; NULL: the call began in an earlier delta */
    td_buf arguments;
} td_api_delta_call;

/* A text and which runs of it came from accepted drafts. */
typedef struct td_api_delta_text {
    td_buf text;
    td_buf spans; /* of td_api_delta_span, in order, covering the text; only when they are wanted */
} td_api_delta_text;

typedef struct td_api_delta_span {
    uint32_t units; /* of UTF-16, as JavaScript counts */
    bool drafted;
} td_api_delta_span;

typedef struct td_api_delta {
    td_api_delta_text content, reasoning;
    td_api_delta_call *calls; /* [n_calls] by index */
    size_t n_calls, capacity;
    size_t ceiling; /* bytes of each text */
    bool with_spans;
} td_api_delta;

void td_api_delta_init(td_api_delta *d, size_t ceiling, bool with_spans);
void td_api_delta_free(td_api_delta *d);
void td_api_delta_clear(td_api_delta *d);
bool td_api_delta_is_empty(const td_api_delta *d);

/* TD_E_NOMEM, TD_E_LIMIT. */
td_status td_api_delta_add_text(td_api_delta *d, td_api_delta_text *to, const char *text, size_t n,
                                bool drafted) TD_MUST_CHECK;
/* Of a reply: texts and calls; other events change nothing. */
td_status td_api_delta_add_event(td_api_delta *d, const td_reply_event *e, bool drafted) TD_MUST_CHECK;

/* {"content", "reasoning_content", "tool_calls"} with what there is. role: it is the answer's first, which names the
 * role and always has a content (null in front of a call). */
void td_api_delta_write(td_json_out *o, const td_api_delta *d, bool role);
/* {"role", "content", ...}: the whole message. */
void td_api_delta_write_message(td_json_out *o, const td_api_delta *d);
/* [[units, drafted], ...] */
void td_api_delta_write_spans(td_json_out *o, const td_api_delta_text *t);

#endif
