/* rows.c - the operations that work row by row or element by element.
 *
 * They are cut into tiles only when they are large: below PARALLEL elements the hand-off costs more than it saves.
 * Tiles are rows or elements; a few wide rows of activations, whose elements are dear, are cut into pieces.
 *
 * Rotation needs cosines and sines of position times frequency. They are the same for every layer of one kind and for
 * its queries and keys, so the last few tables are kept and found again by their contents (positions and
 * frequencies), never by address. */
#include "backend/cpu/cpu.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"

#define PARALLEL 32768
#define PIECE 512 /* elements of a piece of a row, at least */

typedef struct rows_job {
    td_cpu *c;
    void (*fn)(const struct rows_job *j, size_t from, size_t to);
    size_t n, step;
    float *y, *y2;
    const float *x, *b, *w;
    const int32_t *index;
    int32_t *expert;
    const td_matrix *m;
    size_t y_stride, x_stride, b_stride;
    uint32_t dim, heads, k;
    uint32_t pieces, width; /* of a row, and elements of a piece, the last perhaps fewer */
    float eps, scale;
    td_act act;
} rows_job;

static void run_tile(void *arg, int tile, int thread) {
    const rows_job *j = arg;
    (void)thread;
    size_t from = (size_t)tile * j->step;
    j->fn(j, from, from + j->step < j->n ? from + j->step : j->n);
}

/* n rows (or elements) that cost `weight` each. */
static void run(rows_job *j, size_t n, size_t weight) {
    j->n = n;
    if (n == 0)
        return;
    if (j->c->n_threads == 1 || n * weight < PARALLEL) {
        j->fn(j, 0, n);
        return;
    }
    size_t tiles = (size_t)j->c->n_threads * 4;
    j->step = (n + tiles - 1) / tiles;
    if (weight == 1)
        j->step = (j->step + 1023) / 1024 * 1024;
    td_pool_run(j->c->pool, run_tile, j, (int)((n + j->step - 1) / j->step));
}

static void embed_rows(const rows_job *j, size_t from, size_t to) {
    for (size_t r = from; r < to; r++) {
        float *y = j->y + r * j->dim;
        td_matrix_row_f32(j->m, (size_t)j->index[r], y);
        j->c->dsp.scale(y, NULL, j->dim, j->scale);
    }
}

void cpu_embed(td_backend *be, float *y, const td_matrix *w, const int32_t *id, uint32_t n, float scale) {
    td_cpu *c = cpu_of(be);
    for (uint32_t i = 0; i < n; i++)
        if (id[i] < 0 || (uint32_t)id[i] >= w->n_out) {
            cpu_fail(c, TD_E_ARG, "embed: token %d at row %u is outside the table's %u rows", id[i], i, w->n_out);
            return;
        }
    rows_job j = {.c = c, .fn = embed_rows, .y = y, .m = w, .index = id, .dim = w->n_in, .scale = scale};
    run(&j, n, (size_t)w->n_in * 8);
}

static float inverse_rms(const rows_job *j, const float *x) {
    return 1.0f / sqrtf(j->c->dsp.sum_squares(x, j->dim) / (float)j->dim + j->eps);
}

static void norm_rows(const rows_job *j, size_t from, size_t to) {
    for (size_t r = from; r < to; r++) {
        const float *x = j->x + r * j->dim;
        j->c->dsp.norm(j->y + r * j->dim, x, j->w, inverse_rms(j, x), j->dim);
    }
}

void cpu_rmsnorm(td_backend *be, float *y, const float *x, const float *w, uint32_t n, uint32_t dim, float eps) {
    rows_job j = {.c = cpu_of(be), .fn = norm_rows, .y = y, .x = x, .w = w, .dim = dim, .eps = eps};
    run(&j, n, dim);
}

static void add_norm_rows(const rows_job *j, size_t from, size_t to) {
    for (size_t r = from; r < to; r++) {
        const float *x = j->x + r * j->dim;
        j->c->dsp.add_norm(j->y + r * j->dim, x, j->w, inverse_rms(j, x), j->scale, j->dim);
    }
}

