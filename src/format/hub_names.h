/* hub_names.h - hub ids, names of files as a server gives them, and where the cache keeps what.
 *
 *   id = org/name [@revision] [:file]
 *
 * `file` is for repositories of GGUF files: a file's name, or the quantisation that its name ends with ("Q4_K_M"). */
#ifndef TD_FORMAT_HUB_NAMES_H
#define TD_FORMAT_HUB_NAMES_H

#include "base/status.h"

#define TD_HUB_REPO_MAX 96
#define TD_HUB_REVISION_MAX 255
#define TD_HUB_FILE_MAX 1000 /* bytes of a file's path inside a repository */

typedef struct td_hub_id {
    char repo[TD_HUB_REPO_MAX + 1];         /* org/name, or a bare name */
    char revision[TD_HUB_REVISION_MAX + 1]; /* "": none asked for */
    char file[TD_HUB_FILE_MAX + 1];         /* "": the whole model */
} td_hub_id;

/* False: not an id (nothing in it can climb out of the cache). */
bool td_hub_id_parse(const char *text, td_hub_id *id);
/* 40 hex digits in lower case. */
bool td_hub_is_commit(const char *s);
/* Exactly `digits` hex digits in lower case. */
bool td_hub_is_hex(const char *s, size_t digits);

/* A relative path of plain components that is safe below a directory: none empty, "." or "..", no backslash, no control
 * character, no component above 255 bytes. */
bool td_hub_file_ok(const char *name, size_t size);

/* Where things are; td_free, NULL: out of memory. */
char *td_hub_repo_dir(const char *cache, const char *repo);          /* <cache>/models--org--name */
char *td_hub_snapshot_dir(const char *repo_dir, const char *commit); /* <repo_dir>/snapshots/<commit> */

/* A list of strings that it owns. */
typedef struct td_hub_strings {
    char **v;
    size_t n;
} td_hub_strings;
td_status td_hub_strings_add(td_hub_strings *list, const char *s, size_t size, td_error *err) TD_MUST_CHECK;
void td_hub_strings_free(td_hub_strings *list);

/* ---- GGUF files ---- */

bool td_hub_gguf_is(const char *name);
/* A model in pieces is "<stem>-00001-of-00003.gguf"; the number of pieces, 1 for any other name. */
unsigned td_hub_gguf_pieces(const char *name);
/* Both are pieces of one model (a model in one piece is its own). */
bool td_hub_gguf_same(const char *one, const char *name);
/* "a.gguf, b.gguf and 7 more": the models among names[0..n), those that `selector` means or all for NULL. "": none. */
void td_hub_gguf_list(char *out, size_t size, const char *const *names, size_t n, const char *selector);
/* The one of names[0..n) that `selector` means, the first piece of a model in pieces. A file name must be there; a
 * quantisation must end exactly one model's name (case does not matter, "mmproj" files are not models).
 * TD_E_NOTFOUND: none does, and the message lists those that could be meant; TD_E_ARG: several do. `where` is in front
 * of messages. */
td_status td_hub_gguf_pick(const char *const *names, size_t n, const char *selector, const char *where, size_t *pick,
                           td_error *err) TD_MUST_CHECK;

#endif
