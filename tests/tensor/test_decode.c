/* test_decode.c - the reference decoder against a reader that takes one bit at a time, at addresses of every
 * alignment, in blocks of the exact size so that a sanitizer sees a byte too many. */
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
#include "tensor/matrix.h"

/* A block of n random bytes that ends where the allocation ends and starts `offset` bytes into it. */
typedef struct bytes {
    uint8_t *block, *p;
} bytes;

static bytes random_bytes(size_t n, size_t offset, uint64_t seed) {
    bytes b = {.block = malloc(offset + n)};
    b.p = b.block + offset;
    for (size_t i = 0; i < n; i++)
        b.p[i] = (uint8_t)(td_rng_uniform(seed, i, 0) * 256);
    return b;
}

static unsigned scale_size(td_dtype t) {
    return td_dtype_bits(t) / 8;
}

/* Finite scales of both signs, some tiny, some large. */
static float put_scale(uint8_t *p, td_dtype t, uint64_t seed, size_t i) {
    double u = td_rng_uniform(seed, i, 1), v = td_rng_uniform(seed, i, 2);
    float f = (float)((u - 0.5) * exp2(v * 20 - 12));
    uint16_t h = t == TD_DTYPE_F16 ? td_f32_to_f16(f) : td_f32_to_bf16(f);
    if (t == TD_DTYPE_F32) {
        memcpy(p, &f, 4);
        return f;
    }
    memcpy(p, &h, 2);
    return t == TD_DTYPE_F16 ? td_f16_to_f32(h) : td_bf16_to_f32(h);
}

static void check_affine(unsigned bits, unsigned group, td_dtype type, size_t offset) {
    enum { STACK = 2, OUT = 3 };
    const uint32_t n_in = 2 * group, n_groups = n_in / group;
    const size_t rows = STACK * OUT;
    td_matrix m = {.name = "w"};
    assert_int_equal(td_matrix_layout(&m, TD_FORMAT_AFFINE, bits, group, type, STACK, OUT, n_in, NULL), TD_OK);
    const uint64_t seed = bits * 1000 + group;
    bytes data = random_bytes(rows * m.row_bytes, offset, seed);
    bytes scales = random_bytes(rows * m.scale_row_bytes, offset, seed);
    bytes biases = random_bytes(rows * m.scale_row_bytes, offset, seed);
    float *s = malloc(rows * n_groups * sizeof *s), *b = malloc(rows * n_groups * sizeof *b);
    for (size_t i = 0; i < rows * n_groups; i++) {
        s[i] = put_scale(scales.p + i * scale_size(type), type, seed + 1, i);
        b[i] = put_scale(biases.p + i * scale_size(type), type, seed + 2, i);
    }
    m.data = data.p;
    m.scales = scales.p;
    m.biases = biases.p;
    float *out = malloc(n_in * sizeof *out);
    for (size_t row = 0; row < rows; row++) {
        td_matrix_row_f32(&m, row, out);
        for (uint32_t i = 0; i < n_in; i++) {
            unsigned q = stream_code(data.p + row * (n_in * bits / 8), i, bits);
            volatile float product = s[row * n_groups + i / group] * (float)q;
            float want = product + b[row * n_groups + i / group];
            if (bits_of(out[i]) != bits_of(want))
                fail_msg("%u bits, group %u, %s, offset %zu, row %zu, element %u: got %.9g, expected %.9g", bits, group,
                         td_dtype_name(type), offset, row, i, (double)out[i], (double)want);
        }
    }
    free(out);
    free(s);
    free(b);
    free(data.block);
    free(scales.block);
    free(biases.block);
}

static void affine_rows_match_the_bit_reader(void **state) {
    (void)state;
    static const unsigned widths[] = {2, 3, 4, 5, 6, 8}, groups[] = {32, 64, 128};
    static const td_dtype types[] = {TD_DTYPE_F16, TD_DTYPE_BF16, TD_DTYPE_F32};
    for (size_t w = 0; w < 6; w++)
        for (size_t g = 0; g < 3; g++)
            for (size_t t = 0; t < 3; t++)
                for (size_t offset = 0; offset < 4; offset++)
                    check_affine(widths[w], groups[g], types[t], offset);
}

