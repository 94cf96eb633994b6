/* qwen35.h - what the parts of the Qwen 3.5 family share: the configuration, one layer's weights, the pieces of one
 * layer's mathematics. Internal to the model room; the trunk and its draft head are reached through td_model.
 *
 * Source: the published checkpoints of Qwen 3.5 and 3.6, the behaviour of Hugging Face transformers 5.17, and, for the
 * draft head, of the engines that run it.
 *
 * Traps that have cost others a bug
 *   - norms multiply by 1 + w in the published files and by w in MLX conversions, which have the 1 baked in; the norm
 *     inside a delta layer multiplies by w in both. What tells the two apart is the shape of conv1d, and nothing else
 *   - q_proj is query and gate head by head, not all queries and then all gates
 *   - value head j reads key head j / (Hv/Hk), not j % Hk; in GGUF files, which tile value heads, j % Hk
 *   - q alone is scaled, once; decay comes before the read with k; the output is read after the write
 *   - q, k and v go through the convolution, z does not; its window holds rows from before convolution and SiLU
 *   - rotation turns the first quarter of a head, pairs (i, i + rot/2), exponents over rot
 *   - the draft head is fed the hidden state after the final norm, and feeds itself its own after mtp.norm
 *   - fc takes the embedding first, the hidden state second
 *   - the draft head may lie in another layout (experts) or width than the trunk */
#ifndef TD_MODEL_QWEN35_H
#define TD_MODEL_QWEN35_H

#include "model/model.h"

#define TD_QWEN35_MAX_LAYERS 256

typedef struct td_qwen35_config {
    uint32_t n_vocab, n_embd, n_layers, n_ctx;
    uint32_t n_heads, n_kv_heads, head_dim;
    uint32_t n_rot; /* pairs of a head that turn */
    double theta;
    uint32_t n_k_heads, n_v_heads, k_dim, v_dim, kernel; /* delta layers */
    uint32_t n_ff;                                       /* of the dense MLP, or of the shared expert */
    uint32_t n_experts, n_experts_used, n_ff_expert;     /* 0: dense */
    float eps;
    bool tied;
    bool gguf;                            /* the conventions of that container: see td_checkpoint_gguf */
    uint32_t n_mtp;                       /* draft layers that the config promises */
    bool mtp_own_embeddings;              /* ... with tables of their own, as it says */
    uint32_t n_full, n_delta;             /* layers of each kind */
    bool full[TD_QWEN35_MAX_LAYERS];      /* full attention, else delta rule */
    uint32_t index[TD_QWEN35_MAX_LAYERS]; /* among the layers of its kind */
} td_qwen35_config;

/* Reads the text fields. Widths, heads and theta are never defaulted. TD_E_MODEL and TD_E_UNSUPPORTED name the key, the
 * value found and what was expected. `has_head`: the checkpoint holds lm_head. */
td_status td_qwen35_config_read(td_qwen35_config *c, const json_t *text, const char *where, const json_t *root,
                                bool has_head, td_error *err) TD_MUST_CHECK;

/* Channels of the convolution: queries, keys, values. */
static inline uint32_t td_qwen35_conv_dim(const td_qwen35_config *c) {
    return 2 * c->n_k_heads * c->k_dim + c->n_v_heads * c->v_dim;
}

typedef struct td_qwen35_layer {
    float *attn_norm, *ff_norm; /* [n_embd] */
    /* full attention */
    td_matrix q, k, v, o;   /* q: [n_heads][query, gate][head_dim] rows */
    float *q_norm, *k_norm; /* [head_dim] */
    /* delta rule */
    td_matrix qkv, z, a, b, out;
    float *conv;           /* [kernel][conv_dim] */
    float *rate, *dt_bias; /* [n_v_heads]; rate = exp(A_log), in GGUF files -A */
    float *delta_norm;     /* [v_dim] */
    /* MLP: the only one, or the shared expert's */
    td_matrix gate, up, down;
    /* mixture of experts */
    td_matrix router, shared_gate;                 /* shared_gate [1][n_embd] */
    td_matrix expert_gate, expert_up, expert_down; /* expert_up unset: expert_gate is fused gate and up */
} td_qwen35_layer;

/* The heads of the checkpoint: one full-attention layer between two ends. */
typedef struct td_qwen35_head {
    float *embed_norm, *hidden_norm, *norm; /* [n_embd] */
    td_matrix fc;                           /* [n_embd][embedding, hidden] */
    td_matrix embed, lm_head;               /* its own; unset: the trunk's */
    td_qwen35_layer layer;
} td_qwen35_head;

/* ---- loading ---- */

/* Counts what loading found, for td_model_info. */
typedef struct td_qwen35_tally {
    uint64_t n_params, weight_bytes, row_bytes, heap_bytes;
    uint64_t bits_count[33]; /* weights by width of their code */
} td_qwen35_tally;

/* Where weights come from. */
typedef struct td_qwen35_source {
    const td_checkpoint *ck;
    const td_qwen35_config *c;
    td_qwen35_tally *tally;
    bool raw; /* norms lack their 1 */
} td_qwen35_source;

td_status td_qwen35_matrix(const td_qwen35_source *s, const char *module, uint32_t n_out, uint32_t n_in, td_matrix *out,
                           td_error *err) TD_MUST_CHECK;
/* A zero-centred norm, with its 1. */
td_status td_qwen35_norm(const td_qwen35_source *s, const char *name, uint32_t n, float **out,
                         td_error *err) TD_MUST_CHECK;

