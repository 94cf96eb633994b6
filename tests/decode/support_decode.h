/* support_decode.h - a stage on which rounds are played and watched.
 *
 * A stage is a fixture, a pool, a decoder and perhaps a drafter. `truth` is the text and every position's logits and
 * hidden state as plain decoding gives them: one row a pass, one token a sample, without round.c, drafters or chunks. A
 * watched stage compares every row of every pass that the decoder runs with the truth, bit for bit, and can be told to
 * spoil a row's logits or to fail a pass. Failures end the test. */
#ifndef TD_TESTS_SUPPORT_DECODE_H
#define TD_TESTS_SUPPORT_DECODE_H

#include "support/fixture.h"

#include "decode/round.h"

#define STAGE_MAX_SEQS 8

typedef struct truth {
    td_token *tokens; /* [n] prompt and text */
    uint32_t n_prompt, n;
    td_finish finish;
    uint32_t n_vocab, n_embd;
    float *logits; /* [n-1][n_vocab] by position */
    float *hidden; /* [n-1][n_embd] */
} truth;

typedef struct stage_options {
    const char *fixture;        /* default "gemma4-dense" */
    const char *path;           /* or a checkpoint directory */
    const char *assistant_path; /* likewise */
    const char *backend;        /* "reference", "generic", "avx2", "avx512"; default "cpu": the best there is */
    int threads;                /* default 1 */
    bool float_activations;
    td_kv_type kv;
    uint32_t max_seqs, prefill_rows, max_depth; /* default 1, 64, 8 */
    uint32_t page_tokens;                       /* default 8 */
    uint32_t max_out;                           /* outputs of a pass; default what the decoder needs */
    uint64_t cache_bytes;                       /* of a prompt cache; 0: there is none */
    uint64_t pool_bytes;                        /* limit of the pool; 0: none */
    bool assistant;                             /* draft with the fixture's assistant */
    uint32_t bits;                              /* of the assistant; 0: 16 */
    bool random_weights, full_head;
    td_drafter *drafter; /* or this one, borrowed */
} stage_options;

typedef struct stage {
    td_backend *be;
    fixture f;
    td_checkpoint *assistant_ck;
    td_drafter *drafter, *owned_drafter;
    td_kv_pool *pool;
    td_prompt_cache *cache;
    td_decoder *decoder;
    /* watching */
    const td_model_ops *model_ops;
    const truth *seen[STAGE_MAX_SEQS]; /* of the round's sequences, in its order; NULL: not compared */
    uint64_t rows_compared, passes, rows;
    int64_t spoil_position; /* rows of sequence spoil_seq at this position lose their logits; -1: none */
    uint32_t spoil_seq;
    float spoil_value;
    bool fail_next_pass;
} stage;

/* False when this machine lacks the backend's instruction set. */
bool stage_open(stage *s, const stage_options *opt);
void stage_close(stage *s);

td_seq_params seq_params(uint32_t max_tokens, uint32_t depth);

/* n tokens of the fixtures' vocabulary, a function of `stream`. */
void random_prompt(td_token *out, uint32_t n, uint64_t stream);

void truth_make(truth *t, stage *s, const td_token *prompt, uint32_t n_prompt, const td_seq_params *p, uint32_t n_ctx);
void truth_free(truth *t);

td_seq *stage_seq(stage *s, uint32_t n_ctx);
void seq_start(td_seq *seq, const td_token *prompt, uint32_t n_prompt, const td_seq_params *p);
/* Rounds of this sequence alone, watched against `t`, until it is finished; then all of it must equal `t`. */
void stage_play(stage *s, td_seq *seq, const truth *t);
/* Tokens, finish and history are those of the truth; the stats add up. `what` names the case. */
void check_equal(const td_seq *seq, const truth *t, const char *what);

/* ---- a drafter that proposes what it is told ---- */

typedef struct script script;

/* Of one sequence: set its truth before the first round. */
typedef struct script_seq {
    const truth *text;
    uint32_t calls;
    /* What the next call shall do, given the depth wanted: so many right tokens, then wrong ones, in all n_out. */
    void (*plan)(struct script_seq *s, uint32_t depth, uint32_t *n_right, uint32_t *n_out);
    uint32_t n_right; /* for plans */
    td_token wrong;   /* what a wrong draft is; 0: some other token than the right one */
    /* What the calls amounted to. */
    uint64_t drafted, accepted, drafted_at[TD_MAX_DRAFT], accepted_at[TD_MAX_DRAFT];
    uint64_t exactly[TD_MAX_DRAFT + 1]; /* rounds in which so many were right */
    uint32_t last_length, longest;      /* deepest draft asked for */
} script_seq;

struct script {
    td_drafter base;
    td_status fail_next; /* the next draft() returns this; TD_OK: works */
    uint32_t batches, widest;
};

/* Every draft() checks what it is given: tokens, keys, hidden state and history must be those of the truth. */
void script_open(script *d, uint32_t max_seqs);
script_seq *script_of(const td_seq *seq);

/* Plans: n_right right ones of as many as wanted. */
void plan_fixed(script_seq *s, uint32_t depth, uint32_t *n_right, uint32_t *n_out);

#endif
