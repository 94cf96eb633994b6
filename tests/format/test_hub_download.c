/* test_hub_download.c - downloads from a mock hub on this machine, with everything that goes wrong on the way.
 *
 * The mock counts what it sends, so that "does not fetch it again" is a number. Nothing waits for the clock except
 * where the server's Retry-After says so. */
#define _XOPEN_SOURCE 700
#include "format/support_format.h"

#include <ftw.h>
#include <microhttpd.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "format/hub.h"
#include "support/mock_hub.h"

#define REPO "models--org--name"
#define SNAPSHOT REPO "/snapshots/" MOCK_COMMIT
#define INDEX "model.safetensors.index.json"
#define WEIGHTS 3000000 /* bytes of model.safetensors */
#define OTHER_COMMIT "89abcdef0123456789abcdef0123456789abcdef"

typedef struct fixture {
    mock_hub hub, storage;
    char *dir;        /* removed afterwards */
    char cache[1100]; /* in it, not made yet */
    td_hub_options opt;
    char log[8000];
    uint64_t done, total, stop_at; /* of the bar; where it says stop */
    unsigned ticks;
} fixture;

static void on_log(void *user, td_log_level level, const char *message) {
    fixture *f = user;
    size_t n = strlen(f->log);
    snprintf(f->log + n, sizeof f->log - n, "%s%s\n", level >= TD_LOG_WARN ? "warning: " : "", message);
}

static bool on_progress(void *user, const char *stage, uint64_t done, uint64_t total) {
    fixture *f = user;
    assert_string_equal(stage, "download");
    assert_true(done <= total || total == 0);
    f->done = done;
    f->total = total;
    f->ticks++;
    return f->stop_at == 0 || done < f->stop_at;
}

static int set_up(void **state) {
    fixture *f = calloc(1, sizeof *f);
    if (!f || temp_dir_setup((void **)&f->dir) != 0 || !mock_hub_open(&f->hub, NULL, NULL) ||
        !mock_hub_open(&f->storage, NULL, NULL))
        return -1;
    snprintf(f->cache, sizeof f->cache, "%s/hub", f->dir);
    f->storage.behind = &f->hub;
    f->opt = td_hub_options_default();
    f->opt.cache = f->cache;
    f->opt.endpoint = f->hub.url;
    f->opt.backoff_ms = 1;
    f->opt.log = on_log;
    f->opt.progress = on_progress;
    f->opt.user = f;
    mock_hub_put(&f->hub, "README.md", "# a model\n", 10, false);
    mock_hub_put(&f->hub, "config.json", "{\"a\": 1}\n", 9, false);
    mock_hub_put_noise(&f->hub, "model.safetensors", WEIGHTS, true);
    mock_hub_put_noise(&f->hub, "pytorch_model.bin", 1000, true);
    mock_hub_put(&f->hub, "tokenizer.json", "{}", 2, false);
    *state = f;
    return 0;
}

static int tear_down(void **state) {
    fixture *f = *state;
    mock_hub_close(&f->hub);
    mock_hub_close(&f->storage);
    int failed = temp_dir_teardown((void **)&f->dir);
    free(f);
    return failed;
}

/* ---- what is expected ---- */

static mock_file *weights(fixture *f) {
    return mock_hub_file(&f->hub, "model.safetensors");
}

static void assert_fetched_as(fixture *f, const char *id, const char *below) {
    char *path, want[2400];
    td_error err;
    if (td_hub_fetch(id, &f->opt, &path, &err) != TD_OK)
        fail_msg("%s", err.message);
    snprintf(want, sizeof want, "%s/" REPO "/snapshots/%s", f->cache, below);
    assert_string_equal(path, want);
    td_free(path);
}

/* In `message`, @ is the endpoint. */
static void assert_refused_as(fixture *f, const char *id, td_status status, const char *message) {
    char want[1000];
    size_t n = 0;
    for (; *message; message++)
        n += (size_t)snprintf(want + n, sizeof want - n, *message == '@' ? "%s" : "%.1s",
                              *message == '@' ? f->hub.url : message);
    char *path = want;
    td_error err = {0};
    td_status st = td_hub_fetch(id, &f->opt, &path, &err);
    assert_failed(st, status, &err, "", want);
    assert_null(path);
}

static void assert_refused(fixture *f, td_status status, const char *message) {
    f->opt.refresh = true;
    assert_refused_as(f, "org/name", status, message);
}

static void assert_file(const char *path, const void *bytes, size_t size) {
    char *got;
    size_t n;
    td_error err;
    if (td_file_read(path, 1u << 30, &got, &n, &err) != TD_OK)
        fail_msg("%s", err.message);
    assert_int_equal(n, size);
    if (size)
        assert_memory_equal(got, bytes, size);
    td_free(got);
}

static const char *blob(fixture *f, const mock_file *file, const char *suffix) {
    char name[200];
    snprintf(name, sizeof name, REPO "/blobs/%s%s", file->checksum, suffix);
    return in_dir(f->cache, name);
}

