/* synthetic_plan.c - the tensors of a shape, each under the name that its container has for it.
 *
 * One walk through the layers names both: a line gives the published (MLX) module and GGUF's. A matrix in affine groups
 * is three tensors. GGUF has no draft layer of its own kind: it is one more block, with four tensors beside. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/synthetic_impl.h"
#include "tensor/blocks.h"

enum { GROUP = 64 };
#define BRANCH 8.0f /* gain of what Gemma's layers add: a tied head would else only find the word just read again */

/* ---- one tensor ---- */

static void add(td_plan *p, const char *name, td_draw draw, td_dtype type, uint32_t n_in, int n_dims,
                const uint64_t *dims) {
    uint64_t n = 1;
    if (p->n == TD_SYNTHETIC_MAX) {
        p->failed = true;
        return;
    }
    td_tensor *t = &p->tensor[p->n];
    *t = (td_tensor){.name = td_strdup(name), .dtype = type, .n_dims = n_dims};
    for (int i = 0; i < n_dims; i++) {
        t->dim[i] = dims[i];
        n *= dims[i];
    }
    if (type == TD_DTYPE_BLOCKS) {
        t->blocks = TD_FORMAT_Q4_0;
        t->size = n / td_block_elements(t->blocks) * td_block_bytes(t->blocks);
    } else {
        t->size = n * td_dtype_bits(type) / 8;
    }
    p->failed = p->failed || !t->name;
    p->entry[p->n++] = (td_plan_entry){.draw = draw, .n_in = n_in, .value = 1};
    p->bytes += t->size;
}

/* A module of weights: n_stack 0 for a plain matrix. NULL: the container has no such module. */
typedef struct module {
    const char *published, *gguf;
    uint32_t n_stack, n_out, n_in;
} module;

static void add_quantised(td_plan *p, const char *prefix, const module *m) {
    char name[200];
    uint64_t dims[3] = {m->n_stack, m->n_out, m->n_in};
    const int skip = m->n_stack == 0;
    if (p->gguf) {
        snprintf(name, sizeof name, "%s%s.weight", prefix, m->gguf);
        add(p, name, TD_DRAW_MATRIX, TD_DTYPE_BLOCKS, m->n_in, 3 - skip, dims + skip);
        return;
    }
    static const struct {
        const char *suffix;
        td_draw draw;
        td_dtype type;
        uint32_t per; /* elements of a row that one of its elements stands for */
    } parts[] = {{"weight", TD_DRAW_MATRIX, TD_DTYPE_U32, 8},
                 {"scales", TD_DRAW_SCALES, TD_DTYPE_BF16, GROUP},
                 {"biases", TD_DRAW_BIASES, TD_DTYPE_BF16, GROUP}};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        dims[2] = m->n_in / parts[i].per;
        snprintf(name, sizeof name, "%s%s.%s", prefix, m->published, parts[i].suffix);
        add(p, name, parts[i].draw, parts[i].type, m->n_in, 3 - skip, dims + skip);
    }
}

static void add_modules(td_plan *p, const char *prefix, const module *m, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (p->gguf ? m[i].gguf : m[i].published)
            add_quantised(p, prefix, &m[i]);
}

/* Floats: F32 in GGUF, BF16 otherwise. Names in full. */
static void add_floats(td_plan *p, const char *prefix, const char *published, const char *gguf, td_draw draw,
                       int n_dims, const uint64_t *dims) {
    char name[200];
    const char *own = p->gguf ? gguf : published;
    if (!own)
        return;
    snprintf(name, sizeof name, "%s%s", prefix, own);
    bool exact = p->gguf || draw == TD_DRAW_DECAY;
    add(p, name, draw, exact ? TD_DTYPE_F32 : TD_DTYPE_BF16, (uint32_t)dims[n_dims - 1], n_dims, dims);
}

static void add_same(td_plan *p, const char *prefix, const char *published, const char *gguf, uint32_t n, float value) {
    size_t before = p->n;
    add_floats(p, prefix, published, gguf, TD_DRAW_SAME, 1, (const uint64_t[]){n});
    if (p->n > before)
        p->entry[before].value = value;
}

static void add_gain(td_plan *p, const char *prefix, const char *published, const char *gguf, uint32_t n) {
    add_same(p, prefix, published, gguf, n, 1);
}

#define ADD_MODULES(p, prefix, list) add_modules(p, prefix, list, sizeof(list) / sizeof *(list))

