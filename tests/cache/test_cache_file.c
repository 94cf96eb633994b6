/* test_cache_file.c - a conversation's pages and snapshots to disk and back: to the bit; refused when damaged in any
 * byte, cut anywhere, or of another model; and the old file intact whatever happens while a new one is written. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cache/cache_file_format.h"

#define N_VOCAB 5000
#define N_EMBD 4u
#define STATE_BYTES 96u
#define PAGE 8u
#define MOST 100u

static const td_identity id = {"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"};

/* ---- a model that has sizes and no more; keys and states are a function of the tokens before them ---- */

typedef struct stage {
    td_kv_layer layer[3];
    td_model model;
    td_kv_pool *pool;
    td_prompt_cache *cache;
} stage;

static void stage_open(stage *s, bool recurrent, uint64_t max_bytes, uint64_t pool_bytes) {
    td_error e;
    *s = (stage){.layer = {{.group = 0, .n_kv_heads = 2, .head_dim = 3},
                           {.group = 1, .n_kv_heads = 1, .head_dim = 4},
                           {.group = 1, .n_kv_heads = 1, .head_dim = 4}}};
    s->model.info.n_vocab = N_VOCAB;
    s->model.info.n_embd = N_EMBD;
    s->model.info.snapshot_bytes = recurrent ? STATE_BYTES : 0;
    s->model.kv =
        (td_kv_layout){.type = TD_KV_F32, .page_tokens = PAGE, .n_groups = 2, .group = {{.window = 12}}, .n_layers = 3};
    s->model.kv.layer = s->layer;
    td_kv_layout_finish(&s->model.kv);
    assert_int_equal(td_backend_ref_open(&s->model.be, &e), TD_OK);
    assert_int_equal(td_kv_pool_open(&s->pool, &s->model.kv, s->model.be, pool_bytes, &e), TD_OK);
    assert_int_equal(td_prompt_cache_open(&s->cache, &s->model, s->pool, max_bytes, &e), TD_OK);
}

static void stage_close(stage *s) {
    td_prompt_cache_close(&s->cache);
    assert_int_equal(td_kv_pool_used(s->pool), 0);
    td_kv_pool_close(&s->pool);
    td_backend_close(&s->model.be);
}

static uint32_t hash_tokens(const td_token *tokens, uint32_t n) {
    uint32_t h = 0x12345u;
    for (uint32_t i = 0; i < n; i++)
        h = (h ^ (uint32_t)tokens[i]) * 0x01000193u + (h >> 13);
    return h & 0x3FFFFFFFu; /* a finite float, never the poison */
}

#define POISON 0xEE

/* Writes, or compares, the row of a position in all layers. */
static void row(const stage *s, uint32_t g, uint8_t *page, const td_token *tokens, uint32_t pos, bool check) {
    const td_kv_layout *kv = &s->model.kv;
    uint32_t h = hash_tokens(tokens, pos + 1);
    for (uint32_t l = 0; l < kv->n_layers; l++)
        for (uint32_t head = 0; head < s->layer[l].n_kv_heads && s->layer[l].group == g; head++)
            for (uint32_t i = 0; i < s->layer[l].head_dim; i++)
                for (uint32_t v = 0; v < 2; v++) {
                    uint32_t value = h ^ (l << 8 | head << 5 | i << 1 | v);
                    size_t at = ((size_t)head * PAGE + pos % PAGE) * s->layer[l].head_dim + i;
                    uint8_t *p = page + (v ? s->layer[l].v_offset : s->layer[l].k_offset) + 4 * at;
                    if (check)
                        assert_memory_equal(p, &value, 4);
                    else
                        memcpy(p, &value, 4);
                }
}

static void fill(uint8_t *state, const td_token *tokens, uint32_t n) {
    for (uint32_t i = 0; i < STATE_BYTES / 4; i++)
        memcpy(state + 4 * i, &(uint32_t){hash_tokens(tokens, n) + i}, 4);
}

