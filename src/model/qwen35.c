/* qwen35.c - the Qwen 3.5 family: opens a trunk with its draft head, runs passes of either.
 *
 * Three of four layers are recurrent (Gated DeltaNet): what they remember of a sequence is a matrix a head, which
 * cannot be shortened as keys can. What is tried is kept apart from what is sure (backend.h, "recurrent memory"); rows
 * always go through a head one after the other, so prefill, verification and repetition make the same bits.
 *
 * In the last layer of a pass, and in the draft head, rows whose output nobody wants leave their K and V and are
 * dropped. Row-invariance makes the cut invisible. */
#include "model/qwen35.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "model/families.h"

typedef struct qwen35 {
    td_model base;
    td_qwen35_config c;
    td_qwen35_layer *layer; /* [n_layers] */
    td_qwen35_head head;    /* with info.mtp_loaded */
    td_matrix embed, lm_head;
    float *norm;
    float *inv_freq; /* [n_rot] */
    td_qwen35_state_plan plan;
    td_qwen35_scratch s;
    /* with info.mtp_loaded */
    float *halves;                 /* [2*max_rows][n_embd] embeddings of all rows, then hidden states of all rows */
    float *joined;                 /* [max_rows][2*n_embd] both of one row beside each other */
    int32_t *half_row;             /* [2*max_rows] where in `halves` those stand */
    int32_t *out_pos;              /* [max_rows] */
    uint32_t *out_seq, *first_row; /* [max_rows], [max_rows + 1] */
} qwen35;

static qwen35 *self(td_model *m) {
    return (qwen35 *)m;
}

static bool matches(const char *model_type) {
    static const char *const names[] = {"qwen3_5", "qwen3_5_text", "qwen3_5_moe", "qwen3_5_moe_text"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(model_type, names[i]) == 0)
            return true;
    return false;
}

static void embed(td_model *m, float *y, const td_token *token, uint32_t n) {
    m->be->ops->embed(m->be, y, &self(m)->embed, token, n, 1.0f);
}

/* ---- a pass of the trunk ---- */

static td_status check_tokens(const qwen35 *g, const td_token *token, uint32_t n, td_error *err) {
    for (uint32_t i = 0; i < n; i++)
        if (token[i] < 0 || (uint32_t)token[i] >= g->c.n_vocab)
            return td_fail_at(err, TD_E_ARG, i, "token %d, expected 0 to %u", token[i], g->c.n_vocab - 1);
    return TD_OK;
}

/* Finds where each sequence's rows begin, and that no more of them are tentative than a log holds. */
static td_status find_sequences(qwen35 *g, const td_pass *p, td_error *err) {
    uint32_t row = 0, most = g->base.opt.max_tentative;
    for (uint32_t i = 0; i < p->n_seq; i++) {
        g->first_row[i] = row;
        while (row < p->n_rows && p->row_seq[row] == i)
            row++;
        uint32_t n = row - g->first_row[i];
        if (p->n_sure[i] > n || n - p->n_sure[i] > most || (p->n_commit && p->n_commit[i] > most))
            return td_fail(err, TD_E_ARG,
                           "sequence %u has %u rows, %u of them sure, and commits %u; the model was opened for %u "
                           "tentative rows",
                           i, n, p->n_sure[i], p->n_commit ? p->n_commit[i] : 0, most);
    }
    g->first_row[p->n_seq] = row;
    return row == p->n_rows ? TD_OK : td_fail(err, TD_E_ARG, "row %u is of no sequence below %u", row, p->n_seq);
}

static td_status check_pass(qwen35 *g, const td_pass *p, td_error *err) {
    const td_model_options *o = &g->base.opt;
    if (p->n_rows < 1 || p->n_rows > o->max_rows || p->n_out > o->max_out || p->n_logits > o->max_logits ||
        p->n_seq > o->max_rows)
        return td_fail(err, TD_E_ARG, "a pass of %u rows, %u outputs, %u logits; the model was opened for %u, %u, %u",
                       p->n_rows, p->n_out, p->n_logits, o->max_rows, o->max_out, o->max_logits);
    TD_TRY(check_tokens(g, p->token, p->n_rows, err));
    return find_sequences(g, p, err);
}

