/* pool.c - one job at a time, its tiles dealt out evenly beforehand and stolen afterwards.
 *
 * A job is one atomic word, (number, tiles). Every thread has a share of the tiles, as many neighbours as the others
 * have, and a word of its own beside the others' in memory: (number of the job, tiles of the share taken). Whoever
 * takes a tile exchanges that word as a whole: a thread mostly its own, in its own cache line, at no more than the cost
 * of an addition; and when its share is used up, those of the threads behind it in turn. One word for all threads was
 * the first design: at sixteen threads and four tiles each, handing it around took longer than many a job.
 *
 * The word of a share need not be set when a job begins: one of an older job counts as untouched. A worker that slept
 * through a job cannot take a tile of the next one by mistake. It knows the old number; and once a job is over every
 * share that has tiles in it says so, in its own number or a later one, so the exchange finds nothing to take. That
 * makes the job's fields (fn, arg) plain memory: the owner writes them before it publishes the job, and not again
 * before every taken tile has been counted in `done`, which threads do once for all that they took in a row. The owner
 * therefore waits for tiles, not for threads; a worker that is descheduled without a tile in its hands costs nothing.
 *
 * Numbers wrap around, and "older" is a matter of half their range: a share that no job has had tiles for is brought up
 * to date in time (REFRESH). They begin close to the end of the range, so that this is no rare event.
 *
 * Idle workers spin on the job's word for spin_us and then sleep on `bell`; the owner does the same while it waits for
 * the last tiles, on `done`. A sleeper announces itself (`sleepers`, `owner_sleeps`) before it looks at the word a last
 * time, and the other side looks for sleepers after it has published, both sequentially consistent, so one of the two
 * always sees the other. With nobody asleep a job costs no system call. A job wakes no more workers than it has tiles
 * for beside the owner and those who are awake: to wake fifteen for two tiles takes longer than the tiles. Nobody needs
 * to be woken for a job to end, as the owner takes what is left.
 *
 * Sleeping is Linux's futex, which wakes a number of threads without making them queue for a lock; elsewhere a
 * condition variable.
 *
 * A barrier where each worker checks in was the alternative; it makes every job as slow as the slowest wake-up. */
#include "base/pool.h"

#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#ifdef __linux__
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "base/alloc.h"
#include "base/clock.h"
#include "base/processors.h"

#define MAX_THREADS 1024
#define SPINS_A_CLOCK_READ 64
#define SPIN_US 50
#define FIRST_JOB (UINT32_MAX - 1000)
#define REFRESH (1u << 30) /* jobs; well within half the range of numbers */

typedef struct worker {
    td_pool *pool;
    pthread_t thread;
    int index;
    uint64_t seen; /* the last job that it has worked on */
} worker;

typedef struct share {
    _Alignas(64) _Atomic uint64_t word; /* number of a job << 32 | tiles of this share taken */
} share;

/* A word that threads sleep on until it changes. */
typedef struct bell {
    _Atomic uint32_t word;
#ifndef __linux__
    pthread_mutex_t lock;
    pthread_cond_t changed;
#endif
} bell;

struct td_pool {
    _Alignas(64) _Atomic uint64_t job; /* number << 32 | tiles */
    atomic_int stop;
    _Alignas(64) bell done;           /* tiles finished; the owner sleeps here */
    _Alignas(64) atomic_int sleepers; /* workers asleep or about to be */
    atomic_int owner_sleeps;
    bell work; /* workers sleep here */

    /* The job: written by the owner while no tile is out, read by whoever holds a tile. */
    _Alignas(64) td_pool_fn fn;
    void *arg;

    int n_threads;
    int64_t spin_ns;
    worker *workers; /* [n_threads - 1]; the caller is thread 0 */
    share *shares;   /* [n_threads] */
    int n_started;

    int *cpus; /* [n_cpus] thread i is bound to cpus[i % n_cpus]; NULL: threads are not bound */
    int n_cpus;
    uint64_t serial; /* of all pools of the process */
};

/* ---- bells ---- */

