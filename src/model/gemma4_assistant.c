/* gemma4_assistant.c - opens an assistant against its trunk, and runs one drafting step.
 *
 * Its layers are the trunk's layers without K/V (gemma4_layer.c); only their ends differ: what goes in is the trunk's
 * embedding beside a trunk-wide vector, what comes out is scored by a head of its own. */
#include "model/gemma4_assistant.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "model/families.h"
#include "model/gemma4.h"

#define MAX_CENTROIDS_USED 1024

struct td_gemma4_assistant {
    td_model *trunk;
    td_gemma4_assistant_options opt;
    td_gemma4_assistant_info info;
    td_gemma4_config c;
    td_gemma4_layer *layer; /* [n_layers] */
    td_gemma4_rotation rot;
    td_matrix embed, pre, post, centroids;
    float *norm;
    td_token *ordering;                              /* [n_vocab] tokens, cluster after cluster */
    uint32_t n_centroids, n_centroids_used, cluster; /* 0: plain head */
    uint32_t n_trunk;                                /* width of the trunk */
    td_gemma4_scratch s;
    float *in, *scores,
        *score_weight;  /* [max_rows][2*n_trunk], [max_rows][n_centroids], [max_rows][n_centroids_used] */
    int32_t *best;      /* [max_rows][n_centroids_used] */
    int32_t *query_pos; /* [max_rows] */
    uint32_t *row_seq;  /* [max_rows] 0, 1, 2, ... */
    int32_t *row;       /* the same, signed */
};

td_gemma4_assistant_options td_gemma4_assistant_options_default(void) {
    return (td_gemma4_assistant_options){.max_rows = 1,
                                         .bits = 16,
                                         .query_offset = TD_GEMMA4_ASSISTANT_QUERY_OFFSET,
                                         .window_extra = TD_GEMMA4_ASSISTANT_WINDOW_EXTRA};
}

const td_gemma4_assistant_info *td_gemma4_assistant_describe(const td_gemma4_assistant *a) {
    return &a->info;
}

/* ---- a step ---- */

static void head(td_gemma4_assistant *a, const td_gemma4_step *st) {
    td_backend *be = a->trunk->be;
    const td_backend_ops *op = be->ops;
    if (!a->n_centroids) {
        op->linear(be, a->s.y, st->n, &(td_linear_out){&a->embed, st->logits}, 1);
        return;
    }
    op->linear(be, a->s.y, st->n, &(td_linear_out){&a->centroids, a->scores}, 1);
    op->route(be, a->best, a->score_weight, a->scores, st->n, a->n_centroids, a->n_centroids_used, NULL);
    for (uint32_t r = 0; r < st->n; r++) {
        td_token *ids = st->candidate + (size_t)r * a->info.n_candidates;
        for (uint32_t j = 0; j < a->n_centroids_used; j++)
            memcpy(ids + (size_t)j * a->cluster,
                   a->ordering + (size_t)a->best[r * a->n_centroids_used + j] * a->cluster, a->cluster * sizeof *ids);
        op->rows_dot(be, st->logits + (size_t)r * a->info.n_candidates, a->s.y + (size_t)r * a->c.n_embd, &a->embed,
                     ids, a->info.n_candidates);
    }
}

td_status td_gemma4_assistant_step(td_gemma4_assistant *a, const td_gemma4_step *st, td_error *err) {
    td_backend *be = a->trunk->be;
    const td_backend_ops *op = be->ops;
    uint32_t n = st->n, w = a->n_trunk;
    if (n < 1 || n > a->opt.max_rows)
        return td_fail(err, TD_E_ARG, "a drafting step of %u rows, expected 1 to %u", n, a->opt.max_rows);
    const td_kv_pages *pages[TD_KV_MAX_GROUPS];
    for (uint32_t g = 0; g < TD_KV_MAX_GROUPS; g++)
        pages[g] = st->pages[g];
    for (uint32_t r = 0; r < n; r++)
        a->query_pos[r] = st->pos[r] + a->opt.query_offset;
    td_gemma4_rows rows = {.n = n,
                           .pos = a->query_pos,
                           .row_seq = a->row_seq,
                           .n_seq = n,
                           .pages = pages,
                           .n_keys = st->n_keys,
                           .kv = &a->trunk->kv,
                           .window = {[TD_GEMMA4_SLIDING] = a->c.window + (uint32_t)a->opt.window_extra}};

    for (uint32_t r = 0; r < n; r++) { /* [ embedding ; hidden ] */
        a->trunk->ops->embed(a->trunk, a->in + (size_t)r * 2 * w, st->token + r, 1);
        op->gather(be, a->in + (size_t)r * 2 * w + w, st->hidden, &a->row[r], 1, w);
    }
    op->linear(be, a->in, n, &(td_linear_out){&a->pre, a->s.x}, 1);
    for (uint32_t l = 0; l < a->c.n_layers; l++)
        td_gemma4_layer_forward(be, &a->c, l, &a->layer[l], &a->rot, &rows, &a->s, NULL, 0);
    op->rmsnorm(be, a->s.y, a->s.x, a->norm, n, a->c.n_embd, a->c.eps);
    head(a, st);
    op->linear(be, a->s.y, n, &(td_linear_out){&a->post, st->hidden}, 1);
    return be->ops->wait(be, err);
}

