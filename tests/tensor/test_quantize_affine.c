/* test_quantize_affine.c - the affine quantiser: answers worked out by hand, the rule restated plainly and compared bit for
 * bit, error bounds derived from the scale, refusals, and every allocation failing in turn. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "support_bits.h"
#include "tensor/matrix.h"

static const unsigned widths[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
static const td_dtype scale_types[] = {TD_DTYPE_F16, TD_DTYPE_BF16, TD_DTYPE_F32};

static td_matrix f32_matrix(const float *w, uint32_t n_stack, uint32_t n_out, uint32_t n_in) {
    td_matrix m = {.name = "w", .data = (const uint8_t *)w};
    assert_int_equal(td_matrix_layout(&m, TD_FORMAT_F32, 0, 0, 0, n_stack, n_out, n_in, NULL), TD_OK);
    return m;
}

static float scale_of(const td_matrix *m, const uint8_t *scales, size_t g) {
    float f;
    assert_true(td_to_f32(&f, m->scale_type, scales + g * (td_dtype_bits(m->scale_type) / 8), 1));
    return f;
}

static float gaussian(uint64_t seed, size_t i) {
    double u = td_rng_uniform(seed, i, 0), v = td_rng_uniform(seed, i, 1);
    return (float)(sqrt(-2 * log(u)) * cos(6.283185307179586 * v));
}

/* One group of 32, f32 scales, checked against numbers worked out on paper. */
typedef struct hand_case {
    const char *name;
    unsigned bits;
    float w[8]; /* the first eight; the other 24 repeat w[7] */
    float scale, bias;
    uint8_t q[8];
} hand_case;

static const hand_case by_hand[] = {
    /* lo -7, hi 8: step 1, negative; edge 8, q0 -8; q = 8 - w. Halves go to the even code. */
    {"larger positive end", 4, {8, -7, 0, 0.5f, 1.5f, -0.5f, 3.25f, 1}, -1, 8, {0, 15, 8, 8, 6, 8, 5, 7}},
    /* lo -8, hi 7: step 1, positive; edge -8; q = w + 8 */
    {"larger negative end", 4, {-8, 7, 0, 0.5f, 1.5f, -0.5f, 3.25f, 1}, 1, -8, {0, 15, 8, 8, 10, 8, 11, 9}},
    /* lo -3, hi 3, a tie: step 6/3 = 2, negative; 3/-2 rounds to -2 (even), so step 3/-2; -3 would be code 4: clamped
     */
    {"tie and clamp", 2, {3, -3, 0, 1.5f, -1.5f, 0.5f, 2.5f, 0}, -1.5f, 3, {0, 3, 2, 1, 3, 2, 0, 2}},
    /* all positive, lo 1, hi 4: step 1, edge 4, q0 -4 */
    {"all positive", 2, {4, 1, 2, 3, 2.5f, 1.5f, 3.5f, 4}, -1, 4, {0, 3, 2, 1, 2, 2, 0, 0}},
    /* all negative, lo -4, hi -1 (the true maximum, not 0): step 1, edge -4, q0 -4 */
    {"all negative", 2, {-4, -1, -2, -3, -2.5f, -1.5f, -3.5f, -4}, 1, -4, {0, 3, 2, 1, 2, 2, 0, 0}},
    {"all zero", 4, {0, 0, 0, 0, 0, 0, 0, 0}, -1e-7f, 0, {0}},
    {"negative zero", 4, {-0.0f, -0.0f, -0.0f, 0, -0.0f, 0, 0, -0.0f}, -1e-7f, 0, {0}},
    /* the smallest step rules and edge/step = 0.25 rounds to 0: no offset, all codes 0 */
    {"almost zero", 4, {0x1p-25f, -0x1p-26f, 0, 0, 0, 0, 0, 0}, -1e-7f, 0, {0}},
};

