/* checkpoint.c - opening a model directory and finding tensors in it.
 *
 * Opening reads the configs, decides which weight files belong to the model (the shard index, else the files that are
 * there), maps each and enters every tensor in one hash table. All contradictions between index and files are found
 * here, so that later rooms only ask for names. A file name out of an index is a stranger's word: it must be a plain
 * name, and the file it leads to must lie in the directory itself or, in a hub cache, among the blobs of its own
 * repository, whatever symbolic links say. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/file.h"
#include "format/checkpoint_impl.h"
#include "format/json_scan.h"
#include "format/shard_index.h"
#include "format/weight_files.h"

#define CONFIG_MAX_BYTES ((size_t)2 << 20) /* a tree may take eighty times that */
#define CONFIG_MAX_DEPTH 32
#define WEIGHT_SUFFIX ".safetensors"
#define GGUF_SUFFIX ".gguf"

static td_status no_memory(const td_checkpoint *ck, td_error *err) {
    return td_fail(err, TD_E_NOMEM, "%s: out of memory", ck->path);
}

static bool ends_with(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n > m && strcmp(s + n - m, suffix) == 0;
}

/* Something of that name is there, be it a dangling link. */
static bool entry_exists(const char *path) {
    struct stat st;
    return lstat(path, &st) == 0;
}

/* ---- configs ---- */

static td_status read_json_object(const char *path, json_t **out, td_error *err) {
    char *text;
    size_t size;
    TD_TRY(td_file_read(path, CONFIG_MAX_BYTES, &text, &size, err));
    td_status st = td_json_parse(text, size, CONFIG_MAX_DEPTH, path, out, err);
    td_free(text);
    if (st == TD_OK && !json_is_object(*out)) {
        json_decref(*out);
        *out = NULL;
        st = td_fail(err, TD_E_FORMAT, "%s: expected a JSON object", path);
    }
    return st;
}

static td_status open_configs(td_checkpoint *ck, const char *dir, td_error *err) {
    char *config = td_path_join(dir, "config.json");
    char *generation = td_path_join(dir, "generation_config.json");
    td_status st = config && generation ? TD_OK : no_memory(ck, err);
    if (st == TD_OK)
        st = read_json_object(config, &ck->config, err);
    if (st == TD_OK && entry_exists(generation))
        st = read_json_object(generation, &ck->generation, err);
    td_free(config);
    td_free(generation);
    return st;
}

/* ---- weight files ---- */

static td_status add_file(td_checkpoint *ck, const char *dir, const char *name, td_error *err) {
    char *path = td_path_join(dir, name);
    if (!path)
        return no_memory(ck, err);
    td_safetensors **files = td_realloc(ck->files, ck->n_files + 1, sizeof *files);
    td_status st = files ? TD_OK : no_memory(ck, err);
    if (files) {
        ck->files = files;
        st = td_safetensors_open(&files[ck->n_files], path, err);
        if (st == TD_OK)
            ck->file_bytes += td_safetensors_file_bytes(files[ck->n_files++]);
    }
    td_free(path);
    return st;
}

/* True when real path `file` is an entry of directory `dir` (only_direct) or lies anywhere below it. */
static bool lies_in(const char *file, const char *dir, bool only_direct) {
    size_t n = strlen(dir);
    if (strncmp(file, dir, n) != 0 || file[n] != '/')
        return false;
    return !only_direct || !strchr(file + n + 1, '/');
}

/* The blobs directory when `dir` is <repository>/snapshots/<commit>; false otherwise. */
static bool blobs_of_snapshot(const char *dir, char blobs[PATH_MAX]) {
    char repo[PATH_MAX];
    snprintf(repo, sizeof repo, "%s", dir);
    char *commit = strrchr(repo, '/');
    if (!commit)
        return false;
    *commit = '\0';
    char *snapshots = strrchr(repo, '/');
    if (!snapshots || strcmp(snapshots, "/snapshots") != 0)
        return false;
    *snapshots = '\0';
    char wanted[PATH_MAX + 8];
    snprintf(wanted, sizeof wanted, "%s/blobs", repo);
    return realpath(wanted, blobs) != NULL;
}

