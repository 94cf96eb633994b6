/* gguf_convert.h - a checkpoint as published (or an MLX conversion) written as GGUF, by the rules of llama.cpp's
 * converter for gemma4, gemma4-assistant, qwen35 and qwen35moe. Static functions, shared by tests and by
 * bench/make_gguf.c, which makes the files that another engine is compared with.
 *
 *   gguf_convert(dir, "model.gguf", TD_FORMAT_Q8_0);
 *
 * gguf_convert_with has what other converters of the field write.
 *
 * Any failure ends the program with a message: this is no part of the product. The tables here were written apart from
 * the loader's, so that each checks the other. */
#ifndef TD_TESTS_GGUF_CONVERT_H
#define TD_TESTS_GGUF_CONVERT_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gguf_tokenizer.h"

#include "base/alloc.h"
#include "format/checkpoint.h"
#include "format/gguf_write.h"
#include "model/model.h"
#include "tensor/blocks.h"

#define GGUF_CONVERT_MAX 8192

typedef struct gguf_convert_options {
    td_format matrices; /* of what is no vector, norm, router or convolution: F32, F16, BF16, or td_block_encodes */
    bool decoded;       /* as F32, with the values that the format would have left */
    bool early;         /* assistants: gemma4_assistant and its names */
    bool clusters;      /* assistants: with their centroids and token ordering */
    bool no_heads;      /* Qwen: the trunk alone (--no-mtp) */
    bool only_heads;    /* Qwen: the draft layer with copies of the trunk's tables (--mtp) */
    bool own_tables; /* Qwen: the draft layer has an embedding, its rows in reverse, and the trunk's head twice as large
                      */
    bool no_head_norm; /* Qwen: the draft layer has no norm of its own before the head */
} gguf_convert_options;

typedef struct gguf_conversion {
    td_checkpoint *ck;
    const json_t *text, *root;
    td_gguf_writer w;
    td_tensor tensor[GGUF_CONVERT_MAX];
    size_t n;
    void *owned[3 * GGUF_CONVERT_MAX];
    size_t n_owned;
    gguf_convert_options opt;
    const char *arch;
    bool qwen, assistant;
    bool raw; /* Qwen: norms lack their 1 */
    uint32_t n_layers, n_k, n_v, dk, dv;
} gguf_conversion;

static inline void *convert_keep(gguf_conversion *c, void *p) {
    if (!p || c->n_owned == sizeof c->owned / sizeof c->owned[0])
        convert_die("out of memory");
    return c->owned[c->n_owned++] = p;
}

/* ---- fields of the config ---- */

static inline const json_t *convert_field(const gguf_conversion *c, const char *key) {
    const json_t *v = json_object_get(c->text, key);
    return v && !json_is_null(v) ? v : json_object_get(c->root, key);
}

static inline uint32_t convert_int(const gguf_conversion *c, const char *key, uint32_t otherwise) {
    const json_t *v = convert_field(c, key);
    return json_is_integer(v) ? (uint32_t)json_integer_value(v) : otherwise;
}

static inline double convert_real(const json_t *o, const char *key, double otherwise) {
    const json_t *v = json_object_get(o, key);
    return json_is_number(v) ? json_number_value(v) : otherwise;
}

static inline const char *convert_key(const gguf_conversion *c, const char *rest) {
    static char key[160];
    snprintf(key, sizeof key, "%s.%s", c->arch, rest);
    return key;
}

static inline void convert_put_u32(gguf_conversion *c, const char *rest, uint32_t v) {
    td_gguf_put_u32(&c->w, convert_key(c, rest), v);
}

static inline void convert_put_f32(gguf_conversion *c, const char *rest, double v) {
    td_gguf_put_f32(&c->w, convert_key(c, rest), (float)v);
}

/* ---- tensors out of the checkpoint ---- */

