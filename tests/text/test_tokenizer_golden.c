/* test_tokenizer_golden.c - whole tokenizers in the forms of published ones, beside the ids and texts that the
 * reference implementation gave (tests/fixtures/tokenizers/NAME/golden.json; the recipe is
 * tests/npm/tokenizers/make_golden.mjs). */
#include "test_tokenizer_util.h"

#include "base/file.h"

static void check_ids(const char *tokenizer, const char *name, const char *what, const td_token_list *got,
                      const json_t *want, size_t skip) {
    bool same = got->n == json_array_size(want) - skip;
    for (size_t i = 0; same && i < got->n; i++)
        same = got->ids[i] == json_integer_value(json_array_get(want, i + skip));
    if (same)
        return;
    print_message("%s, %s, %s: got", tokenizer, name, what);
    for (size_t i = 0; i < got->n && i < 80; i++)
        print_message(" %d", got->ids[i]);
    print_message("\n  want");
    for (size_t i = skip; i < json_array_size(want) && i < 80 + skip; i++)
        print_message(" %d", (int)json_integer_value(json_array_get(want, i)));
    fail_msg("%s", "ids differ");
}

static void encode(const td_tokenizer *tok, const json_t *text, unsigned flags, td_token_list *out) {
    td_error err;
    out->n = 0;
    if (td_tokenizer_encode(tok, json_string_value(text), json_string_length(text), flags, out, &err) != TD_OK)
        fail_msg("%s", err.message);
}

static void check_text(const td_tokenizer *tok, const char *name, const json_t *ids, unsigned flags,
                       const json_t *want) {
    td_token list[4096];
    size_t n = json_array_size(ids);
    td_buf text;
    td_error err;
    assert_true(n <= 4096);
    td_buf_init(&text, 1 << 20);
    for (size_t i = 0; i < n; i++)
        list[i] = (td_token)json_integer_value(json_array_get(ids, i));
    assert_int_equal(td_tokenizer_decode(tok, list, n, flags, &text, &err), TD_OK);
    const char *got = td_buf_str(&text);
    if (text.size != json_string_length(want) || memcmp(got, json_string_value(want), text.size) != 0) {
        print_text("got ", got, text.size);
        print_text("want", json_string_value(want), json_string_length(want));
        fail_msg("%s: decoded texts differ", name);
    }
    td_buf_free(&text);
}

/* A token that is found after normalising is written by its name, where the reference (since 0.23) writes what the
 * normaliser makes of the name. */
static bool has_normalized_token(const td_tokenizer *tok, const json_t *ids) {
    for (size_t i = 0; i < json_array_size(ids); i++) {
        size_t size;
        const char *name = td_tokenizer_piece(tok, (td_token)json_integer_value(json_array_get(ids, i)), &size);
        if (size >= 4 && memmem(name, size, "NORM", 4))
            return true;
    }
    return false;
}

/* Tokens of the template that the text itself begins with are not doubled; the reference doubles them. */
static size_t doubled(const json_t *ids, const json_t *inner, size_t n_before) {
    for (size_t i = 0; i < n_before; i++)
        if (i >= json_array_size(inner) || !json_equal(json_array_get(ids, i), json_array_get(inner, i)))
            return 0;
    return n_before;
}

static void check_case(const td_tokenizer *tok, const char *tokenizer, const json_t *c, size_t n_before) {
    const char *name = json_string_value(json_object_get(c, "name"));
    const json_t *text = json_object_get(c, "text"), *ids = json_object_get(c, "ids"),
                 *inner = json_object_get(c, "inner");
    td_token_list got;
    td_token_list_init(&got, 1 << 20);
    encode(tok, text, TD_ENCODE_PARSE_SPECIAL, &got);
    check_ids(tokenizer, name, "encoded", &got, inner, 0);
    encode(tok, text, TD_ENCODE_PARSE_SPECIAL | TD_ENCODE_ADD_SPECIAL, &got);
    check_ids(tokenizer, name, "encoded with special tokens", &got, ids, doubled(ids, inner, n_before));
    td_token_list_free(&got);
    if (has_normalized_token(tok, ids))
        return;
    check_text(tok, name, ids, 0, json_object_get(c, "decoded"));
    check_text(tok, name, ids, TD_DETOK_SKIP_SPECIAL, json_object_get(c, "skipped"));
}

static void check_tokenizer(td_tokenizer *tok, const char *name, size_t n_before) {
    char path[512];
    snprintf(path, sizeof path, TD_TOKENIZERS "%s/golden.json", name);
    json_t *golden = load_json(path);
    const json_t *cases = json_object_get(golden, "cases");
    assert_true(json_array_size(cases) > 100);
    for (size_t i = 0; i < json_array_size(cases); i++)
        check_case(tok, name, json_array_get(cases, i), n_before);
    json_decref(golden);
    td_tokenizer_close(&tok);
}

/* Without their tokenizer_config.json, which the reference does not read. */
static td_tokenizer *load_alone(const char *path) {
    td_tokenizer *tok;
    td_error err;
    if (td_tokenizer_load(&tok, path, NULL, &err) != TD_OK)
        fail_msg("%s", err.message);
    return tok;
}

static void a_published_form(void **state) {
    const char *name = *state;
    char path[512];
    snprintf(path, sizeof path, TD_TOKENIZERS "%s/tokenizer.json", name);
    check_tokenizer(load_alone(path), name, strstr(name, "qwen") || strstr(name, "metaspace") ? 0 : 1);
}

static void the_demonstration_model(void **state) {
    (void)state;
    static const char path[] = TD_SOURCE_DIR "/models/gemma4-demo-4bit/tokenizer.json";
    if (!td_file_exists(path))
        skip();
    check_tokenizer(load_alone(path), "gemma4-demo-4bit", 1);
}

#define FORM(name)                                                                                                     \
    { #name, a_published_form, NULL, NULL, (void *)(intptr_t)name }

int main(void) {
    const struct CMUnitTest tests[] = {
        FORM("gemma-style"),      FORM("qwen-style"),
        FORM("llama3-style"),     FORM("sentencepiece-style"),
        FORM("metaspace-style"),  FORM("metaspace-split-style"),
        FORM("components-style"), cmocka_unit_test(the_demonstration_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
