/* rewrite.h - a fixture's checkpoint copied into a temporary directory with changes: tensors dropped, added, renamed,
 * altered or quantised, config.json edited. Static functions, so that each test program links only its own room.
 *
 *   rewrite w;
 *   rewrite_open(&w, "gemma4-dense");
 *   rewrite_drop(&w, "model.norm.weight");
 *   json_object_set_new(w.config, "hidden_size", json_integer(65));
 *   ... open rewrite_save(&w) ...
 *   rewrite_close(&w);
 */
#ifndef TD_TESTS_REWRITE_H
#define TD_TESTS_REWRITE_H

#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "support/fixture.h"

#include "base/alloc.h"
#include "tensor/matrix.h"

#define REWRITE_MAX_TENSORS 1024

typedef struct rewrite {
    td_safetensors *file;
    json_t *config; /* config.json's root; edit in place */
    td_tensor tensor[REWRITE_MAX_TENSORS];
    size_t n;
    void *owned[3 * REWRITE_MAX_TENSORS]; /* data and names of new tensors */
    size_t n_owned;
    char dir[64];
} rewrite;

static inline void rewrite_open(rewrite *w, const char *name) {
    char path[512];
    memset(w, 0, sizeof *w);
    ASSERT_OK(td_safetensors_open(&w->file, fixture_path(name, "model.safetensors", path, sizeof path), err));
    w->n = td_safetensors_count(w->file);
    assert_true(w->n < REWRITE_MAX_TENSORS);
    for (size_t i = 0; i < w->n; i++)
        w->tensor[i] = *td_safetensors_at(w->file, i);
    char *text;
    size_t size;
    ASSERT_OK(td_file_read(fixture_path(name, "config.json", path, sizeof path), 1 << 20, &text, &size, err));
    ASSERT_OK(td_json_parse(text, size, 64, path, &w->config, err));
    td_free(text);
    /* memory, where there is such a place: the writer waits for the disk */
    snprintf(w->dir, sizeof w->dir, "%s/tandem-rewrite-XXXXXX", td_dir_exists("/dev/shm") ? "/dev/shm" : "/tmp");
    assert_non_null(mkdtemp(w->dir));
}

static inline void *rewrite_keep(rewrite *w, void *p) {
    assert_non_null(p);
    assert_true(w->n_owned < sizeof w->owned / sizeof w->owned[0]);
    return w->owned[w->n_owned++] = p;
}

static inline td_tensor *rewrite_find(rewrite *w, const char *name) {
    for (size_t i = 0; i < w->n; i++)
        if (strcmp(w->tensor[i].name, name) == 0)
            return &w->tensor[i];
    fail_msg("no tensor %s to rewrite", name);
    return NULL;
}

static inline void rewrite_drop(rewrite *w, const char *name) {
    td_tensor *t = rewrite_find(w, name);
    *t = w->tensor[--w->n];
}

static inline void rewrite_rename(rewrite *w, const char *name, const char *to) {
    rewrite_find(w, name)->name = rewrite_keep(w, td_strdup(to));
}

/* A new tensor; `data` NULL: zeros. Its dimensions end with a 0. Returns its bytes, to be filled. */
static inline void *rewrite_add(rewrite *w, const char *name, td_dtype type, const uint64_t *dims, const void *data) {
    assert_true(w->n < REWRITE_MAX_TENSORS);
    td_tensor *t = &w->tensor[w->n++];
    *t = (td_tensor){.name = rewrite_keep(w, td_strdup(name)), .dtype = type};
    while (dims[t->n_dims]) {
        t->dim[t->n_dims] = dims[t->n_dims];
        t->n_dims++;
    }
    uint64_t bytes = 0;
    assert_true(td_tensor_byte_size(type, t->n_dims, t->dim, &bytes));
    uint8_t *copy = rewrite_keep(w, td_calloc(bytes, 1));
    if (data)
        memcpy(copy, data, bytes);
    t->data = copy;
    t->size = bytes;
    return copy;
}

/* The tensor's bytes, now the caller's to alter. */
static inline void *rewrite_data(rewrite *w, const char *name) {
    td_tensor *t = rewrite_find(w, name);
    uint8_t *copy = rewrite_keep(w, td_malloc(t->size));
    memcpy(copy, t->data, t->size);
    t->data = copy;
    return copy;
}

