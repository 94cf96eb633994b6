/* test_prompt_cache_gemma4.c - sequences that begin on pages of others: text, logits and hidden states are bit for bit
 * those of a cold run, for every place where prompts part, before and behind the sliding window, with every kind of
 * drafting, any page size, any budget; while others go on; after cancelling and failing. (Requirements 4, 6, 34, 40,
 * 41, 42 of those collected from the field.) */
#include "decode/support_decode.h"
#include "support/sanitized.h"

#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "cache/cache_file.h"

#define N_CTX 200
#define PLENTY (1u << 28)
#define SPLIT_STEP (TD_SANITIZED ? 3 : 1)

static const char *const fixtures[] = {"gemma4-dense", "gemma4-ple", "gemma4-moe"};

static void plan_random(script_seq *s, uint32_t depth, uint32_t *n_right, uint32_t *n_out) {
    *n_out = (uint32_t)(td_rng_uniform(78, s->calls, 0) * (depth + 1));
    *n_right = (uint32_t)(td_rng_uniform(78, s->calls, 1) * (*n_out + 1));
}

/* ---- a stage with a cache, and whole requests on it ---- */

typedef struct house {
    stage s;
    script script;
    bool scripted;
} house;

static void house_open(house *h, stage_options o, bool scripted) {
    *h = (house){.scripted = scripted};
    script_open(&h->script, STAGE_MAX_SEQS);
    if (scripted)
        o.drafter = &h->script.base;
    assert_true(stage_open(&h->s, &o));
}

static void house_close(house *h) {
    stage_close(&h->s);
}

static td_prompt_cache_stats cache_of(const house *h) {
    return td_prompt_cache_describe(h->s.cache);
}

static void play(house *h, td_seq *seq, const truth *t) {
    if (h->scripted)
        *script_of(seq) = (script_seq){.text = t, .plan = plan_random};
    stage_play(&h->s, seq, t);
}

/* A request from beginning to end, on a sequence of its own; returns how much was reused. */
static uint32_t request(house *h, const truth *t, td_seq_params p) {
    td_seq *seq = stage_seq(&h->s, N_CTX);
    p.max_tokens = t->n - t->n_prompt;
    seq_start(seq, t->tokens, t->n_prompt, &p);
    uint32_t reused = seq->n_reused;
    uint64_t rows = h->s.rows;
    play(h, seq, t);
    assert_int_equal(h->s.rows - rows, t->n_prompt - reused + seq->stats.rounds - 1 + seq->stats.drafted);
    td_seq_finish(seq);
    assert_int_equal(td_kv_seq_length(seq->kv), 0);
    td_seq_close(&seq);
    return reused;
}

/* The first `split` tokens of `old`, then n_tail others; answered with n_new tokens, cold. */
static void make_branch(house *h, truth *t, const truth *old, uint32_t split, uint32_t n_tail, uint32_t n_new) {
    td_token prompt[N_CTX];
    random_prompt(prompt, N_CTX, 7000 + 31 * split + n_tail);
    memcpy(prompt, old->tokens, split * sizeof *prompt);
    if (split < old->n && prompt[split] == old->tokens[split])
        prompt[split] = 3 + (prompt[split] - 2) % 300;
    td_seq_params p = seq_params(n_new, 0);
    truth_make(t, &h->s, prompt, split + n_tail, &p, N_CTX);
}

static void make_text(house *h, truth *t, uint32_t n_prompt, uint32_t n_new, uint64_t stream) {
    td_token prompt[N_CTX];
    random_prompt(prompt, n_prompt, stream);
    td_seq_params p = seq_params(n_new, 0);
    truth_make(t, &h->s, prompt, n_prompt, &p, N_CTX);
}

/* ---- every split ---- */

