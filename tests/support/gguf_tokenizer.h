/* gguf_tokenizer.h - a tokenizer.json, or made-up words where there is none, as the metadata of a GGUF file, by the
 * rules of llama.cpp's converter. Static functions; a failure ends the program. */
#ifndef TD_TESTS_GGUF_TOKENIZER_H
#define TD_TESTS_GGUF_TOKENIZER_H

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "base/alloc.h"
#include "base/file.h"
#include "format/gguf_write.h"

__attribute__((format(printf, 1, 2), noreturn)) static inline void convert_die(const char *fmt, ...) {
    va_list args;
    va_start(args, fmt);
    fprintf(stderr, "gguf_convert: ");
    vfprintf(stderr, fmt, args);
    fprintf(stderr, "\n");
    va_end(args);
    exit(1);
}

static inline void *convert_array(size_t n, size_t size) {
    void *p = td_calloc(n, size);
    if (!p)
        convert_die("out of memory");
    return p;
}

/* Words for a checkpoint that has none: <0xXX> for the bytes of Gemma, one character a token for Qwen's alphabet. */
static inline void convert_synthetic_words(td_gguf_writer *w, uint32_t n, bool qwen) {
    int32_t *types = convert_array(n, sizeof *types);
    td_gguf_begin_strings(w, "tokenizer.ggml.tokens", n);
    for (uint32_t i = 0; i < n; i++) {
        static const char *const first[] = {"<pad>", "<eos>", "<bos>", "<unk>"};
        char word[32];
        types[i] = i < 4 ? (i == 3 ? 2 : 3) : 1;
        if (i < 4)
            snprintf(word, sizeof word, "%s", first[i]);
        else if (i < 260 && !qwen) {
            snprintf(word, sizeof word, "<0x%02X>", i - 4);
            types[i] = 6;
        } else if (i == (qwen ? 6 : 262)) { /* what the one merge makes */
            snprintf(word, sizeof word, "w%uw%u", i - 2, i - 1);
        } else {
            snprintf(word, sizeof word, "w%u", i);
        }
        td_gguf_add_string(w, word, strlen(word));
    }
    td_gguf_put_array(w, "tokenizer.ggml.token_type", TD_GGUF_I32, types, n);
    td_free(types);
    td_gguf_begin_strings(w, "tokenizer.ggml.merges", 1);
    td_gguf_add_string(w, qwen ? "w4 w5" : "w260 w261", qwen ? 5 : 9);
    td_gguf_put_u32(w, "tokenizer.ggml.bos_token_id", 2);
    td_gguf_put_u32(w, "tokenizer.ggml.eos_token_id", 1);
    td_gguf_put_u32(w, "tokenizer.ggml.unknown_token_id", 3);
    td_gguf_put_u32(w, "tokenizer.ggml.padding_token_id", 0);
    td_gguf_put_bool(w, "tokenizer.ggml.add_bos_token", false);
}

static inline json_t *convert_read_json(const char *dir, const char *file) {
    char path[1024];
    json_error_t e;
    snprintf(path, sizeof path, "%s/%s", dir, file);
    return json_load_file(path, 0, &e);
}

typedef struct convert_word {
    const char *text;
    size_t size;
    int32_t type;
} convert_word;

static inline bool convert_is_visible(const char *s) {
    static const char *const list[] = {"<|channel>",       "<channel|>",       "<|tool_call>", "<tool_call|>",
                                       "<|tool_response>", "<tool_response|>", "<|\"|>"};
    for (size_t i = 0; i < sizeof list / sizeof list[0]; i++)
        if (strcmp(s, list[i]) == 0)
            return true;
    return false;
}

static inline void convert_special_ids(td_gguf_writer *w, const json_t *vocab, const json_t *config) {
    static const struct {
        const char *name, *key;
    } ids[] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
               {"eos_token", "tokenizer.ggml.eos_token_id"},
               {"pad_token", "tokenizer.ggml.padding_token_id"},
               {"unk_token", "tokenizer.ggml.unknown_token_id"}};
    for (size_t i = 0; i < sizeof ids / sizeof ids[0]; i++) {
        const json_t *v = json_object_get(config, ids[i].name);
        v = json_is_object(v) ? json_object_get(v, "content") : v;
        const json_t *id = json_is_string(v) ? json_object_get(vocab, json_string_value(v)) : NULL;
        if (json_is_integer(id))
            td_gguf_put_u32(w, ids[i].key, (uint32_t)json_integer_value(id));
    }
    td_gguf_put_bool(w, "tokenizer.ggml.add_bos_token", json_is_true(json_object_get(config, "add_bos_token")));
}

