/* test_gemma4_config.c - what a Gemma 4 config.json means, and what a broken one is told.
 *
 * Broken ones are a table: one change to a fixture's config, and the whole line that it must cause. Sound ones are the
 * published shapes (E2B, E4B, 12B, 26B-A4B, 31B), written here as the checkpoints spell them. */
#include "support/fixture.h"

#include "base/alloc.h"
#include "model/gemma4.h"

static json_t *parse(const char *text) {
    json_t *o = NULL;
    ASSERT_OK(td_json_parse(text, strlen(text), 64, "a test's JSON", &o, err));
    return o;
}

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

static void read_ok(td_gemma4_config *c, const json_t *o) {
    ASSERT_OK(td_gemma4_config_read(c, o, "config.json", o, false, err));
}

/* ---- broken ---- */

typedef struct broken {
    const char *base, *key; /* key: dotted path */
    const char *value;      /* JSON; NULL: the key is absent */
    td_status status;
    const char *message; /* NULL: it is fine */
} broken;

#define DENSE "gemma4-dense"
#define PLE "gemma4-ple"
#define MOE "gemma4-moe"

static const broken cases[] = {
    {DENSE, "vocab_size", NULL, TD_E_MODEL,
     "config.json: \"vocab_size\" is missing, expected an integer in [1, 16777216]"},
    {DENSE, "vocab_size", "0", TD_E_MODEL, "config.json: \"vocab_size\" is 0, expected an integer in [1, 16777216]"},
    {DENSE, "vocab_size", "16777217", TD_E_MODEL,
     "config.json: \"vocab_size\" is 16777217, expected an integer in [1, 16777216]"},
    {DENSE, "vocab_size", "\"320\"", TD_E_MODEL,
     "config.json: \"vocab_size\" is \"320\", expected an integer in [1, 16777216]"},
    {DENSE, "vocab_size", "320.0", TD_E_MODEL,
     "config.json: \"vocab_size\" is 320, expected an integer in [1, 16777216]"},
    {DENSE, "hidden_size", NULL, TD_E_MODEL,
     "config.json: \"hidden_size\" is missing, expected an integer in [8, 131072]"},
    {DENSE, "hidden_size", "null", TD_E_MODEL,
     "config.json: \"hidden_size\" is null, expected an integer in [8, 131072]"},
    {DENSE, "hidden_size", "-64", TD_E_MODEL,
     "config.json: \"hidden_size\" is -64, expected an integer in [8, 131072]"},
    {DENSE, "hidden_size", "[64]", TD_E_MODEL,
     "config.json: \"hidden_size\" is an array, expected an integer in [8, 131072]"},
    {DENSE, "num_hidden_layers", NULL, TD_E_MODEL,
     "config.json: \"num_hidden_layers\" is missing, expected an integer in [1, 256]"},
    {DENSE, "num_hidden_layers", "0", TD_E_MODEL,
     "config.json: \"num_hidden_layers\" is 0, expected an integer in [1, 256]"},
    {DENSE, "num_hidden_layers", "1000000000", TD_E_MODEL,
     "config.json: \"num_hidden_layers\" is 1000000000, expected an integer in [1, 256]"},
    {DENSE, "num_hidden_layers", "5", TD_E_MODEL,
     "config.json: \"layer_types\" has 6 entries, expected a list of num_hidden_layers = 5"},
    {DENSE, "num_attention_heads", NULL, TD_E_MODEL,
     "config.json: \"num_attention_heads\" is missing, expected an integer in [1, 1024]"},
    {DENSE, "num_attention_heads", "0", TD_E_MODEL,
     "config.json: \"num_attention_heads\" is 0, expected an integer in [1, 1024]"},
    {DENSE, "num_attention_heads", "3", TD_E_MODEL,
     "config.json: layer 0 has 2 KV heads, expected a divisor of num_attention_heads = 3"},
    {DENSE, "num_key_value_heads", NULL, TD_E_MODEL,
     "config.json: \"num_key_value_heads\" is missing, expected an integer in [1, 4096]"},
    {DENSE, "num_key_value_heads", "0", TD_E_MODEL,
     "config.json: \"num_key_value_heads\" is 0, expected an integer in [1, 4096]"},
    {DENSE, "num_key_value_heads", "8", TD_E_MODEL,
     "config.json: layer 0 has 8 KV heads, expected a divisor of num_attention_heads = 4"},
    {DENSE, "head_dim", NULL, TD_E_MODEL, "config.json: \"head_dim\" is missing, expected an integer in [8, 4096]"},
    {DENSE, "head_dim", "0", TD_E_MODEL, "config.json: \"head_dim\" is 0, expected an integer in [8, 4096]"},
    {DENSE, "head_dim", "15", TD_E_MODEL, "config.json: head_dim 15 of layer 0 is odd"},
    {DENSE, "head_dim", "4098", TD_E_MODEL, "config.json: \"head_dim\" is 4098, expected an integer in [8, 4096]"},
    {DENSE, "per_layer_config", NULL, TD_E_MODEL,
     "config.json: neither \"global_head_dim\" nor \"per_layer_config\" says how wide the heads of full-attention "
     "layers are"},
    {DENSE, "per_layer_config", "[]", TD_E_MODEL,
     "config.json: neither \"global_head_dim\" nor \"per_layer_config\" says how wide the heads of full-attention "
     "layers are"},
    {DENSE, "per_layer_config", "{\"2\": {\"head_dim\": 31}, \"5\": {\"head_dim\": 32}}", TD_E_MODEL,
     "config.json: head_dim 31 of layer 2 is odd"},
    {DENSE, "per_layer_config", "{\"2\": {\"head_dim\": 32}, \"5\": {\"head_dim\": 64}}", TD_E_UNSUPPORTED,
     "config.json: layers 2 and 5 are of one type but have head_dim 32 and 64"},
    {DENSE, "per_layer_config", "{\"2\": {\"head_dim\": 32}}", TD_E_UNSUPPORTED,
     "config.json: layers 2 and 5 are of one type but have head_dim 32 and 16"},
    {DENSE, "per_layer_config.2.num_key_value_heads", "3", TD_E_MODEL,
     "config.json: layer 2 has 3 KV heads, expected a divisor of num_attention_heads = 4"},
    {DENSE, "per_layer_config.2.num_key_value_heads", "0", TD_E_MODEL,
     "config.json per_layer_config[2]: \"num_key_value_heads\" is 0, expected an integer in [1, 4096]"},
    {DENSE, "layer_types", NULL, TD_E_MODEL,
     "config.json: \"layer_types\" has 0 entries, expected a list of num_hidden_layers = 6"},
    {DENSE, "layer_types", "\"sliding_attention\"", TD_E_MODEL,
     "config.json: \"layer_types\" has 0 entries, expected a list of num_hidden_layers = 6"},
    {DENSE, "layer_types", "[]", TD_E_MODEL,
     "config.json: \"layer_types\" has 0 entries, expected a list of num_hidden_layers = 6"},
    {DENSE, "layer_types", "[1, 2, 3, 4, 5, 6]", TD_E_MODEL,
     "config.json: layer_types[0] is \"?\", expected full_attention or sliding_attention"},
    {DENSE, "layer_types.3", "\"chunked_attention\"", TD_E_MODEL,
     "config.json: layer_types[3] is \"chunked_attention\", expected full_attention or sliding_attention"},
    {DENSE, "sliding_window", NULL, TD_E_MODEL,
     "config.json: \"sliding_window\" is missing, expected an integer in [1, 16777216]"},
    {DENSE, "sliding_window", "0", TD_E_MODEL,
     "config.json: \"sliding_window\" is 0, expected an integer in [1, 16777216]"},
    {DENSE, "sliding_window", "null", TD_E_MODEL,
     "config.json: \"sliding_window\" is null, expected an integer in [1, 16777216]"},
    {DENSE, "max_position_embeddings", "0", TD_E_MODEL,
     "config.json: \"max_position_embeddings\" is 0, expected an integer in [1, 1073741824]"},
    {DENSE, "num_kv_shared_layers", "7", TD_E_MODEL,
     "config.json: \"num_kv_shared_layers\" is 7, expected an integer in [0, 6]"},
    {DENSE, "num_kv_shared_layers", "6", TD_E_MODEL,
     "config.json: layer 0 shares K/V, but no layer of its type below 0 owns any"},
    {DENSE, "num_kv_shared_layers", "4", TD_E_MODEL,
     "config.json: layer 2 shares K/V, but no layer of its type below 2 owns any"},
    {DENSE, "rms_norm_eps", "\"1e-6\"", TD_E_MODEL, "config.json: \"rms_norm_eps\" is \"1e-6\", expected a number"},
    {DENSE, "final_logit_softcapping", "true", TD_E_MODEL,
     "config.json: \"final_logit_softcapping\" is true, expected a number"},
    {DENSE, "rope_parameters", NULL, TD_E_MODEL,
     "config.json rope_parameters.full_attention: absent, expected an object with rope_theta"},
    {DENSE, "rope_parameters", "{}", TD_E_MODEL,
     "config.json rope_parameters.full_attention: absent, expected an object with rope_theta"},
    {DENSE, "rope_parameters.sliding_attention", NULL, TD_E_MODEL,
     "config.json rope_parameters.sliding_attention: absent, expected an object with rope_theta"},
    {DENSE, "rope_parameters.sliding_attention", "10000", TD_E_MODEL,
     "config.json rope_parameters.sliding_attention: absent, expected an object with rope_theta"},
    {DENSE, "rope_parameters.sliding_attention.rope_theta", NULL, TD_E_MODEL,
     "config.json rope_parameters.sliding_attention: rope_theta is absent or not above 1"},
    {DENSE, "rope_parameters.sliding_attention.rope_theta", "0", TD_E_MODEL,
     "config.json rope_parameters.sliding_attention: rope_theta is absent or not above 1"},
    {DENSE, "rope_parameters.full_attention.rope_theta", "\"1e6\"", TD_E_MODEL,
     "config.json rope_parameters.full_attention: \"rope_theta\" is \"1e6\", expected a number"},
    {DENSE, "rope_parameters.full_attention.rope_type", "\"yarn\"", TD_E_UNSUPPORTED,
     "config.json rope_parameters.full_attention: rope_type \"yarn\", expected \"default\" or \"proportional\""},
    {DENSE, "rope_parameters.full_attention.partial_rotary_factor", "0", TD_E_MODEL,
     "config.json rope_parameters.full_attention: partial_rotary_factor 0, factor 1; expected (0, 1] and above 0"},
    {DENSE, "rope_parameters.full_attention.partial_rotary_factor", "1.5", TD_E_MODEL,
     "config.json rope_parameters.full_attention: partial_rotary_factor 1.5, factor 1; expected (0, 1] and above 0"},
    {DENSE, "rope_parameters.full_attention.factor", "0", TD_E_MODEL,
     "config.json rope_parameters.full_attention: partial_rotary_factor 0.25, factor 0; expected (0, 1] and above 0"},
    {DENSE, "attention_k_eq_v", "1", TD_E_MODEL, "config.json: \"attention_k_eq_v\" is 1, expected true or false"},
    {DENSE, "attention_bias", "true", TD_E_UNSUPPORTED, "config.json: attention_bias is true, expected false"},
    {DENSE, "hidden_activation", "\"silu\"", TD_E_UNSUPPORTED,
     "config.json: hidden_activation \"silu\", expected gelu_pytorch_tanh"},
    {DENSE, "use_bidirectional_attention", "\"all\"", TD_E_UNSUPPORTED,
     "config.json: use_bidirectional_attention \"all\" (an encoder), expected null or vision"},
    {DENSE, "use_bidirectional_attention", "\"vision\"", TD_OK, NULL},
    {DENSE, "hidden_size_per_layer_input", NULL, TD_E_MODEL,
     "config.json: \"hidden_size_per_layer_input\" is absent, expected a width or 0"},
    {DENSE, "hidden_size_per_layer_input", "-8", TD_E_MODEL,
     "config.json: \"hidden_size_per_layer_input\" is -8, expected an integer in [0, 65536]"},
    {DENSE, "intermediate_size", NULL, TD_E_MODEL,
     "config.json: \"intermediate_size\" is missing, expected an integer in [1, 4194304]"},
    {DENSE, "intermediate_size", "0", TD_E_MODEL,
     "config.json: \"intermediate_size\" is 0, expected an integer in [1, 4194304]"},
    {DENSE, "use_double_wide_mlp", "\"yes\"", TD_E_MODEL,
     "config.json: \"use_double_wide_mlp\" is \"yes\", expected true or false"},
    {DENSE, "enable_moe_block", "true", TD_E_MODEL,
     "config.json: \"num_experts\" is null, expected an integer in [1, 65536]"},
    {PLE, "num_kv_shared_layers", "8", TD_E_MODEL,
     "config.json: layer 0 shares K/V, but no layer of its type below 0 owns any"},
    {PLE, "num_kv_shared_layers", "6", TD_E_MODEL,
     "config.json: layer 2 shares K/V, but no layer of its type below 2 owns any"},
    {PLE, "vocab_size_per_layer_input", "0", TD_E_MODEL,
     "config.json: \"vocab_size_per_layer_input\" is 0, expected an integer in [1, 16777216]"},
    {PLE, "vocab_size_per_layer_input", "\"x\"", TD_E_MODEL,
     "config.json: \"vocab_size_per_layer_input\" is \"x\", expected an integer in [1, 16777216]"},
    {MOE, "enable_moe_block", "0", TD_E_MODEL, "config.json: \"enable_moe_block\" is 0, expected true or false"},
    {MOE, "num_experts", NULL, TD_E_MODEL,
     "config.json: \"num_experts\" is missing, expected an integer in [1, 65536]"},
    {MOE, "num_experts", "0", TD_E_MODEL, "config.json: \"num_experts\" is 0, expected an integer in [1, 65536]"},
    {MOE, "top_k_experts", "9", TD_E_MODEL, "config.json: top_k_experts 9 of num_experts 8"},
    {MOE, "top_k_experts", "65", TD_E_MODEL, "config.json: \"top_k_experts\" is 65, expected an integer in [1, 64]"},
    {MOE, "top_k_experts", "0", TD_E_MODEL, "config.json: \"top_k_experts\" is 0, expected an integer in [1, 64]"},
    {MOE, "moe_intermediate_size", "0", TD_E_MODEL,
     "config.json: \"moe_intermediate_size\" is 0, expected an integer in [1, 1048576]"},
    {DENSE, "per_layer_config", "{\"2\": 5, \"5\": {\"head_dim\": 32}}", TD_E_MODEL,
     "config.json per_layer_config: \"2\" is no object of a layer from 0 to 5"},
    {DENSE, "per_layer_config.9", "{\"head_dim\": 32}", TD_E_MODEL,
     "config.json per_layer_config: \"9\" is no object of a layer from 0 to 5"},
    {DENSE, "per_layer_config.two", "{\"head_dim\": 32}", TD_E_MODEL,
     "config.json per_layer_config: \"two\" is no object of a layer from 0 to 5"},
    {DENSE, "per_layer_config.02", "{\"head_dim\": 32}", TD_E_MODEL,
     "config.json per_layer_config: \"02\" is no object of a layer from 0 to 5"},
    {DENSE, "per_layer_config.2.sliding_window", "40", TD_E_UNSUPPORTED,
     "config.json per_layer_config[2]: \"sliding_window\", expected head_dim or num_key_value_heads"},
    {DENSE, "rms_norm_eps", "-1e-6", TD_E_MODEL,
     "config.json: rms_norm_eps -1e-06, final_logit_softcapping 30; expected above 0 and below 1, 0 to 1e6"},
    {DENSE, "rms_norm_eps", "1e300", TD_E_MODEL,
     "config.json: rms_norm_eps 1e+300, final_logit_softcapping 30; expected above 0 and below 1, 0 to 1e6"},
    {DENSE, "rms_norm_eps", "0", TD_E_MODEL,
     "config.json: rms_norm_eps 0, final_logit_softcapping 30; expected above 0 and below 1, 0 to 1e6"},
    {DENSE, "final_logit_softcapping", "-30", TD_E_MODEL,
     "config.json: rms_norm_eps 1e-06, final_logit_softcapping -30; expected above 0 and below 1, 0 to 1e6"},
    {DENSE, "final_logit_softcapping", "1e300", TD_E_MODEL,
     "config.json: rms_norm_eps 1e-06, final_logit_softcapping 1e+300; expected above 0 and below 1, 0 to 1e6"},
    {DENSE, "use_bidirectional_attention", "true", TD_E_UNSUPPORTED,
     "config.json: use_bidirectional_attention \"true\" (an encoder), expected null or vision"},
    {DENSE, "tie_word_embeddings", "\"no\"", TD_E_MODEL,
     "config.json: \"tie_word_embeddings\" is \"no\", expected true or false"},
    {MOE, "moe_intermediate_size", NULL, TD_E_MODEL,
     "config.json: \"moe_intermediate_size\" is missing, expected an integer in [1, 1048576]"},
};

