/* queue.h - who waits, in the order in which they are to be served.
 *
 * Start-time fair queueing (Goyal et al. 1996) with requests of equal weight: one who comes gets a tag one more than
 * the later of the tag last served and the last tag that its owner has waiting, and the lowest tag goes first, of equal
 * ones the older. An owner who asks for a thousand things has them done between other people's single ones, and nobody
 * starves: whoever comes later than you have waited gets no lower tag.
 *
 * The list is in that order, so the next is its first; only coming in takes a walk, from the back. Entries belong to
 * their owners, and the queue to one lock of theirs. */
#ifndef TD_ENGINE_QUEUE_H
#define TD_ENGINE_QUEUE_H

#include <stdint.h>

typedef struct td_waiting {
    struct td_waiting *prev, *next;
    uint64_t owner, tag;
} td_waiting;

/* Zeroed, it is empty. */
typedef struct td_queue {
    td_waiting *first, *last;
    td_waiting *turn; /* of td_queue_turn; NULL: the first's */
    uint64_t served;  /* the highest tag served */
    uint32_t n;
} td_queue;

void td_queue_put(td_queue *q, td_waiting *w, uint64_t owner);
/* Takes one that waits out, to be served or not at all. */
void td_queue_serve(td_queue *q, td_waiting *w);
void td_queue_drop(td_queue *q, td_waiting *w);
/* Each of those who wait in turn, round and round; NULL: nobody does. */
td_waiting *td_queue_turn(td_queue *q);

#endif