static void every_split(stage_options o, bool scripted, uint32_t n_prompt, uint32_t n_new) {
    house h;
    o.cache_bytes = PLENTY;
    house_open(&h, o, scripted);
    td_seq_params p = seq_params(0, o.max_depth ? o.max_depth : scripted || o.assistant ? 8 : 0);
    truth old;
    make_text(&h, &old, n_prompt, n_new, n_prompt);
    uint32_t kept = old.n - 1; /* the last token has no key */
    for (uint32_t split = 1; split <= old.n; split += SPLIT_STEP)
        for (uint32_t tail = 1; tail <= 7; tail += 6) {
            truth t;
            make_branch(&h, &t, &old, split, tail, 9);
            td_prompt_cache_clear(h.s.cache);
            assert_int_equal(request(&h, &old, p), 0);
            uint32_t want = split < kept ? split : kept, got = request(&h, &t, p);
            if (got != want)
                fail_msg("split %u and %u more: %u tokens reused, expected %u", split, tail, got, want);
            assert_int_equal(request(&h, &t, p), t.n_prompt - 1); /* the same again */
            truth_free(&t);
        }
    truth_free(&old);
    house_close(&h);
}

static void every_split_equals_a_cold_run(void **state) {
    (void)state;
    every_split((stage_options){.fixture = "gemma4-dense", .prefill_rows = 7}, true, 30, 30);
    every_split((stage_options){.fixture = "gemma4-ple", .kv = TD_KV_BF16, .page_tokens = 16}, true, 30, 20);
    every_split((stage_options){.fixture = "gemma4-moe", .page_tokens = 64, .prefill_rows = 20}, true, 60, 20);
}

static void every_split_equals_a_cold_run_with_assistant(void **state) {
    (void)state;
    for (size_t f = 0; f < 3; f++)
        every_split((stage_options){.fixture = fixtures[f], .assistant = true, .max_depth = 4, .page_tokens = 8u << f},
                    false, 25, 15);
}

static void every_split_equals_a_cold_run_without_drafts(void **state) {
    (void)state;
    every_split((stage_options){.fixture = "gemma4-dense", .kv = TD_KV_F32}, false, 20, 20);
    every_split((stage_options){.fixture = "gemma4-ple", .backend = "reference", .page_tokens = 16}, false, 12, 10);
}

/* A prompt that is read in passes much longer than the window leaves every page's windows behind nevertheless. */
static void branches_inside_long_prompts_are_found(void **state) {
    (void)state;
    house h;
    house_open(&h, (stage_options){.fixture = "gemma4-dense", .cache_bytes = PLENTY, .prefill_rows = 64}, false);
    truth old, t;
    make_text(&h, &old, 170, 4, 3);
    request(&h, &old, seq_params(0, 0));
    for (uint32_t split = 3; split < 170; split += 7) {
        make_branch(&h, &t, &old, split, 3, 4);
        assert_int_equal(request(&h, &t, seq_params(0, 0)), split);
        truth_free(&t);
    }
    truth_free(&old);
    house_close(&h);
}

/* ---- conversations ---- */

/* Every turn on another sequence: the first n - 1 tokens of what was said before are there, and nothing is evaluated
 * but the rest (each turn's count of rows is checked in request()). */
static void each_turn_evaluates_only_what_is_new(void **state) {
    (void)state;
    for (uint32_t page = 8; page <= 64; page *= 2)
        for (int assisted = 0; assisted < 2; assisted++) {
            house h;
            house_open(&h,
                       (stage_options){.fixture = "gemma4-ple",
                                       .prefill_rows = 16,
                                       .page_tokens = page,
                                       .cache_bytes = PLENTY,
                                       .max_depth = 4,
                                       .assistant = assisted},
                       false);
            td_seq_params p = seq_params(0, assisted ? 4 : 0);
            td_token text[N_CTX];
            uint32_t n = 40, held = 0;
            random_prompt(text, n, 5);
            for (uint32_t turn = 0; turn < 7; turn++) {
                truth t;
                td_seq_params plain = seq_params(10, 0);
                truth_make(&t, &h.s, text, n, &plain, N_CTX);
                assert_int_equal(request(&h, &t, p), held);
                held = t.n - 1;
                n = t.n;
                memcpy(text, t.tokens, n * sizeof *text);
                for (uint32_t i = 0; i < 1 + 2 * turn; i++)
                    text[n++] = (td_token)(10 + 13 * turn + i);
                truth_free(&t);
            }
            td_prompt_cache_stats st = cache_of(&h);
            assert_int_equal(st.lookups, 7);
            assert_int_equal(st.hits, 6);
            house_close(&h);
        }
}

