/* support_format.h - what the format tests share: a temporary directory, files in it, and errors compared whole. */
#ifndef TD_TESTS_SUPPORT_FORMAT_H
#define TD_TESTS_SUPPORT_FORMAT_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "base/buf.h"
#include "format/checkpoint.h"

/* cmocka setup and teardown: *state is the path of a fresh directory (no trailing slash), removed afterwards. */
int temp_dir_setup(void **state);
int temp_dir_teardown(void **state);

/* "dir/name" in a buffer that lives until the 8th next call. */
const char *in_dir(const char *dir, const char *name);
/* Writes dir/name; missing parent directories are made. */
void put_file(const char *dir, const char *name, const void *bytes, size_t n);
void put_text(const char *dir, const char *name, const char *text);

/* A safetensors file out of its header text and `n_data` bytes of data (0, 1, 2, ...). Free with td_buf_free. */
td_buf file_of(const char *header, size_t n_data);

/* Writes dir/name with the writer. */
void put_tensors(const char *dir, const char *name, const td_tensor *tensors, size_t n);

/* Opens a checkpoint that must open. */
td_checkpoint *open_ok(const char *path);

/* The status of a call and its message: `want` is the whole message, after "prefix" (may be ""). */
void assert_failed(td_status st, td_status want_st, const td_error *err, const char *prefix, const char *want);

/* Routes jansson's allocations through td_malloc, so that a sweep reaches them. */
void count_jansson(void);

#endif