/* Any tensor as floats; dims get its logical shape. NULL: absent. */
static inline float *convert_load(gguf_conversion *c, const char *name, uint64_t dims[4], int *n_dims) {
    char scales_name[300];
    td_error err;
    const td_tensor *t = td_checkpoint_find(c->ck, name);
    if (!t)
        return NULL;
    size_t stem = strlen(name) > 7 && !strcmp(name + strlen(name) - 7, ".weight") ? strlen(name) - 7 : strlen(name);
    snprintf(scales_name, sizeof scales_name, "%.*s.scales", (int)stem, name);
    const td_tensor *s = td_checkpoint_find(c->ck, scales_name);
    *n_dims = t->n_dims;
    memcpy(dims, t->dim, 4 * sizeof *dims);
    if (s) {
        const json_t *q = json_object_get(c->root, "quantization");
        dims[t->n_dims - 1] = s->dim[s->n_dims - 1] * (uint64_t)convert_real(q, "group_size", 64);
    }
    size_t n = 1;
    for (int i = 0; i < *n_dims; i++)
        n *= (size_t)dims[i];
    float *v = convert_keep(c, td_malloc_aligned(n * sizeof *v + 64));
    if (!s) {
        if (!td_to_f32(v, t->dtype, t->data, n))
            convert_die("%s is %s", name, td_dtype_name(t->dtype));
        return v;
    }
    td_matrix m;
    const bool stack = *n_dims == 3;
    char module[300];
    snprintf(module, sizeof module, "%.*s", (int)stem, name);
    if (td_checkpoint_matrix(c->ck, module, stack ? (uint32_t)dims[0] : 0, (uint32_t)dims[*n_dims - 2],
                             (uint32_t)dims[*n_dims - 1], &m, &err) != TD_OK)
        convert_die("%s", err.message);
    for (size_t row = 0; row < (size_t)m.n_stack * m.n_out; row++)
        td_matrix_row_f32(&m, row, v + row * m.n_in);
    return v;
}

/* ---- tensors into the file ---- */

static inline bool convert_ends(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}

static inline td_format convert_format(const gguf_conversion *c, const char *name, int n_dims, uint64_t n_in) {
    if (n_dims < 2 || convert_ends(name, "_norm.weight") || strstr(name, "ffn_gate_inp") ||
        strstr(name, "ssm_conv1d") || !convert_ends(name, ".weight"))
        return TD_FORMAT_F32;
    uint32_t block = td_block_elements(c->opt.matrices);
    if (!block || n_in % block == 0)
        return c->opt.matrices;
    if (n_in % 32) /* or what llama.cpp's quantiser takes for such rows */
        return TD_FORMAT_F16;
    return c->opt.matrices == TD_FORMAT_Q6_K ? TD_FORMAT_Q8_0 : TD_FORMAT_Q5_0;
}

static inline void convert_encode(td_format f, uint8_t *to, const float *x, size_t n) {
    if (td_block_elements(f)) {
        td_block_encode(f, to, x, n);
        return;
    }
    for (size_t i = 0; i < n; i++) {
        uint16_t h = f == TD_FORMAT_F16 ? td_f32_to_f16(x[i]) : td_f32_to_bf16(x[i]);
        if (f == TD_FORMAT_F32)
            memcpy(to + 4 * i, &x[i], 4);
        else
            memcpy(to + 2 * i, &h, 2);
    }
}

static inline void convert_put(gguf_conversion *c, const char *name, const float *x, int n_dims, const uint64_t *dims) {
    size_t n = 1;
    for (int i = 0; i < n_dims; i++)
        n *= (size_t)dims[i];
    td_format f = convert_format(c, name, n_dims, dims[n_dims - 1]);
    uint32_t block = td_block_elements(f);
    if (c->n == GGUF_CONVERT_MAX)
        convert_die("too many tensors");
    td_tensor *t = &c->tensor[c->n++];
    *t = (td_tensor){.name = convert_keep(c, td_strdup(name)), .n_dims = n_dims};
    memcpy(t->dim, dims, (size_t)n_dims * sizeof *dims);
    t->dtype = block                ? TD_DTYPE_BLOCKS
               : f == TD_FORMAT_F32 ? TD_DTYPE_F32
               : f == TD_FORMAT_F16 ? TD_DTYPE_F16
                                    : TD_DTYPE_BF16;
    t->blocks = f;
    t->size = block ? n / block * td_block_bytes(f) : n * td_dtype_bits(t->dtype) / 8;
    uint8_t *data = convert_keep(c, td_malloc_aligned(t->size + 64));
    convert_encode(f, data, x, n);
    t->data = data;
    if (c->opt.decoded && f != TD_FORMAT_F32) {
        float *values = convert_keep(c, td_malloc_aligned(n * sizeof *values + 64));
        if (block)
            td_block_row_f32(f, data, n, values);
        else if (!td_to_f32(values, t->dtype, data, n))
            convert_die("%s: no decoder", name);
        t->dtype = TD_DTYPE_F32;
        t->size = n * sizeof *values;
        t->data = (const uint8_t *)values;
    }
}

/* ---- names ---- */

typedef struct convert_pair {
    const char *published, *gguf;
} convert_pair;

