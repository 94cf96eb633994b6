/* test_round_faults.c - numbers that are none, passes that fail, pools and memory that run out: whoever is hit says so
 * and leaves no keys behind, everybody else's text is what it would have been, and the next request is as good as new.
 * And a round in steady state allocates nothing. */
#include "decode/support_decode.h"

#include "base/alloc.h"
#include "support/rewrite.h"

#define N_CTX 128

static const char *const backends[] = {"reference", "generic", "avx2", "avx512"};

static void make(truth *t, stage *s, uint32_t n_prompt, uint64_t stream, const td_seq_params *p) {
    td_token prompt[N_CTX];
    random_prompt(prompt, n_prompt, stream);
    truth_make(t, s, prompt, n_prompt, p, N_CTX);
}

/* ---- logits that are no numbers ---- */

/* Three sequences; the middle one's logits at one position are spoilt. It ends with exactly the tokens that plain
 * decoding would have given before; the others are untouched; started again it is exact. */
static void spoil_position(stage *s, script *d, truth t[3], td_seq *seqs[3], const td_seq_params *p, uint32_t at,
                           uint32_t n_right, float value) {
    (void)d;
    for (uint32_t i = 0; i < 3; i++) {
        td_kv_seq_clear(seqs[i]->kv);
        seq_start(seqs[i], t[i].tokens, t[i].n_prompt, p);
        *script_of(seqs[i]) = (script_seq){.text = &t[i], .plan = plan_fixed, .n_right = n_right};
        s->seen[i] = &t[i];
    }
    s->spoil_seq = 1;
    s->spoil_position = at;
    s->spoil_value = value;
    while (seqs[1]->status == TD_OK && !seqs[0]->finish)
        ASSERT_OK(td_round(s->decoder, seqs, 3, err));
    s->spoil_position = -1;
    char want[80];
    snprintf(want, sizeof want, "the model gave the logit %g for token 0", (double)value);
    assert_int_equal(seqs[1]->status, TD_E_NUMERIC);
    assert_string_equal(seqs[1]->error.message, want);
    assert_int_equal(seqs[1]->finish, TD_FINISH_NONE);
    assert_int_equal(seqs[1]->n_tokens, at + 1);
    assert_memory_equal(seqs[1]->tokens, t[1].tokens, (at + 1) * sizeof(td_token));
    assert_int_equal(td_kv_seq_length(seqs[1]->kv), 0);
    for (uint32_t g = 0; g < 2; g++)
        assert_int_equal(td_kv_seq_held(seqs[1]->kv, g), 0);
    for (uint32_t i = 0; i < 3; i += 2) {
        s->seen[0] = s->seen[1] = s->seen[2] = NULL;
        stage_play(s, seqs[i], &t[i]);
    }
    seq_start(seqs[1], t[1].tokens, t[1].n_prompt, p);
    assert_int_equal(seqs[1]->n_reused, 0);
    *script_of(seqs[1]) = (script_seq){.text = &t[1], .plan = plan_fixed, .n_right = n_right};
    stage_play(s, seqs[1], &t[1]);
}

static void spoilt_logits_end_their_sequence_alone(void **state) {
    (void)state;
    script d;
    script_open(&d, 3);
    stage s;
    stage_open(&s, &(stage_options){.fixture = "gemma4-ple", .max_seqs = 3, .drafter = &d.base});
    truth t[3];
    td_seq *seqs[3];
    td_seq_params p = seq_params(40, 6);
    for (uint32_t i = 0; i < 3; i++) {
        make(&t[i], &s, 12 + 3 * i, i, &p);
        seqs[i] = stage_seq(&s, N_CTX);
    }
    for (uint32_t at = 14; at < 28; at++) /* the first sampled row of the middle sequence stands at 14 */
        for (uint32_t right = 0; right <= 6; right += 3)
            spoil_position(&s, &d, t, seqs, &p, at, right, at % 2 ? NAN : INFINITY);
    for (uint32_t i = 0; i < 3; i++) {
        td_seq_close(&seqs[i]);
        truth_free(&t[i]);
    }
    stage_close(&s);
}

