/* test_rows.c - the operations on rows and elements: against the reference, with guards, and with the same bits in a
 * full vector, in a tail, alone and among others. */
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

static const uint32_t dims[] = {1, 2, 3, 7, 8, 15, 16, 17, 31, 64, 100, 333, 2048};
#define N_DIMS (sizeof dims / sizeof dims[0])

static float *filled(bt_rng *r, size_t n) {
    float *p = malloc((n ? n : 1) * sizeof *p);
    assert_non_null(p);
    bt_fill(r, p, n);
    return p;
}

static void norms(void **state) {
    (void)state;
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (size_t d = 0; d < N_DIMS; d++)
            for (uint32_t n = 0; n < 40; n += n < 3 ? 1 : 18) {
                const uint32_t dim = dims[d];
                const size_t all = (size_t)n * dim;
                bt_rng r = {50 + d + n};
                float *x = filled(&r, all), *w = filled(&r, dim), *base = filled(&r, all), *want = filled(&r, all);
                bt_guard y = bt_guard_new(all);
                td_backend *be = bt_open(*isa, 2, false), *ref = bt_open_ref(1, 1, 1);
                /* relative: half the roundings of the sum of squares, and a handful more */
                const double relative = (dim / 8.0 + 12) * BT_EPS;
                for (int weighted = 0; weighted < 2; weighted++) {
                    const float *wp = weighted ? w : NULL;
                    be->ops->rmsnorm(be, y.y, x, wp, n, dim, 1e-6f);
                    ref->ops->rmsnorm(ref, want, x, wp, n, dim, 1e-6f);
                    for (size_t i = 0; i < all; i++)
                        bt_close("rmsnorm", i, y.y[i], want[i], relative * fabs((double)want[i]));
                    memcpy(y.y, base, all * sizeof *base);
                    memcpy(want, base, all * sizeof *base);
                    be->ops->add_rmsnorm(be, y.y, x, wp, n, dim, 1e-6f, 0.7f);
                    ref->ops->add_rmsnorm(ref, want, x, wp, n, dim, 1e-6f, 0.7f);
                    for (size_t i = 0; i < all; i++)
                        bt_close("add_rmsnorm", i, y.y[i], want[i],
                                 relative * (fabs((double)want[i]) + 2 * fabs((double)base[i])) + 1e-30);
                }
                bt_guard_free(&y);
                td_backend_close(&be);
                td_backend_close(&ref);
                free(x);
                free(w);
                free(base);
                free(want);
            }
}

/* Over the whole range, so that both branches of tanh, the ends of exp and what lies beyond are met. A few units in
 * the last place; tiny results (below 1e-35) may be flushed to zero. */
static void activations_are_accurate(void **state) {
    (void)state;
    enum { N = 20000 };
    static float a[N], b[N], want[N];
    for (int i = 0; i < N; i++) {
        a[i] = i < N / 2 ? (float)(i - N / 4) * 0.004f : (float)(i - 3 * N / 4) * 0.02f;
        b[i] = 1.0f;
    }
    a[0] = 0.0f;
    a[1] = -0.0f;
    a[2] = 1e-20f;
    a[3] = -1e30f;
    a[4] = 1e30f;
    for (const td_isa *isa = bt_levels(); *isa; isa++) {
        td_backend *be = bt_open(*isa, 2, false), *ref = bt_open_ref(1, 1, 1);
        for (int act = TD_ACT_GELU_TANH; act <= TD_ACT_SIGMOID; act++) {
            bt_guard y = bt_guard_new(N);
            be->ops->gated(be, y.y, a, b, 1, N, N, N, N, (td_act)act);
            ref->ops->gated(ref, want, a, b, 1, N, N, N, N, (td_act)act);
            for (int i = 0; i < N; i++) {
                /* e^-t turns the five roundings of t into relative 5t*eps of a small result; t is up to 90 */
                const double t = act == TD_ACT_GELU_TANH ? 1.6 * fabs((double)a[i]) * (1 + 0.045 * a[i] * (double)a[i])
                                                         : fabs((double)a[i]);
                const double relative = (6 + 5 * fmin(t, 90)) * BT_EPS;
                /* the reference's own 1 + tanh, in double, cancels below 2^-52 */
                const double cancelled = act == TD_ACT_GELU_TANH ? 2.3e-16 * fabs((double)a[i]) : 0;
                bt_close("activation", (size_t)i, y.y[i], want[i],
                         relative * fabs((double)want[i]) + cancelled + 1e-35);
            }
            bt_guard_free(&y);
        }
        for (float cap = 0.5f; cap < 60; cap *= 7) {
            bt_guard y = bt_guard_new(N);
            memcpy(y.y, a, sizeof a);
            memcpy(want, a, sizeof a);
            be->ops->softcap(be, y.y, N, cap);
            ref->ops->softcap(ref, want, N, cap);
            for (int i = 0; i < N; i++)
                bt_close("softcap", (size_t)i, y.y[i], want[i], 5 * BT_EPS * fabs((double)want[i]) + 1e-37);
            bt_guard_free(&y);
        }
        td_backend_close(&be);
        td_backend_close(&ref);
    }
}

