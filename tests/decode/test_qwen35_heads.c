/* test_qwen35_heads.c - the drafter of in-checkpoint heads over a model that is made to be predictable: every mixer and
 * every MLP adds nothing, so the next token is a function of the current one, and the head, made to look at its
 * embedding half alone, knows that function. Then every draft must be accepted, at every depth, greedy and sampled; a
 * head that looks at the wrong half, or a row too far, would not be. And what a shortlist learns can be counted. */
#include "support/qwen35_stage.h"
#include "support/rewrite.h"

static bool ends(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}

/* qwen35-moe (its head is untied, so that a token leads to another). Half 0: the head reads embeddings, 1: hidden
 * states. */
static void make_predictable(rewrite *w, int half) {
    static const char *const silent[] = {"o_proj.weight", "out_proj.weight", "down_proj.weight", "experts.down_proj"};
    rewrite_open(w, "qwen35-moe");
    for (size_t i = 0; i < w->n; i++)
        for (size_t k = 0; k < 4; k++)
            if (ends(w->tensor[i].name, silent[k])) {
                void *data = rewrite_data(w, w->tensor[i].name);
                memset(data, 0, w->tensor[i].size);
            }
    float *fc = rewrite_data(w, "mtp.fc.weight");
    memset(fc, 0, (size_t)N_EMBD * 2 * N_EMBD * sizeof *fc);
    for (uint32_t i = 0; i < N_EMBD; i++)
        fc[(size_t)i * 2 * N_EMBD + (size_t)half * N_EMBD + i] = 1;
    memset(rewrite_data(w, "mtp.pre_fc_norm_embedding.weight"), 0, N_EMBD * sizeof(float));
    memset(rewrite_data(w, "mtp.pre_fc_norm_hidden.weight"), 0, N_EMBD * sizeof(float));
    float *norm = rewrite_data(w, "mtp.norm.weight");
    memcpy(norm, rewrite_find(w, "model.norm.weight")->data, N_EMBD * sizeof *norm);
}

/* Drafts offered and accepted of several prompts' answers, all by one drafter. */
static void answers(stage_options o, int half, td_seq_params p, uint64_t *drafted, uint64_t *accepted) {
    rewrite w;
    stage s;
    make_predictable(&w, half);
    o.heads = true;
    o.path = rewrite_save(&w);
    stage_open(&s, o);
    td_seq *seq = stage_seq(&s);
    *drafted = *accepted = 0;
    for (uint32_t i = 0; i < 6; i++) {
        td_token prompt[12];
        truth t;
        p.sampling.seed = i;
        random_tokens(prompt, 12, i);
        truth_make(&t, &s, prompt, 12, &p);
        ASSERT_OK(td_seq_start(seq, prompt, 12, &p, err));
        stage_play(&s, seq, &t);
        *drafted += seq->stats.drafted;
        *accepted += accepted_drafts(seq);
        truth_free(&t);
    }
    td_seq_close(&seq);
    stage_close(&s);
    rewrite_close(&w);
}

static void a_head_that_knows_is_always_right(void **state) {
    (void)state;
    uint64_t drafted, accepted;
    for (uint32_t depth = 1; depth <= 8; depth++) {
        answers((stage_options){0}, 0, plain_params(40, depth), &drafted, &accepted);
        assert_true(drafted > 0);
        assert_int_equal(accepted, drafted);
        answers((stage_options){.prefill_rows = 3}, 0, sampled_params(40, depth, 0), &drafted, &accepted);
        assert_int_equal(accepted, drafted);
    }
}

/* The hidden half says what the current token leads to; the draft is for the one after. */
static void a_head_that_looks_at_the_wrong_half_is_not(void **state) {
    (void)state;
    uint64_t drafted, accepted;
    answers((stage_options){0}, 1, sampled_params(40, 2, 0), &drafted, &accepted);
    assert_true(accepted < drafted / 2);
}

/* ---- shortlists ---- */

static void words_are_learned_from_use(void **state) {
    (void)state;
    uint64_t drafted, full, half, few;
    td_seq_params p = plain_params(60, 2);
    answers((stage_options){0}, 0, p, &drafted, &full);
    assert_int_equal(full, drafted);
    answers((stage_options){.shortlist = 200}, 0, p, &drafted, &half);
    assert_true(half > drafted / 2);
    answers((stage_options){.shortlist = 8}, 0, p, &drafted, &few);
    assert_true(few < drafted); /* too short to hold what is in use */
}

