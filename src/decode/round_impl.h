/* round_impl.h - what rounds (round.c) and their sequences (seq.c) share. */
#ifndef TD_DECODE_ROUND_IMPL_H
#define TD_DECODE_ROUND_IMPL_H

#include "decode/round.h"

#define TD_COPIES 3 /* snapshots that a pass makes of a sequence at most */

/* What one sequence does in the round under way. */
typedef struct slot {
    uint32_t first_row;           /* of the pass */
    uint32_t n_known;             /* rows of known tokens */
    uint32_t n_draft;             /* rows of drafts behind them */
    uint32_t n_made;              /* drafts made, n_draft of which are fed */
    uint32_t n_accepted;          /* drafts that were accepted */
    bool samples;                 /* the last known row is the newest token's */
    uint32_t first_out;           /* of the sampled rows, among the outputs */
    uint32_t first_logits;        /* and among the logits */
    td_snapshot *copy[TD_COPIES]; /* that the pass makes, or NULL */
    td_token draft[TD_MAX_DRAFT];
    float confidence[TD_MAX_DRAFT]; /* as in td_draft */
} slot;

struct td_decoder {
    td_model *model;
    td_drafter *drafter;
    td_kv_pool *pool;
    td_decoder_options opt;
    uint32_t prefill_rows; /* of this round */
    td_depth_costs costs;
    td_depth_ask *asks;  /* [max_seqs] of the sequences that may draft: adaptive ones, then those of a fixed depth */
    td_depth_round plan; /* of the adaptive ones */
    uint32_t n_asked;    /* drafts asked for */
    td_sampler *sampler;
    slot *slots;         /* [max_seqs] */
    td_draft *drafts;    /* [max_seqs] */
    uint32_t *ask_seq;   /* [max_seqs] sequence of each ask */
    uint32_t *draft_ask; /* [max_seqs] ask of each draft */
    td_token *token;     /* the pass's arrays */
    int32_t *pos, *n_keys, *out_row, *logits_out;
    uint32_t *row_seq, *n_sure, *n_commit;
    void **state;
    td_mark *mark; /* [TD_COPIES*max_seqs] */
    td_kv_pages *pages[TD_KV_MAX_GROUPS];
    float *hidden, *logits;
};

/* Nothing is left of what the sequence has computed. */
void td_seq_forget(td_seq *s);
/* The same of a sequence whose status says why; when its numbers are wrong, nothing of it stays in the prompt cache. */
void td_seq_fail(td_seq *s);
/* After rows were committed with td_kv_seq_advance: what is whole goes into the prompt cache, pages that no row sees
 * any more go. */
void td_seq_share(td_seq *s);
/* Tokens that the sequence may still make. */
uint32_t td_seq_remaining(const td_seq *s);
/* `params`: a td_seq_params. */
bool td_seq_is_end(const void *params, td_token t);

#endif
