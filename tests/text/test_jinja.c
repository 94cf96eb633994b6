/* test_jinja.c - what templates mean: every row of snippets.json and goldens.json, whose texts Jinja2 itself made, and
 * the contract of the render call. */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/file.h"
#include "text/jinja.h"

#define TEMPLATES TD_FIXTURES "/templates/"

static json_t *load(const char *name) {
    char path[600];
    json_error_t error;
    snprintf(path, sizeof path, TEMPLATES "%s", name);
    json_t *json = json_load_file(path, JSON_ALLOW_NUL, &error);
    if (!json)
        fail_msg("%s:%d: %s", path, error.line, error.text);
    return json;
}

static td_status render(const char *source, size_t size, const json_t *context, const td_jinja_options *options,
                        td_buf *out, td_error *err) {
    td_jinja *t = NULL;
    td_status st = td_jinja_compile(&t, source, size, "t", err);
    assert_true((st == TD_OK) == (t != NULL));
    if (st == TD_OK)
        st = td_jinja_render(t, context, options, out, err);
    td_jinja_free(&t);
    assert_null(t);
    return st;
}

static int wrong; /* rows of a table that failed; all are shown before the test fails */

/* A row gives "text", or "error": words of the message. */
static void check_row(const char *name, const json_t *row, td_status st, td_buf *out, const td_error *err) {
    const json_t *text = json_object_get(row, "text"), *error = json_object_get(row, "error");
    bool good = text ? st == TD_OK && out->size == json_string_length(text) &&
                           !memcmp(td_buf_str(out), json_string_value(text), out->size)
                     : st != TD_OK && strstr(err->message, json_string_value(error));
    if (good)
        return;
    wrong++;
    print_error("%s\n  wanted: %s\n  got:    %s\n", name, json_string_value(text ? text : error),
                st == TD_OK ? td_buf_str(out) : err->message);
}

static void snippets_give_what_jinja2_gives(void **state) {
    (void)state;
    json_t *data = load("snippets.json"), *rows = json_object_get(data, "rows");
    td_jinja_options options = {.now = json_integer_value(json_object_get(data, "now"))};
    assert_true(json_array_size(rows) > 500);
    wrong = 0;
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i), *source = json_object_get(row, "template");
        td_error err = {0};
        td_buf out;
        td_buf_init(&out, 1 << 20);
        td_status st = render(json_string_value(source), json_string_length(source), json_object_get(data, "context"),
                              &options, &out, &err);
        check_row(json_string_value(source), row, st, &out, &err);
        td_buf_free(&out);
    }
    json_decref(data);
    assert_int_equal(wrong, 0);
}

static json_t *context_of(const json_t *data, const json_t *row) {
    const char *name = json_string_value(json_object_get(row, "conversation"));
    const char *variant = json_string_value(json_object_get(row, "variant"));
    json_t *context = json_copy(json_object_get(data, "special"));
    assert_int_equal(json_object_update(context, json_object_get(json_object_get(data, "variants"), variant)), 0);
    json_object_set(context, "messages", json_object_get(json_object_get(data, "conversations"), name));
    json_object_set_new(context, "add_generation_prompt", json_true());
    if (json_is_true(json_object_get(row, "tools")))
        json_object_set(context, "tools", json_object_get(data, "tools"));
    return context;
}

static void check_golden(const json_t *data, const json_t *row) {
    char path[600], name[700], *source;
    size_t size;
    td_error err = {0};
    td_buf out;
    const char *file = json_string_value(json_object_get(row, "template"));
    snprintf(path, sizeof path, TEMPLATES "%s", file);
    snprintf(name, sizeof name, "%s, %s, %s", file, json_string_value(json_object_get(row, "conversation")),
             json_string_value(json_object_get(row, "variant")));
    assert_int_equal(td_file_read(path, TD_JINJA_MAX_TEMPLATE, &source, &size, &err), TD_OK);
    json_t *context = context_of(data, row);
    td_jinja_options options = {.now = json_integer_value(json_object_get(data, "now"))};
    td_buf_init(&out, 1 << 20);
    td_status st = render(source, size, context, &options, &out, &err);
    check_row(name, row, st, &out, &err);
    td_buf_free(&out);
    json_decref(context);
    td_free(source);
}

