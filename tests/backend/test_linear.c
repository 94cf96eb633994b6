/* test_linear.c - products: every format against the reference, and the bits of a row whatever rides along.
 *
 * The tolerance is a bound, not a guess. In float arithmetic each of the lanes adds n/lanes products, then the lanes
 * are added: the error is at most (n/lanes + 6) roundings of sum|w x| (generic, which rounds products too: twice).
 * With activations in int8 each x is off by at most half a step, max|x of its 32| / 254, so y is off by at most the
 * sum of |w| times that; integer sums are exact; and at most three roundings a block of 32 follow, of magnitudes
 * |scale q| + |bias|, which these data keep below three times the row's largest weight. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "backend/cpu/cpu.h"
#include "backend/support_backend.h"
#include "base/alloc.h"

static float *floats(size_t n) {
    float *p = malloc(n * sizeof *p);
    assert_non_null(p);
    return p;
}

static bool in_int8(const td_matrix *m, bool float_activations) {
    return !float_activations && (m->format == TD_FORMAT_AFFINE || m->format == TD_FORMAT_MXFP4);
}

/* The bound on |y - exact| for row x and weights w. */
static double bound(const td_matrix *m, const float *x, const float *w, bool float_activations) {
    double size = 0, steps = 0;
    for (uint32_t b = 0; b < m->n_in; b += 32) {
        double most = 0;
        for (uint32_t i = b; i < b + 32 && i < m->n_in; i++)
            most = fmax(most, fabs((double)x[i]));
        for (uint32_t i = b; i < b + 32 && i < m->n_in; i++) {
            size += fabs((double)x[i] * w[i]);
            steps += fabs((double)w[i]) * most / 254;
        }
    }
    const double rounding = 2 * (m->n_in / 4.0 + 6) * BT_EPS;
    if (!in_int8(m, float_activations))
        return rounding * size + 1e-30;
    double top = 0, activity = 0;
    for (uint32_t i = 0; i < m->n_in; i++) {
        top = fmax(top, fabs((double)w[i]));
        activity += fabs((double)x[i]);
    }
    return steps * 1.0001 + 3 * (m->n_in / 32.0 + 2) * BT_EPS * 3 * top * activity;
}

static void product(td_backend *be, const float *x, uint32_t n, const td_matrix *w, float *y) {
    be->ops->linear(be, x, n, &(td_linear_out){w, y}, 1);
    bt_wait(be);
}

/* What a level has to come close to. */
typedef struct expected {
    const char *name;
    const td_matrix *w;
    const float *x;
    uint32_t n;
    const float *y;
    const double *bound; /* [n][n_out] like y */
} expected;

static void check_level(const expected *e, td_isa isa, bool float_activations) {
    const size_t size = (size_t)e->n * e->w->n_out;
    bt_guard y = bt_guard_new(size);
    td_backend *be = bt_open(isa, 2, float_activations);
    product(be, e->x, e->n, e->w, y.y);
    char what[128];
    snprintf(what, sizeof what, "%s, %s, %u rows, %u x %u", e->name, bt_level_name(isa), e->n, e->w->n_out, e->w->n_in);
    for (size_t at = 0; at < size; at++)
        bt_close(what, at, y.y[at], e->y[at], e->bound[at]);
    bt_guard_free(&y);
    td_backend_close(&be);
}

/* On every level: the reference is computed once, and takes longer than any of them. */
static void check_against_reference(const bt_kind *kind, uint32_t n, uint32_t n_out, uint32_t n_in,
                                    bool float_activations) {
    bt_rng r = {1234567 + n * 31 + n_out * 17 + n_in};
    bt_matrix w = bt_matrix_new(&r, kind, 1, n_out, n_in);
    float *x = floats((size_t)n * n_in), *want = floats((size_t)n * n_out), *row = floats(n_in);
    double *bounds = malloc((size_t)n * n_out * sizeof *bounds);
    assert_non_null(bounds);
    bt_fill(&r, x, (size_t)n * n_in);
    td_backend *ref = bt_open_ref(n_in, n_out, 1);
    product(ref, x, n, &w.m, want);
    for (uint32_t o = 0; o < n_out; o++) {
        td_matrix_row_f32(&w.m, o, row);
        for (uint32_t i = 0; i < n; i++)
            bounds[(size_t)i * n_out + o] = bound(&w.m, x + (size_t)i * n_in, row, float_activations);
    }
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        check_level(&(expected){kind->name, &w.m, x, n, want, bounds}, *isa, float_activations);
    td_backend_close(&ref);
    free(x);
    free(want);
    free(row);
    free(bounds);
    bt_matrix_free(&w);
}

