/* backend.h - the table of operations that a family's forward pass is written in.
 *
 * An operation takes n rows. All activations are f32, row-major and dense, in memory of the backend (for the CPU
 * backends that is host memory). Operations are enqueued in order and cannot fail one by one: a backend keeps its
 * first error and td_backend_wait returns it. `reserve` sizes the scratch beforehand; only what it cannot foresee grows
 * later, in few steps, and is kept.
 *
 * Row-invariance, which all of Tandem stands on: the bits of an output row are a function of that row's inputs (and
 * of the KV it attends to) alone. They do not depend on n, on the row's place among the n, on the other rows, on how
 * KV rows were cut into passes, or on the number of threads. An implementation therefore fixes, per output element,
 * the order of its sums by shapes and absolute key positions only.
 *
 * Implementations: ref/ (plain loops, the reference, never tuned), cpu/ (tuned, instruction set chosen at run time),
 * cuda/. */
#ifndef TD_BACKEND_BACKEND_H
#define TD_BACKEND_BACKEND_H

#include "base/status.h"
#include "tensor/matrix.h"

/* ---- KV memory ---- */

typedef enum td_kv_type { TD_KV_F32, TD_KV_BF16 } td_kv_type;

/* Where the K and V rows of one layer lie inside a page of its group:
 * K at page + k_offset as [n_kv_heads][page_tokens][head_dim] elements of the layout's type, V at v_offset likewise. */
typedef struct td_kv_layer {
    uint32_t group;
    uint32_t n_kv_heads;
    uint32_t head_dim;
    size_t k_offset;
    size_t v_offset;
    uint32_t n_readers; /* layers of the trunk that attend to it */
} td_kv_layer;

#define TD_KV_MAX_GROUPS 4

/* Layers that keep the same keys (all of them, or those within one window) form a group; a page of a group holds
 * page_tokens positions of all its layers, so a sequence has one page table a group. */
typedef struct td_kv_group {
    uint32_t window;   /* keys a query may see, itself included; 0: all */
    size_t page_bytes; /* of one page */
} td_kv_group;

typedef struct td_kv_layout {
    td_kv_type type;
    uint32_t page_tokens; /* a power of two */
    uint32_t n_groups;
    td_kv_group group[TD_KV_MAX_GROUPS];
    uint32_t n_layers;  /* layers that own K and V */
    td_kv_layer *layer; /* [n_layers], owned by the model */
} td_kv_layout;

size_t td_kv_type_bytes(td_kv_type type);

/* A page table: entry i holds positions [i*page_tokens, (i+1)*page_tokens); NULL where the page was freed (behind the
 * window) or not yet taken. */
typedef uint8_t *const *td_kv_pages;

/* ---- operations ---- */

typedef enum td_act { TD_ACT_GELU_TANH, TD_ACT_SILU, TD_ACT_SIGMOID } td_act;

#define TD_LINEAR_MAX_MATS 8

/* y = x W^T for one of several matrices that share their input. */
typedef struct td_linear_out {
    const td_matrix *w; /* [n_out, n_in]; a stack counts as its first matrix */
    float *y;           /* [n][n_out] */
} td_linear_out;

typedef struct td_attention {
    float *out;         /* [n][n_heads*head_dim]; may not overlap q */
    const float *q;     /* [n][n_heads*head_dim], normed and rotated */
    uint32_t n;         /* rows */
    uint32_t n_heads;   /* a multiple of the layer's n_kv_heads; query head h reads KV head h / (n_heads/n_kv_heads) */
    float scale;        /* of q.k before the softmax */
    uint32_t window;    /* row at position p sees keys k with p - window < k <= p; 0: k <= p */
    const int32_t *pos; /* [n] position of each row, >= 0 */
    const uint32_t *row_seq;  /* [n] index of the row's sequence, ascending */
    uint32_t n_seq;           /* sequences */
    const td_kv_pages *pages; /* [n_seq] page table of the layer's group */
    const int32_t *n_keys;    /* [n_seq] keys [0, n_keys) are written; a key also has to be < n_keys to be seen */
    const td_kv_layout *layout;
    const td_kv_layer *layer;
} td_attention;

