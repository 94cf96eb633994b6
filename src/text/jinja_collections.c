/* jinja_collections.c - lists and dictionaries of a run, and sorting.
 *
 * A dictionary keeps its entries in order of insertion, as Python's does; lookups scan while there are few and use an
 * open-addressing index after that. Keys come from requests, so a lookup that probes long is charged for it: colliding
 * keys run into the step limit, not into quadratic time. */
#include <math.h>
#include <string.h>

#include "text/jinja_internal.h"

enum { SCAN_LIMIT = 8 };

/* ---- lists ---- */

td_status td_jlist_new(td_jrun *r, td_jflavour flavour, size_t capacity, td_jlist **out) {
    *out = NULL;
    td_jlist *list = td_jrun_alloc(r, 1, sizeof *list);
    if (!list)
        return td_jrun_nomem(r);
    *list = (td_jlist){.flavour = flavour, .capacity = capacity};
    if (capacity && !(list->items = td_jrun_alloc(r, capacity, sizeof *list->items)))
        return td_jrun_nomem(r);
    *out = list;
    return TD_OK;
}

td_status td_jlist_push(td_jrun *r, td_jlist *list, td_jv v) {
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? 2 * list->capacity : 4;
        td_jv *items = td_jrun_alloc(r, capacity, sizeof *items);
        if (!items)
            return td_jrun_nomem(r);
        if (list->n)
            memcpy(items, list->items, list->n * sizeof *items);
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->n++] = v;
    return TD_OK;
}

td_status td_jlist_of(td_jrun *r, td_jflavour flavour, const td_jv *items, size_t n, td_jv *out) {
    td_jlist *list;
    TD_TRY(td_jrun_charge(r, n));
    TD_TRY(td_jlist_new(r, flavour, n, &list));
    if (n)
        memcpy(list->items, items, n * sizeof *items);
    list->n = n;
    *out = td_jv_list(list);
    return TD_OK;
}

td_status td_jv_pair(td_jrun *r, td_jv a, td_jv b, td_jv *out) {
    td_jv items[2] = {a, b};
    return td_jlist_of(r, TD_J_TUPLE, items, 2, out);
}

/* ---- hashing ---- */

static uint64_t mix(uint64_t h) {
    h ^= h >> 33;
    h *= 0xff51afd7ed558ccdu;
    return h ^ h >> 33;
}

uint64_t td_jhash_text(td_jv s) {
    uint64_t h = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < s.size; i++)
        h = (h ^ (unsigned char)s.text[i]) * 0x100000001b3u;
    return mix(h);
}

/* Numbers that are equal hash alike, whatever their type: a float that is a whole number hashes as that integer. */
static uint64_t hash_number(td_jv v) {
    if (td_jv_is_integral(v))
        return mix((uint64_t)td_jv_integral(v));
    double d = v.real;
    if (d == floor(d) && d >= -9.2e18 && d <= 9.2e18)
        return mix((uint64_t)(int64_t)d);
    uint64_t bits;
    memcpy(&bits, &d, sizeof bits);
    return mix(bits ^ 0x5bf03635u);
}

static td_status hash_value(td_jrun *r, td_jv v, uint64_t *hash);

static td_status hash_tuple(td_jrun *r, const td_jlist *list, uint64_t *hash) {
    uint64_t h = 0x345678, part;
    TD_TRY(td_jrun_enter(r));
    TD_TRY(td_jrun_charge(r, list->n));
    for (size_t i = 0; i < list->n; i++) {
        TD_TRY(hash_value(r, list->items[i], &part));
        h = mix(h + part);
    }
    td_jrun_leave(r);
    *hash = h;
    return TD_OK;
}

static td_status hash_value(td_jrun *r, td_jv v, uint64_t *hash) {
    *hash = 0;
    switch ((td_jkind)v.kind) {
    case TD_J_STRING:
        TD_TRY(td_jrun_charge(r, v.size));
        *hash = td_jhash_text(v);
        return TD_OK;
    case TD_J_BOOL:
    case TD_J_INT:
    case TD_J_FLOAT:
        *hash = hash_number(v);
        return TD_OK;
    case TD_J_LIST:
        if (v.list->flavour == TD_J_TUPLE || v.list->flavour == TD_J_GROUP)
            return hash_tuple(r, v.list, hash);
        return td_jrun_fail(r, TD_E_FORMAT, "unhashable type: '%s'", td_jv_type_name(v));
    case TD_J_DICT:
        return td_jrun_fail(r, TD_E_FORMAT, "unhashable type: '%s'", td_jv_type_name(v));
    default:
        *hash = mix(v.kind);
        return TD_OK;
    }
}

/* ---- dictionaries ---- */

td_status td_jdict_new(td_jrun *r, size_t capacity, td_jdict **out) {
    *out = NULL;
    td_jdict *dict = td_jrun_alloc(r, 1, sizeof *dict);
    if (!dict)
        return td_jrun_nomem(r);
    *dict = (td_jdict){.capacity = capacity};
    if (capacity && !(dict->entries = td_jrun_alloc(r, capacity, sizeof *dict->entries)))
        return td_jrun_nomem(r);
    *out = dict;
    return TD_OK;
}

static td_status same_key(td_jrun *r, const td_jentry *e, td_jv key, uint64_t hash, bool *same) {
    *same = false;
    if (e->hash != hash)
        return TD_OK;
    if (e->key.kind == TD_J_STRING && key.kind == TD_J_STRING) {
        *same = e->key.size == key.size && !memcmp(e->key.text, key.text, key.size);
        return TD_OK;
    }
    return td_jv_equal(r, e->key, key, same);
}

