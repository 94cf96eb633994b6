/* hub_download.c - td_hub_fetch: from an id to a snapshot in the cache.
 *
 * The order makes every interruption harmless: list the repository at a revision, choose the files, see that the disk
 * has room, fetch each into blobs/, link it into the snapshot of the commit, and only then let refs/<revision> point
 * there. A snapshot that lacks files is never taken for a model (hub.c looks), and the next run finds the blobs that
 * are done and the bytes of the one that is not.
 *
 * Files come one after the other over one connection: the storages behind the hub fill a line with that, and a cut has
 * one file to resume. */
#include "format/hub.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file.h"
#include "base/log.h"
#include "format/checkpoint.h"
#include "format/hub_blob.h"
#include "format/hub_http.h"
#include "format/hub_listing.h"
#include "format/hub_names.h"
#include "format/json_scan.h"

#define SPARE_BYTES (16u << 20) /* that a disk keeps beside what is downloaded */

typedef struct download {
    const td_hub_options *opt;
    const td_hub_id *id;
    td_log log;
    td_hub_http *http;
    td_hub_listing listing;
    char *repo_dir, *locks, *snapshot; /* in the cache */
    td_hub_tally tally;
    uint64_t total; /* bytes of everything wanted */
} download;

td_hub_options td_hub_options_default(void) {
    return (td_hub_options){.attempts = 5, .backoff_ms = 500, .stall_s = 30};
}

static td_status no_memory(const download *d, td_error *err) {
    return td_fail(err, TD_E_NOMEM, "%s: out of memory", d->id->repo);
}

static bool on_tick(void *user) {
    const download *d = user;
    return !d->opt->progress || d->opt->progress(d->opt->user, "download", d->tally.done, d->total);
}

/* ---- directories ---- */

/* Makes `path` and what is above it; with `parents`, only what is above it. */
static td_status make_dirs(const char *path, bool parents, td_error *err) {
    char *copy = td_strdup(path);
    if (!copy)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", path);
    td_status st = TD_OK;
    for (char *p = copy + 1; st == TD_OK; p++) {
        char c = *p;
        if (c != '/' && c != '\0')
            continue;
        if (c == '\0' && parents)
            break;
        *p = '\0';
        if (mkdir(copy, 0777) != 0 && errno != EEXIST)
            st = td_fail(err, errno == ENOSPC ? TD_E_LIMIT : TD_E_IO, "cannot make the directory %s: %s", copy,
                         strerror(errno));
        *p = c;
        if (c == '\0')
            break;
    }
    td_free(copy);
    return st;
}

/* "<a>/<middle>/<b>"; NULL: out of memory. */
static char *path3(const char *a, const char *middle, const char *b) {
    td_buf buf;
    td_buf_init(&buf, PATH_MAX);
    (void)td_buf_printf(&buf, "%s/%s/%s", a, middle, b);
    return td_buf_steal(&buf);
}

/* "<path>.<process>.<count>.tmp": nobody else's. */
static char *temporary(const char *path) {
    static atomic_uint count;
    td_buf buf;
    td_buf_init(&buf, PATH_MAX);
    (void)td_buf_printf(&buf, "%s.%ld.%u.tmp", path, (long)getpid(), atomic_fetch_add(&count, 1));
    return td_buf_steal(&buf);
}

static td_status make_places(download *d, td_error *err) {
    const char *cache = d->opt->cache;
    d->repo_dir = td_hub_repo_dir(cache, d->id->repo);
    d->locks = d->repo_dir ? path3(cache, ".locks", strrchr(d->repo_dir, '/') + 1) : NULL;
    d->snapshot = d->repo_dir ? td_hub_snapshot_dir(d->repo_dir, d->listing.commit) : NULL;
    char *blobs = d->repo_dir ? td_path_join(d->repo_dir, "blobs") : NULL;
    td_status st = d->locks && d->snapshot && blobs ? TD_OK : no_memory(d, err);
    if (st == TD_OK)
        st = make_dirs(blobs, false, err);
    if (st == TD_OK)
        st = make_dirs(d->locks, false, err);
    td_free(blobs);
    return st;
}

/* ---- what is there ---- */

typedef struct text_sink {
    const download *d;
    td_buf text;
} text_sink;