static void every_format_meets_the_reference(void **state) {
    (void)state;
    static const struct {
        uint32_t n, n_out, n_in;
    } shapes[] = {
        {1, 1, 128}, {1, 5, 384}, {2, 9, 640}, {3, 24, 1152}, {5, 50, 2304}, {9, 7, 128}, {16, 49, 256}, {70, 30, 4736},
    };
    for (const bt_kind *k = bt_kinds; k->name; k++)
        for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
            for (int fa = 0; fa < 2; fa++)
                check_against_reference(k, shapes[s].n, shapes[s].n_out, shapes[s].n_in, fa);
}

/* Rows that are no multiple of anything; only plain formats can have them. */
static void ragged_rows_meet_the_reference(void **state) {
    (void)state;
    static const uint32_t n_in[] = {1, 2, 3, 7, 8, 9, 15, 17, 31, 33, 63, 65, 1023, 1025, 1037, 2051};
    static const uint32_t n_out[] = {1, 2, 3, 8, 11};
    for (int k = 0; k < 4; k++)
        for (size_t i = 0; i < sizeof n_in / sizeof n_in[0]; i++)
            for (size_t o = 0; o < sizeof n_out / sizeof n_out[0]; o++) {
                check_against_reference(&bt_kinds[k], 1 + (uint32_t)(i % 4), n_out[o], n_in[i], false);
                check_against_reference(&bt_kinds[k], 11, n_out[o], n_in[i], false);
            }
    for (uint32_t groups = 1; groups < 20; groups += 3) /* quantised rows that fill no block of a level */
        for (int k = 4; k < 10; k++)
            check_against_reference(&bt_kinds[k], 3, 5, groups * bt_kinds[k].group, false);
}

/* Largest codes against largest activations of one sign: no integer sum may saturate. Exact in every level. */
static void extremes_do_not_saturate(void **state) {
    (void)state;
    enum { N_IN = 1024 };
    static float x[N_IN];
    for (int k = 4; k < 10; k++)
        for (int sign = -1; sign <= 1; sign += 2)
            for (const td_isa *isa = bt_levels(); *isa; isa++) {
                bt_rng r = {99};
                bt_matrix w = bt_matrix_new(&r, &bt_kinds[k], 1, 3, N_IN);
                memset((uint8_t *)w.block[0] + 1, 0xFF, 2 * w.m.row_bytes);
                memset((uint8_t *)w.block[0] + 1 + 2 * w.m.row_bytes, 0, w.m.row_bytes);
                for (uint32_t i = 0; i < N_IN; i++)
                    x[i] = (float)sign * 127.0f; /* one step is exactly 1 */
                td_backend *be = bt_open(*isa, 1, false), *ref = bt_open_ref(N_IN, 3, 1);
                float y[3], want[3], row[N_IN];
                product(be, x, 1, &w.m, y);
                product(ref, x, 1, &w.m, want);
                for (uint32_t o = 0; o < 3; o++) {
                    td_matrix_row_f32(&w.m, o, row);
                    double size = 0;
                    for (uint32_t i = 0; i < N_IN; i++)
                        size += 127 * 4 * (fabs((double)row[i]) + 0.3);
                    bt_close(bt_kinds[k].name, o, y[o], want[o], size * 3 * (N_IN / 32.0 + 2) * BT_EPS);
                }
                td_backend_close(&be);
                td_backend_close(&ref);
                bt_matrix_free(&w);
            }
}

/* Activations that are all zero, tiny, or not finite. */
static void odd_activations(void **state) {
    (void)state;
    enum { N_IN = 640 };
    float x[N_IN], y[2];
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (const bt_kind *k = bt_kinds; k->name; k++) {
            bt_rng r = {7};
            bt_matrix w = bt_matrix_new(&r, k, 1, 2, N_IN);
            td_backend *be = bt_open(*isa, 1, false);
            memset(x, 0, sizeof x);
            product(be, x, 1, &w.m, y);
            assert_true(y[0] == 0 && y[1] == 0);
            for (int i = 0; i < N_IN; i++)
                x[i] = i % 2 ? 1e-38f : -1e-38f;
            product(be, x, 1, &w.m, y);
            assert_true(fabsf(y[0]) < 1e-34f && fabsf(y[1]) < 1e-34f);
            x[333] = NAN;
            product(be, x, 1, &w.m, y);
            assert_true(isnan(y[0]) && isnan(y[1]));
            x[333] = INFINITY;
            product(be, x, 1, &w.m, y);
            assert_false(isfinite(y[0]) || isfinite(y[1]));
            td_backend_close(&be);
            bt_matrix_free(&w);
        }
}

