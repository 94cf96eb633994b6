/* test_tokenizer_malformed.c - files that are not what they should be: each gets one line that says what and where. */
#include "test_tokenizer_util.h"

#define MODEL "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2}, \"merges\": [\"a b\"]}"
#define WITH(part) "{" part ", " MODEL "}"
#define BPE(members) "{\"model\": {\"type\": \"BPE\", " members "}}"
#define VOCAB "\"vocab\": {\"a\": 0, \"b\": 1}"
#define NO_MERGES "\"merges\": []"

static const struct {
    const char *name, *json;
    td_status status;
    const char *message; /* part of it */
} cases[] = {
    /* the text */
    {"empty", "", TD_E_FORMAT, "expected an object, found the end"},
    {"an array", "[]", TD_E_FORMAT, "byte 0: expected an object, found '['"},
    {"cut", "{\"model\": {\"vocab\": {\"a\": 0", TD_E_FORMAT, "expected ',' or '}', found the end"},
    {"cut in a string", "{\"model\": {\"vocab\": {\"a", TD_E_FORMAT, "the text ends inside a string"},
    {"garbage behind", "{" MODEL "} x", TD_E_FORMAT, "expected the end of the text"},
    {"bad UTF-8", "{\"model\": {\"vocab\": {\"\xFF\": 0}}}", TD_E_FORMAT, "invalid UTF-8"},
    {"lone surrogate", "{\"model\": {\"vocab\": {\"\\ud800\": 0}}}", TD_E_FORMAT, "lone surrogate"},
    {"deep", "{\"x\": [[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[", TD_E_FORMAT,
     "nested deeper"},
    {"a member twice", WITH("\"version\": \"1.0\", \"version\": \"1.0\""), TD_E_FORMAT, "\"version\" occurs twice"},
    {"the model twice", "{" MODEL ", " MODEL "}", TD_E_FORMAT, "\"model\" occurs twice"},
    {"another version", WITH("\"version\": \"2.0\""), TD_E_UNSUPPORTED, "\"version\" is not \"1.0\""},
    /* the model */
    {"no model", "{\"version\": \"1.0\"}", TD_E_FORMAT, "there is no \"model\""},
    {"model is null", "{\"model\": null}", TD_E_FORMAT, "expected an object"},
    {"no vocab", BPE(NO_MERGES), TD_E_FORMAT, "the model has no \"vocab\""},
    {"no merges", BPE(VOCAB), TD_E_FORMAT, "the model has no \"merges\""},
    {"Unigram", "{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\", -1.5]]}}", TD_E_UNSUPPORTED,
     "model of type \"Unigram\", expected BPE"},
    {"WordPiece", "{\"model\": {\"type\": \"WordPiece\", \"vocab\": {\"a\": 0}}}", TD_E_UNSUPPORTED, "\"WordPiece\""},
    {"vocab twice", BPE(VOCAB ", " VOCAB ", " NO_MERGES), TD_E_FORMAT, "\"vocab\" occurs twice"},
    {"merges twice", BPE(VOCAB ", " NO_MERGES ", " NO_MERGES), TD_E_FORMAT, "\"merges\" occurs twice"},
    {"vocab is a list", BPE("\"vocab\": [\"a\"], " NO_MERGES), TD_E_FORMAT, "expected an object, found '['"},
    {"an id in quotes", BPE("\"vocab\": {\"a\": \"0\"}, " NO_MERGES), TD_E_FORMAT, "expected a plain non-negative"},
    {"a negative id", BPE("\"vocab\": {\"a\": -1}, " NO_MERGES), TD_E_FORMAT, "found -1"},
    {"a fraction as id", BPE("\"vocab\": {\"a\": 1.5}, " NO_MERGES), TD_E_FORMAT, "found 1.5"},
    {"a huge id", BPE("\"vocab\": {\"a\": 4000000000}, " NO_MERGES), TD_E_LIMIT,
     "token \"a\" has id 4000000000, expected at most 65536"},
    {"a far id", BPE("\"vocab\": {\"a\": 65537}, " NO_MERGES), TD_E_LIMIT, "has id 65537"},
    {"a word twice", BPE("\"vocab\": {\"a\": 0, \"a\": 1}, " NO_MERGES), TD_E_MODEL,
     "\"a\" is in the vocabulary twice, as id 0 and as id 1"},
    {"an id twice", BPE("\"vocab\": {\"a\": 7, \"b\": 7}, " NO_MERGES), TD_E_MODEL,
     "id 7 is given to \"a\" and to \"b\""},
    {"merges is an object", BPE(VOCAB ", \"merges\": {}"), TD_E_FORMAT, "expected an array, found '{'"},
    {"a merge of one word", BPE(VOCAB ", \"merges\": [\"ab\"]"), TD_E_FORMAT, "not two words with one space"},
    {"a merge of three words", BPE(VOCAB ", \"merges\": [\"a b a\"]"), TD_E_FORMAT, "not two words with one space"},
    {"an empty merge", BPE(VOCAB ", \"merges\": [\"\"]"), TD_E_FORMAT, "not two words"},
    {"a merge of a space", BPE(VOCAB ", \"merges\": [\" \"]"), TD_E_MODEL, "merge 0 has an empty part"},
    {"a short pair", BPE(VOCAB ", \"merges\": [[\"a\"]]"), TD_E_FORMAT, "fewer than two words"},
    {"a long pair", BPE(VOCAB ", \"merges\": [[\"a\", \"b\", \"a\"]]"), TD_E_FORMAT, "more than two words"},
    {"a pair of numbers", BPE(VOCAB ", \"merges\": [[1, 2]]"), TD_E_FORMAT, "expected a string"},
    {"a merge of an unknown word", BPE(VOCAB ", \"merges\": [\"a x\"]"), TD_E_MODEL,
     "merge 0 needs \"x\", which is not in the vocabulary"},
    {"a merge to an unknown word", BPE(VOCAB ", \"merges\": [\"a b\"]"), TD_E_MODEL, "merge 0 needs \"ab\""},
    {"merges before an unfit vocab", BPE("\"merges\": [\"a b\"], " VOCAB), TD_E_MODEL, "merge 0 needs \"ab\""},
    {"unk that is no token", BPE("\"unk_token\": \"u\", " VOCAB ", " NO_MERGES), TD_E_MODEL,
     "\"unk_token\" is \"u\", which is no token"},
    {"unk that is no string", BPE("\"unk_token\": 3, " VOCAB ", " NO_MERGES), TD_E_MODEL, "is no token"},
    {"dropout", BPE("\"dropout\": 0.1, " VOCAB ", " NO_MERGES), TD_E_UNSUPPORTED, "\"dropout\""},
    {"a suffix", BPE("\"end_of_word_suffix\": \"</w>\", " VOCAB ", " NO_MERGES), TD_E_UNSUPPORTED,
     "\"end_of_word_suffix\" other than null or empty"},
    {"a prefix", BPE("\"continuing_subword_prefix\": \"##\", " VOCAB ", " NO_MERGES), TD_E_UNSUPPORTED,
     "\"continuing_subword_prefix\""},
    {"a flag as a number", BPE("\"byte_fallback\": 1, " VOCAB ", " NO_MERGES), TD_E_FORMAT,
     "expected \"byte_fallback\" to be true or false"},
    /* added tokens */
    {"added is an object", WITH("\"added_tokens\": {}"), TD_E_FORMAT, "expected \"added_tokens\" to be an array"},
    {"added is a string", WITH("\"added_tokens\": [\"x\"]"), TD_E_FORMAT, "expected objects with a \"content\""},
    {"added without id", WITH("\"added_tokens\": [{\"content\": \"x\"}]"), TD_E_MODEL, "\"id\""},
    {"added with a negative id", WITH("\"added_tokens\": [{\"id\": -1, \"content\": \"x\"}]"), TD_E_MODEL, "\"id\""},
    {"added with a far id", WITH("\"added_tokens\": [{\"id\": 1000000, \"content\": \"x\"}]"), TD_E_LIMIT, "1000000"},
    {"added against the vocab", WITH("\"added_tokens\": [{\"id\": 9, \"content\": \"ab\"}]"), TD_E_MODEL,
     "\"ab\" has id 9, but the vocabulary gives it id 2"},
    {"added twice", WITH("\"added_tokens\": [{\"id\": 9, \"content\": \"x\"}, {\"id\": 9, \"content\": \"x\"}]"),
     TD_E_MODEL, "\"x\" is listed twice"},
    {"added on a taken id", WITH("\"added_tokens\": [{\"id\": 1, \"content\": \"x\"}]"), TD_E_MODEL,
     "id 1 is given to \"b\" and to \"x\""},
    {"added with a wrong flag", WITH("\"added_tokens\": [{\"id\": 9, \"content\": \"x\", \"special\": 1}]"), TD_E_MODEL,
     "special"},
    /* normalisers */
    {"normalizer without type", WITH("\"normalizer\": {}"), TD_E_FORMAT, "normalizer: expected an object with a"},
    {"normalizer is a string", WITH("\"normalizer\": \"NFC\""), TD_E_FORMAT, "normalizer: expected an object"},
    {"unknown normalizer", WITH("\"normalizer\": {\"type\": \"Precompiled\"}"), TD_E_UNSUPPORTED,
     "normalizer of type \"Precompiled\""},
    {"unknown normalizer inside",
     WITH("\"normalizer\": {\"type\": \"Sequence\", \"normalizers\": [{\"type\": \"NFC\"}, {\"type\": \"Nmt\"}]}"),
     TD_E_UNSUPPORTED, "normalizer of type \"Nmt\""},
    {"sequence without list", WITH("\"normalizer\": {\"type\": \"Sequence\"}"), TD_E_FORMAT, "\"normalizers\""},
    {"replace without pattern", WITH("\"normalizer\": {\"type\": \"Replace\", \"content\": \"x\"}"), TD_E_FORMAT,
     "normalizer Replace: expected \"pattern\""},
    {"replace without content", WITH("\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \"x\"}}"),
     TD_E_FORMAT, "normalizer Replace: expected \"content\""},
    {"replace nothing",
     WITH("\"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \"\"}, \"content\": \"x\"}"),
     TD_E_UNSUPPORTED, "normalizer Replace: an empty pattern"},
    {"prepend nothing", WITH("\"normalizer\": {\"type\": \"Prepend\"}"), TD_E_FORMAT, "\"prepend\""},
    {"strip by a number", WITH("\"normalizer\": {\"type\": \"Strip\", \"strip_left\": 1}"), TD_E_MODEL, "strip_left"},
    /* pre-tokenisers */
    {"unknown pre_tokenizer", WITH("\"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}"), TD_E_UNSUPPORTED,
     "pre_tokenizer of type \"UnicodeScripts\""},
    {"split without pattern", WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"behavior\": \"Isolated\"}"), TD_E_FORMAT,
     "pre_tokenizer Split: expected \"pattern\""},
    {"split that behaves badly",
     WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"x\"}, \"behavior\": \"Eaten\"}"),
     TD_E_FORMAT, "\"behavior\" is \"Eaten\""},
    {"split by a broken expression",
     WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"(a\"}, \"behavior\": \"Isolated\"}"),
     TD_E_FORMAT, "pre_tokenizer Split: the regular expression (a: missing closing parenthesis"},
    {"split by another dialect",
     WITH("\"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a&&b]\"}, \"behavior\": \"Isolated\"}"),
     TD_E_UNSUPPORTED, "an intersection of classes at character 2"},
    {"metaspace without mark", WITH("\"pre_tokenizer\": {\"type\": \"Metaspace\"}"), TD_E_FORMAT, "\"replacement\""},
    {"metaspace with two marks", WITH("\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"__\"}"),
     TD_E_FORMAT, "to be one character"},
    {"metaspace with a wrong scheme",
     WITH("\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"often\"}"),
     TD_E_FORMAT, "\"prepend_scheme\" is often"},
    {"metaspace against itself",
     WITH("\"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"_\", \"prepend_scheme\": \"first\", "
          "\"add_prefix_space\": false}"),
     TD_E_MODEL, "\"add_prefix_space\" is false but"},
    {"bytes by a number", WITH("\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"use_regex\": 0}"), TD_E_MODEL,
     "use_regex"},
    /* post-processors */
    {"unknown post_processor", WITH("\"post_processor\": {\"type\": \"BertProcessing\"}"), TD_E_UNSUPPORTED,
     "post_processor of type \"BertProcessing\""},
    {"template without single", WITH("\"post_processor\": {\"type\": \"TemplateProcessing\"}"), TD_E_FORMAT,
     "\"single\""},
    {"template without text", WITH("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": []}"),
     TD_E_MODEL, "leaves the text out"},
    {"template of a pair",
     WITH("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"Sequence\": {\"id\": \"B\"}}]}"),
     TD_E_UNSUPPORTED, "once in \"single\""},
    {"template with an odd piece",
     WITH("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"Text\": {}}]}"), TD_E_FORMAT,
     "piece 0 is neither"},
    {"template of an unknown token",
     WITH("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"x\"}}]}"),
     TD_E_MODEL, "token \"x\" of the template is not in \"special_tokens\""},
    {"template of an unknown id",
     WITH("\"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": [{\"SpecialToken\": {\"id\": \"x\"}}], "
          "\"special_tokens\": {\"x\": {\"ids\": [99]}}}"),
     TD_E_MODEL, "\"x\" has an id that no token has"},
    /* decoders */
    {"unknown decoder", WITH("\"decoder\": {\"type\": \"WordPiece\"}"), TD_E_UNSUPPORTED,
     "decoder of type \"WordPiece\""},
    {"bytes behind fuse",
     WITH("\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, {\"type\": \"ByteFallback\"}]}"),
     TD_E_UNSUPPORTED, "decoder ByteFallback behind a component that joins all tokens"},
    {"an expression behind bytes",
     WITH("\"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"ByteFallback\"}, {\"type\": \"Replace\", "
          "\"pattern\": {\"Regex\": \"x\"}, \"content\": \"\"}]}"),
     TD_E_UNSUPPORTED, "behind ByteFallback"},
    {"strip of two characters", WITH("\"decoder\": {\"type\": \"Strip\", \"content\": \"ab\"}"), TD_E_FORMAT,
     "to be one character"},
    {"strip of too many", WITH("\"decoder\": {\"type\": \"Strip\", \"content\": \"a\", \"start\": 1000000}"),
     TD_E_MODEL, "start"},
};

static void each_gets_one_line(void **state) {
    (void)state;
    int n_wrong = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_tokenizer *tok;
        td_error err = {.message = ""};
        long live = td_alloc_live();
        td_status st = td_tokenizer_parse(&tok, cases[i].json, strlen(cases[i].json), NULL, 0, "t.json", &err);
        if (st != cases[i].status || st != err.status || !strstr(err.message, cases[i].message) ||
            strncmp(err.message, "t.json", 6) != 0 || strchr(err.message, '\n') || tok) {
            print_message("%s: %s: %s\n  want %s: ... %s\n", cases[i].name, td_status_name(st), err.message,
                          td_status_name(cases[i].status), cases[i].message);
            n_wrong++;
        }
        td_tokenizer_close(&tok);
        assert_int_equal(td_alloc_live(), live);
    }
    assert_int_equal(n_wrong, 0);
}

