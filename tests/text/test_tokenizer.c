/* test_tokenizer.c - the handle: what can be asked of a loaded tokenizer, what the flags of encoding mean, ceilings,
 * threads, and what is left when memory runs out. */
#include "test_tokenizer_util.h"

#include <pthread.h>

/* <s>=0 </s>=1 <unk>=2 a=3 b=4 c=5 ' '=6 ab=7 "<s>x"=8 and added tokens 9.. */
#define SMALL_VOCAB                                                                                                    \
    "\"vocab\": {\"<s>\": 0, \"</s>\": 1, \"<unk>\": 2, \"a\": 3, \"b\": 4, \"c\": 5, \" \": 6, \"ab\": 7}, "          \
    "\"merges\": [\"a b\"]"
#define SPECIALS                                                                                                       \
    "{\"id\": 0, \"content\": \"<s>\", \"special\": true}, {\"id\": 1, \"content\": \"</s>\", \"special\": true}, "    \
    "{\"id\": 2, \"content\": \"<unk>\", \"special\": true}"

static const char small[] = "{\"added_tokens\": [" SPECIALS ", {\"id\": 8, \"content\": \"<think>\"}, "
                            "{\"id\": 20, \"content\": \"<far>\", \"special\": true}], "
                            "\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["
                            "{\"SpecialToken\": {\"id\": \"<s>\"}}, {\"Sequence\": {\"id\": \"A\"}}, "
                            "{\"SpecialToken\": {\"id\": \"</s>\"}}], \"special_tokens\": {"
                            "\"<s>\": {\"ids\": [0]}, \"</s>\": {\"ids\": [1]}}}, "
                            "\"decoder\": {\"type\": \"Fuse\"}, "
                            "\"model\": {\"type\": \"BPE\", \"unk_token\": \"<unk>\", " SMALL_VOCAB "}}";

/* Encodes a C string and compares with a list that -1 ends. */
static void expect(const td_tokenizer *tok, const char *text, unsigned flags, const td_token *want) {
    td_token_list got;
    td_error err;
    td_token_list_init(&got, 1000);
    if (td_tokenizer_encode(tok, text, strlen(text), flags, &got, &err) != TD_OK)
        fail_msg("%s", err.message);
    size_t n = 0;
    while (want[n] >= 0)
        n++;
    if (got.n != n || (n > 0 && memcmp(got.ids, want, n * sizeof *want) != 0)) {
        print_text("of", text, strlen(text));
        for (size_t i = 0; i < got.n; i++)
            print_message("  %d", got.ids[i]);
        fail_msg("%s", "\nids differ");
    }
    td_token_list_free(&got);
}

#define EXPECT(text, flags, ...) expect(tok, text, flags, (const td_token[]){__VA_ARGS__ __VA_OPT__(, ) - 1})

/* ---- look-ups ---- */

static void names_and_ids(void **state) {
    (void)state;
    td_tokenizer *tok = parse_tokenizer(small, NULL);
    size_t size;
    assert_int_equal(td_tokenizer_n_vocab(tok), 21);
    assert_memory_equal(td_tokenizer_piece(tok, 7, &size), "ab", 2);
    assert_int_equal(size, 2);
    assert_memory_equal(td_tokenizer_piece(tok, 20, &size), "<far>", 5);
    assert_null(td_tokenizer_piece(tok, 9, &size));
    assert_int_equal(size, 0);
    assert_null(td_tokenizer_piece(tok, -1, &size));
    assert_null(td_tokenizer_piece(tok, 21, &size));
    assert_int_equal(td_tokenizer_find(tok, "ab", 2), 7);
    assert_int_equal(td_tokenizer_find(tok, "abc", 2), 7);
    assert_int_equal(td_tokenizer_find(tok, "abc", 3), -1);
    assert_int_equal(td_tokenizer_find(tok, "", 0), -1);
    assert_int_equal(td_tokenizer_find(tok, "<far>", 5), 20);
    assert_true(td_tokenizer_is_special(tok, 20) && td_tokenizer_is_added(tok, 20));
    assert_true(!td_tokenizer_is_special(tok, 8) && td_tokenizer_is_added(tok, 8));
    assert_true(!td_tokenizer_is_special(tok, 7) && !td_tokenizer_is_added(tok, 7));
    assert_false(td_tokenizer_is_special(tok, 15) || td_tokenizer_is_special(tok, -5) ||
                 td_tokenizer_is_special(tok, 1000) || td_tokenizer_is_added(tok, 1000));
    assert_int_equal(td_tokenizer_unk(tok), 2);
    assert_int_equal(td_tokenizer_bos(tok), -1);
    assert_int_equal(td_tokenizer_eos(tok), -1);
    td_tokenizer_close(&tok);
    assert_null(tok);
    td_tokenizer_close(&tok);
    td_tokenizer_close(NULL);
}