static int64_t size_at(const char *path) {
    struct stat info;
    return stat(path, &info) == 0 ? (int64_t)info.st_size : -1;
}

/* A file of the snapshot: a relative link to its blob, with the server's bytes behind it. */
static void assert_linked(fixture *f, const char *name) {
    const mock_file *file = mock_hub_file(&f->hub, name);
    char path[2400], link[200] = "", want[200] = "../../";
    snprintf(path, sizeof path, "%s/" REPO "/snapshots/%s/%s", f->cache, f->hub.commit, name);
    for (const char *p = name; *p; p++)
        if (*p == '/')
            strcat(want, "../");
    strcat(strcat(want, "blobs/"), file->checksum);
    assert_true(readlink(path, link, sizeof link - 1) > 0);
    assert_string_equal(link, want);
    assert_file(path, file->bytes, file->size);
}

static void assert_whole(fixture *f) {
    assert_linked(f, "config.json");
    assert_linked(f, "model.safetensors");
    assert_linked(f, "tokenizer.json");
    assert_file(in_dir(f->cache, REPO "/refs/main"), f->hub.commit, 40);
    assert_int_equal(size_at(blob(f, weights(f), ".incomplete")), -1);
}

static unsigned n_entries;

static int count_entry(const char *path, const struct stat *info, int flag, struct FTW *walk) {
    (void)path, (void)info, (void)walk;
    n_entries += flag != FTW_D;
    return 0;
}

/* Files and links below the cache. */
static unsigned entries(fixture *f) {
    n_entries = 0;
    nftw(f->cache, count_entry, 16, FTW_PHYS);
    return n_entries;
}

static void order(mock_file *file, int times, int64_t cut_after) {
    file->fault = (mock_fault){.times = times, .cut_after = cut_after};
}

static void order_status(mock_fault *fault, int times, unsigned status, const char *header, const char *value) {
    *fault = (mock_fault){.times = times, .status = status, .header = header, .value = value, .cut_after = -1};
}

/* ---- a download that goes well ---- */

static void a_model_lies_as_other_tools_expect_it(void **state) {
    fixture *f = *state;
    mock_hub_put(&f->hub, "additional_chat_templates/tool_use.jinja", "{{ a }}", 7, false);
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_whole(f);
    assert_linked(f, "additional_chat_templates/tool_use.jinja");
    assert_int_equal(entries(f), 4 * 3 + 1); /* blob, lock and link each; refs/main; nothing that nobody needs */
    char lock[200];
    snprintf(lock, sizeof lock, ".locks/" REPO "/%s.lock", weights(f)->checksum);
    assert_true(td_file_exists(in_dir(f->cache, lock)));
    assert_int_equal(f->done, WEIGHTS + 9 + 2 + 7);
    assert_int_equal(f->total, f->done);
    assert_non_null(strstr(f->log, "org/name: downloading 4 files, 2.9 MiB (commit 0123456)\n"));
    /* from now on the cache answers */
    unsigned before = f->hub.requests;
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_fetched_as(f, "org/name@main", MOCK_COMMIT);
    f->opt.offline = true;
    f->opt.refresh = true;
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_int_equal(f->hub.requests, before);
    /* and asking what is new fetches nothing that is there */
    f->opt.offline = false;
    uint64_t sent = weights(f)->sent;
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_int_equal(f->hub.requests, before + 1);
    assert_int_equal(weights(f)->sent, sent);
}

static void only_shards_of_the_index_are_fetched(void **state) {
    fixture *f = *state;
    static const char index[] = "{\"weight_map\":{\"a\":\"s-2.safetensors\",\"b\":\"s-1.safetensors\"}}";
    mock_hub_put(&f->hub, INDEX, index, sizeof index - 1, false);
    mock_hub_put_noise(&f->hub, "s-1.safetensors", 1000, true);
    mock_hub_put_noise(&f->hub, "s-2.safetensors", 0, true);
    mock_hub_put_noise(&f->hub, "s-3.safetensors", 3000, true);
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_linked(f, "s-1.safetensors");
    assert_linked(f, "s-2.safetensors");
    assert_linked(f, INDEX);
    assert_int_equal(weights(f)->requests, 0);
    assert_int_equal(mock_hub_file(&f->hub, "s-3.safetensors")->requests, 0);
    assert_int_equal(mock_hub_file(&f->hub, INDEX)->requests, 1);
    assert_int_equal(f->total, sizeof index - 1 + 1000 + 9 + 2);
    static const char bad[] = "{\"weight_map\":{\"a\":\"../s.safetensors\"}}";
    mock_hub_put(&f->hub, INDEX, bad, sizeof bad - 1, false);
    assert_refused(f, TD_E_FORMAT,
                   "org/name: " INDEX
                   ": byte 19: shard \"../s.safetensors\" is not a plain file name ending in .safetensors");
}