/* What a draft is accepted for does not depend on whose keys it stands on. */
static void drafts_fare_as_in_a_cold_run(void **state) {
    (void)state;
    for (size_t f = 0; f < 3; f++) {
        stage_options o = {.fixture = fixtures[f], .assistant = true, .max_depth = 4, .cache_bytes = PLENTY};
        house h;
        house_open(&h, o, false);
        truth old, t;
        make_text(&h, &old, 40, 40, 9);
        make_branch(&h, &t, &old, 61, 9, 60);
        td_seq_stats stats[2];
        for (int warm = 0; warm < 2; warm++) {
            td_prompt_cache_clear(h.s.cache);
            if (warm)
                request(&h, &old, seq_params(0, 4));
            td_seq *seq = stage_seq(&h.s, N_CTX);
            td_seq_params p = seq_params(60, 4);
            seq_start(seq, t.tokens, t.n_prompt, &p);
            assert_int_equal(seq->n_reused, warm ? 61 : 0);
            play(&h, seq, &t);
            stats[warm] = seq->stats;
            td_seq_close(&seq);
        }
        assert_true(stats[0].drafted > 0);
        assert_memory_equal(&stats[0], &stats[1], sizeof stats[0]);
        truth_free(&old);
        truth_free(&t);
        house_close(&h);
    }
}

/* Requirement 39. */
static void a_restart_changes_nothing(void **state) {
    (void)state;
    for (size_t f = 0; f < 3; f++)
        for (int restarted = 0; restarted < 2; restarted++) {
            stage_options o = {
                .fixture = fixtures[f], .assistant = true, .max_depth = 4, .page_tokens = 16, .cache_bytes = PLENTY};
            house h;
            house_open(&h, o, false);
            truth old, t;
            make_text(&h, &old, 50, 40, 9);
            make_branch(&h, &t, &old, old.n, 9, 60);
            request(&h, &old, seq_params(0, 4));
            if (restarted) {
                char path[] = "/tmp/tandem-restart-XXXXXX";
                int fd = mkstemp(path);
                assert_true(fd >= 0);
                close(fd);
                td_identity id;
                td_cache_file_info info;
                td_token *tokens;
                ASSERT_OK(td_model_identity(&id, h.s.f.ck, h.s.f.model, NULL, err));
                ASSERT_OK(td_prompt_cache_save(h.s.cache, old.tokens, old.n, path, &id, &info, err));
                house_close(&h);
                house_open(&h, o, false);
                ASSERT_OK(td_model_identity(&id, h.s.f.ck, h.s.f.model, NULL, err));
                ASSERT_OK(td_prompt_cache_load(h.s.cache, path, &id, &tokens, &info, err));
                assert_int_equal(info.n_tokens, old.n - 1);
                td_free(tokens);
                unlink(path);
            }
            static td_seq_stats unbroken;
            td_seq *seq = stage_seq(&h.s, N_CTX);
            td_seq_params p = seq_params(60, 4);
            seq_start(seq, t.tokens, t.n_prompt, &p);
            assert_int_equal(seq->n_reused, old.n - 1);
            play(&h, seq, &t);
            if (restarted)
                assert_memory_equal(&seq->stats, &unbroken, sizeof unbroken);
            unbroken = seq->stats;
            td_seq_close(&seq);
            truth_free(&old);
            truth_free(&t);
            house_close(&h);
        }
}

