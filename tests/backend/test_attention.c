/* test_attention.c - attention over pages against the reference, and its bits under every way of getting there.
 *
 * Tolerance: a score is off by at most (head_dim/4 + 8) roundings of sum|q k| * scale, which moves a weight by that
 * relative amount, plus a few roundings in exp, sums and folds; outputs are convex mixes of values. */
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

typedef struct shape {
    uint32_t n_heads, n_kv_heads, head_dim, window;
    td_kv_type type;
} shape;

/* One layer's KV of several sequences, in pages of their own. */
typedef struct cache {
    td_kv_layout layout;
    td_kv_layer layer;
    uint32_t n_seq, n_pages; /* pages per sequence */
    uint8_t **page;          /* [n_seq][n_pages] */
    td_kv_pages *tables;     /* [n_seq] */
} cache;

static cache cache_new(const shape *s, uint32_t page_tokens, uint32_t n_seq, uint32_t n_keys) {
    cache c = {.n_seq = n_seq, .n_pages = (n_keys + page_tokens - 1) / page_tokens};
    const size_t part = (size_t)s->n_kv_heads * page_tokens * s->head_dim * td_kv_type_bytes(s->type);
    c.layer = (td_kv_layer){.n_kv_heads = s->n_kv_heads, .head_dim = s->head_dim, .k_offset = 6, .v_offset = 6 + part};
    c.layout = (td_kv_layout){.type = s->type, .page_tokens = page_tokens, .n_groups = 1, .n_layers = 1};
    c.layout.group[0] = (td_kv_group){.window = s->window, .page_bytes = 6 + 2 * part};
    c.page = calloc((size_t)n_seq * c.n_pages, sizeof *c.page);
    c.tables = calloc(n_seq, sizeof *c.tables);
    assert_true(c.page && c.tables);
    for (size_t i = 0; i < (size_t)n_seq * c.n_pages; i++) {
        c.page[i] = malloc(c.layout.group[0].page_bytes);
        assert_non_null(c.page[i]);
        memset(c.page[i], 0xFF, c.layout.group[0].page_bytes); /* NaN: an unwritten key that is used shows */
    }
    for (uint32_t i = 0; i < n_seq; i++)
        c.tables[i] = c.page + (size_t)i * c.n_pages;
    return c;
}

static void cache_free(cache *c) {
    for (size_t i = 0; i < (size_t)c->n_seq * c->n_pages; i++)
        free(c->page[i]);
    free(c->page);
    free(c->tables);
}

/* Writes keys [from, to) of a sequence through the backend; k, v [n_keys][n_kv_heads*head_dim]. */
static void write_keys(td_backend *be, cache *c, uint32_t seq, const float *k, const float *v, uint32_t from,
                       uint32_t to) {
    const size_t width = (size_t)c->layer.n_kv_heads * c->layer.head_dim;
    int32_t *pos = malloc((to - from) * sizeof *pos);
    uint32_t *row_seq = malloc((to - from) * sizeof *row_seq);
    assert_true(pos && row_seq);
    for (uint32_t i = from; i < to; i++) {
        pos[i - from] = (int32_t)i;
        row_seq[i - from] = seq;
    }
    be->ops->kv_write(be, &(td_kv_write){.k = k + from * width,
                                         .v = v + from * width,
                                         .n = to - from,
                                         .pos = pos,
                                         .row_seq = row_seq,
                                         .pages = c->tables,
                                         .layout = &c->layout,
                                         .layer = &c->layer});
    bt_wait(be);
    free(pos);
    free(row_seq);
}

typedef struct rows {
    uint32_t n;
    int32_t *pos;
    uint32_t *seq;
    const float *q; /* [n][n_heads*head_dim] */
} rows;

static void attend(td_backend *be, const shape *s, const cache *c, rows r, const int32_t *n_keys, float *out) {
    be->ops->attention(be, &(td_attention){.out = out,
                                           .q = r.q,
                                           .n = r.n,
                                           .n_heads = s->n_heads,
                                           .scale = 1.0f / sqrtf((float)s->head_dim),
                                           .window = s->window,
                                           .pos = r.pos,
                                           .row_seq = r.seq,
                                           .n_seq = c->n_seq,
                                           .pages = c->tables,
                                           .n_keys = n_keys,
                                           .layout = &c->layout,
                                           .layer = &c->layer});
    bt_wait(be);
}

static float *random_floats(bt_rng *r, size_t n) {
    float *p = malloc(n * sizeof *p);
    assert_non_null(p);
    for (size_t i = 0; i < n; i++)
        p[i] = bt_normal(r);
    return p;
}

