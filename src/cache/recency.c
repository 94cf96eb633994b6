/* recency.c - the heap; every item knows its place in it. */
#include "cache/recency.h"

#include "base/alloc.h"

void td_recency_free(td_recency *r) {
    td_free(r->item);
    *r = (td_recency){0};
}

bool td_recency_reserve(td_recency *r, uint32_t n) {
    if (n <= r->capacity)
        return true;
    uint32_t capacity = n < 32 ? 64 : n <= UINT32_MAX / 2 ? 2 * n : n;
    td_recency_item **item = td_realloc(r->item, capacity, sizeof(td_recency_item *));
    if (!item)
        return false;
    r->item = item;
    r->capacity = capacity;
    return true;
}

static void put(td_recency *r, uint32_t at, td_recency_item *item) {
    r->item[at] = item;
    item->place = at + 1;
}

static void rise(td_recency *r, uint32_t at) {
    td_recency_item *item = r->item[at];
    for (; at && r->item[(at - 1) / 2]->clock > item->clock; at = (at - 1) / 2)
        put(r, at, r->item[(at - 1) / 2]);
    put(r, at, item);
}

static void sink(td_recency *r, uint32_t at) {
    td_recency_item *item = r->item[at];
    for (uint32_t child; (child = 2 * at + 1) < r->n; at = child) {
        if (child + 1 < r->n && r->item[child + 1]->clock < r->item[child]->clock)
            child++;
        if (r->item[child]->clock >= item->clock)
            break;
        put(r, at, r->item[child]);
    }
    put(r, at, item);
}

void td_recency_add(td_recency *r, td_recency_item *item) {
    if (item->place)
        return;
    put(r, r->n++, item);
    rise(r, r->n - 1);
}

void td_recency_remove(td_recency *r, td_recency_item *item) {
    if (!item->place)
        return;
    uint32_t at = item->place - 1;
    td_recency_item *last = r->item[--r->n];
    item->place = 0;
    if (last == item)
        return;
    put(r, at, last);
    rise(r, at);
    sink(r, last->place - 1);
}

void td_recency_touch(td_recency *r, td_recency_item *item, uint64_t clock) {
    item->clock = clock;
    if (!item->place)
        return;
    rise(r, item->place - 1);
    sink(r, item->place - 1);
}

td_recency_item *td_recency_oldest(const td_recency *r) {
    return r->n ? r->item[0] : NULL;
}
