/* test_prompt_cache.c - the prompt cache without a model: the "keys" of a position are a hash of the tokens up to it,
 * so that whatever is adopted can be checked, to the byte, against what a cold run would have written.
 *
 * Actors play sequences as seq.c does: they begin on what the cache has, feed rows in passes of any size, reject
 * drafts, go back, are cut, finish or vanish. After every step the whole tree is checked: contents, order, bytes,
 * holders. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "cache/prompt_tree.h"

#define MAX_TOKENS 160u
#define N_EMBD 4u
#define ROW_BYTES 32u /* of a position, in the first group; one more of them in each next */

static uint32_t below(uint64_t seed, uint64_t i, uint32_t n) {
    return (uint32_t)(td_rng_uniform(seed, i, 0) * n);
}

/* ---- a stage: a model that has sizes and no more ---- */

typedef struct stage {
    td_model model;
    td_kv_pool *pool;
    td_prompt_cache *cache;
    uint64_t seed, step;
} stage;

typedef struct plan {
    uint32_t page_tokens, n_groups, window[3];
    bool recurrent;
    uint64_t max_bytes, pool_bytes;
} plan;

static void stage_open(stage *s, const plan *p, uint64_t seed) {
    td_error e;
    *s = (stage){.seed = seed};
    s->model.info.n_embd = N_EMBD;
    s->model.info.snapshot_bytes = p->recurrent ? 64 : 0;
    s->model.kv = (td_kv_layout){.type = TD_KV_F32, .page_tokens = p->page_tokens, .n_groups = p->n_groups};
    for (uint32_t g = 0; g < p->n_groups; g++)
        s->model.kv.group[g] =
            (td_kv_group){.window = p->window[g], .page_bytes = (size_t)p->page_tokens * ROW_BYTES * (g + 1)};
    assert_int_equal(td_backend_ref_open(&s->model.be, &e), TD_OK);
    assert_int_equal(td_kv_pool_open(&s->pool, &s->model.kv, s->model.be, p->pool_bytes, &e), TD_OK);
    assert_int_equal(td_prompt_cache_open(&s->cache, &s->model, s->pool, p->max_bytes, &e), TD_OK);
}

static void stage_close(stage *s) {
    td_prompt_cache_close(&s->cache);
    assert_int_equal(td_kv_pool_used(s->pool), 0);
    td_kv_pool_close(&s->pool);
    td_backend_close(&s->model.be);
}

static uint32_t dice(stage *s, uint32_t n) {
    return below(s->seed, ++s->step, n);
}

/* ---- what a cold run computes ---- */

static uint64_t hash_tokens(const td_token *tokens, uint32_t n) {
    uint64_t h = 0x9E3779B97F4A7C15u;
    for (uint32_t i = 0; i < n; i++)
        h = (h ^ (uint64_t)tokens[i]) * 0xD6E8FEB86659FD93u + (h >> 29);
    return h;
}

static uint64_t row_value(const td_token *tokens, uint32_t pos, uint32_t group) {
    return hash_tokens(tokens, pos + 1) + group;
}

static uint8_t *row_of(const stage *s, uint8_t *page, uint32_t group, uint32_t pos) {
    return page + (size_t)(pos % s->model.kv.page_tokens) * ROW_BYTES * (group + 1);
}

static void write_row(const stage *s, uint8_t *page, uint32_t group, uint32_t pos, uint64_t value) {
    assert_non_null(page);
    assert_int_equal(td_kv_page_holders(page), 1); /* only then may it be written */
    for (uint32_t i = 0; i < ROW_BYTES * (group + 1) / 8; i++)
        memcpy(row_of(s, page, group, pos) + 8 * i, &value, 8);
}

static void check_row(const stage *s, uint8_t *page, uint32_t group, uint32_t pos, uint64_t value) {
    if (!page)
        fail_msg("no page for position %u of group %u", pos, group);
    for (uint32_t i = 0; i < ROW_BYTES * (group + 1) / 8; i++)
        if (memcmp(row_of(s, page, group, pos) + 8 * i, &value, 8) != 0)
            fail_msg("position %u of group %u is not what a cold run writes", pos, group);
}

/* ---- the tree ---- */

typedef struct census {
    uint64_t nodes, pages, snapshots, kv_bytes, snapshot_bytes, bytes;
} census;

