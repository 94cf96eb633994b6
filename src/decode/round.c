/* round.c - draft, verify, accept, commit. Nothing is allocated in a round but KV pages. */
#include "decode/round_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"
#include "decode/logprobs.h"

static uint32_t sampled_rows(const td_decoder_options *o) {
    return o->max_sampled ? o->max_sampled : o->max_seqs * (1 + o->max_depth);
}

void td_decoder_model_options(const td_decoder_options *o, td_model_options *m) {
    m->max_rows = o->prefill_rows + sampled_rows(o);
    m->max_out = m->mtp ? m->max_rows : sampled_rows(o);
    m->max_logits = sampled_rows(o);
    m->max_tentative = o->max_depth;
}

static td_status alloc_arrays(td_decoder *d, td_error *err) {
    const td_model_options *m = &d->model->opt;
    uint32_t n = d->opt.max_seqs;
    d->slots = td_calloc(n, sizeof *d->slots);
    d->drafts = td_calloc(n, sizeof *d->drafts);
    d->asks = td_calloc(n, sizeof *d->asks);
    d->ask_seq = td_calloc(n, sizeof *d->ask_seq);
    d->draft_ask = td_calloc(n, sizeof *d->draft_ask);
    d->token = td_calloc(m->max_rows, sizeof *d->token);
    d->pos = td_calloc(m->max_rows, sizeof *d->pos);
    d->row_seq = td_calloc(m->max_rows, sizeof *d->row_seq);
    d->n_keys = td_calloc(n, sizeof *d->n_keys);
    d->n_sure = td_calloc(n, sizeof *d->n_sure);
    d->n_commit = td_calloc(n, sizeof *d->n_commit);
    d->state = td_calloc(n, sizeof *d->state);
    d->mark = td_calloc(TD_COPIES * (size_t)n, sizeof *d->mark);
    d->out_row = td_calloc(m->max_out, sizeof *d->out_row);
    d->logits_out = td_calloc(m->max_logits, sizeof *d->logits_out);
    d->hidden = td_malloc_aligned((size_t)m->max_out * d->model->info.n_embd * sizeof(float));
    d->logits = td_malloc_aligned((size_t)m->max_logits * d->model->info.n_vocab * sizeof(float));
    bool ok = d->slots && d->drafts && d->asks && d->ask_seq && d->draft_ask && d->token && d->pos && d->row_seq &&
              d->n_keys && d->n_sure && d->n_commit && d->state && d->mark && d->out_row && d->logits_out &&
              d->hidden && d->logits;
    for (uint32_t g = 0; g < d->model->kv.n_groups; g++) {
        d->pages[g] = td_calloc(n, sizeof *d->pages[g]);
        ok = ok && d->pages[g];
    }
    return ok ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for rounds of %u sequences", n);
}

td_status td_decoder_open(td_decoder **out, td_model *model, td_drafter *drafter, td_kv_pool *pool,
                          const td_decoder_options *opt, td_error *err) {
    *out = NULL;
    td_model_options need = {.mtp = drafter && drafter->all_rows};
    td_decoder_model_options(opt, &need);
    if (opt->max_seqs < 1 || opt->prefill_rows < 1 || opt->max_depth > TD_MAX_DRAFT ||
        sampled_rows(opt) < opt->max_seqs || model->opt.max_rows < need.max_rows || model->opt.max_out < need.max_out ||
        model->opt.max_logits < need.max_logits || (drafter && drafter->max_seqs < opt->max_seqs) ||
        (model->info.state_bytes && model->opt.max_tentative < need.max_tentative))
        return td_fail(err, TD_E_ARG,
                       "rounds of %u sequences, %u prefill rows and depth %u do not fit the model's passes",
                       opt->max_seqs, opt->prefill_rows, opt->max_depth);
    td_decoder *d = td_calloc(1, sizeof *d);
    if (!d)
        return td_fail(err, TD_E_NOMEM, "out of memory for a decoder");
    d->model = model;
    d->drafter = drafter;
    d->pool = pool;
    d->opt = *opt;
    d->prefill_rows = opt->prefill_rows;
    d->opt.max_sampled = sampled_rows(opt);
    td_status st = alloc_arrays(d, err);
    if (st == TD_OK)
        st = td_sampler_open(&d->sampler, model->be, model->info.n_vocab, err);
    if (st != TD_OK)
        td_decoder_close(&d);
    *out = d;
    return st;
}

