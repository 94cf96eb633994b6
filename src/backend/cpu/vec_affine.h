/* vec_affine.h - the integer products of 4-bit and 8-bit affine weights, shared by all levels.
 *
 * Lanes are outputs. LANES rows of weights are taken together and transposed ("packed"), so that a vector holds the
 * same four bytes of every row. Against them stand the same four activations in every lane, so nothing is ever added
 * across lanes: a block of 32 inputs is a chain of integer multiply-adds, exact, and one conversion. Per group of
 * weights, then, with blocks i of the group in ascending order:
 *     t = 0;  t = t + isum_i * sx_i;      y = (y + sw * t) + bw * sum of (sx * qx) over the group
 * each a fused multiply-add. Packing is paid once for all rows.
 *
 * (Before, lanes were blocks of inputs of one output and were added across at the end of each vector. It needed no
 * packing, but those additions were half of the work of every further row.)
 *
 * A 4-bit block of one output is 16 bytes: four of them hold eight inputs, even ones in the low nibbles, odd ones in
 * the high. Activations are stored to match: of each eight, the four even ones, then the four odd ones. 8-bit blocks
 * are in order. A level may want 8-bit codes signed: they are packed with FLIP, and the bias makes up for it.
 *
 * Scales and biases of a PANEL of inputs are packed first, two vectors per group; then codes in strips, each multiplied
 * with all rows as soon as it is packed. VECTORS panels of LANES outputs are packed side by side: activations, spread
 * over the lanes, then serve them all, which halves the loads that would be the limit of levels without a broadcast in
 * the multiply-add. Sixteen outputs at a time are what memory likes: thirty-two were a third slower, one row at a time,
 * though fewer instructions. Rows go ROWS_AT_A_TIME: as many as the accumulators of all outputs stay in registers for.
 *
 * Micro-operations per 64 inputs of LANES 4-bit weights, for each further row: AVX2 16 multiply-adds, 14 additions, 2
 * widenings, 2 conversions, 4 fused multiply-adds, 10 loads; VNNI saves the additions and widenings. Once for all rows:
 * some 60 for the transposition, scales and nibbles. (Codes unpacked to bytes while packing were tried: the stores cost
 * more than the nibbles' masks, which hide behind the loads.)
 *
 * A level includes this file, defines
 *   FLIP                        128: 8-bit codes are packed less 128; 0: as they are
 *   WIDE_SUMS                   1: sums of products are of 32 bits all the way, 0: of 16 where codes are short
 *   VECTORS, ROWS_AT_A_TIME     1..2, 1..8
 *   PREFETCH_BYTES              how far ahead of their use codes are requested from memory
 *   vi                          a vector of LANES dwords
 *   quantize_32(q, x, scale)    32 floats to bytes; returns their sum
 *   split_q4(q)                 of each eight bytes the even ones first
 *   load_row(p, n)              n <= 4*LANES bytes, zeros behind
 *   widen_row(p, type, n)       n <= LANES scales of a type to floats, zeros behind
 *   load_pairs(low, high, n)    n <= LANES dwords of 16 bits from either side
 *   low_bf16(v), high_bf16(v)   the halves of such dwords as floats, in a vi
 *   half_low(v)                 the low halves, of f16, as floats
 *   transpose(v)                LANES x LANES dwords, in place
 *   flip(v), store_codes(p, v)
 *   load_codes(p, d, bits)      bytes of dword d of a packed block
 *   look_up(v, table)           each byte, 0..15, is that of a table of 16
 *   dot_zero(), spread_four(q), dot_step(sum, w, x, bits), dot_end(sum, bits)
 *                               a sum of codes times activations, from nothing to its conversion to floats
 * and then includes affine_loops.h. */
#ifndef TD_BACKEND_CPU_VEC_AFFINE_H
#define TD_BACKEND_CPU_VEC_AFFINE_H

#include "backend/cpu/dsp.h"

#define MAX_ROWS_AT_A_TIME 8
#define PANEL 1024 /* inputs whose scales are packed at a time */
/* Inputs whose codes are: four lines of each row. With eight the requests ahead bunch up, and 8-bit codes lost a fifth.
 */
#define STRIP(bits) (2048u / (bits))
/* 32 activations. sum[i]: of scale*q from the start of the 32 << i inputs it lies in, up to and with these 32; in the
 * form HALVES [1] and [2] are of the first and the last 16, or with WIDE_SUMS two sums of q begin there: -8 times all
 * of them, -32 times the first 16. */
typedef struct q_block {
    int8_t q[32];
    float scale;
    union {
        float sum[3];
        struct {
            float all;
            int32_t less_8, first_less_32;
        };
    };
} q_block;

#define VECTOR_BYTES (4 * LANES)
/* How far ahead of its use what was packed ahead is requested: it is read from one end to the other. */
#define PACKED_PREFETCH_BYTES 8192
#define CODE_BYTES(bits) ((bits)*VECTOR_BYTES) /* of a packed block */

#endif
