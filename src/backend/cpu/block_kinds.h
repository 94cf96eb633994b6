/* block_kinds.h - GGUF blocks of LANES rows taken apart: what block_loops.h multiplies, for any level.
 *
 * A strip of raw row bytes is transposed whole, scales and all ("packed"), and taken apart afterwards: in lanes of 32
 * bits that is the same shifts and masks for every output, so the scales cost no gathering, and one text serves all
 * levels. What a block is then made of are codes and, for each 32 or 16 inputs, a scale and perhaps a bias. Codes of 4
 * and 8 bits that lie in order are read where they are; all others are unpacked to bytes, once a strip for all rows.
 * (That costs a store and a load for each vector of codes; one row of Q6_K still comes at twice the pace of memory.)
 *
 * Whatever a code stands for is either the code less a fixed number (its offset: 8 for Q4_0, 128 for Q8_0, ...) or the
 * code with a bias that the file has (a minimum, in ggml's terms). Levels with FLIP take unpacked codes signed, less
 * the offset; where there is a minimum, less 16 of five bits, and the bias makes up for it. So the sums of 32 products
 * of five bits, 16 * 16 * 127 in each of two, fit into 16 bits.
 *
 * Bytes have to become dwords: blocks of 2 + 4n bytes are packed two together, those of 17 bytes four. What is costly
 * to undo is done while packing: the fifth bits of Q5_0 and Q5_1, in the order of inputs in the file, go to where one
 * shift and one mask bring them over their codes. */
#ifndef TD_BACKEND_CPU_BLOCK_KINDS_H
#define TD_BACKEND_CPU_BLOCK_KINDS_H

#include "backend/cpu/affine_loops.h"

typedef int32_t vs32 __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef uint8_t v8 __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef float vfloat __attribute__((vector_size(VECTOR_BYTES), may_alias));

enum {
    BLOCK_Q4_0,
    BLOCK_Q4_1,
    BLOCK_Q5_0,
    BLOCK_Q5_1,
    BLOCK_Q8_0,
    BLOCK_IQ4_NL,
    BLOCK_MXFP4,
    BLOCK_Q2_K,
    BLOCK_Q3_K,
    BLOCK_Q4_K,
    BLOCK_Q5_K,
    BLOCK_Q6_K,
    BLOCK_IQ4_XS,
};

typedef struct block_shape {
    uint16_t inputs, bytes;  /* of a block as it lies in the row */
    uint8_t joined, vectors; /* blocks that are packed together, and the vectors that they become */
    uint16_t strip;          /* inputs that are packed at a time; 256 where codes are unpacked */
    bool in_place;           /* codes are read where they lie packed */
    uint8_t group;           /* inputs of a scale */
    uint8_t bits;            /* of dot_step: 4 or 8; 6: signed, and as many as a scale has fit 16 bits */
    uint8_t offset;          /* of the codes; 0: the kind has minima */
} block_shape;

/* Q3_K's offset is 4; its codes are made 28 larger, and are Q6_K's from there on. */
static const block_shape shapes[] = {
    [BLOCK_Q4_0] = {32, 18, 2, 9, 512, true, 32, 4, 8},         [BLOCK_Q4_1] = {32, 20, 1, 5, 512, true, 32, 4, 0},
    [BLOCK_Q5_0] = {32, 22, 2, 11, 256, false, 32, 6, 16},      [BLOCK_Q5_1] = {32, 24, 1, 6, 256, false, 32, 6, 0},
    [BLOCK_Q8_0] = {32, 34, 2, 17, 512, true, 32, 8, 128},      [BLOCK_IQ4_NL] = {32, 18, 2, 9, 256, false, 32, 8, 128},
    [BLOCK_MXFP4] = {32, 17, 4, 17, 256, false, 32, 6, 16},     [BLOCK_Q2_K] = {256, 84, 1, 21, 256, false, 16, 4, 0},
    [BLOCK_Q3_K] = {256, 110, 1, 28, 256, false, 16, 6, 32},    [BLOCK_Q4_K] = {256, 144, 1, 36, 512, true, 32, 4, 0},
    [BLOCK_Q5_K] = {256, 176, 1, 44, 256, false, 32, 6, 0},     [BLOCK_Q6_K] = {256, 210, 1, 53, 256, false, 16, 6, 32},
    [BLOCK_IQ4_XS] = {256, 136, 1, 34, 256, false, 32, 8, 128},
};

