/* grammar_stack.c - nodes: sets of stacks, equal ones being one.
 *
 * A node's frames are sorted, and no two have one state (and sub-state): where two would, their rests are joined to one
 * node, so that ways that differ only further down share everything above. Without that, "a" x "b" | "a" x "c" would
 * have 2^n stacks after n a's; with it, n nodes of two frames. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "text/grammar_impl.h"

#define MAX_FRAMES 20000u /* of one node: beyond it a grammar is too ambiguous */
#define MAX_TAIL 2000u    /* frames of the deepest stack, where ambiguity joined deep and shallow ones */

static td_status oom(td_gr_automaton *a) {
    return td_fail(a->err, TD_E_NOMEM, "out of memory for the states of a grammar");
}

static td_status too_much(td_gr_automaton *a) {
    return td_fail(a->err, TD_E_LIMIT,
                   "the grammar is too ambiguous here: it has too many readings of the text so far");
}

/* ---- maps ---- */

static size_t map_slot(const td_gr_map *m, uint64_t key) {
    size_t i = (size_t)((key ^ key >> 29) * 0x9E3779B97F4A7C15u >> 20) & (m->capacity - 1);
    while (m->slots[i].stamp == m->stamp && m->slots[i].key != key)
        i = (i + 1) & (m->capacity - 1);
    return i;
}

static bool map_grow(td_gr_map *m) {
    td_gr_map more = {.capacity = m->capacity ? m->capacity * 2 : 64, .n = m->n, .stamp = 1};
    more.slots = td_calloc(more.capacity, sizeof *more.slots);
    if (!more.slots)
        return false;
    for (size_t i = 0; i < m->capacity; i++)
        if (m->slots[i].stamp == m->stamp) {
            struct td_gr_map_slot *s = &more.slots[map_slot(&more, m->slots[i].key)];
            *s = m->slots[i];
            s->stamp = 1;
        }
    td_free(m->slots);
    *m = more;
    return true;
}

bool td_gr_map_put(td_gr_map *m, uint64_t key, uint32_t value, bool *fresh) {
    if (m->n >= m->capacity / 2 && !map_grow(m))
        return false;
    struct td_gr_map_slot *s = &m->slots[map_slot(m, key)];
    *fresh = s->stamp != m->stamp;
    if (*fresh) {
        *s = (struct td_gr_map_slot){key, value, m->stamp};
        m->n++;
    }
    return true;
}

bool td_gr_map_get(const td_gr_map *m, uint64_t key, uint32_t *value) {
    if (m->capacity == 0)
        return false;
    const struct td_gr_map_slot *s = &m->slots[map_slot(m, key)];
    *value = s->value;
    return s->stamp == m->stamp;
}

void td_gr_map_clear(td_gr_map *m) {
    m->n = 0;
    m->stamp++;
    if (m->stamp == 0 && m->capacity) { /* after 2^32 times old stamps would come to life */
        memset(m->slots, 0, m->capacity * sizeof *m->slots);
        m->stamp = 1;
    }
}

void td_gr_map_free(td_gr_map *m) {
    td_free(m->slots);
    *m = (td_gr_map){0};
}

/* ---- frames ---- */

td_status td_gr_push_frame(td_gr_automaton *a, td_gr_frames *f, td_gr_frame frame) {
    if (f->n == f->capacity) {
        size_t capacity = f->capacity ? f->capacity * 2 : 16;
        td_gr_frame *v = td_realloc(f->v, capacity, sizeof *v);
        if (!v)
            return oom(a);
        f->v = v;
        f->capacity = capacity;
    }
    f->v[f->n++] = frame;
    return TD_OK;
}

/* frames[i..), also where there are none at all. */
static td_gr_frame *frames_at(const td_gr_frames *f, size_t i) {
    return f->v ? f->v + i : NULL;
}

static int by_state(const void *pa, const void *pb) {
    const td_gr_frame *a = pa, *b = pb;
    if (a->state != b->state)
        return a->state < b->state ? -1 : 1;
    if (a->sub != b->sub)
        return a->sub < b->sub ? -1 : 1;
    return (a->rest > b->rest) - (a->rest < b->rest);
}

/* ---- the table ---- */

static uint32_t hash_of(const td_gr_frame *v, size_t n, uint8_t flags) {
    uint64_t h = 0x243F6A8885A308D3u + flags;
    for (size_t i = 0; i < n; i++) {
        h = (h ^ v[i].state ^ (uint64_t)v[i].rest << 32) * 0x9E3779B97F4A7C15u;
        h = (h ^ h >> 31 ^ v[i].sub) * 0xC2B2AE3D27D4EB4Fu;
    }
    return (uint32_t)(h >> 32);
}

