/* test_delta.c - convolution and gated delta rule over recurrent memory: every level against the reference, and the
 * same bits of outputs and states however rows are cut into passes, whatever is tried and taken back in between, alone
 * and among other sequences, with one thread and with several. */
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
#include "base/alloc.h"

#define N_ROWS 37
#define MAX_TENTATIVE 5
#define MAX_SEQS 3

typedef struct shape {
    uint32_t n_k, n_v, kd, vd, kernel;
} shape;

/* Three value heads a key head; ragged tiles and vectors; the published size; extremes. */
static const shape shapes[] = {{2, 6, 16, 16, 4}, {1, 3, 20, 40, 4},  {2, 4, 128, 128, 4},
                               {2, 2, 7, 33, 2},  {1, 2, 256, 64, 8}, {1, 1, 1, 1, 3}};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

static uint32_t conv_dim(const shape *s) {
    return 2 * s->n_k * s->kd + s->n_v * s->vd;
}

/* One layer's weights, and rows to feed it: those of the text, and as many that are tried and rejected. */
typedef struct layer {
    const shape *s;
    float *w, *rate, *dt_bias;
    float *x, *a, *b; /* [2*N_ROWS] */
} layer;

static float *filled(bt_rng *r, size_t n, float scale, float shift) {
    float *p = td_malloc_aligned(n * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++)
        p[i] = bt_normal(r) * scale + shift;
    return p;
}

static layer layer_new(const shape *s, uint64_t seed) {
    bt_rng r = {seed};
    size_t n = 2 * N_ROWS;
    layer l = {.s = s,
               .w = filled(&r, (size_t)s->kernel * conv_dim(s), 0.6f, 0),
               .rate = filled(&r, s->n_v, 0.0f, 0.05f),
               .dt_bias = filled(&r, s->n_v, 1, 0),
               .x = filled(&r, n * conv_dim(s), 1.5f, 0),
               .a = filled(&r, n * s->n_v, 3, 0),
               .b = filled(&r, n * s->n_v, 2, 0)};
    for (uint32_t i = 0; i < s->n_v; i++)
        l.rate[i] += 0.3f * (float)i;
    l.a[0] = 40;                                             /* softplus in its linear part */
    memset(l.x + conv_dim(s), 0, conv_dim(s) * sizeof *l.x); /* a query and a key of zeros */
    return l;
}

static void layer_free(layer *l) {
    float *const parts[] = {l->w, l->rate, l->dt_bias, l->x, l->a, l->b};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        td_free_aligned(parts[i]);
}

/* ---- states ---- */

#define FRONT 16 /* floats before a layer's part, as other layers would have */

typedef struct sizes {
    size_t conv, delta, conv_log, delta_log, kept, all; /* floats */
} sizes;

static sizes sizes_of(const shape *s) {
    sizes z = {.conv = td_conv_kept(conv_dim(s), s->kernel),
               .delta = td_delta_kept(s->n_v, s->kd, s->vd),
               .conv_log = td_conv_log(conv_dim(s), MAX_TENTATIVE),
               .delta_log = td_delta_log(s->n_v, s->kd, s->vd, MAX_TENTATIVE)};
    z.kept = FRONT + z.conv + z.delta;
    z.all = z.kept + z.conv_log + z.delta_log;
    return z;
}

static bt_guard state_new(const shape *s) {
    sizes z = sizes_of(s);
    bt_guard g = bt_guard_new(z.all);
    memset(g.y, 0, z.kept * sizeof *g.y);
    memset(g.y + z.kept, 0x7F, (z.all - z.kept) * sizeof *g.y); /* a log that nobody may read unwritten */
    return g;
}

/* One sequence's share of a pass. */
typedef struct part {
    float *state;
    const layer *l;
    const uint32_t *row; /* [n] rows of the layer */
    uint32_t n, sure, commit;
    float *out; /* [n][n_v*vd] */
} part;

