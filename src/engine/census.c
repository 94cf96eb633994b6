/* census.c - see census.h. */
#include "engine/census.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

#include "engine/affix.h"
#include "model/model.h"
#include "tensor/blocks.h"

/* The object in config.json that speaks for a module: its own entry, with or without wrapper prefixes, or the whole. */
static const json_t *settings_of(const td_checkpoint *ck, const char *module) {
    const json_t *config = td_checkpoint_config(ck), *q = json_object_get(config, "quantization");
    if (q == NULL)
        q = json_object_get(config, "quantization_config");
    const json_t *own = json_object_get(q, module);
    if (own == NULL)
        own = json_object_get(q, td_model_plain_name(module));
    return json_is_object(own) ? own : q;
}

static uint64_t number(const json_t *object, const char *key, uint64_t otherwise) {
    const json_t *v = json_object_get(object, key);
    return json_is_integer(v) && json_integer_value(v) > 0 ? (uint64_t)json_integer_value(v) : otherwise;
}

/* The name of the format and the number of weights of a packed matrix. */
static uint64_t describe_packed(const td_checkpoint *ck, const char *module, const td_tensor *weight,
                                const td_tensor *scales, char name[40]) {
    const json_t *q = settings_of(ck, module);
    const char *mode = json_string_value(json_object_get(q, "mode"));
    bool affine = mode == NULL || strcmp(mode, "affine") == 0;
    uint64_t group = number(q, "group_size", affine ? 64 : 32);
    uint64_t n_scales = scales->n_dims > 0 ? scales->dim[scales->n_dims - 1] : 0;
    uint64_t n_in = n_scales * group, words = weight->n_dims > 0 ? weight->dim[weight->n_dims - 1] : 0;
    uint64_t rows = 1;
    for (int d = 0; d + 1 < weight->n_dims; d++)
        rows *= weight->dim[d];
    uint64_t bits = n_in > 0 ? 32 * words / n_in : 0;
    if (affine)
        snprintf(name, 40, "affine %u-bit group %u", (unsigned)(bits & 0xFF), (unsigned)(group & 0xFFFF));
    else
        snprintf(name, 40, "%.30s", mode);
    return rows * n_in;
}

static void count_format(td_census_class *c, const char *name, uint64_t params) {
    uint32_t i = 0;
    while (i < c->n_formats && strcmp(c->format[i].name, name) != 0)
        i++;
    if (i == TD_CENSUS_FORMATS)
        i--;
    if (i == c->n_formats)
        snprintf(c->format[c->n_formats++].name, sizeof c->format[i].name, "%s", name);
    c->format[i].params += params;
}

static void sort_formats(td_census_class *c) {
    for (uint32_t i = 1; i < c->n_formats; i++)
        for (uint32_t j = i; j > 0 && c->format[j].params > c->format[j - 1].params; j--) {
            td_census_format swap = c->format[j];
            c->format[j] = c->format[j - 1];
            c->format[j - 1] = swap;
        }
}

/* The scales of a quantised weight tensor, or NULL. `module` receives its path. */
static const td_tensor *scales_of(const td_checkpoint *ck, const td_tensor *t, char module[512]) {
    char name[512 + 8];
    size_t n = strlen(t->name) - (td_ends_with(t->name, ".weight") ? 7 : 0);
    if (t->dtype != TD_DTYPE_U32 || n >= 512)
        return NULL;
    memcpy(module, t->name, n);
    module[n] = '\0';
    snprintf(name, sizeof name, "%s.scales", module);
    return td_checkpoint_find(ck, name);
}

/* Weights of a tensor of plain elements or of GGUF blocks, and what they are called. */
static uint64_t describe_plain(const td_tensor *t, char name[40]) {
    if (t->dtype == TD_DTYPE_BLOCKS) {
        const td_matrix m = {.format = t->blocks};
        td_matrix_describe(&m, name, 40);
        return t->size / td_block_bytes(t->blocks) * td_block_elements(t->blocks);
    }
    snprintf(name, 40, "%s", td_dtype_name(t->dtype));
    for (char *p = name; *p; p++)
        *p = (char)tolower((unsigned char)*p);
    return t->size * 8 / td_dtype_bits(t->dtype);
}

static void count_tensor(td_census *census, const td_checkpoint *ck, const td_tensor *t) {
    const char *known = td_checkpoint_known_name(ck, t);
    td_census_class *c = &census->by[td_module_class_of(known)];
    c->bytes += t->size;
    if (td_begins_with(td_model_plain_name(known), "mtp."))
        census->n_draft_tensors++;
    if (td_ends_with(t->name, ".scales") || td_ends_with(t->name, ".biases"))
        return;
    char name[40], module[512];
    const td_tensor *scales = scales_of(ck, t, module);
    uint64_t params = scales ? describe_packed(ck, module, t, scales, name) : describe_plain(t, name);
    c->params += params;
    c->n_modules++;
    count_format(c, name, params);
}

void td_census_take(td_census *census, const td_checkpoint *ck) {
    *census = (td_census){0};
    for (size_t i = 0; i < td_checkpoint_n_tensors(ck); i++)
        count_tensor(census, ck, td_checkpoint_tensor_at(ck, i));
    for (int k = 0; k < TD_MODULE_CLASS_COUNT; k++) {
        td_census_class *c = &census->by[k];
        sort_formats(c);
        if (k != TD_MODULE_TOWER) {
            census->params += c->params;
            census->bytes += c->bytes;
        }
    }
}