static void the_configuration_names_tokens(void **state) {
    (void)state;
    td_tokenizer *tok = parse_tokenizer(small, "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}, "
                                               "\"pad_token\": \"<not there>\", \"model_max_length\": 1e30}");
    assert_int_equal(td_tokenizer_bos(tok), 0);
    assert_int_equal(td_tokenizer_eos(tok), 1);
    assert_int_equal(td_tokenizer_pad(tok), -1);
    td_tokenizer_close(&tok);
    tok = parse_tokenizer(small, "{\"bos_token\": null, \"pad_token\": \"<far>\"}");
    assert_int_equal(td_tokenizer_bos(tok), -1);
    assert_int_equal(td_tokenizer_pad(tok), 20);
    td_tokenizer_close(&tok);
}

static void vocabularies_are_compared_name_by_name(void **state) {
    (void)state;
    td_token first = -1;
    td_tokenizer *a = parse_tokenizer("{\"model\": {\"vocab\": {\"a\": 0, \"b\": 1}, \"merges\": []}}", NULL);
    td_tokenizer *b = parse_tokenizer("{\"model\": {\"vocab\": {\"b\": 1, \"a\": 0}, \"merges\": []}}", NULL);
    td_tokenizer *c = parse_tokenizer("{\"model\": {\"vocab\": {\"a\": 0, \"c\": 1}, \"merges\": []}}", NULL);
    td_tokenizer *d = parse_tokenizer("{\"model\": {\"vocab\": {\"a\": 0, \"b\": 1, \"d\": 5}, \"merges\": []}}", NULL);
    assert_true(td_tokenizer_same_vocab(a, b, &first));
    assert_false(td_tokenizer_same_vocab(a, c, &first));
    assert_int_equal(first, 1);
    assert_false(td_tokenizer_same_vocab(d, a, &first));
    assert_int_equal(first, 5);
    assert_false(td_tokenizer_same_vocab(a, d, NULL));
    td_tokenizer_close(&a);
    td_tokenizer_close(&b);
    td_tokenizer_close(&c);
    td_tokenizer_close(&d);
}

static void a_name_may_be_empty(void **state) {
    (void)state;
    td_tokenizer *tok = parse_tokenizer("{\"added_tokens\": [{\"id\": 0, \"content\": \"\"}], "
                                        "\"model\": {\"vocab\": {\"\": 0, \"a\": 1}, \"merges\": []}}",
                                        NULL);
    const td_token ids[] = {0, 1, 0};
    td_buf text;
    td_buf_init(&text, 100);
    EXPECT("a", 0, 1);
    assert_int_equal(td_tokenizer_find(tok, "", 0), 0);
    assert_int_equal(td_tokenizer_decode(tok, ids, 3, 0, &text, NULL), TD_OK);
    assert_string_equal(td_buf_str(&text), " a "); /* without a decoder, joined by spaces */
    td_buf_free(&text);
    td_tokenizer_close(&tok);
}

/* ---- flags ---- */

