/* test_draft_model.c - a whole model as drafter: it changes no text, agrees with a trunk of the same weights always,
 * and drafts after any history of rounds and prompts what it would draft having seen nothing else. */
#include "decode/support_decode.h"

#include "base/alloc.h"
#include "decode/drafter_model.h"

#define N_CTX 400
#define N_VOCAB 320

static const char *const fixtures[] = {"gemma4-dense", "gemma4-ple", "gemma4-moe", "qwen35-dense", "qwen35-moe"};
#define N_FIXTURES (sizeof fixtures / sizeof fixtures[0])
static const float temperatures[] = {0, 0.8f};

/* A drafter with all it stands on. */
typedef struct guesser {
    td_backend *be;
    td_checkpoint *ck;
    td_drafter *d;
} guesser;

static td_drafter_model_options small_options(void) {
    td_drafter_model_options o = td_drafter_model_options_default();
    o.n_ctx = N_CTX;
    o.prefill_rows = 64;
    o.page_tokens = 8;
    o.kv_type = TD_KV_F32;
    return o;
}

static void guesser_open(guesser *g, const char *name, const td_drafter_model_options *o) {
    char path[512];
    *g = (guesser){.be = fixture_backend("cpu")};
    ASSERT_OK(td_checkpoint_open(&g->ck, fixture_path(name, NULL, path, sizeof path), NULL, err));
    ASSERT_OK(td_drafter_model_open(&g->d, g->ck, g->be, N_VOCAB, o, err));
}

static void guesser_close(guesser *g) {
    td_drafter_close(&g->d);
    td_checkpoint_close(&g->ck);
    td_backend_close(&g->be);
}

/* ---- drafts without rounds ---- */

static td_token end_token = -1;

static bool is_end(const void *user, td_token t) {
    (void)user;
    return t == end_token;
}

/* A sequence that asks for drafts. */
typedef struct asker {
    void *state;
    td_history history;
    td_sampling sampling;
    td_token out[TD_MAX_DRAFT];
    uint32_t n_out;
} asker;

static void asker_open(asker *a, td_drafter *d, float temperature) {
    *a = (asker){.sampling = seq_params(1, 0).sampling};
    a->sampling.temperature = temperature;
    a->sampling.seed = 5;
    ASSERT_OK(d->ops->open_seq(d, &a->state, err));
    ASSERT_OK(td_history_open(&a->history, N_VOCAB, err));
}

static void asker_close(asker *a, td_drafter *d) {
    d->ops->close_seq(d, a->state);
    td_history_close(&a->history);
}

static td_draft request(asker *a, const td_token *tokens, uint32_t n, uint32_t depth) {
    return (td_draft){.state = a->state,
                      .tokens = tokens,
                      .n_tokens = n,
                      .sampling = &a->sampling,
                      .history = &a->history,
                      .is_end = is_end,
                      .depth = depth,
                      .out = a->out,
                      .n_out = 5};
}

/* Asks until there is an answer: a long prompt is read first, a pass a call. Returns the calls that drafted nothing. */
static uint32_t ask(asker *a, td_drafter *d, const td_token *tokens, uint32_t n, uint32_t depth) {
    for (uint32_t silent = 0; silent < 100; silent++) {
        td_draft b = request(a, tokens, n, depth);
        ASSERT_OK(d->ops->draft(d, &b, 1, err));
        for (uint32_t i = 0; i < N_VOCAB; i++)
            assert_int_equal(a->history.generated[i], 0); /* left as it was */
        a->n_out = b.n_out;
        if (b.n_out)
            return silent;
    }
    return 100;
}

/* The same question to a drafter that has seen nothing: the same answer. */
static void check_as_new(asker *a, td_drafter *d, const td_token *tokens, uint32_t n, uint32_t depth) {
    asker fresh;
    asker_open(&fresh, d, a->sampling.temperature);
    ask(a, d, tokens, n, depth);
    ask(&fresh, d, tokens, n, depth);
    assert_int_equal(a->n_out, depth);
    assert_int_equal(fresh.n_out, depth);
    assert_memory_equal(a->out, fresh.out, depth * sizeof *a->out);
    asker_close(&fresh, d);
}

