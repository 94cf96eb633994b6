/* qwen35.h - runs passes of a Qwen 3.5 fixture: the trunk with its recurrent state, and the draft head. Static
 * functions, as in fixture.h. */
#ifndef TD_TESTS_QWEN35_H
#define TD_TESTS_QWEN35_H

#include "support/fixture.h"

#include "base/alloc.h"
#include "cache/kv.h"

#define N_IDS 48
#define N_VOCAB 320
#define N_EMBD 64

static inline td_model_options runner_options(void) {
    td_model_options o = td_model_options_default();
    o.kv_type = TD_KV_F32;
    o.page_tokens = 8;
    o.max_rows = o.max_out = o.max_logits = 64;
    o.max_tentative = 8;
    o.mtp = true;
    return o;
}

typedef struct runner {
    fixture f; /* vectors NULL when opened by path */
    td_kv_pool *pool;
    td_kv_seq *seq;
    uint8_t *state;
    uint32_t n_commit;      /* rows of the log that the next feed commits */
    float *hidden, *logits; /* of the last feed: a row an id */
    float *head_hidden, *head_logits;
} runner;

static inline void runner_start(runner *r) {
    td_model *m = r->f.model;
    ASSERT_OK(td_kv_pool_open(&r->pool, &m->kv, m->be, 0, err));
    ASSERT_OK(td_kv_seq_open(&r->seq, r->pool, 512, 16, err));
    r->state = m->be->ops->alloc(m->be, m->info.state_bytes);
    assert_non_null(r->state);
    m->ops->state_reset(m, r->state);
    r->hidden = td_malloc_aligned(N_IDS * 2 * N_EMBD * sizeof(float));
    r->logits = td_malloc_aligned(N_IDS * 2 * N_VOCAB * sizeof(float));
    r->head_hidden = td_malloc_aligned(N_IDS * N_EMBD * sizeof(float));
    r->head_logits = td_malloc_aligned(N_IDS * N_VOCAB * sizeof(float));
}

static inline void runner_open(runner *r, const char *name, td_backend *be, const td_model_options *o) {
    *r = (runner){0};
    fixture_open(&r->f, name, be, o);
    runner_start(r);
}

static inline void runner_open_path(runner *r, const char *path, td_backend *be, const td_model_options *o) {
    *r = (runner){.f.be = be};
    ASSERT_OK(td_checkpoint_open(&r->f.ck, path, NULL, err));
    ASSERT_OK(td_model_open(&r->f.model, r->f.ck, be, o, err));
    runner_start(r);
}

static inline void runner_close(runner *r) {
    td_free_aligned(r->hidden);
    td_free_aligned(r->logits);
    td_free_aligned(r->head_hidden);
    td_free_aligned(r->head_logits);
    r->f.be->ops->free(r->f.be, r->state);
    td_kv_seq_close(&r->seq);
    td_kv_pool_close(&r->pool);
    fixture_close(&r->f);
}

static inline void runner_clear(runner *r) {
    td_kv_seq_clear(r->seq);
    r->f.model->ops->state_reset(r->f.model, r->state);
    r->n_commit = 0;
}

/* One pass of n rows after what the sequence holds, the first n_sure of them sure; outputs at hidden and logits. The
 * length becomes that of the sure rows: the caller adds what it keeps of the others, and sets n_commit. */
static inline void runner_pass(runner *r, const int32_t *ids, uint32_t n, uint32_t n_sure, float *hidden, float *logits,
                               const td_mark *mark, uint32_t n_marks) {
    int32_t pos[64], out[64];
    uint32_t row_seq[64] = {0}, length = td_kv_seq_length(r->seq);
    ASSERT_OK(td_kv_seq_reserve(r->seq, n, err));
    for (uint32_t i = 0; i < n; i++) {
        pos[i] = (int32_t)(length + i);
        out[i] = (int32_t)i;
    }
    int32_t n_keys = (int32_t)(length + n);
    td_kv_pages table = td_kv_seq_pages(r->seq, 0);
    void *state = r->state;
    td_pass p = {.n_rows = n,
                 .token = ids,
                 .pos = pos,
                 .row_seq = row_seq,
                 .n_seq = 1,
                 .pages = {&table},
                 .n_keys = &n_keys,
                 .state = &state,
                 .n_sure = &n_sure,
                 .n_commit = &r->n_commit,
                 .mark = mark,
                 .n_marks = n_marks,
                 .n_out = n,
                 .out_row = out,
                 .hidden = hidden,
                 .n_logits = n,
                 .logits_out = out,
                 .logits = logits};
    ASSERT_OK(td_model_forward(r->f.model, &p, err));
    td_kv_seq_set_length(r->seq, length + n_sure);
    r->n_commit = 0;
}

/* Feeds ids after what the sequence holds, `chunk` rows a pass, and keeps every row's outputs. */
static inline void runner_feed(runner *r, const int32_t *ids, uint32_t n, uint32_t chunk) {
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t rows = n - at < chunk ? n - at : chunk;
        runner_pass(r, ids + at, rows, rows, r->hidden + (size_t)at * N_EMBD, r->logits + (size_t)at * N_VOCAB, NULL,
                    0);
    }
}

/* Head rows at positions first..first+n-1; the last n_out guess, into out and logits. */
static inline void runner_heads(runner *r, const int32_t *token, const float *hidden, uint32_t first, uint32_t n,
                                uint32_t n_out, float *out, float *logits) {
    int32_t pos[64], out_row[64];
    uint32_t row_seq[64] = {0};
    for (uint32_t i = 0; i < n; i++)
        pos[i] = (int32_t)(first + i);
    for (uint32_t i = 0; i < n_out; i++)
        out_row[i] = (int32_t)(n - n_out + i);
    int32_t n_keys = (int32_t)(first + n);
    td_kv_pages table = td_kv_seq_pages(r->seq, 0);
    td_head_pass p = {.n_rows = n,
                      .token = token,
                      .hidden = hidden,
                      .pos = pos,
                      .row_seq = row_seq,
                      .n_seq = 1,
                      .pages = {&table},
                      .n_keys = &n_keys,
                      .n_out = n_out,
                      .out_row = out_row,
                      .out = out,
                      .n_words = N_VOCAB,
                      .logits = logits};
    ASSERT_OK(td_model_heads(r->f.model, &p, err));
}

/* The first n K and V rows of a layer, in two sequences over equal layouts (f32). */
static inline void assert_same_keys(const td_kv_layout *kv, uint32_t layer, const td_kv_seq *x, const td_kv_seq *y,
                                    uint32_t n) {
    const td_kv_layer *l = &kv->layer[layer];
    td_kv_pages px = td_kv_seq_pages(x, l->group), py = td_kv_seq_pages(y, l->group);
    size_t row = l->head_dim * sizeof(float);
    for (uint32_t pos = 0; pos < n; pos++)
        for (uint32_t h = 0; h < l->n_kv_heads; h++) {
            size_t page = pos / kv->page_tokens, at = ((size_t)h * kv->page_tokens + pos % kv->page_tokens) * row;
            if (memcmp(px[page] + l->k_offset + at, py[page] + l->k_offset + at, row) != 0 ||
                memcmp(px[page] + l->v_offset + at, py[page] + l->v_offset + at, row) != 0)
                fail_msg("layer %u: the keys or values of position %u differ", layer, pos);
        }
}

static inline int32_t argmax(const float *x, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (int32_t)best;
}

#endif
