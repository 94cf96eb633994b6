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

#include "tandem.h"
#include "text/reply_message.h"

#define TRUNK TD_SOURCE_DIR "/models/gemma4-demo-4bit"
#define ASSISTANT TD_SOURCE_DIR "/models/gemma4-demo-assistant-4bit"

#if defined(__SANITIZE_ADDRESS__)
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
    "{\"type\": \"object\", \"properties\": {\"name\": {\"type\": \"string\", \"maxLength\": 24},"
    " \"age\": {\"type\": \"integer\", \"minimum\": 0, \"maximum\": 120},"
    " \"kind\": {\"enum\": [\"boat\", \"bridge\", \"river\"]},"
    " \"old\": {\"type\": \"boolean\"}},"
    " \"required\": [\"name\", \"age\", \"kind\", \"old\"], \"additionalProperties\": false}";

static const char tools[] =
    "[{\"type\": \"function\", \"function\": {\"name\": \"get_weather\", \"description\": \"Weather\", \"parameters\":"
    " {\"type\": \"object\", \"properties\": {\"city\": {\"type\": \"string\", \"maxLength\": 16},"
    " \"unit\": {\"enum\": [\"celsius\", \"fahrenheit\"]}, \"days\": {\"type\": \"integer\", \"minimum\": 1,"
    " \"maximum\": 14}}, \"required\": [\"city\", \"unit\", \"days\"], \"additionalProperties\": false}}},"
    " {\"type\": \"function\", \"function\": {\"name\": \"say\", \"parameters\": {\"type\": \"object\", \"properties\":"
    " {\"words\": {\"type\": \"array\", \"items\": {\"type\": \"string\", \"maxLength\": 8}, \"minItems\": 1,"
    " \"maxItems\": 3}}, \"required\": [\"words\"], \"additionalProperties\": false}}}]";

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

static td_engine *open_engine(bool assistant, bool lookup) {
    td_engine_options o = td_engine_options_default();
    td_engine *e;
    o.model = model;
    o.assistant = assistant ? ASSISTANT : NULL;
    o.lookup = lookup;
    o.n_ctx = 1024;
    o.n_threads = 2;
    ASSERT_OK(td_engine_open(&e, &o, err));
    return e;
}

static td_result ask(td_engine *e, const char *prompt, const td_constraint_spec *spec, float temperature, uint64_t seed,
                     int depth) {
    td_session *session;
    td_request q = td_request_default();
    td_token *tokens;
    td_result r;
    ASSERT_OK(td_session_open(&session, e, err));
    ASSERT_OK(td_engine_tokenize(e, prompt, strlen(prompt), true, false, &tokens, &q.n_prompt, err));
    q.prompt = tokens;
    q.max_tokens = 300;
    q.sampling.temperature = temperature;
    q.sampling.seed = seed;
    q.num_mtp_tokens = depth;
    q.constraint = *spec;
    q.special = true;
    ASSERT_OK(td_session_generate(session, &q, &r, err));
    td_tokens_free(tokens);
    td_session_close(&session);
    return r;
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
    for (uint64_t i = 0; i < 24; i += STEP) {
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
    td_engine_close(&e);
}

static void check_calls(td_engine *e, const td_result *r, bool named) {
    td_reply *reply;
    td_reply_message m;
    json_t *list = json_loads(tools, 0, NULL);
    td_reply_message_init(&m, 1 << 20);
    td_reply_options o = {
        .format = {.calls = TD_REPLY_CALLS_GEMMA4}, .tools = list, .on_event = td_reply_message_event, .user = &m};
    (void)e;
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
        assert_in_range(json_array_size(json_object_get(arguments, "words")), 1, 3);
    }
    json_decref(arguments);
    json_decref(list);
    td_reply_close(&reply);
    td_reply_message_free(&m);
}

/* Requirement 26, for the assistant, for lookup, and for both. */
static void a_hundred_tool_calls_are_those_of_plain_decoding(void **state) {
    (void)state;
    for (int source = 0; source < 3; source++) {
        td_engine *e = open_engine(source != 1, source != 0);
        uint64_t drafted = 0;
        for (int i = 0; i < 100; i += STEP * (source == 2 ? 4 : 1)) {
            char prompt[120];
            const td_constraint_spec spec = {
                .tools = tools, .tool_name = i % 2 ? "get_weather" : NULL, .one_call = true};
            snprintf(prompt, sizeof prompt, "The weather in city %d, in city %d, for %d days:", i, i, i % 14);
            td_result plain = ask(e, prompt, &spec, 0, 0, 0);
            td_result r = ask(e, prompt, &spec, 0, 0, 1 + i % 8);
            assert_int_equal(plain.finish, TD_FINISH_STOP);
            same(&r, &plain);
            check_calls(e, &r, i % 2);
            drafted += r.drafted;
            td_result_free(&plain);
            td_result_free(&r);
        }
        assert_true(drafted > 0);
        td_engine_close(&e);
    }
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
        td_result plain = ask(e, "The weather in Oslo:", &spec, 4, seed, 0);
        td_result r = ask(e, "The weather in Oslo:", &spec, 4, seed, 4);
        same(&r, &plain);
        bool call = strncmp(r.text, "<|tool_call>", 12) == 0;
        if (call && r.finish == TD_FINISH_STOP)
            check_calls(e, &r, false);
        else if (!call)
            assert_int_equal(r.text[strspn(r.text, " \n")], '{');
        calls += call;
        texts += !call;
        td_result_free(&plain);
        td_result_free(&r);
    }
    assert_true(calls > 0 && texts > 0);
    td_engine_close(&e);
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
    td_engine_close(&e);
}

static void what_cannot_be_met_is_refused(void **state) {
    (void)state;
    td_engine *e = open_engine(false, false);
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
    td_engine_close(&e);
}

int main(void) {
    const struct CMUnitTest tests_[] = {
        cmocka_unit_test(strict_json_drafts_and_is_valid),
        cmocka_unit_test(a_hundred_tool_calls_are_those_of_plain_decoding),
        cmocka_unit_test(calls_or_a_text),
        cmocka_unit_test(grammars_and_objects),
        cmocka_unit_test(what_cannot_be_met_is_refused),
    };
    return cmocka_run_group_tests(tests_, make_model, remove_model);
}