/* Sets or removes what the dotted path names. */
static void change(json_t *o, const char *path, const char *value) {
    char step[64];
    while (strchr(path, '.')) {
        size_t n = (size_t)(strchr(path, '.') - path);
        snprintf(step, sizeof step, "%.*s", (int)n, path);
        o = json_object_get(o, step);
        path += n + 1;
    }
    if (json_is_array(o)) {
        json_array_set_new(o, (size_t)atoi(path), json_loads(value, JSON_DECODE_ANY, NULL));
    } else if (value) {
        json_object_set_new(o, path, json_loads(value, JSON_DECODE_ANY, NULL));
    } else {
        json_object_del(o, path);
    }
}

static void a_broken_config_is_told_what_and_where(void **state) {
    (void)state;
    int wrong = 0;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        json_t *o = fixture_config(cases[i].base);
        change(o, cases[i].key, cases[i].value);
        td_gemma4_config c;
        td_error err = {0};
        td_status st = td_gemma4_config_read(&c, o, "config.json", o, false, &err);
        if (st != cases[i].status || strcmp(err.message, cases[i].message ? cases[i].message : "") != 0) {
            print_error("%s, %s = %s: %s: %s\n", cases[i].base, cases[i].key,
                        cases[i].value ? cases[i].value : "absent", td_status_name(st), err.message);
            wrong++;
        }
        json_decref(o);
    }
    assert_int_equal(wrong, 0);
}

