/* test_field.c - what users of other engines have reported, asked of this one (docs/requirements.md): drafting under
 * sampling, drafting beside idle places, large contexts with many places, memory that stays flat and is given back, and
 * drafters that are never loaded and left idle. Through the public interface, on the embedded pair and the fixtures. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <pthread.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "support/sanitized.h"
#include "tandem.h"

#define TRUNK TD_SOURCE_DIR "/models/gemma4-demo-4bit"
#define ASSISTANT TD_SOURCE_DIR "/models/gemma4-demo-assistant-4bit"

#if TD_SANITIZED
#define MANY 150
#else
#define MANY 1000
#endif

static td_error error, *const err = &error;

#define ASSERT_OK(call)                                                                                                \
    do {                                                                                                               \
        if ((call) != TD_OK)                                                                                           \
            fail_msg("%s: %s", #call, error.message);                                                                  \
    } while (0)

static const char *const openings[] = {"The river was", "Once upon a time there was a little",
                                       "In the year",   "The quick brown fox",
                                       "She said that", "It was a cold morning and"};
#define N_OPENINGS (sizeof openings / sizeof *openings)

static td_engine_options pair_options(void) {
    td_engine_options o = td_engine_options_default();
    o.model = TRUNK;
    o.assistant = ASSISTANT;
    o.n_ctx = 1024;
    o.n_threads = 1;
    return o;
}

static td_engine *open_engine(const td_engine_options *o) {
    td_engine *e;
    ASSERT_OK(td_engine_open(&e, o, err));
    return e;
}

/* tokens a round over the openings, each continued n_seeds times */
static double tokens_per_round(td_engine *e, size_t n_seeds, float temperature, int depth) {
    td_session *session;
    double tokens = 0, rounds = 0;
    ASSERT_OK(td_session_open(&session, e, err));
    for (size_t i = 0; i < n_seeds * N_OPENINGS; i++) {
        const char *opening = openings[i % N_OPENINGS];
        td_request q = td_request_default();
        td_token *prompt;
        td_result r;
        ASSERT_OK(td_engine_tokenize(e, opening, strlen(opening), true, false, &prompt, &q.n_prompt, err));
        q.prompt = prompt;
        q.max_tokens = 150;
        q.num_mtp_tokens = depth;
        q.sampling.temperature = temperature;
        q.sampling.seed = i;
        if (temperature > 0) { /* what chat clients send */
            q.sampling.top_p = 0.95f;
            q.sampling.repetition_penalty = 1.1f;
        }
        ASSERT_OK(td_session_generate(session, &q, &r, err));
        assert_true(depth == 0 || r.drafted > 0);
        tokens += (double)r.n_tokens;
        rounds += r.rounds;
        td_result_free(&r);
        td_tokens_free(prompt);
    }
    td_session_close(&session);
    return tokens / rounds;
}

/* Requirements 23 and 49. */
static void sampling_with_chat_defaults_drafts_nearly_as_well(void **state) {
    (void)state;
    td_engine_options o = pair_options();
    o.num_mtp_tokens = 4;
    o.mtp_fixed = true;
    td_engine *e = open_engine(&o);
    double greedy = tokens_per_round(e, 1, 0, 4), sampled = tokens_per_round(e, 6, 0.7f, 4);
    assert_true(greedy > 1.5);
    print_message("%.2f tokens a round at temperature 0.7, %.2f at 0\n", sampled, greedy);
    if (sampled < 0.8 * greedy)
        fail_msg("%.2f tokens a round at temperature 0.7, %.2f at 0", sampled, greedy);
    td_engine_close(&e);
}

/* Requirement 29, of tokens: whatever stop string ends an answer, also inside a run of accepted drafts, nothing behind
 * it is an answer's token, and none of its drafts counts as accepted. */
