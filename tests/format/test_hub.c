/* test_hub.c - paths, hub ids and revisions against caches in every state of download. */
#include "format/support_format.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

#define OLD "0000000000000000000000000000000000000001"
#define NEW "0000000000000000000000000000000000000002"
#define REPO "models--org--name"
#define INDEX "model.safetensors.index.json"

/* The files of a complete snapshot; hub.c looks at their presence only. */
static void put_snapshot(const char *cache, const char *commit, long mtime) {
    char dir[1100];
    snprintf(dir, sizeof dir, "%s/" REPO "/snapshots/%s", cache, commit);
    put_text(dir, "config.json", "{}");
    put_text(dir, "model.safetensors", "");
    const struct timespec times[2] = {{.tv_sec = mtime}, {.tv_sec = mtime}};
    assert_int_equal(utimensat(AT_FDCWD, dir, times, 0), 0);
}

static void assert_found(const char *cache, const char *id, const char *commit) {
    char *path, want[1100];
    td_error err;
    if (td_hub_resolve(id, cache, &path, &err) != TD_OK)
        fail_msg("%s", err.message);
    snprintf(want, sizeof want, "%s/" REPO "/snapshots/%s", cache, commit);
    assert_string_equal(path, want);
    td_free(path);
}

/* `want` with every $ replaced by the cache's path. */
static void assert_missing(const char *cache, const char *id, td_status status, const char *want) {
    char whole[3000];
    size_t n = 0;
    for (; *want; want++)
        n += (size_t)snprintf(whole + n, sizeof whole - n, *want == '$' ? "%s" : "%.1s", *want == '$' ? cache : want);
    char *path = whole;
    td_error err;
    assert_failed(td_hub_resolve(id, cache, &path, &err), status, &err, "", whole);
    assert_null(path);
    assert_int_equal(td_hub_resolve(id, cache, &path, NULL), status);
}

static void an_existing_path_is_taken_as_it_is(void **state) {
    char *path;
    td_error err;
    const char *dir = *state;
    put_text(dir, "model.safetensors", "");
    assert_int_equal(td_hub_resolve(dir, NULL, &path, &err), TD_OK);
    assert_string_equal(path, dir);
    td_free(path);
    assert_int_equal(td_hub_resolve(in_dir(dir, "model.safetensors"), "/nowhere", &path, &err), TD_OK);
    td_free(path);
    assert_int_equal(td_hub_resolve("org/name", NULL, &path, &err), TD_E_NOTFOUND);
    assert_string_equal(err.message, "org/name: no such path, and there is no hub cache to search");
}

static void what_is_no_id_is_not_looked_for(void **state) {
    static const char *const bad[] = {"",       "/no/such/path", "./nowhere-x", "../nowhere-x", "a/b/c",
                                      "a--b/c", "a/..",          "a/.b",        "a/b@",         "a/b@../../x",
                                      "a/b@/x", "a/b@x//y",      "a b/c",       "a/b@x y",      "a\\b",
                                      "~/x",    "org/na\nme",    "a/b@x/",      "a/b@a..b",     ".hidden/x"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        char *path;
        td_error err;
        assert_int_equal(td_hub_resolve(bad[i], *state, &path, &err), TD_E_NOTFOUND);
        assert_non_null(strstr(err.message, ": no such path, and not a hub id (org/name or org/name@revision)"));
    }
    char longest[120];
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = '\0';
    char *path;
    assert_int_equal(td_hub_resolve(longest, *state, &path, NULL), TD_E_NOTFOUND);
    assert_missing(*state, "org/other", TD_E_NOTFOUND,
                   "org/other: no such path, and not in the hub cache (no $/models--org--other)");
}

static void a_revision_is_used_or_refused(void **state) {
    const char *cache = *state;
    put_snapshot(cache, OLD, 1000);
    put_snapshot(cache, NEW, 2000);
    put_text(cache, REPO "/refs/main", NEW "\n");
    put_text(cache, REPO "/refs/v1.0", OLD);
    put_text(cache, REPO "/refs/refs/pr/1", OLD);
    put_text(cache, REPO "/refs/bad", "../../../etc");
    put_text(cache, REPO "/refs/gone", "00000000000000000000000000000000000000ff");
    assert_found(cache, "org/name", NEW);
    assert_found(cache, "org/name@main", NEW);
    assert_found(cache, "org/name@v1.0", OLD);
    assert_found(cache, "org/name@refs/pr/1", OLD);
    assert_found(cache, "org/name@" OLD, OLD);
    assert_missing(cache, "org/name@none", TD_E_NOTFOUND,
                   "org/name@none: $/" REPO "/refs/none: No such file or directory");
    assert_missing(cache, "org/name@bad", TD_E_FORMAT,
                   "org/name@bad: $/" REPO "/refs/bad: expected a commit of 40 hex digits");
    assert_missing(cache, "org/name@gone", TD_E_NOTFOUND,
                   "org/name@gone: $/" REPO "/snapshots/00000000000000000000000000000000000000ff: no such snapshot");
}

