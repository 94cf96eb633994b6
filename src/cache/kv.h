/* kv.h - the trunk's keys and values: pages from a pool, one table of them a sequence and layer group.
 *
 * A page holds page_tokens positions of all layers of a group (td_kv_layout). Pages are counted, not owned, so that
 * sequences with one prefix can share them; a page is written only while its count is 1. A sequence has a length; rows
 * past it may lie in its pages and mean nothing, so rejecting a draft is td_kv_seq_set_length and no copy.
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
/* Bytes in pages that some sequence holds, and bytes allocated. */
uint64_t td_kv_pool_used(const td_kv_pool *pool);
uint64_t td_kv_pool_allocated(const td_kv_pool *pool);

/* A sequence of at most max_tokens positions; `margin` as above. */
td_status td_kv_seq_open(td_kv_seq **out, td_kv_pool *pool, uint32_t max_tokens, uint32_t margin,
                         td_error *err) TD_MUST_CHECK;
void td_kv_seq_close(td_kv_seq **seq);

uint32_t td_kv_seq_length(const td_kv_seq *seq);

/* Takes the pages for positions [length, length + n), in every group. TD_E_LIMIT: beyond max_tokens or the pool's
 * limit (pages taken so far stay with the sequence). */
td_status td_kv_seq_reserve(td_kv_seq *seq, uint32_t n, td_error *err) TD_MUST_CHECK;

/* The length becomes `length`, at most what is reserved. Going back further than a windowed group can bear (see
 * td_kv_seq_can_rewind) is a caller's mistake. Pages behind windows are freed; pages past the new length stay. */
void td_kv_seq_set_length(td_kv_seq *seq, uint32_t length);

/* True when every key that a row at `length` may see is still there. */
bool td_kv_seq_can_rewind(const td_kv_seq *seq, uint32_t length);

/* Gives everything back; length 0. */
void td_kv_seq_clear(td_kv_seq *seq);

/* The page table of a group, valid until the sequence is closed. */
td_kv_pages td_kv_seq_pages(const td_kv_seq *seq, uint32_t group);
/* Pages of a group that the sequence holds now. */
uint32_t td_kv_seq_held(const td_kv_seq *seq, uint32_t group);

/* Bytes that one sequence of n tokens needs at its peak, pages of a pass of `pass_rows` included. */
uint64_t td_kv_plan_bytes(const td_kv_layout *layout, uint32_t n_tokens, uint32_t pass_rows, uint32_t margin);

#endif
