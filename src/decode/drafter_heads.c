/* drafter_heads.c - drafts with the heads that a checkpoint carries (td_model_ops.heads).
 *
 * A head row at position i joins token i+1 with the trunk's hidden state of i, and keeps its K and V beside the trunk's
 * at that position. So rows lag one behind: a row whose token is not sampled yet is pending. Rows of a prompt are run
 * as soon as their chunk is through the trunk, for their K and V only. Rows of accepted tokens wait for the next round
 * and run in one pass with its first draft step, which they cost next to nothing: only the last of them guesses.
 * Guesses are fed the head's own hidden state; those rows are never kept, for the trunk's states come to the same
 * positions with the verification and overwrite them.
 *
 * A shortlist scores some words instead of all, most of a draft step's work: words given, or of the lowest ids
 * (byte-pair vocabularies number their merges by frequency), and every word met in prompts and answers, the oldest of
 * which make room for new ones. What is not on it is not proposed; the text is the trunk's in any case. */
#include <string.h>

#include "base/alloc.h"
#include "decode/drafter.h"

/* What is known of a sequence. Rows [0, n_rows) have been observed; of those the last n_pending have no K and V yet. */
typedef struct heads_seq {
    uint32_t n_rows, n_pending;
    uint32_t n_learned; /* leading tokens that the shortlist has met */
    float *hidden;      /* [most_pending][n_embd] of the pending rows */
} heads_seq;

/* Words that are scored; the first n_fixed stay, the others are learned and replaced in turn. */
typedef struct shortlist {
    uint32_t most, n, n_fixed, next;
    td_token *word; /* [most] */
    uint8_t *has;   /* [n_vocab] */
} shortlist;

typedef struct heads_drafter {
    td_drafter base;
    td_model *trunk;
    td_sampler *sampler;
    uint32_t most_pending;
    shortlist list;    /* most 0: none */
    td_head_pass pass; /* its arrays are: */
    td_token *token;   /* [max_rows of the trunk] */
    int32_t *pos, *n_keys, *out_row;
    uint32_t *row_seq;
    td_kv_pages *pages[TD_KV_MAX_GROUPS]; /* [max_seqs] */
    float *hidden;                        /* [max_seqs*most_pending][n_embd] */
    float *out, *logits;                  /* [max_seqs][n_embd], [max_seqs][words] */
    uint32_t *live;                       /* [max_seqs] batch index of each row still drafting */
} heads_drafter;

static heads_drafter *self(td_drafter *d) {
    return (heads_drafter *)d;
}

/* ---- the shortlist ---- */

static void learn(shortlist *l, td_token t) {
    if (!l->most || l->has[t])
        return;
    uint32_t at = l->n;
    if (l->n < l->most) {
        l->n++;
    } else {
        if (l->n_fixed == l->most)
            return;
        at = l->next;
        l->next = at + 1 < l->most ? at + 1 : l->n_fixed;
        l->has[l->word[at]] = 0;
    }
    l->word[at] = t;
    l->has[t] = 1;
}

/* Half of it is given words or low ids, half is left to be learned. */
static td_status open_shortlist(heads_drafter *d, const td_drafter_options *o, td_error *err) {
    uint32_t n_vocab = d->trunk->info.n_vocab;
    if (!o->shortlist || o->shortlist >= n_vocab)
        return TD_OK;
    shortlist *l = &d->list;
    l->word = td_calloc(o->shortlist, sizeof *l->word);
    l->has = td_calloc(n_vocab, 1);
    if (!l->word || !l->has)
        return td_fail(err, TD_E_NOMEM, "out of memory for a shortlist of %u words", o->shortlist);
    l->most = o->shortlist;
    size_t n = o->common ? o->n_common : n_vocab, most = o->common ? l->most : (l->most + 1) / 2;
    for (size_t i = 0; i < n && l->n < most; i++) {
        td_token t = o->common ? o->common[i] : (td_token)i;
        if (t < 0 || (uint32_t)t >= n_vocab)
            return td_fail_at(err, TD_E_ARG, (int64_t)i, "shortlist word %d, expected 0 to %u", t, n_vocab - 1);
        learn(l, t);
    }
    l->n_fixed = l->next = l->n;
    return TD_OK;
}

/* ---- passes ---- */

static void begin_pass(heads_drafter *d) {
    d->pass.n_rows = d->pass.n_seq = d->pass.n_out = 0;
    d->pass.hidden = d->hidden;
}