static void a_broken_download_does_not_hide_yesterdays_model(void **state) {
    const char *cache = *state;
    put_snapshot(cache, OLD, 1000);
    put_snapshot(cache, NEW, 2000);
    put_text(cache, REPO "/snapshots/not-a-commit/config.json", "{}");
    assert_found(cache, "org/name", NEW); /* no ref: the newest */
    put_snapshot(cache, OLD, 3000);
    assert_found(cache, "org/name", OLD);
    put_text(cache, REPO "/refs/main", OLD);
    assert_found(cache, "org/name", OLD); /* the ref before the newest */
    put_text(cache, REPO "/refs/main", NEW);
    assert_int_equal(unlink(in_dir(cache, REPO "/snapshots/" NEW "/model.safetensors")), 0);
    assert_int_equal(symlink("../../blobs/beef", in_dir(cache, REPO "/snapshots/" NEW "/model.safetensors")), 0);
    assert_found(cache, "org/name", OLD);
    assert_missing(cache, "org/name@main", TD_E_NOTFOUND,
                   "org/name@main: $/" REPO "/snapshots/" NEW ": incomplete, model.safetensors is missing");
    assert_int_equal(unlink(in_dir(cache, REPO "/snapshots/" OLD "/config.json")), 0);
    assert_missing(cache, "org/name", TD_E_NOTFOUND,
                   "org/name: $/" REPO "/snapshots/" NEW
                   ": incomplete, model.safetensors is missing; no other snapshot is complete");
    put_text(cache, REPO "/blobs/beef", "");
    assert_found(cache, "org/name", NEW);
}

static void every_shard_of_an_index_is_needed(void **state) {
    const char *cache = *state;
    put_snapshot(cache, OLD, 1000);
    put_text(cache, REPO "/refs/main", OLD);
    put_text(cache, REPO "/snapshots/" OLD "/" INDEX,
             "{\"weight_map\":{\"a\":\"1.safetensors\",\"b\":\"2.safetensors\"}}");
    put_text(cache, REPO "/snapshots/" OLD "/1.safetensors", "");
    assert_missing(cache, "org/name@main", TD_E_NOTFOUND,
                   "org/name@main: $/" REPO "/snapshots/" OLD ": incomplete, 2.safetensors is missing");
    put_text(cache, REPO "/snapshots/" OLD "/2.safetensors", "");
    assert_found(cache, "org/name", OLD);
    put_text(cache, REPO "/snapshots/" OLD "/" INDEX, "{\"weight_map\":{\"a\":\"../1.safetensors\"}}");
    assert_missing(cache, "org/name@main", TD_E_FORMAT,
                   "org/name@main: $/" REPO "/snapshots/" OLD "/" INDEX
                   ": byte 19: shard \"../1.safetensors\" is not a plain file name ending in .safetensors");
}

static void assert_found_file(const char *cache, const char *id, const char *file) {
    char *path, want[1100];
    td_error err;
    if (td_hub_resolve(id, cache, &path, &err) != TD_OK)
        fail_msg("%s", err.message);
    snprintf(want, sizeof want, "%s/" REPO "/snapshots/" OLD "/%s", cache, file);
    assert_string_equal(path, want);
    td_free(path);
}

