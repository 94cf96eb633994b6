/* drafter.h - what proposes tokens: one interface for heads of any kind.
 *
 * A drafter is asked, once a round, to continue each of some sequences. What it proposes never changes the text, only
 * how many tokens a round yields, so it is free to be wrong, to stop early, or to propose nothing. It draws with the
 * trunk's sampling parameters and the trunk's noise, so that it agrees often at any temperature. */
#ifndef TD_DECODE_DRAFTER_H
#define TD_DECODE_DRAFTER_H

#include "cache/kv.h"
#include "decode/sampler.h"

typedef struct td_drafter td_drafter;

/* ---- when a draft ends before its depth ---- */

#define TD_CONFIDENCE_BINS 8 /* classes of a drafter's probabilities */
uint32_t td_confidence_bin(float probability);

typedef struct td_draft_stop {
    float min_prob;                  /* the product of the tokens' probabilities stays at or above this; 0: no limit */
    float worth[TD_CONFIDENCE_BINS]; /* how often tokens of such a probability are accepted */
    float typical[TD_MAX_DRAFT];     /* and tokens of unknown probability, by position */
    float least[TD_MAX_DRAFT]; /* a draft of i + 1 tokens goes on while it is this likely to be accepted as a whole */
} td_draft_stop;

/* ---- drafting ---- */

/* One sequence of a round. */
typedef struct td_draft {
    void *state;            /* the drafter's own, from open_seq; NULL when it keeps none */
    const td_token *tokens; /* [n_tokens] prompt and text; the last is the newest and has no key yet */
    uint32_t n_tokens;
    const td_kv_seq *kv; /* the trunk's keys, of positions 0..n_tokens-2 */
    const float *hidden; /* [trunk n_embd] final hidden state of position n_tokens-2 */
    const td_sampling *sampling;
    td_history *history;                          /* as it stands after the newest token; left as it was */
    bool (*is_end)(const void *user, td_token t); /* an end token ends the draft (and is its last token) */
    const void *is_end_user;
    uint32_t depth;            /* tokens wanted, >= 1, <= TD_MAX_DRAFT */
    const td_draft_stop *stop; /* NULL: none */
    td_token *out;             /* [depth] */
    float *confidence; /* [depth] the drafter's probability of each token; negative: it has none; NULL: not wanted */
    uint32_t n_out;    /* tokens proposed, 0..depth */
    uint32_t n_steps;  /* of the drafter that this took, as far as it counts them */
    /* the drafter's, by td_draft_begin and td_draft_take */
    float product, reach; /* of the probabilities; of what they are worth */
    bool ended;
} td_draft;

/* What drafters that go a token at a time share. begin: nothing is drafted. take: the next token, of this probability
 * (negative: unknown), becomes part of the draft and of its history, unless the draft ends before it. goes_on: another
 * token is wanted. release: the history is again as it was. */
void td_draft_begin(td_draft *b);
void td_draft_take(td_draft *b, td_token t, float probability);
bool td_draft_goes_on(const td_draft *b);
void td_draft_release(td_draft *b);

/* Rows of one sequence that a pass has computed and that stay: known tokens and accepted drafts. */
typedef struct td_observed {
    void *state;
    const td_token *tokens; /* [n_tokens] as in td_draft; what was sampled last is among them */
    uint32_t n_tokens;
    const td_kv_seq *kv;
    uint32_t first_pos;  /* of the first row: the number of rows observed before, or rewound to */
    uint32_t n_rows;     /* >= 1; first_pos + n_rows < n_tokens: the token after each row is known */
    const float *hidden; /* [n_rows][n_embd] final hidden states */
} td_observed;

typedef struct td_drafter_ops {
    /* NULL when the drafter keeps nothing of a sequence. */
    td_status (*open_seq)(td_drafter *d, void **state, td_error *err);
    void (*close_seq)(td_drafter *d, void *state);
    td_status (*draft)(td_drafter *d, td_draft *batch, uint32_t n, td_error *err);
    void (*close)(td_drafter *d);
    /* What heap_bytes would be if sequences had no more than n_ctx tokens; NULL: that makes no difference. */
    uint64_t (*heap_at)(const td_drafter *d, uint32_t n_ctx);
    /* Only where all_rows. observe: after every pass, once a sequence. rewind: the sequence goes back to its first
     * n_rows rows (0: to nothing), which may be more than were observed, when others have left their keys; hidden: the
     * final hidden state of the last of them, or NULL when it is not known. settle: what still has to be written of the
     * observed rows is written now, for their pages are about to be shared; no rows come with it. */
    td_status (*observe)(td_drafter *d, const td_observed *rows, td_error *err);
    void (*rewind)(td_drafter *d, void *state, uint32_t n_rows, const float *hidden);
    td_status (*settle)(td_drafter *d, const td_observed *none, td_error *err);
} td_drafter_ops;

struct td_drafter {
    const td_drafter_ops *ops;
    const char *kind;      /* "assistant" */
    char format[48];       /* of its weights */
    uint64_t weight_bytes; /* of its weights, wherever they lie */
    uint64_t heap_bytes;   /* allocated for it */
    uint32_t max_seqs;     /* sequences of one draft() */
    uint32_t free_from;    /* drafts behind this many cost no step; 0: all do */
    bool all_rows;         /* wants to observe the hidden state of every row, and writes K/V of its own at positions up
                            * to n_tokens - 1 + depth of the trunk's pages; the model must be opened with mtp */
};

typedef struct td_drafter_options {
    uint32_t max_seqs;   /* sequences of a round */
    uint32_t bits;       /* 16, 8 or 4 */
    bool random_weights; /* tests */
    bool full_head;      /* ignore centroids */
    int query_offset;    /* see gemma4_assistant.h */
    int window_extra;
    uint32_t shortlist;     /* heads: score this many words instead of all; 0: all. Changes no text */
    const td_token *common; /* [n_common] words to begin the shortlist with; NULL: those of the lowest ids */
    size_t n_common;
    const td_log *log;
} td_drafter_options;

td_drafter_options td_drafter_options_default(void);

/* The drafter of an assistant checkpoint; `ck` and `trunk` must outlive it. Errors as td_gemma4_assistant_open. */
td_status td_drafter_assistant_open(td_drafter **out, td_checkpoint *ck, td_model *trunk, const td_drafter_options *opt,
                                    td_error *err) TD_MUST_CHECK;

/* The drafter of the heads that `trunk` has loaded (td_model_options.mtp, info.mtp_loaded); else TD_E_MODEL with the
 * trunk's reason. */
td_status td_drafter_heads_open(td_drafter **out, td_model *trunk, const td_drafter_options *opt,
                                td_error *err) TD_MUST_CHECK;

void td_drafter_close(td_drafter **d);

#endif