static void special_tokens_are_parsed_only_when_asked(void **state) {
    (void)state;
    td_tokenizer *tok = parse_tokenizer(small, NULL);
    EXPECT("a<s>b", TD_ENCODE_PARSE_SPECIAL, 3, 0, 4);
    EXPECT("a<s>b", 0, 3, 2, 2, 2, 4); /* '<', 's' and '>' are unknown */
    EXPECT("a<think>b", TD_ENCODE_PARSE_SPECIAL, 3, 8, 4);
    EXPECT("a<think>b", 0, 3, 8, 4); /* added, but not special */
    EXPECT("<s<think>>", 0, 2, 2, 8, 2);
    td_tokenizer_close(&tok);
}

/* A name of a special token that ordinary merging would arrive at, and one that is a whole word. */
static void strangers_cannot_write_a_special_token(void **state) {
    (void)state;
    static const char file[] = "{\"added_tokens\": [{\"id\": 4, \"content\": \"ab\", \"special\": true}, "
                               "{\"id\": 5, \"content\": \"c\", \"special\": true}], \"model\": {\"ignore_merges\": "
                               "%s, \"byte_fallback\": true, "
                               "\"vocab\": {\"a\": 0, \"b\": 1, \"<0x63>\": 2, \"ba\": 3, \"ab\": 4, \"c\": 5}, "
                               "\"merges\": [\"a b\", \"b a\"]}}";
    for (int whole = 0; whole < 2; whole++) {
        char text[600];
        snprintf(text, sizeof text, file, whole ? "true" : "false");
        td_tokenizer *tok = parse_tokenizer(text, NULL);
        EXPECT("ab", TD_ENCODE_PARSE_SPECIAL, 4);
        EXPECT("ab", 0, 0, 1);
        EXPECT("aba", 0, 0, 3);
        EXPECT("c", 0, 2);
        EXPECT("cab", TD_ENCODE_PARSE_SPECIAL, 5, 4);
        td_tokenizer_close(&tok);
    }
}

static void the_template_goes_around_and_is_not_doubled(void **state) {
    (void)state;
    const unsigned both = TD_ENCODE_ADD_SPECIAL | TD_ENCODE_PARSE_SPECIAL;
    td_tokenizer *tok = parse_tokenizer(small, NULL);
    EXPECT("ab", TD_ENCODE_ADD_SPECIAL, 0, 7, 1);
    EXPECT("", TD_ENCODE_ADD_SPECIAL, 0, 1);
    EXPECT("", 0);
    EXPECT("<s>ab", both, 0, 7, 1);
    EXPECT("<s><s>ab", both, 0, 0, 7, 1);
    EXPECT("ab<s>", both, 0, 7, 0, 1);
    EXPECT("<s>", TD_ENCODE_ADD_SPECIAL, 0, 2, 2, 2, 1); /* the text's <s> is not that token */
    td_tokenizer_close(&tok);
}

static void the_configuration_completes_the_template(void **state) {
    (void)state;
    static const char plain[] = "{\"model\": {\"vocab\": {\"<s>\": 0, \"a\": 1, \"</s>\": 2}, \"merges\": []}}";
    td_tokenizer *tok =
        parse_tokenizer(plain, "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"add_bos_token\": true}");
    EXPECT("a", TD_ENCODE_ADD_SPECIAL, 0, 1);
    td_tokenizer_close(&tok);
    tok = parse_tokenizer(plain, "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"add_eos_token\": true}");
    EXPECT("a", TD_ENCODE_ADD_SPECIAL, 1, 2);
    td_tokenizer_close(&tok);
    tok = parse_tokenizer(small, "{\"bos_token\": \"<s>\", \"add_bos_token\": true}"); /* the template has it */
    EXPECT("a", TD_ENCODE_ADD_SPECIAL, 0, 3, 1);
    td_tokenizer_close(&tok);
    tok = parse_tokenizer(small, "{\"bos_token\": \"<s>\", \"add_bos_token\": false}"); /* and keeps it */
    EXPECT("a", TD_ENCODE_ADD_SPECIAL, 0, 3, 1);
    td_tokenizer_close(&tok);
}

/* ---- added tokens ---- */

