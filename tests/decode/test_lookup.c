/* test_lookup.c - the index of n-grams against a search that looks everywhere, its cost in steps, and prompt lookup in
 * rounds: exact at every depth and temperature, and worth its while on a text that repeats itself. */
#include "decode/support_decode.h"

#include "base/alloc.h"
#include "base/rng.h"
#include "decode/drafter_lookup.h"
#include "decode/ngrams.h"
#include "decode/prefix.h"

#define N_CTX 400

/* ---- the shared prefix ---- */

static void a_prefix_ends_where_tokens_differ(void **state) {
    (void)state;
    td_token a[100], b[140];
    for (uint32_t i = 0; i < 140; i++)
        b[i] = (td_token)i;
    memcpy(a, b, sizeof a);
    assert_int_equal(td_prefix_shared(a, 0, 0, b, 140), 0);
    assert_int_equal(td_prefix_shared(a, 100, 0, b, 140), 100);
    assert_int_equal(td_prefix_shared(a, 100, 100, b, 117), 100); /* grown by a round */
    assert_int_equal(td_prefix_shared(a, 100, 100, b, 60), 60);   /* cut */
    for (uint32_t at = 0; at < 100; at++) {
        b[at]++;
        assert_int_equal(td_prefix_shared(a, 100, 100, b, 118), at); /* more than a round: compared from the start */
        assert_int_equal(td_prefix_shared(a, 100, 40, b, 90), at < 90 ? at : 90);
        /* Grown by a round: a change within the last tokens is seen; one far back is not looked for. */
        assert_int_equal(td_prefix_shared(a, 100, 100, b, 117), at >= 68 ? at : 100);
        b[at]--;
    }
    /* Drafts behind what agreed: some of them came true. */
    b[93]++;
    assert_int_equal(td_prefix_shared(a, 100, 90, b, 95), 93);
}

/* ---- the index ---- */

static td_ngrams *open_index(uint32_t n_ctx, uint32_t min, uint32_t max, uint32_t probes) {
    td_ngrams *g;
    td_ngrams_options o = {.n_ctx = n_ctx, .min_match = min, .max_match = max, .max_probes = probes};
    ASSERT_OK(td_ngrams_open(&g, &o, err));
    return g;
}

static uint32_t find(td_ngrams *g, const td_token *tokens, uint32_t n, uint32_t *next) {
    uint32_t n_tail = n < TD_NGRAM_MAX ? n : TD_NGRAM_MAX;
    return td_ngrams_find(g, tokens + n - n_tail, n_tail, next);
}

/* The longest match, the most recent of equals, by looking everywhere. */
static uint32_t search(const td_token *t, uint32_t n, uint32_t min, uint32_t max, uint32_t *next) {
    uint32_t best = 0;
    for (uint32_t place = n - 1; place > 0; place--) {
        uint32_t m = 0;
        while (m < max && m < place && t[place - 1 - m] == t[n - 1 - m])
            m++;
        if (m >= min && m > best) {
            best = m;
            *next = place;
        }
    }
    return best;
}

static uint32_t below(uint64_t stream, uint64_t i, uint32_t n) {
    return (uint32_t)(td_rng_uniform(7, stream, i) * n);
}

/* Texts over few words, cut and continued at random: after every change the index finds what a search finds. */
static void finds_what_a_search_finds(void **state) {
    (void)state;
    static const struct {
        uint32_t words, min, max;
    } cases[] = {{2, 1, 8}, {3, 2, 8}, {5, 3, 8}, {3, 1, 1}, {2, 4, 32}, {40, 1, 5}};
    static td_token t[N_CTX];
    uint32_t found = 0, asked = 0;
    for (uint32_t c = 0; c < sizeof cases / sizeof cases[0]; c++) {
        td_ngrams *g = open_index(N_CTX, cases[c].min, cases[c].max, UINT32_MAX);
        uint32_t n = 1;
        t[0] = 0;
        for (uint64_t i = 0; i < 600; i++) {
            if (below(c, 4 * i, 10) == 0)
                n = 1 + below(c, 4 * i + 1, n);
            uint32_t more = 1 + below(c, 4 * i + 2, below(c, 4 * i + 3, 10) ? 6 : 60);
            for (uint32_t j = 0; j < more && n < N_CTX; j++, n++)
                t[n] = (td_token)below(100 + c, i * 64 + j, cases[c].words);
            td_ngrams_follow(g, t, n);
            uint32_t want_next = 0, next = 0, want = search(t, n, cases[c].min, cases[c].max, &want_next);
            assert_int_equal(find(g, t, n, &next), want);
            assert_int_equal(next, want_next);
            found += want > 0;
            asked++;
            if (n == N_CTX)
                n = 1 + below(c, 4 * i + 1, n);
        }
        td_ngrams_close(&g);
    }
    assert_in_range(found, asked / 2, asked - 1);
}

