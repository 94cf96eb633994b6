/* queue.c - see queue.h. */
#include "engine/queue.h"

#include <stddef.h>

static uint64_t next_tag(const td_queue *q, uint64_t owner) {
    const td_waiting *at = q->last;
    while (at && at->owner != owner)
        at = at->prev;
    return 1 + (at && at->tag > q->served ? at->tag : q->served);
}

void td_queue_put(td_queue *q, td_waiting *w, uint64_t owner) {
    w->owner = owner;
    w->tag = next_tag(q, owner);
    w->prev = q->last;
    while (w->prev && w->prev->tag > w->tag)
        w->prev = w->prev->prev;
    w->next = w->prev ? w->prev->next : q->first;
    *(w->prev ? &w->prev->next : &q->first) = w;
    *(w->next ? &w->next->prev : &q->last) = w;
    q->n++;
}

void td_queue_drop(td_queue *q, td_waiting *w) {
    if (q->turn == w)
        q->turn = w->next;
    *(w->prev ? &w->prev->next : &q->first) = w->next;
    *(w->next ? &w->next->prev : &q->last) = w->prev;
    w->prev = w->next = NULL;
    q->n--;
}

void td_queue_serve(td_queue *q, td_waiting *w) {
    q->served = w->tag > q->served ? w->tag : q->served; /* one that was passed over has a lower one */
    td_queue_drop(q, w);
}

td_waiting *td_queue_turn(td_queue *q) {
    td_waiting *w = q->turn ? q->turn : q->first;
    q->turn = w ? w->next : NULL;
    return w;
}
