/* names.h - which tensors of a checkpoint a family knows, so that none is left out unseen. */
#ifndef TD_MODEL_NAMES_H
#define TD_MODEL_NAMES_H

#include "model/model.h"

typedef enum td_name_class {
    TD_NAME_UNKNOWN, /* not part of such a model: an error */
    TD_NAME_USED,
    TD_NAME_SKIPPED, /* left alone knowingly: towers, buffers that can be derived, weights that nothing reads */
} td_name_class;

bool td_name_starts(const char *s, const char *prefix);
bool td_name_ends(const char *s, const char *suffix);
/* `list` ends with NULL. */
bool td_name_in(const char *s, const char *const *list);
/* What follows "<number>." at the start of s, the number in *out; NULL when there is no number below `below`. */
const char *td_name_after_number(const char *s, uint32_t below, uint32_t *out);

/* Judges a module: a plain tensor name (td_model_plain_name) without ".weight", ".scales" or ".biases". */
typedef td_name_class (*td_name_judge)(const void *family, const char *module);

/* Judges every tensor, towers and rotary buffers apart. TD_E_MODEL names the first unknown one: "<checkpoint>: tensor
 * <name> is not part of <model>". Counts the skipped. */
td_status td_names_check(const td_checkpoint *ck, td_name_judge judge, const void *family, const char *model,
                         uint32_t *n_skipped, td_error *err) TD_MUST_CHECK;

#endif