static const convert_pair convert_gemma4[] = {
    {"embed_tokens.weight", "token_embd.weight"},
    {"lm_head.weight", "output.weight"},
    {"norm.weight", "output_norm.weight"},
    {"embed_tokens_per_layer.weight", "per_layer_token_embd.weight"},
    {"per_layer_model_projection.weight", "per_layer_model_proj.weight"},
    {"per_layer_projection_norm.weight", "per_layer_proj_norm.weight"},
    {"pre_projection.weight", "nextn.pre_projection.weight"},
    {"post_projection.weight", "nextn.post_projection.weight"},
    {"*input_layernorm.weight", "attn_norm.weight"},
    {"*self_attn.q_proj.weight", "attn_q.weight"},
    {"*self_attn.k_proj.weight", "attn_k.weight"},
    {"*self_attn.v_proj.weight", "attn_v.weight"},
    {"*self_attn.o_proj.weight", "attn_output.weight"},
    {"*self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"*self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"*post_attention_layernorm.weight", "post_attention_norm.weight"},
    {"*pre_feedforward_layernorm.weight", "ffn_norm.weight"},
    {"*post_feedforward_layernorm.weight", "post_ffw_norm.weight"},
    {"*mlp.gate_proj.weight", "ffn_gate.weight"},
    {"*mlp.up_proj.weight", "ffn_up.weight"},
    {"*mlp.down_proj.weight", "ffn_down.weight"},
    {"*layer_scalar", "layer_output_scale.weight"},
    {"*per_layer_input_gate.weight", "inp_gate.weight"},
    {"*per_layer_projection.weight", "proj.weight"},
    {"*post_per_layer_input_norm.weight", "post_norm.weight"},
    {"*router.proj.weight", "ffn_gate_inp.weight"},
    {"*router.scale", "ffn_gate_inp.scale"},
    {"*router.per_expert_scale", "ffn_down_exps.scale"},
    {"*experts.gate_up_proj", "ffn_gate_up_exps.weight"},
    {"*experts.down_proj", "ffn_down_exps.weight"},
    {"*pre_feedforward_layernorm_2.weight", "pre_ffw_norm_2.weight"},
    {"*post_feedforward_layernorm_1.weight", "post_ffw_norm_1.weight"},
    {"*post_feedforward_layernorm_2.weight", "post_ffw_norm_2.weight"},
    {NULL, NULL},
};

/* Of an assistant, what early converters called otherwise. */
static const convert_pair convert_early[] = {
    {"pre_projection.weight", "mtp.pre_projection.weight"},
    {"post_projection.weight", "mtp.post_projection.weight"},
    {NULL, NULL},
};

static const convert_pair convert_qwen35[] = {
    {"embed_tokens.weight", "token_embd.weight"},
    {"lm_head.weight", "output.weight"},
    {"norm.weight", "output_norm.weight"},
    {"*input_layernorm.weight", "attn_norm.weight"},
    {"*post_attention_layernorm.weight", "post_attention_norm.weight"},
    {"*self_attn.q_proj.weight", "attn_q.weight"},
    {"*self_attn.k_proj.weight", "attn_k.weight"},
    {"*self_attn.v_proj.weight", "attn_v.weight"},
    {"*self_attn.o_proj.weight", "attn_output.weight"},
    {"*self_attn.q_norm.weight", "attn_q_norm.weight"},
    {"*self_attn.k_norm.weight", "attn_k_norm.weight"},
    {"*linear_attn.in_proj_qkv.weight", "attn_qkv.weight"},
    {"*linear_attn.in_proj_z.weight", "attn_gate.weight"},
    {"*linear_attn.in_proj_a.weight", "ssm_alpha.weight"},
    {"*linear_attn.in_proj_b.weight", "ssm_beta.weight"},
    {"*linear_attn.conv1d.weight", "ssm_conv1d.weight"},
    {"*linear_attn.A_log", "ssm_a"},
    {"*linear_attn.dt_bias", "ssm_dt.bias"},
    {"*linear_attn.norm.weight", "ssm_norm.weight"},
    {"*linear_attn.out_proj.weight", "ssm_out.weight"},
    {"*mlp.gate_proj.weight", "ffn_gate.weight"},
    {"*mlp.up_proj.weight", "ffn_up.weight"},
    {"*mlp.down_proj.weight", "ffn_down.weight"},
    {"*mlp.gate.weight", "ffn_gate_inp.weight"},
    {"*mlp.shared_expert.gate_proj.weight", "ffn_gate_shexp.weight"},
    {"*mlp.shared_expert.up_proj.weight", "ffn_up_shexp.weight"},
    {"*mlp.shared_expert.down_proj.weight", "ffn_down_shexp.weight"},
    {"*mlp.shared_expert_gate.weight", "ffn_gate_inp_shexp.weight"},
    {"mtp.fc.weight", "nextn.eh_proj.weight"},
    {"mtp.pre_fc_norm_embedding.weight", "nextn.enorm.weight"},
    {"mtp.pre_fc_norm_hidden.weight", "nextn.hnorm.weight"},
    {"mtp.norm.weight", "nextn.shared_head_norm.weight"},
    {NULL, NULL},
};