/* Returns the sequence's index in the pass. */
static uint32_t add_seq(heads_drafter *d, const td_kv_seq *kv) {
    for (uint32_t g = 0; g < d->trunk->kv.n_groups; g++)
        d->pages[g][d->pass.n_seq] = td_kv_seq_pages(kv, g);
    return d->pass.n_seq++;
}

/* hidden NULL: it is where the pass will look for it. */
static void add_row(heads_drafter *d, uint32_t seq, uint32_t pos, td_token token, const float *hidden) {
    uint32_t width = d->trunk->info.n_embd, r = d->pass.n_rows++;
    d->token[r] = token;
    d->pos[r] = (int32_t)pos;
    d->row_seq[r] = seq;
    d->n_keys[seq] = (int32_t)pos + 1;
    if (hidden)
        memcpy(d->hidden + (size_t)r * width, hidden, width * sizeof(float));
}

/* The newest row guesses. */
static void ask(heads_drafter *d) {
    d->out_row[d->pass.n_out++] = (int32_t)d->pass.n_rows - 1;
}

static void add_pending(heads_drafter *d, uint32_t seq, const heads_seq *s, const td_token *tokens) {
    for (uint32_t i = 0; i < s->n_pending; i++) {
        uint32_t pos = s->n_rows - s->n_pending + i;
        add_row(d, seq, pos, tokens[pos + 1], s->hidden + (size_t)i * d->trunk->info.n_embd);
    }
}

/* ---- observing ---- */

static td_status run_pending(heads_drafter *d, heads_seq *s, const td_observed *o, td_error *err) {
    if (!s->n_pending)
        return TD_OK;
    begin_pass(d);
    add_pending(d, add_seq(d, o->kv), s, o->tokens);
    s->n_pending = 0;
    return td_model_heads(d->trunk, &d->pass, err);
}

/* The first n observed rows, from where they lie. */
static td_status run_observed(heads_drafter *d, const td_observed *o, uint32_t n, td_error *err) {
    begin_pass(d);
    uint32_t seq = add_seq(d, o->kv);
    d->pass.hidden = o->hidden;
    for (uint32_t i = 0; i < n; i++)
        add_row(d, seq, o->first_pos + i, o->tokens[o->first_pos + i + 1], NULL);
    return n ? td_model_heads(d->trunk, &d->pass, err) : TD_OK;
}

static void keep_pending(heads_drafter *d, heads_seq *s, const float *hidden, uint32_t n) {
    size_t width = d->trunk->info.n_embd;
    memcpy(s->hidden + s->n_pending * width, hidden, n * width * sizeof(float));
    s->n_pending += n;
}

/* Rows wait while there is room, for the next draft step takes them along. Of more rows (a prompt's) only the newest
 * token's waits. */
static td_status observe(td_drafter *base, const td_observed *o, td_error *err) {
    heads_drafter *d = self(base);
    heads_seq *s = o->state;
    for (; s->n_learned <= o->first_pos + o->n_rows; s->n_learned++)
        learn(&d->list, o->tokens[s->n_learned]);
    uint32_t newest = o->first_pos + o->n_rows == o->n_tokens - 1, wait = o->n_rows;
    if (s->n_pending + o->n_rows > d->most_pending) {
        wait = newest;
        TD_TRY(run_pending(d, s, o, err));
        TD_TRY(run_observed(d, o, o->n_rows - wait, err));
    }
    keep_pending(d, s, o->hidden + (size_t)(o->n_rows - wait) * d->trunk->info.n_embd, wait);
    s->n_rows = o->first_pos + o->n_rows;
    return TD_OK;
}

static td_status settle(td_drafter *base, const td_observed *none, td_error *err) {
    return run_pending(self(base), none->state, none, err);
}

static void rewind_rows(td_drafter *base, void *state, uint32_t n_rows, const float *hidden) {
    heads_drafter *d = self(base);
    heads_seq *s = state;
    s->n_learned = s->n_learned < n_rows ? s->n_learned : n_rows;
    uint32_t first = s->n_rows - s->n_pending;
    if (n_rows > first && n_rows <= s->n_rows) {
        s->n_pending = n_rows - first;
    } else { /* the last row's token may be another now */
        s->n_pending = 0;
        if (n_rows && hidden)
            keep_pending(d, s, hidden, 1);
    }
    s->n_rows = n_rows;
}

