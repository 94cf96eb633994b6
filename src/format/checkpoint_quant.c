/* checkpoint_quant.c - the matrix of a module: which tensors it is made of, and how they are to be read.
 *
 * Source: MLX's quantised checkpoints. A quantised module P has P.weight (U32 words of packed codes), P.scales and, for
 * the affine mode, P.biases. config.json's "quantization" object gives the global mode, group size and bits; a member
 * named like a module overrides them: false (float), true (the global values), or an object whose missing members take
 * the defaults of its mode, not the global values. A module without a member is quantised iff P.scales is there.
 *
 * The tensors have the last word: since the caller knows n_in, the shapes alone give bits = 32*words/n_in and group =
 * n_in/scales, and what config.json says must agree. Old conversions say nothing at all; then the shapes decide.
 * Quantisations of other tools are recognised by their tensor names and refused, never read as plain numbers. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "format/checkpoint_impl.h"
#include "format/json_scan.h"

#define NAME_SIZE (TD_SAFETENSORS_MAX_NAME + 64)

typedef struct settings {
    td_format format;
    uint32_t bits;
    uint32_t group;
} settings;

/* A module's tensors; scales and biases may be NULL. */
typedef struct module {
    const td_checkpoint *ck;
    const char *asked;    /* as the caller named it */
    char real[NAME_SIZE]; /* as the file names it */
    const td_tensor *weight, *scales, *biases;
    uint32_t n_stack; /* 0: two dimensions */
    uint32_t n_out, n_in;
} module;

/* ---- the module's tensors ---- */

static const td_tensor *find_joined(const td_checkpoint *ck, const char *module_name, const char *suffix) {
    char name[NAME_SIZE];
    if (snprintf(name, sizeof name, "%s%s", module_name, suffix) >= (int)sizeof name)
        return NULL;
    return td_checkpoint_find(ck, name);
}

static const td_tensor *find_weight(const td_checkpoint *ck, const char *module_name) {
    const td_tensor *t = find_joined(ck, module_name, ".weight");
    return t ? t : td_checkpoint_find(ck, module_name);
}

static const td_tensor *find_part(const module *m, const char *suffix) {
    const td_tensor *t = find_joined(m->ck, m->asked, suffix);
    return t ? t : find_joined(m->ck, m->real, suffix);
}

bool td_checkpoint_has_matrix(const td_checkpoint *ck, const char *module_name) {
    return find_weight(ck, module_name) != NULL;
}

/* Marks of quantisations that are not MLX's. */
static td_status refuse_foreign(const module *m, bool has_weight, td_error *err) {
    static const struct {
        const char *suffix, *what;
        bool beside_weight;
    } marks[] = {
        {".qweight", "AWQ or GPTQ", false},
        {".weight_packed", "compressed-tensors", false},
        {"_blocks", "blocked MXFP4", false},
        {".weight_scale_inv", "block-scaled FP8", true},
        {".weight_scale", "compressed-tensors or FP8", true},
        {".weight_scale_2", "NVFP4 with a global scale", true},
        {"_scale_inv", "block-scaled FP8", true},
    };
    for (size_t i = 0; i < sizeof marks / sizeof marks[0]; i++) {
        const td_tensor *t = marks[i].beside_weight == has_weight ? find_part(m, marks[i].suffix) : NULL;
        char called[TD_CALLED_SIZE];
        if (t)
            return td_fail(err, TD_E_UNSUPPORTED, "%s: module %s is quantised as %s (tensor \"%s%s\"), not supported",
                           m->ck->path, td_checkpoint_called(called, m->asked, NULL), marks[i].what, m->asked,
                           marks[i].suffix);
    }
    return TD_OK;
}

