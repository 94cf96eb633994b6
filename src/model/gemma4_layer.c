/* gemma4_layer.c - the mathematics of one decoder layer, shared by the trunk and its assistant.
 *
 *   a = Attention(RMS(x; attn_norm))              x = x + RMS(a; attn_post_norm)
 *   f = MLP(RMS(x; ff_norm)) [+ experts]          x = x + RMS(f; ff_post_norm)
 *   g = GELU(W_gate x) * ple                      x = x + RMS(W_proj g; ple_norm)      where the model has them
 *   x = x * layer_scalar */
#include "model/gemma4.h"

#include <stdlib.h>

typedef struct width {
    uint32_t q, kv, ff, ff_expert;
} width;

static uint32_t max_u32(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

static width widest(const td_gemma4_config *c) {
    width w = {.ff_expert = c->n_ff_expert};
    for (uint32_t i = 0; i < c->n_layers; i++) {
        w.q = max_u32(w.q, c->n_heads * c->layer[i].head_dim);
        w.kv = max_u32(w.kv, c->layer[i].n_kv_heads * c->layer[i].head_dim);
        w.ff = max_u32(w.ff, c->layer[i].n_ff);
    }
    return w;
}

td_status td_gemma4_scratch_open(td_gemma4_scratch *s, td_backend *be, const td_gemma4_config *c, uint32_t n_rows,
                                 uint64_t *bytes, td_error *err) {
    width w = widest(c);
    uint32_t side = max_u32(w.ff, c->ple);
    bool moe = c->n_experts > 0;
    const struct {
        void **p;
        size_t width;
    } parts[] = {
        {(void **)&s->x, c->n_embd},
        {(void **)&s->y, c->n_embd},
        {(void **)&s->q, w.q},
        {(void **)&s->k, w.kv},
        {(void **)&s->v, w.kv},
        {(void **)&s->a, w.q},
        {(void **)&s->gate, side},
        {(void **)&s->up, side},
        {(void **)&s->moe_x, moe ? c->n_embd : 0},
        {(void **)&s->moe_out, moe ? c->n_embd : 0},
        {(void **)&s->logits_e, moe ? c->n_experts : 0},
        {(void **)&s->weight_e, moe ? c->n_experts_used : 0},
        {(void **)&s->expert, moe ? c->n_experts_used : 0},
    };
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++) {
        size_t n = parts[i].width * n_rows * sizeof(float);
        if (!n)
            continue;
        *parts[i].p = be->ops->alloc(be, n);
        if (!*parts[i].p)
            return td_fail(err, TD_E_NOMEM, "out of memory for a pass of %u rows (%zu bytes)", n_rows, n);
        *bytes += n;
    }
    return TD_OK;
}

void td_gemma4_scratch_close(td_gemma4_scratch *s, td_backend *be) {
    void *const parts[] = {s->x,  s->y,     s->q,       s->k,        s->v,        s->a,     s->gate,
                           s->up, s->moe_x, s->moe_out, s->logits_e, s->weight_e, s->expert};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i])
            be->ops->free(be, parts[i]);
    *s = (td_gemma4_scratch){0};
}

/* y <- W_o softmax(q K) V; where the layer owns K/V, this pass's rows are written first. */
static void attention(td_backend *be, const td_gemma4_config *c, uint32_t l, const td_gemma4_layer *w,
                      const td_gemma4_rotation *rot, const td_gemma4_rows *r, td_gemma4_scratch *s) {
    const td_gemma4_layer_config *lc = &c->layer[l];
    const td_backend_ops *op = be->ops;
    uint32_t d = lc->head_dim, t = lc->type;
    const td_kv_layer *kv = &r->kv->layer[lc->kv_layer];

    td_linear_out proj[3] = {{&w->q, s->q}};
    uint32_t n_proj = 1;
    if (lc->owns_kv)
        proj[n_proj++] = (td_linear_out){&w->k, s->k};
    if (lc->owns_kv && !lc->k_is_v)
        proj[n_proj++] = (td_linear_out){&w->v, s->v};
    op->linear(be, s->y, r->n, proj, n_proj);

    op->rmsnorm(be, s->q, s->q, w->q_norm, r->n * c->n_heads, d, c->eps);
    op->rope(be, s->q, r->n, c->n_heads, d, r->pos, rot->inv_freq[t], rot->n_rot[t], rot->pair_dist[t]);
    if (lc->owns_kv) {
        /* V is normed from the raw projection, so before K is. */
        op->rmsnorm(be, s->v, lc->k_is_v ? s->k : s->v, NULL, r->n * lc->n_kv_heads, d, c->eps);
        op->rmsnorm(be, s->k, s->k, w->k_norm, r->n * lc->n_kv_heads, d, c->eps);
        op->rope(be, s->k, r->n, lc->n_kv_heads, d, r->pos, rot->inv_freq[t], rot->n_rot[t], rot->pair_dist[t]);
        op->kv_write(be, &(td_kv_write){.k = s->k,
                                        .v = s->v,
                                        .n = r->n,
                                        .pos = r->pos,
                                        .row_seq = r->row_seq,
                                        .pages = r->pages[kv->group],
                                        .layout = r->kv,
                                        .layer = kv});
    }
    op->attention(be, &(td_attention){.out = s->a,
                                      .q = s->q,
                                      .n = r->n,
                                      .n_heads = c->n_heads,
                                      .scale = 1.0f,
                                      .window = r->window[t],
                                      .pos = r->pos,
                                      .row_seq = r->row_seq,
                                      .n_seq = r->n_seq,
                                      .pages = r->pages[kv->group],
                                      .n_keys = r->n_keys,
                                      .layout = r->kv,
                                      .layer = kv});
    op->linear(be, s->a, r->n, &(td_linear_out){&w->o, s->y}, 1);
}