static const shape shapes[] = {
    {8, 1, 256, 0, TD_KV_BF16},  {8, 2, 64, 33, TD_KV_F32}, {4, 4, 16, 0, TD_KV_F32},  {6, 2, 24, 100, TD_KV_BF16},
    {3, 1, 20, 0, TD_KV_F32},    {2, 1, 7, 9, TD_KV_BF16},  {4, 2, 512, 0, TD_KV_F32}, {16, 8, 128, 600, TD_KV_BF16},
    {160, 2, 32, 0, TD_KV_BF16}, {1, 1, 1, 0, TD_KV_F32},   {2, 2, 80, 1, TD_KV_F32},
};
#define N_SHAPES (sizeof shapes / sizeof shapes[0])

static void describe(char *to, size_t size, const shape *s, td_isa isa) {
    snprintf(to, size, "%s, %u/%u heads of %u, window %u, %s", bt_level_name(isa), s->n_heads, s->n_kv_heads,
             s->head_dim, s->window, s->type == TD_KV_BF16 ? "bf16" : "f32");
}

/* Three sequences of different lengths; rows at their ends, in their middles and at their starts. */
static void attention_meets_the_reference(void **state) {
    (void)state;
    enum { KEYS = 1300 };
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (size_t i = 0; i < N_SHAPES; i++) {
            const shape *s = &shapes[i];
            char what[128];
            describe(what, sizeof what, s, *isa);
            bt_rng r = {17 + i};
            const size_t width = (size_t)s->n_kv_heads * s->head_dim, q_width = (size_t)s->n_heads * s->head_dim;
            int32_t n_keys[3] = {KEYS, 70, 1}, pos[] = {KEYS - 1, 511, 512, 40, 0, 69, 63, 64, 0, 5};
            uint32_t seq[] = {0, 0, 0, 0, 0, 1, 1, 1, 2, 2};
            enum { N = 10 };
            float *q = random_floats(&r, N * q_width), *want = random_floats(&r, N * q_width);
            bt_guard got = bt_guard_new(N * q_width);
            td_backend *be = bt_open(*isa, 2, false), *ref = bt_open_ref(1, 1, s->head_dim);
            cache c = cache_new(s, 16, 3, KEYS);
            for (uint32_t k = 0; k < 3; k++) {
                float *keys = random_floats(&r, KEYS * width), *values = random_floats(&r, KEYS * width);
                write_keys(be, &c, k, keys, values, 0, (uint32_t)n_keys[k]);
                free(keys);
                free(values);
            }
            rows all = {N, pos, seq, q};
            attend(ref, s, &c, all, n_keys, want);
            attend(be, s, &c, all, n_keys, got.y);
            /* |score| stays below 6 in these data, its roundings are those of sum|q k| <= head_dim terms of size ~1 */
            const double tolerance = 12 * ((s->head_dim / 4.0 + 8) * sqrt(s->head_dim) + 1300 / 4.0 + 30) * BT_EPS;
            for (size_t e = 0; e < N * q_width; e++)
                bt_close(what, e, got.y[e], want[e], tolerance);
            bt_guard_free(&got);
            cache_free(&c);
            td_backend_close(&be);
            td_backend_close(&ref);
            free(q);
            free(want);
        }
}

static void a_row_without_keys_is_zero(void **state) {
    (void)state;
    const shape s = {2, 1, 16, 4, TD_KV_F32};
    for (const td_isa *isa = bt_levels(); *isa; isa++) {
        bt_rng r = {3};
        float *q = random_floats(&r, 64), out[64];
        int32_t n_keys[1] = {0}, pos[2] = {0, 9};
        uint32_t seq[2] = {0, 0};
        td_backend *be = bt_open(*isa, 2, false);
        cache c = cache_new(&s, 16, 1, 16);
        attend(be, &s, &c, (rows){2, pos, seq, q}, n_keys, out);
        for (int i = 0; i < 64; i++)
            assert_true(out[i] == 0);
        attend(be, &s, &c, (rows){0, pos, seq, q}, n_keys, out);
        cache_free(&c);
        td_backend_close(&be);
        free(q);
    }
}

/* ---- invariance ---- */

enum { INV_ROWS = 70 };

typedef struct invariance {
    const shape *s;
    td_isa isa;
    uint32_t n_keys;
    float *k, *v, *q; /* [n_keys]...: query i belongs to position n_keys - INV_ROWS + i */
    float *want;      /* of the last INV_ROWS positions */
    char what[128];
} invariance;