static void pass(td_backend *be, const part *parts, uint32_t n_seq, const td_mark *mark, uint32_t n_marks) {
    const layer *l = parts[0].l;
    const shape *s = l->s;
    const uint32_t dim = conv_dim(s), values = s->n_v * s->vd;
    uint32_t first[MAX_SEQS + 1] = {0}, sure[MAX_SEQS], commit[MAX_SEQS];
    uint8_t *state[MAX_SEQS];
    for (uint32_t i = 0; i < n_seq; i++) {
        first[i + 1] = first[i] + parts[i].n;
        sure[i] = parts[i].sure;
        commit[i] = parts[i].commit;
        state[i] = (uint8_t *)parts[i].state;
    }
    uint32_t n = first[n_seq];
    bt_guard conv = bt_guard_new((size_t)n * dim), out = bt_guard_new((size_t)n * values);
    float *x = td_malloc_aligned(((size_t)n * dim + 1) * sizeof *x);
    float *a = td_malloc_aligned(((size_t)n * s->n_v + 1) * sizeof *a);
    float *b = td_malloc_aligned(((size_t)n * s->n_v + 1) * sizeof *b);
    for (uint32_t i = 0, r = 0; i < n_seq; i++)
        for (uint32_t t = 0; t < parts[i].n; t++, r++) {
            size_t from = parts[i].row[t];
            memcpy(x + (size_t)r * dim, parts[i].l->x + from * dim, dim * sizeof *x);
            memcpy(a + (size_t)r * s->n_v, parts[i].l->a + from * s->n_v, s->n_v * sizeof *a);
            memcpy(b + (size_t)r * s->n_v, parts[i].l->b + from * s->n_v, s->n_v * sizeof *b);
        }
    sizes z = sizes_of(s);
    td_memory m = {.n_seq = n_seq,
                   .first_row = first,
                   .n_sure = sure,
                   .n_commit = commit,
                   .state = state,
                   .kept = FRONT * sizeof(float),
                   .log = z.kept * sizeof(float),
                   .max_tentative = MAX_TENTATIVE,
                   .mark = mark,
                   .n_marks = n_marks};
    be->ops->conv(be, &(td_conv){.out = conv.y, .x = x, .w = l->w, .dim = dim, .kernel = s->kernel, .memory = &m});
    m.kept += z.conv * sizeof(float);
    m.log += z.conv_log * sizeof(float);
    be->ops->delta(be, &(td_delta){.out = out.y,
                                   .qkv = conv.y,
                                   .a = a,
                                   .b = b,
                                   .rate = l->rate,
                                   .dt_bias = l->dt_bias,
                                   .n_k_heads = s->n_k,
                                   .n_v_heads = s->n_v,
                                   .k_dim = s->kd,
                                   .v_dim = s->vd,
                                   .memory = &m});
    bt_wait(be);
    bt_guard_check(&conv);
    bt_guard_check(&out);
    for (uint32_t i = 0; i < n_seq; i++)
        if (parts[i].n)
            memcpy(parts[i].out, out.y + (size_t)first[i] * values, (size_t)parts[i].n * values * sizeof(float));
    bt_guard_free(&conv);
    bt_guard_free(&out);
    td_free_aligned(x);
    td_free_aligned(a);
    td_free_aligned(b);
}

static uint32_t *counting(void) {
    static uint32_t rows[N_ROWS];
    for (uint32_t i = 0; i < N_ROWS; i++)
        rows[i] = i;
    return rows;
}

/* The first n rows, sure, in one pass. */
static void in_one_pass(td_backend *be, const layer *l, uint32_t n, float *state, float *out) {
    pass(be, &(part){.state = state, .l = l, .row = counting(), .n = n, .sure = n, .out = out}, 1, NULL, 0);
}

static float *outputs_new(const shape *s) {
    float *p = td_malloc_aligned((size_t)N_ROWS * s->n_v * s->vd * sizeof *p);
    assert_non_null(p);
    return p;
}

/* ---- tests ---- */

static float largest(const float *x, size_t n) {
    float top = 0;
    for (size_t i = 0; i < n; i++)
        top = fabsf(x[i]) > top ? fabsf(x[i]) : top;
    return top;
}

