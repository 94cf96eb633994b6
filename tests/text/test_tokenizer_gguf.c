/* test_tokenizer_gguf.c - tokenizers out of GGUF metadata: every text of the golden files gives the ids that the
 * tokenizer.json gives which the metadata was made of; what broken metadata is told; chat templates. */
#include "test_tokenizer_util.h"

#include <unistd.h>

#include "support/gguf_tokenizer.h"
#include "text/tokenizer_gguf.h"

static char path[64];

static int make_path(void **state) {
    (void)state;
    snprintf(path, sizeof path, "/tmp/tandem-tokenizer-XXXXXX");
    int fd = mkstemp(path);
    return fd < 0 ? -1 : close(fd);
}

static int remove_path(void **state) {
    (void)state;
    return unlink(path);
}

/* The metadata as an open file; the writer is freed. */
static td_gguf *written(td_gguf_writer *w) {
    td_gguf *g = NULL;
    td_error err;
    if (td_gguf_write(w, path, NULL, 0, &err) != TD_OK || td_gguf_open(&g, path, &err) != TD_OK)
        fail_msg("%s", err.message);
    td_gguf_writer_free(w);
    return g;
}

static td_gguf *converted(const char *dir, bool qwen, uint32_t n_rows) {
    td_gguf_writer w;
    td_gguf_writer_init(&w);
    convert_tokenizer(&w, qwen, dir, n_rows);
    return written(&w);
}

static td_tokenizer *from_gguf(const td_gguf *g) {
    td_tokenizer *tok;
    td_error err;
    if (td_tokenizer_from_gguf(&tok, g, &err) != TD_OK)
        fail_msg("%s", err.message);
    return tok;
}

static void put_strings(td_gguf_writer *w, const char *key, const char *const *v, size_t n) {
    td_gguf_begin_strings(w, key, n);
    for (size_t i = 0; i < n; i++)
        td_gguf_add_string(w, v[i], strlen(v[i]));
}

/* ---- the same as tokenizer.json ---- */

static void same_ids(const td_tokenizer *a, const td_tokenizer *b, const json_t *text, unsigned flags) {
    td_token_list x, y;
    td_error err;
    td_token_list_init(&x, 1 << 20);
    td_token_list_init(&y, 1 << 20);
    const char *s = json_string_value(text);
    const size_t n = json_string_length(text);
    td_status sa = td_tokenizer_encode(a, s, n, flags, &x, &err), sb = td_tokenizer_encode(b, s, n, flags, &y, &err);
    assert_int_equal(sa, sb);
    if (x.n != y.n || (x.n && memcmp(x.ids, y.ids, x.n * sizeof *x.ids) != 0)) {
        print_text("text", s, n);
        for (size_t i = 0; i < x.n || i < y.n; i++)
            print_message("%d/%d ", i < x.n ? x.ids[i] : -1, i < y.n ? y.ids[i] : -1);
        fail_msg("flags %u: the ids differ", flags);
    }
    td_buf ta, tb;
    td_buf_init(&ta, 1 << 20);
    td_buf_init(&tb, 1 << 20);
    assert_int_equal(td_tokenizer_decode(a, x.ids, x.n, 0, &ta, &err), TD_OK);
    assert_int_equal(td_tokenizer_decode(b, y.ids, y.n, 0, &tb, &err), TD_OK);
    assert_int_equal(ta.size, tb.size);
    assert_memory_equal(td_buf_str(&ta), td_buf_str(&tb), ta.size);
    td_buf_free(&ta);
    td_buf_free(&tb);
    td_token_list_free(&x);
    td_token_list_free(&y);
}

