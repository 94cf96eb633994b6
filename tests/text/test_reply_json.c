/* test_reply_json.c - calls written as JSON behind any of the usual markers, or as the answer itself; and an answer in
 * JSON that is no call. */
#include "test_reply_util.h"

static const char tools[] =
    "[{\"name\": \"f\", \"parameters\": {}}, {\"type\": \"function\", \"function\": {\"name\": \"g\"}}]";

static const reply_case marked[] = {
    {"Hermes", JSON_CALLS, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n</tool_call>",
     "[T f]{\"a\":1}[.]", NULL, false},
    {"Mistral", JSON_CALLS,
     "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": 1}, \"id\": \"abc123def\"}, {\"name\": \"g\"}]",
     "[T f]{\"a\":1}[.][T g]{}[.]", NULL, false},
    {"Mistral, text before", JSON_CALLS, "Hm [x] [TOOL] [TOOL_CALLS][{\"name\": \"f\"}]", "[C]Hm [x] [TOOL][T f]{}[.]",
     NULL, false},
    {"Llama", JSON_CALLS, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "[T f]{}[.]", NULL, false},
    {"Llama, two", JSON_CALLS, "<|python_tag|>{\"name\": \"f\"}; {\"name\": \"g\"}", "[T f]{}[.][T g]{}[.]", NULL,
     false},
    {"thoughts first", JSON_CALLS, "<think>hm</think>\n<tool_call>{\"name\": \"f\"}</tool_call>ok",
     "[R]hm[T f]{}[.][C]ok", NULL, false},
    {"text in an array behind a call", JSON_CALLS, "[TOOL_CALLS][{\"name\": \"f\"}, ok]", "[T f]{}[.][C], ok]", NULL,
     false},
};

static const reply_case bare[] = {
    {"a call", JSON_CALLS, "{\"name\": \"f\", \"parameters\": {\"a\": [1]}}", "[T f]{\"a\":[1]}[.]", tools, false},
    {"arguments first", JSON_CALLS, "\n {\"type\": \"function\", \"arguments\": {}, \"name\": \"g\"}\n", "[T g]{}[.]",
     tools, false},
    {"an array", JSON_CALLS, "[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": {}}]",
     "[T f]{}[.][T g]{}[.]", tools, false},
    {"several", JSON_CALLS, "{\"name\": \"f\", \"arguments\": {}}; {\"name\": \"g\", \"arguments\": {}}\nDone.",
     "[T f]{}[.][T g]{}[.][C]Done.", tools, false},
    {"behind the thoughts", JSON_CALLS, "hm</think>\n\n{\"name\": \"f\", \"arguments\": {}}", "[R]hm[T f]{}[.]", tools,
     true},
    {"without tools", JSON_CALLS, "{\"name\": \"f\", \"arguments\": {}}", "[C]{\"name\": \"f\", \"arguments\": {}}",
     NULL, false},
    {"a name that is no tool", JSON_CALLS, "{\"name\": \"Bob\", \"arguments\": {}}",
     "[C]{\"name\": \"Bob\", \"arguments\": {}}", tools, false},
    {"an answer with a name", JSON_CALLS, "{\"name\": \"f\", \"age\": 3}", "[C]{\"name\": \"f\", \"age\": 3}", tools,
     false},
    {"an answer with nothing but a name", JSON_CALLS, "{\"name\": \"f\"}", "[C]{\"name\": \"f\"}", tools, false},
    {"an answer in JSON", JSON_CALLS, "{\"a\": [{\"name\": \"f\"}]}", "[C]{\"a\": [{\"name\": \"f\"}]}", tools, false},
    {"an array in JSON", JSON_CALLS, "[1, 2]", "[C][1, 2]", tools, false},
    {"an array of arrays", JSON_CALLS, "[[{\"name\": \"f\"}]]", "[C][[{\"name\": \"f\"}]]", tools, false},
    {"an opening bracket", JSON_CALLS, "[", "[C][", tools, false},
    {"a bracket and the start of a marker", JSON_CALLS, "[TOOL", "[C][TOOL", tools, false},
    {"behind an empty block", JSON_CALLS, "<tool_call></tool_call>{\"a\": 1}", "[C]{\"a\": 1}", tools, false},
    {"a bracket and almost a marker", JSON_CALLS, "[TOO much", "[C][TOO much", tools, false},
    {"a call behind a call", JSON_CALLS, "<tool_call>{\"name\": \"f\"}</tool_call>{\"name\": \"g\", \"arguments\": {}}",
     "[T f]{}[.][T g]{}[.]", tools, false},
    {"in the middle of the answer", JSON_CALLS, "So: {\"name\": \"f\", \"arguments\": {}}",
     "[C]So: {\"name\": \"f\", \"arguments\": {}}", tools, false},
    {"cut off", JSON_CALLS, "{\"name\": \"f\", \"argu", "[C]{\"name\": \"f\", \"argu", tools, false},
    {"cut off inside the arguments", JSON_CALLS, "{\"name\": \"f\", \"arguments\": {\"a\"", "[T f]{\"a\"[!]", tools,
     false},
    {"a marker inside an answer", JSON_CALLS, "{\"name\": \"</think>", "[C]{\"name\": \"", tools, false},
    {"a marked call behind an answer in JSON", JSON_CALLS, "[1] <tool_call>{\"name\": \"f\"}</tool_call>",
     "[C][1][T f]{}[.]", tools, false},
};

