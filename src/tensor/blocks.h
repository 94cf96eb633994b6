/* blocks.h - GGUF block formats: sizes, the reference decoder of one row, and simple encoders.
 *
 * A row is its blocks one after the other; a block holds its scales and its codes together, so such a matrix has no
 * `scales` of its own. Source: the GGUF type list of ggml (mid 2026); the decoder computes in f32 in the order written
 * beside each format in blocks.c, which gives the numbers of ggml's own, bit for bit. */
#ifndef TD_TENSOR_BLOCKS_H
#define TD_TENSOR_BLOCKS_H

#include "tensor/matrix.h"

/* Elements and bytes of one block; 0 for a format that is not made of GGUF blocks. */
uint32_t td_block_elements(td_format format);
uint32_t td_block_bytes(td_format format);

/* n elements, a whole number of blocks, from `row`, which may be unaligned. */
void td_block_row_f32(td_format format, const uint8_t *row, size_t n, float *out);

/* True for the formats that td_block_encode knows: Q4_0, Q5_0, Q8_0, Q4_K, Q5_K, Q6_K. */
bool td_block_encodes(td_format format);

/* n floats, a whole number of blocks, into `row`. Q8_0, Q4_0 and Q5_0 follow the format's own rule; the others take the
 * plain range of each group, without the search that good files are made with: for synthetic models and tests. All x
 * must be finite. */
void td_block_encode(td_format format, uint8_t *row, const float *x, size_t n);

#endif