static td_status on_text_begin(void *user, const td_hub_answer *answer, td_error *err) {
    text_sink *s = user;
    (void)answer, (void)err;
    td_buf_clear(&s->text);
    return TD_OK;
}

static td_status on_text(void *user, const char *bytes, size_t n, td_error *err) {
    text_sink *s = user;
    td_status st = td_buf_append(&s->text, bytes, n);
    if (st == TD_E_LIMIT)
        return td_fail(err, TD_E_FORMAT, "%s: the hub's list of files is longer than %u MiB", s->d->id->repo,
                       TD_HUB_LISTING_MAX_BYTES >> 20);
    return st == TD_OK ? TD_OK : no_memory(s->d, err);
}

static bool on_text_tick(void *user) {
    return on_tick((void *)((text_sink *)user)->d);
}

static const char *revision_of(const download *d) {
    return d->id->revision[0] ? d->id->revision : "main";
}

static td_status list(download *d, td_error *err) {
    text_sink sink = {.d = d};
    td_hub_answer answer;
    char prefix[TD_HUB_REPO_MAX + 40], where[TD_HUB_REPO_MAX + 40];
    snprintf(prefix, sizeof prefix, "api/models/%s/revision/", d->id->repo);
    snprintf(where, sizeof where, "%s: the hub's list of files", d->id->repo);
    char *url = td_hub_http_url(d->http, prefix, revision_of(d), false, "?blobs=true");
    if (!url)
        return no_memory(d, err);
    td_buf_init(&sink.text, TD_HUB_LISTING_MAX_BYTES);
    const td_hub_request r = {
        .url = url,
        .repo = d->id->repo,
        .begin = on_text_begin,
        .body = on_text,
        .tick = on_text_tick,
        .user = &sink,
    };
    td_status st = td_hub_http_run(d->http, &r, &answer, err);
    if (st == TD_OK)
        st = td_hub_listing_parse(&d->listing, td_buf_str(&sink.text), sink.text.size, where, err);
    td_buf_free(&sink.text);
    td_free(url);
    return st;
}

/* <endpoint>/<repo>/resolve/<commit>/<file> */
static char *file_url(const download *d, const td_hub_file *f) {
    char prefix[TD_HUB_REPO_MAX + 60];
    snprintf(prefix, sizeof prefix, "%s/resolve/%s/", d->id->repo, d->listing.commit);
    return td_hub_http_url(d->http, prefix, f->name, true, "");
}

/* Checksum and size of a file that the list has without them: out of its headers. */
static td_status look_up(download *d, td_hub_file *f, td_error *err) {
    char shown[TD_SHOWN_SIZE];
    td_hub_answer a;
    if (f->checksum[0] && f->has_size)
        return TD_OK;
    char *url = file_url(d, f);
    if (!url)
        return no_memory(d, err);
    const td_hub_request r = {
        .url = url, .repo = d->id->repo, .file = f->name, .head = true, .tick = on_tick, .user = d};
    td_status st = td_hub_http_run(d->http, &r, &a, err);
    td_free(url);
    TD_TRY(st);
    td_shown(shown, f->name, strlen(f->name));
    if (a.commit[0] && strcmp(a.commit, d->listing.commit) != 0)
        return td_fail(err, TD_E_FORMAT, "%s: %s: the server has commit %s, asked for %s", d->id->repo, shown, a.commit,
                       d->listing.commit);
    if (!a.etag[0] || !a.has_size || a.size > INT64_MAX)
        return td_fail(err, TD_E_FORMAT, "%s: %s: the server tells no %s", d->id->repo, shown,
                       a.etag[0] ? "size" : "checksum (ETag)");
    memcpy(f->checksum, a.etag, sizeof f->checksum);
    f->size = a.size;
    f->has_size = true;
    return TD_OK;
}

/* ---- files ---- */

static td_status link_failed(const char *path, td_error *err) {
    return td_fail(err, errno == ENOSPC ? TD_E_LIMIT : TD_E_IO, "%s: cannot link it: %s", path, strerror(errno));
}

