/* gguf.h - one GGUF file: typed metadata and tensors, mapped and checked.
 *
 * Source: the GGUF specification, versions 2 and 3 (ggml, mid 2026), with the strictness of its reference loader:
 * little endian; magic, version, counts, then key-value pairs, tensor descriptions, padding to `general.alignment`
 * (32), and the data, in the order of the descriptions, each tensor at the next multiple of the alignment. Duplicate
 * keys and names, arrays of arrays, types that are not known, and anything that leads out of the file are errors.
 *
 * A file is borrowed memory: strings of metadata are slices of the map, not NUL-terminated and checked to be neither
 * longer than the file nor to hold a NUL. Whether they are UTF-8 is for their readers to say. */
#ifndef TD_FORMAT_GGUF_H
#define TD_FORMAT_GGUF_H

#include "base/buf.h"
#include "format/safetensors.h"

#define TD_GGUF_MAX_NAME 127 /* bytes of a tensor's name; the reference allows 63 */
#define TD_GGUF_MAX_KEY 65535
#define TD_GGUF_MAX_KEYS 65536
#define TD_GGUF_MAX_TENSORS (1u << 20)
#define TD_GGUF_DEFAULT_ALIGNMENT 32

typedef enum td_gguf_type {
    TD_GGUF_U8,
    TD_GGUF_I8,
    TD_GGUF_U16,
    TD_GGUF_I16,
    TD_GGUF_U32,
    TD_GGUF_I32,
    TD_GGUF_F32,
    TD_GGUF_BOOL,
    TD_GGUF_STRING,
    TD_GGUF_ARRAY, /* only on disk: a td_gguf_value has the type of its elements */
    TD_GGUF_U64,
    TD_GGUF_I64,
    TD_GGUF_F64,
    TD_GGUF_TYPE_COUNT
} td_gguf_type;

/* "u32", "string", ...; "?" out of range. */
const char *td_gguf_type_name(td_gguf_type t);

typedef struct td_gguf_value {
    const char *key; /* NUL-terminated, owned by the file */
    td_gguf_type type;
    bool is_array;
    uint64_t n;          /* elements; 1 for a scalar */
    const uint8_t *data; /* elements one after the other, unaligned; strings with their 8-byte lengths */
    size_t size;
} td_gguf_value;

typedef struct td_gguf td_gguf;

/* Maps and checks a file. Errors carry the path, the key or tensor, what was found and what was expected:
 * TD_E_NOTFOUND, TD_E_IO, TD_E_FORMAT, TD_E_UNSUPPORTED (a tensor type without a decoder), TD_E_LIMIT, TD_E_NOMEM. */
td_status td_gguf_open(td_gguf **out, const char *path, td_error *err) TD_MUST_CHECK;
/* The same over bytes in memory; `data` must outlive the handle. `path` names it in errors. */
td_status td_gguf_parse(td_gguf **out, const uint8_t *data, size_t size, const char *path, td_error *err) TD_MUST_CHECK;
void td_gguf_close(td_gguf **file);

const char *td_gguf_path(const td_gguf *g);
size_t td_gguf_file_bytes(const td_gguf *g);

/* ---- tensors ---- */

size_t td_gguf_n_tensors(const td_gguf *g);
/* In the order of the file. Shapes are row-major (the file has them the other way round). Tensors of blocks have dtype
 * TD_DTYPE_BLOCKS and their td_format in `blocks`. */
const td_tensor *td_gguf_tensor_at(const td_gguf *g, size_t i);
const td_tensor *td_gguf_tensor(const td_gguf *g, const char *name);

/* ---- metadata ---- */

size_t td_gguf_n_values(const td_gguf *g);
const td_gguf_value *td_gguf_value_at(const td_gguf *g, size_t i);
/* NULL when absent. O(1). */
const td_gguf_value *td_gguf_find(const td_gguf *g, const char *key);

/* A scalar integer of any width and sign, or a bool never. A missing key, another type, or a value outside [lo, hi] is
 * TD_E_MODEL naming file and key. The _or variant takes a default for a missing key. */
td_status td_gguf_u32(const td_gguf *g, const char *key, uint32_t lo, uint32_t hi, uint32_t *out,
                      td_error *err) TD_MUST_CHECK;
td_status td_gguf_u32_or(const td_gguf *g, const char *key, uint32_t lo, uint32_t hi, uint32_t def, uint32_t *out,
                         td_error *err) TD_MUST_CHECK;
/* f32 or f64, finite. */
td_status td_gguf_f64_or(const td_gguf *g, const char *key, double def, double *out, td_error *err) TD_MUST_CHECK;
td_status td_gguf_bool_or(const td_gguf *g, const char *key, bool def, bool *out, td_error *err) TD_MUST_CHECK;
/* *str NULL when the key is missing. Not NUL-terminated. */
td_status td_gguf_string_or_null(const td_gguf *g, const char *key, const char **str, size_t *size,
                                 td_error *err) TD_MUST_CHECK;
/* True when the key is there, is a string, and equals `text`. */
bool td_gguf_string_is(const td_gguf *g, const char *key, const char *text);

/* Element i of a number or an array of numbers as an integer or a double; false: not of that kind (a bool is the
 * integer 0 or 1), or i is beyond n. Strings are no numbers. */
bool td_gguf_integer_at(const td_gguf_value *v, uint64_t i, int64_t *out);
bool td_gguf_real_at(const td_gguf_value *v, uint64_t i, double *out);

/* Strings of an array (or of a scalar) in order: start with a cursor {v}, ask until it says no. O(1) a string. */
typedef struct td_gguf_strings {
    const td_gguf_value *v;
    uint64_t i;
    size_t pos;
} td_gguf_strings;

bool td_gguf_next_string(td_gguf_strings *s, const char **str, size_t *size);

/* ---- tensor types ---- */

/* The type's number in a file for an element type, or for a format of blocks when dtype is TD_DTYPE_BLOCKS; -1: the
 * container has none. */
int td_gguf_ggml_type(td_dtype dtype, td_format blocks);

#endif
