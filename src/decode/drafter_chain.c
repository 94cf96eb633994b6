/* drafter_chain.c - hands a round's drafts to the inner drafter, and what comes back to lookup. */
#include "decode/drafter_chain.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

typedef struct chain_drafter {
    td_drafter base;
    td_drafter *inner;
    td_drafter_chain_options opt;
    td_draft *drafts; /* [max_seqs] as the inner drafter sees them */
    char kind[64];
} chain_drafter;

typedef struct chain_seq {
    td_ngrams *ngrams;
    void *inner;
} chain_seq;

td_drafter_chain_options td_drafter_chain_options_default(void) {
    return (td_drafter_chain_options){.ngrams = td_ngrams_options_default()};
}

static void close_seq(td_drafter *base, void *state) {
    td_drafter *inner = ((chain_drafter *)base)->inner;
    chain_seq *s = state;
    if (s->inner)
        inner->ops->close_seq(inner, s->inner);
    td_ngrams_close(&s->ngrams);
    td_free(s);
}

static td_status open_seq(td_drafter *base, void **state, td_error *err) {
    chain_drafter *d = (chain_drafter *)base;
    *state = NULL;
    chain_seq *s = td_calloc(1, sizeof *s);
    if (!s)
        return td_fail(err, TD_E_NOMEM, "out of memory for a sequence of two drafters");
    td_status st = td_ngrams_open(&s->ngrams, &d->opt.ngrams, err);
    if (st == TD_OK && d->inner->ops->open_seq)
        st = d->inner->ops->open_seq(d->inner, &s->inner, err);
    if (st != TD_OK) {
        close_seq(base, s);
        return st;
    }
    *state = s;
    return TD_OK;
}

static td_status draft(td_drafter *base, td_draft *batch, uint32_t n, td_error *err) {
    chain_drafter *d = (chain_drafter *)base;
    for (uint32_t r = 0; r < n; r++) {
        d->drafts[r] = batch[r];
        d->drafts[r].state = ((chain_seq *)batch[r].state)->inner;
        if (d->opt.inner_depth && d->opt.inner_depth < batch[r].depth)
            d->drafts[r].depth = d->opt.inner_depth;
    }
    TD_TRY(d->inner->ops->draft(d->inner, d->drafts, n, err));
    for (uint32_t r = 0; r < n; r++) {
        batch[r].n_out = d->drafts[r].n_out;
        batch[r].n_steps = d->drafts[r].n_steps;
        td_lookup_extend(((chain_seq *)batch[r].state)->ngrams, &batch[r]);
    }
    return TD_OK;
}

static td_status observe(td_drafter *base, const td_observed *rows, td_error *err) {
    td_drafter *inner = ((chain_drafter *)base)->inner;
    td_observed of_inner = *rows;
    of_inner.state = ((chain_seq *)rows->state)->inner;
    return inner->ops->observe(inner, &of_inner, err);
}

static td_status settle(td_drafter *base, const td_observed *none, td_error *err) {
    td_drafter *inner = ((chain_drafter *)base)->inner;
    td_observed of_inner = *none;
    of_inner.state = ((chain_seq *)none->state)->inner;
    return inner->ops->settle(inner, &of_inner, err);
}

/* The index compares tokens, and needs no telling. */
static void rewind_seq(td_drafter *base, void *state, uint32_t n_rows, const float *hidden) {
    td_drafter *inner = ((chain_drafter *)base)->inner;
    inner->ops->rewind(inner, ((chain_seq *)state)->inner, n_rows, hidden);
}

static uint64_t heap_at(const td_drafter *base, uint32_t n_ctx) {
    const td_drafter *inner = ((const chain_drafter *)base)->inner;
    uint64_t inner_bytes = inner->ops->heap_at ? inner->ops->heap_at(inner, n_ctx) : inner->heap_bytes;
    return base->heap_bytes - inner->heap_bytes + inner_bytes;
}

static void close_drafter(td_drafter *base) {
    chain_drafter *d = (chain_drafter *)base;
    td_drafter_close(&d->inner);
    td_free(d->drafts);
    td_free(d);
}

td_status td_drafter_chain_open(td_drafter **out, td_drafter *inner, const td_drafter_chain_options *opt,
                                td_error *err) {
    static const td_drafter_ops ops = {.open_seq = open_seq,
                                       .close_seq = close_seq,
                                       .draft = draft,
                                       .close = close_drafter,
                                       .heap_at = heap_at,
                                       .observe = observe,
                                       .rewind = rewind_seq,
                                       .settle = settle};
    *out = NULL;
    TD_TRY(td_ngrams_options_check(&opt->ngrams, err));
    chain_drafter *d = td_calloc(1, sizeof *d);
    td_draft *drafts = td_calloc(inner->max_seqs, sizeof *drafts);
    if (!d || !drafts) {
        td_free(d);
        td_free(drafts);
        return td_fail(err, TD_E_NOMEM, "out of memory for a drafter");
    }
    snprintf(d->kind, sizeof d->kind, "%s+lookup", inner->kind);
    d->base = (td_drafter){.ops = &ops,
                           .kind = d->kind,
                           .weight_bytes = inner->weight_bytes,
                           .heap_bytes = inner->heap_bytes + inner->max_seqs * td_ngrams_bytes(&opt->ngrams),
                           .max_seqs = inner->max_seqs,
                           .free_from = opt->inner_depth,
                           .all_rows = inner->all_rows};
    memcpy(d->base.format, inner->format, sizeof d->base.format);
    d->inner = inner;
    d->opt = *opt;
    d->drafts = drafts;
    *out = &d->base;
    return TD_OK;
}
