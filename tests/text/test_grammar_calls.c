/* test_grammar_calls.c - forced tool calls: random walks through the grammar of each format are read back by a td_reply
 * of that format as complete calls, of tools that exist, with arguments that validate. */
#include "text/grammar_calls.h"
#include "text/test_json_schema_util.h"

static const char tools_text[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"get_weather\",\"parameters\":{\"type\":\"object\",\"properties\":"
    "{"
    "\"city\":{\"type\":\"string\"},\"days\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":14},\"unit\":{\"enum\":["
    "\"C\",\"F\"]}},"
    "\"required\":[\"city\"]}}},"
    "{\"type\":\"function\",\"function\":{\"name\":\"now\"}},"
    "{\"name\":\"store.put\",\"parameters\":{\"$defs\":{\"item\":{\"type\":\"object\",\"properties\":{\"id\":{\"type\":"
    "\"number\"},"
    "\"tags\":{\"type\":\"array\",\"items\":{\"type\":\"string\",\"maxLength\":6}},\"sub\":{\"anyOf\":[{\"$ref\":\"#/"
    "$defs/item\"},{\"type\":\"null\"}]}},"
    "\"required\":[\"id\"],\"additionalProperties\":false}},\"type\":\"object\",\"properties\":{\"item\":{\"$ref\":\"#/"
    "$defs/item\"},"
    "\"note\":{\"type\":[\"string\",\"null\"]},\"mode\":{\"type\":\"string\",\"enum\":[\"a<b\",\"x "
    "y\"]},\"code\":{\"type\":\"string\",\"pattern\":\"^[A-Z]{2}-[^x]+$\"},"
    "\"any\":{},\"force\":{\"type\":\"boolean\"},\"short\":{\"type\":\"string\",\"minLength\":2,\"maxLength\":9},"
    "\"odd\":{\"type\":\"object\",\"properties\":{\"a b\":{\"const\":[1,\"z\"]}},"
    "\"required\":[\"a "
    "b\"],\"additionalProperties\":{\"type\":\"integer\"}}},\"required\":[\"item\",\"odd\",\"note\"]}}]";

static const td_reply_format gemma = {TD_REPLY_THINK_CHANNEL, TD_REPLY_CALLS_GEMMA4};
static const td_reply_format qwen = {TD_REPLY_THINK_TAGS, TD_REPLY_CALLS_QWEN};
static const td_reply_format json = {TD_REPLY_THINK_TAGS, TD_REPLY_CALLS_JSON};

static td_tokenizer *tok;
static td_token_trie *trie;
static json_t *tools;

static int setup(void **state) {
    (void)state;
    static const char *const special[] = {"<end>",      "<|tool_call>", "<tool_call|>", "<|\"|>",
                                          "<|channel>", "<channel|>",   "[TOOL_CALLS]"};
    tok = make_tokenizer(special, 7, json_texts, N_JSON_TEXTS);
    trie = make_trie(tok);
    tools = parse_json(tools_text);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    json_decref(tools);
    td_token_trie_close(&trie);
    td_tokenizer_close(&tok);
    return 0;
}

/* What came out of a reply. */
typedef struct heard {
    td_buf content, reasoning, arguments, last;
    size_t n_calls;
    const char *text; /* the whole, for messages */
} heard;

static const json_t *parameters_of(const char *name) {
    json_t *tool;
    size_t i;
    json_array_foreach(tools, i, tool) {
        json_t *f = json_object_get(tool, "function") ? json_object_get(tool, "function") : tool;
        if (strcmp(json_string_value(json_object_get(f, "name")), name) == 0)
            return json_object_get(f, "parameters") ? json_object_get(f, "parameters") : json_true();
    }
    fail_msg("no tool %s", name);
    return NULL;
}

