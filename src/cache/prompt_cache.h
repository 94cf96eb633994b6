/* prompt_cache.h - what was computed for prompts and answers, kept for texts that begin alike.
 *
 * A tree of pages: a node stands for one page of tokens behind the pages above it, and holds that page of keys and
 * values of every group, shared with the sequences that use it (kv.h). A leaf may be partial. Groups with a window may
 * lack theirs, for a row sees no further back. Recurrent memory is kept as snapshots inside nodes, each of an exact
 * position. What is found is therefore what a cold run would have computed, bit for bit: the keys of a position are a
 * function of the tokens up to it and of nothing else (backend.h).
 *
 * A position can be reused when the tree has the tokens before it, the windowed pages that a row there can see, and,
 * where the model has recurrent memory, a snapshot of exactly that position.
 *
 * There is a budget of bytes. Three kinds of things are let go one by one, least recently used first: a leaf, a node's
 * windowed pages, a snapshot. What no longer serves prompts that branch inside a text (windows behind its end) thus
 * goes before the text does. Pages that only the cache holds also go when a running sequence finds the pool full.
 *
 * Thread: one, the engine's, calls everything here, also of sequences that use the cache; there are no locks. */
#ifndef TD_CACHE_PROMPT_CACHE_H
#define TD_CACHE_PROMPT_CACHE_H

#include "cache/kv.h"
#include "cache/snapshot.h"

typedef struct td_prompt_cache td_prompt_cache;
typedef struct td_cache_node td_cache_node;

/* `model` and `pool` (of the model's layout) must outlive the cache. max_bytes: pages, snapshots and tree; 0 keeps
 * nothing. The pool asks this cache, from now on, when it is full. */
td_status td_prompt_cache_open(td_prompt_cache **out, td_model *model, td_kv_pool *pool, uint64_t max_bytes,
                               td_error *err) TD_MUST_CHECK;
/* After the sequences that use it, before the pool. */
void td_prompt_cache_close(td_prompt_cache **cache);
/* Lets go of everything that no running sequence is adding to. */
void td_prompt_cache_clear(td_prompt_cache *cache);

typedef struct td_prompt_cache_stats {
    uint64_t max_bytes, bytes;               /* budget, and what of it is in use */
    uint64_t kv_bytes, snapshot_bytes;       /* parts of `bytes` */
    uint64_t nodes, pages, snapshots;        /* held now */
    uint64_t lookups, hits;                  /* prompts started; those that reused something */
    uint64_t tokens_hit, tokens_missed;      /* of prompts: reused, to be evaluated */
    uint64_t evicted_pages, evicted_windows, /* leaves let go; nodes whose windowed pages were */
        evicted_snapshots;
    uint64_t refused; /* pages and snapshots for which there was no room */
} td_prompt_cache_stats;

td_prompt_cache_stats td_prompt_cache_describe(const td_prompt_cache *cache);

/* Lets go of this text, from its end back to where others share it; returns the tokens that went. */
uint32_t td_prompt_cache_forget(td_prompt_cache *cache, const td_token *tokens, uint32_t n);

/* ---- for sequences ---- */

/* The longest prefix of tokens[0..n) that can be reused: `length` of them, 0: none. Valid until the cache changes. */
typedef struct td_cache_match {
    uint32_t length;
    td_cache_node *node;  /* with the last of them */
    const uint8_t *state; /* [snapshot_bytes] recurrent memory at `length`, or NULL */
    const float *hidden;  /* [n_embd] final hidden state of length - 1, or NULL: not known */
    uint32_t shared;      /* tokens that the tree has, whether it can continue them or not; >= length */
} td_cache_match;

td_cache_match td_prompt_cache_find(const td_prompt_cache *cache, const td_token *tokens, uint32_t n);

/* Counts a prompt for the statistics. */
void td_prompt_cache_count(td_prompt_cache *cache, uint32_t n_prompt, uint32_t n_reused);

/* Where a sequence adds to the tree: behind its last whole page that the tree has, which stays while it does. */
typedef struct td_cache_trail {
    td_prompt_cache *cache; /* NULL: there is none, and every call is harmless */
    td_cache_node *node;
    uint32_t n_pages; /* whole pages up to and with `node` */
    uint32_t tried;   /* pages of the text when there was no room for the next; it is tried again when there are more */
    bool barred;      /* the text stands on something that was taken back: nothing of it is added */
    uint64_t run;     /* marks what is added */
    struct td_cache_trail *prev, *next;
} td_cache_trail;

void td_cache_trail_open(td_cache_trail *t, td_prompt_cache *cache);
void td_cache_trail_close(td_cache_trail *t);

/* A new text, from its beginning. */
void td_cache_trail_begin(td_cache_trail *t);

/* `kv`, which is empty, gets the pages of a match just found, and the trail goes on from there. */
void td_cache_trail_adopt(td_cache_trail *t, const td_cache_match *m, td_kv_seq *kv);

/* Adds the pages that are whole within tokens[0..n), n <= the length of `kv`. Pages behind a window must not have been
 * dropped yet if they are to be kept. O(1) when no page is new. */
void td_cache_trail_follow(td_cache_trail *t, const td_token *tokens, uint32_t n, const td_kv_seq *kv);
/* And the last one if it is partial; nothing more is written to it, for it is shared now (kv.h: it is copied first). */
void td_cache_trail_end(td_cache_trail *t, const td_token *tokens, uint32_t n, const td_kv_seq *kv);

/* Of copies that a prompt made in passing (td_snapshot.passing) this keeps fewer the further it gets, so that there are
 * a handful of them however long it is: one goes while its neighbours are no further apart than a quarter of the text.
 *
 * Offers a copy of recurrent memory after copy->position of the tokens; true: the tree has one there now, and
 * copy->state and copy->hidden may be NULL, as it has taken them. False: the tree lacks the page, or the room. */
bool td_cache_trail_keep(td_cache_trail *t, const td_token *tokens, td_snapshot *copy);

/* The text goes back to n tokens, and may go on otherwise. What was added stays. */
void td_cache_trail_back(td_cache_trail *t, uint32_t n);
/* As _back, and what this text has added behind n goes unless another uses it. */
void td_cache_trail_cut(td_cache_trail *t, uint32_t n);
/* What this text has added was wrong: it goes, and everything that was built on it. */
void td_cache_trail_revoke(td_cache_trail *t);

#endif
