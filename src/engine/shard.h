/* shard.h - a safetensors file written in pieces.
 *
 * The sizes of all tensors are known before the first byte of any, so the header is written first and the data after
 * it, anywhere and from several threads. (td_safetensors_write wants all data in memory; a converted model may be
 * larger than that.) */
#ifndef TD_ENGINE_SHARD_H
#define TD_ENGINE_SHARD_H

#include "format/safetensors.h"

typedef struct td_shard td_shard;

/* Creates the file `path` for tensors[0..n); name, dtype, dims and size of each are used. Wider element types come
 * first in the file, so that every tensor is aligned to its elements. offset[i] receives the place of tensor i's first
 * byte, for td_shard_write. Errors name the path: TD_E_IO, TD_E_FORMAT (two tensors of one name), TD_E_LIMIT,
 * TD_E_NOMEM. */
td_status td_shard_open(td_shard **out, const char *path, const td_tensor *tensors, size_t n, uint64_t *offset,
                        td_error *err) TD_MUST_CHECK;

/* Thread-safe. */
td_status td_shard_write(const td_shard *shard, uint64_t offset, const void *bytes, size_t n,
                         td_error *err) TD_MUST_CHECK;

/* Bytes of the whole file. */
uint64_t td_shard_bytes(const td_shard *shard);

/* Makes the bytes durable and closes the file. */
td_status td_shard_finish(td_shard *shard, td_error *err) TD_MUST_CHECK;
/* Frees the handle, closing a file that was not finished. */
void td_shard_close(td_shard **shard);

#endif
