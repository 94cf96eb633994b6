/* safetensors.c - the reader: a strict pass over the header, then a proof that the tensors tile the data.
 *
 * The header is read by the pull reader (json_scan.h), entry by entry, into an array of tensors and one block of
 * names; no JSON tree exists at any time, so a header costs memory in proportion to the tensors it describes. Then the
 * entries are sorted by where their data begins, and each must begin where the one before it ended: that single test
 * excludes overlaps, holes and (at the end) trailers. A second order, by name, finds duplicates and serves lookups. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "format/json_scan.h"
#include "format/safetensors.h"

#define HEADER_MAX_DEPTH 8

/* A tensor as its entry describes it. Names are offsets while their block still grows. */
typedef struct entry {
    td_tensor t;
    uint64_t begin, end; /* data_offsets */
    size_t name_at;      /* in td_safetensors.names */
    size_t pos;          /* of the entry's name in the file, for messages */
} entry;

typedef struct meta_entry {
    size_t key_at, value_at; /* in td_safetensors.names */
    const char *key, *value; /* the same, once the block of names stands still */
} meta_entry;

struct td_safetensors {
    td_map map; /* empty for td_safetensors_parse */
    const uint8_t *bytes;
    size_t size;
    size_t data_at; /* 8 + header length */
    const char *path;
    char *path_owned;
    td_buf names; /* every name, key and value, each NUL-terminated */
    entry *entries;
    size_t n_entries, entries_capacity;
    entry **by_name;
    meta_entry *meta;
    size_t n_meta, meta_capacity;
    bool has_meta;
};

/* ---- shapes ---- */

bool td_tensor_byte_size(td_dtype dtype, int n_dims, const uint64_t *dims, uint64_t *bytes) {
    uint64_t bits = td_dtype_bits(dtype);
    for (int i = 0; i < n_dims; i++)
        if (dims[i] == 0) {
            *bytes = 0;
            return true;
        }
    for (int i = 0; i < n_dims; i++)
        if (__builtin_mul_overflow(bits, dims[i], &bits))
            return false;
    *bytes = bits / 8;
    return bits % 8 == 0;
}

const char *td_shape_text(int n_dims, const uint64_t *dims, char *buf, size_t size) {
    size_t n = 0;
    n += (size_t)snprintf(buf, size, "[");
    for (int i = 0; i < n_dims && n < size; i++)
        n += (size_t)snprintf(buf + n, size - n, "%s%" PRIu64, i ? ", " : "", dims[i]);
    if (n < size)
        snprintf(buf + n, size - n, "]");
    return buf;
}

/* ---- small helpers ---- */

static td_status no_memory(const td_safetensors *f, td_error *err) {
    return td_fail(err, TD_E_NOMEM, "%s: out of memory for the header's %zu tensors", f->path, f->n_entries);
}

/* Room for one more element. */
static bool grow(void **array, size_t n, size_t *capacity, size_t element) {
    if (n < *capacity)
        return true;
    size_t wanted = *capacity ? *capacity * 2 : 16;
    void *p = td_realloc(*array, wanted, element);
    if (!p)
        return false;
    *array = p;
    *capacity = wanted;
    return true;
}

/* Copies a string into the block of names; its offset. A failure stays in the buffer. */
static size_t keep(td_safetensors *f, const char *str, size_t size) {
    size_t at = f->names.size;
    (void)td_buf_append(&f->names, str, size);
    (void)td_buf_putc(&f->names, '\0');
    return at;
}

static bool is(const char *str, size_t size, const char *word) {
    return size == strlen(word) && memcmp(str, word, size) == 0;
}

static const char *entry_name(const td_safetensors *f, const entry *e) {
    return f->names.data + e->name_at;
}

/* "path: tensor "name": message", with the name cut to fit. */
static td_status bad_tensor(const td_safetensors *f, const entry *e, td_error *err, const char *message) {
    char shown[TD_SHOWN_SIZE];
    const char *name = entry_name(f, e);
    return td_fail_at(err, TD_E_FORMAT, (int64_t)e->pos, "%s: tensor \"%s\": %s", f->path,
                      td_shown(shown, name, strlen(name)), message);
}

