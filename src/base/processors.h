/* processors.h - the processors that this process may use, in the order in which threads should get them.
 *
 * Safe from any thread. Nothing here fails: what cannot be read counts as no restriction, and where threads cannot be
 * bound (not Linux, or the system forbids it) they stay unbound. */
#ifndef TD_BASE_PROCESSORS_H
#define TD_BASE_PROCESSORS_H

#include <stdbool.h>

/* How many this process may use: the calling thread's affinity mask, capped by a control group's quota (rounded up).
 * >= 1. */
int td_processors_usable(void);

/* What the CPU quotas of control groups (v2 and v1) allow a process, in processors rounded up; 0: no quota.
 * `membership` is its /proc/<pid>/cgroup, `mount` where the hierarchies are (/sys/fs/cgroup); parameters so that a
 * test can lay out its own. */
int td_processors_quota(const char *membership, const char *mount);

/* The numbers of the processors in the calling thread's affinity mask, *n of them, ascending; NULL with *n = 0 when
 * they cannot be read or there is no memory. td_free. */
int *td_processors_list(int *n);

/* Orders the processors cpu [n]: first one of each core, then the second of each (simultaneous multithreading), and so
 * on; ascending among equals. `sysfs` is /sys/devices/system/cpu; what it does not tell counts as a core of its own. */
void td_processors_by_core(int *cpu, int n, const char *sysfs);

/* Binds the calling thread to one processor. Threads that it starts meanwhile are bound to the same. */
void td_processors_bind(int cpu);

/* The calling thread may run again wherever it could before its first td_processors_bind; if there was none, nothing
 * happens. */
void td_processors_unbind(void);

#endif
