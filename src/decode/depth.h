/* depth.h - how many tokens to draft this round, from what rounds have cost and what drafts have been accepted.
 *
 * A round of depth d costs verify(1 + d rows) + d draft steps and yields 1 + p1 + p1 p2 + ... + p1..pd tokens, where
 * p_i is how often the i-th draft is accepted once the ones before it were. The controller keeps both sides measured
 * and takes the depth with the most tokens a second; depth 0 is plain decoding and a legal answer, so drafting that
 * does not pay is left off. Costs belong to the machine and are shared by all sequences; acceptance belongs to the
 * text.
 *
 * What is not known yet is found out at a bounded price: one round without drafts when a context bucket is new, and,
 * while drafting is off, one draft in every TD_DEPTH_PROBE rounds, so that a text which becomes predictable is noticed.
 * Only speed depends on any of this, never the text. */
#ifndef TD_DECODE_DEPTH_H
#define TD_DECODE_DEPTH_H

#include "tandem.h"

#define TD_DEPTH_BUCKETS 24  /* context lengths by powers of two */
#define TD_DEPTH_PROBE 48    /* rounds between probes while drafting is off */
#define TD_DEPTH_REFRESH 512 /* rounds after which the cost of a plain round is measured again */

/* Seconds; 0: not measured. */
typedef struct td_depth_costs {
    struct {
        double verify[1 + TD_MAX_DRAFT]; /* of a pass of 1 + i rows */
        double draft;                    /* of one draft step */
        uint32_t since_plain;            /* rounds since verify[0] was measured */
    } bucket[TD_DEPTH_BUCKETS];
    /* Acceptance over all sequences: where a new one begins. */
    double tried[TD_MAX_DRAFT], hit[TD_MAX_DRAFT];
} td_depth_costs;

/* Of one sequence. */
typedef struct td_depth {
    double tried[TD_MAX_DRAFT], hit[TD_MAX_DRAFT]; /* decayed counts: reached position i, accepted there */
    uint32_t since_draft;                          /* rounds without a draft */
    bool last_accepted;                            /* the last round accepted a draft */
} td_depth;

void td_depth_costs_init(td_depth_costs *costs);
void td_depth_init(td_depth *depth, const td_depth_costs *costs);

/* The depth of the next round, 0..most, for a sequence of n_keys keys. */
uint32_t td_depth_choose(const td_depth *depth, const td_depth_costs *costs, uint32_t n_keys, uint32_t most);

/* What a round of one sequence did: `drafted` tokens in draft_seconds, a pass of 1 + drafted rows in verify_seconds,
 * `accepted` of them accepted. */
void td_depth_observe(td_depth *depth, td_depth_costs *costs, uint32_t n_keys, uint32_t drafted, uint32_t accepted,
                      double draft_seconds, double verify_seconds);

#endif
