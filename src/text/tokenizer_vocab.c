/* tokenizer_vocab.c - one pool of names, an array by id, and a hash table of ids.
 *
 * A quarter of a million names: the pool and the arrays grow by doubling, a slot keeps the hash so that growing
 * the table reads no name and a look-up compares a name only when it is almost surely the right one. */
#include "text/tokenizer_vocab.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "format/json_scan.h"

#define MAX_PROBES 512 /* at half load a fair hash needs some thirty */

void td_vocab_init(td_vocab *v, size_t max_id) {
    *v = (td_vocab){.max_id = max_id < INT32_MAX ? max_id : INT32_MAX - 1};
}

void td_vocab_free(td_vocab *v) {
    td_free(v->pool);
    td_free(v->pieces);
    td_free(v->flags);
    td_free(v->slots);
    *v = (td_vocab){0};
}

/* ---- hashing ---- */

static uint64_t fold(uint64_t a, uint64_t b) {
    unsigned __int128 p = (unsigned __int128)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

static uint32_t hash_name(const char *s, size_t n) {
    uint64_t h = 0x9E3779B97F4A7C15u ^ n, word;
    for (; n > 8; s += 8, n -= 8) {
        memcpy(&word, s, 8);
        h = fold(h ^ word, 0xD6E8FEB86659FD93u);
    }
    word = 0;
    memcpy(&word, s, n);
    return (uint32_t)(fold(fold(h ^ word, 0xA0761D6478BD642Fu), 0xE7037ED1A0B428DBu) >> 32);
}

/* The slot of this name, or the free one where it belongs; NULL when neither comes within MAX_PROBES. */
static td_vocab_slot *slot_of(const td_vocab *v, const char *name, size_t size, uint32_t h) {
    size_t i = h & (v->n_slots - 1);
    for (int probe = 0; probe < MAX_PROBES; probe++, i = (i + 1) & (v->n_slots - 1)) {
        td_vocab_slot *slot = &v->slots[i];
        if (slot->id < 0)
            return slot;
        const td_vocab_piece *p = &v->pieces[slot->id];
        if (slot->hash == h && p->size == size && memcmp(v->pool + p->offset, name, size) == 0)
            return slot;
    }
    return NULL;
}

td_token td_vocab_find(const td_vocab *v, const char *name, size_t size) {
    if (v->n_slots == 0)
        return -1;
    const td_vocab_slot *slot = slot_of(v, name, size, hash_name(name, size));
    return slot ? slot->id : -1;
}

/* ---- growth ---- */

static td_status grow_slots(td_vocab *v, td_error *err) {
    if (v->n_used * 2 < v->n_slots)
        return TD_OK;
    size_t n_slots = v->n_slots ? v->n_slots * 2 : 1024;
    td_vocab_slot *slots = td_malloc(n_slots * sizeof *slots);
    if (!slots)
        return td_fail(err, TD_E_NOMEM, "out of memory for a vocabulary of %zu names", v->n_used);
    memset(slots, 0xFF, n_slots * sizeof *slots);
    for (size_t old = 0; old < v->n_slots; old++) {
        if (v->slots[old].id < 0)
            continue;
        size_t i = v->slots[old].hash & (n_slots - 1);
        while (slots[i].id >= 0)
            i = (i + 1) & (n_slots - 1);
        slots[i] = v->slots[old];
    }
    td_free(v->slots);
    v->slots = slots;
    v->n_slots = n_slots;
    return TD_OK;
}

/* Room for id: unused ids below it have neither name nor flags. */
static td_status grow_ids(td_vocab *v, size_t id, td_error *err) {
    if (id >= v->capacity) {
        size_t capacity = v->capacity ? v->capacity : 256;
        while (capacity <= id)
            capacity *= 2;
        td_vocab_piece *pieces = td_realloc(v->pieces, capacity, sizeof *pieces);
        if (pieces)
            v->pieces = pieces;
        uint8_t *flags = pieces ? td_realloc(v->flags, capacity, 1) : NULL;
        if (!flags)
            return td_fail(err, TD_E_NOMEM, "out of memory for %zu token ids", capacity);
        v->flags = flags;
        v->capacity = capacity;
    }
    if (id >= v->n) {
        memset(v->pieces + v->n, 0, (id + 1 - v->n) * sizeof *v->pieces);
        memset(v->flags + v->n, 0, id + 1 - v->n);
        v->n = id + 1;
    }
    return TD_OK;
}

static td_status grow_pool(td_vocab *v, size_t extra, td_error *err) {
    size_t need = v->pool_size + extra + 1; /* so that an empty name lies somewhere too */
    if (need > UINT32_MAX)
        return td_fail(err, TD_E_LIMIT, "the names of the vocabulary exceed 4 GiB");
    if (need <= v->pool_capacity)
        return TD_OK;
    size_t capacity = v->pool_capacity ? v->pool_capacity * 2 : 4096;
    while (capacity < need)
        capacity *= 2;
    char *pool = td_realloc(v->pool, capacity, 1);
    if (!pool)
        return td_fail(err, TD_E_NOMEM, "out of memory for the names of the vocabulary");
    v->pool = pool;
    v->pool_capacity = capacity;
    return TD_OK;
}

td_status td_vocab_add(td_vocab *v, const char *name, size_t size, uint64_t id, uint8_t flags, td_error *err) {
    char shown[TD_SHOWN_SIZE], other_shown[TD_SHOWN_SIZE];
    if (id > v->max_id)
        return td_fail(err, TD_E_LIMIT, "token \"%s\" has id %" PRIu64 ", expected at most %zu for a file of this size",
                       td_shown(shown, name, size), id, v->max_id);
    if (td_vocab_has(v, (td_token)id)) {
        size_t n;
        const char *other = td_vocab_name(v, (td_token)id, &n);
        return td_fail(err, TD_E_MODEL, "id %" PRIu64 " is given to \"%s\" and to \"%s\"", id,
                       td_shown(other_shown, other, n), td_shown(shown, name, size));
    }
    TD_TRY(grow_slots(v, err));
    TD_TRY(grow_ids(v, (size_t)id, err));
    TD_TRY(grow_pool(v, size, err));
    uint32_t h = hash_name(name, size);
    td_vocab_slot *slot = slot_of(v, name, size, h);
    if (!slot)
        return td_fail(err, TD_E_LIMIT, "too many names of the vocabulary share one hash");
    if (slot->id >= 0)
        return td_fail(err, TD_E_MODEL, "\"%s\" is in the vocabulary twice, as id %d and as id %" PRIu64,
                       td_shown(shown, name, size), slot->id, id);
    *slot = (td_vocab_slot){h, (int32_t)id};
    memcpy(v->pool + v->pool_size, name, size);
    v->pieces[id] = (td_vocab_piece){(uint32_t)v->pool_size, (uint32_t)size};
    v->flags[id] = flags;
    v->pool_size += size;
    v->n_used++;
    return TD_OK;
}
