/* test_recency.c - the heap of what can be let go, against a search through all items. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "cache/recency.h"

enum { N = 60 };

static uint32_t below(uint64_t seed, uint32_t step, uint32_t n) {
    return (uint32_t)(td_rng_uniform(seed, step, 0) * n);
}

static void check(const td_recency *r, const td_recency_item *item) {
    uint64_t oldest = UINT64_MAX;
    uint32_t inside = 0;
    for (uint32_t i = 0; i < N; i++)
        if (item[i].place) {
            inside++;
            assert_ptr_equal(r->item[item[i].place - 1], &item[i]);
            oldest = item[i].clock < oldest ? item[i].clock : oldest;
        }
    assert_int_equal(r->n, inside);
    if (inside)
        assert_int_equal(td_recency_oldest(r)->clock, oldest);
    else
        assert_null(td_recency_oldest(r));
}

static void the_oldest_is_in_front(void **state) {
    (void)state;
    for (uint64_t seed = 0; seed < 20; seed++) {
        td_recency r = {0};
        td_recency_item item[N] = {0};
        assert_true(td_recency_reserve(&r, N));
        for (uint32_t step = 0; step < 4000;) {
            td_recency_item *x = &item[below(seed, ++step, N)];
            uint32_t what = below(seed, ++step, 4);
            uint64_t clock = below(seed, ++step, 1000);
            if (what == 0) {
                if (!x->place)
                    x->clock = clock;
                td_recency_add(&r, x);
            } else if (what == 1) {
                td_recency_remove(&r, x);
            } else if (what == 2) {
                td_recency_touch(&r, x, clock); /* also to an earlier time */
                assert_int_equal(x->clock, clock);
            } else if (td_recency_oldest(&r)) {
                td_recency_remove(&r, td_recency_oldest(&r));
            }
            check(&r, item);
        }
        td_recency_free(&r);
    }
}

static void room_is_made_beforehand(void **state) {
    (void)state;
    td_recency r = {0};
    td_recency_item item[N] = {0};
    td_alloc_fail_at(0);
    assert_false(td_recency_reserve(&r, 1));
    td_alloc_fail_at(-1);
    assert_true(td_recency_reserve(&r, N));
    td_alloc_fail_at(0);
    assert_true(td_recency_reserve(&r, N));
    for (uint32_t i = 0; i < N; i++) {
        td_recency_add(&r, &item[i]);
        td_recency_add(&r, &item[i]); /* is inside */
    }
    assert_false(td_alloc_failed());
    td_alloc_fail_at(-1);
    assert_int_equal(r.n, N);
    td_recency_remove(&r, &item[3]);
    td_recency_remove(&r, &item[3]);
    assert_int_equal(r.n, N - 1);
    td_recency_free(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_oldest_is_in_front),
        cmocka_unit_test(room_is_made_beforehand),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
