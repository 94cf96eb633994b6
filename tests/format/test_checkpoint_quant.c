/* test_checkpoint_quant.c - quantised modules: what config.json may say, what the shapes say, and what happens when
 * they differ. The checkpoints are made here, with the quantiser and the writer. */
#include "format/support_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

enum { N_OUT = 3, N_IN = 128, N_STACK = 2, MAX_TENSORS = 8 };

/* A checkpoint being put together: tensors and the blocks their data lies in. */
typedef struct recipe {
    td_tensor tensors[MAX_TENSORS];
    size_t n;
    td_matrix blocks[MAX_TENSORS];
    size_t n_blocks;
    char names[MAX_TENSORS][80];
} recipe;

static float source[N_STACK * N_OUT * N_IN];

static td_matrix source_matrix(uint32_t n_stack) {
    for (size_t i = 0; i < sizeof source / sizeof source[0]; i++)
        source[i] = (float)((int)(i * 37 % 101) - 50) / 16;
    td_matrix m = {.name = "source"};
    td_error err;
    assert_int_equal(td_matrix_layout(&m, TD_FORMAT_F32, 0, 0, TD_DTYPE_F32, n_stack, N_OUT, N_IN, &err), TD_OK);
    m.data = (const uint8_t *)source;
    return m;
}

static td_tensor *add(recipe *r, const char *module, const char *part, td_dtype dtype, uint32_t n_stack, uint64_t last,
                      const void *data) {
    assert_true(r->n < MAX_TENSORS);
    td_tensor *t = &r->tensors[r->n];
    snprintf(r->names[r->n], sizeof r->names[0], "%s%s", module, part);
    *t = (td_tensor){.name = r->names[r->n++], .dtype = dtype, .data = data};
    if (n_stack)
        t->dim[t->n_dims++] = n_stack;
    t->dim[t->n_dims++] = N_OUT;
    t->dim[t->n_dims++] = last;
    t->size = (n_stack ? n_stack : 1) * N_OUT * (size_t)last * td_dtype_bits(dtype) / 8;
    return t;
}

/* The three tensors of an affine module. */
static const td_matrix *add_affine(recipe *r, const char *module, uint32_t n_stack, unsigned bits, unsigned group) {
    td_matrix *q = &r->blocks[r->n_blocks++], plain = source_matrix(n_stack ? n_stack : 1);
    td_error err;
    if (td_matrix_quantize(q, &plain, bits, group, TD_DTYPE_BF16, &err) != TD_OK)
        fail_msg("%s", err.message);
    add(r, module, ".weight", TD_DTYPE_U32, n_stack, (uint64_t)N_IN * bits / 32, q->data);
    add(r, module, ".scales", TD_DTYPE_BF16, n_stack, N_IN / group, q->scales);
    add(r, module, ".biases", TD_DTYPE_BF16, n_stack, N_IN / group, q->biases);
    return q;
}

static td_tensor *add_plain(recipe *r, const char *name) {
    (void)source_matrix(1);
    return add(r, name, "", TD_DTYPE_F32, 0, N_IN, source);
}

static td_checkpoint *open_recipe(const char *dir, const recipe *r, const char *config) {
    put_text(dir, "config.json", config);
    put_tensors(dir, "model.safetensors", r->tensors, r->n);
    return open_ok(dir);
}

static void drop(recipe *r) {
    for (size_t i = 0; i < r->n_blocks; i++)
        td_matrix_free(&r->blocks[i]);
    *r = (recipe){0};
}

/* Same description, and every row decodes to the same floats. */
static void assert_same_matrix(const td_matrix *a, const td_matrix *b) {
    char da[64], db[64];
    assert_string_equal(td_matrix_describe(a, da, sizeof da), td_matrix_describe(b, db, sizeof db));
    assert_int_equal(a->n_stack, b->n_stack);
    float x[N_IN], y[N_IN];
    for (size_t row = 0; row < (size_t)a->n_stack * N_OUT; row++) {
        td_matrix_row_f32(a, row, x);
        td_matrix_row_f32(b, row, y);
        assert_memory_equal(x, y, sizeof x);
    }
}

