/* test_scheduler.c - many answers at once, through the public interface: each is the one that it would have been alone;
 * nobody waits for ever, nobody ends somebody else, and every request ends exactly once. */
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

#include <math.h>
#include <stdatomic.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "support/sanitized.h"
#include "tandem.h"

#define TRUNK TD_SOURCE_DIR "/models/gemma4-demo-4bit"
#define ASSISTANT TD_SOURCE_DIR "/models/gemma4-demo-assistant-4bit"
#define N_CTX 1024
#define N_REQUESTS 24
#define TOGETHER (TD_SANITIZED ? 12 : N_REQUESTS)
#define MAX_NEW 64

#define ASSERT_OK(call)                                                                                                \
    do {                                                                                                               \
        if ((call) != TD_OK)                                                                                           \
            fail_msg("%s: %s", #call, error.message);                                                                  \
    } while (0)

static td_error error, *const err = &error; /* of ASSERT_OK */

/* ---- what is asked ---- */

static const char *const openings[] = {
    "The river was",       "Once upon a time there was a little",
    "def main():\n    ",   "1, 2, 3, 4,",
    "The quick brown fox", "In the year",
    "She said that",       "A list of things to do:\n-",
};

typedef struct ask {
    td_token *prompt;
    size_t n_prompt;
    td_request q;
    pthread_mutex_t lock;
    pthread_cond_t over;
    td_buf text;
    td_token tokens[MAX_NEW];
    size_t n_tokens, n_pieces, n_reports;
    double own[MAX_NEW]; /* log-probabilities, when asked for */
    td_token best[MAX_NEW];
    int ends;
    td_status status;
    td_finish finish;
    uint32_t cached;
    char message[500];
    uint64_t order;      /* among those that ended */
    size_t cancel_after; /* pieces; 0: never */
    td_scheduler *by_id; /* where it cancels itself, once it knows its id */
    uint64_t id;
    bool refuses;
    size_t unwanted_after; /* is_wanted turns false after so many questions; 0: never */
    size_t questions;
    size_t all_questions; /* to anybody, by the time that it ended */
} ask;

static uint64_t n_ended;   /* by the scheduler's thread alone */
static size_t n_questions; /* so is this */

static td_engine_options options(uint32_t parallel, uint64_t cache, bool fixed) {
    td_engine_options o = td_engine_options_default();
    o.model = TRUNK;
    o.assistant = ASSISTANT;
    o.n_ctx = N_CTX;
    o.n_threads = parallel == 3 ? 2 : 1;
    o.parallel = parallel;
    o.cache_bytes = cache;
    o.num_mtp_tokens = fixed ? 8 : TD_DEPTH_AUTO;
    o.mtp_fixed = fixed;
    return o;
}

static td_engine *open_drafting(uint32_t parallel, uint64_t cache, bool fixed) {
    td_engine_options o = options(parallel, cache, fixed);
    td_engine *e;
    ASSERT_OK(td_engine_open(&e, &o, err));
    return e;
}

static td_engine *open_engine(uint32_t parallel, uint64_t cache) {
    return open_drafting(parallel, cache, false);
}

static td_scheduler *open_scheduler(td_engine *e, uint32_t max_queue, double max_stall) {
    td_scheduler_options o = td_scheduler_options_default();
    td_scheduler *s;
    if (max_queue)
        o.max_queue = max_queue;
    if (max_stall > 0)
        o.max_stall = max_stall;
    ASSERT_OK(td_scheduler_open(&s, e, &o, err));
    return s;
}

static bool on_text(void *user, const td_piece *p) {
    ask *a = user;
    pthread_mutex_lock(&a->lock);
    a->n_pieces++;
    bool ok = td_buf_append(&a->text, p->text, p->n_text) == TD_OK && a->n_tokens + p->n_tokens <= MAX_NEW;
    for (size_t i = 0; ok && i < p->n_tokens; i++) {
        if (p->probs) {
            a->own[a->n_tokens] = p->probs[i * (1 + p->n_logprobs)].logprob;
            a->best[a->n_tokens] = p->n_logprobs ? p->probs[i * (1 + p->n_logprobs) + 1].token : -1;
        }
        a->tokens[a->n_tokens++] = p->tokens[i];
    }
    if (a->by_id && a->id)
        td_scheduler_cancel(a->by_id, a->id);
    bool more = ok && !a->refuses && (!a->cancel_after || a->n_pieces < a->cancel_after);
    pthread_mutex_unlock(&a->lock);
    return more;
}

static bool is_wanted(void *user) {
    ask *a = user;
    pthread_mutex_lock(&a->lock);
    n_questions++;
    bool yes = !a->unwanted_after || ++a->questions <= a->unwanted_after;
    pthread_mutex_unlock(&a->lock);
    return yes;
}

static void on_end(void *user, const td_result *r, const td_error *why) {
    ask *a = user;
    pthread_mutex_lock(&a->lock);
    a->ends++;
    a->order = ++n_ended;
    a->all_questions = n_questions;
    a->status = r ? TD_OK : why->status;
    if (r) {
        a->finish = r->finish;
        a->cached = r->cached_tokens;
        if (r->n_tokens != a->n_tokens || memcmp(r->tokens, a->tokens, r->n_tokens * sizeof *r->tokens) != 0 ||
            r->n_text != a->text.size || (r->n_text && memcmp(r->text, a->text.data, r->n_text) != 0))
            a->ends = 1000; /* the result is not what was given out */
    } else {
        snprintf(a->message, sizeof a->message, "%s", why->message);
    }
    pthread_cond_signal(&a->over);
    pthread_mutex_unlock(&a->lock);
}

static void ask_open(ask *a, td_engine *e, const char *text, uint32_t max_tokens) {
    *a = (ask){.q = td_request_default()};
    pthread_mutex_init(&a->lock, NULL);
    pthread_cond_init(&a->over, NULL);
    td_buf_init(&a->text, 1 << 20);
    ASSERT_OK(td_engine_tokenize(e, text, strlen(text), true, false, &a->prompt, &a->n_prompt, err));
    a->q.prompt = a->prompt;
    a->q.n_prompt = a->n_prompt;
    a->q.max_tokens = max_tokens;
    a->q.on_text = on_text;
    a->q.is_wanted = is_wanted;
    a->q.user = a;
}

static void ask_restart(ask *a) {
    td_buf_clear(&a->text);
    a->n_tokens = a->n_pieces = 0;
    a->ends = 0;
}

static void ask_close(ask *a) {
    td_tokens_free(a->prompt);
    td_buf_free(&a->text);
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->over);
}