/* A text behind the end of the index: what lies within is still found. */
static void a_full_index_keeps_what_it_has(void **state) {
    (void)state;
    td_token t[200];
    for (uint32_t i = 0; i < 200; i++)
        t[i] = (td_token)(i % 120);
    td_ngrams *g = open_index(100, 2, 8, 16);
    uint32_t next = 0;
    for (uint32_t n = 1; n <= 200; n++) {
        td_ngrams_follow(g, t, n);
        uint32_t length = find(g, t, n, &next);
        assert_int_equal(length, n <= 121 ? 0 : n - 120 < 8 ? n - 120 : 8);
        if (length)
            assert_int_equal(next, n - 120);
    }
    td_ngrams_close(&g);
}

/* A step is an entry made or taken back, or a place looked at. */
#define LEVELS 3u /* 2, 4, 8 */
#define PROBES 16u

static void a_round_costs_the_same_in_a_long_text(void **state) {
    (void)state;
    enum { N = 1 << 20 };
    td_token *t = td_calloc(N, sizeof *t);
    assert_non_null(t);
    /* One word; a period of 1000; few words at random; many words at random */
    for (uint32_t kind = 0; kind < 4; kind++) {
        for (uint32_t i = 0; i < N; i++)
            t[i] = kind == 0 ? 5 : kind == 1 ? (td_token)(i % 1000) : (td_token)below(kind, i, kind == 2 ? 4 : 200000);
        td_ngrams *g = open_index(N, 2, 8, PROBES);
        td_ngrams_follow(g, t, 100000); /* a prompt */
        assert_in_range(td_ngrams_steps(g), 1, 100000 * LEVELS);
        uint32_t next, n = 100000;
        for (uint32_t round = 0; n + 17 <= N; round++) {
            uint64_t before = td_ngrams_steps(g);
            uint32_t more = 1 + round % 17;
            n += more;
            td_ngrams_follow(g, t, n);
            find(g, t, n, &next);
            assert_in_range(td_ngrams_steps(g) - before, 1, LEVELS * (more + PROBES));
        }
        /* A cut costs what is cut, and what comes after it. */
        uint64_t before = td_ngrams_steps(g);
        td_ngrams_follow(g, t, n - 5000);
        assert_in_range(td_ngrams_steps(g) - before, 1, LEVELS * 5000);
        td_ngrams_close(&g);
    }
    td_free(t);
}

static void refuses_options_out_of_range(void **state) {
    (void)state;
    static const td_ngrams_options bad[] = {{0, 2, 8, 16},    {100, 0, 8, 16}, {100, 9, 8, 16},
                                            {100, 2, 33, 16}, {100, 2, 8, 0},  {UINT32_MAX, 2, 8, 16}};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        td_drafter *d;
        td_error err;
        td_drafter_lookup_options o = {.max_seqs = 1, .ngrams = bad[i]};
        assert_int_equal(td_drafter_lookup_open(&d, &o, &err), TD_E_ARG);
        assert_null(d);
    }
}

/* ---- drafts ---- */

static bool ends_at_9(const void *user, td_token t) {
    (void)user;
    return t == 9;
}

static td_drafter *open_lookup(uint32_t max_seqs) {
    td_drafter *d;
    td_drafter_lookup_options o = td_drafter_lookup_options_default();
    o.max_seqs = max_seqs;
    o.ngrams.n_ctx = 4096;
    ASSERT_OK(td_drafter_lookup_open(&d, &o, err));
    return d;
}

/* What is drafted after `text`, of its own index. */
static uint32_t draft_after(const td_token *text, uint32_t n, uint32_t depth, td_token *out) {
    td_drafter *d = open_lookup(1);
    td_draft b = {.tokens = text, .n_tokens = n, .is_end = ends_at_9, .depth = depth, .out = out, .n_out = 5};
    ASSERT_OK(d->ops->open_seq(d, &b.state, err));
    ASSERT_OK(d->ops->draft(d, &b, 1, err));
    d->ops->close_seq(d, b.state);
    td_drafter_close(&d);
    return b.n_out;
}

