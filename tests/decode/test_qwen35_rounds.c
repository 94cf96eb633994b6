/* test_qwen35_rounds.c - rounds over recurrent memory are exact: text and state are those of plain decoding, bit for
 * bit, after every round, at every depth, with heads and with drafts of every acceptance, on every backend; and the
 * heads' drafts are those of a cold start, however the prompt was cut and whatever had been tried before. */
#include "support/qwen35_stage.h"
#include "support/sanitized.h"

static const char *const fixtures[] = {"qwen35-dense", "qwen35-moe"};
#define N_NEW 24
#define DEPTH_STEP (TD_SANITIZED ? 3 : 1)

static const uint32_t prefills[] = {1, 7, 64};
static const uint32_t lengths[] = {1, 2, 7, 8, 9, 16, 23, 41};

static td_seq_params variant(int v, uint32_t depth, uint64_t seed) {
    return v ? sampled_params(N_NEW, depth, seed) : plain_params(N_NEW, depth);
}

/* ---- every acceptance ---- */

static void every_number_of_accepted_drafts(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++)
        for (uint32_t depth = 1; depth <= 8; depth += DEPTH_STEP)
            for (uint32_t right = 0; right <= depth; right++) {
                stage s;
                oracle o = oracle_new(1, oracle_fixed);
                td_token prompt[9];
                truth t;
                td_seq_params p = plain_params(25, depth);
                stage_open(&s, (stage_options){.fixture = fixtures[f], .drafter = &o.base});
                random_tokens(prompt, 9, depth);
                truth_make(&t, &s, prompt, 9, &p);
                o.text = &t;
                o.n_right = right;
                td_seq *seq = stage_seq(&s);
                ASSERT_OK(td_seq_start(seq, prompt, 9, &p, err));
                stage_play(&s, seq, &t);
                assert_true(right == 0 || accepted_drafts(seq) > 0);
                td_seq_close(&seq);
                truth_free(&t);
                stage_close(&s);
            }
}

static void random_acceptance_on(const char *backend, td_kv_type kv) {
    td_backend *be = fixture_backend(backend);
    if (!be)
        return;
    td_backend_close(&be);
    for (size_t f = 0; f < 2; f++)
        for (size_t c = 0; c < 3; c++) {
            stage s;
            oracle o = oracle_new(1, oracle_random);
            stage_open(&s, (stage_options){.fixture = fixtures[f],
                                           .backend = backend,
                                           .kv = kv,
                                           .prefill_rows = prefills[c],
                                           .drafter = &o.base});
            td_seq *seq = stage_seq(&s);
            for (size_t i = c; i < sizeof lengths / sizeof lengths[0]; i += 3)
                for (int v = 0; v < 2; v++) {
                    td_token prompt[64];
                    truth t;
                    td_seq_params p = variant(v, 8, i);
                    random_tokens(prompt, lengths[i], i);
                    truth_make(&t, &s, prompt, lengths[i], &p);
                    o.text = &t;
                    ASSERT_OK(td_seq_start(seq, prompt, lengths[i], &p, err));
                    stage_play(&s, seq, &t);
                    truth_free(&t);
                }
            td_seq_close(&seq);
            stage_close(&s);
        }
}

static void random_acceptance_on_every_backend(void **state) {
    (void)state;
    static const char *const backends[] = {"reference", "generic", "avx2", "avx512"};
    for (size_t i = 0; i < sizeof backends / sizeof backends[0]; i++) {
        random_acceptance_on(backends[i], TD_KV_F32);
        random_acceptance_on(backends[i], TD_KV_BF16);
    }
}

/* ---- heads ---- */

static uint64_t heads_at_depth(stage *s, td_seq *seq, const truth *t, td_seq_params p, uint32_t depth) {
    p.depth = depth;
    td_kv_seq_clear(seq->kv); /* or the keys of the depth before would be reused */
    seq->uncommitted = 0;
    ASSERT_OK(td_seq_start(seq, t->tokens, t->n_prompt, &p, err));
    assert_int_equal(seq->n_reused, 0);
    stage_play(s, seq, t);
    return accepted_drafts(seq);
}

