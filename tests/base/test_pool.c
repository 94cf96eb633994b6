/* test_pool.c - the thread pool: every tile once, results visible, sleepers woken, processors counted. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/pool.h"

#define MAX_TILES 1000

typedef struct job {
    int count[MAX_TILES]; /* plain memory on purpose: the sanitizer sees a missing happens-before */
    int thread[MAX_TILES];
    int salt;
    atomic_int bad_thread;
    int n_threads;
} job;

static void mark(void *arg, int tile, int thread) {
    job *j = arg;
    j->count[tile] += j->salt;
    j->thread[tile] = thread;
    if (thread < 0 || thread >= j->n_threads)
        atomic_store(&j->bad_thread, 1);
}

static td_pool *open_pool(int n_threads, int spin_us) {
    td_error err;
    td_pool *p;
    td_pool_options o = td_pool_options_default();
    o.n_threads = n_threads;
    o.spin_us = spin_us;
    assert_int_equal(td_pool_open(&p, &o, &err), TD_OK);
    assert_int_equal(td_pool_n_threads(p), n_threads);
    return p;
}

static void run_and_check(td_pool *p, job *j, int n_tiles, int salt) {
    memset(j->count, 0, sizeof j->count);
    j->salt = salt;
    j->n_threads = td_pool_n_threads(p);
    td_pool_run(p, mark, j, n_tiles);
    for (int t = 0; t < MAX_TILES; t++)
        assert_int_equal(j->count[t], t < n_tiles ? salt : 0);
    assert_int_equal(atomic_load(&j->bad_thread), 0);
}

static void every_tile_runs_once(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 3, 8};
    static const int tiles[] = {0, 1, 2, 3, 7, 64, MAX_TILES};
    static const int spins[] = {0, 50};
    static job j;
    for (size_t a = 0; a < 4; a++)
        for (size_t s = 0; s < 2; s++) {
            td_pool *p = open_pool(threads[a], spins[s]);
            for (size_t b = 0; b < 7; b++)
                run_and_check(p, &j, tiles[b], (int)(1 + a + b));
            td_pool_close(&p);
            assert_null(p);
        }
}

/* Many short jobs back to back: a worker late from one job must not touch the next. */
static void short_jobs_do_not_mix(void **state) {
    (void)state;
    static job j;
    static const int spins[] = {0, 1, 50};
    for (size_t s = 0; s < 3; s++) {
        td_pool *p = open_pool(4, spins[s]);
        j.n_threads = 4;
        memset(j.count, 0, sizeof j.count);
        j.salt = 1;
        int want[8] = {0};
        for (int i = 0; i < 3000; i++) {
            int n = 2 + i % 7;
            td_pool_run(p, mark, &j, n);
            for (int t = 0; t < n; t++)
                want[t]++;
        }
        for (int t = 0; t < 8; t++)
            assert_int_equal(j.count[t], want[t]);
        td_pool_close(&p);
    }
}

static void sleepers_wake(void **state) {
    (void)state;
    static job j;
    td_pool *p = open_pool(3, 10);
    for (int i = 0; i < 5; i++) {
        usleep(3000); /* far beyond the spin: the workers are asleep */
        run_and_check(p, &j, 40, i + 1);
    }
    td_pool_close(&p);
}

static void lock_step(void *arg, int tile, int thread) {
    (void)tile;
    (void)thread;
    atomic_int *arrived = arg;
    atomic_fetch_add(arrived, 1);
    while (atomic_load(arrived) < 2)
        usleep(100); /* ends only when another thread runs the other tile; the owner falls asleep meanwhile */
}

static void two_threads_work_at_the_same_time(void **state) {
    (void)state;
    td_pool *p = open_pool(2, 5);
    for (int i = 0; i < 20; i++) {
        atomic_int arrived = 0;
        td_pool_run(p, lock_step, &arrived, 2);
        assert_int_equal(atomic_load(&arrived), 2);
    }
    td_pool_close(&p);
}

