/* test_kv.c - pages of keys and values, checked through what a reader of the page tables can see.
 *
 * The rule under test: after the length becomes L, every key that a row at L - margin or later may see is there, and
 * pages whose keys nobody may see are not. The schedules below are those of decoding: passes of many rows, rounds of
 * 1 + depth rows of which some are taken back, a new prompt that shares a prefix with the old. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "cache/kv.h"

#define MAX_TOKENS 200u

static uint32_t below(uint64_t stream, uint64_t i, uint32_t n) {
    return (uint32_t)(td_rng_uniform(4711, stream, (uint32_t)i) * n);
}

/* ---- a pool with hand-made groups ---- */

typedef struct pool {
    td_backend *be;
    td_kv_layout layout;
    td_kv_pool *kv;
    td_error err;
} pool;

static void pool_open(pool *p, uint32_t page_tokens, const uint32_t *window, uint32_t n_groups, uint64_t max_bytes) {
    *p = (pool){.layout = {.type = TD_KV_F32, .page_tokens = page_tokens, .n_groups = n_groups}};
    for (uint32_t g = 0; g < n_groups; g++)
        p->layout.group[g] = (td_kv_group){.window = window[g], .page_bytes = page_tokens * 64 * (g + 1)};
    assert_int_equal(td_backend_ref_open(&p->be, &p->err), TD_OK);
    assert_int_equal(td_kv_pool_open(&p->kv, &p->layout, p->be, max_bytes, &p->err), TD_OK);
}

static void pool_close(pool *p) {
    assert_int_equal(td_kv_pool_used(p->kv), 0);
    td_kv_pool_close(&p->kv);
    td_backend_close(&p->be);
}

static td_kv_seq *seq_open(pool *p, uint32_t max_tokens, uint32_t margin) {
    td_kv_seq *s = NULL;
    assert_int_equal(td_kv_seq_open(&s, p->kv, max_tokens, margin, &p->err), TD_OK);
    return s;
}

static void reserve(pool *p, td_kv_seq *s, uint32_t n) {
    if (td_kv_seq_reserve(s, n, &p->err) != TD_OK)
        fail_msg("reserve: %s", p->err.message);
}

static void grow(pool *p, td_kv_seq *s, uint32_t n) {
    reserve(p, s, n);
    td_kv_seq_set_length(s, td_kv_seq_length(s) + n);
}

/* Bytes of one page of each group, as the pool counts them. */
static void page_costs(pool *p, uint64_t cost[TD_KV_MAX_GROUPS]) {
    for (uint32_t g = 0; g < p->layout.n_groups; g++) {
        td_kv_layout one = {.type = TD_KV_F32, .page_tokens = p->layout.page_tokens, .n_groups = 1};
        one.group[0] = p->layout.group[g];
        td_kv_pool *kv = NULL;
        td_kv_seq *s = NULL;
        assert_int_equal(td_kv_pool_open(&kv, &one, p->be, 0, &p->err), TD_OK);
        assert_int_equal(td_kv_seq_open(&s, kv, 1, 0, &p->err), TD_OK);
        reserve(p, s, 1);
        cost[g] = td_kv_pool_used(kv);
        assert_true(cost[g] >= one.group[0].page_bytes);
        td_kv_seq_close(&s);
        td_kv_pool_close(&kv);
    }
}

static uint32_t first_visible(uint32_t window, uint32_t length) {
    return window && length + 1 > window ? length + 1 - window : 0;
}

static uint32_t pages_for(uint32_t n, uint32_t page_tokens) {
    return (n + page_tokens - 1) / page_tokens;
}

/* ---- tables ---- */

static const uint32_t two_groups[] = {0, 12};

