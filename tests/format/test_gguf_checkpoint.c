/* test_gguf_checkpoint.c - GGUF files as checkpoints: the configs that metadata becomes, the published names and shapes
 * of tensors, split models, directories, and what contradictions are told. Whole models are in
 * tests/decode/test_gguf_vectors.c. */
#include "format/support_format.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "format/gguf_names.h"
#include "format/gguf_write.h"

static const float zeros[4096];

/* A file in the making: metadata, and tensors of zeros. */
typedef struct maker {
    td_gguf_writer w;
    td_tensor t[64];
    size_t n;
} maker;

static void put_tensor(maker *m, const char *name, int n_dims, uint64_t d0, uint64_t d1) {
    td_tensor *t = &m->t[m->n++];
    *t = (td_tensor){.name = name, .dtype = TD_DTYPE_F32, .n_dims = n_dims, .dim = {d0, d1}};
    t->size = (size_t)(n_dims == 1 ? d0 : d0 * d1) * sizeof(float);
    t->data = (const uint8_t *)zeros;
    assert_true(t->size <= sizeof zeros);
}

static void put_u32(maker *m, const char *key, uint32_t v) {
    td_gguf_put_u32(&m->w, key, v);
}

/* Two layers, a sliding and a full one without a V projection; the second shares no keys. */
static void gemma4(maker *m) {
    static const float factors[4] = {1, 1e30f, 1e30f, 1e30f};
    *m = (maker){0};
    td_gguf_writer_init(&m->w);
    td_gguf_put_string(&m->w, "general.architecture", "gemma4", 6);
    put_u32(m, "gemma4.block_count", 2);
    put_u32(m, "gemma4.context_length", 512);
    put_u32(m, "gemma4.embedding_length", 16);
    put_u32(m, "gemma4.attention.head_count", 2);
    td_gguf_put_array(&m->w, "gemma4.attention.head_count_kv", TD_GGUF_U32, (const uint32_t[]){2, 1}, 2);
    put_u32(m, "gemma4.attention.key_length", 8);
    put_u32(m, "gemma4.attention.key_length_swa", 4);
    put_u32(m, "gemma4.attention.sliding_window", 32);
    td_gguf_put_array(&m->w, "gemma4.attention.sliding_window_pattern", TD_GGUF_BOOL, (const uint8_t[]){1, 0}, 2);
    td_gguf_put_f32(&m->w, "gemma4.attention.layer_norm_rms_epsilon", 1e-6f);
    td_gguf_put_f32(&m->w, "gemma4.final_logit_softcapping", 30);
    td_gguf_put_f32(&m->w, "gemma4.rope.freq_base", 1e6f);
    td_gguf_put_f32(&m->w, "gemma4.rope.freq_base_swa", 1e4f);
    put_u32(m, "gemma4.feed_forward_length", 32);
    put_tensor(m, "token_embd.weight", 2, 10, 16);
    put_tensor(m, "rope_freqs.weight", 1, 4, 0);
    m->t[m->n - 1].data = (const uint8_t *)factors;
    put_tensor(m, "blk.0.attn_v.weight", 2, 8, 16);
    put_tensor(m, "blk.1.attn_k.weight", 2, 8, 16);
    put_tensor(m, "blk.1.ffn_gate_inp.scale", 1, 16, 0);
    put_tensor(m, "blk.1.layer_output_scale.weight", 1, 1, 0);
}

