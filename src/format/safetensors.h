/* safetensors.h - reading and writing one safetensors file.
 *
 * Source: the safetensors format (8-byte little-endian header length, JSON header, data). The reader is strict: every
 * rule that the reference reader checks, plus limits on depth and counts, so that a hostile header costs one error
 * line and no memory out of proportion to the file. Tensors may be unaligned; header order is not data order. */
#ifndef TD_FORMAT_SAFETENSORS_H
#define TD_FORMAT_SAFETENSORS_H

#include "base/file.h"
#include "tensor/dtype.h"

#define TD_TENSOR_MAX_DIMS 8
#define TD_SAFETENSORS_MAX_HEADER 100000000u

typedef struct td_tensor {
    const char *name; /* owned by the file */
    td_dtype dtype;
    int n_dims; /* 0: a scalar */
    uint64_t dim[TD_TENSOR_MAX_DIMS];
    const uint8_t *data; /* into the map; may be unaligned; NULL when size is 0 */
    size_t size;         /* bytes */
} td_tensor;

typedef struct td_safetensors td_safetensors;

/* Maps and checks a file. Errors carry the path, the tensor where there is one, what was found and what was expected:
 * TD_E_NOTFOUND, TD_E_IO, TD_E_FORMAT, TD_E_NOMEM. */
td_status td_safetensors_open(td_safetensors **out, const char *path, td_error *err) TD_MUST_CHECK;

/* The same checks over bytes in memory (tests, fuzzing); `data` must outlive the handle. `path` names it in errors. */
td_status td_safetensors_parse(td_safetensors **out, const uint8_t *data, size_t size, const char *path,
                               td_error *err) TD_MUST_CHECK;

void td_safetensors_close(td_safetensors **file);

size_t td_safetensors_count(const td_safetensors *file);
/* In the order of their data. i < count. */
const td_tensor *td_safetensors_at(const td_safetensors *file, size_t i);
/* NULL when absent. O(log n). */
const td_tensor *td_safetensors_find(const td_safetensors *file, const char *name);
/* Value of a __metadata__ key, or NULL. */
const char *td_safetensors_meta(const td_safetensors *file, const char *key);
size_t td_safetensors_file_bytes(const td_safetensors *file);

/* Writing: tensors' data is taken from td_tensor.data. Written to `path` + ".tmp", synced and renamed, with aligned
 * data (the header is padded to a multiple of 8) ordered by the array. `format` becomes __metadata__.format. */
td_status td_safetensors_write(const char *path, const td_tensor *tensors, size_t n, const char *format,
                               td_error *err) TD_MUST_CHECK;

#endif