/* Inputs with a single one pick out weights: exactly, in float arithmetic, so each fast decoder equals the reference
 * one. All codes of all formats occur. */
static void single_ones_read_the_weights(void **state) {
    (void)state;
    enum { N_IN = 384, N_OUT = 40 };
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (const bt_kind *k = bt_kinds; k->name; k++) {
            bt_rng r = {303};
            bt_matrix w = bt_matrix_new(&r, k, 1, N_OUT, N_IN);
            float *x = calloc(N_IN * N_IN, sizeof *x), *y = floats(N_IN * N_OUT), row[N_IN];
            assert_non_null(x);
            for (int i = 0; i < N_IN; i++)
                x[i * N_IN + i] = 1;
            td_backend *be = bt_open(*isa, 1, true);
            product(be, x, N_IN, &w.m, y);
            for (uint32_t o = 0; o < N_OUT; o++) {
                td_matrix_row_f32(&w.m, o, row);
                for (uint32_t i = 0; i < N_IN; i++)
                    bt_close(k->name, i, y[i * N_OUT + o], row[i], 0);
            }
            td_backend_close(&be);
            free(x);
            free(y);
            bt_matrix_free(&w);
        }
}

/* A NaN among the codes or scales of a format that has it makes the output NaN, and no other. */
static void a_weight_that_is_not_a_number_shows(void **state) {
    (void)state;
    static const struct {
        const char *name;
        int block; /* 0: in the codes, 1: in the scales */
        uint8_t byte;
    } cases[] = {{"f8_e4m3", 0, 0x7F}, {"f8_e4m3", 0, 0xFF}, {"mxfp8", 0, 0x7F},
                 {"mxfp8", 1, 255},    {"mxfp4", 1, 255},    {"nvfp4", 1, 0x7F}};
    float x[160], y[3];
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (size_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
            const bt_kind *k = bt_kinds;
            while (strcmp(k->name, cases[c].name) != 0)
                k++;
            bt_rng r = {11};
            bt_matrix w = bt_matrix_new(&r, k, 1, 3, 160);
            ((uint8_t *)w.block[cases[c].block])[1 + (cases[c].block ? w.m.scale_row_bytes : w.m.row_bytes) + 3] =
                cases[c].byte;
            for (int i = 0; i < 160; i++)
                x[i] = 0.5f;
            td_backend *be = bt_open(*isa, 1, false);
            product(be, x, 1, &w.m, y);
            assert_true(isfinite(y[0]) && isnan(y[1]) && isfinite(y[2]));
            td_backend_close(&be);
            bt_matrix_free(&w);
        }
}

/* ---- row-invariance ---- */

#define ALL_ROWS 513

/* Rows first, first + step, ... of x as a call of their own. */
static void check_subset(td_backend *be, const char *what, const td_matrix *w, const float *x, const float *want,
                         uint32_t n, uint32_t first, uint32_t step) {
    const uint32_t n_in = w->n_in, n_out = w->n_out;
    float *part = floats((size_t)n * n_in), *y = floats((size_t)n * n_out);
    for (uint32_t i = 0; i < n; i++)
        memcpy(part + (size_t)i * n_in, x + (size_t)((first + i * step) % ALL_ROWS) * n_in, n_in * sizeof *x);
    product(be, part, n, w, y);
    char text[160];
    snprintf(text, sizeof text, "%s, %u rows from %u step %u", what, n, first, step);
    for (uint32_t i = 0; i < n; i++)
        bt_same_bits(text, y + (size_t)i * n_out, want + (size_t)((first + i * step) % ALL_ROWS) * n_out, n_out);
    free(part);
    free(y);
}

