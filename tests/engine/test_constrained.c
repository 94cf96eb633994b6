/* test_constrained.c - constrained answers through the public interface: what was asked for comes, drafts go on, and
 * the text is that of plain constrained decoding. The model is the embedded pair, which knows nothing of JSON: it is
 * the mask that makes its answers valid. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include <jansson.h>
#include <pthread.h>

#include "base/alloc.h"
#include "support/sanitized.h"
#include "tandem.h"
#include "text/reply_message.h"

#define TRUNK TD_SOURCE_DIR "/models/gemma4-demo-4bit"
#define ASSISTANT TD_SOURCE_DIR "/models/gemma4-demo-assistant-4bit"

#if TD_SANITIZED
#define STEP 4
#else
#define STEP 1
#endif

static td_error error, *const err = &error;

#define ASSERT_OK(call)                                                                                                \
    do {                                                                                                               \
        if ((call) != TD_OK)                                                                                           \
            fail_msg("%s: %s", #call, error.message);                                                                  \
    } while (0)

static const char schema[] =
    "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 12},"
    " \"age\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 120},"
    " \"kind\": {\"enum\": [\"boat\", \"bridge\", \"river\"]},"
    " \"old\": {\"type\": \"boolean\"}},"
    " \"required\": [\"name\", \"age\", \"kind\", \"old\"], \"additionalProperties\": false}";

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": \"Weather\", \"parameters\":"
    " {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\", \"maxLength\": 5},"
    " \"unit\": {\"enum\": [\"celsius\", \"fahrenheit\"]}, \"days\": {\"type\": \"integer\", \"minimum\": 1,"
    " \"maximum\": 14}}, \"required\": [\"city\", \"unit\", \"days\"], \"additionalProperties\": false}}},"
    " {\"type\": \"function\", \"function\": {\"name\": \"say\", \"parameters\": {\"type\": \"object\", \"properties\":"
    " {\"words\": {\"type\": \"array\", \"items\": {\"type\": \"string\", \"maxLength\": 5}, \"minItems\": 1,"
    " \"maxItems\": 2}}, \"required\": [\"words\"], \"additionalProperties\": false}}}]";

/* The embedded trunk under the chat template that Gemma 4 is published with, which has a form for tool calls. */
static char model[64];

static int make_model(void **state) {
    (void)state;
    static const char *const files[] = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                                        "tokenizer_config.json"};
    char from[600], to[600];
    strcpy(model, "/tmp/test_constrained_XXXXXX");
    if (!mkdtemp(model))
        return -1;
    int failed = 0;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(from, sizeof from, TRUNK "/%s", files[i]);
        snprintf(to, sizeof to, "%s/%s", model, files[i]);
        failed |= symlink(from, to);
    }
    snprintf(to, sizeof to, "%s/chat_template.jinja", model);
    return failed | symlink(TD_FIXTURES "/templates/gemma4.jinja", to);
}

static int remove_model(void **state) {
    (void)state;
    static const char *const files[] = {"config.json",    "generation_config.json", "model.safetensors",
                                        "tokenizer.json", "tokenizer_config.json",  "chat_template.jinja"};
    char path[600];
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        snprintf(path, sizeof path, "%s/%s", model, files[i]);
        unlink(path);
    }
    return rmdir(model);
}

static td_session *talk; /* of the engine that is open: what prompts share is read once */

static td_engine *open_engine(bool assistant, bool lookup) {
    td_engine_options o = td_engine_options_default();
    td_engine *e;
    o.model = model;
    o.assistant = assistant ? ASSISTANT : NULL;
    o.lookup = lookup;
    o.num_mtp_tokens = 8;
    o.mtp_fixed = assistant || lookup; /* or the clock would have a say in the drafts */
    o.n_ctx = 1024;
    o.n_threads = 1;
    ASSERT_OK(td_engine_open(&e, &o, err));
    ASSERT_OK(td_session_open(&talk, e, err));
    return e;
}

