/* jinja_arena.c - memory that is freed at once: a list of blocks, newest on top, bytes handed out in order.
 *
 * Blocks double from 4 KiB to 1 MiB. A request that is large for a block gets one of its own; in a heap-like arena
 * that block goes *under* the top, so that what is left of the top stays in use. In an arena used as a stack it goes
 * on top, as everything, so that releasing to a mark is dropping blocks from the top. */
#include <string.h>

#include "base/alloc.h"
#include "text/jinja_internal.h"

enum { BLOCK_FIRST = 4096, BLOCK_LAST = 1 << 20, ALIGN = 16 };

struct td_jblock {
    td_jblock *below;
    size_t size, used; /* of bytes[] */
    _Alignas(ALIGN) char bytes[];
};

void td_jarena_init(td_jarena *a, size_t ceiling, bool stack) {
    *a = (td_jarena){.ceiling = ceiling, .stack = stack};
}

void td_jarena_free(td_jarena *a) {
    for (td_jblock *b = a->top, *below; b; b = below) {
        below = b->below;
        td_free(b);
    }
    td_jarena_init(a, a->ceiling, a->stack);
}

static td_jblock *block_new(td_jarena *a, size_t size) {
    if (size > a->ceiling || a->held > a->ceiling - size) {
        a->failed = TD_E_LIMIT;
        return NULL;
    }
    td_jblock *b = td_malloc(sizeof *b + size);
    if (!b) {
        a->failed = TD_E_NOMEM;
        return NULL;
    }
    a->held += size;
    b->size = size;
    b->used = 0;
    return b;
}

static size_t next_size(const td_jarena *a) {
    size_t size = a->top ? a->top->size * 2 : BLOCK_FIRST;
    if (size > BLOCK_LAST)
        size = BLOCK_LAST;
    if (a->held < a->ceiling && size > a->ceiling - a->held) /* the last bytes are usable too */
        size = a->ceiling - a->held;
    return size;
}

static void *block_on_top(td_jarena *a, size_t bytes, size_t size) {
    td_jblock *b = block_new(a, size);
    if (!b)
        return NULL;
    b->below = a->top;
    a->top = b;
    b->used = bytes;
    return b->bytes;
}

static void *block_below_top(td_jarena *a, size_t bytes) {
    td_jblock *b = block_new(a, bytes);
    if (!b)
        return NULL;
    b->below = a->top->below;
    a->top->below = b;
    b->used = bytes;
    return b->bytes;
}

void *td_jarena_alloc(td_jarena *a, size_t n, size_t size) {
    if (size && n > (SIZE_MAX - ALIGN) / size) {
        a->failed = TD_E_LIMIT;
        return NULL;
    }
    size_t bytes = (n * size + ALIGN - 1) / ALIGN * ALIGN;
    if (a->top && a->top->size - a->top->used >= bytes) {
        void *p = a->top->bytes + a->top->used;
        a->top->used += bytes;
        return p;
    }
    size_t fresh = next_size(a);
    if (bytes > fresh / 4 && a->top && !a->stack)
        return block_below_top(a, bytes);
    return block_on_top(a, bytes, bytes > fresh ? bytes : fresh);
}

td_jmark td_jarena_mark(const td_jarena *a) {
    return (td_jmark){a->top, a->top ? a->top->used : 0};
}

void td_jarena_release(td_jarena *a, td_jmark mark) {
    while (a->top != mark.top) {
        td_jblock *b = a->top;
        a->top = b->below;
        a->held -= b->size;
        td_free(b);
    }
    if (a->top)
        a->top->used = mark.used;
}
