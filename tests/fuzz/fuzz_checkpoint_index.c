/* fuzz_checkpoint_index.c - libFuzzer target of the shard index and of the JSON trees.
 *
 * No index leads out of its directory: every shard name that is accepted is a plain one. And a text that either reader
 * accepts is JSON to the other too, up to what only one of them checks. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "format/checkpoint.h"
#include "format/shard_index.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_names(const td_shard_index *x) {
    for (size_t i = 0; i < x->n_shards; i++)
        if (strpbrk(x->shards[i], "/\\") || x->shards[i][0] == '.' || !strstr(x->shards[i], ".safetensors"))
            abort();
    for (size_t i = 0; i < x->n_entries; i++) {
        const td_name_slot *slot = td_name_map_find(&x->by_tensor, x->entries[i].tensor);
        if (!slot || slot->value != &x->entries[i] || x->entries[i].shard >= x->n_shards)
            abort();
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    long live = td_alloc_live();
    td_shard_index x;
    td_error err;
    json_t *tree;
    td_status indexed = td_shard_index_parse(&x, (const char *)data, size, "fuzz", &err);
    td_status parsed = td_json_parse((const char *)data, size, 8, "fuzz", &tree, &err);
    if ((indexed != TD_OK && indexed != TD_E_FORMAT) || (parsed != TD_OK && parsed != TD_E_FORMAT))
        abort();
    if (indexed == TD_OK) {
        check_names(&x);
        const json_t *map = json_object_get(tree, "weight_map");
        if (parsed == TD_OK && json_object_size(map) != x.n_entries)
            abort();
    }
    json_decref(tree);
    td_shard_index_free(&x);
    if (td_alloc_live() != live)
        abort();
    return 0;
}
