/* test_safetensors_write.c - what is written can be read, and what could not be read is not written. */
#include "format/support_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "format/safetensors.h"

static const uint8_t bytes[64] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16};

static td_tensor tensor(const char *name, td_dtype dtype, int n_dims, uint64_t d0, uint64_t d1, size_t size) {
    return (td_tensor){
        .name = name, .dtype = dtype, .n_dims = n_dims, .dim = {d0, d1}, .data = size ? bytes : NULL, .size = size};
}

static void what_is_written_is_read(void **state) {
    const char *path = in_dir(*state, "out.safetensors");
    const td_tensor tensors[] = {
        tensor("model.norm.weight", TD_DTYPE_F32, 1, 4, 0, 16),
        tensor("na\"me\\with\n\x01 everything \xE2\x82\xAC", TD_DTYPE_BF16, 2, 3, 2, 12),
        tensor("scalar", TD_DTYPE_U8, 0, 0, 0, 1),
        tensor("nothing", TD_DTYPE_I64, 2, 7, 0, 0),
        tensor("", TD_DTYPE_F4, 1, 6, 0, 3),
    };
    enum { N = sizeof tensors / sizeof tensors[0] };
    td_error err;
    td_safetensors *f;
    assert_int_equal(td_safetensors_write(path, tensors, N, "pt", &err), TD_OK);
    assert_int_equal(td_safetensors_open(&f, path, &err), TD_OK);
    assert_int_equal(td_safetensors_count(f), N);
    assert_string_equal(td_safetensors_meta(f, "format"), "pt");
    for (size_t i = 0; i < N; i++) {
        const td_tensor *t = td_safetensors_find(f, tensors[i].name);
        assert_non_null(t);
        assert_int_equal(t->dtype, tensors[i].dtype);
        assert_int_equal(t->n_dims, tensors[i].n_dims);
        assert_memory_equal(t->dim, tensors[i].dim, sizeof t->dim);
        assert_int_equal(t->size, tensors[i].size);
        if (t->size)
            assert_memory_equal(t->data, bytes, t->size);
    }
    assert_int_equal((uintptr_t)td_safetensors_at(f, 0)->data % 8, 0); /* the header is padded; maps are aligned */
    td_safetensors_close(&f);
    assert_false(td_file_exists(in_dir(*state, "out.safetensors.tmp")));
}

static void the_bytes_are_those_of_the_format(void **state) {
    const char *path = in_dir(*state, "out.safetensors");
    const td_tensor t = tensor("a", TD_DTYPE_U8, 1, 2, 0, 2);
    static const char want[] =
        "\x38\0\0\0\0\0\0\0{\"a\":{\"dtype\":\"U8\",\"shape\":[2],\"data_offsets\":[0,2]}}   \1\2";
    td_error err;
    char *data;
    size_t size;
    assert_int_equal(td_safetensors_write(path, &t, 1, NULL, &err), TD_OK);
    assert_int_equal(td_file_read(path, 1000, &data, &size, &err), TD_OK);
    assert_int_equal(size, sizeof want - 1);
    assert_memory_equal(data, want, size);
    td_free(data);
    assert_int_equal(td_safetensors_write(path, NULL, 0, "pt", &err), TD_OK);
    assert_int_equal(td_file_read(path, 1000, &data, &size, &err), TD_OK);
    assert_int_equal(size, 8 + 32);
    assert_memory_equal(data + 8, "{\"__metadata__\":{\"format\":\"pt\"}}", 32);
    td_free(data);
}

static void a_reference_checkpoint_survives_a_round_trip(void **state) {
    const char *path = in_dir(*state, "copy.safetensors");
    td_safetensors *a, *b;
    td_error err;
    assert_int_equal(td_safetensors_open(&a, TD_FIXTURES "/vectors/gemma4-ple-assistant/model.safetensors", &err),
                     TD_OK);
    size_t n = td_safetensors_count(a);
    td_tensor *tensors = calloc(n, sizeof *tensors);
    for (size_t i = 0; i < n; i++)
        tensors[i] = *td_safetensors_at(a, n - 1 - i); /* backwards: data order is the array's */
    assert_int_equal(td_safetensors_write(path, tensors, n, "pt", &err), TD_OK);
    assert_int_equal(td_safetensors_open(&b, path, &err), TD_OK);
    assert_int_equal(td_safetensors_count(b), n);
    for (size_t i = 0; i < n; i++) {
        const td_tensor *t = td_safetensors_at(b, i);
        assert_string_equal(t->name, tensors[i].name);
        assert_int_equal(t->size, tensors[i].size);
        assert_memory_equal(t->data, tensors[i].data, t->size);
    }
    td_safetensors_close(&a);
    td_safetensors_close(&b);
    free(tensors);
}