static void a_gguf_file_alone_is_fetched(void **state) {
    fixture *f = *state;
    mock_hub_put_noise(&f->hub, "x/m-Q4_K_M-00001-of-00002.gguf", 5000, true);
    mock_hub_put_noise(&f->hub, "x/m-Q4_K_M-00002-of-00002.gguf", 6000, true);
    mock_hub_put_noise(&f->hub, "m-Q8_0.gguf", 7000, true);
    assert_fetched_as(f, "org/name:q4_k_m", MOCK_COMMIT "/x/m-Q4_K_M-00001-of-00002.gguf");
    assert_linked(f, "x/m-Q4_K_M-00002-of-00002.gguf");
    assert_int_equal(f->total, 11000);
    assert_fetched_as(f, "org/name@main:m-Q8_0.gguf", MOCK_COMMIT "/m-Q8_0.gguf");
    unsigned before = f->hub.requests;
    assert_fetched_as(f, "org/name:Q4_K_M", MOCK_COMMIT "/x/m-Q4_K_M-00001-of-00002.gguf");
    assert_int_equal(f->hub.requests, before);
    assert_int_equal(weights(f)->requests, 0);
}

static void files_that_a_pattern_names_come_too(void **state) {
    fixture *f = *state;
    const char *const patterns[] = {"*.md", "pytorch*"};
    f->opt.include = patterns;
    f->opt.n_include = 2;
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_whole(f);
    assert_linked(f, "README.md");
    assert_linked(f, "pytorch_model.bin");
}

static void a_new_commit_fetches_what_changed(void **state) {
    fixture *f = *state;
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    mock_hub_put(&f->hub, "config.json", "{\"a\": 2}\n", 9, false);
    snprintf(f->hub.commit, sizeof f->hub.commit, OTHER_COMMIT);
    f->opt.refresh = true;
    assert_fetched_as(f, "org/name", OTHER_COMMIT);
    assert_whole(f);
    assert_int_equal(weights(f)->requests, 1);
    assert_file(in_dir(f->cache, SNAPSHOT "/config.json"), "{\"a\": 1}\n", 9); /* the old one stays */
    assert_fetched_as(f, "org/name@" OTHER_COMMIT, OTHER_COMMIT);
    assert_int_equal(size_at(in_dir(f->cache, REPO "/refs/" OTHER_COMMIT)), -1);
    assert_fetched_as(f, "org/name@refs/pr/3", OTHER_COMMIT);
    assert_file(in_dir(f->cache, REPO "/refs/refs/pr/3"), OTHER_COMMIT, 40);
}

static void a_mirror_that_lists_names_alone_is_enough(void **state) {
    fixture *f = *state;
    f->hub.bare = true;
    f->hub.storage = &f->storage;
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_whole(f);
    assert_int_equal(f->hub.heads, 3);
    assert_int_equal(f->total, WEIGHTS + 9 + 2);
}

/* ---- what needs no network ---- */

static void no_request_without_need(void **state) {
    fixture *f = *state;
    char *path;
    td_error err;
    assert_int_equal(td_hub_fetch(f->dir, &f->opt, &path, &err), TD_OK);
    assert_string_equal(path, f->dir);
    td_free(path);
    assert_int_equal(td_hub_fetch("bare-word", &f->opt, &path, &err), TD_E_NOTFOUND);
    assert_int_equal(td_hub_fetch("../org/name", &f->opt, &path, &err), TD_E_NOTFOUND);
    assert_int_equal(td_hub_fetch("org/name/x", &f->opt, &path, &err), TD_E_NOTFOUND);
    f->opt.offline = true;
    assert_int_equal(td_hub_fetch("org/name", &f->opt, &path, &err), TD_E_NOTFOUND);
    assert_non_null(strstr(err.message, "nothing is downloaded offline: org/name: no such path, and not in the hub"));
    f->opt.offline = false;
    f->opt.cache = NULL;
    assert_int_equal(td_hub_fetch("org/name", &f->opt, &path, &err), TD_E_NOTFOUND);
    assert_int_equal(f->hub.requests, 0);
    assert_int_equal(entries(f), 0);
}

/* ---- cut, killed, stopped ---- */

static void a_cut_connection_goes_on_where_it_was(void **state) {
    fixture *f = *state;
    order(weights(f), 3, 700000);
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_whole(f);
    assert_int_equal(weights(f)->requests, 4);
    assert_int_equal(weights(f)->sent, WEIGHTS); /* no byte twice */
    assert_int_equal(weights(f)->from, 2100000);
    assert_non_null(
        strstr(f->log, "model.safetensors: the connection was cut at byte 700000 of 3000000; trying again"));
    /* in a small text, and before the first byte */
    mock_hub_put(&f->hub, "config.json", "{\"a\": 3}\n", 9, false)->fault = (mock_fault){.times = 1, .cut_after = 4};
    order(mock_hub_put(&f->hub, "tokenizer.json", "[]", 2, false), 2, 0);
    f->opt.refresh = true;
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_whole(f);
}

