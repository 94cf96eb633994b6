/* test_dtype.c - names, and every conversion over its whole domain, against formulas evaluated in double. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "support_bits.h"
#include "tensor/dtype.h"

static void names_parse_back(void **state) {
    (void)state;
    for (int t = 0; t < TD_DTYPE_COUNT; t++) {
        td_dtype back = TD_DTYPE_COUNT;
        assert_true(td_dtype_parse(td_dtype_name((td_dtype)t), &back));
        assert_int_equal(back, t);
    }
    static const char *const unknown[] = {"", "f32", "BF16 ", "BF1", "F8", "Q4_0"};
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        td_dtype untouched = TD_DTYPE_I16;
        assert_false(td_dtype_parse(unknown[i], &untouched));
        assert_int_equal(untouched, TD_DTYPE_I16);
    }
    assert_string_equal(td_dtype_name(TD_DTYPE_COUNT), "?");
    assert_string_equal(td_dtype_name((td_dtype)-1), "?");
}

static void widths_are_those_of_the_format(void **state) {
    (void)state;
    static const struct {
        const char *name;
        unsigned bits;
    } want[] = {{"BOOL", 8},    {"U8", 8},      {"I8", 8},      {"U16", 16},    {"I16", 16},        {"U32", 32},
                {"I32", 32},    {"U64", 64},    {"I64", 64},    {"F16", 16},    {"BF16", 16},       {"F32", 32},
                {"F64", 64},    {"C64", 64},    {"F8_E4M3", 8}, {"F8_E5M2", 8}, {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8},
                {"F8_E8M0", 8}, {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"F4", 4}};
    assert_int_equal(sizeof want / sizeof want[0], TD_DTYPE_COUNT);
    for (size_t i = 0; i < TD_DTYPE_COUNT; i++) {
        td_dtype t;
        assert_true(td_dtype_parse(want[i].name, &t));
        assert_int_equal(td_dtype_bits(t), want[i].bits);
    }
    assert_int_equal(td_dtype_bits(TD_DTYPE_COUNT), 0);
}

/* A binary float of e exponent bits and m mantissa bits, IEEE rules, in double: the textbook formula. */
static double small_float(unsigned code, int e_bits, int m_bits, int bias) {
    unsigned m = code & ((1u << m_bits) - 1);
    int e = (int)(code >> m_bits & ((1u << e_bits) - 1));
    double sign = code >> (e_bits + m_bits) & 1 ? -1 : 1;
    if (e == 0)
        return sign * ldexp(m, 1 - bias - m_bits);
    return sign * ldexp(1 + ldexp(m, -m_bits), e - bias);
}

/* Equal as numbers, signs of zero included; NaN equals NaN. */
static void assert_same(float got, double want, unsigned code) {
    if (isnan(want) ? !isnan(got) : bits_of(got) != bits_of((float)want))
        fail_msg("code 0x%X: got %.9g, expected %.17g", code, (double)got, want);
}

static void every_half(void **state) {
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        unsigned e = h >> 10 & 31, m = h & 1023;
        double want = small_float(h, 5, 10, 15);
        if (e == 31)
            want = m ? (double)NAN : h >> 15 ? -(double)INFINITY : (double)INFINITY;
        assert_same(td_f16_to_f32((uint16_t)h), want, h);
        unsigned back = td_f32_to_f16(td_f16_to_f32((uint16_t)h));
        assert_int_equal(back, e == 31 && m ? h | 0x200 : h); /* a NaN keeps sign and payload and becomes quiet */
    }
}

static void every_bf16(void **state) {
    (void)state;
    for (unsigned h = 0; h < 65536; h++) {
        unsigned e = h >> 7 & 255, m = h & 127;
        double want = small_float(h, 8, 7, 127);
        if (e == 255)
            want = m ? (double)NAN : h >> 15 ? -(double)INFINITY : (double)INFINITY;
        assert_same(td_bf16_to_f32((uint16_t)h), want, h);
        unsigned back = td_f32_to_bf16(td_bf16_to_f32((uint16_t)h));
        assert_int_equal(back, e == 255 && m ? h | 0x40 : h);
    }
}