typedef struct td_kv_write {
    const float *k; /* [n][n_kv_heads*head_dim], normed and rotated */
    const float *v; /* [n][n_kv_heads*head_dim] */
    uint32_t n;
    const int32_t *pos;
    const uint32_t *row_seq;
    const td_kv_pages *pages; /* pages of every row's position are present and writable */
    const td_kv_layout *layout;
    const td_kv_layer *layer;
} td_kv_write;

/* out[r] = sum over j < k of weight[r][j] * down_e( act(gate_e x[r]) * up_e x[r] ), e = expert[r][j]; the sum runs in
 * the order of j. Each expert that several rows chose is read once for all of them. */
typedef struct td_moe {
    float *out;            /* [n][n_embd] */
    const float *x;        /* [n][n_embd] */
    uint32_t n, k;         /* rows; experts a row, <= 64 */
    const int32_t *expert; /* [n][k], those of a row distinct, else TD_E_ARG */
    const float *weight;   /* [n][k] */
    const td_matrix *gate; /* stack [E][n_ff][n_embd]; with up == NULL a fused stack [E][2*n_ff][n_embd], gate first */
    const td_matrix *up;
    const td_matrix *down; /* stack [E][n_embd][n_ff] */
    td_act act;
} td_moe;

/* ---- recurrent memory ----
 *
 * What a layer of a recurrent family remembers of a sequence cannot be shortened, so a pass keeps it apart from what it
 * only tries: the state of a sequence is one block, its committed part in front, a log behind. Rows that are sure go
 * into the committed part, in place. Rows that are tentative (drafts) are computed from a continuation that is thrown
 * away, and leave in the log what it takes to repeat them. The next pass says how many of them have stayed: it applies
 * that many rows of the log before its own, by the same operations in the same order, so that the committed part has
 * the bits it would have had if those rows had been sure. */

/* After the first n_rows rows that sequence `seq` has in the pass, the committed part is copied to `to`. */
typedef struct td_mark {
    uint32_t seq;
    uint32_t n_rows; /* 1..n_sure of the sequence */
    uint8_t *to;     /* laid out as a state is, without the log */
} td_mark;

/* The states of a pass's sequences, as one operation of one layer sees them. */
typedef struct td_memory {
    uint32_t n_seq;
    const uint32_t *first_row; /* [n_seq + 1] sequence i has the rows [first_row[i], first_row[i+1]), perhaps none */
    const uint32_t *n_sure;    /* [n_seq] leading rows of each that are sure */
    const uint32_t *n_commit;  /* [n_seq] rows of the log that have stayed, <= those of the last pass; NULL: none */
    uint8_t *const *state;     /* [n_seq] backend memory, 64-byte aligned */
    size_t kept, log;          /* bytes from the start of a state to the operation's committed part and to its log */
    uint32_t max_tentative;    /* rows that a log has room for */
    const td_mark *mark;       /* [n_marks] ordered by sequence and rows */
    uint32_t n_marks;
} td_memory;

/* A causal convolution of each channel over the last `kernel` rows of its sequence, then SiLU:
 *     out[t][c] = silu( sum over j < kernel, in order, of w[j][c] * x[t - (kernel-1) + j][c] )     before the start: 0
 * Committed: the last kernel-1 rows of x, [kernel-1][dim], oldest first. Log: tentative rows of x,
 * [max_tentative][dim].
 */
typedef struct td_conv {
    float *out;           /* [n][dim]; may not overlap x */
    const float *x;       /* [n][dim] */
    const float *w;       /* [kernel][dim] */
    uint32_t dim, kernel; /* kernel 2..TD_CONV_MAX_KERNEL */
    const td_memory *memory;
} td_conv;

#define TD_CONV_MAX_KERNEL 8