static void attempts_are_bounded_and_progress_starts_them_anew(void **state) {
    fixture *f = *state;
    order(weights(f), -1, 1000);
    assert_refused_as(f, "org/name", TD_E_IO,
                      "gave up after 5 attempts: org/name: model.safetensors: the connection was cut at byte 5000 of "
                      "3000000");
    assert_int_equal(weights(f)->requests, 5);
    assert_int_equal(size_at(blob(f, weights(f), ".incomplete")), 5000);
    assert_int_equal(size_at(in_dir(f->cache, REPO "/refs/main")), -1);
    char *path;
    f->opt.offline = true;
    assert_int_equal(td_hub_fetch("org/name", &f->opt, &path, NULL), TD_E_NOTFOUND);
    f->opt.offline = false;
    f->opt.attempts = 2;
    order(weights(f), -1, (1 << 20) + 1000); /* 2994000 bytes are left: three times, then each 1 MiB counts */
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_whole(f);
    assert_int_equal(weights(f)->sent, WEIGHTS);
}

static void wait_for_bytes(const char *path, int64_t size) {
    for (int i = 0; i < 10000 && size_at(path) < size; i++)
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    assert_int_equal(size_at(path), size);
}

static void a_killed_process_leaves_what_it_had(void **state) {
    fixture *f = *state;
    weights(f)->fault = (mock_fault){.times = 1, .cut_after = 1234567, .stall = true};
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        char *path;
        _exit(td_hub_fetch("org/name", &f->opt, &path, NULL) == TD_OK);
    }
    wait_for_bytes(blob(f, weights(f), ".incomplete"), 1234567);
    assert_int_equal(kill(child, SIGKILL), 0);
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFSIGNALED(status));
    assert_int_equal(weights(f)->sent, 1234567);
    assert_int_equal(size_at(in_dir(f->cache, REPO "/refs/main")), -1);
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_whole(f);
    assert_int_equal(weights(f)->from, 1234567);
    assert_int_equal(weights(f)->sent, WEIGHTS); /* both processes together: no byte twice */
    assert_int_equal(mock_hub_file(&f->hub, "config.json")->requests, 1);
    assert_non_null(strstr(f->log, "downloading 2 files, 1.7 MiB"));
}

static void a_stopped_download_keeps_what_it_had(void **state) {
    fixture *f = *state;
    weights(f)->fault = (mock_fault){.times = 1, .cut_after = 2000000, .stall = true};
    f->stop_at = 1500000;
    assert_refused_as(f, "org/name", TD_E_CANCELLED, "the download was stopped");
    int64_t kept = size_at(blob(f, weights(f), ".incomplete"));
    assert_in_range(kept, 1400000, 2000000);
    f->stop_at = 0;
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_whole(f);
    assert_int_equal(weights(f)->from, kept);
    /* while it waits to try again, and before it has begun */
    mock_hub_put_noise(&f->hub, "model.safetensors", 5000, true);
    order_status(&weights(f)->fault, -1, 503, "Retry-After", "200");
    f->stop_at = WEIGHTS;
    f->stop_at = 1;
    f->opt.refresh = true;
    assert_refused(f, TD_E_CANCELLED, "the download was stopped");
}

static void a_connection_that_brings_nothing_is_cut(void **state) {
    fixture *f = *state;
    weights(f)->fault = (mock_fault){.times = 1, .cut_after = 1000000, .stall = true};
    f->opt.stall_s = 1;
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_whole(f);
    assert_int_equal(weights(f)->from, 1000000);
}

/* ---- what is there already ---- */

static void put_partial(fixture *f, const void *bytes, size_t n) {
    char name[200];
    snprintf(name, sizeof name, REPO "/blobs/%s.incomplete", weights(f)->checksum);
    put_file(f->cache, name, bytes, n);
}

static void a_start_that_is_damaged_is_thrown_away_once(void **state) {
    fixture *f = *state;
    static const char zeros[100000];
    put_partial(f, zeros, sizeof zeros); /* as a crash of the machine leaves it */
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_whole(f);
    assert_int_equal(weights(f)->requests, 2);
    assert_int_equal(f->done, f->total);
    assert_non_null(strstr(f->log, "warning: org/name: model.safetensors: what an earlier download left is damaged"));
}

static void a_start_of_any_length(void **state) {
    fixture *f = *state;
    for (int round = 0; round < 3; round++) {
        size_t n = (size_t[]){WEIGHTS, WEIGHTS + 5, 1}[round];
        mock_file *w = mock_hub_put_noise(&f->hub, "model.safetensors", WEIGHTS, true);
        uint8_t *bytes = calloc(1, n);
        memcpy(bytes, w->bytes, n < WEIGHTS ? n : WEIGHTS);
        unlink(blob(f, w, ""));
        put_partial(f, bytes, n);
        free(bytes);
        f->opt.refresh = true;
        assert_fetched_as(f, "org/name", MOCK_COMMIT);
        assert_whole(f);
        assert_int_equal(weights(f)->requests, round > 0);
        assert_int_equal(weights(f)->from, round == 2);
    }
}

