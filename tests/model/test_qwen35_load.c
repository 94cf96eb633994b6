/* test_qwen35_load.c - a Qwen 3.5 checkpoint that is only written differently (wrappers, experts fused, split or one by
 * one, conversions with their norms shifted and their matrices quantised, with or without a head) gives the same
 * numbers, bit for bit; one with something wrong is refused in one line that names the tensor; one whose head is
 * missing decodes plainly and says why.
 *
 * Checkpoints are fixtures rewritten into a temporary directory (support/rewrite.h). */
#include "support/rewrite.h"

#include "model/qwen35.h"

#define N_IDS 40
#define N_VOCAB 320
#define N_EMBD 64
#define PAGE 64

static const char *const fixtures[] = {"qwen35-dense", "qwen35-moe"};

/* ---- running: one pass of the trunk and one of the head, the page made by hand ---- */

typedef struct numbers {
    float logits[N_IDS * N_VOCAB];
    float head_logits[N_IDS * N_VOCAB]; /* zeros without a head */
    td_model_info info;
    uint32_t n_kv_layers;
} numbers;

static td_model_options model_options(bool mtp) {
    td_model_options o = td_model_options_default();
    o.kv_type = TD_KV_F32;
    o.page_tokens = PAGE;
    o.max_rows = o.max_out = o.max_logits = N_IDS;
    o.mtp = mtp;
    return o;
}

static void run(td_model *m, numbers *out) {
    td_backend *be = m->be;
    td_token ids[N_IDS + 1];
    float *hidden = be->ops->alloc(be, N_IDS * N_EMBD * sizeof(float));
    float *head_hidden = be->ops->alloc(be, N_IDS * N_EMBD * sizeof(float));
    uint8_t *page = be->ops->alloc(be, m->kv.group[0].page_bytes);
    void *state = be->ops->alloc(be, m->info.state_bytes);
    td_kv_pages table = &page;
    int32_t pos[N_IDS], rows[N_IDS], n_keys = N_IDS;
    uint32_t row_seq[N_IDS] = {0}, n_sure = N_IDS;
    for (int32_t i = 0; i <= N_IDS; i++)
        ids[i] = (i * 53 + 2) % N_VOCAB;
    for (int32_t i = 0; i < N_IDS; i++)
        pos[i] = rows[i] = i;
    m->ops->state_reset(m, state);
    ASSERT_OK(td_model_forward(m,
                               &(td_pass){.n_rows = N_IDS,
                                          .token = ids,
                                          .pos = pos,
                                          .row_seq = row_seq,
                                          .n_seq = 1,
                                          .pages = {&table},
                                          .n_keys = &n_keys,
                                          .state = &state,
                                          .n_sure = &n_sure,
                                          .n_out = N_IDS,
                                          .out_row = rows,
                                          .hidden = hidden,
                                          .n_logits = N_IDS,
                                          .logits_out = rows,
                                          .logits = out->logits},
                               err));
    memset(out->head_logits, 0, sizeof out->head_logits);
    if (m->info.mtp_loaded)
        ASSERT_OK(td_model_heads(m,
                                 &(td_head_pass){.n_rows = N_IDS,
                                                 .token = ids + 1,
                                                 .hidden = hidden,
                                                 .pos = pos,
                                                 .row_seq = row_seq,
                                                 .n_seq = 1,
                                                 .pages = {&table},
                                                 .n_keys = &n_keys,
                                                 .n_out = N_IDS,
                                                 .out_row = rows,
                                                 .out = head_hidden,
                                                 .n_words = N_VOCAB,
                                                 .logits = out->head_logits},
                                 err));
    out->info = m->info;
    out->n_kv_layers = m->kv.n_layers;
    be->ops->free(be, hidden);
    be->ops->free(be, head_hidden);
    be->ops->free(be, page);
    be->ops->free(be, state);
}

static void numbers_of(const char *path, td_backend *be, const td_model_options *o, numbers *out) {
    td_checkpoint *ck;
    td_model *m;
    ASSERT_OK(td_checkpoint_open(&ck, path, NULL, err));
    ASSERT_OK(td_model_open(&m, ck, be, o, err));
    run(m, out);
    td_model_close(&m);
    td_checkpoint_close(&ck);
}

static td_backend *reference(void) {
    td_backend *be;
    ASSERT_OK(td_backend_ref_open(&be, err));
    return be;
}

static void fixture_numbers(const char *name, td_backend *be, numbers *out) {
    char path[512];
    td_model_options o = model_options(true);
    numbers_of(fixture_path(name, NULL, path, sizeof path), be, &o, out);
}

static void same(const char *what, const numbers *a, const numbers *b) {
    if (memcmp(a->logits, b->logits, sizeof a->logits) != 0)
        fail_msg("%s: the logits differ", what);
    if (memcmp(a->head_logits, b->head_logits, sizeof a->head_logits) != 0)
        fail_msg("%s: the logits of the head differ", what);
}

/* ---- rewriting experts ---- */

#define N_EXPERTS 8u
#define FF 24u

