/* test_blocks.c - products with GGUF blocks: the weights of the reference decoder, and the bits of a row whatever rides
 * along.
 *
 * Activations are whole numbers up to 127 with one of 127 in every 32, so their quantisation is exact and only the
 * roundings of float sums are left: at most four a group of 16, of magnitudes that stay below three times the row's
 * largest weight times the activations of the group. A code that lands on the wrong activation, or a scale on the wrong
 * group, is off by thousands of times that. */
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
#include "tensor/blocks.h"

/* Whether the CPU backend multiplies the format as integers. */
static bool is_integer(const bt_kind *k) {
    switch (k->format) {
    case TD_FORMAT_IQ2_XXS:
    case TD_FORMAT_NVFP4_BLOCK:
    case TD_FORMAT_TQ1_0:
    case TD_FORMAT_TQ2_0:
    case TD_FORMAT_Q1_0:
    case TD_FORMAT_Q2_0:
        return false;
    default:
        return true;
    }
}

typedef struct matrix {
    td_matrix m;
    uint8_t *block;
} matrix;

/* At an odd address, flush against the end of its memory. */
static matrix matrix_new(bt_rng *r, const bt_kind *k, uint32_t n_out, uint32_t n_in, unsigned fill) {
    matrix x = {.m = {.name = k->name}};
    td_error err;
    if (td_matrix_layout(&x.m, k->format, 0, 0, 0, 1, n_out, n_in, &err) != TD_OK)
        fail_msg("%s", err.message);
    const size_t bytes = x.m.row_bytes * n_out;
    x.block = malloc(bytes + 1);
    assert_non_null(x.block);
    uint8_t *p = x.block + 1;
    bt_fill_blocks(r, p, bytes, k->format, fill);
    x.m.data = p;
    return x;
}

static float *floats(size_t n) {
    float *p = malloc(n * sizeof *p);
    assert_non_null(p);
    return p;
}

/* Whole numbers in -127..127. */
static void fill_whole(bt_rng *r, float *x, size_t n) {
    for (size_t i = 0; i < n; i++)
        x[i] = i % 32 == 5 ? 127.0f : (float)(int)(bt_next(r) % 255) - 127.0f;
}

static void product(td_backend *be, const float *x, uint32_t n, const td_matrix *w, float *y) {
    be->ops->linear(be, x, n, &(td_linear_out){w, y}, 1);
    bt_wait(be);
}

static void check_rows(const char *what, const td_matrix *m, const float *x, uint32_t n, const float *y) {
    float *row = floats(m->n_in);
    for (uint32_t o = 0; o < m->n_out; o++) {
        td_matrix_row_f32(m, o, row);
        double top = 0;
        for (uint32_t i = 0; i < m->n_in; i++)
            top = fmax(top, fabs((double)row[i]));
        for (uint32_t j = 0; j < n; j++) {
            double want = 0, activity = 0;
            for (uint32_t i = 0; i < m->n_in; i++) {
                want += (double)row[i] * x[(size_t)j * m->n_in + i];
                activity += fabs((double)x[(size_t)j * m->n_in + i]);
            }
            const double roundings = 4 * (m->n_in / 16.0 + 4);
            bt_close(what, (size_t)j * m->n_out + o, y[(size_t)j * m->n_out + o], want,
                     roundings * BT_EPS * 3 * top * activity + 1e-30);
        }
    }
    free(row);
}

static void check(const bt_kind *k, td_isa isa, uint32_t n, uint32_t n_out, uint32_t n_in, unsigned fill, bool fl) {
    bt_rng r = {20261130 + n_in + n};
    matrix w = matrix_new(&r, k, n_out, n_in, fill);
    float *x = floats((size_t)n * n_in);
    fill_whole(&r, x, (size_t)n * n_in);
    if (fill < 256)
        for (size_t i = 0; i < (size_t)n * n_in; i++)
            x[i] = i / n_in % 2 ? -127.0f : 127.0f;
    td_backend *be = bt_open(isa, 2, fl);
    bt_guard y = bt_guard_new((size_t)n * n_out);
    product(be, x, n, &w.m, y.y);
    char what[96];
    snprintf(what, sizeof what, "%s, %s, %u rows, %u x %u%s", k->name, bt_level_name(isa), n, n_out, n_in,
             fl ? ", float activations" : "");
    check_rows(what, &w.m, x, n, y.y);
    bt_guard_free(&y);
    td_backend_close(&be);
    free(x);
    free(w.block);
}

