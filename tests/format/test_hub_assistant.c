/* test_hub_assistant.c - which drafter is suggested for a trunk, beside it and in the hub cache. */
#include "format/support_format.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "format/hub.h"

#define COMMIT "0000000000000000000000000000000000000001"

static void put_trunk(const char *dir, const char *name, const char *type, int width) {
    char path[400], text[600];
    snprintf(path, sizeof path, "%s/config.json", name);
    snprintf(
        text, sizeof text,
        "{\"model_type\":\"%s\",\"text_config\":{\"model_type\":\"%s_text\",\"hidden_size\":%d,\"vocab_size\":1000,"
        "\"sliding_window\":512,\"head_dim\":256,\"global_head_dim\":512}}",
        type, type, width);
    put_text(dir, path, text);
}

/* `more` replaces the sizes that a test wants otherwise. */
static void put_assistant(const char *dir, const char *name, const char *type, int width, const char *more) {
    char path[400], text[600];
    snprintf(path, sizeof path, "%s/config.json", name);
    snprintf(text, sizeof text,
             "{\"model_type\":\"%s\",\"backbone_hidden_size\":%d,\"text_config\":{\"hidden_size\":64,%s}}", type, width,
             more ? more : "\"vocab_size\":1000,\"sliding_window\":512,\"head_dim\":256");
    put_text(dir, path, text);
}

/* A repository in the cache at dir/hub: a snapshot with what `put` writes, complete. */
static const char *snapshot_of(const char *dir, const char *entry) {
    static char name[300];
    char ref[300];
    snprintf(ref, sizeof ref, "hub/%s/refs/main", entry);
    put_text(dir, ref, COMMIT);
    snprintf(ref, sizeof ref, "hub/%s/snapshots/" COMMIT "/model.safetensors", entry);
    put_text(dir, ref, "");
    snprintf(name, sizeof name, "hub/%s/snapshots/" COMMIT, entry);
    return name;
}

static void assert_suggested_for(const char *trunk, const char *cache, const char *want) {
    char *got = (char *)"untouched";
    assert_int_equal(td_hub_suggest_assistant(trunk, cache, &got, NULL), TD_OK);
    if (want == NULL)
        assert_null(got);
    else if (got == NULL)
        fail_msg("nothing is suggested, expected %s", want);
    else
        assert_string_equal(got, want);
    td_free(got);
}

static void assert_suggested(const char *dir, const char *trunk, const char *want) {
    char full[1100];
    snprintf(full, sizeof full, "%s/%s", dir, want ? want : "");
    assert_suggested_for(in_dir(dir, trunk), in_dir(dir, "hub"), want ? full : NULL);
}

static void one_beside_the_trunk_is_found(void **state) {
    const char *dir = *state;
    put_trunk(dir, "gemma-4-12b-it-4bit", "gemma4_unified", 3840);
    assert_suggested(dir, "gemma-4-12b-it-4bit", NULL);
    put_assistant(dir, "gemma-4-12b-it-assistant-bf16", "gemma4_unified_assistant", 3840, NULL);
    assert_suggested(dir, "gemma-4-12b-it-4bit", "gemma-4-12b-it-assistant-bf16");
    assert_suggested(dir, "gemma-4-12b-it-4bit///", "gemma-4-12b-it-assistant-bf16");
    /* a name of another kind does not hide it */
    assert_int_equal(rename(in_dir(dir, "gemma-4-12b-it-assistant-bf16"), in_dir(dir, "drafter")), 0);
    assert_suggested(dir, "gemma-4-12b-it-4bit", "drafter");
    assert_suggested_for(in_dir(dir, "gemma-4-12b-it-4bit"), NULL, in_dir(dir, "drafter"));
    char here[1100];
    assert_non_null(getcwd(here, sizeof here));
    assert_int_equal(chdir(dir), 0);
    assert_suggested_for("gemma-4-12b-it-4bit", NULL, "drafter");
    assert_suggested_for("./gemma-4-12b-it-4bit", NULL, "./drafter");
    assert_int_equal(chdir("gemma-4-12b-it-4bit"), 0);
    char *got;
    assert_int_equal(td_hub_suggest_assistant(".", NULL, &got, NULL), TD_OK);
    assert_non_null(got);
    assert_string_equal(strrchr(got, '/'), "/drafter");
    td_free(got);
    assert_int_equal(chdir(here), 0);
}

static void one_of_another_trunk_is_not(void **state) {
    static const char *const sizes[] = {
        "\"vocab_size\":1001,\"sliding_window\":512",
        "\"vocab_size\":1000,\"sliding_window\":1024",
        "\"vocab_size\":1000,\"sliding_window\":512,\"head_dim\":128",
        "\"vocab_size\":1000,\"sliding_window\":512,\"head_dim\":256,\"global_head_dim\":256",
        "\"sliding_window\":512",
    };
    const char *dir = *state;
    put_trunk(dir, "trunk", "gemma4", 2560);
    put_assistant(dir, "trunk-assistant", "gemma4_assistant", 1536, NULL);
    assert_suggested(dir, "trunk", NULL);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        put_assistant(dir, "trunk-assistant", "gemma4_assistant", 2560, sizes[i]);
        assert_suggested(dir, "trunk", NULL);
    }
    put_assistant(dir, "trunk-assistant", "gemma4", 2560, NULL); /* not an assistant */
    assert_suggested(dir, "trunk", NULL);
    put_assistant(dir, "trunk-assistant", "gemma4_assistant", 2560, NULL);
    assert_suggested(dir, "trunk", "trunk-assistant");
    /* other families have none, and an assistant has no assistant */
    put_trunk(dir, "qwen", "qwen3_5", 2560);
    assert_suggested(dir, "qwen", NULL);
    assert_suggested(dir, "trunk-assistant", NULL);
    assert_suggested(dir, "nowhere", NULL);
}