static td_status get(const td_checkpoint *ck, const char *module, uint32_t n_stack, td_matrix *m, td_error *err) {
    return td_checkpoint_matrix(ck, module, n_stack, N_OUT, N_IN, m, err);
}

/* ---- what opens ---- */

/* One module "model.layers.0.mlp.up_proj" of given bits and group, under a config: does it read, and as what? */
static const struct {
    unsigned bits, group;
    const char *config;
    const char *want; /* the error after "<dir>: ", or NULL */
    td_status status;
} affine_cases[] = {
    {4, 64, "{\"quantization\":{\"group_size\":64,\"bits\":4}}", NULL, 0},
    {4, 64, "{\"quantization\":{\"group_size\":64,\"bits\":4,\"mode\":\"affine\"}}", NULL, 0},
    {4, 64, "{\"quantization\":{}}", NULL, 0}, /* the mode's defaults */
    {8, 32, "{\"quantization\":{\"group_size\":32,\"bits\":8}}", NULL, 0},
    {2, 128, "{\"quantization\":{\"group_size\":128,\"bits\":2}}", NULL, 0},
    {3, 64, "{\"quantization\":{\"group_size\":64,\"bits\":3}}", NULL, 0},
    {5, 64, "{\"quantization\":{\"group_size\":64,\"bits\":5}}", NULL, 0},
    {6, 64, "{\"quantization\":{\"group_size\":64,\"bits\":6}}", NULL, 0},
    {4, 64, "{\"quantization_config\":{\"group_size\":64,\"bits\":4}}", NULL, 0},
    {4, 64, "{\"text_config\":{\"quantization\":{\"group_size\":64,\"bits\":4}}}", NULL, 0},
    {4, 64, "{\"text_config\":{\"quantization_config\":{\"group_size\":64,\"bits\":4}}}", NULL, 0},
    {4, 32, "{\"quantization_config\":{\"quant_method\":\"compressed-tensors\",\"format\":\"pack-quantized\"}}", NULL,
     0},
    {6, 128, "{\"quantization_config\":{\"quant_method\":\"awq\",\"bits\":4}}", NULL, 0}, /* another tool's: shapes */
    {4, 64, "{}", NULL, 0},                                                               /* nothing said: shapes */
    {8, 128, "{}", NULL, 0},
    {3, 32, "{}", NULL, 0},
    /* overrides */
    {8, 64,
     "{\"quantization\":{\"group_size\":64,\"bits\":4,\"model.layers.0.mlp.up_proj\":{\"group_size\":64,\"bits\":8}}}",
     NULL, 0},
    {4, 64, "{\"quantization\":{\"group_size\":32,\"bits\":8,\"model.layers.0.mlp.up_proj\":{}}}", NULL, 0},
    {8, 32, "{\"quantization\":{\"group_size\":32,\"bits\":8,\"model.layers.0.mlp.up_proj\":true}}", NULL, 0},
    {8, 64,
     "{\"quantization\":{\"mode\":\"mxfp4\",\"bits\":4,\"group_size\":32,\"model.layers.0.mlp.up_proj\":{\"bits\":8}}}",
     NULL, 0},
    {8, 64, "{\"quantization\":{\"bits\":4,\"layers.0.mlp.up_proj\":{\"bits\":8}}}", NULL, 0},
    {8, 64, "{\"quantization\":{\"bits\":4,\"language_model.layers.0.mlp.up_proj\":{\"bits\":8}}}", NULL, 0},
    {8, 64, "{\"quantization\":{\"bits\":4,\"language_model.model.layers.0.mlp.up_proj\":{\"bits\":8}}}", NULL, 0},
    {8, 64, "{\"quantization\":{\"bits\":4,\"model.language_model.layers.0.mlp.up_proj\":{\"bits\":8}}}", NULL, 0},
    {8, 64,
     "{\"quantization\":{\"bits\":4,\"model.layers.0.mlp.up_proj\":{\"bits\":8},\"layers.0.mlp.up_proj\":false}}", NULL,
     0}, /* the exact path wins */
    {8, 64,
     "{\"quantization\":{\"bits\":4,\"layers.0.mlp.up_proj\":{\"bits\":8},"
     "\"language_model.model.layers.0.mlp.up_proj\":{\"bits\":8}}}",
     NULL, 0}, /* two that agree */
    /* contradictions */
    {8, 64, "{\"quantization\":{\"group_size\":64,\"bits\":4}}",
     "module \"model.layers.0.mlp.up_proj\": its shapes are those of 8 bits in groups of 64, but config.json says 4 "
     "bits "
     "in groups of 64",
     TD_E_SHAPE},
    {4, 32, "{\"quantization\":{\"group_size\":64,\"bits\":4}}",
     "module \"model.layers.0.mlp.up_proj\": its shapes are those of 4 bits in groups of 32, but config.json says 4 "
     "bits "
     "in groups of 64",
     TD_E_SHAPE},
    {8, 64, "{\"quantization\":{\"bits\":8,\"model.layers.0.mlp.up_proj\":{}}}",
     "module \"model.layers.0.mlp.up_proj\": its shapes are those of 8 bits in groups of 64, but config.json says 4 "
     "bits "
     "in groups of 64",
     TD_E_SHAPE}, /* an object has its own values only */
    {4, 64, "{\"quantization\":{\"model.layers.0.mlp.up_proj\":false}}",
     "module \"model.layers.0.mlp.up_proj\": config.json says it is not quantised, but it has scales", TD_E_SHAPE},
    {4, 64, "{\"quantization\":{\"mode\":\"nvfp4\",\"group_size\":64}}",
     "module \"model.layers.0.mlp.up_proj\": scales of type BF16 do not go with its mode", TD_E_SHAPE},
    {8, 64,
     "{\"quantization\":{\"layers.0.mlp.up_proj\":{\"bits\":8},\"language_model.layers.0.mlp.up_proj\":{\"bits\":4}}}",
     "config.json quantization has two different entries for module \"model.layers.0.mlp.up_proj\"", TD_E_FORMAT},
    /* nonsense */
    {4, 64, "{\"quantization\":{\"mode\":\"q4\"}}",
     "config.json quantization: \"mode\" is q4, expected affine, mxfp4, mxfp8 or nvfp4", TD_E_MODEL},
    {4, 64, "{\"quantization\":{\"mode\":4}}",
     "config.json quantization: \"mode\" is not a string, expected affine, mxfp4, mxfp8 or nvfp4", TD_E_MODEL},
    {4, 64, "{\"quantization\":{\"bits\":\"4\"}}",
     "config.json quantization: \"bits\" is \"4\", expected an integer in [1, 32]", TD_E_MODEL},
    {4, 64, "{\"quantization\":{\"group_size\":0}}",
     "config.json quantization: \"group_size\" is 0, expected an integer in [1, 65535]", TD_E_MODEL},
    {4, 64, "{\"quantization\":{\"model.layers.0.mlp.up_proj\":{\"bits\":-1}}}",
     "config.json quantization \"model.layers.0.mlp.up_proj\": \"bits\" is -1, expected an integer in [1, 32]",
     TD_E_MODEL},
    {4, 64, "{\"quantization\":{\"model.layers.0.mlp.up_proj\":4}}",
     "config.json quantization: \"model.layers.0.mlp.up_proj\" is neither true, false nor an object", TD_E_MODEL},
};