static void conversations_give_what_jinja2_gives(void **state) {
    (void)state;
    json_t *data = load("conversations.json"), *goldens = load("goldens.json");
    const json_t *rows = json_object_get(goldens, "rows");
    assert_true(json_array_size(rows) > 100);
    wrong = 0;
    for (size_t i = 0; i < json_array_size(rows); i++)
        check_golden(data, json_array_get(rows, i));
    json_decref(goldens);
    json_decref(data);
    assert_int_equal(wrong, 0);
}

/* What the tables cannot say: {template, text}. */
static void details(void **state) {
    (void)state;
    static const struct {
        const char *source, *text;
    } cases[] = {
        {"{{ strftime_now('%H:%M %z|%Z|') }}", "23:13 +0100||"}, /* an hour east of Greenwich */
        {"{{ strftime_now('%d %B %Y') }}", "14 November 2023"},
        {"a\r\nb\rc\n", "a\nb\nc"},
        {"a\n\n", "a\n"},
        {"{{ 9223372036854775807 }}{{ -9223372036854775807 - 1 }}", "9223372036854775807-9223372036854775808"},
        {"{{ (-9223372036854775807 - 1) % -1 }}", "0"},
        {"{{ range }}{{ ''.join }}", "<function range><built-in method join of str object>"},
        {"{{ [1]|map('abs') }}", "<generator object>"},
        {"{{ '\\ud83d\\ude00' }}{{ '\\U0001F600' }}", "\xf0\x9f\x98\x80\xf0\x9f\x98\x80"},
        {"{% if false %}{{ 1|nosuch }}{% endif %}{{ 'x' if true else 1|nosuch }}", "x"},
        {"{% for a, b in {'x': 1}.items() %}{% set a = b %}{{ a }}{% endfor %}", "1"},
        {"{% set ns = namespace() %}{% set ns.a, b = 1, 2 %}{{ ns.a }}{{ b }}", "12"},
        {"{% macro m() %}{% for i in [1, 2] %}{% break %}{% endfor %}x{% endmacro %}{% for i in [1] %}{{ m() }}y{% "
         "endfor %}",
         "xy"},
        {"{% set fs = [] %}{% for i in [1, 2] %}{% macro f() %}{{ i }}{% endmacro %}{% set _ = fs.append(f) %}{% "
         "endfor %}"
         "{{ fs[0]() }}{{ fs[1]() }}",
         "12"},
        /* a dictionary that has had an index keeps it when it shrinks */
        {"{% set d = {} %}{% for i in range(40) %}{% set _ = d.update({i ~ '': i}) %}{% endfor %}{% for i in range(36) "
         "%}"
         "{% set _ = d.pop(i ~ '') %}{% endfor %}{% set _ = d.update({'x': 1}) %}{{ d }} {{ d['x'] }} {{ '3' in d }}",
         "{'36': 36, '37': 37, '38': 38, '39': 39, 'x': 1} 1 False"},
    };
    td_jinja_options options = {.now = 1700000000, .utc_offset_s = 3600};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_error err = {0};
        td_buf out;
        td_buf_init(&out, 4096);
        td_status st = render(cases[i].source, strlen(cases[i].source), NULL, &options, &out, &err);
        if (st != TD_OK)
            fail_msg("%s: %s", cases[i].source, err.message);
        assert_string_equal(td_buf_str(&out), cases[i].text);
        td_buf_free(&out);
    }
}

