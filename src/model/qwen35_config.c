/* qwen35_config.c - reads a Qwen 3.5 text configuration: nested in a wrapper's text_config or at the top level.
 *
 * Other readers' defaults for this family are wrong for its real files (theta, heads, widths), so what changes a shape
 * or a number is required here. */
#include "model/qwen35.h"

#include <math.h>
#include <string.h>

/* A field that wrappers keep at the top level or in text_config; the nested one wins. */
static const json_t *either(const json_t *text, const json_t *root, const char *key) {
    const json_t *v = json_object_get(text, key);
    return v && !json_is_null(v) ? v : json_object_get(root, key);
}

/* A string field that, when it is there, must be one of two values. */
static td_status check_word(const json_t *o, const char *where, const char *key, const char *a, const char *b,
                            td_error *err) {
    const char *v = json_string_value(json_object_get(o, key));
    if (!v || strcmp(v, a) == 0 || strcmp(v, b) == 0)
        return TD_OK;
    return td_fail(err, TD_E_UNSUPPORTED, "%s: %s \"%s\", expected %s", where, key, v, a);
}

static td_status check_features(const json_t *text, const char *where, td_error *err) {
    bool bias, gate;
    TD_TRY(td_json_bool_or(text, where, "attention_bias", false, &bias, err));
    TD_TRY(td_json_bool_or(text, where, "attn_output_gate", true, &gate, err));
    if (bias)
        return td_fail(err, TD_E_UNSUPPORTED, "%s: attention_bias is true, expected false", where);
    if (!gate)
        return td_fail(err, TD_E_UNSUPPORTED, "%s: attn_output_gate is false, expected true", where);
    if (json_array_size(json_object_get(text, "mlp_only_layers")) > 0)
        return td_fail(err, TD_E_UNSUPPORTED, "%s: mlp_only_layers names layers, expected none", where);
    TD_TRY(check_word(text, where, "hidden_act", "silu", "swish", err));
    return check_word(text, where, "output_gate_type", "swish", "silu", err);
}

static td_status read_layers(td_qwen35_config *c, const json_t *text, const char *where, td_error *err) {
    const json_t *types = json_object_get(text, "layer_types");
    uint32_t interval;
    TD_TRY(td_json_u32_or(text, where, "full_attention_interval", 1, TD_QWEN35_MAX_LAYERS, 4, &interval, err));
    if (types && !json_is_null(types) && (!json_is_array(types) || json_array_size(types) != c->n_layers))
        return td_fail(err, TD_E_MODEL,
                       "%s: \"layer_types\" has %zu entries, expected a list of num_hidden_layers = %u", where,
                       json_array_size(types), c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const char *t = json_string_value(json_array_get(types, i));
        if (!json_is_array(types))
            c->full[i] = (i + 1) % interval == 0;
        else if (t && (strcmp(t, "full_attention") == 0 || strcmp(t, "linear_attention") == 0))
            c->full[i] = t[0] == 'f';
        else
            return td_fail(err, TD_E_MODEL,
                           "%s: layer_types[%u] is \"%s\", expected full_attention or linear_attention", where, i,
                           t ? t : "?");
        c->index[i] = c->full[i] ? c->n_full++ : c->n_delta++;
    }
    if (!c->n_delta)
        return td_fail(err, TD_E_UNSUPPORTED, "%s: no layer of linear attention, expected at least one", where);
    return TD_OK;
}

static td_status read_attention(td_qwen35_config *c, const json_t *text, const char *where, td_error *err) {
    TD_TRY(td_json_u32(text, where, "num_attention_heads", 1, 1024, &c->n_heads, err));
    TD_TRY(td_json_u32(text, where, "num_key_value_heads", 1, 1024, &c->n_kv_heads, err));
    TD_TRY(td_json_u32(text, where, "head_dim", 8, 4096, &c->head_dim, err));
    if (c->n_heads % c->n_kv_heads)
        return td_fail(err, TD_E_MODEL, "%s: %u KV heads, expected a divisor of num_attention_heads = %u", where,
                       c->n_kv_heads, c->n_heads);
    return TD_OK;
}

