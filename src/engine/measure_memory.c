/* measure_memory.c - the rate at which threads read memory: the yardstick of bench kernels.
 *
 * A yardstick that reads worse than the kernels do lets them look better than the memory allows. Which way of reading
 * is the fastest differs by machine: a plain sum leaves it to the processor to see what comes next, which it does
 * within a page of 4 KiB; the kernels request lines some KiB ahead of their use and read several rows side by side, and
 * so do the other ways here. All take turns and the best time counts. None does more than read every byte once, from
 * the memory of the thread that reads it: each thread is the first to write its tiles, so that they lie in the memory
 * beside it (but for the few that a thread that is late leaves to the others). */
#include "engine/measure.h"

#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/memory.h"
#include "base/pool.h"

#define TILE ((size_t)1 << 20)
#define MAX_THREADS 1024
#define LEAST_BYTES ((uint64_t)256 << 20)
#define MOST_BYTES ((uint64_t)1 << 30)

typedef uint64_t wide __attribute__((vector_size(64)));

typedef struct reader {
    wide *data;
    struct {
        _Alignas(64) wide sum; /* wanted by nobody, but a compiler cannot know */
    } thread[MAX_THREADS];
} reader;

static wide *tile_at(const reader *r, int tile) {
    return r->data + (size_t)tile * (TILE / sizeof(wide));
}

static void touch_tile(void *arg, int tile, int thread) {
    (void)thread;
    memset(tile_at(arg, tile), 1, TILE);
}

/* The tile in `streams` parts that are read side by side, lines requested `ahead` bytes before they are read (0: not);
 * behind the end of the buffer that is a request in vain. */
static inline void read_tile(reader *r, int tile, int thread, size_t streams, size_t ahead) {
    const size_t n = TILE / sizeof(wide) / streams;
    const wide *p = tile_at(r, tile);
    wide s[4] = {0};
    for (size_t i = 0; i < n; i += 4 / streams)
        for (size_t k = 0; k < 4; k++) {
            const wide *at = p + k % streams * n + i + k / streams;
            if (ahead)
                __builtin_prefetch((const char *)at + ahead);
            s[k] += *at;
        }
    r->thread[thread % MAX_THREADS].sum += s[0] + s[1] + s[2] + s[3];
}

static void read_plain(void *arg, int tile, int thread) {
    read_tile(arg, tile, thread, 1, 0);
}

static void read_8k_ahead(void *arg, int tile, int thread) {
    read_tile(arg, tile, thread, 1, 8192);
}

static void read_24k_ahead(void *arg, int tile, int thread) {
    read_tile(arg, tile, thread, 1, 24576);
}

static void read_two(void *arg, int tile, int thread) {
    read_tile(arg, tile, thread, 2, 4096);
}

static void read_four(void *arg, int tile, int thread) {
    read_tile(arg, tile, thread, 4, 2048);
}

static const td_pool_fn ways[] = {read_plain, read_8k_ahead, read_24k_ahead, read_two, read_four};
enum { N_WAYS = sizeof ways / sizeof *ways };

static uint64_t least(uint64_t a, uint64_t b) {
    return a < b ? a : b;
}

/* Three times the last cache, or much of the buffer would be read from there; but no more than takes a second or two to
 * read, and of the memory available no more than a quarter. */
static uint64_t enough_bytes(void) {
    uint64_t bytes = LEAST_BYTES;
#ifdef _SC_LEVEL3_CACHE_SIZE
    const long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache > 0 && 3 * (uint64_t)cache > bytes)
        bytes = least(3 * (uint64_t)cache, MOST_BYTES);
#endif
    return least(bytes, td_memory_available() / 4);
}

static double best_rate(td_pool *pool, reader *r, uint64_t bytes, uint32_t repeats) {
    const int n_tiles = (int)(bytes / TILE);
    double best = 0;
    td_pool_run(pool, touch_tile, r, n_tiles);
    for (uint32_t k = 0; k <= repeats; k++) /* the first is a warm-up */
        for (int w = 0; w < N_WAYS; w++) {
            int64_t start = td_clock_ns();
            td_pool_run(pool, ways[w], r, n_tiles);
            double rate = (double)n_tiles * TILE / td_clock_since(start);
            best = k && rate > best ? rate : best;
        }
    return best;
}

td_status td_measure_memory(const td_measure_memory_options *opt, double *rate, td_error *err) {
    td_pool_options o = td_pool_options_default();
    td_pool *pool = NULL;
    reader *r = td_malloc_aligned(sizeof *r);
    const uint64_t bytes = opt->bytes ? opt->bytes : enough_bytes();
    wide *data = td_malloc_aligned(bytes / TILE * TILE);
    td_status st = r && data ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for a buffer to read");
    o.n_threads = opt->n_threads;
    o.pin = opt->pin;
    if (st == TD_OK)
        st = td_pool_open(&pool, &o, err);
    if (st == TD_OK) {
        memset(r, 0, sizeof *r);
        r->data = data;
        *rate = best_rate(pool, r, bytes, opt->repeats);
    }
    td_pool_close(&pool);
    td_free_aligned(data);
    td_free_aligned(r);
    return st;
}
