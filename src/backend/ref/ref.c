/* ref.c - the reference backend: every operation as its definition reads, one thread, sums in double.
 *
 * It is what the tuned backends are tested against and what a reader opens first. It is never tuned: a weight row is
 * decoded with td_matrix_row_f32 and then used for all rows, attention walks its keys twice (once for the largest
 * score, once for the sums), and nothing is shared between the two. Intermediate activations are rounded to f32 where
 * the operation table hands them from one operation to the next.
 *
 * Row-invariance is free here: each output element is one loop in index order. */
#include "backend/backend.h"

#include <math.h>
#include <string.h>

#include "backend/ref/ref_delta.h"
#include "base/alloc.h"

typedef struct ref_backend {
    td_backend base;
    td_error error; /* the first since the last wait; status TD_OK: none */
    float *weights; /* [n_in] one decoded row */
    float *hidden;  /* [2 * n_out] one row's gate and up products inside an expert */
    double *sums;   /* [max(n_out, head_dim)] */
    float *key;     /* [head_dim] one decoded K or V row */
    uint32_t n_in, n_out, head_dim;
} ref_backend;

static ref_backend *self(td_backend *be) {
    return (ref_backend *)be;
}

/* False, with the first error kept, when `need` exceeds what was reserved. */
static bool fits(ref_backend *r, const char *what, uint32_t need, uint32_t have) {
    if (need <= have)
        return true;
    if (r->error.status == TD_OK)
        td_fail(&r->error, TD_E_LIMIT, "reference backend: %s of %u, reserved for %u", what, need, have);
    return false;
}

static void ref_close(td_backend *be) {
    ref_backend *r = self(be);
    td_free(r->weights);
    td_free(r->hidden);
    td_free(r->sums);
    td_free(r->key);
    td_free(r);
}

static void *ref_alloc(td_backend *be, size_t bytes) {
    (void)be;
    return td_malloc_aligned(bytes);
}

static void ref_free(td_backend *be, void *p) {
    (void)be;
    td_free_aligned(p);
}

static uint32_t larger(uint32_t a, uint32_t b) {
    return a > b ? a : b;
}

/* Grows *p to n elements; keeps the old block on failure. */
static bool grow(void **p, size_t n, size_t size) {
    void *q = td_realloc(*p, n, size);
    if (q)
        *p = q;
    return q != NULL;
}

static td_status ref_reserve(td_backend *be, uint32_t n_rows, uint32_t n_in, uint32_t n_out, uint32_t n_heads,
                             uint32_t head_dim, td_error *err) {
    ref_backend *r = self(be);
    (void)n_rows;
    (void)n_heads;
    n_in = larger(n_in, r->n_in);
    n_out = larger(n_out, r->n_out);
    head_dim = larger(head_dim, r->head_dim);
    if (!grow((void **)&r->weights, n_in, sizeof *r->weights) ||
        !grow((void **)&r->hidden, (size_t)2 * n_out, sizeof *r->hidden) ||
        !grow((void **)&r->sums, larger(n_out, head_dim), sizeof *r->sums) ||
        !grow((void **)&r->key, head_dim, sizeof *r->key))
        return td_fail(err, TD_E_NOMEM, "reference backend: no memory for scratch of %u inputs and %u outputs", n_in,
                       n_out);
    r->n_in = n_in;
    r->n_out = n_out;
    r->head_dim = head_dim;
    return TD_OK;
}

static td_status ref_wait(td_backend *be, td_error *err) {
    ref_backend *r = self(be);
    td_status st = r->error.status;
    if (st != TD_OK && err)
        *err = r->error;
    r->error.status = TD_OK;
    return st;
}

/* ---- rows and elements ---- */

static void ref_embed(td_backend *be, float *y, const td_matrix *w, const int32_t *id, uint32_t n, float scale) {
    ref_backend *r = self(be);
    for (uint32_t i = 0; i < n; i++, y += w->n_in) {
        if (id[i] < 0 || (uint32_t)id[i] >= w->n_out) {
            if (r->error.status == TD_OK)
                td_fail_at(&r->error, TD_E_ARG, i, "embed: token %d is outside the table's %u rows", id[i], w->n_out);
            memset(y, 0, w->n_in * sizeof *y);
            continue;
        }
        td_matrix_row_f32(w, (size_t)id[i], y);
        for (uint32_t c = 0; c < w->n_in; c++)
            y[c] *= scale;
    }
}

