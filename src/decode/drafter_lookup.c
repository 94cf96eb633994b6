/* drafter_lookup.c - drafts what followed the longest n-gram that the text ends with, the last time it occurred.
 *
 * The place found may be so near the end that what followed runs into the draft itself; it then goes on reading there,
 * as a Lempel-Ziv decoder does, so that a loop of any period is drafted to any depth. */
#include "decode/drafter_lookup.h"

#include "base/alloc.h"

typedef struct lookup_drafter {
    td_drafter base;
    td_ngrams_options ngrams;
} lookup_drafter;

td_drafter_lookup_options td_drafter_lookup_options_default(void) {
    return (td_drafter_lookup_options){.max_seqs = 1, .ngrams = td_ngrams_options_default()};
}

/* The token at position i of the text and the draft behind it. */
static td_token token_at(const td_draft *b, uint32_t i) {
    return i < b->n_tokens ? b->tokens[i] : b->out[i - b->n_tokens];
}

/* The last tokens of text and draft; returns how many. */
static uint32_t copy_tail(const td_draft *b, td_token *tail) {
    uint32_t end = b->n_tokens + b->n_out, n = end < TD_NGRAM_MAX ? end : TD_NGRAM_MAX;
    for (uint32_t i = 0; i < n; i++)
        tail[i] = token_at(b, end - n + i);
    return n;
}

void td_lookup_extend(td_ngrams *g, td_draft *b) {
    td_ngrams_follow(g, b->tokens, b->n_tokens);
    if (b->n_out > 0 && b->is_end(b->is_end_user, b->out[b->n_out - 1]))
        return;
    td_token tail[TD_NGRAM_MAX];
    uint32_t next, n_tail = copy_tail(b, tail);
    if (!td_ngrams_find(g, tail, n_tail, &next))
        return;
    while (b->n_out < b->depth) {
        td_token t = token_at(b, next++);
        b->out[b->n_out++] = t;
        if (b->is_end(b->is_end_user, t))
            return;
    }
}

static td_status open_seq(td_drafter *base, void **state, td_error *err) {
    td_ngrams *g;
    td_status st = td_ngrams_open(&g, &((lookup_drafter *)base)->ngrams, err);
    *state = g;
    return st;
}

static void close_seq(td_drafter *base, void *state) {
    (void)base;
    td_ngrams *g = state;
    td_ngrams_close(&g);
}

static td_status draft(td_drafter *base, td_draft *batch, uint32_t n, td_error *err) {
    (void)base;
    (void)err;
    for (uint32_t r = 0; r < n; r++) {
        batch[r].n_out = batch[r].n_steps = 0;
        td_lookup_extend(batch[r].state, &batch[r]);
    }
    return TD_OK;
}

static void close_drafter(td_drafter *base) {
    td_free(base);
}

td_status td_drafter_lookup_open(td_drafter **out, const td_drafter_lookup_options *opt, td_error *err) {
    static const td_drafter_ops ops = {
        .open_seq = open_seq, .close_seq = close_seq, .draft = draft, .close = close_drafter};
    *out = NULL;
    TD_TRY(td_ngrams_options_check(&opt->ngrams, err));
    lookup_drafter *d = td_calloc(1, sizeof *d);
    if (!d)
        return td_fail(err, TD_E_NOMEM, "out of memory for a drafter");
    d->base = (td_drafter){.ops = &ops,
                           .kind = "lookup",
                           .max_seqs = opt->max_seqs,
                           .heap_bytes = sizeof *d + opt->max_seqs * td_ngrams_bytes(&opt->ngrams)};
    d->ngrams = opt->ngrams;
    *out = &d->base;
    return TD_OK;
}
