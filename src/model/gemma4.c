/* gemma4.c - the Gemma 4 trunk: opens it, and runs a pass.
 *
 * Layers from n_layers - n_shared on read keys that earlier layers have written, so nothing of them is needed for a row
 * whose output nobody wants: the pass drops those rows there. On E2B that is 20 of 35 layers of a prefill, on E4B 18 of
 * 42. Row-invariance makes the cut invisible. */
#include "model/gemma4.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "model/families.h"

typedef struct gemma4 {
    td_model base;
    td_gemma4_config c;
    td_gemma4_layer *layer; /* [n_layers] */
    td_gemma4_rotation rot;
    td_matrix embed, head, ple_embed, ple_proj;
    float *norm, *ple_norm;
    td_gemma4_scratch s;
    float *ple, *ple_ctx; /* [max_rows][n_layers*ple] */
    float *out_x;         /* [max_out][n_embd] */
    float *out_ple;       /* [max_out][n_layers*ple] */
    int32_t *out_pos;     /* [max_out] */
    uint32_t *out_seq;
} gemma4;

static gemma4 *self(td_model *m) {
    return (gemma4 *)m;
}

static bool matches(const char *model_type) {
    static const char *const names[] = {"gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(model_type, names[i]) == 0)
            return true;
    return false;
}

bool td_family_is_assistant(const char *model_type) {
    return strcmp(model_type, "gemma4_assistant") == 0 || strcmp(model_type, "gemma4_unified_assistant") == 0;
}

const td_gemma4_config *td_gemma4_trunk_config(const td_model *m) {
    return strcmp(m->info.family, "gemma4") == 0 ? &((const gemma4 *)m)->c : NULL;
}

/* ---- a pass ---- */

static void embed(td_model *m, float *y, const td_token *token, uint32_t n) {
    gemma4 *g = self(m);
    m->be->ops->embed(m->be, y, &g->embed, token, n, g->c.embed_scale);
}

/* ple = ( RMS(W x0 / sqrt(d); ple_norm) + E_ple[token] sqrt(N) ) / sqrt(2), for all layers of every row. */
static void per_layer_inputs(gemma4 *g, const td_pass *p) {
    td_backend *be = g->base.be;
    const td_backend_ops *op = be->ops;
    const td_gemma4_config *c = &g->c;
    uint32_t all = c->n_layers * c->ple;
    op->embed(be, g->ple, &g->ple_embed, p->token, p->n_rows, sqrtf((float)c->ple));
    op->linear(be, g->s.x, p->n_rows, &(td_linear_out){&g->ple_proj, g->ple_ctx}, 1);
    op->scale(be, g->ple_ctx, NULL, p->n_rows, all, 1.0f / sqrtf((float)c->n_embd));
    op->rmsnorm(be, g->ple_ctx, g->ple_ctx, g->ple_norm, p->n_rows * c->n_layers, c->ple, c->eps);
    op->add(be, g->ple, g->ple, g->ple_ctx, (size_t)p->n_rows * all, 1.0f / sqrtf(2.0f));
}

/* From here on only the rows whose output is wanted. */
static void keep_output_rows(gemma4 *g, const td_pass *p, td_gemma4_rows *rows) {
    td_backend *be = g->base.be;
    uint32_t all = g->c.n_layers * g->c.ple;
    for (uint32_t i = 0; i < p->n_out; i++) {
        g->out_pos[i] = p->pos[p->out_row[i]];
        g->out_seq[i] = p->row_seq[p->out_row[i]];
    }
    be->ops->gather(be, g->out_x, g->s.x, p->out_row, p->n_out, g->c.n_embd);
    if (all)
        be->ops->gather(be, g->out_ple, g->ple, p->out_row, p->n_out, all);
    rows->n = p->n_out;
    rows->pos = g->out_pos;
    rows->row_seq = g->out_seq;
}

static td_status check_pass(const gemma4 *g, const td_pass *p, td_error *err) {
    const td_model_options *o = &g->base.opt;
    if (p->n_rows < 1 || p->n_rows > o->max_rows || p->n_out > o->max_out || p->n_logits > o->max_logits)
        return td_fail(err, TD_E_ARG, "a pass of %u rows, %u outputs, %u logits; the model was opened for %u, %u, %u",
                       p->n_rows, p->n_out, p->n_logits, o->max_rows, o->max_out, o->max_logits);
    for (uint32_t i = 0; i < p->n_rows; i++)
        if (p->token[i] < 0 || (uint32_t)p->token[i] >= g->c.n_vocab)
            return td_fail_at(err, TD_E_ARG, i, "token %d, expected 0 to %u", p->token[i], g->c.n_vocab - 1);
    return TD_OK;
}

/* hidden = RMS(x; norm); logits = softcap(E hidden). */
static void outputs(gemma4 *g, const td_pass *p) {
    td_backend *be = g->base.be;
    const td_backend_ops *op = be->ops;
    const td_gemma4_config *c = &g->c;
    op->rmsnorm(be, p->hidden, g->s.x, g->norm, p->n_out, c->n_embd, c->eps);
    if (!p->n_logits)
        return;
    op->gather(be, g->s.y, p->hidden, p->logits_out, p->n_logits, c->n_embd);
    op->linear(be, g->s.y, p->n_logits, &(td_linear_out){&g->head, p->logits}, 1);
    if (c->softcap > 0)
        op->softcap(be, p->logits, (size_t)p->n_logits * c->n_vocab, c->softcap);
}

static td_status forward(td_model *m, const td_pass *p, td_error *err) {
    gemma4 *g = self(m);
    const td_gemma4_config *c = &g->c;
    TD_TRY(check_pass(g, p, err));
    td_gemma4_rows rows = {.n = p->n_rows,
                           .pos = p->pos,
                           .row_seq = p->row_seq,
                           .n_seq = p->n_seq,
                           .pages = p->pages,
                           .n_keys = p->n_keys,
                           .kv = &m->kv,
                           .window = {[TD_GEMMA4_SLIDING] = c->window}};
    embed(m, g->s.x, p->token, p->n_rows);
    if (c->ple)
        per_layer_inputs(g, p);

    uint32_t first_shared = c->n_layers - c->n_shared, all = c->n_layers * c->ple;
    float *full_x = g->s.x;
    const float *ple = g->ple;
    bool whole = p->n_out == p->n_rows;
    for (uint32_t l = 0; l < c->n_layers; l++) {
        if (l == first_shared && !whole) {
            if (p->n_out == 0)
                return TD_OK;
            keep_output_rows(g, p, &rows);
            g->s.x = g->out_x;
            ple = g->out_ple;
        }
        td_gemma4_layer_forward(m->be, c, l, &g->layer[l], &g->rot, &rows, &g->s,
                                c->ple ? ple + (size_t)l * c->ple : NULL, all);
    }
    if (rows.n != p->n_out && p->n_out) { /* no shared layers: the cut comes before the head */
        keep_output_rows(g, p, &rows);
        g->s.x = g->out_x;
    }
    if (p->n_out)
        outputs(g, p);
    g->s.x = full_x;
    return TD_OK;
}

/* ---- opening ---- */

static void close_model(td_model *m) {
    gemma4 *g = self(m);
    if (g->layer)
        for (uint32_t l = 0; l < g->c.n_layers; l++)
            td_gemma4_layer_free(&g->layer[l]);
    td_free(g->layer);
    for (int t = 0; t < TD_GEMMA4_N_TYPES; t++)
        td_free_aligned(g->rot.inv_freq[t]);
    td_matrix_free(&g->head);
    td_matrix_free(&g->ple_proj);
    td_free_aligned(g->norm);
    td_free_aligned(g->ple_norm);
    td_gemma4_scratch_close(&g->s, m->be);
    void *const parts[] = {g->ple, g->ple_ctx, g->out_x, g->out_ple};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i])
            m->be->ops->free(m->be, parts[i]);
    td_free(g->out_pos);
    td_free(g->out_seq);
    td_free(m->kv.layer);
    td_free(g);
}