static uint32_t whole_blocks(const bt_kind *k, uint32_t n_in) {
    const uint32_t size = td_block_elements(k->format);
    return (n_in + size - 1) / size * size;
}

static void every_format_meets_the_reference(void **state) {
    (void)state;
    static const struct {
        uint32_t n, n_out, n_in;
    } shapes[] = {{1, 1, 32}, {2, 5, 96}, {1, 40, 544}, {4, 17, 768}, {5, 33, 1280}, {9, 7, 1568}, {17, 50, 256}};
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (const bt_kind *k = bt_blocks; k->name; k++)
            for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
                for (int fl = 0; fl <= is_integer(k); fl++)
                    check(k, *isa, shapes[s].n, shapes[s].n_out, whole_blocks(k, shapes[s].n_in), 256, fl != 0);
}

/* Largest and smallest codes against largest activations of one sign: no integer sum may saturate. */
static void extremes_do_not_saturate(void **state) {
    (void)state;
    static const unsigned fills[] = {0x00, 0xFF, 0x80, 0x7F};
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (const bt_kind *k = bt_blocks; k->name; k++)
            for (size_t f = 0; is_integer(k) && f < 4; f++)
                check(k, *isa, 2, 3, 1024, fills[f], false);
}

/* Activations that are all zero, tiny, or not finite; those of another row do not notice. */
static void odd_activations(void **state) {
    (void)state;
    enum { N_IN = 768, N_OUT = 3 };
    static float x[2 * N_IN], y[2 * N_OUT], want[N_OUT];
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (const bt_kind *k = bt_blocks; k->name; k++) {
            bt_rng r = {7};
            matrix w = matrix_new(&r, k, N_OUT, N_IN, 256);
            td_backend *be = bt_open(*isa, 1, false);
            bt_fill(&r, x + N_IN, N_IN);
            product(be, x + N_IN, 1, &w.m, want);
            for (int odd = 0; odd < 5; odd++) {
                static const float value[] = {0, 1e-38f, NAN, INFINITY, -INFINITY};
                for (int i = 0; i < N_IN; i++)
                    x[i] = odd == 1 ? (i % 2 ? value[1] : -value[1]) : odd > 1 ? x[N_IN + i] : 0.0f;
                x[odd < 2 ? 333 : 333 + odd] = value[odd];
                product(be, x, 2, &w.m, y);
                for (int o = 0; o < N_OUT; o++) {
                    const bool fits = odd == 0   ? y[o] == 0
                                      : odd == 1 ? fabsf(y[o]) < 1e-32f
                                      : odd == 2 ? isnan(y[o])
                                                 : !isfinite(y[o]);
                    if (!fits)
                        fail_msg("%s, %s: %g from activations with %g", k->name, bt_level_name(*isa), (double)y[o],
                                 (double)value[odd]);
                }
                bt_same_bits(k->name, y + N_OUT, want, N_OUT);
            }
            td_backend_close(&be);
            free(w.block);
        }
}

#define ALL_ROWS 67

static void rows_keep_their_bits(void **state) {
    (void)state;
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (const bt_kind *k = bt_blocks; k->name; k++) {
            enum { N_OUT = 37 };
            bt_rng r = {77};
            const uint32_t n_in = whole_blocks(k, is_integer(k) ? 1504 : 96);
            matrix w = matrix_new(&r, k, N_OUT, n_in, 256);
            float *x = floats((size_t)ALL_ROWS * n_in), *want = floats(ALL_ROWS * N_OUT), *y = floats(ALL_ROWS * N_OUT);
            bt_fill(&r, x, (size_t)ALL_ROWS * n_in);
            for (int threads = 1; threads <= 3; threads++) {
                td_backend *be = bt_open(*isa, threads, false);
                product(be, x, ALL_ROWS, &w.m, threads == 1 ? want : y);
                if (threads > 1)
                    bt_same_bits(k->name, y, want, ALL_ROWS * N_OUT);
                for (uint32_t n = 1; n <= 17; n++) {
                    product(be, x + (size_t)n * 2 * n_in, n, &w.m, y);
                    bt_same_bits(k->name, y, want + (size_t)n * 2 * N_OUT, (size_t)n * N_OUT);
                }
                td_backend_close(&be);
            }
            free(x);
            free(want);
            free(y);
            free(w.block);
        }
}