static void drafts_what_followed(void **state) {
    (void)state;
    static const struct {
        const char *what;
        td_token text[16];
        uint32_t n, depth;
        td_token draft[16];
        uint32_t n_draft;
    } cases[] = {
        {"nothing repeats", {1, 2, 3, 4, 5}, 5, 4, {0}, 0},
        {"one token is no match", {1, 2, 3, 1}, 4, 4, {0}, 0},
        {"two are", {1, 2, 3, 4, 1, 2}, 6, 2, {3, 4}, 2},
        {"a draft reads on in itself", {1, 2, 3, 1, 2}, 5, 8, {3, 1, 2, 3, 1, 2, 3, 1}, 8},
        {"a loop of one", {7, 7, 7}, 3, 5, {7, 7, 7, 7, 7}, 5},
        {"the longer match", {1, 2, 3, 4, 0, 2, 3, 5, 1, 2, 3}, 11, 1, {4}, 1},
        {"the later of equals", {2, 3, 4, 0, 2, 3, 5, 1, 2, 3}, 10, 1, {5}, 1},
        {"an end token ends it", {1, 2, 9, 3, 1, 2}, 6, 4, {9}, 1},
        {"also later", {1, 2, 3, 9, 1, 2}, 6, 4, {3, 9}, 2},
        {"one token of text", {1}, 1, 4, {0}, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_token out[TD_MAX_DRAFT];
        uint32_t n = draft_after(cases[i].text, cases[i].n, cases[i].depth, out);
        if (n != cases[i].n_draft || memcmp(out, cases[i].draft, n * sizeof *out) != 0)
            fail_msg("%s: %u drafts, the first of them %d", cases[i].what, n, n ? out[0] : -1);
    }
}

static void survives_every_failing_allocation(void **state) {
    (void)state;
    for (long k = 0;; k++) {
        long live = td_alloc_live();
        td_token text[] = {1, 2, 3, 1, 2}, out[4];
        td_drafter *d = NULL;
        td_draft b = {.tokens = text, .n_tokens = 5, .is_end = ends_at_9, .depth = 4, .out = out};
        td_drafter_lookup_options o = td_drafter_lookup_options_default();
        td_alloc_fail_at(k);
        td_status st = td_drafter_lookup_open(&d, &o, NULL);
        if (st == TD_OK)
            st = d->ops->open_seq(d, &b.state, NULL);
        if (st == TD_OK) { /* a draft allocates nothing */
            bool failed = td_alloc_failed();
            td_alloc_fail_at(0);
            ASSERT_OK(d->ops->draft(d, &b, 1, err));
            assert_false(td_alloc_failed());
            assert_false(failed);
            assert_int_equal(b.n_out, 4);
        } else {
            assert_int_equal(st, TD_E_NOMEM);
            assert_null(b.state);
        }
        td_alloc_fail_at(-1);
        if (b.state)
            d->ops->close_seq(d, b.state);
        td_drafter_close(&d);
        assert_int_equal(td_alloc_live(), live);
        if (st == TD_OK)
            return;
    }
}

/* ---- rounds ---- */

static const char *const fixtures[] = {"gemma4-dense", "gemma4-ple", "gemma4-moe"};
static const float temperatures[] = {0, 0.8f};

/* A prompt of which half is said twice. */
static void echoing_prompt(td_token *prompt, uint32_t n, uint64_t stream) {
    random_prompt(prompt, n, stream);
    for (uint32_t i = 0; i < n / 3; i++)
        prompt[n - n / 3 + i] = prompt[n / 3 + i];
}

static void text_is_that_of_plain_decoding(void **state) {
    (void)state;
    td_drafter *d = open_lookup(1);
    uint64_t drafted = 0;
    for (size_t f = 0; f < 3; f++) {
        stage s;
        assert_true(stage_open(&s, &(stage_options){.fixture = fixtures[f], .drafter = d}));
        for (uint32_t c = 0; c < 4; c++) {
            static const uint32_t lengths[] = {1, 13, 40, 100};
            td_token prompt[100];
            echoing_prompt(prompt, lengths[c], c);
            td_seq_params p = seq_params(60, 0);
            p.sampling.temperature = temperatures[c % 2];
            p.sampling.seed = c;
            truth t;
            truth_make(&t, &s, prompt, lengths[c], &p, N_CTX);
            td_seq *seq = stage_seq(&s, N_CTX);
            for (p.depth = 0; p.depth <= 8; p.depth++) {
                seq_start(seq, prompt, lengths[c], &p);
                stage_play(&s, seq, &t);
                drafted += seq->stats.drafted;
            }
            td_seq_close(&seq);
            truth_free(&t);
        }
        stage_close(&s);
    }
    td_drafter_close(&d);
    assert_true(drafted > 0);
}

/* A model that may use eight of its words repeats itself before long. Counted over the whole text, the way into the
 * loop included. */
static void a_text_that_repeats_itself_takes_half_the_rounds(void **state) {
    (void)state;
    enum { N_WORDS = 320, N_TEXT = 300 };
    td_logit_bias banned[N_WORDS];
    for (td_token w = 0; w < N_WORDS; w++)
        banned[w] = (td_logit_bias){w, w % 40 == 3 ? 0 : -INFINITY};
    td_token prompt[24];
    random_prompt(prompt, 24, 1);
    td_drafter *d = open_lookup(1);
    for (size_t f = 0; f < 3; f++) {
        stage s;
        assert_true(stage_open(&s, &(stage_options){.fixture = fixtures[f], .drafter = d}));
        td_seq_params p = seq_params(N_TEXT, 0);
        p.sampling.bias = banned;
        p.sampling.n_bias = N_WORDS;
        truth t;
        truth_make(&t, &s, prompt, 24, &p, N_CTX);
        td_seq *seq = stage_seq(&s, N_CTX);
        for (p.depth = 2; p.depth <= 8; p.depth += 2) {
            seq_start(seq, prompt, 24, &p);
            stage_play(&s, seq, &t);
            double per_round = (double)N_TEXT / seq->stats.rounds;
            print_message("%s, depth %u: %.2f tokens a round\n", fixtures[f], p.depth, per_round);
            assert_true(per_round >= 2);
        }
        td_seq_close(&seq);
        truth_free(&t);
        stage_close(&s);
    }
    td_drafter_close(&d);
}

/* One sequence, one prompt after the other: exact, and drafting as a new sequence would. */
static void another_prompt_forgets_the_last(void **state) {
    (void)state;
    td_drafter *d = open_lookup(1);
    stage s;
    assert_true(stage_open(&s, &(stage_options){.drafter = d}));
    td_seq *seq = stage_seq(&s, N_CTX);
    static const uint32_t lengths[] = {90, 30, 31, 100, 100, 12, 95};
    for (uint32_t i = 0; i < 7; i++) {
        td_token prompt[100];
        echoing_prompt(prompt, lengths[i], i % 3); /* prompts of one stream share a prefix */
        td_seq_params p = seq_params(40, 5);
        truth t;
        truth_make(&t, &s, prompt, lengths[i], &p, N_CTX);
        td_seq *fresh = stage_seq(&s, N_CTX);
        seq_start(seq, prompt, lengths[i], &p);
        seq_start(fresh, prompt, lengths[i], &p);
        stage_play(&s, seq, &t);
        stage_play(&s, fresh, &t);
        assert_memory_equal(&seq->stats, &fresh->stats, sizeof seq->stats);
        td_seq_close(&fresh);
        truth_free(&t);
    }
    td_seq_close(&seq);
    stage_close(&s);
    td_drafter_close(&d);
}

static void sequences_of_a_round_keep_apart(void **state) {
    (void)state;
    enum { N = 4 };
    td_drafter *d = open_lookup(N);
    stage s;
    assert_true(stage_open(&s, &(stage_options){.drafter = d, .max_seqs = N, .prefill_rows = 16}));
    td_seq *seqs[N];
    truth t[N];
    for (uint32_t i = 0; i < N; i++) {
        td_token prompt[60];
        uint32_t n = 20 + 13 * i;
        echoing_prompt(prompt, n, i);
        td_seq_params p = seq_params(80, 2 * i);
        p.sampling.temperature = temperatures[i % 2];
        truth_make(&t[i], &s, prompt, n, &p, N_CTX);
        seqs[i] = stage_seq(&s, N_CTX);
        seq_start(seqs[i], prompt, n, &p);
    }
    for (;;) {
        td_seq *going[N];
        uint32_t n = 0;
        for (uint32_t i = 0; i < N; i++)
            if (!seqs[i]->finish)
                going[n++] = seqs[i];
        if (!n)
            break;
        ASSERT_OK(td_round(s.decoder, going, n, err));
    }
    for (uint32_t i = 0; i < N; i++) {
        check_equal(seqs[i], &t[i], "four at once");
        td_seq_close(&seqs[i]);
        truth_free(&t[i]);
    }
    stage_close(&s);
    td_drafter_close(&d);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_prefix_ends_where_tokens_differ),
        cmocka_unit_test(finds_what_a_search_finds),
        cmocka_unit_test(a_full_index_keeps_what_it_has),
        cmocka_unit_test(a_round_costs_the_same_in_a_long_text),
        cmocka_unit_test(refuses_options_out_of_range),
        cmocka_unit_test(drafts_what_followed),
        cmocka_unit_test(survives_every_failing_allocation),
        cmocka_unit_test(text_is_that_of_plain_decoding),
        cmocka_unit_test(a_text_that_repeats_itself_takes_half_the_rounds),
        cmocka_unit_test(another_prompt_forgets_the_last),
        cmocka_unit_test(sequences_of_a_round_keep_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