static td_status adopt(td_model *m, td_loading *l, td_error *err) {
    gemma4 *g = self(m);
    TD_TRY(td_model_load_all(m->be, (td_matrix *const[]){&g->head, &g->ple_proj}, 2, l, err));
    for (uint32_t i = 0; i < g->c.n_layers; i++)
        TD_TRY(td_gemma4_layer_adopt(&g->layer[i], m->be, l, err));
    return TD_OK;
}

/* One KV group a layer type: full layers keep all keys, sliding ones a window. */
static td_status plan_kv(gemma4 *g, td_error *err) {
    td_kv_layout *kv = &g->base.kv;
    kv->type = g->base.opt.kv_type;
    kv->page_tokens = g->base.opt.page_tokens;
    kv->n_groups = TD_GEMMA4_N_TYPES;
    kv->group[TD_GEMMA4_SLIDING].window = g->c.window;
    kv->n_layers = g->c.n_kv_layers;
    kv->layer = td_calloc(kv->n_layers, sizeof *kv->layer);
    if (!kv->layer)
        return td_fail(err, TD_E_NOMEM, "out of memory for %u layers", kv->n_layers);
    for (uint32_t l = 0; l < g->c.n_layers; l++) {
        const td_gemma4_layer_config *lc = &g->c.layer[l];
        if (lc->owns_kv)
            kv->layer[lc->kv_layer] =
                (td_kv_layer){.group = lc->type, .n_kv_heads = lc->n_kv_heads, .head_dim = lc->head_dim};
        kv->layer[lc->kv_layer].n_readers++; /* its owner comes before all others */
    }
    td_kv_layout_finish(kv);
    return TD_OK;
}

