/* affine_loops.h - quantising, packing and the loops around a level's dot_block (see vec_affine.h). */
#ifndef TD_BACKEND_CPU_AFFINE_LOOPS_H
#define TD_BACKEND_CPU_AFFINE_LOOPS_H

#include "backend/cpu/vec_affine.h"

/* ---- activations ---- */

INLINE void quantize_row(uint8_t *to, const float *x, uint32_t n, const bool four) {
    q_block *b = (q_block *)(void *)to;
    for (uint32_t k = 0; k < n; k += 32, b++) {
        _Alignas(32) int8_t q[32];
        int32_t sum = quantize_32(q, x + k, &b->scale);
        const float s = b->scale * (float)sum;
        b->sum[0] = s;
        b->sum[1] = k % 64 == 0 ? s : b[-1].sum[1] + s;
        b->sum[2] = k % 128 == 0 ? s : b[-1].sum[2] + s;
        if (four)
            split_q4(q);
        memcpy(b->q, q, sizeof q);
    }
}

static void quantize_q4(uint8_t *to, const float *x, uint32_t n) {
    quantize_row(to, x, n, true);
}

static void quantize_q8(uint8_t *to, const float *x, uint32_t n) {
    quantize_row(to, x, n, false);
}

/* ---- packing ---- */

/* LANES outputs of a matrix; the last one is repeated where there are fewer. */
typedef struct lane_rows {
    const uint8_t *codes[LANES], *scales[LANES], *biases[LANES];
    size_t ahead, scales_ahead; /* bytes to the same place in rows that come some thousands of bytes later */
} lane_rows;

INLINE lane_rows rows_of_lanes(const td_matrix *w, uint32_t o0, uint32_t n_o) {
    lane_rows l;
    const size_t group = LANES * w->row_bytes;
    l.ahead = (PREFETCH_BYTES + group - 1) / group * group;
    l.scales_ahead = l.ahead / w->row_bytes * w->scale_row_bytes;
    for (uint32_t i = 0; i < LANES; i++) {
        const size_t o = o0 + (i < n_o ? i : n_o - 1);
        l.codes[i] = w->data + o * w->row_bytes;
        l.scales[i] = w->scales + o * w->scale_row_bytes;
        l.biases[i] = w->biases + o * w->scale_row_bytes;
    }
    return l;
}

/* A vector of bytes from every row, `n` of them: dword j of each becomes vector j. Dwords follow each other as they do
 * in a block, so packed blocks follow each other too. */
