/* processors.c - affinity masks, control groups' quotas, and which processors share a core.
 *
 * Linux enumerates the two threads of a core side by side on some machines (0 and 1 are one core) and half the machine
 * apart on others (0 and n/2), so a thread a core cannot be had by counting: sysfs says which belong together.
 *
 * A quota binds the whole subtree, so every ancestor is looked at. In v1 the path of /proc/self/cgroup is that of the
 * host, while a container usually sees its own group as the root of the mount: of a path that does not exist there only
 * the ancestors that do count, the root among them. */
#include "base/processors.h"

#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"

/* ---- affinity ---- */

#ifdef __linux__
/* The affinity mask of this thread in a set of *n processors; NULL when it cannot be read. CPU_FREE. */
static cpu_set_t *affinity(int *n, size_t *bytes) {
    for (*n = 1024; *n <= 1 << 20; *n *= 2) {
        cpu_set_t *set = CPU_ALLOC((size_t)*n);
        if (!set)
            return NULL;
        *bytes = CPU_ALLOC_SIZE(*n);
        if (sched_getaffinity(0, *bytes, set) == 0)
            return set;
        CPU_FREE(set);
        if (errno != EINVAL) /* EINVAL: the kernel's mask is longer */
            return NULL;
    }
    return NULL;
}

int *td_processors_list(int *n) {
    int size, count = 0;
    size_t bytes;
    cpu_set_t *set = affinity(&size, &bytes);
    *n = 0;
    if (!set)
        return NULL;
    int *list = td_calloc((size_t)CPU_COUNT_S(bytes, set) + 1, sizeof *list);
    for (int c = 0; c < size && list; c++)
        if (CPU_ISSET_S((size_t)c, bytes, set))
            list[count++] = c;
    CPU_FREE(set);
    *n = count;
    return list;
}

static int affinity_count(void) {
    int size;
    size_t bytes;
    cpu_set_t *set = affinity(&size, &bytes);
    int count = set ? CPU_COUNT_S(bytes, set) : 0;
    if (set)
        CPU_FREE(set);
    return count;
}

/* What the thread could use before it was bound. A machine with more processors than the plain set holds binds none. */
static _Thread_local cpu_set_t before;
static _Thread_local bool bound;

void td_processors_bind(int cpu) {
    cpu_set_t one;
    if (cpu < 0 || cpu >= CPU_SETSIZE)
        return;
    if (!bound && sched_getaffinity(0, sizeof before, &before) != 0)
        return;
    CPU_ZERO(&one);
    CPU_SET((size_t)cpu, &one);
    bound |= sched_setaffinity(0, sizeof one, &one) == 0;
}

void td_processors_unbind(void) {
    if (bound)
        sched_setaffinity(0, sizeof before, &before);
    bound = false;
}
#else
int *td_processors_list(int *n) {
    *n = 0;
    return NULL;
}

static int affinity_count(void) {
    return 0;
}

void td_processors_bind(int cpu) {
    (void)cpu;
}

void td_processors_unbind(void) {
}
#endif

/* ---- cores ---- */

typedef struct place {
    int cpu, core, rank; /* rank: how many before it are of the same core */
} place;

/* The first processor of the core that `cpu` belongs to: a list ("0,64", "0-1") begins with it. */
static int core_of(int cpu, const char *sysfs) {
    static const char *const names[] = {"core_cpus_list", "thread_siblings_list"}; /* of new and of older kernels */
    for (int i = 0; i < 2; i++) {
        char path[512];
        int first;
        snprintf(path, sizeof path, "%s/cpu%d/topology/%s", sysfs, cpu, names[i]);
        FILE *f = fopen(path, "re");
        if (!f)
            continue;
        const bool read = fscanf(f, "%d", &first) == 1;
        fclose(f);
        if (read)
            return first;
    }
    return cpu;
}

static int by_rank(const void *a, const void *b) {
    const place *x = a, *y = b;
    return x->rank != y->rank ? x->rank - y->rank : x->cpu - y->cpu;
}

static int by_core(const void *a, const void *b) {
    const place *x = a, *y = b;
    return x->core != y->core ? x->core - y->core : x->cpu - y->cpu;
}

