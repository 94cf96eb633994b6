/* test_tokenizer_pattern.c - the translation of regular expressions, what it refuses, and searches that hostile
 * expressions or texts would make run on. (What translated expressions match is compared with the reference in
 * test_tokenizer_components.c.) */
#include "test_tokenizer_util.h"

#include "text/tokenizer_dialect.h"
#include "text/tokenizer_pattern.h"

static void what_differs_is_rewritten(void **state) {
    (void)state;
    static const struct {
        const char *from, *to;
    } cases[] = {
        {"abc", "abc"},
        {"\\p{L}+|\\p{Nd}?", "\\p{L}+|\\p{Nd}?"},
        {"\\p{Han}", "\\p{sc:Han}"},
        {"[\\P{Greek}]", "[\\P{sc:Greek}]"},
        {"\\p{^Lu}", "\\p{^Lu}"},
        {"\\d\\D", "\\p{Nd}\\P{Nd}"},
        {"\\h", "[0-9A-Fa-f]"},
        {"[\\h_]", "[0-9A-Fa-f_]"},
        {"\\v[\\v\\b]", "\\x{B}[\\x{B}\\x{8}]"},
        {"\\u00e9\\x41\\x{1F600}", "\\x{00e9}\\x{41}\\x{1F600}"},
        {"a{2}+", "(?:a{2})+"},
        {"[ab]{1,3}+", "(?:[ab]{1,3})+"},
        {"(a|b){1,3}*x", "(?:(a|b){1,3})*x"},
        {"a{,3}", "a{0,3}"},
        {"a{2,}?b", "a{2,}?b"},
        {"{a}{1,2", "\\{a}\\{1,2"},
        {"a++b*+c?+", "a++b*+c?+"},
        {"(?m:.)", "(?s:.)"},
        {"(?i)a", "(?i)a"},
        {"[a[bc]d]", "[abcd]"},
        {"[^a[b-d]]", "[^ab-d]"},
        {"[[:digit:]-x]", "[\\p{Nd}\\-x]"},
        {"[]a]", "[\\]a]"},
        {"\\-\\_\\/\\\\", "\\-\\_\\/\\\\"},
        {"\\\xC3\xA9\xC3\xA9", "\xC3\xA9\xC3\xA9"},
        {"(?<=a)(?<!b)(?=c)(?!d)(?>e)", "(?<=a)(?<!b)(?=c)(?!d)(?>e)"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_buf out;
        td_error err;
        td_buf_init(&out, 10000);
        if (td_dialect_translate(cases[i].from, strlen(cases[i].from), &out, &err) != TD_OK)
            fail_msg("%s: %s", cases[i].from, err.message);
        assert_string_equal(td_buf_str(&out), cases[i].to);
        td_buf_free(&out);
    }
}

static void what_has_no_translation_is_refused(void **state) {
    (void)state;
    static const struct {
        const char *pattern, *message;
    } cases[] = {
        {"[a&&b]", "an intersection of classes at character 2"},
        {"[a[^b]]", "a negated class inside a class at character 2"},
        {"[[:^alpha:]]", "an unknown POSIX class"},
        {"[[:graph:]]", "an unknown POSIX class"},
        {"[abc", "a class without an end at character 0"},
        {"(?~abc)", "an unknown group"},
        {"(?<name>a)", "an unknown group"},
        {"(?", "a group without an end"},
        {"(*FAIL)", "a callout"},
        {"(*LIMIT_MATCH=1)a", "a callout"},
        {"\\K", "an escape of another dialect"},
        {"a\\C", "an escape of another dialect at character 1"},
        {"\\", "a backslash at the end"},
        {"[\\", "a class without an end"},
        {"\\pL", "a property without braces"},
        {"\\p{L", "a property without a closing brace"},
        {"\\p{L&}", "an unknown property"},
        {"\\x{110", "a malformed code point"},
        {"\\u12", "a malformed code point"},
        {"\\xFF", "a raw byte"},
        {"a(?i)b|c", "flags without a group after the start"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_pattern *p;
        td_error err;
        long live = td_alloc_live();
        td_status st = td_pattern_regex(&p, cases[i].pattern, strlen(cases[i].pattern), &err);
        if (st != TD_E_UNSUPPORTED || !strstr(err.message, cases[i].message))
            fail_msg("%s: %s: %s", cases[i].pattern, td_status_name(st), st == TD_OK ? "" : err.message);
        assert_null(p);
        assert_int_equal(td_alloc_live(), live);
    }
}

static void depth_has_a_limit(void **state) {
    (void)state;
    char deep[400];
    td_pattern *p;
    td_error err;
    memset(deep, '(', sizeof deep);
    assert_int_equal(td_pattern_regex(&p, deep, sizeof deep, &err), TD_E_UNSUPPORTED);
    memset(deep, '[', sizeof deep);
    assert_int_equal(td_pattern_regex(&p, deep, sizeof deep, &err), TD_E_UNSUPPORTED);
}

static void what_is_malformed_is_said_by_pcre(void **state) {
    (void)state;
    static const char *const patterns[] = {"(a", "a)", "*a", "[b-a]", "\\p{Nonsense}", "(?<=a*)b", "a{5,2}"};
    for (size_t i = 0; i < sizeof patterns / sizeof patterns[0]; i++) {
        td_pattern *p;
        td_error err;
        assert_int_equal(td_pattern_regex(&p, patterns[i], strlen(patterns[i]), &err), TD_E_FORMAT);
        assert_non_null(strstr(err.message, patterns[i]));
        assert_null(p);
    }
}

/* ---- searching ---- */

/* Walks over all matches; their number, or a failure's status. */
static int count(const char *expression, const char *text, size_t size, td_error *err) {
    td_pattern *p;
    td_pattern_work work = {0};
    assert_int_equal(td_pattern_regex(&p, expression, strlen(expression), err), TD_OK);
    td_pattern_walk w = td_pattern_walk_begin(p, &work, text, size);
    int n = 0;
    bool found;
    td_status st;
    while ((st = td_pattern_walk_next(&w, &found, err)) == TD_OK && found)
        n++;
    td_pattern_work_free(&work);
    td_pattern_free(&p);
    return st == TD_OK ? n : (int)st;
}

static void empty_matches_are_counted_once(void **state) {
    (void)state;
    td_error err;
    assert_int_equal(count("x*", "axxb", 4, &err), 3);     /* before a, xx, at the end */
    assert_int_equal(count("", "a\xC3\xA9z", 4, &err), 4); /* before each character, and at the end */
    assert_int_equal(count("x*", "", 0, &err), 0);
}

/* Exponential in the text: stopped, with the place named. */
static void a_hostile_expression_is_stopped(void **state) {
    (void)state;
    char text[64];
    td_error err;
    memset(text, 'a', sizeof text);
    text[60] = '!';
    assert_int_equal(count("(a+)+\\z", text, 61, &err), TD_E_LIMIT);
    assert_non_null(strstr(err.message, "match limit exceeded"));
    assert_int_equal(err.position, 0);
    assert_int_equal(count("(?:a|aa)+\\z", text, 61, &err), TD_E_LIMIT);
}

/* A repeated group on a long run needs more stack than the JIT has; the heap does it. */
static void a_long_repetition_of_a_group(void **state) {
    (void)state;
    enum { N = 200000 };
    char *text = td_malloc(N);
    td_error err;
    for (int i = 0; i < N; i++)
        text[i] = i % 2 ? 'b' : 'a';
    assert_int_equal(count("(?:a|b)+c?", text, N, &err), 1);
    td_free(text);
}

/* Qwen's expression on texts that make it look far ahead: linear, or this test takes hours. */
static void published_expressions_are_linear(void **state) {
    (void)state;
    static const char qwen[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}| "
                               "?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
    static const char *const units[] = {" ",  "\n",           " \n",      "  x", "a",      "'",
                                        "'s", "\xE6\x97\xA5", "\xCC\x81", "1",   "\t \r\n"};
    enum { N = 1 << 20 };
    char *text = td_malloc(N);
    td_error err;
    for (size_t u = 0; u < sizeof units / sizeof units[0]; u++) {
        size_t n = strlen(units[u]), size = 0;
        for (; size + n + 1 < N; size += n)
            memcpy(text + size, units[u], n);
        text[size++] = 'x';
        assert_true(count(qwen, text, size, &err) > 0);
    }
    td_free(text);
}

static void literals_are_found(void **state) {
    (void)state;
    td_pattern *p;
    td_pattern_work work = {0};
    td_error err;
    bool found;
    assert_int_equal(td_pattern_literal(&p, "", 0, &err), TD_E_UNSUPPORTED);
    assert_int_equal(td_pattern_literal(&p, "aa", 2, &err), TD_OK);
    td_pattern_walk w = td_pattern_walk_begin(p, &work, "aaaxaa", 6);
    assert_int_equal(td_pattern_walk_next(&w, &found, &err), TD_OK);
    assert_true(found && w.start == 0 && w.end == 2);
    assert_int_equal(td_pattern_walk_next(&w, &found, &err), TD_OK);
    assert_true(found && w.start == 4 && w.end == 6);
    assert_int_equal(td_pattern_walk_next(&w, &found, &err), TD_OK);
    assert_false(found);
    td_pattern_work_free(&work);
    td_pattern_free(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_differs_is_rewritten),
        cmocka_unit_test(what_has_no_translation_is_refused),
        cmocka_unit_test(depth_has_a_limit),
        cmocka_unit_test(what_is_malformed_is_said_by_pcre),
        cmocka_unit_test(empty_matches_are_counted_once),
        cmocka_unit_test(a_hostile_expression_is_stopped),
        cmocka_unit_test(a_long_repetition_of_a_group),
        cmocka_unit_test(published_expressions_are_linear),
        cmocka_unit_test(literals_are_found),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
