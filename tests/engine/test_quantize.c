/* test_quantize.c - conversions of the reference checkpoints and of a made-up multimodal wrapper: names, formats,
 * values, shards, and what is refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/file.h"
#include "engine/quantize.h"
#include "format/checkpoint.h"

#define VECTORS TD_FIXTURES "/vectors/"

static char root[64];

static const char *in_root(const char *name) {
    static char path[4][256];
    static int turn;
    char *p = path[turn++ % 4];
    snprintf(p, 256, "%s/%s", root, name);
    return p;
}

static int make_root(void **state) {
    (void)state;
    strcpy(root, "/tmp/tandem-quantize-XXXXXX");
    return mkdtemp(root) ? 0 : -1;
}

static int remove_root(void **state) {
    (void)state;
    char command[128];
    snprintf(command, sizeof command, "rm -rf '%s'", root);
    return system(command);
}

static td_checkpoint *open_checkpoint(const char *path) {
    td_checkpoint *ck;
    td_error err = {0};
    if (td_checkpoint_open(&ck, path, NULL, &err) != TD_OK)
        fail_msg("%s", err.message);
    return ck;
}

static td_quantize_report convert(const char *in, const char *out, const td_quantize_options *opt) {
    td_quantize_report report;
    td_error err = {0};
    if (td_quantize(in, out, opt, &report, &err) != TD_OK)
        fail_msg("%s", err.message);
    return report;
}

static td_quantize_options options(uint32_t bits) {
    td_quantize_options opt = td_quantize_options_default();
    opt.bits = bits;
    opt.n_threads = 2;
    return opt;
}

/* The matrix of `module`, which the rows [row0, row0+n_out) of each matrix of `source` became: every weight is within
 * half a step of its group, give or take the rounding of scale and offset. */
static void check_matrix(const td_checkpoint *before, const char *source, uint32_t row0, const td_checkpoint *after,
                         const char *module, uint32_t n_stack, uint32_t n_out, uint32_t n_in, unsigned bits,
                         unsigned group) {
    td_error err = {0};
    td_matrix m;
    if (td_checkpoint_matrix(after, module, n_stack, n_out, n_in, &m, &err) != TD_OK)
        fail_msg("%s", err.message);
    assert_int_equal(m.format, TD_FORMAT_AFFINE);
    assert_int_equal(m.bits, bits);
    assert_int_equal(m.group, group);
    const td_tensor *t = td_checkpoint_find(before, source);
    assert_non_null(t);
    assert_int_equal(t->dtype, TD_DTYPE_F32);
    float *row = td_malloc(n_in * sizeof *row), *w = td_malloc(n_in * sizeof *w);
    uint32_t each = (uint32_t)t->dim[t->n_dims - 2];
    for (uint32_t e = 0; e < (n_stack ? n_stack : 1); e++)
        for (uint32_t r = 0; r < n_out; r++) {
            td_matrix_row_f32(&m, (size_t)e * n_out + r, row);
            memcpy(w, t->data + ((size_t)e * each + row0 + r) * n_in * 4, n_in * 4);
            for (uint32_t g = 0; g < n_in; g += group) {
                float lo = w[g], hi = w[g];
                for (uint32_t i = g; i < g + group; i++) {
                    lo = fminf(lo, w[i]);
                    hi = fmaxf(hi, w[i]);
                }
                float step = (hi - lo) / (float)((1 << bits) - 1);
                for (uint32_t i = g; i < g + group; i++)
                    assert_true(fabsf(w[i] - row[i]) <= 1.01f * step);
            }
        }
    td_free(row);
    td_free(w);
}

static void check_equal(const td_checkpoint *before, const char *source, const td_checkpoint *after, const char *name) {
    const td_tensor *a = td_checkpoint_find(before, source), *b = td_checkpoint_find(after, name);
    assert_non_null(a);
    assert_non_null(b);
    assert_int_equal(a->dtype, b->dtype);
    assert_int_equal(a->n_dims, b->n_dims);
    assert_int_equal(a->size, b->size);
    assert_memory_equal(a->data, b->data, a->size);
}

