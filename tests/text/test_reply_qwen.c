/* test_reply_qwen.c - Qwen 3.5: <think> tags, XML calls with the types of a schema, and the JSON form of calls. */
#include "test_reply_util.h"

#define OPEN "<tool_call>\n<function="
#define CLOSE "\n</function>\n</tool_call>"
#define P(name, value) "\n<parameter=" name ">\n" value "\n</parameter>"

static const char tools[] =
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\",\"properties\":{"
    "\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},\"n\":{\"type\":\"number\"},\"b\":{\"type\":\"boolean\"},"
    "\"o\":{\"type\":\"object\"},\"a\":{\"type\":\"array\"},\"any\":{},\"sn\":{\"type\":[\"string\",\"null\"]},"
    "\"opt\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"null\"}]},"
    "\"si\":{\"anyOf\":[{\"type\":\"string\"},{\"type\":\"integer\"}]},"
    "\"bn\":{\"oneOf\":[{\"type\":\"boolean\"},{\"type\":\"null\"}]},"
    "\"e\":{\"enum\":[\"1\",\"2\"]},\"c\":{\"const\":\"7\"},\"ref\":{\"$ref\":\"#/$defs/T\"},"
    "\"all\":{\"allOf\":[{\"description\":\"x\"},{\"type\":\"string\"}]},"
    "\"loop\":{\"$ref\":\"#/$defs/L\"}},"
    "\"$defs\":{\"T\":{\"type\":\"string\"},\"L\":{\"anyOf\":[{\"$ref\":\"#/$defs/L\"},{\"$ref\":\"#/$defs/L\"}]}}}}},"
    "{\"name\":\"g\"}]";

/* ---- thoughts ---- */

static const reply_case thoughts[] = {
    {"inside from the start", QWEN, "I wonder.\n</think>\n\nParis.", "[R]I wonder.[C]Paris.", NULL, true},
    {"opened by the model", QWEN, "<think>\nI wonder.\n</think>\n\nParis.\n", "[R]I wonder.[C]Paris.\n", NULL, false},
    {"opened in the prompt and again", QWEN, "<think>\nA\n</think>\n\nB", "[R]A[C]B", NULL, true},
    {"empty", QWEN, "<think>\n\n</think>\n\nParis.", "[C]Paris.", NULL, false},
    {"empty, opened in the prompt", QWEN, "\n</think>\n\nParis.", "[C]Paris.", NULL, true},
    {"never closed", QWEN, "I wonder", "[R]I wonder[r]", NULL, true},
    {"lone close", QWEN, "</think>\n\nParis.", "[C]Paris.", NULL, false},
    {"close twice", QWEN, "A</think>\n</think>\nB", "[R]A[C]B", NULL, true},
    {"none", QWEN, "  Paris.\n", "[C]  Paris.\n", NULL, false},
    {"a word about the tag", QWEN, "The <think> tag opens.\nIt is one.", "[C]The tag opens.\nIt is one.", NULL, false},
    {"on a line of its own", QWEN, "Wait.\n<think>\nhm\n</think>\nYes.", "[C]Wait.[R]hm[C]\nYes.", NULL, false},
    {"paragraphs", QWEN, "a\n\nb \n c</think>d\n\ne", "[R]a\n\nb \n c[C]d\n\ne", NULL, true},
    {"looks like a tag", QWEN, "a </thin b </ c <t <<think</think>d <", "[R]a </thin b </ c <t <<think[C]d <", NULL,
     true},
    {"responses", QWEN, "a<tool_response>b</tool_response>", "[C]ab", NULL, false},
    {"end of a block alone", QWEN, "a\n</tool_call>", "[C]a", NULL, false},
};

/* ---- XML calls ---- */