static void chosen_rows_have_the_bits_of_the_product(void **state) {
    (void)state;
    enum { N_IN = 512, N_OUT = 70, N = 45 };
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (const bt_kind *k = bt_blocks; k->name; k++) {
            bt_rng r = {5};
            matrix w = matrix_new(&r, k, N_OUT, N_IN, 256);
            float x[N_IN], all[N_OUT], y[N];
            int32_t id[N];
            bt_fill(&r, x, N_IN);
            for (int i = 0; i < N; i++)
                id[i] = (int32_t)(bt_next(&r) % N_OUT);
            td_backend *be = bt_open(*isa, 2, false);
            product(be, x, 1, &w.m, all);
            be->ops->rows_dot(be, y, x, &w.m, id, N);
            bt_wait(be);
            for (int i = 0; i < N; i++)
                bt_same_bits(k->name, &y[i], &all[id[i]], 1);
            td_backend_close(&be);
            free(w.block);
        }
}

/* Packed ahead: the bits of the product with the blocks as they lie, of chosen rows too. */
static void adopted_matrices_keep_their_bits(void **state) {
    (void)state;
    enum { MOST_ROWS = 257, MOST_OUT = 229 }; /* more rows than two calls of a kernel take: TD_DSP_Q_ROWS is 128 */
    static const uint32_t large[] = {128, 129, MOST_ROWS};
    static const struct {
        uint32_t n_out, n_in;
    } shapes[] = {{MOST_OUT, 1504}, {64, 32}, {37, 544}, {16, 512}, {3, 256}, {208, 1024}};
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (const bt_kind *k = bt_blocks; k->name; k++)
            for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++) {
                bt_rng r = {11 + s};
                const uint32_t n_out = shapes[s].n_out, n_in = whole_blocks(k, shapes[s].n_in);
                matrix w = matrix_new(&r, k, n_out, n_in, 256);
                float *x = floats((size_t)MOST_ROWS * n_in), *want = floats(MOST_ROWS * MOST_OUT),
                      *y = floats(MOST_ROWS * MOST_OUT);
                const uint32_t rows = n_out * n_in < 20000 ? MOST_ROWS : 19;
                bt_fill(&r, x, (size_t)rows * n_in);
                td_backend *be = bt_open(*isa, 3, false);
                for (uint32_t n = 0; n < rows; n += 19) /* no call that takes a cut */
                    product(be, x + (size_t)n * n_in, n + 19 < rows ? 19 : rows - n, &w.m, want + (size_t)n * n_out);
                td_error err;
                td_matrix packed = w.m;
                assert_int_equal(be->ops->adopt(be, &packed, &err), TD_OK);
                assert_int_equal(packed.packed != NULL, is_integer(k) && n_out >= 16);
                if (packed.packed && n_out % 16 == 0) /* then only the copy is read */
                    memset(w.block, 0xA5, w.m.row_bytes * n_out + 1);
                const uint32_t last = rows == MOST_ROWS ? 22 : 19;
                for (uint32_t i = 1; i <= last; i++) {
                    const uint32_t n = i <= 19 ? i : large[i - 20];
                    product(be, x, n, &packed, y);
                    bt_same_bits(k->name, y, want, (size_t)n * n_out);
                }
                if (n_out % 16) {
                    const int32_t id[] = {(int32_t)n_out - 1, 0, (int32_t)n_out / 2};
                    be->ops->rows_dot(be, y, x, &packed, id, 3);
                    bt_wait(be);
                    for (int j = 0; j < 3; j++)
                        bt_same_bits(k->name, &y[j], &want[id[j]], 1);
                }
                td_matrix_free(&packed);
                td_backend_close(&be);
                free(x);
                free(want);
                free(y);
                free(w.block);
            }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        BT_LEVEL_TESTS,
        cmocka_unit_test(every_format_meets_the_reference),
        cmocka_unit_test(extremes_do_not_saturate),
        cmocka_unit_test(odd_activations),
        cmocka_unit_test(rows_keep_their_bits),
        cmocka_unit_test(chosen_rows_have_the_bits_of_the_product),
        cmocka_unit_test(adopted_matrices_keep_their_bits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
