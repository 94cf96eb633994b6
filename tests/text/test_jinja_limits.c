/* test_jinja_limits.c - a hostile template or message meets a ceiling and gives one clear error: no crash, no hang, no
 * memory out of proportion; and running out of memory anywhere is survived. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "text/jinja.h"

static td_status run(const char *source, const json_t *context, const td_jinja_options *options, size_t ceiling,
                     td_error *err) {
    td_jinja *t = NULL;
    td_buf out;
    td_buf_init(&out, ceiling);
    td_status st = td_jinja_compile(&t, source, strlen(source), "t", err);
    if (st == TD_OK)
        st = td_jinja_render(t, context, options, &out, err);
    td_jinja_free(&t);
    td_buf_free(&out);
    return st;
}

/* prefix + n times middle + suffix; td_free. */
static char *repeated(const char *prefix, const char *middle, size_t n, const char *suffix) {
    td_buf b;
    td_buf_init(&b, (size_t)1 << 30);
    td_buf_puts(&b, prefix);
    for (size_t i = 0; i < n; i++)
        td_buf_puts(&b, middle);
    td_buf_puts(&b, suffix);
    return td_buf_steal(&b);
}

static void deep_sources_are_refused_or_rendered(void **state) {
    (void)state;
    static const struct {
        const char *prefix, *middle, *suffix;
        size_t n;
        td_status status;
    } cases[] = {
        {"{{ ", "(", "", 50000, TD_E_LIMIT},
        {"{{ ", "[", "", 50000, TD_E_LIMIT},
        {"{{ ", "{1:", "", 50000, TD_E_LIMIT},
        {"{{ ", "not ", "1 }}", 50000, TD_E_LIMIT},
        {"{{ ", "-", "1 }}", 50000, TD_E_LIMIT},
        {"{{ 1", "+1", " }}", 50000, TD_E_LIMIT},
        {"{{ 1", "+1", " }}", 300, TD_OK},
        {"{{ 1", "~1", " }}", 50000, TD_OK},
        {"{{ 1", " and 1", " }}", 20000, TD_E_LIMIT},
        {"{{ 1", " < 2 == 1", " }}", 10, TD_OK},
        {"{{ x", ".a", " }}", 50000, TD_E_LIMIT},
        {"{{ x", "[0]", " }}", 50000, TD_E_LIMIT},
        {"{{ x", "()", " }}", 50000, TD_E_LIMIT},
        {"{{ x", "|e", " }}", 50000, TD_E_LIMIT},
        {"{{ x", "|e", " }}", 300, TD_OK},
        {"{{ 1", " if 1 else 2", " }}", 15000, TD_E_LIMIT},
        {"", "{% if 1 %}", "", 20000, TD_E_LIMIT},
        {"", "{% for x in y %}", "", 15000, TD_E_LIMIT},
        {"{% if 0 %}", "{% elif 0 %}", "{% endif %}", 20000, TD_OK},
        {"", "{{ 1 }}", "", 30000, TD_OK},
        {"{% set ", "(", "", 50000, TD_E_LIMIT},
        {"{{ [", "1,", "] }}", 50000, TD_OK},
        {"{{ ", "'a' ", "}}", 50000, TD_OK},
        {"", "{", "", 50000, TD_E_LIMIT},
        {"", "{#", "", 50000, TD_E_FORMAT},
        {"{{ f(", "a=1,", ") }}", 50000, TD_E_FORMAT}, /* f is undefined */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_error err = {0};
        char *source = repeated(cases[i].prefix, cases[i].middle, cases[i].n, cases[i].suffix);
        td_status st = run(source, NULL, NULL, 1 << 20, &err);
        if (st != cases[i].status)
            fail_msg("%zu times '%s': %s", cases[i].n, cases[i].middle, st == TD_OK ? "rendered" : err.message);
        td_free(source);
    }
}

