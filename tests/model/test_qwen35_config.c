/* test_qwen35_config.c - what a Qwen 3.5 config.json means, and what a broken one is told.
 *
 * Broken ones are a table: one change to a fixture's config, and the line that it must cause. Sound ones are the
 * published shapes, whose weights add up to their names. */
#include "support/fixture.h"

#include "base/alloc.h"
#include "model/qwen35.h"

static json_t *fixture_config(const char *name) {
    char path[512];
    char *text;
    size_t size;
    json_t *o = NULL;
    ASSERT_OK(td_file_read(fixture_path(name, "config.json", path, sizeof path), 1 << 20, &text, &size, err));
    ASSERT_OK(td_json_parse(text, size, 64, path, &o, err));
    td_free(text);
    return o;
}

/* ---- broken ---- */

#define DENSE "qwen35-dense"
#define MOE "qwen35-moe"

static const struct {
    const char *base, *object, *key; /* object: NULL is the root */
    const char *value;               /* JSON; NULL: the key is absent */
    td_status status;
    const char *message; /* NULL: it is fine */
} cases[] = {
    {DENSE, NULL, "vocab_size", NULL, TD_E_MODEL,
     "config.json: \"vocab_size\" is missing, expected an integer in [1, 16777216]"},
    {DENSE, NULL, "hidden_size", "7", TD_E_MODEL,
     "config.json: \"hidden_size\" is 7, expected an integer in [8, 131072]"},
    {DENSE, NULL, "num_hidden_layers", "257", TD_E_MODEL,
     "config.json: \"num_hidden_layers\" is 257, expected an integer in [1, 256]"},
    {DENSE, NULL, "head_dim", NULL, TD_E_MODEL,
     "config.json: \"head_dim\" is missing, expected an integer in [8, 4096]"},
    {DENSE, NULL, "num_attention_heads", "1025", TD_E_MODEL,
     "config.json: \"num_attention_heads\" is 1025, expected an integer in [1, 1024]"},
    {DENSE, NULL, "num_key_value_heads", "3", TD_E_MODEL,
     "config.json: 3 KV heads, expected a divisor of num_attention_heads = 4"},
    {DENSE, NULL, "linear_num_value_heads", "5", TD_E_MODEL,
     "config.json: 5 value heads, expected a multiple of linear_num_key_heads = 2"},
    {DENSE, NULL, "linear_num_key_heads", NULL, TD_E_MODEL,
     "config.json: \"linear_num_key_heads\" is missing, expected an integer in [1, 1024]"},
    {DENSE, NULL, "linear_key_head_dim", "257", TD_E_MODEL,
     "config.json: \"linear_key_head_dim\" is 257, expected an integer in [1, 256]"},
    {DENSE, NULL, "linear_value_head_dim", "0", TD_E_MODEL,
     "config.json: \"linear_value_head_dim\" is 0, expected an integer in [1, 256]"},
    {DENSE, NULL, "linear_conv_kernel_dim", "9", TD_E_MODEL,
     "config.json: \"linear_conv_kernel_dim\" is 9, expected an integer in [2, 8]"},
    {MOE, NULL, "num_experts", NULL, TD_E_MODEL,
     "config.json: \"num_experts\" is missing, expected an integer in [1, 65536]"},
    {MOE, NULL, "num_experts_per_tok", "9", TD_E_MODEL, "config.json: num_experts_per_tok 9 of num_experts 8"},
    {MOE, NULL, "num_experts_per_tok", "65", TD_E_MODEL,
     "config.json: \"num_experts_per_tok\" is 65, expected an integer in [1, 64]"},
    {MOE, NULL, "shared_expert_intermediate_size", NULL, TD_E_MODEL,
     "config.json: \"shared_expert_intermediate_size\" is missing, expected an integer in [1, 1048576]"},
    {MOE, NULL, "mlp_only_layers", "[1]", TD_E_UNSUPPORTED, "config.json: mlp_only_layers names layers, expected none"},
    {MOE, NULL, "mlp_only_layers", "[]", TD_OK, NULL},
    {DENSE, NULL, "attention_bias", "true", TD_E_UNSUPPORTED, "config.json: attention_bias is true, expected false"},
    {DENSE, NULL, "attn_output_gate", "false", TD_E_UNSUPPORTED,
     "config.json: attn_output_gate is false, expected true"},
    {DENSE, NULL, "attn_output_gate", "true", TD_OK, NULL},
    {DENSE, NULL, "output_gate_type", "\"sigmoid\"", TD_E_UNSUPPORTED,
     "config.json: output_gate_type \"sigmoid\", expected swish"},
    {DENSE, NULL, "output_gate_type", "\"swish\"", TD_OK, NULL},
    {DENSE, NULL, "hidden_act", "\"gelu\"", TD_E_UNSUPPORTED, "config.json: hidden_act \"gelu\", expected silu"},
    {DENSE, NULL, "layer_types", "[\"full_attention\"]", TD_E_MODEL,
     "config.json: \"layer_types\" has 1 entries, expected a list of num_hidden_layers = 4"},
    {DENSE, NULL, "layer_types",
     "[\"linear_attention\", \"linear_attention\", \"sliding_attention\", \"full_attention\"]", TD_E_MODEL,
     "config.json: layer_types[2] is \"sliding_attention\", expected full_attention or linear_attention"},
    {DENSE, NULL, "layer_types", "[\"linear_attention\", \"linear_attention\", 3, \"full_attention\"]", TD_E_MODEL,
     "config.json: layer_types[2] is \"?\", expected full_attention or linear_attention"},
    {DENSE, NULL, "layer_types", "[\"full_attention\", \"full_attention\", \"full_attention\", \"full_attention\"]",
     TD_E_UNSUPPORTED, "config.json: no layer of linear attention, expected at least one"},
    {DENSE, NULL, "layer_types", "\"none\"", TD_E_MODEL,
     "config.json: \"layer_types\" has 0 entries, expected a list of num_hidden_layers = 4"},
    {DENSE, NULL, "layer_types", NULL, TD_OK, NULL}, /* every fourth */
    {DENSE, "rope_parameters", "rope_theta", NULL, TD_E_MODEL, "config.json: rope_theta is absent or not above 1"},
    {DENSE, "rope_parameters", "rope_type", "\"yarn\"", TD_E_UNSUPPORTED,
     "config.json: rope_type \"yarn\", expected default"},
    {DENSE, "rope_parameters", "partial_rotary_factor", "0.1", TD_E_MODEL,
     "config.json: partial_rotary_factor 0.1 of head_dim 32, expected an even number of dimensions"},
    {DENSE, "rope_parameters", "partial_rotary_factor", "2", TD_E_MODEL,
     "config.json: partial_rotary_factor 2 of head_dim 32, expected an even number of dimensions"},
    {DENSE, "rope_parameters", "partial_rotary_factor", NULL, TD_OK, NULL}, /* it stands beside, too */
    {DENSE, NULL, "mtp_num_hidden_layers", "\"one\"", TD_E_MODEL,
     "config.json: \"mtp_num_hidden_layers\" is \"one\", expected an integer in [0, 64]"},
};

