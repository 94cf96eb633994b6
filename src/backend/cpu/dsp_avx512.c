/* dsp_avx512.c - the kernels in AVX-512 (F, BW, VL, DQ) with VNNI.
 *
 * The integer product works on blocks of 512 inputs: sixteen sub-blocks of 32, one per lane of the accumulator.
 *
 * 4 bits. A block of weights is four vectors of 64 bytes. Byte i holds inputs 2i (low nibble) and 2i + 1 (high), so
 * each 16-byte lane of a vector holds one sub-block, and AND and shift give its even and its odd inputs. Activations
 * are stored the same way, evens and odds apart. vpdpbusd adds four products (unsigned weight, signed activation)
 * into each of the lane's four 32-bit sums. The four vectors are then added across into one of sixteen sums: lane
 * 4j + i is sub-block 4i + j. One multiplication of the scales and two fused multiply-adds account for 512 inputs.
 *
 * 8 bits. Eight vectors of 64 bytes; a sub-block is half a vector, two lanes. The same addition across, and once more
 * between neighbouring lanes: lane i is sub-block 2i, lane 4 + i is 2i + 1, and 8 + i, 12 + i are those plus 8. */
#include "backend/cpu/dsp.h"

#if defined(__AVX512F__) && defined(__AVX512BW__) && defined(__AVX512VL__) && defined(__AVX512DQ__) &&                 \
    defined(__AVX512VNNI__)

#include "backend/cpu/simd_avx512.h"

#include "backend/cpu/vec_affine.h"
#include "backend/cpu/vec_attention.h"
#include "backend/cpu/vec_dot.h"

static const uint8_t order4[16] = {0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15};
static const uint8_t order8[16] = {0, 2, 4, 6, 1, 3, 5, 7, 8, 10, 12, 14, 9, 11, 13, 15};

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

/* Evens and odds apart; sub-blocks 4i to 4i + 3 are the lanes of vectors 2i (evens) and 2i + 1 (odds). */
INLINE void place_q4(q_block *b, uint32_t i, const int8_t *q) {
    const __m128i apart = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    __m128i lo = _mm_shuffle_epi8(_mm_load_si128((const __m128i *)q), apart);
    __m128i hi = _mm_shuffle_epi8(_mm_load_si128((const __m128i *)(q + 16)), apart);
    int8_t *at = b->q + i / 4 * 128 + i % 4 * 16;
    _mm_storeu_si128((__m128i *)at, _mm_unpacklo_epi64(lo, hi));
    _mm_storeu_si128((__m128i *)(at + 64), _mm_unpackhi_epi64(lo, hi));
}

INLINE void place_q8(q_block *b, uint32_t i, const int8_t *q) {
    memcpy(b->q + i * 32, q, 32);
}

/* ---- products ---- */

INLINE void spread(affine_block *to, const float *scales, const float *biases, uint32_t group, int bits) {
    __m512i lanes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(bits == 4 ? order4 : order8)));
    __m512i from = _mm512_srl_epi32(lanes, _mm_cvtsi32_si128(group == 32 ? 0 : group == 64 ? 1 : 2));
    _mm512_store_ps(to->scale, _mm512_permutexvar_ps(from, _mm512_loadu_ps(scales)));
    _mm512_storeu_ps(to->bias, _mm512_permutexvar_ps(from, _mm512_loadu_ps(biases)));
}

/* The four sums in each 16-byte lane of a, b, c, d to one: lane j of the result is (a_j, b_j, c_j, d_j). */
INLINE __m512i add_across(__m512i a, __m512i b, __m512i c, __m512i d) {
    __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
    __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
    return _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
}

INLINE __m512i dot_64(__m512i sum, __m512i w, const int8_t *q) {
    return _mm512_dpbusd_epi32(sum, w, _mm512_loadu_si512(q));
}

INLINE __m512 add_block(__m512 acc, __m512i sums, const affine_block *s, const q_block *x) {
    __m512 k = _mm512_mul_ps(_mm512_load_ps(s->scale), _mm512_loadu_ps(x->scale));
    acc = _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums), k, acc);
    return _mm512_fmadd_ps(_mm512_loadu_ps(s->bias), _mm512_loadu_ps(x->sum), acc);
}

INLINE void block_q4(__m512 *acc, const uint8_t *w, const affine_block *s, const q_block *const *x, uint32_t b,
                     const int NR) {
    const __m512i nibble = _mm512_set1_epi8(15);
    __m512i even[4], odd[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m512i raw = _mm512_loadu_si512(w + 64 * i);
        even[i] = _mm512_and_si512(raw, nibble);
        odd[i] = _mm512_and_si512(_mm512_srli_epi16(raw, 4), nibble);
    }
#pragma GCC unroll 8
    for (int r = 0; r < NR; r++) {
        const q_block *xb = x[r] + b;
        __m512i sum[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) {
            sum[i] = dot_64(_mm512_setzero_si512(), even[i], xb->q + 128 * i);
            sum[i] = dot_64(sum[i], odd[i], xb->q + 128 * i + 64);
        }
        acc[r] = add_block(acc[r], add_across(sum[0], sum[1], sum[2], sum[3]), s, xb);
    }
}

INLINE void block_q8(__m512 *acc, const uint8_t *w, const affine_block *s, const q_block *const *x, uint32_t b,
                     const int NR) {
    __m512i c[8];
#pragma GCC unroll 8
    for (int i = 0; i < 8; i++)
        c[i] = _mm512_loadu_si512(w + 64 * i);
#pragma GCC unroll 8
    for (int r = 0; r < NR; r++) {
        const q_block *xb = x[r] + b;
        __m512i half[2];
#pragma GCC unroll 2
        for (int h = 0; h < 2; h++) {
            __m512i sum[4];
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++)
                sum[i] = dot_64(_mm512_setzero_si512(), c[4 * h + i], xb->q + 256 * h + 64 * i);
            half[h] = add_across(sum[0], sum[1], sum[2], sum[3]);
        }
        __m512i sums = _mm512_add_epi32(_mm512_shuffle_i32x4(half[0], half[1], 0x88),
                                        _mm512_shuffle_i32x4(half[0], half[1], 0xDD));
        acc[r] = add_block(acc[r], sums, s, xb);
    }
}

#include "backend/cpu/affine_loops.h"

void td_dsp_init_avx512(td_dsp *d) {
    d->isa = TD_ISA_AVX512;
    d->name = "avx512";
    fill_vector_slots(d);
    fill_affine_slots(d);
}

#else

void td_dsp_init_avx512(td_dsp *d) {
    (void)d;
}

#endif
