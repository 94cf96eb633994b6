/* test_detok.c - streams of text: pieces add up to the whole, are whole characters, and hold back no more than they
 * must. The whole is checked beside the reference implementation in test_tokenizer_components.c and _golden.c; here a
 * second, slow decoder says what it should be for random lists of tokens. */
#include "test_tokenizer_util.h"

#include "text/tokenizer_unicode.h"

static uint32_t state_;

static uint32_t next(uint32_t n) {
    state_ = state_ * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)state_ * n >> 32);
}

/* ---- the slow decoders: whole strings, one step after the other ---- */

/* Bytes with every maximal beginning of a character that is not whole replaced by U+FFFD (Unicode 3.9, table 3-7). */
static void append_lossy(td_buf *out, const unsigned char *s, size_t n) {
    size_t i = 0;
    while (i < n) {
        size_t valid = td_uni_valid((const char *)s + i, n - i);
        td_buf_append(out, s + i, valid);
        i += valid;
        if (i == n)
            return;
        td_buf_puts(out, "\xEF\xBF\xBD");
        size_t k = 1;
        static const struct {
            unsigned char lead, last, lo, hi, length;
        } rows[] = {{0xC2, 0xDF, 0x80, 0xBF, 2}, {0xE0, 0xE0, 0xA0, 0xBF, 3}, {0xE1, 0xEC, 0x80, 0xBF, 3},
                    {0xED, 0xED, 0x80, 0x9F, 3}, {0xEE, 0xEF, 0x80, 0xBF, 3}, {0xF0, 0xF0, 0x90, 0xBF, 4},
                    {0xF1, 0xF3, 0x80, 0xBF, 4}, {0xF4, 0xF4, 0x80, 0x8F, 4}};
        for (size_t r = 0; r < sizeof rows / sizeof rows[0]; r++)
            if (s[i] >= rows[r].lead && s[i] <= rows[r].last && i + 1 < n && s[i + 1] >= rows[r].lo &&
                s[i + 1] <= rows[r].hi)
                for (k = 2; k < rows[r].length && i + k < n && (s[i + k] & 0xC0) == 0x80;)
                    k++;
        i += k;
    }
}

static void append_replaced(td_buf *out, const char *s, size_t n) {
    for (size_t i = 0; i < n;)
        if (n - i >= 3 && memcmp(s + i, "\xE2\x96\x81", 3) == 0) {
            td_buf_putc(out, ' ');
            i += 3;
        } else {
            td_buf_putc(out, s[i++]);
        }
}

/* Replace, ByteFallback, Fuse. */
static void slow_gemma(const td_tokenizer *tok, const td_token *ids, size_t n, td_buf *out) {
    td_buf run;
    td_buf_init(&run, 1 << 20);
    for (size_t i = 0; i < n; i++) {
        size_t size;
        unsigned byte;
        const char *s = td_tokenizer_piece(tok, ids[i], &size);
        char name[8] = "";
        if (s && size == 6) {
            memcpy(name, s, 6);
            if (sscanf(name, "<0x%02X>", &byte) == 1) {
                td_buf_putc(&run, (char)byte);
                continue;
            }
        }
        if (!s)
            continue;
        append_lossy(out, (const unsigned char *)td_buf_str(&run), run.size);
        td_buf_clear(&run);
        append_replaced(out, s, size);
    }
    append_lossy(out, (const unsigned char *)td_buf_str(&run), run.size);
    td_buf_free(&run);
}

/* The same, and one space off the front. */
static void slow_llama2(const td_tokenizer *tok, const td_token *ids, size_t n, td_buf *out) {
    td_buf all;
    td_buf_init(&all, 1 << 20);
    slow_gemma(tok, ids, n, &all);
    const char *s = td_buf_str(&all);
    size_t skip = s[0] == ' ';
    td_buf_append(out, s + skip, all.size - skip);
    td_buf_free(&all);
}

static void slow_bytes(const td_tokenizer *tok, const td_token *ids, size_t n, td_buf *out) {
    td_buf bytes;
    td_buf_init(&bytes, 1 << 20);
    for (size_t i = 0; i < n; i++) {
        size_t size;
        const char *s = td_tokenizer_piece(tok, ids[i], &size);
        for (size_t k = 0; k < size;) {
            uint32_t cp;
            k += td_uni_next(s + k, &cp);
            td_buf_putc(&bytes, (char)td_uni_char_byte(cp));
        }
    }
    append_lossy(out, (const unsigned char *)td_buf_str(&bytes), bytes.size);
    td_buf_free(&bytes);
}

/* ---- properties ---- */

typedef void (*slow_decoder)(const td_tokenizer *, const td_token *, size_t, td_buf *);

