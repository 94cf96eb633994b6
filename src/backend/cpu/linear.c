/* linear.c - y = x W^T for several matrices that share x: one job, one barrier.
 *
 * Threads share out tiles of outputs. A tile streams its weights from memory once; what is done with them depends on
 * the format alone:
 *
 *   - f32, bf16, f16: floats, widened on the way into the registers. With many rows a tile is first decoded to f32
 *     scratch, because the conversion would be repeated for every four rows; the products are the same, bit for bit.
 *   - affine of 4 and 8 bits: integers, with x quantised once a call (unless float_activations).
 *   - affine of 2, 3, 5 and 6 bits, and MXFP4: their codes are unpacked to bytes a tile at a time, and are then affine
 *     of 8 bits. An E2M1 element is half of a whole number from -12 to 12: code = that + 12, scale = half the group's.
 *   - GGUF blocks: integers, see block_loops.h. Those that have no kind there (cpu_decodes) are decoded to f32 scratch
 *     by the reference decoder, at every pass.
 *   - FP8, MXFP8, NVFP4 (its groups are too short for the integers): decoded to f32 scratch, then as f32.
 *
 * What the integer kernels read as it lies they would transpose again at every pass; cpu_adopt has it packed once, in
 * panels of `lanes` outputs one behind the other, so that a tile is one stream of memory. The results are the same.
 *
 * With many rows a float tile is cut three ways so that what is used again is near: blocks of OUT_BLOCK outputs and
 * panels of PANEL inputs, whose weights stay in the first-level cache, and blocks of ROW_BLOCK rows, whose panel stays
 * in the second. Accumulators wait in scratch between panels. None of the cuts shows in the result. */
#include "backend/cpu/cpu.h"

#include <string.h>

#include "base/alloc.h"
#include "tensor/blocks.h"

#define ROW_BLOCK 64 /* of float products; TD_DSP_Q_ROWS of quantised ones */
/* Above this many rows plain 16-bit weights are decoded before use. */
#define FUSED_ROWS 16
#define DECODE_BYTES (512u << 10)
#define PANEL 512    /* inputs of a float product at a time when there are many rows */
#define OUT_BLOCK 12 /* and outputs: a panel of their weights fills half of the first-level cache */
/* How far ahead of their use float weights are requested from memory. */
#define AHEAD 32768
/* Elements above which the quantisation of x is worth a job of its own, and those of a tile of it at most. */
#define QUANTIZE_JOB 32768
#define QUANTIZE_TILE 4096

static uint32_t min_u32(uint32_t a, uint32_t b) {
    return a < b ? a : b;
}

cpu_path cpu_path_of(const td_cpu *c, const td_matrix *w) {
    if (c->float_activations)
        return CPU_PATH_FLOAT;
    if (c->dsp.dot_blocks[w->format])
        return CPU_PATH_BLOCKS;
    if (w->format == TD_FORMAT_AFFINE)
        return w->bits == 4 ? CPU_PATH_Q4 : CPU_PATH_Q8;
    return w->format == TD_FORMAT_MXFP4 ? CPU_PATH_Q8 : CPU_PATH_FLOAT;
}

/* ---- activations ---- */

/* Form i is that of path CPU_PATH_Q4 + i, in slot CPU_SLOT_Q + i. */
#define FORMS (CPU_PATH_COUNT - CPU_PATH_Q4)

typedef struct quantize_job {
    td_cpu *c;
    const cpu_input *in;
    uint8_t *q[FORMS];
    uint32_t pieces, width; /* of a row, and inputs of a piece, the last perhaps fewer */
} quantize_job;

static void quantize_piece(void *arg, int tile, int thread) {
    const quantize_job *j = arg;
    const cpu_input *in = j->in;
    const size_t row = (uint32_t)tile / j->pieces, at = (uint32_t)tile % j->pieces * j->width;
    const uint32_t n = min_u32(in->n_in - (uint32_t)at, j->width);
    (void)thread;
    for (int f = 0; f < FORMS; f++)
        if (j->q[f])
            j->c->dsp.quantize(j->q[f] + row * in->q_stride + at / 32 * j->c->dsp.q_bytes, in->x + row * in->n_in + at,
                               n, (td_q_form)f);
}