/* Passes of `step` rows: each writes its keys and then attends, as prefill and verification do. Pages that fell
 * behind the window are freed for good as soon as no row can see them. */
static void run_passes(invariance *t, int threads, uint32_t page_tokens, uint32_t step) {
    const shape *s = t->s;
    const size_t q_width = (size_t)s->n_heads * s->head_dim;
    td_backend *be = bt_open(t->isa, threads, false);
    cache c = cache_new(s, page_tokens, 1, t->n_keys);
    const uint32_t start = t->n_keys - INV_ROWS;
    float *got = malloc(INV_ROWS * q_width * sizeof *got);
    assert_non_null(got);
    write_keys(be, &c, 0, t->k, t->v, 0, start);
    for (uint32_t p = 0; p < INV_ROWS; p += step) {
        const uint32_t n = INV_ROWS - p < step ? INV_ROWS - p : step;
        int32_t pos[INV_ROWS], n_keys[1] = {(int32_t)(start + p + n)};
        uint32_t seq[INV_ROWS] = {0};
        for (uint32_t i = 0; i < n; i++)
            pos[i] = (int32_t)(start + p + i);
        if (s->window)
            for (uint32_t g = 0; (g + 1) * page_tokens + s->window <= start + p + 1; g++) {
                free(c.page[g]);
                c.page[g] = NULL;
            }
        write_keys(be, &c, 0, t->k, t->v, start + p, start + p + n);
        attend(be, s, &c, (rows){n, pos, seq, t->q + p * q_width}, n_keys, got + p * q_width);
    }
    char what[200];
    snprintf(what, sizeof what, "%s, %d threads, pages of %u, passes of %u", t->what, threads, page_tokens, step);
    if (!t->want)
        t->want = got;
    else {
        bt_same_bits(what, got, t->want, INV_ROWS * q_width);
        free(got);
    }
    cache_free(&c);
    td_backend_close(&be);
}

/* Three spans, or five: two threads share out five, and take queries where there are fewer. */
static void bits_do_not_depend_on_passes_pages_or_threads(void **state) {
    (void)state;
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (size_t i = 0; i < N_SHAPES; i++) {
            invariance t = {.s = &shapes[i], .isa = *isa, .n_keys = i < 2 ? 2200 : 1100};
            const size_t width = (size_t)t.s->n_kv_heads * t.s->head_dim;
            bt_rng r = {170 + i};
            describe(t.what, sizeof t.what, t.s, *isa);
            t.k = random_floats(&r, t.n_keys * width);
            t.v = random_floats(&r, t.n_keys * width);
            t.q = random_floats(&r, INV_ROWS * (size_t)t.s->n_heads * t.s->head_dim);
            run_passes(&t, 1, 16, INV_ROWS);
            run_passes(&t, 1, 64, 1);
            run_passes(&t, 2, 16, 3);
            run_passes(&t, 3, 64, 17);
            run_passes(&t, 2, 256, 1);
            free(t.k);
            free(t.v);
            free(t.q);
            free(t.want);
        }
}

/* A sequence's rows have the same bits alone and between others. */
static void neighbours_do_not_matter(void **state) {
    (void)state;
    enum { KEYS = 600, N = 9 };
    const shape s = {8, 2, 64, 0, TD_KV_BF16};
    for (const td_isa *isa = bt_levels(); *isa; isa++) {
        bt_rng r = {8};
        const size_t width = 128, q_width = 512;
        float *q = random_floats(&r, N * q_width), *all = random_floats(&r, N * q_width),
              *one = random_floats(&r, q_width);
        td_backend *be = bt_open(*isa, 2, false);
        cache c = cache_new(&s, 64, 3, KEYS);
        int32_t n_keys[3] = {600, 520, 30}, pos[N] = {599, 598, 3, 519, 100, 511, 29, 28, 27};
        uint32_t seq[N] = {0, 0, 0, 1, 1, 1, 2, 2, 2};
        for (uint32_t k = 0; k < 3; k++) {
            float *keys = random_floats(&r, KEYS * width), *values = random_floats(&r, KEYS * width);
            write_keys(be, &c, k, keys, values, 0, (uint32_t)n_keys[k]);
            free(keys);
            free(values);
        }
        attend(be, &s, &c, (rows){N, pos, seq, q}, n_keys, all);
        for (uint32_t i = 0; i < N; i++) {
            attend(be, &s, &c, (rows){1, &pos[i], &seq[i], q + i * q_width}, n_keys, one);
            bt_same_bits(bt_level_name(*isa), one, all + i * q_width, q_width);
        }
        cache_free(&c);
        td_backend_close(&be);
        free(q);
        free(all);
        free(one);
    }
}

