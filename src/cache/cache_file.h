/* cache_file.h - a conversation's part of the prompt cache as a file, to be taken up after a restart.
 *
 * The file holds the tokens of one path through the tree, its pages (windowed ones where they are there), and its
 * snapshots. Numbers are little-endian; every section ends with its CRC-32C, which also covers the section's number:
 *
 *     header     184 bytes: magic, version, identity, sizes of everything, length of the file
 *     tokens     [n_tokens] i32, [n_pages] u8: whether the windowed pages follow
 *     pages      of each page, each group: page_bytes; rows past the tokens and gaps are zero
 *     snapshots  position u32, has_hidden u32, state, hidden if there is one; positions ascending
 *
 * A file is written beside its place and takes it only when it is whole and on the disk: whatever happens on the way,
 * the old file stays. What is read is bounded by the length of the file, and nothing of it reaches the cache before all
 * of it has been checked. A conversation is private: files can be read by their owner only. */
#ifndef TD_CACHE_CACHE_FILE_H
#define TD_CACHE_CACHE_FILE_H

#include "cache/identity.h"
#include "cache/prompt_cache.h"

typedef struct td_cache_file_info {
    uint32_t n_tokens;
    uint64_t n_bytes; /* of the file */
} td_cache_file_info;

/* Writes what the cache has of tokens[0..n), from the first on; info (may be NULL): how much that is. The file at
 * `path` is replaced. TD_E_NOTFOUND: it has nothing. TD_E_IO: the disk is full, another is writing the same file, ...;
 * the old file is as it was. */
td_status td_prompt_cache_save(const td_prompt_cache *cache, const td_token *tokens, size_t n, const char *path,
                               const td_identity *id, td_cache_file_info *info, td_error *err) TD_MUST_CHECK;

/* Adds a file's conversation to the cache. *tokens [info->n_tokens] is the caller's (td_free), NULL on failure.
 * Errors: TD_E_NOTFOUND, TD_E_IO, TD_E_FORMAT (damage, with the byte as position), TD_E_UNSUPPORTED (another version),
 * TD_E_MODEL (of another model, or of this one run otherwise), TD_E_LIMIT (it does not fit the cache's or the pool's
 * memory), TD_E_NOMEM. */
td_status td_prompt_cache_load(td_prompt_cache *cache, const char *path, const td_identity *id, td_token **tokens,
                               td_cache_file_info *info, td_error *err) TD_MUST_CHECK;

/* The same of bytes in memory (tests, fuzzing). */
td_status td_prompt_cache_parse(td_prompt_cache *cache, const uint8_t *data, size_t size, const td_identity *id,
                                td_token **tokens, td_cache_file_info *info, td_error *err) TD_MUST_CHECK;

/* Tests only: asked before every step of a save that can fail ("open", "write", "sync", "rename", "sync directory");
 * false: it fails. NULL: nobody is asked. */
extern bool (*td_cache_file_step)(const char *what);

#endif
