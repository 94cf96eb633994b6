/* bench_kernels.c - how fast the CPU kernels are, against what the machine's memory gives.
 *
 *     bench_kernels [--threads N] [--isa generic|avx2|avxvnni|avx512|neon] [--format NAME] [--seconds S] [--only WHAT]
 *                   [--context N] [--packed 0|1]
 *
 * First the reference: the rate at which all threads read a buffer far larger than the caches. Then, per format and
 * shape, the product of 1 to 16 rows as gigabytes of weights a second and as the time of n rows over the time of one;
 * then prefill (128 and 512 rows) as 10^9 multiply-adds a second; then attention, in turn with reads of memory, because
 * some machines' memory changes its pace from minute to minute. Each number is the median of repeats, with the spread
 * between the quartiles; "best" is the fastest repeat, for machines that are not quiet.
 * --packed 1: weights are packed first, as models are at load. Shapes: "square" is one 2048 x 2048 matrix, warm in the
 * caches; "e2b" is the matrices of layers of Gemma 4 E2B, enough of them to exceed the last-level cache, each visited
 * once a round, as in decoding. Every product is verified before it is timed. Not a test: it fails nothing but wrong
 * results.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/backend.h"
#include "base/alloc.h"
#include "base/pool.h"
#include "tensor/blocks.h"

#define MAX_REPEATS 1000
#define MAX_ROWS 512

typedef struct options {
    int threads;
    td_isa isa;
    const char *format, *only;
    double seconds;   /* per number */
    uint32_t context; /* of attention; 0: several */
    bool packed;
} options;

static void die(const char *what) {
    fprintf(stderr, "bench_kernels: %s\n", what);
    exit(1);
}

static void *must(void *p) {
    if (!p)
        die("out of memory");
    return p;
}

/* ---- timing ---- */

typedef struct timing {
    double median, best, spread; /* seconds; (q3 - q1) / median */
} timing;

static bool processor_clock; /* time of this process on its one thread, rather than of day */

