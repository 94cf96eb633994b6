/* test_round_gguf.c - exactness on GGUF files of the common mixtures: Q4_K, Q5_K and Q6_K with what llama.cpp puts in
 * their place for rows that are no multiple of 256, Q5_0 and Q8_0.
 *
 * The fixtures are too narrow for blocks of 256, so wider copies are made: 256 wide, with feed-forward layers of 512
 * and experts of 96 inputs, random weights. The file goes through td_checkpoint_open and td_model_load, so the rounds
 * read packed matrices. Drafts are right or wrong as told (support_decode.h); every row of every round has the bits of
 * plain decoding. */
#include "decode/support_decode.h"
#include "support/gguf_convert.h"
#include "support/rewrite.h"
#include "support/sanitized.h"

#include "base/rng.h"

#define N_CTX 96
#define N_NEW 24

static uint64_t wider(uint64_t n) {
    return n == 64 ? 256 : n == 96 ? 512 : n == 128 ? 512 : n == 24 ? 96 : n == 48 ? 192 : n;
}

/* A tensor of the wider model: vectors repeat themselves, matrices are drawn. */
static void widen(rewrite *w, td_tensor *t, uint64_t stream) {
    const uint64_t n_old = t->dim[t->n_dims - 1];
    const bool keys = strstr(t->name, "k_proj") || strstr(t->name, "v_proj"); /* as many heads as before */
    uint64_t n = 1;
    for (int i = 0; i < t->n_dims; i++) {
        t->dim[i] = keys && i == 0 ? t->dim[i] : wider(t->dim[i]);
        n *= t->dim[i];
    }
    float *to = rewrite_keep(w, td_calloc(n, sizeof *to));
    const float reach = sqrtf(3.0f / (float)t->dim[t->n_dims - 1]);
    for (uint64_t i = 0; i < n; i++)
        if (t->n_dims == 1)
            to[i] = ((const float *)(const void *)t->data)[i % n_old];
        else
            to[i] = (float)(2 * td_rng_uniform(stream, i, 0) - 1) * reach;
    assert_int_equal(t->dtype, TD_DTYPE_F32);
    t->data = (const uint8_t *)to;
    t->size = n * sizeof *to;
}

static void widen_model(rewrite *w) {
    static const char *const fields[] = {"hidden_size", "intermediate_size", "moe_intermediate_size"};
    for (size_t i = 0; i < w->n; i++)
        if (w->tensor[i].dim[0] > 1 || w->tensor[i].n_dims > 1)
            widen(w, &w->tensor[i], i);
    json_t *text = rewrite_text(w);
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; i++) {
        const json_t *old = json_object_get(text, fields[i]);
        if (json_is_integer(old))
            json_object_set_new(text, fields[i], json_integer((json_int_t)wider((uint64_t)json_integer_value(old))));
    }
    const json_int_t heads = json_integer_value(json_object_get(text, "num_attention_heads"));
    json_object_set_new(text, "num_attention_heads", json_integer(4 * heads));
}

static void check_depths(stage *s, script *d, uint64_t stream) {
    td_token prompt[N_CTX];
    td_seq *seq = stage_seq(s, N_CTX);
    td_seq_params p = seq_params(N_NEW, 0);
    truth t;
    p.sampling.temperature = stream % 2 ? 0.8f : 0;
    p.sampling.seed = stream;
    random_prompt(prompt, 21, stream);
    truth_make(&t, s, prompt, 21, &p, N_CTX);
    for (uint32_t depth = 0; depth <= 4; depth++)
        for (uint32_t right = 0; right <= depth; right += depth > 2 ? 2 : 1) {
            td_kv_seq_clear(seq->kv);
            *script_of(seq) = (script_seq){.text = &t, .plan = plan_fixed, .n_right = right};
            p.depth = depth;
            seq_start(seq, prompt, 21, &p);
            stage_play(s, seq, &t);
        }
    (void)d;
    truth_free(&t);
    td_seq_close(&seq);
}

static void check_file(const char *path, const char *backend, const char *format) {
    script d;
    stage s;
    script_open(&d, 1);
    if (!stage_open(&s, &(stage_options){.path = path, .backend = backend, .threads = 2, .drafter = &d.base}))
        return;
    ASSERT_OK(td_model_load(s.f.model, NULL, NULL, err));
    assert_string_equal(s.f.model->info.weight_format, format);
    for (uint64_t stream = 0; stream < 2; stream++)
        check_depths(&s, &d, stream);
    assert_true(s.rows_compared > 200);
    stage_close(&s);
}

static void drafted_text_is_plain_text(void **state) {
    (void)state;
    static const char *const fixtures[] = {"gemma4-dense", "gemma4-moe"};
    static const char *const backends[] = {"generic", "avx2", "avx512", "cpu"};
    enum { N_BACKENDS = sizeof backends / sizeof backends[0] };
    static const struct {
        td_format format;
        const char *name;
    } formats[] = {
        {TD_FORMAT_Q4_K, "q4_k"}, {TD_FORMAT_Q5_K, "q5_k"}, {TD_FORMAT_Q6_K, "q6_k"}, {TD_FORMAT_Q5_0, "q5_0"}};
    for (size_t m = 0; m < 2; m++) {
        rewrite w;
        char path[128];
        rewrite_open(&w, fixtures[m]);
        widen_model(&w);
        rewrite_save(&w);
        for (size_t f = 0; f < sizeof formats / sizeof formats[0]; f++) {
            snprintf(path, sizeof path, "%s/model.gguf", w.dir);
            gguf_convert(w.dir, path, formats[f].format);
            for (size_t b = 0; b < N_BACKENDS; b++)
                if (!TD_SANITIZED || b == (f + m) % N_BACKENDS) /* there each file meets one of them */
                    check_file(path, backends[b], formats[f].name);
            unlink(path);
        }
        rewrite_close(&w);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(drafted_text_is_plain_text)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