static void check_like_json(const char *dir, const char *golden, bool qwen, uint32_t n_rows) {
    char file[512], config[512];
    td_tokenizer *json;
    td_error err;
    td_token first = -1;
    snprintf(file, sizeof file, "%s/tokenizer.json", dir);
    snprintf(config, sizeof config, "%s/tokenizer_config.json", dir);
    if (td_tokenizer_load(&json, file, config, &err) != TD_OK)
        fail_msg("%s", err.message);
    td_gguf *g = converted(dir, qwen, n_rows);
    td_tokenizer *tok = from_gguf(g);
    td_gguf_close(&g); /* the tokenizer keeps nothing of the file */
    assert_true(td_tokenizer_same_vocab(json, tok, &first));
    assert_int_equal(td_tokenizer_n_vocab(tok), td_tokenizer_n_vocab(json));
    assert_int_equal(td_tokenizer_bos(tok), td_tokenizer_bos(json));
    assert_int_equal(td_tokenizer_eos(tok), td_tokenizer_eos(json));
    assert_int_equal(td_tokenizer_pad(tok), td_tokenizer_pad(json));
    for (td_token id = 0; (size_t)id < td_tokenizer_n_vocab(json); id++)
        if (td_tokenizer_is_special(tok, id) != td_tokenizer_is_special(json, id))
            fail_msg("token %d: special %d, expected %d", id, td_tokenizer_is_special(tok, id),
                     td_tokenizer_is_special(json, id));
    json_t *root = load_json(golden);
    const json_t *cases = json_object_get(root, "cases");
    assert_true(json_array_size(cases) > 20);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *text = json_object_get(json_array_get(cases, i), "text");
        for (unsigned flags = 0; flags < 4; flags++)
            same_ids(json, tok, text, flags);
    }
    json_decref(root);
    td_tokenizer_close(&tok);
    td_tokenizer_close(&json);
}

static void gemma_words_as_in_tokenizer_json(void **state) {
    (void)state;
    check_like_json(TD_TOKENIZERS "gemma-style", TD_TOKENIZERS "gemma-style/golden.json", false, 560);
    check_like_json(TD_SOURCE_DIR "/models/gemma4-demo-4bit", TD_TOKENIZERS "gemma4-demo-4bit/golden.json", false,
                    8192);
}

static void qwen_words_as_in_tokenizer_json(void **state) {
    (void)state;
    check_like_json(TD_TOKENIZERS "qwen-style", TD_TOKENIZERS "qwen-style/golden.json", true, 480);
}

/* The way of splitting that a name stands for, seen in the digits: one by one, in threes, or not at all. */
static void names_of_ways_to_split(void **state) {
    (void)state;
    static const char *const words[] = {"1", "2", "3", "4", "12", "123", "1234"};
    static const char *const merges[] = {"1 2", "12 3", "123 4"};
    static const struct {
        const char *model, *pre;
        size_t n;
        td_token ids[4];
    } cases[] = {{"gpt2", "qwen35", 4, {0, 1, 2, 3}},
                 {"gpt2", "qwen2", 4, {0, 1, 2, 3}},
                 {"gpt2", "deepseek-v3", 2, {5, 3}},
                 {"gpt2", "joyai-llm", 2, {5, 3}},
                 {"gemma4", "", 1, {6}}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_gguf_writer w;
        td_gguf_writer_init(&w);
        td_gguf_put_string(&w, "tokenizer.ggml.model", cases[i].model, strlen(cases[i].model));
        td_gguf_put_string(&w, "tokenizer.ggml.pre", cases[i].pre, strlen(cases[i].pre));
        put_strings(&w, "tokenizer.ggml.tokens", words, 7);
        put_strings(&w, "tokenizer.ggml.merges", merges, 3);
        td_gguf *g = written(&w);
        td_tokenizer *tok = from_gguf(g);
        td_token_list got;
        td_error err;
        td_token_list_init(&got, 16);
        assert_int_equal(td_tokenizer_encode(tok, "1234", 4, 0, &got, &err), TD_OK);
        assert_int_equal(got.n, cases[i].n);
        assert_memory_equal(got.ids, cases[i].ids, got.n * sizeof *got.ids);
        td_token_list_free(&got);
        td_tokenizer_close(&tok);
        td_gguf_close(&g);
    }
}

/* ---- broken metadata ---- */

/* A small tokenizer, with one key left out or replaced. */
typedef struct change {
    const char *key; /* left out, unless one of the following says otherwise */
    const char *string;
    int32_t number;
    const char *const *strings;
    size_t n_strings;
    td_status status;
    const char *message;
} change;

static bool changed(td_gguf_writer *w, const change *c, const char *key) {
    if (!c->key || strcmp(c->key, key) != 0)
        return false;
    if (c->string)
        td_gguf_put_string(w, key, c->string, strlen(c->string));
    else if (c->strings)
        put_strings(w, key, c->strings, c->n_strings);
    else if (c->number)
        td_gguf_put_array(w, key, TD_GGUF_I32, (const int32_t[]){1, 1, 1, c->number}, 4);
    return true;
}