/* ---- long contexts, many threads ---- */

/* Pages of a long context: a few, over and over in an irregular order; none before `from`. */
static td_kv_pages long_table(const cache *c, uint32_t seq, uint32_t n_keys, uint32_t from) {
    const uint32_t tokens = c->layout.page_tokens, n = (n_keys + tokens - 1) / tokens;
    uint8_t **table = calloc(n, sizeof *table);
    bt_rng r = {77 + seq};
    assert_non_null(table);
    for (uint32_t i = from / tokens; i < n; i++)
        table[i] = c->tables[seq][bt_next(&r) % c->n_pages];
    return table;
}

/* A cache of `n_seq` long sequences, with a few random pages each. */
static cache long_cache(td_backend *be, const shape *s, uint32_t n_seq, const int32_t *n_keys, const uint32_t *from) {
    enum { KEYS = 192 };
    cache c = cache_new(s, 64, n_seq, KEYS);
    const size_t width = (size_t)s->n_kv_heads * s->head_dim;
    bt_rng r = {70};
    for (uint32_t i = 0; i < n_seq; i++) {
        float *k = random_floats(&r, KEYS * width), *v = random_floats(&r, KEYS * width);
        write_keys(be, &c, i, k, v, 0, KEYS);
        free(k);
        free(v);
    }
    for (uint32_t i = 0; i < n_seq; i++)
        c.tables[i] = long_table(&c, i, (uint32_t)n_keys[i], from ? from[i] : 0);
    return c;
}

static void long_cache_free(cache *c) {
    for (uint32_t i = 0; i < c->n_seq; i++)
        free((void *)(uintptr_t)c->tables[i]);
    cache_free(c);
}

/* Scratch for a few spans at a time, whatever the machine has. */
static void lower_wave(td_backend *be) {
    ((td_cpu *)be)->wave_bytes = 1;
}

typedef struct long_case {
    shape s;
    uint32_t n_seq, n;
    int32_t n_keys[3];
    uint32_t from[3]; /* pages before are gone */
    int32_t pos[6];
    uint32_t seq[6];
} long_case;

/* One query and several, with and without a group; unequal lengths; positions near a million; a row without keys. */
static const long_case long_cases[] = {
    {{1, 1, 16, 0, TD_KV_F32}, 1, 1, {60001}, {0}, {60000}, {0}},
    {{4, 2, 16, 0, TD_KV_BF16}, 1, 4, {9003}, {0}, {8999, 9000, 9001, 9002}, {0}},
    {{4, 1, 20, 0, TD_KV_BF16},
     3,
     6,
     {5000, 300, 12000},
     {0},
     {4998, 4999, 299, 11997, 11998, 11999},
     {0, 0, 1, 2, 2, 2}},
    {{8, 1, 16, 512, TD_KV_BF16}, 2, 3, {1048576, 700}, {1048000, 0}, {1048574, 1048575, 699}, {0, 0, 1}},
    {{2, 1, 16, 4096, TD_KV_F32}, 2, 3, {1000000, 0}, {995000, 0}, {999998, 999999, 9}, {0, 0, 1}},
};

static void run_long(const long_case *t, td_isa isa, int threads, bool waves, float *out) {
    const size_t q_width = (size_t)t->s.n_heads * t->s.head_dim;
    bt_rng r = {71};
    float *q = random_floats(&r, t->n * q_width);
    int32_t pos[6];
    uint32_t seq[6];
    memcpy(pos, t->pos, sizeof pos);
    memcpy(seq, t->seq, sizeof seq);
    td_backend *be = isa == TD_ISA_AUTO ? bt_open_ref(1, 1, t->s.head_dim) : bt_open(isa, threads, false);
    cache c = long_cache(be, &t->s, t->n_seq, t->n_keys, t->from);
    if (waves)
        lower_wave(be);
    attend(be, &t->s, &c, (rows){t->n, pos, seq, q}, t->n_keys, out);
    long_cache_free(&c);
    td_backend_close(&be);
    free(q);
}

