/* synthetic_config.c - what a synthetic checkpoint says about itself: config.json as published, or GGUF metadata.
 *
 * Both say that the weights are random (checkpoint.h), so that nobody takes such a model for a broken one.
 *
 * A tokenizer that knows bytes, one merge and made-up words is there because llama.cpp loads no model without one. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/synthetic_impl.h"

/* ---- config.json ---- */

/* An object under construction; a member that cannot be added makes it a failure. */
typedef struct object {
    json_t *o;
    bool failed;
} object;

/* Takes the value, NULL when memory ran out for it. */
static void set(object *b, const char *key, json_t *v) {
    b->failed = json_object_set_new(b->o, key, v) != 0 || b->failed;
}

static void put(object *b, const char *key, uint32_t v) {
    set(b, key, json_integer(v));
}

/* The object, or NULL. */
static json_t *finished(object *b) {
    if (!b->failed)
        return b->o;
    json_decref(b->o);
    return NULL;
}

static json_t *layer_types(const td_shape *s) {
    json_t *types = json_array();
    const char *other = s->family == TD_SYNTHETIC_QWEN35 ? "linear_attention" : "sliding_attention";
    for (uint32_t i = 0; i < s->shown.n_layers; i++)
        if (json_array_append_new(types, json_string(td_shape_is_full(s, i) ? "full_attention" : other)) != 0) {
            json_decref(types);
            return NULL;
        }
    return types;
}

static object common(const td_shape *s, const char *type) {
    object b = {.o = json_object()};
    set(&b, "model_type", json_string(type));
    set(&b, "dtype", json_string("bfloat16"));
    set(&b, "rms_norm_eps", json_real(1e-6));
    set(&b, "tie_word_embeddings", json_boolean(s->tied));
    set(&b, "layer_types", layer_types(s));
    put(&b, "vocab_size", s->n_vocab);
    put(&b, "hidden_size", s->n_embd);
    put(&b, "num_hidden_layers", s->shown.n_layers);
    put(&b, "num_attention_heads", s->n_heads);
    put(&b, "num_key_value_heads", s->n_kv);
    put(&b, "head_dim", s->head_dim);
    put(&b, "max_position_embeddings", s->n_ctx);
    if (s->n_ff)
        put(&b, "intermediate_size", s->n_ff);
    return b;
}

static json_t *gemma4_rope(void) {
    return json_pack("{s:{s:s,s:f,s:f},s:{s:s,s:f}}", "full_attention", "rope_type", "proportional", "rope_theta", 1e6,
                     "partial_rotary_factor", 0.25, "sliding_attention", "rope_type", "default", "rope_theta", 1e4);
}

static object gemma4_text(const td_shape *s) {
    object b = common(s, "gemma4_text");
    set(&b, "rope_parameters", gemma4_rope());
    set(&b, "attention_k_eq_v", json_boolean(s->k_is_v));
    set(&b, "use_double_wide_mlp", json_boolean(s->wide));
    set(&b, "enable_moe_block", json_boolean(s->n_experts > 0));
    if (s->family == TD_SYNTHETIC_GEMMA4)
        set(&b, "final_logit_softcapping", json_real(30));
    put(&b, "global_head_dim", s->head_dim_full);
    put(&b, "num_global_key_value_heads", s->n_kv_full);
    put(&b, "sliding_window", s->window);
    put(&b, "num_kv_shared_layers", s->n_shared);
    put(&b, "hidden_size_per_layer_input", s->n_ple);
    put(&b, "vocab_size_per_layer_input", s->n_ple ? s->n_vocab : 0);
    if (s->n_experts) {
        put(&b, "num_experts", s->n_experts);
        put(&b, "top_k_experts", s->n_used);
        put(&b, "moe_intermediate_size", s->n_ff_expert);
    }
    return b;
}

static object assistant(const td_shape *s) {
    object text = gemma4_text(s), b = {.o = json_object()};
    /* full layers read keys of heads that are as many as the trunk's there */
    set(&text, "attention_k_eq_v", json_boolean(s->n_kv_full != s->n_kv));
    set(&b, "model_type", json_string("gemma4_assistant"));
    set(&b, "dtype", json_string("bfloat16"));
    put(&b, "backbone_hidden_size", s->n_backbone);
    set(&b, "use_ordered_embeddings", json_boolean(s->n_centroids > 0));
    put(&b, "num_centroids", s->n_centroids);
    put(&b, "centroid_intermediate_top_k", s->n_centroids_used);
    set(&b, "text_config", finished(&text));
    return b;
}

static object qwen35(const td_shape *s) {
    object b = common(s, s->n_experts ? "qwen3_5_moe_text" : "qwen3_5_text");
    set(&b, "rope_parameters",
        json_pack("{s:s,s:f,s:f}", "rope_type", "default", "rope_theta", 1e7, "partial_rotary_factor", 0.25));
    put(&b, "linear_conv_kernel_dim", s->kernel);
    put(&b, "linear_num_key_heads", s->n_k);
    put(&b, "linear_num_value_heads", s->n_v);
    put(&b, "linear_key_head_dim", s->d_delta);
    put(&b, "linear_value_head_dim", s->d_delta);
    put(&b, "mtp_num_hidden_layers", s->draft_layer);
    if (s->n_experts) {
        put(&b, "num_experts", s->n_experts);
        put(&b, "num_experts_per_tok", s->n_used);
        put(&b, "moe_intermediate_size", s->n_ff_expert);
        put(&b, "shared_expert_intermediate_size", s->n_ff_shared);
    }
    return b;
}