/* y <- W_down( GELU(W_gate y) * W_up y ) */
static void mlp(td_backend *be, const td_gemma4_config *c, uint32_t l, const td_gemma4_layer *w, uint32_t n,
                td_gemma4_scratch *s) {
    uint32_t ff = c->layer[l].n_ff;
    be->ops->linear(be, s->y, n, (td_linear_out[]){{&w->gate, s->gate}, {&w->up, s->up}}, 2);
    be->ops->gated(be, s->gate, s->gate, s->up, n, ff, ff, ff, ff, TD_ACT_GELU_TANH);
    be->ops->linear(be, s->gate, n, &(td_linear_out){&w->down, s->y}, 1);
}

/* The dense branch is in y; y <- RMS(y; post_norm1) + RMS(experts(RMS(x; norm2)); post_norm2). The router sees
 * RMS(x) * scale / sqrt(d): the stream itself, not the experts' input. */
static void experts(td_backend *be, const td_gemma4_config *c, const td_gemma4_layer *w, uint32_t n,
                    td_gemma4_scratch *s) {
    const td_backend_ops *op = be->ops;
    uint32_t d = c->n_embd, k = c->n_experts_used;
    op->rmsnorm(be, s->y, s->y, w->ff_post_norm1, n, d, c->eps);

    op->rmsnorm(be, s->moe_x, s->x, NULL, n, d, c->eps);
    op->scale(be, s->moe_x, w->router_scale, n, d, 1.0f);
    op->linear(be, s->moe_x, n, &(td_linear_out){&w->router, s->logits_e}, 1);
    op->route(be, s->expert, s->weight_e, s->logits_e, n, c->n_experts, k, w->expert_scale);

    op->rmsnorm(be, s->moe_x, s->x, w->ff_norm2, n, d, c->eps);
    op->moe(be, &(td_moe){.out = s->moe_out,
                          .x = s->moe_x,
                          .n = n,
                          .k = k,
                          .expert = s->expert,
                          .weight = s->weight_e,
                          .gate = &w->expert_gate,
                          .up = w->expert_up.data ? &w->expert_up : NULL,
                          .down = &w->expert_down,
                          .act = TD_ACT_GELU_TANH});
    op->rmsnorm(be, s->moe_out, s->moe_out, w->ff_post_norm2, n, d, c->eps);
    op->add(be, s->y, s->y, s->moe_out, (size_t)n * d, 1.0f);
}

void td_gemma4_layer_forward(td_backend *be, const td_gemma4_config *c, uint32_t l, const td_gemma4_layer *w,
                             const td_gemma4_rotation *rot, const td_gemma4_rows *r, td_gemma4_scratch *s,
                             const float *ple, size_t ple_stride) {
    const td_backend_ops *op = be->ops;
    uint32_t n = r->n, d = c->n_embd;
    op->rmsnorm(be, s->y, s->x, w->attn_norm, n, d, c->eps);
    attention(be, c, l, w, rot, r, s);
    op->add_rmsnorm(be, s->x, s->y, w->attn_post_norm, n, d, c->eps, 1.0f);

    op->rmsnorm(be, s->y, s->x, w->ff_norm, n, d, c->eps);
    mlp(be, c, l, w, n, s);
    if (c->n_experts)
        experts(be, c, w, n, s);
    op->add_rmsnorm(be, s->x, s->y, w->ff_post_norm, n, d, c->eps, ple ? 1.0f : w->scalar);

    if (ple) {
        op->linear(be, s->x, n, &(td_linear_out){&w->ple_gate, s->gate}, 1);
        op->gated(be, s->gate, s->gate, ple, n, c->ple, c->ple, c->ple, ple_stride, TD_ACT_GELU_TANH);
        op->linear(be, s->gate, n, &(td_linear_out){&w->ple_proj, s->y}, 1);
        op->add_rmsnorm(be, s->x, s->y, w->ple_norm, n, d, c->eps, w->scalar);
    }
}