static void experts_are_split_and_the_router_keeps_eight_bits(void **state) {
    (void)state;
    td_quantize_options opt = options(4);
    td_quantize_report r = convert(VECTORS "gemma4-moe", in_root("moe"), &opt);
    td_checkpoint *a = open_checkpoint(VECTORS "gemma4-moe"), *b = open_checkpoint(in_root("moe"));
    const td_tensor *gate_up = td_checkpoint_find(a, "model.layers.0.experts.gate_up_proj");
    uint32_t n = (uint32_t)gate_up->dim[0], f = (uint32_t)gate_up->dim[1] / 2, d = (uint32_t)gate_up->dim[2];
    check_matrix(a, gate_up->name, 0, b, "model.layers.0.experts.switch_glu.gate_proj", n, f, d, 4, 64);
    check_matrix(a, gate_up->name, f, b, "model.layers.0.experts.switch_glu.up_proj", n, f, d, 4, 64);
    check_matrix(a, "model.layers.0.router.proj.weight", 0, b, "model.layers.0.router.proj", 0, n, d, 8, 64);
    /* 48 inputs fit no group: renamed, and otherwise as they were */
    const td_tensor *down = td_checkpoint_find(a, "model.layers.0.experts.down_proj");
    if (down->dim[2] % 32 != 0)
        check_equal(a, down->name, b, "model.layers.0.experts.switch_glu.down_proj.weight");
    assert_null(td_checkpoint_find(b, "model.layers.0.experts.gate_up_proj"));
    check_equal(a, "model.layers.0.router.per_expert_scale", b, "model.layers.0.router.per_expert_scale");
    check_equal(a, "model.norm.weight", b, "model.norm.weight");
    assert_true(r.n_quantized > 0 && r.n_kept > 0);
    assert_true(r.bytes_after < r.bytes_before);
    td_checkpoint_close(&a);
    td_checkpoint_close(&b);
}

static void embeddings_and_attention_have_widths_of_their_own(void **state) {
    (void)state;
    td_quantize_options opt = options(4);
    opt.embed_bits = 8;
    opt.attention_bits = 6;
    convert(VECTORS "gemma4-ple", in_root("ple"), &opt);
    td_checkpoint *a = open_checkpoint(VECTORS "gemma4-ple"), *b = open_checkpoint(in_root("ple"));
    check_matrix(a, "model.embed_tokens.weight", 0, b, "model.embed_tokens", 0, 320, 64, 8, 64);
    check_matrix(a, "model.layers.0.mlp.up_proj.weight", 0, b, "model.layers.0.mlp.up_proj", 0,
                 (uint32_t)td_checkpoint_find(a, "model.layers.0.mlp.up_proj.weight")->dim[0], 64, 4, 64);
    check_matrix(a, "model.layers.0.self_attn.q_proj.weight", 0, b, "model.layers.0.self_attn.q_proj", 0,
                 (uint32_t)td_checkpoint_find(a, "model.layers.0.self_attn.q_proj.weight")->dim[0], 64, 6, 64);
    const json_t *q = json_object_get(td_checkpoint_config(b), "quantization");
    assert_int_equal(json_integer_value(json_object_get(q, "bits")), 4);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(q, "model.embed_tokens"), "bits")), 8);
    assert_true(json_equal(q, json_object_get(td_checkpoint_config(b), "quantization_config")));
    td_checkpoint_close(&a);
    td_checkpoint_close(&b);
}

