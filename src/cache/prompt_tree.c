/* prompt_tree.c - nodes, and their coming and going. See prompt_tree.h. */
#include "cache/prompt_tree.h"

#include <string.h>

#include "base/alloc.h"

/* ---- what things cost ---- */

static bool is_windowed(const td_prompt_cache *c, uint32_t group) {
    return c->model->kv.group[group].window > 0;
}

/* Bytes of a page's windowed part, or of the rest. */
static uint64_t pages_cost(const td_prompt_cache *c, bool windowed) {
    uint64_t bytes = 0;
    for (uint32_t g = 0; g < c->model->kv.n_groups; g++)
        bytes += is_windowed(c, g) == windowed ? td_kv_page_cost(c->pool, g) : 0;
    return bytes;
}

static uint64_t node_bytes(const td_prompt_cache *c) {
    return sizeof(td_cache_node) + c->page_tokens * sizeof(td_token) + sizeof(td_cache_node *);
}

static uint64_t snapshot_cost(const td_prompt_cache *c) {
    return sizeof(td_cache_snapshot) + c->model->info.snapshot_bytes + c->model->info.n_embd * sizeof(float);
}

static void account(td_prompt_cache *c, uint64_t kv, uint64_t snapshots, uint64_t other, bool add) {
    uint64_t sign = add ? 1 : UINT64_MAX; /* modulo 2^64 */
    c->stats.kv_bytes += sign * kv;
    c->stats.snapshot_bytes += sign * snapshots;
    c->stats.bytes += sign * (kv + snapshots + other);
}

/* ---- order ---- */

