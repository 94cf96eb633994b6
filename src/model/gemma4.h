/* gemma4.h - what the Gemma 4 trunk and its assistant share: the configuration, one layer's weights, one layer's
 * mathematics. Internal to the model room, but for the assistant's interface in gemma4_assistant.h.
 *
 * Source: the published checkpoints' configs and the behaviour of Hugging Face transformers 5.17.
 *
 * Traps that have cost others a bug
 *   - norms multiply by w, not by 1 + w; attention is scaled by 1.0
 *   - V is normed without a weight in every layer that owns K/V; with K = V it is the raw K projection that is normed
 *   - proportional RoPE: pairs (i, i + d/2) of the whole head, exponents over the whole head, a quarter of them turn
 *   - layer_scalar multiplies the whole stream at the very end of a layer
 *   - a layer that shares K/V reads the last layer of its type below the shared ones, not "the last layers" */
#ifndef TD_MODEL_GEMMA4_H
#define TD_MODEL_GEMMA4_H

#include "model/model.h"

#define TD_GEMMA4_MAX_LAYERS 256

/* Layers of a type share a window and a rotation; each type is a KV group. */
typedef enum td_gemma4_type { TD_GEMMA4_FULL, TD_GEMMA4_SLIDING, TD_GEMMA4_N_TYPES } td_gemma4_type;

typedef struct td_gemma4_layer_config {
    td_gemma4_type type;
    uint32_t head_dim;
    uint32_t n_kv_heads;
    uint32_t n_ff;
    bool owns_kv;
    bool k_is_v;       /* no v_proj: V comes from the K projection */
    uint32_t kv_layer; /* index into td_kv_layout.layer of the K/V that this layer reads */
} td_gemma4_layer_config;

typedef struct td_gemma4_rope {
    double theta;
    double partial; /* part of the pairs that turn */
    double factor;  /* frequencies are divided by it */
} td_gemma4_rope;

typedef struct td_gemma4_config {
    uint32_t n_vocab, n_embd, n_layers, n_heads, n_ctx;
    uint32_t window;
    uint32_t n_shared;                               /* trailing layers without K/V of their own */
    uint32_t ple, ple_vocab;                         /* width and rows of the per-layer inputs; 0: none */
    uint32_t n_experts, n_experts_used, n_ff_expert; /* 0: dense */
    float eps;
    float softcap; /* 0: none */
    float embed_scale;
    bool tied;
    td_gemma4_rope rope[TD_GEMMA4_N_TYPES];
    uint32_t n_kv_layers; /* layers that own K/V */
    td_gemma4_layer_config layer[TD_GEMMA4_MAX_LAYERS];
} td_gemma4_config;

/* Reads the text fields. `assistant`: every layer shares the trunk's K/V, so n_shared == n_layers and kv_layer stays 0.
 * TD_E_MODEL names the key, the value found and what was expected. */
td_status td_gemma4_config_read(td_gemma4_config *c, const json_t *text, const char *where, const json_t *root,
                                bool assistant, td_error *err) TD_MUST_CHECK;

typedef struct td_gemma4_layer {
    float *attn_norm, *attn_post_norm, *ff_norm, *ff_post_norm; /* [n_embd] */
    float *q_norm, *k_norm;                                     /* [head_dim]; k_norm NULL where K/V is shared */
    td_matrix q, k, v, o;                                       /* k, v unset where K/V is shared; v where k_is_v */
    td_matrix gate, up, down;
    float scalar; /* layer_scalar, 1 when absent */
    /* per-layer inputs */
    td_matrix ple_gate, ple_proj;
    float *ple_norm;
    /* mixture of experts */
    td_matrix router, expert_gate, expert_up, expert_down; /* expert_up unset: expert_gate is fused gate and up */
    float *router_scale;                                   /* [n_embd], n_embd^-0.5 folded in */
    float *expert_scale;                                   /* [n_experts] */
    float *ff_post_norm1, *ff_norm2, *ff_post_norm2;
} td_gemma4_layer;

