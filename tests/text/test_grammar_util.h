/* test_grammar_util.h - what the tests of grammars share: small vocabularies, texts through grammars, walks. */
#ifndef TEST_GRAMMAR_UTIL_H
#define TEST_GRAMMAR_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/rng.h"
#include "text/grammar.h"
#include "text/token_trie.h"
#include "text/tokenizer.h"

/* Numbers for one test: a function of the seed. */
typedef struct dice {
    uint64_t seed, n;
} dice;

static inline uint32_t below(dice *d, uint32_t n) {
    return (uint32_t)(td_rng_uniform(d->seed, d->n++, 7) * n) % n;
}

/* A tokenizer of special tokens (ids from 0, the first ends an answer), the 256 bytes, and texts. A text is given to
 * JSON as it stands, so it must be UTF-8; half characters are spelt by byte tokens. */
static inline td_tokenizer *make_tokenizer(const char *const *special, size_t n_special, const char *const *texts,
                                           size_t n_texts) {
    td_tokenizer *tok;
    td_error err;
    json_t *vocab = json_object(), *added = json_array();
    json_int_t id = 0;
    char byte[16];
    for (size_t i = 0; i < n_special; i++) {
        json_array_append_new(added, json_pack("{s:I, s:s, s:b}", "id", id, "content", special[i], "special", 1));
        json_object_set_new(vocab, special[i], json_integer(id++));
    }
    for (int b = 0; b < 256; b++) {
        snprintf(byte, sizeof byte, "<0x%02X>", b);
        json_object_set_new(vocab, byte, json_integer(id++));
    }
    for (size_t i = 0; i < n_texts; i++)
        if (!json_object_get(vocab, texts[i]))
            json_object_set_new(vocab, texts[i], json_integer(id++));
    json_t *root = json_pack("{s:s, s:o, s:{s:s, s:[{s:s}, {s:s}]}, s:{s:s, s:b, s:o, s:[]}}", "version", "1.0",
                             "added_tokens", added, "decoder", "type", "Sequence", "decoders", "type", "ByteFallback",
                             "type", "Fuse", "model", "type", "BPE", "byte_fallback", 1, "vocab", vocab, "merges");
    assert_non_null(root);
    char *text = json_dumps(root, 0);
    if (td_tokenizer_parse(&tok, text, strlen(text), NULL, 0, "test", &err) != TD_OK)
        fail_msg("%s", err.message);
    free(text);
    json_decref(root);
    return tok;
}

static inline td_token_trie *make_trie(const td_tokenizer *tok) {
    td_token_trie *trie;
    td_error err;
    const td_token end = 0;
    if (td_token_trie_open(&trie, tok, 0, &end, 1, &err) != TD_OK)
        fail_msg("%s", err.message);
    return trie;
}

static inline td_grammar *make_gbnf(const td_token_trie *trie, const char *text) {
    td_grammar *g;
    td_error err;
    if (td_grammar_from_gbnf(&g, trie, text, strlen(text), NULL, &err) != TD_OK)
        fail_msg("%s\nin %s", err.message, text);
    return g;
}

static inline td_grammar_state *make_state(td_grammar *g) {
    td_grammar_state *s;
    td_error err;
    if (td_grammar_state_open(&s, g, &err) != TD_OK)
        fail_msg("%s", err.message);
    return s;
}

/* Does the text fit, and is it complete? 0: it does not; 1: a beginning; 2: complete. */
static inline int fits(td_grammar *g, const char *text, size_t n) {
    td_grammar_state *s = make_state(g);
    td_error err;
    td_status st = td_grammar_state_advance_text(s, text, n, &err);
    if (st != TD_OK && st != TD_E_ARG)
        fail_msg("%s", err.message);
    int result = st != TD_OK ? 0 : td_grammar_state_is_complete(s) ? 2 : 1;
    td_grammar_state_close(&s);
    return result;
}

static inline void check_fits(td_grammar *g, const char *text, int expected) {
    int found = fits(g, text, strlen(text));
    if (found != expected)
        fail_msg("%s: %d, expected %d", text, found, expected);
}

