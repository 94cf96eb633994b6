/* bpe.c - merging with a heap, on stretches that merges cannot leave.
 *
 * Symbols. A word begins as its characters (or their bytes, or unknowns): the leaves. Each symbol keeps what the pair
 * of it and its right neighbour merges to, so the table of merges is asked once for every pair that comes to be. The
 * heap holds (rank, position); an entry whose symbol no longer has that rank is out of date and dropped.
 *
 * Stretches. Gemma's words are whole texts, since it splits nowhere. But most neighbouring characters can never be
 * joined: a merge that crosses the border between leaves x and y has x as the last leaf of its left part and y as the
 * first of its right. Those pairs of leaves are collected from the merge list, in a bitmap by hash. Where the bit is
 * off, no merge can cross, and what stands on either side is merged by itself with the same result. That turns a book
 * into words of a few characters, whose heaps stay in the nearest cache. Two pairs on one bit cost a cut, not the
 * result. When the bitmap helps nothing (a run of one character), the heap still holds the time to O(n log n). */
#include "text/bpe.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "format/json_scan.h"
#include "text/tokenizer_unicode.h"

#define NO_RANK UINT32_MAX
#define NOBODY UINT32_MAX
#define MAX_PROBES 512

#define BASIC_PLANE 0x10000u
#define BORDER_BITS                                                                                                    \
    21 /* 256 KiB, so that it stays near the core; an alphabet of 300 characters has 90 thousand pairs */

/* Leaves in the border map: characters are their code points. */
#define LEAF_BYTE 0x110000u /* + byte */
#define LEAF_UNKNOWN 0x110100u

typedef struct merge {
    td_token left, right; /* left -1: a free slot */
    uint32_t rank;
    td_token result;
} merge;

struct td_bpe {
    const td_vocab *vocab;
    td_bpe_options options;
    merge *merges; /* [n_slots] open addressing, a power of two, at most half full */
    size_t n_slots, n_used;
    uint32_t n_merges;   /* ranks given out */
    bool whole;          /* do not cut: the border map does not hold for this vocabulary */
    td_token *basic;     /* [BASIC_PLANE] the token of each character, -1: none */
    td_token bytes[256]; /* <0xHH>, -1: none */
    uint64_t *borders;   /* [1 << (BORDER_BITS - 6)] */
};

typedef struct td_bpe_symbol {
    td_token id;
    uint32_t prev, next; /* NOBODY at the ends */
    uint32_t rank;       /* of the pair with `next`; NO_RANK: it does not merge, or this symbol is gone */
    td_token result;
} symbol;

/* ---- the table of merges ---- */

static size_t hash_pair(td_token left, td_token right) {
    uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9E3779B97F4A7C15u;
    h = (h ^ h >> 32) * 0xD6E8FEB86659FD93u;
    return (size_t)(h ^ h >> 32);
}

/* The slot of a pair or the free one where it belongs; NULL after MAX_PROBES. */
static merge *slot_of(const td_bpe *b, td_token left, td_token right) {
    size_t i = hash_pair(left, right) & (b->n_slots - 1);
    for (int probe = 0; probe < MAX_PROBES; probe++, i = (i + 1) & (b->n_slots - 1)) {
        merge *m = &b->merges[i];
        if ((m->left == left && m->right == right) || m->left < 0)
            return m;
    }
    return NULL;
}

static td_status grow_merges(td_bpe *b, size_t n_slots, td_error *err) {
    merge *merges = td_malloc(n_slots * sizeof *merges);
    if (!merges)
        return td_fail(err, TD_E_NOMEM, "out of memory for %zu merges", n_slots / 2);
    memset(merges, 0xFF, n_slots * sizeof *merges);
    for (size_t old = 0; old < b->n_slots; old++) {
        if (b->merges[old].left < 0)
            continue;
        size_t i = hash_pair(b->merges[old].left, b->merges[old].right) & (n_slots - 1);
        while (merges[i].left >= 0)
            i = (i + 1) & (n_slots - 1);
        merges[i] = b->merges[old];
    }
    td_free(b->merges);
    b->merges = merges;
    b->n_slots = n_slots;
    return TD_OK;
}

/* ---- borders ---- */

