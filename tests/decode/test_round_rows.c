/* test_round_rows.c - row-invariance, on which exactness stands: the logits and the hidden state of a position have the
 * same bits in a pass of one row and in any other pass, whatever rides along, wherever the row stands, however the rows
 * before it were cut into passes, whichever outputs are asked for, and however many threads work. */
#include "decode/support_decode.h"

#include "base/rng.h"

#define N_SEQS 3
#define N_TEXT 70
#define MAX_ROWS 200

static const char *const fixtures[] = {"gemma4-dense", "gemma4-ple", "gemma4-moe"};
static const char *const backends[] = {"reference", "generic", "avx2", "avx512"};

static uint32_t below(uint64_t stream, uint64_t i, uint32_t n) {
    return (uint32_t)(td_rng_uniform(271828, stream, (uint32_t)i) * n);
}

static void make_truths(truth t[N_SEQS], stage *s) {
    td_seq_params p = seq_params(4, 0);
    for (uint32_t i = 0; i < N_SEQS; i++) {
        td_token prompt[N_TEXT];
        random_prompt(prompt, N_TEXT, 500 + i);
        truth_make(&t[i], s, prompt, N_TEXT, &p, 128);
    }
}

typedef struct pass_arrays {
    td_token token[MAX_ROWS];
    int32_t pos[MAX_ROWS], out_row[MAX_ROWS], logits_out[MAX_ROWS], n_keys[N_SEQS];
    uint32_t row_seq[MAX_ROWS], n_sure[N_SEQS];
    td_kv_pages pages[TD_KV_MAX_GROUPS][N_SEQS];
    float hidden[MAX_ROWS * 64], logits[MAX_ROWS * 320];
} pass_arrays;

static void add_rows(td_pass *p, pass_arrays *a, const truth *t, uint32_t seq, uint32_t length, uint32_t n) {
    for (uint32_t r = 0; r < n; r++, p->n_rows++) {
        a->token[p->n_rows] = t->tokens[length + r];
        a->pos[p->n_rows] = (int32_t)(length + r);
        a->row_seq[p->n_rows] = seq;
    }
    a->n_keys[seq] = (int32_t)(length + n);
    a->n_sure[seq] = n;
}

/* The outputs of a pass: every one, none, or a random part; of the hidden states, logits of a random part. */
static void choose_outputs(td_pass *p, pass_arrays *a, uint64_t stream, uint32_t step) {
    uint32_t share = below(stream, 1000 * step, 4);
    for (uint32_t r = 0; r < p->n_rows; r++) {
        if (share == 3 || below(stream, 1000 * step + 1 + r, 4) >= share + 1)
            continue;
        a->out_row[p->n_out] = (int32_t)r;
        if (below(stream, 1000 * step + 500 + r, 5))
            a->logits_out[p->n_logits++] = (int32_t)p->n_out;
        p->n_out++;
    }
}

/* Feeds the three texts to their ends; a watched stage compares what comes out. */
static void feed_cut(stage *s, const truth t[N_SEQS], uint32_t most_rows, uint64_t stream) {
    static pass_arrays a;
    td_kv_seq *kv[N_SEQS];
    for (uint32_t i = 0; i < N_SEQS; i++) {
        ASSERT_OK(td_kv_seq_open(&kv[i], s->pool, 128, 4, err));
        s->seen[i] = &t[i];
    }
    uint32_t left = N_SEQS * N_TEXT;
    for (uint32_t step = 0; left; step++) {
        td_pass p = {.token = a.token,
                     .pos = a.pos,
                     .row_seq = a.row_seq,
                     .n_seq = N_SEQS,
                     .n_keys = a.n_keys,
                     .n_sure = a.n_sure,
                     .out_row = a.out_row,
                     .hidden = a.hidden,
                     .logits_out = a.logits_out,
                     .logits = a.logits};
        uint32_t rows[N_SEQS];
        for (uint32_t i = 0; i < N_SEQS; i++) {
            uint32_t length = td_kv_seq_length(kv[i]), room = N_TEXT - length;
            rows[i] = below(stream, N_SEQS * step + i, most_rows + 1);
            rows[i] = rows[i] < room ? rows[i] : room;
            ASSERT_OK(td_kv_seq_reserve(kv[i], rows[i], err));
            add_rows(&p, &a, &t[i], i, length, rows[i]);
            for (uint32_t g = 0; g < s->f.model->kv.n_groups; g++)
                a.pages[g][i] = td_kv_seq_pages(kv[i], g);
        }
        if (!p.n_rows)
            continue;
        for (uint32_t g = 0; g < s->f.model->kv.n_groups; g++)
            p.pages[g] = a.pages[g];
        choose_outputs(&p, &a, stream, step);
        ASSERT_OK(td_model_forward(s->f.model, &p, err));
        for (uint32_t i = 0; i < N_SEQS; i++)
            td_kv_seq_set_length(kv[i], td_kv_seq_length(kv[i]) + rows[i]);
        left -= p.n_rows;
    }
    for (uint32_t i = 0; i < N_SEQS; i++) {
        td_kv_seq_close(&kv[i]);
        s->seen[i] = NULL;
    }
}

static void invariant_on(const char *backend) {
    static const uint32_t most_rows[] = {1, 2, 3, 5, 9, 16, 17, 33, 64};
    for (size_t f = 0; f < 3; f++)
        for (int kv = 0; kv < 2; kv++) {
            stage s;
            if (!stage_open(&s, &(stage_options){.fixture = fixtures[f],
                                                 .backend = backend,
                                                 .threads = 2,
                                                 .kv = kv ? TD_KV_F32 : TD_KV_BF16,
                                                 .prefill_rows = MAX_ROWS,
                                                 .max_out = MAX_ROWS}))
                skip();
            truth t[N_SEQS];
            make_truths(t, &s);
            for (size_t m = 0; m < sizeof most_rows / sizeof most_rows[0]; m++)
                feed_cut(&s, t, most_rows[m], 10 * m + f);
            assert_true(s.rows_compared > 400);
            for (uint32_t i = 0; i < N_SEQS; i++)
                truth_free(&t[i]);
            stage_close(&s);
        }
}

static void on_reference(void **state) {
    (void)state;
    invariant_on(backends[0]);
}

static void on_generic(void **state) {
    (void)state;
    invariant_on(backends[1]);
}

static void on_avx2(void **state) {
    (void)state;
    invariant_on(backends[2]);
}

static void on_avx512(void **state) {
    (void)state;
    invariant_on(backends[3]);
}

static void the_number_of_threads_changes_no_bit(void **state) {
    (void)state;
    for (size_t f = 0; f < 3; f++) {
        truth one[N_SEQS], other[N_SEQS];
        for (int threads = 1; threads <= 4; threads++) {
            stage s;
            stage_open(&s, &(stage_options){.fixture = fixtures[f], .threads = threads});
            make_truths(threads == 1 ? one : other, &s);
            stage_close(&s);
            for (uint32_t i = 0; threads > 1 && i < N_SEQS; i++) {
                assert_int_equal(one[i].n, other[i].n);
                assert_memory_equal(one[i].logits, other[i].logits, (one[i].n - 1) * 320 * sizeof(float));
                truth_free(&other[i]);
            }
        }
        for (uint32_t i = 0; i < N_SEQS; i++)
            truth_free(&one[i]);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(on_reference),
        cmocka_unit_test(on_generic),
        cmocka_unit_test(on_avx2),
        cmocka_unit_test(on_avx512),
        cmocka_unit_test(the_number_of_threads_changes_no_bit),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