/* Two trunk layers, the second of full attention, and a draft layer. */
static void qwen35(maker *m, bool moe) {
    const char *a = moe ? "qwen35moe" : "qwen35";
    static char key[32][64];
    *m = (maker){0};
    td_gguf_writer_init(&m->w);
    td_gguf_put_string(&m->w, "general.architecture", a, strlen(a));
    static const struct {
        const char *rest;
        uint32_t v;
    } ints[] = {{"block_count", 3},           {"nextn_predict_layers", 1},   {"context_length", 512},
                {"embedding_length", 16},     {"attention.head_count", 2},   {"attention.head_count_kv", 1},
                {"attention.key_length", 16}, {"rope.dimension_count", 4},   {"ssm.conv_kernel", 4},
                {"ssm.state_size", 8},        {"ssm.group_count", 2},        {"ssm.time_step_rank", 6},
                {"ssm.inner_size", 48},       {"full_attention_interval", 2}};
    for (size_t i = 0; i < sizeof ints / sizeof ints[0]; i++) {
        snprintf(key[i], sizeof key[i], "%s.%s", a, ints[i].rest);
        put_u32(m, key[i], ints[i].v);
    }
    snprintf(key[30], sizeof key[30], "%s.rope.freq_base", a);
    td_gguf_put_f32(&m->w, key[30], 1e7f);
    if (moe) {
        put_u32(m, "qwen35moe.expert_count", 4);
        put_u32(m, "qwen35moe.expert_used_count", 2);
        put_u32(m, "qwen35moe.expert_feed_forward_length", 8);
        put_tensor(m, "blk.0.ffn_gate_shexp.weight", 2, 24, 16);
        put_tensor(m, "blk.0.ffn_gate_inp_shexp.weight", 1, 16, 0);
    } else {
        put_u32(m, "qwen35.feed_forward_length", 32);
    }
    put_tensor(m, "token_embd.weight", 2, 10, 16);
    put_tensor(m, "output.weight", 2, 10, 16);
    put_tensor(m, "blk.0.ssm_conv1d.weight", 2, 80, 4);
    put_tensor(m, "blk.0.ssm_a", 1, 6, 0);
    put_tensor(m, "blk.2.nextn.eh_proj.weight", 2, 16, 32);
    put_tensor(m, "blk.2.attn_q.weight", 2, 64, 16);
}

/* Writes dir/name and frees the maker. */
static const char *save(maker *m, const char *dir, const char *name) {
    td_error err;
    const char *path = in_dir(dir, name);
    if (td_gguf_write(&m->w, path, m->t, m->n, &err) != TD_OK)
        fail_msg("%s", err.message);
    td_gguf_writer_free(&m->w);
    return path;
}

static void refused(maker *m, const char *dir, td_status want, const char *message) {
    td_checkpoint *ck;
    td_error err = {0};
    const char *path = save(m, dir, "bad.gguf");
    td_status st = td_checkpoint_open(&ck, path, NULL, &err);
    if (st != want || !strstr(err.message, message))
        fail_msg("%d \"%s\", expected %d \"%s\"", st, err.message, want, message);
    assert_null(ck);
    unlink(path);
}

/* ---- configs ---- */

static void same_json(const json_t *got, const char *want) {
    json_error_t e;
    json_t *w = json_loads(want, 0, &e);
    assert_non_null(w);
    if (!json_equal(got, w)) {
        char *text = json_dumps(got, JSON_SORT_KEYS);
        fail_msg("got %s\nexpected %s", text, want);
    }
    json_decref(w);
}

static void gemma4_metadata_becomes_a_config(void **state) {
    maker m;
    gemma4(&m);
    td_gguf_put_u32(&m.w, "tokenizer.ggml.eos_token_id", 1);
    td_gguf_begin_strings(&m.w, "tokenizer.ggml.tokens", 3);
    td_gguf_add_string(&m.w, "a", 1);
    td_gguf_add_string(&m.w, "<eos>", 5);
    td_gguf_add_string(&m.w, "<turn|>", 7);
    td_gguf_put_f32(&m.w, "general.sampling.temp", 0.5f);
    td_gguf_put_u32(&m.w, "general.sampling.top_k", 64);
    td_gguf_put_array(&m.w, "tokenizer.ggml.suppress_tokens", TD_GGUF_I32, (const int32_t[]){5, 6}, 2);
    td_checkpoint *ck = open_ok(save(&m, *state, "m.gguf"));
    json_t *config = json_deep_copy(td_checkpoint_config(ck));
    assert_true(json_real_value(json_object_get(config, "rms_norm_eps")) == (double)1e-6f);
    json_object_del(config, "rms_norm_eps");
    same_json(config,
              "{\"model_type\":\"gemma4_text\",\"dtype\":\"float32\",\"vocab_size\":10,\"hidden_size\":16,"
              "\"num_hidden_layers\":2,\"max_position_embeddings\":512,\"sliding_window\":32,"
              "\"num_kv_shared_layers\":0,\"final_logit_softcapping\":30.0,"
              "\"layer_types\":[\"sliding_attention\",\"full_attention\"],\"num_attention_heads\":2,"
              "\"head_dim\":4,\"global_head_dim\":8,\"num_key_value_heads\":2,"
              "\"per_layer_config\":{\"0\":{\"num_key_value_heads\":2},\"1\":{\"num_key_value_heads\":1}},"
              "\"attention_k_eq_v\":true,\"intermediate_size\":32,\"use_double_wide_mlp\":false,"
              "\"rope_parameters\":{\"full_attention\":{\"rope_type\":\"proportional\",\"rope_theta\":1000000.0,"
              "\"partial_rotary_factor\":0.25},\"sliding_attention\":{\"rope_type\":\"default\","
              "\"rope_theta\":10000.0}},\"hidden_size_per_layer_input\":0,\"tie_word_embeddings\":true}");
    same_json(td_checkpoint_generation_config(ck),
              "{\"eos_token_id\":[1,2],\"suppress_tokens\":[5,6],\"temperature\":0.5,\"top_k\":64,\"do_sample\":true}");
    json_decref(config);
    td_checkpoint_close(&ck);
}

