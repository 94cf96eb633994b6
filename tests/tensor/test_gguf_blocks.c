/* test_gguf_blocks.c - the reference decoder of GGUF blocks against blocks made by hand, and against a second reader
 * that finds one element at a time by the format's formula; sizes; the encoders. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/rng.h"
#include "support_bits.h"
#include "tensor/blocks.h"

static void put_half(uint8_t *p, float x) {
    uint16_t h = td_f32_to_f16(x);
    memcpy(p, &h, 2);
}

static void expect(const char *what, const float *got, size_t i, float want) {
    if (bits_of(got[i]) != bits_of(want))
        fail_msg("%s: element %zu is %.9g, expected %.9g", what, i, (double)got[i], (double)want);
}

/* ---- blocks made by hand ---- */

static void codes_of_32_lie_in_nibbles(void **state) {
    (void)state;
    uint8_t b[18];
    float out[32];
    put_half(b, 0.5f);
    for (uint8_t i = 0; i < 16; i++)
        b[2 + i] = (uint8_t)(i | (15 - i) << 4);
    td_block_row_f32(TD_FORMAT_Q4_0, b, 32, out);
    for (size_t i = 0; i < 16; i++) {
        expect("q4_0", out, i, 0.5f * ((float)i - 8));
        expect("q4_0", out, 16 + i, 0.5f * (7 - (float)i));
    }
    static const float nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    td_block_row_f32(TD_FORMAT_IQ4_NL, b, 32, out);
    for (size_t i = 0; i < 16; i++) {
        expect("iq4_nl", out, i, 0.5f * nl[i]);
        expect("iq4_nl", out, 16 + i, 0.5f * nl[15 - i]);
    }
}

static void minimum_and_fifth_bit(void **state) {
    (void)state;
    uint8_t b[24] = {0};
    float out[32];
    put_half(b, 0.25f);
    put_half(b + 2, -3);
    memset(b + 4, 0x21, 16);
    td_block_row_f32(TD_FORMAT_Q4_1, b, 32, out);
    expect("q4_1", out, 0, -2.75f);
    expect("q4_1", out, 31, -2.5f);

    memset(b + 2, 0, 22);
    b[2 + 2] = 0x04; /* the fifth bit of element 18 alone */
    memset(b + 6, 0x31, 16);
    td_block_row_f32(TD_FORMAT_Q5_0, b, 32, out);
    expect("q5_0", out, 2, 0.25f * (1 - 16));
    expect("q5_0", out, 17, 0.25f * (3 - 16));
    expect("q5_0", out, 18, 0.25f * (3 + 16 - 16));

    put_half(b + 2, 7);
    memset(b + 4, 0, 20);
    b[4] = 0x80; /* element 7 */
    b[8 + 7] = 0x0F;
    td_block_row_f32(TD_FORMAT_Q5_1, b, 32, out);
    expect("q5_1", out, 6, 7);
    expect("q5_1", out, 7, 0.25f * 31 + 7);
}

static void bytes_are_signed(void **state) {
    (void)state;
    uint8_t b[2 * 34];
    float out[64];
    for (size_t k = 0; k < 2; k++) {
        put_half(b + 34 * k, k ? -2.0f : 0.125f);
        for (size_t i = 0; i < 32; i++)
            b[34 * k + 2 + i] = (uint8_t)(i * 8 + 4); /* 4 .. 124, -124 .. -4 */
    }
    td_block_row_f32(TD_FORMAT_Q8_0, b, 64, out);
    for (size_t i = 0; i < 32; i++) {
        float q = (float)(i * 8 + 4) - (i >= 16 ? 256 : 0);
        expect("q8_0", out, i, q * 0.125f);
        expect("q8_0", out, 32 + i, q * -2.0f);
    }
}

