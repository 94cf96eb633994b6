/* test_census.c - tensors told apart by their names, and counted in published and quantised checkpoints. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "engine/census.h"

static void names_tell_classes(void **state) {
    (void)state;
    static const struct {
        const char *name;
        td_module_class class;
    } cases[] = {
        {"model.embed_tokens.weight", TD_MODULE_EMBEDDING},
        {"language_model.model.embed_tokens.scales", TD_MODULE_EMBEDDING},
        {"model.language_model.embed_tokens_per_layer.weight", TD_MODULE_LAYER_EMBEDDING},
        {"lm_head.weight", TD_MODULE_HEAD},
        {"model.language_model.layers.3.self_attn.q_proj.weight", TD_MODULE_ATTENTION},
        {"model.layers.3.self_attn.q_norm.weight", TD_MODULE_NORM},
        {"model.layers.3.mlp.down_proj.biases", TD_MODULE_MLP},
        {"model.layers.3.post_feedforward_layernorm_1.weight", TD_MODULE_NORM},
        {"model.layers.3.layer_scalar", TD_MODULE_NORM},
        {"model.layers.3.experts.gate_up_proj", TD_MODULE_EXPERTS},
        {"language_model.model.layers.3.experts.switch_glu.up_proj.weight", TD_MODULE_EXPERTS},
        {"model.layers.3.router.proj.weight", TD_MODULE_ROUTER},
        {"model.layers.3.router.scale", TD_MODULE_NORM},
        {"model.layers.3.mlp.gate.weight", TD_MODULE_ROUTER},
        {"model.layers.3.mlp.gate_proj.weight", TD_MODULE_MLP},
        {"model.per_layer_model_projection.weight", TD_MODULE_LAYER_INPUT},
        {"model.per_layer_projection_norm.weight", TD_MODULE_NORM},
        {"model.layers.3.per_layer_input_gate.weight", TD_MODULE_LAYER_INPUT},
        {"model.layers.3.linear_attn.in_proj_qkv.weight", TD_MODULE_DELTA},
        {"model.layers.3.linear_attn.conv1d.weight", TD_MODULE_NORM},
        {"model.layers.3.linear_attn.A_log", TD_MODULE_NORM},
        {"masked_embedding.centroids.weight", TD_MODULE_DRAFT},
        {"pre_projection.weight", TD_MODULE_DRAFT},
        {"mtp.layers.0.mlp.up_proj.weight", TD_MODULE_DRAFT},
        {"mtp.norm.weight", TD_MODULE_NORM},
        {"model.vision_tower.encoder.layers.0.self_attn.q_proj.weight", TD_MODULE_TOWER},
        {"vision_tower.patch_embedder.norm.weight", TD_MODULE_TOWER},
        {"model.something_else.weight", TD_MODULE_OTHER},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        if (td_module_class_of(cases[i].name) != cases[i].class)
            fail_msg("%s is %s, expected %s", cases[i].name, td_module_class_name(td_module_class_of(cases[i].name)),
                     td_module_class_name(cases[i].class));
}

static td_census census_of(const char *path) {
    td_checkpoint *ck;
    td_error err = {0};
    if (td_checkpoint_open(&ck, path, NULL, &err) != TD_OK)
        fail_msg("%s", err.message);
    td_census census;
    td_census_take(&census, ck);
    td_checkpoint_close(&ck);
    return census;
}

static void a_float_checkpoint(void **state) {
    (void)state;
    td_census c = census_of(TD_FIXTURES "/vectors/gemma4-moe");
    assert_int_equal(c.by[TD_MODULE_EMBEDDING].params, 320 * 64);
    assert_int_equal(c.by[TD_MODULE_EMBEDDING].bytes, 320 * 64 * 4);
    assert_string_equal(c.by[TD_MODULE_EXPERTS].format[0].name, "f32");
    assert_int_equal(c.by[TD_MODULE_OTHER].n_modules, 0);
    assert_int_equal(c.bytes, 4 * c.params);
    assert_int_equal(c.n_draft_tensors, 0);
    assert_true(census_of(TD_FIXTURES "/vectors/qwen35-dense").n_draft_tensors > 0);
}

/* 28,619,104 weights were trained, whatever they are stored as; ten layer scalars go with them. */
static void a_quantised_checkpoint(void **state) {
    (void)state;
    td_census c = census_of(TD_SOURCE_DIR "/models/gemma4-demo-4bit");
    assert_int_equal(c.params, 28619104 + 10);
    assert_int_equal(c.by[TD_MODULE_EMBEDDING].params, 8192 * 384);
    assert_string_equal(c.by[TD_MODULE_MLP].format[0].name, "affine 4-bit group 32");
    assert_string_equal(c.by[TD_MODULE_ATTENTION].format[0].name, "affine 8-bit group 32");
    assert_int_equal(c.by[TD_MODULE_MLP].bytes * 8, c.by[TD_MODULE_MLP].params * 5);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_tell_classes),
        cmocka_unit_test(a_float_checkpoint),
        cmocka_unit_test(a_quantised_checkpoint),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
