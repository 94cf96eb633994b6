/* test_name_map.c - the hash against its published vectors, and a table that grows. */
#include "format/support_format.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "format/name_map.h"

/* SipHash's own vectors: key 00..0f, message 00, 01, ..., n-1 (reference implementation, and appendix A of the paper
 * for n = 15). */
static void siphash_gives_the_known_answers(void **state) {
    (void)state;
    static const struct {
        size_t n;
        uint64_t want;
    } kat[] = {{0, 0x726fdb47dd0e0e31}, {1, 0x74f839c593dc67fd}, {2, 0x0d6c8009d9a94f5a}, {15, 0xa129ca6149be45e5}};
    uint8_t key[16], message[16];
    for (uint8_t i = 0; i < 16; i++)
        key[i] = message[i] = i;
    for (size_t i = 0; i < sizeof kat / sizeof kat[0]; i++)
        assert_true(td_siphash(key, message, kat[i].n) == kat[i].want);
}

static void finds_what_was_added_and_nothing_else(void **state) {
    (void)state;
    enum { N = 5000 };
    static char names[N][16];
    td_name_map m;
    td_name_map_init(&m);
    assert_null(td_name_map_find(&m, "0"));
    for (int i = 0; i < N; i++) {
        snprintf(names[i], sizeof names[i], "%d", i);
        assert_true(td_name_map_add(&m, names[i], &names[i]));
    }
    assert_int_equal(m.n, N);
    for (int i = 0; i < N; i++) {
        char copy[16];
        memcpy(copy, names[i], sizeof copy);
        const td_name_slot *slot = td_name_map_find(&m, copy);
        assert_non_null(slot);
        assert_ptr_equal(slot->value, &names[i]);
    }
    assert_null(td_name_map_find(&m, "5000"));
    assert_null(td_name_map_find(&m, ""));
    td_name_map_free(&m);
    td_name_map_free(&m);
}

static void a_failed_growth_changes_nothing(void **state) {
    (void)state;
    td_name_map m;
    td_name_map_init(&m);
    td_alloc_fail_at(0);
    assert_false(td_name_map_add(&m, "a", &m));
    td_alloc_fail_at(-1);
    assert_int_equal(m.n, 0);
    assert_true(td_name_map_add(&m, "a", &m));
    assert_non_null(td_name_map_find(&m, "a"));
    td_name_map_free(&m);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(siphash_gives_the_known_answers),
        cmocka_unit_test(finds_what_was_added_and_nothing_else),
        cmocka_unit_test(a_failed_growth_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