/* ---- drafting ---- */

/* The first step: whatever is pending of every sequence that can draft; returns how many can. */
static uint32_t first_rows(heads_drafter *d, td_draft *batch, uint32_t n) {
    uint32_t live = 0;
    begin_pass(d);
    for (uint32_t b = 0; b < n; b++) {
        heads_seq *s = batch[b].state;
        td_draft_begin(&batch[b]);
        if (!s->n_pending || s->n_rows != batch[b].n_tokens - 1)
            continue;
        add_pending(d, add_seq(d, batch[b].kv), s, batch[b].tokens);
        ask(d);
        s->n_pending = 0;
        d->live[live++] = b;
    }
    return live;
}

/* The next step: the j-th draft of every sequence that goes on, with the head's own state; returns how many do. */
static uint32_t next_rows(heads_drafter *d, td_draft *batch, uint32_t live, uint32_t j) {
    uint32_t on = 0;
    begin_pass(d);
    for (uint32_t r = 0; r < live; r++) {
        td_draft *b = &batch[d->live[r]];
        if (!td_draft_goes_on(b))
            continue;
        add_row(d, add_seq(d, b->kv), b->n_tokens - 1 + j, b->out[j], d->out + (size_t)r * d->trunk->info.n_embd);
        ask(d);
        d->live[on++] = d->live[r];
    }
    return on;
}

static td_status draw(heads_drafter *d, td_draft *batch, uint32_t live, uint32_t j, td_error *err) {
    for (uint32_t r = 0; r < live; r++) {
        td_draft *b = &batch[d->live[r]];
        td_token t;
        TD_TRY(td_sample(d->sampler, b->sampling, b->history, d->logits + (size_t)r * d->pass.n_words, d->pass.word,
                         NULL, d->pass.n_words, b->n_tokens + j, &t, err));
        td_draft_take(b, t, td_sampler_confidence(d->sampler));
    }
    return TD_OK;
}

static td_status draft(td_drafter *base, td_draft *batch, uint32_t n, td_error *err) {
    heads_drafter *d = self(base);
    td_status st = TD_OK;
    d->pass.word = d->list.most ? d->list.word : NULL;
    d->pass.n_words = d->list.most ? d->list.n : d->trunk->info.n_vocab;
    uint32_t live = first_rows(d, batch, n);
    for (uint32_t j = 0; live > 0 && st == TD_OK; j++) {
        st = td_model_heads(d->trunk, &d->pass, err);
        if (st == TD_OK)
            st = draw(d, batch, live, j, err);
        if (st == TD_OK)
            live = next_rows(d, batch, live, j);
    }
    for (uint32_t b = 0; b < n; b++)
        td_draft_release(&batch[b]);
    /* A drafter whose numbers fail proposes nothing; the trunk decides whether that is an error of the request. */
    if (st == TD_E_NUMERIC) {
        for (uint32_t b = 0; b < n; b++)
            batch[b].n_out = 0;
        return TD_OK;
    }
    return st;
}

/* ---- opening ---- */

static void close_seq(td_drafter *base, void *state) {
    heads_seq *s = state;
    (void)base;
    if (s)
        td_free_aligned(s->hidden);
    td_free(s);
}

static td_status open_seq(td_drafter *base, void **state, td_error *err) {
    heads_drafter *d = self(base);
    heads_seq *s = td_calloc(1, sizeof *s);
    *state = NULL;
    if (s)
        s->hidden = td_malloc_aligned((size_t)d->most_pending * d->trunk->info.n_embd * sizeof(float));
    if (!s || !s->hidden) {
        close_seq(base, s);
        return td_fail(err, TD_E_NOMEM, "out of memory for the draft heads of a sequence");
    }
    *state = s;
    return TD_OK;
}

static void close_drafter(td_drafter *base) {
    heads_drafter *d = self(base);
    td_sampler_close(&d->sampler);
    void *const parts[] = {d->list.word, d->list.has, d->token, d->pos, d->n_keys, d->out_row, d->row_seq, d->live};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        td_free(parts[i]);
    for (uint32_t g = 0; g < TD_KV_MAX_GROUPS; g++)
        td_free(d->pages[g]);
    td_free_aligned(d->hidden);
    td_free_aligned(d->out);
    td_free_aligned(d->logits);
    td_free(d);
}