/* A row behind a rejected draft belongs to no text: what its logits are is of no interest. */
static void spoilt_logits_of_a_rejected_row_are_ignored(void **state) {
    (void)state;
    script d;
    script_open(&d, 1);
    stage s;
    stage_open(&s, &(stage_options){.drafter = &d.base});
    td_seq_params p = seq_params(3, 8);
    p.max_tokens = 20;
    truth t;
    make(&t, &s, 10, 1, &p);
    td_seq *seq = stage_seq(&s, N_CTX);
    for (int64_t ahead = 2; ahead <= 8; ahead++) { /* one draft is right, so rows 0 and 1 count */
        td_kv_seq_clear(seq->kv);
        seq_start(seq, t.tokens, 10, &p);
        *script_of(seq) = (script_seq){.text = &t, .plan = plan_fixed, .n_right = 1};
        s.seen[0] = &t;
        while (seq->n_tokens + ahead < t.n && !seq->finish) {
            s.spoil_position = (int64_t)seq->n_tokens - 1 + ahead;
            s.spoil_value = NAN;
            ASSERT_OK(td_round(s.decoder, &seq, 1, err));
            assert_int_equal(seq->status, TD_OK);
        }
        s.spoil_position = -1;
        stage_play(&s, seq, &t);
    }
    td_seq_close(&seq);
    truth_free(&t);
    stage_close(&s);
}

/* The real thing: a file in which one token's per-layer inputs are NaN, so its keys and values are, too. */
enum { POISON = 77 };

static const char *poisoned_checkpoint(rewrite *w) {
    rewrite_open(w, "gemma4-ple");
    float *table = rewrite_data(w, "model.embed_tokens_per_layer.weight");
    for (uint32_t i = 0; i < 64; i++)
        table[POISON * 64 + i] = NAN;
    return rewrite_save(w);
}

/* Two in the same passes, one of which is poisoned; the other, and whoever gets its pages afterwards, see nothing. */
static void a_poisoned_neighbour_on(const char *backend) {
    rewrite w;
    stage s;
    bool have = stage_open(&s, &(stage_options){.path = poisoned_checkpoint(&w), .backend = backend, .max_seqs = 2});
    if (!have) {
        rewrite_close(&w);
        skip();
    }
    td_seq_params p = seq_params(25, 0);
    truth clean, later;
    make(&clean, &s, 21, 5, &p);
    make(&later, &s, 30, 6, &p);
    for (uint32_t i = 0; i < clean.n; i++)
        assert_int_not_equal(clean.tokens[i], POISON);
    td_seq *seqs[2] = {stage_seq(&s, N_CTX), stage_seq(&s, N_CTX)};
    td_token sick[24];
    random_prompt(sick, 24, 7);
    sick[18] = sick[23] = POISON;
    seq_start(seqs[0], clean.tokens, 21, &p);
    seq_start(seqs[1], sick, 24, &p);
    s.seen[0] = &clean;
    ASSERT_OK(td_round(s.decoder, seqs, 2, err));
    assert_int_equal(seqs[1]->status, TD_E_NUMERIC);
    assert_int_equal(td_kv_seq_length(seqs[1]->kv), 0);
    stage_play(&s, seqs[0], &clean);
    td_kv_seq_clear(seqs[0]->kv);
    uint64_t allocated = td_kv_pool_allocated(s.pool);
    seq_start(seqs[1], later.tokens, 30, &p);
    stage_play(&s, seqs[1], &later);
    assert_int_equal(td_kv_pool_allocated(s.pool), allocated); /* it did get the very pages */
    for (uint32_t i = 0; i < 2; i++)
        td_seq_close(&seqs[i]);
    truth_free(&clean);
    truth_free(&later);
    stage_close(&s);
    rewrite_close(&w);
}

static void propose_poison(script_seq *s, uint32_t depth, uint32_t *n_right, uint32_t *n_out) {
    *n_out = depth;
    *n_right = s->n_right;
    s->wrong = POISON;
}

/* The poison is only drafted, and rejected: rows before it must not see it, though its values lie in their pages. */
static void a_poisoned_draft_on(const char *backend) {
    rewrite w;
    stage s;
    script d;
    script_open(&d, 1);
    bool have =
        stage_open(&s, &(stage_options){.path = poisoned_checkpoint(&w), .backend = backend, .drafter = &d.base});
    if (!have) {
        rewrite_close(&w);
        skip();
    }
    td_seq_params p = seq_params(25, 6);
    truth t;
    make(&t, &s, 21, 5, &p);
    td_seq *seq = stage_seq(&s, N_CTX);
    for (uint32_t right = 0; right < 6; right++) {
        td_kv_seq_clear(seq->kv);
        seq_start(seq, t.tokens, 21, &p);
        *script_of(seq) = (script_seq){.text = &t, .plan = propose_poison, .n_right = right};
        stage_play(&s, seq, &t);
    }
    td_seq_close(&seq);
    truth_free(&t);
    stage_close(&s);
    rewrite_close(&w);
}

