/* test_calibrate_qwen35.c - rounds measured when a decoder is new, for a trunk with recurrent memory, with heads that
 * keep K and V of their own, lookup behind them, and a draft model: prices stay and the text is that of plain decoding.
 */
#include "support/qwen35_stage.h"

#include "decode/drafter_chain.h"
#include "decode/drafter_model.h"
#include "decode/round_impl.h"

static void check(stage *s, uint32_t depth) {
    td_calibration c = {.n_ctx = STAGE_CTX, .seconds = 60};
    ASSERT_OK(td_decoder_calibrate(s->decoder, &c, err));
    td_depth_costs *costs = &s->decoder->costs;
    static const td_acceptance none;
    td_cost_bucket *b = td_costs_bucket(&costs->costs, 20);
    for (uint32_t rows = 1; rows <= 1 + depth; rows++)
        assert_true(td_costs_settled(b, rows));
    assert_true(b->later[0].seconds > 0);
    assert_memory_equal(&costs->all, &none, sizeof none);
    assert_int_equal(td_kv_pool_used(s->pool), 0);

    td_token prompt[30];
    truth t;
    td_seq_params p = plain_params(60, depth);
    p.adaptive = true;
    random_tokens(prompt, 30, 3);
    truth_make(&t, s, prompt, 30, &p);
    td_seq *seq = stage_seq(s);
    ASSERT_OK(td_seq_start(seq, prompt, 30, &p, err));
    stage_play(s, seq, &t);
    td_seq_close(&seq);
    truth_free(&t);
}

static void with_heads(void **state) {
    (void)state;
    for (int moe = 0; moe < 2; moe++) {
        stage s;
        stage_open(&s, (stage_options){.fixture = moe ? "qwen35-moe" : "qwen35-dense", .heads = true, .shortlist = 40});
        check(&s, 8);
        stage_close(&s);
    }
}

static void with_a_draft_model(void **state) {
    (void)state;
    for (int kind = 0; kind < 2; kind++) {
        char path[512];
        td_backend *be = fixture_backend("cpu");
        td_checkpoint *ck;
        td_drafter *d;
        stage s;
        td_drafter_model_options o = td_drafter_model_options_default();
        fixture_path("qwen35-dense", NULL, path, sizeof path);
        ASSERT_OK(td_checkpoint_open(&ck, path, NULL, err));
        o.n_ctx = STAGE_CTX;
        ASSERT_OK(td_drafter_model_open(&d, ck, be, N_VOCAB, &o, err));
        if (kind) {
            td_drafter_chain_options c = td_drafter_chain_options_default();
            td_drafter *inner = d;
            c.inner_depth = 4;
            ASSERT_OK(td_drafter_chain_open(&d, inner, &c, err));
        }
        stage_open(&s, (stage_options){.fixture = "qwen35-moe", .drafter = d});
        check(&s, 8);
        stage_close(&s);
        td_drafter_close(&d);
        td_checkpoint_close(&ck);
        td_backend_close(&be);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(with_heads),
        cmocka_unit_test(with_a_draft_model),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