void cpu_add_rmsnorm(td_backend *be, float *y, const float *x, const float *w, uint32_t n, uint32_t dim, float eps,
                     float scale) {
    rows_job j = {.c = cpu_of(be), .fn = add_norm_rows, .y = y, .x = x, .w = w, .dim = dim, .eps = eps, .scale = scale};
    run(&j, n, dim);
}

/* Pieces of rows: piece i of all is piece i % pieces of row i / pieces. */
static void gated_pieces(const rows_job *j, size_t from, size_t to) {
    for (size_t i = from; i < to; i++) {
        const size_t r = i / j->pieces, at = i % j->pieces * j->width;
        const uint32_t n = j->dim - at < j->width ? (uint32_t)(j->dim - at) : j->width;
        j->c->dsp.gated(j->y + r * j->y_stride + at, j->x + r * j->x_stride + at, j->b + r * j->b_stride + at, n,
                        j->act);
    }
}

/* Cuts each of n rows so that there are two pieces a thread, of whole cache lines. */
static void cut_rows(rows_job *j, size_t n) {
    const size_t want = n ? 2 * (size_t)j->c->n_threads / n : 1, most = j->dim / PIECE;
    const uint32_t pieces = (uint32_t)(want < most ? want : most);
    j->width = pieces > 1 ? ((j->dim + pieces - 1) / pieces + 15) / 16 * 16 : j->dim;
    j->pieces = j->width ? (j->dim + j->width - 1) / j->width : 1;
}

void cpu_gated(td_backend *be, float *y, const float *a, const float *b, uint32_t n, uint32_t dim, size_t y_stride,
               size_t a_stride, size_t b_stride, td_act act) {
    rows_job j = {.c = cpu_of(be),
                  .fn = gated_pieces,
                  .y = y,
                  .x = a,
                  .b = b,
                  .dim = dim,
                  .y_stride = y_stride,
                  .x_stride = a_stride,
                  .b_stride = b_stride,
                  .act = act};
    cut_rows(&j, n);
    run(&j, (size_t)n * j.pieces, (size_t)j.width * 4);
}

static void add_gated_rows(const rows_job *j, size_t from, size_t to) {
    for (size_t r = from; r < to; r++)
        j->c->dsp.axpy(j->y + r * j->dim, j->x + r * j->dim, 1.0f / (1.0f + expf(-j->b[r])), j->dim, false);
}

void cpu_add_gated_rows(td_backend *be, float *y, const float *x, const float *g, uint32_t n, uint32_t dim) {
    rows_job j = {.c = cpu_of(be), .fn = add_gated_rows, .y = y, .x = x, .b = g, .dim = dim};
    run(&j, n, dim);
}

static void add_elements(const rows_job *j, size_t from, size_t to) {
    j->c->dsp.add(j->y + from, j->x + from, j->b + from, to - from, j->scale);
}

void cpu_add(td_backend *be, float *y, const float *a, const float *b, size_t count, float scale) {
    rows_job j = {.c = cpu_of(be), .fn = add_elements, .y = y, .x = a, .b = b, .scale = scale};
    run(&j, count, 1);
}

static void scale_rows(const rows_job *j, size_t from, size_t to) {
    for (size_t r = from; r < to; r++)
        j->c->dsp.scale(j->y + r * j->dim, j->w, j->dim, j->scale);
}

void cpu_scale(td_backend *be, float *x, const float *w, uint32_t n, uint32_t dim, float scale) {
    rows_job j = {.c = cpu_of(be), .fn = scale_rows, .y = x, .w = w, .dim = dim, .scale = scale};
    run(&j, n, dim);
}

static void softcap_elements(const rows_job *j, size_t from, size_t to) {
    j->c->dsp.softcap(j->y + from, to - from, j->scale);
}

void cpu_softcap(td_backend *be, float *x, size_t count, float cap) {
    rows_job j = {.c = cpu_of(be), .fn = softcap_elements, .y = x, .scale = cap};
    run(&j, count, 1);
}

