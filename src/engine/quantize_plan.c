/* quantize_plan.c - see quantize_plan.h.
 *
 * Per family there is only a way of naming: whether a tensor is left out, what the others are called, and which fused
 * tensors are split. Which matrices are quantised, and how finely, is one rule for all. */
#include "engine/quantize_plan.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "engine/affix.h"
#include "model/families.h"

/* ---- families ---- */

typedef enum naming {
    NAMES_KEPT,     /* drafters: as published */
    NAMES_QWEN,     /* Qwen 3.5: as published, but for fused experts, which are split */
    NAMES_GEMMA,    /* text-only Gemma 4: names kept, experts split */
    NAMES_GEMMA_MM, /* a multimodal wrapper: the text modules get MLX's prefix */
} naming;

typedef struct source {
    const td_checkpoint *ck;
    const td_quantize_options *opt;
    naming naming;
    bool tied;
    uint32_t first_shared; /* layers from here on have no K/V of their own */
} source;

static td_status read_naming(source *s, td_error *err) {
    const json_t *root = td_checkpoint_config(s->ck);
    const char *type = json_string_value(json_object_get(root, "model_type"));
    if (type == NULL)
        return td_fail(err, TD_E_MODEL, "%s/config.json: no \"model_type\"", td_checkpoint_path(s->ck));
    if (td_family_is_assistant(type))
        s->naming = NAMES_KEPT;
    else if (td_begins_with(type, "qwen3_5"))
        s->naming = NAMES_QWEN;
    else if (strcmp(type, "gemma4_text") == 0 || strcmp(type, "gemma4_unified_text") == 0)
        s->naming = NAMES_GEMMA;
    else if (strcmp(type, "gemma4") == 0 || strcmp(type, "gemma4_unified") == 0)
        s->naming = NAMES_GEMMA_MM;
    else
        return td_fail(err, TD_E_UNSUPPORTED,
                       "%s/config.json: model_type \"%s\"; quantize knows gemma4 and gemma4_unified (with their _text "
                       "and _assistant forms), qwen3_5 and qwen3_5_moe",
                       td_checkpoint_path(s->ck), type);
    return TD_OK;
}

static td_status read_source(source *s, td_error *err) {
    if (td_checkpoint_gguf(s->ck))
        return td_fail(err, TD_E_UNSUPPORTED, "%s: a GGUF file; quantize reads safetensors checkpoints",
                       td_checkpoint_path(s->ck));
    TD_TRY(read_naming(s, err));
    const char *where;
    const json_t *text = td_model_text_config(s->ck, &where);
    const json_t *root = td_checkpoint_config(s->ck);
    if (json_object_get(root, "quantization") || json_object_get(root, "quantization_config"))
        return td_fail(err, TD_E_ARG, "%s: is quantised already", td_checkpoint_path(s->ck));
    s->first_shared = UINT32_MAX;
    if (s->naming == NAMES_GEMMA || s->naming == NAMES_GEMMA_MM) {
        uint32_t layers, shared;
        TD_TRY(td_json_u32(text, where, "num_hidden_layers", 1, 4096, &layers, err));
        TD_TRY(td_json_u32_or(text, where, "num_kv_shared_layers", 0, layers, 0, &shared, err));
        s->first_shared = layers - shared;
    }
    bool outer;
    TD_TRY(td_json_bool_or(root, "config.json", "tie_word_embeddings", s->first_shared != UINT32_MAX, &outer, err));
    return td_json_bool_or(text, where, "tie_word_embeddings", outer, &s->tied, err);
}

/* ---- what is left out ---- */

/* The number in "layers.N.", or UINT32_MAX. */
static uint32_t layer_of(const char *plain) {
    unsigned layer;
    return sscanf(plain, "layers.%u.", &layer) == 1 ? layer : UINT32_MAX;
}

static bool is_unused_kv(const source *s, const char *plain) {
    uint32_t layer = layer_of(plain);
    return layer != UINT32_MAX && layer >= s->first_shared &&
           (strstr(plain, ".k_proj.") || strstr(plain, ".v_proj.") || strstr(plain, ".k_norm."));
}

static bool is_left_out(const source *s, const char *plain) {
    return strstr(plain, "rotary_emb") || td_ends_with(plain, ".input_min") || td_ends_with(plain, ".input_max") ||
           td_ends_with(plain, ".output_min") || td_ends_with(plain, ".output_max") || is_unused_kv(s, plain) ||
           (s->tied && strcmp(plain, "lm_head.weight") == 0);
}

/* ---- what is quantised, and how ---- */

static bool is_float(td_dtype t) {
    return t == TD_DTYPE_F32 || t == TD_DTYPE_F16 || t == TD_DTYPE_BF16;
}

