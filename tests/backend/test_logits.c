/* test_logits.c - the operations on rows of logits: bit for bit those of the reference, on every level, whatever the
 * number of rows and threads; with ties, NaN, infinities and rows of all sizes. Sums within the error that backend.h
 * gives, and with the same bits alone and among others. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "backend/support_backend.h"

static const uint32_t dims[] = {1, 2, 3, 15, 16, 17, 63, 64, 65, 127, 200, 513, 4095, 4097, 8192, 8193, 70001};
#define N_DIMS (sizeof dims / sizeof dims[0])

typedef enum kind {
    NORMAL,
    ROUNDED,
    EQUAL,
    ZEROS,
    BANNED,
    ALL_BANNED,
    LAST,
    WITH_NAN,
    WITH_INF,
    BAD_BOTH,
    N_KINDS
} kind;

static void fill_row(bt_rng *r, float *x, uint32_t dim, kind k) {
    const uint32_t at = bt_next(r) % dim, other = bt_next(r) % dim;
    for (uint32_t i = 0; i < dim; i++) {
        const float v = bt_normal(r) * 4;
        x[i] = k == ROUNDED ? roundf(v) : k == EQUAL ? -1.5f : k == ZEROS ? (i % 3 ? 0.0f : -0.0f) : v;
        if (k == ALL_BANNED || (k == BANNED && v > 2))
            x[i] = -INFINITY;
    }
    if (k == LAST)
        x[dim - 1] = 99;
    if (k == WITH_NAN || k == BAD_BOTH)
        x[at] = NAN;
    if (k == WITH_INF || k == BAD_BOTH)
        x[other] = INFINITY;
}

static void same_words(const char *what, const td_word *got, const td_word *want, uint32_t n) {
    for (uint32_t i = 0; i < n; i++)
        if (got[i].id != want[i].id || memcmp(&got[i].value, &want[i].value, sizeof(float)) != 0)
            fail_msg("%s: word %u is %d (%g), expected %d (%g)", what, i, got[i].id, (double)got[i].value, want[i].id,
                     (double)want[i].value);
}

/* Equal, or both zero. */
static void same_peaks(const float *got, const float *want, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!(got[i] == want[i]))
            fail_msg("peak %zu is %g, expected %g", i, (double)got[i], (double)want[i]);
}

/* Rows of every kind in turn, the first of them `first`. Flush against the end of its memory. */
static float *rows_of(bt_rng *r, uint32_t n, uint32_t dim, kind first) {
    float *x = malloc((size_t)n * dim * sizeof *x);
    assert_non_null(x);
    for (uint32_t i = 0; i < n; i++)
        fill_row(r, x + (size_t)i * dim, dim, (kind)((first + i) % N_KINDS));
    return x;
}

typedef struct answer {
    td_word *best, *top;
    float *peak;
    uint32_t *n_top;
    bt_guard guard; /* of the peaks */
} answer;

static answer answer_new(uint32_t n, uint32_t dim) {
    answer a = {.best = malloc(n * sizeof *a.best),
                .top = malloc((size_t)n * dim * sizeof *a.top),
                .n_top = malloc(n * sizeof *a.n_top),
                .guard = bt_guard_new((size_t)n * td_peaks(dim))};
    assert_true(a.best && a.top && a.n_top);
    a.peak = a.guard.y;
    return a;
}

static void answer_free(answer *a) {
    bt_guard_free(&a->guard);
    free(a->best);
    free(a->top);
    free(a->n_top);
}

static void argmax_of(td_backend *be, answer *a, const float *x, uint32_t n, uint32_t dim) {
    be->ops->argmax(be, a->best, a->peak, x, n, dim);
    bt_wait(be);
}

static void top_of(td_backend *be, answer *a, const float *x, uint32_t n, uint32_t dim, const float *least) {
    be->ops->top(be, a->top, a->n_top, x, a->peak, n, dim, least);
    bt_wait(be);
}

static void compare(td_backend *be, td_backend *ref, const float *x, uint32_t n, uint32_t dim) {
    static const float steps[] = {0, 1, 9, INFINITY};
    answer got = answer_new(n, dim), want = answer_new(n, dim);
    float least[16];
    argmax_of(be, &got, x, n, dim);
    argmax_of(ref, &want, x, n, dim);
    same_words("argmax", got.best, want.best, n);
    same_peaks(got.peak, want.peak, (size_t)n * td_peaks(dim));
    for (size_t s = 0; s < sizeof steps / sizeof steps[0]; s++) {
        for (uint32_t r = 0; r < n; r++)
            least[r] = want.best[r].value < INFINITY ? want.best[r].value - steps[s] : 3;
        top_of(be, &got, x, n, dim, least);
        top_of(ref, &want, x, n, dim, least);
        for (uint32_t r = 0; r < n; r++) {
            assert_int_equal(got.n_top[r], want.n_top[r]);
            same_words("top", got.top + (size_t)r * dim, want.top + (size_t)r * dim, want.n_top[r]);
        }
    }
    answer_free(&got);
    answer_free(&want);
}

