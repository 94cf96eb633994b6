/* sampler.c - penalties, temperature, top-k, top-p, min-p, and a Gumbel draw.
 *
 * Ties and orders are by (value, token), never by where a logit stands, so that a shortlist of candidates and the whole
 * vocabulary agree on the tokens they share. Filters need the best of the logits, not all of them in order, so they
 * keep heaps: sorting 262k words for a top-p took 30 ms a row, and qsort allocates. */
#include "decode/sampler.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"

typedef struct item {
    float value; /* logit, then logit/T */
    td_token token;
} item;

struct td_sampler {
    uint32_t n_vocab;
    item *items; /* [n_vocab] */
    /* of the last draw: items[0..n_kept), and the value of the token that was drawn */
    uint32_t n_kept;
    float drawn;
};

td_status td_sampler_open(td_sampler **out, uint32_t n_vocab, td_error *err) {
    *out = NULL;
    td_sampler *s = td_calloc(1, sizeof *s);
    item *items = td_calloc(n_vocab, sizeof *items);
    if (!s || !items) {
        td_free(s);
        td_free(items);
        return td_fail(err, TD_E_NOMEM, "out of memory for a sampler of %u words", n_vocab);
    }
    s->n_vocab = n_vocab;
    s->items = items;
    *out = s;
    return TD_OK;
}

void td_sampler_close(td_sampler **s) {
    if (!s || !*s)
        return;
    td_free((*s)->items);
    td_free(*s);
    *s = NULL;
}

td_status td_history_open(td_history *h, uint32_t n_vocab, td_error *err) {
    *h = (td_history){.n_vocab = n_vocab};
    h->generated = td_calloc(n_vocab, sizeof *h->generated);
    h->prompted = td_calloc(n_vocab, sizeof *h->prompted);
    if (h->generated && h->prompted)
        return TD_OK;
    td_history_close(h);
    return td_fail(err, TD_E_NOMEM, "out of memory for the history of %u words", n_vocab);
}

void td_history_close(td_history *h) {
    td_free(h->generated);
    td_free(h->prompted);
    *h = (td_history){0};
}

void td_history_clear(td_history *h) {
    memset(h->generated, 0, h->n_vocab * sizeof *h->generated);
    memset(h->prompted, 0, h->n_vocab * sizeof *h->prompted);
}

static td_status range(const char *field, float value, float lo, float hi, td_error *err) {
    if (value >= lo && value <= hi)
        return TD_OK;
    return td_fail(err, TD_E_ARG, "%s is %g, expected %g to %g", field, (double)value, (double)lo, (double)hi);
}

td_status td_sampling_check(const td_sampling *p, uint32_t n_vocab, td_error *err) {
    TD_TRY(range("temperature", p->temperature, 0, 100, err));
    TD_TRY(range("top_p", p->top_p, 0, 1, err));
    TD_TRY(range("min_p", p->min_p, 0, 1, err));
    TD_TRY(range("repetition_penalty", p->repetition_penalty, 0.01f, 100, err));
    TD_TRY(range("presence_penalty", p->presence_penalty, -100, 100, err));
    TD_TRY(range("frequency_penalty", p->frequency_penalty, -100, 100, err));
    for (size_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].token < 0 || (uint32_t)p->bias[i].token >= n_vocab)
            return td_fail(err, TD_E_ARG, "logit bias of token %d, expected a token from 0 to %u", p->bias[i].token,
                           n_vocab - 1);
        if (!(p->bias[i].bias <= 1000))
            return td_fail(err, TD_E_ARG, "logit bias %g of token %d, expected at most 1000", (double)p->bias[i].bias,
                           p->bias[i].token);
    }
    return TD_OK;
}

bool td_sampling_has_penalties(const td_sampling *p) {
    return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

/* Larger value first; equal values: the lower token. */
static bool before(const item *a, const item *b) {
    return a->value > b->value || (a->value == b->value && a->token < b->token);
}

static float penalised(const td_sampling *p, const td_history *h, td_token t, float logit) {
    uint32_t count = h->generated[t];
    if (count || h->prompted[t])
        logit = logit > 0 ? logit / p->repetition_penalty : logit * p->repetition_penalty;
    if (count)
        logit -= p->presence_penalty + p->frequency_penalty * (float)count;
    return logit;
}

static td_status fill(td_sampler *s, const td_sampling *p, const td_history *h, const float *logits,
                      const td_token *candidate, uint32_t n, td_error *err) {
    bool penalties = h && td_sampling_has_penalties(p);
    for (uint32_t i = 0; i < n; i++) {
        td_token t = candidate ? candidate[i] : (td_token)i;
        if (!(logits[i] < INFINITY)) /* NaN or +inf */
            return td_fail_at(err, TD_E_NUMERIC, t, "the model gave the logit %g for token %d", (double)logits[i], t);
        s->items[i] = (item){penalties ? penalised(p, h, t, logits[i]) : logits[i], t};
    }
    for (size_t b = 0; b < p->n_bias; b++) {
        if (!candidate) {
            s->items[p->bias[b].token].value += p->bias[b].bias;
            continue;
        }
        for (uint32_t i = 0; i < n; i++)
            if (s->items[i].token == p->bias[b].token)
                s->items[i].value += p->bias[b].bias;
    }
    return TD_OK;
}

static uint32_t best_of(const item *items, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (before(&items[i], &items[best]))
            best = i;
    return best;
}

static uint32_t keep_allowed(item *items, uint32_t n, const uint64_t *allowed) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (allowed[items[i].token / 64] >> (items[i].token % 64) & 1)
            items[kept++] = items[i];
    return kept;
}