/* ---- sound: the fixtures ---- */

static void dense_means_what_it_says(void **state) {
    (void)state;
    td_gemma4_config c;
    json_t *o = fixture_config(DENSE);
    read_ok(&c, o);
    assert_int_equal(c.n_vocab, 320);
    assert_int_equal(c.n_embd, 64);
    assert_int_equal(c.n_layers, 6);
    assert_int_equal(c.n_heads, 4);
    assert_int_equal(c.n_ctx, 4096);
    assert_int_equal(c.window, 12);
    assert_int_equal(c.n_shared + c.ple + c.n_experts, 0);
    assert_int_equal(c.n_kv_layers, 6);
    assert_true(c.eps == 1e-6f && c.softcap == 30 && c.embed_scale == 8 && c.tied);
    assert_true(c.rope[TD_GEMMA4_FULL].theta == 1e6 && c.rope[TD_GEMMA4_FULL].partial == 0.25);
    assert_true(c.rope[TD_GEMMA4_SLIDING].theta == 1e4 && c.rope[TD_GEMMA4_SLIDING].partial == 1);
    for (uint32_t i = 0; i < 6; i++) {
        bool full = i % 3 == 2;
        assert_int_equal(c.layer[i].type, full ? TD_GEMMA4_FULL : TD_GEMMA4_SLIDING);
        assert_int_equal(c.layer[i].head_dim, full ? 32 : 16);
        assert_int_equal(c.layer[i].n_kv_heads, full ? 1 : 2);
        assert_int_equal(c.layer[i].k_is_v, full);
        assert_int_equal(c.layer[i].n_ff, 96);
        assert_int_equal(c.layer[i].kv_layer, i);
        assert_true(c.layer[i].owns_kv);
    }
    json_decref(o);
}

