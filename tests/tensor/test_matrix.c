/* test_matrix.c - layouts and their refusals, sizes, descriptions, views. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "tensor/matrix.h"

typedef struct layout_case {
    td_format format;
    unsigned bits, group;
    td_dtype scale_type;
    uint32_t n_stack, n_out, n_in;
    unsigned want_bits, want_group;
    size_t row_bytes, scale_row_bytes, bytes;
    double bits_per_weight;
    const char *text;
} layout_case;

static const layout_case cases[] = {
    {TD_FORMAT_F32, 0, 0, 0, 1, 3, 5, 32, 0, 20, 0, 60, 32, "f32"},
    {TD_FORMAT_F16, 4, 64, TD_DTYPE_F16, 2, 3, 7, 16, 0, 14, 0, 84, 16, "f16"},
    {TD_FORMAT_BF16, 0, 0, 0, 1, 1, 1, 16, 0, 2, 0, 2, 16, "bf16"},
    {TD_FORMAT_F8_E4M3, 0, 0, 0, 1, 2, 9, 8, 0, 9, 0, 18, 8, "f8_e4m3"},
    {TD_FORMAT_AFFINE, 4, 64, TD_DTYPE_BF16, 1, 10, 128, 4, 64, 64, 4, 720, 4.5, "affine 4-bit group 64"},
    {TD_FORMAT_AFFINE, 4, 32, TD_DTYPE_F16, 1, 1, 32, 4, 32, 16, 2, 20, 5, "affine 4-bit group 32"},
    {TD_FORMAT_AFFINE, 4, 128, TD_DTYPE_F16, 1, 1, 128, 4, 128, 64, 2, 68, 4.25, "affine 4-bit group 128"},
    {TD_FORMAT_AFFINE, 2, 64, TD_DTYPE_F32, 1, 1, 64, 2, 64, 16, 4, 24, 3, "affine 2-bit group 64"},
    {TD_FORMAT_AFFINE, 3, 32, TD_DTYPE_F16, 4, 2, 96, 3, 32, 36, 6, 384, 4, "affine 3-bit group 32"},
    {TD_FORMAT_AFFINE, 5, 64, TD_DTYPE_BF16, 1, 1, 64, 5, 64, 40, 2, 44, 5.5, "affine 5-bit group 64"},
    {TD_FORMAT_AFFINE, 6, 64, TD_DTYPE_BF16, 1, 1, 64, 6, 64, 48, 2, 52, 6.5, "affine 6-bit group 64"},
    {TD_FORMAT_AFFINE, 8, 64, TD_DTYPE_BF16, 1, 1, 64, 8, 64, 64, 2, 68, 8.5, "affine 8-bit group 64"},
    {TD_FORMAT_MXFP4, 0, 0, 0, 1, 3, 64, 4, 32, 32, 2, 102, 4.25, "mxfp4"},
    {TD_FORMAT_MXFP8, 8, 32, 0, 1, 3, 64, 8, 32, 64, 2, 198, 8.25, "mxfp8"},
    {TD_FORMAT_NVFP4, 4, 16, 0, 2, 3, 48, 4, 16, 24, 3, 162, 4.5, "nvfp4"},
};

static void layouts_follow_the_format(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const layout_case *c = &cases[i];
        const uint8_t byte = 0;
        td_matrix m = {.name = "w", .data = &byte};
        td_error err;
        assert_int_equal(
            td_matrix_layout(&m, c->format, c->bits, c->group, c->scale_type, c->n_stack, c->n_out, c->n_in, &err),
            TD_OK);
        assert_int_equal(m.format, c->format);
        assert_int_equal(m.bits, c->want_bits);
        assert_int_equal(m.group, c->want_group);
        assert_int_equal(m.n_stack, c->n_stack);
        assert_int_equal(m.n_out, c->n_out);
        assert_int_equal(m.n_in, c->n_in);
        assert_int_equal(m.row_bytes, c->row_bytes);
        assert_int_equal(m.scale_row_bytes, c->scale_row_bytes);
        assert_int_equal(td_matrix_bytes(&m), c->bytes);
        assert_true(td_matrix_bits_per_weight(&m) == c->bits_per_weight);
        assert_ptr_equal(m.data, &byte);
        if (c->format == TD_FORMAT_AFFINE)
            assert_int_equal(m.scale_type, c->scale_type);
        char text[64];
        assert_string_equal(td_matrix_describe(&m, text, sizeof text), c->text);
    }
}

static void bad_layouts_say_what_was_expected(void **state) {
    (void)state;
    static const struct {
        td_format format;
        unsigned bits, group;
        td_dtype scale_type;
        uint32_t n_stack, n_out, n_in;
        const char *message;
    } bad[] = {
        {TD_FORMAT_AFFINE, 4, 64, TD_DTYPE_F16, 1, 1, 96, "blk.w: 96 inputs, expected a multiple of the group of 64"},
        {TD_FORMAT_AFFINE, 4, 64, TD_DTYPE_F16, 1, 1, 63, "blk.w: 63 inputs, expected a multiple of the group of 64"},
        {TD_FORMAT_MXFP4, 0, 0, 0, 1, 1, 48, "blk.w: 48 inputs, expected a multiple of the group of 32"},
        {TD_FORMAT_NVFP4, 0, 0, 0, 1, 1, 24, "blk.w: 24 inputs, expected a multiple of the group of 16"},
        {TD_FORMAT_AFFINE, 7, 64, TD_DTYPE_F16, 1, 1, 64, "affine codes of 7 bits, expected 2, 3, 4, 5, 6 or 8"},
        {TD_FORMAT_AFFINE, 1, 64, TD_DTYPE_F16, 1, 1, 64, "affine codes of 1 bits"},
        {TD_FORMAT_AFFINE, 0, 64, TD_DTYPE_F16, 1, 1, 64, "affine codes of 0 bits"},
        {TD_FORMAT_AFFINE, 260, 64, TD_DTYPE_F16, 1, 1, 64, "affine codes of 260 bits"},
        {TD_FORMAT_AFFINE, 4, 0, TD_DTYPE_F16, 1, 1, 64, "affine groups of 0, expected 32, 64 or 128"},
        {TD_FORMAT_AFFINE, 4, 16, TD_DTYPE_F16, 1, 1, 64, "affine groups of 16"},
        {TD_FORMAT_AFFINE, 4, 65536 + 64, TD_DTYPE_F16, 1, 1, 64, "affine groups of 65600"},
        {TD_FORMAT_AFFINE, 4, 64, TD_DTYPE_U8, 1, 1, 64, "affine scales of type U8, expected F16, BF16 or F32"},
        {TD_FORMAT_AFFINE, 4, 64, (td_dtype)99, 1, 1, 64, "affine scales of type ?"},
        {TD_FORMAT_MXFP4, 8, 32, 0, 1, 1, 64, "mxfp4 with 8 bits and groups of 32, expected 4 bits and groups of 32"},
        {TD_FORMAT_NVFP4, 4, 32, 0, 1, 1, 64, "nvfp4 with 4 bits and groups of 32, expected 4 bits and groups of 16"},
        {TD_FORMAT_F32, 0, 0, 0, 0, 1, 1, "shape [0, 1, 1], expected no empty dimension"},
        {TD_FORMAT_F32, 0, 0, 0, 1, 0, 1, "shape [1, 0, 1], expected no empty dimension"},
        {TD_FORMAT_F32, 0, 0, 0, 1, 1, 0, "shape [1, 1, 0], expected no empty dimension"},
        {TD_FORMAT_F32, 0, 0, 0, UINT32_MAX, UINT32_MAX, UINT32_MAX, "is too large"},
        {TD_FORMAT_AFFINE, 2, 128, TD_DTYPE_F16, UINT32_MAX, UINT32_MAX, 128, "is too large"},
        {TD_FORMAT_F8_E4M3, 0, 0, 0, UINT32_MAX, UINT32_MAX, 1,
         "is too large"}, /* fits size_t, not a pointer difference */
        {TD_FORMAT_COUNT, 4, 64, TD_DTYPE_F16, 1, 1, 64, "unknown matrix format 27"},
        {(td_format)-1, 4, 64, TD_DTYPE_F16, 1, 1, 64, "unknown matrix format -1"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        td_matrix m = {.name = "blk.w", .format = TD_FORMAT_BF16, .bits = 16, .n_stack = 3, .n_in = 5};
        const td_matrix before = m;
        td_error err = {0};
        assert_int_equal(td_matrix_layout(&m, bad[i].format, bad[i].bits, bad[i].group, bad[i].scale_type,
                                          bad[i].n_stack, bad[i].n_out, bad[i].n_in, &err),
                         TD_E_SHAPE);
        if (!strstr(err.message, bad[i].message) || strncmp(err.message, "blk.w: ", 7) != 0)
            fail_msg("case %zu: message \"%s\", expected \"%s\"", i, err.message, bad[i].message);
        assert_memory_equal(&m, &before, sizeof m); /* a refused layout changes nothing */
    }
}

