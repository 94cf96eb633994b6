/* test_file.c - whole files, maps and paths: contents to the byte, and an error that names the path for everything that
 * is no regular file, without ever waiting for one. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/file.h"

typedef struct place {
    char dir[64];
    char *path[8];
    int n;
} place;

static int set_up(void **state) {
    place *p = test_calloc(1, sizeof *p);
    snprintf(p->dir, sizeof p->dir, "/tmp/tandem-file-XXXXXX");
    assert_non_null(mkdtemp(p->dir));
    *state = p;
    return 0;
}

static int tear_down(void **state) {
    place *p = *state;
    for (int i = 0; i < p->n; i++) {
        unlink(p->path[i]);
        td_free(p->path[i]);
    }
    rmdir(p->dir);
    test_free(p);
    return 0;
}

static const char *in_place(place *p, const char *name) {
    assert_true(p->n < 8);
    return p->path[p->n++] = td_path_join(p->dir, name);
}

static const char *put(place *p, const char *name, const void *bytes, size_t n) {
    const char *path = in_place(p, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(bytes, 1, n, f), n);
    fclose(f);
    return path;
}

/* Both ways of reading must fail alike. */
static void both_fail(const char *path, td_status want, const char *reason) {
    char message[300];
    snprintf(message, sizeof message, "%s: %s", path, reason);
    char *data = (char *)message;
    size_t size = 7;
    td_map map = {(const uint8_t *)message, 7};
    td_error err = {0};
    assert_int_equal(td_file_read(path, 100, &data, &size, &err), want);
    assert_string_equal(err.message, message);
    assert_null(data);
    assert_int_equal(size, 0);
    err = (td_error){0};
    assert_int_equal(td_map_open(&map, path, &err), want);
    assert_string_equal(err.message, message);
    assert_null(map.data);
    assert_int_equal(map.size, 0);
    assert_int_equal(td_map_open(&map, path, NULL), want);
}

/* ---- contents ---- */

static void a_file_is_read_to_the_byte(void **state) {
    static const size_t sizes[] = {0, 1, 4095, 4096, 4097, 100000};
    for (size_t i = 0; i < 6; i++) {
        uint8_t *bytes = test_malloc(sizes[i] + 1);
        for (size_t j = 0; j < sizes[i]; j++)
            bytes[j] = (uint8_t)(j * 31 + j / 256);
        char name[16], *data;
        snprintf(name, sizeof name, "f%zu", i);
        const char *path = put(*state, name, bytes, sizes[i]);
        size_t size;
        assert_int_equal(td_file_read(path, sizes[i], &data, &size, NULL), TD_OK); /* the ceiling is legal */
        assert_int_equal(size, sizes[i]);
        assert_memory_equal(data, bytes, sizes[i]);
        assert_int_equal(data[size], '\0');
        td_free(data);
        td_map map;
        assert_int_equal(td_map_open(&map, path, NULL), TD_OK);
        assert_int_equal(map.size, sizes[i]);
        assert_int_equal(map.data == NULL, sizes[i] == 0);
        if (sizes[i])
            assert_memory_equal(map.data, bytes, sizes[i]);
        td_map_close(&map);
        assert_null(map.data);
        assert_int_equal(map.size, 0);
        td_map_close(&map);
        test_free(bytes);
    }
}

static void a_file_over_the_ceiling_is_not_read(void **state) {
    const char *path = put(*state, "big", "0123456789", 10);
    char want[200], *data;
    size_t size;
    td_error err;
    assert_int_equal(td_file_read(path, 9, &data, &size, &err), TD_E_LIMIT);
    snprintf(want, sizeof want, "%s: 10 bytes, expected at most 9", path);
    assert_string_equal(err.message, want);
    assert_null(data);
    assert_int_equal(size, 0);
    assert_int_equal(td_file_read(path, 0, &data, &size, NULL), TD_E_LIMIT);
}

/* ---- what is no file ---- */