static void powers_of_two_down_to_subnormals(void **state) {
    (void)state;
    static const float e2m1[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, -.5f, -1, -1.5f, -2, -3, -4, -6};
    uint8_t b[17];
    float out[32];
    for (uint8_t i = 0; i < 16; i++)
        b[1 + i] = (uint8_t)(i | i << 4);
    static const uint8_t exponents[] = {0, 1, 2, 3, 127, 128, 200};
    for (size_t k = 0; k < sizeof exponents; k++) {
        b[0] = exponents[k];
        td_block_row_f32(TD_FORMAT_MXFP4_BLOCK, b, 32, out);
        for (size_t i = 0; i < 16; i++) {
            expect("mxfp4", out, i, ldexpf(e2m1[i], exponents[k] - 127));
            expect("mxfp4", out, 16 + i, ldexpf(e2m1[i], exponents[k] - 127));
        }
    }
}

/* Twelve bytes with the scales 1 2 3 4 | 17 34 51 63 and the minima 5 6 7 8 | 63 48 33 18. */
static const uint8_t six_bits[12] = {0x01 | 1 << 6,  0x02 | 2 << 6,  0x03 | 3 << 6,  0x04 | 3 << 6,
                                     0x05 | 3 << 6,  0x06 | 3 << 6,  0x07 | 2 << 6,  0x08 | 1 << 6,
                                     0x1 | 0xF << 4, 0x2 | 0x0 << 4, 0x3 | 0x1 << 4, 0xF | 0x2 << 4};
static const float scales[8] = {1, 2, 3, 4, 17, 34, 51, 63}, minima[8] = {5, 6, 7, 8, 63, 48, 33, 18};

static void six_bit_scales_of_k_blocks(void **state) {
    (void)state;
    uint8_t b[176] = {0};
    float out[256];
    put_half(b, 0.5f);
    put_half(b + 2, 0.25f);
    memcpy(b + 4, six_bits, 12);
    memset(b + 16, 0x73, 128);
    td_block_row_f32(TD_FORMAT_Q4_K, b, 256, out);
    for (size_t i = 0; i < 256; i++)
        expect("q4_k", out, i, 0.5f * scales[i / 32] * (i / 32 % 2 ? 7 : 3) - 0.25f * minima[i / 32]);

    memset(b + 16, 0, 32);
    b[16 + 9] = 0x10; /* fifth bit of element 4*32 + 9 */
    memset(b + 48, 0x73, 128);
    td_block_row_f32(TD_FORMAT_Q5_K, b, 256, out);
    for (size_t i = 0; i < 256; i++) {
        float q = (float)(i / 32 % 2 ? 7 : 3) + (i == 137 ? 16 : 0);
        expect("q5_k", out, i, 0.5f * scales[i / 32] * q - 0.25f * minima[i / 32]);
    }
}

static void signed_scales_of_q6_k(void **state) {
    (void)state;
    uint8_t b[210] = {0};
    float out[256];
    put_half(b + 208, 0.5f);
    for (size_t i = 0; i < 16; i++)
        b[192 + i] = (uint8_t)(int8_t)((int)i - 8);
    b[64 + 32 + 3] = 0xA5;  /* elements 128 + 35 (low 5) and 128 + 99 (low 10) */
    b[128 + 32 + 3] = 0x84; /* their high bits: 1 at shift 2, 2 at shift 6 */
    td_block_row_f32(TD_FORMAT_Q6_K, b, 256, out);
    for (size_t i = 0; i < 256; i++) {
        int q = i == 163 ? 5 + 16 : i == 227 ? 10 + 32 : 0;
        expect("q6_k", out, i, 0.5f * (float)((int)(i / 16) - 8) * (float)(q - 32));
    }
}

/* ---- every format against a reader of one element, by the published formulas ---- */

static float h(const uint8_t *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return td_f16_to_f32(v);
}

static int nib(const uint8_t *b, int o, int i) {
    return i < 16 ? b[o + i] & 15 : b[o + i - 16] >> 4;
}

static float k4(const uint8_t *b, int i, int q) {
    const uint8_t *s = b + 4;
    int j = i / 32, S, M;
    if (j < 4)
        S = s[j] & 63, M = s[j + 4] & 63;
    else
        S = (s[j + 4] & 15) | (s[j - 4] >> 6) << 4, M = (s[j + 4] >> 4) | (s[j] >> 6) << 4;
    return h(b) * (float)S * (float)q - h(b + 2) * (float)M;
}

