/* test_base.c - the small parts that everything stands on: allocation with its counters and faults, the log, memory,
 * the clock, and random numbers as a function of all bits of their key. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/clock.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/rng.h"

/* AddressSanitizer's allocator ends the process where the C library gives NULL, unless told otherwise. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

/* ---- allocation ---- */

static void blocks_are_zeroed_aligned_and_counted(void **state) {
    (void)state;
    long live = td_alloc_live();
    for (size_t n = 0; n < 300; n += 7) {
        uint8_t *zero = td_calloc(n, 3), *aligned = td_malloc_aligned(n), *plain = td_malloc(n);
        assert_true(zero && aligned && plain);
        for (size_t i = 0; i < 3 * n; i++)
            assert_int_equal(zero[i], 0);
        assert_int_equal((uintptr_t)aligned % 64, 0);
        memset(aligned, 1, n);
        memset(plain, 1, n);
        assert_int_equal(td_alloc_live(), live + 3);
        td_free(zero);
        td_free_aligned(aligned);
        td_free(plain);
        assert_int_equal(td_alloc_live(), live);
    }
    td_free(NULL);
    td_free_aligned(NULL);
    assert_int_equal(td_alloc_live(), live);
}

static void sizes_that_overflow_give_nothing(void **state) {
    (void)state;
    long live = td_alloc_live();
    volatile size_t huge = SIZE_MAX; /* hidden from a compiler that would complain */
    assert_null(td_calloc(huge, 2));
    assert_null(td_calloc(huge / 2 + 2, 2));
    assert_null(td_calloc(huge, huge));
    assert_null(td_malloc_aligned(huge));
    assert_null(td_malloc_aligned(huge - 63));
    void *p = td_malloc(8);
    assert_null(td_realloc(p, huge, 2));
    assert_null(td_realloc(p, huge / 4 + 1, 4));
    td_free(p);
    assert_int_equal(td_alloc_live(), live);
}

static void a_grown_block_keeps_its_bytes_and_its_count(void **state) {
    (void)state;
    long live = td_alloc_live();
    char *p = td_realloc(NULL, 3, 1);
    memcpy(p, "abc", 3);
    p = td_realloc(p, 1000, 4);
    assert_memory_equal(p, "abc", 3);
    assert_int_equal(td_alloc_live(), live + 1);
    p = td_realloc(p, 2, 1);
    assert_memory_equal(p, "ab", 2);
    td_alloc_fail_at(0);
    assert_null(td_realloc(p, 100, 1));
    td_alloc_fail_at(-1);
    assert_memory_equal(p, "ab", 2); /* the old block is still valid */
    p = td_realloc(p, 0, 1);
    assert_non_null(p);
    td_free(p);
    assert_int_equal(td_alloc_live(), live);
}

static void strings_are_copied(void **state) {
    (void)state;
    char *a = td_strdup("tandem"), *b = td_strndup("tandem", 3), *c = td_strdup(""), *d = td_strndup("xyz", 0);
    assert_string_equal(a, "tandem");
    assert_string_equal(b, "tan");
    assert_string_equal(c, "");
    assert_string_equal(d, "");
    td_free(a);
    td_free(b);
    td_free(c);
    td_free(d);
    td_alloc_fail_at(0);
    assert_null(td_strdup("x"));
    td_alloc_fail_at(0);
    assert_null(td_strndup("x", 1));
    td_alloc_fail_at(-1);
}

/* Each way to allocate heeds the injector, and only the one allocation fails. */
static void every_allocator_can_be_made_to_fail(void **state) {
    (void)state;
    for (int k = 0; k < 4; k++) {
        void *p[4];
        td_alloc_fail_at(k);
        p[0] = td_calloc(1, 1);
        p[1] = td_malloc(1);
        p[2] = td_realloc(NULL, 1, 1);
        p[3] = td_malloc_aligned(1);
        assert_true(td_alloc_failed());
        td_alloc_fail_at(-1);
        assert_false(td_alloc_failed());
        for (int i = 0; i < 4; i++) {
            assert_int_equal(p[i] == NULL, i == k);
            td_free(p[i]);
        }
    }
}

/* ---- the log ---- */

typedef struct seen {
    int n;
    td_log_level level;
    char line[2000];
} seen;

static void take(void *user, td_log_level level, const char *message) {
    seen *s = user;
    s->n++;
    s->level = level;
    snprintf(s->line, sizeof s->line, "%s", message);
}

