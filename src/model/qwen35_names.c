/* qwen35_names.c - which tensors of a checkpoint the family knows, so that none is left out unseen. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/qwen35.h"

static bool starts(const char *s, const char *prefix) {
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static bool in_list(const char *s, const char *const *list) {
    for (; *list; list++)
        if (strcmp(s, *list) == 0)
            return true;
    return false;
}

/* Parts of a multimodal checkpoint that a text engine leaves alone, and tables that can be derived. */
static bool skipped_knowingly(const char *name) {
    return starts(name, "visual.") || starts(name, "vision_tower.") || strstr(name, "rotary_emb");
}

/* The module of a tensor: without ".weight", ".scales", ".biases". */
static void module_of(const char *name, char *buf, size_t size) {
    static const char *const suffixes[] = {".weight", ".scales", ".biases"};
    snprintf(buf, size, "%s", name);
    size_t n = strlen(buf);
    for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++) {
        size_t m = strlen(suffixes[i]);
        if (n > m && strcmp(buf + n - m, suffixes[i]) == 0) {
            buf[n - m] = '\0';
            return;
        }
    }
}

/* "<number>." at s; returns what follows, NULL when it is no number below `below`. */
static const char *after_number(const char *s, uint32_t below, uint32_t *out) {
    char *end;
    if (*s < '0' || *s > '9')
        return NULL;
    unsigned long v = strtoul(s, &end, 10);
    if (*end != '.' || v >= below)
        return NULL;
    *out = (uint32_t)v;
    return end + 1;
}

static bool is_projection(const char *s) {
    static const char *const names[] = {"gate_proj", "up_proj", "down_proj", NULL};
    return in_list(s, names);
}

static bool in_ffn(const char *rest, const td_qwen35_config *c) {
    uint32_t e;
    if (!c->n_experts)
        return is_projection(rest);
    if (strcmp(rest, "gate") == 0 || strcmp(rest, "shared_expert_gate") == 0)
        return true;
    if (starts(rest, "shared_expert."))
        return is_projection(rest + strlen("shared_expert."));
    if (starts(rest, "switch_mlp."))
        return is_projection(rest + strlen("switch_mlp."));
    if (!starts(rest, "experts."))
        return false;
    rest += strlen("experts.");
    if (strcmp(rest, "gate_up_proj") == 0 || strcmp(rest, "down_proj") == 0)
        return true;
    rest = after_number(rest, c->n_experts, &e);
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
    if (in_list(rest, always) || in_list(rest, full ? attention : delta))
        return true;
    return starts(rest, "mlp.") && in_ffn(rest + strlen("mlp."), c);
}

typedef enum name_class { NAME_USED, NAME_SKIPPED, NAME_UNKNOWN } name_class;

static name_class classify_head(const char *rest, const td_qwen35_config *c) {
    static const char *const ends[] = {"fc", "pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm", NULL};
    if (in_list(rest, ends))
        return NAME_USED;
    return starts(rest, "layers.0.") && in_layer(rest + strlen("layers.0."), c, true) ? NAME_USED : NAME_UNKNOWN;
}

static name_class classify(const char *module, const td_qwen35_config *c, bool mtp) {
    uint32_t i;
    if (strcmp(module, "embed_tokens") == 0 || strcmp(module, "norm") == 0)
        return NAME_USED;
    if (strcmp(module, "lm_head") == 0)
        return c->tied ? NAME_SKIPPED : NAME_USED;
    if (starts(module, "mtp."))
        return mtp ? classify_head(module + strlen("mtp."), c) : NAME_SKIPPED;
    if (!starts(module, "layers."))
        return NAME_UNKNOWN;
    const char *rest = after_number(module + strlen("layers."), c->n_layers, &i);
    return rest && in_layer(rest, c, c->full[i]) ? NAME_USED : NAME_UNKNOWN;
}

td_status td_qwen35_check_names(const td_checkpoint *ck, const td_qwen35_config *c, bool mtp, uint32_t *n_skipped,
                                td_error *err) {
    *n_skipped = 0;
    for (size_t i = 0; i < td_checkpoint_n_tensors(ck); i++) {
        const char *full = td_checkpoint_tensor_at(ck, i)->name;
        const char *name = td_model_plain_name(full);
        char module[256];
        module_of(name, module, sizeof module);
        name_class k = skipped_knowingly(name) ? NAME_SKIPPED : classify(module, c, mtp);
        if (k == NAME_UNKNOWN)
            return td_fail(err, TD_E_MODEL,
                           "%s: tensor %s is not part of a Qwen 3.5 model with this config.json (%u layers, %u of full "
                           "attention%s)",
                           td_checkpoint_path(ck), full, c->n_layers, c->n_full, c->n_experts ? ", experts" : "");
        *n_skipped += k == NAME_SKIPPED;
    }
    return TD_OK;
}