/* snapshots/<commit>/<name> -> ../../blobs/<checksum>, by rename: a reader sees the old link or the new one. */
static td_status link_at(const char *path, const char *target, td_error *err) {
    char now[PATH_MAX];
    ssize_t n = readlink(path, now, sizeof now - 1);
    if (n >= 0 && (size_t)n == strlen(target) && memcmp(now, target, (size_t)n) == 0)
        return TD_OK;
    char *tmp = temporary(path);
    if (!tmp)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", path);
    td_status st = TD_OK;
    if (symlink(target, tmp) != 0) {
        st = link_failed(path, err);
    } else if (rename(tmp, path) != 0) {
        st = link_failed(path, err);
        unlink(tmp);
    }
    td_free(tmp);
    return st;
}

static td_status link_file(const download *d, const td_hub_file *f, td_error *err) {
    td_buf target;
    td_buf_init(&target, PATH_MAX);
    (void)td_buf_puts(&target, "../../");
    for (const char *p = f->name; *p; p++)
        if (*p == '/')
            (void)td_buf_puts(&target, "../");
    (void)td_buf_printf(&target, "blobs/%s", f->checksum);
    const char *text = td_buf_str(&target);
    char *path = td_path_join(d->snapshot, f->name);
    td_status st = text && path ? make_dirs(path, true, err) : no_memory(d, err);
    if (st == TD_OK)
        st = link_at(path, text, err);
    td_free(path);
    td_buf_free(&target);
    return st;
}

static td_status get(download *d, td_hub_file *f, td_error *err) {
    const td_hub_place place = {.repo = d->id->repo, .repo_dir = d->repo_dir, .locks = d->locks, .log = &d->log};
    if (td_hub_blob_exists(d->repo_dir, f)) {
        d->tally.done += f->size;
        return link_file(d, f, err);
    }
    char *url = file_url(d, f);
    td_status st = url ? TD_OK : no_memory(d, err);
    if (st == TD_OK)
        st = td_hub_blob_fetch(&place, f, d->http, url, &d->tally, err);
    td_free(url);
    return st == TD_OK ? link_file(d, f, err) : st;
}

/* Fetches the index, marks its shards. */
static td_status get_index(download *d, td_hub_file *f, td_error *err) {
    char *path = NULL, *text = NULL;
    size_t size;
    td_shard_index index;
    if (f->has_size && f->size > TD_SHARD_INDEX_MAX_BYTES)
        return td_fail(err, TD_E_LIMIT, "%s: %s has %llu bytes, expected at most %u", d->id->repo, f->name,
                       (unsigned long long)f->size, TD_SHARD_INDEX_MAX_BYTES);
    TD_TRY(look_up(d, f, err));
    TD_TRY(get(d, f, err));
    d->tally.done = 0; /* it counts with the others */
    path = td_hub_blob_path(d->repo_dir, f->checksum, "");
    td_status st = path ? td_file_read(path, TD_SHARD_INDEX_MAX_BYTES, &text, &size, err) : no_memory(d, err);
    if (st == TD_OK)
        st = td_shard_index_parse(&index, text, size, f->name, err);
    if (st != TD_OK)
        st = td_error_prefix(err, st, "%s", d->id->repo);
    if (st == TD_OK) {
        st = td_hub_listing_choose_shards(&d->listing, &index, d->id->repo, err);
        td_shard_index_free(&index);
    }
    td_free(text);
    td_free(path);
    return st;
}

/* ---- room ---- */

static td_status plan(download *d, td_error *err) {
    uint64_t missing = 0;
    size_t n = 0;
    struct statvfs fs;
    for (size_t i = 0; i < d->listing.names.n; i++) {
        td_hub_file *f = &d->listing.files[i];
        if (!f->wanted)
            continue;
        TD_TRY(look_up(d, f, err));
        if (__builtin_add_overflow(d->total, f->size, &d->total))
            return td_fail(err, TD_E_FORMAT, "%s: the sizes of its files make no sense", d->id->repo);
        if (td_hub_blob_exists(d->repo_dir, f))
            continue;
        missing += f->size - td_hub_blob_started(d->repo_dir, f);
        n++;
    }
    if (n == 0)
        return TD_OK;
    if (statvfs(d->repo_dir, &fs) != 0)
        return td_fail(err, TD_E_IO, "%s: %s", d->repo_dir, strerror(errno));
    uint64_t room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (missing > room || room - missing < SPARE_BYTES)
        return td_fail(err, TD_E_LIMIT, "%s: not enough room for it in %s: %llu bytes needed, %llu free", d->id->repo,
                       d->opt->cache, (unsigned long long)missing + SPARE_BYTES, (unsigned long long)room);
    td_log_info(&d->log, "%s: downloading %zu file%s, %.1f MiB (commit %.7s)", d->id->repo, n, n == 1 ? "" : "s",
                (double)missing / (1 << 20), d->listing.commit);
    return TD_OK;
}

