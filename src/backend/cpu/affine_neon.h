/* affine_neon.h - what the integer products of NEON with and without its dot-product extension have in common (see
 * vec_affine.h): everything but the multiply-adds themselves. Both multiply signed bytes with signed bytes, so codes of
 * 8 bits are packed less 128. The file that includes it has included simd_neon.h. */
#ifndef TD_BACKEND_CPU_AFFINE_NEON_H
#define TD_BACKEND_CPU_AFFINE_NEON_H

#define FLIP 128
#define VECTORS 2
#define ROWS_AT_A_TIME 4
#define PREFETCH_BYTES 12288

#include "backend/cpu/vec_affine.h"

typedef uint32x4_t vi;

/* ---- activations ---- */

/* 32 floats to bytes and their scale; returns the sum of the bytes. The largest magnitude is found on the bits: a NaN
 * or an infinity is above every number, becomes the scale, and so is not lost. */
INLINE int32_t quantize_32(int8_t *to, const float *x, float *scale) {
    vf v[8];
    uint32x4_t top = vdupq_n_u32(0);
    for (int i = 0; i < 8; i++) {
        v[i] = vf_load(x + 4 * i);
        top = vmaxq_u32(top, vreinterpretq_u32_f32(vabsq_f32(v[i])));
    }
    const uint32_t bits = vmaxvq_u32(top);
    float most;
    memcpy(&most, &bits, sizeof most);
    const vf inverse = vdupq_n_f32(most > 1e-30f ? 127.0f / most : 0.0f);
    int32x4_t sum = vdupq_n_s32(0);
    for (int i = 0; i < 8; i += 4) {
        int32x4_t q[4];
        for (int j = 0; j < 4; j++) {
            q[j] = vcvtnq_s32_f32(vmulq_f32(v[i + j], inverse)); /* to the nearest, ties to even; a NaN to 0 */
            sum = vaddq_s32(sum, q[j]);
        }
        const int16x8_t low = vcombine_s16(vqmovn_s32(q[0]), vqmovn_s32(q[1]));
        const int16x8_t high = vcombine_s16(vqmovn_s32(q[2]), vqmovn_s32(q[3]));
        vst1q_s8(to + 4 * i, vcombine_s8(vqmovn_s16(low), vqmovn_s16(high)));
    }
    *scale = most / 127.0f;
    return vaddvq_s32(sum);
}

INLINE void split_q4(int8_t *q) {
    static const uint8_t apart[16] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};
    const uint8x16_t order = vld1q_u8(apart);
    vst1q_s8(q, vqtbl1q_s8(vld1q_s8(q), order));
    vst1q_s8(q + 16, vqtbl1q_s8(vld1q_s8(q + 16), order));
}

/* ---- packing ---- */

INLINE vi load_row(const uint8_t *p, uint32_t n) {
    if (n == VECTOR_BYTES)
        return vreinterpretq_u32_u8(vld1q_u8(p));
    uint8_t part[VECTOR_BYTES] = {0};
    memcpy(part, p, n);
    return vreinterpretq_u32_u8(vld1q_u8(part));
}

INLINE void store_codes(uint8_t *p, vi v) {
    vst1q_u8(p, vreinterpretq_u8_u32(v));
}

INLINE vf widen_row(const uint8_t *p, td_dtype type, uint32_t n) {
    if (type == TD_DTYPE_F32)
        return n == LANES ? vf_load(p) : vf_load_n(p, n);
    uint16_t part[LANES] = {0};
    if (n < LANES) {
        memcpy(part, p, n * sizeof *part);
        p = (const uint8_t *)part;
    }
    return type == TD_DTYPE_F16 ? vf_load_f16(p) : vf_load_bf16(p);
}

INLINE vi low_halves(vi a, vi b) {
    return vreinterpretq_u32_u64(vtrn1q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)));
}

INLINE vi high_halves(vi a, vi b) {
    return vreinterpretq_u32_u64(vtrn2q_u64(vreinterpretq_u64_u32(a), vreinterpretq_u64_u32(b)));
}

/* 4 x 4 dwords: pairs, halves. */
INLINE void transpose(vi *v) {
    const vi a = vtrn1q_u32(v[0], v[1]), b = vtrn2q_u32(v[0], v[1]);
    const vi c = vtrn1q_u32(v[2], v[3]), d = vtrn2q_u32(v[2], v[3]);
    v[0] = low_halves(a, c);
    v[1] = low_halves(b, d);
    v[2] = high_halves(a, c);
    v[3] = high_halves(b, d);
}

INLINE vi flip(vi v) {
    return veorq_u32(v, vdupq_n_u32(0x80808080));
}

INLINE vi load_pairs(const uint8_t *low, const uint8_t *high, uint32_t n) {
    uint16_t part[2][LANES] = {0};
    if (n < LANES) {
        memcpy(part[0], low, 2 * n);
        memcpy(part[1], high, 2 * n);
        low = (const uint8_t *)part[0];
        high = (const uint8_t *)part[1];
    }
    const uint16x4_t a = vreinterpret_u16_u8(vld1_u8(low)), b = vreinterpret_u16_u8(vld1_u8(high));
    return vreinterpretq_u32_u16(vcombine_u16(vzip1_u16(a, b), vzip2_u16(a, b)));
}

INLINE vi low_bf16(vi v) {
    return vshlq_n_u32(v, 16);
}

INLINE vi high_bf16(vi v) {
    return vandq_u32(v, vdupq_n_u32(0xFFFF0000));
}

INLINE vf half_low(vi v) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vmovn_u32(v)));
}

/* ---- products ---- */

INLINE vi load_codes(const uint8_t *codes, const int d, const int bits) {
    if (bits == 8)
        return vreinterpretq_u32_u8(vld1q_u8(codes + d * VECTOR_BYTES));
    const uint8x16_t v = vld1q_u8(codes + d / 2 * VECTOR_BYTES);
    return vreinterpretq_u32_u8(d % 2 ? vshrq_n_u8(v, 4) : vandq_u8(v, vdupq_n_u8(15)));
}

INLINE vi look_up(vi v, const uint8_t *table) {
    return vreinterpretq_u32_u8(vqtbl1q_u8(vld1q_u8(table), vreinterpretq_u8_u32(v)));
}

INLINE vi dot_zero(void) {
    return vdupq_n_u32(0);
}

#endif
