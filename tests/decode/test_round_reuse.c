/* test_round_reuse.c - starting a sequence again: the keys of the shared prefix are kept where they can be, and what
 * follows is bit for bit what a cold run gives, for every point at which the new prompt parts from the old text, also
 * after the sliding window has wrapped. */
#include "decode/support_decode.h"

#include "base/rng.h"

#define N_CTX 200

static void plan_random(script_seq *s, uint32_t depth, uint32_t *n_right, uint32_t *n_out) {
    *n_out = (uint32_t)(td_rng_uniform(77, s->calls, 0) * (depth + 1));
    *n_right = (uint32_t)(td_rng_uniform(77, s->calls, 1) * (*n_out + 1));
}

typedef struct reuse {
    script script;
    stage s;
    td_seq *seq;
    td_seq_params p;
    truth old; /* what the sequence holds before each case */
    uint32_t kept, cold;
} reuse;

static void reuse_open(reuse *r, const stage_options *o, uint32_t n_prompt, uint32_t n_new) {
    memset(r, 0, sizeof *r);
    script_open(&r->script, 1);
    stage_options with = *o;
    with.drafter = &r->script.base;
    stage_open(&r->s, &with);
    r->seq = stage_seq(&r->s, N_CTX);
    r->p = seq_params(n_new, with.max_depth ? with.max_depth : 8);
    td_token prompt[N_CTX];
    random_prompt(prompt, n_prompt, n_prompt);
    truth_make(&r->old, &r->s, prompt, n_prompt, &r->p, N_CTX);
}

static void reuse_close(reuse *r) {
    td_seq_close(&r->seq);
    truth_free(&r->old);
    stage_close(&r->s);
}

static void play(reuse *r, const truth *t) {
    *script_of(r->seq) = (script_seq){.text = t, .plan = plan_random};
    stage_play(&r->s, r->seq, t);
}

static void hold_old(reuse *r) {
    td_kv_seq_clear(r->seq->kv);
    seq_start(r->seq, r->old.tokens, r->old.n_prompt, &r->p);
    play(r, &r->old);
}

static uint32_t shared(const reuse *r, const td_token *prompt, uint32_t n) {
    uint32_t i = 0, have = td_kv_seq_length(r->seq->kv);
    while (i < n && i < have && prompt[i] == r->old.tokens[i])
        i++;
    return i < n ? i : n - 1; /* the newest token is always fed */
}

/* The old text up to `split`, then `n_tail` tokens of another; must equal a cold run of the same prompt. */
static void start_at(reuse *r, uint32_t split, uint32_t n_tail) {
    td_token prompt[N_CTX];
    random_prompt(prompt, N_CTX, 5000 + split);
    memcpy(prompt, r->old.tokens, split * sizeof *prompt);
    uint32_t n = split + n_tail;
    td_seq_params p = r->p;
    p.max_tokens = 8;
    truth t;
    truth_make(&t, &r->s, prompt, n, &p, N_CTX);
    hold_old(r);
    uint32_t expected = shared(r, prompt, n), length = td_kv_seq_length(r->seq->kv);
    seq_start(r->seq, prompt, n, &p);
    uint32_t margin = r->p.depth + 1;
    if (r->seq->n_reused != expected && (r->seq->n_reused != 0 || expected + margin >= length))
        fail_msg("split %u of %u: %u tokens reused, expected %u", split, length, r->seq->n_reused, expected);
    r->kept += r->seq->n_reused > 0;
    r->cold += r->seq->n_reused == 0;
    assert_int_equal(td_seq_pending(r->seq), n - r->seq->n_reused);
    play(r, &t);
    truth_free(&t);
}

static void every_split(const stage_options *o, uint32_t n_prompt, uint32_t n_new) {
    reuse r;
    reuse_open(&r, o, n_prompt, n_new);
    for (uint32_t split = 0; split <= r.old.n; split++) {
        if (split)
            start_at(&r, split, 0);
        start_at(&r, split, 1);
        start_at(&r, split, 9);
    }
    assert_true(r.kept > 0 && r.cold > 0);
    reuse_close(&r);
}

static void every_split_equals_cold_dense(void **state) {
    (void)state;
    every_split(&(stage_options){.fixture = "gemma4-dense", .prefill_rows = 7}, 30, 30);
}

static void every_split_equals_cold_per_layer_inputs(void **state) {
    (void)state;
    every_split(&(stage_options){.fixture = "gemma4-ple", .kv = TD_KV_BF16}, 30, 30);
    every_split(&(stage_options){.fixture = "gemma4-ple", .kv = TD_KV_F32, .max_depth = 2, .page_tokens = 16}, 40, 9);
}

static void every_split_equals_cold_experts(void **state) {
    (void)state;
    every_split(&(stage_options){.fixture = "gemma4-moe", .max_depth = 1}, 50, 11);
}

/* A text shorter than the window has lost nothing: every split is kept. */
static void before_the_window_wraps_every_prefix_is_kept(void **state) {
    (void)state;
    reuse r;
    reuse_open(&r, &(stage_options){.fixture = "gemma4-dense"}, 6, 6);
    for (uint32_t split = 1; split <= r.old.n; split++)
        start_at(&r, split, 3);
    assert_int_equal(r.cold, 0);
    reuse_close(&r);
}