static td_status table_rebuild(td_gr_automaton *a, size_t size) {
    uint32_t *table = td_calloc(size, sizeof *table);
    if (!table)
        return oom(a);
    for (uint32_t i = 0; i < a->n_nodes; i++) {
        size_t at = a->nodes[i].hash & (size - 1);
        while (table[at])
            at = (at + 1) & (size - 1);
        table[at] = i + 1;
    }
    td_free(a->table);
    a->table = table;
    a->table_size = size;
    return TD_OK;
}

static bool find(const td_gr_automaton *a, const td_gr_frame *v, size_t n, uint8_t flags, uint32_t hash,
                 uint32_t *out) {
    for (size_t at = hash & (a->table_size - 1); a->table[at]; at = (at + 1) & (a->table_size - 1)) {
        const td_gr_node *node = &a->nodes[a->table[at] - 1];
        if (node->hash == hash && node->flags == flags && node->n == n &&
            (n == 0 || memcmp(a->frames.v + node->offset, v, n * sizeof *v) == 0)) {
            *out = a->table[at] - 1;
            return true;
        }
    }
    return false;
}

static td_status set_depths(td_gr_automaton *a, td_gr_node *node, const td_gr_frame *v) {
    uint32_t least = node->flags & TD_GR_EMPTY_STACK ? 0 : UINT16_MAX, most = 0;
    for (uint32_t i = 0; i < node->n; i++) {
        const td_gr_node *rest = &a->nodes[v[i].rest];
        least = rest->min_depth + 1u < least ? rest->min_depth + 1u : least;
        most = rest->max_depth + 1u > most ? rest->max_depth + 1u : most;
    }
    node->min_depth = (uint16_t)least;
    node->max_depth = (uint16_t)most;
    return most > MAX_TAIL + a->program->max_depth ? too_much(a) : TD_OK;
}

/* A node of frames in order. */
static td_status intern_sorted(td_gr_automaton *a, const td_gr_frame *v, size_t n, uint8_t flags, uint32_t *out) {
    uint32_t hash = hash_of(v, n, flags);
    if (a->table_size && find(a, v, n, flags, hash, out))
        return TD_OK;
    if (n > MAX_FRAMES || td_gr_automaton_bytes(a) > TD_GRAMMAR_MAX_BYTES)
        return too_much(a);
    if (a->n_nodes >= a->table_size / 2)
        TD_TRY(table_rebuild(a, a->table_size ? a->table_size * 2 : 256));
    if (a->n_nodes == a->nodes_capacity) {
        size_t capacity = a->nodes_capacity ? a->nodes_capacity * 2 : 64;
        td_gr_node *nodes = td_realloc(a->nodes, capacity, sizeof *nodes);
        if (!nodes)
            return oom(a);
        a->nodes = nodes;
        a->nodes_capacity = capacity;
    }
    td_gr_node node = {.offset = (uint32_t)a->frames.n, .n = (uint32_t)n, .hash = hash, .flags = flags};
    TD_TRY(set_depths(a, &node, v));
    for (size_t i = 0; i < n; i++) {
        td_status st = td_gr_push_frame(a, &a->frames, v[i]);
        if (st != TD_OK) {
            a->frames.n = node.offset;
            return st;
        }
    }
    size_t at = hash & (a->table_size - 1);
    while (a->table[at])
        at = (at + 1) & (a->table_size - 1);
    a->table[at] = (uint32_t)a->n_nodes + 1;
    *out = (uint32_t)a->n_nodes;
    a->nodes[a->n_nodes++] = node;
    return TD_OK;
}

td_status td_gr_intern(td_gr_automaton *a, td_gr_frames *f, size_t from, uint8_t flags, uint32_t *out) {
    size_t n = from;
    if (f->n - from > 1)
        qsort(frames_at(f, from), f->n - from, sizeof *f->v, by_state);
    for (size_t i = from; i < f->n; i++) {
        td_gr_frame frame = f->v[i];
        bool same = n > from && f->v[n - 1].state == frame.state && f->v[n - 1].sub == frame.sub;
        if (!same) {
            f->v[n++] = frame;
            continue;
        }
        /* a union works above f->n, where f is the scratch array itself */
        uint32_t rest;
        TD_TRY(td_gr_union(a, f->v[n - 1].rest, frame.rest, &rest));
        f->v[n - 1].rest = rest;
    }
    td_status st = intern_sorted(a, frames_at(f, from), n - from, flags, out);
    f->n = from;
    return st;
}

/* ---- unions ---- */

static int in_order(td_gr_frame a, td_gr_frame b) {
    if (a.state != b.state)
        return a.state < b.state ? -1 : 1;
    return (a.sub > b.sub) - (a.sub < b.sub);
}