static const reply_case calls[] = {
    {"a string, no schema", QWEN, OPEN "f>" P("s", "Paris") CLOSE, "[T f]{\"s\":\"Paris\"}[.]", NULL, false},
    {"no parameters", QWEN, OPEN "f>" CLOSE, "[T f]{}[.]", NULL, false},
    {"no schema: JSON where it is JSON", QWEN,
     OPEN "f>" P("a", "42") P("b", "true") P("c", "null") P("d", "[1, {\"x\": \"y\"}]") P("e", "{\"k\": 1.50}")
         P("f", "\"q\"") P("g", "1.2.3") P("h", "[1,") CLOSE,
     "[T f]{\"a\":42,\"b\":true,\"c\":null,\"d\":[1,{\"x\":\"y\"}],\"e\":{\"k\":1.50},\"f\":\"q\",\"g\":\"1.2.3\","
     "\"h\":\"[1,\"}[.]",
     NULL, false},
    {"strings stay strings", QWEN, OPEN "f>" P("s", "42") P("e", "1") P("c", "7") P("ref", "true") P("all", "{}") CLOSE,
     "[T f]{\"s\":\"42\",\"e\":\"1\",\"c\":\"7\",\"ref\":\"true\",\"all\":\"{}\"}[.]", tools, false},
    {"strings that are not null", QWEN, OPEN "f>" P("s", "null") CLOSE, "[T f]{\"s\":\"null\"}[.]", tools, false},
    {"other types", QWEN,
     OPEN "f>" P("i", "42") P("n", "-1e3") P("b", "false") P("o", "{\"a\": [ ]}") P("a", "[ 1 ]") P("any", "3") CLOSE,
     "[T f]{\"i\":42,\"n\":-1e3,\"b\":false,\"o\":{\"a\":[]},\"a\":[1],\"any\":3}[.]", tools, false},
    {"not what the schema says", QWEN, OPEN "f>" P("i", "many") P("b", "yes") P("o", "{'a': 1}") P("i2", "x") CLOSE,
     "[T f]{\"i\":\"many\",\"b\":\"yes\",\"o\":\"{'a': 1}\",\"i2\":\"x\"}[.]", tools, false},
    {"Python's literals where they fit", QWEN,
     OPEN "f>" P("b", "True") P("bn", "None") P("s", "None") P("i", "None") CLOSE OPEN "f>" P("b", "False")
         P("i", "False") P("bn", "Fals") CLOSE,
     "[T f]{\"b\":true,\"bn\":null,\"s\":\"None\",\"i\":\"None\"}[.][T "
     "f]{\"b\":false,\"i\":\"False\",\"bn\":\"Fals\"}[.]",
     tools, false},
    {"string or null", QWEN,
     OPEN "f>" P("sn", "null") P("opt", "nul") P("opt", "nulls") P("opt", "42") P("sn", "") CLOSE,
     "[T f]{\"sn\":null,\"opt\":\"nul\",\"opt\":\"nulls\",\"opt\":\"42\",\"sn\":\"\"}[.]", tools, false},
    {"string or integer", QWEN,
     OPEN "f>" P("si", "42") CLOSE OPEN "f>" P("si", "true") CLOSE OPEN "f>" P("si", "\"x\"") CLOSE,
     "[T f]{\"si\":42}[.][T f]{\"si\":\"true\"}[.][T f]{\"si\":\"\\\"x\\\"\"}[.]", tools, false},
    {"a schema that refers to itself", QWEN, OPEN "f>" P("loop", "1") CLOSE, "[T f]{\"loop\":1}[.]", tools, false},
    {"a tool nobody described", QWEN, OPEN "h>" P("s", "42") CLOSE, "[T h]{\"s\":42}[.]", tools, false},
    {"what JSON must escape", QWEN, OPEN "f>" P("s", "\"q\" \\n\n\t\x01 <a href='x'>&amp;</a>") CLOSE,
     "[T f]{\"s\":\"\\\"q\\\" \\\\n\\n\\t\\u0001 <a href='x'>&amp;</a>\"}[.]", tools, false},
    {"unicode", QWEN, OPEN "f>" P("s", "\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x98\x80") CLOSE,
     "[T f]{\"s\":\"\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x98\x80\"}[.]", tools, false},
    {"one newline at either end is the tags'", QWEN, OPEN "f>" P("s", "\n a\n\n b \n") P("t", "\n x \n") CLOSE,
     "[T f]{\"s\":\"\\n a\\n\\n b \\n\",\"t\":\"\\n x \\n\"}[.]", tools, false},
    {"all on one line", QWEN,
     "<tool_call><function=f><parameter=s>x</parameter><parameter=i>1</parameter></function></tool_call>",
     "[T f]{\"s\":\"x\",\"i\":1}[.]", tools, false},
    {"empty values", QWEN, OPEN "f>" P("s", "") "\n<parameter=i>\n</parameter>\n<parameter=n></parameter>" CLOSE,
     "[T f]{\"s\":\"\",\"i\":\"\",\"n\":\"\"}[.]", tools, false},
    {"tags within a value", QWEN,
     OPEN "f>" P("s", "<p></parameter> x <parameter=q> </function>\n<tool_call>\n</tool_call> </parameter >") CLOSE,
     "[T f]{\"s\":\"<p></parameter> x <parameter=q> </function>\\n<tool_call>\\n</tool_call> </parameter >\"}[.]",
     tools, false},
    {"closing tags within a value, again and again", QWEN,
     OPEN "f>" P("s", "</parameter>\n</parameter></parameter> </par\n<") CLOSE,
     "[T f]{\"s\":\"</parameter>\\n</parameter></parameter> </par\\n<\"}[.]", tools, false},
    {"the same in a value that is held", QWEN, OPEN "f>" P("o", "[\"</parameter> x</function>\", \"<\"]") CLOSE,
     "[T f]{\"o\":[\"</parameter> x</function>\",\"<\"]}[.]", tools, false},
    {"two calls in a block", QWEN, OPEN "f>" P("s", "x") "\n</function>\n<function=g>" CLOSE,
     "[T f]{\"s\":\"x\"}[.][T g]{}[.]", tools, false},
    {"two blocks", QWEN, OPEN "f>" CLOSE "\n" OPEN "g>" CLOSE, "[T f]{}[.][T g]{}[.]", tools, false},
    {"content around", QWEN, "Let me look.\n\n" OPEN "f>" CLOSE "\n\nDone.", "[C]Let me look.[T f]{}[.][C]\n\nDone.",
     tools, false},
    {"thoughts before", QWEN, "hm\n</think>\n\n" OPEN "f>" CLOSE, "[R]hm[T f]{}[.]", tools, true},
    {"a call ends the thoughts for good", QWEN, "hm\n" OPEN "f>" CLOSE "\nDone.", "[R]hm[T f]{}[.][C]Done.", tools,
     true},
    {"a call inside the thoughts", QWEN, "hm\n" OPEN "f>" CLOSE "\n</think>\n\nDone.", "[R]hm[T f]{}[.][C]Done.", tools,
     true},
};

