/* seq.c - one sequence: its tokens, its keys, its memory, how it goes back, and what it has from the prompt cache and
 * gives to it.
 *
 * Whole pages go into the cache as they come, so that another sequence can begin on them while this one goes on, and
 * with them the snapshots inside them. The last, partial page and the memory where the text ends follow when the
 * sequence finishes or is started again. A page is given only when everything in it is written: heads write the rows of
 * the last round with the next, so their pages are given that much later. */
#include <string.h>

#include "base/alloc.h"
#include "decode/round_impl.h"

static td_status open_memory(td_seq *s, td_decoder *d, td_error *err) {
    td_model *m = d->model;
    if (!m->info.state_bytes)
        return TD_OK;
    s->state = m->be->ops->alloc(m->be, m->info.state_bytes);
    if (!s->state)
        return td_fail(err, TD_E_NOMEM, "out of memory for the recurrent memory of a sequence (%llu bytes)",
                       (unsigned long long)m->info.state_bytes);
    m->ops->state_reset(m, s->state);
    uint32_t most = d->opt.n_snapshots ? (uint32_t)(d->opt.n_snapshots > 0 ? d->opt.n_snapshots : 0) : TD_SNAPSHOTS;
    return td_snapshots_open(&s->snapshots, m, most, err);
}

td_status td_seq_open(td_seq **out, td_decoder *d, uint32_t n_ctx, td_error *err) {
    *out = NULL;
    td_seq *s = td_calloc(1, sizeof *s);
    if (!s)
        return td_fail(err, TD_E_NOMEM, "out of memory for a sequence");
    s->decoder = d;
    s->capacity = n_ctx;
    s->tokens = td_calloc(n_ctx + 1, sizeof *s->tokens);
    s->was_drafted = td_calloc(n_ctx + 1, sizeof *s->was_drafted);
    s->hidden = td_malloc_aligned(d->model->info.n_embd * sizeof(float));
    td_status st = s->tokens && s->was_drafted && s->hidden
                       ? TD_OK
                       : td_fail(err, TD_E_NOMEM, "out of memory for a sequence of %u tokens", n_ctx);
    if (st == TD_OK)
        st = td_history_open(&s->history, d->model->info.n_vocab, err);
    if (st == TD_OK) /* a round may go past the context by its drafts, which are then cut */
        st = td_kv_seq_open(&s->kv, d->pool, n_ctx + d->opt.max_depth, d->opt.max_depth + 1, err);
    if (st == TD_OK && d->drafter && d->drafter->all_rows)
        td_kv_seq_rewrites(s->kv, 1);
    if (st == TD_OK)
        st = open_memory(s, d, err);
    if (st == TD_OK && d->drafter && d->drafter->ops->open_seq)
        st = d->drafter->ops->open_seq(d->drafter, &s->drafter_state, err);
    if (st == TD_OK)
        td_cache_trail_open(&s->trail, d->opt.cache);
    else
        td_seq_close(&s);
    *out = s;
    return st;
}

void td_seq_close(td_seq **ps) {
    if (!ps || !*ps)
        return;
    td_seq *s = *ps;
    td_cache_trail_close(&s->trail);
    if (s->drafter_state)
        s->decoder->drafter->ops->close_seq(s->decoder->drafter, s->drafter_state);
    td_kv_seq_close(&s->kv);
    td_snapshots_close(&s->snapshots);
    if (s->state)
        s->decoder->model->be->ops->free(s->decoder->model->be, s->state);
    td_history_close(&s->history);
    td_free(s->tokens);
    td_free(s->was_drafted);
    td_free(s->probs);
    td_free_aligned(s->hidden);
    td_free(s);
    *ps = NULL;
}

static uint32_t shared_prefix(const td_seq *s, const td_token *prompt, uint32_t n) {
    uint32_t have = td_kv_seq_length(s->kv);
    uint32_t most = have < n ? have : n;
    uint32_t i = 0;
    while (i < most && s->tokens[i] == prompt[i])
        i++;
    return i;
}

/* ---- going back ---- */

static void tell_drafter(td_seq *s, uint32_t n_rows, const float *hidden) {
    td_drafter *d = s->decoder->drafter;
    if (d && d->all_rows)
        d->ops->rewind(d, s->drafter_state, n_rows, hidden);
}

void td_seq_forget(td_seq *s) {
    td_kv_seq_clear(s->kv);
    if (s->state) {
        s->decoder->model->ops->state_reset(s->decoder->model, s->state);
        td_snapshots_forget(s->snapshots, 0);
    }
    s->uncommitted = 0;
    s->has_hidden = false;
    tell_drafter(s, 0, NULL);
    td_cache_trail_begin(&s->trail);
}

void td_seq_fail(td_seq *s) {
    if (s->status == TD_E_NUMERIC)
        td_cache_trail_revoke(&s->trail);
    td_seq_forget(s);
}