static td_memory layer_memory(const qwen35 *g, uint32_t index, uint32_t n_seq, void *const *state) {
    return (td_memory){.n_seq = n_seq,
                       .first_row = g->first_row,
                       .state = (uint8_t *const *)state,
                       .kept = index * g->plan.kept,
                       .log = (size_t)g->plan.snapshot_bytes + index * g->plan.log,
                       .max_tentative = g->base.opt.max_tentative};
}

/* hidden = RMS(x; norm); logits = W_head hidden. */
static void outputs(qwen35 *g, const td_pass *p, const td_qwen35_rows *r) {
    td_backend *be = g->base.be;
    be->ops->rmsnorm(be, p->hidden, r->s.x, g->norm, p->n_out, g->c.n_embd, g->c.eps);
    if (!p->n_logits)
        return;
    be->ops->gather(be, g->s.y, p->hidden, p->logits_out, p->n_logits, g->c.n_embd);
    be->ops->linear(be, g->s.y, p->n_logits, &(td_linear_out){&g->lm_head, p->logits}, 1);
}

static const td_kv_layer *kv_layer(const qwen35 *g, uint32_t l) {
    return &g->base.kv.layer[g->c.index[l]];
}

/* Every layer; in the last one, or behind it, only the rows in p->out_row go on. False: there are none. */
static bool layers(qwen35 *g, const td_pass *p, const td_qwen35_context *x, td_qwen35_rows *r) {
    const td_qwen35_config *c = &g->c;
    bool cut = p->n_out < p->n_rows;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        const td_qwen35_layer *w = &g->layer[l];
        x->be->ops->rmsnorm(x->be, r->s.y, r->s.x, w->attn_norm, r->n, c->n_embd, c->eps);
        if (c->full[l]) {
            td_qwen35_keys(x, w, kv_layer(g, l), r);
            if (cut && l + 1 == c->n_layers) {
                if (p->n_out == 0)
                    return false;
                td_qwen35_keep_rows(x, r, p->out_row, p->n_out, g->out_pos, g->out_seq);
            }
            td_qwen35_attention(x, w, kv_layer(g, l), r);
        } else {
            td_memory m = layer_memory(g, c->index[l], p->n_seq, p->state);
            m.n_sure = p->n_sure;
            m.n_commit = p->n_commit;
            m.mark = p->mark;
            m.n_marks = p->n_marks;
            td_qwen35_delta(x, w, r, &m);
        }
        td_qwen35_finish_layer(x, w, r);
    }
    if (p->n_out && r->n != p->n_out)
        td_qwen35_keep_rows(x, r, p->out_row, p->n_out, g->out_pos, g->out_seq);
    return p->n_out > 0;
}

static td_qwen35_context context(const qwen35 *g, uint32_t n_seq, const td_kv_pages *pages, const int32_t *n_keys) {
    return (td_qwen35_context){.be = g->base.be,
                               .c = &g->c,
                               .inv_freq = g->inv_freq,
                               .n_seq = n_seq,
                               .pages = pages,
                               .n_keys = n_keys,
                               .kv = &g->base.kv};
}

static td_status forward(td_model *m, const td_pass *p, td_error *err) {
    qwen35 *g = self(m);
    TD_TRY(check_pass(g, p, err));
    td_qwen35_context x = context(g, p->n_seq, p->pages[0], p->n_keys);
    td_qwen35_rows r = {.n = p->n_rows, .pos = p->pos, .row_seq = p->row_seq, .s = g->s};
    embed(m, r.s.x, p->token, p->n_rows);
    if (layers(g, p, &x, &r))
        outputs(g, p, &r);
    return TD_OK;
}

/* ---- a pass of the draft head ---- */

/* The head's own table where it has one. */
static const td_matrix *table(const td_matrix *own, const td_matrix *trunk) {
    return own->data ? own : trunk;
}