static void affine_modules_follow_config_and_shapes(void **state) {
    const char *dir = *state;
    const char *module = "model.layers.0.mlp.up_proj";
    for (size_t i = 0; i < sizeof affine_cases / sizeof affine_cases[0]; i++)
        for (uint32_t n_stack = 0; n_stack <= N_STACK; n_stack += N_STACK) {
            recipe r = {0};
            const td_matrix *q = add_affine(&r, module, n_stack, affine_cases[i].bits, affine_cases[i].group);
            td_checkpoint *ck = open_recipe(dir, &r, affine_cases[i].config);
            td_matrix m;
            td_error err;
            td_status st = get(ck, module, n_stack, &m, &err);
            if (affine_cases[i].want) {
                char prefix[1100];
                snprintf(prefix, sizeof prefix, "%s: ", dir);
                assert_failed(st, affine_cases[i].status, &err, prefix, affine_cases[i].want);
                assert_null(m.data);
            } else {
                if (st != TD_OK)
                    fail_msg("%s: %s", affine_cases[i].config, err.message);
                assert_same_matrix(&m, q);
                assert_string_equal(m.name, "model.layers.0.mlp.up_proj.weight");
                assert_null(m.owned);
            }
            td_checkpoint_close(&ck);
            drop(&r);
        }
}

