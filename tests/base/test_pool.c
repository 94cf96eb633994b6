/* test_pool.c - the thread pool: every tile once, results visible, sleepers woken, threads bound. */
#include <pthread.h>
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/pool.h"
#include "base/processors.h"

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

/* As many sleepers as there are tiles beside the owner's: each waits for all the others. */
static void meet(void *arg, int tile, int thread) {
    atomic_int *missing = arg;
    (void)tile;
    (void)thread;
    atomic_fetch_sub(missing, 1);
    while (atomic_load(missing) > 0)
        usleep(100);
}

static void few_tiles_wake_enough_sleepers(void **state) {
    (void)state;
    td_pool *p = open_pool(8, 0);
    for (int i = 0; i < 40; i++) {
        const int n = 2 + i % 7;
        usleep(i % 4 * 1000); /* all asleep, or still on their way */
        atomic_int missing = n;
        td_pool_run(p, meet, &missing, n);
        assert_int_equal(atomic_load(&missing), 0);
    }
    td_pool_close(&p);
}

static void more_threads_than_a_word_of_the_bitmap_holds(void **state) {
    (void)state;
    static const int threads[] = {63, 64, 65, 130};
    static const int tiles[] = {2, 63, 64, 65, 129, 130, 131, MAX_TILES};
    static job j;
    for (size_t a = 0; a < 4; a++) {
        td_pool *p = open_pool(threads[a], 0);
        for (size_t b = 0; b < 8; b++)
            run_and_check(p, &j, tiles[b], (int)(1 + b));
        td_pool_close(&p);
    }
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

#ifdef __linux__
typedef struct places {
    cpu_set_t of[3]; /* by thread: where it may run */
    atomic_int n_arrived;
    int n_threads;
} places;

/* Every thread gets a tile: none ends before all have begun. */
static void note_place(void *arg, int tile, int thread) {
    places *p = arg;
    (void)tile;
    pthread_getaffinity_np(pthread_self(), sizeof p->of[thread], &p->of[thread]);
    atomic_fetch_add(&p->n_arrived, 1);
    while (atomic_load(&p->n_arrived) < p->n_threads)
        usleep(100);
}

static void run_and_note(td_pool *pool, places *p) {
    *p = (places){.n_threads = td_pool_n_threads(pool)};
    td_pool_run(pool, note_place, p, p->n_threads);
}

static void assert_bound_in_order(const places *p, int n_usable, const int *usable) {
    for (int i = 0; i < p->n_threads; i++) {
        assert_int_equal(CPU_COUNT(&p->of[i]), 1);
        assert_true(CPU_ISSET((size_t)usable[i % n_usable], &p->of[i]));
    }
}

typedef struct other {
    td_pool *pool;
    places places;
} other;

static void *submit(void *arg) {
    other *o = arg;
    run_and_note(o->pool, &o->places);
    return NULL;
}

static void pinning_binds_workers_and_whoever_submits(void **state) {
    (void)state;
    td_error err;
    td_pool *pool;
    cpu_set_t before, now;
    int n;
    int *usable = td_processors_list(&n);
    assert_non_null(usable);
    td_processors_by_core(usable, n, "/sys/devices/system/cpu");
    assert_int_equal(pthread_getaffinity_np(pthread_self(), sizeof before, &before), 0);
    assert_int_equal(td_pool_open(&pool, &(td_pool_options){.n_threads = 3, .pin = true}, &err), TD_OK);
    pthread_getaffinity_np(pthread_self(), sizeof now, &now);
    assert_true(CPU_EQUAL(&now, &before)); /* opening binds nobody but workers */

    other o = {.pool = pool};
    pthread_t thread;
    assert_int_equal(pthread_create(&thread, NULL, submit, &o), 0);
    pthread_join(thread, NULL);
    assert_bound_in_order(&o.places, n, usable);
    pthread_getaffinity_np(pthread_self(), sizeof now, &now);
    assert_true(CPU_EQUAL(&now, &before));

    places p;
    run_and_note(pool, &p);
    assert_bound_in_order(&p, n, usable);
    td_pool_leave();
    pthread_getaffinity_np(pthread_self(), sizeof now, &now);
    assert_true(CPU_EQUAL(&now, &before));
    td_pool_leave();

    run_and_note(pool, &p); /* and again */
    assert_bound_in_order(&p, n, usable);
    td_pool *second; /* opened by a bound thread: as if it were not */
    assert_int_equal(td_pool_open(&second, &(td_pool_options){.n_threads = 2}, &err), TD_OK);
    run_and_note(second, &p);
    assert_true(CPU_EQUAL(&p.of[0], &before));
    assert_true(CPU_EQUAL(&p.of[1], &before));
    td_pool_close(&second);
    run_and_note(pool, &p);
    td_pool_close(&pool);
    pthread_getaffinity_np(pthread_self(), sizeof now, &now);
    assert_true(CPU_EQUAL(&now, &before));
    td_free(usable);
}
#endif

static void one_thread_a_processor_can_be_pinned(void **state) {
    (void)state;
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
        cmocka_unit_test(few_tiles_wake_enough_sleepers),
        cmocka_unit_test(more_threads_than_a_word_of_the_bitmap_holds),
        cmocka_unit_test(one_thread_a_processor_can_be_pinned),
#ifdef __linux__
        cmocka_unit_test(pinning_binds_workers_and_whoever_submits),
#endif
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
