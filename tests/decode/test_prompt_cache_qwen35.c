/* test_prompt_cache_qwen35.c - the prompt cache where a sequence also has recurrent memory: a position is reused only
 * with a snapshot of exactly that position, and then text, state and the fate of drafts are those of a run that was
 * never interrupted. (Requirements 4, 5, 6, 38, 39 of those collected from the field.) */
#include "support/qwen35_stage.h"
#include "support/sanitized.h"

#include <unistd.h>

#include "base/alloc.h"
#include "cache/cache_file.h"
#include "decode/drafter_chain.h"

#define PLENTY (1u << 28)
#define SPLIT_STEP (TD_SANITIZED ? 3 : 1)

static const char *const fixtures[] = {"qwen35-dense", "qwen35-moe"};

static td_seq *begin(stage *s, const truth *t, td_seq_params p) {
    td_seq *seq = stage_seq(s);
    p.max_tokens = t->n - t->n_prompt;
    ASSERT_OK(td_seq_start(seq, t->tokens, t->n_prompt, &p, err));
    if (seq->n_reused) { /* what is reused is right before anything is computed */
        assert_int_equal(td_kv_seq_length(seq->kv), seq->n_reused);
        check_sequence(s, seq, t);
    }
    return seq;
}

/* A request on a sequence of its own; returns how much was reused. */
static uint32_t request(stage *s, const truth *t, td_seq_params p) {
    td_seq *seq = begin(s, t, p);
    uint32_t reused = seq->n_reused;
    stage_play(s, seq, t);
    td_seq_finish(seq);
    td_seq_close(&seq);
    return reused;
}

/* The first `split` tokens of `old`, then others. */
static void make_branch(stage *s, truth *t, const truth *old, uint32_t split, uint32_t n_tail, td_seq_params p) {
    td_token prompt[STAGE_CTX];
    random_tokens(prompt, STAGE_CTX, 900 + split);
    memcpy(prompt, old->tokens, split * sizeof *prompt);
    if (split < old->n && prompt[split] == old->tokens[split])
        prompt[split] = (prompt[split] + 1) % N_VOCAB;
    truth_make(t, s, prompt, split + n_tail, &p);
}

static void make_text(stage *s, truth *t, uint32_t n_prompt, td_seq_params p, uint64_t stream) {
    td_token prompt[STAGE_CTX];
    random_tokens(prompt, n_prompt, stream);
    truth_make(t, s, prompt, n_prompt, &p);
}

/* Where the first text leaves snapshots: at the last page boundary of each pass of its prompt (before its last token,
 * which must be fed), before that token, and at the end of the answer. */
static uint32_t snapshot_at(uint32_t split, uint32_t n_prompt, uint32_t end, uint32_t prefill, uint32_t page) {
    uint32_t best = 0;
    for (uint32_t fed = 0; fed < n_prompt;) {
        uint32_t rows = n_prompt - fed < prefill ? n_prompt - fed : prefill;
        uint32_t to = fed + rows == n_prompt ? fed + rows - 1 : fed + rows, at = to / page * page;
        if (at > fed && at <= split)
            best = at;
        fed += rows;
    }
    if (split >= n_prompt - 1)
        best = n_prompt - 1;
    return split >= end ? end : best;
}

static void every_split_equals_a_cold_run(void **state) {
    (void)state;
    enum { N = 37, NEW = 12 };
    for (size_t f = 0; f < 2; f++)
        for (int heads = 0; heads < 2; heads++)
            for (uint32_t page = 8; page <= 64; page *= f ? 8 : 2) {
                uint32_t prefill = page == 16 ? 5 : 16;
                stage s;
                stage_open(&s, (stage_options){.fixture = fixtures[f],
                                               .heads = heads,
                                               .prefill_rows = prefill,
                                               .page_tokens = page,
                                               .n_snapshots = 16,
                                               .cache_bytes = PLENTY});
                truth old, t;
                uint32_t depth = heads ? 4 : 0;
                make_text(&s, &old, N, plain_params(NEW, 0), 1);
                for (uint32_t split = 1; split <= N + NEW; split += SPLIT_STEP) {
                    td_prompt_cache_clear(s.cache);
                    assert_int_equal(request(&s, &old, plain_params(NEW, depth)), 0);
                    td_seq_params p = split % 2 ? plain_params(9, 3) : sampled_params(9, 3, split);
                    p.depth = heads ? 3 : 0;
                    make_branch(&s, &t, &old, split, 3, p);
                    assert_int_equal(request(&s, &t, p), snapshot_at(split, N, N + NEW - 1, prefill, page));
                    assert_int_equal(request(&s, &t, p),
                                     t.n_prompt - 1); /* and again: the copy before its last token */
                    truth_free(&t);
                }
                truth_free(&old);
                stage_close(&s);
            }
}