/* More threads than items, and than there is work for; results of spans that do not fit into scratch at once. */
static void long_contexts_keep_their_bits(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof long_cases / sizeof long_cases[0]; i++) {
        const long_case *t = &long_cases[i];
        const size_t n = (size_t)t->n * t->s.n_heads * t->s.head_dim;
        float *ref = calloc(n, sizeof *ref), *want = calloc(n, sizeof *want), *got = calloc(n, sizeof *got);
        assert_true(ref && want && got);
        run_long(t, TD_ISA_AUTO, 1, false, ref);
        for (const td_isa *isa = bt_levels(); *isa; isa++) {
            char what[128];
            describe(what, sizeof what, &t->s, *isa);
            run_long(t, *isa, 1, false, want);
            for (size_t e = 0; e < n; e++) /* sums over many keys are of spans, then of totals */
                bt_close(what, e, want[e], ref[e], 2e-5);
            for (int k = 0; k < 3; k++) {
                run_long(t, *isa, (const int[]){2, 8, 16}[k], k != 1, got);
                bt_same_bits(what, got, want, n);
            }
        }
        free(ref);
        free(want);
        free(got);
    }
}

/* Values that a row does not see may be anything, in the middle of what other rows see: drafts that were rejected. */
static void poison_stays_in_the_rows_that_see_it(void **state) {
    (void)state;
    enum { KEYS = 700, N = 5 };
    static const shape poisoned[] = {{8, 1, 256, 0, TD_KV_BF16}, {4, 2, 64, 40, TD_KV_F32}, {2, 1, 20, 0, TD_KV_BF16}};
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (size_t i = 0; i < sizeof poisoned / sizeof poisoned[0]; i++) {
            const shape *s = &poisoned[i];
            bt_rng r = {5 + i};
            const size_t width = (size_t)s->n_kv_heads * s->head_dim, q_width = (size_t)s->n_heads * s->head_dim;
            float *q = random_floats(&r, N * q_width), *clean = random_floats(&r, N * q_width),
                  *got = random_floats(&r, N * q_width), *k = random_floats(&r, KEYS * width),
                  *v = random_floats(&r, KEYS * width);
            td_backend *be = bt_open(*isa, 2, false);
            cache c = cache_new(s, 64, 1, KEYS);
            int32_t n_keys[1] = {KEYS}, pos[N] = {695, 696, 697, 698, 699};
            uint32_t seq[N] = {0};
            write_keys(be, &c, 0, k, v, 0, KEYS);
            attend(be, s, &c, (rows){N, pos, seq, q}, n_keys, clean);
            v[698 * width] = INFINITY;
            v[699 * width + width - 1] = NAN;
            k[699 * width] = NAN;
            write_keys(be, &c, 0, k, v, 0, KEYS);
            attend(be, s, &c, (rows){N, pos, seq, q}, n_keys, got);
            bt_same_bits(bt_level_name(*isa), got, clean, 3 * q_width);
            assert_false(isfinite(got[3 * q_width]));
            assert_false(isfinite(got[N * q_width - 1]));
            cache_free(&c);
            td_backend_close(&be);
            free(q);
            free(clean);
            free(got);
            free(k);
            free(v);
        }
}

/* Writing: the same bytes as the reference, and not a byte beside the row. */
static void written_pages_equal_the_reference(void **state) {
    (void)state;
    for (const td_isa *isa = bt_levels(); *isa; isa++)
        for (size_t i = 0; i < N_SHAPES; i++) {
            const shape *s = &shapes[i];
            bt_rng r = {21 + i};
            const size_t width = (size_t)s->n_kv_heads * s->head_dim;
            float *k = random_floats(&r, 50 * width), *v = random_floats(&r, 50 * width);
            k[0] = NAN;
            v[1] = -INFINITY;
            td_backend *be = bt_open(*isa, 2, false), *ref = bt_open_ref(1, 1, s->head_dim);
            cache a = cache_new(s, 16, 1, 50), b = cache_new(s, 16, 1, 50);
            write_keys(be, &a, 0, k, v, 3, 50);
            write_keys(ref, &b, 0, k, v, 3, 50);
            for (uint32_t p = 0; p < a.n_pages; p++)
                assert_memory_equal(a.page[p], b.page[p], a.layout.group[0].page_bytes);
            cache_free(&a);
            cache_free(&b);
            td_backend_close(&be);
            td_backend_close(&ref);
            free(k);
            free(v);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        BT_LEVEL_TESTS,
        cmocka_unit_test(attention_meets_the_reference),
        cmocka_unit_test(a_row_without_keys_is_zero),
        cmocka_unit_test(bits_do_not_depend_on_passes_pages_or_threads),
        cmocka_unit_test(neighbours_do_not_matter),
        cmocka_unit_test(long_contexts_keep_their_bits),
        cmocka_unit_test(poison_stays_in_the_rows_that_see_it),
        cmocka_unit_test(written_pages_equal_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
