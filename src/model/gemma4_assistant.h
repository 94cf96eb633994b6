/* gemma4_assistant.h - the Gemma 4 MTP drafter: a small Q-only transformer that reads the trunk's K/V.
 *
 * One step, given the newest token t and a trunk-wide vector g:
 *     z  = W_pre [ trunk_embedding(t) ; g ]      layers (attention over the trunk's keys at one fixed position)
 *     n  = RMS(z)        logits = head(n)        g' = W_post n
 * g is the trunk's final-normed hidden state of the position before t in the first step of a round, g' afterwards.
 * The head is the whole tied table, or the centroid head: the k best of C clusters of tokens are scored, the others are
 * no candidates. The assistant writes no keys and has no state between rounds. */
#ifndef TD_MODEL_GEMMA4_ASSISTANT_H
#define TD_MODEL_GEMMA4_ASSISTANT_H

#include "model/model.h"

/* Where implementations disagree by one; measured on the demonstration pair (docs/gemma4-conventions.md).
 * The query stands at P + OFFSET, where P is the position of the newest token, which has no key yet. In sliding layers
 * it sees the keys k with P + OFFSET - (W + EXTRA) < k: EXTRA 0 is the trunk's own rule for a query there, 2 is what
 * transformers' inclusive mask amounts to (W + 1 stored keys). */
#define TD_GEMMA4_ASSISTANT_QUERY_OFFSET 0
#define TD_GEMMA4_ASSISTANT_WINDOW_EXTRA 0

typedef struct td_gemma4_assistant td_gemma4_assistant;

typedef struct td_gemma4_assistant_options {
    uint32_t max_rows;   /* sequences of one step */
    uint32_t bits;       /* 16: as the file has them; 8 or 4: matrices are quantised (affine) at load */
    bool full_head;      /* score the whole vocabulary although the checkpoint has centroids */
    bool random_weights; /* tests: matrices become noise, and only speed may change */
    int query_offset;    /* TD_GEMMA4_ASSISTANT_QUERY_OFFSET */
    int window_extra;    /* TD_GEMMA4_ASSISTANT_WINDOW_EXTRA */
    const td_log *log;
} td_gemma4_assistant_options;

td_gemma4_assistant_options td_gemma4_assistant_options_default(void);

/* `trunk` must be a Gemma 4 model and outlive the assistant; so must `ck`. A pair that does not fit (width, vocabulary,
 * head dims, KV heads, layer types) is TD_E_MODEL with both sides' numbers. */
td_status td_gemma4_assistant_open(td_gemma4_assistant **out, td_checkpoint *ck, td_model *trunk,
                                   const td_gemma4_assistant_options *opt, td_error *err) TD_MUST_CHECK;
void td_gemma4_assistant_close(td_gemma4_assistant **a);

typedef struct td_gemma4_assistant_info {
    uint32_t n_candidates; /* logits of a row: n_vocab, or clusters looked at times tokens of a cluster */
    uint32_t n_embd, n_layers;
    bool centroids;
    uint64_t n_params, weight_bytes, heap_bytes;
    char format[48]; /* of most of its matrices */
} td_gemma4_assistant_info;

const td_gemma4_assistant_info *td_gemma4_assistant_describe(const td_gemma4_assistant *a);

typedef struct td_gemma4_step {
    uint32_t n;                                 /* rows, one a sequence, <= max_rows */
    const td_token *token;                      /* [n] */
    const int32_t *pos;                         /* [n] P: position of the round's newest token */
    const td_kv_pages *pages[TD_KV_MAX_GROUPS]; /* a group: [n] */
    const int32_t *n_keys;                      /* [n] keys of the trunk that are committed: 0..P-1 */
    float *hidden;                              /* [n][trunk n_embd]: in g, out g' */
    float *logits;                              /* [n][n_candidates] */
    td_token *candidate; /* [n][n_candidates] token of each logit; untouched when not centroids */
} td_gemma4_step;

/* Runs one step and waits. */
td_status td_gemma4_assistant_step(td_gemma4_assistant *a, const td_gemma4_step *step, td_error *err) TD_MUST_CHECK;

#endif