/* Every tensor's name with another prefix in place of "model.". */
static inline void rewrite_prefix(rewrite *w, const char *prefix) {
    char name[512];
    for (size_t i = 0; i < w->n; i++) {
        const char *old = w->tensor[i].name;
        const char *rest = strncmp(old, "model.", 6) == 0 ? old + 6 : old;
        snprintf(name, sizeof name, "%s%s", prefix, rest);
        w->tensor[i].name = rewrite_keep(w, td_strdup(name));
    }
}

/* The text fields: config.json's text_config, or its root. */
static inline json_t *rewrite_text(rewrite *w) {
    json_t *text = json_object_get(w->config, "text_config");
    return text ? text : w->config;
}

/* Replaces a matrix (or a stack of them) by the tensors of an MLX conversion. False when its rows do not divide. */
static inline bool rewrite_quantize_one(rewrite *w, const td_tensor *which, unsigned bits, unsigned group) {
    td_tensor t = *which;
    uint64_t n_in = t.n_dims ? t.dim[t.n_dims - 1] : 0;
    if (t.n_dims < 2 || n_in % group || t.dtype != TD_DTYPE_F32)
        return false;
    bool stack = t.n_dims == 3;
    uint32_t n_stack = stack ? (uint32_t)t.dim[0] : 1, n_out = (uint32_t)t.dim[t.n_dims - 2];
    td_matrix m = {.name = t.name, .data = t.data}, q;
    ASSERT_OK(td_matrix_layout(&m, TD_FORMAT_F32, 0, 0, TD_DTYPE_F32, n_stack, n_out, (uint32_t)n_in, err));
    ASSERT_OK(td_matrix_quantize(&q, &m, bits, group, TD_DTYPE_BF16, err));
    char module[400], name[420];
    snprintf(module, sizeof module, "%s", t.name);
    size_t len = strlen(module);
    if (len > 7 && strcmp(module + len - 7, ".weight") == 0)
        module[len - 7] = '\0';
    rewrite_drop(w, t.name);
    const struct {
        const char *suffix;
        td_dtype type;
        uint64_t columns;
        const uint8_t *data;
    } parts[] = {{"weight", TD_DTYPE_U32, n_in * bits / 32, q.data},
                 {"scales", TD_DTYPE_BF16, n_in / group, q.scales},
                 {"biases", TD_DTYPE_BF16, n_in / group, q.biases}};
    for (size_t p = 0; p < 3; p++) {
        snprintf(name, sizeof name, "%s.%s", module, parts[p].suffix);
        const uint64_t flat[] = {n_out, parts[p].columns, 0}, deep[] = {n_stack, n_out, parts[p].columns, 0};
        rewrite_add(w, name, parts[p].type, stack ? deep : flat, parts[p].data);
    }
    td_matrix_free(&q);
    return true;
}

/* All matrices whose rows divide, and the "quantization" object that says so. Returns how many. */
static inline size_t rewrite_quantize(rewrite *w, unsigned bits, unsigned group) {
    size_t done = 0, n = w->n;
    td_tensor before[REWRITE_MAX_TENSORS];
    memcpy(before, w->tensor, n * sizeof before[0]);
    for (size_t i = 0; i < n; i++)
        done += rewrite_quantize_one(w, rewrite_find(w, before[i].name), bits, group);
    json_object_set_new(w->config, "quantization", json_pack("{s:i,s:i}", "group_size", group, "bits", bits));
    return done;
}

/* Writes the checkpoint; returns its directory. */
static inline const char *rewrite_save(rewrite *w) {
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", w->dir);
    assert_int_equal(json_dump_file(w->config, path, JSON_INDENT(1)), 0);
    snprintf(path, sizeof path, "%s/model.safetensors", w->dir);
    ASSERT_OK(td_safetensors_write(path, w->tensor, w->n, "mlx", err));
    return w->dir;
}

static inline void rewrite_close(rewrite *w) {
    char path[128];
    snprintf(path, sizeof path, "%s/config.json", w->dir);
    unlink(path);
    snprintf(path, sizeof path, "%s/model.safetensors", w->dir);
    unlink(path);
    rmdir(w->dir);
    json_decref(w->config);
    td_safetensors_close(&w->file);
    for (size_t i = 0; i < w->n_owned; i++)
        td_free(w->owned[i]);
    memset(w, 0, sizeof *w);
}

#endif
