/* dsp_neondot.c - the integer products of NEON with the dot-product extension (optional in ARMv8.2, there from 8.4 on).
 *
 * sdot multiplies signed codes with signed activations and adds four products into 32 bits, for any width of codes: a
 * block of 32 inputs is eight instructions and four outputs. Everything else is the NEON level's. */
#include "backend/cpu/dsp.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)

#include "backend/cpu/simd_neon.h"

#include "backend/cpu/affine_neon.h"

INLINE vi spread_four(const int8_t *q) {
    uint32_t four;
    memcpy(&four, q, sizeof four);
    return vdupq_n_u32(four);
}

INLINE vi dot_step(vi sum, vi w, vi x, const int bits) {
    (void)bits;
    return vreinterpretq_u32_s32(
        vdotq_s32(vreinterpretq_s32_u32(sum), vreinterpretq_s8_u32(w), vreinterpretq_s8_u32(x)));
}

INLINE vf dot_end(vi sum, const int bits) {
    (void)bits;
    return vcvtq_f32_s32(vreinterpretq_s32_u32(sum));
}

#include "backend/cpu/block_loops.h"

void td_dsp_init_neondot(td_dsp *d) {
    d->isa = TD_ISA_NEONDOT;
    d->name = "neon+dotprod";
    fill_affine_slots(d);
    fill_block_slots(d);
}

#else

void td_dsp_init_neondot(td_dsp *d) {
    (void)d;
}

#endif
