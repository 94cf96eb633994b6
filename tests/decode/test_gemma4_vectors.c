/* test_gemma4_vectors.c - the Gemma 4 trunk and its assistant against vectors that Hugging Face transformers computed
 * in float32: logits and hidden states at every position, greedy text, and four recursive drafts after 5, 20 and 40
 * tokens; on every backend, and with the prompt cut into passes of 1, 7, 16 and all rows. */
#include "support/fixture.h"

#include "base/alloc.h"
#include "cache/kv.h"
#include "model/gemma4_assistant.h"

#define N_IDS 48
#define N_VOCAB 320
#define N_EMBD 64
#define TOLERANCE 2e-4

static const char *const trunks[] = {"gemma4-dense", "gemma4-ple", "gemma4-moe"};
static const char *const backends[] = {"reference", "generic", "avx2", "avx512"};
static const uint32_t chunks[] = {1, 7, 16, N_IDS};

static td_model_options model_options(void) {
    td_model_options o = td_model_options_default();
    o.kv_type = TD_KV_F32;
    o.page_tokens = 8;
    o.max_rows = o.max_out = o.max_logits = 64;
    return o;
}

typedef struct runner {
    fixture f;
    td_kv_pool *pool;
    td_kv_seq *seq;
    float *hidden, *logits; /* of the last feed: a row an id */
} runner;

static void runner_open(runner *r, const char *name, td_backend *be) {
    td_model_options o = model_options();
    fixture_open(&r->f, name, be, &o);
    ASSERT_OK(td_kv_pool_open(&r->pool, &r->f.model->kv, be, 0, err));
    ASSERT_OK(td_kv_seq_open(&r->seq, r->pool, 256, 8, err));
    r->hidden = td_malloc_aligned(N_IDS * 2 * N_EMBD * sizeof(float));
    r->logits = td_malloc_aligned(N_IDS * 2 * N_VOCAB * sizeof(float));
}

static void runner_close(runner *r) {
    td_free_aligned(r->hidden);
    td_free_aligned(r->logits);
    td_kv_seq_close(&r->seq);
    td_kv_pool_close(&r->pool);
    fixture_close(&r->f);
}

/* Feeds ids after what the sequence holds, `chunk` rows a pass, and keeps every row's outputs. */
static void feed(runner *r, const int32_t *ids, uint32_t n, uint32_t chunk) {
    for (uint32_t at = 0; at < n; at += chunk) {
        uint32_t rows = n - at < chunk ? n - at : chunk;
        int32_t pos[64], out[64];
        uint32_t row_seq[64] = {0};
        uint32_t length = td_kv_seq_length(r->seq);
        ASSERT_OK(td_kv_seq_reserve(r->seq, rows, err));
        for (uint32_t i = 0; i < rows; i++) {
            pos[i] = (int32_t)(length + i);
            out[i] = (int32_t)i;
        }
        int32_t n_keys = (int32_t)(length + rows);
        td_kv_pages tables[2] = {td_kv_seq_pages(r->seq, 0), td_kv_seq_pages(r->seq, 1)};
        td_pass p = {.n_rows = rows,
                     .token = ids + at,
                     .pos = pos,
                     .row_seq = row_seq,
                     .n_seq = 1,
                     .pages = {&tables[0], &tables[1]},
                     .n_keys = &n_keys,
                     .n_out = rows,
                     .out_row = out,
                     .hidden = r->hidden + (size_t)at * N_EMBD,
                     .n_logits = rows,
                     .logits_out = out,
                     .logits = r->logits + (size_t)at * N_VOCAB};
        ASSERT_OK(td_model_forward(r->f.model, &p, err));
        td_kv_seq_set_length(r->seq, length + rows);
    }
}

static int32_t argmax(const float *x, uint32_t n) {
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (x[i] > x[best])
            best = i;
    return (int32_t)best;
}