static td_status find_module(module *m, td_error *err) {
    char called[TD_CALLED_SIZE];
    m->weight = find_weight(m->ck, m->asked);
    snprintf(m->real, sizeof m->real, "%s", m->weight ? m->weight->name : m->asked);
    size_t n = strlen(m->real);
    if (m->weight && n > 7 && strcmp(m->real + n - 7, ".weight") == 0)
        m->real[n - 7] = '\0';
    TD_TRY(refuse_foreign(m, m->weight != NULL, err));
    if (!m->weight)
        return td_fail(err, TD_E_MODEL, "%s: no weight for module %s", m->ck->path,
                       td_checkpoint_called(called, m->asked, NULL));
    m->scales = find_part(m, ".scales");
    m->biases = find_part(m, ".biases");
    return TD_OK;
}

static td_status wrong(const module *m, td_error *err, const char *what) {
    char called[TD_CALLED_SIZE];
    return td_fail(err, TD_E_SHAPE, "%s: module %s: %s", m->ck->path,
                   td_checkpoint_called(called, m->asked, strcmp(m->asked, m->real) ? m->weight : NULL), what);
}

/* ---- config.json ---- */

static td_status read_settings(const json_t *o, const char *where, settings *out, td_error *err) {
    static const struct {
        const char *mode;
        settings defaults;
    } modes[] = {
        {"affine", {TD_FORMAT_AFFINE, 4, 64}},
        {"mxfp4", {TD_FORMAT_MXFP4, 4, 32}},
        {"mxfp8", {TD_FORMAT_MXFP8, 8, 32}},
        {"nvfp4", {TD_FORMAT_NVFP4, 4, 16}},
    };
    const json_t *mode = json_object_get(o, "mode");
    const char *name = mode && !json_is_null(mode) ? json_string_value(mode) : "affine";
    for (size_t i = 0; name && i < sizeof modes / sizeof modes[0]; i++) {
        if (strcmp(name, modes[i].mode) != 0)
            continue;
        *out = modes[i].defaults;
        TD_TRY(td_json_u32_or(o, where, "bits", 1, 32, out->bits, &out->bits, err));
        return td_json_u32_or(o, where, "group_size", 1, 65535, out->group, &out->group, err);
    }
    char shown[TD_SHOWN_SIZE];
    return td_fail(err, TD_E_MODEL, "%s: \"mode\" is %s, expected affine, mxfp4, mxfp8 or nvfp4", where,
                   name ? td_shown(shown, name, strlen(name)) : "not a string");
}

/* Settings of a quantization_config that another tool wrote and that MLX's loader understands; false: not one. */
static bool foreign_settings(const json_t *o, settings *out) {
    const char *method = json_string_value(json_object_get(o, "quant_method"));
    const char *format = json_string_value(json_object_get(o, "format"));
    if (method && strcmp(method, "mxfp4") == 0)
        *out = (settings){TD_FORMAT_MXFP4, 4, 32};
    else if (method && strcmp(method, "compressed-tensors") == 0)
        *out = format && strcmp(format, "nvfp4-pack-quantized") == 0 ? (settings){TD_FORMAT_NVFP4, 4, 16}
                                                                     : (settings){TD_FORMAT_AFFINE, 4, 32};
    else
        return false;
    return true;
}

/* The object that speaks about quantisation, or NULL. MLX writes the same object under both keys. */
static const json_t *quantization_object(const json_t *config) {
    static const char *const keys[] = {"quantization", "quantization_config"};
    const json_t *scopes[] = {config, json_object_get(config, "text_config")};
    for (size_t k = 0; k < 2; k++)
        for (size_t s = 0; s < 2; s++) {
            const json_t *o = json_object_get(scopes[s], keys[k]);
            if (json_is_object(o))
                return o;
        }
    return NULL;
}

static const char *without_wrappers(const char *name) {
    static const char *const wrappers[] = {"language_model.", "model."};
    for (size_t i = 0; i < 2;) {
        size_t n = strlen(wrappers[i]);
        if (strncmp(name, wrappers[i], n) == 0) {
            name += n;
            i = 0;
        } else {
            i++;
        }
    }
    return name;
}

