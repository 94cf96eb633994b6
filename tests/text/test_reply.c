/* test_reply.c - the interface of replies: formats, options, events and their time, errors, plain text, messages. */
#include "test_reply_util.h"

#include "base/file.h"
#include "text/reply_message.h"

/* ---- which format ---- */

static td_reply_format of_fixture(const char *family, const char *name) {
    char path[1024], *text;
    size_t size;
    td_error err;
    snprintf(path, sizeof path, TD_FIXTURES "/templates/%s.jinja", name);
    if (td_file_read(path, 1 << 20, &text, &size, &err) != TD_OK)
        fail_msg("%s", err.message);
    td_reply_format f = td_reply_format_choose(family, text);
    td_free(text);
    return f;
}

static void formats_of_templates(void **state) {
    (void)state;
    static const struct {
        const char *family, *fixture;
        td_reply_format expected;
    } fixtures[] = {
        {"gemma4", "gemma4", GEMMA4},
        {"gemma4", "gemma4_demo", PLAIN},
        {"qwen35", "qwen35", QWEN},
        {NULL, "qwen35", QWEN},
        {"mistral", "mistral", {TD_REPLY_THINK_NONE, TD_REPLY_CALLS_JSON}},
        {"llama", "llama31", {TD_REPLY_THINK_NONE, TD_REPLY_CALLS_JSON}},
        {"deepseek", "deepseek_r1", {TD_REPLY_THINK_TAGS, TD_REPLY_CALLS_NONE}},
    };
    for (size_t i = 0; i < sizeof fixtures / sizeof *fixtures; i++) {
        td_reply_format f = of_fixture(fixtures[i].family, fixtures[i].fixture), e = fixtures[i].expected;
        if (f.think != e.think || f.calls != e.calls)
            fail_msg("%s: thoughts %d, calls %d", fixtures[i].fixture, (int)f.think, (int)f.calls);
    }
    static const struct {
        const char *family, *text;
        td_reply_format expected;
    } texts[] = {
        {"gemma4", NULL, PLAIN},
        {"qwen35", "", PLAIN},
        {"qwen35", "<tool_call> {{ x }}", {TD_REPLY_THINK_NONE, TD_REPLY_CALLS_QWEN}},
        {"Qwen3_5_moe", "<tool_call></think>", QWEN},
        {"other", "<tool_call> {{ x }}", {TD_REPLY_THINK_NONE, TD_REPLY_CALLS_JSON}},
        {"gemma4", "<|channel>thought", {TD_REPLY_THINK_CHANNEL, TD_REPLY_CALLS_NONE}},
        {"qwen35", "tool_calls \"name\" \"arguments\"", {TD_REPLY_THINK_NONE, TD_REPLY_CALLS_JSON}},
        {"qwen35", "\"name\" \"arguments\"", PLAIN},
        {"qwen35", "\"name\" tool_calls", PLAIN},
        {"qwen35", "\"arguments\" tool_calls", PLAIN},
    };
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        td_reply_format f = td_reply_format_choose(texts[i].family, texts[i].text), e = texts[i].expected;
        if (f.think != e.think || f.calls != e.calls)
            fail_msg("%s: thoughts %d, calls %d", texts[i].text, (int)f.think, (int)f.calls);
    }
}