void td_decoder_close(td_decoder **pd) {
    if (!pd || !*pd)
        return;
    td_decoder *d = *pd;
    void *const parts[] = {d->slots,    d->drafts, d->asks,    d->ask_seq, d->draft_ask,
                           d->token,    d->pos,    d->row_seq, d->n_keys,  d->n_sure,
                           d->n_commit, d->state,  d->mark,    d->out_row, d->logits_out};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        td_free(parts[i]);
    for (uint32_t g = 0; g < TD_KV_MAX_GROUPS; g++)
        td_free(d->pages[g]);
    td_free_aligned(d->hidden);
    td_free_aligned(d->logits);
    td_sampler_close(&d->sampler);
    td_free(d);
    *pd = NULL;
}

void td_decoder_set_prefill(td_decoder *d, uint32_t rows) {
    d->prefill_rows = rows < d->opt.prefill_rows ? rows : d->opt.prefill_rows;
}

/* ---- draft ---- */

/* Drafts that the sequence may make this round. */
static uint32_t most_drafts(const td_decoder *d, const td_seq *s) {
    if (!d->drafter || !s->has_hidden || td_seq_pending(s) != 1)
        return 0;
    uint32_t most = td_seq_remaining(s) - 1; /* the round's own sample takes one */
    return s->params.depth < most ? s->params.depth : most;
}

/* Appends the asks of the sequences that are, or are not, adaptive. */
static uint32_t add_asks(td_decoder *d, td_seq *const *seqs, uint32_t n, bool adaptive, uint32_t n_asks) {
    for (uint32_t i = 0; i < n; i++) {
        uint32_t most = most_drafts(d, seqs[i]);
        if (!most || seqs[i]->params.adaptive != adaptive)
            continue;
        d->ask_seq[n_asks] = i;
        d->asks[n_asks++] = (td_depth_ask){.depth = &seqs[i]->depth, .most = most, .stop.min_prob = d->opt.min_prob};
    }
    return n_asks;
}

/* Sequences of a fixed depth get it as far as the pass has room, position after position. Returns their drafts. */
static uint32_t plan_fixed(td_decoder *d, uint32_t first, uint32_t end, uint32_t room) {
    uint32_t given = 0;
    for (uint32_t j = 0; j < TD_MAX_DRAFT; j++)
        for (uint32_t k = first; k < end && given < room; k++)
            if (d->asks[k].most > j) {
                d->asks[k].wanted++;
                given++;
            }
    return given;
}

/* How many drafts each sequence is asked for. Returns the number of asks. */
static uint32_t plan(td_decoder *d, td_seq *const *seqs, uint32_t n) {
    uint32_t n_adaptive = add_asks(d, seqs, n, true, 0), n_asks = add_asks(d, seqs, n, false, n_adaptive);
    uint32_t room = d->opt.max_sampled - n, fixed = plan_fixed(d, n_adaptive, n_asks, room), reading = 0;
    uint64_t keys = 0, prompt = 0;
    for (uint32_t i = 0; i < n; i++) {
        uint32_t pending = td_seq_pending(seqs[i]);
        keys += td_kv_seq_length(seqs[i]->kv);
        reading += pending > 1;
        prompt += pending > 1 ? pending : 0;
    }
    d->plan = (td_depth_round){.asks = d->asks,
                               .n_asks = n_adaptive,
                               .n_seqs = n - reading,
                               .n_rows = n - reading + fixed,
                               .n_prompt = prompt < d->prefill_rows ? (uint32_t)prompt : d->prefill_rows,
                               .n_keys = keys,
                               .most = room - fixed,
                               .free_from = TD_MAX_DRAFT};
    if (d->drafter && d->drafter->free_from)
        d->plan.free_from = d->drafter->free_from;
    td_depth_plan(&d->costs, &d->plan);
    return n_asks;
}

/* Drafts behind one that the constraint refuses would be rows for nothing. */
static uint32_t possible(const td_seq *s, const td_draft *draft) {
    td_constraint *c = s->params.constraint;
    return c && draft->n_out ? c->ops->accepts(c, draft->out, draft->n_out) : draft->n_out;
}