static void a_server_that_knows_no_ranges_starts_over(void **state) {
    fixture *f = *state;
    put_partial(f, weights(f)->bytes, 1000000);
    weights(f)->fault = (mock_fault){.times = 1, .cut_after = -1, .whole = true};
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_whole(f);
    assert_int_equal(weights(f)->sent, WEIGHTS);
    assert_int_equal(f->done, f->total);
}

static void a_range_that_was_not_asked_for_is_refused(void **state) {
    fixture *f = *state;
    put_partial(f, weights(f)->bytes, 1000000);
    weights(f)->fault = (mock_fault){.times = 1, .cut_after = -1, .shifted = true};
    assert_refused(
        f, TD_E_FORMAT,
        "org/name: model.safetensors: asked for bytes 1000000 to the end of 3000000, the server sends others");
    order_status(&weights(f)->fault, 1, 416, NULL, NULL); /* it has no such range: from the start, then */
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_whole(f);
    assert_int_equal(weights(f)->from, 0);
}

/* ---- wrong bytes ---- */

static void a_wrong_checksum_removes_the_file(void **state) {
    fixture *f = *state;
    weights(f)->fault = (mock_fault){.times = 1, .cut_after = -1, .corrupt = true};
    char *path;
    td_error err;
    assert_int_equal(td_hub_fetch("org/name", &f->opt, &path, &err), TD_E_FORMAT);
    assert_non_null(strstr(err.message, "org/name: model.safetensors: the checksum is "));
    assert_non_null(strstr(err.message, weights(f)->checksum));
    assert_non_null(strstr(err.message, "; the file has been removed"));
    char got[65] = "";
    assert_int_equal(sscanf(strstr(err.message, "checksum is ") + 12, "%64[0-9a-f]", got), 1);
    assert_int_equal(strlen(got), 64);
    assert_string_not_equal(got, weights(f)->checksum);
    assert_int_equal(size_at(blob(f, weights(f), "")), -1);
    assert_int_equal(size_at(blob(f, weights(f), ".incomplete")), -1);
    assert_int_equal(size_at(in_dir(f->cache, REPO "/refs/main")), -1);
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_whole(f);
    /* a text is checked the same way */
    mock_hub_put(&f->hub, "config.json", "{\"a\": 4}\n", 9, false)->fault =
        (mock_fault){.times = 1, .cut_after = -1, .corrupt = true};
    f->opt.refresh = true;
    assert_int_equal(td_hub_fetch("org/name", &f->opt, &path, &err), TD_E_FORMAT);
    assert_non_null(strstr(err.message, "org/name: config.json: the checksum is "));
}

static void sizes_that_do_not_agree(void **state) {
    fixture *f = *state;
    weights(f)->listed_size = WEIGHTS - 1;
    assert_refused(f, TD_E_FORMAT, "org/name: model.safetensors: more bytes than the 2999999 that the hub lists");
    assert_int_equal(unlink(blob(f, weights(f), ".incomplete")), 0);
    weights(f)->listed_size = WEIGHTS + 1;
    f->opt.attempts = 2;
    assert_refused(
        f, TD_E_FORMAT,
        "org/name: model.safetensors: asked for bytes 3000000 to the end of 3000001, the server sends others");
}

/* ---- refusals ---- */

static void refusals_say_what_to_do(void **state) {
    fixture *f = *state;
    order_status(&f->hub.fault, 1, 401, "X-Error-Code", "RepoNotFound");
    assert_refused(
        f, TD_E_ARG,
        "org/name: the hub answers 401: there is no such repository at @, or it wants a token: set HF_TOKEN");
    order_status(&f->hub.fault, 1, 401, "X-Error-Code", "GatedRepo");
    assert_refused(f, TD_E_ARG,
                   "org/name: the hub asks for an accepted licence: accept it at @/org/name, and set HF_TOKEN");
    order_status(&f->hub.fault, 1, 404, "X-Error-Code", "RevisionNotFound");
    assert_refused(f, TD_E_NOTFOUND, "org/name: no such revision at @");
    order_status(&f->hub.fault, 1, 404, NULL, NULL);
    assert_refused(f, TD_E_NOTFOUND, "org/name: no such repository at @");
    order_status(&weights(f)->fault, 1, 404, "X-Error-Code", "EntryNotFound");
    assert_refused(f, TD_E_NOTFOUND, "org/name: model.safetensors: no such file at @");
    f->opt.token = "hf_secret";
    f->hub.token = "hf_other";
    assert_refused(f, TD_E_ARG,
                   "org/name: the hub refuses the token of HF_TOKEN (401), or there is no such repository at @");
    order_status(&f->hub.fault, 1, 403, NULL, NULL);
    f->hub.token = "hf_secret";
    assert_refused(f, TD_E_ARG,
                   "org/name: the hub asks for an accepted licence: accept it at @/org/name with the account of "
                   "HF_TOKEN");
    f->opt.refresh = false;
    assert_refused_as(f, "org/nome", TD_E_NOTFOUND, "no such path, and as a hub id: org/nome: no such repository at @");
    assert_int_equal(f->hub.requests, 10); /* none was tried again; one went for config.json */
    f->opt.token = "hf secret";
    assert_refused(f, TD_E_ARG, "the hub token (HF_TOKEN) has a character that no token has, at byte 2");
    f->opt.token = NULL;
    f->opt.endpoint = "ftp://example.org";
    assert_refused(f, TD_E_ARG, "the hub's endpoint is 'ftp://example.org', expected an http(s) URL");
    f->opt.endpoint = "example.org";
    assert_refused(f, TD_E_ARG, "the hub's endpoint is 'example.org', expected an http(s) URL");
}

