/* support_format.c */
#define _XOPEN_SOURCE 700
#include "format/support_format.h"

#include <errno.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

int temp_dir_setup(void **state) {
    char pattern[] = "/tmp/td-format-XXXXXX";
    if (!mkdtemp(pattern))
        return -1;
    *state = strdup(pattern);
    return *state ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *st, int flag, struct FTW *walk) {
    (void)st;
    (void)flag;
    (void)walk;
    return remove(path);
}

int temp_dir_teardown(void **state) {
    int failed = nftw(*state, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
    free(*state);
    return failed;
}

const char *in_dir(const char *dir, const char *name) {
    static char ring[8][1024];
    static unsigned next;
    char *out = ring[next++ % 8];
    snprintf(out, sizeof ring[0], "%s/%s", dir, name);
    return out;
}

static void make_parents(char *path) {
    for (char *p = path + 1; *p; p++)
        if (*p == '/') {
            *p = '\0';
            assert_true(mkdir(path, 0777) == 0 || errno == EEXIST);
            *p = '/';
        }
}

void put_file(const char *dir, const char *name, const void *bytes, size_t n) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    make_parents(path);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    assert_int_equal(fclose(f), 0);
}

void put_text(const char *dir, const char *name, const char *text) {
    put_file(dir, name, text, strlen(text));
}

td_buf file_of(const char *header, size_t n_data) {
    td_buf b;
    size_t n = strlen(header);
    td_buf_init(&b, SIZE_MAX / 2);
    for (int i = 0; i < 8; i++)
        assert_int_equal(td_buf_putc(&b, (char)((uint64_t)n >> 8 * i)), TD_OK);
    assert_int_equal(td_buf_append(&b, header, n), TD_OK);
    for (size_t i = 0; i < n_data; i++)
        assert_int_equal(td_buf_putc(&b, (char)i), TD_OK);
    return b;
}

void put_tensors(const char *dir, const char *name, const td_tensor *tensors, size_t n) {
    char path[1024];
    td_error err;
    put_text(dir, name, ""); /* makes the directories */
    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (td_safetensors_write(path, tensors, n, "pt", &err) != TD_OK)
        fail_msg("%s", err.message);
}

td_checkpoint *open_ok(const char *path) {
    td_checkpoint *ck;
    td_error err;
    if (td_checkpoint_open(&ck, path, NULL, &err) != TD_OK)
        fail_msg("%s", err.message);
    return ck;
}

void assert_failed(td_status st, td_status want_st, const td_error *err, const char *prefix, const char *want) {
    char whole[2048];
    snprintf(whole, sizeof whole, "%s%s", prefix, want);
    if (st == TD_OK)
        fail_msg("expected \"%s\", but it succeeded", whole);
    assert_string_equal(err->message, whole);
    assert_string_equal(td_status_name(st), td_status_name(want_st));
    assert_int_equal(err->status, st);
}

void count_jansson(void) {
    json_set_alloc_funcs(td_malloc, td_free);
    json_object_seed(1);
}