/* ---- what models get wrong ---- */

static const reply_case slips[] = {
    {"no opening tag", QWEN, "I fetch it.\n\n<function=f>" P("s", "x") "\n</function>\n</tool_call>\nDone.",
     "[C]I fetch it.[T f]{\"s\":\"x\"}[.][C]\n\nDone.", tools, false},
    {"no opening tag, no closing one", QWEN, "<function=g>\n</function>", "[T g]{}[.]", tools, false},
    {"no opening tag, twice", QWEN, "<function=g></function>\n<function=f>" P("i", "1") CLOSE,
     "[T g]{}[.][T f]{\"i\":1}[.]", tools, false},
    {"no opening tag, a tool nobody knows", QWEN, "<function=h>\n</function>", "[C]<function=h>\n</function>", tools,
     false},
    {"no opening tag, no tools", QWEN, "<function=g>\n</function>", "[C]<function=g>\n</function>", NULL, false},
    {"a word about the tag", QWEN, "Write <function=g></function> so.", "[C]Write <function=g></function> so.", tools,
     false},
    {"a line about the tag", QWEN, "\n<function=g> is how", "[C]\n<function=g> is how", tools, false},
    {"a tag in the thoughts", QWEN, "\n<function=g></function>", "[R]<function=g></function>[r]", tools, true},
    {"no </parameter>", QWEN, OPEN "f>\n<parameter=s>\nDallas\n<parameter=i>\n7\n</function>\n</tool_call>",
     "[T f]{\"s\":\"Dallas\",\"i\":7}[.]", tools, false},
    {"no </function>", QWEN, OPEN "f>" P("s", "x") "\n</tool_call>ok", "[T f]{\"s\":\"x\"}[.][C]ok", tools, false},
    {"no </parameter>, and the text ends", QWEN, OPEN "f>\n<parameter=s>\nDallas\n</function>\n",
     "[T f]{\"s\":\"Dallas\"}[.]", tools, false},
    {"no </tool_call>, and the text ends", QWEN, OPEN "f>" P("s", "x") "\n</function>", "[T f]{\"s\":\"x\"}[.]", tools,
     false},
    {"no </tool_call>, and text follows", QWEN, OPEN "f>" P("s", "x") "\n</function>\nDone.",
     "[T f]{\"s\":\"x\"}[.][C]Done.", tools, false},
    {"no </tool_call>, and a block follows", QWEN, OPEN "f></function>\n" OPEN "g>" CLOSE, "[T f]{}[.][T g]{}[.]",
     tools, false},
    {"no </function>, and a block follows", QWEN, OPEN "f>\n" OPEN "g>" CLOSE, "[T f]{[!][T g]{}[.]", tools, false},
};

