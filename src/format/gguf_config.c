/* gguf_config.c - metadata of a GGUF file as the configuration that the published checkpoint has.
 *
 * What both containers say is only renamed. What GGUF says otherwise is turned back: lists of bools to lists of layer
 * types, a draft layer count taken off the block count, a rotation table of factors to the part of the pairs that turn.
 * A value that cannot be said in the published terms (feed-forward widths that are not one width and its double, a
 * scaled rotation) is refused here, by the file's own name for it. */
#include "format/gguf_config.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "format/json_scan.h"

#define MAX_LAYERS 4096
#define KEY_SIZE 160
#define PUBLISHED_CLUSTERS_USED 32 /* centroid_intermediate_top_k of the assistants that have clusters */

typedef struct maker {
    const td_checkpoint *ck;
    const td_gguf *g;
    const char *arch; /* prefix of the keys, as the file spells it */
    char arch_buf[32];
    uint32_t n_blocks, n_layers; /* n_layers: without draft layers */
    char key[KEY_SIZE];
    json_t *o; /* under construction */
    td_error *err;
} maker;

static const char *key_of(maker *m, const char *rest) {
    snprintf(m->key, sizeof m->key, "%s.%s", m->arch, rest);
    return m->key;
}

static td_status no_memory(const maker *m) {
    return td_fail(m->err, TD_E_NOMEM, "%s: out of memory", td_gguf_path(m->g));
}

/* ---- into the object ---- */

/* Takes the reference. */
static td_status set(maker *m, const char *name, json_t *v) {
    return v && json_object_set_new(m->o, name, v) == 0 ? TD_OK : no_memory(m);
}

static td_status set_u32(maker *m, const char *name, uint32_t v) {
    return set(m, name, json_integer(v));
}

/* A required integer under another name. */
static td_status copy_u32(maker *m, const char *rest, const char *name) {
    uint32_t v = 0;
    TD_TRY(td_gguf_u32(m->g, key_of(m, rest), 0, INT32_MAX, &v, m->err));
    return set_u32(m, name, v);
}

static td_status copy_f64(maker *m, const char *rest, const char *name) {
    double v;
    TD_TRY(td_gguf_f64_or(m->g, key_of(m, rest), 0, &v, m->err));
    return td_gguf_find(m->g, m->key) ? set(m, name, json_real(v)) : TD_OK;
}

/* Value of layer i: a scalar speaks for all layers, an array has one entry a block. */
static td_status per_layer(maker *m, const char *rest, uint32_t i, uint32_t *out) {
    const td_gguf_value *v = td_gguf_find(m->g, key_of(m, rest));
    int64_t x;
    if (!v)
        return td_fail(m->err, TD_E_MODEL, "%s: no key \"%s\"", td_gguf_path(m->g), m->key);
    if (v->is_array && v->n < m->n_layers)
        return td_fail(m->err, TD_E_MODEL, "%s: \"%s\" has %" PRIu64 " entries, expected one a layer, %u",
                       td_gguf_path(m->g), m->key, v->n, m->n_layers);
    if (!td_gguf_integer_at(v, v->is_array ? i : 0, &x) || x < 0 || x > INT32_MAX)
        return td_fail(m->err, TD_E_MODEL, "%s: \"%s\" of layer %u is no count", td_gguf_path(m->g), m->key, i);
    *out = (uint32_t)x;
    return TD_OK;
}

/* One value that all layers have, but for those of which the file says 0: they have no such thing. */
static td_status uniform(maker *m, const char *rest, uint32_t *out) {
    *out = 0;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        uint32_t v = 0;
        TD_TRY(per_layer(m, rest, i, &v));
        if (*out && v && v != *out)
            return td_fail(m->err, TD_E_UNSUPPORTED, "%s: \"%s\" is %u in layer %u and %u before, expected one value",
                           td_gguf_path(m->g), m->key, v, i, *out);
        *out = v ? v : *out;
    }
    return TD_OK;
}

static td_status copy_uniform(maker *m, const char *rest, const char *name) {
    uint32_t v = 0;
    TD_TRY(uniform(m, rest, &v));
    return set_u32(m, name, v);
}