/* z = W_fc [ RMS(E[token]; embed_norm) ; RMS(hidden; hidden_norm) ], which then is the layer's stream. */
static void join(qwen35 *g, const td_head_pass *p, float *z) {
    td_backend *be = g->base.be;
    const td_backend_ops *op = be->ops;
    uint32_t n = p->n_rows, d = g->c.n_embd;
    float *hidden = g->halves + (size_t)g->base.opt.max_rows * d;
    op->embed(be, g->halves, table(&g->head.embed, &g->embed), p->token, n, 1.0f);
    op->rmsnorm(be, g->halves, g->halves, g->head.embed_norm, n, d, g->c.eps);
    op->rmsnorm(be, hidden, p->hidden, g->head.hidden_norm, n, d, g->c.eps);
    op->gather(be, g->joined, g->halves, g->half_row, 2 * n, d);
    op->linear(be, g->joined, n, &(td_linear_out){&g->head.fc, z}, 1);
}

static void head_outputs(qwen35 *g, const td_head_pass *p, const td_qwen35_rows *r) {
    td_backend *be = g->base.be;
    const td_matrix *lm_head = table(&g->head.lm_head, &g->lm_head);
    uint32_t d = g->c.n_embd;
    be->ops->rmsnorm(be, p->out, r->s.x, g->head.norm, p->n_out, d, g->c.eps);
    if (!p->word) {
        be->ops->linear(be, p->out, p->n_out, &(td_linear_out){lm_head, p->logits}, 1);
        return;
    }
    for (uint32_t i = 0; i < p->n_out; i++)
        be->ops->rows_dot(be, p->logits + (size_t)i * p->n_words, p->out + (size_t)i * d, lm_head, p->word, p->n_words);
}

static td_status check_head_pass(const qwen35 *g, const td_head_pass *p, td_error *err) {
    uint32_t most = g->base.opt.max_rows;
    if (p->n_rows < 1 || p->n_rows > most || p->n_out > p->n_rows)
        return td_fail(err, TD_E_ARG, "a pass of draft heads of %u rows, %u outputs; the model was opened for %u",
                       p->n_rows, p->n_out, most);
    TD_TRY(check_tokens(g, p->token, p->n_rows, err));
    return p->word ? check_tokens(g, p->word, p->n_words, err) : TD_OK;
}

static td_status heads(td_model *m, const td_head_pass *p, td_error *err) {
    qwen35 *g = self(m);
    TD_TRY(check_head_pass(g, p, err));
    const td_kv_layer *kv = &m->kv.layer[g->c.n_full];
    const td_qwen35_layer *w = &g->head.layer;
    td_qwen35_context x = context(g, p->n_seq, p->pages[0], p->n_keys);
    td_qwen35_rows r = {.n = p->n_rows, .pos = p->pos, .row_seq = p->row_seq, .s = g->s};
    join(g, p, r.s.x);
    m->be->ops->rmsnorm(m->be, r.s.y, r.s.x, w->attn_norm, r.n, g->c.n_embd, g->c.eps);
    td_qwen35_keys(&x, w, kv, &r);
    if (p->n_out == 0)
        return TD_OK;
    if (p->n_out < p->n_rows)
        td_qwen35_keep_rows(&x, &r, p->out_row, p->n_out, g->out_pos, g->out_seq);
    td_qwen35_attention(&x, w, kv, &r);
    td_qwen35_finish_layer(&x, w, &r);
    head_outputs(g, p, &r);
    return TD_OK;
}

/* ---- recurrent memory ---- */

static void copy_state(td_model *m, void *to, const void *from) {
    memcpy(to, from, m->info.snapshot_bytes);
}

static void reset_state(td_model *m, void *state) {
    memset(state, 0, m->info.snapshot_bytes);
}

