/* test_measure.c - what bench kernels counts and how it is stopped; nothing here is about speed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <cmocka.h>

#include "engine/measure.h"

#define TRUNK TD_SOURCE_DIR "/models/gemma4-demo-4bit"

/* Of the demonstration model: layers of each kind that attend, those that share keys included; bytes of K and V that
 * one of them reads a position, in bf16. */
enum { SLIDING = 8 * 2 * 64 * 2, FULL = 2 * 2 * 128 * 2, WINDOW = 256 };

static td_engine *engine;
static td_measure *measure;

static int open_all(void **state) {
    (void)state;
    td_engine_options o = td_engine_options_default();
    o.model = TRUNK;
    o.n_ctx = 2048;
    o.n_threads = 1;
    o.prefill_size = 64;
    return td_engine_open(&engine, &o, NULL) != TD_OK || td_measure_open(&measure, engine, NULL) != TD_OK;
}

static int close_all(void **state) {
    (void)state;
    td_measure_close(&measure);
    td_engine_close(&engine);
    return 0;
}

static uint64_t kv_bytes_at(uint32_t n) {
    double seconds;
    assert_int_equal(td_measure_prompt(measure, n, &seconds, NULL), TD_OK);
    return td_measure_kv_bytes(measure);
}

/* The row that is timed stands behind the prompt and sees itself, too. */
static void every_layer_reads_the_keys_that_it_sees(void **state) {
    (void)state;
    assert_int_equal(kv_bytes_at(99), 100 * (SLIDING + FULL));
    assert_int_equal(kv_bytes_at(WINDOW - 1), WINDOW * (SLIDING + FULL));
    assert_int_equal(kv_bytes_at(999), WINDOW * SLIDING + 1000 * FULL);
}

static bool twice(void *user) {
    return (*(int *)user)++ < 2;
}

static void a_prompt_is_left_when_nobody_waits_for_it(void **state) {
    (void)state;
    int asked = 0;
    double seconds;
    td_measure_watch(measure, twice, &asked);
    assert_int_equal(td_measure_prompt(measure, 1000, &seconds, NULL), TD_E_CANCELLED);
    assert_int_equal(asked, 3);
    td_measure_watch(measure, NULL, NULL);
    assert_int_equal(td_measure_prompt(measure, 1000, &seconds, NULL), TD_OK);
}

static void memory_is_read_at_some_rate(void **state) {
    (void)state;
    for (int pin = 0; pin < 2; pin++) {
        td_measure_memory_options o = {.n_threads = 2, .pin = pin, .bytes = (uint64_t)5 << 20, .repeats = 1};
        double rate = 0;
        assert_int_equal(td_measure_memory(&o, &rate, NULL), TD_OK);
        assert_true(rate > 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_layer_reads_the_keys_that_it_sees),
        cmocka_unit_test(a_prompt_is_left_when_nobody_waits_for_it),
        cmocka_unit_test(memory_is_read_at_some_rate),
    };
    return cmocka_run_group_tests(tests, open_all, close_all);
}
