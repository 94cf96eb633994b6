/* qwen35_layer.c - the mathematics of one decoder layer, shared by the trunk and its draft head.
 *
 *   x = x + Mixer(RMS(x; attn_norm))        Mixer: the gated delta rule, or attention with an output gate
 *   x = x + FFN(RMS(x; ff_norm))            FFN: one MLP, or routed experts and a shared one
 *
 * Attention comes in two pieces, keys and the rest: the last layer of a pass and the draft head need K and V of rows
 * whose output nobody wants. */
#include "model/qwen35.h"

/* ---- scratch ---- */

static uint32_t max_u32(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

td_status td_qwen35_scratch_open(td_qwen35_scratch *s, td_backend *be, const td_qwen35_config *c, uint32_t n_rows,
                                 uint64_t *bytes, td_error *err) {
    uint32_t d = c->n_embd, q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    uint32_t conv = td_qwen35_conv_dim(c), values = c->n_v_heads * c->v_dim;
    bool moe = c->n_experts > 0;
    const struct {
        void **p;
        size_t width;
    } parts[] = {
        {(void **)&s->x, d},
        {(void **)&s->y, d},
        {(void **)&s->out_x, d},
        {(void **)&s->out_y, d},
        {(void **)&s->wide, max_u32(2 * q, conv)},
        {(void **)&s->conv, conv},
        {(void **)&s->q, q},
        {(void **)&s->mix, max_u32(q, values)},
        {(void **)&s->k, kv},
        {(void **)&s->v, kv},
        {(void **)&s->z, values},
        {(void **)&s->a, c->n_v_heads},
        {(void **)&s->b, c->n_v_heads},
        {(void **)&s->gate, c->n_ff},
        {(void **)&s->up, c->n_ff},
        {(void **)&s->moe, moe ? d : 0},
        {(void **)&s->logits_e, c->n_experts},
        {(void **)&s->weight_e, c->n_experts_used},
        {(void **)&s->shared, moe ? 1 : 0},
        {(void **)&s->expert, c->n_experts_used},
        {(void **)&s->even, c->n_heads},
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
    for (uint32_t i = 0; i < c->n_heads * n_rows; i++)
        s->even[i] = (int32_t)(2 * i);
    return TD_OK;
}

void td_qwen35_scratch_close(td_qwen35_scratch *s, td_backend *be) {
    void *const parts[] = {s->x,   s->y,   s->out_x,    s->out_y,    s->wide,   s->conv,   s->q,
                           s->mix, s->k,   s->v,        s->z,        s->a,      s->b,      s->gate,
                           s->up,  s->moe, s->logits_e, s->weight_e, s->shared, s->expert, s->even};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        if (parts[i])
            be->ops->free(be, parts[i]);
    *s = (td_qwen35_scratch){0};
}

void td_qwen35_keep_rows(const td_qwen35_context *x, td_qwen35_rows *r, const int32_t *row, uint32_t n, int32_t *pos,
                         uint32_t *seq) {
    for (uint32_t i = 0; i < n; i++) {
        pos[i] = r->pos[row[i]];
        seq[i] = r->row_seq[row[i]];
    }
    x->be->ops->gather(x->be, r->s.out_x, r->s.x, row, n, x->c->n_embd);
    x->be->ops->gather(x->be, r->s.out_y, r->s.y, row, n, x->c->n_embd);
    r->n = n;
    r->pos = pos;
    r->row_seq = seq;
    r->s.x = r->s.out_x;
    r->s.y = r->s.out_y;
}

/* ---- the delta rule ---- */

td_qwen35_state_plan td_qwen35_plan_state(const td_qwen35_config *c, uint32_t max_tentative) {
    uint32_t conv = td_qwen35_conv_dim(c);
    td_qwen35_state_plan p = {.delta_kept = td_conv_kept(conv, c->kernel) * sizeof(float),
                              .delta_log = td_conv_log(conv, max_tentative) * sizeof(float)};
    p.kept = p.delta_kept + td_delta_kept(c->n_v_heads, c->k_dim, c->v_dim) * sizeof(float);
    p.log = p.delta_log + td_delta_log(c->n_v_heads, c->k_dim, c->v_dim, max_tentative) * sizeof(float);
    p.snapshot_bytes = (uint64_t)c->n_delta * p.kept;
    p.state_bytes = p.snapshot_bytes + (uint64_t)c->n_delta * p.log;
    return p;
}

/* The same memory, seen from the convolution to the delta rule behind it. */
static td_memory delta_part(const td_memory *m, const td_qwen35_config *c) {
    td_qwen35_state_plan p = td_qwen35_plan_state(c, m->max_tentative);
    td_memory d = *m;
    d.kept += p.delta_kept;
    d.log += p.delta_log;
    return d;
}

void td_qwen35_recur(const td_qwen35_context *x, const td_qwen35_layer *w, const td_qwen35_rows *r,
                     const td_memory *memory) {
    const td_qwen35_config *c = x->c;
    const td_qwen35_scratch *s = &r->s;
    const td_memory of_delta = delta_part(memory, c);
    x->be->ops->conv(x->be, &(td_conv){.out = s->conv,
                                       .x = s->wide,
                                       .w = w->conv,
                                       .dim = td_qwen35_conv_dim(c),
                                       .kernel = c->kernel,
                                       .memory = memory});
    x->be->ops->delta(x->be, &(td_delta){.out = s->mix,
                                         .qkv = s->conv,
                                         .a = s->a,
                                         .b = s->b,
                                         .rate = w->rate,
                                         .dt_bias = w->dt_bias,
                                         .n_k_heads = c->n_k_heads,
                                         .n_v_heads = c->n_v_heads,
                                         .k_dim = c->k_dim,
                                         .v_dim = c->v_dim,
                                         .tiled = c->gguf,
                                         .memory = &of_delta});
}

/* y <- W_out( RMS(delta(conv(W_qkv y))) * silu(W_z y) ), the norm head by head. */
void td_qwen35_delta(const td_qwen35_context *x, const td_qwen35_layer *w, const td_qwen35_rows *r,
                     const td_memory *memory) {
    td_backend *be = x->be;
    const td_backend_ops *op = be->ops;
    const td_qwen35_config *c = x->c;
    const td_qwen35_scratch *s = &r->s;
    uint32_t n = r->n, values = c->n_v_heads * c->v_dim;
    const td_linear_out in[] = {{&w->qkv, s->wide}, {&w->z, s->z}, {&w->a, s->a}, {&w->b, s->b}};
    op->linear(be, s->y, n, in, 4);
    td_qwen35_recur(x, w, r, memory);
    op->rmsnorm(be, s->mix, s->mix, w->delta_norm, n * c->n_v_heads, c->v_dim, c->eps);
    op->gated(be, s->mix, s->z, s->mix, n, values, values, values, values, TD_ACT_SILU);
    op->linear(be, s->mix, n, &(td_linear_out){&w->out, s->y}, 1);
}

/* ---- attention ---- */

void td_qwen35_keys(const td_qwen35_context *x, const td_qwen35_layer *w, const td_kv_layer *kv,
                    const td_qwen35_rows *r) {
    td_backend *be = x->be;
    const td_backend_ops *op = be->ops;
    const td_qwen35_config *c = x->c;
    const td_qwen35_scratch *s = &r->s;
    op->linear(be, s->y, r->n, (td_linear_out[]){{&w->k, s->k}, {&w->v, s->v}}, 2);
    op->rmsnorm(be, s->k, s->k, w->k_norm, r->n * c->n_kv_heads, c->head_dim, c->eps);
    op->rope(be, s->k, r->n, c->n_kv_heads, c->head_dim, r->pos, x->inv_freq, c->n_rot, c->n_rot);
    op->kv_write(be, &(td_kv_write){.k = s->k,
                                    .v = s->v,
                                    .n = r->n,
                                    .pos = r->pos,
                                    .row_seq = r->row_seq,
                                    .pages = x->pages,
                                    .layout = x->kv,
                                    .layer = kv});
}

/* y <- W_o( softmax(q K / sqrt(d)) V * sigmoid(gate) ); W_q y is query and gate of head 0, of head 1, ... */
void td_qwen35_attention(const td_qwen35_context *x, const td_qwen35_layer *w, const td_kv_layer *kv,
                         const td_qwen35_rows *r) {
    td_backend *be = x->be;
    const td_backend_ops *op = be->ops;
    const td_qwen35_config *c = x->c;
    const td_qwen35_scratch *s = &r->s;
    uint32_t d = c->head_dim, heads = r->n * c->n_heads;
    op->linear(be, s->y, r->n, &(td_linear_out){&w->q, s->wide}, 1);
    op->gather(be, s->q, s->wide, s->even, heads, d);
    op->rmsnorm(be, s->q, s->q, w->q_norm, heads, d, c->eps);
    op->rope(be, s->q, r->n, c->n_heads, d, r->pos, x->inv_freq, c->n_rot, c->n_rot);
    op->attention(be, &(td_attention){.out = s->mix,
                                      .q = s->q,
                                      .n = r->n,
                                      .n_heads = c->n_heads,
                                      .scale = 1.0f / __builtin_sqrtf((float)d),
                                      .pos = r->pos,
                                      .row_seq = r->row_seq,
                                      .n_seq = x->n_seq,
                                      .pages = x->pages,
                                      .n_keys = x->n_keys,
                                      .layout = x->kv,
                                      .layer = kv});
    op->gated(be, s->mix, s->wide + d, s->mix, heads, d, d, 2 * (size_t)d, d, TD_ACT_SIGMOID);
    op->linear(be, s->mix, r->n, &(td_linear_out){&w->o, s->y}, 1);
}

/* ---- feed-forward ---- */

/* y <- W_down( silu(gate) * up ), gate and up of which are there already. */
static void down(const td_qwen35_context *x, const td_qwen35_layer *w, const td_qwen35_rows *r) {
    const td_backend_ops *op = x->be->ops;
    const td_qwen35_scratch *s = &r->s;
    uint32_t ff = x->c->n_ff;
    op->gated(x->be, s->gate, s->gate, s->up, r->n, ff, ff, ff, ff, TD_ACT_SILU);
    op->linear(x->be, s->gate, r->n, &(td_linear_out){&w->down, s->y}, 1);
}

/* y <- W_down( silu(W_gate y) * W_up y ) */
static void mlp(const td_qwen35_context *x, const td_qwen35_layer *w, const td_qwen35_rows *r) {
    const td_qwen35_scratch *s = &r->s;
    x->be->ops->linear(x->be, s->y, r->n, (td_linear_out[]){{&w->gate, s->gate}, {&w->up, s->up}}, 2);
    down(x, w, r);
}

/* moe <- sum over the k best experts of y, weighted, + sigmoid(w_shared . y) * shared(y). Softmax over all experts,
 * then the k best divided by their sum, is the softmax over those k. */
static void experts(const td_qwen35_context *x, const td_qwen35_layer *w, const td_qwen35_rows *r) {
    td_backend *be = x->be;
    const td_backend_ops *op = be->ops;
    const td_qwen35_config *c = x->c;
    const td_qwen35_scratch *s = &r->s;
    const td_linear_out in[] = {
        {&w->router, s->logits_e}, {&w->shared_gate, s->shared}, {&w->gate, s->gate}, {&w->up, s->up}};
    op->linear(be, s->y, r->n, in, 4);
    op->route(be, s->expert, s->weight_e, s->logits_e, r->n, c->n_experts, c->n_experts_used, NULL);
    op->moe(be, &(td_moe){.out = s->moe,
                          .x = s->y,
                          .n = r->n,
                          .k = c->n_experts_used,
                          .expert = s->expert,
                          .weight = s->weight_e,
                          .gate = &w->expert_gate,
                          .up = w->expert_up.data ? &w->expert_up : NULL,
                          .down = &w->expert_down,
                          .act = TD_ACT_SILU});
    down(x, w, r);
    op->add_gated_rows(be, s->moe, s->y, s->shared, r->n, c->n_embd);
}

void td_qwen35_finish_layer(const td_qwen35_context *x, const td_qwen35_layer *w, const td_qwen35_rows *r) {
    const td_backend_ops *op = x->be->ops;
    const td_qwen35_config *c = x->c;
    const td_qwen35_scratch *s = &r->s;
    size_t size = (size_t)r->n * c->n_embd;
    op->add(x->be, s->x, s->x, s->y, size, 1.0f);
    op->rmsnorm(x->be, s->y, s->x, w->ff_norm, r->n, c->n_embd, c->eps);
    if (c->n_experts)
        experts(x, w, r);
    else
        mlp(x, w, r);
    op->add(x->be, s->x, s->x, c->n_experts ? s->moe : s->y, size, 1.0f);
}
