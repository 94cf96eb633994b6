/* gguf_names.c - tables from GGUF's tensor names to those of the published checkpoints.
 *
 * Source: the tensor names of llama.cpp's converter for these architectures (mid 2026). A block's tensors share one
 * table an architecture; where a published name has no ".weight" the table says so. What GGUF changes in the values
 * (norms with their 1, the sign and exponent of A, tiled value heads) is told by the name where it can be
 * ("linear_attn.A" is minus the exponential of "linear_attn.A_log"), and by the container where it cannot. */
#include "format/gguf_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct pair {
    const char *gguf, *known;
} pair;

static const pair gemma4_model[] = {
    {"token_embd.weight", "embed_tokens.weight"},
    {"output.weight", "lm_head.weight"},
    {"output_norm.weight", "norm.weight"},
    {"rope_freqs.weight", "rotary_emb.factors"},
    {"per_layer_token_embd.weight", "embed_tokens_per_layer.weight"},
    {"per_layer_model_proj.weight", "per_layer_model_projection.weight"},
    {"per_layer_proj_norm.weight", "per_layer_projection_norm.weight"},
    {"nextn.pre_projection.weight", "pre_projection.weight"},
    {"nextn.post_projection.weight", "post_projection.weight"},
    {"masked_embd_centroids.weight", "masked_embedding.centroids.weight"},
    {"masked_embd_ordering", "masked_embedding.token_ordering"},
    {NULL, NULL},
};

/* What the converters of "gemma4_assistant" wrote instead. */
static const pair gemma4_early[] = {
    {"mtp.pre_projection.weight", "pre_projection.weight"},
    {"mtp.post_projection.weight", "post_projection.weight"},
    {"mtp.centroids.weight", "masked_embedding.centroids.weight"},
    {"mtp.token_ordering.weight", "masked_embedding.token_ordering"},
    {NULL, NULL},
};

static const pair gemma4_block[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"ffn_norm.weight", "pre_feedforward_layernorm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"post_ffw_norm.weight", "post_feedforward_layernorm.weight"},
    {"layer_output_scale.weight", "layer_scalar"},
    {"inp_gate.weight", "per_layer_input_gate.weight"},
    {"proj.weight", "per_layer_projection.weight"},
    {"post_norm.weight", "post_per_layer_input_norm.weight"},
    {"ffn_gate_inp.weight", "router.proj.weight"},
    {"ffn_gate_inp.scale", "router.scale"},
    {"ffn_down_exps.scale", "router.per_expert_scale"},
    {"ffn_gate_up_exps.weight", "experts.gate_up_proj.weight"},
    {"ffn_gate_exps.weight", "experts.switch_glu.gate_proj.weight"},
    {"ffn_up_exps.weight", "experts.switch_glu.up_proj.weight"},
    {"ffn_down_exps.weight", "experts.down_proj.weight"},
    {"pre_ffw_norm_2.weight", "pre_feedforward_layernorm_2.weight"},
    {"post_ffw_norm_1.weight", "post_feedforward_layernorm_1.weight"},
    {"post_ffw_norm_2.weight", "post_feedforward_layernorm_2.weight"},
    {NULL, NULL},
};

static const pair qwen35_model[] = {
    {"token_embd.weight", "embed_tokens.weight"},
    {"output.weight", "lm_head.weight"},
    {"output_norm.weight", "norm.weight"},
    {NULL, NULL},
};