/* The member for this module: under the file's path, the caller's, or one that differs in wrapper prefixes only. */
static td_status find_member(const module *m, const json_t *o, const json_t **out, td_error *err) {
    static const char *const prefixes[] = {"", "model.", "language_model.", "language_model.model.",
                                           "model.language_model."};
    *out = json_object_get(o, m->real);
    if (!*out)
        *out = json_object_get(o, m->asked);
    if (*out)
        return TD_OK;
    const char *core = without_wrappers(m->real);
    for (size_t i = 0; i < sizeof prefixes / sizeof prefixes[0]; i++) {
        char key[NAME_SIZE + 32];
        snprintf(key, sizeof key, "%s%s", prefixes[i], core);
        const json_t *v = json_object_get(o, key);
        if (v && *out && !json_equal(v, *out)) {
            char called[TD_CALLED_SIZE];
            return td_fail(err, TD_E_FORMAT, "%s: config.json quantization has two different entries for module %s",
                           m->ck->path, td_checkpoint_called(called, m->asked, NULL));
        }
        if (v)
            *out = v;
    }
    return TD_OK;
}

/* What config.json says. *quantised without *known: read the shapes. */
static td_status ask_config(const module *m, settings *out, bool *quantised, bool *known, td_error *err) {
    const json_t *o = quantization_object(m->ck->config), *member = NULL;
    char where[TD_SHOWN_SIZE + 40], shown[TD_SHOWN_SIZE];
    snprintf(where, sizeof where, "config.json quantization");
    *quantised = m->scales != NULL;
    *known = false;
    if (!o)
        return TD_OK;
    if (json_object_get(o, "quant_method")) {
        *known = foreign_settings(o, out);
        return TD_OK;
    }
    TD_TRY(find_member(m, o, &member, err));
    if (json_is_false(member)) {
        *quantised = false;
        return TD_OK;
    }
    if (member)
        *quantised = true;
    if (json_is_object(member)) {
        snprintf(where, sizeof where, "config.json quantization \"%s\"", td_shown(shown, m->real, strlen(m->real)));
        o = member;
    } else if (member && !json_is_true(member)) {
        return td_fail(err, TD_E_MODEL, "%s: config.json quantization: \"%s\" is neither true, false nor an object",
                       m->ck->path, td_shown(shown, m->real, strlen(m->real)));
    }
    *known = *quantised;
    if (!*known)
        return TD_OK;
    td_status st = read_settings(o, where, out, err);
    return st == TD_OK ? st : td_error_prefix(err, st, "%s", m->ck->path);
}

/* ---- shapes ---- */

/* Dimensions before the last: [n_stack,] n_out. */
static bool leading_dims_fit(const module *m, const td_tensor *t) {
    int n = m->n_stack ? 3 : 2;
    return t->n_dims == n && t->dim[n - 2] == m->n_out && (n == 2 || t->dim[0] == m->n_stack);
}

static td_status wrong_shape(const module *m, const td_tensor *t, uint64_t last, td_error *err) {
    char have[TD_SHAPE_TEXT_SIZE], want[TD_SHAPE_TEXT_SIZE], what[600], called[TD_SHOWN_SIZE];
    uint64_t dims[3] = {m->n_stack, m->n_out, last};
    int skip = m->n_stack ? 0 : 1;
    td_shape_text(3 - skip, dims + skip, want, sizeof want);
    snprintf(what, sizeof what, "tensor \"%s\" has shape %s, expected %s", td_shown(called, t->name, strlen(t->name)),
             td_shape_text(t->n_dims, t->dim, have, sizeof have), want);
    return wrong(m, err, what);
}