/* The GGUF name of a plain published one; false: none. Layers of the draft head come after the trunk's. */
static inline bool convert_name(const gguf_conversion *c, const char *plain, char out[160]) {
    unsigned layer = 0;
    int used = 0;
    const char *rest = NULL;
    if (sscanf(plain, "layers.%u.%n", &layer, &used) == 1 && used)
        rest = plain + used;
    else if (sscanf(plain, "mtp.layers.%u.%n", &layer, &used) == 1 && used) {
        rest = plain + used;
        layer += c->n_layers;
    }
    for (const convert_pair *p = convert_early; p->published && c->opt.early; p++)
        if (strcmp(p->published, plain) == 0) {
            snprintf(out, 160, "%s", p->gguf);
            return true;
        }
    for (const convert_pair *p = c->qwen ? convert_qwen35 : convert_gemma4; p->published; p++) {
        if (rest && p->published[0] == '*' && strcmp(p->published + 1, rest) == 0) {
            snprintf(out, 160, "blk.%u.%s", layer, p->gguf);
            return true;
        }
        if (!rest && strcmp(p->published, plain) == 0) {
            bool nextn = strncmp(plain, "mtp.", 4) == 0;
            snprintf(out, 160, nextn ? "blk.%2$u.%1$s" : "%1$s", p->gguf, c->n_layers);
            return true;
        }
    }
    return false;
}

/* ---- Qwen's value heads ---- */

/* Blocks of `width` floats: new head j*n_k + k is old head k*r + j. */
static inline void convert_tile(const gguf_conversion *c, float *x, size_t width) {
    const uint32_t r = c->n_v / c->n_k;
    float *old = td_malloc_aligned((size_t)c->n_v * width * sizeof *old);
    if (!old)
        convert_die("out of memory");
    memcpy(old, x, (size_t)c->n_v * width * sizeof *old);
    for (uint32_t k = 0; k < c->n_k; k++)
        for (uint32_t j = 0; j < r; j++)
            memcpy(x + (size_t)(j * c->n_k + k) * width, old + (size_t)(k * r + j) * width, width * sizeof *x);
    td_free_aligned(old);
}

static inline void convert_qwen_values(const gguf_conversion *c, const char *plain, float *x, int *n_dims,
                                       uint64_t *dims) {
    const size_t keys = 2 * (size_t)c->n_k * c->dk, row = (size_t)dims[*n_dims - 1];
    const bool norm = convert_ends(plain, "norm.weight") || strstr(plain, "pre_fc_norm"); /* enorm and hnorm there */
    if (norm && !convert_ends(plain, "linear_attn.norm.weight")) {
        for (size_t i = 0; i < dims[0] && c->raw; i++)
            x[i] += 1.0f;
    } else if (convert_ends(plain, "linear_attn.in_proj_qkv.weight")) {
        convert_tile(c, x + keys * row, c->dv * row);
    } else if (convert_ends(plain, "linear_attn.in_proj_z.weight")) {
        convert_tile(c, x, c->dv * row);
    } else if (convert_ends(plain, "linear_attn.in_proj_a.weight") ||
               convert_ends(plain, "linear_attn.in_proj_b.weight")) {
        convert_tile(c, x, row);
    } else if (convert_ends(plain, "linear_attn.conv1d.weight")) {
        const size_t kernel = (size_t)(dims[1] * dims[2]);
        convert_tile(c, x + keys * kernel, c->dv * kernel);
        dims[1] = kernel;
        *n_dims = 2;
    } else if (convert_ends(plain, "linear_attn.A_log")) {
        for (size_t i = 0; i < dims[0]; i++)
            x[i] = -(float)exp((double)x[i]);
        convert_tile(c, x, 1);
    } else if (convert_ends(plain, "linear_attn.dt_bias")) {
        convert_tile(c, x, 1);
    } else if (convert_ends(plain, "linear_attn.out_proj.weight")) {
        for (uint64_t i = 0; i < dims[0]; i++)
            convert_tile(c, x + i * row, c->dv);
    } else if (convert_ends(plain, "mlp.shared_expert_gate.weight")) {
        dims[0] = dims[1];
        *n_dims = 1;
    }
}

