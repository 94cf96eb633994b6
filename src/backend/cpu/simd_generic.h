/* simd_generic.h - the vector vocabulary in plain C: four lanes, in the compiler's own vectors where it has them.
 *
 * Every simd_*.h defines the same words, and the vec_*.h kernels are written in them alone:
 *   LANES, vf (a vector of floats), vm (a mask);  vf_fma(a, b, c) = a*b + c (here rounded twice, elsewhere once);
 *   vf_max and vf_min return their second operand when either is NaN;  vf_sum and vf_sum4 reduce in a fixed order;
 *   vf_keep(v) is v, in a register from there on, not loaded again for each use;
 *   vf_load_n reads the first n lanes and zeroes the rest;  vf_scale2(p, t) = p * 2^k for t = 1.5*2^23 + k;
 *   vm_bits(m) has bit i set where lane i is true;
 *   VF_TILE_*: how many accumulators fit the registers. */
#ifndef TD_BACKEND_CPU_SIMD_GENERIC_H
#define TD_BACKEND_CPU_SIMD_GENERIC_H

#include <stdint.h>
#include <string.h>

#include "tensor/dtype.h"

#define LANES 4
#define INLINE static inline __attribute__((always_inline, unused))
/* Outputs per tile for 1, 2, 3 and 4 rows; queries per tile of attention (two keys or vectors of values each), and as
 * many accumulators as few queries make use of with more keys or vectors. */
#define VF_TILE_O1 4
#define VF_TILE_O2 4
#define VF_TILE_O3 2
#define VF_TILE_O4 2
#define VF_TILE_Q 4
#define VF_TILE_ACC 8

typedef float vf __attribute__((vector_size(16)));
typedef int32_t vm __attribute__((vector_size(16)));

INLINE vf vf_set1(float x) {
    return (vf){x, x, x, x};
}

INLINE vf vf_zero(void) {
    return (vf){0, 0, 0, 0};
}

INLINE vf vf_load(const void *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}

INLINE void vf_store(float *p, vf v) {
    memcpy(p, &v, sizeof v);
}

INLINE vf vf_keep(vf v) {
    return v;
}

INLINE vf vf_load_n(const void *p, uint32_t n) {
    vf v = vf_zero();
    memcpy(&v, p, n * sizeof(float));
    return v;
}

INLINE void vf_store_n(float *p, vf v, uint32_t n) {
    memcpy(p, &v, n * sizeof(float));
}

INLINE vf vf_load_bf16(const void *p) {
    typedef uint16_t halves __attribute__((vector_size(8)));
    halves h;
    memcpy(&h, p, sizeof h);
    return (vf)(__builtin_convertvector(h, vm) << 16);
}

INLINE vf vf_load_f16(const void *p) {
    uint16_t h[LANES];
    memcpy(h, p, sizeof h);
    return (vf){td_f16_to_f32(h[0]), td_f16_to_f32(h[1]), td_f16_to_f32(h[2]), td_f16_to_f32(h[3])};
}

INLINE vf vf_load_e4m3(const void *p) {
    const uint8_t *b = p;
    return (vf){td_e4m3_to_f32(b[0]), td_e4m3_to_f32(b[1]), td_e4m3_to_f32(b[2]), td_e4m3_to_f32(b[3])};
}

INLINE vf vf_add(vf a, vf b) {
    return a + b;
}

INLINE vf vf_sub(vf a, vf b) {
    return a - b;
}

INLINE vf vf_mul(vf a, vf b) {
    return a * b;
}

INLINE vf vf_div(vf a, vf b) {
    return a / b;
}

INLINE vf vf_fma(vf a, vf b, vf c) {
    return a * b + c;
}

INLINE vm vf_less(vf a, vf b) {
    return a < b;
}

INLINE vf vf_pick(vm m, vf yes, vf no) {
    return (vf)((m & (vm)yes) | (~m & (vm)no));
}

INLINE uint32_t vm_bits(vm m) {
    return (uint32_t)((m[0] & 1) | (m[1] & 2) | (m[2] & 4) | (m[3] & 8));
}

INLINE vf vf_max(vf a, vf b) {
    return vf_pick(a > b, a, b);
}

INLINE vf vf_min(vf a, vf b) {
    return vf_pick(a < b, a, b);
}

INLINE vf vf_abs(vf a) {
    return (vf)((vm)a & 0x7FFFFFFF);
}

INLINE vf vf_copysign(vf magnitude, vf sign) {
    return (vf)(((vm)magnitude & 0x7FFFFFFF) | ((vm)sign & ~0x7FFFFFFF));
}

INLINE vf vf_scale2(vf p, vf t) {
    typedef uint32_t vu __attribute__((vector_size(16)));
    return (vf)((vu)p + ((vu)t << 23));
}

INLINE float vf_sum(vf v) {
    return (v[0] + v[2]) + (v[1] + v[3]);
}

INLINE float vf_top(vf v) {
    float a = v[0] > v[2] ? v[0] : v[2], b = v[1] > v[3] ? v[1] : v[3];
    return a > b ? a : b;
}

INLINE void vf_sum4(float *to, vf a, vf b, vf c, vf d) {
    to[0] = vf_sum(a);
    to[1] = vf_sum(b);
    to[2] = vf_sum(c);
    to[3] = vf_sum(d);
}

/* All lanes below `n` true. */
INLINE vm vf_first(uint32_t n) {
    return (vm){0, 1, 2, 3} < (vm){(int32_t)n, (int32_t)n, (int32_t)n, (int32_t)n};
}

#endif