static void answers_worked_out_by_hand(void **state) {
    (void)state;
    for (size_t c = 0; c < sizeof by_hand / sizeof by_hand[0]; c++) {
        const hand_case *h = &by_hand[c];
        float w[32], back[32];
        for (size_t i = 0; i < 32; i++)
            w[i] = h->w[i < 8 ? i : 7];
        td_matrix src = f32_matrix(w, 1, 1, 32), m;
        assert_int_equal(td_matrix_quantize(&m, &src, h->bits, 32, TD_DTYPE_F32, NULL), TD_OK);
        float scale = scale_of(&m, m.scales, 0), bias = scale_of(&m, m.biases, 0);
        if (scale != h->scale || bias != h->bias)
            fail_msg("%s: scale %.9g bias %.9g, expected %.9g %.9g", h->name, (double)scale, (double)bias,
                     (double)h->scale, (double)h->bias);
        td_matrix_row_f32(&m, 0, back);
        for (size_t i = 0; i < 32; i++) {
            unsigned q = stream_code(m.data, i, h->bits), want = h->q[i < 8 ? i : 7];
            if (q != want)
                fail_msg("%s: element %zu is code %u, expected %u", h->name, i, q, want);
            assert_true(back[i] == h->scale * (float)want + h->bias);
        }
        td_matrix_free(&m);
    }
}

static void packed_bytes_worked_out_by_hand(void **state) {
    (void)state;
    float w[32] = {8, -7, 0, 0.5f, 1.5f, -0.5f, 3.25f}; /* 4-bit codes 0 F 8 8 6 8 5 and 8 for the zeros */
    td_matrix src = f32_matrix(w, 1, 1, 32), m;
    assert_int_equal(td_matrix_quantize(&m, &src, 4, 32, TD_DTYPE_BF16, NULL), TD_OK);
    static const uint8_t data[16] = {0xF0, 0x88, 0x86, 0x85, 0x88, 0x88, 0x88, 0x88,
                                     0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88, 0x88};
    assert_memory_equal(m.data, data, 16);
    assert_memory_equal(m.scales, "\x80\xBF", 2); /* -1 */
    assert_memory_equal(m.biases, "\x00\x41", 2); /* 8 */
    assert_string_equal(m.name, "w");
    td_matrix_free(&m);
}

/* The rule again, one number at a time with the C library's rounding. */
static void check_group(const td_matrix *m, size_t row, size_t g, const float *w) {
    const float n = (float)((1u << m->bits) - 1);
    float lo = w[0], hi = w[0];
    for (size_t i = 1; i < m->group; i++) {
        lo = fminf(lo, w[i]);
        hi = fmaxf(hi, w[i]);
    }
    bool negative = fabsf(lo) > fabsf(hi);
    float s = fmaxf((hi - lo) / n, 1e-7f), b = 0;
    s = negative ? s : -s;
    float edge = negative ? lo : hi, q0 = nearbyintf(edge / s);
    if (q0 != 0) {
        s = edge / q0;
        b = edge;
    }
    uint8_t stored[2][4];
    for (size_t k = 0; k < 2; k++) {
        float f = k ? b : s;
        uint16_t h = m->scale_type == TD_DTYPE_F16 ? td_f32_to_f16(f) : td_f32_to_bf16(f);
        memcpy(stored[k], m->scale_type == TD_DTYPE_F32 ? (void *)&f : (void *)&h,
               m->scale_type == TD_DTYPE_F32 ? 4 : 2);
    }
    size_t size = td_dtype_bits(m->scale_type) / 8;
    assert_memory_equal(m->scales + row * m->scale_row_bytes + g * size, stored[0], size);
    assert_memory_equal(m->biases + row * m->scale_row_bytes + g * size, stored[1], size);
    for (size_t i = 0; i < m->group; i++) {
        float q = fminf(fmaxf(nearbyintf((w[i] - b) / s), 0), n);
        unsigned got = stream_code(m->data + row * m->row_bytes, g * m->group + i, m->bits);
        if (got != (unsigned)q)
            fail_msg("%u bits, group %u: row %zu, group %zu, element %zu (%.9g, scale %.9g, bias %.9g): code %u, "
                     "expected %g",
                     m->bits, m->group, row, g, i, (double)w[i], (double)s, (double)b, got, (double)q);
    }
}