static const char *named(char buf[256], const char *prefix, const char *format, uint32_t e) {
    int n = snprintf(buf, 256, "%s", prefix);
    snprintf(buf + n, 256 - (size_t)n, format, e);
    return buf;
}

/* gate and up of all experts, whatever the layout, as [E][FF][d] each, and down [E][d][FF]; the old tensors are
 * dropped. */
typedef struct expert_weights {
    float gate[N_EXPERTS * FF * N_EMBD], up[N_EXPERTS * FF * N_EMBD], down[N_EXPERTS * N_EMBD * FF];
} expert_weights;

static void take(rewrite *w, const char *name, float *to, size_t n) {
    const td_tensor *t = rewrite_find(w, name);
    assert_int_equal(t->size, n * sizeof(float));
    memcpy(to, t->data, t->size);
    rewrite_drop(w, name);
}

static void take_experts(rewrite *w, const char *prefix, bool fused, expert_weights *x) {
    char b[256];
    const size_t one = FF * N_EMBD;
    if (fused) {
        float *both = test_malloc(2 * N_EXPERTS * one * sizeof *both);
        take(w, named(b, prefix, "experts.gate_up_proj", 0), both, 2 * N_EXPERTS * one);
        for (uint32_t e = 0; e < N_EXPERTS; e++) {
            memcpy(x->gate + e * one, both + 2 * e * one, one * sizeof *both);
            memcpy(x->up + e * one, both + (2 * e + 1) * one, one * sizeof *both);
        }
        take(w, named(b, prefix, "experts.down_proj", 0), x->down, N_EXPERTS * one);
        test_free(both);
        return;
    }
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        take(w, named(b, prefix, "experts.%u.gate_proj.weight", e), x->gate + e * one, one);
        take(w, named(b, prefix, "experts.%u.up_proj.weight", e), x->up + e * one, one);
        take(w, named(b, prefix, "experts.%u.down_proj.weight", e), x->down + e * one, one);
    }
}

static void add_fused(rewrite *w, const char *prefix, const expert_weights *x) {
    char b[256];
    const size_t one = FF * N_EMBD;
    float *both = rewrite_add(w, named(b, prefix, "experts.gate_up_proj", 0), TD_DTYPE_F32,
                              (uint64_t[]){N_EXPERTS, 2 * FF, N_EMBD, 0}, NULL);
    for (uint32_t e = 0; e < N_EXPERTS; e++) {
        memcpy(both + 2 * e * one, x->gate + e * one, one * sizeof *both);
        memcpy(both + (2 * e + 1) * one, x->up + e * one, one * sizeof *both);
    }
    rewrite_add(w, named(b, prefix, "experts.down_proj", 0), TD_DTYPE_F32, (uint64_t[]){N_EXPERTS, N_EMBD, FF, 0},
                x->down);
}

static void add_split(rewrite *w, const char *prefix, const expert_weights *x) {
    char b[256];
    const uint64_t in[] = {N_EXPERTS, FF, N_EMBD, 0}, out[] = {N_EXPERTS, N_EMBD, FF, 0};
    rewrite_add(w, named(b, prefix, "switch_mlp.gate_proj.weight", 0), TD_DTYPE_F32, in, x->gate);
    rewrite_add(w, named(b, prefix, "switch_mlp.up_proj.weight", 0), TD_DTYPE_F32, in, x->up);
    rewrite_add(w, named(b, prefix, "switch_mlp.down_proj.weight", 0), TD_DTYPE_F32, out, x->down);
}

/* `in_order`: all gates, then all ups, then all downs, so that each kind is contiguous in the file. */
static void add_single(rewrite *w, const char *prefix, const expert_weights *x, bool in_order) {
    char b[256];
    const size_t one = FF * N_EMBD;
    const uint64_t in[] = {FF, N_EMBD, 0}, out[] = {N_EMBD, FF, 0};
    for (uint32_t i = 0; i < 3 * N_EXPERTS; i++) {
        uint32_t kind = in_order ? i / N_EXPERTS : i % 3, e = in_order ? i % N_EXPERTS : i / 3;
        if (kind == 0)
            rewrite_add(w, named(b, prefix, "experts.%u.gate_proj.weight", e), TD_DTYPE_F32, in, x->gate + e * one);
        if (kind == 1)
            rewrite_add(w, named(b, prefix, "experts.%u.up_proj.weight", e), TD_DTYPE_F32, in, x->up + e * one);
        if (kind == 2)
            rewrite_add(w, named(b, prefix, "experts.%u.down_proj.weight", e), TD_DTYPE_F32, out, x->down + e * one);
    }
}

enum { FUSED, SPLIT, SINGLE, SINGLE_IN_ORDER, N_LAYOUTS };

static void add_experts(rewrite *w, const char *prefix, const expert_weights *x, int layout) {
    if (layout == FUSED)
        add_fused(w, prefix, x);
    else if (layout == SPLIT)
        add_split(w, prefix, x);
    else
        add_single(w, prefix, x, layout == SINGLE_IN_ORDER);
}

/* The fixture has single experts in the trunk and fused ones in the head. All are taken before any is added, for taking
 * changes the order of those that are left. head -1: it has none. */