/* A pass without rows: the log's first n rows enter the committed part. */
static void commit_state(td_model *m, void *state, uint32_t n) {
    qwen35 *g = self(m);
    static const uint32_t no_rows[2] = {0, 0};
    td_qwen35_context x = context(g, 1, NULL, NULL);
    td_qwen35_rows r = {.s = g->s};
    for (uint32_t l = 0; l < g->c.n_layers && n; l++) {
        if (g->c.full[l])
            continue;
        td_memory memory = layer_memory(g, g->c.index[l], 1, &state);
        memory.first_row = memory.n_sure = no_rows;
        memory.n_commit = &n;
        td_qwen35_recur(&x, &g->layer[l], &r, &memory);
    }
}

/* ---- opening ---- */

static td_status adopt(td_model *m, td_loading *l, td_error *err) {
    qwen35 *g = self(m);
    TD_TRY(td_model_load_all(m->be, (td_matrix *const[]){&g->lm_head, &g->head.fc, &g->head.lm_head}, 3, l, err));
    for (uint32_t i = 0; i < g->c.n_layers; i++)
        TD_TRY(td_qwen35_layer_adopt(&g->layer[i], m->be, l, err));
    return td_qwen35_layer_adopt(&g->head.layer, m->be, l, err);
}

static void close_model(td_model *m) {
    qwen35 *g = self(m);
    td_matrix_free(&g->lm_head);
    if (g->layer)
        for (uint32_t l = 0; l < g->c.n_layers; l++)
            td_qwen35_layer_free(&g->layer[l]);
    td_free(g->layer);
    td_qwen35_head_free(&g->head);
    td_free_aligned(g->norm);
    td_free_aligned(g->inv_freq);
    td_qwen35_scratch_close(&g->s, m->be);
    void *const parts[] = {g->halves, g->joined, g->half_row};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i])
            m->be->ops->free(m->be, parts[i]);
    td_free(g->out_pos);
    td_free(g->out_seq);
    td_free(g->first_row);
    td_free(m->kv.layer);
    td_free(g);
}

/* One KV group: full-attention layers keep all keys; behind the trunk's stands the draft head's. */
static td_status plan_kv(qwen35 *g, td_error *err) {
    td_kv_layout *kv = &g->base.kv;
    kv->type = g->base.opt.kv_type;
    kv->page_tokens = g->base.opt.page_tokens;
    kv->n_groups = 1;
    kv->n_layers = g->c.n_full + g->base.info.mtp_loaded;
    kv->layer = td_calloc(kv->n_layers + 1, sizeof *kv->layer);
    if (!kv->layer)
        return td_fail(err, TD_E_NOMEM, "out of memory for %u layers", kv->n_layers);
    for (uint32_t i = 0; i < kv->n_layers; i++)
        kv->layer[i] = (td_kv_layer){.n_kv_heads = g->c.n_kv_heads,
                                     .head_dim = g->c.head_dim,
                                     .n_readers = i < g->c.n_full}; /* the last one is the heads' */
    td_kv_layout_finish(kv);
    return TD_OK;
}

static td_status alloc_part(td_backend *be, void **p, size_t n, uint64_t *bytes, td_error *err) {
    *p = be->ops->alloc(be, n);
    *bytes += n;
    return *p ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for a pass (%zu bytes)", n);
}

static td_status plan_head_scratch(qwen35 *g, uint64_t *bytes, td_error *err) {
    td_backend *be = g->base.be;
    uint32_t n = g->base.opt.max_rows;
    size_t row = 2 * (size_t)g->c.n_embd * sizeof(float);
    TD_TRY(alloc_part(be, (void **)&g->halves, row * n, bytes, err));
    TD_TRY(alloc_part(be, (void **)&g->joined, row * n, bytes, err));
    TD_TRY(alloc_part(be, (void **)&g->half_row, 2 * (size_t)n * sizeof(int32_t), bytes, err));
    for (uint32_t r = 0; r < n; r++) {
        g->half_row[2 * r] = (int32_t)r;
        g->half_row[2 * r + 1] = (int32_t)(n + r);
    }
    return TD_OK;
}

