/* gemma4_load.c - finds a layer's weights in a checkpoint, and refuses a checkpoint with tensors nobody reads.
 *
 * Names are the plain ones (td_model_alias_plain_names). Fused expert tensors of the published layout and the split
 * ones of MLX conversions are both known. */
#include "model/gemma4.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "model/names.h"

td_status td_gemma4_matrix(const td_checkpoint *ck, const char *module, uint32_t n_stack, uint32_t n_out, uint32_t n_in,
                           td_matrix *out, td_gemma4_tally *tally, td_error *err) {
    TD_TRY(td_checkpoint_matrix(ck, module, n_stack, n_out, n_in, out, err));
    uint64_t n = (uint64_t)out->n_stack * n_out * n_in;
    tally->n_params += n;
    tally->bits_count[out->bits] += n;
    tally->weight_bytes += td_matrix_bytes(out);
    tally->row_bytes += td_matrix_bytes(out);
    return TD_OK;
}

td_status td_gemma4_vector(const td_checkpoint *ck, const char *name, uint32_t n, float **out, td_gemma4_tally *tally,
                           td_error *err) {
    TD_TRY(td_checkpoint_vector(ck, name, n, out, err));
    tally->n_params += n;
    tally->heap_bytes += (uint64_t)n * sizeof(float);
    return TD_OK;
}

/* "layers.<i>.<rest>" in a caller's buffer. */
static const char *layer_name(char buf[96], uint32_t i, const char *rest) {
    snprintf(buf, 96, "layers.%u.%s", i, rest);
    return buf;
}

/* True when the layer has any of these modules. */
static bool has_any(const td_checkpoint *ck, uint32_t i, const char *const *rest) {
    char b[96];
    for (; *rest; rest++)
        if (td_checkpoint_has_matrix(ck, layer_name(b, i, *rest)))
            return true;
    return false;
}

static td_status load_experts(td_gemma4_layer *l, const td_gemma4_config *c, uint32_t i, const td_checkpoint *ck,
                              td_gemma4_tally *tally, td_error *err) {
    char b[96];
    uint32_t n = c->n_experts, ff = c->n_ff_expert, d = c->n_embd;
    uint64_t before = tally->row_bytes;
    static const char *const split[] = {"experts.switch_glu.gate_proj", "experts.switch_glu.up_proj",
                                        "experts.switch_glu.down_proj", NULL};
    static const char *const fused[] = {"experts.gate_up_proj", "experts.down_proj", NULL};
    const bool is_gguf = td_checkpoint_gguf(ck) != NULL; /* there one name serves both layouts' down projection */
    if (has_any(ck, i, split) && has_any(ck, i, is_gguf ? (const char *const[]){fused[0], NULL} : fused))
        return td_fail(err, TD_E_MODEL, "%s: the experts of layer %u are there both fused and split",
                       td_checkpoint_path(ck), i);
    const char *down = fused[1];
    if (has_any(ck, i, split)) {
        TD_TRY(td_gemma4_matrix(ck, layer_name(b, i, split[0]), n, ff, d, &l->expert_gate, tally, err));
        TD_TRY(td_gemma4_matrix(ck, layer_name(b, i, split[1]), n, ff, d, &l->expert_up, tally, err));
        down = is_gguf ? fused[1] : split[2];
    } else {
        TD_TRY(td_gemma4_matrix(ck, layer_name(b, i, fused[0]), n, 2 * ff, d, &l->expert_gate, tally, err));
    }
    TD_TRY(td_gemma4_matrix(ck, layer_name(b, i, down), n, d, ff, &l->expert_down, tally, err));
    tally->row_bytes = before + (tally->row_bytes - before) * c->n_experts_used / n; /* a row reads only its experts */
    TD_TRY(td_gemma4_matrix(ck, layer_name(b, i, "router.proj"), 0, n, d, &l->router, tally, err));
    TD_TRY(td_gemma4_vector(ck, layer_name(b, i, "router.scale"), d, &l->router_scale, tally, err));
    for (uint32_t j = 0; j < d; j++)
        l->router_scale[j] /= sqrtf((float)d);
    TD_TRY(td_gemma4_vector(ck, layer_name(b, i, "router.per_expert_scale"), n, &l->expert_scale, tally, err));
    TD_TRY(td_gemma4_vector(ck, layer_name(b, i, "post_feedforward_layernorm_1.weight"), d, &l->ff_post_norm1, tally,
                            err));
    TD_TRY(td_gemma4_vector(ck, layer_name(b, i, "pre_feedforward_layernorm_2.weight"), d, &l->ff_norm2, tally, err));
    return td_gemma4_vector(ck, layer_name(b, i, "post_feedforward_layernorm_2.weight"), d, &l->ff_post_norm2, tally,
                            err);
}

