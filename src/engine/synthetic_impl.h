/* synthetic_impl.h - what the files of synthetic.h share: a shape in numbers, and the list of its tensors. */
#ifndef TD_ENGINE_SYNTHETIC_IMPL_H
#define TD_ENGINE_SYNTHETIC_IMPL_H

#include <jansson.h>

#include "engine/synthetic.h"
#include "format/checkpoint.h"
#include "format/gguf_write.h"

typedef enum td_synthetic_family {
    TD_SYNTHETIC_GEMMA4,
    TD_SYNTHETIC_ASSISTANT,
    TD_SYNTHETIC_QWEN35
} td_synthetic_family;

/* A shape's numbers; those that a family does not have are 0. */
typedef struct td_shape {
    td_synthetic_shape shown;
    td_synthetic_family family;
    uint32_t period;   /* the last layer of every `period` has full attention; n_layers is a multiple */
    uint32_t n_shared; /* of published_layers: layers at the end that own no keys */
    uint32_t n_vocab, n_embd, n_heads, n_kv, n_kv_full, head_dim, head_dim_full, n_ff, window, n_ctx;
    uint32_t n_ple;                                       /* width of the inputs of each layer */
    uint32_t n_experts, n_used, n_ff_expert, n_ff_shared; /* mixture of experts */
    uint32_t n_k, n_v, d_delta, kernel;                   /* linear attention */
    uint32_t n_backbone, n_centroids, n_centroids_used;   /* assistants */
    bool wide, k_is_v, tied, draft_layer;
} td_shape;

/* The shape that the options name, scaled as they say. */
td_status td_shape_of(const td_synthetic_options *opt, td_shape *out, td_error *err) TD_MUST_CHECK;
bool td_shape_is_full(const td_shape *s, uint32_t layer);
/* Layers from this one on share the keys of those before. */
uint32_t td_shape_owning(const td_shape *s);

/* How the values of a tensor are drawn. */
typedef enum td_draw {
    TD_DRAW_MATRIX,  /* quantised; evenly, of the size that keeps a row's output as large as its input */
    TD_DRAW_FLOAT,   /* the same as floats: routers, convolutions, small projections */
    TD_DRAW_SAME,    /* one value everywhere: gains */
    TD_DRAW_DECAY,   /* what A of linear attention is, as A_log or as -exp(A_log) */
    TD_DRAW_ORDER,   /* 0, 1, 2, ... as int32 */
    TD_DRAW_TURNING, /* 1 for the first quarter of the pairs, and then so large that nothing turns */
    TD_DRAW_SCALES,  /* of a matrix in affine groups */
    TD_DRAW_BIASES,
} td_draw;

typedef struct td_plan_entry {
    td_draw draw;
    uint32_t n_in; /* of the matrix that it belongs to */
    float value;   /* of TD_DRAW_SAME */
} td_plan_entry;

#define TD_SYNTHETIC_MAX 8192 /* tensors */

/* Tensors as they will be in the file, without data. */
typedef struct td_plan {
    const td_shape *shape;
    bool gguf;
    td_tensor tensor[TD_SYNTHETIC_MAX]; /* names owned */
    td_plan_entry entry[TD_SYNTHETIC_MAX];
    size_t n;
    uint64_t bytes;
    bool failed; /* out of memory or of room */
} td_plan;

void td_plan_tensors(td_plan *plan);
void td_plan_free(td_plan *plan);

/* config.json of an affine checkpoint; NULL: out of memory. */
json_t *td_synthetic_config(const td_shape *s);
/* Metadata of a GGUF file. False: out of memory. */
bool td_synthetic_metadata(const td_shape *s, td_gguf_writer *w);

#endif
