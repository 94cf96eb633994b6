/* qwen35_stage.h - plays rounds of a Qwen 3.5 fixture against plain decoding: one row a pass, all of it sure, without
 * round.c, drafters or snapshots, which gives the text and the recurrent state after every token. Static functions, as
 * in fixture.h. */
#ifndef TD_TESTS_QWEN35_STAGE_H
#define TD_TESTS_QWEN35_STAGE_H

#include "support/qwen35.h"

#include "base/rng.h"
#include "decode/round.h"

#define STAGE_CTX 256

typedef struct stage_options {
    const char *fixture; /* default "qwen35-dense" */
    const char *path;    /* or a checkpoint directory */
    const char *backend; /* default: the best there is, with one thread */
    td_kv_type kv;
    uint32_t max_seqs, prefill_rows, max_depth, page_tokens; /* default 1, 16, 8, 8 */
    int n_snapshots;
    uint64_t cache_bytes; /* of a prompt cache; 0: there is none */
    bool heads;           /* draft with the heads of the checkpoint */
    uint32_t shortlist, mtp_bits;
    const td_token *common; /* [n_common] */
    size_t n_common;
    td_drafter *drafter; /* or with this, borrowed */
} stage_options;

typedef struct stage {
    td_backend *be;
    td_checkpoint *ck;
    td_model *model;
    td_drafter *drafter, *own;
    td_kv_pool *pool;
    td_prompt_cache *cache;
    td_decoder *decoder;
} stage;

static inline void stage_open(stage *s, stage_options o) {
    char path[512];
    *s = (stage){0};
    if (o.backend)
        s->be = fixture_backend(o.backend);
    else
        ASSERT_OK(td_backend_cpu_open(&s->be, &(td_cpu_options){.n_threads = 1}, err));
    td_decoder_options d = {.max_seqs = o.max_seqs ? o.max_seqs : 1,
                            .prefill_rows = o.prefill_rows ? o.prefill_rows : 16,
                            .max_depth = o.max_depth ? o.max_depth : 8,
                            .n_snapshots = o.n_snapshots};
    td_model_options m = td_model_options_default();
    m.mtp = o.heads;
    m.mtp_bits = o.mtp_bits;
    td_decoder_model_options(&d, &m);
    m.kv_type = o.kv;
    m.page_tokens = o.page_tokens ? o.page_tokens : 8;
    fixture_path(o.fixture ? o.fixture : "qwen35-dense", NULL, path, sizeof path);
    ASSERT_OK(td_checkpoint_open(&s->ck, o.path ? o.path : path, NULL, err));
    ASSERT_OK(td_model_open(&s->model, s->ck, s->be, &m, err));
    s->drafter = o.drafter;
    if (o.heads) {
        td_drafter_options h = td_drafter_options_default();
        h.max_seqs = d.max_seqs;
        h.shortlist = o.shortlist;
        h.common = o.common;
        h.n_common = o.n_common;
        ASSERT_OK(td_drafter_heads_open(&s->own, s->model, &h, err));
        s->drafter = s->own;
    }
    ASSERT_OK(td_kv_pool_open(&s->pool, &s->model->kv, s->be, 0, err));
    if (o.cache_bytes)
        ASSERT_OK(td_prompt_cache_open(&s->cache, s->model, s->pool, o.cache_bytes, err));
    d.cache = s->cache;
    ASSERT_OK(td_decoder_open(&s->decoder, s->model, s->drafter, s->pool, &d, err));
}

static inline void stage_close(stage *s) {
    td_decoder_close(&s->decoder);
    td_prompt_cache_close(&s->cache);
    assert_int_equal(td_kv_pool_used(s->pool), 0);
    td_kv_pool_close(&s->pool);
    td_drafter_close(&s->own);
    td_model_close(&s->model);
    td_checkpoint_close(&s->ck);
    td_backend_close(&s->be);
}

