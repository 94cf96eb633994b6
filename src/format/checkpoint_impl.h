/* checkpoint_impl.h - the checkpoint's own structure, shared by the files that implement it. */
#ifndef TD_FORMAT_CHECKPOINT_IMPL_H
#define TD_FORMAT_CHECKPOINT_IMPL_H

#include "format/checkpoint.h"
#include "format/json_scan.h"
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
    const td_gguf *heads; /* the last of ggufs when it is a file of draft heads; NULL: it is a part like the others */
    uint32_t n_draft_layers, first_draft_layer; /* of `heads` */
    char *assistant;                            /* the file of an assistant that lies beside the model, or NULL */
    char note[400];                             /* why a file of draft heads beside the model is not used; "" */
    td_tensor *views;                           /* [n_tensors] of a GGUF model: its tensors in the published shapes */
    char **known;                               /* [n_tensors] their published names; NULL: none */
    const td_tensor **tensors;                  /* of all files, file by file */
    size_t n_tensors;
    size_t file_bytes;
    td_name_map names; /* file names and aliases -> td_tensor */
    char **aliases;    /* owned strings that `names` borrows */
    size_t n_aliases, aliases_capacity;
};

/* The GGUF files of a directory that can be opened: a model, and beside it a file of draft heads. */
typedef struct td_gguf_files {
    char *model;                 /* td_free; NULL: none */
    char *heads;                 /* td_free; NULL: none, or more than one */
    char several[TD_SHOWN_SIZE]; /* one of them when there are more */
} td_gguf_files;

/* Opens the GGUF model whose first or only part is `path`: fills files, tensors, names and configs. `heads`: a file of
 * draft heads that lies beside it, or NULL. It is joined to the model, or is its assistant, or leaves a note. */
td_status td_checkpoint_open_gguf(td_checkpoint *ck, const char *path, const char *heads, td_error *err) TD_MUST_CHECK;

/* The files of the one GGUF model of a directory. A file of draft heads that lies there without a model is the model.
 * TD_E_FORMAT when there are several models, naming two. Nothing is found where there are safetensors. */
td_status td_checkpoint_find_gguf(const char *dir, td_gguf_files *out, td_error *err) TD_MUST_CHECK;
void td_gguf_files_free(td_gguf_files *files);

/* Leaves a note when a file of draft heads lies beside a model that was named by its file: which of the models of that
 * directory it belongs to is not for us to say. */
void td_checkpoint_note_neighbour(td_checkpoint *ck);

/* How messages name a tensor: "alias" (in the file: "name") when it was asked for by another name than the file's. */
#define TD_CALLED_SIZE 220
const char *td_checkpoint_called(char out[TD_CALLED_SIZE], const char *asked, const td_tensor *t);

#endif
