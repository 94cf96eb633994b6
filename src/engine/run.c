/* run.c - see run.h. */
#include "engine/run.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "engine/constrain.h"

#define MAX_ANSWER ((size_t)1 << 28)

/* ---- a request of our own ---- */

static td_status copy_stops(td_task *t, const td_request *q, td_error *err) {
    char **stops = td_calloc(q->n_stop + 1, sizeof *stops);
    t->req.stop = (const char *const *)stops;
    t->req.n_stop = 0;
    bool ok = stops != NULL;
    for (size_t i = 0; ok && i < q->n_stop; i++, t->req.n_stop++)
        ok = (stops[i] = td_strdup(q->stop[i])) != NULL;
    return ok ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for %zu stop strings", q->n_stop);
}

/* The model's bans go behind the request's biases, so that a bias cannot lift one. */
static td_status merge_bias(td_task *t, const td_engine *e, const td_request *q, td_error *err) {
    size_t n = q->sampling.n_bias + e->n_banned;
    t->req.sampling.bias = NULL;
    t->req.sampling.n_bias = n;
    if (!n)
        return TD_OK;
    t->bias = td_calloc(n, sizeof *t->bias);
    if (!t->bias)
        return td_fail(err, TD_E_NOMEM, "out of memory for %zu biases", n);
    if (q->sampling.n_bias)
        memcpy(t->bias, q->sampling.bias, q->sampling.n_bias * sizeof *t->bias);
    if (e->n_banned)
        memcpy(t->bias + q->sampling.n_bias, e->banned, e->n_banned * sizeof *t->bias);
    t->req.sampling.bias = t->bias;
    return TD_OK;
}

static td_status copy_prompt(td_task *t, const td_request *q, td_error *err) {
    td_token *prompt = td_calloc(q->n_prompt, sizeof *prompt);
    t->req.prompt = prompt;
    if (!prompt)
        return td_fail(err, TD_E_NOMEM, "out of memory for a prompt of %zu tokens", q->n_prompt);
    memcpy(prompt, q->prompt, q->n_prompt * sizeof *prompt);
    return TD_OK;
}

/* An engine that accepts drafts by a coin does not serve. */
static td_status check_forced(const td_engine *e, const td_request *q, td_error *err) {
    const td_constraint_spec *c = &q->constraint;
    if (!e->decoder_options.forces)
        return TD_OK;
    if (!q->benchmark)
        return td_fail(err, TD_E_ARG,
                       "the acceptance of drafts is forced, which is for benchmarks: this engine answers no requests");
    if (c->json_schema || c->grammar || c->json_object || c->tools)
        return td_fail(err, TD_E_ARG, "the acceptance of drafts is forced: no answer can be constrained");
    return TD_OK;
}

static td_status check(const td_engine *e, const td_request *q, td_error *err) {
    TD_TRY(check_forced(e, q, err));
    for (size_t i = 0; i < q->n_stop; i++)
        if (!q->stop[i] || !*q->stop[i])
            return td_fail(err, TD_E_ARG, "stop string %zu is empty", i);
    if (q->n_stop && !e->tokenizer)
        return td_fail(err, TD_E_NOTFOUND, "stop strings need a tokenizer: %s", e->tokenizer_error);
    if (q->n_prompt < 1)
        return td_fail(err, TD_E_ARG, "an empty prompt, expected at least one token");
    if (q->n_prompt >= e->info.n_ctx)
        return td_fail(err, TD_E_LIMIT,
                       "a prompt of %zu tokens, but the context holds %u, one of which must be left to answer",
                       q->n_prompt, e->info.n_ctx);
    for (size_t i = 0; i < q->n_prompt; i++)
        if (q->prompt[i] < 0 || (uint32_t)q->prompt[i] >= e->info.n_vocab)
            return td_fail_at(err, TD_E_ARG, (int64_t)i, "prompt token %zu is %d, expected 0 to %u", i, q->prompt[i],
                              e->info.n_vocab - 1);
    if (q->n_logprobs < -1 || q->n_logprobs > TD_MAX_LOGPROBS)
        return td_fail(err, TD_E_ARG, "%d log-probabilities a token, expected 0 to %d", q->n_logprobs, TD_MAX_LOGPROBS);
    if (!(q->time_limit >= 0))
        return td_fail(err, TD_E_ARG, "a time limit of %g seconds, expected 0 or more", q->time_limit);
    return td_sampling_check(&q->sampling, e->info.n_vocab, err);
}