static td_gguf *small(const change *c) {
    static const char *const words[] = {"a", "b", "ab", "<s>"}, *const merges[] = {"a b"};
    static const int32_t types[] = {1, 1, 1, 3};
    td_gguf_writer w;
    td_gguf_writer_init(&w);
    if (!changed(&w, c, "tokenizer.ggml.model"))
        td_gguf_put_string(&w, "tokenizer.ggml.model", "gpt2", 4);
    if (!changed(&w, c, "tokenizer.ggml.pre"))
        td_gguf_put_string(&w, "tokenizer.ggml.pre", "qwen2", 5);
    if (!changed(&w, c, "tokenizer.ggml.tokens"))
        put_strings(&w, "tokenizer.ggml.tokens", words, 4);
    if (!changed(&w, c, "tokenizer.ggml.token_type"))
        td_gguf_put_array(&w, "tokenizer.ggml.token_type", TD_GGUF_I32, types, 4);
    if (!changed(&w, c, "tokenizer.ggml.merges"))
        put_strings(&w, "tokenizer.ggml.merges", merges, 1);
    if (!changed(&w, c, "tokenizer.ggml.eos_token_id"))
        td_gguf_put_u32(&w, "tokenizer.ggml.eos_token_id", 3);
    return written(&w);
}

#define LIST(...) (const char *const[]){__VA_ARGS__}, sizeof((const char *const[]){__VA_ARGS__}) / sizeof(char *)

