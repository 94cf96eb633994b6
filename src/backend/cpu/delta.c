/* delta.c - convolution and gated delta rule over recurrent memory.
 *
 * The convolution is cut by sequence and block of channels, the delta rule by sequence and value head, and where those
 * do not share out evenly, by blocks of the head's columns, too. What the rows of a pass have in common (normed queries
 * and keys, their products, decays) is made first, once a key head.
 *
 * A head walks its S in tiles of 32 columns, which do not see each other. A tile is loaded once, goes through all rows
 * of the log that are committed and all rows of the pass while it is in the first cache, and is stored once: 64 KiB
 * read and 64 KiB written a head of 128 x 128, whatever the rows. The update of a row and the reading of the next are
 * one walk. The stored tile is the one before the first tentative row; later updates die with it, having left u in the
 * log. */
#include "backend/cpu/delta.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/cpu.h"

/* Below this many elements a hand-off to the pool costs more than it saves. */
#define PARALLEL 32768
#define CONV_BLOCK 512

const td_delta_dsp *td_delta_dsp_get(td_isa isa) {
    const td_delta_dsp *d = isa == TD_ISA_AVX512                          ? td_delta_dsp_avx512()
                            : isa == TD_ISA_AVX2 || isa == TD_ISA_AVXVNNI ? td_delta_dsp_avx2()
                            : isa == TD_ISA_NEON || isa == TD_ISA_NEONDOT ? td_delta_dsp_neon()
                                                                          : NULL;
    return d ? d : td_delta_dsp_generic();
}

static float *floats_at(uint8_t *state, size_t offset) {
    return (float *)(void *)(state + offset);
}

static uint32_t committed_rows(const td_memory *m, uint32_t seq) {
    return m->n_commit ? m->n_commit[seq] : 0;
}

static uint32_t rows_of(const td_memory *m, uint32_t seq) {
    return m->first_row[seq + 1] - m->first_row[seq];
}

