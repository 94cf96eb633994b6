/* snapshot.h - copies of one sequence's recurrent memory, by position.
 *
 * Recurrent memory cannot be shortened: to go back to a position is to have a copy that was made there. A copy stands
 * for a number of tokens, exactly; it is made where that number was really computed (as a mark in the middle of a pass,
 * or of a state that stands still) and is good as long as those tokens, and their keys, are. Restored and continued it
 * gives the bits of a run that was never interrupted.
 *
 * The store is small and drops what is cheapest to do without: the copy that lies closest behind another. Having no
 * room is never an error; there is one copy fewer, then. */
#ifndef TD_CACHE_SNAPSHOT_H
#define TD_CACHE_SNAPSHOT_H

#include "model/model.h"

typedef struct td_snapshots td_snapshots;

typedef struct td_snapshot {
    uint32_t position; /* tokens that are in it, >= 1 */
    uint8_t *state;    /* [model info.snapshot_bytes], backend memory */
    float *hidden;     /* [n_embd] final hidden state of position - 1, when has_hidden */
    bool has_hidden;
    bool passing; /* made where a pass happened to end, for want of a better place */
    bool whole;   /* false between td_snapshots_make and td_snapshots_keep */
} td_snapshot;

/* At most `most` copies (0: none, and every call is harmless) of a sequence of `model`, which must outlive the store
 * and have recurrent memory. Copies take memory when they are first made, and keep it. */
td_status td_snapshots_open(td_snapshots **out, td_model *model, uint32_t most, td_error *err) TD_MUST_CHECK;
void td_snapshots_close(td_snapshots **s);

uint32_t td_snapshots_count(const td_snapshots *s);
/* Bytes allocated. */
uint64_t td_snapshots_bytes(const td_snapshots *s);

/* Room for a copy at `position`, for the caller to fill; NULL when there is one already, or no room. */
td_snapshot *td_snapshots_make(td_snapshots *s, uint32_t position);
/* It is filled. hidden: [n_embd] or NULL. `made` may be NULL. */
void td_snapshots_keep(td_snapshots *s, td_snapshot *made, const float *hidden);

/* The latest at or before `position`; NULL: none. Valid until the next make or forget. */
const td_snapshot *td_snapshots_find(const td_snapshots *s, uint32_t position);

/* Offers every whole copy to `take`, oldest position first. One for which it returns true is no longer in the store;
 * what `take` has moved out of it (state, hidden) it has set to NULL. */
void td_snapshots_hand_over(td_snapshots *s, bool (*take)(void *user, td_snapshot *copy), void *user);

/* Drops copies past `position` (0: all), and those that were never filled. */
void td_snapshots_forget(td_snapshots *s, uint32_t position);

#endif
