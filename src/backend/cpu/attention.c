/* attention.c - attention over pages, and writing keys and values into them.
 *
 * Keys are walked in spans, cut at absolute positions. A query's result in a span is the largest score, the sum of
 * exp(score - largest) and the unnormalised mix of values; the results of its spans are folded in ascending order,
 * always one after the other. This order is a function of the query's position and window alone, so it does not matter
 * which rows come along, how KV was cut into passes or pages, or which thread took which span.
 *
 * A span is 512 positions. Where keys are few, before position 2,048 and in layers with a window up to that, it is 256:
 * a per cent or two more work, for twice as many threads. (128: three to five per cent.)
 *
 * Work is cut into items: up to QUERIES queries of one sequence that read one KV head (several rows, several heads of
 * the group), which share each block of keys and values that comes from memory. Kernels read the blocks in the pages
 * themselves; converted to padded floats first are only heads whose size is no multiple of the widest vector, and bf16
 * at the generic level, which widens it too slowly to do so for every tile of queries.
 *
 * When the items share out evenly a thread walks all spans of an item. In a short context there are more items with
 * fewer queries each, if that makes them enough. Otherwise threads take stretches of an item's spans and leave the
 * result of every span in scratch, and a second job folds them, a query a tile: the same numbers in the same order.
 * Scratch has a limit, so a very long context is split in waves; running totals wait between them. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

#define SPAN 512
#define SHORT_SPAN 256
#define SHORT_END 2048
#define QUERIES 64
#define FEW_QUERIES 2 /* the fewest worth a reading of the keys of their own: one costs three quarters of two */
/* Of keys or values at a time: so far ahead runs what is requested from memory. Less would stay in the first-level
 * cache, but a mixed output is loaded and stored once a block. */
#define NEAR_BYTES (32u << 10)
#define MAX_BLOCK 64
/* Stretches a thread of a split job, at least where there are so many spans: some threads are slower than others. */
#define STRETCHES 8
#define PARALLEL 32768
/* Products of a query with a key, times the dimensions, that are worth a second thread. */
#define PARTING 131072

enum { ATTEND, FOLD, JOBS }; /* of a wave */

typedef struct item {
    uint32_t row;     /* the first row of the run */
    uint32_t q0, n_q; /* queries of the run: query i is row + i / group, head i % group of the KV head */
    uint32_t kv_head;
    int32_t lo, hi;         /* keys that some query sees: [lo, hi); empty: hi <= lo */
    int32_t all_lo, all_hi; /* keys that every query sees; perhaps none */
    uint32_t span0, n_spans;
    /* split */
    uint32_t done, now;    /* spans of earlier waves and of this one */
    uint32_t reach;        /* spans of a stretch */
    uint32_t tile0[JOBS];  /* its first tile in each job of the wave */
    size_t partial, total; /* where the results of this wave's spans and the running totals lie, in floats */
} item;

/* Of some queries over some keys. */
typedef struct result {
    float *out; /* [n][stride] values mixed by weight */
    float *top; /* [n] the largest score */
    float *sum; /* [n] of the weights, exp(score - top); 0: saw no key */
} result;

typedef struct attention_job {
    td_cpu *c;
    const td_attention *a;
    uint32_t group, head_dim, stride, block; /* block: keys at a time, at most */
    size_t row_bytes;                        /* of one K or V row */
    bool in_place;                           /* kernels read the rows where they lie: no conversion */
    void (*load)(float *to, const void *from, size_t n);
    int32_t short_end; /* spans are short up to this position */
    item *items;
    uint32_t n_items;
    uint64_t spans, products, largest; /* of all items; queries times keys of all and of the largest item */
    /* split */
    uint32_t first, n_wave; /* items of the wave */
    uint32_t n_tiles[JOBS];
    size_t room;    /* floats at `partial` */
    float *partial; /* results of the wave's spans, see result_at */
    float *total;   /* running totals of all items; NULL: one wave */
} attention_job;

/* One thread's scratch. */
typedef struct workspace {
    float *q;     /* [QUERIES][stride] */
    float *score; /* [QUERIES][SPAN] */
    float *kv;    /* [block][stride] */
    result span, total;
} workspace;

