/* prompt_cache.c - finding the longest prefix that can be reused, and the trails along which sequences add to the tree.
 *
 * The search goes down while whole pages agree. On its way it knows how far back windowed pages reach without a gap,
 * which says from what position on a page can be continued. In the last page, and in those beside the way, any child
 * that begins like the text may hold the longest prefix that is complete: with recurrent memory that is a matter of
 * which has a snapshot. */
#include "cache/prompt_cache.h"

#include "base/alloc.h"
#include "cache/prompt_tree.h"

td_status td_prompt_cache_open(td_prompt_cache **out, td_model *model, td_kv_pool *pool, uint64_t max_bytes,
                               td_error *err) {
    *out = NULL;
    td_prompt_cache *c = td_calloc(1, sizeof *c);
    if (!c)
        return td_fail(err, TD_E_NOMEM, "out of memory for a prompt cache");
    *c = (td_prompt_cache){
        .model = model, .pool = pool, .page_tokens = model->kv.page_tokens, .stats = {.max_bytes = max_bytes}};
    for (uint32_t g = 0; g < model->kv.n_groups; g++)
        c->widest = model->kv.group[g].window > c->widest ? model->kv.group[g].window : c->widest;
    td_status st = td_cache_tree_open(c, err);
    if (st != TD_OK) {
        td_free(c);
        return st;
    }
    td_kv_pool_on_full(pool, td_cache_tree_give_way, c);
    *out = c;
    return TD_OK;
}

void td_prompt_cache_close(td_prompt_cache **pc) {
    if (!pc || !*pc)
        return;
    td_kv_pool_on_full((*pc)->pool, NULL, NULL);
    while ((*pc)->trails)
        td_cache_trail_close((*pc)->trails);
    td_cache_tree_close(*pc);
    td_free(*pc);
    *pc = NULL;
}

void td_prompt_cache_clear(td_prompt_cache *c) {
    td_prompt_cache_stats before = c->stats;
    while (td_cache_tree_evict(c))
        ;
    c->stats.evicted_pages = before.evicted_pages;
    c->stats.evicted_windows = before.evicted_windows;
    c->stats.evicted_snapshots = before.evicted_snapshots;
}

td_prompt_cache_stats td_prompt_cache_describe(const td_prompt_cache *c) {
    return c->stats;
}

void td_prompt_cache_count(td_prompt_cache *c, uint32_t n_prompt, uint32_t n_reused) {
    c->stats.lookups++;
    c->stats.hits += n_reused > 0;
    c->stats.tokens_hit += n_reused;
    c->stats.tokens_missed += n_prompt - n_reused;
}

/* ---- finding ---- */

typedef struct search {
    const td_prompt_cache *c;
    const td_token *tokens;
    uint32_t n, base; /* tokens before the pages that are being looked at */
    uint32_t gapless; /* from this page on all windowed pages are there, up to base */
    uint32_t shared;  /* tokens found */
    td_cache_match best;
} search;

/* The first position of a page whose row sees only keys that are there. */
static uint32_t first_complete(const search *q, const td_cache_node *x) {
    uint32_t from = x->has_windows ? q->gapless : x->depth;
    return from ? from * q->c->page_tokens + q->c->widest - 1 : 0;
}

static void offer(search *q, td_cache_node *x, uint32_t length, const td_cache_snapshot *s) {
    if (length > q->best.length)
        q->best =
            (td_cache_match){.length = length, .node = x, .state = s ? s->state : NULL, .hidden = s ? s->hidden : NULL};
}

/* The text shares the first `shared` tokens of a page. */
static void consider(search *q, td_cache_node *x, uint32_t shared) {
    uint32_t most = q->base + shared, least = first_complete(q, x);
    if (!q->c->model->info.snapshot_bytes) {
        if (most >= least)
            offer(q, x, most, NULL);
        return;
    }
    for (const td_cache_snapshot *s = x->snapshots; s; s = s->next)
        if (s->position <= most && s->position >= least)
            offer(q, x, s->position, s);
}

