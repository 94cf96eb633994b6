/* gguf_write.c - the GGUF writer: header into a buffer, then everything to a file that is renamed when it is whole. */
#include "format/gguf_write.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "tensor/blocks.h"

#define HEADER_CEILING ((size_t)1 << 30)
#define ALIGNMENT TD_GGUF_DEFAULT_ALIGNMENT
#define PIECE ((size_t)1 << 20) /* bytes asked for at once */

void td_gguf_writer_init(td_gguf_writer *w) {
    *w = (td_gguf_writer){0};
    td_buf_init(&w->pairs, HEADER_CEILING);
}

void td_gguf_writer_free(td_gguf_writer *w) {
    td_buf_free(&w->pairs);
}

/* ---- metadata ---- */

static void put(td_buf *b, const void *bytes, size_t n) {
    (void)td_buf_append(b, bytes, n);
}

static void put_text(td_buf *b, const char *str, size_t size) {
    uint64_t n = size;
    put(b, &n, 8);
    if (size)
        put(b, str, size);
}

static void put_type(td_buf *b, td_gguf_type type) {
    uint32_t t = type;
    put(b, &t, 4);
}

static void put_key(td_gguf_writer *w, const char *key, td_gguf_type type) {
    put_text(&w->pairs, key, strlen(key));
    put_type(&w->pairs, type);
    w->n_pairs++;
}

void td_gguf_put_u32(td_gguf_writer *w, const char *key, uint32_t v) {
    put_key(w, key, TD_GGUF_U32);
    put(&w->pairs, &v, 4);
}

void td_gguf_put_f32(td_gguf_writer *w, const char *key, float v) {
    put_key(w, key, TD_GGUF_F32);
    put(&w->pairs, &v, 4);
}

void td_gguf_put_bool(td_gguf_writer *w, const char *key, bool v) {
    put_key(w, key, TD_GGUF_BOOL);
    (void)td_buf_putc(&w->pairs, v ? 1 : 0);
}

void td_gguf_put_string(td_gguf_writer *w, const char *key, const char *str, size_t size) {
    put_key(w, key, TD_GGUF_STRING);
    put_text(&w->pairs, str, size);
}

static void begin_array(td_gguf_writer *w, const char *key, td_gguf_type type, uint64_t n) {
    put_key(w, key, TD_GGUF_ARRAY);
    put_type(&w->pairs, type);
    put(&w->pairs, &n, 8);
}

static size_t width_of(td_gguf_type type) {
    switch (type) {
    case TD_GGUF_U8:
    case TD_GGUF_I8:
    case TD_GGUF_BOOL:
        return 1;
    case TD_GGUF_U16:
    case TD_GGUF_I16:
        return 2;
    case TD_GGUF_U64:
    case TD_GGUF_I64:
    case TD_GGUF_F64:
        return 8;
    default:
        return 4;
    }
}

void td_gguf_put_array(td_gguf_writer *w, const char *key, td_gguf_type type, const void *v, uint64_t n) {
    begin_array(w, key, type, n);
    if (n)
        put(&w->pairs, v, (size_t)n * width_of(type));
}

void td_gguf_begin_strings(td_gguf_writer *w, const char *key, uint64_t n) {
    begin_array(w, key, TD_GGUF_STRING, n);
}

void td_gguf_add_string(td_gguf_writer *w, const char *str, size_t size) {
    put_text(&w->pairs, str, size);
}

/* ---- tensors ---- */

static td_status check_tensor(const td_tensor *t, td_error *err) {
    uint64_t elements = 1;
    bool blocks = t->dtype == TD_DTYPE_BLOCKS;
    uint64_t per_block = blocks ? td_block_elements(t->blocks) : 1;
    uint64_t block = blocks ? td_block_bytes(t->blocks) : td_dtype_bits(t->dtype) / 8;
    if (strlen(t->name) > TD_GGUF_MAX_NAME || t->n_dims < 1 || t->n_dims > 4 ||
        td_gguf_ggml_type(t->dtype, t->blocks) < 0)
        return td_fail(err, TD_E_ARG, "tensor %s: a name, rank or type that GGUF does not have", t->name);
    for (int i = 0; i < t->n_dims; i++)
        if (t->dim[i] == 0 || __builtin_mul_overflow(elements, t->dim[i], &elements))
            return td_fail(err, TD_E_ARG, "tensor %s: an empty or overflowing shape", t->name);
    if (t->dim[t->n_dims - 1] % per_block || elements / per_block > t->size / block ||
        elements / per_block * block != t->size)
        return td_fail(err, TD_E_ARG, "tensor %s: size, shape and type do not agree", t->name);
    return TD_OK;
}

static uint64_t padding(uint64_t at) {
    return (ALIGNMENT - at % ALIGNMENT) % ALIGNMENT;
}

static void put_info(td_buf *b, const td_tensor *t, uint64_t offset) {
    uint32_t n_dims = (uint32_t)t->n_dims, type = (uint32_t)td_gguf_ggml_type(t->dtype, t->blocks);
    put_text(b, t->name, strlen(t->name));
    put(b, &n_dims, 4);
    for (int i = t->n_dims - 1; i >= 0; i--)
        put(b, &t->dim[i], 8);
    put(b, &type, 4);
    put(b, &offset, 8);
}

