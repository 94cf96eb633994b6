/* ngrams.c - chains of places with equal hashes, for a few lengths of n-grams.
 *
 * For each of the lengths min, 2 min, 4 min, ... up to max there is a table of heads by hash, and for every position a
 * link to the place before it with the same hash, as in a Lempel-Ziv matcher. A find starts with the longest length and
 * walks a bounded part of a chain from its newest place on, comparing tokens: a hash is never trusted. Several lengths
 * rather than one, because a frequent pair has a long chain, and the one place where eight tokens agree may lie deep
 * in it.
 *
 * The text changes only at its end, so the index is a stack: an entry is always its chain's head when it is taken back,
 * and what remains is what would be there had it never been made. A suffix automaton would find matches of any length,
 * but costs ten times the memory and cannot be taken back. */
#include "decode/ngrams.h"

#include "base/alloc.h"
#include "decode/prefix.h"

#define MAX_LEVELS 6 /* lengths 1, 2, 4, ..., TD_NGRAM_MAX */

/* Places are positions of an n-gram's last token, plus one; 0: none. */
typedef struct level {
    uint32_t n;
    uint32_t *head;   /* [1 << head_bits] newest place of each hash */
    uint32_t *before; /* [n_ctx] by position: the place before it */
} level;

struct td_ngrams {
    td_ngrams_options opt;
    td_token *tokens; /* [n_ctx] what the index is of */
    uint32_t n;
    uint32_t head_bits, n_levels;
    level levels[MAX_LEVELS];
    uint64_t steps;
};

td_ngrams_options td_ngrams_options_default(void) {
    return (td_ngrams_options){.n_ctx = 8192, .min_match = 2, .max_match = 8, .max_probes = 16};
}

td_status td_ngrams_options_check(const td_ngrams_options *o, td_error *err) {
    if (o->n_ctx < 1 || o->n_ctx > UINT32_MAX - 1)
        return td_fail(err, TD_E_ARG, "an index of %u tokens, expected 1 to %u", o->n_ctx, UINT32_MAX - 1);
    if (o->min_match < 1 || o->min_match > o->max_match || o->max_match > TD_NGRAM_MAX)
        return td_fail(err, TD_E_ARG, "matches of %u to %u tokens, expected lengths from 1 to %u", o->min_match,
                       o->max_match, TD_NGRAM_MAX);
    if (o->max_probes < 1)
        return td_fail(err, TD_E_ARG, "no probes, expected at least 1");
    return TD_OK;
}

static uint32_t count_levels(const td_ngrams_options *o) {
    uint32_t levels = 0;
    for (uint32_t n = o->min_match; n <= o->max_match; n *= 2)
        levels++;
    return levels;
}

/* About one head a token. */
static uint32_t head_bits(uint32_t n_ctx) {
    uint32_t bits = 4;
    while (bits < 31 && (1u << bits) < n_ctx)
        bits++;
    return bits;
}

uint64_t td_ngrams_bytes(const td_ngrams_options *o) {
    uint64_t level_bytes = (((uint64_t)1 << head_bits(o->n_ctx)) + o->n_ctx) * sizeof(uint32_t);
    return sizeof(td_ngrams) + (uint64_t)o->n_ctx * sizeof(td_token) + count_levels(o) * level_bytes;
}

static td_status alloc_parts(td_ngrams *g, td_error *err) {
    bool ok = (g->tokens = td_calloc(g->opt.n_ctx, sizeof *g->tokens)) != NULL;
    for (uint32_t i = 0; i < g->n_levels; i++) {
        level *l = &g->levels[i];
        l->n = g->opt.min_match << i;
        l->head = td_calloc((size_t)1 << g->head_bits, sizeof *l->head);
        l->before = td_calloc(g->opt.n_ctx, sizeof *l->before);
        ok = ok && l->head && l->before;
    }
    return ok ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for an index of %u tokens", g->opt.n_ctx);
}

