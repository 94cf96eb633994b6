/* name_map.h - from names to pointers, for tables that a file fills.
 *
 * Open addressing over SipHash-2-4 with a random key, so that names chosen to collide do not (a header of a hundred
 * megabytes holds millions of names). Names and values are borrowed; nothing can be removed. */
#ifndef TD_FORMAT_NAME_MAP_H
#define TD_FORMAT_NAME_MAP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct td_name_slot {
    const char *name; /* NULL: empty */
    const void *value;
    uint64_t hash;
} td_name_slot;

typedef struct td_name_map {
    td_name_slot *slots;
    size_t n, capacity; /* capacity: 0 or a power of two, never more than three quarters full */
    uint8_t key[16];
} td_name_map;

void td_name_map_init(td_name_map *m);
void td_name_map_free(td_name_map *m);
/* The slot of `name`, or NULL. */
const td_name_slot *td_name_map_find(const td_name_map *m, const char *name);
/* Adds a name that is not there yet. False: out of memory, nothing changed. */
bool td_name_map_add(td_name_map *m, const char *name, const void *value);

/* SipHash-2-4 (Aumasson, Bernstein 2012) of n bytes. */
uint64_t td_siphash(const uint8_t key[16], const void *bytes, size_t n);

#endif
