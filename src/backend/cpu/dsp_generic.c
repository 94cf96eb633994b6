/* dsp_generic.c - every kernel in plain C. Fills the whole table; other levels overwrite. */
#include "backend/cpu/dsp.h"

#include <math.h>

#include "backend/cpu/simd_generic.h"

#include "backend/cpu/vec_affine.h"
#include "backend/cpu/vec_attention.h"
#include "backend/cpu/vec_dot.h"
#include "backend/cpu/vec_rows.h"

typedef uint32_t vi __attribute__((vector_size(16)));

#define FLIP 0

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

INLINE void split_q4(int8_t *q) {
    int8_t old[32];
    memcpy(old, q, 32);
    for (int i = 0; i < 32; i += 8)
        for (int j = 0; j < 4; j++) {
            q[i + j] = old[i + 2 * j];
            q[i + 4 + j] = old[i + 2 * j + 1];
        }
}

INLINE vi load_row(const uint8_t *p, uint32_t n) {
    vi v = {0, 0, 0, 0};
    memcpy(&v, p, n);
    return v;
}

INLINE void store_codes(uint8_t *p, vi v) {
    memcpy(p, &v, sizeof v);
}

INLINE vf widen_row(const uint8_t *p, td_dtype type, uint32_t n) {
    float x[LANES] = {0};
    td_to_f32(x, type, p, n);
    return vf_load(x);
}

INLINE void transpose(vi *v) {
    vi old[LANES];
    memcpy(old, v, sizeof old);
    for (int i = 0; i < LANES; i++)
        v[i] = (vi){old[0][i], old[1][i], old[2][i], old[3][i]};
}

INLINE vi flip(vi v) {
    return v;
}

INLINE void unpack_block(vi *w, const uint8_t *codes, const int bits) {
    for (int d = 0; d < bits; d++) {
        vi v;
        memcpy(&v, codes + d * VECTOR_BYTES, sizeof v);
        if (bits == 8) {
            w[d] = v;
        } else {
            w[2 * d] = v & 0x0F0F0F0F;
            w[2 * d + 1] = v >> 4 & 0x0F0F0F0F;
        }
    }
}

INLINE vf dot_block(const vi *w, const int8_t *q, const int bits) {
    int32_t sum[LANES] = {0};
    (void)bits;
    for (int d = 0; d < 8; d++)
        for (int lane = 0; lane < LANES; lane++)
            for (int i = 0; i < 4; i++)
                sum[lane] += (int32_t)(w[d][lane] >> 8 * i & 255) * q[4 * d + i];
    return (vf){(float)sum[0], (float)sum[1], (float)sum[2], (float)sum[3]};
}

#include "backend/cpu/affine_loops.h"

/* Eight codes of b bits are b bytes. */
static void unpack(uint8_t *to, const uint8_t *from, uint32_t n, uint32_t bits) {
    for (uint32_t i = 0; i < n; i += 8, from += bits) {
        uint64_t word = 0;
        for (uint32_t j = 0; j < bits; j++)
            word |= (uint64_t)from[j] << 8 * j;
        for (uint32_t j = 0; j < 8; j++)
            to[i + j] = (uint8_t)(word >> bits * j & ((1u << bits) - 1));
    }
}

static void unpack_table(uint8_t *to, const uint8_t *from, uint32_t n, const uint8_t table[16]) {
    for (uint32_t i = 0; i < n; i += 2, from++) {
        to[i] = table[*from & 15];
        to[i + 1] = table[*from >> 4];
    }
}

void td_dsp_init_generic(td_dsp *d) {
    d->isa = TD_ISA_GENERIC;
    d->name = "generic";
    fill_vector_slots(d);
    fill_affine_slots(d);
    d->unpack = unpack;
    d->unpack_table = unpack_table;
}
