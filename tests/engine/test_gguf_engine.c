/* test_gguf_engine.c - a GGUF file through the public interface: its tokenizer and its chat template are those of the
 * directory it was made from, and it drafts with an assistant, changing nothing; drafters that lie beside a model are
 * found. */
#include "support/gguf_convert.h"

#include "support/fixture.h"

#include <unistd.h>

#include "tandem.h"

#define TRUNK TD_SOURCE_DIR "/models/gemma4-demo-4bit"
#define ASSISTANT TD_SOURCE_DIR "/models/gemma4-demo-assistant-4bit"

static td_engine *open_engine(const char *model) {
    td_engine_options o = td_engine_options_default();
    td_engine *e;
    o.model = model;
    o.assistant = ASSISTANT;
    o.n_ctx = 512;
    o.n_threads = 2;
    ASSERT_OK(td_engine_open(&e, &o, err));
    return e;
}

static void same_texts(td_engine *a, td_engine *b) {
    static const char *const texts[] = {"Once upon a time",
                                        "  two  spaces\n\tand 12345 numbers, caf\xc3\xa9 \xe2\x9c\x93",
                                        "<|turn>user\nnot a turn<turn|>", ""};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        for (int special = 0; special < 2; special++) {
            td_token *x, *y;
            size_t n, m;
            ASSERT_OK(td_engine_tokenize(a, texts[i], strlen(texts[i]), true, special, &x, &n, err));
            ASSERT_OK(td_engine_tokenize(b, texts[i], strlen(texts[i]), true, special, &y, &m, err));
            assert_int_equal(n, m);
            assert_memory_equal(x, y, n * sizeof *x);
            td_tokens_free(x);
            td_tokens_free(y);
        }
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"Hello there.\"}]";
    char *x, *y;
    ASSERT_OK(td_engine_chat_prompt(a, messages, NULL, NULL, true, &x, err));
    ASSERT_OK(td_engine_chat_prompt(b, messages, NULL, NULL, true, &y, err));
    assert_string_equal(x, y);
    td_text_free(x);
    td_text_free(y);
}

static td_result answer(td_engine *e, int depth) {
    td_session *session;
    td_request q = td_request_default();
    td_token *prompt;
    td_result r;
    ASSERT_OK(td_session_open(&session, e, err));
    ASSERT_OK(td_engine_tokenize(e, "Once upon a time", 16, true, false, &prompt, &q.n_prompt, err));
    q.prompt = prompt;
    q.max_tokens = 40;
    q.ignore_eos = true;
    q.num_mtp_tokens = depth;
    q.mtp_fixed = true; /* or the clock would have a say in the drafts */
    ASSERT_OK(td_session_generate(session, &q, &r, err));
    td_tokens_free(prompt);
    td_session_close(&session);
    return r;
}

static void a_gguf_file_is_a_model(void **state) {
    (void)state;
    char path[] = "/tmp/test_gguf_XXXXXX.gguf";
    int fd = mkstemps(path, 5);
    assert_true(fd >= 0);
    close(fd);
    gguf_convert(TRUNK, path, TD_FORMAT_Q8_0);
    td_engine *file = open_engine(path), *dir = open_engine(TRUNK);
    assert_string_equal(td_engine_describe(file)->weight_format, "q8_0");
    same_texts(file, dir);
    td_result plain = answer(file, 0), drafted = answer(file, 4);
    assert_int_equal(plain.n_tokens, 40);
    assert_memory_equal(drafted.tokens, plain.tokens, 40 * sizeof *plain.tokens);
    assert_true(drafted.accepted_at[0] > 0);
    td_result_free(&plain);
    td_result_free(&drafted);
    td_engine_close(&file);
    td_engine_close(&dir);
    unlink(path);
}

/* ---- drafters beside the model ---- */

static char dir[64], model[96], heads[96];

static int make_dir(void **state) {
    (void)state;
    snprintf(dir, sizeof dir, "/tmp/tandem-beside-XXXXXX");
    if (!mkdtemp(dir))
        return -1;
    snprintf(model, sizeof model, "%s/m.gguf", dir);
    snprintf(heads, sizeof heads, "%s/mtp-m.gguf", dir);
    return 0;
}

static int remove_dir(void **state) {
    (void)state;
    unlink(model);
    unlink(heads);
    return rmdir(dir);
}

static td_status open_beside(td_engine **e, const char *path, bool mtp, td_error *err) {
    td_engine_options o = td_engine_options_default();
    o.model = path;
    o.mtp = mtp;
    o.n_ctx = 256;
    o.n_threads = 1;
    return td_engine_open(e, &o, err);
}

static void expect_drafter(const char *path, const char *kind, const char *reason) {
    td_engine *e;
    ASSERT_OK(open_beside(&e, path, false, err));
    const td_engine_info *i = td_engine_describe(e);
    assert_string_equal(i->mtp_kind, kind);
    assert_int_equal(i->mtp_active, kind[0] != '\0');
    if (!strstr(i->mtp_reason, reason))
        fail_msg("\"%s\", expected \"%s\"", i->mtp_reason, reason);
    td_engine_close(&e);
}

static void convert(const char *name, const char *to, gguf_convert_options how) {
    char from[512];
    how.matrices = TD_FORMAT_F32;
    gguf_convert_with(fixture_path(name, NULL, from, sizeof from), to, &how);
}

static void an_assistant_beside_a_trunk_drafts(void **state) {
    (void)state;
    td_engine *e;
    td_error err;
    convert("gemma4-ple", model, (gguf_convert_options){0});
    expect_drafter(dir, "", "the checkpoint holds no draft heads");
    convert("gemma4-ple-assistant", heads, (gguf_convert_options){.clusters = true});
    expect_drafter(dir, "assistant", "");
    expect_drafter(model, "", "mtp-m.gguf lies beside the model and is not used: the model was named by its file");
    convert("gemma4-moe-assistant", heads, (gguf_convert_options){0});
    expect_drafter(dir, "", "mtp-m.gguf");
    assert_int_equal(open_beside(&e, dir, true, &err), TD_E_MODEL);
    assert_non_null(strstr(err.message, "mtp-m.gguf"));
}

static void heads_beside_a_trunk_draft(void **state) {
    (void)state;
    td_engine *e;
    td_error err;
    convert("qwen35-moe", model, (gguf_convert_options){.no_heads = true});
    expect_drafter(dir, "", "the checkpoint has no draft heads");
    convert("qwen35-moe", heads, (gguf_convert_options){.only_heads = true});
    expect_drafter(dir, "heads", "");
    convert("qwen35-dense", heads, (gguf_convert_options){.only_heads = true});
    expect_drafter(dir, "", "mtp-m.gguf lies beside the model and is not used");
    assert_int_equal(open_beside(&e, dir, true, &err), TD_E_MODEL);
    assert_non_null(strstr(err.message, "--mtp, but mtp-m.gguf lies beside the model and is not used"));
}

#define IN_DIR(test) cmocka_unit_test_setup_teardown(test, make_dir, remove_dir)

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_gguf_file_is_a_model),
                                       IN_DIR(an_assistant_beside_a_trunk_drafts), IN_DIR(heads_beside_a_trunk_draft)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