static void busy_servers_are_asked_again(void **state) {
    fixture *f = *state;
    order_status(&f->hub.fault, 2, 503, NULL, NULL);
    order_status(&weights(f)->fault, 1, 429, "Retry-After", "1");
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_whole(f);
    assert_int_equal(f->hub.listings, 3);
    assert_non_null(strstr(f->log, "org/name: the hub answers 503; trying again in 0.0 s\n"));
    assert_non_null(strstr(f->log, "org/name: model.safetensors: the hub answers 429; trying again in 1.0 s\n"));
    order_status(&f->hub.fault, 1, 503, "Retry-After", "301");
    assert_refused(f, TD_E_IO, "the server asks to come back in more than 300 s: org/name: the hub answers 503");
    order_status(&f->hub.fault, -1, 500, NULL, NULL);
    assert_refused(f, TD_E_IO, "gave up after 5 attempts: org/name: the hub answers 500");
    assert_int_equal(f->hub.listings, 3 + 1 + 5);
    order_status(&f->hub.fault, 1, 400, NULL, NULL);
    assert_refused(f, TD_E_IO, "org/name: the hub answers 400");
    assert_int_equal(f->hub.listings, 10);
}

static void a_hub_that_is_not_there(void **state) {
    fixture *f = *state;
    char url[64], *path;
    td_error err;
    mock_hub gone;
    assert_true(mock_hub_open(&gone, NULL, NULL));
    snprintf(url, sizeof url, "%s", gone.url);
    mock_hub_close(&gone);
    f->opt.endpoint = url;
    f->opt.attempts = 3;
    assert_int_equal(td_hub_fetch("org/name", &f->opt, &path, &err), TD_E_IO);
    assert_non_null(strstr(err.message, "gave up after 3 attempts: org/name: "));
    assert_non_null(strstr(err.message, "onnect"));
}

static void hostile_listings_write_nothing(void **state) {
    fixture *f = *state;
    static const char *const names[] = {"../../../evil", "/tmp/evil", "config.json/../../x", "a\\u0000b", "a\\nb"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char text[500], *path;
        snprintf(text, sizeof text,
                 "{\"sha\":\"" MOCK_COMMIT "\",\"siblings\":[{\"rfilename\":\"config.json\"},{\"rfilename\":\"%s\"}]}",
                 names[i]);
        f->hub.listing = text;
        assert_int_equal(td_hub_fetch("org/name", &f->opt, &path, NULL), TD_E_FORMAT);
        f->hub.listing = "{\"sha\":\"../../../../../../../../../../../../evil\",\"siblings\":[]}";
        assert_int_equal(td_hub_fetch("org/name", &f->opt, &path, NULL), TD_E_FORMAT);
    }
    assert_int_equal(entries(f), 0);
    assert_false(td_dir_exists(f->cache));
}

/* ---- the token and redirects ---- */

static void the_token_stays_with_the_hub(void **state) {
    fixture *f = *state;
    f->opt.token = "hf_secret";
    f->hub.token = "hf_secret";
    f->hub.storage = &f->storage;
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_whole(f);
    assert_int_equal(f->hub.with_token, f->hub.requests);
    assert_int_equal(f->storage.requests, 1);
    assert_int_equal(f->storage.with_token, 0);
    /* resumed through the storage, too: the redirect is asked for anew each time */
    mock_hub_put_noise(&f->hub, "model.safetensors", 200000, true);
    order(weights(f), 2, 70000);
    f->opt.refresh = true;
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_whole(f);
    assert_int_equal(weights(f)->sent, 200000);
    assert_int_equal(f->storage.requests, 4);
    assert_int_equal(f->storage.with_token, 0);
}

static void an_expired_address_is_asked_for_again(void **state) {
    fixture *f = *state;
    f->hub.storage = &f->storage;
    order_status(&weights(f)->fault, 1, 403, NULL, NULL);
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_whole(f);
    order_status(&mock_hub_put_noise(&f->hub, "model.safetensors", 2000, true)->fault, -1, 404, NULL, NULL);
    assert_refused(f, TD_E_IO, "org/name: model.safetensors: the storage answers 404");
}