static void lay_out_all(rewrite *w, int trunk, int head) {
    static const char *const prefix[] = {"model.layers.0.mlp.", "model.layers.1.mlp.", "model.layers.2.mlp.",
                                         "model.layers.3.mlp.", "mtp.layers.0.mlp."};
    static expert_weights x[5];
    for (int i = 0; i < (head < 0 ? 4 : 5); i++)
        take_experts(w, prefix[i], i == 4, &x[i]);
    for (int i = 0; i < (head < 0 ? 4 : 5); i++)
        add_experts(w, prefix[i], &x[i], i == 4 ? head : trunk);
}

static void experts_in_every_layout_give_the_same_bits(void **state) {
    (void)state;
    static const char *const backends[] = {"reference", "generic", "avx2", "avx512"};
    static const char *const names[] = {"fused", "split", "single", "single, in order"};
    for (size_t b = 0; b < 4; b++) {
        td_backend *be = fixture_backend(backends[b]);
        if (!be)
            continue;
        static numbers want, got;
        td_model_options o = model_options(true);
        fixture_numbers("qwen35-moe", be, &want);
        for (int i = 0; i < N_LAYOUTS; i++) {
            rewrite w;
            rewrite_open(&w, "qwen35-moe");
            lay_out_all(&w, i, (i + 1) % N_LAYOUTS);
            numbers_of(rewrite_save(&w), be, &o, &got);
            same(names[i], &got, &want);
            /* only scattered experts cost memory */
            uint64_t copied = 3 * N_EXPERTS * FF * N_EMBD * sizeof(float);
            assert_int_equal(got.info.heap_bytes - (i == SINGLE ? 4 * copied : 0), want.info.heap_bytes - 4 * copied);
            assert_int_equal(got.info.mtp_bytes, want.info.mtp_bytes);
            rewrite_close(&w);
        }
        td_backend_close(&be);
    }
}

/* ---- wrappers and conversions ---- */

static bool ends(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}

static bool is_head(const char *name) {
    return strncmp(name, "mtp.", 4) == 0;
}

static bool is_centred_norm(const char *name) {
    return ends(name, "_layernorm.weight") || ends(name, "q_norm.weight") || ends(name, "k_norm.weight") ||
           strcmp(name, "model.norm.weight") == 0 || strcmp(name, "mtp.norm.weight") == 0 ||
           strstr(name, "pre_fc_norm") != NULL;
}

static void wrap(rewrite *w) {
    for (size_t i = 0; i < w->n; i++) {
        char name[256];
        if (strncmp(w->tensor[i].name, "model.", 6) != 0)
            continue;
        snprintf(name, sizeof name, "model.language_model.%s", w->tensor[i].name + 6);
        w->tensor[i].name = rewrite_keep(w, td_strdup(name));
    }
    json_t *text = json_deep_copy(w->config);
    bool moe = json_object_get(text, "num_experts") != NULL;
    json_object_clear(w->config);
    json_object_set_new(w->config, "model_type", json_string(moe ? "qwen3_5_moe" : "qwen3_5"));
    json_object_set(w->config, "tie_word_embeddings", json_object_get(text, "tie_word_embeddings"));
    json_object_del(text, "tie_word_embeddings");
    json_object_set_new(w->config, "vision_config", json_object());
    json_object_set_new(w->config, "text_config", text);
    rewrite_add(w, "model.visual.blocks.0.attn.qkv.weight", TD_DTYPE_BF16, (uint64_t[]){6, 2, 0}, NULL);
}

static void wrappers_are_seen_through(void **state) {
    (void)state;
    td_backend *be = reference();
    for (size_t f = 0; f < 2; f++) {
        static numbers want, got;
        rewrite w;
        td_model_options o = model_options(true);
        fixture_numbers(fixtures[f], be, &want);
        rewrite_open(&w, fixtures[f]);
        wrap(&w);
        numbers_of(rewrite_save(&w), be, &o, &got);
        same(fixtures[f], &got, &want);
        assert_int_equal(got.info.n_skipped, want.info.n_skipped + 1);
        rewrite_close(&w);
    }
    td_backend_close(&be);
}

enum { HEAD_RAW, HEAD_CONVERTED, HEAD_DROPPED };

/* As mlx-lm writes it: names, turned convolution, norms with their 1, experts in three stacks. */
static void convert(rewrite *w, bool moe, int head) {
    for (size_t i = 0; head == HEAD_DROPPED && i < w->n;)
        if (is_head(w->tensor[i].name))
            rewrite_drop(w, w->tensor[i].name);
        else
            i++;
    if (moe)
        lay_out_all(w, SPLIT, head == HEAD_DROPPED ? -1 : FUSED);
    for (size_t i = 0; i < w->n; i++) {
        td_tensor *t = &w->tensor[i];
        char name[256];
        if (ends(t->name, "conv1d.weight")) {
            t->dim[1] = t->dim[2];
            t->dim[2] = 1;
        }
        if (is_centred_norm(t->name) && (head == HEAD_CONVERTED || !is_head(t->name))) {
            float *v = rewrite_data(w, t->name);
            for (size_t j = 0; j < t->size / sizeof *v; j++)
                v[j] += 1.0f;
        }
        if (is_head(t->name))
            continue;
        snprintf(name, sizeof name, "language_model.%s", t->name);
        t->name = rewrite_keep(w, td_strdup(name));
    }
}