static uint64_t heads_sweep(stage_options o) {
    uint64_t accepted = 0;
    o.heads = true;
    for (size_t c = 0; c < 3; c++) {
        stage s;
        o.prefill_rows = prefills[c];
        stage_open(&s, o);
        td_seq *seq = stage_seq(&s);
        for (size_t i = c; i < sizeof lengths / sizeof lengths[0]; i += 3)
            for (int v = 0; v < 2; v++) {
                td_token prompt[64];
                truth t;
                td_seq_params p = variant(v, 0, 31 + i);
                random_tokens(prompt, lengths[i], 40 + i);
                truth_make(&t, &s, prompt, lengths[i], &p);
                for (uint32_t depth = i % DEPTH_STEP; depth <= 8; depth += DEPTH_STEP)
                    accepted += heads_at_depth(&s, seq, &t, p, depth);
                truth_free(&t);
            }
        td_seq_close(&seq);
        stage_close(&s);
    }
    return accepted;
}

static void heads_change_no_text(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        assert_true(heads_sweep((stage_options){.fixture = fixtures[f], .kv = TD_KV_BF16}) > 0);
        assert_true(heads_sweep((stage_options){.fixture = fixtures[f], .kv = TD_KV_F32}) > 0);
        assert_true(heads_sweep((stage_options){.fixture = fixtures[f], .mtp_bits = 4}) > 0);
    }
}

static void a_shortlist_changes_no_text(void **state) {
    (void)state;
    static const uint32_t sizes[] = {1, 16, 100};
    for (size_t f = 0; f < 2; f++)
        for (size_t i = 0; i < 3; i++)
            heads_sweep((stage_options){.fixture = fixtures[f], .shortlist = sizes[i]});
}

/* Sequences of different lengths and depths in one round, joining and leaving. */
static void neighbours_change_nothing(void **state) {
    (void)state;
    enum { N = 4 };
    static const uint32_t depth[N] = {3, 0, 8, 1}, length[N] = {5, 17, 1, 30};
    for (size_t f = 0; f < 2; f++) {
        stage s;
        truth t[N];
        td_seq *seq[N];
        stage_open(&s, (stage_options){.fixture = fixtures[f], .heads = true, .max_seqs = N, .prefill_rows = 10});
        for (uint32_t i = 0; i < N; i++) {
            td_token prompt[64];
            td_seq_params p = variant(i % 2, depth[i], i);
            p.max_tokens = 12 + 7 * i;
            random_tokens(prompt, length[i], i);
            truth_make(&t[i], &s, prompt, length[i], &p);
            seq[i] = stage_seq(&s);
            ASSERT_OK(td_seq_start(seq[i], prompt, length[i], &p, err));
        }
        for (uint32_t round = 0;; round++) {
            td_seq *live[N];
            uint32_t n = 0;
            for (uint32_t i = 0; i < N; i++)
                if (!seq[i]->finish && round >= 2 * i)
                    live[n++] = seq[i];
            if (!n)
                break;
            ASSERT_OK(td_round(s.decoder, live, n, err));
            for (uint32_t i = 0; i < N; i++)
                if (seq[i]->n_tokens > seq[i]->n_prompt)
                    check_sequence(&s, seq[i], &t[i]);
        }
        for (uint32_t i = 0; i < N; i++) {
            assert_int_equal(seq[i]->n_tokens, t[i].n);
            td_seq_close(&seq[i]);
            truth_free(&t[i]);
        }
        stage_close(&s);
    }
}

/* An end token among accepted drafts: what was accepted behind it does not count, and its own row is not kept. */
static void ends_on_an_accepted_draft(void **state) {
    (void)state;
    for (uint32_t at = 1; at < 12; at++) {
        stage s;
        oracle o = oracle_new(1, oracle_fixed);
        td_token prompt[9], longer[40];
        truth t;
        td_seq_params p = plain_params(20, 6);
        stage_open(&s, (stage_options){.drafter = &o.base});
        random_tokens(prompt, 9, 8);
        truth_make(&t, &s, prompt, 9, &p);
        o.text = &t;
        o.n_right = 6;
        p.ignore_end = false;
        p.end = &t.tokens[9 + at];
        p.n_end = 1;
        td_seq *seq = stage_seq(&s);
        ASSERT_OK(td_seq_start(seq, prompt, 9, &p, err));
        while (!seq->finish) {
            ASSERT_OK(td_round(s.decoder, &seq, 1, err));
            check_sequence(&s, seq, &t);
        }
        assert_int_equal(seq->finish, TD_FINISH_STOP);
        assert_int_equal(td_kv_seq_length(seq->kv), seq->n_tokens - 1);
        uint32_t n = seq->n_tokens, length = n - 1;
        memcpy(longer, seq->tokens, n * sizeof *longer);
        random_tokens(longer + n, 5, at);
        td_seq_params next = plain_params(5, 0);
        truth t2;
        truth_make(&t2, &s, longer, n + 5, &next);
        ASSERT_OK(td_seq_start(seq, longer, n + 5, &next, err));
        assert_int_equal(seq->n_reused, length);
        stage_play(&s, seq, &t2);
        truth_free(&t2);
        td_seq_close(&seq);
        truth_free(&t);
        stage_close(&s);
    }
}

