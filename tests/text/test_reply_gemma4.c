/* test_reply_gemma4.c - Gemma 4: the thought channel, and calls turned from Gemma's notation into JSON. */
#include "test_reply_util.h"

#define Q "<|\"|>"
#define CALL "<|tool_call>"
#define END "<tool_call|>"

/* ---- the thought channel ---- */

static const reply_case thoughts[] = {
    {"content alone", GEMMA4, "Hello\n\nworld \n", "[C]Hello\n\nworld \n", NULL, false},
    {"nothing", GEMMA4, "", "", NULL, false},
    {"white space alone", GEMMA4, " \n ", "[C] \n ", NULL, false},
    {"thought, answer", GEMMA4, "<|channel>thought\nLet me see.\n<channel|>Paris.", "[R]Let me see.[C]Paris.", NULL,
     false},
    {"white space around", GEMMA4, "<|channel>thought\n\n a b \n\n<channel|>\n\n Paris. ", "[R]a b[C]Paris. ", NULL,
     false},
    {"empty channel in front", GEMMA4, "<|channel>thought\n<channel|>Paris.", "[C]Paris.", NULL, false},
    {"empty channel behind", GEMMA4, "Paris.\n<|channel>thought\n<channel|>", "[C]Paris.", NULL, false},
    {"empty channel without a newline", GEMMA4, "<|channel>thought<channel|>Paris.", "[C]Paris.", NULL, false},
    {"lone close in front", GEMMA4, "<channel|>Paris.", "[C]Paris.", NULL, false},
    {"lone close behind", GEMMA4, "Paris.<channel|>", "[C]Paris.", NULL, false},
    {"lone close in the middle", GEMMA4, "Hello <channel|> world", "[C]Hello world", NULL, false},
    {"lone close in a word", GEMMA4, "foo<channel|>bar", "[C]foobar", NULL, false},
    {"white space only behind a lone close", GEMMA4, "foo<channel|>\nbar", "[C]foo\nbar", NULL, false},
    {"two closes", GEMMA4, "<|channel>thought\nA<channel|><channel|>\nB", "[R]A[C]B", NULL, false},
    {"thoughts twice", GEMMA4, "<|channel>thought\nA\n<channel|>B\n<|channel>thought\nC<channel|> D",
     "[R]A[C]B[R]\nC[C]\nD", NULL, false},
    {"thoughts opened in the prompt", GEMMA4, "\nhmm\n<channel|>Paris.", "[R]hmm[C]Paris.", NULL, true},
    {"opened in the prompt and again", GEMMA4, "<|channel>thought\nhmm<channel|>Paris.", "[R]hmm[C]Paris.", NULL, true},
    {"thoughts never closed", GEMMA4, "<|channel>thought\nhmm\n", "[R]hmm\n[r]", NULL, false},
    {"channel without a name", GEMMA4, "<|channel>hmm<channel|>A", "[R]hmm[C]A", NULL, false},
    {"a word that begins like the name", GEMMA4, "<|channel>thoughtful, thus<channel|>A", "[R]thoughtful, thus[C]A",
     NULL, false},
    {"half the name", GEMMA4, "<|channel>thou", "[R]thou[r]", NULL, false},
    {"half the name and a close", GEMMA4, "<|channel>thou<channel|>A", "[R]thou[C]A", NULL, false},
    {"channel cut off behind its name", GEMMA4, "<|channel>thought", "[r]", NULL, false},
    {"channel cut off", GEMMA4, "<|channel>", "[r]", NULL, false},
    {"looks like a marker", GEMMA4, "a <|chan <<|channe <channel | x< <", "[C]a <|chan <<|channe <channel | x< <", NULL,
     false},
    {"ends like a marker", GEMMA4, "a <|channel", "[C]a <|channel", NULL, false},
    {"a string delimiter in content", GEMMA4, "say " Q "hi" Q ".", "[C]say \"hi\".", NULL, false},
    {"responses are not content's markers", GEMMA4, "a<|tool_response>b<tool_response|>c", "[C]abc", NULL, false},
    {"marker within a marker", GEMMA4, "a<|chan<channel|>b", "[C]a<|chanb", NULL, false},
    {"characters of all lengths", GEMMA4, "<|channel>thought\n\xC3\xA9\xE2\x82\xAC<channel|>\xF0\x9F\x98\x80",
     "[R]\xC3\xA9\xE2\x82\xAC[C]\xF0\x9F\x98\x80", NULL, false},
    {"bytes that are no characters", GEMMA4,
     "a\xFF"
     "b\xE2\x82",
     "[C]a\xEF\xBF\xBD"
     "b\xEF\xBF\xBD",
     NULL, false},
};

