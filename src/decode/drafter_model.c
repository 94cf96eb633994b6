/* drafter_model.c - drafts with a model of its own.
 *
 * A sequence here is tokens and the keys of the first of them. A draft first brings it to the trunk's tokens: keys of
 * what both share stay (accepted drafts among them), the rest goes. Then every pass feeds each sequence what it holds
 * without keys and draws the next token, which thereby is the next to be fed: in the first pass that is all that is new
 * of the text, in later ones the token just drawn.
 *
 * A sequence that has more to read than a round of drafts adds, as at a new prompt, reads: one pass a call, keys and
 * values only, and drafts nothing until it is through. So a long prompt holds up neither its own text nor its
 * neighbours for longer than a pass, and what reading costs is not taken for what drafts cost (depth.h).
 *
 * A recurrent memory cannot be cut. Only the text goes into it; drafts go into a copy, which is thrown away, so what is
 * accepted is read again with the next draft's first pass, where it rides with the newest token. (A text that is cut
 * goes on from where a pass of its prompt ended.) The other way, to feed all drafts anew as tentative rows of every
 * pass, needs no copy but a number of rows that grows with the square of the depth. */
#include "decode/drafter_model.h"

#include <string.h>

#include "base/alloc.h"
#include "cache/snapshot.h"
#include "decode/prefix.h"

#define ROUND (1u + TD_MAX_DRAFT) /* tokens that a round adds at most */
#define SNAPSHOTS 4u              /* of a recurrent memory */

typedef struct reader {
    td_kv_seq *kv;
    td_token *tokens;        /* [n_ctx + TD_MAX_DRAFT] */
    uint32_t n, n_text;      /* tokens; of them the text as it was last seen, the rest are drafts */
    void *memory, *copy;     /* of a recurrent model: after the first td_kv_seq_length(kv) tokens; with drafts */
    td_snapshots *snapshots; /* likewise: where a prompt's passes ended */
} reader;

typedef struct model_drafter {
    td_drafter base;
    td_drafter_model_options opt;
    td_model *model;
    td_kv_pool *pool;
    td_sampler *sampler;
    uint32_t *live, *far; /* [max_seqs] batch index of each sequence that is still drafting, that only reads */
    /* The pass being laid out, its arrays, and the sequences in it. */
    td_pass pass;
    td_token *token;   /* [max_rows] */
    int32_t *pos;      /* [max_rows] */
    uint32_t *row_seq; /* [max_rows] */
    reader **readers;  /* [max_seqs] */
    void **memory;     /* [max_seqs] */
    uint32_t *n_rows;  /* [max_seqs], all of them sure */
    int32_t *n_keys, *out_row, *logits_out;
    td_kv_pages *pages[TD_KV_MAX_GROUPS];
    float *hidden, *logits;
} model_drafter;

td_drafter_model_options td_drafter_model_options_default(void) {
    td_model_options m = td_model_options_default();
    return (td_drafter_model_options){
        .max_seqs = 1, .n_ctx = 8192, .prefill_rows = 512, .kv_type = m.kv_type, .page_tokens = m.page_tokens};
}

/* ---- sequences ---- */

static void close_seq(td_drafter *base, void *state) {
    model_drafter *d = (model_drafter *)base;
    td_backend *be = d->model->be;
    reader *s = state;
    td_kv_seq_close(&s->kv);
    td_free(s->tokens);
    if (s->memory)
        be->ops->free(be, s->memory);
    if (s->copy)
        be->ops->free(be, s->copy);
    td_snapshots_close(&s->snapshots);
    td_free(s);
}

static td_status open_memory(model_drafter *d, reader *s, td_error *err) {
    size_t bytes = (size_t)d->model->info.state_bytes;
    if (!bytes)
        return TD_OK;
    s->memory = d->model->be->ops->alloc(d->model->be, bytes);
    s->copy = d->model->be->ops->alloc(d->model->be, bytes);
    if (!s->memory || !s->copy)
        return td_fail(err, TD_E_NOMEM, "out of memory for a draft model's recurrent memory (%zu bytes)", bytes);
    d->model->ops->state_reset(d->model, s->memory);
    return td_snapshots_open(&s->snapshots, d->model, SNAPSHOTS, err);
}