/* Of the drafts made, those that are fed. */
static void keep_drafts(td_decoder *d, td_seq *const *seqs, uint32_t n_asks) {
    for (uint32_t a = 0; a < d->n_asked; a++) {
        td_depth_ask *ask = &d->asks[d->draft_ask[a]];
        slot *t = &d->slots[d->ask_seq[d->draft_ask[a]]];
        t->n_made = ask->n_out = ask->kept = possible(seqs[d->ask_seq[d->draft_ask[a]]], &d->drafts[a]);
        ask->confidence = t->confidence;
    }
    td_depth_keep(&d->costs, &d->plan);
    for (uint32_t k = 0; k < n_asks; k++)
        d->slots[d->ask_seq[k]].n_draft = d->asks[k].kept;
}

static void ask_for(td_decoder *d, td_seq *s, uint32_t k) {
    slot *t = &d->slots[d->ask_seq[k]];
    for (uint32_t j = 0; j < TD_MAX_DRAFT; j++)
        t->confidence[j] = -1;
    d->draft_ask[d->n_asked] = k;
    d->drafts[d->n_asked++] = (td_draft){.state = s->drafter_state,
                                         .tokens = s->tokens,
                                         .n_tokens = s->n_tokens,
                                         .kv = s->kv,
                                         .hidden = s->hidden,
                                         .sampling = &s->params.sampling,
                                         .history = &s->history,
                                         .is_end = td_seq_is_end,
                                         .is_end_user = &s->params,
                                         .depth = d->asks[k].wanted,
                                         .stop = &d->asks[k].stop,
                                         .out = t->draft,
                                         .confidence = t->confidence};
}

static td_status draft_all(td_decoder *d, td_seq *const *seqs, uint32_t n, td_error *err) {
    for (uint32_t i = 0; i < n; i++)
        d->slots[i].n_draft = d->slots[i].n_made = 0;
    uint32_t n_asks = plan(d, seqs, n);
    d->n_asked = 0;
    for (uint32_t k = 0; k < n_asks; k++) {
        td_seq *s = seqs[d->ask_seq[k]];
        uint32_t wanted = d->asks[k].wanted;
        if (wanted && d->drafter->all_rows && td_kv_seq_reserve(s->kv, 1 + wanted, NULL) != TD_OK)
            continue; /* no pages for its rows; perhaps for the one that is needed */
        if (wanted)
            ask_for(d, s, k);
    }
    if (!d->n_asked)
        return TD_OK;
    td_status st = d->drafter->ops->draft(d->drafter, d->drafts, d->n_asked, err);
    if (st == TD_E_NOMEM || st == TD_E_LIMIT) { /* no room to draft is no reason not to answer */
        d->n_asked = 0;
        return TD_OK;
    }
    if (st == TD_OK)
        keep_drafts(d, seqs, n_asks);
    return st;
}

/* ---- verify ---- */

/* Snapshots worth making in a sequence's known rows, ascending: where its prompt parts from others that the prompt
 * cache has, for more may part there; at the last page boundary that leaves a token to feed; before the last token of a
 * prompt. Plain rounds make none. */
static void mark_copies(td_decoder *d, td_seq *s, uint32_t i, td_pass *p) {
    slot *t = &d->slots[i];
    memset(t->copy, 0, sizeof t->copy);
    uint32_t length = td_kv_seq_length(s->kv), page = d->model->kv.page_tokens, before = length;
    if (!s->state || (t->samples && t->n_known < 2))
        return;
    uint32_t end = length + t->n_known - t->samples, boundary = end / page * page;
    uint32_t last = end + 1 == s->n_tokens ? end : 0, branch = s->branch <= end ? s->branch : 0;
    const uint32_t at[TD_COPIES] = {branch < boundary ? branch : boundary, branch < boundary ? boundary : branch, last};
    for (int k = 0; k < TD_COPIES; k++) {
        t->copy[k] = at[k] > before ? td_snapshots_make(s->snapshots, at[k]) : NULL;
        if (!t->copy[k])
            continue;
        t->copy[k]->passing = at[k] == boundary && at[k] != branch && at[k] != last;
        d->mark[p->n_marks++] = (td_mark){.seq = i, .n_rows = at[k] - length, .to = t->copy[k]->state};
        before = at[k];
    }
}

