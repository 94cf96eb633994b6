/* test_gguf_vectors.c - GGUF files of every family, made from the fixtures by the rules of llama.cpp's converter and
 * loaded back: logits and hidden states within the tolerance of the published layout's own test, draft heads and the
 * assistant included, and quantised files against F32 files of the same rounded values. */
#include <sys/stat.h>
#include <unistd.h>

#include "support/fixture.h"
#include "support/gguf_convert.h"

#include "base/alloc.h"
#include "cache/kv.h"
#include "model/gemma4_assistant.h"

#define N_IDS 48
#define N_VOCAB 320
#define N_EMBD 64
#define TOLERANCE 2e-4

static const char *const models[] = {"gemma4-dense", "gemma4-ple", "gemma4-moe", "qwen35-dense", "qwen35-moe"};
#define N_MODELS (sizeof models / sizeof models[0])

static char dir[64];

static int make_dir(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "%s/tandem-gguf-XXXXXX", td_dir_exists("/dev/shm") ? "/dev/shm" : "/tmp");
    return mkdtemp(dir) ? 0 : -1;
}

static int remove_dir(void **state) {
    (void)state;
    return rmdir(dir);
}

/* ---- a model out of a GGUF file ---- */

typedef struct runner {
    fixture f;
    char path[128];
    td_kv_pool *pool;
    td_kv_seq *seq;
    uint8_t *state; /* NULL: the family has none */
    float *hidden, *logits;
} runner;

static void runner_open_as(runner *r, const char *name, const gguf_convert_options *how, td_backend *be) {
    char from[512], vectors[512];
    td_model_options o = td_model_options_default();
    o.kv_type = TD_KV_F32;
    o.page_tokens = 8;
    o.max_rows = o.max_out = o.max_logits = 64;
    o.mtp = true;
    *r = (runner){.f.be = be};
    snprintf(r->path, sizeof r->path, "%s/%s.gguf", dir, name);
    gguf_convert_with(fixture_path(name, NULL, from, sizeof from), r->path, how);
    ASSERT_OK(td_checkpoint_open(&r->f.ck, r->path, NULL, err));
    ASSERT_OK(td_model_open(&r->f.model, r->f.ck, be, &o, err));
    ASSERT_OK(
        td_safetensors_open(&r->f.vectors, fixture_path(name, "vectors.safetensors", vectors, sizeof vectors), err));
    ASSERT_OK(td_kv_pool_open(&r->pool, &r->f.model->kv, be, 0, err));
    ASSERT_OK(td_kv_seq_open(&r->seq, r->pool, 256, 8, err));
    if (r->f.model->info.state_bytes) {
        r->state = be->ops->alloc(be, r->f.model->info.state_bytes);
        r->f.model->ops->state_reset(r->f.model, r->state);
    }
    r->hidden = td_malloc_aligned(N_IDS * N_EMBD * sizeof(float));
    r->logits = td_malloc_aligned(N_IDS * N_VOCAB * sizeof(float));
}

static void runner_open(runner *r, const char *name, td_format format, bool decoded, td_backend *be) {
    runner_open_as(r, name, &(gguf_convert_options){.matrices = format, .decoded = decoded}, be);
}

static void runner_close(runner *r) {
    td_free_aligned(r->hidden);
    td_free_aligned(r->logits);
    if (r->state)
        r->f.be->ops->free(r->f.be, r->state);
    td_kv_seq_close(&r->seq);
    td_kv_pool_close(&r->pool);
    fixture_close(&r->f);
    unlink(r->path);
}

static void feed(runner *r, const int32_t *ids, uint32_t n) {
    int32_t pos[N_IDS], n_keys = (int32_t)n;
    uint32_t row_seq[N_IDS] = {0};
    ASSERT_OK(td_kv_seq_reserve(r->seq, n, err));
    for (uint32_t i = 0; i < n; i++)
        pos[i] = (int32_t)i;
    td_kv_pages tables[TD_KV_MAX_GROUPS];
    void *state = r->state;
    td_pass p = {.n_rows = n,
                 .token = ids,
                 .pos = pos,
                 .row_seq = row_seq,
                 .n_seq = 1,
                 .n_keys = &n_keys,
                 .state = &state,
                 .n_sure = &n,
                 .n_out = n,
                 .out_row = pos,
                 .hidden = r->hidden,
                 .n_logits = n,
                 .logits_out = pos,
                 .logits = r->logits};
    for (uint32_t g = 0; g < r->f.model->kv.n_groups; g++) {
        tables[g] = td_kv_seq_pages(r->seq, g);
        p.pages[g] = &tables[g];
    }
    ASSERT_OK(td_model_forward(r->f.model, &p, err));
    td_kv_seq_set_length(r->seq, n);
}