static void check_node(const stage *s, const td_cache_node *x, td_token *path, census *c) {
    const td_kv_layout *kv = &s->model.kv;
    uint32_t base = x->parent ? (x->depth - 1) * kv->page_tokens : 0, end = base + x->n_tokens;
    if (x->parent) {
        assert_int_equal(x->depth, x->parent->depth + 1);
        assert_in_range(x->n_tokens, 1, kv->page_tokens);
        memcpy(path + base, x->tokens, x->n_tokens * sizeof *path);
        c->nodes++;
        c->bytes += sizeof *x + kv->page_tokens * sizeof(td_token) + sizeof(void *);
        assert_int_equal(x->leaf.place != 0, !x->n_children && !x->n_pins);
        assert_true(!x->n_children || x->n_tokens == kv->page_tokens);
    }
    for (uint32_t g = 0; g < kv->n_groups && x->parent; g++) {
        bool windowed = kv->group[g].window > 0;
        assert_int_equal(x->page[g] != NULL, !windowed || x->has_windows);
        if (!x->page[g])
            continue;
        c->pages++;
        c->kv_bytes += td_kv_page_cost(s->pool, g);
        for (uint32_t pos = base; pos < end; pos++)
            check_row(s, x->page[g], g, pos, row_value(path, pos, g));
    }
    for (const td_cache_snapshot *p = x->snapshots; p; p = p->next) {
        uint64_t state[8], want = hash_tokens(path, p->position);
        assert_in_range(p->position, base + 1, end);
        memcpy(state, p->state, sizeof state);
        for (int i = 0; i < 8; i++)
            assert_int_equal(state[i], want + (uint64_t)i);
        c->snapshots++;
        c->snapshot_bytes += sizeof *p + 64 + N_EMBD * sizeof(float);
    }
    for (uint32_t i = 0; i < x->n_children; i++) {
        const td_cache_node *a = x->child[i], *b = i + 1 < x->n_children ? x->child[i + 1] : NULL;
        assert_ptr_equal(a->parent, x);
        for (uint32_t k = 0; b; k++) { /* in order, and none begins like the next */
            assert_true(k < a->n_tokens && k < b->n_tokens && a->tokens[k] <= b->tokens[k]);
            if (a->tokens[k] != b->tokens[k])
                break;
        }
        check_node(s, a, path, c);
    }
}

static void check_tree(const stage *s) {
    td_token path[MAX_TOKENS + 64];
    census c = {0};
    check_node(s, s->cache->root, path, &c);
    td_prompt_cache_stats st = td_prompt_cache_describe(s->cache);
    assert_int_equal(st.nodes, c.nodes);
    assert_int_equal(st.pages, c.pages);
    assert_int_equal(st.snapshots, c.snapshots);
    assert_int_equal(st.kv_bytes, c.kv_bytes);
    assert_int_equal(st.snapshot_bytes, c.snapshot_bytes);
    assert_int_equal(st.bytes, c.bytes + c.kv_bytes + c.snapshot_bytes);
    assert_true(st.bytes <= st.max_bytes);
}

/* ---- actors ---- */

typedef struct actor {
    stage *s;
    td_kv_seq *kv;
    td_cache_trail trail;
    td_snapshots *snapshots; /* or NULL */
    td_token tokens[MAX_TOKENS + 16];
    uint32_t n; /* tokens known; the first td_kv_seq_length are fed */
    uint32_t margin;
} actor;

static actor *actor_open(stage *s, uint32_t margin) {
    actor *a = td_calloc(1, sizeof *a);
    td_error e;
    a->s = s;
    a->margin = margin;
    assert_int_equal(td_kv_seq_open(&a->kv, s->pool, MAX_TOKENS, margin, &e), TD_OK);
    if (s->model.info.snapshot_bytes)
        assert_int_equal(td_snapshots_open(&a->snapshots, &s->model, 4, &e), TD_OK);
    td_cache_trail_open(&a->trail, s->cache);
    return a;
}

static void actor_close(actor *a) {
    td_cache_trail_close(&a->trail);
    td_snapshots_close(&a->snapshots);
    td_kv_seq_close(&a->kv);
    td_free(a);
}

static uint32_t length_of(const actor *a) {
    return td_kv_seq_length(a->kv);
}

static bool keep_copy(void *user, td_snapshot *copy) {
    actor *a = user;
    return td_cache_trail_keep(&a->trail, a->tokens, copy);
}

static void take_snapshot(actor *a) {
    td_snapshot *p = a->snapshots && length_of(a) ? td_snapshots_make(a->snapshots, length_of(a)) : NULL;
    if (!p)
        return;
    uint64_t state[8], h = hash_tokens(a->tokens, p->position);
    for (uint64_t i = 0; i < 8; i++)
        state[i] = h + i;
    memcpy(p->state, state, sizeof state);
    const float hidden[N_EMBD] = {(float)p->position};
    td_snapshots_keep(a->snapshots, p, p->position % 2 ? hidden : NULL);
}

/* The next n tokens get keys, and some drafts behind them that are not accepted. False: the pool is full. */
static bool feed(actor *a, uint32_t n, uint32_t drafts) {
    uint32_t at = length_of(a);
    if (at + n + drafts > MAX_TOKENS)
        drafts = 0;
    if (td_kv_seq_reserve(a->kv, n + drafts, NULL) != TD_OK)
        return false;
    for (uint32_t pos = at; pos < at + n + drafts; pos++)
        for (uint32_t g = 0; g < a->s->model.kv.n_groups; g++)
            write_row(a->s, td_kv_seq_pages(a->kv, g)[pos / a->s->model.kv.page_tokens], g, pos,
                      pos < at + n ? row_value(a->tokens, pos, g) : 0xBAD);
    td_kv_seq_advance(a->kv, at + n);
    td_cache_trail_follow(&a->trail, a->tokens, at + n, a->kv);
    if (a->snapshots)
        td_snapshots_hand_over(a->snapshots, keep_copy, a);
    td_kv_seq_set_length(a->kv, at + n);
    return true;
}

static void forget(actor *a) {
    td_kv_seq_clear(a->kv);
    td_cache_trail_begin(&a->trail);
    if (a->snapshots)
        td_snapshots_forget(a->snapshots, 0);
    a->n = 0;
}