/* Counts what loading found, for td_model_info. */
typedef struct td_gemma4_tally {
    uint64_t n_params, weight_bytes, row_bytes, heap_bytes;
    uint64_t bits_count[33]; /* weights by width of their code */
} td_gemma4_tally;

/* Loads layer `i` from "layers.<i>.". On failure the layer may be half-filled: td_gemma4_layer_free it. */
td_status td_gemma4_layer_load(td_gemma4_layer *l, const td_gemma4_config *c, uint32_t i, const td_checkpoint *ck,
                               td_gemma4_tally *tally, td_error *err) TD_MUST_CHECK;
/* td_model_load_all of the layer's matrices. */
td_status td_gemma4_layer_adopt(td_gemma4_layer *l, td_backend *be, td_loading *loading, td_error *err) TD_MUST_CHECK;
void td_gemma4_layer_free(td_gemma4_layer *l);

/* One matrix, counted. */
td_status td_gemma4_matrix(const td_checkpoint *ck, const char *module, uint32_t n_stack, uint32_t n_out, uint32_t n_in,
                           td_matrix *out, td_gemma4_tally *tally, td_error *err) TD_MUST_CHECK;
td_status td_gemma4_vector(const td_checkpoint *ck, const char *name, uint32_t n, float **out, td_gemma4_tally *tally,
                           td_error *err) TD_MUST_CHECK;

/* The rotation of a type: inv_freq [*n_rot], pairs (i, i + head_dim/2). td_free_aligned. */
td_status td_gemma4_rope_table(const td_gemma4_rope *r, uint32_t head_dim, float **inv_freq, uint32_t *n_rot,
                               td_error *err) TD_MUST_CHECK;

/* Fails naming the first tensor that neither the family knows nor it leaves alone knowingly; counts the latter. */
td_status td_gemma4_check_names(const td_checkpoint *ck, const td_gemma4_config *c, bool assistant, uint32_t *n_skipped,
                                td_error *err) TD_MUST_CHECK;

/* Activations of one pass, in backend memory, for up to n_rows rows. */
typedef struct td_gemma4_scratch {
    float *x, *y, *q, *k, *v, *a, *gate, *up, *moe_x, *moe_out, *logits_e, *weight_e;
    int32_t *expert;
} td_gemma4_scratch;

td_status td_gemma4_scratch_open(td_gemma4_scratch *s, td_backend *be, const td_gemma4_config *c, uint32_t n_rows,
                                 uint64_t *bytes, td_error *err) TD_MUST_CHECK;
void td_gemma4_scratch_close(td_gemma4_scratch *s, td_backend *be);

/* Rows and the KV they read; what changes from layer to layer stands in the call. */
typedef struct td_gemma4_rows {
    uint32_t n;
    const int32_t *pos;
    const uint32_t *row_seq;
    uint32_t n_seq;
    const td_kv_pages *const *pages; /* [TD_KV_MAX_GROUPS] */
    const int32_t *n_keys;
    const td_kv_layout *kv;
    uint32_t window[TD_GEMMA4_N_TYPES];
} td_gemma4_rows;

typedef struct td_gemma4_rotation {
    float *inv_freq[TD_GEMMA4_N_TYPES];
    uint32_t n_rot[TD_GEMMA4_N_TYPES];
    uint32_t pair_dist[TD_GEMMA4_N_TYPES];
} td_gemma4_rotation;

/* x <- layer l of x, in s->x. ple: this layer's per-layer inputs, n rows `ple_stride` apart, or NULL. */
void td_gemma4_layer_forward(td_backend *be, const td_gemma4_config *c, uint32_t l, const td_gemma4_layer *w,
                             const td_gemma4_rotation *rot, const td_gemma4_rows *rows, td_gemma4_scratch *s,
                             const float *ple, size_t ple_stride);

/* The trunk, as its assistant needs it: NULL when `m` is of another family. */
const td_gemma4_config *td_gemma4_trunk_config(const td_model *m);

#endif