static void a_false_entry_leaves_a_float_module(void **state) {
    const char *dir = *state;
    recipe r = {0};
    const td_matrix *q = add_affine(&r, "a", 0, 4, 64);
    add_plain(&r, "router.weight");
    add_plain(&r, "plain.weight");
    add_plain(&r, "fused");
    td_checkpoint *ck = open_recipe(dir, &r, "{\"quantization\":{\"group_size\":64,\"bits\":4,\"router\":false}}");
    td_matrix m, plain = source_matrix(1);
    td_error err;
    static const char *const floats[] = {"router", "plain", "fused"};
    for (int i = 0; i < 3; i++) { /* by entry, by absent scales, by bare name */
        assert_true(td_checkpoint_has_matrix(ck, floats[i]));
        assert_int_equal(get(ck, floats[i], 0, &m, &err), TD_OK);
        assert_same_matrix(&m, &plain);
        assert_null(m.scales);
    }
    assert_int_equal(get(ck, "a", 0, &m, &err), TD_OK);
    assert_same_matrix(&m, q);
    assert_false(td_checkpoint_has_matrix(ck, "b"));
    td_checkpoint_close(&ck);
    drop(&r);
}

static void an_entry_needs_scales(void **state) {
    const char *dir = *state;
    static const char *const entries[] = {"true", "{\"bits\":4}"};
    for (int i = 0; i < 2; i++) {
        char config[100];
        recipe r = {0};
        td_matrix m;
        td_error err;
        add_plain(&r, "a.weight");
        snprintf(config, sizeof config, "{\"quantization\":{\"bits\":4,\"a\":%s}}", entries[i]);
        td_checkpoint *ck = open_recipe(dir, &r, config);
        assert_failed(get(ck, "a", 0, &m, &err), TD_E_SHAPE, &err, dir,
                      ": module \"a\": config.json says it is quantised, but it has no scales");
        td_checkpoint_close(&ck);
    }
}

/* A module asked for by an alias: config.json knows it under the file's path. */
static void aliases_reach_scales_and_entries(void **state) {
    const char *dir = *state;
    recipe r = {0};
    const td_matrix *q = add_affine(&r, "language_model.model.x", 0, 8, 64);
    td_checkpoint *ck = open_recipe(dir, &r, "{\"quantization\":{\"bits\":4,\"language_model.model.x\":{\"bits\":8}}}");
    td_matrix m;
    td_error err;
    assert_false(td_checkpoint_has_matrix(ck, "x"));
    assert_int_equal(td_checkpoint_alias(ck, "x.weight", "language_model.model.x.weight", &err), TD_OK);
    assert_true(td_checkpoint_has_matrix(ck, "x"));
    assert_int_equal(get(ck, "x", 0, &m, &err), TD_OK); /* scales by the file's name */
    assert_same_matrix(&m, q);
    assert_int_equal(td_checkpoint_alias(ck, "x.scales", "language_model.model.x.scales", &err), TD_OK);
    assert_int_equal(td_checkpoint_alias(ck, "x.biases", "language_model.model.x.biases", &err), TD_OK);
    assert_int_equal(get(ck, "x", 0, &m, &err), TD_OK);
    assert_same_matrix(&m, q);
    assert_failed(td_checkpoint_matrix(ck, "x", 0, N_OUT, N_IN * 3, &m, &err), TD_E_SHAPE, &err, dir,
                  ": module \"x\" (\"language_model.model.x.weight\"): 32 words and 2 scales a row do not divide into "
                  "384 inputs");
    td_checkpoint_close(&ck);
    drop(&r);
}

