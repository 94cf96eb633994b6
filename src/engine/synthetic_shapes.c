/* synthetic_shapes.c - the published shapes, and scaling them.
 *
 * A model with shared keys keeps its proportion of layers that own keys when it has fewer layers, and always whole
 * periods, so that the last layer of each kind that owns keys is one that the drafter can read. */
#include <string.h>

#include "engine/synthetic_impl.h"

#define GEMMA4 .family = TD_SYNTHETIC_GEMMA4, .n_vocab = 262144, .head_dim = 256, .head_dim_full = 512, .tied = true
#define ASSISTANT                                                                                                      \
    .family = TD_SYNTHETIC_ASSISTANT, .n_vocab = 262144, .head_dim = 256, .head_dim_full = 512, .tied = true,          \
    .period = 4, .n_shared = 4
#define QWEN35                                                                                                         \
    .family = TD_SYNTHETIC_QWEN35, .n_vocab = 248320, .head_dim = 256, .period = 4, .n_ctx = 262144, .d_delta = 128,   \
    .kernel = 4, .draft_layer = true

static const td_shape shapes[] = {
    {{"e2b", "Gemma 4 E2B: 35 layers, 20 of which share keys; per-layer inputs", 35, 35},
     GEMMA4,
     .period = 5,
     .n_shared = 20,
     .n_embd = 1536,
     .n_heads = 8,
     .n_kv = 1,
     .n_kv_full = 1,
     .n_ff = 6144,
     .wide = true,
     .window = 512,
     .n_ctx = 131072,
     .n_ple = 256},
    {{"e2b-assistant", "the drafter of e2b", 4, 4},
     ASSISTANT,
     .n_embd = 256,
     .n_heads = 4,
     .n_kv = 1,
     .n_kv_full = 1,
     .n_ff = 2048,
     .window = 512,
     .n_ctx = 131072,
     .n_backbone = 1536,
     .n_centroids = 2048,
     .n_centroids_used = 32},
    {{"e4b", "Gemma 4 E4B: 42 layers, 18 of which share keys; per-layer inputs", 42, 42},
     GEMMA4,
     .period = 6,
     .n_shared = 18,
     .n_embd = 2560,
     .n_heads = 8,
     .n_kv = 2,
     .n_kv_full = 2,
     .n_ff = 10240,
     .window = 512,
     .n_ctx = 131072,
     .n_ple = 256},
    {{"e4b-assistant", "the drafter of e4b", 4, 4},
     ASSISTANT,
     .n_embd = 256,
     .n_heads = 4,
     .n_kv = 2,
     .n_kv_full = 2,
     .n_ff = 2048,
     .window = 512,
     .n_ctx = 131072,
     .n_backbone = 2560,
     .n_centroids = 2048,
     .n_centroids_used = 32},
    {{"26b-a4b", "Gemma 4 26B-A4B, one period of its five: 128 experts, 8 used", 6, 30},
     GEMMA4,
     .period = 6,
     .n_embd = 2816,
     .n_heads = 16,
     .n_kv = 8,
     .n_kv_full = 2,
     .k_is_v = true,
     .n_ff = 2112,
     .window = 1024,
     .n_ctx = 262144,
     .n_experts = 128,
     .n_used = 8,
     .n_ff_expert = 704},
    {{"26b-a4b-assistant", "the drafter of 26b-a4b", 4, 4},
     ASSISTANT,
     .n_embd = 1024,
     .n_heads = 16,
     .n_kv = 8,
     .n_kv_full = 2,
     .n_ff = 8192,
     .window = 1024,
     .n_ctx = 262144,
     .n_backbone = 2816},
    {{"qwen-2b", "Qwen 3.5 2B: 24 layers, 18 of linear attention, and a draft layer", 24, 24},
     QWEN35,
     .n_embd = 2048,
     .n_heads = 8,
     .n_kv = 2,
     .n_ff = 6144,
     .n_k = 16,
     .n_v = 16,
     .tied = true},
    {{"qwen-35b-a3b", "Qwen 3.5 35B-A3B, one period of its ten: 256 experts, 8 used, and a draft layer", 4, 40},
     QWEN35,
     .n_embd = 2048,
     .n_heads = 16,
     .n_kv = 2,
     .n_k = 16,
     .n_v = 32,
     .n_experts = 256,
     .n_used = 8,
     .n_ff_expert = 512,
     .n_ff_shared = 512},
};
enum { N_SHAPES = sizeof shapes / sizeof *shapes };

const td_synthetic_shape *td_synthetic_shape_at(size_t i) {
    return i < N_SHAPES ? &shapes[i].shown : NULL;
}

static td_status find(const char *name, td_shape *out, td_error *err) {
    for (size_t i = 0; i < N_SHAPES; i++)
        if (name && strcmp(shapes[i].shown.name, name) == 0) {
            *out = shapes[i];
            return TD_OK;
        }
    td_buf names;
    td_buf_init(&names, 1024);
    for (size_t i = 0; i < N_SHAPES; i++)
        (void)td_buf_printf(&names, "%s%s", i ? ", " : "", shapes[i].shown.name);
    td_status st = td_fail(err, TD_E_ARG, "no shape \"%s\", expected one of %s", name ? name : "", td_buf_str(&names));
    td_buf_free(&names);
    return st;
}

static td_status scale_layers(td_shape *s, uint32_t n, td_error *err) {
    if (!n)
        return TD_OK;
    if (n % s->period || n > 10 * s->shown.published_layers)
        return td_fail(err, TD_E_ARG, "%u layers of %s, expected a multiple of its period %u, at most %u", n,
                       s->shown.name, s->period, 10 * s->shown.published_layers);
    uint32_t published = s->shown.published_layers, owning = published - s->n_shared;
    if (s->family == TD_SYNTHETIC_GEMMA4 && s->n_shared) {
        owning = (n * owning / published + s->period - 1) / s->period * s->period;
        s->n_shared = n - (owning < s->period ? s->period : owning);
    } else if (s->family == TD_SYNTHETIC_ASSISTANT) {
        s->n_shared = n;
    }
    s->shown.n_layers = n;
    return TD_OK;
}

td_status td_shape_of(const td_synthetic_options *opt, td_shape *s, td_error *err) {
    TD_TRY(find(opt->shape, s, err));
    TD_TRY(scale_layers(s, opt->n_layers, err));
    if (opt->n_vocab) {
        uint32_t step = s->n_centroids ? s->n_centroids : 64;
        if (opt->n_vocab % step || opt->n_vocab < 320 || opt->n_vocab > 1 << 20)
            return td_fail(err, TD_E_ARG, "a vocabulary of %u words, expected a multiple of %u from 320 to %d",
                           opt->n_vocab, step, 1 << 20);
        s->n_vocab = opt->n_vocab;
    }
    if (opt->n_experts && (!s->n_experts || opt->n_experts < s->n_used || opt->n_experts > 4096))
        return td_fail(err, TD_E_ARG, "%u experts of %s, which has %u and uses %u of them", opt->n_experts,
                       s->shown.name, s->n_experts, s->n_used);
    s->n_experts = opt->n_experts ? opt->n_experts : s->n_experts;
    return TD_OK;
}

bool td_shape_is_full(const td_shape *s, uint32_t layer) {
    return (layer + 1) % s->period == 0;
}

uint32_t td_shape_owning(const td_shape *s) {
    return s->shown.n_layers - s->n_shared;
}
