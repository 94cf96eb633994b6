/* weight_files.c - weights found by their names. Without an index nothing says how many shards there should be except
 * the names themselves, so "-of-00005" is taken at its word: half a download must not become half a model. */
#include "format/weight_files.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"

#define MAX_FILES 100000 /* five digits number the shards */

static bool entry_in(const char *dir, const char *name, bool *failed) {
    char *path = td_path_join(dir, name);
    struct stat st;
    bool there = path && lstat(path, &st) == 0;
    *failed = !path;
    td_free(path);
    return there;
}

static bool is_model_file(const char *name) {
    static const char prefix[] = "model", suffix[] = ".safetensors";
    size_t n = strlen(name), m = sizeof suffix - 1;
    return strncmp(name, prefix, sizeof prefix - 1) == 0 && n > m && strcmp(name + n - m, suffix) == 0;
}

static td_status add_name(td_weight_files *files, const char *dir, const char *name, td_error *err) {
    if (files->n == MAX_FILES)
        return td_fail(err, TD_E_LIMIT, "%s: more than %d weight files", dir, MAX_FILES);
    char **names = td_realloc(files->names, files->n + 1, sizeof *names);
    if (names)
        files->names = names;
    char *copy = names ? td_strdup(name) : NULL;
    if (!copy)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", dir);
    files->names[files->n++] = copy;
    return TD_OK;
}

static td_status scan(td_weight_files *files, const char *dir, td_error *err) {
    DIR *d = opendir(dir);
    if (!d)
        return td_fail(err, TD_E_IO, "%s: %s", dir, strerror(errno));
    td_status st = TD_OK;
    for (const struct dirent *e; st == TD_OK && (e = readdir(d)) != NULL;)
        if (is_model_file(e->d_name))
            st = add_name(files, dir, e->d_name, err);
    closedir(d);
    return st;
}

static int by_name(const void *a, const void *b) {
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* "<stem>-ddddd-of-ddddd.safetensors" */
static bool parse_numbered(const char *name, size_t *stem, unsigned *total) {
    static const char pattern[] = "-ddddd-of-ddddd.safetensors"; /* d: a digit; no other d in it */
    size_t n = strlen(name), m = sizeof pattern - 1;
    if (n < m)
        return false;
    for (size_t i = 0; i < m; i++) {
        char c = name[n - m + i];
        if (pattern[i] == 'd' ? c < '0' || c > '9' : c != pattern[i])
            return false;
    }
    *stem = n - m;
    *total = (unsigned)strtoul(name + n - m + 10, NULL, 10);
    return true;
}

static td_status check_numbered(const td_weight_files *files, const char *dir, td_error *err) {
    for (size_t i = 0; i < files->n; i++) {
        size_t stem;
        unsigned total;
        if (!parse_numbered(files->names[i], &stem, &total))
            continue;
        /* sorted, so the files of one stem follow each other and this one should be the first */
        for (unsigned k = 1; k <= total; k++) {
            char wanted[300];
            snprintf(wanted, sizeof wanted, "%.*s-%05u-of-%05u.safetensors", (int)stem, files->names[i], k, total);
            if (i + k - 1 >= files->n || strcmp(files->names[i + k - 1], wanted) != 0)
                return td_fail(err, TD_E_NOTFOUND, "%s: %s is missing, as %s is there", dir, wanted, files->names[i]);
        }
        i += total ? total - 1 : 0;
    }
    return TD_OK;
}

static td_status list(td_weight_files *files, const char *dir, td_error *err) {
    static const char *const whole = "model.safetensors", *const draft = "weights.safetensors";
    bool failed;
    if (entry_in(dir, whole, &failed))
        return add_name(files, dir, whole, err);
    if (failed)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", dir);
    TD_TRY(scan(files, dir, err));
    if (files->n > 0) {
        qsort(files->names, files->n, sizeof *files->names, by_name);
        return check_numbered(files, dir, err);
    }
    if (entry_in(dir, draft, &failed))
        return add_name(files, dir, draft, err);
    if (failed)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", dir);
    return td_fail(err, TD_E_NOTFOUND, "%s: no weights, expected model.safetensors, model*.safetensors or %s", dir,
                   draft);
}

td_status td_weight_files_list(td_weight_files *files, const char *dir, td_error *err) {
    *files = (td_weight_files){0};
    td_status st = list(files, dir, err);
    if (st != TD_OK)
        td_weight_files_free(files);
    return st;
}

void td_weight_files_free(td_weight_files *files) {
    for (size_t i = 0; i < files->n; i++)
        td_free(files->names[i]);
    td_free(files->names);
    *files = (td_weight_files){0};
}