static void reserving_takes_whole_pages_in_every_group(void **state) {
    (void)state;
    pool p;
    pool_open(&p, 8, two_groups, 2, 0);
    uint64_t cost[TD_KV_MAX_GROUPS];
    page_costs(&p, cost);
    td_kv_seq *s = seq_open(&p, MAX_TOKENS, 4);
    for (uint32_t n = 0; n <= 20; n++) {
        reserve(&p, s, n);
        uint32_t pages = pages_for(n, 8);
        for (uint32_t g = 0; g < 2; g++) {
            td_kv_pages table = td_kv_seq_pages(s, g);
            assert_int_equal(td_kv_seq_held(s, g), pages);
            for (uint32_t i = 0; i <= MAX_TOKENS / 8; i++)
                assert_int_equal(table[i] != NULL, i < pages);
            for (uint32_t i = 0; i < pages; i++)
                assert_int_equal((uintptr_t)table[i] % 64, 0);
        }
        assert_int_equal(td_kv_pool_used(p.kv), pages * (cost[0] + cost[1]));
        assert_int_equal(td_kv_seq_length(s), 0);
    }
    td_kv_seq_close(&s);
    td_kv_seq_close(&s);
    td_kv_seq_close(NULL);
    pool_close(&p);
    td_kv_pool_close(&p.kv);
    td_kv_pool_close(NULL);
}

/* Every window, margin and page size against the rule, one token at a time. */
static void pages_behind_the_window_are_given_back(void **state) {
    (void)state;
    static const uint32_t windows[] = {0, 1, 2, 7, 8, 9, 12, 40}, margins[] = {0, 1, 5, 8, 17}, sizes[] = {8, 16};
    for (size_t z = 0; z < 2; z++)
        for (size_t m = 0; m < 5; m++) {
            pool p;
            for (size_t w = 0; w < 8; w++) {
                pool_open(&p, sizes[z], &windows[w], 1, 0);
                td_kv_seq *s = seq_open(&p, MAX_TOKENS, margins[m]);
                for (uint32_t length = 1; length <= 100; length++) {
                    grow(&p, s, 1);
                    uint32_t needed = first_visible(windows[w], length);
                    needed = needed > margins[m] ? needed - margins[m] : 0; /* the first key that must stay */
                    uint32_t first = needed / sizes[z], end = pages_for(length, sizes[z]);
                    first = first < end ? first : end;
                    for (uint32_t i = 0; i < end; i++)
                        assert_int_equal(td_kv_seq_pages(s, 0)[i] != NULL, i >= first);
                    assert_int_equal(td_kv_seq_held(s, 0), end - first);
                }
                td_kv_seq_close(&s);
                pool_close(&p);
            }
        }
}

/* The keys that a row at `length` sees, its own, which will be written, included. */
static bool all_present(const td_kv_seq *s, const pool *p, uint32_t length) {
    for (uint32_t g = 0; g < p->layout.n_groups; g++)
        for (uint32_t k = first_visible(p->layout.group[g].window, length); k <= length; k++)
            if (!td_kv_seq_pages(s, g)[k / p->layout.page_tokens])
                return false;
    return true;
}

static void going_back_is_possible_exactly_while_the_keys_are_there(void **state) {
    (void)state;
    static const uint32_t windows[][3] = {{0, 12, 5}, {30, 1, 0}, {8, 9, 16}};
    for (size_t w = 0; w < 3; w++)
        for (uint32_t margin = 0; margin < 20; margin += 3) {
            pool p;
            pool_open(&p, 8, windows[w], 3, 0);
            td_kv_seq *s = seq_open(&p, MAX_TOKENS, margin);
            for (uint32_t length = 0; length < 120;) {
                for (uint32_t back = 0; back <= length; back++) {
                    bool can = td_kv_seq_can_rewind(s, back);
                    if (back < length)
                        assert_int_equal(can, all_present(s, &p, back));
                    if (back + margin >= length)
                        assert_true(can);
                }
                assert_true(td_kv_seq_can_rewind(s, length));
                assert_false(td_kv_seq_can_rewind(s, length + 1));
                grow(&p, s, 1 + below(1, length, 11));
                length = td_kv_seq_length(s);
            }
            td_kv_seq_close(&s);
            pool_close(&p);
        }
}

