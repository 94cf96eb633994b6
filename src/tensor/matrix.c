/* matrix.c - what a matrix is: its layout from a description, its size, its views.
 *
 * One table says what is fixed about a format; AFFINE alone leaves width, group and scale type to the file. A layout
 * is checked as a whole before anything is written, so a failed one leaves the matrix as it was. Sizes are computed
 * with overflow checks here, once; a matrix that passed needs none later. */
#include "tensor/matrix.h"

#include <assert.h>
#include <stdio.h>

#include "tensor/blocks.h"

typedef struct format_rule {
    const char *name;
    uint8_t bits;        /* 0: the file's choice */
    uint16_t group;      /* 0 with bits != 0: no groups */
    td_dtype scale_type; /* of formats with a fixed one */
} format_rule;

static const format_rule rules[TD_FORMAT_COUNT] = {
    [TD_FORMAT_F32] = {"f32", 32, 0, 0},
    [TD_FORMAT_F16] = {"f16", 16, 0, 0},
    [TD_FORMAT_BF16] = {"bf16", 16, 0, 0},
    [TD_FORMAT_F8_E4M3] = {"f8_e4m3", 8, 0, 0},
    [TD_FORMAT_AFFINE] = {"affine", 0, 0, 0},
    [TD_FORMAT_MXFP4] = {"mxfp4", 4, 32, TD_DTYPE_F8_E8M0},
    [TD_FORMAT_MXFP8] = {"mxfp8", 8, 32, TD_DTYPE_F8_E8M0},
    [TD_FORMAT_NVFP4] = {"nvfp4", 4, 16, TD_DTYPE_F8_E4M3},
    [TD_FORMAT_Q4_0] = {"q4_0", 4, 32, 0},
    [TD_FORMAT_Q4_1] = {"q4_1", 4, 32, 0},
    [TD_FORMAT_Q5_0] = {"q5_0", 5, 32, 0},
    [TD_FORMAT_Q5_1] = {"q5_1", 5, 32, 0},
    [TD_FORMAT_Q8_0] = {"q8_0", 8, 32, 0},
    [TD_FORMAT_IQ4_NL] = {"iq4_nl", 4, 32, 0},
    [TD_FORMAT_MXFP4_BLOCK] = {"mxfp4 blocks", 4, 32, 0},
    [TD_FORMAT_Q2_K] = {"q2_k", 2, 256, 0},
    [TD_FORMAT_Q3_K] = {"q3_k", 3, 256, 0},
    [TD_FORMAT_Q4_K] = {"q4_k", 4, 256, 0},
    [TD_FORMAT_Q5_K] = {"q5_k", 5, 256, 0},
    [TD_FORMAT_Q6_K] = {"q6_k", 6, 256, 0},
    [TD_FORMAT_IQ4_XS] = {"iq4_xs", 4, 256, 0},
    [TD_FORMAT_IQ2_XXS] = {"iq2_xxs", 2, 256, 0},
    [TD_FORMAT_NVFP4_BLOCK] = {"nvfp4 blocks", 4, 64, 0},
    [TD_FORMAT_TQ1_0] = {"tq1_0", 2, 256, 0},
    [TD_FORMAT_TQ2_0] = {"tq2_0", 2, 256, 0},
    [TD_FORMAT_Q1_0] = {"q1_0", 1, 128, 0},
    [TD_FORMAT_Q2_0] = {"q2_0", 2, 64, 0},
};

static const char *name_of(const td_matrix *m) {
    return m->name ? m->name : "matrix";
}

const char *td_matrix_describe(const td_matrix *m, char *buf, size_t size) {
    if ((unsigned)m->format >= TD_FORMAT_COUNT)
        snprintf(buf, size, "unknown format %d", (int)m->format);
    else if (m->format == TD_FORMAT_AFFINE)
        snprintf(buf, size, "affine %u-bit group %u", m->bits, m->group);
    else
        snprintf(buf, size, "%s", rules[m->format].name);
    return buf;
}

static td_status check_affine(const td_matrix *m, unsigned bits, unsigned group, td_dtype scale_type, td_error *err) {
    if (bits < 2 || bits > 8 || bits == 7)
        return td_fail(err, TD_E_SHAPE, "%s: affine codes of %u bits, expected 2, 3, 4, 5, 6 or 8", name_of(m), bits);
    if (group != 32 && group != 64 && group != 128)
        return td_fail(err, TD_E_SHAPE, "%s: affine groups of %u, expected 32, 64 or 128", name_of(m), group);
    if (scale_type != TD_DTYPE_F16 && scale_type != TD_DTYPE_BF16 && scale_type != TD_DTYPE_F32)
        return td_fail(err, TD_E_SHAPE, "%s: affine scales of type %s, expected F16, BF16 or F32", name_of(m),
                       td_dtype_name(scale_type));
    return TD_OK;
}

