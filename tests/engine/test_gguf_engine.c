/* test_gguf_engine.c - a GGUF file through the public interface: its tokenizer and its chat template are those of the
 * directory it was made from, and it drafts with an assistant, changing nothing. */
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

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_gguf_file_is_a_model)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
