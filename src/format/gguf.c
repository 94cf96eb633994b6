/* gguf.c - opens a GGUF file and checks all of it that is not tensor data.
 *
 * One cursor walks the header once. Every length and count is compared with the bytes that are left before it is used,
 * so nothing is allocated that the file could not fill, and no sum can wrap. Keys and names are copied (they must be C
 * strings); values stay where they are. Two hash tables keyed at random find keys and names, and find duplicates. */
#include "format/gguf.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "format/json_scan.h"
#include "format/name_map.h"
#include "tensor/blocks.h"

#define MIN_VERSION 2
#define MAX_VERSION 3
#define MAX_DIMS 4
#define MIN_PAIR_BYTES 14 /* key length 8, one byte of key, type 4, one byte of value */
#define MIN_INFO_BYTES 25 /* name length 8, one byte of name, dims 4, type 4, offset 8 */

struct td_gguf {
    char *path;
    td_map map; /* data NULL: parsed from a caller's bytes */
    const uint8_t *data;
    size_t size;
    uint32_t alignment;
    td_gguf_value *values;
    size_t n_values;
    td_tensor *tensors;
    size_t n_tensors;
    td_name_map keys, names;
};

typedef struct cursor {
    td_gguf *g;
    size_t pos;
    const char *within; /* the key or tensor being read; NULL: the header */
    td_error *err;
} cursor;

/* ---- types ---- */

static const struct {
    const char *name;
    uint8_t size; /* bytes of an element; 0: strings, arrays */
} types[TD_GGUF_TYPE_COUNT] = {
    [TD_GGUF_U8] = {"u8", 1},       [TD_GGUF_I8] = {"i8", 1},     [TD_GGUF_U16] = {"u16", 2},
    [TD_GGUF_I16] = {"i16", 2},     [TD_GGUF_U32] = {"u32", 4},   [TD_GGUF_I32] = {"i32", 4},
    [TD_GGUF_F32] = {"f32", 4},     [TD_GGUF_BOOL] = {"bool", 1}, [TD_GGUF_STRING] = {"string", 0},
    [TD_GGUF_ARRAY] = {"array", 0}, [TD_GGUF_U64] = {"u64", 8},   [TD_GGUF_I64] = {"i64", 8},
    [TD_GGUF_F64] = {"f64", 8},
};

const char *td_gguf_type_name(td_gguf_type t) {
    return (unsigned)t < TD_GGUF_TYPE_COUNT ? types[t].name : "?";
}

/* Tensor types by their number in the file. */
static const struct {
    uint8_t id;
    td_dtype dtype;
    td_format blocks;
} tensor_types[] = {
    {0, TD_DTYPE_F32, 0},
    {1, TD_DTYPE_F16, 0},
    {2, TD_DTYPE_BLOCKS, TD_FORMAT_Q4_0},
    {3, TD_DTYPE_BLOCKS, TD_FORMAT_Q4_1},
    {6, TD_DTYPE_BLOCKS, TD_FORMAT_Q5_0},
    {7, TD_DTYPE_BLOCKS, TD_FORMAT_Q5_1},
    {8, TD_DTYPE_BLOCKS, TD_FORMAT_Q8_0},
    {10, TD_DTYPE_BLOCKS, TD_FORMAT_Q2_K},
    {11, TD_DTYPE_BLOCKS, TD_FORMAT_Q3_K},
    {12, TD_DTYPE_BLOCKS, TD_FORMAT_Q4_K},
    {13, TD_DTYPE_BLOCKS, TD_FORMAT_Q5_K},
    {14, TD_DTYPE_BLOCKS, TD_FORMAT_Q6_K},
    {16, TD_DTYPE_BLOCKS, TD_FORMAT_IQ2_XXS},
    {20, TD_DTYPE_BLOCKS, TD_FORMAT_IQ4_NL},
    {23, TD_DTYPE_BLOCKS, TD_FORMAT_IQ4_XS},
    {24, TD_DTYPE_I8, 0},
    {25, TD_DTYPE_I16, 0},
    {26, TD_DTYPE_I32, 0},
    {27, TD_DTYPE_I64, 0},
    {28, TD_DTYPE_F64, 0},
    {30, TD_DTYPE_BF16, 0},
    {34, TD_DTYPE_BLOCKS, TD_FORMAT_TQ1_0},
    {35, TD_DTYPE_BLOCKS, TD_FORMAT_TQ2_0},
    {39, TD_DTYPE_BLOCKS, TD_FORMAT_MXFP4_BLOCK},
    {40, TD_DTYPE_BLOCKS, TD_FORMAT_NVFP4_BLOCK},
    {41, TD_DTYPE_BLOCKS, TD_FORMAT_Q1_0},
    {42, TD_DTYPE_BLOCKS, TD_FORMAT_Q2_0},
};
#define N_TENSOR_TYPES (sizeof tensor_types / sizeof tensor_types[0])

