/* calibrate.c - what rounds cost, found out before the first of them serves anyone.
 *
 * A sequence of no meaning is decoded at every depth in turn, plain rounds first, and rounds report their costs as they
 * always do (depth.h). What it shows of acceptance is forgotten, it has no part in the prompt cache, and its keys go
 * back to the pool: prices are all that stays. A drafter that has nothing to say of such a text (prompt lookup) is
 * helped out, for rows must be had to be measured. Nothing here is needed: where memory or time is short, or a pass
 * fails, rounds find out by themselves what is missing, and a failure is told to whom it concerns. */
#include <string.h>

#include "base/clock.h"
#include "decode/round_impl.h"

#define N_PROMPT 8u
#define N_KEYS 120u /* within the first of the classes of length that prices are kept apart by (costs.c) */
#define SWEEPS 3u   /* measurements after which a price is believed (costs.c) */

/* Fills drafts up to the depth that was asked for. All but drafting and watching is the inner one's. */
typedef struct padding {
    td_drafter base;
    td_drafter *inner;
    uint32_t n_vocab;
} padding;

/* Token i of a text that means nothing. */
static td_token token_at(uint32_t n_vocab, uint32_t i) {
    return (td_token)((i * 7919u + 13u) % n_vocab);
}

static td_status draft(td_drafter *base, td_draft *batch, uint32_t n, td_error *err) {
    padding *p = (padding *)base;
    TD_TRY(p->inner->ops->draft(p->inner, batch, n, err));
    for (uint32_t r = 0; r < n; r++)
        for (; batch[r].n_out < batch[r].depth; batch[r].n_out++)
            batch[r].out[batch[r].n_out] = token_at(p->n_vocab, batch[r].n_tokens + batch[r].n_out);
    return TD_OK;
}

static td_status observe(td_drafter *base, const td_observed *rows, td_error *err) {
    td_drafter *inner = ((padding *)base)->inner;
    return inner->ops->observe(inner, rows, err);
}

static td_status one_round(td_decoder *d, td_seq *s, uint32_t depth, td_error *err) {
    static const td_drafter_ops ops = {.draft = draft, .observe = observe};
    padding p = {.base = *d->drafter, .inner = d->drafter, .n_vocab = d->model->info.n_vocab};
    p.base.ops = &ops;
    s->params.depth = depth;
    d->drafter = &p.base;
    td_status st = td_round(d, &s, 1, err);
    d->drafter = p.inner;
    return st == TD_OK ? s->status : st;
}

static td_status start(td_decoder *d, td_seq *s, td_error *err) {
    td_token prompt[N_PROMPT];
    td_seq_params p = {.sampling = {.top_p = 1, .repetition_penalty = 1},
                       .max_tokens = s->capacity,
                       .depth = d->opt.max_depth,
                       .ignore_end = true};
    for (uint32_t i = 0; i < N_PROMPT; i++)
        prompt[i] = token_at(d->model->info.n_vocab, i);
    TD_TRY(td_seq_start(s, prompt, N_PROMPT, &p, err));
    while (s->n_tokens == N_PROMPT)
        TD_TRY(one_round(d, s, 0, err));
    return TD_OK;
}

/* The rounds to measure, as far as time goes; TD_E_CANCELLED: so it was said. */
static td_status sweep(td_decoder *d, td_seq *s, const td_calibration *c, int64_t began, td_error *err) {
    const uint32_t depths = d->opt.max_depth + 1;
    double longest = 0;
    for (uint32_t i = 0; i < SWEEPS * depths && td_clock_since(began) + longest < c->seconds; i++) {
        if (c->progress && !c->progress(c->user, "measure", i, SWEEPS * depths))
            return td_fail(err, TD_E_CANCELLED, "loading was cancelled");
        if (td_seq_remaining(s) <= depths)
            TD_TRY(start(d, s, err));
        int64_t start = td_clock_ns();
        TD_TRY(one_round(d, s, i % depths, err));
        double took = td_clock_since(start);
        longest = took > longest ? took : longest;
    }
    return TD_OK;
}

td_status td_decoder_calibrate(td_decoder *d, const td_calibration *c, td_error *err) {
    const uint32_t n_ctx = c->n_ctx < N_KEYS ? c->n_ctx : N_KEYS;
    int64_t began = td_clock_ns();
    td_prompt_cache *cache = d->opt.cache;
    td_seq *s = NULL;
    if (!d->drafter || !d->opt.max_depth || n_ctx < N_PROMPT + 3 + d->opt.max_depth)
        return TD_OK;
    d->opt.cache = NULL;
    td_status st = td_seq_open(&s, d, n_ctx, NULL);
    if (st == TD_OK)
        st = start(d, s, NULL);
    if (st == TD_OK) /* the first of everything is like no other: of a drafter that has a prompt to read, too */
        st = one_round(d, s, d->opt.max_depth, NULL);
    d->costs = (td_depth_costs){0};
    if (st == TD_OK)
        st = sweep(d, s, c, began, err);
    td_seq_close(&s);
    d->opt.cache = cache;
    d->costs.all = (td_acceptance){0};
    d->costs.since_probe = d->costs.since_explore = 0;
    return st == TD_E_CANCELLED ? st : TD_OK;
}