static void stream(const td_tokenizer *tok, const td_token *ids, size_t n, unsigned flags, td_buf *out) {
    td_detok d;
    td_error err;
    td_buf piece;
    td_buf_init(&piece, 1 << 20);
    assert_int_equal(td_detok_init(&d, tok, flags, &err), TD_OK);
    for (size_t i = 0; i <= n; i++) {
        td_buf_clear(&piece);
        if (i < n)
            assert_int_equal(td_detok_push(&d, ids[i], &piece, &err), TD_OK);
        else
            assert_int_equal(td_detok_flush(&d, &piece, &err), TD_OK);
        assert_int_equal(td_uni_valid(td_buf_str(&piece), piece.size), piece.size);
        td_buf_append(out, piece.data, piece.size);
    }
    td_detok_free(&d);
    td_buf_free(&piece);
}

/* Random lists: many bytes, so that runs of them are now and then characters. */
static void random_lists(const char *fixture, const char *byte_name, slow_decoder slow) {
    td_tokenizer *tok = load_fixture(fixture);
    td_token first_byte = td_tokenizer_find(tok, byte_name, strlen(byte_name));
    td_token ids[40];
    td_buf want, got, batch;
    td_error err;
    td_buf_init(&want, 1 << 20);
    td_buf_init(&got, 1 << 20);
    td_buf_init(&batch, 1 << 20);
    state_ = 7;
    for (int round = 0; round < 4000; round++) {
        size_t n = next(40);
        for (size_t i = 0; i < n; i++)
            ids[i] = next(3) ? first_byte + (td_token)(next(2) ? 0x80 + next(0x80) : next(256))
                             : (td_token)next((uint32_t)td_tokenizer_n_vocab(tok) + 3) - 1;
        for (size_t i = 0; i < n; i++) /* ids of nothing now and then; added tokens of the byte alphabet never */
            if (td_tokenizer_is_added(tok, ids[i]) && slow == slow_bytes)
                ids[i] = 0;
        td_buf_clear(&want);
        td_buf_clear(&got);
        td_buf_clear(&batch);
        slow(tok, ids, n, &want);
        stream(tok, ids, n, 0, &got);
        assert_int_equal(td_tokenizer_decode(tok, ids, n, 0, &batch, &err), TD_OK);
        assert_string_equal(td_buf_str(&got), td_buf_str(&batch));
        if (got.size != want.size || memcmp(got.data, td_buf_str(&want), got.size) != 0) {
            print_text("got ", got.data, got.size);
            print_text("want", want.data, want.size);
            fail_msg("%s, round %d", fixture, round);
        }
    }
    td_buf_free(&want);
    td_buf_free(&got);
    td_buf_free(&batch);
    td_tokenizer_close(&tok);
}

static void random_lists_of_the_gemma_form(void **state) {
    (void)state;
    random_lists("gemma-style", "<0x00>", slow_gemma);
}

static void random_lists_of_the_llama2_form(void **state) {
    (void)state;
    random_lists("sentencepiece-style", "<0x00>", slow_llama2);
}

/* The alphabet of bytes stands in the order of its characters, so ids from '!' on are bytes too. */
static void random_lists_of_the_byte_form(void **state) {
    (void)state;
    random_lists("qwen-style", "!", slow_bytes);
}

/* Whatever the text, what was encoded comes back. */
static void texts_come_back(void **state) {
    (void)state;
    static const char *const fixtures[] = {"gemma-style", "llama3-style", "qwen-style", "sentencepiece-style"};
    json_t *golden = load_json(TD_TOKENIZERS "gemma-style/golden.json");
    const json_t *cases = json_object_get(golden, "cases");
    for (size_t f = 0; f < 4; f++) {
        td_tokenizer *tok = load_fixture(fixtures[f]);
        for (size_t i = 0; i < json_array_size(cases); i++) {
            const json_t *text = json_object_get(json_array_get(cases, i), "text");
            size_t size = json_string_length(text);
            td_token_list ids;
            td_buf back;
            td_error err;
            td_token_list_init(&ids, 100000);
            td_buf_init(&back, 1 << 20);
            assert_int_equal(td_tokenizer_encode(tok, json_string_value(text), size, 0, &ids, &err), TD_OK);
            stream(tok, ids.ids, ids.n, 0, &back);
            bool nfc = f == 2; /* Qwen's normaliser is not undone; and Gemma's mark is a space ever after */
            bool mark = strstr(json_string_value(text), "\xE2\x96\x81") != NULL;
            if (!nfc && !mark && size == strlen(json_string_value(text))) {
                assert_int_equal(back.size, size);
                assert_memory_equal(td_buf_str(&back), json_string_value(text), size);
            }
            td_token_list_free(&ids);
            td_buf_free(&back);
        }
        td_tokenizer_close(&tok);
    }
    json_decref(golden);
}

/* ---- what is held back ---- */