static void add_rows(td_decoder *d, td_seq *s, uint32_t i, td_pass *p) {
    slot *t = &d->slots[i];
    uint32_t length = td_kv_seq_length(s->kv), n = t->n_known + t->n_draft;
    t->first_row = p->n_rows;
    for (uint32_t r = 0; r < n; r++, p->n_rows++) {
        d->token[p->n_rows] = r < t->n_known ? s->tokens[length + r] : t->draft[r - t->n_known];
        d->pos[p->n_rows] = (int32_t)(length + r);
        d->row_seq[p->n_rows] = i;
    }
    d->n_keys[i] = (int32_t)(length + n);
    d->n_sure[i] = t->n_known;
    d->n_commit[i] = s->uncommitted;
    d->state[i] = s->state;
    for (uint32_t g = 0; g < d->model->kv.n_groups; g++)
        d->pages[g][i] = td_kv_seq_pages(s->kv, g);
}

static void add_outputs(td_decoder *d, uint32_t i, td_pass *p) {
    slot *t = &d->slots[i];
    uint32_t n = t->n_known + t->n_draft, sampled = t->samples ? 1 + t->n_draft : 0;
    uint32_t first = d->drafter && d->drafter->all_rows ? 0 : n - sampled;
    t->first_logits = p->n_logits;
    for (uint32_t r = first; r < n; r++, p->n_out++) {
        d->out_row[p->n_out] = (int32_t)(t->first_row + r);
        if (r >= n - sampled)
            d->logits_out[p->n_logits++] = (int32_t)p->n_out;
    }
    t->first_out = p->n_out - sampled;
}

/* n_known of every slot: all rows of a sequence that feeds its newest token only, and of the others as many as the
 * budget gives: what each asks for, if that is no more than an even share of what is left. */
static void share_prefill(td_decoder *d, td_seq *const *seqs, uint32_t n) {
    uint32_t budget = d->prefill_rows, waiting = 0;
    for (uint32_t i = 0; i < n; i++) {
        d->slots[i].n_known = td_seq_pending(seqs[i]) == 1;
        waiting += td_seq_pending(seqs[i]) > 1;
    }
    for (bool modest = true; modest && waiting;) {
        uint32_t share = budget / waiting;
        modest = false;
        for (uint32_t i = 0; i < n; i++) {
            uint32_t pending = td_seq_pending(seqs[i]);
            if (d->slots[i].n_known || pending > share)
                continue;
            d->slots[i].n_known = pending;
            budget -= pending;
            waiting--;
            modest = true;
        }
    }
    for (uint32_t i = 0; i < n && waiting; i++) {
        if (d->slots[i].n_known)
            continue;
        d->slots[i].n_known = (budget + waiting - 1) / waiting; /* rounded up: the first is the oldest */
        budget -= d->slots[i].n_known;
        waiting--;
    }
}

/* Lays out the rows of every sequence; known rows in excess of the prefill budget wait for a later round. */
static td_status build_pass(td_decoder *d, td_seq *const *seqs, uint32_t n, td_pass *p, td_error *err) {
    share_prefill(d, seqs, n);
    *p = (td_pass){.token = d->token,
                   .pos = d->pos,
                   .row_seq = d->row_seq,
                   .n_seq = n,
                   .n_keys = d->n_keys,
                   .state = d->state,
                   .n_sure = d->n_sure,
                   .n_commit = d->n_commit,
                   .mark = d->mark,
                   .out_row = d->out_row,
                   .hidden = d->hidden,
                   .logits_out = d->logits_out,
                   .logits = d->logits};
    for (uint32_t i = 0; i < n; i++) {
        td_seq *s = seqs[i];
        slot *t = &d->slots[i];
        t->samples = t->n_known == td_seq_pending(s);
        TD_TRY(td_kv_seq_reserve(s->kv, t->n_known + t->n_draft, err));
        add_rows(d, s, i, p);
        add_outputs(d, i, p);
        mark_copies(d, s, i, p);
    }
    for (uint32_t g = 0; g < d->model->kv.n_groups; g++)
        p->pages[g] = d->pages[g];
    return TD_OK;
}

/* ---- accept and commit ---- */