/* The gated delta rule (Yang, Kautz, Hatamizadeh: "Gated Delta Networks", 2024). Value head j of a row reads key head
 * j / (n_v_heads / n_k_heads), or j % n_k_heads in files whose value heads are tiled (GGUF), and keeps S, a matrix of
 * k_dim x v_dim. With q, k, v from `qkv`:
 *     k = k / sqrt(|k|^2 + 1e-6)     q = q / sqrt(|q|^2 + 1e-6) / sqrt(k_dim)
 *     alpha = exp(-rate * softplus(a + dt_bias))     beta = sigmoid(b)
 *     S = alpha S     u = beta (v - S^T k)     S = S + k u^T     out = S^T q
 * in one read of the old S: p = alpha S^T k, s = alpha S^T q, u = beta (v - p), out = s + (q.k) u. Always row after row
 * (the chunked form of the paper would make a row's bits depend on where a pass was cut).
 * Committed: S of every head, [n_v_heads][k_dim][v_dim]. Log: [n_v_heads][max_tentative][1 + k_dim + v_dim], of each
 * tentative row alpha, k and u. */
typedef struct td_delta {
    float *out;                  /* [n][n_v_heads*v_dim]; may overlap nothing */
    const float *qkv;            /* [n][2*n_k_heads*k_dim + n_v_heads*v_dim] queries, keys, values; heads contiguous */
    const float *a, *b;          /* [n][n_v_heads] */
    const float *rate, *dt_bias; /* [n_v_heads]; rate > 0 */
    uint32_t n_k_heads, n_v_heads; /* n_v_heads a multiple of n_k_heads */
    uint32_t k_dim, v_dim;         /* <= TD_DELTA_MAX_DIM */
    bool tiled;                    /* value head j reads key head j % n_k_heads */
    const td_memory *memory;
} td_delta;

static inline uint32_t td_delta_key_head(const td_delta *d, uint32_t value_head) {
    return d->tiled ? value_head % d->n_k_heads : value_head / (d->n_v_heads / d->n_k_heads);
}

#define TD_DELTA_MAX_DIM 256

/* Floats of a layer's committed part and log. */
static inline size_t td_conv_kept(uint32_t dim, uint32_t kernel) {
    return (size_t)(kernel - 1) * dim;
}
static inline size_t td_conv_log(uint32_t dim, uint32_t max_tentative) {
    return (size_t)max_tentative * dim;
}
static inline size_t td_delta_kept(uint32_t n_v_heads, uint32_t k_dim, uint32_t v_dim) {
    return (size_t)n_v_heads * k_dim * v_dim;
}
static inline size_t td_delta_log(uint32_t n_v_heads, uint32_t k_dim, uint32_t v_dim, uint32_t max_tentative) {
    return (size_t)n_v_heads * max_tentative * (1 + k_dim + v_dim);
}

/* ---- logits ----
 *
 * A row of logits has a value a word, hundreds of thousands of them. A logit is a number or -inf (a word that cannot
 * come); NaN and +inf are the mark of a model that has failed, and stand above everything else so that nobody misses
 * them. */

typedef struct td_word {
    float value;
    int32_t id;
} td_word;

/* The largest of every so many logits are kept, so that those above a threshold are found without looking at all. */
#define TD_PEAK_BLOCK 64
static inline uint32_t td_peaks(uint32_t dim) {
    return dim / TD_PEAK_BLOCK + (dim % TD_PEAK_BLOCK != 0);
}

typedef struct td_backend td_backend;

