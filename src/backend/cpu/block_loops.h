/* block_loops.h - integer products of GGUF blocks, for any level.
 *
 * As with affine weights (vec_affine.h) lanes are outputs, and nothing is ever added across them. block_kinds.h turns
 * LANES rows into codes and, for each 32 inputs or 16, a scale and a bias:
 *     32:  y = (y + s * (isum * sx)) + b * xsum      Q4_0: s = d, b = -8d.  Q4_K: s = d*scale, b = -dmin*min
 *     16:  t = isum_0 * s_0;  t = t + isum_1 * s_1;  y = ((y + sx * t) + b_0 * xsum_0) + b_1 * xsum_1
 *
 * An offset of the codes is a bias, or where sums are of 32 bits (WIDE_SUMS) what isum begins with: -8 (-16, -32, -128)
 * times the sum of the activations, which is exact and saves a multiply-add a row.
 *
 * Kinds that are alike once they are unpacked share their products: IQ4_NL those of IQ4_XS, Q3_K those of Q6_K. */
#ifndef TD_BACKEND_CPU_BLOCK_LOOPS_H
#define TD_BACKEND_CPU_BLOCK_LOOPS_H

#include "backend/cpu/block_kinds.h"

/* As PREFETCH_BYTES; the requests of a row come together here, and want to be further ahead. */
#define BLOCK_PREFETCH_BYTES 24576

/* A packed strip: `blocks` groups of 32 inputs from input k on, and where to request what comes later. */
typedef struct block_strip {
    const uint8_t *raw[VECTORS];
    uint32_t k, blocks;
    size_t row_bytes;
    const uint8_t *next; /* NULL: no requests */
    bool packed;         /* they follow `raw` */
    uint32_t request;    /* bytes a group of 32, or where it is not packed, bytes a row */
} block_strip;

/* What the sum of inputs [16h0, 16h1) begins with. Offsets are powers of two from 8 on, and 32 where h is of use. */
INLINE vi sum_start(const q_block *x, const int h0, const int h1, const int kind) {
    if (!block_has_start(kind))
        return dot_zero();
    const v32 none = {0}, all = none + (uint32_t)x->less_8, first = none + (uint32_t)x->first_less_32;
    if (h1 - h0 == 2)
        return (vi)(all << (__builtin_ctz(shapes[kind].offset) - 3));
    if (h0 == 0)
        return (vi)first;
    return (vi)((all << 2) - first);
}

/* The sum of activations [16h, 16h + 16). */
INLINE float half_sum(const q_block *x, const int h) {
    if (!WIDE_SUMS)
        return x->sum[1 + h];
    const int32_t first = x->first_less_32 / -32, all = x->less_8 / -8;
    return x->scale * (float)(h == 0 ? first : all - first);
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
                s[r][v] = dot_step(s[r][v], w[v], four, shapes[kind].bits);
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
            const vf t = vf_mul(dot_end(s[r][v], shapes[kind].bits), vf_set1(x[r][b].scale));
            sum[r][v] = vf_fma(scale, t, sum[r][v]);
            if (block_has_bias(kind))
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
                const vf part = dot_end(s[h][r][v], shapes[kind].bits);
                t[r][v] = h == 0 ? vf_mul(part, scale) : vf_fma(part, scale, t[r][v]);
                if (block_has_bias(kind))
                    sum[r][v] = vf_fma(bias, vf_set1(half_sum(&x[r][b], h)), sum[r][v]);
            }
        }
    }
#pragma GCC unroll 8
    for (int r = 0; r < NR; r++)
#pragma GCC unroll 2
        for (int v = 0; v < NV; v++)
            sum[r][v] = vf_fma(t[r][v], vf_set1(x[r][b].scale), sum[r][v]);
}