/* Rows of every temper: Gaussian, one-sided, offset, few levels (many ties), tiny, huge spread, one outlier. */
static float temper(size_t row, size_t i) {
    float x = gaussian(77 + row, i);
    switch (row) {
    case 0:
        return x * 0.02f;
    case 1:
        return fabsf(x);
    case 2:
        return -fabsf(x) - 3;
    case 3:
        return 100 + x * 1e-5f;
    case 4:
        return nearbyintf(x * 4) / 2;
    case 5:
        return x * 1e-7f;
    case 6:
        return i % 19 == 7 ? 900 * x : x;
    case 7:
        return nearbyintf(x) * 7.5f;
    default:
        return x * (float)exp2((double)(i % 41) / 2 - 16);
    }
}

static void every_width_group_and_scale_follows_the_rule(void **state) {
    (void)state;
    enum { ROWS = 9, N_IN = 384 };
    static float w[ROWS][N_IN];
    for (size_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < N_IN; i++)
            w[r][i] = temper(r, i);
    td_matrix src = f32_matrix(&w[0][0], 3, 3, N_IN);
    for (size_t b = 0; b < 6; b++)
        for (size_t g = 0; g < 3; g++)
            for (size_t t = 0; t < 3; t++) {
                td_matrix m;
                assert_int_equal(td_matrix_quantize(&m, &src, widths[b], groups[g], scale_types[t], NULL), TD_OK);
                assert_int_equal(m.n_stack, 3);
                assert_int_equal(m.n_out, 3);
                assert_int_equal(m.n_in, N_IN);
                assert_int_equal((uintptr_t)m.data % 64 | (uintptr_t)m.scales % 64 | (uintptr_t)m.biases % 64, 0);
                for (size_t r = 0; r < ROWS; r++)
                    for (size_t k = 0; k < N_IN / groups[g]; k++)
                        check_group(&m, r, k, &w[r][k * groups[g]]);
                td_matrix_free(&m);
            }
}

/* What may be lost. The exact step S and offset B (f32) put an unclamped weight within |S|/2 of its grid point. The
 * far end may lie up to one step beyond code n: rounding q0 shrinks the step by at most q0/(q0 - 1/2), and |q0| is at
 * least n/2, so the far end is at most code n + 1, clamped to n. Storing scale and bias with unit roundoff u moves a
 * decoded weight by at most u*(n|S| + |B|), plus half a subnormal step each for f16. f32 arithmetic: a few 2^-24. */
static void decoded_weights_stay_within_the_bound(void **state) {
    (void)state;
    enum { N_IN = 384 };
    static float w[N_IN], back[N_IN];
    static const double roundoff[] = {0x1p-11, 0x1p-8, 0x1p-24}, tiny[] = {0x1p-25, 0, 0};
    for (size_t temper_row = 0; temper_row < 9; temper_row++)
        for (size_t b = 0; b < 6; b++)
            for (size_t g = 0; g < 3; g++)
                for (size_t t = 0; t < 3; t++) {
                    for (size_t i = 0; i < N_IN; i++)
                        w[i] = temper(temper_row, i);
                    td_matrix src = f32_matrix(w, 1, 1, N_IN), m, exact;
                    assert_int_equal(td_matrix_quantize(&m, &src, widths[b], groups[g], scale_types[t], NULL), TD_OK);
                    assert_int_equal(td_matrix_quantize(&exact, &src, widths[b], groups[g], TD_DTYPE_F32, NULL), TD_OK);
                    td_matrix_row_f32(&m, 0, back);
                    const unsigned n = (1u << widths[b]) - 1;
                    for (size_t i = 0; i < N_IN; i++) {
                        double S = fabs((double)scale_of(&exact, exact.scales, i / groups[g]));
                        double B = fabs((double)scale_of(&exact, exact.biases, i / groups[g]));
                        unsigned q = stream_code(m.data, i, widths[b]);
                        double reach = n * S + B;
                        double bound =
                            (q == n ? 1 : 0.5) * S + roundoff[t] * reach + (n + 1) * tiny[t] + 8 * 0x1p-24 * reach;
                        double lost = fabs((double)back[i] - (double)w[i]);
                        if (lost > bound)
                            fail_msg("temper %zu, %u bits, group %u, %s, element %zu: %.9g came back as %.9g, bound %g",
                                     temper_row, widths[b], groups[g], td_dtype_name(scale_types[t]), i, (double)w[i],
                                     (double)back[i], bound);
                    }
                    td_matrix_free(&m);
                    td_matrix_free(&exact);
                }
}

