/* support_backend.c - see support_backend.h. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "backend/support_backend.h"

#include "backend/cpu/dsp.h"
#include "tensor/blocks.h"

/* Those of this architecture, worst first. */
static const td_isa all_levels[] = {
    TD_ISA_GENERIC,
#if defined(__x86_64__)
    TD_ISA_AVX2,
    TD_ISA_AVXVNNI,
    TD_ISA_AVX512,
#elif defined(__aarch64__)
    TD_ISA_NEON,
    TD_ISA_NEONDOT,
#endif
};
#define N_LEVELS (sizeof all_levels / sizeof *all_levels)

static void name_levels(const char *what, bool have) {
    char list[128] = "";
    size_t n = 0;
    for (size_t i = 0; i < N_LEVELS; i++)
        if (td_dsp_has(all_levels[i]) == have)
            n += (size_t)snprintf(list + n, sizeof list - n, " %s", td_isa_name(all_levels[i]));
    print_message("[  LEVELS  ] %s:%s\n", what, n ? list : " none");
}

const td_isa *bt_levels(void) {
    static td_isa levels[N_LEVELS + 1];
    static bool named;
    int n = 0;
    for (size_t i = 0; i < N_LEVELS; i++)
        if (td_dsp_has(all_levels[i]))
            levels[n++] = all_levels[i];
    levels[n] = TD_ISA_AUTO;
    if (!named) {
        name_levels("tested", true);
        name_levels("not tested, as this machine or build lacks them", false);
        named = true;
    }
    return levels;
}

static void level(td_isa isa) {
    if (!td_dsp_has(isa))
        skip();
    td_backend *be = bt_open(isa, 1, false);
    td_backend_close(&be);
}

void bt_level_generic(void **state) {
    (void)state;
    level(TD_ISA_GENERIC);
}

void bt_level_avx2(void **state) {
    (void)state;
    level(TD_ISA_AVX2);
}

void bt_level_avxvnni(void **state) {
    (void)state;
    level(TD_ISA_AVXVNNI);
}

void bt_level_avx512(void **state) {
    (void)state;
    level(TD_ISA_AVX512);
}

void bt_level_neon(void **state) {
    (void)state;
    level(TD_ISA_NEON);
}

void bt_level_neondot(void **state) {
    (void)state;
    level(TD_ISA_NEONDOT);
}

const char *bt_level_name(td_isa isa) {
    return td_isa_name(isa);
}

td_backend *bt_open(td_isa isa, int n_threads, bool float_activations) {
    td_error err;
    td_backend *be;
    td_cpu_options o = {.n_threads = n_threads, .isa = isa, .float_activations = float_activations};
    if (td_backend_cpu_open(&be, &o, &err) != TD_OK)
        fail_msg("%s", err.message);
    assert_string_equal(td_backend_cpu_isa(be), bt_level_name(isa));
    assert_int_equal(td_backend_cpu_threads(be), n_threads);
    return be;
}

td_backend *bt_open_ref(uint32_t n_in, uint32_t n_out, uint32_t head_dim) {
    td_error err;
    td_backend *be;
    assert_int_equal(td_backend_ref_open(&be, &err), TD_OK);
    assert_int_equal(be->ops->reserve(be, 1, n_in, n_out, 1, head_dim, &err), TD_OK);
    return be;
}

void bt_wait(td_backend *be) {
    td_error err;
    if (be->ops->wait(be, &err) != TD_OK)
        fail_msg("%s", err.message);
}

/* ---- data ---- */

uint32_t bt_next(bt_rng *r) {
    r->s ^= r->s << 13;
    r->s ^= r->s >> 7;
    r->s ^= r->s << 17;
    return (uint32_t)(r->s >> 24);
}

float bt_uniform(bt_rng *r) {
    return ((float)(bt_next(r) >> 8) + 0.5f) / 8388608.0f - 1.0f;
}