static void conversions_have_their_norms_shifted_once(void **state) {
    (void)state;
    td_backend *be = reference();
    for (size_t f = 0; f < 2; f++)
        for (int head = HEAD_RAW; head <= HEAD_DROPPED; head++) {
            static numbers want, got;
            rewrite w;
            td_model_options o = model_options(true);
            fixture_numbers(fixtures[f], be, &want);
            rewrite_open(&w, fixtures[f]);
            convert(&w, f == 1, head);
            numbers_of(rewrite_save(&w), be, &o, &got);
            if (head == HEAD_DROPPED)
                memset(want.head_logits, 0, sizeof want.head_logits);
            same(fixtures[f], &got, &want);
            assert_int_equal(got.info.has_mtp, head != HEAD_DROPPED);
            rewrite_close(&w);
        }
    td_backend_close(&be);
}

/* ---- quantised ---- */

static bool is_router(const char *name) {
    return ends(name, "mlp.gate.weight") || ends(name, "shared_expert_gate.weight");
}

static unsigned bits_of(const char *name) {
    return is_router(name) ? 8 : 4;
}

static bool is_quantisable(const td_tensor *t) {
    unsigned group = is_router(t->name) ? 64 : 32;
    return t->n_dims >= 2 && t->dim[t->n_dims - 1] % group == 0;
}

/* What quantising loses, put back as floats: the same model without a quantised matrix. */
static void round_in_place(rewrite *w, const td_tensor *which) {
    td_tensor t = *which;
    uint32_t n_in = (uint32_t)t.dim[t.n_dims - 1], rows = (uint32_t)(t.size / sizeof(float) / n_in);
    td_matrix m = {.name = t.name, .data = t.data}, q;
    ASSERT_OK(td_matrix_layout(&m, TD_FORMAT_F32, 0, 0, TD_DTYPE_F32, 1, rows, n_in, err));
    ASSERT_OK(td_matrix_quantize(&q, &m, bits_of(t.name), is_router(t.name) ? 64 : 32, TD_DTYPE_BF16, err));
    float *out = rewrite_data(w, t.name);
    for (uint32_t r = 0; r < rows; r++)
        td_matrix_row_f32(&q, r, out + (size_t)r * n_in);
    td_matrix_free(&q);
}

static void quantise(rewrite *w, bool head, bool as_floats) {
    static td_tensor before[REWRITE_MAX_TENSORS];
    size_t n = w->n;
    memcpy(before, w->tensor, n * sizeof before[0]);
    json_t *q = json_pack("{s:i,s:i}", "group_size", 32, "bits", 4);
    for (size_t i = 0; i < n; i++) {
        const td_tensor *t = &before[i];
        if (!is_quantisable(t) || (is_head(t->name) && !head))
            continue;
        if (is_router(t->name)) {
            char module[256];
            snprintf(module, sizeof module, "%.*s", (int)(strlen(t->name) - 7), t->name);
            json_object_set_new(q, module, json_pack("{s:i,s:i}", "group_size", 64, "bits", 8));
        }
        if (as_floats)
            round_in_place(w, t);
        else
            assert_true(rewrite_quantize_one(w, t, bits_of(t->name), is_router(t->name) ? 64 : 32));
    }
    if (as_floats)
        json_decref(q);
    else
        json_object_set_new(w->config, "quantization", q);
}

static double largest_difference(const float *a, const float *b, size_t n, double *top) {
    double worst = 0;
    for (size_t i = 0; i < n; i++) {
        double d = fabs((double)a[i] - b[i]), m = fabs((double)b[i]);
        worst = d > worst || isnan(d) ? d : worst;
        *top = m > *top ? m : *top;
    }
    return worst;
}

/* With the head quantised too, or left as it was while the config claims otherwise (which is common). On the reference
 * the bits are those of the rounded floats; elsewhere they are near, with activations left in floats. */
static void quantised_conversions_are_their_rounded_weights(void **state) {
    (void)state;
    td_backend *be = reference(), *fast;
    ASSERT_OK(td_backend_cpu_open(&fast, &(td_cpu_options){.n_threads = 1, .float_activations = true}, err));
    for (size_t f = 0; f < 2; f++)
        for (int head = 0; head < 2; head++) {
            static numbers want, got;
            td_model_options o = model_options(true);
            for (int as_floats = 0; as_floats < 2; as_floats++) {
                rewrite w;
                rewrite_open(&w, fixtures[f]);
                convert(&w, f == 1, HEAD_CONVERTED);
                quantise(&w, head, as_floats);
                numbers_of(rewrite_save(&w), be, &o, as_floats ? &want : &got);
                if (!as_floats) {
                    static numbers near;
                    double top = 0;
                    numbers_of(w.dir, fast, &o, &near);
                    double worst = largest_difference(near.logits, got.logits, N_IDS * N_VOCAB, &top);
                    assert_true(worst < 1e-3 * top);
                    worst = largest_difference(near.head_logits, got.head_logits, N_IDS * N_VOCAB, &top);
                    assert_true(worst < 1e-3 * top);
                }
                rewrite_close(&w);
            }
            same(fixtures[f], &got, &want);
            assert_string_equal(got.info.weight_format, "affine 4-bit group 32");
            assert_string_equal(got.info.mtp_format, head ? "affine 4-bit group 32" : "f32");
        }
    td_backend_close(&fast);
    td_backend_close(&be);
}

