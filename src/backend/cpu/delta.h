/* delta.h - the operations with recurrent memory of the CPU backend, and the table of their kernels per instruction
 * set.
 *
 * The bits of an output, and of a state, are a function of the rows before it: kernels walk the rows of a head in order
 * and add along k_dim in order, one accumulator a column. */
#ifndef TD_BACKEND_CPU_DELTA_H
#define TD_BACKEND_CPU_DELTA_H

#include "backend/backend.h"

/* Columns of S that are walked together: a tile of k_dim x 32 floats stays in the first cache. */
#define TD_DELTA_TILE 32

typedef struct td_delta_dsp {
    /* out[c] = silu( sum over j < kernel of w[j*w_stride + c] * x[j][c] ), c < n. */
    void (*conv)(float *out, const float *const *x, const float *w, size_t w_stride, uint32_t kernel, uint32_t n);
    /* a . b, n floats. */
    float (*dot)(const float *a, const float *b, uint32_t n);

    /* S is a tile [k_dim][TD_DELTA_TILE]; p, o, u, v and out have TD_DELTA_TILE floats.
     * write: S = alpha S + k u^T.   read: p = S^T k, o = S^T q.   write_read: the one, then the other with the next
     * row's k and q, in one walk. result: u = beta (v - alpha p), out = alpha o + qk u. */
    void (*write)(float *s, uint32_t k_dim, float alpha, const float *k, const float *u);
    void (*read)(const float *s, uint32_t k_dim, const float *k, const float *q, float *p, float *o);
    void (*write_read)(float *s, uint32_t k_dim, float alpha, const float *k, const float *u, const float *next_k,
                       const float *next_q, float *p, float *o);
    void (*result)(float *u, float *out, const float *v, const float *p, const float *o, float alpha, float beta,
                   float qk);
} td_delta_dsp;

/* The kernels of a level that td_dsp_has. */
const td_delta_dsp *td_delta_dsp_get(td_isa isa);

/* Of one level each; NULL where the build is for another architecture. */
const td_delta_dsp *td_delta_dsp_generic(void);
const td_delta_dsp *td_delta_dsp_avx2(void);
const td_delta_dsp *td_delta_dsp_avx512(void);
const td_delta_dsp *td_delta_dsp_neon(void);

void cpu_conv(td_backend *be, const td_conv *c);
void cpu_delta(td_backend *be, const td_delta *d);

#endif
