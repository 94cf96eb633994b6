/* hub.c - from "org/name" to a directory of the Hugging Face hub cache, offline.
 *
 *   <cache>/models--org--name/refs/<revision>        a commit, 40 hex digits
 *                             snapshots/<commit>/    links into blobs/
 *
 * A revision that is asked for is used or refused. Without one, the snapshot of refs/main is taken when it is complete,
 * else the newest complete one: a download that was interrupted must not hide the model that worked yesterday. Complete
 * means: config.json, and every weight file that the index or the file names call for, none a dangling link. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file.h"
#include "format/checkpoint.h"
#include "format/json_scan.h"
#include "format/shard_index.h"
#include "format/weight_files.h"

#define ID_MAX 96
#define REVISION_MAX 255
#define REF_MAX_BYTES 4096

typedef struct hub_id {
    char repo[ID_MAX + 1];           /* org/name */
    char revision[REVISION_MAX + 1]; /* "": none asked for */
} hub_id;

/* ---- names ---- */

static bool is_word(char c) {
    return isalnum((unsigned char)c) || c == '_' || c == '-' || c == '.';
}

/* word(/word)?, no "--" (it separates the parts in the cache) and no "..". */
static bool is_repo_id(const char *s) {
    size_t slashes = 0, n = strlen(s);
    if (n == 0 || n > ID_MAX || s[0] == '/' || s[n - 1] == '/' || s[0] == '.' || strstr(s, "--") || strstr(s, "..") ||
        strstr(s, "/."))
        return false;
    for (size_t i = 0; i < n; i++) {
        slashes += s[i] == '/';
        if (s[i] != '/' && !is_word(s[i]))
            return false;
    }
    return slashes <= 1;
}

/* A branch, tag or commit; may have slashes, and may not climb. */
static bool is_revision(const char *s) {
    size_t n = strlen(s);
    if (n == 0 || n > REVISION_MAX || s[0] == '/' || s[n - 1] == '/' || strstr(s, "..") || strstr(s, "//"))
        return false;
    for (size_t i = 0; i < n; i++)
        if (!is_word(s[i]) && s[i] != '/' && s[i] != '+')
            return false;
    return true;
}

static bool is_commit(const char *s) {
    return strlen(s) == 40 && strspn(s, "0123456789abcdef") == 40;
}

static bool parse_id(const char *text, hub_id *id) {
    const char *at = strchr(text, '@');
    size_t n = at ? (size_t)(at - text) : strlen(text);
    if (n > ID_MAX || (at && !is_revision(at + 1)))
        return false;
    snprintf(id->repo, sizeof id->repo, "%.*s", (int)n, text);
    snprintf(id->revision, sizeof id->revision, "%s", at ? at + 1 : "");
    return is_repo_id(id->repo);
}

/* ---- one snapshot ---- */

static td_status check_file(const char *dir, const char *name, td_error *err) {
    char *path = td_path_join(dir, name);
    if (!path)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", dir);
    bool there = td_file_exists(path);
    td_free(path);
    return there ? TD_OK : td_fail(err, TD_E_NOTFOUND, "%s: incomplete, %s is missing", dir, name);
}

static td_status check_indexed(const char *dir, const char *index_path, td_error *err) {
    char *text;
    size_t size;
    td_shard_index x;
    TD_TRY(td_file_read(index_path, TD_SHARD_INDEX_MAX_BYTES, &text, &size, err));
    td_status st = td_shard_index_parse(&x, text, size, index_path, err);
    td_free(text);
    if (st != TD_OK)
        return st;
    for (size_t i = 0; i < x.n_shards && st == TD_OK; i++)
        st = check_file(dir, x.shards[i], err);
    td_shard_index_free(&x);
    return st;
}

static td_status check_listed(const char *dir, td_error *err) {
    td_weight_files files;
    TD_TRY(td_weight_files_list(&files, dir, err));
    td_status st = TD_OK;
    for (size_t i = 0; i < files.n && st == TD_OK; i++)
        st = check_file(dir, files.names[i], err);
    td_weight_files_free(&files);
    return st;
}

static td_status check_complete(const char *dir, td_error *err) {
    struct stat info;
    if (!td_dir_exists(dir))
        return td_fail(err, TD_E_NOTFOUND, "%s: no such snapshot", dir);
    TD_TRY(check_file(dir, "config.json", err));
    char *index = td_path_join(dir, TD_SHARD_INDEX_FILE);
    if (!index)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", dir);
    td_status st = lstat(index, &info) == 0 ? check_indexed(dir, index, err) : check_listed(dir, err);
    td_free(index);
    return st;
}

/* ---- choosing one ---- */

/* "<repo>/snapshots/<commit>"; NULL: out of memory. */
static char *snapshot_path(const char *repo, const char *commit) {
    td_buf b;
    td_buf_init(&b, PATH_MAX);
    (void)td_buf_printf(&b, "%s/snapshots/%s", repo, commit);
    return td_buf_steal(&b);
}

