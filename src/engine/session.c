/* session.c - one request: rounds until it ends, text as it comes.
 *
 * Tokens leave a round several at a time but are looked at one by one: the first that completes a stop string ends the
 * answer, and what the round made after it is cut off, from the text, the counts and the keys. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "engine/stop.h"
#include "text/detok.h"

#define MAX_ANSWER ((size_t)1 << 28)

struct td_session {
    td_engine *engine;
    td_seq *seq;
};

/* A request under way. */
typedef struct run {
    td_engine *e;
    td_seq *seq;
    const td_request *req;
    td_stop stop;
    td_detok detok;
    bool has_text;       /* there is a tokenizer */
    td_logit_bias *bias; /* the request's and the model's */
    uint32_t delivered;  /* tokens of the sequence that on_text has seen */
} run;

td_status td_session_open(td_session **out, td_engine *engine, td_error *err) {
    *out = NULL;
    td_session *s = td_calloc(1, sizeof *s);
    if (!s)
        return td_fail(err, TD_E_NOMEM, "out of memory for a session");
    s->engine = engine;
    td_status st = td_seq_open(&s->seq, engine->decoder, engine->info.n_ctx, err);
    if (st != TD_OK)
        td_session_close(&s);
    *out = s;
    return st;
}

void td_session_close(td_session **session) {
    if (!session || !*session)
        return;
    td_seq_close(&(*session)->seq);
    td_free(*session);
    *session = NULL;
}

void td_result_free(td_result *r) {
    if (!r)
        return;
    td_free(r->tokens);
    td_free(r->text);
    *r = (td_result){0};
}

/* ---- setting up ---- */

static td_status merge_bias(run *r, td_sampling *s, td_error *err) {
    size_t n = r->req->sampling.n_bias + r->e->n_banned;
    if (!r->e->n_banned)
        return TD_OK;
    r->bias = td_calloc(n, sizeof *r->bias);
    if (!r->bias)
        return td_fail(err, TD_E_NOMEM, "out of memory for %zu biases", n);
    if (r->req->sampling.n_bias)
        memcpy(r->bias, r->req->sampling.bias, r->req->sampling.n_bias * sizeof *r->bias);
    memcpy(r->bias + r->req->sampling.n_bias, r->e->banned, r->e->n_banned * sizeof *r->bias);
    s->bias = r->bias;
    s->n_bias = n;
    return TD_OK;
}

static uint32_t request_depth(const run *r) {
    uint32_t most = r->e->info.mtp_active && !r->req->no_mtp ? r->e->info.mtp_depth : 0;
    if (r->req->num_mtp_tokens < 0 || (uint32_t)r->req->num_mtp_tokens > most)
        return most;
    return (uint32_t)r->req->num_mtp_tokens;
}

static const char *plain_reason(const run *r) {
    if (!r->e->info.mtp_active)
        return r->e->info.mtp_reason;
    if (r->req->no_mtp)
        return "switched off by the request";
    return request_depth(r) ? "" : "the request's depth is 0";
}

static td_status start(run *r, td_error *err) {
    const td_request *q = r->req;
    for (size_t i = 0; i < q->n_stop; i++)
        if (!q->stop[i] || !*q->stop[i])
            return td_fail(err, TD_E_ARG, "stop string %zu is empty", i);
    if (q->n_stop && !r->has_text)
        return td_fail(err, TD_E_NOTFOUND, "stop strings need a tokenizer: %s", r->e->tokenizer_error);
    if (q->n_prompt > UINT32_MAX)
        return td_fail(err, TD_E_LIMIT, "a prompt of %zu tokens, but the context holds %u", q->n_prompt,
                       r->e->info.n_ctx);
    td_seq_params p = {.sampling = q->sampling,
                       .max_tokens = q->max_tokens ? q->max_tokens : UINT32_MAX,
                       .depth = request_depth(r),
                       .adaptive = r->e->info.mtp_auto && r->req->num_mtp_tokens < 0,
                       .end = r->e->end,
                       .n_end = r->e->n_end,
                       .ignore_end = q->ignore_eos};
    TD_TRY(td_sampling_check(&q->sampling, r->e->info.n_vocab, err));
    TD_TRY(merge_bias(r, &p.sampling, err));
    return td_seq_start(r->seq, q->prompt, (uint32_t)q->n_prompt, &p, err);
}

/* ---- text ---- */

/* Text of the next token. */
static td_status push_text(run *r, td_token t, td_error *err) {
    if (!r->has_text)
        return TD_OK;
    bool end = false;
    for (size_t i = 0; i < r->e->n_end && !r->req->ignore_eos; i++)
        end = end || r->e->end[i] == t;
    if (end) /* an end token is never text */
        return TD_OK;
    return td_detok_push(&r->detok, t, &r->stop.text, err);
}

static bool deliver(run *r, const char *text, size_t n_text) {
    const td_seq *s = r->seq;
    uint32_t from = r->delivered;
    r->delivered = s->n_tokens;
    if (!r->req->on_text)
        return true;
    return r->req->on_text(r->req->user, text, n_text, s->tokens + from, s->was_drafted + from, s->n_tokens - from);
}