static float element(td_format f, const uint8_t *b, int i) {
    static const int nl[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    int by;
    switch (f) {
    case TD_FORMAT_Q4_0:
        return (float)(nib(b, 2, i) - 8) * h(b);
    case TD_FORMAT_Q4_1:
        return (float)nib(b, 4, i) * h(b) + h(b + 2);
    case TD_FORMAT_Q5_0:
        return (float)(nib(b, 6, i) + 16 * ((b[2 + i / 8] >> (i % 8)) & 1) - 16) * h(b);
    case TD_FORMAT_Q5_1:
        return (float)(nib(b, 8, i) + 16 * ((b[4 + i / 8] >> (i % 8)) & 1)) * h(b) + h(b + 2);
    case TD_FORMAT_Q8_0:
        return (float)(int8_t)b[2 + i] * h(b);
    case TD_FORMAT_IQ4_NL:
        return h(b) * (float)nl[nib(b, 2, i)];
    case TD_FORMAT_Q4_K:
        by = b[16 + 32 * (i / 64) + i % 32];
        return k4(b, i, i % 64 < 32 ? by & 15 : by >> 4);
    case TD_FORMAT_Q5_K:
        by = b[48 + 32 * (i / 64) + i % 32];
        return k4(b, i, (i % 64 < 32 ? by & 15 : by >> 4) + 16 * ((b[16 + i % 32] >> (i / 32)) & 1));
    case TD_FORMAT_Q6_K: {
        int half = i / 128, g = (i % 128) / 32, l = i % 32;
        by = b[64 * half + l + 32 * (g & 1)];
        int q = (g < 2 ? by & 15 : by >> 4) | (((b[128 + 32 * half + l] >> (2 * g)) & 3) << 4);
        return (h(b + 208) * (float)(int8_t)b[192 + i / 16]) * (float)(q - 32);
    }
    case TD_FORMAT_Q2_K: {
        int s = b[i / 16], q = (b[16 + 32 * (i / 128) + i % 32] >> (2 * ((i % 128) / 32))) & 3;
        return (h(b + 80) * (float)(s & 15)) * (float)q - h(b + 82) * (float)(s >> 4);
    }
    case TD_FORMAT_Q3_K: {
        int k = i / 16, lo = k < 8 ? b[96 + k] & 15 : b[88 + k] >> 4, hi = (b[104 + k % 4] >> (2 * (k / 4))) & 3;
        int q = (b[32 + 32 * (i / 128) + i % 32] >> (2 * ((i % 128) / 32))) & 3, on = (b[i % 32] >> (i / 32)) & 1;
        return (h(b + 108) * (float)((lo | hi << 4) - 32)) * (float)(q - (on ? 0 : 4));
    }
    case TD_FORMAT_IQ4_XS: {
        int ib = i / 32, sh = b[2] | b[3] << 8;
        int ls = ((b[4 + ib / 2] >> (4 * (ib % 2))) & 15) | (((sh >> (2 * ib)) & 3) << 4);
        by = b[8 + 16 * ib + i % 16];
        return (h(b) * (float)(ls - 32)) * (float)nl[i % 32 < 16 ? by & 15 : by >> 4];
    }
    case TD_FORMAT_NVFP4_BLOCK: {
        static const int f4[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
        int s = i / 16, x = b[s], e = (x >> 3) & 15, m = x & 7;
        float scale = x == 0 || x == 0x7F ? 0 : e ? ldexpf(1 + (float)m / 8, e - 7) : ldexpf((float)m, -9);
        by = b[4 + 8 * s + i % 8];
        return (float)f4[i % 16 < 8 ? by & 15 : by >> 4] * (0.5f * scale);
    }
    case TD_FORMAT_TQ2_0:
        return (float)(((b[32 * (i / 128) + i % 32] >> (2 * ((i % 128) / 32))) & 3) - 1) * h(b + 64);
    case TD_FORMAT_TQ1_0: {
        static const int power[5] = {1, 3, 9, 27, 81};
        int n = i < 160 ? i / 32 : i < 240 ? (i - 160) / 16 : (i - 240) / 4;
        by = i < 160 ? b[i % 32] : i < 240 ? b[32 + (i - 160) % 16] : b[48 + (i - 240) % 4];
        return (float)(((uint8_t)(by * power[n]) * 3 >> 8) - 1) * h(b + 52);
    }
    case TD_FORMAT_Q1_0:
        return (b[2 + i / 8] >> (i % 8)) & 1 ? h(b) : -h(b);
    case TD_FORMAT_Q2_0:
        return (float)(((b[2 + i / 4] >> (2 * (i % 4))) & 3) - 1) * h(b);
    default:
        fail_msg("no formula for format %d", (int)f);
        return 0;
    }
}

static const td_format with_formula[] = {
    TD_FORMAT_Q4_0,        TD_FORMAT_Q4_1,  TD_FORMAT_Q5_0,  TD_FORMAT_Q5_1, TD_FORMAT_Q8_0,   TD_FORMAT_Q2_K,
    TD_FORMAT_Q3_K,        TD_FORMAT_Q4_K,  TD_FORMAT_Q5_K,  TD_FORMAT_Q6_K, TD_FORMAT_IQ4_NL, TD_FORMAT_IQ4_XS,
    TD_FORMAT_NVFP4_BLOCK, TD_FORMAT_TQ1_0, TD_FORMAT_TQ2_0, TD_FORMAT_Q1_0, TD_FORMAT_Q2_0};
#define N_FORMULAS (sizeof with_formula / sizeof with_formula[0])

/* Three random blocks at an odd address that end where their memory ends; every half in them is finite. */
static void formulas_agree_on_random_blocks(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FORMULAS; f++) {
        const td_format format = with_formula[f];
        const size_t n = td_block_elements(format), bytes = td_block_bytes(format);
        uint8_t *p = malloc(3 * bytes + 1);
        float *out = malloc(3 * n * sizeof *out);
        for (uint64_t round = 0; round < 50; round++) {
            for (size_t i = 0; i <= 3 * bytes; i++) {
                p[i] = (uint8_t)(td_rng_uniform(f * 100 + round, i, 0) * 256);
                p[i] = (uint8_t)((p[i] & 0x7C) == 0x7C ? p[i] & ~0x40 : p[i]);
            }
            td_block_row_f32(format, p + 1, 3 * n, out);
            for (size_t i = 0; i < 3 * n; i++)
                expect("formula", out, i, element(format, p + 1 + i / n * bytes, (int)(i % n)));
        }
        free(p);
        free(out);
    }
}

/* ---- IQ2_XXS ---- */

static void signs_and_grid_of_iq2_xxs(void **state) {
    (void)state;
    uint8_t b[66] = {0};
    float out[256];
    put_half(b, 4);
    b[2 + 8 + 1] = 1;                              /* group 1, second eight: grid word 2, digit 0 is 2 */
    b[2 + 8 + 2] = 255;                            /* third eight: 6402 = 22210010 in base 3, read from the right */
    uint32_t word = 3u << 28 | 1u << 14 | 3u << 7; /* third eight: sign 0, evened by 7; second: signs 0 and 1 */
    memcpy(b + 2 + 8 + 4, &word, 4);
    td_block_row_f32(TD_FORMAT_IQ2_XXS, b, 256, out);
    for (size_t i = 0; i < 256; i++) {
        static const float third[8] = {8, 25, 8, 8, 25, 43, 43, 43};
        float scale = i / 32 == 1 ? 4 * 3.5f * 0.25f : 4 * 0.5f * 0.25f, want = 8;
        if (i == 40)
            want = 43;
        if (i >= 48 && i < 56)
            want = third[i - 48];
        bool negative = i == 40 || i == 41 || i == 48 || i == 55;
        expect("iq2_xxs", out, i, negative ? -scale * want : scale * want);
    }
}

/* ---- small types ---- */

/* Every code under scales of 1, the smallest, the largest and the one that is no number elsewhere. */
static void scales_of_nvfp4(void **state) {
    (void)state;
    static const float e2m1[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, 0, -.5f, -1, -1.5f, -2, -3, -4, -6};
    static const float scale[4] = {1, 0x1p-9f, 448, 0};
    uint8_t b[36] = {0x38, 0x01, 0x7E, 0x7F};
    float out[64];
    for (uint8_t s = 0; s < 4; s++)
        for (uint8_t i = 0; i < 8; i++)
            b[4 + 8 * s + i] = (uint8_t)(i | (8 + i) << 4);
    td_block_row_f32(TD_FORMAT_NVFP4_BLOCK, b, 64, out);
    for (size_t i = 0; i < 64; i++)
        expect("nvfp4", out, i, i < 48 ? scale[i / 16] * e2m1[i % 16] : i % 16 > 8 ? -0.0f : 0.0f);
}

/* Bytes of five equal digits, and of the digits 2 1 0 0 0: what ggml writes for them. */
static void digits_of_tq1_0(void **state) {
    (void)state;
    uint8_t b[54];
    float out[256];
    put_half(b + 52, 2);
    memset(b, 0, 52);        /* all digits 0 */
    memset(b + 32, 128, 16); /* 11111 in base 3 is 121; times 256 / 243, rounded up */
    memset(b + 48, 255, 4);
    b[3] = 200; /* 21000 is 189 */
    td_block_row_f32(TD_FORMAT_TQ1_0, b, 256, out);
    for (size_t i = 0; i < 256; i++)
        expect("tq1_0", out, i, i == 3 ? 2 : i == 35 ? 0 : i < 160 ? -2 : i < 240 ? 0 : 2);
}

static void codes_of_one_and_two_bits(void **state) {
    (void)state;
    uint8_t b[66] = {0};
    float out[256];
    put_half(b, 3);
    b[2 + 4] = 0x02; /* element 33 */
    td_block_row_f32(TD_FORMAT_Q1_0, b, 128, out);
    for (size_t i = 0; i < 128; i++)
        expect("q1_0", out, i, i == 33 ? 3 : -3);
    b[2 + 4] = 0xE4; /* elements 16..19: codes 0 1 2 3 */
    td_block_row_f32(TD_FORMAT_Q2_0, b, 64, out);
    for (size_t i = 0; i < 64; i++)
        expect("q2_0", out, i, i >= 16 && i < 20 ? 3 * ((float)(i - 16) - 1) : -3);
    memset(b, 0x55, 64);
    b[32] = 0xE4; /* elements 128, 160, 192, 224 */
    put_half(b + 64, 0.5f);
    td_block_row_f32(TD_FORMAT_TQ2_0, b, 256, out);
    for (size_t i = 0; i < 256; i++)
        expect("tq2_0", out, i, i >= 128 && i % 32 == 0 ? 0.5f * ((float)((i - 128) / 32) - 1) : 0);
}

/* ---- as a matrix ---- */

static void a_matrix_of_blocks(void **state) {
    (void)state;
    static const struct {
        td_format format;
        const char *name;
        uint32_t n_in;
        size_t row_bytes;
        double bits;
    } cases[] = {{TD_FORMAT_Q4_0, "q4_0", 96, 54, 4.5},           {TD_FORMAT_Q8_0, "q8_0", 32, 34, 8.5},
                 {TD_FORMAT_Q4_K, "q4_k", 512, 288, 4.5},         {TD_FORMAT_Q6_K, "q6_k", 256, 210, 6.5625},
                 {TD_FORMAT_IQ2_XXS, "iq2_xxs", 256, 66, 2.0625}, {TD_FORMAT_NVFP4_BLOCK, "nvfp4 blocks", 128, 72, 4.5},
                 {TD_FORMAT_TQ1_0, "tq1_0", 256, 54, 1.6875},     {TD_FORMAT_TQ2_0, "tq2_0", 256, 66, 2.0625},
                 {TD_FORMAT_Q1_0, "q1_0", 256, 36, 1.125},        {TD_FORMAT_Q2_0, "q2_0", 64, 18, 2.25}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[48];
        td_matrix m = {.name = "w"}, copy;
        assert_int_equal(td_matrix_layout(&m, cases[i].format, 0, 0, 0, 2, 3, cases[i].n_in, NULL), TD_OK);
        assert_int_equal(m.row_bytes, cases[i].row_bytes);
        assert_int_equal(m.scale_row_bytes, 0);
        assert_int_equal(td_matrix_bytes(&m), 6 * cases[i].row_bytes);
        assert_true(td_matrix_bits_per_weight(&m) == cases[i].bits);
        assert_string_equal(td_matrix_describe(&m, text, sizeof text), cases[i].name);
        uint8_t *data = calloc(6, m.row_bytes);
        float *a = malloc(m.n_in * sizeof *a), *b = malloc(m.n_in * sizeof *b);
        for (size_t j = 0; j < 6 * m.row_bytes; j++)
            data[j] = (uint8_t)(j * 37 & 0xBB);
        m.data = data;
        assert_int_equal(td_matrix_copy(&copy, &m, NULL), TD_OK);
        assert_null(copy.scales);
        for (uint32_t row = 0; row < 6; row++) {
            td_matrix one = td_matrix_rows(&m, row, 1);
            td_block_row_f32(m.format, data + row * m.row_bytes, m.n_in, a);
            td_matrix_row_f32(&one, 0, b);
            assert_memory_equal(a, b, m.n_in * sizeof *a);
            td_matrix_row_f32(&copy, row, b);
            assert_memory_equal(a, b, m.n_in * sizeof *a);
        }
        td_matrix_free(&copy);
        free(data);
        free(a);
        free(b);
    }
}

static void half_a_block_is_refused(void **state) {
    (void)state;
    td_error err;
    td_matrix m = {.name = "blk.0.w"};
    assert_int_equal(td_matrix_layout(&m, TD_FORMAT_Q4_K, 0, 0, 0, 1, 1, 128, &err), TD_E_SHAPE);
    assert_non_null(strstr(err.message, "blk.0.w: 128 inputs, expected a multiple of the group of 256"));
    assert_int_equal(td_matrix_layout(&m, TD_FORMAT_Q4_0, 0, 64, 0, 1, 1, 128, &err), TD_E_SHAPE);
}

/* ---- encoders ---- */

/* The largest error a group may have, as a part of its largest magnitude: half a step of the codes, plus what rounding
 * scales to their stored width adds. */
static void encoders_come_back(void **state) {
    (void)state;
    static const struct {
        td_format format;
        float part;
    } cases[] = {{TD_FORMAT_Q8_0, 0.0045f}, {TD_FORMAT_Q4_0, 0.127f}, {TD_FORMAT_Q5_0, 0.065f},
                 {TD_FORMAT_Q4_K, 0.12f},   {TD_FORMAT_Q5_K, 0.09f},  {TD_FORMAT_Q6_K, 0.035f}};
    float x[512], y[512];
    uint8_t row[512 * 34 / 32];
    for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        const td_format f = cases[c].format;
        assert_true(td_block_encodes(f));
        for (size_t i = 0; i < 512; i++)
            x[i] = (float)(td_rng_uniform(7, i, 0) - 0.4) * (float)exp2((double)(i / 256));
        for (size_t i = 256; i < 288; i++)
            x[i] = 0;
        td_block_encode(f, row, x, 512);
        td_block_row_f32(f, row, 512, y);
        for (size_t i = 0; i < 512; i++) {
            float top = 0;
            for (size_t j = i / 256 * 256; j < i / 256 * 256 + 256; j++)
                top = fmaxf(top, fabsf(x[j]));
            if (fabsf(x[i] - y[i]) > cases[c].part * top)
                fail_msg("format %d, element %zu: %g came back as %g", (int)f, i, (double)x[i], (double)y[i]);
        }
    }
    assert_false(td_block_encodes(TD_FORMAT_Q2_K));
    assert_false(td_block_encodes(TD_FORMAT_BF16));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(codes_of_32_lie_in_nibbles),
        cmocka_unit_test(minimum_and_fifth_bit),
        cmocka_unit_test(bytes_are_signed),
        cmocka_unit_test(powers_of_two_down_to_subnormals),
        cmocka_unit_test(six_bit_scales_of_k_blocks),
        cmocka_unit_test(signed_scales_of_q6_k),
        cmocka_unit_test(formulas_agree_on_random_blocks),
        cmocka_unit_test(signs_and_grid_of_iq2_xxs),
        cmocka_unit_test(scales_of_nvfp4),
        cmocka_unit_test(digits_of_tq1_0),
        cmocka_unit_test(codes_of_one_and_two_bits),
        cmocka_unit_test(a_matrix_of_blocks),
        cmocka_unit_test(half_a_block_is_refused),
        cmocka_unit_test(encoders_come_back),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