static void the_longest_added_token_wins(void **state) {
    (void)state;
    td_tokenizer *tok = parse_tokenizer("{\"added_tokens\": [{\"id\": 3, \"content\": \"aa\", \"normalized\": false}, "
                                        "{\"id\": 4, \"content\": \"aaaa\", \"normalized\": false, \"special\": true}, "
                                        "{\"id\": 5, \"content\": \"aab\", \"normalized\": false}], "
                                        "\"model\": {\"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2}, \"merges\": []}}",
                                        NULL);
    EXPECT("aaaaa", TD_ENCODE_PARSE_SPECIAL, 4, 0);
    EXPECT("aaaaa", 0, 3, 3, 0); /* the special one is left out, the ones inside it are not */
    EXPECT("aaab", 0, 3, 0, 1);
    EXPECT("aab", 0, 5);
    EXPECT("caabaac", 0, 2, 5, 3, 2);
    td_tokenizer_close(&tok);
}

static void flags_of_added_tokens(void **state) {
    (void)state;
    td_tokenizer *tok = parse_tokenizer(
        "{\"added_tokens\": [{\"id\": 3, \"content\": \"<l>\", \"lstrip\": true, \"normalized\": false}, "
        "{\"id\": 4, \"content\": \"<r>\", \"rstrip\": true, \"normalized\": false}, "
        "{\"id\": 5, \"content\": \"bb\", \"single_word\": true, \"normalized\": false}, "
        "{\"id\": 10, \"content\": \"b.\", \"normalized\": false}, "
        "{\"id\": 6, \"content\": \"AC\", \"normalized\": true}], \"normalizer\": {\"type\": \"Lowercase\"}, "
        "\"model\": {\"vocab\": {\"a\": 0, \"b\": 1, \" \": 2, \"c\": 7, \"_\": 8, \".\": 9}, \"merges\": []}}",
        NULL);
    EXPECT("a  <l>  a", 0, 0, 3, 2, 2, 0);
    EXPECT("a  <r>  a", 0, 0, 2, 2, 4, 0);
    EXPECT("<r>  <l>", 0, 4, 3); /* the first has taken the space */
    EXPECT("bb", 0, 5);
    EXPECT("bb bb.bb", 0, 5, 2, 5, 9, 5);
    EXPECT("abb bba _bb bbb", 0, 0, 1, 1, 2, 1, 1, 0, 2, 8, 1, 1, 2, 1, 1, 1);
    EXPECT("ab.", 0, 0, 10);
    EXPECT("abb.", 0, 0, 1, 1, 9); /* the text of a token that is no single word is passed over */
    EXPECT("ac AC aC", 0, 6, 2, 6, 2, 6);
    td_tokenizer_close(&tok);
}

static void thousands_of_added_tokens_cost_nothing(void **state) {
    (void)state;
    td_buf file, text;
    td_buf_init(&file, 1 << 24);
    td_buf_init(&text, 1 << 24);
    td_buf_puts(&file, "{\"added_tokens\": [");
    for (int i = 0; i < 6000; i++)
        td_buf_printf(&file, "%s{\"id\": %d, \"content\": \"<unused%d>\", \"special\": true}", i ? "," : "", i + 1, i);
    td_buf_puts(&file, "], \"model\": {\"unk_token\": \"u\", \"vocab\": {\"u\": 0}, \"merges\": []}}");
    td_tokenizer *tok = parse_tokenizer(td_buf_str(&file), NULL);
    for (int i = 0; i < 6000; i++)
        td_buf_printf(&text, "<unused%d>", i);
    td_token_list ids;
    td_error err;
    td_token_list_init(&ids, 10000);
    assert_int_equal(td_tokenizer_encode(tok, text.data, text.size, TD_ENCODE_PARSE_SPECIAL, &ids, &err), TD_OK);
    assert_int_equal(ids.n, 6000);
    for (int i = 0; i < 6000; i++)
        assert_int_equal(ids.ids[i], i + 1);
    td_token_list_free(&ids);
    td_buf_free(&file);
    td_buf_free(&text);
    td_tokenizer_close(&tok);
}

/* "prepend_scheme": "first" asks whether the part begins where the text began. A normaliser that takes the front away,
 * or puts something else in its place, says no; one that rewrites the first character alone says yes. All of these were
 * tried on the reference implementation. */
