/* test_qwen35_reuse.c - what a sequence with recurrent memory keeps from one prompt to the next: for every place where
 * prompts part, with and without snapshots, after cuts and failures, text and state are those of a cold run. */
#include "support/qwen35_stage.h"

static const char *const fixtures[] = {"qwen35-dense", "qwen35-moe"};

static uint32_t answer(stage *s, td_seq *seq, const td_token *prompt, uint32_t n, td_seq_params p) {
    truth t;
    truth_make(&t, s, prompt, n, &p);
    ASSERT_OK(td_seq_start(seq, prompt, n, &p, err));
    uint32_t reused = seq->n_reused;
    if (reused) {
        /* what is kept is right before anything is computed */
        assert_int_equal(td_kv_seq_length(seq->kv), reused);
        check_sequence(s, seq, &t);
    }
    stage_play(s, seq, &t);
    truth_free(&t);
    return reused;
}

/* Snapshots lie at page boundaries inside the first prompt, before its last token, and at the end of its answer. */
static void prompts_that_part_anywhere(void **state) {
    (void)state;
    enum { N = 37, NEW = 9 };
    static const int snapshots[] = {8, 1, -1};
    for (size_t f = 0; f < 2; f++)
        for (size_t k = 0; k < 3; k++)
            for (uint32_t prefill = 5; prefill <= 64; prefill += 59) {
                stage s;
                stage_open(&s, (stage_options){.fixture = fixtures[f],
                                               .heads = true,
                                               .prefill_rows = prefill,
                                               .n_snapshots = snapshots[k]});
                for (uint32_t split = 0; split <= N + NEW; split++) {
                    td_seq *seq = stage_seq(&s);
                    td_token first[N], second[N + NEW + 10];
                    random_tokens(first, N, 1);
                    assert_int_equal(answer(&s, seq, first, N, plain_params(NEW, 4)), 0);
                    uint32_t length = td_kv_seq_length(seq->kv);
                    random_tokens(second, N + NEW + 10, 2 + split);
                    memcpy(second, seq->tokens, split * sizeof *second);
                    if (split < N + NEW && second[split] == seq->tokens[split])
                        second[split] = (second[split] + 1) % N_VOCAB;
                    uint32_t reused = answer(&s, seq, second, split + 3, sampled_params(8, 3, split));
                    assert_true(reused <= split);
                    if (split >= length)
                        assert_int_equal(reused, length); /* the live state goes on */
                    else if (snapshots[k] == 8) {
                        uint32_t page = split / 8 * 8; /* passes of 64 rows mark the last boundary only */
                        uint32_t least = prefill == 64 ? (split >= N - 1 ? N - 1
                                                          : split >= 32  ? 32
                                                                         : 0)
                                                       : (split >= N - 1 ? N - 1 : page);
                        assert_true(reused + (prefill == 5 ? 8 : 0) >= least);
                    } else if (snapshots[k] < 0)
                        assert_int_equal(reused, 0);
                    second[split + 2] = (second[split + 2] + 1) % N_VOCAB; /* no copy of the first may be left */
                    answer(&s, seq, second, split + 4, plain_params(6, 2));
                    td_seq_close(&seq);
                }
                stage_close(&s);
            }
}

static void the_same_prompt_again(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++)
        for (uint32_t n = 1; n < 20; n++) {
            stage s;
            stage_open(&s, (stage_options){.fixture = fixtures[f], .heads = true});
            td_seq *seq = stage_seq(&s);
            td_token prompt[20];
            random_tokens(prompt, n, n);
            assert_int_equal(answer(&s, seq, prompt, n, plain_params(7, 3)), 0);
            assert_int_equal(answer(&s, seq, prompt, n, sampled_params(9, 3, 1)), n - 1);
            assert_int_equal(answer(&s, seq, prompt, n, sampled_params(9, 2, 2)), n - 1);
            td_seq_close(&seq);
            stage_close(&s);
        }
}

/* A conversation: each prompt is all that was said, and a little more; then its last message is written anew. */
static void conversations_go_on(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        stage s;
        stage_open(&s, (stage_options){.fixture = fixtures[f], .heads = true, .n_snapshots = 8});
        td_seq *seq = stage_seq(&s);
        td_token prompt[STAGE_CTX];
        uint32_t n = 10;
        random_tokens(prompt, n, 50);
        for (uint32_t turn = 0; turn < 6; turn++) {
            uint32_t had = td_kv_seq_length(seq->kv);
            assert_int_equal(answer(&s, seq, prompt, n, plain_params(11, 4)), had);
            memcpy(prompt, seq->tokens, seq->n_tokens * sizeof *prompt);
            n = seq->n_tokens;
            random_tokens(prompt + n, 5, turn);
            n += 5;
        }
        uint32_t had = td_kv_seq_length(seq->kv);
        assert_int_equal(answer(&s, seq, prompt, n, plain_params(3, 4)), had);
        assert_true((had + 1) / 8 == had / 8); /* no page ends between the end of the answer, where a copy is, and: */
        prompt[had + 1] = (prompt[had + 1] + 1) % N_VOCAB;
        assert_int_equal(answer(&s, seq, prompt, n, plain_params(3, 4)), had);
        td_seq_close(&seq);
        stage_close(&s);
    }
}