/* ---- Gemma 4 and its assistants ---- */

static void gemma4_attention(td_plan *p, const char *prefix, uint32_t i) {
    const td_shape *s = p->shape;
    const bool full = td_shape_is_full(s, i), owns = i < td_shape_owning(s);
    const uint32_t d = full ? s->head_dim_full : s->head_dim, n_kv = (full ? s->n_kv_full : s->n_kv) * d;
    const module qo[] = {{"self_attn.q_proj", "attn_q", 0, s->n_heads * d, s->n_embd},
                         {"self_attn.o_proj", "attn_output", 0, s->n_embd, s->n_heads * d}};
    const module kv[] = {{"self_attn.k_proj", "attn_k", 0, n_kv, s->n_embd},
                         {"self_attn.v_proj", "attn_v", 0, n_kv, s->n_embd}};
    add_gain(p, prefix, "input_layernorm.weight", "attn_norm.weight", s->n_embd);
    ADD_MODULES(p, prefix, qo);
    add_same(p, prefix, "self_attn.q_norm.weight", "attn_q_norm.weight", d, 1 / sqrtf((float)d)); /* no scale there */
    if (owns) {
        add_modules(p, prefix, kv, full && s->k_is_v ? 1 : 2);
        add_gain(p, prefix, "self_attn.k_norm.weight", "attn_k_norm.weight", d);
    }
    add_same(p, prefix, "post_attention_layernorm.weight", "post_attention_norm.weight", s->n_embd, BRANCH);
}

static void gemma4_experts(td_plan *p, const char *prefix) {
    const td_shape *s = p->shape;
    const uint64_t router[] = {s->n_experts, s->n_embd};
    const module m[] = {{NULL, "ffn_gate_up_exps", s->n_experts, 2 * s->n_ff_expert, s->n_embd},
                        {"experts.switch_glu.gate_proj", NULL, s->n_experts, s->n_ff_expert, s->n_embd},
                        {"experts.switch_glu.up_proj", NULL, s->n_experts, s->n_ff_expert, s->n_embd},
                        {"experts.switch_glu.down_proj", "ffn_down_exps", s->n_experts, s->n_embd, s->n_ff_expert}};
    add_floats(p, prefix, "router.proj.weight", "ffn_gate_inp.weight", TD_DRAW_FLOAT, 2, router);
    add_gain(p, prefix, "router.scale", "ffn_gate_inp.scale", s->n_embd);
    add_gain(p, prefix, "router.per_expert_scale", "ffn_down_exps.scale", s->n_experts);
    ADD_MODULES(p, prefix, m);
    add_gain(p, prefix, "post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight", s->n_embd);
    add_gain(p, prefix, "pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight", s->n_embd);
    add_gain(p, prefix, "post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight", s->n_embd);
}

static void gemma4_layer(td_plan *p, const char *prefix, uint32_t i) {
    const td_shape *s = p->shape;
    const uint32_t n_ff = s->n_ff * (s->wide && i >= td_shape_owning(s) ? 2 : 1);
    const module ff[] = {{"mlp.gate_proj", "ffn_gate", 0, n_ff, s->n_embd},
                         {"mlp.up_proj", "ffn_up", 0, n_ff, s->n_embd},
                         {"mlp.down_proj", "ffn_down", 0, s->n_embd, n_ff}};
    const module ple[] = {{"per_layer_input_gate", "inp_gate", 0, s->n_ple, s->n_embd},
                          {"per_layer_projection", "proj", 0, s->n_embd, s->n_ple}};
    gemma4_attention(p, prefix, i);
    add_gain(p, prefix, "pre_feedforward_layernorm.weight", "ffn_norm.weight", s->n_embd);
    ADD_MODULES(p, prefix, ff);
    if (s->n_experts)
        gemma4_experts(p, prefix);
    add_same(p, prefix, "post_feedforward_layernorm.weight", "post_ffw_norm.weight", s->n_embd, BRANCH);
    if (s->n_ple) {
        ADD_MODULES(p, prefix, ple);
        add_same(p, prefix, "post_per_layer_input_norm.weight", "post_norm.weight", s->n_embd, BRANCH);
    }
    add_gain(p, prefix, "layer_scalar", "layer_output_scale.weight", 1);
}