static void a_stop_string_ends_the_count_too(void **state) {
    (void)state;
    td_engine_options o = pair_options();
    o.num_mtp_tokens = 8;
    o.mtp_fixed = true;
    td_engine *e = open_engine(&o);
    td_session *session;
    td_request q = td_request_default();
    td_token *prompt;
    td_result all, r[2];
    ASSERT_OK(td_session_open(&session, e, err));
    ASSERT_OK(td_engine_tokenize(e, openings[1], strlen(openings[1]), true, false, &prompt, &q.n_prompt, err));
    q.prompt = prompt;
    q.max_tokens = 60;
    q.ignore_eos = true;
    ASSERT_OK(td_session_generate(session, &q, &all, err));
    uint64_t inside = 0; /* answers that end with an accepted draft */
    for (size_t at = 2; at + 3 < all.n_text && at < 120; at += 3) {
        char stop[4] = "";
        const char *const stops[] = {stop};
        memcpy(stop, all.text + at, 3);
        q.stop = stops;
        q.n_stop = 1;
        for (int with = 0; with < 2; with++) {
            q.no_mtp = !with;
            ASSERT_OK(td_session_generate(session, &q, &r[with], err));
            assert_int_equal(r[with].finish, TD_FINISH_STOP);
            assert_int_equal(r[with].n_text, strstr(all.text, stop) - all.text);
        }
        assert_int_equal(r[1].n_tokens, r[0].n_tokens);
        assert_memory_equal(r[1].tokens, r[0].tokens, r[0].n_tokens * sizeof *r[0].tokens);
        uint64_t accepted = 0;
        for (int i = 0; i < TD_MAX_DRAFT; i++)
            accepted += r[1].accepted_at[i];
        assert_true(r[1].rounds + accepted == r[1].n_tokens || r[1].rounds + accepted == r[1].n_tokens + 1);
        inside += r[1].rounds + accepted > r[1].n_tokens;
        td_result_free(&r[0]);
        td_result_free(&r[1]);
    }
    assert_true(inside >= 3);
    td_result_free(&all);
    td_tokens_free(prompt);
    td_session_close(&session);
    td_engine_close(&e);
}

/* ---- through the scheduler ---- */

typedef struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t over;
    int ends;
    td_status status;
    uint32_t rounds;
    uint64_t drafted, accepted;
    size_t n_tokens;
} waiter;

static void on_end(void *user, const td_result *r, const td_error *why) {
    waiter *w = user;
    pthread_mutex_lock(&w->lock);
    w->ends++;
    w->status = r ? TD_OK : why->status;
    if (r) {
        w->rounds = r->rounds;
        w->drafted = r->drafted;
        w->n_tokens = r->n_tokens;
        w->accepted = 0;
        for (int i = 0; i < TD_MAX_DRAFT; i++)
            w->accepted += r->accepted_at[i];
    }
    pthread_cond_signal(&w->over);
    pthread_mutex_unlock(&w->lock);
}

static waiter answer(td_engine *e, td_scheduler *s, const char *text, uint32_t max_tokens, int depth) {
    waiter w = {.ends = 0};
    pthread_mutex_init(&w.lock, NULL);
    pthread_cond_init(&w.over, NULL);
    td_request q = td_request_default();
    td_token *prompt;
    uint64_t id;
    ASSERT_OK(td_engine_tokenize(e, text, strlen(text), true, false, &prompt, &q.n_prompt, err));
    q.prompt = prompt;
    q.max_tokens = max_tokens;
    q.num_mtp_tokens = depth;
    q.ignore_eos = true;
    q.user = &w;
    ASSERT_OK(td_scheduler_submit(s, &q, 0, on_end, &id, err));
    td_tokens_free(prompt); /* it was copied */
    pthread_mutex_lock(&w.lock);
    while (!w.ends)
        pthread_cond_wait(&w.over, &w.lock);
    pthread_mutex_unlock(&w.lock);
    pthread_mutex_destroy(&w.lock);
    pthread_cond_destroy(&w.over);
    assert_int_equal(w.status, TD_OK);
    return w;
}

static waiter alone_among(uint32_t parallel) {
    td_engine_options o = pair_options();
    td_scheduler_options so = td_scheduler_options_default();
    td_scheduler *s;
    o.parallel = parallel;
    o.num_mtp_tokens = 3;
    o.mtp_fixed = true; /* or the clock would have a say in the drafts */
    td_engine *e = open_engine(&o);
    ASSERT_OK(td_scheduler_open(&s, e, &so, err));
    waiter w = answer(e, s, openings[1], 120, 3);
    td_scheduler_close(&s);
    td_engine_close(&e);
    return w;
}

