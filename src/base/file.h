/* file.h - whole small files, and read-only maps of large ones. */
#ifndef TD_BASE_FILE_H
#define TD_BASE_FILE_H

#include "base/status.h"

/* Reads a regular file of at most `ceiling` bytes into *data (td_free), NUL-terminated; *size excludes the NUL.
 * Errors: TD_E_NOTFOUND, TD_E_IO (a directory, a FIFO, a short read), TD_E_LIMIT, TD_E_NOMEM; each names the path. */
td_status td_file_read(const char *path, size_t ceiling, char **data, size_t *size, td_error *err) TD_MUST_CHECK;

typedef struct td_map {
    const uint8_t *data; /* NULL when size is 0 */
    size_t size;
} td_map;

/* Maps a regular file read-only. The size is that at open; a file that shrinks while it is mapped ends the process
 * (SIGBUS), as for every mapped reader: replace model files by rename, never in place. */
td_status td_map_open(td_map *map, const char *path, td_error *err) TD_MUST_CHECK;
void td_map_close(td_map *map);
/* Tells the system that [from, to) of a map will not be read soon: its whole pages leave the process. Reading them
 * again brings them back. Only for parts of maps: other memory would lose what it holds. */
void td_map_forget(const uint8_t *from, const uint8_t *to);

bool td_file_exists(const char *path);
bool td_dir_exists(const char *path);

/* "a/b" from ("a", "b"); td_free. NULL: out of memory. */
char *td_path_join(const char *dir, const char *name);

#endif