static void keep_snapshot(stage *s, td_cache_trail *t, const td_token *tokens, uint32_t at) {
    td_snapshot copy = {.position = at, .has_hidden = at % 2, .whole = true};
    copy.state = s->model.be->ops->alloc(s->model.be, STATE_BYTES);
    copy.hidden = td_malloc_aligned(N_EMBD * sizeof(float));
    fill(copy.state, tokens, at);
    for (uint32_t i = 0; i < N_EMBD; i++)
        copy.hidden[i] = (float)(at + i);
    assert_true(td_cache_trail_keep(t, tokens, &copy));
    if (copy.state)
        s->model.be->ops->free(s->model.be, copy.state);
    td_free_aligned(copy.hidden);
}

/* A conversation of n tokens, in passes of ten, with snapshots where there is recurrent memory. */
static void converse(stage *s, const td_token *tokens, uint32_t n) {
    td_error e;
    td_kv_seq *kv;
    td_cache_trail t;
    assert_int_equal(td_kv_seq_open(&kv, s->pool, MOST, 3, &e), TD_OK);
    td_cache_trail_open(&t, s->cache);
    for (uint32_t at = 0; at < n;) {
        uint32_t rows = n - at < 10 ? n - at : 10;
        uint32_t had = td_kv_seq_held(kv, 1);
        assert_int_equal(td_kv_seq_reserve(kv, rows, &e), TD_OK);
        for (uint32_t g = 0; g < 2; g++)
            for (uint32_t i = had; i < td_kv_seq_held(kv, 1); i++)
                memset(td_kv_seq_pages(kv, g)[i], POISON, s->model.kv.group[g].page_bytes);
        for (uint32_t pos = at; pos < at + rows; pos++)
            for (uint32_t g = 0; g < 2; g++)
                row(s, g, td_kv_seq_pages(kv, g)[pos / PAGE], tokens, pos, false);
        at += rows;
        td_kv_seq_advance(kv, at);
        td_cache_trail_follow(&t, tokens, at, kv);
        td_kv_seq_set_length(kv, at);
    }
    td_cache_trail_end(&t, tokens, n, kv);
    for (uint32_t at = 5; s->model.info.snapshot_bytes && at <= n; at += 6)
        keep_snapshot(s, &t, tokens, at);
    if (s->model.info.snapshot_bytes)
        keep_snapshot(s, &t, tokens, n);
    td_cache_trail_close(&t);
    td_kv_seq_close(&kv);
}

/* What the cache has of a prompt is what converse() wrote; returns how much that is. */
static uint32_t check_reuse(stage *s, const td_token *tokens, uint32_t n) {
    td_error e;
    td_cache_match m = td_prompt_cache_find(s->cache, tokens, n);
    if (!m.length)
        return 0;
    td_kv_seq *kv;
    td_cache_trail t;
    assert_int_equal(td_kv_seq_open(&kv, s->pool, MOST, 3, &e), TD_OK);
    td_cache_trail_open(&t, s->cache);
    td_cache_trail_adopt(&t, &m, kv);
    for (uint32_t g = 0; g < 2; g++)
        for (uint32_t pos = g == 0 && m.length > 11 ? m.length - 11 : 0; pos < m.length; pos++)
            row(s, g, td_kv_seq_pages(kv, g)[pos / PAGE], tokens, pos, true);
    if (s->model.info.snapshot_bytes) {
        uint8_t want[STATE_BYTES];
        fill(want, tokens, m.length);
        assert_memory_equal(m.state, want, STATE_BYTES);
        assert_int_equal(m.hidden != NULL, m.length % 2);
        for (uint32_t i = 0; m.hidden && i < N_EMBD; i++)
            assert_true(m.hidden[i] == (float)(m.length + i));
    }
    td_cache_trail_close(&t);
    td_kv_seq_close(&kv);
    return m.length;
}