static td_status open_seq(td_drafter *base, void **state, td_error *err) {
    model_drafter *d = (model_drafter *)base;
    *state = NULL;
    reader *s = td_calloc(1, sizeof *s);
    if (!s)
        return td_fail(err, TD_E_NOMEM, "out of memory for a draft model's sequence");
    s->tokens = td_calloc((size_t)d->opt.n_ctx + TD_MAX_DRAFT, sizeof *s->tokens);
    td_status st =
        s->tokens ? TD_OK
                  : td_fail(err, TD_E_NOMEM, "out of memory for a draft model's sequence of %u tokens", d->opt.n_ctx);
    if (st == TD_OK)
        st = td_kv_seq_open(&s->kv, d->pool, d->opt.n_ctx + TD_MAX_DRAFT, ROUND, err);
    if (st == TD_OK)
        st = open_memory(d, s, err);
    if (st != TD_OK) {
        close_seq(base, s);
        return st;
    }
    *state = s;
    return TD_OK;
}

static void forget(model_drafter *d, reader *s) {
    td_kv_seq_clear(s->kv);
    s->n = s->n_text = 0;
    if (!s->memory)
        return;
    d->model->ops->state_reset(d->model, s->memory);
    td_snapshots_forget(s->snapshots, 0);
}

/* A recurrent memory goes back to the latest snapshot; returns the tokens that are in it. */
static uint32_t restore(model_drafter *d, reader *s, uint32_t keep) {
    td_snapshots_forget(s->snapshots, keep);
    const td_snapshot *p = td_snapshots_find(s->snapshots, keep);
    if (!p)
        return 0;
    d->model->ops->state_copy(d->model, s->memory, p->state);
    return p->position;
}

/* Goes back to the first `keep` tokens, or as few fewer as can be. */
static void rewind_to(model_drafter *d, reader *s, uint32_t keep) {
    if (keep == td_kv_seq_length(s->kv))
        return;
    if (s->memory)
        keep = restore(d, s, keep);
    if (keep == 0 || !td_kv_seq_can_rewind(s->kv, keep))
        forget(d, s);
    else
        td_kv_seq_set_length(s->kv, keep);
}

/* A recurrent memory is kept as it stands. */
static void take_snapshot(model_drafter *d, reader *s) {
    td_snapshot *made = s->memory ? td_snapshots_make(s->snapshots, td_kv_seq_length(s->kv)) : NULL;
    if (!made)
        return;
    d->model->ops->state_copy(d->model, made->state, s->memory);
    td_snapshots_keep(s->snapshots, made, NULL);
}

/* The sequence becomes the text of the draft, with the keys that still hold; the newest token has none, so that it is
 * fed and gives its logits. */
static void follow_text(model_drafter *d, reader *s, const td_draft *b) {
    uint32_t have = td_kv_seq_length(s->kv), agreed = have < s->n_text ? have : s->n_text;
    rewind_to(d, s, td_prefix_shared(s->tokens, have, agreed, b->tokens, b->n_tokens - 1));
    have = td_kv_seq_length(s->kv);
    memcpy(s->tokens + have, b->tokens + have, (b->n_tokens - have) * sizeof *s->tokens);
    s->n = s->n_text = b->n_tokens;
}

/* The drafts of a recurrent model were read into a copy. */
static void drop_drafts(reader *s) {
    if (s->memory && td_kv_seq_length(s->kv) > s->n_text)
        td_kv_seq_set_length(s->kv, s->n_text);
}

static uint32_t unread(const reader *s) {
    return s->n - td_kv_seq_length(s->kv);
}

/* ---- passes ---- */

static void begin_pass(model_drafter *d) {
    d->pass.n_rows = d->pass.n_seq = d->pass.n_out = d->pass.n_logits = 0;
}

