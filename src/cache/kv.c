/* kv.c - page pool and page tables.
 *
 * A page's count lies in front of its data. Freed pages wait in a list a group, so a steady state allocates nothing.
 * Pages are copied when rows are reserved and never while they are written: a branch a round and group, not one a row,
 * and a place that may fail. */
#include "cache/kv.h"

#include <string.h>

#include "base/alloc.h"

/* Header of a page; the data that tables point at follows it. */
typedef struct page {
    struct page *next_free;
    uint32_t group;
    uint32_t count; /* sequences and cache entries that hold it */
} page;

#define PAGE_HEADER 64

struct td_kv_pool {
    const td_kv_layout *layout;
    td_backend *be;
    uint64_t max_bytes, allocated, used;
    page *free_list[TD_KV_MAX_GROUPS];
    td_kv_give_way give_way;
    void *give_way_user;
};

struct td_kv_seq {
    td_kv_pool *pool;
    uint32_t max_tokens, margin, rewrites, length;
    uint32_t n_entries; /* of a table */
    struct {
        uint8_t **table;     /* [n_entries] */
        uint32_t first, end; /* entries [first, end) are held */
    } group[TD_KV_MAX_GROUPS];
};

static page *page_of(uint8_t *data) {
    return (page *)(void *)(data - PAGE_HEADER);
}

td_status td_kv_pool_open(td_kv_pool **out, const td_kv_layout *layout, td_backend *be, uint64_t max_bytes,
                          td_error *err) {
    *out = td_calloc(1, sizeof **out);
    if (!*out)
        return td_fail(err, TD_E_NOMEM, "out of memory for a KV pool");
    **out = (td_kv_pool){.layout = layout, .be = be, .max_bytes = max_bytes};
    return TD_OK;
}

void td_kv_pool_close(td_kv_pool **pool) {
    if (!pool || !*pool)
        return;
    for (uint32_t g = 0; g < (*pool)->layout->n_groups; g++) {
        page *p = (*pool)->free_list[g];
        while (p) {
            page *next = p->next_free;
            (*pool)->be->ops->free((*pool)->be, p);
            p = next;
        }
    }
    td_free(*pool);
    *pool = NULL;
}

uint64_t td_kv_pool_used(const td_kv_pool *pool) {
    return pool->used;
}

uint64_t td_kv_pool_allocated(const td_kv_pool *pool) {
    return pool->allocated;
}

void td_kv_pool_on_full(td_kv_pool *pool, td_kv_give_way give_way, void *user) {
    pool->give_way = give_way;
    pool->give_way_user = user;
}

/* ---- pages ---- */

size_t td_kv_page_cost(const td_kv_pool *pool, uint32_t group) {
    return pool->layout->group[group].page_bytes + PAGE_HEADER;
}

/* Pages that wait go back to the machine until `bytes` more are within the limit, so that a limit is one on keys and
 * not on their history. */
static bool make_room(td_kv_pool *pool, size_t bytes, uint64_t limit) {
    for (uint32_t g = 0; g < pool->layout->n_groups; g++) {
        for (page *p; pool->allocated + bytes > limit && (p = pool->free_list[g]);) {
            pool->free_list[g] = p->next_free;
            pool->be->ops->free(pool->be, p);
            pool->allocated -= td_kv_page_cost(pool, g);
        }
    }
    return pool->allocated + bytes <= limit;
}

/* A page that waits, or a new one; NULL with the reason. */
static page *find_page(td_kv_pool *pool, uint32_t group, td_status *why) {
    page *p = pool->free_list[group];
    size_t bytes = td_kv_page_cost(pool, group);
    if (p) {
        pool->free_list[group] = p->next_free;
        return p;
    }
    *why = TD_E_LIMIT;
    if (pool->max_bytes && !make_room(pool, bytes, pool->max_bytes))
        return NULL;
    *why = TD_E_NOMEM;
    p = pool->be->ops->alloc(pool->be, bytes);
    if (p)
        pool->allocated += bytes;
    return p;
}

