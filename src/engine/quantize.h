/* quantize.h - a published checkpoint made into one with MLX's affine groups, which this and other readers of that
 * format load.
 *
 * What becomes of a tensor: matrices of linear layers, embeddings and experts are quantised along their inputs; norms,
 * scalars, convolutions and a drafter's centroids and token ordering stay as they are; vision and audio towers are left
 * out. Routers and Gemma's small per-layer projections keep 8 bits, since they cost little and hurt much. A matrix
 * whose width is no multiple of the group takes a smaller group, or stays as it is when none fits. Fused experts are
 * split and named as in MLX conversions (experts.switch_glu..., mlp.switch_mlp...), and so are the text modules of a
 * Gemma wrapper (language_model.model...); other names, a drafter's among them, stay as published. Draft heads inside a
 * checkpoint (mtp.*) are kept and quantised like the rest.
 *
 * One block of rows a thread is in memory at a time. Sources: MLX's quantisation rule and configuration. */
#ifndef TD_ENGINE_QUANTIZE_H
#define TD_ENGINE_QUANTIZE_H

#include "engine/module_class.h"
#include "tensor/dtype.h"

typedef struct td_quantize_options {
    uint32_t bits;           /* 2 3 4 5 6 8; default 4 */
    uint32_t group;          /* 32 64 128; default 64 */
    uint32_t embed_bits;     /* of embeddings and the head; 0: as bits */
    uint32_t attention_bits; /* of attention's projections; 0: as bits */
    uint64_t shard_bytes;    /* a file grows to about this; default 5 GB */
    bool force;              /* write into a directory that holds a checkpoint already, replacing it */
    int n_threads;           /* 0: all usable processors */
    td_log_fn log;           /* notices: what was left out or kept */
    td_progress_fn progress;
    void *user; /* passed to log and progress */
} td_quantize_options;

td_quantize_options td_quantize_options_default(void);

typedef struct td_quantize_class {
    uint64_t params;          /* weights, none left out */
    uint64_t bytes;           /* that they take now, scales included */
    uint64_t quantized;       /* weights that were quantised */
    double square, square_of; /* sums over them: of errors squared, of weights squared */
} td_quantize_class;

typedef struct td_quantize_report {
    uint64_t bytes_before, bytes_after;       /* of the weight files */
    uint32_t n_quantized, n_kept, n_left_out; /* tensors of the source */
    uint32_t n_files;                         /* weight files written */
    td_quantize_class by[TD_MODULE_CLASS_COUNT];
} td_quantize_report;

/* Root mean square error relative to the root mean square weight. */
double td_quantize_error(const td_quantize_class *c);

/* Reads the directory `in`, writes the directory `out` (made if it is not there). The configuration is written last,
 * so a conversion that was cut short does not look like a checkpoint. Errors: TD_E_ARG (an option, or a checkpoint
 * that is quantised already; `out` is not empty and force is off; `out` is `in`), TD_E_UNSUPPORTED (a model_type whose
 * names are not known), TD_E_NUMERIC (weights that are not finite, named), those of td_checkpoint_open, TD_E_IO,
 * TD_E_NOMEM, TD_E_CANCELLED. After an error `out` holds no new files. */
td_status td_quantize(const char *in, const char *out, const td_quantize_options *opt, td_quantize_report *report,
                      td_error *err) TD_MUST_CHECK;

#endif