INLINE void pack_vector(uint8_t *to, const lane_rows *l, uint32_t at, uint32_t n, const int bits) {
    vi v[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        v[i] = load_row(l->codes[i] + at, n);
    transpose(v);
#pragma GCC unroll 16
    for (uint32_t j = 0; j < LANES; j++)
        if (4 * j < n)
            store_codes(to + j * VECTOR_BYTES, bits == 8 && FLIP != 0 ? flip(v[j]) : v[j]);
}

/* Codes of inputs [k0, k1). */
INLINE void pack_codes(uint8_t *to, const lane_rows *l, uint32_t k0, uint32_t k1, const int bits) {
    const uint32_t end = k1 * (uint32_t)bits / 8;
    uint32_t at = k0 * (uint32_t)bits / 8;
    for (; at + VECTOR_BYTES <= end; at += VECTOR_BYTES, to += LANES * VECTOR_BYTES) {
        pack_vector(to, l, at, VECTOR_BYTES, bits);
    }
    if (at < end)
        pack_vector(to, l, at, end - at, bits);
}

/* Scales (biases) of groups [g0, g1): every second vector of `to`. */
INLINE void pack_scales(uint8_t *to, const uint8_t *const *rows, td_dtype type, uint32_t g0, uint32_t g1) {
    const size_t size = type == TD_DTYPE_F32 ? 4 : 2;
    for (uint32_t g = g0; g < g1; g += LANES) {
        const uint32_t n = g1 - g < LANES ? g1 - g : LANES;
        vf f[LANES];
        vi v[LANES];
        if (n == LANES)
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                f[i] = widen_row(rows[i] + g * size, type, LANES);
        else
            for (int i = 0; i < LANES; i++)
                f[i] = widen_row(rows[i] + g * size, type, n);
        memcpy(v, f, sizeof v);
        transpose(v);
#pragma GCC unroll 16
        for (uint32_t j = 0; j < LANES; j++, to += 2 * VECTOR_BYTES)
            store_codes(to, v[j]); /* those behind g1 fall into room that is there for them */
    }
}

/* Those of a panel, and the request of those that come later: with short rows, two rows' share a line. */
INLINE void pack_all_scales(uint8_t *to, const td_matrix *w, const lane_rows *l, uint32_t k0, uint32_t k1,
                            const int bits) {
    const uint32_t g0 = k0 / w->group, g1 = k1 / w->group;
    for (int i = 0; i < LANES; i += 2) {
        __builtin_prefetch(l->scales[i] + l->scales_ahead + k0 / 32);
        __builtin_prefetch(l->biases[i] + l->scales_ahead + k0 / 32);
    }
    pack_scales(to, l->scales, w->scale_type, g0, g1);
    pack_scales(to + VECTOR_BYTES, l->biases, w->scale_type, g0, g1);
    if (bits == 8 && FLIP != 0) /* scale*c + bias = scale*(c - FLIP) + (bias + FLIP*scale) */
        for (uint32_t g = g0; g < g1; g++, to += 2 * VECTOR_BYTES) {
            const vf bias = vf_fma(vf_load(to), vf_set1(FLIP), vf_load(to + VECTOR_BYTES));
            vf_store((float *)(void *)(to + VECTOR_BYTES), bias);
        }
}

/* ---- products ---- */

typedef struct packed_panel {
    uint8_t scales[(PANEL / 32 + LANES) * 2 * VECTOR_BYTES];
    uint8_t codes[STRIP / 32 * CODE_BYTES(8)];
} packed_panel;

/* Block b of a strip requests its share of the codes that this strip's place holds some rows later. All requests of a
 * strip at once would fill the queue of outstanding loads and stall; spread like this they run beside the products. */
INLINE void prefetch_share(const lane_rows *next, uint32_t k, uint32_t b, const int bits) {
    const uint32_t lines = LANES * (uint32_t)bits / 16; /* of 64 bytes, per block of 32 inputs */
#pragma GCC unroll 8
    for (uint32_t j = 0; j < lines; j++) {
        const uint32_t i = b * lines + j;
        __builtin_prefetch(next->codes[i % LANES] + next->ahead + k * (uint32_t)bits / 8 + i / LANES * 64);
    }
}

/* A strip of `blocks` blocks from input k on times NR rows. `group` is a power of two; `next` NULL: no requests. */
INLINE void multiply_strip(float *acc, const packed_panel *p, const void *const *x, uint32_t k, uint32_t blocks,
                           uint32_t group, const lane_rows *next, const int bits, const int NR) {
    const uint32_t shift = (uint32_t)__builtin_ctz(group / 32), ends = group / 32 - 1;
    const uint8_t *scales = p->scales + (k % PANEL / 32 >> shift) * 2 * VECTOR_BYTES;
    const q_block *xb[ROWS_AT_A_TIME];
    vf sum[ROWS_AT_A_TIME], t[ROWS_AT_A_TIME];
#pragma GCC unroll 8
    for (int r = 0; r < NR; r++) {
        xb[r] = (const q_block *)x[r] + k / 32;
        sum[r] = k == 0 ? vf_zero() : vf_load(acc + r * LANES);
        t[r] = vf_zero();
    }
    for (uint32_t b = 0; b < blocks; b++) {
        vi w[8];
        if (next)
            prefetch_share(next, k, b, bits);
        unpack_block(w, p->codes + b * CODE_BYTES(bits), bits);
#pragma GCC unroll 8
        for (int r = 0; r < NR; r++)
            t[r] = vf_fma(dot_block(w, xb[r][b].q, bits), vf_set1(xb[r][b].scale), t[r]);
        if ((b & ends) != ends)
            continue;
        const vf scale = vf_load(scales), bias = vf_load(scales + VECTOR_BYTES);
        scales += 2 * VECTOR_BYTES;
#pragma GCC unroll 8
        for (int r = 0; r < NR; r++) {
            sum[r] = vf_fma(scale, t[r], sum[r]);
            sum[r] = vf_fma(bias, vf_set1(xb[r][b].sum[shift]), sum[r]);
            t[r] = vf_zero();
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < NR; r++)
        vf_store(acc + r * LANES, sum[r]);
}

typedef void (*multiply_fn)(float *acc, const packed_panel *p, const void *const *x, uint32_t k, uint32_t blocks,
                            uint32_t group, const lane_rows *next);

#define MULTIPLY(bits, NR)                                                                                             \
    static __attribute__((noinline)) void multiply_q##bits##_##NR(float *acc, const packed_panel *p,                   \
                                                                  const void *const *x, uint32_t k, uint32_t blocks,   \
                                                                  uint32_t group, const lane_rows *next) {             \
        multiply_strip(acc, p, x, k, blocks, group, next, bits, NR);                                                   \
    }

#define MULTIPLY_ALL(bits)                                                                                             \
    MULTIPLY(bits, 1)                                                                                                  \
    MULTIPLY(bits, 2)                                                                                                  \
    MULTIPLY(bits, 3)                                                                                                  \
    MULTIPLY(bits, 4)                                                                                                  \
    MULTIPLY(bits, 5)                                                                                                  \
    MULTIPLY(bits, 6)                                                                                                  \
    MULTIPLY(bits, 7)                                                                                                  \
    MULTIPLY(bits, 8)                                                                                                  \
    static const multiply_fn multiply_q##bits[] = {                                                                    \
        multiply_q##bits##_1, multiply_q##bits##_2, multiply_q##bits##_3, multiply_q##bits##_4,                        \
        multiply_q##bits##_5, multiply_q##bits##_6, multiply_q##bits##_7, multiply_q##bits##_8,                        \
    };