typedef struct td_backend_ops {
    const char *name;
    void (*close)(td_backend *be);

    /* Memory for activations, 64-byte aligned; NULL when there is none. */
    void *(*alloc)(td_backend *be, size_t bytes);
    void (*free)(td_backend *be, void *p);

    /* Scratch for passes of up to n_rows rows through matrices of up to n_in inputs and n_out outputs, and for
     * attention with up to n_heads heads of head_dim. Called at load, before the first operation; may be called again
     * with more. (cpu: what these numbers cannot tell, the pairs of a mixture of experts and the spans of a long
     * context, grows when it is met, by half at least; spans up to a limit, see attention.c. No memory then is an
     * error of td_backend_wait.) */
    td_status (*reserve)(td_backend *be, uint32_t n_rows, uint32_t n_in, uint32_t n_out, uint32_t n_heads,
                         uint32_t head_dim, td_error *err);

    /* Gives a matrix that `linear` will read often a copy in the backend's own order (m->packed), where that helps: the
     * same results, bit for bit, sooner; a matrix that is not there (data NULL) stays so. Called at load. TD_E_NOMEM
     * leaves the matrix as it was. */
    td_status (*adopt)(td_backend *be, td_matrix *m, td_error *err);

    /* Optional: true when products with the matrix decode it weight by weight at every pass, for want of kernels of its
     * format, which takes many times as long as they would. Worth telling a user. */
    bool (*decodes)(const td_backend *be, const td_matrix *m);

    /* Waits for everything enqueued; the first error since the last wait. */
    td_status (*wait)(td_backend *be, td_error *err);

    /* y[r] = scale * row id[r] of w. y [n][n_in]. */
    void (*embed)(td_backend *be, float *y, const td_matrix *w, const int32_t *id, uint32_t n, float scale);

    /* y[r] = x[r] * rsqrt(mean(x[r]^2) + eps) * w for n rows of dim; w NULL: 1. y may be x. */
    void (*rmsnorm)(td_backend *be, float *y, const float *x, const float *w, uint32_t n, uint32_t dim, float eps);

    /* y[r] = (y[r] + rmsnorm(x[r]; w)) * scale: the residual of a post-normed branch. */
    void (*add_rmsnorm)(td_backend *be, float *y, const float *x, const float *w, uint32_t n, uint32_t dim, float eps,
                        float scale);

    /* out[i].y = x w_i^T for i < n_mats <= TD_LINEAR_MAX_MATS, more are TD_E_ARG; x [n][n_in]. */
    void (*linear)(td_backend *be, const float *x, uint32_t n, const td_linear_out *out, uint32_t n_mats);

    /* Half-split ("NeoX") rotation in place of heads of head_dim: for i < n_rot, dimension i pairs with i + pair_dist
     * and turns by pos[r]*inv_freq[i]; other dimensions stay. x [n][n_heads*head_dim]. Angles are formed in f32. */
    void (*rope)(td_backend *be, float *x, uint32_t n, uint32_t n_heads, uint32_t head_dim, const int32_t *pos,
                 const float *inv_freq, uint32_t n_rot, uint32_t pair_dist);

    void (*kv_write)(td_backend *be, const td_kv_write *args);
    void (*attention)(td_backend *be, const td_attention *args);

    /* y[i] = act(a[i]) * b[i], n rows of dim; row strides in elements (so that b may be a slice of wider rows). */
    void (*gated)(td_backend *be, float *y, const float *a, const float *b, uint32_t n, uint32_t dim, size_t y_stride,
                  size_t a_stride, size_t b_stride, td_act act);

    /* y[i] = row id[i] of w . x, i < n: a product with chosen rows of a matrix (a shortlist of a head). x [n_in]. */
    void (*rows_dot)(td_backend *be, float *y, const float *x, const td_matrix *w, const int32_t *id, uint32_t n);

    /* y = (a + b) * scale, element by element. y may be a or b. */
    void (*add)(td_backend *be, float *y, const float *a, const float *b, size_t count, float scale);

    /* x *= scale, and x *= scale * w row by row (w [dim], NULL: 1). */
    void (*scale)(td_backend *be, float *x, const float *w, uint32_t n, uint32_t dim, float scale);

    /* x = cap * tanh(x / cap). */
    void (*softcap)(td_backend *be, float *x, size_t count, float cap);

    /* y[i] = x[row[i]] for n rows of dim; y may not overlap x. */
    void (*gather)(td_backend *be, float *y, const float *x, const int32_t *row, uint32_t n, uint32_t dim);

    /* The k largest of each row of logits [n][n_expert] (ties: the lower index first), in descending order, and the
     * softmax over those k (equal to softmax over all, renormalised), times scale[expert] (NULL: 1) afterwards.
     * expert, weight [n][k]. */
    void (*route)(td_backend *be, int32_t *expert, float *weight, const float *logits, uint32_t n, uint32_t n_expert,
                  uint32_t k, const float *scale);

    void (*moe)(td_backend *be, const td_moe *args);

    /* y[r] += sigmoid(g[r]) * x[r] for n rows of dim; one gate a row. */
    void (*add_gated_rows)(td_backend *be, float *y, const float *x, const float *g, uint32_t n, uint32_t dim);

    void (*conv)(td_backend *be, const td_conv *args);
    void (*delta)(td_backend *be, const td_delta *args);

    /* best[r]: the largest of the row, of equals the lowest id; where a logit is NaN or +inf, the first that is.
     * peak[r][b]: the largest of words [b, b + 1) * TD_PEAK_BLOCK, +inf where one is NaN or +inf (the sign of a zero is
     * not defined). best [n], peak [n][td_peaks(dim)], x [n][dim], dim >= 1. */
    void (*argmax)(td_backend *be, td_word *best, float *peak, const float *x, uint32_t n, uint32_t dim);

    /* The words of each row that are not below least[r], nor -inf, nor NaN, by id: n_out[r] of them at out[r]. peak: of
     * the row, from argmax. out [n][dim]; what lies behind the words there is scratch. */
    void (*top)(td_backend *be, td_word *out, uint32_t *n_out, const float *x, const float *peak, uint32_t n,
                uint32_t dim, const float *least);

    /* sum[r] = sum of exp(x/t - top[r]/t) over the row, where x/t and top/t are rounded to f32, top[r] is the largest
     * logit and t > 0; within TD_SUM_EXP_ERROR of it, relatively. Its bits depend on the row, on dim and on the
     * instruction set alone. */
    void (*sum_exp)(td_backend *be, double *sum, const float *x, uint32_t n, uint32_t dim, const float *top, float t);
#define TD_SUM_EXP_ERROR 0x1p-18
} td_backend_ops;