/* Whatever its payload: arithmetic on the bits of a float must not make a number of it. */
static void not_a_number_stays(void **state) {
    static const uint32_t bits[] = {0x7FC00000, 0xFFC00000, 0x7FC00001, 0xFFC00001, 0x7FC00101, 0x7FC0017F, 0xFFFFFFFF,
                                    0x7FFFFFFF, 0x7FD55555, 0x7FEAAAAA, 0x7FC000FF, 0x7FC00100, 0x7FC00102, 0xFFC00180};
    enum { N = sizeof bits / sizeof *bits };
    (void)state;
    for (const td_isa *isa = bt_levels(); *isa; isa++) {
        td_backend *be = bt_open(*isa, 1, false);
        float x[N], one[N], y[N];
        memcpy(x, bits, sizeof x);
        for (int i = 0; i < N; i++)
            one[i] = 1;
        for (int act = TD_ACT_GELU_TANH; act <= TD_ACT_SIGMOID; act++) {
            be->ops->gated(be, y, x, one, 1, N, N, N, N, (td_act)act);
            for (int i = 0; i < N; i++)
                if (!isnan(y[i]))
                    fail_msg("%s, activation %d: %#x became %g", bt_level_name(*isa), act, bits[i], (double)y[i]);
        }
        be->ops->softcap(be, x, N, 30.0f);
        for (int i = 0; i < N; i++)
            if (!isnan(x[i]))
                fail_msg("%s, cap: %#x became %g", bt_level_name(*isa), bits[i], (double)x[i]);
        td_backend_close(&be);
    }
}

/* Strided slices; and an element's bits do not depend on its place in a row or on the number of rows. */
static void gated_rows_keep_their_bits(void **state) {
    (void)state;
    enum { DIM = 45, ROWS = 2000, WIDE = 100 };
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (int threads = 1; threads < 4; threads++) {
            bt_rng r = {12};
            float *a = filled(&r, ROWS * WIDE), *b = filled(&r, ROWS * WIDE), single;
            bt_guard y = bt_guard_new(ROWS * DIM);
            td_backend *be = bt_open(*isa, threads, false);
            be->ops->gated(be, y.y, a, b + 7, ROWS, DIM, DIM, WIDE, WIDE, TD_ACT_GELU_TANH);
            for (uint32_t i = 0; i < ROWS; i += 97)
                for (uint32_t c = 0; c < DIM; c++) {
                    be->ops->gated(be, &single, a + i * WIDE + c, b + 7 + i * WIDE + c, 1, 1, 1, 1, 1,
                                   TD_ACT_GELU_TANH);
                    bt_same_bits("gated", &single, &y.y[i * DIM + c], 1);
                }
            bt_guard_free(&y);
            td_backend_close(&be);
            free(a);
            free(b);
        }
}

/* A few rows so wide that threads take pieces of them. */
static void wide_rows_keep_their_bits(void **state) {
    (void)state;
    enum { DIM = 12345, ROWS = 3, WIDE = 12400 };
    for (const td_isa *isa = bt_levels(); *isa; isa++) {
        bt_rng r = {13};
        float *a = filled(&r, ROWS * WIDE), *b = filled(&r, ROWS * WIDE), *want = filled(&r, ROWS * DIM);
        td_backend *one = bt_open(*isa, 1, false);
        one->ops->gated(one, want, a, b + 7, ROWS, DIM, DIM, WIDE, WIDE, TD_ACT_SILU);
        td_backend_close(&one);
        for (int threads = 2; threads < 9; threads += 3)
            for (uint32_t n = 1; n <= ROWS; n++) {
                bt_guard y = bt_guard_new((size_t)n * DIM);
                td_backend *be = bt_open(*isa, threads, false);
                be->ops->gated(be, y.y, a, b + 7, n, DIM, DIM, WIDE, WIDE, TD_ACT_SILU);
                bt_same_bits("gated, wide rows", y.y, want, (size_t)n * DIM);
                bt_guard_check(&y);
                bt_guard_free(&y);
                td_backend_close(&be);
            }
        free(a);
        free(b);
        free(want);
    }
}

