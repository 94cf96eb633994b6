/* ref_delta.c - the reference of the operations with recurrent memory: convolution and gated delta rule.
 *
 * Sums in double; what is kept from row to row (the state, and the alpha, k and u that make it) is rounded to f32 as it
 * is made, so a row that is repeated from the log meets the very numbers that it met the first time. Columns of S do
 * not see each other: the state is walked column by column, and a column with its tentative continuation is a local. */
#include "backend/ref/ref_delta.h"

#include <math.h>
#include <string.h>

static double sigmoid(double x) {
    return 1 / (1 + exp(-x));
}

void ref_add_gated_rows(td_backend *be, float *y, const float *x, const float *g, uint32_t n, uint32_t dim) {
    (void)be;
    for (uint32_t r = 0; r < n; r++)
        for (uint32_t c = 0; c < dim; c++, x++, y++)
            *y = (float)(*y + sigmoid(g[r]) * *x);
}

static float *floats_at(uint8_t *state, size_t offset) {
    return (float *)(void *)(state + offset);
}

static uint32_t committed_rows(const td_memory *m, uint32_t seq) {
    return m->n_commit ? m->n_commit[seq] : 0;
}

/* ---- convolution ---- */

/* Row t - back of a sequence whose rows begin at x: before them lie the `width` rows of the window. */
static const float *row_before(const float *window, const float *x, uint32_t dim, uint32_t width, uint32_t t,
                               uint32_t back) {
    return t >= back ? x + (size_t)(t - back) * dim : window + ((size_t)width + t - back) * dim;
}

/* to <- the last `width` rows of the window followed by n rows of x; `to` may be the window. */
static void slide(float *to, const float *window, const float *x, uint32_t dim, uint32_t width, uint32_t n) {
    for (uint32_t i = 0; i < width; i++) {
        const float *from = i + n < width ? window + (size_t)(i + n) * dim : x + (size_t)(i + n - width) * dim;
        memmove(to + (size_t)i * dim, from, dim * sizeof *to);
    }
}

static void conv_sequence(const td_conv *c, uint32_t seq) {
    const td_memory *m = c->memory;
    const uint32_t first = m->first_row[seq], n = m->first_row[seq + 1] - first, width = c->kernel - 1;
    const float *x = c->x + (size_t)first * c->dim;
    float *window = floats_at(m->state[seq], m->kept), *log = floats_at(m->state[seq], m->log);
    slide(window, window, log, c->dim, width, committed_rows(m, seq));
    for (uint32_t t = 0; t < n; t++)
        for (uint32_t ch = 0; ch < c->dim; ch++) {
            double sum = 0;
            for (uint32_t j = 0; j < c->kernel; j++)
                sum += (double)c->w[(size_t)j * c->dim + ch] * row_before(window, x, c->dim, width, t, width - j)[ch];
            c->out[((size_t)first + t) * c->dim + ch] = (float)(sum * sigmoid(sum));
        }
    for (uint32_t i = 0; i < m->n_marks; i++)
        if (m->mark[i].seq == seq)
            slide(floats_at(m->mark[i].to, m->kept), window, x, c->dim, width, m->mark[i].n_rows);
    uint32_t sure = m->n_sure[seq];
    slide(window, window, x, c->dim, width, sure);
    memcpy(log, x + (size_t)sure * c->dim, (size_t)(n - sure) * c->dim * sizeof *log);
}

void ref_conv(td_backend *be, const td_conv *c) {
    (void)be;
    for (uint32_t seq = 0; seq < c->memory->n_seq; seq++)
        conv_sequence(c, seq);
}

/* ---- delta rule ---- */

/* What a row means to a value head. */
typedef struct head_row {
    float alpha, beta;
    float k[TD_DELTA_MAX_DIM], q[TD_DELTA_MAX_DIM];
    double qk;
    const float *v;
} head_row;

static void normalise(float *to, const float *from, uint32_t dim, double scale) {
    double sum = 0;
    for (uint32_t i = 0; i < dim; i++)
        sum += (double)from[i] * from[i];
    double f = scale / sqrt(sum + 1e-6);
    for (uint32_t i = 0; i < dim; i++)
        to[i] = (float)(from[i] * f);
}

