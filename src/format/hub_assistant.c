/* hub_assistant.c - td_hub_suggest_assistant: which drafter on this machine was made for a trunk.
 *
 * Names are only a hint: conversions rename both halves ("gemma-4-12b-it-4bit", "gemma-4-12b-it-assistant-bf16"). So
 * what decides is the assistant's config.json, which repeats the sizes of the trunk whose keys it reads, and the name
 * only chooses among those that fit. Opening the pair checks far more; this is a suggestion, nothing is loaded by it.
 */
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file.h"
#include "format/checkpoint.h"
#include "format/hub.h"
#include "format/hub_names.h"

#define CONFIG_MAX_BYTES (256u << 10)
#define CONFIG_MAX_DEPTH 32
#define MAX_ENTRIES 10000 /* of a directory that are looked at */

/* What both configurations tell; 0: this one does not. */
typedef struct sizes {
    json_int_t width, vocab, window, head_dim, global_head_dim;
} sizes;

typedef struct search {
    sizes trunk;
    const char *trunk_name;
    char *best; /* path or id */
    char best_name[NAME_MAX + 1];
    size_t best_score;
} search;

/* ---- configurations ---- */

/* config.json of `dir`, or NULL; *st is set when memory ran out. */
static json_t *read_config(const char *dir, td_status *st) {
    td_error ignored;
    json_t *root = NULL;
    char *path = td_path_join(dir, "config.json"), *text = NULL;
    size_t size;
    td_status got = path ? td_file_read(path, CONFIG_MAX_BYTES, &text, &size, &ignored) : TD_E_NOMEM;
    if (got == TD_OK)
        got = td_json_parse(text, size, CONFIG_MAX_DEPTH, path, &root, &ignored);
    td_free(text);
    td_free(path);
    if (got == TD_E_NOMEM)
        *st = got;
    return got == TD_OK ? root : NULL;
}

static bool has_type(const json_t *root, bool assistant) {
    const char *type = json_string_value(json_object_get(root, "model_type"));
    if (!type || strncmp(type, "gemma4", 6) != 0)
        return false;
    size_t n = strlen(type), m = strlen("_assistant");
    return assistant == (n > m && strcmp(type + n - m, "_assistant") == 0);
}

static json_int_t number(const json_t *root, const char *key) {
    const json_t *text = json_object_get(root, "text_config"), *v = json_object_get(text, key);
    return json_integer_value(v ? v : json_object_get(root, key));
}

static sizes sizes_of(const json_t *root) {
    return (sizes){
        .width = number(root, "hidden_size"),
        .vocab = number(root, "vocab_size"),
        .window = number(root, "sliding_window"),
        .head_dim = number(root, "head_dim"),
        .global_head_dim = number(root, "global_head_dim"),
    };
}

static bool agree(json_int_t a, json_int_t b) {
    return a == b || a == 0 || b == 0;
}

static bool fits(const json_t *root, const sizes *trunk) {
    sizes own = sizes_of(root);
    return has_type(root, true) && trunk->width > 0 && number(root, "backbone_hidden_size") == trunk->width &&
           own.vocab == trunk->vocab && agree(own.window, trunk->window) && agree(own.head_dim, trunk->head_dim) &&
           agree(own.global_head_dim, trunk->global_head_dim);
}

/* ---- candidates ---- */

static size_t common_prefix(const char *a, const char *b) {
    size_t n = 0;
    while (a[n] && b[n] && strncasecmp(a + n, b + n, 1) == 0)
        n++;
    return n;
}

/* The checkpoint in `dir`, called `name`, which the user would give as `answer`. */
static td_status consider(search *s, const char *dir, const char *name, const char *answer) {
    td_status st = TD_OK;
    size_t score = common_prefix(name, s->trunk_name);
    if (s->best && (score < s->best_score || (score == s->best_score && strcmp(name, s->best_name) >= 0)))
        return TD_OK;
    json_t *root = read_config(dir, &st);
    if (root && fits(root, &s->trunk)) {
        char *copy = td_strdup(answer);
        if (copy) {
            td_free(s->best);
            s->best = copy;
            s->best_score = score;
            snprintf(s->best_name, sizeof s->best_name, "%s", name);
        } else
            st = TD_E_NOMEM;
    }
    json_decref(root);
    return st;
}

