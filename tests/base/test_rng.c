/* test_rng.c - noise of many tokens at once, and the bound on it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/rng.h"

/* What is said of many words at once is what is said of each. */
static void noise_of_many_words_is_theirs(void **state) {
    (void)state;
    for (uint64_t i = 0; i < 4000; i++) {
        const uint64_t seed = i * 0x9e3779b97f4a7c15ull, position = i << i % 40;
        const uint32_t first = (uint32_t)(td_rng_uniform(3, i, 0) * (1u << 30)) * 4;
        uint32_t word[TD_RNG_WORDS];
        td_rng_words(seed, position, first, word);
        for (uint32_t j = 0; j < TD_RNG_WORDS; j++)
            assert_true(td_rng_gumbel_of(word[j]) == td_rng_gumbel(seed, position, first + j));
    }
}

static void check_bound(uint32_t word) {
    const int ones = word == UINT32_MAX ? 32 : __builtin_clz(~word);
    if (!(td_rng_gumbel_of(word) < td_rng_gumbel_below(ones)))
        fail_msg("word %08x has the noise %.17g, expected less than %.17g", word, td_rng_gumbel_of(word),
                 td_rng_gumbel_below(ones));
}

/* The largest word of each number of leading ones, its neighbours, and any. */
static void noise_stays_below_its_bound(void **state) {
    (void)state;
    for (uint32_t ones = 0; ones <= 32; ones++) {
        const uint64_t end = ((uint64_t)1 << 32) - (ones == 32 ? 0 : (uint64_t)1 << (31 - ones));
        for (uint64_t d = 1; d <= 64 && d <= end; d++) {
            check_bound((uint32_t)(end - d));
            check_bound((uint32_t)(end + d - 1));
        }
        assert_true(ones == 0 || td_rng_gumbel_below((int)ones) > td_rng_gumbel_below((int)ones - 1));
    }
    for (uint64_t word = 0; word <= UINT32_MAX; word += 4099)
        check_bound((uint32_t)word);
    assert_true(td_rng_gumbel_below(32) < TD_GUMBEL_MAX);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise_of_many_words_is_theirs),
        cmocka_unit_test(noise_stays_below_its_bound),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