static void ask_wait(ask *a) {
    pthread_mutex_lock(&a->lock);
    while (!a->ends)
        pthread_cond_wait(&a->over, &a->lock);
    pthread_mutex_unlock(&a->lock);
    assert_int_equal(a->ends, 1);
}

static uint64_t submit(td_scheduler *s, ask *a, uint64_t owner) {
    uint64_t id;
    ASSERT_OK(td_scheduler_submit(s, &a->q, owner, on_end, &id, err));
    return id;
}

/* Request i of a mix: lengths, temperatures, depths and stops differ. */
static void mixed(ask *a, td_engine *e, size_t i) {
    static const char *const stops[] = {"the ", ".\n"};
    char text[1500];
    size_t n = 0;
    for (size_t k = 0; k <= i % 5 * (i % 5) && n < sizeof text - 100; k++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s %zu. ", openings[(i + k) % 8], i * k);
    ask_open(a, e, text, 1 + (uint32_t)(i * 7 % 40));
    a->q.sampling.temperature = i % 2 ? 0.8f : 0;
    a->q.sampling.seed = i;
    if (i % 3 == 1) {
        a->q.sampling.repetition_penalty = 1.3f;
        a->q.sampling.frequency_penalty = 0.5f;
    }
    a->q.num_mtp_tokens = i % 4 == 0 ? -1 : (int)(i % 4);
    a->q.ignore_eos = i % 3 == 0;
    if (i % 5 == 2) {
        a->q.stop = stops;
        a->q.n_stop = 2;
    }
}

static void same(const ask *a, const td_result *alone, size_t i) {
    if (a->n_tokens != alone->n_tokens || memcmp(a->tokens, alone->tokens, a->n_tokens * sizeof *a->tokens) != 0)
        fail_msg("request %zu: %zu tokens together, %zu alone, or others", i, a->n_tokens, alone->n_tokens);
    assert_int_equal(a->text.size, alone->n_text);
    assert_memory_equal(a->text.data ? a->text.data : "", alone->text, alone->n_text);
    assert_int_equal(a->finish, alone->finish);
}

static td_result alone[N_REQUESTS];

static int answer_alone(void **state) {
    (void)state;
    td_engine *e = open_engine(1, 0);
    for (size_t i = 0; i < N_REQUESTS; i++) {
        ask a;
        td_session *session;
        mixed(&a, e, i);
        a.q.on_text = NULL;
        a.q.no_mtp = true;
        ASSERT_OK(td_session_open(&session, e, err));
        ASSERT_OK(td_session_generate(session, &a.q, &alone[i], err));
        td_session_close(&session);
        ask_close(&a);
    }
    td_engine_close(&e);
    return 0;
}

static int forget_answers(void **state) {
    (void)state;
    for (size_t i = 0; i < N_REQUESTS; i++)
        td_result_free(&alone[i]);
    return 0;
}

/* ---- tests ---- */

static void together_is_as_alone_with(size_t n, uint32_t parallel, uint64_t cache, bool fixed) {
    td_engine *e = open_drafting(parallel, cache, fixed);
    td_scheduler *s = open_scheduler(e, 0, 0.002);
    for (int round = 0; round < 2; round++) { /* the second time, keys may be there already */
        ask a[N_REQUESTS];
        for (size_t i = 0; i < n; i++) {
            mixed(&a[i], e, i);
            submit(s, &a[i], i % 3);
        }
        for (size_t i = 0; i < n; i++) {
            ask_wait(&a[i]);
            assert_int_equal(a[i].status, TD_OK);
            same(&a[i], &alone[i], i);
            ask_close(&a[i]);
        }
    }
    td_scheduler_stats st;
    td_scheduler_describe(s, &st);
    assert_int_equal(st.requests, 2 * n);
    assert_int_equal(st.finished, 2 * n);
    assert_int_equal(st.active + st.queued, 0);
    assert_true((st.accepted > 0 || !fixed) && st.accepted <= st.drafted);
    assert_true(parallel == 1 || st.passes < st.rounds); /* they did share passes */
    assert_int_equal(st.cache_limit, cache);
    assert_true(st.cache_bytes <= cache);
    assert_true(cache < (uint64_t)16 << 20 || st.cache_hits >= n); /* all of the second time */
    td_scheduler_close(&s);
    td_engine_close(&e);
}

static void together_is_as_alone(void **state) {
    (void)state;
    together_is_as_alone_with(8, 1, 0, true);
    together_is_as_alone_with(TOGETHER, 3, 0, false);
    together_is_as_alone_with(TOGETHER, 8, 0, true); /* more drafts than a pass has room for */
}

static void with_a_cache_too(void **state) {
    (void)state;
    together_is_as_alone_with(TOGETHER, 5, (uint64_t)64 << 20, true);
    together_is_as_alone_with(TOGETHER, 5, (uint64_t)1 << 20, false); /* so small that it evicts all the time */
}

static void one_who_leaves_disturbs_nobody(void **state) {
    (void)state;
    td_engine *e = open_engine(4, 0);
    td_scheduler *s = open_scheduler(e, 0, 0.002);
    ask a[N_REQUESTS];
    uint64_t id[N_REQUESTS];
    for (size_t i = 0; i < N_REQUESTS; i++) {
        mixed(&a[i], e, i);
        if (i % 3 == 0)
            a[i].cancel_after = 1 + i % 4;
        if (i % 3 == 1)
            a[i].unwanted_after = 1 + i;
        a[i].by_id = i % 6 == 2 ? s : NULL; /* under way */
        id[i] = submit(s, &a[i], i);
        pthread_mutex_lock(&a[i].lock);
        a[i].id = id[i];
        pthread_mutex_unlock(&a[i].lock);
    }
    td_scheduler_cancel(s, id[N_REQUESTS - 4]); /* perhaps still waiting */
    td_scheduler_cancel(s, 123456789);
    for (size_t i = 0; i < N_REQUESTS; i++) {
        ask_wait(&a[i]);
        size_t n = a[i].n_tokens;
        if (a[i].status == TD_E_CANCELLED) { /* while it waited */
            assert_string_equal(a[i].message, "cancelled while waiting");
            assert_int_equal(n, 0);
        } else if (a[i].finish == TD_FINISH_CANCELLED) { /* what was given out is a beginning of the answer */
            assert_true(n <= alone[i].n_tokens);
            assert_memory_equal(a[i].tokens, alone[i].tokens, n * sizeof *a[i].tokens);
        } else {
            same(&a[i], &alone[i], i);
        }
    }
    for (size_t i = 5; i < N_REQUESTS; i += 6) /* these were left alone */
        same(&a[i], &alone[i], i);
    for (size_t i = 0; i < N_REQUESTS; i++)
        ask_close(&a[i]);
    td_scheduler_close(&s);
    td_engine_close(&e);
}

static void a_full_queue_says_so(void **state) {
    (void)state;
    td_engine *e = open_engine(1, 0);
    td_scheduler *s = open_scheduler(e, 2, 0);
    ask a[12];
    int refused = 0;
    for (int i = 0; i < 12; i++) {
        uint64_t id;
        ask_open(&a[i], e, openings[i % 8], 60);
        a[i].q.ignore_eos = true;
        td_status st = td_scheduler_submit(s, &a[i].q, 0, on_end, &id, err);
        if (st == TD_OK)
            continue;
        assert_int_equal(st, TD_E_BUSY);
        assert_string_equal(err->message, "2 requests are waiting already, expected at most 2");
        a[i].ends = 1;
        refused++;
    }
    assert_true(refused >= 1);
    for (int i = 0; i < 12; i++) {
        ask_wait(&a[i]);
        ask_close(&a[i]);
    }
    td_scheduler_stats st;
    td_scheduler_describe(s, &st);
    assert_int_equal(st.refused, refused);
    td_scheduler_close(&s);
    td_engine_close(&e);
}

/* Whoever asks for much does not keep others waiting. */
static void owners_take_turns(void **state) {
    (void)state;
    td_engine *e = open_engine(1, 0);
    td_scheduler *s = open_scheduler(e, 0, 0);
    ask a[20];
    for (int i = 0; i < 20; i++)
        ask_open(&a[i], e, openings[i % 8], 40);
    for (int i = 0; i < 18; i++)
        submit(s, &a[i], 1);
    submit(s, &a[18], 2);
    submit(s, &a[19], 3);
    for (int i = 0; i < 20; i++)
        ask_wait(&a[i]);
    int before = 0; /* of the first owner's, those that ended before the other two owners' */
    for (int i = 0; i < 18; i++)
        before += a[i].order < a[18].order || a[i].order < a[19].order;
    assert_in_range(before, 0, 6); /* what had been served before they came, and a turn each */
    for (int i = 1; i < 18; i++)
        assert_true(a[i].order > a[i - 1].order);
    for (int i = 0; i < 20; i++)
        ask_close(&a[i]);
    td_scheduler_close(&s);
    td_engine_close(&e);
}

typedef struct witness {
    ask *self, *other;
    size_t first, last; /* pieces of the other when the prompt began and when it was read */
    size_t reports;
} witness;

static bool watch_prefill(void *user, const char *stage, uint64_t done, uint64_t total) {
    (void)stage;
    (void)total;
    witness *w = user;
    pthread_mutex_lock(&w->other->lock);
    if (done == 0 && w->reports == 0)
        w->first = w->other->n_pieces;
    w->last = w->other->n_pieces;
    w->reports++;
    pthread_mutex_unlock(&w->other->lock);
    return true;
}

static bool count_only(void *user, const td_piece *p) {
    (void)user;
    (void)p;
    return true;
}

static void quiet_end(void *user, const td_result *r, const td_error *why) {
    (void)r;
    (void)why;
    ask *a = ((witness *)user)->self;
    pthread_mutex_lock(&a->lock);
    a->ends++;
    pthread_cond_signal(&a->over);
    pthread_mutex_unlock(&a->lock);
}

static void only_status(void *user, const td_result *r, const td_error *why) {
    ask *a = user;
    pthread_mutex_lock(&a->lock);
    a->ends++;
    a->status = r ? TD_OK : why->status;
    pthread_cond_signal(&a->over);
    pthread_mutex_unlock(&a->lock);
}

/* A long prompt enters in chunks between the rounds of whoever is answering. */
static void streams_flow_while_a_prompt_is_read(void **state) {
    (void)state;
    td_engine *e = open_engine(2, 0);
    td_scheduler *s = open_scheduler(e, 0, 1e-6);
    ask running, reading;
    ask_open(&running, e, openings[0], MAX_NEW);
    running.q.ignore_eos = true;
    running.q.no_mtp = true;
    char text[2200] = "";
    for (size_t n = 0, i = 0; n < sizeof text - 100; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s %zu. ", openings[i % 8], i);
    ask_open(&reading, e, text, 4);
    assert_in_range(reading.n_prompt, 400, N_CTX - 10);
    witness w = {.self = &reading, .other = &running};
    reading.q.on_prefill = watch_prefill;
    reading.q.on_text = count_only;
    reading.q.is_wanted = NULL;
    reading.q.user = &w;
    submit(s, &running, 1);
    pthread_mutex_lock(&running.lock);
    while (running.n_pieces < 2) {
        pthread_mutex_unlock(&running.lock);
        usleep(200);
        pthread_mutex_lock(&running.lock);
    }
    pthread_mutex_unlock(&running.lock);
    uint64_t id;
    ASSERT_OK(td_scheduler_submit(s, &reading.q, 2, quiet_end, &id, err));
    ask_wait(&reading);
    ask_wait(&running);
    assert_true(w.reports >= 8);
    assert_true(w.last - w.first + 2 >= w.reports || running.n_pieces == MAX_NEW); /* a piece with every chunk */
    assert_true(w.last - w.first >= 8);
    ask_close(&running);
    ask_close(&reading);
    td_scheduler_close(&s);
    td_engine_close(&e);
}

/* Log-probabilities do not depend on drafting, and are those of a softmax. */
static void log_probabilities_are_those_of_plain_decoding(void **state) {
    (void)state;
    td_engine *e = open_drafting(4, 0, true);
    td_scheduler *s = open_scheduler(e, 0, 0);
    ask a[3];
    for (int i = 0; i < 3; i++) {
        ask_open(&a[i], e, openings[1], 40);
        a[i].q.n_logprobs = 5;
        a[i].q.num_mtp_tokens = i == 0 ? 0 : i == 1 ? 4 : -1;
        submit(s, &a[i], 0);
    }
    for (int i = 0; i < 3; i++)
        ask_wait(&a[i]);
    td_scheduler_stats st;
    td_scheduler_describe(s, &st);
    assert_true(st.accepted > 0);
    assert_true(a[0].n_tokens > 10);
    for (size_t t = 0; t < a[0].n_tokens; t++) {
        assert_true(a[0].own[t] <= 0 && a[0].own[t] > -20);
        assert_int_equal(a[0].best[t], a[0].tokens[t]); /* the temperature is 0 */
        for (int i = 1; i < 3; i++) {
            assert_memory_equal(&a[i].own[t], &a[0].own[t], sizeof a[0].own[t]);
            assert_int_equal(a[i].best[t], a[0].best[t]);
        }
    }
    for (int i = 0; i < 3; i++)
        ask_close(&a[i]);
    td_scheduler_close(&s);
    td_engine_close(&e);
}

static void time_runs_out(void **state) {
    (void)state;
    td_engine *e = open_engine(1, 0);
    td_scheduler *s = open_scheduler(e, 0, 0);
    ask a;
    ask_open(&a, e, openings[2], MAX_NEW);
    a.q.time_limit = 1e-9;
    submit(s, &a, 0);
    ask_wait(&a);
    assert_int_equal(a.finish, TD_FINISH_TIME);
    assert_true(a.n_tokens < MAX_NEW);
    ask_close(&a);
    td_scheduler_close(&s);
    td_engine_close(&e);
}

/* A client who looks at the books as its request ends, and tries to have something done when the server is closing. */
typedef struct observer {
    ask a; /* first: its callbacks are those of an ask */
    td_scheduler *s;
    td_scheduler_stats books;
    pthread_t errand;
    bool has_errand;
    td_status status;
} observer;

static void *run_late_errand(void *arg) {
    observer *l = arg;
    uint64_t n;
    l->status = td_scheduler_erase(l->s, 0, &n, NULL);
    return NULL;
}

static void on_late_end(void *user, const td_result *r, const td_error *why) {
    observer *l = user;
    td_scheduler_describe(l->s, &l->books);
    if (!r && why->status == TD_E_CANCELLED && !l->has_errand) {
        l->has_errand = pthread_create(&l->errand, NULL, run_late_errand, l) == 0;
        pthread_join(l->errand, NULL); /* it is answered though the thread that would run it is here */
    }
    on_end(user, r, why);
}

static void errands_of_a_closing_server_are_refused(void **state) {
    (void)state;
    td_engine *e = open_engine(1, 0);
    observer l = {.s = open_scheduler(e, 0, 0)};
    uint64_t id;
    ask_open(&l.a, e, openings[0], MAX_NEW);
    l.a.q.ignore_eos = true;
    ASSERT_OK(td_scheduler_submit(l.s, &l.a.q, 0, on_late_end, &id, err));
    td_scheduler *s = l.s;
    td_scheduler_close(&s);
    assert_int_equal(l.a.ends, 1);
    assert_true(l.has_errand);
    assert_int_equal(l.status, TD_E_CANCELLED);
    assert_int_equal(l.books.requests, 1);
    assert_int_equal(l.books.cancelled, 1);
    assert_int_equal(l.books.failed + l.books.finished + l.books.active + l.books.queued, 0);
    ask_close(&l.a);
    td_engine_close(&e);
}

static void closing_ends_everybody_once(void **state) {
    (void)state;
    td_engine *e = open_engine(2, 0);
    td_scheduler *s = open_scheduler(e, 0, 0);
    ask a[10];
    for (int i = 0; i < 10; i++) {
        ask_open(&a[i], e, openings[i % 8], MAX_NEW);
        a[i].q.ignore_eos = true;
        submit(s, &a[i], 0);
    }
    td_session *session;
    td_result r;
    ASSERT_OK(td_session_open(&session, e, err));
    assert_int_equal(td_session_generate(session, &a[0].q, &r, NULL), TD_E_BUSY);
    td_session_close(&session);
    td_scheduler_close(&s);
    int cancelled = 0;
    for (int i = 0; i < 10; i++) {
        assert_int_equal(a[i].ends, 1);
        cancelled += a[i].status == TD_E_CANCELLED;
        ask_close(&a[i]);
    }
    assert_true(cancelled >= 8);
    td_engine_close(&e);
}

static void draining_takes_nothing_new(void **state) {
    (void)state;
    td_engine *e = open_engine(1, 0);
    td_scheduler *s = open_scheduler(e, 0, 0);
    ask a, late;
    ask_open(&a, e, openings[3], 30);
    ask_open(&late, e, openings[4], 30);
    submit(s, &a, 0);
    bool done = td_scheduler_drain(s, 0);
    uint64_t id;
    assert_int_equal(td_scheduler_submit(s, &late.q, 0, on_end, &id, err), TD_E_BUSY);
    assert_string_equal(err->message, "the server is shutting down");
    assert_true(td_scheduler_drain(s, 60) || done);
    assert_int_equal(a.ends, 1);
    ask_close(&a);
    ask_close(&late);
    td_scheduler_close(&s);
    td_engine_close(&e);
}

static atomic_bool gate_is_shut, at_gate; /* whoever meets it waits until the test lets go */

static void shut_gate(void) {
    atomic_store(&at_gate, false);
    atomic_store(&gate_is_shut, true);
}

static void open_gate(void) {
    atomic_store(&gate_is_shut, false);
}

static void wait_for_gate(void) {
    while (!atomic_load(&at_gate))
        usleep(200);
}

static void pass_gate(void) {
    atomic_store(&at_gate, true);
    while (atomic_load(&gate_is_shut))
        usleep(200);
}

static void on_end_at_gate(void *user, const td_result *r, const td_error *why) {
    pass_gate();
    on_end(user, r, why);
}

static bool on_text_at_gate(void *user, const td_piece *p) {
    pass_gate();
    return on_text(user, p);
}

/* How somebody leaves: by its id, by not being wanted any more, by what a callback returns. */
enum { BY_ID, BY_SILENCE, BY_REFUSAL };

static bool prefill_at_gate(void *user, const char *stage, uint64_t done, uint64_t total) {
    (void)stage;
    (void)total;
    ask *a = user;
    if (done == 0)
        return true;
    pass_gate();
    pthread_mutex_lock(&a->lock);
    bool stay = !a->refuses;
    a->n_reports++;
    pthread_mutex_unlock(&a->lock);
    return stay;
}

static void leave(td_scheduler *s, ask *a, uint64_t id, int how) {
    if (how == BY_ID)
        td_scheduler_cancel(s, id);
    pthread_mutex_lock(&a->lock);
    if (how == BY_SILENCE)
        a->unwanted_after = a->questions = 1; /* the next question is one too many */
    a->refuses = how == BY_REFUSAL;
    pthread_mutex_unlock(&a->lock);
}

/* Whoever leaves, in the middle of a prompt or of a drafted answer, is gone before the next round of its own: nothing
 * more is made for it, and its place is free. */
static void whoever_leaves_is_gone_within_a_round(void **state) {
    (void)state;
    td_engine *e = open_drafting(2, 0, true);
    td_scheduler *s = open_scheduler(e, 0, 1e-9);
    ask running; /* so that prompts are read in pieces */
    ask_open(&running, e, openings[0], MAX_NEW);
    running.q.ignore_eos = true;
    for (int how = 0; how < 3; how++)
        for (int reading = 0; reading < 2; reading++) {
            ask a;
            char text[600] = "";
            for (size_t n = 0, i = 0; reading && n < sizeof text - 100; i++)
                n += (size_t)snprintf(text + n, sizeof text - n, "%s %zu. ", openings[i % 8], i);
            ask_open(&a, e, reading ? text : openings[1], 40);
            a.q.ignore_eos = true;
            a.q.on_text = on_text_at_gate;
            a.q.on_prefill = reading ? prefill_at_gate : NULL;
            ask_restart(&running);
            submit(s, &running, 0);
            shut_gate();
            uint64_t id = submit(s, &a, 1);
            wait_for_gate();
            leave(s, &a, id, how);
            open_gate();
            ask_wait(&a);
            assert_int_equal(a.status, TD_OK);
            assert_int_equal(a.finish, TD_FINISH_CANCELLED);
            assert_int_equal(a.n_pieces, !reading);
            assert_int_equal(a.n_reports, reading);
            assert_in_range(a.n_tokens, !reading, reading ? 0 : 9); /* those of one round */
            td_scheduler_stats st;
            td_scheduler_describe(s, &st);
            assert_true(st.active <= 1);
            ask_wait(&running);
            ask_close(&a);
        }
    ask_close(&running);
    td_scheduler_close(&s);
    td_engine_close(&e);
}

/* Everybody has been told by the time that a drain returns true. */
static void a_drain_ends_behind_the_last_call(void **state) {
    (void)state;
    td_engine *e = open_engine(1, 0);
    td_scheduler *s = open_scheduler(e, 0, 0);
    ask a;
    uint64_t id;
    ask_open(&a, e, openings[3], 2);
    shut_gate();
    ASSERT_OK(td_scheduler_submit(s, &a.q, 0, on_end_at_gate, &id, err));
    wait_for_gate();
    assert_false(td_scheduler_drain(s, 0));
    assert_false(td_scheduler_drain(s, -1));
    assert_false(td_scheduler_drain(s, NAN));
    open_gate();
    assert_true(td_scheduler_drain(s, 60));
    assert_int_equal(a.ends, 1);
    ask_close(&a);
    td_scheduler_close(&s);
    td_engine_close(&e);
}

/* One who is cancelled in the queue makes room at once, whatever the thread is doing. */
static void whoever_is_cancelled_makes_room_at_once(void **state) {
    (void)state;
    td_engine *e = open_engine(1, 0);
    td_scheduler *s = open_scheduler(e, 1, 0);
    ask a[3];
    for (int i = 0; i < 3; i++)
        ask_open(&a[i], e, openings[i], 4);
    a[0].q.on_text = on_text_at_gate;
    shut_gate();
    submit(s, &a[0], 0);
    wait_for_gate();
    uint64_t id = submit(s, &a[1], 0), none;
    assert_int_equal(td_scheduler_submit(s, &a[2].q, 0, on_end, &none, err), TD_E_BUSY);
    td_scheduler_cancel(s, id);
    td_scheduler_cancel(s, id);
    submit(s, &a[2], 0);
    open_gate();
    for (int i = 0; i < 3; i++) {
        ask_wait(&a[i]);
        assert_int_equal(a[i].status, i == 1 ? TD_E_CANCELLED : TD_OK);
        ask_close(&a[i]);
    }
    td_scheduler_close(&s);
    td_engine_close(&e);
}

/* Of many who wait, a round asks some, and all in turn: a queue however long costs a round a bounded time, and whoever
 * has gone still leaves it soon. */
static void a_long_queue_is_asked_little_by_little(void **state) {
    (void)state;
    enum { WAITING = 1000, A_ROUND = 256 };
    size_t before = n_questions;
    td_engine *e = open_engine(1, 0);
    td_scheduler *s = open_scheduler(e, WAITING, 0);
    ask running;
    ask *many = calloc(WAITING, sizeof *many);
    assert_non_null(many);
    ask_open(&running, e, openings[0], 24);
    running.q.ignore_eos = true;
    running.q.no_mtp = true; /* 24 rounds */
    running.q.on_text = on_text_at_gate;
    shut_gate();
    submit(s, &running, 0);
    wait_for_gate();
    for (int i = 0; i < WAITING; i++) {
        ask_open(&many[i], e, openings[1], 1);
        many[i].unwanted_after = i % 2 ? SIZE_MAX : 1; /* every other one goes away after the first question */
        submit(s, &many[i], (uint64_t)i);
    }
    open_gate();
    ask_wait(&running);
    td_scheduler_close(&s);
    int gone = 0;
    for (int i = 0; i < WAITING; i++) {
        assert_int_equal(many[i].ends, 1);
        assert_true(many[i].questions >= 1);
        gone += i % 2 == 0 && many[i].status == TD_E_CANCELLED;
        ask_close(&many[i]);
    }
    assert_int_equal(gone, WAITING / 2);
    assert_in_range(running.all_questions - before, 3 * WAITING, 24 * (A_ROUND + 1) + 1);
    free(many);
    ask_close(&running);
    td_engine_close(&e);
}

/* When there are more prompts than prompt rows a round, the older ones are read first, wherever they have a place. */
static void older_prompts_are_read_first(void **state) {
    (void)state;
    enum { READERS = 22 };
    td_engine *e = open_engine(20, 0);
    td_scheduler *s = open_scheduler(e, 0, 1e-9); /* 16 rows a round */
    ask running, brief[3], a[READERS];
    ask_open(&running, e, openings[0], MAX_NEW);
    running.q.ignore_eos = true;
    running.q.no_mtp = true;
    running.q.on_text = on_text_at_gate;
    shut_gate();
    submit(s, &running, 0);
    wait_for_gate();
    for (int i = 0; i < 3; i++) { /* they have places in front of most, and leave them to latecomers */
        ask_open(&brief[i], e, openings[1 + i], 1);
        submit(s, &brief[i], 0);
    }
    for (int i = 0; i < READERS; i++) {
        char text[300];
        snprintf(text, sizeof text, "%d %s %s %s %s %s", i, openings[1], openings[4], openings[5], openings[6],
                 openings[7]);
        ask_open(&a[i], e, text, 1);
        submit(s, &a[i], 0);
    }
    open_gate();
    for (int i = 0; i < READERS; i++)
        ask_wait(&a[i]);
    for (int i = 0; i < READERS; i++)
        for (int k = i + 1; k < READERS; k++) /* who came last is never before the first of those who came before */
            if (a[k].order < a[i].order && a[k].n_prompt >= a[i].n_prompt)
                fail_msg("prompt %d of %zu tokens was read before prompt %d of %zu", k, a[k].n_prompt, i,
                         a[i].n_prompt);
    ask_wait(&running);
    for (int i = 0; i < 3; i++) {
        ask_wait(&brief[i]);
        ask_close(&brief[i]);
    }
    for (int i = 0; i < READERS; i++)
        ask_close(&a[i]);
    ask_close(&running);
    td_scheduler_close(&s);
    td_engine_close(&e);
}

/* Keys for one context and no more: answers wait for one another, and what finished ones have left gives way. */
static void no_answer_is_broken_off_for_want_of_memory(void **state) {
    (void)state;
    for (int cached = 0; cached < 2; cached++) {
        td_engine_options o = options(8, cached ? (uint64_t)64 << 20 : 0, false);
        td_engine *e;
        ASSERT_OK(td_engine_open(&e, &o, err));
        td_memory_plan plan = td_engine_describe(e)->memory;
        td_engine_close(&e);
        o.n_ctx = 384;
        ASSERT_OK(td_engine_open(&e, &o, err));
        plan.kv = td_engine_describe(e)->memory.kv;
        td_engine_close(&e);
        o.memory_limit = plan.weights + plan.drafter + plan.scratch + plan.kv;
        ASSERT_OK(td_engine_open(&e, &o, err));
        td_scheduler *s = open_scheduler(e, 0, 0);
        ask a[N_REQUESTS];
        for (size_t i = 0; i < N_REQUESTS; i++) {
            mixed(&a[i], e, i);
            submit(s, &a[i], i);
        }
        for (size_t i = 0; i < N_REQUESTS; i++) {
            ask_wait(&a[i]);
            if (a[i].status != TD_OK)
                fail_msg("request %zu, cached %d, %zu tokens: %s", i, cached, a[i].n_prompt, a[i].message);
            same(&a[i], &alone[i], i);
            ask_close(&a[i]);
        }
        td_scheduler_stats st;
        td_scheduler_describe(s, &st);
        assert_true(st.kv_allocated <= plan.kv);
        td_scheduler_close(&s);
        td_engine_close(&e);
    }
}

/* Every allocation of a request fails once; it says so, and the next request is answered as if nothing had been. */
static void memory_that_runs_out_ends_one_request(void **state) {
    (void)state;
    long before = td_alloc_live();
    td_engine *e = open_drafting(1, 1 << 20, true);
    td_scheduler *s = open_scheduler(e, 0, 0);
    static const char *const stop[] = {"zzzz"};
    uint64_t id;
    int failed = 0;
    for (long k = 0;; k++) {
        ask a, good;
        ask_open(&a, e, openings[k % 8], 4);
        ask_open(&good, e, openings[0], 4);
        a.q.stop = stop;
        a.q.n_stop = 1;
        a.q.n_logprobs = 2;
        a.q.on_text = count_only;
        a.q.is_wanted = NULL;
        td_alloc_fail_at(k);
        td_status st = td_scheduler_submit(s, &a.q, 0, only_status, &id, err);
        if (st == TD_OK) {
            ask_wait(&a);
            st = a.status;
        }
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        assert_true(st == TD_OK || (struck && st == TD_E_NOMEM));
        failed += st != TD_OK;
        submit(s, &good, 0);
        ask_wait(&good);
        assert_int_equal(good.status, TD_OK);
        assert_int_equal(good.n_tokens, 4);
        ask_close(&a);
        ask_close(&good);
        if (!struck)
            break;
        assert_true(k < 500);
    }
    assert_true(failed >= 5);
    td_scheduler_stats st;
    td_scheduler_describe(s, &st);
    assert_int_equal(st.finished + st.failed, st.requests);
    td_scheduler_close(&s);
    td_engine_close(&e);
    assert_int_equal(td_alloc_live(), before);
}

/* A conversation outlives its server: saved, restored by another one and continued it is the unbroken one, and what was
 * restored is not evaluated again. */
static void a_conversation_outlives_its_server(void **state) {
    (void)state;
    char path[] = "/tmp/test_scheduler_XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    char text[1200];
    size_t n = 0;
    for (int k = 0; k < 20; k++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s %d. ", openings[k % 8], k);
    td_token first[MAX_NEW];
    uint64_t n_tokens, n_bytes;
    for (int life = 0; life < 2; life++) {
        td_engine *e = open_engine(2, (uint64_t)64 << 20);
        td_scheduler *s = open_scheduler(e, 0, 0);
        ask a;
        ask_open(&a, e, text, 30);
        a.q.ignore_eos = true;
        uint32_t slot_no = 0;
        if (life == 1) {
            ASSERT_OK(td_scheduler_restore(s, 1, path, &n_tokens, &n_bytes, err));
            assert_int_equal(n_tokens, a.n_prompt + 29); /* the last token's key was never needed */
        }
        submit(s, &a, 0);
        ask_wait(&a);
        if (life == 0) {
            td_slot_info info;
            memcpy(first, a.tokens, sizeof first);
            ASSERT_OK(td_scheduler_slot(s, slot_no, &info, err));
            if (info.n_prompt == 0)
                slot_no = 1;
            ASSERT_OK(td_scheduler_save(s, slot_no, path, &n_tokens, &n_bytes, err));
            assert_true(n_bytes > 1000);
            assert_int_equal(a.cached, 0);
            assert_int_equal(td_scheduler_save(s, 1 - slot_no, path, &n_tokens, &n_bytes, err), TD_E_NOTFOUND);
            assert_int_equal(td_scheduler_save(s, 2, path, &n_tokens, &n_bytes, err), TD_E_ARG);
        } else {
            assert_int_equal(a.cached, a.n_prompt - 1); /* the newest is fed for its logits */
            assert_memory_equal(a.tokens, first, 30 * sizeof *first);
            ASSERT_OK(td_scheduler_restore(s, 0, path, &n_tokens, &n_bytes, err));
            ASSERT_OK(td_scheduler_erase(s, 0, &n_tokens, err));
            assert_int_equal(n_tokens, a.n_prompt + 29);
            assert_int_equal(td_scheduler_restore(s, 0, "/nowhere/at/all", &n_tokens, &n_bytes, err), TD_E_NOTFOUND);
        }
        ask_close(&a);
        td_scheduler_close(&s);
        td_engine_close(&e);
    }
    /* another model refuses the file */
    td_engine_options o = td_engine_options_default();
    td_engine *e;
    o.model = TD_FIXTURES "/vectors/gemma4-dense";
    o.n_ctx = 512;
    o.n_threads = 1;
    o.cache_bytes = 1 << 20;
    ASSERT_OK(td_engine_open(&e, &o, err));
    td_scheduler *s = open_scheduler(e, 0, 0);
    assert_int_equal(td_scheduler_restore(s, 0, path, &n_tokens, &n_bytes, err), TD_E_MODEL);
    td_scheduler_close(&s);
    td_engine_close(&e);
    unlink(path);
}

static void what_cannot_be_served_is_refused_at_once(void **state) {
    (void)state;
    td_engine *e = open_engine(1, 0);
    td_scheduler *s = open_scheduler(e, 0, 0);
    ask a;
    uint64_t id;
    ask_open(&a, e, openings[5], 10);
    static td_token many[N_CTX];
    const td_request good = a.q;
    a.q.prompt = many;
    a.q.n_prompt = N_CTX;
    assert_int_equal(td_scheduler_submit(s, &a.q, 0, on_end, &id, err), TD_E_LIMIT);
    assert_string_equal(err->message,
                        "a prompt of 1024 tokens, but the context holds 1024, one of which must be left to answer");
    a.q = good;
    a.q.n_logprobs = 21;
    assert_int_equal(td_scheduler_submit(s, &a.q, 0, on_end, &id, err), TD_E_ARG);
    a.q = good;
    a.q.sampling.top_p = 2;
    assert_int_equal(td_scheduler_submit(s, &a.q, 0, on_end, &id, err), TD_E_ARG);
    const td_token wild = 1 << 30;
    a.q = good;
    a.q.prompt = &wild;
    a.q.n_prompt = 1;
    assert_int_equal(td_scheduler_submit(s, &a.q, 0, on_end, &id, err), TD_E_ARG);
    td_slot_info info;
    assert_int_equal(td_scheduler_slot(s, 1, &info, err), TD_E_ARG);
    assert_int_equal(a.ends, 0);
    ask_close(&a);
    td_scheduler_close(&s);
    td_engine_close(&e);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(together_is_as_alone),
        cmocka_unit_test(with_a_cache_too),
        cmocka_unit_test(one_who_leaves_disturbs_nobody),
        cmocka_unit_test(a_full_queue_says_so),
        cmocka_unit_test(owners_take_turns),
        cmocka_unit_test(streams_flow_while_a_prompt_is_read),
        cmocka_unit_test(log_probabilities_are_those_of_plain_decoding),
        cmocka_unit_test(time_runs_out),
        cmocka_unit_test(closing_ends_everybody_once),
        cmocka_unit_test(errands_of_a_closing_server_are_refused),
        cmocka_unit_test(draining_takes_nothing_new),
        cmocka_unit_test(whoever_leaves_is_gone_within_a_round),
        cmocka_unit_test(a_drain_ends_behind_the_last_call),
        cmocka_unit_test(whoever_is_cancelled_makes_room_at_once),
        cmocka_unit_test(a_long_queue_is_asked_little_by_little),
        cmocka_unit_test(older_prompts_are_read_first),
        cmocka_unit_test(no_answer_is_broken_off_for_want_of_memory),
        cmocka_unit_test(memory_that_runs_out_ends_one_request),
        cmocka_unit_test(a_conversation_outlives_its_server),
        cmocka_unit_test(what_cannot_be_served_is_refused_at_once),
    };
    return cmocka_run_group_tests(tests, answer_alone, forget_answers);
}