/* ---- well-formed calls ---- */

static const reply_case calls[] = {
    {"a string", GEMMA4, CALL "call:weather{city:" Q "Paris" Q "}" END, "[T weather]{\"city\":\"Paris\"}[.]", NULL,
     false},
    {"no arguments", GEMMA4, CALL "call:now{}" END, "[T now]{}[.]", NULL, false},
    {"literals", GEMMA4, CALL "call:f{a:1,b:-2.5e3,c:true,d:false,e:null,f:0}" END,
     "[T f]{\"a\":1,\"b\":-2.5e3,\"c\":true,\"d\":false,\"e\":null,\"f\":0}[.]", NULL, false},
    {"nested", GEMMA4, CALL "call:f{a:{b:{c:[1,[2,{d:" Q "x" Q "}],[]]}},e:{}}" END,
     "[T f]{\"a\":{\"b\":{\"c\":[1,[2,{\"d\":\"x\"}],[]]}},\"e\":{}}[.]", NULL, false},
    {"array of strings", GEMMA4, CALL "call:f{a:[" Q "x" Q "," Q "y,z" Q "]}" END, "[T f]{\"a\":[\"x\",\"y,z\"]}[.]",
     NULL, false},
    {"syntax inside a string", GEMMA4, CALL "call:f{a:" Q "}],{:<tool_call|><|tool_call><|" Q ",b:" Q "<" Q "}" END,
     "[T f]{\"a\":\"}],{:<tool_call|><|tool_call><|\",\"b\":\"<\"}[.]", NULL, false},
    {"what JSON must escape", GEMMA4, CALL "call:f{a:" Q "\"q\" \\n\n\t\x01\r\x7F/" Q "}" END,
     "[T f]{\"a\":\"\\\"q\\\" \\\\n\\n\\t\\u0001\\r\x7F/\"}[.]", NULL, false},
    {"unicode", GEMMA4, CALL "call:f{s:" Q "\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x98\x80" Q "}" END,
     "[T f]{\"s\":\"\xC3\xA9\xE6\xBC\xA2\xF0\x9F\x98\x80\"}[.]", NULL, false},
    {"empty string", GEMMA4, CALL "call:f{s:" Q Q "}" END, "[T f]{\"s\":\"\"}[.]", NULL, false},
    {"white space everywhere", GEMMA4, CALL " call: f { a : 1 ,\n b : [ 1 , 2 ] } " END,
     "[T f]{\"a\":1,\"b\":[1,2]}[.]", NULL, false},
    {"spaces inside a bare key", GEMMA4, CALL "call:f{first name:1}" END, "[T f]{\"first name\":1}[.]", NULL, false},
    {"a name with dots", GEMMA4, CALL "call:ns.tool-2/x{}" END, "[T ns.tool-2/x]{}[.]", NULL, false},
    {"two calls in a block", GEMMA4, CALL "call:a{x:1}call:b{}" END, "[T a]{\"x\":1}[.][T b]{}[.]", NULL, false},
    {"calls with a comma or a newline between", GEMMA4, CALL "call:a{},call:b{}\ncall:c{}" END,
     "[T a]{}[.][T b]{}[.][T c]{}[.]", NULL, false},
    {"two blocks", GEMMA4, CALL "call:a{}" END CALL "call:b{}" END, "[T a]{}[.][T b]{}[.]", NULL, false},
    {"content before", GEMMA4, "Let me look.\n\n" CALL "call:a{}" END, "[C]Let me look.[T a]{}[.]", NULL, false},
    {"content between and behind", GEMMA4, "One.\n" CALL "call:a{}" END "\nTwo.\n" CALL "call:b{}" END "Three.",
     "[C]One.[T a]{}[.][C]\nTwo.[T b]{}[.][C]\nThree.", NULL, false},
    {"thoughts before", GEMMA4, "<|channel>thought\nNeed it.<channel|>" CALL "call:a{}" END, "[R]Need it.[T a]{}[.]",
     NULL, false},
    {"a call ends the thoughts", GEMMA4, "<|channel>thought\nNeed it.\n" CALL "call:a{}" END "<channel|>Done.",
     "[R]Need it.[T a]{}[.][C]Done.", NULL, false},
    {"a call ends the thoughts for good", GEMMA4, "<|channel>thought\nhm" CALL "call:a{}" END "Done.",
     "[R]hm[T a]{}[.][C]Done.", NULL, false},
    {"spaces behind names", GEMMA4, CALL "call:a {}call:b {}" END, "[T a]{}[.][T b]{}[.]", NULL, false},
    {"response token behind", GEMMA4, CALL "call:a{}" END "<|tool_response>", "[T a]{}[.]", NULL, false},
    {"a channel behind", GEMMA4, CALL "call:a{}" END "<|channel>thought\n<channel|>", "[T a]{}[.]", NULL, false},
};