static void check(const char *what, const char *model, double worst, double allowed) {
    if (!(worst <= allowed))
        fail_msg("%s: %s differ by %g, allowed %g", model, what, worst, allowed);
}

/* ---- F32 files ---- */

#define N_HEADS (N_IDS - 1)

/* The head's rows for the tokens [N_HEADS] and the trunk's hidden states: out [N_HEADS][N_EMBD], logits
 * [N_HEADS][N_VOCAB]. */
static void run_heads(runner *r, const td_token *token, float *out, float *logits) {
    int32_t pos[N_IDS], n_keys = N_HEADS;
    uint32_t row_seq[N_IDS] = {0};
    for (int32_t i = 0; i < N_HEADS; i++)
        pos[i] = i;
    td_kv_pages table = td_kv_seq_pages(r->seq, 0);
    td_head_pass p = {.n_rows = N_HEADS,
                      .token = token,
                      .hidden = r->hidden,
                      .pos = pos,
                      .row_seq = row_seq,
                      .n_seq = 1,
                      .pages = {&table},
                      .n_keys = &n_keys,
                      .n_out = N_HEADS,
                      .out_row = pos,
                      .out = out,
                      .n_words = N_VOCAB,
                      .logits = logits};
    assert_true(r->f.model->info.has_mtp && r->f.model->info.mtp_loaded);
    ASSERT_OK(td_model_heads(r->f.model, &p, err));
}

static void check_heads(runner *r, const char *name) {
    static float out[N_HEADS * N_EMBD], logits[N_HEADS * N_VOCAB];
    run_heads(r, fixture_i32(&r->f, "input_ids", N_IDS) + 1, out, logits);
    check("hidden states of the head", name,
          max_difference(out, fixture_f32(&r->f, "mtp_hidden", N_HEADS * N_EMBD), N_HEADS * N_EMBD), TOLERANCE);
    check("logits of the head", name,
          max_difference(logits, fixture_f32(&r->f, "mtp_logits", N_HEADS * N_VOCAB), N_HEADS * N_VOCAB), TOLERANCE);
}

/* Tables of the head's own: rows of the embedding lie in reverse, so it is asked for the tokens in reverse; the words
 * have twice the trunk's weights, and so twice the vectors' logits. */
static void heads_may_have_tables_of_their_own(void **state) {
    (void)state;
    static float out[N_HEADS * N_EMBD], logits[N_HEADS * N_VOCAB];
    static const char *const names[] = {"qwen35-dense", "qwen35-moe"};
    td_backend *be = fixture_backend("cpu");
    for (size_t k = 0; k < 2; k++) {
        runner r;
        td_token token[N_HEADS];
        runner_open_as(&r, names[k], &(gguf_convert_options){.matrices = TD_FORMAT_F32, .own_tables = true}, be);
        const int32_t *ids = fixture_i32(&r.f, "input_ids", N_IDS);
        feed(&r, ids, N_IDS);
        for (size_t i = 0; i < N_HEADS; i++)
            token[i] = N_VOCAB - 1 - ids[i + 1];
        run_heads(&r, token, out, logits);
        check("hidden states of the head", names[k],
              max_difference(out, fixture_f32(&r.f, "mtp_hidden", N_HEADS * N_EMBD), N_HEADS * N_EMBD), TOLERANCE);
        for (size_t i = 0; i < N_HEADS * N_VOCAB; i++)
            logits[i] /= 2;
        check("logits of the head", names[k],
              max_difference(logits, fixture_f32(&r.f, "mtp_logits", N_HEADS * N_VOCAB), N_HEADS * N_VOCAB), TOLERANCE);
        runner_close(&r);
    }
    td_backend_close(&be);
}

