/* checkpoint_gguf.c - a GGUF model as a checkpoint.
 *
 * The file's tensors are entered under their own names and, as aliases, under the published ones. Two shapes differ
 * from the published ones by dimensions of one element and are put right here; nothing else is touched, and no value
 * is: every tensor stays in the map. The configs are made of the metadata last, since some of what they say is read
 * off the tensors. A model split in parts is opened by its first part, which says how many there are.
 *
 * Draft heads may lie in a file of their own beside the model ("mtp-<name>.gguf"). What llama.cpp's converter leaves
 * out of a trunk and writes there (--no-mtp, --mtp) is the blocks behind the trunk's, and copies of the trunk's tables,
 * so that the file can be opened alone: the blocks are joined to the model here, and the copies left alone. The drafter
 * of a Gemma is a model of its own; where it lies is remembered. Neither was asked for by whoever named the directory,
 * so a file that does not fit is no error but a note, which whoever asks why nothing drafts is told. */
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
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

static bool has_suffix(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n > m && strcmp(s + n - m, suffix) == 0;
}

/* ---- parts ---- */

/* Takes the file, on failure too. */
static td_status add_open(td_checkpoint *ck, td_gguf *g, const char *path, td_error *err) {
    td_gguf **ggufs = td_realloc(ck->ggufs, ck->n_ggufs + 1, sizeof *ggufs);
    if (!ggufs) {
        td_gguf_close(&g);
        return no_memory(path, err);
    }
    ck->ggufs = ggufs;
    ck->ggufs[ck->n_ggufs++] = g;
    ck->file_bytes += td_gguf_file_bytes(g);
    return TD_OK;
}

