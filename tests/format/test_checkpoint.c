/* test_checkpoint.c - model directories: which files belong to one, what an index may say, and lookups. */
#include "format/support_format.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

#define INDEX "model.safetensors.index.json"

static const float floats[] = {1, -2, 3.5f, 0, 5, 6};

static td_tensor f32(const char *name, int n_dims, uint64_t d0, uint64_t d1) {
    return (td_tensor){.name = name,
                       .dtype = TD_DTYPE_F32,
                       .n_dims = n_dims,
                       .dim = {d0, d1},
                       .data = (const uint8_t *)floats,
                       .size = 4 * (size_t)((n_dims > 0 ? d0 : 1) * (n_dims > 1 ? d1 : 1))};
}

/* One file with one tensor. */
static void put_one(const char *dir, const char *file, const char *name) {
    const td_tensor t = f32(name, 1, 2, 0);
    put_tensors(dir, file, &t, 1);
}

static void assert_refused(const char *path, td_status status, const char *want) {
    td_checkpoint *ck = (td_checkpoint *)&path;
    td_error err;
    char prefix[1100];
    snprintf(prefix, sizeof prefix, "%s", path);
    assert_failed(td_checkpoint_open(&ck, path, NULL, &err), status, &err, prefix, want);
    assert_null(ck);
    assert_int_equal(td_checkpoint_open(&ck, path, NULL, NULL), status);
}

/* ---- whole checkpoints ---- */

static void opens_every_reference_checkpoint(void **state) {
    (void)state;
    static const struct {
        const char *name;
        size_t n_tensors;
        const char *model_type;
    } all[] = {
        {"gemma4-dense", 84, "gemma4_text"},  {"gemma4-dense-assistant", 48, "gemma4_assistant"},
        {"gemma4-moe", 88, "gemma4_text"},    {"gemma4-moe-assistant", 48, "gemma4_assistant"},
        {"gemma4-ple", 132, "gemma4_text"},   {"gemma4-ple-assistant", 50, "gemma4_assistant"},
        {"qwen35-dense", 70, "qwen3_5_text"}, {"qwen35-moe", 179, "qwen3_5_moe_text"},
    };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        char path[1024];
        snprintf(path, sizeof path, TD_FIXTURES "/vectors/%s", all[i].name);
        td_checkpoint *ck = open_ok(path);
        assert_string_equal(td_checkpoint_path(ck), path);
        assert_int_equal(td_checkpoint_n_tensors(ck), all[i].n_tensors);
        assert_string_equal(json_string_value(json_object_get(td_checkpoint_config(ck), "model_type")),
                            all[i].model_type);
        assert_non_null(td_checkpoint_generation_config(ck));
        size_t bytes = 0;
        for (size_t k = 0; k < td_checkpoint_n_tensors(ck); k++) {
            const td_tensor *t = td_checkpoint_tensor_at(ck, k);
            assert_ptr_equal(td_checkpoint_find(ck, t->name), t);
            bytes += t->size;
        }
        assert_in_range(td_checkpoint_file_bytes(ck), bytes + 8, bytes + 30000);
        td_checkpoint_close(&ck);
        assert_null(ck);
    }
    td_checkpoint_close(NULL);
}

static void a_file_restricts_its_directory_to_itself(void **state) {
    (void)state;
    td_checkpoint *ck = open_ok(TD_FIXTURES "/vectors/gemma4-moe/vectors.safetensors");
    assert_int_equal(td_checkpoint_n_tensors(ck), 18);
    assert_non_null(td_checkpoint_find(ck, "logits"));
    assert_null(td_checkpoint_find(ck, "model.embed_tokens.weight"));
    assert_non_null(td_checkpoint_config(ck));
    td_checkpoint_close(&ck);
}

static void a_relative_file_is_looked_for_here(void **state) {
    char old[1024];
    put_text(*state, "config.json", "{}");
    put_one(*state, "model.safetensors", "a");
    assert_non_null(getcwd(old, sizeof old));
    assert_int_equal(chdir(*state), 0);
    td_checkpoint *ck;
    td_error err;
    td_status st = td_checkpoint_open(&ck, "model.safetensors", NULL, &err);
    assert_int_equal(chdir(old), 0);
    assert_int_equal(st, TD_OK);
    assert_int_equal(td_checkpoint_n_tensors(ck), 1);
    assert_null(td_checkpoint_generation_config(ck));
    td_checkpoint_close(&ck);
}

