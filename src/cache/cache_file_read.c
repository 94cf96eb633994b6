/* cache_file_read.c - reading. Everything is read and checked first, into pages and snapshots that nobody else sees;
 * only then it goes into the tree. What is allocated is never more than the file is long, and some words a token. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "cache/cache_file_format.h"

typedef struct reader {
    td_prompt_cache *c;
    td_cache_file_header header;
    td_crc32c crc;
    int fd;              /* or */
    const uint8_t *data; /* bytes in memory */
    uint64_t size, at;
    uint32_t section, check;
    td_error *err;
    /* what has been read */
    td_token *tokens;
    uint8_t *has_windows; /* [n_pages] */
    uint8_t **page;       /* [n_pages][n_groups] NULL where there is none */
    td_snapshot *snapshot;
} reader;

/* ---- bytes ---- */

static td_status damaged(const reader *r, const char *what) {
    return td_fail_at(r->err, TD_E_FORMAT, (int64_t)r->at, "damaged: %s, at byte %llu of %llu", what,
                      (unsigned long long)r->at, (unsigned long long)r->size);
}

static td_status get(reader *r, void *to, uint64_t n) {
    uint8_t *p = to;
    if (n > r->size - r->at)
        return damaged(r, "it ends too early");
    if (r->data) {
        memcpy(p, r->data + r->at, n);
    } else {
        for (uint64_t have = 0; have < n;) {
            ssize_t got = read(r->fd, p + have, n - have);
            if (got < 0 && errno == EINTR)
                continue;
            if (got <= 0)
                return td_fail_at(r->err, TD_E_IO, (int64_t)(r->at + have), "reading stopped at byte %llu: %s",
                                  (unsigned long long)(r->at + have),
                                  got < 0 ? strerror(errno) : "the file became shorter");
            have += (uint64_t)got;
        }
    }
    r->at += n;
    r->check = td_crc32c_add(&r->crc, r->check, to, n);
    return TD_OK;
}

static void begin_section(reader *r) {
    r->check = td_cache_file_begin_check(&r->crc, ++r->section);
}

static td_status end_section(reader *r, const char *what) {
    uint8_t stored[TD_CACHE_FILE_CHECK];
    uint32_t check = r->check;
    TD_TRY(get(r, stored, sizeof stored));
    return check == td_cache_get_u32(stored) ? TD_OK : damaged(r, what);
}

/* ---- sections ---- */

static td_status check_model(const reader *r, const td_identity *id) {
    td_cache_file_header want = td_cache_file_header_of(r->c, id);
    const td_cache_file_header *h = &r->header;
    bool same = strcmp(h->id.text, want.id.text) == 0 && h->page_tokens == want.page_tokens &&
                h->n_groups == want.n_groups && h->n_embd == want.n_embd && h->snapshot_bytes == want.snapshot_bytes;
    for (uint32_t g = 0; g < TD_KV_MAX_GROUPS && same; g++)
        same = h->group[g].window == want.group[g].window && h->group[g].page_bytes == want.group[g].page_bytes;
    return same ? TD_OK
                : td_fail(r->err, TD_E_MODEL,
                          "saved by another model, or by this one run in another way (its mark is %.16s..., expected "
                          "%.16s...)",
                          h->id.text, want.id.text);
}

/* The counts are such that what they promise fits the file. */
static td_status check_counts(const reader *r) {
    const td_cache_file_header *h = &r->header;
    uint64_t left = r->size - r->at, page = h->page_tokens;
    if (h->file_bytes != r->size)
        return td_fail_at(r->err, TD_E_FORMAT, (int64_t)r->size, "damaged: it has %llu bytes, expected %llu",
                          (unsigned long long)r->size, (unsigned long long)h->file_bytes);
    if (h->n_tokens < 1 || h->n_tokens > INT32_MAX || h->n_pages != (h->n_tokens + page - 1) / page ||
        (uint64_t)h->n_tokens * 4 + h->n_pages > left)
        return damaged(r, "its counts of tokens and pages contradict each other or its length");
    if (h->n_snapshots &&
        (!h->snapshot_bytes || h->n_snapshots > h->n_tokens || h->n_snapshots > left / (h->snapshot_bytes + 8)))
        return damaged(r, "its count of snapshots contradicts its length");
    return TD_OK;
}