static void check_invariance(const bt_kind *kind, uint32_t n_out, uint32_t n_in, td_isa isa) {
    bt_rng r = {4242 + n_in};
    bt_matrix w = bt_matrix_new(&r, kind, 1, n_out, n_in);
    float *x = floats((size_t)ALL_ROWS * n_in), *want = floats((size_t)ALL_ROWS * n_out);
    bt_fill(&r, x, (size_t)ALL_ROWS * n_in);
    char what[96];
    for (int threads = 1; threads <= 3; threads++) {
        td_backend *be = bt_open(isa, threads, false);
        snprintf(what, sizeof what, "%s, %s, %d threads", kind->name, bt_level_name(isa), threads);
        if (threads == 1)
            product(be, x, ALL_ROWS, &w.m, want);
        else
            check_subset(be, what, &w.m, x, want, ALL_ROWS, 0, 1);
        for (uint32_t n = 1; n <= 17; n++)
            check_subset(be, what, &w.m, x, want, n, 29 * n, 1);
        check_subset(be, what, &w.m, x, want, 64, 450, 5);
        check_subset(be, what, &w.m, x, want, 129, 3, 512); /* backwards */
        td_backend_close(&be);
    }
    free(x);
    free(want);
    bt_matrix_free(&w);
}

static void rows_keep_their_bits(void **state) {
    (void)state;
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (const bt_kind *k = bt_kinds; k->name; k++) {
            const bool direct = k->format <= TD_FORMAT_BF16 || (k->format == TD_FORMAT_AFFINE && k->bits % 4 == 0);
            check_invariance(k, 11, 640, *isa);
            if (direct) /* across panels of inputs, and over several tiles of outputs */
                check_invariance(k, 53, 2688, *isa);
        }
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        check_invariance(&bt_kinds[1], 5, 1101, *isa);
}

/* Several matrices of mixed formats in one call: each as if alone. */
static void matrices_of_one_call_do_not_mix(void **state) {
    (void)state;
    static const int kinds[] = {4, 1, 7, 0, 13, 4, 2, 9};
    static const uint32_t n_out[] = {70, 1, 24, 5, 9, 130, 8, 2};
    enum { N_IN = 768 };
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (uint32_t n = 1; n < 12; n += 5) {
            bt_rng r = {5 + n};
            bt_matrix w[8];
            bt_guard y[8];
            td_linear_out out[8];
            float *x = floats(n * N_IN);
            bt_fill(&r, x, n * N_IN);
            td_backend *be = bt_open(*isa, 2, false), *one = bt_open(*isa, 1, false);
            for (int i = 0; i < 8; i++) {
                w[i] = bt_matrix_new(&r, &bt_kinds[kinds[i]], 1, n_out[i], N_IN);
                y[i] = bt_guard_new((size_t)n * n_out[i]);
                out[i] = (td_linear_out){&w[i].m, y[i].y};
            }
            be->ops->linear(be, x, n, out, 8);
            bt_wait(be);
            for (int i = 0; i < 8; i++) {
                float *alone = floats((size_t)n * n_out[i]);
                product(one, x, n, &w[i].m, alone);
                bt_same_bits(bt_kinds[kinds[i]].name, y[i].y, alone, (size_t)n * n_out[i]);
                free(alone);
                bt_guard_free(&y[i]);
                bt_matrix_free(&w[i]);
            }
            td_backend_close(&be);
            td_backend_close(&one);
            free(x);
        }
}

static void too_many_matrices_are_an_error(void **state) {
    (void)state;
    bt_rng r = {1};
    bt_matrix w = bt_matrix_new(&r, &bt_kinds[0], 1, 4, 64);
    float x[64] = {0}, y[4];
    td_linear_out out[TD_LINEAR_MAX_MATS + 1];
    for (int i = 0; i <= TD_LINEAR_MAX_MATS; i++)
        out[i] = (td_linear_out){&w.m, y};
    td_backend *all[] = {bt_open(bt_levels()[0], 1, false), bt_open_ref(64, 64, 1)};
    for (int i = 0; i < 2; i++) {
        all[i]->ops->linear(all[i], x, 1, out, TD_LINEAR_MAX_MATS + 1);
        assert_int_equal(all[i]->ops->wait(all[i], NULL), TD_E_ARG);
        all[i]->ops->linear(all[i], x, 1, out, TD_LINEAR_MAX_MATS);
        assert_int_equal(all[i]->ops->wait(all[i], NULL), TD_OK);
        td_backend_close(&all[i]);
    }
    bt_matrix_free(&w);
}