static void qwen35_metadata_becomes_a_config(void **state) {
    maker m;
    qwen35(&m, true);
    td_checkpoint *ck = open_ok(save(&m, *state, "m.gguf"));
    same_json(td_checkpoint_config(ck),
              "{\"model_type\":\"qwen3_5_moe_text\",\"vocab_size\":10,\"hidden_size\":16,\"num_hidden_layers\":2,"
              "\"max_position_embeddings\":512,\"num_attention_heads\":2,\"num_key_value_heads\":1,\"head_dim\":16,"
              "\"layer_types\":[\"linear_attention\",\"full_attention\"],"
              "\"rope_parameters\":{\"rope_type\":\"default\",\"rope_theta\":10000000.0,"
              "\"partial_rotary_factor\":0.25},\"linear_conv_kernel_dim\":4,\"linear_key_head_dim\":8,"
              "\"linear_num_key_heads\":2,\"linear_num_value_heads\":6,\"linear_value_head_dim\":8,"
              "\"num_experts\":4,\"num_experts_per_tok\":2,\"moe_intermediate_size\":8,"
              "\"shared_expert_intermediate_size\":24,\"mtp_num_hidden_layers\":1,"
              "\"mtp_use_dedicated_embeddings\":false,\"tie_word_embeddings\":false}");
    td_checkpoint_close(&ck);
}

/* ---- names and shapes ---- */

static void tensors_have_their_published_names(void **state) {
    maker m;
    qwen35(&m, true);
    td_checkpoint *ck = open_ok(save(&m, *state, "m.gguf"));
    static const struct {
        const char *gguf, *known;
        int n_dims;
        uint64_t dim[3];
    } cases[] = {
        {"token_embd.weight", "embed_tokens.weight", 2, {10, 16}},
        {"output.weight", "lm_head.weight", 2, {10, 16}},
        {"blk.0.ssm_conv1d.weight", "layers.0.linear_attn.conv1d.weight", 3, {80, 4, 1}},
        {"blk.0.ssm_a", "layers.0.linear_attn.A", 1, {6}},
        {"blk.0.ffn_gate_inp_shexp.weight", "layers.0.mlp.shared_expert_gate.weight", 2, {1, 16}},
        {"blk.2.nextn.eh_proj.weight", "mtp.fc.weight", 2, {16, 32}},
        {"blk.2.attn_q.weight", "mtp.layers.0.self_attn.q_proj.weight", 2, {64, 16}},
    };
    assert_non_null(td_checkpoint_gguf(ck));
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const td_tensor *t = td_checkpoint_find(ck, cases[i].known);
        assert_non_null(t);
        assert_ptr_equal(t, td_checkpoint_find(ck, cases[i].gguf));
        assert_string_equal(t->name, cases[i].gguf);
        assert_string_equal(td_checkpoint_known_name(ck, t), cases[i].known);
        assert_int_equal(t->n_dims, cases[i].n_dims);
        assert_memory_equal(t->dim, cases[i].dim, (size_t)t->n_dims * sizeof *t->dim);
    }
    td_error err;
    td_matrix matrix;
    assert_int_equal(td_checkpoint_matrix(ck, "mtp.layers.0.self_attn.q_proj", 0, 64, 8, &matrix, &err), TD_E_SHAPE);
    assert_non_null(strstr(err.message, "\"blk.2.attn_q.weight\" has shape [64, 16], expected [64, 8]"));
    assert_int_equal(td_checkpoint_matrix(ck, "mtp.layers.0.self_attn.q_proj", 0, 64, 16, &matrix, &err), TD_OK);
    td_checkpoint_close(&ck);
}