static td_status read_header(reader *r, const td_identity *id) {
    uint8_t bytes[TD_CACHE_FILE_HEADER];
    TD_TRY(get(r, bytes, sizeof bytes));
    TD_TRY(td_cache_file_get_header(&r->header, bytes, &r->crc, r->err));
    TD_TRY(check_model(r, id));
    return check_counts(r);
}

static td_status read_tokens(reader *r) {
    const td_cache_file_header *h = &r->header;
    r->tokens = td_calloc(h->n_tokens, sizeof *r->tokens);
    r->has_windows = td_calloc(h->n_pages, 1);
    r->page = td_calloc((size_t)h->n_pages * h->n_groups, sizeof *r->page);
    r->snapshot = td_calloc(h->n_snapshots, sizeof *r->snapshot);
    if (!r->tokens || !r->has_windows || !r->page || !r->snapshot)
        return td_fail(r->err, TD_E_NOMEM, "out of memory for %u tokens", h->n_tokens);
    begin_section(r);
    TD_TRY(get(r, r->tokens, 4 * (uint64_t)h->n_tokens));
    TD_TRY(get(r, r->has_windows, h->n_pages));
    TD_TRY(end_section(r, "the checksum of its tokens does not match"));
    for (uint32_t i = 0; i < h->n_tokens; i++) {
        r->tokens[i] = (td_token)td_cache_get_u32((const uint8_t *)&r->tokens[i]);
        if (r->tokens[i] < 0 || (uint32_t)r->tokens[i] >= r->c->model->info.n_vocab)
            return damaged(r, "a token is outside the vocabulary");
    }
    return TD_OK;
}

/* What it will cost is known now. */
static td_status check_budget(const reader *r) {
    const td_cache_file_header *h = &r->header;
    uint64_t need = 0, most = r->c->stats.max_bytes;
    for (uint32_t i = 0; i < h->n_pages; i++)
        for (uint32_t g = 0; g < h->n_groups; g++)
            need += !h->group[g].window || r->has_windows[i] ? td_kv_page_cost(r->c->pool, g) : 0;
    need += h->n_snapshots * (h->snapshot_bytes + h->n_embd * sizeof(float));
    return need <= most ? TD_OK
                        : td_fail(r->err, TD_E_LIMIT, "needs %llu bytes of the prompt cache, which holds %llu",
                                  (unsigned long long)need, (unsigned long long)most);
}

static td_status read_pages(reader *r) {
    const td_cache_file_header *h = &r->header;
    for (uint32_t i = 0; i < h->n_pages; i++)
        for (uint32_t g = 0; g < h->n_groups; g++) {
            uint8_t **page = &r->page[(size_t)i * h->n_groups + g];
            if (h->group[g].window && !r->has_windows[i])
                continue;
            if (h->group[g].page_bytes > r->size - r->at)
                return damaged(r, "it ends in a page");
            TD_TRY(td_kv_page_take(r->c->pool, g, page, r->err));
            begin_section(r);
            TD_TRY(get(r, *page, h->group[g].page_bytes));
            TD_TRY(end_section(r, "the checksum of a page does not match"));
        }
    return TD_OK;
}

static td_status read_snapshot(reader *r, td_snapshot *s, uint32_t after) {
    const td_cache_file_header *h = &r->header;
    uint8_t head[8];
    begin_section(r);
    TD_TRY(get(r, head, sizeof head));
    s->position = td_cache_get_u32(head);
    s->has_hidden = td_cache_get_u32(head + 4);
    uint64_t hidden = s->has_hidden ? h->n_embd * sizeof(float) : 0;
    if (s->position <= after || s->position > h->n_tokens || td_cache_get_u32(head + 4) > 1 ||
        h->snapshot_bytes + hidden > r->size - r->at)
        return damaged(r, "a snapshot's position or length is impossible");
    s->state = r->c->model->be->ops->alloc(r->c->model->be, h->snapshot_bytes);
    s->hidden = s->has_hidden ? td_malloc_aligned(hidden) : NULL;
    if (!s->state || (s->has_hidden && !s->hidden))
        return td_fail(r->err, TD_E_NOMEM, "out of memory for a snapshot");
    TD_TRY(get(r, s->state, h->snapshot_bytes));
    if (hidden)
        TD_TRY(get(r, s->hidden, hidden));
    return end_section(r, "the checksum of a snapshot does not match");
}