static uint32_t shared_tokens(const td_token *a, uint32_t n_a, const td_token *b, uint32_t n_b) {
    uint32_t n = n_a < n_b ? n_a : n_b, i = 0;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

static bool is_before(const td_cache_node *x, const td_token *tokens, uint32_t n) {
    uint32_t i = shared_tokens(x->tokens, x->n_tokens, tokens, n);
    if (i == n)
        return false;
    return i == x->n_tokens || x->tokens[i] < tokens[i];
}

uint32_t td_cache_tree_place(const td_cache_node *parent, const td_token *tokens, uint32_t n) {
    uint32_t low = 0, high = parent->n_children;
    while (low < high) {
        uint32_t mid = low + (high - low) / 2;
        if (is_before(parent->child[mid], tokens, n))
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

static bool begins_with(const td_cache_node *x, const td_token *tokens, uint32_t n) {
    return n <= x->n_tokens && memcmp(x->tokens, tokens, n * sizeof *tokens) == 0;
}

td_cache_node *td_cache_tree_child(const td_cache_node *parent, const td_token *tokens, uint32_t n) {
    uint32_t at = td_cache_tree_place(parent, tokens, n);
    return at < parent->n_children && begins_with(parent->child[at], tokens, n) ? parent->child[at] : NULL;
}

/* ---- pins ---- */

static void settle(td_prompt_cache *c, td_cache_node *x) {
    if (x->parent && !x->n_pins && !x->n_children)
        td_recency_add(&c->recency, &x->leaf);
    else
        td_recency_remove(&c->recency, &x->leaf);
}

void td_cache_tree_pin(td_prompt_cache *c, td_cache_node *x) {
    x->n_pins++;
    settle(c, x);
}

void td_cache_tree_unpin(td_prompt_cache *c, td_cache_node *x) {
    x->n_pins--;
    settle(c, x);
}

/* ---- going ---- */

static void drop_pages(td_prompt_cache *c, td_cache_node *x, bool windowed) {
    for (uint32_t g = 0; g < c->model->kv.n_groups; g++)
        if (is_windowed(c, g) == windowed && x->page[g]) {
            td_kv_page_drop(c->pool, x->page[g]);
            x->page[g] = NULL;
            c->stats.pages--;
        }
    account(c, pages_cost(c, windowed), 0, 0, false);
}

void td_cache_tree_drop_windows(td_prompt_cache *c, td_cache_node *x) {
    if (!c->widest || !x->has_windows)
        return;
    drop_pages(c, x, true);
    x->has_windows = false;
    td_recency_remove(&c->recency, &x->windows);
    c->n_items--;
}

void td_cache_tree_drop_snapshot(td_prompt_cache *c, td_cache_snapshot *s) {
    td_cache_snapshot **at = &s->node->snapshots;
    while (*at != s)
        at = &(*at)->next;
    *at = s->next;
    td_recency_remove(&c->recency, &s->item);
    c->n_items--;
    c->model->be->ops->free(c->model->be, s->state);
    td_free_aligned(s->hidden);
    td_free(s);
    c->stats.snapshots--;
    account(c, 0, snapshot_cost(c), 0, false);
}

static void unlink_child(td_prompt_cache *c, td_cache_node *x) {
    td_cache_node *p = x->parent;
    uint32_t at = td_cache_tree_place(p, x->tokens, x->n_tokens);
    p->n_children--;
    memmove(p->child + at, p->child + at + 1, (p->n_children - at) * sizeof(td_cache_node *));
    settle(c, p);
}

void td_cache_tree_drop(td_prompt_cache *c, td_cache_node *x) {
    while (x->snapshots)
        td_cache_tree_drop_snapshot(c, x->snapshots);
    td_cache_tree_drop_windows(c, x);
    drop_pages(c, x, false);
    td_recency_remove(&c->recency, &x->leaf);
    c->n_items--;
    unlink_child(c, x);
    td_free(x->child);
    td_free(x);
    c->stats.nodes--;
    account(c, 0, 0, node_bytes(c), false);
}

static td_cache_node *node_of(td_recency_item *item) {
    size_t at = item->kind == TD_CACHE_LEAF ? offsetof(td_cache_node, leaf) : offsetof(td_cache_node, windows);
    return (td_cache_node *)(void *)((char *)item - at);
}

static td_cache_snapshot *snapshot_of(td_recency_item *item) {
    return (td_cache_snapshot *)(void *)((char *)item - offsetof(td_cache_snapshot, item));
}

static void let_go(td_prompt_cache *c, td_recency_item *item) {
    switch (item->kind) {
    case TD_CACHE_LEAF:
        c->stats.evicted_pages++;
        td_cache_tree_drop(c, node_of(item));
        break;
    case TD_CACHE_WINDOWS:
        c->stats.evicted_windows++;
        td_cache_tree_drop_windows(c, node_of(item));
        break;
    default:
        c->stats.evicted_snapshots++;
        td_cache_tree_drop_snapshot(c, snapshot_of(item));
    }
}

bool td_cache_tree_evict(td_prompt_cache *c) {
    td_recency_item *oldest = td_recency_oldest(&c->recency);
    if (oldest)
        let_go(c, oldest);
    return oldest != NULL;
}

static bool frees_keys(const td_prompt_cache *c, td_recency_item *item) {
    if (item->kind == TD_CACHE_SNAPSHOT)
        return false;
    const td_cache_node *x = node_of(item);
    for (uint32_t g = 0; g < c->model->kv.n_groups; g++)
        if (x->page[g] && (item->kind == TD_CACHE_LEAF || is_windowed(c, g)) && td_kv_page_holders(x->page[g]) == 1)
            return true;
    return false;
}

/* Items that would free nothing step aside, behind the heap's end, and come back. */
bool td_cache_tree_give_way(void *cache) {
    td_prompt_cache *c = cache;
    uint32_t aside = 0, n = c->recency.n;
    td_recency_item *oldest;
    while ((oldest = td_recency_oldest(&c->recency)) && !frees_keys(c, oldest)) {
        td_recency_remove(&c->recency, oldest);
        c->recency.item[n - ++aside] = oldest;
    }
    for (uint32_t i = aside; i > 0; i--) /* the place of the next is never written before it is read */
        td_recency_add(&c->recency, c->recency.item[n - i]);
    if (oldest)
        let_go(c, oldest);
    return oldest != NULL;
}

static bool make_room(td_prompt_cache *c, uint64_t bytes) {
    const td_prompt_cache_stats *s = &c->stats;
    if (bytes > s->max_bytes)
        return false;
    while (s->bytes > s->max_bytes - bytes)
        if (!td_cache_tree_evict(c))
            return false;
    return true;
}

/* ---- coming ---- */

static bool has_all_windows(const td_prompt_cache *c, const td_cache_page *p) {
    for (uint32_t g = 0; g < c->model->kv.n_groups; g++)
        if (is_windowed(c, g) && !p->page[g])
            return false;
    return true;
}

static void hold_pages(td_prompt_cache *c, td_cache_node *x, const td_cache_page *p, bool windowed) {
    for (uint32_t g = 0; g < c->model->kv.n_groups; g++)
        if (is_windowed(c, g) == windowed && p->page[g]) {
            td_kv_page_hold(p->page[g]);
            x->page[g] = p->page[g];
            c->stats.pages++;
        }
    account(c, pages_cost(c, windowed), 0, 0, true);
}

/* The windowed part of a page, if it is there and there is room. */
static void add_windows(td_prompt_cache *c, td_cache_node *x, const td_cache_page *p) {
    if (x->has_windows || !has_all_windows(c, p))
        return;
    td_cache_tree_pin(c, x);
    bool room = make_room(c, pages_cost(c, true)) && td_recency_reserve(&c->recency, c->n_items + 1);
    td_cache_tree_unpin(c, x);
    if (!room)
        return;
    hold_pages(c, x, p, true);
    x->has_windows = true;
    x->windows_run = p->run;
    x->windows.clock = ++c->clock;
    td_recency_add(&c->recency, &x->windows);
    c->n_items++;
}

/* A page that goes on where a partial leaf ended takes its place; snapshots stay. */
static void replace(td_prompt_cache *c, td_cache_node *x, const td_cache_page *p) {
    td_cache_tree_drop_windows(c, x);
    drop_pages(c, x, false);
    hold_pages(c, x, p, false);
    memcpy(x->tokens, p->tokens, p->n * sizeof *p->tokens);
    x->n_tokens = p->n;
    x->run = p->run;
    td_recency_touch(&c->recency, &x->leaf, ++c->clock);
    add_windows(c, x, p);
}

static bool reserve_child(td_cache_node *parent) {
    if (parent->n_children < parent->capacity)
        return true;
    uint32_t capacity = parent->capacity ? 2 * parent->capacity : 1;
    td_cache_node **child = td_realloc(parent->child, capacity, sizeof(td_cache_node *));
    if (!child)
        return false;
    parent->child = child;
    parent->capacity = capacity;
    return true;
}

static td_cache_node *new_node(td_prompt_cache *c, td_cache_node *parent, const td_cache_page *p) {
    uint64_t kv = pages_cost(c, false), other = node_bytes(c);
    if (!make_room(c, kv + other) || !td_recency_reserve(&c->recency, c->n_items + 1) || !reserve_child(parent))
        return NULL;
    td_cache_node *x = td_calloc(1, sizeof *x + c->page_tokens * sizeof(td_token));
    if (!x)
        return NULL;
    *x = (td_cache_node){.parent = parent,
                         .depth = parent->depth + 1,
                         .run = p->run,
                         .leaf = {.clock = ++c->clock, .kind = TD_CACHE_LEAF},
                         .windows = {.kind = TD_CACHE_WINDOWS},
                         .has_windows = !c->widest,
                         .n_tokens = p->n};
    memcpy(x->tokens, p->tokens, p->n * sizeof *p->tokens);
    hold_pages(c, x, p, false);
    account(c, 0, 0, other, true);
    c->n_items++;
    c->stats.nodes++;
    uint32_t at = td_cache_tree_place(parent, p->tokens, p->n);
    memmove(parent->child + at + 1, parent->child + at, (parent->n_children - at) * sizeof(td_cache_node *));
    parent->child[at] = x;
    parent->n_children++;
    settle(c, parent);
    settle(c, x);
    add_windows(c, x, p);
    return x;
}

td_cache_node *td_cache_tree_add(td_prompt_cache *c, td_cache_node *parent, const td_cache_page *p) {
    uint32_t at = td_cache_tree_place(parent, p->tokens, p->n);
    td_cache_node *x = at < parent->n_children ? parent->child[at] : NULL;
    if (x && begins_with(x, p->tokens, p->n)) {
        td_recency_touch(&c->recency, &x->leaf, ++c->clock);
        if (x->n_tokens == p->n)
            add_windows(c, x, p);
        return x;
    }
    x = at ? parent->child[at - 1] : NULL;
    if (x && x->n_tokens < p->n && begins_with(x, p->tokens, x->n_tokens)) {
        replace(c, x, p);
        return x;
    }
    x = new_node(c, parent, p);
    c->stats.refused += !x;
    return x;
}

td_cache_snapshot *td_cache_tree_snapshot(const td_cache_node *x, uint32_t position) {
    td_cache_snapshot *s = x->snapshots;
    while (s && s->position != position)
        s = s->next;
    return s;
}

static bool add_snapshot(td_prompt_cache *c, td_cache_node *x, td_snapshot *copy, uint64_t run) {
    td_cache_snapshot *s;
    if (!make_room(c, snapshot_cost(c)) || !td_recency_reserve(&c->recency, c->n_items + 1) ||
        !(s = td_calloc(1, sizeof *s))) {
        c->stats.refused++;
        return false;
    }
    *s = (td_cache_snapshot){.next = x->snapshots,
                             .node = x,
                             .item = {.clock = ++c->clock, .kind = TD_CACHE_SNAPSHOT},
                             .position = copy->position,
                             .run = run,
                             .passing = copy->passing,
                             .state = copy->state};
    copy->state = NULL;
    if (copy->has_hidden) {
        s->hidden = copy->hidden;
        copy->hidden = NULL;
    }
    x->snapshots = s;
    c->n_items++;
    c->stats.snapshots++;
    account(c, 0, snapshot_cost(c), 0, true);
    td_recency_add(&c->recency, &s->item);
    return true;
}

bool td_cache_tree_keep(td_prompt_cache *c, td_cache_node *x, td_snapshot *copy, uint64_t run) {
    td_cache_snapshot *s = td_cache_tree_snapshot(x, copy->position);
    if (s) {
        if (!s->hidden && copy->has_hidden) {
            s->hidden = copy->hidden;
            copy->hidden = NULL;
        }
        s->passing = s->passing && copy->passing;
        td_recency_touch(&c->recency, &s->item, ++c->clock);
        return true;
    }
    td_cache_tree_pin(c, x);
    bool kept = add_snapshot(c, x, copy, run);
    td_cache_tree_unpin(c, x);
    return kept;
}

/* ---- opening ---- */

td_status td_cache_tree_open(td_prompt_cache *c, td_error *err) {
    c->root = td_calloc(1, sizeof *c->root);
    if (!c->root)
        return td_fail(err, TD_E_NOMEM, "out of memory for a prompt cache");
    c->root->has_windows = true;
    return TD_OK;
}

void td_cache_tree_close(td_prompt_cache *c) {
    if (!c->root)
        return;
    while (td_cache_tree_evict(c))
        ;
    td_free(c->root->child);
    td_free(c->root);
    td_recency_free(&c->recency);
}
