/* bench_pool.c - what handing a job to the thread pool costs.
 *
 *     bench_pool [THREADS...]
 *
 * Jobs of no work, one tile a thread and four, one right after the other as a forward pass has them: microseconds a
 * job, median of several series. By default with 2, 4, 8, ... threads up to the usable processors. */
#include <stdio.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/pool.h"
#include "base/processors.h"

enum { JOBS = 500, SERIES = 21, MAX_COUNTS = 32 };

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

/* Microseconds, of tiles of n steps. */
static double a_job(td_pool *pool, int n_tiles, int n) {
    double us[SERIES];
    for (int s = 0; s < SERIES; s++) {
        const int64_t start = td_clock_ns();
        for (int j = 0; j < JOBS; j++)
            td_pool_run(pool, work, &n, n_tiles);
        us[s] = td_clock_since(start) * 1e6 / JOBS;
    }
    qsort(us, SERIES, sizeof *us, by_value);
    return us[SERIES / 2];
}

static td_pool *open_pool(int n_threads) {
    td_pool_options o = td_pool_options_default();
    td_pool *pool;
    td_error err;
    o.n_threads = n_threads;
    if (td_pool_open(&pool, &o, &err) != TD_OK) {
        fprintf(stderr, "bench_pool: %s\n", err.message);
        exit(1);
    }
    return pool;
}

int main(int argc, char **argv) {
    int counts[MAX_COUNTS], n_counts = 0;
    for (int i = 1; i < argc && n_counts < MAX_COUNTS; i++)
        counts[n_counts++] = atoi(argv[i]);
    for (int n = 2; argc < 2 && n <= td_processors_usable() && n_counts < MAX_COUNTS; n *= 2)
        counts[n_counts++] = n;
    td_pool *one = open_pool(1);
    const int steps[] = {400, 3200};
    printf("threads  tile, us  job beyond four, us  tile, us  job beyond four, us\n");
    for (int i = 0; i < n_counts; i++) {
        td_pool *pool = open_pool(counts[i]);
        printf("%7d", counts[i]);
        for (int k = 0; k < 2; k++) {
            const double alone = a_job(one, 4, steps[k]);
            printf("  %8.2f  %19.2f", alone / 4, a_job(pool, 4 * counts[i], steps[k]) - alone);
        }
        printf("\n");
        td_pool_close(&pool);
    }
    td_pool_close(&one);
    return 0;
}
