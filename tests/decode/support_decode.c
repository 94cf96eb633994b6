/* support_decode.c - plain decoding without round.c, the watcher behind the model's table, and the scripted drafter. */
#include "decode/support_decode.h"

#include "base/alloc.h"
#include "base/rng.h"

#define N_SPECIAL 3u

td_seq_params seq_params(uint32_t max_tokens, uint32_t depth) {
    return (td_seq_params){.sampling = {.top_p = 1, .repetition_penalty = 1},
                           .max_tokens = max_tokens,
                           .depth = depth,
                           .ignore_end = true};
}

void random_prompt(td_token *out, uint32_t n, uint64_t stream) {
    out[0] = 2; /* <bos> */
    for (uint32_t i = 1; i < n; i++)
        out[i] = (td_token)(N_SPECIAL + (uint32_t)(td_rng_uniform(99, stream, i) * (320 - N_SPECIAL)));
}

/* ---- watching ---- */

static stage *watched; /* the stage whose model is called; tests run one at a time */

static bool same_prefix(const td_pass *p, uint32_t row, const truth *t) {
    for (uint32_t r = row;; r--) {
        uint32_t pos = (uint32_t)p->pos[r];
        if (pos + 1 >= t->n || p->token[r] != t->tokens[pos])
            return false;
        if (r == 0 || p->row_seq[r - 1] != p->row_seq[row])
            return true;
    }
}

static void compare_row(stage *s, const td_pass *p, uint32_t out, const float *logits) {
    uint32_t row = (uint32_t)p->out_row[out], pos = (uint32_t)p->pos[row];
    const truth *t = s->seen[p->row_seq[row]];
    if (!t || !same_prefix(p, row, t)) /* a row behind a wrong draft: its text is not the truth's */
        return;
    s->rows_compared++;
    if (memcmp(logits, t->logits + (size_t)pos * t->n_vocab, t->n_vocab * sizeof(float)) != 0)
        fail_msg("the logits of position %u differ in a pass of %u rows", pos, p->n_rows);
    if (memcmp(p->hidden + (size_t)out * t->n_embd, t->hidden + (size_t)pos * t->n_embd, t->n_embd * sizeof(float)))
        fail_msg("the hidden state of position %u differs in a pass of %u rows", pos, p->n_rows);
}

static void spoil(const stage *s, const td_pass *p, uint32_t out, float *logits) {
    uint32_t row = (uint32_t)p->out_row[out], n_vocab = s->f.model->info.n_vocab;
    if (p->row_seq[row] != s->spoil_seq || p->pos[row] != s->spoil_position)
        return;
    for (uint32_t i = 0; i < n_vocab; i += 7)
        logits[i] = s->spoil_value;
}

static td_status watch_forward(td_model *m, const td_pass *p, td_error *err) {
    stage *s = watched;
    s->passes++;
    s->rows += p->n_rows;
    if (s->fail_next_pass) {
        s->fail_next_pass = false;
        return td_fail(err, TD_E_DEVICE, "the pass was made to fail");
    }
    TD_TRY(s->model_ops->forward(m, p, err));
    TD_TRY(m->be->ops->wait(m->be, err));
    for (uint32_t i = 0; i < p->n_logits; i++) {
        float *logits = p->logits + (size_t)i * m->info.n_vocab;
        compare_row(s, p, (uint32_t)p->logits_out[i], logits);
        spoil(s, p, (uint32_t)p->logits_out[i], logits);
    }
    return TD_OK;
}

static void watch(stage *s) {
    static td_model_ops ops;
    watched = s;
    s->model_ops = s->f.model->ops;
    ops = *s->model_ops;
    ops.forward = watch_forward;
    s->f.model->ops = &ops;
    s->spoil_position = -1;
}

/* ---- the stage ---- */

static void open_assistant(stage *s, const stage_options *o, const td_decoder_options *d) {
    char name[64], path[512];
    snprintf(name, sizeof name, "%s-assistant", o->fixture);
    fixture_path(name, NULL, path, sizeof path);
    ASSERT_OK(td_checkpoint_open(&s->assistant_ck, o->assistant_path ? o->assistant_path : path, NULL, err));
    td_drafter_options a = td_drafter_options_default();
    a.max_seqs = d->max_seqs;
    a.bits = o->bits ? o->bits : 16;
    a.random_weights = o->random_weights;
    a.full_head = o->full_head;
    ASSERT_OK(td_drafter_assistant_open(&s->owned_drafter, s->assistant_ck, s->f.model, &a, err));
    s->drafter = s->owned_drafter;
}