static void finish(actor *a) {
    td_cache_trail_end(&a->trail, a->tokens, length_of(a), a->kv);
    take_snapshot(a);
    if (a->snapshots)
        td_snapshots_hand_over(a->snapshots, keep_copy, a);
    forget(a);
}

/* Everything that a row at the length may see is what a cold run has. */
static void check_visible(const actor *a) {
    const td_kv_layout *kv = &a->s->model.kv;
    for (uint32_t g = 0; g < kv->n_groups; g++) {
        uint32_t w = kv->group[g].window, first = w && length_of(a) + 1 > w ? length_of(a) + 1 - w : 0;
        for (uint32_t pos = first; pos < length_of(a); pos++)
            check_row(a->s, td_kv_seq_pages(a->kv, g)[pos / kv->page_tokens], g, pos, row_value(a->tokens, pos, g));
    }
}

/* Begins a prompt on what the cache has; returns how much that is. */
static uint32_t start(actor *a, const td_token *prompt, uint32_t n) {
    td_cache_match m = td_prompt_cache_find(a->s->cache, prompt, n - 1);
    memcpy(a->tokens, prompt, n * sizeof *prompt);
    a->n = n;
    if (!m.length)
        return 0;
    assert_true(m.length < n);
    uint64_t state[8] = {0}, want = hash_tokens(prompt, m.length);
    if (a->s->model.info.snapshot_bytes) {
        memcpy(state, m.state, sizeof state);
        assert_int_equal(state[0], want);
        assert_int_equal(state[7], want + 7);
        if (m.hidden)
            assert_true(m.hidden[0] == (float)m.length);
    }
    td_cache_trail_adopt(&a->trail, &m, a->kv);
    assert_int_equal(length_of(a), m.length);
    check_visible(a);
    return m.length;
}

static void feed_all(actor *a, uint32_t chunk) {
    while (length_of(a) < a->n) {
        uint32_t left = a->n - length_of(a);
        assert_true(feed(a, left < chunk ? left : chunk, 2));
    }
}

static void say(stage *s, const td_token *prompt, uint32_t n, uint32_t chunk) {
    actor *a = actor_open(s, 3);
    start(a, prompt, n);
    feed_all(a, chunk);
    finish(a);
    actor_close(a);
}

static uint32_t reused(stage *s, const td_token *prompt, uint32_t n) {
    actor *a = actor_open(s, 3);
    uint32_t length = start(a, prompt, n);
    actor_close(a);
    return length;
}

/* ---- single subjects ---- */

static const plan plans[] = {
    {.page_tokens = 8, .n_groups = 1},
    {.page_tokens = 8, .n_groups = 2, .window = {12, 0}},
    {.page_tokens = 16, .n_groups = 3, .window = {0, 12, 30}},
    {.page_tokens = 8, .n_groups = 1, .window = {9}},
    {.page_tokens = 8, .n_groups = 1, .recurrent = true},
    {.page_tokens = 8, .n_groups = 2, .window = {0, 12}, .recurrent = true},
    {.page_tokens = 8, .n_groups = 2, .window = {0, 1}},
};
#define N_PLANS (sizeof plans / sizeof plans[0])

static plan with_bytes(const plan *p, uint64_t max_bytes, uint64_t pool_bytes) {
    plan q = *p;
    q.max_bytes = max_bytes;
    q.pool_bytes = pool_bytes;
    return q;
}

static void count_up(td_token *t, uint32_t n, td_token from) {
    for (uint32_t i = 0; i < n; i++)
        t[i] = from + (td_token)i;
}

/* Every prefix of a text is reused to the token, whatever the window; with recurrent memory, to a snapshot. */
static void every_prefix_of_a_text_is_found(void **state) {
    (void)state;
    for (size_t i = 0; i < N_PLANS; i++)
        for (uint32_t n = 1; n < 60; n += 7) {
            stage s;
            plan p = with_bytes(&plans[i], 1 << 30, 0);
            stage_open(&s, &p, 1);
            td_token text[MAX_TOKENS], prompt[MAX_TOKENS];
            count_up(text, MAX_TOKENS, 5);
            assert_int_equal(reused(&s, text, n), 0);
            say(&s, text, n, 5);
            check_tree(&s);
            for (uint32_t split = 0; split <= n + 3; split++) {
                memcpy(prompt, text, sizeof prompt);
                prompt[split] = 99999;
                uint32_t got = reused(&s, prompt, split + 2), most = split < n ? split : n;
                assert_int_equal(got, !plans[i].recurrent ? most : most == n ? n : 0);
                if (split) /* the newest token is always fed */
                    assert_int_equal(reused(&s, text, split), !plans[i].recurrent ? (split - 1 < n ? split - 1 : n)
                                                              : split - 1 >= n    ? n
                                                                                  : 0);
            }
            stage_close(&s);
        }
}