/* ---- the pair ---- */

/* The last layer of each type that owns K/V in the trunk. */
static int source_layer(const td_gemma4_config *trunk, td_gemma4_type type) {
    int last = -1;
    for (uint32_t l = 0; l < trunk->n_layers; l++)
        if (trunk->layer[l].owns_kv && trunk->layer[l].type == type)
            last = (int)l;
    return last;
}

static td_status pair_layers(td_gemma4_assistant *a, const td_gemma4_config *trunk, const char *path, td_error *err) {
    static const char *const names[] = {[TD_GEMMA4_FULL] = "full-attention", [TD_GEMMA4_SLIDING] = "sliding"};
    for (uint32_t l = 0; l < a->c.n_layers; l++) {
        td_gemma4_layer_config *lc = &a->c.layer[l];
        int source = source_layer(trunk, lc->type);
        if (source < 0)
            return td_fail(err, TD_E_MODEL, "%s: layer %u reads %s keys, but the trunk has no such layer", path, l,
                           names[lc->type]);
        const td_gemma4_layer_config *tc = &trunk->layer[source];
        if (lc->head_dim != tc->head_dim)
            return td_fail(err, TD_E_MODEL,
                           "%s: layer %u has head_dim %u, but the trunk's %s keys have %u: not the "
                           "assistant of this trunk",
                           path, l, lc->head_dim, names[lc->type], tc->head_dim);
        if (lc->n_kv_heads != tc->n_kv_heads || a->c.n_heads % tc->n_kv_heads)
            return td_fail(err, TD_E_MODEL,
                           "%s: layer %u has %u heads over %u KV heads, but the trunk's %s layers keep %u KV "
                           "heads: not the assistant of this trunk",
                           path, l, a->c.n_heads, lc->n_kv_heads, names[lc->type], tc->n_kv_heads);
        lc->kv_layer = tc->kv_layer;
    }
    return TD_OK;
}

static td_status check_pair(td_gemma4_assistant *a, const td_checkpoint *ck, const td_gemma4_config *trunk,
                            td_error *err) {
    const char *path = td_checkpoint_path(ck);
    const json_t *root = td_checkpoint_config(ck);
    uint32_t width;
    TD_TRY(td_json_u32(root, "config.json", "backbone_hidden_size", 1, 1 << 17, &width, err));
    if (width != trunk->n_embd)
        return td_fail(err, TD_E_MODEL, "%s: made for a trunk of width %u (backbone_hidden_size), but the trunk has %u",
                       path, width, trunk->n_embd);
    if (a->c.n_vocab != trunk->n_vocab)
        return td_fail(err, TD_E_MODEL, "%s: a vocabulary of %u words, but the trunk has %u", path, a->c.n_vocab,
                       trunk->n_vocab);
    if (a->c.window != trunk->window)
        return td_fail(err, TD_E_MODEL, "%s: a sliding window of %u, but the trunk has %u", path, a->c.window,
                       trunk->window);
    a->n_trunk = width;
    return pair_layers(a, trunk, path, err);
}

/* ---- weights ---- */

