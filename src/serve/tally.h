/* tally.h - the figures of a response: tokens for `usage`, times and drafts for `timings`, why it drafted or not for
 * `mtp`; summed over its answers. */
#ifndef TD_SERVE_TALLY_H
#define TD_SERVE_TALLY_H

#include "serve/choice.h"

typedef struct td_tally {
    uint64_t prompt_tokens, cached_tokens; /* of each prompt once, however many answers it got */
    uint64_t completion_tokens, reasoning_tokens;
    uint64_t evaluated, generated, timed; /* prompt tokens evaluated; tokens generated; those behind each first one */
    double queue_seconds, prefill_seconds, decode_seconds;
    uint64_t drafted, accepted;
    uint64_t drafted_at[TD_MAX_DRAFT], accepted_at[TD_MAX_DRAFT];
    bool mtp_active;
    const char *mtp_reason; /* of the first answer */
    uint32_t mtp_depth;
    uint64_t seed;
    bool has_prediction; /* the request had one */
} td_tally;

/* first: the first answer to its prompt, which pays for it. */
void td_tally_add(td_tally *t, const td_result *r, const td_choice *c, bool first);

/* {"prompt_tokens", "completion_tokens", "total_tokens", "prompt_tokens_details": {"cached_tokens"},
 * "completion_tokens_details": {"reasoning_tokens", with a prediction also "accepted_prediction_tokens",
 * "rejected_prediction_tokens"}} */
void td_tally_write_usage(td_json_out *o, const td_tally *t);

/* {"queue_ms", "prompt_n", "prompt_ms", "prompt_per_second", "cached_n", "cache_n", "predicted_n", "predicted_ms",
 * "predicted_per_second"} and, when something was drafted, {"draft_n", "draft_n_accepted", "draft_n_by_position",
 * "draft_n_accepted_by_position", "accepted_length_histogram"}: how often a round that drafted accepted 0, 1, ... */
void td_tally_write_timings(td_json_out *o, const td_tally *t);

/* {"active", "reason", "depth"} */
void td_tally_write_mtp(td_json_out *o, const td_tally *t);

#endif