/* Whether products see the offset: codes in place are as they lie, unpacked ones and bytes signed where FLIP says so.
 */
INLINE bool block_is_offset(const int kind) {
    return shapes[kind].offset != 0 && (FLIP == 0 || shapes[kind].bits == 4);
}

/* Where sums are of 32 bits they begin with the offset's part; else that is a bias. */
INLINE bool block_has_start(const int kind) {
    return WIDE_SUMS && block_is_offset(kind);
}

INLINE bool block_has_bias(const int kind) {
    return shapes[kind].offset == 0 || (!WIDE_SUMS && block_is_offset(kind));
}

/* Vectors of a packed strip of `groups` groups of 32 inputs. */
INLINE uint32_t strip_vectors(uint32_t groups, const int kind) {
    const uint32_t blocks = groups * 32 / shapes[kind].inputs, joined = shapes[kind].joined;
    return (blocks + joined - 1) / joined * shapes[kind].vectors;
}

#define MAX_STRIP_VECTORS (512 / 32 / 2 * 17)

/* Of LANES outputs: transposed dwords of a strip, codes where they were unpacked to bytes, scales and biases. */
typedef struct block_panel {
    _Alignas(VECTOR_BYTES) uint8_t raw[(MAX_STRIP_VECTORS + LANES) * VECTOR_BYTES];
    _Alignas(VECTOR_BYTES) uint8_t codes[256 / 4 * VECTOR_BYTES];
    _Alignas(VECTOR_BYTES) uint8_t scales[16 * 2 * VECTOR_BYTES];
} block_panel;

INLINE v32 dword(const uint8_t *p, uint32_t i) {
    return (v32)load_codes(p, (int)i, 8);
}

INLINE void set_dword(uint8_t *p, uint32_t i, v32 v) {
    store_codes(p + i * VECTOR_BYTES, (vi)v);
}

/* ---- packing ---- */

/* Two blocks of 2 + 4n bytes are 2n + 1 dwords. The codes of the first lie across dwords and move by half of one; what
 * is left between them and the second's holds both scales. */
INLINE void align_two(uint8_t *raw, const int kind) {
    const uint32_t n = shapes[kind].vectors / 2;
    const v32 first = dword(raw, 0), last = dword(raw, n);
    const uint32_t turn = kind == BLOCK_Q8_0 && FLIP == 0 ? 0x80808080 : 0; /* signed to unsigned */
    v32 low = first;
#pragma GCC unroll 8
    for (uint32_t i = 0; i < n; i++) {
        const v32 high = dword(raw, i + 1);
        set_dword(raw, i, (low >> 16 | high << 16) ^ turn);
        if (turn)
            set_dword(raw, n + 1 + i, dword(raw, n + 1 + i) ^ turn);
        low = high;
    }
    set_dword(raw, n, (first & 0xFFFF) | (last & 0xFFFF0000));
}

/* Four blocks of 1 + 16 bytes are 17 dwords: codes of each in turn, then the four scales. */
INLINE void align_four(uint8_t *raw) {
    v32 scales = {0};
#pragma GCC unroll 4
    for (uint32_t j = 0; j < 4; j++)
#pragma GCC unroll 4
        for (uint32_t k = 0; k < 4; k++) {
            const v32 low = dword(raw, 4 * j + k), high = dword(raw, 4 * j + k + 1);
            if (k == 0)
                scales |= low & (0xFFu << 8 * j);
            if (j == 3)
                set_dword(raw, 4 * j + k, high);
            else
                set_dword(raw, 4 * j + k, low >> (8 * j + 8) | high << (24 - 8 * j));
        }
    set_dword(raw, 16, scales);
}