static void shards_hold_the_same_tensors(void **state) {
    (void)state;
    td_quantize_options opt = options(8);
    convert(VECTORS "gemma4-dense", in_root("one"), &opt);
    opt.shard_bytes = 60000;
    opt.n_threads = 1;
    td_quantize_report r = convert(VECTORS "gemma4-dense", in_root("many"), &opt);
    assert_true(r.n_files > 2);
    assert_true(td_file_exists(in_root("many/model.safetensors.index.json")));
    td_checkpoint *a = open_checkpoint(in_root("one")), *b = open_checkpoint(in_root("many"));
    assert_int_equal(td_checkpoint_n_tensors(a), td_checkpoint_n_tensors(b));
    for (size_t i = 0; i < td_checkpoint_n_tensors(a); i++) {
        const td_tensor *t = td_checkpoint_tensor_at(a, i);
        check_equal(a, t->name, b, t->name);
    }
    td_checkpoint_close(&a);
    td_checkpoint_close(&b);
}

static void a_drafters_centroids_and_ordering_stay(void **state) {
    (void)state;
    td_quantize_options opt = options(4);
    convert(VECTORS "gemma4-ple-assistant", in_root("assistant"), &opt);
    td_checkpoint *a = open_checkpoint(VECTORS "gemma4-ple-assistant"), *b = open_checkpoint(in_root("assistant"));
    check_equal(a, "masked_embedding.centroids.weight", b, "masked_embedding.centroids.weight");
    check_equal(a, "masked_embedding.token_ordering", b, "masked_embedding.token_ordering");
    assert_non_null(td_checkpoint_find(b, "pre_projection.scales"));
    td_checkpoint_close(&a);
    td_checkpoint_close(&b);
}

static void heads_inside_a_checkpoint_are_kept(void **state) {
    (void)state;
    td_quantize_options opt = options(4);
    convert(VECTORS "qwen35-dense", in_root("qwen"), &opt);
    td_checkpoint *a = open_checkpoint(VECTORS "qwen35-dense"), *b = open_checkpoint(in_root("qwen"));
    size_t heads = 0;
    for (size_t i = 0; i < td_checkpoint_n_tensors(a); i++) {
        const char *name = td_checkpoint_tensor_at(a, i)->name;
        if (strncmp(name, "mtp.", 4) == 0) {
            assert_non_null(td_checkpoint_find(b, name));
            heads++;
        }
    }
    assert_true(heads > 0);
    td_checkpoint_close(&a);
    td_checkpoint_close(&b);
}

static void fused_experts_of_a_draft_head_are_split_too(void **state) {
    (void)state;
    td_quantize_options opt = options(4);
    convert(VECTORS "qwen35-moe", in_root("qwen-moe"), &opt);
    td_checkpoint *a = open_checkpoint(VECTORS "qwen35-moe"), *b = open_checkpoint(in_root("qwen-moe"));
    const td_tensor *gate_up = td_checkpoint_find(a, "mtp.layers.0.mlp.experts.gate_up_proj");
    uint32_t n = (uint32_t)gate_up->dim[0], f = (uint32_t)gate_up->dim[1] / 2, d = (uint32_t)gate_up->dim[2];
    check_matrix(a, gate_up->name, 0, b, "mtp.layers.0.mlp.switch_mlp.gate_proj", n, f, d, 4, 64);
    check_matrix(a, gate_up->name, f, b, "mtp.layers.0.mlp.switch_mlp.up_proj", n, f, d, 4, 64);
    check_matrix(a, "model.layers.0.mlp.experts.1.up_proj.weight", 0, b, "model.layers.0.mlp.experts.1.up_proj", 0, f,
                 d, 4, 64);
    td_checkpoint_close(&a);
    td_checkpoint_close(&b);
}

/* ---- a wrapper with everything that is renamed or left out ---- */

static void put_text(const char *path, const char *text) {
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    fputs(text, f);
    fclose(f);
}

static const char wrapper_config[] =
    "{\"model_type\": \"gemma4\", \"vision_config\": {}, \"text_config\": {\"model_type\": \"gemma4_text\", "
    "\"num_hidden_layers\": 2, \"num_kv_shared_layers\": 1, \"hidden_size\": 64}}";