static void a_sequence_without_windows_can_go_back_anywhere(void **state) {
    (void)state;
    pool p;
    pool_open(&p, 8, (const uint32_t[]){0, 0}, 2, 0);
    td_kv_seq *s = seq_open(&p, MAX_TOKENS, 0);
    grow(&p, s, 100);
    for (uint32_t i = 0; i <= 100; i++)
        assert_true(td_kv_seq_can_rewind(s, i));
    td_kv_seq_set_length(s, 3);
    assert_int_equal(td_kv_seq_length(s), 3);
    assert_int_equal(td_kv_seq_held(s, 0), 13); /* pages past the length stay */
    grow(&p, s, 97);
    assert_int_equal(td_kv_seq_held(s, 0), 13);
    td_kv_seq_close(&s);
    pool_close(&p);
}

static void clearing_gives_everything_back(void **state) {
    (void)state;
    pool p;
    pool_open(&p, 8, two_groups, 2, 0);
    td_kv_seq *s = seq_open(&p, MAX_TOKENS, 2);
    for (int turn = 0; turn < 3; turn++) {
        grow(&p, s, 90);
        reserve(&p, s, 30);
        td_kv_seq_clear(s);
        assert_int_equal(td_kv_seq_length(s), 0);
        assert_int_equal(td_kv_pool_used(p.kv), 0);
        for (uint32_t g = 0; g < 2; g++) {
            assert_int_equal(td_kv_seq_held(s, g), 0);
            for (uint32_t i = 0; i <= MAX_TOKENS / 8; i++)
                assert_null(td_kv_seq_pages(s, g)[i]);
        }
        assert_true(td_kv_seq_can_rewind(s, 0));
        assert_false(td_kv_seq_can_rewind(s, 1));
    }
    td_kv_seq_close(&s);
    pool_close(&p);
}

/* ---- limits ---- */

static void a_sequence_ends_at_its_context(void **state) {
    (void)state;
    pool p;
    pool_open(&p, 8, two_groups, 2, 0);
    td_kv_seq *s = seq_open(&p, 20, 2);
    grow(&p, s, 15);
    const uint32_t too_many[] = {6, 100, UINT32_MAX - 14, UINT32_MAX};
    for (size_t i = 0; i < 4; i++) {
        uint64_t used = td_kv_pool_used(p.kv);
        char want[80];
        snprintf(want, sizeof want, "15 tokens and %u more, but the context holds 20", too_many[i]);
        assert_int_equal(td_kv_seq_reserve(s, too_many[i], &p.err), TD_E_LIMIT);
        assert_string_equal(p.err.message, want);
        assert_int_equal(td_kv_pool_used(p.kv), used);
    }
    grow(&p, s, 5);
    assert_int_equal(td_kv_seq_reserve(s, 1, NULL), TD_E_LIMIT);
    reserve(&p, s, 0);
    td_kv_seq_close(&s);
    pool_close(&p);
}

static void the_pool_has_a_limit_and_recovers(void **state) {
    (void)state;
    pool p;
    pool_open(&p, 8, (const uint32_t[]){0}, 1, 0);
    uint64_t costs[TD_KV_MAX_GROUPS];
    page_costs(&p, costs);
    pool_close(&p);
    uint64_t cost = costs[0];
    pool_open(&p, 8, (const uint32_t[]){0}, 1, 5 * cost + cost / 2);
    td_kv_seq *a = seq_open(&p, MAX_TOKENS, 0), *b = seq_open(&p, MAX_TOKENS, 0);
    reserve(&p, a, 24);
    assert_int_equal(td_kv_seq_reserve(b, 32, &p.err), TD_E_LIMIT);
    assert_string_equal(p.err.message, "keys and values need more than the 0 MiB set aside for them");
    assert_int_equal(td_kv_seq_held(b, 0), 2); /* what was taken stays */
    assert_true(td_kv_pool_allocated(p.kv) <= 5 * cost);
    td_kv_seq_clear(a);
    reserve(&p, b, 32); /* and what the other gave back is enough */
    assert_int_equal(td_kv_seq_held(b, 0), 4);
    assert_int_equal(td_kv_pool_allocated(p.kv), 5 * cost);
    td_kv_seq_close(&a);
    td_kv_seq_close(&b);
    pool_close(&p);
}