static void shared_layers_read_the_last_owner_of_their_type(void **state) {
    (void)state;
    td_gemma4_config c;
    json_t *o = fixture_config(PLE);
    read_ok(&c, o);
    assert_int_equal(c.n_shared, 3);
    assert_int_equal(c.n_kv_layers, 5);
    assert_int_equal(c.ple, 8);
    assert_int_equal(c.ple_vocab, 320);
    static const uint32_t source[8] = {0, 1, 2, 3, 4, 3, 3, 4};
    for (uint32_t i = 0; i < 8; i++) {
        assert_int_equal(c.layer[i].owns_kv, i < 5);
        assert_int_equal(c.layer[i].kv_layer, source[i]);
        assert_int_equal(c.layer[i].n_ff, i < 5 ? 96 : 192);
    }
    json_decref(o);
}

static void experts_mean_what_they_say(void **state) {
    (void)state;
    td_gemma4_config c;
    json_t *o = fixture_config(MOE);
    read_ok(&c, o);
    assert_int_equal(c.n_experts, 8);
    assert_int_equal(c.n_experts_used, 2);
    assert_int_equal(c.n_ff_expert, 24);
    json_object_set(o, "expert_intermediate_size", json_object_get(o, "moe_intermediate_size"));
    json_object_del(o, "moe_intermediate_size");
    read_ok(&c, o);
    assert_int_equal(c.n_ff_expert, 24);
    json_decref(o);
}