/* The reference's own greedy text, asked for at every place of it. */
static void drafts_are_the_models_own_text(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FIXTURES; f++) {
        guesser g;
        td_drafter_model_options o = small_options();
        guesser_open(&g, fixtures[f], &o);
        char path[512];
        fixture v = {0};
        ASSERT_OK(
            td_safetensors_open(&v.vectors, fixture_path(fixtures[f], "vectors.safetensors", path, sizeof path), err));
        td_token text[20 + 48];
        memcpy(text, fixture_i32(&v, "greedy_prompt", 20), 20 * sizeof *text);
        memcpy(text + 20, fixture_i32(&v, "greedy_tokens", 48), 48 * sizeof *text);
        asker a;
        asker_open(&a, g.d, 0);
        for (uint32_t n = 20, depth = 1; n + depth <= 68; n++, depth = 1 + n % 6) {
            assert_int_equal(ask(&a, g.d, text, n, depth), n == 20); /* the prompt is longer than a round */
            assert_int_equal(a.n_out, depth);
            assert_memory_equal(a.out, text + n, depth * sizeof *text);
        }
        asker_close(&a, g.d);
        td_safetensors_close(&v.vectors);
        guesser_close(&g);
    }
}

/* Drafts are taken up in part, in full, not at all; the text is cut, and becomes another one. */
static void what_was_before_changes_no_draft(void **state) {
    (void)state;
    for (size_t f = 0; f < N_FIXTURES; f++) {
        guesser g;
        td_drafter_model_options o = small_options();
        guesser_open(&g, fixtures[f], &o);
        for (size_t v = 0; v < 2; v++) {
            asker a;
            asker_open(&a, g.d, temperatures[v]);
            td_token text[N_CTX];
            random_prompt(text, 30, 1);
            uint32_t n = 30;
            for (uint32_t i = 0; i < 14; i++) {
                uint32_t depth = 1 + i % 5, taken = i % (depth + 1);
                check_as_new(&a, g.d, text, n, depth);
                memcpy(text + n, a.out, taken * sizeof *text);
                n += taken;
                text[n] = taken < depth ? (a.out[taken] + 1) % N_VOCAB : 7;
                n++;
            }
            check_as_new(&a, g.d, text, n - 1, 4);
            check_as_new(&a, g.d, text, n - 1, 4); /* nothing new */
            check_as_new(&a, g.d, text, 20, 4);
            text[15]++;
            check_as_new(&a, g.d, text, 21, 4);
            random_prompt(text, 200, 2);
            check_as_new(&a, g.d, text, 200, 4);
            check_as_new(&a, g.d, text, 1, 4);
            random_prompt(text, 90, 3);
            check_as_new(&a, g.d, text, 90, 4);
            asker_close(&a, g.d);
        }
        guesser_close(&g);
    }
}

/* A text that changes near its end is read again from there on: from the key that differs, or from the last end of a
 * pass before it. */
static void a_changed_text_is_not_read_anew(void **state) {
    (void)state;
    static const char *const without_windows[] = {"qwen35-dense", "qwen35-moe"};
    for (size_t f = 0; f < 2; f++) {
        guesser g;
        td_drafter_model_options o = small_options();
        guesser_open(&g, without_windows[f], &o);
        asker a;
        asker_open(&a, g.d, 0.8f);
        td_token text[301];
        random_prompt(text, 301, 1);
        assert_int_equal(ask(&a, g.d, text, 300, 4), 5); /* 64, 128, 192, 256 and 299 tokens */
        text[250]++;
        assert_int_equal(ask(&a, g.d, text, 300, 4), 2); /* from 192 */
        check_as_new(&a, g.d, text, 301, 4);
        text[10]++;
        assert_int_equal(ask(&a, g.d, text, 300, 4), 5);
        check_as_new(&a, g.d, text, 301, 4);
        /* Again and again just before and behind 256: what was kept of one text must not serve another. */
        for (uint32_t i = 0; i < 20; i++) {
            random_prompt(text + 236, 20, 10 + i);
            assert_int_equal(ask(&a, g.d, text, 275, 8), 2);
            text[257] = (text[257] + 1) % N_VOCAB;
            assert_int_equal(ask(&a, g.d, text, 273, 8), 0);
            check_as_new(&a, g.d, text, 273, 8);
        }
        /* A pass that fails leaves nothing behind. */
        text[273] = N_VOCAB;
        td_draft b = request(&a, text, 274, 8);
        assert_int_equal(g.d->ops->draft(g.d, &b, 1, NULL), TD_E_ARG);
        for (uint32_t i = 0; i < 20; i++) {
            random_prompt(text, 273, 50 + i);
            text[0] = (td_token)i;
            assert_int_equal(ask(&a, g.d, text, 273, 8), 4);
            text[260] = (text[260] + 1) % N_VOCAB;
            assert_int_equal(ask(&a, g.d, text, 273, 8), 0);
            check_as_new(&a, g.d, text, 273, 8);
        }
        asker_close(&a, g.d);
        guesser_close(&g);
    }
}