/* Pages that one group no longer needs must not keep another from growing. */
static void waiting_pages_of_a_group_make_room_for_another(void **state) {
    (void)state;
    pool p;
    pool_open(&p, 8, two_groups, 2, 0);
    uint64_t cost[TD_KV_MAX_GROUPS];
    page_costs(&p, cost);
    pool_close(&p);
    uint64_t limit = 10 * (cost[0] + cost[1]);
    pool_open(&p, 8, two_groups, 2, limit);
    td_kv_seq *s = seq_open(&p, 1000, 2);
    reserve(&p, s, 80); /* a prefill in one pass: ten pages in either group */
    td_kv_seq_set_length(s, 80);
    assert_int_equal(td_kv_seq_held(s, 1), 2); /* eight windowed pages wait, and a full-attention page is wanted */
    while (td_kv_pool_used(p.kv) + cost[0] + cost[1] <= limit) {
        grow(&p, s, 8);
        assert_true(td_kv_pool_allocated(p.kv) <= limit);
    }
    assert_true(td_kv_seq_length(s) > 100);
    assert_int_equal(td_kv_seq_reserve(s, 200, &p.err), TD_E_LIMIT);
    td_kv_seq_close(&s);
    pool_close(&p);
}

/* ---- pages go round ---- */

static void freed_pages_are_used_again(void **state) {
    (void)state;
    pool p;
    pool_open(&p, 8, two_groups, 2, 0);
    td_kv_seq *a = seq_open(&p, MAX_TOKENS, 2), *b = seq_open(&p, MAX_TOKENS, 2);
    grow(&p, a, 8);
    uint8_t *full = td_kv_seq_pages(a, 0)[0], *sliding = td_kv_seq_pages(a, 1)[0];
    uint64_t allocated = td_kv_pool_allocated(p.kv);
    td_kv_seq_clear(a);
    grow(&p, b, 8);
    assert_ptr_equal(td_kv_seq_pages(b, 0)[0], full); /* each to its own group */
    assert_ptr_equal(td_kv_seq_pages(b, 1)[0], sliding);
    assert_int_equal(td_kv_pool_allocated(p.kv), allocated);
    td_kv_seq_close(&a);
    td_kv_seq_close(&b);
    pool_close(&p);
}

/* A sliding group in steady state lives off the pages it gives back: nothing is allocated. */
static void a_steady_window_allocates_nothing(void **state) {
    (void)state;
    pool p;
    pool_open(&p, 8, (const uint32_t[]){12}, 1, 0);
    td_kv_seq *s = seq_open(&p, 5000, 5);
    grow(&p, s, 64);
    uint64_t allocated = td_kv_pool_allocated(p.kv);
    td_alloc_fail_at(0);
    for (uint32_t i = 0; i < 1000; i++)
        grow(&p, s, 1 + i % 5);
    assert_false(td_alloc_failed());
    td_alloc_fail_at(-1);
    assert_int_equal(td_kv_pool_allocated(p.kv), allocated);
    td_kv_seq_close(&s);
    pool_close(&p);
}

