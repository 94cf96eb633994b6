/* module_class.c - a list of patterns, tried in order. */
#include "engine/module_class.h"

#include <string.h>

#include "engine/affix.h"
#include "model/model.h"

const char *td_module_class_name(td_module_class c) {
    static const char *const names[] = {
#define TD_MODULE_CLASS_NAME(id, name) name,
        TD_MODULE_CLASS_LIST(TD_MODULE_CLASS_NAME)
#undef TD_MODULE_CLASS_NAME
    };
    return (unsigned)c < TD_MODULE_CLASS_COUNT ? names[c] : "?";
}

typedef enum where { PREFIX, WITHIN, SUFFIX } where;

typedef struct rule {
    where where;
    const char *text;
    td_module_class class;
} rule;

/* Towers first, since they have norms and MLPs of their own; norms before the modules they sit in. */
static const rule rules[] = {
    {PREFIX, "vision_tower.", TD_MODULE_TOWER},
    {PREFIX, "audio_tower.", TD_MODULE_TOWER},
    {PREFIX, "embed_vision.", TD_MODULE_TOWER},
    {PREFIX, "embed_audio.", TD_MODULE_TOWER},
    {PREFIX, "vision_embedder.", TD_MODULE_TOWER},
    {PREFIX, "multi_modal_projector.", TD_MODULE_TOWER},
    {PREFIX, "visual.", TD_MODULE_TOWER},
    {SUFFIX, "norm.weight", TD_MODULE_NORM},
    {SUFFIX, "layernorm_1.weight", TD_MODULE_NORM},
    {SUFFIX, "layernorm_2.weight", TD_MODULE_NORM},
    {WITHIN, "pre_fc_norm", TD_MODULE_NORM},
    {SUFFIX, ".layer_scalar", TD_MODULE_NORM},
    {SUFFIX, ".router.scale", TD_MODULE_NORM},
    {SUFFIX, ".per_expert_scale", TD_MODULE_NORM},
    {SUFFIX, ".A_log", TD_MODULE_NORM},
    {SUFFIX, ".dt_bias", TD_MODULE_NORM},
    {WITHIN, ".conv1d.", TD_MODULE_NORM},
    {PREFIX, "pre_projection.", TD_MODULE_DRAFT},
    {PREFIX, "post_projection.", TD_MODULE_DRAFT},
    {PREFIX, "masked_embedding.", TD_MODULE_DRAFT},
    {PREFIX, "mtp.", TD_MODULE_DRAFT},
    {PREFIX, "embed_tokens_per_layer.", TD_MODULE_LAYER_EMBEDDING},
    {PREFIX, "embed_tokens.", TD_MODULE_EMBEDDING},
    {PREFIX, "lm_head.", TD_MODULE_HEAD},
    {WITHIN, ".router.", TD_MODULE_ROUTER},
    {WITHIN, ".mlp.gate.", TD_MODULE_ROUTER},
    {WITHIN, ".shared_expert_gate.", TD_MODULE_ROUTER},
    {WITHIN, ".experts.", TD_MODULE_EXPERTS},
    {WITHIN, ".switch_mlp.", TD_MODULE_EXPERTS},
    {WITHIN, "per_layer_", TD_MODULE_LAYER_INPUT},
    {WITHIN, ".self_attn.", TD_MODULE_ATTENTION},
    {WITHIN, ".linear_attn.", TD_MODULE_DELTA},
    {WITHIN, ".mlp.", TD_MODULE_MLP},
};

static bool matches(const rule *r, const char *name) {
    switch (r->where) {
    case PREFIX:
        return td_begins_with(name, r->text);
    case WITHIN:
        return strstr(name, r->text) != NULL;
    case SUFFIX:
        return td_ends_with(name, r->text);
    }
    return false;
}

td_module_class td_module_class_of(const char *tensor) {
    const char *name = td_model_plain_name(tensor);
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (matches(&rules[i], name))
            return rules[i].class;
    return TD_MODULE_OTHER;
}