/* Pushes names one by one; after each, the text so far must be `texts[i]`, and after the end the last of `texts`. */
static void expect_steps(const char *decoder, unsigned flags, const char *const *names, const char *const *texts) {
    char file[2000];
    size_t n = 0, at;
    td_error err;
    at = (size_t)snprintf(file, sizeof file,
                          "{\"added_tokens\": [{\"id\": 50, \"content\": \"<s>\", \"special\": true}, "
                          "{\"id\": 51, \"content\": \"\xC3\xA9\"}], \"decoder\": %s, \"model\": "
                          "{\"merges\": [], \"vocab\": {",
                          decoder);
    for (; names[n]; n++) {
        bool again = strcmp(names[n], "<s>") == 0 || strcmp(names[n], "\xC3\xA9") == 0;
        for (size_t i = 0; i < n; i++)
            again |= strcmp(names[i], names[n]) == 0;
        if (!again)
            at += (size_t)snprintf(file + at, sizeof file - at, "%s\"%s\": %zu", file[at - 1] == '{' ? "" : ", ",
                                   names[n], n);
    }
    snprintf(file + at, sizeof file - at, "}}}");
    td_tokenizer *tok = parse_tokenizer(file, NULL);
    td_detok d;
    td_buf text;
    td_buf_init(&text, 1000);
    assert_int_equal(td_detok_init(&d, tok, flags, &err), TD_OK);
    for (int twice = 0; twice < 2; twice++) { /* a flushed stream begins anew */
        td_buf_clear(&text);
        for (size_t i = 0; i < n; i++) {
            td_token id = td_tokenizer_find(tok, names[i], strlen(names[i]));
            assert_true(id >= 0);
            assert_int_equal(td_detok_push(&d, id, &text, &err), TD_OK);
            assert_string_equal(td_buf_str(&text), texts[i]);
        }
        assert_int_equal(td_detok_flush(&d, &text, &err), TD_OK);
        assert_string_equal(td_buf_str(&text), texts[n]);
    }
    td_buf_free(&text);
    td_detok_free(&d);
    td_detok_free(&d);
    td_tokenizer_close(&tok);
}

#define LIST(...) ((const char *const[]){__VA_ARGS__, NULL})
#define FALLBACK "{\"type\": \"ByteFallback\"}"
#define BYTE_LEVEL "{\"type\": \"ByteLevel\"}"
#define SEQUENCE(...) "{\"type\": \"Sequence\", \"decoders\": [" #__VA_ARGS__ "]}"

static void bytes_wait_for_their_character_and_no_longer(void **state) {
    (void)state;
    expect_steps(FALLBACK, 0, LIST("<0xE6>", "<0x97>", "<0xA5>", "<0x41>"),
                 LIST("", "", "\xE6\x97\xA5",
                      "\xE6\x97\xA5"
                      "A",
                      "\xE6\x97\xA5"
                      "A"));
    expect_steps(FALLBACK, 0, LIST("<0xE6>", "<0x97>", "x", "<0xE6>"),
                 LIST("", "", "\xEF\xBF\xBDx", "\xEF\xBF\xBDx", "\xEF\xBF\xBDx\xEF\xBF\xBD"));
    expect_steps(FALLBACK, TD_DETOK_SKIP_SPECIAL, LIST("<0xC3>", "<s>", "<0xA9>"), /* left out, so they are one run */
                 LIST("", "", "\xC3\xA9", "\xC3\xA9"));
    expect_steps(FALLBACK, 0, LIST("<0xC3>", "<s>", "<0xA9>"),
                 LIST("", "\xEF\xBF\xBD<s>", "\xEF\xBF\xBD<s>\xEF\xBF\xBD", "\xEF\xBF\xBD<s>\xEF\xBF\xBD"));
    expect_steps(BYTE_LEVEL, 0, LIST("\xC3\x83", "\xC2\xA9\xC3\x83", "<s>"), /* C3 A9 C3 in GPT-2's letters */
                 LIST("", "\xC3\xA9", "\xC3\xA9\xEF\xBF\xBD<s>", "\xC3\xA9\xEF\xBF\xBD<s>"));
}

/* The added token is called by a letter that stands for a byte; it is that letter all the same. */
static void an_added_token_is_its_name(void **state) {
    (void)state;
    expect_steps(BYTE_LEVEL, 0, LIST("\xC3\xA9", "a"),
                 LIST("\xC3\xA9",
                      "\xC3\xA9"
                      "a",
                      "\xC3\xA9"
                      "a"));
}