static void the_configuration_too(void **state) {
    (void)state;
    static const struct {
        const char *config;
        td_status status;
        const char *message;
    } configs[] = {
        {"[]", TD_E_FORMAT, "tokenizer_config.json: expected an object"},
        {"{", TD_E_FORMAT, "tokenizer_config.json: byte 1"},
        {"{\"bos_token\": \"x\"}", TD_E_MODEL, "\"bos_token\" is \"x\", which is no token"},
        {"{\"eos_token\": 5}", TD_E_MODEL, "\"eos_token\" is \"no string\""},
        {"{\"bos_token\": {\"content\": \"x\"}}", TD_E_MODEL, "\"bos_token\" is \"x\""},
        {"{\"add_bos_token\": \"yes\"}", TD_E_MODEL, "add_bos_token"},
    };
    static const char json[] = "{" MODEL "}";
    for (size_t i = 0; i < sizeof configs / sizeof configs[0]; i++) {
        td_tokenizer *tok;
        td_error err;
        td_status st =
            td_tokenizer_parse(&tok, json, strlen(json), configs[i].config, strlen(configs[i].config), "t.json", &err);
        if (st != configs[i].status || !strstr(err.message, configs[i].message))
            fail_msg("%s: %s: %s", configs[i].config, td_status_name(st), err.message);
        assert_null(tok);
    }
}

