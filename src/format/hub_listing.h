/* hub_listing.h - what the hub says is in a repository, and which of it a model needs.
 *
 * Source: GET /api/models/<id>/revision/<revision>?blobs=true, an object with "sha" (the commit) and "siblings", an
 * array of {"rfilename", "size", "blobId" (git's name of the content), "lfs": {"sha256", "size"} for large files}.
 * Mirrors leave out sizes and checksums; the headers of the files have them too. */
#ifndef TD_FORMAT_HUB_LISTING_H
#define TD_FORMAT_HUB_LISTING_H

#include "format/hub.h"
#include "format/hub_digest.h"
#include "format/hub_names.h"
#include "format/name_map.h"
#include "format/shard_index.h"

#define TD_HUB_LISTING_MAX_BYTES (64u << 20)

typedef struct td_hub_file {
    const char *name;                       /* in td_hub_listing.names; safe below a directory */
    char checksum[TD_HUB_DIGEST_TEXT_SIZE]; /* SHA-256 (64 digits) or git's SHA-1 (40 digits); "": not known yet */
    bool has_size;
    uint64_t size;
    bool wanted;
} td_hub_file;

typedef struct td_hub_listing {
    char commit[41];
    td_hub_file *files; /* [names.n] */
    td_hub_strings names;
    td_name_map by_name; /* name -> td_hub_file */
} td_hub_listing;

/* `where` names the text. Free with td_hub_listing_free. A file name that could lead out of the cache, a name twice, a
 * commit or checksum that is none: TD_E_FORMAT. On error *listing is empty. */
td_status td_hub_listing_parse(td_hub_listing *listing, const char *text, size_t size, const char *where,
                               td_error *err) TD_MUST_CHECK;
void td_hub_listing_free(td_hub_listing *listing);

/* NULL when it is not there. */
td_hub_file *td_hub_listing_find(td_hub_listing *listing, const char *name);

/* Marks what a model needs, all but the shards of an index: the configuration, tokenizer and chat template, weights as
 * td_weight_files_list would choose them, or the pieces of the GGUF file id->file; and what opt->include asks for.
 * *index: the shard index, wanted too, or NULL. TD_E_NOTFOUND: there is no such model, with what there is instead. */
td_status td_hub_listing_choose(td_hub_listing *listing, const td_hub_id *id, const td_hub_options *opt,
                                td_hub_file **index, td_error *err) TD_MUST_CHECK;
/* Marks the shards that the index names. TD_E_NOTFOUND: the repository lacks one. */
td_status td_hub_listing_choose_shards(td_hub_listing *listing, const td_shard_index *index, const char *where,
                                       td_error *err) TD_MUST_CHECK;

#endif
