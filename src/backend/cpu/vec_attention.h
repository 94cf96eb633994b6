/* vec_attention.h - the kernels of attention, in the vector vocabulary: scores, softmax, mixing, folding.
 *
 * A score is one accumulator over the head's dimensions, reduced together with those of three neighbouring keys; a
 * mixed output is one chain of fused multiply-adds over the keys in order. A masked key has weight zero, and adding
 * zero times a value leaves a sum as it is, so whether a key outside a row's window is visited does not matter.
 *
 * Keys and values have been converted to floats when a kernel gets them; while it works through a block it requests the
 * raw rows of the next one from memory, a few columns at a time: conversion alone reads in bursts, between which memory
 * would be idle. */
#ifndef TD_BACKEND_CPU_VEC_ATTENTION_H
#define TD_BACKEND_CPU_VEC_ATTENTION_H

#include <math.h>

#include "backend/cpu/vec_math.h"

/* Requests the part of a line that columns [c, c + n) of a row of bf16 lie in, once for each line. */
INLINE void request_columns(const uint8_t *row, size_t c, size_t n) {
#pragma GCC unroll 4
    for (size_t i = 0; i < n; i += LANES)
        if ((c + i) % 32 == 0)
            __builtin_prefetch(row + 2 * (c + i));
}

INLINE void score_tile(float *s, size_t s_stride, const float *q, const float *k, size_t stride, td_kv_ahead ahead,
                       const int NQ) {
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
        if (ahead.row)
#pragma GCC unroll 4
            for (size_t j = 0; j < 4; j++)
                request_columns(ahead.row + j * ahead.stride, c, LANES);
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

/* The first queries' tiles request the keys ahead. */
INLINE void score_queries(float *s, size_t s_stride, const float *q, const float *k, uint32_t n_k, size_t stride,
                          td_kv_ahead ahead, const int NQ) {
    for (uint32_t j = 0; j < n_k; j += 4) {
        score_tile(s + j, s_stride, q, k + j * stride, stride, ahead, NQ);
        if (ahead.row)
            ahead.row += 4 * ahead.stride;
    }
}

static void attention_score(float *s, size_t s_stride, const float *q, uint32_t n_q, const float *k, uint32_t n_k,
                            size_t stride, td_kv_ahead ahead) {
    const td_kv_ahead none = {NULL, 0};
    uint32_t i = 0;
    for (; i + VF_TILE_Q <= n_q; i += VF_TILE_Q)
        score_queries(s + i * s_stride, s_stride, q + i * stride, k, n_k, stride, i == 0 ? ahead : none, VF_TILE_Q);
    for (; i < n_q; i++)
        score_queries(s + i * s_stride, s_stride, q + i * stride, k, n_k, stride, i == 0 ? ahead : none, 1);
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
                     td_kv_ahead ahead, size_t column, const int NQ, const int NV) {
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
        if (ahead.row)
            request_columns(ahead.row + j * ahead.stride, column, (size_t)NV * LANES);
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
                        td_kv_ahead ahead, const int NQ) {
    size_t c = 0;
    for (; c + VF_TILE_V * LANES <= stride; c += VF_TILE_V * LANES)
        mix_tile(out + c, p, p_stride, v + c, n_k, stride, ahead, c, NQ, VF_TILE_V);
    for (; c < stride; c += LANES)
        mix_tile(out + c, p, p_stride, v + c, n_k, stride, ahead, c, NQ, 1);
}

static void attention_mix(float *out, uint32_t n_q, const float *p, size_t p_stride, const float *v, uint32_t n_k,
                          size_t stride, td_kv_ahead ahead) {
    const td_kv_ahead none = {NULL, 0};
    uint32_t i = 0;
    for (; i + VF_TILE_Q <= n_q; i += VF_TILE_Q)
        mix_queries(out + i * stride, p + i * p_stride, p_stride, v, n_k, stride, i == 0 ? ahead : none, VF_TILE_Q);
    for (; i < n_q; i++)
        mix_queries(out + i * stride, p + i * p_stride, p_stride, v, n_k, stride, i == 0 ? ahead : none, 1);
}

static void attention_fold(float *o, float a, const float *x, float b, uint32_t n) {
    for (uint32_t c = 0; c < n; c += LANES)
        vf_store(o + c, vf_fma(vf_load(x + c), vf_set1(b), vf_mul(vf_load(o + c), vf_set1(a))));
}

#endif