static void names_of_blocks_have_one_spelling(void **state) {
    (void)state;
    char known[TD_GGUF_KNOWN_NAME_SIZE];
    static const char *const strange[] = {
        "blk.00.attn_q.weight",          "blk.-1.attn_q.weight", "blk..attn_q.weight",      "blk.0.attn_q", "blk.0.",
        "blk.99999999999.attn_q.weight", "attn_q.weight",        "blk.0.nextn.enorm.weight"};
    for (size_t i = 0; i < sizeof strange / sizeof strange[0]; i++)
        if (td_gguf_known_name(TD_GGUF_ARCH_QWEN35, 2, strange[i], known))
            fail_msg("%s is called %s", strange[i], known);
    assert_true(td_gguf_known_name(TD_GGUF_ARCH_QWEN35, 2, "blk.2.nextn.enorm.weight", known));
    assert_string_equal(known, "mtp.pre_fc_norm_embedding.weight");
    assert_true(td_gguf_known_name(TD_GGUF_ARCH_GEMMA4, 2, "blk.1.ffn_down_exps.scale", known));
    assert_string_equal(known, "layers.1.router.per_expert_scale");
    assert_false(td_gguf_known_name(TD_GGUF_ARCH_GEMMA4, 2, "blk.1.ssm_a", known));
}

/* A vector that a writer quantised is decoded like any other. */
static void vectors_may_be_blocks(void **state) {
    maker m;
    static uint8_t block[34];
    gemma4(&m);
    block[1] = 0x3C; /* scale 1 */
    for (int i = 0; i < 32; i++)
        block[2 + i] = (uint8_t)(i - 16);
    m.t[m.n++] = (td_tensor){.name = "output_norm.weight",
                             .dtype = TD_DTYPE_BLOCKS,
                             .blocks = TD_FORMAT_Q8_0,
                             .n_dims = 1,
                             .dim = {32},
                             .data = block,
                             .size = 34};
    td_checkpoint *ck = open_ok(save(&m, *state, "m.gguf"));
    float *v;
    td_error err;
    const uint64_t dim = 32;
    assert_int_equal(td_checkpoint_vector(ck, "norm.weight", 32, &v, &err), TD_OK);
    assert_true(v[0] == -16 && v[31] == 15);
    td_free_aligned(v);
    assert_int_equal(td_checkpoint_array(ck, "norm.weight", 1, &dim, &v, &err), TD_OK);
    assert_true(v[1] == -15);
    td_free_aligned(v);
    td_checkpoint_close(&ck);
}

/* ---- assistants ---- */

/* gemma4() under the other architecture: every key has another prefix, so its metadata is written anew. */
static void assistant(maker *m, const char *arch, bool early) {
    static char key[24][64];
    static const struct {
        const char *rest;
        uint32_t v;
    } ints[] = {{"block_count", 1},
                {"context_length", 512},
                {"embedding_length", 8},
                {"attention.head_count", 2},
                {"attention.head_count_kv", 1},
                {"attention.key_length", 8},
                {"attention.key_length_swa", 4},
                {"attention.sliding_window", 32},
                {"attention.shared_kv_layers", 1},
                {"feed_forward_length", 32}};
    const size_t n = sizeof ints / sizeof ints[0];
    *m = (maker){0};
    td_gguf_writer_init(&m->w);
    td_gguf_put_string(&m->w, "general.architecture", arch, strlen(arch));
    for (size_t i = 0; i < n; i++) {
        snprintf(key[i], sizeof key[i], "%s.%s", arch, ints[i].rest);
        put_u32(m, key[i], ints[i].v);
    }
    snprintf(key[n], sizeof key[n], "%s.attention.sliding_window_pattern", arch);
    td_gguf_put_array(&m->w, key[n], TD_GGUF_BOOL, (const uint8_t[]){1}, 1);
    snprintf(key[n + 1], sizeof key[n + 1], "%s.%s", arch, early ? "n_embd_backbone" : "embedding_length_out");
    put_u32(m, key[n + 1], 16);
    put_tensor(m, "token_embd.weight", 2, 10, 8);
    put_tensor(m, early ? "mtp.pre_projection.weight" : "nextn.pre_projection.weight", 2, 8, 32);
    put_tensor(m, early ? "mtp.post_projection.weight" : "nextn.post_projection.weight", 2, 16, 8);
}

static void put_clusters(maker *m, bool early) {
    put_tensor(m, early ? "mtp.centroids.weight" : "masked_embd_centroids.weight", 2, 5, 8);
    put_tensor(m, early ? "mtp.token_ordering.weight" : "masked_embd_ordering", 1, 10, 0);
    m->t[m->n - 1].dtype = TD_DTYPE_I32;
}

