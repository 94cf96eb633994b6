/* matrix.h - a weight matrix as it lies in its file: any element type or quantised format, read row by row.
 *
 * A matrix is a view: it points into a mapped checkpoint (or into a block of its own, see `owned`) and says how to
 * decode a row. y = x W^T: a row of W is one output feature, its n_in elements lie along the inputs, and quantisation
 * groups run along n_in. A stack holds n_stack matrices of one shape (experts), one after the other.
 *
 * Formats and their sources
 *
 *   - F32 F16 BF16 F8_E4M3: plain elements (safetensors).
 *
 *   - AFFINE: MLX affine groups. w = scale*q + bias, q unsigned and `bits` wide (2 3 4 5 6 8), `group` 32, 64 or 128.
 *     A row is one little-endian bit stream. The scale may be negative. Scales and biases are [rows][n_in/group] of
 *     scale_type (F16, BF16 or F32).
 *
 *   - MXFP4 MXFP8 NVFP4: OCP microscaling and NVIDIA's variant. Elements E2M1 or E4M3; one scale byte a group (E8M0,
 *     groups of 32; NVFP4: E4M3, groups of 16); no biases. A NaN byte (E4M3 0x7F, E8M0 255) decodes to NaN.
 *
 *   - Q4_0 ... Q2_0: GGUF blocks, scales and codes together (blocks.h). MXFP4_BLOCK has the elements and the scale
 *     byte of MXFP4 in GGUF's order: the byte first, then low nibbles for elements 0..15, high ones for 16..31.
 *     NVFP4_BLOCK has four scale bytes and then the nibbles of each 16 elements, low ones first.
 *
 * Nothing here assumes that `data`, `scales` or `biases` are aligned: MLX files do not align tensors. */
#ifndef TD_TENSOR_MATRIX_H
#define TD_TENSOR_MATRIX_H

#include "base/status.h"
#include "tensor/dtype.h"

typedef enum td_format {
    TD_FORMAT_F32,
    TD_FORMAT_F16,
    TD_FORMAT_BF16,
    TD_FORMAT_F8_E4M3,
    TD_FORMAT_AFFINE,
    TD_FORMAT_MXFP4,
    TD_FORMAT_MXFP8,
    TD_FORMAT_NVFP4,
    /* GGUF blocks */
    TD_FORMAT_Q4_0,
    TD_FORMAT_Q4_1,
    TD_FORMAT_Q5_0,
    TD_FORMAT_Q5_1,
    TD_FORMAT_Q8_0,
    TD_FORMAT_IQ4_NL,
    TD_FORMAT_MXFP4_BLOCK,
    TD_FORMAT_Q2_K,
    TD_FORMAT_Q3_K,
    TD_FORMAT_Q4_K,
    TD_FORMAT_Q5_K,
    TD_FORMAT_Q6_K,
    TD_FORMAT_IQ4_XS,
    TD_FORMAT_IQ2_XXS,
    TD_FORMAT_NVFP4_BLOCK,
    TD_FORMAT_TQ1_0,
    TD_FORMAT_TQ2_0,
    TD_FORMAT_Q1_0,
    TD_FORMAT_Q2_0,
    TD_FORMAT_COUNT
} td_format;

typedef struct td_matrix {
    const char *name; /* tensor or module name, for messages; not owned */
    td_format format;
    uint8_t bits;        /* of one code; 32, 16 or 8 for plain elements */
    uint16_t group;      /* elements that share a scale; of GGUF blocks: elements of a block; 0 for plain elements */
    td_dtype scale_type; /* AFFINE: the file's choice; MXFP4, MXFP8, NVFP4: the type of their scale byte */
    uint32_t n_stack;    /* 1, or the number of stacked matrices */
    uint32_t n_out;      /* rows of one matrix */
    uint32_t n_in;       /* elements of a row */
    size_t row_bytes;    /* bytes from one row of `data` to the next; rows of a stack follow each other */
    size_t scale_row_bytes;
    const uint8_t *data;
    const uint8_t *scales; /* NULL for plain elements and GGUF blocks */
    const uint8_t *biases; /* AFFINE only */
    bool mapped;           /* data, scales and biases lie in mapped files, which can be read again */
    void *owned;           /* a block that td_matrix_free releases, or NULL for a view */
    void *packed; /* the same weights in a backend's own order, which td_matrix_free releases; views have none */
} td_matrix;

/* "bf16", "affine 4-bit group 64", ... into buf (NUL-terminated, cut at size); returns buf. */
const char *td_matrix_describe(const td_matrix *m, char *buf, size_t size);

/* Fills format, bits, group, row strides of a plain or quantised matrix from its description and checks that n_in is
 * a whole number of groups and bytes. `bits` and `group` are ignored for plain formats; for formats of fixed groups
 * each is 0 or the format's own; scale_type only for AFFINE. No dimension may be 0. TD_E_SHAPE names m->name and leaves
 * *m as it was. The pointers are left alone. */
td_status td_matrix_layout(td_matrix *m, td_format format, unsigned bits, unsigned group, td_dtype scale_type,
                           uint32_t n_stack, uint32_t n_out, uint32_t n_in, td_error *err) TD_MUST_CHECK;

/* Bytes of data, scales and biases together. */
size_t td_matrix_bytes(const td_matrix *m);
/* Bits a weight costs, scales included (4.5 for affine 4-bit, group 64, 16-bit scales). */
double td_matrix_bits_per_weight(const td_matrix *m);

/* Views: matrix `index` of a stack; rows [row0, row0 + n), counted over the whole stack, as one matrix of n rows. A
 * view owns nothing and must not outlive its source. */
td_matrix td_matrix_at(const td_matrix *m, uint32_t index);
td_matrix td_matrix_rows(const td_matrix *m, uint32_t row0, uint32_t n);

/* The reference decoder: row `row` (counted over the whole stack: index*n_out + row) to n_in floats, computed in f32
 * in the order the format defines. Every fast kernel is tested against it. */
void td_matrix_row_f32(const td_matrix *m, size_t row, float *out);

/* A new matrix of the same shape in AFFINE format with codes of `bits` (2 3 4 5 6 8) and groups of `group`, made by
 * MLX's rule (negative scale when the largest magnitude is positive, the extreme is code 0; ties to even). Scales and
 * biases are stored as scale_type. *out owns its block and must not be *src; it is zeroed on failure.
 * TD_E_SHAPE when n_in is not a multiple of group; TD_E_NUMERIC, with the row as position, when a weight is not finite
 * or a scale or bias overflows scale_type; TD_E_NOMEM. Needs one row of floats beside the result. */
td_status td_matrix_quantize(td_matrix *out, const td_matrix *src, unsigned bits, unsigned group, td_dtype scale_type,
                             td_error *err) TD_MUST_CHECK;

/* A heap copy of a matrix, its rows close together: one block, data, scales and biases each aligned to 64. *out must
 * not be *src and is zeroed on failure. */
td_status td_matrix_copy(td_matrix *out, const td_matrix *src, td_error *err) TD_MUST_CHECK;

/* Frees what the matrix owns and zeroes it. NULL-safe; on a view it only zeroes. */
void td_matrix_free(td_matrix *m);

#endif