static void close_engine(td_engine **e) {
    td_session_close(&talk);
    td_engine_close(e);
}

static td_result ask_for(td_engine *e, uint32_t max_tokens, const char *prompt, const td_constraint_spec *spec,
                         float temperature, uint64_t seed, int depth) {
    td_request q = td_request_default();
    td_token *tokens;
    td_result r;
    ASSERT_OK(td_engine_tokenize(e, prompt, strlen(prompt), true, false, &tokens, &q.n_prompt, err));
    q.prompt = tokens;
    q.max_tokens = max_tokens;
    q.sampling.temperature = temperature;
    q.sampling.seed = seed;
    q.num_mtp_tokens = depth;
    q.constraint = *spec;
    q.special = true;
    ASSERT_OK(td_session_generate(talk, &q, &r, err));
    td_tokens_free(tokens);
    return r;
}

static td_result ask(td_engine *e, const char *prompt, const td_constraint_spec *spec, float temperature, uint64_t seed,
                     int depth) {
    return ask_for(e, 300, prompt, spec, temperature, seed, depth);
}

static void check_object(const char *text) {
    json_error_t problem;
    json_t *o = json_loads(text, 0, &problem);
    if (!o)
        fail_msg("%s: %s", text, problem.text);
    assert_int_equal(json_object_size(o), 4);
    assert_true(json_is_string(json_object_get(o, "name")));
    assert_true(json_is_integer(json_object_get(o, "age")));
    assert_in_range(json_integer_value(json_object_get(o, "age")), 0, 120);
    const char *kind = json_string_value(json_object_get(o, "kind"));
    assert_true(kind && (strcmp(kind, "boat") == 0 || strcmp(kind, "bridge") == 0 || strcmp(kind, "river") == 0));
    assert_true(json_is_boolean(json_object_get(o, "old")));
    json_decref(o);
}

static void same(const td_result *a, const td_result *b) {
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->tokens, b->tokens, a->n_tokens * sizeof *a->tokens);
    assert_string_equal(a->text, b->text);
}

/* Requirement 25. */
static void strict_json_drafts_and_is_valid(void **state) {
    (void)state;
    td_engine *e = open_engine(true, false);
    const td_constraint_spec spec = {.json_schema = schema};
    uint64_t drafted = 0, accepted = 0;
    for (uint64_t i = 0; i < 16; i += STEP) {
        char prompt[80];
        snprintf(prompt, sizeof prompt, "Describe thing number %d as JSON:", (int)i);
        td_result plain = ask(e, prompt, &spec, i % 2 ? 0.8f : 0, i, 0);
        td_result r = ask(e, prompt, &spec, i % 2 ? 0.8f : 0, i, i % 3 ? 4 : -1);
        assert_int_equal(plain.finish, TD_FINISH_STOP);
        check_object(plain.text);
        same(&r, &plain);
        drafted += r.drafted;
        for (int k = 0; k < TD_MAX_DRAFT; k++)
            accepted += r.accepted_at[k];
        td_result_free(&plain);
        td_result_free(&r);
    }
    assert_true(drafted > 0 && accepted > 0);
    close_engine(&e);
}

static void check_calls(const td_result *r, bool named) {
    td_reply *reply;
    td_reply_message m;
    json_t *list = json_loads(tools, 0, NULL);
    td_reply_message_init(&m, 1 << 20);
    td_reply_options o = {
        .format = {.calls = TD_REPLY_CALLS_GEMMA4}, .tools = list, .on_event = td_reply_message_event, .user = &m};
    ASSERT_OK(td_reply_open(&reply, &o, err));
    ASSERT_OK(td_reply_push(reply, r->text, r->n_text, err));
    ASSERT_OK(td_reply_finish(reply, err));
    assert_int_equal(m.n_calls, 1);
    assert_int_equal(m.n_incomplete, 0);
    assert_int_equal(m.content.size, 0);
    json_t *arguments = json_loads(td_buf_str(&m.calls[0].arguments), 0, NULL);
    assert_true(json_is_object(arguments));
    if (strcmp(m.calls[0].name, "get_weather") == 0) {
        assert_int_equal(json_object_size(arguments), 3);
        assert_in_range(json_integer_value(json_object_get(arguments, "days")), 1, 14);
        assert_true(json_is_string(json_object_get(arguments, "city")));
    } else {
        assert_false(named);
        assert_string_equal(m.calls[0].name, "say");
        assert_in_range(json_array_size(json_object_get(arguments, "words")), 1, 2);
    }
    json_decref(arguments);
    json_decref(list);
    td_reply_close(&reply);
    td_reply_message_free(&m);
}