/* ---- shapes ---- */

static void broken_parts_are_named(void **state) {
    const char *dir = *state;
    enum { WEIGHT, SCALES, BIASES };
    static const struct {
        int part;
        td_dtype dtype; /* TD_DTYPE_COUNT: leave the tensor out */
        uint64_t rows, last;
        const char *want;
    } cases[] = {
        {WEIGHT, TD_DTYPE_I32, N_OUT, 16, "it has scales, but its weight is I32, expected packed U32"},
        {WEIGHT, TD_DTYPE_U32, 2, 16, "tensor \"a.weight\" has shape [2, 16], expected [3, 16]"},
        {WEIGHT, TD_DTYPE_U32, N_OUT, 15, "15 words and 2 scales a row do not divide into 128 inputs"},
        {WEIGHT, TD_DTYPE_U32, N_OUT, 0,
         "its shapes are those of 0 bits in groups of 64, but config.json says 4 bits in "
         "groups of 64"},
        {WEIGHT, TD_DTYPE_U32, N_OUT, 256, "256 words and 2 scales a row do not divide into 128 inputs"},
        {SCALES, TD_DTYPE_BF16, 2, 2, "tensor \"a.scales\" has shape [2, 2], expected [3, 2]"},
        {SCALES, TD_DTYPE_BF16, N_OUT, 3, "16 words and 3 scales a row do not divide into 128 inputs"},
        {SCALES, TD_DTYPE_BF16, N_OUT, 0, "16 words and 0 scales a row do not divide into 128 inputs"},
        {SCALES, TD_DTYPE_BF16, N_OUT, 4,
         "its shapes are those of 4 bits in groups of 32, but config.json says 4 bits in groups of 64"},
        {SCALES, TD_DTYPE_U8, N_OUT, 2, "scales of type U8 do not go with its mode"},
        {SCALES, TD_DTYPE_F16, N_OUT, 2, "scales are F16, but biases are BF16"},
        {BIASES, TD_DTYPE_COUNT, 0, 0, "it has scales but no biases, which the affine mode needs"},
        {BIASES, TD_DTYPE_BF16, N_OUT, 1, "tensor \"a.biases\" has shape [3, 1], expected [3, 2]"},
    };
    static const uint8_t zeros[4096];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        recipe r = {0};
        add_affine(&r, "a", 0, 4, 64);
        td_tensor *t = &r.tensors[cases[i].part];
        if (cases[i].dtype == TD_DTYPE_COUNT)
            r.n--;
        else
            *t = (td_tensor){.name = t->name,
                             .dtype = cases[i].dtype,
                             .n_dims = 2,
                             .dim = {cases[i].rows, cases[i].last},
                             .data = zeros,
                             .size = (size_t)(cases[i].rows * cases[i].last * td_dtype_bits(cases[i].dtype) / 8)};
        td_checkpoint *ck = open_recipe(dir, &r, "{\"quantization\":{\"group_size\":64,\"bits\":4}}");
        td_matrix m;
        td_error err;
        char prefix[1100];
        snprintf(prefix, sizeof prefix, "%s: module \"a\": ", dir);
        assert_failed(get(ck, "a", 0, &m, &err), TD_E_SHAPE, &err, prefix, cases[i].want);
        assert_null(m.data);
        td_checkpoint_close(&ck);
        drop(&r);
    }
}

