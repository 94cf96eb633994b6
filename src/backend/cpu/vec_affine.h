/* vec_affine.h - the shape of the integer products, shared by all levels.
 *
 * Inputs go in blocks of 32*LANES: LANES sub-blocks of 32, one per lane of the float accumulator. Activations are
 * quantised per sub-block; q_block is how they are stored. Where a sub-block's bytes lie inside q, and which lane it
 * has, is chosen by each level so that its weights need no shuffling: order4[lane] and order8[lane] name the
 * sub-block of a lane for 4-bit and 8-bit weights.
 *
 * The matrix has one scale and one bias per group of 32, 64 or 128, in one of three types. They are widened into a line
 * of floats and spread to lanes (affine_block) for a few outputs at a time, so the kernels have one form. What lies
 * behind the last group of a row is zero, in the scales and in the activations.
 *
 * A level includes this file, defines order4, order8, quantize_32, place_q4, place_q8, spread, block_q4 and block_q8,
 * and then includes affine_loops.h. */
#ifndef TD_BACKEND_CPU_VEC_AFFINE_H
#define TD_BACKEND_CPU_VEC_AFFINE_H

#include "backend/cpu/dsp.h"

#define Q_BLOCK (32 * LANES)
#define ROWS_AT_A_TIME 8
#define OUTPUTS_AT_A_TIME 8

typedef struct q_block {
    int8_t q[Q_BLOCK];
    float scale[LANES]; /* of the activations, in lane order */
    float sum[LANES];   /* scale * sum of q */
} q_block;

/* Scales and biases of the weights of one block, in lane order. */
typedef struct affine_block {
    _Alignas(64) float scale[LANES];
    float bias[LANES];
} affine_block;

#endif
