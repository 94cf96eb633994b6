/* gemma4_config.c - reads a Gemma 4 text configuration, in both spellings that are published: global_head_dim with
 * num_global_key_value_heads, and per_layer_config. A field that changes a shape is never defaulted. */
#include "model/gemma4.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A field that wrappers keep at the top level or in text_config; the nested one wins. */
static const json_t *either(const json_t *text, const json_t *root, const char *key) {
    const json_t *v = json_object_get(text, key);
    return v && !json_is_null(v) ? v : json_object_get(root, key);
}

static td_status read_layer_types(td_gemma4_config *c, const json_t *text, const char *where, td_error *err) {
    const json_t *types = json_object_get(text, "layer_types");
    if (!json_is_array(types) || json_array_size(types) != c->n_layers)
        return td_fail(err, TD_E_MODEL,
                       "%s: \"layer_types\" has %zu entries, expected a list of num_hidden_layers = %u", where,
                       json_array_size(types), c->n_layers);
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const char *t = json_string_value(json_array_get(types, i));
        if (t && strcmp(t, "full_attention") == 0)
            c->layer[i].type = TD_GEMMA4_FULL;
        else if (t && strcmp(t, "sliding_attention") == 0)
            c->layer[i].type = TD_GEMMA4_SLIDING;
        else
            return td_fail(err, TD_E_MODEL,
                           "%s: layer_types[%u] is \"%s\", expected full_attention or sliding_attention", where, i,
                           t ? t : "?");
    }
    return TD_OK;
}

/* Overrides of layers that are not there, or of fields that this engine does not read, must not be passed over. */
static td_status check_per_layer(const td_gemma4_config *c, const json_t *per_layer, const char *where, td_error *err) {
    const char *key, *field;
    json_t *o, *v;
    json_object_foreach((json_t *)(uintptr_t)per_layer, key, o) {
        char plain[16] = "";
        unsigned long i = strtoul(key, NULL, 10);
        snprintf(plain, sizeof plain, "%lu", i);
        if (strcmp(plain, key) != 0 || i >= c->n_layers || !json_is_object(o))
            return td_fail(err, TD_E_MODEL, "%s per_layer_config: \"%s\" is no object of a layer from 0 to %u", where,
                           key, c->n_layers - 1);
        json_object_foreach(o, field, v) {
            if (strcmp(field, "head_dim") != 0 && strcmp(field, "num_key_value_heads") != 0)
                return td_fail(err, TD_E_UNSUPPORTED,
                               "%s per_layer_config[%lu]: \"%s\", expected head_dim or num_key_value_heads", where, i,
                               field);
        }
    }
    return TD_OK;
}