static uint32_t shared_with(const search *q, const td_cache_node *x) {
    uint32_t n = q->n - q->base < x->n_tokens ? q->n - q->base : x->n_tokens, i = 0;
    while (i < n && x->tokens[i] == q->tokens[q->base + i])
        i++;
    return i;
}

/* Considers a child; false: it, and those further from the text than it, can offer nothing better. */
static bool look_at(search *q, td_cache_node *x) {
    uint32_t shared = shared_with(q, x);
    q->shared = q->base + shared > q->shared ? q->base + shared : q->shared;
    if (!shared || q->base + shared <= q->best.length)
        return false;
    consider(q, x, shared);
    return true;
}

/* Looks at the children of `parent`; returns the one that the text goes on behind, or NULL. */
static td_cache_node *search_children(search *q, const td_cache_node *parent) {
    uint32_t page = q->c->page_tokens, n = q->n - q->base < page ? q->n - q->base : page;
    uint32_t at = td_cache_tree_place(parent, q->tokens + q->base, n);
    for (uint32_t i = at; i < parent->n_children && look_at(q, parent->child[i]); i++)
        ;
    for (uint32_t i = at; i > 0 && look_at(q, parent->child[i - 1]); i--)
        ;
    td_cache_node *x = at < parent->n_children ? parent->child[at] : NULL;
    return x && n == page && x->n_tokens == page && shared_with(q, x) == page ? x : NULL;
}

td_cache_match td_prompt_cache_find(const td_prompt_cache *c, const td_token *tokens, uint32_t n) {
    search q = {.c = c, .tokens = tokens, .n = n};
    td_cache_node *x = c->root;
    while (q.base < n && (x = search_children(&q, x))) {
        q.base += c->page_tokens;
        if (!x->has_windows)
            q.gapless = x->depth;
    }
    q.best.shared = q.shared;
    return q.best;
}

td_cache_node *td_cache_tree_path(const td_prompt_cache *c, const td_token *tokens, uint32_t n, uint32_t *n_tokens) {
    search q = {.c = c, .tokens = tokens, .n = n};
    td_cache_node *x = c->root, *best = NULL;
    *n_tokens = 0;
    while (x && q.base < n) {
        const td_cache_node *parent = x;
        uint32_t left = n - q.base,
                 at = td_cache_tree_place(parent, tokens + q.base, left < c->page_tokens ? left : c->page_tokens);
        x = NULL;
        for (uint32_t i = at ? at - 1 : 0; i <= at && i < parent->n_children; i++) {
            uint32_t shared = shared_with(&q, parent->child[i]);
            if (q.base + shared > *n_tokens) {
                *n_tokens = q.base + shared;
                best = parent->child[i];
                x = shared == c->page_tokens ? best : NULL;
            }
        }
        q.base += c->page_tokens;
    }
    return best;
}

uint32_t td_prompt_cache_forget(td_prompt_cache *c, const td_token *tokens, uint32_t n) {
    uint32_t n_tokens, gone = 0;
    td_cache_node *x = td_cache_tree_path(c, tokens, n, &n_tokens);
    while (x && x->parent && !x->n_children && !x->n_pins) {
        td_cache_node *parent = x->parent;
        gone += x->n_tokens;
        td_cache_tree_drop(c, x);
        x = parent;
    }
    return gone;
}

/* ---- trails ---- */

static void move_to(td_cache_trail *t, td_cache_node *x) {
    td_cache_tree_pin(t->cache, x);
    if (t->node)
        td_cache_tree_unpin(t->cache, t->node);
    t->node = x;
    t->n_pages = x->depth;
    t->tried = 0;
}

void td_cache_trail_open(td_cache_trail *t, td_prompt_cache *cache) {
    *t = (td_cache_trail){.cache = cache};
    if (!cache)
        return;
    t->next = cache->trails;
    if (t->next)
        t->next->prev = t;
    cache->trails = t;
    td_cache_trail_begin(t);
}

