/* delta_kernels.h - the kernels of delta.h, in the vector vocabulary of the simd_*.h included before.
 *
 * Per element of S and row: a load, a product and a fused update, a store, and two fused sums for the next row. With
 * TD_DELTA_TILE / LANES vectors a row of the tile there are as many independent chains for p and for o. */
#ifndef TD_BACKEND_CPU_DELTA_KERNELS_H
#define TD_BACKEND_CPU_DELTA_KERNELS_H

#include "backend/cpu/delta.h"
#include "backend/cpu/vec_math.h"

#define COLS (TD_DELTA_TILE / LANES)

INLINE void conv_lanes(float *out, const float *const *x, const float *w, size_t w_stride, uint32_t kernel, uint32_t c,
                       uint32_t m) {
    vf sum = vf_zero();
    for (uint32_t j = 0; j < kernel; j++) {
        const float *wj = w + j * w_stride + c, *xj = x[j] + c;
        sum = m == LANES ? vf_fma(vf_load(wj), vf_load(xj), sum) : vf_fma(vf_load_n(wj, m), vf_load_n(xj, m), sum);
    }
    vf y = vf_act(sum, TD_ACT_SILU);
    if (m == LANES)
        vf_store(out + c, y);
    else
        vf_store_n(out + c, y, m);
}

static void delta_conv(float *out, const float *const *x, const float *w, size_t w_stride, uint32_t kernel,
                       uint32_t n) {
    uint32_t c = 0;
    for (; c + LANES <= n; c += LANES)
        conv_lanes(out, x, w, w_stride, kernel, c, LANES);
    if (c < n)
        conv_lanes(out, x, w, w_stride, kernel, c, n - c);
}

static float delta_dot(const float *a, const float *b, uint32_t n) {
    vf sum = vf_zero();
    uint32_t i = 0;
    for (; i + LANES <= n; i += LANES)
        sum = vf_fma(vf_load(a + i), vf_load(b + i), sum);
    if (i < n)
        sum = vf_fma(vf_load_n(a + i, n - i), vf_load_n(b + i, n - i), sum);
    return vf_sum(sum);
}

/* Both steps in one body, so that they cannot come apart; a constant argument leaves one of them. */
INLINE void walk(float *s, uint32_t k_dim, const bool write, float alpha, const float *k, const float *u,
                 const bool read, const float *next_k, const float *next_q, float *p, float *o) {
    vf uv[COLS], pv[COLS], ov[COLS];
    const vf decay = vf_set1(alpha);
    for (int c = 0; c < COLS; c++) {
        uv[c] = write ? vf_load(u + c * LANES) : vf_zero();
        pv[c] = ov[c] = vf_zero();
    }
    for (uint32_t i = 0; i < k_dim; i++, s += TD_DELTA_TILE) {
        const vf kw = vf_set1(write ? k[i] : 0), kr = vf_set1(read ? next_k[i] : 0), qr = vf_set1(read ? next_q[i] : 0);
#pragma GCC unroll 8
        for (int c = 0; c < COLS; c++) {
            vf v = vf_load(s + c * LANES);
            if (write) {
                v = vf_fma(kw, uv[c], vf_mul(decay, v));
                vf_store(s + c * LANES, v);
            }
            if (read) {
                pv[c] = vf_fma(kr, v, pv[c]);
                ov[c] = vf_fma(qr, v, ov[c]);
            }
        }
    }
    for (int c = 0; c < COLS && read; c++) {
        vf_store(p + c * LANES, pv[c]);
        vf_store(o + c * LANES, ov[c]);
    }
}

static void delta_write(float *s, uint32_t k_dim, float alpha, const float *k, const float *u) {
    walk(s, k_dim, true, alpha, k, u, false, NULL, NULL, NULL, NULL);
}

static void delta_read(const float *s, uint32_t k_dim, const float *k, const float *q, float *p, float *o) {
    walk((float *)s, k_dim, false, 0, NULL, NULL, true, k, q, p, o);
}

static void delta_write_read(float *s, uint32_t k_dim, float alpha, const float *k, const float *u, const float *next_k,
                             const float *next_q, float *p, float *o) {
    walk(s, k_dim, true, alpha, k, u, true, next_k, next_q, p, o);
}

static void delta_result(float *u, float *out, const float *v, const float *p, const float *o, float alpha, float beta,
                         float qk) {
    const vf a = vf_set1(alpha), b = vf_set1(beta), x = vf_set1(qk), minus = vf_set1(-alpha);
    for (int c = 0; c < TD_DELTA_TILE; c += LANES) {
        vf uv = vf_mul(b, vf_fma(minus, vf_load(p + c), vf_load(v + c)));
        vf_store(u + c, uv);
        vf_store(out + c, vf_fma(x, uv, vf_mul(a, vf_load(o + c))));
    }
}

static const td_delta_dsp delta_kernels = {.conv = delta_conv,
                                           .dot = delta_dot,
                                           .write = delta_write,
                                           .read = delta_read,
                                           .write_read = delta_write_read,
                                           .result = delta_result};

#endif