static void a_message_is_one_formatted_line(void **state) {
    (void)state;
    seen s = {0};
    td_log log = {.fn = take, .user = &s, .level = TD_LOG_DEBUG};
    td_log_warn(&log, "%s holds %d of %zu", "a file", 3, (size_t)7);
    assert_int_equal(s.n, 1);
    assert_int_equal(s.level, TD_LOG_WARN);
    assert_string_equal(s.line, "a file holds 3 of 7");
    td_log_info(&log, "plain");
    assert_int_equal(s.level, TD_LOG_INFO);
    assert_string_equal(s.line, "plain");
}

static void messages_below_the_level_are_dropped(void **state) {
    (void)state;
    for (int level = TD_LOG_DEBUG; level <= TD_LOG_ERROR; level++)
        for (int message = TD_LOG_DEBUG; message <= TD_LOG_ERROR; message++) {
            seen s = {0};
            td_log log = {.fn = take, .user = &s, .level = (td_log_level)level};
            td_log_write(&log, (td_log_level)message, "x");
            assert_int_equal(s.n, message >= level);
        }
}

static void without_a_callback_there_is_silence(void **state) {
    (void)state;
    td_log log = {0};
    td_log_write(NULL, TD_LOG_ERROR, "nobody %d", 1);
    td_log_write(&log, TD_LOG_ERROR, "nobody %d", 1);
}

static void a_message_cannot_write_to_a_terminal(void **state) {
    (void)state;
    seen s = {0};
    td_log log = {.fn = take, .user = &s};
    td_log_info(&log, "tensor \"%s\"", "a\x1b[31m\nb\x7f \xc3\xa9");
    assert_string_equal(s.line, "tensor \"a?[31m?b? \xc3\xa9\"");
}

static void a_long_message_is_cut(void **state) {
    (void)state;
    seen s = {0};
    td_log log = {.fn = take, .user = &s};
    char text[1800];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    td_log_info(&log, "%s", text);
    assert_in_range(strlen(s.line), 500, 1799);
    assert_int_equal(strspn(s.line, "x"), strlen(s.line));
}

/* ---- the machine ---- */

static void some_memory_is_available(void **state) {
    (void)state;
    uint64_t bytes = td_memory_available();
    assert_true(bytes > 1 << 20);
    assert_true(bytes == UINT64_MAX || bytes < (uint64_t)1 << 50);
}

static void the_clock_goes_forward(void **state) {
    (void)state;
    int64_t last = td_clock_ns();
    for (int i = 0; i < 1000; i++) {
        int64_t now = td_clock_ns();
        assert_true(now >= last);
        last = now;
    }
    assert_true(td_clock_since(last) >= 0);
    assert_true(td_clock_since(last - 1500000000) >= 1.5);
    assert_true(td_clock_since(last - 1500000000) < 1000);
}

/* ---- random numbers ---- */

static void numbers_depend_on_every_bit_of_their_key(void **state) {
    (void)state;
    double base = td_rng_uniform(1, 2, 3);
    assert_true(base == td_rng_uniform(1, 2, 3));
    for (int bit = 0; bit < 64; bit++) {
        assert_true(base != td_rng_uniform(1 ^ 1ull << bit, 2, 3));
        assert_true(base != td_rng_uniform(1, 2 ^ 1ull << bit, 3));
        if (bit < 32)
            assert_true(base != td_rng_uniform(1, 2, 3 ^ 1u << bit));
    }
}

/* The words of a block: neighbouring tokens take the words of one, as the header says. */
static void four_tokens_share_a_block(void **state) {
    (void)state;
    const uint64_t seed = 0x0123456789abcdef, position = 0xfedcba9876543210;
    const uint32_t key[2] = {0x89abcdef, 0x01234567}, counter[4] = {0x76543210, 0xfedcba98, 25, 0};
    uint32_t block[4];
    td_philox4x32(counter, key, block);
    for (uint32_t i = 0; i < 4; i++)
        assert_true(td_rng_uniform(seed, position, 100 + i) == ((double)block[i] + 0.5) / 4294967296.0);
}

static void gumbel_noise_is_that_of_its_uniform(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 1000; i++) {
        double u = td_rng_uniform(9, i, i);
        assert_true(u > 0 && u < 1);
        assert_true(fabs(exp(-exp(-td_rng_gumbel(9, i, i))) - u) < 1e-12);
    }
}

