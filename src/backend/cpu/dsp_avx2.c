/* dsp_avx2.c - the kernels in AVX2, FMA and F16C.
 *
 * The integer product works on blocks of 256 inputs: eight sub-blocks of 32, one per lane of the accumulator.
 *
 * 4 bits. A block of weights is four vectors of 32 bytes. Byte i holds inputs 2i (low nibble) and 2i + 1 (high), so
 * each 16-byte lane of a vector holds one sub-block, and AND and shift give its even and its odd inputs. Activations
 * are stored the same way, evens and odds apart. vpmaddubsw adds two products into each of the lane's eight 16-bit
 * sums; evens and odds together stay within 4*15*127 = 7620. Two rounds of vphaddw add the four vectors across
 * (30480 at most, still 16 bits) and one vpmaddwd widens: lane 4j + i is sub-block 2i + j. The detour over 16 bits
 * is what makes this level fast: one widening, one conversion and one multiplication per 256 inputs.
 *
 * 8 bits. Unsigned codes up to 255 would saturate vpmaddubsw. The code less 128 does not: |c - 128| <= 128 as the
 * unsigned operand, the activation with the sign of c - 128 as the signed one, 2*128*127 = 32512. The 128 goes into
 * the bias. The two 16-byte halves of a sub-block are loaded into the same lane of two vectors, so that lanes and
 * sub-blocks match as above. */
#include "backend/cpu/dsp.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "backend/cpu/simd_avx2.h"

#include "backend/cpu/vec_affine.h"
#include "backend/cpu/vec_attention.h"
#include "backend/cpu/vec_dot.h"

static const uint8_t order4[8] = {0, 2, 4, 6, 1, 3, 5, 7};
static const uint8_t order8[8] = {0, 2, 4, 6, 1, 3, 5, 7};

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

/* Evens and odds apart; sub-blocks 2i and 2i + 1 are the lanes of vectors 2i (evens) and 2i + 1 (odds). */
INLINE void place_q4(q_block *b, uint32_t i, const int8_t *q) {
    const __m128i apart = _mm_setr_epi8(0, 2, 4, 6, 8, 10, 12, 14, 1, 3, 5, 7, 9, 11, 13, 15);
    __m128i lo = _mm_shuffle_epi8(_mm_load_si128((const __m128i *)q), apart);
    __m128i hi = _mm_shuffle_epi8(_mm_load_si128((const __m128i *)(q + 16)), apart);
    int8_t *at = b->q + i / 2 * 64 + i % 2 * 16;
    _mm_storeu_si128((__m128i *)at, _mm_unpacklo_epi64(lo, hi));
    _mm_storeu_si128((__m128i *)(at + 32), _mm_unpackhi_epi64(lo, hi));
}

/* First halves of sub-blocks 2i and 2i + 1, then their second halves. */
INLINE void place_q8(q_block *b, uint32_t i, const int8_t *q) {
    int8_t *at = b->q + i / 2 * 64 + i % 2 * 16;
    memcpy(at, q, 16);
    memcpy(at + 32, q + 16, 16);
}

/* ---- products ---- */

INLINE void spread(affine_block *to, const float *scales, const float *biases, uint32_t group, int bits) {
    const __m256i by_32 = _mm256_setr_epi32(0, 2, 4, 6, 1, 3, 5, 7), by_64 = _mm256_setr_epi32(0, 1, 2, 3, 0, 1, 2, 3),
                  by_128 = _mm256_setr_epi32(0, 0, 1, 1, 0, 0, 1, 1);
    __m256i from = group == 32 ? by_32 : group == 64 ? by_64 : by_128;
    __m256 s = _mm256_permutevar8x32_ps(_mm256_loadu_ps(scales), from);
    __m256 b = _mm256_permutevar8x32_ps(_mm256_loadu_ps(biases), from);
    _mm256_store_ps(to->scale, s);
    _mm256_storeu_ps(to->bias, bits == 8 ? _mm256_fmadd_ps(s, _mm256_set1_ps(128.0f), b) : b);
}

