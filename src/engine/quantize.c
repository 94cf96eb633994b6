/* quantize.c - carries out a plan: shards, their tensors block by block, the other files, the configuration. */
#include "engine/quantize.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/pool.h"
#include "engine/affix.h"
#include "engine/outdir.h"
#include "engine/quantize_plan.h"
#include "engine/shard.h"

#define TILE_WEIGHTS (1u << 20) /* weights a thread has in hand */
#define BATCH_PER_THREAD 4      /* tiles between two reports of progress */
#define COPY_BYTES ((size_t)16 << 20)

td_quantize_options td_quantize_options_default(void) {
    return (td_quantize_options){.bits = 4, .group = 64, .shard_bytes = 5000000000u};
}

double td_quantize_error(const td_quantize_class *c) {
    return c->square_of > 0 ? sqrt(c->square / c->square_of) : 0;
}

typedef struct job {
    const td_quantize_options *opt;
    td_quantize_report *report;
    td_checkpoint *ck;
    td_quantize_plan plan;
    td_outdir dir;
    td_pool *pool;
    td_log log;
    uint64_t done, total; /* source bytes */
} job;

static td_status no_memory(const job *j, td_error *err) {
    return td_fail(err, TD_E_NOMEM, "%s: out of memory", td_checkpoint_path(j->ck));
}

/* Moves the bar; stops the conversion when the caller says so. */
static td_status advance(job *j, uint64_t bytes, td_error *err) {
    j->done += bytes;
    if (j->opt->progress && !j->opt->progress(j->opt->user, "quantize", j->done, j->total))
        return td_fail(err, TD_E_CANCELLED, "cancelled");
    return TD_OK;
}

/* ---- the tensors of an item in the result ---- */

static td_format format_of(td_dtype t) {
    return t == TD_DTYPE_F32 ? TD_FORMAT_F32 : t == TD_DTYPE_F16 ? TD_FORMAT_F16 : TD_FORMAT_BF16;
}

static td_status layout_of(const td_quantize_item *it, td_matrix *out, td_error *err) {
    *out = (td_matrix){.name = it->name};
    return td_matrix_layout(out, TD_FORMAT_AFFINE, it->bits, it->group, it->source->dtype, it->n_stack, it->n_out,
                            it->n_in, err);
}

static td_tensor tensor_like(const td_quantize_item *it, char *name, td_dtype dtype, uint64_t last, size_t row_bytes) {
    td_tensor t = {.name = name, .dtype = dtype, .n_dims = it->source->n_dims};
    for (int d = 0; d < t.n_dims; d++)
        t.dim[d] = it->source->dim[d];
    t.dim[t.n_dims - 2] = it->n_out;
    t.dim[t.n_dims - 1] = last;
    t.size = row_bytes * it->n_stack * it->n_out;
    return t;
}

static char *with_suffix(const char *module, const char *suffix) {
    char *name = td_malloc(strlen(module) + strlen(suffix) + 1);
    if (name)
        sprintf(name, "%s%s", module, suffix);
    return name;
}

/* Appends one tensor (kept) or three (quantised) to t; their names are owned by t. Returns how many. */
static td_status tensors_of(const job *j, const td_quantize_item *it, td_tensor t[3], int *n, td_error *err) {
    if (!it->quantized) {
        t[0] = *it->source;
        t[0].name = td_strdup(it->name);
        if (it->n_out != it->source_rows) {
            t[0].dim[t[0].n_dims - 2] = it->n_out;
            t[0].size = t[0].size / it->source_rows * it->n_out;
        }
        *n = 1;
    } else {
        td_matrix m;
        TD_TRY(layout_of(it, &m, err));
        uint64_t groups = it->n_in / it->group;
        t[0] = tensor_like(it, with_suffix(it->name, ".weight"), TD_DTYPE_U32, m.row_bytes / 4, m.row_bytes);
        t[1] = tensor_like(it, with_suffix(it->name, ".scales"), it->source->dtype, groups, m.scale_row_bytes);
        t[2] = tensor_like(it, with_suffix(it->name, ".biases"), it->source->dtype, groups, m.scale_row_bytes);
        *n = 3;
    }
    for (int i = 0; i < *n; i++)
        if (t[i].name == NULL) {
            for (int k = 0; k < *n; k++)
                td_free((char *)t[k].name);
            return no_memory(j, err);
        }
    return TD_OK;
}

/* ---- a quantised item, tile by tile ---- */

typedef struct tile_result {
    td_status st;
    td_error err;
    double square, square_of;
} tile_result;

