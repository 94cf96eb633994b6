/* name_map.c - the table and its hash. Slots keep the full hash: growing does not read names, and a comparison of
 * strings happens almost only on a hit. */
#include "format/name_map.h"

#include <string.h>
#include <sys/random.h>

#include "base/alloc.h"

/* ---- SipHash-2-4 ---- */

static uint64_t load64(const uint8_t *p) {
    uint64_t v = 0;
    for (int i = 7; i >= 0; i--)
        v = v << 8 | p[i];
    return v;
}

static uint64_t rotate(uint64_t v, int bits) {
    return v << bits | v >> (64 - bits);
}

static void rounds(uint64_t v[4], int n) {
    while (n-- > 0) {
        v[0] += v[1];
        v[2] += v[3];
        v[1] = rotate(v[1], 13) ^ v[0];
        v[3] = rotate(v[3], 16) ^ v[2];
        v[0] = rotate(v[0], 32);
        v[2] += v[1];
        v[0] += v[3];
        v[1] = rotate(v[1], 17) ^ v[2];
        v[3] = rotate(v[3], 21) ^ v[0];
        v[2] = rotate(v[2], 32);
    }
}

uint64_t td_siphash(const uint8_t key[16], const void *bytes, size_t n) {
    static const uint8_t text[] = "somepseudorandomlygeneratedbytes"; /* the four constants, as big-endian words */
    uint64_t k[2] = {load64(key), load64(key + 8)}, v[4];
    for (int i = 0; i < 4; i++) {
        v[i] = 0;
        for (int j = 0; j < 8; j++)
            v[i] = v[i] << 8 | text[8 * i + j];
        v[i] ^= k[i & 1];
    }
    const uint8_t *p = bytes;
    size_t left = n;
    for (; left >= 8; left -= 8, p += 8) {
        uint64_t m = load64(p);
        v[3] ^= m;
        rounds(v, 2);
        v[0] ^= m;
    }
    uint64_t last = (uint64_t)n << 56;
    for (size_t i = 0; i < left; i++)
        last |= (uint64_t)p[i] << 8 * i;
    v[3] ^= last;
    rounds(v, 2);
    v[0] ^= last;
    v[2] ^= 0xFF;
    rounds(v, 4);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

/* ---- the table ---- */

void td_name_map_init(td_name_map *m) {
    *m = (td_name_map){0};
    if (getrandom(m->key, sizeof m->key, GRND_NONBLOCK) != (ssize_t)sizeof m->key)
        memcpy(m->key, &m, sizeof m); /* early at boot: where the map lies is better than nothing */
}

void td_name_map_free(td_name_map *m) {
    td_free(m->slots);
    *m = (td_name_map){0};
}

/* The slot that holds the name, or the empty one where it would go. */
static td_name_slot *probe(const td_name_map *m, const char *name, uint64_t hash) {
    size_t mask = m->capacity - 1;
    for (size_t i = (size_t)hash & mask;; i = (i + 1) & mask) {
        td_name_slot *s = &m->slots[i];
        if (!s->name || (s->hash == hash && strcmp(s->name, name) == 0))
            return s;
    }
}

const td_name_slot *td_name_map_find(const td_name_map *m, const char *name) {
    if (m->n == 0)
        return NULL;
    const td_name_slot *s = probe(m, name, td_siphash(m->key, name, strlen(name)));
    return s->name ? s : NULL;
}

static bool grow(td_name_map *m) {
    size_t capacity = m->capacity ? m->capacity * 2 : 64;
    td_name_slot *slots = td_calloc(capacity, sizeof *slots);
    if (!slots)
        return false;
    for (size_t i = 0; i < m->capacity; i++) {
        if (!m->slots[i].name)
            continue;
        size_t j = (size_t)m->slots[i].hash & (capacity - 1);
        while (slots[j].name)
            j = (j + 1) & (capacity - 1);
        slots[j] = m->slots[i];
    }
    td_free(m->slots);
    m->slots = slots;
    m->capacity = capacity;
    return true;
}

bool td_name_map_add(td_name_map *m, const char *name, const void *value) {
    if (4 * (m->n + 1) > 3 * m->capacity && !grow(m))
        return false;
    uint64_t hash = td_siphash(m->key, name, strlen(name));
    *probe(m, name, hash) = (td_name_slot){name, value, hash};
    m->n++;
    return true;
}
