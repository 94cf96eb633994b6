/* test_synthetic.c - synthetic models: every shape in both containers loads, drafts and gives finite numbers; a file is
 * a function of its seed. Forced acceptance: refused where answers are read, and as frequent as asked for. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <math.h>
#include <cmocka.h>
#include <jansson.h>

#include "base/alloc.h"
#include "base/file.h"
#include "engine/synthetic_impl.h"
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

/* ---- synthetic models ---- */

static char folder[256];

static int make_folder(void **state) {
    (void)state;
    const char *base = getenv("TMPDIR");
    snprintf(folder, sizeof folder, "%s/tandem-synthetic-XXXXXX", base ? base : "/tmp");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **state) {
    (void)state;
    char command[320];
    snprintf(command, sizeof command, "rm -rf '%s'", folder);
    return system(command);
}

static const char *path_of(const char *name) {
    static char path[2][320];
    static int turn;
    turn = !turn;
    snprintf(path[turn], sizeof path[turn], "%s/%s", folder, name);
    return path[turn];
}

static void write_model(const char *path, const char *shape, td_synthetic_format format, uint32_t layers,
                        uint32_t experts, uint64_t seed) {
    td_synthetic_options o = {
        .shape = shape, .format = format, .n_layers = layers, .n_vocab = 2048, .n_experts = experts, .seed = seed};
    uint64_t bytes;
    ASSERT_OK(td_synthetic_write(path, &o, &bytes, err));
    assert_true(bytes > 0);
}

/* A few drafted tokens; the engine refuses logits that are not finite. */
static void generate(const char *model, const char *assistant) {
    td_engine_options o = td_engine_options_default();
    td_engine *e;
    td_session *session;
    td_result r;
    o.model = model;
    o.assistant = assistant;
    o.n_ctx = 64;
    o.n_threads = 1;
    o.num_mtp_tokens = 2;
    o.mtp_fixed = true;
    ASSERT_OK(td_engine_open(&e, &o, err));
    assert_true(td_engine_describe(e)->mtp_active);
    assert_true(td_engine_describe(e)->synthetic);
    ASSERT_OK(td_session_open(&session, e, err));
    td_request q = request_of(4);
    ASSERT_OK(td_session_generate(session, &q, &r, err));
    assert_int_equal(r.n_tokens, 4);
    assert_true(r.drafted > 0);
    td_result_free(&r);
    td_session_close(&session);
    td_engine_close(&e);
}

static void every_shape_runs_and_drafts(void **state) {
    (void)state;
    static const struct {
        const char *shape, *assistant;
        uint32_t layers, experts;
    } cases[] = {{"e2b", "e2b-assistant", 10, 0},
                 {"e4b", "e4b-assistant", 6, 0},
                 {"26b-a4b", "26b-a4b-assistant", 6, 8},
                 {"qwen-2b", NULL, 4, 0},
                 {"qwen-35b-a3b", NULL, 4, 8}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int format = 0; format < 2; format++) {
            const char *trunk = path_of(format ? "trunk" : "trunk.gguf");
            const char *drafter = path_of(format ? "drafter" : "drafter.gguf");
            write_model(trunk, cases[i].shape, format ? TD_SYNTHETIC_AFFINE4 : TD_SYNTHETIC_Q4_0, cases[i].layers,
                        cases[i].experts, 1);
            if (cases[i].assistant)
                write_model(drafter, cases[i].assistant, format ? TD_SYNTHETIC_AFFINE4 : TD_SYNTHETIC_Q4_0, 0, 0, 2);
            generate(trunk, cases[i].assistant ? drafter : NULL);
            remove_folder(NULL);
            assert_int_equal(make_folder(NULL), 0);
        }
}

static void a_file_is_a_function_of_its_seed(void **state) {
    (void)state;
    static const uint64_t seeds[3] = {7, 7, 8};
    char *data[3];
    size_t size[3];
    for (int i = 0; i < 3; i++) {
        char name[32];
        snprintf(name, sizeof name, "same%d.gguf", i);
        write_model(path_of(name), "e2b-assistant", TD_SYNTHETIC_Q4_0, 0, 0, seeds[i]);
        ASSERT_OK(td_file_read(path_of(name), 1 << 28, &data[i], &size[i], err));
    }
    assert_int_equal(size[0], size[1]);
    assert_memory_equal(data[0], data[1], size[0]);
    assert_int_equal(size[0], size[2]);
    assert_true(memcmp(data[0], data[2], size[0]) != 0);
    for (int i = 0; i < 3; i++)
        td_free(data[i]);
}