static void redirects_end(void **state) {
    fixture *f = *state;
    f->hub.storage_url = "file:///etc";
    assert_refused(f, TD_E_FORMAT,
                   "org/name: model.safetensors: the hub redirects to something that is no http(s) URL");
    char url[200];
    snprintf(url, sizeof url, "%s/org/name/resolve/" MOCK_COMMIT "/model.safetensors?", f->hub.url);
    f->hub.storage_url = url;
    assert_refused(f, TD_E_IO, "org/name: model.safetensors: more than 10 redirects");
}

/* ---- TLS ---- */

static void certificates_are_verified(void **state) {
    fixture *f = *state;
    char *cert, *key, *path;
    size_t n;
    td_error err;
    mock_hub tls;
    if (MHD_is_feature_supported(MHD_FEATURE_TLS) != MHD_YES)
        skip();
    assert_int_equal(td_file_read(TD_FIXTURES "/hub/cert.pem", 10000, &cert, &n, &err), TD_OK);
    assert_int_equal(td_file_read(TD_FIXTURES "/hub/key.pem", 10000, &key, &n, &err), TD_OK);
    assert_true(mock_hub_open(&tls, cert, key));
    mock_hub_put(&tls, "config.json", "{}", 2, false);
    mock_hub_put_noise(&tls, "model.safetensors", 3000, true);
    f->opt.endpoint = tls.url;
    assert_int_equal(td_hub_fetch("org/name", &f->opt, &path, &err), TD_E_IO);
    assert_non_null(strstr(err.message, "certificate"));
    assert_int_equal(tls.requests, 0);
    f->opt.ca_file = TD_FIXTURES "/hub/cert.pem";
    /* from here to a storage that everybody can listen to: no */
    tls.storage = &f->storage;
    f->storage.behind = &tls;
    assert_int_equal(td_hub_fetch("org/name", &f->opt, &path, &err), TD_E_FORMAT);
    assert_non_null(strstr(err.message, "which is not encrypted"));
    assert_int_equal(f->storage.requests, 0);
    tls.storage = NULL;
    if (td_hub_fetch("org/name", &f->opt, &path, &err) != TD_OK)
        fail_msg("%s", err.message);
    td_free(path);
    mock_hub_close(&tls);
    td_free(cert);
    td_free(key);
}

/* ---- disks ---- */

static void a_disk_without_room_is_told_before(void **state) {
    fixture *f = *state;
    char *path;
    td_error err;
    unsigned long long needed, room;
    weights(f)->listed_size = 1ull << 60;
    assert_int_equal(td_hub_fetch("org/name", &f->opt, &path, &err), TD_E_LIMIT);
    assert_non_null(strstr(err.message, "org/name: not enough room for it in "));
    assert_int_equal(sscanf(strstr(err.message, "/hub: ") + 6, "%llu bytes needed, %llu free", &needed, &room), 2);
    assert_int_equal(needed, (1ull << 60) + 9 + 2 + (16u << 20));
    struct statvfs fs;
    assert_int_equal(statvfs(f->dir, &fs), 0);
    assert_in_range(room, 1, (uint64_t)fs.f_blocks * fs.f_frsize);
    for (size_t i = 0; i < f->hub.n_files; i++)
        assert_int_equal(f->hub.files[i].requests, 0);
    weights(f)->listed_size = INT64_MAX;
    mock_hub_file(&f->hub, "config.json")->listed_size = INT64_MAX;
    mock_hub_file(&f->hub, "tokenizer.json")->listed_size = INT64_MAX;
    assert_refused(f, TD_E_FORMAT, "org/name: the sizes of its files make no sense");
}

/* A write that fails in the middle: a ceiling on the size of files stands in for a full disk. */
static void a_disk_that_fills_up_keeps_what_there_is(void **state) {
    fixture *f = *state;
    struct rlimit old, low;
    char *path;
    td_error err;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_IGN);
    low = (struct rlimit){.rlim_cur = 1000001, .rlim_max = old.rlim_max};
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    td_status st = td_hub_fetch("org/name", &f->opt, &path, &err);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    signal(SIGXFSZ, SIG_DFL);
    assert_int_equal(st, TD_E_LIMIT);
    assert_non_null(strstr(err.message, "org/name: model.safetensors: cannot write to "));
    assert_non_null(strstr(err.message, "(File too large): 1999999 more bytes needed, "));
    assert_int_equal(weights(f)->requests, 1); /* no use in trying again */
    assert_int_equal(size_at(blob(f, weights(f), ".incomplete")), 1000001);
    assert_fetched_as(f, "org/name", MOCK_COMMIT);
    assert_whole(f);
    assert_int_equal(weights(f)->from, 1000001);
}

