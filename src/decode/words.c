/* words.c - filters and the draw. Filters need the best of the words, not all of them in order, so they keep heaps:
 * sorting 262k words for a top-p took 30 ms a row, and qsort allocates. */
#include "decode/words.h"

#include <math.h>
#include <string.h>

#include "base/rng.h"

/* Larger value first; equal values: the lower token. */
static inline bool before(const td_word *a, const td_word *b) {
    return a->value > b->value || (a->value == b->value && a->id < b->id);
}

uint32_t td_words_best(const td_word *w, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (before(&w[i], &w[best]))
            best = i;
    return best;
}

/* ---- heaps: no word stands above its parent ---- */

typedef bool (*order)(const td_word *a, const td_word *b);

static inline bool after(const td_word *a, const td_word *b) {
    return before(b, a);
}

/* Restores the heap below `i`, whose word may have come to stand too high. */
static inline void sift_down(td_word *heap, uint32_t n, uint32_t i, const order above) {
    for (;;) {
        uint32_t top = i, l = 2 * i + 1, r = l + 1;
        if (l < n && above(&heap[l], &heap[top]))
            top = l;
        if (r < n && above(&heap[r], &heap[top]))
            top = r;
        if (top == i)
            return;
        td_word t = heap[i];
        heap[i] = heap[top];
        heap[top] = t;
        i = top;
    }
}

static inline void make_heap(td_word *w, uint32_t n, const order above) {
    for (uint32_t i = n / 2; i-- > 0;)
        sift_down(w, n, i, above);
}

/* ---- filters ---- */

uint32_t td_words_top_k(td_word *w, uint32_t n, uint32_t k) {
    if (k >= n)
        return n;
    make_heap(w, k, after); /* the worst kept is on top */
    for (uint32_t i = k; i < n; i++)
        if (before(&w[i], &w[0])) {
            w[0] = w[i];
            sift_down(w, k, 0, after);
        }
    return k;
}

uint32_t td_words_within(td_word *w, uint32_t n, float least) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (w[i].value >= least)
            w[kept++] = w[i];
    return kept;
}

double td_words_mass(const td_word *w, uint32_t n, double best) {
    double total = 0;
    for (uint32_t i = 0; i < n; i++)
        total += exp(w[i].value - best);
    return total;
}

static td_nucleus compare(double sum, float top_p, double lo, double hi) {
    if (sum >= top_p * hi)
        return TD_NUCLEUS_REACHED;
    return sum < top_p * lo ? TD_NUCLEUS_SHORT : TD_NUCLEUS_UNSURE;
}

/* The nucleus is small as a rule, so the best are taken off a heap one by one, rather than all sorted. */
td_nucleus td_words_nucleus(td_word *w, uint32_t *n, double best, float top_p, double lo, double hi) {
    td_nucleus state;
    uint32_t left = *n;
    double sum = 0;
    make_heap(w, left, before);
    do {
        td_word top = w[0];
        sum += exp(top.value - best);
        w[0] = w[--left];
        sift_down(w, left, 0, before);
        w[left] = top;
        state = compare(sum, top_p, lo, hi);
    } while (state == TD_NUCLEUS_SHORT && left > 0);
    if (state == TD_NUCLEUS_REACHED) {
        memmove(w, w + left, (*n - left) * sizeof *w);
        *n -= left;
    }
    return state;
}

/* ---- the draw ---- */

/* A word whose value is more than the noise's whole range below the leader cannot win, so its noise is not drawn. */
td_word td_words_draw(const td_word *w, uint32_t n, uint64_t seed, uint64_t position) {
    td_word winner = w[td_words_best(w, n)];
    double lead = winner.value + td_rng_gumbel(seed, position, (uint32_t)winner.id);
    for (uint32_t i = 0; i < n; i++) {
        if (w[i].value + TD_GUMBEL_MAX < lead)
            continue;
        double v = w[i].value + td_rng_gumbel(seed, position, (uint32_t)w[i].id);
        if (v > lead || (v == lead && w[i].id < winner.id)) {
            lead = v;
            winner = w[i];
        }
    }
    return winner;
}
