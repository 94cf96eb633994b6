/* block_loops.h - integer products of GGUF blocks: Q4_0, Q8_0, Q4_K and Q6_K, for any level.
 *
 * As with affine weights (vec_affine.h) lanes are outputs, and nothing is ever added across them. Here a strip of raw
 * row bytes is transposed whole, scales and all, and taken apart afterwards: in lanes of 32 bits that is the same
 * shifts and masks for every output, so the scales cost no gathering, and one text serves all levels. What a block is
 * then made of are codes of 4 bits (read from where they lie) or of 8, and a scale and a bias for 32 inputs, or 16:
 *     32:  y = (y + s * (isum * sx)) + b * xsum      Q4_0: s = d, b = -8d.  Q4_K: s = d*scale, b = -dmin*min
 *     16:  t = isum_0 * s_0;  t = t + isum_1 * s_1;  y = ((y + sx * t) + b_0 * xsum_0) + b_1 * xsum_1
 *
 * Levels that multiply unsigned codes only take Q8_0 plus 128 and Q6_K as it lies, and b makes up for it; those with
 * FLIP take them signed and leave b out. Where sums are of 32 bits (WIDE_SUMS) an offset needs no b either: isum begins
 * with -8 (-128, -32) times the sum of the activations, which is exact and saves a multiply-add a row. */
#ifndef TD_BACKEND_CPU_BLOCK_LOOPS_H
#define TD_BACKEND_CPU_BLOCK_LOOPS_H

#include "backend/cpu/affine_loops.h"

typedef int32_t vs32 __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef uint8_t v8 __attribute__((vector_size(VECTOR_BYTES), may_alias));
typedef float vfloat __attribute__((vector_size(VECTOR_BYTES), may_alias));

enum { BLOCK_Q4_0, BLOCK_Q8_0, BLOCK_Q4_K, BLOCK_Q6_K };

/* What the multiply-adds have to expect of codes: `bits` of dot_step. 6: signed, 16 of them fit 16 bits. */
#define BLOCK_BITS(kind) ((kind) == BLOCK_Q8_0 ? 8 : (kind) == BLOCK_Q6_K ? 6 : 4)
/* Codes that stand for themselves less a number; the sums of products begin with that number's part of them. */
#define BLOCK_IS_OFFSET(kind) ((kind) == BLOCK_Q4_0 || ((kind) != BLOCK_Q4_K && FLIP == 0))
#define BLOCK_HAS_START(kind) (WIDE_SUMS && BLOCK_IS_OFFSET(kind))
/* Otherwise it is a bias. */
#define BLOCK_HAS_BIAS(kind) ((kind) == BLOCK_Q4_K || (!WIDE_SUMS && BLOCK_IS_OFFSET(kind)))
#define BLOCK_GROUP(kind) ((kind) == BLOCK_Q6_K ? 16 : 32)
/* Inputs and bytes of a block as it lies in the row; inputs of a strip. */
#define BLOCK_INPUTS(kind) ((kind) == BLOCK_Q4_K || (kind) == BLOCK_Q6_K ? 256u : 32u)
#define BLOCK_BYTES(kind) ((kind) == BLOCK_Q4_0 ? 18u : (kind) == BLOCK_Q8_0 ? 34u : (kind) == BLOCK_Q4_K ? 144u : 210u)
#define BLOCK_STRIP(kind) ((kind) == BLOCK_Q6_K ? 256u : 512u)

/* As PREFETCH_BYTES; the requests of a row come together here, and want to be further ahead. */
#define BLOCK_PREFETCH_BYTES 24576

/* Two blocks that have 2 + 4n bytes each are packed together; n of the kinds for which that is so, otherwise 0. */
#define PAIR_DWORDS(kind) ((kind) == BLOCK_Q4_0 ? 4u : (kind) == BLOCK_Q8_0 ? 8u : 0u)
/* Vectors of a packed strip of `blocks` groups of 32 inputs. */
#define STRIP_VECTORS(kind, blocks)                                                                                    \
    (PAIR_DWORDS(kind) ? ((blocks) + 1) / 2 * (2 * PAIR_DWORDS(kind) + 1) : ((blocks) / 8 * BLOCK_BYTES(kind) + 3) / 4)