MULTIPLY_ALL(4)
MULTIPLY_ALL(8)

/* LANES outputs (n_o of them wanted) times all rows, over inputs [k0, k1) of one panel. */
INLINE void dot_panel(const td_tile *t, packed_panel *p, float *acc, const lane_rows *l, uint32_t k0, uint32_t k1,
                      const int bits) {
    const td_matrix *w = t->w;
    const multiply_fn *multiply = bits == 4 ? multiply_q4 : multiply_q8;
    pack_all_scales(p->scales, w, l, k0, k1, bits);
    for (uint32_t k = k0, end; k < k1; k = end) {
        end = k1 - k < STRIP ? k1 : k + STRIP;
        pack_codes(p->codes, l, k, end, bits);
        for (uint32_t r = 0, n; r < t->n_r; r += n) {
            n = t->n_r - r < ROWS_AT_A_TIME ? t->n_r - r : ROWS_AT_A_TIME;
            multiply[n - 1](acc + r * LANES, p, t->x + r, k, (end - k) / 32, w->group, r == 0 ? l : NULL);
        }
    }
}

INLINE void dot_affine(const td_tile *t, const int bits) {
    packed_panel *p = (packed_panel *)(void *)t->acc;
    float *acc = (float *)(void *)(p + 1);
    for (uint32_t o = 0; o < t->n_o; o += LANES) {
        const uint32_t n_o = t->n_o - o < LANES ? t->n_o - o : LANES;
        const lane_rows l = rows_of_lanes(t->w, o, n_o);
        for (uint32_t k0 = 0, k1; k0 < t->w->n_in; k0 = k1) {
            k1 = t->w->n_in - k0 < PANEL ? t->w->n_in : k0 + PANEL;
            dot_panel(t, p, acc, &l, k0, k1, bits);
        }
        for (uint32_t r = 0; r < t->n_r; r++)
            vf_store_n(t->y + r * t->y_stride + o, vf_load(acc + r * LANES), n_o);
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
    d->q_scratch = sizeof(packed_panel) + TD_DSP_Q_ROWS * LANES * sizeof(float);
    d->quantize_q4 = quantize_q4;
    d->quantize_q8 = quantize_q8;
    d->dot_q4 = dot_q4;
    d->dot_q8 = dot_q8;
}

#endif