static void memory_is_flat_over_a_thousand_sequences(void **state) {
    (void)state;
    pool p;
    pool_open(&p, 8, two_groups, 2, 0);
    long live = 0;
    uint64_t allocated = 0;
    for (uint32_t i = 0; i < 1000; i++) {
        td_kv_seq *s = seq_open(&p, MAX_TOKENS, 4);
        reserve(&p, s, i < 10 ? MAX_TOKENS : 1 + below(2, i, MAX_TOKENS));
        td_kv_seq_set_length(s, 1);
        for (uint32_t n = 0; n < 20 && td_kv_seq_length(s) + 9 < MAX_TOKENS; n++)
            grow(&p, s, 1 + below(4, 32 * i + n, 8));
        td_kv_seq_close(&s);
        assert_int_equal(td_kv_pool_used(p.kv), 0);
        if (i == 10) {
            live = td_alloc_live();
            allocated = td_kv_pool_allocated(p.kv);
        }
        if (i > 10) {
            assert_int_equal(td_alloc_live(), live);
            assert_int_equal(td_kv_pool_allocated(p.kv), allocated);
        }
    }
    pool_close(&p);
}

/* ---- several sequences in one pool: every key keeps what was written for it ---- */

enum { N_SEQS = 4 };

typedef struct actor {
    td_kv_seq *seq;
    uint32_t id, written[MAX_TOKENS]; /* what was last written at a position */
} actor;

static uint32_t *cell(const actor *a, const pool *p, uint32_t g, uint32_t pos) {
    uint8_t *page = td_kv_seq_pages(a->seq, g)[pos / p->layout.page_tokens];
    assert_non_null(page);
    return (uint32_t *)(void *)page +
           (pos % p->layout.page_tokens) * (p->layout.group[g].page_bytes / 4 / p->layout.page_tokens);
}

static void write_keys(actor *a, pool *p, uint32_t n, uint32_t stamp) {
    reserve(p, a->seq, n);
    for (uint32_t pos = td_kv_seq_length(a->seq), end = pos + n; pos < end; pos++) {
        a->written[pos] = stamp ^ a->id << 24 ^ pos;
        for (uint32_t g = 0; g < p->layout.n_groups; g++)
            *cell(a, p, g, pos) = a->written[pos];
    }
}

static void check_keys(const actor *a, const pool *p, uint32_t margin) {
    uint32_t length = td_kv_seq_length(a->seq);
    uint32_t back = length > margin ? length - margin : 0;
    if (!td_kv_seq_can_rewind(a->seq, back)) /* it has been taken back already */
        back = length;
    for (uint32_t g = 0; g < p->layout.n_groups; g++)
        for (uint32_t k = first_visible(p->layout.group[g].window, back); k < length; k++)
            assert_int_equal(*cell(a, p, g, k), a->written[k]);
}

/* One step of one sequence: a pass, of which all or some rows are kept; sometimes a rewind; sometimes a new start. */
static void act(actor *a, pool *p, uint32_t margin, uint64_t stream, uint32_t i) {
    uint32_t length = td_kv_seq_length(a->seq), what = below(stream, 4 * i, 20);
    if (what == 0 || length + 40 > MAX_TOKENS) {
        td_kv_seq_clear(a->seq);
        return;
    }
    if (what == 1 && length) {
        uint32_t back = length - 1 - below(stream, 4 * i + 1, length < margin ? length : margin);
        if (td_kv_seq_can_rewind(a->seq, back))
            td_kv_seq_set_length(a->seq, back);
        return;
    }
    uint32_t rows = what < 5 ? 1 + below(stream, 4 * i + 2, 30) : 1 + below(stream, 4 * i + 2, margin);
    write_keys(a, p, rows, i << 8);
    td_kv_seq_set_length(a->seq, length + (what < 5 ? rows : 1 + below(stream, 4 * i + 3, rows)));
}

