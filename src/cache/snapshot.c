/* snapshot.c - a handful of slots; positions are few enough to be searched one by one. */
#include "cache/snapshot.h"

#include <string.h>

#include "base/alloc.h"

struct td_snapshots {
    td_model *model;
    uint32_t most;
    td_snapshot *slot; /* [most] position 0: free */
};

td_status td_snapshots_open(td_snapshots **out, td_model *model, uint32_t most, td_error *err) {
    *out = NULL;
    td_snapshots *s = td_calloc(1, sizeof *s);
    td_snapshot *slot = td_calloc(most, sizeof *slot);
    if (!s || !slot) {
        td_free(s);
        td_free(slot);
        return td_fail(err, TD_E_NOMEM, "out of memory for %u snapshots", most);
    }
    *s = (td_snapshots){.model = model, .most = most, .slot = slot};
    *out = s;
    return TD_OK;
}

void td_snapshots_close(td_snapshots **ps) {
    if (!ps || !*ps)
        return;
    td_snapshots *s = *ps;
    for (uint32_t i = 0; i < s->most; i++) {
        if (s->slot[i].state)
            s->model->be->ops->free(s->model->be, s->slot[i].state);
        td_free_aligned(s->slot[i].hidden);
    }
    td_free(s->slot);
    td_free(s);
    *ps = NULL;
}

uint32_t td_snapshots_count(const td_snapshots *s) {
    uint32_t n = 0;
    for (uint32_t i = 0; i < s->most; i++)
        n += s->slot[i].position && s->slot[i].whole;
    return n;
}

uint64_t td_snapshots_bytes(const td_snapshots *s) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < s->most; i++)
        if (s->slot[i].state)
            bytes += s->model->info.snapshot_bytes + s->model->info.n_embd * sizeof(float);
    return bytes;
}

/* Memory for a slot that has had none. */
static bool furnish(const td_snapshots *s, td_snapshot *slot) {
    if (!slot->state)
        slot->state = s->model->be->ops->alloc(s->model->be, s->model->info.snapshot_bytes);
    if (!slot->hidden)
        slot->hidden = td_malloc_aligned(s->model->info.n_embd * sizeof(float));
    return slot->state && slot->hidden;
}

/* Tokens that would be computed again if `slot` were wanted and not there. */
static uint32_t worth(const td_snapshots *s, const td_snapshot *slot) {
    uint32_t before = 0;
    for (uint32_t i = 0; i < s->most; i++)
        if (s->slot[i].position < slot->position && s->slot[i].position > before)
            before = s->slot[i].position;
    return slot->position - before;
}

/* A free slot, or that of the whole copy worth least; NULL: none of either. */
static td_snapshot *room(const td_snapshots *s) {
    td_snapshot *least = NULL;
    for (uint32_t i = 0; i < s->most; i++) {
        td_snapshot *p = &s->slot[i];
        if (!p->position)
            return p;
        if (p->whole && (!least || worth(s, p) < worth(s, least)))
            least = p;
    }
    return least;
}

td_snapshot *td_snapshots_make(td_snapshots *s, uint32_t position) {
    const td_snapshot *last = td_snapshots_find(s, position);
    if (!position || (last && last->position == position))
        return NULL;
    td_snapshot *p = room(s);
    if (!p)
        return NULL;
    p->position = 0;
    if (!furnish(s, p))
        return NULL;
    p->position = position;
    p->whole = p->has_hidden = p->passing = false;
    return p;
}

void td_snapshots_keep(td_snapshots *s, td_snapshot *made, const float *hidden) {
    if (!made)
        return;
    made->whole = true;
    made->has_hidden = hidden != NULL;
    if (hidden)
        memcpy(made->hidden, hidden, s->model->info.n_embd * sizeof(float));
}

const td_snapshot *td_snapshots_find(const td_snapshots *s, uint32_t position) {
    const td_snapshot *best = NULL;
    for (uint32_t i = 0; i < s->most; i++) {
        const td_snapshot *p = &s->slot[i];
        if (p->position && p->whole && p->position <= position && (!best || p->position > best->position))
            best = p;
    }
    return best;
}

/* The whole copy with the lowest position past `position`, or NULL. */
static td_snapshot *next_after(const td_snapshots *s, uint32_t position) {
    td_snapshot *next = NULL;
    for (uint32_t i = 0; i < s->most; i++) {
        td_snapshot *p = &s->slot[i];
        if (p->whole && p->position > position && (!next || p->position < next->position))
            next = p;
    }
    return next;
}

void td_snapshots_hand_over(td_snapshots *s, bool (*take)(void *user, td_snapshot *copy), void *user) {
    uint32_t position = 0;
    for (td_snapshot *p; (p = next_after(s, position));) {
        position = p->position;
        if (take(user, p))
            p->position = 0;
    }
}

void td_snapshots_forget(td_snapshots *s, uint32_t position) {
    for (uint32_t i = 0; i < s->most; i++)
        if (s->slot[i].position > position || !s->slot[i].whole)
            s->slot[i].position = 0;
}
