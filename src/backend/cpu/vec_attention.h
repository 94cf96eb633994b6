/* vec_attention.h - the kernels of attention, in the vector vocabulary: scores, softmax, mixing, folding.
 *
 * A score is one accumulator over the head's dimensions, reduced together with those of three neighbouring keys; a
 * mixed output is one chain of fused multiply-adds over the keys in order. A masked key has weight zero, and adding
 * zero times a value leaves a sum as it is, so whether a key outside a row's window is visited does not matter. */
#ifndef TD_BACKEND_CPU_VEC_ATTENTION_H
#define TD_BACKEND_CPU_VEC_ATTENTION_H

#include <math.h>

#include "backend/cpu/vec_math.h"

INLINE void score_tile(float *s, size_t s_stride, const float *q, const float *k, size_t stride, const int NQ) {
    vf acc[4][4];
#pragma GCC unroll 4
    for (int i = 0; i < NQ; i++)
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            acc[i][j] = vf_zero();
    for (size_t c = 0; c < stride; c += LANES) {
        vf kv[4];
#pragma GCC unroll 4
        for (int j = 0; j < 4; j++)
            kv[j] = vf_load(k + (size_t)j * stride + c);
#pragma GCC unroll 4
        for (int i = 0; i < NQ; i++) {
            vf qv = vf_load(q + (size_t)i * stride + c);
#pragma GCC unroll 4
            for (int j = 0; j < 4; j++)
                acc[i][j] = vf_fma(qv, kv[j], acc[i][j]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < NQ; i++)
        vf_sum4(s + (size_t)i * s_stride, acc[i][0], acc[i][1], acc[i][2], acc[i][3]);
}

static void attention_score(float *s, size_t s_stride, const float *q, uint32_t n_q, const float *k, uint32_t n_k,
                            size_t stride) {
    uint32_t i = 0;
    for (; i + VF_TILE_Q <= n_q; i += VF_TILE_Q)
        for (uint32_t j = 0; j < n_k; j += 4)
            score_tile(s + i * s_stride + j, s_stride, q + i * stride, k + j * stride, stride, VF_TILE_Q);
    for (; i < n_q; i++)
        for (uint32_t j = 0; j < n_k; j += 4)
            score_tile(s + i * s_stride + j, s_stride, q + i * stride, k + j * stride, stride, 1);
}

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

INLINE void mix_tile(float *out, const float *p, size_t p_stride, const float *v, uint32_t n_k, size_t stride,
                     const int NQ, const int NV) {
    vf acc[4][4];
#pragma GCC unroll 4
    for (int i = 0; i < NQ; i++)
#pragma GCC unroll 4
        for (int c = 0; c < NV; c++)
            acc[i][c] = vf_load(out + (size_t)i * stride + (size_t)c * LANES);
    for (uint32_t j = 0; j < n_k; j++) {
        vf vv[4];
#pragma GCC unroll 4
        for (int c = 0; c < NV; c++)
            vv[c] = vf_load(v + j * stride + (size_t)c * LANES);
#pragma GCC unroll 4
        for (int i = 0; i < NQ; i++) {
            vf pv = vf_set1(p[(size_t)i * p_stride + j]);
#pragma GCC unroll 4
            for (int c = 0; c < NV; c++)
                acc[i][c] = vf_fma(pv, vv[c], acc[i][c]);
        }
    }
#pragma GCC unroll 4
    for (int i = 0; i < NQ; i++)
#pragma GCC unroll 4
        for (int c = 0; c < NV; c++)
            vf_store(out + (size_t)i * stride + (size_t)c * LANES, acc[i][c]);
}

INLINE void mix_queries(float *out, const float *p, size_t p_stride, const float *v, uint32_t n_k, size_t stride,
                        const int NQ) {
    size_t c = 0;
    for (; c + VF_TILE_V * LANES <= stride; c += VF_TILE_V * LANES)
        mix_tile(out + c, p, p_stride, v + c, n_k, stride, NQ, VF_TILE_V);
    for (; c < stride; c += LANES)
        mix_tile(out + c, p, p_stride, v + c, n_k, stride, NQ, 1);
}

static void attention_mix(float *out, uint32_t n_q, const float *p, size_t p_stride, const float *v, uint32_t n_k,
                          size_t stride) {
    uint32_t i = 0;
    for (; i + VF_TILE_Q <= n_q; i += VF_TILE_Q)
        mix_queries(out + i * stride, p + i * p_stride, p_stride, v, n_k, stride, VF_TILE_Q);
    for (; i < n_q; i++)
        mix_queries(out + i * stride, p + i * p_stride, p_stride, v, n_k, stride, 1);
}

static void attention_fold(float *o, float a, const float *x, float b, uint32_t n) {
    for (uint32_t c = 0; c < n; c += LANES)
        vf_store(o + c, vf_fma(vf_load(x + c), vf_set1(b), vf_mul(vf_load(o + c), vf_set1(a))));
}

#endif
