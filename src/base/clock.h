/* clock.h - monotonic time. */
#ifndef TD_BASE_CLOCK_H
#define TD_BASE_CLOCK_H

#include <stdint.h>

int64_t td_clock_ns(void);
/* Seconds since an earlier td_clock_ns(). */
double td_clock_since(int64_t start_ns);

#endif