/* Where two bits of the place of a bit change places: `mask` has the lower bits of each pair that does, the upper ones
 * are `far` above. */
INLINE v32 swap_places(v32 v, const int far, const uint32_t mask) {
    const v32 differ = (v ^ v >> far) & mask;
    return v ^ differ ^ differ << far;
}

/* The fifth bits of 32 codes: that of input 4d + j, bit 4d + j of the dword, becomes bit d of byte j. */
INLINE void order_fifth_bits(uint8_t *raw, uint32_t i) {
    v32 v = swap_places(dword(raw, i), 14, 0x0000CCCC);
    v = swap_places(v, 7, 0x00AA00AA);
    v = swap_places(v, 2, 0x0C0C0C0C);
    set_dword(raw, i, swap_places(v, 1, 0x22222222));
}

/* What follows the transposition, of blocks that are packed together. */
INLINE void align_blocks(uint8_t *raw, const int kind) {
    if (shapes[kind].joined == 2)
        align_two(raw, kind);
    if (shapes[kind].joined == 4)
        align_four(raw);
    if (kind == BLOCK_Q5_0) {
        order_fifth_bits(raw, 0);
        order_fifth_bits(raw, 6);
    }
    if (kind == BLOCK_Q5_1)
        order_fifth_bits(raw, 1);
}

/* `groups` groups of 32 inputs from byte `at` of the rows on, which have `row` bytes. Loads may reach past the strip,
 * but not past the row, and fill as many vectors more. */
INLINE void pack_blocks(uint8_t *raw, const lane_rows *l, size_t at, size_t row, uint32_t groups, const int kind) {
    const size_t end = at + (size_t)(groups * 32 / shapes[kind].inputs * shapes[kind].bytes);
    for (uint8_t *to = raw; at < end; at += VECTOR_BYTES, to += LANES * VECTOR_BYTES) {
        if (at + VECTOR_BYTES <= row)
            pack_vector(to, l, at, VECTOR_BYTES, 4);
        else
            pack_vector(to, l, at, (uint32_t)(row - at), 4);
    }
    if (shapes[kind].joined > 1 || kind == BLOCK_Q5_1)
        for (uint32_t i = 0; i < strip_vectors(groups, kind); i += shapes[kind].vectors)
            align_blocks(raw + i * VECTOR_BYTES, kind);
}

/* ---- taking apart ---- */

INLINE vf integers(v32 v) {
    return (vf) __builtin_convertvector((vs32)v, vfloat);
}

INLINE void set_scale(block_panel *p, uint32_t group, vf scale, vf bias, const bool has_bias) {
    float *to = (float *)(void *)(p->scales + group * 2 * VECTOR_BYTES);
    vf_store(to, scale);
    if (has_bias)
        vf_store(to + LANES, bias);
}

/* Of a kind with an offset. */
INLINE void set_offset_scale(block_panel *p, uint32_t group, vf scale, const int kind) {
    set_scale(p, group, scale, vf_mul(scale, vf_set1(-(float)shapes[kind].offset)), block_has_bias(kind));
}

/* Of a kind with minima and codes of five bits. */
INLINE void set_five_bit_scale(block_panel *p, uint32_t group, vf scale, vf bias) {
    set_scale(p, group, scale, FLIP != 0 ? vf_fma(scale, vf_set1(16), bias) : bias, true);
}

/* Codes of inputs 4i .. 4i + 3; less `middle` where they are to be signed. */
INLINE void set_codes(block_panel *p, uint32_t i, v32 codes, const int middle) {
    if (FLIP != 0)
        codes = (v32)((v8)codes + (uint8_t)-middle);
    set_dword(p->codes, i, codes);
}

