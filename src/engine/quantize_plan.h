/* quantize_plan.h - what becomes of each tensor of a checkpoint: its new name, its format, or that it is left out.
 * Decided for the whole checkpoint before a byte is written. */
#ifndef TD_ENGINE_QUANTIZE_PLAN_H
#define TD_ENGINE_QUANTIZE_PLAN_H

#include "engine/quantize.h"
#include "format/checkpoint.h"

/* A matrix or vector of the result: rows [row0, row0 + n_out) of each of the n_stack matrices of a source tensor (a
 * fused tensor gives two). A vector is one row. */
typedef struct td_quantize_item {
    const td_tensor *source;
    char *name; /* of the tensor; of the module, without ".weight", when it is quantised */
    td_module_class class;
    bool quantized;
    uint32_t bits, group;
    uint32_t n_stack, source_rows; /* matrices in the source, rows of each */
    uint32_t row0, n_out, n_in;
    uint64_t params;
} td_quantize_item;

typedef struct td_quantize_plan {
    td_quantize_item *items;
    size_t n_items, capacity;
    uint32_t n_left_out;
    bool towers_left_out;
} td_quantize_plan;

td_status td_quantize_plan_make(td_quantize_plan *plan, const td_checkpoint *ck, const td_quantize_options *opt,
                                td_error *err) TD_MUST_CHECK;
void td_quantize_plan_free(td_quantize_plan *plan);

/* config.json's object for the result: the source's with "quantization" and its twin "quantization_config". */
td_status td_quantize_plan_config(const td_quantize_plan *plan, const td_checkpoint *ck, const td_quantize_options *opt,
                                  json_t **out, td_error *err) TD_MUST_CHECK;

#endif
