/* test_snapshot.c - the store of snapshots: positions, forgetting, what makes room for what, memory that fails; and
 * that a state copied in mid-pass, restored and continued equals a run that was never interrupted, for every position
 * of a prompt. */
#include "support/qwen35.h"

#include "cache/snapshot.h"

/* ---- the store alone, over a model that has a size and no more ---- */

static td_backend *be;
static td_model model;

static int open_backend(void **state) {
    (void)state;
    be = fixture_backend("reference");
    model = (td_model){.be = be, .info = {.snapshot_bytes = 64, .state_bytes = 128, .n_embd = 4}};
    return 0;
}

static int close_backend(void **state) {
    (void)state;
    td_backend_close(&be);
    return 0;
}

static td_snapshots *store(uint32_t most) {
    td_snapshots *s = NULL;
    ASSERT_OK(td_snapshots_open(&s, &model, most, err));
    return s;
}

/* A copy whose bytes are its position. */
static bool add(td_snapshots *s, uint32_t position) {
    float hidden[4] = {(float)position};
    td_snapshot *p = td_snapshots_make(s, position);
    if (!p)
        return false;
    assert_int_equal((uintptr_t)p->state % 64, 0);
    memset(p->state, (int)position, 64);
    td_snapshots_keep(s, p, position % 2 ? hidden : NULL);
    return true;
}

static uint32_t found(const td_snapshots *s, uint32_t position) {
    const td_snapshot *p = td_snapshots_find(s, position);
    if (!p)
        return 0;
    for (int i = 0; i < 64; i++)
        assert_int_equal(p->state[i], (uint8_t)p->position);
    assert_int_equal(p->has_hidden, p->position % 2);
    if (p->has_hidden)
        assert_true(p->hidden[0] == (float)p->position);
    return p->position;
}

static void finds_the_latest_before(void **state) {
    (void)state;
    td_snapshots *s = store(4);
    assert_int_equal(found(s, 100), 0);
    assert_true(add(s, 8));
    assert_true(add(s, 40));
    assert_true(add(s, 21));
    static const uint32_t want[][2] = {{0, 0}, {7, 0}, {8, 8}, {20, 8}, {21, 21}, {39, 21}, {40, 40}, {999, 40}};
    for (size_t i = 0; i < sizeof want / sizeof want[0]; i++)
        assert_int_equal(found(s, want[i][0]), want[i][1]);
    assert_int_equal(td_snapshots_count(s), 3);
    assert_int_equal(td_snapshots_bytes(s), 3 * (64 + 4 * sizeof(float)));
    assert_false(add(s, 21)); /* there already */
    assert_false(add(s, 0));
    td_snapshots_close(&s);
    assert_null(s);
    td_snapshots_close(&s);
}

static void forgets_what_is_past(void **state) {
    (void)state;
    td_snapshots *s = store(4);
    add(s, 8);
    add(s, 16);
    add(s, 24);
    td_snapshots_forget(s, 16);
    assert_int_equal(found(s, 99), 16);
    assert_non_null(td_snapshots_make(s, 20)); /* never filled */
    assert_int_equal(found(s, 99), 16);
    td_snapshots_forget(s, 99);
    assert_int_equal(td_snapshots_count(s), 2);
    assert_true(add(s, 20));
    assert_int_equal(found(s, 99), 20);
    td_snapshots_forget(s, 0);
    assert_int_equal(td_snapshots_count(s), 0);
    td_snapshots_close(&s);
}

/* With two slots taken, the one that saves fewer tokens goes; one that is being filled never does. */
static void makes_room(void **state) {
    (void)state;
    td_snapshots *s = store(3);
    add(s, 100);
    add(s, 110);
    add(s, 200);
    assert_true(add(s, 300)); /* 110 saved 10 tokens */
    assert_int_equal(found(s, 199), 100);
    assert_int_equal(found(s, 299), 200);
    td_snapshot *a = td_snapshots_make(s, 400), *b = td_snapshots_make(s, 500), *c = td_snapshots_make(s, 600);
    assert_non_null(a);
    assert_non_null(b);
    assert_non_null(c);
    assert_null(td_snapshots_make(s, 700));
    assert_int_equal(found(s, 999), 0);
    td_snapshots_close(&s);
    s = store(0);
    assert_false(add(s, 5));
    assert_int_equal(found(s, 5), 0);
    td_snapshots_forget(s, 0);
    td_snapshots_keep(s, NULL, NULL);
    td_snapshots_close(&s);
}