/* The next n unread tokens of a sequence; with the logits of the last of them, or keys and values only. */
static td_status add_rows(model_drafter *d, reader *s, uint32_t n, bool draws, td_error *err) {
    td_pass *p = &d->pass;
    uint32_t length = td_kv_seq_length(s->kv), i = p->n_seq++;
    TD_TRY(td_kv_seq_reserve(s->kv, n, err));
    for (uint32_t r = 0; r < n; r++, p->n_rows++) {
        d->token[p->n_rows] = s->tokens[length + r];
        d->pos[p->n_rows] = (int32_t)(length + r);
        d->row_seq[p->n_rows] = i;
    }
    d->readers[i] = s;
    d->memory[i] = length < s->n_text ? s->memory : s->copy;
    d->n_rows[i] = n;
    d->n_keys[i] = (int32_t)(length + n);
    for (uint32_t g = 0; g < d->model->kv.n_groups; g++)
        d->pages[g][i] = td_kv_seq_pages(s->kv, g);
    if (draws) {
        d->out_row[p->n_out++] = (int32_t)p->n_rows - 1;
        p->n_logits = p->n_out;
    }
    return TD_OK;
}

static td_status run_pass(model_drafter *d, td_error *err) {
    TD_TRY(td_model_forward(d->model, &d->pass, err));
    for (uint32_t i = 0; i < d->pass.n_seq; i++)
        td_kv_seq_set_length(d->readers[i]->kv, (uint32_t)d->n_keys[i]);
    return TD_OK;
}

/* A pass of keys and values for the sequences that only read, the newest token left for their first draft. */
static td_status read_on(model_drafter *d, const td_draft *batch, uint32_t n, td_error *err) {
    begin_pass(d);
    for (uint32_t r = 0; r < n; r++) {
        reader *s = batch[d->far[r]].state;
        uint32_t room = d->model->opt.max_rows - d->pass.n_rows, rows = unread(s) - 1;
        if (room)
            TD_TRY(add_rows(d, s, rows < room ? rows : room, false, err));
    }
    TD_TRY(run_pass(d, err));
    for (uint32_t i = 0; i < d->pass.n_seq; i++)
        take_snapshot(d, d->readers[i]);
    return TD_OK;
}

/* Feeds every live sequence what it has not read: the text's end, or the draft before the j-th. */
static td_status step(model_drafter *d, const td_draft *batch, uint32_t n, uint32_t j, td_error *err) {
    begin_pass(d);
    for (uint32_t r = 0; r < n; r++) {
        reader *s = batch[d->live[r]].state;
        if (j == 1 && s->memory)
            d->model->ops->state_copy(d->model, s->copy, s->memory);
        TD_TRY(add_rows(d, s, unread(s), true, err));
    }
    return run_pass(d, err);
}

/* ---- drafting ---- */

/* The j-th draft of every live sequence; returns in *live how many go on. One whose logits are no numbers stops:
 * whether that is an error is for the trunk to say. */
static td_status draw(model_drafter *d, td_draft *batch, uint32_t n, uint32_t j, uint32_t *live, td_error *err) {
    uint32_t n_vocab = d->model->info.n_vocab;
    *live = 0;
    for (uint32_t r = 0; r < n; r++) {
        td_draft *b = &batch[d->live[r]];
        td_token t;
        td_status st = td_sample(d->sampler, b->sampling, b->history, d->logits + (size_t)r * n_vocab, NULL, NULL,
                                 n_vocab, (uint64_t)b->n_tokens + j, &t, err);
        if (st == TD_E_NUMERIC)
            continue;
        TD_TRY(st);
        td_draft_take(b, t, td_sampler_confidence(d->sampler));
        reader *s = b->state;
        if (b->n_out > j)
            s->tokens[s->n++] = t;
        if (td_draft_goes_on(b))
            d->live[(*live)++] = d->live[r];
    }
    return TD_OK;
}