static td_status load_attention(td_gemma4_layer *l, const td_gemma4_config *c, uint32_t i, const td_checkpoint *ck,
                                td_gemma4_tally *tally, td_error *err) {
    char b[96];
    const td_gemma4_layer_config *lc = &c->layer[i];
    uint32_t q = c->n_heads * lc->head_dim, kv = lc->n_kv_heads * lc->head_dim;
    TD_TRY(td_gemma4_matrix(ck, layer_name(b, i, "self_attn.q_proj"), 0, q, c->n_embd, &l->q, tally, err));
    TD_TRY(td_gemma4_matrix(ck, layer_name(b, i, "self_attn.o_proj"), 0, c->n_embd, q, &l->o, tally, err));
    TD_TRY(td_gemma4_vector(ck, layer_name(b, i, "self_attn.q_norm.weight"), lc->head_dim, &l->q_norm, tally, err));
    if (!lc->owns_kv)
        return TD_OK;
    TD_TRY(td_gemma4_matrix(ck, layer_name(b, i, "self_attn.k_proj"), 0, kv, c->n_embd, &l->k, tally, err));
    if (!lc->k_is_v)
        TD_TRY(td_gemma4_matrix(ck, layer_name(b, i, "self_attn.v_proj"), 0, kv, c->n_embd, &l->v, tally, err));
    return td_gemma4_vector(ck, layer_name(b, i, "self_attn.k_norm.weight"), lc->head_dim, &l->k_norm, tally, err);
}

static td_status load_scalar(td_gemma4_layer *l, uint32_t i, const td_checkpoint *ck, td_error *err) {
    char b[96];
    l->scalar = 1;
    if (!td_checkpoint_find(ck, layer_name(b, i, "layer_scalar")))
        return TD_OK;
    float *v;
    TD_TRY(td_checkpoint_vector(ck, b, 1, &v, err));
    l->scalar = v[0];
    td_free_aligned(v);
    return TD_OK;
}

td_status td_gemma4_layer_load(td_gemma4_layer *l, const td_gemma4_config *c, uint32_t i, const td_checkpoint *ck,
                               td_gemma4_tally *tally, td_error *err) {
    char b[96];
    uint32_t d = c->n_embd, ff = c->layer[i].n_ff;
    TD_TRY(td_gemma4_vector(ck, layer_name(b, i, "input_layernorm.weight"), d, &l->attn_norm, tally, err));
    TD_TRY(
        td_gemma4_vector(ck, layer_name(b, i, "post_attention_layernorm.weight"), d, &l->attn_post_norm, tally, err));
    TD_TRY(td_gemma4_vector(ck, layer_name(b, i, "pre_feedforward_layernorm.weight"), d, &l->ff_norm, tally, err));
    TD_TRY(
        td_gemma4_vector(ck, layer_name(b, i, "post_feedforward_layernorm.weight"), d, &l->ff_post_norm, tally, err));
    TD_TRY(load_attention(l, c, i, ck, tally, err));
    TD_TRY(td_gemma4_matrix(ck, layer_name(b, i, "mlp.gate_proj"), 0, ff, d, &l->gate, tally, err));
    TD_TRY(td_gemma4_matrix(ck, layer_name(b, i, "mlp.up_proj"), 0, ff, d, &l->up, tally, err));
    TD_TRY(td_gemma4_matrix(ck, layer_name(b, i, "mlp.down_proj"), 0, d, ff, &l->down, tally, err));
    if (c->ple) {
        TD_TRY(td_gemma4_matrix(ck, layer_name(b, i, "per_layer_input_gate"), 0, c->ple, d, &l->ple_gate, tally, err));
        TD_TRY(td_gemma4_matrix(ck, layer_name(b, i, "per_layer_projection"), 0, d, c->ple, &l->ple_proj, tally, err));
        TD_TRY(td_gemma4_vector(ck, layer_name(b, i, "post_per_layer_input_norm.weight"), d, &l->ple_norm, tally, err));
    }
    if (c->n_experts)
        TD_TRY(load_experts(l, c, i, ck, tally, err));
    return load_scalar(l, i, ck, err);
}

#define LAYER_MATRICES 13

static void layer_matrices(td_gemma4_layer *l, td_matrix *m[LAYER_MATRICES]) {
    td_matrix *const all[LAYER_MATRICES] = {&l->q,           &l->k,         &l->v,          &l->o,        &l->gate,
                                            &l->up,          &l->down,      &l->ple_gate,   &l->ple_proj, &l->router,
                                            &l->expert_gate, &l->expert_up, &l->expert_down};
    memcpy(m, all, sizeof all);
}

td_status td_gemma4_layer_adopt(td_gemma4_layer *l, td_backend *be, td_loading *loading, td_error *err) {
    td_matrix *m[LAYER_MATRICES];
    layer_matrices(l, m);
    return td_model_load_all(be, m, LAYER_MATRICES, loading, err);
}

