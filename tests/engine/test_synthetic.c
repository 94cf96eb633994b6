/* test_synthetic.c - forced acceptance: refused where answers are read, and as frequent as asked for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <math.h>
#include <cmocka.h>

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

static const td_token prompt[] = {2, 10, 11, 12};

static td_engine_options forced_options(const float *p, uint32_t n) {
    td_engine_options o = td_engine_options_default();
    o.model = TRUNK;
    o.assistant = ASSISTANT;
    o.n_ctx = 2048;
    o.n_threads = 1;
    o.num_mtp_tokens = 5;
    o.mtp_fixed = true;
    o.forced_acceptance = p;
    o.n_forced_acceptance = n;
    return o;
}

static td_request request_of(uint32_t n) {
    td_request q = td_request_default();
    q.prompt = prompt;
    q.n_prompt = sizeof prompt / sizeof prompt[0];
    q.max_tokens = n;
    q.ignore_eos = true;
    return q;
}

static void a_profile_that_makes_no_sense_is_refused(void **state) {
    (void)state;
    static const struct {
        float p[3];
        const char *says;
    } cases[] = {
        {{0.5f, 0.6f, 0.1f}, "a forced acceptance of 0.6 at position 2, expected 0 to 0.5"},
        {{1.5f, 0.6f, 0.1f}, "a forced acceptance of 1.5 at position 1, expected 0 to 1"},
        {{0.5f, -1, 0}, "a forced acceptance of -1 at position 2, expected 0 to 0.5"},
        {{NAN, 0, 0}, "a forced acceptance of nan at position 1, expected 0 to 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_engine_options o = forced_options(cases[i].p, 3);
        td_engine *e;
        td_error err;
        assert_int_equal(td_engine_open(&e, &o, &err), TD_E_ARG);
        assert_string_equal(err.message, cases[i].says);
    }
}

static void an_engine_that_forces_acceptance_serves_nobody(void **state) {
    (void)state;
    static const float half[] = {0.5f};
    td_engine_options o = forced_options(half, 1);
    td_engine *e;
    td_session *session;
    td_scheduler *scheduler;
    td_result r;
    td_error refused;
    uint64_t id;
    ASSERT_OK(td_engine_open(&e, &o, err));
    td_request q = request_of(4);
    ASSERT_OK(td_session_open(&session, e, err));
    assert_int_equal(td_session_generate(session, &q, &r, &refused), TD_E_ARG);
    assert_non_null(strstr(refused.message, "is forced, which is for benchmarks"));
    q.benchmark = true;
    ASSERT_OK(td_session_generate(session, &q, &r, err));
    assert_int_equal(r.n_tokens, 4);
    td_result_free(&r);
    q.constraint.json_object = true;
    assert_int_equal(td_session_generate(session, &q, &r, &refused), TD_E_ARG);
    td_session_close(&session);
    td_scheduler_options so = td_scheduler_options_default();
    ASSERT_OK(td_scheduler_open(&scheduler, e, &so, err));
    q = request_of(4);
    assert_int_equal(td_scheduler_submit(scheduler, &q, 0, NULL, &id, &refused), TD_E_ARG);
    td_scheduler_close(&scheduler);
    td_engine_close(&e);
}

/* Counts of a long answer lie within three standard deviations of what was asked for. */
static void measured_acceptance_is_what_was_asked_for(void **state) {
    (void)state;
    static const float profile[] = {0.8f, 0.65f, 0.5f, 0.4f};
    td_engine_options o = forced_options(profile, 4);
    td_engine *e;
    td_session *session;
    td_result r;
    ASSERT_OK(td_engine_open(&e, &o, err));
    ASSERT_OK(td_session_open(&session, e, err));
    td_request q = request_of(1900);
    q.benchmark = true;
    q.sampling.seed = 3;
    ASSERT_OK(td_session_generate(session, &q, &r, err));
    for (int i = 0; i < 5; i++) {
        double n = (double)r.drafted_at[i], p = i < 4 ? (double)profile[i] : 0;
        assert_true(n > 400);
        if (fabs((double)r.accepted_at[i] / n - p) > 3 * sqrt(p * (1 - p) / n))
            fail_msg("position %d: %llu of %.0f accepted, asked for %g", i + 1, (unsigned long long)r.accepted_at[i], n,
                     p);
    }
    td_result_free(&r);
    td_session_close(&session);
    td_engine_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_profile_that_makes_no_sense_is_refused),
        cmocka_unit_test(an_engine_that_forces_acceptance_serves_nobody),
        cmocka_unit_test(measured_acceptance_is_what_was_asked_for),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