static uint32_t widest_in(const td_qwen35_config *c) {
    const uint32_t widths[] = {2 * c->n_embd, c->n_heads * c->head_dim, c->n_v_heads * c->v_dim, c->n_ff,
                               c->n_ff_expert};
    uint32_t w = 0;
    for (size_t i = 0; i < sizeof widths / sizeof widths[0]; i++)
        w = widths[i] > w ? widths[i] : w;
    return w;
}

static td_status plan_scratch(qwen35 *g, uint64_t *bytes, td_error *err) {
    td_backend *be = g->base.be;
    const td_qwen35_config *c = &g->c;
    uint32_t n = g->base.opt.max_rows, conv = td_qwen35_conv_dim(c), q = 2 * c->n_heads * c->head_dim;
    uint32_t widest_out = c->n_vocab > conv ? c->n_vocab : conv;
    TD_TRY(be->ops->reserve(be, n, widest_in(c), widest_out > q ? widest_out : q, c->n_heads, c->head_dim, err));
    TD_TRY(td_qwen35_scratch_open(&g->s, be, c, n, bytes, err));
    if (g->base.info.mtp_loaded)
        TD_TRY(plan_head_scratch(g, bytes, err));
    g->out_pos = td_calloc(n, sizeof *g->out_pos);
    g->out_seq = td_calloc(n, sizeof *g->out_seq);
    g->first_row = td_calloc((size_t)n + 1, sizeof *g->first_row);
    if (!g->out_pos || !g->out_seq || !g->first_row)
        return td_fail(err, TD_E_NOMEM, "out of memory for a pass");
    g->plan = td_qwen35_plan_state(c, g->base.opt.max_tentative);
    g->base.info.state_bytes = g->plan.state_bytes;
    g->base.info.snapshot_bytes = g->plan.snapshot_bytes;
    return TD_OK;
}

/* inv_freq[i] = theta^(-i / n_rot) */
static td_status load_rotation(qwen35 *g, td_error *err) {
    uint32_t n = g->c.n_rot;
    g->inv_freq = td_malloc_aligned(n * sizeof(float));
    if (!g->inv_freq)
        return td_fail(err, TD_E_NOMEM, "out of memory for a rotation table");
    for (uint32_t i = 0; i < n; i++)
        g->inv_freq[i] = (float)pow(g->c.theta, -(double)i / n);
    return TD_OK;
}

static td_status load_layers(qwen35 *g, const td_qwen35_source *s, td_error *err) {
    g->layer = td_calloc(g->c.n_layers, sizeof *g->layer);
    if (!g->layer)
        return td_fail(err, TD_E_NOMEM, "out of memory for %u layers", g->c.n_layers);
    for (uint32_t l = 0; l < g->c.n_layers; l++) {
        char prefix[32];
        snprintf(prefix, sizeof prefix, "layers.%u.", l);
        TD_TRY(td_qwen35_layer_load(&g->layer[l], s, prefix, g->c.full[l], err));
    }
    return TD_OK;
}

static void describe(qwen35 *g, const td_qwen35_tally *t) {
    td_model_info *info = &g->base.info;
    info->n_vocab = g->c.n_vocab;
    info->n_embd = g->c.n_embd;
    info->n_layers = g->c.n_layers;
    info->n_ctx_train = g->c.n_ctx;
    info->n_params = t->n_params;
    info->weight_bytes = t->weight_bytes;
    info->row_bytes = t->row_bytes;
    info->heap_bytes = t->heap_bytes;
    const td_qwen35_layer *l = &g->layer[0];
    const td_matrix *const some[] = {&l->down, &l->up, &l->expert_gate, &l->expert_down, &g->embed};
    td_model_describe_weights(info, t->bits_count, some, sizeof some / sizeof some[0]);
}

