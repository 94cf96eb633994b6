/* decode.c - the reference decoder: one row of any format to floats.
 *
 * Never tuned, and kept beside the fast kernels for ever: they are tested against it. It reads bytes only, so no
 * pointer needs to be aligned, and never a byte past the row. Each format is one loop over groups: fetch the scale,
 * then the codes.
 *
 * Codes of every width come eight at a time: eight codes of b bits are exactly b bytes, a little-endian integer
 * whose lowest bits are the first code. The one rule holds for 2, 3, 4, 5, 6 and 8 bits. */
#include "tensor/matrix.h"

#include <assert.h>

#include "tensor/blocks.h"

static void unpack_eight(uint8_t q[8], const uint8_t *p, unsigned bits) {
    uint64_t word = 0;
    for (unsigned i = 0; i < bits; i++)
        word |= (uint64_t)p[i] << (8 * i);
    for (unsigned i = 0; i < 8; i++)
        q[i] = (uint8_t)(word >> (bits * i) & ((1u << bits) - 1));
}

static float scale_at(const td_matrix *m, const uint8_t *row, uint32_t g) {
    float s;
    bool known = td_to_f32(&s, m->scale_type, row + (size_t)g * (td_dtype_bits(m->scale_type) / 8), 1);
    assert(known);
    (void)known;
    return s;
}

/* w = scale*q + bias: the product rounds, then the sum (the build forbids contraction). */
static void decode_affine(const td_matrix *m, const uint8_t *data, const uint8_t *scales, const uint8_t *biases,
                          float *out) {
    for (uint32_t g = 0; g < m->n_in / m->group; g++) {
        float scale = scale_at(m, scales, g), bias = scale_at(m, biases, g);
        for (unsigned i = 0; i < m->group; i += 8, data += m->bits, out += 8) {
            uint8_t q[8];
            unpack_eight(q, data, m->bits);
            for (unsigned k = 0; k < 8; k++)
                out[k] = scale * (float)q[k] + bias;
        }
    }
}

/* MXFP4, MXFP8 and NVFP4 differ in the element, the group and the type of the scale byte: w = scale * element(q). */
static void decode_blocks(const td_matrix *m, const uint8_t *data, const uint8_t *scales, float *out) {
    float (*element)(uint8_t) = m->bits == 8 ? td_e4m3_to_f32 : td_e2m1_to_f32;
    for (uint32_t g = 0; g < m->n_in / m->group; g++) {
        float scale = scale_at(m, scales, g);
        for (unsigned i = 0; i < m->group; i += 8, data += m->bits, out += 8) {
            uint8_t q[8];
            unpack_eight(q, data, m->bits);
            for (unsigned k = 0; k < 8; k++)
                out[k] = scale * element(q[k]);
        }
    }
}

void td_matrix_row_f32(const td_matrix *m, size_t row, float *out) {
    assert(row < (size_t)m->n_stack * m->n_out);
    const uint8_t *data = m->data + row * m->row_bytes;
    switch (m->format) {
    case TD_FORMAT_F32:
        td_to_f32(out, TD_DTYPE_F32, data, m->n_in);
        return;
    case TD_FORMAT_F16:
        td_to_f32(out, TD_DTYPE_F16, data, m->n_in);
        return;
    case TD_FORMAT_BF16:
        td_to_f32(out, TD_DTYPE_BF16, data, m->n_in);
        return;
    case TD_FORMAT_F8_E4M3:
        td_to_f32(out, TD_DTYPE_F8_E4M3, data, m->n_in);
        return;
    case TD_FORMAT_AFFINE:
        decode_affine(m, data, m->scales + row * m->scale_row_bytes, m->biases + row * m->scale_row_bytes, out);
        return;
    case TD_FORMAT_MXFP4:
    case TD_FORMAT_MXFP8:
    case TD_FORMAT_NVFP4:
        decode_blocks(m, data, m->scales + row * m->scale_row_bytes, out);
        return;
    default: /* a format of GGUF blocks, which checks that it is one */
        td_block_row_f32(m->format, data, m->n_in, out);
    }
}