/* ---- heaps: no item stands above its parent ---- */

typedef bool (*order)(const item *a, const item *b);

static bool after(const item *a, const item *b) {
    return before(b, a);
}

/* Restores the heap below `i`, whose item may have come to stand too high. */
static void sift_down(item *heap, uint32_t n, uint32_t i, order above) {
    for (;;) {
        uint32_t top = i, l = 2 * i + 1, r = l + 1;
        if (l < n && above(&heap[l], &heap[top]))
            top = l;
        if (r < n && above(&heap[r], &heap[top]))
            top = r;
        if (top == i)
            return;
        item t = heap[i];
        heap[i] = heap[top];
        heap[top] = t;
        i = top;
    }
}

static void make_heap(item *items, uint32_t n, order above) {
    for (uint32_t i = n / 2; i-- > 0;)
        sift_down(items, n, i, above);
}

/* ---- filters: each leaves its survivors in items[0..return), in no order ---- */

static uint32_t keep_top_k(item *items, uint32_t n, uint32_t k) {
    if (k >= n)
        return n;
    make_heap(items, k, after); /* the worst kept is on top */
    for (uint32_t i = k; i < n; i++)
        if (before(&items[i], &items[0])) {
            items[0] = items[i];
            sift_down(items, k, 0, after);
        }
    return k;
}

/* The smallest set of most likely tokens whose probabilities reach top_p. It is small as a rule, so the best are taken
 * off a heap one by one, rather than all sorted. */
static uint32_t keep_top_p(item *items, uint32_t n, float top_p) {
    double best = items[best_of(items, n)].value, total = 0, sum = 0;
    for (uint32_t i = 0; i < n; i++)
        total += exp(items[i].value - best);
    make_heap(items, n, before);
    uint32_t left = n;
    while (left > 0 && (left == n || sum < top_p * total)) {
        item top = items[0];
        sum += exp(top.value - best);
        items[0] = items[--left];
        sift_down(items, left, 0, before);
        items[left] = top;
    }
    memmove(items, items + left, (n - left) * sizeof *items);
    return n - left;
}

/* Drops what lies more than `reach` below the best. */
static uint32_t keep_within(item *items, uint32_t n, float reach) {
    float least = items[best_of(items, n)].value - reach;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (items[i].value >= least)
            items[kept++] = items[i];
    return kept;
}

static uint32_t filter(item *items, uint32_t n, const td_sampling *p) {
    if (p->top_k)
        n = keep_top_k(items, n, p->top_k);
    if (p->top_p < 1)
        n = keep_top_p(items, n, p->top_p);
    if (p->min_p > 0)
        n = keep_within(items, n, -logf(p->min_p));
    return n;
}

/* argmax of value + noise. A word whose value is more than the noise's whole range below the leader cannot win, so its
 * noise is not drawn. */
static item draw(const item *items, uint32_t n, uint64_t seed, uint64_t position) {
    item winner = items[best_of(items, n)];
    double lead = winner.value + td_rng_gumbel(seed, position, (uint32_t)winner.token);
    for (uint32_t i = 0; i < n; i++) {
        if (items[i].value + TD_GUMBEL_MAX < lead)
            continue;
        double v = items[i].value + td_rng_gumbel(seed, position, (uint32_t)items[i].token);
        if (v > lead || (v == lead && items[i].token < winner.token)) {
            lead = v;
            winner = items[i];
        }
    }
    return winner;
}

td_status td_sample(td_sampler *s, const td_sampling *p, const td_history *h, const float *logits,
                    const td_token *candidate, const uint64_t *allowed, uint32_t n, uint64_t position, td_token *out,
                    td_error *err) {
    s->n_kept = 0;
    TD_TRY(fill(s, p, h, logits, candidate, n, err));
    if (allowed)
        n = keep_allowed(s->items, n, allowed);
    if (n == 0)
        return td_fail(err, TD_E_NUMERIC, "no token is left to choose: the constraint allows none");
    item drawn = s->items[best_of(s->items, n)];
    if (drawn.value == -INFINITY)
        return td_fail(err, TD_E_NUMERIC, "no token is left to choose: every logit is -inf");
    /* Next to 0 logit/T leaves a float's range, and no noise could matter. */
    if (p->temperature > 0 && isfinite(drawn.value / p->temperature)) {
        for (uint32_t i = 0; i < n; i++)
            s->items[i].value /= p->temperature;
        n = filter(s->items, n, p);
        drawn = draw(s->items, n, p->seed, position);
    }
    *out = drawn.token;
    s->n_kept = n;
    s->drawn = drawn.value;
    return TD_OK;
}

/* Of a large vocabulary nearly all words are so far below the best that their exponentials are not worth computing. */
#define FAR_BELOW 16.0f

float td_sampler_confidence(const td_sampler *s) {
    if (!s->n_kept)
        return 0;
    float best = s->items[best_of(s->items, s->n_kept)].value, sum = 0;
    for (uint32_t i = 0; i < s->n_kept; i++) {
        float below = best - s->items[i].value;
        if (below < FAR_BELOW)
            sum += expf(-below);
    }
    return expf(s->drawn - best) / sum;
}
