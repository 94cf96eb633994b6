/* recency.h - things that can be let go, the least recently used in front: a heap by clock.
 *
 * An item is part of what it stands for. It may be outside (what is in use, or has something that depends on it) and
 * come in later with the clock of its last use, which a list in order of use could not do without a search. */
#ifndef TD_CACHE_RECENCY_H
#define TD_CACHE_RECENCY_H

#include "base/status.h"

typedef struct td_recency_item {
    uint64_t clock; /* of the last use; while the item is inside, changed by td_recency_touch only */
    uint32_t place; /* 1 + its place in the heap; 0: outside */
    uint32_t kind;  /* the owner's business */
} td_recency_item;

typedef struct td_recency {
    td_recency_item **item; /* [n], a binary heap */
    uint32_t n, capacity;
} td_recency;

void td_recency_free(td_recency *r);

/* Room for n items in all, so that adding them cannot fail. False: out of memory. */
bool td_recency_reserve(td_recency *r, uint32_t n);

/* Adding what is inside, or removing what is outside, does nothing. */
void td_recency_add(td_recency *r, td_recency_item *item);
void td_recency_remove(td_recency *r, td_recency_item *item);
void td_recency_touch(td_recency *r, td_recency_item *item, uint64_t clock);

/* NULL: there is none inside. */
td_recency_item *td_recency_oldest(const td_recency *r);

#endif