/* One sequence that is started again and again without being finished: what it held is offered then. */
static void a_sequence_started_again_has_given_what_it_held(void **state) {
    (void)state;
    house h;
    house_open(&h, (stage_options){.fixture = "gemma4-dense", .cache_bytes = PLENTY}, true);
    td_seq *seq = stage_seq(&h.s, N_CTX);
    truth a, b, c;
    make_text(&h, &a, 30, 20, 1);
    make_text(&h, &b, 20, 20, 2);
    make_branch(&h, &c, &a, 22, 5, 12);
    td_seq_params p = seq_params(20, 8);
    const truth *order[] = {&a, &b, &a, &b, &c, &a};
    static const uint32_t want[] = {0, 1, 29, 19, 22, 29}; /* all begin with the same token */
    for (size_t i = 0; i < 6; i++) {
        p.max_tokens = order[i]->n - order[i]->n_prompt;
        seq_start(seq, order[i]->tokens, order[i]->n_prompt, &p);
        assert_int_equal(seq->n_reused, want[i]);
        play(&h, seq, order[i]);
    }
    td_seq_finish(seq);
    assert_int_equal(request(&h, &c, p), 26);
    td_seq_close(&seq);
    truth_free(&a);
    truth_free(&b);
    truth_free(&c);
    house_close(&h);
}

/* A sequence goes back over a page's end, on keys of its own, and on another way: that way is the one it adds. */
static void a_sequence_that_goes_back_adds_its_new_text(void **state) {
    (void)state;
    house h;
    house_open(&h, (stage_options){.fixture = "gemma4-dense", .cache_bytes = PLENTY}, true);
    truth a, b;
    make_text(&h, &a, 12, 9, 1);
    make_branch(&h, &b, &a, 14, 40, 12);
    td_seq *seq = stage_seq(&h.s, N_CTX);
    td_seq_params p = seq_params(9, 8);
    seq_start(seq, a.tokens, a.n_prompt, &p);
    play(&h, seq, &a);
    p.max_tokens = 12;
    seq_start(seq, b.tokens, b.n_prompt, &p);
    assert_int_equal(seq->n_reused, 14);
    play(&h, seq, &b);
    td_seq_finish(seq);
    td_seq_close(&seq);
    assert_int_equal(td_prompt_cache_find(h.s.cache, b.tokens, b.n).length, b.n - 1);
    assert_int_equal(td_prompt_cache_find(h.s.cache, a.tokens, a.n).length, a.n - 1);
    assert_int_equal(request(&h, &b, p), b.n_prompt - 1);
    truth_free(&a);
    truth_free(&b);
    house_close(&h);
}

/* ---- several at once ---- */

/* New sequences begin in the middle of an answer that others are giving, on their pages; all texts stay right, and the
 * windowed group never holds more than the window, what may be taken back, and a pass. */
