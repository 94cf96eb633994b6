/* safetensors.h - reading and writing one safetensors file.
 *
 * Source: the safetensors format (8-byte little-endian header length, JSON header, data). The reader is strict: every
 * rule that the reference reader checks, plus limits on depth and counts, so that a hostile header costs one error
 * line and no memory out of proportion to the file. Tensors may be unaligned; header order is not data order. */
#ifndef TD_FORMAT_SAFETENSORS_H
#define TD_FORMAT_SAFETENSORS_H

#include "base/file.h"
#include "tensor/matrix.h"

#define TD_TENSOR_MAX_DIMS 8
#define TD_SAFETENSORS_MAX_HEADER 100000000u
#define TD_SAFETENSORS_MAX_NAME 4096 /* bytes of a tensor name */

typedef struct td_tensor {
    const char *name; /* owned by the file */
    td_dtype dtype;
    td_format blocks; /* of GGUF files, when dtype is TD_DTYPE_BLOCKS; otherwise unused */
    int n_dims;       /* 0: a scalar */
    uint64_t dim[TD_TENSOR_MAX_DIMS];
    const uint8_t *data; /* into the map; may be unaligned; NULL when size is 0 */
    size_t size;         /* bytes */
    bool mapped;         /* data lies in a mapped file, and not in memory that a test or a caller gave */
} td_tensor;

/* prod(dims) * bits / 8. A dimension of 0 makes the size 0, whatever the others are. False when the product does not
 * fit 64 bits or is not a whole number of bytes. */
bool td_tensor_byte_size(td_dtype dtype, int n_dims, const uint64_t *dims, uint64_t *bytes);

/* "[2, 3]" into buf (NUL-terminated, cut at size); returns buf. */
const char *td_shape_text(int n_dims, const uint64_t *dims, char *buf, size_t size);
#define TD_SHAPE_TEXT_SIZE 184 /* holds any shape of TD_TENSOR_MAX_DIMS */

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
 * data (the header is padded to a multiple of 8) ordered by the array. The format allows no gaps, so a tensor is
 * aligned to its elements when the sizes before it allow that: put wide types first. `format` becomes
 * __metadata__.format; NULL leaves it out. Errors: TD_E_ARG (a tensor that no reader would accept, named; nothing is
 * written), TD_E_IO, TD_E_LIMIT (header too long), TD_E_NOMEM. After an error `path` is as it was. */
td_status td_safetensors_write(const char *path, const td_tensor *tensors, size_t n, const char *format,
                               td_error *err) TD_MUST_CHECK;

#endif