/* ---- buffers ---- */

static void a_buffer_gives_its_bytes_away(void **state) {
    (void)state;
    long live = td_alloc_live();
    td_buf b;
    td_buf_init(&b, 1 << 20);
    char *empty = td_buf_steal(&b); /* never NULL unless failed */
    assert_string_equal(empty, "");
    td_free(empty);
    for (int i = 0; i < 5000; i++)
        assert_int_equal(td_buf_printf(&b, "%d,", i), TD_OK);
    assert_int_equal(td_buf_append(&b, "a\0b", 3), TD_OK);
    assert_int_equal(td_buf_append(&b, NULL, 0), TD_OK);
    size_t size = b.size;
    char *all = td_buf_steal(&b);
    assert_memory_equal(all, "0,1,2,", 6);
    assert_memory_equal(all + size - 3, "a\0b", 4);
    assert_int_equal(b.size, 0);
    assert_int_equal(td_buf_puts(&b, "again"), TD_OK);
    assert_string_equal(td_buf_str(&b), "again");
    td_free(all);
    td_buf_free(&b);
    assert_int_equal(td_alloc_live(), live);
}

static void a_buffer_without_memory_stays_failed(void **state) {
    (void)state;
    long live = td_alloc_live();
    td_buf b;
    td_buf_init(&b, 1 << 20);
    assert_int_equal(td_buf_puts(&b, "abc"), TD_OK);
    char more[200] = {0};
    td_alloc_fail_at(0);
    assert_int_equal(td_buf_append(&b, more, sizeof more), TD_E_NOMEM);
    td_alloc_fail_at(-1);
    assert_int_equal(td_buf_putc(&b, 'x'), TD_E_NOMEM);
    assert_int_equal(td_buf_printf(&b, "%d", 1), TD_E_NOMEM);
    assert_null(td_buf_steal(&b));
    assert_int_equal(td_alloc_live(), live);
    td_buf_clear(&b);
    assert_int_equal(td_buf_putc(&b, 'x'), TD_OK);
    td_buf_free(&b);
    assert_int_equal(td_alloc_live(), live);
}

static void ceilings_hold_for_any_size(void **state) {
    (void)state;
    td_buf b;
    td_buf_init(&b, 10);
    assert_int_equal(td_buf_append(&b, "x", SIZE_MAX), TD_E_LIMIT); /* refused before a byte is read */
    td_buf_clear(&b);
    assert_int_equal(td_buf_puts(&b, "0123456789"), TD_OK);
    assert_int_equal(td_buf_printf(&b, "%s", ""), TD_OK);
    assert_int_equal(td_buf_printf(&b, "%d", 1), TD_E_LIMIT);
    td_buf_free(&b);
    td_buf_init(&b, 100);
    assert_int_equal(td_buf_puts(&b, "abc"), TD_OK);
    assert_int_equal(td_buf_append(&b, "x", SIZE_MAX - 1), TD_E_LIMIT); /* 3 more would wrap around */
    td_buf_free(&b);
    td_buf_init(&b, 0);
    assert_string_equal(td_buf_str(&b), "");
    assert_int_equal(td_buf_putc(&b, 'x'), TD_E_LIMIT);
    td_buf_free(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(blocks_are_zeroed_aligned_and_counted),
        cmocka_unit_test(sizes_that_overflow_give_nothing),
        cmocka_unit_test(a_grown_block_keeps_its_bytes_and_its_count),
        cmocka_unit_test(strings_are_copied),
        cmocka_unit_test(every_allocator_can_be_made_to_fail),
        cmocka_unit_test(a_message_is_one_formatted_line),
        cmocka_unit_test(messages_below_the_level_are_dropped),
        cmocka_unit_test(without_a_callback_there_is_silence),
        cmocka_unit_test(a_message_cannot_write_to_a_terminal),
        cmocka_unit_test(a_long_message_is_cut),
        cmocka_unit_test(some_memory_is_available),
        cmocka_unit_test(the_clock_goes_forward),
        cmocka_unit_test(numbers_depend_on_every_bit_of_their_key),
        cmocka_unit_test(four_tokens_share_a_block),
        cmocka_unit_test(gumbel_noise_is_that_of_its_uniform),
        cmocka_unit_test(a_buffer_gives_its_bytes_away),
        cmocka_unit_test(a_buffer_without_memory_stays_failed),
        cmocka_unit_test(ceilings_hold_for_any_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