static void make_wrapper(const char *dir, float spoiler) {
    static float data[64 * 64];
    for (int i = 0; i < 64 * 64; i++)
        data[i] = sinf((float)i);
    data[100] = spoiler;
    static const struct {
        const char *name;
        int n_dims;
    } entries[] = {
        {"model.language_model.embed_tokens.weight", 2},
        {"model.language_model.layers.0.self_attn.k_proj.weight", 2},
        {"model.language_model.layers.0.self_attn.k_norm.weight", 1},
        {"model.language_model.layers.1.self_attn.k_proj.weight", 2},
        {"model.language_model.layers.1.self_attn.v_proj.weight", 2},
        {"model.language_model.layers.1.self_attn.k_norm.weight", 1},
        {"model.language_model.layers.1.self_attn.q_proj.weight", 2},
        {"model.language_model.norm.weight", 1},
        {"model.vision_tower.encoder.layers.0.self_attn.q_proj.weight", 2},
        {"model.vision_tower.encoder.layers.0.self_attn.q_proj.input_max", 1},
        {"model.embed_vision.embedding_projection.weight", 2},
        {"lm_head.weight", 2},
    };
    td_tensor t[sizeof entries / sizeof *entries];
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        t[i] = (td_tensor){.name = entries[i].name,
                           .dtype = TD_DTYPE_F32,
                           .n_dims = entries[i].n_dims,
                           .dim = {64, 64},
                           .data = (const uint8_t *)data,
                           .size = entries[i].n_dims == 2 ? sizeof data : 256};
    char path[300];
    assert_int_equal(mkdir(dir, 0700), 0);
    snprintf(path, sizeof path, "%s/config.json", dir);
    put_text(path, wrapper_config);
    snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    put_text(path, "{}");
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    td_error err = {0};
    if (td_safetensors_write(path, t, sizeof t / sizeof *t, "pt", &err) != TD_OK)
        fail_msg("%s", err.message);
}

static void a_wrapper_gets_the_names_of_mlx(void **state) {
    (void)state;
    make_wrapper(in_root("wrapper"), 0);
    td_quantize_options opt = options(4);
    td_quantize_report r = convert(in_root("wrapper"), in_root("unwrapped"), &opt);
    td_checkpoint *b = open_checkpoint(in_root("unwrapped"));
    static const char *const there[] = {
        "language_model.model.embed_tokens.weight",
        "language_model.model.layers.0.self_attn.k_proj.weight",
        "language_model.model.layers.0.self_attn.k_norm.weight",
        "language_model.model.layers.1.self_attn.q_proj.scales",
        "language_model.model.layers.1.self_attn.q_proj.biases",
        "language_model.model.norm.weight",
    };
    for (size_t i = 0; i < sizeof there / sizeof *there; i++)
        if (!td_checkpoint_find(b, there[i]))
            fail_msg("no %s", there[i]);
    assert_int_equal(td_checkpoint_n_tensors(b), 3 * 3 + 2); /* three matrices, two vectors */
    assert_int_equal(r.n_left_out, 7);
    assert_true(td_file_exists(in_root("unwrapped/tokenizer.json")));
    td_checkpoint_close(&b);
}

/* ---- refusals ---- */

static void refused(const char *in, const char *out, const td_quantize_options *opt, td_status expected,
                    const char *part) {
    td_quantize_report report;
    td_error err = {0};
    td_status st = td_quantize(in, out, opt, &report, &err);
    if (st != expected || !strstr(err.message, part))
        fail_msg("%s: %s, expected %s with '%s'", td_status_name(st), err.message, td_status_name(expected), part);
}

static void what_is_refused(void **state) {
    (void)state;
    td_quantize_options opt = options(4);
    refused(VECTORS "gemma4-dense", in_root("one"), &opt, TD_E_ARG, "is not empty");
    refused(in_root("one"), in_root("two"), &opt, TD_E_ARG, "is quantised already");
    opt.force = true;
    refused(in_root("one"), in_root("one"), &opt, TD_E_ARG, "is the checkpoint to be read");
    refused(in_root("nothing"), in_root("two"), &opt, TD_E_NOTFOUND, "nothing");
    refused(VECTORS "gemma4-dense", in_root("no/such/place"), &opt, TD_E_IO, "no/such/place");
    opt.group = 48;
    refused(VECTORS "gemma4-dense", in_root("two"), &opt, TD_E_ARG, "groups of 48");
    opt = options(7);
    refused(VECTORS "gemma4-dense", in_root("two"), &opt, TD_E_ARG, "7 bits");
    assert_false(td_dir_exists(in_root("two")));
}