/* Nibbles d of a group of 32: low ones of four dwords, then high ones. */
INLINE v32 nibbles(const uint8_t *raw, uint32_t d) {
    return dword(raw, d % 4) >> (d < 4 ? 0 : 4) & 0x0F0F0F0F;
}

/* Bit `from` of every byte as bit `to`. */
INLINE v32 move_bits(v32 v, uint32_t from, uint32_t to, const uint32_t mask) {
    return (from < to ? v << (to - from) : v >> (from - to)) & mask * (1u << to);
}

INLINE void set_five_bits(block_panel *p, uint32_t group, const uint8_t *raw, v32 fifth) {
#pragma GCC unroll 8
    for (uint32_t d = 0; d < 8; d++)
        set_codes(p, 8 * group + d, nibbles(raw, d) | move_bits(fifth, d, 4, 0x01010101), 16);
}

INLINE void set_from_table(block_panel *p, uint32_t group, const uint8_t *raw, const uint8_t *table, const int middle) {
#pragma GCC unroll 8
    for (uint32_t d = 0; d < 8; d++)
        set_codes(p, 8 * group + d, (v32)look_up((vi)nibbles(raw, d), table), middle);
}

/* IQ4's numbers plus 128; twice E2M1's plus 16. */
static const uint8_t iq4_table[16] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};
static const uint8_t e2m1_table[16] = {16, 17, 18, 19, 20, 22, 24, 28, 16, 15, 14, 13, 12, 10, 8, 4};

/* Two blocks of one scale each. */
INLINE void take_two(block_panel *p, const uint8_t *raw, uint32_t group, const int kind) {
    const uint32_t n = shapes[kind].vectors / 2;
    const v32 scales = dword(raw, n);
    set_offset_scale(p, group, half_low((vi)scales), kind);
    set_offset_scale(p, group + 1, half_low((vi)(scales >> 16)), kind);
    if (shapes[kind].in_place)
        return;
    for (uint32_t i = 0; i < 2; i++) {
        const uint8_t *block = raw + i * (n + 1) * VECTOR_BYTES;
        if (kind == BLOCK_Q5_0)
            set_five_bits(p, group + i, block + VECTOR_BYTES, dword(block, 0));
        else
            set_from_table(p, group + i, block, iq4_table, 128);
    }
}

INLINE void take_mxfp4(block_panel *p, const uint8_t *raw, uint32_t group) {
    const v32 none = {0};
    for (uint32_t j = 0; j < 4; j++) {
        const v32 e = dword(raw, 16) >> (8 * j) & 255, tiny = (v32)(e < none + 2); /* then it is a subnormal */
        const v32 bits = ((e + 1) << 21 & tiny) | ((e - 1) << 23 & ~tiny);
        set_offset_scale(p, group + j, (vf)bits, BLOCK_MXFP4);
        set_from_table(p, group + j, raw + 4 * j * VECTOR_BYTES, e2m1_table, 16);
    }
}

/* A block of one scale and one minimum. */
INLINE void take_one(block_panel *p, const uint8_t *raw, uint32_t group, const int kind) {
    const v32 head = dword(raw, 0);
    const vf d = half_low((vi)head), min = half_low((vi)(head >> 16));
    if (kind == BLOCK_Q4_1) {
        set_scale(p, group, d, min, true);
        return;
    }
    set_five_bit_scale(p, group, d, min);
    set_five_bits(p, group, raw + 2 * VECTOR_BYTES, dword(raw, 1));
}