/* Experts of Qwen: fused gate and up become two stacks, experts one by one become a stack. True: it was one of them. */
static inline bool convert_qwen_experts(gguf_conversion *c, const char *plain) {
    static const char *const parts[] = {"gate_proj", "up_proj", "down_proj"};
    static const char *const names[] = {"ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"};
    unsigned layer;
    int used = 0;
    uint64_t dims[4] = {0};
    int n_dims = 0;
    char name[200];
    bool mtp = strncmp(plain, "mtp.", 4) == 0;
    const char *p = mtp ? plain + 4 : plain;
    if (sscanf(p, "layers.%u.mlp.experts.%n", &layer, &used) != 1 || !used)
        return false;
    const unsigned block = mtp ? c->n_layers + layer : layer;
    const char *prefix = mtp ? "mtp." : "";
    if (strcmp(p + used, "gate_up_proj") == 0) {
        float *x = convert_load(c, plain, dims, &n_dims);
        const size_t half = (size_t)(dims[1] / 2 * dims[2]), n = (size_t)dims[0];
        float *split = convert_keep(c, td_malloc_aligned(n * half * sizeof *split + 64));
        dims[1] /= 2;
        for (int g = 0; g < 2; g++) {
            for (size_t e = 0; e < n; e++)
                memcpy(split + e * half, x + (2 * e + (size_t)g) * half, half * sizeof *x);
            snprintf(name, sizeof name, "blk.%u.%s.weight", block, names[g]);
            convert_put(c, name, split, 3, dims);
        }
    } else if (strcmp(p + used, "down_proj") == 0) {
        float *x = convert_load(c, plain, dims, &n_dims);
        snprintf(name, sizeof name, "blk.%u.ffn_down_exps.weight", block);
        convert_put(c, name, x, 3, dims);
    } else if (strncmp(p + used, "0.", 2) == 0) { /* one by one, when the first comes by */
        const uint32_t n = convert_int(c, "num_experts", 0);
        for (int g = 0; g < 3; g++) {
            if (strncmp(p + used + 2, parts[g], strlen(parts[g])) != 0)
                continue;
            float *stack = NULL;
            size_t one = 0;
            for (uint32_t e = 0; e < n; e++) {
                snprintf(name, sizeof name, "%slayers.%u.mlp.experts.%u.%s.weight", prefix, layer, e, parts[g]);
                float *x = convert_load(c, name, dims, &n_dims);
                one = (size_t)(dims[0] * dims[1]);
                if (!stack)
                    stack = convert_keep(c, td_malloc_aligned(n * one * sizeof *stack + 64));
                memcpy(stack + e * one, x, one * sizeof *x);
            }
            const uint64_t stacked[3] = {n, dims[0], dims[1]};
            snprintf(name, sizeof name, "blk.%u.%s.weight", block, names[g]);
            convert_put(c, name, stack, 3, stacked);
        }
    }
    return true;
}

/* Centroids as any matrix, the ordering as 32-bit numbers. */
static inline void convert_cluster(gguf_conversion *c, const char *plain) {
    uint64_t dims[4] = {0};
    int n_dims = 0;
    if (!convert_ends(plain, "token_ordering")) {
        float *x = convert_load(c, plain, dims, &n_dims);
        convert_put(c, c->opt.early ? "mtp.centroids.weight" : "masked_embd_centroids.weight", x, n_dims, dims);
        return;
    }
    const td_tensor *t = td_checkpoint_find(c->ck, plain);
    if (t->dtype != TD_DTYPE_I64 || t->n_dims != 1)
        convert_die("%s is %s", plain, td_dtype_name(t->dtype));
    const size_t n = (size_t)t->dim[0];
    int32_t *order = convert_keep(c, td_malloc_aligned(n * sizeof *order + 64));
    for (size_t i = 0; i < n; i++) {
        int64_t id;
        memcpy(&id, t->data + i * 8, 8);
        order[i] = (int32_t)id;
    }
    c->tensor[c->n++] = (td_tensor){.name = c->opt.early ? "mtp.token_ordering.weight" : "masked_embd_ordering",
                                    .dtype = TD_DTYPE_I32,
                                    .n_dims = 1,
                                    .dim = {n},
                                    .data = (const uint8_t *)order,
                                    .size = n * sizeof *order};
}