/* ---- sound: two spellings, wrappers ---- */

static void assert_same_config(const td_gemma4_config *a, const td_gemma4_config *b) {
    assert_int_equal(a->n_vocab, b->n_vocab);
    assert_int_equal(a->n_embd, b->n_embd);
    assert_int_equal(a->n_layers, b->n_layers);
    assert_int_equal(a->n_kv_layers, b->n_kv_layers);
    assert_int_equal(a->n_shared, b->n_shared);
    assert_int_equal(a->window, b->window);
    assert_int_equal(a->tied, b->tied);
    assert_true(a->embed_scale == b->embed_scale);
    for (uint32_t i = 0; i < a->n_layers; i++) {
        const td_gemma4_layer_config *x = &a->layer[i], *y = &b->layer[i];
        assert_int_equal(x->type, y->type);
        assert_int_equal(x->head_dim, y->head_dim);
        assert_int_equal(x->n_kv_heads, y->n_kv_heads);
        assert_int_equal(x->n_ff, y->n_ff);
        assert_int_equal(x->owns_kv, y->owns_kv);
        assert_int_equal(x->k_is_v, y->k_is_v);
        assert_int_equal(x->kv_layer, y->kv_layer);
    }
}

static void both_spellings_of_wide_heads_are_one(void **state) {
    (void)state;
    static const char *const bases[] = {DENSE, PLE, MOE};
    for (size_t i = 0; i < 3; i++) {
        td_gemma4_config newer, older;
        json_t *o = fixture_config(bases[i]);
        read_ok(&newer, o);
        json_object_del(o, "per_layer_config");
        json_object_set_new(o, "global_head_dim", json_integer(32));
        json_object_set_new(o, "num_global_key_value_heads", json_integer(1));
        read_ok(&older, o);
        assert_same_config(&newer, &older);
        json_decref(o);
    }
}