/* Eight scales and minima of six bits each. */
INLINE void take_six_bit_scales(block_panel *p, const uint8_t *raw, uint32_t group, const int kind) {
    const v32 head = dword(raw, 0), low = dword(raw, 1), mid = dword(raw, 2), high = dword(raw, 3);
    const vf d = half_low((vi)head), dmin = vf_sub(vf_zero(), half_low((vi)(head >> 16)));
#pragma GCC unroll 8
    for (uint32_t j = 0; j < 8; j++) {
        const uint32_t s = 8 * (j % 4);
        const v32 scale = j < 4 ? low >> s & 63 : (high >> s & 15) | (low >> (s + 6) & 3) << 4;
        const v32 min = j < 4 ? mid >> s & 63 : (high >> (s + 4) & 15) | (mid >> (s + 6) & 3) << 4;
        const vf step = vf_mul(d, integers(scale)), bias = vf_mul(dmin, integers(min));
        if (kind == BLOCK_Q5_K)
            set_five_bit_scale(p, group + j, step, bias);
        else
            set_scale(p, group + j, step, bias, true);
    }
}

INLINE void take_q5_k(block_panel *p, const uint8_t *raw) {
    take_six_bit_scales(p, raw, 0, BLOCK_Q5_K);
    for (uint32_t d = 0; d < 8; d++) {
        const v32 fifth = dword(raw, 4 + d);
#pragma GCC unroll 8
        for (uint32_t j = 0; j < 8; j++) {
            const v32 low = dword(raw, 12 + 8 * (j / 2) + d) >> (j % 2 ? 4 : 0) & 0x0F0F0F0F;
            set_codes(p, 8 * j + d, low | move_bits(fifth, j, 4, 0x01010101), 16);
        }
    }
}

INLINE void take_q6_k(block_panel *p, const uint8_t *raw) {
    const vf d = half_low((vi)dword(raw, 52));
#pragma GCC unroll 16
    for (uint32_t j = 0; j < 16; j++) {
        const vs32 scale = (vs32)(dword(raw, 48 + j / 4) << (24 - 8 * (j % 4))) >> 24;
        set_offset_scale(p, j, vf_mul(d, integers((v32)scale)), BLOCK_Q6_K);
    }
    for (uint32_t half = 0; half < 2; half++)
        for (uint32_t i = 0; i < 8; i++) {
            const v32 high = dword(raw, 32 + 8 * half + i);
#pragma GCC unroll 4
            for (uint32_t g = 0; g < 4; g++) {
                const v32 low = dword(raw, 16 * half + 8 * (g & 1) + i) >> (g < 2 ? 0 : 4);
                set_codes(p, 8 * (4 * half + g) + i, (low & 0x0F0F0F0F) | move_bits(high, 2 * g, 4, 0x03030303), 32);
            }
        }
}

/* d[80] dmin[82] behind 16 bytes of scales and minima and 64 of codes. */
INLINE void take_q2_k(block_panel *p, const uint8_t *raw) {
    const v32 both = dword(raw, 20);
    const vf d = half_low((vi)both), dmin = vf_sub(vf_zero(), half_low((vi)(both >> 16)));
#pragma GCC unroll 16
    for (uint32_t j = 0; j < 16; j++) {
        const v32 pair = dword(raw, j / 4) >> (8 * (j % 4));
        set_scale(p, j, vf_mul(d, integers(pair & 15)), vf_mul(dmin, integers(pair >> 4 & 15)), true);
    }
    for (uint32_t i = 0; i < 16; i++)
#pragma GCC unroll 4
        for (uint32_t g = 0; g < 4; g++)
            set_dword(p->codes, 8 * (4 * (i / 8) + g) + i % 8, dword(raw, 4 + i) >> (2 * g) & 0x03030303);
}

/* A third bit of each code in [0..32), 64 bytes of codes, 16 scales of six bits in twelve bytes, d[108]. */
INLINE void take_q3_k(block_panel *p, const uint8_t *raw) {
    const vf d = half_low((vi)dword(raw, 27));
#pragma GCC unroll 16
    for (uint32_t j = 0; j < 16; j++) {
        const v32 low = dword(raw, 24 + j / 4 % 2) >> (8 * (j % 4) + (j < 8 ? 0 : 4)) & 15;
        const v32 high = dword(raw, 26) >> (8 * (j % 4) + 2 * (j / 4)) & 3;
        set_offset_scale(p, j, vf_mul(d, integers((low | high << 4) - 32)), BLOCK_Q3_K);
    }
    for (uint32_t i = 0; i < 8; i++) {
        const v32 third = dword(raw, i);
#pragma GCC unroll 8
        for (uint32_t b = 0; b < 8; b++) {
            const v32 low = dword(raw, 8 + 8 * (b / 4) + i) >> (2 * (b % 4)) & 0x03030303;
            const v32 code = low | move_bits(third, b, 2, 0x01010101);
            set_codes(p, 8 * b + i, code + 0x1C1C1C1C, 32);
        }
    }
}

