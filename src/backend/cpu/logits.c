/* logits.c - the operations on rows of logits.
 *
 * argmax goes over all words once, in tiles of all rows together, and leaves a peak a block; the best word is then
 * found by going down: the first largest of the peaks, the first such word of its block. So no tile has a result to
 * combine but its peaks. top looks at blocks whose peak is above the threshold, a few as a rule, and needs no other
 * thread. sum_exp gives each tile a sum of its own, added in their order; the tiles are cut by the row's length alone.
 * None has scratch: rows of sums go one by one, so that their tiles fit the stack. */
#include "backend/cpu/cpu.h"

#include <math.h>

#define TILE 8192 /* words, of argmax, and of a sum at least */
#define MAX_SUMS 64
#define PARALLEL 32768 /* words of all rows; fewer are not worth handing out */

typedef struct logits_job {
    td_cpu *c;
    const float *x;          /* rows of dim */
    size_t dim, tile, tiles; /* words of a tile, tiles of a row */
    float *peak;             /* argmax: [rows][n_peaks] */
    size_t n_peaks;
    double *sum; /* sum_exp: [tiles], of one row */
    float top, t;
} logits_job;

static void run(logits_job *j, td_pool_fn fn, size_t n_rows) {
    const int n = (int)(n_rows * j->tiles);
    if (j->c->n_threads > 1 && n_rows * j->dim >= PARALLEL) {
        td_pool_run(j->c->pool, fn, j, n);
        return;
    }
    for (int i = 0; i < n; i++)
        fn(j, i, 0);
}

/* Of the tile that begins at word `at`. */
static size_t tile_words(const logits_job *j, size_t at) {
    return j->dim - at < j->tile ? j->dim - at : j->tile;
}

static void peaks_tile(void *arg, int tile, int thread) {
    const logits_job *j = arg;
    (void)thread;
    const size_t row = (size_t)tile / j->tiles, at = (size_t)tile % j->tiles * j->tile;
    j->c->dsp.peaks(j->peak + row * j->n_peaks + at / TD_PEAK_BLOCK, j->x + row * j->dim + at, tile_words(j, at));
}

static uint32_t first_of(const float *x, uint32_t from, float value) {
    while (value < INFINITY ? x[from] != value : x[from] < INFINITY)
        from++;
    return from;
}

static uint32_t part(uint32_t n, uint32_t at) {
    return n - at < TD_PEAK_BLOCK ? n - at : TD_PEAK_BLOCK;
}

static td_word find_best(const td_cpu *c, const float *x, const float *peak, uint32_t n_peaks) {
    float top = -INFINITY;
    uint32_t group = 0;
    for (uint32_t g = 0; g < n_peaks; g += TD_PEAK_BLOCK) {
        float p;
        c->dsp.peaks(&p, peak + g, part(n_peaks, g));
        if (p > top) {
            top = p;
            group = g;
        }
    }
    const uint32_t id = first_of(x, first_of(peak, group, top) * TD_PEAK_BLOCK, top);
    return (td_word){x[id], (int32_t)id};
}

void cpu_argmax(td_backend *be, td_word *best, float *peak, const float *x, uint32_t n, uint32_t dim) {
    td_cpu *c = cpu_of(be);
    const uint32_t n_peaks = td_peaks(dim);
    logits_job j = {.c = c,
                    .x = x,
                    .dim = dim,
                    .tile = TILE,
                    .tiles = ((size_t)dim + TILE - 1) / TILE,
                    .peak = peak,
                    .n_peaks = n_peaks};
    run(&j, peaks_tile, n);
    for (uint32_t r = 0; r < n; r++)
        best[r] = find_best(c, x + (size_t)r * dim, peak + (size_t)r * n_peaks, n_peaks);
}

static uint32_t top_of_row(const td_cpu *c, td_word *out, const float *x, const float *peak, uint32_t dim,
                           float least) {
    const float under = nextafterf(least, -INFINITY);
    const uint32_t n_peaks = td_peaks(dim);
    td_word block[TD_PEAK_BLOCK];
    uint32_t count = 0;
    for (uint32_t g = 0; g < n_peaks; g += TD_PEAK_BLOCK) {
        const uint32_t n_blocks = c->dsp.above(block, peak + g, part(n_peaks, g), under, g);
        for (uint32_t b = 0; b < n_blocks; b++) {
            const uint32_t at = (uint32_t)block[b].id * TD_PEAK_BLOCK;
            count += c->dsp.above(out + count, x + at, part(dim, at), under, at);
        }
    }
    return count;
}

void cpu_top(td_backend *be, td_word *out, uint32_t *n_out, const float *x, const float *peak, uint32_t n, uint32_t dim,
             const float *least) {
    for (size_t r = 0; r < n; r++)
        n_out[r] = top_of_row(cpu_of(be), out + r * dim, x + r * dim, peak + r * td_peaks(dim), dim, least[r]);
}

static void sum_tile(void *arg, int tile, int thread) {
    const logits_job *j = arg;
    (void)thread;
    const size_t at = (size_t)tile * j->tile;
    j->sum[tile] = j->c->dsp.sum_exp(j->x + at, tile_words(j, at), j->top, j->t);
}

void cpu_sum_exp(td_backend *be, double *sum, const float *x, uint32_t n, uint32_t dim, const float *top, float t) {
    double part_sum[MAX_SUMS];
    size_t tile = ((size_t)dim + MAX_SUMS - 1) / MAX_SUMS;
    tile = tile < TILE ? TILE : (tile + 1023) / 1024 * 1024;
    for (size_t r = 0; r < n; r++) {
        logits_job j = {.c = cpu_of(be),
                        .x = x + r * dim,
                        .dim = dim,
                        .tile = tile,
                        .tiles = (dim + tile - 1) / tile,
                        .sum = part_sum,
                        .top = top[r],
                        .t = t};
        run(&j, sum_tile, 1);
        sum[r] = 0;
        for (size_t i = 0; i < j.tiles; i++)
            sum[r] += part_sum[i];
    }
}