static void chosen_rows_have_the_bits_of_the_product(void **state) {
    (void)state;
    enum { N_IN = 256, N_OUT = 300, N = 131 };
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (const bt_kind *k = bt_kinds; k->name; k++) {
            bt_rng r = {31};
            bt_matrix w = bt_matrix_new(&r, k, 1, N_OUT, N_IN);
            float x[N_IN], all[N_OUT];
            int32_t id[N];
            bt_fill(&r, x, N_IN);
            for (int i = 0; i < N; i++)
                id[i] = (int32_t)(bt_next(&r) % N_OUT);
            td_backend *be = bt_open(*isa, 2, false);
            bt_guard y = bt_guard_new(N);
            product(be, x, 1, &w.m, all);
            be->ops->rows_dot(be, y.y, x, &w.m, id, N);
            bt_wait(be);
            for (int i = 0; i < N; i++)
                bt_same_bits(k->name, &y.y[i], &all[id[i]], 1);
            id[5] = N_OUT;
            be->ops->rows_dot(be, y.y, x, &w.m, id, N);
            assert_int_equal(be->ops->wait(be, NULL), TD_E_ARG);
            assert_int_equal(be->ops->wait(be, NULL), TD_OK);
            bt_guard_free(&y);
            td_backend_close(&be);
            bt_matrix_free(&w);
        }
}

/* Formats with integer products of their own have a copy, which alone is read where it holds every row. */
static void check_adopted(const bt_kind *kind, uint32_t n_out, uint32_t n_in, td_isa isa) {
    /* more than two calls of a kernel take: TD_DSP_Q_ROWS is 128 */
    const uint32_t rows = n_out * n_in < 20000 ? 257 : 19;
    static const uint32_t n[] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 14, 19, 128, 129, 257};
    bt_rng r = {61};
    bt_matrix w = bt_matrix_new(&r, kind, 1, n_out, n_in);
    float *x = floats((size_t)rows * n_in), *want = floats((size_t)rows * n_out);
    bt_fill(&r, x, (size_t)rows * n_in);
    td_backend *be = bt_open(isa, 3, false);
    for (uint32_t i = 0; i < rows; i += 19) /* no call that takes a cut */
        product(be, x + (size_t)i * n_in, i + 19 < rows ? 19 : rows - i, &w.m, want + (size_t)i * n_out);
    td_matrix packed = w.m;
    assert_int_equal(be->ops->adopt(be, &packed, NULL), TD_OK);
    const bool direct = kind->format == TD_FORMAT_AFFINE && (kind->bits == 4 || kind->bits == 8);
    if (direct)
        assert_true((packed.packed != NULL) == (n_out >= 16));
    if (packed.packed && n_out % 16 == 0) {
        memset((void *)(uintptr_t)w.m.data, 0xA5, n_out * w.m.row_bytes);
        memset((void *)(uintptr_t)w.m.scales, 0xA5, n_out * w.m.scale_row_bytes);
        memset((void *)(uintptr_t)w.m.biases, 0xA5, n_out * w.m.scale_row_bytes);
    }
    for (size_t i = 0; i < sizeof n / sizeof n[0] && n[i] <= rows; i++) {
        bt_guard y = bt_guard_new((size_t)n[i] * n_out);
        product(be, x, n[i], &packed, y.y);
        bt_same_bits(kind->name, y.y, want, (size_t)n[i] * n_out);
        bt_guard_free(&y);
    }
    if (n_out % 16) { /* rows that are chosen are read where they lie */
        const int32_t id[] = {(int32_t)n_out - 1, 0, (int32_t)n_out / 2};
        float y[3];
        be->ops->rows_dot(be, y, x, &packed, id, 3);
        bt_wait(be);
        for (int i = 0; i < 3; i++)
            bt_same_bits(kind->name, &y[i], &want[id[i]], 1);
    }
    td_matrix_free(&packed);
    td_backend_close(&be);
    bt_matrix_free(&w);
    free(x);
    free(want);
}

static void adopted_matrices_keep_their_bits(void **state) {
    (void)state;
    static const uint32_t n_out[] = {229, 64, 37, 16, 3, 208}, n_in[] = {1408, 128, 640, 512, 256, 1152};
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (const bt_kind *k = bt_kinds; k->name; k++)
            for (size_t i = 0; i < sizeof n_out / sizeof n_out[0]; i++)
                check_adopted(k, n_out[i], n_in[i], *isa);
}