static td_status load_ordering(td_gemma4_assistant *a, const td_checkpoint *ck, td_error *err) {
    const td_tensor *t;
    uint64_t dim = a->c.n_vocab;
    TD_TRY(td_checkpoint_require(ck, "masked_embedding.token_ordering", 1, &dim, &t, err));
    if (t->dtype != TD_DTYPE_I64 && t->dtype != TD_DTYPE_I32)
        return td_fail(err, TD_E_SHAPE, "tensor %s: type %s, expected I64 or I32", t->name, td_dtype_name(t->dtype));
    a->ordering = td_calloc(a->c.n_vocab, sizeof *a->ordering);
    if (!a->ordering)
        return td_fail(err, TD_E_NOMEM, "out of memory for the token ordering");
    for (uint32_t i = 0; i < a->c.n_vocab; i++) {
        int64_t id = 0;
        int32_t id32;
        if (t->dtype == TD_DTYPE_I64) {
            memcpy(&id, t->data + (size_t)i * 8, 8);
        } else {
            memcpy(&id32, t->data + (size_t)i * 4, 4);
            id = id32;
        }
        if (id < 0 || id >= (int64_t)a->c.n_vocab)
            return td_fail_at(err, TD_E_MODEL, i, "tensor %s: entry %u is %lld, expected 0 to %u", t->name, i,
                              (long long)id, a->c.n_vocab - 1);
        a->ordering[i] = (td_token)id;
    }
    return TD_OK;
}

static td_status load_centroids(td_gemma4_assistant *a, const td_checkpoint *ck, td_gemma4_tally *t, td_error *err) {
    const json_t *root = td_checkpoint_config(ck);
    bool ordered;
    TD_TRY(td_json_bool_or(root, "config.json", "use_ordered_embeddings", false, &ordered, err));
    a->info.n_candidates = a->c.n_vocab;
    if (!ordered)
        return TD_OK;
    uint32_t n, k;
    TD_TRY(td_json_u32(root, "config.json", "num_centroids", 1, a->c.n_vocab, &n, err));
    TD_TRY(td_json_u32(root, "config.json", "centroid_intermediate_top_k", 1, MAX_CENTROIDS_USED, &k, err));
    if (a->c.n_vocab % n || k > n)
        return td_fail(err, TD_E_MODEL,
                       "config.json: %u of %u centroids over %u words, expected a divisor of the words and no "
                       "more used than there are",
                       k, n, a->c.n_vocab);
    TD_TRY(td_gemma4_matrix(ck, "masked_embedding.centroids", 0, n, a->c.n_embd, &a->centroids, t, err));
    TD_TRY(load_ordering(a, ck, err));
    if (a->opt.full_head)
        return TD_OK;
    a->n_centroids = n;
    a->n_centroids_used = k;
    a->cluster = a->c.n_vocab / n;
    a->info.n_candidates = k * a->cluster;
    a->info.centroids = true;
    return TD_OK;
}

static td_status load_weights(td_gemma4_assistant *a, const td_checkpoint *ck, td_gemma4_tally *t, td_error *err) {
    const td_gemma4_config *c = &a->c;
    TD_TRY(td_gemma4_matrix(ck, "embed_tokens", 0, c->n_vocab, c->n_embd, &a->embed, t, err));
    TD_TRY(td_gemma4_matrix(ck, "pre_projection", 0, c->n_embd, 2 * a->n_trunk, &a->pre, t, err));
    TD_TRY(td_gemma4_matrix(ck, "post_projection", 0, a->n_trunk, c->n_embd, &a->post, t, err));
    TD_TRY(td_gemma4_vector(ck, "norm.weight", c->n_embd, &a->norm, t, err));
    TD_TRY(load_centroids(a, ck, t, err));
    a->layer = td_calloc(c->n_layers, sizeof *a->layer);
    if (!a->layer)
        return td_fail(err, TD_E_NOMEM, "out of memory for %u layers", c->n_layers);
    for (uint32_t l = 0; l < c->n_layers; l++)
        TD_TRY(td_gemma4_layer_load(&a->layer[l], c, l, ck, t, err));
    return TD_OK;
}

/* Every matrix of the assistant, so that all can be narrowed or replaced; returns how many. */
static size_t all_matrices(td_gemma4_assistant *a, td_matrix **m, size_t room) {
    size_t n = 0;
    td_matrix *const ends[] = {&a->embed, &a->pre, &a->post, &a->centroids};
    for (size_t i = 0; i < 4; i++)
        m[n++] = ends[i];
    for (uint32_t l = 0; l < a->c.n_layers && n + 5 <= room; l++) {
        td_gemma4_layer *w = &a->layer[l];
        td_matrix *const body[] = {&w->q, &w->o, &w->gate, &w->up, &w->down};
        for (size_t i = 0; i < 5; i++)
            m[n++] = body[i];
    }
    return n;
}

