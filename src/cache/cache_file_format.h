/* cache_file_format.h - the header of a cache file and the order of its sections, for both directions. */
#ifndef TD_CACHE_CACHE_FILE_FORMAT_H
#define TD_CACHE_CACHE_FILE_FORMAT_H

#include "cache/cache_file.h"
#include "cache/crc32c.h"
#include "cache/prompt_tree.h"

#define TD_CACHE_FILE_MAGIC "TDcache\n"
#define TD_CACHE_FILE_VERSION 1u
#define TD_CACHE_FILE_HEADER 184u /* bytes, its check included */
#define TD_CACHE_FILE_CHECK 4u    /* bytes behind every section */

typedef struct td_cache_file_header {
    td_identity id;
    uint32_t page_tokens, n_groups, n_tokens, n_pages, n_snapshots, n_embd;
    uint64_t snapshot_bytes, file_bytes;
    td_kv_group group[TD_KV_MAX_GROUPS];
} td_cache_file_header;

/* What the header of a file of this cache's model says, but for what is in it. */
td_cache_file_header td_cache_file_header_of(const td_prompt_cache *c, const td_identity *id);

void td_cache_file_put_header(const td_cache_file_header *h, uint8_t out[TD_CACHE_FILE_HEADER], const td_crc32c *crc);
/* TD_E_FORMAT, TD_E_UNSUPPORTED. */
td_status td_cache_file_get_header(td_cache_file_header *h, const uint8_t in[TD_CACHE_FILE_HEADER],
                                   const td_crc32c *crc, td_error *err) TD_MUST_CHECK;

void td_cache_put_u32(uint8_t *p, uint32_t v);
uint32_t td_cache_get_u32(const uint8_t *p);

/* The check of a section begins with its number: header 0, tokens 1, then pages and snapshots as they come. */
uint32_t td_cache_file_begin_check(const td_crc32c *crc, uint32_t section);

#endif
