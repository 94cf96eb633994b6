/* dsp_neon.c - the kernels in Advanced SIMD, the part of it that every 64-bit ARM has.
 *
 * Integer products (see vec_affine.h): four outputs a vector, of each of them four codes. smlal multiplies eight signed
 * bytes with eight and adds the products to eight sums of 16 bits. So that an output's sums stay with it, codes and
 * activations go in the order (0 1 of every output) (2 3 of every output): a step is smlal with the lower halves and
 * smlal2 with the upper ones, and an output has two sums of neighbouring products. A whole block of 32 inputs stays
 * within 16*15*127 = 30480 for 4-bit codes, and 16 inputs of the signed six bits of Q6_K within 8*32*127 = 32512: one
 * widening at the end. The two products of a step with 8-bit codes, less 128, stay within 2*128*127 = 32512, and are
 * widened (sadalp) each time. The order of codes is made once for all rows of a call, that of activations once for both
 * vectors of outputs. */
#include "backend/cpu/dsp.h"

#if defined(__aarch64__) && defined(__ARM_NEON)

#include "backend/cpu/simd_neon.h"

#define WIDE_SUMS 0

#include "backend/cpu/affine_neon.h"
#include "backend/cpu/vec_attention.h"
#include "backend/cpu/vec_dot.h"
#include "backend/cpu/vec_rows.h"

/* Bytes 0 and 1 of every dword, then 2 and 3 of every dword; and of the first one alone. */
static const uint8_t pairs_apart[16] = {0, 1, 4, 5, 8, 9, 12, 13, 2, 3, 6, 7, 10, 11, 14, 15};
static const uint8_t pairs_spread[16] = {0, 1, 0, 1, 0, 1, 0, 1, 2, 3, 2, 3, 2, 3, 2, 3};

/* Eight bytes are loaded, which every q_block has from any of its fours on. */
INLINE vi spread_four(const int8_t *q) {
    const int8x16_t bytes = vcombine_s8(vld1_s8(q), vdup_n_s8(0));
    return vreinterpretq_u32_s8(vqtbl1q_s8(bytes, vld1q_u8(pairs_spread)));
}

INLINE vi dot_step(vi sum, vi w, vi x, const int bits) {
    const int8x16_t c = vqtbl1q_s8(vreinterpretq_s8_u32(w), vld1q_u8(pairs_apart)), a = vreinterpretq_s8_u32(x);
    if (bits == 8) {
        const int16x8_t pairs = vmlal_high_s8(vmull_s8(vget_low_s8(c), vget_low_s8(a)), c, a);
        return vreinterpretq_u32_s32(vpadalq_s16(vreinterpretq_s32_u32(sum), pairs));
    }
    const int16x8_t first = vmlal_s8(vreinterpretq_s16_u32(sum), vget_low_s8(c), vget_low_s8(a));
    return vreinterpretq_u32_s16(vmlal_high_s8(first, c, a));
}

INLINE vf dot_end(vi sum, const int bits) {
    return vcvtq_f32_s32(bits == 8 ? vreinterpretq_s32_u32(sum) : vpaddlq_s16(vreinterpretq_s16_u32(sum)));
}

#include "backend/cpu/block_loops.h"

/* ---- codes of odd widths to bytes, sixteen at a time ---- */

/* Code i of b bits begins in byte i*b/8 at bit i*b%8, and may end in the next byte. */
#define SIXTEEN(f, b)                                                                                                  \
    {                                                                                                                  \
        f(b, 0), f(b, 1), f(b, 2), f(b, 3), f(b, 4), f(b, 5), f(b, 6), f(b, 7), f(b, 8), f(b, 9), f(b, 10), f(b, 11),  \
            f(b, 12), f(b, 13), f(b, 14), f(b, 15)                                                                     \
    }
#define FIRST_BYTE(b, i) (i) * (b) / 8
#define NEXT_BYTE(b, i) (i) * (b) / 8 + 1
#define RIGHT(b, i) -((i) * (b) % 8)
#define LEFT(b, i) 8 - (i) * (b) % 8
#define PLACES(b)                                                                                                      \
    { SIXTEEN(FIRST_BYTE, b), SIXTEEN(NEXT_BYTE, b), SIXTEEN(RIGHT, b), SIXTEEN(LEFT, b) }

typedef struct code_places {
    uint8_t first[16], next[16];
    int8_t right[16], left[16];
} code_places;

INLINE void unpack_bits(uint8_t *to, const uint8_t *from, uint32_t n, const uint8_t bits, const code_places *at) {
    const uint8x16_t first = vld1q_u8(at->first), next = vld1q_u8(at->next),
                     mask = vdupq_n_u8((uint8_t)(255 >> (8 - bits)));
    const int8x16_t right = vld1q_s8(at->right), left = vld1q_s8(at->left);
    const size_t bytes = n * (size_t)bits / 8;
    uint8_t part[16] = {0};
    for (size_t i = 0, b = 0; i < n; i += 16, b += 2 * (size_t)bits) {
        const uint8_t *p = from + b;
        if (b + 16 > bytes) { /* the load would reach past the row */
            memcpy(part, p, 2 * (size_t)bits);
            p = part;
        }
        const uint8x16_t v = vld1q_u8(p);
        const uint8x16_t low = vshlq_u8(vqtbl1q_u8(v, first), right), high = vshlq_u8(vqtbl1q_u8(v, next), left);
        vst1q_u8(to + i, vandq_u8(vorrq_u8(low, high), mask));
    }
}

static void unpack_neon(uint8_t *to, const uint8_t *from, uint32_t n, uint32_t bits) {
    static const code_places two = PLACES(2), three = PLACES(3), five = PLACES(5), six = PLACES(6);
    switch (bits) {
    case 2:
        unpack_bits(to, from, n, 2, &two);
        return;
    case 3:
        unpack_bits(to, from, n, 3, &three);
        return;
    case 5:
        unpack_bits(to, from, n, 5, &five);
        return;
    case 6:
        unpack_bits(to, from, n, 6, &six);
        return;
    }
}

static void unpack_table_neon(uint8_t *to, const uint8_t *from, uint32_t n, const uint8_t table[16]) {
    const uint8x16_t t = vld1q_u8(table);
    for (uint32_t i = 0; i < n; i += 16, from += 8) {
        const uint8x8_t raw = vld1_u8(from), low = vand_u8(raw, vdup_n_u8(15)), high = vshr_n_u8(raw, 4);
        vst1q_u8(to + i, vqtbl1q_u8(t, vcombine_u8(vzip1_u8(low, high), vzip2_u8(low, high))));
    }
}

void td_dsp_init_neon(td_dsp *d) {
    d->isa = TD_ISA_NEON;
    d->name = "neon";
    fill_vector_slots(d);
    fill_affine_slots(d);
    fill_block_slots(d);
    d->unpack = unpack_neon;
    d->unpack_table = unpack_table_neon;
}

#else

void td_dsp_init_neon(td_dsp *d) {
    (void)d;
}

#endif