static void prompts_that_open_the_thoughts(void **state) {
    (void)state;
    static const struct {
        td_reply_format format;
        const char *prompt;
        bool opens;
    } rows[] = {
        {QWEN, "<|im_start|>assistant\n<think>\n", true},
        {QWEN, "<|im_start|>assistant\n<think>\n\n</think>\n\n", false},
        {QWEN, "<|im_start|>assistant\n", false},
        {QWEN, "<think>", true},
        {QWEN, "hink>", false},
        {QWEN, "", false},
        {GEMMA4, "<|turn>model\n<|channel>thought\n", true},
        {GEMMA4, "<|turn>model\n<|channel>thought\n<channel|>", false},
        {GEMMA4, "<|turn>model\n<think>\n", false},
        {PLAIN, "<think>\n", false},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        assert_int_equal(td_reply_prompt_opens_reasoning(rows[i].format, rows[i].prompt, strlen(rows[i].prompt)),
                         rows[i].opens);
}

/* ---- plain, and thoughts without calls ---- */

static const reply_case plain[] = {
    {"everything is content", PLAIN, " \n<think>\n<tool_call>{}</tool_call><|channel>[\n \n",
     "[C] \n<think>\n<tool_call>{}</tool_call><|channel>[\n \n", NULL, false},
    {"inside is nothing", PLAIN, "a</think>b", "[C]a</think>b", NULL, true},
    {"tags, no calls",
     {TD_REPLY_THINK_TAGS, TD_REPLY_CALLS_NONE},
     "<think>a</think><tool_call>{}</tool_call>",
     "[R]a[C]<tool_call>{}</tool_call>",
     NULL,
     false},
    {"channel, no calls",
     {TD_REPLY_THINK_CHANNEL, TD_REPLY_CALLS_NONE},
     "<|channel>thought\na<channel|>call:f{}",
     "[R]a[C]call:f{}",
     NULL,
     false},
    {"calls, no thoughts",
     {TD_REPLY_THINK_NONE, TD_REPLY_CALLS_QWEN},
     "<think>a</think><tool_call>{\"name\":\"f\"}</tool_call>",
     "[C]<think>a</think>[T f]{}[.]",
     NULL,
     true},
};

static void plain_text_of_any_cut(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof plain / sizeof *plain; i++) {
        const reply_case c = plain[i]; /* run_case would look for markers of formats that are off */
        size_t n = strlen(c.text);
        for (size_t cut = 0; cut <= n; cut++) {
            transcript t;
            transcript_init(&t);
            assert_int_equal(run_pieces(&c, NULL, c.text, n, &cut, 1, &t), TD_OK);
            if (strcmp(t.text.data, c.expected) != 0)
                fail_msg("%s, cut at %zu: got %s", c.name, cut, t.text.data);
            transcript_free(&t);
        }
    }
}

static void text_may_hold_nul(void **state) {
    (void)state;
    const reply_case c = {"nul", GEMMA4, "", "", NULL, false};
    static const char text[] = "a\0b<|tool_call>call:f{s:<|\"|>\0<|\"|>}<tool_call|>",
                      expected[] = "[C]a\0b[T f]{\"s\":\"\\u0000\"}[.]";
    transcript t;
    transcript_init(&t);
    t.unchecked = true; /* the strict reader has no U+0000 */
    assert_int_equal(run_pieces(&c, NULL, text, sizeof text - 1, NULL, 0, &t), TD_OK);
    assert_int_equal(t.text.size, sizeof expected - 1);
    assert_memory_equal(t.text.data, expected, sizeof expected - 1);
    transcript_free(&t);
}

/* ---- when things come ---- */

typedef struct moment {
    const char *piece, *shown; /* the transcript after it */
} moment;

static void expect_moments(const char *name, td_reply_format format, const char *tools, bool inside,
                           const moment *moments, size_t n) {
    const reply_case c = {name, format, "", "", tools, inside};
    json_t *json = tools_of(&c);
    td_reply *r;
    td_error err;
    transcript t;
    transcript_init(&t);
    assert_int_equal(td_buf_puts(&t.text, ""), TD_OK);
    td_reply_options opt = {
        .format = format, .inside_reasoning = inside, .tools = json, .on_event = transcript_event, .user = &t};
    assert_int_equal(td_reply_open(&r, &opt, &err), TD_OK);
    for (size_t i = 0; i < n; i++) {
        assert_int_equal(td_reply_push(r, moments[i].piece, strlen(moments[i].piece), &err), TD_OK);
        if (strcmp(t.text.data, moments[i].shown) != 0)
            fail_msg("%s, after piece %zu:\n got      %s\n expected %s", name, i, t.text.data, moments[i].shown);
    }
    assert_int_equal(td_reply_finish(r, &err), TD_OK);
    td_reply_close(&r);
    transcript_free(&t);
    json_decref(json);
}

#define MOMENTS(name, format, tools, inside, ...)                                                                      \
    do {                                                                                                               \
        static const moment m_[] = {__VA_ARGS__};                                                                      \
        const td_reply_format f_ = format;                                                                             \
        expect_moments(name, f_, tools, inside, m_, sizeof m_ / sizeof *m_);                                           \
    } while (0)

