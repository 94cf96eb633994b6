/* test_constraint.c - constrained rounds: every row's token is one that the constraint allows after the tokens before
 * it, accepted drafts included, and the text is that of plain constrained decoding, at every depth and wherever the
 * constraint begins. */
#include "decode/support_decode.h"

#include "base/alloc.h"
#include "base/rng.h"

#define N_CTX 160
#define N_NEW 50

/* Allows, as token number i of the text, the tokens t with (t + i + sum of the tokens before) % `modulus` == 0;
 * anything for the first `begins` tokens. It depends on all the past, so that one token wrongly told would show. */
typedef struct rule {
    td_constraint base;
    uint32_t n_vocab, modulus, begins;
    uint32_t i, sum;
    uint64_t *mask;
    uint32_t asked, told;
    uint32_t fails_at; /* call number of `allowed`; 0: never */
} rule;

static bool fits(const rule *r, uint32_t i, uint32_t sum, td_token t) {
    return i < r->begins || ((uint32_t)t + i + sum) % r->modulus == 0;
}

static td_status allowed(td_constraint *c, const uint64_t **mask, td_error *err) {
    rule *r = (rule *)c;
    if (++r->asked == r->fails_at)
        return td_fail(err, TD_E_LIMIT, "the rule is out of patience");
    *mask = NULL;
    if (r->i < r->begins)
        return TD_OK;
    memset(r->mask, 0, (r->n_vocab + 63) / 64 * 8);
    for (uint32_t t = 0; t < r->n_vocab; t++)
        if (fits(r, r->i, r->sum, (td_token)t))
            r->mask[t / 64] |= (uint64_t)1 << t % 64;
    *mask = r->mask;
    return TD_OK;
}

static td_status advance(td_constraint *c, td_token t, td_error *err) {
    (void)err;
    rule *r = (rule *)c;
    assert_true(fits(r, r->i, r->sum, t));
    r->i++;
    r->sum += (uint32_t)t;
    r->told++;
    return TD_OK;
}

static uint32_t accepts(td_constraint *c, const td_token *draft, uint32_t n) {
    const rule *r = (const rule *)c;
    uint32_t i = r->i, sum = r->sum, k = 0;
    for (; k < n && fits(r, i, sum, draft[k]); k++, i++)
        sum += (uint32_t)draft[k];
    return k;
}

static void close_rule(td_constraint *c) {
    rule *r = (rule *)c;
    td_free(r->mask);
    r->mask = NULL;
}

static const td_constraint_ops ops = {allowed, advance, accepts, close_rule};

static void rule_open(rule *r, uint32_t n_vocab, uint32_t modulus, uint32_t begins) {
    *r = (rule){.base = {&ops}, .n_vocab = n_vocab, .modulus = modulus, .begins = begins};
    r->mask = td_calloc((n_vocab + 63) / 64, sizeof *r->mask);
}

typedef struct text {
    td_token tokens[N_NEW];
    uint32_t n;
    uint64_t drafted, accepted;
} text;

static text play(stage *s, td_seq *seq, const td_token *prompt, uint32_t n, td_seq_params p, uint32_t modulus,
                 uint32_t begins) {
    rule r;
    rule_open(&r, s->f.model->info.n_vocab, modulus, begins);
    p.constraint = &r.base;
    seq_start(seq, prompt, n, &p);
    while (!seq->finish) {
        ASSERT_OK(td_round(s->decoder, &seq, 1, err));
        assert_int_equal(seq->status, TD_OK);
        assert_int_equal(r.told, seq->n_tokens - seq->n_prompt); /* each token once, and no rejected draft */
    }
    text t = {.n = seq->n_tokens - n, .drafted = seq->stats.drafted};
    memcpy(t.tokens, seq->tokens + n, t.n * sizeof *t.tokens);
    for (int i = 0; i < TD_MAX_DRAFT; i++)
        t.accepted += seq->stats.accepted_at[i];
    td_constraint *c = &r.base;
    td_constraint_close(&c);
    assert_null(c);
    return t;
}

static void constrained_text_is_that_of_plain_decoding(void **state) {
    (void)state;
    static const uint32_t modulus[] = {1, 2, 3, 17}, begins[] = {0, 1, 7, 30};
    stage s;
    stage_open(&s, &(stage_options){.assistant = true});
    td_seq *seq = stage_seq(&s, N_CTX);
    td_token prompt[30];
    random_prompt(prompt, 30, 4);
    uint64_t drafted = 0, accepted = 0;
    for (int m = 0; m < 4; m++)
        for (int b = 0; b < 4; b++) {
            td_seq_params p = seq_params(N_NEW, 0);
            p.sampling.temperature = b % 2 ? 0.8f : 0;
            p.sampling.seed = (uint64_t)m;
            text plain = play(&s, seq, prompt, 30, p, modulus[m], begins[b]);
            assert_int_equal(plain.drafted, 0);
            for (uint32_t depth = 1; depth <= 8; depth++) {
                p.depth = depth;
                text t = play(&s, seq, prompt, 30, p, modulus[m], begins[b]);
                assert_int_equal(t.n, plain.n);
                assert_memory_equal(t.tokens, plain.tokens, t.n * sizeof *t.tokens);
                drafted += t.drafted;
                accepted += t.accepted;
            }
        }
    assert_true(drafted > 0 && accepted > 0); /* constrained text drafts, too */
    td_seq_close(&seq);
    stage_close(&s);
}