static void sequences_begin_on_pages_of_those_that_go_on(void **state) {
    (void)state;
    for (size_t f = 0; f < 3; f++)
        for (uint32_t page = 8; page <= 16; page *= 2) {
            house h;
            house_open(&h,
                       (stage_options){.fixture = fixtures[f],
                                       .cache_bytes = PLENTY,
                                       .max_seqs = 4,
                                       .prefill_rows = 24,
                                       .page_tokens = page},
                       true);
            truth old, t[4];
            make_text(&h, &old, 50, 50, 3);
            td_seq *seqs[4];
            uint32_t windowed = h.s.f.model->kv.group[0].window ? 0 : 1;
            uint32_t most = (12 + 9 + 24 + 8 + page - 1) / page + 2;
            for (uint32_t k = 0; k < 4; k++) {
                if (k == 0)
                    make_text(&h, &t[0], 50, 50, 3);
                else
                    make_branch(&h, &t[k], &old, 36 + 5 * k, 9, 30);
                seqs[k] = stage_seq(&h.s, N_CTX);
                td_seq_params p = seq_params(t[k].n - t[k].n_prompt, 8);
                seq_start(seqs[k], t[k].tokens, t[k].n_prompt, &p);
                assert_int_equal(seqs[k]->n_reused, k ? (36 + 5 * k < td_kv_seq_length(seqs[0]->kv) / page * page
                                                             ? 36 + 5 * k
                                                             : td_kv_seq_length(seqs[0]->kv) / page * page)
                                                      : 0);
                *script_of(seqs[k]) = (script_seq){.text = &t[k], .plan = plan_random};
                for (uint32_t round = 0; round < 6; round++) {
                    td_seq *going[4];
                    uint32_t n = 0;
                    for (uint32_t i = 0; i <= k; i++)
                        if (!seqs[i]->finish) {
                            h.s.seen[n] = &t[i];
                            going[n++] = seqs[i];
                        }
                    ASSERT_OK(td_round(h.s.decoder, going, n, err));
                    for (uint32_t i = 0; i < n; i++)
                        assert_in_range(td_kv_seq_held(going[i]->kv, windowed), 0, most);
                }
            }
            memset(h.s.seen, 0, sizeof h.s.seen);
            for (uint32_t k = 0; k < 4; k++) {
                h.s.seen[0] = &t[k];
                stage_play(&h.s, seqs[k], &t[k]);
                td_seq_finish(seqs[k]);
                td_seq_close(&seqs[k]);
            }
            for (uint32_t k = 0; k < 4; k++) {
                assert_int_equal(request(&h, &t[k], seq_params(0, 8)), t[k].n_prompt - 1);
                truth_free(&t[k]);
            }
            truth_free(&old);
            house_close(&h);
        }
}

/* ---- little room ---- */

/* Requests that share prefixes at random, under budgets from next to nothing up: nothing shows but in the counts. */
static void any_budget_gives_the_same_text(void **state) {
    (void)state;
    static const uint64_t budgets[] = {1, 20000, 60000, 200000, PLENTY};
    for (size_t b = 0; b < 5; b++) {
        house h;
        house_open(&h,
                   (stage_options){.fixture = b % 2 ? "gemma4-ple" : "gemma4-dense",
                                   .cache_bytes = budgets[b],
                                   .pool_bytes = b == 3 ? 400000 : 0,
                                   .prefill_rows = 11},
                   true);
        truth old[4];
        for (uint64_t i = 0; i < 4; i++)
            make_text(&h, &old[i], 40, 20, 60 + i);
        for (uint32_t k = 0; k < 60; k++) {
            const truth *from = &old[(uint32_t)(td_rng_uniform(6, k, 0) * 4)];
            uint32_t split = 1 + (uint32_t)(td_rng_uniform(6, k, 1) * (from->n - 1));
            truth t;
            make_branch(&h, &t, from, split, 1 + (uint32_t)(td_rng_uniform(6, k, 2) * 9), 6);
            request(&h, &t, seq_params(0, 8));
            truth_free(&t);
            assert_true(cache_of(&h).bytes <= budgets[b]);
        }
        td_prompt_cache_stats st = cache_of(&h);
        assert_int_equal(st.hits > 0, b > 0);
        if (b == 1 || b == 2)
            assert_true(st.evicted_pages > 0 && st.evicted_windows > 0);
        for (uint64_t i = 0; i < 4; i++)
            truth_free(&old[i]);
        house_close(&h);
    }
}

/* The regression that sliding windows are known for: long and short prompts by turns. */
static void long_and_short_by_turns_keep_memory_flat(void **state) {
    (void)state;
    for (int drafts = 0; drafts < 2; drafts++) {
        house h;
        house_open(
            &h, (stage_options){.fixture = "gemma4-dense", .cache_bytes = 300000, .prefill_rows = 64, .max_depth = 4},
            drafts);
        truth of_long, of_short;
        make_text(&h, &of_long, 170, 12, 1);
        make_text(&h, &of_short, 18, 12, 2);
        long live = 0;
        uint64_t allocated = 0;
        for (uint32_t i = 0; i < 40; i++) {
            request(&h, &of_long, seq_params(0, drafts ? 4 : 0));
            request(&h, &of_short, seq_params(0, drafts ? 4 : 0));
            if (i == 3) {
                live = td_alloc_live();
                allocated = td_kv_pool_allocated(h.s.pool);
            } else if (i > 3) {
                assert_int_equal(td_alloc_live(), live);
                assert_int_equal(td_kv_pool_allocated(h.s.pool), allocated);
            }
        }
        assert_true(cache_of(&h).hits > 70);
        truth_free(&of_long);
        truth_free(&of_short);
        house_close(&h);
    }
}