static void plain_modules_are_checked(void **state) {
    const char *dir = *state;
    recipe r = {0};
    td_matrix m;
    td_error err;
    add_plain(&r, "a.weight");
    add_plain(&r, "bare");
    td_tensor *ints = add_plain(&r, "ints.weight");
    ints->dtype = TD_DTYPE_U32;
    td_tensor *half = add_plain(&r, "half.weight");
    half->dtype = TD_DTYPE_BF16;
    half->dim[1] *= 2;
    td_checkpoint *ck = open_recipe(dir, &r, "{}");
    assert_failed(get(ck, "none", 0, &m, &err), TD_E_MODEL, &err, dir, ": no weight for module \"none\"");
    assert_failed(get(ck, "a", 2, &m, &err), TD_E_SHAPE, &err, dir,
                  ": module \"a\": tensor \"a.weight\" has shape [3, 128], expected [2, 3, 128]");
    assert_failed(td_checkpoint_matrix(ck, "bare", 0, N_OUT, 64, &m, &err), TD_E_SHAPE, &err, dir,
                  ": module \"bare\": tensor \"bare\" has shape [3, 128], expected [3, 64]");
    assert_failed(td_checkpoint_matrix(ck, "a", 0, 0, N_IN, &m, &err), TD_E_SHAPE, &err, dir,
                  ": module \"a\": an empty matrix was asked for");
    assert_failed(get(ck, "ints", 0, &m, &err), TD_E_SHAPE, &err, dir,
                  ": module \"ints\": its weight is U32 without scales, expected F32, F16, BF16 or F8_E4M3");
    assert_int_equal(td_checkpoint_matrix(ck, "half", 0, N_OUT, 2 * N_IN, &m, &err), TD_OK);
    assert_int_equal(m.format, TD_FORMAT_BF16);
    td_checkpoint_close(&ck);
}

/* ---- modes with one scale byte a group ---- */

static const struct {
    const char *mode;
    td_format format;
    unsigned bits, group;
    td_dtype scale_type; /* other than U8 */
} byte_modes[] = {
    {"mxfp4", TD_FORMAT_MXFP4, 4, 32, TD_DTYPE_F8_E8M0},
    {"mxfp8", TD_FORMAT_MXFP8, 8, 32, TD_DTYPE_F8_E8M0},
    {"nvfp4", TD_FORMAT_NVFP4, 4, 16, TD_DTYPE_F8_E4M3},
};

/* kind 0: config.json names the mode; 1: it is silent; 2: typed scales; 3: a byte that is no number; 4: biases. */
static td_status byte_mode(const char *dir, size_t i, int kind, td_matrix *m, td_checkpoint **ck, td_error *err) {
    static const uint8_t codes[N_OUT * N_IN] = {0x21, 0x43, 0x65};
    static uint8_t scales[N_OUT * N_IN / 16];
    recipe r = {0};
    char config[100] = "{}";
    unsigned n_scales = N_IN / byte_modes[i].group;
    memset(scales, 0x38, sizeof scales);
    if (kind == 3)
        scales[N_OUT * n_scales - 1] = byte_modes[i].format == TD_FORMAT_NVFP4 ? 0x7F : 0xFF;
    add(&r, "a", ".weight", TD_DTYPE_U32, 0, N_IN * byte_modes[i].bits / 32, codes);
    add(&r, "a", ".scales", kind == 2 ? byte_modes[i].scale_type : TD_DTYPE_U8, 0, n_scales, scales);
    if (kind == 4)
        add(&r, "a", ".biases", TD_DTYPE_U8, 0, n_scales, scales);
    if (kind != 1)
        snprintf(config, sizeof config, "{\"quantization\":{\"mode\":\"%s\"}}", byte_modes[i].mode);
    *ck = open_recipe(dir, &r, config);
    return get(*ck, "a", 0, m, err);
}