/* A shard named by an index may be a link only into its own hub repository. */
static td_status check_shard_place(const char *dir, const char *name, td_error *err) {
    char real_dir[PATH_MAX], real_file[PATH_MAX], blobs[PATH_MAX], joined[PATH_MAX];
    if (snprintf(joined, sizeof joined, "%s/%s", dir, name) >= (int)sizeof joined)
        return td_fail(err, TD_E_IO, "%s: path too long", dir);
    if (!realpath(dir, real_dir))
        return td_fail(err, TD_E_IO, "%s: %s", dir, strerror(errno));
    if (!realpath(joined, real_file))
        return td_fail(err, errno == ENOENT ? TD_E_NOTFOUND : TD_E_IO, "%s: named by %s: %s", joined,
                       TD_SHARD_INDEX_FILE, entry_exists(joined) ? "a link that leads nowhere" : strerror(errno));
    if (lies_in(real_file, real_dir, true))
        return TD_OK;
    if (blobs_of_snapshot(real_dir, blobs) && lies_in(real_file, blobs, false))
        return TD_OK;
    return td_fail(err, TD_E_FORMAT, "%s: named by %s, but links to %s, outside of the checkpoint", joined,
                   TD_SHARD_INDEX_FILE, real_file);
}

/* Index against files: each mapped tensor is where the map says; others in a file are worth a warning. */
static td_status check_mapping(td_checkpoint *ck, const td_shard_index *x, td_error *err) {
    char shown[TD_SHOWN_SIZE];
    for (size_t i = 0; i < x->n_entries; i++) {
        const td_shard_entry *e = &x->entries[i];
        if (!td_safetensors_find(ck->files[e->shard], e->tensor))
            return td_fail(err, TD_E_FORMAT, "%s: %s maps tensor \"%s\" to %s, which does not have it", ck->path,
                           TD_SHARD_INDEX_FILE, td_shown(shown, e->tensor, strlen(e->tensor)), x->shards[e->shard]);
    }
    for (size_t f = 0; f < ck->n_files; f++) {
        size_t unmapped = 0;
        const char *first = NULL;
        for (size_t i = 0; i < td_safetensors_count(ck->files[f]); i++) {
            const char *name = td_safetensors_at(ck->files[f], i)->name;
            if (td_name_map_find(&x->by_tensor, name))
                continue;
            if (unmapped++ == 0)
                first = name;
        }
        if (unmapped > 0)
            td_log_warn(&ck->log, "%s: %s holds %zu tensors that %s does not map, the first is \"%s\"", ck->path,
                        x->shards[f], unmapped, TD_SHARD_INDEX_FILE, td_shown(shown, first, strlen(first)));
    }
    return TD_OK;
}

static td_status open_indexed(td_checkpoint *ck, const char *dir, const char *index_path, td_error *err) {
    char *text;
    size_t size;
    td_shard_index x;
    TD_TRY(td_file_read(index_path, TD_SHARD_INDEX_MAX_BYTES, &text, &size, err));
    td_status st = td_shard_index_parse(&x, text, size, index_path, err);
    td_free(text);
    if (st != TD_OK)
        return st;
    for (size_t i = 0; i < x.n_shards && st == TD_OK; i++) {
        st = check_shard_place(dir, x.shards[i], err);
        if (st == TD_OK)
            st = add_file(ck, dir, x.shards[i], err);
    }
    if (st == TD_OK)
        st = check_mapping(ck, &x, err);
    td_shard_index_free(&x);
    return st;
}

static td_status open_listed(td_checkpoint *ck, const char *dir, td_error *err) {
    td_weight_files files;
    TD_TRY(td_weight_files_list(&files, dir, err));
    td_status st = TD_OK;
    for (size_t i = 0; i < files.n && st == TD_OK; i++)
        st = add_file(ck, dir, files.names[i], err);
    td_weight_files_free(&files);
    return st;
}

static td_status open_weights(td_checkpoint *ck, const char *dir, const char *only, td_error *err) {
    if (only)
        return add_file(ck, dir, only, err);
    char *index = td_path_join(dir, TD_SHARD_INDEX_FILE);
    if (!index)
        return no_memory(ck, err);
    td_status st = entry_exists(index) ? open_indexed(ck, dir, index, err) : open_listed(ck, dir, err);
    td_free(index);
    return st;
}