static double inverse_rms(const float *x, uint32_t dim, float eps) {
    double sum = 0;
    for (uint32_t c = 0; c < dim; c++)
        sum += (double)x[c] * x[c];
    return 1.0 / sqrt(sum / dim + eps);
}

static void ref_rmsnorm(td_backend *be, float *y, const float *x, const float *w, uint32_t n, uint32_t dim, float eps) {
    (void)be;
    for (uint32_t i = 0; i < n; i++, x += dim, y += dim) {
        double k = inverse_rms(x, dim, eps);
        for (uint32_t c = 0; c < dim; c++)
            y[c] = (float)(x[c] * k * (w ? w[c] : 1.0));
    }
}

static void ref_add_rmsnorm(td_backend *be, float *y, const float *x, const float *w, uint32_t n, uint32_t dim,
                            float eps, float scale) {
    (void)be;
    for (uint32_t i = 0; i < n; i++, x += dim, y += dim) {
        double k = inverse_rms(x, dim, eps);
        for (uint32_t c = 0; c < dim; c++)
            y[c] = (float)((y[c] + x[c] * k * (w ? w[c] : 1.0)) * scale);
    }
}

static double activation(double a, td_act act) {
    switch (act) {
    case TD_ACT_GELU_TANH:
        return 0.5 * a * (1 + tanh(0.79788456080286535588 * (a + 0.044715 * a * a * a))); /* sqrt(2/pi) */
    case TD_ACT_SILU:
        return a / (1 + exp(-a));
    case TD_ACT_SIGMOID:
        return 1 / (1 + exp(-a));
    }
    return 0;
}

static void ref_gated(td_backend *be, float *y, const float *a, const float *b, uint32_t n, uint32_t dim,
                      size_t y_stride, size_t a_stride, size_t b_stride, td_act act) {
    (void)be;
    for (uint32_t i = 0; i < n; i++, y += y_stride, a += a_stride, b += b_stride)
        for (uint32_t c = 0; c < dim; c++)
            y[c] = (float)(activation(a[c], act) * b[c]);
}

static void ref_add(td_backend *be, float *y, const float *a, const float *b, size_t count, float scale) {
    (void)be;
    for (size_t i = 0; i < count; i++)
        y[i] = (a[i] + b[i]) * scale;
}

static void ref_scale(td_backend *be, float *x, const float *w, uint32_t n, uint32_t dim, float scale) {
    (void)be;
    for (uint32_t i = 0; i < n; i++, x += dim)
        for (uint32_t c = 0; c < dim; c++)
            x[c] *= w ? scale * w[c] : scale;
}

static void ref_softcap(td_backend *be, float *x, size_t count, float cap) {
    (void)be;
    for (size_t i = 0; i < count; i++)
        x[i] = (float)(cap * tanh((double)x[i] / cap));
}

static void ref_gather(td_backend *be, float *y, const float *x, const int32_t *row, uint32_t n, uint32_t dim) {
    (void)be;
    for (uint32_t i = 0; i < n; i++)
        memcpy(y + (size_t)i * dim, x + (size_t)row[i] * dim, dim * sizeof *y);
}

static void ref_rope(td_backend *be, float *x, uint32_t n, uint32_t n_heads, uint32_t head_dim, const int32_t *pos,
                     const float *inv_freq, uint32_t n_rot, uint32_t pair_dist) {
    (void)be;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t h = 0; h < n_heads; h++, x += head_dim)
            for (uint32_t i = 0; i < n_rot; i++) {
                float angle = (float)pos[r] * inv_freq[i];
                double c = cos((double)angle), s = sin((double)angle);
                double a = x[i], b = x[i + pair_dist];
                x[i] = (float)(a * c - b * s);
                x[i + pair_dist] = (float)(b * c + a * s);
            }
}

/* ---- matrix products ---- */

static void ref_product(ref_backend *r, const float *x, uint32_t n, const td_matrix *w, float *y) {
    for (uint32_t o = 0; o < w->n_out; o++) {
        td_matrix_row_f32(w, o, r->weights);
        for (uint32_t i = 0; i < n; i++) {
            const float *row = x + (size_t)i * w->n_in;
            double sum = 0;
            for (uint32_t c = 0; c < w->n_in; c++)
                sum += (double)row[c] * r->weights[c];
            y[(size_t)i * w->n_out + o] = (float)sum;
        }
    }
}