void td_cache_trail_close(td_cache_trail *t) {
    td_prompt_cache *c = t->cache;
    if (!c)
        return;
    td_cache_tree_unpin(c, t->node);
    if (t->prev)
        t->prev->next = t->next;
    else
        c->trails = t->next;
    if (t->next)
        t->next->prev = t->prev;
    *t = (td_cache_trail){0};
}

void td_cache_trail_begin(td_cache_trail *t) {
    if (!t->cache)
        return;
    move_to(t, t->cache->root);
    t->run = ++t->cache->runs;
    t->barred = false;
}

/* The uses of a path: all of its pages, the windowed ones that a row behind it sees, the snapshot. */
static void touch_path(td_prompt_cache *c, const td_cache_match *m, const td_kv_seq *kv) {
    uint32_t first = UINT32_MAX;
    for (uint32_t g = 0; g < c->model->kv.n_groups; g++)
        if (c->model->kv.group[g].window && td_kv_seq_first(kv, g) < first)
            first = td_kv_seq_first(kv, g);
    uint64_t now = ++c->clock;
    for (td_cache_node *x = m->node; x->parent; x = x->parent) {
        td_recency_touch(&c->recency, &x->leaf, now);
        if (x->depth > first)
            td_recency_touch(&c->recency, &x->windows, now);
    }
    td_cache_snapshot *s = td_cache_tree_snapshot(m->node, m->length);
    if (s)
        td_recency_touch(&c->recency, &s->item, now);
}

void td_cache_trail_adopt(td_cache_trail *t, const td_cache_match *m, td_kv_seq *kv) {
    td_prompt_cache *c = t->cache;
    td_kv_seq_adopt(kv, m->length);
    for (td_cache_node *x = m->node; x->parent; x = x->parent)
        for (uint32_t g = 0; g < c->model->kv.n_groups; g++)
            if (x->depth > td_kv_seq_first(kv, g))
                td_kv_seq_put(kv, g, x->depth - 1, x->page[g]);
    touch_path(c, m, kv);
    move_to(t, m->length == m->node->depth * c->page_tokens ? m->node : m->node->parent);
}

bool td_cache_trail_add(td_cache_trail *t, const td_cache_page *p) {
    td_cache_node *x = td_cache_tree_add(t->cache, t->node, p);
    if (x && p->n == t->cache->page_tokens)
        move_to(t, x);
    return x != NULL;
}

static td_cache_page page_at(const td_cache_trail *t, const td_token *tokens, uint32_t n, const td_kv_seq *kv) {
    td_cache_page p = {.tokens = tokens + t->n_pages * t->cache->page_tokens, .n = n, .run = t->run};
    for (uint32_t g = 0; g < t->cache->model->kv.n_groups; g++)
        p.page[g] = td_kv_seq_pages(kv, g)[t->n_pages];
    return p;
}

void td_cache_trail_follow(td_cache_trail *t, const td_token *tokens, uint32_t n, const td_kv_seq *kv) {
    if (!t->cache || t->barred)
        return;
    uint32_t n_pages = n / t->cache->page_tokens;
    while (t->n_pages < n_pages && t->tried < n_pages) {
        td_cache_page p = page_at(t, tokens, t->cache->page_tokens, kv);
        if (!td_cache_trail_add(t, &p))
            t->tried = n_pages;
    }
}

void td_cache_trail_end(td_cache_trail *t, const td_token *tokens, uint32_t n, const td_kv_seq *kv) {
    if (!t->cache || t->barred)
        return;
    td_cache_trail_follow(t, tokens, n, kv);
    uint32_t rest = n % t->cache->page_tokens;
    if (rest && t->n_pages == n / t->cache->page_tokens) {
        td_cache_page p = page_at(t, tokens, rest, kv);
        td_cache_trail_add(t, &p);
    }
}