static void marked_calls_of_any_cut(void **state) {
    (void)state;
    RUN_TABLE(marked)
}

static void bare_calls_of_any_cut(void **state) {
    (void)state;
    RUN_TABLE(bare)
}

static void no_allocation_failure_leaks(void **state) {
    (void)state;
    SWEEP_TABLE(marked)
    SWEEP_TABLE(bare)
}

/* Every state of the number, literal and string machines, through the arguments of a call. */
static void json_is_read_strictly(void **state) {
    (void)state;
    static const struct {
        const char *json;
        bool good;
    } values[] = {
        {"0", true},      {"-0", true},          {"10", true},         {"1.5", true},
        {"1e5", true},    {"1E+5", true},        {"1e-05", true},      {"-1.50e10", true},
        {"01", false},    {"-", false},          {"1.", false},        {".5", false},
        {"1e", false},    {"1e+", false},        {"+1", false},        {"0x1", false},
        {"1 2", false},   {"--1", false},        {"true", true},       {"false", true},
        {"null", true},   {"tru", false},        {"nulll", false},     {"True", false},
        {"\"\"", true},   {"\"\\u00E9\"", true}, {"\"\\u12\"", false}, {"\"\\u00\x10\x11\"", false},
        {"[]", true},     {"[1,]", false},       {"[,1]", false},      {"[1 2]", false},
        {"{}", true},     {"{\"a\":1,}", false}, {"{\"a\"}", false},   {"{a:1}", false},
        {"{1:1}", false}, {"[}", false},         {"{]", false},        {"{\"a\":{\"b\":[{}]}}", true},
        {"", false},      {"NaN", false},        {"'a'", false},
    };
    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        for (int space = 0; space < 2; space++) {
            char text[200];
            const reply_case c = {values[i].json, JSON_CALLS, "", "", NULL, false};
            transcript t;
            transcript_init(&t);
            const char *s = space ? " \n" : "";
            snprintf(text, sizeof text, "<tool_call>{\"name\":\"f\",\"arguments\":{\"v\":%s%s%s}}", s, values[i].json,
                     s);
            assert_int_equal(run_pieces(&c, NULL, text, strlen(text), NULL, 0, &t), TD_OK);
            if (t.n_calls != 1 || (t.n_incomplete == 0) != values[i].good)
                fail_msg("%s: %s", values[i].json, t.text.data);
            transcript_free(&t);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(marked_calls_of_any_cut),
        cmocka_unit_test(bare_calls_of_any_cut),
        cmocka_unit_test(no_allocation_failure_leaks),
        cmocka_unit_test(json_is_read_strictly),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
