/* cache_file.c - writing. The file grows beside its place, locked so that two savers cannot mix, and is synced before
 * it takes the place of the old one; then the directory is, so that the new name is as durable as the bytes. What a
 * saver that was killed leaves behind is overwritten by the next. */
#include "cache/cache_file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "cache/cache_file_format.h"

bool (*td_cache_file_step)(const char *what);

typedef struct writer {
    const td_prompt_cache *c;
    td_cache_file_header header;
    const td_cache_node **node; /* [header.n_pages] */
    const td_token *tokens;
    td_crc32c crc;
    uint8_t *page; /* one, as it is written */
    int fd;
    uint32_t section, check;
} writer;

/* ---- bytes ---- */

static bool may(const char *what) {
    if (!td_cache_file_step || td_cache_file_step(what))
        return true;
    errno = EIO;
    return false;
}

static bool put(writer *w, const void *bytes, size_t n) {
    const uint8_t *p = bytes;
    w->check = td_crc32c_add(&w->crc, w->check, bytes, n);
    while (n > 0) {
        ssize_t done = may("write") ? write(w->fd, p, n < (size_t)1 << 30 ? n : (size_t)1 << 30) : -1;
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return false;
        p += done;
        n -= (size_t)done;
    }
    return true;
}

static void begin_section(writer *w) {
    w->check = td_cache_file_begin_check(&w->crc, ++w->section);
}

static bool end_section(writer *w) {
    uint8_t check[TD_CACHE_FILE_CHECK];
    td_cache_put_u32(check, w->check);
    return put(w, check, sizeof check);
}

/* ---- sections ---- */

static bool write_header(writer *w) {
    uint8_t bytes[TD_CACHE_FILE_HEADER];
    td_cache_file_put_header(&w->header, bytes, &w->crc);
    return put(w, bytes, sizeof bytes);
}

static bool write_tokens(writer *w) {
    const td_cache_file_header *h = &w->header;
    size_t n = 4 * (size_t)h->n_tokens + h->n_pages;
    uint8_t *bytes = td_malloc(n), *p = bytes;
    if (!bytes) {
        errno = ENOMEM;
        return false;
    }
    for (uint32_t i = 0; i < h->n_tokens; i++, p += 4)
        td_cache_put_u32(p, (uint32_t)w->tokens[i]);
    for (uint32_t i = 0; i < h->n_pages; i++)
        *p++ = w->node[i]->has_windows;
    begin_section(w);
    bool ok = put(w, bytes, n) && end_section(w);
    int saved = errno;
    td_free(bytes);
    errno = saved;
    return ok;
}

/* The rows of a page that have a meaning; elsewhere may lie anything, also of other conversations. */
static void copy_rows(const td_kv_layout *kv, uint32_t group, uint32_t n, uint8_t *to, const uint8_t *from) {
    size_t element = td_kv_type_bytes(kv->type);
    memset(to, 0, kv->group[group].page_bytes);
    for (uint32_t l = 0; l < kv->n_layers; l++) {
        const td_kv_layer *x = &kv->layer[l];
        size_t row = x->head_dim * element, head = row * kv->page_tokens;
        for (uint32_t h = 0; h < x->n_kv_heads && x->group == group; h++) {
            memcpy(to + x->k_offset + h * head, from + x->k_offset + h * head, n * row);
            memcpy(to + x->v_offset + h * head, from + x->v_offset + h * head, n * row);
        }
    }
}

static bool write_pages(writer *w) {
    const td_kv_layout *kv = &w->c->model->kv;
    for (uint32_t i = 0; i < w->header.n_pages; i++) {
        uint32_t left = w->header.n_tokens - i * kv->page_tokens, n = left < kv->page_tokens ? left : kv->page_tokens;
        for (uint32_t g = 0; g < kv->n_groups; g++) {
            if (!w->node[i]->page[g])
                continue;
            copy_rows(kv, g, n, w->page, w->node[i]->page[g]);
            begin_section(w);
            if (!put(w, w->page, kv->group[g].page_bytes) || !end_section(w))
                return false;
        }
    }
    return true;
}

/* The node's snapshot with the lowest position past `after`, if it is within the tokens. */
static const td_cache_snapshot *next_snapshot(const writer *w, const td_cache_node *x, uint32_t after) {
    const td_cache_snapshot *next = NULL;
    for (const td_cache_snapshot *s = x->snapshots; s; s = s->next)
        if (s->position > after && s->position <= w->header.n_tokens && (!next || s->position < next->position))
            next = s;
    return next;
}

static bool write_snapshot(writer *w, const td_cache_snapshot *s) {
    uint8_t head[8];
    td_cache_put_u32(head, s->position);
    td_cache_put_u32(head + 4, s->hidden != NULL);
    begin_section(w);
    return put(w, head, sizeof head) && put(w, s->state, w->header.snapshot_bytes) &&
           (!s->hidden || put(w, s->hidden, w->header.n_embd * sizeof(float))) && end_section(w);
}

static bool write_all(writer *w) {
    if (!write_header(w) || !write_tokens(w) || !write_pages(w))
        return false;
    uint32_t position = 0;
    for (uint32_t i = 0; i < w->header.n_pages; i++)
        for (const td_cache_snapshot *s; (s = next_snapshot(w, w->node[i], position)); position = s->position)
            if (!write_snapshot(w, s))
                return false;
    return true;
}

/* ---- what is to be written ---- */