/* The heads narrowed at load, the trunk untouched. */
static void heads_are_narrowed_at_load(void **state) {
    (void)state;
    td_backend *be = reference();
    for (size_t f = 0; f < 2; f++) {
        static numbers want, got;
        char path[512];
        td_model_options o = model_options(true);
        fixture_numbers(fixtures[f], be, &want);
        for (uint32_t bits = 4; bits <= 8; bits += 4) {
            o.mtp_bits = bits;
            numbers_of(fixture_path(fixtures[f], NULL, path, sizeof path), be, &o, &got);
            assert_memory_equal(got.logits, want.logits, sizeof got.logits);
            double top = 0, worst = largest_difference(got.head_logits, want.head_logits, N_IDS * N_VOCAB, &top);
            assert_true(worst > 0 && worst < (bits == 4 ? 0.5 : 0.05) * top);
            assert_true(got.info.mtp_bytes < want.info.mtp_bytes * (bits == 4 ? 0.5 : 0.7));
            assert_string_equal(got.info.mtp_format, bits == 4 ? "affine 4-bit group 64" : "affine 8-bit group 64");
        }
    }
    td_backend_close(&be);
}

/* ---- heads that are not there ---- */

static struct {
    int warnings;
    char last[600];
} logged;

static void on_log(void *user, td_log_level level, const char *message) {
    (void)user;
    logged.warnings += level == TD_LOG_WARN;
    snprintf(logged.last, sizeof logged.last, "%s", message);
}

static void check_headless(rewrite *w, const numbers *plain, const char *reason) {
    bool promised = json_object_get(w->config, "mtp_num_hidden_layers") != NULL;
    static numbers got;
    td_backend *be = reference();
    td_log log = {.fn = on_log};
    td_model_options o = model_options(true);
    o.log = &log;
    logged.warnings = 0;
    numbers_of(rewrite_save(w), be, &o, &got);
    assert_string_equal(got.info.mtp_reason, reason);
    assert_false(got.info.has_mtp);
    assert_false(got.info.mtp_loaded);
    assert_int_equal(got.info.mtp_promised, promised);
    assert_int_equal(logged.warnings, promised);
    assert_true(!promised || strstr(logged.last, reason));
    assert_memory_equal(got.logits, plain->logits, sizeof got.logits);
    assert_int_equal(got.n_kv_layers, plain->n_kv_layers);
    assert_int_equal(got.info.state_bytes, plain->info.state_bytes);
    o.mtp = false; /* not asked for: not a word */
    logged.warnings = 0;
    numbers_of(w->dir, be, &o, &got);
    assert_int_equal(logged.warnings, 0);
    td_backend_close(&be);
}

static void a_missing_head_is_a_reason_and_no_error(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        static numbers plain;
        td_backend *be = reference();
        char path[512];
        td_model_options o = model_options(false);
        numbers_of(fixture_path(fixtures[f], NULL, path, sizeof path), be, &o, &plain);
        assert_true(plain.info.has_mtp); /* there, and left alone */
        assert_false(plain.info.mtp_loaded);
        assert_int_equal(plain.n_kv_layers, 1);
        assert_true(plain.info.n_skipped > 10);
        td_backend_close(&be);

        rewrite w;
        rewrite_open(&w, fixtures[f]);
        for (size_t i = 0; i < w.n;)
            if (is_head(w.tensor[i].name))
                rewrite_drop(&w, w.tensor[i].name);
            else
                i++;
        check_headless(&w, &plain,
                       "config.json promises draft heads (mtp_num_hidden_layers 1), but the files hold no tensor of "
                       "mtp.*");
        json_object_del(w.config, "mtp_num_hidden_layers");
        check_headless(&w, &plain, "the checkpoint has no draft heads");
        rewrite_close(&w);

        rewrite_open(&w, fixtures[f]);
        json_object_set_new(w.config, "mtp_num_hidden_layers", json_integer(2));
        check_headless(&w, &plain, "the draft head has 2 layers (mtp_num_hidden_layers), expected 1");
        json_object_set_new(w.config, "mtp_num_hidden_layers", json_integer(1));
        json_object_set_new(w.config, "mtp_use_dedicated_embeddings", json_true());
        check_headless(&w, &plain,
                       "config.json promises a draft head with tables of its own (mtp_use_dedicated_embeddings), but "
                       "the files hold none");
        rewrite_close(&w);

        static const char *const parts[] = {"mtp.fc.weight", "mtp.norm.weight", "mtp.layers.0.self_attn.k_norm.weight"};
        for (size_t i = 0; i < 3; i++) {
            char reason[128];
            rewrite_open(&w, fixtures[f]);
            rewrite_drop(&w, parts[i]);
            snprintf(reason, sizeof reason, "the files hold a draft head without %s", i == 0 ? "mtp.fc" : parts[i]);
            check_headless(&w, &plain, reason);
            rewrite_close(&w);
        }
    }
}