static void strips_and_replacements_hold_what_they_must(void **state) {
    (void)state;
    static const char replace[] =
        SEQUENCE({"type" : "Fuse"}, {"type" : "Replace", "pattern" : {"String" : "abc"}, "content" : "X"});
    expect_steps(replace, 0, LIST("a", "ab", "c", "aba", "b"), LIST("", "a", "aX", "aXab", "aXab", "aXabab"));
    static const char strip[] =
        SEQUENCE({"type" : "Fuse"}, {"type" : "Strip", "content" : " ", "start" : 2, "stop" : 1});
    expect_steps(strip, 0, LIST(" ", "  a ", " ", "b  "), LIST("", " a", " a ", " a  b ", " a  b "));
    static const char each[] = "{\"type\": \"Strip\", \"content\": \"a\", \"start\": 1, \"stop\": 1}";
    expect_steps(each, 0, LIST("aa", "aba", "a", "aaa"), LIST("", "b", "b", "ba", "ba"));
    expect_steps("null", 0, LIST("a", "b", "a"), LIST("a", "a b", "a b a", "a b a"));
}

static void a_stream_may_continue_a_text(void **state) {
    (void)state;
    static const char llama2[] = SEQUENCE({"type" : "Replace", "pattern" : {"String" : "_"}, "content" : " "},
                                          {"type" : "Fuse"}, {"type" : "Strip", "content" : " ", "start" : 1});
    expect_steps(llama2, 0, LIST("_a", "_b"), LIST("a", "a b", "a b"));
    expect_steps(llama2, TD_DETOK_CONTINUE, LIST("_a", "_b"), LIST(" a", " a b", " a b"));
    static const char metaspace[] = "{\"type\": \"Metaspace\", \"replacement\": \"_\"}";
    expect_steps(metaspace, 0, LIST("_a", "_b"), LIST("a", "a b", "a b"));
    expect_steps(metaspace, TD_DETOK_CONTINUE, LIST("_a", "_b"), LIST(" a", " a b", " a b"));
}

static void special_tokens_may_be_left_out(void **state) {
    (void)state;
    td_tokenizer *tok = load_fixture("qwen-style");
    const td_token ids[] = {td_tokenizer_find(tok, "<|im_start|>", 12),
                            td_tokenizer_find(tok, "a", 1),
                            td_tokenizer_find(tok, "<think>", 7),
                            td_tokenizer_find(tok, "<|im_end|>", 10),
                            100000,
                            -1};
    td_buf text;
    td_error err;
    td_buf_init(&text, 1000);
    assert_int_equal(td_tokenizer_decode(tok, ids, 6, 0, &text, &err), TD_OK);
    assert_string_equal(td_buf_str(&text), "<|im_start|>a<think><|im_end|>");
    td_buf_clear(&text);
    assert_int_equal(td_tokenizer_decode(tok, ids, 6, TD_DETOK_SKIP_SPECIAL, &text, &err), TD_OK);
    assert_string_equal(td_buf_str(&text), "a<think>");
    td_buf_free(&text);
    td_buf_init(&text, 5);
    assert_int_equal(td_tokenizer_decode(tok, ids, 6, 0, &text, &err), TD_E_LIMIT);
    td_buf_free(&text);
    td_tokenizer_close(&tok);
}

/* The thousandth token allocates no more than the tenth. */
static void a_long_stream_allocates_nothing(void **state) {
    (void)state;
    td_tokenizer *tok = load_fixture("gemma-style");
    td_detok d;
    td_buf out;
    td_error err;
    td_buf_init(&out, 1 << 20);
    td_buf_append(&out, "0123456789012345678901234567890123456789012345678901234567890123456789", 70);
    assert_int_equal(td_detok_init(&d, tok, 0, &err), TD_OK);
    td_token n_vocab = (td_token)td_tokenizer_n_vocab(tok);
    for (td_token id = 0; id < n_vocab; id++) { /* every name once, to grow what is held to its size */
        td_buf_clear(&out);
        assert_int_equal(td_detok_push(&d, id, &out, &err), TD_OK);
    }
    td_alloc_fail_at(0);
    for (int i = 0; i < 10000; i++) {
        td_buf_clear(&out);
        assert_int_equal(td_detok_push(&d, (td_token)next((uint32_t)n_vocab), &out, &err), TD_OK);
    }
    assert_false(td_alloc_failed());
    td_alloc_fail_at(-1);
    td_detok_free(&d);
    td_buf_free(&out);
    td_tokenizer_close(&tok);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(random_lists_of_the_gemma_form),
        cmocka_unit_test(random_lists_of_the_llama2_form),
        cmocka_unit_test(random_lists_of_the_byte_form),
        cmocka_unit_test(texts_come_back),
        cmocka_unit_test(bytes_wait_for_their_character_and_no_longer),
        cmocka_unit_test(an_added_token_is_its_name),
        cmocka_unit_test(strips_and_replacements_hold_what_they_must),
        cmocka_unit_test(a_stream_may_continue_a_text),
        cmocka_unit_test(special_tokens_may_be_left_out),
        cmocka_unit_test(a_long_stream_allocates_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