/* Whether a tensor goes into the file. */
static inline bool convert_wants(const gguf_conversion *c, const char *plain) {
    const bool head = strncmp(plain, "mtp.", 4) == 0;
    if (c->opt.no_head_norm && strcmp(plain, "mtp.norm.weight") == 0)
        return false;
    if (c->opt.only_heads && !head)
        return strncmp(plain, "layers.", 7) != 0;
    return !(c->opt.no_heads && head);
}

/* Tables for the draft layer, made of the trunk's. */
static inline void convert_own_tables(gguf_conversion *c) {
    uint64_t dims[4] = {0};
    int n_dims = 0;
    char name[64];
    const char *head = td_checkpoint_find(c->ck, "lm_head.weight") ? "lm_head.weight" : "embed_tokens.weight";
    float *x = convert_load(c, "embed_tokens.weight", dims, &n_dims), *h = convert_load(c, head, dims, &n_dims);
    const size_t n = (size_t)dims[0], d = (size_t)dims[1];
    float *turned = convert_keep(c, td_malloc_aligned(n * d * sizeof *turned + 64));
    for (size_t i = 0; i < n; i++)
        memcpy(turned + i * d, x + (n - 1 - i) * d, d * sizeof *x);
    for (size_t i = 0; i < n * d; i++)
        h[i] *= 2;
    snprintf(name, sizeof name, "blk.%u.nextn.embed_tokens.weight", c->n_layers);
    convert_put(c, name, turned, 2, dims);
    snprintf(name, sizeof name, "blk.%u.nextn.shared_head_head.weight", c->n_layers);
    convert_put(c, name, h, 2, dims);
}

static inline void convert_tensors(gguf_conversion *c) {
    for (size_t i = 0; i < td_checkpoint_n_tensors(c->ck); i++) {
        const char *full = td_checkpoint_tensor_at(c->ck, i)->name, *plain = td_model_plain_name(full);
        char name[160];
        uint64_t dims[4] = {0};
        int n_dims = 0;
        if (convert_ends(plain, ".scales") || convert_ends(plain, ".biases") || !convert_wants(c, plain))
            continue;
        if (strstr(plain, "masked_embedding")) {
            if (c->opt.clusters)
                convert_cluster(c, plain);
            continue;
        }
        if (c->qwen && convert_qwen_experts(c, plain))
            continue;
        if (!convert_name(c, plain, name))
            convert_die("no GGUF name for %s", full);
        float *x = convert_load(c, plain, dims, &n_dims);
        if (c->qwen)
            convert_qwen_values(c, plain, x, &n_dims, dims);
        convert_put(c, name, x, n_dims, dims);
    }
    if (c->opt.own_tables)
        convert_own_tables(c);
}

/* ---- metadata ---- */

static inline uint32_t convert_of_layer(const gguf_conversion *c, uint32_t i, const char *key, uint32_t otherwise) {
    char index[16];
    snprintf(index, sizeof index, "%u", i);
    const json_t *o = json_object_get(json_object_get(c->text, "per_layer_config"), index);
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) ? (uint32_t)json_integer_value(v) : otherwise;
}

static inline bool convert_is_sliding(const gguf_conversion *c, uint32_t i) {
    const char *t = json_string_value(json_array_get(json_object_get(c->text, "layer_types"), i));
    return t && strcmp(t, "sliding_attention") == 0;
}

