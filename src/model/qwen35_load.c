/* qwen35_load.c - finds a layer's weights in a checkpoint, in every layout that is about.
 *
 * Names are the plain ones (td_model_alias_plain_names). Experts come fused (as published), split in three stacks (MLX)
 * or one by one (the draft head of 3.5, requantised files). Experts one by one that happen to lie one after the other
 * are a view like the rest; otherwise they are copied into one block, which td_model_info.heap_bytes counts: an array
 * of matrices in the backend's mixture of experts would save that copy, and cost every kernel a table of pointers. */
#include "model/qwen35.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

static void count_matrix(td_qwen35_tally *t, const td_matrix *m) {
    uint64_t n = (uint64_t)m->n_stack * m->n_out * m->n_in;
    t->n_params += n;
    t->bits_count[m->bits] += n;
    t->row_bytes += td_matrix_bytes(m);
    *(m->owned ? &t->heap_bytes : &t->weight_bytes) += td_matrix_bytes(m);
}

static td_status load_matrix(const td_qwen35_source *s, const char *module, uint32_t n_stack, uint32_t n_out,
                             uint32_t n_in, td_matrix *out, td_error *err) {
    TD_TRY(td_checkpoint_matrix(s->ck, module, n_stack, n_out, n_in, out, err));
    count_matrix(s->tally, out);
    return TD_OK;
}

td_status td_qwen35_matrix(const td_qwen35_source *s, const char *module, uint32_t n_out, uint32_t n_in, td_matrix *out,
                           td_error *err) {
    return load_matrix(s, module, 0, n_out, n_in, out, err);
}

static td_status load_vector(const td_qwen35_source *s, const char *name, uint32_t n, float **out, td_error *err) {
    TD_TRY(td_checkpoint_vector(s->ck, name, n, out, err));
    s->tally->n_params += n;
    s->tally->heap_bytes += (uint64_t)n * sizeof(float);
    return TD_OK;
}

td_status td_qwen35_norm(const td_qwen35_source *s, const char *name, uint32_t n, float **out, td_error *err) {
    TD_TRY(load_vector(s, name, n, out, err));
    for (uint32_t i = 0; i < n && s->raw; i++)
        (*out)[i] += 1.0f;
    return TD_OK;
}

/* A layer on its way: names are "<prefix><rest>". */
typedef struct layer_source {
    const td_qwen35_source *s;
    const char *prefix;
    char name[128];
} layer_source;

static const char *name_of(layer_source *l, const char *rest) {
    snprintf(l->name, sizeof l->name, "%s%s", l->prefix, rest);
    return l->name;
}

static td_status matrix(layer_source *l, const char *rest, uint32_t n_out, uint32_t n_in, td_matrix *out,
                        td_error *err) {
    return load_matrix(l->s, name_of(l, rest), 0, n_out, n_in, out, err);
}

static td_status vector(layer_source *l, const char *rest, uint32_t n, float **out, td_error *err) {
    return load_vector(l->s, name_of(l, rest), n, out, err);
}

static td_status norm(layer_source *l, const char *rest, uint32_t n, float **out, td_error *err) {
    return td_qwen35_norm(l->s, name_of(l, rest), n, out, err);
}

/* ---- the convolution, and what its shape tells ---- */

/* [dim, 1, kernel] as published, [dim, kernel, 1] in MLX conversions; the numbers lie alike. */
static bool conv_is_raw(const td_tensor *t) {
    return !(t->n_dims == 3 && t->dim[2] == 1);
}

td_status td_qwen35_is_raw(const td_checkpoint *ck, const td_qwen35_config *c, bool *raw, td_error *err) {
    char name[64];
    uint32_t i = 0;
    while (c->full[i])
        i++;
    snprintf(name, sizeof name, "layers.%u.linear_attn.conv1d.weight", i);
    const td_tensor *t = td_checkpoint_find(ck, name);
    if (!t)
        return td_fail(err, TD_E_MODEL, "%s: no tensor \"%s\"", td_checkpoint_path(ck), name);
    *raw = conv_is_raw(t);
    return TD_OK;
}