/* ---- refusing ---- */

static td_status refusal(rewrite *w, char *message, size_t size) {
    td_backend *be = reference();
    td_checkpoint *ck = NULL;
    td_model *m = NULL;
    td_model_options o = model_options(true);
    td_error e = {0};
    const char *dir = rewrite_save(w);
    td_status st = td_checkpoint_open(&ck, dir, NULL, &e);
    if (st == TD_OK)
        st = td_model_open(&m, ck, be, &o, &e);
    assert_int_equal(st == TD_OK, m != NULL);
    const char *at = strstr(e.message, dir);
    snprintf(message, size, "%s", at == e.message ? e.message + strlen(dir) : e.message);
    td_model_close(&m);
    td_checkpoint_close(&ck);
    td_backend_close(&be);
    return st;
}

static void each_missing_tensor_is_named(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        rewrite w;
        rewrite_open(&w, fixtures[f]);
        size_t n = w.n;
        for (size_t i = 0; i < n; i++) {
            td_tensor gone = w.tensor[i];
            char message[600], module[300];
            if (is_head(gone.name) || strcmp(gone.name, "lm_head.weight") == 0) /* then it is tied */
                continue;
            w.tensor[i] = w.tensor[--w.n];
            td_status st = refusal(&w, message, sizeof message);
            snprintf(module, sizeof module, "%s", gone.name + strlen("model."));
            if (gone.n_dims == 2 && ends(module, ".weight"))
                module[strlen(module) - 7] = '\0';
            if (st != TD_E_MODEL || !strstr(message, module))
                fail_msg("%s without %s: %s: %s", fixtures[f], gone.name, td_status_name(st), message);
            w.n = n;
            w.tensor[n - 1] = w.tensor[i];
            w.tensor[i] = gone;
        }
        rewrite_close(&w);
    }
}

static void each_wrong_shape_is_named_with_both_shapes(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        rewrite w;
        rewrite_open(&w, fixtures[f]);
        for (size_t i = 0; i < w.n; i++) {
            td_tensor old = w.tensor[i];
            char message[600], have[TD_SHAPE_TEXT_SIZE], want[TD_SHAPE_TEXT_SIZE];
            size_t slice = old.size / old.dim[0];
            uint8_t *more = test_calloc(1, old.size + slice);
            memcpy(more, old.data, old.size);
            w.tensor[i].dim[0]++;
            w.tensor[i].size += slice;
            w.tensor[i].data = more;
            td_status st = refusal(&w, message, sizeof message);
            td_shape_text(old.n_dims, w.tensor[i].dim, have, sizeof have);
            td_shape_text(old.n_dims, old.dim, want, sizeof want);
            if (st != TD_E_SHAPE || !strstr(message, old.name) || !strstr(message, have) || !strstr(message, want))
                fail_msg("%s, %s of shape %s: %s: %s", fixtures[f], old.name, have, td_status_name(st), message);
            test_free(more);
            w.tensor[i] = old;
        }
        rewrite_close(&w);
    }
}

static void each_vector_that_is_not_finite_is_named(void **state) {
    (void)state;
    uint32_t n = 0;
    for (size_t f = 0; f < 2; f++) {
        rewrite w;
        rewrite_open(&w, fixtures[f]);
        for (size_t i = 0; i < w.n; i++) {
            td_tensor old = w.tensor[i];
            if (old.n_dims != 1)
                continue;
            float bad[320];
            memcpy(bad, old.data, old.size);
            bad[old.dim[0] - 1] = n++ % 2 ? NAN : INFINITY;
            w.tensor[i].data = (const uint8_t *)bad;
            char message[600];
            td_status st = refusal(&w, message, sizeof message);
            if (st != TD_E_NUMERIC || !strstr(message, old.name))
                fail_msg("%s, %s: %s: %s", fixtures[f], old.name, td_status_name(st), message);
            w.tensor[i] = old;
        }
        rewrite_close(&w);
    }
    assert_true(n > 40);
}