static inline td_seq_params plain_params(uint32_t max_tokens, uint32_t depth) {
    return (td_seq_params){.sampling = {.top_p = 1, .repetition_penalty = 1},
                           .max_tokens = max_tokens,
                           .depth = depth,
                           .ignore_end = true};
}

static inline td_seq_params sampled_params(uint32_t max_tokens, uint32_t depth, uint64_t seed) {
    td_seq_params p = plain_params(max_tokens, depth);
    p.sampling.temperature = 0.8f;
    p.sampling.top_k = 60;
    p.sampling.repetition_penalty = 1.1f;
    p.sampling.seed = seed;
    return p;
}

static inline void random_tokens(td_token *out, uint32_t n, uint64_t stream) {
    for (uint32_t i = 0; i < n; i++)
        out[i] = (td_token)(td_rng_uniform(77, stream, i) * N_VOCAB);
}

/* ---- plain decoding ---- */

typedef struct truth {
    td_token tokens[STAGE_CTX];
    uint32_t n_prompt, n;
    uint8_t *states; /* [n][snapshot_bytes] after 0, 1, ... tokens */
    size_t state_bytes;
} truth;

static inline const uint8_t *truth_state(const truth *t, uint32_t n_tokens) {
    return t->states + n_tokens * t->state_bytes;
}

static inline void truth_make(truth *t, stage *s, const td_token *prompt, uint32_t n_prompt, const td_seq_params *p) {
    td_model *m = s->model;
    const td_model_info *info = &m->info;
    *t = (truth){.n_prompt = n_prompt, .n = n_prompt, .state_bytes = info->snapshot_bytes};
    memcpy(t->tokens, prompt, n_prompt * sizeof *prompt);
    t->states = td_malloc_aligned((n_prompt + p->max_tokens + 1) * t->state_bytes);
    uint8_t *state = s->be->ops->alloc(s->be, info->state_bytes);
    float *logits = td_malloc_aligned(info->n_vocab * sizeof *logits), *hidden = td_malloc_aligned(info->n_embd * 4);
    td_kv_seq *kv;
    td_sampler *sampler;
    td_history h;
    ASSERT_OK(td_kv_seq_open(&kv, s->pool, STAGE_CTX, 1, err));
    ASSERT_OK(td_sampler_open(&sampler, NULL, info->n_vocab, err));
    ASSERT_OK(td_history_open(&h, info->n_vocab, err));
    for (uint32_t i = 0; i < n_prompt; i++)
        h.prompted[prompt[i]] = 1;
    m->ops->state_reset(m, state);
    memcpy(t->states, state, t->state_bytes);
    for (uint32_t pos = 0; t->n < n_prompt + p->max_tokens; pos++) {
        ASSERT_OK(td_kv_seq_reserve(kv, 1, err));
        td_kv_pages table = td_kv_seq_pages(kv, 0);
        int32_t position = (int32_t)pos, n_keys = (int32_t)pos + 1, zero = 0;
        uint32_t row_seq = 0, one = 1;
        void *memory = state;
        td_pass pass = {.n_rows = 1,
                        .token = &t->tokens[pos],
                        .pos = &position,
                        .row_seq = &row_seq,
                        .n_seq = 1,
                        .pages = {&table},
                        .n_keys = &n_keys,
                        .state = &memory,
                        .n_sure = &one,
                        .n_out = 1,
                        .out_row = &zero,
                        .hidden = hidden,
                        .n_logits = 1,
                        .logits_out = &zero,
                        .logits = logits};
        ASSERT_OK(td_model_forward(m, &pass, err));
        td_kv_seq_set_length(kv, pos + 1);
        memcpy(t->states + (pos + 1) * t->state_bytes, state, t->state_bytes);
        if (pos + 1 < n_prompt)
            continue;
        ASSERT_OK(td_sample(sampler, &p->sampling, &h, logits, NULL, NULL, info->n_vocab, t->n, &t->tokens[t->n], err));
        td_history_add(&h, t->tokens[t->n]);
        t->n++;
    }
    td_history_close(&h);
    td_sampler_close(&sampler);
    td_kv_seq_close(&kv);
    s->be->ops->free(s->be, state);
    td_free_aligned(logits);
    td_free_aligned(hidden);
}

