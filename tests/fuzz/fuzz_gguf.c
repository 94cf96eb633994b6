/* fuzz_gguf.c - libFuzzer target of everything that reads a GGUF file: the container, the checkpoint that it becomes
 * (names, configs), its tokenizer and its chat template.
 *
 * What is accepted must also be true: every tensor's bytes lie in the file, behind each other, and can be read; every
 * key and name finds itself; and nothing stays allocated. Seeds: tests/fuzz/corpus/gguf. */
#include <stdlib.h>

#include "base/alloc.h"
#include "format/checkpoint.h"
#include "text/tokenizer_gguf.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_values(const td_gguf *g) {
    for (size_t i = 0; i < td_gguf_n_values(g); i++) {
        const td_gguf_value *v = td_gguf_value_at(g, i);
        const char *str;
        size_t size;
        int64_t x;
        double d;
        uint64_t n = 0, sum = 0;
        if (td_gguf_find(g, v->key) != v)
            abort();
        td_gguf_strings s = {.v = v};
        while (td_gguf_next_string(&s, &str, &size)) {
            sum += size ? (unsigned char)str[size - 1] : 0;
            n++;
        }
        if (v->type == TD_GGUF_STRING && n != v->n)
            abort();
        for (uint64_t k = 0; k < v->n && v->type != TD_GGUF_STRING; k++)
            sum += (uint64_t)td_gguf_integer_at(v, k, &x) + (uint64_t)td_gguf_real_at(v, k, &d);
        volatile uint64_t keep = sum;
        (void)keep;
    }
}

static void check_tensors(const td_gguf *g, const uint8_t *data, size_t size) {
    const uint8_t *end = data;
    unsigned sum = 0;
    for (size_t i = 0; i < td_gguf_n_tensors(g); i++) {
        const td_tensor *t = td_gguf_tensor_at(g, i);
        if (t->data < end || t->size > (size_t)(data + size - t->data) || td_gguf_tensor(g, t->name) != t)
            abort();
        for (size_t k = 0; k < t->size; k++)
            sum += t->data[k];
        end = t->data + t->size;
    }
    volatile unsigned keep = sum;
    (void)keep;
}

static void check_status(td_status st, const void *handle, const td_error *err) {
    const td_status legal[] = {TD_E_FORMAT, TD_E_MODEL, TD_E_UNSUPPORTED, TD_E_LIMIT, TD_E_NOTFOUND};
    if (st == TD_OK)
        return;
    for (size_t i = 0; i < sizeof legal / sizeof legal[0]; i++)
        if (st == legal[i] && !handle && err->message[0])
            return;
    abort();
}

static void check_checkpoint(const uint8_t *data, size_t size) {
    td_checkpoint *ck;
    td_error err;
    td_status st = td_checkpoint_parse_gguf(&ck, data, size, "fuzz.gguf", &err);
    check_status(st, ck, &err);
    for (size_t i = 0; ck && i < td_checkpoint_n_tensors(ck); i++) {
        const td_tensor *t = td_checkpoint_tensor_at(ck, i);
        if (td_checkpoint_find(ck, t->name) != t || td_checkpoint_find(ck, td_checkpoint_known_name(ck, t)) != t)
            abort();
    }
    td_checkpoint_close(&ck);
}

static void check_texts(const td_gguf *g) {
    td_tokenizer *tok;
    td_chat_template *chat;
    td_error err;
    td_token_list out;
    check_status(td_tokenizer_from_gguf(&tok, g, &err), tok, &err);
    td_token_list_init(&out, 64);
    if (tok && td_tokenizer_encode(tok, "a 12\n<s>", 8, TD_ENCODE_PARSE_SPECIAL, &out, &err) == TD_OK)
        for (size_t i = 0; i < out.n; i++)
            if ((size_t)out.ids[i] >= td_tokenizer_n_vocab(tok))
                abort();
    td_token_list_free(&out);
    td_tokenizer_close(&tok);
    td_status st = td_chat_template_from_gguf(&chat, g, &err);
    if ((st == TD_OK) != (chat != NULL))
        abort();
    td_chat_template_close(&chat);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    td_gguf *g;
    td_error err;
    long live = td_alloc_live();
    check_status(td_gguf_parse(&g, data, size, "fuzz.gguf", &err), g, &err);
    if (g) {
        check_values(g);
        check_tensors(g, data, size);
        check_texts(g);
        check_checkpoint(data, size);
    }
    td_gguf_close(&g);
    if (td_alloc_live() != live)
        abort();
    return 0;
}