/* Bits and group size as the shapes have them. */
static td_status measure(const module *m, uint32_t *bits, uint32_t *group, td_error *err) {
    const td_tensor *w = m->weight, *s = m->scales;
    char what[200];
    if (w->dtype != TD_DTYPE_U32) {
        snprintf(what, sizeof what, "it has scales, but its weight is %s, expected packed U32",
                 td_dtype_name(w->dtype));
        return wrong(m, err, what);
    }
    if (!leading_dims_fit(m, w))
        return wrong_shape(m, w, w->n_dims ? w->dim[w->n_dims - 1] : 0, err);
    if (!leading_dims_fit(m, s))
        return wrong_shape(m, s, s->n_dims ? s->dim[s->n_dims - 1] : 0, err);
    uint64_t words = w->dim[w->n_dims - 1], groups = s->dim[s->n_dims - 1];
    if (groups == 0 || m->n_in % groups || words * 32 % m->n_in || words * 32 / m->n_in > 32) {
        snprintf(what, sizeof what,
                 "%" PRIu64 " words and %" PRIu64 " scales a row do not divide into %" PRIu32 " inputs", words, groups,
                 m->n_in);
        return wrong(m, err, what);
    }
    *bits = (uint32_t)(words * 32 / m->n_in);
    *group = (uint32_t)(m->n_in / groups);
    return TD_OK;
}

/* A checkpoint whose config is silent: biases mean affine, else width and group size tell the formats apart. */
static td_status guess(const module *m, uint32_t bits, uint32_t group, settings *out, td_error *err) {
    *out = (settings){TD_FORMAT_AFFINE, bits, group};
    if (m->biases)
        return TD_OK;
    if (bits == 4 && group == 32)
        out->format = TD_FORMAT_MXFP4;
    else if (bits == 8 && group == 32)
        out->format = TD_FORMAT_MXFP8;
    else if (bits == 4 && group == 16)
        out->format = TD_FORMAT_NVFP4;
    else
        return wrong(m, err, "it has scales without biases, and config.json does not say in which mode");
    return TD_OK;
}

static bool scales_type_fits(td_format format, td_dtype t) {
    switch (format) {
    case TD_FORMAT_AFFINE:
        return t == TD_DTYPE_F16 || t == TD_DTYPE_BF16 || t == TD_DTYPE_F32;
    case TD_FORMAT_MXFP4:
    case TD_FORMAT_MXFP8:
        return t == TD_DTYPE_U8 || t == TD_DTYPE_F8_E8M0;
    default:
        return t == TD_DTYPE_U8 || t == TD_DTYPE_F8_E4M3;
    }
}

/* Type of the scales, presence and likeness of the biases. */
static td_status check_parts(const module *m, const settings *q, td_error *err) {
    const td_tensor *s = m->scales, *b = m->biases;
    char what[200];
    if (!scales_type_fits(q->format, s->dtype)) {
        snprintf(what, sizeof what, "scales of type %s do not go with its mode", td_dtype_name(s->dtype));
        return wrong(m, err, what);
    }
    if (q->format != TD_FORMAT_AFFINE)
        return b ? wrong(m, err, "it has biases, which its mode does not use") : TD_OK;
    if (!b)
        return wrong(m, err, "it has scales but no biases, which the affine mode needs");
    if (b->dtype != s->dtype) {
        snprintf(what, sizeof what, "scales are %s, but biases are %s", td_dtype_name(s->dtype),
                 td_dtype_name(b->dtype));
        return wrong(m, err, what);
    }
    if (b->n_dims != s->n_dims || memcmp(b->dim, s->dim, sizeof b->dim) != 0)
        return wrong_shape(m, b, s->dim[s->n_dims - 1], err);
    return TD_OK;
}

/* A scale byte that is infinite, NaN or negative is a broken file. Reads the scales once, an eighth or less of the
 * module's bytes; affine scales are full floats and are left to whoever computes with them. */
static td_status check_scale_bytes(const module *m, td_format format, td_error *err) {
    const uint8_t limit = format == TD_FORMAT_NVFP4 ? 0x7F : 0xFF;
    const td_tensor *s = m->scales;
    if (format == TD_FORMAT_AFFINE)
        return TD_OK;
    for (size_t i = 0; i < s->size; i++)
        if (s->data[i] >= limit) {
            char called[TD_SHOWN_SIZE];
            return td_fail_at(err, TD_E_NUMERIC, (int64_t)i,
                              "%s: tensor \"%s\": byte %zu is 0x%02X, not a finite scale", m->ck->path,
                              td_shown(called, s->name, strlen(s->name)), i, s->data[i]);
        }
    return TD_OK;
}