static void text_comes_as_soon_as_it_is_certain(void **state) {
    (void)state;
    MOMENTS("content", GEMMA4, NULL, false, {"Hel", "[C]Hel"}, {"lo", "[C]Hello"}, {" ", "[C]Hello"},
            {"w", "[C]Hello w"}, {"<", "[C]Hello w"}, {"|", "[C]Hello w"}, {"t", "[C]Hello w"}, {"x", "[C]Hello w<|tx"},
            {"<|chan", "[C]Hello w<|tx"}, {"<", "[C]Hello w<|tx<|chan"});
    MOMENTS("thoughts", QWEN, NULL, true, {"a", "[R]a"}, {"\n", "[R]a"}, {"</thin", "[R]a"}, {"g", "[R]a\n</thing"},
            {"</think>", "[R]a\n</thing"}, {"\n\nb", "[R]a\n</thing[C]b"});
    MOMENTS("half a character", PLAIN, NULL, false, {"\xE2\x82", ""}, {"\xAC", "[C]\xE2\x82\xAC"});
    MOMENTS("Gemma's arguments", GEMMA4, NULL, false, {"<|tool_call>call:f", ""}, {"{", "[T f]{"}, {"a", "[T f]{"},
            {":", "[T f]{\"a\":"}, {"<|\"|>", "[T f]{\"a\":\""}, {"Par", "[T f]{\"a\":\"Par"},
            {"is", "[T f]{\"a\":\"Paris"}, {"<|\"", "[T f]{\"a\":\"Paris"}, {"|>", "[T f]{\"a\":\"Paris\""},
            {",n:12", "[T f]{\"a\":\"Paris\",\"n\":"}, {"}", "[T f]{\"a\":\"Paris\",\"n\":12}[.]"});
    MOMENTS("Qwen's arguments", QWEN,
            "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"o\":{\"type\":[\"string\","
            "\"null\"]}}}}]",
            false, {"<tool_call>\n<function=f", ""}, {">", "[T f]{"}, {"\n<parameter=s>", "[T f]{\"s\":\""},
            {"\nPar", "[T f]{\"s\":\"Par"}, {"\n", "[T f]{\"s\":\"Par"}, {"is", "[T f]{\"s\":\"Par\\nis"},
            {"\n</parameter>", "[T f]{\"s\":\"Par\\nis"}, {"\n<parameter=o>\n", "[T f]{\"s\":\"Par\\nis\",\"o\":"},
            {"nu", "[T f]{\"s\":\"Par\\nis\",\"o\":"}, {"t", "[T f]{\"s\":\"Par\\nis\",\"o\":\"nut"},
            {"\n</parameter></function>", "[T f]{\"s\":\"Par\\nis\",\"o\":\"nut\"}[.]"});
    MOMENTS("JSON's arguments", JSON_CALLS, NULL, false, {"<tool_call>{\"name\": \"f\", \"arguments\":", ""},
            {" {", "[T f]{"}, {"\"a\": [1", "[T f]{\"a\":[1"}, {", \"x", "[T f]{\"a\":[1,\"x"},
            {"\"]}", "[T f]{\"a\":[1,\"x\"]}"}, {"}", "[T f]{\"a\":[1,\"x\"]}[.]"});
    MOMENTS("an answer that is no call", JSON_CALLS, "[{\"name\":\"f\"}]", false, {"{\"na", ""},
            {"tion\"", "[C]{\"nation\""});
    MOMENTS("white space without end", QWEN, NULL, false, {"a", "[C]a"}, {"   ", "[C]a"});
}

static void white_space_is_held_up_to_its_limit(void **state) {
    (void)state;
    char spaces[TD_REPLY_MAX_GAP + 2];
    const reply_case c = {"gap", QWEN, "", "", NULL, false};
    memset(spaces, ' ', sizeof spaces);
    size_t cut = TD_REPLY_MAX_GAP;
    transcript t;
    transcript_init(&t);
    assert_int_equal(run_pieces(&c, NULL, spaces, TD_REPLY_MAX_GAP + 1, &cut, 1, &t), TD_OK);
    assert_int_equal(t.says[TD_REPLY_CONTENT].size, TD_REPLY_MAX_GAP + 1);
    transcript_free(&t);
}

/* ---- ids, messages ---- */

static const char answer[] = "<|channel>thought\nhm<channel|>A\n<|tool_call>call:f{a:1}call:g{b:<tool_call|>B";