static td_status alloc_part(td_backend *be, void **p, size_t n, uint64_t *bytes, td_error *err) {
    if (!n)
        return TD_OK;
    *p = be->ops->alloc(be, n);
    *bytes += n;
    return *p ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for a pass (%zu bytes)", n);
}

static uint32_t widest_in(const gemma4 *g) {
    uint32_t w = g->c.n_embd;
    for (uint32_t l = 0; l < g->c.n_layers; l++) {
        uint32_t q = g->c.n_heads * g->c.layer[l].head_dim;
        w = q > w ? q : w;
        w = g->c.layer[l].n_ff > w ? g->c.layer[l].n_ff : w;
    }
    return w;
}

static td_status plan_scratch(gemma4 *g, uint64_t *bytes, td_error *err) {
    td_backend *be = g->base.be;
    const td_model_options *o = &g->base.opt;
    size_t all = (size_t)g->c.n_layers * g->c.ple * sizeof(float), row = g->c.n_embd * sizeof(float);
    uint32_t head_dim = 0;
    for (uint32_t l = 0; l < g->c.n_layers; l++)
        head_dim = g->c.layer[l].head_dim > head_dim ? g->c.layer[l].head_dim : head_dim;
    TD_TRY(be->ops->reserve(be, o->max_rows, widest_in(g), g->c.n_vocab, g->c.n_heads, head_dim, err));
    TD_TRY(td_gemma4_scratch_open(&g->s, be, &g->c, o->max_rows, bytes, err));
    TD_TRY(alloc_part(be, (void **)&g->ple, all * o->max_rows, bytes, err));
    TD_TRY(alloc_part(be, (void **)&g->ple_ctx, all * o->max_rows, bytes, err));
    TD_TRY(alloc_part(be, (void **)&g->out_x, row * o->max_out, bytes, err));
    TD_TRY(alloc_part(be, (void **)&g->out_ple, all * o->max_out, bytes, err));
    g->out_pos = td_calloc(o->max_out + 1, sizeof *g->out_pos);
    g->out_seq = td_calloc(o->max_out + 1, sizeof *g->out_seq);
    return g->out_pos && g->out_seq ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for a pass");
}

static td_status load_rotation(gemma4 *g, td_error *err) {
    for (uint32_t l = 0; l < g->c.n_layers; l++) {
        td_gemma4_type t = g->c.layer[l].type;
        if (g->rot.inv_freq[t])
            continue;
        TD_TRY(td_gemma4_rope_table(&g->c.rope[t], g->c.layer[l].head_dim, &g->rot.inv_freq[t], &g->rot.n_rot[t], err));
        g->rot.pair_dist[t] = g->c.layer[l].head_dim / 2;
    }
    return TD_OK;
}

