/* test_depth.c - the depth controller against simulated machines and texts: it must come within 3 % of the best fixed
 * depth, never cost more than 3 % where drafting does not pay, and follow a text that changes. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/rng.h"
#include "decode/depth.h"

#define MOST 8

typedef struct machine {
    const char *name;
    double row;   /* cost of a further row, in plain rounds */
    double draft; /* cost of a draft step */
    double noise; /* relative */
} machine;

typedef struct text {
    const char *name;
    double accept[MOST];
} text;

static const machine machines[] = {
    {"memory bound, cheap head", 0.05, 0.04, 0.05},
    {"half and half", 0.25, 0.10, 0.10},
    {"compute bound", 0.80, 0.05, 0.05},
    {"costly head", 0.10, 0.70, 0.05},
};

static const text texts[] = {
    {"predictable", {0.95, 0.93, 0.92, 0.9, 0.9, 0.88, 0.87, 0.85}},
    {"prose", {0.65, 0.6, 0.55, 0.5, 0.5, 0.45, 0.45, 0.4}},
    {"hard", {0.35, 0.3, 0.3, 0.2, 0.2, 0.2, 0.2, 0.2}},
    {"hopeless", {0}},
};

typedef struct run {
    td_depth depth;
    td_depth_costs costs;
    uint64_t round; /* key of the simulation's noise */
    double seconds, tokens;
} run;

static double uniform(run *r, uint32_t what) {
    return td_rng_uniform(99, r->round, what);
}

/* One round of depth d; keys stay in one bucket. */
static void play(run *r, const machine *m, const text *t, uint32_t d) {
    uint32_t accepted = 0;
    while (accepted < d && uniform(r, accepted) < t->accept[accepted])
        accepted++;
    double wobble = 1 + m->noise * (2 * uniform(r, 50) - 1);
    double verify = (1 + m->row * d) * wobble, draft = m->draft * d * wobble;
    r->seconds += verify + draft;
    r->tokens += 1 + accepted;
    td_depth_observe(&r->depth, &r->costs, 2000, d, accepted, draft, verify);
    r->round++;
}

static double rate_of_fixed(const machine *m, const text *t, uint32_t d) {
    double tokens = 1, reach = 1;
    for (uint32_t i = 0; i < d; i++) {
        reach *= t->accept[i];
        tokens += reach;
    }
    return tokens / (1 + m->row * d + m->draft * d);
}

static double best_fixed(const machine *m, const text *t) {
    double best = 0;
    for (uint32_t d = 0; d <= MOST; d++)
        best = rate_of_fixed(m, t, d) > best ? rate_of_fixed(m, t, d) : best;
    return best;
}

static void start(run *r) {
    memset(r, 0, sizeof *r);
    td_depth_costs_init(&r->costs);
    td_depth_init(&r->depth, &r->costs);
}

static void go(run *r, const machine *m, const text *t, uint32_t rounds) {
    r->seconds = r->tokens = 0;
    for (uint32_t i = 0; i < rounds; i++)
        play(r, m, t, td_depth_choose(&r->depth, &r->costs, 2000, MOST));
}

static void comes_near_the_best_fixed_depth(void **state) {
    (void)state;
    for (size_t m = 0; m < sizeof machines / sizeof machines[0]; m++)
        for (size_t t = 0; t < sizeof texts / sizeof texts[0]; t++) {
            run r;
            start(&r);
            go(&r, &machines[m], &texts[t], 4000);
            double got = r.tokens / r.seconds, best = best_fixed(&machines[m], &texts[t]);
            if (got < 0.97 * best)
                fail_msg("%s, %s: %.3f tokens a plain round, the best fixed depth gives %.3f", machines[m].name,
                         texts[t].name, got, best);
        }
}

static void hopeless_drafts_cost_little_from_the_start(void **state) {
    (void)state;
    for (size_t m = 0; m < sizeof machines / sizeof machines[0]; m++) {
        run r;
        start(&r);
        go(&r, &machines[m], &texts[3], 400);
        if (r.tokens / r.seconds < 0.95)
            fail_msg("%s: %.3f of plain over the first 400 tokens", machines[m].name, r.tokens / r.seconds);
        go(&r, &machines[m], &texts[3], 400);
        if (r.tokens / r.seconds < 0.97)
            fail_msg("%s: %.3f of plain afterwards", machines[m].name, r.tokens / r.seconds);
    }
}

static void a_text_that_changes_is_followed_within_64_rounds(void **state) {
    (void)state;
    const machine *m = &machines[0];
    for (size_t from = 0; from < 4; from++)
        for (size_t to = 0; to < 4; to++) {
            run r;
            start(&r);
            go(&r, m, &texts[from], 600);
            go(&r, m, &texts[to], 64);
            go(&r, m, &texts[to], 600);
            double got = r.tokens / r.seconds, best = best_fixed(m, &texts[to]);
            if (got < 0.95 * best)
                fail_msg("from %s to %s: %.3f, the best fixed depth gives %.3f", texts[from].name, texts[to].name, got,
                         best);
        }
}

static void an_interruption_does_not_change_the_depth(void **state) {
    (void)state;
    run r;
    start(&r);
    go(&r, &machines[0], &texts[1], 300);
    uint32_t before = td_depth_choose(&r.depth, &r.costs, 2000, MOST);
    td_depth_observe(&r.depth, &r.costs, 2000, before, 1, 0.04 * before, 1000.0);
    uint32_t after = td_depth_choose(&r.depth, &r.costs, 2000, MOST);
    assert_true(before > 0);
    assert_in_range(after, before - 1, before + 1);
}

static void a_new_context_length_measures_a_plain_round_first(void **state) {
    (void)state;
    run r;
    start(&r);
    assert_int_equal(td_depth_choose(&r.depth, &r.costs, 2000, MOST), 0);
    go(&r, &machines[0], &texts[0], 50);
    assert_true(td_depth_choose(&r.depth, &r.costs, 2000, MOST) > 0);
    assert_int_equal(td_depth_choose(&r.depth, &r.costs, 200000, MOST), 0);
    assert_int_equal(td_depth_choose(&r.depth, &r.costs, 2000, 0), 0);
    assert_true(td_depth_choose(&r.depth, &r.costs, 2000, 2) <= 2);
}

static void a_new_sequence_begins_with_what_the_others_learned(void **state) {
    (void)state;
    run r;
    start(&r);
    go(&r, &machines[1], &texts[3], 2000);
    td_depth_init(&r.depth, &r.costs);
    assert_int_equal(td_depth_choose(&r.depth, &r.costs, 2000, MOST), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(comes_near_the_best_fixed_depth),
        cmocka_unit_test(hopeless_drafts_cost_little_from_the_start),
        cmocka_unit_test(a_text_that_changes_is_followed_within_64_rounds),
        cmocka_unit_test(an_interruption_does_not_change_the_depth),
        cmocka_unit_test(a_new_context_length_measures_a_plain_round_first),
        cmocka_unit_test(a_new_sequence_begins_with_what_the_others_learned),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