static void broken_metadata_is_told(void **state) {
    (void)state;
    const change cases[] = {
        {"tokenizer.ggml.model", NULL, 0, NULL, 0, TD_E_NOTFOUND, "there is no tokenizer in it"},
        {"tokenizer.ggml.model", "bert", 0, NULL, 0, TD_E_UNSUPPORTED,
         "a tokenizer of model \"bert\" and pre \"qwen2\""},
        {"tokenizer.ggml.pre", "viking", 0, NULL, 0, TD_E_UNSUPPORTED, "pre \"viking\", expected gemma4, or gpt2 with"},
        {"tokenizer.ggml.tokens", NULL, 0, NULL, 0, TD_E_MODEL, "no \"tokenizer.ggml.tokens\""},
        {"tokenizer.ggml.tokens", "a", 0, NULL, 0, TD_E_MODEL, "\"tokenizer.ggml.tokens\" is no array of strings"},
        {"tokenizer.ggml.tokens", NULL, 0, LIST("a", "b", "ab"), TD_E_MODEL, "3 tokens, but 4 token types"},
        {"tokenizer.ggml.tokens", NULL, 0, LIST("a", "b", "ab", "a"), TD_E_MODEL, "\"a\""},
        {"tokenizer.ggml.tokens", NULL, 0, LIST("a", "b", "ab", "\xC3"), TD_E_FORMAT, "token 3 is not UTF-8"},
        {"tokenizer.ggml.token_type", NULL, 7, NULL, 0, TD_E_MODEL, "token 3: type 7, expected 1 to 6"},
        {"tokenizer.ggml.token_type", NULL, -1, NULL, 0, TD_E_MODEL, "token 3: type -1"},
        {"tokenizer.ggml.token_type", "x", 0, NULL, 0, TD_E_MODEL,
         "\"tokenizer.ggml.token_type\" is no array of integers"},
        {"tokenizer.ggml.merges", NULL, 0, NULL, 0, TD_E_MODEL, "no \"tokenizer.ggml.merges\""},
        {"tokenizer.ggml.merges", NULL, 0, LIST("ab"), TD_E_MODEL, "merge 0 is not two words with one space"},
        {"tokenizer.ggml.merges", NULL, 0, LIST("a b", "a b "), TD_E_MODEL, "merge 1 is not two words"},
        {"tokenizer.ggml.merges", NULL, 0, LIST("a b c"), TD_E_MODEL, "merge 0 is not two words"},
        {"tokenizer.ggml.merges", NULL, 0, LIST(" "), TD_E_MODEL, "merge 0 is not two words"},
        {"tokenizer.ggml.merges", NULL, 0, LIST("a x"), TD_E_MODEL, "x"},
        {"tokenizer.ggml.eos_token_id", "3", 0, NULL, 0, TD_E_MODEL, "\"tokenizer.ggml.eos_token_id\" is a string"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_gguf *g = small(&cases[i]);
        td_tokenizer *tok;
        td_error err = {0};
        long live = td_alloc_live();
        td_status st = td_tokenizer_from_gguf(&tok, g, &err);
        if (st != cases[i].status || !strstr(err.message, cases[i].message) || !strstr(err.message, path))
            fail_msg("case %zu: %d \"%s\", expected %d \"%s\"", i, st, err.message, cases[i].status, cases[i].message);
        assert_null(tok);
        assert_int_equal(td_alloc_live(), live);
        td_gguf_close(&g);
    }
    td_gguf *g = small(&(change){0});
    td_tokenizer *tok = from_gguf(g);
    assert_int_equal(td_tokenizer_n_vocab(tok), 4);
    assert_int_equal(td_tokenizer_eos(tok), 3);
    td_tokenizer_close(&tok);
    td_gguf_close(&g);
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    td_gguf *g = small(&(change){0});
    for (long k = 0;; k++) {
        td_tokenizer *tok;
        td_error err;
        long live = td_alloc_live();
        td_alloc_fail_at(k);
        td_status st = td_tokenizer_from_gguf(&tok, g, &err);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        if (!struck) {
            assert_int_equal(st, TD_OK);
            td_tokenizer_close(&tok);
            break;
        }
        if (st == TD_OK) /* it could do without: the compiler of an expression */
            td_tokenizer_close(&tok);
        else if (st != TD_E_NOMEM)
            fail_msg("allocation %ld failed: %d \"%s\"", k, st, err.message);
        assert_null(tok);
        assert_int_equal(td_alloc_live(), live);
    }
    td_gguf_close(&g);
}

/* ---- chat templates ---- */

static void the_template_of_the_file(void **state) {
    (void)state;
    static const char plain[] = "{{ bos_token }}{% for m in messages %}[{{ m.content }}]{% endfor %}";
    static const char tools[] = "{% for m in messages %}({{ m.content }}{{ tools|length }}){% endfor %}";
    static const char *const words[] = {"<b>", "</s>"};
    td_gguf_writer w;
    td_gguf_writer_init(&w);
    put_strings(&w, "tokenizer.ggml.tokens", words, 2);
    td_gguf_put_u32(&w, "tokenizer.ggml.bos_token_id", 0);
    td_gguf_put_u32(&w, "tokenizer.ggml.eos_token_id", 1);
    td_gguf_put_string(&w, "tokenizer.chat_template", plain, sizeof plain - 1);
    td_gguf_put_string(&w, "tokenizer.chat_template.tool_use", tools, sizeof tools - 1);
    td_gguf *g = written(&w);
    td_chat_template *t;
    td_error err;
    if (td_chat_template_from_gguf(&t, g, &err) != TD_OK)
        fail_msg("%s", err.message);
    td_gguf_close(&g);
    assert_string_equal(td_chat_template_bos(t), "<b>");
    assert_string_equal(td_chat_template_eos(t), "</s>");
    assert_string_equal(td_chat_template_source(t, false), plain);
    assert_string_equal(td_chat_template_source(t, true), tools);
    td_buf out;
    td_buf_init(&out, 1 << 16);
    json_t *messages = json_pack("[{s:s,s:s}]", "role", "user", "content", "hi");
    assert_int_equal(td_chat_template_render(t, &(td_chat_request){.messages = messages}, &out, &err), TD_OK);
    assert_string_equal(td_buf_str(&out), "<b>[hi]");
    td_buf_free(&out);
    json_decref(messages);
    td_chat_template_close(&t);
}

static void no_template_and_a_broken_one(void **state) {
    (void)state;
    td_chat_template *t;
    td_error err;
    td_gguf *g = small(&(change){0});
    assert_int_equal(td_chat_template_from_gguf(&t, g, &err), TD_E_NOTFOUND);
    assert_null(t);
    td_gguf_close(&g);
    td_gguf_writer w;
    td_gguf_writer_init(&w);
    td_gguf_put_string(&w, "tokenizer.chat_template", "{% for %}", 9);
    g = written(&w);
    assert_int_equal(td_chat_template_from_gguf(&t, g, &err), TD_E_FORMAT);
    assert_null(t);
    td_gguf_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemma_words_as_in_tokenizer_json), cmocka_unit_test(qwen_words_as_in_tokenizer_json),
        cmocka_unit_test(names_of_ways_to_split),           cmocka_unit_test(broken_metadata_is_told),
        cmocka_unit_test(every_allocation_may_fail),        cmocka_unit_test(the_template_of_the_file),
        cmocka_unit_test(no_template_and_a_broken_one),
    };
    return cmocka_run_group_tests(tests, make_path, remove_path);
}
