/* measure.c - see measure.h. */
#include "engine/measure.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "base/pool.h"
#include "engine/engine.h"

struct td_measure {
    td_engine *e;
    td_seq *seq;
    uint32_t n_prompts; /* read so far: each is another */
    uint32_t max_rows;
    bool (*goes_on)(void *user); /* or NULL */
    void *user;
    td_token *prompt; /* [n_ctx] */
    /* a pass */
    td_token *token;
    int32_t *pos, *out_row, *logits_out;
    uint32_t *row_seq;
    float *hidden, *logits;
};

static td_status alloc_parts(td_measure *m, td_error *err) {
    const td_model *model = m->e->model;
    const uint32_t n = m->max_rows;
    m->prompt = td_calloc(m->e->info.n_ctx, sizeof *m->prompt);
    m->token = td_calloc(n, sizeof *m->token);
    m->pos = td_calloc(n, sizeof *m->pos);
    m->out_row = td_calloc(n, sizeof *m->out_row);
    m->logits_out = td_calloc(n, sizeof *m->logits_out);
    m->row_seq = td_calloc(n, sizeof *m->row_seq);
    m->hidden = td_malloc_aligned((size_t)n * model->info.n_embd * sizeof(float));
    m->logits = td_malloc_aligned((size_t)n * model->info.n_vocab * sizeof(float));
    if (!m->prompt || !m->token || !m->pos || !m->out_row || !m->logits_out || !m->row_seq || !m->hidden || !m->logits)
        return td_fail(err, TD_E_NOMEM, "out of memory for passes of %u rows", n);
    return td_seq_open(&m->seq, m->e->decoder, m->e->info.n_ctx, err);
}

td_status td_measure_open(td_measure **out, td_engine *e, td_error *err) {
    *out = NULL;
    td_measure *m = td_calloc(1, sizeof *m);
    if (!m)
        return td_fail(err, TD_E_NOMEM, "out of memory");
    m->e = e;
    m->max_rows = e->decoder_options.max_depth + 1;
    if (m->max_rows > e->model->opt.max_logits)
        m->max_rows = e->model->opt.max_logits;
    td_status st = alloc_parts(m, err);
    if (st != TD_OK)
        td_measure_close(&m);
    *out = m;
    return st;
}

void td_measure_close(td_measure **pm) {
    if (!pm || !*pm)
        return;
    td_measure *m = *pm;
    td_pool_leave();
    td_seq_close(&m->seq);
    td_free(m->prompt);
    td_free(m->token);
    td_free(m->pos);
    td_free(m->out_row);
    td_free(m->logits_out);
    td_free(m->row_seq);
    td_free_aligned(m->hidden);
    td_free_aligned(m->logits);
    td_free(m);
    *pm = NULL;
}

uint32_t td_measure_max_rows(const td_measure *m) {
    return m->max_rows;
}

uint64_t td_measure_weight_bytes(const td_measure *m) {
    return m->e->model->info.row_bytes;
}

uint64_t td_measure_kv_bytes(const td_measure *m) {
    const td_kv_layout *kv = &m->e->model->kv;
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < kv->n_layers; i++) {
        const td_kv_layer *l = &kv->layer[i];
        uint64_t keys = (uint64_t)td_kv_seq_length(m->seq->kv) + 1, window = kv->group[l->group].window;
        keys = window && keys > window ? window : keys;
        bytes += keys * l->n_readers * l->n_kv_heads * l->head_dim * 2 * td_kv_type_bytes(kv->type);
    }
    return bytes;
}

void td_measure_watch(td_measure *m, bool (*goes_on)(void *user), void *user) {
    m->goes_on = goes_on;
    m->user = user;
}

/* Token i of a text that is never the same. */
static td_token token_at(const td_measure *m, uint32_t i) {
    const uint32_t n = m->e->info.n_vocab;
    return (td_token)((i * 7919u + m->n_prompts * 104729u + 13u) % n);
}

