/* response.h - what goes back for a generation: one object, or the events of a stream.
 *
 * A stream's events, each one whole JSON object:
 *     for each round and choice      a chunk with its delta; the first of a choice names the role
 *     for each choice, at its end    a chunk with an empty delta and finish_reason
 *     with include_usage             a chunk without choices, with usage (null in those before)
 *     at the end                     [DONE]; after an error: the error object and nothing else
 * `timings`, `mtp` and `seed` are in the last chunk. Everything a stream says is appended to one buffer, as it would
 * be in a file. */
#ifndef TD_SERVE_RESPONSE_H
#define TD_SERVE_RESPONSE_H

#include "serve/fault.h"
#include "serve/tally.h"

typedef struct td_api_head {
    bool chat;
    char id[48];
    int64_t created;         /* seconds since 1970 */
    const char *model;       /* as served */
    const char *fingerprint; /* system_fingerprint */
    bool include_usage, include_drafts;
} td_api_head;

/* An answer of the response. */
typedef struct td_api_choice {
    td_choice c;
    uint32_t index;
    td_finish finish;
    const char *echo; /* completions: the prompt's text, to stand in front; borrowed, NULL: none */
    size_t n_echo;
    bool begun; /* a chunk of it has been written */
} td_api_choice;

/* "chatcmpl-..." or "cmpl-...": 24 random hexadecimal digits, of which the first 12 make *call_prefix, "call_...". */
void td_api_head_name(td_api_head *head, char call_prefix[32]);

/* Appends a chunk with what the choice's delta holds, as an event, and clears the delta. Nothing when it is empty and
 * not the first. */
void td_chunk_delta(td_buf *out, const td_api_head *h, td_api_choice *c);
/* finish_reason; `last`, when not NULL, is written into it: the response ends with this chunk. */
void td_chunk_finish(td_buf *out, const td_api_head *h, td_api_choice *c, const td_tally *last);
void td_chunk_usage(td_buf *out, const td_api_head *h, const td_tally *t);
void td_chunk_done(td_buf *out);
void td_chunk_error(td_buf *out, const td_fault *fault);

/* The whole response. */
void td_response_write(td_buf *out, const td_api_head *h, const td_api_choice *choices, size_t n, const td_tally *t);

#endif