static td_status hear(void *user, const td_reply_event *e) {
    heard *h = user;
    switch (e->kind) {
    case TD_REPLY_CONTENT:
        return td_buf_append(&h->content, e->text, e->size);
    case TD_REPLY_REASONING:
        return td_buf_append(&h->reasoning, e->text, e->size);
    case TD_REPLY_CALL_BEGIN:
        td_buf_clear(&h->arguments);
        td_buf_clear(&h->last);
        return td_buf_puts(&h->last, e->name);
    case TD_REPLY_CALL_ARGUMENTS:
        return td_buf_append(&h->arguments, e->text, e->size);
    case TD_REPLY_CALL_END: {
        json_error_t error;
        if (!e->complete)
            fail_msg("%s: ...%.200s", e->fault->message,
                     h->text + (e->fault->position > 150 ? e->fault->position - 150 : 0));
        json_t *v = json_loads(td_buf_str(&h->arguments), 0, &error);
        const json_t *schema = parameters_of(e->name);
        if (!v || !json_is_object(v) || !valid(schema, schema, v))
            fail_msg("%s: %s in\n%s", v ? "not valid" : error.text, td_buf_str(&h->arguments), h->text);
        json_decref(v);
        h->n_calls++;
        return TD_OK;
    }
    default:
        return TD_OK;
    }
}

static void read_back(td_reply_format format, bool inside, const td_buf *text, heard *h) {
    td_reply *r;
    td_error err;
    td_buf *const bufs[] = {&h->content, &h->reasoning, &h->arguments, &h->last};
    *h = (heard){.text = text->data};
    for (size_t i = 0; i < 4; i++)
        td_buf_init(bufs[i], 1 << 24);
    td_reply_options opt = {.format = format, .inside_reasoning = inside, .tools = tools, .on_event = hear, .user = h};
    assert_int_equal(td_reply_open(&r, &opt, &err), TD_OK);
    assert_int_equal(td_reply_push(r, text->data, text->size, &err), TD_OK);
    assert_int_equal(td_reply_finish(r, &err), TD_OK);
    td_reply_close(&r);
}

static void free_heard(heard *h) {
    td_buf_free(&h->content);
    td_buf_free(&h->reasoning);
    td_buf_free(&h->arguments);
    td_buf_free(&h->last);
}

static td_grammar *make(const td_grammar_calls_options *opt) {
    td_grammar *g;
    td_error err;
    if (td_grammar_from_tools(&g, trie, opt, &err) != TD_OK)
        fail_msg("%s", err.message);
    return g;
}

/* A walk's text, without the end token's name. */
static void walk_text(uint64_t seed, td_grammar *g, td_buf *out) {
    dice d = {.seed = seed};
    td_buf_init(out, 1 << 24);
    random_walk(&d, g, 10 + 40 * (seed % 8), out);
}

static void round_trip(td_grammar_calls_options opt, uint64_t seeds) {
    td_grammar *g = make(&opt);
    size_t several = 0, named = 0;
    for (uint64_t seed = 0; seed < seeds; seed++) {
        td_buf text;
        heard h;
        walk_text(seed, g, &text);
        read_back(opt.format, opt.grammar.inside_reasoning, &text, &h);
        if (h.content.size > 0)
            fail_msg("content %s in\n%s", td_buf_str(&h.content), td_buf_str(&text));
        assert_true(h.n_calls >= 1);
        assert_true(opt.parallel || h.n_calls == 1);
        several += h.n_calls > 1;
        named += strcmp(td_buf_str(&h.last), "store.put") == 0;
        assert_true(!opt.name || strcmp(td_buf_str(&h.last), opt.name) == 0);
        free_heard(&h);
        td_buf_free(&text);
    }
    assert_true(!opt.parallel || several > 0);
    assert_true(named > 0);
    td_grammar_close(&g);
}

static void gemma4_round_trips(void **state) {
    (void)state;
    round_trip((td_grammar_calls_options){.format = gemma, .tools = tools, .parallel = true}, 60);
    round_trip((td_grammar_calls_options){.format = gemma, .tools = tools, .name = "store.put"}, 60);
}

static void qwen_round_trips(void **state) {
    (void)state;
    round_trip((td_grammar_calls_options){.format = qwen, .tools = tools, .parallel = true}, 60);
    round_trip((td_grammar_calls_options){.format = qwen, .tools = tools, .name = "store.put"}, 60);
}

static void json_round_trips(void **state) {
    (void)state;
    static const char *const templates[] = {"... <tool_call> ...", "... [TOOL_CALLS] ...", "... <|python_tag|> ...",
                                            "bare", NULL};
    for (size_t i = 0; i < 5; i++) {
        td_grammar_calls_options opt = {
            .format = json, .tools = tools, .parallel = true, .chat_template = templates[i]};
        round_trip(opt, 24);
        opt.parallel = false;
        opt.name = "store.put";
        round_trip(opt, 24);
    }
}