/* Every tensor of every file into the table. */
static td_status enter_tensors(td_checkpoint *ck, td_error *err) {
    size_t total = 0;
    for (size_t f = 0; f < ck->n_files; f++)
        total += td_safetensors_count(ck->files[f]);
    ck->tensors = td_calloc(total, sizeof *ck->tensors);
    if (!ck->tensors)
        return no_memory(ck, err);
    for (size_t f = 0; f < ck->n_files; f++)
        for (size_t i = 0; i < td_safetensors_count(ck->files[f]); i++) {
            const td_tensor *t = td_safetensors_at(ck->files[f], i);
            char shown[TD_SHOWN_SIZE];
            if (td_name_map_find(&ck->names, t->name))
                return td_fail(err, TD_E_FORMAT, "%s: tensor \"%s\" is in two weight files", ck->path,
                               td_shown(shown, t->name, strlen(t->name)));
            if (!td_name_map_add(&ck->names, t->name, t))
                return no_memory(ck, err);
            ck->tensors[ck->n_tensors++] = t;
        }
    return TD_OK;
}

/* ---- open and close ---- */

static td_status open_directory(td_checkpoint *ck, const char *dir, const char *only, td_error *err) {
    TD_TRY(open_configs(ck, dir, err));
    TD_TRY(open_weights(ck, dir, only, err));
    return enter_tensors(ck, err);
}

/* A path to one file: its directory, restricted to it. */
static td_status open_single(td_checkpoint *ck, td_error *err) {
    char *dir = td_strdup(ck->path);
    if (!dir)
        return no_memory(ck, err);
    char *slash = strrchr(dir, '/');
    const char *name = slash ? ck->path + (slash - dir) + 1 : ck->path;
    if (slash)
        slash[slash == dir] = '\0';
    td_status st = open_directory(ck, slash ? dir : ".", name, err);
    td_free(dir);
    return st;
}

/* A directory of safetensors, unless it holds a GGUF model and no safetensors. */
static td_status open_any_directory(td_checkpoint *ck, td_error *err) {
    td_gguf_files files;
    TD_TRY(td_checkpoint_find_gguf(ck->path, &files, err));
    if (files.several[0])
        snprintf(ck->note, sizeof ck->note,
                 "several files of draft heads lie beside the model, among them %s, and none is used: expected one",
                 files.several);
    td_status st = files.model ? td_checkpoint_open_gguf(ck, files.model, files.heads, err)
                               : open_directory(ck, ck->path, NULL, err);
    td_gguf_files_free(&files);
    if (st == TD_OK && ck->note[0])
        td_log_warn(&ck->log, "%s: %s", ck->path, ck->note);
    return st;
}

static td_status open_path(td_checkpoint *ck, td_error *err) {
    if (td_dir_exists(ck->path))
        return open_any_directory(ck, err);
    if (!entry_exists(ck->path))
        return td_fail(err, TD_E_NOTFOUND, "%s: no such file or directory", ck->path);
    if (ends_with(ck->path, GGUF_SUFFIX)) {
        td_checkpoint_note_neighbour(ck);
        return td_checkpoint_open_gguf(ck, ck->path, NULL, err);
    }
    if (!ends_with(ck->path, WEIGHT_SUFFIX))
        return td_fail(err, TD_E_FORMAT, "%s: expected a model directory or a file ending in %s or %s", ck->path,
                       WEIGHT_SUFFIX, GGUF_SUFFIX);
    return open_single(ck, err);
}

td_status td_checkpoint_open(td_checkpoint **out, const char *path, const td_log *log, td_error *err) {
    *out = NULL;
    td_checkpoint *ck = td_calloc(1, sizeof *ck);
    if (!ck)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", path);
    td_name_map_init(&ck->names);
    if (log)
        ck->log = *log;
    ck->path = td_strdup(path);
    td_status st = ck->path ? open_path(ck, err) : td_fail(err, TD_E_NOMEM, "%s: out of memory", path);
    if (st != TD_OK)
        td_checkpoint_close(&ck);
    *out = ck;
    return st;
}