static void a_front_that_has_moved_gets_no_mark(void **state) {
    (void)state;
    static const struct {
        const char *normalizer, *text;
        td_token want[6];
    } cases[] = {
        {"null", "a", {0, 1, -1}},
        {"{\"type\": \"Strip\"}", " a", {1, -1}},
        {"{\"type\": \"Strip\"}", "a ", {0, 1, -1}},
        {"{\"type\": \"StripAccents\"}",
         "\xCC\x81"
         "a",
         {1, -1}},
        {"{\"type\": \"Prepend\", \"prepend\": \"b\"}", "a", {0, 2, 1, -1}},
        {"{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"b\"}", "ab", {0, 2, 2, -1}},
        {"{\"type\": \"Replace\", \"pattern\": {\"String\": \"aa\"}, \"content\": \"b\"}", "aab", {2, 2, -1}},
        {"{\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"\"}", "ab", {2, -1}},
        {"{\"type\": \"Replace\", \"pattern\": {\"String\": \"b\"}, \"content\": \"a\"}", "ab", {0, 1, 1, -1}},
        {"null", "Tab", {3, 1, 2, -1}}, /* an added token comes first */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char file[600];
        snprintf(file, sizeof file,
                 "{\"added_tokens\": [{\"id\": 3, \"content\": \"T\", \"normalized\": false}], \"normalizer\": %s, "
                 "\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": "
                 "\"first\"}, \"model\": {\"vocab\": {\"_\": 0, \"a\": 1, \"b\": 2}, \"merges\": []}}",
                 cases[i].normalizer);
        td_tokenizer *tok = parse_tokenizer(file, NULL);
        expect(tok, cases[i].text, 0, cases[i].want);
        td_tokenizer_close(&tok);
    }
}

/* ---- limits ---- */

static void lists_have_ceilings_and_keep_what_they_had(void **state) {
    (void)state;
    td_tokenizer *tok = parse_tokenizer(small, NULL);
    td_token_list list;
    td_error err;
    td_token_list_init(&list, 4);
    assert_int_equal(td_tokenizer_encode(tok, "ab", 2, 0, &list, &err), TD_OK);
    assert_int_equal(td_tokenizer_encode(tok, "c c c", 5, 0, &list, &err), TD_E_LIMIT);
    assert_string_equal(err.message, "more than 4 tokens");
    assert_int_equal(list.n, 1);
    assert_int_equal(td_tokenizer_encode(tok, "c", 1, TD_ENCODE_ADD_SPECIAL, &list, &err), TD_OK);
    assert_int_equal(list.n, 4);
    assert_int_equal(list.ids[1], 0); /* the template goes around the new text, behind the old tokens */
    assert_int_equal(list.ids[3], 1);
    td_token *ids = td_token_list_steal(&list);
    assert_int_equal(ids[0], 7);
    assert_int_equal(list.n, 0);
    td_free(ids);
    td_tokenizer_close(&tok);
}

static void text_must_be_utf8(void **state) {
    (void)state;
    static const struct {
        const char *text;
        size_t size;
        int64_t position;
    } cases[] = {{"ab\xFF", 3, 2},           {"\xC3", 1, 0},
                 {"a\xE2\x82", 3, 1},        {"\xED\xA0\x80", 3, 0},
                 {"\xC0\x80", 2, 0},         {"aaaaaaaaaa\x80", 11, 10},
                 {"\xF4\x90\x80\x80", 4, 0}, {"\xF0\x8F\xBF\xBF", 4, 0}};
    td_tokenizer *tok = parse_tokenizer(small, NULL);
    td_token_list list;
    td_error err;
    td_token_list_init(&list, 100);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        assert_int_equal(td_tokenizer_encode(tok, cases[i].text, cases[i].size, 0, &list, &err), TD_E_FORMAT);
        assert_int_equal(err.position, cases[i].position);
        assert_int_equal(list.n, 0);
    }
    td_token_list_free(&list);
    td_tokenizer_close(&tok);
}

