/* qwen35_names.c - which tensors of a checkpoint the family knows, so that none is left out unseen. */
#include <stdio.h>
#include <string.h>

#include "model/names.h"
#include "model/qwen35.h"

static bool is_projection(const char *s) {
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj", NULL};
    return td_name_in(s, names);
}

static bool in_ffn(const char *rest, const td_qwen35_config *c) {
    uint32_t e;
    if (!c->n_experts)
        return is_projection(rest);
    if (strcmp(rest, "gate") == 0 || strcmp(rest, "shared_expert_gate") == 0)
        return true;
    if (td_name_starts(rest, "shared_expert."))
        return is_projection(rest + strlen("shared_expert."));
    if (td_name_starts(rest, "switch_mlp."))
        return is_projection(rest + strlen("switch_mlp."));
    if (!td_name_starts(rest, "experts."))
        return false;
    rest += strlen("experts.");
    if (strcmp(rest, "gate_up_proj") == 0 || strcmp(rest, "down_proj") == 0)
        return true;
    rest = td_name_after_number(rest, c->n_experts, &e);
    return rest && is_projection(rest);
}

static bool in_layer(const char *rest, const td_qwen35_config *c, bool full) {
    static const char *const always[] = {"input_layernorm", "post_attention_layernorm", NULL};
    static const char *const attention[] = {"self_attn.q_proj",
                                            "self_attn.k_proj",
                                            "self_attn.v_proj",
                                            "self_attn.o_proj",
                                            "self_attn.q_norm",
                                            "self_attn.k_norm",
                                            NULL};
    static const char *const delta[] = {"linear_attn.in_proj_qkv", "linear_attn.in_proj_z",
                                        "linear_attn.in_proj_a",   "linear_attn.in_proj_b",
                                        "linear_attn.out_proj",    "linear_attn.conv1d",
                                        "linear_attn.A_log",       "linear_attn.dt_bias",
                                        "linear_attn.norm",        NULL};
    if (c->gguf && strcmp(rest, "linear_attn.A") == 0)
        return !full;
    if (td_name_in(rest, always) || td_name_in(rest, full ? attention : delta))
        return true;
    return td_name_starts(rest, "mlp.") && in_ffn(rest + strlen("mlp."), c);
}

static td_name_class classify_head(const char *rest, const td_qwen35_config *c) {
    static const char *const ends[] = {
        "fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", "embed_tokens", "lm_head", NULL};
    if (td_name_in(rest, ends))
        return TD_NAME_USED;
    return td_name_starts(rest, "layers.0.") && in_layer(rest + strlen("layers.0."), c, true) ? TD_NAME_USED
                                                                                              : TD_NAME_UNKNOWN;
}

typedef struct family {
    const td_qwen35_config *c;
    bool mtp;
} family;

static td_name_class judge(const void *user, const char *module) {
    const family *f = user;
    const td_qwen35_config *c = f->c;
    uint32_t i;
    if (strcmp(module, "embed_tokens") == 0 || strcmp(module, "norm") == 0)
        return TD_NAME_USED;
    if (strcmp(module, "lm_head") == 0)
        return c->tied ? TD_NAME_SKIPPED : TD_NAME_USED;
    if (td_name_starts(module, "mtp."))
        return f->mtp ? classify_head(module + strlen("mtp."), c) : TD_NAME_SKIPPED;
    if (!td_name_starts(module, "layers."))
        return TD_NAME_UNKNOWN;
    const char *rest = td_name_after_number(module + strlen("layers."), c->n_layers, &i);
    return rest && in_layer(rest, c, c->full[i]) ? TD_NAME_USED : TD_NAME_UNKNOWN;
}

td_status td_qwen35_check_names(const td_checkpoint *ck, const td_qwen35_config *c, bool mtp, uint32_t *n_skipped,
                                td_error *err) {
    char model[128];
    snprintf(model, sizeof model, "a Qwen 3.5 model with this config.json (%u layers, %u of full attention%s)",
             c->n_layers, c->n_full, c->n_experts ? ", experts" : "");
    return td_names_check(ck, judge, &(family){c, mtp}, model, n_skipped, err);
}
