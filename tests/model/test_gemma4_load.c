/* test_gemma4_load.c - a Gemma 4 checkpoint with something wrong is refused in one line that names the tensor; one that
 * is only written differently (prefixes, tensors nobody needs, split experts, an untied head) gives the same logits,
 * bit for bit.
 *
 * Checkpoints are fixtures rewritten into a temporary directory (support/rewrite.h). */
#include "support/rewrite.h"

#include "model/gemma4.h"

#define N_IDS 48
#define N_VOCAB 320
#define PAGE 64

static const char *const fixtures[] = {"gemma4-dense", "gemma4-ple", "gemma4-moe"};

static td_model_options model_options(void) {
    td_model_options o = td_model_options_default();
    o.kv_type = TD_KV_F32;
    o.page_tokens = PAGE;
    o.max_rows = o.max_out = o.max_logits = N_IDS;
    return o;
}

/* ---- running: one pass, its pages made by hand ---- */

static void run(td_model *m, const td_token *ids, float *logits) {
    td_backend *be = m->be;
    float *hidden = be->ops->alloc(be, N_IDS * 64 * sizeof(float));
    float *out = be->ops->alloc(be, N_IDS * N_VOCAB * sizeof(float));
    int32_t pos[N_IDS], rows[N_IDS], n_keys = N_IDS;
    uint32_t row_seq[N_IDS] = {0}, n_sure = N_IDS;
    uint8_t *page[TD_KV_MAX_GROUPS];
    td_kv_pages table[TD_KV_MAX_GROUPS];
    td_pass p = {.n_rows = N_IDS,
                 .token = ids,
                 .pos = pos,
                 .row_seq = row_seq,
                 .n_seq = 1,
                 .n_keys = &n_keys,
                 .n_sure = &n_sure,
                 .n_out = N_IDS,
                 .out_row = rows,
                 .hidden = hidden,
                 .n_logits = N_IDS,
                 .logits_out = rows,
                 .logits = out};
    for (int32_t i = 0; i < N_IDS; i++)
        pos[i] = rows[i] = i;
    for (uint32_t g = 0; g < m->kv.n_groups; g++) {
        page[g] = be->ops->alloc(be, m->kv.group[g].page_bytes);
        table[g] = &page[g];
        p.pages[g] = &table[g];
    }
    ASSERT_OK(td_model_forward(m, &p, err));
    memcpy(logits, out, N_IDS * N_VOCAB * sizeof(float));
    for (uint32_t g = 0; g < m->kv.n_groups; g++)
        be->ops->free(be, page[g]);
    be->ops->free(be, hidden);
    be->ops->free(be, out);
}

/* Opens the checkpoint at `path` and runs ids of its own through it. */
static void logits_of(const char *path, td_backend *be, float *logits, td_model_info *info) {
    td_checkpoint *ck;
    td_model *m;
    td_model_options o = model_options();
    ASSERT_OK(td_checkpoint_open(&ck, path, NULL, err));
    ASSERT_OK(td_model_open(&m, ck, be, &o, err));
    td_token ids[N_IDS];
    for (int i = 0; i < N_IDS; i++)
        ids[i] = (i * 53 + 2) % N_VOCAB;
    run(m, ids, logits);
    if (info)
        *info = m->info;
    td_model_close(&m);
    td_model_close(&m);
    td_checkpoint_close(&ck);
}

/* ---- refusing ---- */

static td_backend *reference(void) {
    td_backend *be;
    ASSERT_OK(td_backend_ref_open(&be, err));
    return be;
}

/* The error of opening the rewritten checkpoint, with its directory written as DIR. */
static td_status refusal(rewrite *w, char *message, size_t size) {
    td_backend *be = reference();
    td_checkpoint *ck = NULL;
    td_model *m = (td_model *)w;
    td_model_options o = model_options();
    td_error e = {0};
    const char *dir = rewrite_save(w);
    td_status st = td_checkpoint_open(&ck, dir, NULL, &e);
    if (st == TD_OK) {
        st = td_model_open(&m, ck, be, &o, &e);
        assert_int_equal(st == TD_OK, m != NULL);
    }
    size_t at = 0;
    for (const char *s = e.message; *s && at + 8 < size;) {
        bool is_dir = strncmp(s, dir, strlen(dir)) == 0;
        at += (size_t)snprintf(message + at, size - at, "%.*s", is_dir ? 3 : 1, is_dir ? "DIR" : s);
        s += is_dir ? strlen(dir) : 1;
    }
    message[at] = '\0';
    if (st == TD_OK)
        td_model_close(&m);
    td_checkpoint_close(&ck);
    td_backend_close(&be);
    return st;
}