static void a_gguf_file_is_found_by_name_or_quantisation(void **state) {
    static const char *const files[] = {"m-Q4_K_M.gguf",
                                        "m-Q8_0.gguf",
                                        "m-f16.gguf",
                                        "mmproj-m-f16.gguf",
                                        "UD/m-IQ2_XS-00001-of-00002.gguf",
                                        "UD/m-IQ2_XS-00002-of-00002.gguf",
                                        "m-Q6_K-00001-of-00002.gguf"};
    const char *cache = *state;
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        char name[200];
        snprintf(name, sizeof name, REPO "/snapshots/" OLD "/%s", files[i]);
        put_text(cache, name, "");
    }
    put_text(cache, REPO "/refs/main", OLD);
    assert_found_file(cache, "org/name:m-Q8_0.gguf", "m-Q8_0.gguf");
    assert_found_file(cache, "org/name:Q4_K_M", "m-Q4_K_M.gguf");
    assert_found_file(cache, "org/name@main:q4_k_m", "m-Q4_K_M.gguf");
    assert_found_file(cache, "org/name:F16", "m-f16.gguf"); /* and not the projector */
    assert_found_file(cache, "org/name:mmproj-m-f16.gguf", "mmproj-m-f16.gguf");
    assert_found_file(cache, "org/name@" OLD ":IQ2_XS", "UD/m-IQ2_XS-00001-of-00002.gguf");
    assert_found_file(cache, "org/name:UD/m-IQ2_XS-00002-of-00002.gguf", "UD/m-IQ2_XS-00001-of-00002.gguf");
    assert_missing(cache, "org/name@main:Q6_K", TD_E_NOTFOUND,
                   "org/name@main:Q6_K: $/" REPO "/snapshots/" OLD
                   ": incomplete, 1 of 2 pieces of m-Q6_K-00001-of-00002.gguf");
    put_text(cache, REPO "/snapshots/" OLD "/n-Q8_0.gguf", "");
    td_error err;
    char *path;
    assert_int_equal(td_hub_resolve("org/name@main:Q8_0", cache, &path, &err), TD_E_ARG);
    assert_non_null(strstr(err.message, "'Q8_0' fits several files, name one: "));
    assert_non_null(strstr(err.message, "n-Q8_0.gguf"));
    assert_null(strstr(err.message, "Q4_K_M"));
    assert_int_equal(td_hub_resolve("org/name@main:K_M", cache, &path, &err), TD_OK); /* after a '_' */
    td_free(path);
    assert_int_equal(td_hub_resolve("org/name@main:4_K_M", cache, &path, &err), TD_E_NOTFOUND);
    assert_non_null(strstr(err.message, "no file fits '4_K_M'; there are "));
    assert_null(strstr(err.message, "mmproj"));
    assert_null(strstr(err.message, "00002-of-00002"));
    assert_int_equal(td_hub_resolve("org/name:../../x.gguf", cache, &path, &err), TD_E_NOTFOUND);
    assert_non_null(strstr(err.message, "not a hub id"));
    assert_int_equal(unlink(in_dir(cache, REPO "/snapshots/" OLD "/m-Q4_K_M.gguf")), 0);
    assert_int_equal(symlink("../../blobs/beef", in_dir(cache, REPO "/snapshots/" OLD "/m-Q4_K_M.gguf")), 0);
    assert_missing(cache, "org/name@main:Q4_K_M", TD_E_NOTFOUND,
                   "org/name@main:Q4_K_M: $/" REPO "/snapshots/" OLD ": incomplete, m-Q4_K_M.gguf is missing");
}

static void survives_every_failed_allocation(void **state) {
    const char *cache = *state;
    put_snapshot(cache, OLD, 1000);
    put_snapshot(cache, NEW, 2000);
    put_text(cache, REPO "/snapshots/" OLD "/" INDEX, "{\"weight_map\":{\"\\u0061\":\"model.safetensors\"}}");
    put_text(cache, REPO "/snapshots/" OLD "/q/m-Q8_0.gguf", "");
    for (int round = 0; round < 3; round++) {
        if (round > 0)
            put_text(cache, REPO "/refs/main", OLD);
        const char *id = round == 2 ? "org/name:Q8_0" : "org/name";
        unsigned k = 0;
        for (;; k++) {
            char *path;
            td_error err;
            long live = td_alloc_live();
            td_alloc_fail_at(k);
            td_status st = td_hub_resolve(id, cache, &path, &err);
            bool struck = td_alloc_failed();
            td_alloc_fail_at(-1);
            td_free(path);
            assert_int_equal(td_alloc_live(), live);
            if (!struck) {
                assert_int_equal(st, TD_OK);
                break;
            }
            assert_int_equal(st, TD_E_NOMEM);
            assert_null(path);
        }
        assert_in_range(k, 8, 100);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_existing_path_is_taken_as_it_is, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(what_is_no_id_is_not_looked_for, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(a_revision_is_used_or_refused, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(a_broken_download_does_not_hide_yesterdays_model, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(every_shard_of_an_index_is_needed, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(a_gguf_file_is_found_by_name_or_quantisation, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(survives_every_failed_allocation, temp_dir_setup, temp_dir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
