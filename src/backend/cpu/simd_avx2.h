/* simd_avx2.h - the vector vocabulary (see simd_generic.h) in AVX2 with FMA and F16C: eight lanes. */
#ifndef TD_BACKEND_CPU_SIMD_AVX2_H
#define TD_BACKEND_CPU_SIMD_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define LANES 8
#define INLINE static inline __attribute__((always_inline, unused))
#define VF_TILE_O1 4
#define VF_TILE_O2 4
#define VF_TILE_O3 3
#define VF_TILE_O4 3
#define VF_TILE_Q 6
#define VF_TILE_ACC 8

typedef __m256 vf;
typedef __m256 vm;

INLINE vf vf_set1(float x) {
    return _mm256_set1_ps(x);
}

INLINE vf vf_zero(void) {
    return _mm256_setzero_ps();
}

INLINE vf vf_load(const void *p) {
    return _mm256_loadu_ps(p);
}

INLINE void vf_store(float *p, vf v) {
    _mm256_storeu_ps(p, v);
}

INLINE vm vf_first(uint32_t n) {
    return _mm256_castsi256_ps(
        _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7)));
}

INLINE vf vf_keep(vf v) {
    __asm__("" : "+x"(v));
    return v;
}

INLINE vf vf_load_n(const void *p, uint32_t n) {
    return _mm256_maskload_ps(p, _mm256_castps_si256(vf_first(n)));
}

INLINE void vf_store_n(float *p, vf v, uint32_t n) {
    _mm256_maskstore_ps(p, _mm256_castps_si256(vf_first(n)), v);
}

INLINE vf vf_load_bf16(const void *p) {
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128(p)), 16));
}

INLINE vf vf_load_f16(const void *p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(p));
}

/* Exponent and mantissa moved into place are the number times 2^-120, subnormals too; the sign joins last. */
INLINE vf vf_load_e4m3(const void *p) {
    const __m256i b = _mm256_cvtepu8_epi32(_mm_loadl_epi64(p)), size = _mm256_and_si256(b, _mm256_set1_epi32(0x7F));
    vf v = _mm256_mul_ps(_mm256_castsi256_ps(_mm256_slli_epi32(size, 20)), _mm256_set1_ps(0x1p120f));
    __m256i nan = _mm256_slli_epi32(_mm256_cmpeq_epi32(size, _mm256_set1_epi32(0x7F)), 22);
    __m256i sign = _mm256_slli_epi32(_mm256_andnot_si256(_mm256_set1_epi32(0x7F), b), 24);
    return _mm256_or_ps(v, _mm256_castsi256_ps(_mm256_or_si256(nan, sign)));
}

INLINE vf vf_add(vf a, vf b) {
    return _mm256_add_ps(a, b);
}

INLINE vf vf_sub(vf a, vf b) {
    return _mm256_sub_ps(a, b);
}

INLINE vf vf_mul(vf a, vf b) {
    return _mm256_mul_ps(a, b);
}

INLINE vf vf_div(vf a, vf b) {
    return _mm256_div_ps(a, b);
}

INLINE vf vf_fma(vf a, vf b, vf c) {
    return _mm256_fmadd_ps(a, b, c);
}

INLINE vf vf_max(vf a, vf b) {
    return _mm256_max_ps(a, b);
}

INLINE vf vf_min(vf a, vf b) {
    return _mm256_min_ps(a, b);
}

INLINE vm vf_less(vf a, vf b) {
    return _mm256_cmp_ps(a, b, _CMP_LT_OQ);
}

INLINE vf vf_pick(vm m, vf yes, vf no) {
    return _mm256_blendv_ps(no, yes, m);
}

INLINE uint32_t vm_bits(vm m) {
    return (uint32_t)_mm256_movemask_ps(m);
}

INLINE vf vf_abs(vf a) {
    return _mm256_andnot_ps(_mm256_set1_ps(-0.0f), a);
}

INLINE vf vf_copysign(vf magnitude, vf sign) {
    vf bit = _mm256_set1_ps(-0.0f);
    return _mm256_or_ps(_mm256_andnot_ps(bit, magnitude), _mm256_and_ps(bit, sign));
}

INLINE vf vf_scale2(vf p, vf t) {
    __m256i e = _mm256_slli_epi32(_mm256_castps_si256(t), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(p), e));
}

INLINE float vf_sum(vf v) {
    __m128 q = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    q = _mm_add_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_add_ss(q, _mm_movehdup_ps(q)));
}

INLINE float vf_top(vf v) {
    __m128 q = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    q = _mm_max_ps(q, _mm_movehl_ps(q, q));
    return _mm_cvtss_f32(_mm_max_ss(q, _mm_movehdup_ps(q)));
}

INLINE void vf_sum4(float *to, vf a, vf b, vf c, vf d) {
    vf ab = _mm256_add_ps(_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b));
    vf cd = _mm256_add_ps(_mm256_unpacklo_ps(c, d), _mm256_unpackhi_ps(c, d));
    vf s = _mm256_add_ps(_mm256_shuffle_ps(ab, cd, 0x44), _mm256_shuffle_ps(ab, cd, 0xEE));
    _mm_storeu_ps(to, _mm_add_ps(_mm256_castps256_ps128(s), _mm256_extractf128_ps(s, 1)));
}

#endif