static void weights_that_are_not_finite_leave_nothing_behind(void **state) {
    (void)state;
    make_wrapper(in_root("spoilt"), INFINITY);
    td_quantize_options opt = options(4);
    refused(in_root("spoilt"), in_root("spoilt-4bit"), &opt, TD_E_NUMERIC, "row 1,");
    assert_false(td_dir_exists(in_root("spoilt-4bit")));
}

static bool stop_half_way(void *user, const char *stage, uint64_t done, uint64_t total) {
    (void)user;
    (void)stage;
    return done < total / 2;
}

static void a_cancelled_conversion_leaves_nothing_behind(void **state) {
    (void)state;
    td_quantize_options opt = options(4);
    opt.progress = stop_half_way;
    refused(VECTORS "gemma4-dense", in_root("stopped"), &opt, TD_E_CANCELLED, "");
    assert_false(td_dir_exists(in_root("stopped")));
}

static void force_replaces_and_forgets_old_shards(void **state) {
    (void)state;
    td_quantize_options opt = options(8);
    opt.shard_bytes = 60000;
    convert(VECTORS "gemma4-dense", in_root("replaced"), &opt);
    opt = options(4);
    opt.force = true;
    convert(VECTORS "gemma4-dense", in_root("replaced"), &opt);
    assert_false(td_file_exists(in_root("replaced/model.safetensors.index.json")));
    td_checkpoint *b = open_checkpoint(in_root("replaced"));
    td_matrix m;
    td_error err = {0};
    const td_tensor *s = td_checkpoint_find(b, "model.embed_tokens.scales");
    assert_non_null(s);
    assert_int_equal(td_checkpoint_matrix(b, "model.embed_tokens", 0, (uint32_t)s->dim[0], 64, &m, &err), TD_OK);
    assert_int_equal(m.bits, 4);
    td_checkpoint_close(&b);
}

static void every_failed_allocation_is_an_error(void **state) {
    (void)state;
    td_quantize_options opt = options(4);
    opt.n_threads = 1;
    long live = td_alloc_live();
    for (long k = 0;; k += 1 + k / 8) {
        td_quantize_report report;
        td_error err = {0};
        td_alloc_fail_at(k);
        td_status st = td_quantize(VECTORS "gemma4-dense-assistant", in_root("sweep"), &opt, &report, &err);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        assert_int_equal(td_alloc_live(), live);
        if (!struck) {
            assert_int_equal(st, TD_OK);
            break;
        }
        if (st != TD_OK)
            assert_false(td_dir_exists(in_root("sweep")));
        opt.force = true;
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(experts_are_split_and_the_router_keeps_eight_bits),
        cmocka_unit_test(embeddings_and_attention_have_widths_of_their_own),
        cmocka_unit_test(shards_hold_the_same_tensors),
        cmocka_unit_test(a_drafters_centroids_and_ordering_stay),
        cmocka_unit_test(heads_inside_a_checkpoint_are_kept),
        cmocka_unit_test(fused_experts_of_a_draft_head_are_split_too),
        cmocka_unit_test(a_wrapper_gets_the_names_of_mlx),
        cmocka_unit_test(what_is_refused),
        cmocka_unit_test(weights_that_are_not_finite_leave_nothing_behind),
        cmocka_unit_test(a_cancelled_conversion_leaves_nothing_behind),
        cmocka_unit_test(force_replaces_and_forgets_old_shards),
        cmocka_unit_test(every_failed_allocation_is_an_error),
    };
    return cmocka_run_group_tests(tests, make_root, remove_root);
}