/* Room for one more token's log-probabilities. */
static td_token_prob *grow_probs(td_seq *s) {
    size_t stride = s->params.n_probs, n = s->n_tokens - s->n_prompt;
    if ((n + 1) * stride > s->probs_capacity) {
        size_t more = 2 * (n + 32) * stride;
        td_token_prob *p = td_realloc(s->probs, more, sizeof *p);
        if (!p)
            return NULL;
        s->probs = p;
        s->probs_capacity = more;
    }
    return s->probs + n * stride;
}

/* The token that row `logits` gives. */
static td_status sample(td_decoder *d, td_seq *s, const float *logits, td_token *out, td_error *err) {
    uint32_t n_vocab = d->model->info.n_vocab;
    td_constraint *c = s->params.constraint;
    const uint64_t *allowed = NULL;
    if (c)
        TD_TRY(c->ops->allowed(c, &allowed, err));
    TD_TRY(
        td_sample(d->sampler, &s->params.sampling, &s->history, logits, NULL, allowed, n_vocab, s->n_tokens, out, err));
    if (s->params.n_probs) {
        td_token_prob *probs = grow_probs(s);
        if (!probs)
            return td_fail(err, TD_E_NOMEM, "out of memory for log-probabilities");
        td_logprobs(logits, n_vocab, *out, s->params.n_probs - 1, probs);
    }
    return c ? c->ops->advance(c, *out, err) : TD_OK;
}

static void push(td_seq *s, td_token t, bool drafted) {
    s->tokens[s->n_tokens] = t;
    s->was_drafted[s->n_tokens++] = drafted;
    td_history_add(&s->history, t);
    if (td_seq_is_end(&s->params, t))
        s->finish = TD_FINISH_STOP;
    else if (td_seq_remaining(s) == 0)
        s->finish = TD_FINISH_LENGTH;
}

/* Whether the draft that row r was followed by is what the row gives. In a benchmark that forces acceptance one coin a
 * round decides for all its rows, and an accepted draft is the row's token, since its key is what the pass has written.
 */
static bool accepts(const td_decoder *d, const td_seq *s, const slot *t, uint32_t r, td_token *sampled) {
    if (r >= t->n_draft)
        return false;
    if (!d->opt.forces)
        return *sampled == t->draft[r];
    bool yes = td_rng_uniform(~s->params.sampling.seed, s->n_tokens - r, 0) < (double)d->opt.forced[r];
    *sampled = yes ? t->draft[r] : *sampled;
    return yes;
}

/* Samples the rows in turn; returns how many drafts were accepted. */
static td_status accept(td_decoder *d, td_seq *s, const slot *t, uint32_t *accepted, td_error *err) {
    const td_model_info *info = &d->model->info;
    for (uint32_t r = 0;; r++) {
        td_token sampled;
        const float *logits = d->logits + (size_t)(t->first_logits + r) * info->n_vocab;
        TD_TRY(sample(d, s, logits, &sampled, err));
        bool agrees = accepts(d, s, t, r, &sampled);
        push(s, sampled, agrees);
        if (!agrees || s->finish) {
            *accepted = r + agrees;
            memcpy(s->hidden, d->hidden + (size_t)(t->first_out + r) * info->n_embd, info->n_embd * sizeof(float));
            return TD_OK;
        }
    }
}

static void count(td_seq_stats *st, uint32_t drafted, uint32_t accepted) {
    st->rounds++;
    st->drafted += drafted;
    for (uint32_t i = 0; i < drafted; i++)
        st->drafted_at[i]++;
    for (uint32_t i = 0; i < accepted; i++)
        st->accepted_at[i]++;
}

/* What the pass has copied on its way counts from now on. */
static void keep_copies(td_decoder *d, td_seq *s, const slot *t) {
    bool all_rows = d->drafter && d->drafter->all_rows;
    for (int k = 0; k < TD_COPIES; k++) {
        if (!t->copy[k])
            continue;
        uint32_t row = t->first_row + (t->copy[k]->position - td_kv_seq_length(s->kv)) - 1;
        td_snapshots_keep(s->snapshots, t->copy[k], all_rows ? d->hidden + (size_t)row * d->model->info.n_embd : NULL);
    }
}