json_t *td_synthetic_config(const td_shape *s) {
    object b = s->family == TD_SYNTHETIC_GEMMA4      ? gemma4_text(s)
               : s->family == TD_SYNTHETIC_ASSISTANT ? assistant(s)
                                                     : qwen35(s);
    set(&b, TD_SYNTHETIC_FIELD, json_true());
    set(&b, "quantization", json_pack("{s:i,s:i,s:s}", "group_size", 64, "bits", 4, "mode", "affine"));
    return finished(&b);
}

/* ---- GGUF metadata ---- */

typedef struct meta {
    td_gguf_writer *w;
    const char *arch;
    char key[128];
} meta;

static const char *key_of(meta *m, const char *rest) {
    snprintf(m->key, sizeof m->key, "%s.%s", m->arch, rest);
    return m->key;
}

static void put_u32(meta *m, const char *rest, uint32_t v) {
    td_gguf_put_u32(m->w, key_of(m, rest), v);
}

static void put_f32(meta *m, const char *rest, float v) {
    td_gguf_put_f32(m->w, key_of(m, rest), v);
}

static void put_string(meta *m, const char *key, const char *v) {
    td_gguf_put_string(m->w, key, v, strlen(v));
}

/* Lists with an entry a layer; false: out of memory. */
static bool gemma4_lists(meta *m, const td_shape *s) {
    const uint32_t n = s->shown.n_layers;
    uint32_t *kv = td_calloc(n, sizeof *kv), *ff = td_calloc(n, sizeof *ff);
    uint8_t *sliding = td_calloc(n, 1);
    const bool ok = kv && ff && sliding;
    for (uint32_t i = 0; i < n && ok; i++) {
        kv[i] = td_shape_is_full(s, i) ? s->n_kv_full : s->n_kv;
        ff[i] = s->n_ff * (s->wide && i >= td_shape_owning(s) ? 2 : 1);
        sliding[i] = !td_shape_is_full(s, i);
    }
    if (ok) {
        td_gguf_put_array(m->w, key_of(m, "attention.head_count_kv"), TD_GGUF_U32, kv, n);
        td_gguf_put_array(m->w, key_of(m, "feed_forward_length"), TD_GGUF_U32, ff, n);
        td_gguf_put_array(m->w, key_of(m, "attention.sliding_window_pattern"), TD_GGUF_BOOL, sliding, n);
    }
    td_free(kv);
    td_free(ff);
    td_free(sliding);
    return ok;
}

static bool gemma4_metadata(meta *m, const td_shape *s) {
    put_u32(m, "attention.key_length", s->head_dim_full);
    put_u32(m, "attention.value_length", s->head_dim_full);
    put_u32(m, "attention.key_length_swa", s->head_dim);
    put_u32(m, "attention.value_length_swa", s->head_dim);
    put_u32(m, "attention.sliding_window", s->window);
    put_u32(m, "attention.shared_kv_layers", s->n_shared);
    put_u32(m, "embedding_length_per_layer_input", s->n_ple);
    put_f32(m, "rope.freq_base", 1e6f);
    put_f32(m, "rope.freq_base_swa", 1e4f);
    put_u32(m, "rope.dimension_count", s->head_dim_full);
    put_u32(m, "rope.dimension_count_swa", s->head_dim);
    if (s->family == TD_SYNTHETIC_GEMMA4)
        put_f32(m, "final_logit_softcapping", 30);
    if (s->family == TD_SYNTHETIC_ASSISTANT) {
        put_u32(m, "embedding_length_out", s->n_backbone);
        put_u32(m, "nextn_predict_layers", s->shown.n_layers);
    }
    return gemma4_lists(m, s);
}

static void qwen35_metadata(meta *m, const td_shape *s) {
    const uint32_t turning = s->head_dim / 4;
    const int32_t sections[] = {11, 11, 10, 0};
    put_u32(m, "attention.head_count_kv", s->n_kv);
    put_u32(m, "attention.key_length", s->head_dim);
    put_u32(m, "attention.value_length", s->head_dim);
    put_f32(m, "rope.freq_base", 1e7f);
    put_u32(m, "rope.dimension_count", turning);
    td_gguf_put_array(m->w, key_of(m, "rope.dimension_sections"), TD_GGUF_I32, sections, 4);
    put_u32(m, "ssm.conv_kernel", s->kernel);
    put_u32(m, "ssm.state_size", s->d_delta);
    put_u32(m, "ssm.group_count", s->n_k);
    put_u32(m, "ssm.time_step_rank", s->n_v);
    put_u32(m, "ssm.inner_size", s->n_v * s->d_delta);
    put_u32(m, "full_attention_interval", s->period);
    put_u32(m, "nextn_predict_layers", s->draft_layer);
    if (s->n_experts)
        put_u32(m, "expert_shared_feed_forward_length", s->n_ff_shared);
    else
        put_u32(m, "feed_forward_length", s->n_ff);
}