/* The weight of largest magnitude is code 0 and comes back exactly; a zero weight comes back as zero (to f32). */
static void the_extreme_is_exact_and_zero_is_on_the_grid(void **state) {
    (void)state;
    enum { ROWS = 200 };
    static float w[ROWS][64], back[64];
    for (size_t r = 0; r < ROWS; r++)
        for (size_t i = 0; i < 64; i++)
            w[r][i] = i == 5 ? 0 : gaussian(r, i);
    td_matrix src = f32_matrix(&w[0][0], 1, ROWS, 64);
    size_t n_positive = 0;
    for (size_t b = 0; b < 6; b++) {
        td_matrix m;
        assert_int_equal(td_matrix_quantize(&m, &src, widths[b], 64, TD_DTYPE_F32, NULL), TD_OK);
        for (size_t r = 0; r < ROWS; r++) {
            size_t at = 0;
            for (size_t i = 1; i < 64; i++)
                if (fabsf(w[r][i]) > fabsf(w[r][at]))
                    at = i;
            td_matrix_row_f32(&m, r, back);
            float scale = scale_of(&m, m.scales, r);
            assert_int_equal(stream_code(m.data + r * m.row_bytes, at, widths[b]), 0);
            assert_true(back[at] == w[r][at]);
            assert_true(scale != 0 && (scale < 0) == (w[r][at] > 0));
            assert_true(fabsf(back[5]) <= 0x1p-23f * fabsf(w[r][at]));
            n_positive += w[r][at] > 0;
        }
        td_matrix_free(&m);
    }
    assert_in_range(n_positive, 6 * 50, 6 * 150); /* both signs were seen */
}

static void constant_groups_come_back_exactly(void **state) {
    (void)state;
    static const float constants[] = {1, -1, 0.75f, -0.015625f, 6.0e4f, -3e38f, 3e38f, 0x1p-20f};
    for (size_t c = 0; c < sizeof constants / sizeof constants[0]; c++)
        for (size_t b = 0; b < 6; b++) {
            float w[32], back[32];
            for (size_t i = 0; i < 32; i++)
                w[i] = constants[c];
            td_matrix src = f32_matrix(w, 1, 1, 32), m;
            assert_int_equal(td_matrix_quantize(&m, &src, widths[b], 32, TD_DTYPE_F32, NULL), TD_OK);
            td_matrix_row_f32(&m, 0, back);
            assert_memory_equal(back, w, sizeof w);
            for (size_t i = 0; i < 32; i++)
                assert_int_equal(stream_code(m.data, i, widths[b]), 0);
            td_matrix_free(&m);
        }
}

static void expect_numeric(float bad, td_dtype type, const char *message) {
    float w[4][64] = {{0}};
    w[2][40] = bad;
    td_matrix src = f32_matrix(&w[0][0], 2, 2, 64), m;
    td_error err;
    long live = td_alloc_live();
    assert_int_equal(td_matrix_quantize(&m, &src, 4, 32, type, &err), TD_E_NUMERIC);
    assert_int_equal(err.position, 2);
    if (!strstr(err.message, message))
        fail_msg("message \"%s\", expected \"%s\"", err.message, message);
    assert_null(m.owned);
    assert_null(m.data);
    assert_int_equal(td_alloc_live(), live);
}