/* Between any two neighbours: just below the middle goes down, the middle to the even code, just above goes up. The
 * middle of two neighbours is a float for both types. Codes of finite numbers are ordered, `inf` is the last. */
static void check_rounding(uint16_t (*round_to)(float), float (*widen)(uint16_t), unsigned inf, float beyond) {
    for (unsigned a = 0; a < inf; a++) {
        unsigned b = a + 1;
        float high = b == inf ? beyond : widen((uint16_t)b); /* what b would be without the overflow */
        float middle = (float)(((double)widen((uint16_t)a) + (double)high) / 2);
        assert_int_equal(round_to(nextafterf(middle, 0)), a);
        assert_int_equal(round_to(middle), a & 1 ? b : a);
        assert_int_equal(round_to(nextafterf(middle, INFINITY)), b);
        assert_int_equal(round_to(-middle), 0x8000 | (a & 1 ? b : a));
    }
    assert_int_equal(round_to(INFINITY), inf);
    assert_int_equal(round_to(-INFINITY), 0x8000 | inf);
    assert_int_equal(round_to(0x1.fffffep127f), inf);
    assert_true(isnan(widen(round_to(NAN))));
    assert_true(isnan(widen(round_to(float_of(0x7F800001))))); /* a payload that the narrow type drops */
    assert_true(isnan(widen(round_to(float_of(0xFF800001)))));
}

static float widen_bf16(uint16_t h) {
    return td_bf16_to_f32(h);
}

static uint16_t round_bf16(float f) {
    return td_f32_to_bf16(f);
}

static void f16_rounds_to_nearest_even(void **state) {
    (void)state;
    check_rounding(td_f32_to_f16, td_f16_to_f32, 0x7C00, 65536.0f);
    assert_int_equal(td_f32_to_f16(float_of(1)), 0); /* the smallest float */
    assert_int_equal(td_f32_to_f16(-0.0f), 0x8000);
}

static void bf16_rounds_to_nearest_even(void **state) {
    (void)state;
    /* 2^128 is no float: leave the last pair to explicit cases */
    for (unsigned a = 0; a < 0x7F7F; a++) {
        uint32_t middle = a << 16 | 0x8000;
        assert_int_equal(round_bf16(float_of(middle - 1)), a);
        assert_int_equal(round_bf16(float_of(middle)), a & 1 ? a + 1 : a);
        assert_int_equal(round_bf16(float_of(middle + 1)), a + 1);
        assert_int_equal(round_bf16(float_of(middle | 0x80000000u)), 0x8000 | (a & 1 ? a + 1 : a));
    }
    assert_int_equal(round_bf16(float_of(0x7F7F7FFF)), 0x7F7F);
    assert_int_equal(round_bf16(float_of(0x7F7F8000)), 0x7F80);
    assert_int_equal(round_bf16(INFINITY), 0x7F80);
    assert_true(isnan(widen_bf16(round_bf16(float_of(0x7F800001)))));
    assert_true(isnan(widen_bf16(round_bf16(float_of(0xFFFFFFFF)))));
}

static void every_8_bit_code(void **state) {
    (void)state;
    for (unsigned b = 0; b < 256; b++) {
        double e4m3 = (b & 0x7F) == 0x7F ? (double)NAN : small_float(b, 4, 3, 7);
        assert_same(td_e4m3_to_f32((uint8_t)b), e4m3, b);
        double e5m2 = small_float(b, 5, 2, 15);
        if ((b & 0x7C) == 0x7C)
            e5m2 = b & 3 ? (double)NAN : b & 0x80 ? -(double)INFINITY : (double)INFINITY;
        assert_same(td_e5m2_to_f32((uint8_t)b), e5m2, b);
        assert_same(td_e8m0_to_f32((uint8_t)b), b == 255 ? (double)NAN : ldexp(1, (int)b - 127), b);
        assert_same(td_e2m1_to_f32((uint8_t)b), small_float(b & 15, 2, 1, 1), b);
    }
    assert_true(td_e4m3_to_f32(0x7E) == 448.0f);
    assert_true(td_e5m2_to_f32(0x7B) == 57344.0f);
    assert_true(td_e2m1_to_f32(7) == 6.0f);
}