static td_status draft_all(model_drafter *d, td_draft *batch, uint32_t live, td_error *err) {
    for (uint32_t j = 0; live > 0; j++) {
        TD_TRY(step(d, batch, live, j, err));
        TD_TRY(draw(d, batch, live, j, &live, err));
    }
    return TD_OK;
}

static td_status draft(td_drafter *base, td_draft *batch, uint32_t n, td_error *err) {
    model_drafter *d = (model_drafter *)base;
    uint32_t live = 0, far = 0;
    for (uint32_t i = 0; i < n; i++) {
        td_draft_begin(&batch[i]);
        if (batch[i].n_tokens > d->opt.n_ctx)
            continue;
        follow_text(d, batch[i].state, &batch[i]);
        if (unread(batch[i].state) > ROUND)
            d->far[far++] = i;
        else
            d->live[live++] = i;
    }
    td_status st = far ? read_on(d, batch, far, err) : TD_OK;
    if (st == TD_OK)
        st = draft_all(d, batch, live, err);
    for (uint32_t i = 0; i < n; i++) {
        td_draft_release(&batch[i]);
        if (st == TD_OK)
            drop_drafts(batch[i].state);
        else /* keys and memories of a pass that failed mean nothing */
            forget(d, batch[i].state);
    }
    return st;
}

/* ---- opening ---- */

static void close_drafter(td_drafter *base) {
    model_drafter *d = (model_drafter *)base;
    void *const parts[] = {d->live,   d->far,    d->token,  d->pos,     d->row_seq,   d->readers,
                           d->memory, d->n_rows, d->n_keys, d->out_row, d->logits_out};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        td_free(parts[i]);
    for (uint32_t g = 0; g < TD_KV_MAX_GROUPS; g++)
        td_free(d->pages[g]);
    td_free_aligned(d->hidden);
    td_free_aligned(d->logits);
    td_sampler_close(&d->sampler);
    td_kv_pool_close(&d->pool);
    td_model_close(&d->model);
    td_free(d);
}

static td_status open_model(model_drafter *d, td_checkpoint *ck, td_backend *be, uint32_t n_vocab, td_error *err) {
    td_model_options m = td_model_options_default();
    m.kv_type = d->opt.kv_type;
    m.page_tokens = d->opt.page_tokens;
    uint32_t newest = d->opt.max_seqs * ROUND;
    m.max_rows = d->opt.prefill_rows > newest ? d->opt.prefill_rows : newest;
    m.max_out = m.max_logits = d->opt.max_seqs;
    m.max_tentative = 0;
    m.log = d->opt.log;
    TD_TRY(td_model_open(&d->model, ck, be, &m, err));
    if (d->model->info.n_vocab != n_vocab)
        return td_fail(err, TD_E_MODEL, "%s: a vocabulary of %u words, but the model it is to draft for has %u",
                       td_checkpoint_path(ck), d->model->info.n_vocab, n_vocab);
    TD_TRY(td_model_load(d->model, NULL, NULL, err));
    TD_TRY(td_kv_pool_open(&d->pool, &d->model->kv, be, 0, err));
    return td_sampler_open(&d->sampler, be, n_vocab, err);
}

static td_status alloc_arrays(model_drafter *d, td_error *err) {
    uint32_t n = d->opt.max_seqs, rows = d->model->opt.max_rows;
    d->live = td_calloc(n, sizeof *d->live);
    d->far = td_calloc(n, sizeof *d->far);
    d->token = td_calloc(rows, sizeof *d->token);
    d->pos = td_calloc(rows, sizeof *d->pos);
    d->row_seq = td_calloc(rows, sizeof *d->row_seq);
    d->readers = td_calloc(n, sizeof *d->readers);
    d->memory = td_calloc(n, sizeof *d->memory);
    d->n_rows = td_calloc(n, sizeof *d->n_rows);
    d->n_keys = td_calloc(n, sizeof *d->n_keys);
    d->out_row = td_calloc(n, sizeof *d->out_row);
    d->logits_out = td_calloc(n, sizeof *d->logits_out);
    d->hidden = td_malloc_aligned((size_t)n * d->model->info.n_embd * sizeof(float));
    d->logits = td_malloc_aligned((size_t)n * d->model->info.n_vocab * sizeof(float));
    bool ok = d->live && d->far && d->token && d->pos && d->row_seq && d->readers && d->memory && d->n_rows &&
              d->n_keys && d->out_row && d->logits_out && d->hidden && d->logits;
    for (uint32_t g = 0; g < d->model->kv.n_groups; g++) {
        d->pages[g] = td_calloc(n, sizeof *d->pages[g]);
        ok = ok && d->pages[g];
    }
    return ok ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for a draft model of %u sequences", n);
}