static void unknown_tensors_are_refused_by_name(void **state) {
    (void)state;
    static const struct {
        const char *fixture, *extra;
        td_status status;
        const char *message;
    } extras[] = {
        {"qwen35-dense", "model.layers.4.mlp.up_proj.weight", TD_E_MODEL,
         ": tensor model.layers.4.mlp.up_proj.weight is not part of a Qwen 3.5 model with this config.json (4 layers, "
         "1 "
         "of full attention)"},
        {"qwen35-dense", "model.layers.0.self_attn.q_proj.weight", TD_E_MODEL,
         ": tensor model.layers.0.self_attn.q_proj.weight is not part of a Qwen 3.5 model with this config.json (4 "
         "layers, 1 of full attention)"},
        {"qwen35-dense", "model.layers.3.linear_attn.A_log", TD_E_MODEL,
         ": tensor model.layers.3.linear_attn.A_log is not part of a Qwen 3.5 model with this config.json (4 layers, 1 "
         "of "
         "full attention)"},
        {"qwen35-dense", "mtp.layers.1.mlp.up_proj.weight", TD_E_MODEL,
         ": tensor mtp.layers.1.mlp.up_proj.weight is not part of a Qwen 3.5 model with this config.json (4 layers, 1 "
         "of "
         "full attention)"},
        {"qwen35-dense", "model.layers.0.mlp.gate.weight", TD_E_MODEL,
         ": tensor model.layers.0.mlp.gate.weight is not part of a Qwen 3.5 model with this config.json (4 layers, 1 "
         "of "
         "full attention)"},
        {"qwen35-moe", "model.layers.0.mlp.experts.8.up_proj.weight", TD_E_MODEL,
         ": tensor model.layers.0.mlp.experts.8.up_proj.weight is not part of a Qwen 3.5 model with this config.json "
         "(4 "
         "layers, 1 of full attention, experts)"},
        {"qwen35-moe", "model.layers.0.mlp.experts.-1.up_proj.weight", TD_E_MODEL,
         ": tensor model.layers.0.mlp.experts.-1.up_proj.weight is not part of a Qwen 3.5 model with this config.json "
         "(4 "
         "layers, 1 of full attention, experts)"},
        {"qwen35-moe", "model.layers.0.mlp.up_proj.weight", TD_E_MODEL,
         ": tensor model.layers.0.mlp.up_proj.weight is not part of a Qwen 3.5 model with this config.json (4 layers, "
         "1 "
         "of full attention, experts)"},
        {"qwen35-dense", "model.language_model.norm.weight", TD_E_FORMAT,
         ": tensors \"model.norm.weight\" and \"model.language_model.norm.weight\" are both called \"norm.weight\""},
        {"qwen35-dense", "model.visual.patch_embed.weight", TD_OK, ""},
        {"qwen35-dense", "vision_tower.x", TD_OK, ""},
        {"qwen35-dense", "model.layers.3.self_attn.rotary_emb.inv_freq", TD_OK, ""},
        {"qwen35-dense", "lm_head.weight", TD_OK, ""}, /* tied */
    };
    int wrong = 0;
    for (size_t i = 0; i < sizeof extras / sizeof extras[0]; i++) {
        rewrite w;
        char message[600];
        rewrite_open(&w, extras[i].fixture);
        rewrite_add(&w, extras[i].extra, TD_DTYPE_F32, (uint64_t[]){4, 64, 0}, NULL);
        td_status st = refusal(&w, message, sizeof message);
        if (st != extras[i].status || strcmp(message, extras[i].message) != 0) {
            print_error("%s: %s: %s\n", extras[i].extra, td_status_name(st), message);
            wrong++;
        }
        rewrite_close(&w);
    }
    assert_int_equal(wrong, 0);
}

/* Experts one by one that do not go together. */
static void experts_must_be_alike(void **state) {
    (void)state;
    rewrite w;
    char message[600];
    rewrite_open(&w, "qwen35-moe");
    const char *name = "model.layers.1.mlp.experts.3.up_proj.weight";
    uint16_t *half = rewrite_keep(&w, td_calloc(FF * N_EMBD, 2));
    td_tensor *t = rewrite_find(&w, name);
    t->dtype = TD_DTYPE_BF16;
    t->data = (const uint8_t *)half;
    t->size = FF * N_EMBD * 2;
    assert_int_equal(refusal(&w, message, sizeof message), TD_E_MODEL);
    assert_string_equal(message, ": module layers.1.mlp.experts.3.up_proj is in another format than expert 0's");
    rewrite_close(&w);
}

/* A published convolution in a converted file: the norms of one of the two would be wrong. */
static void mixed_conversions_are_refused(void **state) {
    (void)state;
    rewrite w;
    char message[600];
    rewrite_open(&w, "qwen35-dense");
    td_tensor *t = rewrite_find(&w, "model.layers.2.linear_attn.conv1d.weight");
    t->dim[1] = 4;
    t->dim[2] = 1;
    assert_int_equal(refusal(&w, message, sizeof message), TD_E_SHAPE);
    assert_non_null(strstr(message, "layers.2.linear_attn.conv1d.weight"));
    rewrite_close(&w);
}

static void a_decay_that_overflows_is_refused(void **state) {
    (void)state;
    rewrite w;
    char message[600];
    rewrite_open(&w, "qwen35-dense");
    ((float *)rewrite_data(&w, "model.layers.1.linear_attn.A_log"))[2] = 100;
    assert_int_equal(refusal(&w, message, sizeof message), TD_E_NUMERIC);
    assert_string_equal(message, "tensor layers.1.linear_attn.A_log: exp of entry 2 is not finite");
    rewrite_close(&w);
}

