/* test_round.c - exactness: whatever drafts, however deep, and however the prompt is cut into passes, the text, the
 * logits and the hidden states are those of plain decoding, one row a pass (support_decode.h), bit for bit.
 *
 * The prompts are random ids; their lengths lie around the sliding window (12), the borders of pages (8) and the sizes
 * of passes. */
#include "decode/support_decode.h"
#include "support/sanitized.h"

#define N_CTX 700
#define N_NEW 20

static const uint32_t lengths[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12, 13, 14,  15,  16,  17,  18,
                                   19, 20, 21, 22, 23, 24, 25, 26, 27, 30, 31, 32, 33, 36,  39,  40,  41,  47,
                                   48, 49, 55, 56, 57, 60, 62, 63, 64, 65, 66, 71, 72, 100, 128, 150, 511, 513};
#define N_PROMPTS (sizeof lengths / sizeof lengths[0])
static const char *const fixtures[] = {"gemma4-dense", "gemma4-ple", "gemma4-moe"};
static const uint32_t prefills[] = {1, 7, 64, 512};

enum { GREEDY, GREEDY_PENALISED, SAMPLED, SAMPLED_FILTERED, N_VARIANTS };

static td_seq_params variant_params(int variant, uint64_t seed) {
    td_seq_params p = seq_params(N_NEW, 0);
    p.sampling.seed = seed;
    p.sampling.temperature = variant >= SAMPLED ? 0.8f : 0;
    if (variant == GREEDY_PENALISED || variant == SAMPLED_FILTERED) {
        p.sampling.repetition_penalty = 1.2f;
        p.sampling.presence_penalty = 0.3f;
        p.sampling.frequency_penalty = 0.2f;
    }
    if (variant == SAMPLED_FILTERED) {
        p.sampling.top_k = 40;
        p.sampling.top_p = 0.95f;
        p.sampling.min_p = 0.01f;
    }
    return p;
}

/* One prompt at every given depth, and once at depths that the clock chooses. */
static uint64_t exact_at_depths(stage *s, uint32_t i, int variant, const uint32_t *depths, size_t n_depths) {
    td_token prompt[600];
    random_prompt(prompt, lengths[i], i);
    td_seq_params p = variant_params(variant, 1000 + i);
    truth t;
    truth_make(&t, s, prompt, lengths[i], &p, N_CTX);
    td_seq *seq = stage_seq(s, N_CTX);
    uint64_t accepted = 0;
    for (size_t d = 0; d <= n_depths; d++) {
        td_kv_seq_clear(seq->kv); /* or the keys of the depth before would be reused */
        p.adaptive = d == n_depths;
        p.depth = p.adaptive ? 8 : depths[d];
        seq_start(seq, prompt, lengths[i], &p);
        stage_play(s, seq, &t);
        for (uint32_t j = 0; j < TD_MAX_DRAFT; j++)
            accepted += seq->stats.accepted_at[j];
    }
    td_seq_close(&seq);
    truth_free(&t);
    return accepted;
}

/* Every prompt (or every `step`-th) in every variant, its prefill size and three of its depths by turns, so that each
 * of depth x variant x prefill size occurs; and depth 0, as a round. */
static void sweep(const char *name, td_kv_type kv, bool random_weights, uint32_t step) {
    step *= TD_SANITIZED ? 3 : 1;
    uint64_t accepted = 0, compared = 0;
    for (uint32_t c = 0; c < 4; c++) {
        stage s;
        stage_open(&s, &(stage_options){.fixture = name,
                                        .kv = kv,
                                        .prefill_rows = prefills[c],
                                        .assistant = true,
                                        .random_weights = random_weights});
        for (uint32_t i = c; i < N_PROMPTS; i += 4 * step)
            for (int v = 0; v < N_VARIANTS; v++) {
                uint32_t turn = i / 4 + (uint32_t)v;
                const uint32_t depths[] = {0, 1 + turn % 8, 1 + (turn + 3) % 8, 1 + (turn + 6) % 8};
                accepted += exact_at_depths(&s, i, v, depths, 4);
            }
        compared += s.rows_compared;
        stage_close(&s);
    }
    assert_true(compared > N_PROMPTS / step * N_VARIANTS * 4 * N_NEW / 2);
    if (!random_weights)
        assert_true(accepted > 0);
}

static void dense_is_exact(void **state) {
    (void)state;
    sweep(fixtures[0], TD_KV_BF16, false, 1);
    sweep(fixtures[0], TD_KV_F32, false, 2);
}

static void per_layer_inputs_are_exact(void **state) {
    (void)state;
    sweep(fixtures[1], TD_KV_BF16, false, 1);
    sweep(fixtures[1], TD_KV_F32, false, 2);
}

static void experts_are_exact(void **state) {
    (void)state;
    sweep(fixtures[2], TD_KV_BF16, false, 1);
    sweep(fixtures[2], TD_KV_F32, false, 2);
}

static void a_drafter_of_random_weights_changes_nothing(void **state) {
    (void)state;
    sweep(fixtures[1], TD_KV_BF16, true, 2);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(dense_is_exact),
        cmocka_unit_test(per_layer_inputs_are_exact),
        cmocka_unit_test(experts_are_exact),
        cmocka_unit_test(a_drafter_of_random_weights_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