INLINE void request_bytes(const uint8_t *p, const uint32_t bytes) {
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
    const uint32_t blocks = shapes[kind].strip / 32, rows = ((uint32_t)NV * LANES + blocks - 1) / blocks;
    /* How many, where it is the same for all kinds that share this. */
    const uint32_t packed = strip_vectors(blocks, kind) * VECTOR_BYTES / blocks,
                   row = blocks * 32 / shapes[kind].inputs * shapes[kind].bytes;
    const uint32_t of_group = shapes[kind].in_place ? packed : at->request,
                   of_row = shapes[kind].in_place ? row : at->request;
    const uint8_t *next = at->next;
    for (uint32_t b = 0; b < at->blocks; b++) {
        if (next && at->packed)
            for (int v = 0; v < NV; v++)
                request_bytes(at->raw[v] + PACKED_PREFETCH_BYTES + b * of_group, of_group);
        else if (next)
            for (uint32_t i = 0; i < rows; i++, next += at->row_bytes)
                request_bytes(next, of_row);
        if (shapes[kind].group == 32)
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

/* ---- tiles ---- */

/* What is made for one kind; around it everything is the same for all. */
typedef struct block_kernels {
    int kind;
    void (*pack)(uint8_t *raw, const lane_rows *l, size_t at, size_t row, uint32_t groups);
    void (*take)(block_panel *p, const uint8_t *raw, uint32_t groups);
    const multiply_blocks_fn *multiply[2]; /* of one vector of outputs and of two, by rows less one */
} block_kernels;

/* The inputs from k on that are packed together. */
INLINE uint32_t strip_blocks(const td_matrix *w, uint32_t k, const int kind) {
    return (w->n_in - k < shapes[kind].strip ? w->n_in - k : shapes[kind].strip) / 32;
}

/* Bytes of LANES packed rows of k inputs, a whole number of strips and then what is left. */
INLINE size_t packed_size(uint32_t k, const int kind) {
    const uint32_t whole = shapes[kind].strip;
    return ((size_t)(k / whole) * strip_vectors(whole / 32, kind) + strip_vectors(k % whole / 32, kind)) * VECTOR_BYTES;
}

/* Bytes of k inputs of a row, as it lies. */
INLINE size_t row_size(uint32_t k, const int kind) {
    return (size_t)(k / shapes[kind].inputs) * shapes[kind].bytes;
}

static void pack_panel(uint8_t *to, const td_matrix *w, uint32_t o, const block_kernels *kernels) {
    const int kind = kernels->kind;
    const size_t row = row_size(w->n_in, kind);
    block_panel p;
    lane_rows l;
    lanes_set_rows(&l, w, NULL, LANES);
    l.codes = w->data + o * w->row_bytes;
    for (uint32_t k = 0, blocks; k < w->n_in; k += blocks * 32) {
        blocks = strip_blocks(w, k, kind);
        const size_t bytes = (size_t)strip_vectors(blocks, kind) * VECTOR_BYTES;
        kernels->pack(p.raw, &l, row_size(k, kind), row, blocks);
        memcpy(to, p.raw, bytes);
        to += bytes;
    }
}

/* Outputs [o, o + n_o), at most NV * LANES; l: their rows. packed: whether they lie packed already. */
INLINE void dot_block_outputs(const td_tile *t, lane_rows *l, uint32_t o, uint32_t n_o, const block_kernels *kernels,
                              const int NV, const bool packed) {
    block_panel *p = (block_panel *)(void *)t->acc;
    float *acc = (float *)(void *)(p + VECTORS);
    const td_matrix *w = t->w;
    const int kind = kernels->kind;
    const size_t row = row_size(w->n_in, kind), panel = packed_size(w->n_in, kind);
    const size_t strip_row = row_size(shapes[kind].strip, kind), strip_packed = packed_size(shapes[kind].strip, kind);
    const uint8_t *from = packed ? t->packed + o / LANES * panel : NULL;
    block_strip s = {.row_bytes = w->row_bytes, .packed = packed};
    s.request = (uint32_t)(packed ? strip_packed * 32 / shapes[kind].strip : strip_row);
    for (uint32_t v = 0; v < (uint32_t)NV; v++)
        l[v].codes = w->data + (t->id ? 0 : (o + v * LANES) * w->row_bytes);
    for (size_t at = 0; s.k < w->n_in; s.k += s.blocks * 32, at += strip_row) {
        s.blocks = strip_blocks(w, s.k, kind);
        for (uint32_t v = 0; v < (uint32_t)NV; v++) {
            s.raw[v] = packed ? from + v * panel : p[v].raw;
            if (!packed)
                kernels->pack(p[v].raw, l + v, at, row, s.blocks);
            kernels->take(p + v, s.raw[v], s.blocks);
        }
        if (t->id)
            request_chosen(t, w->data, w->row_bytes, o, at, at + strip_row < row ? at + strip_row : row);
        s.next = packed ? from : t->id ? NULL : weights_ahead(w, o, NV * LANES, at, row, BLOCK_PREFETCH_BYTES);
        from += packed ? strip_packed : 0;
        for (uint32_t r = 0, n; r < t->n_r; r += n, s.next = NULL) {
            n = rows_of_a_call(t->n_r - r);
            kernels->multiply[NV - 1][n - 1](acc + ACC(r, 0), p, t->x + r, &s);
        }
    }
    store_outputs(t, acc, o, n_o, NV);
}

static void dot_blocks(const td_tile *t, const block_kernels *kernels) {
    lane_rows l[VECTORS];
    uint32_t o = 0;
    for (int v = 0; v < VECTORS; v++)
        lanes_set_rows(&l[v], t->w, NULL, LANES);
    for (; !t->id && o + VECTORS * LANES <= t->n_o; o += VECTORS * LANES)
        dot_block_outputs(t, l, o, VECTORS * LANES, kernels, VECTORS, t->packed != NULL);
    for (uint32_t n; o < t->n_o; o += n) {
        n = t->n_o - o < LANES ? t->n_o - o : LANES;
        lanes_set_rows(l, t->w, t->id ? t->id + o : NULL, n);
        dot_block_outputs(t, l, o, n, kernels, 1, t->packed != NULL && n == LANES);
    }
}

/* ---- kinds ---- */

/* A kind that is multiplied as `like` is. */
#define DOT_BLOCKS_LIKE(kind, like)                                                                                    \
    static void pack_strip_##kind(uint8_t *raw, const lane_rows *l, size_t at, size_t row, uint32_t groups) {          \
        pack_blocks(raw, l, at, row, groups, BLOCK_##kind);                                                            \
    }                                                                                                                  \
    static void take_##kind(block_panel *p, const uint8_t *raw, uint32_t groups) {                                     \
        take_blocks(p, raw, groups, BLOCK_##kind);                                                                     \
    }                                                                                                                  \
    static const block_kernels kernels_##kind = {                                                                      \
        BLOCK_##kind, pack_strip_##kind, take_##kind, {blocks_##like##_1, blocks_##like##_2}};                         \
    static void pack_##kind(uint8_t *to, const td_matrix *w, uint32_t o) {                                             \
        pack_panel(to, w, o, &kernels_##kind);                                                                         \
    }                                                                                                                  \
    static size_t packed_bytes_##kind(const td_matrix *w) {                                                            \
        return packed_size(w->n_in, BLOCK_##kind);                                                                     \
    }                                                                                                                  \
    static void dot_##kind(const td_tile *t) {                                                                         \
        dot_blocks(t, &kernels_##kind);                                                                                \
    }

#define DOT_BLOCKS(kind)                                                                                               \
    MULTIPLY_BLOCKS_ALL(kind, 1)                                                                                       \
    MULTIPLY_BLOCKS_ALL(kind, 2)                                                                                       \
    DOT_BLOCKS_LIKE(kind, kind)

DOT_BLOCKS(Q4_0)
DOT_BLOCKS(Q4_1)
DOT_BLOCKS(Q5_0)
DOT_BLOCKS(Q8_0)
DOT_BLOCKS(Q2_K)
DOT_BLOCKS(Q4_K)
DOT_BLOCKS(Q5_K)
DOT_BLOCKS(Q6_K)
DOT_BLOCKS(IQ4_XS)
DOT_BLOCKS_LIKE(Q5_1, Q5_K)
DOT_BLOCKS_LIKE(Q3_K, Q6_K)
DOT_BLOCKS_LIKE(IQ4_NL, IQ4_XS)
DOT_BLOCKS_LIKE(MXFP4, Q5_0)

#define FILL_BLOCK_SLOT(format, kind)                                                                                  \
    do {                                                                                                               \
        d->dot_blocks[TD_FORMAT_##format] = dot_##kind;                                                                \
        d->pack[TD_FORMAT_##format] = pack_##kind;                                                                     \
        d->packed_bytes[TD_FORMAT_##format] = packed_bytes_##kind;                                                     \
    } while (0)

static void fill_block_slots(td_dsp *d) {
    const size_t scratch = VECTORS * (sizeof(block_panel) + TD_DSP_Q_ROWS * LANES * sizeof(float));
    d->q_scratch = d->q_scratch > scratch ? d->q_scratch : scratch;
    FILL_BLOCK_SLOT(Q4_0, Q4_0);
    FILL_BLOCK_SLOT(Q4_1, Q4_1);
    FILL_BLOCK_SLOT(Q5_0, Q5_0);
    FILL_BLOCK_SLOT(Q5_1, Q5_1);
    FILL_BLOCK_SLOT(Q8_0, Q8_0);
    FILL_BLOCK_SLOT(IQ4_NL, IQ4_NL);
    FILL_BLOCK_SLOT(MXFP4_BLOCK, MXFP4);
    FILL_BLOCK_SLOT(Q2_K, Q2_K);
    FILL_BLOCK_SLOT(Q3_K, Q3_K);
    FILL_BLOCK_SLOT(Q4_K, Q4_K);
    FILL_BLOCK_SLOT(Q5_K, Q5_K);
    FILL_BLOCK_SLOT(Q6_K, Q6_K);
    FILL_BLOCK_SLOT(IQ4_XS, IQ4_XS);
}

#endif