static td_status alloc_rows(heads_drafter *d, uint32_t n_seqs, td_error *err) {
    const td_model_info *info = &d->trunk->info;
    uint32_t rows = d->trunk->opt.max_rows, words = d->list.most ? d->list.most : info->n_vocab;
    size_t hidden = (size_t)n_seqs * d->most_pending * info->n_embd, out = (size_t)n_seqs * info->n_embd;
    d->token = td_calloc(rows, sizeof *d->token);
    d->pos = td_calloc(rows, sizeof *d->pos);
    d->row_seq = td_calloc(rows, sizeof *d->row_seq);
    d->n_keys = td_calloc(n_seqs, sizeof *d->n_keys);
    d->out_row = td_calloc(n_seqs, sizeof *d->out_row);
    d->live = td_calloc(n_seqs, sizeof *d->live);
    d->hidden = td_malloc_aligned(hidden * sizeof(float));
    d->out = td_malloc_aligned(out * sizeof(float));
    d->logits = td_malloc_aligned((size_t)n_seqs * words * sizeof(float));
    bool ok =
        d->token && d->pos && d->row_seq && d->n_keys && d->out_row && d->live && d->hidden && d->out && d->logits;
    for (uint32_t g = 0; g < d->trunk->kv.n_groups; g++) {
        d->pages[g] = td_calloc(n_seqs, sizeof *d->pages[g]);
        d->pass.pages[g] = d->pages[g];
        ok = ok && d->pages[g];
    }
    d->pass.token = d->token;
    d->pass.pos = d->pos;
    d->pass.row_seq = d->row_seq;
    d->pass.n_keys = d->n_keys;
    d->pass.out_row = d->out_row;
    d->pass.out = d->out;
    d->pass.logits = d->logits;
    d->base.heap_bytes = (hidden + out + (size_t)n_seqs * words) * sizeof(float);
    return ok ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for the draft heads of %u sequences", n_seqs);
}

static td_status check_trunk(const heads_drafter *d, uint32_t n_seqs, td_error *err) {
    const td_model *m = d->trunk;
    if (!m->info.mtp_loaded)
        return td_fail(err, TD_E_MODEL, "the trunk (%s) has no draft heads to run: %s", m->info.family,
                       m->info.mtp_reason[0] ? m->info.mtp_reason : "it was opened without them");
    if (n_seqs < 1 || (uint64_t)n_seqs * d->most_pending > m->opt.max_rows)
        return td_fail(err, TD_E_ARG, "draft heads of %u sequences of %u rows, but the trunk's passes have %u", n_seqs,
                       d->most_pending, m->opt.max_rows);
    return TD_OK;
}

td_status td_drafter_heads_open(td_drafter **out, td_model *trunk, const td_drafter_options *opt, td_error *err) {
    static const td_drafter_ops ops = {.open_seq = open_seq,
                                       .close_seq = close_seq,
                                       .draft = draft,
                                       .close = close_drafter,
                                       .observe = observe,
                                       .rewind = rewind_rows,
                                       .settle = settle};
    *out = NULL;
    heads_drafter *d = td_calloc(1, sizeof *d);
    if (!d)
        return td_fail(err, TD_E_NOMEM, "out of memory for a drafter");
    d->base = (td_drafter){.ops = &ops,
                           .kind = "heads",
                           .weight_bytes = trunk->info.mtp_bytes,
                           .max_seqs = opt->max_seqs,
                           .all_rows = true};
    memcpy(d->base.format, trunk->info.mtp_format, sizeof d->base.format);
    d->trunk = trunk;
    /* a round's rows wait as a whole, unless there are so many sequences that a pass would not hold them */
    uint32_t share = opt->max_seqs ? trunk->opt.max_rows / opt->max_seqs : 0;
    d->most_pending = trunk->opt.max_tentative + 1;
    if (share && share < d->most_pending)
        d->most_pending = share;
    td_status st = check_trunk(d, opt->max_seqs, err);
    if (st == TD_OK)
        st = td_sampler_open(&d->sampler, trunk->be, trunk->info.n_vocab, err);
    if (st == TD_OK)
        st = open_shortlist(d, opt, err);
    if (st == TD_OK)
        st = alloc_rows(d, opt->max_seqs, err);
    if (st != TD_OK) {
        close_drafter(&d->base);
        return st;
    }
    *out = &d->base;
    return TD_OK;
}