void td_checkpoint_close(td_checkpoint **out) {
    if (!out || !*out)
        return;
    td_checkpoint *ck = *out;
    for (size_t i = 0; i < ck->n_files; i++)
        td_safetensors_close(&ck->files[i]);
    td_free(ck->files);
    for (size_t i = 0; i < ck->n_ggufs; i++)
        td_gguf_close(&ck->ggufs[i]);
    td_free(ck->ggufs);
    for (size_t i = 0; ck->known && i < ck->n_tensors; i++)
        td_free(ck->known[i]);
    td_free(ck->known);
    td_free(ck->views);
    td_free(ck->tensors);
    td_name_map_free(&ck->names);
    for (size_t i = 0; i < ck->n_aliases; i++)
        td_free(ck->aliases[i]);
    td_free(ck->aliases);
    json_decref(ck->config);
    json_decref(ck->generation);
    td_free(ck->assistant);
    td_free(ck->path);
    td_free(ck);
    *out = NULL;
}

/* ---- lookups ---- */

const char *td_checkpoint_path(const td_checkpoint *ck) {
    return ck->path;
}

const td_gguf *td_checkpoint_gguf(const td_checkpoint *ck) {
    return ck->n_ggufs ? ck->ggufs[0] : NULL;
}

const char *td_checkpoint_assistant(const td_checkpoint *ck) {
    return ck->assistant;
}

const char *td_checkpoint_note(const td_checkpoint *ck) {
    return ck->note;
}

bool td_checkpoint_synthetic(const td_checkpoint *ck) {
    return json_is_true(json_object_get(ck->config, TD_SYNTHETIC_FIELD));
}

const char *td_checkpoint_known_name(const td_checkpoint *ck, const td_tensor *t) {
    const char *known = ck->known ? ck->known[t - ck->views] : NULL;
    return known ? known : t->name;
}

const json_t *td_checkpoint_config(const td_checkpoint *ck) {
    return ck->config;
}

const json_t *td_checkpoint_generation_config(const td_checkpoint *ck) {
    return ck->generation;
}

size_t td_checkpoint_n_tensors(const td_checkpoint *ck) {
    return ck->n_tensors;
}

const td_tensor *td_checkpoint_tensor_at(const td_checkpoint *ck, size_t i) {
    return ck->tensors[i];
}

size_t td_checkpoint_file_bytes(const td_checkpoint *ck) {
    return ck->file_bytes;
}

const td_tensor *td_checkpoint_find(const td_checkpoint *ck, const char *name) {
    const td_name_slot *slot = td_name_map_find(&ck->names, name);
    return slot ? slot->value : NULL;
}

const char *td_checkpoint_called(char out[TD_CALLED_SIZE], const char *asked, const td_tensor *t) {
    char a[TD_SHOWN_SIZE], b[TD_SHOWN_SIZE];
    td_shown(a, asked, strlen(asked));
    if (!t || strcmp(asked, t->name) == 0)
        snprintf(out, TD_CALLED_SIZE, "\"%s\"", a);
    else
        snprintf(out, TD_CALLED_SIZE, "\"%s\" (\"%s\")", a, td_shown(b, t->name, strlen(t->name)));
    return out;
}

/* ---- aliases ---- */

/* Room for one more alias. */
static bool reserve_alias(td_checkpoint *ck) {
    if (ck->n_aliases < ck->aliases_capacity)
        return true;
    size_t wanted = ck->aliases_capacity ? ck->aliases_capacity * 2 : 64;
    char **p = td_realloc(ck->aliases, wanted, sizeof *p);
    if (!p)
        return false;
    ck->aliases = p;
    ck->aliases_capacity = wanted;
    return true;
}

td_status td_checkpoint_alias(td_checkpoint *ck, const char *alias, const char *name, td_error *err) {
    char called[TD_CALLED_SIZE], first[TD_SHOWN_SIZE], second[TD_SHOWN_SIZE];
    const td_tensor *t = td_checkpoint_find(ck, name), *other = td_checkpoint_find(ck, alias);
    if (!t)
        return td_fail(err, TD_E_MODEL, "%s: no tensor %s", ck->path, td_checkpoint_called(called, name, NULL));
    if (other == t)
        return TD_OK;
    if (other)
        return td_fail(err, TD_E_FORMAT, "%s: tensors \"%s\" and \"%s\" are both called %s", ck->path,
                       td_shown(first, other->name, strlen(other->name)), td_shown(second, t->name, strlen(t->name)),
                       td_checkpoint_called(called, alias, NULL));
    char *copy = td_strdup(alias);
    if (!copy || !reserve_alias(ck) || !td_name_map_add(&ck->names, copy, t)) {
        td_free(copy);
        return no_memory(ck, err);
    }
    ck->aliases[ck->n_aliases++] = copy;
    return TD_OK;
}