/* ---- what the tensors say ---- */

static const td_tensor *block_tensor(const maker *m, uint32_t i, const char *rest) {
    char name[64];
    snprintf(name, sizeof name, "blk.%u.%s", i, rest);
    return td_checkpoint_find(m->ck, name);
}

/* Rows of a table. */
static td_status copy_rows(maker *m, const char *tensor, const char *name) {
    const td_tensor *t = td_checkpoint_find(m->ck, tensor);
    if (!t || t->n_dims != 2 || t->dim[0] > INT32_MAX)
        return td_fail(m->err, TD_E_MODEL, "%s: no tensor \"%s\", or not a matrix", td_gguf_path(m->g), tensor);
    return set_u32(m, name, (uint32_t)t->dim[0]);
}

static td_status set_tied(maker *m) {
    return set(m, "tie_word_embeddings", json_boolean(!td_checkpoint_find(m->ck, "output.weight")));
}

static td_status refuse_scaled_rope(maker *m) {
    const char *type;
    size_t size;
    TD_TRY(td_gguf_string_or_null(m->g, key_of(m, "rope.scaling.type"), &type, &size, m->err));
    if (!type || (size == 4 && memcmp(type, "none", 4) == 0))
        return TD_OK;
    char shown[TD_SHOWN_SIZE];
    return td_fail(m->err, TD_E_UNSUPPORTED, "%s: \"%s\" is \"%s\", expected none", td_gguf_path(m->g), m->key,
                   td_shown(shown, type, size));
}

/* ---- Gemma 4 ---- */

/* Sliding or not, layer by layer; a scalar speaks for all. */
static td_status is_sliding(maker *m, uint32_t i, bool *out) {
    uint32_t v = 0;
    TD_TRY(per_layer(m, "attention.sliding_window_pattern", i, &v));
    *out = v != 0;
    return TD_OK;
}

static td_status gemma4_layer_types(maker *m) {
    json_t *types = json_array();
    TD_TRY(set(m, "layer_types", types));
    for (uint32_t i = 0; i < m->n_layers; i++) {
        bool sliding;
        TD_TRY(is_sliding(m, i, &sliding));
        if (json_array_append_new(types, json_string(sliding ? "sliding_attention" : "full_attention")) != 0)
            return no_memory(m);
    }
    return TD_OK;
}

/* KV heads a layer. Full layers that own keys and have no V projection take it from their K projection. */
static td_status gemma4_heads(maker *m, uint32_t n_shared) {
    json_t *layers = json_object();
    bool k_is_v = false;
    TD_TRY(set(m, "per_layer_config", layers));
    TD_TRY(copy_uniform(m, "attention.head_count", "num_attention_heads"));
    TD_TRY(copy_u32(m, "attention.key_length_swa", "head_dim"));
    TD_TRY(copy_u32(m, "attention.key_length", "global_head_dim"));
    for (uint32_t i = 0; i < m->n_layers; i++) {
        uint32_t n_kv;
        bool sliding;
        char index[16];
        TD_TRY(per_layer(m, "attention.head_count_kv", i, &n_kv));
        TD_TRY(is_sliding(m, i, &sliding));
        if (i == 0)
            TD_TRY(set_u32(m, "num_key_value_heads", n_kv));
        snprintf(index, sizeof index, "%u", i);
        if (n_kv == 0 && i >= m->n_layers - n_shared) /* it has none of its own, and some writers say so */
            continue;
        json_t *one = json_pack("{s:I}", "num_key_value_heads", (json_int_t)n_kv);
        if (!one || json_object_set_new(layers, index, one) != 0)
            return no_memory(m);
        if (!sliding && i < m->n_layers - n_shared)
            k_is_v = k_is_v || !block_tensor(m, i, "attn_v.weight");
    }
    return set(m, "attention_k_eq_v", json_boolean(k_is_v));
}

