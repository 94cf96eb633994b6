/* simd_neon.h - the vector vocabulary (see simd_generic.h) in Advanced SIMD as every 64-bit ARM has it: four lanes and
 * thirty-two registers. Loads go by bytes, because weights may lie at any address. */
#ifndef TD_BACKEND_CPU_SIMD_NEON_H
#define TD_BACKEND_CPU_SIMD_NEON_H

#include <arm_neon.h>
#include <stdint.h>
#include <string.h>

#define LANES 4
#define INLINE static inline __attribute__((always_inline, unused))
#define VF_TILE_O1 8
#define VF_TILE_O2 6
#define VF_TILE_O3 6
#define VF_TILE_O4 6
#define VF_TILE_Q 8
#define VF_TILE_ACC 16

typedef float32x4_t vf;
typedef uint32x4_t vm;

INLINE vf vf_set1(float x) {
    return vdupq_n_f32(x);
}

INLINE vf vf_zero(void) {
    return vdupq_n_f32(0);
}

INLINE vf vf_load(const void *p) {
    return vreinterpretq_f32_u8(vld1q_u8(p));
}

INLINE void vf_store(float *p, vf v) {
    vst1q_f32(p, v);
}

INLINE vm vf_first(uint32_t n) {
    return vcltq_u32((uint32x4_t){0, 1, 2, 3}, vdupq_n_u32(n));
}

INLINE vf vf_keep(vf v) {
    __asm__("" : "+w"(v));
    return v;
}

INLINE vf vf_load_n(const void *p, uint32_t n) {
    float part[LANES] = {0};
    memcpy(part, p, n * sizeof *part);
    return vld1q_f32(part);
}

INLINE void vf_store_n(float *p, vf v, uint32_t n) {
    memcpy(p, &v, n * sizeof *p);
}

INLINE vf vf_load_bf16(const void *p) {
    return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16));
}

INLINE vf vf_load_f16(const void *p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p)));
}

/* Exponent and mantissa moved into place are the number times 2^-120, subnormals too; the sign joins last. */
INLINE vf vf_load_e4m3(const void *p) {
    uint32_t four;
    memcpy(&four, p, sizeof four);
    const uint8x8_t bytes = vreinterpret_u8_u32(vdup_n_u32(four));
    const uint32x4_t b = vmovl_u16(vget_low_u16(vmovl_u8(bytes))), size = vandq_u32(b, vdupq_n_u32(0x7F));
    const vf v = vmulq_f32(vreinterpretq_f32_u32(vshlq_n_u32(size, 20)), vdupq_n_f32(0x1p120f));
    const uint32x4_t nan = vshlq_n_u32(vceqq_u32(size, vdupq_n_u32(0x7F)), 22);
    const uint32x4_t sign = vshlq_n_u32(vandq_u32(b, vdupq_n_u32(0x80)), 24);
    return vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(v), vorrq_u32(nan, sign)));
}

INLINE vf vf_add(vf a, vf b) {
    return vaddq_f32(a, b);
}

INLINE vf vf_sub(vf a, vf b) {
    return vsubq_f32(a, b);
}

INLINE vf vf_mul(vf a, vf b) {
    return vmulq_f32(a, b);
}

INLINE vf vf_div(vf a, vf b) {
    return vdivq_f32(a, b);
}

INLINE vf vf_fma(vf a, vf b, vf c) {
    return vfmaq_f32(c, a, b);
}

INLINE vm vf_less(vf a, vf b) {
    return vcltq_f32(a, b);
}

INLINE uint32_t vm_bits(vm m) {
    return vaddvq_u32(vandq_u32(m, (uint32x4_t){1, 2, 4, 8}));
}

INLINE vf vf_pick(vm m, vf yes, vf no) {
    return vbslq_f32(m, yes, no);
}

/* fmax and fmin return a NaN when either side is one. */
INLINE vf vf_max(vf a, vf b) {
    return vbslq_f32(vcgtq_f32(a, b), a, b);
}

INLINE vf vf_min(vf a, vf b) {
    return vbslq_f32(vcltq_f32(a, b), a, b);
}

INLINE vf vf_abs(vf a) {
    return vabsq_f32(a);
}

INLINE vf vf_copysign(vf magnitude, vf sign) {
    return vbslq_f32(vdupq_n_u32(0x80000000), sign, magnitude);
}

INLINE vf vf_scale2(vf p, vf t) {
    const uint32x4_t e = vshlq_n_u32(vreinterpretq_u32_f32(t), 23);
    return vreinterpretq_f32_u32(vaddq_u32(vreinterpretq_u32_f32(p), e));
}

INLINE float vf_sum(vf v) {
    return vaddvq_f32(v);
}

INLINE float vf_top(vf v) {
    return vmaxvq_f32(v);
}

INLINE void vf_sum4(float *to, vf a, vf b, vf c, vf d) {
    vst1q_f32(to, vpaddq_f32(vpaddq_f32(a, b), vpaddq_f32(c, d)));
}

#endif