td_status td_measure_prompt(td_measure *m, uint32_t n, double *seconds, td_error *err) {
    td_seq_params p = {.sampling = td_sampling_default(), .max_tokens = 2, .ignore_end = true};
    if (n < 1 || n + 2 > m->e->info.n_ctx)
        return td_fail(err, TD_E_LIMIT, "a prompt of %u tokens in a context of %u", n, m->e->info.n_ctx);
    m->n_prompts++;
    for (uint32_t i = 0; i < n; i++)
        m->prompt[i] = token_at(m, i);
    td_decoder_set_prefill(m->e->decoder, UINT32_MAX);
    TD_TRY(td_seq_start(m->seq, m->prompt, n, &p, err));
    int64_t start = td_clock_ns();
    while (m->seq->n_tokens == n) {
        if (m->goes_on && !m->goes_on(m->user))
            return td_fail(err, TD_E_CANCELLED, "interrupted");
        TD_TRY(td_round(m->e->decoder, &m->seq, 1, err));
        if (m->seq->status != TD_OK) {
            if (err)
                *err = m->seq->error;
            return m->seq->status;
        }
    }
    *seconds = td_clock_since(start);
    return TD_OK;
}

td_status td_measure_rows(td_measure *m, uint32_t n, double *seconds, td_error *err) {
    td_seq *s = m->seq;
    const uint32_t length = td_kv_seq_length(s->kv), sure = 1;
    const int32_t n_keys = (int32_t)(length + n);
    td_kv_pages tables[TD_KV_MAX_GROUPS];
    void *state = s->state;
    if (n < 1 || n > m->max_rows || !s->has_hidden)
        return td_fail(err, TD_E_ARG, "a pass of %u rows, expected 1 to %u behind a prompt", n, m->max_rows);
    TD_TRY(td_kv_seq_reserve(s->kv, n, err));
    for (uint32_t r = 0; r < n; r++) {
        m->token[r] = r ? token_at(m, length + r) : s->tokens[length];
        m->pos[r] = (int32_t)(length + r);
        m->row_seq[r] = 0;
        m->out_row[r] = m->logits_out[r] = (int32_t)r;
    }
    td_pass p = {.n_rows = n,
                 .token = m->token,
                 .pos = m->pos,
                 .row_seq = m->row_seq,
                 .n_seq = 1,
                 .n_keys = &n_keys,
                 .state = &state,
                 .n_sure = &sure,
                 .n_out = n,
                 .out_row = m->out_row,
                 .hidden = m->hidden,
                 .n_logits = n,
                 .logits_out = m->logits_out,
                 .logits = m->logits};
    for (uint32_t g = 0; g < m->e->model->kv.n_groups; g++) {
        tables[g] = td_kv_seq_pages(s->kv, g);
        p.pages[g] = &tables[g];
    }
    int64_t start = td_clock_ns();
    TD_TRY(td_model_forward(m->e->model, &p, err));
    *seconds = td_clock_since(start);
    return TD_OK;
}

static bool never_ends(const void *user, td_token t) {
    (void)user;
    (void)t;
    return false;
}

td_status td_measure_draft(td_measure *m, uint32_t depth, uint32_t *n, double *seconds, td_error *err) {
    td_seq *s = m->seq;
    td_drafter *d = m->e->drafter;
    td_token out[TD_MAX_DRAFT];
    *n = 0;
    if (!d || depth < 1 || depth > m->e->decoder_options.max_depth || !s->has_hidden)
        return td_fail(err, TD_E_ARG, "a draft of %u tokens, expected 1 to %u of a drafter behind a prompt", depth,
                       m->e->decoder_options.max_depth);
    if (d->all_rows)
        TD_TRY(td_kv_seq_reserve(s->kv, 1 + depth, err));
    td_draft b = {.state = s->drafter_state,
                  .tokens = s->tokens,
                  .n_tokens = s->n_tokens,
                  .kv = s->kv,
                  .hidden = s->hidden,
                  .sampling = &s->params.sampling,
                  .history = &s->history,
                  .is_end = never_ends,
                  .depth = depth,
                  .out = out};
    int64_t start = td_clock_ns();
    TD_TRY(d->ops->draft(d, &b, 1, err));
    *seconds = td_clock_since(start);
    *n = b.n_out;
    return TD_OK;
}