/* A second reader begins on the pages that the first has finished, while the first goes on. */
static void pages_are_shared_while_they_come(void **state) {
    (void)state;
    for (size_t i = 0; i < N_PLANS; i++) {
        if (plans[i].recurrent)
            continue;
        stage s;
        plan p = with_bytes(&plans[i], 1 << 30, 0);
        stage_open(&s, &p, 1);
        td_token text[MAX_TOKENS], other[MAX_TOKENS];
        count_up(text, MAX_TOKENS, 5);
        actor *a = actor_open(&s, 3), *b = actor_open(&s, 3);
        assert_int_equal(start(a, text, 100), 0);
        for (uint32_t fed = 0; fed < 100; fed += 10) {
            assert_int_equal(reused(&s, text, 120), fed / p.page_tokens * p.page_tokens);
            assert_true(feed(a, 10, 2));
            check_tree(&s);
        }
        memcpy(other, text, sizeof other);
        other[50] = 7777;
        assert_int_equal(start(b, other, 80), 50);
        for (uint32_t turn = 0; turn < 10; turn++) { /* both go on, each on its own */
            assert_true(feed(b, 3, 2));
            a->tokens[a->n++] = (td_token)(3000 + turn);
            assert_true(feed(a, 1, 2));
            check_visible(a);
            check_visible(b);
            check_tree(&s);
        }
        finish(b);
        finish(a);
        assert_int_equal(reused(&s, other, 80), 79);
        check_tree(&s);
        actor_close(a);
        actor_close(b);
        stage_close(&s);
    }
}

/* The last, partial page of an answer is taken up by two who go on differently; both have their own then. */
static void a_partial_page_is_copied_before_it_is_written(void **state) {
    (void)state;
    for (size_t i = 0; i < N_PLANS; i++) {
        stage s;
        plan p = with_bytes(&plans[i], 1 << 30, 0);
        stage_open(&s, &p, 1);
        td_token text[MAX_TOKENS];
        count_up(text, MAX_TOKENS, 5);
        say(&s, text, 21, 6);
        actor *a = actor_open(&s, 3), *b = actor_open(&s, 3);
        td_token first[30], second[30];
        memcpy(first, text, sizeof first);
        memcpy(second, text, sizeof second);
        second[21] = 4444;
        assert_int_equal(start(a, first, 30), 21);
        assert_int_equal(start(b, second, 30), 21);
        for (uint32_t k = 0; k < 9; k++) {
            assert_true(feed(a, 1, 2));
            assert_true(feed(b, 1, 0));
            check_visible(a);
            check_visible(b);
            check_tree(&s);
            td_token third[23];
            memcpy(third, text, sizeof third);
            third[21] = 5555;
            assert_int_equal(reused(&s, third, 23), 21); /* what both began on is still there */
        }
        actor_close(a);
        actor_close(b);
        stage_close(&s);
    }
}

/* Prompts that end inside a page leave it partial; one that goes on takes its place, one that parts stands beside it.
 */
static void partial_pages_grow_and_part(void **state) {
    (void)state;
    stage s;
    plan p = with_bytes(&plans[1], 1 << 30, 0);
    stage_open(&s, &p, 1);
    td_token text[MAX_TOKENS];
    count_up(text, MAX_TOKENS, 5);
    for (uint32_t n = 9; n <= 16; n++) {
        say(&s, text, n, 4);
        assert_int_equal(td_prompt_cache_describe(s.cache).nodes, 2); /* always the same two */
        check_tree(&s);
    }
    say(&s, text, 11, 4); /* holds nothing new */
    assert_int_equal(td_prompt_cache_describe(s.cache).nodes, 2);
    text[12] = 1;
    say(&s, text, 14, 4);
    text[12] = 20000;
    say(&s, text, 14, 4);
    assert_int_equal(td_prompt_cache_describe(s.cache).nodes, 4);
    check_tree(&s);
    assert_int_equal(reused(&s, text, 15), 14);
    text[12] = 1;
    assert_int_equal(reused(&s, text, 15), 14);
    text[12] = 300;
    assert_int_equal(reused(&s, text, 15), 12);
    stage_close(&s);
}

/* A snapshot serves every text that begins like it, also through a sibling that has none (requirement 5). */
static void snapshots_are_of_their_position_alone(void **state) {
    (void)state;
    stage s;
    plan p = with_bytes(&plans[4], 1 << 30, 0);
    stage_open(&s, &p, 1);
    td_token text[MAX_TOKENS];
    count_up(text, MAX_TOKENS, 5);
    actor *a = actor_open(&s, 3);
    start(a, text, 30);
    feed(a, 21, 0);
    take_snapshot(a); /* in the middle of the third page */
    feed(a, 9, 0);
    finish(a); /* and at 30 */
    actor_close(a);
    check_tree(&s);
    assert_int_equal(td_prompt_cache_describe(s.cache).snapshots, 2);
    for (uint32_t split = 0; split < 40; split++) {
        td_token prompt[50];
        memcpy(prompt, text, sizeof prompt);
        prompt[split] = 1;
        assert_int_equal(reused(&s, prompt, 50), split < 21 ? 0 : split < 30 ? 21 : 30);
    }
    td_token other[40];
    memcpy(other, text, sizeof other);
    other[23] = 1;
    say(&s, other, 28, 40); /* parts behind the snapshot: a sibling page, without one at 21 */
    other[25] = 2;
    assert_int_equal(reused(&s, other, 40), 21);
    stage_close(&s);
}