/* ---- what models get wrong ---- */

static const reply_case slips[] = {
    {"opening delimiter forgotten", GEMMA4, CALL "call:search{query:weather in Tokyo" Q "}" END,
     "[T search]{\"query\":\"weather in Tokyo\"}[.]", NULL, false},
    {"forgotten, with a comma", GEMMA4, CALL "call:search{query:Paris, France" Q ",limit:5}" END,
     "[T search]{\"query\":\"Paris, France\",\"limit\":5}[.]", NULL, false},
    {"forgotten, with braces", GEMMA4, CALL "call:sh{cmd:echo ${A},${B}; exit" Q ",t:1}" END,
     "[T sh]{\"cmd\":\"echo ${A},${B}; exit\",\"t\":1}[.]", NULL, false},
    {"forgotten twice", GEMMA4, CALL "call:f{a:Tokyo, JP" Q ",b:Paris, FR" Q "}" END,
     "[T f]{\"a\":\"Tokyo, JP\",\"b\":\"Paris, FR\"}[.]", NULL, false},
    {"forgotten in front of a number", GEMMA4, CALL "call:f{zip:01234" Q "}" END, "[T f]{\"zip\":\"01234\"}[.]", NULL,
     false},
    {"forgotten in an array", GEMMA4, CALL "call:f{a:[x, y" Q "," Q "z" Q "]}" END, "[T f]{\"a\":[\"x, y\",\"z\"]}[.]",
     NULL, false},
    {"bare words", GEMMA4, CALL "call:f{unit:celsius,city:" Q "Paris" Q ",mode:fast}" END,
     "[T f]{\"unit\":\"celsius\",\"city\":\"Paris\",\"mode\":\"fast\"}[.]", NULL, false},
    {"a bare word, and later one forgotten", GEMMA4, CALL "call:f{a:x,b:" Q "y" Q ",c:Paris, FR" Q "}" END,
     "[T f]{\"a\":\"x\",\"b\":\"y\",\"c\":\"Paris, FR\"}[.]", NULL, false},
    {"bare words only", GEMMA4, CALL "call:f{a:x,b:y y,c:[p,q],d:{e:z}}" END,
     "[T f]{\"a\":\"x\",\"b\":\"y y\",\"c\":[\"p\",\"q\"],\"d\":{\"e\":\"z\"}}[.]", NULL, false},
    {"bare words, then another call", GEMMA4, CALL "call:f{a:x,b:1}call:g{c:" Q "s" Q "}" END,
     "[T f]{\"a\":\"x\",\"b\":1}[.][T g]{\"c\":\"s\"}[.]", NULL, false},
    {"bare word in front of an object with marked keys", GEMMA4, CALL "call:f{a:x,b:{" Q "k" Q ":1}}" END,
     "[T f]{\"a\":\"x\",\"b\":{\"k\":1}}[.]", NULL, false},
    {"almost literals", GEMMA4, CALL "call:f{a:01,b:.5,c:nan,d:True,e:+1,f:1.}" END,
     "[T f]{\"a\":\"01\",\"b\":\".5\",\"c\":\"nan\",\"d\":\"True\",\"e\":\"+1\",\"f\":\"1.\"}[.]", NULL, false},
    {"quotes for delimiters", GEMMA4, CALL "call:f{\"a\":\"x \\\"y\\\" \\u00e9\",b:[\"\"]}" END,
     "[T f]{\"a\":\"x \\\"y\\\" \\u00e9\",\"b\":[\"\"]}[.]", NULL, false},
    {"markers in quotes", GEMMA4, CALL "call:f{\"<tool_call|>\":\"<|tool_call><\"}" END,
     "[T f]{\"<tool_call|>\":\"<|tool_call><\"}[.]", NULL, false},
    {"quoted keys", GEMMA4, CALL "call:f{\"a\":1,\"b\":{\"c\" : 2}}" END, "[T f]{\"a\":1,\"b\":{\"c\":2}}[.]", NULL,
     false},
    {"marked keys", GEMMA4, CALL "call:f{" Q "a b" Q ":1," Q "c:d" Q ":" Q "e" Q "}" END,
     "[T f]{\"a b\":1,\"c:d\":\"e\"}[.]", NULL, false},
    {"no call in front of the colon", GEMMA4, CALL ":f{a:1}" END, "[T f]{\"a\":1}[.]", NULL, false},
    {"parentheses", GEMMA4, CALL "call:f({\"a\":1})" END CALL "call:g()" END, "[T f]{\"a\":1}[.][T g]{}[.]", NULL,
     false},
    {"no brackets", GEMMA4, CALL "call:now" END "x", "[T now]{}[.][C]x", NULL, false},
    {"trailing commas", GEMMA4, CALL "call:f{a:[1,],}" END, "[T f]{\"a\":[1]}[.]", NULL, false},
    {"end of block missing", GEMMA4, CALL "call:f{a:1}" CALL "call:g{}" END, "[T f]{\"a\":1}[.][T g]{}[.]", NULL,
     false},
    {"end of block missing at the end", GEMMA4, CALL "call:f{a:1}", "[T f]{\"a\":1}[.]", NULL, false},
    {"text behind the call inside the block", GEMMA4, CALL "call:f{} ok" END "x", "[T f]{}[.][C]okx", NULL, false},
    {"a '<' in a bare word", GEMMA4, CALL "call:f{a:x<y,b:p<<" Q "}" END, "[T f]{\"a\":\"x<y,b:p<<\"}[.]", NULL, false},
    {"a '<' in a plain word", GEMMA4,
     CALL "call:f{a:x<y,b:p<<|"
          "}" END,
     "[T f]{\"a\":\"x<y\",\"b\":\"p<<|\"}[.]", NULL, false},
};