/* ---- what is no call ---- */

static const reply_case malformed[] = {
    {"empty block", QWEN, "a <tool_call>\n</tool_call> b", "[C]a b", NULL, false},
    {"a word about the tag", QWEN, "Use <tool_call> for it.", "[C]Use for it.", NULL, false},
    {"a word about the tag in the thoughts", QWEN, "use <tool_call> then </think>A", "[R]use then[C]A", NULL, true},
    {"text in the block", QWEN, "<tool_call>\nf(1)\n</tool_call>", "[C]f(1)", NULL, false},
    {"a name in two words", QWEN, OPEN "a b>" CLOSE, "[C]<function=a b>\n</function>", NULL, false},
    {"no name", QWEN, OPEN ">" CLOSE, "[C]<function=>\n</function>", NULL, false},
    {"a block in a block's head", QWEN, OPEN "<tool_call>\n<function=g>" CLOSE, "[C]<function=[T g]{}[.]", NULL, false},
    {"cut off in the tag", QWEN, "Hm.\n<tool_call>\n<func", "[C]Hm.\n<func", NULL, false},
    {"cut off in the name", QWEN, OPEN "f", "[C]<function=f", NULL, false},
    {"cut off in a bare name", QWEN, "\n\n<function=f", "[C]\n\n<function=f", tools, false},
    {"cut off behind a bare name", QWEN, "<function=f>\n<par", "[C]<function=f>\n<par", tools, false},
    {"cut off behind the name", QWEN, OPEN "f>\n", "[T f]{[!]", tools, false},
    {"cut off in a parameter's name", QWEN, OPEN "f>\n<parameter=ci", "[T f]{\"ci\"[!]", tools, false},
    {"cut off in a string", QWEN, OPEN "f>\n<parameter=s>\nPar\n", "[T f]{\"s\":\"Par[!]", tools, false},
    {"cut off in a string's end", QWEN, OPEN "f>\n<parameter=s>\nPar\n</param", "[T f]{\"s\":\"Par\\n</param[!]", tools,
     false},
    {"cut off behind a string", QWEN, OPEN "f>\n<parameter=s>\nPar\n</parameter>\n", "[T f]{\"s\":\"Par\"[!]", tools,
     false},
    {"cut off in the next tag", QWEN, OPEN "f>\n<parameter=s>\nPar\n</parameter>\n</fun", "[T f]{\"s\":\"Par\"[!]",
     tools, false},
    {"cut off in a number", QWEN, OPEN "f>\n<parameter=i>\n12", "[T f]{\"i\":12[!]", tools, false},
    {"cut off in an array", QWEN, OPEN "f>\n<parameter=a>\n[1, \"x", "[T f]{\"a\":[1,\"x[!]", tools, false},
    {"cut off in what is not JSON", QWEN, OPEN "f>\n<parameter=a>\n[1, x", "[T f]{\"a\":\"[1, x[!]", tools, false},
    {"cut off in a string or a number", QWEN, OPEN "f>\n<parameter=si>\n12", "[T f]{\"si\":\"12[!]", tools, false},
    {"cut off in what may be null", QWEN, OPEN "f>\n<parameter=sn>\nnul", "[T f]{\"sn\":\"nul[!]", tools, false},
    {"text between parameters", QWEN, OPEN "f>" P("i", "1") CLOSE OPEN "f>\nhello" CLOSE,
     "[T f]{\"i\":1}[.][T f]{[!][C]hello\n</function>", tools, false},
    {"a parameter's name is missing", QWEN, OPEN "f>\n<parameter=\nx\n</parameter>" CLOSE,
     "[T f]{[!][C]x\n</parameter>\n</function>", tools, false},
    {"a parameter's '>' is missing", QWEN, OPEN "f>\n<parameter=ids: [1]\n</parameter>" CLOSE,
     "[T f]{[!][C]ids: [1]\n</parameter>\n</function>", tools, false},
    {"the call behind a broken one", QWEN, OPEN "f>\nhello</tool_call>\n" OPEN "g>" CLOSE,
     "[T f]{[!][C]hello[T g]{}[.]", tools, false},
};

