/* test_round_script.c - the round's bookkeeping, played with a drafter that proposes exactly what a case needs: every
 * number of accepted drafts at every depth, across the window and page borders; budgets; end tokens inside an accepted
 * run; cuts; counts. The script checks that what it is given (tokens, keys, hidden state, history) is what plain
 * decoding has at that point; the watched stage checks every row's logits (support_decode.h). */
#include "decode/support_decode.h"

#include "base/alloc.h"
#include "base/rng.h"

#define N_CTX 160

/* A stage with a script, one sequence, and the truth of one prompt. */
typedef struct play {
    script script;
    stage s;
    td_seq *seq;
    truth t;
    td_seq_params p;
    td_token prompt[N_CTX];
    uint32_t n_prompt;
} play;

static void play_open(play *y, const char *name, uint32_t max_depth) {
    memset(y, 0, sizeof *y);
    script_open(&y->script, 1);
    stage_open(&y->s, &(stage_options){.fixture = name, .max_depth = max_depth, .drafter = &y->script.base});
    y->seq = stage_seq(&y->s, N_CTX);
    y->p = seq_params(60, max_depth);
}

static void play_close(play *y) {
    td_seq_close(&y->seq);
    truth_free(&y->t);
    stage_close(&y->s);
}

/* Sets the prompt and what plain decoding makes of it. */
static void play_prompt(play *y, uint32_t n, uint64_t stream) {
    truth_free(&y->t);
    random_prompt(y->prompt, n, stream);
    y->n_prompt = n;
    truth_make(&y->t, &y->s, y->prompt, n, &y->p, y->seq->capacity);
}

static script_seq *play_start(play *y, void (*plan)(script_seq *, uint32_t, uint32_t *, uint32_t *)) {
    td_kv_seq_clear(y->seq->kv);
    script_seq *c = script_of(y->seq);
    *c = (script_seq){.text = &y->t, .plan = plan};
    seq_start(y->seq, y->prompt, y->n_prompt, &y->p);
    return c;
}

static void check_counts(const td_seq *seq, const script_seq *c) {
    assert_int_equal(seq->stats.drafted, c->drafted);
    for (uint32_t i = 0; i < TD_MAX_DRAFT; i++) {
        assert_int_equal(seq->stats.drafted_at[i], c->drafted_at[i]);
        assert_int_equal(seq->stats.accepted_at[i], c->accepted_at[i]);
    }
}

/* ---- acceptance ---- */

static void any_number_of_accepted_drafts_is_exact(void **state) {
    (void)state;
    static const char *const fixtures[] = {"gemma4-dense", "gemma4-ple", "gemma4-moe"};
    for (size_t f = 0; f < 3; f++) {
        play y;
        play_open(&y, fixtures[f], 8);
        for (uint32_t n = 1; n <= 17; n += 4) {
            y.p = seq_params(60, 8);
            play_prompt(&y, n, 10 * f + n);
            for (uint32_t depth = 1; depth <= 8; depth++)
                for (uint32_t right = 0; right <= depth; right++) {
                    y.p.depth = depth;
                    script_seq *c = play_start(&y, plan_fixed);
                    c->n_right = right;
                    stage_play(&y.s, y.seq, &y.t);
                    check_counts(y.seq, c);
                    assert_true(c->exactly[right] > 0);
                }
        }
        play_close(&y);
    }
}

/* Every round another number, of another depth, sometimes fewer than wanted or none. */
static void plan_random(script_seq *s, uint32_t depth, uint32_t *n_right, uint32_t *n_out) {
    uint32_t base = s->n_right * 1000 + s->calls * 3;
    *n_out = (uint32_t)(td_rng_uniform(31, base, 0) * (depth + 1));
    *n_right = (uint32_t)(td_rng_uniform(31, base, 1) * (*n_out + 1));
}