static bool ends(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && strcmp(s + n - m, suffix) == 0;
}

/* Every tensor of every fixture, left out: all are needed but layer_scalar, which is 1 when absent. */
static void each_missing_tensor_is_named(void **state) {
    (void)state;
    for (size_t f = 0; f < 3; f++) {
        rewrite w;
        rewrite_open(&w, fixtures[f]);
        size_t n = w.n;
        for (size_t i = 0; i < n; i++) {
            td_tensor gone = w.tensor[i];
            char message[600], module[300];
            w.tensor[i] = w.tensor[--w.n];
            td_status st = refusal(&w, message, sizeof message);
            snprintf(module, sizeof module, "%s", gone.name + strlen("model."));
            if (gone.n_dims > 1 && ends(module, ".weight"))
                module[strlen(module) - 7] = '\0';
            if (ends(gone.name, "layer_scalar")) {
                assert_int_equal(st, TD_OK);
            } else if (st != TD_E_MODEL || !strstr(message, module) || !strstr(message, "DIR")) {
                fail_msg("%s without %s: %s: %s", fixtures[f], gone.name, td_status_name(st), message);
            }
            w.n = n;
            w.tensor[n - 1] = w.tensor[i];
            w.tensor[i] = gone;
        }
        rewrite_close(&w);
    }
}