/* head_dim and KV heads of each layer: the sliding ones' from the plain keys, the full ones' from either spelling. */
static td_status read_heads(td_gemma4_config *c, const json_t *text, const char *where, td_error *err) {
    uint32_t head_dim, n_kv, global_dim = 0, global_kv = 0;
    bool k_eq_v;
    const json_t *per_layer = json_object_get(text, "per_layer_config");
    TD_TRY(td_json_u32(text, where, "head_dim", 8, 4096, &head_dim, err));
    TD_TRY(td_json_u32(text, where, "num_key_value_heads", 1, 4096, &n_kv, err));
    TD_TRY(td_json_bool_or(text, where, "attention_k_eq_v", false, &k_eq_v, err));
    TD_TRY(td_json_u32_or(text, where, "global_head_dim", 8, 4096, 0, &global_dim, err));
    TD_TRY(td_json_u32_or(text, where, "num_global_key_value_heads", 1, 4096, 0, &global_kv, err));
    if (!json_is_object(per_layer) && !global_dim)
        return td_fail(err, TD_E_MODEL,
                       "%s: neither \"global_head_dim\" nor \"per_layer_config\" says how wide the heads "
                       "of full-attention layers are",
                       where);
    TD_TRY(check_per_layer(c, per_layer, where, err));
    for (uint32_t i = 0; i < c->n_layers; i++) {
        td_gemma4_layer_config *l = &c->layer[i];
        bool full = l->type == TD_GEMMA4_FULL;
        l->head_dim = full && global_dim ? global_dim : head_dim;
        l->n_kv_heads = full && k_eq_v && global_kv ? global_kv : n_kv;
        l->k_is_v = full && k_eq_v;
        char key[16], at[96];
        snprintf(key, sizeof key, "%u", i);
        const json_t *o = json_object_get(per_layer, key);
        if (!o)
            continue;
        snprintf(at, sizeof at, "%s per_layer_config[%u]", where, i);
        TD_TRY(td_json_u32_or(o, at, "head_dim", 8, 4096, l->head_dim, &l->head_dim, err));
        TD_TRY(td_json_u32_or(o, at, "num_key_value_heads", 1, 4096, l->n_kv_heads, &l->n_kv_heads, err));
    }
    for (uint32_t i = 0; i < c->n_layers; i++) {
        const td_gemma4_layer_config *l = &c->layer[i];
        if (l->head_dim % 2)
            return td_fail(err, TD_E_MODEL, "%s: head_dim %u of layer %u is odd", where, l->head_dim, i);
        if (c->n_heads % l->n_kv_heads)
            return td_fail(err, TD_E_MODEL,
                           "%s: layer %u has %u KV heads, expected a divisor of num_attention_heads = %u", where, i,
                           l->n_kv_heads, c->n_heads);
        for (uint32_t j = 0; j < i; j++)
            if (c->layer[j].type == l->type && c->layer[j].head_dim != l->head_dim)
                return td_fail(err, TD_E_UNSUPPORTED,
                               "%s: layers %u and %u are of one type but have head_dim %u and %u", where, j, i,
                               c->layer[j].head_dim, l->head_dim);
    }
    return TD_OK;
}

static td_status read_rope(td_gemma4_config *c, const json_t *text, const char *where, td_error *err) {
    static const struct {
        td_gemma4_type type;
        const char *key, *rope_type;
    } tables[] = {{TD_GEMMA4_FULL, "full_attention", "proportional"},
                  {TD_GEMMA4_SLIDING, "sliding_attention", "default"}};
    const json_t *rope = json_object_get(text, "rope_parameters");
    for (size_t i = 0; i < 2; i++) {
        char at[128];
        snprintf(at, sizeof at, "%s rope_parameters.%s", where, tables[i].key);
        const json_t *o = json_object_get(rope, tables[i].key);
        bool used = false;
        for (uint32_t l = 0; l < c->n_layers; l++)
            used = used || c->layer[l].type == tables[i].type;
        if (!used && !o)
            continue;
        if (!json_is_object(o))
            return td_fail(err, TD_E_MODEL, "%s: absent, expected an object with rope_theta", at);
        const char *type = json_string_value(json_object_get(o, "rope_type"));
        if (!type)
            type = "default";
        bool proportional = strcmp(type, "proportional") == 0;
        if (!proportional && strcmp(type, "default") != 0)
            return td_fail(err, TD_E_UNSUPPORTED, "%s: rope_type \"%s\", expected \"default\" or \"proportional\"", at,
                           type);
        td_gemma4_rope *r = &c->rope[tables[i].type];
        *r = (td_gemma4_rope){.partial = 1, .factor = 1};
        TD_TRY(td_json_f64_or(o, at, "rope_theta", 0, &r->theta, err));
        if (!(r->theta > 1))
            return td_fail(err, TD_E_MODEL, "%s: rope_theta is absent or not above 1", at);
        if (proportional) { /* the default type turns every pair, whatever the file says beside it */
            TD_TRY(td_json_f64_or(o, at, "partial_rotary_factor", 1, &r->partial, err));
            TD_TRY(td_json_f64_or(o, at, "factor", 1, &r->factor, err));
        }
        if (!(r->partial > 0 && r->partial <= 1) || !(r->factor > 0))
            return td_fail(err, TD_E_MODEL, "%s: partial_rotary_factor %g, factor %g; expected (0, 1] and above 0", at,
                           r->partial, r->factor);
    }
    return TD_OK;
}