static td_status read(td_qwen35_config *c, const json_t *o, bool has_head, td_error *err) {
    return td_qwen35_config_read(c, o, "config.json", o, has_head, err);
}

static void a_broken_config_is_told_what_and_where(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *o = fixture_config(cases[i].base);
        json_t *at = cases[i].object ? json_object_get(o, cases[i].object) : o;
        if (cases[i].value)
            json_object_set_new(at, cases[i].key, json_loads(cases[i].value, JSON_DECODE_ANY, NULL));
        else
            json_object_del(at, cases[i].key);
        td_qwen35_config c;
        td_error e = {0};
        td_status st = read(&c, o, true, &e);
        if (st != cases[i].status || (cases[i].message && strcmp(e.message, cases[i].message) != 0)) {
            print_error("%s %s: %s: %s\n", cases[i].key, cases[i].value, td_status_name(st), e.message);
            wrong++;
        }
        json_decref(o);
    }
    assert_int_equal(wrong, 0);
}

static void a_head_is_tied_by_word_or_by_absence(void **state) {
    (void)state;
    static const struct {
        const char *text, *root; /* JSON or absent */
        bool has_head, tied;
    } rows[] = {{"true", NULL, true, true},   {"false", NULL, true, false},   {NULL, "true", true, true},
                {NULL, "false", true, false}, {"false", "true", true, false}, {NULL, NULL, true, false},
                {"false", NULL, false, true}, {NULL, NULL, false, true},      {"null", "true", true, true}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        json_t *text = fixture_config(DENSE), *root = json_object();
        json_object_del(text, "tie_word_embeddings");
        if (rows[i].text)
            json_object_set_new(text, "tie_word_embeddings", json_loads(rows[i].text, JSON_DECODE_ANY, NULL));
        if (rows[i].root)
            json_object_set_new(root, "tie_word_embeddings", json_loads(rows[i].root, JSON_DECODE_ANY, NULL));
        td_qwen35_config c;
        ASSERT_OK(td_qwen35_config_read(&c, text, "config.json text_config", root, rows[i].has_head, err));
        assert_int_equal(c.tied, rows[i].tied);
        json_decref(text);
        json_decref(root);
    }
}

static void flat_and_nested_rotations_mean_the_same(void **state) {
    (void)state;
    json_t *o = fixture_config(DENSE);
    td_qwen35_config nested, flat;
    ASSERT_OK(read(&nested, o, true, err));
    json_object_del(o, "rope_parameters");
    json_object_set_new(o, "rope_theta", json_real(1e7));
    ASSERT_OK(read(&flat, o, true, err));
    assert_int_equal(nested.n_rot, 4);
    assert_memory_equal(&nested, &flat, sizeof nested);
    json_decref(o);
}

/* ---- published shapes ---- */

