/* test_drafting.c - how options and requests bound drafting, through the public interface: a number is a limit unless
 * it is fixed, a probability ends drafts, and a pass has no more logits than it can use. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <math.h>
#include <cmocka.h>

#include "support/sanitized.h"
#include "tandem.h"

#define TRUNK TD_SOURCE_DIR "/models/gemma4-demo-4bit"
#define ASSISTANT TD_SOURCE_DIR "/models/gemma4-demo-assistant-4bit"

#define ASSERT_OK(call)                                                                                                \
    do {                                                                                                               \
        td_error err_ = {0};                                                                                           \
        td_error *err = &err_;                                                                                         \
        if ((call) != TD_OK)                                                                                           \
            fail_msg("%s: %s", #call, err_.message);                                                                   \
    } while (0)

static td_engine_options pair_options(void) {
    td_engine_options o = td_engine_options_default();
    o.model = TRUNK;
    o.assistant = ASSISTANT;
    o.n_ctx = 512;
    o.n_threads = 1;
    return o;
}

static td_engine *open_engine(const td_engine_options *o) {
    td_engine *e;
    ASSERT_OK(td_engine_open(&e, o, err));
    return e;
}

static void options_that_make_no_sense_are_refused(void **state) {
    (void)state;
    static const struct {
        uint32_t depth;
        bool fixed;
        float min_prob;
        const char *says;
    } cases[] = {
        {TD_DEPTH_AUTO, true, 0, "a fixed depth was asked for, but not how many drafts a round"},
        {17, false, 0, "17 drafts a round, expected 0 to 16"},
        {4, false, -0.1f, "drafts that end at a probability of -0.1, expected 0 to 1"},
        {4, false, 1.5f, "drafts that end at a probability of 1.5, expected 0 to 1"},
        {4, false, NAN, "drafts that end at a probability of nan, expected 0 to 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_engine_options o = pair_options();
        td_engine *e;
        td_error err;
        o.num_mtp_tokens = cases[i].depth;
        o.mtp_fixed = cases[i].fixed;
        o.mtp_min_prob = cases[i].min_prob;
        assert_int_equal(td_engine_open(&e, &o, &err), TD_E_ARG);
        assert_string_equal(err.message, cases[i].says);
    }
}

#if TD_SANITIZED /* it looks for bad memory accesses, not for rates */
#define N_NEW 60
#define STEP 2
#else
#define N_NEW 160
#define STEP 1
#endif

typedef struct counts {
    uint64_t drafted, accepted, tokens, rounds;
    uint32_t deepest;
} counts;

/* A request of each opening; depth -1: the engine's. */
static counts answer(td_engine *e, int depth, float temperature, uint32_t max_tokens) {
    static const char *const openings[] = {
        "Once upon a time there was a little", "The river was", "1, 2, 3, 4,", "In the year", "She said that",
        "A list of things to do:\n-"};
    counts c = {0};
    td_session *session;
    ASSERT_OK(td_session_open(&session, e, err));
    for (size_t i = 0; i < sizeof openings / sizeof openings[0]; i++) {
        td_request q = td_request_default();
        td_token *prompt;
        td_result r;
        ASSERT_OK(td_engine_tokenize(e, openings[i], strlen(openings[i]), true, false, &prompt, &q.n_prompt, err));
        q.prompt = prompt;
        q.max_tokens = max_tokens;
        q.ignore_eos = true;
        q.num_mtp_tokens = depth;
        q.sampling.temperature = temperature;
        q.sampling.seed = i;
        ASSERT_OK(td_session_generate(session, &q, &r, err));
        c.drafted += r.drafted;
        c.tokens += r.n_tokens;
        c.rounds += r.rounds;
        for (uint32_t j = 0; j < TD_MAX_DRAFT; j++) {
            c.accepted += r.accepted_at[j];
            c.deepest = r.drafted_at[j] ? j + 1 > c.deepest ? j + 1 : c.deepest : c.deepest;
        }
        td_result_free(&r);
        td_tokens_free(prompt);
    }
    td_session_close(&session);
    return c;
}

