/* outdir.c - see outdir.h. */
#include "engine/outdir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "engine/affix.h"

static td_status no_memory(const char *path, td_error *err) {
    return td_fail(err, TD_E_NOMEM, "%s: out of memory", path);
}

static td_status io_error(const char *path, td_error *err) {
    return td_fail(err, TD_E_IO, "%s: %s", path, strerror(errno));
}

static bool is_dot(const char *name) {
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

static td_status check_empty(const char *path, td_error *err) {
    DIR *d = opendir(path);
    if (d == NULL)
        return io_error(path, err);
    const char *found = NULL;
    for (struct dirent *e; found == NULL && (e = readdir(d)) != NULL;)
        found = is_dot(e->d_name) ? NULL : e->d_name;
    td_status st = TD_OK;
    if (found)
        st = td_fail(err, TD_E_ARG, "%s: is not empty (it holds %s); nothing was written", path, found);
    closedir(d);
    return st;
}

td_status td_outdir_open(td_outdir *dir, const char *path, bool force, td_error *err) {
    *dir = (td_outdir){0};
    bool created = mkdir(path, 0777) == 0;
    if (!created && errno != EEXIST)
        return io_error(path, err);
    if (!created && !td_dir_exists(path))
        return td_fail(err, TD_E_ARG, "%s: is not a directory", path);
    if (!created && !force)
        TD_TRY(check_empty(path, err));
    dir->path = td_strdup(path);
    dir->created = created && dir->path;
    if (dir->path)
        return TD_OK;
    if (created)
        rmdir(path);
    return no_memory(path, err);
}

static char *temporary_path(const td_outdir *dir, const char *name) {
    char *path = td_malloc(strlen(dir->path) + strlen(name) + 6);
    if (path)
        sprintf(path, "%s/%s.tmp", dir->path, name);
    return path;
}

td_status td_outdir_add(td_outdir *dir, const char *name, char **temporary, td_error *err) {
    *temporary = NULL;
    char **grown = td_realloc(dir->names, dir->n_names + 1, sizeof *grown);
    if (grown == NULL)
        return no_memory(dir->path, err);
    dir->names = grown;
    char *own = td_strdup(name), *path = temporary_path(dir, name);
    if (own == NULL || path == NULL) {
        td_free(own);
        td_free(path);
        return no_memory(dir->path, err);
    }
    dir->names[dir->n_names++] = own;
    *temporary = path;
    return TD_OK;
}

static td_status write_all(int fd, const char *path, const char *bytes, size_t n, td_error *err) {
    while (n > 0) {
        ssize_t put = write(fd, bytes, n);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return io_error(path, err);
        bytes += put;
        n -= (size_t)put;
    }
    return TD_OK;
}

static td_status create(td_outdir *dir, const char *name, char **path, int *fd, td_error *err) {
    TD_TRY(td_outdir_add(dir, name, path, err));
    *fd = open(*path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (*fd >= 0)
        return TD_OK;
    td_status st = io_error(*path, err);
    td_free(*path);
    return st;
}

/* Closes, keeping the first failure; frees the path. */
static td_status finish(td_status st, char *path, int fd, td_error *err) {
    if (close(fd) != 0 && st == TD_OK)
        st = io_error(path, err);
    td_free(path);
    return st;
}

td_status td_outdir_put(td_outdir *dir, const char *name, const char *bytes, size_t n, td_error *err) {
    char *path;
    int fd;
    TD_TRY(create(dir, name, &path, &fd, err));
    return finish(write_all(fd, path, bytes, n, err), path, fd, err);
}

td_status td_outdir_copy(td_outdir *dir, const char *name, const char *from, td_error *err) {
    td_map map;
    TD_TRY(td_map_open(&map, from, err));
    td_status st = td_outdir_put(dir, name, (const char *)map.data, map.size, err);
    td_map_close(&map);
    return st;
}

static td_status remove_weights(const td_outdir *dir, td_error *err) {
    DIR *d = opendir(dir->path);
    if (d == NULL)
        return io_error(dir->path, err);
    td_status st = TD_OK;
    for (struct dirent *e; st == TD_OK && (e = readdir(d)) != NULL;)
        if ((td_ends_with(e->d_name, ".safetensors") || td_ends_with(e->d_name, ".safetensors.index.json")) &&
            unlinkat(dirfd(d), e->d_name, 0) != 0)
            st = td_fail(err, TD_E_IO, "%s/%s: %s", dir->path, e->d_name, strerror(errno));
    closedir(d);
    return st;
}

td_status td_outdir_commit(td_outdir *dir, td_error *err) {
    TD_TRY(remove_weights(dir, err));
    while (dir->n_names > 0) {
        char *name = dir->names[0];
        char *from = temporary_path(dir, name), *to = td_path_join(dir->path, name);
        td_status st = from && to ? TD_OK : no_memory(dir->path, err);
        if (st == TD_OK && rename(from, to) != 0)
            st = io_error(to, err);
        td_free(from);
        td_free(to);
        TD_TRY(st);
        td_free(name);
        memmove(dir->names, dir->names + 1, --dir->n_names * sizeof *dir->names);
    }
    dir->created = false;
    return TD_OK;
}

void td_outdir_close(td_outdir *dir) {
    for (size_t i = 0; i < dir->n_names; i++) {
        char *path = temporary_path(dir, dir->names[i]);
        if (path)
            unlink(path);
        td_free(path);
        td_free(dir->names[i]);
    }
    if (dir->created)
        rmdir(dir->path);
    td_free(dir->names);
    td_free(dir->path);
    *dir = (td_outdir){0};
}
