/* dsp_generic.c - every kernel in plain C. Fills the whole table; other levels overwrite. */
#include "backend/cpu/dsp.h"

#include <math.h>

#include "backend/cpu/simd_generic.h"

#include "backend/cpu/vec_affine.h"
#include "backend/cpu/vec_attention.h"
#include "backend/cpu/vec_dot.h"
#include "backend/cpu/vec_rows.h"

/* Lane i is sub-block i. 8 bits: bytes in order. 4 bits: the 16 even inputs of a sub-block, then its 16 odd ones. */
static const uint8_t order4[LANES] = {0, 1, 2, 3};
static const uint8_t order8[LANES] = {0, 1, 2, 3};

/* 32 floats to bytes and their scale; returns the sum of the bytes. A NaN or an infinity among them makes the scale
 * one, so it is not lost. */
INLINE int32_t quantize_32(int8_t *q, const float *x, float *scale) {
    uint32_t top = 0;
    for (int i = 0; i < 32; i++) {
        uint32_t u;
        memcpy(&u, &x[i], 4);
        u &= 0x7FFFFFFF;
        top = u > top ? u : top;
    }
    float most;
    memcpy(&most, &top, 4);
    float inverse = most > 1e-30f && most <= 3e38f ? 127.0f / most : 0.0f;
    int32_t sum = 0;
    for (int i = 0; i < 32; i++) {
        float v = inverse != 0 ? x[i] * inverse : 0.0f;
        q[i] = (int8_t)lrintf(v);
        sum += q[i];
    }
    *scale = most / 127.0f;
    return sum;
}

INLINE void place_q4(q_block *b, uint32_t i, const int8_t *q) {
    for (int j = 0; j < 16; j++) {
        b->q[i * 32 + j] = q[2 * j];
        b->q[i * 32 + 16 + j] = q[2 * j + 1];
    }
}

INLINE void place_q8(q_block *b, uint32_t i, const int8_t *q) {
    memcpy(b->q + i * 32, q, 32);
}

INLINE void spread(affine_block *to, const float *scales, const float *biases, uint32_t group, int bits) {
    (void)bits;
    for (uint32_t lane = 0; lane < LANES; lane++) {
        to->scale[lane] = scales[lane * 32 / group];
        to->bias[lane] = biases[lane * 32 / group];
    }
}

INLINE void add_block(vf *acc, const int32_t *sums, const affine_block *s, const q_block *x) {
    vf k = vf_mul(vf_load(s->scale), vf_load(x->scale));
    vf isum = {(float)sums[0], (float)sums[1], (float)sums[2], (float)sums[3]};
    *acc = vf_fma(vf_load(s->bias), vf_load(x->sum), vf_fma(isum, k, *acc));
}

INLINE void block_q4(vf *acc, const uint8_t *w, const affine_block *s, const q_block *const *x, uint32_t b, int NR) {
    uint8_t c[Q_BLOCK];
    for (int i = 0; i < LANES; i++)
        for (int j = 0; j < 16; j++) {
            c[i * 32 + j] = w[i * 16 + j] & 15;
            c[i * 32 + 16 + j] = w[i * 16 + j] >> 4;
        }
    for (int r = 0; r < NR; r++) {
        int32_t sums[LANES] = {0};
        for (int i = 0; i < LANES; i++)
            for (int j = 0; j < 32; j++)
                sums[i] += c[i * 32 + j] * x[r][b].q[i * 32 + j];
        add_block(&acc[r], sums, s, &x[r][b]);
    }
}

INLINE void block_q8(vf *acc, const uint8_t *w, const affine_block *s, const q_block *const *x, uint32_t b, int NR) {
    for (int r = 0; r < NR; r++) {
        int32_t sums[LANES] = {0};
        for (int i = 0; i < LANES; i++)
            for (int j = 0; j < 32; j++)
                sums[i] += w[i * 32 + j] * x[r][b].q[i * 32 + j];
        add_block(&acc[r], sums, s, &x[r][b]);
    }
}

#include "backend/cpu/affine_loops.h"

void td_dsp_init_generic(td_dsp *d) {
    d->isa = TD_ISA_GENERIC;
    d->name = "generic";
    fill_vector_slots(d);
    fill_affine_slots(d);
}