/* A conversation: each turn's prompt is the last turn's text and more. Only what is new is evaluated. */
static void each_turn_evaluates_only_what_is_new(void **state) {
    (void)state;
    reuse r;
    reuse_open(&r, &(stage_options){.fixture = "gemma4-ple", .prefill_rows = 16}, 10, 10);
    hold_old(&r);
    td_token text[N_CTX];
    uint32_t n = r.old.n;
    memcpy(text, r.old.tokens, n * sizeof *text);
    for (uint32_t turn = 1; turn < 8; turn++) {
        uint32_t held = n;
        for (uint32_t i = 0; i < 1 + 2 * turn; i++)
            text[n++] = (td_token)(10 + 13 * turn + i);
        truth t;
        truth_make(&t, &r.s, text, n, &r.p, N_CTX);
        seq_start(r.seq, text, n, &r.p);
        assert_int_equal(r.seq->n_reused, held - 1);
        uint64_t rows = r.s.rows, drafts;
        play(&r, &t);
        drafts = r.seq->stats.drafted;
        assert_int_equal(r.s.rows - rows, n - (held - 1) + (r.seq->stats.rounds - 1) + drafts);
        n = t.n;
        memcpy(text, t.tokens, n * sizeof *text);
        truth_free(&t);
    }
    reuse_close(&r);
}

static void the_assistant_drafts_on_reused_keys(void **state) {
    (void)state;
    static const char *const fixtures[] = {"gemma4-dense", "gemma4-ple", "gemma4-moe"};
    for (size_t f = 0; f < 3; f++) {
        stage s;
        stage_open(&s, &(stage_options){.fixture = fixtures[f], .assistant = true, .max_depth = 4});
        td_seq *seq = stage_seq(&s, N_CTX);
        td_seq_params p = seq_params(20, 4);
        td_token prompt[N_CTX];
        random_prompt(prompt, N_CTX, 40 + f);
        for (uint32_t n = 8; n < 140; n += 1 + n % 11) { /* grows, and parts from the text generated before */
            truth t;
            truth_make(&t, &s, prompt, n, &p, N_CTX);
            seq_start(seq, prompt, n, &p);
            stage_play(&s, seq, &t);
            truth_free(&t);
        }
        td_seq_close(&seq);
        stage_close(&s);
    }
}

/* A refused start leaves the sequence where it was, in the middle of its text. */
static void a_refused_start_changes_nothing(void **state) {
    (void)state;
    reuse r;
    reuse_open(&r, &(stage_options){.fixture = "gemma4-dense"}, 10, 30);
    td_seq *seq = r.seq;
    seq_start(seq, r.old.tokens, 10, &r.p);
    *script_of(seq) = (script_seq){.text = &r.old, .plan = plan_random};
    td_seq_params good = r.p, deep = r.p, none = r.p, hot = r.p;
    deep.depth = 9;
    none.max_tokens = 0;
    hot.sampling.temperature = 200;
    td_token one = 5, outside[3] = {5, 6, 320}, negative[2] = {-1, 0}, many[N_CTX + 1] = {0};
    const struct {
        const td_token *prompt;
        uint32_t n;
        const td_seq_params *p;
        td_status status;
        int64_t position;
        const char *message;
    } cases[] = {
        {&one, 0, &good, TD_E_ARG, -1, "an empty prompt, expected at least one token"},
        {many, N_CTX, &good, TD_E_LIMIT, -1,
         "a prompt of 200 tokens, but the context holds 200, one of which must be left to answer"},
        {many, N_CTX + 1, &good, TD_E_LIMIT, -1,
         "a prompt of 201 tokens, but the context holds 200, one of which must be left to answer"},
        {outside, 3, &good, TD_E_ARG, 2, "prompt token 2 is 320, expected 0 to 319"},
        {negative, 2, &good, TD_E_ARG, 0, "prompt token 0 is -1, expected 0 to 319"},
        {&one, 1, &deep, TD_E_ARG, -1, "30 tokens at depth 9, expected at least 1 and at most depth 8"},
        {&one, 1, &none, TD_E_ARG, -1, "0 tokens at depth 8, expected at least 1 and at most depth 8"},
        {&one, 1, &hot, TD_E_ARG, -1, "temperature is 200, expected 0 to 100"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_error e = {0};
        r.s.seen[0] = &r.old;
        if (!seq->finish)
            ASSERT_OK(td_round(r.s.decoder, &seq, 1, err));
        assert_int_equal(td_seq_start(seq, cases[i].prompt, cases[i].n, cases[i].p, &e), cases[i].status);
        assert_string_equal(e.message, cases[i].message);
        assert_int_equal(e.position, cases[i].position);
    }
    stage_play(&r.s, seq, &r.old);
    reuse_close(&r);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_equals_cold_dense),
        cmocka_unit_test(every_split_equals_cold_per_layer_inputs),
        cmocka_unit_test(every_split_equals_cold_experts),
        cmocka_unit_test(before_the_window_wraps_every_prefix_is_kept),
        cmocka_unit_test(each_turn_evaluates_only_what_is_new),
        cmocka_unit_test(the_assistant_drafts_on_reused_keys),
        cmocka_unit_test(a_refused_start_changes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