/* Requirement 37: as many rounds, drafts and accepted drafts beside seven idle places as with one place. */
static void idle_places_take_nothing_from_a_single_request(void **state) {
    (void)state;
    waiter one = alone_among(1), eight = alone_among(8);
    assert_true(one.accepted > 0);
    assert_int_equal(one.n_tokens, 120);
    assert_int_equal(eight.n_tokens, one.n_tokens);
    assert_int_equal(eight.rounds, one.rounds);
    assert_int_equal(eight.drafted, one.drafted);
    assert_int_equal(eight.accepted, one.accepted);
}

static size_t resident_pages(void) {
    FILE *f = fopen("/proc/self/statm", "r");
    unsigned long size = 0, resident = 0;
    assert_non_null(f);
    assert_int_equal(fscanf(f, "%lu %lu", &size, &resident), 2);
    fclose(f);
    return resident;
}

/* Requirement 45: a context of a million tokens for each of sixteen places costs nothing until it is used. */
static void a_large_context_with_many_places_serves_a_short_prompt(void **state) {
    (void)state;
    td_engine_options o = pair_options();
    td_scheduler_options so = td_scheduler_options_default();
    td_scheduler *s;
    o.n_ctx = 1 << 20;
    o.parallel = 16;
    o.ignore_memory = true; /* of a full context, which nobody asks for here */
    td_engine *e = open_engine(&o);
    ASSERT_OK(td_scheduler_open(&s, e, &so, err));
    waiter w = answer(e, s, "a prompt of about thirteen tokens for a very large context", 20, -1);
    assert_int_equal(w.n_tokens, 20);
    td_scheduler_stats st;
    td_scheduler_describe(s, &st);
    assert_true(st.kv_allocated < (uint64_t)16 << 20);
    td_scheduler_close(&s);
    td_engine_close(&e);
}

/* Requirement 43, for keys in bf16: after the tenth of many requests memory is flat. */
static void memory_is_flat_over_many_requests(void **state) {
    (void)state;
    td_engine_options o = pair_options();
    td_scheduler_options so = td_scheduler_options_default();
    td_scheduler *s;
    o.parallel = 2;
    o.cache_bytes = (uint64_t)1 << 20;
    td_engine *e = open_engine(&o);
    ASSERT_OK(td_scheduler_open(&s, e, &so, err));
    size_t early = 0;
    uint64_t kv = 0;
    td_scheduler_stats st;
    for (int i = 0; i < MANY; i++) {
        char text[200];
        snprintf(text, sizeof text, "%s %d %s %d", openings[(size_t)i % N_OPENINGS], i, openings[(size_t)i % 5], i / 7);
        (void)answer(e, s, text, 3, -1);
        if (i == MANY / 10) {
            early = resident_pages();
            td_scheduler_describe(s, &st);
            kv = st.kv_allocated;
        }
    }
    td_scheduler_describe(s, &st);
    assert_int_equal(st.finished, MANY);
    assert_true(st.kv_allocated <= kv + ((uint64_t)1 << 20));
#if !TD_SANITIZED                                 /* which keeps what is freed for a while */
    assert_true(resident_pages() < early + 1024); /* 4 MiB */
#endif
    (void)early;
    td_scheduler_close(&s);
    td_engine_close(&e);
}

/* ---- memory ---- */

/* Requirement 44. */
static void closing_an_engine_frees_its_drafter(void **state) {
    (void)state;
    long before = td_alloc_live();
    for (int with = 0; with < 2; with++) {
        td_engine_options o = pair_options();
        o.assistant = with ? ASSISTANT : NULL;
        o.mtp_bits = with ? 16 : 0; /* a form of its own, not a view of the file */
        td_engine *e = open_engine(&o);
        assert_true(!with || td_engine_describe(e)->memory.drafter > 0);
        (void)tokens_per_round(e, 1, 0, with ? 4 : 0);
        td_engine_close(&e);
        assert_int_equal(td_alloc_live(), before);
    }
}

static td_memory_plan plan_of(const td_engine_options *o) {
    td_engine *e = open_engine(o);
    td_memory_plan plan = td_engine_describe(e)->memory;
    td_engine_close(&e);
    return plan;
}

/* Requirement 46: a limit that holds the trunk does not hold it with its drafter, and the message says both. What the
 * drafter works in is counted, for each place, and so are the rows that are verified at once. */