/* Requirement 38: every turn, on whichever sequence, evaluates what is new and nothing else. */
static void conversations_go_on_from_their_end(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++)
        for (uint32_t page = 8; page <= 64; page *= 8) {
            stage s;
            stage_open(
                &s, (stage_options){.fixture = fixtures[f], .heads = true, .page_tokens = page, .cache_bytes = PLENTY});
            td_token text[STAGE_CTX];
            uint32_t n = 20, held = 0;
            random_tokens(text, n, 60);
            for (uint32_t turn = 0; turn < 6; turn++) {
                truth t;
                td_seq_params p = turn % 2 ? sampled_params(14, 4, turn) : plain_params(14, 4);
                truth_make(&t, &s, text, n, &p);
                assert_int_equal(request(&s, &t, p), held);
                held = t.n - 1;
                n = t.n;
                memcpy(text, t.tokens, n * sizeof *text);
                random_tokens(text + n, 5 + turn, turn);
                n += 5 + turn;
                truth_free(&t);
            }
            stage_close(&s);
        }
}

/* A second reader of a long prompt begins on what the first has read, and loses no more than a pass and a page. */
static void a_second_reader_begins_on_what_the_first_has_read(void **state) {
    (void)state;
    for (int heads = 0; heads < 2; heads++) {
        stage s;
        stage_open(&s, (stage_options){.heads = heads, .prefill_rows = 16, .max_seqs = 3, .cache_bytes = PLENTY});
        truth first, second;
        make_text(&s, &first, 120, plain_params(60, 0), 3);
        make_branch(&s, &second, &first, 110, 9, plain_params(30, 0));
        td_seq *a = begin(&s, &first, plain_params(60, heads ? 4 : 0));
        for (uint32_t round = 0; round < 14; round++) {
            td_seq *b = begin(&s, &second, plain_params(30, heads ? 4 : 0));
            uint32_t read = td_kv_seq_length(a->kv) < 110 ? td_kv_seq_length(a->kv) : 110, lost = read - b->n_reused;
            if (round <= 10) { /* later ones find what an earlier one has added */
                assert_true(b->n_reused <= read);
                assert_true(lost <= 16 + 9 + 8); /* a pass, what heads put off, a page */
            }
            if (round >= 10) {
                td_seq *both[2] = {a, b};
                for (int i = 0; i < 4; i++)
                    ASSERT_OK(td_round(s.decoder, both, 2, err));
                check_sequence(&s, a, &first);
                stage_play(&s, b, &second);
            }
            td_seq_close(&b); /* not finished: it gives nothing at its end */
            if (!a->finish)
                ASSERT_OK(td_round(s.decoder, &a, 1, err));
            check_sequence(&s, a, &first);
        }
        stage_play(&s, a, &first);
        td_seq_close(&a);
        truth_free(&first);
        truth_free(&second);
        stage_close(&s);
    }
}

/* Prompts with one beginning (instructions, a document): the second to come shows where they part, and leaves a
 * snapshot there, so that the third begins exactly there. Of the others a handful stays, however long the prompt. */
