/* test_chat_http.c - chats with a template that knows tools and thoughts: the embedded pair behind the template of
 * tests/fixtures, so that calls, schemas and grammars go all the way to a client. The model has never seen a tool; that
 * its calls are calls is the constraint's doing. */
#include "support_api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "serve/prompt.h"
#include "serve/server.h"

#define TOOLS                                                                                                          \
    "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"description\":\"of a "                     \
    "city\",\"parameters\":{"                                                                                          \
    "\"type\":\"object\",\"properties\":{\"city\":{\"enum\":[\"Paris\",\"Oslo\"]},\"days\":{\"type\":\"integer\","     \
    "\"minimum\":1,\"maximum\":9}},\"required\":[\"city\",\"days\"],\"additionalProperties\":false}}},{\"type\":"      \
    "\"function\",\"function\":{\"name\":\"time\",\"parameters\":{\"type\":\"object\",\"properties\":{},"              \
    "\"additionalProperties\":false}}}]"
#define ASK                                                                                                            \
    "\"messages\":[{\"role\":\"user\",\"content\":\"What is the weather in Oslo?\"}],\"seed\":4,\"max_tokens\":120"
#define SCHEMA                                                                                                         \
    "\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"p\",\"strict\":true,\"schema\":{"       \
    "\"type\":"                                                                                                        \
    "\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":12},\"age\":{\"type\":\"integer\","        \
    "\"minimum\":0,\"maximum\":99}},\"required\":[\"name\",\"age\"],\"additionalProperties\":false}}}"

static td_engine *engine;
static td_server *server;
static uint16_t port;
static char dir[] = "/tmp/tandem-test-model-XXXXXX";
static const char *const linked[] = {"config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
                                     "tokenizer_config.json"};

static void link_model(void) {
    char from[512], to[512];
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof linked / sizeof *linked; i++) {
        snprintf(from, sizeof from, "%s/models/gemma4-demo-4bit/%s", TD_SOURCE_DIR, linked[i]);
        snprintf(to, sizeof to, "%s/%s", dir, linked[i]);
        assert_int_equal(symlink(from, to), 0);
    }
    snprintf(from, sizeof from, "%s/templates/gemma4.jinja", TD_FIXTURES);
    snprintf(to, sizeof to, "%s/chat_template.jinja", dir);
    assert_int_equal(symlink(from, to), 0);
}

static int set_up(void **state) {
    (void)state;
    td_error err = {0};
    td_engine_options o = td_engine_options_default();
    td_server_options so = td_server_options_default();
    link_model();
    o.model = dir;
    o.assistant = TD_SOURCE_DIR "/models/gemma4-demo-assistant-4bit";
    o.mtp = true;
    o.num_mtp_tokens = 3;
    o.mtp_fixed = true;
    o.n_ctx = 2048;
    o.parallel = 2;
    o.cache_bytes = 64 << 20;
    o.n_threads = 2;
    if (td_engine_open(&engine, &o, &err) != TD_OK || td_server_open(&server, &so, &err) != TD_OK)
        fail_msg("%s", err.message);
    td_server_model m = {.engine = engine, .id = "demo", .max_queue = 16};
    m.defaults = (td_api_defaults){.sampling = td_engine_sampling(engine), .max_tokens = 64, .max_n = 4};
    if (td_server_start(server, &m, &err) != TD_OK)
        fail_msg("%s", err.message);
    port = td_server_port(server);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    char path[512];
    td_server_close(&server);
    td_engine_close(&engine);
    for (size_t i = 0; i < sizeof linked / sizeof *linked; i++) {
        snprintf(path, sizeof path, "%s/%s", dir, linked[i]);
        unlink(path);
    }
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    unlink(path);
    rmdir(dir);
    return 0;
}

static api_reply post(const char *members, const char *more) {
    char body[8192];
    snprintf(body, sizeof body, "{%s%s%s}", members, *more ? "," : "", more);
    return api_post(port, "/v1/chat/completions", body);
}

static api_reply chat(const char *members, const char *more) {
    api_reply r = post(members, more);
    if (r.status != 200)
        fail_msg("%s %s -> %d %s", members, more, r.status, r.body.data);
    return r;
}