/* Sums along k_dim and over rows round k_dim and N_ROWS times, relative to the largest state or output. */
static void matches_the_reference(void **state) {
    (void)state;
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (size_t i = 0; i < N_SHAPES; i++) {
            const shape *s = &shapes[i];
            sizes z = sizes_of(s);
            size_t n_out = (size_t)N_ROWS * s->n_v * s->vd;
            layer l = layer_new(s, 7 + i);
            td_backend *be = bt_open(*isa, 2, false), *ref = bt_open_ref(1, 1, 1);
            bt_guard got = state_new(s), want = state_new(s);
            float *out = outputs_new(s), *out_want = outputs_new(s);
            in_one_pass(be, &l, N_ROWS, got.y, out);
            in_one_pass(ref, &l, N_ROWS, want.y, out_want);
            double eps = (2.0 * s->kd + 4.0 * N_ROWS) * BT_EPS;
            double top_out = largest(out_want, n_out), top_state = largest(want.y, z.kept);
            for (size_t j = 0; j < n_out; j++)
                bt_close("output", j, out[j], out_want[j], eps * top_out);
            for (size_t j = 0; j < z.kept; j++)
                bt_close("state", j, got.y[j], want.y[j], eps * top_state);
            bt_guard_check(&got);
            bt_guard_free(&got);
            bt_guard_free(&want);
            td_free_aligned(out);
            td_free_aligned(out_want);
            td_backend_close(&be);
            td_backend_close(&ref);
            layer_free(&l);
        }
}

/* Runs `rows` rows of the text in passes of random length; now and then some of a pass's rows are tentative, and of
 * those a random number is kept (the others are rows that do not belong to the text). */
static void in_random_passes(td_backend *be, const layer *l, bt_rng *r, float *state, float *out) {
    const size_t width = (size_t)l->s->n_v * l->s->vd;
    float *all = td_malloc_aligned((2 * MAX_TENTATIVE + 8) * width * sizeof *all);
    uint32_t at = 0, commit = 0;
    while (at < N_ROWS) {
        uint32_t rows[2 * MAX_TENTATIVE + 8], sure = bt_next(r) % 7, tried = bt_next(r) % (MAX_TENTATIVE + 1);
        sure = sure < N_ROWS - at ? sure : N_ROWS - at;
        uint32_t kept = tried ? bt_next(r) % (tried + 1) : 0;
        kept = kept < N_ROWS - at - sure ? kept : N_ROWS - at - sure;
        for (uint32_t i = 0; i < sure + tried; i++)
            rows[i] = i < sure + kept ? at + i : N_ROWS + bt_next(r) % N_ROWS;
        pass(
            be,
            &(part){.state = state, .l = l, .row = rows, .n = sure + tried, .sure = sure, .commit = commit, .out = all},
            1, NULL, 0);
        memcpy(out + at * width, all, (sure + kept) * width * sizeof *out);
        at += sure + kept;
        commit = kept;
    }
    pass(be, &(part){.state = state, .l = l, .commit = commit}, 1, NULL, 0); /* no rows: commit only */
    td_free_aligned(all);
}

static void on_all(void (*fn)(td_backend *one, td_backend *two, const layer *l, bt_rng *r)) {
    for (size_t i = 0; i < N_SHAPES; i++) {
        layer l = layer_new(&shapes[i], 70 + i);
        bt_rng r = {99 + i};
        td_backend *ref = bt_open_ref(1, 1, 1);
        fn(ref, ref, &l, &r);
        td_backend_close(&ref);
        for (const td_isa *isa = bt_levels(); *isa; isa++) {
            td_backend *one = bt_open(*isa, 1, false);
            for (int threads = 2; threads < 8; threads += 5) { /* 7: heads of the published size are cut by columns */
                td_backend *several = bt_open(*isa, threads, false);
                fn(one, several, &l, &r);
                td_backend_close(&several);
            }
            td_backend_close(&one);
        }
        layer_free(&l);
    }
}

