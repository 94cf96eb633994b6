/* test_queue.c - the order in which those who wait are served: fair between owners, by age within one, and starving
 * nobody, whatever is taken out of the middle. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"
#include "engine/queue.h"

/* Serves the first; returns its number. */
static int serve(td_queue *q, const td_waiting *all) {
    td_waiting *w = q->first;
    assert_non_null(w);
    td_queue_serve(q, w);
    return (int)(w - all);
}

static void check_links(const td_queue *q) {
    uint32_t n = 0;
    for (const td_waiting *w = q->first; w; w = w->next, n++) {
        assert_ptr_equal(w->prev ? w->prev->next : q->first, w);
        assert_ptr_equal(w->next ? w->next->prev : q->last, w);
        assert_true(!w->prev || w->prev->tag <= w->tag);
    }
    assert_int_equal(n, q->n);
}

static void owners_take_turns(void **state) {
    (void)state;
    td_queue q = {0};
    td_waiting w[8];
    static const uint64_t owner[8] = {7, 7, 7, 7, 8, 8, 9, 7};
    static const int order[8] = {0, 4, 6, 1, 5, 2, 3, 7};
    for (int i = 0; i < 8; i++) {
        td_queue_put(&q, &w[i], owner[i]);
        check_links(&q);
    }
    for (int i = 0; i < 8; i++)
        assert_int_equal(serve(&q, w), order[i]);
    assert_int_equal(q.n, 0);
    assert_null(q.first);
    assert_null(q.last);
}

/* Who has asked for much is not punished for it later, and who has asked for nothing has not saved anything up. */
static void the_past_is_past(void **state) {
    (void)state;
    td_queue q = {0};
    td_waiting w[104];
    for (int i = 0; i < 100; i++)
        td_queue_put(&q, &w[i], 1);
    for (int i = 0; i < 100; i++)
        assert_int_equal(serve(&q, w), i);
    for (int i = 100; i < 104; i++)
        td_queue_put(&q, &w[i], i == 100 ? 1 : 2);
    for (int i = 100; i < 104; i++)
        assert_int_equal(serve(&q, w), i);
}

/* One who was passed over and is served late does not let those who come then go before others. */
static void passing_over_turns_no_clock_back(void **state) {
    (void)state;
    td_queue q = {0};
    td_waiting w[8];
    td_queue_put(&q, &w[0], 1);
    for (int i = 1; i < 6; i++)
        td_queue_put(&q, &w[i], 2);
    for (int i = 1; i < 4; i++)
        td_queue_serve(&q, &w[i]);
    assert_int_equal(serve(&q, w), 0);
    td_queue_put(&q, &w[6], 3);
    assert_int_equal(serve(&q, w), 4);
    assert_int_equal(serve(&q, w), 6);
    assert_int_equal(serve(&q, w), 5);
}

static void everybody_has_a_turn(void **state) {
    (void)state;
    td_queue q = {0};
    td_waiting w[5];
    assert_null(td_queue_turn(&q));
    for (int i = 0; i < 5; i++)
        td_queue_put(&q, &w[i], (uint64_t)i);
    for (int i = 0; i < 12; i++)
        assert_ptr_equal(td_queue_turn(&q), &w[i % 5]);
    td_queue_drop(&q, &w[2]); /* it was its turn */
    assert_ptr_equal(td_queue_turn(&q), &w[3]);
    td_queue_drop(&q, &w[4]);
    assert_ptr_equal(td_queue_turn(&q), &w[0]);
    td_queue_drop(&q, &w[0]);
    td_queue_drop(&q, &w[3]);
    td_queue_drop(&q, &w[1]);
    assert_null(td_queue_turn(&q));
}

/* By the definition, looked up the slow way: the lowest tag, the oldest of those. */
static int first_by_definition(const td_waiting *w, const bool *waits, int n) {
    int best = -1;
    for (int i = 0; i < n; i++)
        if (waits[i] && (best < 0 || w[i].tag < w[best].tag))
            best = i;
    return best;
}

static uint64_t tag_by_definition(const td_waiting *w, const bool *waits, int n, uint64_t owner, uint64_t served) {
    uint64_t tag = served;
    for (int i = 0; i < n; i++)
        if (waits[i] && w[i].owner == owner && w[i].tag > tag)
            tag = w[i].tag;
    return tag + 1;
}

/* Of those who come later, each other owner's go first no more often than one has a turn to wait oneself. */
static void nobody_starves(void **state) {
    (void)state;
    enum { N = 600, OWNERS = 9 };
    td_queue q = {0};
    static td_waiting w[N];
    static bool waits[N];
    static uint64_t served_then[N], overtaken[N];
    int came = 0;
    for (uint64_t step = 0; came < N || q.n; step++) {
        uint32_t r = (uint32_t)(td_rng_uniform(5, step, 0) * 4294967296.0);
        if (came < N && (q.n == 0 || r % 5 < 3)) {
            uint64_t owner = r / 5 % 2 ? 0 : r / 10 % OWNERS; /* owner 0 asks for most */
            uint64_t tag = tag_by_definition(w, waits, came, owner, q.served);
            served_then[came] = q.served;
            td_queue_put(&q, &w[came], owner);
            assert_int_equal(w[came].tag, tag);
            waits[came++] = true;
        } else if (r / 90 % 4) {
            int who = serve(&q, w);
            assert_int_equal(who, first_by_definition(w, waits, came));
            waits[who] = false;
            for (int i = 0; i < who; i++)
                overtaken[i] += waits[i];
        } else { /* one gives up */
            int who = (int)(r / 360) % came;
            if (waits[who])
                td_queue_drop(&q, &w[who]);
            waits[who] = false;
        }
        check_links(&q);
    }
    for (int i = 0; i < N; i++)
        assert_true(overtaken[i] <= (w[i].tag - served_then[i] - 1) * (OWNERS - 1));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(owners_take_turns),
        cmocka_unit_test(the_past_is_past),
        cmocka_unit_test(passing_over_turns_no_clock_back),
        cmocka_unit_test(everybody_has_a_turn),
        cmocka_unit_test(nobody_starves),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