static void byte_scaled_modes_are_read(void **state) {
    const char *dir = *state;
    td_checkpoint *ck;
    td_matrix m;
    td_error err;
    char want[200];
    for (size_t i = 0; i < 3; i++) {
        for (int kind = 0; kind < 3; kind++) {
            td_status st = byte_mode(dir, i, kind, &m, &ck, &err);
            if (st != TD_OK)
                fail_msg("%s", err.message);
            assert_int_equal(m.format, byte_modes[i].format);
            assert_int_equal(m.bits, byte_modes[i].bits);
            assert_int_equal(m.group, byte_modes[i].group);
            assert_null(m.biases);
            assert_int_equal(m.scales[0], 0x38);
            td_checkpoint_close(&ck);
        }
        int last = (int)(N_OUT * N_IN / byte_modes[i].group) - 1;
        snprintf(want, sizeof want, ": tensor \"a.scales\": byte %d is 0x%02X, not a finite scale", last,
                 byte_modes[i].format == TD_FORMAT_NVFP4 ? 0x7F : 0xFF);
        assert_failed(byte_mode(dir, i, 3, &m, &ck, &err), TD_E_NUMERIC, &err, dir, want);
        assert_int_equal(err.position, last);
        td_checkpoint_close(&ck);
        assert_failed(byte_mode(dir, i, 4, &m, &ck, &err), TD_E_SHAPE, &err, dir,
                      ": module \"a\": it has biases, which its mode does not use");
        td_checkpoint_close(&ck);
    }
}

static void silence_and_odd_shapes_are_not_guessed(void **state) {
    const char *dir = *state;
    recipe r = {0};
    td_matrix m;
    td_error err;
    add_affine(&r, "a", 0, 6, 64);
    r.n--; /* no biases */
    td_checkpoint *ck = open_recipe(dir, &r, "{}");
    assert_failed(get(ck, "a", 0, &m, &err), TD_E_SHAPE, &err, dir,
                  ": module \"a\": it has scales without biases, and config.json does not say in which mode");
    td_checkpoint_close(&ck);
    drop(&r);
}

/* ---- other tools' quantisations ---- */

static void foreign_quantisations_are_refused_by_name(void **state) {
    const char *dir = *state;
    static const struct {
        const char *tensor;
        bool with_weight;
        const char *want;
    } cases[] = {
        {"a.qweight", false, "AWQ or GPTQ (tensor \"a.qweight\")"},
        {"a.weight_packed", false, "compressed-tensors (tensor \"a.weight_packed\")"},
        {"a_blocks", false, "blocked MXFP4 (tensor \"a_blocks\")"},
        {"a.weight_scale_inv", true, "block-scaled FP8 (tensor \"a.weight_scale_inv\")"},
        {"a.weight_scale", true, "compressed-tensors or FP8 (tensor \"a.weight_scale\")"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        recipe r = {0};
        td_matrix m;
        td_error err;
        char want[200];
        add_plain(&r, cases[i].tensor);
        if (cases[i].with_weight)
            add_plain(&r, "a.weight");
        td_checkpoint *ck = open_recipe(dir, &r, "{}");
        snprintf(want, sizeof want, ": module \"a\" is quantised as %s, not supported", cases[i].want);
        assert_failed(get(ck, "a", 0, &m, &err), TD_E_UNSUPPORTED, &err, dir, want);
        td_checkpoint_close(&ck);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(affine_modules_follow_config_and_shapes, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(a_false_entry_leaves_a_float_module, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(an_entry_needs_scales, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(aliases_reach_scales_and_entries, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(broken_parts_are_named, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(plain_modules_are_checked, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(byte_scaled_modes_are_read, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(silence_and_odd_shapes_are_not_guessed, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(foreign_quantisations_are_refused_by_name, temp_dir_setup, temp_dir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
