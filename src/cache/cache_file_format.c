/* cache_file_format.c - the header, field by field. */
#include "cache/cache_file_format.h"

#include <string.h>

void td_cache_put_u32(uint8_t *p, uint32_t v) {
    for (int i = 0; i < 4; i++)
        p[i] = (uint8_t)(v >> 8 * i);
}

uint32_t td_cache_get_u32(const uint8_t *p) {
    return (uint32_t)p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

static void put_u64(uint8_t *p, uint64_t v) {
    td_cache_put_u32(p, (uint32_t)v);
    td_cache_put_u32(p + 4, (uint32_t)(v >> 32));
}

static uint64_t get_u64(const uint8_t *p) {
    return td_cache_get_u32(p) | (uint64_t)td_cache_get_u32(p + 4) << 32;
}

uint32_t td_cache_file_begin_check(const td_crc32c *crc, uint32_t section) {
    uint8_t number[4];
    td_cache_put_u32(number, section);
    return td_crc32c_add(crc, 0, number, sizeof number);
}

td_cache_file_header td_cache_file_header_of(const td_prompt_cache *c, const td_identity *id) {
    const td_model *m = c->model;
    td_cache_file_header h = {.id = *id,
                              .page_tokens = m->kv.page_tokens,
                              .n_groups = m->kv.n_groups,
                              .n_embd = m->info.n_embd,
                              .snapshot_bytes = m->info.snapshot_bytes};
    for (uint32_t g = 0; g < h.n_groups; g++)
        h.group[g] = m->kv.group[g];
    return h;
}

/* Places of the fields. */
enum {
    AT_VERSION = 8,
    AT_IDENTITY = 12,
    AT_PAGE_TOKENS = AT_IDENTITY + TD_IDENTITY_CHARS,
    AT_N_GROUPS = AT_PAGE_TOKENS + 4,
    AT_N_TOKENS = AT_N_GROUPS + 4,
    AT_N_PAGES = AT_N_TOKENS + 4,
    AT_N_SNAPSHOTS = AT_N_PAGES + 4,
    AT_N_EMBD = AT_N_SNAPSHOTS + 4,
    AT_SNAPSHOT_BYTES = AT_N_EMBD + 4,
    AT_FILE_BYTES = AT_SNAPSHOT_BYTES + 8,
    AT_GROUPS = AT_FILE_BYTES + 8,
    GROUP_BYTES = 16, /* window u32, zero, page_bytes u64 */
    AT_CHECK = AT_GROUPS + GROUP_BYTES * TD_KV_MAX_GROUPS
};

_Static_assert(AT_CHECK + TD_CACHE_FILE_CHECK == TD_CACHE_FILE_HEADER, "the header's size is part of the format");

void td_cache_file_put_header(const td_cache_file_header *h, uint8_t out[TD_CACHE_FILE_HEADER], const td_crc32c *crc) {
    memset(out, 0, TD_CACHE_FILE_HEADER);
    memcpy(out, TD_CACHE_FILE_MAGIC, 8);
    td_cache_put_u32(out + AT_VERSION, TD_CACHE_FILE_VERSION);
    memcpy(out + AT_IDENTITY, h->id.text, TD_IDENTITY_CHARS);
    td_cache_put_u32(out + AT_PAGE_TOKENS, h->page_tokens);
    td_cache_put_u32(out + AT_N_GROUPS, h->n_groups);
    td_cache_put_u32(out + AT_N_TOKENS, h->n_tokens);
    td_cache_put_u32(out + AT_N_PAGES, h->n_pages);
    td_cache_put_u32(out + AT_N_SNAPSHOTS, h->n_snapshots);
    td_cache_put_u32(out + AT_N_EMBD, h->n_embd);
    put_u64(out + AT_SNAPSHOT_BYTES, h->snapshot_bytes);
    put_u64(out + AT_FILE_BYTES, h->file_bytes);
    for (uint32_t g = 0; g < TD_KV_MAX_GROUPS; g++) {
        td_cache_put_u32(out + AT_GROUPS + g * GROUP_BYTES, h->group[g].window);
        put_u64(out + AT_GROUPS + g * GROUP_BYTES + 8, h->group[g].page_bytes);
    }
    td_cache_put_u32(out + AT_CHECK, td_crc32c_add(crc, td_cache_file_begin_check(crc, 0), out, AT_CHECK));
}

td_status td_cache_file_get_header(td_cache_file_header *h, const uint8_t in[TD_CACHE_FILE_HEADER],
                                   const td_crc32c *crc, td_error *err) {
    *h = (td_cache_file_header){0};
    if (memcmp(in, TD_CACHE_FILE_MAGIC, 8) != 0)
        return td_fail_at(err, TD_E_FORMAT, 0, "not a saved prompt cache: it does not begin with \"TDcache\"");
    if (td_cache_get_u32(in + AT_VERSION) != TD_CACHE_FILE_VERSION)
        return td_fail_at(err, TD_E_UNSUPPORTED, AT_VERSION, "a saved prompt cache of version %u, expected %u",
                          td_cache_get_u32(in + AT_VERSION), TD_CACHE_FILE_VERSION);
    if (td_cache_get_u32(in + AT_CHECK) != td_crc32c_add(crc, td_cache_file_begin_check(crc, 0), in, AT_CHECK))
        return td_fail_at(err, TD_E_FORMAT, AT_CHECK, "damaged: the header's checksum does not match");
    memcpy(h->id.text, in + AT_IDENTITY, TD_IDENTITY_CHARS);
    h->page_tokens = td_cache_get_u32(in + AT_PAGE_TOKENS);
    h->n_groups = td_cache_get_u32(in + AT_N_GROUPS);
    h->n_tokens = td_cache_get_u32(in + AT_N_TOKENS);
    h->n_pages = td_cache_get_u32(in + AT_N_PAGES);
    h->n_snapshots = td_cache_get_u32(in + AT_N_SNAPSHOTS);
    h->n_embd = td_cache_get_u32(in + AT_N_EMBD);
    h->snapshot_bytes = get_u64(in + AT_SNAPSHOT_BYTES);
    h->file_bytes = get_u64(in + AT_FILE_BYTES);
    for (uint32_t g = 0; g < TD_KV_MAX_GROUPS; g++) {
        h->group[g].window = td_cache_get_u32(in + AT_GROUPS + g * GROUP_BYTES);
        h->group[g].page_bytes = get_u64(in + AT_GROUPS + g * GROUP_BYTES + 8);
    }
    return TD_OK;
}