/* Without attention_k_eq_v the global KV heads do not count, whatever the file says. */
static void global_kv_heads_need_k_eq_v(void **state) {
    (void)state;
    td_gemma4_config c;
    json_t *o = fixture_config(DENSE);
    json_object_del(o, "per_layer_config");
    json_object_set_new(o, "global_head_dim", json_integer(32));
    json_object_set_new(o, "num_global_key_value_heads", json_integer(1));
    json_object_set_new(o, "attention_k_eq_v", json_false());
    read_ok(&c, o);
    for (uint32_t i = 0; i < c.n_layers; i++) {
        assert_int_equal(c.layer[i].n_kv_heads, 2);
        assert_false(c.layer[i].k_is_v);
    }
    json_decref(o);
}

static void a_wrapper_means_the_same(void **state) {
    (void)state;
    td_gemma4_config flat, nested;
    json_t *text = fixture_config(PLE);
    read_ok(&flat, text);
    json_t *root = json_pack("{s:s,s:O}", "model_type", "gemma4", "text_config", text);
    static const char *const at_top[] = {"vocab_size", "tie_word_embeddings", "dtype"};
    for (size_t i = 0; i < 3; i++) { /* some exporters keep these at the top only */
        json_object_set(root, at_top[i], json_object_get(text, at_top[i]));
        json_object_del(text, at_top[i]);
    }
    ASSERT_OK(td_gemma4_config_read(&nested, text, "config.json text_config", root, false, err));
    assert_same_config(&flat, &nested);
    json_object_set_new(text, "vocab_size", json_integer(300)); /* the nested one wins */
    ASSERT_OK(td_gemma4_config_read(&nested, text, "config.json text_config", root, false, err));
    assert_int_equal(nested.n_vocab, 300);
    json_object_set_new(root, "tie_word_embeddings", json_false());
    ASSERT_OK(td_gemma4_config_read(&nested, text, "config.json text_config", root, false, err));
    assert_false(nested.tied);
    json_object_set_new(text, "tie_word_embeddings", json_true());
    ASSERT_OK(td_gemma4_config_read(&nested, text, "config.json text_config", root, false, err));
    assert_true(nested.tied);
    json_object_del(text, "vocab_size");
    json_object_del(root, "vocab_size");
    td_error e;
    assert_int_equal(td_gemma4_config_read(&nested, text, "config.json text_config", root, false, &e), TD_E_MODEL);
    assert_string_equal(e.message, "config.json: \"vocab_size\" is missing, expected an integer in [1, 16777216]");
    json_decref(text);
    json_decref(root);
}