static void keep_passing(stage *s, actor *a) {
    td_snapshot copy = {.position = length_of(a), .passing = true, .whole = true};
    copy.state = s->model.be->ops->alloc(s->model.be, 64);
    for (uint64_t i = 0, h = hash_tokens(a->tokens, copy.position); i < 8; i++, h++)
        memcpy(copy.state + 8 * i, &h, 8);
    assert_true(td_cache_trail_keep(&a->trail, a->tokens, &copy));
    if (copy.state)
        s->model.be->ops->free(s->model.be, copy.state);
}

/* Copies made in passing thin out behind a long prompt: few are left, with no gap of more than a quarter. */
static void copies_made_in_passing_thin_out(void **state) {
    (void)state;
    stage s;
    plan p = with_bytes(&plans[4], 1 << 30, 0);
    stage_open(&s, &p, 1);
    td_token text[MAX_TOKENS];
    count_up(text, MAX_TOKENS, 5);
    actor *a = actor_open(&s, 3);
    start(a, text, MAX_TOKENS);
    for (uint32_t at = 8; at <= 152; at += 8) {
        assert_true(feed(a, 8, 0));
        keep_passing(&s, a);
        check_tree(&s);
        assert_in_range(td_prompt_cache_describe(s.cache).snapshots, 1, 9);
        uint32_t before = 0;
        for (uint32_t n = 1; n <= at; n++) {
            uint32_t got = td_prompt_cache_find(s.cache, text, n).length;
            assert_true(n - got <= (at / 4 > 8 ? at / 4 : 8));
            assert_true(got >= before);
            before = got;
        }
        assert_int_equal(before, at);
    }
    actor_close(a);
    stage_close(&s);
}

/* What cannot be continued exactly is not offered: a window with a hole. */
static void a_hole_in_a_window_is_respected(void **state) {
    (void)state;
    stage s;
    plan p = with_bytes(&plans[1], 1 << 30, 0); /* window 12, pages of 8 */
    stage_open(&s, &p, 1);
    td_token text[MAX_TOKENS];
    count_up(text, MAX_TOKENS, 5);
    say(&s, text, 60, 60);
    td_cache_node *x = s.cache->root;
    for (int i = 0; i < 4; i++)
        x = x->child[0];
    td_cache_tree_drop_windows(s.cache, x); /* positions 24..31 */
    for (uint32_t n = 1; n <= 60; n++) {
        td_token prompt[MAX_TOKENS];
        memcpy(prompt, text, sizeof prompt);
        prompt[n] = 1;
        /* a row at n sees 11 keys before it: n <= 24, or all of them from 32 on; windowed page 3 has none at all */
        assert_int_equal(reused(&s, prompt, n + 1), n <= 24 || n >= 32 + 11 ? n : 24);
    }
    /* and a text that comes by again fills it */
    say(&s, text, 60, 60);
    say(&s, text, 50, 60);
    td_prompt_cache_clear(s.cache);
    assert_int_equal(td_prompt_cache_describe(s.cache).bytes, 0);
    assert_int_equal(td_prompt_cache_describe(s.cache).evicted_pages, 0);
    stage_close(&s);
}

/* ---- budgets ---- */

static uint64_t bytes_of_text(const plan *p, uint32_t n) {
    stage s;
    plan q = with_bytes(p, 1 << 30, 0);
    stage_open(&s, &q, 1);
    td_token text[MAX_TOKENS];
    count_up(text, MAX_TOKENS, 5);
    say(&s, text, n, 8);
    uint64_t bytes = td_prompt_cache_describe(s.cache).bytes;
    stage_close(&s);
    return bytes;
}

/* Texts of which two fit: the one used last stays. */
static void the_least_recently_used_goes(void **state) {
    (void)state;
    for (size_t i = 0; i < N_PLANS; i++) {
        stage s;
        plan p = with_bytes(&plans[i], 2 * bytes_of_text(&plans[i], 48) + 100, 0);
        stage_open(&s, &p, 1);
        td_token a[60], b[60], c[60];
        count_up(a, 60, 1000);
        count_up(b, 60, 2000);
        count_up(c, 60, 3000);
        say(&s, a, 48, 8);
        say(&s, b, 48, 8);
        assert_int_equal(reused(&s, a, 60), 48);
        assert_int_equal(reused(&s, b, 60), 48);
        assert_int_equal(reused(&s, a, 60), 48); /* used again */
        say(&s, c, 48, 8);
        check_tree(&s);
        assert_int_equal(reused(&s, a, 60), 48);
        if (!s.cache->widest) /* else old windows were enough */
            assert_true(reused(&s, b, 60) < 48);
        assert_int_equal(reused(&s, c, 60), 48);
        assert_true(td_prompt_cache_describe(s.cache).evicted_pages > 0 ||
                    td_prompt_cache_describe(s.cache).evicted_windows > 0);
        stage_close(&s);
    }
}

/* Windows behind the end of a text that is used go before any of the text. */
static void windows_that_serve_nobody_go_first(void **state) {
    (void)state;
    stage s;
    plan p = with_bytes(&plans[1], bytes_of_text(&plans[1], 96) + bytes_of_text(&plans[1], 8), 0);
    stage_open(&s, &p, 1);
    td_token a[100], b[20];
    count_up(a, 100, 1000);
    count_up(b, 20, 2000);
    say(&s, a, 96, 8);
    assert_int_equal(reused(&s, a, 100), 96); /* its last windows and all its pages are in use */
    say(&s, b, 16, 8);
    td_prompt_cache_stats st = td_prompt_cache_describe(s.cache);
    assert_int_equal(st.evicted_pages, 0);
    assert_true(st.evicted_windows > 0);
    assert_int_equal(reused(&s, a, 100), 96);
    check_tree(&s);
    stage_close(&s);
}