static void what_is_not_there_is_not_found(void **state) {
    place *p = *state;
    char path[128];
    snprintf(path, sizeof path, "%s/nothing", p->dir);
    both_fail(path, TD_E_NOTFOUND, "No such file or directory");
    put(p, "file", "x", 1);
    snprintf(path, sizeof path, "%s/file/below", p->dir);
    both_fail(path, TD_E_NOTFOUND, "Not a directory");
    both_fail("", TD_E_NOTFOUND, "No such file or directory");
    const char *link = in_place(p, "loose");
    assert_int_equal(symlink("nowhere", link), 0);
    both_fail(link, TD_E_NOTFOUND, "No such file or directory");
}

static void what_is_no_regular_file_is_refused(void **state) {
    place *p = *state;
    both_fail(p->dir, TD_E_IO, "not a regular file");
    both_fail("/dev/zero", TD_E_IO, "not a regular file");
    const char *fifo = in_place(p, "fifo");
    assert_int_equal(mkfifo(fifo, 0600), 0);
    both_fail(fifo, TD_E_IO, "not a regular file"); /* and nobody ever writes to it */
}

static void what_may_not_be_read_is_refused(void **state) {
    place *p = *state;
    const char *path = put(p, "secret", "x", 1);
    assert_int_equal(chmod(path, 0), 0);
    if (access(path, R_OK) == 0)
        skip(); /* root reads everything */
    both_fail(path, TD_E_IO, "Permission denied");
}

static void a_link_to_a_file_is_the_file(void **state) {
    place *p = *state;
    put(p, "file", "abc", 3);
    const char *link = in_place(p, "link");
    assert_int_equal(symlink("file", link), 0);
    char *data;
    size_t size;
    assert_int_equal(td_file_read(link, 100, &data, &size, NULL), TD_OK);
    assert_string_equal(data, "abc");
    td_free(data);
    assert_true(td_file_exists(link));
}

/* ---- paths ---- */

static void files_and_directories_are_told_apart(void **state) {
    place *p = *state;
    const char *path = put(p, "file", "", 0);
    assert_true(td_file_exists(path));
    assert_false(td_dir_exists(path));
    assert_true(td_dir_exists(p->dir));
    assert_false(td_file_exists(p->dir));
    assert_false(td_file_exists("/nowhere/at/all"));
    assert_false(td_dir_exists("/nowhere/at/all"));
    assert_false(td_file_exists(""));
}

static void paths_are_joined_with_one_slash(void **state) {
    (void)state;
    static const struct {
        const char *dir, *name, *want;
    } cases[] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"},    {"a///", "b", "a/b"}, {"/a/b", "c.d", "/a/b/c.d"},
        {".", "b", "./b"}, {"a", "b/c", "a/b/c"}, {"a", "", "a/"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char *path = td_path_join(cases[i].dir, cases[i].name);
        assert_string_equal(path, cases[i].want);
        td_free(path);
    }
}

static void no_memory_is_said(void **state) {
    const char *path = put(*state, "file", "abc", 3);
    char *data, want[200];
    size_t size;
    td_error err;
    long live = td_alloc_live();
    td_alloc_fail_at(0);
    td_status st = td_file_read(path, 100, &data, &size, &err);
    td_alloc_fail_at(0);
    char *joined = td_path_join("a", "b");
    td_alloc_fail_at(-1);
    assert_int_equal(st, TD_E_NOMEM);
    snprintf(want, sizeof want, "%s: out of memory for 3 bytes", path);
    assert_string_equal(err.message, want);
    assert_null(data);
    assert_null(joined);
    assert_int_equal(td_alloc_live(), live);
}

int main(void) {
#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(a_file_is_read_to_the_byte),
        CASE(a_file_over_the_ceiling_is_not_read),
        CASE(what_is_not_there_is_not_found),
        CASE(what_is_no_regular_file_is_refused),
        CASE(what_may_not_be_read_is_refused),
        CASE(a_link_to_a_file_is_the_file),
        CASE(files_and_directories_are_told_apart),
        CASE(paths_are_joined_with_one_slash),
        CASE(no_memory_is_said),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