/* The scale of the embeddings is rounded to the type of the checkpoint. */
static void the_embedding_scale_is_rounded_as_published(void **state) {
    (void)state;
    static const struct {
        int width;
        const char *dtype;
        float scale;
    } scales[] = {{1536, "bfloat16", 39.25f},  {2560, "bfloat16", 50.5f},    {2816, "bfloat16", 53.0f},
                  {3840, "bfloat16", 62.0f},   {5376, "bfloat16", 73.5f},    {1536, NULL, 39.25f},
                  {1536, "float16", 39.1875f}, {1536, "float32", 39.191837f}};
    for (size_t i = 0; i < sizeof scales / sizeof scales[0]; i++)
        for (int old = 0; old < 2; old++) {
            td_gemma4_config c;
            json_t *o = fixture_config(DENSE);
            json_object_del(o, "dtype");
            json_object_set_new(o, "hidden_size", json_integer(scales[i].width));
            if (scales[i].dtype)
                json_object_set_new(o, old ? "torch_dtype" : "dtype", json_string(scales[i].dtype));
            read_ok(&c, o);
            assert_true(c.embed_scale == scales[i].scale);
            json_decref(o);
        }
}

/* ---- sound: the published shapes ---- */

static const struct published {
    const char *name;
    int width, layers, period, heads, kv, kv_full, ff, shared, window, ple, experts, context;
    bool k_eq_v, wide;
    uint32_t source_sliding, source_full;
} published[] = {
    {"E2B", 1536, 35, 5, 8, 1, 1, 6144, 20, 512, 256, 0, 131072, false, true, 13, 14},
    {"E4B", 2560, 42, 6, 8, 2, 2, 10240, 18, 512, 256, 0, 131072, false, false, 22, 23},
    {"12B", 3840, 48, 6, 16, 8, 1, 15360, 0, 1024, 0, 0, 262144, true, false, 0, 0},
    {"26B-A4B", 2816, 30, 6, 16, 8, 2, 2112, 0, 1024, 0, 128, 262144, true, false, 0, 0},
    {"31B", 5376, 60, 6, 32, 16, 4, 21504, 0, 1024, 0, 0, 262144, true, false, 0, 0},
};

static json_t *published_config(const struct published *p) {
    json_t *o =
        json_pack("{s:s,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i,s:i}", "model_type", "gemma4_text", "vocab_size", 262144,
                  "hidden_size", p->width, "num_hidden_layers", p->layers, "num_attention_heads", p->heads,
                  "num_key_value_heads", p->kv, "head_dim", 256, "global_head_dim", 512, "intermediate_size", p->ff,
                  "sliding_window", p->window, "max_position_embeddings", p->context);
    json_t *types = json_array();
    for (int i = 0; i < p->layers; i++)
        json_array_append_new(types,
                              json_string(i % p->period == p->period - 1 ? "full_attention" : "sliding_attention"));
    json_object_set_new(o, "layer_types", types);
    json_object_set_new(o, "attention_k_eq_v", json_boolean(p->k_eq_v));
    json_object_set_new(o, "num_global_key_value_heads", p->k_eq_v ? json_integer(p->kv_full) : json_null());
    json_object_set_new(o, "num_kv_shared_layers", json_integer(p->shared));
    json_object_set_new(o, "use_double_wide_mlp", json_boolean(p->wide));
    json_object_set_new(o, "hidden_size_per_layer_input", json_integer(p->ple));
    json_object_set_new(o, "vocab_size_per_layer_input", json_integer(262144));
    json_object_set_new(o, "enable_moe_block", json_boolean(p->experts));
    if (p->experts)
        json_object_update_new(
            o, json_pack("{s:i,s:i,s:i}", "num_experts", p->experts, "top_k_experts", 8, "moe_intermediate_size", 704));
    json_object_set_new(o, "rope_parameters",
                        parse("{\"full_attention\": {\"rope_type\": \"proportional\", \"rope_theta\": 1000000.0,"
                              "\"partial_rotary_factor\": 0.25}, \"sliding_attention\": {\"rope_type\": \"default\","
                              "\"rope_theta\": 10000.0}}"));
    return o;
}

