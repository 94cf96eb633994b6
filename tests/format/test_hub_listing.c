/* test_hub_listing.c - what the hub says is in a repository: read strictly where it matters, and what is chosen of it.
 */
#include "format/support_format.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "format/hub_listing.h"

#define SHA1 "0123456789abcdef0123456789abcdef01234567"
#define SHA256 "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"
#define HEAD "{\"sha\":\"" SHA1 "\",\"siblings\":["

static td_status parse(td_hub_listing *l, const char *text, td_error *err) {
    return td_hub_listing_parse(l, text, strlen(text), "list", err);
}

/* {"sha": ..., "siblings": [one of each name]}. */
static td_hub_listing listing_of(const char *const *names) {
    char text[4000];
    size_t n = (size_t)snprintf(text, sizeof text, HEAD);
    for (size_t i = 0; names[i]; i++)
        n += (size_t)snprintf(text + n, sizeof text - n, "%s{\"rfilename\":\"%s\"}", i ? "," : "", names[i]);
    snprintf(text + n, sizeof text - n, "]}");
    td_hub_listing l;
    td_error err;
    if (parse(&l, text, &err) != TD_OK)
        fail_msg("%s", err.message);
    return l;
}

static void an_answer_of_the_hub(void **state) {
    (void)state;
    td_hub_listing l;
    td_error err;
    const char *text = "{\"_id\":\"6\",\"cardData\":{\"a\":[1,{\"b\":null}],\"siblings\":5},\"siblings\":["
                       "{\"rfilename\":\"config.json\",\"size\":12,\"blobId\":\"" SHA1 "\"},"
                       "{\"size\":134,\"blobId\":\"" SHA1 "\",\"lfs\":{\"sha256\":\"" SHA256
                       "\",\"size\":5000000000,\"pointerSize\":134},\"rfilename\":\"a/b.gguf\",\"new\":true},"
                       "{\"rfilename\":\"x\",\"size\":null,\"blobId\":null,\"lfs\":null}],\"sha\":\"" SHA1 "\"}";
    if (parse(&l, text, &err) != TD_OK)
        fail_msg("%s", err.message);
    assert_string_equal(l.commit, SHA1);
    assert_int_equal(l.names.n, 3);
    td_hub_file *f = td_hub_listing_find(&l, "a/b.gguf");
    assert_non_null(f);
    assert_string_equal(f->checksum, SHA256);
    assert_true(f->has_size && f->size == 5000000000u);
    f = td_hub_listing_find(&l, "config.json");
    assert_string_equal(f->checksum, SHA1);
    assert_int_equal(f->size, 12);
    f = td_hub_listing_find(&l, "x");
    assert_true(f && !f->has_size && f->checksum[0] == '\0' && !f->wanted);
    assert_null(td_hub_listing_find(&l, "b.gguf"));
    td_hub_listing_free(&l);
    assert_int_equal(parse(&l, HEAD "]}", &err), TD_OK);
    assert_null(td_hub_listing_find(&l, "x"));
    td_hub_listing_free(&l);
}

static void names_that_lead_elsewhere_are_refused(void **state) {
    (void)state;
    static const char *const bad[] = {
        "../x", "a/../x", "..",    "/etc/passwd", "a//b",  "",        "a/",      "./x",
        ".",    "a\\\\b", "a\\nb", "\\u001b[2J",  "a/./b", "\\u007f", "\\u000a", "..\\\\x",
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        char text[400];
        td_hub_listing l;
        td_error err;
        snprintf(text, sizeof text, HEAD "{\"rfilename\":\"ok\"},{\"rfilename\":\"%s\"}]}", bad[i]);
        if (parse(&l, text, &err) != TD_E_FORMAT)
            fail_msg("accepted: %s", bad[i]);
        assert_non_null(strstr(err.message, "leads elsewhere or cannot be one"));
        assert_null(l.files);
    }
    char longest[700], text[900];
    td_hub_listing l;
    memset(longest, 'a', sizeof longest);
    longest[256] = '\0';
    snprintf(text, sizeof text, HEAD "{\"rfilename\":\"%s\"}]}", longest);
    assert_int_equal(parse(&l, text, NULL), TD_E_FORMAT);
    longest[255] = '\0';
    snprintf(text, sizeof text, HEAD "{\"rfilename\":\"%s\"}]}", longest);
    assert_int_equal(parse(&l, text, NULL), TD_OK);
    td_hub_listing_free(&l);
    /* dots inside names are names */
    assert_int_equal(parse(&l, HEAD "{\"rfilename\":\"..a/b..c/...\"}]}", NULL), TD_OK);
    td_hub_listing_free(&l);
}