static uint32_t padded(uint32_t head_dim) {
    return (head_dim + TD_DSP_MAX_LANES - 1) / TD_DSP_MAX_LANES * TD_DSP_MAX_LANES;
}

static uint32_t block_keys(size_t row_bytes) {
    const uint32_t n = (uint32_t)(NEAR_BYTES / row_bytes) / 4 * 4;
    return n < 4 ? 4 : n > MAX_BLOCK ? MAX_BLOCK : n;
}

/* A result of n_q queries takes so many floats, whole cache lines. */
static size_t result_floats(size_t stride, uint32_t n_q) {
    return n_q * stride + (2 * (size_t)n_q + 15) / 16 * 16;
}

static result result_at(float *p, size_t stride, uint32_t n_q) {
    return (result){p, p + n_q * stride, p + n_q * stride + n_q};
}

/* The result without its first q queries. */
static result result_from(result r, size_t stride, uint32_t q) {
    return (result){r.out + q * stride, r.top + q, r.sum + q};
}

size_t cpu_attention_bytes(uint32_t head_dim) {
    const size_t stride = padded(head_dim);
    return (2 * result_floats(stride, QUERIES) + QUERIES * (stride + SPAN) + MAX_BLOCK * stride) * sizeof(float);
}

static workspace workspace_of(const attention_job *j, int thread) {
    float *p = cpu_thread_block(j->c, thread);
    const size_t stride = j->stride, floats = result_floats(stride, QUERIES);
    workspace w = {.span = result_at(p, stride, QUERIES), .total = result_at(p + floats, stride, QUERIES)};
    w.q = p + 2 * floats;
    w.score = w.q + QUERIES * stride;
    w.kv = w.score + QUERIES * SPAN;
    return w;
}

