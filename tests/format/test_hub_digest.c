/* test_hub_digest.c - SHA-1 and SHA-256 against the examples of FIPS 180-4 and RFC 6234, in pieces of every size. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "format/hub_digest.h"

static const char two_blocks[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";

static void assert_digest(td_hub_digest_kind kind, const void *text, size_t n, size_t piece, const char *want) {
    td_hub_digest d;
    char got[TD_HUB_DIGEST_TEXT_SIZE];
    td_hub_digest_init(&d, kind);
    for (size_t i = 0; i < n; i += piece)
        td_hub_digest_add(&d, (const char *)text + i, n - i < piece ? n - i : piece);
    td_hub_digest_text(&d, got);
    assert_string_equal(got, want);
}

static void published_examples(void **state) {
    (void)state;
    assert_digest(TD_HUB_SHA1, "", 0, 1, "da39a3ee5e6b4b0d3255bfef95601890afd80709");
    assert_digest(TD_HUB_SHA1, "abc", 3, 3, "a9993e364706816aba3e25717850c26c9cd0d89d");
    assert_digest(TD_HUB_SHA1, two_blocks, 56, 56, "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
    assert_digest(TD_HUB_SHA256, "", 0, 1, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_digest(TD_HUB_SHA256, "abc", 3, 3, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    assert_digest(TD_HUB_SHA256, two_blocks, 56, 56,
                  "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
}

static void a_million_letters_in_pieces(void **state) {
    (void)state;
    static char a[1000000];
    memset(a, 'a', sizeof a);
    static const size_t pieces[] = {1, 3, 55, 56, 63, 64, 65, 119, 128, 4096, 1000000};
    for (size_t i = 0; i < sizeof pieces / sizeof *pieces; i++) {
        assert_digest(TD_HUB_SHA1, a, sizeof a, pieces[i], "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
        assert_digest(TD_HUB_SHA256, a, sizeof a, pieces[i],
                      "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
    }
}

/* Around the block, where the padding moves on: the digest of n letters is that of the same letters one by one. */
static void every_length_around_a_block(void **state) {
    (void)state;
    char text[130], whole[TD_HUB_DIGEST_TEXT_SIZE];
    memset(text, 'x', sizeof text);
    for (size_t n = 50; n < sizeof text; n++) {
        td_hub_digest d;
        td_hub_digest_init(&d, TD_HUB_SHA256);
        td_hub_digest_add(&d, text, n);
        td_hub_digest_text(&d, whole);
        assert_digest(TD_HUB_SHA256, text, n, 1, whole);
    }
    /* and one of them as sha256sum says it */
    assert_digest(TD_HUB_SHA256, text, 119, 7, "000b48d4edf0fa7bee3c6236ecd2785baa5db4eeb8bb54341b029e0d9fa5fb0c");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(published_examples),
        cmocka_unit_test(a_million_letters_in_pieces),
        cmocka_unit_test(every_length_around_a_block),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
