/* affine_pack.h - LANES rows of weights as vectors of the same place of every row (see vec_affine.h): strip by strip as
 * products need them, or once and for all at load. */
#ifndef TD_BACKEND_CPU_AFFINE_PACK_H
#define TD_BACKEND_CPU_AFFINE_PACK_H

#include "backend/cpu/vec_affine.h"

typedef uint32_t v32 __attribute__((vector_size(VECTOR_BYTES), may_alias));

/* ---- as products need them ---- */

/* LANES outputs of a matrix: where the first one's row begins, and how far behind it each row lies; the last one is
 * repeated where there are fewer. */
typedef struct lane_rows {
    const uint8_t *codes, *scales, *biases;
    size_t row[LANES], scale_row[LANES];
} lane_rows;

/* id: rows that are anywhere; NULL: n that follow each other. */
INLINE void lanes_set_rows(lane_rows *l, const td_matrix *w, const int32_t *id, uint32_t n) {
    for (uint32_t i = 0; i < LANES; i++) {
        const uint32_t at = i < n ? i : n - 1;
        const size_t row = id ? (size_t)id[at] : at;
        l->row[i] = row * w->row_bytes;
        l->scale_row[i] = row * w->scale_row_bytes;
    }
}

INLINE void lanes_go_to(lane_rows *l, const td_matrix *w, uint32_t o) {
    l->codes = w->data + o * w->row_bytes;
    l->scales = w->scales + o * w->scale_row_bytes;
    l->biases = w->biases + o * w->scale_row_bytes;
}

/* A vector of bytes from every row, `n` of them: dword j of each becomes vector j. Dwords follow each other as they do
 * in a block, so packed blocks follow each other too. */
INLINE void pack_vector(uint8_t *to, const lane_rows *l, size_t at, uint32_t n, const int bits) {
    vi v[LANES];
#pragma GCC unroll 16
    for (int i = 0; i < LANES; i++)
        v[i] = load_row(l->codes + at + l->row[i], n);
    transpose(v);
#pragma GCC unroll 16
    for (uint32_t j = 0; j < LANES; j++)
        if (4 * j < n)
            store_codes(to + j * VECTOR_BYTES, bits == 8 && FLIP != 0 ? flip(v[j]) : v[j]);
}

/* Codes of inputs [k0, k1). */
INLINE void pack_codes(uint8_t *to, const lane_rows *l, uint32_t k0, uint32_t k1, const int bits) {
    const uint32_t end = k1 * (uint32_t)bits / 8;
    uint32_t at = k0 * (uint32_t)bits / 8;
    for (; at + VECTOR_BYTES <= end; at += VECTOR_BYTES, to += LANES * VECTOR_BYTES)
        pack_vector(to, l, at, VECTOR_BYTES, bits);
    if (at < end)
        pack_vector(to, l, at, end - at, bits);
}

/* Scales and biases of groups [g0, g1), one after the other for each group. What falls behind g1 falls into room that
 * is there for it. */
INLINE void pack_scales(uint8_t *to, const uint8_t *from, const size_t *row, td_dtype type, uint32_t g0, uint32_t g1) {
    const size_t size = type == TD_DTYPE_F32 ? 4 : 2;
    for (uint32_t g = g0; g < g1; g += LANES) {
        const uint32_t n = g1 - g < LANES ? g1 - g : LANES;
        vf f[LANES];
        vi v[LANES];
        for (int i = 0; i < LANES; i++)
            f[i] = widen_row(from + g * size + row[i], type, n);
        memcpy(v, f, sizeof v);
        transpose(v);
#pragma GCC unroll 16
        for (uint32_t j = 0; j < LANES; j++, to += 2 * VECTOR_BYTES)
            store_codes(to, v[j]);
    }
}

/* The same for bf16: side by side they need one transposition. */
INLINE void pack_bf16_pairs(uint8_t *to, const lane_rows *l, uint32_t g0, uint32_t g1) {
    for (uint32_t g = g0; g < g1; g += LANES) {
        const uint32_t n = g1 - g < LANES ? g1 - g : LANES;
        vi v[LANES];
        if (n == LANES)
#pragma GCC unroll 16
            for (int i = 0; i < LANES; i++)
                v[i] = load_pairs(l->scales + 2 * g + l->scale_row[i], l->biases + 2 * g + l->scale_row[i], LANES);
        else
            for (int i = 0; i < LANES; i++)
                v[i] = load_pairs(l->scales + 2 * g + l->scale_row[i], l->biases + 2 * g + l->scale_row[i], n);
        transpose(v);
#pragma GCC unroll 16
        for (uint32_t j = 0; j < LANES; j++, to += 2 * VECTOR_BYTES) {
            store_codes(to, low_bf16(v[j]));
            store_codes(to + VECTOR_BYTES, high_bf16(v[j]));
        }
    }
}