static void weights_that_no_scale_can_hold_are_refused(void **state) {
    (void)state;
    expect_numeric(NAN, TD_DTYPE_F32, "w: row 2, inputs 32 to 63 hold a weight that is not finite");
    expect_numeric(-NAN, TD_DTYPE_BF16, "inputs 32 to 63 hold a weight that is not finite");
    expect_numeric(INFINITY, TD_DTYPE_F32, "not finite");
    expect_numeric(-INFINITY, TD_DTYPE_F32, "not finite");
    expect_numeric(1e6f, TD_DTYPE_F16, "do not fit F16");
    expect_numeric(-1e6f, TD_DTYPE_F16, "do not fit F16");
    expect_numeric(0x1.ffp127f, TD_DTYPE_BF16, "do not fit BF16"); /* rounds up to infinity */
    float w[32] = {3e38f, -3e38f};                                 /* hi - lo overflows */
    td_matrix src = f32_matrix(w, 1, 1, 32), m;
    assert_int_equal(td_matrix_quantize(&m, &src, 8, 32, TD_DTYPE_F32, NULL), TD_E_NUMERIC);
    assert_null(m.owned);
}

static void bad_requests_are_refused(void **state) {
    (void)state;
    static const float w[96];
    td_matrix src = f32_matrix(w, 1, 1, 96), m;
    static const struct {
        unsigned bits, group;
        td_dtype type;
        const char *message;
    } bad[] = {{4, 64, TD_DTYPE_F16, "w: 96 inputs, expected a multiple of the group of 64"},
               {7, 32, TD_DTYPE_F16, "w: affine codes of 7 bits"},
               {4, 48, TD_DTYPE_F16, "w: affine groups of 48"},
               {4, 32, TD_DTYPE_F64, "w: affine scales of type F64"}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        td_error err;
        m.owned = &m; /* whatever was there is overwritten, not freed */
        assert_int_equal(td_matrix_quantize(&m, &src, bad[i].bits, bad[i].group, bad[i].type, &err), TD_E_SHAPE);
        assert_int_equal(strncmp(err.message, bad[i].message, strlen(bad[i].message)), 0);
        assert_null(m.owned);
    }
}

/* From any format: the same as decoding to floats first and quantising those. Sources lie at odd addresses. */
static void check_source(td_format format, unsigned bits, unsigned group) {
    enum { ROWS = 4, N_IN = 128 };
    td_matrix src = {.name = "src"};
    assert_int_equal(td_matrix_layout(&src, format, bits, group, TD_DTYPE_F16, 2, 2, N_IN, NULL), TD_OK);
    size_t data_bytes = ROWS * src.row_bytes, scale_bytes = ROWS * src.scale_row_bytes;
    uint8_t *block = malloc(1 + data_bytes + 2 * scale_bytes);
    uint8_t *data = block + 1, *scales = data + data_bytes, *biases = scales + scale_bytes;
    for (size_t i = 0; i < data_bytes + 2 * scale_bytes; i++)
        data[i] = (uint8_t)(td_rng_uniform(3, i, 0) * 100); /* below 0x64: every type stays finite and moderate */
    if (format == TD_FORMAT_MXFP4 || format == TD_FORMAT_MXFP8)
        memset(scales, 120, scale_bytes);
    if (format == TD_FORMAT_BF16 || format == TD_FORMAT_F32)
        for (size_t i = 0; i < data_bytes; i += src.bits / 8)
            data[i + src.bits / 8 - 1] = (uint8_t)(0x3D | (i & 8) << 4);
    src.data = data;
    src.scales = src.group ? scales : NULL;
    src.biases = format == TD_FORMAT_AFFINE ? biases : NULL;
    static float w[ROWS][N_IN];
    for (size_t r = 0; r < ROWS; r++)
        td_matrix_row_f32(&src, r, w[r]);
    td_matrix plain = f32_matrix(&w[0][0], 2, 2, N_IN), direct, detour;
    assert_int_equal(td_matrix_quantize(&direct, &src, 5, 64, TD_DTYPE_F32, NULL), TD_OK);
    assert_int_equal(td_matrix_quantize(&detour, &plain, 5, 64, TD_DTYPE_F32, NULL), TD_OK);
    assert_memory_equal(direct.data, detour.data, ROWS * direct.row_bytes);
    assert_memory_equal(direct.scales, detour.scales, ROWS * direct.scale_row_bytes);
    assert_memory_equal(direct.biases, detour.biases, ROWS * direct.scale_row_bytes);
    td_matrix_free(&direct);
    td_matrix_free(&detour);
    free(block);
}