static void count_up(td_token *t, uint32_t n, td_token from) {
    for (uint32_t i = 0; i < n; i++)
        t[i] = from + (td_token)(i * 3);
}

/* ---- a place for files ---- */

static char place[64], file_path[96], tmp_path[104];

static int set_up(void **state) {
    (void)state;
    snprintf(place, sizeof place, "/tmp/tandem-cache-XXXXXX");
    assert_non_null(mkdtemp(place));
    snprintf(file_path, sizeof file_path, "%s/chat.cache", place);
    snprintf(tmp_path, sizeof tmp_path, "%s.tmp", file_path);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    td_cache_file_step = NULL;
    unlink(file_path);
    unlink(tmp_path);
    return rmdir(place);
}

static uint8_t *read_file(const char *path, size_t *size) {
    char *data;
    td_error e;
    if (td_file_read(path, 1 << 24, &data, size, &e) != TD_OK)
        fail_msg("%s", e.message);
    return (uint8_t *)data;
}

static void save(stage *s, const td_token *tokens, uint32_t n, td_cache_file_info *info) {
    td_error e;
    if (td_prompt_cache_save(s->cache, tokens, n, file_path, &id, info, &e) != TD_OK)
        fail_msg("%s", e.message);
}

/* ---- round trips ---- */

static void what_is_read_is_what_was_written(void **state) {
    (void)state;
    for (int recurrent = 0; recurrent < 2; recurrent++)
        for (uint32_t n = 1; n < MOST; n += 11) {
            stage s;
            td_token tokens[MOST + 1], *got;
            td_cache_file_info info, again;
            td_error e;
            count_up(tokens, MOST + 1, 100);
            stage_open(&s, recurrent, 1 << 24, 0);
            converse(&s, tokens, n);
            save(&s, tokens, MOST, &info);
            assert_int_equal(info.n_tokens, n);
            uint64_t bytes = td_prompt_cache_describe(s.cache).bytes;
            stage_close(&s);
            size_t size, size2;
            uint8_t *first = read_file(file_path, &size);
            assert_int_equal(size, info.n_bytes);
            struct stat about;
            assert_int_equal(stat(file_path, &about), 0);
            assert_int_equal(about.st_mode & 0777, 0600);
            assert_false(td_file_exists(tmp_path));
            /* nothing that lies in pages behind the tokens, or between rows, gets out */
            for (size_t i = 0; i + 4 <= size; i++)
                assert_false(first[i] == POISON && first[i + 1] == POISON && first[i + 2] == POISON &&
                             first[i + 3] == POISON);

            stage_open(&s, recurrent, 1 << 24, 0); /* another process, another day */
            if (td_prompt_cache_load(s.cache, file_path, &id, &got, &again, &e) != TD_OK)
                fail_msg("%s", e.message);
            assert_int_equal(again.n_tokens, n);
            assert_int_equal(again.n_bytes, size);
            assert_memory_equal(got, tokens, n * sizeof *got);
            td_free(got);
            assert_int_equal(td_prompt_cache_describe(s.cache).bytes, bytes);
            assert_int_equal(check_reuse(&s, tokens, n), n);
            for (uint32_t split = 1; split < n; split++) {
                td_token prompt[MOST + 1];
                memcpy(prompt, tokens, sizeof prompt);
                prompt[split] = 1;
                uint32_t want = !recurrent ? split : split < 5 ? 0 : (split - 5) / 6 * 6 + 5;
                assert_int_equal(check_reuse(&s, prompt, split + 1), want);
            }
            save(&s, tokens, n, &info); /* gives the same file */
            uint8_t *second = read_file(file_path, &size2);
            assert_int_equal(size2, size);
            assert_memory_equal(second, first, size);
            td_free(first);
            td_free(second);
            /* and what is there already is not there twice */
            assert_int_equal(td_prompt_cache_load(s.cache, file_path, &id, &got, &again, &e), TD_OK);
            td_free(got);
            assert_int_equal(td_prompt_cache_describe(s.cache).bytes, bytes);
            assert_int_equal(check_reuse(&s, tokens, n), n);
            stage_close(&s);
        }
}

