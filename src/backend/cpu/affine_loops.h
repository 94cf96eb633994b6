/* affine_loops.h - quantising and the loops around a level's dot_step (see vec_affine.h). */
#ifndef TD_BACKEND_CPU_AFFINE_LOOPS_H
#define TD_BACKEND_CPU_AFFINE_LOOPS_H

#include "backend/cpu/affine_pack.h"

/* ---- activations ---- */

/* Sums of the halves. Where x is not finite the bytes are whatever the level's conversion makes of it, and their sum
 * may be the least integer there is: then only the scale matters, but what is done with the sum has to be defined. */
INLINE void sum_halves(q_block *b, const int8_t *q, int32_t sum) {
    int32_t first = 0;
    for (int i = 0; i < 16; i++)
        first += q[i];
    if (WIDE_SUMS) {
        b->less_8 = (int32_t)(0u - 8u * (uint32_t)sum);
        b->first_less_32 = -32 * first;
    } else {
        b->sum[1] = b->scale * (float)first;
        b->sum[2] = b->scale * (float)(int32_t)((uint32_t)sum - (uint32_t)first);
    }
}

INLINE void quantize_row(uint8_t *to, const float *x, uint32_t n, const td_q_form form) {
    q_block *b = (q_block *)(void *)to;
    for (uint32_t k = 0; k < n; k += 32, b++) {
        _Alignas(32) int8_t q[32];
        const int32_t sum = quantize_32(q, x + k, &b->scale);
        b->sum[0] = b->scale * (float)sum;
        if (form == TD_Q_HALVES) {
            sum_halves(b, q, sum);
        } else {
            b->sum[1] = k % 64 == 0 ? b->sum[0] : b[-1].sum[1] + b->sum[0];
            b->sum[2] = k % 128 == 0 ? b->sum[0] : b[-1].sum[2] + b->sum[0];
        }
        if (form == TD_Q_SPLIT)
            split_q4(q);
        memcpy(b->q, q, sizeof q);
    }
}

static void quantize(uint8_t *to, const float *x, uint32_t n, td_q_form form) {
    switch (form) {
    case TD_Q_SPLIT:
        quantize_row(to, x, n, TD_Q_SPLIT);
        return;
    case TD_Q_PLAIN:
        quantize_row(to, x, n, TD_Q_PLAIN);
        return;
    case TD_Q_HALVES:
        quantize_row(to, x, n, TD_Q_HALVES);
        return;
    }
}

/* ---- products ---- */

/* A strip of a panel: `blocks` blocks from input k on, in groups of 32 << shift inputs. */
typedef struct strip {
    const uint8_t *codes[VECTORS]; /* packed */
    size_t scales;                 /* where those of its first group lie among its panel's */
    uint32_t k, blocks, shift;
    size_t row_bytes;
    const uint8_t *next; /* the same place of rows to come */
    bool packed;         /* what comes next follows the codes instead */
    bool requests;       /* of what comes next */
} strip;

#define ACC(r, v) (((r)*VECTORS + (v)) * LANES)

/* Requests block b's share of the codes that this strip's place holds some rows later: a line of 64 bytes of some of
 * the rows. All requests of a strip at once would fill the queue of outstanding loads and stall; spread like this they
 * run beside the products. */
INLINE void request_share(const strip *at, uint32_t b, const int bits, const int NV) {
    const uint32_t blocks = 16 / (uint32_t)bits, rows = (uint32_t)NV * LANES / blocks; /* of a line; of a share */
    const uint8_t *p = at->next + b / blocks * 64 + b % blocks * rows * at->row_bytes;
#pragma GCC unroll 16
    for (uint32_t i = 0; i < rows; i++, p += at->row_bytes)
        __builtin_prefetch(p);
}

/* The same of strips packed ahead: the strip that follows, of each vector's panel. */
INLINE void request_packed(const strip *at, uint32_t b, const int bits, const int NV) {
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++) {
        const uint8_t *p = at->codes[v] + PACKED_PREFETCH_BYTES, *scales = p + at->blocks * CODE_BYTES(bits);
#pragma GCC unroll 8
        for (uint32_t i = 0; i < (uint32_t)CODE_BYTES(bits); i += 64)
            __builtin_prefetch(p + b * CODE_BYTES(bits) + i);
        __builtin_prefetch(scales + (b >> at->shift) * VECTOR_BYTES);
    }
}