static void passes_may_be_cut_anywhere(void **state) {
    (void)state;
    static const uint32_t rows[] = {1, 7, 64, 300};
    for (size_t f = 0; f < N_FIXTURES; f++) {
        td_token text[200], first[6];
        random_prompt(text, 200, 4);
        for (uint32_t i = 0; i < 4; i++) {
            guesser g;
            td_drafter_model_options o = small_options();
            o.prefill_rows = rows[i];
            guesser_open(&g, fixtures[f], &o);
            asker a;
            asker_open(&a, g.d, 0.8f);
            uint32_t most = rows[i] > 17 ? rows[i] : 17;
            assert_int_equal(ask(&a, g.d, text, 200, 6), (200 - 17 + most - 1) / most);
            assert_int_equal(a.n_out, 6);
            if (i == 0)
                memcpy(first, a.out, sizeof first);
            assert_memory_equal(first, a.out, sizeof first);
            asker_close(&a, g.d);
            guesser_close(&g);
        }
    }
}

/* Sequences of one call, of all lengths and depths, some of them with more to read than a pass takes: those that have
 * little to read draft, and all draft what they would alone. */
static void neighbours_change_no_draft(void **state) {
    (void)state;
    enum { N = 5 };
    for (size_t f = 0; f < N_FIXTURES; f++) {
        guesser g;
        td_drafter_model_options o = small_options();
        o.max_seqs = N;
        o.prefill_rows = 16;
        guesser_open(&g, fixtures[f], &o);
        asker a[N];
        td_token text[N][400];
        for (uint32_t i = 0; i < N; i++) {
            asker_open(&a[i], g.d, temperatures[i % 2]);
            random_prompt(text[i], 400, i);
        }
        for (uint32_t round = 0; round < 4; round++) {
            uint32_t calls = 0;
            for (uint32_t open = (1u << N) - 1; open; calls++) { /* those without an answer */
                td_draft b[N];
                uint32_t who[N], n = 0;
                for (uint32_t i = 0; i < N; i++)
                    if (open & 1u << i) {
                        b[n] = request(&a[i], text[i], 1 + 60 * i + 3 * round, 1 + (i + round) % 5);
                        who[n++] = i;
                    }
                ASSERT_OK(g.d->ops->draft(g.d, b, n, err));
                for (uint32_t r = 0; r < n; r++) {
                    if (b[r].n_out == 0)
                        continue;
                    asker alone;
                    asker_open(&alone, g.d, b[r].sampling->temperature);
                    assert_int_equal(b[r].n_out, b[r].depth);
                    ask(&alone, g.d, b[r].tokens, b[r].n_tokens, b[r].depth);
                    assert_memory_equal(b[r].out, alone.out, b[r].depth * sizeof(td_token));
                    asker_close(&alone, g.d);
                    open &= ~(1u << who[r]);
                }
                assert_false(open & 1); /* one token to read: never kept waiting */
            }
            if (round == 0)
                assert_in_range(calls, 6, 8); /* 60, 120, 180 and 240 tokens in passes of 85 rows */
            else
                assert_int_equal(calls, 1);
        }
        for (uint32_t i = 0; i < N; i++)
            asker_close(&a[i], g.d);
        guesser_close(&g);
    }
}