/* A path whose old windows are gone: they are not in the file, and not missed. */
static void windows_that_are_gone_stay_gone(void **state) {
    (void)state;
    stage s;
    td_token tokens[MOST], *got;
    td_cache_file_info info;
    td_error e;
    count_up(tokens, MOST, 100);
    stage_open(&s, false, 1 << 24, 0);
    converse(&s, tokens, 90);
    td_cache_node *x = s.cache->root->child[0];
    for (int i = 0; i < 8; i++, x = x->child[0])
        td_cache_tree_drop_windows(s.cache, x);
    save(&s, tokens, 90, &info);
    stage_close(&s);
    stage_open(&s, false, 1 << 24, 0);
    assert_int_equal(td_prompt_cache_load(s.cache, file_path, &id, &got, &info, &e), TD_OK);
    td_free(got);
    assert_int_equal(check_reuse(&s, tokens, 90), 90);
    assert_int_equal(check_reuse(&s, tokens, 64 + 11), 64 + 11);
    assert_int_equal(check_reuse(&s, tokens, 64 + 10), 0);
    stage_close(&s);
}

static void a_part_of_a_tree_is_saved_and_forgotten(void **state) {
    (void)state;
    stage s;
    td_token a[MOST], b[MOST], *got;
    td_cache_file_info info;
    td_error e;
    count_up(a, MOST, 100);
    memcpy(b, a, sizeof b);
    b[43] = 7;
    stage_open(&s, false, 1 << 24, 0);
    converse(&s, a, 60);
    converse(&s, b, 70);
    save(&s, b, 50, &info); /* no more than is asked for */
    assert_int_equal(info.n_tokens, 50);
    assert_int_equal(td_prompt_cache_forget(s.cache, b, MOST), 70 - 40); /* up to the page where they part */
    assert_int_equal(check_reuse(&s, b, 70), 43);
    assert_int_equal(check_reuse(&s, a, 60), 60);
    assert_int_equal(td_prompt_cache_forget(s.cache, a, MOST), 60);
    assert_int_equal(td_prompt_cache_describe(s.cache).bytes, 0);
    assert_int_equal(td_prompt_cache_forget(s.cache, a, MOST), 0);
    e.message[0] = 0;
    assert_int_equal(td_prompt_cache_save(s.cache, a, 60, file_path, &id, &info, &e), TD_E_NOTFOUND);
    assert_string_equal(e.message, "nothing of these 60 tokens is in the prompt cache");
    assert_int_equal(td_prompt_cache_load(s.cache, file_path, &id, &got, &info, &e), TD_OK);
    td_free(got);
    assert_int_equal(check_reuse(&s, b, 70), 50);
    stage_close(&s);
}

/* ---- damage ---- */

static td_status parse(stage *s, const uint8_t *data, size_t size, td_error *e) {
    td_token *got = (td_token *)(uintptr_t)1;
    td_cache_file_info info;
    long live = td_alloc_live();
    *e = (td_error){0};
    td_status st = td_prompt_cache_parse(s->cache, data, size, &id, &got, &info, e);
    if (st == TD_OK) {
        td_free(got);
        return st;
    }
    assert_null(got);
    assert_true(e->message[0] != 0);
    assert_int_equal(td_prompt_cache_describe(s->cache).nodes, 0);
    assert_int_equal(td_kv_pool_used(s->pool), 0);
    assert_true(td_alloc_live() <= live + 10); /* pages that wait in the pool */
    return st;
}

