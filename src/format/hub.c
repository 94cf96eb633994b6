/* hub.c - from "org/name" to a directory of the Hugging Face hub cache, offline.
 *
 *   <cache>/models--org--name/refs/<revision>        a commit, 40 hex digits
 *                             snapshots/<commit>/    links into blobs/
 *
 * A revision that is asked for is used or refused. Without one, the snapshot of refs/main is taken when it is complete,
 * else the newest complete one: a download that was interrupted must not hide the model that worked yesterday. Complete
 * means: config.json, and every weight file that the index or the file names call for, none a dangling link. Where the
 * id names a GGUF file, complete means that file, in all its pieces, and the answer is its path. */
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
#include "format/hub_names.h"
#include "format/json_scan.h"
#include "format/shard_index.h"
#include "format/weight_files.h"

#define REF_MAX_BYTES 4096
#define GGUF_MAX_DEPTH 1 /* directories inside a snapshot that are looked into for GGUF files */

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
    TD_TRY(check_file(dir, "config.json", err));
    char *index = td_path_join(dir, TD_SHARD_INDEX_FILE);
    if (!index)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", dir);
    td_status st = lstat(index, &info) == 0 ? check_indexed(dir, index, err) : check_listed(dir, err);
    td_free(index);
    return st;
}

/* ---- GGUF files in a snapshot ---- */

/* Adds the paths of GGUF files below `dir`, each with `prefix` before it. */
static td_status list_gguf(const char *dir, const char *prefix, int depth, td_hub_strings *out, td_error *err) {
    DIR *d = opendir(dir);
    td_status st = TD_OK;
    for (const struct dirent *e; d && st == TD_OK && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.')
            continue;
        char name[TD_HUB_FILE_MAX + 1], *path = td_path_join(dir, e->d_name);
        int n = snprintf(name, sizeof name, "%s%s", prefix, e->d_name);
        if (!path)
            st = td_fail(err, TD_E_NOMEM, "%s: out of memory", dir);
        else if (td_hub_gguf_is(e->d_name) && n < (int)sizeof name)
            st = td_hub_strings_add(out, name, (size_t)n, err);
        else if (depth > 0 && td_dir_exists(path) && n + 1 < (int)sizeof name) {
            strcat(name, "/");
            st = list_gguf(path, name, depth - 1, out, err);
        }
        td_free(path);
    }
    if (d)
        closedir(d);
    return st;
}

static td_status check_pieces(const char *dir, const td_hub_strings *all, const char *first, td_error *err) {
    unsigned found = 0, pieces = td_hub_gguf_pieces(first);
    for (size_t i = 0; i < all->n; i++)
        if (td_hub_gguf_same(first, all->v[i])) {
            TD_TRY(check_file(dir, all->v[i], err));
            found++;
        }
    if (found != pieces)
        return td_fail(err, TD_E_NOTFOUND, "%s: incomplete, %u of %u pieces of %s", dir, found, pieces, first);
    return TD_OK;
}

static td_status find_gguf(const char *dir, const char *selector, char **out, td_error *err) {
    td_hub_strings all = {0};
    size_t pick = 0;
    td_status st = list_gguf(dir, "", GGUF_MAX_DEPTH, &all, err);
    if (st == TD_OK)
        st = td_hub_gguf_pick((const char *const *)all.v, all.n, selector, dir, &pick, err);
    if (st == TD_OK)
        st = check_pieces(dir, &all, all.v[pick], err);
    if (st == TD_OK && (*out = td_path_join(dir, all.v[pick])) == NULL)
        st = td_fail(err, TD_E_NOMEM, "%s: out of memory", dir);
    td_hub_strings_free(&all);
    return st;
}

/* ---- choosing one ---- */