static inline void convert_merges(td_gguf_writer *w, const json_t *merges) {
    td_gguf_begin_strings(w, "tokenizer.ggml.merges", json_array_size(merges));
    for (size_t i = 0; i < json_array_size(merges); i++) {
        const json_t *m = json_array_get(merges, i);
        char text[2048];
        if (json_is_string(m))
            snprintf(text, sizeof text, "%s", json_string_value(m));
        else
            snprintf(text, sizeof text, "%s %s", json_string_value(json_array_get(m, 0)),
                     json_string_value(json_array_get(m, 1)));
        td_gguf_add_string(w, text, strlen(text));
    }
}

static inline void convert_words(td_gguf_writer *w, bool qwen, json_t *tokenizer, uint32_t n_rows) {
    json_t *vocab = json_object_get(json_object_get(tokenizer, "model"), "vocab");
    const json_t *added = json_object_get(tokenizer, "added_tokens");
    convert_word *words = convert_array(n_rows, sizeof *words);
    const char *text;
    json_t *id;
    json_object_foreach(vocab, text, id) {
        uint32_t i = (uint32_t)json_integer_value(id);
        unsigned byte;
        char end;
        if (i < n_rows)
            words[i] = (convert_word){text, strlen(text), sscanf(text, "<0x%2X%c", &byte, &end) == 2 ? 6 : 1};
    }
    for (size_t k = 0; k < json_array_size(added); k++) {
        const json_t *a = json_array_get(added, k);
        uint32_t i = (uint32_t)json_integer_value(json_object_get(a, "id"));
        const char *content = json_string_value(json_object_get(a, "content"));
        bool special = json_is_true(json_object_get(a, "special")) && !(!qwen && convert_is_visible(content));
        if (i < n_rows)
            words[i] = (convert_word){content, strlen(content), special ? 3 : 4};
        json_object_set(vocab, content, json_object_get(a, "id"));
    }
    int32_t *types = convert_array(n_rows, sizeof *types);
    td_gguf_begin_strings(w, "tokenizer.ggml.tokens", n_rows);
    for (uint32_t i = 0; i < n_rows; i++) {
        char pad[32];
        snprintf(pad, sizeof pad, "[PAD%u]", i);
        types[i] = words[i].text ? words[i].type : 5;
        td_gguf_add_string(w, words[i].text ? words[i].text : pad, words[i].text ? words[i].size : strlen(pad));
    }
    td_gguf_put_array(w, "tokenizer.ggml.token_type", TD_GGUF_I32, types, n_rows);
    td_free(types);
    td_free(words);
}

/* qwen: byte-level words of Qwen 3.5, otherwise Gemma 4's. n_rows: of the embeddings; rows without a word are unused.
 */
static inline void convert_tokenizer(td_gguf_writer *w, bool qwen, const char *dir, uint32_t n_rows) {
    json_t *tokenizer = convert_read_json(dir, "tokenizer.json"),
           *config = convert_read_json(dir, "tokenizer_config.json");
    const char *model = qwen ? "gpt2" : "gemma4";
    td_gguf_put_string(w, "tokenizer.ggml.model", model, strlen(model));
    if (qwen)
        td_gguf_put_string(w, "tokenizer.ggml.pre", "qwen35", 6);
    if (!tokenizer) {
        convert_synthetic_words(w, n_rows, qwen);
    } else {
        convert_words(w, qwen, tokenizer, n_rows);
        convert_merges(w, json_object_get(json_object_get(tokenizer, "model"), "merges"));
        convert_special_ids(w, json_object_get(json_object_get(tokenizer, "model"), "vocab"), config);
    }
    char path[1024], *text;
    size_t size;
    td_error err;
    snprintf(path, sizeof path, "%s/chat_template.jinja", dir);
    if (td_file_exists(path) && td_file_read(path, 1 << 20, &text, &size, &err) == TD_OK) {
        td_gguf_put_string(w, "tokenizer.chat_template", text, size);
        td_free(text);
    }
    json_decref(tokenizer);
    json_decref(config);
}

#endif