static uint8_t *make_file(bool recurrent, uint32_t n, size_t *size) {
    stage s;
    td_token tokens[MOST];
    td_cache_file_info info;
    count_up(tokens, MOST, 100);
    stage_open(&s, recurrent, 1 << 24, 0);
    converse(&s, tokens, n);
    save(&s, tokens, n, &info);
    stage_close(&s);
    return read_file(file_path, size);
}

static void any_damaged_byte_is_found(void **state) {
    (void)state;
    stage s;
    td_error e;
    size_t size;
    uint8_t *good = make_file(true, 20, &size), *bad = td_malloc(size + 1);
    stage_open(&s, true, 1 << 24, 0);
    for (size_t i = 0; i < size; i++)
        for (int bit = 0; bit < 8; bit += 7) {
            memcpy(bad, good, size);
            bad[i] ^= (uint8_t)(1 << bit);
            td_status st = parse(&s, bad, size, &e);
            if (st != (i >= 8 && i < 12 ? TD_E_UNSUPPORTED : TD_E_FORMAT))
                fail_msg("byte %zu of %zu damaged: %s (%s)", i, size, td_status_name(st), e.message);
            assert_true(e.position >= 0 && (uint64_t)e.position <= size);
            /* where the damage is said to be is behind it, and in the same section */
            assert_true(i < TD_CACHE_FILE_HEADER || (uint64_t)e.position > i);
        }
    for (size_t n = 0; n < size; n++)
        assert_int_equal(parse(&s, good, n, &e), TD_E_FORMAT);
    memcpy(bad, good, size);
    bad[size] = 0;
    assert_int_equal(parse(&s, bad, size + 1, &e), TD_E_FORMAT);
    assert_int_equal(parse(&s, good, size, &e), TD_OK);
    td_free(good);
    td_free(bad);
    stage_close(&s);
}

/* A header that is consistent with its checksum and with nothing else. */
static void impossible_headers_are_refused(void **state) {
    (void)state;
    static const struct {
        uint32_t n_tokens, n_pages, n_snapshots;
        const char *message;
    } cases[] = {
        {0, 0, 0, "counts of tokens and pages"},
        {20, 2, 0, "counts of tokens and pages"},
        {20, 4, 0, "counts of tokens and pages"},
        {0x7FFFFFFF, 0x10000000, 0, "counts of tokens and pages"},
        {0xFFFFFFFF, 0x20000000, 0, "counts of tokens and pages"},
        {20, 3, 21, "count of snapshots"},
        {20, 3, 0xFFFFFFFF, "count of snapshots"},
        {24, 3, 1, "checksum of its tokens"},
        {20, 3, 1, "something follows"}, /* there are four */
        {20, 3, 5, "ends too early"},
    };
    stage s;
    td_error e;
    size_t size;
    uint8_t *file = make_file(true, 20, &size), head[TD_CACHE_FILE_HEADER];
    td_crc32c crc;
    td_crc32c_init(&crc);
    stage_open(&s, true, 1 << 24, 0);
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_cache_file_header h = td_cache_file_header_of(s.cache, &id);
        h.n_tokens = cases[i].n_tokens;
        h.n_pages = cases[i].n_pages;
        h.n_snapshots = cases[i].n_snapshots;
        h.file_bytes = size;
        td_cache_file_put_header(&h, head, &crc);
        memcpy(file, head, sizeof head);
        assert_int_equal(parse(&s, file, size, &e), TD_E_FORMAT);
        if (!strstr(e.message, cases[i].message))
            fail_msg("case %zu: %s", i, e.message);
    }
    td_free(file);
    stage_close(&s);
}

