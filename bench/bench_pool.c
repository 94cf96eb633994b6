/* bench_pool.c - what handing a job to the thread pool costs.
 *
 *     bench_pool [--pin] [THREADS...]
 *
 * A row a case, the cases in the same order every time, so that two runs can be laid side by side (paste, diff -y).
 * A job is so many tiles of so much work; before each the caller works alone for `gap` microseconds, as a sampler does
 * between passes: past the pool's spin time the workers have fallen asleep. `job` is what the job took, the gap left
 * out; `ideal` what its tiles take on processors of their own (rounds of tiles a thread x the time of a tile alone),
 * and `beyond` the difference: the hand-off. Least and median of several series. By default with 1, 2, 4, 8, ...
 * threads up to the usable processors; with more threads than processors `beyond` holds the waiting for one, too. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/pool.h"
#include "base/processors.h"

enum { SERIES = 31, MAX_COUNTS = 32, STEPS = 400 };

static const struct {
    int tiles_a_thread; /* 0: two tiles in all */
    int steps, gap_us, jobs;
} cases[] = {{1, STEPS, 0, 500},  {4, STEPS, 0, 500},  {4, 8 * STEPS, 0, 100}, {0, STEPS, 0, 500},
             {4, STEPS, 30, 100}, {4, STEPS, 300, 20}, {0, STEPS, 300, 20}};

/* A chain of multiplications: as long on every processor whatever the others do. */
static void work(void *arg, int tile, int thread) {
    const int *n = arg;
    volatile float end;
    float x = (float)tile;
    (void)thread;
    for (int i = 0; i < *n; i++)
        x = x * 0.999f + 1;
    end = x;
    (void)end;
}

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void wait_for(int gap_us) {
    const int64_t start = td_clock_ns();
    while (td_clock_ns() - start < (int64_t)gap_us * 1000)
        ;
}

typedef struct timing {
    double least, median; /* us a job */
} timing;

static timing a_job(td_pool *pool, int n_tiles, int steps, int gap_us, int jobs) {
    double us[SERIES];
    for (int s = 0; s < SERIES; s++) {
        int64_t took = 0;
        for (int j = 0; j < jobs; j++) {
            wait_for(gap_us);
            const int64_t start = td_clock_ns();
            td_pool_run(pool, work, &steps, n_tiles);
            took += td_clock_ns() - start;
        }
        us[s] = (double)took * 1e-3 / jobs;
    }
    qsort(us, SERIES, sizeof *us, by_value);
    return (timing){us[0], us[SERIES / 2]};
}

static td_pool *open_pool(int n_threads, bool pin) {
    td_pool_options o = td_pool_options_default();
    td_pool *pool;
    td_error err;
    o.n_threads = n_threads;
    o.pin = pin;
    if (td_pool_open(&pool, &o, &err) != TD_OK) {
        fprintf(stderr, "bench_pool: %s\n", err.message);
        exit(1);
    }
    return pool;
}

static void measure(int n_threads, bool pin, const double alone[]) {
    td_pool *pool = open_pool(n_threads, pin);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const int tiles = cases[i].tiles_a_thread ? cases[i].tiles_a_thread * n_threads : 2;
        const double ideal = alone[i] * ((tiles + n_threads - 1) / n_threads);
        const timing t = a_job(pool, tiles, cases[i].steps, cases[i].gap_us, cases[i].jobs);
        printf("%7d  %5d  %6d  %8.2f  %9.2f  %10.2f  %12.2f  %13.2f\n", n_threads, tiles, cases[i].gap_us, ideal,
               t.least, t.median, t.least - ideal, t.median - ideal);
    }
    td_pool_close(&pool);
}

int main(int argc, char **argv) {
    int counts[MAX_COUNTS], n_counts = 0;
    const bool pin = argc > 1 && strcmp(argv[1], "--pin") == 0;
    for (int i = 1 + pin; i < argc && n_counts < MAX_COUNTS; i++)
        counts[n_counts++] = atoi(argv[i]);
    for (int n = 1; argc < 2 + pin && n <= td_processors_usable() && n_counts < MAX_COUNTS; n *= 2)
        counts[n_counts++] = n;
    double alone[sizeof cases / sizeof *cases];
    td_pool *one = open_pool(1, false);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        alone[i] = a_job(one, 4, cases[i].steps, 0, 100).least / 4;
    td_pool_close(&one);
    printf("threads  tiles  gap,us  ideal,us  job least  job median  beyond least  beyond median\n");
    for (int i = 0; i < n_counts; i++)
        measure(counts[i], pin, alone);
    return 0;
}