/* A normaliser of the file that makes much of little is stopped. */
static void growth_is_bounded(void **state) {
    (void)state;
    td_buf file;
    td_buf_init(&file, 1 << 20);
    td_buf_puts(&file, "{\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \"a\"}, \"content\": \"");
    for (int i = 0; i < 10000; i++)
        td_buf_putc(&file, 'b');
    td_buf_puts(&file, "\"}, \"model\": {\"vocab\": {\"b\": 0}, \"merges\": []}}");
    td_tokenizer *tok = parse_tokenizer(td_buf_str(&file), NULL);
    td_token_list list;
    td_error err;
    char text[1000];
    memset(text, 'a', sizeof text);
    td_token_list_init(&list, 1 << 24);
    assert_int_equal(td_tokenizer_encode(tok, text, 3, 0, &list, &err), TD_OK);
    assert_int_equal(list.n, 30000);
    assert_int_equal(td_tokenizer_encode(tok, text, sizeof text, 0, &list, &err), TD_E_LIMIT);
    td_token_list_free(&list);
    td_tokenizer_close(&tok);
    td_buf_free(&file);
}

/* ---- files ---- */

static void files_that_are_not_there(void **state) {
    (void)state;
    td_tokenizer *tok;
    td_error err;
    assert_int_equal(td_tokenizer_load(&tok, "/nowhere/tokenizer.json", NULL, &err), TD_E_NOTFOUND);
    assert_non_null(strstr(err.message, "/nowhere/tokenizer.json"));
    assert_non_null(strstr(err.message, "a checkpoint needs its tokenizer.json"));
    assert_null(tok);
    assert_int_equal(td_tokenizer_load(&tok, TD_TOKENIZERS "gemma-style/tokenizer.json", "/nowhere/config", &err),
                     TD_E_NOTFOUND);
    assert_non_null(strstr(err.message, "/nowhere/config"));
    assert_null(tok);
}

static void fixtures_load_with_their_configuration(void **state) {
    (void)state;
    td_tokenizer *tok = load_fixture("gemma-style");
    assert_int_equal(td_tokenizer_bos(tok), td_tokenizer_find(tok, "<bos>", 5));
    assert_int_equal(td_tokenizer_eos(tok), td_tokenizer_find(tok, "<eos>", 5));
    assert_int_equal(td_tokenizer_pad(tok), 0);
    EXPECT("", TD_ENCODE_ADD_SPECIAL, 2);
    td_tokenizer_close(&tok);
}

/* ---- threads ---- */

typedef struct job {
    const td_tokenizer *tok;
    const json_t *cases;
    int n_wrong;
} job;

static void *encode_all(void *arg) {
    job *j = arg;
    for (int round = 0; round < 3; round++)
        for (size_t i = 0; i < json_array_size(j->cases); i++) {
            const json_t *c = json_array_get(j->cases, i), *text = json_object_get(c, "text"),
                         *ids = json_object_get(c, "inner");
            td_token_list got;
            td_token_list_init(&got, 100000);
            bool ok = td_tokenizer_encode(j->tok, json_string_value(text), json_string_length(text),
                                          TD_ENCODE_PARSE_SPECIAL, &got, NULL) == TD_OK &&
                      got.n == json_array_size(ids);
            for (size_t k = 0; ok && k < got.n; k++)
                ok = got.ids[k] == json_integer_value(json_array_get(ids, k));
            j->n_wrong += !ok;
            td_token_list_free(&got);
        }
    return NULL;
}

static void threads_share_a_tokenizer(void **state) {
    (void)state;
    json_t *golden = load_json(TD_TOKENIZERS "qwen-style/golden.json");
    td_tokenizer *tok = load_fixture("qwen-style");
    pthread_t threads[4];
    job jobs[4];
    for (int i = 0; i < 4; i++) {
        jobs[i] = (job){tok, json_object_get(golden, "cases"), 0};
        assert_int_equal(pthread_create(&threads[i], NULL, encode_all, &jobs[i]), 0);
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        assert_int_equal(jobs[i].n_wrong, 0);
    }
    td_tokenizer_close(&tok);
    json_decref(golden);
}

/* ---- memory ---- */

