/* vec_attention.h - the kernels of attention, in the vector vocabulary: scores, softmax, mixing, folding.
 *
 * A score is one accumulator over the head's dimensions, reduced together with three others; a mixed output is one
 * chain of fused multiply-adds over the keys in order. Neither depends on the shape of the tile that it is part of. A
 * masked key has weight zero, and adding zero times a value leaves a sum as it is, so whether a key outside a row's
 * window is visited does not matter.
 *
 * Keys and values are read where they lie and widened in registers, once for all queries of a tile: with eight of them
 * a vector of keys costs one load and two instructions for eight multiply-adds. What bounds a pass is then arithmetic
 * or memory, whichever is slower, if both go on at the same time; so a kernel requests the bytes that will be needed
 * next from memory as it goes, a line for each line that it reads. */
#ifndef TD_BACKEND_CPU_VEC_ATTENTION_H
#define TD_BACKEND_CPU_VEC_ATTENTION_H

#include <math.h>

#include "backend/cpu/vec_math.h"

/* Lanes of a row from column `c` on. */
INLINE vf kv_load(const uint8_t *row, size_t c, const bool BF16) {
    return BF16 ? vf_load_bf16(row + 2 * c) : vf_load(row + 4 * c);
}

/* Requests `n` bytes from memory. */
INLINE void request(const uint8_t *p, const size_t n) {
#pragma GCC unroll 8
    for (size_t i = 0; i < n; i += 64)
        __builtin_prefetch(p + i);
}

/* Queries of the next tile when `n` are left: all tiles of about one size. */
INLINE uint32_t tile_queries(uint32_t n) {
    const uint32_t tiles = (n + VF_TILE_Q - 1) / VF_TILE_Q;
    return (n + tiles - 1) / tiles;
}

/* f(1) to f(8), as many as the level's tiles may have queries. */
#define EACH_TILE(n, f)                                                                                                \
    switch (n) {                                                                                                       \
        TILE_CASE(1, f)                                                                                                \
        TILE_CASE(2, f)                                                                                                \
        TILE_CASE(3, f)                                                                                                \
        TILE_CASE(4, f)                                                                                                \
        TILE_CASE(5, f)                                                                                                \
        TILE_CASE(6, f)                                                                                                \
        TILE_CASE(7, f)                                                                                                \
        TILE_CASE(8, f)                                                                                                \
    }
#define TILE_CASE(NQ, f)                                                                                               \
    case NQ:                                                                                                           \
        if (NQ <= VF_TILE_Q)                                                                                           \
            f(NQ);                                                                                                     \
        break;

/* ---- scores ---- */

