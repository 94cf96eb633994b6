/* dsp.h - the table of kernels of the CPU backend: each is typed once here and filled per instruction set.
 *
 * td_dsp_init fills every slot with the generic version and lets each level overwrite what it does better, up to the
 * level asked for. A level that the machine lacks is never entered. Kernels know nothing of threads, of scratch
 * memory or of operations; the drivers (linear.c, moe.c, attention.c, rows.c, logits.c) cut the work and call them.
 *
 * One rule for all: the value of an output element depends on its own inputs only, never on how many rows or outputs
 * a call covers or where a driver cuts. In float products an element has one accumulator of `lanes` floats (lane l
 * takes inputs l, l + lanes, ... in order), reduced in one fixed way at the end; a cut along the inputs stores the
 * accumulator and loads it again. In quantised products it is one float that takes blocks of 32 inputs in order.
 * Levels may differ from each other in the last bits. */
#ifndef TD_BACKEND_CPU_DSP_H
#define TD_BACKEND_CPU_DSP_H

#include "backend/backend.h"

#define TD_DSP_MAX_LANES 16
/* Rows of one call of a quantised product, at most. */
#define TD_DSP_Q_ROWS 128
/* A row may be quantised in pieces that begin at multiples of so many inputs: running sums begin anew there. */
#define TD_DSP_Q_CUT 128

/* One call of a product kernel: outputs [0, n_o) of w times n_r rows of x. Float kernels take a cut of the inputs,
 * [k0, k1), multiples of 64 but at the end of the row; quantised ones cut for themselves. */
typedef struct td_tile {
    const td_matrix *w;    /* the outputs of the tile */
    const uint8_t *packed; /* the same, packed; NULL: not packed */
    const int32_t *id;     /* quantised: output o of the tile is row id[o] of w; NULL: row o */
    const void *const *x;  /* [n_r] rows: floats, or the quantised form of the kernel */
    float *y;              /* y[r*y_stride + o], written when `last` */
    size_t y_stride;
    float *acc; /* float: [n_o][n_r][lanes], read unless `first`, written unless `last`; quantised: q_scratch bytes */
    uint32_t n_o, n_r;
    uint32_t k0, k1;
    bool first, last;
    size_t ahead; /* float: request the weights that lie so many bytes behind those in use; 0: do not */
} td_tile;

typedef void (*td_tile_fn)(const td_tile *t);

/* Quantised activations: the same numbers, in the order and with the partial sums that weights of one kind want. */
typedef enum td_q_form { TD_Q_SPLIT, TD_Q_PLAIN, TD_Q_HALVES } td_q_form;

/* Rows of keys or values as they lie in a page: bf16 or floats, at any address, `pitch` bytes apart. */
typedef struct td_kv_rows {
    const uint8_t *row;
    size_t pitch;
    bool bf16;
} td_kv_rows;

