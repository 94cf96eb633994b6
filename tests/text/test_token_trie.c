/* test_token_trie.c - the texts of tokens in every kind of tokenizer, and the tries made of them. */
#include "text/test_grammar_util.h"
#include "text/test_tokenizer_util.h"
#include "text/tokenizer_unicode.h"

static void check_text(const td_tokenizer *tok, const char *name, const char *expected, size_t n) {
    td_buf out;
    td_error err;
    td_buf_init(&out, 1000);
    td_token id = td_tokenizer_find(tok, name, strlen(name));
    if (id < 0)
        fail_msg("no token %s", name);
    assert_int_equal(td_token_bytes(tok, id, &out, &err), TD_OK);
    if (out.size != n || memcmp(td_buf_str(&out), expected, n) != 0)
        fail_msg("%s: %s", name, td_buf_str(&out));
    td_buf_free(&out);
}

static void names_become_bytes(void **state) {
    (void)state;
    td_tokenizer *fallback = load_fixture("gemma-style"), *bytes = load_fixture("qwen-style"),
                 *pieces = load_fixture("sentencepiece-style");
    check_text(fallback, "<0xE2>", "\xE2", 1);
    check_text(fallback, "<0x0A>", "\n", 1);
    check_text(fallback, "\xE2\x96\x81", " ", 1);
    check_text(fallback, "<bos>", "<bos>", 5);
    check_text(bytes, "\xC4\xA0", " ", 1);      /* U+0120 is a space in the alphabet of bytes */
    check_text(bytes, "\xC3\xA2", "\xE2", 1);   /* half a character stays half */
    check_text(pieces, "\xE2\x96\x81", " ", 1); /* not the first of a text: its mark is a space */
    td_tokenizer_close(&fallback);
    td_tokenizer_close(&bytes);
    td_tokenizer_close(&pieces);
}

/* Texts of all tokens of an encoding, joined, are the text. */
static void texts_join_to_what_was_encoded(void **state) {
    (void)state;
    static const char *const names[] = {"gemma-style", "qwen-style", "llama3-style"};
    static const char text[] = "x {\"key\": [1, 2.5, \"\xC3\xA9\xE2\x82\xAC\xF0\x9F\x98\x80\"]}\n\tend";
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        td_tokenizer *tok = load_fixture(names[i]);
        td_token_trie *trie = make_trie(tok);
        td_token_list ids;
        td_buf all;
        td_error err;
        td_token_list_init(&ids, 1000);
        td_buf_init(&all, 10000);
        if (td_tokenizer_encode(tok, text, strlen(text), 0, &ids, &err) != TD_OK)
            fail_msg("%s: %s", names[i], err.message);
        for (size_t k = 0; k < ids.n; k++) {
            size_t size;
            const char *piece = td_token_trie_text(trie, ids.ids[k], &size);
            td_buf_append(&all, piece, size);
        }
        if (!strstr(td_buf_str(&all), text))
            fail_msg("%s: %s", names[i], td_buf_str(&all));
        td_buf_free(&all);
        td_token_list_free(&ids);
        td_token_trie_close(&trie);
        td_tokenizer_close(&tok);
    }
}