static void answers_without_sense_are_refused(void **state) {
    (void)state;
    static const struct {
        const char *text, *want;
    } bad[] = {
        {"", "byte 0"},
        {"<html>", "byte 0"},
        {"[]", "byte 0"},
        {"{}", "no \"siblings\""},
        {"{\"siblings\":[]}", "no \"sha\""},
        {"{\"sha\":\"main\",\"siblings\":[]}", "\"main\" is not a checksum of 40 hex digits"},
        {"{\"sha\":\"" SHA256 "\",\"siblings\":[]}", "is not a checksum of 40"},
        {HEAD "{}]}", "without \"rfilename\""},
        {HEAD "{\"rfilename\":1}]}", "byte 75"},
        {HEAD "{\"rfilename\":\"a\"},{\"rfilename\":\"a\"}]}", "the file a is listed twice"},
        {HEAD "{\"rfilename\":\"a\",\"blobId\":\"" SHA256 "\"}]}", "is not a checksum of 40"},
        {HEAD "{\"rfilename\":\"a\",\"blobId\":\"../../../../../../../../../../../../x/xx\"}]}", "is not a checksum"},
        {HEAD "{\"rfilename\":\"a\",\"lfs\":{\"sha256\":\"" SHA1 "\"}}]}", "is not a checksum of 64"},
        {HEAD "{\"rfilename\":\"a\",\"size\":-1}]}", "byte"},
        {HEAD "{\"rfilename\":\"a\",\"size\":9223372036854775808}]}", "no file has"},
        {HEAD "{\"rfilename\":\"a\"}]} x", "the end of the text"},
        {HEAD "{\"rfilename\":\"a\"}", "byte"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        td_hub_listing l;
        td_error err = {0};
        assert_int_equal(parse(&l, bad[i].text, &err), TD_E_FORMAT);
        if (!strstr(err.message, bad[i].want))
            fail_msg("%s\n is told: %s", bad[i].text, err.message);
        assert_int_equal(l.names.n, 0);
    }
    char deep[3000];
    td_hub_listing l;
    memset(deep, '[', sizeof deep);
    memcpy(deep, "{\"x\":", 5);
    deep[sizeof deep - 1] = '\0';
    assert_int_equal(parse(&l, deep, NULL), TD_E_FORMAT);
}

/* The names that are wanted, in order, each with a space behind it. */
static void assert_wanted(td_hub_listing *l, const char *want) {
    char got[2000] = "";
    for (size_t i = 0; i < l->names.n; i++)
        if (l->files[i].wanted) {
            strcat(got, l->names.v[i]);
            strcat(got, " ");
        }
    assert_string_equal(got, want);
    td_hub_listing_free(l);
}

static td_status choose(td_hub_listing *l, const char *id_text, const char *include, td_hub_file **index,
                        td_error *err) {
    td_hub_id id;
    td_hub_options o = td_hub_options_default();
    o.include = &include;
    o.n_include = include != NULL;
    assert_true(td_hub_id_parse(id_text, &id));
    return td_hub_listing_choose(l, &id, &o, index, err);
}

static void only_what_a_model_needs_is_chosen(void **state) {
    (void)state;
    td_hub_file *index;
    td_error err;
    static const char *const single[] = {".gitattributes",
                                         "README.md",
                                         "additional_chat_templates/tool_use.jinja",
                                         "chat_template.jinja",
                                         "config.json",
                                         "consolidated.safetensors",
                                         "generation_config.json",
                                         "model-00001-of-00002.safetensors",
                                         "model.safetensors",
                                         "onnx/config.json",
                                         "onnx/model.safetensors",
                                         "pytorch_model.bin",
                                         "tokenizer.json",
                                         "tokenizer_config.json",
                                         NULL};
    td_hub_listing l = listing_of(single);
    assert_int_equal(choose(&l, "o/n", NULL, &index, &err), TD_OK);
    assert_null(index);
    assert_wanted(&l, "additional_chat_templates/tool_use.jinja chat_template.jinja config.json "
                      "generation_config.json model.safetensors tokenizer.json tokenizer_config.json ");
    l = listing_of(single);
    assert_int_equal(choose(&l, "o/n", "o*.safetensors", &index, &err), TD_OK);
    assert_wanted(&l, "additional_chat_templates/tool_use.jinja chat_template.jinja config.json "
                      "generation_config.json model.safetensors onnx/model.safetensors tokenizer.json "
                      "tokenizer_config.json ");
    l = listing_of(single);
    assert_int_equal(choose(&l, "o/n", "*.zip", &index, &err), TD_E_NOTFOUND);
    assert_string_equal(err.message, "o/n: no file fits '*.zip'");
    td_hub_listing_free(&l);
    static const char *const numbered[] = {"config.json", "model-00001-of-00002.safetensors",
                                           "model-00002-of-00002.safetensors", "weights.safetensors", NULL};
    l = listing_of(numbered);
    assert_int_equal(choose(&l, "o/n", NULL, &index, &err), TD_OK);
    assert_wanted(&l, "config.json model-00001-of-00002.safetensors model-00002-of-00002.safetensors ");
    static const char *const old[] = {"config.json", "weights.safetensors", NULL};
    l = listing_of(old);
    assert_int_equal(choose(&l, "o/n", NULL, &index, &err), TD_OK);
    assert_wanted(&l, "config.json weights.safetensors ");
}

static void the_index_decides_over_shards(void **state) {
    (void)state;
    static const char *const names[] = {
        "config.json", "m1.safetensors", "m2.safetensors", "m3.safetensors", "model.safetensors", TD_SHARD_INDEX_FILE,
        NULL};
    td_hub_file *index;
    td_error err;
    td_shard_index x;
    td_hub_listing l = listing_of(names);
    assert_int_equal(choose(&l, "o/n", NULL, &index, &err), TD_OK);
    assert_non_null(index);
    const char *text = "{\"weight_map\":{\"a\":\"m3.safetensors\",\"b\":\"m1.safetensors\"}}";
    assert_int_equal(td_shard_index_parse(&x, text, strlen(text), "x", &err), TD_OK);
    assert_int_equal(td_hub_listing_choose_shards(&l, &x, "o/n", &err), TD_OK);
    td_shard_index_free(&x);
    text = "{\"weight_map\":{\"a\":\"m4.safetensors\"}}";
    assert_int_equal(td_shard_index_parse(&x, text, strlen(text), "x", &err), TD_OK);
    assert_int_equal(td_hub_listing_choose_shards(&l, &x, "o/n", &err), TD_E_NOTFOUND);
    assert_string_equal(err.message, "o/n: the index names m4.safetensors, which the repository lacks");
    td_shard_index_free(&x);
    assert_wanted(&l, "config.json m1.safetensors m3.safetensors " TD_SHARD_INDEX_FILE " ");
}

static void one_gguf_file_is_chosen(void **state) {
    (void)state;
    static const char *const names[] = {"config.json",
                                        "m-Q4_K_M.gguf",
                                        "m-Q8_0.gguf",
                                        "mmproj-m-Q8_0.gguf",
                                        "q2/m-Q2_K-00001-of-00002.gguf",
                                        "q2/m-Q2_K-00002-of-00002.gguf",
                                        "m-Q3_K-00001-of-00002.gguf",
                                        NULL};
    td_hub_file *index;
    td_error err;
    td_hub_listing l = listing_of(names);
    assert_int_equal(choose(&l, "o/n:q8_0", NULL, &index, &err), TD_OK);
    assert_wanted(&l, "m-Q8_0.gguf ");
    l = listing_of(names);
    assert_int_equal(choose(&l, "o/n:Q2_K", NULL, &index, &err), TD_OK);
    assert_wanted(&l, "q2/m-Q2_K-00001-of-00002.gguf q2/m-Q2_K-00002-of-00002.gguf ");
    l = listing_of(names);
    assert_int_equal(choose(&l, "o/n:m-Q4_K_M.gguf", "mmproj*", &index, &err), TD_OK);
    assert_wanted(&l, "m-Q4_K_M.gguf mmproj-m-Q8_0.gguf ");
    l = listing_of(names);
    assert_int_equal(choose(&l, "o/n:Q3_K", NULL, &index, &err), TD_E_NOTFOUND);
    assert_string_equal(err.message, "o/n: m-Q3_K-00001-of-00002.gguf has 2 pieces, but 1 are in the repository");
    assert_int_equal(choose(&l, "o/n:Q5_K", NULL, &index, &err), TD_E_NOTFOUND);
    assert_string_equal(err.message, "o/n: no file fits 'Q5_K'; there are m-Q4_K_M.gguf, m-Q8_0.gguf, "
                                     "q2/m-Q2_K-00001-of-00002.gguf, m-Q3_K-00001-of-00002.gguf");
    assert_int_equal(choose(&l, "o/n", NULL, &index, &err), TD_E_NOTFOUND);
    assert_string_equal(err.message, "o/n: a repository of GGUF files: name one, o/n:FILE or o/n:Q4_K_M, of "
                                     "m-Q4_K_M.gguf, m-Q8_0.gguf, q2/m-Q2_K-00001-of-00002.gguf, "
                                     "m-Q3_K-00001-of-00002.gguf");
    td_hub_listing_free(&l);
}

static void what_is_no_model_is_told_apart(void **state) {
    (void)state;
    static const char *const old[] = {"config.json", "pytorch_model.bin", "adapter.safetensors", NULL};
    static const char *const bare[] = {"model.safetensors", NULL};
    td_hub_file *index;
    td_error err;
    td_hub_listing l = listing_of(old);
    assert_int_equal(choose(&l, "o/n", NULL, &index, &err), TD_E_NOTFOUND);
    assert_string_equal(err.message, "o/n: no safetensors weights among its 3 files");
    td_hub_listing_free(&l);
    l = listing_of(bare);
    assert_int_equal(choose(&l, "o/n", NULL, &index, &err), TD_E_NOTFOUND);
    assert_string_equal(err.message, "o/n: there is no config.json in the repository");
    assert_int_equal(choose(&l, "o/n:Q4_0", NULL, &index, &err), TD_E_NOTFOUND);
    assert_string_equal(err.message, "o/n: no file fits 'Q4_0', and there are no GGUF models");
    td_hub_listing_free(&l);
}

static void survives_every_failed_allocation(void **state) {
    (void)state;
    const char *text = HEAD "{\"rfilename\":\"\\u0061\"},{\"rfilename\":\"b\"},{\"rfilename\":\"c\"}]}";
    unsigned k = 0;
    for (;; k++) {
        td_hub_listing l;
        long live = td_alloc_live();
        td_alloc_fail_at(k);
        td_status st = parse(&l, text, NULL);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        if (st == TD_OK)
            td_hub_listing_free(&l);
        assert_int_equal(td_alloc_live(), live);
        if (!struck) {
            assert_int_equal(st, TD_OK);
            break;
        }
        assert_int_equal(st, TD_E_NOMEM);
    }
    assert_in_range(k, 8, 30);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_of_the_hub),
        cmocka_unit_test(names_that_lead_elsewhere_are_refused),
        cmocka_unit_test(answers_without_sense_are_refused),
        cmocka_unit_test(only_what_a_model_needs_is_chosen),
        cmocka_unit_test(the_index_decides_over_shards),
        cmocka_unit_test(one_gguf_file_is_chosen),
        cmocka_unit_test(what_is_no_model_is_told_apart),
        cmocka_unit_test(survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