static void what_is_no_checkpoint_is_said(void **state) {
    const char *dir = *state;
    assert_refused(in_dir(dir, "none"), TD_E_NOTFOUND, ": no such file or directory");
    put_text(dir, "x.bin", "");
    assert_refused(in_dir(dir, "x.bin"), TD_E_FORMAT,
                   ": expected a model directory or a file ending in .safetensors or .gguf");
    assert_refused(dir, TD_E_NOTFOUND, "/config.json: No such file or directory");
}

static void configs_are_checked(void **state) {
    const char *dir = *state;
    put_one(dir, "model.safetensors", "a");
    assert_refused(dir, TD_E_NOTFOUND, "/config.json: No such file or directory");
    put_text(dir, "config.json", "{\"a\":1,}");
    assert_refused(dir, TD_E_FORMAT, "/config.json: byte 7: expected a string, found '}'");
    put_text(dir, "config.json", "[]");
    assert_refused(dir, TD_E_FORMAT, "/config.json: expected a JSON object");
    put_text(dir, "config.json", "{\"a\":1,\"a\":1}");
    assert_refused(dir, TD_E_FORMAT, "/config.json: byte 7: key \"a\" occurs twice");
    put_text(dir, "config.json", "{}");
    put_text(dir, "generation_config.json", "");
    assert_refused(dir, TD_E_FORMAT, "/generation_config.json: byte 0: expected a value, found the end");
    put_text(dir, "generation_config.json", "{\"a\":1}");
    td_checkpoint *ck = open_ok(dir);
    assert_non_null(json_object_get(td_checkpoint_generation_config(ck), "a"));
    td_checkpoint_close(&ck);
    assert_int_equal(unlink(in_dir(dir, "generation_config.json")), 0);
    assert_int_equal(mkdir(in_dir(dir, "generation_config.json"), 0700), 0);
    assert_refused(dir, TD_E_IO, "/generation_config.json: not a regular file");
}

/* ---- without an index ---- */

static void without_an_index_names_decide(void **state) {
    const char *dir = *state;
    put_text(dir, "config.json", "{}");
    put_text(dir, "other.safetensors", "not looked at");
    assert_refused(dir, TD_E_NOTFOUND,
                   ": no weights, expected model.safetensors, model*.safetensors or weights.safetensors");
    put_one(dir, "weights.safetensors", "w");
    td_checkpoint *ck = open_ok(dir);
    assert_non_null(td_checkpoint_find(ck, "w"));
    td_checkpoint_close(&ck);
    put_one(dir, "model-00002-of-00003.safetensors", "b");
    put_one(dir, "model-00003-of-00003.safetensors", "c");
    assert_refused(dir, TD_E_NOTFOUND,
                   ": model-00001-of-00003.safetensors is missing, as model-00002-of-00003.safetensors is there");
    put_one(dir, "model-00001-of-00003.safetensors", "a");
    put_one(dir, "model-mtp.safetensors", "mtp");
    ck = open_ok(dir);
    assert_int_equal(td_checkpoint_n_tensors(ck), 4);
    assert_string_equal(td_checkpoint_tensor_at(ck, 0)->name, "a");
    assert_string_equal(td_checkpoint_tensor_at(ck, 2)->name, "c");
    assert_null(td_checkpoint_find(ck, "w"));
    td_checkpoint_close(&ck);
    put_one(dir, "model-mtp.safetensors", "b");
    assert_refused(dir, TD_E_FORMAT, ": tensor \"b\" is in two weight files");
    put_one(dir, "model.safetensors", "whole");
    ck = open_ok(dir);
    assert_int_equal(td_checkpoint_n_tensors(ck), 1);
    td_checkpoint_close(&ck);
    put_text(dir, "model.safetensors", "12345678");
    assert_refused(dir, TD_E_FORMAT, "/model.safetensors: header length 4050765991979987505, expected 1 to 100000000");
}

