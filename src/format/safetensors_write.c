/* safetensors_write.c - the writer: a complete file or none.
 *
 * Everything is checked before the first byte: what is written here must be readable by the strict reader. The bytes
 * go to `path`.tmp, which is synced and then renamed over `path`, so that a crash or a full disk leaves the old file
 * (or no file) and never half of a new one. */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "format/json_scan.h"
#include "format/safetensors.h"

/* ---- the header ---- */

/* A JSON string; multi-byte characters stand for themselves. */
static void put_string(td_buf *b, const char *s) {
    (void)td_buf_putc(b, '"');
    for (; *s; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '"' || c == '\\')
            (void)td_buf_putc(b, '\\');
        if (c < 0x20)
            (void)td_buf_printf(b, "\\u%04x", c);
        else
            (void)td_buf_putc(b, (char)c);
    }
    (void)td_buf_putc(b, '"');
}

static void put_entry(td_buf *b, const td_tensor *t, uint64_t begin) {
    char shape[TD_SHAPE_TEXT_SIZE];
    put_string(b, t->name);
    (void)td_buf_printf(b, ":{\"dtype\":\"%s\",\"shape\":%s,\"data_offsets\":[%" PRIu64 ",%" PRIu64 "]}",
                        td_dtype_name(t->dtype), td_shape_text(t->n_dims, t->dim, shape, sizeof shape), begin,
                        begin + t->size);
}

static td_status build_header(td_buf *b, const td_tensor *tensors, size_t n, const char *format) {
    uint64_t at = 0;
    (void)td_buf_putc(b, '{');
    if (format) {
        (void)td_buf_puts(b, "\"__metadata__\":{\"format\":");
        put_string(b, format);
        (void)td_buf_puts(b, n ? "}," : "}");
    }
    for (size_t i = 0; i < n; i++) {
        if (i > 0)
            (void)td_buf_putc(b, ',');
        put_entry(b, &tensors[i], at);
        at += tensors[i].size;
    }
    (void)td_buf_putc(b, '}');
    while (!b->failed && b->size % 8 != 0)
        (void)td_buf_putc(b, ' ');
    return b->failed;
}

/* ---- what a reader would refuse ---- */

static td_status refuse(const td_tensor *t, td_error *err, const char *why) {
    char shown[TD_SHOWN_SIZE];
    return td_fail(err, TD_E_ARG, "tensor \"%s\": %s", td_shown(shown, t->name, strlen(t->name)), why);
}

static td_status check_tensor(const td_tensor *t, td_error *err) {
    uint64_t bytes;
    if (!t->name)
        return td_fail(err, TD_E_ARG, "a tensor without a name");
    if (strlen(t->name) > TD_SAFETENSORS_MAX_NAME)
        return refuse(t, err, "the name is too long");
    if (strcmp(t->name, "__metadata__") == 0 || !td_json_utf8_valid(t->name, strlen(t->name)))
        return refuse(t, err, "not a name for a tensor");
    if ((unsigned)t->dtype >= TD_DTYPE_COUNT || t->n_dims < 0 || t->n_dims > TD_TENSOR_MAX_DIMS)
        return refuse(t, err, "unknown dtype or too many dimensions");
    if (!td_tensor_byte_size(t->dtype, t->n_dims, t->dim, &bytes) || bytes != t->size || (t->size && !t->data))
        return refuse(t, err, "size, shape and data do not agree");
    return TD_OK;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static td_status check_tensors(const td_tensor *tensors, size_t n, td_error *err) {
    uint64_t total = 0;
    for (size_t i = 0; i < n; i++) {
        TD_TRY(check_tensor(&tensors[i], err));
        if (__builtin_add_overflow(total, tensors[i].size, &total))
            return refuse(&tensors[i], err, "the file would exceed 2^64 bytes");
    }
    const char **names = td_calloc(n, sizeof *names);
    if (!names)
        return td_fail(err, TD_E_NOMEM, "out of memory for %zu tensor names", n);
    for (size_t i = 0; i < n; i++)
        names[i] = tensors[i].name;
    qsort(names, n, sizeof *names, by_name);
    td_status st = TD_OK;
    for (size_t i = 1; i < n && st == TD_OK; i++)
        if (strcmp(names[i - 1], names[i]) == 0) {
            char shown[TD_SHOWN_SIZE];
            st = td_fail(err, TD_E_ARG, "tensor \"%s\": the name occurs twice",
                         td_shown(shown, names[i], strlen(names[i])));
        }
    td_free(names);
    return st;
}

/* ---- the file ---- */

static bool write_all(int fd, const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    while (n > 0) {
        ssize_t put = write(fd, p, n < (size_t)1 << 30 ? n : (size_t)1 << 30);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return false;
        p += put;
        n -= (size_t)put;
    }
    return true;
}

static bool write_parts(int fd, const td_buf *header, const td_tensor *tensors, size_t n) {
    uint8_t length[8];
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)header->size >> 8 * i);
    if (!write_all(fd, length, sizeof length) || !write_all(fd, header->data, header->size))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!write_all(fd, tensors[i].data, tensors[i].size))
            return false;
    return fsync(fd) == 0;
}

/* Makes the rename itself durable. Some filesystems cannot sync a directory; the file is in place all the same. */
static void sync_directory(char *path) {
    char *slash = strrchr(path, '/');
    const char *dir = ".";
    if (slash) {
        slash[slash == path] = '\0';
        dir = path;
    }
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return;
    (void)fsync(fd);
    close(fd);
}

static td_status write_file(const char *path, const td_buf *header, const td_tensor *tensors, size_t n, td_error *err) {
    td_buf name;
    td_buf_init(&name, strlen(path) + 5);
    (void)td_buf_printf(&name, "%s.tmp", path);
    char *tmp = td_buf_steal(&name);
    if (!tmp)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", path);
    int fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0666);
    if (fd < 0) {
        td_status st = td_fail(err, TD_E_IO, "%s: %s", tmp, strerror(errno));
        td_free(tmp);
        return st;
    }
    bool ok = write_parts(fd, header, tensors, n);
    int saved = errno;
    if (close(fd) != 0 && ok) {
        ok = false;
        saved = errno;
    }
    if (ok && rename(tmp, path) != 0) {
        ok = false;
        saved = errno;
    }
    if (ok)
        sync_directory(tmp);
    else
        unlink(tmp);
    td_free(tmp);
    return ok ? TD_OK : td_fail(err, TD_E_IO, "%s: cannot write: %s", path, strerror(saved));
}

td_status td_safetensors_write(const char *path, const td_tensor *tensors, size_t n, const char *format,
                               td_error *err) {
    td_status st = check_tensors(tensors, n, err);
    if (st == TD_OK && format && !td_json_utf8_valid(format, strlen(format)))
        st = td_fail(err, TD_E_ARG, "the format's name is not UTF-8");
    if (st != TD_OK)
        return td_error_prefix(err, st, "%s", path);
    td_buf header;
    td_buf_init(&header, TD_SAFETENSORS_MAX_HEADER);
    st = build_header(&header, tensors, n, format);
    if (st != TD_OK)
        st = td_fail(err, st, "%s: the header of %zu tensors exceeds %u bytes or the memory", path, n,
                     TD_SAFETENSORS_MAX_HEADER);
    else
        st = write_file(path, &header, tensors, n, err);
    td_buf_free(&header);
    return st;
}
