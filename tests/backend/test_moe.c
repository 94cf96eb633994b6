/* test_moe.c - a mixture of experts: against the reference, with guards, and the bits of a row whoever shares its
 * experts. With float activations the tolerance follows from three products in a row; with int8 ones it is the
 * statistical one of a product, for three roundings. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "backend/support_backend.h"

enum { MOST = 1408, EMBD = 256, EXPERTS = 9, K = 3, ROWS = 41 };

typedef struct mixture {
    bt_matrix gate, up, down;
    bool fused;
    float x[ROWS * EMBD], weight[ROWS * K];
    int32_t expert[ROWS * K];
} mixture;

static mixture *mixture_new(const bt_kind *gate, const bt_kind *up, const bt_kind *down, uint32_t n_ff) {
    bt_rng r = {71};
    mixture *m = malloc(sizeof *m);
    assert_non_null(m);
    m->fused = up == NULL;
    m->gate = bt_matrix_new(&r, gate, EXPERTS, m->fused ? 2 * n_ff : n_ff, EMBD);
    if (up)
        m->up = bt_matrix_new(&r, up, EXPERTS, n_ff, EMBD);
    m->down = bt_matrix_new(&r, down, EXPERTS, EMBD, n_ff);
    for (int i = 0; i < ROWS * EMBD; i++)
        m->x[i] = bt_normal(&r);
    for (int i = 0; i < ROWS; i++)
        for (int j = 0; j < K; j++) { /* distinct, and expert 4 never */
            m->expert[i * K + j] = (int32_t)((bt_next(&r) % 2 + (uint32_t)j * 3) % EXPERTS);
            m->weight[i * K + j] = fabsf(bt_uniform(&r));
        }
    return m;
}

static void mixture_free(mixture *m) {
    bt_matrix_free(&m->gate);
    if (!m->fused)
        bt_matrix_free(&m->up);
    bt_matrix_free(&m->down);
    free(m);
}

static void run(td_backend *be, const mixture *m, const float *x, const int32_t *expert, const float *weight,
                uint32_t n, float *out) {
    be->ops->moe(be, &(td_moe){.out = out,
                               .x = x,
                               .n = n,
                               .k = K,
                               .expert = expert,
                               .weight = weight,
                               .gate = &m->gate.m,
                               .up = m->fused ? NULL : &m->up.m,
                               .down = &m->down.m,
                               .act = TD_ACT_SILU});
}

#define Q4 "affine 4-bit group 64 bf16"
#define Q8 "affine 8-bit group 64 bf16"

/* up NULL: fused. With n_ff of 72 the second half of a fused stack begins within a panel of 16 outputs. */
static const struct {
    const char *gate, *up, *down;
    uint32_t n_ff;
    bool packed; /* gate can be */
} cases[] = {
    {"f32", "f32", "f32", 128, false},
    {Q4, Q4, Q4, 128, true},
    {Q4, NULL, Q8, 128, true},
    {"bf16", Q8, "mxfp4", 128, false},
    {Q8, NULL, Q4, 128, true},
    {"nvfp4", NULL, "f16", 128, false},
    {"affine 4-bit group 128 f32", "affine 4-bit group 32 f16", "affine 5-bit group 64 bf16", 128, true},
    {"q4_0", "q4_0", "q4_0", 128, true},
    {"q4_k", "q4_k", "q5_0", 96, true},
    {"q4_k", NULL, "q8_0", 704, true},
    {"q6_k", NULL, "bf16", 72, true},
    {"q4_0", NULL, "f32", 72, true},
    {Q4, NULL, "f16", 72, true},
    {"q5_k", "q6_k", "iq4_nl", 160, true},
    {"iq4_xs", NULL, "mxfp4 blocks", 32, true},
    {"iq2_xxs", "q3_k", "q5_1", 64, false},
};
#define N_CASES (sizeof cases / sizeof cases[0])

static mixture *mixture_of(size_t c) {
    return mixture_new(bt_kind_named(cases[c].gate), cases[c].up ? bt_kind_named(cases[c].up) : NULL,
                       bt_kind_named(cases[c].down), cases[c].n_ff);
}

static void experts_meet_the_reference(void **state) {
    (void)state;
    static float want[ROWS * EMBD];
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (size_t c = 0; c < N_CASES; c++)
            for (int fa = 0; fa < 2; fa++) {
                mixture *m = mixture_of(c);
                td_backend *be = bt_open(*isa, 2, fa), *ref = bt_open_ref(MOST, MOST, 1);
                bt_guard y = bt_guard_new(ROWS * EMBD);
                run(ref, m, m->x, m->expert, m->weight, ROWS, want);
                bt_wait(ref);
                run(be, m, m->x, m->expert, m->weight, ROWS, y.y);
                bt_wait(be);
                double err = 0, size = 0;
                for (int i = 0; i < ROWS * EMBD; i++) {
                    err += (double)(y.y[i] - want[i]) * (y.y[i] - want[i]);
                    size += (double)want[i] * want[i];
                }
                const double limit = fa ? 3 * (MOST / 4.0 + 10) * BT_EPS : 3 * 0.01;
                if (!(sqrt(err / size) < limit))
                    fail_msg("case %zu, %s: relative error %.3g, limit %.3g", c, bt_level_name(*isa), sqrt(err / size),
                             limit);
                bt_guard_free(&y);
                td_backend_close(&be);
                td_backend_close(&ref);
                mixture_free(m);
            }
}