static void the_published_shapes_are_read(void **state) {
    (void)state;
    for (size_t n = 0; n < sizeof published / sizeof published[0]; n++) {
        const struct published *p = &published[n];
        json_t *o = published_config(p);
        td_gemma4_config c;
        read_ok(&c, o);
        uint32_t first = (uint32_t)(p->layers - p->shared);
        assert_int_equal(c.n_kv_layers, first);
        assert_int_equal(c.ple, p->ple);
        for (uint32_t i = 0; i < c.n_layers; i++) {
            const td_gemma4_layer_config *l = &c.layer[i];
            bool full = i % (uint32_t)p->period == (uint32_t)p->period - 1;
            assert_int_equal(l->head_dim, full ? 512 : 256);
            assert_int_equal(l->n_kv_heads, full ? p->kv_full : p->kv);
            assert_int_equal(l->n_ff, p->ff * (p->wide && i >= first ? 2 : 1));
            assert_int_equal(l->k_is_v, full && p->k_eq_v);
            assert_int_equal(l->kv_layer, i < first ? i : full ? p->source_full : p->source_sliding);
        }
        json_decref(o);
    }
}

/* Full layers turn 64 of 256 pairs, with exponents over the whole head; sliding ones all 128. */
static void rotations_are_the_published_ones(void **state) {
    (void)state;
    const struct {
        td_gemma4_rope rope;
        uint32_t head_dim, n_rot;
    } tables[] = {{{1e6, 0.25, 1}, 512, 64}, {{1e4, 1, 1}, 256, 128}, {{1e6, 0.25, 8}, 512, 64}, {{1e4, 1, 1}, 16, 8}};
    for (size_t i = 0; i < 4; i++) {
        float *inv;
        uint32_t n;
        ASSERT_OK(td_gemma4_rope_table(&tables[i].rope, tables[i].head_dim, &inv, &n, err));
        assert_int_equal(n, tables[i].n_rot);
        for (uint32_t j = 0; j < n; j++) {
            double want = exp(-log(tables[i].rope.theta) * 2 * j / tables[i].head_dim) / tables[i].rope.factor;
            assert_true(fabs(inv[j] - want) <= 1e-6 * want);
        }
        td_free_aligned(inv);
    }
}

/* ---- assistants ---- */

static void an_assistant_shares_everything(void **state) {
    (void)state;
    json_t *root = fixture_config("gemma4-ple-assistant"), *text = json_object_get(root, "text_config");
    td_gemma4_config c;
    ASSERT_OK(td_gemma4_config_read(&c, text, "config.json text_config", root, true, err));
    assert_int_equal(c.n_shared, 4);
    assert_int_equal(c.n_kv_layers, 0);
    for (uint32_t i = 0; i < 4; i++) {
        assert_false(c.layer[i].owns_kv);
        assert_int_equal(c.layer[i].n_ff, 48);
    }
    static const struct {
        const char *key, *value;
    } odd[] = {{"use_double_wide_mlp", "true"}, {"hidden_size_per_layer_input", "8"}};
    for (size_t i = 0; i < 2; i++) {
        json_t *copy = json_deep_copy(text);
        change(copy, odd[i].key, odd[i].value);
        json_object_set_new(copy, "vocab_size_per_layer_input", json_integer(320));
        td_error e;
        assert_int_equal(td_gemma4_config_read(&c, copy, "config.json text_config", root, true, &e), TD_E_UNSUPPORTED);
        assert_string_equal(e.message, "config.json text_config: an assistant with per-layer inputs, experts or a "
                                       "double-wide MLP");
        json_decref(copy);
    }
    json_decref(root);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_broken_config_is_told_what_and_where),
        cmocka_unit_test(dense_means_what_it_says),
        cmocka_unit_test(shared_layers_read_the_last_owner_of_their_type),
        cmocka_unit_test(experts_mean_what_they_say),
        cmocka_unit_test(both_spellings_of_wide_heads_are_one),
        cmocka_unit_test(global_kv_heads_need_k_eq_v),
        cmocka_unit_test(a_wrapper_means_the_same),
        cmocka_unit_test(the_embedding_scale_is_rounded_as_published),
        cmocka_unit_test(the_published_shapes_are_read),
        cmocka_unit_test(rotations_are_the_published_ones),
        cmocka_unit_test(an_assistant_shares_everything),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