static void gather_rows(const rows_job *j, size_t from, size_t to) {
    for (size_t r = from; r < to; r++)
        memcpy(j->y + r * j->dim, j->x + (size_t)j->index[r] * j->dim, j->dim * sizeof(float));
}

void cpu_gather(td_backend *be, float *y, const float *x, const int32_t *row, uint32_t n, uint32_t dim) {
    rows_job j = {.c = cpu_of(be), .fn = gather_rows, .y = y, .x = x, .index = row, .dim = dim};
    run(&j, n, dim);
}

/* ---- routing ---- */

/* Whether expert a comes before b: the larger logit, then the lower index. A NaN comes after every number. */
static bool before(const float *logits, int32_t a, int32_t b) {
    float x = logits[a], y = logits[b];
    if (x > y)
        return true;
    if (x < y)
        return false;
    if (isnan(x) != isnan(y))
        return isnan(y);
    return a < b;
}

/* Insertion into the k best so far. */
static void top_k(int32_t *best, uint32_t k, const float *logits, uint32_t n_expert) {
    uint32_t have = 0;
    for (int32_t e = 0; e < (int32_t)n_expert; e++) {
        if (have == k && !before(logits, e, best[k - 1]))
            continue;
        uint32_t at = have < k ? have++ : k - 1;
        for (; at > 0 && before(logits, e, best[at - 1]); at--)
            best[at] = best[at - 1];
        best[at] = e;
    }
}

static void route_rows(const rows_job *j, size_t from, size_t to) {
    const uint32_t k = j->k;
    for (size_t r = from; r < to; r++) {
        const float *logits = j->x + r * j->dim;
        int32_t *expert = j->expert + r * k;
        float *weight = j->y + r * k, sum = 0;
        top_k(expert, k, logits, j->dim);
        for (uint32_t i = 0; i < k; i++)
            sum += weight[i] = expf(logits[expert[i]] - logits[expert[0]]);
        for (uint32_t i = 0; i < k; i++)
            weight[i] = weight[i] / sum * (j->w ? j->w[expert[i]] : 1.0f);
    }
}

void cpu_route(td_backend *be, int32_t *expert, float *weight, const float *logits, uint32_t n, uint32_t n_expert,
               uint32_t k, const float *scale) {
    rows_job j = {.c = cpu_of(be),
                  .fn = route_rows,
                  .y = weight,
                  .x = logits,
                  .w = scale,
                  .expert = expert,
                  .dim = n_expert,
                  .k = k};
    if (k > 0)
        run(&j, n, (size_t)n_expert * 4);
}

/* ---- rotation ---- */

#define ROPE_TABLES 4

typedef struct rope_table {
    uint32_t n, n_rot; /* 0: empty */
    uint64_t used;     /* when, in lookups */
    cpu_block block;   /* positions [n], frequencies [n_rot], cosines [n][n_rot], sines [n][n_rot] */
    int32_t *pos;
    float *freq, *cosine, *sine;
} rope_table;

void cpu_rope_free(td_cpu *c) {
    for (int i = 0; c->rope && i < ROPE_TABLES; i++)
        td_free_aligned(c->rope[i].block.data);
    td_free(c->rope);
}

static bool rope_matches(const rope_table *t, uint32_t n, const int32_t *pos, const float *freq, uint32_t n_rot) {
    return t->n == n && t->n_rot == n_rot && memcmp(t->pos, pos, n * sizeof *pos) == 0 &&
           memcmp(t->freq, freq, n_rot * sizeof *freq) == 0;
}

/* Where the parts of a table lie in its block. */
static void rope_place(rope_table *t, uint32_t n, uint32_t n_rot) {
    t->pos = (int32_t *)(void *)t->block.data;
    t->freq = (float *)(void *)(t->pos + n);
    t->cosine = t->freq + n_rot;
    t->sine = t->cosine + (size_t)n * n_rot;
}

/* Every table gets room for the largest there has been, so that a machine which is warm allocates nothing, whichever
 * table a pass takes next. */
