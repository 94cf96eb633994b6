/* keep.c - what becomes of a sequence's keys when its answer is over. */
#include "engine/engine.h"

void td_engine_keep(td_engine *e, td_seq *seq) {
    if (e->cache)
        td_seq_finish(seq);
}

void td_engine_note_memory(const td_engine *e, td_scheduler_stats *t) {
    t->kv_bytes = td_kv_pool_used(e->pool);
    t->kv_allocated = td_kv_pool_allocated(e->pool);
    if (!e->cache)
        return;
    td_prompt_cache_stats c = td_prompt_cache_describe(e->cache);
    t->cache_bytes = c.bytes;
    t->cache_limit = c.max_bytes;
    t->cache_pages = c.pages;
    t->cache_hits = c.hits;
    t->cache_misses = c.lookups - c.hits;
    t->cache_hit_tokens = c.tokens_hit;
    t->cache_evictions = c.evicted_pages + c.evicted_windows + c.evicted_snapshots;
}

td_status td_engine_save(td_engine *e, td_seq *seq, const char *path, uint64_t *n_tokens, uint64_t *n_bytes,
                         td_error *err) {
    (void)e, (void)seq, (void)n_tokens, (void)n_bytes;
    return td_fail(err, TD_E_NOTFOUND, "%s: there is no prompt cache to save from", path);
}

td_status td_engine_restore(td_engine *e, td_seq *seq, const char *path, uint64_t *n_tokens, uint64_t *n_bytes,
                            td_error *err) {
    (void)e, (void)seq, (void)n_tokens, (void)n_bytes;
    return td_fail(err, TD_E_NOTFOUND, "%s: there is no prompt cache to restore to", path);
}

uint64_t td_engine_erase(td_engine *e, td_seq *seq) {
    (void)e;
    return td_kv_seq_length(seq->kv);
}