static td_result call(td_engine *e, int i, int depth) {
    char prompt[200];
    const td_constraint_spec spec = {.tools = tools, .tool_name = i % 2 ? "get_weather" : NULL, .one_call = true};
    snprintf(prompt, sizeof prompt, /* with something for lookup to find */
             "call:get_weather{city:town,days:3,unit:celsius} call:say{words:[a]} The weather in city %d:", i);
    return ask(e, prompt, &spec, 0, 0, depth);
}

/* Requirement 26, for the assistant, for lookup, and for both. */
static void a_hundred_tool_calls_are_those_of_plain_decoding(void **state) {
    (void)state;
    td_result plain[100];
    for (int source = 0; source < 3; source++) {
        td_engine *e = open_engine(source != 1, source != 0);
        uint64_t drafted = 0, accepted = 0;
        for (int i = 0; source == 0 && i < 100; i += STEP) {
            plain[i] = call(e, i, 0);
            assert_int_equal(plain[i].finish, TD_FINISH_STOP);
            assert_int_equal(plain[i].drafted, 0);
            check_calls(&plain[i], i % 2);
        }
        for (int i = 0; i < 100; i += STEP * (source == 2 ? 4 : 1)) {
            td_result r = call(e, i, 1 + i % 5);
            same(&r, &plain[i]);
            drafted += r.drafted;
            for (int k = 0; k < TD_MAX_DRAFT; k++)
                accepted += r.accepted_at[k];
            td_result_free(&r);
        }
        assert_true(drafted > 0);
        assert_true(accepted > 0);
        close_engine(&e);
    }
    for (int i = 0; i < 100; i += STEP)
        td_result_free(&plain[i]);
}

/* ---- many at once ---- */

typedef struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t over;
    int ends;
    td_status status;
    char text[40];
} waiter;

static void on_end(void *user, const td_result *r, const td_error *why) {
    waiter *w = user;
    pthread_mutex_lock(&w->lock);
    w->ends++;
    w->status = r ? TD_OK : why->status;
    snprintf(w->text, sizeof w->text, "%.39s", r ? r->text : why->message);
    pthread_cond_signal(&w->over);
    pthread_mutex_unlock(&w->lock);
}

typedef struct client {
    td_scheduler *s;
    int no, wrong;
    pthread_t thread;
} client;