static td_status find_hashed(td_jrun *r, const td_jdict *dict, td_jv key, uint64_t hash, td_jentry **entry) {
    bool same;
    *entry = NULL;
    if (!dict->n_slots) {
        for (size_t i = 0; i < dict->n; i++) {
            TD_TRY(same_key(r, &dict->entries[i], key, hash, &same));
            if (same) {
                *entry = &dict->entries[i];
                return TD_OK;
            }
        }
        return TD_OK;
    }
    size_t mask = dict->n_slots - 1, probes = 0;
    for (size_t slot = hash & mask; dict->slots[slot]; slot = (slot + 1) & mask) {
        td_jentry *e = &dict->entries[dict->slots[slot] - 1];
        TD_TRY(same_key(r, e, key, hash, &same));
        if (same) {
            *entry = e;
            return TD_OK;
        }
        if (++probes % 16 == 0)
            TD_TRY(td_jrun_charge(r, 0));
    }
    return TD_OK;
}

td_status td_jdict_find(td_jrun *r, const td_jdict *dict, td_jv key, td_jentry **entry) {
    uint64_t hash;
    TD_TRY(hash_value(r, key, &hash));
    return find_hashed(r, dict, key, hash, entry);
}

static void index_entry(td_jdict *dict, size_t at) {
    size_t mask = dict->n_slots - 1, slot = dict->entries[at].hash & mask;
    while (dict->slots[slot])
        slot = (slot + 1) & mask;
    dict->slots[slot] = (uint32_t)at + 1;
}

static td_status rebuild_index(td_jrun *r, td_jdict *dict) {
    size_t n_slots = dict->n_slots ? dict->n_slots : 4 * SCAN_LIMIT;
    while (n_slots < 2 * dict->n)
        n_slots *= 2;
    TD_TRY(td_jrun_charge(r, n_slots));
    if (n_slots > dict->n_slots) {
        dict->slots = td_jrun_alloc(r, n_slots, sizeof *dict->slots);
        if (!dict->slots)
            return td_jrun_nomem(r);
        dict->n_slots = n_slots;
    }
    memset(dict->slots, 0, n_slots * sizeof *dict->slots);
    for (size_t i = 0; i < dict->n; i++)
        index_entry(dict, i);
    return TD_OK;
}

static td_status grow_entries(td_jrun *r, td_jdict *dict) {
    size_t capacity = dict->capacity ? 2 * dict->capacity : 4;
    td_jentry *entries = td_jrun_alloc(r, capacity, sizeof *entries);
    if (!entries)
        return td_jrun_nomem(r);
    if (dict->n)
        memcpy(entries, dict->entries, dict->n * sizeof *entries);
    dict->entries = entries;
    dict->capacity = capacity;
    return TD_OK;
}

td_status td_jdict_set(td_jrun *r, td_jdict *dict, td_jv key, td_jv value) {
    uint64_t hash;
    td_jentry *entry;
    TD_TRY(hash_value(r, key, &hash));
    TD_TRY(find_hashed(r, dict, key, hash, &entry));
    if (entry) {
        entry->value = value;
        return TD_OK;
    }
    if (dict->n == dict->capacity)
        TD_TRY(grow_entries(r, dict));
    dict->entries[dict->n++] = (td_jentry){key, value, hash};
    if (!dict->n_slots && dict->n <= SCAN_LIMIT)
        return TD_OK;
    if (2 * dict->n > dict->n_slots)
        return rebuild_index(r, dict);
    index_entry(dict, dict->n - 1);
    return TD_OK;
}

td_status td_jdict_remove(td_jrun *r, td_jdict *dict, size_t at) {
    TD_TRY(td_jrun_charge(r, dict->n));
    memmove(&dict->entries[at], &dict->entries[at + 1], (dict->n - at - 1) * sizeof *dict->entries);
    dict->n--;
    return dict->n_slots ? rebuild_index(r, dict) : TD_OK;
}

/* ---- sorting ---- */

/* Merges two neighbouring sorted runs of `order`. Taking the right side only when it is strictly before the left one
 * keeps the sort stable; descending order compares the other way round, which is stable too, as Python's is. */
static td_status merge(td_jrun *r, const td_jv *keys, const uint32_t *from, uint32_t *to, size_t left, size_t right,
                       size_t end, bool reverse) {
    size_t i = left, j = right;
    for (size_t k = left; k < end; k++) {
        bool take_right = i == right;
        if (i < right && j < end)
            TD_TRY(td_jv_order(r, reverse ? TD_JOP_GT : TD_JOP_LT, keys[from[j]], keys[from[i]], &take_right));
        to[k] = take_right ? from[j++] : from[i++];
    }
    return TD_OK;
}

td_status td_jv_sort(td_jrun *r, td_jv *keys, td_jv *items, size_t n, bool reverse) {
    uint32_t *order = td_jrun_alloc(r, n, sizeof *order), *spare = td_jrun_alloc(r, n, sizeof *spare);
    td_jv *sorted = td_jrun_alloc(r, n, sizeof *sorted);
    if (!order || !spare || !sorted)
        return td_jrun_nomem(r);
    for (size_t i = 0; i < n; i++)
        order[i] = (uint32_t)i;
    for (size_t width = 1; width < n; width *= 2) {
        for (size_t left = 0; left < n; left += 2 * width) {
            size_t right = left + width < n ? left + width : n, end = right + width < n ? right + width : n;
            TD_TRY(merge(r, keys, order, spare, left, right, end, reverse));
        }
        uint32_t *swap = order;
        order = spare;
        spare = swap;
    }
    for (size_t i = 0; i < n; i++)
        sorted[i] = items[order[i]];
    if (n)
        memcpy(items, sorted, n * sizeof *items);
    for (size_t i = 0; i < n; i++)
        sorted[i] = keys[order[i]];
    if (n)
        memcpy(keys, sorted, n * sizeof *keys);
    return TD_OK;
}