/* One width, or one and its double in the layers that share keys. */
static td_status gemma4_widths(maker *m, uint32_t n_shared) {
    uint32_t first, v;
    bool wide = false;
    TD_TRY(per_layer(m, "feed_forward_length", 0, &first));
    for (uint32_t i = 1; i < m->n_layers; i++) {
        TD_TRY(per_layer(m, "feed_forward_length", i, &v));
        bool shared = i >= m->n_layers - n_shared && n_shared < m->n_layers;
        if (i == m->n_layers - n_shared && shared)
            wide = v == 2 * first;
        if (v != (shared && wide ? 2 * first : first))
            return td_fail(m->err, TD_E_UNSUPPORTED,
                           "%s: \"%s\" is %u in layer 0 and %u in layer %u, expected one width, or its double in the "
                           "layers that share keys",
                           td_gguf_path(m->g), m->key, first, v, i);
    }
    TD_TRY(set_u32(m, "intermediate_size", first));
    return set(m, "use_double_wide_mlp", json_boolean(wide));
}

/* The part of the pairs that turn: factors are 1 at first and then so large that nothing turns. */
static td_status turning_part(maker *m, double *out) {
    const td_tensor *t = td_checkpoint_find(m->ck, "rope_freqs.weight");
    *out = 1;
    if (!t)
        return TD_OK;
    if (t->dtype != TD_DTYPE_F32 || t->n_dims != 1)
        return td_fail(m->err, TD_E_MODEL, "%s: tensor \"rope_freqs.weight\" is no list of F32", td_gguf_path(m->g));
    uint64_t turning = 0;
    for (uint64_t i = 0; i < t->dim[0]; i++) {
        float f;
        memcpy(&f, t->data + 4 * i, 4);
        bool one = f == 1.0f, still = f >= 1e20f;
        turning += one;
        if (!(one && turning == i + 1) && !still)
            return td_fail(m->err, TD_E_UNSUPPORTED,
                           "%s: tensor \"rope_freqs.weight\": factor %" PRIu64
                           " is %g, expected ones and then factors that stop the rotation",
                           td_gguf_path(m->g), i, (double)f);
    }
    *out = (double)turning / (double)t->dim[0];
    return TD_OK;
}

static td_status gemma4_rope(maker *m) {
    double full, sliding, part;
    TD_TRY(refuse_scaled_rope(m));
    TD_TRY(td_gguf_f64_or(m->g, key_of(m, "rope.freq_base"), 10000, &full, m->err));
    TD_TRY(td_gguf_f64_or(m->g, key_of(m, "rope.freq_base_swa"), 10000, &sliding, m->err));
    TD_TRY(turning_part(m, &part));
    return set(m, "rope_parameters",
               json_pack("{s:{s:s,s:f,s:f},s:{s:s,s:f}}", "full_attention", "rope_type", "proportional", "rope_theta",
                         full, "partial_rotary_factor", part, "sliding_attention", "rope_type", "default", "rope_theta",
                         sliding));
}

static td_status gemma4_experts(maker *m) {
    uint32_t n;
    TD_TRY(td_gguf_u32_or(m->g, key_of(m, "expert_count"), 0, 65536, 0, &n, m->err));
    if (!n)
        return TD_OK;
    TD_TRY(set(m, "enable_moe_block", json_true()));
    TD_TRY(set_u32(m, "num_experts", n));
    TD_TRY(copy_u32(m, "expert_used_count", "top_k_experts"));
    return copy_u32(m, "expert_feed_forward_length", "moe_intermediate_size");
}