bool cpu_input_prepare(td_cpu *c, cpu_input *in, const float *x, uint32_t n, uint32_t n_in, unsigned needs) {
    *in = (cpu_input){.x = x, .n = n, .n_in = n_in};
    in->q_stride = (size_t)n_in / 32 * c->dsp.q_bytes; /* a multiple of 32 where there are quantised weights */
    quantize_job j = {.c = c, .in = in};
    bool any = false;
    for (int f = 0; f < FORMS; f++) {
        if (!(needs & CPU_NEEDS(CPU_PATH_Q4 + f)))
            continue;
        j.q[f] = cpu_scratch(c, (cpu_slot)(CPU_SLOT_Q + f), n, in->q_stride);
        if (!j.q[f])
            return false;
        in->q[CPU_PATH_Q4 + f] = j.q[f];
        any = true;
    }
    if (!any || n == 0 || n_in == 0)
        return true;
    const uint32_t even = n_in / ((n_in + QUANTIZE_TILE - 1) / QUANTIZE_TILE);
    j.width = (even + TD_DSP_Q_CUT - 1) / TD_DSP_Q_CUT * TD_DSP_Q_CUT;
    j.pieces = (n_in + j.width - 1) / j.width;
    const uint32_t tiles = n * j.pieces;
    if ((uint64_t)n * n_in >= QUANTIZE_JOB)
        td_pool_run(c->pool, quantize_piece, &j, (int)tiles);
    else
        for (uint32_t i = 0; i < tiles; i++)
            quantize_piece(&j, (int)i, 0);
    return true;
}

const void *cpu_input_row(const cpu_input *in, cpu_path path, uint32_t i) {
    if (path == CPU_PATH_FLOAT)
        return in->x + (size_t)i * in->n_in;
    return in->q[path] + i * in->q_stride;
}

/* ---- one tile ---- */

static size_t acc_bytes(const td_cpu *c) {
    const size_t bytes = (size_t)OUT_BLOCK * ROW_BLOCK * c->dsp.lanes * sizeof(float);
    return bytes > c->dsp.q_scratch ? bytes : c->dsp.q_scratch;
}

static size_t decode_bytes(uint32_t n_in) {
    size_t row = (size_t)n_in * sizeof(float);
    return row > DECODE_BYTES ? row : DECODE_BYTES;
}

size_t cpu_product_bytes(const td_cpu *c, uint32_t n_in) {
    return acc_bytes(c) + decode_bytes(n_in);
}

/* OUT_BLOCK outputs of f32, f16 or bf16 weights times many rows, cut into row blocks and panels. */
static void run_many(td_tile_fn dot, td_tile t, const void *const *x, uint32_t n, float *y) {
    for (uint32_t r = 0; r < n; r += ROW_BLOCK) {
        t.x = x + r;
        t.n_r = min_u32(n - r, ROW_BLOCK);
        t.y = y + r * t.y_stride;
        for (t.k0 = 0; t.k0 < t.w->n_in; t.k0 = t.k1) {
            t.k1 = min_u32(t.w->n_in - t.k0, PANEL) + t.k0;
            t.first = t.k0 == 0;
            t.last = t.k1 == t.w->n_in;
            dot(&t);
        }
    }
}

/* Up to FUSED_ROWS rows need no panels: the second four find a few outputs' weights where the first left them. */
static void run_few(td_tile_fn dot, td_tile t, const void *const *x, uint32_t n, float *y) {
    t.x = x;
    t.n_r = n;
    t.y = y;
    t.k1 = t.w->n_in;
    t.first = t.last = true;
    dot(&t);
}

static void run_float(td_tile_fn dot, td_tile t, const void *const *x, uint32_t n, float *y) {
    const td_matrix *w = t.w;
    const uint32_t n_o = t.n_o, step = n <= 4 ? n_o : n <= FUSED_ROWS ? 2 * OUT_BLOCK : OUT_BLOCK;
    for (uint32_t o = 0; o < n_o; o += t.n_o) {
        t.n_o = min_u32(n_o - o, step);
        td_matrix block = td_matrix_rows(w, o, t.n_o);
        t.w = &block;
        if (n <= FUSED_ROWS)
            run_few(dot, t, x, n, y + o);
        else
            run_many(dot, t, x, n, y + o);
    }
}

