/* affine_loops.h - the loops around a level's block_q4 and block_q8 (see vec_affine.h).
 *
 * For a few outputs at a time their scales are spread; then up to eight rows of activations meet each output, whose
 * weights are read and unpacked once for all of them. */
#ifndef TD_BACKEND_CPU_AFFINE_LOOPS_H
#define TD_BACKEND_CPU_AFFINE_LOOPS_H

#include "backend/cpu/vec_affine.h"
#include "backend/cpu/vec_rows.h"

INLINE void quantize_row(uint8_t *to, const float *x, uint32_t n, const bool four) {
    for (uint32_t k = 0; k < n; k += Q_BLOCK) {
        q_block *b = (q_block *)(void *)(to + k / Q_BLOCK * sizeof *b);
        const uint32_t have = n - k < Q_BLOCK ? n - k : Q_BLOCK;
        if (have < Q_BLOCK)
            memset(b, 0, sizeof *b);
        for (uint32_t lane = 0; lane < LANES; lane++) {
            const uint32_t i = four ? order4[lane] : order8[lane];
            if (i * 32 >= have)
                continue;
            _Alignas(32) int8_t q[32];
            int32_t sum = quantize_32(q, x + k + i * 32, &b->scale[lane]);
            b->sum[lane] = b->scale[lane] * (float)sum;
            if (four)
                place_q4(b, i, q);
            else
                place_q8(b, i, q);
        }
    }
}

static void quantize_q4(uint8_t *to, const float *x, uint32_t n) {
    quantize_row(to, x, n, true);
}

static void quantize_q8(uint8_t *to, const float *x, uint32_t n) {
    quantize_row(to, x, n, false);
}

/* The numbers of groups [g0, g0 + n) of a row, zeros up to `room`. */
INLINE void load_groups(float *to, td_dtype type, const uint8_t *row, uint32_t g0, uint32_t n, uint32_t room) {
    if (type == TD_DTYPE_BF16)
        rows_load_bf16(to, row + 2 * (size_t)g0, n);
    else if (type == TD_DTYPE_F16)
        rows_load_f16(to, row + 2 * (size_t)g0, n);
    else
        rows_load_f32(to, row + 4 * (size_t)g0, n);
    for (uint32_t i = n; i < room; i++)
        to[i] = 0;
}

/* Scales and biases of output o over [k0, k1). */
INLINE void load_affine(affine_block *to, const td_tile *t, uint32_t o, const int bits) {
    float scales[TD_DSP_MAX_BLOCKS * LANES + LANES], biases[TD_DSP_MAX_BLOCKS * LANES + LANES];
    const td_matrix *w = t->w;
    const uint32_t per_block = Q_BLOCK / w->group, n_blocks = (t->k1 - t->k0 + Q_BLOCK - 1) / Q_BLOCK;
    const uint32_t g0 = t->k0 / w->group, n = t->k1 / w->group - g0, room = n_blocks * per_block;
    load_groups(scales, w->scale_type, w->scales + o * w->scale_row_bytes, g0, n, room);
    load_groups(biases, w->scale_type, w->biases + o * w->scale_row_bytes, g0, n, room);
    for (uint32_t b = 0; b < n_blocks; b++)
        spread(&to[b], scales + b * per_block, biases + b * per_block, w->group, bits);
}

/* One output times NR rows. */
INLINE void dot_affine(const td_tile *t, const affine_block *s, uint32_t o, uint32_t r0, const int bits, const int NR) {
    const uint32_t block_bytes = Q_BLOCK * (uint32_t)bits / 8, b0 = t->k0 / Q_BLOCK;
    const uint32_t full = (t->k1 - t->k0) / Q_BLOCK, rest = (t->k1 - t->k0) % Q_BLOCK * (uint32_t)bits / 8;
    const uint8_t *w = t->w->data + o * t->w->row_bytes + (size_t)b0 * block_bytes;
    float *saved = t->acc + ((size_t)o * t->n_r + r0) * LANES;
    const q_block *x[ROWS_AT_A_TIME];
    vf acc[ROWS_AT_A_TIME];
#pragma GCC unroll 8
    for (int r = 0; r < NR; r++) {
        x[r] = (const q_block *)t->x[r0 + (uint32_t)r] + b0;
        acc[r] = t->first ? vf_zero() : vf_load(saved + r * LANES);
    }
    for (uint32_t b = 0; b < full; b++, w += block_bytes)
        if (bits == 4)
            block_q4(acc, w, s + b, x, b, NR);
        else
            block_q8(acc, w, s + b, x, b, NR);
    if (rest) {
        uint8_t last[Q_BLOCK] = {0};
        memcpy(last, w, rest);
        if (bits == 4)
            block_q4(acc, last, s + full, x, full, NR);
        else
            block_q8(acc, last, s + full, x, full, NR);
    }
#pragma GCC unroll 8
    for (int r = 0; r < NR; r++)
        if (t->last)
            t->y[(r0 + (size_t)r) * t->y_stride + o] = vf_sum(acc[r]);
        else
            vf_store(saved + r * LANES, acc[r]);
}

#define AFFINE_CASE(bits, NR)                                                                                          \
    case NR:                                                                                                           \
        for (uint32_t o = 0; o < n_o; o++)                                                                             \
            dot_affine(t, s + o * TD_DSP_MAX_BLOCKS, o0 + o, r, bits, NR);                                             \
        break;

#define AFFINE_DOT(bits)                                                                                               \
    static __attribute__((noinline)) void affine_rows_q##bits(const td_tile *t, const affine_block *s, uint32_t o0,    \
                                                              uint32_t n_o, uint32_t r, uint32_t n_r) {                \
        switch (n_r) {                                                                                                 \
            AFFINE_CASE(bits, 1)                                                                                       \
            AFFINE_CASE(bits, 2)                                                                                       \
            AFFINE_CASE(bits, 3)                                                                                       \
            AFFINE_CASE(bits, 4)                                                                                       \
            AFFINE_CASE(bits, 5)                                                                                       \
            AFFINE_CASE(bits, 6)                                                                                       \
            AFFINE_CASE(bits, 7)                                                                                       \
            AFFINE_CASE(bits, 8)                                                                                       \
        }                                                                                                              \
    }                                                                                                                  \
    static void dot_q##bits(const td_tile *t) {                                                                        \
        affine_block s[OUTPUTS_AT_A_TIME * TD_DSP_MAX_BLOCKS];                                                         \
        for (uint32_t o = 0; o < t->n_o; o += OUTPUTS_AT_A_TIME) {                                                     \
            uint32_t n_o = t->n_o - o < OUTPUTS_AT_A_TIME ? t->n_o - o : OUTPUTS_AT_A_TIME;                            \
            for (uint32_t i = 0; i < n_o; i++)                                                                         \
                load_affine(s + i * TD_DSP_MAX_BLOCKS, t, o + i, bits);                                                \
            for (uint32_t r = 0; r < t->n_r; r += ROWS_AT_A_TIME)                                                      \
                affine_rows_q##bits(t, s, o, n_o, r, t->n_r - r < ROWS_AT_A_TIME ? t->n_r - r : ROWS_AT_A_TIME);       \
        }                                                                                                              \
    }

AFFINE_DOT(4)
AFFINE_DOT(8)

static void fill_affine_slots(td_dsp *d) {
    d->q_block = Q_BLOCK;
    d->q_bytes = sizeof(q_block);
    d->quantize_q4 = quantize_q4;
    d->quantize_q8 = quantize_q8;
    d->dot_q4 = dot_q4;
    d->dot_q8 = dot_q8;
}

#endif