/* The directories in `parent`; "" is the working directory. */
static td_status search_beside(search *s, const char *parent) {
    DIR *d = opendir(parent[0] ? parent : ".");
    td_status st = TD_OK;
    int left = MAX_ENTRIES;
    for (const struct dirent *e; d && st == TD_OK && left-- > 0 && (e = readdir(d)) != NULL;) {
        if (e->d_name[0] == '.')
            continue;
        char *path = parent[0] ? td_path_join(parent, e->d_name) : td_strdup(e->d_name);
        st = path ? consider(s, path, e->d_name, path) : TD_E_NOMEM;
        td_free(path);
    }
    if (d)
        closedir(d);
    return st;
}

/* "models--org--name" -> "org/name". */
static bool id_of(const char *entry, char id[TD_HUB_REPO_MAX + 1]) {
    td_hub_id parsed;
    if (strncmp(entry, "models--", 8) != 0 || strlen(entry + 8) > TD_HUB_REPO_MAX)
        return false;
    const char *org = entry + 8, *split = strstr(org, "--");
    if (!split)
        return false;
    snprintf(id, TD_HUB_REPO_MAX + 1, "%.*s/%s", (int)(split - org), org, split + 2);
    return td_hub_id_parse(id, &parsed);
}

static td_status search_cache(search *s, const char *cache) {
    DIR *d = opendir(cache);
    td_status st = TD_OK;
    int left = MAX_ENTRIES;
    for (const struct dirent *e; d && st == TD_OK && left-- > 0 && (e = readdir(d)) != NULL;) {
        char id[TD_HUB_REPO_MAX + 1], *dir;
        td_error ignored;
        if (!strcasestr(e->d_name, "assistant") || !id_of(e->d_name, id))
            continue;
        td_status found = td_hub_resolve(id, cache, &dir, &ignored);
        if (found == TD_OK)
            st = consider(s, dir, strchr(id, '/') + 1, id);
        else if (found == TD_E_NOMEM)
            st = found;
        td_free(dir);
    }
    if (d)
        closedir(d);
    return st;
}

/* ---- the trunk ---- */

static char *last_of(char *path) {
    char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

/* The repository's name when `path` is .../models--org--name/snapshots/<commit>; else NULL. Cuts the path
 * behind it. */
static const char *name_in_cache(char *path) {
    static const char between[] = "/snapshots/";
    char *commit = last_of(path);
    if (!td_hub_is_commit(commit) || (size_t)(commit - path) < sizeof between)
        return NULL;
    char *tail = commit - (sizeof between - 1);
    if (memcmp(tail, between, sizeof between - 1) != 0)
        return NULL;
    *tail = '\0';
    const char *entry = last_of(path), *split = strncmp(entry, "models--", 8) == 0 ? strstr(entry + 8, "--") : NULL;
    if (split)
        return split + 2;
    *tail = '/';
    return NULL;
}

static td_status search_for(search *s, char *path, const char *cache) {
    char *name = last_of(path);
    const char *repo_name = name_in_cache(path), *parent = path;
    if (repo_name) {
        s->trunk_name = repo_name;
    } else {
        s->trunk_name = name;
        if (name == path)
            parent = "";
        else if (name == path + 1)
            parent = "/";
        else
            name[-1] = '\0';
        TD_TRY(search_beside(s, parent));
    }
    return s->best || !cache || !*cache ? TD_OK : search_cache(s, cache);
}

/* A path whose last component is a name: not ".", ".." or "x/.". */
static char *named_path(const char *trunk) {
    size_t n = strlen(trunk);
    while (n > 1 && trunk[n - 1] == '/')
        n--;
    bool dots = n > 0 && trunk[n - 1] == '.' && (n == 1 || strchr("/.", trunk[n - 2]));
    char real[PATH_MAX];
    return dots && realpath(trunk, real) ? td_strdup(real) : td_strndup(trunk, n);
}

td_status td_hub_suggest_assistant(const char *trunk, const char *cache, char **out, td_error *err) {
    search s = {0};
    td_status st = TD_OK;
    *out = NULL;
    json_t *root = read_config(trunk, &st);
    if (root && has_type(root, false)) {
        s.trunk = sizes_of(root);
        char *path = named_path(trunk);
        st = path ? search_for(&s, path, cache) : TD_E_NOMEM;
        td_free(path);
    }
    json_decref(root);
    if (st != TD_OK) {
        td_free(s.best);
        return td_fail(err, st, "%s: out of memory", trunk);
    }
    *out = s.best;
    return TD_OK;
}
