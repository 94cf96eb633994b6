/* checkpoint_gguf.c - a GGUF model as a checkpoint.
 *
 * The file's tensors are entered under their own names and, as aliases, under the published ones. Two shapes differ
 * from the published ones by dimensions of one element and are put right here; nothing else is touched, and no value
 * is: every tensor stays in the map. The configs are made of the metadata last, since some of what they say is read
 * off the tensors. A model split in parts is opened by its first part, which says how many there are. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "format/checkpoint_impl.h"
#include "format/gguf_config.h"
#include "format/json_scan.h"

#define MAX_PARTS 99999 /* five digits number them */

static td_status no_memory(const char *path, td_error *err) {
    return td_fail(err, TD_E_NOMEM, "%s: out of memory", path);
}

/* ---- parts ---- */

static td_status add_part(td_checkpoint *ck, const char *path, td_error *err) {
    td_gguf **ggufs = td_realloc(ck->ggufs, ck->n_ggufs + 1, sizeof *ggufs);
    if (!ggufs)
        return no_memory(path, err);
    ck->ggufs = ggufs;
    TD_TRY(td_gguf_open(&ggufs[ck->n_ggufs], path, err));
    ck->file_bytes += td_gguf_file_bytes(ggufs[ck->n_ggufs++]);
    return TD_OK;
}

/* "<stem>-ddddd-of-ddddd.gguf": the length of the stem; 0: not of this form. */
static size_t stem_of_part(const char *path, unsigned *number, unsigned *total) {
    static const char pattern[] = "-ddddd-of-ddddd.gguf"; /* d: a digit; no other d in it */
    size_t n = strlen(path), m = sizeof pattern - 1;
    if (n <= m)
        return 0;
    const char *at = path + n - m;
    for (size_t i = 0; i < m; i++)
        if (pattern[i] == 'd' ? at[i] < '0' || at[i] > '9' : at[i] != pattern[i])
            return 0;
    *number = *total = 0;
    for (size_t i = 0; i < 5; i++) {
        *number = *number * 10 + (unsigned)(at[1 + i] - '0');
        *total = *total * 10 + (unsigned)(at[10 + i] - '0');
    }
    return n - m;
}

static td_status open_part(td_checkpoint *ck, const char *first, size_t stem, unsigned i, unsigned n, td_error *err) {
    td_buf path;
    uint32_t number;
    td_buf_init(&path, stem + 32);
    (void)td_buf_printf(&path, "%.*s-%05u-of-%05u.gguf", (int)stem, first, i + 1, n);
    td_status st = path.failed ? no_memory(first, err) : add_part(ck, path.data, err);
    td_buf_free(&path);
    if (st != TD_OK)
        return st;
    const td_gguf *part = ck->ggufs[ck->n_ggufs - 1];
    TD_TRY(td_gguf_u32(part, "split.no", 0, UINT32_MAX, &number, err));
    if (number != i)
        return td_fail(err, TD_E_FORMAT, "%s: \"split.no\" is %u, expected %u", td_gguf_path(part), number, i);
    return TD_OK;
}

/* The other parts of a split model. */
static td_status open_parts(td_checkpoint *ck, const char *path, td_error *err) {
    const td_gguf *first = ck->ggufs[0];
    uint32_t n, no;
    unsigned number, total;
    TD_TRY(td_gguf_u32_or(first, "split.count", 0, MAX_PARTS, 0, &n, err));
    if (n <= 1)
        return TD_OK;
    size_t stem = stem_of_part(path, &number, &total);
    TD_TRY(td_gguf_u32_or(first, "split.no", 0, UINT32_MAX, 0, &no, err));
    if (!stem || number != 1 || total != n || no != 0)
        return td_fail(err, TD_E_FORMAT, "%s: one of %u parts, expected the first, named like model-00001-of-%05u.gguf",
                       path, n, n);
    for (unsigned i = 1; i < n; i++)
        TD_TRY(open_part(ck, path, stem, i, n, err));
    return TD_OK;
}

/* ---- tensors ---- */

/* The convolution's weights get the single input channel of every output channel, the gate of the shared expert its
 * single row. */
static void restore_shape(td_tensor *t) {
    const size_t n = strlen(t->name);
    static const char conv[] = ".ssm_conv1d.weight", gate[] = ".ffn_gate_inp_shexp.weight";
    if (n > sizeof conv && strcmp(t->name + n - (sizeof conv - 1), conv) == 0 && t->n_dims == 2) {
        t->dim[2] = 1;
        t->n_dims = 3;
    } else if (n > sizeof gate && strcmp(t->name + n - (sizeof gate - 1), gate) == 0 && t->n_dims == 1) {
        t->dim[1] = t->dim[0];
        t->dim[0] = 1;
        t->n_dims = 2;
    }
}

static td_status enter(td_checkpoint *ck, const td_gguf *part, const td_tensor *t, td_error *err) {
    td_tensor *view = &ck->views[ck->n_tensors];
    char shown[TD_SHOWN_SIZE];
    *view = *t;
    restore_shape(view);
    if (td_name_map_find(&ck->names, view->name))
        return td_fail(err, TD_E_FORMAT, "%s: tensor \"%s\" is in another part too", td_gguf_path(part),
                       td_shown(shown, view->name, strlen(view->name)));
    if (!td_name_map_add(&ck->names, view->name, view))
        return no_memory(ck->path, err);
    ck->tensors[ck->n_tensors++] = view;
    return TD_OK;
}