static void the_third_of_a_kind_begins_where_the_others_parted(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++)
        for (uint32_t common = 70; common <= 180; common += 11)
            for (uint32_t prefill = 16; prefill <= 64; prefill += 48) {
                stage s;
                stage_open(&s, (stage_options){.fixture = fixtures[f],
                                               .heads = common % 2,
                                               .prefill_rows = prefill,
                                               .cache_bytes = PLENTY});
                truth first, t;
                make_text(&s, &first, common + 9, plain_params(5, 0), 3);
                request(&s, &first, plain_params(5, common % 2 ? 3 : 0));
                assert_in_range(td_prompt_cache_describe(s.cache).snapshots, 2, 8 + 2);
                for (uint32_t k = 0, second = 0; k < 3; k++) {
                    td_token prompt[STAGE_CTX];
                    random_tokens(prompt, common + 12, 70 + k);
                    memcpy(prompt, first.tokens, common * sizeof *prompt);
                    prompt[common] = (first.tokens[common] + 1 + (td_token)k) % N_VOCAB;
                    td_seq_params p = plain_params(5, common % 2 ? 3 : 0);
                    truth_make(&t, &s, prompt, common + 12, &p);
                    uint32_t reused = request(&s, &t, p);
                    if (k == 0) {
                        second = reused;
                        assert_true(reused <= common && common - reused <= common / 4 + prefill);
                    } else { /* less than a page is not worth a copy */
                        assert_int_equal(reused, common - second < 8 ? second : common);
                    }
                    truth_free(&t);
                }
                truth_free(&first);
                stage_close(&s);
            }
}

/* ---- drafts ---- */

/* What a drafter has proposed for the text at `spied`, all in one number: the fixture's heads are accepted too seldom
 * for the statistics to tell good drafts from bad. */
static const td_drafter_ops *spied_ops;
static const td_token *spied;
static uint64_t proposed;

static td_status spy_draft(td_drafter *d, td_draft *batch, uint32_t n, td_error *err) {
    TD_TRY(spied_ops->draft(d, batch, n, err));
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t k = 0; k < batch[i].n_out && batch[i].tokens == spied; k++)
            proposed = (proposed ^ (uint64_t)(uint32_t)batch[i].out[k]) * 0x100000001B3u + batch[i].n_tokens;
    return TD_OK;
}

static void spy_on(td_drafter *d, const td_seq *seq) {
    static td_drafter_ops ops;
    if (d->ops != &ops) {
        spied_ops = d->ops;
        ops = *spied_ops;
        ops.draft = spy_draft;
        d->ops = &ops;
    }
    spied = seq->tokens;
    proposed = 0;
}

enum { UNBROKEN, CACHED, RESTORED };

typedef struct turns {
    stage s;
    td_drafter *chained;
    td_decoder *plain;
    stage_options o;
    bool chain;
} turns;

static void turns_open(turns *t) {
    stage_open(&t->s, t->o);
    t->plain = t->s.decoder;
    if (!t->chain)
        return;
    td_drafter_chain_options o = td_drafter_chain_options_default();
    td_drafter_options h = td_drafter_options_default();
    td_drafter *inner;
    h.shortlist = t->o.shortlist;
    ASSERT_OK(td_drafter_heads_open(&inner, t->s.model, &h, err));
    ASSERT_OK(td_drafter_chain_open(&t->chained, inner, &o, err));
    td_decoder_options d = {.max_seqs = 1, .prefill_rows = 16, .max_depth = 8, .cache = t->s.cache};
    ASSERT_OK(td_decoder_open(&t->s.decoder, t->s.model, t->chained, t->s.pool, &d, err));
}

static void turns_close(turns *t) {
    if (t->chain) {
        td_decoder_close(&t->s.decoder);
        td_drafter_close(&t->chained);
        t->s.decoder = t->plain;
    }
    stage_close(&t->s);
}

/* What the cache has of a text goes to a file, everything is closed, and opened again from the file. */
static void restart(turns *t, const truth *text) {
    char path[] = "/tmp/tandem-restart-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    close(fd);
    td_identity before, after;
    td_cache_file_info saved, loaded;
    td_token *tokens;
    ASSERT_OK(td_model_identity(&before, t->s.ck, t->s.model, NULL, err));
    ASSERT_OK(td_prompt_cache_save(t->s.cache, text->tokens, text->n, path, &before, &saved, err));
    turns_close(t);
    turns_open(t);
    ASSERT_OK(td_model_identity(&after, t->s.ck, t->s.model, NULL, err));
    assert_string_equal(after.text, before.text);
    ASSERT_OK(td_prompt_cache_load(t->s.cache, path, &after, &tokens, &loaded, err));
    assert_int_equal(loaded.n_tokens, text->n - 1);
    assert_int_equal(saved.n_tokens, text->n - 1);
    assert_memory_equal(tokens, text->tokens, loaded.n_tokens * sizeof *tokens);
    td_free(tokens);
    unlink(path);
}