static void expect_clusters(const char *path, bool ordered, json_int_t n, json_int_t used) {
    td_checkpoint *ck = open_ok(path);
    const json_t *c = td_checkpoint_config(ck);
    assert_string_equal(json_string_value(json_object_get(c, "model_type")), "gemma4_assistant");
    assert_int_equal(json_integer_value(json_object_get(c, "backbone_hidden_size")), 16);
    assert_int_equal(json_is_true(json_object_get(c, "use_ordered_embeddings")), ordered);
    assert_int_equal(json_integer_value(json_object_get(c, "num_centroids")), n);
    assert_int_equal(json_integer_value(json_object_get(c, "centroid_intermediate_top_k")), used);
    assert_non_null(td_checkpoint_find(ck, "pre_projection.weight"));
    assert_non_null(td_checkpoint_find(ck, "post_projection.weight"));
    assert_int_equal(td_checkpoint_find(ck, "masked_embedding.token_ordering") != NULL, n > 0);
    td_checkpoint_close(&ck);
}

/* Both spellings of the architecture; clusters where the tensors are, by their keys or by what was published. */
static void assistants_old_and_new(void **state) {
    static const char *const archs[] = {"gemma4-assistant", "gemma4_assistant"};
    for (int early = 0; early < 2; early++) {
        maker m;
        assistant(&m, archs[early], early);
        expect_clusters(save(&m, *state, "a.gguf"), false, 0, 0);
        assistant(&m, archs[early], early);
        put_clusters(&m, early);
        expect_clusters(save(&m, *state, "a.gguf"), true, 5, 5);
    }
    maker m;
    assistant(&m, archs[1], true);
    put_clusters(&m, true);
    put_u32(&m, "gemma4_assistant.n_centroids", 5);
    put_u32(&m, "gemma4_assistant.centroid_top_k", 3);
    td_gguf_put_bool(&m.w, "gemma4_assistant.use_ordered_embeddings", true);
    expect_clusters(save(&m, *state, "a.gguf"), true, 5, 3);
    char known[TD_GGUF_KNOWN_NAME_SIZE];
    assert_false(td_gguf_known_name(TD_GGUF_ARCH_GEMMA4, 1, "mtp.centroids.weight", known));
}

/* ---- what contradictions are told ---- */

static void contradictions_are_told(void **state) {
    maker m;
    static const float other[4] = {1, 2, 1e30f, 1e30f};
    m = (maker){0};
    td_gguf_writer_init(&m.w);
    refused(&m, *state, TD_E_MODEL, "no key \"general.architecture\"");
    m = (maker){0};
    td_gguf_writer_init(&m.w);
    td_gguf_put_string(&m.w, "general.architecture", "llama", 5);
    refused(&m, *state, TD_E_UNSUPPORTED,
            "general.architecture is \"llama\", expected gemma4, gemma4-assistant, qwen35");
    m = (maker){0};
    td_gguf_writer_init(&m.w);
    td_gguf_put_string(&m.w, "general.architecture", "qwen35", 6);
    refused(&m, *state, TD_E_MODEL, "no key \"qwen35.block_count\"");

    gemma4(&m);
    td_gguf_put_string(&m.w, "gemma4.rope.scaling.type", "yarn", 4);
    refused(&m, *state, TD_E_UNSUPPORTED, "\"gemma4.rope.scaling.type\" is \"yarn\", expected none");
    gemma4(&m);
    m.t[1].data = (const uint8_t *)other;
    refused(&m, *state, TD_E_UNSUPPORTED, "\"rope_freqs.weight\": factor 1 is 2, expected ones and then");
    gemma4(&m);
    m.t[0].name = "token_embedding.weight";
    refused(&m, *state, TD_E_MODEL, "no tensor \"token_embd.weight\", or not a matrix");
    gemma4(&m);
    td_gguf_put_array(&m.w, "gemma4.x", TD_GGUF_U32, (const uint32_t[]){1}, 1);
    m.w.n_pairs--; /* the last pair becomes rubbish where tensors are expected */
    refused(&m, *state, TD_E_FORMAT, "byte ");

    qwen35(&m, false);
    td_gguf_put_array(&m.w, "qwen35.attention.recurrent_layers", TD_GGUF_BOOL, (const uint8_t[]){1}, 1);
    refused(&m, *state, TD_E_MODEL, "\"qwen35.attention.recurrent_layers\" has 1 entries, expected one a layer, 2");
}