static void poison_spreads_nowhere_reference(void **state) {
    (void)state;
    a_poisoned_neighbour_on(backends[0]);
    a_poisoned_draft_on(backends[0]);
}

static void poison_spreads_nowhere_generic(void **state) {
    (void)state;
    a_poisoned_neighbour_on(backends[1]);
    a_poisoned_draft_on(backends[1]);
}

static void poison_spreads_nowhere_avx2(void **state) {
    (void)state;
    a_poisoned_neighbour_on(backends[2]);
    a_poisoned_draft_on(backends[2]);
}

static void poison_spreads_nowhere_avx512(void **state) {
    (void)state;
    a_poisoned_neighbour_on(backends[3]);
    a_poisoned_draft_on(backends[3]);
}

/* An assistant whose numbers fail drafts nothing; the text goes on. */
static void an_assistant_of_nans_only_costs_speed(void **state) {
    (void)state;
    static const char *const fixtures[] = {"gemma4-dense", "gemma4-ple"};
    for (size_t f = 0; f < 2; f++) {
        char name[64];
        snprintf(name, sizeof name, "%s-assistant", fixtures[f]);
        rewrite w;
        rewrite_open(&w, name);
        float *m = rewrite_data(&w, "post_projection.weight");
        for (uint32_t i = 0; i < 64; i++)
            m[i * 32 + 5] = NAN;
        stage s;
        stage_open(&s, &(stage_options){.fixture = fixtures[f], .assistant = true, .assistant_path = rewrite_save(&w)});
        td_seq_params p = seq_params(30, 6);
        p.sampling.frequency_penalty = 0.1f;
        truth t;
        make(&t, &s, 10, 3, &p);
        td_seq *seq = stage_seq(&s, N_CTX);
        seq_start(seq, t.tokens, 10, &p);
        stage_play(&s, seq, &t);
        td_seq_close(&seq);
        truth_free(&t);
        stage_close(&s);
        rewrite_close(&w);
    }
}

/* ---- passes that fail ---- */

static void a_failing_pass_is_returned_and_sequences_start_again(void **state) {
    (void)state;
    stage s;
    stage_open(&s, &(stage_options){.max_seqs = 2, .prefill_rows = 8, .assistant = true});
    td_seq_params p = seq_params(20, 4);
    truth t[2];
    td_seq *seqs[2];
    for (uint32_t i = 0; i < 2; i++) {
        make(&t[i], &s, 20, i, &p);
        seqs[i] = stage_seq(&s, N_CTX);
    }
    for (uint32_t rounds = 0; rounds < 12; rounds++) {
        for (uint32_t i = 0; i < 2; i++)
            seq_start(seqs[i], t[i].tokens, 20, &p);
        for (uint32_t r = 0; r < rounds && !seqs[0]->finish && !seqs[1]->finish; r++)
            ASSERT_OK(td_round(s.decoder, seqs, 2, err));
        s.fail_next_pass = true;
        td_error e;
        assert_int_equal(td_round(s.decoder, seqs, 2, &e), TD_E_DEVICE);
        assert_string_equal(e.message, "the pass was made to fail");
        for (uint32_t i = 0; i < 2; i++) {
            seq_start(seqs[i], t[i].tokens, 20, &p);
            stage_play(&s, seqs[i], &t[i]);
        }
    }
    for (uint32_t i = 0; i < 2; i++) {
        td_seq_close(&seqs[i]);
        truth_free(&t[i]);
    }
    stage_close(&s);
}

static void rounds_of_no_or_too_many_sequences_are_refused(void **state) {
    (void)state;
    stage s;
    stage_open(&s, &(stage_options){.max_seqs = 2});
    td_seq *seqs[3] = {0};
    td_error e;
    assert_int_equal(td_round(s.decoder, seqs, 0, &e), TD_E_ARG);
    assert_string_equal(e.message, "a round of 0 sequences, expected 1 to 2");
    assert_int_equal(td_round(s.decoder, seqs, 3, &e), TD_E_ARG);
    assert_string_equal(e.message, "a round of 3 sequences, expected 1 to 2");
    stage_close(&s);
}

