/* alloc.c - the C allocator behind counters. */
#include "base/alloc.h"

#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

static atomic_long live_blocks;
static atomic_long fail_countdown = -1;
static atomic_int fail_struck;

static int should_fail(void) {
    if (atomic_load_explicit(&fail_countdown, memory_order_relaxed) < 0)
        return 0;
    if (atomic_fetch_sub(&fail_countdown, 1) != 0)
        return 0;
    atomic_store(&fail_struck, 1);
    return 1;
}

static void *counted(void *p) {
    if (p)
        atomic_fetch_add_explicit(&live_blocks, 1, memory_order_relaxed);
    return p;
}

void *td_calloc(size_t n, size_t size) {
    if (size && n > SIZE_MAX / size) /* a sanitizer's calloc would end the process */
        return NULL;
    if (should_fail())
        return NULL;
    if (n == 0 || size == 0)
        n = size = 1;
    return counted(calloc(n, size));
}

void *td_malloc(size_t size) {
    if (should_fail())
        return NULL;
    return counted(malloc(size ? size : 1));
}

void *td_realloc(void *p, size_t n, size_t size) {
    if (size && n > SIZE_MAX / size)
        return NULL;
    if (should_fail())
        return NULL;
    size_t bytes = n * size;
    void *q = realloc(p, bytes ? bytes : 1);
    return p ? q : counted(q);
}

char *td_strdup(const char *s) {
    return td_strndup(s, strlen(s));
}

char *td_strndup(const char *s, size_t n) {
    char *p = td_malloc(n + 1);
    if (!p)
        return NULL;
    memcpy(p, s, n);
    p[n] = '\0';
    return p;
}

void td_free(void *p) {
    if (p)
        atomic_fetch_sub_explicit(&live_blocks, 1, memory_order_relaxed);
    free(p);
}

void *td_malloc_aligned(size_t size) {
    if (should_fail() || size > SIZE_MAX - 64)
        return NULL;
    return counted(aligned_alloc(64, (size + 63) / 64 * 64 + (size == 0) * 64));
}

void td_free_aligned(void *p) {
    td_free(p);
}

void td_alloc_fail_at(long k) {
    atomic_store(&fail_struck, 0);
    atomic_store(&fail_countdown, k);
}

int td_alloc_failed(void) {
    return atomic_load(&fail_struck);
}

long td_alloc_live(void) {
    return atomic_load(&live_blocks);
}