static void any_mixture_is_exact(void **state) {
    (void)state;
    play y;
    play_open(&y, "gemma4-ple", 16);
    uint64_t seen[TD_MAX_DRAFT + 1] = {0};
    for (uint32_t i = 0; i < 60; i++) {
        y.p = seq_params(90, 1 + i % 16);
        y.p.sampling.temperature = i % 2 ? 0.8f : 0;
        y.p.sampling.frequency_penalty = i % 3 ? 0 : 0.2f;
        y.p.sampling.seed = i;
        play_prompt(&y, 1 + i % 50, 100 + i);
        script_seq *c = play_start(&y, plan_random);
        c->n_right = i;
        stage_play(&y.s, y.seq, &y.t);
        check_counts(y.seq, c);
        for (uint32_t r = 0; r <= TD_MAX_DRAFT; r++)
            seen[r] += c->exactly[r];
    }
    for (uint32_t r = 0; r <= 10; r++)
        assert_true(seen[r] > 0);
    play_close(&y);
}

/* ---- budgets ---- */

static void no_depth_makes_a_token_too_many(void **state) {
    (void)state;
    play y;
    play_open(&y, "gemma4-dense", 8);
    for (uint32_t max_tokens = 1; max_tokens <= 12; max_tokens++)
        for (uint32_t depth = 0; depth <= 8; depth++)
            for (uint32_t right = 0; right <= depth; right += 2) {
                y.p = seq_params(max_tokens, depth);
                play_prompt(&y, 14, 7);
                assert_int_equal(y.t.n, 14 + max_tokens);
                script_seq *c = play_start(&y, plan_fixed);
                c->n_right = right;
                stage_play(&y.s, y.seq, &y.t);
                assert_int_equal(y.seq->finish, TD_FINISH_LENGTH);
                assert_true(c->longest + 1 < max_tokens ||
                            c->longest == 0); /* a draft that cannot be used is not made */
                check_counts(y.seq, c);
            }
    play_close(&y);
}

static void no_depth_goes_past_the_context(void **state) {
    (void)state;
    play y;
    play_open(&y, "gemma4-ple", 8);
    for (uint32_t n_ctx = 2; n_ctx <= 40; n_ctx += 1 + n_ctx / 8) {
        td_seq_close(&y.seq);
        y.seq = stage_seq(&y.s, n_ctx);
        for (uint32_t n = n_ctx > 9 ? n_ctx - 9 : 1; n < n_ctx; n++)
            for (uint32_t right = 0; right <= 8; right += 4) {
                y.p = seq_params(UINT32_MAX, 8);
                play_prompt(&y, n, n_ctx);
                assert_int_equal(y.t.n, n_ctx);
                play_start(&y, plan_fixed)->n_right = right;
                stage_play(&y.s, y.seq, &y.t);
                assert_int_equal(y.seq->finish, TD_FINISH_LENGTH);
            }
    }
    play_close(&y);
}

/* ---- end tokens ---- */

static void an_end_token_inside_an_accepted_run_ends_the_text(void **state) {
    (void)state;
    play y;
    play_open(&y, "gemma4-moe", 8);
    for (uint32_t at = 0; at < 12; at++)
        for (uint32_t depth = 0; depth <= 8; depth++) {
            y.p = seq_params(40, depth);
            y.p.sampling.temperature = 0.8f; /* text that does not repeat itself */
            play_prompt(&y, 9, 11);
            td_token end[2] = {1, y.t.tokens[9 + at]};
            uint32_t first = 9; /* where that token comes first */
            while (y.t.tokens[first] != end[1])
                first++;
            y.p.end = end;
            y.p.n_end = 2;
            y.p.ignore_end = false;
            play_prompt(&y, 9, 11);
            assert_int_equal(y.t.n, first + 1);
            assert_int_equal(y.t.finish, TD_FINISH_STOP);
            script_seq *c = play_start(&y, plan_fixed);
            c->n_right = depth;
            stage_play(&y.s, y.seq, &y.t);
            assert_int_equal(y.seq->finish, TD_FINISH_STOP);
            y.p.ignore_end = true; /* the same tokens are ordinary when asked */
            play_prompt(&y, 9, 11);
            play_start(&y, plan_fixed)->n_right = depth;
            stage_play(&y.s, y.seq, &y.t);
            assert_int_equal(y.seq->finish, TD_FINISH_LENGTH);
        }
    play_close(&y);
}

