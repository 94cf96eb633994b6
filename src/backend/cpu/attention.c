/* attention.c - attention over pages, and writing keys and values into them.
 *
 * Keys are walked in spans of SPAN positions, cut at absolute positions. A query's result in a span is the largest
 * score, the sum of exp(score - largest) and the unnormalised mix of values; the results of its spans are folded in
 * ascending order, always one after the other. This order is a function of the query's position and window alone, so
 * it does not matter which rows come along, how KV was cut into passes or pages, or which thread took which span.
 *
 * Work is cut into items: up to QUERIES queries of one sequence that read one KV head (several rows, several heads of
 * the group), which share each block of keys and values that comes from memory. Kernels read the blocks in the pages
 * themselves; converted to padded floats first are only heads whose size is no multiple of the widest vector, and bf16
 * at the generic level, which widens it too slowly to do so for every tile of queries.
 *
 * When there are enough items a thread walks all spans of an item. Otherwise, in a short context, there are more items
 * with fewer queries each; in a long one threads take (item, span) pairs, leave the results in scratch, and a second
 * job folds them, the queries shared out: the same numbers in the same order. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

#define SPAN 512
#define QUERIES 64
#define FEW_QUERIES 3 /* not worth a reading of the keys of their own */
/* Of keys or values at a time: so far ahead runs what is requested from memory. Less would stay in the first-level
 * cache, but a mixed output is loaded and stored once a block. */
#define NEAR_BYTES (32u << 10)
#define MAX_BLOCK 64
/* Queries that a thread folds at a time. */
#define FOLD_QUERIES 4
#define FOLD_PARTS (QUERIES / FOLD_QUERIES)
#define SPLIT_BYTES ((size_t)64 << 20)
#define PARALLEL 32768
/* Products of a query with a key, times the dimensions, that are worth a second thread. */
#define PARTING 131072

typedef struct item {
    uint32_t row;     /* the first row of the run */
    uint32_t q0, n_q; /* queries of the run: query i is row + i / group, head i % group of the KV head */
    uint32_t kv_head;
    int32_t lo, hi;         /* keys that some query sees: [lo, hi); empty: hi <= lo */
    int32_t all_lo, all_hi; /* keys that every query sees; perhaps none */
    uint32_t span0, n_spans;
    size_t partial; /* split: index of its first span among all */
} item;

typedef struct attention_job {
    td_cpu *c;
    const td_attention *a;
    uint32_t group, head_dim, stride, block; /* block: keys at a time, at most */
    size_t row_bytes;                        /* of one K or V row */
    bool in_place;                           /* kernels read the rows where they lie: no conversion */
    void (*load)(float *to, const void *from, size_t n);
    item *items;
    uint32_t n_items;
    /* split */
    float *partial; /* [spans of all items][QUERIES][stride + 2] */
    uint32_t *item_of;
} attention_job;

/* One thread's scratch. */
typedef struct workspace {
    float *q, *out, *total; /* [QUERIES][stride] */
    float *score;           /* [QUERIES][SPAN] */
    float *kv;              /* [block][stride] */
    float *top, *sum;       /* [QUERIES] of the span */
    float *all_top, *all_sum;
} workspace;

static uint32_t padded(uint32_t head_dim) {
    return (head_dim + TD_DSP_MAX_LANES - 1) / TD_DSP_MAX_LANES * TD_DSP_MAX_LANES;
}

static uint32_t block_keys(size_t row_bytes) {
    const uint32_t n = (uint32_t)(NEAR_BYTES / row_bytes) / 4 * 4;
    return n < 4 ? 4 : n > MAX_BLOCK ? MAX_BLOCK : n;
}

size_t cpu_attention_bytes(uint32_t head_dim) {
    const size_t stride = padded(head_dim);
    return (3 * QUERIES * stride + QUERIES * SPAN + MAX_BLOCK * stride + 4 * QUERIES) * sizeof(float);
}

static workspace workspace_of(const attention_job *j, int thread) {
    const size_t rows = (size_t)QUERIES * j->stride;
    workspace w = {.q = cpu_thread_block(j->c, thread)};
    w.out = w.q + rows;
    w.total = w.out + rows;
    w.score = w.total + rows;
    w.kv = w.score + QUERIES * SPAN;
    w.top = w.kv + (size_t)MAX_BLOCK * j->stride;
    w.sum = w.top + QUERIES;
    w.all_top = w.sum + QUERIES;
    w.all_sum = w.all_top + QUERIES;
    return w;
}