/* One text larger than the budget: its beginning is kept, and what was there before has made room for it. */
static void a_text_larger_than_the_budget_keeps_its_beginning(void **state) {
    (void)state;
    stage s;
    plan p = with_bytes(&plans[0], bytes_of_text(&plans[0], 40), 0);
    stage_open(&s, &p, 1);
    td_token a[30], b[MAX_TOKENS];
    count_up(a, 30, 1000);
    count_up(b, MAX_TOKENS, 2000);
    say(&s, a, 24, 8);
    say(&s, b, 120, 16);
    check_tree(&s);
    assert_int_equal(reused(&s, a, 30), 0);
    assert_int_equal(reused(&s, b, 130), 40);
    assert_true(td_prompt_cache_describe(s.cache).refused > 0);
    stage_close(&s);
    plan none = with_bytes(&plans[0], 0, 0);
    stage_open(&s, &none, 1);
    say(&s, b, 120, 16);
    assert_int_equal(reused(&s, b, 130), 0);
    stage_close(&s);
}

/* A running sequence has the pool to itself but for what others are using. */
static void the_cache_gives_way_to_who_runs(void **state) {
    (void)state;
    for (size_t i = 0; i < N_PLANS; i++) {
        plan p = with_bytes(&plans[i], 1 << 30, 0);
        stage s;
        stage_open(&s, &p, 1);
        uint64_t page = 0;
        for (uint32_t g = 0; g < p.n_groups; g++)
            page += td_kv_page_cost(s.pool, g);
        stage_close(&s);
        p.pool_bytes = page * (160 / p.page_tokens) + page / 2;
        stage_open(&s, &p, 1);
        td_token a[MAX_TOKENS], b[MAX_TOKENS];
        count_up(a, MAX_TOKENS, 1000);
        count_up(b, MAX_TOKENS, 3000);
        say(&s, a, 150, 16);
        check_tree(&s);
        actor *x = actor_open(&s, 3);
        start(x, b, 150);
        while (length_of(x) < 150) {
            assert_true(feed(x, 10, 0));
            check_visible(x);
            check_tree(&s);
        }
        assert_true(td_kv_pool_allocated(s.pool) <= p.pool_bytes);
        actor *y = actor_open(&s, 3); /* now the pool is full of pages in use */
        start(y, a, 150);
        while (length_of(y) < 150 && feed(y, 10, 0))
            check_tree(&s);
        if (!s.cache->widest)
            assert_true(length_of(y) < 150);
        check_visible(x);
        actor_close(x);
        actor_close(y);
        stage_close(&s);
    }
}

/* What a sequence is using would free nothing: it stays, though it was used longest ago. */
static void what_would_free_nothing_stays(void **state) {
    (void)state;
    plan p = with_bytes(&plans[0], 1 << 30, 0);
    stage s;
    stage_open(&s, &p, 1);
    p.pool_bytes = 10 * td_kv_page_cost(s.pool, 0);
    stage_close(&s);
    stage_open(&s, &p, 1);
    td_token a[30], b[30], c[60];
    count_up(a, 30, 1000);
    count_up(b, 30, 2000);
    count_up(c, 60, 3000);
    say(&s, a, 20, 8);
    actor *x = actor_open(&s, 3), *y = actor_open(&s, 3);
    assert_int_equal(start(x, a, 30), 20); /* holds a's three pages, the partial one too */
    say(&s, b, 20, 8);
    start(y, c, 50);
    assert_true(feed(y, 50, 0)); /* seven pages: all but a's */
    assert_int_equal(reused(&s, b, 30), 0);
    assert_int_equal(reused(&s, a, 30), 20);
    check_tree(&s);
    actor_close(x);
    actor_close(y);
    stage_close(&s);
}

/* ---- taking back ---- */

static void what_was_cut_is_not_kept(void **state) {
    (void)state;
    stage s;
    plan p = with_bytes(&plans[1], 1 << 30, 0);
    stage_open(&s, &p, 1);
    td_token text[MAX_TOKENS];
    count_up(text, MAX_TOKENS, 5);
    actor *a = actor_open(&s, 9);
    start(a, text, 50);
    feed(a, 50, 0);
    assert_int_equal(td_prompt_cache_describe(s.cache).nodes, 6);
    td_cache_trail_cut(&a->trail, 46); /* the sixth page reaches beyond */
    td_kv_seq_set_length(a->kv, 45);
    assert_int_equal(td_prompt_cache_describe(s.cache).nodes, 5);
    finish(a);
    assert_int_equal(reused(&s, text, 60), 45);
    check_tree(&s);
    /* but not when it was there before */
    start(a, text, 50);
    feed_all(a, 10);
    finish(a);
    uint64_t nodes = td_prompt_cache_describe(s.cache).nodes;
    start(a, text, 50);
    feed_all(a, 10);
    td_cache_trail_cut(&a->trail, 17);
    assert_int_equal(td_prompt_cache_describe(s.cache).nodes, nodes);
    check_tree(&s);
    actor_close(a);
    stage_close(&s);
}