typedef struct shape {
    const char *name;
    uint32_t h, l, ff, nh, nkv, hv, e, k, fe;
    bool tied;
    double billions;
} shape;

static const shape shapes[] = {
    {"0.8B", 1024, 24, 3584, 8, 2, 16, 0, 0, 0, true, 0.752},
    {"2B", 2048, 24, 6144, 8, 2, 16, 0, 0, 0, true, 1.88},
    {"4B", 2560, 32, 9216, 16, 4, 32, 0, 0, 0, true, 4.21},
    {"9B", 4096, 32, 12288, 16, 4, 32, 0, 0, 0, false, 8.95},
    {"27B", 5120, 64, 17408, 24, 4, 48, 0, 0, 0, false, 26.9},
    {"35B-A3B", 2048, 40, 512, 16, 2, 32, 256, 8, 512, false, 34.7},
    {"122B-A10B", 3072, 48, 1024, 32, 2, 64, 256, 8, 1024, false, 122.1},
    {"397B-A17B", 4096, 60, 1024, 32, 2, 64, 512, 10, 1024, false, 396.3},
};

static json_t *config_of(const shape *s) {
    json_t *o = json_pack("{s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:b,s:{s:f,s:f,s:s}}", "model_type",
                          s->e ? "qwen3_5_moe_text" : "qwen3_5_text", "vocab_size", 248320, "hidden_size", (int)s->h,
                          "num_hidden_layers", (int)s->l, "num_attention_heads", (int)s->nh, "num_key_value_heads",
                          (int)s->nkv, "head_dim", 256, "linear_num_key_heads", 16, "linear_num_value_heads",
                          (int)s->hv, "linear_key_head_dim", 128, "linear_value_head_dim", 128,
                          "linear_conv_kernel_dim", 4, "tie_word_embeddings", (int)s->tied, "rope_parameters",
                          "rope_theta", 1e7, "partial_rotary_factor", 0.25, "rope_type", "default");
    assert_non_null(o);
    if (!s->e)
        json_object_set_new(o, "intermediate_size", json_integer(s->ff));
    if (s->e) {
        json_object_set_new(o, "num_experts", json_integer(s->e));
        json_object_set_new(o, "num_experts_per_tok", json_integer(s->k));
        json_object_set_new(o, "moe_intermediate_size", json_integer(s->fe));
        json_object_set_new(o, "shared_expert_intermediate_size", json_integer(s->ff));
    }
    return o;
}

static double weights(const td_qwen35_config *c) {
    double h = c->n_embd, q = (double)c->n_heads * c->head_dim, kv = (double)c->n_kv_heads * c->head_dim;
    double conv = td_qwen35_conv_dim(c), values = (double)c->n_v_heads * c->v_dim;
    double full = h * (2 * q + 2 * kv) + h * q, delta = h * (conv + 2 * values + 2.0 * c->n_v_heads) + conv * c->kernel;
    double ffn = 3 * h * c->n_ff + c->n_experts * (3 * h * c->n_ff_expert + h);
    return (double)c->n_vocab * h * (c->tied ? 1 : 2) + c->n_full * full + c->n_delta * delta + c->n_layers * ffn;
}

static void published_shapes_add_up_to_their_names(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        json_t *o = config_of(&shapes[i]);
        td_qwen35_config c;
        ASSERT_OK(read(&c, o, !shapes[i].tied, err));
        assert_int_equal(c.n_full, shapes[i].l / 4);
        assert_true(c.full[3] && !c.full[0] && c.full[shapes[i].l - 1]);
        assert_int_equal(c.n_rot, 32);
        double b = weights(&c) / 1e9;
        if (fabs(b - shapes[i].billions) > 0.01 * shapes[i].billions)
            fail_msg("%s: %g billion weights, expected %g", shapes[i].name, b, shapes[i].billions);
        json_decref(o);
    }
}

/* 27B: 144 MiB of S and, in f32, 5.6 MiB of windows; a tentative row logs its inputs, alpha, k and u. */
static void states_have_the_size_of_their_parts(void **state) {
    (void)state;
    json_t *o = config_of(&shapes[4]);
    td_qwen35_config c;
    ASSERT_OK(read(&c, o, true, err));
    td_qwen35_state_plan p = td_qwen35_plan_state(&c, 4);
    assert_int_equal(p.snapshot_bytes, 48u * (48 * 128 * 128 * 4 + 3 * 10240 * 4));
    assert_int_equal(p.state_bytes - p.snapshot_bytes, 48u * 4 * (10240 + 48 * (1 + 128 + 128)) * 4);
    p = td_qwen35_plan_state(&c, 0);
    assert_int_equal(p.state_bytes, p.snapshot_bytes);
    json_decref(o);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broken_config_is_told_what_and_where),
        cmocka_unit_test(a_head_is_tied_by_word_or_by_absence),
        cmocka_unit_test(flat_and_nested_rotations_mean_the_same),
        cmocka_unit_test(published_shapes_add_up_to_their_names),
        cmocka_unit_test(states_have_the_size_of_their_parts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