static void memory_that_fails_is_reported_and_freed(void **state) {
    (void)state;
    for (size_t f = 0; f < 2; f++) {
        td_backend *be = reference();
        td_checkpoint *ck;
        char path[512];
        td_model_options o = model_options(true);
        o.mtp_bits = 4;
        ASSERT_OK(td_checkpoint_open(&ck, fixture_path(fixtures[f], NULL, path, sizeof path), NULL, err));
        td_model *m = NULL;
        ASSERT_OK(td_model_open(&m, ck, be, &o, err)); /* aliases and scratch stay */
        td_model_close(&m);
        long live = td_alloc_live();
        for (long k = 0;; k++) {
            td_error e = {0};
            td_alloc_fail_at(k);
            td_status st = td_model_open(&m, ck, be, &o, &e);
            bool failed = td_alloc_failed();
            td_alloc_fail_at(-1);
            if (!failed) {
                assert_int_equal(st, TD_OK);
                td_model_close(&m);
                break;
            }
            assert_int_equal(st, TD_E_NOMEM);
            assert_null(m);
            assert_true(e.message[0]);
            assert_int_equal(td_alloc_live(), live);
        }
        td_checkpoint_close(&ck);
        td_backend_close(&be);
    }
}

/* ---- passes that cannot be ---- */

static void impossible_passes_are_refused(void **state) {
    (void)state;
    td_backend *be = reference();
    td_checkpoint *ck;
    td_model *m;
    char path[512];
    td_model_options o = model_options(true);
    o.max_tentative = 2;
    ASSERT_OK(td_checkpoint_open(&ck, fixture_path(fixtures[0], NULL, path, sizeof path), NULL, err));
    ASSERT_OK(td_model_open(&m, ck, be, &o, err));
    td_token ids[N_IDS + 1] = {0};
    int32_t pos[N_IDS + 1] = {0}, n_keys[2] = {0};
    uint32_t row_seq[N_IDS + 1] = {0}, sure[2] = {4, 0}, commit[2] = {0, 0};
    td_pass good = {.n_rows = 4,
                    .token = ids,
                    .pos = pos,
                    .row_seq = row_seq,
                    .n_seq = 1,
                    .n_keys = n_keys,
                    .n_sure = sure,
                    .n_commit = commit};
    td_pass p = good;
    td_error e;
    p.n_rows = N_IDS + 1;
    assert_int_equal(td_model_forward(m, &p, &e), TD_E_ARG);
    p = good;
    p.n_out = N_IDS + 1;
    assert_int_equal(td_model_forward(m, &p, &e), TD_E_ARG);
    p = good;
    ids[3] = N_VOCAB;
    assert_int_equal(td_model_forward(m, &p, &e), TD_E_ARG);
    assert_int_equal(e.position, 3);
    ids[3] = 0;
    sure[0] = 5; /* more than there are */
    assert_int_equal(td_model_forward(m, &p, &e), TD_E_ARG);
    sure[0] = 1; /* three tentative */
    assert_int_equal(td_model_forward(m, &p, &e), TD_E_ARG);
    assert_string_equal(e.message, "sequence 0 has 4 rows, 1 of them sure, and commits 0; the model was opened for 2 "
                                   "tentative rows");
    sure[0] = 4;
    commit[0] = 3;
    assert_int_equal(td_model_forward(m, &p, &e), TD_E_ARG);
    commit[0] = 0;
    row_seq[3] = 1; /* no such sequence */
    assert_int_equal(td_model_forward(m, &p, &e), TD_E_ARG);
    row_seq[3] = 0;
    td_head_pass h = {.n_rows = N_IDS + 1, .token = ids, .pos = pos, .row_seq = row_seq};
    assert_int_equal(td_model_heads(m, &h, &e), TD_E_ARG);
    td_token words[] = {3, -1};
    h = (td_head_pass){.n_rows = 1, .token = ids, .pos = pos, .row_seq = row_seq, .word = words, .n_words = 2};
    assert_int_equal(td_model_heads(m, &h, &e), TD_E_ARG);
    td_model_close(&m);
    o.mtp = false;
    ASSERT_OK(td_model_open(&m, ck, be, &o, err));
    assert_int_equal(td_model_heads(m, &h, &e), TD_E_ARG);
    assert_string_equal(e.message, "the model was opened without draft heads");
    td_model_close(&m);
    td_checkpoint_close(&ck);
    td_backend_close(&be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_in_every_layout_give_the_same_bits),
        cmocka_unit_test(wrappers_are_seen_through),
        cmocka_unit_test(conversions_have_their_norms_shifted_once),
        cmocka_unit_test(quantised_conversions_are_their_rounded_weights),
        cmocka_unit_test(heads_are_narrowed_at_load),
        cmocka_unit_test(a_missing_head_is_a_reason_and_no_error),
        cmocka_unit_test(each_missing_tensor_is_named),
        cmocka_unit_test(each_wrong_shape_is_named_with_both_shapes),
        cmocka_unit_test(each_vector_that_is_not_finite_is_named),
        cmocka_unit_test(unknown_tensors_are_refused_by_name),
        cmocka_unit_test(experts_must_be_alike),
        cmocka_unit_test(mixed_conversions_are_refused),
        cmocka_unit_test(a_decay_that_overflows_is_refused),
        cmocka_unit_test(memory_that_fails_is_reported_and_freed),
        cmocka_unit_test(impossible_passes_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