/* Noise of the scale that a trained matrix has, in bf16. */
static td_status randomise(td_matrix *m, uint32_t salt, td_error *err) {
    if (!m->data)
        return TD_OK;
    td_matrix r;
    size_t n = (size_t)m->n_out * m->n_in;
    uint16_t *w = td_malloc_aligned(n * sizeof *w);
    if (!w)
        return td_fail(err, TD_E_NOMEM, "out of memory for random weights");
    for (size_t i = 0; i < n; i++)
        w[i] = td_f32_to_bf16((float)(td_rng_uniform(salt, i, 0) - 0.5) * 0.2f);
    r = (td_matrix){.name = m->name};
    td_status st = td_matrix_layout(&r, TD_FORMAT_BF16, 0, 0, TD_DTYPE_BF16, 1, m->n_out, m->n_in, err);
    if (st != TD_OK) {
        td_free_aligned(w);
        return st;
    }
    r.data = (const uint8_t *)w;
    r.owned = w;
    td_matrix_free(m);
    *m = r;
    return TD_OK;
}

static td_status convert_weights(td_gemma4_assistant *a, td_error *err) {
    td_matrix *m[4 + 5 * TD_GEMMA4_MAX_LAYERS];
    size_t n = all_matrices(a, m, sizeof m / sizeof m[0]);
    for (size_t i = 0; i < n; i++) {
        if (a->opt.random_weights)
            TD_TRY(randomise(m[i], (uint32_t)i, err));
        if (a->opt.bits < 16 && m[i] != &a->centroids) /* tiny, and a wrong cluster costs all its candidates */
            TD_TRY(td_model_narrow(m[i], a->opt.bits, err));
        if (m[i]->data)
            a->info.weight_bytes += td_matrix_bytes(m[i]);
        if (m[i]->owned)
            a->info.heap_bytes += td_matrix_bytes(m[i]);
    }
    td_matrix_describe(&a->pre, a->info.format, sizeof a->info.format);
    return TD_OK;
}

static td_status adopt(td_gemma4_assistant *a, td_error *err) {
    td_backend *be = a->trunk->be;
    /* with clusters the vocabulary is not read whole */
    td_matrix *const m[] = {&a->pre, &a->post, &a->centroids, &a->embed};
    td_loading unwatched = {.progress = NULL};
    TD_TRY(td_model_load_all(be, m, a->info.centroids ? 3 : 4, &unwatched, err));
    for (uint32_t l = 0; l < a->c.n_layers; l++)
        TD_TRY(td_gemma4_layer_adopt(&a->layer[l], be, &unwatched, err));
    return TD_OK;
}

/* ---- opening ---- */

static td_status alloc_part(td_gemma4_assistant *a, void **p, size_t width, td_error *err) {
    size_t bytes = width * a->opt.max_rows * sizeof(float);
    if (!bytes)
        return TD_OK;
    *p = a->trunk->be->ops->alloc(a->trunk->be, bytes);
    a->info.heap_bytes += bytes;
    return *p ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for the assistant's activations");
}

static td_status plan_scratch(td_gemma4_assistant *a, td_error *err) {
    td_backend *be = a->trunk->be;
    uint32_t widest = 2 * a->n_trunk, head_dim = 0;
    for (uint32_t l = 0; l < a->c.n_layers; l++) {
        uint32_t q = a->c.n_heads * a->c.layer[l].head_dim;
        widest = q > widest ? q : widest;
        widest = a->c.layer[l].n_ff > widest ? a->c.layer[l].n_ff : widest;
        head_dim = a->c.layer[l].head_dim > head_dim ? a->c.layer[l].head_dim : head_dim;
    }
    TD_TRY(be->ops->reserve(be, a->opt.max_rows, widest, a->c.n_vocab, a->c.n_heads, head_dim, err));
    TD_TRY(td_gemma4_scratch_open(&a->s, be, &a->c, a->opt.max_rows, &a->info.heap_bytes, err));
    TD_TRY(alloc_part(a, (void **)&a->in, 2 * a->n_trunk, err));
    TD_TRY(alloc_part(a, (void **)&a->scores, a->n_centroids, err));
    TD_TRY(alloc_part(a, (void **)&a->score_weight, a->n_centroids_used, err));
    TD_TRY(alloc_part(a, (void **)&a->best, a->n_centroids_used, err));
    a->query_pos = td_calloc(a->opt.max_rows, sizeof *a->query_pos);
    a->row_seq = td_calloc(a->opt.max_rows, sizeof *a->row_seq);
    a->row = td_calloc(a->opt.max_rows, sizeof *a->row);
    if (!a->query_pos || !a->row_seq || !a->row)
        return td_fail(err, TD_E_NOMEM, "out of memory for the assistant");
    for (uint32_t i = 0; i < a->opt.max_rows; i++)
        a->row[i] = (int32_t)(a->row_seq[i] = i);
    return TD_OK;
}