/* What ggml calls the types that have no decoder here; those marked are gone from it, too. */
static const struct {
    uint8_t id;
    const char *name;
} other_types[] = {{4, "Q4_2, removed"},
                   {5, "Q4_3, removed"},
                   {9, "Q8_1"},
                   {15, "Q8_K"},
                   {17, "IQ2_XS"},
                   {18, "IQ3_XXS"},
                   {19, "IQ1_S"},
                   {21, "IQ3_S"},
                   {22, "IQ2_S"},
                   {29, "IQ1_M"},
                   {31, "Q4_0_4_4, removed"},
                   {32, "Q4_0_4_8, removed"},
                   {33, "Q4_0_8_8, removed"},
                   {36, "IQ4_NL_4_4, removed"},
                   {37, "IQ4_NL_4_8, removed"},
                   {38, "IQ4_NL_8_8, removed"}};

static const char *other_type(uint32_t id) {
    for (size_t i = 0; i < sizeof other_types / sizeof other_types[0]; i++)
        if (other_types[i].id == id)
            return other_types[i].name;
    return "unknown";
}

int td_gguf_ggml_type(td_dtype dtype, td_format blocks) {
    for (size_t i = 0; i < N_TENSOR_TYPES; i++)
        if (tensor_types[i].dtype == dtype && (dtype != TD_DTYPE_BLOCKS || tensor_types[i].blocks == blocks))
            return tensor_types[i].id;
    return -1;
}

/* ---- the cursor ---- */

static td_status bad(const cursor *c, const char *fmt, ...) TD_PRINTF(2, 3);

static td_status bad(const cursor *c, const char *fmt, ...) {
    char what[300], shown[TD_SHOWN_SIZE];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof what, fmt, args);
    va_end(args);
    if (!c->within)
        return td_fail_at(c->err, TD_E_FORMAT, (int64_t)c->pos, "%s: byte %zu: %s", c->g->path, c->pos, what);
    return td_fail_at(c->err, TD_E_FORMAT, (int64_t)c->pos, "%s: byte %zu: \"%s\": %s", c->g->path, c->pos,
                      td_shown(shown, c->within, strlen(c->within)), what);
}

static td_status no_memory(const td_gguf *g, td_error *err) {
    return td_fail(err, TD_E_NOMEM, "%s: out of memory", g->path);
}

static size_t left(const cursor *c) {
    return c->g->size - c->pos;
}

static td_status take(cursor *c, void *to, size_t n, const char *what) {
    if (n > left(c))
        return bad(c, "the file ends in %s", what);
    memcpy(to, c->g->data + c->pos, n);
    c->pos += n;
    return TD_OK;
}

/* The bytes of a string, where they lie. */
static td_status take_string(cursor *c, const char **str, size_t *size, const char *what) {
    uint64_t n = 0;
    TD_TRY(take(c, &n, 8, what));
    if (n > left(c))
        return bad(c, "%s of %" PRIu64 " bytes, but %zu are left of the file", what, n, left(c));
    *str = (const char *)c->g->data + c->pos;
    *size = (size_t)n;
    if (n && memchr(*str, 0, *size))
        return bad(c, "%s holds a zero byte", what);
    c->pos += (size_t)n;
    return TD_OK;
}

/* A copy of a string as a key or name; valid UTF-8, not empty. */
static td_status take_name(cursor *c, char **out, size_t longest, const char *what) {
    const char *str = NULL;
    size_t size = 0;
    *out = NULL;
    TD_TRY(take_string(c, &str, &size, what));
    if (size == 0 || size > longest)
        return bad(c, "%s of %zu bytes, expected 1 to %zu", what, size, longest);
    if (!td_json_utf8_valid(str, size))
        return bad(c, "%s is not UTF-8", what);
    *out = td_strndup(str, size);
    return *out ? TD_OK : no_memory(c->g, c->err);
}

/* ---- metadata ---- */

static td_status check_bools(cursor *c, const td_gguf_value *v) {
    for (uint64_t i = 0; i < v->n; i++)
        if (v->data[i] > 1)
            return bad(c, "a bool that is %u, expected 0 or 1", v->data[i]);
    return TD_OK;
}

