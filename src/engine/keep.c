/* keep.c - what becomes of a sequence's keys when its answer is over. */
#include <stdio.h>

#include "base/alloc.h"
#include "cache/cache_file.h"
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

static td_status need_cache(const td_engine *e, td_error *err) {
    return e->cache ? TD_OK : td_fail(err, TD_E_NOTFOUND, "there is no prompt cache (its size is 0)");
}

static td_status identify(td_identity *id, const td_engine *e, td_error *err) {
    char settings[80];
    snprintf(settings, sizeof settings, "isa=%s float_activations=%d", e->info.isa, e->float_activations);
    return td_model_identity(id, e->ck, e->model, settings, err);
}

td_status td_engine_save(td_engine *e, td_seq *seq, const char *path, uint64_t *n_tokens, uint64_t *n_bytes,
                         td_error *err) {
    td_identity id;
    td_cache_file_info info;
    TD_TRY(need_cache(e, err));
    TD_TRY(identify(&id, e, err));
    TD_TRY(td_prompt_cache_save(e->cache, seq->tokens, seq->n_tokens, path, &id, &info, err));
    *n_tokens = info.n_tokens;
    *n_bytes = info.n_bytes;
    return TD_OK;
}

td_status td_engine_restore(td_engine *e, td_seq *seq, const char *path, uint64_t *n_tokens, uint64_t *n_bytes,
                            td_error *err) {
    td_identity id;
    td_cache_file_info info;
    td_token *tokens;
    TD_TRY(need_cache(e, err));
    TD_TRY(identify(&id, e, err));
    TD_TRY(td_prompt_cache_load(e->cache, path, &id, &tokens, &info, err));
    td_status st = td_seq_recall(seq, tokens, info.n_tokens, err);
    td_free(tokens);
    *n_tokens = info.n_tokens;
    *n_bytes = info.n_bytes;
    return st;
}

uint64_t td_engine_erase(td_engine *e, td_seq *seq) {
    uint64_t n = seq->n_tokens;
    if (e->cache)
        td_prompt_cache_forget(e->cache, seq->tokens, seq->n_tokens);
    (void)!td_seq_recall(seq, NULL, 0, NULL); /* nothing always fits */
    return n;
}