static td_status load_rotation(td_gemma4_assistant *a, td_error *err) {
    for (uint32_t l = 0; l < a->c.n_layers; l++) {
        td_gemma4_type t = a->c.layer[l].type;
        if (a->rot.inv_freq[t])
            continue;
        TD_TRY(td_gemma4_rope_table(&a->c.rope[t], a->c.layer[l].head_dim, &a->rot.inv_freq[t], &a->rot.n_rot[t], err));
        a->rot.pair_dist[t] = a->c.layer[l].head_dim / 2;
    }
    return TD_OK;
}

static td_status open_assistant(td_gemma4_assistant *a, td_checkpoint *ck, td_error *err) {
    const td_gemma4_config *trunk = td_gemma4_trunk_config(a->trunk);
    const json_t *root = td_checkpoint_config(ck);
    const char *type = json_string_value(json_object_get(root, "model_type"));
    if (!type || !td_family_is_assistant(type))
        return td_fail(err, TD_E_MODEL, "%s: model_type \"%s\" is no assistant, expected gemma4_assistant",
                       td_checkpoint_path(ck), type ? type : "");
    if (!trunk)
        return td_fail(err, TD_E_MODEL, "%s: an assistant of Gemma 4, but the trunk's family is %s",
                       td_checkpoint_path(ck), a->trunk->info.family);
    const char *where;
    const json_t *text = td_model_text_config(ck, &where);
    td_gemma4_tally tally = {0};
    uint32_t n_skipped;
    TD_TRY(td_gemma4_config_read(&a->c, text, where, root, true, err));
    TD_TRY(check_pair(a, ck, trunk, err));
    TD_TRY(td_model_alias_plain_names(ck, err));
    TD_TRY(td_gemma4_check_names(ck, &a->c, true, &n_skipped, err));
    TD_TRY(load_weights(a, ck, &tally, err));
    a->info.n_params = tally.n_params;
    a->info.n_embd = a->c.n_embd;
    a->info.n_layers = a->c.n_layers;
    a->info.heap_bytes = tally.heap_bytes;
    TD_TRY(convert_weights(a, err));
    TD_TRY(load_rotation(a, err));
    return plan_scratch(a, err);
}

td_status td_gemma4_assistant_open(td_gemma4_assistant **out, td_checkpoint *ck, td_model *trunk,
                                   const td_gemma4_assistant_options *opt, td_error *err) {
    *out = NULL;
    if (opt->bits != 16 && opt->bits != 8 && opt->bits != 4)
        return td_fail(err, TD_E_ARG, "an assistant of %u bits, expected 16, 8 or 4", opt->bits);
    td_gemma4_assistant *a = td_calloc(1, sizeof *a);
    if (!a)
        return td_fail(err, TD_E_NOMEM, "out of memory for an assistant");
    a->trunk = trunk;
    a->opt = *opt;
    td_status st = open_assistant(a, ck, err);
    if (st == TD_OK)
        st = adopt(a, err);
    if (st != TD_OK)
        td_gemma4_assistant_close(&a);
    *out = a;
    return st;
}

void td_gemma4_assistant_close(td_gemma4_assistant **pa) {
    if (!pa || !*pa)
        return;
    td_gemma4_assistant *a = *pa;
    td_backend *be = a->trunk->be;
    if (a->layer)
        for (uint32_t l = 0; l < a->c.n_layers; l++)
            td_gemma4_layer_free(&a->layer[l]);
    td_free(a->layer);
    td_matrix *const m[] = {&a->embed, &a->pre, &a->post, &a->centroids};
    for (size_t i = 0; i < 4; i++)
        td_matrix_free(m[i]);
    for (int t = 0; t < TD_GEMMA4_N_TYPES; t++)
        td_free_aligned(a->rot.inv_freq[t]);
    td_free_aligned(a->norm);
    td_free(a->ordering);
    td_gemma4_scratch_close(&a->s, be);
    void *const parts[] = {a->in, a->scores, a->score_weight, a->best};
    for (size_t i = 0; i < 4; i++)
        if (parts[i])
            be->ops->free(be, parts[i]);
    td_free(a->query_pos);
    td_free(a->row_seq);
    td_free(a->row);
    td_free(a);
    *pa = NULL;
}