/* ---- what is no call ---- */

static const reply_case malformed[] = {
    {"empty block", GEMMA4, "a" CALL END "b", "[C]ab", NULL, false},
    {"no call at all", GEMMA4, CALL "I do not know." END, "[C]I do not know.", NULL, false},
    {"no name", GEMMA4, CALL "call:{a:1}" END, "[C]call:{a:1}", NULL, false},
    {"a name in two words", GEMMA4, CALL "call:get weather{}" END, "[C]call:get weather{}", NULL, false},
    {"cut off in the head", GEMMA4, CALL "ca", "[C]ca", NULL, false},
    {"cut off in the name", GEMMA4, CALL "call:get_wea", "[C]call:get_wea", NULL, false},
    {"cut off behind the marker", GEMMA4, "Hm " CALL, "[C]Hm", NULL, false},
    {"not a call inside the thoughts", GEMMA4, "<|channel>thought\nuse " CALL " then<channel|>A", "[R]use then[C]A",
     NULL, false},
    {"cut off in a string", GEMMA4, CALL "call:f{a:" Q "Par", "[T f]{\"a\":\"Par[!]", NULL, false},
    {"cut off in a string, at a marker", GEMMA4, CALL "call:f{a:" Q "Par<|\"", "[T f]{\"a\":\"Par<|\\\"[!]", NULL,
     false},
    {"cut off in a number", GEMMA4, CALL "call:f{a:12", "[T f]{\"a\":12[!]", NULL, false},
    {"cut off in a word", GEMMA4, CALL "call:f{a:tru", "[T f]{\"a\":\"tru\"[!]", NULL, false},
    {"cut off behind words", GEMMA4, CALL "call:f{a:x,b:y,c:[z", "[T f]{\"a\":\"x\",\"b\":\"y\",\"c\":[\"z\"[!]", NULL,
     false},
    {"complete at the end of the text", GEMMA4, CALL "call:f{a:x}", "[T f]{\"a\":\"x\"}[.]", NULL, false},
    {"cut off in a key", GEMMA4, CALL "call:f{a:1,cou", "[T f]{\"a\":1,\"cou[!]", NULL, false},
    {"cut off behind a key", GEMMA4, CALL "call:f{a:", "[T f]{\"a\":[!]", NULL, false},
    {"block ends inside", GEMMA4, CALL "call:f{a:1" END "Sorry.", "[T f]{\"a\":1[!][C]Sorry.", NULL, false},
    {"another block begins inside", GEMMA4, CALL "call:f{a:1," CALL "call:g{b:2}" END,
     "[T f]{\"a\":1[!][T g]{\"b\":2}[.]", NULL, false},
    {"thoughts begin inside", GEMMA4, CALL "call:f{a:[1<|channel>thought\nhm<channel|>ok",
     "[T f]{\"a\":[1[!][R]hm[C]ok", NULL, false},
    {"no value", GEMMA4, CALL "call:f{a:,b:1}" END, "[T f]{\"a\":[!][C],b:1}", NULL, false},
    {"a bracket for a value", GEMMA4, CALL "call:f{a:]}" END, "[T f]{\"a\":[!][C]]}", NULL, false},
    {"two colons", GEMMA4, CALL "call:f{a::1}" END, "[T f]{\"a\":[!][C]:1}", NULL, false},
    {"a block in a block's name", GEMMA4, CALL "call:f " CALL "call:g{}" END, "[C]call:f[T g]{}[.]", NULL, false},
    {"a string in a name", GEMMA4, CALL "call:f" Q "{}" END, "[C]call:f\"{}", NULL, false},
    {"no colon", GEMMA4, CALL "call:f{a}" END, "[T f]{[!][C]a}", NULL, false},
    {"no colon behind a marked key", GEMMA4, CALL "call:f{" Q "a" Q "}" END, "[T f]{[!][C]a}", NULL, false},
    {"no key", GEMMA4, CALL "call:f{:1}" END, "[T f]{[!][C]:1}", NULL, false},
    {"wrong bracket", GEMMA4, CALL "call:f{a:[1}" END, "[T f]{\"a\":[1[!][C]}", NULL, false},
    {"two values", GEMMA4, CALL "call:f{a:" Q "x" Q " y}" END, "[T f]{\"a\":\"x\"[!][C]y}", NULL, false},
    {"a string behind a value", GEMMA4, CALL "call:f{a:" Q "x" Q Q "y" Q "}" END, "[T f]{\"a\":\"x\"[!][C]\"y\"}", NULL,
     false},
    {"parentheses around no object", GEMMA4, CALL "call:f(x)" END, "[T f][!][C]x)", NULL, false},
    {"a broken escape in quotes", GEMMA4, CALL "call:f{a:\"\\u00zz\"}" END, "[T f]{\"a\":\"[!][C]zz\"}", NULL, false},
    {"the call after a broken one", GEMMA4, CALL "call:f{a:,}" END CALL "call:g{}" END,
     "[T f]{\"a\":[!][C],}[T g]{}[.]", NULL, false},
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

static void no_allocation_failure_leaks(void **state) {
    (void)state;
    SWEEP_TABLE(thoughts)
    SWEEP_TABLE(calls)
    SWEEP_TABLE(slips)
    SWEEP_TABLE(malformed)
}

/* ---- limits ---- */

static void expect_fault(const char *text, size_t n, const char *expected, const char *fault) {
    const reply_case c = {"limit", GEMMA4, "", "", NULL, false};
    transcript t;
    transcript_init(&t);
    assert_int_equal(run_pieces(&c, NULL, text, n, NULL, 0, &t), TD_OK);
    if (strncmp(t.text.data, expected, strlen(expected)) != 0)
        fail_msg("got %.200s\nexpected %s", t.text.data, expected);
    assert_non_null(strstr(t.fault, fault));
    transcript_free(&t);
}

static void nesting_ends_at_its_limit(void **state) {
    (void)state;
    td_buf b;
    for (int depth = TD_REPLY_MAX_NESTING - 1; depth <= TD_REPLY_MAX_NESTING; depth++) {
        td_buf_init(&b, 1 << 20);
        assert_int_equal(td_buf_puts(&b, CALL "call:f{a:"), TD_OK);
        for (int i = 0; i < depth; i++)
            assert_int_equal(td_buf_putc(&b, '['), TD_OK);
        for (int i = 0; i < depth; i++)
            assert_int_equal(td_buf_putc(&b, ']'), TD_OK);
        assert_int_equal(td_buf_puts(&b, "}" END), TD_OK);
        if (depth < TD_REPLY_MAX_NESTING)
            expect_fault(b.data, b.size, "[T f]{\"a\":[[[", "");
        else
            expect_fault(b.data, b.size, "[T f]{\"a\":[[[",
                         "call of f: byte 120 of the answer: arguments nested deeper "
                         "than 100 levels");
        td_buf_free(&b);
    }
}

static char *filled(const char *front, char c, size_t n, size_t *size) {
    *size = strlen(front) + n;
    char *text = malloc(*size);
    assert_non_null(text);
    memcpy(text, front, strlen(front));
    memset(text + strlen(front), c, n);
    return text;
}

static void names_keys_and_words_end_at_their_limits(void **state) {
    (void)state;
    size_t n;
    char *text = filled(CALL "call:", 'x', TD_REPLY_MAX_NAME + 1, &n);
    expect_fault(text, n, "[C]call:xxx", "");
    free(text);
    text = filled(CALL "call:f{", 'x', TD_REPLY_MAX_NAME + 1, &n);
    expect_fault(text, n, "[T f]{[!][C]xxx", "a key of more than 256 bytes");
    free(text);
    text = filled(CALL "call:f{a:", 'x', TD_REPLY_MAX_VALUE + 1, &n);
    expect_fault(text, n, "[T f]{\"a\":[!][C]xxx", "a word of more than 8388608 bytes");
    free(text);
    text = filled(CALL "call:f{a:" Q, 'x', TD_REPLY_MAX_VALUE + 1, &n); /* a string streams: no limit */
    expect_fault(text, n, "[T f]{\"a\":\"xxx", "the answer ended inside the arguments");
    free(text);
}

/* Without linear time, these take minutes. */
static void hostile_repetition_is_linear(void **state) {
    (void)state;
    static const char *const units[] = {
        "<",    "<|", "<|channel>",        CALL, CALL "call:f{", "call:f{a:x,",
        "x,y:", Q,    "<|channel>thought", " ",  "\n<",          CALL "call:f{a:x,b:" Q "," Q ",c:{d:y,"};
    for (size_t u = 0; u < sizeof units / sizeof *units; u++) {
        for (int front = 0; front < 3; front++) {
            const reply_case c = {"repetition", GEMMA4, "", "", NULL, front == 2};
            td_buf b;
            transcript t;
            td_buf_init(&b, 1 << 23);
            transcript_init(&t);
            assert_int_equal(td_buf_puts(&b, front == 1 ? CALL "call:f{a:x" : ""), TD_OK);
            while (b.size < 1 << 19)
                assert_int_equal(td_buf_puts(&b, units[u]), TD_OK);
            assert_int_equal(run_pieces(&c, NULL, b.data, b.size, NULL, 0, &t), TD_OK);
            check_no_markers(&c, &t);
            transcript_free(&t);
            td_buf_free(&b);
        }
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(thoughts_of_any_cut),
        cmocka_unit_test(calls_of_any_cut),
        cmocka_unit_test(slips_of_any_cut),
        cmocka_unit_test(malformed_of_any_cut),
        cmocka_unit_test(no_allocation_failure_leaks),
        cmocka_unit_test(nesting_ends_at_its_limit),
        cmocka_unit_test(names_keys_and_words_end_at_their_limits),
        cmocka_unit_test(hostile_repetition_is_linear),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
