/* test_round_batch.c - several sequences a round: each one's text, logits, drafts and counts are those it has alone,
 * whoever rides along, in whatever order, prefilling or decoding, coming and going. */
#include "decode/support_decode.h"

#include "base/rng.h"

#define N_CTX 160
#define N_REQUESTS 24
#define MAX_SEQS 5

static uint32_t below(uint64_t stream, uint64_t i, uint32_t n) {
    return (uint32_t)(td_rng_uniform(161803, stream, (uint32_t)i) * n);
}

/* A request, what plain decoding makes of it, and what it counts when it is alone on a stage with the same drafter. */
typedef struct request {
    td_token prompt[N_CTX];
    uint32_t n_prompt;
    td_seq_params p;
    truth t;
    td_seq_stats solo;
} request;

static void make_request(request *q, uint32_t i) {
    q->n_prompt = 1 + below(1, i, 90);
    random_prompt(q->prompt, q->n_prompt, 700 + i);
    q->p = seq_params(1 + below(2, i, 40), below(3, i, 9));
    q->p.sampling.temperature = i % 2 ? 0.8f : 0;
    q->p.sampling.seed = i;
    q->p.sampling.repetition_penalty = i % 3 ? 1 : 1.2f;
    q->p.sampling.frequency_penalty = i % 5 ? 0 : 0.3f;
    q->p.sampling.top_k = i % 4 ? 0 : 30;
}

static void play_alone(request *q, stage *s, td_seq *seq) {
    truth_make(&q->t, s, q->prompt, q->n_prompt, &q->p, N_CTX);
    td_kv_seq_clear(seq->kv);
    seq_start(seq, q->prompt, q->n_prompt, &q->p);
    stage_play(s, seq, &q->t);
    q->solo = seq->stats;
}

typedef struct slot {
    td_seq *seq;
    int request; /* -1: idle */
} slot;

/* One round of the busy slots, in an order of its own; finished ones are checked and become idle. */
static void batch_round(stage *s, slot *slots, request *q, uint32_t step, uint32_t prefill_rows) {
    td_seq *seqs[MAX_SEQS];
    slot *who[MAX_SEQS];
    uint32_t n = 0, decoding = 0;
    for (uint32_t i = 0; i < MAX_SEQS; i++) {
        slot *w = &slots[(i * (step % 2 ? 1 : MAX_SEQS - 1) + step) % MAX_SEQS];
        if (w->request < 0)
            continue;
        s->seen[n] = &q[w->request].t;
        decoding += td_seq_pending(w->seq) == 1;
        who[n] = w;
        seqs[n++] = w->seq;
    }
    if (!n)
        return;
    uint64_t rows = s->rows;
    ASSERT_OK(td_round(s->decoder, seqs, n, err));
    assert_true(s->rows - rows <= prefill_rows + decoding * 9);
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(seqs[i]->status, TD_OK);
        if (!seqs[i]->finish)
            continue;
        request *r = &q[who[i]->request];
        char what[64];
        snprintf(what, sizeof what, "request %d among %u", who[i]->request, n);
        check_equal(seqs[i], &r->t, what);
        if (memcmp(&seqs[i]->stats, &r->solo, sizeof r->solo) != 0)
            fail_msg("%s: its counts are not those it has alone", what);
        who[i]->request = -1;
    }
}

static bool busy(const slot *slots) {
    for (uint32_t i = 0; i < MAX_SEQS; i++)
        if (slots[i].request >= 0)
            return true;
    return false;
}

static void neighbours_change_nothing(const char *name, uint32_t prefill_rows, td_kv_type kv) {
    static request q[N_REQUESTS];
    stage alone, together;
    stage_options o = {.fixture = name, .kv = kv, .assistant = true};
    stage_open(&alone, &o);
    td_seq *solo = stage_seq(&alone, N_CTX);
    for (uint32_t i = 0; i < N_REQUESTS; i++) {
        make_request(&q[i], i);
        play_alone(&q[i], &alone, solo);
    }
    td_seq_close(&solo);
    stage_close(&alone);

    o.max_seqs = MAX_SEQS;
    o.prefill_rows = prefill_rows;
    stage_open(&together, &o);
    slot slots[MAX_SEQS];
    for (uint32_t i = 0; i < MAX_SEQS; i++)
        slots[i] = (slot){.seq = stage_seq(&together, N_CTX), .request = -1};
    uint32_t next = 0;
    for (uint32_t step = 0; next < N_REQUESTS || busy(slots); step++) {
        slot *w = &slots[below(4, step, MAX_SEQS)]; /* now and then somebody comes */
        if (w->request < 0 && next < N_REQUESTS && (step % 3 == 0 || !busy(slots))) {
            w->request = (int)next++;
            td_kv_seq_clear(w->seq->kv);
            seq_start(w->seq, q[w->request].prompt, q[w->request].n_prompt, &q[w->request].p);
        }
        batch_round(&together, slots, q, step, prefill_rows);
    }
    for (uint32_t i = 0; i < MAX_SEQS; i++)
        td_seq_close(&slots[i].seq);
    for (uint32_t i = 0; i < N_REQUESTS; i++)
        truth_free(&q[i].t);
    stage_close(&together);
}