/* The sums of NQ x NK accumulators, four at a time. */
INLINE void store_scores(float *s, size_t s_stride, vf acc[8][4], const int NQ, const int NK) {
#pragma GCC unroll 8
    for (int at = 0; at < NQ * NK; at += 4) {
        float four[4];
        vf v[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            v[i] = at + i < NQ * NK ? acc[(at + i) / NK][(at + i) % NK] : vf_zero();
        vf_sum4(four, v[0], v[1], v[2], v[3]);
        for (int i = 0; i < 4 && at + i < NQ * NK; i += NK)
            memcpy(s + (size_t)((at + i) / NK) * s_stride, four + i, (size_t)NK * sizeof *four);
    }
}

/* UNROLL vectors of the rows from column c on. */
INLINE void score_step(vf acc[8][4], const float *q, size_t stride, const uint8_t *k, size_t pitch, size_t c,
                       const uint8_t *ahead, const int NQ, const int NK, const int UNROLL, const bool BF16) {
#pragma GCC unroll 4
    for (int u = 0; u < UNROLL; u++, c += LANES) {
        vf kv[4];
#pragma GCC unroll 4
        for (int j = 0; j < NK; j++)
            kv[j] = kv_load(k + (size_t)j * pitch, c, BF16);
        request(ahead + c * (size_t)NK * (BF16 ? 2 : 4), (size_t)NK * LANES * (BF16 ? 2 : 4));
#pragma GCC unroll 8
        for (int i = 0; i < NQ; i++) {
            const vf qv = vf_keep(vf_load(q + (size_t)i * stride + c));
#pragma GCC unroll 4
            for (int j = 0; j < NK; j++)
                acc[i][j] = vf_fma(qv, kv[j], acc[i][j]);
        }
    }
}

INLINE void score_tile(float *s, size_t s_stride, const float *q, const uint8_t *k, size_t pitch, size_t stride,
                       const uint8_t *ahead, const int NQ, const int NK, const bool BF16) {
    vf acc[8][4];
    size_t c = 0;
#pragma GCC unroll 8
    for (int i = 0; i < NQ; i++)
#pragma GCC unroll 4
        for (int j = 0; j < NK; j++)
            acc[i][j] = vf_zero();
    for (; c + 4 * LANES <= stride; c += 4 * LANES)
        score_step(acc, q, stride, k, pitch, c, ahead, NQ, NK, 4, BF16);
    for (; c < stride; c += LANES)
        score_step(acc, q, stride, k, pitch, c, ahead, NQ, NK, 1, BF16);
    store_scores(s, s_stride, acc, NQ, NK);
}

INLINE void score_queries(float *s, size_t s_stride, const float *q, const td_kv_rows *k, uint32_t n_k, size_t stride,
                          const uint8_t *ahead, const int NQ, const bool BF16) {
    const int NK = 4 * NQ <= VF_TILE_ACC ? 4 : 2;
    const size_t bytes = stride * (BF16 ? 2 : 4);
    const uint8_t *row = k->row;
    uint32_t j = 0;
    for (; j + (uint32_t)NK <= n_k; j += (uint32_t)NK, row += (size_t)NK * k->pitch, ahead += (size_t)NK * bytes)
        score_tile(s + j, s_stride, q, row, k->pitch, stride, ahead, NQ, NK, BF16);
    for (; j < n_k; j++, row += k->pitch, ahead += bytes)
        score_tile(s + j, s_stride, q, row, k->pitch, stride, ahead, NQ, 1, BF16);
}

/* The first queries' tiles request what lies ahead. */
INLINE void score_all(float *s, size_t s_stride, const float *q, uint32_t n_q, const td_kv_rows *k, uint32_t n_k,
                      size_t stride, const uint8_t *ahead, const bool BF16) {
    for (uint32_t n; n_q; n_q -= n, s += n * s_stride, q += n * stride, ahead = k->row) {
        n = tile_queries(n_q);
#define SCORE(NQ) score_queries(s, s_stride, q, k, n_k, stride, ahead, NQ, BF16)
        EACH_TILE(n, SCORE)
#undef SCORE
    }
}

static void attention_score(float *s, size_t s_stride, const float *q, uint32_t n_q, const td_kv_rows *k, uint32_t n_k,
                            size_t stride, const uint8_t *ahead) {
    if (!ahead)
        ahead = k->row;
    if (k->bf16)
        score_all(s, s_stride, q, n_q, k, n_k, stride, ahead, true);
    else
        score_all(s, s_stride, q, n_q, k, n_k, stride, ahead, false);
}

/* ---- softmax ---- */

/* Lanes of the vector at `at` that fall into [a, b). */
INLINE vf inside(vf v, uint32_t at, uint32_t a, uint32_t b, vf outside) {
    if (at + LANES > b)
        v = vf_pick(vf_first(b > at ? b - at : 0), v, outside);
    if (at < a)
        v = vf_pick(vf_first(a - at < LANES ? a - at : LANES), outside, v);
    return v;
}

static void attention_softmax(float *s, uint32_t n, uint32_t a, uint32_t b, float *top, float *sum) {
    const vf never = vf_set1(-INFINITY);
    const uint32_t from = a / LANES * LANES, to = (b + LANES - 1) / LANES * LANES;
    vf best = never, total = vf_zero();
    for (uint32_t j = from; j < to; j += LANES)
        best = vf_max(best, inside(vf_load(s + j), j, a, b, never));
    vf m = vf_set1(*top = vf_top(best));
    for (uint32_t j = 0; j < from; j += LANES)
        vf_store(s + j, vf_zero());
    for (uint32_t j = from; j < to; j += LANES) {
        vf p = inside(vf_exp(vf_sub(vf_load(s + j), m)), j, a, b, vf_zero());
        total = vf_add(total, p);
        vf_store(s + j, p);
    }
    for (uint32_t j = to; j < n; j += LANES)
        vf_store(s + j, vf_zero());
    *sum = vf_sum(total);
}

/* ---- mixing ---- */

INLINE void mix_tile(float *out, const float *p, size_t p_stride, const td_kv_rows *v, size_t column, uint32_t n_k,
                     size_t stride, const uint8_t *ahead, const int NQ, const int NV, const bool BF16) {
    const size_t size = BF16 ? 2 : 4;
    const uint8_t *row = v->row;
    vf acc[8][8];
    out += column;
    ahead += column * n_k * size;
#pragma GCC unroll 8
    for (int i = 0; i < NQ; i++)
#pragma GCC unroll 8
        for (int c = 0; c < NV; c++)
            acc[i][c] = vf_load(out + (size_t)i * stride + (size_t)c * LANES);
    for (uint32_t j = 0; j < n_k; j++, row += v->pitch, ahead += (size_t)NV * LANES * size) {
        vf vv[8];
#pragma GCC unroll 8
        for (int c = 0; c < NV; c++)
            vv[c] = kv_load(row, column + (size_t)c * LANES, BF16);
        request(ahead, (size_t)NV * LANES * size);
#pragma GCC unroll 8
        for (int i = 0; i < NQ; i++) {
            vf pv = vf_set1(p[(size_t)i * p_stride + j]);
#pragma GCC unroll 8
            for (int c = 0; c < NV; c++)
                acc[i][c] = vf_fma(pv, vv[c], acc[i][c]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < NQ; i++)
#pragma GCC unroll 8
        for (int c = 0; c < NV; c++)
            vf_store(out + (size_t)i * stride + (size_t)c * LANES, acc[i][c]);
}

INLINE void mix_queries(float *out, const float *p, size_t p_stride, const td_kv_rows *v, uint32_t n_k, size_t stride,
                        const uint8_t *ahead, const int NQ, const bool BF16) {
    const int NV = 8 * NQ <= VF_TILE_ACC ? 8 : 4 * NQ <= VF_TILE_ACC ? 4 : 2;
    size_t c = 0;
    for (; c + NV * LANES <= stride; c += NV * LANES)
        mix_tile(out, p, p_stride, v, c, n_k, stride, ahead, NQ, NV, BF16);
    if (NV > 2)
        for (; c + 2 * LANES <= stride; c += 2 * LANES)
            mix_tile(out, p, p_stride, v, c, n_k, stride, ahead, NQ, 2, BF16);
    for (; c < stride; c += LANES)
        mix_tile(out, p, p_stride, v, c, n_k, stride, ahead, NQ, 1, BF16);
}

INLINE void mix_all(float *out, uint32_t n_q, const float *p, size_t p_stride, const td_kv_rows *v, uint32_t n_k,
                    size_t stride, const uint8_t *ahead, const bool BF16) {
    for (uint32_t n; n_q; n_q -= n, p += n * p_stride, out += n * stride, ahead = v->row) {
        n = tile_queries(n_q);
#define MIX(NQ) mix_queries(out, p, p_stride, v, n_k, stride, ahead, NQ, BF16)
        EACH_TILE(n, MIX)
#undef MIX
    }
}

static void attention_mix(float *out, uint32_t n_q, const float *p, size_t p_stride, const td_kv_rows *v, uint32_t n_k,
                          size_t stride, const uint8_t *ahead) {
    if (!ahead)
        ahead = v->row;
    if (v->bf16)
        mix_all(out, n_q, p, p_stride, v, n_k, stride, ahead, true);
    else
        mix_all(out, n_q, p, p_stride, v, n_k, stride, ahead, false);
}

/* ---- folding ---- */

static void attention_fold(float *o, float a, const float *x, float b, uint32_t n) {
    for (uint32_t c = 0; c < n; c += LANES)
        vf_store(o + c, vf_fma(vf_load(x + c), vf_set1(b), vf_mul(vf_load(o + c), vf_set1(a))));
}

#endif