/* ---- with an index ---- */

static char warned[2048];

static void take_warning(void *user, td_log_level level, const char *message) {
    assert_ptr_equal(user, warned);
    assert_int_equal(level, TD_LOG_WARN);
    snprintf(warned + strlen(warned), sizeof warned - strlen(warned), "%s\n", message);
}

/* s1 holds a and b, s2 holds c; config.json is there. */
static void put_shards(const char *dir) {
    const td_tensor s1[] = {f32("a", 1, 2, 0), f32("b", 2, 2, 2)};
    put_text(dir, "config.json", "{}");
    put_tensors(dir, "s1.safetensors", s1, 2);
    put_one(dir, "s2.safetensors", "c");
}

static void an_index_names_exactly_the_files(void **state) {
    const char *dir = *state;
    put_shards(dir);
    put_one(dir, "model.safetensors", "stale");
    put_text(dir, INDEX,
             "{\"metadata\":{\"total_size\":1e99,\"x\":[[]]},\"weight_map\":{\"c\":\"s2.safetensors\","
             "\"a\":\"s1.safetensors\",\"b\":\"s1.safetensors\"}}");
    warned[0] = '\0';
    td_log log = {take_warning, warned, TD_LOG_DEBUG};
    td_checkpoint *ck;
    td_error err;
    assert_int_equal(td_checkpoint_open(&ck, dir, &log, &err), TD_OK);
    assert_int_equal(td_checkpoint_n_tensors(ck), 3);
    assert_non_null(td_checkpoint_find(ck, "c"));
    assert_null(td_checkpoint_find(ck, "stale"));
    assert_string_equal(warned, "");
    td_checkpoint_close(&ck);
}

static void tensors_outside_of_the_map_are_warned_about(void **state) {
    const char *dir = *state;
    put_shards(dir);
    put_text(dir, INDEX, "{\"weight_map\":{\"c\":\"s2.safetensors\",\"b\":\"s1.safetensors\"}}");
    warned[0] = '\0';
    td_log log = {take_warning, warned, TD_LOG_DEBUG};
    td_checkpoint *ck;
    td_error err;
    char want[1200];
    assert_int_equal(td_checkpoint_open(&ck, dir, &log, &err), TD_OK);
    snprintf(want, sizeof want, "%s: s1.safetensors holds 1 tensors that " INDEX " does not map, the first is \"a\"\n",
             dir);
    assert_string_equal(warned, want);
    assert_non_null(td_checkpoint_find(ck, "a"));
    td_checkpoint_close(&ck);
}

#define MAP(name, file) "{\"weight_map\":{\"" name "\":\"" file "\"}}"
#define NOT_PLAIN(file) "/" INDEX ": byte 19: shard \"" file "\" is not a plain file name ending in .safetensors"