static inline void convert_gemma_metadata(gguf_conversion *c) {
    uint32_t kv[256], ff[256], n = c->n_layers, shared = convert_int(c, "num_kv_shared_layers", 0);
    uint8_t sliding[256];
    uint32_t head_dim = convert_int(c, "head_dim", 0), full_dim = convert_int(c, "global_head_dim", head_dim);
    const bool k_is_v = json_is_true(convert_field(c, "attention_k_eq_v"));
    const bool wide = json_is_true(convert_field(c, "use_double_wide_mlp"));
    for (uint32_t i = 0; i < n; i++) {
        uint32_t base = convert_int(c, "num_key_value_heads", 1);
        sliding[i] = convert_is_sliding(c, i);
        if (!sliding[i] && k_is_v)
            base = convert_int(c, "num_global_key_value_heads", base);
        kv[i] = convert_of_layer(c, i, "num_key_value_heads", base);
        if (!sliding[i])
            full_dim = convert_of_layer(c, i, "head_dim", full_dim);
        ff[i] = convert_int(c, "intermediate_size", 0) * (wide && !c->assistant && i >= n - shared ? 2 : 1);
    }
    const json_t *rope = json_object_get(c->text, "rope_parameters");
    const json_t *full = json_object_get(rope, "full_attention"), *local = json_object_get(rope, "sliding_attention");
    convert_put_u32(c, "attention.key_length", full_dim);
    convert_put_u32(c, "attention.value_length", full_dim);
    convert_put_u32(c, "attention.key_length_swa", head_dim);
    convert_put_u32(c, "attention.value_length_swa", head_dim);
    td_gguf_put_array(&c->w, convert_key(c, "attention.head_count_kv"), TD_GGUF_U32, kv, n);
    td_gguf_put_array(&c->w, convert_key(c, "feed_forward_length"), TD_GGUF_U32, ff, n);
    td_gguf_put_array(&c->w, convert_key(c, "attention.sliding_window_pattern"), TD_GGUF_BOOL, sliding, n);
    convert_put_u32(c, "attention.sliding_window", convert_int(c, "sliding_window", 0));
    convert_put_u32(c, "attention.shared_kv_layers", c->assistant ? n : shared);
    convert_put_u32(c, "embedding_length_per_layer_input", convert_int(c, "hidden_size_per_layer_input", 0));
    convert_put_f32(c, "rope.freq_base", convert_real(full, "rope_theta", 1e6));
    convert_put_f32(c, "rope.freq_base_swa", convert_real(local, "rope_theta", 1e4));
    convert_put_u32(c, "rope.dimension_count", full_dim);
    convert_put_u32(c, "rope.dimension_count_swa", head_dim);
    if (json_is_number(convert_field(c, "final_logit_softcapping")))
        convert_put_f32(c, "final_logit_softcapping", json_number_value(convert_field(c, "final_logit_softcapping")));
    if (json_is_true(convert_field(c, "enable_moe_block"))) {
        convert_put_u32(c, "expert_count", convert_int(c, "num_experts", 0));
        convert_put_u32(c, "expert_used_count", convert_int(c, "top_k_experts", 0));
        convert_put_u32(c, "expert_feed_forward_length", convert_int(c, "moe_intermediate_size", 0));
    }
    if (c->assistant) {
        const uint32_t width = (uint32_t)convert_real(c->root, "backbone_hidden_size", 0);
        convert_put_u32(c, c->opt.early ? "n_embd_backbone" : "embedding_length_out", width);
        if (!c->opt.early)
            convert_put_u32(c, "nextn_predict_layers", n);
        if (c->opt.clusters) {
            convert_put_u32(c, "n_centroids", convert_int(c, "num_centroids", 0));
            convert_put_u32(c, "centroid_top_k", convert_int(c, "centroid_intermediate_top_k", 0));
        }
    }
    float *factors = convert_keep(c, td_malloc_aligned(full_dim * sizeof *factors));
    const uint32_t turning = (uint32_t)(full_dim * convert_real(full, "partial_rotary_factor", 1) / 2);
    for (uint32_t i = 0; i < full_dim / 2; i++)
        factors[i] = i < turning ? 1.0f : 1e30f;
    convert_put(c, "rope_freqs.weight", factors, 1, (const uint64_t[]){full_dim / 2});
}

static inline void convert_qwen_metadata(gguf_conversion *c, uint32_t n_draft) {
    const uint32_t head_dim = convert_int(c, "head_dim", 0);
    const json_t *rope = json_object_get(c->text, "rope_parameters");
    const json_t *o = rope ? rope : c->text;
    const double partial = convert_real(o, "partial_rotary_factor", convert_real(c->text, "partial_rotary_factor", 1));
    const uint32_t turning = (uint32_t)(partial * head_dim);
    /* of the pairs that turn, the shares of time, height and width; text has one position in all three */
    const int32_t sections[4] = {(int32_t)(turning / 2 - turning / 6 * 2), (int32_t)turning / 6, (int32_t)turning / 6,
                                 0};
    convert_put_u32(c, "attention.head_count_kv", convert_int(c, "num_key_value_heads", 0));
    convert_put_u32(c, "attention.key_length", head_dim);
    convert_put_u32(c, "attention.value_length", head_dim);
    convert_put_f32(c, "rope.freq_base", convert_real(o, "rope_theta", 1e7));
    convert_put_u32(c, "rope.dimension_count", turning);
    td_gguf_put_array(&c->w, convert_key(c, "rope.dimension_sections"), TD_GGUF_I32, sections, 4);
    convert_put_u32(c, "ssm.conv_kernel", convert_int(c, "linear_conv_kernel_dim", 4));
    convert_put_u32(c, "ssm.state_size", c->dk);
    convert_put_u32(c, "ssm.group_count", c->n_k);
    convert_put_u32(c, "ssm.time_step_rank", c->n_v);
    convert_put_u32(c, "ssm.inner_size", c->n_v * c->dv);
    convert_put_u32(c, "full_attention_interval", convert_int(c, "full_attention_interval", 4));
    if (n_draft)
        convert_put_u32(c, "nextn_predict_layers", n_draft);
    if (convert_int(c, "num_experts", 0)) {
        convert_put_u32(c, "expert_count", convert_int(c, "num_experts", 0));
        convert_put_u32(c, "expert_used_count", convert_int(c, "num_experts_per_tok", 0));
        convert_put_u32(c, "expert_feed_forward_length", convert_int(c, "moe_intermediate_size", 0));
        convert_put_u32(c, "expert_shared_feed_forward_length", convert_int(c, "shared_expert_intermediate_size", 0));
    } else {
        convert_put_u32(c, "feed_forward_length", convert_int(c, "intermediate_size", 0));
    }
}