/* ---- one entry ---- */

static td_status read_dtype(td_json_scan *s, entry *e, td_error *err) {
    const char *str;
    size_t size;
    (void)td_json_scan_peek(s); /* to the quote */
    size_t pos = s->pos;
    TD_TRY(td_json_scan_string(s, &str, &size, err));
    char name[32], shown[TD_SHOWN_SIZE];
    if (size < sizeof name) {
        memcpy(name, str, size);
        name[size] = '\0';
        if (td_dtype_parse(name, &e->t.dtype))
            return TD_OK;
    }
    return td_json_scan_fail(s, pos, err, "unknown dtype \"%s\"", td_shown(shown, str, size));
}

static td_status read_shape(td_json_scan *s, entry *e, td_error *err) {
    bool more;
    TD_TRY(td_json_scan_enter(s, '[', err));
    for (;;) {
        TD_TRY(td_json_scan_next(s, &more, err));
        if (!more)
            return TD_OK;
        if (e->t.n_dims == TD_TENSOR_MAX_DIMS)
            return td_json_scan_fail(s, s->pos, err, "a shape of more than %d dimensions", TD_TENSOR_MAX_DIMS);
        TD_TRY(td_json_scan_uint(s, &e->t.dim[e->t.n_dims++], err));
    }
}

static td_status read_offsets(td_json_scan *s, entry *e, td_error *err) {
    uint64_t *offsets[] = {&e->begin, &e->end};
    bool more;
    TD_TRY(td_json_scan_enter(s, '[', err));
    for (int i = 0;; i++) {
        TD_TRY(td_json_scan_next(s, &more, err));
        if (more != (i < 2))
            return td_json_scan_fail(s, s->pos, err, "expected two data_offsets, found %s", more ? "more" : "fewer");
        if (!more)
            return TD_OK;
        TD_TRY(td_json_scan_uint(s, offsets[i], err));
    }
}

/* The members of an entry, each exactly once, in any order. */
static td_status read_members(td_json_scan *s, entry *e, td_error *err) {
    static const struct {
        const char *name;
        td_status (*read)(td_json_scan *, entry *, td_error *);
    } members[] = {{"dtype", read_dtype}, {"shape", read_shape}, {"data_offsets", read_offsets}};
    enum { N_MEMBERS = 3 };
    bool seen[N_MEMBERS] = {false};
    TD_TRY(td_json_scan_enter(s, '{', err));
    for (;;) {
        bool more;
        TD_TRY(td_json_scan_next(s, &more, err));
        if (!more)
            break;
        size_t size, at;
        const char *key;
        (void)td_json_scan_peek(s);
        at = s->pos;
        TD_TRY(td_json_scan_key(s, &key, &size, err));
        int m = 0;
        while (m < N_MEMBERS && !is(key, size, members[m].name))
            m++;
        char shown[TD_SHOWN_SIZE];
        if (m == N_MEMBERS)
            return td_json_scan_fail(s, at, err, "unexpected member \"%s\"", td_shown(shown, key, size));
        if (seen[m])
            return td_json_scan_fail(s, at, err, "member \"%s\" occurs twice", members[m].name);
        seen[m] = true;
        TD_TRY(members[m].read(s, e, err));
    }
    for (int m = 0; m < N_MEMBERS; m++)
        if (!seen[m])
            return td_json_scan_fail(s, s->pos - 1, err, "member \"%s\" is missing", members[m].name);
    return TD_OK;
}

