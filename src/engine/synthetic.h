/* synthetic.h - checkpoints of random weights in published shapes, for measuring speed where there are no weights.
 *
 * A synthetic model has the matrices, the layers and the drafter of a published one, so that it reads as many bytes and
 * multiplies as often a token; what it says means nothing. Values are drawn so that activations keep their size from
 * layer to layer and logits stay finite. Shapes may be scaled: fewer layers, words, experts. Bytes are a function of
 * the shape and the seed. The files say what they are: td_checkpoint_synthetic.
 *
 * Sources of the shapes: the published configurations of Gemma 4, its assistants and Qwen 3.5. */
#ifndef TD_ENGINE_SYNTHETIC_H
#define TD_ENGINE_SYNTHETIC_H

#include "tandem.h"

typedef enum td_synthetic_format {
    TD_SYNTHETIC_Q4_0,    /* one GGUF file, which llama.cpp reads, too: matrices Q4_0, with made-up words */
    TD_SYNTHETIC_AFFINE4, /* a directory: MLX affine 4-bit, groups of 64, safetensors; no tokenizer */
} td_synthetic_format;

typedef struct td_synthetic_options {
    const char *shape; /* a name of td_synthetic_shape_at */
    td_synthetic_format format;
    uint32_t n_layers;  /* 0: the shape's own, or as many as a small machine bears (td_synthetic_shape) */
    uint32_t n_vocab;   /* 0: the shape's own */
    uint32_t n_experts; /* 0: the shape's own */
    uint64_t seed;
    td_progress_fn progress; /* or NULL */
    void *user;
} td_synthetic_options;

typedef struct td_synthetic_shape {
    const char *name;  /* "e2b" */
    const char *about; /* a line */
    uint32_t n_layers, published_layers;
} td_synthetic_shape;

/* The shapes, one by one; NULL behind the last. */
const td_synthetic_shape *td_synthetic_shape_at(size_t i);

/* Writes the checkpoint to `path`: a new file, or a directory that is new or empty. *bytes: of its weights.
 * TD_E_ARG: no such shape, or a scale that it does not have, with what it has; TD_E_IO; TD_E_NOMEM; TD_E_CANCELLED. */
td_status td_synthetic_write(const char *path, const td_synthetic_options *opt, uint64_t *bytes,
                             td_error *err) TD_MUST_CHECK;

#endif
