/* test_crc32c.c - the check of RFC 3720, appendix B.4, and of the catalogue of parametrised CRC algorithms
 * ("123456789"), however the bytes are cut and wherever they lie. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "cache/crc32c.h"

static void equals_published_values(void **state) {
    (void)state;
    td_crc32c t;
    td_crc32c_init(&t);
    uint8_t zeros[32] = {0}, ones[32], up[32], down[32];
    memset(ones, 0xFF, sizeof ones);
    for (uint8_t i = 0; i < 32; i++) {
        up[i] = i;
        down[i] = 31 - i;
    }
    const uint8_t read_command[48] = {
        0x01, 0xC0, [16] = 0x14, [22] = 0x04, [27] = 0x14, [31] = 0x18, [32] = 0x28, [40] = 0x02};
    assert_int_equal(td_crc32c_add(&t, 0, "", 0), 0);
    assert_int_equal(td_crc32c_add(&t, 0, "123456789", 9), 0xE3069283u);
    assert_int_equal(td_crc32c_add(&t, 0, zeros, 32), 0x8A9136AAu);
    assert_int_equal(td_crc32c_add(&t, 0, ones, 32), 0x62A8AB43u);
    assert_int_equal(td_crc32c_add(&t, 0, up, 32), 0x46DD794Eu);
    assert_int_equal(td_crc32c_add(&t, 0, down, 32), 0x113FDB5Cu);
    assert_int_equal(td_crc32c_add(&t, 0, read_command, 48), 0xD9963A56u);
}

/* Bit by bit, as the polynomial says. */
static uint32_t slowly(const uint8_t *p, size_t n) {
    uint32_t c = ~0u;
    for (size_t i = 0; i < n; i++)
        for (int bit = 0; bit < 8; bit++) {
            uint32_t in = (c ^ p[i] >> bit) & 1;
            c = c >> 1 ^ (in ? 0x82F63B78u : 0);
        }
    return ~c;
}

static void does_not_depend_on_cuts_or_places(void **state) {
    (void)state;
    td_crc32c t;
    td_crc32c_init(&t);
    uint8_t bytes[80];
    for (size_t i = 0; i < sizeof bytes; i++)
        bytes[i] = (uint8_t)(i * 37 + 11);
    for (size_t from = 0; from < 9; from++)
        for (size_t n = 0; n + from <= sizeof bytes; n++) {
            uint32_t want = slowly(bytes + from, n);
            assert_int_equal(td_crc32c_add(&t, 0, bytes + from, n), want);
            for (size_t cut = 0; cut <= n; cut += 3)
                assert_int_equal(
                    td_crc32c_add(&t, td_crc32c_add(&t, 0, bytes + from, cut), bytes + from + cut, n - cut), want);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_published_values),
        cmocka_unit_test(does_not_depend_on_cuts_or_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