static void scales_that_a_shape_does_not_have_are_refused(void **state) {
    (void)state;
    static const struct {
        td_synthetic_options o;
        const char *says;
    } cases[] = {
        {{.shape = "e3b"}, "no shape \"e3b\", expected one of e2b, e2b-assistant, "},
        {{.shape = "e2b", .n_layers = 7}, "7 layers of e2b, expected a multiple of its period 5"},
        {{.shape = "e2b", .n_vocab = 1000}, "a vocabulary of 1000 words, expected a multiple of 64"},
        {{.shape = "e2b", .n_experts = 8}, "8 experts of e2b, which has 0"},
        {{.shape = "26b-a4b", .n_experts = 4}, "4 experts of 26b-a4b, which has 128 and uses 8"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_error err;
        uint64_t bytes;
        assert_int_equal(td_synthetic_write(path_of("none.gguf"), &cases[i].o, &bytes, &err), TD_E_ARG);
        if (!strstr(err.message, cases[i].says))
            fail_msg("'%s' is not in '%s'", cases[i].says, err.message);
        assert_false(td_file_exists(path_of("none.gguf")));
    }
}

/* Both containers say what they hold, and whoever asks for answers may refuse it. */
static void random_weights_may_be_refused(void **state) {
    (void)state;
    for (int format = 0; format < 2; format++) {
        const char *trunk = path_of(format ? "refused" : "refused.gguf");
        td_engine_options o = td_engine_options_default();
        td_engine *e;
        td_error err;
        write_model(trunk, "e2b", format ? TD_SYNTHETIC_AFFINE4 : TD_SYNTHETIC_Q4_0, 5, 0, 1);
        o.model = trunk;
        o.refuse_synthetic = true;
        assert_int_equal(td_engine_open(&e, &o, &err), TD_E_MODEL);
        assert_non_null(strstr(err.message, "random weights, made for measuring"));
    }
}

/* A failed allocation is an error, and leaves no weights that lack something. */
static void every_allocation_may_fail(void **state) {
    (void)state;
    for (int format = 0; format < 2; format++)
        for (long k = 0;; k++) {
            const char *path = path_of(format ? "failed" : "failed.gguf");
            td_synthetic_options o = {
                .shape = "e2b-assistant", .format = format ? TD_SYNTHETIC_AFFINE4 : TD_SYNTHETIC_Q4_0, .n_vocab = 2048};
            uint64_t bytes;
            td_error err;
            long live = td_alloc_live();
            td_alloc_fail_at(k);
            td_status st = td_synthetic_write(path, &o, &bytes, &err);
            bool struck = td_alloc_failed();
            td_alloc_fail_at(-1);
            if (st != (struck ? TD_E_NOMEM : TD_OK))
                fail_msg("allocation %ld: %d \"%s\"", k, st, st == TD_OK ? "" : err.message);
            assert_int_equal(td_alloc_live(), live);
            if (td_file_exists(format ? path_of("failed/model.safetensors") : path) != !struck)
                fail_msg("allocation %ld, format %d: the weights are%s there", k, format, struck ? "" : " not");
            unlink(path_of("failed/config.json")); /* it gets its name first */
            rmdir(path_of("failed"));
            if (!struck)
                break;
        }
}

/* Of config.json's parts, too. (Its text is jansson's, which does not tell of every allocation that failed.) */
static void every_part_of_a_config_may_fail(void **state) {
    (void)state;
    static const char *const names[] = {"26b-a4b", "e2b-assistant", "qwen-35b-a3b"};
    json_set_alloc_funcs(td_malloc, td_free);
    for (size_t i = 0; i < 3; i++) {
        td_shape shape;
        ASSERT_OK(td_shape_of(&(td_synthetic_options){.shape = names[i]}, &shape, err));
        for (long k = 0;; k++) {
            long live = td_alloc_live();
            td_alloc_fail_at(k);
            json_t *config = td_synthetic_config(&shape);
            bool struck = td_alloc_failed();
            td_alloc_fail_at(-1);
            if ((config == NULL) != struck)
                fail_msg("%s: allocation %ld: there is%s config", names[i], k, config ? " a" : " no");
            json_decref(config);
            assert_int_equal(td_alloc_live(), live);
            if (!struck)
                break;
        }
    }
    json_set_alloc_funcs(malloc, free);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(scales_that_a_shape_does_not_have_are_refused),
        cmocka_unit_test(a_file_is_a_function_of_its_seed),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test(every_part_of_a_config_may_fail),
        cmocka_unit_test(random_weights_may_be_refused),
        cmocka_unit_test(every_shape_runs_and_drafts),
        cmocka_unit_test(a_profile_that_makes_no_sense_is_refused),
        cmocka_unit_test(an_engine_that_forces_acceptance_serves_nobody),
        cmocka_unit_test(measured_acceptance_is_what_was_asked_for),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