static void measure(writer *w) {
    const td_kv_layout *kv = &w->c->model->kv;
    td_cache_file_header *h = &w->header;
    h->n_snapshots = 0;
    h->file_bytes = TD_CACHE_FILE_HEADER + 4 * (uint64_t)h->n_tokens + h->n_pages + TD_CACHE_FILE_CHECK;
    for (uint32_t i = 0; i < h->n_pages; i++) {
        for (uint32_t g = 0; g < kv->n_groups; g++)
            h->file_bytes += w->node[i]->page[g] ? kv->group[g].page_bytes + TD_CACHE_FILE_CHECK : 0;
        uint32_t position = 0;
        for (const td_cache_snapshot *s; (s = next_snapshot(w, w->node[i], position)); position = s->position) {
            h->n_snapshots++;
            h->file_bytes += 8 + h->snapshot_bytes + (s->hidden ? h->n_embd * sizeof(float) : 0) + TD_CACHE_FILE_CHECK;
        }
    }
}

static td_status collect(writer *w, const td_token *tokens, size_t n, td_error *err) {
    uint32_t n_tokens;
    const td_cache_node *x = td_cache_tree_path(w->c, tokens, n < UINT32_MAX ? (uint32_t)n : UINT32_MAX, &n_tokens);
    if (!x)
        return td_fail(err, TD_E_NOTFOUND, "nothing of these %zu tokens is in the prompt cache", n);
    w->header.n_tokens = n_tokens;
    w->header.n_pages = x->depth;
    w->tokens = tokens;
    size_t largest = 0;
    for (uint32_t g = 0; g < w->header.n_groups; g++)
        largest = w->header.group[g].page_bytes > largest ? w->header.group[g].page_bytes : largest;
    w->node = td_calloc(x->depth, sizeof *w->node);
    w->page = td_malloc(largest);
    if (!w->node || !w->page)
        return td_fail(err, TD_E_NOMEM, "out of memory for saving %u pages", x->depth);
    for (; x->parent; x = x->parent)
        w->node[x->depth - 1] = x;
    measure(w);
    return TD_OK;
}

/* ---- the file ---- */

static td_status cannot(const char *path, const char *what, td_error *err) {
    return td_fail(err, TD_E_IO, "%s: cannot %s: %s", path, what, strerror(errno));
}

/* A file of ours alone: locked, and still the one of this name. */
static td_status open_beside(const char *tmp, int *fd, td_error *err) {
    struct stat ours, named;
    *fd = may("open") ? open(tmp, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600) : -1;
    if (*fd < 0)
        return cannot(tmp, "create", err);
    bool mine = flock(*fd, LOCK_EX | LOCK_NB) == 0 && fstat(*fd, &ours) == 0 && lstat(tmp, &named) == 0 &&
                ours.st_dev == named.st_dev && ours.st_ino == named.st_ino && S_ISREG(ours.st_mode);
    if (mine && ftruncate(*fd, 0) == 0)
        return TD_OK;
    td_status st = mine ? cannot(tmp, "write", err) : td_fail(err, TD_E_IO, "%s: another is writing it", tmp);
    close(*fd);
    return st;
}

/* Some filesystems cannot sync a directory; the file is in place all the same. */
static td_status sync_directory(const char *path, td_error *err) {
    const char *slash = strrchr(path, '/');
    char *dir = slash ? td_strndup(path, slash == path ? 1 : (size_t)(slash - path)) : td_strdup(".");
    int fd = dir && may("sync directory") ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL || errno == ENOTSUP);
    int saved = dir ? errno : ENOMEM;
    if (fd >= 0)
        close(fd);
    td_free(dir);
    errno = saved;
    return ok ? TD_OK : cannot(path, "make the new name durable", err);
}

static td_status replace(writer *w, const char *path, const char *tmp, td_error *err) {
    TD_TRY(open_beside(tmp, &w->fd, err));
    td_status st = TD_OK;
    if (!write_all(w))
        st = cannot(tmp, "write", err);
    else if (!may("sync") || fsync(w->fd) != 0)
        st = cannot(tmp, "sync", err);
    else if (!may("rename") || rename(tmp, path) != 0)
        st = cannot(path, "replace", err);
    if (st != TD_OK)
        unlink(tmp);
    close(w->fd); /* synced: nothing is left to fail */
    return st == TD_OK ? sync_directory(path, err) : st;
}

static td_status save(writer *w, const char *path, td_error *err) {
    td_buf name;
    td_buf_init(&name, strlen(path) + 5);
    (void)td_buf_printf(&name, "%s.tmp", path);
    char *tmp = td_buf_steal(&name);
    if (!tmp)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", path);
    td_status st = replace(w, path, tmp, err);
    td_free(tmp);
    return st;
}

td_status td_prompt_cache_save(const td_prompt_cache *c, const td_token *tokens, size_t n, const char *path,
                               const td_identity *id, td_cache_file_info *info, td_error *err) {
    writer *w = td_calloc(1, sizeof *w); /* its tables are large for a stack */
    if (!w)
        return td_fail(err, TD_E_NOMEM, "out of memory for saving");
    w->c = c;
    w->header = td_cache_file_header_of(c, id);
    td_crc32c_init(&w->crc);
    td_status st = collect(w, tokens, n, err);
    if (st == TD_OK)
        st = save(w, path, err);
    if (st == TD_OK && info)
        *info = (td_cache_file_info){.n_tokens = w->header.n_tokens, .n_bytes = w->header.file_bytes};
    td_free(w->node);
    td_free(w->page);
    td_free(w);
    return st;
}
