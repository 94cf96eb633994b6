/* checkpoint_tensors.c - tensors with their shapes checked, and small float tensors as f32. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "format/checkpoint_impl.h"
#include "tensor/blocks.h"

static td_status find_named(const td_checkpoint *ck, const char *name, const td_tensor **out, td_error *err) {
    char called[TD_CALLED_SIZE];
    *out = td_checkpoint_find(ck, name);
    if (!*out)
        return td_fail(err, TD_E_MODEL, "%s: no tensor %s", ck->path, td_checkpoint_called(called, name, NULL));
    return TD_OK;
}

td_status td_checkpoint_require(const td_checkpoint *ck, const char *name, int n_dims, const uint64_t *dims,
                                const td_tensor **out, td_error *err) {
    const td_tensor *t;
    *out = NULL;
    TD_TRY(find_named(ck, name, &t, err));
    if (t->n_dims != n_dims || (n_dims > 0 && memcmp(t->dim, dims, (size_t)n_dims * sizeof *dims) != 0)) {
        char called[TD_CALLED_SIZE], have[TD_SHAPE_TEXT_SIZE], want[TD_SHAPE_TEXT_SIZE];
        return td_fail(err, TD_E_SHAPE, "%s: tensor %s has shape %s, expected %s", ck->path,
                       td_checkpoint_called(called, name, t), td_shape_text(t->n_dims, t->dim, have, sizeof have),
                       td_shape_text(n_dims, dims, want, sizeof want));
    }
    *out = t;
    return TD_OK;
}

/* n elements of t as floats in a new block. */
static td_status to_floats(const td_checkpoint *ck, const char *name, const td_tensor *t, size_t n, float **out,
                           td_error *err) {
    char called[TD_CALLED_SIZE];
    td_checkpoint_called(called, name, t);
    float *v = n <= SIZE_MAX / sizeof *v ? td_malloc_aligned(n * sizeof *v) : NULL;
    if (!v)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory for tensor %s", ck->path, called);
    const uint32_t block = t->dtype == TD_DTYPE_BLOCKS ? td_block_elements(t->blocks) : 0;
    if (block && n % block == 0) {
        td_block_row_f32(t->blocks, t->data, n, v);
    } else if (!td_to_f32(v, t->dtype, t->data, n)) {
        td_free_aligned(v);
        return td_fail(err, TD_E_SHAPE, "%s: tensor %s is %s, expected a float type", ck->path, called,
                       td_dtype_name(t->dtype));
    }
    for (size_t i = 0; i < n; i++)
        if (!isfinite(v[i])) {
            td_free_aligned(v);
            return td_fail_at(err, TD_E_NUMERIC, (int64_t)i, "%s: tensor %s: element %zu is not finite", ck->path,
                              called, i);
        }
    *out = v;
    return TD_OK;
}

td_status td_checkpoint_array(const td_checkpoint *ck, const char *name, int n_dims, const uint64_t *dims, float **out,
                              td_error *err) {
    const td_tensor *t;
    *out = NULL;
    TD_TRY(td_checkpoint_require(ck, name, n_dims, dims, &t, err));
    size_t n = 1; /* the shape is that of a tensor in the file, whose bytes are known not to overflow */
    for (int i = 0; i < n_dims; i++)
        n *= (size_t)dims[i];
    return to_floats(ck, name, t, n, out, err);
}

/* All elements along one dimension, whatever ones stand around it. */
static bool is_vector(const td_tensor *t, size_t n) {
    uint64_t product = 1;
    int longer = 0;
    for (int i = 0; i < t->n_dims; i++) {
        longer += t->dim[i] != 1;
        product = t->dim[i] != 1 ? t->dim[i] : product;
    }
    return longer <= 1 && product == n;
}

td_status td_checkpoint_vector(const td_checkpoint *ck, const char *name, size_t n, float **out, td_error *err) {
    const td_tensor *t;
    *out = NULL;
    TD_TRY(find_named(ck, name, &t, err));
    if (!is_vector(t, n)) {
        char called[TD_CALLED_SIZE], have[TD_SHAPE_TEXT_SIZE];
        return td_fail(err, TD_E_SHAPE, "%s: tensor %s has shape %s, expected [%zu]", ck->path,
                       td_checkpoint_called(called, name, t), td_shape_text(t->n_dims, t->dim, have, sizeof have), n);
    }
    return to_floats(ck, name, t, n, out, err);
}
