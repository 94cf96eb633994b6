/* families.h - what a family gives to the registry. */
#ifndef TD_MODEL_FAMILIES_H
#define TD_MODEL_FAMILIES_H

#include "model/model.h"

typedef struct td_model_family {
    const char *name;
    bool (*matches)(const char *model_type);
    td_status (*open)(td_model **out, td_checkpoint *ck, td_backend *be, const td_model_options *opt, td_error *err);
} td_model_family;

extern const td_model_family td_family_gemma4;
extern const td_model_family td_family_qwen35;

/* True for the model_type of a checkpoint that only drafts. */
bool td_family_is_assistant(const char *model_type);

#endif
