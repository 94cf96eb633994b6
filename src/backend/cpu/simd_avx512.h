/* simd_avx512.h - the vector vocabulary (see simd_generic.h) in AVX-512 F, BW, VL, DQ: sixteen lanes. */
#ifndef TD_BACKEND_CPU_SIMD_AVX512_H
#define TD_BACKEND_CPU_SIMD_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define INLINE static inline __attribute__((always_inline, unused))
#define VF_TILE_O1 8
#define VF_TILE_O2 6
#define VF_TILE_O3 6
#define VF_TILE_O4 6
#define VF_TILE_Q 8
#define VF_TILE_ACC 24

typedef __m512 vf;
typedef __mmask16 vm;

INLINE vf vf_set1(float x) {
    return _mm512_set1_ps(x);
}

INLINE vf vf_zero(void) {
    return _mm512_setzero_ps();
}

INLINE vf vf_load(const void *p) {
    return _mm512_loadu_ps(p);
}

INLINE void vf_store(float *p, vf v) {
    _mm512_storeu_ps(p, v);
}

INLINE vm vf_first(uint32_t n) {
    return (vm)(n >= 16 ? 0xFFFF : (1u << n) - 1);
}

INLINE vf vf_keep(vf v) {
    __asm__("" : "+v"(v));
    return v;
}

INLINE vf vf_load_n(const void *p, uint32_t n) {
    return _mm512_maskz_loadu_ps(vf_first(n), p);
}

INLINE void vf_store_n(float *p, vf v, uint32_t n) {
    _mm512_mask_storeu_ps(p, vf_first(n), v);
}

INLINE vf vf_load_bf16(const void *p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p)), 16));
}

INLINE vf vf_load_f16(const void *p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(p));
}

/* Exponent and mantissa moved into place are the number times 2^-120, subnormals too; the sign joins last. */
INLINE vf vf_load_e4m3(const void *p) {
    const __m512i b = _mm512_cvtepu8_epi32(_mm_loadu_si128(p)), size = _mm512_and_si512(b, _mm512_set1_epi32(0x7F));
    vf v = _mm512_mul_ps(_mm512_castsi512_ps(_mm512_slli_epi32(size, 20)), _mm512_set1_ps(0x1p120f));
    v = _mm512_mask_mov_ps(v, _mm512_cmpeq_epi32_mask(size, _mm512_set1_epi32(0x7F)),
                           _mm512_castsi512_ps(_mm512_set1_epi32(0x7FC00000)));
    __m512i sign = _mm512_slli_epi32(_mm512_andnot_si512(_mm512_set1_epi32(0x7F), b), 24);
    return _mm512_or_ps(v, _mm512_castsi512_ps(sign));
}

INLINE vf vf_add(vf a, vf b) {
    return _mm512_add_ps(a, b);
}

INLINE vf vf_sub(vf a, vf b) {
    return _mm512_sub_ps(a, b);
}

INLINE vf vf_mul(vf a, vf b) {
    return _mm512_mul_ps(a, b);
}

INLINE vf vf_div(vf a, vf b) {
    return _mm512_div_ps(a, b);
}

INLINE vf vf_fma(vf a, vf b, vf c) {
    return _mm512_fmadd_ps(a, b, c);
}

INLINE vf vf_max(vf a, vf b) {
    return _mm512_max_ps(a, b);
}

INLINE vf vf_min(vf a, vf b) {
    return _mm512_min_ps(a, b);
}

INLINE vm vf_less(vf a, vf b) {
    return _mm512_cmp_ps_mask(a, b, _CMP_LT_OQ);
}

INLINE vf vf_pick(vm m, vf yes, vf no) {
    return _mm512_mask_blend_ps(m, no, yes);
}

INLINE uint32_t vm_bits(vm m) {
    return m;
}

INLINE vf vf_abs(vf a) {
    return _mm512_abs_ps(a);
}

INLINE vf vf_copysign(vf magnitude, vf sign) {
    vf bit = _mm512_set1_ps(-0.0f);
    return _mm512_or_ps(_mm512_andnot_ps(bit, magnitude), _mm512_and_ps(bit, sign));
}

INLINE vf vf_scale2(vf p, vf t) {
    __m512i e = _mm512_slli_epi32(_mm512_castps_si512(t), 23);
    return _mm512_castsi512_ps(_mm512_add_epi32(_mm512_castps_si512(p), e));
}

INLINE float vf_sum(vf v) {
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

INLINE float vf_top(vf v) {
    __m256 h = _mm256_max_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

INLINE void vf_sum4(float *to, vf a, vf b, vf c, vf d) {
    vf ab = _mm512_add_ps(_mm512_unpacklo_ps(a, b), _mm512_unpackhi_ps(a, b));
    vf cd = _mm512_add_ps(_mm512_unpacklo_ps(c, d), _mm512_unpackhi_ps(c, d));
    vf s = _mm512_add_ps(_mm512_shuffle_ps(ab, cd, 0x44), _mm512_shuffle_ps(ab, cd, 0xEE));
    __m256 h = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(h), _mm256_extractf128_ps(h, 1)));
}

#endif