static td_status gemma4_text(maker *m) {
    uint32_t n_shared, ple;
    TD_TRY(set(m, "model_type", json_string("gemma4_text")));
    TD_TRY(set(m, "dtype", json_string("float32"))); /* embeddings are scaled by a root that is not rounded */
    TD_TRY(copy_rows(m, "token_embd.weight", "vocab_size"));
    TD_TRY(copy_u32(m, "embedding_length", "hidden_size"));
    TD_TRY(set_u32(m, "num_hidden_layers", m->n_layers));
    TD_TRY(copy_u32(m, "context_length", "max_position_embeddings"));
    TD_TRY(copy_u32(m, "attention.sliding_window", "sliding_window"));
    TD_TRY(td_gguf_u32_or(m->g, key_of(m, "attention.shared_kv_layers"), 0, m->n_layers, 0, &n_shared, m->err));
    TD_TRY(set_u32(m, "num_kv_shared_layers", n_shared));
    TD_TRY(copy_f64(m, "attention.layer_norm_rms_epsilon", "rms_norm_eps"));
    TD_TRY(copy_f64(m, "final_logit_softcapping", "final_logit_softcapping"));
    TD_TRY(gemma4_layer_types(m));
    TD_TRY(gemma4_heads(m, n_shared));
    TD_TRY(gemma4_widths(m, n_shared));
    TD_TRY(gemma4_rope(m));
    TD_TRY(gemma4_experts(m));
    TD_TRY(td_gguf_u32_or(m->g, key_of(m, "embedding_length_per_layer_input"), 0, 1 << 16, 0, &ple, m->err));
    TD_TRY(set_u32(m, "hidden_size_per_layer_input", ple));
    if (ple)
        TD_TRY(copy_rows(m, "per_layer_token_embd.weight", "vocab_size_per_layer_input"));
    return set_tied(m);
}

/* The head of clusters, which not all assistants have: how many there are and how many of them are looked into. Early
 * converters wrote keys of it; those that did not write them had one published value to leave out. */
static td_status gemma4_clusters(maker *m) {
    const td_tensor *t = td_checkpoint_find(m->ck, "masked_embedding.centroids.weight");
    const bool either = t || td_checkpoint_find(m->ck, "masked_embedding.token_ordering");
    bool ordered;
    uint32_t n, used, rows = t && t->n_dims == 2 && t->dim[0] <= INT32_MAX ? (uint32_t)t->dim[0] : 0;
    TD_TRY(td_gguf_bool_or(m->g, key_of(m, "use_ordered_embeddings"), true, &ordered, m->err));
    TD_TRY(set(m, "use_ordered_embeddings", json_boolean(ordered && either)));
    if (!ordered || !either)
        return TD_OK;
    TD_TRY(td_gguf_u32_or(m->g, key_of(m, "n_centroids"), 1, INT32_MAX, rows, &n, m->err));
    TD_TRY(td_gguf_u32_or(m->g, key_of(m, "centroid_top_k"), 1, INT32_MAX,
                          rows && rows < PUBLISHED_CLUSTERS_USED ? rows : PUBLISHED_CLUSTERS_USED, &used, m->err));
    TD_TRY(set_u32(m, "num_centroids", n));
    return set_u32(m, "centroid_intermediate_top_k", used);
}

/* The assistant's text configuration, and around it what it is the assistant of. */
static td_status gemma4_assistant(maker *m) {
    uint32_t width;
    const char *key = key_of(m, "embedding_length_out");
    if (!td_gguf_find(m->g, key))
        key = key_of(m, "n_embd_backbone");
    TD_TRY(td_gguf_u32(m->g, key, 1, 1 << 17, &width, m->err));
    TD_TRY(gemma4_text(m));
    json_t *text = m->o;
    m->o = json_pack("{s:s,s:I,s:o}", "model_type", "gemma4_assistant", "backbone_hidden_size", (json_int_t)width,
                     "text_config", text);
    return m->o ? gemma4_clusters(m) : no_memory(m);
}

/* ---- Qwen 3.5 ---- */

static td_status qwen35_layer_types(maker *m) {
    uint32_t interval;
    json_t *types = json_array();
    TD_TRY(set(m, "layer_types", types));
    TD_TRY(td_gguf_u32_or(m->g, key_of(m, "full_attention_interval"), 1, MAX_LAYERS, 4, &interval, m->err));
    const bool listed = td_gguf_find(m->g, key_of(m, "attention.recurrent_layers")) != NULL;
    for (uint32_t i = 0; i < m->n_layers; i++) {
        uint32_t recurrent = (i + 1) % interval != 0;
        if (listed)
            TD_TRY(per_layer(m, "attention.recurrent_layers", i, &recurrent));
        if (json_array_append_new(types, json_string(recurrent ? "linear_attention" : "full_attention")) != 0)
            return no_memory(m);
    }
    return TD_OK;
}