static td_status build_header(const td_gguf_writer *w, td_buf *b, const td_tensor *tensors, size_t n, td_error *err) {
    const uint32_t version = 3;
    uint64_t n_tensors = n, offset = 0;
    put(b, "GGUF", 4);
    put(b, &version, 4);
    put(b, &n_tensors, 8);
    put(b, &w->n_pairs, 8);
    if (w->pairs.size)
        put(b, w->pairs.data, w->pairs.size);
    for (size_t i = 0; i < n; i++) {
        TD_TRY(check_tensor(&tensors[i], err));
        put_info(b, &tensors[i], offset);
        offset += tensors[i].size + padding(tensors[i].size);
    }
    for (uint64_t pad = padding(b->size); pad; pad--)
        (void)td_buf_putc(b, 0);
    return w->pairs.failed || b->failed ? td_fail(err, TD_E_NOMEM, "out of memory for a GGUF header") : TD_OK;
}

/* Where the bytes of tensors come from: `fill`, or their data when it is NULL. */
typedef struct source {
    td_gguf_fill fill;
    void *user;
    uint8_t *piece; /* [PIECE], with fill */
} source;

static bool put_bytes(FILE *f, const void *bytes, size_t n) {
    return n == 0 || fwrite(bytes, 1, n, f) == n;
}

static td_status io_failed(const char *path, td_error *err) {
    return td_fail(err, TD_E_IO, "%s: cannot write: %s", path, strerror(errno));
}

static td_status write_tensor(FILE *f, const source *s, const td_tensor *t, size_t i, const char *path, td_error *err) {
    if (!s->fill)
        return put_bytes(f, t->data, t->size) ? TD_OK : io_failed(path, err);
    size_t block = t->dtype == TD_DTYPE_BLOCKS ? td_block_bytes(t->blocks) : td_dtype_bits(t->dtype) / 8;
    for (uint64_t at = 0; at < t->size;) {
        size_t most = PIECE / block * block, n = t->size - at < most ? (size_t)(t->size - at) : most;
        TD_TRY(s->fill(s->user, i, at, s->piece, n, err));
        if (!put_bytes(f, s->piece, n))
            return io_failed(path, err);
        at += n;
    }
    return TD_OK;
}

static td_status write_parts(FILE *f, const source *s, const td_buf *header, const td_tensor *tensors, size_t n,
                             const char *path, td_error *err) {
    static const uint8_t zeros[ALIGNMENT] = {0};
    if (!put_bytes(f, header->data, header->size))
        return io_failed(path, err);
    for (size_t i = 0; i < n; i++) {
        TD_TRY(write_tensor(f, s, &tensors[i], i, path, err));
        if (!put_bytes(f, zeros, (size_t)padding(tensors[i].size)))
            return io_failed(path, err);
    }
    return fflush(f) == 0 ? TD_OK : io_failed(path, err);
}

static td_status write_file(const char *path, const char *tmp, const source *s, const td_buf *header,
                            const td_tensor *tensors, size_t n, td_error *err) {
    FILE *f = fopen(tmp, "wbe");
    if (!f)
        return td_fail(err, TD_E_IO, "%s: %s", tmp, strerror(errno));
    td_status st = write_parts(f, s, header, tensors, n, path, err);
    if (fclose(f) != 0 && st == TD_OK)
        st = io_failed(path, err);
    if (st == TD_OK && rename(tmp, path) != 0)
        st = io_failed(path, err);
    if (st != TD_OK)
        unlink(tmp);
    return st;
}

static td_status write_all(const td_gguf_writer *w, const char *path, const td_tensor *tensors, size_t n,
                           const source *s, td_error *err) {
    td_buf header, name;
    td_buf_init(&header, HEADER_CEILING + ((size_t)1 << 20));
    td_buf_init(&name, strlen(path) + 5);
    (void)td_buf_printf(&name, "%s.tmp", path);
    td_status st = name.failed ? td_fail(err, TD_E_NOMEM, "out of memory") : TD_OK;
    if (st == TD_OK)
        st = build_header(w, &header, tensors, n, err);
    if (st != TD_OK)
        st = td_error_prefix(err, st, "%s", path);
    else
        st = write_file(path, name.data, s, &header, tensors, n, err);
    td_buf_free(&header);
    td_buf_free(&name);
    return st;
}

td_status td_gguf_write(const td_gguf_writer *w, const char *path, const td_tensor *tensors, size_t n, td_error *err) {
    return write_all(w, path, tensors, n, &(source){0}, err);
}

td_status td_gguf_write_filled(const td_gguf_writer *w, const char *path, const td_tensor *tensors, size_t n,
                               td_gguf_fill fill, void *user, td_error *err) {
    source s = {fill, user, td_malloc_aligned(PIECE)};
    if (!s.piece)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", path);
    td_status st = write_all(w, path, tensors, n, &s, err);
    td_free_aligned(s.piece);
    return st;
}