/* After any round the text is cut at any place; what is left goes on as a prompt of its own would. */
static void cuts_anywhere(void **state) {
    (void)state;
    enum { N = 13, NEW = 20 };
    for (size_t f = 0; f < 2; f++)
        for (int heads = 0; heads < 2; heads++)
            for (uint32_t rounds = 1; rounds <= 4; rounds++)
                for (uint32_t cut = N; cut <= N + NEW; cut++) {
                    stage s;
                    truth t;
                    oracle o = oracle_new(1, oracle_fixed);
                    stage_open(
                        &s, (stage_options){.fixture = fixtures[f], .heads = heads, .drafter = heads ? NULL : &o.base});
                    td_token prompt[N + NEW + 8];
                    random_tokens(prompt, N, 9);
                    td_seq_params p = plain_params(NEW, 5);
                    truth_make(&t, &s, prompt, N, &p);
                    o.text = &t;
                    o.n_right = 4;
                    td_seq *seq = stage_seq(&s);
                    ASSERT_OK(td_seq_start(seq, prompt, N, &p, err));
                    uint32_t before = 0;
                    for (uint32_t i = 0; i < rounds && !seq->finish; i++) {
                        before = td_kv_seq_length(seq->kv);
                        ASSERT_OK(td_round(s.decoder, &seq, 1, err));
                    }
                    if (cut <= seq->n_tokens) {
                        uint32_t known = before + 1; /* what the last round was sure of */
                        td_seq_cut(seq, cut, TD_FINISH_STOP);
                        assert_int_equal(seq->n_tokens, cut);
                        check_sequence(&s, seq, &t);
                        if (rounds > 1 && cut > known)
                            assert_int_equal(td_kv_seq_length(seq->kv), cut - 1);
                        memcpy(prompt, seq->tokens, cut * sizeof *prompt);
                        random_tokens(prompt + cut, 8, cut);
                        uint32_t length = td_kv_seq_length(seq->kv);
                        td_seq_params next = plain_params(6, 0);
                        truth t2;
                        truth_make(&t2, &s, prompt, cut + 4, &next);
                        o.text = &t2;
                        ASSERT_OK(td_seq_start(seq, prompt, cut + 4, &next, err));
                        assert_int_equal(seq->n_reused, length);
                        stage_play(&s, seq, &t2);
                        truth_free(&t2);
                    }
                    td_seq_close(&seq);
                    truth_free(&t);
                    stage_close(&s);
                }
}

/* ---- failures ---- */

static const td_model_ops *real_ops;
static int passes_left; /* before one fails */

static td_status failing_forward(td_model *m, const td_pass *p, td_error *err) {
    if (passes_left-- == 0) {
        for (uint32_t i = 0; i < p->n_seq; i++) /* as a pass that broke off would leave it */
            memset(p->state[i], 0x7F, m->info.state_bytes);
        return td_fail(err, TD_E_DEVICE, "the pass was made to fail");
    }
    return real_ops->forward(m, p, err);
}

static void a_failed_pass_leaves_nothing_behind(void **state) {
    (void)state;
    for (int k = 0; k < 6; k++) {
        stage s;
        stage_open(&s, (stage_options){.heads = true, .prefill_rows = 8});
        td_seq *seq = stage_seq(&s);
        td_token prompt[20];
        random_tokens(prompt, 20, 4);
        td_seq_params p = plain_params(10, 3);
        td_model_ops ops = *s.model->ops;
        real_ops = s.model->ops;
        ops.forward = failing_forward;
        passes_left = k;
        s.model->ops = &ops;
        ASSERT_OK(td_seq_start(seq, prompt, 20, &p, err));
        td_error e;
        td_status st;
        while ((st = td_round(s.decoder, &seq, 1, &e)) == TD_OK && !seq->finish)
            ;
        assert_int_equal(st, TD_E_DEVICE);
        s.model->ops = real_ops;
        assert_int_equal(answer(&s, seq, prompt, 20, p), 0);
        td_seq_close(&seq);
        stage_close(&s);
    }
}

static void memory_that_fails_is_reported_and_freed(void **state) {
    (void)state;
    stage s;
    stage_open(&s, (stage_options){.heads = true});
    long live = td_alloc_live();
    for (long k = 0;; k++) {
        td_seq *seq;
        td_error e = {0};
        td_alloc_fail_at(k);
        td_status st = td_seq_open(&seq, s.decoder, 64, &e);
        bool failed = td_alloc_failed();
        td_alloc_fail_at(-1);
        assert_int_equal(st, failed ? TD_E_NOMEM : TD_OK);
        td_seq_close(&seq);
        assert_int_equal(td_alloc_live(), live);
        if (!failed)
            break;
    }
    /* a snapshot that finds no memory is not made, and nothing else happens; a page that finds none fails the round */
    for (long k = 0;; k++) {
        td_seq *seq = stage_seq(&s);
        td_token prompt[20];
        random_tokens(prompt, 20, 4);
        td_seq_params p = plain_params(10, 3);
        truth t;
        truth_make(&t, &s, prompt, 20, &p);
        ASSERT_OK(td_seq_start(seq, prompt, 20, &p, err));
        td_alloc_fail_at(k);
        td_error e = {0};
        td_status st = td_round(s.decoder, &seq, 1, &e);
        bool failed = td_alloc_failed();
        td_alloc_fail_at(-1);
        if (st == TD_OK)
            stage_play(&s, seq, &t);
        else
            assert_int_equal(st, TD_E_NOMEM);
        td_seq_close(&seq);
        truth_free(&t);
        if (!failed)
            break;
    }
    stage_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(prompts_that_part_anywhere),
        cmocka_unit_test(the_same_prompt_again),
        cmocka_unit_test(conversations_go_on),
        cmocka_unit_test(cuts_anywhere),
        cmocka_unit_test(a_failed_pass_leaves_nothing_behind),
        cmocka_unit_test(memory_that_fails_is_reported_and_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