static void the_memory_plan_counts_the_drafter(void **state) {
    (void)state;
    td_engine_options o = pair_options(), plain = pair_options();
    plain.assistant = NULL;
    td_engine *e;
    td_memory_plan with = plan_of(&o), without = plan_of(&plain);
    assert_true(with.drafter > (uint64_t)1 << 20);
    assert_int_equal(without.drafter, 0);
    td_engine_options many = o, deep = o;
    many.parallel = 8;
    assert_true(plan_of(&many).drafter > with.drafter);
    deep.num_mtp_tokens = 16;
    assert_true(plan_of(&deep).scratch > with.scratch);
    o.memory_limit = with.weights + with.kv + with.scratch + with.drafter - 1;
    assert_int_equal(td_engine_open(&e, &o, err), TD_E_LIMIT);
    assert_non_null(strstr(error.message, "drafter"));
    o.memory_limit++;
    ASSERT_OK(td_engine_open(&e, &o, err));
    td_engine_close(&e);
}

/* ---- which drafter ---- */

static td_engine_options qwen_options(void) {
    td_engine_options o = td_engine_options_default();
    o.model = TD_FIXTURES "/vectors/qwen35-dense";
    o.n_ctx = 256;
    o.n_threads = 1;
    return o;
}

/* Requirement 63: heads in the file draft unasked; what the user switched off stays off, request for request. */
static void heads_in_the_file_draft_without_a_flag(void **state) {
    (void)state;
    static const td_token prompt[] = {5, 6, 7, 8, 9, 10};
    for (int off = 0; off < 2; off++) {
        td_engine_options o = qwen_options();
        o.no_mtp = off;
        o.num_mtp_tokens = 2;
        o.mtp_fixed = true;
        td_engine *e = open_engine(&o);
        const td_engine_info *info = td_engine_describe(e);
        assert_int_equal(info->mtp_active, !off);
        assert_string_equal(info->mtp_reason, off ? "switched off (--no-mtp)" : "");
        td_session *session;
        ASSERT_OK(td_session_open(&session, e, err));
        for (int i = 0; i < 4; i++) {
            td_request q = td_request_default();
            td_result r;
            q.prompt = prompt;
            q.n_prompt = 6;
            q.max_tokens = 20;
            q.ignore_eos = true;
            q.no_mtp = i == 1; /* requirement 51: that was for one request */
            ASSERT_OK(td_session_generate(session, &q, &r, err));
            assert_int_equal(r.mtp_active, !off && i != 1);
            assert_int_equal(r.drafted > 0, !off && i != 1);
            assert_string_equal(r.mtp_reason, off      ? "switched off (--no-mtp)"
                                              : i == 1 ? "switched off by the request"
                                                       : "");
            td_result_free(&r);
        }
        td_session_close(&session);
        td_engine_close(&e);
    }
}

/* Requirement 65: a drafter that was given and cannot draft stops the start. */
static void a_drafter_that_cannot_draft_is_not_left_idle(void **state) {
    (void)state;
    td_engine *e;
    td_engine_options o = pair_options();
    o.assistant = TRUNK;
    assert_int_equal(td_engine_open(&e, &o, err), TD_E_MODEL);
    o = pair_options();
    o.assistant = NULL;
    o.mtp = true;
    assert_int_equal(td_engine_open(&e, &o, err), TD_E_MODEL);
    assert_non_null(strstr(error.message, "--mtp-assistant-model"));
    o = qwen_options();
    o.assistant = ASSISTANT;
    assert_true(td_engine_open(&e, &o, err) != TD_OK);
    assert_null(e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(sampling_with_chat_defaults_drafts_nearly_as_well),
        cmocka_unit_test(a_stop_string_ends_the_count_too),
        cmocka_unit_test(idle_places_take_nothing_from_a_single_request),
        cmocka_unit_test(a_large_context_with_many_places_serves_a_short_prompt),
        cmocka_unit_test(memory_is_flat_over_many_requests),
        cmocka_unit_test(closing_an_engine_frees_its_drafter),
        cmocka_unit_test(the_memory_plan_counts_the_drafter),
        cmocka_unit_test(heads_in_the_file_draft_without_a_flag),
        cmocka_unit_test(a_drafter_that_cannot_draft_is_not_left_idle),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
