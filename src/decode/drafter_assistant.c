/* drafter_assistant.c - drafts with a Gemma 4 assistant: one step a token, each fed the token and the vector of the
 * step before, all at the position of the round's newest token. The assistant keeps nothing between rounds. */
#include <string.h>

#include "base/alloc.h"
#include "decode/drafter.h"
#include "model/gemma4_assistant.h"

typedef struct assistant_drafter {
    td_drafter base;
    td_model *trunk;
    td_gemma4_assistant *a;
    td_sampler *sampler;
    td_gemma4_step step;   /* its arrays, for max_seqs rows */
    td_token *token;       /* [max_seqs] */
    int32_t *pos, *n_keys; /* [max_seqs] */
    td_kv_pages *pages[TD_KV_MAX_GROUPS];
    uint32_t *live; /* [max_seqs] batch index of each row still drafting */
} assistant_drafter;

td_drafter_options td_drafter_options_default(void) {
    td_gemma4_assistant_options a = td_gemma4_assistant_options_default();
    return (td_drafter_options){
        .max_seqs = 1, .bits = 16, .query_offset = a.query_offset, .window_extra = a.window_extra};
}

/* Row `row` of the step is sequence `b` of the batch. */
static void set_row(assistant_drafter *d, uint32_t row, const td_draft *b) {
    d->pos[row] = (int32_t)b->n_tokens - 1;
    d->n_keys[row] = (int32_t)b->n_tokens - 1;
    for (uint32_t g = 0; g < d->trunk->kv.n_groups; g++)
        d->pages[g][row] = td_kv_seq_pages(b->kv, g);
}

/* Moves the rows that go on to the front; returns how many. */
static uint32_t compact(assistant_drafter *d, td_draft *batch, uint32_t n, uint32_t j) {
    uint32_t width = d->trunk->info.n_embd, kept = 0;
    for (uint32_t r = 0; r < n; r++) {
        td_draft *b = &batch[d->live[r]];
        if (!td_draft_goes_on(b))
            continue;
        if (kept != r) {
            memmove(d->step.hidden + (size_t)kept * width, d->step.hidden + (size_t)r * width, width * sizeof(float));
            set_row(d, kept, b);
            d->live[kept] = d->live[r];
        }
        d->token[kept++] = b->out[j];
    }
    return kept;
}

/* The j-th draft of every live row. */
static td_status draw(assistant_drafter *d, td_draft *batch, uint32_t n, uint32_t j, td_error *err) {
    uint32_t n_candidates = td_gemma4_assistant_describe(d->a)->n_candidates;
    bool shortlist = td_gemma4_assistant_describe(d->a)->centroids;
    for (uint32_t r = 0; r < n; r++) {
        td_draft *b = &batch[d->live[r]];
        td_token t;
        TD_TRY(td_sample(d->sampler, b->sampling, b->history, d->step.logits + (size_t)r * n_candidates,
                         shortlist ? d->step.candidate + (size_t)r * n_candidates : NULL, NULL, n_candidates,
                         b->n_tokens + j, &t, err));
        td_draft_take(b, t, td_sampler_confidence(d->sampler));
    }
    return TD_OK;
}

static td_status draft(td_drafter *base, td_draft *batch, uint32_t n, td_error *err) {
    assistant_drafter *d = (assistant_drafter *)base;
    uint32_t width = d->trunk->info.n_embd;
    for (uint32_t r = 0; r < n; r++) {
        td_draft_begin(&batch[r]);
        d->live[r] = r;
        d->token[r] = batch[r].tokens[batch[r].n_tokens - 1];
        memcpy(d->step.hidden + (size_t)r * width, batch[r].hidden, width * sizeof(float));
        set_row(d, r, &batch[r]);
    }
    td_status st = TD_OK;
    for (uint32_t j = 0, live = n; live > 0 && st == TD_OK; j++) {
        d->step.n = live;
        st = td_gemma4_assistant_step(d->a, &d->step, err);
        if (st == TD_OK)
            st = draw(d, batch, live, j, err);
        if (st == TD_OK)
            live = compact(d, batch, live, j);
    }
    for (uint32_t r = 0; r < n; r++)
        td_draft_release(&batch[r]);
    /* A drafter whose numbers fail proposes nothing; the trunk decides whether that is an error of the request. */
    if (st == TD_E_NUMERIC) {
        for (uint32_t r = 0; r < n; r++)
            batch[r].n_out = 0;
        return TD_OK;
    }
    return st;
}