static double now(void) {
    struct timespec t;
    clock_gettime(processor_clock ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static timing measure(void (*fn)(void *), void *arg, double seconds) {
    static double t[MAX_REPEATS];
    int n = 0;
    fn(arg);
    const double start = now();
    while (n < 5 || (now() - start < seconds && n < MAX_REPEATS)) {
        const double one = now();
        fn(arg);
        t[n++] = now() - one;
    }
    qsort(t, (size_t)n, sizeof *t, by_value);
    return (timing){t[n / 2], t[0], (t[3 * n / 4] - t[n / 4]) / t[n / 2]};
}

/* ---- memory ---- */

#define READ_BYTES ((size_t)512 << 20)
#define READ_TILE ((size_t)256 << 10)

typedef struct reader {
    td_pool *pool;
    const uint64_t *data;
    uint64_t sum[64];
} reader;

static void read_tile(void *arg, int tile, int thread) {
    reader *r = arg;
    const uint64_t *p = r->data + (size_t)tile * (READ_TILE / 8);
    uint64_t s[8] = {0};
    for (size_t i = 0; i < READ_TILE / 8; i += 8)
        for (int k = 0; k < 8; k++)
            s[k] += p[i + (size_t)k];
    r->sum[thread % 64] += s[0] + s[1] + s[2] + s[3] + s[4] + s[5] + s[6] + s[7];
}

static void read_all(void *arg) {
    reader *r = arg;
    td_pool_run(r->pool, read_tile, r, (int)(READ_BYTES / READ_TILE));
}

static void reader_open(reader *r, const options *o) {
    td_pool_options po = td_pool_options_default();
    po.n_threads = o->threads;
    td_error err;
    if (td_pool_open(&r->pool, &po, &err) != TD_OK)
        die(err.message);
    uint64_t *data = must(td_malloc_aligned(READ_BYTES));
    memset(data, 1, READ_BYTES);
    r->data = data;
}

static double read_bandwidth(reader *r, const options *o) {
    timing t = measure(read_all, r, o->seconds);
    double rate = (double)READ_BYTES / t.best;
    printf("memory, read, %d threads: %.1f GB/s, best %.1f GB/s (spread %.0f %%)\n", td_pool_n_threads(r->pool),
           (double)READ_BYTES / t.median * 1e-9, rate * 1e-9, t.spread * 100);
    return rate;
}

static void reader_close(reader *r) {
    td_pool_close(&r->pool);
    td_free_aligned((void *)(uintptr_t)r->data);
}

/* ---- matrices ---- */

typedef struct format {
    const char *name;
    td_format format;
    unsigned bits, group;
} format;

static const format formats[] = {
    {"q4", TD_FORMAT_AFFINE, 4, 64},      {"q4g32", TD_FORMAT_AFFINE, 4, 32},
    {"q8", TD_FORMAT_AFFINE, 8, 64},      {"bf16", TD_FORMAT_BF16, 0, 0},
    {"f16", TD_FORMAT_F16, 0, 0},         {"f32", TD_FORMAT_F32, 0, 0},
    {"f8", TD_FORMAT_F8_E4M3, 0, 0},      {"mxfp4", TD_FORMAT_MXFP4, 0, 0},
    {"q6", TD_FORMAT_AFFINE, 6, 64},      {"q4_0", TD_FORMAT_Q4_0, 0, 0},
    {"q8_0", TD_FORMAT_Q8_0, 0, 0},       {"q4_k", TD_FORMAT_Q4_K, 0, 0},
    {"q6_k", TD_FORMAT_Q6_K, 0, 0},       {"q4_1", TD_FORMAT_Q4_1, 0, 0},
    {"q5_0", TD_FORMAT_Q5_0, 0, 0},       {"q5_1", TD_FORMAT_Q5_1, 0, 0},
    {"q5_k", TD_FORMAT_Q5_K, 0, 0},       {"q2_k", TD_FORMAT_Q2_K, 0, 0},
    {"q3_k", TD_FORMAT_Q3_K, 0, 0},       {"iq4_nl", TD_FORMAT_IQ4_NL, 0, 0},
    {"iq4_xs", TD_FORMAT_IQ4_XS, 0, 0},   {"mxfp4_block", TD_FORMAT_MXFP4_BLOCK, 0, 0},
    {"iq2_xxs", TD_FORMAT_IQ2_XXS, 0, 0},
};

static uint64_t random_state = 88172645463325252u;

static uint32_t random_u32(void) {
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return (uint32_t)(random_state >> 32);
}

static float random_float(void) {
    return (float)random_u32() / 2147483648.0f - 1.0f;
}

static uint8_t *random_bytes(size_t n, td_format f) {
    uint8_t *p = must(td_malloc_aligned(n));
    for (size_t i = 0; i + 4 <= n; i += 4) {
        uint32_t u = random_u32() & (f == TD_FORMAT_F8_E4M3 ? 0xBFBFBFBFu : 0xFFFFFFFFu);
        memcpy(p + i, &u, 4);
    }
    return p;
}

static uint8_t *random_numbers(size_t bytes, td_dtype type, float scale, float offset) {
    uint8_t *p = must(td_malloc_aligned(bytes));
    const size_t size = td_dtype_bits(type) / 8;
    for (size_t i = 0; i + size <= bytes; i += size) {
        float x = random_float() * scale + offset;
        uint16_t h = type == TD_DTYPE_F16 ? td_f32_to_f16(x) : td_f32_to_bf16(x);
        if (type == TD_DTYPE_F32)
            memcpy(p + i, &x, 4);
        else if (size == 2)
            memcpy(p + i, &h, 2);
        else
            p[i] = 120;
    }
    return p;
}

/* Random blocks of formats that have no encoder: any codes, small scales. */
static uint8_t *random_blocks(size_t bytes, td_format f) {
    uint8_t *p = random_bytes(bytes, f);
    const uint16_t d = td_f32_to_f16(0.001f);
    const uint32_t two = f == TD_FORMAT_Q4_1 || f == TD_FORMAT_Q5_1 || f == TD_FORMAT_Q5_K || f == TD_FORMAT_Q2_K;
    const uint32_t at = f == TD_FORMAT_Q2_K ? 80 : f == TD_FORMAT_Q3_K ? 108 : 0;
    for (size_t b = 0; b < bytes; b += td_block_bytes(f)) {
        if (f == TD_FORMAT_MXFP4_BLOCK)
            p[b] = 118;
        for (uint32_t i = 0; i <= two && f != TD_FORMAT_MXFP4_BLOCK; i++)
            memcpy(p + b + at + 2 * i, &d, 2);
    }
    return p;
}

static td_matrix matrix_new(const format *f, uint32_t n_out, uint32_t n_in) {
    td_matrix m = {.name = f->name};
    td_error err;
    if (td_matrix_layout(&m, f->format, f->bits, f->group, TD_DTYPE_BF16, 1, n_out, n_in, &err) != TD_OK)
        die(err.message);
    const size_t bytes = m.row_bytes * n_out, scale_bytes = m.scale_row_bytes * n_out;
    if (td_block_encodes(f->format)) {
        uint8_t *p = must(td_malloc_aligned(bytes));
        float row[256];
        const uint32_t size = td_block_elements(f->format);
        for (size_t at = 0; at < bytes; at += td_block_bytes(f->format)) {
            for (uint32_t i = 0; i < size; i++)
                row[i] = random_float() * 0.05f;
            td_block_encode(f->format, p + at, row, size);
        }
        m.data = p;
    } else if (f->format <= TD_FORMAT_BF16) {
        td_dtype t = f->format == TD_FORMAT_F32   ? TD_DTYPE_F32
                     : f->format == TD_FORMAT_F16 ? TD_DTYPE_F16
                                                  : TD_DTYPE_BF16;
        m.data = random_numbers(bytes, t, 0.05f, 0);
    } else if (td_block_bytes(f->format)) {
        m.data = random_blocks(bytes, f->format);
    } else {
        m.data = random_bytes(bytes, f->format);
    }
    if (scale_bytes)
        m.scales = random_numbers(scale_bytes, m.scale_type, 0.001f, 0.01f);
    if (f->format == TD_FORMAT_AFFINE)
        m.biases = random_numbers(scale_bytes, m.scale_type, 0.001f, -0.075f);
    return m;
}

static void matrix_free(td_matrix *m) {
    td_free_aligned((void *)(uintptr_t)m->data);
    td_free_aligned((void *)(uintptr_t)m->scales);
    td_free_aligned((void *)(uintptr_t)m->biases);
    td_free_aligned(m->packed);
}

/* ---- products ---- */

/* Calls of td_linear: `first` indexes the matrices, n_mats of them share x. */
typedef struct call {
    uint32_t first, n_mats;
} call;

typedef struct workload {
    td_backend *be;
    uint32_t n, n_matrices, n_calls;
    td_matrix matrix[512];
    call calls[512];
    const float *x;
    float *y[8];
    double bytes, weights;
} workload;

static void run_workload(void *arg) {
    workload *w = arg;
    for (uint32_t i = 0; i < w->n_calls; i++) {
        td_linear_out out[8];
        for (uint32_t m = 0; m < w->calls[i].n_mats; m++)
            out[m] = (td_linear_out){&w->matrix[w->calls[i].first + m], w->y[m]};
        w->be->ops->linear(w->be, w->x, w->n, out, w->calls[i].n_mats);
    }
    if (w->be->ops->wait(w->be, NULL) != TD_OK)
        die("a product failed");
}

static void add_call(workload *w, const format *f, uint32_t n_in, const uint32_t *n_out, uint32_t n_mats) {
    w->calls[w->n_calls++] = (call){w->n_matrices, n_mats};
    for (uint32_t i = 0; i < n_mats; i++) {
        td_matrix m = matrix_new(f, n_out[i], n_in);
        w->bytes += (double)td_matrix_bytes(&m);
        w->weights += (double)n_out[i] * n_in;
        w->matrix[w->n_matrices++] = m;
    }
}

/* Layers of Gemma 4 E2B until they hold 256 MB. */
static void add_layers(workload *w, const format *f) {
    while (w->bytes < 256e6) {
        add_call(w, f, 1536, (uint32_t[]){2048, 256, 256}, 3);
        add_call(w, f, 2048, (uint32_t[]){1536}, 1);
        add_call(w, f, 1536, (uint32_t[]){6144, 6144}, 2);
        add_call(w, f, 6144, (uint32_t[]){1536}, 1);
    }
}

/* A few outputs of every row against the reference decoder; int8 activations may cost a percent of the row's size. */
static void verify(workload *w) {
    const td_matrix *m = &w->matrix[0];
    static float row[16384];
    w->be->ops->linear(w->be, w->x, w->n, &(td_linear_out){m, w->y[0]}, 1);
    for (uint32_t o = 0; o < m->n_out; o += 37) {
        td_matrix_row_f32(m, o, row);
        for (uint32_t r = 0; r < w->n; r++) {
            double want = 0, size = 0;
            for (uint32_t i = 0; i < m->n_in; i++) {
                double p = (double)row[i] * w->x[(size_t)r * m->n_in + i];
                want += p;
                size += p * p;
            }
            if (!(fabs(w->y[0][(size_t)r * m->n_out + o] - want) < 0.05 * sqrt(size) + 1e-6))
                die("a product is wrong");
        }
    }
}

/* Ratios and shares of the bandwidth are of the best repeats. */
static void print_rows(workload *w, const options *o, double bandwidth) {
    double one = 0;
    printf("  rows  median GB/s  best GB/s  %% of memory  ratio to 1 row  spread\n");
    for (uint32_t n = 1; n <= 16; n += n < 4 ? 1 : n < 8 ? 2 : 4) {
        w->n = n;
        verify(w);
        timing t = measure(run_workload, w, o->seconds);
        if (n == 1)
            one = t.best;
        printf("  %4u  %11.1f  %9.1f  %11.0f  %14.2f  %4.0f %%\n", n, w->bytes / t.median * 1e-9,
               w->bytes / t.best * 1e-9, w->bytes / t.best / bandwidth * 100, t.best / one, t.spread * 100);
    }
}

static void print_prefill(workload *w, const options *o) {
    for (uint32_t n = 128; n <= MAX_ROWS; n *= 4) {
        w->n = n;
        verify(w);
        timing t = measure(run_workload, w, o->seconds);
        printf("  prefill of %u: %.0f GMAC/s, best %.0f (spread %.0f %%)\n", n, w->weights * n / t.median * 1e-9,
               w->weights * n / t.best * 1e-9, t.spread * 100);
    }
}

static void bench_format(const format *f, const options *o, td_backend *be, double bandwidth) {
    static workload w;
    static const char *const names[] = {"square", "e2b"};
    for (int shape = 0; shape < 2; shape++) {
        w = (workload){.be = be};
        if (shape == 0)
            add_call(&w, f, 2048, (uint32_t[]){2048}, 1);
        else
            add_layers(&w, f);
        float *x = must(td_malloc_aligned((size_t)MAX_ROWS * 6144 * sizeof *x));
        for (size_t i = 0; i < (size_t)MAX_ROWS * 6144; i++)
            x[i] = random_float();
        w.x = x;
        for (int i = 0; i < 3; i++)
            w.y[i] = must(td_malloc_aligned((size_t)MAX_ROWS * 6144 * sizeof(float)));
        for (uint32_t i = 0; o->packed && i < w.n_matrices; i++)
            if (be->ops->adopt(be, &w.matrix[i], NULL) != TD_OK)
                die("packing failed");
        printf("%s, %s, %s: %.1f MB of weights\n", f->name, names[shape], td_backend_cpu_isa(be), w.bytes * 1e-6);
        print_rows(&w, o, bandwidth);
        if (shape == 0)
            print_prefill(&w, o);
        for (uint32_t i = 0; i < w.n_matrices; i++)
            matrix_free(&w.matrix[i]);
        for (int i = 0; i < 3; i++)
            td_free_aligned(w.y[i]);
        td_free_aligned(x);
        fflush(stdout);
    }
}

/* ---- attention ---- */

typedef struct attention {
    td_backend *be;
    td_attention a;
} attention;

static void run_attention(void *arg) {
    attention *t = arg;
    t->be->ops->attention(t->be, &t->a);
}

#define PAGE_TOKENS 64

static void print_attention(attention *t, const options *o, reader *r) {
    const uint32_t context = (uint32_t)t->a.n_keys[0], head_dim = t->a.layer->head_dim;
    const double bytes = (double)context * head_dim * 4;
    timing m = {0}, memory = {0};
    for (int turn = 0; turn < 3; turn++) {
        timing read = measure(read_all, r, 0), once = measure(run_attention, t, o->seconds / 3);
        if (turn == 0 || read.best < memory.best)
            memory = read;
        if (turn == 0 || once.best < m.best)
            m = once;
    }
    const double rate = (double)READ_BYTES / memory.best;
    printf(
        "  %u heads of %u, %u rows, context %u: %.1f us, %.1f GB/s of KV, %.0f GMAC/s, %.2f x its KV bytes over %.1f "
        "GB/s (spread %.0f %%)\n",
        t->a.n_heads, head_dim, t->a.n, context, m.best * 1e6, bytes / m.best * 1e-9,
        2.0 * t->a.n * t->a.n_heads * head_dim * context / m.best * 1e-9, m.best * rate / bytes, rate * 1e-9,
        m.spread * 100);
    fflush(stdout);
}

/* One layer with 1 KV head, bf16. */
static void bench_attention(td_backend *be, const options *o, reader *r, uint32_t n_heads, uint32_t head_dim,
                            uint32_t n, uint32_t context) {
    const size_t part = (size_t)PAGE_TOKENS * head_dim * 2, n_pages = (context + PAGE_TOKENS - 1) / PAGE_TOKENS;
    td_kv_layer layer = {.n_kv_heads = 1, .head_dim = head_dim, .k_offset = 0, .v_offset = part};
    td_kv_layout layout = {.type = TD_KV_BF16, .page_tokens = PAGE_TOKENS, .n_groups = 1, .n_layers = 1};
    uint8_t **page = must(td_calloc(n_pages, sizeof *page));
    for (size_t i = 0; i < n_pages; i++)
        page[i] = random_numbers(2 * part, TD_DTYPE_BF16, 1, 0);
    float *q = (float *)(void *)random_numbers((size_t)n * n_heads * head_dim * 4, TD_DTYPE_F32, 1, 0);
    float *out = must(td_malloc_aligned((size_t)n * n_heads * head_dim * 4));
    int32_t *pos = must(td_calloc(n, sizeof *pos)), n_keys = (int32_t)context;
    uint32_t *seq = must(td_calloc(n, sizeof *seq));
    for (uint32_t i = 0; i < n; i++)
        pos[i] = (int32_t)(context - n + i);
    td_kv_pages table = page;
    attention t = {be,
                   {.out = out,
                    .q = q,
                    .n = n,
                    .n_heads = n_heads,
                    .scale = 0.0625f,
                    .pos = pos,
                    .row_seq = seq,
                    .n_seq = 1,
                    .pages = &table,
                    .n_keys = &n_keys,
                    .layout = &layout,
                    .layer = &layer}};
    print_attention(&t, o, r);
    for (size_t i = 0; i < n_pages; i++)
        td_free_aligned(page[i]);
    td_free(page);
    td_free_aligned(q);
    td_free_aligned(out);
    td_free(pos);
    td_free(seq);
}

/* The heads of Gemma 4 E2B, decoding (1 row), verifying drafts and prefilling; and those of small embedding models,
 * whose contexts are short. */
static void bench_attentions(td_backend *be, const options *o, reader *r) {
    static const struct {
        uint32_t n_heads, head_dim, context, rows[8];
    } cases[] = {
        {8, 256, 512, {1, 4, 256}},    {8, 256, 2048, {1, 4, 256}},   {8, 256, 8192, {1, 4, 256}},
        {8, 256, 40960, {1, 2, 4, 8}}, {8, 512, 512, {1, 4, 256}},    {8, 512, 2048, {1, 4, 256}},
        {8, 512, 8192, {1, 4, 256}},   {8, 512, 40960, {1, 2, 4, 8}}, {6, 64, 150, {1, 8}},
        {6, 64, 2000, {1, 8}},         {6, 128, 150, {1, 8}},         {6, 128, 2000, {1, 8}},
    };
    printf("attention, 1 KV head, bf16, %s\n", td_backend_cpu_isa(be));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (const uint32_t *n = cases[i].rows; *n; n++)
            if (!o->context || o->context == cases[i].context)
                bench_attention(be, o, r, cases[i].n_heads, cases[i].head_dim, *n, cases[i].context);
}

/* ---- main ---- */

static td_isa isa_of(const char *name) {
    static const struct {
        const char *name;
        td_isa isa;
    } levels[] = {{"generic", TD_ISA_GENERIC}, {"avx2", TD_ISA_AVX2}, {"avxvnni", TD_ISA_AVXVNNI},
                  {"avx512", TD_ISA_AVX512},   {"neon", TD_ISA_NEON}, {"auto", TD_ISA_AUTO}};
    for (size_t i = 0; i < sizeof levels / sizeof levels[0]; i++)
        if (strcmp(name, levels[i].name) == 0)
            return levels[i].isa;
    die("--isa generic|avx2|avxvnni|avx512|neon|auto");
    return TD_ISA_AUTO;
}

static options parse(int argc, char **argv) {
    options o = {.isa = TD_ISA_AUTO, .seconds = 0.3};
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *v = argv[i + 1];
        if (strcmp(argv[i], "--threads") == 0)
            o.threads = atoi(v);
        else if (strcmp(argv[i], "--isa") == 0)
            o.isa = isa_of(v);
        else if (strcmp(argv[i], "--format") == 0)
            o.format = v;
        else if (strcmp(argv[i], "--only") == 0)
            o.only = v;
        else if (strcmp(argv[i], "--seconds") == 0)
            o.seconds = atof(v);
        else if (strcmp(argv[i], "--packed") == 0)
            o.packed = atoi(v) != 0;
        else if (strcmp(argv[i], "--context") == 0)
            o.context = (uint32_t)strtoul(v, NULL, 10);
        else
            die("options: --threads N, --isa NAME, --format NAME, --seconds S, --only products|attention, --context N, "
                "--packed 0|1");
    }
    return o;
}

int main(int argc, char **argv) {
    const options o = parse(argc, argv);
    processor_clock = o.threads == 1;
    reader r = {0};
    reader_open(&r, &o);
    const double bandwidth = read_bandwidth(&r, &o);
    td_backend *be;
    td_error err;
    if (td_backend_cpu_open(&be, &(td_cpu_options){.n_threads = o.threads, .isa = o.isa}, &err) != TD_OK)
        die(err.message);
    if (!o.only || strcmp(o.only, "products") == 0)
        for (size_t i = 0; i < sizeof formats / sizeof formats[0]; i++)
            if (!o.format || strcmp(o.format, formats[i].name) == 0)
                bench_format(&formats[i], &o, be, bandwidth);
    if (!o.only || strcmp(o.only, "attention") == 0)
        bench_attentions(be, &o, &r);
    reader_close(&r);
    td_backend_close(&be);
    return 0;
}