/* A text turns out wrong: nothing of it, or built on it, stays; what it had begun on does (requirement 6). */
static void what_is_revoked_leaves_nothing(void **state) {
    (void)state;
    for (size_t i = 0; i < N_PLANS; i++) {
        stage s;
        plan p = with_bytes(&plans[i], 1 << 30, 0);
        stage_open(&s, &p, 1);
        td_token text[MAX_TOKENS];
        count_up(text, MAX_TOKENS, 5);
        say(&s, text, 20, 8);
        td_prompt_cache_stats before = td_prompt_cache_describe(s.cache);
        actor *a = actor_open(&s, 3), *b = actor_open(&s, 3);
        assert_int_equal(start(a, text, 80), 20);
        feed(a, 28, 0);
        take_snapshot(a);
        feed(a, 20, 0);
        start(b, text, 100); /* on a's pages */
        feed_all(b, 30);
        td_cache_trail_revoke(&a->trail);
        check_tree(&s);
        forget(a);
        assert_true(td_prompt_cache_describe(s.cache).nodes <= before.nodes);
        assert_true(reused(&s, text, 100) <= 20);
        b->tokens[b->n++] = 1;
        feed_all(b, 30);
        if (b->trail.barred) /* it has begun on what was wrong */
            finish(b);
        assert_true(reused(&s, text, 100) <= 20);
        check_tree(&s);
        actor_close(a);
        actor_close(b);
        stage_close(&s);
    }
}

/* Nor does a snapshot stay that it has left in a page of another. */
static void what_is_revoked_leaves_nothing_with_others(void **state) {
    (void)state;
    stage s;
    plan p = with_bytes(&plans[4], 1 << 30, 0);
    stage_open(&s, &p, 1);
    td_token text[MAX_TOKENS];
    count_up(text, MAX_TOKENS, 5);
    say(&s, text, 40, 8);
    text[30] = 1;
    actor *a = actor_open(&s, 3);
    assert_int_equal(start(a, text, 60), 0); /* the only snapshot is at 40 */
    feed(a, 22, 0);
    take_snapshot(a);
    feed(a, 30, 0);
    assert_int_equal(td_prompt_cache_describe(s.cache).snapshots, 2);
    assert_int_equal(reused(&s, text, 60), 22);
    td_cache_trail_revoke(&a->trail);
    assert_int_equal(td_prompt_cache_describe(s.cache).snapshots, 1);
    assert_int_equal(td_prompt_cache_describe(s.cache).nodes, 5);
    assert_int_equal(reused(&s, text, 60), 0);
    check_tree(&s);
    actor_close(a);
    stage_close(&s);
}

/* ---- random lives ---- */

enum { N_ACTORS = 4, N_TEXTS = 40 };

typedef struct memory { /* what has been offered, for the reference */
    td_token text[N_TEXTS][MAX_TOKENS];
    uint32_t n[N_TEXTS], count;
} memory;

/* Texts over few words, so that they part everywhere. */
static uint32_t make_prompt(stage *s, const memory *m, td_token *prompt) {
    uint32_t n = 0;
    if (m->count && dice(s, 4)) {
        uint32_t from = dice(s, m->count < N_TEXTS ? m->count : N_TEXTS);
        n = dice(s, m->n[from] + 1);
        memcpy(prompt, m->text[from], n * sizeof *prompt);
    }
    for (uint32_t more = 1 + dice(s, dice(s, 3) ? 6 : 50); more && n < MAX_TOKENS - 40; more--)
        prompt[n++] = (td_token)dice(s, 3);
    return n;
}

static void remember(memory *m, const actor *a) {
    uint32_t at = m->count++ % N_TEXTS;
    m->n[at] = length_of(a);
    memcpy(m->text[at], a->tokens, length_of(a) * sizeof(td_token));
}

static void go_back(stage *s, actor *a) {
    uint32_t length = length_of(a), back = length > a->margin ? length - dice(s, a->margin + 1) : length;
    if (!td_kv_seq_can_rewind(a->kv, back) || !back || a->snapshots)
        return;
    td_kv_seq_set_length(a->kv, back);
    if (dice(s, 2))
        td_cache_trail_back(&a->trail, back);
    else
        td_cache_trail_cut(&a->trail, back);
    a->n = back;
}

static void live(stage *s, actor *a, memory *m) {
    td_token prompt[MAX_TOKENS];
    switch (dice(s, 10)) {
    case 0:
        if (a->n)
            remember(m, a);
        finish(a);
        break;
    case 1:
        forget(a);
        break;
    case 2:
        go_back(s, a);
        break;
    case 3:
        take_snapshot(a);
        break;
    default:
        if (!a->n) {
            uint32_t n = make_prompt(s, m, prompt);
            start(a, prompt, n);
        } else if (length_of(a) < a->n) {
            if (!feed(a, 1 + dice(s, a->n - length_of(a)), dice(s, 4)))
                forget(a);
        } else if (a->n + 4 < MAX_TOKENS) {
            for (uint32_t k = dice(s, 4) + 1; k; k--)
                a->tokens[a->n++] = (td_token)dice(s, 3);
        }
    }
    check_visible(a);
}