td_status td_kv_page_take(td_kv_pool *pool, uint32_t group, uint8_t **data, td_error *err) {
    td_status why = TD_OK;
    page *p;
    while (!(p = find_page(pool, group, &why))) {
        if (!pool->give_way || !pool->give_way(pool->give_way_user))
            return why == TD_E_LIMIT
                       ? td_fail(err, why, "keys and values need more than the %llu MiB set aside for them",
                                 (unsigned long long)(pool->max_bytes >> 20))
                       : td_fail(err, why, "out of memory for a KV page of %zu bytes", td_kv_page_cost(pool, group));
        if (why == TD_E_NOMEM && !pool->free_list[group]) /* the machine is out: what waits for others is given back */
            make_room(pool, 0, 0);
    }
    *p = (page){.group = group, .count = 1};
    pool->used += td_kv_page_cost(pool, group);
    *data = (uint8_t *)p + PAGE_HEADER;
    return TD_OK;
}

void td_kv_page_hold(uint8_t *data) {
    page_of(data)->count++;
}

void td_kv_page_drop(td_kv_pool *pool, uint8_t *data) {
    page *p = page_of(data);
    if (--p->count > 0)
        return;
    pool->used -= td_kv_page_cost(pool, p->group);
    p->next_free = pool->free_list[p->group];
    pool->free_list[p->group] = p;
}

uint32_t td_kv_page_holders(const uint8_t *data) {
    return ((const page *)(const void *)(data - PAGE_HEADER))->count;
}

static bool is_shared(const uint8_t *data) {
    return td_kv_page_holders(data) > 1;
}

/* The one place where a page's bytes are moved; a device's would be copied there. */
static void copy_page(const td_kv_pool *pool, uint8_t *to, const uint8_t *from) {
    memcpy(to, from, pool->layout->group[page_of(to)->group].page_bytes);
}

/* ---- sequences ---- */

td_status td_kv_seq_open(td_kv_seq **out, td_kv_pool *pool, uint32_t max_tokens, uint32_t margin, td_error *err) {
    *out = NULL;
    td_kv_seq *s = td_calloc(1, sizeof *s);
    if (!s)
        return td_fail(err, TD_E_NOMEM, "out of memory for a sequence");
    s->pool = pool;
    s->max_tokens = max_tokens;
    s->margin = margin;
    s->n_entries = max_tokens / pool->layout->page_tokens + 1;
    for (uint32_t g = 0; g < pool->layout->n_groups; g++) {
        s->group[g].table = td_calloc(s->n_entries, sizeof(uint8_t *));
        if (!s->group[g].table) {
            td_kv_seq_close(&s);
            return td_fail(err, TD_E_NOMEM, "out of memory for the page table of %u tokens", max_tokens);
        }
    }
    *out = s;
    return TD_OK;
}

void td_kv_seq_close(td_kv_seq **seq) {
    if (!seq || !*seq)
        return;
    td_kv_seq *s = *seq;
    td_kv_seq_clear(s);
    for (uint32_t g = 0; g < s->pool->layout->n_groups; g++)
        td_free(s->group[g].table);
    td_free(s);
    *seq = NULL;
}

uint32_t td_kv_seq_length(const td_kv_seq *seq) {
    return seq->length;
}

void td_kv_seq_rewrites(td_kv_seq *s, uint32_t rows) {
    s->rewrites = rows;
}

static uint32_t pages_of(const td_kv_seq *s, uint32_t n_tokens) {
    uint32_t page_tokens = s->pool->layout->page_tokens;
    return n_tokens / page_tokens + (n_tokens % page_tokens > 0);
}

/* A page of one's own in the place of a shared one. While there is no room for it the other holder may let go. */
static td_status unshare(td_kv_pool *pool, uint32_t group, uint8_t **entry, td_error *err) {
    uint8_t *own;
    if (!is_shared(*entry))
        return TD_OK;
    td_status st = td_kv_page_take(pool, group, &own, err);
    if (st != TD_OK)
        return is_shared(*entry) ? st : TD_OK;
    copy_page(pool, own, *entry);
    td_kv_page_drop(pool, *entry);
    *entry = own;
    return TD_OK;
}

td_status td_kv_seq_reserve(td_kv_seq *s, uint32_t n, td_error *err) {
    if (n > s->max_tokens || s->length > s->max_tokens - n)
        return td_fail(err, TD_E_LIMIT, "%u tokens and %u more, but the context holds %u", s->length, n, s->max_tokens);
    uint32_t from = (s->length - (s->length < s->rewrites ? s->length : s->rewrites)) / s->pool->layout->page_tokens;
    uint32_t last = pages_of(s, s->length), end = pages_of(s, s->length + n);
    for (uint32_t g = 0; g < s->pool->layout->n_groups; g++) {
        for (uint32_t i = from > s->group[g].first ? from : s->group[g].first; i < last; i++)
            TD_TRY(unshare(s->pool, g, &s->group[g].table[i], err));
        for (; s->group[g].end < end; s->group[g].end++)
            TD_TRY(td_kv_page_take(s->pool, g, &s->group[g].table[s->group[g].end], err));
    }
    return TD_OK;
}