/* ---- what goes wrong ---- */

static void cancelled_requests_leave_what_they_had_computed(void **state) {
    (void)state;
    house h;
    house_open(&h, (stage_options){.fixture = "gemma4-ple", .cache_bytes = PLENTY, .prefill_rows = 9}, true);
    truth t;
    make_text(&h, &t, 60, 30, 4);
    for (uint32_t rounds = 0; rounds < 14; rounds++) {
        td_prompt_cache_clear(h.s.cache);
        td_seq *seq = stage_seq(&h.s, N_CTX);
        td_seq_params p = seq_params(30, 8);
        seq_start(seq, t.tokens, t.n_prompt, &p);
        *script_of(seq) = (script_seq){.text = &t, .plan = plan_random};
        h.s.seen[0] = &t;
        for (uint32_t i = 0; i < rounds; i++)
            ASSERT_OK(td_round(h.s.decoder, &seq, 1, err));
        uint32_t had = td_kv_seq_length(seq->kv);
        td_seq_cut(seq, seq->n_tokens, TD_FINISH_CANCELLED);
        td_seq_finish(seq);
        td_seq_close(&seq);
        assert_int_equal(request(&h, &t, seq_params(0, 8)), had < 59 ? had : 59);
    }
    truth_free(&t);
    house_close(&h);
}

static void an_answer_that_is_cut_leaves_nothing_behind_the_cut(void **state) {
    (void)state;
    house h;
    house_open(&h, (stage_options){.fixture = "gemma4-dense", .cache_bytes = PLENTY}, true);
    truth t;
    make_text(&h, &t, 30, 40, 4);
    for (uint32_t cut = 31; cut < 70; cut++) {
        td_prompt_cache_clear(h.s.cache);
        td_seq *seq = stage_seq(&h.s, N_CTX);
        td_seq_params p = seq_params(40, 8);
        seq_start(seq, t.tokens, t.n_prompt, &p);
        *script_of(seq) = (script_seq){.text = &t, .plan = plan_random};
        h.s.seen[0] = &t;
        while (seq->n_tokens < cut)
            ASSERT_OK(td_round(h.s.decoder, &seq, 1, err));
        td_seq_cut(seq, cut, TD_FINISH_STOP);
        td_seq_finish(seq);
        td_seq_close(&seq);
        td_cache_match m = td_prompt_cache_find(h.s.cache, t.tokens, t.n);
        assert_in_range(m.length, cut - 1, cut); /* a page may have been whole with the last token that stays */
        assert_int_equal(request(&h, &t, seq_params(0, 8)), 29);
    }
    truth_free(&t);
    house_close(&h);
}