/* What `id` means in the snapshot of `commit`, when it is complete: *out, and its directory's time. */
static td_status look_in(const char *repo, const char *commit, const td_hub_id *id, char **out, struct timespec *time,
                         td_error *err) {
    struct stat info;
    char *dir = td_hub_snapshot_dir(repo, commit);
    if (!dir)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", repo);
    td_status st = TD_OK;
    if (stat(dir, &info) != 0 || !S_ISDIR(info.st_mode))
        st = td_fail(err, TD_E_NOTFOUND, "%s: no such snapshot", dir);
    else if (id->file[0])
        st = find_gguf(dir, id->file, out, err);
    else
        st = check_complete(dir, err);
    if (st == TD_OK && !id->file[0]) {
        *out = dir;
        dir = NULL;
    }
    if (st == TD_OK)
        *time = info.st_mtim;
    td_free(dir);
    return st;
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
        if (size == 40 && td_hub_is_commit(text))
            memcpy(commit, text, 41);
        else
            st = td_fail(err, TD_E_FORMAT, "%s: expected a commit of 40 hex digits", path);
        td_free(text);
    }
    td_free(path);
    return st;
}

static td_status use_revision(const char *repo, const char *revision, const td_hub_id *id, char **out, td_error *err) {
    char commit[41];
    struct timespec time;
    if (td_hub_is_commit(revision))
        memcpy(commit, revision, 41);
    else
        TD_TRY(read_ref(repo, revision, commit, err));
    return look_in(repo, commit, id, out, &time, err);
}

static bool newer(const struct timespec *a, const struct timespec *b) {
    return a->tv_sec != b->tv_sec ? a->tv_sec > b->tv_sec : a->tv_nsec > b->tv_nsec;
}

/* Takes what a snapshot has as the best so far when it is complete and newer. */
static td_status weigh(const char *repo, const char *commit, const td_hub_id *id, char **best,
                       struct timespec *best_time) {
    td_error ignored;
    char *path = NULL;
    struct timespec time;
    td_status st = look_in(repo, commit, id, &path, &time, &ignored);
    bool better =
        st == TD_OK && (!*best || newer(&time, best_time) || (!newer(best_time, &time) && strcmp(path, *best) > 0));
    td_free(better ? *best : path);
    if (better) {
        *best = path;
        *best_time = time;
    }
    return st == TD_E_NOMEM ? st : TD_OK;
}

static td_status use_newest(const char *repo, const td_hub_id *id, char **out, td_error *err) {
    char *snapshots = td_path_join(repo, "snapshots"), *best = NULL;
    struct timespec best_time = {0};
    DIR *d = snapshots ? opendir(snapshots) : NULL;
    td_status st = snapshots ? TD_OK : TD_E_NOMEM;
    for (const struct dirent *e; d && st == TD_OK && (e = readdir(d)) != NULL;)
        if (td_hub_is_commit(e->d_name))
            st = weigh(repo, e->d_name, id, &best, &best_time);
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

static td_status resolve_in(const char *repo, const td_hub_id *id, char **out, td_error *err) {
    if (id->revision[0])
        return use_revision(repo, id->revision, id, out, err);
    td_error main_err;
    td_status st = use_revision(repo, "main", id, out, &main_err);
    if (st == TD_OK)
        return TD_OK;
    td_status newest = st == TD_E_NOMEM ? st : use_newest(repo, id, out, err);
    if (newest == TD_OK || newest == TD_E_NOMEM)
        return newest == TD_OK ? newest : td_fail(err, newest, "out of memory");
    return td_fail(err, st, "%s; no other snapshot is complete", main_err.message);
}

static td_status keep_path(const char *path, char **out, td_error *err) {
    *out = td_strdup(path);
    return *out ? TD_OK : td_fail(err, TD_E_NOMEM, "%s: out of memory", path);
}

td_status td_hub_resolve(const char *path_or_id, const char *cache, char **out, td_error *err) {
    struct stat info;
    td_hub_id id;
    char shown[TD_SHOWN_SIZE];
    *out = NULL;
    td_shown(shown, path_or_id, strlen(path_or_id));
    if (stat(path_or_id, &info) == 0)
        return keep_path(path_or_id, out, err);
    if (!td_hub_id_parse(path_or_id, &id))
        return td_fail(err, TD_E_NOTFOUND, "%s: no such path, and not a hub id (org/name or org/name@revision)", shown);
    if (!cache || !*cache)
        return td_fail(err, TD_E_NOTFOUND, "%s: no such path, and there is no hub cache to search", shown);
    char *repo = td_hub_repo_dir(cache, id.repo);
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
