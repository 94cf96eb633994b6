/* shard_index.c - the index, read without a tree: one pass collects names, a second makes them pointers. */
#include "format/shard_index.h"

#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "format/json_scan.h"
#include "format/safetensors.h"

#define INDEX_MAX_DEPTH 8

/* While the block of names grows, entries hold offsets. */
typedef struct pending {
    size_t tensor_at, shard_at; /* in names */
    size_t pos;                 /* of the tensor's name in the text */
} pending;

typedef struct builder {
    td_json_scan scan;
    td_buf names;
    pending *entries;
    size_t n, capacity;
    size_t last_shard_at; /* neighbours mostly share their file: keep its name once */
    bool seen_map;
} builder;

static td_status no_memory(const char *where, td_error *err) {
    return td_fail(err, TD_E_NOMEM, "%s: out of memory", where);
}

static size_t keep(td_buf *names, const char *str, size_t size) {
    size_t at = names->size;
    (void)td_buf_append(names, str, size);
    (void)td_buf_putc(names, '\0');
    return at;
}

/* A file beside the index and nothing else. */
static bool is_plain_shard_name(const char *str, size_t size) {
    static const char suffix[] = ".safetensors";
    const size_t n = sizeof suffix - 1;
    if (size <= n || size > 255 || str[0] == '.' || memcmp(str + size - n, suffix, n) != 0)
        return false;
    for (size_t i = 0; i < size; i++)
        if (str[i] == '/' || str[i] == '\\' || (unsigned char)str[i] < 0x20)
            return false;
    return true;
}

static td_status read_mapping(builder *b, td_error *err) {
    td_json_scan *s = &b->scan;
    const char *str;
    size_t size;
    if (b->n == b->capacity) {
        size_t wanted = b->capacity ? b->capacity * 2 : 64;
        pending *p = td_realloc(b->entries, wanted, sizeof *p);
        if (!p)
            return no_memory(s->where, err);
        b->entries = p;
        b->capacity = wanted;
    }
    pending *e = &b->entries[b->n];
    (void)td_json_scan_peek(s);
    e->pos = s->pos;
    TD_TRY(td_json_scan_key(s, &str, &size, err));
    if (size > TD_SAFETENSORS_MAX_NAME)
        return td_json_scan_fail(s, e->pos, err, "a tensor name of %zu bytes, expected at most %d", size,
                                 TD_SAFETENSORS_MAX_NAME);
    e->tensor_at = keep(&b->names, str, size);
    (void)td_json_scan_peek(s);
    size_t pos = s->pos;
    TD_TRY(td_json_scan_string(s, &str, &size, err));
    char shown[TD_SHOWN_SIZE];
    if (!is_plain_shard_name(str, size))
        return td_json_scan_fail(s, pos, err, "shard \"%s\" is not a plain file name ending in .safetensors",
                                 td_shown(shown, str, size));
    if (b->names.failed)
        return no_memory(s->where, err);
    const char *last = b->n > 0 ? b->names.data + b->last_shard_at : "";
    if (strlen(last) != size || memcmp(last, str, size) != 0)
        b->last_shard_at = keep(&b->names, str, size);
    e->shard_at = b->last_shard_at;
    b->n++;
    return b->names.failed ? no_memory(s->where, err) : TD_OK;
}

static td_status read_weight_map(builder *b, td_error *err) {
    TD_TRY(td_json_scan_enter(&b->scan, '{', err));
    for (;;) {
        bool more;
        TD_TRY(td_json_scan_next(&b->scan, &more, err));
        if (!more)
            return TD_OK;
        TD_TRY(read_mapping(b, err));
    }
}

static td_status read_text(builder *b, td_error *err) {
    td_json_scan *s = &b->scan;
    TD_TRY(td_json_scan_enter(s, '{', err));
    for (;;) {
        bool more;
        const char *key;
        size_t size;
        TD_TRY(td_json_scan_next(s, &more, err));
        if (!more)
            break;
        size_t pos = s->pos;
        TD_TRY(td_json_scan_key(s, &key, &size, err));
        if (size != 10 || memcmp(key, "weight_map", 10) != 0) {
            TD_TRY(td_json_scan_skip(s, err));
            continue;
        }
        if (b->seen_map)
            return td_json_scan_fail(s, pos, err, "weight_map occurs twice");
        b->seen_map = true;
        TD_TRY(read_weight_map(b, err));
    }
    TD_TRY(td_json_scan_end(s, err));
    if (!b->seen_map)
        return td_fail(err, TD_E_FORMAT, "%s: no weight_map", s->where);
    return b->n ? TD_OK : td_fail(err, TD_E_FORMAT, "%s: an empty weight_map", s->where);
}

/* Shard names once each, in order; entries get their number. */
static td_status number_shards(td_shard_index *x, builder *b, td_error *err) {
    const char *where = b->scan.where;
    td_name_map seen; /* name -> its place in x->shards */
    td_name_map_init(&seen);
    x->entries = td_calloc(b->n, sizeof *x->entries);
    x->shards = td_calloc(b->n, sizeof *x->shards);
    td_status st = x->entries && x->shards ? TD_OK : no_memory(where, err);
    for (size_t i = 0; i < b->n && st == TD_OK; i++) {
        const char *shard = x->names + b->entries[i].shard_at;
        const td_name_slot *slot = td_name_map_find(&seen, shard);
        const char **place = slot ? (const char **)(uintptr_t)slot->value : &x->shards[x->n_shards];
        if (!slot) {
            *place = shard;
            x->n_shards++;
            if (!td_name_map_add(&seen, shard, place))
                st = no_memory(where, err);
        }
        x->entries[i] = (td_shard_entry){x->names + b->entries[i].tensor_at, (uint32_t)(place - x->shards)};
    }
    x->n_entries = b->n;
    td_name_map_free(&seen);
    return st;
}

static td_status map_tensors(td_shard_index *x, builder *b, td_error *err) {
    for (size_t i = 0; i < x->n_entries; i++) {
        const char *name = x->entries[i].tensor;
        char shown[TD_SHOWN_SIZE];
        if (td_name_map_find(&x->by_tensor, name))
            return td_json_scan_fail(&b->scan, b->entries[i].pos, err, "tensor \"%s\" occurs twice",
                                     td_shown(shown, name, strlen(name)));
        if (!td_name_map_add(&x->by_tensor, name, &x->entries[i]))
            return no_memory(b->scan.where, err);
    }
    return TD_OK;
}

static td_status build(td_shard_index *x, builder *b, td_error *err) {
    TD_TRY(read_text(b, err));
    x->names = td_buf_steal(&b->names);
    if (!x->names)
        return no_memory(b->scan.where, err);
    TD_TRY(number_shards(x, b, err));
    return map_tensors(x, b, err);
}

td_status td_shard_index_parse(td_shard_index *index, const char *text, size_t size, const char *where, td_error *err) {
    *index = (td_shard_index){0};
    td_name_map_init(&index->by_tensor);
    builder b = {0};
    td_json_scan_init(&b.scan, text, size, 0, INDEX_MAX_DEPTH, where);
    td_buf_init(&b.names, 2 * size + 2);
    td_status st = build(index, &b, err);
    td_json_scan_free(&b.scan);
    td_buf_free(&b.names);
    td_free(b.entries);
    if (st != TD_OK)
        td_shard_index_free(index);
    return st;
}

void td_shard_index_free(td_shard_index *index) {
    td_name_map_free(&index->by_tensor);
    td_free(index->entries);
    td_free(index->shards);
    td_free(index->names);
    *index = (td_shard_index){0};
}