static void decoders_that_do_not_fit_their_model_are_refused(void **state) {
    (void)state;
    stage s;
    stage_open(&s, &(stage_options){.max_seqs = 2, .prefill_rows = 16, .max_depth = 4});
    script d;
    script_open(&d, 1);
    const struct {
        td_decoder_options o;
        td_drafter *drafter;
        const char *message;
    } cases[] = {
        {{.max_seqs = 0, .prefill_rows = 16, .max_depth = 4},
         NULL,
         "rounds of 0 sequences, 16 prefill rows and depth 4 do not fit the model's passes"},
        {{.max_seqs = 2, .prefill_rows = 0, .max_depth = 4},
         NULL,
         "rounds of 2 sequences, 0 prefill rows and depth 4 do not fit the model's passes"},
        {{.max_seqs = 2, .prefill_rows = 16, .max_depth = 17},
         NULL,
         "rounds of 2 sequences, 16 prefill rows and depth 17 do not fit the model's passes"},
        {{.max_seqs = 2, .prefill_rows = 16, .max_depth = 5},
         NULL,
         "rounds of 2 sequences, 16 prefill rows and depth 5 do not fit the model's passes"},
        {{.max_seqs = 2, .prefill_rows = 17, .max_depth = 4},
         NULL,
         "rounds of 2 sequences, 17 prefill rows and depth 4 do not fit the model's passes"},
        {{.max_seqs = 3, .prefill_rows = 16, .max_depth = 4},
         NULL,
         "rounds of 3 sequences, 16 prefill rows and depth 4 do not fit the model's passes"},
        {{.max_seqs = 2, .prefill_rows = 16, .max_depth = 4},
         &d.base,
         "rounds of 2 sequences, 16 prefill rows and depth 4 do not fit the model's passes"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_decoder *decoder = (td_decoder *)&d;
        td_error e;
        assert_int_equal(td_decoder_open(&decoder, s.f.model, cases[i].drafter, s.pool, &cases[i].o, &e), TD_E_ARG);
        assert_null(decoder);
        assert_string_equal(e.message, cases[i].message);
    }
    stage_close(&s);
}

/* ---- memory ---- */

static void a_full_pool_is_an_error_of_the_round(void **state) {
    (void)state;
    stage s;
    stage_open(&s, &(stage_options){.max_seqs = 2, .prefill_rows = 8});
    td_seq_params p = seq_params(60, 0);
    truth t[2];
    for (uint32_t i = 0; i < 2; i++)
        make(&t[i], &s, 40, i, &p);
    uint64_t one = td_kv_plan_bytes(&s.f.model->kv, N_CTX, 8, 9);
    td_kv_pool *small;
    td_decoder *decoder;
    ASSERT_OK(td_kv_pool_open(&small, &s.f.model->kv, s.be, one + one / 2, err));
    td_decoder_options o = {.max_seqs = 2, .prefill_rows = 8, .max_depth = 8};
    ASSERT_OK(td_decoder_open(&decoder, s.f.model, NULL, small, &o, err));
    td_seq *seqs[2];
    for (uint32_t i = 0; i < 2; i++) {
        ASSERT_OK(td_seq_open(&seqs[i], decoder, N_CTX, err));
        seq_start(seqs[i], t[i].tokens, 40, &p);
    }
    td_status st = TD_OK;
    while (st == TD_OK && !seqs[0]->finish)
        st = td_round(decoder, seqs, 2, NULL);
    assert_int_equal(st, TD_E_LIMIT);
    assert_true(td_kv_pool_allocated(small) <= one + one / 2);
    td_seq_close(&seqs[1]);
    seq_start(seqs[0], t[0].tokens, 40, &p); /* alone there is room */
    td_decoder *big = s.decoder;
    s.decoder = decoder;
    stage_play(&s, seqs[0], &t[0]);
    s.decoder = big;
    td_seq_close(&seqs[0]);
    assert_int_equal(td_kv_pool_used(small), 0);
    td_decoder_close(&decoder);
    td_kv_pool_close(&small);
    for (uint32_t i = 0; i < 2; i++)
        truth_free(&t[i]);
    stage_close(&s);
}

/* The second generation on a warm pool, start, prefill and all, must not allocate once. */
static void a_warm_round_allocates_nothing(void **state) {
    (void)state;
    static const char *const fixtures[] = {"gemma4-dense", "gemma4-ple", "gemma4-moe"};
    for (size_t f = 0; f < 3; f++)
        for (int b = 0; b < 2; b++) {
            stage s;
            stage_open(
                &s, &(stage_options){
                        .fixture = fixtures[f], .backend = b ? "cpu" : "reference", .max_seqs = 2, .assistant = true});
            td_seq_params p = seq_params(60, 4);
            p.sampling.temperature = 0.8f;
            p.sampling.top_k = 40;
            p.sampling.repetition_penalty = 1.1f;
            td_token prompt[40];
            random_prompt(prompt, 40, f);
            td_seq *seqs[2] = {stage_seq(&s, N_CTX), stage_seq(&s, N_CTX)};
            for (int turn = 0; turn < 3; turn++) {
                for (uint32_t i = 0; i < 2; i++)
                    td_kv_seq_clear(seqs[i]->kv);
                long live = td_alloc_live();
                if (turn)
                    td_alloc_fail_at(0);
                seq_start(seqs[0], prompt, 40, &p);
                seq_start(seqs[1], prompt, 33, &p);
                td_status st = TD_OK;
                while (st == TD_OK && !seqs[0]->finish && !seqs[1]->finish)
                    st = td_round(s.decoder, seqs, 2, NULL);
                assert_false(turn && td_alloc_failed());
                td_alloc_fail_at(-1);
                assert_int_equal(st, TD_OK);
                if (turn)
                    assert_int_equal(td_alloc_live(), live);
            }
            for (uint32_t i = 0; i < 2; i++)
                td_seq_close(&seqs[i]);
            stage_close(&s);
        }
}

/* Everything from the drafter to the first rounds, with the k-th allocation failing. */
static td_status whole_life(stage *s, const td_token *prompt, uint32_t n) {
    td_drafter_options a = td_drafter_options_default();
    td_decoder_options o = {.max_seqs = 1, .prefill_rows = 16, .max_depth = 4};
    td_seq_params p = seq_params(6, 4);
    td_drafter *drafter = NULL;
    td_kv_pool *pool = NULL;
    td_decoder *decoder = NULL;
    td_seq *seq = NULL;
    td_status st = td_drafter_assistant_open(&drafter, s->assistant_ck, s->f.model, &a, NULL);
    if (st == TD_OK)
        st = td_kv_pool_open(&pool, &s->f.model->kv, s->be, 0, NULL);
    if (st == TD_OK)
        st = td_decoder_open(&decoder, s->f.model, drafter, pool, &o, NULL);
    if (st == TD_OK)
        st = td_seq_open(&seq, decoder, 64, NULL);
    if (st == TD_OK)
        st = td_seq_start(seq, prompt, n, &p, NULL);
    while (st == TD_OK && !seq->finish)
        st = td_round(decoder, &seq, 1, NULL);
    td_seq_close(&seq);
    td_decoder_close(&decoder);
    if (pool)
        assert_int_equal(td_kv_pool_used(pool), 0);
    td_kv_pool_close(&pool);
    td_drafter_close(&drafter);
    return st;
}

static void no_memory_leaves_nothing_behind(void **state) {
    (void)state;
    static const char *const fixtures[] = {"gemma4-dense", "gemma4-ple"};
    for (size_t f = 0; f < 2; f++) {
        stage s;
        stage_open(&s,
                   &(stage_options){.fixture = fixtures[f], .backend = "reference", .max_depth = 4, .assistant = true});
        td_token prompt[40];
        random_prompt(prompt, 40, 1);
        assert_int_equal(whole_life(&s, prompt, 40), TD_OK); /* the backend has its scratch */
        for (long k = 0;; k++) {
            long live = td_alloc_live();
            td_alloc_fail_at(k);
            td_status st = whole_life(&s, prompt, 40);
            bool struck = td_alloc_failed();
            td_alloc_fail_at(-1);
            if (st != (struck ? TD_E_NOMEM : TD_OK) || td_alloc_live() != live)
                fail_msg("allocation %ld failing: %s, %ld blocks left", k, td_status_name(st), td_alloc_live() - live);
            if (!struck)
                break;
        }
        stage_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(spoilt_logits_end_their_sequence_alone),
        cmocka_unit_test(spoilt_logits_of_a_rejected_row_are_ignored),
        cmocka_unit_test(poison_spreads_nowhere_reference),
        cmocka_unit_test(poison_spreads_nowhere_generic),
        cmocka_unit_test(poison_spreads_nowhere_avx2),
        cmocka_unit_test(poison_spreads_nowhere_avx512),
        cmocka_unit_test(an_assistant_of_nans_only_costs_speed),
        cmocka_unit_test(a_failing_pass_is_returned_and_sequences_start_again),
        cmocka_unit_test(rounds_of_no_or_too_many_sequences_are_refused),
        cmocka_unit_test(decoders_that_do_not_fit_their_model_are_refused),
        cmocka_unit_test(a_full_pool_is_an_error_of_the_round),
        cmocka_unit_test(a_warm_round_allocates_nothing),
        cmocka_unit_test(no_memory_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
