/* cpu.h - the state of the CPU backend, shared by its operations.
 *
 * One thread calls operations; each cuts its work into tiles for the pool and returns when they are done. Scratch is
 * a set of slots, each a block that grows and is kept: td_backend_reserve sizes the large ones, and an operation of
 * an unforeseen shape (a mixture of experts, attention over a longer context) grows its slots the first time. When
 * that fails the operation does nothing and the error waits for td_backend_wait. */
#ifndef TD_BACKEND_CPU_CPU_H
#define TD_BACKEND_CPU_CPU_H

#include "backend/backend.h"
#include "backend/cpu/dsp.h"
#include "base/pool.h"

/* They should stay in the caches until they are folded, and still be many spans a thread. */
#define CPU_WAVE_BYTES ((size_t)16 << 20)

typedef enum cpu_slot {
    CPU_SLOT_Q, /* activations quantised, a row after the other, in the forms SPLIT, PLAIN and HALVES */
    CPU_SLOT_Q_PLAIN,
    CPU_SLOT_Q_HALVES,
    CPU_SLOT_ROWS,    /* pointers to rows */
    CPU_SLOT_THREAD,  /* a block per thread, see cpu_thread_block */
    CPU_SLOT_MOE,     /* rows by expert */
    CPU_SLOT_HIDDEN,  /* [pairs][n_ff] */
    CPU_SLOT_PARTIAL, /* attention: results of spans */
    CPU_SLOT_TOTAL,   /* attention: running totals */
    CPU_SLOT_ITEMS,   /* attention: its work list */
    CPU_SLOT_COUNT
} cpu_slot;

typedef struct cpu_block {
    uint8_t *data; /* 64-byte aligned */
    size_t size;
} cpu_block;

typedef struct td_cpu {
    td_backend base;
    td_dsp dsp;
    td_pool *pool;
    int n_threads;
    bool float_activations, no_packing;
    float e8m0[256];     /* E8M0 scale bytes as floats */
    size_t wave_bytes;   /* attention: of results of spans kept at a time; tests lower it */
    size_t thread_bytes; /* of each thread's part of CPU_SLOT_THREAD */
    cpu_block slot[CPU_SLOT_COUNT];
    struct rope_table *rope; /* rows.c */
    uint64_t rope_clock;
    td_error error; /* the first since the last wait; TD_OK: none */
} td_cpu;

static inline td_cpu *cpu_of(td_backend *be) {
    return (td_cpu *)be;
}

/* The slot with at least n*size bytes; NULL, with the error kept, when there is no memory. Old contents are lost when
 * it grows. */
void *cpu_scratch(td_cpu *c, cpu_slot slot, size_t n, size_t size);
/* Makes every thread's block at least `bytes`; false as above. Never while a job runs. */
bool cpu_reserve_threads(td_cpu *c, size_t bytes);
static inline void *cpu_thread_block(td_cpu *c, int thread) {
    return c->slot[CPU_SLOT_THREAD].data + (size_t)thread * c->thread_bytes;
}
void cpu_fail(td_cpu *c, td_status status, const char *fmt, ...) TD_PRINTF(3, 4);

/* ---- products: linear.c ---- */

/* How a matrix is multiplied: a function of the matrix and the options, never of the number of rows. */
typedef enum cpu_path {
    CPU_PATH_FLOAT,
    CPU_PATH_Q4,     /* affine codes of 4 bits: activations in the form SPLIT */
    CPU_PATH_Q8,     /* of other widths, by way of bytes: PLAIN */
    CPU_PATH_BLOCKS, /* GGUF blocks: HALVES */
    CPU_PATH_COUNT
} cpu_path;
cpu_path cpu_path_of(const td_cpu *c, const td_matrix *w);

/* Activations in the forms that some matrices need: rows of floats and, where asked, quantised. */
typedef struct cpu_input {
    const float *x; /* [n][n_in] */
    uint32_t n, n_in;
    size_t q_stride;                  /* bytes of a quantised row */
    const uint8_t *q[CPU_PATH_COUNT]; /* [n] quantised rows of each path, NULL unless prepared */
} cpu_input;