static void script_start(td_seq *seq, const truth *t, const td_seq_params *p) {
    td_kv_seq_clear(seq->kv);
    *script_of(seq) = (script_seq){.text = t, .plan = plan_fixed, .n_right = TD_MAX_DRAFT};
    seq_start(seq, t->tokens, t->n_prompt, p);
}

/* The plain text is drafted rightly, and in the middle of an accepted run the constraint begins: the very next token is
 * constrained, and drafts from there on are cut off before they become rows. */
static void a_constraint_that_begins_inside_a_draft_holds_at_once(void **state) {
    (void)state;
    script d;
    stage s;
    script_open(&d, 1);
    stage_open(&s, &(stage_options){.drafter = &d.base});
    td_seq *seq = stage_seq(&s, N_CTX);
    td_seq_params p = seq_params(N_NEW, 8);
    p.ignore_end = true;
    td_token prompt[20];
    truth t = {0};
    random_prompt(prompt, 20, 9);
    truth_make(&t, &s, prompt, 20, &p, N_CTX);
    for (uint32_t begins = 1; begins < 20; begins++) {
        rule r;
        rule_open(&r, s.f.model->info.n_vocab, 5, begins);
        td_seq_params q = p;
        q.constraint = &r.base;
        script_start(seq, &t, &q);
        uint32_t at = 20 + begins; /* of the first constrained token */
        while (!seq->finish && seq->n_tokens <= at)
            ASSERT_OK(td_round(s.decoder, &seq, 1, err));
        assert_memory_equal(seq->tokens, t.tokens, at * sizeof *seq->tokens);
        uint32_t sum = 0;
        for (uint32_t i = 20; i < seq->n_tokens; i++) {
            assert_true(fits(&r, i - 20, sum, seq->tokens[i]));
            sum += (uint32_t)seq->tokens[i];
        }
        td_free(r.mask);
    }
    truth_free(&t);
    td_seq_close(&seq);
    stage_close(&s);
}

static void a_constraint_that_fails_ends_its_sequence_alone(void **state) {
    (void)state;
    stage s;
    stage_open(&s, &(stage_options){.max_seqs = 2});
    td_seq *seqs[2] = {stage_seq(&s, N_CTX), stage_seq(&s, N_CTX)};
    td_token prompt[20];
    random_prompt(prompt, 20, 2);
    td_seq_params p = seq_params(20, 0);
    p.ignore_end = true;
    truth t = {0};
    truth_make(&t, &s, prompt, 20, &p, N_CTX);
    td_kv_seq_clear(seqs[0]->kv);
    rule r;
    rule_open(&r, s.f.model->info.n_vocab, 1, 0);
    r.fails_at = 5;
    td_seq_params q = p;
    q.constraint = &r.base;
    seq_start(seqs[0], prompt, 20, &q);
    seq_start(seqs[1], prompt, 20, &p);
    for (int i = 0; i < 5; i++)
        ASSERT_OK(td_round(s.decoder, seqs, 2, err));
    assert_int_equal(seqs[0]->status, TD_E_LIMIT);
    assert_string_equal(seqs[0]->error.message, "the rule is out of patience");
    while (!seqs[1]->finish)
        ASSERT_OK(td_round(s.decoder, &seqs[1], 1, err));
    check_equal(seqs[1], &t, "the neighbour");
    td_free(r.mask);
    truth_free(&t);
    td_seq_close(&seqs[0]);
    td_seq_close(&seqs[1]);
    stage_close(&s);
}

/* The mask of an n-word vocabulary with one word in it decides, whatever the temperature. */
static void check_masks(td_backend *be) {
    td_sampler *s;
    td_token t;
    float logits[130];
    uint64_t mask[3] = {0};
    td_error err;
    for (int i = 0; i < 130; i++)
        logits[i] = (float)(i % 7);
    assert_int_equal(td_sampler_open(&s, be, 130, NULL), TD_OK);
    td_sampling p = {.top_p = 1, .repetition_penalty = 1};
    for (int i = 0; i < 130; i++) {
        p.temperature = (float)(i % 3);
        p.top_k = i % 2 ? 3 : 0;
        p.top_p = i % 5 ? 1 : 0.5f;
        mask[0] = mask[1] = mask[2] = 0;
        mask[i / 64] = (uint64_t)1 << i % 64;
        assert_int_equal(td_sample(s, &p, NULL, logits, NULL, mask, 130, 7, &t, NULL), TD_OK);
        assert_int_equal(t, i);
        mask[0] |= 1 << 6; /* the best, of equals the lowest */
        p.temperature = 0;
        assert_int_equal(td_sample(s, &p, NULL, logits, NULL, mask, 130, 7, &t, NULL), TD_OK);
        assert_int_equal(t, 6);
    }
    memset(mask, 0, sizeof mask);
    assert_int_equal(td_sample(s, &p, NULL, logits, NULL, mask, 130, 7, &t, &err), TD_E_NUMERIC);
    assert_string_equal(err.message, "no token is left to choose: the constraint allows none");
    td_sampler_close(&s);
}

static void a_mask_leaves_what_it_allows(void **state) {
    (void)state;
    td_backend *be;
    assert_int_equal(td_backend_cpu_open(&be, NULL, NULL), TD_OK);
    check_masks(NULL);
    check_masks(be);
    td_backend_close(&be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(constrained_text_is_that_of_plain_decoding),
        cmocka_unit_test(a_constraint_that_begins_inside_a_draft_holds_at_once),
        cmocka_unit_test(a_constraint_that_fails_ends_its_sequence_alone),
        cmocka_unit_test(a_mask_leaves_what_it_allows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