/* Runs n tiles that cost `work` elements in all. */
static void run(td_cpu *c, td_pool_fn fn, void *job, uint32_t n, uint64_t work) {
    if (work >= PARALLEL && c->n_threads > 1) {
        td_pool_run(c->pool, fn, job, (int)n);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        fn(job, (int)i, 0);
}

/* ---- convolution ---- */

typedef struct conv_job {
    const td_conv *c;
    const td_delta_dsp *dsp;
    uint32_t blocks; /* a sequence */
} conv_job;

/* A block of channels of one sequence. */
typedef struct conv_block {
    float *window, *log;
    const float *x;         /* the sequence's first row */
    uint32_t dim, width, n; /* floats from row to row; rows of the window; channels */
} conv_block;

static const float *row_before(const conv_block *b, uint32_t t, uint32_t back) {
    return t >= back ? b->x + (size_t)(t - back) * b->dim : b->window + ((size_t)b->width + t - back) * b->dim;
}

/* to <- the last `width` rows of the window followed by n_rows rows of x; `to` may be the window. */
static void slide(const conv_block *b, float *to, const float *x, uint32_t n_rows) {
    for (uint32_t i = 0; i < b->width && n_rows; i++) {
        uint32_t at = i + n_rows;
        const float *from = at < b->width ? b->window + (size_t)at * b->dim : x + (size_t)(at - b->width) * b->dim;
        memcpy(to + (size_t)i * b->dim, from, b->n * sizeof *to);
    }
}

static void conv_tile(void *arg, int tile, int thread) {
    const conv_job *j = arg;
    const td_conv *c = j->c;
    const td_memory *m = c->memory;
    const uint32_t seq = (uint32_t)tile / j->blocks, c0 = (uint32_t)tile % j->blocks * CONV_BLOCK;
    const uint32_t first = m->first_row[seq], n = rows_of(m, seq), sure = m->n_sure[seq];
    (void)thread;
    conv_block b = {.window = floats_at(m->state[seq], m->kept) + c0,
                    .log = floats_at(m->state[seq], m->log) + c0,
                    .x = c->x + (size_t)first * c->dim + c0,
                    .dim = c->dim,
                    .width = c->kernel - 1,
                    .n = c->dim - c0 < CONV_BLOCK ? c->dim - c0 : CONV_BLOCK};
    slide(&b, b.window, b.log, committed_rows(m, seq));
    for (uint32_t t = 0; t < n; t++) {
        const float *rows[TD_CONV_MAX_KERNEL];
        for (uint32_t k = 0; k < c->kernel; k++)
            rows[k] = row_before(&b, t, b.width - k);
        j->dsp->conv(c->out + ((size_t)first + t) * c->dim + c0, rows, c->w + c0, c->dim, c->kernel, b.n);
    }
    for (uint32_t i = 0; i < m->n_marks; i++)
        if (m->mark[i].seq == seq)
            slide(&b, floats_at(m->mark[i].to, m->kept) + c0, b.x, m->mark[i].n_rows);
    slide(&b, b.window, b.x, sure);
    for (uint32_t t = sure; t < n; t++)
        memcpy(b.log + (size_t)(t - sure) * c->dim, b.x + (size_t)t * c->dim, b.n * sizeof *b.log);
}

void cpu_conv(td_backend *be, const td_conv *c) {
    td_cpu *cpu = cpu_of(be);
    const td_memory *m = c->memory;
    conv_job j = {.c = c, .dsp = td_delta_dsp_get(cpu->dsp.isa), .blocks = (c->dim + CONV_BLOCK - 1) / CONV_BLOCK};
    if (m->n_seq)
        run(cpu, conv_tile, &j, m->n_seq * j.blocks,
            ((uint64_t)m->first_row[m->n_seq] + m->n_seq) * c->dim * c->kernel);
}

/* ---- delta rule ---- */

/* Where the common parts of a row lie in scratch. */
typedef struct delta_job {
    td_cpu *cpu;
    const td_delta *d;
    const td_delta_dsp *dsp;
    float *q, *k;        /* [n][n_k_heads][k_dim] normed, q scaled */
    float *qk;           /* [n][n_k_heads] */
    float *alpha, *beta; /* [n][n_v_heads] */
    size_t log_row;      /* floats of a row in a head's log */
    uint32_t blocks;     /* of columns of a head, each a tile of the job */
} delta_job;

/* One tile of one head on its way through the rows. */
typedef struct walker {
    const delta_job *j;
    uint32_t seq, head;
    uint32_t col, n_cols; /* of S */
    float *s;             /* [k_dim][v_dim], the head's; committed */
    float *log;
    float *tile; /* [k_dim][TD_DELTA_TILE] */
    /* the update that the tile lacks; k NULL: none */
    float alpha;
    const float *k;
    float u[TD_DELTA_TILE];
} walker;

static float sigmoid(float x) {
    return 1.0f / (1.0f + expf(-x));
}

static void normalise(const td_cpu *c, float *to, const float *from, uint32_t dim, float scale) {
    c->dsp.norm(to, from, NULL, scale / sqrtf(c->dsp.sum_squares(from, dim) + 1e-6f), dim);
}

static void prepare_row(void *arg, int tile, int thread) {
    const delta_job *j = arg;
    const td_delta *d = j->d;
    const size_t row = (size_t)tile, keys = (size_t)d->n_k_heads * d->k_dim;
    const float *qkv = d->qkv + row * (2 * keys + (size_t)d->n_v_heads * d->v_dim);
    const float scale = 1.0f / sqrtf((float)d->k_dim);
    (void)thread;
    for (uint32_t h = 0; h < d->n_k_heads; h++) {
        size_t at = (row * d->n_k_heads + h) * d->k_dim, head = (size_t)h * d->k_dim;
        normalise(j->cpu, j->q + at, qkv + head, d->k_dim, scale);
        normalise(j->cpu, j->k + at, qkv + keys + head, d->k_dim, 1.0f);
        j->qk[row * d->n_k_heads + h] = j->dsp->dot(j->q + at, j->k + at, d->k_dim);
    }
    for (uint32_t h = 0; h < d->n_v_heads; h++) {
        size_t at = row * d->n_v_heads + h;
        float x = d->a[at] + d->dt_bias[h], softplus = x > 20 ? x : log1pf(expf(x));
        j->alpha[at] = expf(-d->rate[h] * softplus);
        j->beta[at] = sigmoid(d->b[at]);
    }
}

/* The tile, its unused columns zero, from and to a [k_dim][v_dim] matrix. */
static void load_tile(const walker *w) {
    const td_delta *d = w->j->d;
    for (uint32_t i = 0; i < d->k_dim; i++) {
        float *to = w->tile + (size_t)i * TD_DELTA_TILE;
        memcpy(to, w->s + (size_t)i * d->v_dim + w->col, w->n_cols * sizeof *to);
        memset(to + w->n_cols, 0, (TD_DELTA_TILE - w->n_cols) * sizeof *to);
    }
}

static void store_tile(const walker *w, float *s) {
    const td_delta *d = w->j->d;
    for (uint32_t i = 0; i < d->k_dim; i++)
        memcpy(s + (size_t)i * d->v_dim + w->col, w->tile + (size_t)i * TD_DELTA_TILE, w->n_cols * sizeof *s);
}

static void settle(walker *w) {
    if (w->k)
        w->j->dsp->write(w->tile, w->j->d->k_dim, w->alpha, w->k, w->u);
    w->k = NULL;
}

static void repeat(walker *w, uint32_t n) {
    const td_delta *d = w->j->d;
    for (uint32_t t = 0; t < n; t++) {
        const float *row = w->log + t * w->j->log_row;
        settle(w);
        w->alpha = row[0];
        w->k = row + 1;
        memcpy(w->u, row + 1 + d->k_dim + w->col, w->n_cols * sizeof *w->u);
        memset(w->u + w->n_cols, 0, (TD_DELTA_TILE - w->n_cols) * sizeof *w->u);
    }
}

/* The tile stands after n rows of the pass: committed and marked copies of that moment are made. */
static void keep(const walker *w, uint32_t n) {
    const td_memory *m = w->j->d->memory;
    const size_t head = (size_t)w->head * w->j->d->k_dim * w->j->d->v_dim;
    for (uint32_t i = 0; i < m->n_marks; i++)
        if (m->mark[i].seq == w->seq && m->mark[i].n_rows == n)
            store_tile(w, floats_at(m->mark[i].to, m->kept) + head);
    if (n == m->n_sure[w->seq])
        store_tile(w, w->s);
}

/* Row t of the sequence: reads the tile (catching up first), and leaves its own update owing. */
static void step(walker *w, uint32_t t) {
    const delta_job *j = w->j;
    const td_delta *d = j->d;
    const size_t row = (size_t)d->memory->first_row[w->seq] + t;
    const size_t key = row * d->n_k_heads + td_delta_key_head(d, w->head), value = row * d->n_v_heads + w->head;
    const float *k = j->k + key * d->k_dim, *q = j->q + key * d->k_dim;
    float p[TD_DELTA_TILE], o[TD_DELTA_TILE], v[TD_DELTA_TILE] = {0}, out[TD_DELTA_TILE];
    if (w->k)
        j->dsp->write_read(w->tile, d->k_dim, w->alpha, w->k, w->u, k, q, p, o);
    else
        j->dsp->read(w->tile, d->k_dim, k, q, p, o);
    keep(w, t);
    memcpy(v,
           d->qkv + row * (2 * (size_t)d->n_k_heads * d->k_dim + (size_t)d->n_v_heads * d->v_dim) +
               2 * (size_t)d->n_k_heads * d->k_dim + (size_t)w->head * d->v_dim + w->col,
           w->n_cols * sizeof *v);
    w->alpha = j->alpha[value];
    w->k = k;
    j->dsp->result(w->u, out, v, p, o, w->alpha, j->beta[value], j->qk[key]);
    memcpy(d->out + value * d->v_dim + w->col, out, w->n_cols * sizeof *out);
}

static void walk_tile(walker *w) {
    const td_delta *d = w->j->d;
    const td_memory *m = d->memory;
    const uint32_t n = rows_of(m, w->seq), sure = m->n_sure[w->seq];
    w->k = NULL;
    load_tile(w);
    repeat(w, committed_rows(m, w->seq));
    for (uint32_t t = 0; t < n; t++) {
        step(w, t);
        if (t >= sure)
            memcpy(w->log + (t - sure) * w->j->log_row + 1 + d->k_dim + w->col, w->u, w->n_cols * sizeof *w->u);
    }
    if (n == sure) {
        settle(w);
        keep(w, n);
    }
}

/* alpha and k of the tentative rows, once all columns are through with the old log. */
static void log_rows(const walker *w) {
    const delta_job *j = w->j;
    const td_delta *d = j->d;
    const td_memory *m = d->memory;
    for (uint32_t t = m->n_sure[w->seq]; t < rows_of(m, w->seq); t++) {
        size_t row = (size_t)m->first_row[w->seq] + t;
        float *to = w->log + (t - m->n_sure[w->seq]) * j->log_row;
        to[0] = j->alpha[row * d->n_v_heads + w->head];
        memcpy(to + 1, j->k + (row * d->n_k_heads + td_delta_key_head(d, w->head)) * d->k_dim, d->k_dim * sizeof *to);
    }
}

/* Head number i of all sequences' heads. */
static walker walker_of(const delta_job *j, uint32_t i, int thread) {
    const td_delta *d = j->d;
    const td_memory *m = d->memory;
    const uint32_t seq = i / d->n_v_heads, head = i % d->n_v_heads;
    return (walker){.j = j,
                    .seq = seq,
                    .head = head,
                    .s = floats_at(m->state[seq], m->kept) + (size_t)head * d->k_dim * d->v_dim,
                    .log = floats_at(m->state[seq], m->log) + head * m->max_tentative * j->log_row,
                    .tile = cpu_thread_block(j->cpu, thread)};
}

/* A block of columns of a head. */
static void delta_block(void *arg, int tile, int thread) {
    const delta_job *j = arg;
    const td_delta *d = j->d;
    const uint32_t tiles = (d->v_dim + TD_DELTA_TILE - 1) / TD_DELTA_TILE, block = (uint32_t)tile % j->blocks;
    const uint32_t end = tiles * (block + 1) / j->blocks * TD_DELTA_TILE;
    walker w = walker_of(j, (uint32_t)tile / j->blocks, thread);
    if (!rows_of(d->memory, w.seq) && !committed_rows(d->memory, w.seq))
        return;
    for (w.col = tiles * block / j->blocks * TD_DELTA_TILE; w.col < end; w.col += TD_DELTA_TILE) {
        w.n_cols = d->v_dim - w.col < TD_DELTA_TILE ? d->v_dim - w.col : TD_DELTA_TILE;
        walk_tile(&w);
    }
    if (j->blocks == 1)
        log_rows(&w);
}

static void log_head(void *arg, int tile, int thread) {
    const walker w = walker_of(arg, (uint32_t)tile, thread);
    log_rows(&w);
}

static bool any_tentative(const td_memory *m) {
    for (uint32_t i = 0; i < m->n_seq; i++)
        if (rows_of(m, i) > m->n_sure[i])
            return true;
    return false;
}

/* All the columns of a head are a tile, unless many threads would then wait for few. */
static uint32_t blocks_of(const td_delta *d, uint32_t heads, uint32_t threads) {
    const uint32_t tiles = (d->v_dim + TD_DELTA_TILE - 1) / TD_DELTA_TILE;
    return heads % threads == 0 || heads >= 4 * threads ? 1 : tiles;
}

void cpu_delta(td_backend *be, const td_delta *d) {
    td_cpu *c = cpu_of(be);
    const td_memory *m = d->memory;
    const size_t n = m->n_seq ? m->first_row[m->n_seq] : 0, heads = n * d->n_k_heads;
    const size_t floats = heads * (2 * (size_t)d->k_dim + 1) + 2 * n * d->n_v_heads;
    float *scratch = cpu_scratch(c, CPU_SLOT_HIDDEN, floats, sizeof(float));
    if (!m->n_seq || !scratch || !cpu_reserve_threads(c, (size_t)d->k_dim * TD_DELTA_TILE * sizeof(float)))
        return;
    delta_job j = {.cpu = c,
                   .d = d,
                   .dsp = td_delta_dsp_get(c->dsp.isa),
                   .q = scratch,
                   .k = scratch + heads * d->k_dim,
                   .qk = scratch + 2 * heads * d->k_dim,
                   .alpha = scratch + 2 * heads * d->k_dim + heads,
                   .beta = scratch + 2 * heads * d->k_dim + heads + n * d->n_v_heads,
                   .log_row = 1 + (size_t)d->k_dim + d->v_dim};
    run(c, prepare_row, &j, (uint32_t)n, (uint64_t)heads * d->k_dim * 2);
    const uint32_t all = m->n_seq * d->n_v_heads;
    j.blocks = blocks_of(d, all, (uint32_t)c->n_threads);
    run(c, delta_block, &j, all * j.blocks, (uint64_t)all * d->k_dim * d->v_dim);
    if (j.blocks > 1 && any_tentative(m))
        run(c, log_head, &j, all, (uint64_t)all * d->k_dim * m->max_tentative);
}