static void bad_options_are_refused(void **state) {
    (void)state;
    td_error err;
    td_pool *p = (td_pool *)&err;
    assert_int_equal(td_pool_open(&p, &(td_pool_options){.n_threads = -1}, &err), TD_E_ARG);
    assert_null(p);
    assert_int_equal(td_pool_open(&p, &(td_pool_options){.n_threads = 1 << 20}, &err), TD_E_ARG);
    assert_int_equal(td_pool_open(&p, &(td_pool_options){.n_threads = 2, .spin_us = -5}, &err), TD_E_ARG);
    td_pool_close(NULL);
    td_pool_close(&p);
}

static void no_memory_leaves_nothing_behind(void **state) {
    (void)state;
    long live = td_alloc_live();
    for (long k = 0;; k++) {
        td_error err;
        td_pool *p;
        td_alloc_fail_at(k);
        td_status st = td_pool_open(&p, &(td_pool_options){.n_threads = 3}, &err);
        td_alloc_fail_at(-1);
        if (st == TD_OK) {
            assert_true(k > 0);
            td_pool_close(&p);
            break;
        }
        assert_int_equal(st, TD_E_NOMEM);
        assert_null(p);
        assert_int_equal(td_alloc_live(), live);
    }
    assert_int_equal(td_alloc_live(), live);
}

/* ---- processors ---- */

static void put(const char *dir, const char *name, const char *text) {
    char path[600];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    fclose(f);
}

static void the_tightest_quota_of_the_ancestors_counts(void **state) {
    (void)state;
    char root[] = "/tmp/td-test-pool-XXXXXX", inner[64], member[64];
    assert_non_null(mkdtemp(root));
    snprintf(inner, sizeof inner, "%s/a", root);
    mkdir(inner, 0700);
    snprintf(inner, sizeof inner, "%s/a/b", root);
    mkdir(inner, 0700);
    snprintf(member, sizeof member, "%s/cgroup", root);
    put(root, "cgroup", "12:cpu:/other\n0::/a/b\n");
    assert_int_equal(td_pool_cgroup_quota(member, root), 0); /* no files: no quota */
    put(root, "a/b/cpu.max", "max 100000\n");
    assert_int_equal(td_pool_cgroup_quota(member, root), 0);
    put(root, "a/b/cpu.max", "350000 100000\n");
    assert_int_equal(td_pool_cgroup_quota(member, root), 4);
    put(root, "a/cpu.max", "150000 100000\n");
    assert_int_equal(td_pool_cgroup_quota(member, root), 2);
    put(root, "cpu.max", "1000 100000\n");
    assert_int_equal(td_pool_cgroup_quota(member, root), 1);
    put(root, "cgroup", "0::/\n");
    assert_int_equal(td_pool_cgroup_quota(member, root), 1);
    put(root, "cpu.max", "nonsense");
    assert_int_equal(td_pool_cgroup_quota(member, root), 0);
    put(root, "cgroup", "12:cpu:/v1-only\n");
    assert_int_equal(td_pool_cgroup_quota(member, root), 0);
    assert_int_equal(td_pool_cgroup_quota("/nonexistent", root), 0);
    char command[128];
    snprintf(command, sizeof command, "rm -r %s", root);
    assert_int_equal(system(command), 0);
}

static void there_is_at_least_one_processor(void **state) {
    (void)state;
    assert_in_range(td_pool_usable_processors(), 1, 1 << 20);
    td_pool *p;
    td_error err;
    assert_int_equal(td_pool_open(&p, &(td_pool_options){.pin = true}, &err), TD_OK);
    static job j;
    run_and_check(p, &j, 10, 1);
    td_pool_close(&p);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_tile_runs_once),
        cmocka_unit_test(short_jobs_do_not_mix),
        cmocka_unit_test(sleepers_wake),
        cmocka_unit_test(two_threads_work_at_the_same_time),
        cmocka_unit_test(bad_options_are_refused),
        cmocka_unit_test(no_memory_leaves_nothing_behind),
        cmocka_unit_test(the_tightest_quota_of_the_ancestors_counts),
        cmocka_unit_test(there_is_at_least_one_processor),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
