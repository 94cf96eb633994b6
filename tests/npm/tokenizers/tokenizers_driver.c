/* tokenizers_driver.c - the tokenizer as a filter, for differential tests: a JSON object a line in, one a line out.
 *
 *   tokenizers_driver tokenizer.json [tokenizer_config.json]
 *   {"text": "...", "add_special": true, "parse_special": true}  ->  {"ids": [1, 2, 3]}
 *   {"ids": [1, 2, 3], "skip_special": false}                    ->  {"text": "..."}
 *   a failure                                                    ->  {"error": "..."} */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "text/detok.h"
#include "text/tokenizer.h"

static json_t *failure(const td_error *err) {
    return json_pack("{s:s}", "error", err->message);
}

static json_t *encode(const td_tokenizer *tok, const json_t *in) {
    const json_t *text = json_object_get(in, "text");
    unsigned flags = (json_is_true(json_object_get(in, "add_special")) ? TD_ENCODE_ADD_SPECIAL : 0u) |
                     (json_is_true(json_object_get(in, "parse_special")) ? TD_ENCODE_PARSE_SPECIAL : 0u);
    td_token_list list;
    td_error err;
    td_token_list_init(&list, (size_t)1 << 24);
    json_t *out = json_object(), *ids = json_array();
    json_object_set_new(out, "ids", ids);
    if (td_tokenizer_encode(tok, json_string_value(text), json_string_length(text), flags, &list, &err) != TD_OK) {
        json_decref(out);
        out = failure(&err);
    }
    for (size_t i = 0; i < list.n; i++)
        json_array_append_new(ids, json_integer(list.ids[i]));
    td_token_list_free(&list);
    return out;
}

static json_t *decode(const td_tokenizer *tok, const json_t *in) {
    const json_t *ids = json_object_get(in, "ids");
    unsigned flags = json_is_true(json_object_get(in, "skip_special")) ? TD_DETOK_SKIP_SPECIAL : 0;
    size_t n = json_array_size(ids);
    td_token *list = td_malloc(n * sizeof *list);
    td_buf text;
    td_error err;
    td_buf_init(&text, (size_t)1 << 30);
    for (size_t i = 0; list && i < n; i++)
        list[i] = (td_token)json_integer_value(json_array_get(ids, i));
    json_t *out = list && td_tokenizer_decode(tok, list, n, flags, &text, &err) == TD_OK
                      ? json_pack("{s:s%}", "text", td_buf_str(&text), text.size)
                      : failure(&err);
    td_free(list);
    td_buf_free(&text);
    return out;
}

/* The next line, without its end; NULL at the end of the input. */
static char *next_line(char **line, size_t *capacity) {
    ssize_t n = getline(line, capacity, stdin);
    if (n < 0)
        return NULL;
    if (n > 0 && (*line)[n - 1] == '\n')
        (*line)[n - 1] = '\0';
    return *line;
}

int main(int argc, char **argv) {
    td_tokenizer *tok;
    td_error err;
    if (argc < 2 || td_tokenizer_load(&tok, argv[1], argc > 2 ? argv[2] : NULL, &err) != TD_OK) {
        fprintf(stderr, "%s\n",
                argc < 2 ? "usage: tokenizers_driver tokenizer.json [tokenizer_config.json]" : err.message);
        return 1;
    }
    char *line = NULL;
    size_t capacity = 0;
    while (next_line(&line, &capacity)) {
        json_t *in = json_loads(line, JSON_ALLOW_NUL, NULL);
        json_t *out = json_object_get(in, "text") ? encode(tok, in) : decode(tok, in);
        char *text = json_dumps(out, JSON_COMPACT);
        puts(text ? text : "{\"error\": \"no output\"}");
        free(text);
        json_decref(in);
        json_decref(out);
    }
    free(line);
    td_tokenizer_close(&tok);
    return 0;
}
