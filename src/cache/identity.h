/* identity.h - what keys and values on disk belong to: a model, and the way it is run.
 *
 * Keys are the same bits only if everything that forms them is the same: the weights, the families' arithmetic, the
 * operations in use (an AVX-512 sum is not an AVX2 sum), the type and the layout of pages. All of that goes into one
 * SHA-256. Of weights it takes names, types, shapes and a few hundred bytes of each tensor, not all: that tells models
 * and their fine-tunes apart in well under a second, not a forger. */
#ifndef TD_CACHE_IDENTITY_H
#define TD_CACHE_IDENTITY_H

#include "model/model.h"

#define TD_IDENTITY_CHARS 64

typedef struct td_identity {
    char text[TD_IDENTITY_CHARS + 1]; /* lower-case hex */
} td_identity;

/* Of `m`, opened from `ck`. settings: whatever else changes the bits of a pass ("float_activations=1"), or NULL. Where
 * the checkpoint lies does not matter. TD_E_NOMEM. */
td_status td_model_identity(td_identity *out, const td_checkpoint *ck, const td_model *m, const char *settings,
                            td_error *err) TD_MUST_CHECK;

#endif