static const struct {
    const char *index;
    td_status status;
    const char *want; /* after the directory */
} refused_indices[] = {
    {"", TD_E_FORMAT, "/" INDEX ": byte 0: expected an object, found the end"},
    {"[]", TD_E_FORMAT, "/" INDEX ": byte 0: expected an object, found '['"},
    {"{}", TD_E_FORMAT, "/" INDEX ": no weight_map"},
    {"{\"weight_map\":{}}", TD_E_FORMAT, "/" INDEX ": an empty weight_map"},
    {"{\"weight_map\":[]}", TD_E_FORMAT, "/" INDEX ": byte 14: expected an object, found '['"},
    {"{\"weight_map\":{\"a\":1}}", TD_E_FORMAT, "/" INDEX ": byte 19: expected a string, found '1'"},
    {"{\"weight_map\":{\"a\":\"s1.safetensors\"},\"weight_map\":{}}", TD_E_FORMAT,
     "/" INDEX ": byte 37: weight_map occurs twice"},
    {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"a\":\"s2.safetensors\"}}", TD_E_FORMAT,
     "/" INDEX ": byte 36: tensor \"a\" occurs twice"},
    {"{\"weight_map\":{\"a\":\"s1.safetensors\"}} {", TD_E_FORMAT,
     "/" INDEX ": byte 38: expected the end of the text, found '{'"},
    {"{\"metadata\":[[[[[[[[[]]]]]]]]],\"weight_map\":{\"a\":\"s1.safetensors\"}}", TD_E_FORMAT,
     "/" INDEX ": byte 19: nested deeper than 8 levels"},
    {MAP("a", "../../x"), TD_E_FORMAT, NOT_PLAIN("../../x")},
    {MAP("a", "../x.safetensors"), TD_E_FORMAT, NOT_PLAIN("../x.safetensors")},
    {MAP("a", "/etc/x.safetensors"), TD_E_FORMAT, NOT_PLAIN("/etc/x.safetensors")},
    {MAP("a", "sub/x.safetensors"), TD_E_FORMAT, NOT_PLAIN("sub/x.safetensors")},
    {MAP("a", "a\\\\x.safetensors"), TD_E_FORMAT, NOT_PLAIN("a\\x.safetensors")},
    {MAP("a", ""), TD_E_FORMAT, NOT_PLAIN("")},
    {MAP("a", "."), TD_E_FORMAT, NOT_PLAIN(".")},
    {MAP("a", ".."), TD_E_FORMAT, NOT_PLAIN("..")},
    {MAP("a", ".safetensors"), TD_E_FORMAT, NOT_PLAIN(".safetensors")},
    {MAP("a", ".x.safetensors"), TD_E_FORMAT, NOT_PLAIN(".x.safetensors")},
    {MAP("a", "s1.bin"), TD_E_FORMAT, NOT_PLAIN("s1.bin")},
    {MAP("a", INDEX), TD_E_FORMAT, NOT_PLAIN(INDEX)}, /* itself */
    {MAP("a", "x\\n.safetensors"), TD_E_FORMAT, NOT_PLAIN("x?.safetensors")},
    {MAP("a", "x\\u0000.safetensors"), TD_E_FORMAT,
     "/" INDEX ": byte 21: a string holds \\u0000, which is not allowed"},
    {MAP("a", "none.safetensors"), TD_E_NOTFOUND, "/none.safetensors: named by " INDEX ": No such file or directory"},
    {MAP("a", "dangling.safetensors"), TD_E_NOTFOUND,
     "/dangling.safetensors: named by " INDEX ": a link that leads nowhere"},
    {MAP("a", "dir.safetensors"), TD_E_IO, "/dir.safetensors: not a regular file"},
    {MAP("a", "fifo.safetensors"), TD_E_IO, "/fifo.safetensors: not a regular file"},
    {MAP("a", "loop.safetensors"), TD_E_IO, "/loop.safetensors: named by " INDEX ": a link that leads nowhere"},
    {MAP("a", "s2.safetensors"), TD_E_FORMAT,
     ": " INDEX " maps tensor \"a\" to s2.safetensors, which does not have it"},
    {"{\"weight_map\":{\"a\":\"s1.safetensors\",\"c\":\"s2.safetensors\",\"d\":\"twice.safetensors\"}}", TD_E_FORMAT,
     ": tensor \"a\" is in two weight files"},
};

static void every_wrong_index_is_named(void **state) {
    const char *dir = *state;
    const td_tensor twice[] = {f32("d", 1, 2, 0), f32("a", 1, 2, 0)};
    put_shards(dir);
    put_tensors(dir, "twice.safetensors", twice, 2);
    put_text(dir, "sub/x.safetensors", "");
    assert_int_equal(mkdir(in_dir(dir, "dir.safetensors"), 0700), 0);
    assert_int_equal(mkfifo(in_dir(dir, "fifo.safetensors"), 0600), 0);
    assert_int_equal(symlink("nowhere", in_dir(dir, "dangling.safetensors")), 0);
    assert_int_equal(symlink("loop.safetensors", in_dir(dir, "loop.safetensors")), 0);
    for (size_t i = 0; i < sizeof refused_indices / sizeof refused_indices[0]; i++) {
        put_text(dir, INDEX, refused_indices[i].index);
        assert_refused(dir, refused_indices[i].status, refused_indices[i].want);
    }
    assert_int_equal(unlink(in_dir(dir, INDEX)), 0);
    assert_int_equal(mkdir(in_dir(dir, INDEX), 0700), 0);
    assert_refused(dir, TD_E_IO, "/" INDEX ": not a regular file");
}

