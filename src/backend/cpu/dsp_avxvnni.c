/* dsp_avxvnni.c - the integer products of AVX2 with AVX-VNNI: processors with VNNI but without AVX-512.
 *
 * vpdpbusd multiplies unsigned codes with signed activations and adds four products into 32 bits, for any width of
 * codes; without AVX-512 it cannot spread the activations itself. Everything else is the AVX2 level's. */
#include "backend/cpu/dsp.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__) && defined(__AVXVNNI__)

#include "backend/cpu/simd_avx2.h"

#define FLIP 0
#define WIDE_SUMS 1
#define VECTORS 2
#define ROWS_AT_A_TIME 4
#define PREFETCH_BYTES 16384

#include "backend/cpu/affine_ymm.h"

INLINE vi dot_step(vi sum, vi w, vi x, const int bits) {
    (void)bits;
    return _mm256_dpbusd_avx_epi32(sum, w, x);
}

INLINE vf dot_end(vi sum, const int bits) {
    (void)bits;
    return _mm256_cvtepi32_ps(sum);
}

#include "backend/cpu/block_loops.h"

void td_dsp_init_avxvnni(td_dsp *d) {
    d->isa = TD_ISA_AVXVNNI;
    d->name = "avxvnni";
    fill_affine_slots(d);
    fill_block_slots(d);
}

#else

void td_dsp_init_avxvnni(td_dsp *d) {
    (void)d;
}

#endif
