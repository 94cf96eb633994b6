/* gguf_write.h - writes a GGUF v3 file: metadata in the order in which it is put, then tensors.
 *
 * For tests, and for comparisons with other engines, which need the same weights in both containers. */
#ifndef TD_FORMAT_GGUF_WRITE_H
#define TD_FORMAT_GGUF_WRITE_H

#include "format/gguf.h"

/* Collects the metadata. A put that fails (out of memory) makes td_gguf_write fail, so a chain of puts needs no check.
 * Keys are written as given: no key twice. */
typedef struct td_gguf_writer {
    td_buf pairs;
    uint64_t n_pairs;
} td_gguf_writer;

void td_gguf_writer_init(td_gguf_writer *w);
void td_gguf_writer_free(td_gguf_writer *w);

void td_gguf_put_u32(td_gguf_writer *w, const char *key, uint32_t v);
void td_gguf_put_f32(td_gguf_writer *w, const char *key, float v);
void td_gguf_put_bool(td_gguf_writer *w, const char *key, bool v);
void td_gguf_put_string(td_gguf_writer *w, const char *key, const char *str, size_t size);
/* n elements of a type of fixed width, as they lie in memory. */
void td_gguf_put_array(td_gguf_writer *w, const char *key, td_gguf_type type, const void *v, uint64_t n);
/* Strings one by one: begin says how many will follow. */
void td_gguf_begin_strings(td_gguf_writer *w, const char *key, uint64_t n);
void td_gguf_add_string(td_gguf_writer *w, const char *str, size_t size);

/* Writes `path` (through path.tmp, renamed). Tensors' shapes are row-major, their data t->size bytes.
 * TD_E_ARG: a tensor that the container cannot hold, or whose size is not that of its shape and type, named; TD_E_IO;
 * TD_E_NOMEM. */
td_status td_gguf_write(const td_gguf_writer *w, const char *path, const td_tensor *tensors, size_t n,
                        td_error *err) TD_MUST_CHECK;

/* Gives `n` bytes at `offset` of tensor number `tensor`, whole blocks of its type. A failure ends the writing. */
typedef td_status (*td_gguf_fill)(void *user, size_t tensor, uint64_t offset, void *to, size_t n, td_error *err);

/* The same of tensors that are nowhere in memory: `fill` is asked for their bytes, piece by piece and in order, and
 * `data` is not read. */
td_status td_gguf_write_filled(const td_gguf_writer *w, const char *path, const td_tensor *tensors, size_t n,
                               td_gguf_fill fill, void *user, td_error *err) TD_MUST_CHECK;

#endif
