/* test_tokenizer_util.h - what the tokenizer's tests share: files of expectations as JSON trees, and short calls. */
#ifndef TD_TEST_TOKENIZER_UTIL_H
#define TD_TEST_TOKENIZER_UTIL_H

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "text/detok.h"
#include "text/tokenizer.h"

#define TD_TOKENIZERS TD_FIXTURES "/tokenizers/"

/* A JSON file of the fixtures; json_decref it. */
static inline json_t *load_json(const char *path) {
    json_error_t e;
    json_t *root = json_load_file(path, JSON_ALLOW_NUL, &e);
    if (!root)
        fail_msg("%s: line %d: %s", path, e.line, e.text);
    return root;
}

/* A tokenizer from text; fails the test when it does not load. */
static inline td_tokenizer *parse_tokenizer(const char *json, const char *config) {
    td_tokenizer *tok;
    td_error err;
    if (td_tokenizer_parse(&tok, json, strlen(json), config, config ? strlen(config) : 0, "t.json", &err) != TD_OK)
        fail_msg("%s\nin %.300s", err.message, json);
    return tok;
}

static inline td_tokenizer *load_fixture(const char *name) {
    char path[512], config[512];
    td_tokenizer *tok;
    td_error err;
    snprintf(path, sizeof path, TD_TOKENIZERS "%s/tokenizer.json", name);
    snprintf(config, sizeof config, TD_TOKENIZERS "%s/tokenizer_config.json", name);
    if (td_tokenizer_load(&tok, path, config, &err) != TD_OK)
        fail_msg("%s", err.message);
    return tok;
}

/* Prints a text with what is not printable ASCII escaped. */
static inline void print_text(const char *label, const char *s, size_t size) {
    print_message("  %s \"", label);
    for (size_t i = 0; i < size; i++)
        if (s[i] >= 0x20 && s[i] < 0x7F)
            print_message("%c", s[i]);
        else
            print_message("\\x%02X", (unsigned char)s[i]);
    print_message("\"\n");
}

#endif