INLINE __m256i load_q(const int8_t *q) {
    return _mm256_loadu_si256((const __m256i *)q);
}

INLINE __m256 add_block(__m256 acc, __m256i sums, const affine_block *s, const q_block *x) {
    __m256 k = _mm256_mul_ps(_mm256_load_ps(s->scale), _mm256_loadu_ps(x->scale));
    acc = _mm256_fmadd_ps(_mm256_cvtepi32_ps(sums), k, acc);
    return _mm256_fmadd_ps(_mm256_loadu_ps(s->bias), _mm256_loadu_ps(x->sum), acc);
}

INLINE void block_q4(__m256 *acc, const uint8_t *w, const affine_block *s, const q_block *const *x, uint32_t b,
                     const int NR) {
    const __m256i nibble = _mm256_set1_epi8(15);
    __m256i even[4], odd[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m256i raw = _mm256_loadu_si256((const __m256i *)(w + 32 * i));
        even[i] = _mm256_and_si256(raw, nibble);
        odd[i] = _mm256_and_si256(_mm256_srli_epi16(raw, 4), nibble);
    }
#pragma GCC unroll 8
    for (int r = 0; r < NR; r++) {
        const q_block *xb = x[r] + b;
        __m256i sum[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++)
            sum[i] = _mm256_add_epi16(_mm256_maddubs_epi16(even[i], load_q(xb->q + 64 * i)),
                                      _mm256_maddubs_epi16(odd[i], load_q(xb->q + 64 * i + 32)));
        __m256i pair = _mm256_hadd_epi16(_mm256_hadd_epi16(sum[0], sum[1]), _mm256_hadd_epi16(sum[2], sum[3]));
        acc[r] = add_block(acc[r], _mm256_madd_epi16(pair, _mm256_set1_epi16(1)), s, xb);
    }
}

INLINE __m256i two_halves(const uint8_t *a, const uint8_t *b) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(_mm_loadu_si128((const __m128i *)a)),
                                   _mm_loadu_si128((const __m128i *)b), 1);
}

INLINE __m256i dot_32(__m256i size, __m256i sign, const int8_t *q) {
    __m256i pairs = _mm256_maddubs_epi16(size, _mm256_sign_epi8(load_q(q), sign));
    return _mm256_madd_epi16(pairs, _mm256_set1_epi16(1));
}

INLINE void block_q8(__m256 *acc, const uint8_t *w, const affine_block *s, const q_block *const *x, uint32_t b,
                     const int NR) {
    const __m256i flip = _mm256_set1_epi8(-128);
    __m256i sum[ROWS_AT_A_TIME][4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        __m256i c0 = _mm256_xor_si256(two_halves(w + 64 * i, w + 64 * i + 32), flip);
        __m256i c1 = _mm256_xor_si256(two_halves(w + 64 * i + 16, w + 64 * i + 48), flip);
        __m256i size0 = _mm256_abs_epi8(c0), size1 = _mm256_abs_epi8(c1);
#pragma GCC unroll 8
        for (int r = 0; r < NR; r++) {
            const int8_t *q = x[r][b].q + 64 * i;
            sum[r][i] = _mm256_add_epi32(dot_32(size0, c0, q), dot_32(size1, c1, q + 32));
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < NR; r++) {
        __m256i sums =
            _mm256_hadd_epi32(_mm256_hadd_epi32(sum[r][0], sum[r][1]), _mm256_hadd_epi32(sum[r][2], sum[r][3]));
        acc[r] = add_block(acc[r], sums, s, x[r] + b);
    }
}

#include "backend/cpu/affine_loops.h"

void td_dsp_init_avx2(td_dsp *d) {
    d->isa = TD_ISA_AVX2;
    d->name = "avx2";
    fill_vector_slots(d);
    fill_affine_slots(d);
}

#else

void td_dsp_init_avx2(td_dsp *d) {
    (void)d;
}

#endif