#define CPU_NEEDS(path) (1u << (path))
/* Quantises x as `needs` says (bits CPU_NEEDS(path)) into the slots; false: no memory. */
bool cpu_input_prepare(td_cpu *c, cpu_input *in, const float *x, uint32_t n, uint32_t n_in, unsigned needs);
/* Row i in the form that the path reads. */
const void *cpu_input_row(const cpu_input *in, cpu_path path, uint32_t i);

/* Bytes of thread block that cpu_product_tile needs for rows of n_in inputs. */
size_t cpu_product_bytes(const td_cpu *c, uint32_t n_in);
/* y[r*y_stride + o - o0] = (row r) . w[o] for o in [o0, o0 + n_o), n_o <= CPU_MAX_TILE on the float path; x: row
 * pointers of w's path. Uses the first cpu_product_bytes of `block`. */
#define CPU_MAX_TILE 48
void cpu_product_tile(td_cpu *c, void *block, const td_matrix *w, uint32_t o0, uint32_t n_o, const void *const *x,
                      uint32_t n, float *y, size_t y_stride);
/* Outputs per tile of a matrix of that path, in a job with `outputs` outputs in all. */
uint32_t cpu_tile_outputs(const td_cpu *c, cpu_path path, uint64_t outputs);

bool cpu_decodes(const td_backend *be, const td_matrix *m);
td_status cpu_adopt(td_backend *be, td_matrix *m, td_error *err);
void cpu_linear(td_backend *be, const float *x, uint32_t n, const td_linear_out *out, uint32_t n_mats);
void cpu_rows_dot(td_backend *be, float *y, const float *x, const td_matrix *w, const int32_t *id, uint32_t n);

/* ---- moe.c, attention.c ---- */

void cpu_moe(td_backend *be, const td_moe *m);
void cpu_attention(td_backend *be, const td_attention *a);
void cpu_kv_write(td_backend *be, const td_kv_write *a);
/* Bytes of thread block for heads of head_dim. */
size_t cpu_attention_bytes(uint32_t head_dim);

/* ---- rows.c ---- */

void cpu_embed(td_backend *be, float *y, const td_matrix *w, const int32_t *id, uint32_t n, float scale);
void cpu_rmsnorm(td_backend *be, float *y, const float *x, const float *w, uint32_t n, uint32_t dim, float eps);
void cpu_add_rmsnorm(td_backend *be, float *y, const float *x, const float *w, uint32_t n, uint32_t dim, float eps,
                     float scale);
void cpu_rope(td_backend *be, float *x, uint32_t n, uint32_t n_heads, uint32_t head_dim, const int32_t *pos,
              const float *inv_freq, uint32_t n_rot, uint32_t pair_dist);
void cpu_gated(td_backend *be, float *y, const float *a, const float *b, uint32_t n, uint32_t dim, size_t y_stride,
               size_t a_stride, size_t b_stride, td_act act);
void cpu_add_gated_rows(td_backend *be, float *y, const float *x, const float *g, uint32_t n, uint32_t dim);
void cpu_add(td_backend *be, float *y, const float *a, const float *b, size_t count, float scale);
void cpu_scale(td_backend *be, float *x, const float *w, uint32_t n, uint32_t dim, float scale);
void cpu_softcap(td_backend *be, float *x, size_t count, float cap);
void cpu_gather(td_backend *be, float *y, const float *x, const int32_t *row, uint32_t n, uint32_t dim);
void cpu_route(td_backend *be, int32_t *expert, float *weight, const float *logits, uint32_t n, uint32_t n_expert,
               uint32_t k, const float *scale);
void cpu_rope_free(td_cpu *c);

/* ---- logits.c ---- */

void cpu_argmax(td_backend *be, td_word *best, float *peak, const float *x, uint32_t n, uint32_t dim);
void cpu_top(td_backend *be, td_word *out, uint32_t *n_out, const float *x, const float *peak, uint32_t n, uint32_t dim,
             const float *least);
void cpu_sum_exp(td_backend *be, double *sum, const float *x, uint32_t n, uint32_t dim, const float *top, float t);

#endif