void td_processors_by_core(int *cpu, int n, const char *sysfs) {
    if (n < 2)
        return;
    place *p = td_calloc((size_t)n, sizeof *p);
    if (!p)
        return;
    for (int i = 0; i < n; i++)
        p[i] = (place){.cpu = cpu[i], .core = core_of(cpu[i], sysfs)};
    qsort(p, (size_t)n, sizeof *p, by_core);
    for (int i = 1; i < n; i++)
        p[i].rank = p[i].core == p[i - 1].core ? p[i - 1].rank + 1 : 0;
    qsort(p, (size_t)n, sizeof *p, by_rank);
    for (int i = 0; i < n; i++)
        cpu[i] = p[i].cpu;
    td_free(p);
}

/* ---- quotas ---- */

/* Processors, rounded up; 0: no quota. v2's "max" and v1's -1 are none. */
static int rounded_up(long long quota, long long period) {
    if (quota <= 0 || period <= 0)
        return 0;
    long long n = quota / period + (quota % period != 0);
    return n < INT_MAX ? (int)n : INT_MAX;
}

/* The `most` numbers at the head of a file; how many there are. */
static int read_numbers(const char *dir, const char *name, long long number[2], int most) {
    char path[8400];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    FILE *f = fopen(path, "re");
    if (!f)
        return 0;
    int n = 0;
    while (n < most && fscanf(f, "%lld", &number[n]) == 1)
        n++;
    fclose(f);
    return n;
}

/* v2's cpu.max: "150000 100000". */
static int quota_v2(const char *dir) {
    long long x[2];
    return read_numbers(dir, "cpu.max", x, 2) == 2 ? rounded_up(x[0], x[1]) : 0;
}

/* v1 has a file for each. */
static int quota_v1(const char *dir) {
    long long quota[2], period[2];
    return read_numbers(dir, "cpu.cfs_quota_us", quota, 1) && read_numbers(dir, "cpu.cfs_period_us", period, 1)
               ? rounded_up(quota[0], period[0])
               : 0;
}

/* A line of the membership file, "12:cpu,cpuacct:/a/b" or v2's "0::/a/b": is it of the hierarchy that controls
 * processors? Then *path is what follows the second colon. */
static bool is_of_cpu(char *line, bool v2, char **path) {
    char *names = strchr(line, ':');
    char *second = names ? strchr(names + 1, ':') : NULL;
    if (!second || second[1] != '/')
        return false;
    *second = '\0';
    *path = second + 1;
    if (v2)
        return strcmp(line, "0:") == 0;
    char *rest = names + 1;
    for (char *name; (name = strsep(&rest, ","));)
        if (strcmp(name, "cpu") == 0)
            return true;
    return false;
}

/* The process's path in that hierarchy. */
static bool read_membership(const char *membership, bool v2, char *path, size_t size) {
    FILE *f = fopen(membership, "re");
    if (!f)
        return false;
    bool found = false;
    char line[4096], *at;
    while (!found && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = '\0';
        if (is_of_cpu(line, v2, &at))
            found = (size_t)snprintf(path, size, "%s", at) < size;
    }
    fclose(f);
    return found;
}

/* The least quota of a group and its ancestors below `root`. */
static int least_quota(const char *root, char *group, int (*quota)(const char *dir)) {
    int least = 0;
    for (;;) {
        char dir[8300];
        snprintf(dir, sizeof dir, "%s%s", root, group);
        const int n = quota(dir);
        if (n > 0 && (least == 0 || n < least))
            least = n;
        char *slash = strrchr(group, '/');
        if (!slash)
            return least;
        *slash = '\0';
    }
}

int td_processors_quota(const char *membership, const char *mount) {
    char group[4096], root[4200];
    int v1 = 0, v2 = 0;
    if (read_membership(membership, true, group, sizeof group))
        v2 = least_quota(mount, group, quota_v2);
    snprintf(root, sizeof root, "%s/cpu", mount);
    if (read_membership(membership, false, group, sizeof group))
        v1 = least_quota(root, group, quota_v1);
    return v1 > 0 && (v2 == 0 || v1 < v2) ? v1 : v2;
}

int td_processors_usable(void) {
    int n = affinity_count();
    if (n <= 0)
        n = (int)sysconf(_SC_NPROCESSORS_ONLN);
    int quota = td_processors_quota("/proc/self/cgroup", "/sys/fs/cgroup");
    if (quota > 0 && quota < n)
        n = quota;
    return n > 0 ? n : 1;
}
