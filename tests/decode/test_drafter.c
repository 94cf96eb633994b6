/* test_drafter.c - when a draft ends: at its depth, at an end token, at a probability that was set, and where going on
 * would not pay; and that a draft leaves the history as it was. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/rng.h"
#include "decode/drafter.h"

#define N_VOCAB 16

static uint32_t generated[N_VOCAB];

static bool nine_ends(const void *user, td_token t) {
    (void)user;
    return t == 9;
}

/* Drafts as drafters do: tokens and their probabilities in turn, until the draft has had enough. */
static uint32_t draft_of(td_draft *b, const td_token *t, const float *p, td_history *h) {
    *h = (td_history){.n_vocab = N_VOCAB, .generated = generated};
    b->history = h;
    b->is_end = nine_ends;
    td_draft_begin(b);
    for (uint32_t j = 0; td_draft_goes_on(b); j++) {
        assert_true(j < b->depth);
        td_draft_take(b, t[j], p[j]);
    }
    uint32_t counted = 0;
    for (int i = 0; i < N_VOCAB; i++)
        counted += generated[i];
    assert_int_equal(counted, b->n_out);
    td_draft_release(b);
    for (int i = 0; i < N_VOCAB; i++)
        assert_int_equal(generated[i], 0);
    return b->n_out;
}

static void a_draft_ends_where_it_should(void **state) {
    (void)state;
    static const td_token tokens[] = {1, 2, 3, 4, 5, 6}, with_end[] = {1, 2, 9, 4, 5, 6};
    static const float sure[] = {1, 1, 1, 1, 1, 1}, falling[] = {0.9f, 0.9f, 0.5f, 0.9f, 0.9f, 0.9f},
                       unknown[] = {-1, -1, -1, -1, -1, -1};
    td_draft_stop none = {0}, half = {.min_prob = 0.5f}, pays = {0}, typical = {0};
    for (int b = 0; b < TD_CONFIDENCE_BINS; b++)
        pays.worth[b] = 0.5f; /* whatever the drafter says */
    for (int j = 0; j < TD_MAX_DRAFT; j++) {
        pays.least[j] = 0.2f;
        typical.typical[j] = 0.7f;
        typical.least[j] = 0.4f;
    }
    const struct {
        const td_token *t;
        const float *p;
        const td_draft_stop *stop;
        uint32_t depth, n, steps;
    } cases[] = {
        {tokens, sure, NULL, 4, 4, 4},     {tokens, falling, NULL, 6, 6, 6},
        {with_end, sure, NULL, 6, 3, 3},   {tokens, falling, &none, 6, 6, 6}, /* no limits: whatever it is worth */
        {tokens, falling, &half, 6, 2, 3}, {tokens, unknown, &half, 6, 6, 6},
        {tokens, sure, &pays, 6, 3, 3},    {tokens, unknown, &typical, 6, 3, 3},
    };
    for (int b = 0; b < TD_CONFIDENCE_BINS; b++)
        half.worth[b] = 1;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_token out[6];
        float confidence[6];
        td_history h;
        td_draft b = {.depth = cases[i].depth, .stop = cases[i].stop, .out = out, .confidence = confidence};
        uint32_t n = draft_of(&b, cases[i].t, cases[i].p, &h);
        if (n != cases[i].n || b.n_steps != cases[i].steps)
            fail_msg("case %zu: %u tokens in %u steps, expected %u in %u", i, n, b.n_steps, cases[i].n, cases[i].steps);
        assert_memory_equal(out, cases[i].t, n * sizeof *out);
        assert_memory_equal(confidence, cases[i].p, n * sizeof *confidence);
    }
}

static void classes_of_probabilities_are_ordered(void **state) {
    (void)state;
    uint32_t last = 0;
    for (int i = 0; i <= 1000; i++) {
        uint32_t b = td_confidence_bin((float)i / 1000);
        assert_true(b >= last && b < TD_CONFIDENCE_BINS);
        last = b;
    }
    assert_int_equal(td_confidence_bin(0), 0);
    assert_int_equal(last, TD_CONFIDENCE_BINS - 1);
}

/* Accepted drafts of those made, by a drafter that is right as often as it says, or half as often. */
static double acceptance_at(float min_prob, float honesty, uint64_t *made) {
    td_draft_stop stop = {.min_prob = min_prob};
    uint64_t accepted = 0;
    *made = 0;
    for (uint32_t round = 0; round < 20000; round++) {
        td_token t[8] = {0}, out[8];
        float p[8];
        td_history h;
        td_draft b = {.depth = 8, .stop = &stop, .out = out};
        for (uint32_t j = 0; j < 8; j++) {
            float u = (float)td_rng_uniform(5, round, j);
            p[j] = 1 - u * u; /* often near 1, sometimes near 0 */
        }
        uint32_t n = draft_of(&b, t, p, &h), right = 0;
        while (right < n && td_rng_uniform(6, round, right) < (double)(p[right] * honesty))
            right++;
        accepted += right;
        *made += n;
    }
    return *made ? (double)accepted / (double)*made : 1;
}

/* Requirement 68. */
static void a_higher_threshold_never_lowers_acceptance(void **state) {
    (void)state;
    static const float honesty[] = {1, 0.5f};
    for (int k = 0; k < 2; k++) {
        double last = 0;
        uint64_t made, most = UINT64_MAX;
        for (int i = 0; i < 20; i++) {
            double now = acceptance_at((float)i / 20, honesty[k], &made);
            if (now < last || made > most)
                fail_msg("at %g: %.4f of %llu drafts, at %g %.4f of %llu", i / 20.0, now, (unsigned long long)made,
                         (i - 1) / 20.0, last, (unsigned long long)most);
            last = now;
            most = made;
        }
        assert_true(last > 0.85 * (double)honesty[k]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_draft_ends_where_it_should),
        cmocka_unit_test(classes_of_probabilities_are_ordered),
        cmocka_unit_test(a_higher_threshold_never_lowers_acceptance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