float bt_normal(bt_rng *r) {
    float s = 0;
    for (int i = 0; i < 12; i++)
        s += bt_uniform(r);
    return s * 0.5f;
}

void bt_fill(bt_rng *r, float *x, size_t n) {
    for (size_t i = 0; i < n; i++) {
        uint32_t kind = bt_next(r) % 64;
        x[i] = kind == 0 ? 0.0f : bt_normal(r) * (kind == 1 ? 30.0f : kind == 2 ? 1e-3f : 1.0f);
    }
}

/* ---- matrices ---- */

const bt_kind bt_kinds[] = {
    {"f32", TD_FORMAT_F32, 0, 0, 0},
    {"bf16", TD_FORMAT_BF16, 0, 0, 0},
    {"f16", TD_FORMAT_F16, 0, 0, 0},
    {"f8_e4m3", TD_FORMAT_F8_E4M3, 0, 0, 0},
    {"affine 4-bit group 64 bf16", TD_FORMAT_AFFINE, 4, 64, TD_DTYPE_BF16},
    {"affine 4-bit group 32 f16", TD_FORMAT_AFFINE, 4, 32, TD_DTYPE_F16},
    {"affine 4-bit group 128 f32", TD_FORMAT_AFFINE, 4, 128, TD_DTYPE_F32},
    {"affine 8-bit group 64 bf16", TD_FORMAT_AFFINE, 8, 64, TD_DTYPE_BF16},
    {"affine 8-bit group 32 f32", TD_FORMAT_AFFINE, 8, 32, TD_DTYPE_F32},
    {"affine 8-bit group 128 f16", TD_FORMAT_AFFINE, 8, 128, TD_DTYPE_F16},
    {"affine 2-bit group 64 bf16", TD_FORMAT_AFFINE, 2, 64, TD_DTYPE_BF16},
    {"affine 3-bit group 32 f16", TD_FORMAT_AFFINE, 3, 32, TD_DTYPE_F16},
    {"affine 5-bit group 64 bf16", TD_FORMAT_AFFINE, 5, 64, TD_DTYPE_BF16},
    {"affine 6-bit group 128 f16", TD_FORMAT_AFFINE, 6, 128, TD_DTYPE_F16},
    {"mxfp4", TD_FORMAT_MXFP4, 0, 0, 0},
    {"mxfp8", TD_FORMAT_MXFP8, 0, 0, 0},
    {"nvfp4", TD_FORMAT_NVFP4, 0, 0, 0},
    {NULL, 0, 0, 0, 0},
};

const bt_kind bt_blocks[] = {
    {"q4_0", TD_FORMAT_Q4_0, 0, 0, 0},
    {"q4_1", TD_FORMAT_Q4_1, 0, 0, 0},
    {"q5_0", TD_FORMAT_Q5_0, 0, 0, 0},
    {"q5_1", TD_FORMAT_Q5_1, 0, 0, 0},
    {"q8_0", TD_FORMAT_Q8_0, 0, 0, 0},
    {"iq4_nl", TD_FORMAT_IQ4_NL, 0, 0, 0},
    {"mxfp4 blocks", TD_FORMAT_MXFP4_BLOCK, 0, 0, 0},
    {"q2_k", TD_FORMAT_Q2_K, 0, 0, 0},
    {"q3_k", TD_FORMAT_Q3_K, 0, 0, 0},
    {"q4_k", TD_FORMAT_Q4_K, 0, 0, 0},
    {"q5_k", TD_FORMAT_Q5_K, 0, 0, 0},
    {"q6_k", TD_FORMAT_Q6_K, 0, 0, 0},
    {"iq4_xs", TD_FORMAT_IQ4_XS, 0, 0, 0},
    {"iq2_xxs", TD_FORMAT_IQ2_XXS, 0, 0, 0},
    {"nvfp4 blocks", TD_FORMAT_NVFP4_BLOCK, 0, 0, 0},
    {"tq1_0", TD_FORMAT_TQ1_0, 0, 0, 0},
    {"tq2_0", TD_FORMAT_TQ2_0, 0, 0, 0},
    {"q1_0", TD_FORMAT_Q1_0, 0, 0, 0},
    {"q2_0", TD_FORMAT_Q2_0, 0, 0, 0},
    {NULL, 0, 0, 0, 0},
};