static void affine_known_answer(void **state) {
    (void)state;
    /* 3 bits: codes 0 1 2 3 4 5 6 7 are the 24-bit integer 0xFAC688, so the bytes 88 C6 FA; scale -0.5, bias 1.5 */
    uint8_t data[12], scale[2] = {0x00, 0xBF}, bias[2] = {0xC0, 0x3F};
    for (size_t i = 0; i < sizeof data; i++)
        data[i] = (const uint8_t[]){0x88, 0xC6, 0xFA}[i % 3];
    td_matrix m = {.name = "w", .data = data, .scales = scale, .biases = bias};
    assert_int_equal(td_matrix_layout(&m, TD_FORMAT_AFFINE, 3, 32, TD_DTYPE_BF16, 1, 1, 32, NULL), TD_OK);
    static const float want[8] = {1.5f, 1.0f, 0.5f, 0.0f, -0.5f, -1.0f, -1.5f, -2.0f};
    float out[32];
    td_matrix_row_f32(&m, 0, out);
    for (size_t i = 0; i < 32; i++)
        assert_true(out[i] == want[i % 8]);
}

static void mxfp4_known_answers(void **state) {
    (void)state;
    static const float lut[16] = {0, .5f, 1, 1.5f, 2, 3, 4, 6, -0.0f, -.5f, -1, -1.5f, -2, -3, -4, -6};
    /* two groups: codes 0..15 twice, low nibble first; scales 2^0 and 2^-7 */
    uint8_t data[33], scales[2] = {127, 120};
    for (size_t i = 0; i < 32; i++)
        data[1 + i] = (uint8_t)(i % 8 * 2 | (i % 8 * 2 + 1) << 4);
    td_matrix m = {.name = "w", .data = data + 1, .scales = scales};
    assert_int_equal(td_matrix_layout(&m, TD_FORMAT_MXFP4, 0, 0, 0, 1, 1, 64, NULL), TD_OK);
    float out[64];
    td_matrix_row_f32(&m, 0, out);
    for (size_t i = 0; i < 64; i++)
        assert_int_equal(bits_of(out[i]), bits_of(lut[i % 16] * (i < 32 ? 1.0f : 0x1p-7f)));
    scales[0] = 0; /* 2^-127, not zero */
    scales[1] = 255;
    td_matrix_row_f32(&m, 0, out);
    assert_true(out[7] == 6 * 0x1p-127f);
    assert_true(isnan(out[32 + 7]));
}

static void mxfp8_known_answers(void **state) {
    (void)state;
    uint8_t data[32] = {0x00, 0x38, 0xB8, 0x7E, 0x01, 0x08, 0x40, 0x7F}, scale = 130;
    td_matrix m = {.name = "w", .data = data, .scales = &scale};
    assert_int_equal(td_matrix_layout(&m, TD_FORMAT_MXFP8, 8, 32, 0, 1, 1, 32, NULL), TD_OK);
    static const float want[] = {0, 8, -8, 3584, 0x1p-6f, 0x1p-3f, 16};
    float out[32];
    td_matrix_row_f32(&m, 0, out);
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        assert_true(out[i] == want[i]);
    assert_true(isnan(out[7]));
    assert_true(out[8] == 0);
}

static void nvfp4_known_answers(void **state) {
    (void)state;
    /* groups of 16: scales e4m3(0x38) = 1, e4m3(0x01) = 2^-9, e4m3(0x7E) = 448 */
    uint8_t data[24], scales[3] = {0x38, 0x01, 0x7E};
    memset(data, 0x7C, sizeof data); /* low nibble C: -2, high nibble 7: 6 */
    td_matrix m = {.name = "w", .data = data, .scales = scales};
    assert_int_equal(td_matrix_layout(&m, TD_FORMAT_NVFP4, 0, 0, 0, 1, 1, 48, NULL), TD_OK);
    float out[48];
    td_matrix_row_f32(&m, 0, out);
    static const float scale[3] = {1, 0x1p-9f, 448};
    for (size_t i = 0; i < 48; i++)
        assert_true(out[i] == (i % 2 ? 6 : -2) * scale[i / 16]);
}