static td_status add_part(td_checkpoint *ck, const char *path, td_error *err) {
    td_gguf *g;
    TD_TRY(td_gguf_open(&g, path, err));
    return add_open(ck, g, path, err);
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

/* Of a file of heads only the blocks behind the trunk's count: the rest is copies of what the model has. */
static bool is_entered(const td_checkpoint *ck, const td_gguf *part, const td_tensor *t) {
    return part != ck->heads ||
           (strncmp(t->name, "blk.", 4) == 0 && strtoul(t->name + 4, NULL, 10) >= ck->first_draft_layer);
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
            if (is_entered(ck, ck->ggufs[i], td_gguf_tensor_at(ck->ggufs[i], j)))
                TD_TRY(enter(ck, ck->ggufs[i], td_gguf_tensor_at(ck->ggufs[i], j), err));
    return TD_OK;
}

/* NVFP4 made by other tools has a factor for a whole tensor, or one an expert, which would have to be multiplied in. */
static td_status refuse_factor(const td_checkpoint *ck, const char *name, td_error *err) {
    char weight[TD_GGUF_MAX_NAME + 16], shown[TD_SHOWN_SIZE];
    const char *end = has_suffix(name, ".input_scale") ? ".input_scale" : ".scale";
    if (!has_suffix(name, end))
        return TD_OK;
    snprintf(weight, sizeof weight, "%.*s.weight", (int)(strlen(name) - strlen(end)), name);
    const td_tensor *t = td_checkpoint_find(ck, weight);
    if (!t || t->dtype != TD_DTYPE_BLOCKS || t->blocks != TD_FORMAT_NVFP4_BLOCK)
        return TD_OK;
    return td_fail(err, TD_E_UNSUPPORTED, "%s: tensor \"%s\": NVFP4 with scales of whole tensors is not read", ck->path,
                   td_shown(shown, name, strlen(name)));
}

/* Every tensor under its published name too. One without stays, for its family to refuse. */
static td_status name_tensors(td_checkpoint *ck, td_error *err) {
    td_gguf_arch arch;
    uint32_t n_layers;
    TD_TRY(td_gguf_read_arch(ck->ggufs[0], &arch, &n_layers, err));
    for (size_t i = 0; i < ck->n_tensors; i++) {
        char known[TD_GGUF_KNOWN_NAME_SIZE];
        if (!td_gguf_known_name(arch, n_layers, ck->tensors[i]->name, known)) {
            TD_TRY(refuse_factor(ck, ck->tensors[i]->name, err));
            continue;
        }
        ck->known[i] = td_strdup(known);
        if (!ck->known[i])
            return no_memory(ck->path, err);
        TD_TRY(td_checkpoint_alias(ck, known, ck->tensors[i]->name, err));
    }
    return TD_OK;
}

/* A file of heads that was given as the model. */
static td_status refuse_heads_alone(const td_checkpoint *ck, td_error *err) {
    bool heads = false;
    for (size_t i = 0; i < ck->n_tensors; i++) {
        if (strncmp(ck->tensors[i]->name, "blk.0.", 6) == 0)
            return TD_OK;
        heads = heads || strstr(ck->tensors[i]->name, ".nextn.eh_proj.");
    }
    return heads ? td_fail(err, TD_E_MODEL,
                           "%s: draft heads without a model; put the file beside its model, named mtp-*.gguf, and give "
                           "the directory",
                           ck->path)
                 : TD_OK;
}

/* Once all parts are open. */
static td_status finish(td_checkpoint *ck, td_error *err) {
    TD_TRY(enter_tensors(ck, err));
    TD_TRY(refuse_heads_alone(ck, err));
    TD_TRY(name_tensors(ck, err));
    return td_gguf_make_config(ck, ck->ggufs[0], ck->n_draft_layers, &ck->config, &ck->generation, err);
}

/* ---- draft heads beside the model ---- */

static const char *name_in(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void note(td_checkpoint *ck, const char *path, const char *fmt, ...) TD_PRINTF(3, 4);

static void note(td_checkpoint *ck, const char *path, const char *fmt, ...) {
    char shown[TD_SHOWN_SIZE];
    va_list args;
    td_shown(shown, name_in(path), strlen(name_in(path)));
    size_t n = (size_t)snprintf(ck->note, sizeof ck->note, "%s lies beside the model and is not used: ", shown);
    va_start(args, fmt);
    vsnprintf(ck->note + n, sizeof ck->note - n, fmt, args);
    va_end(args);
}

/* A count that a file's metadata has under its architecture's name; 0: it has none. */
static uint32_t count_of(const td_gguf *g, const char *rest) {
    const char *arch;
    size_t size;
    char key[160];
    td_error ignored;
    uint32_t v = 0;
    if (td_gguf_string_or_null(g, "general.architecture", &arch, &size, &ignored) != TD_OK || !arch || size > 32)
        return 0;
    snprintf(key, sizeof key, "%.*s.%s", (int)size, arch, rest);
    return td_gguf_u32_or(g, key, 0, INT32_MAX, 0, &v, &ignored) == TD_OK ? v : 0;
}

static bool has_block(const td_checkpoint *ck, uint32_t block) {
    char name[64];
    snprintf(name, sizeof name, "blk.%u.nextn.eh_proj.weight", block);
    for (size_t i = 0; i < ck->n_ggufs; i++)
        if (td_gguf_tensor(ck->ggufs[i], name))
            return true;
    return false;
}

/* What a file of heads is to the model that it lies beside. */
typedef enum role { ROLE_NONE, ROLE_JOINED, ROLE_ASSISTANT } role;

/* Whether draft layers are those that the model lacks; a note says why not. */
static role judge_layers(td_checkpoint *ck, const char *path, const td_gguf *heads, uint32_t n_layers,
                         uint32_t n_trunk_layers) {
    const uint32_t width = count_of(heads, "embedding_length"), wanted = count_of(ck->ggufs[0], "embedding_length");
    if (has_block(ck, n_trunk_layers))
        note(ck, path, "the model has draft heads of its own");
    else if (!count_of(heads, "nextn_predict_layers"))
        note(ck, path, "it has no draft layers (nextn_predict_layers)");
    else if (n_layers != n_trunk_layers || width != wanted)
        note(ck, path, "it was made for %u layers of width %u, but the model has %u of width %u", n_layers, width,
             n_trunk_layers, wanted);
    else
        return ROLE_JOINED;
    return ROLE_NONE;
}

/* A note says why the file has no role; a fault of the model itself is told later. */
static role judge_heads(td_checkpoint *ck, const char *path, const td_gguf *heads) {
    td_gguf_arch trunk, arch;
    uint32_t n_trunk_layers, n_layers;
    td_error why;
    if (td_gguf_read_arch(ck->ggufs[0], &trunk, &n_trunk_layers, &why) != TD_OK)
        return ROLE_NONE;
    if (td_gguf_read_arch(heads, &arch, &n_layers, &why) != TD_OK)
        note(ck, path, "%s", why.message);
    else if (trunk == TD_GGUF_ARCH_GEMMA4 && arch == TD_GGUF_ARCH_GEMMA4_ASSISTANT)
        return ROLE_ASSISTANT;
    else if (arch != trunk || (arch != TD_GGUF_ARCH_QWEN35 && arch != TD_GGUF_ARCH_QWEN35MOE))
        note(ck, path, "it holds no heads for a model of this architecture");
    else
        return judge_layers(ck, path, heads, n_layers, n_trunk_layers);
    return ROLE_NONE;
}

/* Gives the file its role. */
static td_status consider_heads(td_checkpoint *ck, const char *path, td_error *err) {
    td_gguf *heads;
    td_error why;
    td_status st = td_gguf_open(&heads, path, &why);
    if (st == TD_E_NOMEM)
        return no_memory(path, err);
    if (st != TD_OK) {
        note(ck, path, "%s", why.message);
        return TD_OK;
    }
    const role r = judge_heads(ck, path, heads);
    if (r == ROLE_JOINED) {
        ck->heads = heads;
        ck->n_draft_layers = count_of(heads, "nextn_predict_layers");
        ck->first_draft_layer = count_of(heads, "block_count") - ck->n_draft_layers;
        return add_open(ck, heads, path, err);
    }
    td_gguf_close(&heads);
    if (r == ROLE_ASSISTANT)
        ck->assistant = td_strdup(path);
    return r == ROLE_ASSISTANT && !ck->assistant ? no_memory(path, err) : TD_OK;
}

td_status td_checkpoint_open_gguf(td_checkpoint *ck, const char *path, const char *heads, td_error *err) {
    TD_TRY(add_part(ck, path, err));
    TD_TRY(open_parts(ck, path, err));
    if (heads)
        TD_TRY(consider_heads(ck, heads, err));
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

/* Vision towers, and later parts: no model by themselves. */
static bool is_passed_over(const char *name) {
    unsigned number, total;
    return strncmp(name, "mmproj", 6) == 0 || (stem_of_part(name, &number, &total) && number != 1);
}

/* Files of one kind in a directory. */
typedef struct kind {
    char first[256], second[256]; /* two of them */
} kind;

static bool is_heads(const char *name) {
    return strncmp(name, "mtp-", 4) == 0;
}

static void take_file(kind *k, const char *name) {
    snprintf(k->first[0] ? k->second : k->first, sizeof k->first, "%s", name);
}

/* What is there of models and of files of heads; both empty where there are safetensors. */
static td_status list_files(const char *dir, kind *models, kind *heads, td_error *err) {
    bool safetensors = false;
    DIR *d = opendir(dir);
    if (!d)
        return td_fail(err, TD_E_IO, "%s: %s", dir, strerror(errno));
    for (const struct dirent *e; (e = readdir(d)) != NULL;) {
        safetensors = safetensors || has_suffix(e->d_name, ".safetensors") ||
                      strcmp(e->d_name, "model.safetensors.index.json") == 0;
        if (has_suffix(e->d_name, ".gguf") && !is_passed_over(e->d_name))
            take_file(is_heads(e->d_name) ? heads : models, e->d_name);
    }
    closedir(d);
    if (safetensors)
        *models = *heads = (kind){0};
    return TD_OK;
}

void td_gguf_files_free(td_gguf_files *files) {
    td_free(files->model);
    td_free(files->heads);
    *files = (td_gguf_files){0};
}

td_status td_checkpoint_find_gguf(const char *dir, td_gguf_files *out, td_error *err) {
    kind models = {0}, heads = {0};
    *out = (td_gguf_files){0};
    TD_TRY(list_files(dir, &models, &heads, err));
    const kind *model = models.first[0] ? &models : &heads;
    if (!model->first[0])
        return TD_OK;
    if (model->second[0]) {
        const bool in_order = strcmp(model->first, model->second) < 0;
        return td_fail(err, TD_E_FORMAT, "%s: several models, among them %s and %s; name one of the files", dir,
                       in_order ? model->first : model->second, in_order ? model->second : model->first);
    }
    out->model = td_path_join(dir, model->first);
    if (model == &models && heads.second[0])
        td_shown(out->several, heads.first, strlen(heads.first));
    else if (model == &models && heads.first[0])
        out->heads = td_path_join(dir, heads.first);
    if (out->model && (out->heads || !heads.first[0] || heads.second[0] || model == &heads))
        return TD_OK;
    td_gguf_files_free(out);
    return no_memory(dir, err);
}

void td_checkpoint_note_neighbour(td_checkpoint *ck) {
    kind models = {0}, heads = {0};
    td_error ignored;
    const char *name = name_in(ck->path);
    char dir[PATH_MAX];
    if (is_heads(name) || strlen(ck->path) >= sizeof dir)
        return;
    snprintf(dir, sizeof dir, "%.*s", name == ck->path ? 1 : (int)(name - ck->path), name == ck->path ? "." : ck->path);
    if (list_files(dir, &models, &heads, &ignored) == TD_OK && heads.first[0])
        note(ck, heads.first, "the model was named by its file; name the directory, or give an assistant by its file");
}
