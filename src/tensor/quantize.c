/* quantize.c - matrices with a block of their own: quantised from any other matrix, or copied.
 *
 * Quantising decodes one row of the source at a time into a row of floats, so its scratch is one row whatever the
 * source is, and then works group by group. The rule is MLX's (its CPU form), so that a drafter quantised here equals
 * one quantised there, bit for bit:
 *
 *   step = max((hi - lo) / n, 1e-7), n = 2^bits - 1, positive when |lo| > |hi|, else negative
 *   edge = the end of larger magnitude (hi when tied);  q0 = round(edge / step)
 *   q0 != 0: step = edge / q0, offset = edge;  else offset = 0
 *   q    = clamp(round((w - offset) / step), 0, n), with step and offset still in f32
 *
 * round is to nearest, ties to even. The extreme is code 0 and comes back exactly, and since q0 is whole, a weight of
 * zero lies on the grid. The division stays a division: times a reciprocal is faster and not the same number.
 *
 * Speed: minimum, maximum and codes are taken in lanes of eight floats, which the compiler turns into vectors without
 * being allowed to reorder anything that matters. */
#include "tensor/matrix.h"

#include <assert.h>
#include <math.h>

#include "base/alloc.h"

#define LANES 8
#define GROUP_MAX 128
#define STEP_MIN 1e-7f

/* 1.5 * 2^23: a float of that size has steps of one, so adding it to x in [0, 2^22) rounds x, ties to even. */
#define ROUNDER 12582912.0f

typedef struct range {
    float lo, hi;
    bool finite;
} range;

static range range_of(const float *w, unsigned n) {
    float lo[LANES], hi[LANES];
    uint32_t top[LANES] = {0}; /* the largest magnitude as bits: an infinity or NaN is above every number */
    for (unsigned k = 0; k < LANES; k++)
        lo[k] = hi[k] = w[k];
    for (unsigned i = 0; i < n; i += LANES)
        for (unsigned k = 0; k < LANES; k++) {
            float x = w[i + k];
            uint32_t u;
            memcpy(&u, &x, 4);
            u &= 0x7FFFFFFF;
            lo[k] = x < lo[k] ? x : lo[k];
            hi[k] = x > hi[k] ? x : hi[k];
            top[k] = u > top[k] ? u : top[k];
        }
    range r = {lo[0], hi[0], true};
    for (unsigned k = 0; k < LANES; k++) {
        r.lo = lo[k] < r.lo ? lo[k] : r.lo;
        r.hi = hi[k] > r.hi ? hi[k] : r.hi;
        r.finite = r.finite && top[k] < 0x7F800000;
    }
    return r;
}

typedef struct grid {
    float step, offset; /* w = step*q + offset */
} grid;

static grid grid_of(range r, unsigned n_max) {
    bool negative = fabsf(r.lo) > fabsf(r.hi);
    float step = fmaxf((r.hi - r.lo) / (float)n_max, STEP_MIN);
    step = negative ? step : -step;
    float edge = negative ? r.lo : r.hi;
    float q0 = rintf(edge / step);
    if (q0 != 0)
        return (grid){edge / q0, edge};
    return (grid){step, 0};
}

/* Clamping first is the same, for the bounds are whole numbers, and makes the rounding trick and the conversion to an
 * integer safe. A NaN (0/0: a constant group so large that step underflows) becomes code 0, its exact value. */
static void codes_of(uint8_t *q, const float *w, unsigned n, grid g, unsigned n_max) {
    const float top = (float)n_max;
    for (unsigned i = 0; i < n; i++) {
        float x = (w[i] - g.offset) / g.step;
        x = x > 0 ? x : 0;
        x = x < top ? x : top;
        q[i] = (uint8_t)(int32_t)((x + ROUNDER) - ROUNDER);
    }
}

/* Eight codes of `bits` are `bits` bytes, the first code lowest. Inlined with a constant width. */
static inline __attribute__((always_inline)) void pack(uint8_t *p, const uint8_t *q, unsigned n, unsigned bits) {
    for (unsigned i = 0; i < n; i += 8, p += bits) {
        uint64_t word = 0;
        for (unsigned k = 0; k < 8; k++)
            word |= (uint64_t)q[i + k] << (bits * k);
        for (unsigned k = 0; k < bits; k++)
            p[k] = (uint8_t)(word >> (8 * k));
    }
}

static void pack_codes(uint8_t *p, const uint8_t *q, unsigned n, unsigned bits) {
    switch (bits) {
    case 2:
        pack(p, q, n, 2);
        return;
    case 3:
        pack(p, q, n, 3);
        return;
    case 4:
        pack(p, q, n, 4);
        return;
    case 5:
        pack(p, q, n, 5);
        return;
    case 6:
        pack(p, q, n, 6);
        return;
    default:
        memcpy(p, q, n);
        return;
    }
}

/* Stores x as F16, BF16 or F32; false when it does not fit (becomes infinite). */
static bool store_scale(uint8_t *p, td_dtype type, float x) {
    float back = x;
    if (type == TD_DTYPE_F32) {
        memcpy(p, &x, 4);
    } else {
        uint16_t h = type == TD_DTYPE_F16 ? td_f32_to_f16(x) : td_f32_to_bf16(x);
        memcpy(p, &h, 2);
        back = type == TD_DTYPE_F16 ? td_f16_to_f32(h) : td_bf16_to_f32(h);
    }
    return isfinite(back);
}

/* The writable parts of a block under construction. */
typedef struct parts {
    uint8_t *data, *scales, *biases;
} parts;