/* dtype, shape and offsets against each other and against the data there is. */
static td_status check_entry(const td_safetensors *f, entry *e, td_error *err) {
    char shape[TD_SHAPE_TEXT_SIZE], message[320];
    uint64_t bytes, have = f->size - f->data_at;
    td_shape_text(e->t.n_dims, e->t.dim, shape, sizeof shape);
    if (!td_tensor_byte_size(e->t.dtype, e->t.n_dims, e->t.dim, &bytes)) {
        snprintf(message, sizeof message, "%s %s is not a whole number of bytes below 2^61", td_dtype_name(e->t.dtype),
                 shape);
        return bad_tensor(f, e, err, message);
    }
    if (e->begin > e->end)
        snprintf(message, sizeof message, "data_offsets [%" PRIu64 ", %" PRIu64 "] end before they begin", e->begin,
                 e->end);
    else if (e->end > have)
        snprintf(message, sizeof message,
                 "data_offsets [%" PRIu64 ", %" PRIu64 "] end beyond the file's %" PRIu64 " bytes of data", e->begin,
                 e->end, have);
    else if (e->end - e->begin != bytes)
        snprintf(message, sizeof message,
                 "data_offsets [%" PRIu64 ", %" PRIu64 "] hold %" PRIu64 " bytes, but %s %s takes %" PRIu64, e->begin,
                 e->end, e->end - e->begin, td_dtype_name(e->t.dtype), shape, bytes);
    else
        return TD_OK;
    return bad_tensor(f, e, err, message);
}

static td_status read_tensor(td_safetensors *f, td_json_scan *s, const char *name, size_t size, size_t pos,
                             td_error *err) {
    if (size > TD_SAFETENSORS_MAX_NAME)
        return td_json_scan_fail(s, pos, err, "a tensor name of %zu bytes, expected at most %d", size,
                                 TD_SAFETENSORS_MAX_NAME);
    if (!grow((void **)&f->entries, f->n_entries, &f->entries_capacity, sizeof *f->entries))
        return no_memory(f, err);
    entry *e = &f->entries[f->n_entries];
    *e = (entry){.name_at = keep(f, name, size), .pos = s->base + pos};
    if (f->names.failed)
        return no_memory(f, err);
    s->within = entry_name(f, e);
    TD_TRY(read_members(s, e, err));
    s->within = NULL;
    TD_TRY(check_entry(f, e, err));
    f->n_entries++;
    return TD_OK;
}

static td_status read_meta(td_safetensors *f, td_json_scan *s, size_t pos, td_error *err) {
    if (f->has_meta)
        return td_json_scan_fail(s, pos, err, "__metadata__ occurs twice");
    f->has_meta = true;
    TD_TRY(td_json_scan_enter(s, '{', err));
    for (;;) {
        bool more;
        const char *str;
        size_t size;
        TD_TRY(td_json_scan_next(s, &more, err));
        if (!more)
            return TD_OK;
        if (!grow((void **)&f->meta, f->n_meta, &f->meta_capacity, sizeof *f->meta))
            return no_memory(f, err);
        TD_TRY(td_json_scan_key(s, &str, &size, err));
        f->meta[f->n_meta].key_at = keep(f, str, size);
        if (td_json_scan_peek(s) != '"')
            return td_json_scan_fail(s, s->pos, err, "__metadata__ values must be strings");
        TD_TRY(td_json_scan_string(s, &str, &size, err));
        f->meta[f->n_meta++].value_at = keep(f, str, size);
        if (f->names.failed)
            return no_memory(f, err);
    }
}

static td_status read_header(td_safetensors *f, td_json_scan *s, td_error *err) {
    TD_TRY(td_json_scan_enter(s, '{', err));
    for (;;) {
        bool more;
        const char *name;
        TD_TRY(td_json_scan_next(s, &more, err));
        if (!more)
            return td_json_scan_end(s, err);
        size_t size, pos;
        (void)td_json_scan_peek(s); /* to the name's quote */
        pos = s->pos;
        TD_TRY(td_json_scan_key(s, &name, &size, err));
        if (is(name, size, "__metadata__"))
            TD_TRY(read_meta(f, s, pos, err));
        else
            TD_TRY(read_tensor(f, s, name, size, pos, err));
    }
}

/* ---- the two orders ---- */

static int by_position(const void *a, const void *b) {
    const entry *x = a, *y = b;
    if (x->begin != y->begin)
        return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) /* empty tensors before the one that shares their offset */
        return x->end < y->end ? -1 : 1;
    return x->pos < y->pos ? -1 : x->pos > y->pos;
}

