/* sampler.h - from logits to a token, as a pure function of (logits, parameters, history, seed, position).
 *
 * The draw is a Gumbel-max: of the tokens that the filters keep, the one with the largest logit/T + noise(seed,
 * position, token). Its distribution is the softmax of the kept logits (Gumbel 1954; Maddison et al. 2014), and because
 * a token's noise does not depend on the logits, a drafter that draws with the same noise proposes what the trunk will
 * draw whenever their distributions are alike. */
#ifndef TD_DECODE_SAMPLER_H
#define TD_DECODE_SAMPLER_H

#include "backend/backend.h"

typedef struct td_sampler td_sampler;

/* Scratch for vocabularies of up to n_vocab words. be: whose operations look through the logits; it outlives the
 * sampler. NULL: none, which takes longer and draws the same tokens. */
td_status td_sampler_open(td_sampler **out, td_backend *be, uint32_t n_vocab, td_error *err) TD_MUST_CHECK;
void td_sampler_close(td_sampler **s);

/* How often each token occurred. Penalties ask it. */
typedef struct td_history {
    uint32_t n_vocab;
    uint32_t *generated; /* [n_vocab] times among generated tokens */
    uint8_t *prompted;   /* [n_vocab] 1: occurs in the prompt */
} td_history;

td_status td_history_open(td_history *h, uint32_t n_vocab, td_error *err) TD_MUST_CHECK;
void td_history_close(td_history *h);
void td_history_clear(td_history *h);
static inline void td_history_add(td_history *h, td_token t) {
    h->generated[t]++;
}
static inline void td_history_remove(td_history *h, td_token t) {
    h->generated[t]--;
}

/* Parameters in range and finite, bias tokens within the vocabulary; else TD_E_ARG naming field, value and range. */
td_status td_sampling_check(const td_sampling *p, uint32_t n_vocab, td_error *err) TD_MUST_CHECK;

/* True when the history changes the logits. */
bool td_sampling_has_penalties(const td_sampling *p);

/* The token for `position`. logits [n]; candidate [n] gives each logit's token, NULL: its index; allowed: a bit a
 * token, others cannot be drawn, NULL: all can. All are only read. When no logit is finite, or one is NaN or +inf:
 * TD_E_NUMERIC (a -inf logit is a banned token). */
td_status td_sample(td_sampler *s, const td_sampling *p, const td_history *h, const float *logits,
                    const td_token *candidate, const uint64_t *allowed, uint32_t n, uint64_t position, td_token *out,
                    td_error *err) TD_MUST_CHECK;

/* How likely the last td_sample's token was to be drawn: its part of the softmax of what the filters kept, at
 * temperature 0 of all logits, which must still be what they were. 0 after a failure. Its last bits are the backend's
 * own, so it may steer what is drafted and never what is drawn. A sampler that nobody asks pays nothing for this. */
float td_sampler_confidence(const td_sampler *s);

#endif
