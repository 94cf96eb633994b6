/* test_stop.c - stop strings, under every way of cutting the text into pieces. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/stop.h"

typedef struct stop_case {
    const char *text, *stop[3], *want;
    bool stopped;
} stop_case;

static const stop_case cases[] = {
    {"hello world", {NULL}, "hello world", false},
    {"hello world", {"wor"}, "hello ", true},
    {"hello wo", {"wor"}, "hello wo", false},
    {"aaab", {"aab"}, "a", true},
    {"ababac", {"abac"}, "ab", true},
    {"one\n\ntwo", {"\n\n", "\n"}, "one", true},
    {"xyz", {"z", "yz"}, "x", true},
    {"stop", {"stop"}, "", true},
    {"abcd", {"abcd", "c"}, "ab", true},
    {"abcd", {"bcd", "abcd"}, "", true},
    {"st\xC3\xB6p", {"\xC3\xB6"}, "st", true},
    {"<|en<|end|>tail", {"<|end|>"}, "<|en", true},
};

/* Feeds text in pieces of `piece` bytes; asserts that nothing of a stop string ever leaks. */
static void run(const stop_case *c, size_t piece) {
    size_t n_stop = 0, n = strlen(c->text);
    while (n_stop < 3 && c->stop[n_stop])
        n_stop++;
    td_stop s;
    td_buf got;
    td_stop_init(&s, c->stop, n_stop, 1000);
    td_buf_init(&got, 1000);
    const char *fresh;
    size_t n_fresh;
    bool stopped = false;
    for (size_t at = 0; at < n && !stopped; at += piece) {
        assert_int_equal(td_buf_append(&s.text, c->text + at, n - at < piece ? n - at : piece), TD_OK);
        stopped = td_stop_release(&s, false, &fresh, &n_fresh);
        assert_int_equal(td_buf_append(&got, fresh, n_fresh), TD_OK);
        assert_memory_equal(td_buf_str(&got), c->want, got.size < strlen(c->want) ? got.size : strlen(c->want));
        assert_true(got.size <= strlen(c->want));
    }
    stopped = td_stop_release(&s, true, &fresh, &n_fresh);
    assert_int_equal(td_buf_append(&got, fresh, n_fresh), TD_OK);
    assert_string_equal(td_buf_str(&got), c->want);
    assert_string_equal(td_buf_str(&s.text), c->want);
    assert_int_equal(stopped, c->stopped);
    td_buf_free(&got);
    td_stop_free(&s);
}

static void every_cut_gives_the_same_text(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (size_t piece = 1; piece <= strlen(cases[i].text); piece++)
            run(&cases[i], piece);
}

static void text_flows_while_it_cannot_be_a_stop_string(void **state) {
    (void)state;
    static const char *const stop[] = {"END"};
    td_stop s;
    const char *fresh;
    size_t n;
    td_stop_init(&s, stop, 1, 1000);
    assert_int_equal(td_buf_puts(&s.text, "fooE"), TD_OK);
    assert_false(td_stop_release(&s, false, &fresh, &n));
    assert_int_equal(n, 3);
    assert_int_equal(td_buf_puts(&s.text, "x"), TD_OK);
    assert_false(td_stop_release(&s, false, &fresh, &n));
    assert_int_equal(n, 2);
    assert_memory_equal(fresh, "Ex", 2);
    assert_int_equal(td_buf_puts(&s.text, "yEN"), TD_OK);
    assert_false(td_stop_release(&s, false, &fresh, &n));
    td_stop_drop(&s);
    assert_string_equal(td_buf_str(&s.text), "fooExy");
    td_stop_free(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cut_gives_the_same_text),
        cmocka_unit_test(text_flows_while_it_cannot_be_a_stop_string),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