static int by_name(const void *a, const void *b) {
    const entry *const *x = a, *const *y = b;
    int order = strcmp((*x)->t.name, (*y)->t.name);
    return order ? order : ((*x)->pos < (*y)->pos ? -1 : (*x)->pos > (*y)->pos);
}

static int by_key(const void *a, const void *b) {
    return strcmp(((const meta_entry *)a)->key, ((const meta_entry *)b)->key);
}

static td_status check_tiling(const td_safetensors *f, td_error *err) {
    uint64_t at = 0;
    char message[200], shown[TD_SHOWN_SIZE];
    for (size_t i = 0; i < f->n_entries; i++) {
        const entry *e = &f->entries[i];
        if (e->begin > at) {
            snprintf(message, sizeof message, "data begins at %" PRIu64 ", leaving a hole after %" PRIu64, e->begin,
                     at);
            return bad_tensor(f, e, err, message);
        }
        if (e->begin < at) {
            const char *before = entry_name(f, e - 1);
            snprintf(message, sizeof message, "data begins at %" PRIu64 ", inside tensor \"%s\"", e->begin,
                     td_shown(shown, before, strlen(before)));
            return bad_tensor(f, e, err, message);
        }
        at = e->end;
    }
    uint64_t have = f->size - f->data_at;
    if (at != have)
        return td_fail_at(err, TD_E_FORMAT, (int64_t)(f->data_at + at),
                          "%s: %" PRIu64 " bytes after the last tensor, expected the file to end at byte %" PRIu64,
                          f->path, have - at, f->data_at + at);
    return TD_OK;
}

static td_status order_by_name(td_safetensors *f, td_error *err) {
    f->by_name = td_calloc(f->n_entries, sizeof *f->by_name);
    if (!f->by_name)
        return no_memory(f, err);
    for (size_t i = 0; i < f->n_entries; i++)
        f->by_name[i] = &f->entries[i];
    qsort(f->by_name, f->n_entries, sizeof *f->by_name, by_name);
    for (size_t i = 1; i < f->n_entries; i++)
        if (strcmp(f->by_name[i - 1]->t.name, f->by_name[i]->t.name) == 0)
            return bad_tensor(f, f->by_name[i], err, "the name occurs twice");
    return TD_OK;
}

static td_status order_meta(td_safetensors *f, td_error *err) {
    for (size_t i = 0; i < f->n_meta; i++) {
        f->meta[i].key = f->names.data + f->meta[i].key_at;
        f->meta[i].value = f->names.data + f->meta[i].value_at;
    }
    if (f->n_meta > 1)
        qsort(f->meta, f->n_meta, sizeof *f->meta, by_key);
    for (size_t i = 1; i < f->n_meta; i++) {
        char shown[TD_SHOWN_SIZE];
        const char *key = f->meta[i].key;
        if (strcmp(f->meta[i - 1].key, key) == 0)
            return td_fail(err, TD_E_FORMAT, "%s: __metadata__ key \"%s\" occurs twice", f->path,
                           td_shown(shown, key, strlen(key)));
    }
    return TD_OK;
}

/* ---- the whole file ---- */

static td_status check_length(td_safetensors *f, td_error *err) {
    if (f->size < 8)
        return td_fail(err, TD_E_FORMAT, "%s: %zu bytes, expected at least the 8 of a header length", f->path, f->size);
    uint64_t n = 0;
    for (int i = 7; i >= 0; i--)
        n = n << 8 | f->bytes[i];
    if (n == 0 || n > TD_SAFETENSORS_MAX_HEADER)
        return td_fail_at(err, TD_E_FORMAT, 0, "%s: header length %" PRIu64 ", expected 1 to %u", f->path, n,
                          TD_SAFETENSORS_MAX_HEADER);
    if (n > f->size - 8)
        return td_fail_at(err, TD_E_FORMAT, 0,
                          "%s: header length %" PRIu64 ", but the file has only %zu bytes after it", f->path, n,
                          f->size - 8);
    f->data_at = 8 + (size_t)n;
    if (f->bytes[8] != '{')
        return td_fail_at(err, TD_E_FORMAT, 8, "%s: byte 8: the header begins with byte 0x%02X, expected '{'", f->path,
                          f->bytes[8]);
    return TD_OK;
}