/* ---- the reference ---- */

static td_status write_whole(const char *path, const char *text, td_error *err) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    size_t n = strlen(text);
    bool ok = fd >= 0 && write(fd, text, n) == (ssize_t)n && fsync(fd) == 0;
    int saved = errno;
    if (fd >= 0)
        close(fd);
    return ok ? TD_OK : td_fail(err, saved == ENOSPC ? TD_E_LIMIT : TD_E_IO, "%s: %s", path, strerror(saved));
}

static td_status write_ref(const download *d, td_error *err) {
    if (td_hub_is_commit(revision_of(d)))
        return TD_OK;
    char *path = path3(d->repo_dir, "refs", revision_of(d));
    char *tmp = path ? temporary(path) : NULL;
    td_status st = path && tmp ? make_dirs(path, true, err) : no_memory(d, err);
    if (st == TD_OK)
        st = write_whole(tmp, d->listing.commit, err);
    if (st == TD_OK && rename(tmp, path) != 0) {
        st = td_fail(err, TD_E_IO, "%s: %s", path, strerror(errno));
        unlink(tmp);
    }
    td_free(tmp);
    td_free(path);
    return st;
}

/* ---- the whole ---- */

static td_status get_all(download *d, td_error *err) {
    td_hub_file *index;
    TD_TRY(td_hub_http_open(&d->http, d->opt, err));
    TD_TRY(list(d, err));
    TD_TRY(td_hub_listing_choose(&d->listing, d->id, d->opt, &index, err));
    TD_TRY(make_places(d, err));
    if (index)
        TD_TRY(get_index(d, index, err));
    TD_TRY(plan(d, err));
    for (size_t i = 0; i < d->listing.names.n; i++)
        if (d->listing.files[i].wanted)
            TD_TRY(get(d, &d->listing.files[i], err));
    (void)on_tick(d); /* the bar is full */
    return write_ref(d, err);
}

/* What the id means now, at the commit that was downloaded. */
static td_status result(const download *d, char **out, td_error *err) {
    char text[sizeof d->id->repo + sizeof d->listing.commit + sizeof d->id->file + 2];
    snprintf(text, sizeof text, "%s@%s%s%s", d->id->repo, d->listing.commit, d->id->file[0] ? ":" : "", d->id->file);
    return td_hub_resolve(text, d->opt->cache, out, err);
}

static td_status download_id(const td_hub_id *id, const td_hub_options *opt, char **out, td_error *err) {
    download d = {.opt = opt, .id = id};
    d.log = (td_log){.fn = opt->log, .user = opt->user, .level = TD_LOG_DEBUG};
    d.tally = (td_hub_tally){.tick = on_tick, .user = &d};
    td_status st = get_all(&d, err);
    if (st == TD_OK)
        st = result(&d, out, err);
    td_hub_http_close(&d.http);
    td_hub_listing_free(&d.listing);
    td_free(d.repo_dir);
    td_free(d.locks);
    td_free(d.snapshot);
    return st;
}

td_status td_hub_fetch(const char *path_or_id, const td_hub_options *opt, char **out, td_error *err) {
    struct stat info;
    td_hub_id id;
    td_error local;
    err = err ? err : &local;
    *out = NULL;
    bool is_id = stat(path_or_id, &info) != 0 && td_hub_id_parse(path_or_id, &id);
    bool ask = is_id && !opt->offline && opt->cache && opt->cache[0] && strchr(id.repo, '/');
    td_status st = ask && opt->refresh ? TD_E_NOTFOUND : td_hub_resolve(path_or_id, opt->cache, out, err);
    if (st == TD_OK || st == TD_E_NOMEM)
        return st;
    if (!ask && is_id && opt->offline)
        return td_error_prefix(err, st, "nothing is downloaded offline");
    if (!ask)
        return st;
    st = download_id(&id, opt, out, err);
    if (!opt->refresh && (st == TD_E_NOTFOUND || st == TD_E_ARG))
        return td_error_prefix(err, st, "no such path, and as a hub id");
    return st;
}