/* The commit that refs/<revision> holds. */
static td_status read_ref(const char *repo, const char *revision, char commit[41], td_error *err) {
    td_buf b;
    td_buf_init(&b, PATH_MAX);
    (void)td_buf_printf(&b, "%s/refs/%s", repo, revision);
    char *path = td_buf_steal(&b), *text;
    if (!path)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", repo);
    size_t size;
    td_status st = td_file_read(path, REF_MAX_BYTES, &text, &size, err);
    if (st == TD_OK) {
        while (size > 0 && isspace((unsigned char)text[size - 1]))
            text[--size] = '\0';
        if (size == 40 && is_commit(text))
            memcpy(commit, text, 41);
        else
            st = td_fail(err, TD_E_FORMAT, "%s: expected a commit of 40 hex digits", path);
        td_free(text);
    }
    td_free(path);
    return st;
}

static td_status use_revision(const char *repo, const char *revision, char **out, td_error *err) {
    char commit[41];
    if (is_commit(revision))
        memcpy(commit, revision, 41);
    else
        TD_TRY(read_ref(repo, revision, commit, err));
    char *dir = snapshot_path(repo, commit);
    if (!dir)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", repo);
    td_status st = check_complete(dir, err);
    if (st == TD_OK)
        *out = dir;
    else
        td_free(dir);
    return st;
}

static bool newer(const struct timespec *a, const struct timespec *b) {
    return a->tv_sec != b->tv_sec ? a->tv_sec > b->tv_sec : a->tv_nsec > b->tv_nsec;
}

/* Takes `dir` (owned) as the best so far when it is complete and newer; else frees it. */
static td_status weigh(char *dir, char **best, struct timespec *best_time) {
    struct stat info;
    td_error ignored;
    td_status st = check_complete(dir, &ignored);
    bool better =
        st == TD_OK && stat(dir, &info) == 0 &&
        (!*best || newer(&info.st_mtim, best_time) || (!newer(best_time, &info.st_mtim) && strcmp(dir, *best) > 0));
    td_free(better ? *best : dir);
    if (better) {
        *best = dir;
        *best_time = info.st_mtim;
    }
    return st == TD_E_NOMEM ? st : TD_OK;
}

static td_status use_newest(const char *repo, char **out, td_error *err) {
    char *snapshots = td_path_join(repo, "snapshots"), *best = NULL;
    struct timespec best_time = {0};
    DIR *d = snapshots ? opendir(snapshots) : NULL;
    td_status st = snapshots ? TD_OK : TD_E_NOMEM;
    for (const struct dirent *e; d && st == TD_OK && (e = readdir(d)) != NULL;) {
        if (!is_commit(e->d_name))
            continue;
        char *dir = snapshot_path(repo, e->d_name);
        st = dir ? weigh(dir, &best, &best_time) : TD_E_NOMEM;
    }
    if (d)
        closedir(d);
    td_free(snapshots);
    if (st == TD_OK && best) {
        *out = best;
        return TD_OK;
    }
    td_free(best);
    if (st != TD_OK)
        return td_fail(err, st, "%s: out of memory", repo);
    return td_fail(err, TD_E_NOTFOUND, "%s: no complete snapshot", repo);
}

static td_status resolve_in(const char *repo, const hub_id *id, char **out, td_error *err) {
    if (id->revision[0])
        return use_revision(repo, id->revision, out, err);
    td_error main_err;
    td_status st = use_revision(repo, "main", out, &main_err);
    if (st == TD_OK)
        return TD_OK;
    td_status newest = st == TD_E_NOMEM ? st : use_newest(repo, out, err);
    if (newest == TD_OK || newest == TD_E_NOMEM)
        return newest == TD_OK ? newest : td_fail(err, newest, "out of memory");
    return td_fail(err, st, "%s; no other snapshot is complete", main_err.message);
}

/* "<cache>/models--org--name"; NULL: out of memory. */
static char *repo_path(const char *cache, const char *repo) {
    td_buf b;
    td_buf_init(&b, PATH_MAX);
    (void)td_buf_printf(&b, "%s/models--", cache);
    for (const char *p = repo; *p; p++)
        (void)(*p == '/' ? td_buf_puts(&b, "--") : td_buf_putc(&b, *p));
    return td_buf_steal(&b);
}

static td_status keep_path(const char *path, char **out, td_error *err) {
    *out = td_strdup(path);
    return *out ? TD_OK : td_fail(err, TD_E_NOMEM, "%s: out of memory", path);
}

td_status td_hub_resolve(const char *path_or_id, const char *cache, char **out, td_error *err) {
    struct stat info;
    hub_id id;
    char shown[TD_SHOWN_SIZE];
    *out = NULL;
    td_shown(shown, path_or_id, strlen(path_or_id));
    if (stat(path_or_id, &info) == 0)
        return keep_path(path_or_id, out, err);
    if (!parse_id(path_or_id, &id))
        return td_fail(err, TD_E_NOTFOUND, "%s: no such path, and not a hub id (org/name or org/name@revision)", shown);
    if (!cache || !*cache)
        return td_fail(err, TD_E_NOTFOUND, "%s: no such path, and there is no hub cache to search", shown);
    char *repo = repo_path(cache, id.repo);
    if (!repo)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", shown);
    td_status st;
    if (!td_dir_exists(repo)) {
        st = td_fail(err, TD_E_NOTFOUND, "%s: no such path, and not in the hub cache (no %s)", shown, repo);
    } else {
        st = resolve_in(repo, &id, out, err);
        if (st != TD_OK)
            st = td_error_prefix(err, st, "%s", shown);
    }
    td_free(repo);
    return st;
}
