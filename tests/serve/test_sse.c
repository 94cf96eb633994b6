/* test_sse.c - events as text: data never breaks out of its event, whatever line ends it holds. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "serve/sse.h"

static void events(void **state) {
    (void)state;
    static const struct {
        const char *event, *data, *want;
    } cases[] = {
        {NULL, "{\"a\":1}", "data: {\"a\":1}\n\n"},
        {NULL, "", "data: \n\n"},
        {"prefill_progress", "{}", "event: prefill_progress\ndata: {}\n\n"},
        {NULL, "a\nb", "data: a\ndata: b\n\n"},
        {NULL, "a\r\nb\rc", "data: a\ndata: b\ndata: c\n\n"},
        {NULL, "a\n", "data: a\ndata: \n\n"},
        {NULL, "a\n\nevent: x", "data: a\ndata: \ndata: event: x\n\n"},
        {NULL, "\r\r\n\n", "data: \ndata: \ndata: \ndata: \n\n"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_buf b;
        td_buf_init(&b, 1000);
        assert_int_equal(td_sse_event(&b, cases[i].event, cases[i].data, strlen(cases[i].data)), TD_OK);
        assert_string_equal(td_buf_str(&b), cases[i].want);
        td_buf_free(&b);
    }
}

static void nul_bytes_are_data(void **state) {
    (void)state;
    td_buf b;
    td_buf_init(&b, 100);
    assert_int_equal(td_sse_event(&b, NULL, "a\0b", 3), TD_OK);
    assert_int_equal(b.size, 11);
    assert_memory_equal(b.data, "data: a\0b\n\n", 11);
    td_buf_free(&b);
}

static void a_name_with_a_line_end_is_refused(void **state) {
    (void)state;
    td_buf b;
    td_buf_init(&b, 100);
    td_buf_puts(&b, "before");
    assert_int_equal(td_sse_event(&b, "x\ndata: y", "", 0), TD_E_ARG);
    assert_int_equal(td_sse_event(&b, "x\r", "", 0), TD_E_ARG);
    assert_string_equal(td_buf_str(&b), "before");
    td_buf_free(&b);
}

static void the_end_and_comments(void **state) {
    (void)state;
    td_buf b;
    td_buf_init(&b, 100);
    assert_int_equal(td_sse_done(&b), TD_OK);
    assert_int_equal(td_sse_comment(&b, "keep-alive"), TD_OK);
    assert_int_equal(td_sse_comment(&b, "a\nb"), TD_OK);
    assert_string_equal(td_buf_str(&b), "data: [DONE]\n\n" TD_SSE_KEEPALIVE ": a\n: b\n\n");
    td_buf_free(&b);
}

static void the_ceiling_is_kept(void **state) {
    (void)state;
    td_buf b;
    td_buf_init(&b, 8);
    assert_int_equal(td_sse_event(&b, NULL, "abcdef", 6), TD_E_LIMIT);
    td_buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events),
        cmocka_unit_test(nul_bytes_are_data),
        cmocka_unit_test(a_name_with_a_line_end_is_refused),
        cmocka_unit_test(the_end_and_comments),
        cmocka_unit_test(the_ceiling_is_kept),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