static void adopt(td_backend *be, mixture *m) {
    td_matrix *const all[] = {&m->gate.m, &m->down.m, m->fused ? NULL : &m->up.m};
    for (int i = 0; i < 3 - m->fused; i++)
        assert_int_equal(be->ops->adopt(be, all[i], NULL), TD_OK);
}

static void release(mixture *m) {
    td_matrix *const all[] = {&m->gate.m, &m->down.m, m->fused ? NULL : &m->up.m};
    for (int i = 0; i < 3 - m->fused; i++) {
        td_free_aligned(all[i]->packed);
        all[i]->packed = NULL;
    }
}

/* Two threads read the experts as they lie, one and three packed copies. */
static void rows_keep_their_bits(void **state) {
    (void)state;
    static float want[ROWS * EMBD], got[ROWS * EMBD];
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (size_t c = 0; c < N_CASES; c++) {
            mixture *m = mixture_of(c);
            for (int threads = 1; threads < 4; threads++) {
                td_backend *be = bt_open(*isa, threads, false);
                if (threads != 2)
                    adopt(be, m);
                assert_true((m->gate.m.packed != NULL) == (cases[c].packed && threads != 2));
                run(be, m, m->x, m->expert, m->weight, ROWS, got);
                bt_wait(be);
                if (threads == 1)
                    memcpy(want, got, sizeof want);
                bt_same_bits("all rows", got, want, ROWS * EMBD);
                for (uint32_t n = 1; n < 18; n += 1 + n / 5)
                    for (uint32_t first = 0; first + n <= ROWS; first += n) {
                        run(be, m, m->x + first * EMBD, m->expert + first * K, m->weight + first * K, n, got);
                        bt_wait(be);
                        bt_same_bits("some rows", got, want + first * EMBD, n * EMBD);
                    }
                release(m);
                td_backend_close(&be);
            }
            mixture_free(m);
        }
}

static void a_wrong_expert_is_an_error(void **state) {
    (void)state;
    static float out[ROWS * EMBD];
    mixture *m = mixture_of(1);
    td_backend *be = bt_open(bt_levels()[0], 1, false), *ref = bt_open_ref(MOST, MOST, 1);
    m->expert[5] = EXPERTS;
    run(be, m, m->x, m->expert, m->weight, ROWS, out);
    assert_int_equal(be->ops->wait(be, NULL), TD_E_ARG);
    m->expert[5] = -1;
    run(be, m, m->x, m->expert, m->weight, ROWS, out);
    assert_int_equal(be->ops->wait(be, NULL), TD_E_ARG);
    run(ref, m, m->x, m->expert, m->weight, ROWS, out);
    assert_int_equal(ref->ops->wait(ref, NULL), TD_E_ARG);
    m->expert[5] = m->expert[4]; /* twice in a row of three */
    run(be, m, m->x, m->expert, m->weight, ROWS, out);
    assert_int_equal(be->ops->wait(be, NULL), TD_E_ARG);
    run(ref, m, m->x, m->expert, m->weight, ROWS, out);
    assert_int_equal(ref->ops->wait(ref, NULL), TD_E_ARG);
    td_backend_close(&be);
    td_backend_close(&ref);
    mixture_free(m);
}

/* Each allocation of an operation failing in turn: an error of wait, then the operation works again; nothing leaks. */
static void no_memory_is_an_error_of_wait(void **state) {
    (void)state;
    static float out[ROWS * EMBD];
    mixture *m = mixture_of(2);
    const long live = td_alloc_live();
    for (long k = 0;; k++) {
        td_backend *be = bt_open(bt_levels()[0], 2, false);
        td_alloc_fail_at(k);
        run(be, m, m->x, m->expert, m->weight, ROWS, out);
        const int struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        assert_int_equal(be->ops->wait(be, NULL), struck ? TD_E_NOMEM : TD_OK);
        run(be, m, m->x, m->expert, m->weight, ROWS, out);
        assert_int_equal(be->ops->wait(be, NULL), TD_OK);
        td_backend_close(&be);
        assert_int_equal(td_alloc_live(), live);
        if (!struck)
            break;
        assert_true(k < 50);
    }
    mixture_free(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        BT_LEVEL_TESTS,
        cmocka_unit_test(experts_meet_the_reference),
        cmocka_unit_test(rows_keep_their_bits),
        cmocka_unit_test(a_wrong_expert_is_an_error),
        cmocka_unit_test(no_memory_is_an_error_of_wait),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