/* Calls of a stream joined by index: [{"id", "name", "arguments"}]. */
static json_t *stream_calls(const json_t *events) {
    json_t *calls = json_array();
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *list = api_at(json_array_get(events, i), "choices.0.delta.tool_calls");
        for (size_t k = 0; k < json_array_size(list); k++) {
            const json_t *c = json_array_get(list, k);
            size_t index = (size_t)api_number(c, "index");
            if (index == json_array_size(calls)) {
                assert_string_equal(api_text(c, "type"), "function");
                json_array_append_new(calls, json_pack("{s:s, s:s, s:s}", "id", api_text(c, "id"), "name",
                                                       api_text(c, "function.name"), "arguments", ""));
            }
            json_t *mine = json_array_get(calls, index);
            json_object_set_new(mine, "arguments",
                                json_sprintf("%s%s", api_text(mine, "arguments"), api_text(c, "function.arguments")));
        }
    }
    return calls;
}

static void check_arguments(const char *name, const char *arguments) {
    json_t *v = json_loads(arguments, 0, NULL);
    assert_true(json_is_object(v));
    if (strcmp(name, "weather") == 0) {
        const char *city = api_text(v, "city");
        assert_true(strcmp(city, "Paris") == 0 || strcmp(city, "Oslo") == 0);
        assert_true(api_number(v, "days") >= 1 && api_number(v, "days") <= 9);
    } else {
        assert_string_equal(name, "time");
        assert_int_equal(json_object_size(v), 0);
    }
    json_decref(v);
}

/* Requirements 26, 28 and 32: a call that had to be made is one, streamed or not, drafted or not. */
static void calls_that_are_required(void **state) {
    (void)state;
    static const char *const choices[] = {
        "\"tool_choice\":\"required\",\"parallel_tool_calls\":false",
        "\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"weather\"}},\"parallel_tool_calls\":false"};
    for (size_t i = 0; i < 2; i++) {
        char more[2048];
        snprintf(more, sizeof more, "%s,%s", TOOLS, choices[i]);
        api_reply r = chat(ASK, more);
        assert_string_equal(api_text(r.json, "choices.0.finish_reason"), "tool_calls");
        assert_true(json_is_null(api_at(r.json, "choices.0.message.content")));
        assert_int_equal(json_array_size(api_at(r.json, "choices.0.message.tool_calls")), 1);
        const char *name = api_text(r.json, "choices.0.message.tool_calls.0.function.name");
        const char *arguments = api_text(r.json, "choices.0.message.tool_calls.0.function.arguments");
        check_arguments(name, arguments);
        if (i == 1)
            assert_string_equal(name, "weather");
        assert_int_equal(strncmp(api_text(r.json, "choices.0.message.tool_calls.0.id"), "call_", 5), 0);
        for (int plain = 0; plain < 2; plain++) {
            char again[3000];
            snprintf(again, sizeof again, "%s,\"stream\":true%s", more, plain ? ",\"mtp\":false" : "");
            api_reply s = chat(ASK, again);
            json_t *events = api_events(&s, NULL), *calls = stream_calls(events);
            assert_int_equal(json_array_size(calls), 1);
            assert_string_equal(api_text(json_array_get(calls, 0), "name"), name);
            assert_string_equal(api_text(json_array_get(calls, 0), "arguments"), arguments);
            json_decref(calls);
            json_decref(events);
            api_reply_free(&s);
        }
        api_reply_free(&r);
    }
}

static void check_person(const char *text) {
    json_t *v = json_loads(text, 0, NULL);
    if (!json_is_object(v) || json_object_size(v) != 2)
        fail_msg("not of the schema: %s", text);
    assert_true(json_is_string(json_object_get(v, "name")));
    assert_in_range(api_number(v, "age"), 0, 99);
    json_decref(v);
}

