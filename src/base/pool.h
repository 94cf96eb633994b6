/* pool.h - a persistent pool of threads that share out the tiles of one job at a time.
 *
 * Hand-off spins for a while and then sleeps, so that the many short jobs of a forward pass cost no system call and an
 * idle process costs no processor. One thread submits; it works along. */
#ifndef TD_BASE_POOL_H
#define TD_BASE_POOL_H

#include "base/status.h"

typedef struct td_pool td_pool;

typedef struct td_pool_options {
    int n_threads; /* including the caller's; 0: one per usable processor (affinity and cgroup quota heeded) */
    int spin_us;   /* how long an idle worker spins before it sleeps; 0: sleep at once; default 50 */
    bool pin;      /* bind worker i to the i-th usable processor */
} td_pool_options;

td_pool_options td_pool_options_default(void);
td_status td_pool_open(td_pool **out, const td_pool_options *opt, td_error *err) TD_MUST_CHECK;
void td_pool_close(td_pool **pool);
int td_pool_n_threads(const td_pool *pool);

/* Processors this process may use: affinity mask, capped by a cgroup CPU quota (rounded up). >= 1. */
int td_pool_usable_processors(void);

/* What the cgroup v2 CPU quotas of a process allow, in processors rounded up; 0: no quota. `membership` is its
 * /proc/<pid>/cgroup, `mount` the hierarchy (/sys/fs/cgroup); parameters so that a test can lay out its own. */
int td_pool_cgroup_quota(const char *membership, const char *mount);

/* Calls fn(arg, tile, thread) for every tile in [0, n_tiles), each exactly once, on some thread in [0, n_threads).
 * Returns when all are done; everything they wrote is then visible. Which thread takes which tile is not defined, so
 * a result must not depend on it. Only the owner thread calls this, never from inside fn. */
typedef void (*td_pool_fn)(void *arg, int tile, int thread);
void td_pool_run(td_pool *pool, td_pool_fn fn, void *arg, int n_tiles);

#endif