/* A link may lead from a snapshot to the blobs of its own repository, and nowhere else. */
static void links_stay_in_their_repository(void **state) {
    char snapshot[1024], want[2100];
    const char *root = *state;
    snprintf(snapshot, sizeof snapshot, "%s/models--o--n/snapshots/0123", root);
    put_text(snapshot, "config.json", "{}");
    put_text(snapshot, INDEX, MAP("a", "s.safetensors"));
    put_one(root, "models--o--n/blobs/beef", "a");
    put_one(root, "models--o--other/blobs/beef", "a");
    put_one(root, "models--o--n/blobs-not/beef", "a");
    put_one(snapshot, "inside.safetensors", "a");
    static const struct {
        const char *target;
        bool allowed;
    } links[] = {
        {"../../blobs/beef", true},
        {"inside.safetensors", true},
        {"../../../models--o--n/blobs/beef", true},
        {"../../../models--o--other/blobs/beef", false},
        {"../../blobs-not/beef", false},
    };
    for (size_t i = 0; i < sizeof links / sizeof links[0]; i++) {
        char link[1100];
        snprintf(link, sizeof link, "%s/s.safetensors", snapshot);
        (void)unlink(link);
        assert_int_equal(symlink(links[i].target, link), 0);
        if (links[i].allowed) {
            td_checkpoint *ck = open_ok(snapshot);
            assert_non_null(td_checkpoint_find(ck, "a"));
            td_checkpoint_close(&ck);
            continue;
        }
        char real[4096];
        assert_non_null(realpath(link, real));
        snprintf(want, sizeof want,
                 "/s.safetensors: named by " INDEX ", but links to %.1000s, outside of the checkpoint", real);
        assert_refused(snapshot, TD_E_FORMAT, want);
    }
}

/* ---- lookups ---- */

static td_checkpoint *small_checkpoint(const char *dir) {
    static const uint16_t bf16[] = {0x3F80, 0xC000}; /* 1, -2 */
    static const uint32_t nan_bits[] = {0x3F800000, 0x7FC00000};
    static const int32_t ints[] = {1, 2};
    const td_tensor tensors[] = {
        f32("model.language_model.v", 1, 3, 0),
        f32("model.language_model.m", 2, 2, 3),
        f32("row", 2, 1, 3),
        f32("scalar", 0, 0, 0),
        {.name = "half", .dtype = TD_DTYPE_BF16, .n_dims = 1, .dim = {2}, .data = (const uint8_t *)bf16, .size = 4},
        {.name = "nan", .dtype = TD_DTYPE_F32, .n_dims = 1, .dim = {2}, .data = (const uint8_t *)nan_bits, .size = 8},
        {.name = "ints", .dtype = TD_DTYPE_I32, .n_dims = 1, .dim = {2}, .data = (const uint8_t *)ints, .size = 8},
        {.name = "empty", .dtype = TD_DTYPE_F32, .n_dims = 2, .dim = {0, 5}},
    };
    put_text(dir, "config.json", "{}");
    put_tensors(dir, "model.safetensors", tensors, sizeof tensors / sizeof tensors[0]);
    return open_ok(dir);
}