static td_status load_conv(layer_source *l, float **out, td_error *err) {
    const td_qwen35_source *s = l->s;
    uint32_t dim = td_qwen35_conv_dim(s->c), kernel = s->c->kernel;
    const char *name = name_of(l, "linear_attn.conv1d.weight");
    const uint64_t dims[2][3] = {{dim, kernel, 1}, {dim, 1, kernel}};
    float *w;
    TD_TRY(td_checkpoint_array(s->ck, name, 3, dims[s->raw], &w, err));
    float *turned = td_malloc_aligned((size_t)dim * kernel * sizeof *turned);
    for (uint32_t c = 0; c < dim && turned; c++)
        for (uint32_t j = 0; j < kernel; j++)
            turned[(size_t)j * dim + c] = w[(size_t)c * kernel + j];
    td_free_aligned(w);
    *out = turned;
    s->tally->n_params += (uint64_t)dim * kernel;
    s->tally->heap_bytes += (uint64_t)dim * kernel * sizeof(float);
    return turned ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for tensor %s", name);
}

/* ---- mixers ---- */

static td_status load_attention(td_qwen35_layer *w, layer_source *l, td_error *err) {
    const td_qwen35_config *c = l->s->c;
    uint32_t d = c->n_embd, q = c->n_heads * c->head_dim, kv = c->n_kv_heads * c->head_dim;
    TD_TRY(matrix(l, "self_attn.q_proj", 2 * q, d, &w->q, err));
    TD_TRY(matrix(l, "self_attn.k_proj", kv, d, &w->k, err));
    TD_TRY(matrix(l, "self_attn.v_proj", kv, d, &w->v, err));
    TD_TRY(matrix(l, "self_attn.o_proj", d, q, &w->o, err));
    TD_TRY(norm(l, "self_attn.q_norm.weight", c->head_dim, &w->q_norm, err));
    return norm(l, "self_attn.k_norm.weight", c->head_dim, &w->k_norm, err);
}

/* Rates of decay from A_log, or from the -exp(A_log) that GGUF files hold; they must be finite and above 0. */
static td_status make_rates(const layer_source *l, float *rate, td_error *err) {
    const td_qwen35_config *c = l->s->c;
    for (uint32_t j = 0; j < c->n_v_heads; j++) {
        rate[j] = c->gguf ? -rate[j] : (float)exp((double)rate[j]);
        if (c->gguf && !(rate[j] >= 0))
            return td_fail_at(err, TD_E_NUMERIC, j, "tensor %s: entry %u is %g, expected a number below 0", l->name, j,
                              (double)-rate[j]);
        if (!isfinite(rate[j]))
            return td_fail_at(err, TD_E_NUMERIC, j, "tensor %s: exp of entry %u is not finite", l->name, j);
    }
    return TD_OK;
}

static td_status load_delta(td_qwen35_layer *w, layer_source *l, td_error *err) {
    const td_qwen35_config *c = l->s->c;
    uint32_t d = c->n_embd, values = c->n_v_heads * c->v_dim;
    TD_TRY(matrix(l, "linear_attn.in_proj_qkv", td_qwen35_conv_dim(c), d, &w->qkv, err));
    TD_TRY(matrix(l, "linear_attn.in_proj_z", values, d, &w->z, err));
    TD_TRY(matrix(l, "linear_attn.in_proj_a", c->n_v_heads, d, &w->a, err));
    TD_TRY(matrix(l, "linear_attn.in_proj_b", c->n_v_heads, d, &w->b, err));
    TD_TRY(matrix(l, "linear_attn.out_proj", d, values, &w->out, err));
    TD_TRY(load_conv(l, &w->conv, err));
    TD_TRY(vector(l, "linear_attn.dt_bias", c->n_v_heads, &w->dt_bias, err));
    TD_TRY(vector(l, "linear_attn.norm.weight", c->v_dim, &w->delta_norm, err));
    TD_TRY(vector(l, c->gguf ? "linear_attn.A" : "linear_attn.A_log", c->n_v_heads, &w->rate, err));
    return make_rates(l, w->rate, err);
}

/* ---- experts ---- */

typedef struct stack_part {
    const uint8_t *at; /* of the first expert */
    size_t bytes;      /* of one expert */
} stack_part;

static void parts_of(const td_matrix *m, stack_part part[3]) {
    size_t scales = m->scale_row_bytes * m->n_out;
    part[0] = (stack_part){m->data, m->row_bytes * m->n_out};
    part[1] = (stack_part){m->scales, m->scales ? scales : 0};
    part[2] = (stack_part){m->biases, m->biases ? scales : 0};
}

