/* weight_files.h - which files of a directory without a shard index are the model's weights. */
#ifndef TD_FORMAT_WEIGHT_FILES_H
#define TD_FORMAT_WEIGHT_FILES_H

#include "base/status.h"

typedef struct td_weight_files {
    char **names; /* sorted; owned */
    size_t n;
} td_weight_files;

/* model.safetensors alone when it is there; else every model*.safetensors, sorted; else weights.safetensors. Names of
 * the form ...-00002-of-00005.safetensors must be complete. TD_E_NOTFOUND: no weights, or a numbered file is missing
 * (named). Free with td_weight_files_free. */
td_status td_weight_files_list(td_weight_files *files, const char *dir, td_error *err) TD_MUST_CHECK;
void td_weight_files_free(td_weight_files *files);

#endif