static void no_key_is_lost_or_overwritten(void **state) {
    (void)state;
    static const uint32_t windows[] = {0, 12, 7, 33};
    for (uint32_t margin = 1; margin < 10; margin += 4) {
        pool p;
        pool_open(&p, 8, windows, TD_KV_MAX_GROUPS, 0);
        actor a[N_SEQS];
        for (uint32_t i = 0; i < N_SEQS; i++)
            a[i] = (actor){.seq = seq_open(&p, MAX_TOKENS, margin), .id = i};
        for (uint32_t step = 0; step < 4000; step++) {
            act(&a[step % N_SEQS], &p, margin, 100 + margin, step);
            for (uint32_t i = 0; i < N_SEQS; i++)
                check_keys(&a[i], &p, margin);
        }
        for (uint32_t i = 0; i < N_SEQS; i++)
            td_kv_seq_close(&a[i].seq);
        pool_close(&p);
    }
}

/* ---- the plan ---- */

typedef struct schedule {
    uint32_t n_tokens, pass_rows, margin, page, window;
} schedule;

/* Decodes as round.c does, and holds the windowed group to window + margin + the rows of the pass. Returns the peak. */
static uint64_t run_schedule(pool *p, const schedule *c, uint64_t stream) {
    td_kv_seq *s = seq_open(p, c->n_tokens, c->margin);
    uint64_t peak = 0;
    for (uint32_t i = 0; i < 300; i++) {
        uint32_t length = td_kv_seq_length(s), room = c->n_tokens - length;
        if (room == 0 || below(stream, 3 * i, 40) == 0) { /* the next prompt: from the start, or from a little back */
            uint32_t back = length - (length < c->margin ? length : c->margin);
            if (below(stream, 3 * i, 2) && td_kv_seq_can_rewind(s, back))
                td_kv_seq_set_length(s, back);
            else
                td_kv_seq_clear(s);
            continue;
        }
        bool prefill = below(stream, 3 * i, 3) > 0;
        uint32_t rows = prefill ? c->pass_rows : 1 + below(stream, 3 * i + 1, c->margin);
        rows = rows < c->pass_rows ? rows : c->pass_rows;
        rows = rows < room ? rows : room;
        reserve(p, s, rows);
        uint64_t used = td_kv_pool_used(p->kv);
        peak = used > peak ? used : peak;
        uint32_t most = rows > c->margin ? rows : c->margin; /* rows taken back in an earlier round keep their pages */
        assert_true(td_kv_seq_held(s, 1) <= pages_for(c->window + c->margin + most, c->page) + 1);
        td_kv_seq_set_length(s, length + (prefill ? rows : 1 + below(stream, 3 * i + 2, rows)));
        assert_true(td_kv_seq_held(s, 1) <= pages_for(c->window + 2 * c->margin, c->page) + 1);
    }
    td_kv_seq_close(&s);
    return peak;
}

static void the_plan_bounds_what_is_held(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 400; i++) {
        schedule c = {.n_tokens = 1 + below(7, 8 * i, 700),
                      .pass_rows = 1 + below(7, 8 * i + 1, i % 3 ? 40 : 600),
                      .margin = 1 + below(7, 8 * i + 2, 17),
                      .page = 8u << below(7, 8 * i + 3, 4),
                      .window = 1 + below(7, 8 * i + 4, i % 2 ? 30 : 300)};
        c.pass_rows += c.margin; /* a decoder's passes hold a round */
        pool p;
        pool_open(&p, c.page, (const uint32_t[]){0, c.window}, 2, 0);
        uint64_t plan = td_kv_plan_bytes(&p.layout, c.n_tokens, c.pass_rows, c.margin);
        uint64_t peak = run_schedule(&p, &c, 1000 + i);
        if (peak > plan)
            fail_msg(
                "schedule %u: %llu bytes held, %llu planned (%u tokens, passes of %u, margin %u, page %u, window %u)",
                i, (unsigned long long)peak, (unsigned long long)plan, c.n_tokens, c.pass_rows, c.margin, c.page,
                c.window);
        pool_close(&p);
    }
}