#ifdef __linux__
/* Returns when the word is no longer `seen`, or earlier. */
static void bell_wait(bell *b, uint32_t seen) {
    syscall(SYS_futex, &b->word, FUTEX_WAIT_PRIVATE, seen, NULL, NULL, 0);
}

/* The word has changed: wakes n of those who wait. */
static void bell_wake(bell *b, int n) {
    syscall(SYS_futex, &b->word, FUTEX_WAKE_PRIVATE, n, NULL, NULL, 0);
}

static void bell_init(bell *b) {
    atomic_init(&b->word, 0);
}

static void bell_destroy(bell *b) {
    (void)b;
}
#else
static void bell_wait(bell *b, uint32_t seen) {
    pthread_mutex_lock(&b->lock);
    if (atomic_load(&b->word) == seen)
        pthread_cond_wait(&b->changed, &b->lock);
    pthread_mutex_unlock(&b->lock);
}

static void bell_wake(bell *b, int n) {
    pthread_mutex_lock(&b->lock);
    for (; n > 0 && n < MAX_THREADS; n--)
        pthread_cond_signal(&b->changed);
    if (n)
        pthread_cond_broadcast(&b->changed);
    pthread_mutex_unlock(&b->lock);
}

static void bell_init(bell *b) {
    atomic_init(&b->word, 0);
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->changed, NULL);
}

static void bell_destroy(bell *b) {
    pthread_cond_destroy(&b->changed);
    pthread_mutex_destroy(&b->lock);
}
#endif

