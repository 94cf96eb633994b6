/* test_chain.c - lookup behind another drafter: it appends to what the other one drafts and changes none of it; and in
 * rounds the text is that of plain decoding. */
#include "decode/support_decode.h"

#include "base/alloc.h"
#include "decode/drafter_chain.h"
#include "decode/drafter_model.h"

#define N_CTX 400
#define END 9

/* ---- an inner drafter that says what it is told, and checks what it is given ---- */

typedef struct teller {
    td_drafter base;
    const td_token *says;
    uint32_t n_says;
    td_status status;
    uint32_t asked; /* the last depth */
    int open, opened;
    bool closed;
    uint32_t observed, rewound;
} teller;

static td_status teller_open_seq(td_drafter *base, void **state, td_error *err) {
    teller *t = (teller *)base;
    (void)err;
    t->open++;
    t->opened++;
    *state = &t->opened;
    return t->status == TD_E_NOMEM ? td_fail(err, TD_E_NOMEM, "no") : TD_OK;
}

static void teller_close_seq(td_drafter *base, void *state) {
    teller *t = (teller *)base;
    assert_ptr_equal(state, &t->opened);
    t->open--;
}

static td_status teller_draft(td_drafter *base, td_draft *batch, uint32_t n, td_error *err) {
    teller *t = (teller *)base;
    if (t->status != TD_OK)
        return td_fail(err, t->status, "told to fail");
    for (uint32_t r = 0; r < n; r++) {
        assert_ptr_equal(batch[r].state, base->ops->open_seq ? &t->opened : NULL);
        t->asked = batch[r].depth;
        batch[r].n_out = t->n_says < batch[r].depth ? t->n_says : batch[r].depth;
        memcpy(batch[r].out, t->says, batch[r].n_out * sizeof *t->says);
    }
    return TD_OK;
}

static td_status teller_observe(td_drafter *base, const td_observed *rows, td_error *err) {
    teller *t = (teller *)base;
    assert_ptr_equal(rows->state, &t->opened);
    t->observed += rows->n_rows;
    return t->status == TD_OK ? TD_OK : td_fail(err, t->status, "told to fail");
}

static void teller_rewind(td_drafter *base, void *state, uint32_t n_rows, const float *hidden) {
    teller *t = (teller *)base;
    assert_ptr_equal(state, &t->opened);
    assert_null(hidden);
    t->rewound = n_rows;
}

static void teller_close(td_drafter *base) {
    ((teller *)base)->closed = true;
}

static void teller_init(teller *t) {
    static const td_drafter_ops ops = {.open_seq = teller_open_seq,
                                       .close_seq = teller_close_seq,
                                       .draft = teller_draft,
                                       .close = teller_close,
                                       .observe = teller_observe,
                                       .rewind = teller_rewind};
    *t = (teller){.base = {.ops = &ops, .kind = "teller", .format = "words", .weight_bytes = 7, .max_seqs = 2}};
}

static bool is_end(const void *user, td_token t) {
    (void)user;
    return t == END;
}

static td_drafter *chain(td_drafter *inner, uint32_t inner_depth) {
    td_drafter *d;
    td_drafter_chain_options o = td_drafter_chain_options_default();
    o.ngrams.n_ctx = N_CTX;
    o.inner_depth = inner_depth;
    ASSERT_OK(td_drafter_chain_open(&d, inner, &o, err));
    return d;
}

