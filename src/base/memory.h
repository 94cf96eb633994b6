/* memory.h - how much memory this process may use. */
#ifndef TD_BASE_MEMORY_H
#define TD_BASE_MEMORY_H

#include <stdint.h>

/* Bytes available without swapping: the kernel's estimate (MemAvailable), capped by what the control group still
 * allows. UINT64_MAX when neither can be read. Page cache counts as available, so a model that is warm counts for both.
 */
uint64_t td_memory_available(void);

#endif
