/* outdir.h - a directory that is filled all at once: files are written under temporary names and get their own
 * together, in the order they were added, so that nobody reads half a checkpoint. */
#ifndef TD_ENGINE_OUTDIR_H
#define TD_ENGINE_OUTDIR_H

#include "base/status.h"

typedef struct td_outdir {
    char *path;
    char **names; /* of the files to come */
    size_t n_names;
    bool created; /* the directory was not there */
} td_outdir;

/* Makes the directory when it is not there. One that holds anything is TD_E_ARG unless `force`. */
td_status td_outdir_open(td_outdir *dir, const char *path, bool force, td_error *err) TD_MUST_CHECK;

/* *temporary (td_free) is the path to write the file `name` to. */
td_status td_outdir_add(td_outdir *dir, const char *name, char **temporary, td_error *err) TD_MUST_CHECK;

/* Writes a whole file. */
td_status td_outdir_put(td_outdir *dir, const char *name, const char *bytes, size_t n, td_error *err) TD_MUST_CHECK;
/* Copies a regular file, through a symbolic link. */
td_status td_outdir_copy(td_outdir *dir, const char *name, const char *from, td_error *err) TD_MUST_CHECK;

/* Removes the weight files and the index of an earlier checkpoint, then gives every added file its name. */
td_status td_outdir_commit(td_outdir *dir, td_error *err) TD_MUST_CHECK;

/* Frees; files that were added and not committed are removed, and so is a directory that td_outdir_open made. */
void td_outdir_close(td_outdir *dir);

#endif