static void any_format_can_be_the_source(void **state) {
    (void)state;
    check_source(TD_FORMAT_F32, 0, 0);
    check_source(TD_FORMAT_F16, 0, 0);
    check_source(TD_FORMAT_BF16, 0, 0);
    check_source(TD_FORMAT_F8_E4M3, 0, 0);
    check_source(TD_FORMAT_MXFP4, 0, 0);
    check_source(TD_FORMAT_MXFP8, 0, 0);
    check_source(TD_FORMAT_NVFP4, 0, 0);
    for (size_t b = 0; b < 6; b++)
        for (size_t g = 0; g < 3; g++)
            check_source(TD_FORMAT_AFFINE, widths[b], groups[g]);
}

/* Grids with exact arithmetic (small integers) survive: quantising what was decoded gives the same codes. */
static void quantising_again_changes_nothing(void **state) {
    (void)state;
    for (size_t b = 0; b < 6; b++) {
        const unsigned n = (1u << widths[b]) - 1;
        float w[128], first[128], second[128];
        for (size_t i = 0; i < 128; i++)
            w[i] = (float)(i * 37 % (n + 1)) - (float)(n / 2); /* lo -n/2, hi n - n/2: every code occurs or nearly */
        td_matrix src = f32_matrix(w, 1, 1, 128), m, again;
        w[0] = (float)(n - n / 2);
        w[1] = -(float)(n / 2);
        assert_int_equal(td_matrix_quantize(&m, &src, widths[b], 128, TD_DTYPE_F16, NULL), TD_OK);
        td_matrix_row_f32(&m, 0, first);
        assert_memory_equal(first, w, sizeof w);
        assert_int_equal(td_matrix_quantize(&again, &m, widths[b], 128, TD_DTYPE_F16, NULL), TD_OK);
        td_matrix_row_f32(&again, 0, second);
        assert_memory_equal(second, w, sizeof w);
        assert_memory_equal(m.data, again.data, m.row_bytes);
        td_matrix_free(&m);
        td_matrix_free(&again);
    }
}

static void copies_are_equal_aligned_and_their_own(void **state) {
    (void)state;
    static float w[4][64];
    for (size_t i = 0; i < 256; i++)
        w[i / 64][i % 64] = gaussian(8, i);
    td_matrix src = f32_matrix(&w[0][0], 2, 2, 64), m, copy;
    assert_int_equal(td_matrix_quantize(&m, &src, 6, 32, TD_DTYPE_BF16, NULL), TD_OK);
    td_matrix second = td_matrix_at(&m, 1);
    assert_int_equal(td_matrix_copy(&copy, &second, NULL), TD_OK);
    assert_int_equal((uintptr_t)copy.data % 64 | (uintptr_t)copy.scales % 64 | (uintptr_t)copy.biases % 64, 0);
    assert_memory_equal(copy.data, second.data, 2 * second.row_bytes);
    float want[2][64], got[64];
    td_matrix_row_f32(&m, 2, want[0]);
    td_matrix_row_f32(&m, 3, want[1]);
    td_matrix_free(&m); /* the copy does not lean on its source */
    assert_null(m.data);
    for (size_t r = 0; r < 2; r++) {
        td_matrix_row_f32(&copy, r, got);
        assert_memory_equal(got, want[r], sizeof got);
    }
    td_matrix_free(&copy);
    td_matrix_free(&copy); /* freeing twice is nothing */
}