static void an_end_token_ends_a_draft(void **state) {
    (void)state;
    guesser g;
    td_drafter_model_options o = small_options();
    guesser_open(&g, "gemma4-dense", &o);
    asker a;
    asker_open(&a, g.d, 0.8f);
    td_token text[20];
    random_prompt(text, 20, 1);
    ask(&a, g.d, text, 20, 8);
    assert_int_equal(a.n_out, 8);
    uint32_t first = 2;
    for (uint32_t i = 0; i < 2; i++) /* an end token that is drawn third, if not before */
        first = a.out[i] == a.out[2] && i < first ? i : first;
    end_token = a.out[2];
    ask(&a, g.d, text, 20, 8);
    assert_int_equal(a.n_out, first + 1);
    end_token = -1;
    asker_close(&a, g.d);
    guesser_close(&g);
}

/* Behind the positions it was opened for nothing is drafted; up to there everything is. */
static void the_context_has_an_end(void **state) {
    (void)state;
    guesser g;
    td_drafter_model_options o = small_options();
    o.n_ctx = 50;
    guesser_open(&g, "qwen35-dense", &o);
    asker a;
    asker_open(&a, g.d, 0);
    td_token text[60];
    random_prompt(text, 60, 1);
    ask(&a, g.d, text, 50, TD_MAX_DRAFT);
    assert_int_equal(a.n_out, TD_MAX_DRAFT);
    ask(&a, g.d, text, 51, TD_MAX_DRAFT);
    assert_int_equal(a.n_out, 0);
    check_as_new(&a, g.d, text, 49, 3);
    asker_close(&a, g.d);
    guesser_close(&g);
}

static void refuses_another_vocabulary(void **state) {
    (void)state;
    char path[512];
    td_backend *be = fixture_backend("cpu");
    td_checkpoint *ck;
    td_drafter *d;
    td_error e;
    td_drafter_model_options o = small_options();
    ASSERT_OK(td_checkpoint_open(&ck, fixture_path("gemma4-dense", NULL, path, sizeof path), NULL, err));
    assert_int_equal(td_drafter_model_open(&d, ck, be, 1000, &o, &e), TD_E_MODEL);
    assert_null(d);
    assert_non_null(strstr(e.message, "320"));
    assert_non_null(strstr(e.message, "1000"));
    assert_non_null(strstr(e.message, "gemma4-dense"));
    o.max_seqs = 0;
    assert_int_equal(td_drafter_model_open(&d, ck, be, N_VOCAB, &o, &e), TD_E_ARG);
    o = small_options();
    o.n_ctx = UINT32_MAX;
    assert_int_equal(td_drafter_model_open(&d, ck, be, N_VOCAB, &o, &e), TD_E_ARG);
    td_checkpoint_close(&ck);
    td_backend_close(&be);
}

/* Drafts after a prompt of 30 tokens, one of 90, and the first again. One that fails leaves a drafter that works. */
static td_status draft_thrice(td_drafter *d, asker *a, td_token *out) {
    static const uint32_t lengths[] = {30, 90, 30};
    td_status st = TD_OK;
    td_token text[90];
    random_prompt(text, 90, 1);
    for (uint32_t i = 0; i < 3; i++, out += 3) {
        td_draft b = {.n_out = 0};
        while (b.n_out == 0) {
            b = request(a, text, lengths[i], 3);
            td_status now = d->ops->draft(d, &b, 1, NULL);
            if (now != TD_OK) {
                st = now;
                b.n_out = 0;
            }
        }
        memcpy(out, a->out, 3 * sizeof *out);
    }
    return st;
}

