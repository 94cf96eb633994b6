/* test_delta_tiled.c - value heads in the order of GGUF files: the same numbers as the published order, bit for bit,
 * only in other places.
 *
 * New head j*n_k + k is old head k*r + j, so a layer whose values, gates and rates are put in that order must give
 * outputs and states in that order, through a pass with tentative rows and through the commit of some of them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "backend/support_backend.h"
#include "base/alloc.h"

enum {
    N_K = 2,
    N_V = 6,
    KD = 16,
    VD = 24,
    ROWS = 5,
    SURE = 3,
    TRIED = 2,
    KEYS = 2 * N_K * KD,
    WIDTH = KEYS + N_V * VD
};

/* One order of the heads: inputs and what comes out. */
typedef struct side {
    float qkv[ROWS][WIDTH], a[ROWS][N_V], b[ROWS][N_V], rate[N_V], dt_bias[N_V];
    float *state, *out; /* [kept + log], [ROWS][N_V*VD] */
} side;

static size_t kept_floats(void) {
    return td_delta_kept(N_V, KD, VD);
}

static void side_open(side *s) {
    size_t all = kept_floats() + td_delta_log(N_V, KD, VD, TRIED);
    s->state = td_malloc_aligned(all * sizeof(float));
    s->out = td_malloc_aligned(sizeof(float) * ROWS * N_V * VD);
    memset(s->state, 0, all * sizeof(float));
}

static void side_close(side *s) {
    td_free_aligned(s->state);
    td_free_aligned(s->out);
}

/* Where the published head `old` stands in a tiled file. */
static uint32_t tiled_place(uint32_t old) {
    const uint32_t r = N_V / N_K;
    return old % r * N_K + old / r;
}

static void fill(side *grouped, side *tiled) {
    bt_rng r = {5};
    for (int t = 0; t < ROWS; t++) {
        for (int i = 0; i < WIDTH; i++)
            grouped->qkv[t][i] = bt_normal(&r);
        memcpy(tiled->qkv[t], grouped->qkv[t], KEYS * sizeof(float));
        for (uint32_t h = 0; h < N_V; h++) {
            uint32_t to = tiled_place(h);
            grouped->a[t][h] = bt_normal(&r);
            grouped->b[t][h] = bt_normal(&r);
            grouped->rate[h] = 0.1f + 0.2f * (float)h;
            grouped->dt_bias[h] = 0.3f * (float)h - 1;
            memcpy(&tiled->qkv[t][KEYS + to * VD], &grouped->qkv[t][KEYS + h * VD], VD * sizeof(float));
            tiled->a[t][to] = grouped->a[t][h];
            tiled->b[t][to] = grouped->b[t][h];
            tiled->rate[to] = grouped->rate[h];
            tiled->dt_bias[to] = grouped->dt_bias[h];
        }
    }
}

static void run(td_backend *be, side *s, bool tiled, uint32_t n, uint32_t n_sure, uint32_t n_commit) {
    uint32_t first[2] = {0, n}, sure[1] = {n_sure}, commit[1] = {n_commit};
    uint8_t *state[1] = {(uint8_t *)s->state};
    td_memory m = {.n_seq = 1,
                   .first_row = first,
                   .n_sure = sure,
                   .n_commit = commit,
                   .state = state,
                   .log = kept_floats() * sizeof(float),
                   .max_tentative = TRIED};
    be->ops->delta(be, &(td_delta){.out = s->out,
                                   .qkv = s->qkv[0],
                                   .a = s->a[0],
                                   .b = s->b[0],
                                   .rate = s->rate,
                                   .dt_bias = s->dt_bias,
                                   .n_k_heads = N_K,
                                   .n_v_heads = N_V,
                                   .k_dim = KD,
                                   .v_dim = VD,
                                   .tiled = tiled,
                                   .memory = &m});
    bt_wait(be);
}

static void check_same(const side *grouped, const side *tiled) {
    for (uint32_t h = 0; h < N_V; h++) {
        size_t from = h, to = tiled_place(h);
        bt_same_bits("state", tiled->state + to * KD * VD, grouped->state + from * KD * VD, KD * VD);
        for (size_t t = 0; t < ROWS; t++)
            bt_same_bits("output", tiled->out + (t * N_V + to) * VD, grouped->out + (t * N_V + from) * VD, VD);
    }
}

static void on_backend(td_backend *be) {
    static side grouped, tiled;
    side_open(&grouped);
    side_open(&tiled);
    fill(&grouped, &tiled);
    run(be, &grouped, false, ROWS, SURE, 0);
    run(be, &tiled, true, ROWS, SURE, 0);
    check_same(&grouped, &tiled);
    run(be, &grouped, false, 0, 0, 1); /* one of the tentative rows is kept */
    run(be, &tiled, true, 0, 0, 1);
    check_same(&grouped, &tiled);
    side_close(&grouped);
    side_close(&tiled);
    td_backend_close(&be);
}

static void tiled_heads_are_the_same_heads(void **state) {
    (void)state;
    on_backend(bt_open_ref(1, 1, 1));
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        on_backend(bt_open(*isa, 1, false));
}

int main(void) {
    const struct CMUnitTest tests[] = {BT_LEVEL_TESTS, cmocka_unit_test(tiled_heads_are_the_same_heads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