static void check(const char *what, const char *model, const char *backend, uint32_t chunk, double worst) {
    if (worst > TOLERANCE)
        fail_msg("%s, %s, passes of %u rows: %s differ by %g, allowed %g", model, backend, chunk, what, worst,
                 TOLERANCE);
}

static void check_logits(const char *name, const char *backend, td_backend *be) {
    runner r;
    runner_open(&r, name, be);
    const int32_t *ids = fixture_i32(&r.f, "input_ids", N_IDS);
    uint32_t layers = r.f.model->info.n_layers;
    const float *states = fixture_f32(&r.f, "hidden_states", (size_t)(layers + 1) * N_IDS * N_EMBD);
    const float *logits = fixture_f32(&r.f, "logits", N_IDS * N_VOCAB);
    for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
        td_kv_seq_clear(r.seq);
        feed(&r, ids, N_IDS, chunks[c]);
        check("final hidden states", name, backend, chunks[c],
              max_difference(r.hidden, states + (size_t)layers * N_IDS * N_EMBD, N_IDS * N_EMBD));
        check("logits", name, backend, chunks[c], max_difference(r.logits, logits, N_IDS * N_VOCAB));
    }
    runner_close(&r);
}

static void check_greedy(const char *name, td_backend *be) {
    runner r;
    runner_open(&r, name, be);
    const int32_t *prompt = fixture_i32(&r.f, "greedy_prompt", 20);
    const int32_t *want = fixture_i32(&r.f, "greedy_tokens", 48);
    feed(&r, prompt, 20, 7);
    int32_t next = argmax(r.logits + 19 * N_VOCAB, N_VOCAB);
    for (int i = 0; i < 48; i++) {
        assert_int_equal(next, want[i]);
        feed(&r, &next, 1, 1);
        next = argmax(r.logits, N_VOCAB);
    }
    runner_close(&r);
}

static const float *tensor_f32(const td_safetensors *file, const char *key, size_t n) {
    const td_tensor *t = td_safetensors_find(file, key);
    if (!t || t->dtype != TD_DTYPE_F32 || t->size != n * sizeof(float))
        fail_msg("%s is not %zu floats", key, n);
    return (const float *)(const void *)t->data;
}

/* Drafts feed back into themselves through attention of scale 1, which within four steps amplifies float32 rounding to
 * 1e-3 of a logit: the vectors' own drafts are off by that much from the same computation in double precision
 * (drafts_f64.safetensors, tools/gemma4_drafts_f64.py). So a draft is held to the doubles, within the tolerance plus
 * what the float32 vectors themselves lose at that step. transformers' own window for the drafter is inclusive: W + 1
 * stored keys (gemma4_assistant.h). */