static void neighbours_change_nothing_dense(void **state) {
    (void)state;
    neighbours_change_nothing("gemma4-dense", 7, TD_KV_BF16);
    neighbours_change_nothing("gemma4-dense", 64, TD_KV_F32);
}

static void neighbours_change_nothing_per_layer_inputs(void **state) {
    (void)state;
    neighbours_change_nothing("gemma4-ple", 1, TD_KV_BF16);
    neighbours_change_nothing("gemma4-ple", 30, TD_KV_F32);
}

static void neighbours_change_nothing_experts(void **state) {
    (void)state;
    neighbours_change_nothing("gemma4-moe", 16, TD_KV_BF16);
}

/* All sequences that can draft are drafted for in one call. */
static void drafting_is_one_batch(void **state) {
    (void)state;
    script d;
    script_open(&d, 3);
    stage s;
    stage_open(&s, &(stage_options){.max_seqs = 3, .drafter = &d.base});
    td_seq *seqs[3];
    truth t[3];
    for (uint32_t i = 0; i < 3; i++) {
        td_token prompt[40];
        td_seq_params p = seq_params(30, 2 + i);
        random_prompt(prompt, 10 + i, i);
        truth_make(&t[i], &s, prompt, 10 + i, &p, N_CTX);
        seqs[i] = stage_seq(&s, N_CTX);
        *script_of(seqs[i]) = (script_seq){.text = &t[i], .plan = plan_fixed, .n_right = i};
        seq_start(seqs[i], prompt, 10 + i, &p);
        s.seen[i] = &t[i];
    }
    for (uint32_t round = 0; round < 6; round++) {
        ASSERT_OK(td_round(s.decoder, seqs, 3, err));
        assert_int_equal(d.batches, round);
    }
    assert_int_equal(d.widest, 3);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(seqs[i]->n_tokens, 10 + i + 1 + 5 * (i + 1));
        td_seq_close(&seqs[i]);
        truth_free(&t[i]);
    }
    stage_close(&s);
}

/* Cancelling one in the middle of its text neither ends nor changes another, and its slot is free at once. */
static void cancelling_one_leaves_the_others(void **state) {
    (void)state;
    stage s;
    stage_open(&s, &(stage_options){.fixture = "gemma4-ple", .max_seqs = 3, .assistant = true});
    td_seq *seqs[3];
    truth t[3], again;
    td_token prompt[3][20];
    td_seq_params p = seq_params(40, 4);
    for (uint32_t i = 0; i < 3; i++) {
        random_prompt(prompt[i], 20, 90 + i);
        truth_make(&t[i], &s, prompt[i], 20, &p, N_CTX);
        seqs[i] = stage_seq(&s, N_CTX);
        seq_start(seqs[i], prompt[i], 20, &p);
        s.seen[i] = &t[i];
    }
    for (uint32_t round = 0; round < 5; round++)
        ASSERT_OK(td_round(s.decoder, seqs, 3, err));
    td_seq_cut(seqs[1], seqs[1]->n_tokens, TD_FINISH_CANCELLED);
    td_token other[30];
    random_prompt(other, 30, 95);
    truth_make(&again, &s, other, 30, &p, N_CTX);
    seq_start(seqs[1], other, 30, &p);
    s.seen[1] = &again;
    while (!seqs[0]->finish && !seqs[1]->finish && !seqs[2]->finish)
        ASSERT_OK(td_round(s.decoder, seqs, 3, err));
    const truth *all[3] = {&t[0], &again, &t[2]};
    for (uint32_t i = 0; i < 3; i++) {
        s.seen[0] = s.seen[1] = s.seen[2] = NULL;
        stage_play(&s, seqs[i], all[i]);
        td_seq_close(&seqs[i]);
        truth_free(&t[i]);
    }
    truth_free(&again);
    stage_close(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(neighbours_change_nothing_dense),
        cmocka_unit_test(neighbours_change_nothing_per_layer_inputs),
        cmocka_unit_test(neighbours_change_nothing_experts),
        cmocka_unit_test(drafting_is_one_batch),
        cmocka_unit_test(cancelling_one_leaves_the_others),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