static void relax(void) {
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

/* ---- tiles ---- */

static uint32_t number_of(uint64_t job) {
    return (uint32_t)(job >> 32);
}

static uint32_t tiles_of(uint64_t job) {
    return (uint32_t)job;
}

/* The first tile of share i; of the one behind the last, the number of tiles. */
static uint32_t first_of(const td_pool *p, uint64_t job, int i) {
    return (uint32_t)((uint64_t)tiles_of(job) * (unsigned)i / (unsigned)p->n_threads);
}

/* Takes a tile of share i of the job; -1 when none is left, or the job is over. */
static int take_tile(td_pool *p, uint64_t job, int i) {
    const uint32_t first = first_of(p, job, i), n = first_of(p, job, i + 1) - first;
    _Atomic uint64_t *word = &p->shares[i].word;
    uint64_t w = atomic_load(word);
    for (;;) {
        const int32_t age = (int32_t)(number_of(job) - number_of(w));
        const uint32_t taken = age == 0 ? (uint32_t)w : 0;
        if (age < 0 || taken >= n)
            return -1;
        if (atomic_compare_exchange_weak(word, &w, (uint64_t)number_of(job) << 32 | (taken + 1)))
            return (int)(first + taken);
    }
}

/* n tiles are finished: after the last the job's fields are the owner's again. */
static void finish_tiles(td_pool *p, uint64_t job, uint32_t n) {
    if (atomic_fetch_add(&p->done.word, n) + n == tiles_of(job) && atomic_load(&p->owner_sleeps))
        bell_wake(&p->done, 1);
}

/* The thread's own share, then what is left of the others'. */
static void work_along(td_pool *p, uint64_t job, int thread) {
    for (int i = 0; i < p->n_threads && atomic_load(&p->job) == job; i++) {
        const int whose = (thread + i) % p->n_threads;
        uint32_t n = 0;
        for (int tile; (tile = take_tile(p, job, whose)) >= 0; n++)
            p->fn(p->arg, tile, thread);
        if (n)
            finish_tiles(p, job, n);
    }
}

/* ---- waiting ---- */

/* What is waited for: by the owner, and by a worker. */
static bool job_done(td_pool *p, const worker *w) {
    (void)w;
    return atomic_load(&p->done.word) == tiles_of(atomic_load(&p->job));
}

static bool work_or_stop(td_pool *p, const worker *w) {
    return atomic_load(&p->job) != w->seen || atomic_load(&p->stop);
}

/* Spins until `ready` holds or the time is up; tells whether it held. */
static bool spin_until(td_pool *p, const worker *w, bool (*ready)(td_pool *, const worker *)) {
    if (ready(p, w))
        return true;
    if (p->spin_ns == 0)
        return false;
    int64_t start = td_clock_ns();
    do {
        for (int i = 0; i < SPINS_A_CLOCK_READ; i++) {
            relax();
            if (ready(p, w))
                return true;
        }
    } while (td_clock_ns() - start < p->spin_ns);
    return false;
}

static void sleep_until_work(td_pool *p, const worker *w) {
    atomic_fetch_add(&p->sleepers, 1);
    for (;;) {
        const uint32_t seen = atomic_load(&p->work.word);
        if (work_or_stop(p, w))
            break;
        bell_wait(&p->work, seen);
    }
    atomic_fetch_sub(&p->sleepers, 1);
}

/* As many workers as there are tiles for, beside the owner and whoever is awake; those find the job by themselves. */
static void wake_workers(td_pool *p, uint32_t n_tiles) {
    const int asleep = atomic_load(&p->sleepers), awake = p->n_started - asleep;
    if (asleep == 0 || (int64_t)n_tiles - 1 <= awake)
        return;
    const int64_t wanted = (int64_t)n_tiles - 1 - awake;
    atomic_fetch_add(&p->work.word, 1);
    bell_wake(&p->work, wanted < asleep ? (int)wanted : asleep);
}

static void wait_for_tiles(td_pool *p) {
    if (spin_until(p, NULL, job_done))
        return;
    atomic_store(&p->owner_sleeps, 1);
    for (;;) {
        const uint32_t seen = atomic_load(&p->done.word);
        if (job_done(p, NULL))
            break;
        bell_wait(&p->done, seen);
    }
    atomic_store(&p->owner_sleeps, 0);
}

static void *worker_main(void *arg) {
    worker *w = arg;
    td_pool *p = w->pool;
    if (p->cpus)
        td_processors_bind(p->cpus[w->index % p->n_cpus]);
    while (!atomic_load(&p->stop)) {
        if (!spin_until(p, w, work_or_stop))
            sleep_until_work(p, w);
        w->seen = atomic_load(&p->job);
        work_along(p, w->seen, w->index);
    }
    return NULL;
}

/* Between jobs: as if all shares had last been of this one, and were used up. */
static void set_shares(td_pool *p, uint32_t number) {
    for (int i = 0; i < p->n_threads; i++)
        atomic_store(&p->shares[i].word, (uint64_t)number << 32 | UINT32_MAX);
}

/* The pool that the calling thread is bound for; pools are told apart by number, as an address may come again. */
static _Thread_local uint64_t bound_for;

static void bind_owner(td_pool *p) {
    if (!p->cpus || bound_for == p->serial)
        return;
    td_processors_bind(p->cpus[0]);
    bound_for = p->serial;
}

void td_pool_leave(void) {
    if (bound_for)
        td_processors_unbind();
    bound_for = 0;
}

void td_pool_run(td_pool *p, td_pool_fn fn, void *arg, int n_tiles) {
    if (n_tiles <= 0)
        return;
    bind_owner(p);
    if (p->n_threads == 1 || n_tiles == 1) {
        for (int t = 0; t < n_tiles; t++)
            fn(arg, t, 0);
        return;
    }
    const uint32_t number = number_of(atomic_load(&p->job)) + 1;
    const uint64_t job = (uint64_t)number << 32 | (uint32_t)n_tiles;
    if (number % REFRESH == 0)
        set_shares(p, number - 1);
    p->fn = fn;
    p->arg = arg;
    atomic_store_explicit(&p->done.word, 0, memory_order_relaxed);
    atomic_store(&p->job, job);
    wake_workers(p, (uint32_t)n_tiles);
    work_along(p, job, 0);
    wait_for_tiles(p);
}

/* ---- life ---- */

td_pool_options td_pool_options_default(void) {
    return (td_pool_options){.n_threads = 0, .spin_us = TD_POOL_SPIN_AUTO, .pin = false};
}

int td_pool_n_threads(const td_pool *pool) {
    return pool->n_threads;
}

/* Signals are for the program's own threads. */
static int start_worker(worker *w) {
    sigset_t all, old;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &old);
    int rc = pthread_create(&w->thread, NULL, worker_main, w);
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    return rc;
}