/* Codes times activations of one block: s = sums of NR rows and NV vectors of outputs. */
INLINE void dot_block(vi s[MAX_ROWS_AT_A_TIME][VECTORS], const strip *at, uint32_t b, const q_block *const *x,
                      const int bits, const int NV, const int NR) {
#pragma GCC unroll 8
    for (int r = 0; r < NR; r++)
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++)
            s[r][v] = dot_zero();
#pragma GCC unroll 8
    for (int d = 0; d < 8; d++) {
        vi w[VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++)
            w[v] = load_codes(at->codes[v] + b * CODE_BYTES(bits), d, bits);
#pragma GCC unroll 8
        for (int r = 0; r < NR; r++) {
            const vi four = spread_four(x[r][b].q + 4 * d);
#pragma GCC unroll 2
            for (int v = 0; v < NV; v++)
                s[r][v] = dot_step(s[r][v], w[v], four, bits);
        }
    }
}

/* acc, [NR][VECTORS][LANES], is what the inputs before the strip have added up to. */
INLINE void multiply_strip(float *acc, const packed_panel *p, const void *const *x, const strip *at, const int bits,
                           const int NV, const int NR) {
    const uint32_t ends = (1u << at->shift) - 1;
    size_t scales = at->scales;
    const q_block *xb[MAX_ROWS_AT_A_TIME];
    vf sum[MAX_ROWS_AT_A_TIME][VECTORS], t[MAX_ROWS_AT_A_TIME][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < NR; r++) {
        xb[r] = (const q_block *)x[r] + at->k / 32;
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++) {
            sum[r][v] = at->k == 0 ? vf_zero() : vf_load(acc + ACC(r, v));
            t[r][v] = vf_zero();
        }
    }
    for (uint32_t b = 0; b < at->blocks; b++) {
        vi s[MAX_ROWS_AT_A_TIME][VECTORS];
        if (at->requests && at->packed)
            request_packed(at, b, bits, NV);
        else if (at->requests)
            request_share(at, b, bits, NV);
        dot_block(s, at, b, xb, bits, NV, NR);
#pragma GCC unroll 8
        for (int r = 0; r < NR; r++)
#pragma GCC unroll 2
            for (int v = 0; v < NV; v++)
                t[r][v] = vf_fma(dot_end(s[r][v], bits), vf_set1(xb[r][b].scale), t[r][v]);
        if ((b & ends) != ends)
            continue;
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++) {
            const vf scale = vf_load(p[v].scales + scales), bias = vf_load(p[v].scales + scales + VECTOR_BYTES);
#pragma GCC unroll 8
            for (int r = 0; r < NR; r++) {
                sum[r][v] = vf_fma(scale, t[r][v], sum[r][v]);
                sum[r][v] = vf_fma(bias, vf_set1(xb[r][b].sum[at->shift]), sum[r][v]);
                t[r][v] = vf_zero();
            }
        }
        scales += 2 * VECTOR_BYTES;
    }
#pragma GCC unroll 8
    for (int r = 0; r < NR; r++)
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++)
            vf_store(acc + ACC(r, v), sum[r][v]);
}

typedef void (*multiply_fn)(float *acc, const packed_panel *p, const void *const *x, const strip *at);

/* Those of more rows or vectors than the level wants are never called, and empty. */
#define MULTIPLY(bits, NV, NR)                                                                                         \
    static __attribute__((noinline)) void multiply_q##bits##_##NV##x##NR(float *acc, const packed_panel *p,            \
                                                                         const void *const *x, const strip *at) {      \
        if (NV <= VECTORS && NR <= ROWS_AT_A_TIME)                                                                     \
            multiply_strip(acc, p, x, at, bits, NV, NR);                                                               \
    }

#define MULTIPLY_ALL(bits, NV)                                                                                         \
    MULTIPLY(bits, NV, 1)                                                                                              \
    MULTIPLY(bits, NV, 2)                                                                                              \
    MULTIPLY(bits, NV, 3)                                                                                              \
    MULTIPLY(bits, NV, 4)                                                                                              \
    MULTIPLY(bits, NV, 5)                                                                                              \
    MULTIPLY(bits, NV, 6)                                                                                              \
    MULTIPLY(bits, NV, 7)                                                                                              \
    MULTIPLY(bits, NV, 8)                                                                                              \
    static const multiply_fn multiply_q##bits##_##NV[] = {                                                             \
        multiply_q##bits##_##NV##x1, multiply_q##bits##_##NV##x2, multiply_q##bits##_##NV##x3,                         \
        multiply_q##bits##_##NV##x4, multiply_q##bits##_##NV##x5, multiply_q##bits##_##NV##x6,                         \
        multiply_q##bits##_##NV##x7, multiply_q##bits##_##NV##x8,                                                      \
    };