/* Text `k` can be one thing only. */
static void one_of_many(waiter *w, td_scheduler *s, int k) {
    static const td_token prompt[] = {2, 100};
    char grammar[80];
    td_request q = td_request_default();
    uint64_t id;
    snprintf(grammar, sizeof grammar, "root ::= \"word %d of %d\"", k, 7 * k);
    q.prompt = prompt;
    q.n_prompt = 2;
    q.max_tokens = 40;
    q.constraint.grammar = grammar;
    q.user = w;
    td_status st = td_scheduler_submit(s, &q, 0, on_end, &id, NULL);
    pthread_mutex_lock(&w->lock);
    if (st != TD_OK)
        w->ends = 1000;
    while (!w->ends)
        pthread_cond_wait(&w->over, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

/* Each of 40 grammars twice: the second time some are still there, and some have had to go. */
static void *ask_for_many(void *arg) {
    client *c = arg;
    for (int i = 0; i < 80 / STEP; i++) {
        int k = (i * 3 + c->no * 20) % 40;
        waiter w = {.lock = PTHREAD_MUTEX_INITIALIZER, .over = PTHREAD_COND_INITIALIZER};
        char want[40];
        one_of_many(&w, c->s, k);
        snprintf(want, sizeof want, "word %d of %d", k, 7 * k);
        c->wrong += w.ends != 1 || w.status != TD_OK || strcmp(w.text, want) != 0;
    }
    return NULL;
}

/* More grammars than are kept, asked for by several threads while answers under others are on their way. */
static void more_grammars_than_are_kept(void **state) {
    (void)state;
    td_engine_options o = td_engine_options_default();
    td_scheduler_options so = td_scheduler_options_default();
    td_engine *e;
    td_scheduler *s;
    o.model = model;
    o.n_ctx = 64;
    o.n_threads = 1;
    o.parallel = 3;
    ASSERT_OK(td_engine_open(&e, &o, err));
    ASSERT_OK(td_scheduler_open(&s, e, &so, err));
    client c[3];
    for (int i = 0; i < 3; i++) {
        c[i] = (client){.s = s, .no = i};
        assert_int_equal(pthread_create(&c[i].thread, NULL, ask_for_many, &c[i]), 0);
    }
    for (int i = 0; i < 3; i++) {
        pthread_join(c[i].thread, NULL);
        assert_int_equal(c[i].wrong, 0);
    }
    td_scheduler_close(&s);
    td_engine_close(&e);
}

/* Every allocation of a constrained answer fails once: it says so, nothing is lost, and the next one is as ever. The
 * vocabulary's trie is there before (test_token_trie lets it fail), the grammar is a new one each time. */
static void memory_that_runs_out_leaves_the_session_usable(void **state) {
    (void)state;
    static const td_token prompt[] = {2, 100};
    long before = td_alloc_live();
    td_engine *e = open_engine(true, true);
    td_request q = td_request_default();
    q.prompt = prompt;
    q.n_prompt = 2;
    q.n_logprobs = 1;
    q.constraint.json_object = true;
    q.max_tokens = 1;
    td_result r;
    ASSERT_OK(td_session_generate(talk, &q, &r, err));
    td_result_free(&r);
    q.constraint.json_object = false;
    q.max_tokens = 20;
    int failed = 0;
    for (long k = 0;; k++) {
        char grammar[100], yes[40], no[40];
        snprintf(grammar, sizeof grammar, "root ::= \"yes %ld\" | \"no %ld\"", k, k);
        snprintf(yes, sizeof yes, "yes %ld", k);
        snprintf(no, sizeof no, "no %ld", k);
        q.constraint.grammar = grammar;
        td_alloc_fail_at(k);
        td_status st = td_session_generate(talk, &q, &r, err);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        if (st != TD_OK) {
            assert_true(struck && st == TD_E_NOMEM);
            assert_null(r.text);
            assert_null(r.tokens);
            failed++;
        } else {
            assert_true(strcmp(r.text, yes) == 0 || strcmp(r.text, no) == 0);
        }
        td_result_free(&r);
        if (!struck)
            break;
        assert_true(k < 10000);
    }
    assert_true(failed > 50);
    close_engine(&e);
    assert_int_equal(td_alloc_live(), before);
}

/* Tools beside a schema: calls of the tools, or a text of the schema, and the same with drafts. */
static void calls_or_a_text(void **state) {
    (void)state;
    td_engine *e = open_engine(true, false);
    int texts = 0, calls = 0;
    for (uint64_t seed = 1; seed <= 24; seed++) {
        const td_constraint_spec spec = {.tools = tools,
                                         .one_call = true,
                                         .json_object = seed % 2,
                                         .json_schema = seed % 2 ? NULL
                                                                 : "{\"type\": \"object\", \"properties\": "
                                                                   "{\"ok\": {\"type\": \"boolean\"}}}"};
        td_result plain = ask_for(e, 50, "The weather in Oslo:", &spec, 4, seed, 0);
        td_result r = ask_for(e, 50, "The weather in Oslo:", &spec, 4, seed, 4);
        same(&r, &plain);
        bool call = strncmp(r.text, "<|tool_call>", 12) == 0;
        if (call && r.finish == TD_FINISH_STOP)
            check_calls(&r, false);
        else if (!call)
            assert_int_equal(r.text[strspn(r.text, " \n")], '{');
        calls += call;
        texts += !call;
        td_result_free(&plain);
        td_result_free(&r);
    }
    assert_true(calls > 0 && texts > 0);
    close_engine(&e);
}

static void grammars_and_objects(void **state) {
    (void)state;
    td_engine *e = open_engine(true, false);
    td_constraint_spec spec = {.grammar = "root ::= (\"yes\" | \"no\") \" because \" [a-z ]{3,20} \".\""};
    td_result r = ask(e, "Is it?", &spec, 0.8f, 3, -1);
    assert_int_equal(r.finish, TD_FINISH_STOP);
    assert_true(strncmp(r.text, "yes because ", 12) == 0 || strncmp(r.text, "no because ", 11) == 0);
    assert_true(r.n_text > 14 && r.text[r.n_text - 1] == '.');
    td_result_free(&r);
    spec = (td_constraint_spec){.json_object = true};
    r = ask(e, "An object:", &spec, 0.8f, 3, -1);
    assert_int_equal(r.text[strspn(r.text, " \n")], '{');
    td_result_free(&r);
    close_engine(&e);
}

static void what_cannot_be_met_is_refused(void **state) {
    (void)state;
    td_engine *e = open_engine(false, false);
    const td_constraint_spec any = {.tools = tools, .one_call = true};
    td_result kept = ask(e, "Any:", &any, 0, 0, 0); /* its grammar is kept, and is not that of a tool without a name */
    td_result_free(&kept);
    static const struct {
        td_constraint_spec spec;
        const char *says;
    } cases[] = {
        {{.json_schema = "{\"type\": \"strin\"}"}, "strin"},
        {{.json_schema = "{\"type\": "}, "schema"},
        {{.grammar = "root ::= nothing"}, "nothing"},
        {{.grammar = "root ::= \"a\"", .json_object = true}, "2 constraints on one answer, expected one"},
        {{.tools = tools, .grammar = "root ::= \"a\""}, "2 constraints on one answer, expected one"},
        {{.tools = tools, .json_schema = "{\"type\": \"strin\"}"}, "strin"},
        {{.tools = tools, .tool_name = "no_such"}, "no_such"},
        {{.tools = tools, .tool_name = "", .one_call = true}, "tool"},
        {{.tools = "[]"}, "tool"},
        {{.tools = "{"}, "tools"},
    };
    td_session *session;
    ASSERT_OK(td_session_open(&session, e, err));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static const td_token prompt[] = {2, 100};
        td_request q = td_request_default();
        td_result r;
        q.prompt = prompt;
        q.n_prompt = 2;
        q.constraint = cases[i].spec;
        td_status st = td_session_generate(session, &q, &r, err);
        if (st != TD_E_ARG || !strstr(error.message, cases[i].says))
            fail_msg("case %zu: %s: %s", i, td_status_name(st), error.message);
    }
    td_session_close(&session);
    close_engine(&e);
}

int main(void) {
    const struct CMUnitTest tests_[] = {
        cmocka_unit_test(strict_json_drafts_and_is_valid),
        cmocka_unit_test(a_hundred_tool_calls_are_those_of_plain_decoding),
        cmocka_unit_test(calls_or_a_text),
        cmocka_unit_test(grammars_and_objects),
        cmocka_unit_test(more_grammars_than_are_kept),
        cmocka_unit_test(memory_that_runs_out_leaves_the_session_usable),
        cmocka_unit_test(what_cannot_be_met_is_refused),
    };
    return cmocka_run_group_tests(tests_, make_model, remove_model);
}