static void elements(void **state) {
    (void)state;
    static const size_t counts[] = {0, 1, 5, 16, 33, 1000, 70001};
    for (const td_isa *isa = bt_levels(); *isa; isa++) {
        td_backend *be = bt_open(*isa, 2, false), *ref = bt_open_ref(1, 1, 1);
        for (size_t k = 0; k < 7; k++) {
            const size_t n = counts[k];
            bt_rng r = {90 + k};
            float *a = filled(&r, n), *b = filled(&r, n), *want = filled(&r, n);
            bt_guard y = bt_guard_new(n);
            be->ops->add(be, y.y, a, b, n, 0.3f);
            ref->ops->add(ref, want, a, b, n, 0.3f);
            bt_same_bits("add", y.y, want, n);
            memcpy(y.y, a, n * sizeof *a);
            memcpy(want, a, n * sizeof *a);
            be->ops->add(be, y.y, y.y, b, n, 1.0f); /* in place */
            ref->ops->add(ref, want, want, b, n, 1.0f);
            bt_same_bits("add in place", y.y, want, n);
            be->ops->scale(be, y.y, b, 1, (uint32_t)n, 0.9f);
            ref->ops->scale(ref, want, b, 1, (uint32_t)n, 0.9f);
            bt_same_bits("scale", y.y, want, n);
            be->ops->scale(be, y.y, NULL, (uint32_t)n, 1, 0.9f);
            ref->ops->scale(ref, want, NULL, (uint32_t)n, 1, 0.9f);
            bt_same_bits("scale by a number", y.y, want, n);
            bt_guard_free(&y);
            free(a);
            free(b);
            free(want);
        }
        td_backend_close(&be);
        td_backend_close(&ref);
    }
}

static void rotation(void **state) {
    (void)state;
    static const struct {
        uint32_t heads, dim, n_rot, dist;
    } cases[] = {{8, 256, 128, 128}, {1, 512, 64, 256}, {3, 10, 5, 5}, {2, 64, 7, 32}, {4, 2, 1, 1}, {2, 16, 0, 8}};
    for (const td_isa *isa = bt_levels(); *isa; isa++) {
        td_backend *be = bt_open(*isa, 2, false), *ref = bt_open_ref(1, 1, 1);
        for (size_t k = 0; k < 6; k++)
            for (uint32_t n = 1; n < 80; n += 33) {
                const size_t row = (size_t)cases[k].heads * cases[k].dim, all = n * row;
                bt_rng r = {60 + k};
                float *x = filled(&r, all), *want = filled(&r, all), freq[128];
                int32_t pos[80];
                for (uint32_t i = 0; i < cases[k].n_rot; i++)
                    freq[i] = powf(10000.0f, -(float)i / (float)cases[k].n_rot);
                for (uint32_t i = 0; i < n; i++)
                    pos[i] = (int32_t)(bt_next(&r) % (i % 2 ? 1u << 22 : 100000)); /* far beyond any context, too */
                bt_guard y = bt_guard_new(all);
                for (int again = 0; again < 2; again++) { /* the second time from the kept table */
                    memcpy(y.y, x, all * sizeof *x);
                    memcpy(want, x, all * sizeof *x);
                    be->ops->rope(be, y.y, n, cases[k].heads, cases[k].dim, pos, freq, cases[k].n_rot, cases[k].dist);
                    ref->ops->rope(ref, want, n, cases[k].heads, cases[k].dim, pos, freq, cases[k].n_rot,
                                   cases[k].dist);
                    for (size_t i = 0; i < all; i++) {
                        const size_t c = i % cases[k].dim;
                        const size_t other = c < cases[k].dist ? i + cases[k].dist : i - cases[k].dist;
                        const double size = fabs((double)x[i]) + (other < all ? fabs((double)x[other]) : 0);
                        bt_close("rope", i, y.y[i], want[i], 5 * BT_EPS * size);
                    }
                }
                freq[0] *= 1.5f; /* same address, other frequencies: the kept table must not be used */
                float *last = filled(&r, row);
                memcpy(y.y, x, all * sizeof *x);
                memcpy(last, x + (n - 1) * row, row * sizeof *x);
                be->ops->rope(be, y.y, n, cases[k].heads, cases[k].dim, pos, freq, cases[k].n_rot, cases[k].dist);
                be->ops->rope(be, last, 1, cases[k].heads, cases[k].dim, pos + n - 1, freq, cases[k].n_rot,
                              cases[k].dist);
                bt_same_bits("rope alone", last, y.y + (n - 1) * row, row);
                bt_guard_free(&y);
                free(x);
                free(want);
                free(last);
            }
        bt_wait(be);
        td_backend_close(&be);
        td_backend_close(&ref);
    }
}