MULTIPLY_ALL(4, 1)
MULTIPLY_ALL(4, 2)
MULTIPLY_ALL(8, 1)
MULTIPLY_ALL(8, 2)

/* Requests scales and biases of the n outputs that follow the lanes': of all those bytes, which lie together, the share
 * that groups [g0, g1) have of a row. */
INLINE void request_scales(const td_matrix *w, const lane_rows *l, uint32_t n, uint32_t g0, uint32_t g1) {
    const size_t size = w->scale_type == TD_DTYPE_F32 ? 4 : 2, first = n * w->scale_row_bytes;
    for (size_t i = first + n * g0 * size; i < first + n * g1 * size; i += 64) {
        __builtin_prefetch(l->scales + i);
        __builtin_prefetch(l->biases + i);
    }
}

/* Chosen rows lie anywhere. While those from o on are read, bytes [from, to) of the LANES after them are asked for. */
INLINE void request_chosen(const td_tile *t, const uint8_t *data, size_t row_bytes, uint32_t o, size_t from,
                           size_t to) {
    for (uint32_t i = o + LANES; i < o + 2 * LANES && i < t->n_o; i++) {
        const uint8_t *row = data + (size_t)t->id[i] * row_bytes;
        for (size_t at = from; at < to; at += 64)
            __builtin_prefetch(row + at);
        __builtin_prefetch(row + to - 1);
    }
}

/* Where the weights lie that will be needed `ahead` bytes after those at byte `at` of outputs [o, o + n): further along
 * the same rows, which have `row` bytes, or in the rows that follow. */
INLINE const uint8_t *weights_ahead(const td_matrix *w, uint32_t o, uint32_t n, size_t at, size_t row,
                                    const uint32_t ahead) {
    for (at += ahead / n; at >= row; at -= row)
        o += n;
    return w->data + o * w->row_bytes + at;
}

/* Even shares: the last rows are not left alone. */
INLINE uint32_t rows_of_a_call(uint32_t n_r) {
    return n_r / ((n_r + ROWS_AT_A_TIME - 1) / ROWS_AT_A_TIME);
}

INLINE void store_outputs(const td_tile *t, const float *acc, uint32_t o, uint32_t n_o, const int NV) {
    for (uint32_t r = 0; r < t->n_r; r++) {
        float *y = t->y + r * t->y_stride + o;
        for (uint32_t v = 0; v < (uint32_t)NV; v++)
            vf_store_n(y + v * LANES, vf_load(acc + ACC(r, v)), n_o - v * LANES < LANES ? n_o - v * LANES : LANES);
    }
}

INLINE uint32_t group_shift(const td_matrix *w) {
    return (uint32_t)__builtin_ctz(w->group / 32);
}

/* A strip times all rows. Only the first call makes requests. */
INLINE void multiply_rows(const td_tile *t, const packed_panel *p, float *acc, strip *s, const int bits, const int NV) {
    const multiply_fn *multiply = bits == 4 ? NV == 1 ? multiply_q4_1 : multiply_q4_2
                                  : NV == 1 ? multiply_q8_1
                                            : multiply_q8_2;
    for (uint32_t r = 0, n; r < t->n_r; r += n, s->requests = false) {
        n = rows_of_a_call(t->n_r - r);
        multiply[n - 1](acc + ACC(r, 0), p, t->x + r, s);
    }
}

