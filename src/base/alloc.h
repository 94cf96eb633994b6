/* alloc.h - allocation with overflow checks, alignment, and a fault injector for tests.
 *
 * All heap memory of the library comes through here, so that a test can make the k-th allocation fail and count what
 * is still alive. */
#ifndef TD_BASE_ALLOC_H
#define TD_BASE_ALLOC_H

#include <stddef.h>

/* n*size bytes, zeroed; NULL when out of memory or when the product overflows. n*size == 0 gives a unique pointer. */
void *td_calloc(size_t n, size_t size);
void *td_malloc(size_t size);
/* Grows or shrinks to n*size bytes; NULL leaves the old block valid. */
void *td_realloc(void *p, size_t n, size_t size);
char *td_strdup(const char *s);
char *td_strndup(const char *s, size_t n);
void td_free(void *p);

/* `size` bytes aligned to 64 and not zeroed, for rows that vector kernels read. Free with td_free_aligned. */
void *td_malloc_aligned(size_t size);
void td_free_aligned(void *p);

/* Tests only: the allocation number `k` from now (0 = the next one) fails, once; -1 turns it off.
 * td_alloc_failed() tells whether it has struck; td_alloc_live() counts blocks not yet freed. Not thread-safe. */
void td_alloc_fail_at(long k);
int td_alloc_failed(void);
long td_alloc_live(void);

#endif