static td_status load_trunk(qwen35 *g, const td_checkpoint *ck, bool raw, td_error *err) {
    const td_qwen35_config *c = &g->c;
    td_qwen35_tally t = {0};
    td_qwen35_source s = {.ck = ck, .c = c, .tally = &t, .raw = raw};
    TD_TRY(td_qwen35_matrix(&s, "embed_tokens", c->n_vocab, c->n_embd, &g->embed, err));
    g->lm_head = g->embed;
    if (!c->tied) {
        t.row_bytes -= td_matrix_bytes(&g->embed);
        g->base.info.lookup_bytes += td_matrix_bytes(&g->embed);
        TD_TRY(td_qwen35_matrix(&s, "lm_head", c->n_vocab, c->n_embd, &g->lm_head, err));
    }
    TD_TRY(td_qwen35_norm(&s, "norm.weight", c->n_embd, &g->norm, err));
    TD_TRY(load_layers(g, &s, err));
    describe(g, &t);
    return TD_OK;
}

/* The heads, where they were asked for and are there. A promise that the files do not keep is no error: the trunk
 * decodes plainly, and says why. */
static td_status load_head(qwen35 *g, const td_checkpoint *ck, bool raw, td_error *err) {
    td_model_info *info = &g->base.info;
    const td_model_options *o = &g->base.opt;
    if (!o->mtp)
        return TD_OK;
    if (!info->has_mtp) {
        if (info->mtp_promised)
            td_log_warn(o->log, "%s: the checkpoint's own heads are not used: %s", td_checkpoint_path(ck),
                        info->mtp_reason);
        return TD_OK;
    }
    td_qwen35_tally t = {0};
    TD_TRY(td_qwen35_head_load(&g->head, ck, &g->c, raw, o->mtp_bits ? o->mtp_bits : 16, &t, err));
    info->mtp_loaded = true;
    info->mtp_bytes = t.weight_bytes + t.heap_bytes;
    td_matrix_describe(&g->head.fc, info->mtp_format, sizeof info->mtp_format);
    return TD_OK;
}

static td_status load(qwen35 *g, td_checkpoint *ck, td_error *err) {
    const char *where;
    bool raw;
    td_model_info *info = &g->base.info;
    const json_t *text = td_model_text_config(ck, &where);
    TD_TRY(td_model_alias_plain_names(ck, err));
    TD_TRY(td_qwen35_config_read(&g->c, text, where, td_checkpoint_config(ck), td_checkpoint_has_matrix(ck, "lm_head"),
                                 err));
    g->c.gguf = td_checkpoint_gguf(ck) != NULL;
    info->has_mtp = td_qwen35_head_present(ck, &g->c, info->mtp_reason, sizeof info->mtp_reason);
    info->mtp_promised = g->c.n_mtp > 0 || info->has_mtp;
    TD_TRY(td_qwen35_check_names(ck, &g->c, g->base.opt.mtp && info->has_mtp, &info->n_skipped, err));
    TD_TRY(td_qwen35_is_raw(ck, &g->c, &raw, err));
    TD_TRY(load_trunk(g, ck, raw, err));
    TD_TRY(load_head(g, ck, raw, err));
    TD_TRY(load_rotation(g, err));
    TD_TRY(plan_kv(g, err));
    return plan_scratch(g, &info->scratch_bytes, err);
}

static td_status open_model(td_model **out, td_checkpoint *ck, td_backend *be, const td_model_options *opt,
                            td_error *err) {
    static const td_model_ops ops = {.forward = forward,
                                     .embed = embed,
                                     .adopt = adopt,
                                     .state_reset = reset_state,
                                     .state_commit = commit_state,
                                     .state_copy = copy_state,
                                     .heads = heads,
                                     .close = close_model};
    qwen35 *g = td_calloc(1, sizeof *g);
    if (!g)
        return td_fail(err, TD_E_NOMEM, "out of memory for a model");
    g->base = (td_model){.ops = &ops, .be = be, .info = {.family = "qwen3.5"}, .opt = *opt};
    td_status st = load(g, ck, err);
    if (st != TD_OK) {
        close_model(&g->base);
        return st;
    }
    *out = &g->base;
    return TD_OK;
}

const td_model_family td_family_qwen35 = {.name = "qwen3.5", .matches = matches, .open = open_model};