static void gemma4_globals(td_plan *p) {
    const td_shape *s = p->shape;
    const char *model = p->gguf ? "" : "model.";
    const uint32_t ple = s->n_ple * s->shown.n_layers;
    const uint64_t turning[] = {s->head_dim_full / 2};
    const module embed[] = {{"embed_tokens", "token_embd", 0, s->n_vocab, s->n_embd}};
    const module inputs[] = {{"embed_tokens_per_layer", "per_layer_token_embd", 0, s->n_vocab, ple},
                             {"per_layer_model_projection", "per_layer_model_proj", 0, ple, s->n_embd}};
    ADD_MODULES(p, model, embed);
    add_gain(p, model, "norm.weight", "output_norm.weight", s->n_embd);
    add_floats(p, "", NULL, "rope_freqs.weight", TD_DRAW_TURNING, 1, turning);
    if (s->n_ple) {
        ADD_MODULES(p, model, inputs);
        add_gain(p, model, "per_layer_projection_norm.weight", "per_layer_proj_norm.weight", s->n_ple);
    }
}

/* GGUF files of assistants have no centroids: their head is the whole table. */
static void assistant_globals(td_plan *p) {
    const td_shape *s = p->shape;
    const uint64_t centroids[] = {s->n_centroids, s->n_embd}, order[] = {s->n_vocab};
    const module ends[] = {{"pre_projection", "nextn.pre_projection", 0, s->n_embd, 2 * s->n_backbone},
                           {"post_projection", "nextn.post_projection", 0, s->n_backbone, s->n_embd}};
    ADD_MODULES(p, "", ends);
    if (s->n_centroids && !p->gguf) {
        add_floats(p, "", "masked_embedding.centroids.weight", NULL, TD_DRAW_FLOAT, 2, centroids);
        add(p, "masked_embedding.token_ordering", TD_DRAW_ORDER, TD_DTYPE_I32, 0, 1, order);
    }
}

/* ---- Qwen 3.5 ---- */

static void qwen35_full(td_plan *p, const char *prefix) {
    const td_shape *s = p->shape;
    const uint32_t d = s->head_dim;
    const module m[] = {{"self_attn.q_proj", "attn_q", 0, 2 * s->n_heads * d, s->n_embd},
                        {"self_attn.k_proj", "attn_k", 0, s->n_kv * d, s->n_embd},
                        {"self_attn.v_proj", "attn_v", 0, s->n_kv * d, s->n_embd},
                        {"self_attn.o_proj", "attn_output", 0, s->n_embd, s->n_heads * d}};
    ADD_MODULES(p, prefix, m);
    add_gain(p, prefix, "self_attn.q_norm.weight", "attn_q_norm.weight", d);
    add_gain(p, prefix, "self_attn.k_norm.weight", "attn_k_norm.weight", d);
}

static void qwen35_linear(td_plan *p, const char *prefix) {
    const td_shape *s = p->shape;
    const uint32_t values = s->n_v * s->d_delta, channels = 2 * s->n_k * s->d_delta + values;
    const uint64_t conv[] = {channels, s->kernel, 1}, heads[] = {s->n_v};
    const module m[] = {{"linear_attn.in_proj_qkv", "attn_qkv", 0, channels, s->n_embd},
                        {"linear_attn.in_proj_z", "attn_gate", 0, values, s->n_embd},
                        {"linear_attn.in_proj_a", "ssm_alpha", 0, s->n_v, s->n_embd},
                        {"linear_attn.in_proj_b", "ssm_beta", 0, s->n_v, s->n_embd},
                        {"linear_attn.out_proj", "ssm_out", 0, s->n_embd, values}};
    ADD_MODULES(p, prefix, m);
    add_floats(p, prefix, "linear_attn.conv1d.weight", "ssm_conv1d.weight", TD_DRAW_FLOAT, p->gguf ? 2 : 3, conv);
    add_floats(p, prefix, "linear_attn.A_log", "ssm_a", TD_DRAW_DECAY, 1, heads);
    add_gain(p, prefix, "linear_attn.dt_bias", "ssm_dt.bias", s->n_v);
    add_gain(p, prefix, "linear_attn.norm.weight", "ssm_norm.weight", s->d_delta);
}