static void ref_linear(td_backend *be, const float *x, uint32_t n, const td_linear_out *out, uint32_t n_mats) {
    ref_backend *r = self(be);
    if (n_mats > TD_LINEAR_MAX_MATS) {
        if (r->error.status == TD_OK)
            td_fail(&r->error, TD_E_ARG, "reference backend: %u matrices in a call, expected at most %d", n_mats,
                    TD_LINEAR_MAX_MATS);
        return;
    }
    for (uint32_t m = 0; m < n_mats; m++)
        if (fits(r, "a matrix with n_in", out[m].w->n_in, r->n_in))
            ref_product(r, x, n, out[m].w, out[m].y);
}

static void ref_rows_dot(td_backend *be, float *y, const float *x, const td_matrix *w, const int32_t *id, uint32_t n) {
    ref_backend *r = self(be);
    if (!fits(r, "a matrix with n_in", w->n_in, r->n_in))
        return;
    for (uint32_t i = 0; i < n; i++) {
        if (id[i] >= 0 && (uint32_t)id[i] < w->n_out) {
            td_matrix row = td_matrix_rows(w, (uint32_t)id[i], 1);
            ref_product(r, x, 1, &row, y + i);
        } else if (r->error.status == TD_OK) {
            td_fail_at(&r->error, TD_E_ARG, i, "rows_dot: row %d is outside the matrix's %u", id[i], w->n_out);
        }
    }
}

static void ref_route(td_backend *be, int32_t *expert, float *weight, const float *logits, uint32_t n,
                      uint32_t n_expert, uint32_t k, const float *scale) {
    (void)be;
    for (uint32_t r = 0; r < n; r++, expert += k, weight += k, logits += n_expert) {
        for (uint32_t j = 0; j < k; j++) {
            expert[j] = -1;
            for (uint32_t e = 0; e < n_expert; e++) {
                bool taken = false;
                for (uint32_t i = 0; i < j; i++)
                    taken |= expert[i] == (int32_t)e;
                if (!taken && (expert[j] < 0 || logits[e] > logits[expert[j]]))
                    expert[j] = (int32_t)e;
            }
        }
        double sum = 0;
        for (uint32_t j = 0; j < k; j++)
            sum += exp((double)logits[expert[j]] - logits[expert[0]]);
        for (uint32_t j = 0; j < k; j++)
            weight[j] =
                (float)(exp((double)logits[expert[j]] - logits[expert[0]]) / sum * (scale ? scale[expert[j]] : 1.0f));
    }
}

/* sums += weight * expert(x) for one row. */
static void ref_expert(ref_backend *r, const td_moe *m, uint32_t e, const float *x, float weight) {
    uint32_t n_ff = m->down->n_in;
    td_matrix gate = td_matrix_at(m->gate, e), down = td_matrix_at(m->down, e);
    float *hidden = r->hidden, *up_out = r->hidden + n_ff;
    ref_product(r, x, 1, &gate, hidden); /* a fused stack fills both halves */
    if (m->up) {
        td_matrix up = td_matrix_at(m->up, e);
        ref_product(r, x, 1, &up, up_out);
    }
    for (uint32_t i = 0; i < n_ff; i++)
        hidden[i] = (float)(activation(hidden[i], m->act) * up_out[i]);
    for (uint32_t o = 0; o < down.n_out; o++) {
        td_matrix_row_f32(&down, o, r->weights);
        double sum = 0;
        for (uint32_t c = 0; c < n_ff; c++)
            sum += (double)hidden[c] * r->weights[c];
        r->sums[o] += weight * (double)(float)sum;
    }
}