/* Codes that are packed less FLIP: scale*c + bias = scale*(c - FLIP) + (bias + FLIP*scale). */
INLINE void flip_biases(uint8_t *to, uint32_t n, const int bits) {
    if (bits == 8 && FLIP != 0)
        for (uint32_t g = 0; g < n; g++, to += 2 * VECTOR_BYTES) {
            const vf bias = vf_fma(vf_load(to), vf_set1(FLIP), vf_load(to + VECTOR_BYTES));
            vf_store((float *)(void *)(to + VECTOR_BYTES), bias);
        }
}

/* Those of groups [g0, g1). */
INLINE void pack_all_scales(uint8_t *to, const td_matrix *w, const lane_rows *l, uint32_t g0, uint32_t g1,
                            const int bits) {
    if (w->scale_type == TD_DTYPE_BF16) {
        pack_bf16_pairs(to, l, g0, g1);
    } else {
        pack_scales(to, l->scales, l->scale_row, w->scale_type, g0, g1);
        pack_scales(to + VECTOR_BYTES, l->biases, l->scale_row, w->scale_type, g0, g1);
    }
    flip_biases(to, g1 - g0, bits);
}

/* ---- at load ---- */

/* Strip after strip: scales and biases of its groups as dwords of 16 bits each (of f32 as two vectors), then codes. */
INLINE size_t packed_group(const td_matrix *w) {
    return w->scale_type == TD_DTYPE_F32 ? 2 * VECTOR_BYTES : VECTOR_BYTES;
}

/* Bytes of LANES packed rows up to input k. */
INLINE size_t packed_affine(const td_matrix *w, uint32_t k) {
    return k / w->group * packed_group(w) + (size_t)(k / 32) * CODE_BYTES(w->bits);
}

INLINE uint32_t strip_end(const td_matrix *w, uint32_t k) {
    return w->n_in - k < STRIP(w->bits) ? w->n_in : k + STRIP(w->bits);
}

/* Of LANES outputs; whole vectors, stored as such. */
typedef struct packed_panel {
    _Alignas(VECTOR_BYTES) uint8_t scales[(PANEL / 32 + LANES) * 2 * VECTOR_BYTES];
    _Alignas(VECTOR_BYTES) uint8_t codes[STRIP(8) / 32 * CODE_BYTES(8)];
} packed_panel;

INLINE void pack_pairs(uint8_t *to, const lane_rows *l, uint32_t g0, uint32_t g1) {
    for (uint32_t g = g0; g < g1; g += LANES) {
        const uint32_t n = g1 - g < LANES ? g1 - g : LANES;
        vi v[LANES];
        for (int i = 0; i < LANES; i++)
            v[i] = load_pairs(l->scales + 2 * g + l->scale_row[i], l->biases + 2 * g + l->scale_row[i], n);
        transpose(v);
        for (uint32_t j = 0; j < n; j++, to += VECTOR_BYTES)
            store_codes(to, v[j]);
    }
}

static void pack_affine(uint8_t *to, const td_matrix *w, uint32_t o) {
    lane_rows l;
    lanes_set_rows(&l, w, NULL, LANES);
    lanes_go_to(&l, w, o);
    for (uint32_t k = 0, end; k < w->n_in; k = end) {
        packed_panel p;
        end = strip_end(w, k);
        const uint32_t g0 = k / w->group, g1 = end / w->group;
        const size_t scales = (g1 - g0) * packed_group(w), codes = (end - k) / 32 * CODE_BYTES(w->bits);
        if (w->scale_type == TD_DTYPE_F32) {
            pack_scales(p.scales, l.scales, l.scale_row, w->scale_type, g0, g1);
            pack_scales(p.scales + VECTOR_BYTES, l.biases, l.scale_row, w->scale_type, g0, g1);
        } else {
            pack_pairs(p.scales, &l, g0, g1);
        }
        pack_codes(p.codes, &l, k, end, w->bits);
        memcpy(to, p.scales, scales);
        memcpy(to + scales, p.codes, codes);
        to += scales + codes;
    }
}

static size_t packed_affine_bytes(const td_matrix *w) {
    return packed_affine(w, w->n_in);
}

/* n groups, as pack_all_scales would leave them. */
INLINE void take_scales(uint8_t *to, const uint8_t *from, uint32_t n, td_dtype type, const int bits) {
    uint8_t *end = to + n * 2 * VECTOR_BYTES;
    if (type == TD_DTYPE_F32)
        memcpy(to, from, n * 2 * VECTOR_BYTES);
    else
        for (uint8_t *t = to; t < end; t += 2 * VECTOR_BYTES, from += VECTOR_BYTES) {
            const vi pair = load_codes(from, 0, 8);
            const vi scale = type == TD_DTYPE_BF16 ? low_bf16(pair) : (vi)half_low(pair);
            const vi bias = type == TD_DTYPE_BF16 ? high_bf16(pair) : (vi)half_low((vi)((v32)pair >> 16));
            store_codes(t, scale);
            store_codes(t + VECTOR_BYTES, bias);
        }
    flip_biases(to, n, bits);
}

#endif