/* Every token with text is at exactly one place, where the bytes on the way to it are its text. */
static void check_trie(const td_token_trie *t) {
    size_t *seen = calloc(t->n_vocab, sizeof *seen);
    char path[TD_TRIE_MAX_TOKEN];
    assert_non_null(seen);
    for (int k = 0; k < TD_TRIE_SLICES; k++) {
        const td_trie_slice *s = &t->slices[k];
        uint32_t from = 0;
        for (uint32_t i = 0; i < s->n_nodes; i++) {
            const td_trie_node *n = &s->nodes[i];
            assert_true(n->skip > i && n->skip <= s->n_nodes && n->depth <= t->max_depth);
            assert_true(n->skip == i + 1 || s->nodes[i + 1].depth == n->depth + 1);
            assert_true(n->skip == s->n_nodes || s->nodes[n->skip].depth <= n->depth);
            path[n->depth - 1] = (char)n->byte;
            for (; from < n->tokens_end; from++) {
                size_t size;
                const char *text = td_token_trie_text(t, s->ids[from], &size);
                assert_int_equal(size, n->depth);
                assert_memory_equal(text, path, size);
                seen[s->ids[from]]++;
                if (k > 0) {
                    assert_true(td_mask_has(s->mask, s->ids[from]));
                    assert_int_equal(td_uni_valid(text, size), size);
                    for (size_t c = 0; c < size; c++)
                        assert_false((unsigned char)text[c] < 0x20 || strchr("\"\\<\x7F", text[c]));
                }
            }
        }
        assert_int_equal(from, s->n_ids);
    }
    for (size_t id = 0; id < t->n_vocab; id++) {
        size_t size;
        td_token_trie_text(t, (td_token)id, &size);
        assert_int_equal(seen[id], size > 0);
    }
    free(seen);
}

static void tries_hold_every_token_once(void **state) {
    (void)state;
    static const char *const names[] = {"gemma-style",          "qwen-style",      "llama3-style",
                                        "sentencepiece-style",  "metaspace-style", "components-style",
                                        "metaspace-split-style"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        td_tokenizer *tok = load_fixture(names[i]);
        td_token_trie *trie = make_trie(tok);
        check_trie(trie);
        for (size_t id = 0; id < trie->n_vocab; id++) {
            size_t size;
            td_token_trie_text(trie, (td_token)id, &size);
            if (td_tokenizer_is_special(tok, (td_token)id) || td_token_trie_is_end(trie, (td_token)id))
                assert_int_equal(size, 0);
        }
        td_token_trie_close(&trie);
        td_tokenizer_close(&tok);
    }
}

static void sizes_may_differ(void **state) {
    (void)state;
    td_tokenizer *tok = load_fixture("gemma-style");
    td_token_trie *t;
    td_error err;
    size_t n = td_tokenizer_n_vocab(tok), size;
    const td_token ends[] = {1, 6, -4, 100000};
    assert_int_equal(td_token_trie_open(&t, tok, n + 200, ends, 4, &err), TD_OK);
    assert_int_equal(t->n_vocab, n + 200);
    assert_int_equal(t->n_words, (n + 200 + 63) / 64);
    assert_int_equal(t->n_end, 2);
    assert_true(t->all_bytes);
    td_token_trie_text(t, (td_token)n + 3, &size);
    assert_int_equal(size, 0);
    check_trie(t);
    td_token_trie_close(&t);
    assert_int_equal(td_token_trie_open(&t, tok, 100, ends, 4, &err), TD_OK);
    assert_int_equal(t->n_vocab, 100);
    assert_false(t->all_bytes);
    check_trie(t);
    td_token_trie_close(&t);
    td_tokenizer_close(&tok);
}

static void memory_may_fail_anywhere(void **state) {
    (void)state;
    td_tokenizer *tok = load_fixture("qwen-style");
    long live = td_alloc_live();
    for (long k = 0;; k++) {
        td_token_trie *t;
        td_error err;
        td_alloc_fail_at(k);
        td_status st = td_token_trie_open(&t, tok, 0, NULL, 0, &err);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        assert_int_equal(st, struck ? TD_E_NOMEM : TD_OK);
        assert_int_equal(st == TD_OK, t != NULL);
        td_token_trie_close(&t);
        assert_int_equal(td_alloc_live(), live);
        if (!struck)
            break;
    }
    td_tokenizer_close(&tok);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_become_bytes),          cmocka_unit_test(texts_join_to_what_was_encoded),
        cmocka_unit_test(tries_hold_every_token_once), cmocka_unit_test(sizes_may_differ),
        cmocka_unit_test(memory_may_fail_anywhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