static void ref_moe(td_backend *be, const td_moe *m) {
    ref_backend *r = self(be);
    uint32_t n_embd = m->down->n_out;
    if (!fits(r, "experts with n_in", larger(m->gate->n_in, m->down->n_in), r->n_in) ||
        !fits(r, "experts with n_out", larger(m->gate->n_out, m->down->n_out), r->n_out))
        return;
    for (uint32_t i = 0; i < m->n; i++) {
        memset(r->sums, 0, n_embd * sizeof *r->sums);
        for (uint32_t j = 0; j < m->k; j++) {
            const int32_t *chosen = m->expert + (size_t)i * m->k, e = chosen[j];
            for (uint32_t other = 0; other < j; other++)
                if (chosen[other] == e && r->error.status == TD_OK)
                    td_fail_at(&r->error, TD_E_ARG, i, "moe: expert %d chosen twice", e);
            if (e >= 0 && (uint32_t)e < m->down->n_stack)
                ref_expert(r, m, (uint32_t)e, m->x + (size_t)i * n_embd, m->weight[(size_t)i * m->k + j]);
            else if (r->error.status == TD_OK)
                td_fail_at(&r->error, TD_E_ARG, i, "moe: expert %d of %u", e, m->down->n_stack);
        }
        for (uint32_t c = 0; c < n_embd; c++)
            m->out[(size_t)i * n_embd + c] = (float)r->sums[c];
    }
}

/* ---- logits ---- */

/* NaN and +inf above all. */
static float rank(float x) {
    return x < INFINITY ? x : INFINITY;
}

static void ref_argmax(td_backend *be, td_word *best, float *peak, const float *x, uint32_t n, uint32_t dim) {
    (void)be;
    for (uint32_t r = 0; r < n; r++, x += dim, peak += td_peaks(dim)) {
        best[r] = (td_word){x[0], 0};
        for (uint32_t i = 0; i < dim; i++) {
            if (rank(x[i]) > rank(best[r].value))
                best[r] = (td_word){x[i], (int32_t)i};
            float *p = &peak[i / TD_PEAK_BLOCK];
            *p = i % TD_PEAK_BLOCK == 0 || rank(x[i]) > *p ? rank(x[i]) : *p;
        }
    }
}

static void ref_top(td_backend *be, td_word *out, uint32_t *n_out, const float *x, const float *peak, uint32_t n,
                    uint32_t dim, const float *least) {
    (void)be, (void)peak;
    for (uint32_t r = 0; r < n; r++, x += dim, out += dim) {
        n_out[r] = 0;
        for (uint32_t i = 0; i < dim; i++)
            if (x[i] >= least[r] && x[i] > -INFINITY)
                out[n_out[r]++] = (td_word){x[i], (int32_t)i};
    }
}

static void ref_sum_exp(td_backend *be, double *sum, const float *x, uint32_t n, uint32_t dim, const float *top,
                        float t) {
    (void)be;
    for (uint32_t r = 0; r < n; r++, x += dim) {
        sum[r] = 0;
        for (uint32_t i = 0; i < dim; i++)
            sum[r] += exp((double)(x[i] / t) - (double)(top[r] / t));
    }
}

/* ---- keys and values ---- */

/* The bytes of one K or V row. */
static uint8_t *kv_row(const td_kv_layout *layout, const td_kv_layer *layer, td_kv_pages pages, size_t offset,
                       int32_t pos, uint32_t head) {
    size_t row = (size_t)head * layout->page_tokens + (uint32_t)pos % layout->page_tokens;
    return pages[(uint32_t)pos / layout->page_tokens] + offset + row * layer->head_dim * td_kv_type_bytes(layout->type);
}

static void kv_store(td_kv_type type, uint8_t *to, const float *from, uint32_t dim) {
    for (uint32_t c = 0; c < dim; c++)
        if (type == TD_KV_BF16) {
            uint16_t h = td_f32_to_bf16(from[c]);
            memcpy(to + 2 * (size_t)c, &h, 2);
        } else {
            memcpy(to + 4 * (size_t)c, &from[c], 4);
        }
}

static void kv_load(td_kv_type type, float *to, const uint8_t *from, uint32_t dim) {
    for (uint32_t c = 0; c < dim; c++)
        if (type == TD_KV_BF16) {
            uint16_t h;
            memcpy(&h, from + 2 * (size_t)c, 2);
            to[c] = td_bf16_to_f32(h);
        } else {
            memcpy(&to[c], from + 4 * (size_t)c, 4);
        }
}

static void ref_kv_write(td_backend *be, const td_kv_write *a) {
    (void)be;
    const td_kv_layer *l = a->layer;
    for (uint32_t r = 0; r < a->n; r++)
        for (uint32_t h = 0; h < l->n_kv_heads; h++) {
            size_t from = ((size_t)r * l->n_kv_heads + h) * l->head_dim;
            td_kv_pages pages = a->pages[a->row_seq[r]];
            kv_store(a->layout->type, kv_row(a->layout, l, pages, l->k_offset, a->pos[r], h), a->k + from, l->head_dim);
            kv_store(a->layout->type, kv_row(a->layout, l, pages, l->v_offset, a->pos[r], h), a->v + from, l->head_dim);
        }
}