/* n elements of v->type from the cursor on. */
static td_status take_elements(cursor *c, td_gguf_value *v) {
    v->data = c->g->data + c->pos;
    if (v->type == TD_GGUF_STRING) {
        const char *str;
        size_t size, start = c->pos;
        if (v->n > left(c) / 8)
            return bad(c, "%" PRIu64 " strings, but %zu bytes are left of the file", v->n, left(c));
        for (uint64_t i = 0; i < v->n; i++)
            TD_TRY(take_string(c, &str, &size, "a string"));
        v->size = c->pos - start;
        return TD_OK;
    }
    const size_t each = types[v->type].size;
    if (v->n > left(c) / each)
        return bad(c, "%" PRIu64 " elements of type %s, but %zu bytes are left of the file", v->n, types[v->type].name,
                   left(c));
    v->size = (size_t)v->n * each;
    c->pos += v->size;
    return v->type == TD_GGUF_BOOL ? check_bools(c, v) : TD_OK;
}

static td_status take_type(cursor *c, td_gguf_type *out) {
    uint32_t t = 0;
    TD_TRY(take(c, &t, 4, "a value's type"));
    if (t >= TD_GGUF_TYPE_COUNT)
        return bad(c, "value type %" PRIu32 ", expected 0 to %d", t, TD_GGUF_TYPE_COUNT - 1);
    *out = (td_gguf_type)t;
    return TD_OK;
}

static td_status take_value(cursor *c, td_gguf_value *v) {
    TD_TRY(take_type(c, &v->type));
    v->is_array = v->type == TD_GGUF_ARRAY;
    v->n = 1;
    if (v->is_array) {
        TD_TRY(take_type(c, &v->type));
        TD_TRY(take(c, &v->n, 8, "an array's length"));
        if (v->type == TD_GGUF_ARRAY)
            return bad(c, "an array of arrays, which this container does not have");
    }
    return take_elements(c, v);
}

static td_status read_values(cursor *c, uint64_t n) {
    td_gguf *g = c->g;
    if (n > left(c) / MIN_PAIR_BYTES)
        return bad(c, "%" PRIu64 " key-value pairs, but %zu bytes are left of the file", n, left(c));
    if (n > TD_GGUF_MAX_KEYS)
        return td_fail(c->err, TD_E_LIMIT, "%s: %" PRIu64 " key-value pairs, expected at most %d", g->path, n,
                       TD_GGUF_MAX_KEYS);
    g->values = td_calloc((size_t)n, sizeof *g->values);
    if (!g->values)
        return no_memory(g, c->err);
    for (uint64_t i = 0; i < n; i++) {
        td_gguf_value *v = &g->values[g->n_values];
        char *key;
        c->within = NULL;
        TD_TRY(take_name(c, &key, TD_GGUF_MAX_KEY, "a key"));
        v->key = key;
        g->n_values++; /* the key is the file's from here on */
        c->within = key;
        if (td_name_map_find(&g->keys, key))
            return bad(c, "the key is there twice");
        TD_TRY(take_value(c, v));
        if (!td_name_map_add(&g->keys, key, v))
            return no_memory(g, c->err);
    }
    c->within = NULL;
    return TD_OK;
}

/* ---- tensors ---- */

static td_status set_type(cursor *c, td_tensor *t, uint32_t id) {
    for (size_t i = 0; i < N_TENSOR_TYPES; i++)
        if (tensor_types[i].id == id) {
            t->dtype = tensor_types[i].dtype;
            t->blocks = tensor_types[i].blocks;
            return TD_OK;
        }
    return td_fail(c->err, TD_E_UNSUPPORTED,
                   "%s: tensor \"%s\" is of type %" PRIu32
                   " (%s), which has no decoder here; expected F32, F16, BF16, Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q2_K to "
                   "Q6_K, IQ4_NL, IQ4_XS, IQ2_XXS, MXFP4, NVFP4, TQ1_0, TQ2_0, Q1_0, Q2_0, I8 to I64 or F64",
                   c->g->path, t->name, id, other_type(id));
}