static void lookup_appends_and_shortens_nothing(void **state) {
    (void)state;
    static const struct {
        const char *what;
        td_token text[16];
        uint32_t n, depth, inner_depth;
        td_token says[8];
        uint32_t n_says;
        td_token draft[16];
        uint32_t n_draft;
    } cases[] = {
        {"both agree", {1, 2, 3, 4, 5, 6, 1, 2}, 8, 4, 0, {3, 4}, 2, {3, 4, 5, 6}, 4},
        {"lookup alone would say otherwise", {1, 2, 3, 4, 7, 3, 5, 1, 2}, 9, 4, 0, {7, 3}, 2, {7, 3, 5, 1}, 4},
        {"the text never said so", {1, 2, 3, 4, 5, 6, 1, 2}, 8, 4, 0, {3, 8}, 2, {3, 8}, 2},
        {"the inner one is silent", {1, 2, 3, 4, 5, 6, 1, 2}, 8, 4, 0, {0}, 0, {3, 4, 5, 6}, 4},
        {"the inner one says it all", {1, 2, 3, 4, 5, 6, 1, 2}, 8, 2, 0, {8, 8}, 2, {8, 8}, 2},
        {"the inner one ends", {1, 2, END, 4, 5, 6, 1, 2}, 8, 4, 0, {END}, 1, {END}, 1},
        {"lookup ends", {1, 2, 3, END, 5, 6, 1, 2}, 8, 8, 0, {3}, 1, {3, END}, 2},
        {"the inner one is asked for less", {1, 2, 3, 4, 5, 6, 1, 2}, 8, 4, 1, {3, 8, 8}, 3, {3, 4, 5, 6}, 4},
        {"a limit above the depth", {1, 2, 3, 4, 5, 6, 1, 2}, 8, 2, 5, {3, 4, 5}, 3, {3, 4}, 2},
        {"into the draft and round", {1, 2, 3, 1}, 4, 6, 0, {2}, 1, {2, 3, 1, 2, 3, 1}, 6},
        {"neither", {1, 2, 3, 4}, 4, 4, 0, {0}, 0, {0}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        teller t;
        teller_init(&t);
        t.says = cases[i].says;
        t.n_says = cases[i].n_says;
        td_drafter *d = chain(&t.base, cases[i].inner_depth);
        td_token out[2][TD_MAX_DRAFT];
        td_draft b[2];
        for (uint32_t r = 0; r < 2; r++) {
            b[r] =
                (td_draft){.tokens = cases[i].text, .n_tokens = cases[i].n, .is_end = is_end, .depth = cases[i].depth};
            b[r].out = out[r];
            ASSERT_OK(d->ops->open_seq(d, &b[r].state, err));
        }
        ASSERT_OK(d->ops->draft(d, b, 2, err));
        for (uint32_t r = 0; r < 2; r++) {
            if (b[r].n_out != cases[i].n_draft || memcmp(out[r], cases[i].draft, b[r].n_out * sizeof *out[r]) != 0)
                fail_msg("%s: %u drafts, the last of them %d", cases[i].what, b[r].n_out,
                         b[r].n_out ? out[r][b[r].n_out - 1] : -1);
            d->ops->close_seq(d, b[r].state);
        }
        uint32_t limit = cases[i].inner_depth;
        assert_int_equal(t.asked, limit && limit < cases[i].depth ? limit : cases[i].depth);
        td_drafter_close(&d);
        assert_int_equal(t.open, 0);
        assert_true(t.closed);
    }
}

static void an_inner_drafter_may_keep_nothing(void **state) {
    (void)state;
    static const td_drafter_ops ops = {.draft = teller_draft, .close = teller_close};
    static const td_token text[] = {1, 2, 3, 1, 2}, says[] = {3};
    teller t;
    teller_init(&t);
    t.base.ops = &ops;
    t.says = says;
    t.n_says = 1;
    td_drafter *d = chain(&t.base, 0);
    td_token out[3];
    td_draft b = {.tokens = text, .n_tokens = 5, .is_end = is_end, .depth = 3, .out = out};
    ASSERT_OK(d->ops->open_seq(d, &b.state, err));
    ASSERT_OK(d->ops->draft(d, &b, 1, err));
    assert_int_equal(b.n_out, 3);
    d->ops->close_seq(d, b.state);
    td_drafter_close(&d);
}

static void an_inner_drafter_sees_what_it_asked_to_see(void **state) {
    (void)state;
    teller t;
    teller_init(&t);
    t.base.all_rows = true;
    td_drafter *d = chain(&t.base, 0);
    assert_true(d->all_rows);
    td_observed rows = {.n_rows = 5};
    td_error e;
    ASSERT_OK(d->ops->open_seq(d, &rows.state, err));
    ASSERT_OK(d->ops->observe(d, &rows, err));
    assert_int_equal(t.observed, 5);
    d->ops->rewind(d, rows.state, 3, NULL);
    assert_int_equal(t.rewound, 3);
    t.status = TD_E_DEVICE;
    assert_int_equal(d->ops->observe(d, &rows, &e), TD_E_DEVICE);
    d->ops->close_seq(d, rows.state);
    td_drafter_close(&d);
}

static void says_what_it_is(void **state) {
    (void)state;
    teller t;
    teller_init(&t);
    td_drafter *d = chain(&t.base, 0);
    assert_string_equal(d->kind, "teller+lookup");
    assert_string_equal(d->format, "words");
    assert_int_equal(d->weight_bytes, 7);
    assert_int_equal(d->max_seqs, 2);
    assert_false(d->all_rows);
    td_ngrams_options o = td_ngrams_options_default();
    o.n_ctx = N_CTX;
    assert_true(d->heap_bytes >= 2 * td_ngrams_bytes(&o));
    td_drafter_close(&d);
}

static void failures_come_through(void **state) {
    (void)state;
    static const td_token text[] = {1, 2};
    teller t;
    teller_init(&t);
    td_drafter *d;
    td_error e;
    td_drafter_chain_options o = td_drafter_chain_options_default();
    o.ngrams.max_match = 0;
    assert_int_equal(td_drafter_chain_open(&d, &t.base, &o, &e), TD_E_ARG);
    assert_null(d);
    assert_false(t.closed);
    d = chain(&t.base, 0);
    td_token out[2];
    td_draft b = {.tokens = text, .n_tokens = 2, .is_end = is_end, .depth = 2, .out = out};
    ASSERT_OK(d->ops->open_seq(d, &b.state, err));
    t.status = TD_E_DEVICE;
    assert_int_equal(d->ops->draft(d, &b, 1, &e), TD_E_DEVICE);
    assert_string_equal(e.message, "told to fail");
    d->ops->close_seq(d, b.state);
    td_drafter_close(&d);
}

static void survives_every_failing_allocation(void **state) {
    (void)state;
    for (long k = 0;; k++) {
        long live = td_alloc_live();
        teller t;
        teller_init(&t);
        td_drafter *d = NULL;
        void *seq = NULL;
        td_drafter_chain_options o = td_drafter_chain_options_default();
        td_alloc_fail_at(k);
        td_status st = td_drafter_chain_open(&d, &t.base, &o, NULL);
        if (st == TD_OK)
            st = d->ops->open_seq(d, &seq, NULL);
        bool failed = td_alloc_failed();
        td_alloc_fail_at(-1);
        assert_int_equal(st, failed ? TD_E_NOMEM : TD_OK);
        if (seq)
            d->ops->close_seq(d, seq);
        assert_int_equal(t.open, 0);
        td_drafter_close(&d);
        assert_int_equal(td_alloc_live(), live);
        if (!failed)
            return;
    }
}

/* ---- rounds ---- */

/* A stage whose drafter is lookup behind the fixture's own assistant. */
static void chain_stage(stage *s, const stage_options *o, uint32_t inner_depth) {
    assert_true(stage_open(s, o));
    td_decoder_options d = {.max_seqs = 1, .prefill_rows = 64, .max_depth = 8};
    td_decoder_close(&s->decoder);
    s->owned_drafter = s->drafter = chain(s->owned_drafter, inner_depth);
    ASSERT_OK(td_decoder_open(&s->decoder, s->f.model, s->drafter, s->pool, &d, err));
}

static const char *const fixtures[] = {"gemma4-dense", "gemma4-ple", "gemma4-moe"};

static void text_is_that_of_plain_decoding(void **state) {
    (void)state;
    for (uint32_t i = 0; i < 12; i++) {
        stage s;
        chain_stage(&s, &(stage_options){.fixture = fixtures[i % 3], .assistant = true}, i % 4);
        td_token prompt[60];
        uint32_t n = 1 + 5 * i;
        random_prompt(prompt, n, i);
        for (uint32_t j = n / 2; j + n / 3 < n; j++)
            prompt[j] = prompt[j - n / 3];
        td_seq_params p = seq_params(60, 0);
        p.sampling.temperature = i % 2 ? 0.8f : 0;
        p.sampling.seed = i;
        truth t;
        truth_make(&t, &s, prompt, n, &p, N_CTX);
        td_seq *seq = stage_seq(&s, N_CTX);
        for (p.depth = 0; p.depth <= 8; p.depth++) {
            seq_start(seq, prompt, n, &p);
            stage_play(&s, seq, &t);
        }
        td_seq_close(&seq);
        truth_free(&t);
        stage_close(&s);
    }
}

static uint32_t rounds_of(td_drafter *d, const td_seq_params *p) {
    stage s;
    assert_true(stage_open(&s, &(stage_options){.drafter = d}));
    td_token prompt[24];
    random_prompt(prompt, 24, 1);
    truth t;
    truth_make(&t, &s, prompt, 24, p, N_CTX);
    td_seq *seq = stage_seq(&s, N_CTX);
    seq_start(seq, prompt, 24, p);
    stage_play(&s, seq, &t);
    uint32_t rounds = seq->stats.rounds;
    td_seq_close(&seq);
    truth_free(&t);
    stage_close(&s);
    return rounds;
}

/* A head that is right for two tokens, on a text that repeats itself: what lookup appends is accepted, too. */
static void lookup_goes_on_where_a_head_stops(void **state) {
    (void)state;
    enum { N_WORDS = 320, N_TEXT = 300 };
    td_logit_bias banned[N_WORDS];
    for (td_token w = 0; w < N_WORDS; w++)
        banned[w] = (td_logit_bias){w, w % 40 == 3 ? 0 : -INFINITY};
    td_seq_params p = seq_params(N_TEXT, 2);
    p.sampling.bias = banned;
    p.sampling.n_bias = N_WORDS;
    td_backend *be = fixture_backend("cpu");
    char path[512];
    td_checkpoint *ck;
    td_drafter *head;
    td_drafter_model_options o = td_drafter_model_options_default();
    o.kv_type = TD_KV_F32;
    o.n_ctx = N_CTX;
    ASSERT_OK(td_checkpoint_open(&ck, fixture_path("gemma4-dense", NULL, path, sizeof path), NULL, err));
    ASSERT_OK(td_drafter_model_open(&head, ck, be, N_WORDS, &o, err));
    uint32_t alone = rounds_of(head, &p);
    p.depth = 8;
    td_drafter *both = chain(head, 2);
    uint32_t together = rounds_of(both, &p);
    print_message("a head of depth 2: %.2f tokens a round; with lookup to depth 8: %.2f\n", (double)N_TEXT / alone,
                  (double)N_TEXT / together);
    assert_int_equal(alone, 2 + (N_TEXT - 2 + 2) / 3); /* the second round reads the prompt */
    assert_true(2 * together < alone);
    td_drafter_close(&both);
    td_checkpoint_close(&ck);
    td_backend_close(&be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lookup_appends_and_shortens_nothing),
        cmocka_unit_test(an_inner_drafter_may_keep_nothing),
        cmocka_unit_test(an_inner_drafter_sees_what_it_asked_to_see),
        cmocka_unit_test(says_what_it_is),
        cmocka_unit_test(failures_come_through),
        cmocka_unit_test(survives_every_failing_allocation),
        cmocka_unit_test(text_is_that_of_plain_decoding),
        cmocka_unit_test(lookup_goes_on_where_a_head_stops),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