static void what_no_reader_accepts_is_not_written(void **state) {
    static char long_name[TD_SAFETENSORS_MAX_NAME + 2];
    memset(long_name, 'n', sizeof long_name - 1);
    const td_tensor ok = tensor("b", TD_DTYPE_U8, 0, 0, 0, 1);
    td_tensor no_data = tensor("a", TD_DTYPE_U8, 1, 4, 0, 4);
    no_data.data = NULL;
    const struct {
        td_tensor t;
        const char *want;
    } cases[] = {
        {tensor(NULL, TD_DTYPE_U8, 0, 0, 0, 1), "a tensor without a name"},
        {tensor("__metadata__", TD_DTYPE_U8, 0, 0, 0, 1), "tensor \"__metadata__\": not a name for a tensor"},
        {tensor("\xFF", TD_DTYPE_U8, 0, 0, 0, 1), "tensor \"\xFF\": not a name for a tensor"},
        {tensor("a", TD_DTYPE_COUNT, 0, 0, 0, 1), "tensor \"a\": unknown dtype or too many dimensions"},
        {tensor("a", TD_DTYPE_U8, 9, 1, 1, 1), "tensor \"a\": unknown dtype or too many dimensions"},
        {tensor("a", TD_DTYPE_U8, -1, 1, 1, 1), "tensor \"a\": unknown dtype or too many dimensions"},
        {tensor("a", TD_DTYPE_F32, 1, 4, 0, 4), "tensor \"a\": size, shape and data do not agree"},
        {tensor("a", TD_DTYPE_U8, 2, UINT64_C(1) << 40, UINT64_C(1) << 40, 4),
         "tensor \"a\": size, shape and data do not agree"},
        {no_data, "tensor \"a\": size, shape and data do not agree"},
        {tensor("b", TD_DTYPE_U8, 0, 0, 0, 1), "tensor \"b\": the name occurs twice"},
    };
    const char *path = in_dir(*state, "out.safetensors");
    td_error err;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const td_tensor tensors[] = {ok, cases[i].t};
        char prefix[1100];
        snprintf(prefix, sizeof prefix, "%s: ", path);
        assert_failed(td_safetensors_write(path, tensors, 2, NULL, &err), TD_E_ARG, &err, prefix, cases[i].want);
    }
    const td_tensor too_long = tensor(long_name, TD_DTYPE_U8, 0, 0, 0, 1);
    assert_int_equal(td_safetensors_write(path, &too_long, 1, NULL, &err), TD_E_ARG);
    assert_non_null(strstr(err.message, "...\": the name is too long"));
    assert_failed(td_safetensors_write(path, &ok, 1, "\xFF", &err), TD_E_ARG, &err, path,
                  ": the format's name is not UTF-8");
    assert_false(td_file_exists(path));
}

static void a_failure_leaves_the_old_file(void **state) {
    const td_tensor t = tensor("a", TD_DTYPE_U8, 1, 2, 0, 2);
    const char *path = in_dir(*state, "out.safetensors"), *tmp = in_dir(*state, "out.safetensors.tmp");
    const char *lost = in_dir(*state, "none/out.safetensors"), *taken = in_dir(*state, "taken");
    td_error err;
    put_text(*state, "out.safetensors", "old");
    assert_int_equal(mkdir(tmp, 0700), 0);
    assert_failed(td_safetensors_write(path, &t, 1, NULL, &err), TD_E_IO, &err, tmp, ": Is a directory");
    assert_int_equal(rmdir(tmp), 0);
    assert_int_equal(symlink(path, tmp), 0); /* a planted link is not followed */
    assert_int_equal(td_safetensors_write(path, &t, 1, NULL, &err), TD_E_IO);
    assert_int_equal(unlink(tmp), 0);
    put_text(*state, "taken/x", "");
    assert_failed(td_safetensors_write(taken, &t, 1, NULL, &err), TD_E_IO, &err, taken,
                  ": cannot write: Is a directory");
    assert_false(td_file_exists(in_dir(*state, "taken.tmp")));
    assert_int_equal(td_safetensors_write(lost, &t, 1, NULL, &err), TD_E_IO);
    char *data;
    size_t size;
    assert_int_equal(td_file_read(path, 100, &data, &size, &err), TD_OK);
    assert_string_equal(data, "old");
    td_free(data);
}

static void survives_every_failed_allocation(void **state) {
    const char *path = in_dir(*state, "out.safetensors");
    const td_tensor tensors[] = {tensor("a", TD_DTYPE_U8, 1, 2, 0, 2), tensor("b", TD_DTYPE_U8, 1, 2, 0, 2)};
    unsigned k = 0;
    for (;; k++) {
        td_error err;
        long live = td_alloc_live();
        td_alloc_fail_at(k);
        td_status st = td_safetensors_write(path, tensors, 2, "pt", &err);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        assert_int_equal(td_alloc_live(), live);
        if (!struck) {
            assert_int_equal(st, TD_OK);
            break;
        }
        assert_int_equal(st, TD_E_NOMEM);
        assert_false(td_file_exists(path));
    }
    assert_true(k >= 3);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_written_is_read, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(the_bytes_are_those_of_the_format, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(a_reference_checkpoint_survives_a_round_trip, temp_dir_setup,
                                        temp_dir_teardown),
        cmocka_unit_test_setup_teardown(what_no_reader_accepts_is_not_written, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(a_failure_leaves_the_old_file, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(survives_every_failed_allocation, temp_dir_setup, temp_dir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