static td_status show_drafter(td_decoder *d, td_seq *s, const slot *t, uint32_t first_pos, td_error *err) {
    if (!d->drafter || !d->drafter->all_rows)
        return TD_OK;
    td_observed o = {.state = s->drafter_state,
                     .tokens = s->tokens,
                     .n_tokens = s->n_tokens,
                     .kv = s->kv,
                     .first_pos = first_pos,
                     .n_rows = td_kv_seq_length(s->kv) - first_pos,
                     .hidden = d->hidden + (size_t)t->first_row * d->model->info.n_embd};
    return d->drafter->ops->observe(d->drafter, &o, err);
}

static td_status commit(td_decoder *d, td_seq *s, slot *t, td_error *err) {
    uint32_t length = td_kv_seq_length(s->kv), known = length + t->n_known;
    keep_copies(d, s, t);
    s->uncommitted = 0;
    if (t->samples) {
        s->status = accept(d, s, t, &t->n_accepted, &s->error);
        if (s->status != TD_OK) {
            td_seq_fail(s);
            return TD_OK;
        }
        count(&s->stats, t->n_draft, t->n_accepted);
        s->has_hidden = true;
        td_kv_seq_advance(s->kv, s->n_tokens - 1);
        s->uncommitted = s->state ? s->n_tokens - 1 - known : 0;
    } else {
        td_kv_seq_advance(s->kv, known);
    }
    if (t->n_known)
        TD_TRY(show_drafter(d, s, t, length, err));
    td_seq_share(s);
    return TD_OK;
}

/* The keys of a pass that failed are past every length; what is recurrent is lost. */
static td_status give_up(td_seq *const *seqs, uint32_t n, td_status st) {
    for (uint32_t i = 0; i < n; i++)
        if (seqs[i]->state)
            td_seq_forget(seqs[i]);
    return st;
}

/* The draft steps that the round had: live[j], sequences in the j-th. A drafter that does not count its steps takes one
 * a draft. A draft that came to nothing may have been something else (a prompt that was read), so that nothing can be
 * said: 0. */
static uint32_t steps_taken(const td_decoder *d, uint32_t live[TD_MAX_DRAFT]) {
    uint32_t most = 0;
    memset(live, 0, TD_MAX_DRAFT * sizeof *live);
    for (uint32_t a = 0; a < d->n_asked; a++) {
        const td_draft *b = &d->drafts[a];
        uint32_t steps = b->n_steps ? b->n_steps : b->n_out;
        if (!steps || steps > TD_MAX_DRAFT)
            return 0;
        for (uint32_t j = 0; j < steps; j++)
            live[j]++;
        most = steps > most ? steps : most;
    }
    return most;
}

/* What a round has shown about depths. */
static void learn(td_decoder *d, td_seq *const *seqs, uint32_t n, int64_t start, int64_t drafted) {
    uint32_t live[TD_MAX_DRAFT], n_steps = steps_taken(d, live), n_drafts = 0;
    double took = td_clock_since(drafted);
    for (uint32_t i = 0; i < n; i++)
        n_drafts += d->slots[i].n_draft;
    td_depth_saw_round(&d->costs, &d->plan, n_drafts, took, live, n_steps, (double)(drafted - start) * 1e-9);
    for (uint32_t i = 0; i < n; i++) {
        const slot *t = &d->slots[i];
        if (t->samples && t->n_known == 1 && seqs[i]->status == TD_OK)
            td_depth_learn(&seqs[i]->depth, &d->costs, t->n_made, t->n_draft, t->n_accepted, t->confidence);
    }
}

td_status td_round(td_decoder *d, td_seq *const *seqs, uint32_t n, td_error *err) {
    if (n < 1 || n > d->opt.max_seqs)
        return td_fail(err, TD_E_ARG, "a round of %u sequences, expected 1 to %u", n, d->opt.max_seqs);
    td_pass pass;
    int64_t start = td_clock_ns();
    td_status st = draft_all(d, seqs, n, err);
    int64_t drafted = td_clock_ns();
    if (st == TD_OK)
        st = build_pass(d, seqs, n, &pass, err);
    if (st == TD_OK)
        st = td_model_forward(d->model, &pass, err);
    for (uint32_t i = 0; i < n && st == TD_OK; i++)
        st = commit(d, seqs[i], &d->slots[i], err);
    if (st == TD_OK && d->drafter)
        learn(d, seqs, n, start, drafted);
    return st == TD_OK ? TD_OK : give_up(seqs, n, st);
}
