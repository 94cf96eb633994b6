/* test_round_quantised.c - exactness on quantised trunks: the fixtures with every matrix in MLX's affine format, fused
 * or split experts, drafted for by an assistant of any width. A quantised kernel meets activations of its own kind,
 * block by block, so it has to be as row-invariant as the plain ones. */
#include "decode/support_decode.h"
#include "support/rewrite.h"

#define N_CTX 160
#define N_NEW 16

static const char *const fixtures[] = {"gemma4-dense", "gemma4-ple", "gemma4-moe"};
static const char *const backends[] = {"reference", "generic", "avx2", "avx512"};

static void exact(stage *s, const char *what) {
    static const uint32_t lengths[] = {1, 12, 13, 25, 40, 65};
    td_seq *seq = stage_seq(s, N_CTX);
    for (uint32_t i = 0; i < 6; i++) {
        td_token prompt[N_CTX];
        td_seq_params p = seq_params(N_NEW, 0);
        p.sampling.temperature = i % 2 ? 0.8f : 0;
        p.sampling.seed = i;
        truth t;
        random_prompt(prompt, lengths[i], 300 + i);
        truth_make(&t, s, prompt, lengths[i], &p, N_CTX);
        static const uint32_t depths[] = {0, 2, 8};
        for (uint32_t d = 0; d < 3; d++) {
            td_kv_seq_clear(seq->kv);
            p.depth = depths[d];
            seq_start(seq, prompt, lengths[i], &p);
            stage_play(s, seq, &t);
        }
        truth_free(&t);
    }
    td_seq_close(&seq);
    if (s->rows_compared < 150)
        fail_msg("%s: only %llu rows were compared", what, (unsigned long long)s->rows_compared);
}

/* A quantised copy of each fixture at each width; the assistant's width goes round, and so does its head. */
static void exact_on(const char *backend, bool float_activations) {
    static const unsigned widths[] = {8, 4}, assistants[] = {16, 8, 4};
    for (uint32_t f = 0; f < 3; f++)
        for (uint32_t b = 0; b < 2; b++) {
            rewrite w;
            rewrite_open(&w, fixtures[f]);
            assert_true(rewrite_quantize(&w, widths[b], 32) > 20);
            stage s;
            bool have = stage_open(&s, &(stage_options){.fixture = fixtures[f],
                                                        .path = rewrite_save(&w),
                                                        .backend = backend,
                                                        .float_activations = float_activations,
                                                        .kv = b ? TD_KV_F32 : TD_KV_BF16,
                                                        .prefill_rows = b ? 7 : 64,
                                                        .assistant = true,
                                                        .bits = assistants[(f + b) % 3],
                                                        .full_head = b});
            if (!have) {
                rewrite_close(&w);
                skip();
            }
            assert_int_equal(s.f.model->info.weight_bits, widths[b]);
            exact(&s, backend);
            stage_close(&s);
            rewrite_close(&w);
        }
}

static void exact_on_reference(void **state) {
    (void)state;
    exact_on(backends[0], false);
}

static void exact_on_generic(void **state) {
    (void)state;
    exact_on(backends[1], false);
    exact_on(backends[1], true);
}

static void exact_on_avx2(void **state) {
    (void)state;
    exact_on(backends[2], false);
    exact_on(backends[2], true);
}

static void exact_on_avx512(void **state) {
    (void)state;
    exact_on(backends[3], false);
    exact_on(backends[3], true);
}

/* Widths that are no power of two, group 64, whatever the machine's best kernels are. */
static void odd_widths_are_exact(void **state) {
    (void)state;
    static const unsigned widths[] = {2, 3, 5, 6};
    for (uint32_t b = 0; b < 4; b++) {
        rewrite w;
        rewrite_open(&w, "gemma4-dense");
        rewrite_quantize(&w, widths[b], 64); /* rows of 96 stay as they are */
        stage s;
        stage_open(&s, &(stage_options){.path = rewrite_save(&w), .assistant = true, .bits = 8});
        exact(&s, "odd widths");
        stage_close(&s);
        rewrite_close(&w);
    }
}

/* bf16 and f16 files: the published form. */
static void half_width_files_are_exact(void **state) {
    (void)state;
    for (uint32_t f = 0; f < 3; f++)
        for (int half = 0; half < 2; half++) {
            rewrite w;
            rewrite_open(&w, fixtures[f]);
            for (size_t i = 0; i < w.n; i++) {
                td_tensor *t = &w.tensor[i];
                size_t n = t->size / 4;
                uint16_t *x = rewrite_keep(&w, td_malloc(n * 2));
                for (size_t j = 0; j < n; j++) {
                    float v;
                    memcpy(&v, t->data + 4 * j, 4);
                    x[j] = half ? td_f32_to_f16(v) : td_f32_to_bf16(v);
                }
                t->data = (const uint8_t *)x;
                t->size = n * 2;
                t->dtype = half ? TD_DTYPE_F16 : TD_DTYPE_BF16;
            }
            json_object_set_new(w.config, "dtype", json_string(half ? "float16" : "bfloat16"));
            stage s;
            stage_open(
                &s, &(stage_options){.fixture = fixtures[f], .path = rewrite_save(&w), .assistant = true, .bits = 4});
            assert_int_equal(s.f.model->info.weight_bits, 16);
            exact(&s, half ? "f16" : "bf16");
            stage_close(&s);
            rewrite_close(&w);
        }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_on_reference),   cmocka_unit_test(exact_on_generic),
        cmocka_unit_test(exact_on_avx2),        cmocka_unit_test(exact_on_avx512),
        cmocka_unit_test(odd_widths_are_exact), cmocka_unit_test(half_width_files_are_exact),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