static uint32_t committed(const td_seq *s) {
    return td_kv_seq_length(s->kv) - s->uncommitted;
}

/* The last of `length` computed positions that the sequence can go back to; 0: to nothing. */
static uint32_t reach(const td_seq *s, uint32_t length) {
    if (s->state && length < committed(s)) {
        const td_snapshot *p = td_snapshots_find(s->snapshots, length);
        length = p ? p->position : 0;
    }
    return td_kv_seq_can_rewind(s->kv, length) ? length : 0;
}

/* Goes back to `length` computed positions, or as few fewer as can be; returns how many. */
static uint32_t rewind_to(td_seq *s, uint32_t length) {
    const float *hidden = NULL;
    length = reach(s, length);
    if (length == 0) {
        td_seq_forget(s);
        return 0;
    }
    if (s->state && length < committed(s)) {
        const td_snapshot *p = td_snapshots_find(s->snapshots, length);
        s->decoder->model->ops->state_copy(s->decoder->model, s->state, p->state);
        hidden = p->has_hidden ? p->hidden : NULL;
        s->uncommitted = 0;
    } else if (s->state) {
        s->uncommitted = length - committed(s);
    }
    td_kv_seq_set_length(s->kv, length);
    td_cache_trail_back(&s->trail, length);
    tell_drafter(s, length, hidden);
    return length;
}

/* A copy of the state where it stands, before the sequence goes on from there to something else. */
static void copy_end(td_seq *s) {
    td_model *m = s->decoder->model;
    uint32_t length = td_kv_seq_length(s->kv);
    td_snapshot *p = td_snapshots_make(s->snapshots, length);
    if (!p)
        return;
    m->ops->state_commit(m, s->state, s->uncommitted);
    s->uncommitted = 0;
    m->ops->state_copy(m, p->state, s->state);
    td_snapshots_keep(s->snapshots, p, s->has_hidden && s->n_tokens == length + 1 ? s->hidden : NULL);
}

/* ---- the prompt cache ---- */

static bool keep_copy(void *user, td_snapshot *copy) {
    td_seq *s = user;
    return td_cache_trail_keep(&s->trail, s->tokens, copy);
}

static void hand_over(td_seq *s) {
    if (s->snapshots)
        td_snapshots_hand_over(s->snapshots, keep_copy, s);
}

void td_seq_share(td_seq *s) {
    const td_decoder *d = s->decoder;
    uint32_t length = td_kv_seq_length(s->kv), had = s->trail.n_pages;
    uint32_t late = d->drafter && d->drafter->all_rows ? d->model->opt.max_tentative + 1 : 0;
    td_cache_trail_follow(&s->trail, s->tokens, length > late ? length - late : 0, s->kv);
    if (s->trail.n_pages != had)
        hand_over(s);
    td_kv_seq_set_length(s->kv, length);
}

/* Heads write what they have put off. Should that fail, drafts are worse where these keys are used again. */
static void settle_drafter(td_seq *s) {
    td_drafter *d = s->decoder->drafter;
    if (!d || !d->all_rows || td_kv_seq_reserve(s->kv, 0, NULL) != TD_OK)
        return;
    td_observed none = {.state = s->drafter_state, .tokens = s->tokens, .n_tokens = s->n_tokens, .kv = s->kv};
    (void)!d->ops->settle(d, &none, NULL);
}

/* All that there is goes into the cache; the sequence keeps its share. */
static void give(td_seq *s) {
    uint32_t length = td_kv_seq_length(s->kv);
    if (!s->trail.cache || !length)
        return;
    settle_drafter(s);
    td_cache_trail_end(&s->trail, s->tokens, length, s->kv);
    if (s->state)
        copy_end(s);
    hand_over(s);
}

void td_seq_finish(td_seq *s) {
    give(s);
    td_seq_forget(s);
}

td_status td_seq_recall(td_seq *s, const td_token *tokens, uint32_t n, td_error *err) {
    if (n > s->capacity)
        return td_fail(err, TD_E_LIMIT, "a conversation of %u tokens, but the context holds %u", n, s->capacity);
    td_seq_forget(s);
    if (n)
        memcpy(s->tokens, tokens, n * sizeof *tokens);
    s->n_tokens = s->n_prompt = n;
    s->n_reused = 0;
    s->stats = (td_seq_stats){0};
    return TD_OK;
}

static uint32_t adopt(td_seq *s, const td_cache_match *m) {
    td_model *model = s->decoder->model;
    td_seq_forget(s);
    td_cache_trail_adopt(&s->trail, m, s->kv);
    if (s->state)
        model->ops->state_copy(model, s->state, m->state);
    tell_drafter(s, m->length, m->hidden);
    return m->length;
}

/* The sequence comes to hold as much of the prompt as it has itself or finds in the cache, whichever is more; returns
 * how many positions. The newest token is always fed, to have its logits. */