static td_backend *open_backend(const char *name, int threads, bool float_activations) {
    td_backend *be = NULL;
    if (strcmp(name, "reference") == 0) {
        ASSERT_OK(td_backend_ref_open(&be, err));
        return be;
    }
    td_cpu_options o = {.n_threads = threads ? threads : 1, .float_activations = float_activations};
    td_error e = {0};
    if (strcmp(name, "cpu") != 0 && !td_isa_named(name, &o.isa))
        fail_msg("no backend is called %s", name);
    td_status st = td_backend_cpu_open(&be, &o, &e);
    if (st != TD_OK && st != TD_E_UNSUPPORTED)
        fail_msg("backend %s: %s", name, e.message);
    return be;
}

bool stage_open(stage *s, const stage_options *opt) {
    *s = (stage){0};
    stage_options o = *opt;
    o.fixture = o.fixture ? o.fixture : "gemma4-dense";
    td_decoder_options d = {.max_seqs = o.max_seqs ? o.max_seqs : 1,
                            .prefill_rows = o.prefill_rows ? o.prefill_rows : 64,
                            .max_depth = o.max_depth ? o.max_depth : 8};
    s->be = open_backend(o.backend ? o.backend : "cpu", o.threads, o.float_activations);
    if (!s->be)
        return false;
    td_model_options m = td_model_options_default();
    td_decoder_model_options(&d, &m);
    m.max_out = m.max_logits = o.max_out ? o.max_out : m.max_out;
    m.kv_type = o.kv;
    m.page_tokens = o.page_tokens ? o.page_tokens : 8;
    char path[512];
    fixture_path(o.fixture, NULL, path, sizeof path);
    ASSERT_OK(td_checkpoint_open(&s->f.ck, o.path ? o.path : path, NULL, err));
    ASSERT_OK(td_model_open(&s->f.model, s->f.ck, s->be, &m, err));
    s->drafter = o.drafter;
    if (o.assistant)
        open_assistant(s, &o, &d);
    watch(s);
    ASSERT_OK(td_kv_pool_open(&s->pool, &s->f.model->kv, s->be, o.pool_bytes, err));
    if (o.cache_bytes)
        ASSERT_OK(td_prompt_cache_open(&s->cache, s->f.model, s->pool, o.cache_bytes, err));
    d.cache = s->cache;
    ASSERT_OK(td_decoder_open(&s->decoder, s->f.model, s->drafter, s->pool, &d, err));
    return true;
}

void stage_close(stage *s) {
    td_decoder_close(&s->decoder);
    td_prompt_cache_close(&s->cache);
    assert_int_equal(td_kv_pool_used(s->pool), 0);
    td_kv_pool_close(&s->pool);
    td_drafter_close(&s->owned_drafter);
    s->f.model->ops = s->model_ops;
    fixture_close(&s->f);
    td_checkpoint_close(&s->assistant_ck);
    td_backend_close(&s->be);
}

/* ---- plain decoding ---- */

/* The logits and the hidden state of one token at one position, alone in its pass. */
static void one_row(truth *t, stage *s, td_kv_seq *kv, uint32_t pos) {
    ASSERT_OK(td_kv_seq_reserve(kv, 1, err));
    td_kv_pages table[TD_KV_MAX_GROUPS];
    int32_t position = (int32_t)pos, n_keys = (int32_t)pos + 1, zero = 0;
    uint32_t row_seq = 0, one = 1;
    td_pass p = {.n_rows = 1,
                 .token = &t->tokens[pos],
                 .pos = &position,
                 .row_seq = &row_seq,
                 .n_seq = 1,
                 .n_keys = &n_keys,
                 .n_sure = &one,
                 .n_out = 1,
                 .out_row = &zero,
                 .hidden = t->hidden + (size_t)pos * t->n_embd,
                 .n_logits = 1,
                 .logits_out = &zero,
                 .logits = t->logits + (size_t)pos * t->n_vocab};
    for (uint32_t g = 0; g < s->f.model->kv.n_groups; g++) {
        table[g] = td_kv_seq_pages(kv, g);
        p.pages[g] = &table[g];
    }
    ASSERT_OK(s->model_ops->forward(s->f.model, &p, err));
    ASSERT_OK(s->be->ops->wait(s->be, err));
    td_kv_seq_set_length(kv, pos + 1);
}