static void nvfp4_with_a_factor_is_refused(void **state) {
    maker m;
    static const uint8_t block[36];
    gemma4(&m);
    m.t[m.n++] = (td_tensor){.name = "blk.0.attn_q.weight",
                             .dtype = TD_DTYPE_BLOCKS,
                             .blocks = TD_FORMAT_NVFP4_BLOCK,
                             .n_dims = 2,
                             .dim = {1, 64},
                             .data = block,
                             .size = sizeof block};
    put_tensor(&m, "blk.0.attn_q.scale", 1, 1, 0);
    refused(&m, *state, TD_E_UNSUPPORTED,
            "tensor \"blk.0.attn_q.scale\": NVFP4 with scales of whole tensors is not read");
}

/* Widths a layer that the published configuration cannot say. */
static void widths_must_be_one_or_its_double(void **state) {
    static const struct {
        uint32_t widths[2], shared;
        td_status want;
    } cases[] = {
        {{32, 32}, 0, TD_OK}, {{32, 64}, 1, TD_OK}, {{32, 64}, 0, TD_E_UNSUPPORTED}, {{32, 48}, 1, TD_E_UNSUPPORTED}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        maker m;
        td_checkpoint *ck;
        td_error err;
        gemma4(&m);
        /* the key is there as a scalar: its last letter becomes another */
        char *key = memmem(m.w.pairs.data, m.w.pairs.size, "gemma4.feed_forward_length", 26);
        assert_non_null(key);
        key[25] = 'x';
        td_gguf_put_array(&m.w, "gemma4.feed_forward_length", TD_GGUF_U32, cases[i].widths, 2);
        td_gguf_put_u32(&m.w, "gemma4.attention.shared_kv_layers", cases[i].shared);
        const char *path = save(&m, *state, "w.gguf");
        assert_int_equal(td_checkpoint_open(&ck, path, NULL, &err), cases[i].want);
        if (ck)
            assert_int_equal(json_is_true(json_object_get(td_checkpoint_config(ck), "use_double_wide_mlp")), i == 1);
        td_checkpoint_close(&ck);
        unlink(path);
    }
}

/* ---- files and directories ---- */

static void a_split_model_is_whole(void **state) {
    maker m;
    gemma4(&m);
    td_gguf_put_u32(&m.w, "split.count", 2);
    td_gguf_put_u32(&m.w, "split.no", 0);
    const char *first = save(&m, *state, "m-00001-of-00002.gguf");
    td_checkpoint *ck;
    td_error err;
    assert_int_equal(td_checkpoint_open(&ck, first, NULL, &err), TD_E_NOTFOUND);
    assert_non_null(strstr(err.message, "m-00002-of-00002.gguf"));

    m = (maker){0};
    td_gguf_writer_init(&m.w);
    td_gguf_put_u32(&m.w, "split.no", 1);
    put_tensor(&m, "blk.0.attn_k.weight", 2, 8, 16);
    save(&m, *state, "m-00002-of-00002.gguf");
    ck = open_ok(first);
    assert_non_null(td_checkpoint_find(ck, "layers.0.self_attn.k_proj.weight"));
    assert_int_equal(td_checkpoint_n_tensors(ck), 7);
    td_checkpoint_close(&ck);
    ck = open_ok(*state); /* the directory holds one model, in two parts */
    assert_int_equal(td_checkpoint_n_tensors(ck), 7);
    td_checkpoint_close(&ck);

    m = (maker){0};
    td_gguf_writer_init(&m.w);
    td_gguf_put_u32(&m.w, "split.no", 2);
    save(&m, *state, "m-00002-of-00002.gguf");
    assert_int_equal(td_checkpoint_open(&ck, first, NULL, &err), TD_E_FORMAT);
    assert_non_null(strstr(err.message, "\"split.no\" is 2, expected 1"));

    m = (maker){0};
    td_gguf_writer_init(&m.w);
    td_gguf_put_u32(&m.w, "split.no", 1);
    put_tensor(&m, "token_embd.weight", 2, 8, 16);
    save(&m, *state, "m-00002-of-00002.gguf");
    assert_int_equal(td_checkpoint_open(&ck, first, NULL, &err), TD_E_FORMAT);
    assert_non_null(strstr(err.message, "tensor \"token_embd.weight\" is in another part too"));

    rename(first, in_dir(*state, "renamed.gguf"));
    assert_int_equal(td_checkpoint_open(&ck, in_dir(*state, "renamed.gguf"), NULL, &err), TD_E_FORMAT);
    assert_non_null(strstr(err.message, "one of 2 parts, expected the first, named like model-00001-of-00002.gguf"));
}

