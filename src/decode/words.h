/* words.h - what a sampler does with words and their values (logit/T): filters, and the Gumbel draw.
 *
 * A filter leaves its survivors in w[0..return), in no order. Ties and orders are by (value, token), never by where a
 * word stands, so that a shortlist of candidates and the whole vocabulary agree on the words they share, and so that
 * words which no filter would keep may be left out beforehand. n >= 1 everywhere, and a word's id is its token. */
#ifndef TD_DECODE_WORDS_H
#define TD_DECODE_WORDS_H

#include "backend/backend.h"

/* Where the best word stands. */
uint32_t td_words_best(const td_word *w, uint32_t n);

/* The k best; k >= 1. */
uint32_t td_words_top_k(td_word *w, uint32_t n, uint32_t k);

/* Those that are not below `least`. */
uint32_t td_words_within(td_word *w, uint32_t n, float least);

/* The sum of exp(value - best), added in the order in which they stand. */
double td_words_mass(const td_word *w, uint32_t n, double best);

typedef enum td_nucleus {
    TD_NUCLEUS_REACHED,
    TD_NUCLEUS_SHORT,  /* all words together do not reach it */
    TD_NUCLEUS_UNSURE, /* the total is not known well enough to say: all words are still there */
} td_nucleus;

/* The smallest set of most likely words whose mass reaches top_p of the total, which lies in [lo, hi]. *n: words, then
 * those kept. */
td_nucleus td_words_nucleus(td_word *w, uint32_t *n, double best, float top_p, double lo, double hi);

/* The word of the largest value + noise(seed, position, token). */
td_word td_words_draw(const td_word *w, uint32_t n, uint64_t seed, uint64_t position);

#endif