static bool ends(const td_seq_params *p, td_token t) {
    for (size_t i = 0; !p->ignore_end && i < p->n_end; i++)
        if (p->end[i] == t)
            return true;
    return false;
}

void truth_make(truth *t, stage *s, const td_token *prompt, uint32_t n_prompt, const td_seq_params *p, uint32_t n_ctx) {
    const td_model_info *info = &s->f.model->info;
    uint32_t room = n_ctx - n_prompt, n_new = p->max_tokens < room ? p->max_tokens : room, most = n_prompt + n_new;
    *t = (truth){.n_prompt = n_prompt, .n = n_prompt, .n_vocab = info->n_vocab, .n_embd = info->n_embd};
    t->tokens = td_calloc(most, sizeof *t->tokens);
    t->logits = td_calloc((size_t)most * info->n_vocab, sizeof(float));
    t->hidden = td_calloc((size_t)most * info->n_embd, sizeof(float));
    memcpy(t->tokens, prompt, n_prompt * sizeof *prompt);
    td_kv_seq *kv;
    td_sampler *sampler;
    td_history h;
    ASSERT_OK(td_kv_seq_open(&kv, s->pool, n_ctx, 1, err));
    ASSERT_OK(td_sampler_open(&sampler, NULL, info->n_vocab, err));
    ASSERT_OK(td_history_open(&h, info->n_vocab, err));
    for (uint32_t i = 0; i < n_prompt; i++)
        h.prompted[prompt[i]] = 1;
    for (uint32_t pos = 0; !t->finish; pos++) {
        one_row(t, s, kv, pos);
        if (pos + 1 < n_prompt)
            continue;
        ASSERT_OK(td_sample(sampler, &p->sampling, &h, t->logits + (size_t)pos * info->n_vocab, NULL, NULL,
                            info->n_vocab, t->n, &t->tokens[t->n], err));
        td_history_add(&h, t->tokens[t->n]);
        t->finish = ends(p, t->tokens[t->n]) ? TD_FINISH_STOP : t->n + 1 == most ? TD_FINISH_LENGTH : TD_FINISH_NONE;
        t->n++;
    }
    td_history_close(&h);
    td_sampler_close(&sampler);
    td_kv_seq_close(&kv);
}

void truth_free(truth *t) {
    td_free(t->tokens);
    td_free(t->logits);
    td_free(t->hidden);
    *t = (truth){0};
}

/* ---- playing ---- */

td_seq *stage_seq(stage *s, uint32_t n_ctx) {
    td_seq *seq = NULL;
    ASSERT_OK(td_seq_open(&seq, s->decoder, n_ctx, err));
    return seq;
}

void seq_start(td_seq *seq, const td_token *prompt, uint32_t n_prompt, const td_seq_params *p) {
    ASSERT_OK(td_seq_start(seq, prompt, n_prompt, p, err));
}

void stage_play(stage *s, td_seq *seq, const truth *t) {
    s->seen[0] = t;
    while (!seq->finish && seq->status == TD_OK)
        ASSERT_OK(td_round(s->decoder, &seq, 1, err));
    s->seen[0] = NULL;
    if (seq->status != TD_OK)
        fail_msg("the sequence failed: %s", seq->error.message);
    check_equal(seq, t, "stage_play");
}

static void check_history(const td_seq *seq, const char *what) {
    uint32_t n_vocab = seq->history.n_vocab;
    uint32_t *count = td_calloc(n_vocab, sizeof *count);
    for (uint32_t i = seq->n_prompt; i < seq->n_tokens; i++)
        count[seq->tokens[i]]++;
    if (memcmp(count, seq->history.generated, n_vocab * sizeof *count) != 0)
        fail_msg("%s: the history does not count the text's tokens", what);
    td_free(count);
}

