/* test_logprobs.c - log-probabilities against a plain computation in double, and those that a round keeps. */
#include "decode/support_decode.h"

#include <math.h>

#include "base/rng.h"
#include "decode/logprobs.h"

#define N 517

static void they_are_those_of_a_softmax(void **state) {
    (void)state;
    float logits[N];
    td_token_prob out[1 + TD_MAX_LOGPROBS];
    for (int k = 0; k < 20; k++) {
        double sum = 0, best = -INFINITY;
        for (uint32_t i = 0; i < N; i++) {
            logits[i] = i == 3 ? -INFINITY : (float)(td_rng_uniform(1, (uint64_t)k, i) * (k < 10 ? 40 : 0.1) - 20);
            if (i % 5 == 0)
                logits[i] = logits[i / 2]; /* equal ones */
            best = fmax(best, (double)logits[i]);
        }
        for (int i = 0; i < N; i++)
            sum += exp((double)logits[i] - best);
        td_logprobs(logits, N, 40 + k, TD_MAX_LOGPROBS, out);
        assert_int_equal(out[0].token, 40 + k);
        for (int i = 0; i <= TD_MAX_LOGPROBS; i++) {
            double want = (double)logits[out[i].token] - best - log(sum);
            assert_true(fabs((double)out[i].logprob - want) < 1e-5);
        }
        /* likeliest first, of equals the lower id, and nothing likelier is left out */
        for (int i = 2; i <= TD_MAX_LOGPROBS; i++)
            assert_true(out[i].logprob < out[i - 1].logprob ||
                        (out[i].logprob == out[i - 1].logprob && out[i].token > out[i - 1].token));
        int likelier = 0;
        for (int i = 0; i < N; i++)
            likelier += logits[i] > logits[out[TD_MAX_LOGPROBS].token];
        assert_true(likelier < TD_MAX_LOGPROBS);
    }
    td_logprobs(logits, N, 3, 0, out);
    assert_true(out[0].logprob == -INFINITY);
}

static void a_round_keeps_them_for_accepted_drafts_too(void **state) {
    (void)state;
    stage s;
    stage_open(&s, &(stage_options){.assistant = true});
    td_seq *seq = stage_seq(&s, 160);
    td_token prompt[25];
    random_prompt(prompt, 25, 12);
    td_seq_params p = seq_params(50, 0);
    p.sampling.temperature = 0.9f;
    p.sampling.repetition_penalty = 1.2f; /* of the draw, not of the probabilities */
    truth t = {0};
    truth_make(&t, &s, prompt, 25, &p, 160);
    td_token_prob want[4];
    for (uint32_t depth = 0; depth <= 8; depth += 4) {
        p.depth = depth;
        p.n_probs = 4;
        td_kv_seq_clear(seq->kv);
        seq_start(seq, prompt, 25, &p);
        while (!seq->finish)
            ASSERT_OK(td_round(s.decoder, &seq, 1, err));
        check_equal(seq, &t, "with log-probabilities");
        for (uint32_t i = 25; i < seq->n_tokens; i++) {
            td_logprobs(t.logits + (size_t)(i - 1) * t.n_vocab, t.n_vocab, seq->tokens[i], 3, want);
            for (int k = 0; k < 4; k++) {
                const td_token_prob *have = &seq->probs[(size_t)(i - 25) * 4 + (size_t)k];
                assert_int_equal(have->token, want[k].token);
                assert_true(have->logprob == want[k].logprob);
            }
        }
    }
    truth_free(&t);
    td_seq_close(&seq);
    stage_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(they_are_those_of_a_softmax),
        cmocka_unit_test(a_round_keeps_them_for_accepted_drafts_too),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
