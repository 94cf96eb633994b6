/* dsp_avx2.c - the kernels in AVX2, FMA and F16C.
 *
 * Integer products (see vec_affine.h): eight outputs a vector. vpmaddubsw multiplies unsigned codes with signed
 * activations and adds pairs into 16 bits; eight of them, a whole block of 32 inputs, stay within 8*2*15*127 = 30480,
 * so 4-bit codes need one widening (vpmaddwd) and one conversion a block. 8-bit codes would saturate. Less 128 they do
 * not: |c - 128| <= 128 is the unsigned operand, the activation with the sign of c - 128 the signed one, and a pair
 * stays within 2*128*127 = 32512; each is widened. The signed six bits of Q6_K, sixteen of them, within 4*2*32*127 =
 * 32512 again: one widening for 16 inputs. */
#include "backend/cpu/dsp.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)

#include "backend/cpu/simd_avx2.h"

#define FLIP 128
#define WIDE_SUMS 0
#define VECTORS 2
#define ROWS_AT_A_TIME 4
#define PREFETCH_BYTES 12288

#include "backend/cpu/affine_ymm.h"
#include "backend/cpu/vec_attention.h"
#include "backend/cpu/vec_dot.h"
#include "backend/cpu/unpack_x86.h"
#include "backend/cpu/vec_rows.h"

/* The compiler may not regroup the sum: the tree that it prefers needs more registers than there are. */
INLINE vi dot_step(vi sum, vi w, vi x, const int bits) {
    if (bits == 4) {
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(w, x));
    } else if (bits == 6) {
        sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w)));
    } else {
        const vi pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
        sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    __asm__("" : "+x"(sum));
    return sum;
}

INLINE vf dot_end(vi sum, const int bits) {
    return _mm256_cvtepi32_ps(bits < 8 ? _mm256_madd_epi16(sum, _mm256_set1_epi16(1)) : sum);
}

#include "backend/cpu/block_loops.h"

void td_dsp_init_avx2(td_dsp *d) {
    d->isa = TD_ISA_AVX2;
    d->name = "avx2";
    fill_vector_slots(d);
    fill_affine_slots(d);
    fill_block_slots(d);
    d->unpack = unpack_x86;
    d->unpack_table = unpack_table_x86;
}

#else

void td_dsp_init_avx2(td_dsp *d) {
    (void)d;
}

#endif