static void set_up_pass(model_drafter *d) {
    d->pass = (td_pass){.token = d->token,
                        .pos = d->pos,
                        .row_seq = d->row_seq,
                        .n_keys = d->n_keys,
                        .state = d->memory,
                        .n_sure = d->n_rows,
                        .out_row = d->out_row,
                        .hidden = d->hidden,
                        .logits_out = d->logits_out,
                        .logits = d->logits};
    for (uint32_t g = 0; g < d->model->kv.n_groups; g++)
        d->pass.pages[g] = d->pages[g];
    for (uint32_t i = 0; i < d->opt.max_seqs; i++)
        d->logits_out[i] = (int32_t)i;
}

static uint64_t heap_at(const td_drafter *base, uint32_t n_ctx) {
    const model_drafter *d = (const model_drafter *)base;
    const td_model_info *info = &d->model->info;
    uint64_t tokens = (uint64_t)n_ctx + TD_MAX_DRAFT;
    uint64_t seq = td_kv_plan_bytes(&d->model->kv, (uint32_t)tokens, d->model->opt.max_rows, ROUND) +
                   2 * info->state_bytes + SNAPSHOTS * info->snapshot_bytes + tokens * sizeof(td_token);
    return info->heap_bytes + info->scratch_bytes +
           d->opt.max_seqs * (seq + (info->n_embd + (uint64_t)info->n_vocab) * sizeof(float));
}

static void describe(model_drafter *d) {
    const td_model_info *info = &d->model->info;
    d->base.weight_bytes = info->weight_bytes;
    d->base.heap_bytes = heap_at(&d->base, d->opt.n_ctx);
    memcpy(d->base.format, info->weight_format, sizeof d->base.format);
}

static td_status check_options(const td_drafter_model_options *o, td_error *err) {
    if (o->max_seqs < 1 || o->max_seqs > INT32_MAX / ROUND || o->prefill_rows < 1 || o->n_ctx < 1 ||
        o->n_ctx > INT32_MAX - ROUND)
        return td_fail(err, TD_E_ARG,
                       "a draft model of %u sequences of %u tokens, %u rows a pass; expected at least 1 of each, and "
                       "at most %u tokens",
                       o->max_seqs, o->n_ctx, o->prefill_rows, INT32_MAX - ROUND);
    return TD_OK;
}

td_status td_drafter_model_open(td_drafter **out, td_checkpoint *ck, td_backend *be, uint32_t n_vocab,
                                const td_drafter_model_options *opt, td_error *err) {
    static const td_drafter_ops ops = {
        .open_seq = open_seq, .close_seq = close_seq, .draft = draft, .close = close_drafter, .heap_at = heap_at};
    *out = NULL;
    TD_TRY(check_options(opt, err));
    model_drafter *d = td_calloc(1, sizeof *d);
    if (!d)
        return td_fail(err, TD_E_NOMEM, "out of memory for a drafter");
    d->base = (td_drafter){.ops = &ops, .kind = "draft model", .max_seqs = opt->max_seqs};
    d->opt = *opt;
    td_status st = open_model(d, ck, be, n_vocab, err);
    if (st == TD_OK)
        st = alloc_arrays(d, err);
    if (st != TD_OK) {
        close_drafter(&d->base);
        return st;
    }
    set_up_pass(d);
    describe(d);
    *out = &d->base;
    return TD_OK;
}