static void aliases_find_and_are_named(void **state) {
    const char *dir = *state;
    td_checkpoint *ck = small_checkpoint(dir);
    td_error err;
    const td_tensor *t;
    assert_int_equal(td_checkpoint_alias(ck, "v", "model.language_model.v", &err), TD_OK);
    assert_int_equal(td_checkpoint_alias(ck, "v", "model.language_model.v", &err), TD_OK);
    assert_int_equal(td_checkpoint_alias(ck, "w", "v", &err), TD_OK); /* of an alias */
    assert_ptr_equal(td_checkpoint_find(ck, "v"), td_checkpoint_find(ck, "model.language_model.v"));
    assert_ptr_equal(td_checkpoint_find(ck, "w"), td_checkpoint_find(ck, "v"));
    assert_failed(td_checkpoint_alias(ck, "v", "row", &err), TD_E_FORMAT, &err, dir,
                  ": tensors \"model.language_model.v\" and \"row\" are both called \"v\"");
    assert_failed(td_checkpoint_alias(ck, "half", "row", &err), TD_E_FORMAT, &err, dir,
                  ": tensors \"half\" and \"row\" are both called \"half\"");
    assert_failed(td_checkpoint_alias(ck, "x", "none", &err), TD_E_MODEL, &err, dir, ": no tensor \"none\"");
    assert_failed(td_checkpoint_require(ck, "v", 1, (const uint64_t[]){4}, &t, &err), TD_E_SHAPE, &err, dir,
                  ": tensor \"v\" (\"model.language_model.v\") has shape [3], expected [4]");
    for (int i = 0; i < 200; i++) { /* past several growths of the table */
        char name[20];
        snprintf(name, sizeof name, "alias.%d", i);
        assert_int_equal(td_checkpoint_alias(ck, name, "row", &err), TD_OK);
    }
    assert_non_null(td_checkpoint_find(ck, "alias.0"));
    assert_non_null(td_checkpoint_find(ck, "alias.199"));
    assert_int_equal(td_checkpoint_n_tensors(ck), 8);
    td_checkpoint_close(&ck);
}

static void shapes_are_required_whole(void **state) {
    const char *dir = *state;
    td_checkpoint *ck = small_checkpoint(dir);
    td_error err;
    const td_tensor *t;
    assert_int_equal(td_checkpoint_require(ck, "row", 2, (const uint64_t[]){1, 3}, &t, &err), TD_OK);
    assert_ptr_equal(t, td_checkpoint_find(ck, "row"));
    assert_int_equal(td_checkpoint_require(ck, "scalar", 0, NULL, &t, &err), TD_OK);
    assert_failed(td_checkpoint_require(ck, "row", 2, (const uint64_t[]){3, 1}, &t, &err), TD_E_SHAPE, &err, dir,
                  ": tensor \"row\" has shape [1, 3], expected [3, 1]");
    assert_null(t);
    assert_failed(td_checkpoint_require(ck, "row", 1, (const uint64_t[]){3}, &t, &err), TD_E_SHAPE, &err, dir,
                  ": tensor \"row\" has shape [1, 3], expected [3]");
    assert_failed(td_checkpoint_require(ck, "rows", 1, (const uint64_t[]){3}, &t, &err), TD_E_MODEL, &err, dir,
                  ": no tensor \"rows\"");
    td_checkpoint_close(&ck);
}

static void float_tensors_become_floats(void **state) {
    const char *dir = *state;
    td_checkpoint *ck = small_checkpoint(dir);
    td_error err;
    float *v;
    assert_int_equal(td_checkpoint_vector(ck, "row", 3, &v, &err), TD_OK);
    assert_memory_equal(v, floats, 12);
    assert_int_equal((uintptr_t)v % 64, 0);
    td_free_aligned(v);
    assert_int_equal(td_checkpoint_vector(ck, "scalar", 1, &v, &err), TD_OK);
    assert_true(v[0] == 1);
    td_free_aligned(v);
    assert_int_equal(td_checkpoint_vector(ck, "half", 2, &v, &err), TD_OK);
    assert_true(v[0] == 1 && v[1] == -2);
    td_free_aligned(v);
    assert_int_equal(td_checkpoint_array(ck, "model.language_model.m", 2, (const uint64_t[]){2, 3}, &v, &err), TD_OK);
    assert_memory_equal(v, floats, 24);
    td_free_aligned(v);
    assert_int_equal(td_checkpoint_array(ck, "empty", 2, (const uint64_t[]){0, 5}, &v, &err), TD_OK);
    td_free_aligned(v);
    assert_failed(td_checkpoint_vector(ck, "model.language_model.m", 6, &v, &err), TD_E_SHAPE, &err, dir,
                  ": tensor \"model.language_model.m\" has shape [2, 3], expected [6]");
    assert_int_equal(td_checkpoint_vector(ck, "model.language_model.m", 3, &v, &err), TD_E_SHAPE);
    assert_failed(td_checkpoint_vector(ck, "row", 4, &v, &err), TD_E_SHAPE, &err, dir,
                  ": tensor \"row\" has shape [1, 3], expected [4]");
    assert_failed(td_checkpoint_vector(ck, "none", 4, &v, &err), TD_E_MODEL, &err, dir, ": no tensor \"none\"");
    assert_failed(td_checkpoint_vector(ck, "ints", 2, &v, &err), TD_E_SHAPE, &err, dir,
                  ": tensor \"ints\" is I32, expected a float type");
    assert_failed(td_checkpoint_vector(ck, "nan", 2, &v, &err), TD_E_NUMERIC, &err, dir,
                  ": tensor \"nan\": element 1 is not finite");
    assert_int_equal(err.position, 1);
    assert_null(v);
    td_checkpoint_close(&ck);
}

