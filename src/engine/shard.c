/* shard.c - see shard.h. */
#include "engine/shard.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"

struct td_shard {
    char *path;
    int fd; /* -1 once finished */
    uint64_t bytes;
};

static td_status io_error(const char *path, td_error *err) {
    return td_fail(err, TD_E_IO, "%s: %s", path, strerror(errno));
}

td_status td_shard_write(const td_shard *shard, uint64_t offset, const void *bytes, size_t n, td_error *err) {
    const char *p = bytes;
    while (n > 0) {
        ssize_t put = pwrite(shard->fd, p, n, (off_t)offset);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return io_error(shard->path, err);
        p += put;
        offset += (uint64_t)put;
        n -= (size_t)put;
    }
    return TD_OK;
}

/* ---- the header ---- */

/* Places the tensors, wide elements first. Offsets count from the start of the data. */
static uint64_t place(const td_tensor *tensors, size_t n, uint64_t *offset) {
    static const unsigned widths[] = {64, 32, 16, 8, 6, 4};
    uint64_t at = 0;
    for (size_t w = 0; w < sizeof widths / sizeof *widths; w++)
        for (size_t i = 0; i < n; i++)
            if (td_dtype_bits(tensors[i].dtype) == widths[w]) {
                offset[i] = at;
                at += tensors[i].size;
            }
    return at;
}

static json_t *describe(const td_tensor *t, uint64_t begin) {
    json_t *shape = json_array();
    for (int d = 0; d < t->n_dims; d++)
        json_array_append_new(shape, json_integer((json_int_t)t->dim[d]));
    return json_pack("{s:s, s:o, s:[I, I]}", "dtype", td_dtype_name(t->dtype), "shape", shape, "data_offsets",
                     (json_int_t)begin, (json_int_t)(begin + t->size));
}

static td_status header_text(const td_shard *shard, const td_tensor *tensors, size_t n, const uint64_t *offset,
                             char **text, td_error *err) {
    *text = NULL;
    json_t *root = json_pack("{s:{s:s}}", "__metadata__", "format", "mlx");
    td_status st = TD_OK;
    for (size_t i = 0; i < n && st == TD_OK; i++) {
        if (json_object_get(root, tensors[i].name))
            st = td_fail(err, TD_E_FORMAT, "%s: two tensors would be named %s", shard->path, tensors[i].name);
        else if (json_object_set_new(root, tensors[i].name, describe(&tensors[i], offset[i])) != 0)
            st = td_fail(err, TD_E_NOMEM, "%s: out of memory for the header", shard->path);
    }
    if (st == TD_OK && (*text = json_dumps(root, JSON_COMPACT)) == NULL)
        st = td_fail(err, TD_E_NOMEM, "%s: out of memory for the header", shard->path);
    json_decref(root);
    return st;
}

/* The length, the text, and spaces up to a multiple of 8; then every offset counts from the start of the file. */
static td_status write_header(td_shard *shard, const char *text, uint64_t data_bytes, uint64_t *offset, size_t n,
                              td_error *err) {
    static const char spaces[8] = "        ";
    uint64_t length = strlen(text), padded = (length + 7) / 8 * 8;
    if (padded > TD_SAFETENSORS_MAX_HEADER)
        return td_fail(err, TD_E_LIMIT, "%s: a header of %llu bytes, at most %u are allowed", shard->path,
                       (unsigned long long)padded, TD_SAFETENSORS_MAX_HEADER);
    uint8_t prefix[8];
    for (int i = 0; i < 8; i++)
        prefix[i] = (uint8_t)(padded >> (8 * i));
    TD_TRY(td_shard_write(shard, 0, prefix, 8, err));
    TD_TRY(td_shard_write(shard, 8, text, length, err));
    TD_TRY(td_shard_write(shard, 8 + length, spaces, padded - length, err));
    for (size_t i = 0; i < n; i++)
        offset[i] += 8 + padded;
    shard->bytes = 8 + padded + data_bytes;
    if (ftruncate(shard->fd, (off_t)shard->bytes) != 0)
        return io_error(shard->path, err);
    return TD_OK;
}

/* ---- life ---- */

td_status td_shard_open(td_shard **out, const char *path, const td_tensor *tensors, size_t n, uint64_t *offset,
                        td_error *err) {
    *out = NULL;
    td_shard *shard = td_calloc(1, sizeof *shard);
    if (shard == NULL)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", path);
    char *text = NULL;
    td_status st = TD_OK;
    shard->fd = -1;
    shard->path = td_strdup(path);
    if (shard->path == NULL) {
        st = td_fail(err, TD_E_NOMEM, "%s: out of memory", path);
        goto fail;
    }
    uint64_t data_bytes = place(tensors, n, offset);
    if ((st = header_text(shard, tensors, n, offset, &text, err)) != TD_OK)
        goto fail;
    shard->fd = open(shard->path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (shard->fd < 0) {
        st = io_error(shard->path, err);
        goto fail;
    }
    if ((st = write_header(shard, text, data_bytes, offset, n, err)) != TD_OK)
        goto fail;
    free(text);
    *out = shard;
    return TD_OK;
fail:
    free(text);
    td_shard_close(&shard);
    return st;
}

uint64_t td_shard_bytes(const td_shard *shard) {
    return shard->bytes;
}

td_status td_shard_finish(td_shard *shard, td_error *err) {
    int fd = shard->fd;
    bool failed = fsync(fd) != 0;
    shard->fd = -1;
    if (close(fd) != 0 || failed)
        return io_error(shard->path, err);
    return TD_OK;
}

void td_shard_close(td_shard **shard) {
    td_shard *s = *shard;
    if (s == NULL)
        return;
    if (s->fd >= 0)
        close(s->fd);
    td_free(s->path);
    td_free(s);
    *shard = NULL;
}