static void embedding_and_gather(void **state) {
    (void)state;
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (const bt_kind *k = bt_kinds; k->name; k++) {
            bt_rng r = {44};
            bt_matrix w = bt_matrix_new(&r, k, 1, 20, 256);
            int32_t id[40];
            for (int i = 0; i < 40; i++)
                id[i] = (int32_t)(bt_next(&r) % 20);
            static float want[40 * 256];
            bt_guard y = bt_guard_new(40 * 256);
            td_backend *be = bt_open(*isa, 2, false), *ref = bt_open_ref(256, 20, 1);
            be->ops->embed(be, y.y, &w.m, id, 40, 2.5f);
            ref->ops->embed(ref, want, &w.m, id, 40, 2.5f);
            bt_same_bits(k->name, y.y, want, 40 * 256);
            be->ops->gather(be, y.y, want, id, 40, 251);
            for (int i = 0; i < 40; i++)
                bt_same_bits("gather", y.y + i * 251, want + id[i] * 251, 251);
            bt_wait(be);
            id[7] = 20;
            be->ops->embed(be, y.y, &w.m, id, 40, 1.0f);
            assert_int_equal(be->ops->wait(be, NULL), TD_E_ARG);
            id[7] = -1;
            ref->ops->embed(ref, y.y, &w.m, id, 40, 1.0f);
            assert_int_equal(ref->ops->wait(ref, NULL), TD_E_ARG);
            bt_guard_free(&y);
            bt_matrix_free(&w);
            td_backend_close(&be);
            td_backend_close(&ref);
        }
}

static void routing(void **state) {
    (void)state;
    static const struct { uint32_t n, e, k; } cases[] = {{1, 1, 1}, {3, 8, 2}, {50, 128, 8}, {5, 256, 64}, {2, 16, 16}};
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (size_t c = 0; c < 5; c++) {
            const uint32_t n = cases[c].n, e = cases[c].e, k = cases[c].k;
            bt_rng r = {61 + c};
            float *logits = filled(&r, n * e), *scale = filled(&r, e), *want = filled(&r, n * k);
            for (uint32_t i = 0; i < n * e; i++)
                logits[i] = roundf(logits[i] * 4) / 4; /* many ties */
            int32_t *expert = malloc(n * k * 4), *expert_want = malloc(n * k * 4);
            bt_guard w = bt_guard_new(n * k);
            td_backend *be = bt_open(*isa, 2, false), *ref = bt_open_ref(1, 1, 1);
            for (int scaled = 0; scaled < 2; scaled++) {
                be->ops->route(be, expert, w.y, logits, n, e, k, scaled ? scale : NULL);
                ref->ops->route(ref, expert_want, want, logits, n, e, k, scaled ? scale : NULL);
                assert_memory_equal(expert, expert_want, n * k * 4);
                for (uint32_t i = 0; i < n * k; i++)
                    bt_close("route", i, w.y[i], want[i], (k + 6) * BT_EPS * fabs((double)want[i]));
            }
            bt_guard_free(&w);
            td_backend_close(&be);
            td_backend_close(&ref);
            free(logits);
            free(scale);
            free(want);
            free(expert);
            free(expert_want);
        }
}

static void levels_and_options(void **state) {
    (void)state;
    td_error err;
    td_backend *be = (td_backend *)&err;
    assert_int_equal(td_backend_cpu_open(&be, &(td_cpu_options){.isa = (td_isa)17}, &err), TD_E_UNSUPPORTED);
    assert_null(be);
    assert_non_null(strstr(err.message, "instruction set"));
    assert_int_equal(td_backend_cpu_open(&be, &(td_cpu_options){.n_threads = -3}, &err), TD_E_ARG);
    assert_null(be);
    assert_int_equal(td_backend_cpu_open(&be, NULL, &err), TD_OK);
    assert_int_equal(be->ops->reserve(be, 64, 2048, 2048, 8, 256, &err), TD_OK);
    void *p = be->ops->alloc(be, 1000);
    assert_true(p && (uintptr_t)p % 64 == 0);
    be->ops->free(be, p);
    td_backend_close(&be);
    assert_null(be);
    td_backend_close(&be);
    td_backend_close(NULL);
    td_backend *ref = bt_open_ref(8, 8, 8);
    assert_string_equal(td_backend_cpu_isa(ref), "generic");
    assert_int_equal(td_backend_cpu_threads(ref), 1);
    td_backend_close(&ref);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        BT_LEVEL_TESTS,
        cmocka_unit_test(norms),
        cmocka_unit_test(activations_are_accurate),
        cmocka_unit_test(not_a_number_stays),
        cmocka_unit_test(gated_rows_keep_their_bits),
        cmocka_unit_test(wide_rows_keep_their_bits),
        cmocka_unit_test(elements),
        cmocka_unit_test(rotation),
        cmocka_unit_test(embedding_and_gather),
        cmocka_unit_test(routing),
        cmocka_unit_test(levels_and_options),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