static const pair qwen35_block[] = {
    {"attn_norm.weight", "input_layernorm.weight"},
    {"post_attention_norm.weight", "post_attention_layernorm.weight"},
    {"attn_q.weight", "self_attn.q_proj.weight"},
    {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},
    {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"},
    {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"attn_qkv.weight", "linear_attn.in_proj_qkv.weight"},
    {"attn_gate.weight", "linear_attn.in_proj_z.weight"},
    {"ssm_alpha.weight", "linear_attn.in_proj_a.weight"},
    {"ssm_beta.weight", "linear_attn.in_proj_b.weight"},
    {"ssm_conv1d.weight", "linear_attn.conv1d.weight"},
    {"ssm_a", "linear_attn.A"},
    {"ssm_dt.bias", "linear_attn.dt_bias"},
    {"ssm_norm.weight", "linear_attn.norm.weight"},
    {"ssm_out.weight", "linear_attn.out_proj.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},
    {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
    {"ffn_gate_inp.weight", "mlp.gate.weight"},
    {"ffn_gate_up_exps.weight", "mlp.experts.gate_up_proj.weight"},
    {"ffn_gate_exps.weight", "mlp.switch_mlp.gate_proj.weight"},
    {"ffn_up_exps.weight", "mlp.switch_mlp.up_proj.weight"},
    {"ffn_down_exps.weight", "mlp.switch_mlp.down_proj.weight"},
    {"ffn_gate_shexp.weight", "mlp.shared_expert.gate_proj.weight"},
    {"ffn_up_shexp.weight", "mlp.shared_expert.up_proj.weight"},
    {"ffn_down_shexp.weight", "mlp.shared_expert.down_proj.weight"},
    {"ffn_gate_inp_shexp.weight", "mlp.shared_expert_gate.weight"},
    {NULL, NULL},
};

/* Beside a draft layer's own tensors; these belong to the head as a whole. */
static const pair qwen35_nextn[] = {
    {"nextn.eh_proj.weight", "mtp.fc.weight"},
    {"nextn.enorm.weight", "mtp.pre_fc_norm_embedding.weight"},
    {"nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight"},
    {"nextn.shared_head_norm.weight", "mtp.norm.weight"},
    {"nextn.embed_tokens.weight", "mtp.embed_tokens.weight"},
    {"nextn.shared_head_head.weight", "mtp.lm_head.weight"},
    {NULL, NULL},
};

bool td_gguf_arch_parse(const char *name, size_t size, td_gguf_arch *out) {
    static const struct {
        const char *name;
        td_gguf_arch arch;
    } names[] = {{"gemma4", TD_GGUF_ARCH_GEMMA4},
                 {"gemma4-assistant", TD_GGUF_ARCH_GEMMA4_ASSISTANT},
                 {"gemma4_assistant", TD_GGUF_ARCH_GEMMA4_ASSISTANT},
                 {"qwen35", TD_GGUF_ARCH_QWEN35},
                 {"qwen35moe", TD_GGUF_ARCH_QWEN35MOE}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strlen(names[i].name) == size && memcmp(names[i].name, name, size) == 0) {
            *out = names[i].arch;
            return true;
        }
    return false;
}

static const char *find(const pair *table, const char *name) {
    for (; table->gguf; table++)
        if (strcmp(table->gguf, name) == 0)
            return table->known;
    return NULL;
}

/* The name of a tensor that belongs to no block. */
static const char *find_global(td_gguf_arch arch, const char *name) {
    const char *known =
        find(arch == TD_GGUF_ARCH_GEMMA4 || arch == TD_GGUF_ARCH_GEMMA4_ASSISTANT ? gemma4_model : qwen35_model, name);
    return known || arch != TD_GGUF_ARCH_GEMMA4_ASSISTANT ? known : find(gemma4_early, name);
}

/* "blk.<number>.<rest>": the rest and the number; NULL: not of this form. One spelling a number. */
static const char *after_block(const char *name, uint32_t *number) {
    char *end;
    if (strncmp(name, "blk.", 4) != 0 || name[4] < '0' || name[4] > '9' || (name[4] == '0' && name[5] != '.'))
        return NULL;
    unsigned long v = strtoul(name + 4, &end, 10);
    if (*end != '.' || v > 100000)
        return NULL;
    *number = (uint32_t)v;
    return end + 1;
}

bool td_gguf_known_name(td_gguf_arch arch, uint32_t n_trunk_layers, const char *name,
                        char out[TD_GGUF_KNOWN_NAME_SIZE]) {
    const bool gemma = arch == TD_GGUF_ARCH_GEMMA4 || arch == TD_GGUF_ARCH_GEMMA4_ASSISTANT;
    const pair *block = gemma ? gemma4_block : qwen35_block;
    uint32_t i;
    const char *rest = after_block(name, &i), *known;
    if (!rest) {
        known = find_global(arch, name);
        if (known)
            snprintf(out, TD_GGUF_KNOWN_NAME_SIZE, "%s", known);
        return known != NULL;
    }
    known = gemma || i < n_trunk_layers ? NULL : find(qwen35_nextn, rest);
    if (known && i == n_trunk_layers) {
        snprintf(out, TD_GGUF_KNOWN_NAME_SIZE, "%s", known);
        return true;
    }
    known = find(block, rest);
    if (!known)
        return false;
    if (gemma || i < n_trunk_layers)
        snprintf(out, TD_GGUF_KNOWN_NAME_SIZE, "layers.%u.%s", i, known);
    else
        snprintf(out, TD_GGUF_KNOWN_NAME_SIZE, "mtp.layers.%u.%s", i - n_trunk_layers, known);
    return true;
}