static bool alike(const td_matrix *a, const td_matrix *b) {
    return a->format == b->format && a->bits == b->bits && a->group == b->group && a->scale_type == b->scale_type;
}

/* Expert e of "<prefix>mlp.experts.<e>.<proj>". */
static td_status expert_view(layer_source *l, uint32_t e, const char *proj, uint32_t n_out, uint32_t n_in,
                             td_matrix *out, td_error *err) {
    char rest[64];
    snprintf(rest, sizeof rest, "mlp.experts.%u.%s", e, proj);
    return td_checkpoint_matrix(l->s->ck, name_of(l, rest), 0, n_out, n_in, out, err);
}

/* Fills a block with every expert's parts, one kind after the other, each beginning on 64 bytes. */
static td_status copy_experts(layer_source *l, const char *proj, td_matrix *stack, td_error *err) {
    stack_part part[3];
    size_t offset[4] = {0};
    parts_of(stack, part);
    for (int i = 0; i < 3; i++)
        offset[i + 1] = offset[i] + (part[i].bytes * stack->n_stack + 63) / 64 * 64;
    uint8_t *block = td_malloc_aligned(offset[3]);
    if (!block)
        return td_fail(err, TD_E_NOMEM, "out of memory for %u experts of %s (%zu bytes)", stack->n_stack, l->name,
                       offset[3]);
    for (uint32_t e = 0; e < stack->n_stack; e++) {
        td_matrix one;
        td_status st = expert_view(l, e, proj, stack->n_out, stack->n_in, &one, err);
        if (st != TD_OK) {
            td_free_aligned(block);
            return st;
        }
        stack_part from[3];
        parts_of(&one, from);
        for (int i = 0; i < 3; i++)
            if (part[i].bytes)
                memcpy(block + offset[i] + part[i].bytes * e, from[i].at, part[i].bytes);
    }
    stack->data = block;
    stack->scales = part[1].bytes ? block + offset[1] : NULL;
    stack->biases = part[2].bytes ? block + offset[2] : NULL;
    stack->owned = block;
    return TD_OK;
}

static td_status stack_experts(layer_source *l, const char *proj, uint32_t n_out, uint32_t n_in, td_matrix *out,
                               td_error *err) {
    uint32_t n = l->s->c->n_experts;
    td_matrix stack;
    stack_part first[3];
    bool contiguous = true;
    TD_TRY(expert_view(l, 0, proj, n_out, n_in, &stack, err));
    parts_of(&stack, first);
    for (uint32_t e = 1; e < n; e++) {
        td_matrix one;
        stack_part part[3];
        TD_TRY(expert_view(l, e, proj, n_out, n_in, &one, err));
        if (!alike(&one, &stack))
            return td_fail(err, TD_E_MODEL, "%s: module %s is in another format than expert 0's",
                           td_checkpoint_path(l->s->ck), l->name);
        parts_of(&one, part);
        for (int i = 0; i < 3; i++)
            contiguous = contiguous && part[i].bytes == first[i].bytes &&
                         (!part[i].bytes || part[i].at == first[i].at + part[i].bytes * e);
        if (part[1].bytes != first[1].bytes || part[2].bytes != first[2].bytes)
            return td_fail(err, TD_E_MODEL, "%s: module %s has not the scales and biases that expert 0 has",
                           td_checkpoint_path(l->s->ck), l->name);
    }
    stack.n_stack = n;
    if (!contiguous)
        TD_TRY(copy_experts(l, proj, &stack, err));
    *out = stack;
    count_matrix(l->s->tally, out);
    return TD_OK;
}

static td_status stack(layer_source *l, const char *rest, uint32_t n_out, uint32_t n_in, td_matrix *out,
                       td_error *err) {
    return load_matrix(l->s, name_of(l, rest), l->s->c->n_experts, n_out, n_in, out, err);
}