static void random_lives(const plan *p, uint64_t seed, uint32_t steps) {
    stage s;
    stage_open(&s, p, seed);
    memory *m = td_calloc(1, sizeof *m);
    actor *a[N_ACTORS];
    for (uint32_t i = 0; i < N_ACTORS; i++)
        a[i] = actor_open(&s, 4);
    for (uint32_t k = 0; k < steps; k++) {
        live(&s, a[dice(&s, N_ACTORS)], m);
        check_tree(&s);
    }
    for (uint32_t i = 0; i < N_ACTORS; i++)
        actor_close(a[i]);
    check_tree(&s);
    td_free(m);
    stage_close(&s);
}

static void random_lives_under_any_budget(void **state) {
    (void)state;
    for (size_t i = 0; i < N_PLANS; i++) {
        uint64_t one = bytes_of_text(&plans[i], 60);
        const uint64_t budget[] = {1 << 30, 3 * one, one, one / 3};
        for (uint64_t b = 0; b < 4; b++)
            for (uint64_t seed = 0; seed < 3; seed++) {
                plan p = with_bytes(&plans[i], budget[b], seed == 2 ? 6 * one : 0);
                random_lives(&p, 100 * i + 10 * b + seed, 600);
            }
    }
}

/* Without a shortage, what is found is the longest there is, by a search through all that was ever said. */
static void what_is_found_is_the_longest(void **state) {
    (void)state;
    for (size_t i = 0; i < N_PLANS; i++) {
        stage s;
        plan p = with_bytes(&plans[i], 1 << 30, 0);
        stage_open(&s, &p, 50 + i);
        memory *m = td_calloc(1, sizeof *m);
        for (uint32_t k = 0; k < N_TEXTS; k++) {
            td_token prompt[MAX_TOKENS];
            uint32_t n = make_prompt(&s, m, prompt), want = 0;
            for (uint32_t t = 0; t < m->count; t++) {
                uint32_t shared = 0;
                while (shared < m->n[t] && shared + 1 < n && m->text[t][shared] == prompt[shared])
                    shared++;
                if (p.recurrent && shared < m->n[t])
                    shared = 0; /* snapshots are at the ends */
                want = shared > want ? shared : want;
            }
            actor *a = actor_open(&s, 3);
            assert_int_equal(start(a, prompt, n), want);
            feed_all(a, 1 + dice(&s, 20));
            remember(m, a);
            finish(a);
            actor_close(a);
        }
        check_tree(&s);
        td_free(m);
        stage_close(&s);
    }
}

static void memory_that_fails_costs_only_the_cache(void **state) {
    (void)state;
    long before = td_alloc_live();
    for (long k = 0;; k++) {
        stage s;
        plan p = with_bytes(&plans[5], 1 << 30, 0);
        stage_open(&s, &p, 1);
        td_token text[MAX_TOKENS];
        count_up(text, MAX_TOKENS, 5);
        actor *a = actor_open(&s, 3);
        start(a, text, 90);
        assert_int_equal(td_kv_seq_reserve(a->kv, 100, NULL), TD_OK); /* its own pages are there */
        td_alloc_fail_at(k);
        feed_all(a, 20);
        take_snapshot(a);
        finish(a);
        bool failed = td_alloc_failed();
        td_alloc_fail_at(-1);
        check_tree(&s);
        uint32_t got = reused(&s, text, 100);
        assert_true(failed || got == 90);
        actor_close(a);
        stage_close(&s);
        assert_int_equal(td_alloc_live(), before);
        if (!failed)
            break;
    }
    td_error e;
    stage s;
    plan p = with_bytes(&plans[0], 1, 0);
    stage_open(&s, &p, 1);
    for (long k = 0; k < 2; k++) {
        td_prompt_cache *c;
        td_alloc_fail_at(k);
        assert_int_equal(td_prompt_cache_open(&c, &s.model, s.pool, 1, &e), TD_E_NOMEM);
        assert_null(c);
        td_alloc_fail_at(-1);
    }
    stage_close(&s);
    td_prompt_cache_close(NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_prefix_of_a_text_is_found),
        cmocka_unit_test(pages_are_shared_while_they_come),
        cmocka_unit_test(a_partial_page_is_copied_before_it_is_written),
        cmocka_unit_test(partial_pages_grow_and_part),
        cmocka_unit_test(snapshots_are_of_their_position_alone),
        cmocka_unit_test(copies_made_in_passing_thin_out),
        cmocka_unit_test(a_hole_in_a_window_is_respected),
        cmocka_unit_test(the_least_recently_used_goes),
        cmocka_unit_test(windows_that_serve_nobody_go_first),
        cmocka_unit_test(a_text_larger_than_the_budget_keeps_its_beginning),
        cmocka_unit_test(the_cache_gives_way_to_who_runs),
        cmocka_unit_test(what_would_free_nothing_stays),
        cmocka_unit_test(what_was_cut_is_not_kept),
        cmocka_unit_test(what_is_revoked_leaves_nothing),
        cmocka_unit_test(what_is_revoked_leaves_nothing_with_others),
        cmocka_unit_test(random_lives_under_any_budget),
        cmocka_unit_test(what_is_found_is_the_longest),
        cmocka_unit_test(memory_that_fails_costs_only_the_cache),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