static void words_are_those_of_the_reference(void **state) {
    (void)state;
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (int threads = 1; threads < 4; threads++) {
            td_backend *be = bt_open(*isa, threads, false), *ref = bt_open_ref(1, 1, 1);
            for (size_t d = 0; d < N_DIMS; d++)
                for (uint32_t n = 1; n <= 16; n += n == 2 ? 3 : n == 5 ? 11 : 1) {
                    bt_rng r = {77 + 100 * d + n};
                    float *x = rows_of(&r, n, dims[d], (kind)((d + n) % N_KINDS));
                    compare(be, ref, x, n, dims[d]);
                    free(x);
                }
            td_backend_close(&be);
            td_backend_close(&ref);
        }
}

/* One large value at each place in turn, one that is not a number, and both. */
static void no_place_is_missed(void **state) {
    (void)state;
    enum { DIM = 300 };
    float x[DIM], peak[DIM / TD_PEAK_BLOCK + 1];
    td_word best;
    for (const td_isa *isa = bt_levels(); *isa; isa++) {
        td_backend *be = bt_open(*isa, 1, false);
        for (uint32_t dim = 1; dim <= DIM; dim += dim < 70 ? 1 : 23)
            for (uint32_t at = 0; at < dim; at++) {
                for (uint32_t i = 0; i < dim; i++)
                    x[i] = -(float)(i % 7);
                x[at] = 0.5f;
                be->ops->argmax(be, &best, peak, x, 1, dim);
                assert_int_equal(best.id, at);
                x[at] = -NAN;
                be->ops->argmax(be, &best, peak, x, 1, dim);
                assert_int_equal(best.id, at);
                x[dim - 1] = INFINITY;
                be->ops->argmax(be, &best, peak, x, 1, dim);
                assert_int_equal(best.id, at);
            }
        td_backend_close(&be);
    }
}

static double largest(const float *x, uint32_t dim) {
    float top = x[0];
    for (uint32_t i = 1; i < dim; i++)
        top = x[i] > top ? x[i] : top;
    return (double)top;
}

static void sums_keep_their_error_and_their_bits(void **state) {
    (void)state;
    static const float temperatures[] = {1, 0.8f, 0.05f, 100};
    static const kind kinds[] = {NORMAL, ROUNDED, EQUAL, BANNED, LAST};
    enum { ROWS = 5 };
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (size_t d = 0; d < N_DIMS; d++)
            for (size_t t = 0; t < 4; t++) {
                const uint32_t dim = dims[d];
                bt_rng r = {5000 + d};
                float *x = malloc((size_t)ROWS * dim * sizeof *x), top[ROWS];
                double want[ROWS], alone[ROWS], got[ROWS];
                td_backend *ref = bt_open_ref(1, 1, 1);
                assert_non_null(x);
                for (uint32_t i = 0; i < ROWS; i++) {
                    fill_row(&r, x + (size_t)i * dim, dim, kinds[i]);
                    x[(size_t)i * dim] = kinds[i] == BANNED ? 1.0f : x[(size_t)i * dim]; /* one is left */
                    top[i] = (float)largest(x + (size_t)i * dim, dim);
                }
                ref->ops->sum_exp(ref, want, x, ROWS, dim, top, temperatures[t]);
                for (int threads = 1; threads < 4; threads++) {
                    td_backend *be = bt_open(*isa, threads, false);
                    be->ops->sum_exp(be, got, x, ROWS, dim, top, temperatures[t]);
                    bt_wait(be);
                    for (uint32_t i = 0; i < ROWS; i++) {
                        bt_close("sum_exp", i, got[i], want[i], TD_SUM_EXP_ERROR * want[i]);
                        if (threads == 1)
                            be->ops->sum_exp(be, &alone[i], x + (size_t)i * dim, 1, dim, &top[i], temperatures[t]);
                        assert_true(alone[i] == got[i]);
                    }
                    td_backend_close(&be);
                }
                td_backend_close(&ref);
                free(x);
            }
}

/* What the error of a sum is made of: one exponential at a time, down to where it is nothing. */
static void each_exponential_keeps_its_part_of_the_error(void **state) {
    (void)state;
    for (const td_isa *isa = bt_levels(); *isa; isa++) {
        td_backend *be = bt_open(*isa, 1, false);
        for (uint32_t i = 0; i < 400000; i++) {
            const float top = (float)(i % 13) * 3.7f, x[2] = {top, top - (float)i * 0.00021f};
            double sum, d = (double)x[1] - (double)top;
            be->ops->sum_exp(be, &sum, x, 1, 2, &top, 1);
            /* of the term: its difference's rounding and four units; and adding it to 1 in float */
            bt_close("exponential", i, sum, 1 + exp(d), (fabs(d) + 8) * exp(d) * BT_EPS + 2 * BT_EPS);
        }
        td_backend_close(&be);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_those_of_the_reference),
        cmocka_unit_test(no_place_is_missed),
        cmocka_unit_test(sums_keep_their_error_and_their_bits),
        cmocka_unit_test(each_exponential_keeps_its_part_of_the_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