static td_status read_all(reader *r, const td_identity *id) {
    TD_TRY(read_header(r, id));
    TD_TRY(read_tokens(r));
    TD_TRY(check_budget(r));
    TD_TRY(read_pages(r));
    for (uint32_t i = 0; i < r->header.n_snapshots; i++)
        TD_TRY(read_snapshot(r, &r->snapshot[i], i ? r->snapshot[i - 1].position : 0));
    return r->at == r->size ? TD_OK : damaged(r, "something follows its end");
}

/* ---- into the tree ---- */

static td_status add_pages(const reader *r, td_cache_trail *t) {
    const td_cache_file_header *h = &r->header;
    for (uint32_t i = 0; i < h->n_pages; i++) {
        uint32_t left = h->n_tokens - i * h->page_tokens;
        td_cache_page p = {.tokens = r->tokens + i * h->page_tokens,
                           .n = left < h->page_tokens ? left : h->page_tokens,
                           .run = t->run};
        memcpy(p.page, r->page + (size_t)i * h->n_groups, h->n_groups * sizeof *r->page);
        if (!td_cache_trail_add(t, &p))
            return td_fail(r->err, TD_E_LIMIT,
                           "the prompt cache has no room beside what is in use for more than %u of "
                           "%u tokens",
                           i * h->page_tokens, h->n_tokens);
    }
    return TD_OK;
}

static td_status add_all(reader *r) {
    td_cache_trail t;
    td_cache_trail_open(&t, r->c);
    td_status st = add_pages(r, &t);
    for (uint32_t i = 0; i < r->header.n_snapshots && st == TD_OK; i++)
        if (!td_cache_trail_keep(&t, r->tokens, &r->snapshot[i]))
            st = td_fail(r->err, TD_E_LIMIT, "the prompt cache has no room beside what is in use for a snapshot");
    td_cache_trail_close(&t);
    return st;
}

static void let_go(reader *r) {
    const td_cache_file_header *h = &r->header;
    td_backend *be = r->c->model->be;
    for (size_t i = 0; r->page && i < (size_t)h->n_pages * h->n_groups; i++)
        if (r->page[i])
            td_kv_page_drop(r->c->pool, r->page[i]);
    for (uint32_t i = 0; r->snapshot && i < h->n_snapshots; i++) {
        if (r->snapshot[i].state)
            be->ops->free(be, r->snapshot[i].state);
        td_free_aligned(r->snapshot[i].hidden);
    }
    td_free(r->page);
    td_free(r->snapshot);
    td_free(r->has_windows);
    td_free(r->tokens);
}

static td_status load(td_prompt_cache *c, int fd, const uint8_t *data, uint64_t size, const td_identity *id,
                      td_token **tokens, td_cache_file_info *info, td_error *err) {
    *tokens = NULL;
    reader *r = td_calloc(1, sizeof *r);
    if (!r)
        return td_fail(err, TD_E_NOMEM, "out of memory for reading");
    *r = (reader){.c = c, .fd = fd, .data = data, .size = size, .err = err};
    td_crc32c_init(&r->crc);
    td_status st = read_all(r, id);
    if (st == TD_OK)
        st = add_all(r);
    if (st == TD_OK) {
        *info = (td_cache_file_info){.n_tokens = r->header.n_tokens, .n_bytes = size};
        *tokens = r->tokens;
        r->tokens = NULL;
    }
    let_go(r);
    td_free(r);
    return st;
}

td_status td_prompt_cache_parse(td_prompt_cache *c, const uint8_t *data, size_t size, const td_identity *id,
                                td_token **tokens, td_cache_file_info *info, td_error *err) {
    static const uint8_t nothing;
    return load(c, -1, size ? data : &nothing, size, id, tokens, info, err);
}

td_status td_prompt_cache_load(td_prompt_cache *c, const char *path, const td_identity *id, td_token **tokens,
                               td_cache_file_info *info, td_error *err) {
    *tokens = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* a FIFO must not hang us */
    if (fd < 0)
        return td_fail(err, errno == ENOENT || errno == ENOTDIR ? TD_E_NOTFOUND : TD_E_IO, "%s: %s", path,
                       strerror(errno));
    struct stat about;
    td_status st;
    if (fstat(fd, &about) != 0 || !S_ISREG(about.st_mode)) {
        st = td_fail(err, TD_E_IO, "%s: not a regular file", path);
    } else {
        st = load(c, fd, NULL, (uint64_t)about.st_size, id, tokens, info, err);
        if (st != TD_OK)
            st = td_error_prefix(err, st, "%s", path);
    }
    close(fd);
    return st;
}