typedef struct tiling {
    const td_quantize_item *it;
    const td_shard *shard;
    const uint64_t *offset;   /* [3] of weight, scales, biases in the file */
    td_matrix source, target; /* whole stacks; the target has a layout only */
    uint32_t rows;            /* of a tile */
    uint32_t tiles_each;      /* tiles a matrix */
    uint32_t first;           /* tile of the batch's first */
    tile_result *results;
} tiling;

static td_status measure(const td_matrix *a, const td_matrix *b, tile_result *r, td_error *err) {
    float *x = td_malloc_aligned((size_t)a->n_in * sizeof *x), *y = td_malloc_aligned((size_t)a->n_in * sizeof *y);
    td_status st = x && y ? TD_OK : td_fail(err, TD_E_NOMEM, "%s: out of memory for a row", a->name);
    for (uint32_t row = 0; row < a->n_out && st == TD_OK; row++) {
        td_matrix_row_f32(a, row, x);
        td_matrix_row_f32(b, row, y);
        for (uint32_t i = 0; i < a->n_in; i++) {
            double e = (double)x[i] - y[i];
            r->square += e * e;
            r->square_of += (double)x[i] * x[i];
        }
    }
    td_free_aligned(x);
    td_free_aligned(y);
    return st;
}

static td_status write_parts(const tiling *t, const td_matrix *q, uint64_t row, td_error *err) {
    size_t n = q->n_out;
    TD_TRY(td_shard_write(t->shard, t->offset[0] + row * q->row_bytes, q->data, n * q->row_bytes, err));
    TD_TRY(td_shard_write(t->shard, t->offset[1] + row * q->scale_row_bytes, q->scales, n * q->scale_row_bytes, err));
    return td_shard_write(t->shard, t->offset[2] + row * q->scale_row_bytes, q->biases, n * q->scale_row_bytes, err);
}

/* A tile is rows [row, row + n) of what is taken of one matrix of the stack. */
typedef struct tile_place {
    uint32_t expert, row, n;
} tile_place;

static tile_place place_of(const tiling *t, uint32_t index) {
    uint32_t row = index % t->tiles_each * t->rows, left = t->it->n_out - row;
    return (tile_place){index / t->tiles_each, row, left < t->rows ? left : t->rows};
}

static void run_tile(void *arg, int tile, int thread) {
    (void)thread;
    const tiling *t = arg;
    tile_result *r = &t->results[tile];
    tile_place at = place_of(t, t->first + (uint32_t)tile);
    uint32_t expert = at.expert, row = at.row, n = at.n;
    td_matrix whole = td_matrix_at(&t->source, expert);
    td_matrix rows = td_matrix_rows(&whole, t->it->row0 + row, n), q;
    r->st = td_matrix_quantize(&q, &rows, t->it->bits, t->it->group, t->it->source->dtype, &r->err);
    if (r->st != TD_OK) {
        if (row + expert > 0)
            td_error_prefix(&r->err, r->st, "matrix %u, counting rows from %u", expert, row);
        return;
    }
    r->st = write_parts(t, &q, (uint64_t)expert * t->it->n_out + row, &r->err);
    if (r->st == TD_OK)
        r->st = measure(&rows, &q, r, &r->err);
    td_matrix_free(&q);
}

/* Of the mapped source, the rows that a batch of n tiles has read, and what lies between them: a conversion does not
 * fill the memory with a file it has passed. */
static void forget_batch(const tiling *t, int n) {
    tile_place a = place_of(t, t->first), b = place_of(t, t->first + (uint32_t)n - 1);
    size_t begin = (size_t)a.expert * t->it->source_rows + t->it->row0 + a.row;
    size_t end = (size_t)b.expert * t->it->source_rows + t->it->row0 + b.row + b.n;
    td_map_forget(t->source.data + begin * t->source.row_bytes, t->source.data + end * t->source.row_bytes);
}

static td_status run_batch(job *j, tiling *t, int n, td_quantize_class *c, td_error *err) {
    memset(t->results, 0, (size_t)n * sizeof *t->results);
    td_pool_run(j->pool, run_tile, t, n);
    forget_batch(t, n);
    for (int i = 0; i < n; i++) {
        if (t->results[i].st != TD_OK) {
            if (err)
                *err = t->results[i].err;
            return t->results[i].st;
        }
        c->square += t->results[i].square;
        c->square_of += t->results[i].square_of;
    }
    return TD_OK;
}