/* Outputs [o, o + NV*LANES) (the last one may stand for several) times all rows, over inputs [k0, k1) of one panel. */
INLINE void dot_panel(const td_tile *t, packed_panel *p, float *acc, const lane_rows *l, uint32_t o, uint32_t k0,
                      uint32_t k1, const int bits, const int NV) {
    const td_matrix *w = t->w;
    strip s = {.shift = group_shift(w), .row_bytes = w->row_bytes};
    const uint32_t g0 = k0 / 32 >> s.shift, g1 = k1 / 32 >> s.shift;
    if (t->id) {
        const size_t size = w->scale_type == TD_DTYPE_F32 ? 4 : 2;
        request_chosen(t, w->data, w->row_bytes, o, k0 * (size_t)bits / 8, k1 * (size_t)bits / 8);
        request_chosen(t, w->scales, w->scale_row_bytes, o, g0 * size, g1 * size);
        request_chosen(t, w->biases, w->scale_row_bytes, o, g0 * size, g1 * size);
    } else {
        request_scales(w, l, NV * LANES, g0, g1);
    }
    for (int v = 0; v < NV; v++)
        pack_all_scales(p[v].scales, w, l + v, g0, g1, bits);
    for (s.k = k0; s.k < k1; s.k += s.blocks * 32) {
        s.blocks = (k1 - s.k < STRIP(bits) ? k1 - s.k : STRIP(bits)) / 32;
        s.scales = ((s.k - k0) / 32 >> s.shift) * 2 * VECTOR_BYTES;
        for (int v = 0; v < NV; v++) {
            pack_codes(p[v].codes, l + v, s.k, s.k + s.blocks * 32, bits);
            s.codes[v] = p[v].codes;
        }
        s.next = weights_ahead(w, o, NV * LANES, s.k * (size_t)bits / 8, w->n_in * (size_t)bits / 8, PREFETCH_BYTES);
        s.requests = !t->id;
        multiply_rows(t, p, acc, &s, bits, NV);
    }
}

/* The same over all inputs, of outputs that are packed. */
INLINE void dot_packed(const td_tile *t, packed_panel *p, float *acc, uint32_t o, const int bits, const int NV) {
    const td_matrix *w = t->w;
    const size_t panel = packed_affine(w, w->n_in);
    strip s = {.shift = group_shift(w), .packed = true};
    for (; s.k < w->n_in; s.k += s.blocks * 32) {
        s.blocks = (strip_end(w, s.k) - s.k) / 32;
        const uint32_t groups = s.blocks >> s.shift;
        for (int v = 0; v < NV; v++) {
            const uint8_t *from = t->packed + (o / LANES + (uint32_t)v) * panel + packed_affine(w, s.k);
            take_scales(p[v].scales, from, groups, w->scale_type, bits);
            s.codes[v] = from + groups * packed_group(w);
        }
        s.requests = true;
        multiply_rows(t, p, acc, &s, bits, NV);
    }
}

/* Outputs [o, o + n_o), at most NV * LANES; l: their rows. */
INLINE void dot_outputs(const td_tile *t, lane_rows *l, uint32_t o, uint32_t n_o, const int bits, const int NV) {
    packed_panel *p = (packed_panel *)(void *)t->acc;
    float *acc = (float *)(void *)(p + VECTORS);
    const td_matrix *w = t->w;
    for (uint32_t v = 0; v < (uint32_t)NV; v++)
        lanes_go_to(l + v, w, t->id ? 0 : o + v * LANES);
    if (t->packed && n_o == (uint32_t)NV * LANES)
        dot_packed(t, p, acc, o, bits, NV);
    else
        for (uint32_t k0 = 0, k1; k0 < w->n_in; k0 = k1) {
            k1 = w->n_in - k0 < PANEL ? w->n_in : k0 + PANEL;
            dot_panel(t, p, acc, l, o, k0, k1, bits, NV);
        }
    store_outputs(t, acc, o, n_o, NV);
}

INLINE void dot_affine(const td_tile *t, const int bits) {
    lane_rows l[VECTORS];
    uint32_t o = 0;
    for (int v = 0; v < VECTORS; v++)
        lanes_set_rows(&l[v], t->w, NULL, LANES);
    for (; !t->id && o + VECTORS * LANES <= t->n_o; o += VECTORS * LANES)
        dot_outputs(t, l, o, VECTORS * LANES, bits, VECTORS);
    for (uint32_t n; o < t->n_o; o += n) {
        n = t->n_o - o < LANES ? t->n_o - o : LANES;
        lanes_set_rows(l, t->w, t->id ? t->id + o : NULL, n);
        dot_outputs(t, l, o, n, bits, 1);
    }
}

static void dot_q4(const td_tile *t) {
    dot_affine(t, 4);
}

static void dot_q8(const td_tile *t) {
    dot_affine(t, 8);
}

static void fill_affine_slots(td_dsp *d) {
    d->q_bytes = sizeof(q_block);
    d->q_scratch = VECTORS * (sizeof(packed_panel) + TD_DSP_Q_ROWS * LANES * sizeof(float));
    d->quantize = quantize;
    d->dot_q4 = dot_q4;
    d->dot_q8 = dot_q8;
    d->pack[TD_FORMAT_AFFINE] = pack_affine;
    d->packed_bytes[TD_FORMAT_AFFINE] = packed_affine_bytes;
}

#endif