static int32_t max_i32(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static int32_t min_i32(int32_t a, int32_t b) {
    return a < b ? a : b;
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
static void weigh(const attention_job *j, const item *it, const workspace *w, int32_t start, float *top, float *sum) {
    for (uint32_t i = 0; i < it->n_q; i++) {
        int32_t lo, hi;
        visible(j->a, it->row + (it->q0 + i) / j->group, &lo, &hi);
        lo = max_i32(lo - start, 0);
        hi = min_i32(hi - start, SPAN);
        if (lo < hi) {
            j->c->dsp.softmax(w->score + i * SPAN, SPAN, (uint32_t)lo, (uint32_t)hi, &top[i], &sum[i]);
        } else {
            memset(w->score + i * SPAN, 0, SPAN * sizeof *w->score);
            top[i] = -INFINITY;
            sum[i] = 0;
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

/* The item's queries over one span: top, sum, out [n_q][stride]. */
static void attend_span(const attention_job *j, const item *it, const workspace *w, uint32_t span, float *top,
                        float *sum, float *out) {
    const td_dsp *d = &j->c->dsp;
    const td_kv_layer *l = j->a->layer;
    const int32_t start = (int32_t)span * SPAN, first = max_i32(start, it->lo);
    const int32_t end = (int32_t)((int64_t)start + SPAN < it->hi ? start + SPAN : it->hi);
    for (int32_t k = first, n; k < end; k += n) {
        n = block_at(j, k, end);
        const td_kv_rows keys = block_rows(j, it, w, l->k_offset, k, n);
        d->score(w->score + (k - start), SPAN, w->q, it->n_q, &keys, (uint32_t)n, j->stride,
                 rows_ahead(j, it, l->k_offset, k + n, end, l->v_offset, first));
    }
    weigh(j, it, w, start, top, sum);
    memset(out, 0, (size_t)it->n_q * j->stride * sizeof *out);
    for (int32_t k = first, n; k < end; k += n) {
        n = block_at(j, k, end);
        mix_block(j, it, w, start, k, n, out, rows_ahead(j, it, l->v_offset, k + n, end, l->k_offset, end));
    }
}

/* ---- folding spans ---- */

static void fold_begin(const attention_job *j, const workspace *w, uint32_t n_q) {
    memset(w->total, 0, (size_t)n_q * j->stride * sizeof *w->total);
    for (uint32_t i = 0; i < n_q; i++) {
        w->all_top[i] = -INFINITY;
        w->all_sum[i] = 0;
    }
}

/* Of n_q queries. */
static void fold_span(const attention_job *j, const workspace *w, uint32_t n_q, const float *top, const float *sum,
                      const float *out) {
    for (uint32_t i = 0; i < n_q; i++) {
        if (sum[i] == 0) /* saw no key: its sum would be at least 1, or NaN */
            continue;
        const float most = w->all_top[i] > top[i] ? w->all_top[i] : top[i];
        const float keep = expf(w->all_top[i] - most), take = expf(top[i] - most);
        w->all_top[i] = most;
        w->all_sum[i] = w->all_sum[i] * keep + sum[i] * take;
        j->c->dsp.fold(w->total + (size_t)i * j->stride, keep, out + (size_t)i * j->stride, take, j->stride);
    }
}

/* The queries [q, q + n_q) of the run. */
static void fold_end(const attention_job *j, const item *it, const workspace *w, uint32_t q, uint32_t n_q) {
    const td_attention *a = j->a;
    for (uint32_t i = 0; i < n_q; i++, q++) {
        const uint32_t row = it->row + q / j->group, head = it->kv_head * j->group + q % j->group;
        float *out = a->out + ((size_t)row * a->n_heads + head) * j->head_dim;
        if (w->all_sum[i] == 0)
            memset(out, 0, j->head_dim * sizeof *out);
        else
            j->c->dsp.norm(out, w->total + (size_t)i * j->stride, NULL, 1.0f / w->all_sum[i], j->head_dim);
    }
}

/* ---- jobs ---- */

static void whole_item(void *arg, int tile, int thread) {
    const attention_job *j = arg;
    const item *it = &j->items[tile];
    workspace w = workspace_of(j, thread);
    load_queries(j, it, w.q);
    fold_begin(j, &w, it->n_q);
    for (uint32_t s = 0; s < it->n_spans; s++) {
        attend_span(j, it, &w, it->span0 + s, w.top, w.sum, w.out);
        fold_span(j, &w, it->n_q, w.top, w.sum, w.out);
    }
    fold_end(j, it, &w, it->q0, it->n_q);
}

static float *partial_of(const attention_job *j, size_t index) {
    return j->partial + index * QUERIES * (j->stride + 2);
}

static void one_span(void *arg, int tile, int thread) {
    const attention_job *j = arg;
    const item *it = &j->items[j->item_of[tile]];
    workspace w = workspace_of(j, thread);
    float *top = partial_of(j, (size_t)tile), *sum = top + QUERIES;
    load_queries(j, it, w.q);
    attend_span(j, it, &w, it->span0 + (uint32_t)((size_t)tile - it->partial), top, sum, sum + QUERIES);
}

/* Tiles are FOLD_QUERIES queries of an item; the last ones of an item may be empty. */
static void fold_part(void *arg, int tile, int thread) {
    const attention_job *j = arg;
    const item *it = &j->items[tile / FOLD_PARTS];
    const uint32_t q = (uint32_t)(tile % FOLD_PARTS) * FOLD_QUERIES;
    if (q >= it->n_q)
        return;
    const uint32_t n_q = it->n_q - q < FOLD_QUERIES ? it->n_q - q : FOLD_QUERIES;
    workspace w = workspace_of(j, thread);
    fold_begin(j, &w, n_q);
    for (uint32_t s = 0; s < it->n_spans; s++) {
        const float *top = partial_of(j, it->partial + s) + q, *sum = top + QUERIES;
        fold_span(j, &w, n_q, top, sum, partial_of(j, it->partial + s) + 2 * QUERIES + (size_t)q * j->stride);
    }
    fold_end(j, it, &w, it->q0 + q, n_q);
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
    it->span0 = (uint32_t)it->lo / SPAN;
    it->n_spans = (uint32_t)(it->hi - 1) / SPAN - it->span0 + 1;
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

/* Fills the table of items; returns how many spans they have in all, or -1: no memory. */
static int64_t cut_items(attention_job *j, uint32_t parts) {
    const td_attention *a = j->a;
    size_t n = 0;
    for (uint32_t row = 0, end; row < a->n; row = end) {
        end = run_end(a, row);
        n += (size_t)chunks_of(j, end - row, parts) * a->layer->n_kv_heads;
    }
    j->items = cpu_scratch(j->c, CPU_SLOT_ITEMS, n, sizeof *j->items);
    if (!j->items)
        return -1;
    int64_t spans = 0;
    j->n_items = 0;
    for (uint32_t row = 0, end; row < a->n; row = end) {
        end = run_end(a, row);
        const uint32_t queries = (end - row) * j->group, chunks = chunks_of(j, end - row, parts);
        for (uint32_t i = 0; i < chunks * a->layer->n_kv_heads; i++) {
            const uint32_t chunk = i % chunks, q0 = (uint32_t)((uint64_t)queries * chunk / chunks);
            item *it = &j->items[j->n_items++];
            *it = (item){.row = row, .q0 = q0, .kv_head = i / chunks, .partial = (size_t)spans};
            it->n_q = (uint32_t)((uint64_t)queries * (chunk + 1) / chunks) - q0;
            item_range(j, it);
            spans += it->n_spans;
        }
    }
    return spans;
}

/* Fewer items than threads, and too few spans to share those out evenly: threads take some of the queries each. Every
 * part reads the keys anew, but the last-level cache has them, and it saves the second job. */
static bool worth_parting(const attention_job *j, int64_t spans) {
    const uint32_t threads = (uint32_t)j->c->n_threads;
    if (spans <= 0 || j->n_items >= threads || spans >= 2 * (int64_t)threads)
        return false;
    const item *it = &j->items[0];
    return (uint64_t)(uint32_t)it->hi * it->n_q * j->head_dim >= PARTING;
}

/* Few items and long contexts: threads take spans. */
static bool worth_splitting(const attention_job *j, int64_t spans) {
    const size_t bytes = (size_t)spans * QUERIES * (j->stride + 2) * sizeof(float);
    return j->c->n_threads > 1 && j->n_items < 2 * (uint32_t)j->c->n_threads && spans > j->n_items &&
           bytes <= SPLIT_BYTES;
}

static bool prepare_split(attention_job *j, int64_t spans) {
    const size_t bytes = (size_t)QUERIES * (j->stride + 2) * sizeof(float) + sizeof *j->item_of;
    j->partial = cpu_scratch(j->c, CPU_SLOT_PARTIAL, (size_t)spans, bytes);
    if (!j->partial)
        return false;
    j->item_of = (uint32_t *)(void *)partial_of(j, (size_t)spans);
    for (uint32_t i = 0; i < j->n_items; i++)
        for (uint32_t s = 0; s < j->items[i].n_spans; s++)
            j->item_of[j->items[i].partial + s] = i;
    return true;
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
    int64_t spans = cut_items(&j, 1);
    const bool parting = worth_parting(&j, spans);
    if (parting)
        spans = cut_items(&j, ((uint32_t)c->n_threads + j.n_items - 1) / j.n_items);
    if (spans < 0 || !cpu_reserve_threads(c, cpu_attention_bytes(l->head_dim)))
        return;
    if (parting || !worth_splitting(&j, spans)) {
        td_pool_run(c->pool, whole_item, &j, (int)j.n_items);
    } else if (prepare_split(&j, spans)) {
        td_pool_run(c->pool, one_span, &j, (int)spans);
        td_pool_run(c->pool, fold_part, &j, (int)j.n_items * FOLD_PARTS);
    }
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