/* Of LANES outputs: transposed dwords of a strip, codes where they were unpacked to bytes, scales and biases. */
typedef struct block_panel {
    _Alignas(VECTOR_BYTES) uint8_t raw[(512 / 32 * 34 / 4 + LANES) * VECTOR_BYTES];
    _Alignas(VECTOR_BYTES) uint8_t codes[256 / 4 * VECTOR_BYTES];
    _Alignas(VECTOR_BYTES) uint8_t scales[16 * 2 * VECTOR_BYTES];
} block_panel;

/* ---- taking apart ---- */

INLINE v32 dword(const uint8_t *p, uint32_t i) {
    return (v32)load_codes(p, (int)i, 8);
}

INLINE void set_dword(uint8_t *p, uint32_t i, v32 v) {
    store_codes(p + i * VECTOR_BYTES, (vi)v);
}

INLINE vf integers(v32 v) {
    return (vf) __builtin_convertvector((vs32)v, vfloat);
}

INLINE void set_scale(block_panel *p, uint32_t group, vf scale, vf bias, const bool has_bias) {
    float *to = (float *)(void *)(p->scales + group * 2 * VECTOR_BYTES);
    vf_store(to, scale);
    if (has_bias)
        vf_store(to + LANES, bias);
}

/* Two blocks of 2 + 4n bytes are 2n + 1 dwords. The codes of the first lie across dwords and move by half of one; what
 * is left between them and the second's holds both scales. */