/* ---- the whole ---- */

static inline void convert_open(gguf_conversion *c, const char *dir) {
    td_error err;
    const char *where;
    if (td_checkpoint_open(&c->ck, dir, NULL, &err) != TD_OK)
        convert_die("%s", err.message);
    c->root = td_checkpoint_config(c->ck);
    c->text = td_model_text_config(c->ck, &where);
    const char *type = json_string_value(json_object_get(c->root, "model_type"));
    c->qwen = strncmp(type, "qwen3_5", 7) == 0;
    c->assistant = strstr(type, "assistant") != NULL;
    c->arch = c->qwen         ? (strstr(type, "moe") ? "qwen35moe" : "qwen35")
              : !c->assistant ? "gemma4"
              : c->opt.early  ? "gemma4_assistant"
                              : "gemma4-assistant";
    if (td_model_alias_plain_names(c->ck, &err) != TD_OK)
        convert_die("%s", err.message);
    c->n_layers = convert_int(c, "num_hidden_layers", 0);
    c->n_k = convert_int(c, "linear_num_key_heads", 1);
    c->n_v = convert_int(c, "linear_num_value_heads", 1);
    c->dk = convert_int(c, "linear_key_head_dim", 1);
    c->dv = convert_int(c, "linear_value_head_dim", 1);
    const td_tensor *conv = td_checkpoint_find(c->ck, "layers.0.linear_attn.conv1d.weight");
    c->raw = conv && conv->dim[conv->n_dims - 1] != 1;
}

/* Writes `dir` as the GGUF file `path`. */
static inline void gguf_convert_with(const char *dir, const char *path, const gguf_convert_options *opt) {
    gguf_conversion *c = td_calloc(1, sizeof *c);
    td_error err;
    if (!c)
        convert_die("out of memory");
    c->opt = *opt;
    convert_open(c, dir);
    td_gguf_writer_init(&c->w);
    const uint32_t n_draft = c->qwen && !opt->no_heads && td_checkpoint_find(c->ck, "mtp.fc.weight") ? 1 : 0;
    td_gguf_put_string(&c->w, "general.architecture", c->arch, strlen(c->arch));
    td_gguf_put_string(&c->w, "general.type", "model", 5);
    td_gguf_put_string(&c->w, "general.name", "tandem synthetic", 16);
    convert_put_u32(c, "block_count", c->n_layers + n_draft);
    convert_put_u32(c, "context_length", convert_int(c, "max_position_embeddings", 4096));
    convert_put_u32(c, "embedding_length", convert_int(c, "hidden_size", 0));
    convert_put_u32(c, "attention.head_count", convert_int(c, "num_attention_heads", 0));
    convert_put_f32(c, "attention.layer_norm_rms_epsilon", convert_real(c->text, "rms_norm_eps", 1e-6));
    if (c->qwen)
        convert_qwen_metadata(c, n_draft);
    else
        convert_gemma_metadata(c);
    convert_tensors(c);
    convert_tokenizer(&c->w, c->qwen, dir, convert_int(c, "vocab_size", 0));
    if (td_gguf_write(&c->w, path, c->tensor, c->n, &err) != TD_OK)
        convert_die("%s", err.message);
    for (size_t i = 0; i < c->n_owned; i++)
        td_free(c->owned[i]); /* td_free and td_free_aligned are one for blocks of this house */
    td_gguf_writer_free(&c->w);
    td_checkpoint_close(&c->ck);
    td_free(c);
}

static inline void gguf_convert_as(const char *dir, const char *path, td_format matrices, bool decoded) {
    gguf_convert_with(dir, path, &(gguf_convert_options){.matrices = matrices, .decoded = decoded});
}

static inline void gguf_convert(const char *dir, const char *path, td_format matrices) {
    gguf_convert_as(dir, path, matrices, false);
}

#endif