static void read_row(const td_delta *d, uint32_t row, uint32_t head, head_row *r) {
    const uint32_t kd = d->k_dim, keys = d->n_k_heads * kd, k_head = td_delta_key_head(d, head);
    const float *qkv = d->qkv + (size_t)row * (2 * keys + d->n_v_heads * d->v_dim);
    normalise(r->q, qkv + (size_t)k_head * kd, kd, 1 / sqrt((double)kd));
    normalise(r->k, qkv + keys + (size_t)k_head * kd, kd, 1);
    r->v = qkv + 2 * keys + (size_t)head * d->v_dim;
    r->qk = 0;
    for (uint32_t i = 0; i < kd; i++)
        r->qk += (double)r->q[i] * r->k[i];
    double x = (double)d->a[(size_t)row * d->n_v_heads + head] + d->dt_bias[head];
    double softplus = x > 20 ? x : log1p(exp(x));
    r->alpha = (float)exp(-(double)d->rate[head] * softplus);
    r->beta = (float)sigmoid(d->b[(size_t)row * d->n_v_heads + head]);
}

/* S[:, j] <- alpha S[:, j] + k u: the one operation that makes a state, first time and repeated. */
static void update(float *s, size_t stride, float alpha, const float *k, float u, uint32_t kd) {
    for (uint32_t i = 0; i < kd; i++)
        s[i * stride] = (float)((double)alpha * s[i * stride] + (double)k[i] * u);
}

/* One row through one column; returns the output and leaves u. */
static float step(float *s, size_t stride, const head_row *r, float v, uint32_t kd, float *u) {
    double p = 0, o = 0;
    for (uint32_t i = 0; i < kd; i++) {
        p += (double)r->k[i] * s[i * stride];
        o += (double)r->q[i] * s[i * stride];
    }
    *u = (float)(r->beta * (v - r->alpha * p));
    update(s, stride, r->alpha, r->k, *u, kd);
    return (float)(r->alpha * o + r->qk * *u);
}

static void repeat(float *s, const float *log, uint32_t n, uint32_t kd, uint32_t vd) {
    for (uint32_t t = 0; t < n; t++, log += 1 + kd + vd)
        for (uint32_t j = 0; j < vd; j++)
            update(s + j, vd, log[0], log + 1, log[1 + kd + j], kd);
}

static float *out_at(const td_delta *d, uint32_t row, uint32_t head) {
    return d->out + ((size_t)row * d->n_v_heads + head) * d->v_dim;
}

static void sure_row(const td_delta *d, uint32_t row, uint32_t head, float *s) {
    head_row r;
    read_row(d, row, head, &r);
    for (uint32_t j = 0; j < d->v_dim; j++) {
        float u;
        out_at(d, row, head)[j] = step(s + j, d->v_dim, &r, r.v[j], d->k_dim, &u);
    }
}

/* The rows from `row` to `end` continue S without changing it. */
static void tentative_rows(const td_delta *d, uint32_t row, uint32_t end, uint32_t head, const float *s, float *log) {
    const uint32_t kd = d->k_dim, vd = d->v_dim;
    for (uint32_t j = 0; j < vd; j++) {
        float column[TD_DELTA_MAX_DIM], *l = log;
        for (uint32_t i = 0; i < kd; i++)
            column[i] = s[(size_t)i * vd + j];
        for (uint32_t t = row; t < end; t++, l += 1 + kd + vd) {
            head_row r;
            read_row(d, t, head, &r);
            out_at(d, t, head)[j] = step(column, 1, &r, r.v[j], kd, &l[1 + kd + j]);
            l[0] = r.alpha;
            memcpy(l + 1, r.k, kd * sizeof *l);
        }
    }
}

static void delta_head(const td_delta *d, uint32_t seq, uint32_t head) {
    const td_memory *m = d->memory;
    const uint32_t first = m->first_row[seq], end = m->first_row[seq + 1], sure = m->n_sure[seq];
    const size_t size = (size_t)d->k_dim * d->v_dim;
    float *s = floats_at(m->state[seq], m->kept) + head * size;
    float *log = floats_at(m->state[seq], m->log) + head * td_delta_log(1, d->k_dim, d->v_dim, m->max_tentative);
    repeat(s, log, committed_rows(m, seq), d->k_dim, d->v_dim);
    for (uint32_t t = 0; t < sure; t++) {
        sure_row(d, first + t, head, s);
        for (uint32_t i = 0; i < m->n_marks; i++)
            if (m->mark[i].seq == seq && m->mark[i].n_rows == t + 1)
                memcpy(floats_at(m->mark[i].to, m->kept) + head * size, s, size * sizeof *s);
    }
    tentative_rows(d, first + sure, end, head, s, log);
}

void ref_delta(td_backend *be, const td_delta *d) {
    (void)be;
    for (uint32_t seq = 0; seq < d->memory->n_seq; seq++)
        for (uint32_t head = 0; head < d->n_v_heads; head++)
            delta_head(d, seq, head);
}