const bt_kind *bt_kind_named(const char *name) {
    for (const bt_kind *k = bt_kinds; k->name; k++)
        if (strcmp(k->name, name) == 0)
            return k;
    for (const bt_kind *k = bt_blocks; k->name; k++)
        if (strcmp(k->name, name) == 0)
            return k;
    fail_msg("no kind of matrix is called %s", name);
    return NULL;
}

/* Where the f16 scales of a block stand: n of them from byte `at` on. */
static uint32_t half_scales(td_format format, uint32_t *at) {
    static const uint8_t behind[TD_FORMAT_COUNT] = {[TD_FORMAT_Q2_K] = 80,
                                                    [TD_FORMAT_Q3_K] = 108,
                                                    [TD_FORMAT_Q6_K] = 208,
                                                    [TD_FORMAT_TQ1_0] = 52,
                                                    [TD_FORMAT_TQ2_0] = 64};
    *at = behind[format];
    switch (format) {
    case TD_FORMAT_MXFP4_BLOCK:
    case TD_FORMAT_NVFP4_BLOCK:
        return 0;
    case TD_FORMAT_Q4_1:
    case TD_FORMAT_Q5_1:
    case TD_FORMAT_Q2_K:
    case TD_FORMAT_Q4_K:
    case TD_FORMAT_Q5_K:
        return 2;
    default:
        return 1;
    }
}

void bt_fill_blocks(bt_rng *r, uint8_t *p, size_t bytes, td_format format, unsigned fill) {
    uint32_t at, n = half_scales(format, &at);
    for (size_t i = 0; i < bytes; i++)
        p[i] = (uint8_t)(fill < 256 ? fill : bt_next(r));
    for (size_t b = 0; b < bytes; b += td_block_bytes(format)) {
        for (uint32_t i = 0; i < n; i++) {
            const uint16_t d = td_f32_to_f16(bt_uniform(r) / 128);
            memcpy(p + b + at + 2 * i, &d, 2);
        }
        if (format == TD_FORMAT_MXFP4_BLOCK)
            p[b] = (uint8_t)(115 + bt_next(r) % 8);
    }
}

static uint8_t *odd_block(void **block, size_t bytes) {
    *block = malloc(bytes + 1);
    assert_non_null(*block);
    return (uint8_t *)*block + 1;
}

static void put_number(uint8_t *p, td_dtype type, float x) {
    if (type == TD_DTYPE_F32) {
        memcpy(p, &x, 4);
        return;
    }
    uint16_t h = type == TD_DTYPE_F16 ? td_f32_to_f16(x) : td_f32_to_bf16(x);
    memcpy(p, &h, 2);
}

static void fill_plain(bt_rng *r, uint8_t *p, size_t bytes, td_format format) {
    td_dtype type = format == TD_FORMAT_F32 ? TD_DTYPE_F32 : format == TD_FORMAT_F16 ? TD_DTYPE_F16 : TD_DTYPE_BF16;
    size_t size = format == TD_FORMAT_F32 ? 4 : 2;
    for (size_t i = 0; i < bytes; i += size)
        put_number(p + i, type, bt_normal(r) * 0.1f);
}

static void fill_codes(bt_rng *r, uint8_t *p, size_t bytes, bool e4m3) {
    for (size_t i = 0; i < bytes; i++) {
        p[i] = (uint8_t)bt_next(r);
        if (e4m3 && (p[i] & 0x7F) == 0x7F)
            p[i] ^= 0x40; /* not a NaN */
    }
}

