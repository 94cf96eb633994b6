/* pool.h - a persistent pool of threads that share out the tiles of one job at a time.
 *
 * Hand-off spins for a while and then sleeps, so that the many short jobs of a forward pass cost no system call and an
 * idle process costs no processor. One thread submits; it works along. */
#ifndef TD_BASE_POOL_H
#define TD_BASE_POOL_H

#include "base/status.h"

typedef struct td_pool td_pool;

#define TD_POOL_SPIN_AUTO (-1)

typedef struct td_pool_options {
    int n_threads; /* including the caller's; 0: one per usable processor (td_processors_usable) */
    int spin_us; /* how long an idle thread spins before it sleeps; 0: sleep at once; default TD_POOL_SPIN_AUTO: 50, or
                  * 0 when there are more threads than usable processors */
    bool pin;    /* bind every thread to a processor of its own, as far as there are enough; see below */
} td_pool_options;

td_pool_options td_pool_options_default(void);
td_status td_pool_open(td_pool **out, const td_pool_options *opt, td_error *err) TD_MUST_CHECK;
void td_pool_close(td_pool **pool);
int td_pool_n_threads(const td_pool *pool);

/* With `pin`, worker i is bound to the i-th of the processors that the thread which opens the pool may use: one of each
 * core first, then the second of each (td_processors_by_core). The owner gets the first, at its first td_pool_run: it
 * works along and may be another thread than the one that opened the pool. It stays bound, and so are threads that it
 * starts, until it calls td_pool_leave, which gives back what it was allowed before; that does nothing to a thread that
 * is not bound. td_pool_open leaves first, so that a pool does not inherit what another pinned; so does td_pool_close
 * on the thread that is bound for that pool. Best effort: what the system refuses leaves threads where they are. */
void td_pool_leave(void);

/* Calls fn(arg, tile, thread) for every tile in [0, n_tiles), each exactly once, on some thread in [0, n_threads).
 * Returns when all are done; everything they wrote is then visible. Which thread takes which tile is not defined, so
 * a result must not depend on it. Only the owner thread calls this, never from inside fn. */
typedef void (*td_pool_fn)(void *arg, int tile, int thread);
void td_pool_run(td_pool *pool, td_pool_fn fn, void *arg, int n_tiles);

#endif