/* ---- what the heads propose ---- */

/* Drafts of the last call, seen on their way out. */
static struct {
    const td_drafter_ops *ops;
    td_token out[TD_MAX_DRAFT];
    uint32_t n_out, n_tokens, calls;
    const truth *text; /* not NULL: right drafts go out, whatever the heads said */
} seen;

static td_status seeing_draft(td_drafter *d, td_draft *batch, uint32_t n, td_error *err) {
    TD_TRY(seen.ops->draft(d, batch, n, err));
    memcpy(seen.out, batch[0].out, batch[0].n_out * sizeof *seen.out);
    for (uint32_t j = 0; seen.text && j < batch[0].n_out; j++)
        batch[0].out[j] = seen.text->tokens[batch[0].n_tokens + j];
    seen.n_out = batch[0].n_out;
    seen.n_tokens = batch[0].n_tokens;
    seen.calls++;
    return TD_OK;
}

/* The greedy drafts after `n` tokens, from nothing: every row true, in one pass, then recursion. */
static void cold_drafts(runner *r, const td_token *tokens, uint32_t n, uint32_t depth, td_token *out) {
    static float hidden[STAGE_CTX * N_EMBD];
    runner_clear(r);
    for (uint32_t at = 0; at < n - 1; at += 40) {
        uint32_t rows = n - 1 - at < 40 ? n - 1 - at : 40;
        runner_feed(r, tokens + at, rows, rows);
        memcpy(hidden + (size_t)at * N_EMBD, r->hidden, rows * N_EMBD * sizeof(float));
        runner_heads(r, tokens + at + 1, hidden + (size_t)at * N_EMBD, at, rows, 1, r->head_hidden, r->head_logits);
    }
    ASSERT_OK(td_kv_seq_reserve(r->seq, depth, err));
    for (uint32_t j = 0;; j++) {
        out[j] = argmax(r->head_logits, N_VOCAB);
        if (j + 1 == depth)
            return;
        runner_heads(r, &out[j], r->head_hidden + (size_t)j * N_EMBD, n - 1 + j, 1, 1,
                     r->head_hidden + (size_t)(j + 1) * N_EMBD, r->head_logits);
    }
}

static void watch_drafts(stage *s) {
    static td_drafter_ops ops;
    seen.ops = s->own->ops;
    ops = *s->own->ops;
    ops.draft = seeing_draft;
    s->own->ops = &ops;
    seen.calls = 0;
}

/* Also over a second prompt that shares a part of the first: restored rows must be as good as new ones. */
static void drafts_are_those_of_a_cold_start(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++)
        for (size_t c = 0; c < 3; c++)
            for (uint32_t depth = 1; depth <= 4; depth += 3) {
                stage s;
                runner r;
                stage_open(&s, (stage_options){.fixture = fixtures[f],
                                               .kv = TD_KV_F32,
                                               .heads = true,
                                               .prefill_rows = prefills[c],
                                               .n_snapshots = 32});
                watch_drafts(&s);
                td_model_options o = runner_options();
                runner_open(&r, fixtures[f], s.be, &o);
                td_seq *seq = stage_seq(&s);
                td_token prompt[80];
                random_tokens(prompt, 80, c);
                for (uint32_t turn = 0; turn < 4; turn++) {
                    static const uint32_t shared[] = {0, 32, 33, 32}, n_prompt[] = {40, 37, 60, 43};
                    td_seq_params p = plain_params(12, depth);
                    random_tokens(prompt + shared[turn], 80 - shared[turn], 100 * turn + c);
                    ASSERT_OK(td_seq_start(seq, prompt, n_prompt[turn], &p, err));
                    while (!seq->finish) {
                        uint32_t calls = seen.calls;
                        ASSERT_OK(td_round(s.decoder, &seq, 1, err));
                        if (seen.calls == calls)
                            continue;
                        td_token cold[TD_MAX_DRAFT];
                        cold_drafts(&r, seq->tokens, seen.n_tokens, seen.n_out, cold);
                        assert_memory_equal(seen.out, cold, seen.n_out * sizeof *cold);
                        assert_same_keys(&s.model->kv, s.model->kv.n_layers - 1, seq->kv, r.seq, seen.n_tokens - 1);
                    }
                    assert_true(seen.calls > 0);
                }
                td_seq_close(&seq);
                runner_close(&r);
                stage_close(&s);
            }
}