static size_t border_of(uint32_t left, uint32_t right) {
    return (size_t)(((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15u >> (64 - BORDER_BITS));
}

static void open_border(td_bpe *b, uint32_t left, uint32_t right) {
    size_t bit = border_of(left, right);
    b->borders[bit / 64] |= UINT64_C(1) << (bit % 64);
}

static bool is_open(const td_bpe *b, uint32_t left, uint32_t right) {
    size_t bit = border_of(left, right);
    return b->whole || (b->borders[bit / 64] >> (bit % 64) & 1);
}

/* The byte that a name like <0x0A> stands for, -1 for other names. */
static int byte_of_name(const char *s, size_t size) {
    static const char digits[] = "0123456789ABCDEF";
    if (size != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
        return -1;
    const char *high = memchr(digits, s[3], 16), *low = memchr(digits, s[4], 16);
    return high && low ? (int)((high - digits) * 16 + (low - digits)) : -1;
}

/* Leaves that can stand at one end of a token: its character there, or the byte that the whole of it is. */
static int leaves_of(const char *s, size_t size, bool last, uint32_t leaves[2]) {
    td_uni_next(s + (last ? td_uni_before(s, size) : 0), &leaves[0]);
    int byte = byte_of_name(s, size);
    if (byte < 0)
        return 1;
    leaves[1] = LEAF_BYTE + (uint32_t)byte;
    return 2;
}

static void open_borders(td_bpe *b, const char *pair, size_t left, size_t right) {
    uint32_t ends[2], starts[2];
    int n_ends = leaves_of(pair, left, true, ends);
    int n_starts = leaves_of(pair + left, right, false, starts);
    for (int i = 0; i < n_ends; i++)
        for (int j = 0; j < n_starts; j++)
            open_border(b, ends[i], starts[j]);
}

/* ---- building ---- */

void td_bpe_free(td_bpe **bpe) {
    if (!bpe || !*bpe)
        return;
    td_free((*bpe)->merges);
    td_free((*bpe)->basic);
    td_free((*bpe)->borders);
    td_free(*bpe);
    *bpe = NULL;
}

/* Characters and bytes that are tokens. */
static void find_leaves(td_bpe *b) {
    memset(b->basic, 0xFF, BASIC_PLANE * sizeof *b->basic);
    memset(b->bytes, 0xFF, sizeof b->bytes);
    for (size_t id = 0; id < b->vocab->n; id++) {
        size_t size;
        uint32_t cp;
        const char *name = td_vocab_name(b->vocab, (td_token)id, &size);
        if (size == 0 || !(b->vocab->flags[id] & TD_PIECE_MODEL))
            continue;
        int byte = byte_of_name(name, size);
        if (byte >= 0)
            b->bytes[byte] = (td_token)id;
        if (td_uni_length(name[0]) == size && (td_uni_next(name, &cp), cp < BASIC_PLANE))
            b->basic[cp] = (td_token)id;
    }
}

td_status td_bpe_new(td_bpe **out, const td_vocab *vocab, size_t n_merges, td_error *err) {
    td_bpe *b = td_calloc(1, sizeof *b);
    *out = b;
    if (b) {
        b->vocab = vocab;
        b->basic = td_malloc(BASIC_PLANE * sizeof *b->basic);
        b->borders = td_calloc((size_t)1 << (BORDER_BITS - 6), sizeof *b->borders);
    }
    td_status st = b && b->basic && b->borders ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for an encoder");
    size_t n_slots = 1024;
    while (n_slots < 2 * n_merges)
        n_slots *= 2;
    if (st == TD_OK)
        st = grow_merges(b, n_slots, err);
    if (st == TD_OK)
        find_leaves(b);
    else
        td_bpe_free(out);
    return st;
}

static td_status unknown_part(const td_bpe *b, const char *part, size_t size, td_error *err) {
    char shown[TD_SHOWN_SIZE];
    return td_fail(err, TD_E_MODEL, "merge %" PRIu32 " needs \"%s\", which is not in the vocabulary", b->n_merges,
                   td_shown(shown, part, size));
}

td_status td_bpe_add_merge(td_bpe *b, const char *pair, size_t left, size_t right, td_error *err) {
    if (left == 0 || right == 0)
        return td_fail(err, TD_E_MODEL, "merge %" PRIu32 " has an empty part", b->n_merges);
    merge m = {.rank = b->n_merges};
    m.left = td_vocab_find(b->vocab, pair, left);
    if (m.left < 0)
        return unknown_part(b, pair, left, err);
    m.right = td_vocab_find(b->vocab, pair + left, right);
    if (m.right < 0)
        return unknown_part(b, pair + left, right, err);
    m.result = td_vocab_find(b->vocab, pair, left + right);
    if (m.result < 0)
        return unknown_part(b, pair, left + right, err);
    if (2 * b->n_used >= b->n_slots)
        TD_TRY(grow_merges(b, 2 * b->n_slots, err));
    merge *slot = slot_of(b, m.left, m.right);
    if (!slot || b->n_merges == NO_RANK - 1)
        return td_fail(err, TD_E_LIMIT, "too many merges share one hash");
    b->n_used += slot->left < 0;
    *slot = m; /* of a pair given twice the later rank holds, as in the reference implementation */
    b->n_merges++;
    open_borders(b, pair, left, right);
    return TD_OK;
}

void td_bpe_finish(td_bpe *b, td_bpe_options options) {
    b->options = options;
    for (size_t i = 0; options.unk >= 0 && i < b->n_slots; i++) /* an unknown that merges has leaves of any text */
        b->whole |= b->merges[i].left == options.unk || b->merges[i].right == options.unk;
}

/* ---- encoding ---- */

typedef struct encoding {
    const td_bpe *b;
    td_bpe_work *work;
    td_token_list *out;
    bool special;
    bool unknown;       /* an unknown token is due before the next leaf */
    size_t n;           /* leaves of the stretch */
    uint32_t last_leaf; /* of the stretch, for the border map */
    td_error *err;
} encoding;

void td_bpe_work_free(td_bpe_work *w) {
    td_free(w->symbols);
    td_free(w->heap);
    *w = (td_bpe_work){0};
}

static td_status grow_work(td_bpe_work *w, td_error *err) {
    size_t capacity = w->capacity ? w->capacity * 2 : 256;
    symbol *symbols = td_realloc(w->symbols, capacity, sizeof *symbols);
    if (symbols)
        w->symbols = symbols;
    /* at most n - 1 pairs at first, and each of n - 1 merges takes one entry and adds two */
    uint64_t *heap = symbols ? td_realloc(w->heap, 2 * capacity, sizeof *heap) : NULL;
    if (!heap)
        return td_fail(err, TD_E_NOMEM, "out of memory for a word of %zu characters", capacity);
    w->heap = heap;
    w->capacity = capacity;
    return TD_OK;
}

static bool may_be(const encoding *e, td_token id) {
    return e->special || !(e->b->vocab->flags[id] & TD_PIECE_SPECIAL);
}

static void set_pair(const encoding *e, symbol *s, td_token right) {
    const merge *m = slot_of(e->b, s->id, right);
    bool found = m && m->left >= 0 && may_be(e, m->result);
    s->rank = found ? m->rank : NO_RANK;
    s->result = found ? m->result : -1;
}

static void sift_up(uint64_t *heap, size_t i, uint64_t entry) {
    for (; i > 0 && heap[(i - 1) / 2] > entry; i = (i - 1) / 2)
        heap[i] = heap[(i - 1) / 2];
    heap[i] = entry;
}

/* Puts `entry` at i or below, in a heap of n. */
static void sift_down(uint64_t *heap, size_t n, size_t i, uint64_t entry) {
    for (size_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        child += child + 1 < n && heap[child + 1] < heap[child];
        if (heap[child] >= entry)
            break;
        heap[i] = heap[child];
        i = child;
    }
    heap[i] = entry;
}

static uint64_t entry_of(const symbol *s, uint32_t position) {
    return (uint64_t)s->rank << 32 | position;
}

/* Joins the symbol at i with the one after it; entries for its new pairs go to heap[n..], whose new size returns. */
static size_t join(const encoding *e, uint32_t i, size_t n) {
    symbol *all = e->work->symbols, *s = &all[i];
    symbol *gone = &all[s->next];
    uint64_t *heap = e->work->heap;
    s->id = s->result;
    s->next = gone->next;
    s->rank = NO_RANK;
    gone->rank = NO_RANK;
    if (s->next != NOBODY) {
        all[s->next].prev = i;
        set_pair(e, s, all[s->next].id);
        if (s->rank != NO_RANK)
            sift_up(heap, n++, entry_of(s, i));
    }
    if (s->prev != NOBODY) {
        symbol *before = &all[s->prev];
        set_pair(e, before, s->id);
        if (before->rank != NO_RANK)
            sift_up(heap, n++, entry_of(before, s->prev));
    }
    return n;
}

/* Merges symbols [0, n) until nothing merges. */
static void merge_symbols(const encoding *e) {
    symbol *all = e->work->symbols;
    uint64_t *heap = e->work->heap;
    size_t n = 0;
    for (uint32_t i = 0; i + 1 < e->n; i++) {
        set_pair(e, &all[i], all[i + 1].id);
        if (all[i].rank != NO_RANK)
            heap[n++] = entry_of(&all[i], i);
    }
    for (size_t i = n / 2; i-- > 0;)
        sift_down(heap, n, i, heap[i]);
    while (n > 0) {
        uint64_t top = heap[0];
        n--;
        if (n > 0)
            sift_down(heap, n, 0, heap[n]);
        if (all[(uint32_t)top].rank == top >> 32)
            n = join(e, (uint32_t)top, n);
    }
}

/* Ends the stretch: its tokens go out. */
static td_status end_stretch(encoding *e) {
    symbol *all = e->work->symbols;
    if (e->n == 0)
        return TD_OK;
    all[0].prev = all[e->n - 1].next = NOBODY;
    all[e->n - 1].rank = NO_RANK;
    if (e->n > 1)
        merge_symbols(e);
    for (uint32_t i = 0; i != NOBODY; i = all[i].next)
        TD_TRY(td_token_list_push(e->out, all[i].id, e->err));
    e->n = 0;
    return TD_OK;
}

static td_status add_leaf(encoding *e, td_token id, uint32_t leaf) {
    if (e->n > 0 && !is_open(e->b, e->last_leaf, leaf))
        TD_TRY(end_stretch(e));
    if (e->n == e->work->capacity)
        TD_TRY(grow_work(e->work, e->err));
    uint32_t i = (uint32_t)e->n++;
    e->work->symbols[i] = (symbol){.id = id, .prev = i - 1, .next = i + 1, .rank = NO_RANK};
    e->last_leaf = leaf;
    return TD_OK;
}

static td_status end_unknown(encoding *e) {
    if (!e->unknown)
        return TD_OK;
    e->unknown = false;
    return add_leaf(e, e->b->options.unk, LEAF_UNKNOWN);
}

static bool have_bytes(const td_bpe *b, const char *s, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (b->bytes[(unsigned char)s[i]] < 0)
            return false;
    return true;
}

/* A character that is no token. */
static td_status add_unknown(encoding *e, const char *s, size_t size) {
    const td_bpe *b = e->b;
    if (b->options.byte_fallback && have_bytes(b, s, size)) {
        TD_TRY(end_unknown(e));
        for (size_t i = 0; i < size; i++) {
            unsigned char byte = (unsigned char)s[i];
            TD_TRY(add_leaf(e, b->bytes[byte], LEAF_BYTE + byte));
        }
        return TD_OK;
    }
    if (b->options.unk < 0)
        return TD_OK;
    if (!b->options.fuse_unk)
        TD_TRY(end_unknown(e));
    e->unknown = true;
    return TD_OK;
}

/* The model's token of this name, if it may come out of this text. */
static td_token token_of(const encoding *e, const char *s, size_t size) {
    td_token id = td_vocab_find(e->b->vocab, s, size);
    return id >= 0 && (e->b->vocab->flags[id] & TD_PIECE_MODEL) && may_be(e, id) ? id : -1;
}

static td_token character_token(const encoding *e, uint32_t cp, const char *s, size_t size) {
    if (cp >= BASIC_PLANE)
        return token_of(e, s, size);
    td_token id = e->b->basic[cp];
    return id >= 0 && may_be(e, id) ? id : -1;
}

td_status td_bpe_encode(const td_bpe *bpe, td_bpe_work *work, const char *word, size_t size, bool special,
                        td_token_list *out, td_error *err) {
    encoding e = {.b = bpe, .work = work, .out = out, .special = special, .err = err};
    if (bpe->options.ignore_merges) {
        td_token id = token_of(&e, word, size);
        if (id >= 0)
            return td_token_list_push(out, id, err);
    }
    for (size_t i = 0, n; i < size; i += n) {
        uint32_t cp;
        n = td_uni_next(word + i, &cp);
        td_token id = character_token(&e, cp, word + i, n);
        if (id < 0) {
            TD_TRY(add_unknown(&e, word + i, n));
            continue;
        }
        TD_TRY(end_unknown(&e));
        TD_TRY(add_leaf(&e, id, cp));
    }
    TD_TRY(end_unknown(&e));
    return end_stretch(&e);
}