static td_status enter_tensors(td_checkpoint *ck, td_error *err) {
    size_t total = 0;
    for (size_t i = 0; i < ck->n_ggufs; i++)
        total += td_gguf_n_tensors(ck->ggufs[i]);
    ck->tensors = td_calloc(total, sizeof *ck->tensors);
    ck->views = td_calloc(total, sizeof *ck->views);
    ck->known = td_calloc(total, sizeof *ck->known);
    if (!ck->tensors || !ck->views || !ck->known)
        return no_memory(ck->path, err);
    for (size_t i = 0; i < ck->n_ggufs; i++)
        for (size_t j = 0; j < td_gguf_n_tensors(ck->ggufs[i]); j++)
            TD_TRY(enter(ck, ck->ggufs[i], td_gguf_tensor_at(ck->ggufs[i], j), err));
    return TD_OK;
}

/* Every tensor under its published name too. One without stays, for its family to refuse. */
static td_status name_tensors(td_checkpoint *ck, td_error *err) {
    td_gguf_arch arch;
    uint32_t n_layers;
    TD_TRY(td_gguf_read_arch(ck->ggufs[0], &arch, &n_layers, err));
    for (size_t i = 0; i < ck->n_tensors; i++) {
        char known[TD_GGUF_KNOWN_NAME_SIZE];
        if (!td_gguf_known_name(arch, n_layers, ck->tensors[i]->name, known))
            continue;
        ck->known[i] = td_strdup(known);
        if (!ck->known[i])
            return no_memory(ck->path, err);
        TD_TRY(td_checkpoint_alias(ck, known, ck->tensors[i]->name, err));
    }
    return TD_OK;
}

/* Once all parts are open. */
static td_status finish(td_checkpoint *ck, td_error *err) {
    TD_TRY(enter_tensors(ck, err));
    TD_TRY(name_tensors(ck, err));
    return td_gguf_make_config(ck, ck->ggufs[0], 0, &ck->config, &ck->generation, err);
}

td_status td_checkpoint_open_gguf(td_checkpoint *ck, const char *path, td_error *err) {
    TD_TRY(add_part(ck, path, err));
    TD_TRY(open_parts(ck, path, err));
    return finish(ck, err);
}

static td_status parse_whole(td_checkpoint *ck, const uint8_t *data, size_t size, td_error *err) {
    ck->ggufs = td_calloc(1, sizeof *ck->ggufs);
    if (!ck->ggufs)
        return no_memory(ck->path, err);
    TD_TRY(td_gguf_parse(&ck->ggufs[0], data, size, ck->path, err));
    ck->n_ggufs = 1;
    ck->file_bytes = size;
    return finish(ck, err);
}

td_status td_checkpoint_parse_gguf(td_checkpoint **out, const uint8_t *data, size_t size, const char *path,
                                   td_error *err) {
    *out = NULL;
    td_checkpoint *ck = td_calloc(1, sizeof *ck);
    if (!ck)
        return no_memory(path, err);
    td_name_map_init(&ck->names);
    ck->path = td_strdup(path);
    td_status st = ck->path ? parse_whole(ck, data, size, err) : no_memory(path, err);
    if (st != TD_OK)
        td_checkpoint_close(&ck);
    *out = ck;
    return st;
}

/* ---- a directory ---- */

static bool has_suffix(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n > m && strcmp(s + n - m, suffix) == 0;
}

/* Files of weights that are no model by themselves: vision towers, separate draft heads; and later parts. */
static bool is_side_file(const char *name) {
    unsigned number, total;
    return strncmp(name, "mmproj", 6) == 0 || strncmp(name, "mtp-", 4) == 0 ||
           (stem_of_part(name, &number, &total) && number != 1);
}

td_status td_checkpoint_find_gguf(const char *dir, char **path, td_error *err) {
    char found[256] = "", second[256] = "";
    bool safetensors = false;
    *path = NULL;
    DIR *d = opendir(dir);
    if (!d)
        return td_fail(err, TD_E_IO, "%s: %s", dir, strerror(errno));
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        safetensors = safetensors || has_suffix(e->d_name, ".safetensors") ||
                      strcmp(e->d_name, "model.safetensors.index.json") == 0;
        if (!has_suffix(e->d_name, ".gguf") || is_side_file(e->d_name))
            continue;
        snprintf(found[0] ? second : found, sizeof found, "%s", e->d_name);
    }
    closedir(d);
    if (safetensors || !found[0])
        return TD_OK;
    if (second[0])
        return td_fail(err, TD_E_FORMAT, "%s: several models, among them %s and %s; name one of the files", dir,
                       strcmp(found, second) < 0 ? found : second, strcmp(found, second) < 0 ? second : found);
    *path = td_path_join(dir, found);
    return *path ? TD_OK : no_memory(dir, err);
}