/* Gives out what the last round made. */
static td_status emit(run *r, td_error *err) {
    td_seq *s = r->seq;
    size_t sent = r->stop.sent;
    for (uint32_t i = r->delivered; i < s->n_tokens; i++) {
        TD_TRY(push_text(r, s->tokens[i], err));
        const char *fresh;
        size_t n_fresh;
        if (td_stop_release(&r->stop, false, &fresh, &n_fresh)) {
            td_seq_cut(s, i + 1, TD_FINISH_STOP);
            break;
        }
    }
    if (s->finish && !r->stop.stopped && r->has_text) {
        TD_TRY(td_detok_flush(&r->detok, &r->stop.text, err));
        const char *fresh;
        size_t n_fresh;
        if (td_stop_release(&r->stop, true, &fresh, &n_fresh))
            s->finish = TD_FINISH_STOP;
    }
    const char *text = r->stop.text.data ? r->stop.text.data + sent : "";
    if (!deliver(r, text, r->stop.sent - sent) && !s->finish) {
        td_seq_cut(s, s->n_tokens, TD_FINISH_CANCELLED);
        td_stop_drop(&r->stop); /* the answer is what was given out */
    }
    return TD_OK;
}

/* ---- the loop ---- */

static bool report_prefill(run *r) {
    const td_seq *s = r->seq;
    if (!r->req->on_prefill || s->n_tokens > s->n_prompt)
        return true;
    return r->req->on_prefill(r->req->user, "prefill", s->n_prompt - td_seq_pending(s) - s->n_reused,
                              s->n_prompt - s->n_reused);
}

static td_status generate(run *r, td_result *out, td_error *err) {
    td_seq *s = r->seq;
    int64_t begin = td_clock_ns();
    while (!s->finish) {
        if (!report_prefill(r)) {
            td_seq_cut(s, s->n_tokens, TD_FINISH_CANCELLED);
            break;
        }
        TD_TRY(td_round(r->e->decoder, &s, 1, err));
        if (s->status != TD_OK) {
            if (err)
                *err = s->error;
            return s->status;
        }
        if (s->stats.rounds == 1) {
            out->prefill_seconds = td_clock_since(begin);
            begin = td_clock_ns();
        }
        if (s->n_tokens > s->n_prompt)
            TD_TRY(emit(r, err));
    }
    if (s->stats.rounds)
        out->decode_seconds = td_clock_since(begin);
    return TD_OK;
}

static td_status fill_result(run *r, td_result *out, td_error *err) {
    const td_seq *s = r->seq;
    out->n_tokens = s->n_tokens - s->n_prompt;
    out->tokens = td_calloc(out->n_tokens + 1, sizeof *out->tokens);
    out->n_text = r->stop.text.size;
    out->text = td_buf_steal(&r->stop.text);
    if (!out->tokens || !out->text)
        return td_fail(err, TD_E_NOMEM, "out of memory for the answer");
    memcpy(out->tokens, s->tokens + s->n_prompt, out->n_tokens * sizeof *out->tokens);
    out->finish = s->finish;
    out->prompt_tokens = s->n_prompt;
    out->cached_tokens = s->n_reused;
    out->rounds = s->stats.rounds;
    out->drafted = s->stats.drafted;
    memcpy(out->drafted_at, s->stats.drafted_at, sizeof out->drafted_at);
    memcpy(out->accepted_at, s->stats.accepted_at, sizeof out->accepted_at);
    out->mtp_depth = request_depth(r);
    out->mtp_active = out->mtp_depth > 0;
    out->mtp_reason = plain_reason(r);
    return TD_OK;
}

td_status td_session_generate(td_session *session, const td_request *req, td_result *result, td_error *err) {
    *result = (td_result){0};
    td_engine *e = session->engine;
    if (atomic_flag_test_and_set(&e->busy))
        return td_fail(err, TD_E_ARG, "the engine is generating already");
    run r = {.e = e, .seq = session->seq, .req = req, .has_text = e->tokenizer != NULL};
    td_stop_init(&r.stop, req->stop, req->n_stop, MAX_ANSWER);
    td_status st = TD_OK;
    if (r.has_text)
        st = td_detok_init(&r.detok, e->tokenizer, TD_DETOK_CONTINUE | (req->special ? 0 : TD_DETOK_SKIP_SPECIAL), err);
    if (st == TD_OK)
        st = start(&r, err);
    r.delivered = session->seq->n_tokens;
    if (st == TD_OK)
        st = generate(&r, result, err);
    if (st == TD_OK)
        st = fill_result(&r, result, err);
    if (st != TD_OK)
        td_result_free(result);
    td_detok_free(&r.detok);
    td_stop_free(&r.stop);
    td_free(r.bias);
    session->seq->params.sampling.bias = NULL; /* it was the request's */
    session->seq->params.sampling.n_bias = 0;
    atomic_flag_clear(&e->busy);
    return st;
}