static void a_message_adds_the_events_up(void **state) {
    (void)state;
    td_reply *r;
    td_error err;
    td_reply_message m;
    td_reply_message_init(&m, 1000);
    td_reply_options opt = {
        .format = GEMMA4, .id_prefix = "chat-7-", .first_id = 40, .on_event = td_reply_message_event, .user = &m};
    assert_int_equal(td_reply_open(&r, &opt, &err), TD_OK);
    for (size_t i = 0; i < sizeof answer - 1; i++)
        assert_int_equal(td_reply_push(r, answer + i, 1, &err), TD_OK);
    assert_int_equal(td_reply_finish(r, &err), TD_OK);
    td_reply_close(&r);
    assert_string_equal(m.reasoning.data, "hm");
    assert_string_equal(m.content.data, "A\nB");
    assert_int_equal(m.n_calls, 2);
    assert_string_equal(m.calls[0].id, "chat-7-40");
    assert_string_equal(m.calls[0].name, "f");
    assert_string_equal(m.calls[0].arguments.data, "{\"a\":1}");
    assert_true(m.calls[0].complete);
    assert_string_equal(m.calls[1].id, "chat-7-41");
    assert_string_equal(m.calls[1].arguments.data, "{\"b\":");
    assert_false(m.calls[1].complete);
    assert_string_equal(m.calls[1].fault.message,
                        "call of g: byte 75 of the answer: the block ended inside the arguments");
    assert_int_equal(m.calls[1].fault.position, 75);
    assert_int_equal(m.n_incomplete, 1);
    assert_true(m.finished);
    assert_false(m.in_reasoning);
    td_reply_message_free(&m);
    assert_int_equal(m.n_calls, 0);
}

static td_status message_of(const char *text, size_t ceiling, size_t n_calls) {
    td_reply *r;
    td_error err;
    td_reply_message m;
    td_reply_message_init(&m, ceiling);
    td_reply_options opt = {.format = GEMMA4, .on_event = td_reply_message_event, .user = &m};
    td_status st = td_reply_open(&r, &opt, &err);
    if (st == TD_OK)
        st = td_reply_push(r, text, strlen(text), &err);
    if (st == TD_OK)
        st = td_reply_finish(r, &err);
    if (st == TD_OK)
        assert_int_equal(m.n_calls, n_calls);
    td_reply_close(&r);
    td_reply_message_free(&m);
    return st;
}

static void a_message_has_a_ceiling_and_survives_failure(void **state) {
    (void)state;
    assert_int_equal(message_of(answer, 6, 0), TD_E_LIMIT);
    assert_int_equal(message_of(answer, 7, 2), TD_OK);
    for (long k = 0;; k++) {
        long live = td_alloc_live();
        td_alloc_fail_at(k);
        td_status st = message_of(answer, 100, 2);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        assert_int_equal(st, struck ? TD_E_NOMEM : TD_OK);
        assert_int_equal(td_alloc_live(), live);
        if (!struck)
            break;
    }
}

/* ---- errors ---- */

static td_status stop_at(void *user, const td_reply_event *e) {
    return (int)e->kind == *(int *)user ? TD_E_CANCELLED : TD_OK;
}

static void the_receiver_can_stop_it(void **state) {
    (void)state;
    for (int kind = TD_REPLY_REASONING; kind <= TD_REPLY_FINISH; kind++) {
        td_reply *r;
        td_error err;
        td_reply_options opt = {.format = GEMMA4, .on_event = stop_at, .user = &kind};
        assert_int_equal(td_reply_open(&r, &opt, &err), TD_OK);
        td_status st = td_reply_push(r, answer, sizeof answer - 1, &err);
        if (st == TD_OK)
            st = td_reply_finish(r, &err);
        assert_int_equal(st, TD_E_CANCELLED);
        assert_non_null(strstr(err.message, "the receiver of a reply's events stopped it"));
        assert_int_equal(td_reply_push(r, "x", 1, &err), TD_E_CANCELLED);
        assert_int_equal(td_reply_finish(r, &err), TD_E_CANCELLED);
        td_reply_close(&r);
    }
}

static void misuse_is_an_error(void **state) {
    (void)state;
    td_reply *r = (td_reply *)state;
    td_error err;
    td_reply_options opt = {.format = QWEN};
    int never = -1;
    assert_int_equal(td_reply_open(&r, &opt, &err), TD_E_ARG);
    assert_null(r);
    td_reply_close(&r);
    td_reply_close(NULL);
    opt.on_event = stop_at;
    opt.user = &never;
    assert_int_equal(td_reply_open(&r, &opt, &err), TD_OK);
    assert_int_equal(td_reply_finish(r, &err), TD_OK);
    assert_int_equal(td_reply_finish(r, &err), TD_E_ARG);
    assert_int_equal(td_reply_push(r, "x", 1, &err), TD_E_ARG);
    assert_string_equal(err.message, "this reply has been finished");
    td_reply_close(&r);
}

