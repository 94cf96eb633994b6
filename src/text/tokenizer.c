/* tokenizer.c - the encoder's course through its components, and look-ups. Loading is in tokenizer_load.c.
 *
 * A text is cut at added tokens; each part between them is normalised, cut at the added tokens that are found only
 * then, split into words, and each word merged. Every step works on one part, so that an ordinary long text passes
 * through a handful of buffers once, and these are made anew for each call: a tokenizer has no mutable state. */
#include "text/tokenizer.h"

#include <string.h>

#include "base/alloc.h"
#include "text/tokenizer_impl.h"
#include "text/tokenizer_unicode.h"

#define MAX_TEXT ((size_t)1 << 30)
/* A rewritten text may be this many times as long, and this much longer: NFKD makes 11 bytes of one at most. */
#define MAX_GROWTH 32
#define MIN_CEILING (1u << 16)

/* ---- lists ---- */

void td_token_list_init(td_token_list *list, size_t ceiling) {
    *list = (td_token_list){.ceiling = ceiling};
}

void td_token_list_free(td_token_list *list) {
    td_free(list->ids);
    *list = (td_token_list){.ceiling = list->ceiling};
}

td_status td_token_list_push(td_token_list *list, td_token token, td_error *err) {
    if (list->n >= list->ceiling)
        return td_fail(err, TD_E_LIMIT, "more than %zu tokens", list->ceiling);
    if (list->n == list->capacity) {
        size_t capacity = list->capacity ? list->capacity * 2 : 64;
        td_token *ids = td_realloc(list->ids, capacity, sizeof *ids);
        if (!ids)
            return td_fail(err, TD_E_NOMEM, "out of memory for %zu tokens", capacity);
        list->ids = ids;
        list->capacity = capacity;
    }
    list->ids[list->n++] = token;
    return TD_OK;
}

td_token *td_token_list_steal(td_token_list *list) {
    td_token *ids = list->ids;
    *list = (td_token_list){.ceiling = list->ceiling};
    return ids;
}

/* ---- encoding ---- */

typedef struct encoder {
    const td_tokenizer *tok;
    bool special;
    td_buf normalized;
    td_words words, spare;
    td_normalizer_work normalizing;
    td_pattern_work patterns;
    td_bpe_work merging;
    td_token_list *out;
    td_error *err;
} encoder;

static void encoder_init(encoder *e, const td_tokenizer *tok, size_t size, bool special) {
    size_t ceiling = size * MAX_GROWTH + MIN_CEILING;
    *e = (encoder){.tok = tok, .special = special};
    td_buf_init(&e->normalized, ceiling);
    td_words_init(&e->words, ceiling);
    td_words_init(&e->spare, ceiling);
}

static void encoder_free(encoder *e) {
    td_buf_free(&e->normalized);
    td_words_free(&e->words);
    td_words_free(&e->spare);
    td_normalizer_work_free(&e->normalizing);
    td_pattern_work_free(&e->patterns);
    td_bpe_work_free(&e->merging);
}

/* Normalised text without added tokens. */
static td_status encode_words(encoder *e, const char *text, size_t size, bool first) {
    if (size == 0)
        return TD_OK;
    TD_TRY(td_pretokenizer_run(e->tok->pretokenizer, &e->patterns, text, size, first, &e->words, &e->spare, e->err));
    for (size_t i = 0; i < e->words.n; i++) {
        const td_word *w = &e->words.v[i];
        TD_TRY(td_bpe_encode(e->tok->bpe, &e->merging, e->words.text.data + w->offset, w->size, e->special, e->out,
                             e->err));
    }
    return TD_OK;
}

/* Text as the user wrote it, without added tokens that are found in such text. */
static td_status encode_part(encoder *e, const char *text, size_t size, bool first) {
    bool cut = false;
    if (size == 0)
        return TD_OK;
    if (e->tok->normalizer) {
        TD_TRY(td_normalizer_run(e->tok->normalizer, &e->normalizing, &e->patterns, text, size, &e->normalized, &cut,
                                 e->err));
        text = e->normalized.data;
        size = e->normalized.size;
    }
    first = first && !cut;
    td_added_walk w = td_added_walk_begin(&e->tok->added_normalized, text, size, e->special);
    size_t done = 0;
    while (td_added_walk_next(&w)) {
        TD_TRY(encode_words(e, text + done, w.start - done, first && done == 0));
        TD_TRY(td_token_list_push(e->out, w.id, e->err));
        done = w.end;
    }
    return encode_words(e, text + done, size - done, first && done == 0);
}