/* In rope_parameters, or flat in files of older tools. */
static td_status read_rope(td_qwen35_config *c, const json_t *text, const char *where, td_error *err) {
    const json_t *rope = json_object_get(text, "rope_parameters");
    const json_t *o = json_is_object(rope) ? rope : text;
    double partial;
    TD_TRY(check_word(o, where, "rope_type", "default", "mrope", err));
    TD_TRY(check_word(o, where, "type", "default", "mrope", err));
    TD_TRY(td_json_f64_or(o, where, "rope_theta", 0, &c->theta, err));
    if (!(c->theta > 1) || !isfinite(c->theta))
        return td_fail(err, TD_E_MODEL, "%s: rope_theta is absent or not above 1", where);
    const json_t *p = json_object_get(o, "partial_rotary_factor") ? o : text;
    TD_TRY(td_json_f64_or(p, where, "partial_rotary_factor", 0, &partial, err));
    double turning = partial * c->head_dim;
    if (!(turning >= 2 && turning <= c->head_dim) || turning != 2 * floor(turning / 2))
        return td_fail(err, TD_E_MODEL,
                       "%s: partial_rotary_factor %g of head_dim %u, expected an even number of dimensions", where,
                       partial, c->head_dim);
    c->n_rot = (uint32_t)turning / 2;
    return TD_OK;
}

static td_status read_delta(td_qwen35_config *c, const json_t *text, const char *where, td_error *err) {
    TD_TRY(td_json_u32(text, where, "linear_num_key_heads", 1, 1024, &c->n_k_heads, err));
    TD_TRY(td_json_u32(text, where, "linear_num_value_heads", 1, 1024, &c->n_v_heads, err));
    TD_TRY(td_json_u32(text, where, "linear_key_head_dim", 1, TD_DELTA_MAX_DIM, &c->k_dim, err));
    TD_TRY(td_json_u32(text, where, "linear_value_head_dim", 1, TD_DELTA_MAX_DIM, &c->v_dim, err));
    TD_TRY(td_json_u32(text, where, "linear_conv_kernel_dim", 2, TD_CONV_MAX_KERNEL, &c->kernel, err));
    if (c->n_v_heads % c->n_k_heads)
        return td_fail(err, TD_E_MODEL, "%s: %u value heads, expected a multiple of linear_num_key_heads = %u", where,
                       c->n_v_heads, c->n_k_heads);
    return TD_OK;
}

static td_status read_ffn(td_qwen35_config *c, const json_t *text, const char *where, const char *type, td_error *err) {
    if (!strstr(type, "moe"))
        return td_json_u32(text, where, "intermediate_size", 1, 1 << 22, &c->n_ff, err);
    TD_TRY(td_json_u32(text, where, "num_experts", 1, 65536, &c->n_experts, err));
    TD_TRY(td_json_u32(text, where, "num_experts_per_tok", 1, 64, &c->n_experts_used, err));
    TD_TRY(td_json_u32(text, where, "moe_intermediate_size", 1, 1 << 20, &c->n_ff_expert, err));
    TD_TRY(td_json_u32(text, where, "shared_expert_intermediate_size", 1, 1 << 20, &c->n_ff, err));
    if (c->n_experts_used > c->n_experts)
        return td_fail(err, TD_E_MODEL, "%s: num_experts_per_tok %u of num_experts %u", where, c->n_experts_used,
                       c->n_experts);
    return TD_OK;
}

td_status td_qwen35_config_read(td_qwen35_config *c, const json_t *text, const char *where, const json_t *root,
                                bool has_head, td_error *err) {
    *c = (td_qwen35_config){0};
    const char *type = json_string_value(json_object_get(text, "model_type"));
    if (!type)
        type = json_string_value(json_object_get(root, "model_type"));
    TD_TRY(check_features(text, where, err));
    TD_TRY(td_json_u32(text, where, "vocab_size", 1, 1 << 24, &c->n_vocab, err));
    TD_TRY(td_json_u32(text, where, "hidden_size", 8, 1 << 17, &c->n_embd, err));
    TD_TRY(td_json_u32(text, where, "num_hidden_layers", 1, TD_QWEN35_MAX_LAYERS, &c->n_layers, err));
    TD_TRY(td_json_u32_or(text, where, "max_position_embeddings", 1, 1u << 30, 32768, &c->n_ctx, err));
    double eps;
    TD_TRY(td_json_f64_or(text, where, "rms_norm_eps", 1e-6, &eps, err));
    c->eps = (float)eps;
    TD_TRY(read_layers(c, text, where, err));
    TD_TRY(read_attention(c, text, where, err));
    TD_TRY(read_rope(c, text, where, err));
    TD_TRY(read_delta(c, text, where, err));
    TD_TRY(read_ffn(c, text, where, type ? type : "", err));
    TD_TRY(td_json_u32_or(text, where, "mtp_num_hidden_layers", 0, 64, 0, &c->n_mtp, err));
    TD_TRY(td_json_bool_or(text, where, "mtp_use_dedicated_embeddings", false, &c->mtp_own_embeddings, err));
    c->tied = json_is_true(either(text, root, "tie_word_embeddings")) || !has_head;
    return TD_OK;
}
