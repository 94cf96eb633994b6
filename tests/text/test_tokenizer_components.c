/* test_tokenizer_components.c - each type of normaliser, pre-tokeniser and decoder, alone and in sequences, beside what
 * the reference implementation makes of the same texts (tests/fixtures/tokenizers/components.json; the recipe is
 * tests/npm/tokenizers/make_golden.mjs). */
#include "test_tokenizer_util.h"

#include "text/normalizer.h"
#include "text/pretokenizer.h"

static json_t *golden;

/* Where we differ on purpose, by what the component's JSON holds and by the text. */
static const struct {
    const char *spec, *text; /* parts of either */
    const char *why;
} differences[] = {
    {"ByteFallback", "\"b\", \"<0xE6>\", \"<0x97>\", \"<0x41>\"",
     "a run of bytes that is no UTF-8 keeps its good characters (detok.h)"},
    {"\"pretokenizers\": []", "\"\"", "an empty text has no word, rather than an empty one"},
};

static bool differs_on_purpose(const json_t *spec, const char *input) {
    char *text = json_dumps(spec, 0);
    bool found = false;
    for (size_t i = 0; i < sizeof differences / sizeof differences[0]; i++)
        found |= strstr(text, differences[i].spec) && strstr(input, differences[i].text);
    free(text);
    return found;
}

static int n_wrong, n_right;

static void wrong(const char *what, const json_t *spec, const json_t *input, const char *got, const json_t *want) {
    char *s = json_dumps(spec, JSON_COMPACT), *i = json_dumps(input, JSON_ENCODE_ANY),
         *w = json_dumps(want, JSON_ENCODE_ANY);
    print_message("%s %s\n  of   %s\n  got  %s\n  want %s\n", what, s, i, got, w);
    free(s);
    free(i);
    free(w);
    n_wrong++;
}

/* Runs fn(spec, input) for every pair; it returns JSON to compare with the expectation (td_free'd by nobody: jansson).
 */
static void check_all(const char *specs_key, const char *inputs_key, json_t *(*fn)(const json_t *, const json_t *)) {
    const json_t *specs = json_object_get(golden, specs_key), *inputs = json_object_get(golden, inputs_key);
    assert_true(json_array_size(specs) > 5 && json_array_size(inputs) > 5);
    n_wrong = n_right = 0;
    for (size_t i = 0; i < json_array_size(specs); i++) {
        const json_t *spec = json_object_get(json_array_get(specs, i), "spec");
        const json_t *out = json_object_get(json_array_get(specs, i), "out");
        for (size_t k = 0; k < json_array_size(inputs); k++) {
            const json_t *input = json_array_get(inputs, k), *want = json_array_get(out, k);
            json_t *got = fn(spec, input);
            char *text = json_dumps(got, JSON_ENCODE_ANY), *in = json_dumps(input, JSON_ENCODE_ANY);
            if (json_equal(got, want))
                n_right++;
            else if (!differs_on_purpose(spec, in))
                wrong(specs_key, spec, input, text, want);
            free(text);
            free(in);
            json_decref(got);
        }
    }
    print_message("%s: %d equal, %d different\n", specs_key, n_right, n_wrong);
    assert_int_equal(n_wrong, 0);
}

/* ---- pre-tokenisers ---- */

static json_t *words_of(const td_words *words) {
    json_t *list = json_array();
    for (size_t i = 0; i < words->n; i++)
        json_array_append_new(list, json_stringn(words->text.data + words->v[i].offset, words->v[i].size));
    return list;
}

static json_t *run_pretokenizer(const json_t *spec, const json_t *text) {
    td_pretokenizer *p;
    td_error err;
    if (td_pretokenizer_new(&p, spec, &err) != TD_OK)
        return json_string(err.message);
    td_words words, spare;
    td_pattern_work patterns = {0};
    td_words_init(&words, 1 << 20);
    td_words_init(&spare, 1 << 20);
    td_status st = td_pretokenizer_run(p, &patterns, json_string_value(text), json_string_length(text), true, &words,
                                       &spare, &err);
    json_t *out = st == TD_OK ? words_of(&words) : json_string(err.message);
    td_words_free(&words);
    td_words_free(&spare);
    td_pattern_work_free(&patterns);
    td_pretokenizer_free(&p);
    return out;
}

static void pretokenizers_split_as_the_reference(void **state) {
    (void)state;
    check_all("pretokenizers", "pretokenizer_texts", run_pretokenizer);
}