static td_status a_life(td_backend *be, td_checkpoint *ck, td_history *history, td_token *out) {
    td_drafter *d = NULL;
    td_drafter_model_options o = small_options();
    asker a = {.sampling = seq_params(1, 0).sampling, .history = *history};
    td_status st = td_drafter_model_open(&d, ck, be, N_VOCAB, &o, NULL);
    if (st == TD_OK)
        st = d->ops->open_seq(d, &a.state, NULL);
    if (st == TD_OK)
        st = draft_thrice(d, &a, out);
    else
        memset(out, -1, 9 * sizeof *out);
    if (a.state)
        d->ops->close_seq(d, a.state);
    td_drafter_close(&d);
    return st;
}

static void survives_every_failing_allocation(void **state) {
    (void)state;
    static const char *const some[] = {"gemma4-ple", "qwen35-moe"};
    td_history history;
    ASSERT_OK(td_history_open(&history, N_VOCAB, err));
    for (size_t f = 0; f < 2; f++) {
        td_token want[9] = {0};
        uint32_t in_drafts = 0;
        for (long k = -1;; k++) { /* -1: none fails */
            char path[512];
            long live = td_alloc_live();
            td_backend *be = fixture_backend("cpu");
            td_checkpoint *ck;
            ASSERT_OK(td_checkpoint_open(&ck, fixture_path(some[f], NULL, path, sizeof path), NULL, err));
            td_token got[9];
            td_alloc_fail_at(k);
            td_status st = a_life(be, ck, &history, got);
            bool failed = td_alloc_failed();
            td_alloc_fail_at(-1);
            td_checkpoint_close(&ck);
            td_backend_close(&be);
            assert_int_equal(td_alloc_live(), live);
            if (st != TD_OK || !failed) /* a snapshot that finds no memory is not made */
                assert_int_equal(st, failed ? TD_E_NOMEM : TD_OK);
            if (k == -1)
                memcpy(want, got, sizeof want);
            if (got[0] >= 0) {
                assert_memory_equal(got, want, sizeof want);
                in_drafts += failed;
            }
            if (!failed && k >= 0) {
                print_message("%s: %ld allocations failed in turn, %u of them in drafts\n", some[f], k, in_drafts);
                break;
            }
        }
    }
    td_history_close(&history);
}

/* ---- rounds ---- */

typedef struct play_case {
    const char *trunk, *model;
    uint32_t n_prompt;
    float temperature;
    bool all; /* every draft must be accepted */
} play_case;

static void play(const play_case *c) {
    td_drafter_model_options o = small_options();
    guesser g;
    guesser_open(&g, c->model, &o);
    stage s;
    assert_true(stage_open(&s, &(stage_options){.fixture = c->trunk, .drafter = g.d}));
    td_token prompt[100];
    random_prompt(prompt, c->n_prompt, c->n_prompt);
    td_seq_params p = seq_params(50, 0);
    p.sampling.temperature = c->temperature;
    p.sampling.seed = c->n_prompt;
    truth t;
    truth_make(&t, &s, prompt, c->n_prompt, &p, N_CTX);
    td_seq *seq = stage_seq(&s, N_CTX);
    uint64_t drafted = 0;
    for (p.depth = 0; p.depth <= 8; p.depth++) {
        seq_start(seq, prompt, c->n_prompt, &p);
        stage_play(&s, seq, &t);
        drafted += seq->stats.drafted;
        if (!c->all)
            continue;
        assert_memory_equal(seq->stats.accepted_at, seq->stats.drafted_at, sizeof seq->stats.drafted_at);
        /* The first round of a prompt drafts nothing, and the next only reads a long one (again at every depth: the
         * window has moved on); every other round yields its depth and one. */
        uint32_t plain = 1 + (c->n_prompt > 16);
        assert_int_equal(seq->stats.rounds, p.depth ? plain + (50 - plain + p.depth) / (p.depth + 1) : 50);
    }
    assert_true(drafted > 0);
    td_seq_close(&seq);
    truth_free(&t);
    stage_close(&s);
    guesser_close(&g);
}

static void the_trunk_itself_is_always_right(void **state) {
    (void)state;
    for (size_t f = 0; f < 3; f++)
        for (size_t v = 0; v < 2; v++)
            play(&(play_case){fixtures[f], fixtures[f], (uint32_t)(9 + 30 * v + f), temperatures[v], true});
}