static void check_drafts(const char *name, const char *backend, td_backend *be) {
    runner r;
    char assistant_name[64], path[512], key[32];
    runner_open(&r, name, be);
    snprintf(assistant_name, sizeof assistant_name, "%s-assistant", name);
    td_checkpoint *ck;
    td_gemma4_assistant *a;
    ASSERT_OK(td_checkpoint_open(&ck, fixture_path(assistant_name, NULL, path, sizeof path), NULL, err));
    td_gemma4_assistant_options o = td_gemma4_assistant_options_default();
    o.window_extra = 2;
    ASSERT_OK(td_gemma4_assistant_open(&a, ck, r.f.model, &o, err));
    td_safetensors *doubles;
    ASSERT_OK(td_safetensors_open(&doubles, fixture_path(name, "drafts_f64.safetensors", path, sizeof path), err));
    uint32_t n_candidates = td_gemma4_assistant_describe(a)->n_candidates;
    float *logits = td_malloc_aligned(n_candidates * sizeof(float));
    td_token *candidate = td_calloc(n_candidates, sizeof *candidate);
    const int32_t *ids = fixture_i32(&r.f, "input_ids", N_IDS);
    static const uint32_t lengths[] = {5, 20, 40};
    for (size_t i = 0; i < 3; i++) {
        uint32_t n = lengths[i];
        snprintf(key, sizeof key, "draft%u_first_token", n);
        int32_t first = *fixture_i32(&r.f, key, 1);
        snprintf(key, sizeof key, "draft%u_tokens", n);
        const int32_t *tokens = fixture_i32(&r.f, key, 4);
        snprintf(key, sizeof key, "draft%u_logits", n);
        const float *want = fixture_f32(&r.f, key, 4 * N_VOCAB), *exact = tensor_f32(doubles, key, 4 * N_VOCAB);
        snprintf(key, sizeof key, "draft%u_hidden", n);
        const float *last_hidden = tensor_f32(doubles, key, N_EMBD);
        const float *f32_hidden = fixture_f32(&r.f, key, N_EMBD);

        td_kv_seq_clear(r.seq);
        feed(&r, ids, n, 16);
        assert_int_equal(argmax(r.logits + (size_t)(n - 1) * N_VOCAB, N_VOCAB), first);
        float *hidden = r.hidden + (size_t)(n - 1) * N_EMBD;
        td_kv_pages tables[2] = {td_kv_seq_pages(r.seq, 0), td_kv_seq_pages(r.seq, 1)};
        int32_t pos = (int32_t)n, n_keys = (int32_t)n;
        td_token token = first;
        for (int j = 0; j < 4; j++) {
            td_gemma4_step step = {.n = 1,
                                   .token = &token,
                                   .pos = &pos,
                                   .pages = {&tables[0], &tables[1]},
                                   .n_keys = &n_keys,
                                   .hidden = hidden,
                                   .logits = logits,
                                   .candidate = candidate};
            ASSERT_OK(td_gemma4_assistant_step(a, &step, err));
            bool centroids = td_gemma4_assistant_describe(a)->centroids;
            double worst = 0, lost = 0;
            for (uint32_t c = 0; c < n_candidates; c++) {
                size_t at = (size_t)j * N_VOCAB + (size_t)(centroids ? candidate[c] : (int32_t)c);
                double d = fabs((double)logits[c] - exact[at]), rounding = fabs((double)want[at] - exact[at]);
                worst = d > worst || isnan(d) ? d : worst;
                lost = rounding > lost ? rounding : lost;
            }
            check("draft logits", name, backend, n, worst - lost);
            int32_t best = argmax(logits, n_candidates);
            token = centroids ? candidate[best] : best;
            assert_int_equal(token, tokens[j]);
        }
        check("recycled hidden", name, backend, n,
              max_difference(hidden, last_hidden, N_EMBD) - max_difference(f32_hidden, last_hidden, N_EMBD));
    }
    td_free_aligned(logits);
    td_free(candidate);
    td_safetensors_close(&doubles);
    td_gemma4_assistant_close(&a);
    td_checkpoint_close(&ck);
    runner_close(&r);
}

static void on_backend(const char *backend) {
    td_backend *be = fixture_backend(backend);
    if (!be)
        skip();
    for (size_t i = 0; i < sizeof trunks / sizeof trunks[0]; i++) {
        check_logits(trunks[i], backend, be);
        check_greedy(trunks[i], be);
        check_drafts(trunks[i], backend, be);
    }
    td_backend_close(&be);
}

static void matches_on_reference(void **state) {
    (void)state;
    on_backend(backends[0]);
}

static void matches_on_generic(void **state) {
    (void)state;
    on_backend(backends[1]);
}

static void matches_on_avx2(void **state) {
    (void)state;
    on_backend(backends[2]);
}

static void matches_on_avx512(void **state) {
    (void)state;
    on_backend(backends[3]);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(matches_on_reference),
        cmocka_unit_test(matches_on_generic),
        cmocka_unit_test(matches_on_avx2),
        cmocka_unit_test(matches_on_avx512),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