static bool is_quantizable(const td_quantize_item *it) {
    const td_tensor *t = it->source;
    if (!is_float(t->dtype) || strstr(t->name, "masked_embedding.") || it->params == 0)
        return false;
    if (it->class == TD_MODULE_NORM || it->class == TD_MODULE_OTHER || it->class == TD_MODULE_TOWER)
        return false;
    return t->n_dims == 2 || (t->n_dims == 3 && strstr(t->name, ".experts."));
}

static uint32_t bits_for(const td_quantize_options *opt, td_module_class class) {
    switch (class) {
    case TD_MODULE_EMBEDDING:
    case TD_MODULE_LAYER_EMBEDDING:
    case TD_MODULE_HEAD:
        return opt->embed_bits ? opt->embed_bits : opt->bits;
    case TD_MODULE_ATTENTION:
    case TD_MODULE_DELTA:
        return opt->attention_bits ? opt->attention_bits : opt->bits;
    case TD_MODULE_ROUTER:
    case TD_MODULE_LAYER_INPUT:
        return 8;
    default:
        return opt->bits;
    }
}

/* The group asked for, else the largest smaller one that divides the width; 0: none does. */
static uint32_t group_for(const td_quantize_options *opt, uint32_t n_in) {
    for (uint32_t group = opt->group; group >= 32; group /= 2)
        if (n_in % group == 0)
            return group;
    return 0;
}

static void choose_format(const source *s, td_quantize_item *it) {
    it->group = is_quantizable(it) ? group_for(s->opt, it->n_in) : 0;
    it->quantized = it->group != 0;
    it->bits = it->quantized ? bits_for(s->opt, it->class) : 0;
}

/* ---- names and shapes of items ---- */

/* The published name in the layout of the result; the part after the prefixes is `plain`, or what replaces it. */
static void full_name(const source *s, const char *published, const char *plain, td_buf *b) {
    size_t n_prefix = (size_t)(td_model_plain_name(published) - published);
    if (s->naming == NAMES_GEMMA_MM && td_begins_with(plain, "lm_head"))
        td_buf_puts(b, "language_model.");
    else if (s->naming == NAMES_GEMMA_MM && !td_begins_with(plain, "mtp."))
        td_buf_puts(b, "language_model.model.");
    else
        td_buf_append(b, published, n_prefix);
    td_buf_puts(b, plain);
}

/* [a, b] is one matrix, [e, a, b] a stack, anything else one row. Dimensions beyond 32 bits do not occur in a matrix
 * that fits a machine, and would not fit td_matrix. */
static td_status shape_of(td_quantize_item *it, td_error *err) {
    const td_tensor *t = it->source;
    for (int d = 0; d < t->n_dims; d++)
        if (t->dim[d] > UINT32_MAX)
            return td_fail(err, TD_E_SHAPE, "%s: dimension %d is %llu, at most 4294967295 is supported", t->name, d,
                           (unsigned long long)t->dim[d]);
    it->n_stack = it->source_rows = it->n_in = 1;
    it->params = 1;
    for (int d = 0; d < t->n_dims; d++)
        it->params *= t->dim[d];
    if (it->params > 0 && (t->n_dims == 2 || t->n_dims == 3)) {
        it->n_stack = t->n_dims == 3 ? (uint32_t)t->dim[0] : 1;
        it->source_rows = (uint32_t)t->dim[t->n_dims - 2];
        it->n_in = (uint32_t)t->dim[t->n_dims - 1];
    }
    it->n_out = it->source_rows;
    return TD_OK;
}

typedef enum part { FIRST_HALF, SECOND_HALF, WHOLE } part; /* of the rows of each matrix */

/* Adds an item called `plain` (after prefixes). */
static td_status add_item(td_quantize_plan *plan, const source *s, const td_tensor *t, const char *plain, part rows,
                          td_error *err) {
    if (plan->n_items == plan->capacity) {
        size_t capacity = plan->capacity ? 2 * plan->capacity : 256;
        td_quantize_item *grown = td_realloc(plan->items, capacity, sizeof *grown);
        if (grown == NULL)
            return td_fail(err, TD_E_NOMEM, "%s: out of memory", td_checkpoint_path(s->ck));
        plan->items = grown;
        plan->capacity = capacity;
    }
    td_quantize_item it = {.source = t, .class = td_module_class_of(t->name)};
    TD_TRY(shape_of(&it, err));
    if (rows != WHOLE) {
        it.n_out = it.source_rows / 2;
        it.row0 = rows == FIRST_HALF ? 0 : it.n_out;
        it.params /= 2;
    }
    choose_format(s, &it);
    td_buf b;
    td_buf_init(&b, TD_SAFETENSORS_MAX_NAME);
    full_name(s, t->name, plain, &b);
    it.name = td_buf_steal(&b);
    if (it.name == NULL)
        return td_fail(err, TD_E_NOMEM, "%s: no memory for the name of %s", td_checkpoint_path(s->ck), t->name);
    if (it.quantized && td_ends_with(it.name, ".weight"))
        it.name[strlen(it.name) - strlen(".weight")] = '\0';
    plan->items[plan->n_items++] = it;
    return TD_OK;
}

