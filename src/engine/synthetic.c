/* synthetic.c - see synthetic.h. Bytes are made where they are written, a piece at a time, from a counter: a piece
 * depends on the seed, the tensor and its place, so that files may be larger than memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "engine/outdir.h"
#include "engine/shard.h"
#include "engine/synthetic_impl.h"
#include "tensor/blocks.h"

#define PIECE ((size_t)1 << 20)
#define HALF_RANGE 7.5f /* a 4-bit code lies evenly within this of its middle */

/* ---- numbers ---- */

/* Word k of stream `key`: SplitMix64 (Steele, Lea, Flood 2014), which can be entered anywhere. */
static uint64_t word_at(uint64_t key, uint64_t k) {
    uint64_t z = key + (k + 1) * UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

/* Evenly in (-1, 1). */
static float even_at(uint64_t key, uint64_t k) {
    return (float)((double)(word_at(key, k) >> 11) * 0x1p-52 - 1);
}

/* The step between codes that gives a weight the variance 1 / n_in. Codes 0..15 have a deviation of 4.61. */
static float step_of(uint32_t n_in) {
    return 1.0f / (4.61f * sqrtf((float)n_in));
}

/* ---- drawing ---- */

typedef struct writing {
    const td_synthetic_options *opt;
    td_plan *plan;
    uint64_t done;
    const td_shard *shard;
    const uint64_t *offset; /* [plan->n] in the shard */
} writing;

static void random_bytes(uint64_t key, uint64_t offset, uint8_t *to, size_t n) {
    for (size_t i = 0; i < n; i += 8) {
        uint64_t w = word_at(key, (offset + i) / 8);
        memcpy(to + i, &w, n - i < 8 ? n - i : 8);
    }
}

/* Blocks of Q4_0: a step in f16 and 32 codes about 8. The sign of the step changes, so that the mean is 0. */
static void draw_blocks(uint64_t key, uint64_t offset, uint8_t *to, size_t n, uint32_t n_in) {
    const uint16_t step = td_f32_to_f16(step_of(n_in));
    const size_t size = td_block_bytes(TD_FORMAT_Q4_0);
    for (size_t i = 0; i < n; i += size) {
        uint64_t block = (offset + i) / size, a = word_at(key, 2 * block), b = word_at(key, 2 * block + 1);
        uint16_t scale = step ^ (uint16_t)((a ^ b) >> 63 << 15);
        memcpy(to + i, &scale, 2);
        memcpy(to + i + 2, &a, 8);
        memcpy(to + i + 10, &b, 8);
    }
}

static float number(const td_plan *p, size_t tensor, uint64_t key, uint64_t k) {
    const td_plan_entry *e = &p->entry[tensor];
    switch (e->draw) {
    case TD_DRAW_FLOAT:
        return even_at(key, k) * sqrtf(3.0f / (float)e->n_in);
    case TD_DRAW_DECAY: { /* A of 0.05 to 1 */
        float log_a = 1.5f * (even_at(key, k) - 1);
        return p->gguf ? -expf(log_a) : log_a;
    }
    case TD_DRAW_TURNING:
        return k < p->tensor[tensor].dim[0] / 4 ? 1.0f : 1e30f;
    case TD_DRAW_SCALES:
        return step_of(e->n_in);
    case TD_DRAW_BIASES:
        return -HALF_RANGE * step_of(e->n_in);
    default:
        return e->value;
    }
}

static void draw_numbers(const td_plan *p, size_t tensor, uint64_t key, uint64_t offset, uint8_t *to, size_t n) {
    const size_t width = td_dtype_bits(p->tensor[tensor].dtype) / 8;
    for (size_t i = 0; i < n; i += width) {
        uint64_t k = (offset + i) / width;
        float x = number(p, tensor, key, k);
        uint16_t half = td_f32_to_bf16(x);
        int32_t order = (int32_t)k;
        if (p->entry[tensor].draw == TD_DRAW_ORDER)
            memcpy(to + i, &order, 4);
        else if (width == 4)
            memcpy(to + i, &x, 4);
        else
            memcpy(to + i, &half, 2);
    }
}

static td_status fill(void *user, size_t tensor, uint64_t offset, void *to, size_t n, td_error *err) {
    writing *w = user;
    const td_tensor *t = &w->plan->tensor[tensor];
    const uint64_t key = word_at(w->opt->seed, tensor);
    if (w->plan->entry[tensor].draw != TD_DRAW_MATRIX)
        draw_numbers(w->plan, tensor, key, offset, to, n);
    else if (t->dtype == TD_DTYPE_BLOCKS)
        draw_blocks(key, offset, to, n, w->plan->entry[tensor].n_in);
    else
        random_bytes(key, offset, to, n);
    w->done += n;
    if (w->opt->progress && !w->opt->progress(w->opt->user, "write", w->done, w->plan->bytes))
        return td_fail(err, TD_E_CANCELLED, "writing was cancelled");
    return TD_OK;
}

/* ---- the two containers ---- */

static td_status write_gguf(const char *path, writing *w, td_error *err) {
    if (td_file_exists(path) || td_dir_exists(path))
        return td_fail(err, TD_E_ARG, "%s: exists already", path);
    td_gguf_writer meta;
    td_gguf_writer_init(&meta);
    td_status st = td_synthetic_metadata(w->plan->shape, &meta)
                       ? td_gguf_write_filled(&meta, path, w->plan->tensor, w->plan->n, fill, w, err)
                       : td_fail(err, TD_E_NOMEM, "out of memory for the metadata");
    td_gguf_writer_free(&meta);
    return st;
}

static td_status fill_shard(writing *w, td_error *err) {
    uint8_t *piece = td_malloc_aligned(PIECE);
    td_status st = piece ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory");
    for (size_t i = 0; i < w->plan->n && st == TD_OK; i++)
        for (uint64_t at = 0; at < w->plan->tensor[i].size && st == TD_OK; at += PIECE) {
            uint64_t left = w->plan->tensor[i].size - at;
            size_t n = left < PIECE ? (size_t)left : PIECE;
            st = fill(w, i, at, piece, n, err);
            if (st == TD_OK)
                st = td_shard_write(w->shard, w->offset[i] + at, piece, n, err);
        }
    td_free_aligned(piece);
    return st;
}

static td_status write_shard(const char *path, writing *w, td_error *err) {
    td_shard *shard = NULL;
    uint64_t *offset = td_calloc(w->plan->n, sizeof *offset);
    td_status st = offset ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory");
    if (st == TD_OK)
        st = td_shard_open(&shard, path, w->plan->tensor, w->plan->n, offset, err);
    if (st == TD_OK) {
        w->shard = shard;
        w->offset = offset;
        st = fill_shard(w, err);
    }
    if (st == TD_OK)
        st = td_shard_finish(shard, err);
    td_shard_close(&shard);
    td_free(offset);
    return st;
}

static td_status put_config(td_outdir *dir, const td_shape *s, td_error *err) {
    json_t *config = td_synthetic_config(s);
    char *text = config ? json_dumps(config, JSON_INDENT(2) | JSON_REAL_PRECISION(9)) : NULL;
    td_status st = text ? td_outdir_put(dir, "config.json", text, strlen(text), err)
                        : td_fail(err, TD_E_NOMEM, "out of memory for config.json");
    free(text);
    json_decref(config);
    return st;
}

static td_status write_directory(const char *path, writing *w, td_error *err) {
    td_outdir dir = {0};
    char *shard = NULL;
    td_status st = td_outdir_open(&dir, path, false, err);
    if (st == TD_OK)
        st = put_config(&dir, w->plan->shape, err);
    if (st == TD_OK)
        st = td_outdir_add(&dir, "model.safetensors", &shard, err);
    if (st == TD_OK)
        st = write_shard(shard, w, err);
    if (st == TD_OK)
        st = td_outdir_commit(&dir, err);
    td_free(shard);
    td_outdir_close(&dir);
    return st;
}

td_status td_synthetic_write(const char *path, const td_synthetic_options *opt, uint64_t *bytes, td_error *err) {
    td_shape shape;
    *bytes = 0;
    TD_TRY(td_shape_of(opt, &shape, err));
    td_plan *plan = td_calloc(1, sizeof *plan);
    if (!plan)
        return td_fail(err, TD_E_NOMEM, "out of memory");
    plan->shape = &shape;
    plan->gguf = opt->format == TD_SYNTHETIC_Q4_0;
    td_plan_tensors(plan);
    writing w = {.opt = opt, .plan = plan};
    td_status st = plan->failed ? td_fail(err, TD_E_NOMEM, "out of memory for the list of tensors") : TD_OK;
    if (st == TD_OK)
        st = plan->gguf ? write_gguf(path, &w, err) : write_directory(path, &w, err);
    *bytes = plan->bytes;
    td_plan_free(plan);
    td_free(plan);
    return st;
}