static td_status qwen35_rope(maker *m) {
    double theta;
    uint32_t turning, head_dim;
    TD_TRY(refuse_scaled_rope(m));
    TD_TRY(td_gguf_f64_or(m->g, key_of(m, "rope.freq_base"), 10000, &theta, m->err));
    TD_TRY(td_gguf_u32(m->g, key_of(m, "attention.key_length"), 1, 65536, &head_dim, m->err));
    TD_TRY(td_gguf_u32_or(m->g, key_of(m, "rope.dimension_count"), 1, head_dim, head_dim, &turning, m->err));
    TD_TRY(set_u32(m, "head_dim", head_dim));
    return set(m, "rope_parameters",
               json_pack("{s:s,s:f,s:f}", "rope_type", "default", "rope_theta", theta, "partial_rotary_factor",
                         (double)turning / head_dim));
}

static td_status qwen35_delta(maker *m) {
    uint32_t heads, inner;
    TD_TRY(copy_u32(m, "ssm.conv_kernel", "linear_conv_kernel_dim"));
    TD_TRY(copy_u32(m, "ssm.state_size", "linear_key_head_dim"));
    TD_TRY(copy_u32(m, "ssm.group_count", "linear_num_key_heads"));
    TD_TRY(td_gguf_u32(m->g, key_of(m, "ssm.time_step_rank"), 1, 65536, &heads, m->err));
    TD_TRY(td_gguf_u32(m->g, key_of(m, "ssm.inner_size"), 1, INT32_MAX, &inner, m->err));
    if (inner % heads)
        return td_fail(m->err, TD_E_MODEL, "%s: \"%s\" is %u, expected a multiple of the %u value heads",
                       td_gguf_path(m->g), m->key, inner, heads);
    TD_TRY(set_u32(m, "linear_num_value_heads", heads));
    return set_u32(m, "linear_value_head_dim", inner / heads);
}

/* The width of the shared expert is a key in newer files and a shape in all. */
static td_status qwen35_experts(maker *m) {
    uint32_t shared;
    TD_TRY(copy_u32(m, "expert_count", "num_experts"));
    TD_TRY(copy_u32(m, "expert_used_count", "num_experts_per_tok"));
    TD_TRY(copy_u32(m, "expert_feed_forward_length", "moe_intermediate_size"));
    TD_TRY(td_gguf_u32_or(m->g, key_of(m, "expert_shared_feed_forward_length"), 0, INT32_MAX, 0, &shared, m->err));
    const td_tensor *t = block_tensor(m, 0, "ffn_gate_shexp.weight");
    if (!shared && t && t->n_dims == 2 && t->dim[0] <= INT32_MAX)
        shared = (uint32_t)t->dim[0];
    return set_u32(m, "shared_expert_intermediate_size", shared);
}

static bool any_draft_tensor(const maker *m, const char *rest) {
    for (uint32_t i = m->n_layers; i < m->n_blocks; i++)
        if (block_tensor(m, i, rest))
            return true;
    return false;
}

static td_status qwen35_text(maker *m, bool moe) {
    TD_TRY(set(m, "model_type", json_string(moe ? "qwen3_5_moe_text" : "qwen3_5_text")));
    TD_TRY(copy_rows(m, "token_embd.weight", "vocab_size"));
    TD_TRY(copy_u32(m, "embedding_length", "hidden_size"));
    TD_TRY(set_u32(m, "num_hidden_layers", m->n_layers));
    TD_TRY(copy_u32(m, "context_length", "max_position_embeddings"));
    TD_TRY(copy_f64(m, "attention.layer_norm_rms_epsilon", "rms_norm_eps"));
    TD_TRY(copy_uniform(m, "attention.head_count", "num_attention_heads"));
    TD_TRY(copy_uniform(m, "attention.head_count_kv", "num_key_value_heads"));
    TD_TRY(qwen35_layer_types(m));
    TD_TRY(qwen35_rope(m));
    TD_TRY(qwen35_delta(m));
    TD_TRY(moe ? qwen35_experts(m) : copy_uniform(m, "feed_forward_length", "intermediate_size"));
    TD_TRY(set_u32(m, "mtp_num_hidden_layers", m->n_blocks - m->n_layers));
    TD_TRY(set(m, "mtp_use_dedicated_embeddings",
               json_boolean(any_draft_tensor(m, "nextn.embed_tokens.weight") ||
                            any_draft_tensor(m, "nextn.shared_head_head.weight"))));
    return set_tied(m);
}