/* ---- the JSON form inside <tool_call> ---- */

#define J(json) "<tool_call>\n" json "\n</tool_call>"

static const reply_case hermes[] = {
    {"a call", QWEN, J("{\"name\": \"f\", \"arguments\": {\"s\": \"x\", \"i\": [1, 2]}}"),
     "[T f]{\"s\":\"x\",\"i\":[1,2]}[.]", NULL, false},
    {"arguments first", QWEN, J("{\"arguments\": {\"s\": \"x\"}, \"name\": \"f\"}"), "[T f]{\"s\":\"x\"}[.]", NULL,
     false},
    {"parameters", QWEN, J("{\"name\": \"f\", \"parameters\": {}}"), "[T f]{}[.]", NULL, false},
    {"no arguments", QWEN, J("{\"name\": \"f\"}"), "[T f]{}[.]", NULL, false},
    {"arguments null", QWEN, J("{\"arguments\": null, \"name\": \"f\"}"), "[T f]{}[.]", NULL, false},
    {"arguments in a string", QWEN, J("{\"name\": \"f\", \"arguments\": \"{\\\"s\\\": \\\"a\\\\nb\\\"}\"}"),
     "[T f]{\"s\":\"a\\nb\"}[.]", NULL, false},
    {"arguments in a string, first", QWEN, J("{\"arguments\": \"{}\", \"name\": \"f\"}"), "[T f]{}[.]", NULL, false},
    {"arguments in an empty string", QWEN, J("{\"name\": \"f\", \"arguments\": \"\"}"), "[T f]{}[.]", NULL, false},
    {"other members", QWEN,
     J("{\"id\": 12, \"type\": \"function\", \"x\": [{\"name\": 1}], \"name\": \"f\", \"arguments\": {\"a\": 1}, "
       "\"y\": -1}"),
     "[T f]{\"a\":1}[.]", NULL, false},
    {"numbers among other members", QWEN, J("{\"x\": 1 , \"y\" : [2 ] , \"name\": \"f\"}"), "[T f]{}[.]", NULL, false},
    {"several", QWEN, J("{\"name\": \"f\"}\n{\"name\": \"g\"}") J("{\"name\": \"h\"}"),
     "[T f]{}[.][T g]{}[.][T h]{}[.]", NULL, false},
    {"an array", QWEN, J("[{\"name\": \"f\"}, {\"name\": \"g\", \"arguments\": {}}]") "A", "[T f]{}[.][T g]{}[.][C]A",
     NULL, false},
    {"markers inside strings", QWEN, J("{\"name\": \"f\", \"arguments\": {\"s\": \"</tool_call><think>\"}}"),
     "[T f]{\"s\":\"</tool_call><think>\"}[.]", NULL, false},
    {"strings that are mended", QWEN,
     J("{\"name\": \"f\", \"arguments\": {\"s\": \"a\nb\t\\d\\'\\/ \\ud83d \\ud83d\\ude00 \\ude00\"}}"),
     "[T f]{\"s\":\"a\\nb\\t\\\\d'\\/ \\ufffd \\ud83d\\ude00 \\ufffd\"}[.]", NULL, false},
    {"a name with escapes", QWEN, J("{\"name\": \"\\u0066\"}"), "[T f]{}[.]", NULL, false},
    {"no closing tag", QWEN, "<tool_call>{\"name\": \"f\"}", "[T f]{}[.]", NULL, false},
    {"no name", QWEN, J("{\"arguments\": {\"a\": 1}}"), "[C]{\"arguments\": {\"a\": 1}}", NULL, false},
    {"an empty object", QWEN, J("{}"), "[C]{}", NULL, false},
    {"an empty array", QWEN, J("[]"), "[C][]", NULL, false},
    {"a name that is none", QWEN, J("{\"name\": \"a b\"}") J("{\"name\": \"\"}") J("{\"name\": 1}"),
     "[C]{\"name\": \"a b\"}\n{\"name\": \"\"}\n{\"name\": 1}", NULL, false},
    {"not JSON", QWEN, J("{name: f}"), "[C]{name: f}", NULL, false},
    {"broken before the call is certain", QWEN, J("{\"name\": \"f\", \"arguments\": [1]}"),
     "[C]{\"name\": \"f\", \"arguments\": [1]}", NULL, false},
    {"broken inside the arguments", QWEN, J("{\"name\": \"f\", \"arguments\": {\"a\": x}}"), "[T f]{\"a\":[!][C]x}}",
     NULL, false},
    {"broken behind the arguments", QWEN, J("{\"name\": \"f\", \"arguments\": {\"a\": 1}]"), "[T f]{\"a\":1}[!][C]]",
     NULL, false},
    {"arguments twice", QWEN, J("{\"name\": \"f\", \"arguments\": {}, \"parameters\": {}}"), "[T f]{}[!][C]{}}", NULL,
     false},
    {"cut off before the call is certain", QWEN, "<tool_call>\n{\"name\": \"f\", \"argu", "[C]{\"name\": \"f\", \"argu",
     NULL, false},
    {"cut off inside the arguments", QWEN, "<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": \"x\\n",
     "[T f]{\"a\":\"x\\n[!]", NULL, false},
    {"cut off inside, the arguments in front", QWEN, "<tool_call>\n{\"arguments\": {\"a\": \"<think>",
     "[C]{\"arguments\": {\"a\": \"", NULL, false},
    {"a call after what was none", QWEN, J("{\"x\": 1}") J("{\"name\": \"f\"}"), "[C]{\"x\": 1}[T f]{}[.]", NULL,
     false},
};

