/* logprobs.c - one pass for the maximum and the best, one for the sum, in double and in the order of the tokens. */
#include "decode/logprobs.h"

#include <math.h>

/* Puts token t into the sorted best [*n_best of at most `most`]. */
static void consider(td_token_prob *best, uint32_t *n_best, uint32_t most, td_token t, float logit) {
    if (*n_best == most && !(logit > best[most - 1].logprob))
        return;
    uint32_t i = *n_best < most ? (*n_best)++ : most - 1;
    for (; i > 0 && logit > best[i - 1].logprob; i--)
        best[i] = best[i - 1];
    best[i] = (td_token_prob){t, logit};
}

void td_logprobs(const float *logits, uint32_t n, td_token token, uint32_t n_top, td_token_prob *out) {
    float top = logits[0];
    uint32_t n_best = 0;
    for (uint32_t t = 0; t < n; t++) {
        top = logits[t] > top ? logits[t] : top;
        if (n_top)
            consider(out + 1, &n_best, n_top, (td_token)t, logits[t]);
    }
    double sum = 0;
    for (uint32_t t = 0; t < n; t++)
        sum += exp((double)(logits[t] - top));
    double offset = (double)top + log(sum);
    out[0] = (td_token_prob){token, (float)((double)logits[token] - offset)};
    for (uint32_t i = 1; i <= n_best; i++)
        out[i].logprob = (float)((double)out[i].logprob - offset);
}