static void a_directory_with_one_model(void **state) {
    maker m;
    td_checkpoint *ck;
    td_error err;
    gemma4(&m);
    save(&m, *state, "b.gguf");
    put_text(*state, "mmproj-b.gguf", "no model by itself");
    put_text(*state, "config.json", "{}"); /* repositories of GGUF files often have one; the file's metadata counts */
    ck = open_ok(*state);
    assert_string_equal(json_string_value(json_object_get(td_checkpoint_config(ck), "model_type")), "gemma4_text");
    assert_string_equal(td_checkpoint_path(ck), *state);
    td_checkpoint_close(&ck);

    put_text(*state, "a.gguf", "another");
    assert_int_equal(td_checkpoint_open(&ck, *state, NULL, &err), TD_E_FORMAT);
    assert_non_null(strstr(err.message, "several models, among them a.gguf and b.gguf; name one of the files"));

    put_text(*state, "model.safetensors", ""); /* safetensors go first */
    assert_int_equal(td_checkpoint_open(&ck, *state, NULL, &err), TD_E_FORMAT);
    assert_non_null(strstr(err.message, "model.safetensors"));
}

/* Opening fails with each of its allocations in turn, and leaves nothing behind. */
static void fail_every_allocation(const char *path) {
    for (long k = 0;; k++) {
        td_checkpoint *ck;
        td_error err;
        long live = td_alloc_live();
        td_alloc_fail_at(k);
        td_status st = td_checkpoint_open(&ck, path, NULL, &err);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        if (st != (struck ? TD_E_NOMEM : TD_OK))
            fail_msg("allocation %ld: %d \"%s\"", k, st, st == TD_OK ? "" : err.message);
        td_checkpoint_close(&ck);
        assert_int_equal(td_alloc_live(), live);
        if (!struck)
            break;
    }
}

static void every_allocation_may_fail(void **state) {
    maker m;
    count_jansson();
    qwen35(&m, true);
    fail_every_allocation(save(&m, *state, "m.gguf"));
}

/* ---- draft heads beside the model ---- */

/* The trunk of qwen35() alone, or its draft layer with copies of the trunk's tables. */
static void half_of_qwen35(maker *m, bool heads) {
    size_t kept = 0;
    qwen35(m, false);
    char *count = memmem(m->w.pairs.data, m->w.pairs.size, "qwen35.block_count", 18);
    char *draft = memmem(m->w.pairs.data, m->w.pairs.size, "qwen35.nextn_predict_layers", 27);
    if (!heads) {
        count[18 + 4] = 2;
        draft[27 + 4] = 0;
    }
    for (size_t i = 0; i < m->n; i++)
        if (strncmp(m->t[i].name, "blk.", 4) != 0 || (strncmp(m->t[i].name, "blk.2.", 6) == 0) == heads)
            m->t[kept++] = m->t[i];
    m->n = kept;
}

static void draft_layers_are_joined(void **state) {
    maker m;
    half_of_qwen35(&m, false);
    save(&m, *state, "m.gguf");
    td_checkpoint *ck = open_ok(*state);
    const size_t alone = td_checkpoint_file_bytes(ck);
    assert_null(td_checkpoint_find(ck, "mtp.fc.weight"));
    assert_int_equal(json_integer_value(json_object_get(td_checkpoint_config(ck), "mtp_num_hidden_layers")), 0);
    td_checkpoint_close(&ck);

    half_of_qwen35(&m, true);
    save(&m, *state, "mtp-m.gguf");
    ck = open_ok(*state);
    assert_string_equal(td_checkpoint_note(ck), "");
    assert_null(td_checkpoint_assistant(ck));
    assert_true(td_checkpoint_file_bytes(ck) > alone);
    assert_int_equal(td_checkpoint_n_tensors(ck), 4 + 2); /* the copies are left alone */
    assert_non_null(td_checkpoint_find(ck, "mtp.fc.weight"));
    assert_non_null(td_checkpoint_find(ck, "mtp.layers.0.self_attn.q_proj.weight"));
    assert_int_equal(json_integer_value(json_object_get(td_checkpoint_config(ck), "mtp_num_hidden_layers")), 1);
    assert_int_equal(json_integer_value(json_object_get(td_checkpoint_config(ck), "num_hidden_layers")), 2);
    td_checkpoint_close(&ck);

    unlink(in_dir(*state, "m.gguf"));
    td_error err;
    assert_int_equal(td_checkpoint_open(&ck, *state, NULL, &err), TD_E_MODEL);
    assert_non_null(strstr(err.message, "draft heads without a model; put the file beside its model"));
}

