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
 * Idle workers spin on the job's word for spin_us and then sleep on a condition variable; the owner does the same while
 * it waits for the last tiles. A sleeper announces itself (`sleepers`, `owner_sleeps`) before it looks at the word a
 * last time, and the other side looks for sleepers after it has published, both sequentially consistent, so one of the
 * two always sees the other. With nobody asleep a job costs no system call.
 *
 * A barrier where each worker checks in was the alternative; it makes every job as slow as the slowest wake-up. */
#include "base/pool.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/processors.h"

#define MAX_THREADS 1024
#define SPINS_A_CLOCK_READ 64
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

struct td_pool {
    _Alignas(64) _Atomic uint64_t job; /* number << 32 | tiles */
    _Alignas(64) atomic_int done;      /* tiles finished */
    _Alignas(64) atomic_int sleepers;  /* workers asleep or about to be */
    atomic_int owner_sleeps;
    atomic_int stop;

    /* The job: written by the owner while no tile is out, read by whoever holds a tile. */
    _Alignas(64) td_pool_fn fn;
    void *arg;

    int n_threads;
    int64_t spin_ns;
    pthread_mutex_t lock;
    pthread_cond_t work;     /* workers sleep here */
    pthread_cond_t finished; /* the owner sleeps here */
    worker *workers;         /* [n_threads - 1]; the caller is thread 0 */
    share *shares;           /* [n_threads] */
    int n_started;

    int *cpus; /* [n_cpus] thread i is bound to cpus[i % n_cpus]; NULL: threads are not bound */
    int n_cpus;
    uint64_t serial; /* of all pools of the process */
};

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
static void finish_tiles(td_pool *p, uint64_t job, int n) {
    if (atomic_fetch_add(&p->done, n) + n < (int)tiles_of(job) || !atomic_load(&p->owner_sleeps))
        return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_signal(&p->finished);
    pthread_mutex_unlock(&p->lock);
}

/* The thread's own share, then what is left of the others'. */
static void work_along(td_pool *p, uint64_t job, int thread) {
    for (int i = 0; i < p->n_threads && atomic_load(&p->job) == job; i++) {
        const int whose = (thread + i) % p->n_threads;
        int n = 0;
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
    return atomic_load(&p->done) == (int)tiles_of(atomic_load(&p->job));
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
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add(&p->sleepers, 1);
    while (!work_or_stop(p, w))
        pthread_cond_wait(&p->work, &p->lock);
    atomic_fetch_sub(&p->sleepers, 1);
    pthread_mutex_unlock(&p->lock);
}

static void wake_workers(td_pool *p) {
    if (atomic_load(&p->sleepers) == 0)
        return;
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
}

static void wait_for_tiles(td_pool *p) {
    if (spin_until(p, NULL, job_done))
        return;
    pthread_mutex_lock(&p->lock);
    atomic_store(&p->owner_sleeps, 1);
    while (!job_done(p, NULL))
        pthread_cond_wait(&p->finished, &p->lock);
    atomic_store(&p->owner_sleeps, 0);
    pthread_mutex_unlock(&p->lock);
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
    atomic_store(&p->done, 0);
    atomic_store(&p->job, job);
    wake_workers(p);
    work_along(p, job, 0);
    wait_for_tiles(p);
}

/* ---- life ---- */

td_pool_options td_pool_options_default(void) {
    return (td_pool_options){.n_threads = 0, .spin_us = 50, .pin = false};
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
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->finished, NULL);
    return p;
}

td_status td_pool_open(td_pool **out, const td_pool_options *opt, td_error *err) {
    *out = NULL;
    td_pool_leave();
    td_pool_options o = opt ? *opt : td_pool_options_default();
    int n = o.n_threads == 0 ? td_processors_usable() : o.n_threads;
    if (o.n_threads == 0 && n > MAX_THREADS)
        n = MAX_THREADS;
    if (n < 1 || n > MAX_THREADS)
        return td_fail(err, TD_E_ARG, "%d threads asked for, expected 1 to %d", n, MAX_THREADS);
    if (o.spin_us < 0)
        return td_fail(err, TD_E_ARG, "spin time of %d us, expected 0 or more", o.spin_us);
    td_pool *p = pool_new(n, o.spin_us);
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
    pthread_mutex_lock(&p->lock);
    pthread_cond_broadcast(&p->work);
    pthread_mutex_unlock(&p->lock);
    for (int i = 0; i < p->n_started; i++)
        pthread_join(p->workers[i].thread, NULL);
    pthread_cond_destroy(&p->finished);
    pthread_cond_destroy(&p->work);
    pthread_mutex_destroy(&p->lock);
    td_free(p->cpus);
    td_free(p->workers);
    td_free_aligned(p->shares);
    td_free_aligned(p);
    *pool = NULL;
}