static void cuts_and_rejections(td_backend *one, td_backend *two, const layer *l, bt_rng *r) {
    const shape *s = l->s;
    size_t n_out = (size_t)N_ROWS * s->n_v * s->vd;
    bt_guard want = state_new(s);
    float *out_want = outputs_new(s), *out = outputs_new(s);
    in_one_pass(one, l, N_ROWS, want.y, out_want);
    for (int i = 0; i < 12; i++) {
        bt_guard got = state_new(s);
        in_random_passes(two, l, r, got.y, out);
        bt_same_bits("outputs", out, out_want, n_out);
        bt_same_bits("committed state", got.y, want.y, sizes_of(s).kept);
        bt_guard_free(&got);
    }
    bt_guard_free(&want);
    td_free_aligned(out);
    td_free_aligned(out_want);
}

static void bits_do_not_depend_on_cuts_and_rejections(void **state) {
    (void)state;
    on_all(cuts_and_rejections);
}

/* For every number of kept rows of a pass with one sure and MAX_TENTATIVE tentative rows. */
static void every_count(td_backend *one, td_backend *two, const layer *l, bt_rng *r) {
    (void)r;
    const shape *s = l->s;
    float *out = outputs_new(s);
    for (uint32_t kept = 0; kept <= MAX_TENTATIVE; kept++) {
        bt_guard got = state_new(s), want = state_new(s);
        uint32_t rows[1 + MAX_TENTATIVE];
        in_one_pass(two, l, 9, got.y, out);
        for (uint32_t i = 0; i <= MAX_TENTATIVE; i++)
            rows[i] = i <= kept ? 9 + i : N_ROWS + i;
        pass(two, &(part){.state = got.y, .l = l, .row = rows, .n = 1 + MAX_TENTATIVE, .sure = 1, .out = out}, 1, NULL,
             0);
        pass(two, &(part){.state = got.y, .l = l, .commit = kept}, 1, NULL, 0);
        in_one_pass(one, l, 10 + kept, want.y, out);
        bt_same_bits("committed state", got.y, want.y, sizes_of(s).kept);
        bt_guard_check(&got);
        bt_guard_free(&got);
        bt_guard_free(&want);
    }
    td_free_aligned(out);
}

static void every_count_commits_to_the_same_state(void **state) {
    (void)state;
    on_all(every_count);
}

/* Three sequences in one pass: one goes on, one has no rows but something to commit, one has sure rows only. */
static void neighbours(td_backend *one, td_backend *two, const layer *l, bt_rng *r) {
    (void)r;
    const shape *s = l->s;
    const size_t kept = sizes_of(s).kept, width = (size_t)s->n_v * s->vd;
    uint32_t *rows = counting();
    bt_guard alone[3], together[3];
    float *out_alone[3], *out_together[3];
    for (int i = 0; i < 3; i++) {
        alone[i] = state_new(s);
        together[i] = state_new(s);
        out_alone[i] = outputs_new(s);
        out_together[i] = outputs_new(s);
    }
    const struct {
        uint32_t first, n, sure, commit;
    } plan[2][3] = {{{0, 4, 2, 0}, {3, 5, 0, 0}, {0, 0, 0, 0}}, {{4, 7, 3, 2}, {0, 0, 0, 3}, {1, 6, 6, 0}}};
    for (int p = 0; p < 2; p++) {
        part parts[3];
        for (int i = 0; i < 3; i++) {
            parts[i] = (part){.state = together[i].y,
                              .l = l,
                              .row = rows + plan[p][i].first,
                              .n = plan[p][i].n,
                              .sure = plan[p][i].sure,
                              .commit = plan[p][i].commit,
                              .out = out_together[i]};
            part single = parts[i];
            single.state = alone[i].y;
            single.out = out_alone[i];
            pass(one, &single, 1, NULL, 0);
        }
        pass(two, parts, 3, NULL, 0);
        for (int i = 0; i < 3; i++) {
            bt_same_bits("outputs", out_together[i], out_alone[i], plan[p][i].n * width);
            bt_same_bits("committed state", together[i].y, alone[i].y, kept);
        }
    }
    for (int i = 0; i < 3; i++) {
        bt_guard_free(&alone[i]);
        bt_guard_free(&together[i]);
        td_free_aligned(out_alone[i]);
        td_free_aligned(out_together[i]);
    }
}