static void files_of_other_models_are_refused(void **state) {
    (void)state;
    stage s;
    td_error e;
    size_t size;
    td_token *got;
    td_cache_file_info info;
    td_identity other = id;
    other.text[0] = 'f';
    td_free(make_file(true, 20, &size));
    stage_open(&s, true, 1 << 24, 0);
    assert_int_equal(td_prompt_cache_load(s.cache, file_path, &other, &got, &info, &e), TD_E_MODEL);
    char want[300];
    snprintf(want, sizeof want,
             "%s: saved by another model, or by this one run in another way (its mark is 0123456789abcdef..., expected "
             "f123456789abcdef...)",
             file_path);
    assert_string_equal(e.message, want);
    stage_close(&s);
    stage_open(&s, false, 1 << 24, 0); /* the same mark, but other sizes */
    assert_int_equal(td_prompt_cache_load(s.cache, file_path, &id, &got, &info, &e), TD_E_MODEL);
    s.model.kv.group[0].window = 13;
    assert_int_equal(td_prompt_cache_load(s.cache, file_path, &id, &got, &info, &e), TD_E_MODEL);
    stage_close(&s);
    stage_open(&s, true, 1 << 24, 0);
    s.model.info.n_vocab = 150; /* tokens that it has no words for */
    assert_int_equal(td_prompt_cache_load(s.cache, file_path, &id, &got, &info, &e), TD_E_FORMAT);
    assert_non_null(strstr(e.message, "outside the vocabulary"));
    stage_close(&s);
}

/* ---- limits ---- */

static void what_does_not_fit_is_refused_whole(void **state) {
    (void)state;
    stage s;
    td_error e;
    size_t size;
    td_token *got, tokens[MOST];
    td_cache_file_info info;
    uint8_t *file = make_file(true, 90, &size);
    td_free(file);
    count_up(tokens, MOST, 100);
    stage_open(&s, true, size / 2, 0);
    assert_int_equal(td_prompt_cache_load(s.cache, file_path, &id, &got, &info, &e), TD_E_LIMIT);
    assert_non_null(strstr(e.message, "of the prompt cache, which holds"));
    assert_int_equal(td_kv_pool_used(s.pool), 0);
    stage_close(&s);
    stage_open(&s, true, 1 << 24, size / 3);
    assert_int_equal(td_prompt_cache_load(s.cache, file_path, &id, &got, &info, &e), TD_E_LIMIT);
    assert_non_null(strstr(e.message, "keys and values need more"));
    assert_null(got);
    assert_int_equal(td_kv_pool_used(s.pool), 0);
    stage_close(&s);
}

static void memory_that_fails_leaves_nothing(void **state) {
    (void)state;
    td_token tokens[MOST], *got;
    td_cache_file_info info;
    size_t size;
    count_up(tokens, MOST, 100);
    td_free(make_file(true, 30, &size));
    for (int saving = 0; saving < 2; saving++)
        for (long k = 0;; k++) {
            stage s;
            td_error e;
            long before = td_alloc_live();
            stage_open(&s, true, 1 << 24, 0);
            if (saving)
                converse(&s, tokens, 30);
            td_alloc_fail_at(k);
            td_status st = saving ? td_prompt_cache_save(s.cache, tokens, 30, file_path, &id, &info, &e)
                                  : td_prompt_cache_load(s.cache, file_path, &id, &got, &info, &e);
            bool failed = td_alloc_failed();
            td_alloc_fail_at(-1);
            if (st == TD_OK && !saving) {
                assert_int_equal(check_reuse(&s, tokens, 40), 30);
                td_free(got);
            }
            if (st != TD_OK)
                assert_true(failed && e.message[0]);
            stage_close(&s);
            assert_int_equal(td_alloc_live(), before);
            stage_open(&s, true, 1 << 24, 0); /* the file is whole in any case */
            assert_int_equal(td_prompt_cache_load(s.cache, file_path, &id, &got, &info, &e), TD_OK);
            td_free(got);
            stage_close(&s);
            if (!failed)
                break;
        }
}

/* ---- what can happen while writing ---- */

static long steps_left;

static bool fails_then(const char *what) {
    (void)what;
    return steps_left-- != 0;
}

