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
#define WIDE_SUMS 1
#define VECTORS 2
#define ROWS_AT_A_TIME 4
#define PREFETCH_BYTES 16384

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

INLINE vi load_pairs(const uint8_t *low, const uint8_t *high, uint32_t n) {
    uint16_t a[LANES] = {0}, b[LANES] = {0};
    memcpy(a, low, 2 * n);
    memcpy(b, high, 2 * n);
    vi v;
    for (int i = 0; i < LANES; i++)
        v[i] = a[i] | (uint32_t)b[i] << 16;
    return v;
}

INLINE vi low_bf16(vi v) {
    return v << 16;
}

INLINE vi high_bf16(vi v) {
    return v & 0xFFFF0000;
}

INLINE vf half_low(vi v) {
    vf f;
    for (int i = 0; i < LANES; i++)
        f[i] = td_f16_to_f32((uint16_t)v[i]);
    return f;
}

INLINE vi load_codes(const uint8_t *codes, const int d, const int bits) {
    vi v;
    memcpy(&v, codes + (bits == 8 ? d : d / 2) * VECTOR_BYTES, sizeof v);
    return bits == 8 ? v : (d % 2 ? v >> 4 : v) & 0x0F0F0F0F;
}

INLINE vi look_up(vi v, const uint8_t *table) {
    for (int lane = 0; lane < LANES; lane++) {
        uint32_t to = 0;
        for (int i = 0; i < 32; i += 8)
            to |= (uint32_t)table[v[lane] >> i & 15] << i;
        v[lane] = to;
    }
    return v;
}

INLINE vi dot_zero(void) {
    return (vi){0, 0, 0, 0};
}

INLINE vi spread_four(const int8_t *q) {
    uint32_t four;
    memcpy(&four, q, 4);
    return (vi){four, four, four, four};
}

INLINE vi dot_step(vi sum, vi w, vi x, const int bits) {
    typedef int32_t signed_vi __attribute__((vector_size(16)));
    (void)bits;
    for (int i = 0; i < 32; i += 8)
        sum += (w >> i & 255) * (vi)((signed_vi)(x << (24 - i)) >> 24);
    return sum;
}

INLINE vf dot_end(vi sum, const int bits) {
    (void)bits;
    return (vf){(float)(int32_t)sum[0], (float)(int32_t)sum[1], (float)(int32_t)sum[2], (float)(int32_t)sum[3]};
}

#include "backend/cpu/block_loops.h"

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
    fill_block_slots(d);
    d->unpack = unpack;
    d->unpack_table = unpack_table;
}