/* What OpenAI's Agents SDK sends: tools that may be called and a format for the answer. Both come about. */
static void a_format_beside_tools_leaves_room_for_calls(void **state) {
    (void)state;
    int n_calls = 0, n_texts = 0;
    for (int seed = 1; seed <= 16; seed++) {
        char more[2600];
        snprintf(more, sizeof more, "%s,%s,\"parallel_tool_calls\":false,\"seed\":%d,\"temperature\":4", TOOLS, SCHEMA,
                 seed);
        api_reply r = chat("\"messages\":[{\"role\":\"user\",\"content\":\"Who?\"}],\"max_tokens\":200", more);
        const json_t *calls = api_at(r.json, "choices.0.message.tool_calls");
        const char *content = json_string_value(api_at(r.json, "choices.0.message.content"));
        if ((calls != NULL) == (content != NULL))
            fail_msg("neither a call nor a text: %s", td_buf_str(&r.body));
        const char *finish = api_text(r.json, "choices.0.finish_reason");
        bool cut = strcmp(finish, "length") == 0; /* thoughts without end, at this temperature */
        assert_true(cut || strcmp(finish, calls ? "tool_calls" : "stop") == 0);
        if (calls && !cut)
            check_arguments(api_text(r.json, "choices.0.message.tool_calls.0.function.name"),
                            api_text(r.json, "choices.0.message.tool_calls.0.function.arguments"));
        else if (!cut)
            check_person(content);
        n_calls += calls && !cut;
        n_texts += content && !cut;
        api_reply_free(&r);
    }
    assert_true(n_calls > 0 && n_texts > 0);
    api_reply must = chat(ASK, TOOLS "," SCHEMA ",\"tool_choice\":\"required\",\"parallel_tool_calls\":false");
    assert_string_equal(api_text(must.json, "choices.0.finish_reason"), "tool_calls");
    api_reply_free(&must);
    api_reply none = chat(ASK, TOOLS "," SCHEMA ",\"tool_choice\":\"none\"");
    check_person(api_text(none.json, "choices.0.message.content"));
    api_reply_free(&none);
    api_reply bad = post(ASK, SCHEMA ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{"
                                     "\"type\":\"object\",\"properties\":{\"a\":{\"not\":{}}}}}}]");
    assert_int_equal(bad.status, 400);
    assert_string_equal(api_text(bad.json, "error.param"), "tools");
    api_reply_free(&bad);
}

static void tools_that_may_be_called_or_not(void **state) {
    (void)state;
    api_reply with = chat(ASK, TOOLS), none = chat(ASK, TOOLS ",\"tool_choice\":\"none\""), without = chat(ASK, "");
    assert_true(api_number(with.json, "usage.prompt_tokens") > api_number(without.json, "usage.prompt_tokens") + 20);
    assert_int_equal(api_number(none.json, "usage.prompt_tokens"), api_number(without.json, "usage.prompt_tokens"));
    assert_string_equal(api_text(none.json, "choices.0.message.content"),
                        api_text(without.json, "choices.0.message.content"));
    api_reply_free(&with);
    api_reply_free(&none);
    api_reply_free(&without);
}

static void a_conversation_with_calls_and_results_goes_on(void **state) {
    (void)state;
    api_reply r =
        chat("\"messages\":[{\"role\":\"developer\",\"content\":\"Be brief.\"},{\"role\":\"user\",\"content\":["
             "{\"type\":\"text\",\"text\":\"Weather?\"}]},{\"role\":\"assistant\",\"content\":null,"
             "\"tool_calls\":[{\"id\":\"call_1\",\"type\":\"function\",\"function\":{\"name\":\"weather\","
             "\"arguments\":\"{\\\"city\\\":\\\"Oslo\\\",\\\"days\\\":1}\"}}]},{\"role\":\"tool\","
             "\"tool_call_id\":\"call_1\",\"content\":\"snow\"},{\"role\":\"user\",\"content\":\"Thanks\"}],"
             "\"max_tokens\":10,\"seed\":1",
             TOOLS);
    assert_true(api_number(r.json, "usage.prompt_tokens") > 50);
    api_reply_free(&r);
}

/* Requirements 24 and 25: JSON that must be JSON drafts too, and is what plain decoding gives. */
static void formats_hold(void **state) {
    (void)state;
    api_reply r = chat(ASK, SCHEMA), plain = chat(ASK, SCHEMA ",\"mtp\":false");
    const char *content = api_text(r.json, "choices.0.message.content");
    assert_string_equal(content, api_text(plain.json, "choices.0.message.content"));
    assert_string_equal(api_text(r.json, "choices.0.finish_reason"), "stop");
    assert_true(api_number(r.json, "timings.draft_n") > 0);
    json_t *v = json_loads(content, 0, NULL);
    assert_int_equal(json_object_size(v), 2);
    assert_true(strlen(api_text(v, "name")) <= 12 * 4);
    assert_true(api_number(v, "age") >= 0 && api_number(v, "age") <= 99);
    json_decref(v);
    api_reply_free(&r);
    api_reply_free(&plain);
    r = chat(ASK, SCHEMA ",\"enable_thinking\":true"); /* thoughts may come first; what comes after them still holds */
    const json_t *finish = api_at(r.json, "choices.0.finish_reason");
    if (strcmp(json_string_value(finish), "stop") == 0) {
        v = json_loads(api_text(r.json, "choices.0.message.content"), 0, NULL);
        assert_int_equal(json_object_size(v), 2);
        json_decref(v);
    }
    api_reply_free(&r);
    r = chat(ASK, "\"grammar\":\"root ::= (\\\"yes\\\" | \\\"no\\\") \\\"!\\\"\"");
    content = api_text(r.json, "choices.0.message.content");
    assert_true(strcmp(content, "yes!") == 0 || strcmp(content, "no!") == 0);
    api_reply_free(&r);
}

static void formats_that_cannot_be_met_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *members, *param;
    } cases[] = {{"\"grammar\":\"root ::= (\"", "grammar"},
                 {"\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"schema\":{\"type\":\"nothing\"}}}",
                  "response_format"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        for (int stream = 0; stream < 2; stream++) {
            char more[512];
            snprintf(more, sizeof more, "%s,\"stream\":%s", cases[i].members, stream ? "true" : "false");
            api_reply r = post(ASK, more);
            if (r.status != 400)
                fail_msg("%s -> %d %s", more, r.status, r.body.data);
            assert_string_equal(api_text(r.json, "error.param"), cases[i].param);
            api_reply_free(&r);
        }
}

#define SAYS_CALL "\"grammar\":\"root ::= \\\"<|tool_call>call:time{}<tool_call|>\\\"\""
#define SAYS_THOUGHT "\"grammar\":\"root ::= \\\"<|channel>thought\\\\nhm<channel|>Yes.\\\"\""

/* A grammar makes the model write what a call looks like: it is one when there are tools, and words when there are
 * none. Thoughts are thoughts either way. */
static void markers_mean_what_was_asked_for(void **state) {
    (void)state;
    api_reply r = chat(ASK, SAYS_CALL "," TOOLS);
    assert_string_equal(api_text(r.json, "choices.0.message.tool_calls.0.function.name"), "time");
    assert_string_equal(api_text(r.json, "choices.0.message.tool_calls.0.function.arguments"), "{}");
    assert_string_equal(api_text(r.json, "choices.0.finish_reason"), "tool_calls");
    api_reply_free(&r);
    r = chat(ASK, SAYS_CALL);
    assert_string_equal(api_text(r.json, "choices.0.message.content"), "<|tool_call>call:time{}<tool_call|>");
    assert_string_equal(api_text(r.json, "choices.0.finish_reason"), "stop");
    api_reply_free(&r);
    r = chat(ASK, SAYS_THOUGHT);
    assert_string_equal(api_text(r.json, "choices.0.message.content"), "Yes.");
    assert_string_equal(api_text(r.json, "choices.0.message.reasoning_content"), "hm");
    double thoughts = api_number(r.json, "usage.completion_tokens_details.reasoning_tokens");
    assert_true(thoughts > 0 && thoughts < api_number(r.json, "usage.completion_tokens"));
    api_reply_free(&r);
}

static void a_message_can_be_continued(void **state) {
    (void)state;
    api_reply r =
        chat("\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story.\"},{\"role\":\"assistant\","
             "\"content\":\"Once upon a\"}],\"continue_final_message\":true,\"max_tokens\":3,\"temperature\":0",
             "");
    assert_int_equal(strncmp(api_text(r.json, "choices.0.message.content"), " time", 5), 0);
    api_reply_free(&r);
}

static void where_a_message_is_cut_to_be_continued(void **state) {
    (void)state;
    static const struct {
        const char *text, *content;
        size_t at;
    } cases[] = {{"<m>Once<e>\n", "Once", 7},
                 {"<m>Once<e>\n", " Once \n", 7},
                 {"<m>Once \n<e>", "Once \n", 9},
                 {"Once<m>Once<e>", "Once", 11},
                 {"<m>else<e>", "Once", 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_int_equal(td_api_continue_at(cases[i].text, strlen(cases[i].text), cases[i].content), cases[i].at);
    enum { LONG = 4 << 20 };
    char *text = malloc(LONG + 1),
         *content = malloc(LONG / 2 + 1); /* no hours for a text that nearly matches anywhere */
    assert_true(text && content);
    memset(text, 'a', LONG);
    memset(content, 'a', LONG / 2);
    text[LONG] = content[LONG / 2] = '\0';
    content[LONG / 2 - 1] = 'b';
    assert_int_equal(td_api_continue_at(text, LONG, content), 0);
    free(text);
    free(content);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(calls_that_are_required),
        cmocka_unit_test(a_format_beside_tools_leaves_room_for_calls),
        cmocka_unit_test(tools_that_may_be_called_or_not),
        cmocka_unit_test(a_conversation_with_calls_and_results_goes_on),
        cmocka_unit_test(formats_hold),
        cmocka_unit_test(formats_that_cannot_be_met_are_refused),
        cmocka_unit_test(markers_mean_what_was_asked_for),
        cmocka_unit_test(a_message_can_be_continued),
        cmocka_unit_test(where_a_message_is_cut_to_be_continued),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