/* Requirement 6. What a failed request began on, and what its neighbours do, is untouched. */
static void numbers_that_fail_leave_nothing_in_the_cache(void **state) {
    (void)state;
    for (uint32_t at = 59; at < 89; at += 5) {
        house h;
        house_open(&h, (stage_options){.fixture = "gemma4-dense", .cache_bytes = PLENTY, .max_seqs = 2}, true);
        truth t, base, other;
        make_text(&h, &base, 20, 10, 4);
        make_branch(&h, &t, &base, 25, 35, 30);
        make_text(&h, &other, 44, 40, 5);
        request(&h, &base, seq_params(0, 8));
        td_prompt_cache_stats before = cache_of(&h);
        td_seq *seqs[2] = {stage_seq(&h.s, N_CTX), stage_seq(&h.s, N_CTX)};
        td_seq_params p = seq_params(30, 8), q = seq_params(40, 8);
        seq_start(seqs[0], t.tokens, t.n_prompt, &p);
        assert_int_equal(seqs[0]->n_reused, 25);
        seq_start(seqs[1], other.tokens, other.n_prompt, &q);
        *script_of(seqs[0]) = (script_seq){.text = &t, .plan = plan_random};
        *script_of(seqs[1]) = (script_seq){.text = &other, .plan = plan_random};
        h.s.seen[0] = &t;
        h.s.seen[1] = &other;
        h.s.spoil_position = at;
        h.s.spoil_value = NAN;
        while (seqs[0]->status == TD_OK && !seqs[0]->finish)
            ASSERT_OK(td_round(h.s.decoder, seqs, 2, err));
        assert_int_equal(seqs[0]->status, TD_E_NUMERIC);
        h.s.spoil_position = -1;
        td_seq_finish(seqs[0]);
        assert_int_equal(td_prompt_cache_find(h.s.cache, t.tokens, t.n).length, 25);
        h.s.seen[0] = &other;
        h.s.seen[1] = NULL;
        stage_play(&h.s, seqs[1], &other);
        td_seq_finish(seqs[1]);
        assert_true(cache_of(&h).nodes >= before.nodes);
        assert_int_equal(request(&h, &t, p), 25);
        assert_int_equal(request(&h, &other, q), 43);
        for (int i = 0; i < 2; i++)
            td_seq_close(&seqs[i]);
        truth_free(&t);
        truth_free(&base);
        truth_free(&other);
        house_close(&h);
    }
}

static void a_failed_pass_leaves_only_what_was_right(void **state) {
    (void)state;
    for (uint32_t rounds = 0; rounds < 10; rounds++) {
        house h;
        house_open(&h, (stage_options){.fixture = "gemma4-moe", .cache_bytes = PLENTY, .prefill_rows = 16}, true);
        truth t;
        make_text(&h, &t, 50, 30, 4);
        td_seq *seq = stage_seq(&h.s, N_CTX);
        td_seq_params p = seq_params(30, 8);
        seq_start(seq, t.tokens, t.n_prompt, &p);
        *script_of(seq) = (script_seq){.text = &t, .plan = plan_random};
        h.s.seen[0] = &t;
        for (uint32_t i = 0; i < rounds; i++)
            ASSERT_OK(td_round(h.s.decoder, &seq, 1, err));
        h.s.fail_next_pass = true;
        td_error e;
        assert_int_equal(td_round(h.s.decoder, &seq, 1, &e), TD_E_DEVICE);
        uint32_t had = td_kv_seq_length(seq->kv);
        td_seq_finish(seq);
        td_seq_close(&seq);
        assert_int_equal(request(&h, &t, p), had < 49 ? had : 49);
        truth_free(&t);
        house_close(&h);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_equals_a_cold_run),
        cmocka_unit_test(every_split_equals_a_cold_run_with_assistant),
        cmocka_unit_test(every_split_equals_a_cold_run_without_drafts),
        cmocka_unit_test(branches_inside_long_prompts_are_found),
        cmocka_unit_test(each_turn_evaluates_only_what_is_new),
        cmocka_unit_test(drafts_fare_as_in_a_cold_run),
        cmocka_unit_test(a_restart_changes_nothing),
        cmocka_unit_test(a_sequence_started_again_has_given_what_it_held),
        cmocka_unit_test(a_sequence_that_goes_back_adds_its_new_text),
        cmocka_unit_test(sequences_begin_on_pages_of_those_that_go_on),
        cmocka_unit_test(any_budget_gives_the_same_text),
        cmocka_unit_test(long_and_short_by_turns_keep_memory_flat),
        cmocka_unit_test(cancelled_requests_leave_what_they_had_computed),
        cmocka_unit_test(an_answer_that_is_cut_leaves_nothing_behind_the_cut),
        cmocka_unit_test(numbers_that_fail_leave_nothing_in_the_cache),
        cmocka_unit_test(a_failed_pass_leaves_only_what_was_right),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