/* The first position that a row at `length` or later may see in a group. */
static uint32_t first_visible(const td_kv_seq *s, uint32_t g, uint32_t length) {
    uint32_t window = s->pool->layout->group[g].window;
    return window && length > window - 1 ? length - (window - 1) : 0;
}

static void drop_entry(td_kv_seq *s, uint32_t g, uint32_t i) {
    if (s->group[g].table[i])
        td_kv_page_drop(s->pool, s->group[g].table[i]);
    s->group[g].table[i] = NULL;
}

/* Pages past the length are kept to be written, which a shared one cannot be. */
static void drop_shared_past(td_kv_seq *s, uint32_t g, uint32_t length) {
    uint32_t i = pages_of(s, length);
    i = i > s->group[g].first ? i : s->group[g].first;
    while (i < s->group[g].end && !is_shared(s->group[g].table[i]))
        i++;
    while (s->group[g].end > i)
        drop_entry(s, g, --s->group[g].end);
}

void td_kv_seq_set_length(td_kv_seq *s, uint32_t length) {
    bool back = length < s->length;
    s->length = length;
    for (uint32_t g = 0; g < s->pool->layout->n_groups; g++) {
        if (back)
            drop_shared_past(s, g, length);
        uint32_t keep = first_visible(s, g, length);
        keep = keep > s->margin ? keep - s->margin : 0;
        uint32_t first = keep / s->pool->layout->page_tokens;
        for (; s->group[g].first < first && s->group[g].first < s->group[g].end; s->group[g].first++)
            drop_entry(s, g, s->group[g].first);
    }
}

void td_kv_seq_advance(td_kv_seq *s, uint32_t length) {
    s->length = length;
}

uint32_t td_kv_seq_first(const td_kv_seq *s, uint32_t group) {
    return first_visible(s, group, s->length) / s->pool->layout->page_tokens;
}

void td_kv_seq_adopt(td_kv_seq *s, uint32_t length) {
    s->length = length;
    for (uint32_t g = 0; g < s->pool->layout->n_groups; g++) {
        s->group[g].end = pages_of(s, length);
        s->group[g].first = td_kv_seq_first(s, g);
        if (s->group[g].first > s->group[g].end)
            s->group[g].first = s->group[g].end;
    }
}

void td_kv_seq_put(td_kv_seq *s, uint32_t group, uint32_t index, uint8_t *data) {
    td_kv_page_hold(data);
    s->group[group].table[index] = data;
}

bool td_kv_seq_can_rewind(const td_kv_seq *s, uint32_t length) {
    if (length > s->length)
        return false;
    for (uint32_t g = 0; g < s->pool->layout->n_groups; g++)
        if (first_visible(s, g, length) < s->group[g].first * s->pool->layout->page_tokens)
            return false;
    return true;
}

void td_kv_seq_clear(td_kv_seq *s) {
    for (uint32_t g = 0; g < s->pool->layout->n_groups; g++) {
        for (uint32_t i = s->group[g].first; i < s->group[g].end; i++)
            drop_entry(s, g, i);
        s->group[g].first = s->group[g].end = 0;
    }
    s->length = 0;
}

td_kv_pages td_kv_seq_pages(const td_kv_seq *s, uint32_t group) {
    return s->group[group].table;
}

uint32_t td_kv_seq_held(const td_kv_seq *s, uint32_t group) {
    return s->group[group].end - s->group[group].first;
}

uint64_t td_kv_plan_bytes(const td_kv_layout *layout, uint32_t n_tokens, uint32_t pass_rows, uint32_t margin) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < layout->n_groups; g++) {
        uint64_t held = n_tokens;
        uint64_t window = layout->group[g].window;
        if (window && held > window + margin + pass_rows)
            held = window + margin + pass_rows;
        uint64_t pages = (held + layout->page_tokens - 1) / layout->page_tokens + (window && held < n_tokens ? 1 : 0);
        bytes += pages * (layout->group[g].page_bytes + PAGE_HEADER);
    }
    return bytes;
}
