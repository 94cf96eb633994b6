/* dsp_neondot.c - the integer products of NEON with the dot-product extension (optional in ARMv8.2, there from 8.4 on).
 *
 * sdot multiplies signed codes with signed activations and adds four products into 32 bits, for any width of codes: a
 * block of 32 inputs is eight instructions and four outputs. Everything else is the NEON level's. */
#include "backend/cpu/dsp.h"

#if defined(__aarch64__) && defined(__ARM_FEATURE_DOTPROD)

#include "backend/cpu/simd_neon.h"

#define WIDE_SUMS 1

#include "backend/cpu/affine_neon.h"

/* sdot takes four bytes for all of its lanes from one place in a register: nothing to spread. Eight are loaded, which
 * every q_block has from any of its fours on. */
INLINE vi spread_four(const int8_t *q) {
    return vreinterpretq_u32_s8(vcombine_s8(vld1_s8(q), vdup_n_s8(0)));
}

INLINE vi dot_step(vi sum, vi w, vi x, const int bits) {
    (void)bits;
    const int8x8_t four = vget_low_s8(vreinterpretq_s8_u32(x));
    return vreinterpretq_u32_s32(vdotq_lane_s32(vreinterpretq_s32_u32(sum), vreinterpretq_s8_u32(w), four, 0));
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
