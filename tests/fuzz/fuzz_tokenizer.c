/* fuzz_tokenizer.c - libFuzzer target of tokenizer.json, of encoding and of streams.
 *
 * The input is a tokenizer.json, a NUL byte, and a text; without a NUL the input is both. Whatever loads must encode
 * the text to tokens that it has, must give no special token to a stranger, and must decode them in a stream to the
 * same text as at once, which is UTF-8. Seeds: fuzz_tokenizer.seeds. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "text/detok.h"
#include "text/tokenizer.h"
#include "text/tokenizer_unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define TEXT_CEILING ((size_t)1 << 22)

static void check_tokens(const td_tokenizer *tok, const td_token_list *ids, bool stranger) {
    for (size_t i = 0; i < ids->n; i++) {
        size_t size;
        if (!td_tokenizer_piece(tok, ids->ids[i], &size))
            abort();
        if (stranger && td_tokenizer_is_special(tok, ids->ids[i]) && ids->ids[i] != td_tokenizer_unk(tok))
            abort();
    }
}

/* The stream, a token at a time, beside the whole. */
static void check_text(const td_tokenizer *tok, const td_token_list *ids) {
    td_buf whole, sum, piece;
    td_detok d;
    td_buf_init(&whole, TEXT_CEILING);
    td_buf_init(&sum, TEXT_CEILING);
    td_buf_init(&piece, TEXT_CEILING);
    if (td_detok_init(&d, tok, 0, NULL) != TD_OK)
        abort();
    td_status st = td_tokenizer_decode(tok, ids->ids, ids->n, 0, &whole, NULL);
    for (size_t i = 0; st == TD_OK && i <= ids->n; i++) {
        td_buf_clear(&piece);
        st = i < ids->n ? td_detok_push(&d, ids->ids[i], &piece, NULL) : td_detok_flush(&d, &piece, NULL);
        if (st == TD_OK && td_uni_valid(td_buf_str(&piece), piece.size) != piece.size)
            abort();
        if (st == TD_OK)
            st = td_buf_append(&sum, piece.data, piece.size);
    }
    if (st == TD_OK && (sum.size != whole.size || memcmp(td_buf_str(&sum), td_buf_str(&whole), sum.size) != 0))
        abort();
    td_detok_free(&d);
    td_buf_free(&whole);
    td_buf_free(&sum);
    td_buf_free(&piece);
}

static void check_flags(const td_tokenizer *tok, const char *text, size_t size, unsigned flags) {
    td_token_list ids;
    td_error err;
    td_token_list_init(&ids, 1 << 20);
    td_status st = td_tokenizer_encode(tok, text, size, flags, &ids, &err);
    if (st != TD_OK && st != TD_E_FORMAT && st != TD_E_LIMIT)
        abort();
    if (st == TD_OK) {
        check_tokens(tok, &ids, flags == 0);
        check_text(tok, &ids);
    }
    td_token_list_free(&ids);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    long live = td_alloc_live();
    td_tokenizer *tok;
    td_error err;
    const uint8_t *nul = memchr(data, 0, size);
    size_t json_size = nul ? (size_t)(nul - data) : size;
    const char *text = nul ? (const char *)nul + 1 : (const char *)data;
    td_status st = td_tokenizer_parse(&tok, (const char *)data, json_size, NULL, 0, "fuzz", &err);
    if (st == TD_E_NOMEM || (st == TD_OK) != (tok != NULL))
        abort();
    if (tok) {
        size_t text_size = nul ? size - json_size - 1 : size;
        check_flags(tok, text, text_size, 0);
        check_flags(tok, text, text_size, TD_ENCODE_ADD_SPECIAL | TD_ENCODE_PARSE_SPECIAL);
    }
    td_tokenizer_close(&tok);
    if (td_alloc_live() != live)
        abort();
    return 0;
}