static void qwen35_ffn(td_plan *p, const char *prefix) {
    const td_shape *s = p->shape;
    const uint32_t n = s->n_experts, ff = s->n_ff_expert, shared = s->n_ff_shared;
    const uint64_t router[] = {n, s->n_embd}, gate[] = {1, s->n_embd};
    const module dense[] = {{"mlp.gate_proj", "ffn_gate", 0, s->n_ff, s->n_embd},
                            {"mlp.up_proj", "ffn_up", 0, s->n_ff, s->n_embd},
                            {"mlp.down_proj", "ffn_down", 0, s->n_embd, s->n_ff}};
    const module moe[] = {{"mlp.switch_mlp.gate_proj", "ffn_gate_exps", n, ff, s->n_embd},
                          {"mlp.switch_mlp.up_proj", "ffn_up_exps", n, ff, s->n_embd},
                          {"mlp.switch_mlp.down_proj", "ffn_down_exps", n, s->n_embd, ff},
                          {"mlp.shared_expert.gate_proj", "ffn_gate_shexp", 0, shared, s->n_embd},
                          {"mlp.shared_expert.up_proj", "ffn_up_shexp", 0, shared, s->n_embd},
                          {"mlp.shared_expert.down_proj", "ffn_down_shexp", 0, s->n_embd, shared}};
    if (!n) {
        ADD_MODULES(p, prefix, dense);
        return;
    }
    add_floats(p, prefix, "mlp.gate.weight", "ffn_gate_inp.weight", TD_DRAW_FLOAT, 2, router);
    ADD_MODULES(p, prefix, moe);
    add_floats(p, prefix, "mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight", TD_DRAW_FLOAT, p->gguf ? 1 : 2,
               p->gguf ? gate + 1 : gate);
}

static void qwen35_layer(td_plan *p, const char *prefix, bool full) {
    add_gain(p, prefix, "input_layernorm.weight", "attn_norm.weight", p->shape->n_embd);
    if (full)
        qwen35_full(p, prefix);
    else
        qwen35_linear(p, prefix);
    add_gain(p, prefix, "post_attention_layernorm.weight", "post_attention_norm.weight", p->shape->n_embd);
    qwen35_ffn(p, prefix);
}

static void qwen35_globals(td_plan *p) {
    const td_shape *s = p->shape;
    const char *model = p->gguf ? "" : "model.";
    const module embed[] = {{"embed_tokens", "token_embd", 0, s->n_vocab, s->n_embd}};
    const module head[] = {{"lm_head", "output", 0, s->n_vocab, s->n_embd}};
    ADD_MODULES(p, model, embed);
    if (!s->tied)
        ADD_MODULES(p, "", head);
    add_gain(p, model, "norm.weight", "output_norm.weight", s->n_embd);
}

static void qwen35_draft_layer(td_plan *p) {
    const td_shape *s = p->shape;
    const module fc[] = {{"fc", "nextn.eh_proj", 0, s->n_embd, 2 * s->n_embd}};
    char block[40];
    snprintf(block, sizeof block, p->gguf ? "blk.%u." : "mtp.", s->shown.n_layers);
    ADD_MODULES(p, block, fc);
    add_gain(p, block, "pre_fc_norm_embedding.weight", "nextn.enorm.weight", s->n_embd);
    add_gain(p, block, "pre_fc_norm_hidden.weight", "nextn.hnorm.weight", s->n_embd);
    add_gain(p, block, "norm.weight", "nextn.shared_head_norm.weight", s->n_embd);
    qwen35_layer(p, p->gguf ? block : "mtp.layers.0.", true);
}

/* ---- the whole ---- */

void td_plan_tensors(td_plan *p) {
    const td_shape *s = p->shape;
    if (s->family == TD_SYNTHETIC_QWEN35)
        qwen35_globals(p);
    else
        gemma4_globals(p);
    if (s->family == TD_SYNTHETIC_ASSISTANT)
        assistant_globals(p);
    for (uint32_t i = 0; i < s->shown.n_layers; i++) {
        char prefix[40];
        snprintf(prefix, sizeof prefix, p->gguf ? "blk.%u." : "model.layers.%u.", i);
        if (s->family == TD_SYNTHETIC_QWEN35)
            qwen35_layer(p, prefix, td_shape_is_full(s, i));
        else
            gemma4_layer(p, prefix, i);
    }
    if (s->draft_layer)
        qwen35_draft_layer(p);
}

void td_plan_free(td_plan *p) {
    for (size_t i = 0; i < p->n; i++)
        td_free((void *)(uintptr_t)p->tensor[i].name);
    p->n = 0;
}