static td_status quantize_item(job *j, const td_quantize_item *it, const td_shard *shard, const uint64_t *offset,
                               td_error *err) {
    tiling t = {.it = it, .shard = shard, .offset = offset};
    t.source = (td_matrix){.name = it->source->name, .data = it->source->data};
    TD_TRY(td_matrix_layout(&t.source, format_of(it->source->dtype), 0, 0, 0, it->n_stack, it->source_rows, it->n_in,
                            err));
    TD_TRY(layout_of(it, &t.target, err));
    t.rows = it->n_in < TILE_WEIGHTS ? TILE_WEIGHTS / it->n_in : 1;
    t.tiles_each = (it->n_out + t.rows - 1) / t.rows;
    uint64_t n_tiles = (uint64_t)t.tiles_each * it->n_stack;
    int batch = BATCH_PER_THREAD * td_pool_n_threads(j->pool);
    if (n_tiles > UINT32_MAX)
        return td_fail(err, TD_E_SHAPE, "%s: too large", it->source->name);
    t.results = td_calloc((size_t)batch, sizeof *t.results);
    if (t.results == NULL)
        return no_memory(j, err);
    td_status st = TD_OK;
    uint64_t bytes = it->source->size / it->source_rows * it->n_out;
    td_quantize_class *c = &j->report->by[it->class];
    for (uint64_t at = 0; at < n_tiles && st == TD_OK; at += (uint64_t)batch) {
        int n = n_tiles - at < (uint64_t)batch ? (int)(n_tiles - at) : batch;
        t.first = (uint32_t)at;
        st = run_batch(j, &t, n, c, err);
        if (st == TD_OK)
            st = advance(j, bytes / n_tiles * (uint64_t)n, err);
    }
    td_free(t.results);
    c->quantized += it->params;
    c->bytes += td_matrix_bytes(&t.target);
    return st;
}

/* ---- a kept item ---- */

static td_status copy_bytes(job *j, const td_shard *shard, uint64_t offset, const uint8_t *from, size_t n,
                            td_error *err) {
    while (n > 0) {
        size_t piece = n < COPY_BYTES ? n : COPY_BYTES;
        TD_TRY(td_shard_write(shard, offset, from, piece, err));
        td_map_forget(from, from + piece);
        TD_TRY(advance(j, piece, err));
        offset += piece;
        from += piece;
        n -= piece;
    }
    return TD_OK;
}

/* The item's rows of each matrix lie together; with all rows taken that is the whole tensor. */
static td_status copy_item(job *j, const td_quantize_item *it, const td_shard *shard, uint64_t offset, td_error *err) {
    size_t each = it->source->size / it->n_stack, row = each / it->source_rows;
    size_t taken = it->n_out == it->source_rows ? each : row * it->n_out;
    for (uint32_t e = 0; e < it->n_stack && it->source->size > 0; e++)
        TD_TRY(copy_bytes(j, shard, offset + e * taken, it->source->data + e * each + row * it->row0, taken, err));
    j->report->by[it->class].bytes += it->source->size / it->source_rows * it->n_out;
    return TD_OK;
}

/* ---- shards ---- */

typedef struct shard_plan {
    size_t first, n; /* items */
    td_tensor *tensors;
    uint64_t *offset;
    size_t n_tensors;
} shard_plan;

static void shard_plan_free(shard_plan *s) {
    for (size_t i = 0; i < s->n_tensors; i++)
        td_free((char *)s->tensors[i].name);
    td_free(s->tensors);
    td_free(s->offset);
}

/* Takes items from `first` on until the file is full; at least one. */
static td_status shard_plan_make(const job *j, size_t first, shard_plan *s, td_error *err) {
    size_t most = j->plan.n_items - first;
    *s = (shard_plan){.first = first};
    s->tensors = td_calloc(3 * most, sizeof *s->tensors);
    s->offset = td_calloc(3 * most, sizeof *s->offset);
    td_status st = s->tensors && s->offset ? TD_OK : no_memory(j, err);
    for (uint64_t bytes = 0; s->n < most && st == TD_OK; s->n++) {
        td_tensor t[3];
        int n;
        if ((st = tensors_of(j, &j->plan.items[first + s->n], t, &n, err)) != TD_OK)
            break;
        uint64_t more = 0;
        for (int i = 0; i < n; i++)
            more += t[i].size;
        if (s->n > 0 && bytes + more > j->opt->shard_bytes) {
            for (int i = 0; i < n; i++)
                td_free((char *)t[i].name);
            break;
        }
        bytes += more;
        memcpy(s->tensors + s->n_tensors, t, (size_t)n * sizeof *t);
        s->n_tensors += (size_t)n;
    }
    if (st != TD_OK)
        shard_plan_free(s);
    return st;
}