/* The letter that byte-level tokenizers write a byte as: itself where it can be printed, else from U+0100 on. */
static size_t byte_letter(uint32_t byte, char out[3]) {
    uint32_t code = byte, next = 256;
    for (uint32_t b = 0; b <= byte; b++) {
        bool printed = (b > 32 && b < 127) || (b > 160 && b != 173);
        if (b == byte && !printed)
            code = next;
        next += !printed;
    }
    if (code < 128) {
        out[0] = (char)code;
        return 1;
    }
    out[0] = (char)(0xC0 | code >> 6);
    out[1] = (char)(0x80 | (code & 0x3F));
    return 2;
}

/* Word i: four special ones, the bytes, "a", "b" and "ab" for the one merge, and then "w263", "w264", ... */
static size_t word_of(uint32_t i, bool letters, char out[24]) {
    static const char *const special[] = {"<pad>", "<eos>", "<bos>", "<unk>"};
    static const char *const merged[] = {"a", "b", "ab"};
    if (i >= 4 && i < 260 && letters)
        return byte_letter(i - 4, out);
    if (i < 4)
        snprintf(out, 24, "%s", special[i]);
    else if (i < 260)
        snprintf(out, 24, "<0x%02X>", i - 4);
    else if (i < 263 && (i == 262 || !letters))
        snprintf(out, 24, "%s", merged[i - 260]);
    else
        snprintf(out, 24, "w%u", i);
    return strlen(out);
}

/* False: out of memory. */
static bool put_words(meta *m, const td_shape *s) {
    enum { NORMAL = 1, UNKNOWN = 2, CONTROL = 3, BYTE = 6 };
    const bool letters = s->family == TD_SYNTHETIC_QWEN35;
    int32_t *types = td_calloc(s->n_vocab, sizeof *types);
    if (!types)
        return false;
    td_gguf_begin_strings(m->w, "tokenizer.ggml.tokens", s->n_vocab);
    for (uint32_t i = 0; i < s->n_vocab; i++) {
        char word[24];
        types[i] = i == 3 ? UNKNOWN : i < 4 ? CONTROL : i < 260 && !letters ? BYTE : NORMAL;
        td_gguf_add_string(m->w, word, word_of(i, letters, word));
    }
    td_gguf_put_array(m->w, "tokenizer.ggml.token_type", TD_GGUF_I32, types, s->n_vocab);
    td_free(types);
    td_gguf_begin_strings(m->w, "tokenizer.ggml.merges", 1);
    td_gguf_add_string(m->w, "a b", 3);
    return true;
}

static bool tokenizer(meta *m, const td_shape *s) {
    const bool qwen = s->family == TD_SYNTHETIC_QWEN35;
    put_string(m, "tokenizer.ggml.model", qwen ? "gpt2" : "gemma4");
    if (qwen)
        put_string(m, "tokenizer.ggml.pre", "qwen35");
    td_gguf_put_u32(m->w, "tokenizer.ggml.bos_token_id", 2);
    td_gguf_put_u32(m->w, "tokenizer.ggml.eos_token_id", 1);
    td_gguf_put_u32(m->w, "tokenizer.ggml.unknown_token_id", 3);
    td_gguf_put_u32(m->w, "tokenizer.ggml.padding_token_id", 0);
    td_gguf_put_bool(m->w, "tokenizer.ggml.add_bos_token", false);
    return put_words(m, s);
}

bool td_synthetic_metadata(const td_shape *s, td_gguf_writer *w) {
    static const char *const archs[] = {"gemma4", "gemma4-assistant", "qwen35"};
    meta m = {.w = w, .arch = s->family == TD_SYNTHETIC_QWEN35 && s->n_experts ? "qwen35moe" : archs[s->family]};
    put_string(&m, "general.architecture", m.arch);
    put_string(&m, "general.type", "model");
    put_string(&m, "general.name", s->shown.name);
    put_string(&m, "general.description", "random weights, for measuring speed: what they say means nothing");
    td_gguf_put_bool(w, TD_SYNTHETIC_KEY, true);
    put_u32(&m, "block_count", s->shown.n_layers + s->draft_layer);
    put_u32(&m, "context_length", s->n_ctx);
    put_u32(&m, "embedding_length", s->n_embd);
    put_u32(&m, "attention.head_count", s->n_heads);
    put_f32(&m, "attention.layer_norm_rms_epsilon", 1e-6f);
    if (s->n_experts) {
        put_u32(&m, "expert_count", s->n_experts);
        put_u32(&m, "expert_used_count", s->n_used);
        put_u32(&m, "expert_feed_forward_length", s->n_ff_expert);
    }
    if (s->family == TD_SYNTHETIC_QWEN35)
        qwen35_metadata(&m, s);
    else if (!gemma4_metadata(&m, s))
        return false;
    return tokenizer(&m, s);
}