static uint32_t prepare(td_seq *s, const td_token *prompt, uint32_t n_prompt) {
    if (s->trail.barred)
        td_seq_forget(s);
    give(s);
    uint32_t shared = shared_prefix(s, prompt, n_prompt), length = td_kv_seq_length(s->kv);
    if (s->state)
        td_snapshots_forget(s->snapshots, shared);
    if (s->state && shared == length && shared < n_prompt && !s->trail.cache)
        copy_end(s);
    uint32_t most = shared == n_prompt ? shared - 1 : shared;
    if (!s->trail.cache)
        return rewind_to(s, most);
    td_cache_match m = td_prompt_cache_find(s->trail.cache, prompt, n_prompt - 1);
    uint32_t keep = m.length > reach(s, most) ? adopt(s, &m) : rewind_to(s, most);
    s->branch = m.shared >= keep + s->decoder->model->kv.page_tokens ? m.shared : 0;
    td_prompt_cache_count(s->trail.cache, n_prompt, keep);
    return keep;
}

td_status td_seq_start(td_seq *s, const td_token *prompt, uint32_t n_prompt, const td_seq_params *p, td_error *err) {
    const td_model_info *info = &s->decoder->model->info;
    if (n_prompt < 1)
        return td_fail(err, TD_E_ARG, "an empty prompt, expected at least one token");
    if (n_prompt >= s->capacity)
        return td_fail(err, TD_E_LIMIT,
                       "a prompt of %u tokens, but the context holds %u, one of which must be left to "
                       "answer",
                       n_prompt, s->capacity);
    for (uint32_t i = 0; i < n_prompt; i++)
        if (prompt[i] < 0 || (uint32_t)prompt[i] >= info->n_vocab)
            return td_fail_at(err, TD_E_ARG, i, "prompt token %u is %d, expected 0 to %u", i, prompt[i],
                              info->n_vocab - 1);
    if (p->max_tokens < 1 || p->depth > s->decoder->opt.max_depth)
        return td_fail(err, TD_E_ARG, "%u tokens at depth %u, expected at least 1 and at most depth %u", p->max_tokens,
                       p->depth, s->decoder->opt.max_depth);
    if (p->n_probs > 1 + TD_MAX_LOGPROBS || p->n_probs > info->n_vocab)
        return td_fail(err, TD_E_ARG, "%u log-probabilities a token, expected at most %d", p->n_probs,
                       1 + TD_MAX_LOGPROBS);
    TD_TRY(td_sampling_check(&p->sampling, info->n_vocab, err));

    uint32_t keep = prepare(s, prompt, n_prompt);
    memcpy(s->tokens, prompt, n_prompt * sizeof *prompt);
    memset(s->was_drafted, 0, n_prompt * sizeof *s->was_drafted);
    td_depth_init(&s->depth, &s->decoder->costs);
    s->n_tokens = s->n_prompt = n_prompt;
    s->n_reused = keep;
    s->params = *p;
    s->has_hidden = false;
    s->finish = TD_FINISH_NONE;
    s->status = TD_OK;
    s->stats = (td_seq_stats){0};
    td_history_clear(&s->history);
    for (uint32_t i = 0; i < n_prompt; i++)
        s->history.prompted[prompt[i]] = 1;
    return TD_OK;
}

uint32_t td_seq_pending(const td_seq *s) {
    return s->n_tokens - td_kv_seq_length(s->kv);
}

/* The last token was never made; if it was a draft, it was never accepted. */
static void take_back(td_seq *s) {
    uint32_t at = --s->n_tokens, place = 0; /* of the draft in its round: drafts before it follow each other */
    td_history_remove(&s->history, s->tokens[at]);
    if (!s->was_drafted[at])
        return;
    while (s->was_drafted[at - 1 - place])
        place++;
    s->stats.accepted_at[place]--;
}

void td_seq_cut(td_seq *s, uint32_t n_tokens, td_finish finish) {
    while (s->n_tokens > n_tokens)
        take_back(s);
    td_cache_trail_cut(&s->trail, n_tokens);
    if (td_kv_seq_length(s->kv) >= n_tokens)
        rewind_to(s, n_tokens - 1);
    if (s->state)
        td_snapshots_forget(s->snapshots, n_tokens);
    s->has_hidden = false;
    s->finish = finish;
}

uint32_t td_seq_remaining(const td_seq *s) {
    uint32_t made = s->n_tokens - s->n_prompt;
    uint32_t budget = s->params.max_tokens - made;
    uint32_t room = s->capacity - s->n_tokens;
    return budget < room ? budget : room;
}

bool td_seq_is_end(const void *user, td_token t) {
    const td_seq_params *p = user;
    if (!p->ignore_end)
        for (size_t i = 0; i < p->n_end; i++)
            if (p->end[i] == t)
                return true;
    return false;
}
