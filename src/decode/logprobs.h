/* logprobs.h - how likely the model found a token, and what it found likelier. */
#ifndef TD_DECODE_LOGPROBS_H
#define TD_DECODE_LOGPROBS_H

#include "base/status.h"

/* out [1 + n_top]: `token`, then the n_top likeliest tokens, the likeliest first (of equals the lower id), each with
 * the log of its softmax over logits [n]; n_top <= n. A -inf logit has -inf. */
void td_logprobs(const float *logits, uint32_t n, td_token token, uint32_t n_top, td_token_prob *out);

#endif