/* An end token that is the very last of the budget: "stop", as in plain decoding. */
static void an_end_token_at_the_budget_is_a_stop(void **state) {
    (void)state;
    play y;
    play_open(&y, "gemma4-dense", 4);
    y.p = seq_params(6, 4);
    y.p.sampling.temperature = 0.8f;
    play_prompt(&y, 5, 3);
    td_token end = y.t.tokens[10];
    for (uint32_t i = 5; i < 10; i++)
        assert_int_not_equal(y.t.tokens[i], end);
    y.p.end = &end;
    y.p.n_end = 1;
    y.p.ignore_end = false;
    play_prompt(&y, 5, 3);
    assert_int_equal(y.t.finish, TD_FINISH_STOP);
    play_start(&y, plan_fixed)->n_right = 4;
    stage_play(&y.s, y.seq, &y.t);
    play_close(&y);
}

/* ---- the first round, and the last ---- */

static void the_first_round_does_not_draft_and_plain_never_asks(void **state) {
    (void)state;
    play y;
    play_open(&y, "gemma4-dense", 8);
    y.p = seq_params(20, 0);
    play_prompt(&y, 30, 1);
    script_seq *c = play_start(&y, plan_fixed);
    stage_play(&y.s, y.seq, &y.t);
    assert_int_equal(c->calls, 0);
    assert_int_equal(y.seq->stats.rounds, 20);
    assert_int_equal(y.seq->stats.drafted, 0);
    y.p.depth = 8;
    c = play_start(&y, plan_fixed);
    c->n_right = 8;
    y.s.seen[0] = &y.t;
    ASSERT_OK(td_round(y.s.decoder, &y.seq, 1, err));
    assert_int_equal(c->calls, 0); /* nothing is known of the position before the newest token yet */
    assert_int_equal(y.seq->n_tokens, 31);
    ASSERT_OK(td_round(y.s.decoder, &y.seq, 1, err));
    assert_int_equal(c->calls, 1);
    assert_int_equal(y.seq->n_tokens, 40); /* eight drafts and the trunk's own */
    for (uint32_t i = 0; i < 40; i++)
        assert_int_equal(y.seq->was_drafted[i], i >= 31 && i < 39);
    stage_play(&y.s, y.seq, &y.t);
    play_close(&y);
}

/* A drafter may be asked for less by a request than the decoder is opened for. */
static void the_sequence_s_depth_is_the_limit(void **state) {
    (void)state;
    play y;
    play_open(&y, "gemma4-dense", 8);
    for (uint32_t depth = 1; depth <= 8; depth++) {
        y.p = seq_params(40, depth);
        play_prompt(&y, 10, depth);
        script_seq *c = play_start(&y, plan_fixed);
        c->n_right = 2;
        stage_play(&y.s, y.seq, &y.t);
        assert_int_equal(c->longest, depth);
    }
    play_close(&y);
}

/* ---- cuts ---- */

/* What the counts say was accepted at each place is what the marks on the tokens say. */
static void check_marks(const td_seq *seq) {
    uint64_t at[TD_MAX_DRAFT] = {0};
    for (uint32_t i = seq->n_prompt, place = 0; i < seq->n_tokens; i++) {
        place = seq->was_drafted[i] ? place + 1 : 0;
        if (place)
            at[place - 1]++;
    }
    assert_memory_equal(at, seq->stats.accepted_at, sizeof at);
}

/* Cut after any token of the text, in the middle of an accepted run or not, the sequence is what it would be had the
 * rest never been made: the next start goes on from there. */