/* Loads the layer "<prefix>...", e.g. "layers.3.". On failure it may be half-filled: td_qwen35_layer_free it. */
td_status td_qwen35_layer_load(td_qwen35_layer *l, const td_qwen35_source *s, const char *prefix, bool full,
                               td_error *err) TD_MUST_CHECK;
/* td_model_load_all of the layer's matrices. */
td_status td_qwen35_layer_adopt(td_qwen35_layer *l, td_backend *be, td_loading *loading, td_error *err) TD_MUST_CHECK;
void td_qwen35_layer_free(td_qwen35_layer *l);

/* Whether the file is as published (norms without their 1): the shape of the first delta layer's conv1d. */
td_status td_qwen35_is_raw(const td_checkpoint *ck, const td_qwen35_config *c, bool *raw, td_error *err) TD_MUST_CHECK;

/* Whether the checkpoint holds a draft head that can run, and if not, why. */
bool td_qwen35_head_present(const td_checkpoint *ck, const td_qwen35_config *c, char *reason, size_t size);
/* `raw`: of the trunk. Matrices wider than `bits` become affine of that width; bits 16: none do. */
td_status td_qwen35_head_load(td_qwen35_head *h, const td_checkpoint *ck, const td_qwen35_config *c, bool raw,
                              uint32_t bits, td_qwen35_tally *tally, td_error *err) TD_MUST_CHECK;
void td_qwen35_head_free(td_qwen35_head *h);

/* Fails naming the first tensor that neither the family knows nor it leaves alone knowingly; counts the latter. `mtp`:
 * the draft head is in use. */
td_status td_qwen35_check_names(const td_checkpoint *ck, const td_qwen35_config *c, bool mtp, uint32_t *n_skipped,
                                td_error *err) TD_MUST_CHECK;

/* ---- mathematics ---- */

/* Activations of one pass, in backend memory, for up to n_rows rows. */
typedef struct td_qwen35_scratch {
    float *x, *y;                              /* [n][n_embd] stream, branch */
    float *out_x, *out_y;                      /* the same, of the rows that go on */
    float *wide;                               /* [n][max(query and gate, conv_dim)] */
    float *conv;                               /* [n][conv_dim] */
    float *q, *mix;                            /* [n][n_heads*head_dim], and the widest of that and n_v_heads*v_dim */
    float *k, *v;                              /* [n][n_kv_heads*head_dim] */
    float *z, *a, *b;                          /* [n][n_v_heads*v_dim], [n][n_v_heads] */
    float *gate, *up;                          /* [n][n_ff] */
    float *moe, *logits_e, *weight_e, *shared; /* [n][n_embd], [n][n_experts], [n][n_experts_used], [n] */
    int32_t *expert;
    int32_t *even; /* [n*n_heads] 0, 2, 4, ...: the queries among queries and gates */
} td_qwen35_scratch;

td_status td_qwen35_scratch_open(td_qwen35_scratch *s, td_backend *be, const td_qwen35_config *c, uint32_t n_rows,
                                 uint64_t *bytes, td_error *err) TD_MUST_CHECK;
void td_qwen35_scratch_close(td_qwen35_scratch *s, td_backend *be);

/* What the pieces of a layer are done with. */
typedef struct td_qwen35_context {
    td_backend *be;
    const td_qwen35_config *c;
    const float *inv_freq; /* [n_rot] */
    uint32_t n_seq;
    const td_kv_pages *pages;
    const int32_t *n_keys;
    const td_kv_layout *kv;
} td_qwen35_context;

/* Rows under way: where they stand, and their activations. */
typedef struct td_qwen35_rows {
    uint32_t n;
    const int32_t *pos;
    const uint32_t *row_seq;
    td_qwen35_scratch s; /* a copy: x and y may point elsewhere than at first */
} td_qwen35_rows;

/* mix <- the recurrence over wide (queries, keys, values), a and b; all there is to do for rows of the log. */
void td_qwen35_recur(const td_qwen35_context *x, const td_qwen35_layer *w, const td_qwen35_rows *r,
                     const td_memory *memory);
/* y is the layer's normed input, and becomes its branch. */
void td_qwen35_delta(const td_qwen35_context *x, const td_qwen35_layer *w, const td_qwen35_rows *r,
                     const td_memory *memory);
/* Writes the K and V of the rows, from y. */
void td_qwen35_keys(const td_qwen35_context *x, const td_qwen35_layer *w, const td_kv_layer *kv,
                    const td_qwen35_rows *r);
/* Attention of the rows over keys written before. */
void td_qwen35_attention(const td_qwen35_context *x, const td_qwen35_layer *w, const td_kv_layer *kv,
                         const td_qwen35_rows *r);
/* x += y; y = FFN(RMS(x)); x += y. */
void td_qwen35_finish_layer(const td_qwen35_context *x, const td_qwen35_layer *w, const td_qwen35_rows *r);

/* The rest of the pass is about rows row[0..n) of r alone. pos, seq [n]: the caller's, filled here. */
void td_qwen35_keep_rows(const td_qwen35_context *x, td_qwen35_rows *r, const int32_t *row, uint32_t n, int32_t *pos,
                         uint32_t *seq);

/* Parts of a delta layer's state, in bytes from its start. */
typedef struct td_qwen35_state_plan {
    size_t kept, log;             /* bytes of a layer's committed part, and of its log */
    size_t delta_kept, delta_log; /* where in them the delta rule's part begins; the convolution's comes first */
    uint64_t snapshot_bytes, state_bytes; /* of all layers: committed parts, then logs */
} td_qwen35_state_plan;

td_qwen35_state_plan td_qwen35_plan_state(const td_qwen35_config *c, uint32_t max_tentative);

#endif