static double score(ref_backend *r, const td_attention *a, td_kv_pages pages, const float *q, int32_t key,
                    uint32_t kv_head) {
    const td_kv_layer *l = a->layer;
    kv_load(a->layout->type, r->key, kv_row(a->layout, l, pages, l->k_offset, key, kv_head), l->head_dim);
    double sum = 0;
    for (uint32_t c = 0; c < l->head_dim; c++)
        sum += (double)q[c] * r->key[c];
    return sum * a->scale;
}

/* One row, one query head: keys [first, last]. */
static void ref_attend(ref_backend *r, const td_attention *a, td_kv_pages pages, const float *q, float *out,
                       int32_t first, int32_t last, uint32_t kv_head) {
    const td_kv_layer *l = a->layer;
    double top = -INFINITY, total = 0;
    for (int32_t k = first; k <= last; k++)
        top = fmax(top, score(r, a, pages, q, k, kv_head));
    memset(r->sums, 0, l->head_dim * sizeof *r->sums);
    for (int32_t k = first; k <= last; k++) {
        double p = exp(score(r, a, pages, q, k, kv_head) - top);
        total += p;
        kv_load(a->layout->type, r->key, kv_row(a->layout, l, pages, l->v_offset, k, kv_head), l->head_dim);
        for (uint32_t c = 0; c < l->head_dim; c++)
            r->sums[c] += p * r->key[c];
    }
    for (uint32_t c = 0; c < l->head_dim; c++)
        out[c] = total == 0 ? 0.0f : (float)(r->sums[c] / total); /* no key: zeros; a NaN goes on */
}

static void ref_attention(td_backend *be, const td_attention *a) {
    ref_backend *r = self(be);
    uint32_t head_dim = a->layer->head_dim, group = a->n_heads / a->layer->n_kv_heads;
    if (!fits(r, "attention with head_dim", head_dim, r->head_dim))
        return;
    for (uint32_t i = 0; i < a->n; i++) {
        uint32_t s = a->row_seq[i];
        int32_t last = a->pos[i] < a->n_keys[s] ? a->pos[i] : a->n_keys[s] - 1;
        int64_t first = a->window ? (int64_t)a->pos[i] - a->window + 1 : 0;
        for (uint32_t h = 0; h < a->n_heads; h++) {
            size_t at = ((size_t)i * a->n_heads + h) * head_dim;
            ref_attend(r, a, a->pages[s], a->q + at, a->out + at, first > 0 ? (int32_t)first : 0, last, h / group);
        }
    }
}

static td_status ref_adopt(td_backend *be, td_matrix *m, td_error *err) {
    (void)be, (void)m, (void)err;
    return TD_OK;
}

static const td_backend_ops ref_ops = {
    .name = "ref",
    .close = ref_close,
    .alloc = ref_alloc,
    .free = ref_free,
    .reserve = ref_reserve,
    .adopt = ref_adopt,
    .wait = ref_wait,
    .embed = ref_embed,
    .rmsnorm = ref_rmsnorm,
    .add_rmsnorm = ref_add_rmsnorm,
    .linear = ref_linear,
    .rope = ref_rope,
    .kv_write = ref_kv_write,
    .attention = ref_attention,
    .gated = ref_gated,
    .rows_dot = ref_rows_dot,
    .add = ref_add,
    .scale = ref_scale,
    .softcap = ref_softcap,
    .gather = ref_gather,
    .route = ref_route,
    .moe = ref_moe,
    .add_gated_rows = ref_add_gated_rows,
    .conv = ref_conv,
    .delta = ref_delta,
    .argmax = ref_argmax,
    .top = ref_top,
    .sum_exp = ref_sum_exp,
};

td_status td_backend_ref_open(td_backend **out, td_error *err) {
    *out = NULL;
    ref_backend *r = td_calloc(1, sizeof *r);
    if (!r)
        return td_fail(err, TD_E_NOMEM, "no memory for the reference backend");
    r->base.ops = &ref_ops;
    *out = &r->base;
    return TD_OK;
}