/* ---- generation ---- */

/* Words that end a turn, whatever the metadata names: a file has one end token, chats have several. */
static const char *const turn_ends[TD_GGUF_ARCH_COUNT][4] = {
    [TD_GGUF_ARCH_GEMMA4] = {"<turn|>", "<|tool_response>"},
    [TD_GGUF_ARCH_QWEN35] = {"<|im_end|>", "<|endoftext|>"},
    [TD_GGUF_ARCH_QWEN35MOE] = {"<|im_end|>", "<|endoftext|>"},
};

static bool holds(const json_t *list, uint32_t id) {
    for (size_t i = 0; i < json_array_size(list); i++)
        if (json_integer_value(json_array_get(list, i)) == (json_int_t)id)
            return true;
    return false;
}

static td_status add_end(maker *m, json_t *ends, uint32_t id) {
    return holds(ends, id) || json_array_append_new(ends, json_integer(id)) == 0 ? TD_OK : no_memory(m);
}

static td_status add_turn_ends(maker *m, td_gguf_arch arch, json_t *ends) {
    const td_gguf_value *tokens = td_gguf_find(m->g, "tokenizer.ggml.tokens");
    const char *str;
    size_t size;
    if (!tokens)
        return TD_OK;
    td_gguf_strings s = {.v = tokens};
    while (td_gguf_next_string(&s, &str, &size))
        for (size_t i = 0; i < 4 && turn_ends[arch][i]; i++)
            if (strlen(turn_ends[arch][i]) == size && memcmp(turn_ends[arch][i], str, size) == 0)
                TD_TRY(add_end(m, ends, (uint32_t)(s.i - 1)));
    return TD_OK;
}

static td_status generation_ends(maker *m, td_gguf_arch arch) {
    static const char *const keys[] = {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    json_t *ends = json_array();
    TD_TRY(set(m, "eos_token_id", ends));
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        uint32_t id;
        TD_TRY(td_gguf_u32_or(m->g, keys[i], 0, INT32_MAX, 0, &id, m->err));
        if (td_gguf_find(m->g, keys[i]))
            TD_TRY(add_end(m, ends, id));
    }
    return add_turn_ends(m, arch, ends);
}

static td_status generation_suppressed(maker *m) {
    const td_gguf_value *v = td_gguf_find(m->g, "tokenizer.ggml.suppress_tokens");
    if (!v)
        return TD_OK;
    json_t *list = json_array();
    TD_TRY(set(m, "suppress_tokens", list));
    for (uint64_t i = 0; i < v->n; i++) {
        int64_t id;
        if (!td_gguf_integer_at(v, i, &id))
            return td_fail(m->err, TD_E_MODEL, "%s: \"%s\" is no list of token ids", td_gguf_path(m->g), v->key);
        if (json_array_append_new(list, json_integer(id)) != 0)
            return no_memory(m);
    }
    return TD_OK;
}

/* general.sampling.*: how the model's makers sample. */
static td_status generation_sampling(maker *m) {
    static const struct {
        const char *key, *name;
    } reals[] = {{"general.sampling.temp", "temperature"},
                 {"general.sampling.top_p", "top_p"},
                 {"general.sampling.min_p", "min_p"},
                 {"general.sampling.penalty_repeat", "repetition_penalty"}};
    bool any = false;
    for (size_t i = 0; i < sizeof reals / sizeof reals[0]; i++) {
        double v;
        TD_TRY(td_gguf_f64_or(m->g, reals[i].key, 0, &v, m->err));
        if (!td_gguf_find(m->g, reals[i].key))
            continue;
        any = true;
        TD_TRY(set(m, reals[i].name, json_real(v)));
    }
    uint32_t top_k;
    TD_TRY(td_gguf_u32_or(m->g, "general.sampling.top_k", 0, INT32_MAX, 0, &top_k, m->err));
    if (td_gguf_find(m->g, "general.sampling.top_k")) {
        any = true;
        TD_TRY(set_u32(m, "top_k", top_k));
    }
    return any ? set(m, "do_sample", json_true()) : TD_OK;
}