static void of_several_the_nearest_name(void **state) {
    const char *dir = *state;
    put_trunk(dir, "gemma-4-E4B-it-4bit", "gemma4", 2560);
    put_assistant(dir, "a", "gemma4_assistant", 2560, NULL);
    put_assistant(dir, "b", "gemma4_assistant", 2560, NULL);
    assert_suggested(dir, "gemma-4-E4B-it-4bit", "a");
    put_assistant(dir, "gemma-4-E4B-assistant", "gemma4_assistant", 2560, NULL);
    assert_suggested(dir, "gemma-4-E4B-it-4bit", "gemma-4-E4B-assistant");
    put_assistant(dir, "Gemma-4-e4b-it-assistant", "gemma4_assistant", 2560, NULL);
    assert_suggested(dir, "gemma-4-E4B-it-4bit", "Gemma-4-e4b-it-assistant");
}

static void one_in_the_hub_cache_is_found(void **state) {
    const char *dir = *state;
    const char *trunk = snapshot_of(dir, "models--mlx-community--gemma-4-E4B-it-4bit");
    char at[600];
    put_trunk(dir, trunk, "gemma4", 2560);
    snprintf(at, sizeof at, "%s", in_dir(dir, trunk));
    assert_suggested_for(at, in_dir(dir, "hub"), NULL);
    put_assistant(dir, snapshot_of(dir, "models--org--gemma-4-E2B-it-assistant"), "gemma4_assistant", 1536, NULL);
    assert_suggested_for(at, in_dir(dir, "hub"), NULL);
    put_assistant(dir, snapshot_of(dir, "models--google--gemma-4-E4B-it-assistant"), "gemma4_assistant", 2560, NULL);
    put_assistant(dir, snapshot_of(dir, "models--google--gemma-4-E4B-assistant"), "gemma4_assistant", 2560, NULL);
    assert_suggested_for(at, in_dir(dir, "hub"), "google/gemma-4-E4B-it-assistant");
    assert_suggested_for(at, NULL, NULL);
    /* for a trunk elsewhere, behind one that lies beside it */
    put_trunk(dir, "models/gemma-4-E4B-it", "gemma4", 2560);
    assert_suggested_for(in_dir(dir, "models/gemma-4-E4B-it"), in_dir(dir, "hub"), "google/gemma-4-E4B-it-assistant");
    put_assistant(dir, "models/x", "gemma4_assistant", 2560, NULL);
    assert_suggested(dir, "models/gemma-4-E4B-it", "models/x");
    /* half a download is none */
    assert_int_equal(
        unlink(in_dir(dir, "hub/models--google--gemma-4-E4B-it-assistant/snapshots/" COMMIT "/model.safetensors")), 0);
    assert_suggested_for(at, in_dir(dir, "hub"), "google/gemma-4-E4B-assistant");
}

static void what_cannot_be_read_is_passed_over(void **state) {
    static const char *const texts[] = {"",
                                        "{",
                                        "[]",
                                        "{\"model_type\":5}",
                                        "{\"model_type\":\"gemma4_assistant\"}",
                                        "null",
                                        "\"x\"",
                                        "{\"model_type\":\"gemma4_assistant\",\"text_config\":[1]}"};
    const char *dir = *state;
    put_trunk(dir, "trunk", "gemma4", 2560);
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        put_text(dir, "a/config.json", texts[i]);
        assert_suggested(dir, "trunk", NULL);
        put_text(dir, "other/config.json", texts[i]);
        assert_suggested(dir, "other", NULL);
    }
    put_text(dir, "a-file", "x");
    assert_int_equal(symlink("nowhere", in_dir(dir, "dangling")), 0);
    put_assistant(dir, "b", "gemma4_assistant", 2560, NULL);
    assert_suggested(dir, "trunk", "b");
}

static void survives_every_failed_allocation(void **state) {
    const char *dir = *state;
    count_jansson();
    put_trunk(dir, "trunk", "gemma4", 2560);
    put_assistant(dir, snapshot_of(dir, "models--google--trunk-assistant"), "gemma4_assistant", 2560, NULL);
    unsigned k = 0;
    for (;; k++) {
        char *got;
        td_error err;
        long live = td_alloc_live();
        td_alloc_fail_at(k);
        td_status st = td_hub_suggest_assistant(in_dir(dir, "trunk"), in_dir(dir, "hub"), &got, &err);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        td_free(got);
        assert_int_equal(td_alloc_live(), live);
        if (!struck) {
            assert_int_equal(st, TD_OK);
            assert_non_null(got);
            break;
        }
        assert_int_equal(st, TD_E_NOMEM);
        assert_null(got);
    }
    assert_in_range(k, 30, 300);
}

#define DIR_TEST(name) cmocka_unit_test_setup_teardown(name, temp_dir_setup, temp_dir_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        DIR_TEST(one_beside_the_trunk_is_found),      DIR_TEST(one_of_another_trunk_is_not),
        DIR_TEST(of_several_the_nearest_name),        DIR_TEST(one_in_the_hub_cache_is_found),
        DIR_TEST(what_cannot_be_read_is_passed_over), DIR_TEST(survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
