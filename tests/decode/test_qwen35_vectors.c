/* test_qwen35_vectors.c - the Qwen 3.5 trunk and its draft head against vectors that Hugging Face transformers computed
 * in float32: logits and final hidden states at every position, greedy text, the head's rows, and four recursive drafts
 * after 5, 20 and 40 tokens; on every backend, and with the prompt cut into passes of 1, 7, 16 and all rows. */
#include "support/qwen35.h"

#define TOLERANCE 2e-4

static const char *const trunks[] = {"qwen35-dense", "qwen35-moe"};
static const char *const backends[] = {"reference", "generic", "avx2", "avx512"};
static const uint32_t chunks[] = {1, 7, 16, N_IDS};

static void check(const char *what, const char *model, const char *backend, uint32_t chunk, double worst) {
    if (worst > TOLERANCE)
        fail_msg("%s, %s, passes of %u rows: %s differ by %g, allowed %g", model, backend, chunk, what, worst,
                 TOLERANCE);
}

static void check_logits(runner *r, const char *name, const char *backend) {
    const int32_t *ids = fixture_i32(&r->f, "input_ids", N_IDS);
    uint32_t layers = r->f.model->info.n_layers;
    const float *states = fixture_f32(&r->f, "hidden_states", (size_t)(layers + 1) * N_IDS * N_EMBD);
    const float *final = fixture_f32(&r->f, "final_hidden", N_IDS * N_EMBD);
    const float *logits = fixture_f32(&r->f, "logits", N_IDS * N_VOCAB);
    assert_memory_equal(states + (size_t)layers * N_IDS * N_EMBD, final, N_IDS * N_EMBD * sizeof(float));
    for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
        runner_clear(r);
        runner_feed(r, ids, N_IDS, chunks[c]);
        check("final hidden states", name, backend, chunks[c], max_difference(r->hidden, final, N_IDS * N_EMBD));
        check("logits", name, backend, chunks[c], max_difference(r->logits, logits, N_IDS * N_VOCAB));
    }
}

static void check_greedy(runner *r) {
    const int32_t *prompt = fixture_i32(&r->f, "greedy_prompt", 20);
    const int32_t *want = fixture_i32(&r->f, "greedy_tokens", 48);
    runner_clear(r);
    runner_feed(r, prompt, 20, 7);
    int32_t next = argmax(r->logits + 19 * N_VOCAB, N_VOCAB);
    for (int i = 0; i < 48; i++) {
        assert_int_equal(next, want[i]);
        runner_feed(r, &next, 1, 1);
        next = argmax(r->logits, N_VOCAB);
    }
}

/* Rows of true hidden states, in passes of `chunk`. */
static void check_head_rows(runner *r, const char *name, const char *backend) {
    const int32_t *ids = fixture_i32(&r->f, "input_ids", N_IDS);
    const float *hidden = fixture_f32(&r->f, "mtp_hidden", (N_IDS - 1) * N_EMBD);
    const float *logits = fixture_f32(&r->f, "mtp_logits", (N_IDS - 1) * N_VOCAB);
    runner_clear(r);
    runner_feed(r, ids, N_IDS, 16);
    for (size_t c = 0; c < sizeof chunks / sizeof chunks[0]; c++) {
        for (uint32_t at = 0; at < N_IDS - 1; at += chunks[c]) {
            uint32_t n = N_IDS - 1 - at < chunks[c] ? N_IDS - 1 - at : chunks[c];
            runner_heads(r, ids + at + 1, r->hidden + (size_t)at * N_EMBD, at, n, n,
                         r->head_hidden + (size_t)at * N_EMBD, r->head_logits + (size_t)at * N_VOCAB);
        }
        check("hidden states of the head", name, backend, chunks[c],
              max_difference(r->head_hidden, hidden, (N_IDS - 1) * N_EMBD));
        check("logits of the head", name, backend, chunks[c],
              max_difference(r->head_logits, logits, (N_IDS - 1) * N_VOCAB));
    }
}

static void check_drafts(runner *r, const char *name, const char *backend) {
    const int32_t *ids = fixture_i32(&r->f, "input_ids", N_IDS);
    static const uint32_t lengths[] = {5, 20, 40};
    for (size_t i = 0; i < 3; i++) {
        uint32_t n = lengths[i];
        char key[32];
        snprintf(key, sizeof key, "draft%u_first_token", n);
        int32_t token = *fixture_i32(&r->f, key, 1);
        snprintf(key, sizeof key, "draft%u_tokens", n);
        const int32_t *tokens = fixture_i32(&r->f, key, 4);
        snprintf(key, sizeof key, "draft%u_logits", n);
        const float *want = fixture_f32(&r->f, key, 4 * N_VOCAB);

        runner_clear(r);
        runner_feed(r, ids, n, 16);
        assert_int_equal(argmax(r->logits + (size_t)(n - 1) * N_VOCAB, N_VOCAB), token);
        runner_heads(r, ids + 1, r->hidden, 0, n - 1, 0, NULL, NULL); /* K and V only */
        ASSERT_OK(td_kv_seq_reserve(r->seq, 4, err));
        const float *hidden = r->hidden + (size_t)(n - 1) * N_EMBD;
        for (uint32_t j = 0; j < 4; j++) {
            float *out = r->head_hidden + (size_t)j * N_EMBD;
            runner_heads(r, &token, hidden, n - 1 + j, 1, 1, out, r->head_logits);
            check("draft logits", name, backend, n,
                  max_difference(r->head_logits, want + (size_t)j * N_VOCAB, N_VOCAB));
            token = argmax(r->head_logits, N_VOCAB);
            assert_int_equal(token, tokens[j]);
            hidden = out;
        }
    }
}

static void on_backend(const char *backend) {
    td_backend *be = fixture_backend(backend);
    if (!be)
        skip();
    td_model_options o = runner_options();
    for (size_t i = 0; i < sizeof trunks / sizeof trunks[0]; i++) {
        runner r;
        runner_open(&r, trunks[i], be, &o);
        check_logits(&r, trunks[i], backend);
        check_greedy(&r);
        check_head_rows(&r, trunks[i], backend);
        check_drafts(&r, trunks[i], backend);
        runner_close(&r);
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