static void runs_that_grow_are_stopped(void **state) {
    (void)state;
    static const struct {
        const char *source, *message;
    } cases[] = {
        {"{% set r = range(99999) %}{% for a in r %}{% for b in r %}{% endfor %}{% endfor %}",
         "more than 30000000 steps"},
        {"{{ range(100001) }}", "a range of 100001 items, expected at most 100000"},
        {"{{ range(-9223372036854775807, 9223372036854775807) }}", "expected at most 100000"},
        {"{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}", "macro 'm': calls nested deeper than 128 levels"},
        {"{% macro m(x) %}{{ caller() }}{% endmacro %}{% macro n() %}{% call m(1) %}{{ n() }}{% endcall %}{% endmacro "
         "%}"
         "{{ n() }}",
         "nested deeper"},
        {"{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}", "nested deeper than 2000 levels"},
        {"{{ 'ab' * 999999999999 }}", "the values take more than"},
        {"{{ [1] * 999999999999 }}", "the values take more than"},
        {"{{ [1, 2, 3] * 9223372036854775807 }}", "too long"},
        {"{{ 'x'.zfill(999999999999) }}", "the text is longer than 65536 bytes"},
        {"{{ '%999999999d' % 1 }}", "a width or precision in a format is too large"},
        {"{{ '{:999999999}'.format(1) }}", "a width or precision in a format is too large"},
        {"{{ ['a']|batch(99999999)|list }}", "batch: expected a size from 1 to 100000"},
        {"{% set ns = namespace(s='ab') %}{% for i in range(64) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
         "the values take more than"},
        {"{% set ns = namespace(l=[1]) %}{% for i in range(64) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
         "the values take more than"},
        {"{% set ns = namespace(s='ab') %}{% for i in range(64) %}{% set ns.s = ns.s.replace('', ns.s) %}{% endfor %}",
         "the text is longer than 65536 bytes"},
        {"{% for i in range(99999) %}0123456789{% endfor %}", "the text is longer than 65536 bytes"},
        {"{% set l = [] %}{% set _ = l.append(l) %}{{ l }}", "nested deeper than 2000 levels"},
        {"{% set l = [] %}{% set _ = l.append(l) %}{{ l|tojson }}", "nested deeper than 2000 levels"},
        {"{% set l = [] %}{% set m = [] %}{% set _ = l.append(m) or m.append(l) %}{{ l == m }}",
         "nested deeper than 2000 levels"},
        {"{% set l = [] %}{% set m = [] %}{% set _ = l.append(m) or m.append(l) %}{{ l < m }}",
         "nested deeper than 2000 levels"},
        {"{% set ns = namespace(d={}) %}{% for i in range(5000) %}{% set ns.d = {'a': ns.d} %}{% endfor %}{{ ns.d }}",
         "nested deeper than 2000 levels"},
        /* a small graph that is a large tree */
        {"{% set ns = namespace(a=[1], b=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}"
         "{% set ns.b = [ns.b, ns.b] %}{% endfor %}{{ ns.a == ns.b }}",
         "more than 30000000 steps"},
        {"{% set ns = namespace(a=[1]) %}{% for i in range(60) %}{% set ns.a = [ns.a, ns.a] %}{% endfor %}{{ ns.a }}",
         "the text is longer than 65536 bytes"},
        /* quadratic searches */
        {"{{ ('a' * 20000000).rfind('b' ~ 'a' * 10000000) }}", "steps"},
        {"{{ ('a' * 20000000).rsplit('b' ~ 'a' * 10000000) }}", "steps"},
        {"{{ ('a' * 20000000).strip('b' * 1000000 ~ 'a') }}", "steps"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_error err = {0};
        td_status st = run(cases[i].source, NULL, NULL, 65536, &err);
        if (st != TD_E_LIMIT && !strstr(err.message, "batch"))
            fail_msg("%s: %s", cases[i].source, st == TD_OK ? "rendered" : err.message);
        if (!strstr(err.message, cases[i].message))
            fail_msg("%s\n  wanted: %s\n  got:    %s", cases[i].source, cases[i].message, err.message);
        assert_non_null(strstr(err.message, "t:1:"));
    }
}

static void options_lower_the_limits(void **state) {
    (void)state;
    td_error err = {0};
    td_jinja_options few_steps = {.max_steps = 100}, little_memory = {.max_memory = 10000};
    assert_int_equal(run("{% for i in range(60) %}{{ i }}{% endfor %}", NULL, &few_steps, 4096, &err), TD_E_LIMIT);
    assert_string_equal(err.message, "t:1:25: the template takes more than 100 steps");
    assert_int_equal(run("{{ 'a' * 20000 }}", NULL, &little_memory, 100000, &err), TD_E_LIMIT);
    assert_string_equal(err.message, "t:1:8: the values take more than 10000 bytes");
    assert_int_equal(run("{{ 'a' * 5000 }}", NULL, &little_memory, 100000, &err), TD_OK);
}

static void a_template_too_long_is_refused(void **state) {
    (void)state;
    td_error err = {0};
    char *source = repeated("", "x", TD_JINJA_MAX_TEMPLATE, "");
    assert_int_equal(run(source, NULL, NULL, TD_JINJA_MAX_TEMPLATE, &err), TD_OK);
    td_free(source);
    source = repeated("", "x", TD_JINJA_MAX_TEMPLATE + 1, "");
    assert_int_equal(run(source, NULL, NULL, TD_JINJA_MAX_TEMPLATE, &err), TD_E_LIMIT);
    assert_string_equal(err.message, "t: a template of 262145 bytes, expected at most 262144");
    td_free(source);
}

static void deep_messages_are_refused(void **state) {
    (void)state;
    td_error err = {0};
    json_t *deep = json_array();
    for (int i = 0; i < 2 * TD_JINJA_MAX_DEPTH; i++) {
        json_t *outer = json_array();
        json_array_append_new(outer, deep);
        deep = outer;
    }
    json_t *context = json_pack("{s:o}", "messages", deep);
    assert_int_equal(run("{{ messages }}", context, NULL, 4096, &err), TD_E_LIMIT);
    assert_non_null(strstr(err.message, "nested deeper than 2000 levels"));
    assert_int_equal(run("{{ other }}", context, NULL, 4096, &err), TD_OK); /* what is not read costs nothing */
    json_decref(context);
}

/* Building the prompt piece by piece costs memory in proportion to the prompt, not to its square. */
static void appending_in_a_loop_is_linear(void **state) {
    (void)state;
    td_error err = {0};
    td_jinja_options options = {.max_memory = 64 << 20};
    static const char source[] = "{% set ns = namespace(s='', t='') %}{% for i in range(20000) %}"
                                 "{% set ns.s = ns.s ~ piece %}{% set ns.t = ns.t + 'x' %}{% endfor %}"
                                 "{{ ns.s|length }} {{ ns.t|length }}";
    char *piece = repeated("", "0123456789", 40, "");
    json_t *context = json_pack("{s:s}", "piece", piece);
    assert_int_equal(run(source, context, &options, 4096, &err), TD_OK);
    json_decref(context);
    td_free(piece);
}

static void a_string_that_was_appended_to_keeps_its_text(void **state) {
    (void)state;
    td_jinja *t;
    td_buf out;
    static const char source[] =
        "{% set a = 'x' ~ 'y' %}{% set b = a ~ '1' %}{% set c = a ~ '2' %}{% set d = b + '3' %}"
        "{% set e = b + '4' %}{{ a }} {{ b }} {{ c }} {{ d }} {{ e }} {{ a ~ a }}";
    td_buf_init(&out, 4096);
    assert_int_equal(td_jinja_compile(&t, source, strlen(source), "t", NULL), TD_OK);
    assert_int_equal(td_jinja_render(t, NULL, NULL, &out, NULL), TD_OK);
    assert_string_equal(td_buf_str(&out), "xy xy1 xy2 xy13 xy14 xyxy");
    td_jinja_free(&t);
    td_buf_free(&out);
}

/* ---- out of memory ---- */

static const char busy[] =
    "{% macro m(a, b='q', c=none) %}{{ a }}{{ b }}{{ varargs }}{{ kwargs }}{% endmacro %}"
    "{% set ns = namespace(s='', n=0) %}{% set d = dict(x=1, y={'z': [1, 2.5, 'a\\tb']}) %}"
    "{% for k, v in d.items() if k %}{{ loop.index ~ k ~ v }}{% set ns.s = ns.s ~ k ~ '0123456789' * 20 %}{% endfor %}"
    "{{ m(1, 2, 3, 4, w=5) }}{{ d|tojson(indent=2, sort_keys=true) }}{{ [3, 1, 2]|sort|join(',') }}"
    "{{ 'a b c'.split()|map('upper')|list }}{{ ['b', 'a', 'B']|unique|list }}{{ [{'a': 1}]|groupby('a') }}"
    "{{ '%s-%(a)s' % {'a': 1} if false else '%5.1f' % 2 }}{{ '{:>5}'.format('x') }}{{ 'abc'[::-1] }}{{ range(3)|list }}"
    "{% set t %}cap{{ ns.s }}{% endset %}{{ t|length }}{% filter upper %}x{{ t[:3] }}{% endfilter %}"
    "{% macro c() %}({{ caller() }}){% endmacro %}{% call c() %}{{ t[0] }}{% endcall %}{{ [1, 2]|batch(1)|list }}{{ "
    "{'a': 1}|dictsort }}{{ cycler(1, 2).next() }}"
    "{{ 'x\\ny'|indent }}{{ 'abc'|replace('b', 'BB') }}{{ [1, 2, 3]|select('odd')|list }}{{ 'a,b'.rsplit(',') }}";

static void every_failed_allocation_is_survived(void **state) {
    (void)state;
    const char *source = busy;
    long live = td_alloc_live();
    long k = 0;
    for (;; k++) {
        td_error err = {0};
        td_alloc_fail_at(k);
        td_status st = run(source, NULL, NULL, 1 << 20, &err);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        assert_int_equal(td_alloc_live(), live);
        if (!struck) {
            if (st != TD_OK)
                fail_msg("%s", err.message);
            break;
        }
        assert_int_equal(st, TD_E_NOMEM);
    }
    assert_true(k > 5);
}

/* Blocks hold many values, so failing blocks reaches few places. Shrinking the memory for values, 16 bytes at a time,
 * makes every single allocation of a value the one that fails. */
static void every_failed_value_is_survived(void **state) {
    (void)state;
    const char *source = busy;
    td_jinja *t;
    assert_int_equal(td_jinja_compile(&t, source, strlen(source), "t", NULL), TD_OK);
    long live = td_alloc_live();
    size_t failures = 0;
    td_status st = TD_E_LIMIT;
    for (size_t bytes = 16; st != TD_OK; bytes += 16) {
        td_error err = {0};
        td_jinja_options options = {.max_memory = bytes};
        td_buf out;
        td_buf_init(&out, 1 << 20);
        st = td_jinja_render(t, NULL, &options, &out, &err);
        assert_true(st == TD_OK || st == TD_E_LIMIT);
        assert_true(st == TD_OK ? out.size > 0 : out.size == 0);
        td_buf_free(&out);
        assert_int_equal(td_alloc_live(), live);
        failures += st != TD_OK;
    }
    assert_true(failures > 300);
    td_jinja_free(&t);
}

/* The same for the output buffer. */
static void every_output_ceiling_is_survived(void **state) {
    (void)state;
    const char *source = busy;
    td_status st = TD_E_LIMIT;
    size_t ceiling = 0;
    for (; st != TD_OK; ceiling++) {
        td_error err = {0};
        st = run(source, NULL, NULL, ceiling, &err);
        assert_true(st == TD_OK || st == TD_E_LIMIT);
    }
    assert_true(ceiling > 300);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(deep_sources_are_refused_or_rendered),
        cmocka_unit_test(runs_that_grow_are_stopped),
        cmocka_unit_test(options_lower_the_limits),
        cmocka_unit_test(a_template_too_long_is_refused),
        cmocka_unit_test(deep_messages_are_refused),
        cmocka_unit_test(appending_in_a_loop_is_linear),
        cmocka_unit_test(a_string_that_was_appended_to_keeps_its_text),
        cmocka_unit_test(every_failed_allocation_is_survived),
        cmocka_unit_test(every_failed_value_is_survived),
        cmocka_unit_test(every_output_ceiling_is_survived),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