static void a_refusal_has_the_templates_words(void **state) {
    (void)state;
    static const char source[] = "text{{ raise_exception('turns must ' ~ 'alternate') }}";
    td_error err = {0};
    td_buf out;
    td_buf_init(&out, 100);
    td_buf_puts(&out, "kept");
    assert_int_equal(render(source, strlen(source), NULL, NULL, &out, &err), TD_E_ARG);
    assert_string_equal(err.message, "turns must alternate");
    assert_string_equal(td_buf_str(&out), "kept");
    assert_int_equal(render(source, strlen(source), NULL, NULL, &out, NULL), TD_E_ARG);
    td_buf_free(&out);
}

static void text_is_appended(void **state) {
    (void)state;
    td_error err = {0};
    td_buf out;
    td_buf_init(&out, 100);
    assert_int_equal(render("{{ 'a' ~ 1 }}", 13, NULL, NULL, &out, &err), TD_OK);
    assert_int_equal(render("", 0, NULL, NULL, &out, &err), TD_OK);
    assert_int_equal(render("b", 1, NULL, NULL, &out, &err), TD_OK);
    assert_string_equal(td_buf_str(&out), "a1b");
    td_buf_free(&out);
}

static void a_template_tells_what_it_reads(void **state) {
    (void)state;
    static const char source[] = "{% set mine = tools %}{% for x in messages %}{{ x.other }}{% endfor %}";
    td_jinja *t;
    assert_int_equal(td_jinja_compile(&t, source, strlen(source), "t", NULL), TD_OK);
    assert_true(td_jinja_uses(t, "tools"));
    assert_true(td_jinja_uses(t, "messages"));
    assert_false(td_jinja_uses(t, "mine"));
    assert_false(td_jinja_uses(t, "other"));
    assert_false(td_jinja_uses(t, "enable_thinking"));
    td_jinja_free(&t);
    td_jinja_free(&t);
    td_jinja_free(NULL);
}

static void the_context_must_be_an_object(void **state) {
    (void)state;
    json_t *list = json_array();
    td_error err = {0};
    td_buf out;
    td_buf_init(&out, 100);
    assert_int_equal(render("x", 1, list, NULL, &out, &err), TD_E_ARG);
    assert_string_equal(err.message, "t: the variables must be a JSON object");
    td_buf_free(&out);
    json_decref(list);
}

/* ---- one template, several threads ---- */

static td_jinja *shared;
static json_t *shared_context;

static void *render_shared(void *bad) {
    for (int i = 0; i < 200; i++) {
        td_buf out;
        td_buf_init(&out, 4096);
        if (td_jinja_render(shared, shared_context, NULL, &out, NULL) != TD_OK ||
            strcmp(td_buf_str(&out), "[1]<abc>[2]<abc>") != 0)
            *(int *)bad = 1;
        td_buf_free(&out);
    }
    return NULL;
}

static void threads_can_share_a_template(void **state) {
    (void)state;
    static const char source[] = "{% macro m(x) %}<{{ x }}>{% endmacro %}"
                                 "{% for i in list %}[{{ i }}]{{ m('a' ~ 'b' ~ 'c') }}{% endfor %}";
    enum { THREADS = 4 };
    pthread_t thread[THREADS];
    int bad[THREADS] = {0};
    assert_int_equal(td_jinja_compile(&shared, source, strlen(source), "t", NULL), TD_OK);
    shared_context = json_pack("{s:[i,i]}", "list", 1, 2);
    for (int i = 0; i < THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, render_shared, &bad[i]), 0);
    for (int i = 0; i < THREADS; i++) {
        pthread_join(thread[i], NULL);
        assert_int_equal(bad[i], 0);
    }
    json_decref(shared_context);
    td_jinja_free(&shared);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(snippets_give_what_jinja2_gives),
        cmocka_unit_test(conversations_give_what_jinja2_gives),
        cmocka_unit_test(details),
        cmocka_unit_test(a_refusal_has_the_templates_words),
        cmocka_unit_test(text_is_appended),
        cmocka_unit_test(a_template_tells_what_it_reads),
        cmocka_unit_test(the_context_must_be_an_object),
        cmocka_unit_test(threads_can_share_a_template),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
