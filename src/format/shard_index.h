/* shard_index.h - model.safetensors.index.json: which file of a sharded checkpoint holds which tensor.
 *
 * Source: the index that Hugging Face writes beside its shards, {"metadata": {...}, "weight_map": {tensor: file}}.
 * Only weight_map is used; metadata.total_size is known to be wrong in published re-quantisations. */
#ifndef TD_FORMAT_SHARD_INDEX_H
#define TD_FORMAT_SHARD_INDEX_H

#include "format/name_map.h"
#include "tandem.h"

#define TD_SHARD_INDEX_FILE "model.safetensors.index.json"
#define TD_SHARD_INDEX_MAX_BYTES 100000000u

typedef struct td_shard_entry {
    const char *tensor;
    uint32_t shard; /* index into td_shard_index.shards */
} td_shard_entry;

typedef struct td_shard_index {
    td_shard_entry *entries; /* in the order of the text */
    size_t n_entries;
    const char **shards; /* file names, each once, in the order of their first mention */
    size_t n_shards;
    td_name_map by_tensor; /* name -> td_shard_entry */
    char *names;           /* owns every string */
} td_shard_index;

/* Reads the text of an index. Each file name is a single path component that ends in .safetensors; a name that could
 * lead elsewhere ("../../x", "/x", ".x", "a\\b") is an error. `where` names the text. Free with td_shard_index_free.
 * Errors: TD_E_FORMAT (with the byte), TD_E_NOMEM. On error *index is empty. */
td_status td_shard_index_parse(td_shard_index *index, const char *text, size_t size, const char *where,
                               td_error *err) TD_MUST_CHECK;
void td_shard_index_free(td_shard_index *index);

#endif
