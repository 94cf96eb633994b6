/* response.c - see response.h. */
#include "serve/response.h"

#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/clock.h"
#include "base/rng.h"
#include "serve/sse.h"

/* ---- names ---- */

static void random_words(uint32_t words[3]) {
    if (getrandom(words, 3 * sizeof *words, 0) == (ssize_t)(3 * sizeof *words))
        return;
    for (uint32_t i = 0; i < 3; i++) /* no randomness to be had: the clock is unlike enough */
        words[i] = (uint32_t)((uint64_t)td_clock_ns() >> (8 * i)) ^ (uint32_t)time(NULL);
}

void td_api_head_name(td_api_head *h, char call_prefix[32]) {
    uint32_t w[3];
    random_words(w);
    snprintf(h->id, sizeof h->id, "%s-%08x%08x%08x", h->chat ? "chatcmpl" : "cmpl", w[0], w[1], w[2]);
    snprintf(call_prefix, 32, "call_%08x%04x", w[0], w[1] >> 16);
}

/* ---- what all objects begin with ---- */

static void write_head(td_json_out *o, const td_api_head *h, bool chunk) {
    td_out_begin(o, '{');
    td_out_member_str(o, "id", h->id);
    td_out_member_str(o, "object", !h->chat ? "text_completion" : chunk ? "chat.completion.chunk" : "chat.completion");
    td_out_member_int(o, "created", h->created);
    td_out_member_str(o, "model", h->model);
    td_out_member_str(o, "system_fingerprint", h->fingerprint);
    td_out_key(o, "choices");
    td_out_begin(o, '[');
}

static void write_figures(td_json_out *o, const td_tally *t) {
    td_out_key(o, "timings");
    td_tally_write_timings(o, t);
    td_out_key(o, "mtp");
    td_tally_write_mtp(o, t);
    td_out_member_int(o, "seed", (int64_t)t->seed);
}

/* "logprobs", "finish_reason", of a choice. */
static void write_ends(td_json_out *o, const td_api_choice *c, const char *finish) {
    td_out_key(o, "logprobs");
    if (finish && c->begun)
        td_out_null(o); /* a stream has said them */
    else
        td_api_probs_write(o, &c->c.probs);
    td_out_member_str(o, "finish_reason", finish);
    if (finish && c->finish == TD_FINISH_TIME)
        td_out_member_str(o, "stop_reason", "timeout");
}

/* ---- streams ---- */

typedef struct chunk {
    td_buf json;
    td_json_out o;
} chunk;

static void chunk_begin(chunk *k, const td_buf *out, const td_api_head *h) {
    td_buf_init(&k->json, out->ceiling);
    k->o = td_json_out_to(&k->json);
    write_head(&k->o, h, true);
}

/* The event goes out whole, or `out` fails. */
static void chunk_end(chunk *k, td_buf *out) {
    td_out_end(&k->o, '}');
    const char *json = td_buf_str(&k->json);
    if (json)
        td_sse_event(out, NULL, json, k->json.size);
    else
        td_out_fail(&(td_json_out){.buf = out}, k->json.failed);
    td_buf_free(&k->json);
}

static void write_completion_text(td_json_out *o, const td_api_choice *c, bool echo) {
    const td_buf *text = &c->c.delta.content.text;
    if (!echo || !c->echo) {
        td_out_member_text(o, "text", text->data, text->size);
        return;
    }
    td_buf both;
    td_buf_init(&both, SIZE_MAX / 2);
    td_buf_append(&both, c->echo, c->n_echo);
    td_buf_append(&both, text->data, text->size);
    if (td_buf_str(&both))
        td_out_member_text(o, "text", both.data, both.size);
    else
        td_out_fail(o, TD_E_NOMEM);
    td_buf_free(&both);
}

static void write_spans(td_json_out *o, const td_api_delta *d) {
    if (d->content.text.size) {
        td_out_key(o, "drafted");
        td_api_delta_write_spans(o, &d->content);
    }
    if (d->reasoning.text.size) {
        td_out_key(o, "reasoning_drafted");
        td_api_delta_write_spans(o, &d->reasoning);
    }
}

void td_chunk_delta(td_buf *out, const td_api_head *h, td_api_choice *c) {
    chunk k;
    if (td_api_delta_is_empty(&c->c.delta) && c->c.probs.items.size == 0 && c->begun)
        return;
    chunk_begin(&k, out, h);
    td_out_begin(&k.o, '{');
    td_out_member_int(&k.o, "index", c->index);
    if (h->chat) {
        td_out_key(&k.o, "delta");
        td_api_delta_write(&k.o, &c->c.delta, !c->begun);
    } else {
        write_completion_text(&k.o, c, !c->begun);
    }
    write_ends(&k.o, c, NULL);
    if (h->include_drafts)
        write_spans(&k.o, &c->c.delta);
    td_out_end(&k.o, '}');
    td_out_end(&k.o, ']');
    if (h->include_usage)
        td_out_member_null(&k.o, "usage");
    chunk_end(&k, out);
    c->begun = true;
    td_api_delta_clear(&c->c.delta);
    td_api_probs_clear(&c->c.probs);
}

void td_chunk_finish(td_buf *out, const td_api_head *h, td_api_choice *c, const td_tally *last) {
    chunk k;
    chunk_begin(&k, out, h);
    td_out_begin(&k.o, '{');
    td_out_member_int(&k.o, "index", c->index);
    if (h->chat) {
        td_out_key(&k.o, "delta");
        td_out_begin(&k.o, '{');
        td_out_end(&k.o, '}');
    } else {
        td_out_member_str(&k.o, "text", "");
    }
    write_ends(&k.o, c, td_choice_finish_reason(&c->c, c->finish));
    td_out_end(&k.o, '}');
    td_out_end(&k.o, ']');
    if (h->include_usage)
        td_out_member_null(&k.o, "usage");
    if (last)
        write_figures(&k.o, last);
    chunk_end(&k, out);
}

void td_chunk_usage(td_buf *out, const td_api_head *h, const td_tally *t) {
    chunk k;
    chunk_begin(&k, out, h);
    td_out_end(&k.o, ']');
    td_out_key(&k.o, "usage");
    td_tally_write_usage(&k.o, t);
    write_figures(&k.o, t);
    chunk_end(&k, out);
}

void td_chunk_done(td_buf *out) {
    td_sse_done(out);
}

void td_chunk_error(td_buf *out, const td_fault *fault) {
    td_buf json;
    td_buf_init(&json, 8192);
    td_fault_write(&json, fault);
    const char *text = td_buf_str(&json);
    if (text)
        td_sse_event(out, NULL, text, json.size);
    td_buf_free(&json);
}

/* ---- one object ---- */

static void write_choice(td_json_out *o, const td_api_head *h, const td_api_choice *c) {
    td_out_begin(o, '{');
    td_out_member_int(o, "index", c->index);
    if (h->chat) {
        td_out_key(o, "message");
        td_api_delta_write_message(o, &c->c.delta);
    } else {
        write_completion_text(o, c, true);
    }
    write_ends(o, c, td_choice_finish_reason(&c->c, c->finish));
    td_out_end(o, '}');
}

void td_response_write(td_buf *out, const td_api_head *h, const td_api_choice *choices, size_t n, const td_tally *t) {
    td_json_out o = td_json_out_to(out);
    write_head(&o, h, false);
    for (size_t i = 0; i < n; i++)
        write_choice(&o, h, &choices[i]);
    td_out_end(&o, ']');
    td_out_key(&o, "usage");
    td_tally_write_usage(&o, t);
    write_figures(&o, t);
    td_out_end(&o, '}');
}