INLINE void align_pair(uint8_t *raw, const int kind) {
    const uint32_t n = PAIR_DWORDS(kind);
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

/* `blocks` groups of 32 inputs from byte `at` of the rows on, which have `row` bytes. Loads may reach past the strip,
 * but not past the row, and fill as many vectors more. */
INLINE void pack_blocks(uint8_t *raw, const lane_rows *l, size_t at, size_t row, uint32_t blocks, const int kind) {
    const size_t end = at + (size_t)(blocks * 32 / BLOCK_INPUTS(kind) * BLOCK_BYTES(kind));
    for (uint8_t *to = raw; at < end; at += VECTOR_BYTES, to += LANES * VECTOR_BYTES) {
        if (at + VECTOR_BYTES <= row)
            pack_vector(to, l, at, VECTOR_BYTES, 4);
        else
            pack_vector(to, l, at, (uint32_t)(row - at), 4);
    }
    if (PAIR_DWORDS(kind))
        for (uint32_t i = 0; i < (blocks + 1) / 2; i++)
            align_pair(raw + i * (2 * PAIR_DWORDS(kind) + 1) * VECTOR_BYTES, kind);
}

INLINE void take_pair(block_panel *p, const uint8_t *raw, uint32_t pair, const int kind) {
    const uint32_t n = PAIR_DWORDS(kind);
    const v32 scales = dword(raw, pair * (2 * n + 1) + n);
    const vf d0 = half_low((vi)scales), d1 = half_low((vi)(scales >> 16)),
             offset = vf_set1(kind == BLOCK_Q4_0 ? -8 : -128);
    set_scale(p, 2 * pair, d0, vf_mul(d0, offset), BLOCK_HAS_BIAS(kind));
    set_scale(p, 2 * pair + 1, d1, vf_mul(d1, offset), BLOCK_HAS_BIAS(kind));
}

INLINE void take_q4_k(block_panel *p, const uint8_t *raw, uint32_t block) {
    raw += block * 36 * VECTOR_BYTES;
    const v32 head = dword(raw, 0), low = dword(raw, 1), mid = dword(raw, 2), high = dword(raw, 3);
    const vf d = half_low((vi)head), dmin = vf_sub(vf_zero(), half_low((vi)(head >> 16)));
#pragma GCC unroll 4
    for (uint32_t j = 0; j < 4; j++) {
        const uint32_t s = 8 * j;
        set_scale(p, 8 * block + j, vf_mul(d, integers(low >> s & 63)), vf_mul(dmin, integers(mid >> s & 63)), true);
        const v32 scale = (high >> s & 15) | (low >> (s + 6) & 3) << 4;
        const v32 min = (high >> (s + 4) & 15) | (mid >> (s + 6) & 3) << 4;
        set_scale(p, 8 * block + 4 + j, vf_mul(d, integers(scale)), vf_mul(dmin, integers(min)), true);
    }
}

INLINE void take_q6_k(block_panel *p, const uint8_t *raw) {
    const vf d = half_low((vi)dword(raw, 52)), offset = vf_set1(-32);
#pragma GCC unroll 16
    for (uint32_t j = 0; j < 16; j++) {
        const vs32 scale = (vs32)(dword(raw, 48 + j / 4) << (24 - 8 * (j % 4))) >> 24;
        const vf s = vf_mul(d, integers((v32)scale));
        set_scale(p, j, s, vf_mul(s, offset), BLOCK_HAS_BIAS(BLOCK_Q6_K));
    }
    for (uint32_t half = 0; half < 2; half++)
        for (uint32_t i = 0; i < 8; i++) {
            const v32 high = dword(raw, 32 + 8 * half + i);
#pragma GCC unroll 4
            for (uint32_t g = 0; g < 4; g++) {
                const v32 low = dword(raw, 16 * half + 8 * (g & 1) + i) >> (g < 2 ? 0 : 4);
                const v32 top = (g < 2 ? high << (4 - 2 * g) : high >> (2 * g - 4)) & 0x30303030;
                v32 code = (low & 0x0F0F0F0F) | top;
                if (FLIP != 0)
                    code = (v32)((v8)code + (uint8_t)-32);
                set_dword(p->codes, 8 * (4 * half + g) + i, code);
            }
        }
}

/* What the products of a packed strip need beside it. */
INLINE void take_blocks(block_panel *p, const uint8_t *raw, uint32_t blocks, const int kind) {
    if (PAIR_DWORDS(kind))
        for (uint32_t i = 0; i < (blocks + 1) / 2; i++)
            take_pair(p, raw, i, kind);
    else if (kind == BLOCK_Q4_K)
        for (uint32_t i = 0; i < blocks / 8; i++)
            take_q4_k(p, raw, i);
    else
        take_q6_k(p, raw);
}

/* ---- products ---- */

/* Codes of inputs 4d .. 4d + 3 of group b of 32. */
INLINE vi block_codes(const block_panel *p, const uint8_t *raw, uint32_t b, const int d, const int kind) {
    switch (kind) {
    case BLOCK_Q4_0: /* low nibbles of four dwords, then high ones: two neighbours of a packed vector of affine codes */
        return load_codes(raw + (b / 2 * 9 + b % 2 * 5 + d % 4) * VECTOR_BYTES, d / 4, 4);
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

/* A packed strip: `blocks` groups of 32 inputs from input k on, and where to request what comes later. */
typedef struct block_strip {
    const uint8_t *raw[VECTORS];
    uint32_t k, blocks;
    size_t row_bytes;
    const uint8_t *next; /* NULL: no requests */
    bool packed;         /* they follow `raw` */
} block_strip;

/* What the sum of inputs [16h0, 16h1) begins with. */
INLINE vi sum_start(const q_block *x, const int h0, const int h1, const int kind) {
    if (!BLOCK_HAS_START(kind))
        return dot_zero();
    const v32 none = {0}, all = none + (uint32_t)x->less_8, first = none + (uint32_t)x->first_less_32;
    if (kind == BLOCK_Q4_0)
        return (vi)all;
    if (kind == BLOCK_Q8_0)
        return (vi)(all << 4);
    if (h0 == 0 && h1 == 1)
        return (vi)first;
    return (vi)((all << 2) - first);
}

/* sums of inputs [16h0, 16h1) of group b. */
INLINE void dot_part(vi s[MAX_ROWS_AT_A_TIME][VECTORS], const block_panel *p, const block_strip *at, uint32_t b,
                     const q_block *const *x, const int h0, const int h1, const int kind, const int NV, const int NR) {
#pragma GCC unroll 8
    for (int r = 0; r < NR; r++)
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++)
            s[r][v] = sum_start(&x[r][b], h0, h1, kind);
#pragma GCC unroll 8
    for (int d = 4 * h0; d < 4 * h1; d++) {
        vi w[VECTORS];
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++)
            w[v] = block_codes(p + v, at->raw[v], b, d, kind);
#pragma GCC unroll 8
        for (int r = 0; r < NR; r++) {
            const vi four = spread_four(x[r][b].q + 4 * d);
#pragma GCC unroll 2
            for (int v = 0; v < NV; v++)
                s[r][v] = dot_step(s[r][v], w[v], four, BLOCK_BITS(kind));
        }
    }
}

INLINE vf scale_at(const block_panel *p, uint32_t group, const int bias) {
    return vf_load(p->scales + (2 * group + (uint32_t)bias) * VECTOR_BYTES);
}

INLINE void block_of_32(vf sum[MAX_ROWS_AT_A_TIME][VECTORS], const block_panel *p, const block_strip *at, uint32_t b,
                        const q_block *const *x, const int kind, const int NV, const int NR) {
    vi s[MAX_ROWS_AT_A_TIME][VECTORS];
    dot_part(s, p, at, b, x, 0, 2, kind, NV, NR);
#pragma GCC unroll 2
    for (int v = 0; v < NV; v++) {
        const vf scale = scale_at(p + v, b, 0), bias = scale_at(p + v, b, 1);
#pragma GCC unroll 8
        for (int r = 0; r < NR; r++) {
            const vf t = vf_mul(dot_end(s[r][v], BLOCK_BITS(kind)), vf_set1(x[r][b].scale));
            sum[r][v] = vf_fma(scale, t, sum[r][v]);
            if (BLOCK_HAS_BIAS(kind))
                sum[r][v] = vf_fma(bias, vf_set1(x[r][b].sum[0]), sum[r][v]);
        }
    }
}

INLINE void block_of_16(vf sum[MAX_ROWS_AT_A_TIME][VECTORS], const block_panel *p, const block_strip *at, uint32_t b,
                        const q_block *const *x, const int kind, const int NV, const int NR) {
    vi s[2][MAX_ROWS_AT_A_TIME][VECTORS];
    vf t[MAX_ROWS_AT_A_TIME][VECTORS];
#pragma GCC unroll 2
    for (int h = 0; h < 2; h++) {
        dot_part(s[h], p, at, b, x, h, h + 1, kind, NV, NR);
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++) {
            const vf scale = scale_at(p + v, 2 * b + (uint32_t)h, 0), bias = scale_at(p + v, 2 * b + (uint32_t)h, 1);
#pragma GCC unroll 8
            for (int r = 0; r < NR; r++) {
                const vf part = dot_end(s[h][r][v], BLOCK_BITS(kind));
                t[r][v] = h == 0 ? vf_mul(part, scale) : vf_fma(part, scale, t[r][v]);
                if (BLOCK_HAS_BIAS(kind))
                    sum[r][v] = vf_fma(bias, vf_set1(x[r][b].sum[1 + h]), sum[r][v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < NR; r++)
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++)
            sum[r][v] = vf_fma(t[r][v], vf_set1(x[r][b].scale), sum[r][v]);
}

INLINE void request_row(const uint8_t *p, const uint32_t bytes) {
#pragma GCC unroll 10
    for (uint32_t i = 0; i < bytes; i += 64)
        __builtin_prefetch(p + i);
}

INLINE void multiply_blocks(float *acc, const block_panel *p, const void *const *x, const block_strip *at,
                            const int kind, const int NV, const int NR) {
    const q_block *xb[MAX_ROWS_AT_A_TIME];
    vf sum[MAX_ROWS_AT_A_TIME][VECTORS];
#pragma GCC unroll 8
    for (int r = 0; r < NR; r++) {
        xb[r] = (const q_block *)x[r] + at->k / 32;
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++)
            sum[r][v] = at->k == 0 ? vf_zero() : vf_load(acc + ACC(r, v));
    }
    /* The requests of a strip, spread over its blocks: all lines of a row at once. */
    const uint32_t blocks = BLOCK_STRIP(kind) / 32, rows = ((uint32_t)NV * LANES + blocks - 1) / blocks;
    const uint32_t bytes = STRIP_VECTORS(kind, blocks) * VECTOR_BYTES / blocks;
    const uint8_t *next = at->next;
    for (uint32_t b = 0; b < at->blocks; b++) {
        if (next && at->packed)
            for (int v = 0; v < NV; v++)
                request_row(at->raw[v] + PACKED_PREFETCH_BYTES + b * bytes, bytes);
        else if (next)
            for (uint32_t i = 0; i < rows; i++, next += at->row_bytes)
                request_row(next, BLOCK_STRIP(kind) / BLOCK_INPUTS(kind) * BLOCK_BYTES(kind));
        if (BLOCK_GROUP(kind) == 32)
            block_of_32(sum, p, at, b, xb, kind, NV, NR);
        else
            block_of_16(sum, p, at, b, xb, kind, NV, NR);
    }
#pragma GCC unroll 8
    for (int r = 0; r < NR; r++)
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++)
            vf_store(acc + ACC(r, v), sum[r][v]);
}

typedef void (*multiply_blocks_fn)(float *acc, const block_panel *p, const void *const *x, const block_strip *at);

#define MULTIPLY_BLOCKS(kind, NV, NR)                                                                                  \
    static __attribute__((noinline)) void blocks_##kind##_##NV##x##NR(float *acc, const block_panel *p,                \
                                                                      const void *const *x, const block_strip *at) {   \
        if (NV <= VECTORS && NR <= ROWS_AT_A_TIME)                                                                     \
            multiply_blocks(acc, p, x, at, BLOCK_##kind, NV, NR);                                                      \
    }

#define MULTIPLY_BLOCKS_ALL(kind, NV)                                                                                  \
    MULTIPLY_BLOCKS(kind, NV, 1)                                                                                       \
    MULTIPLY_BLOCKS(kind, NV, 2)                                                                                       \
    MULTIPLY_BLOCKS(kind, NV, 3)                                                                                       \
    MULTIPLY_BLOCKS(kind, NV, 4)                                                                                       \
    MULTIPLY_BLOCKS(kind, NV, 5)                                                                                       \
    MULTIPLY_BLOCKS(kind, NV, 6)                                                                                       \
    MULTIPLY_BLOCKS(kind, NV, 7)                                                                                       \
    MULTIPLY_BLOCKS(kind, NV, 8)                                                                                       \
    static const multiply_blocks_fn blocks_##kind##_##NV[] = {                                                         \
        blocks_##kind##_##NV##x1, blocks_##kind##_##NV##x2, blocks_##kind##_##NV##x3, blocks_##kind##_##NV##x4,        \
        blocks_##kind##_##NV##x5, blocks_##kind##_##NV##x6, blocks_##kind##_##NV##x7, blocks_##kind##_##NV##x8,        \
    };