static void expect_note(const char *dir, const char *note) {
    td_checkpoint *ck = open_ok(dir);
    if (!strstr(td_checkpoint_note(ck), note))
        fail_msg("\"%s\", expected \"%s\"", td_checkpoint_note(ck), note);
    assert_null(td_checkpoint_find(ck, "mtp.layers.1.self_attn.q_proj.weight"));
    td_checkpoint_close(&ck);
}

static void heads_that_do_not_fit_are_noted(void **state) {
    maker m;
    qwen35(&m, false);
    save(&m, *state, "m.gguf");
    half_of_qwen35(&m, true);
    save(&m, *state, "mtp-m.gguf");
    expect_note(*state, "mtp-m.gguf lies beside the model and is not used: the model has draft heads of its own");

    half_of_qwen35(&m, false);
    save(&m, *state, "m.gguf");
    half_of_qwen35(&m, true);
    *(char *)memmem(m.w.pairs.data, m.w.pairs.size, "qwen35.block_count", 18) = 'Q';
    put_u32(&m, "qwen35.block_count", 4);
    save(&m, *state, "mtp-m.gguf");
    expect_note(*state, "it was made for 3 layers of width 16, but the model has 2 of width 16");

    half_of_qwen35(&m, false);
    save(&m, *state, "mtp-m.gguf");
    expect_note(*state, "it has no draft layers");
    gemma4(&m);
    save(&m, *state, "mtp-m.gguf");
    expect_note(*state, "it holds no heads for a model of this architecture");
    put_text(*state, "mtp-m.gguf", "rubbish");
    expect_note(*state, "mtp-m.gguf: byte 0: not a GGUF file");
    put_text(*state, "mtp-n.gguf", "rubbish");
    expect_note(*state, "several files of draft heads lie beside the model, among them mtp-");
}

static void an_assistant_beside_its_trunk(void **state) {
    maker m;
    gemma4(&m);
    save(&m, *state, "m.gguf");
    assistant(&m, "gemma4-assistant", false);
    save(&m, *state, "mtp-m.gguf");
    td_checkpoint *ck = open_ok(*state);
    assert_string_equal(td_checkpoint_assistant(ck), in_dir(*state, "mtp-m.gguf"));
    assert_string_equal(td_checkpoint_note(ck), "");
    td_checkpoint_close(&ck);
    ck = open_ok(in_dir(*state, "m.gguf"));
    assert_null(td_checkpoint_assistant(ck));
    assert_non_null(strstr(td_checkpoint_note(ck), "mtp-m.gguf lies beside the model and is not used: the model was "
                                                   "named by its file"));
    td_checkpoint_close(&ck);
    ck = open_ok(in_dir(*state, "mtp-m.gguf"));
    assert_string_equal(td_checkpoint_note(ck), "");
    td_checkpoint_close(&ck);
    unlink(in_dir(*state, "m.gguf"));
    ck = open_ok(*state);
    assert_string_equal(json_string_value(json_object_get(td_checkpoint_config(ck), "model_type")), "gemma4_assistant");
    td_checkpoint_close(&ck);
}

static void every_allocation_of_joined_files_may_fail(void **state) {
    maker m;
    count_jansson();
    half_of_qwen35(&m, false);
    save(&m, *state, "m.gguf");
    half_of_qwen35(&m, true);
    save(&m, *state, "mtp-m.gguf");
    fail_every_allocation(*state);
}

#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, temp_dir_setup, temp_dir_teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        IN_DIR(gemma4_metadata_becomes_a_config),
        IN_DIR(qwen35_metadata_becomes_a_config),
        IN_DIR(tensors_have_their_published_names),
        cmocka_unit_test(names_of_blocks_have_one_spelling),
        IN_DIR(vectors_may_be_blocks),
        IN_DIR(contradictions_are_told),
        IN_DIR(widths_must_be_one_or_its_double),
        IN_DIR(a_split_model_is_whole),
        IN_DIR(a_directory_with_one_model),
        IN_DIR(every_allocation_may_fail),
        IN_DIR(assistants_old_and_new),
        IN_DIR(draft_layers_are_joined),
        IN_DIR(heads_that_do_not_fit_are_noted),
        IN_DIR(an_assistant_beside_its_trunk),
        IN_DIR(every_allocation_of_joined_files_may_fail),
        IN_DIR(nvfp4_with_a_factor_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