static void thoughts_of_any_cut(void **state) {
    (void)state;
    RUN_TABLE(thoughts)
}

static void calls_of_any_cut(void **state) {
    (void)state;
    RUN_TABLE(calls)
}

static void slips_of_any_cut(void **state) {
    (void)state;
    RUN_TABLE(slips)
}

static void malformed_of_any_cut(void **state) {
    (void)state;
    RUN_TABLE(malformed)
}

static void json_calls_of_any_cut(void **state) {
    (void)state;
    RUN_TABLE(hermes)
}

static void no_allocation_failure_leaks(void **state) {
    (void)state;
    SWEEP_TABLE(thoughts)
    SWEEP_TABLE(calls)
    SWEEP_TABLE(slips)
    SWEEP_TABLE(malformed)
    SWEEP_TABLE(hermes)
}

/* ---- limits ---- */

static void expect_start(const char *front, char c, size_t n, const char *expected, const char *fault) {
    const reply_case q = {"limit", QWEN, "", "", tools, false};
    json_t *json = tools_of(&q);
    td_buf b;
    transcript t;
    td_buf_init(&b, (size_t)1 << 30);
    transcript_init(&t);
    assert_int_equal(td_buf_puts(&b, front), TD_OK);
    for (size_t i = 0; i < n; i++)
        assert_int_equal(td_buf_putc(&b, c), TD_OK);
    assert_int_equal(run_pieces(&q, json, b.data, b.size, NULL, 0, &t), TD_OK);
    if (strncmp(t.text.data, expected, strlen(expected)) != 0)
        fail_msg("got %.200s\nexpected %s", t.text.data, expected);
    if (!strstr(t.fault, fault))
        fail_msg("got %s\nexpected %s", t.fault, fault);
    transcript_free(&t);
    td_buf_free(&b);
    json_decref(json);
}