/* The inputs from k on that are packed together. */
INLINE uint32_t strip_blocks(const td_matrix *w, uint32_t k, const int kind) {
    return (w->n_in - k < BLOCK_STRIP(kind) ? w->n_in - k : BLOCK_STRIP(kind)) / 32;
}

/* Bytes of LANES packed rows up to input k, a whole number of strips or all. */
INLINE size_t packed_up_to(uint32_t k, const int kind) {
    const size_t strips = k / BLOCK_STRIP(kind), rest = k % BLOCK_STRIP(kind) / 32;
    return (strips * STRIP_VECTORS(kind, BLOCK_STRIP(kind) / 32) + STRIP_VECTORS(kind, rest)) * VECTOR_BYTES;
}

INLINE void pack_panel(uint8_t *to, const td_matrix *w, uint32_t o, const int kind) {
    block_panel p;
    lane_rows l;
    lanes_set_rows(&l, w, NULL, LANES);
    l.codes = w->data + o * w->row_bytes;
    for (uint32_t k = 0, blocks; k < w->n_in; k += blocks * 32) {
        blocks = strip_blocks(w, k, kind);
        const size_t bytes = (size_t)STRIP_VECTORS(kind, blocks) * VECTOR_BYTES;
        pack_blocks(p.raw, &l, (size_t)k / BLOCK_INPUTS(kind) * BLOCK_BYTES(kind),
                    w->n_in / BLOCK_INPUTS(kind) * (size_t)BLOCK_BYTES(kind), blocks, kind);
        memcpy(to, p.raw, bytes);
        to += bytes;
    }
}