/* The node that a position lies in. */
static td_cache_node *node_at(const td_cache_trail *t, const td_token *tokens, uint32_t position) {
    uint32_t page = t->cache->page_tokens, index = (position - 1) / page;
    td_cache_node *x = t->node;
    if (index > t->n_pages)
        return NULL;
    if (index == t->n_pages)
        return td_cache_tree_child(x, tokens + index * page, position - index * page);
    while (x->depth > index + 1)
        x = x->parent;
    return x;
}

/* The node's snapshot with the highest position before `position`. */
static td_cache_snapshot *last_before(const td_cache_node *x, uint32_t position) {
    td_cache_snapshot *last = NULL;
    for (td_cache_snapshot *s = x->snapshots; s; s = s->next)
        if (s->position < position && (!last || s->position > last->position))
            last = s;
    return last;
}

/* Down from `position`: a copy made in passing goes when the one above it and the one below are near enough. */
static void thin_out(td_cache_trail *t, td_cache_node *x, uint32_t position) {
    uint32_t above = position, most = position / 4;
    td_cache_snapshot *doubtful = NULL;
    for (; x->parent; x = x->parent)
        for (td_cache_snapshot *s; (s = last_before(x, doubtful ? doubtful->position : above));) {
            if (doubtful && above - s->position <= most)
                td_cache_tree_drop_snapshot(t->cache, doubtful);
            else if (doubtful)
                above = doubtful->position;
            doubtful = s->passing && s->run == t->run ? s : NULL;
            above = doubtful ? above : s->position;
        }
    if (doubtful && above <= most)
        td_cache_tree_drop_snapshot(t->cache, doubtful);
}

bool td_cache_trail_keep(td_cache_trail *t, const td_token *tokens, td_snapshot *copy) {
    td_cache_node *x = t->cache && !t->barred ? node_at(t, tokens, copy->position) : NULL;
    if (!x || !td_cache_tree_keep(t->cache, x, copy, t->run))
        return false;
    thin_out(t, x, copy->position);
    return true;
}

void td_cache_trail_back(td_cache_trail *t, uint32_t n) {
    while (t->cache && t->n_pages * t->cache->page_tokens > n)
        move_to(t, t->node->parent);
}

void td_cache_trail_cut(td_cache_trail *t, uint32_t n) {
    while (t->cache && t->n_pages * t->cache->page_tokens > n) {
        td_cache_node *x = t->node;
        move_to(t, x->parent);
        if (x->run == t->run && !x->n_children && !x->n_pins)
            td_cache_tree_drop(t->cache, x);
    }
}

/* ---- taking back ---- */

static bool is_below(const td_cache_node *x, const td_cache_node *top) {
    while (x && x != top)
        x = x->parent;
    return x != NULL;
}

/* A page and all behind it. Who was adding there has built on what is wrong, and adds no more. */
static void drop_subtree(td_prompt_cache *c, td_cache_node *top) {
    for (td_cache_trail *t = c->trails; t; t = t->next)
        if (is_below(t->node, top)) {
            move_to(t, top->parent);
            t->barred = true;
        }
    for (td_cache_node *x = top, *next; x != top->parent; x = next) {
        next = x->n_children ? x->child[x->n_children - 1] : x->parent;
        if (!x->n_children) {
            bool last = x == top;
            td_cache_tree_drop(c, x);
            if (last)
                return;
        }
    }
}

static void drop_run_parts(td_prompt_cache *c, td_cache_node *x, uint64_t run) {
    if (x->windows_run == run)
        td_cache_tree_drop_windows(c, x);
    for (td_cache_snapshot *s = x->snapshots, *next; s; s = next) {
        next = s->next;
        if (s->run == run)
            td_cache_tree_drop_snapshot(c, s);
    }
}

void td_cache_trail_revoke(td_cache_trail *t) {
    if (!t->cache)
        return;
    td_cache_node *top = NULL;
    for (td_cache_node *x = t->node; x->parent; x = x->parent) {
        if (x->run == t->run)
            top = x;
        drop_run_parts(t->cache, x, t->run);
    }
    td_cache_trail_begin(t);
    if (top)
        drop_subtree(t->cache, top);
}