/* Exercises every component that allocates. */
static const char full[] =
    "{\"added_tokens\": [" SPECIALS ", {\"id\": 8, \"content\": \"B\", \"normalized\": true}], "
    "\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": \"Lowercase\"}, "
    "{\"type\": \"Prepend\", \"prepend\": \"a\"}, {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"x+\"}, "
    "\"content\": \" \"}]}, \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": \"Split\", "
    "\"pattern\": {\"Regex\": \"\\\\s+\"}, \"behavior\": \"Isolated\"}, {\"type\": \"Metaspace\", \"replacement\": \" "
    "\", "
    "\"prepend_scheme\": \"first\"}]}, \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": ["
    "{\"SpecialToken\": {\"id\": \"<s>\"}}, {\"Sequence\": {\"id\": \"A\"}}], \"special_tokens\": {\"<s>\": "
    "{\"ids\": [0]}}}, \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Replace\", \"pattern\": "
    "{\"String\": \"_\"}, \"content\": \" \"}, {\"type\": \"ByteFallback\"}, {\"type\": \"Fuse\"}, {\"type\": "
    "\"Strip\", \"content\": \" \", \"start\": 1, \"stop\": 1}]}, \"model\": {\"type\": \"BPE\", \"unk_token\": "
    "\"<unk>\", " SMALL_VOCAB "}}";

static td_status whole_life(td_error *err) {
    static const char config[] = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"add_eos_token\": true}";
    static const char text[] = "xe\xCC\x81 abababc B <s>";
    td_tokenizer *tok;
    td_token_list ids;
    td_buf back;
    td_token_list_init(&ids, 1000);
    td_buf_init(&back, 1000);
    td_status st = td_tokenizer_parse(&tok, full, strlen(full), config, strlen(config), "t.json", err);
    assert_true((st == TD_OK) == (tok != NULL));
    if (st == TD_OK)
        st = td_tokenizer_encode(tok, text, strlen(text), TD_ENCODE_ADD_SPECIAL | TD_ENCODE_PARSE_SPECIAL, &ids, err);
    if (st == TD_OK)
        st = td_tokenizer_decode(tok, ids.ids, ids.n, 0, &back, err);
    td_buf_free(&back);
    td_token_list_free(&ids);
    td_tokenizer_close(&tok);
    return st;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    td_error err;
    long live = td_alloc_live();
    for (long k = 0;; k++) {
        assert_true(k < 10000);
        td_alloc_fail_at(k);
        td_status st = whole_life(&err);
        int struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        assert_int_equal(td_alloc_live(), live);
        if (!struck) {
            assert_int_equal(st, TD_OK);
            print_message("%ld allocations\n", k);
            break;
        }
        /* PCRE2 does without its JIT when it gets no memory for it */
        if (st != TD_OK && st != TD_E_NOMEM)
            fail_msg("allocation %ld: %s: %s", k, td_status_name(st), err.message);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_ids),
        cmocka_unit_test(the_configuration_names_tokens),
        cmocka_unit_test(vocabularies_are_compared_name_by_name),
        cmocka_unit_test(a_name_may_be_empty),
        cmocka_unit_test(special_tokens_are_parsed_only_when_asked),
        cmocka_unit_test(strangers_cannot_write_a_special_token),
        cmocka_unit_test(the_template_goes_around_and_is_not_doubled),
        cmocka_unit_test(the_configuration_completes_the_template),
        cmocka_unit_test(the_longest_added_token_wins),
        cmocka_unit_test(flags_of_added_tokens),
        cmocka_unit_test(thousands_of_added_tokens_cost_nothing),
        cmocka_unit_test(a_front_that_has_moved_gets_no_mark),
        cmocka_unit_test(lists_have_ceilings_and_keep_what_they_had),
        cmocka_unit_test(text_must_be_utf8),
        cmocka_unit_test(growth_is_bounded),
        cmocka_unit_test(files_that_are_not_there),
        cmocka_unit_test(fixtures_load_with_their_configuration),
        cmocka_unit_test(threads_share_a_tokenizer),
        cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
