/* test_status.c - statuses, errors, buffers, the allocator's fault injection, and the counter-based generator. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/rng.h"
#include "base/status.h"

static void names_and_texts(void **state) {
    (void)state;
    assert_string_equal(td_status_name(TD_OK), "TD_OK");
    assert_string_equal(td_status_name(TD_E_SHAPE), "TD_E_SHAPE");
    assert_string_equal(td_status_text(TD_E_NOMEM), "out of memory");
    assert_string_equal(td_status_name((td_status)-999), "TD_E_?");
}

static void messages_are_cut_on_a_character_and_printable(void **state) {
    (void)state;
    td_error err;
    char text[600];
    memset(text, 'x', sizeof text);
    text[sizeof err.message - 2] = '\xE2'; /* the cut falls inside a three-byte character */
    text[sizeof err.message - 1] = '\x82';
    text[sizeof err.message] = '\xAC';
    text[sizeof text - 1] = '\0';
    assert_int_equal(td_fail_at(&err, TD_E_FORMAT, 7, "%s", text), TD_E_FORMAT);
    assert_int_equal(err.position, 7);
    assert_int_equal(strlen(err.message), sizeof err.message - 2);
    assert_int_equal(td_fail(&err, TD_E_IO, "a\x1b[31mb\n"), TD_E_IO);
    assert_string_equal(err.message, "a?[31mb?");
    assert_int_equal(td_fail(NULL, TD_E_IO, "no place to write"), TD_E_IO);
}

static void a_prefix_keeps_status_and_position(void **state) {
    (void)state;
    td_error err;
    td_status st = td_fail_at(&err, TD_E_FORMAT, 12, "bad byte");
    assert_int_equal(td_error_prefix(&err, st, "file %s", "a"), TD_E_FORMAT);
    assert_string_equal(err.message, "file a: bad byte");
    assert_int_equal(err.position, 12);
}

static void a_buffer_stops_at_its_ceiling_and_stays_failed(void **state) {
    (void)state;
    td_buf b;
    td_buf_init(&b, 5);
    assert_int_equal(td_buf_puts(&b, "abc"), TD_OK);
    assert_int_equal(td_buf_printf(&b, "%d", 12), TD_OK);
    assert_string_equal(td_buf_str(&b), "abc12");
    assert_int_equal(td_buf_putc(&b, 'x'), TD_E_LIMIT);
    assert_int_equal(td_buf_putc(&b, 'x'), TD_E_LIMIT);
    assert_null(td_buf_str(&b));
    td_buf_clear(&b);
    assert_string_equal(td_buf_str(&b), "");
    td_buf_free(&b);
}

static void the_kth_allocation_fails_once(void **state) {
    (void)state;
    long live = td_alloc_live();
    td_alloc_fail_at(1);
    void *a = td_malloc(8);
    void *b = td_malloc(8);
    void *c = td_malloc(8);
    td_alloc_fail_at(-1);
    assert_non_null(a);
    assert_null(b);
    assert_non_null(c);
    td_free(a);
    td_free(c);
    assert_int_equal(td_alloc_live(), live);
}

/* Known answers from the Random123 distribution (kat_vectors, philox4x32 10 rounds). */
static void philox_gives_the_known_answers(void **state) {
    (void)state;
    static const struct {
        uint32_t counter[4], key[2], want[4];
    } kat[] = {
        {{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
        {{0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff},
         {0xffffffff, 0xffffffff},
         {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
        {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
         {0xa4093822, 0x299f31d0},
         {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}},
    };
    for (size_t i = 0; i < sizeof kat / sizeof kat[0]; i++) {
        uint32_t out[4];
        td_philox4x32(kat[i].counter, kat[i].key, out);
        assert_memory_equal(out, kat[i].want, sizeof out);
    }
}

static void gumbel_noise_has_its_mean_and_bound(void **state) {
    (void)state;
    double sum = 0;
    const int n = 200000;
    for (int i = 0; i < n; i++) {
        double g = td_rng_gumbel(42, (uint64_t)i / 100, (uint32_t)i % 100);
        assert_true(fabs(g) <= TD_GUMBEL_MAX);
        sum += g;
    }
    /* mean = Euler's constant, standard deviation pi/sqrt(6): five standard errors */
    assert_true(fabs(sum / n - 0.5772156649) < 5 * 1.2825 / sqrt(n));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_texts),
        cmocka_unit_test(messages_are_cut_on_a_character_and_printable),
        cmocka_unit_test(a_prefix_keeps_status_and_position),
        cmocka_unit_test(a_buffer_stops_at_its_ceiling_and_stays_failed),
        cmocka_unit_test(the_kth_allocation_fails_once),
        cmocka_unit_test(philox_gives_the_known_answers),
        cmocka_unit_test(gumbel_noise_has_its_mean_and_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