/* Recursion goes down the stacks as long as their tops agree: no deeper than MAX_TAIL and the depth allowed. */
static td_status merge(td_gr_automaton *a, uint32_t x, uint32_t y, uint32_t *out) {
    td_gr_frames *s = &a->scratch;
    size_t from = s->n;
    uint32_t i = 0, k = 0, nx = a->nodes[x].n, ny = a->nodes[y].n;
    while (i < nx || k < ny) {
        const td_gr_frame *fx = i < nx ? &a->frames.v[a->nodes[x].offset + i] : NULL;
        const td_gr_frame *fy = k < ny ? &a->frames.v[a->nodes[y].offset + k] : NULL;
        int order = !fx ? 1 : !fy ? -1 : in_order(*fx, *fy);
        td_gr_frame frame = order <= 0 ? *fx : *fy;
        if (order == 0)
            TD_TRY(td_gr_union(a, fx->rest, fy->rest, &frame.rest));
        i += order <= 0;
        k += order >= 0;
        TD_TRY(td_gr_push_frame(a, s, frame));
    }
    td_status st = intern_sorted(a, frames_at(s, from), s->n - from, a->nodes[x].flags | a->nodes[y].flags, out);
    s->n = from;
    return st;
}

td_status td_gr_union(td_gr_automaton *a, uint32_t x, uint32_t y, uint32_t *out) {
    bool fresh;
    *out = x == TD_GR_DEAD ? y : x;
    if (x == y || x == TD_GR_DEAD || y == TD_GR_DEAD)
        return TD_OK;
    uint64_t key = x < y ? (uint64_t)x << 32 | y : (uint64_t)y << 32 | x;
    if (td_gr_map_get(&a->unions, key, out))
        return TD_OK;
    TD_TRY(merge(a, x, y, out));
    return td_gr_map_put(&a->unions, key, *out, &fresh) ? TD_OK : oom(a);
}

/* ---- memory ---- */

size_t td_gr_automaton_bytes(const td_gr_automaton *a) {
    return a->n_nodes * sizeof *a->nodes + a->frames.n * sizeof *a->frames.v + a->table_size * sizeof *a->table +
           a->n_rows * a->program->n_classes * sizeof *a->rows + a->unions.capacity * sizeof *a->unions.slots;
}

/* Marks what is needed: in falling order, so that a node comes after all that refer to it. */
static void mark(const td_gr_automaton *a, bool *keep) {
    for (size_t i = a->n_nodes; i > 0; i--)
        for (uint32_t k = 0; keep[i - 1] && k < a->nodes[i - 1].n; k++)
            keep[a->frames.v[a->nodes[i - 1].offset + k].rest] = true;
}

/* Moves what is kept together, in rising order, so that rests have their new numbers already. */
static void compact(td_gr_automaton *a, const bool *keep, uint32_t *number) {
    size_t n = 0, n_frames = 0;
    for (size_t i = 0; i < a->n_nodes; i++) {
        if (!keep[i])
            continue;
        td_gr_node node = a->nodes[i];
        for (uint32_t k = 0; k < node.n; k++) {
            td_gr_frame f = a->frames.v[node.offset + k];
            f.rest = number[f.rest];
            a->frames.v[n_frames + k] = f;
        }
        node.offset = (uint32_t)n_frames;
        node.hash = hash_of(frames_at(&a->frames, n_frames), node.n, node.flags);
        node.row = node.mask = 0;
        n_frames += node.n;
        number[i] = (uint32_t)n;
        a->nodes[n++] = node;
    }
    a->n_nodes = n;
    a->frames.n = n_frames;
}

td_status td_gr_collect(td_gr_automaton *a, uint32_t **roots, size_t n) {
    bool *keep = td_calloc(a->n_nodes, sizeof *keep);
    uint32_t *number = td_calloc(a->n_nodes, sizeof *number);
    td_status st = keep && number ? TD_OK : oom(a);
    if (st == TD_OK) {
        keep[TD_GR_DEAD] = keep[TD_GR_BOTTOM] = keep[a->initial] = true;
        for (size_t i = 0; i < n; i++)
            keep[*roots[i]] = true;
        mark(a, keep);
        compact(a, keep, number);
        a->initial = number[a->initial];
        for (size_t i = 0; i < n; i++)
            *roots[i] = number[*roots[i]];
        a->n_rows = 0;
        td_gr_map_free(&a->unions);
        for (size_t i = 0; i < a->n_masks; i++)
            a->masks[i].node = TD_GR_UNKNOWN;
        st = table_rebuild(a, a->table_size);
    }
    td_free(keep);
    td_free(number);
    return st;
}
