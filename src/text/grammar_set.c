/* grammar_set.c - sets of characters, and the machines over bytes that recognise them.
 *
 * After some bytes of a character, what matters is the window of characters that can still come. If the whole window is
 * in the set, it does not matter which window it is: all such windows of one length are one sub-state, so that a set
 * like "everything but a quote" has a handful. Otherwise the bytes read so far name the sub-state. */
#include "text/grammar_set.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"

#define SURROGATE_LO 0xD800u
#define SURROGATE_HI 0xDFFFu

/* ---- sets ---- */

void td_char_set_free(td_char_set *s) {
    td_free(s->v);
    *s = (td_char_set){0};
}

void td_char_set_add(td_char_set *s, uint32_t lo, uint32_t hi) {
    if (s->failed || lo > hi)
        return;
    if (s->n == s->capacity) {
        size_t capacity = s->capacity ? s->capacity * 2 : 8;
        td_char_range *v = td_realloc(s->v, capacity, sizeof *v);
        if (!v) {
            s->failed = true;
            return;
        }
        s->v = v;
        s->capacity = capacity;
    }
    s->v[s->n++] = (td_char_range){lo, hi > TD_CHAR_MAX ? TD_CHAR_MAX : hi};
}

void td_char_set_add_all(td_char_set *s, const td_char_set *other) {
    for (size_t i = 0; i < other->n; i++)
        td_char_set_add(s, other->v[i].lo, other->v[i].hi);
    s->failed = s->failed || other->failed;
}

static int by_lo(const void *pa, const void *pb) {
    const td_char_range *a = pa, *b = pb;
    return (a->lo > b->lo) - (a->lo < b->lo);
}

static void sort_and_join(td_char_set *s) {
    size_t n = 0;
    if (s->n > 1)
        qsort(s->v, s->n, sizeof *s->v, by_lo);
    for (size_t i = 0; i < s->n; i++) {
        if (n > 0 && s->v[i].lo <= s->v[n - 1].hi + 1)
            s->v[n - 1].hi = s->v[i].hi > s->v[n - 1].hi ? s->v[i].hi : s->v[n - 1].hi;
        else
            s->v[n++] = s->v[i];
    }
    s->n = n;
}

void td_char_set_remove(td_char_set *s, uint32_t lo, uint32_t hi) {
    size_t n = s->n;
    for (size_t i = 0; i < n; i++) {
        td_char_range *r = &s->v[i];
        if (r->hi < lo || r->lo > hi)
            continue;
        uint32_t tail = r->hi;
        if (r->lo < lo)
            r->hi = lo - 1;
        else
            r->lo = 1, r->hi = 0; /* empty, dropped below */
        if (tail > hi)
            td_char_set_add(s, hi + 1, tail);
    }
    size_t kept = 0;
    for (size_t i = 0; i < s->n; i++)
        if (s->v[i].lo <= s->v[i].hi)
            s->v[kept++] = s->v[i];
    s->n = kept;
    sort_and_join(s);
}

void td_char_set_settle(td_char_set *s) {
    sort_and_join(s);
    td_char_set_remove(s, SURROGATE_LO, SURROGATE_HI);
}

void td_char_set_invert(td_char_set *s) {
    td_char_set in = *s;
    uint32_t from = 1;
    *s = (td_char_set){.failed = in.failed};
    for (size_t i = 0; i < in.n; i++) {
        if (in.v[i].lo > from)
            td_char_set_add(s, from, in.v[i].lo - 1);
        from = in.v[i].hi >= from ? in.v[i].hi + 1 : from;
    }
    td_char_set_add(s, from, TD_CHAR_MAX);
    td_char_set_remove(s, SURROGATE_LO, SURROGATE_HI);
    td_free(in.v);
}

/* The range that could hold c: the last that begins at or below it. */
static const td_char_range *range_at(const td_char_set *s, uint32_t c) {
    size_t lo = 0, hi = s->n;
    while (lo < hi) {
        size_t mid = (lo + hi) / 2;
        if (s->v[mid].lo <= c)
            lo = mid + 1;
        else
            hi = mid;
    }
    return lo > 0 ? &s->v[lo - 1] : NULL;
}

bool td_char_set_has(const td_char_set *s, uint32_t c) {
    const td_char_range *r = range_at(s, c);
    return r && c <= r->hi;
}

static bool has_some(const td_char_set *s, uint32_t lo, uint32_t hi) {
    const td_char_range *r = lo <= hi ? range_at(s, hi) : NULL;
    return r && r->hi >= lo;
}

static bool has_all(const td_char_set *s, uint32_t lo, uint32_t hi) {
    const td_char_range *r = range_at(s, lo);
    return r && r->hi >= hi;
}

/* ---- their machines ---- */

/* A sub-state's name: bytes of the character, those still to come, and the bits read; or that all windows fit. */
typedef struct sub {
    uint8_t size, left;
    bool all;
    uint32_t bits;
} sub;