static float element(td_dtype t, const uint8_t *p) {
    uint16_t h;
    float f;
    double d;
    memcpy(&h, p, 2);
    switch (t) {
    case TD_DTYPE_F32:
        memcpy(&f, p, 4);
        return f;
    case TD_DTYPE_F64:
        memcpy(&d, p, 8);
        return (float)d;
    case TD_DTYPE_F16:
        return td_f16_to_f32(h);
    case TD_DTYPE_BF16:
        return td_bf16_to_f32(h);
    case TD_DTYPE_F8_E4M3:
        return td_e4m3_to_f32(*p);
    case TD_DTYPE_F8_E5M2:
        return td_e5m2_to_f32(*p);
    default:
        return td_e8m0_to_f32(*p);
    }
}

static void runs_convert_from_any_address(void **state) {
    (void)state;
    static const td_dtype types[] = {TD_DTYPE_F32,     TD_DTYPE_F16,     TD_DTYPE_BF16,   TD_DTYPE_F64,
                                     TD_DTYPE_F8_E4M3, TD_DTYPE_F8_E5M2, TD_DTYPE_F8_E8M0};
    enum { N_MAX = 37 };
    for (size_t k = 0; k < sizeof types / sizeof types[0]; k++)
        for (size_t offset = 0; offset < 9; offset++)
            for (size_t n = 0; n <= N_MAX; n++) {
                size_t size = td_dtype_bits(types[k]) / 8;
                uint8_t *block = malloc(offset + n * size + 1); /* exact: the sanitizer sees a byte too many */
                uint8_t *src = block + offset;
                for (size_t i = 0; i < n * size; i++)
                    src[i] = (uint8_t)(i * 89 + n * 7 + 3);
                float out[N_MAX + 1];
                out[n] = 12345.0f;
                assert_true(td_to_f32(out, types[k], n ? src : NULL, n));
                for (size_t i = 0; i < n; i++) {
                    uint8_t one[8] = {0};
                    memcpy(one, src + i * size, size);
                    float want = element(types[k], one);
                    assert_memory_equal(&out[i], &want, sizeof want);
                }
                assert_true(out[n] == 12345.0f);
                free(block);
            }
}

static void other_types_are_refused(void **state) {
    (void)state;
    const uint8_t src[8] = {0};
    for (int t = 0; t <= TD_DTYPE_COUNT; t++) {
        bool floating = t == TD_DTYPE_F32 || t == TD_DTYPE_F16 || t == TD_DTYPE_BF16 || t == TD_DTYPE_F64 ||
                        t == TD_DTYPE_F8_E4M3 || t == TD_DTYPE_F8_E5M2 || t == TD_DTYPE_F8_E8M0;
        float out = 7;
        assert_int_equal(td_to_f32(&out, (td_dtype)t, src, 1), floating);
        assert_int_equal(out == 7, !floating);
    }
}

static void doubles_round_and_overflow_as_ieee(void **state) {
    (void)state;
    const double d[] = {1 + 0x1p-24, 1 + 0x1.8p-23, 1e300, -1e300, 0x1p-149, 0x1p-151, -0.0};
    const float want[] = {1, 1 + 0x1p-22f, INFINITY, -INFINITY, 0x1p-149f, 0, -0.0f};
    float got[7];
    assert_true(td_to_f32(got, TD_DTYPE_F64, d, 7));
    assert_memory_equal(got, want, sizeof want);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_parse_back),
        cmocka_unit_test(widths_are_those_of_the_format),
        cmocka_unit_test(every_half),
        cmocka_unit_test(every_bf16),
        cmocka_unit_test(f16_rounds_to_nearest_even),
        cmocka_unit_test(bf16_rounds_to_nearest_even),
        cmocka_unit_test(every_8_bit_code),
        cmocka_unit_test(runs_convert_from_any_address),
        cmocka_unit_test(other_types_are_refused),
        cmocka_unit_test(doubles_round_and_overflow_as_ieee),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