/* Without a norm of its own the head has the trunk's: the vectors' rows, by one weight over the other. */
static void heads_without_a_norm_have_the_trunks(void **state) {
    (void)state;
    static float out[N_HEADS * N_EMBD], logits[N_HEADS * N_VOCAB];
    td_backend *be = fixture_backend("cpu");
    char path[512];
    td_checkpoint *published;
    float *own, *trunk;
    runner r;
    ASSERT_OK(td_checkpoint_open(&published, fixture_path("qwen35-dense", NULL, path, sizeof path), NULL, err));
    ASSERT_OK(td_model_alias_plain_names(published, err));
    ASSERT_OK(td_checkpoint_vector(published, "mtp.norm.weight", N_EMBD, &own, err));
    ASSERT_OK(td_checkpoint_vector(published, "norm.weight", N_EMBD, &trunk, err));
    runner_open_as(&r, "qwen35-dense", &(gguf_convert_options){.matrices = TD_FORMAT_F32, .no_head_norm = true}, be);
    feed(&r, fixture_i32(&r.f, "input_ids", N_IDS), N_IDS);
    run_heads(&r, fixture_i32(&r.f, "input_ids", N_IDS) + 1, out, logits);
    for (size_t i = 0; i < N_HEADS * N_EMBD; i++)
        out[i] *= (1 + own[i % N_EMBD]) / (1 + trunk[i % N_EMBD]);
    check("hidden states of the head", "qwen35-dense",
          max_difference(out, fixture_f32(&r.f, "mtp_hidden", N_HEADS * N_EMBD), N_HEADS * N_EMBD), 2 * TOLERANCE);
    runner_close(&r);
    td_free_aligned(own);
    td_free_aligned(trunk);
    td_checkpoint_close(&published);
    td_backend_close(&be);
}

static void f32_files_match_the_vectors(void **state) {
    (void)state;
    static const char *const backends[] = {"reference", "cpu"};
    for (size_t b = 0; b < 2; b++) {
        td_backend *be = fixture_backend(backends[b]);
        for (size_t i = 0; i < N_MODELS; i++) {
            runner r;
            runner_open(&r, models[i], TD_FORMAT_F32, false, be);
            const td_model_info *info = &r.f.model->info;
            feed(&r, fixture_i32(&r.f, "input_ids", N_IDS), N_IDS);
            const float *states = fixture_f32(&r.f, "hidden_states", (info->n_layers + 1) * N_IDS * N_EMBD);
            check("final hidden states", models[i],
                  max_difference(r.hidden, states + (size_t)info->n_layers * N_IDS * N_EMBD, N_IDS * N_EMBD),
                  TOLERANCE);
            check("logits", models[i],
                  max_difference(r.logits, fixture_f32(&r.f, "logits", N_IDS * N_VOCAB), N_IDS * N_VOCAB), TOLERANCE);
            assert_string_equal(info->weight_format, "f32");
            assert_int_equal(info->mtp_promised, r.state != NULL);
            if (r.state)
                check_heads(&r, models[i]);
            runner_close(&r);
        }
        td_backend_close(&be);
    }
}

/* ---- the assistant ---- */

/* Four drafts after 20 tokens, by the plain head or the clusters that the file has: the words that are scored have the
 * vectors' logits, and the vectors' drafts are the best of them. */