/* The second turn's statistics: on the sequence that answered the first, without a cache; through the cache; or after a
 * restart. */
static td_seq_stats second_turn(const char *name, int way, uint32_t shortlist, uint32_t n_more, bool chain,
                                uint64_t *drafts) {
    turns t = {.o = {.fixture = name, .heads = true, .shortlist = shortlist, .cache_bytes = way ? PLENTY : 0},
               .chain = chain};
    turns_open(&t);
    truth first, second;
    make_text(&t.s, &first, 30, plain_params(25, 0), 8);
    make_branch(&t.s, &second, &first, first.n, n_more, plain_params(70, 0));
    td_seq *seq = begin(&t.s, &first, plain_params(25, 6));
    stage_play(&t.s, seq, &first);
    if (way == UNBROKEN) {
        td_seq_params p = plain_params(70, 6);
        ASSERT_OK(td_seq_start(seq, second.tokens, second.n_prompt, &p, err));
    } else {
        td_seq_finish(seq);
        td_seq_close(&seq);
        if (way == RESTORED)
            restart(&t, &first);
        seq = begin(&t.s, &second, plain_params(70, 6));
    }
    assert_int_equal(seq->n_reused, first.n - 1);
    spy_on(chain ? t.chained : t.s.drafter, seq);
    stage_play(&t.s, seq, &second);
    td_seq_stats stats = seq->stats;
    *drafts = proposed;
    td_seq_close(&seq);
    truth_free(&first);
    truth_free(&second);
    turns_close(&t);
    return stats;
}

static void drafts_fare_as_in_an_unbroken_run(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++)
        for (uint32_t shortlist = 0; shortlist <= 64; shortlist += 64)
            for (uint32_t more = 1; more <= 12; more += 11)
                for (int chain = 0; chain < 2; chain++) {
                    uint64_t drafts, same;
                    td_seq_stats want = second_turn(fixtures[f], UNBROKEN, shortlist, more, chain, &drafts);
                    assert_true(want.drafted > 0);
                    for (int way = CACHED; way <= RESTORED; way++) {
                        td_seq_stats got = second_turn(fixtures[f], way, shortlist, more, chain, &same);
                        assert_memory_equal(&got, &want, sizeof got);
                        assert_int_equal(same, drafts);
                    }
                }
}

/* Where a text parts from one that was there before, the last common row joins another token than it did there; and two
 * that part at the same place do not get into each other's rows. */
static void drafts_fare_as_in_a_cold_run(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++)
        for (uint32_t split = 16; split <= 64; split += 16) { /* the ends of passes, and of the answer */
            stage s;
            stage_open(
                &s,
                (stage_options){
                    .fixture = fixtures[f], .heads = true, .n_snapshots = 16, .max_seqs = 2, .cache_bytes = PLENTY});
            truth old, t[2];
            td_seq_stats cold, warm;
            make_text(&s, &old, 50, plain_params(15, 0), 5);
            for (uint32_t k = 0; k < 2; k++) {
                make_branch(&s, &t[k], &old, split, 3 + k, plain_params(50, 0));
                if (k) { /* another word at the same place */
                    td_token prompt[STAGE_CTX];
                    memcpy(prompt, t[1].tokens, t[1].n_prompt * sizeof *prompt);
                    prompt[split] = (prompt[split] + 7) % N_VOCAB;
                    uint32_t n = t[1].n_prompt;
                    truth_free(&t[1]);
                    td_seq_params p = plain_params(50, 0);
                    truth_make(&t[1], &s, prompt, n, &p);
                }
            }
            td_seq *a = begin(&s, &t[0], plain_params(50, 5));
            assert_int_equal(a->n_reused, 0);
            spy_on(s.drafter, a);
            stage_play(&s, a, &t[0]);
            cold = a->stats;
            uint64_t drafts = proposed;
            td_seq_close(&a);
            td_prompt_cache_clear(s.cache);
            request(&s, &old, plain_params(15, 5));
            a = begin(&s, &t[0], plain_params(50, 5));
            td_seq *b = begin(&s, &t[1], plain_params(50, 5));
            assert_int_equal(a->n_reused, split);
            assert_int_equal(b->n_reused, split);
            spy_on(s.drafter, a);
            while (!a->finish && !b->finish)
                ASSERT_OK(td_round(s.decoder, (td_seq *[]){a, b}, 2, err));
            if (!a->finish)
                stage_play(&s, a, &t[0]);
            warm = a->stats;
            assert_true(cold.drafted > 0);
            assert_memory_equal(&warm, &cold, sizeof warm);
            assert_int_equal(proposed, drafts);
            td_seq_close(&a);
            td_seq_close(&b);
            for (uint32_t k = 0; k < 2; k++)
                truth_free(&t[k]);
            truth_free(&old);
            stage_close(&s);
        }
}