static td_status parse_header(td_safetensors *f, td_error *err) {
    td_json_scan s;
    td_json_scan_init(&s, (const char *)f->bytes + 8, f->data_at - 8, 8, HEADER_MAX_DEPTH, f->path);
    td_status st = read_header(f, &s, err);
    td_json_scan_free(&s);
    return st;
}

/* Names and data become pointers; from here on the tensors stand in the order of their data. */
static void settle(td_safetensors *f) {
    if (f->n_entries > 1)
        qsort(f->entries, f->n_entries, sizeof *f->entries, by_position);
    for (size_t i = 0; i < f->n_entries; i++) {
        entry *e = &f->entries[i];
        e->t.name = entry_name(f, e);
        e->t.size = (size_t)(e->end - e->begin);
        e->t.data = e->t.size ? f->bytes + f->data_at + e->begin : NULL;
    }
}

static td_status parse_file(td_safetensors *f, const char *path, td_error *err) {
    f->path_owned = td_strdup(path);
    f->path = f->path_owned ? f->path_owned : path;
    if (!f->path_owned)
        return no_memory(f, err);
    TD_TRY(check_length(f, err));
    td_buf_init(&f->names, 2 * f->data_at + 2); /* an empty string costs its NUL and has two quotes */
    TD_TRY(parse_header(f, err));
    settle(f);
    TD_TRY(order_by_name(f, err));
    TD_TRY(order_meta(f, err));
    return check_tiling(f, err);
}

td_status td_safetensors_parse(td_safetensors **out, const uint8_t *data, size_t size, const char *path,
                               td_error *err) {
    *out = NULL;
    td_safetensors *f = td_calloc(1, sizeof *f);
    if (!f)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", path);
    f->bytes = data;
    f->size = size;
    td_status st = parse_file(f, path, err);
    if (st != TD_OK)
        td_safetensors_close(&f);
    *out = f;
    return st;
}

td_status td_safetensors_open(td_safetensors **out, const char *path, td_error *err) {
    *out = NULL;
    td_map map;
    TD_TRY(td_map_open(&map, path, err));
    td_status st = td_safetensors_parse(out, map.data, map.size, path, err);
    if (st != TD_OK) {
        td_map_close(&map);
        return st;
    }
    (*out)->map = map;
    for (size_t i = 0; i < (*out)->n_entries; i++)
        (*out)->entries[i].t.mapped = true;
    return TD_OK;
}

void td_safetensors_close(td_safetensors **file) {
    if (!file || !*file)
        return;
    td_safetensors *f = *file;
    td_map_close(&f->map);
    td_free(f->path_owned);
    td_buf_free(&f->names);
    td_free(f->entries);
    td_free(f->by_name);
    td_free(f->meta);
    td_free(f);
    *file = NULL;
}

/* ---- lookups ---- */

size_t td_safetensors_count(const td_safetensors *file) {
    return file->n_entries;
}

const td_tensor *td_safetensors_at(const td_safetensors *file, size_t i) {
    return &file->entries[i].t;
}

const td_tensor *td_safetensors_find(const td_safetensors *file, const char *name) {
    size_t lo = 0, hi = file->n_entries;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int order = strcmp(name, file->by_name[mid]->t.name);
        if (order == 0)
            return &file->by_name[mid]->t;
        if (order < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

const char *td_safetensors_meta(const td_safetensors *file, const char *key) {
    size_t lo = 0, hi = file->n_meta;
    while (lo < hi) {
        size_t mid = lo + (hi - lo) / 2;
        int order = strcmp(key, file->meta[mid].key);
        if (order == 0)
            return file->meta[mid].value;
        if (order < 0)
            hi = mid;
        else
            lo = mid + 1;
    }
    return NULL;
}

size_t td_safetensors_file_bytes(const td_safetensors *file) {
    return file->size;
}
