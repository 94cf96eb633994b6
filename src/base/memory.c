/* memory.c - /proc/meminfo and the control group's limit (v2, then v1). */
#include "base/memory.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* A number that is alone in a file; UINT64_MAX for "max" or no such file. */
static uint64_t read_number(const char *path) {
    FILE *f = fopen(path, "re");
    if (!f)
        return UINT64_MAX;
    uint64_t n;
    if (fscanf(f, "%" SCNu64, &n) != 1)
        n = UINT64_MAX;
    fclose(f);
    return n;
}

static uint64_t mem_available(void) {
    FILE *f = fopen("/proc/meminfo", "re");
    if (!f)
        return UINT64_MAX;
    char line[128];
    uint64_t kib = UINT64_MAX;
    while (fgets(line, sizeof line, f))
        if (sscanf(line, "MemAvailable: %" SCNu64, &kib) == 1)
            break;
    fclose(f);
    return kib == UINT64_MAX ? kib : kib * 1024;
}

static uint64_t group_allows(const char *limit, const char *usage) {
    uint64_t most = read_number(limit), used = read_number(usage);
    if (most == UINT64_MAX || used == UINT64_MAX)
        return UINT64_MAX;
    return most > used ? most - used : 0;
}

uint64_t td_memory_available(void) {
    const uint64_t all[] = {
        mem_available(),
        group_allows("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory.current"),
        group_allows("/sys/fs/cgroup/memory/memory.limit_in_bytes", "/sys/fs/cgroup/memory/memory.usage_in_bytes"),
    };
    uint64_t least = UINT64_MAX;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++)
        least = all[i] < least ? all[i] : least;
    return least;
}
