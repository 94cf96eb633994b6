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
 * Scales and biases of a PANEL of inputs are packed first, one vector each per group; then codes in strips, each
 * multiplied with all rows as soon as it is packed. Strips are short so that the loads of the next rows' weights,
 * requested a little ahead, spread over packing and multiplying alike.
 *
 * A level includes this file, defines
 *   FLIP                        128: 8-bit codes are packed less 128; 0: as they are
 *   vi                          a vector of LANES dwords
 *   quantize_32(q, x, scale)    32 floats to bytes; returns their sum
 *   split_q4(q)                 of each eight bytes the even ones first
 *   load_row(p, n)              n <= 4*LANES bytes, zeros behind
 *   widen_row(p, type, n)       n <= LANES scales of a type to floats, zeros behind
 *   transpose(v)                LANES x LANES dwords, in place
 *   flip(v), store_codes(p, v)
 *   unpack_block(w, codes, bits)  the vectors that dot_block wants of a packed block
 *   dot_block(w, q, bits)       sums of codes times activations, converted to floats
 * and then includes affine_loops.h. */
#ifndef TD_BACKEND_CPU_VEC_AFFINE_H
#define TD_BACKEND_CPU_VEC_AFFINE_H

#include "backend/cpu/dsp.h"

#define ROWS_AT_A_TIME 8
#define PANEL 1024 /* inputs whose scales are packed at a time */
#define STRIP 256  /* inputs whose codes are */
#define PREFETCH_BYTES 16384

/* 32 activations. sum[i]: of scale*q from the start of the 32 << i inputs it lies in, up to and with these 32. */
typedef struct q_block {
    int8_t q[32];
    float scale;
    float sum[3];
} q_block;

#define VECTOR_BYTES (4 * LANES)
#define CODE_BYTES(bits) ((bits)*VECTOR_BYTES) /* of a packed block */

#endif