/* Outputs [o, o + n_o), at most NV * LANES; l: their rows. packed: whether they lie packed already. */
INLINE void dot_block_outputs(const td_tile *t, lane_rows *l, uint32_t o, uint32_t n_o,
                              const multiply_blocks_fn *multiply, const int kind, const int NV, const bool packed) {
    block_panel *p = (block_panel *)(void *)t->acc;
    float *acc = (float *)(void *)(p + VECTORS);
    const td_matrix *w = t->w;
    const size_t row = w->n_in / BLOCK_INPUTS(kind) * (size_t)BLOCK_BYTES(kind), panel = packed_up_to(w->n_in, kind);
    block_strip s = {.row_bytes = w->row_bytes, .packed = packed};
    for (uint32_t v = 0; v < (uint32_t)NV; v++)
        l[v].codes = w->data + (t->id ? 0 : (o + v * LANES) * w->row_bytes);
    for (; s.k < w->n_in; s.k += s.blocks * 32) {
        const size_t at = (size_t)s.k / BLOCK_INPUTS(kind) * BLOCK_BYTES(kind);
        s.blocks = strip_blocks(w, s.k, kind);
        for (int v = 0; v < NV; v++) {
            if (packed) {
                s.raw[v] = t->packed + (o / LANES + (uint32_t)v) * panel + packed_up_to(s.k, kind);
            } else {
                pack_blocks(p[v].raw, l + v, at, row, s.blocks, kind);
                s.raw[v] = p[v].raw;
            }
            take_blocks(p + v, s.raw[v], s.blocks, kind);
        }
        s.next = packed ? t->packed : t->id ? NULL : weights_ahead(w, o, NV * LANES, at, row, BLOCK_PREFETCH_BYTES);
        for (uint32_t r = 0, n; r < t->n_r; r += n, s.next = NULL) {
            n = rows_of_a_call(t->n_r - r);
            multiply[n - 1](acc + ACC(r, 0), p, t->x + r, &s);
        }
    }
    store_outputs(t, acc, o, n_o, NV);
}