td_status td_task_open(td_task *t, td_engine *e, const td_request *q, td_error *err) {
    *t = (td_task){0};
    TD_TRY(check(e, q, err));
    t->req = *q;
    t->req.prompt = NULL;
    t->req.stop = NULL;
    t->req.n_stop = 0;
    td_status st = copy_prompt(t, q, err);
    if (st == TD_OK)
        st = copy_stops(t, q, err);
    if (st == TD_OK)
        st = merge_bias(t, e, q, err);
    if (st == TD_OK)
        st = td_constrain_open(&t->constraint, e, &q->constraint, err);
    t->req.constraint = (td_constraint_spec){0}; /* its strings were the caller's */
    if (st != TD_OK)
        td_task_close(t);
    return st;
}

void td_task_close(td_task *t) {
    for (size_t i = 0; i < t->req.n_stop; i++)
        td_free((void *)(uintptr_t)t->req.stop[i]);
    td_free((void *)(uintptr_t)t->req.stop);
    td_free((void *)(uintptr_t)t->req.prompt);
    td_free(t->bias);
    td_constraint_close(&t->constraint);
    *t = (td_task){0};
}

/* ---- beginning ---- */

static uint32_t depth_of(const td_run *r) {
    const td_request *q = &r->task->req;
    uint32_t most = r->e->info.mtp_active && !q->no_mtp ? r->e->info.mtp_depth : 0;
    if (q->num_mtp_tokens < 0 || (uint32_t)q->num_mtp_tokens > most)
        return most;
    return (uint32_t)q->num_mtp_tokens;
}

static const char *plain_reason(const td_run *r) {
    if (!r->e->info.mtp_active)
        return r->e->info.mtp_reason;
    if (r->task->req.no_mtp)
        return "switched off by the request";
    return depth_of(r) ? "" : "the request's depth is 0";
}

td_status td_run_begin(td_run *r, td_engine *e, td_seq *seq, td_task *task, td_error *err) {
    const td_request *q = &task->req;
    *r = (td_run){.e = e, .seq = seq, .task = task, .began = td_clock_ns()};
    td_seq_params p = {.sampling = q->sampling,
                       .max_tokens = q->max_tokens ? q->max_tokens : UINT32_MAX,
                       .depth = depth_of(r),
                       .adaptive = e->info.mtp_auto && !q->mtp_fixed,
                       .end = e->end,
                       .n_end = e->n_end,
                       .ignore_end = q->ignore_eos,
                       .constraint = task->constraint,
                       .n_probs = (uint32_t)(q->n_logprobs + 1)};
    td_stop_init(&r->stop, q->stop, q->n_stop, MAX_ANSWER);
    td_status st = td_seq_start(seq, q->prompt, (uint32_t)q->n_prompt, &p, err);
    if (st == TD_OK && e->tokenizer)
        st = td_detok_init(&r->detok, e->tokenizer, TD_DETOK_CONTINUE | (q->special ? 0 : TD_DETOK_SKIP_SPECIAL), err);
    r->delivered = seq->n_tokens;
    if (st != TD_OK)
        td_run_end(r);
    return st;
}

void td_run_end(td_run *r) {
    if (r->seq) { /* they were the task's */
        r->seq->params.sampling.bias = NULL;
        r->seq->params.sampling.n_bias = 0;
        r->seq->params.constraint = NULL;
    }
    td_detok_free(&r->detok);
    td_stop_free(&r->stop);
    *r = (td_run){0};
}

/* ---- text ---- */

static td_status push_text(td_run *r, td_token t, td_error *err) {
    if (!r->e->tokenizer)
        return TD_OK;
    for (size_t i = 0; i < r->e->n_end && !r->task->req.ignore_eos; i++)
        if (r->e->end[i] == t) /* an end token is never text */
            return TD_OK;
    return td_detok_push(&r->detok, t, &r->stop.text, err);
}

/* The tokens of the round, one by one, up to a stop string; end[i]: bytes released since `sent` once token i was in. */
static td_status take_tokens(td_run *r, size_t sent, uint32_t *end, td_error *err) {
    td_seq *s = r->seq;
    for (uint32_t i = r->delivered; i < s->n_tokens; i++) {
        TD_TRY(push_text(r, s->tokens[i], err));
        const char *fresh;
        size_t n_fresh;
        bool stopped = td_stop_release(&r->stop, false, &fresh, &n_fresh);
        end[i - r->delivered] = (uint32_t)(r->stop.sent - sent);
        if (stopped) {
            td_seq_cut(s, i + 1, TD_FINISH_STOP);
            return TD_OK;
        }
    }
    if (!s->finish || !r->e->tokenizer)
        return TD_OK;
    TD_TRY(td_detok_flush(&r->detok, &r->stop.text, err));
    const char *fresh;
    size_t n_fresh;
    if (td_stop_release(&r->stop, true, &fresh, &n_fresh))
        s->finish = TD_FINISH_STOP;
    if (s->n_tokens > r->delivered)
        end[s->n_tokens - r->delivered - 1] = (uint32_t)(r->stop.sent - sent);
    return TD_OK;
}