/* Pages whose heads' rows were never written are as good for the text; the drafts are for the trunk to judge. */
static void pages_written_without_heads_serve_with_heads(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        stage s;
        stage_open(&s, (stage_options){.fixture = fixtures[f], .heads = true, .cache_bytes = PLENTY});
        td_decoder *with = s.decoder, *without;
        td_decoder_options d = {.max_seqs = 1, .prefill_rows = 16, .max_depth = 8, .cache = s.cache};
        ASSERT_OK(td_decoder_open(&without, s.model, NULL, s.pool, &d, err));
        truth first, second, third;
        make_text(&s, &first, 40, plain_params(20, 0), 8);
        make_branch(&s, &second, &first, first.n, 7, plain_params(40, 0));
        make_branch(&s, &third, &second, second.n, 7, plain_params(40, 0));
        s.decoder = without;
        assert_int_equal(request(&s, &first, plain_params(20, 0)), 0);
        s.decoder = with;
        assert_int_equal(request(&s, &second, plain_params(40, 5)), first.n - 1);
        s.decoder = without;
        assert_int_equal(request(&s, &third, plain_params(40, 0)), second.n - 1);
        s.decoder = with;
        assert_int_equal(request(&s, &third, plain_params(40, 5)), third.n_prompt - 1);
        truth_free(&first);
        truth_free(&second);
        truth_free(&third);
        td_decoder_close(&without);
        stage_close(&s);
    }
}

/* ---- little room, and what goes wrong ---- */

static void any_budget_gives_the_same_text(void **state) {
    (void)state;
    stage s;
    stage_open(&s, (stage_options){.cache_bytes = PLENTY});
    uint64_t state_bytes = s.model->info.snapshot_bytes, page = td_kv_page_cost(s.pool, 0);
    stage_close(&s);
    const uint64_t budgets[] = {1, 8 * page, 3 * (state_bytes + 4 * page), 9 * (state_bytes + 4 * page)};
    for (size_t b = 0; b < 4; b++) {
        stage_open(&s, (stage_options){.heads = true, .cache_bytes = budgets[b]});
        truth old[3];
        for (uint64_t i = 0; i < 3; i++)
            make_text(&s, &old[i], 40, plain_params(20, 0), 30 + i);
        for (uint32_t k = 0; k < 50; k++) {
            const truth *from = &old[(uint32_t)(td_rng_uniform(6, k, 0) * 3)];
            uint32_t split = 1 + (uint32_t)(td_rng_uniform(6, k, 1) * (from->n - 1));
            truth t;
            make_branch(&s, &t, from, split, 2, plain_params(8, 0));
            request(&s, k % 3 ? &t : from, plain_params(8, 4));
            truth_free(&t);
            assert_true(td_prompt_cache_describe(s.cache).bytes <= budgets[b]);
        }
        assert_int_equal(td_prompt_cache_describe(s.cache).hits > 0, b > 1);
        for (uint64_t i = 0; i < 3; i++)
            truth_free(&old[i]);
        stage_close(&s);
    }
}