static void run_quantised(td_tile_fn dot, td_tile t, const void *const *x, uint32_t n, float *y) {
    for (uint32_t r = 0; r < n; r += TD_DSP_Q_ROWS) {
        t.x = x + r;
        t.n_r = min_u32(n - r, TD_DSP_Q_ROWS);
        t.y = y + r * t.y_stride;
        dot(&t);
    }
}

/* E2M1 elements, by code: twice their value plus 12; and as E4M3. */
static const uint8_t e2m1_bytes[16] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
static const uint8_t e2m1_as_e4m3[16] = {0x00, 0x30, 0x38, 0x3C, 0x40, 0x44, 0x48, 0x4C,
                                         0x80, 0xB0, 0xB8, 0xBC, 0xC0, 0xC4, 0xC8, 0xCC};

/* n scale bytes of a block format. */
static void load_scales(const td_cpu *c, float *to, const td_matrix *w, const uint8_t *bytes, uint32_t n) {
    if (w->scale_type == TD_DTYPE_F8_E4M3) {
        c->dsp.load_e4m3(to, bytes, n);
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        to[i] = c->e8m0[bytes[i]];
}

/* Multiplies each group of a decoded row by its scale byte. */
static void scale_row(td_cpu *c, float *row, const td_matrix *w, uint32_t o) {
    enum { AT_ONCE = 64 };
    const uint8_t *bytes = w->scales + o * w->scale_row_bytes;
    for (uint32_t g = 0, n; g < w->n_in / w->group; g += n) {
        float scales[AT_ONCE];
        n = min_u32(w->n_in / w->group - g, AT_ONCE);
        load_scales(c, scales, w, bytes + g, n);
        c->dsp.scale_groups(row + (size_t)g * w->group, scales, n * w->group, w->group);
    }
}

/* The numbers of td_matrix_row_f32, bit for bit. */
static void decode_row(td_cpu *c, float *to, const td_matrix *w, uint32_t o) {
    const uint8_t *row = w->data + o * w->row_bytes;
    switch (w->format) {
    case TD_FORMAT_BF16:
        c->dsp.load_bf16(to, row, w->n_in);
        return;
    case TD_FORMAT_F16:
        c->dsp.load_f16(to, row, w->n_in);
        return;
    case TD_FORMAT_F8_E4M3:
        c->dsp.load_e4m3(to, row, w->n_in);
        return;
    case TD_FORMAT_MXFP8:
        c->dsp.load_e4m3(to, row, w->n_in);
        scale_row(c, to, w, o);
        return;
    case TD_FORMAT_NVFP4: {
        uint8_t *bytes = (uint8_t *)(to + w->n_in) - w->n_in; /* the end of the row: read before it is written */
        c->dsp.unpack_table(bytes, row, w->n_in, e2m1_as_e4m3);
        c->dsp.load_e4m3(to, bytes, w->n_in);
        scale_row(c, to, w, o);
        return;
    }
    default:
        td_matrix_row_f32(w, o, to);
    }
}

/* As many outputs at a time as the decode scratch holds. */
static void run_decoded(td_cpu *c, td_tile t, uint32_t n_o, const void *const *x, uint32_t n, float *y,
                        float *scratch) {
    const td_matrix *w = t.w;
    td_matrix decoded = {.format = TD_FORMAT_F32,
                         .bits = 32,
                         .n_stack = 1,
                         .n_out = n_o,
                         .n_in = w->n_in,
                         .row_bytes = (size_t)w->n_in * sizeof(float),
                         .data = (const uint8_t *)scratch};
    const uint32_t at_once = (uint32_t)(decode_bytes(w->n_in) / decoded.row_bytes);
    t.w = &decoded;
    for (uint32_t o = 0; o < n_o; o += t.n_o) {
        t.n_o = min_u32(n_o - o, at_once);
        for (uint32_t i = 0; i < t.n_o; i++)
            decode_row(c, scratch + (size_t)i * w->n_in, w, o + i);
        run_float(c->dsp.dot_f32, t, x, n, y + o);
    }
}

/* ---- codes to bytes ---- */

/* Rows [o, o + n) of `w` as affine weights of 8 bits in scratch. */
static td_matrix unpack_rows(td_cpu *c, const td_matrix *w, uint32_t o, uint32_t n, uint8_t *scratch) {
    td_matrix m = td_matrix_rows(w, o, n);
    m.format = TD_FORMAT_AFFINE;
    m.bits = 8;
    m.data = scratch;
    m.row_bytes = w->n_in;
    const uint32_t groups = w->n_in / w->group;
    float *scales = (float *)(void *)(scratch + (size_t)n * w->n_in), *biases = scales + (size_t)n * groups;
    for (uint32_t i = 0; i < n; i++) {
        const uint8_t *codes = w->data + (o + i) * w->row_bytes;
        uint8_t *to = scratch + (size_t)i * w->n_in;
        if (w->format == TD_FORMAT_AFFINE) {
            c->dsp.unpack(to, codes, w->n_in, w->bits);
            continue;
        }
        c->dsp.unpack_table(to, codes, w->n_in, e2m1_bytes);
        load_scales(c, scales + (size_t)i * groups, w, w->scales + (o + i) * w->scale_row_bytes, groups);
        for (uint32_t g = 0; g < groups; g++) {
            float *s = &scales[(size_t)i * groups + g];
            biases[(size_t)i * groups + g] = -6.0f * *s;
            *s *= 0.5f;
        }
    }
    if (w->format != TD_FORMAT_AFFINE) {
        m.scale_type = TD_DTYPE_F32;
        m.scale_row_bytes = groups * sizeof(float);
        m.scales = (const uint8_t *)scales;
        m.biases = (const uint8_t *)biases;
    }
    return m;
}

static void run_unpacked(td_cpu *c, td_tile t, uint32_t n_o, const void *const *x, uint32_t n, float *y,
                         uint8_t *scratch) {
    const td_matrix *w = t.w;
    const uint32_t at_once = (uint32_t)(decode_bytes(w->n_in) / (w->n_in + w->n_in / 4)); /* scales: 2/32 floats */
    for (uint32_t o = 0; o < n_o; o += t.n_o) {
        t.n_o = min_u32(n_o - o, at_once > 48 ? 48 : at_once);
        const td_matrix bytes = unpack_rows(c, w, o, t.n_o, scratch);
        t.w = &bytes;
        run_quantised(c->dsp.dot_q8, t, x, n, y + o);
    }
}

/* ---- any format ---- */

/* The kernel that reads float weights as they lie; NULL: decode first. */
static td_tile_fn direct_kernel(const td_cpu *c, const td_matrix *w, uint32_t n) {
    if (w->format == TD_FORMAT_F32)
        return c->dsp.dot_f32;
    if (n > FUSED_ROWS)
        return NULL;
    return w->format == TD_FORMAT_BF16 ? c->dsp.dot_bf16 : w->format == TD_FORMAT_F16 ? c->dsp.dot_f16 : NULL;
}

/* The kernel of integer products with the codes as they lie; NULL: there is none. */
static td_tile_fn quantised_kernel(const td_cpu *c, const td_matrix *w) {
    switch (cpu_path_of(c, w)) {
    case CPU_PATH_Q4:
        return c->dsp.dot_q4;
    case CPU_PATH_BLOCKS:
        return c->dsp.dot_blocks[w->format];
    case CPU_PATH_Q8:
        return w->format == TD_FORMAT_AFFINE && w->bits == 8 ? c->dsp.dot_q8 : NULL;
    default:
        return NULL;
    }
}

void cpu_product_tile(td_cpu *c, void *block, const td_matrix *w, uint32_t o0, uint32_t n_o, const void *const *x,
                      uint32_t n, float *y, size_t y_stride) {
    if (n == 0)
        return;
    const cpu_path path = cpu_path_of(c, w);
    const td_tile_fn dot = direct_kernel(c, w, n);
    td_matrix rows = td_matrix_rows(w, o0, n_o);
    td_tile t = {.w = &rows, .y_stride = y_stride, .acc = block, .n_o = n_o};
    if (w->packed && o0 % c->dsp.lanes == 0)
        t.packed = (const uint8_t *)w->packed + o0 / c->dsp.lanes * c->dsp.packed_bytes[w->format](w);
    const td_tile_fn quantised = quantised_kernel(c, w);
    if (quantised)
        run_quantised(quantised, t, x, n, y);
    else if (path == CPU_PATH_Q8)
        run_unpacked(c, t, n_o, x, n, y, (uint8_t *)block + acc_bytes(c));
    else if (dot) {
        t.ahead = AHEAD;
        run_float(dot, t, x, n, y);
    } else
        run_decoded(c, t, n_o, x, n, y, (float *)(void *)((uint8_t *)block + acc_bytes(c)));
}

uint32_t cpu_tile_outputs(const td_cpu *c, cpu_path path, uint64_t outputs) {
    const uint64_t share = outputs / (uint64_t)c->n_threads / 4; /* four tiles a thread even out its speed */
    if (path != CPU_PATH_FLOAT && share >= 96)
        return share >= 192 ? 192 : 96; /* long runs of rows: the requests ahead stay within the tile */
    return share >= CPU_MAX_TILE ? CPU_MAX_TILE : 16;
}

/* ---- the operation ---- */

typedef struct linear_job {
    td_cpu *c;
    uint32_t n, n_mats;
    const td_linear_out *out;
    uint32_t tile[TD_LINEAR_MAX_MATS];        /* outputs per tile */
    const void *const *x[TD_LINEAR_MAX_MATS]; /* row pointers in the form of each matrix */
    int first_tile[TD_LINEAR_MAX_MATS + 1];
} linear_job;

static void linear_tile(void *arg, int tile, int thread) {
    const linear_job *j = arg;
    uint32_t m = 0;
    while (tile >= j->first_tile[m + 1])
        m++;
    const td_linear_out *out = &j->out[m];
    const uint32_t o0 = (uint32_t)(tile - j->first_tile[m]) * j->tile[m];
    cpu_product_tile(j->c, cpu_thread_block(j->c, thread), out->w, o0, min_u32(out->w->n_out - o0, j->tile[m]), j->x[m],
                     j->n, out->y + o0, out->w->n_out);
}

/* Row pointers for each form in use; false: no memory. */
static bool point_at_rows(linear_job *j, const cpu_input *in, unsigned needs) {
    const void **p = cpu_scratch(j->c, CPU_SLOT_ROWS, in->n, CPU_PATH_COUNT * sizeof *p);
    if (!p)
        return false;
    for (unsigned path = 0; path < CPU_PATH_COUNT; path++) {
        if (!(needs & CPU_NEEDS(path)))
            continue;
        const void **rows = p + (size_t)path * in->n;
        for (uint32_t i = 0; i < in->n; i++)
            rows[i] = cpu_input_row(in, path, i);
        for (uint32_t m = 0; m < j->n_mats; m++)
            if (cpu_path_of(j->c, j->out[m].w) == path)
                j->x[m] = rows;
    }
    return true;
}

void cpu_linear(td_backend *be, const float *x, uint32_t n, const td_linear_out *out, uint32_t n_mats) {
    td_cpu *c = cpu_of(be);
    if (n == 0 || n_mats == 0)
        return;
    if (n_mats > TD_LINEAR_MAX_MATS) {
        cpu_fail(c, TD_E_ARG, "linear: %u matrices in a call, expected at most %d", n_mats, TD_LINEAR_MAX_MATS);
        return;
    }
    linear_job j = {.c = c, .n = n, .n_mats = n_mats, .out = out};
    const uint32_t n_in = out[0].w->n_in;
    unsigned needs = 0;
    uint64_t outputs = 0;
    for (uint32_t m = 0; m < n_mats; m++) {
        needs |= CPU_NEEDS(cpu_path_of(c, out[m].w));
        outputs += out[m].w->n_out;
    }
    cpu_input in;
    if (!cpu_input_prepare(c, &in, x, n, n_in, needs) || !cpu_reserve_threads(c, cpu_product_bytes(c, n_in)) ||
        !point_at_rows(&j, &in, needs))
        return;
    for (uint32_t m = 0; m < n_mats; m++) {
        j.tile[m] = cpu_tile_outputs(c, cpu_path_of(c, out[m].w), outputs);
        j.first_tile[m + 1] = j.first_tile[m] + (int)((out[m].w->n_out + j.tile[m] - 1) / j.tile[m]);
    }
    td_pool_run(c->pool, linear_tile, &j, j.first_tile[n_mats]);
}

/* ---- packing ahead ---- */

typedef struct adopt_job {
    const td_cpu *c;
    const td_matrix *w;
    uint8_t *to;
    size_t panel_bytes;
} adopt_job;

static void adopt_panel(void *arg, int tile, int thread) {
    const adopt_job *j = arg;
    (void)thread;
    j->c->dsp.pack[j->w->format](j->to + (size_t)tile * j->panel_bytes, j->w, (uint32_t)tile * j->c->dsp.lanes);
}

bool cpu_decodes(const td_backend *be, const td_matrix *m) {
    const td_cpu *c = (const td_cpu *)be;
    return m->data && !c->float_activations && td_block_bytes(m->format) && !c->dsp.dot_blocks[m->format];
}

td_status cpu_adopt(td_backend *be, td_matrix *m, td_error *err) {
    const td_cpu *c = cpu_of(be);
    /* Panels of a stack may not lie across two of its matrices. */
    if (c->no_packing || !m->data || !quantised_kernel(c, m) || m->n_out < c->dsp.lanes ||
        (m->n_stack > 1 && m->n_out % c->dsp.lanes))
        return TD_OK;
    adopt_job j = {.c = c, .w = m, .panel_bytes = c->dsp.packed_bytes[m->format](m)};
    const uint32_t panels = m->n_stack * (m->n_out / c->dsp.lanes);
    j.to = td_malloc_aligned(panels * j.panel_bytes);
    if (!j.to)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory for %zu packed bytes", m->name, panels * j.panel_bytes);
    td_pool_run(c->pool, adopt_panel, &j, (int)panels);
    m->packed = j.to;
    return TD_OK;
}

/* ---- chosen rows ---- */

#define IDS_PER_TILE 64

typedef struct rows_dot_job {
    td_cpu *c;
    const td_matrix *w;
    const int32_t *id;
    uint32_t n;
    const void *x;
    float *y;
} rows_dot_job;

static void rows_dot_tile(void *arg, int tile, int thread) {
    const rows_dot_job *j = arg;
    const uint32_t from = (uint32_t)tile * IDS_PER_TILE, to = min_u32(j->n, from + IDS_PER_TILE);
    const td_tile_fn dot = quantised_kernel(j->c, j->w);
    if (dot) {
        dot(&(td_tile){.w = j->w,
                       .id = j->id + from,
                       .x = &j->x,
                       .y = j->y + from,
                       .acc = cpu_thread_block(j->c, thread),
                       .n_o = to - from,
                       .n_r = 1});
        return;
    }
    for (uint32_t i = from; i < to; i++)
        cpu_product_tile(j->c, cpu_thread_block(j->c, thread), j->w, (uint32_t)j->id[i], 1, &j->x, 1, j->y + i, 1);
}

/* The same kernels as cpu_linear, so the same bits: an output has a lane of its own. */
void cpu_rows_dot(td_backend *be, float *y, const float *x, const td_matrix *w, const int32_t *id, uint32_t n) {
    td_cpu *c = cpu_of(be);
    const cpu_path path = cpu_path_of(c, w);
    for (uint32_t i = 0; i < n; i++)
        if (id[i] < 0 || (uint32_t)id[i] >= w->n_out) {
            cpu_fail(c, TD_E_ARG, "rows_dot: row %d is outside the matrix's %u", id[i], w->n_out);
            return;
        }
    cpu_input in;
    if (!cpu_input_prepare(c, &in, x, 1, w->n_in, CPU_NEEDS(path)) ||
        !cpu_reserve_threads(c, cpu_product_bytes(c, w->n_in)))
        return;
    rows_dot_job j = {.c = c, .w = w, .id = id, .n = n, .x = cpu_input_row(&in, path, 0), .y = y};
    td_pool_run(c->pool, rows_dot_tile, &j, (int)((n + IDS_PER_TILE - 1) / IDS_PER_TILE));
}