static bool deliver(td_run *r, size_t sent, const uint32_t *end) {
    const td_seq *s = r->seq;
    const td_request *q = &r->task->req;
    uint32_t from = r->delivered;
    r->delivered = s->n_tokens;
    if (!q->on_text)
        return true;
    td_piece piece = {.text = r->stop.text.data ? r->stop.text.data + sent : "",
                      .n_text = r->stop.sent - sent,
                      .tokens = s->tokens + from,
                      .n_tokens = s->n_tokens - from,
                      .drafted = s->was_drafted + from,
                      .text_end = end,
                      .n_logprobs = q->n_logprobs > 0 ? (uint32_t)q->n_logprobs : 0};
    if (q->n_logprobs >= 0)
        piece.probs = s->probs + (size_t)(from - s->n_prompt) * s->params.n_probs;
    return q->on_text(q->user, &piece);
}

td_status td_run_after(td_run *r, td_error *err) {
    td_seq *s = r->seq;
    if (s->status != TD_OK) {
        if (err)
            *err = s->error;
        return s->status;
    }
    if (s->n_tokens == s->n_prompt)
        return TD_OK;
    if (!r->answering)
        r->answering = td_clock_ns();
    uint32_t end[1 + TD_MAX_DRAFT];
    size_t sent = r->stop.sent;
    TD_TRY(take_tokens(r, sent, end, err));
    if (!deliver(r, sent, end) && !s->finish)
        td_run_cancel(r);
    if (s->finish)
        r->ended = td_clock_ns();
    return TD_OK;
}

static void finish_early(td_run *r, td_finish finish) {
    td_seq_cut(r->seq, r->seq->n_tokens, finish);
    td_stop_drop(&r->stop); /* the answer is what was given out */
    r->ended = td_clock_ns();
}

void td_run_cancel(td_run *r) {
    finish_early(r, TD_FINISH_CANCELLED);
}

void td_run_before(td_run *r) {
    const td_request *q = &r->task->req;
    const td_seq *s = r->seq;
    bool wanted = !q->is_wanted || q->is_wanted(q->user);
    if (wanted && q->on_prefill && s->n_tokens == s->n_prompt)
        wanted =
            q->on_prefill(q->user, "prefill", s->n_prompt - td_seq_pending(s) - s->n_reused, s->n_prompt - s->n_reused);
    if (!wanted)
        td_run_cancel(r);
    else if (q->time_limit > 0 && td_clock_since(r->began) > q->time_limit)
        finish_early(r, TD_FINISH_TIME);
}

/* ---- the end ---- */

static double seconds(int64_t from, int64_t to) {
    return (double)(to - from) * 1e-9;
}

td_status td_run_result(td_run *r, td_result *out, td_error *err) {
    const td_seq *s = r->seq;
    *out = (td_result){0};
    out->n_tokens = s->n_tokens - s->n_prompt;
    out->tokens = td_calloc(out->n_tokens + 1, sizeof *out->tokens);
    out->n_text = r->stop.text.size;
    out->text = td_buf_steal(&r->stop.text);
    if (!out->tokens || !out->text) {
        td_result_free(out);
        return td_fail(err, TD_E_NOMEM, "out of memory for the answer");
    }
    memcpy(out->tokens, s->tokens + s->n_prompt, out->n_tokens * sizeof *out->tokens);
    out->finish = s->finish;
    out->prompt_tokens = s->n_prompt;
    out->cached_tokens = s->n_reused;
    out->rounds = s->stats.rounds;
    out->drafted = s->stats.drafted;
    memcpy(out->drafted_at, s->stats.drafted_at, sizeof out->drafted_at);
    memcpy(out->accepted_at, s->stats.accepted_at, sizeof out->accepted_at);
    int64_t ended = r->ended ? r->ended : td_clock_ns();
    out->prefill_seconds = seconds(r->began, r->answering ? r->answering : ended);
    out->decode_seconds = r->answering ? seconds(r->answering, ended) : 0;
    out->mtp_depth = depth_of(r);
    out->mtp_active = out->mtp_depth > 0;
    out->mtp_reason = plain_reason(r);
    return TD_OK;
}
