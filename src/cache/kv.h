/* kv.h - the trunk's keys and values: pages from a pool, one table of them a sequence and layer group.
 *
 * A page holds page_tokens positions of all layers of a group (td_kv_layout). Pages are counted, not owned, so that
 * sequences with one prefix can share them, with each other and with the prompt cache. A page is written only while its
 * count is 1: reserving rows copies the page that they begin in, if it is shared, and no other, because a sequence that
 * goes back drops shared pages past its new length. A sequence has a length; rows past it may lie in its pages and mean
 * nothing, so rejecting a draft is td_kv_seq_set_length and no copy.
 *
 * A group with a window gives back pages that no row can see any more: keys at or before length - window - margin,
 * where the margin is what a rejected round may take the length back by. */
#ifndef TD_CACHE_KV_H
#define TD_CACHE_KV_H

#include "model/model.h"

typedef struct td_kv_pool td_kv_pool;
typedef struct td_kv_seq td_kv_seq;

/* `layout` must outlive the pool. max_bytes 0: no limit. Pages are allocated when first needed and reused after. */
td_status td_kv_pool_open(td_kv_pool **out, const td_kv_layout *layout, td_backend *be, uint64_t max_bytes,
                          td_error *err) TD_MUST_CHECK;
void td_kv_pool_close(td_kv_pool **pool);
/* Bytes in pages that somebody holds (a page that several hold counts once), and bytes allocated. */
uint64_t td_kv_pool_used(const td_kv_pool *pool);
uint64_t td_kv_pool_allocated(const td_kv_pool *pool);

/* Asked, while there is no room for a page, to drop a page that nobody else holds; false: there is none. NULL: nobody
 * is asked. */
typedef bool (*td_kv_give_way)(void *user);
void td_kv_pool_on_full(td_kv_pool *pool, td_kv_give_way give_way, void *user);

/* ---- pages ---- */

/* Bytes that a page of a group costs. */
size_t td_kv_page_cost(const td_kv_pool *pool, uint32_t group);
/* A page held once, of undefined content. Errors as td_kv_seq_reserve. */
td_status td_kv_page_take(td_kv_pool *pool, uint32_t group, uint8_t **page, td_error *err) TD_MUST_CHECK;
/* One more, one fewer holder. A page without any returns to the pool. */
void td_kv_page_hold(uint8_t *page);
void td_kv_page_drop(td_kv_pool *pool, uint8_t *page);
uint32_t td_kv_page_holders(const uint8_t *page);

/* ---- sequences ---- */

/* A sequence of at most max_tokens positions; `margin` as above. */
td_status td_kv_seq_open(td_kv_seq **out, td_kv_pool *pool, uint32_t max_tokens, uint32_t margin,
                         td_error *err) TD_MUST_CHECK;
void td_kv_seq_close(td_kv_seq **seq);

/* The rows that are written are those from the length on, and `rows` before it (heads write the last row's K and V
 * again when they learn the token behind it). Default 0. */
void td_kv_seq_rewrites(td_kv_seq *seq, uint32_t rows);

/* An empty sequence gets `length` positions that others have computed. Then td_kv_seq_put gives each group the pages
 * [td_kv_seq_first(seq, group), end of the length), which the sequence holds from then on, too. */
void td_kv_seq_adopt(td_kv_seq *seq, uint32_t length);
void td_kv_seq_put(td_kv_seq *seq, uint32_t group, uint32_t index, uint8_t *page);
/* The first page of a group that a row at the length or later can see. */
uint32_t td_kv_seq_first(const td_kv_seq *seq, uint32_t group);

uint32_t td_kv_seq_length(const td_kv_seq *seq);

/* Takes the pages for positions [length, length + n), in every group, and copies the one that they begin in if it is
 * shared. TD_E_LIMIT: beyond max_tokens or the pool's limit (pages taken so far stay with the sequence). */
td_status td_kv_seq_reserve(td_kv_seq *seq, uint32_t n, td_error *err) TD_MUST_CHECK;

/* The length becomes `length`, at most what is reserved. Going back further than a windowed group can bear (see
 * td_kv_seq_can_rewind) is a caller's mistake. Pages behind windows are freed; pages past the new length stay, unless
 * they are shared. */
void td_kv_seq_set_length(td_kv_seq *seq, uint32_t length);
/* As above, forward only, and pages behind windows stay until the next td_kv_seq_set_length. */
void td_kv_seq_advance(td_kv_seq *seq, uint32_t length);

/* True when every key that a row at `length` may see is still there. */
bool td_kv_seq_can_rewind(const td_kv_seq *seq, uint32_t length);

/* Gives everything back; length 0. */
void td_kv_seq_clear(td_kv_seq *seq);

/* The page table of a group, valid until the sequence is closed; its entries change with what is above. */
td_kv_pages td_kv_seq_pages(const td_kv_seq *seq, uint32_t group);
/* Pages of a group that the sequence holds now. */
uint32_t td_kv_seq_held(const td_kv_seq *seq, uint32_t group);

/* Bytes that one sequence of n tokens needs at its peak, pages of a pass of `pass_rows` included. */
uint64_t td_kv_plan_bytes(const td_kv_layout *layout, uint32_t n_tokens, uint32_t pass_rows, uint32_t margin);

#endif