static bool rope_grow(td_cpu *c, size_t bytes) {
    for (int i = 0; i < ROPE_TABLES; i++) {
        rope_table *t = &c->rope[i];
        if (bytes <= t->block.size)
            continue;
        cpu_block grown = {td_malloc_aligned(bytes), bytes};
        if (!grown.data)
            return false;
        if (t->n)
            memcpy(grown.data, t->block.data, t->block.size);
        td_free_aligned(t->block.data);
        t->block = grown;
        rope_place(t, t->n, t->n_rot);
    }
    return true;
}

static void rope_angles(const rows_job *j, size_t from, size_t to) {
    for (size_t r = from; r < to; r++)
        for (uint32_t i = 0; i < j->dim; i++) {
            float angle = (float)j->index[r] * j->w[i];
            j->y[r * j->dim + i] = cosf(angle);
            j->y2[r * j->dim + i] = sinf(angle);
        }
}

static bool rope_fill(td_cpu *c, rope_table *t, uint32_t n, const int32_t *pos, const float *freq, uint32_t n_rot) {
    t->n = 0;
    if (!rope_grow(c, ((size_t)n + n_rot + 2 * (size_t)n * n_rot) * 4))
        return false;
    rope_place(t, n, n_rot);
    memcpy(t->pos, pos, n * sizeof *pos);
    memcpy(t->freq, freq, n_rot * sizeof *freq);
    rows_job j = {
        .c = c, .fn = rope_angles, .y = t->cosine, .y2 = t->sine, .w = t->freq, .index = t->pos, .dim = n_rot};
    run(&j, n, (size_t)n_rot * 16);
    t->n = n;
    t->n_rot = n_rot;
    return true;
}

/* The table for these positions and frequencies; NULL: no memory. */
static const rope_table *rope_find(td_cpu *c, uint32_t n, const int32_t *pos, const float *freq, uint32_t n_rot) {
    static const char what[] = "no memory for the angles of %u rows";
    if (!c->rope && !(c->rope = td_calloc(ROPE_TABLES, sizeof *c->rope))) {
        cpu_fail(c, TD_E_NOMEM, what, n);
        return NULL;
    }
    rope_table *oldest = &c->rope[0];
    for (int i = 0; i < ROPE_TABLES; i++) {
        rope_table *t = &c->rope[i];
        if (rope_matches(t, n, pos, freq, n_rot)) {
            t->used = ++c->rope_clock;
            return t;
        }
        if (t->used < oldest->used)
            oldest = t;
    }
    oldest->used = ++c->rope_clock;
    if (rope_fill(c, oldest, n, pos, freq, n_rot))
        return oldest;
    cpu_fail(c, TD_E_NOMEM, what, n);
    return NULL;
}

/* y: the heads; x, b: cosines and sines; k: rotated pairs; y_stride: distance of a pair. */
static void rotate_rows(const rows_job *j, size_t from, size_t to) {
    for (size_t r = from; r < to; r++)
        for (uint32_t h = 0; h < j->heads; h++) {
            float *x = j->y + (r * j->heads + h) * j->dim;
            j->c->dsp.rotate(x, x + j->y_stride, j->x + r * j->k, j->b + r * j->k, j->k);
        }
}

void cpu_rope(td_backend *be, float *x, uint32_t n, uint32_t n_heads, uint32_t head_dim, const int32_t *pos,
              const float *inv_freq, uint32_t n_rot, uint32_t pair_dist) {
    td_cpu *c = cpu_of(be);
    if (n == 0 || n_rot == 0)
        return;
    const rope_table *t = rope_find(c, n, pos, inv_freq, n_rot);
    if (!t)
        return;
    rows_job j = {.c = c,
                  .fn = rotate_rows,
                  .y = x,
                  .x = t->cosine,
                  .b = t->sine,
                  .heads = n_heads,
                  .dim = head_dim,
                  .k = n_rot,
                  .y_stride = pair_dist};
    run(&j, n, (size_t)n_heads * n_rot * 2);
}
