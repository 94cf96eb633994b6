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
    uint32_t depth; /* tokens wanted, >= 1, <= TD_MAX_DRAFT */
    td_token *out;  /* [depth] */
    uint32_t n_out; /* tokens proposed, 0..depth */
} td_draft;

typedef struct td_drafter_ops {
    /* NULL when the drafter keeps nothing of a sequence. */
    td_status (*open_seq)(td_drafter *d, void **state, td_error *err);
    void (*close_seq)(td_drafter *d, void *state);
    td_status (*draft)(td_drafter *d, td_draft *batch, uint32_t n, td_error *err);
    void (*close)(td_drafter *d);
} td_drafter_ops;

struct td_drafter {
    const td_drafter_ops *ops;
    const char *kind;      /* "assistant" */
    char format[48];       /* of its weights */
    uint64_t weight_bytes; /* of its weights, wherever they lie */
    uint64_t heap_bytes;   /* allocated for it */
    uint32_t max_seqs;     /* sequences of one draft() */
};

typedef struct td_drafter_options {
    uint32_t max_seqs;   /* sequences of a round */
    uint32_t bits;       /* 16, 8 or 4 */
    bool random_weights; /* tests */
    bool full_head;      /* ignore centroids */
    int query_offset;    /* see gemma4_assistant.h */
    int window_extra;
    const td_log *log;
} td_drafter_options;

td_drafter_options td_drafter_options_default(void);

/* The drafter of an assistant checkpoint; `ck` and `trunk` must outlive it. Errors as td_gemma4_assistant_open. */
td_status td_drafter_assistant_open(td_drafter **out, td_checkpoint *ck, td_model *trunk, const td_drafter_options *opt,
                                    td_error *err) TD_MUST_CHECK;

void td_drafter_close(td_drafter **d);

#endif