static td_status start_workers(td_pool *p, td_error *err) {
    for (int i = 0; i < p->n_threads - 1; i++) {
        worker *w = &p->workers[i];
        *w = (worker){.pool = p, .index = i + 1, .seen = (uint64_t)FIRST_JOB << 32};
        int rc = start_worker(w);
        if (rc != 0)
            return td_fail(err, TD_E_NOMEM, "thread %d of %d could not be started: %s", i + 2, p->n_threads,
                           strerror(rc));
        p->n_started++;
    }
    return TD_OK;
}

/* The processors that threads are bound to; best effort, as all of binding. */
static void choose_processors(td_pool *p) {
    p->cpus = td_processors_list(&p->n_cpus);
    if (p->cpus)
        td_processors_by_core(p->cpus, p->n_cpus, "/sys/devices/system/cpu");
}

static td_pool *pool_new(int n_threads, int spin_us) {
    static _Atomic uint64_t serials;

    td_pool *p = td_malloc_aligned(sizeof *p);
    worker *workers = td_calloc((size_t)n_threads, sizeof *workers);
    share *shares = td_malloc_aligned((size_t)n_threads * sizeof *shares);
    if (!p || !workers || !shares) {
        td_free_aligned(p);
        td_free(workers);
        td_free_aligned(shares);
        return NULL;
    }
    memset(p, 0, sizeof *p);
    p->n_threads = n_threads;
    p->shares = shares;
    set_shares(p, FIRST_JOB);
    atomic_store(&p->job, (uint64_t)FIRST_JOB << 32);
    p->spin_ns = (int64_t)spin_us * 1000;
    p->workers = workers;
    p->serial = atomic_fetch_add(&serials, 1) + 1;
    bell_init(&p->work);
    bell_init(&p->done);
    return p;
}

/* A thread without a processor of its own had better not keep another from working. */
static int spin_time(int spin_us, int n_threads, int n_usable) {
    return spin_us != TD_POOL_SPIN_AUTO ? spin_us : n_threads <= n_usable ? SPIN_US : 0;
}

td_status td_pool_open(td_pool **out, const td_pool_options *opt, td_error *err) {
    *out = NULL;
    td_pool_leave();
    td_pool_options o = opt ? *opt : td_pool_options_default();
    const int usable = td_processors_usable();
    int n = o.n_threads == 0 ? usable : o.n_threads;
    if (o.n_threads == 0 && n > MAX_THREADS)
        n = MAX_THREADS;
    if (n < 1 || n > MAX_THREADS)
        return td_fail(err, TD_E_ARG, "%d threads asked for, expected 1 to %d", n, MAX_THREADS);
    if (o.spin_us < 0 && o.spin_us != TD_POOL_SPIN_AUTO)
        return td_fail(err, TD_E_ARG, "spin time of %d us, expected 0 or more", o.spin_us);
    td_pool *p = pool_new(n, spin_time(o.spin_us, n, usable));
    if (!p)
        return td_fail(err, TD_E_NOMEM, "no memory for a pool of %d threads", n);
    if (o.pin)
        choose_processors(p);
    td_status st = start_workers(p, err);
    if (st != TD_OK) {
        td_pool_close(&p);
        return st;
    }
    *out = p;
    return TD_OK;
}

void td_pool_close(td_pool **pool) {
    td_pool *p = pool ? *pool : NULL;
    if (!p)
        return;
    if (bound_for == p->serial)
        td_pool_leave();
    atomic_store(&p->stop, 1);
    atomic_fetch_add(&p->work.word, 1);
    bell_wake(&p->work, INT_MAX);
    for (int i = 0; i < p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    bell_destroy(&p->done);
    bell_destroy(&p->work);
    td_free(p->cpus);
    td_free(p->workers);
    td_free_aligned(p->shares);
    td_free_aligned(p);
    *pool = NULL;
}