static void sizes_and_nesting_end_at_their_limits(void **state) {
    (void)state;
    expect_start(OPEN, 'x', TD_REPLY_MAX_NAME + 1, "[C]<function=xxx", "");
    expect_start(OPEN "f>\n<parameter=", 'x', TD_REPLY_MAX_NAME + 1, "[T f]{[!][C]xxx",
                 "call of f: byte 292 of the answer: expected the name of a parameter and '>'");
    expect_start(OPEN "f>\n<parameter=i>", '1', TD_REPLY_MAX_VALUE + 1, "[T f]{\"i\":[!][C]111",
                 "a parameter of more than 8388608 bytes that is no text");
    expect_start(OPEN "f>\n<parameter=s>", '1', TD_REPLY_MAX_VALUE + 1, "[T f]{\"s\":\"111", "the answer ended inside");
    expect_start("<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":", '[', TD_REPLY_MAX_NESTING, "[T f]{\"a\":[[[",
                 "nested deeper than 100 levels");
    expect_start("<tool_call>{\"arguments\":{\"a\":\"", 'x', TD_REPLY_MAX_VALUE, "[C]{\"arguments\":{\"a\":\"xxx", "");
    expect_start("<tool_call>{\"name\":\"", 'x', TD_REPLY_MAX_VALUE, "[C]{\"name\":\"xxx", "");
    char deep[4 * TD_REPLY_MAX_NESTING] = OPEN "f>\n<parameter=a>\n";
    size_t at = strlen(deep);
    memset(deep + at, '[', TD_REPLY_MAX_NESTING + 1);
    strcpy(deep + at + TD_REPLY_MAX_NESTING + 1, "\n</parameter>" CLOSE);
    expect_start(deep, ' ', 0, "[T f]{\"a\":[!][C][[[", "nested deeper than 100 levels");
    strcpy(deep + at + TD_REPLY_MAX_NESTING + 1, "\n</parameter>\n");
    expect_start(deep, ' ', 0, "[T f]{\"a\":[!][C][[[", "nested deeper than 100 levels");
    strcpy(deep + at + TD_REPLY_MAX_NESTING + 1, "\n</function>\n");
    expect_start(deep, ' ', 0, "[T f]{\"a\":[!][C][[[", "nested deeper than 100 levels");
    strcpy(deep + at + TD_REPLY_MAX_NESTING + 1, "\n<parameter=b>\n");
    expect_start(deep, ' ', 0, "[T f]{\"a\":[!][C][[[", "nested deeper than 100 levels");
}

static void a_gap_too_long_is_text(void **state) {
    (void)state;
    char text[2 * TD_REPLY_MAX_GAP + 200];
    for (int over = 0; over < 2; over++) {
        const reply_case q = {"gap", QWEN, "", "", NULL, false};
        transcript t;
        transcript_init(&t);
        strcpy(text, OPEN "f>\n<parameter=s>\nx\n</parameter>");
        size_t at = strlen(text), n = TD_REPLY_MAX_GAP + (size_t)over;
        memset(text + at, ' ', n);
        strcpy(text + at + n, "</function>\n</tool_call>");
        assert_int_equal(run_pieces(&q, NULL, text, strlen(text), NULL, 0, &t), TD_OK);
        const char *expected = over ? "[T f]{\"s\":\"x\\n</parameter>    " : "[T f]{\"s\":\"x\"}[.]";
        assert_memory_equal(t.text.data, expected, strlen(expected));
        transcript_free(&t);
    }
}

static void hostile_repetition_is_linear(void **state) {
    (void)state;
    static const char *const units[] = {"<",
                                        "<think>",
                                        "</think>\n",
                                        "<tool_call>",
                                        "<tool_call>{\"arguments\":\"",
                                        "<tool_call>[{",
                                        "\n<function=f>",
                                        "\n<function=f>\n<parameter=",
                                        "</parameter>",
                                        "</parameter> ",
                                        "</function>\n",
                                        "\n<parameter=",
                                        "</parameter>\n</func",
                                        OPEN "f>\n<parameter=s>",
                                        "{\"name\":\"f\"}",
                                        " ",
                                        "\\u",
                                        "\n"};
    static const char *const fronts[] = {"", OPEN "f>\n<parameter=s>", OPEN "f>\n<parameter=o>",
                                         "<tool_call>{\"arguments\":\""};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        for (size_t f = 0; f < sizeof fronts / sizeof *fronts; f++) {
            const reply_case q = {"repetition", QWEN, "", "", tools, false};
            json_t *json = tools_of(&q);
            td_buf b;
            transcript t;
            td_buf_init(&b, 1 << 23);
            transcript_init(&t);
            assert_int_equal(td_buf_puts(&b, fronts[f]), TD_OK);
            while (b.size < 1 << 19)
                assert_int_equal(td_buf_puts(&b, units[u]), TD_OK);
            assert_int_equal(run_pieces(&q, json, b.data, b.size, NULL, 0, &t), TD_OK);
            check_no_markers(&q, &t);
            transcript_free(&t);
            td_buf_free(&b);
            json_decref(json);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thoughts_of_any_cut),
        cmocka_unit_test(calls_of_any_cut),
        cmocka_unit_test(slips_of_any_cut),
        cmocka_unit_test(malformed_of_any_cut),
        cmocka_unit_test(json_calls_of_any_cut),
        cmocka_unit_test(no_allocation_failure_leaks),
        cmocka_unit_test(sizes_and_nesting_end_at_their_limits),
        cmocka_unit_test(a_gap_too_long_is_text),
        cmocka_unit_test(hostile_repetition_is_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