/* Requirement 6, and a text that is cut: the state goes with it. */
static void cuts_and_cancelling_leave_what_is_right(void **state) {
    (void)state;
    for (int heads = 0; heads < 2; heads++) {
        stage s;
        stage_open(&s, (stage_options){.heads = heads, .prefill_rows = 8, .cache_bytes = PLENTY});
        truth t;
        make_text(&s, &t, 30, plain_params(30, 0), 4);
        for (uint32_t rounds = 0; rounds < 16; rounds++)
            for (uint32_t back = 0; back < 4; back++) {
                td_prompt_cache_clear(s.cache);
                td_seq *seq = begin(&s, &t, plain_params(30, heads ? 5 : 0));
                uint32_t known = 0;
                for (uint32_t i = 0; i < rounds && !seq->finish; i++) {
                    known = td_kv_seq_length(seq->kv) + 1;
                    ASSERT_OK(td_round(s.decoder, &seq, 1, err));
                }
                uint32_t cut = seq->n_tokens - back;
                if (cut >= 30 && cut >= known) {
                    td_seq_cut(seq, cut, TD_FINISH_CANCELLED);
                    uint32_t had = td_kv_seq_length(seq->kv);
                    td_seq_finish(seq);
                    td_cache_match m = td_prompt_cache_find(s.cache, t.tokens, t.n);
                    assert_true(m.length == had || had == 0); /* a cut far back may cost the sequence its state */
                    assert_true(m.length < cut);
                    request(&s, &t, plain_params(30, heads ? 5 : 0));
                }
                td_seq_close(&seq);
            }
        truth_free(&t);
        stage_close(&s);
    }
}

static const td_model_ops *real_ops;
static int passes_left;
static bool spoils; /* logits, else the pass fails */

static td_status failing_forward(td_model *m, const td_pass *p, td_error *err) {
    if (passes_left-- != 0)
        return real_ops->forward(m, p, err);
    if (!spoils)
        return td_fail(err, TD_E_DEVICE, "the pass was made to fail");
    TD_TRY(real_ops->forward(m, p, err));
    TD_TRY(m->be->ops->wait(m->be, err));
    for (uint32_t i = 0; i < p->n_logits * m->info.n_vocab; i++)
        p->logits[i] = NAN;
    return TD_OK;
}

static void failures_leave_nothing_wrong(void **state) {
    (void)state;
    for (int k = 0; k < 24; k++) {
        stage s;
        stage_open(&s, (stage_options){.heads = true, .prefill_rows = 8, .cache_bytes = PLENTY});
        truth t;
        make_text(&s, &t, 40, plain_params(20, 0), 4);
        td_model_ops ops = *s.model->ops;
        real_ops = s.model->ops;
        ops.forward = failing_forward;
        spoils = k % 2;
        passes_left = spoils && k / 2 < 5 ? 5 : k / 2; /* the first five rounds have no logits */
        s.model->ops = &ops;
        td_seq *seq = begin(&s, &t, plain_params(20, 3));
        td_error e;
        td_status st = TD_OK;
        while (st == TD_OK && seq->status == TD_OK && !seq->finish)
            st = td_round(s.decoder, &seq, 1, &e);
        bool struck = st != TD_OK || seq->status != TD_OK;
        s.model->ops = real_ops;
        td_seq_finish(seq);
        td_seq_close(&seq);
        if (struck && spoils)
            assert_int_equal(td_prompt_cache_describe(s.cache).nodes, 0);
        uint32_t reused = request(&s, &t, plain_params(20, 3));
        assert_true(!struck || !spoils || reused == 0);
        truth_free(&t);
        stage_close(&s);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_split_equals_a_cold_run),
        cmocka_unit_test(conversations_go_on_from_their_end),
        cmocka_unit_test(a_second_reader_begins_on_what_the_first_has_read),
        cmocka_unit_test(the_third_of_a_kind_begins_where_the_others_parted),
        cmocka_unit_test(drafts_fare_as_in_an_unbroken_run),
        cmocka_unit_test(drafts_fare_as_in_a_cold_run),
        cmocka_unit_test(pages_written_without_heads_serve_with_heads),
        cmocka_unit_test(any_budget_gives_the_same_text),
        cmocka_unit_test(cuts_and_cancelling_leave_what_is_right),
        cmocka_unit_test(failures_leave_nothing_wrong),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
