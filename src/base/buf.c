/* buf.c - growable bytes. Doubling growth, one ceiling check. */
#include "base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

void td_buf_init(td_buf *b, size_t ceiling) {
    *b = (td_buf){.ceiling = ceiling};
}

void td_buf_free(td_buf *b) {
    td_free(b->data);
    *b = (td_buf){.ceiling = b->ceiling};
}

void td_buf_clear(td_buf *b) {
    b->size = 0;
    b->failed = TD_OK;
    if (b->data)
        b->data[0] = '\0';
}

static td_status buf_fail(td_buf *b, td_status status) {
    td_buf_free(b);
    b->failed = status;
    return status;
}

static td_status buf_reserve(td_buf *b, size_t extra) {
    if (b->failed)
        return b->failed;
    if (extra > b->ceiling || b->size > b->ceiling - extra)
        return buf_fail(b, TD_E_LIMIT);
    size_t need = b->size + extra + 1;
    if (need <= b->capacity)
        return TD_OK;
    size_t capacity = b->capacity ? b->capacity : 64;
    while (capacity < need)
        capacity = capacity > SIZE_MAX / 2 ? need : capacity * 2;
    char *data = td_realloc(b->data, capacity, 1);
    if (!data)
        return buf_fail(b, TD_E_NOMEM);
    b->data = data;
    b->capacity = capacity;
    return TD_OK;
}

td_status td_buf_append(td_buf *b, const void *bytes, size_t n) {
    TD_TRY(buf_reserve(b, n));
    if (n)
        memcpy(b->data + b->size, bytes, n);
    b->size += n;
    b->data[b->size] = '\0';
    return TD_OK;
}

td_status td_buf_puts(td_buf *b, const char *s) {
    return td_buf_append(b, s, strlen(s));
}

td_status td_buf_putc(td_buf *b, char c) {
    return td_buf_append(b, &c, 1);
}

td_status td_buf_printf(td_buf *b, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(NULL, 0, fmt, ap);
    va_end(ap);
    if (n < 0)
        return buf_fail(b, TD_E_FORMAT);
    TD_TRY(buf_reserve(b, (size_t)n));
    va_start(ap, fmt);
    vsnprintf(b->data + b->size, (size_t)n + 1, fmt, ap);
    va_end(ap);
    b->size += (size_t)n;
    return TD_OK;
}

const char *td_buf_str(td_buf *b) {
    if (!b->data && buf_reserve(b, 0) == TD_OK)
        b->data[0] = '\0';
    return b->data;
}

char *td_buf_steal(td_buf *b) {
    if (!td_buf_str(b))
        return NULL;
    char *data = b->data;
    *b = (td_buf){.ceiling = b->ceiling};
    return data;
}