/* Bytes of the tensor; rows of blocks must be whole. */
static td_status measure(const cursor *c, td_tensor *t) {
    uint64_t bytes, elements = 1, row = t->n_dims ? t->dim[t->n_dims - 1] : 1;
    for (int i = 0; i < t->n_dims; i++)
        if (t->dim[i] == 0 || __builtin_mul_overflow(elements, t->dim[i], &elements))
            return bad(c, "dimension %d is %" PRIu64 ", expected at least 1 and no more elements than 2^64", i,
                       t->dim[i]);
    uint64_t per_block = t->dtype == TD_DTYPE_BLOCKS ? td_block_elements(t->blocks) : 1;
    uint64_t block = t->dtype == TD_DTYPE_BLOCKS ? td_block_bytes(t->blocks) : td_dtype_bits(t->dtype) / 8;
    if (row % per_block)
        return bad(c, "rows of %" PRIu64 " elements, expected whole blocks of %" PRIu64, row, per_block);
    if (__builtin_mul_overflow(elements / per_block, block, &bytes) || bytes > c->g->size)
        return bad(c, "%" PRIu64 " elements take more bytes than the file has", elements);
    t->size = (size_t)bytes;
    return TD_OK;
}

/* One description. The data's offset comes out by itself: it must be where the tensors before it end. */
static td_status read_info(cursor *c, td_tensor *t, uint64_t *offset) {
    uint32_t n_dims = 0, type = 0;
    char *name;
    c->within = NULL;
    TD_TRY(take_name(c, &name, TD_GGUF_MAX_NAME, "a tensor's name"));
    t->name = name;
    c->g->n_tensors++;
    c->within = name;
    if (td_name_map_find(&c->g->names, name))
        return bad(c, "the tensor is there twice");
    TD_TRY(take(c, &n_dims, 4, "a tensor's description"));
    if (n_dims > MAX_DIMS)
        return bad(c, "%" PRIu32 " dimensions, expected at most %d", n_dims, MAX_DIMS);
    t->n_dims = (int)n_dims;
    for (uint32_t i = 0; i < n_dims; i++)
        TD_TRY(take(c, &t->dim[n_dims - 1 - i], 8, "a tensor's description"));
    TD_TRY(take(c, &type, 4, "a tensor's description"));
    TD_TRY(take(c, offset, 8, "a tensor's description"));
    TD_TRY(set_type(c, t, type));
    TD_TRY(measure(c, t));
    return td_name_map_add(&c->g->names, name, t) ? TD_OK : no_memory(c->g, c->err);
}

static size_t padded(size_t n, size_t alignment) {
    return (n + alignment - 1) / alignment * alignment; /* n is at most the file's size, alignment at most 2^30 */
}

static td_status read_infos(cursor *c, uint64_t n) {
    td_gguf *g = c->g;
    if (n > left(c) / MIN_INFO_BYTES)
        return bad(c, "%" PRIu64 " tensors, but %zu bytes are left of the file", n, left(c));
    if (n > TD_GGUF_MAX_TENSORS)
        return td_fail(c->err, TD_E_LIMIT, "%s: %" PRIu64 " tensors, expected at most %u", g->path, n,
                       TD_GGUF_MAX_TENSORS);
    g->tensors = td_calloc((size_t)n, sizeof *g->tensors);
    if (!g->tensors)
        return no_memory(g, c->err);
    size_t end = 0; /* of the data so far, from its start */
    for (uint64_t i = 0; i < n; i++) {
        td_tensor *t = &g->tensors[g->n_tensors];
        uint64_t offset = 0;
        TD_TRY(read_info(c, t, &offset));
        if (offset != end)
            return bad(c, "its data is at offset %" PRIu64 ", expected %zu, behind the tensor before it", offset, end);
        if (t->size > g->size - end)
            return bad(c, "its data ends beyond the file");
        end = padded(end + t->size, g->alignment);
        end = end > g->size ? g->size : end;
    }
    c->within = NULL;
    return TD_OK;
}

/* Where the descriptions end is known now, and so is where the data begins. */
static td_status place_data(cursor *c) {
    td_gguf *g = c->g;
    size_t at = padded(c->pos, g->alignment);
    for (size_t i = 0; i < g->n_tensors; i++) {
        td_tensor *t = &g->tensors[i];
        c->within = t->name;
        if (at > g->size || t->size > g->size - at)
            return bad(c, "its %zu bytes of data end beyond the file of %zu bytes", t->size, g->size);
        t->data = g->data + at;
        t->mapped = g->map.data != NULL;
        at = padded(at + t->size, g->alignment);
    }
    c->within = NULL;
    return TD_OK;
}

/* ---- the file ---- */

