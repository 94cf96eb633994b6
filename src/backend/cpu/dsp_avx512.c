/* dsp_avx512.c - the kernels in AVX-512 (F, BW, VL, DQ) with VNNI.
 *
 * Integer products (see vec_affine.h): sixteen outputs a vector. vpdpbusd multiplies unsigned codes with signed
 * activations and adds four products into 32 bits, and takes the four activations of every lane straight from memory,
 * so a block of 32 inputs is eight instructions for any width of codes. */
#include "backend/cpu/dsp.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) &&                 \
    defined(__AVX512VNNI__)

#include "backend/cpu/simd_avx512.h"

#include "backend/cpu/vec_affine.h"
#include "backend/cpu/vec_attention.h"
#include "backend/cpu/vec_dot.h"
#include "backend/cpu/unpack_x86.h"
#include "backend/cpu/vec_rows.h"

typedef __m512i vi;

#define FLIP 0
#define WIDE_SUMS 1
#define VECTORS 1
#define ROWS_AT_A_TIME 8
#define PREFETCH_BYTES 12288

/* ---- activations ---- */

INLINE __m512i magnitude_bits(__m512 v) {
    return _mm512_and_si512(_mm512_castps_si512(v), _mm512_set1_epi32(0x7FFFFFFF));
}

/* 32 floats to bytes and their scale; returns the sum of the bytes. The largest magnitude is found on the bits: a NaN
 * or an infinity is above every number, becomes the scale, and so is not lost. */
INLINE int32_t quantize_32(int8_t *to, const float *x, float *scale) {
    __m512 a = _mm512_loadu_ps(x), b = _mm512_loadu_ps(x + 16);
    uint32_t top = _mm512_reduce_max_epu32(_mm512_max_epu32(magnitude_bits(a), magnitude_bits(b)));
    float most = _mm_cvtss_f32(_mm_castsi128_ps(_mm_cvtsi32_si128((int)top)));
    __m512 inverse = _mm512_set1_ps(most > 1e-30f ? 127.0f / most : 0.0f);
    __m512i qa = _mm512_cvtps_epi32(_mm512_mul_ps(a, inverse)), qb = _mm512_cvtps_epi32(_mm512_mul_ps(b, inverse));
    _mm_store_si128((__m128i *)to, _mm512_cvtsepi32_epi8(qa));
    _mm_store_si128((__m128i *)(to + 16), _mm512_cvtsepi32_epi8(qb));
    *scale = most / 127.0f;
    return _mm512_reduce_add_epi32(_mm512_add_epi32(qa, qb));
}

INLINE void split_q4(int8_t *q) {
    const __m256i apart = _mm256_setr_epi8(0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15, 0, 2, 4, 6, 1, 3, 5, 7,
                                           8, 10, 12, 14, 9, 11, 13, 15);
    _mm256_store_si256((__m256i *)q, _mm256_shuffle_epi8(_mm256_load_si256((const __m256i *)q), apart));
}

/* ---- packing ---- */

INLINE vi load_row(const uint8_t *p, uint32_t n) {
    return n == VECTOR_BYTES ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi8(((__mmask64)1 << n) - 1, p);
}

INLINE void store_codes(uint8_t *p, vi v) {
    _mm512_store_si512(p, v);
}

INLINE vf widen_row(const uint8_t *p, td_dtype type, uint32_t n) {
    if (type == TD_DTYPE_F32)
        return vf_load_n(p, n);
    __m256i half = _mm256_maskz_loadu_epi16(vf_first(n), p);
    return type == TD_DTYPE_F16 ? _mm512_cvtph_ps(half)
                                : _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

/* 16 x 16 dwords: pairs, fours, then 4 x 4 blocks of 128 bits. */
INLINE void transpose(vi *v) {
    vi a[16], b[16];
#pragma GCC unroll 8
    for (int i = 0; i < 16; i += 2) {
        a[i] = _mm512_unpacklo_epi32(v[i], v[i + 1]);
        a[i + 1] = _mm512_unpackhi_epi32(v[i], v[i + 1]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 16; i += 4) {
        b[i] = _mm512_unpacklo_epi64(a[i], a[i + 2]);
        b[i + 1] = _mm512_unpackhi_epi64(a[i], a[i + 2]);
        b[i + 2] = _mm512_unpacklo_epi64(a[i + 1], a[i + 3]);
        b[i + 3] = _mm512_unpackhi_epi64(a[i + 1], a[i + 3]);
    }
    /* b[4*q + c], lane l: column 4*l + c of rows 4*q .. 4*q + 3 */
#pragma GCC unroll 4
    for (int c = 0; c < 4; c++) {
        vi lo01 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0x44), hi01 = _mm512_shuffle_i32x4(b[c], b[4 + c], 0xEE);
        vi lo23 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0x44),
           hi23 = _mm512_shuffle_i32x4(b[8 + c], b[12 + c], 0xEE);
        v[c] = _mm512_shuffle_i32x4(lo01, lo23, 0x88);
        v[4 + c] = _mm512_shuffle_i32x4(lo01, lo23, 0xDD);
        v[8 + c] = _mm512_shuffle_i32x4(hi01, hi23, 0x88);
        v[12 + c] = _mm512_shuffle_i32x4(hi01, hi23, 0xDD);
    }
}

INLINE vi flip(vi v) {
    return v;
}

INLINE vi load_pairs(const uint8_t *low, const uint8_t *high, uint32_t n) {
    __m256i a = _mm256_maskz_loadu_epi16(vf_first(n), low), b = _mm256_maskz_loadu_epi16(vf_first(n), high);
    return _mm512_or_si512(_mm512_cvtepu16_epi32(a), _mm512_slli_epi32(_mm512_cvtepu16_epi32(b), 16));
}

INLINE vi low_bf16(vi v) {
    return _mm512_slli_epi32(v, 16);
}

INLINE vi high_bf16(vi v) {
    return _mm512_and_si512(v, _mm512_set1_epi32((int)0xFFFF0000));
}

INLINE vf half_low(vi v) {
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(v));
}

/* ---- products ---- */

INLINE vi load_codes(const uint8_t *codes, const int d, const int bits) {
    if (bits == 8)
        return _mm512_load_si512(codes + d * VECTOR_BYTES);
    const vi v = _mm512_load_si512(codes + d / 2 * VECTOR_BYTES);
    return _mm512_and_si512(d % 2 ? _mm512_srli_epi16(v, 4) : v, _mm512_set1_epi8(15));
}

INLINE vi look_up(vi v, const uint8_t *table) {
    const __m128i t = _mm_loadu_si128((const __m128i *)(const void *)table);
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(t), v);
}

INLINE vi dot_zero(void) {
    return _mm512_setzero_si512();
}

INLINE vi spread_four(const int8_t *q) {
    int32_t four;
    memcpy(&four, q, 4);
    return _mm512_set1_epi32(four);
}

INLINE vi dot_step(vi sum, vi w, vi x, const int bits) {
    (void)bits;
    return _mm512_dpbusd_epi32(sum, w, x);
}

INLINE vf dot_end(vi sum, const int bits) {
    (void)bits;
    return _mm512_cvtepi32_ps(sum);
}

#include "backend/cpu/block_loops.h"

void td_dsp_init_avx512(td_dsp *d) {
    d->isa = TD_ISA_AVX512;
    d->name = "avx512";
    fill_vector_slots(d);
    fill_affine_slots(d);
    fill_block_slots(d);
    d->unpack = unpack_x86;
    d->unpack_table = unpack_table_x86;
}

#else

void td_dsp_init_avx512(td_dsp *d) {
    (void)d;
}

#endif
