/* hub_blob.h - one file's content, into the cache: locked, resumed, verified, and only then under its name. */
#ifndef TD_FORMAT_HUB_BLOB_H
#define TD_FORMAT_HUB_BLOB_H

#include "base/log.h"
#include "format/hub_http.h"
#include "format/hub_listing.h"

typedef struct td_hub_place {
    const char *repo;     /* org/name, for messages */
    const char *repo_dir; /* <cache>/models--org--name, there already with blobs/ in it */
    const char *locks;    /* <cache>/.locks/models--org--name, there already */
    const td_log *log;
} td_hub_place;

/* Bytes counted for the bar of all files. */
typedef struct td_hub_tally {
    uint64_t done;
    bool (*tick)(void *user); /* may be NULL */
    void *user;
} td_hub_tally;

/* <repo_dir>/blobs/<checksum><suffix>; td_free, NULL: out of memory. */
char *td_hub_blob_path(const char *repo_dir, const char *checksum, const char *suffix);

/* Is the content there, in its full size? Its checksum was looked at when it came. */
bool td_hub_blob_exists(const char *repo_dir, const td_hub_file *file);
/* Bytes of it that an earlier, interrupted download has left. */
uint64_t td_hub_blob_started(const char *repo_dir, const td_hub_file *file);

/* Fetches `file` (its checksum and size are known) from `url` unless it exists. Waits for another process that is
 * fetching it. tally->done grows by file->size in all, and by nothing when the call fails. Statuses: see td_hub_fetch.
 */
td_status td_hub_blob_fetch(const td_hub_place *place, const td_hub_file *file, td_hub_http *http, const char *url,
                            td_hub_tally *tally, td_error *err) TD_MUST_CHECK;

#endif