static int32_t max_i32(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static int32_t min_i32(int32_t a, int32_t b) {
    return a < b ? a : b;
}

/* ---- spans, by their number ---- */

static uint32_t span_at(const attention_job *j, int32_t key) {
    if (key < j->short_end)
        return (uint32_t)key / SHORT_SPAN;
    return (uint32_t)j->short_end / SHORT_SPAN + (uint32_t)(key - j->short_end) / SPAN;
}

static int32_t span_start(const attention_job *j, uint32_t span) {
    const uint32_t n_short = (uint32_t)j->short_end / SHORT_SPAN;
    if (span < n_short)
        return (int32_t)(span * SHORT_SPAN);
    return j->short_end + (int32_t)((span - n_short) * SPAN);
}

static int32_t span_keys(const attention_job *j, uint32_t span) {
    return span < (uint32_t)j->short_end / SHORT_SPAN ? SHORT_SPAN : SPAN;
}

/* The keys that a row sees: [*lo, *hi). */
static void visible(const td_attention *a, uint32_t row, int32_t *lo, int32_t *hi) {
    const int64_t after = (int64_t)a->pos[row] + 1;
    const int32_t n_keys = a->n_keys[a->row_seq[row]];
    *hi = after < n_keys ? (int32_t)after : n_keys;
    *lo = a->window && after > a->window ? (int32_t)(after - a->window) : 0;
}

/* ---- one span ---- */

static const uint8_t *key_row(const attention_job *j, const item *it, size_t offset, int32_t key) {
    const td_attention *a = j->a;
    const uint32_t tokens = a->layout->page_tokens;
    const uint8_t *page = a->pages[a->row_seq[it->row]][(uint32_t)key / tokens];
    return page + offset + ((size_t)it->kv_head * tokens + (uint32_t)key % tokens) * j->row_bytes;
}

/* How many of the keys [k, end) make up the next block: within a page. */
static int32_t block_at(const attention_job *j, int32_t k, int32_t end) {
    const int32_t tokens = (int32_t)j->a->layout->page_tokens, block = (int32_t)j->block;
    return min_i32(end - k, min_i32(block - k % block, tokens - k % tokens));
}

/* Keys or values of the block [k, k + n): where they lie, or converted to floats. */
static td_kv_rows block_rows(const attention_job *j, const item *it, const workspace *w, size_t offset, int32_t k,
                             int32_t n) {
    const uint8_t *from = key_row(j, it, offset, k);
    if (j->in_place)
        return (td_kv_rows){from, j->row_bytes, j->a->layout->type == TD_KV_BF16};
    float *to = w->kv;
    for (int32_t i = 0; i < n; i++, to += j->stride, from += j->row_bytes) {
        j->load(to, from, j->head_dim);
        memset(to + j->head_dim, 0, (j->stride - j->head_dim) * sizeof *to);
    }
    return (td_kv_rows){(const uint8_t *)w->kv, j->stride * sizeof *w->kv, false};
}

/* Queries of the item, scaled and padded. */
static void load_queries(const attention_job *j, const item *it, float *to) {
    const td_attention *a = j->a;
    for (uint32_t i = 0; i < it->n_q; i++, to += j->stride) {
        const uint32_t q = it->q0 + i, row = it->row + q / j->group, head = it->kv_head * j->group + q % j->group;
        j->c->dsp.norm(to, a->q + ((size_t)row * a->n_heads + head) * j->head_dim, NULL, a->scale, j->head_dim);
        memset(to + j->head_dim, 0, (j->stride - j->head_dim) * sizeof *to);
    }
}

/* Each query's weights of the span's keys; a query that sees none of them gets zeros and the sum zero. */
static void weigh(const attention_job *j, const item *it, const workspace *w, int32_t start, int32_t keys, result r) {
    for (uint32_t i = 0; i < it->n_q; i++) {
        int32_t lo, hi;
        visible(j->a, it->row + (it->q0 + i) / j->group, &lo, &hi);
        lo = max_i32(lo - start, 0);
        hi = min_i32(hi - start, keys);
        if (lo < hi) {
            j->c->dsp.softmax(w->score + i * SPAN, (uint32_t)keys, (uint32_t)lo, (uint32_t)hi, &r.top[i], &r.sum[i]);
        } else {
            memset(w->score + i * SPAN, 0, (size_t)keys * sizeof *w->score);
            r.top[i] = -INFINITY;
            r.sum[i] = 0;
        }
    }
}

static bool row_is_finite(const uint8_t *row, uint32_t n, bool bf16) {
    bool finite = true;
    for (uint32_t c = 0; c < n; c++) {
        uint16_t high; /* of a float, too, the half with the exponent */
        if (bf16) {
            memcpy(&high, row + 2 * (size_t)c, sizeof high);
        } else {
            uint32_t bits;
            memcpy(&bits, row + 4 * (size_t)c, sizeof bits);
            high = (uint16_t)(bits >> 16);
        }
        finite &= (high & 0x7F80) != 0x7F80;
    }
    return finite;
}

/* Among the keys [k, k + n), do those that only some queries see have finite values? */
static bool edges_are_finite(const attention_job *j, const item *it, const td_kv_rows *v, int32_t k, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if ((k + i < it->all_lo || k + i >= it->all_hi) &&
            !row_is_finite(v->row + (size_t)i * v->pitch, j->head_dim, v->bf16))
            return false;
    return true;
}

/* out += weights . values of the block [k, k + n). A weight of zero keeps a value out only if it is finite; where it is
 * not, each query meets its own keys alone, so that the poison of a rejected draft stays in its row. */
static void mix_block(const attention_job *j, const item *it, const workspace *w, int32_t start, int32_t k, int32_t n,
                      float *out, const uint8_t *ahead) {
    const td_dsp *d = &j->c->dsp;
    const td_kv_rows v = block_rows(j, it, w, j->a->layer->v_offset, k, n);
    if (edges_are_finite(j, it, &v, k, n)) {
        d->mix(out, it->n_q, w->score + (k - start), SPAN, &v, (uint32_t)n, j->stride, ahead);
        return;
    }
    for (uint32_t i = 0; i < it->n_q; i++) {
        int32_t lo, hi;
        visible(j->a, it->row + (it->q0 + i) / j->group, &lo, &hi);
        lo = max_i32(lo, k);
        hi = min_i32(hi, k + n);
        if (lo >= hi)
            continue;
        const td_kv_rows own = {v.row + (size_t)(lo - k) * v.pitch, v.pitch, v.bf16};
        d->mix(out + (size_t)i * j->stride, 1, w->score + (size_t)i * SPAN + (lo - start), SPAN, &own,
               (uint32_t)(hi - lo), j->stride, NULL);
    }
}

/* The keys (or values, by offset) from `k` on, where that is below `end`; else those that come then. */
static const uint8_t *rows_ahead(const attention_job *j, const item *it, size_t offset, int32_t k, int32_t end,
                                 size_t then_offset, int32_t then_k) {
    if (k >= end) {
        offset = then_offset;
        k = then_k;
    }
    return j->in_place && k < it->hi ? key_row(j, it, offset, k) : NULL;
}

/* The item's queries over one span. */
static void attend_span(const attention_job *j, const item *it, const workspace *w, uint32_t span, result r) {
    const td_dsp *d = &j->c->dsp;
    const td_kv_layer *l = j->a->layer;
    const int32_t start = span_start(j, span), keys = span_keys(j, span), first = max_i32(start, it->lo);
    const int32_t end = it->hi - start < keys ? it->hi : start + keys;
    for (int32_t k = first, n; k < end; k += n) {
        n = block_at(j, k, end);
        const td_kv_rows rows = block_rows(j, it, w, l->k_offset, k, n);
        d->score(w->score + (k - start), SPAN, w->q, it->n_q, &rows, (uint32_t)n, j->stride,
                 rows_ahead(j, it, l->k_offset, k + n, end, l->v_offset, first));
    }
    weigh(j, it, w, start, keys, r);
    memset(r.out, 0, (size_t)it->n_q * j->stride * sizeof *r.out);
    for (int32_t k = first, n; k < end; k += n) {
        n = block_at(j, k, end);
        mix_block(j, it, w, start, k, n, r.out, rows_ahead(j, it, l->v_offset, k + n, end, l->k_offset, end));
    }
}

/* ---- folding spans ---- */

static void fold_begin(const attention_job *j, result total, uint32_t n_q) {
    memset(total.out, 0, (size_t)n_q * j->stride * sizeof *total.out);
    for (uint32_t i = 0; i < n_q; i++) {
        total.top[i] = -INFINITY;
        total.sum[i] = 0;
    }
}

/* Of n_q queries. */
static void fold_span(const attention_job *j, result total, result r, uint32_t n_q) {
    for (uint32_t i = 0; i < n_q; i++) {
        if (r.sum[i] == 0) /* saw no key: its sum would be at least 1, or NaN */
            continue;
        const float most = total.top[i] > r.top[i] ? total.top[i] : r.top[i];
        const float keep = expf(total.top[i] - most), take = expf(r.top[i] - most);
        total.top[i] = most;
        total.sum[i] = total.sum[i] * keep + r.sum[i] * take;
        j->c->dsp.fold(total.out + (size_t)i * j->stride, keep, r.out + (size_t)i * j->stride, take, j->stride);
    }
}

/* The item's queries [q, q + n_q). */
static void fold_end(const attention_job *j, const item *it, result total, uint32_t q, uint32_t n_q) {
    const td_attention *a = j->a;
    q += it->q0;
    for (uint32_t i = 0; i < n_q; i++, q++) {
        const uint32_t row = it->row + q / j->group, head = it->kv_head * j->group + q % j->group;
        float *out = a->out + ((size_t)row * a->n_heads + head) * j->head_dim;
        if (total.sum[i] == 0)
            memset(out, 0, j->head_dim * sizeof *out);
        else
            j->c->dsp.norm(out, total.out + (size_t)i * j->stride, NULL, 1.0f / total.sum[i], j->head_dim);
    }
}

static void whole_item(void *arg, int tile, int thread) {
    const attention_job *j = arg;
    const item *it = &j->items[tile];
    const workspace w = workspace_of(j, thread);
    load_queries(j, it, w.q);
    fold_begin(j, w.total, it->n_q);
    for (uint32_t s = 0; s < it->n_spans; s++) {
        attend_span(j, it, &w, it->span0 + s, w.span);
        fold_span(j, w.total, w.span, it->n_q);
    }
    fold_end(j, it, w.total, 0, it->n_q);
}

/* ---- splitting ---- */

/* The item that a tile of a job of the wave is of: the last one that begins at or before it. */
static const item *item_of(const attention_job *j, int job, uint32_t tile) {
    uint32_t lo = j->first, hi = j->first + j->n_wave;
    while (hi - lo > 1) {
        const uint32_t middle = lo + (hi - lo) / 2;
        if (j->items[middle].tile0[job] <= tile)
            lo = middle;
        else
            hi = middle;
    }
    return &j->items[lo];
}

/* The results of span `s` of those that the item has in the wave. */
static result partial_of(const attention_job *j, const item *it, uint32_t s) {
    return result_at(j->partial + it->partial + s * result_floats(j->stride, it->n_q), j->stride, it->n_q);
}

/* Tiles are stretches of spans of the wave's items. */
static void one_stretch(void *arg, int tile, int thread) {
    const attention_job *j = arg;
    const item *it = item_of(j, ATTEND, (uint32_t)tile);
    const workspace w = workspace_of(j, thread);
    uint32_t s = ((uint32_t)tile - it->tile0[ATTEND]) * it->reach;
    const uint32_t end = it->now - s < it->reach ? it->now : s + it->reach;
    load_queries(j, it, w.q);
    for (; s < end; s++)
        attend_span(j, it, &w, it->span0 + it->done + s, partial_of(j, it, s));
}

/* Tiles are queries of the wave's items. */
static void fold_query(void *arg, int tile, int thread) {
    const attention_job *j = arg;
    const item *it = item_of(j, FOLD, (uint32_t)tile);
    const uint32_t q = (uint32_t)tile - it->tile0[FOLD];
    result total = workspace_of(j, thread).total;
    if (j->total)
        total = result_from(result_at(j->total + it->total, j->stride, it->n_q), j->stride, q);
    if (it->done == 0)
        fold_begin(j, total, 1);
    for (uint32_t s = 0; s < it->now; s++)
        fold_span(j, total, result_from(partial_of(j, it, s), j->stride, q), 1);
    if (it->done + it->now == it->n_spans)
        fold_end(j, it, total, q, 1);
}

/* The next spans of an item, as many as there is room for behind `used` floats. */
static void plan_item(attention_job *j, item *it, size_t *used) {
    const size_t each = result_floats(j->stride, it->n_q), fit = (j->room - *used) / each;
    it->done += it->now;
    it->now = it->n_spans - it->done;
    if (it->now > fit)
        it->now = (uint32_t)fit;
    it->partial = *used;
    *used += it->now * each;
    memcpy(it->tile0, j->n_tiles, sizeof it->tile0);
    j->n_tiles[ATTEND] += (it->now + it->reach - 1) / it->reach;
    j->n_tiles[FOLD] += it->n_q;
}

/* Goes on from the first item that has spans left, or was not seen; false: all are done. */
static bool plan_wave(attention_job *j) {
    size_t used = 0;
    memset(j->n_tiles, 0, sizeof j->n_tiles);
    if (j->n_wave) {
        const item *last = &j->items[j->first + j->n_wave - 1];
        j->first += j->n_wave - (last->done + last->now < last->n_spans);
    }
    j->n_wave = 0;
    for (uint32_t i = j->first; i < j->n_items; i++) {
        item *it = &j->items[i];
        plan_item(j, it, &used);
        j->n_wave++;
        if (it->done + it->now < it->n_spans)
            break;
    }
    return j->n_wave > 0;
}

/* Scratch for as much of all results as one wave may have; lays out running totals where that is not all. */
static bool prepare_split(attention_job *j, uint32_t threads) {
    const uint64_t stretch = j->products / (STRETCHES * (uint64_t)threads);
    size_t all = 0, totals = 0;
    for (uint32_t i = 0; i < j->n_items; i++) {
        item *it = &j->items[i];
        const size_t each = result_floats(j->stride, it->n_q);
        const uint64_t reach = stretch / ((uint64_t)it->n_q * SPAN);
        it->reach = reach < 1 ? 1 : reach < INT32_MAX ? (uint32_t)reach : INT32_MAX;
        it->total = totals;
        totals += each;
        all += it->n_spans * each;
    }
    const size_t most = j->c->wave_bytes / sizeof(float), least = result_floats(j->stride, QUERIES);
    j->room = all <= most ? all : most > least ? most : least;
    j->partial = cpu_scratch(j->c, CPU_SLOT_PARTIAL, j->room, sizeof(float));
    j->total = all > j->room ? cpu_scratch(j->c, CPU_SLOT_TOTAL, totals, sizeof(float)) : NULL;
    return j->partial && (all <= j->room || j->total);
}

static void run_split(attention_job *j, uint32_t threads) {
    if (!prepare_split(j, threads))
        return;
    while (plan_wave(j)) {
        td_pool_run(j->c->pool, one_stretch, j, (int)j->n_tiles[ATTEND]);
        td_pool_run(j->c->pool, fold_query, j, (int)j->n_tiles[FOLD]);
    }
}

/* ---- cutting ---- */

static void item_range(const attention_job *j, item *it) {
    const uint32_t last = it->row + (it->q0 + it->n_q - 1) / j->group;
    it->lo = it->all_hi = INT32_MAX;
    it->hi = it->all_lo = 0;
    for (uint32_t row = it->row + it->q0 / j->group; row <= last; row++) {
        int32_t lo, hi;
        visible(j->a, row, &lo, &hi);
        it->all_lo = max_i32(it->all_lo, lo);
        it->all_hi = min_i32(it->all_hi, hi);
        if (lo < hi) {
            it->lo = min_i32(it->lo, lo);
            it->hi = max_i32(it->hi, hi);
        }
    }
    if (it->lo >= it->hi)
        return; /* n_spans is 0 */
    it->span0 = span_at(j, it->lo);
    it->n_spans = span_at(j, it->hi - 1) - it->span0 + 1;
}

static uint32_t run_end(const td_attention *a, uint32_t row) {
    uint32_t end = row + 1;
    while (end < a->n && a->row_seq[end] == a->row_seq[row])
        end++;
    return end;
}

/* Items of a run of rows and one KV head: `parts` of them where that leaves each enough queries. */
static uint32_t chunks_of(const attention_job *j, uint32_t rows, uint32_t parts) {
    const uint32_t queries = rows * j->group, least = (queries + QUERIES - 1) / QUERIES;
    const uint32_t most = queries < FEW_QUERIES ? 1 : queries / FEW_QUERIES;
    parts = parts < most ? parts : most;
    return parts > least ? parts : least;
}

/* Adds an item to the table and to the sums. */
static void add_item(attention_job *j, item it) {
    item_range(j, &it);
    const uint64_t products = it.n_spans ? (uint64_t)(uint32_t)(it.hi - it.lo) * it.n_q : 0;
    j->spans += it.n_spans;
    j->products += products;
    if (products > j->largest)
        j->largest = products;
    j->items[j->n_items++] = it;
}

/* Fills the table of items; false: no memory. */
static bool cut_items(attention_job *j, uint32_t parts) {
    const td_attention *a = j->a;
    size_t n = 0;
    for (uint32_t row = 0, end; row < a->n; row = end) {
        end = run_end(a, row);
        n += (size_t)chunks_of(j, end - row, parts) * a->layer->n_kv_heads;
    }
    j->items = cpu_scratch(j->c, CPU_SLOT_ITEMS, n, sizeof *j->items);
    j->n_items = 0;
    j->spans = j->products = j->largest = 0;
    for (uint32_t row = 0, end; j->items && row < a->n; row = end) {
        end = run_end(a, row);
        const uint32_t queries = (end - row) * j->group, chunks = chunks_of(j, end - row, parts);
        for (uint32_t i = 0; i < chunks * a->layer->n_kv_heads; i++) {
            const uint32_t q0 = (uint32_t)((uint64_t)queries * (i % chunks) / chunks);
            const uint32_t q1 = (uint32_t)((uint64_t)queries * (i % chunks + 1) / chunks);
            add_item(j, (item){.row = row, .q0 = q0, .n_q = q1 - q0, .kv_head = i / chunks});
        }
    }
    return j->items != NULL;
}

/* How many threads there is work for. */
static uint32_t threads_worth(const attention_job *j) {
    const uint64_t most = j->products * j->head_dim / PARTING, threads = (uint64_t)j->c->n_threads;
    return most >= threads ? (uint32_t)threads : most > 1 ? (uint32_t)most : 1;
}

/* Fewer items than threads, and too few spans to share those out evenly: threads take some of the queries each. Every
 * part reads the keys anew, but the last-level cache has them, and it may save the second job. */
static bool worth_parting(const attention_job *j, uint32_t threads) {
    return j->n_items < threads && j->spans < 2 * (uint64_t)threads;
}

/* Whole items would leave threads idle for long: there are few, or one is much larger than others. */
static bool worth_splitting(const attention_job *j, uint32_t threads) {
    const uint64_t rounds = (j->n_items + threads - 1) / threads;
    return threads > 1 && j->spans > j->n_items && j->largest * 4 * threads > j->products &&
           rounds * j->largest * threads * 8 > j->products * 9;
}

void cpu_attention(td_backend *be, const td_attention *a) {
    td_cpu *c = cpu_of(be);
    const td_kv_layer *l = a->layer;
    if (a->n == 0)
        return;
    attention_job j = {.c = c, .a = a, .group = a->n_heads / l->n_kv_heads, .head_dim = l->head_dim};
    j.stride = padded(l->head_dim);
    j.row_bytes = l->head_dim * td_kv_type_bytes(a->layout->type);
    j.in_place = j.stride == j.head_dim && !(a->layout->type == TD_KV_BF16 && c->dsp.isa == TD_ISA_GENERIC);
    j.block = block_keys(j.in_place ? j.row_bytes : j.stride * sizeof(float));
    j.load = a->layout->type == TD_KV_BF16 ? c->dsp.load_bf16 : c->dsp.load_f32;
    const bool windowed = a->window && a->window <= SHORT_END;
    j.short_end = windowed ? INT32_MAX / SHORT_SPAN * SHORT_SPAN : SHORT_END;
    if (!cut_items(&j, 1) || !cpu_reserve_threads(c, cpu_attention_bytes(l->head_dim)))
        return;
    const uint32_t threads = threads_worth(&j);
    if (worth_parting(&j, threads) && !cut_items(&j, (threads + j.n_items - 1) / j.n_items))
        return;
    if (worth_splitting(&j, threads))
        run_split(&j, threads);
    else
        td_pool_run(c->pool, whole_item, &j, (int)j.n_items);
}

/* ---- writing ---- */

typedef struct write_job {
    td_cpu *c;
    const td_kv_write *a;
} write_job;

static void write_row(void *arg, int row, int thread) {
    const write_job *j = arg;
    const td_kv_write *a = j->a;
    const td_kv_layer *l = a->layer;
    const uint32_t tokens = a->layout->page_tokens, pos = (uint32_t)a->pos[row];
    const size_t row_bytes = l->head_dim * td_kv_type_bytes(a->layout->type);
    uint8_t *page = a->pages[a->row_seq[row]][pos / tokens];
    (void)thread;
    for (uint32_t h = 0; h < l->n_kv_heads; h++) {
        const size_t from = ((size_t)row * l->n_kv_heads + h) * l->head_dim;
        uint8_t *to = page + ((size_t)h * tokens + pos % tokens) * row_bytes;
        if (a->layout->type == TD_KV_BF16) {
            j->c->dsp.store_bf16(to + l->k_offset, a->k + from, l->head_dim);
            j->c->dsp.store_bf16(to + l->v_offset, a->v + from, l->head_dim);
        } else {
            memcpy(to + l->k_offset, a->k + from, row_bytes);
            memcpy(to + l->v_offset, a->v + from, row_bytes);
        }
    }
}

void cpu_kv_write(td_backend *be, const td_kv_write *a) {
    write_job j = {cpu_of(be), a};
    const size_t elements = (size_t)a->n * a->layer->n_kv_heads * a->layer->head_dim;
    if (elements >= PARALLEL)
        td_pool_run(j.c->pool, write_row, &j, (int)a->n);
    else
        for (uint32_t r = 0; r < a->n; r++)
            write_row(&j, (int)r, 0);
}
