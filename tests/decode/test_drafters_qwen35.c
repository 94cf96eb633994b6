/* test_drafters_qwen35.c - lookup, draft models, and lookup behind the checkpoint's own heads, for a trunk with
 * recurrent memory: text and state are those of plain decoding after every round. */
#include "support/qwen35_stage.h"

#include "decode/drafter_chain.h"
#include "decode/drafter_lookup.h"
#include "decode/drafter_model.h"

static const char *const fixtures[] = {"qwen35-dense", "qwen35-moe"};

/* One prompt at every depth, greedy and sampled, on one sequence; returns the drafts accepted. */
static uint64_t every_depth(stage *s, uint32_t n_prompt, bool all) {
    uint64_t accepted = 0;
    td_seq *seq = stage_seq(s);
    for (int v = 0; v < 2; v++) {
        td_token prompt[64];
        truth t;
        random_tokens(prompt, n_prompt, n_prompt);
        for (uint32_t i = n_prompt / 2; i < n_prompt; i++) /* said twice */
            prompt[i] = prompt[i - n_prompt / 2];
        td_seq_params p = v ? sampled_params(50, 0, 3) : plain_params(50, 0);
        truth_make(&t, s, prompt, n_prompt, &p);
        for (p.depth = 0; p.depth <= 8; p.depth++) {
            ASSERT_OK(td_seq_start(seq, prompt, n_prompt, &p, err));
            stage_play(s, seq, &t);
            accepted += accepted_drafts(seq);
            if (all)
                assert_memory_equal(seq->stats.accepted_at, seq->stats.drafted_at, sizeof seq->stats.drafted_at);
        }
        truth_free(&t);
    }
    td_seq_close(&seq);
    return accepted;
}

static td_drafter *lookup(void) {
    td_drafter *d;
    td_drafter_lookup_options o = td_drafter_lookup_options_default();
    ASSERT_OK(td_drafter_lookup_open(&d, &o, err));
    return d;
}

static void lookup_changes_nothing(void **state) {
    (void)state;
    td_drafter *d = lookup();
    for (size_t f = 0; f < 2; f++)
        for (uint32_t n = 1; n <= 41; n += 20) {
            stage s;
            stage_open(&s, (stage_options){.fixture = fixtures[f], .drafter = d});
            every_depth(&s, n, false);
            stage_close(&s);
        }
    td_drafter_close(&d);
}

static void with_model(const char *trunk, const char *model, bool all) {
    char path[512];
    td_backend *be = fixture_backend("cpu");
    td_checkpoint *ck;
    td_drafter *d;
    td_drafter_model_options o = td_drafter_model_options_default();
    o.kv_type = TD_KV_F32;
    o.n_ctx = STAGE_CTX;
    ASSERT_OK(td_checkpoint_open(&ck, fixture_path(model, NULL, path, sizeof path), NULL, err));
    ASSERT_OK(td_drafter_model_open(&d, ck, be, N_VOCAB, &o, err));
    for (uint32_t n = 7; n <= 41; n += 34) {
        stage s;
        stage_open(&s, (stage_options){.fixture = trunk, .drafter = d});
        uint64_t accepted = every_depth(&s, n, all);
        if (all)
            assert_true(accepted > 400);
        stage_close(&s);
    }
    td_drafter_close(&d);
    td_checkpoint_close(&ck);
    td_backend_close(&be);
}

static void the_trunk_itself_is_always_right(void **state) {
    (void)state;
    with_model(fixtures[0], fixtures[0], true);
    with_model(fixtures[1], fixtures[1], true);
}

static void another_model_changes_nothing(void **state) {
    (void)state;
    with_model(fixtures[0], fixtures[1], false);
    with_model(fixtures[1], "gemma4-dense", false);
}

/* A stage whose drafter is lookup behind the heads. */
static void chain_stage(stage *s, const char *name, uint32_t inner_depth) {
    stage_open(s, (stage_options){.fixture = name, .heads = true});
    td_decoder_options d = {.max_seqs = 1, .prefill_rows = 16, .max_depth = 8};
    td_drafter_chain_options o = td_drafter_chain_options_default();
    o.inner_depth = inner_depth;
    td_decoder_close(&s->decoder);
    td_drafter *chain;
    ASSERT_OK(td_drafter_chain_open(&chain, s->own, &o, err));
    s->own = s->drafter = chain;
    ASSERT_OK(td_decoder_open(&s->decoder, s->model, s->drafter, s->pool, &d, err));
}

static void lookup_behind_heads_changes_nothing(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++)
        for (uint32_t inner = 0; inner <= 3; inner++) {
            stage s;
            chain_stage(&s, fixtures[f], inner);
            assert_string_equal(s.drafter->kind, "heads+lookup");
            assert_true(s.drafter->all_rows);
            every_depth(&s, 1 + 13 * inner, false);
            stage_close(&s);
        }
}

/* What the heads draft behind lookup is what they draft alone. */
static void heads_do_not_notice_lookup(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        td_seq_stats stats[2];
        for (int chained = 0; chained < 2; chained++) {
            stage s;
            if (chained)
                chain_stage(&s, fixtures[f], 0);
            else
                stage_open(&s, (stage_options){.fixture = fixtures[f], .heads = true});
            td_token prompt[30];
            random_tokens(prompt, 30, 2);
            td_seq_params p = sampled_params(60, 3, 1);
            td_seq *seq = stage_seq(&s);
            for (int again = 0; again < 2; again++) { /* the second time, after going back */
                ASSERT_OK(td_seq_start(seq, prompt, 30 - 5 * (uint32_t)again, &p, err));
                while (!seq->finish)
                    ASSERT_OK(td_round(s.decoder, &seq, 1, err));
            }
            stats[chained] = seq->stats;
            td_seq_close(&seq);
            stage_close(&s);
        }
        assert_memory_equal(&stats[0], &stats[1], sizeof stats[0]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lookup_changes_nothing),        cmocka_unit_test(the_trunk_itself_is_always_right),
        cmocka_unit_test(another_model_changes_nothing), cmocka_unit_test(lookup_behind_heads_changes_nothing),
        cmocka_unit_test(heads_do_not_notice_lookup),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