static void a_cut_sequence_goes_on_as_if_the_rest_had_never_been(void **state) {
    (void)state;
    play y;
    play_open(&y, "gemma4-ple", 8);
    y.p = seq_params(30, 8);
    y.p.sampling.repetition_penalty = 1.1f;
    play_prompt(&y, 20, 5);
    for (uint32_t rounds = 1; rounds <= 4; rounds++)
        for (uint32_t right = 0; right <= 8; right += 2)
            for (uint32_t drop = 0; drop <= 8; drop++) {
                script_seq *c = play_start(&y, plan_fixed);
                c->n_right = right;
                y.s.seen[0] = &y.t;
                for (uint32_t r = 0; r < rounds; r++)
                    ASSERT_OK(td_round(y.s.decoder, &y.seq, 1, err));
                if (y.seq->n_tokens < 20 + drop + 1 || drop > right)
                    continue;
                uint32_t n = y.seq->n_tokens - drop;
                td_seq_cut(y.seq, n, TD_FINISH_STOP);
                assert_int_equal(y.seq->n_tokens, n);
                assert_int_equal(y.seq->finish, TD_FINISH_STOP);
                assert_int_equal(td_kv_seq_length(y.seq->kv), n - 1);
                uint32_t counted = 0;
                for (uint32_t i = 0; i < 320; i++)
                    counted += y.seq->history.generated[i];
                assert_int_equal(counted, n - 20);
                check_marks(y.seq);
                td_token more[N_CTX];
                memcpy(more, y.t.tokens, n * sizeof *more);
                for (uint32_t i = 0; i < 5; i++)
                    more[n + i] = (td_token)(50 + i);
                truth longer;
                truth_make(&longer, &y.s, more, n + 5, &y.p, N_CTX);
                seq_start(y.seq, more, n + 5, &y.p);
                assert_int_equal(y.seq->n_reused, n - 1);
                *c = (script_seq){.text = &longer, .plan = plan_fixed, .n_right = right};
                stage_play(&y.s, y.seq, &longer);
                truth_free(&longer);
            }
    play_close(&y);
}

static void a_cancelled_prefill_can_be_taken_up(void **state) {
    (void)state;
    play y;
    memset(&y, 0, sizeof y);
    script_open(&y.script, 1);
    stage_open(&y.s, &(stage_options){.prefill_rows = 7, .drafter = &y.script.base});
    y.seq = stage_seq(&y.s, N_CTX);
    y.p = seq_params(10, 4);
    play_prompt(&y, 50, 3);
    for (uint32_t rounds = 0; rounds < 7; rounds++) {
        play_start(&y, plan_fixed)->n_right = 2;
        for (uint32_t r = 0; r < rounds; r++) {
            ASSERT_OK(td_round(y.s.decoder, &y.seq, 1, err));
            assert_int_equal(td_seq_pending(y.seq), 50 - 7 * (r + 1));
        }
        td_seq_cut(y.seq, 50, TD_FINISH_CANCELLED);
        assert_int_equal(y.seq->finish, TD_FINISH_CANCELLED);
        assert_int_equal(y.seq->n_tokens, 50);
        seq_start(y.seq, y.prompt, 50, &y.p);
        assert_int_equal(y.seq->n_reused, 7 * rounds);
        stage_play(&y.s, y.seq, &y.t);
    }
    play_close(&y);
}

/* ---- drafters that fail ---- */

static void a_failing_drafter_fails_the_round_and_no_more(void **state) {
    (void)state;
    play y;
    play_open(&y, "gemma4-dense", 8);
    y.p = seq_params(30, 8);
    play_prompt(&y, 10, 2);
    script_seq *c = play_start(&y, plan_fixed);
    c->n_right = 3;
    for (uint32_t r = 0; r < 3; r++)
        ASSERT_OK(td_round(y.s.decoder, &y.seq, 1, err));
    y.script.fail_next = TD_E_DEVICE;
    td_error err;
    uint32_t n = y.seq->n_tokens;
    assert_int_equal(td_round(y.s.decoder, &y.seq, 1, &err), TD_E_DEVICE);
    assert_string_equal(err.message, "the drafter was made to fail");
    assert_int_equal(y.seq->n_tokens, n);
    stage_play(&y.s, y.seq, &y.t); /* the sequence is as before: even the same text goes on */
    play_close(&y);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_number_of_accepted_drafts_is_exact),
        cmocka_unit_test(any_mixture_is_exact),
        cmocka_unit_test(no_depth_makes_a_token_too_many),
        cmocka_unit_test(no_depth_goes_past_the_context),
        cmocka_unit_test(an_end_token_inside_an_accepted_run_ends_the_text),
        cmocka_unit_test(an_end_token_at_the_budget_is_a_stop),
        cmocka_unit_test(the_first_round_does_not_draft_and_plain_never_asks),
        cmocka_unit_test(the_sequence_s_depth_is_the_limit),
        cmocka_unit_test(a_cut_sequence_goes_on_as_if_the_rest_had_never_been),
        cmocka_unit_test(a_cancelled_prefill_can_be_taken_up),
        cmocka_unit_test(a_failing_drafter_fails_the_round_and_no_more),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