/* Requirement 66. */
static void a_number_is_a_limit_unless_it_is_fixed(void **state) {
    (void)state;
    td_engine_options o = pair_options();
    o.num_mtp_tokens = 5;
    td_engine *limited = open_engine(&o);
    o.mtp_fixed = true;
    td_engine *fixed = open_engine(&o);
    assert_true(td_engine_describe(limited)->mtp_auto);
    assert_false(td_engine_describe(fixed)->mtp_auto);
    assert_int_equal(td_engine_describe(limited)->mtp_depth, 5);
    assert_int_equal(td_engine_describe(fixed)->mtp_depth, 5);
    static const struct {
        int asked;
        uint32_t most;
    } cases[] = {{-1, 5}, {0, 0}, {2, 2}, {5, 5}, {16, 5}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        counts pinned = answer(fixed, cases[i].asked, 0, 40), free = answer(limited, cases[i].asked, 0, 40);
        assert_int_equal(pinned.deepest, cases[i].most);
        assert_true(free.deepest <= cases[i].most);
        assert_int_equal(pinned.tokens, free.tokens);
    }
    td_engine_close(&limited);
    td_engine_close(&fixed);
}

/* Requirement 68, with a trained drafter: raising the threshold never lowers the acceptance rate. */
static void a_higher_threshold_never_lowers_acceptance(void **state) {
    (void)state;
    static const float threshold[] = {0, 0.2f, 0.4f, 0.6f, 0.8f};
    for (int hot = 0; hot < 2; hot += STEP) {
        double last = 0;
        uint64_t most = UINT64_MAX;
        for (size_t i = 0; i < sizeof threshold / sizeof threshold[0]; i += STEP) {
            td_engine_options o = pair_options();
            o.num_mtp_tokens = 6;
            o.mtp_fixed = true;
            o.mtp_min_prob = threshold[i];
            td_engine *e = open_engine(&o);
            counts c = answer(e, -1, hot ? 0.8f : 0, N_NEW);
            td_engine_close(&e);
            assert_true(c.drafted > 0 && c.drafted < most);
            double rate = (double)c.accepted / (double)c.drafted;
            print_message("temperature %s, threshold %.1f: %.3f of %llu drafts accepted, %.2f tokens a round\n",
                          hot ? "0.8" : "0", (double)threshold[i], rate, (unsigned long long)c.drafted,
                          (double)c.tokens / (double)c.rounds);
            if (rate < last)
                fail_msg("threshold %g: %.3f of drafts accepted, %.3f below it", (double)threshold[i], rate, last);
            last = rate;
            most = c.drafted;
        }
    }
}

/* Room for the logits of 64 rows, or of one a sequence. */
static void many_places_take_no_more_logits_than_are_of_use(void **state) {
    (void)state;
    uint64_t scratch[3];
    static const uint32_t parallel[] = {7, 8, 64};
    for (int i = 0; i < 3; i++) {
        td_engine_options o = pair_options();
        o.parallel = parallel[i];
        o.ignore_memory = true;
        td_engine *e = open_engine(&o);
        scratch[i] = td_engine_describe(e)->memory.scratch;
        td_engine_close(&e);
    }
    uint64_t row = 2 * (uint64_t)sizeof(float) * 4096; /* at least, of any vocabulary */
    assert_true(scratch[1] > scratch[0]);              /* 63 rows, then 64 */
    assert_true(scratch[2] < scratch[1] + 64 * row);   /* and no more of them */
}

/* ---- what drafting costs is measured at opening ---- */

typedef struct opening {
    uint32_t measured, most;
} opening;

static bool count_measured(void *user, const char *what, uint64_t done, uint64_t total) {
    opening *o = user;
    (void)done;
    (void)total;
    o->measured += strcmp(what, "measure") == 0;
    return o->measured <= o->most;
}

static uint32_t passes_measured(td_engine_options *o) {
    opening seen = {.most = UINT32_MAX};
    o->progress = count_measured;
    o->user = &seen;
    td_engine *e = open_engine(o);
    td_engine_close(&e);
    return seen.measured;
}