static td_status write_items(job *j, const shard_plan *s, const td_shard *shard, td_error *err) {
    const uint64_t *offset = s->offset;
    for (size_t i = 0; i < s->n; i++) {
        const td_quantize_item *it = &j->plan.items[s->first + i];
        j->report->by[it->class].params += it->params;
        if (it->quantized)
            TD_TRY(quantize_item(j, it, shard, offset, err));
        else
            TD_TRY(copy_item(j, it, shard, offset[0], err));
        offset += it->quantized ? 3 : 1;
    }
    return TD_OK;
}

static td_status write_shard(job *j, shard_plan *s, const char *name, json_t *weight_map, td_error *err) {
    char *path;
    td_shard *shard = NULL;
    TD_TRY(td_outdir_add(&j->dir, name, &path, err));
    td_status st = td_shard_open(&shard, path, s->tensors, s->n_tensors, s->offset, err);
    if (st == TD_OK)
        st = write_items(j, s, shard, err);
    if (st == TD_OK)
        st = td_shard_finish(shard, err);
    if (st == TD_OK)
        j->report->bytes_after += td_shard_bytes(shard);
    for (size_t i = 0; i < s->n_tensors && st == TD_OK; i++)
        if (json_object_set_new(weight_map, s->tensors[i].name, json_string(name)) != 0)
            st = no_memory(j, err);
    td_shard_close(&shard);
    td_free(path);
    return st;
}

/* How many files the items fill, by the rule that shard_plan_make follows. */
static td_status count_shards(const job *j, uint32_t *n_shards, td_error *err) {
    *n_shards = 0;
    for (size_t first = 0; first < j->plan.n_items;) {
        shard_plan s;
        TD_TRY(shard_plan_make(j, first, &s, err));
        first += s.n;
        ++*n_shards;
        shard_plan_free(&s);
    }
    return TD_OK;
}

static td_status write_index(job *j, json_t *weight_map, td_error *err) {
    json_t *root = json_pack("{s:{s:I}, s:O}", "metadata", "total_size", (json_int_t)j->report->bytes_after,
                             "weight_map", weight_map);
    char *text = root ? json_dumps(root, JSON_INDENT(2) | JSON_SORT_KEYS) : NULL;
    td_status st =
        text ? td_outdir_put(&j->dir, "model.safetensors.index.json", text, strlen(text), err) : no_memory(j, err);
    free(text);
    json_decref(root);
    return st;
}

static td_status write_shards(job *j, td_error *err) {
    json_t *weight_map = json_object();
    td_status st = count_shards(j, &j->report->n_files, err);
    size_t first = 0;
    for (uint32_t k = 0; k < j->report->n_files && st == TD_OK; k++) {
        char name[64] = "model.safetensors";
        if (j->report->n_files > 1)
            snprintf(name, sizeof name, "model-%05u-of-%05u.safetensors", k + 1, j->report->n_files);
        shard_plan s;
        if ((st = shard_plan_make(j, first, &s, err)) != TD_OK)
            break;
        st = write_shard(j, &s, name, weight_map, err);
        first += s.n;
        shard_plan_free(&s);
    }
    if (st == TD_OK && j->report->n_files > 1)
        st = write_index(j, weight_map, err);
    json_decref(weight_map);
    return st;
}

/* ---- the other files ---- */

/* Weights in whatever format, what was written here, and hidden files stay behind. */
static bool is_copied(const char *name) {
    static const char *const not_these[] = {".safetensors", ".safetensors.index.json",
                                            ".bin",         ".bin.index.json",
                                            ".gguf",        ".pt",
                                            ".pth",         ".h5",
                                            ".msgpack",     ".onnx",
                                            ".tmp"};
    if (name[0] == '.' || strcmp(name, "config.json") == 0)
        return false;
    for (size_t i = 0; i < sizeof not_these / sizeof *not_these; i++)
        if (td_ends_with(name, not_these[i]))
            return false;
    return true;
}

/* The directory of a checkpoint given as a directory or as a file in one; td_free. */
static char *directory_of(const char *path) {
    if (!td_ends_with(path, ".safetensors"))
        return td_strdup(path);
    const char *slash = strrchr(path, '/');
    return slash ? td_strndup(path, (size_t)(slash - path) + (slash == path)) : td_strdup(".");
}