static td_status read_moe(td_gemma4_config *c, const json_t *text, const char *where, td_error *err) {
    bool moe;
    TD_TRY(td_json_bool_or(text, where, "enable_moe_block", false, &moe, err));
    if (!moe)
        return TD_OK;
    TD_TRY(td_json_u32(text, where, "num_experts", 1, 65536, &c->n_experts, err));
    TD_TRY(td_json_u32(text, where, "top_k_experts", 1, 64, &c->n_experts_used, err));
    const char *key =
        json_object_get(text, "expert_intermediate_size") ? "expert_intermediate_size" : "moe_intermediate_size";
    TD_TRY(td_json_u32(text, where, key, 1, 1 << 20, &c->n_ff_expert, err));
    if (c->n_experts_used > c->n_experts)
        return td_fail(err, TD_E_MODEL, "%s: top_k_experts %u of num_experts %u", where, c->n_experts_used,
                       c->n_experts);
    return TD_OK;
}

/* Which K/V a layer reads. Layers from `first` on share: each reads the last owning layer of its own type. */
static td_status assign_kv(td_gemma4_config *c, const char *where, td_error *err) {
    uint32_t first = c->n_layers - c->n_shared;
    int last[TD_GEMMA4_N_TYPES] = {-1, -1};
    for (uint32_t i = 0; i < c->n_layers; i++) {
        td_gemma4_layer_config *l = &c->layer[i];
        l->owns_kv = i < first;
        if (l->owns_kv) {
            l->kv_layer = c->n_kv_layers++;
            last[l->type] = (int)i;
        } else if (last[l->type] < 0) {
            return td_fail(err, TD_E_MODEL, "%s: layer %u shares K/V, but no layer of its type below %u owns any",
                           where, i, first);
        } else {
            const td_gemma4_layer_config *source = &c->layer[last[l->type]];
            l->kv_layer = source->kv_layer;
            l->n_kv_heads = source->n_kv_heads;
            l->k_is_v = false;
        }
    }
    return TD_OK;
}

/* transformers rounds the scale of the embeddings to the type of the checkpoint. */
static float embedding_scale(const json_t *text, const json_t *root, uint32_t n_embd) {
    const char *dtype = json_string_value(either(text, root, "dtype"));
    if (!dtype)
        dtype = json_string_value(either(text, root, "torch_dtype"));
    float s = sqrtf((float)n_embd);
    if (dtype && strcmp(dtype, "float32") == 0)
        return s;
    if (dtype && strcmp(dtype, "float16") == 0)
        return td_f16_to_f32(td_f32_to_f16(s));
    return td_bf16_to_f32(td_f32_to_bf16(s));
}

static td_status check_plain_features(const json_t *text, const char *where, td_error *err) {
    bool bias;
    TD_TRY(td_json_bool_or(text, where, "attention_bias", false, &bias, err));
    if (bias)
        return td_fail(err, TD_E_UNSUPPORTED, "%s: attention_bias is true, expected false", where);
    const char *act = json_string_value(json_object_get(text, "hidden_activation"));
    if (act && strcmp(act, "gelu_pytorch_tanh") != 0)
        return td_fail(err, TD_E_UNSUPPORTED, "%s: hidden_activation \"%s\", expected gelu_pytorch_tanh", where, act);
    const json_t *bidir = json_object_get(text, "use_bidirectional_attention");
    const char *kind = json_string_value(bidir);
    if (bidir && !json_is_null(bidir) && !json_is_false(bidir) && !(kind && strcmp(kind, "vision") == 0))
        return td_fail(err, TD_E_UNSUPPORTED,
                       "%s: use_bidirectional_attention \"%s\" (an encoder), expected null or vision", where,
                       kind ? kind : "true");
    return TD_OK;
}