static void the_largest_row_is_laid_out(void **state) {
    (void)state;
    td_matrix m = {.name = NULL};
    assert_int_equal(td_matrix_layout(&m, TD_FORMAT_F32, 0, 0, 0, 1, 1, UINT32_MAX, NULL), TD_OK);
    assert_true(m.row_bytes == (size_t)UINT32_MAX * 4);
    td_error err;
    assert_int_equal(td_matrix_layout(&m, TD_FORMAT_MXFP4, 0, 0, 0, 1, 1, 33, &err), TD_E_SHAPE);
    assert_non_null(strstr(err.message, "matrix: 33 inputs")); /* a matrix without a name still has a sentence */
}

static void descriptions_are_cut_to_the_buffer(void **state) {
    (void)state;
    td_matrix m = {.name = "w"};
    assert_int_equal(td_matrix_layout(&m, TD_FORMAT_AFFINE, 4, 64, TD_DTYPE_F16, 1, 1, 64, NULL), TD_OK);
    char text[8];
    assert_string_equal(td_matrix_describe(&m, text, sizeof text), "affine ");
    m.format = (td_format)77;
    char long_text[40];
    assert_string_equal(td_matrix_describe(&m, long_text, sizeof long_text), "unknown format 77");
}

static void views_point_at_their_rows(void **state) {
    (void)state;
    uint8_t data[6 * 32], scales[6 * 4], biases[6 * 4];
    td_matrix m = {.name = "experts", .data = data, .scales = scales, .biases = biases, .owned = data};
    assert_int_equal(td_matrix_layout(&m, TD_FORMAT_AFFINE, 4, 32, TD_DTYPE_F16, 3, 2, 64, NULL), TD_OK);

    td_matrix second = td_matrix_at(&m, 1);
    assert_ptr_equal(second.data, data + 2 * 32);
    assert_ptr_equal(second.scales, scales + 2 * 4);
    assert_ptr_equal(second.biases, biases + 2 * 4);
    assert_int_equal(second.n_stack, 1);
    assert_int_equal(second.n_out, 2);
    assert_int_equal(td_matrix_bytes(&second), 2 * (32 + 8));
    assert_null(second.owned); /* freeing a view frees nothing */
    assert_string_equal(second.name, "experts");

    td_matrix row = td_matrix_rows(&second, 1, 1);
    assert_ptr_equal(row.data, data + 3 * 32);
    assert_int_equal(row.n_out, 1);
    td_matrix none = td_matrix_rows(&second, 2, 0);
    assert_int_equal(td_matrix_bytes(&none), 0);
    td_matrix across = td_matrix_rows(&m, 1, 4); /* rows of a stack are counted over the whole stack */
    assert_ptr_equal(across.data, data + 32);
    assert_int_equal(across.n_stack, 1);
    assert_int_equal(across.n_out, 4);

    td_matrix_free(&row);
    assert_int_equal(row.n_out, 0);
    td_matrix_free(NULL);
}

static void views_of_plain_matrices_have_no_scales(void **state) {
    (void)state;
    uint8_t data[4 * 6];
    td_matrix m = {.name = "w", .data = data};
    assert_int_equal(td_matrix_layout(&m, TD_FORMAT_BF16, 0, 0, 0, 1, 4, 3, NULL), TD_OK);
    td_matrix v = td_matrix_rows(&m, 2, 2);
    assert_ptr_equal(v.data, data + 12);
    assert_null(v.scales);
    assert_null(v.biases);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(layouts_follow_the_format),   cmocka_unit_test(bad_layouts_say_what_was_expected),
        cmocka_unit_test(the_largest_row_is_laid_out), cmocka_unit_test(descriptions_are_cut_to_the_buffer),
        cmocka_unit_test(views_point_at_their_rows),   cmocka_unit_test(views_of_plain_matrices_have_no_scales),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