/* Beside a schema: calls alone or a text under it alone, and both happen. */
static void a_text_may_come_instead(void **state) {
    (void)state;
    json_t *schema =
        parse_json("{\"type\":\"object\",\"properties\":{\"ok\":{\"type\":\"boolean\"}},\"required\":[\"ok\"]}");
    const td_reply_format formats[] = {gemma, qwen, json, json};
    for (size_t i = 0; i < 4; i++) {
        td_grammar_calls_options opt = {.format = formats[i],
                                        .tools = tools,
                                        .or_schema = schema,
                                        .parallel = i % 2,
                                        .chat_template = i == 3 ? "bare" : NULL,
                                        .grammar = {.think = formats[i].think, .inside_reasoning = i % 2}};
        td_grammar *g = make(&opt);
        size_t texts = 0, calls = 0;
        for (uint64_t seed = 0; seed < 40; seed++) {
            td_buf text;
            heard h;
            walk_text(seed, g, &text);
            read_back(opt.format, opt.grammar.inside_reasoning, &text, &h);
            if ((h.content.size > 0) == (h.n_calls > 0))
                fail_msg("neither calls nor a text:\n%s", td_buf_str(&text));
            if (h.content.size > 0) {
                json_t *said = parse_json(td_buf_str(&h.content));
                assert_int_equal(json_object_size(said), 1);
                assert_true(json_is_boolean(json_object_get(said, "ok")));
                json_decref(said);
            }
            texts += h.content.size > 0;
            calls += h.n_calls > 0;
            free_heard(&h);
            td_buf_free(&text);
        }
        assert_true(texts > 0 && calls > 0);
        td_grammar_close(&g);
    }
    json_decref(schema);
}

static void thoughts_come_first(void **state) {
    (void)state;
    const td_reply_format formats[] = {gemma, qwen, json};
    for (size_t i = 0; i < 6; i++) {
        td_grammar_calls_options opt = {.format = formats[i / 2], .tools = tools, .name = "store.put"};
        opt.grammar.think = opt.format.think;
        opt.grammar.inside_reasoning = i % 2;
        round_trip(opt, 16);
    }
}

static void calls_look_as_models_write_them(void **state) {
    (void)state;
    td_grammar_calls_options opt = {.format = qwen, .tools = tools};
    td_grammar *g = make(&opt);
    check_fits(g,
               "<tool_call>\n<function=get_weather>\n<parameter=city>\nS\xC3\xA3o "
               "<b>Paulo</b>\n</parameter>\n<parameter=days>\n3\n"
               "</parameter>\n</function>\n</tool_call>",
               2);
    check_fits(g, "<tool_call>\n<function=now>\n</function>\n</tool_call>", 2);
    check_fits(g, "<tool_call>\n<function=get_weather>\n</function>", 0);
    check_fits(g, "<tool_call>\n<function=get_weather>\n<parameter=city>\nx\n</parameter>\n<parameter=days>\n15", 0);
    check_fits(g, "Sure", 0);
#define ODD(text)                                                                                                      \
    "<tool_call>\n<function=store.put>\n<parameter=item>\n{\"id\":1,\"tags\":[\"" text                                 \
    "\"]}\n</parameter>\n<parameter=note>\nn\n"                                                                        \
    "</parameter>\n<parameter=any>\n{\"k\":\"" text "\"}\n</parameter>\n"
    check_fits(g, ODD("a > b"), 1);
    check_fits(g, ODD("</pa"), 0); /* a tag inside JSON would end the parameter */
    check_fits(g, ODD("\\u003c/"), 1);
#undef ODD
    td_grammar_close(&g);
    opt.format = json;
    opt.chat_template = "<tool_call>";
    g = make(&opt);
    check_fits(
        g,
        "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Oslo\", \"unit\": \"C\"}}\n</tool_call>",
        2);
    td_grammar_close(&g);
    opt.format = gemma;
    g = make(&opt);
    td_grammar_state *s = make_state(g);
    static const char *const special[] = {"<|tool_call>", "<|\"|>", "<|\"|>", "<tool_call|>"};
    static const char *const between[] = {"", "call:get_weather{city:", "Oslo \"x\" <|", "}"};
    td_error err;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(td_grammar_state_advance_text(s, between[i], strlen(between[i]), &err), TD_OK);
        assert_int_equal(td_grammar_state_advance(s, td_tokenizer_find(tok, special[i], strlen(special[i])), &err),
                         TD_OK);
    }
    assert_true(td_grammar_state_must_end(s));
    td_grammar_state_close(&s);
    td_grammar_close(&g);
}