/* A format of fixed groups fixes its width and group; a caller that states them (not 0) must state the same. */
static td_status check_block(const td_matrix *m, const format_rule *rule, unsigned bits, unsigned group,
                             td_error *err) {
    if ((bits && bits != rule->bits) || (group && group != rule->group))
        return td_fail(err, TD_E_SHAPE, "%s: %s with %u bits and groups of %u, expected %u bits and groups of %u",
                       name_of(m), rule->name, bits, group, rule->bits, rule->group);
    return TD_OK;
}

/* Every part of the matrix, and their sum, stay below half the address space, so later products and pointer
 * differences are safe. */
static bool size_fits(const td_matrix *m) {
    size_t rows, bytes, row = m->row_bytes + 2 * m->scale_row_bytes;
    return !__builtin_mul_overflow((size_t)m->n_stack, (size_t)m->n_out, &rows) &&
           !__builtin_mul_overflow(rows, row, &bytes) && bytes <= SIZE_MAX / 2 - 4096;
}

td_status td_matrix_layout(td_matrix *m, td_format format, unsigned bits, unsigned group, td_dtype scale_type,
                           uint32_t n_stack, uint32_t n_out, uint32_t n_in, td_error *err) {
    if ((unsigned)format >= TD_FORMAT_COUNT)
        return td_fail(err, TD_E_SHAPE, "%s: unknown matrix format %d", name_of(m), (int)format);
    const format_rule *rule = &rules[format];
    td_matrix t = *m;
    t.format = format;
    t.bits = rule->bits;
    t.group = rule->group;
    t.scale_type = rule->scale_type;
    if (format == TD_FORMAT_AFFINE) {
        TD_TRY(check_affine(m, bits, group, scale_type, err));
        t.bits = (uint8_t)bits;
        t.group = (uint16_t)group;
        t.scale_type = scale_type;
    } else if (rule->group) {
        TD_TRY(check_block(m, rule, bits, group, err));
    }
    if (n_stack == 0 || n_out == 0 || n_in == 0)
        return td_fail(err, TD_E_SHAPE, "%s: shape [%u, %u, %u], expected no empty dimension", name_of(m), n_stack,
                       n_out, n_in);
    if (t.group && n_in % t.group)
        return td_fail(err, TD_E_SHAPE, "%s: %u inputs, expected a multiple of the group of %u", name_of(m), n_in,
                       t.group);
    t.n_stack = n_stack;
    t.n_out = n_out;
    t.n_in = n_in;
    /* whole: groups are multiples of 16, plain elements of bytes */
    const uint32_t block = td_block_bytes(format);
    uint64_t row_bytes = block ? (uint64_t)n_in / t.group * block : (uint64_t)n_in * t.bits / 8;
    if (row_bytes > SIZE_MAX / 4)
        return td_fail(err, TD_E_SHAPE, "%s: rows of %u inputs are too large", name_of(m), n_in);
    t.row_bytes = (size_t)row_bytes;
    t.scale_row_bytes = t.group && !block ? (size_t)(n_in / t.group) * (td_dtype_bits(t.scale_type) / 8) : 0;
    if (!size_fits(&t))
        return td_fail(err, TD_E_SHAPE, "%s: shape [%u, %u, %u] is too large", name_of(m), n_stack, n_out, n_in);
    *m = t;
    return TD_OK;
}

static size_t all_row_bytes(const td_matrix *m) {
    return m->row_bytes + m->scale_row_bytes * (m->format == TD_FORMAT_AFFINE ? 2 : 1);
}

size_t td_matrix_bytes(const td_matrix *m) {
    return (size_t)m->n_stack * m->n_out * all_row_bytes(m);
}

double td_matrix_bits_per_weight(const td_matrix *m) {
    return m->n_in ? 8.0 * (double)all_row_bytes(m) / m->n_in : 0;
}

static const uint8_t *advance(const uint8_t *p, size_t rows, size_t stride) {
    return p ? p + rows * stride : NULL;
}

/* Rows are counted over the whole stack: a stack is nothing but its rows. */
static td_matrix view(const td_matrix *m, size_t row0, uint32_t n) {
    td_matrix v = *m;
    v.n_stack = 1;
    v.n_out = n;
    v.data = advance(m->data, row0, m->row_bytes);
    v.scales = advance(m->scales, row0, m->scale_row_bytes);
    v.biases = advance(m->biases, row0, m->scale_row_bytes);
    v.owned = v.packed = NULL;
    return v;
}

td_matrix td_matrix_at(const td_matrix *m, uint32_t index) {
    assert(index < m->n_stack);
    return view(m, (size_t)index * m->n_out, m->n_out);
}

td_matrix td_matrix_rows(const td_matrix *m, uint32_t row0, uint32_t n) {
    assert((size_t)row0 + n <= (size_t)m->n_stack * m->n_out);
    return view(m, row0, n);
}
