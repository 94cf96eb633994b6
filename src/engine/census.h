/* census.h - what a checkpoint's tensors are for and how they are stored, counted without loading them. */
#ifndef TD_ENGINE_CENSUS_H
#define TD_ENGINE_CENSUS_H

#include "engine/module_class.h"
#include "format/checkpoint.h"

#define TD_CENSUS_FORMATS 8 /* formats told apart in a class; weights in further ones count for the last */

typedef struct td_census_format {
    char name[40]; /* "bf16", "affine 4-bit group 64" */
    uint64_t params;
} td_census_format;

typedef struct td_census_class {
    uint64_t params; /* weights, scales and offsets not counted */
    uint64_t bytes;  /* all of it */
    uint32_t n_modules;
    uint32_t n_formats;
    td_census_format format[TD_CENSUS_FORMATS]; /* most weights first */
} td_census_class;

typedef struct td_census {
    td_census_class by[TD_MODULE_CLASS_COUNT];
    uint64_t params, bytes;   /* towers left out */
    uint32_t n_draft_tensors; /* of heads inside the checkpoint (mtp.*) */
} td_census;

/* Quantised modules are told by their .scales; their width follows from the shapes and the group in config.json, as
 * far as that can be without the model (loading checks it). */
void td_census_take(td_census *census, const td_checkpoint *ck);

#endif