static void check_error(td_grammar_calls_options opt, const char *text, td_status status, const char *message) {
    td_grammar *g;
    td_error err;
    json_t *own = text ? parse_json(text) : NULL;
    opt.tools = own;
    assert_int_equal(td_grammar_from_tools(&g, trie, &opt, &err), status);
    assert_string_equal(err.message, message);
    assert_null(g);
    json_decref(own);
}

static void errors_name_the_tool(void **state) {
    (void)state;
    td_grammar_calls_options opt = {.format = qwen};
    check_error(opt, "[]", TD_E_ARG, "tool_choice: a call is asked for, and there are no tools");
    check_error(opt, NULL, TD_E_ARG, "tool_choice: a call is asked for, and there are no tools");
    check_error(opt, "[{}]", TD_E_ARG, "tools[0]: expected a function with a name");
    check_error(opt, "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a\":{\"not\":{}}}}}]",
                TD_E_UNSUPPORTED, "tool f: schema /properties/a: the keyword \"not\" is not supported");
    check_error(opt, "[{\"name\":\"f\",\"parameters\":{\"type\":\"string\"}}]", TD_E_FORMAT,
                "tool f: schema: the parameters of a tool must be an object");
    check_error(
        opt,
        "[{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{\"a b\":{}},\"required\":[\"a b\"]}}]",
        TD_E_UNSUPPORTED, "tool f: schema: the model's format of calls cannot spell the name of the parameter \"a b\"");
    check_error(opt, "[{\"name\":\"f g\"}]", TD_E_UNSUPPORTED,
                "tool f g: schema: the model's format of calls cannot spell this name");
    opt.name = "h";
    check_error(opt, "[{\"name\":\"f\"}]", TD_E_ARG, "tool_choice: there is no tool \"h\"");
    json_t *no_schema = parse_json("{\"type\":\"nothing\"}");
    opt = (td_grammar_calls_options){.format = qwen, .or_schema = no_schema};
    check_error(opt, "[{\"name\":\"f\"}]", TD_E_FORMAT,
                "schema: \"type\" is not object, array, string, number, integer, boolean, null, or a list of them");
    json_decref(no_schema);
    opt = (td_grammar_calls_options){.format = {TD_REPLY_THINK_NONE, TD_REPLY_CALLS_NONE}};
    check_error(opt, "[{\"name\":\"f\"}]", TD_E_UNSUPPORTED,
                "tool_choice: the model's chat template has no form for tool calls");
}

static void memory_may_fail_anywhere(void **state) {
    (void)state;
    const td_reply_format formats[] = {gemma, qwen, json};
    for (size_t i = 0; i < 3; i++) {
        td_grammar_calls_options opt = {.format = formats[i],
                                        .tools = tools,
                                        .name = "get_weather",
                                        .parallel = true,
                                        .or_schema = i == 1 ? parameters_of("get_weather") : NULL};
        long live = td_alloc_live();
        for (long k = 0;; k++) {
            td_grammar *g;
            td_error err;
            td_alloc_fail_at(k);
            td_status st = td_grammar_from_tools(&g, trie, &opt, &err);
            bool struck = td_alloc_failed();
            td_alloc_fail_at(-1);
            assert_int_equal(st, struck ? TD_E_NOMEM : TD_OK);
            td_grammar_close(&g);
            assert_int_equal(td_alloc_live(), live);
            if (!struck)
                break;
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemma4_round_trips),   cmocka_unit_test(qwen_round_trips),
        cmocka_unit_test(json_round_trips),     cmocka_unit_test(a_text_may_come_instead),
        cmocka_unit_test(thoughts_come_first),  cmocka_unit_test(calls_look_as_models_write_them),
        cmocka_unit_test(errors_name_the_tool), cmocka_unit_test(memory_may_fail_anywhere),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
