/* vec_dot.h - products of f32, bf16 and f16 weights with float activations, in the vector vocabulary.
 *
 * A register tile holds the accumulators of NO outputs times NR rows; each step loads (and widens) NO vectors of
 * weights and NR of activations for NO*NR fused multiply-adds. Which tile an element falls into changes nothing: its
 * own accumulator sees the same products in the same order. More than four rows go in fours; drivers cut so that the
 * weights of the next four are still in the first-level cache. */
#ifndef TD_BACKEND_CPU_VEC_DOT_H
#define TD_BACKEND_CPU_VEC_DOT_H

#include "backend/cpu/dsp.h"

enum { KIND_F32, KIND_BF16, KIND_F16 };

INLINE vf load_weights(const int kind, const uint8_t *p) {
    return kind == KIND_F32 ? vf_load(p) : kind == KIND_BF16 ? vf_load_bf16(p) : vf_load_f16(p);
}

/* The first n, the rest zero. */
INLINE vf load_last_weights(const int kind, const uint8_t *p, uint32_t n) {
    if (kind == KIND_F32)
        return vf_load_n(p, n);
    uint16_t part[LANES] = {0};
    memcpy(part, p, n * sizeof *part);
    return load_weights(kind, (const uint8_t *)part);
}

INLINE void dot_tile(const td_tile *t, const int kind, uint32_t o0, uint32_t r0, const int NO, const int NR) {
    const size_t size = kind == KIND_F32 ? 4 : 2, stride = t->w->row_bytes;
    const uint8_t *w = t->w->data + o0 * stride;
    const float *x[4];
    const size_t ahead = r0 == 0 ? t->ahead : 0;
    vf acc[8][4];
    for (int r = 0; r < NR; r++)
        x[r] = t->x[r0 + (uint32_t)r];
    float *saved = t->acc + ((size_t)o0 * t->n_r + r0) * LANES;
#pragma GCC unroll 8
    for (int o = 0; o < NO; o++)
#pragma GCC unroll 8
        for (int r = 0; r < NR; r++)
            acc[o][r] = t->first ? vf_zero() : vf_load(saved + ((size_t)o * t->n_r + (size_t)r) * LANES);
    uint32_t k = t->k0;
    for (; k + LANES <= t->k1; k += LANES) {
        if (ahead && k * size % 64 == 0)
#pragma GCC unroll 8
            for (int o = 0; o < NO; o++)
                __builtin_prefetch(w + (size_t)o * stride + k * size + ahead);
        /* the shorter side waits in registers */
        if (NO > NR) {
            vf xv[4];
#pragma GCC unroll 8
            for (int r = 0; r < NR; r++)
                xv[r] = vf_load(x[r] + k);
#pragma GCC unroll 8
            for (int o = 0; o < NO; o++) {
                vf wv = load_weights(kind, w + (size_t)o * stride + k * size);
#pragma GCC unroll 8
                for (int r = 0; r < NR; r++)
                    acc[o][r] = vf_fma(wv, xv[r], acc[o][r]);
            }
        } else {
            vf wv[4];
#pragma GCC unroll 8
            for (int o = 0; o < NO; o++)
                wv[o] = load_weights(kind, w + (size_t)o * stride + k * size);
#pragma GCC unroll 8
            for (int r = 0; r < NR; r++) {
                vf xv = vf_load(x[r] + k);
#pragma GCC unroll 8
                for (int o = 0; o < NO; o++)
                    acc[o][r] = vf_fma(wv[o], xv, acc[o][r]);
            }
        }
    }
    if (k < t->k1) {
        uint32_t n = t->k1 - k;
#pragma GCC unroll 8
        for (int o = 0; o < NO; o++) {
            vf wv = load_last_weights(kind, w + (size_t)o * stride + k * size, n);
#pragma GCC unroll 8
            for (int r = 0; r < NR; r++)
                acc[o][r] = vf_fma(wv, vf_load_n(x[r] + k, n), acc[o][r]);
        }
    }
#pragma GCC unroll 8
    for (int o = 0; o < NO; o++)
#pragma GCC unroll 8
        for (int r = 0; r < NR; r++)
            if (t->last)
                t->y[(r0 + (size_t)r) * t->y_stride + o0 + (size_t)o] = vf_sum(acc[o][r]);
            else
                vf_store(saved + ((size_t)o * t->n_r + (size_t)r) * LANES, acc[o][r]);
}

#define DOT_ROWS(kind, NO, NR)                                                                                         \
    static __attribute__((noinline)) void dot_##kind##_##NR##_rows(const td_tile *t, uint32_t r0) {                    \
        uint32_t o = 0;                                                                                                \
        for (; o + (NO) <= t->n_o; o += (NO))                                                                          \
            dot_tile(t, KIND_##kind, o, r0, NO, NR);                                                                   \
        for (; o < t->n_o; o++)                                                                                        \
            dot_tile(t, KIND_##kind, o, r0, 1, NR);                                                                    \
    }

#define DOT_KIND(kind)                                                                                                 \
    DOT_ROWS(kind, VF_TILE_O1, 1)                                                                                      \
    DOT_ROWS(kind, VF_TILE_O2, 2)                                                                                      \
    DOT_ROWS(kind, VF_TILE_O3, 3)                                                                                      \
    DOT_ROWS(kind, VF_TILE_O4, 4)                                                                                      \
    static void dot_##kind(const td_tile *t) {                                                                         \
        static void (*const rows[])(const td_tile *, uint32_t) = {                                                     \
            dot_##kind##_1_rows,                                                                                       \
            dot_##kind##_2_rows,                                                                                       \
            dot_##kind##_3_rows,                                                                                       \
            dot_##kind##_4_rows,                                                                                       \
        };                                                                                                             \
        for (uint32_t r = 0, n; r < t->n_r; r += n) {                                                                  \
            n = t->n_r - r < 4 ? t->n_r - r : 4;                                                                       \
            rows[n - 1](t, r);                                                                                         \
        }                                                                                                              \
    }

DOT_KIND(F32)
DOT_KIND(BF16)
DOT_KIND(F16)

#endif