/* The mask against every token tried by itself. */
static inline void check_mask(td_grammar_state *s, const td_token_trie *trie, const char *where) {
    uint64_t *mask = calloc(trie->n_words, sizeof *mask);
    td_error err;
    size_t n, expected = 0;
    assert_non_null(mask);
    if (td_grammar_state_allowed(s, mask, &n, &err) != TD_OK)
        fail_msg("%s: %s", where, err.message);
    for (size_t t = 0; t < trie->n_vocab; t++) {
        td_grammar_state *c;
        size_t size, n_ok;
        const td_token token = (td_token)t;
        const char *text = td_token_trie_text(trie, token, &size);
        bool fit =
            td_token_trie_is_end(trie, token) && td_grammar_state_is_complete(s) && !td_grammar_state_has_ended(s);
        if (size > 0) {
            assert_int_equal(td_grammar_state_clone(&c, s, &err), TD_OK);
            fit = td_grammar_state_advance_text(c, text, size, &err) == TD_OK;
            td_grammar_state_close(&c);
        }
        assert_int_equal(td_grammar_state_accepts(s, &token, 1, &n_ok, &err), TD_OK);
        if (td_mask_has(mask, token) != (n_ok == 1) || (fit && !td_mask_has(mask, token)))
            fail_msg("%s: token %zu: mask %d, accepts %zu, by its text %d", where, t, td_mask_has(mask, token), n_ok,
                     fit);
        expected += n_ok;
    }
    assert_int_equal(n, expected);
    free(mask);
}

/* A random allowed token; `hurry`: one of those that lead out of strings and brackets, if there is one. */
static inline td_token choose(dice *d, const td_token_trie *trie, const uint64_t *mask, size_t n, bool hurry) {
    static const char *const out[] = {"</parameter>", "</think>", "}", "]", "\"", "</", "\n", "1", "e"};
    enum { N_OUT = sizeof out / sizeof *out, N_FIRST = 1 };
    for (size_t i = 0; hurry && i < trie->n_end; i++)
        if (td_mask_has(mask, trie->end_tokens[i]))
            return trie->end_tokens[i];
    size_t from = below(d, N_OUT - N_FIRST);
    for (size_t k = 0; hurry && k < N_OUT; k++) {
        const char *text = out[k < N_FIRST ? k : N_FIRST + (k + from) % (N_OUT - N_FIRST)];
        td_token t = td_tokenizer_find(trie->tokenizer, text, strlen(text));
        if (t >= 0 && td_mask_has(mask, t))
            return t;
    }
    size_t left = below(d, (uint32_t)n);
    for (size_t t = 0; t < trie->n_vocab; t++)
        if (td_mask_has(mask, (td_token)t) && left-- == 0)
            return (td_token)t;
    fail_msg("a mask without tokens");
    return -1;
}

/* Walks at random from the beginning to an end token, or `limit` tokens (false); the text goes to `out`, special tokens
 * by their names. After `patience` tokens it hurries. The mask is checked against brute force now and then. */
static inline bool walk_up_to(dice *d, td_grammar *g, size_t patience, size_t limit, td_buf *out) {
    const td_token_trie *trie = td_grammar_trie(g);
    td_grammar_state *s = make_state(g);
    uint64_t *mask = calloc(trie->n_words, sizeof *mask);
    td_error err;
    assert_non_null(mask);
    for (size_t i = 0; !td_grammar_state_has_ended(s) && i < limit; i++) {
        size_t n, size;
        if (td_grammar_state_allowed(s, mask, &n, &err) != TD_OK)
            fail_msg("%s behind %s", err.message, td_buf_str(out));
        if (below(d, 40) == 0)
            check_mask(s, trie, td_buf_str(out));
        td_token token = choose(d, trie, mask, n, i > patience && below(d, 8));
        if (td_grammar_state_advance(s, token, &err) != TD_OK)
            fail_msg("%s behind %s", err.message, td_buf_str(out));
        const char *text = td_token_trie_text(trie, token, &size);
        if (size == 0 && !td_token_trie_is_end(trie, token))
            text = td_tokenizer_piece(trie->tokenizer, token, &size);
        assert_int_equal(td_buf_append(out, text, size), TD_OK);
    }
    bool ended = td_grammar_state_has_ended(s);
    assert_true(!ended || td_grammar_state_must_end(s));
    free(mask);
    td_grammar_state_close(&s);
    return ended;
}

static inline void random_walk(dice *d, td_grammar *g, size_t patience, td_buf *out) {
    if (!walk_up_to(d, g, patience, patience + 20000, out))
        fail_msg("no end: %.2000s", td_buf_str(out));
}

#endif
