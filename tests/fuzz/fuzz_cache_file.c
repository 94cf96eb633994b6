/* fuzz_cache_file.c - libFuzzer target of saved prompt caches.
 *
 * The input has no checksums: they are put where the reader will look for them, so that what it does behind them is
 * reached. What is accepted can be saved again; what is not leaves the cache, the pool and the heap as they were.
 *   fuzz_cache_file -max_total_time=60 <scratch corpus> tests/fuzz/fuzz_cache_file.seeds */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "cache/cache_file_format.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const td_identity id = {"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"};

typedef struct stage {
    td_kv_layer layer[2];
    td_model model;
    td_kv_pool *pool;
    td_prompt_cache *cache;
    td_crc32c crc;
} stage;

static void open_stage(stage *s, bool recurrent) {
    td_error e;
    *s = (stage){.layer = {{.group = 0, .n_kv_heads = 1, .head_dim = 1}, {.group = 1, .n_kv_heads = 1, .head_dim = 1}}};
    s->model.info.n_vocab = 1000;
    s->model.info.n_embd = 1;
    s->model.info.snapshot_bytes = recurrent ? 8 : 0;
    s->model.kv =
        (td_kv_layout){.type = TD_KV_F32, .page_tokens = 8, .n_groups = 2, .group = {{.window = 12}}, .n_layers = 2};
    s->model.kv.layer = s->layer;
    td_kv_layout_finish(&s->model.kv);
    td_crc32c_init(&s->crc);
    if (td_backend_ref_open(&s->model.be, &e) != TD_OK ||
        td_kv_pool_open(&s->pool, &s->model.kv, s->model.be, 1 << 20, &e) != TD_OK ||
        td_prompt_cache_open(&s->cache, &s->model, s->pool, 1 << 20, &e) != TD_OK)
        abort();
}

static void close_stage(stage *s) {
    td_prompt_cache_close(&s->cache);
    if (td_kv_pool_used(s->pool) != 0)
        abort();
    td_kv_pool_close(&s->pool);
    td_backend_close(&s->model.be);
}

/* Checks a section of n bytes, if it and its check are within the file; returns where the next begins. */
static size_t seal(const stage *s, uint8_t *file, size_t size, size_t at, size_t n, uint32_t section) {
    if (at > size || n > size - at || size - at - n < 4)
        return size + 1;
    td_cache_put_u32(file + at + n, td_crc32c_add(&s->crc, td_cache_file_begin_check(&s->crc, section), file + at, n));
    return at + n + 4;
}

/* The first six bytes are counts; the rest is the file behind its header. */
static size_t make_file(const stage *s, uint8_t *file, const uint8_t *data, size_t size) {
    td_cache_file_header h = td_cache_file_header_of(s->cache, &id);
    h.n_tokens = data[0] | (uint32_t)(data[1] & 3) << 8;
    h.n_pages = data[2] == 0xFF ? data[3] : (h.n_tokens + 7) / 8;
    h.n_snapshots = data[4];
    h.file_bytes = TD_CACHE_FILE_HEADER + size - 6 - (data[5] & 1);
    td_cache_file_put_header(&h, file, &s->crc);
    memcpy(file + TD_CACHE_FILE_HEADER, data + 6, size - 6);
    size_t total = TD_CACHE_FILE_HEADER + size - 6, at = TD_CACHE_FILE_HEADER;
    const uint8_t *windows = file + at + 4 * (size_t)h.n_tokens;
    uint32_t section = 1;
    at = seal(s, file, total, at, 4 * (size_t)h.n_tokens + h.n_pages, section++);
    for (uint32_t i = 0; i < h.n_pages && at <= total; i++)
        for (uint32_t g = windows[i] ? 0 : 1; g < 2; g++)
            at = seal(s, file, total, at, h.group[g].page_bytes, section++);
    for (uint32_t i = 0; i < h.n_snapshots && at + 8 <= total; i++)
        at = seal(s, file, total, at, 8 + h.snapshot_bytes + (file[at + 4] ? 4 : 0), section++);
    return total;
}

static void check_accepted(stage *s, const td_token *tokens, const td_cache_file_info *info) {
    td_cache_match m = td_prompt_cache_find(s->cache, tokens, info->n_tokens);
    if (m.length > info->n_tokens || (!m.state && s->model.info.snapshot_bytes && m.length))
        abort();
    for (uint32_t i = 0; i < info->n_tokens; i++)
        if (tokens[i] < 0 || tokens[i] >= 1000)
            abort();
    if (td_prompt_cache_forget(s->cache, tokens, info->n_tokens) != info->n_tokens)
        abort();
}

static void try_file(stage *s, const uint8_t *file, size_t size) {
    td_token *tokens;
    td_cache_file_info info;
    td_error e = {0};
    td_status st = td_prompt_cache_parse(s->cache, file, size, &id, &tokens, &info, &e);
    if (st == TD_OK)
        check_accepted(s, tokens, &info);
    else if (tokens || !e.message[0])
        abort();
    td_free(tokens);
    if (td_prompt_cache_describe(s->cache).bytes != 0 || td_kv_pool_used(s->pool) != 0)
        abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    long live = td_alloc_live();
    if (size < 7 || size > 1 << 16)
        return 0;
    stage s;
    open_stage(&s, data[6] & 1);
    uint8_t *file = malloc(TD_CACHE_FILE_HEADER + size);
    if (!file)
        abort();
    size_t n = make_file(&s, file, data, size);
    try_file(&s, file, n);
    try_file(&s, data, size); /* and as it is */
    free(file);
    close_stage(&s);
    if (td_alloc_live() != live)
        abort();
    return 0;
}