/* ---- memory ---- */

static td_status open_and_use(const char *dir, td_error *err) {
    td_checkpoint *ck;
    float *v = NULL;
    td_matrix m;
    td_status st = td_checkpoint_open(&ck, dir, NULL, err);
    if (st == TD_OK)
        st = td_checkpoint_alias(ck, "alias", "a", err);
    if (st == TD_OK)
        st = td_checkpoint_vector(ck, "alias", 2, &v, err);
    if (st == TD_OK)
        st = td_checkpoint_matrix(ck, "b", 0, 2, 2, &m, err);
    td_free_aligned(v);
    td_checkpoint_close(&ck);
    return st;
}

static void survives_every_failed_allocation(void **state) {
    const char *dir = *state;
    put_shards(dir);
    put_text(dir, "config.json", "{\"quantization\":{\"bits\":4,\"x\":{\"group_size\":64}},\"l\":[1,2.5,\"s\"]}");
    put_text(dir, "generation_config.json", "{\"temperature\":1}");
    count_jansson();
    for (int indexed = 1; indexed >= 0; indexed--) {
        if (indexed) {
            put_text(
                dir, INDEX,
                "{\"weight_map\":{\"c\":\"s2.safetensors\",\"\\u0061\":\"s1.safetensors\",\"b\":\"s1.safetensors\"}}");
        } else {
            assert_int_equal(unlink(in_dir(dir, INDEX)), 0);
            assert_int_equal(rename(in_dir(dir, "s1.safetensors"), in_dir(dir, "model-1.safetensors")), 0);
            assert_int_equal(rename(in_dir(dir, "s2.safetensors"), in_dir(dir, "model-2.safetensors")), 0);
        }
        unsigned k = 0;
        for (;; k++) {
            td_error err;
            long live = td_alloc_live();
            td_alloc_fail_at(k);
            td_status st = open_and_use(dir, &err);
            bool struck = td_alloc_failed();
            td_alloc_fail_at(-1);
            assert_int_equal(td_alloc_live(), live);
            if (!struck) {
                assert_int_equal(st, TD_OK);
                break;
            }
            if (st != TD_E_NOMEM)
                fail_msg("allocation %u: %s, expected TD_E_NOMEM", k, td_status_name(st));
        }
        assert_in_range(k, 40, 200);
    }
    json_set_alloc_funcs(malloc, free);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(opens_every_reference_checkpoint),
        cmocka_unit_test(a_file_restricts_its_directory_to_itself),
        cmocka_unit_test_setup_teardown(a_relative_file_is_looked_for_here, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(what_is_no_checkpoint_is_said, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(configs_are_checked, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(without_an_index_names_decide, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(an_index_names_exactly_the_files, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(tensors_outside_of_the_map_are_warned_about, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(every_wrong_index_is_named, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(links_stay_in_their_repository, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(aliases_find_and_are_named, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(shapes_are_required_whole, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(float_tensors_become_floats, temp_dir_setup, temp_dir_teardown),
        cmocka_unit_test_setup_teardown(survives_every_failed_allocation, temp_dir_setup, temp_dir_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