static void check_assistant(const char *trunk, const gguf_convert_options *how) {
    td_backend *be = fixture_backend("reference");
    runner r;
    char from[512], path[128], name[64];
    runner_open(&r, trunk, TD_FORMAT_F32, false, be);
    snprintf(path, sizeof path, "%s/assistant.gguf", dir);
    snprintf(name, sizeof name, "%s-assistant", trunk);
    gguf_convert_with(fixture_path(name, NULL, from, sizeof from), path, how);
    td_checkpoint *ck;
    td_gemma4_assistant *a;
    td_gemma4_assistant_options o = td_gemma4_assistant_options_default();
    o.window_extra = 2; /* as the library that made the vectors has it */
    ASSERT_OK(td_checkpoint_open(&ck, path, NULL, err));
    ASSERT_OK(td_gemma4_assistant_open(&a, ck, r.f.model, &o, err));
    const td_gemma4_assistant_info *info = td_gemma4_assistant_describe(a);
    assert_int_equal(info->centroids, how->clusters);
    feed(&r, fixture_i32(&r.f, "input_ids", N_IDS), 20);
    td_kv_pages tables[2] = {td_kv_seq_pages(r.seq, 0), td_kv_seq_pages(r.seq, 1)};
    td_token token = *fixture_i32(&r.f, "draft20_first_token", 1), candidate[N_VOCAB];
    const int32_t *tokens = fixture_i32(&r.f, "draft20_tokens", 4);
    int32_t pos = 20, n_keys = 20;
    for (int j = 0; j < 4; j++) {
        td_gemma4_step step = {.n = 1,
                               .token = &token,
                               .pos = &pos,
                               .pages = {&tables[0], &tables[1]},
                               .n_keys = &n_keys,
                               .hidden = r.hidden + 19 * N_EMBD,
                               .logits = r.logits,
                               .candidate = candidate};
        ASSERT_OK(td_gemma4_assistant_step(a, &step, err));
        const float *want = fixture_f32(&r.f, "draft20_logits", 4 * N_VOCAB) + (size_t)j * N_VOCAB;
        uint32_t best = 0;
        double worst = 0;
        for (uint32_t i = 0; i < info->n_candidates; i++) {
            double d = fabs((double)r.logits[i] - want[how->clusters ? candidate[i] : (td_token)i]);
            worst = d > worst || isnan(d) ? d : worst;
            best = r.logits[i] > r.logits[best] ? i : best;
        }
        check("draft logits", trunk, worst, 2 * TOLERANCE);
        token = how->clusters ? candidate[best] : (td_token)best;
        assert_int_equal(token, tokens[j]);
    }
    td_gemma4_assistant_close(&a);
    td_checkpoint_close(&ck);
    unlink(path);
    runner_close(&r);
    td_backend_close(&be);
}

static void an_assistant_file_drafts_the_same(void **state) {
    (void)state;
    check_assistant("gemma4-dense", &(gguf_convert_options){.matrices = TD_FORMAT_F32});
    check_assistant("gemma4-dense", &(gguf_convert_options){.matrices = TD_FORMAT_F32, .early = true});
}

static void clusters_of_an_assistant_file_are_used(void **state) {
    (void)state;
    check_assistant("gemma4-ple", &(gguf_convert_options){.matrices = TD_FORMAT_F32, .clusters = true});
    check_assistant("gemma4-ple", &(gguf_convert_options){.matrices = TD_FORMAT_F32, .clusters = true, .early = true});
}

/* ---- quantised files ---- */

static void quantised_files_match_their_own_values(void **state) {
    (void)state;
    static const td_format formats[] = {TD_FORMAT_Q8_0, TD_FORMAT_Q4_0, TD_FORMAT_F16};
    td_backend *be = fixture_backend("reference");
    float *want = td_malloc_aligned(N_IDS * N_VOCAB * sizeof *want);
    for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++)
        for (size_t i = 0; i < N_MODELS; i++) {
            runner r;
            runner_open(&r, models[i], formats[f], true, be);
            feed(&r, fixture_i32(&r.f, "input_ids", N_IDS), N_IDS);
            memcpy(want, r.logits, N_IDS * N_VOCAB * sizeof *want);
            double from_vectors = max_difference(want, fixture_f32(&r.f, "logits", N_IDS * N_VOCAB), N_IDS * N_VOCAB);
            assert_true(from_vectors > TOLERANCE); /* the weights were rounded */
            runner_close(&r);
            runner_open(&r, models[i], formats[f], false, be);
            assert_string_not_equal(r.f.model->info.weight_format, "f32");
            feed(&r, fixture_i32(&r.f, "input_ids", N_IDS), N_IDS);
            check("logits of a quantised file", models[i], max_difference(r.logits, want, N_IDS * N_VOCAB), 1e-6);
            runner_close(&r);
        }
    td_free_aligned(want);
    td_backend_close(&be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(f32_files_match_the_vectors),
        cmocka_unit_test(heads_may_have_tables_of_their_own),
        cmocka_unit_test(heads_without_a_norm_have_the_trunks),
        cmocka_unit_test(an_assistant_file_drafts_the_same),
        cmocka_unit_test(clusters_of_an_assistant_file_are_used),
        cmocka_unit_test(quantised_files_match_their_own_values),
    };
    return cmocka_run_group_tests(tests, make_dir, remove_dir);
}