static void close_drafter(td_drafter *base) {
    assistant_drafter *d = (assistant_drafter *)base;
    td_gemma4_assistant_close(&d->a);
    td_sampler_close(&d->sampler);
    td_free(d->token);
    td_free(d->pos);
    td_free(d->n_keys);
    td_free(d->live);
    for (uint32_t g = 0; g < TD_KV_MAX_GROUPS; g++)
        td_free(d->pages[g]);
    td_free_aligned(d->step.hidden);
    td_free_aligned(d->step.logits);
    td_free(d->step.candidate);
    td_free(d);
}

static td_status alloc_rows(assistant_drafter *d, uint32_t n, td_error *err) {
    size_t candidates = (size_t)td_gemma4_assistant_describe(d->a)->n_candidates * n;
    d->token = td_calloc(n, sizeof *d->token);
    d->pos = td_calloc(n, sizeof *d->pos);
    d->n_keys = td_calloc(n, sizeof *d->n_keys);
    d->live = td_calloc(n, sizeof *d->live);
    d->step.hidden = td_malloc_aligned((size_t)n * d->trunk->info.n_embd * sizeof(float));
    d->step.logits = td_malloc_aligned(candidates * sizeof(float));
    d->step.candidate = td_calloc(candidates, sizeof(td_token));
    bool ok = d->token && d->pos && d->n_keys && d->live && d->step.hidden && d->step.logits && d->step.candidate;
    for (uint32_t g = 0; g < d->trunk->kv.n_groups; g++) {
        d->pages[g] = td_calloc(n, sizeof *d->pages[g]);
        d->step.pages[g] = d->pages[g];
        ok = ok && d->pages[g];
    }
    d->step.token = d->token;
    d->step.pos = d->pos;
    d->step.n_keys = d->n_keys;
    d->base.heap_bytes = td_gemma4_assistant_describe(d->a)->heap_bytes + candidates * 8;
    return ok ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for a drafter of %u sequences", n);
}

td_status td_drafter_assistant_open(td_drafter **out, td_checkpoint *ck, td_model *trunk, const td_drafter_options *opt,
                                    td_error *err) {
    static const td_drafter_ops ops = {.draft = draft, .close = close_drafter};
    *out = NULL;
    assistant_drafter *d = td_calloc(1, sizeof *d);
    if (!d)
        return td_fail(err, TD_E_NOMEM, "out of memory for a drafter");
    d->base = (td_drafter){.ops = &ops, .kind = "assistant", .max_seqs = opt->max_seqs};
    d->trunk = trunk;
    td_gemma4_assistant_options a = {.max_rows = opt->max_seqs,
                                     .bits = opt->bits,
                                     .full_head = opt->full_head,
                                     .random_weights = opt->random_weights,
                                     .query_offset = opt->query_offset,
                                     .window_extra = opt->window_extra,
                                     .log = opt->log};
    td_status st = td_gemma4_assistant_open(&d->a, ck, trunk, &a, err);
    if (st == TD_OK)
        st = td_sampler_open(&d->sampler, trunk->be, trunk->info.n_vocab, err);
    if (st == TD_OK)
        st = alloc_rows(d, opt->max_seqs, err);
    if (st != TD_OK) {
        close_drafter(&d->base);
        return st;
    }
    d->base.weight_bytes = td_gemma4_assistant_describe(d->a)->weight_bytes;
    memcpy(d->base.format, td_gemma4_assistant_describe(d->a)->format, sizeof d->base.format);
    *out = &d->base;
    return TD_OK;
}
