/* checkpoint_impl.h - the checkpoint's own structure, shared by the files that implement it. */
#ifndef TD_FORMAT_CHECKPOINT_IMPL_H
#define TD_FORMAT_CHECKPOINT_IMPL_H

#include "format/checkpoint.h"
#include "format/name_map.h"

struct td_checkpoint {
    char *path; /* as given */
    td_log log;
    json_t *config;
    json_t *generation; /* NULL: no such file */
    td_safetensors **files;
    size_t n_files;
    td_gguf **ggufs; /* of a GGUF model, its parts; then there are no `files` */
    size_t n_ggufs;
    td_tensor *views;          /* [n_tensors] of a GGUF model: its tensors in the published shapes */
    char **known;              /* [n_tensors] their published names; NULL: none */
    const td_tensor **tensors; /* of all files, file by file */
    size_t n_tensors;
    size_t file_bytes;
    td_name_map names; /* file names and aliases -> td_tensor */
    char **aliases;    /* owned strings that `names` borrows */
    size_t n_aliases, aliases_capacity;
};

/* Opens the GGUF model whose first or only part is `path`: fills files, tensors, names and configs. */
td_status td_checkpoint_open_gguf(td_checkpoint *ck, const char *path, td_error *err) TD_MUST_CHECK;

/* The file of the one GGUF model of a directory (td_free), or NULL when there is none. TD_E_FORMAT when there are
 * several, naming two. */
td_status td_checkpoint_find_gguf(const char *dir, char **path, td_error *err) TD_MUST_CHECK;

/* How messages name a tensor: "alias" (in the file: "name") when it was asked for by another name than the file's. */
#define TD_CALLED_SIZE 220
const char *td_checkpoint_called(char out[TD_CALLED_SIZE], const char *asked, const td_tensor *t);

#endif