struct td_backend {
    const td_backend_ops *ops;
};

/* The plain reference. Single-threaded; sums in double. */
td_status td_backend_ref_open(td_backend **out, td_error *err) TD_MUST_CHECK;

typedef enum td_isa {
    TD_ISA_AUTO,
    TD_ISA_GENERIC,
    TD_ISA_AVX2,
    TD_ISA_AVX512,
    TD_ISA_NEON,
    TD_ISA_AVXVNNI, /* AVX2 with VNNI in 256 bits: between the two */
    TD_ISA_NEONDOT, /* NEON with the dot products of ARMv8.2 */
} td_isa;

typedef struct td_cpu_options {
    int n_threads; /* 0: all usable processors */
    td_isa isa;    /* AUTO: the best the machine has (or what the build was told); one it lacks is TD_E_UNSUPPORTED */
    bool pin;      /* bind threads to processors (base/pool.h) */
    bool float_activations; /* quantised weights meet f32 activations, rather than int8 ones */
    bool no_packing;        /* td_backend_ops.adopt does nothing */
} td_cpu_options;

/* A level's name, "avx512", and the level of a name; false: there is none of that name. */
const char *td_isa_name(td_isa isa);
bool td_isa_named(const char *name, td_isa *isa);

/* The tuned CPU backend. opt NULL: defaults. */
td_status td_backend_cpu_open(td_backend **out, const td_cpu_options *opt, td_error *err) TD_MUST_CHECK;
/* "avx512", ...: the level in use. "generic" for other backends. */
const char *td_backend_cpu_isa(const td_backend *be);

/* Threads in use; 1 for other backends. */
int td_backend_cpu_threads(const td_backend *be);

void td_backend_close(td_backend **be);

#endif