td_status td_gemma4_config_read(td_gemma4_config *c, const json_t *text, const char *where, const json_t *root,
                                bool assistant, td_error *err) {
    *c = (td_gemma4_config){0};
    TD_TRY(check_plain_features(text, where, err));
    bool in_text = json_object_get(text, "vocab_size") != NULL;
    TD_TRY(td_json_u32(in_text ? text : root, in_text ? where : "config.json", "vocab_size", 1, 1 << 24, &c->n_vocab,
                       err));
    TD_TRY(td_json_u32(text, where, "hidden_size", 8, 1 << 17, &c->n_embd, err));
    TD_TRY(td_json_u32(text, where, "num_hidden_layers", 1, TD_GEMMA4_MAX_LAYERS, &c->n_layers, err));
    TD_TRY(td_json_u32(text, where, "num_attention_heads", 1, 1024, &c->n_heads, err));
    TD_TRY(td_json_u32_or(text, where, "max_position_embeddings", 1, 1u << 30, 131072, &c->n_ctx, err));
    TD_TRY(td_json_u32(text, where, "sliding_window", 1, 1u << 24, &c->window, err));
    TD_TRY(td_json_u32_or(text, where, "num_kv_shared_layers", 0, c->n_layers, 0, &c->n_shared, err));
    double eps, cap;
    TD_TRY(td_json_f64_or(text, where, "rms_norm_eps", 1e-6, &eps, err));
    TD_TRY(td_json_f64_or(text, where, "final_logit_softcapping", 0, &cap, err));
    if (!(eps > 0 && eps < 1) || !(cap >= 0 && cap < 1e6))
        return td_fail(err, TD_E_MODEL,
                       "%s: rms_norm_eps %g, final_logit_softcapping %g; expected above 0 and below 1, 0 to 1e6", where,
                       eps, cap);
    c->eps = (float)eps;
    c->softcap = (float)cap;
    TD_TRY(read_layer_types(c, text, where, err));
    TD_TRY(read_heads(c, text, where, err));
    TD_TRY(read_rope(c, text, where, err));

    bool unified = strstr(json_string_value(json_object_get(text, "model_type")) ?: "", "unified") != NULL;
    const json_t *ple = json_object_get(text, "hidden_size_per_layer_input");
    if (!ple && !unified && !assistant)
        return td_fail(err, TD_E_MODEL, "%s: \"hidden_size_per_layer_input\" is absent, expected a width or 0", where);
    TD_TRY(td_json_u32_or(text, where, "hidden_size_per_layer_input", 0, 1 << 16, 0, &c->ple, err));
    if (c->ple)
        TD_TRY(td_json_u32_or(text, where, "vocab_size_per_layer_input", 1, 1 << 24, c->n_vocab, &c->ple_vocab, err));
    TD_TRY(read_moe(c, text, where, err));

    uint32_t n_ff;
    bool wide;
    TD_TRY(td_json_u32(text, where, "intermediate_size", 1, 1 << 22, &n_ff, err));
    TD_TRY(td_json_bool_or(text, where, "use_double_wide_mlp", false, &wide, err));
    uint32_t first = assistant ? 0 : c->n_layers - c->n_shared;
    for (uint32_t i = 0; i < c->n_layers; i++)
        c->layer[i].n_ff = wide && first > 0 && i >= first ? 2 * n_ff : n_ff;

    const json_t *own = json_object_get(text, "tie_word_embeddings");
    bool nested = own && !json_is_null(own);
    TD_TRY(td_json_bool_or(nested ? text : root, nested ? where : "config.json", "tie_word_embeddings", true, &c->tied,
                           err));
    c->embed_scale = embedding_scale(text, root, c->n_embd);
    if (assistant) {
        if (c->ple || c->n_experts || wide)
            return td_fail(err, TD_E_UNSUPPORTED,
                           "%s: an assistant with per-layer inputs, experts or a double-wide MLP", where);
        c->n_shared = c->n_layers;
        return TD_OK;
    }
    return assign_kv(c, where, err);
}