/* Every tensor with one row more than it should have. */
static void each_wrong_shape_is_named_with_both_shapes(void **state) {
    (void)state;
    for (size_t f = 0; f < 3; f++) {
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

/* Every vector with a NaN or an infinity in its last place. */
static void each_vector_that_is_not_finite_is_named(void **state) {
    (void)state;
    uint32_t n = 0;
    for (size_t f = 0; f < 3; f++) {
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
    assert_true(n > 80);
}

static const struct {
    const char *fixture, *extra;
    td_dtype type;
    uint64_t dims[4];
    td_status status;
    const char *message;
} extras[] = {
    {"gemma4-dense",
     "model.layers.6.mlp.up_proj.weight",
     TD_DTYPE_F32,
     {96, 64},
     TD_E_MODEL,
     "DIR: tensor model.layers.6.mlp.up_proj.weight is not part of a Gemma 4 trunk with this config.json (6 layers)"},
    {"gemma4-dense",
     "model.layers.0.mlp.up_proj.bias",
     TD_DTYPE_F32,
     {96},
     TD_E_MODEL,
     "DIR: tensor model.layers.0.mlp.up_proj.bias is not part of a Gemma 4 trunk with this config.json (6 layers)"},
    {"gemma4-dense",
     "model.layers.0.self_attn.sinks",
     TD_DTYPE_F32,
     {4},
     TD_E_MODEL,
     "DIR: tensor model.layers.0.self_attn.sinks is not part of a Gemma 4 trunk with this config.json (6 layers)"},
    {"gemma4-dense",
     "model.layers.0.router.proj.weight",
     TD_DTYPE_F32,
     {8, 64},
     TD_E_MODEL,
     "DIR: tensor model.layers.0.router.proj.weight is not part of a Gemma 4 trunk with this config.json (6 layers)"},
    {"gemma4-dense",
     "model.layers.x.mlp.up_proj.weight",
     TD_DTYPE_F32,
     {8, 64},
     TD_E_MODEL,
     "DIR: tensor model.layers.x.mlp.up_proj.weight is not part of a Gemma 4 trunk with this config.json (6 layers)"},
    {"gemma4-dense",
     "model.embed_tokens_per_layer.weight",
     TD_DTYPE_F32,
     {320, 64},
     TD_E_MODEL,
     "DIR: tensor model.embed_tokens_per_layer.weight is not part of a Gemma 4 trunk with this config.json (6 layers)"},
    {"gemma4-dense",
     "mtp.fc.weight",
     TD_DTYPE_F32,
     {8, 64},
     TD_E_MODEL,
     "DIR: tensor mtp.fc.weight is not part of a Gemma 4 trunk with this config.json (6 layers)"},
    {"gemma4-dense",
     "pre_projection.weight",
     TD_DTYPE_F32,
     {8, 64},
     TD_E_MODEL,
     "DIR: tensor pre_projection.weight is not part of a Gemma 4 trunk with this config.json (6 layers)"},
    {"gemma4-moe",
     "model.layers.0.experts.0.gate_proj.weight",
     TD_DTYPE_F32,
     {24, 64},
     TD_E_MODEL,
     "DIR: tensor model.layers.0.experts.0.gate_proj.weight is not part of a Gemma 4 trunk with this config.json (4 "
     "layers, experts)"},
    {"gemma4-ple",
     "model.layers.0.post_feedforward_layernorm_1.weight",
     TD_DTYPE_F32,
     {64},
     TD_E_MODEL,
     "DIR: tensor model.layers.0.post_feedforward_layernorm_1.weight is not part of a Gemma 4 trunk with this "
     "config.json (8 layers, per-layer inputs)"},
    {"gemma4-dense",
     "model.language_model.norm.weight",
     TD_DTYPE_F32,
     {64},
     TD_E_FORMAT,
     "DIR: tensors \"model.norm.weight\" and \"model.language_model.norm.weight\" are both called \"norm.weight\""},
    {"gemma4-dense",
     "model.layers.0.mlp.up_proj.scales",
     TD_DTYPE_F32,
     {96, 2},
     TD_E_SHAPE,
     "DIR: module \"layers.0.mlp.up_proj\" (\"model.layers.0.mlp.up_proj.weight\"): it has scales, but its weight is "
     "F32, expected packed U32"},
    {"gemma4-dense",
     "model.layers.0.mlp.up_proj.biases",
     TD_DTYPE_F32,
     {96, 2},
     TD_E_MODEL,
     "DIR: tensor model.layers.0.mlp.up_proj.biases belongs to nothing that is quantised"},
    {"gemma4-dense",
     "model.norm.scales",
     TD_DTYPE_F32,
     {64},
     TD_E_MODEL,
     "DIR: tensor model.norm.scales belongs to nothing that is quantised"},
    {"gemma4-dense",
     "model.layers.00.mlp.up_proj.weight",
     TD_DTYPE_F32,
     {96, 64},
     TD_E_MODEL,
     "DIR: tensor model.layers.00.mlp.up_proj.weight is not part of a Gemma 4 trunk with this config.json (6 layers)"},
    {"gemma4-dense",
     "model.layers.+1.mlp.up_proj.weight",
     TD_DTYPE_F32,
     {96, 64},
     TD_E_MODEL,
     "DIR: tensor model.layers.+1.mlp.up_proj.weight is not part of a Gemma 4 trunk with this config.json (6 layers)"},
    {"gemma4-moe",
     "model.layers.0.experts.switch_glu.up_proj.weight",
     TD_DTYPE_F32,
     {8, 24, 64},
     TD_E_MODEL,
     "DIR: the experts of layer 0 are there both fused and split"},
    /* known, and left alone */
    {"gemma4-dense", "model.vision_tower.encoder.layer.0.weight", TD_DTYPE_BF16, {4, 4}, TD_OK, ""},
    {"gemma4-dense", "vision_tower.encoder.layer.0.weight", TD_DTYPE_BF16, {4, 4}, TD_OK, ""},
    {"gemma4-dense", "model.audio_tower.x", TD_DTYPE_I64, {4, 4}, TD_OK, ""},
    {"gemma4-dense", "model.embed_vision.embedding_projection.weight", TD_DTYPE_F32, {4, 4}, TD_OK, ""},
    {"gemma4-dense", "embed_audio.x.weight", TD_DTYPE_F32, {4}, TD_OK, ""},
    {"gemma4-dense", "model.vision_embedder.x", TD_DTYPE_F32, {4}, TD_OK, ""},
    {"gemma4-dense", "model.multi_modal_projector.x", TD_DTYPE_F32, {4}, TD_OK, ""},
    {"gemma4-dense", "model.layers.0.self_attn.rotary_emb.inv_freq", TD_DTYPE_F32, {4}, TD_OK, ""},
    {"gemma4-dense", "model.layers.0.mlp.up_proj.input_max", TD_DTYPE_F32, {1}, TD_OK, ""},
    {"gemma4-dense", "model.layers.2.self_attn.v_proj.weight", TD_DTYPE_F32, {32, 64}, TD_OK, ""}, /* K is V there */
    {"gemma4-dense", "lm_head.weight", TD_DTYPE_F32, {320, 64}, TD_OK, ""},                        /* tied */
    {"gemma4-ple", "model.layers.5.self_attn.k_proj.weight", TD_DTYPE_F32, {16, 64}, TD_OK, ""},
    {"gemma4-ple", "model.layers.6.self_attn.v_proj.weight", TD_DTYPE_F32, {16, 64}, TD_OK, ""},
    {"gemma4-ple", "model.layers.7.self_attn.k_norm.weight", TD_DTYPE_F32, {32}, TD_OK, ""},
};

static void an_unknown_tensor_is_refused_by_name(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof extras / sizeof extras[0]; i++) {
        rewrite w;
        char message[600];
        rewrite_open(&w, extras[i].fixture);
        rewrite_add(&w, extras[i].extra, extras[i].type, extras[i].dims, NULL);
        td_status st = refusal(&w, message, sizeof message);
        if (st != extras[i].status || strcmp(message, extras[i].message) != 0) {
            print_error("%s: %s: %s\n", extras[i].extra, td_status_name(st), message);
            wrong++;
        }
        rewrite_close(&w);
    }
    assert_int_equal(wrong, 0);
}

/* A matrix of a type that holds no weights, a vector of one that holds no numbers. */
static void wrong_types_are_named(void **state) {
    (void)state;
    static const struct {
        const char *tensor;
        const char *message;
    } cases[] = {
        {"model.layers.1.mlp.down_proj.weight",
         "DIR: module \"layers.1.mlp.down_proj\" (\"model.layers.1.mlp.down_proj.weight\"): its weight is I32 without "
         "scales, expected F32, F16, BF16 or F8_E4M3"},
        {"model.layers.1.input_layernorm.weight",
         "DIR: tensor \"layers.1.input_layernorm.weight\" (\"model.layers.1.input_layernorm.weight\") is I32, expected "
         "a float type"},
        {"model.embed_tokens.weight", "DIR: module \"embed_tokens\" (\"model.embed_tokens.weight\"): its weight is I32 "
                                      "without scales, expected F32, F16, BF16 or F8_E4M3"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rewrite w;
        char message[600];
        rewrite_open(&w, "gemma4-dense");
        rewrite_find(&w, cases[i].tensor)->dtype = TD_DTYPE_I32;
        assert_int_equal(refusal(&w, message, sizeof message), TD_E_SHAPE);
        assert_string_equal(message, cases[i].message);
        rewrite_close(&w);
    }
}

static void an_untied_model_needs_its_head(void **state) {
    (void)state;
    rewrite w;
    char message[600];
    rewrite_open(&w, "gemma4-dense");
    json_object_set_new(w.config, "tie_word_embeddings", json_false());
    assert_int_equal(refusal(&w, message, sizeof message), TD_E_MODEL);
    assert_string_equal(message, "DIR: no weight for module \"lm_head\"");
    rewrite_close(&w);
}

/* A per-layer table shorter than the vocabulary would be read past its end by the words it lacks. */
static void a_short_per_layer_table_is_refused(void **state) {
    (void)state;
    rewrite w;
    char message[600];
    rewrite_open(&w, "gemma4-ple");
    json_object_set_new(w.config, "vocab_size_per_layer_input", json_integer(300));
    td_tensor *t = rewrite_find(&w, "model.embed_tokens_per_layer.weight");
    t->dim[0] = 300;
    t->size = t->size / 320 * 300;
    assert_int_equal(refusal(&w, message, sizeof message), TD_E_MODEL);
    assert_string_equal(message, "config.json: vocab_size_per_layer_input 300 is below vocab_size 320");
    rewrite_close(&w);
}

static void families_are_told_apart(void **state) {
    (void)state;
    static const struct {
        const char *type; /* NULL: absent */
        td_status status;
        const char *begin; /* of the message */
    } cases[] = {
        {NULL, TD_E_MODEL, "DIR/config.json: no \"model_type\""},
        {"gemma4_assistant", TD_E_MODEL,
         "DIR: model_type \"gemma4_assistant\" is an assistant, not a trunk; give it as --mtp-assistant-model"},
        {"gemma4_unified_assistant", TD_E_MODEL,
         "DIR: model_type \"gemma4_unified_assistant\" is an assistant, not a trunk; give it as --mtp-assistant-model"},
        {"llama", TD_E_UNSUPPORTED,
         "DIR/config.json: model_type \"llama\", expected one of gemma4, gemma4_text, gemma4_unified, "
         "gemma4_unified_text"},
        {"gemma4_unified_text", TD_OK, ""},
        {"gemma4", TD_OK, ""},
        {"gemma4_unified", TD_OK, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        rewrite w;
        char message[600];
        rewrite_open(&w, "gemma4-dense");
        if (cases[i].type)
            json_object_set_new(w.config, "model_type", json_string(cases[i].type));
        else
            json_object_del(w.config, "model_type");
        assert_int_equal(refusal(&w, message, sizeof message), cases[i].status);
        message[strlen(cases[i].begin)] = '\0'; /* the list of families grows */
        assert_string_equal(message, cases[i].begin);
        rewrite_close(&w);
    }
}

static void options_out_of_range_are_refused(void **state) {
    (void)state;
    static const struct {
        uint32_t page, rows, out, logits;
        const char *message;
    } cases[] = {
        {7, 8, 8, 8, "KV page of 7 tokens, expected a power of two from 8 to 1024"},
        {4, 8, 8, 8, "KV page of 4 tokens, expected a power of two from 8 to 1024"},
        {24, 8, 8, 8, "KV page of 24 tokens, expected a power of two from 8 to 1024"},
        {2048, 8, 8, 8, "KV page of 2048 tokens, expected a power of two from 8 to 1024"},
        {0, 8, 8, 8, "KV page of 0 tokens, expected a power of two from 8 to 1024"},
        {64, 0, 0, 0,
         "a pass of 0 rows with 0 outputs and 0 logits, expected 1 to 65536 rows and no more outputs than rows"},
        {64, 65537, 8, 8,
         "a pass of 65537 rows with 8 outputs and 8 logits, expected 1 to 65536 rows and no more outputs than rows"},
        {64, 8, 9, 8,
         "a pass of 8 rows with 9 outputs and 8 logits, expected 1 to 65536 rows and no more outputs than rows"},
        {64, 8, 8, 9,
         "a pass of 8 rows with 8 outputs and 9 logits, expected 1 to 65536 rows and no more outputs than rows"},
    };
    td_backend *be = reference();
    td_checkpoint *ck;
    char path[512];
    ASSERT_OK(td_checkpoint_open(&ck, fixture_path("gemma4-dense", NULL, path, sizeof path), NULL, err));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_model_options o = td_model_options_default();
        td_model *m = (td_model *)&o;
        td_error e;
        o.page_tokens = cases[i].page;
        o.max_rows = cases[i].rows;
        o.max_out = cases[i].out;
        o.max_logits = cases[i].logits;
        assert_int_equal(td_model_open(&m, ck, be, &o, &e), TD_E_ARG);
        assert_string_equal(e.message, cases[i].message);
        assert_null(m);
    }
    td_checkpoint_close(&ck);
    td_backend_close(&be);
}

static void passes_that_do_not_fit_are_refused(void **state) {
    (void)state;
    fixture f;
    td_backend *be = reference();
    td_model_options o = model_options();
    o.max_rows = 4;
    o.max_out = 3;
    o.max_logits = 2;
    fixture_open(&f, "gemma4-dense", be, &o);
    const td_token good[5] = {1, 2, 3, 4, 5}, above[2] = {1, 320}, below[2] = {-1, 1};
    const struct {
        td_pass p;
        int64_t position;
        const char *message;
    } cases[] = {
        {{.n_rows = 0, .token = good}, -1, "a pass of 0 rows, 0 outputs, 0 logits; the model was opened for 4, 3, 2"},
        {{.n_rows = 5, .token = good}, -1, "a pass of 5 rows, 0 outputs, 0 logits; the model was opened for 4, 3, 2"},
        {{.n_rows = 4, .n_out = 4, .token = good},
         -1,
         "a pass of 4 rows, 4 outputs, 0 logits; the model was opened for 4, 3, 2"},
        {{.n_rows = 4, .n_out = 3, .n_logits = 3, .token = good},
         -1,
         "a pass of 4 rows, 3 outputs, 3 logits; the model was opened for 4, 3, 2"},
        {{.n_rows = 2, .token = above}, 1, "token 320, expected 0 to 319"},
        {{.n_rows = 2, .token = below}, 0, "token -1, expected 0 to 319"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        td_error e;
        assert_int_equal(td_model_forward(f.model, &cases[i].p, &e), TD_E_ARG);
        assert_string_equal(e.message, cases[i].message);
        assert_int_equal(e.position, cases[i].position);
    }
    fixture_close(&f);
    td_backend_close(&be);
}

/* ---- written differently, meaning the same ---- */

static float plain_logits[N_IDS * N_VOCAB], other_logits[N_IDS * N_VOCAB];

static void assert_same_logits(const char *what) {
    if (memcmp(plain_logits, other_logits, sizeof plain_logits) != 0)
        fail_msg("%s: the logits differ by %g", what, max_difference(plain_logits, other_logits, N_IDS * N_VOCAB));
}

static void fixture_logits(const char *name, td_backend *be, td_model_info *info) {
    char path[512];
    logits_of(fixture_path(name, NULL, path, sizeof path), be, plain_logits, info);
}

static void prefixes_of_wrappers_are_taken_off(void **state) {
    (void)state;
    static const char *const prefixes[] = {"", "model.language_model.", "language_model.model.", "language_model.",
                                           "model.language_model.model."};
    td_backend *be = reference();
    for (size_t f = 0; f < 3; f++) {
        fixture_logits(fixtures[f], be, NULL);
        for (size_t i = 0; i < 5; i++) {
            rewrite w;
            rewrite_open(&w, fixtures[f]);
            rewrite_prefix(&w, prefixes[i]);
            logits_of(rewrite_save(&w), be, other_logits, NULL);
            assert_same_logits(prefixes[i]);
            rewrite_close(&w);
        }
    }
    td_backend_close(&be);
}

static void what_nobody_needs_is_skipped_and_counted(void **state) {
    (void)state;
    td_backend *be = reference();
    td_model_info info;
    fixture_logits("gemma4-ple", be, &info);
    assert_int_equal(info.n_skipped, 0);
    rewrite w;
    rewrite_open(&w, "gemma4-ple");
    static const char *const unused[] = {
        "model.layers.5.self_attn.k_proj.weight", "model.layers.5.self_attn.v_proj.weight",
        "model.layers.5.self_attn.k_norm.weight", "model.vision_tower.x.weight", "lm_head.weight"};
    for (size_t i = 0; i < 5; i++) { /* of any shape, of any content */
        float *x = rewrite_add(&w, unused[i], TD_DTYPE_F32, (const uint64_t[]){3, 5, 0}, NULL);
        for (int j = 0; j < 15; j++)
            x[j] = NAN;
    }
    json_t *text = json_deep_copy(w.config);
    json_object_set_new(text, "model_type", json_string("gemma4_text"));
    json_object_clear(w.config);
    json_object_set_new(w.config, "model_type", json_string("gemma4"));
    json_object_set_new(w.config, "text_config", text);
    logits_of(rewrite_save(&w), be, other_logits, &info);
    assert_same_logits("a multimodal wrapper");
    assert_int_equal(info.n_skipped, 5);
    rewrite_close(&w);
    td_backend_close(&be);
}

static void a_missing_layer_scalar_is_one(void **state) {
    (void)state;
    td_backend *be = reference();
    rewrite w;
    rewrite_open(&w, "gemma4-dense");
    *(float *)rewrite_data(&w, "model.layers.2.layer_scalar") = 1;
    logits_of(rewrite_save(&w), be, plain_logits, NULL);
    rewrite_drop(&w, "model.layers.2.layer_scalar");
    logits_of(rewrite_save(&w), be, other_logits, NULL);
    assert_same_logits("no layer_scalar");
    rewrite_close(&w);
    td_backend_close(&be);
}

static void an_untied_head_is_used(void **state) {
    (void)state;
    td_backend *be = reference();
    fixture_logits("gemma4-dense", be, NULL);
    rewrite w;
    rewrite_open(&w, "gemma4-dense");
    json_object_set_new(w.config, "tie_word_embeddings", json_false());
    const td_tensor *embed = rewrite_find(&w, "model.embed_tokens.weight");
    float *head = rewrite_add(&w, "lm_head.weight", TD_DTYPE_F32, (const uint64_t[]){320, 64, 0}, embed->data);
    td_model_info info;
    logits_of(rewrite_save(&w), be, other_logits, &info);
    assert_same_logits("a head that equals the embedding");
    assert_int_equal(info.lookup_bytes, 320 * 64 * 4);
    for (int i = 0; i < 64; i++)
        head[7 * 64 + i] = 0;
    logits_of(rewrite_save(&w), be, other_logits, NULL);
    for (int r = 0; r < N_IDS; r++)
        for (int t = 0; t < N_VOCAB; t++)
            assert_true(t == 7 ? other_logits[r * N_VOCAB + t] == 0
                               : other_logits[r * N_VOCAB + t] == plain_logits[r * N_VOCAB + t]);
    rewrite_close(&w);
    td_backend_close(&be);
}

/* The layout of MLX conversions: gate and up apart, with ".weight". */
static void split_experts(rewrite *w) {
    char name[100];
    for (int l = 0; l < 4; l++) {
        snprintf(name, sizeof name, "model.layers.%d.experts.gate_up_proj", l);
        const float *fused = (const float *)(const void *)rewrite_find(w, name)->data;
        for (int half = 0; half < 2; half++) {
            char to[100];
            snprintf(to, sizeof to, "model.layers.%d.experts.switch_glu.%s_proj.weight", l, half ? "up" : "gate");
            float *part = rewrite_add(w, to, TD_DTYPE_F32, (const uint64_t[]){8, 24, 64, 0}, NULL);
            for (int e = 0; e < 8; e++)
                memcpy(part + e * 24 * 64, fused + (e * 48 + half * 24) * 64, 24 * 64 * sizeof(float));
        }
        rewrite_drop(w, name);
        snprintf(name, sizeof name, "model.layers.%d.experts.down_proj", l);
        char down[100];
        snprintf(down, sizeof down, "model.layers.%d.experts.switch_glu.down_proj.weight", l);
        rewrite_rename(w, name, down);
    }
}

static void split_experts_equal_fused_ones(void **state) {
    (void)state;
    static const char *const backends[] = {"reference", "generic", "avx2", "avx512"};
    for (size_t b = 0; b < 4; b++) {
        td_backend *be = fixture_backend(backends[b]);
        if (!be)
            continue;
        fixture_logits("gemma4-moe", be, NULL);
        rewrite w;
        rewrite_open(&w, "gemma4-moe");
        split_experts(&w);
        logits_of(rewrite_save(&w), be, other_logits, NULL);
        assert_same_logits(backends[b]);
        rewrite_close(&w);
        td_backend_close(&be);
    }
}

/* ---- what a model says of itself ---- */

static void the_description_counts_every_weight(void **state) {
    (void)state;
    td_backend *be = reference();
    for (size_t f = 0; f < 3; f++) {
        rewrite w;
        rewrite_open(&w, fixtures[f]);
        uint64_t n = 0, matrices = 0, lookup = 0;
        for (size_t i = 0; i < w.n; i++) {
            const td_tensor *t = &w.tensor[i];
            n += ends(t->name, "layer_scalar") ? 0 : t->size / 4;
            matrices += t->n_dims > 1 ? t->size : 0;
            lookup += strstr(t->name, "embed_tokens_per_layer") ? t->size : 0;
        }
        td_model_info info;
        fixture_logits(fixtures[f], be, &info);
        assert_string_equal(info.family, "gemma4");
        assert_string_equal(info.weight_format, "f32");
        assert_int_equal(info.weight_bits, 32);
        assert_int_equal(info.n_params, n);
        assert_int_equal(info.weight_bytes, matrices);
        assert_int_equal(info.lookup_bytes, lookup);
        assert_true(info.row_bytes <= matrices - lookup);
        assert_int_equal(info.row_bytes == matrices - lookup, f != 2); /* a row reads 2 of 8 experts */
        assert_true(info.heap_bytes > 0 && info.scratch_bytes > 0);
        assert_false(info.has_mtp);
        rewrite_close(&w);
    }
    td_backend_close(&be);
}

static void quantised_models_say_so(void **state) {
    (void)state;
    static const unsigned bits[] = {2, 3, 4, 5, 6, 8};
    td_backend *be = reference();
    for (size_t b = 0; b < 6; b++) {
        rewrite w;
        rewrite_open(&w, "gemma4-dense");
        assert_int_equal(rewrite_quantize(&w, bits[b], 32), 6 * 7 - 2 + 1); /* no v_proj in two layers */
        td_model_info info;
        char want[64];
        logits_of(rewrite_save(&w), be, other_logits, &info);
        snprintf(want, sizeof want, "affine %u-bit group 32", bits[b]);
        assert_string_equal(info.weight_format, want);
        assert_int_equal(info.weight_bits, bits[b]);
        rewrite_close(&w);
    }
    td_backend_close(&be);
}

/* ---- no memory ---- */

static void no_memory_leaves_nothing_behind(void **state) {
    (void)state;
    td_backend *be = reference();
    for (size_t f = 0; f < 3; f++) {
        td_checkpoint *ck;
        char path[512];
        td_model_options o = model_options();
        td_model *m;
        ASSERT_OK(td_checkpoint_open(&ck, fixture_path(fixtures[f], NULL, path, sizeof path), NULL, err));
        ASSERT_OK(td_model_open(&m, ck, be, &o, err)); /* aliases and the backend's scratch stay */
        td_model_close(&m);
        for (long k = 0;; k++) {
            long live = td_alloc_live();
            td_error e;
            m = (td_model *)&o;
            td_alloc_fail_at(k);
            td_status st = td_model_open(&m, ck, be, &o, &e);
            bool struck = td_alloc_failed();
            td_alloc_fail_at(-1);
            assert_int_equal(st, struck ? TD_E_NOMEM : TD_OK);
            assert_int_equal(m == NULL, struck);
            td_model_close(&m);
            assert_int_equal(td_alloc_live(), live);
            if (!struck)
                break;
        }
        td_checkpoint_close(&ck);
    }
    td_backend_close(&be);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_missing_tensor_is_named),
        cmocka_unit_test(each_wrong_shape_is_named_with_both_shapes),
        cmocka_unit_test(each_vector_that_is_not_finite_is_named),
        cmocka_unit_test(an_unknown_tensor_is_refused_by_name),
        cmocka_unit_test(wrong_types_are_named),
        cmocka_unit_test(an_untied_model_needs_its_head),
        cmocka_unit_test(a_short_per_layer_table_is_refused),
        cmocka_unit_test(families_are_told_apart),
        cmocka_unit_test(options_out_of_range_are_refused),
        cmocka_unit_test(passes_that_do_not_fit_are_refused),
        cmocka_unit_test(prefixes_of_wrappers_are_taken_off),
        cmocka_unit_test(what_nobody_needs_is_skipped_and_counted),
        cmocka_unit_test(a_missing_layer_scalar_is_one),
        cmocka_unit_test(an_untied_head_is_used),
        cmocka_unit_test(split_experts_equal_fused_ones),
        cmocka_unit_test(the_description_counts_every_weight),
        cmocka_unit_test(quantised_models_say_so),
        cmocka_unit_test(no_memory_leaves_nothing_behind),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
