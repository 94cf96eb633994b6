/* json_out.h - JSON written straight into a buffer: what leaves the server.
 *
 * A chunk of a stream is written for every round of every answer, on the thread that everything else runs on, so no
 * tree is built for it. Commas are the writer's, nesting is the caller's. A failed buffer makes every later call do
 * nothing, so a whole object may be checked once, at its end (td_buf_str). */
#ifndef TD_SERVE_JSON_OUT_H
#define TD_SERVE_JSON_OUT_H

#include <jansson.h>

#include "base/buf.h"

typedef struct td_json_out {
    td_buf *buf; /* appended to */
    bool comma;  /* a value stands before what comes next */
} td_json_out;

static inline td_json_out td_json_out_to(td_buf *buf) {
    return (td_json_out){.buf = buf};
}

void td_out_begin(td_json_out *o, char bracket); /* '{' or '[' */
void td_out_end(td_json_out *o, char bracket);   /* '}' or ']' */
void td_out_key(td_json_out *o, const char *name);

/* Bytes that are not UTF-8 become U+FFFD, one for each. */
void td_out_text(td_json_out *o, const char *text, size_t n);
void td_out_str(td_json_out *o, const char *text); /* NULL: null */
void td_out_int(td_json_out *o, int64_t v);
void td_out_real(td_json_out *o, double v, int decimals); /* no more than that many; not finite: null */
void td_out_bool(td_json_out *o, bool v);
void td_out_null(td_json_out *o);
void td_out_raw(td_json_out *o, const char *json, size_t n); /* JSON as it stands, one value */
void td_out_json(td_json_out *o, const json_t *v);           /* compact */

/* What is being written cannot be: the buffer fails with `status`, if it has not failed already. */
void td_out_fail(td_json_out *o, td_status status);

/* A key and its value. */
void td_out_member_text(td_json_out *o, const char *name, const char *text, size_t n);
void td_out_member_str(td_json_out *o, const char *name, const char *text);
void td_out_member_int(td_json_out *o, const char *name, int64_t v);
void td_out_member_real(td_json_out *o, const char *name, double v, int decimals);
void td_out_member_bool(td_json_out *o, const char *name, bool v);
void td_out_member_null(td_json_out *o, const char *name);

#endif