/* d[0], high bits of the scales [2..4), their low nibbles [4..8), then groups of 32 codes. */
INLINE void take_iq4_xs(block_panel *p, const uint8_t *raw) {
    const v32 head = dword(raw, 0), low = dword(raw, 1);
    const vf d = half_low((vi)head);
#pragma GCC unroll 8
    for (uint32_t g = 0; g < 8; g++) {
        const v32 scale = (low >> (4 * g) & 15) | (head >> (16 + 2 * g) & 3) << 4;
        set_offset_scale(p, g, vf_mul(d, integers(scale - 32)), BLOCK_IQ4_XS);
    }
    for (uint32_t g = 0; g < 8; g++)
        set_from_table(p, g, raw + (2 + 4 * g) * VECTOR_BYTES, iq4_table, 128);
}

/* What the products of packed blocks need beside them: those that begin with group `group` of the strip. */
INLINE void take_block(block_panel *p, const uint8_t *raw, uint32_t group, const int kind) {
    switch (kind) {
    case BLOCK_Q4_1:
    case BLOCK_Q5_1:
        take_one(p, raw, group, kind);
        return;
    case BLOCK_MXFP4:
        take_mxfp4(p, raw, group);
        return;
    case BLOCK_Q2_K:
        take_q2_k(p, raw);
        return;
    case BLOCK_Q3_K:
        take_q3_k(p, raw);
        return;
    case BLOCK_Q4_K:
        take_six_bit_scales(p, raw, group, kind);
        return;
    case BLOCK_Q5_K:
        take_q5_k(p, raw);
        return;
    case BLOCK_Q6_K:
        take_q6_k(p, raw);
        return;
    case BLOCK_IQ4_XS:
        take_iq4_xs(p, raw);
        return;
    default:
        take_two(p, raw, group, kind);
    }
}

INLINE void take_blocks(block_panel *p, const uint8_t *raw, uint32_t groups, const int kind) {
    const uint32_t step = shapes[kind].joined * shapes[kind].inputs / 32;
    for (uint32_t g = 0; g < groups; g += step, raw += shapes[kind].vectors * VECTOR_BYTES)
        take_block(p, raw, g, kind);
}

/* Codes of inputs 4d .. 4d + 3 of group b of 32. */
INLINE vi block_codes(const block_panel *p, const uint8_t *raw, uint32_t b, const int d, const int kind) {
    switch (kind) {
    case BLOCK_Q4_0: /* low nibbles of four dwords, then high ones: two neighbours of a packed vector of affine codes */
        return load_codes(raw + (b / 2 * 9 + b % 2 * 5 + d % 4) * VECTOR_BYTES, d / 4, 4);
    case BLOCK_Q4_1:
        return load_codes(raw + (b * 5 + 1 + d % 4) * VECTOR_BYTES, d / 4, 4);
    case BLOCK_Q8_0:
        return load_codes(raw + (b / 2 * 17 + b % 2 * 9) * VECTOR_BYTES, d, 8);
    case BLOCK_Q4_K: {
        const uint8_t *at = raw + (b / 8 * 36 + 4 + b % 8 / 2 * 8 + d) * VECTOR_BYTES;
        return b % 2 ? load_codes(at, 1, 4) : load_codes(at, 0, 4);
    }
    default:
        return load_codes(p->codes + b * 8 * VECTOR_BYTES, d, 8);
    }
}

#endif