/* An upper bound is useless if it is far above: a prompt in full passes comes within two pages a group. */
static void the_plan_is_not_far_above_what_is_held(void **state) {
    (void)state;
    pool p;
    pool_open(&p, 16, (const uint32_t[]){0, 100}, 2, 0);
    uint64_t cost[TD_KV_MAX_GROUPS];
    page_costs(&p, cost);
    td_kv_seq *s = seq_open(&p, 3000, 5);
    uint64_t peak = 0;
    while (td_kv_seq_length(s) < 3000) {
        uint32_t rows = 3000 - td_kv_seq_length(s);
        reserve(&p, s, rows < 64 ? rows : 64);
        peak = td_kv_pool_used(p.kv) > peak ? td_kv_pool_used(p.kv) : peak;
        td_kv_seq_set_length(s, td_kv_seq_length(s) + (rows < 64 ? rows : 64));
    }
    uint64_t plan = td_kv_plan_bytes(&p.layout, 3000, 64, 5);
    assert_true(plan >= peak && plan <= peak + 2 * (cost[0] + cost[1]));
    assert_int_equal(td_kv_plan_bytes(&p.layout, 1, 64, 5), cost[0] + cost[1]);
    td_kv_seq_close(&s);
    pool_close(&p);
}

/* ---- no memory ---- */

static void no_memory_leaves_nothing_behind(void **state) {
    (void)state;
    td_kv_layout layout = {.type = TD_KV_F32, .page_tokens = 8, .n_groups = 2};
    layout.group[0].page_bytes = 512;
    layout.group[1] = (td_kv_group){.window = 12, .page_bytes = 256};
    td_backend *be;
    td_error err;
    assert_int_equal(td_backend_ref_open(&be, &err), TD_OK);
    for (long k = 0;; k++) {
        long live = td_alloc_live();
        td_kv_pool *kv = NULL;
        td_kv_seq *s = NULL;
        td_alloc_fail_at(k);
        td_status st = td_kv_pool_open(&kv, &layout, be, 0, &err);
        if (st == TD_OK)
            st = td_kv_seq_open(&s, kv, 100, 2, &err);
        if (st == TD_OK)
            st = td_kv_seq_reserve(s, 30, &err);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        assert_int_equal(st, struck ? TD_E_NOMEM : TD_OK);
        if (s && struck) { /* the sequence is whole: the same call works now */
            assert_int_equal(td_kv_seq_reserve(s, 30, &err), TD_OK);
            assert_int_equal(td_kv_seq_held(s, 0), 4);
            assert_int_equal(td_kv_seq_held(s, 1), 4);
        }
        td_kv_seq_close(&s);
        td_kv_pool_close(&kv);
        assert_int_equal(td_alloc_live(), live);
        if (!struck)
            break;
    }
    td_backend_close(&be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reserving_takes_whole_pages_in_every_group),
        cmocka_unit_test(pages_behind_the_window_are_given_back),
        cmocka_unit_test(going_back_is_possible_exactly_while_the_keys_are_there),
        cmocka_unit_test(a_sequence_without_windows_can_go_back_anywhere),
        cmocka_unit_test(clearing_gives_everything_back),
        cmocka_unit_test(a_sequence_ends_at_its_context),
        cmocka_unit_test(the_pool_has_a_limit_and_recovers),
        cmocka_unit_test(waiting_pages_of_a_group_make_room_for_another),
        cmocka_unit_test(freed_pages_are_used_again),
        cmocka_unit_test(a_steady_window_allocates_nothing),
        cmocka_unit_test(memory_is_flat_over_a_thousand_sequences),
        cmocka_unit_test(no_key_is_lost_or_overwritten),
        cmocka_unit_test(the_plan_bounds_what_is_held),
        cmocka_unit_test(the_plan_is_not_far_above_what_is_held),
        cmocka_unit_test(no_memory_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