/* Rows are quantised in pieces by several threads to the bytes of one call a row. */
static void check_pieces(td_cpu *c, uint32_t n, uint32_t n_in) {
    bt_rng r = {n_in};
    float *x = floats((size_t)n * n_in);
    bt_fill(&r, x, (size_t)n * n_in);
    for (int path = CPU_PATH_Q4; path < CPU_PATH_COUNT; path++) {
        cpu_input in;
        assert_true(cpu_input_prepare(c, &in, x, n, n_in, CPU_NEEDS(path)));
        uint8_t *got = (uint8_t *)(uintptr_t)in.q[path], *want = td_malloc_aligned(n * in.q_stride);
        assert_non_null(want);
        memset(got, 0xA5, n * in.q_stride); /* kernels may leave bytes of a block as they are */
        memset(want, 0xA5, n * in.q_stride);
        assert_true(cpu_input_prepare(c, &in, x, n, n_in, CPU_NEEDS(path)));
        for (uint32_t i = 0; i < n; i++)
            c->dsp.quantize(want + i * in.q_stride, x + (size_t)i * n_in, n_in, (td_q_form)(path - CPU_PATH_Q4));
        assert_memory_equal(got, want, n * in.q_stride);
        td_free_aligned(want);
    }
    free(x);
}

static void rows_are_quantised_in_pieces(void **state) {
    (void)state;
    for (const td_isa *isa = bt_levels(); *isa; isa++) {
        td_backend *be = bt_open(*isa, 3, false);
        for (uint32_t n = 1; n <= 5; n += 4) {
            check_pieces((td_cpu *)be, n, 32);
            check_pieces((td_cpu *)be, n, 4096);
            check_pieces((td_cpu *)be, n, 4128);
            check_pieces((td_cpu *)be, n, 12320);
        }
        td_backend_close(&be);
    }
}

/* What int8 activations cost: for normal activations a relative error of y (root mean square over outputs) of about
 * step/sqrt(12) / |x|_rms, with a step of max|x of 32| / 127 ~ 2.1 / 127: 0.5 %. Twice that is the limit. */
static void int8_activations_cost_half_a_percent(void **state) {
    (void)state;
    enum { N_IN = 2048, N_OUT = 256 };
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (int k = 4; k < 10; k++) {
            bt_rng r = {77};
            bt_matrix w = bt_matrix_new(&r, &bt_kinds[k], 1, N_OUT, N_IN);
            static float x[N_IN], exact[N_OUT], y[N_OUT];
            for (int i = 0; i < N_IN; i++)
                x[i] = bt_normal(&r);
            td_backend *be = bt_open(*isa, 1, false), *fl = bt_open(*isa, 1, true);
            product(be, x, 1, &w.m, y);
            product(fl, x, 1, &w.m, exact);
            double err = 0, size = 0;
            for (int o = 0; o < N_OUT; o++) {
                err += (double)(y[o] - exact[o]) * (y[o] - exact[o]);
                size += (double)exact[o] * exact[o];
            }
            double relative = sqrt(err / size);
            if (!(relative < 0.01 && relative > 0.001))
                fail_msg("%s, %s: relative error %.4f", bt_kinds[k].name, bt_level_name(*isa), relative);
            td_backend_close(&be);
            td_backend_close(&fl);
            bt_matrix_free(&w);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        BT_LEVEL_TESTS,
        cmocka_unit_test(every_format_meets_the_reference),
        cmocka_unit_test(ragged_rows_meet_the_reference),
        cmocka_unit_test(extremes_do_not_saturate),
        cmocka_unit_test(odd_activations),
        cmocka_unit_test(single_ones_read_the_weights),
        cmocka_unit_test(a_weight_that_is_not_a_number_shows),
        cmocka_unit_test(rows_keep_their_bits),
        cmocka_unit_test(matrices_of_one_call_do_not_mix),
        cmocka_unit_test(too_many_matrices_are_an_error),
        cmocka_unit_test(chosen_rows_have_the_bits_of_the_product),
        cmocka_unit_test(adopted_matrices_keep_their_bits),
        cmocka_unit_test(rows_are_quantised_in_pieces),
        cmocka_unit_test(int8_activations_cost_half_a_percent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