/* Random codes and scales of the block formats, every row of a stack, at every alignment. */
static void check_block(td_format format, size_t offset) {
    td_matrix m = {.name = "w"};
    assert_int_equal(td_matrix_layout(&m, format, 0, 0, 0, 3, 2, 96, NULL), TD_OK);
    bytes data = random_bytes(6 * m.row_bytes, offset, 5), scales = random_bytes(6 * m.scale_row_bytes, offset, 6);
    m.data = data.p;
    m.scales = scales.p;
    float out[96];
    for (size_t row = 0; row < 6; row++) {
        td_matrix_row_f32(&m, row, out);
        for (size_t i = 0; i < 96; i++) {
            uint8_t q = (uint8_t)stream_code(data.p + row * (96u * m.bits / 8), i, m.bits);
            uint8_t s = scales.p[row * (96u / m.group) + i / m.group];
            float scale = format == TD_FORMAT_NVFP4 ? td_e4m3_to_f32(s) : td_e8m0_to_f32(s);
            float want = scale * (m.bits == 8 ? td_e4m3_to_f32(q) : td_e2m1_to_f32(q));
            assert_true(isnan(want) ? isnan(out[i]) : bits_of(out[i]) == bits_of(want));
        }
    }
    free(data.block);
    free(scales.block);
}

static void block_rows_match_the_bit_reader(void **state) {
    (void)state;
    for (size_t offset = 0; offset < 4; offset++) {
        check_block(TD_FORMAT_MXFP4, offset);
        check_block(TD_FORMAT_MXFP8, offset);
        check_block(TD_FORMAT_NVFP4, offset);
    }
}

static void plain_rows_are_their_elements(void **state) {
    (void)state;
    static const struct {
        td_format format;
        td_dtype type;
    } plain[] = {{TD_FORMAT_F32, TD_DTYPE_F32},
                 {TD_FORMAT_F16, TD_DTYPE_F16},
                 {TD_FORMAT_BF16, TD_DTYPE_BF16},
                 {TD_FORMAT_F8_E4M3, TD_DTYPE_F8_E4M3}};
    for (size_t k = 0; k < 4; k++)
        for (size_t offset = 0; offset < 5; offset++) {
            td_matrix m = {.name = "w"};
            assert_int_equal(td_matrix_layout(&m, plain[k].format, 0, 0, 0, 2, 2, 13, NULL), TD_OK);
            bytes data = random_bytes(4 * m.row_bytes, offset, 9 + k);
            m.data = data.p;
            float out[13], want[13];
            for (size_t row = 0; row < 4; row++) {
                td_matrix_row_f32(&m, row, out);
                assert_true(td_to_f32(want, plain[k].type, data.p + row * m.row_bytes, 13));
                assert_memory_equal(out, want, sizeof want);
            }
            free(data.block);
        }
}

static void strided_rows_skip_what_lies_between(void **state) {
    (void)state;
    const float data[2][4] = {{1, 2, 3, 99}, {4, 5, 6, 99}};
    td_matrix m = {.name = "w", .data = (const uint8_t *)data};
    assert_int_equal(td_matrix_layout(&m, TD_FORMAT_F32, 0, 0, 0, 1, 2, 3, NULL), TD_OK);
    m.row_bytes = sizeof data[0];
    float out[4] = {0, 0, 0, -1};
    td_matrix_row_f32(&m, 1, out);
    assert_memory_equal(out, data[1], 3 * sizeof(float));
    assert_true(out[3] == -1);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(affine_rows_match_the_bit_reader),
        cmocka_unit_test(affine_known_answer),
        cmocka_unit_test(mxfp4_known_answers),
        cmocka_unit_test(mxfp8_known_answers),
        cmocka_unit_test(nvfp4_known_answers),
        cmocka_unit_test(block_rows_match_the_bit_reader),
        cmocka_unit_test(plain_rows_are_their_elements),
        cmocka_unit_test(strided_rows_skip_what_lies_between),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