td_status td_ngrams_open(td_ngrams **out, const td_ngrams_options *opt, td_error *err) {
    *out = NULL;
    TD_TRY(td_ngrams_options_check(opt, err));
    td_ngrams *g = td_calloc(1, sizeof *g);
    if (!g)
        return td_fail(err, TD_E_NOMEM, "out of memory for an index");
    g->opt = *opt;
    g->head_bits = head_bits(opt->n_ctx);
    g->n_levels = count_levels(opt);
    td_status st = alloc_parts(g, err);
    if (st != TD_OK)
        td_ngrams_close(&g);
    *out = g;
    return st;
}

void td_ngrams_close(td_ngrams **pg) {
    if (!pg || !*pg)
        return;
    td_ngrams *g = *pg;
    for (uint32_t i = 0; i < g->n_levels; i++) {
        td_free(g->levels[i].head);
        td_free(g->levels[i].before);
    }
    td_free(g->tokens);
    td_free(g);
    *pg = NULL;
}

/* The head of the n-gram whose last token is *last. */
static uint32_t *head_of(const td_ngrams *g, const level *l, const td_token *last) {
    uint32_t h = 0;
    for (uint32_t i = 0; i < l->n; i++)
        h = (h ^ (uint32_t)last[-(int64_t)i]) * 0x9E3779B1u + 0x85EBCA6Bu;
    h ^= h >> 15;
    h *= 0x2C1B3C6Du;
    return &l->head[h >> (32 - g->head_bits)];
}

static void enter(td_ngrams *g, td_token t) {
    uint32_t at = g->n++;
    g->tokens[at] = t;
    for (uint32_t i = 0; i < g->n_levels && g->n >= g->levels[i].n; i++) {
        uint32_t *head = head_of(g, &g->levels[i], &g->tokens[at]);
        g->levels[i].before[at] = *head;
        *head = at + 1;
        g->steps++;
    }
}

static void take_back(td_ngrams *g) {
    uint32_t at = g->n - 1;
    for (uint32_t i = 0; i < g->n_levels && g->n >= g->levels[i].n; i++) {
        *head_of(g, &g->levels[i], &g->tokens[at]) = g->levels[i].before[at];
        g->steps++;
    }
    g->n = at;
}

void td_ngrams_follow(td_ngrams *g, const td_token *tokens, uint32_t n) {
    uint32_t want = n > 0 ? n - 1 : 0;
    want = want < g->opt.n_ctx ? want : g->opt.n_ctx;
    uint32_t keep = td_prefix_shared(g->tokens, g->n, g->n, tokens, want);
    while (g->n > keep)
        take_back(g);
    while (g->n < want)
        enter(g, tokens[g->n]);
}

/* Tokens before and at `place` that are the last ones of the tail, up to `most`. */
static uint32_t match_length(const td_ngrams *g, uint32_t place, const td_token *tail, uint32_t n_tail, uint32_t most) {
    uint32_t n = 0;
    while (n < most && n < place && g->tokens[place - 1 - n] == tail[n_tail - 1 - n])
        n++;
    return n;
}

uint32_t td_ngrams_find(td_ngrams *g, const td_token *tail, uint32_t n_tail, uint32_t *next) {
    uint32_t most = n_tail < g->opt.max_match ? n_tail : g->opt.max_match;
    for (uint32_t i = g->n_levels; i-- > 0;) {
        const level *l = &g->levels[i];
        if (l->n > most)
            continue;
        uint32_t best = 0, place = *head_of(g, l, &tail[n_tail - 1]);
        for (uint32_t probe = 0; place && probe < g->opt.max_probes && best < most; probe++) {
            uint32_t length = match_length(g, place, tail, n_tail, most);
            if (length >= l->n && length > best) {
                best = length;
                *next = place;
            }
            place = l->before[place - 1];
            g->steps++;
        }
        if (best)
            return best;
    }
    return 0;
}

uint64_t td_ngrams_steps(const td_ngrams *g) {
    return g->steps;
}
