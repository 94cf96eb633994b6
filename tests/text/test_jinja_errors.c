/* test_jinja_errors.c - malformed templates and failing operations: each gives one line that names the place. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/status.h"
#include "text/jinja.h"

static td_status run(const char *source, size_t size, td_error *err) {
    td_jinja *t = NULL;
    td_buf out;
    td_buf_init(&out, 4096);
    td_status st = td_jinja_compile(&t, source, size, "t", err);
    if (st == TD_OK)
        st = td_jinja_render(t, NULL, NULL, &out, err);
    td_jinja_free(&t);
    td_buf_free(&out);
    return st;
}

static void every_error_names_its_place(void **state) {
    (void)state;
    static const struct {
        const char *source;
        td_status status;
        const char *message;
    } cases[] = {
        {"{% if %}x{% endif %}", TD_E_FORMAT, "t:1:7: unexpected '%}', expected an expression"},
        {"{% if x %}", TD_E_FORMAT,
         "t:1:11: unexpected end of the template, expected 'endif' for the block of line 1, column 4"},
        {"a\nb\n  {% if x %}\n{% for y in z %}\n{% endif %}", TD_E_FORMAT,
         "t:5:4: unexpected 'endif', expected 'endfor' for the block of line 4, column 4"},
        {"{% endif %}", TD_E_FORMAT, "t:1:4: unexpected 'endif', expected a block to have been opened"},
        {"{% for in x %}{% endfor %}", TD_E_FORMAT, "t:1:11: unexpected 'x', expected 'in'"},
        {"{% for x of y %}{% endfor %}", TD_E_FORMAT, "t:1:10: unexpected 'of', expected 'in'"},
        {"{% for x in y %}", TD_E_FORMAT,
         "t:1:17: unexpected end of the template, expected 'endfor' for the block of line 1, column 4"},
        {"{{ 1 + }}", TD_E_FORMAT, "t:1:8: unexpected '}}', expected an expression"},
        {"{{ (1 }}", TD_E_FORMAT, "t:1:7: unexpected '}', expected ')'"},
        {"{{ [1, 2 }}", TD_E_FORMAT, "t:1:10: unexpected '}', expected ']'"},
        {"{{ {1: 2, }", TD_E_FORMAT, "t:1:12: unexpected end of the template, expected '}}'"},
        {"{{ {1 2} }}", TD_E_FORMAT, "t:1:7: unexpected '2', expected ':'"},
        {"{{ 'abc }}", TD_E_FORMAT, "t:1:4: this string has no end"},
        {"{{ x", TD_E_FORMAT, "t:1:5: unexpected end of the template, expected '}}'"},
        {"{{ x | }}", TD_E_FORMAT, "t:1:8: unexpected '}}', expected a name"},
        {"{{ x | nosuch }}", TD_E_UNSUPPORTED, "t:1:8: no filter named 'nosuch'"},
        {"{{ x is nosuch }}", TD_E_UNSUPPORTED, "t:1:9: no test named 'nosuch'"},
        {"{{ x is }}", TD_E_FORMAT, "t:1:9: unexpected '}}', expected a name"},
        {"{% set 1 = 2 %}", TD_E_FORMAT, "t:1:8: unexpected '1', expected a name to assign to"},
        {"{% set x %}", TD_E_FORMAT,
         "t:1:12: unexpected end of the template, expected 'endset' for the block of line 1, column 4"},
        {"{% set x y %}", TD_E_FORMAT, "t:1:10: unexpected 'y', expected '=' or '%}'"},
        {"{% set %}", TD_E_FORMAT, "t:1:8: unexpected '%}', expected a name to assign to"},
        {"{% macro %}", TD_E_FORMAT, "t:1:10: unexpected '%}', expected a name"},
        {"{% macro m(a=1, b) %}{% endmacro %}", TD_E_FORMAT, "t:1:17: a parameter without a default follows one with"},
        {"{% macro m(a %}", TD_E_FORMAT, "t:1:15: unexpected '}', expected ')'"},
        {"{% call x %}{% endcall %}", TD_E_FORMAT, "t:1:4: a call block needs a call, as in {% call name() %}"},
        {"{% call(a) b() %}", TD_E_FORMAT,
         "t:1:18: unexpected end of the template, expected 'endcall' for the block of line 1, column 4"},
        {"{# open", TD_E_FORMAT, "t:1:1: this comment has no end: expected '#}'"},
        {"{% raw %}open", TD_E_FORMAT, "t:1:1: this raw block has no end: expected '{% endraw %}'"},
        {"{% nosuch %}", TD_E_FORMAT, "t:1:4: unknown block 'nosuch'"},
        {"{% break %}", TD_E_FORMAT, "t:1:4: 'break' outside of a loop"},
        {"{% for x in y %}{% macro m() %}{% break %}{% endmacro %}{% endfor %}", TD_E_FORMAT,
         "t:1:35: 'break' outside of a loop"},
        {"{% include \"x\" %}", TD_E_UNSUPPORTED,
         "t:1:4: chat templates stand alone: extends, include, import, from, block and autoescape are not supported"},
        {"{% extends \"x\" %}", TD_E_UNSUPPORTED,
         "t:1:4: chat templates stand alone: extends, include, import, from, block and autoescape are not supported"},
        {"{% block x %}{% endblock %}", TD_E_UNSUPPORTED,
         "t:1:4: chat templates stand alone: extends, include, import, from, block and autoescape are not supported"},
        {"{{ f(a=1, 2) }}", TD_E_FORMAT, "t:1:11: unexpected '2', expected a keyword argument, since one came before"},
        {"{{ f(**a, b) }}", TD_E_FORMAT, "t:1:11: unexpected 'b', expected ')' after '**'"},
        {"{{ a.b. }}", TD_E_FORMAT, "t:1:9: unexpected '}}', expected a name"},
        {"{{ a. }}", TD_E_FORMAT, "t:1:7: unexpected '}}', expected a name"},
        {"{{ a[ }}", TD_E_FORMAT, "t:1:7: unexpected '}', expected ']'"},
        {"{{ a[1:2:3:4] }}", TD_E_FORMAT, "t:1:11: unexpected ':', expected ']'"},
        {"{{ 99999999999999999999 }}", TD_E_FORMAT, "t:1:4: malformed number, or one that does not fit 64 bits"},
        {"{{ \"\\x4\" }}", TD_E_FORMAT, "t:1:5: malformed escape in a string"},
        {"{{ \"\\ud800\" }}", TD_E_FORMAT, "t:1:5: malformed escape in a string"},
        {"{{ a ? b }}", TD_E_FORMAT, "t:1:6: unexpected character '?'"},
        {"{{ ) }}", TD_E_FORMAT, "t:1:4: unexpected ')'"},
        {"{{ (] }}", TD_E_FORMAT, "t:1:5: unexpected ']', expected ')'"},
        {"{% else %}", TD_E_FORMAT, "t:1:4: unexpected 'else', expected a block to have been opened"},
        {"{% if x %}{% else %}{% elif y %}{% endif %}", TD_E_FORMAT,
         "t:1:24: unexpected 'elif', expected 'endif' for the block of line 1, column 4"},
        {"{% if x %}{% endfor %}", TD_E_FORMAT,
         "t:1:14: unexpected 'endfor', expected 'endif' for the block of line 1, column 4"},
        {"{{ a b }}", TD_E_FORMAT, "t:1:6: unexpected 'b', expected '}}'"},
        {"{% if a b %}{% endif %}", TD_E_FORMAT, "t:1:9: unexpected 'b', expected '%}'"},
        {"{% filter %}x{% endfilter %}", TD_E_FORMAT, "t:1:11: unexpected '%}', expected a name"},
        {"{% with a %}{% endwith %}", TD_E_FORMAT, "t:1:11: unexpected '%}', expected '='"},
        {"{% 1 %}", TD_E_FORMAT, "t:1:4: unexpected '1', expected the name of a block"},
        {"{{}}", TD_E_FORMAT, "t:1:3: unexpected '}}', expected an expression"},
        {"{%%}", TD_E_FORMAT, "t:1:3: unexpected '%}', expected the name of a block"},
        {"{{ not }}", TD_E_FORMAT, "t:1:8: unexpected '}}', expected an expression"},
        {"{{ 1 if }}", TD_E_FORMAT, "t:1:9: unexpected '}}', expected an expression"},
        {"{{ x is defined is none }}", TD_E_FORMAT,
         "t:1:17: unexpected 'is', expected no second 'is': tests do not chain"},
        {"{{ \303\251 + }}", TD_E_FORMAT, "t:1:8: unexpected '}}', expected an expression"},
        {"\303\251\n \303\251{{ \303\251 + }}", TD_E_FORMAT, "t:2:10: unexpected '}}', expected an expression"},
        {"{{ true = 1 }}", TD_E_FORMAT, "t:1:9: unexpected '=', expected '}}'"},
        {"{% set true = 1 %}", TD_E_FORMAT, "t:1:8: unexpected 'true', expected a name to assign to, not a constant"},
        {"{% generation %}", TD_E_FORMAT,
         "t:1:17: unexpected end of the template, expected 'endgeneration' for the block of line 1, column 4"},
        {"{% do %}", TD_E_FORMAT, "t:1:7: unexpected '%}', expected an expression"},
        {"{{ 007 }}", TD_E_FORMAT, "t:1:6: unexpected '7', expected '}}'"},
        {"{% for x in y %}{% else %}{% else %}{% endfor %}", TD_E_FORMAT,
         "t:1:30: unexpected 'else', expected 'endfor' for the block of line 1, column 4"},
        {"{{ a | default( }}", TD_E_FORMAT, "t:1:17: unexpected '}', expected ')'"},
        {"{{ \"a\" \"b }}", TD_E_FORMAT, "t:1:8: this string has no end"},
        {"{{ #}", TD_E_FORMAT, "t:1:4: unexpected character '#'"},
        {"{%- if x -%}", TD_E_FORMAT,
         "t:1:13: unexpected end of the template, expected 'endif' for the block of line 1, column 5"},
        {"{{ u.x }}", TD_E_FORMAT, "t:1:6: 'u' is undefined"},
        {"a\n{{ u + 1 }}", TD_E_FORMAT, "t:2:6: 'u' is undefined"},
        {"{{ {}.a.b }}", TD_E_FORMAT, "t:1:9: 'dict object' has no attribute 'a'"},
        {"{{ [1][3].x }}", TD_E_FORMAT, "t:1:11: list object has no element 3"},
        {"{{ 'a' + 1 }}", TD_E_FORMAT, "t:1:8: can only concatenate str (not \"int\") to str"},
        {"{{ 1 // 0 }}", TD_E_FORMAT, "t:1:6: division by zero"},
        {"{{ 'a'.nope() }}", TD_E_FORMAT, "t:1:12: 'str object' has no attribute 'nope'"},
        {"{{ 5() }}", TD_E_FORMAT, "t:1:5: 'int' object is not callable"},
        {"{% for x in 5 %}{% endfor %}", TD_E_FORMAT, "t:1:4: 'int' object is not iterable"},
        {"{% set x.y = 1 %}", TD_E_FORMAT, "t:1:8: 'x' is undefined"},
        {"{% set x = {} %}{% set x.y = 1 %}", TD_E_FORMAT,
         "t:1:24: only a namespace() has attributes that can be assigned to, not a dict"},
        {"{{ 'a'|map('nosuch')|list }}", TD_E_UNSUPPORTED, "t:1:8: no filter named 'nosuch'"},
        {"{{ [1]|select('nosuch')|list }}", TD_E_UNSUPPORTED, "t:1:8: no test named 'nosuch'"},
        {"{{ 'a'|replace('b') }}", TD_E_FORMAT, "t:1:8: 'replace' needs its argument 'new'"},
        {"{{ 'a'.split('') }}", TD_E_FORMAT, "t:1:13: empty separator"},
        {"{{ 9223372036854775807 + 1 }}", TD_E_LIMIT, "t:1:24: the result does not fit a 64-bit integer"},
        {"{{ 2 ** 64 }}", TD_E_LIMIT, "t:1:6: the result does not fit a 64-bit integer"},
        {"{{ -(-9223372036854775807 - 1) }}", TD_E_LIMIT, "t:1:4: the result does not fit a 64-bit integer"},
        {"{{ 'a'|indent(width='x', nope=1) }}", TD_E_FORMAT, "t:1:8: 'indent' has no parameter 'nope'"},
        {"{{ range(1, 2, 0) }}", TD_E_FORMAT, "t:1:9: range: the step must not be zero"},
        {"{{ '%d' % 'x' }}", TD_E_FORMAT, "t:1:9: format code 'd' does not fit a value of type str"},
        {"{{ '%s %s' % 'x' }}", TD_E_FORMAT, "t:1:12: not enough arguments for format string"},
        {"{{ '{} {}'.format(1) }}", TD_E_FORMAT, "t:1:18: a format field has no argument"},
        {"{{ '{'.format(1) }}", TD_E_FORMAT, "t:1:14: expected '}' before end of string"},
        {"{{ [1, 'a']|sort }}", TD_E_FORMAT, "t:1:13: '<' not supported between instances of 'str' and 'int'"},
        {"{{ {}|sum }}{{ ['a']|sum }}", TD_E_FORMAT, "t:1:22: unsupported operand types for +: 'int' and 'str'"},
        {"{{ strftime_now(1) }}", TD_E_FORMAT, "t:1:16: strftime_now: expected a string, got int"},
        {"{{ (1).real.imag }}", TD_E_FORMAT, "t:1:13: 'int object' has no attribute 'real'"},
        {"{{ namespace(1) }}", TD_E_FORMAT, "t:1:13: 'int' object is not iterable"},
        {"{{ dict([1]) }}", TD_E_FORMAT, "t:1:8: 'int' object is not iterable"},
        {"{{ [1,2]|join(1,2,3) }}", TD_E_FORMAT, "t:1:10: 'join' takes at most 2 arguments, got 3"},
        {"{% macro m() %}{% endmacro %}{% call m() %}x{% endcall %}", TD_E_FORMAT,
         "t:1:39: macro 'm' takes no keyword argument 'caller'"},
        {"{% for x in [1] %}{{ loop([2]) }}{% endfor %}", TD_E_FORMAT,
         "t:1:26: this loop is not recursive: it needs the word 'recursive' to be called"},
        {"{% call 1|abs() %}{% endcall %}", TD_E_FORMAT, "t:1:4: a call block needs a call, as in {% call name() %}"},
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_error err = {0};
        td_status st = run(cases[i].source, strlen(cases[i].source), &err);
        if (st == cases[i].status && !strcmp(err.message, cases[i].message))
            continue;
        wrong++;
        print_error("%s\n  wanted: %s %s\n  got:    %s %s\n", cases[i].source, td_status_name(cases[i].status),
                    cases[i].message, td_status_name(st), err.message);
    }
    assert_int_equal(wrong, 0);
}

static void the_position_is_a_byte(void **state) {
    (void)state;
    td_error err = {0};
    static const char source[] = "\303\251\n{{ x. }}";
    assert_int_equal(run(source, strlen(source), &err), TD_E_FORMAT);
    assert_string_equal(err.message, "t:2:7: unexpected '}}', expected a name");
    assert_int_equal(err.position, 9);
}

static void a_source_must_be_utf8(void **state) {
    (void)state;
    static const char *const bad[] = {"ab\xff", "ab\xc3", "ab\xed\xa0\x80", "ab\xc0\x80", "ab\xf5\x80\x80\x80"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        td_error err = {0};
        assert_int_equal(run(bad[i], strlen(bad[i]), &err), TD_E_FORMAT);
        assert_string_equal(err.message, "t:1:3: not UTF-8");
        assert_int_equal(err.position, 2);
    }
}

static void a_nul_is_a_character_like_others(void **state) {
    (void)state;
    td_error err = {0};
    assert_int_equal(run("a\0{{ 1 }}", 9, &err), TD_OK);
    assert_int_equal(run("{{ \0 }}", 7, &err), TD_E_FORMAT);
    assert_int_equal(err.position, 3);
}

/* Cutting a template anywhere gives a template or an error, never a crash. */
static void every_prefix_is_survived(void **state) {
    (void)state;
    static const char source[] =
        "{%- macro m(a, b='x\\n\303\251') -%}{{ a[1:2].b|default({'k': [1, 2.5e3, (3,)]}, true) ~ \"q\" }}{%- endmacro "
        "%}"
        "{% for k, v in d.items() if k is not none %}{% if v == 1 %}{# c #}{% elif not v %}{% raw %}{{{% endraw %}"
        "{% else %}{% set ns.x | upper %}y{% endset %}{% endif %}{% endfor %}{% call(z) m(*l, **d) %}{{ z }}{% endcall "
        "%}";
    for (size_t n = 0; n <= sizeof source - 1; n++) {
        td_error err = {0};
        td_status st = run(source, n, &err);
        assert_true(st == TD_OK || st == TD_E_FORMAT || st == TD_E_UNSUPPORTED); /* "|defau" */
        assert_true(st == TD_OK || !strncmp(err.message, "t:1:", 4));
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_error_names_its_place), cmocka_unit_test(the_position_is_a_byte),
        cmocka_unit_test(a_source_must_be_utf8),       cmocka_unit_test(a_nul_is_a_character_like_others),
        cmocka_unit_test(every_prefix_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