/* Its weights are noise to this trunk. */
static void another_model_changes_nothing(void **state) {
    (void)state;
    static const char *const pairs[][2] = {{"gemma4-dense", "gemma4-ple"},
                                           {"gemma4-ple", "gemma4-moe"},
                                           {"gemma4-moe", "qwen35-dense"},
                                           {"gemma4-dense", "qwen35-moe"}};
    for (size_t i = 0; i < 4; i++)
        for (size_t v = 0; v < 2; v++)
            play(&(play_case){pairs[i][0], pairs[i][1], (uint32_t)(5 + 20 * i), temperatures[v], false});
}

/* With penalties the draws depend on what was said, drafts included. */
static void drafts_count_in_the_history(void **state) {
    (void)state;
    guesser g;
    td_drafter_model_options o = small_options();
    guesser_open(&g, "gemma4-dense", &o);
    stage s;
    assert_true(stage_open(&s, &(stage_options){.drafter = g.d}));
    td_token prompt[20];
    random_prompt(prompt, 20, 3);
    td_seq_params p = seq_params(60, 8);
    p.sampling.presence_penalty = 2;
    p.sampling.frequency_penalty = 1;
    p.sampling.repetition_penalty = 1.5f;
    truth t;
    truth_make(&t, &s, prompt, 20, &p, N_CTX);
    td_seq *seq = stage_seq(&s, N_CTX);
    seq_start(seq, prompt, 20, &p);
    stage_play(&s, seq, &t);
    assert_memory_equal(seq->stats.accepted_at, seq->stats.drafted_at, sizeof seq->stats.drafted_at);
    td_seq_close(&seq);
    truth_free(&t);
    stage_close(&s);
    guesser_close(&g);
}

/* One sequence, one prompt after the other, and four at once. */
static void prompts_and_sequences_keep_apart(void **state) {
    (void)state;
    enum { N = 4 };
    guesser g;
    td_drafter_model_options o = small_options();
    o.max_seqs = N;
    guesser_open(&g, "gemma4-ple", &o);
    stage s;
    assert_true(
        stage_open(&s, &(stage_options){.fixture = "gemma4-ple", .drafter = g.d, .max_seqs = N, .prefill_rows = 16}));
    td_seq *seqs[N];
    for (uint32_t i = 0; i < N; i++)
        seqs[i] = stage_seq(&s, N_CTX);
    for (uint32_t turn = 0; turn < 3; turn++) {
        truth t[N];
        for (uint32_t i = 0; i < N; i++) {
            td_token prompt[120];
            uint32_t n = 20 + 13 * i + 9 * turn;
            random_prompt(prompt, n, turn == 1 ? i : 0);
            td_seq_params p = seq_params(40, 1 + 2 * i);
            p.sampling.temperature = temperatures[i % 2];
            truth_make(&t[i], &s, prompt, n, &p, N_CTX);
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
            assert_memory_equal(seqs[i]->stats.accepted_at, seqs[i]->stats.drafted_at,
                                sizeof seqs[i]->stats.drafted_at);
            truth_free(&t[i]);
        }
    }
    for (uint32_t i = 0; i < N; i++)
        td_seq_close(&seqs[i]);
    stage_close(&s);
    guesser_close(&g);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(drafts_are_the_models_own_text),
        cmocka_unit_test(what_was_before_changes_no_draft),
        cmocka_unit_test(a_changed_text_is_not_read_anew),
        cmocka_unit_test(passes_may_be_cut_anywhere),
        cmocka_unit_test(neighbours_change_no_draft),
        cmocka_unit_test(an_end_token_ends_a_draft),
        cmocka_unit_test(the_context_has_an_end),
        cmocka_unit_test(refuses_another_vocabulary),
        cmocka_unit_test(survives_every_failing_allocation),
        cmocka_unit_test(the_trunk_itself_is_always_right),
        cmocka_unit_test(another_model_changes_nothing),
        cmocka_unit_test(drafts_count_in_the_history),
        cmocka_unit_test(prompts_and_sequences_keep_apart),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