/* Rounds of depth 0 in between (what a depth controller does) let rows wait; more of them than there is room for. */
static void plain_rounds_in_between_lose_no_row(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        stage s;
        runner r;
        stage_open(&s, (stage_options){.fixture = fixtures[f], .kv = TD_KV_F32, .heads = true, .max_depth = 3});
        watch_drafts(&s);
        td_model_options o = runner_options();
        runner_open(&r, fixtures[f], s.be, &o);
        td_seq *seq = stage_seq(&s);
        td_token prompt[11];
        random_tokens(prompt, 11, 3);
        td_seq_params p = plain_params(60, 3);
        ASSERT_OK(td_seq_start(seq, prompt, 11, &p, err));
        for (uint32_t round = 0; !seq->finish; round++) {
            uint32_t calls = seen.calls;
            seq->params.depth = round % 7 == 6 ? 3 : 0;
            ASSERT_OK(td_round(s.decoder, &seq, 1, err));
            if (seen.calls == calls)
                continue;
            td_token cold[TD_MAX_DRAFT];
            cold_drafts(&r, seq->tokens, seen.n_tokens, seen.n_out, cold);
            assert_memory_equal(seen.out, cold, seen.n_out * sizeof *cold);
            assert_same_keys(&s.model->kv, s.model->kv.n_layers - 1, seq->kv, r.seq, seen.n_tokens - 1);
        }
        assert_true(seen.calls > 3);
        td_seq_close(&seq);
        runner_close(&r);
        stage_close(&s);
    }
}

/* Rows of accepted drafts wait for the next round; when the text is cut among them, those of tokens that are gone go
 * along. */
static void cuts_take_waiting_rows_along(void **state) {
    (void)state;
    for (uint32_t cut = 0; cut <= 6; cut++) {
        stage s;
        runner r;
        truth t;
        stage_open(&s, (stage_options){.kv = TD_KV_F32, .heads = true, .max_depth = 6});
        watch_drafts(&s);
        td_model_options o = runner_options();
        runner_open(&r, fixtures[0], s.be, &o);
        td_seq *seq = stage_seq(&s);
        td_token prompt[40];
        random_tokens(prompt, 11, 3);
        td_seq_params p = plain_params(20, 6);
        truth_make(&t, &s, prompt, 11, &p);
        seen.text = &t;
        ASSERT_OK(td_seq_start(seq, prompt, 11, &p, err));
        for (int round = 0; round < 2; round++)
            ASSERT_OK(td_round(s.decoder, &seq, 1, err));
        assert_int_equal(seq->n_tokens, 11 + 1 + 7);
        seen.text = NULL;
        uint32_t n = seq->n_tokens - cut;
        td_seq_cut(seq, n, TD_FINISH_STOP);
        assert_int_equal(td_kv_seq_length(seq->kv), n - 1);
        memcpy(prompt, seq->tokens, n * sizeof *prompt);
        random_tokens(prompt + n - 1, 3, cut); /* the newest token, too, is another one */
        p.depth = 3;
        ASSERT_OK(td_seq_start(seq, prompt, n + 2, &p, err));
        assert_int_equal(seq->n_reused, n - 1);
        seen.calls = 0;
        while (!seen.calls)
            ASSERT_OK(td_round(s.decoder, &seq, 1, err));
        td_token cold[TD_MAX_DRAFT];
        cold_drafts(&r, seq->tokens, seen.n_tokens, seen.n_out, cold);
        assert_memory_equal(seen.out, cold, seen.n_out * sizeof *cold);
        assert_same_keys(&s.model->kv, s.model->kv.n_layers - 1, seq->kv, r.seq, seen.n_tokens - 1);
        td_seq_close(&seq);
        truth_free(&t);
        runner_close(&r);
        stage_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_number_of_accepted_drafts),
        cmocka_unit_test(random_acceptance_on_every_backend),
        cmocka_unit_test(heads_change_no_text),
        cmocka_unit_test(a_shortlist_changes_no_text),
        cmocka_unit_test(neighbours_change_nothing),
        cmocka_unit_test(ends_on_an_accepted_draft),
        cmocka_unit_test(drafts_are_those_of_a_cold_start),
        cmocka_unit_test(plain_rounds_in_between_lose_no_row),
        cmocka_unit_test(cuts_take_waiting_rows_along),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