enum { N_SLOTS = 2 * TD_SET_MAX_SUBS };

typedef struct machine {
    const td_char_set *set;
    sub *subs; /* [n] */
    size_t n;
    uint16_t slots[N_SLOTS]; /* sub-state + 1 by hash of its name */
} machine;

static uint32_t name_of(sub s) {
    return s.all ? s.left : (uint32_t)s.size << 29 | (uint32_t)s.left << 27 | s.bits << 1 | 1;
}

/* TD_SUB_DEAD: there are too many. */
static uint16_t find_sub(machine *m, sub s) {
    uint32_t name = name_of(s);
    for (size_t i = name * 2654435761u >> 19;; i++) {
        uint16_t *slot = &m->slots[i % N_SLOTS];
        if (*slot == 0) {
            if (m->n == TD_SET_MAX_SUBS)
                return TD_SUB_DEAD;
            m->subs[m->n++] = s;
            *slot = (uint16_t)m->n;
        }
        if (name_of(m->subs[*slot - 1]) == name)
            return (uint16_t)(*slot - 1);
    }
}

/* The sub-state behind a byte; its window is what the bits and the bytes to come can spell. */
static uint16_t target_of(machine *m, sub s, bool *full) {
    static const uint32_t least[5] = {0, 0, 0x80, 0x800, 0x10000};
    uint32_t lo = s.bits << (6 * s.left), hi = lo + ((uint32_t)1 << (6 * s.left)) - 1;
    bool whole = lo >= least[s.size];
    lo = whole ? lo : least[s.size];
    if (!has_some(m->set, lo, hi))
        return TD_SUB_DEAD;
    if (s.left == 0)
        return TD_SUB_ACCEPT;
    if (whole && has_all(m->set, lo, hi))
        s = (sub){.left = s.left, .all = true};
    uint16_t target = find_sub(m, s);
    *full = *full || target == TD_SUB_DEAD;
    return target;
}

static uint16_t first_byte(machine *m, unsigned b, bool *full) {
    if (b < 0x80)
        return target_of(m, (sub){.size = 1, .bits = b}, full);
    if (b < 0xC2 || b > 0xF4)
        return TD_SUB_DEAD;
    uint8_t size = b < 0xE0 ? 2 : b < 0xF0 ? 3 : 4;
    return target_of(m, (sub){.size = size, .left = (uint8_t)(size - 1), .bits = b & (0x7Fu >> size)}, full);
}

static uint16_t next_byte(machine *m, sub s, unsigned b, bool *full) {
    if (b < 0x80 || b > 0xBF)
        return TD_SUB_DEAD;
    s.left--;
    if (s.all && s.left == 0)
        return TD_SUB_ACCEPT;
    if (s.all)
        return find_sub(m, s);
    s.bits = s.bits << 6 | (b & 0x3F);
    return target_of(m, s, full);
}

static uint16_t (*add_row(td_set_rows *rows))[256] {
    if (rows->n == rows->capacity) {
        size_t capacity = rows->capacity ? rows->capacity * 2 : 16;
        uint16_t(*v)[256] = td_realloc(rows->v, capacity, sizeof *v);
        if (!v)
            return NULL;
        rows->v = v;
        rows->capacity = capacity;
    }
    return &rows->v[rows->n++];
}

static td_status fill_rows(machine *m, td_set_rows *rows, td_error *err) {
    bool full = false;
    m->n = 1; /* the beginning, which no byte leads back to */
    for (size_t i = 0; i < m->n; i++) {
        uint16_t(*row)[256] = add_row(rows);
        if (!row)
            return td_fail(err, TD_E_NOMEM, "out of memory for a set of characters");
        for (unsigned b = 0; b < 256; b++)
            (*row)[b] = i == 0 ? first_byte(m, b, &full) : next_byte(m, m->subs[i], b, &full);
    }
    if (full || rows->n > TD_SET_MAX_ROWS)
        return td_fail(err, TD_E_LIMIT, "the sets of characters of a grammar are too intricate");
    return TD_OK;
}

td_status td_set_rows_add(td_set_rows *rows, const td_char_set *s, uint32_t *first, td_error *err) {
    machine *m = td_calloc(1, sizeof *m);
    *first = (uint32_t)rows->n;
    if (m)
        m->subs = td_calloc(TD_SET_MAX_SUBS, sizeof *m->subs);
    if (m)
        m->set = s;
    td_status st = m && m->subs && !s->failed ? fill_rows(m, rows, err)
                                              : td_fail(err, TD_E_NOMEM, "out of memory for a set of characters");
    if (m)
        td_free(m->subs);
    td_free(m);
    return st;
}

void td_set_rows_free(td_set_rows *rows) {
    td_free(rows->v);
    *rows = (td_set_rows){0};
}
