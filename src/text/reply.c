/* reply.c - the door of the reply parser: bytes go in, deltas go out.
 *
 * Bytes are put together to characters first, so that everything behind sees valid UTF-8 in whole characters, and a
 * delta, sent when the kind of text changes and at the end of every push, never ends inside one. */
#include "text/reply_impl.h"

#include <string.h>

#include "base/alloc.h"

#define UNBOUNDED (SIZE_MAX / 4) /* buffers whose size a limit of reply.h or the piece at hand bounds */

int td_reply_match(const char *const *set, int n_set, const char *held, size_t n) {
    int result = TD_REPLY_NO_MATCH;
    for (int i = 0; i < n_set; i++) {
        size_t size = strlen(set[i]);
        if (n > size || memcmp(set[i], held, n) != 0)
            continue;
        if (n == size)
            return i;
        result = TD_REPLY_PARTIAL;
    }
    return result;
}

/* ---- events ---- */

td_status td_reply_send(td_reply *r, td_reply_event *event) {
    event->index = r->n_calls;
    event->id = r->id.data;
    event->name = r->name.data;
    td_status st = r->on_event(r->user, event);
    r->stopped = st != TD_OK;
    return st;
}

static td_status flush(td_reply *r) {
    if (r->out.size == 0)
        return TD_OK;
    td_reply_event event = {.kind = r->out_kind, .text = r->out.data, .size = r->out.size};
    TD_TRY(td_reply_send(r, &event));
    td_buf_clear(&r->out);
    return TD_OK;
}

td_status td_reply_out(td_reply *r, td_reply_event_kind kind, td_buf **out) {
    if (r->out_kind != kind)
        TD_TRY(flush(r));
    r->out_kind = kind;
    *out = &r->out;
    return TD_OK;
}

td_status td_reply_write(td_reply *r, td_reply_event_kind kind, const char *text, size_t size) {
    td_buf *out;
    TD_TRY(td_reply_out(r, kind, &out));
    return td_buf_append(out, text, size);
}

/* ---- the interface ---- */

static td_status make(td_reply *r, const td_reply_options *opt, td_error *err) {
    r->format = opt->format;
    r->on_event = opt->on_event;
    r->user = opt->user;
    r->first_id = opt->first_id;
    td_buf *const bufs[] = {&r->out,   &r->raw,   &r->name,         &r->id,          &r->word,
                            &r->value, &r->spare, &r->voice[0].gap, &r->voice[1].gap};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++)
        td_buf_init(bufs[i], UNBOUNDED);
    r->id_prefix = td_strdup(opt->id_prefix ? opt->id_prefix : "call_");
    if (!r->id_prefix)
        return td_fail(err, TD_E_NOMEM, "out of memory for a reply parser");
    TD_TRY(td_reply_tools_new(&r->tools, opt->tools, err));
    td_reply_text_open(r, opt->inside_reasoning);
    return TD_OK;
}

td_status td_reply_open(td_reply **out, const td_reply_options *opt, td_error *err) {
    *out = NULL;
    if (!opt->on_event)
        return td_fail(err, TD_E_ARG, "a reply parser needs a callback for its events");
    td_reply *r = td_calloc(1, sizeof *r);
    if (!r)
        return td_fail(err, TD_E_NOMEM, "out of memory for a reply parser");
    td_status st = make(r, opt, err);
    if (st != TD_OK)
        td_reply_close(&r);
    *out = r;
    return st;
}

void td_reply_close(td_reply **reply) {
    td_reply *r = reply ? *reply : NULL;
    if (!r)
        return;
    td_buf *const bufs[] = {&r->out,   &r->raw,   &r->name,         &r->id,          &r->word,
                            &r->value, &r->spare, &r->voice[0].gap, &r->voice[1].gap};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++)
        td_buf_free(bufs[i]);
    td_reply_tools_free(&r->tools);
    td_free(r->id_prefix);
    td_free(r);
    *reply = NULL;
}

static td_status feed(td_reply *r, const char *bytes, size_t n) {
    for (size_t i = 0; i < n; i++)
        TD_TRY(r->step(r, bytes[i]));
    return TD_OK;
}

static td_status take(td_reply *r, const char *text, size_t size) {
    char whole[8];
    for (size_t i = 0; i < size; i++) {
        r->pos++;
        if (r->utf8.n == 0 && (unsigned char)text[i] < 0x80)
            TD_TRY(r->step(r, text[i]));
        else
            TD_TRY(feed(r, whole, td_uni_assemble(&r->utf8, (unsigned char)text[i], whole)));
    }
    return flush(r);
}

static td_status end(td_reply *r) {
    char whole[8];
    TD_TRY(feed(r, whole, td_uni_assemble_end(&r->utf8, whole)));
    r->replaying = true; /* what is given back now cannot become a call any more */
    if (r->step != td_reply_text_step)
        TD_TRY(r->end(r));
    TD_TRY(td_reply_text_end(r));
    TD_TRY(flush(r));
    td_reply_event event = {.kind = TD_REPLY_FINISH,
                            .n_calls = r->n_calls,
                            .n_incomplete = r->n_incomplete,
                            .in_reasoning = r->speaking == TD_REPLY_REASONING};
    return td_reply_send(r, &event);
}

/* Where messages are made: what failed inside came without one. */
static td_status settle(td_reply *r, td_status st, td_error *err) {
    r->failed = st;
    if (st == TD_OK)
        return TD_OK;
    if (r->stopped)
        return td_fail_at(err, st, (int64_t)r->pos, "the receiver of a reply's events stopped it at byte %zu", r->pos);
    return td_fail_at(err, st, (int64_t)r->pos, "byte %zu of a reply: %s", r->pos, td_status_text(st));
}

static td_status check_open(const td_reply *r, td_error *err) {
    if (r->failed)
        return td_fail(err, r->failed, "this reply parser has failed before");
    if (r->finished)
        return td_fail(err, TD_E_ARG, "this reply has been finished");
    return TD_OK;
}

td_status td_reply_push(td_reply *r, const char *text, size_t size, td_error *err) {
    TD_TRY(check_open(r, err));
    return settle(r, take(r, text, size), err);
}

td_status td_reply_finish(td_reply *r, td_error *err) {
    TD_TRY(check_open(r, err));
    r->finished = true;
    return settle(r, end(r), err);
}