typedef struct td_dsp {
    td_isa isa;
    const char *name;
    uint32_t lanes;

    /* Products. f32, bf16 and f16 weights in float arithmetic (fused multiply-add where the level has one). */
    td_tile_fn dot_f32, dot_bf16, dot_f16;

    /* Affine weights of 4 and 8 bits times activations quantised to int8 in blocks of 32:
     *   x ~ sx * qx, sx = max|x| / 127,  y = sum over blocks of (sw*sx) * sum(qw*qx) + bw * (sx * sum(qx)).
     * The bias is multiplied by the sum of the quantised x, not of x: then y is the exact product of W with the
     * quantised x, whose error is sum(w*e) for rounding errors e; with the float sum it would be sum((w - bw)*e),
     * larger for weights that are centred on zero. Integer sums are exact; blocks are added in float, in order.
     * A row of n inputs (a multiple of 32) is n/32 blocks of q_bytes. */
    uint32_t q_bytes;
    size_t q_scratch; /* bytes of scratch for a call, 64-byte aligned */
    void (*quantize)(uint8_t *to, const float *x, uint32_t n, td_q_form form);
    td_tile_fn dot_q4, dot_q8; /* SPLIT, PLAIN */

    /* GGUF blocks, likewise, times activations in the form HALVES; NULL for formats that go another way. */
    td_tile_fn dot_blocks[TD_FORMAT_COUNT];
    /* Weights of integer products packed ahead: a panel of `lanes` outputs from output o on. packed_bytes: of a panel,
     * whole vectors. Of affine weights, those of 4 and 8 bits. */
    void (*pack[TD_FORMAT_COUNT])(uint8_t *to, const td_matrix *w, uint32_t o);
    size_t (*packed_bytes[TD_FORMAT_COUNT])(const td_matrix *w);

    /* Conversions of n elements; the packed side may be unaligned. */
    void (*load_f32)(float *to, const void *from, size_t n);
    void (*load_bf16)(float *to, const void *from, size_t n);
    void (*load_f16)(float *to, const void *from, size_t n);
    void (*load_e4m3)(float *to, const void *from, size_t n); /* 0x7F and 0xFF: NaN */
    void (*store_bf16)(void *to, const float *from, size_t n);

    /* Codes of 2, 3, 5 or 6 bits, a little-endian stream, to bytes; nibbles, low first, to bytes through a table. n is
     * a multiple of 16. */
    void (*unpack)(uint8_t *to, const uint8_t *from, uint32_t n, uint32_t bits);
    void (*unpack_table)(uint8_t *to, const uint8_t *from, uint32_t n, const uint8_t table[16]);
    /* x[i] *= s[i / group]; group a multiple of 16. */
    void (*scale_groups)(float *x, const float *s, uint32_t n, uint32_t group);

    /* Attention. Rows of q and out lie `stride` floats apart, a multiple of TD_DSP_MAX_LANES; what lies beyond the
     * head's size is zero in q. Rows of k and v have `stride` elements, too. `ahead`: what will be read next, requested
     * from memory meanwhile, as many bytes as the call reads itself; NULL: nothing.
     * score: s[i*s_stride + j] = q_i . k_j.  softmax: s[a, b) becomes exp(s - top), all else in [0, n) zero; n is a
     * multiple of 16. mix: out_i += sum over j in order of p[i*p_stride + j] * v_j. fold: o = o*a + x*b. */
    void (*score)(float *s, size_t s_stride, const float *q, uint32_t n_q, const td_kv_rows *k, uint32_t n_k,
                  size_t stride, const uint8_t *ahead);
    void (*softmax)(float *s, uint32_t n, uint32_t a, uint32_t b, float *top, float *sum);
    void (*mix)(float *out, uint32_t n_q, const float *p, size_t p_stride, const td_kv_rows *v, uint32_t n_k,
                size_t stride, const uint8_t *ahead);
    void (*fold)(float *o, float a, const float *x, float b, uint32_t n);

    /* Rows and elements. */
    float (*sum_squares)(const float *x, uint32_t n);
    void (*norm)(float *y, const float *x, const float *w, float k, uint32_t n);                  /* y = x*k*w */
    void (*add_norm)(float *y, const float *x, const float *w, float k, float scale, uint32_t n); /* y = (y+x*k*w)*s */
    void (*gated)(float *y, const float *a, const float *b, uint32_t n, td_act act);
    void (*softcap)(float *x, size_t n, float cap);
    void (*add)(float *y, const float *a, const float *b, size_t n, float scale);
    void (*scale)(float *x, const float *w, uint32_t n, float scale);
    void (*axpy)(float *y, const float *x, float a, uint32_t n, bool first); /* y = a*x, or y += a*x */
    /* (x, x2) turned by the angles whose cosines and sines are given. */
    void (*rotate)(float *x, float *x2, const float *cosine, const float *sine, uint32_t n);

    /* Logits. peaks: the largest of every TD_PEAK_BLOCK of n values, +inf where one is NaN or +inf. above: the values
     * > under, in order, as words first, first + 1, ...; returns how many. sum_exp: see the operation. */
    void (*peaks)(float *peak, const float *x, size_t n);
    uint32_t (*above)(td_word *to, const float *x, uint32_t n, float under, uint32_t first);
    double (*sum_exp)(const float *x, size_t n, float top, float t);
} td_dsp;

/* The best level of this machine. */
td_isa td_dsp_best(void);
/* Whether this machine and this build have the level. */
bool td_dsp_has(td_isa isa);

/* Fills the table up to a level that td_dsp_has. */
void td_dsp_init(td_dsp *d, td_isa isa);

/* Each fills what it does better; those of another architecture do nothing. */
void td_dsp_init_generic(td_dsp *d);
void td_dsp_init_avx2(td_dsp *d);
void td_dsp_init_avxvnni(td_dsp *d);
void td_dsp_init_avx512(td_dsp *d);
void td_dsp_init_neon(td_dsp *d);
void td_dsp_init_neondot(td_dsp *d);

#endif