static td_status read_alignment(td_gguf *g, td_error *err) {
    TD_TRY(td_gguf_u32_or(g, "general.alignment", 1, 1u << 30, TD_GGUF_DEFAULT_ALIGNMENT, &g->alignment, err));
    if (g->alignment & (g->alignment - 1))
        return td_fail(err, TD_E_FORMAT, "%s: general.alignment is %u, expected a power of two", g->path, g->alignment);
    return TD_OK;
}

static td_status read_header(cursor *c, uint64_t *n_tensors, uint64_t *n_values) {
    uint8_t magic[4];
    uint32_t version = 0;
    TD_TRY(take(c, magic, 4, "the magic number"));
    if (memcmp(magic, "GGUF", 4) != 0) {
        c->pos = 0;
        return bad(c, "not a GGUF file: it begins with %02X %02X %02X %02X", magic[0], magic[1], magic[2], magic[3]);
    }
    TD_TRY(take(c, &version, 4, "the version"));
    if (version && (version & 0xFFFF) == 0)
        return bad(c, "a big-endian file, expected little-endian");
    if (version < MIN_VERSION || version > MAX_VERSION)
        return bad(c, "version %" PRIu32 ", expected %d or %d", version, MIN_VERSION, MAX_VERSION);
    TD_TRY(take(c, n_tensors, 8, "the counts"));
    return take(c, n_values, 8, "the counts");
}

static td_status read_file(td_gguf *g, td_error *err) {
    cursor c = {.g = g, .err = err};
    uint64_t n_tensors = 0, n_values = 0;
    TD_TRY(read_header(&c, &n_tensors, &n_values));
    TD_TRY(read_values(&c, n_values));
    TD_TRY(read_alignment(g, err));
    TD_TRY(read_infos(&c, n_tensors));
    return place_data(&c);
}

static td_status new_file(td_gguf **out, const char *path, td_error *err) {
    td_gguf *g = td_calloc(1, sizeof *g);
    if (g)
        g->path = td_strdup(path);
    if (!g || !g->path) {
        td_free(g);
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", path);
    }
    td_name_map_init(&g->keys);
    td_name_map_init(&g->names);
    *out = g;
    return TD_OK;
}

td_status td_gguf_open(td_gguf **out, const char *path, td_error *err) {
    td_gguf *g;
    *out = NULL;
    TD_TRY(new_file(&g, path, err));
    td_status st = td_map_open(&g->map, path, err);
    if (st == TD_OK) {
        g->data = g->map.data;
        g->size = g->map.size;
        st = read_file(g, err);
    }
    if (st != TD_OK)
        td_gguf_close(&g);
    *out = g;
    return st;
}

td_status td_gguf_parse(td_gguf **out, const uint8_t *data, size_t size, const char *path, td_error *err) {
    td_gguf *g;
    *out = NULL;
    TD_TRY(new_file(&g, path, err));
    g->data = data;
    g->size = size;
    td_status st = read_file(g, err);
    if (st != TD_OK)
        td_gguf_close(&g);
    *out = g;
    return st;
}

void td_gguf_close(td_gguf **file) {
    if (!file || !*file)
        return;
    td_gguf *g = *file;
    for (size_t i = 0; i < g->n_values; i++)
        td_free((char *)(uintptr_t)g->values[i].key);
    for (size_t i = 0; i < g->n_tensors; i++)
        td_free((char *)(uintptr_t)g->tensors[i].name);
    td_free(g->values);
    td_free(g->tensors);
    td_name_map_free(&g->keys);
    td_name_map_free(&g->names);
    td_map_close(&g->map);
    td_free(g->path);
    td_free(g);
    *file = NULL;
}

const char *td_gguf_path(const td_gguf *g) {
    return g->path;
}

size_t td_gguf_file_bytes(const td_gguf *g) {
    return g->size;
}

size_t td_gguf_n_tensors(const td_gguf *g) {
    return g->n_tensors;
}

const td_tensor *td_gguf_tensor_at(const td_gguf *g, size_t i) {
    return &g->tensors[i];
}

const td_tensor *td_gguf_tensor(const td_gguf *g, const char *name) {
    const td_name_slot *slot = td_name_map_find(&g->names, name);
    return slot ? slot->value : NULL;
}

size_t td_gguf_n_values(const td_gguf *g) {
    return g->n_values;
}

const td_gguf_value *td_gguf_value_at(const td_gguf *g, size_t i) {
    return &g->values[i];
}

const td_gguf_value *td_gguf_find(const td_gguf *g, const char *key) {
    const td_name_slot *slot = td_name_map_find(&g->keys, key);
    return slot ? slot->value : NULL;
}
