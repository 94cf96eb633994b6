/* affine_ymm.h - what the integer products of AVX2 and of AVX-VNNI have in common (see vec_affine.h): everything in 256
 * bits but the multiply-adds themselves. The file that includes it has included simd_avx2.h and defined FLIP. */
#ifndef TD_BACKEND_CPU_AFFINE_YMM_H
#define TD_BACKEND_CPU_AFFINE_YMM_H

#include "backend/cpu/vec_affine.h"

typedef __m256i vi;

/* ---- activations ---- */

INLINE int32_t across_i32(__m256i v) {
    __m128i s = _mm_add_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    s = _mm_add_epi32(s, _mm_shuffle_epi32(s, 0x4E));
    return _mm_cvtsi128_si32(_mm_add_epi32(s, _mm_shuffle_epi32(s, 0xB1)));
}

INLINE __m256i magnitude_bits(__m256 v) {
    return _mm256_and_si256(_mm256_castps_si256(v), _mm256_set1_epi32(0x7FFFFFFF));
}

/* 32 floats to bytes and their scale; returns the sum of the bytes. The largest magnitude is found on the bits: a NaN
 * or an infinity is above every number, becomes the scale, and so is not lost. */
INLINE int32_t quantize_32(int8_t *to, const float *x, float *scale) {
    __m256 v[4];
    __m256i top = _mm256_setzero_si256();
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_loadu_ps(x + 8 * i);
        top = _mm256_max_epu32(top, magnitude_bits(v[i]));
    }
    __m128i t = _mm_max_epu32(_mm256_castsi256_si128(top), _mm256_extracti128_si256(top, 1));
    t = _mm_max_epu32(t, _mm_shuffle_epi32(t, 0x4E));
    t = _mm_max_epu32(t, _mm_shuffle_epi32(t, 0xB1));
    float most = _mm_cvtss_f32(_mm_castsi128_ps(t));
    __m256 inverse = _mm256_set1_ps(most > 1e-30f ? 127.0f / most : 0.0f);
    __m256i q[4];
    for (int i = 0; i < 4; i++)
        q[i] = _mm256_cvtps_epi32(_mm256_mul_ps(v[i], inverse));
    int32_t sum = across_i32(_mm256_add_epi32(_mm256_add_epi32(q[0], q[1]), _mm256_add_epi32(q[2], q[3])));
    __m256i bytes = _mm256_packs_epi16(_mm256_packs_epi32(q[0], q[1]), _mm256_packs_epi32(q[2], q[3]));
    bytes = _mm256_permutevar8x32_epi32(bytes, _mm256_setr_epi32(0, 4, 1, 5, 2, 6, 3, 7));
    _mm256_store_si256((__m256i *)to, bytes);
    *scale = most / 127.0f;
    return sum;
}

INLINE void split_q4(int8_t *q) {
    const __m256i apart = _mm256_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15, 0, 2, 4, 6, 1, 3, 5, 7,
                                           8, 10, 12, 14, 9, 11, 13, 15);
    _mm256_store_si256((__m256i *)q, _mm256_shuffle_epi8(_mm256_load_si256((const __m256i *)q), apart));
}

/* ---- packing ---- */

INLINE vi load_row(const uint8_t *p, uint32_t n) {
    if (n == VECTOR_BYTES)
        return _mm256_loadu_si256((const __m256i *)p);
    _Alignas(32) uint8_t part[VECTOR_BYTES] = {0};
    memcpy(part, p, n);
    return _mm256_load_si256((const __m256i *)part);
}

INLINE void store_codes(uint8_t *p, vi v) {
    _mm256_store_si256((__m256i *)p, v);
}

INLINE vf widen_row(const uint8_t *p, td_dtype type, uint32_t n) {
    if (type == TD_DTYPE_F32)
        return vf_load_n(p, n);
    _Alignas(16) uint16_t part[LANES] = {0};
    if (n < LANES) {
        memcpy(part, p, n * sizeof *part);
        p = (const uint8_t *)part;
    }
    return type == TD_DTYPE_F16 ? vf_load_f16(p) : vf_load_bf16(p);
}

/* 8 x 8 dwords: pairs, fours, halves. */
INLINE void transpose(vi *v) {
    vi a[8], b[8];
#pragma GCC unroll 4
    for (int i = 0; i < 8; i += 2) {
        a[i] = _mm256_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm256_unpackhi_epi32(v[i], v[i + 1]);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 8; i += 4) {
        b[i] = _mm256_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm256_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm256_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm256_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        v[i] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x20);
        v[i + 4] = _mm256_permute2x128_si256(b[i], b[i + 4], 0x31);
    }
}

INLINE vi flip(vi v) {
    return _mm256_xor_si256(v, _mm256_set1_epi8(-128));
}

INLINE vi load_pairs(const uint8_t *low, const uint8_t *high, uint32_t n) {
    _Alignas(16) uint16_t part[2][LANES] = {0};
    if (n < LANES) {
        memcpy(part[0], low, 2 * n);
        memcpy(part[1], high, 2 * n);
        low = (const uint8_t *)part[0];
        high = (const uint8_t *)part[1];
    }
    const __m128i a = _mm_loadu_si128((const __m128i *)(const void *)low);
    const __m128i b = _mm_loadu_si128((const __m128i *)(const void *)high);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_unpacklo_epi16(a, b)), _mm_unpackhi_epi16(a, b), 1);
}

INLINE vi low_bf16(vi v) {
    return _mm256_slli_epi32(v, 16);
}

INLINE vi high_bf16(vi v) {
    return _mm256_and_si256(v, _mm256_set1_epi32((int)0xFFFF0000));
}

INLINE vf half_low(vi v) {
    const __m256i halves = _mm256_packus_epi32(_mm256_and_si256(v, _mm256_set1_epi32(0xFFFF)), _mm256_setzero_si256());
    return _mm256_cvtph_ps(_mm256_castsi256_si128(_mm256_permute4x64_epi64(halves, 0x08)));
}

/* ---- products ---- */

INLINE vi load_codes(const uint8_t *codes, const int d, const int bits) {
    const vi *p = (const vi *)(const void *)codes;
    if (bits == 8)
        return _mm256_load_si256(p + d);
    const vi v = _mm256_load_si256(p + d / 2);
    return _mm256_and_si256(d % 2 ? _mm256_srli_epi16(v, 4) : v, _mm256_set1_epi8(15));
}

INLINE vi look_up(vi v, const uint8_t *table) {
    const __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(t), v);
}

INLINE vi dot_zero(void) {
    return _mm256_setzero_si256();
}

INLINE vi spread_four(const int8_t *q) {
    int32_t four;
    memcpy(&four, q, 4);
    return _mm256_set1_epi32(four);
}

#endif