static void copies_of_views_at_odd_addresses_and_strides(void **state) {
    (void)state;
    uint8_t block[1 + 2 * 10 + 6]; /* six bytes of elements, four of something else, but not after the last row */
    for (size_t i = 0; i < sizeof block; i++)
        block[i] = (uint8_t)i;
    td_matrix m = {.name = "w", .data = block + 1}, copy;
    assert_int_equal(td_matrix_layout(&m, TD_FORMAT_BF16, 0, 0, 0, 1, 3, 3, NULL), TD_OK);
    m.row_bytes = 10;
    assert_int_equal(td_matrix_copy(&copy, &m, NULL), TD_OK);
    assert_int_equal(copy.row_bytes, 6);
    for (size_t r = 0; r < 3; r++)
        assert_memory_equal(copy.data + 6 * r, block + 1 + 10 * r, 6);
    assert_null(copy.scales);
    assert_null(copy.biases);
    td_matrix_free(&copy);
}

static void block_formats_are_copied_too(void **state) {
    (void)state;
    uint8_t data[64], scales[8];
    memset(data, 0x5A, sizeof data);
    memset(scales, 0x30, sizeof scales);
    td_matrix m = {.name = "w", .data = data, .scales = scales}, copy;
    assert_int_equal(td_matrix_layout(&m, TD_FORMAT_NVFP4, 0, 0, 0, 1, 4, 32, NULL), TD_OK);
    assert_int_equal(td_matrix_copy(&copy, &m, NULL), TD_OK);
    assert_memory_equal(copy.data, data, sizeof data);
    assert_memory_equal(copy.scales, scales, sizeof scales);
    assert_null(copy.biases);
    td_matrix_free(&copy);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    static float w[2][64];
    for (size_t i = 0; i < 128; i++)
        w[i / 64][i % 64] = gaussian(9, i);
    td_matrix src = f32_matrix(&w[0][0], 1, 2, 64);
    const long live = td_alloc_live();
    for (int copy = 0; copy < 2; copy++) {
        long k = 0;
        for (;; k++) {
            td_matrix m = {.owned = w};
            td_error err = {0};
            td_alloc_fail_at(k);
            td_status st =
                copy ? td_matrix_copy(&m, &src, &err) : td_matrix_quantize(&m, &src, 4, 64, TD_DTYPE_F16, &err);
            int failed = td_alloc_failed();
            td_alloc_fail_at(-1);
            if (!failed) {
                assert_int_equal(st, TD_OK);
                td_matrix_free(&m);
                break;
            }
            assert_int_equal(st, TD_E_NOMEM);
            assert_non_null(strstr(err.message, "w: out of memory"));
            assert_null(m.owned);
            assert_null(m.data);
            assert_int_equal(td_alloc_live(), live);
        }
        assert_int_equal(k, copy ? 1 : 2); /* the sweep has met the row of floats and the block */
        assert_int_equal(td_alloc_live(), live);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_worked_out_by_hand),
        cmocka_unit_test(packed_bytes_worked_out_by_hand),
        cmocka_unit_test(every_width_group_and_scale_follows_the_rule),
        cmocka_unit_test(decoded_weights_stay_within_the_bound),
        cmocka_unit_test(the_extreme_is_exact_and_zero_is_on_the_grid),
        cmocka_unit_test(constant_groups_come_back_exactly),
        cmocka_unit_test(weights_that_no_scale_can_hold_are_refused),
        cmocka_unit_test(bad_requests_are_refused),
        cmocka_unit_test(any_format_can_be_the_source),
        cmocka_unit_test(quantising_again_changes_nothing),
        cmocka_unit_test(copies_are_equal_aligned_and_their_own),
        cmocka_unit_test(copies_of_views_at_odd_addresses_and_strides),
        cmocka_unit_test(block_formats_are_copied_too),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
