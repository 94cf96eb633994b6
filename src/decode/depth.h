/* depth.h - how many tokens each sequence of a round drafts, from what passes have cost and what drafts have been
 * accepted.
 *
 * A round of n sequences yields n tokens and one more for every draft that is accepted, and costs a pass of all its
 * rows and the steps of its drafter. The plan gives row after row to the sequence whose next draft is likeliest to be
 * accepted together with those before it, and takes the number of rows that makes the most tokens a second. No rows
 * at all is plain decoding and a legal answer. A lone sequence is a round of n = 1.
 *
 * The drafter says how likely it holds each token that it drafts to be. What that is worth is measured: tokens of like
 * probability are counted together, and count for as much as they have been accepted. So a draft ends where going on
 * would not pay (td_draft_stop), goes beyond the plan where it would, and of what has been drafted only rows that pay
 * are fed (td_depth_keep). A drafter whose probabilities say nothing loses nothing by them.
 *
 * Where an average draft does not pay, one is begun all the same if its first token's probability is likely to say
 * that this one does.
 *
 * Costs belong to the machine and are shared by all sequences (costs.h); when an engine opens they are measured
 * (calibrate.c). Acceptance belongs to the text. What a sequence has not tried of late fades, and what all sequences
 * have shown, which does not, takes its place; when drafts fare otherwise than the counts say the counts are dropped:
 * a text that changes is seen within a few rounds. What is not known is found out at a bounded price: a plain pass when
 * a number of rows is new or its price is old; a draft now and then while none pay; and a number of drafts that would
 * be best if little-tried positions were accepted as well as may be hoped, and little-tried passes as cheap, once what
 * it is likely to lose is a small part of the rounds since the last such trial. Only speed depends on any of this,
 * never the text. */
#ifndef TD_DECODE_DEPTH_H
#define TD_DECODE_DEPTH_H

#include "decode/costs.h"
#include "decode/drafter.h"

#define TD_DEPTH_PROBE 64   /* rounds between drafts while none pay, at most */
#define TD_DEPTH_EXPLORE 24 /* rounds between trials of other depths, at least */
#define TD_DEPTH_DRAFTS 256 /* drafts of one round, at most */

/* How often drafts were accepted; counts fade. */
typedef struct td_acceptance {
    float tried[TD_MAX_DRAFT], hit[TD_MAX_DRAFT]; /* by position: the ones before it were accepted; it was, too */
    float sure[TD_CONFIDENCE_BINS], right[TD_CONFIDENCE_BINS]; /* by the drafter's probability: tried, accepted */
    float first[TD_CONFIDENCE_BINS];                           /* likewise, first drafts made */
} td_acceptance;

/* Evidence that the first draft fares otherwise than the counts say, since it last was none (Page's CUSUM test). */
typedef struct td_depth_shift {
    float score;
    uint16_t n, hits;
} td_depth_shift;

/* Of one sequence. */
typedef struct td_depth {
    td_acceptance seen;
    td_depth_shift worse, better;
    uint32_t since_draft; /* rounds without one */
    bool changed;         /* the text has turned out to be another than those before it */
} td_depth;

/* Of a decoder. Zeroed: nothing is known. */
typedef struct td_depth_costs {
    td_costs costs;
    td_acceptance all;      /* over all sequences: where a new one begins */
    bool has_confidence;    /* the drafter gives probabilities */
    uint32_t since_probe;   /* rounds */
    uint32_t since_explore; /* rounds */
    /* the round under way */
    td_cost_bucket *bucket;
    double rate; /* tokens a second that the plan makes */
    bool forced; /* the plan is a trial and stays as it is */
} td_depth_costs;

/* One sequence of a round that may draft. */
typedef struct td_depth_ask {
    const td_depth *depth;
    uint32_t most; /* drafts at most */
    /* the answer of td_depth_plan */
    uint32_t wanted; /* drafts to ask for; 0: none */
    td_draft_stop stop;
    bool forced; /* it is there to find out, and is fed whatever the drafter says */
    /* what came of it, for td_depth_keep */
    uint32_t n_out;           /* drafts made */
    const float *confidence;  /* [n_out] as in td_draft */
    uint32_t kept;            /* the answer: drafts to feed */
    float p[TD_MAX_DRAFT];    /* scratch: how likely each is accepted, once the ones before it were */
    float hope[TD_MAX_DRAFT]; /* and how likely at best, for all that is known */
} td_depth_ask;

typedef struct td_depth_round {
    td_depth_ask *asks; /* [n_asks] */
    uint32_t n_asks;
    uint32_t n_seqs;    /* of the round, those that do not draft among them */
    uint32_t n_rows;    /* of the pass without the drafts asked for here, and without rows of prompts */
    uint32_t n_prompt;  /* rows of prompts that the pass has besides */
    uint64_t n_keys;    /* that the pass reads, over all sequences */
    uint32_t most;      /* drafts of all together, at most */
    uint32_t free_from; /* drafts from this one on cost no step; TD_MAX_DRAFT: all do */
} td_depth_round;

void td_depth_init(td_depth *depth, const td_depth_costs *costs);

/* `wanted` and `stop` of every ask; together no more than round->most. */
void td_depth_plan(td_depth_costs *costs, const td_depth_round *round);
/* After drafting: `kept` of every ask, together no more than round->most. */
void td_depth_keep(td_depth_costs *costs, const td_depth_round *round);

/* What the round just planned has cost: its pass, which had n_drafts rows of drafts, those of sequences that were not
 * asked among them; and n_steps draft steps, the j-th
 * of live[j] sequences (n_steps 0: nothing can be said of them). */
void td_depth_saw_round(td_depth_costs *costs, const td_depth_round *round, uint32_t n_drafts, double pass_seconds,
                        const uint32_t *live, uint32_t n_steps, double draft_seconds);

/* How a sequence's drafts fared: `made` were drafted, the first `kept` of them fed, `accepted` of those accepted.
 * confidence: of the drafts made, NULL: unknown. */
void td_depth_learn(td_depth *depth, td_depth_costs *costs, uint32_t made, uint32_t kept, uint32_t accepted,
                    const float *confidence);

#endif
