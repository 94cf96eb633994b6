/* test_round_depth.c - how deep rounds draft: never more rows than a pass may sample, sequences of a fixed depth share
 * them evenly, adaptive ones give up drafts that are never accepted and come back to them; and whatever is fed, the
 * text stays the truth's. */
#include "decode/support_decode.h"

#define N_CTX 256
#define N_SEQS 4

/* What a model must have room for, and what a decoder refuses. */
static void the_bound_is_what_a_model_needs_room_for(void **state) {
    (void)state;
    td_model_options m = {.mtp = false};
    td_decoder_options o = {.max_seqs = 64, .prefill_rows = 512, .max_depth = 8};
    td_decoder_model_options(&o, &m);
    assert_int_equal(m.max_logits, 64 * 9);
    assert_int_equal(m.max_rows, 512 + 64 * 9);
    o.max_sampled = 64;
    td_decoder_model_options(&o, &m);
    assert_int_equal(m.max_logits, 64);
    assert_int_equal(m.max_out, 64);
    assert_int_equal(m.max_rows, 512 + 64);
    assert_int_equal(m.max_tentative, 8);
    m.mtp = true;
    td_decoder_model_options(&o, &m);
    assert_int_equal(m.max_out, 512 + 64);

    stage s;
    stage_open(&s, &(stage_options){.max_seqs = N_SEQS});
    td_decoder *d;
    o = (td_decoder_options){.max_seqs = N_SEQS, .prefill_rows = 16, .max_depth = 8, .max_sampled = N_SEQS - 1};
    assert_int_equal(td_decoder_open(&d, s.f.model, NULL, s.pool, &o, NULL), TD_E_ARG);
    stage_close(&s);
}

/* ---- rounds ---- */

typedef struct bench {
    script script;
    stage s;
    truth t[N_SEQS];
    td_seq *seqs[N_SEQS];
    td_decoder *decoder;
} bench;

static void bench_open(bench *b, uint32_t max_sampled, bool adaptive, uint32_t depth) {
    script_open(&b->script, N_SEQS);
    stage_open(&b->s, &(stage_options){.max_seqs = N_SEQS, .drafter = &b->script.base});
    td_decoder_options o = {.max_seqs = N_SEQS, .prefill_rows = 64, .max_depth = 8, .max_sampled = max_sampled};
    ASSERT_OK(td_decoder_open(&b->decoder, b->s.f.model, &b->script.base, b->s.pool, &o, err));
    td_seq_params p = seq_params(120, depth);
    p.adaptive = adaptive;
    for (uint32_t i = 0; i < N_SEQS; i++) {
        td_token prompt[10];
        random_prompt(prompt, 10, i);
        truth_make(&b->t[i], &b->s, prompt, 10, &p, N_CTX);
        ASSERT_OK(td_seq_open(&b->seqs[i], b->decoder, N_CTX, err));
        seq_start(b->seqs[i], prompt, 10, &p);
        *script_of(b->seqs[i]) = (script_seq){.text = &b->t[i], .plan = plan_fixed, .n_right = 8};
        b->s.seen[i] = &b->t[i];
    }
}

static void bench_close(bench *b) {
    for (uint32_t i = 0; i < N_SEQS; i++) {
        td_seq_close(&b->seqs[i]);
        truth_free(&b->t[i]);
    }
    td_decoder_close(&b->decoder);
    stage_close(&b->s);
}

/* Rows of one round of the first n. */
static uint64_t round_rows(bench *b, uint32_t n) {
    uint64_t rows = b->s.rows;
    ASSERT_OK(td_round(b->decoder, b->seqs, n, err));
    return b->s.rows - rows;
}

static void no_pass_samples_more_than_the_bound(void **state) {
    (void)state;
    for (int adaptive = 0; adaptive < 2; adaptive++)
        for (uint32_t bound = N_SEQS; bound <= N_SEQS * 9; bound += 1 + bound / 3) {
            bench b;
            uint64_t widest = 0;
            bench_open(&b, bound, adaptive, 8);
            (void)round_rows(&b, N_SEQS); /* the prompts */
            for (int i = 0; i < 10; i++) {
                uint64_t rows = round_rows(&b, N_SEQS);
                assert_in_range(rows, N_SEQS, bound);
                widest = rows > widest ? rows : widest;
            }
            if (!adaptive)
                assert_int_equal(widest, bound);
            for (uint32_t i = 0; i < N_SEQS; i++)
                assert_memory_equal(b.seqs[i]->tokens, b.t[i].tokens, b.seqs[i]->n_tokens * sizeof(td_token));
            bench_close(&b);
        }
}

/* 7 drafts among sequences of a fixed depth of 3: 2, 2, 2 and 1. */
static void a_fixed_depth_is_shared_out_evenly(void **state) {
    (void)state;
    bench b;
    bench_open(&b, N_SEQS + 7, false, 3);
    (void)round_rows(&b, N_SEQS);
    assert_int_equal(round_rows(&b, N_SEQS), N_SEQS + 7);
    for (uint32_t i = 0; i < N_SEQS; i++)
        assert_int_equal(script_of(b.seqs[i])->longest, i < 3 ? 2 : 1);
    assert_int_equal(round_rows(&b, 2), 2 + 6); /* fewer sequences, and there is room */
    bench_close(&b);
}

/* By a real clock, so that only what no clock can change is asked: drafts that are never accepted are given up, and
 * nobody else's text or drafts are touched by it. */
static void drafts_never_accepted_are_given_up(void **state) {
    (void)state;
    bench b;
    bench_open(&b, 0, true, 8);
    for (uint32_t i = 0; i < N_SEQS; i++)
        script_of(b.seqs[i])->n_right = 0;
    uint64_t rows = 0;
    for (int i = 0; i < 100; i++) {
        uint64_t now = round_rows(&b, N_SEQS);
        rows += i >= 50 ? now - N_SEQS : 0;
    }
    if (rows > 100) /* two drafts a round, of 32 possible */
        fail_msg("%llu drafts in the last 50 rounds", (unsigned long long)rows);
    for (uint32_t i = 0; i < N_SEQS; i++)
        assert_memory_equal(b.seqs[i]->tokens, b.t[i].tokens, b.seqs[i]->n_tokens * sizeof(td_token));
    bench_close(&b);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_bound_is_what_a_model_needs_room_for),
        cmocka_unit_test(no_pass_samples_more_than_the_bound),
        cmocka_unit_test(a_fixed_depth_is_shared_out_evenly),
        cmocka_unit_test(drafts_never_accepted_are_given_up),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