static void tools_are_checked(void **state) {
    (void)state;
    static const struct {
        const char *json;
        td_status status;
        const char *message;
    } rows[] = {
        {"[]", TD_OK, ""},
        {"[{\"name\":\"a\"},{\"name\":\"a\"}]", TD_OK, ""},
        {"[{\"name\":\"a\",\"parameters\":{\"properties\":[]}}]", TD_OK, ""},
        {"[{\"name\":\"a\",\"parameters\":7}]", TD_OK, ""},
        {"[{\"name\":\"a\",\"parameters\":{\"properties\":{\"x\":1,\"y\":{\"type\":7},\"z\":{\"type\":[7,\"string\"]}}}"
         "}]",
         TD_OK, ""},
        {"{}", TD_E_ARG, "tools: expected an array"},
        {"[{\"name\":\"a\"},{}]", TD_E_ARG, "tools[1]: expected a function with a name"},
        {"[1]", TD_E_ARG, "tools[0]: expected a function with a name"},
        {"[{\"name\":\"\"}]", TD_E_ARG, "tools[0]: expected a function with a name"},
        {"[{\"type\":\"function\",\"function\":{\"name\":1}}]", TD_E_ARG, "tools[0]: expected a function with a name"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const reply_case c = {"tools", QWEN, "", "", rows[i].json, false};
        json_t *json = tools_of(&c);
        int never = -1;
        td_reply *r;
        td_error err = {0};
        td_reply_options opt = {.format = QWEN, .tools = json, .on_event = stop_at, .user = &never};
        assert_int_equal(td_reply_open(&r, &opt, &err), rows[i].status);
        assert_int_equal(r != NULL, rows[i].status == TD_OK);
        assert_string_equal(err.message, rows[i].message);
        td_reply_close(&r);
        json_decref(json);
    }
}

static td_status open_with(json_t *tools, td_error *err) {
    int never = -1;
    td_reply *r;
    td_reply_options opt = {.format = QWEN, .tools = tools, .on_event = stop_at, .user = &never};
    td_status st = td_reply_open(&r, &opt, err);
    td_reply_close(&r);
    return st;
}

static void tools_have_limits(void **state) {
    (void)state;
    td_error err;
    json_t *tools = json_array();
    for (int i = 0; i < TD_REPLY_MAX_TOOLS; i++)
        json_array_append_new(tools, json_pack("{s:s}", "name", "f"));
    assert_int_equal(open_with(tools, &err), TD_OK);
    json_array_append_new(tools, json_pack("{s:s}", "name", "f"));
    assert_int_equal(open_with(tools, &err), TD_E_LIMIT);
    assert_string_equal(err.message, "tools: 4097 of them, at most 4096 are allowed");
    json_decref(tools);
    char name[TD_REPLY_MAX_NAME + 2] = {0};
    memset(name, 'x', TD_REPLY_MAX_NAME);
    tools = json_pack("[{s:s}]", "name", name);
    assert_int_equal(open_with(tools, &err), TD_OK);
    json_decref(tools);
    name[TD_REPLY_MAX_NAME] = 'x';
    tools = json_pack("[{s:s}]", "name", name);
    assert_int_equal(open_with(tools, &err), TD_E_LIMIT);
    json_decref(tools);
    json_t *properties = json_object();
    for (int i = 0; i <= TD_REPLY_MAX_PARAMETERS; i++) {
        snprintf(name, sizeof name, "p%d", i);
        json_object_set_new(properties, name, json_object());
    }
    tools = json_pack("[{s:s,s:{s:o}}]", "name", "f", "parameters", "properties", properties);
    assert_int_equal(open_with(tools, &err), TD_E_LIMIT);
    json_object_del(properties, "p7");
    assert_int_equal(open_with(tools, &err), TD_OK);
    json_decref(tools);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(formats_of_templates),
        cmocka_unit_test(prompts_that_open_the_thoughts),
        cmocka_unit_test(plain_text_of_any_cut),
        cmocka_unit_test(text_may_hold_nul),
        cmocka_unit_test(text_comes_as_soon_as_it_is_certain),
        cmocka_unit_test(white_space_is_held_up_to_its_limit),
        cmocka_unit_test(a_message_adds_the_events_up),
        cmocka_unit_test(a_message_has_a_ceiling_and_survives_failure),
        cmocka_unit_test(the_receiver_can_stop_it),
        cmocka_unit_test(misuse_is_an_error),
        cmocka_unit_test(tools_are_checked),
        cmocka_unit_test(tools_have_limits),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