INLINE void dot_blocks(const td_tile *t, const multiply_blocks_fn *one, const multiply_blocks_fn *all, const int kind) {
    lane_rows l[VECTORS];
    uint32_t o = 0;
    for (int v = 0; v < VECTORS; v++)
        lanes_set_rows(&l[v], t->w, NULL, LANES);
    for (; !t->id && o + VECTORS * LANES <= t->n_o; o += VECTORS * LANES)
        dot_block_outputs(t, l, o, VECTORS * LANES, all, kind, VECTORS, t->packed != NULL);
    for (uint32_t n; o < t->n_o; o += n) {
        n = t->n_o - o < LANES ? t->n_o - o : LANES;
        lanes_set_rows(l, t->w, t->id ? t->id + o : NULL, n);
        dot_block_outputs(t, l, o, n, one, kind, 1, t->packed != NULL && n == LANES);
    }
}

#define DOT_BLOCKS(kind)                                                                                               \
    static void pack_##kind(uint8_t *to, const td_matrix *w, uint32_t o) {                                             \
        pack_panel(to, w, o, BLOCK_##kind);                                                                            \
    }                                                                                                                  \
    static size_t packed_bytes_##kind(const td_matrix *w) {                                                            \
        return packed_up_to(w->n_in, BLOCK_##kind);                                                                    \
    }                                                                                                                  \
    MULTIPLY_BLOCKS_ALL(kind, 1)                                                                                       \
    MULTIPLY_BLOCKS_ALL(kind, 2)                                                                                       \
    static void dot_##kind(const td_tile *t) {                                                                         \
        dot_blocks(t, blocks_##kind##_1, VECTORS == 1 ? blocks_##kind##_1 : blocks_##kind##_2, BLOCK_##kind);          \
    }

DOT_BLOCKS(Q4_0)
DOT_BLOCKS(Q8_0)
DOT_BLOCKS(Q4_K)
DOT_BLOCKS(Q6_K)

static void fill_block_slots(td_dsp *d) {
    const size_t scratch = VECTORS * (sizeof(block_panel) + TD_DSP_Q_ROWS * LANES * sizeof(float));
    d->q_scratch = d->q_scratch > scratch ? d->q_scratch : scratch;
    d->dot_blocks[TD_FORMAT_Q4_0] = dot_Q4_0;
    d->pack[TD_FORMAT_Q4_0] = pack_Q4_0;
    d->packed_bytes[TD_FORMAT_Q4_0] = packed_bytes_Q4_0;
    d->dot_blocks[TD_FORMAT_Q8_0] = dot_Q8_0;
    d->pack[TD_FORMAT_Q8_0] = pack_Q8_0;
    d->packed_bytes[TD_FORMAT_Q8_0] = packed_bytes_Q8_0;
    d->dot_blocks[TD_FORMAT_Q4_K] = dot_Q4_K;
    d->pack[TD_FORMAT_Q4_K] = pack_Q4_K;
    d->packed_bytes[TD_FORMAT_Q4_K] = packed_bytes_Q4_K;
    d->dot_blocks[TD_FORMAT_Q6_K] = dot_Q6_K;
    d->pack[TD_FORMAT_Q6_K] = pack_Q6_K;
    d->packed_bytes[TD_FORMAT_Q6_K] = packed_bytes_Q6_K;
}

#endif
