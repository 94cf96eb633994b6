/* reply_call.c - a call as its receiver sees it: begin, arguments, end; and the two ways out of something that is not
 * one, before it began and after. */
#include "text/reply_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "format/json_scan.h"

td_status td_reply_call_begin(td_reply *r) {
    td_reply_text_seal(r);
    r->speaking = TD_REPLY_CONTENT;
    r->begun = true;
    td_buf_clear(&r->raw);
    td_buf_clear(&r->id);
    TD_TRY(td_buf_printf(&r->id, "%s%llu", r->id_prefix, (unsigned long long)(r->first_id + r->n_calls)));
    td_buf *out;
    TD_TRY(td_reply_out(r, TD_REPLY_CALL_BEGIN, &out)); /* sends what came before */
    td_reply_event event = {.kind = TD_REPLY_CALL_BEGIN};
    return td_reply_send(r, &event);
}

td_status td_reply_call_write(td_reply *r, const char *json) {
    return td_reply_write(r, TD_REPLY_CALL_ARGUMENTS, json, strlen(json));
}

td_status td_reply_call_string(td_reply *r, const char *text, size_t size) {
    td_buf *out;
    TD_TRY(td_reply_out(r, TD_REPLY_CALL_ARGUMENTS, &out));
    TD_TRY(td_buf_putc(out, '"'));
    for (size_t i = 0; i < size; i++)
        TD_TRY(td_reply_json_escape(out, text[i]));
    return td_buf_putc(out, '"');
}

static td_status end_call(td_reply *r, const td_error *fault) {
    td_buf *out;
    TD_TRY(td_reply_out(r, TD_REPLY_CALL_END, &out));
    td_reply_event event = {.kind = TD_REPLY_CALL_END, .complete = !fault, .fault = fault};
    TD_TRY(td_reply_send(r, &event));
    r->begun = false;
    r->n_calls++;
    r->n_incomplete += fault != NULL;
    td_reply_text_seal(r);
    return TD_OK;
}

td_status td_reply_call_complete(td_reply *r) {
    return end_call(r, NULL);
}

td_status td_reply_call_reject(td_reply *r) {
    td_reply_call_leave(r);
    return td_reply_text_replay(r, r->raw.data, r->raw.size);
}

td_status td_reply_call_fault(td_reply *r, const char *held, size_t n, const char *fmt, ...) {
    char what[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    size_t at = r->finished ? r->pos : r->pos - 1;
    char shown[TD_SHOWN_SIZE];
    td_shown(shown, r->name.data, r->name.size);
    td_fail_at(&r->fault, TD_E_FORMAT, (int64_t)at, "call of %s: byte %zu of the answer: %s", shown, at, what);
    td_reply_call_leave(r);
    TD_TRY(end_call(r, &r->fault));
    return td_reply_text_replay(r, held, n);
}

void td_reply_call_leave(td_reply *r) {
    r->step = td_reply_text_step;
    r->end = NULL;
}