static bool dies_then(const char *what) {
    (void)what;
    if (steps_left-- == 0)
        _exit(9);
    return true;
}

/* The file holds the old conversation or the new one, whole. */
static uint32_t holds(const td_token *old, const td_token *new_) {
    stage s;
    td_error e;
    td_token *got;
    td_cache_file_info info;
    stage_open(&s, true, 1 << 24, 0);
    if (td_prompt_cache_load(s.cache, file_path, &id, &got, &info, &e) != TD_OK)
        fail_msg("%s", e.message);
    bool is_old = got[0] == old[0];
    assert_memory_equal(got, is_old ? old : new_, info.n_tokens * sizeof *got);
    assert_int_equal(check_reuse(&s, got, info.n_tokens), info.n_tokens);
    td_free(got);
    stage_close(&s);
    return info.n_tokens;
}

static void any_failing_step_leaves_the_old_file(void **state) {
    (void)state;
    td_token old[MOST], new_[MOST];
    count_up(old, MOST, 100);
    count_up(new_, MOST, 2000);
    stage s;
    td_cache_file_info info;
    td_error e;
    stage_open(&s, true, 1 << 24, 0);
    converse(&s, old, 40);
    converse(&s, new_, 50);
    save(&s, old, 40, &info);
    for (long k = 0;; k++) {
        steps_left = k;
        td_cache_file_step = fails_then;
        td_status st = td_prompt_cache_save(s.cache, new_, 50, file_path, &id, &info, &e);
        td_cache_file_step = NULL;
        assert_false(td_file_exists(tmp_path));
        if (st == TD_OK) {
            assert_true(k > 20);
            break;
        }
        assert_int_equal(st, TD_E_IO);
        assert_non_null(strstr(e.message, "Input/output error"));
        uint32_t n = holds(old, new_);
        assert_true(n == 40 || strstr(e.message, "durable")); /* the new one may be in place, but not for sure */
    }
    assert_int_equal(holds(old, new_), 50);
    stage_close(&s);
}

static void any_death_leaves_a_whole_file(void **state) {
    (void)state;
    td_token old[MOST], new_[MOST];
    count_up(old, MOST, 100);
    count_up(new_, MOST, 2000);
    stage s;
    td_cache_file_info info;
    stage_open(&s, true, 1 << 24, 0);
    converse(&s, old, 40);
    converse(&s, new_, 50);
    uint32_t kept_old = 0;
    for (long k = 0, done = 0; !done; k++) {
        save(&s, old, 40, &info); /* also over what the dead have left */
        assert_false(td_file_exists(tmp_path));
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            td_error e;
            steps_left = k;
            td_cache_file_step = dies_then;
            _exit(td_prompt_cache_save(s.cache, new_, 50, file_path, &id, &info, &e) == TD_OK ? 0 : 1);
        }
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFEXITED(how));
        done = WEXITSTATUS(how) == 0;
        assert_true(done || WEXITSTATUS(how) == 9);
        kept_old += holds(old, new_) == 40;
        assert_true(!done || holds(old, new_) == 50);
    }
    assert_true(kept_old > 20);
    stage_close(&s);
}

static void a_full_disk_leaves_the_old_file(void **state) {
    (void)state;
    td_token old[MOST], new_[MOST];
    count_up(old, MOST, 100);
    count_up(new_, MOST, 2000);
    stage s;
    td_cache_file_info info;
    stage_open(&s, true, 1 << 24, 0);
    converse(&s, old, 40);
    converse(&s, new_, 50);
    save(&s, new_, 50, &info);
    uint64_t size = info.n_bytes;
    save(&s, old, 40, &info);
    for (uint64_t room = 0; room < size; room += 509) {
        fflush(NULL);
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            td_error e;
            signal(SIGXFSZ, SIG_IGN);
            setrlimit(RLIMIT_FSIZE, &(struct rlimit){room, room});
            td_status st = td_prompt_cache_save(s.cache, new_, 50, file_path, &id, &info, &e);
            _exit(st == TD_E_IO && strstr(e.message, strerror(EFBIG)) ? 0 : 1);
        }
        int how;
        assert_int_equal(waitpid(child, &how, 0), child);
        assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
        assert_false(td_file_exists(tmp_path));
        assert_int_equal(holds(old, new_), 40);
    }
    stage_close(&s);
}