static inline void truth_free(truth *t) {
    td_free_aligned(t->states);
}

/* ---- comparing ---- */

/* The tokens so far are the truth's, and the state with what is uncommitted is the truth's after as many tokens as
 * there are keys. */
static inline void check_sequence(stage *s, const td_seq *seq, const truth *t) {
    td_model *m = s->model;
    uint32_t length = td_kv_seq_length(seq->kv);
    assert_in_range(seq->n_tokens, 1, t->n);
    for (uint32_t i = 0; i < seq->n_tokens; i++)
        if (seq->tokens[i] != t->tokens[i])
            fail_msg("token %u (text begins at %u) is %d, plain decoding gives %d", i, t->n_prompt, seq->tokens[i],
                     t->tokens[i]);
    uint8_t *state = s->be->ops->alloc(s->be, m->info.state_bytes);
    memcpy(state, seq->state, m->info.state_bytes);
    m->ops->state_commit(m, state, seq->uncommitted);
    if (memcmp(state, truth_state(t, length), t->state_bytes) != 0)
        fail_msg("the state after %u tokens (%u of them uncommitted) is not that of plain decoding", length,
                 seq->uncommitted);
    s->be->ops->free(s->be, state);
}

/* Rounds of this sequence alone until it is finished, each compared; then all of the text must be there. */
static inline void stage_play(stage *s, td_seq *seq, const truth *t) {
    while (!seq->finish && seq->status == TD_OK) {
        ASSERT_OK(td_round(s->decoder, &seq, 1, err));
        check_sequence(s, seq, t);
    }
    if (seq->status != TD_OK)
        fail_msg("the sequence failed: %s", seq->error.message);
    assert_int_equal(seq->n_tokens, t->n);
}

static inline td_seq *stage_seq(stage *s) {
    td_seq *seq = NULL;
    ASSERT_OK(td_seq_open(&seq, s->decoder, STAGE_CTX, err));
    return seq;
}

static inline uint64_t accepted_drafts(const td_seq *seq) {
    uint64_t n = 0;
    for (uint32_t i = 0; i < TD_MAX_DRAFT; i++)
        n += seq->stats.accepted_at[i];
    return n;
}

/* ---- a drafter that knows the text ---- */

/* Proposes as many right tokens as `right` says (by the number of the call), then wrong ones. */
typedef struct oracle {
    td_drafter base;
    const truth *text;
    uint32_t (*right)(const struct oracle *o, uint32_t depth);
    uint32_t calls, n_right;
} oracle;

static inline td_status oracle_draft(td_drafter *base, td_draft *batch, uint32_t n, td_error *err) {
    oracle *o = (oracle *)base;
    (void)err;
    for (uint32_t r = 0; r < n; r++) {
        td_draft *b = &batch[r];
        uint32_t right = o->right(o, b->depth);
        o->calls++;
        for (b->n_out = 0; b->n_out < b->depth; b->n_out++) {
            td_token t = o->text->tokens[b->n_tokens + b->n_out];
            b->out[b->n_out] = b->n_out < right ? t : (t + 1) % N_VOCAB;
        }
    }
    return TD_OK;
}

static inline void oracle_close(td_drafter *base) {
    (void)base;
}

static inline uint32_t oracle_fixed(const oracle *o, uint32_t depth) {
    return o->n_right < depth ? o->n_right : depth;
}

static inline uint32_t oracle_random(const oracle *o, uint32_t depth) {
    return (uint32_t)(td_rng_uniform(5, o->calls, 0) * (depth + 1));
}

static inline oracle oracle_new(uint32_t max_seqs, uint32_t (*right)(const oracle *, uint32_t)) {
    static const td_drafter_ops ops = {.draft = oracle_draft, .close = oracle_close};
    return (oracle){.base = {.ops = &ops, .kind = "oracle", .max_seqs = max_seqs}, .right = right};
}

#endif