static void passes_are_measured_where_depth_is_chosen(void **state) {
    (void)state;
    td_engine_options o = pair_options();
    assert_true(passes_measured(&o) > 0);
    o.no_calibration = true;
    assert_int_equal(passes_measured(&o), 0);
    o.no_calibration = false;
    o.num_mtp_tokens = 3;
    o.mtp_fixed = true;
    assert_int_equal(passes_measured(&o), 0);
    o.mtp_fixed = false;
    assert_true(passes_measured(&o) > 0);
    o.num_mtp_tokens = 0;
    assert_int_equal(passes_measured(&o), 0);
    o.num_mtp_tokens = 3;
    o.parallel = 4;
    o.cache_bytes = 1 << 20;
    assert_true(passes_measured(&o) > 0);
    o.assistant = NULL;
    assert_int_equal(passes_measured(&o), 0);
    o.lookup = true;
    assert_true(passes_measured(&o) > 0);

    opening seen = {.most = 2};
    td_error err;
    td_engine *e;
    o.user = &seen;
    assert_int_equal(td_engine_open(&e, &o, &err), TD_E_CANCELLED);
    assert_null(e);
    assert_string_equal(err.message, "loading was cancelled");
}

static void measuring_changes_no_text(void **state) {
    (void)state;
    td_result r[2];
    for (int off = 0; off < 2; off++) {
        td_engine_options o = pair_options();
        td_request q = td_request_default();
        td_session *session;
        td_token *prompt;
        o.no_calibration = off;
        td_engine *e = open_engine(&o);
        ASSERT_OK(td_session_open(&session, e, err));
        ASSERT_OK(td_engine_tokenize(e, "Once upon a time", 16, true, false, &prompt, &q.n_prompt, err));
        q.prompt = prompt;
        q.max_tokens = 60;
        q.sampling.temperature = 0.8f;
        q.sampling.seed = 5;
        ASSERT_OK(td_session_generate(session, &q, &r[off], err));
        assert_int_equal(r[off].cached_tokens, 0);
        td_tokens_free(prompt);
        td_session_close(&session);
        td_engine_close(&e);
    }
    assert_int_equal(r[0].n_tokens, r[1].n_tokens);
    assert_memory_equal(r[0].tokens, r[1].tokens, r[0].n_tokens * sizeof *r[0].tokens);
    td_result_free(&r[0]);
    td_result_free(&r[1]);
}

static uint64_t all_of(td_memory_plan p) {
    return p.weights + p.drafter + p.kv + p.scratch;
}

/* With an assistant, whose size is the same at any context, and with a draft model, which keeps keys of its own. */
static void a_context_shrinks_to_what_fits_but_no_further_than_allowed(void **state) {
    (void)state;
    for (int whole = 0; whole < 2; whole++) {
        td_engine_options o = pair_options();
        td_error error;
        o.assistant = whole ? NULL : ASSISTANT;
        o.draft_model = whole ? TRUNK : NULL;
        o.no_calibration = true;
        o.n_ctx = 4096;
        td_engine *e = open_engine(&o);
        td_memory_plan small = td_engine_plan(e, 1000), full = td_engine_plan(e, 4096);
        assert_memory_equal(&full, &td_engine_describe(e)->memory, offsetof(td_memory_plan, available));
        assert_true(all_of(small) < all_of(full));
        assert_int_equal(whole, small.drafter < full.drafter);
        td_engine_close(&e);
        o.memory_limit = all_of(small);
        assert_int_equal(td_engine_open(&e, &o, &error), TD_E_LIMIT);
        o.n_ctx_least = 2000;
        assert_int_equal(td_engine_open(&e, &o, &error), TD_E_LIMIT);
        o.n_ctx_least = 500;
        e = open_engine(&o);
        uint32_t n_ctx = td_engine_describe(e)->n_ctx;
        assert_in_range(n_ctx, 1000, 4095);
        assert_true(all_of(td_engine_describe(e)->memory) <= o.memory_limit);
        assert_true(all_of(td_engine_plan(e, n_ctx + 1)) > o.memory_limit);
        td_engine_close(&e);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_that_make_no_sense_are_refused),
        cmocka_unit_test(a_number_is_a_limit_unless_it_is_fixed),
        cmocka_unit_test(a_higher_threshold_never_lowers_acceptance),
        cmocka_unit_test(many_places_take_no_more_logits_than_are_of_use),
        cmocka_unit_test(passes_are_measured_where_depth_is_chosen),
        cmocka_unit_test(measuring_changes_no_text),
        cmocka_unit_test(a_context_shrinks_to_what_fits_but_no_further_than_allowed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