static void two_writers_do_not_mix(void **state) {
    (void)state;
    td_token tokens[MOST];
    count_up(tokens, MOST, 100);
    stage s;
    td_cache_file_info info;
    td_error e;
    stage_open(&s, false, 1 << 24, 0);
    converse(&s, tokens, 40);
    save(&s, tokens, 40, &info);
    int fd = open(tmp_path, O_RDWR | O_CREAT, 0600);
    assert_true(fd >= 0 && flock(fd, LOCK_EX) == 0);
    assert_int_equal(write(fd, "half", 4), 4);
    assert_int_equal(td_prompt_cache_save(s.cache, tokens, 40, file_path, &id, &info, &e), TD_E_IO);
    assert_non_null(strstr(e.message, "another is writing it"));
    assert_int_equal(lseek(fd, 0, SEEK_END), 4); /* untouched */
    close(fd);
    save(&s, tokens, 40, &info);
    stage_close(&s);
}

static void paths_that_are_no_files_are_refused(void **state) {
    (void)state;
    td_token tokens[MOST], *got;
    count_up(tokens, MOST, 100);
    stage s;
    td_cache_file_info info;
    td_error e;
    char path[160];
    stage_open(&s, false, 1 << 24, 0);
    converse(&s, tokens, 40);
    snprintf(path, sizeof path, "%s/none/chat.cache", place);
    assert_int_equal(td_prompt_cache_save(s.cache, tokens, 40, path, &id, &info, &e), TD_E_IO);
    assert_int_equal(td_prompt_cache_load(s.cache, path, &id, &got, &info, &e), TD_E_NOTFOUND);
    assert_int_equal(td_prompt_cache_load(s.cache, place, &id, &got, &info, &e), TD_E_IO);
    assert_int_equal(mkfifo(file_path, 0600), 0);
    assert_int_equal(td_prompt_cache_load(s.cache, file_path, &id, &got, &info, &e), TD_E_IO);
    assert_non_null(strstr(e.message, "not a regular file"));
    unlink(file_path);
    assert_int_equal(symlink("elsewhere", tmp_path), 0); /* a link is not followed */
    assert_int_equal(td_prompt_cache_save(s.cache, tokens, 40, file_path, &id, &info, &e), TD_E_IO);
    unlink(tmp_path);
    assert_int_equal(mkdir(file_path, 0700), 0); /* nor is a directory replaced */
    assert_int_equal(td_prompt_cache_save(s.cache, tokens, 40, file_path, &id, &info, &e), TD_E_IO);
    assert_false(td_file_exists(tmp_path));
    assert_int_equal(rmdir(file_path), 0);
    stage_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_read_is_what_was_written, set_up, tear_down),
        cmocka_unit_test_setup_teardown(windows_that_are_gone_stay_gone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_part_of_a_tree_is_saved_and_forgotten, set_up, tear_down),
        cmocka_unit_test_setup_teardown(any_damaged_byte_is_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(impossible_headers_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(files_of_other_models_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_does_not_fit_is_refused_whole, set_up, tear_down),
        cmocka_unit_test_setup_teardown(memory_that_fails_leaves_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(any_failing_step_leaves_the_old_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(any_death_leaves_a_whole_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_full_disk_leaves_the_old_file, set_up, tear_down),
        cmocka_unit_test_setup_teardown(two_writers_do_not_mix, set_up, tear_down),
        cmocka_unit_test_setup_teardown(paths_that_are_no_files_are_refused, set_up, tear_down),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