static td_status make_generation(maker *m, td_gguf_arch arch) {
    TD_TRY(generation_ends(m, arch));
    TD_TRY(generation_suppressed(m));
    return generation_sampling(m);
}

/* ---- entry points ---- */

static td_status read_arch_name(const td_gguf *g, const char **name, size_t *size, td_error *err) {
    TD_TRY(td_gguf_string_or_null(g, "general.architecture", name, size, err));
    if (!*name)
        return td_fail(err, TD_E_MODEL, "%s: no key \"general.architecture\"", td_gguf_path(g));
    return TD_OK;
}

static td_status start(maker *m, td_gguf_arch *arch) {
    const char *name;
    size_t size;
    char shown[TD_SHOWN_SIZE];
    uint32_t draft = 0;
    TD_TRY(read_arch_name(m->g, &name, &size, m->err));
    if (!td_gguf_arch_parse(name, size, arch))
        return td_fail(m->err, TD_E_UNSUPPORTED,
                       "%s: general.architecture is \"%s\", expected gemma4, gemma4-assistant, qwen35 or qwen35moe",
                       td_gguf_path(m->g), td_shown(shown, name, size));
    snprintf(m->arch_buf, sizeof m->arch_buf, "%.*s", (int)size, name);
    m->arch = m->arch_buf;
    TD_TRY(td_gguf_u32(m->g, key_of(m, "block_count"), 1, MAX_LAYERS, &m->n_blocks, m->err));
    if (*arch == TD_GGUF_ARCH_QWEN35 || *arch == TD_GGUF_ARCH_QWEN35MOE)
        TD_TRY(td_gguf_u32_or(m->g, key_of(m, "nextn_predict_layers"), 0, m->n_blocks - 1, 0, &draft, m->err));
    m->n_layers = m->n_blocks - draft;
    return TD_OK;
}

td_status td_gguf_read_arch(const td_gguf *g, td_gguf_arch *arch, uint32_t *n_trunk_layers, td_error *err) {
    maker m = {.g = g, .err = err};
    TD_TRY(start(&m, arch));
    *n_trunk_layers = m.n_layers;
    return TD_OK;
}

static td_status make_family_config(maker *m, td_gguf_arch arch) {
    switch (arch) {
    case TD_GGUF_ARCH_GEMMA4:
        return gemma4_text(m);
    case TD_GGUF_ARCH_GEMMA4_ASSISTANT:
        return gemma4_assistant(m);
    default:
        return qwen35_text(m, arch == TD_GGUF_ARCH_QWEN35MOE);
    }
}

static td_status make_config(maker *m, td_gguf_arch arch) {
    bool synthetic;
    TD_TRY(make_family_config(m, arch));
    TD_TRY(td_gguf_bool_or(m->g, TD_SYNTHETIC_KEY, false, &synthetic, m->err));
    return synthetic ? set(m, TD_SYNTHETIC_FIELD, json_true()) : TD_OK;
}

td_status td_gguf_make_config(const td_checkpoint *ck, const td_gguf *g, uint32_t n_draft_layers, json_t **config,
                              json_t **generation, td_error *err) {
    maker m = {.ck = ck, .g = g, .err = err};
    td_gguf_arch arch;
    *config = *generation = NULL;
    TD_TRY(start(&m, &arch));
    if (m.n_blocks < m.n_layers + n_draft_layers)
        m.n_blocks = m.n_layers + n_draft_layers;
    m.o = json_object();
    td_status st = m.o ? make_config(&m, arch) : no_memory(&m);
    *config = m.o;
    m.o = json_object();
    if (st == TD_OK)
        st = m.o ? make_generation(&m, arch) : no_memory(&m);
    *generation = m.o;
    if (st == TD_OK)
        return TD_OK;
    json_decref(*config);
    json_decref(*generation);
    *config = *generation = NULL;
    return st;
}