/* Given words are scored from the first draft on, and stay whatever else is met. */
static void given_words_are_kept(void **state) {
    (void)state;
    rewrite w;
    stage s;
    truth t;
    td_token prompt[12], text[40], other[40];
    td_seq_params p = plain_params(40, 3);
    make_predictable(&w, 0);
    const char *path = rewrite_save(&w);
    random_tokens(prompt, 12, 5);
    stage_open(&s, (stage_options){.path = path});
    truth_make(&t, &s, prompt, 12, &p);
    memcpy(text, t.tokens + 12, sizeof text);
    for (uint32_t i = 0; i < 40; i++) {
        other[i] = text[i];
        for (uint32_t j = 0; j < t.n; j++)
            if (t.tokens[j] == other[i]) {
                other[i] = (other[i] + 1) % N_VOCAB;
                j = UINT32_MAX; /* from the start again */
            }
    }
    truth_free(&t);
    stage_close(&s);
    for (int right = 0; right < 2; right++) {
        stage_open(&s,
                   (stage_options){
                       .path = path, .heads = true, .shortlist = 40, .common = right ? text : other, .n_common = 40});
        td_seq *seq = stage_seq(&s);
        truth_make(&t, &s, prompt, 12, &p);
        for (int again = 0; again < 2; again++) {
            ASSERT_OK(td_seq_start(seq, prompt, 12, &p, err));
            stage_play(&s, seq, &t);
            assert_true(seq->stats.drafted > 0);
            if (right)
                assert_int_equal(accepted_drafts(seq), seq->stats.drafted);
        }
        td_seq_close(&seq);
        truth_free(&t);
        stage_close(&s);
    }
    rewrite_close(&w);
}

/* ---- opening ---- */

static td_status try_open(stage *s, const td_drafter_options *o, td_error *e) {
    td_drafter *d = (td_drafter *)s;
    td_status st = td_drafter_heads_open(&d, s->model, o, e);
    assert_int_equal(st == TD_OK, d != NULL);
    td_drafter_close(&d);
    return st;
}

static void what_cannot_draft_is_told_why(void **state) {
    (void)state;
    stage s;
    td_error e;
    td_drafter_options o = td_drafter_options_default();
    stage_open(&s, (stage_options){0});
    assert_int_equal(try_open(&s, &o, &e), TD_E_MODEL);
    assert_string_equal(e.message, "the trunk (qwen3.5) has no draft heads to run: it was opened without them");
    stage_close(&s);

    stage_open(&s, (stage_options){.heads = true});
    assert_int_equal(try_open(&s, &o, &e), TD_OK);
    assert_string_equal(s.own->kind, "heads");
    assert_string_equal(s.own->format, "f32");
    assert_int_equal(s.own->weight_bytes, s.model->info.mtp_bytes);
    o.max_seqs = 100;
    assert_int_equal(try_open(&s, &o, &e), TD_E_ARG);
    o.max_seqs = 0;
    assert_int_equal(try_open(&s, &o, &e), TD_E_ARG);
    o = td_drafter_options_default();
    o.shortlist = 4;
    o.common = (td_token[]){1, N_VOCAB};
    o.n_common = 2;
    assert_int_equal(try_open(&s, &o, &e), TD_E_ARG);
    assert_string_equal(e.message, "shortlist word 320, expected 0 to 319");
    stage_close(&s);

    rewrite w;
    rewrite_open(&w, "qwen35-dense");
    rewrite_drop(&w, "mtp.fc.weight");
    td_checkpoint *ck;
    td_backend *be;
    td_model *m;
    td_drafter *d;
    td_model_options mo = runner_options();
    ASSERT_OK(td_backend_ref_open(&be, err));
    ASSERT_OK(td_checkpoint_open(&ck, rewrite_save(&w), NULL, err));
    ASSERT_OK(td_model_open(&m, ck, be, &mo, err));
    o = td_drafter_options_default();
    assert_int_equal(td_drafter_heads_open(&d, m, &o, &e), TD_E_MODEL);
    assert_string_equal(e.message, "the trunk (qwen3.5) has no draft heads to run: the files hold a draft head without "
                                   "mtp.fc");
    td_model_close(&m);
    td_checkpoint_close(&ck);
    td_backend_close(&be);
    rewrite_close(&w);
}

static void memory_that_fails_is_reported_and_freed(void **state) {
    (void)state;
    stage s;
    stage_open(&s, (stage_options){.heads = true});
    td_drafter_options o = td_drafter_options_default();
    o.shortlist = 20;
    long live = td_alloc_live();
    for (long k = 0;; k++) {
        td_error e = {0};
        td_alloc_fail_at(k);
        td_status st = try_open(&s, &o, &e);
        bool failed = td_alloc_failed();
        td_alloc_fail_at(-1);
        assert_int_equal(st, failed ? TD_E_NOMEM : TD_OK);
        assert_int_equal(td_alloc_live(), live);
        if (!failed)
            break;
    }
    stage_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_head_that_knows_is_always_right),
        cmocka_unit_test(a_head_that_looks_at_the_wrong_half_is_not),
        cmocka_unit_test(words_are_learned_from_use),
        cmocka_unit_test(given_words_are_kept),
        cmocka_unit_test(what_cannot_draft_is_told_why),
        cmocka_unit_test(memory_that_fails_is_reported_and_freed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