/* ---- normalisers ---- */

static json_t *run_normalizer(const json_t *spec, const json_t *text) {
    td_normalizer *n;
    td_error err;
    if (td_normalizer_new(&n, spec, &err) != TD_OK)
        return json_string(err.message);
    td_normalizer_work work = {0};
    td_pattern_work patterns = {0};
    td_buf out;
    td_buf_init(&out, 1 << 22);
    td_status st =
        td_normalizer_run(n, &work, &patterns, json_string_value(text), json_string_length(text), &out, NULL, &err);
    json_t *result = st == TD_OK ? json_stringn(out.data, out.size) : json_string(err.message);
    td_buf_free(&out);
    td_normalizer_work_free(&work);
    td_pattern_work_free(&patterns);
    td_normalizer_free(&n);
    return result;
}

static void normalizers_rewrite_as_the_reference(void **state) {
    (void)state;
    check_all("normalizers", "normalizer_texts", run_normalizer);
}

/* A million marks in the wrong order: utf8proc's own ordering would take hours. */
static void a_long_run_of_marks_is_put_in_order(void **state) {
    (void)state;
    enum { N = 250000 };
    static const char *const forms[] = {"NFC", "NFD", "NFKC", "NFKD"};
    char *text = td_malloc(4 * N + 1);
    text[0] = 'q';
    for (size_t i = 0; i < N; i++)
        memcpy(text + 1 + 4 * i, "\xCC\x81\xCC\xA3", 4); /* above, below */
    for (int f = 0; f < 4; f++) {
        json_t *spec = json_pack("{s:s}", "type", forms[f]), *in = json_stringn(text, 4 * N + 1);
        json_t *out = run_normalizer(spec, in);
        const char *got = json_string_value(out);
        assert_int_equal(json_string_length(out), 4 * N + 1);
        assert_memory_equal(got, "q\xCC\xA3\xCC\xA3", 5);
        assert_memory_equal(got + 1 + 2 * N - 2, "\xCC\xA3\xCC\x81", 4); /* those below, then those above */
        json_decref(spec);
        json_decref(in);
        json_decref(out);
    }
    td_free(text);
}

/* ---- decoders ---- */

/* A tokenizer whose vocabulary is the list, each name once, and the ids of the list. */
static char *decoder_file(const json_t *spec, const json_t *tokens) {
    json_t *vocab = json_object();
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        const char *name = json_string_value(json_array_get(tokens, i));
        if (!json_object_get(vocab, name))
            json_object_set_new(vocab, name, json_integer((json_int_t)json_object_size(vocab)));
    }
    json_t *root =
        json_pack("{s:O, s:{s:s, s:o, s:[]}}", "decoder", spec, "model", "type", "BPE", "vocab", vocab, "merges");
    char *text = json_dumps(root, 0);
    json_decref(root);
    return text;
}

static json_t *run_decoder(const json_t *spec, const json_t *tokens) {
    char *file = decoder_file(spec, tokens);
    td_tokenizer *tok;
    td_error err;
    td_buf text;
    td_buf_init(&text, 1 << 20);
    td_status st = td_tokenizer_parse(&tok, file, strlen(file), NULL, 0, "t.json", &err);
    free(file);
    if (st != TD_OK)
        return json_string(err.message);
    td_token ids[64];
    size_t n = json_array_size(tokens);
    for (size_t i = 0; i < n; i++)
        ids[i] = td_tokenizer_find(tok, json_string_value(json_array_get(tokens, i)),
                                   json_string_length(json_array_get(tokens, i)));
    st = td_tokenizer_decode(tok, ids, n, 0, &text, &err);
    json_t *out = st == TD_OK ? json_stringn(td_buf_str(&text), text.size) : json_string(err.message);
    td_buf_free(&text);
    td_tokenizer_close(&tok);
    return out;
}

static void decoders_write_as_the_reference(void **state) {
    (void)state;
    check_all("decoders", "token_lists", run_decoder);
}

static int load(void **state) {
    (void)state;
    golden = load_json(TD_TOKENIZERS "components.json");
    return 0;
}

static int unload(void **state) {
    (void)state;
    json_decref(golden);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pretokenizers_split_as_the_reference),
        cmocka_unit_test(normalizers_rewrite_as_the_reference),
        cmocka_unit_test(a_long_run_of_marks_is_put_in_order),
        cmocka_unit_test(decoders_write_as_the_reference),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
