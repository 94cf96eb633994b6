/* prompt_tree.h - the tree behind the prompt cache: nodes, what they hold, and what is let go for whom.
 *
 * Children of a node are sorted by their tokens, and none is a prefix of another, so one binary search finds the child
 * that goes on as a text does, and those that share most with it stand beside that place. A page that continues a
 * partial leaf takes its place.
 *
 * A node's pages of groups without a window are there as long as it is; those of windowed groups all or none of them
 * (`has_windows`; true where there are no such groups). Only whole pages have children. A pinned node stays. */
#ifndef TD_CACHE_PROMPT_TREE_H
#define TD_CACHE_PROMPT_TREE_H

#include "cache/prompt_cache.h"
#include "cache/recency.h"

enum { TD_CACHE_LEAF, TD_CACHE_WINDOWS, TD_CACHE_SNAPSHOT }; /* kinds of items */

typedef struct td_cache_snapshot {
    struct td_cache_snapshot *next; /* of the node, in no order */
    td_cache_node *node;
    td_recency_item item;
    uint32_t position;
    uint64_t run;
    bool passing;   /* as in td_snapshot */
    uint8_t *state; /* [snapshot_bytes] */
    float *hidden;  /* [n_embd] or NULL */
} td_cache_snapshot;

struct td_cache_node {
    td_cache_node *parent; /* NULL: the root, which has no page */
    td_cache_node **child; /* [n_children] sorted */
    uint32_t n_children, capacity;
    uint32_t depth; /* pages up to and with this one; the root's is 0 */
    uint32_t n_pins;
    uint64_t run, windows_run; /* what added the page, and its windowed part */
    td_recency_item leaf, windows;
    bool has_windows;
    td_cache_snapshot *snapshots; /* at positions past the parent's tokens, up to this one's */
    uint8_t *page[TD_KV_MAX_GROUPS];
    uint32_t n_tokens; /* 1..page_tokens */
    td_token tokens[]; /* [page_tokens] */
};

struct td_prompt_cache {
    td_model *model;
    td_kv_pool *pool;
    td_cache_node *root;
    td_recency recency;
    td_cache_trail *trails; /* those open */
    uint64_t clock, runs;
    uint32_t page_tokens, widest; /* the widest window, 0: none */
    uint32_t n_items;             /* that may come to be in `recency` */
    td_prompt_cache_stats stats;
};

/* A page for the tree: n tokens (at most page_tokens) and their keys. A windowed group's page may be NULL. */
typedef struct td_cache_page {
    const td_token *tokens;
    uint32_t n;
    uint8_t *page[TD_KV_MAX_GROUPS];
    uint64_t run;
} td_cache_page;

/* Adds a page behind the trail, which goes on behind it if it is whole. False: no room. */
bool td_cache_trail_add(td_cache_trail *t, const td_cache_page *p);

/* The path of tokens[0..n): pages whole or, the last, partial. NULL when nothing is there. */
td_cache_node *td_cache_tree_path(const td_prompt_cache *c, const td_token *tokens, uint32_t n, uint32_t *n_tokens);

td_status td_cache_tree_open(td_prompt_cache *c, td_error *err) TD_MUST_CHECK;
void td_cache_tree_close(td_prompt_cache *c);

/* The child of `parent`, which is pinned, that has the page's tokens (and perhaps more): the one there is, or one that
 * holds these pages from now on. What is there already may gain windowed pages. NULL: no room. */
td_cache_node *td_cache_tree_add(td_prompt_cache *c, td_cache_node *parent, const td_cache_page *p);
/* The child that begins with these tokens, or NULL. */
td_cache_node *td_cache_tree_child(const td_cache_node *parent, const td_token *tokens, uint32_t n);
/* Index of the first child that is not before tokens[0..n) in their order. */
uint32_t td_cache_tree_place(const td_cache_node *parent, const td_token *tokens, uint32_t n);

/* Takes state and hidden (which may be NULL) out of `copy`, unless there is a snapshot at its position. False: no room.
 */
bool td_cache_tree_keep(td_prompt_cache *c, td_cache_node *node, td_snapshot *copy, uint64_t run);
td_cache_snapshot *td_cache_tree_snapshot(const td_cache_node *node, uint32_t position);

void td_cache_tree_pin(td_prompt_cache *c, td_cache_node *node);
void td_cache_tree_unpin(td_prompt_cache *c, td_cache_node *node);

/* Without children or pins. */
void td_cache_tree_drop(td_prompt_cache *c, td_cache_node *leaf);
void td_cache_tree_drop_windows(td_prompt_cache *c, td_cache_node *node);
void td_cache_tree_drop_snapshot(td_prompt_cache *c, td_cache_snapshot *s);

/* Lets go of the least recently used item. False: there is none. */
bool td_cache_tree_evict(td_prompt_cache *c);
/* The same of one whose keys nobody else holds: a td_kv_give_way. */
bool td_cache_tree_give_way(void *cache);

#endif