static size_t round_up_64(size_t n) {
    return (n + 63) / 64 * 64;
}

/* One block for data, scales and biases, each part aligned to 64. `m` has been laid out. */
static td_status allocate_block(td_matrix *m, parts *out, td_error *err) {
    size_t rows = (size_t)m->n_stack * m->n_out;
    size_t data_bytes = round_up_64(rows * m->row_bytes);
    size_t scale_bytes = round_up_64(rows * m->scale_row_bytes);
    bool affine = m->format == TD_FORMAT_AFFINE;
    size_t total = data_bytes + scale_bytes * (affine ? 2 : 1);
    uint8_t *block = td_malloc_aligned(total);
    if (!block)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory for a matrix of %zu bytes", m->name ? m->name : "matrix",
                       total);
    *out = (parts){.data = block,
                   .scales = m->scale_row_bytes ? block + data_bytes : NULL,
                   .biases = affine ? block + data_bytes + scale_bytes : NULL};
    m->owned = block;
    m->data = out->data;
    m->scales = out->scales;
    m->biases = out->biases;
    return TD_OK;
}

static td_status quantize_row(const td_matrix *m, parts to, size_t row, const float *w, td_error *err) {
    const unsigned n_max = (1u << m->bits) - 1;
    const size_t scale_size = td_dtype_bits(m->scale_type) / 8;
    uint8_t *data = to.data + row * m->row_bytes;
    uint8_t *scale = to.scales + row * m->scale_row_bytes;
    uint8_t *bias = to.biases + row * m->scale_row_bytes;
    for (uint32_t i = 0; i < m->n_in; i += m->group) {
        range r = range_of(w + i, m->group);
        if (!r.finite)
            return td_fail_at(err, TD_E_NUMERIC, (int64_t)row,
                              "%s: row %zu, inputs %u to %u hold a weight that is not finite; it cannot be quantised",
                              m->name, row, i, i + m->group - 1);
        grid g = grid_of(r, n_max);
        bool fits = store_scale(scale, m->scale_type, g.step);
        fits = store_scale(bias, m->scale_type, g.offset) && fits;
        if (!fits)
            return td_fail_at(err, TD_E_NUMERIC, (int64_t)row,
                              "%s: row %zu, inputs %u to %u: scale %g and bias %g do not fit %s", m->name, row, i,
                              i + m->group - 1, (double)g.step, (double)g.offset, td_dtype_name(m->scale_type));
        uint8_t q[GROUP_MAX];
        codes_of(q, w + i, m->group, g, n_max);
        pack_codes(data, q, m->group, m->bits);
        data += (size_t)m->group * m->bits / 8;
        scale += scale_size;
        bias += scale_size;
    }
    return TD_OK;
}

td_status td_matrix_quantize(td_matrix *out, const td_matrix *src, unsigned bits, unsigned group, td_dtype scale_type,
                             td_error *err) {
    assert(out != src);
    *out = (td_matrix){0};
    td_matrix m = {.name = src->name ? src->name : "matrix"};
    float *w = NULL;
    parts to;
    td_status st =
        td_matrix_layout(&m, TD_FORMAT_AFFINE, bits, group, scale_type, src->n_stack, src->n_out, src->n_in, err);
    if (st != TD_OK)
        goto fail;
    w = td_malloc_aligned((size_t)m.n_in * sizeof *w);
    if (!w) {
        st = td_fail(err, TD_E_NOMEM, "%s: out of memory for a row of %u floats", m.name, m.n_in);
        goto fail;
    }
    st = allocate_block(&m, &to, err);
    if (st != TD_OK)
        goto fail;
    for (size_t row = 0, rows = (size_t)m.n_stack * m.n_out; row < rows; row++) {
        td_matrix_row_f32(src, row, w);
        st = quantize_row(&m, to, row, w, err);
        if (st != TD_OK)
            goto fail;
    }
    td_free_aligned(w);
    m.name = src->name;
    *out = m;
    return TD_OK;
fail:
    td_free_aligned(w);
    td_matrix_free(&m);
    return st;
}

/* A source whose rows are further apart than its own bytes is copied row by row, into a tight block. */
static void copy_rows(uint8_t *dst, size_t dst_stride, const uint8_t *src, size_t src_stride, size_t rows) {
    if (!src)
        return;
    if (dst_stride == src_stride) {
        memcpy(dst, src, rows * src_stride);
        return;
    }
    for (size_t i = 0; i < rows; i++)
        memcpy(dst + i * dst_stride, src + i * src_stride, dst_stride);
}

td_status td_matrix_copy(td_matrix *out, const td_matrix *src, td_error *err) {
    assert(out != src);
    *out = (td_matrix){0};
    td_matrix m = {.name = src->name};
    parts to;
    TD_TRY(td_matrix_layout(&m, src->format, src->bits, src->group, src->scale_type, src->n_stack, src->n_out,
                            src->n_in, err));
    TD_TRY(allocate_block(&m, &to, err));
    size_t rows = (size_t)m.n_stack * m.n_out;
    copy_rows(to.data, m.row_bytes, src->data, src->row_bytes, rows);
    copy_rows(to.scales, m.scale_row_bytes, src->scales, src->scale_row_bytes, rows);
    copy_rows(to.biases, m.scale_row_bytes, src->biases, src->scale_row_bytes, rows);
    *out = m;
    return TD_OK;
}

void td_matrix_free(td_matrix *m) {
    if (!m)
        return;
    td_free_aligned(m->owned);
    td_free_aligned(m->packed);
    *m = (td_matrix){0};
}