static td_status encode_text(encoder *e, const char *text, size_t size) {
    td_added_walk w = td_added_walk_begin(&e->tok->added, text, size, e->special);
    size_t done = 0;
    while (td_added_walk_next(&w)) {
        TD_TRY(encode_part(e, text + done, w.start - done, done == 0));
        TD_TRY(td_token_list_push(e->out, w.id, e->err));
        done = w.end;
    }
    return encode_part(e, text + done, size - done, done == 0);
}

/* Puts the template's tokens before what has been appended since `from`, unless they are there already, and behind. */
static td_status add_around(encoder *e, size_t from) {
    const td_post *post = &e->tok->post;
    td_token_list *out = e->out;
    size_t n = post->before.n, n_text = out->n - from;
    bool there = n_text >= n && (n == 0 || memcmp(out->ids + from, post->before.ids, n * sizeof *out->ids) == 0);
    for (size_t i = 0; !there && i < n; i++)
        TD_TRY(td_token_list_push(out, post->before.ids[i], e->err));
    if (!there) {
        memmove(out->ids + from + n, out->ids + from, n_text * sizeof *out->ids);
        memcpy(out->ids + from, post->before.ids, n * sizeof *out->ids);
    }
    for (size_t i = 0; i < post->after.n; i++)
        TD_TRY(td_token_list_push(out, post->after.ids[i], e->err));
    return TD_OK;
}

td_status td_tokenizer_encode(const td_tokenizer *tok, const char *text, size_t size, unsigned flags,
                              td_token_list *out, td_error *err) {
    if (size > MAX_TEXT)
        return td_fail(err, TD_E_LIMIT, "a text of %zu bytes, expected at most %zu", size, MAX_TEXT);
    size_t bad = td_uni_valid(text, size);
    if (bad < size)
        return td_fail_at(err, TD_E_FORMAT, (int64_t)bad, "the text is not UTF-8: byte 0x%02X at position %zu",
                          (unsigned char)text[bad], bad);
    size_t from = out->n;
    encoder e;
    encoder_init(&e, tok, size, flags & TD_ENCODE_PARSE_SPECIAL);
    e.out = out;
    e.err = err;
    td_status st = encode_text(&e, text, size);
    if (st == TD_OK && (flags & TD_ENCODE_ADD_SPECIAL))
        st = add_around(&e, from);
    encoder_free(&e);
    if (st != TD_OK)
        out->n = from;
    return st;
}

/* ---- look-ups ---- */

void td_tokenizer_close(td_tokenizer **tok) {
    if (!tok || !*tok)
        return;
    td_tokenizer *t = *tok;
    td_vocab_free(&t->vocab);
    td_added_set_free(&t->added);
    td_added_set_free(&t->added_normalized);
    td_normalizer_free(&t->normalizer);
    td_pretokenizer_free(&t->pretokenizer);
    td_bpe_free(&t->bpe);
    td_post_free(&t->post);
    td_detok_spec_free(&t->decoder);
    td_free(t);
    *tok = NULL;
}

size_t td_tokenizer_n_vocab(const td_tokenizer *tok) {
    return tok->vocab.n;
}

const char *td_tokenizer_piece(const td_tokenizer *tok, td_token id, size_t *size) {
    *size = 0;
    return td_vocab_has(&tok->vocab, id) ? td_vocab_name(&tok->vocab, id, size) : NULL;
}

td_token td_tokenizer_find(const td_tokenizer *tok, const char *piece, size_t size) {
    return td_vocab_find(&tok->vocab, piece, size);
}

bool td_tokenizer_is_special(const td_tokenizer *tok, td_token id) {
    return td_vocab_has(&tok->vocab, id) && (tok->vocab.flags[id] & TD_PIECE_SPECIAL);
}

bool td_tokenizer_is_added(const td_tokenizer *tok, td_token id) {
    return td_vocab_has(&tok->vocab, id) && (tok->vocab.flags[id] & TD_PIECE_ADDED);
}

td_token td_tokenizer_bos(const td_tokenizer *tok) {
    return tok->bos;
}

td_token td_tokenizer_eos(const td_tokenizer *tok) {
    return tok->eos;
}

td_token td_tokenizer_pad(const td_tokenizer *tok) {
    return tok->pad;
}

td_token td_tokenizer_unk(const td_tokenizer *tok) {
    return tok->unk;
}

bool td_tokenizer_same_vocab(const td_tokenizer *a, const td_tokenizer *b, td_token *first) {
    size_t n = a->vocab.n > b->vocab.n ? a->vocab.n : b->vocab.n;
    for (size_t i = 0; i < n; i++) {
        size_t na, nb;
        const char *pa = td_tokenizer_piece(a, (td_token)i, &na), *pb = td_tokenizer_piece(b, (td_token)i, &nb);
        if (!pa == !pb && na == nb && (!pa || memcmp(pa, pb, na) == 0))
            continue;
        if (first)
            *first = (td_token)i;
        return false;
    }
    return true;
}