static td_status load_weights(gemma4 *g, const td_checkpoint *ck, td_gemma4_tally *t, td_error *err) {
    const td_gemma4_config *c = &g->c;
    td_model_info *info = &g->base.info;
    TD_TRY(td_gemma4_matrix(ck, "embed_tokens", 0, c->n_vocab, c->n_embd, &g->embed, t, err));
    g->head = g->embed;
    if (!c->tied) {
        t->row_bytes -= td_matrix_bytes(&g->embed);
        info->lookup_bytes += td_matrix_bytes(&g->embed);
        TD_TRY(td_gemma4_matrix(ck, "lm_head", 0, c->n_vocab, c->n_embd, &g->head, t, err));
    }
    TD_TRY(td_gemma4_vector(ck, "norm.weight", c->n_embd, &g->norm, t, err));
    if (c->ple) {
        uint32_t all = c->n_layers * c->ple;
        TD_TRY(td_gemma4_matrix(ck, "embed_tokens_per_layer", 0, c->ple_vocab, all, &g->ple_embed, t, err));
        t->row_bytes -= td_matrix_bytes(&g->ple_embed);
        info->lookup_bytes += td_matrix_bytes(&g->ple_embed);
        TD_TRY(td_gemma4_matrix(ck, "per_layer_model_projection", 0, all, c->n_embd, &g->ple_proj, t, err));
        TD_TRY(td_gemma4_vector(ck, "per_layer_projection_norm.weight", c->ple, &g->ple_norm, t, err));
        if (c->ple_vocab < c->n_vocab)
            return td_fail(err, TD_E_MODEL, "config.json: vocab_size_per_layer_input %u is below vocab_size %u",
                           c->ple_vocab, c->n_vocab);
    }
    g->layer = td_calloc(c->n_layers, sizeof *g->layer);
    if (!g->layer)
        return td_fail(err, TD_E_NOMEM, "out of memory for %u layers", c->n_layers);
    for (uint32_t l = 0; l < c->n_layers; l++)
        TD_TRY(td_gemma4_layer_load(&g->layer[l], c, l, ck, t, err));
    return TD_OK;
}

static void describe(gemma4 *g, const td_gemma4_tally *t, uint64_t scratch_bytes) {
    td_model_info *info = &g->base.info;
    info->n_vocab = g->c.n_vocab;
    info->n_embd = g->c.n_embd;
    info->n_layers = g->c.n_layers;
    info->n_ctx_train = g->c.n_ctx;
    info->n_params = t->n_params;
    info->weight_bytes = t->weight_bytes;
    info->row_bytes = t->row_bytes;
    info->heap_bytes = t->heap_bytes;
    info->scratch_bytes = scratch_bytes;
    const td_gemma4_layer *l = &g->layer[0];
    const td_matrix *const some[] = {&l->up, &l->q, &l->down, &l->o, &l->expert_gate, &l->expert_down, &g->embed};
    td_model_describe_weights(info, t->bits_count, some, sizeof some / sizeof some[0]);
}

static td_status open_model(td_model **out, td_checkpoint *ck, td_backend *be, const td_model_options *opt,
                            td_error *err) {
    static const td_model_ops ops = {.forward = forward, .embed = embed, .adopt = adopt, .close = close_model};
    const char *where;
    const json_t *text = td_model_text_config(ck, &where);
    gemma4 *g = td_calloc(1, sizeof *g);
    if (!g)
        return td_fail(err, TD_E_NOMEM, "out of memory for a model");
    g->base = (td_model){.ops = &ops, .be = be, .info = {.family = "gemma4"}, .opt = *opt};
    td_gemma4_tally tally = {0};
    uint64_t scratch = 0;
    td_status st = td_gemma4_config_read(&g->c, text, where, td_checkpoint_config(ck), false, err);
    if (st == TD_OK)
        st = td_model_alias_plain_names(ck, err);
    if (st == TD_OK)
        st = td_gemma4_check_names(ck, &g->c, false, &g->base.info.n_skipped, err);
    if (st == TD_OK)
        st = load_weights(g, ck, &tally, err);
    if (st == TD_OK)
        st = load_rotation(g, err);
    if (st == TD_OK)
        st = plan_kv(g, err);
    if (st == TD_OK)
        st = plan_scratch(g, &scratch, err);
    if (st != TD_OK) {
        close_model(&g->base);
        return st;
    }
    describe(g, &tally, scratch);
    *out = &g->base;
    return TD_OK;
}

const td_model_family td_family_gemma4 = {.name = "gemma4", .matches = matches, .open = open_model};