/* Every prefix of a good file: an error, never a crash; under the address sanitizer in CI. */
static void every_beginning_of_a_file(void **state) {
    (void)state;
    json_t *root = load_json(TD_TOKENIZERS "components-style/tokenizer.json");
    json_object_set_new(json_object_get(root, "model"), "vocab",
                        json_pack("{s:i, s:i, s:i}", "<unk>", 0, "a", 1, "aa", 2));
    json_object_set_new(json_object_get(root, "model"), "merges", json_pack("[s]", "a a"));
    json_object_set_new(root, "added_tokens", json_pack("[{s:i, s:s}]", "id", 3, "content", "<x>"));
    json_object_del(root, "post_processor");
    char *text = json_dumps(root, 0);
    size_t size = strlen(text);
    for (size_t n = 0; n <= size; n++) {
        td_tokenizer *tok;
        td_error err;
        char *copy = td_strndup(text, n); /* so that a read beyond the end is seen */
        td_status st = td_tokenizer_parse(&tok, copy, n, NULL, 0, "t.json", &err);
        assert_int_equal(st, n == size ? TD_OK : TD_E_FORMAT);
        td_tokenizer_close(&tok);
        td_free(copy);
    }
    free(text);
    json_decref(root);
}

static void members_may_come_in_any_order(void **state) {
    (void)state;
    td_tokenizer *tok =
        parse_tokenizer("{\"added_tokens\": [], \"model\": {\"merges\": [[\"a\", \"b\"], \"#version: 0.2\", "
                        "\"ab a\"], \"vocab\": {\"aba\": 3, \"ab\": 2, \"b\": 1, \"a\": 0}, \"new\": {}, "
                        "\"type\": \"BPE\"}, \"later\": [1, {}], \"version\": \"1.0\"}",
                        NULL);
    td_token_list ids;
    td_token_list_init(&ids, 10);
    assert_int_equal(td_tokenizer_encode(tok, "abaab", 5, 0, &ids, NULL), TD_OK);
    assert_int_equal(ids.n, 2);
    assert_int_equal(ids.ids[0], 3);
    assert_int_equal(ids.ids[1], 2);
    td_token_list_free(&ids);
    td_tokenizer_close(&tok);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_gets_one_line),
        cmocka_unit_test(the_configuration_too),
        cmocka_unit_test(every_beginning_of_a_file),
        cmocka_unit_test(members_may_come_in_any_order),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