void td_gemma4_layer_free(td_gemma4_layer *l) {
    float *const vectors[] = {l->attn_norm,    l->attn_post_norm, l->ff_norm,  l->ff_post_norm,
                              l->q_norm,       l->k_norm,         l->ple_norm, l->router_scale,
                              l->expert_scale, l->ff_post_norm1,  l->ff_norm2, l->ff_post_norm2};
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++)
        td_free_aligned(vectors[i]);
    td_matrix *m[LAYER_MATRICES];
    layer_matrices(l, m);
    for (size_t i = 0; i < LAYER_MATRICES; i++)
        td_matrix_free(m[i]);
    *l = (td_gemma4_layer){0};
}

td_status td_gemma4_rope_table(const td_gemma4_rope *r, uint32_t head_dim, float **inv_freq, uint32_t *n_rot,
                               td_error *err) {
    uint32_t n = (uint32_t)(r->partial * head_dim / 2);
    *n_rot = n;
    *inv_freq = td_malloc_aligned((n ? n : 1) * sizeof(float));
    if (!*inv_freq)
        return td_fail(err, TD_E_NOMEM, "out of memory for a rotation table");
    for (uint32_t i = 0; i < n; i++)
        (*inv_freq)[i] = (float)(1.0 / (pow(r->theta, 2.0 * i / head_dim) * r->factor));
    return TD_OK;
}

/* ---- names ---- */

static td_name_class classify_layer(const char *rest, const td_gemma4_config *c, uint32_t i) {
    static const char *const always[] = {"input_layernorm",
                                         "post_attention_layernorm",
                                         "pre_feedforward_layernorm",
                                         "post_feedforward_layernorm",
                                         "layer_scalar",
                                         "self_attn.q_proj",
                                         "self_attn.q_norm",
                                         "self_attn.o_proj",
                                         "mlp.gate_proj",
                                         "mlp.up_proj",
                                         "mlp.down_proj",
                                         NULL};
    static const char *const kv[] = {"self_attn.k_proj", "self_attn.k_norm", "self_attn.v_proj", NULL};
    static const char *const ple[] = {"per_layer_input_gate", "per_layer_projection", "post_per_layer_input_norm",
                                      NULL};
    static const char *const moe[] = {"router.proj",
                                      "router.scale",
                                      "router.per_expert_scale",
                                      "experts.gate_up_proj",
                                      "experts.down_proj",
                                      "experts.switch_glu.gate_proj",
                                      "experts.switch_glu.up_proj",
                                      "experts.switch_glu.down_proj",
                                      "post_feedforward_layernorm_1",
                                      "pre_feedforward_layernorm_2",
                                      "post_feedforward_layernorm_2",
                                      NULL};
    if (td_name_in(rest, always))
        return TD_NAME_USED;
    if (td_name_in(rest, kv)) { /* files of models with shared K/V may still hold the unused projections */
        const td_gemma4_layer_config *l = &c->layer[i];
        bool used = l->owns_kv && !(l->k_is_v && strcmp(rest, "self_attn.v_proj") == 0);
        return used ? TD_NAME_USED : TD_NAME_SKIPPED;
    }
    if ((c->ple && td_name_in(rest, ple)) || (c->n_experts && td_name_in(rest, moe)))
        return TD_NAME_USED;
    return TD_NAME_UNKNOWN;
}

typedef struct family {
    const td_gemma4_config *c;
    bool assistant;
} family;

static td_name_class judge(const void *user, const char *module) {
    const family *f = user;
    const td_gemma4_config *c = f->c;
    static const char *const drafter[] = {"pre_projection", "post_projection", "masked_embedding.centroids",
                                          "masked_embedding.token_ordering", NULL};
    static const char *const ple[] = {"embed_tokens_per_layer", "per_layer_model_projection",
                                      "per_layer_projection_norm", NULL};
    if (strcmp(module, "embed_tokens") == 0 || strcmp(module, "norm") == 0)
        return TD_NAME_USED;
    if (strcmp(module, "lm_head") == 0)
        return c->tied ? TD_NAME_SKIPPED : TD_NAME_USED;
    if (f->assistant ? td_name_in(module, drafter) : c->ple && td_name_in(module, ple))
        return TD_NAME_USED;
    uint32_t i;
    const char *rest = NULL;
    if (td_name_starts(module, "layers."))
        rest = td_name_after_number(module + strlen("layers."), c->n_layers, &i);
    return rest ? classify_layer(rest, c, i) : TD_NAME_UNKNOWN;
}

td_status td_gemma4_check_names(const td_checkpoint *ck, const td_gemma4_config *c, bool assistant, uint32_t *n_skipped,
                                td_error *err) {
    char model[128];
    snprintf(model, sizeof model, "a Gemma 4 %s with this config.json (%u layers%s%s)",
             assistant ? "assistant" : "trunk", c->n_layers, c->ple ? ", per-layer inputs" : "",
             c->n_experts ? ", experts" : "");
    return td_names_check(ck, judge, &(family){c, assistant}, model, n_skipped, err);
}