static void bits_do_not_depend_on_neighbours(void **state) {
    (void)state;
    on_all(neighbours);
}

/* Copies made in mid-pass are the states of a run that ends there, also behind committed and before tentative rows. */
static void marks(td_backend *one, td_backend *two, const layer *l, bt_rng *r) {
    (void)r;
    const shape *s = l->s;
    const size_t kept = sizes_of(s).kept;
    float *out = outputs_new(s);
    bt_guard state = state_new(s);
    pass(two, &(part){.state = state.y, .l = l, .row = counting(), .n = 5, .sure = 2, .out = out}, 1, NULL, 0);
    static const uint32_t at[] = {1, 3, 4, 11, 12};
    bt_guard copy[5];
    td_mark mark[5];
    for (int i = 0; i < 5; i++) {
        copy[i] = bt_guard_new(kept);
        memset(copy[i].y, 0, FRONT * sizeof(float));
        mark[i] = (td_mark){.seq = 0, .n_rows = at[i], .to = (uint8_t *)copy[i].y};
    }
    pass(two, &(part){.state = state.y, .l = l, .row = counting() + 4, .n = 15, .sure = 12, .commit = 2, .out = out}, 1,
         mark, 5);
    for (int i = 0; i < 5; i++) {
        bt_guard want = state_new(s);
        in_one_pass(one, l, 4 + at[i], want.y, out);
        bt_same_bits("marked state", copy[i].y, want.y, kept);
        bt_guard_check(&copy[i]);
        bt_guard_free(&copy[i]);
        bt_guard_free(&want);
    }
    bt_guard_free(&state);
    td_free_aligned(out);
}

static void marked_copies_are_states_of_that_moment(void **state) {
    (void)state;
    on_all(marks);
}

static void gates_a_row(void **state) {
    (void)state;
    static const uint32_t dims[] = {1, 3, 16, 17, 100, 2048, 9000};
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (size_t i = 0; i < sizeof dims / sizeof dims[0]; i++) {
            enum { N = 5 };
            const uint32_t dim = dims[i];
            bt_rng r = {5 + i};
            float *x = filled(&r, (size_t)N * dim, 1, 0), *base = filled(&r, (size_t)N * dim, 1, 0);
            const float g[N] = {0.3f, -4, 20, -120, 0};
            float *want = filled(&r, (size_t)N * dim, 1, 0);
            bt_guard y = bt_guard_new((size_t)N * dim);
            td_backend *be = bt_open(*isa, 2, false), *ref = bt_open_ref(1, 1, 1);
            memcpy(y.y, base, (size_t)N * dim * sizeof *base);
            memcpy(want, base, (size_t)N * dim * sizeof *base);
            be->ops->add_gated_rows(be, y.y, x, g, N, dim);
            ref->ops->add_gated_rows(ref, want, x, g, N, dim);
            for (size_t j = 0; j < (size_t)N * dim; j++)
                bt_close("add_gated_rows", j, y.y[j], want[j], 4 * BT_EPS * (fabsf(x[j]) + fabsf(base[j])));
            bt_guard_check(&y);
            bt_guard_free(&y);
            td_backend_close(&be);
            td_backend_close(&ref);
            td_free_aligned(x);
            td_free_aligned(base);
            td_free_aligned(want);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        BT_LEVEL_TESTS,
        cmocka_unit_test(matches_the_reference),
        cmocka_unit_test(bits_do_not_depend_on_cuts_and_rejections),
        cmocka_unit_test(every_count_commits_to_the_same_state),
        cmocka_unit_test(bits_do_not_depend_on_neighbours),
        cmocka_unit_test(marked_copies_are_states_of_that_moment),
        cmocka_unit_test(gates_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