/* ---- the two kinds of matrix ---- */

static td_status plain_matrix(const module *m, td_matrix *out, td_error *err) {
    static const struct {
        td_dtype dtype;
        td_format format;
    } kinds[] = {{TD_DTYPE_F32, TD_FORMAT_F32},
                 {TD_DTYPE_F16, TD_FORMAT_F16},
                 {TD_DTYPE_BF16, TD_FORMAT_BF16},
                 {TD_DTYPE_F8_E4M3, TD_FORMAT_F8_E4M3}};
    const td_tensor *w = m->weight;
    if (m->scales)
        return wrong(m, err, "config.json says it is not quantised, but it has scales");
    if (!leading_dims_fit(m, w) || w->dim[w->n_dims - 1] != m->n_in)
        return wrong_shape(m, w, m->n_in, err);
    const uint32_t n_stack = m->n_stack ? m->n_stack : 1;
    td_format format = w->dtype == TD_DTYPE_BLOCKS ? w->blocks : TD_FORMAT_COUNT;
    for (size_t i = 0; i < sizeof kinds / sizeof kinds[0]; i++)
        format = kinds[i].dtype == w->dtype ? kinds[i].format : format;
    if (format != TD_FORMAT_COUNT) {
        TD_TRY(td_matrix_layout(out, format, 0, 0, 0, n_stack, m->n_out, m->n_in, err));
        out->data = w->data;
        out->mapped = w->mapped;
        return TD_OK;
    }
    char what[160];
    snprintf(what, sizeof what, "its weight is %s without scales, expected F32, F16, BF16 or F8_E4M3",
             td_dtype_name(w->dtype));
    return wrong(m, err, what);
}

static td_status quantised_matrix(const module *m, settings *q, bool known, td_matrix *out, td_error *err) {
    uint32_t bits = 0, group = 0;
    if (!m->scales)
        return wrong(m, err, "config.json says it is quantised, but it has no scales");
    TD_TRY(measure(m, &bits, &group, err));
    if (!known)
        TD_TRY(guess(m, bits, group, q, err));
    if (bits != q->bits || group != q->group) {
        char what[200];
        snprintf(what, sizeof what,
                 "its shapes are those of %" PRIu32 " bits in groups of %" PRIu32 ", but config.json says %" PRIu32
                 " bits in groups of %" PRIu32,
                 bits, group, q->bits, q->group);
        return wrong(m, err, what);
    }
    TD_TRY(check_parts(m, q, err));
    TD_TRY(td_matrix_layout(out, q->format, bits, group, m->scales->dtype, m->n_stack ? m->n_stack : 1, m->n_out,
                            m->n_in, err));
    TD_TRY(check_scale_bytes(m, q->format, err));
    out->data = m->weight->data;
    out->mapped = m->weight->mapped;
    out->scales = m->scales->data;
    out->biases = m->biases ? m->biases->data : NULL;
    return TD_OK;
}

td_status td_checkpoint_matrix(const td_checkpoint *ck, const char *module_name, uint32_t n_stack, uint32_t n_out,
                               uint32_t n_in, td_matrix *out, td_error *err) {
    module m = {.ck = ck, .asked = module_name, .n_stack = n_stack, .n_out = n_out, .n_in = n_in};
    *out = (td_matrix){0};
    TD_TRY(find_module(&m, err));
    if (n_out == 0 || n_in == 0)
        return wrong(&m, err, "an empty matrix was asked for");
    settings q = {0};
    bool quantised, known;
    TD_TRY(ask_config(&m, &q, &quantised, &known, err));
    td_matrix result = {.name = m.weight->name};
    TD_TRY(quantised ? quantised_matrix(&m, &q, known, &result, err) : plain_matrix(&m, &result, err));
    *out = result;
    return TD_OK;
}