static td_status load_experts(td_qwen35_layer *w, layer_source *l, td_error *err) {
    const td_qwen35_config *c = l->s->c;
    uint32_t d = c->n_embd, ff = c->n_ff_expert;
    uint64_t before = l->s->tally->row_bytes;
    if (td_checkpoint_has_matrix(l->s->ck, name_of(l, "mlp.experts.gate_up_proj"))) {
        TD_TRY(stack(l, "mlp.experts.gate_up_proj", 2 * ff, d, &w->expert_gate, err));
        TD_TRY(stack(l, c->gguf ? "mlp.switch_mlp.down_proj" : "mlp.experts.down_proj", d, ff, &w->expert_down, err));
    } else if (td_checkpoint_has_matrix(l->s->ck, name_of(l, "mlp.switch_mlp.gate_proj"))) {
        TD_TRY(stack(l, "mlp.switch_mlp.gate_proj", ff, d, &w->expert_gate, err));
        TD_TRY(stack(l, "mlp.switch_mlp.up_proj", ff, d, &w->expert_up, err));
        TD_TRY(stack(l, "mlp.switch_mlp.down_proj", d, ff, &w->expert_down, err));
    } else {
        TD_TRY(stack_experts(l, "gate_proj", ff, d, &w->expert_gate, err));
        TD_TRY(stack_experts(l, "up_proj", ff, d, &w->expert_up, err));
        TD_TRY(stack_experts(l, "down_proj", d, ff, &w->expert_down, err));
    }
    uint64_t *read = &l->s->tally->row_bytes; /* a row reads only its experts */
    *read = before + (*read - before) / c->n_experts * c->n_experts_used;
    TD_TRY(matrix(l, "mlp.gate", c->n_experts, d, &w->router, err));
    return matrix(l, "mlp.shared_expert_gate", 1, d, &w->shared_gate, err);
}

static td_status load_ffn(td_qwen35_layer *w, layer_source *l, td_error *err) {
    const td_qwen35_config *c = l->s->c;
    bool moe = c->n_experts > 0;
    uint32_t d = c->n_embd;
    TD_TRY(matrix(l, moe ? "mlp.shared_expert.gate_proj" : "mlp.gate_proj", c->n_ff, d, &w->gate, err));
    TD_TRY(matrix(l, moe ? "mlp.shared_expert.up_proj" : "mlp.up_proj", c->n_ff, d, &w->up, err));
    TD_TRY(matrix(l, moe ? "mlp.shared_expert.down_proj" : "mlp.down_proj", d, c->n_ff, &w->down, err));
    return moe ? load_experts(w, l, err) : TD_OK;
}

/* ---- a layer ---- */

td_status td_qwen35_layer_load(td_qwen35_layer *w, const td_qwen35_source *s, const char *prefix, bool full,
                               td_error *err) {
    layer_source l = {.s = s, .prefix = prefix};
    uint32_t d = s->c->n_embd;
    TD_TRY(norm(&l, "input_layernorm.weight", d, &w->attn_norm, err));
    TD_TRY(norm(&l, "post_attention_layernorm.weight", d, &w->ff_norm, err));
    TD_TRY(full ? load_attention(w, &l, err) : load_delta(w, &l, err));
    return load_ffn(w, &l, err);
}

#define LAYER_MATRICES 17

static void layer_matrices(td_qwen35_layer *w, td_matrix *m[LAYER_MATRICES]) {
    td_matrix *const all[LAYER_MATRICES] = {&w->q,         &w->k,          &w->v,      &w->o,           &w->qkv,
                                            &w->z,         &w->a,          &w->b,      &w->out,         &w->gate,
                                            &w->up,        &w->down,       &w->router, &w->shared_gate, &w->expert_gate,
                                            &w->expert_up, &w->expert_down};
    memcpy(m, all, sizeof all);
}

td_status td_qwen35_layer_adopt(td_qwen35_layer *w, td_backend *be, td_loading *loading, td_error *err) {
    td_matrix *m[LAYER_MATRICES];
    layer_matrices(w, m);
    return td_model_load_all(be, m, LAYER_MATRICES, loading, err);
}

void td_qwen35_layer_free(td_qwen35_layer *w) {
    float *const vectors[] = {w->attn_norm, w->ff_norm, w->q_norm,  w->k_norm,
                              w->conv,      w->rate,    w->dt_bias, w->delta_norm};
    for (size_t i = 0; i < sizeof vectors / sizeof vectors[0]; i++)
        td_free_aligned(vectors[i]);
    td_matrix *m[LAYER_MATRICES];
    layer_matrices(w, m);
    for (size_t i = 0; i < LAYER_MATRICES; i++)
        td_matrix_free(m[i]);
    *w = (td_qwen35_layer){0};
}