static td_status copy_others(job *j, const char *in, td_error *err) {
    DIR *d = opendir(in);
    if (d == NULL)
        return td_fail(err, TD_E_IO, "%s: %s", in, strerror(errno));
    td_status st = TD_OK;
    for (struct dirent *e; st == TD_OK && (e = readdir(d)) != NULL;) {
        char *from = is_copied(e->d_name) ? td_path_join(in, e->d_name) : NULL;
        if (from && td_file_exists(from) && !td_dir_exists(from))
            st = td_outdir_copy(&j->dir, e->d_name, from, err);
        td_free(from);
    }
    closedir(d);
    return st;
}

static td_status write_config(job *j, td_error *err) {
    json_t *config;
    TD_TRY(td_quantize_plan_config(&j->plan, j->ck, j->opt, &config, err));
    char *text = json_dumps(config, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    td_status st = text ? td_outdir_put(&j->dir, "config.json", text, strlen(text), err) : no_memory(j, err);
    free(text);
    json_decref(config);
    return st;
}

/* ---- all of it ---- */

static td_status check_options(const td_quantize_options *opt, td_error *err) {
    const uint32_t widths[] = {opt->bits, opt->embed_bits ? opt->embed_bits : opt->bits,
                               opt->attention_bits ? opt->attention_bits : opt->bits};
    for (size_t i = 0; i < sizeof widths / sizeof *widths; i++)
        if (widths[i] < 2 || widths[i] > 8 || widths[i] == 7)
            return td_fail(err, TD_E_ARG, "%u bits, expected 2, 3, 4, 5, 6 or 8", widths[i]);
    if (opt->group != 32 && opt->group != 64 && opt->group != 128)
        return td_fail(err, TD_E_ARG, "groups of %u, expected 32, 64 or 128", opt->group);
    return TD_OK;
}

static td_status check_places(const char *in, const char *out, td_error *err) {
    char a[PATH_MAX], b[PATH_MAX];
    if (realpath(in, a) && realpath(out, b) && strcmp(a, b) == 0)
        return td_fail(err, TD_E_ARG, "%s: is the checkpoint to be read; write to another directory", out);
    return TD_OK;
}

static void summarise(job *j) {
    td_quantize_report *r = j->report;
    for (size_t i = 0; i < j->plan.n_items; i++)
        j->plan.items[i].quantized ? r->n_quantized++ : r->n_kept++;
    r->n_left_out = j->plan.n_left_out;
    r->bytes_before = td_checkpoint_file_bytes(j->ck);
    if (j->plan.towers_left_out)
        td_log_info(&j->log, "vision and audio towers are left out: the result reads text");
}

static td_status convert(job *j, const char *in, const char *out, td_error *err) {
    td_pool_options threads = td_pool_options_default();
    threads.n_threads = j->opt->n_threads;
    TD_TRY(td_quantize_plan_make(&j->plan, j->ck, j->opt, err));
    if (j->plan.n_items == 0)
        return td_fail(err, TD_E_MODEL, "%s: holds no tensors", in);
    for (size_t i = 0; i < j->plan.n_items; i++)
        j->total += j->plan.items[i].source->size / j->plan.items[i].source_rows * j->plan.items[i].n_out;
    summarise(j);
    TD_TRY(td_pool_open(&j->pool, &threads, err));
    TD_TRY(td_outdir_open(&j->dir, out, j->opt->force, err));
    TD_TRY(write_shards(j, err));
    TD_TRY(copy_others(j, in, err));
    TD_TRY(write_config(j, err));
    j->done = j->total;
    TD_TRY(advance(j, 0, err));
    return td_outdir_commit(&j->dir, err);
}

td_status td_quantize(const char *in, const char *out, const td_quantize_options *opt, td_quantize_report *report,
                      td_error *err) {
    *report = (td_quantize_report){0};
    TD_TRY(check_options(opt, err));
    char *dir = directory_of(in);
    job j = {.opt = opt, .report = report, .log = {opt->log, opt->user, TD_LOG_INFO}};
    td_status st = dir ? check_places(dir, out, err) : td_fail(err, TD_E_NOMEM, "%s: out of memory", in);
    if (st == TD_OK)
        st = td_checkpoint_open(&j.ck, in, &j.log, err);
    if (st == TD_OK)
        st = convert(&j, dir, out, err);
    td_outdir_close(&j.dir);
    td_pool_close(&j.pool);
    td_quantize_plan_free(&j.plan);
    td_checkpoint_close(&j.ck);
    td_free(dir);
    return st;
}