/* Fused experts: gate and up come apart, and every stack is called as MLX calls it. */
static td_status add_experts(td_quantize_plan *plan, const source *s, const td_tensor *t, const char *plain,
                             td_error *err) {
    char name[256];
    int n_layer = (int)(strstr(plain, ".experts.") - plain);
    const char *stack = s->naming == NAMES_QWEN ? "switch_mlp" : "experts.switch_glu";
    if (td_ends_with(plain, ".experts.down_proj")) {
        snprintf(name, sizeof name, "%.*s.%s.down_proj.weight", n_layer, plain, stack);
        return add_item(plan, s, t, name, WHOLE, err);
    }
    if (t->dim[1] % 2 != 0)
        return td_fail(err, TD_E_SHAPE, "%s: %llu rows, expected as many of gate as of up", t->name,
                       (unsigned long long)t->dim[1]);
    snprintf(name, sizeof name, "%.*s.%s.gate_proj.weight", n_layer, plain, stack);
    TD_TRY(add_item(plan, s, t, name, FIRST_HALF, err));
    snprintf(name, sizeof name, "%.*s.%s.up_proj.weight", n_layer, plain, stack);
    return add_item(plan, s, t, name, SECOND_HALF, err);
}

static td_status add_tensor(td_quantize_plan *plan, const source *s, const td_tensor *t, td_error *err) {
    const char *plain = td_model_plain_name(t->name);
    if (td_ends_with(t->name, ".scales"))
        return td_fail(err, TD_E_ARG, "%s: is quantised already (it has %s)", td_checkpoint_path(s->ck), t->name);
    bool tower = td_module_class_of(t->name) == TD_MODULE_TOWER;
    if (tower || is_left_out(s, plain)) {
        plan->towers_left_out = plan->towers_left_out || tower;
        plan->n_left_out++;
        return TD_OK;
    }
    bool fused =
        t->n_dims == 3 && (td_ends_with(plain, ".experts.gate_up_proj") || td_ends_with(plain, ".experts.down_proj"));
    if (fused && s->naming != NAMES_KEPT && strlen(plain) < 128)
        return add_experts(plan, s, t, plain, err);
    return add_item(plan, s, t, plain, WHOLE, err);
}

td_status td_quantize_plan_make(td_quantize_plan *plan, const td_checkpoint *ck, const td_quantize_options *opt,
                                td_error *err) {
    *plan = (td_quantize_plan){0};
    source s = {.ck = ck, .opt = opt};
    td_status st = read_source(&s, err);
    for (size_t i = 0; i < td_checkpoint_n_tensors(ck) && st == TD_OK; i++)
        st = add_tensor(plan, &s, td_checkpoint_tensor_at(ck, i), err);
    if (st != TD_OK)
        td_quantize_plan_free(plan);
    return st;
}

void td_quantize_plan_free(td_quantize_plan *plan) {
    for (size_t i = 0; i < plan->n_items; i++)
        td_free(plan->items[i].name);
    td_free(plan->items);
    *plan = (td_quantize_plan){0};
}

/* ---- the configuration ---- */

static json_t *format_object(uint32_t bits, uint32_t group) {
    return json_pack("{s:i, s:i, s:s}", "group_size", (int)group, "bits", (int)bits, "mode", "affine");
}

/* Modules that differ from the default carry an entry with all of its own values, as readers take it whole. */
static json_t *quantization_object(const td_quantize_plan *plan, const td_quantize_options *opt) {
    json_t *q = format_object(opt->bits, opt->group);
    for (size_t i = 0; i < plan->n_items && q; i++) {
        const td_quantize_item *it = &plan->items[i];
        if (!it->quantized || (it->bits == opt->bits && it->group == opt->group))
            continue;
        if (json_object_set_new(q, it->name, format_object(it->bits, it->group)) != 0) {
            json_decref(q);
            q = NULL;
        }
    }
    return q;
}

td_status td_quantize_plan_config(const td_quantize_plan *plan, const td_checkpoint *ck, const td_quantize_options *opt,
                                  json_t **out, td_error *err) {
    json_t *config = json_deep_copy(td_checkpoint_config(ck));
    json_t *q = quantization_object(plan, opt);
    bool ok = config && q && json_object_set(config, "quantization", q) == 0 &&
              json_object_set(config, "quantization_config", q) == 0;
    json_decref(q);
    if (!ok) {
        json_decref(config);
        *out = NULL;
        return td_fail(err, TD_E_NOMEM, "%s: out of memory for the configuration", td_checkpoint_path(ck));
    }
    *out = config;
    return TD_OK;
}