/* Affine: the codes are roughly centred on zero, as quantisers leave them, and either sign of the scale occurs. */
static void fill_scales(bt_rng *r, const td_matrix *m, uint8_t *scales, uint8_t *biases, size_t bytes) {
    if (m->format != TD_FORMAT_AFFINE) {
        for (size_t i = 0; i < bytes; i++)
            scales[i] = (uint8_t)(m->format == TD_FORMAT_NVFP4 ? 0x10 + bt_next(r) % 32 : 118 + bt_next(r) % 8);
        return;
    }
    const size_t size = td_dtype_bits(m->scale_type) / 8;
    const float half = (float)((1u << m->bits) - 1) / 2;
    for (size_t i = 0; i < bytes; i += size) {
        float s = (0.5f + fabsf(bt_uniform(r))) * (bt_next(r) % 2 ? 0.1f : -0.1f) / half;
        put_number(scales + i, m->scale_type, s);
        put_number(biases + i, m->scale_type, -s * half * (0.9f + 0.2f * fabsf(bt_uniform(r))));
    }
}

bt_matrix bt_matrix_new(bt_rng *r, const bt_kind *kind, uint32_t n_stack, uint32_t n_out, uint32_t n_in) {
    bt_matrix b = {.m = {.name = kind->name}};
    td_error err;
    td_matrix *m = &b.m;
    if (td_matrix_layout(m, kind->format, kind->bits, kind->group, kind->scale_type, n_stack, n_out, n_in, &err) !=
        TD_OK)
        fail_msg("%s", err.message);
    const size_t rows = (size_t)n_stack * n_out, bytes = rows * m->row_bytes, scale_bytes = rows * m->scale_row_bytes;
    uint8_t *data = odd_block(&b.block[0], bytes);
    m->data = data;
    if (m->format == TD_FORMAT_F32 || m->format == TD_FORMAT_F16 || m->format == TD_FORMAT_BF16)
        fill_plain(r, data, bytes, m->format);
    else if (td_block_bytes(m->format))
        bt_fill_blocks(r, data, bytes, m->format, 256);
    else
        fill_codes(r, data, bytes, m->format == TD_FORMAT_F8_E4M3 || m->format == TD_FORMAT_MXFP8);
    if (scale_bytes) {
        uint8_t *scales = odd_block(&b.block[1], scale_bytes), *biases = odd_block(&b.block[2], scale_bytes);
        fill_scales(r, m, scales, biases, scale_bytes);
        m->scales = scales;
        m->biases = m->format == TD_FORMAT_AFFINE ? biases : NULL;
    }
    return b;
}

void bt_matrix_free(bt_matrix *m) {
    for (int i = 0; i < 3; i++)
        free(m->block[i]);
}

/* ---- outputs ---- */

#define GUARD 64

bt_guard bt_guard_new(size_t n) {
    bt_guard g = {.n = n, .block = malloc(n * sizeof(float) + 2 * GUARD)};
    assert_non_null(g.block);
    memset(g.block, 0xA5, n * sizeof(float) + 2 * GUARD);
    g.y = (float *)(void *)(g.block + GUARD);
    return g;
}

void bt_guard_check(const bt_guard *g) {
    const uint8_t *after = g->block + GUARD + g->n * sizeof(float);
    for (int i = 0; i < GUARD; i++)
        if (g->block[i] != 0xA5 || after[i] != 0xA5)
            fail_msg("guard byte %d touched", i);
}

void bt_guard_free(bt_guard *g) {
    bt_guard_check(g);
    free(g->block);
}

void bt_same_bits(const char *what, const float *got, const float *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (memcmp(&got[i], &want[i], sizeof got[i]) != 0)
            fail_msg("%s: element %zu is %.9g, expected the bits of %.9g", what, i, (double)got[i], (double)want[i]);
}

void bt_close(const char *what, size_t at, double got, double want, double tolerance) {
    if (!(fabs(got - want) <= tolerance))
        fail_msg("%s: element %zu is %.9g, expected %.9g within %.3g", what, at, got, want, tolerance);
}