static void has_one_fewer_when_memory_fails(void **state) {
    (void)state;
    long live = td_alloc_live();
    for (long k = 0;; k++) {
        td_snapshots *s;
        td_error e = {0};
        td_alloc_fail_at(k);
        td_status st = td_snapshots_open(&s, &model, 2, &e);
        bool failed = td_alloc_failed();
        if (st != TD_OK) {
            assert_int_equal(st, TD_E_NOMEM);
            assert_null(s);
            continue;
        }
        bool first = add(s, 5);
        failed = failed || td_alloc_failed();
        td_alloc_fail_at(-1);
        assert_int_equal(first, !failed);
        assert_true(add(s, 6));
        assert_int_equal(td_snapshots_count(s), 1u + first);
        td_snapshots_close(&s);
        assert_int_equal(td_alloc_live(), live);
        if (!failed)
            return;
    }
}

/* ---- of a model ---- */

/* One pass over the prompt with marks at `at`, then every copy is restored and the rest fed from there. */
static void continues(const char *name, const char *backend, uint32_t chunk) {
    td_backend *b = fixture_backend(backend);
    if (!b)
        return;
    td_model_options o = runner_options();
    runner r;
    runner_open(&r, name, b, &o);
    const int32_t *ids = fixture_i32(&r.f, "input_ids", N_IDS);
    size_t bytes = r.f.model->info.snapshot_bytes;
    td_snapshots *s;
    ASSERT_OK(td_snapshots_open(&s, r.f.model, N_IDS, err));
    for (uint32_t at = 0; at < N_IDS; at += chunk) {
        uint32_t n = N_IDS - at < chunk ? N_IDS - at : chunk;
        td_snapshot *made[N_IDS];
        td_mark mark[N_IDS];
        for (uint32_t i = 0; i < n; i++) {
            made[i] = td_snapshots_make(s, at + i + 1);
            assert_non_null(made[i]);
            mark[i] = (td_mark){.n_rows = i + 1, .to = made[i]->state};
        }
        runner_pass(&r, ids + at, n, n, r.hidden + (size_t)at * N_EMBD, r.logits + (size_t)at * N_VOCAB, mark, n);
        for (uint32_t i = 0; i < n; i++)
            td_snapshots_keep(s, made[i], NULL);
    }
    float *hidden = td_malloc_aligned(N_IDS * N_EMBD * sizeof(float));
    float *logits = td_malloc_aligned(N_IDS * N_VOCAB * sizeof(float));
    uint8_t *end = td_malloc_aligned(bytes);
    memcpy(hidden, r.hidden, N_IDS * N_EMBD * sizeof(float));
    memcpy(logits, r.logits, N_IDS * N_VOCAB * sizeof(float));
    memcpy(end, r.state, bytes);
    for (uint32_t split = 1; split < N_IDS; split++) {
        const td_snapshot *p = td_snapshots_find(s, split);
        assert_int_equal(p->position, split);
        memset(r.state, 0xFF, r.f.model->info.state_bytes); /* NaN everywhere: all of it must be restored */
        r.f.model->ops->state_copy(r.f.model, r.state, p->state);
        td_kv_seq_set_length(r.seq, split);
        runner_feed(&r, ids + split, N_IDS - split, 5);
        size_t rest = N_IDS - split;
        assert_memory_equal(r.hidden, hidden + (size_t)split * N_EMBD, rest * N_EMBD * sizeof(float));
        assert_memory_equal(r.logits, logits + (size_t)split * N_VOCAB, rest * N_VOCAB * sizeof(float));
        assert_memory_equal(r.state, end, bytes);
    }
    td_free_aligned(hidden);
    td_free_aligned(logits);
    td_free_aligned(end);
    td_snapshots_close(&s);
    runner_close(&r);
    td_backend_close(&b);
}

static void continues_as_if_never_interrupted(void **state) {
    (void)state;
    static const char *const names[] = {"qwen35-dense", "qwen35-moe"}, *const backends[] = {"reference", "generic",
                                                                                            "avx2", "avx512"};
    static const uint32_t chunks[] = {1, 7, 16, N_IDS};
    for (size_t i = 0; i < 2; i++)
        for (size_t b = 0; b < 4; b++)
            for (size_t c = b == 0 ? 3 : 0; c < 4; c++)
                continues(names[i], backends[b], chunks[c]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(finds_the_latest_before),
        cmocka_unit_test(forgets_what_is_past),
        cmocka_unit_test(makes_room),
        cmocka_unit_test(has_one_fewer_when_memory_fails),
        cmocka_unit_test(continues_as_if_never_interrupted),
    };
    return cmocka_run_group_tests(tests, open_backend, close_backend);
}