void check_equal(const td_seq *seq, const truth *t, const char *what) {
    uint32_t n = seq->n_tokens < t->n ? seq->n_tokens : t->n, accepted = 0;
    for (uint32_t i = 0; i < n; i++)
        if (seq->tokens[i] != t->tokens[i])
            fail_msg("%s: token %u (text begins at %u) is %d, plain decoding gives %d", what, i, t->n_prompt,
                     seq->tokens[i], t->tokens[i]);
    if (seq->n_tokens != t->n || seq->n_prompt != t->n_prompt || seq->finish != t->finish)
        fail_msg("%s: %u tokens, finish %d; plain decoding gives %u, %d", what, seq->n_tokens, seq->finish, t->n,
                 t->finish);
    if (td_kv_seq_length(seq->kv) + 1 != seq->n_tokens)
        fail_msg("%s: %u keys of %u tokens", what, td_kv_seq_length(seq->kv), seq->n_tokens);
    check_history(seq, what);
    for (uint32_t i = 0; i < seq->n_tokens; i++)
        accepted += seq->was_drafted[i];
    uint64_t sum = 0;
    for (uint32_t i = 0; i < TD_MAX_DRAFT; i++) {
        sum += seq->stats.accepted_at[i];
        if (seq->stats.accepted_at[i] > seq->stats.drafted_at[i])
            fail_msg("%s: more drafts accepted than made at place %u", what, i);
    }
    if (sum != accepted)
        fail_msg("%s: %u tokens are marked as drafted, the counts say %llu", what, accepted, (unsigned long long)sum);
    uint32_t made =
        seq->n_tokens - seq->n_prompt; /* a round makes one token more than it accepts, or ends on a draft */
    bool ends_on_draft = made && seq->was_drafted[seq->n_tokens - 1];
    if (seq->stats.rounds + accepted != made + ends_on_draft)
        fail_msg("%s: %u rounds, %u drafts accepted, but %u tokens", what, seq->stats.rounds, accepted, made);
}

/* ---- the script ---- */

static td_status script_open_seq(td_drafter *d, void **state, td_error *err) {
    (void)d;
    *state = td_calloc(1, sizeof(script_seq));
    return *state ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for a script");
}

static void script_close_seq(td_drafter *d, void *state) {
    (void)d;
    td_free(state);
}

static void check_request(const td_draft *b, const truth *t) {
    uint32_t n = b->n_tokens;
    if (b->depth < 1 || b->depth > TD_MAX_DRAFT || n > t->n)
        fail_msg("a draft of %u tokens after %u was asked for", b->depth, n);
    assert_memory_equal(b->tokens, t->tokens, n * sizeof *b->tokens);
    assert_int_equal(td_kv_seq_length(b->kv), n - 1);
    assert_memory_equal(b->hidden, t->hidden + (size_t)(n - 2) * t->n_embd, t->n_embd * sizeof(float));
    uint32_t counted = 0;
    for (uint32_t i = 0; i < b->history->n_vocab; i++)
        counted += b->history->generated[i];
    assert_int_equal(counted, n - t->n_prompt);
}

static td_status script_draft(td_drafter *base, td_draft *batch, uint32_t n, td_error *err) {
    script *d = (script *)base;
    d->batches++;
    d->widest = n > d->widest ? n : d->widest;
    assert_in_range(n, 1, base->max_seqs);
    if (d->fail_next != TD_OK) {
        td_status st = d->fail_next;
        d->fail_next = TD_OK;
        return td_fail(err, st, "the drafter was made to fail");
    }
    for (uint32_t r = 0; r < n; r++) {
        td_draft *b = &batch[r];
        script_seq *s = b->state;
        const truth *t = s->text;
        check_request(b, t);
        uint32_t n_right = 0, n_out = 0, right = 0;
        s->plan(s, b->depth, &n_right, &n_out);
        s->calls++;
        s->longest = b->depth > s->longest ? b->depth : s->longest;
        for (uint32_t j = 0; j < n_out; j++) {
            uint32_t at = b->n_tokens + j;
            td_token truly = at < t->n ? t->tokens[at] : 0;
            td_token other = s->wrong ? s->wrong : (truly + 1 + (td_token)j) % (td_token)t->n_vocab;
            b->out[j] = j < n_right ? truly : other;
            right += j < n_right && at < t->n;
        }
        b->n_out = n_out;
        s->drafted += n_out;
        s->accepted += right;
        s->exactly[right]++;
        for (uint32_t j = 0; j < n_out; j++)
            s->drafted_at[j]++;
        for (uint32_t j = 0; j < right; j++)
            s->accepted_at[j]++;
    }
    return TD_OK;
}

void script_open(script *d, uint32_t max_seqs) {
    static const td_drafter_ops ops = {
        .open_seq = script_open_seq, .close_seq = script_close_seq, .draft = script_draft};
    *d = (script){.base = {.ops = &ops, .kind = "script", .max_seqs = max_seqs}};
}

script_seq *script_of(const td_seq *seq) {
    return seq->drafter_state;
}

void plan_fixed(script_seq *s, uint32_t depth, uint32_t *n_right, uint32_t *n_out) {
    *n_out = depth;
    *n_right = s->n_right < depth ? s->n_right : depth;
}