static void a_cache_that_cannot_be_written(void **state) {
    fixture *f = *state;
    char *path;
    td_error err;
    put_text(f->dir, "hub", "a file where the cache should be");
    assert_int_equal(td_hub_fetch("org/name", &f->opt, &path, &err), TD_E_IO);
    assert_non_null(strstr(err.message, "cannot make the directory "));
}

/* ---- two at once ---- */

static void *fetch_in_thread(void *user) {
    td_hub_options o = *(td_hub_options *)user;
    char *path = NULL;
    o.log = NULL; /* the fixture's is for one thread */
    o.progress = NULL;
    td_status st = td_hub_fetch("org/name", &o, &path, NULL);
    td_free(path);
    return (void *)(intptr_t)st;
}

static void two_that_want_the_same_fetch_it_once(void **state) {
    fixture *f = *state;
    pthread_t threads[4];
    order(weights(f), 2, 1000000);
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, fetch_in_thread, &f->opt), 0);
    for (int i = 0; i < 4; i++) {
        void *st;
        pthread_join(threads[i], &st);
        assert_int_equal((intptr_t)st, TD_OK);
    }
    assert_whole(f);
    assert_int_equal(weights(f)->sent, WEIGHTS);
    assert_int_equal(mock_hub_file(&f->hub, "config.json")->requests, 1);
    assert_int_equal(entries(f), 3 * 3 + 1);
}

/* ---- memory ---- */

static void survives_every_failed_allocation(void **state) {
    fixture *f = *state;
    f->hub.storage = &f->storage;
    f->opt.refresh = true;
    f->opt.progress = NULL;
    mock_hub_put(&f->hub, INDEX, "{\"weight_map\":{\"a\":\"model.safetensors\"}}", 40, false);
    mock_hub_put_noise(&f->hub, "model.safetensors", 3000, true);
    for (unsigned start = 0; start < 2; start++) { /* nothing there yet; then everything */
        unsigned k = 0, benign = 0;
        for (;; k++) {
            char *path;
            td_error err = {0};
            long live = td_alloc_live();
            td_alloc_fail_at(k);
            td_status st = td_hub_fetch("org/name", &f->opt, &path, &err);
            bool struck = td_alloc_failed();
            td_alloc_fail_at(-1);
            td_free(path);
            assert_int_equal(td_alloc_live(), live);
            if (!struck) {
                assert_int_equal(st, TD_OK);
                break;
            }
            /* TD_OK: the failure was benign, a file that could not be looked for was taken for missing */
            if (st != TD_E_NOMEM && st != TD_OK)
                fail_msg("allocation %u: %s, %s", k, td_status_name(st), err.message);
            benign += st == TD_OK;
        }
        assert_in_range(k, 20, 200);
        assert_in_range(benign, 0, k / 3);
    }
    assert_linked(f, "model.safetensors");
}

#define HUB_TEST(name) cmocka_unit_test_setup_teardown(name, set_up, tear_down)

int main(void) {
    const struct CMUnitTest tests[] = {
        HUB_TEST(a_model_lies_as_other_tools_expect_it),
        HUB_TEST(only_shards_of_the_index_are_fetched),
        HUB_TEST(a_gguf_file_alone_is_fetched),
        HUB_TEST(files_that_a_pattern_names_come_too),
        HUB_TEST(a_new_commit_fetches_what_changed),
        HUB_TEST(a_mirror_that_lists_names_alone_is_enough),
        HUB_TEST(no_request_without_need),
        HUB_TEST(a_cut_connection_goes_on_where_it_was),
        HUB_TEST(attempts_are_bounded_and_progress_starts_them_anew),
        HUB_TEST(a_killed_process_leaves_what_it_had),
        HUB_TEST(a_stopped_download_keeps_what_it_had),
        HUB_TEST(a_connection_that_brings_nothing_is_cut),
        HUB_TEST(a_start_that_is_damaged_is_thrown_away_once),
        HUB_TEST(a_start_of_any_length),
        HUB_TEST(a_server_that_knows_no_ranges_starts_over),
        HUB_TEST(a_range_that_was_not_asked_for_is_refused),
        HUB_TEST(a_wrong_checksum_removes_the_file),
        HUB_TEST(sizes_that_do_not_agree),
        HUB_TEST(refusals_say_what_to_do),
        HUB_TEST(busy_servers_are_asked_again),
        HUB_TEST(a_hub_that_is_not_there),
        HUB_TEST(hostile_listings_write_nothing),
        HUB_TEST(the_token_stays_with_the_hub),
        HUB_TEST(an_expired_address_is_asked_for_again),
        HUB_TEST(redirects_end),
        HUB_TEST(certificates_are_verified),
        HUB_TEST(a_disk_without_room_is_told_before),
        HUB_TEST(a_disk_that_fills_up_keeps_what_there_is),
        HUB_TEST(a_cache_that_cannot_be_written),
        HUB_TEST(two_that_want_the_same_fetch_it_once),
        HUB_TEST(survives_every_failed_allocation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
