/* clock.c - CLOCK_MONOTONIC. */
#include "base/clock.h"

#include <time.h>

int64_t td_clock_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

double td_clock_since(int64_t start_ns) {
    return (double)(td_clock_ns() - start_ns) * 1e-9;
}
