/* token_trie.c - texts of tokens, sorted into tries.
 *
 * A trie is a flat array in walking order, so that a walk goes forward through memory and a dead branch is one jump.
 * It is read off the sorted texts: a text's common beginning with the one before it is there already. */
#include "text/token_trie.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "text/detok.h"
#include "text/detok_chain.h"
#include "text/tokenizer_impl.h"
#include "text/tokenizer_unicode.h"

#define TEXT_CEILING ((size_t)1 << 32)

static const uint32_t slice_chars[TD_TRIE_SLICES] = {0, 4, 8, 16, 32, UINT32_MAX};

/* ---- the bytes of a token ---- */

static bool has_link(const td_tokenizer *tok, td_link_kind kind) {
    for (size_t i = 0; i < tok->decoder->n; i++)
        if (tok->decoder->links[i].kind == kind)
            return true;
    return false;
}

static int hex_digit(char c) {
    const char *digits = "0123456789ABCDEF", *at = c ? strchr(digits, c >= 'a' && c <= 'f' ? c - 'a' + 'A' : c) : NULL;
    return at ? (int)(at - digits) : -1;
}

/* The byte of a name like <0x0A>; -1 when it is none. */
static int fallback_byte(const char *name, size_t size) {
    if (size != 6 || memcmp(name, "<0x", 3) != 0 || name[5] != '>')
        return -1;
    int high = hex_digit(name[3]), low = hex_digit(name[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* A name in the alphabet of bytes, spelt back; *all is false, and nothing appended, when it is not in it. */
static td_status append_mapped(td_buf *out, const char *name, size_t size, bool *all) {
    uint32_t cp;
    *all = true;
    for (size_t i = 0; i < size && *all; i += td_uni_next(name + i, &cp)) {
        td_uni_next(name + i, &cp);
        *all = td_uni_char_byte(cp) >= 0;
    }
    for (size_t i = 0; i < size && *all;) {
        i += td_uni_next(name + i, &cp);
        TD_TRY(td_buf_putc(out, (char)td_uni_char_byte(cp)));
    }
    return TD_OK;
}

static td_status append_decoded(td_detok *d, td_token id, td_buf *out, td_error *err) {
    TD_TRY(td_detok_push(d, id, out, err));
    return td_detok_flush(d, out, err);
}

static td_status append_bytes(td_detok *d, td_token id, td_buf *out, td_error *err) {
    const td_tokenizer *tok = d->tok;
    size_t size;
    const char *name = td_tokenizer_piece(tok, id, &size);
    if (!name)
        return TD_OK;
    int byte = has_link(tok, TD_LINK_BYTE_FALLBACK) ? fallback_byte(name, size) : -1;
    if (byte >= 0)
        return td_buf_putc(out, (char)byte);
    if (has_link(tok, TD_LINK_BYTE_LEVEL) && !td_tokenizer_is_added(tok, id)) {
        bool all;
        TD_TRY(append_mapped(out, name, size, &all));
        if (all)
            return TD_OK;
    }
    return append_decoded(d, id, out, err);
}

td_status td_token_bytes(const td_tokenizer *tokenizer, td_token id, td_buf *out, td_error *err) {
    td_detok d;
    TD_TRY(td_detok_init(&d, tokenizer, TD_DETOK_CONTINUE, err));
    td_status st = append_bytes(&d, id, out, err);
    td_detok_free(&d);
    return st;
}

/* ---- texts of the whole vocabulary ---- */

static td_status oom(td_error *err) {
    return td_fail(err, TD_E_NOMEM, "out of memory for the texts of a vocabulary");
}

static bool has_text(const td_token_trie *t, td_token id) {
    return !td_tokenizer_is_special(t->tokenizer, id) && !td_token_trie_is_end(t, id);
}

static td_status read_text(const td_token_trie *t, td_detok *d, td_token id, td_buf *one, td_error *err) {
    td_buf_clear(one);
    if (!has_text(t, id))
        return TD_OK;
    td_status st = append_bytes(d, id, one, err);
    if (st == TD_E_LIMIT) { /* longer than any token that counts; the stream begins anew */
        td_detok_free(d);
        td_buf_clear(one);
        st = td_detok_init(d, t->tokenizer, TD_DETOK_CONTINUE, err);
    }
    return st;
}

static td_status append_texts(td_token_trie *t, td_detok *d, td_buf *all, td_error *err) {
    size_t n = td_tokenizer_n_vocab(t->tokenizer);
    td_status st = TD_OK;
    td_buf one;
    td_buf_init(&one, TD_TRIE_MAX_TOKEN);
    for (size_t id = 0; id < t->n_vocab && st == TD_OK; id++) {
        if (id < n)
            st = read_text(t, d, (td_token)id, &one, err);
        if (st == TD_OK && id < n && one.size > 0)
            st = td_buf_append(all, one.data, one.size);
        t->text_offsets[id + 1] = (uint32_t)all->size;
    }
    td_buf_free(&one);
    if (st == TD_E_LIMIT)
        return td_fail(err, st, "the tokens of a vocabulary have more than %zu bytes of text", all->ceiling);
    return st == TD_E_NOMEM ? oom(err) : st;
}

static td_status read_texts(td_token_trie *t, td_error *err) {
    td_detok d;
    td_buf all;
    t->text_offsets = td_calloc(t->n_vocab + 1, sizeof *t->text_offsets);
    if (!t->text_offsets)
        return oom(err);
    td_buf_init(&all, TEXT_CEILING - 1);
    td_status st = td_detok_init(&d, t->tokenizer, TD_DETOK_CONTINUE, err);
    if (st == TD_OK)
        st = append_texts(t, &d, &all, err);
    td_detok_free(&d);
    t->text = st == TD_OK ? td_buf_steal(&all) : NULL;
    td_buf_free(&all);
    return st == TD_OK && !t->text ? oom(err) : st;
}

/* ---- slices ---- */

static int slice_of(const char *text, size_t size) {
    uint32_t chars = 0;
    if (td_uni_valid(text, size) != size)
        return 0;
    for (size_t i = 0; i < size; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == 0x7F || c == '"' || c == '\\' || c == '<')
            return 0;
        chars += (c & 0xC0) != 0x80;
    }
    int slice = 1;
    while (chars > slice_chars[slice])
        slice++;
    return slice;
}

static int by_text(const void *pa, const void *pb, void *user) {
    const td_token_trie *t = user;
    size_t na, nb;
    const char *a = td_token_trie_text(t, *(const td_token *)pa, &na);
    const char *b = td_token_trie_text(t, *(const td_token *)pb, &nb);
    int order = memcmp(a, b, na < nb ? na : nb);
    if (order != 0)
        return order;
    return na != nb ? (na > nb) - (na < nb) : (*(const td_token *)pa > *(const td_token *)pb) ? 1 : -1;
}

static size_t common(const char *a, size_t na, const char *b, size_t nb) {
    size_t n = 0;
    while (n < na && n < nb && a[n] == b[n])
        n++;
    return n;
}

static size_t count_nodes(const td_token_trie *t, const td_trie_slice *s) {
    const char *before = "";
    size_t n_before = 0, nodes = 0;
    for (size_t i = 0; i < s->n_ids; i++) {
        size_t n;
        const char *text = td_token_trie_text(t, s->ids[i], &n);
        nodes += n - common(before, n_before, text, n);
        before = text;
        n_before = n;
    }
    return nodes;
}

static void fill_nodes(const td_token_trie *t, td_trie_slice *s) {
    uint32_t n_nodes = 0;
    const char *before = "";
    size_t n_before = 0;
    for (size_t i = 0; i < s->n_ids; i++) {
        size_t n;
        const char *text = td_token_trie_text(t, s->ids[i], &n);
        for (size_t k = common(before, n_before, text, n); k < n; k++)
            s->nodes[n_nodes++] =
                (td_trie_node){.byte = (uint8_t)text[k], .depth = (uint16_t)(k + 1), .tokens_end = (uint32_t)i};
        s->nodes[n_nodes - 1].tokens_end = (uint32_t)i + 1;
        before = text;
        n_before = n;
    }
}

/* A subtree ends where the next node is no deeper. */
static void fill_skips(td_trie_slice *s, uint32_t *open) {
    uint32_t n_open = 0;
    for (uint32_t i = 0; i < s->n_nodes; i++) {
        while (n_open >= s->nodes[i].depth)
            s->nodes[open[--n_open]].skip = i;
        open[n_open++] = i;
    }
    while (n_open > 0)
        s->nodes[open[--n_open]].skip = (uint32_t)s->n_nodes;
}

static td_status build_trie(td_token_trie *t, td_trie_slice *s, uint32_t *open, td_error *err) {
    qsort_r(s->ids, s->n_ids, sizeof *s->ids, by_text, t);
    s->n_nodes = count_nodes(t, s);
    if (s->n_nodes > UINT32_MAX)
        return td_fail(err, TD_E_LIMIT, "the texts of a vocabulary are too long together");
    s->nodes = td_calloc(s->n_nodes, sizeof *s->nodes);
    if (!s->nodes)
        return oom(err);
    fill_nodes(t, s);
    fill_skips(s, open);
    return TD_OK;
}

static void put_in_slice(td_token_trie *t, td_token id, int slice, uint64_t seen_bytes[4]) {
    td_trie_slice *s = &t->slices[slice];
    size_t size;
    const char *text = td_token_trie_text(t, id, &size);
    s->ids[s->n_ids++] = id;
    if (s->mask)
        s->mask[id / 64] |= (uint64_t)1 << (id % 64);
    if (size > t->max_depth)
        t->max_depth = (uint32_t)size;
    if (size == 1)
        seen_bytes[(uint8_t)text[0] / 64] |= (uint64_t)1 << ((uint8_t)text[0] % 64);
}

static td_status allocate_slices(td_token_trie *t, const size_t *n_of, td_error *err) {
    for (int k = 0; k < TD_TRIE_SLICES; k++) {
        td_trie_slice *s = &t->slices[k];
        s->max_chars = slice_chars[k];
        s->ids = td_calloc(n_of[k], sizeof *s->ids);
        s->mask = k > 0 ? td_calloc(t->n_words, sizeof *s->mask) : NULL;
        if (!s->ids || (k > 0 && !s->mask))
            return oom(err);
    }
    return TD_OK;
}

static td_status fill_slices(td_token_trie *t, uint8_t *slices, td_error *err) {
    size_t n_of[TD_TRIE_SLICES] = {0};
    uint64_t bytes[4] = {0};
    for (size_t id = 0; id < t->n_vocab; id++) {
        size_t size;
        const char *text = td_token_trie_text(t, (td_token)id, &size);
        if (size > 0)
            n_of[slices[id] = (uint8_t)slice_of(text, size)]++;
    }
    TD_TRY(allocate_slices(t, n_of, err));
    for (size_t id = 0; id < t->n_vocab; id++)
        if (t->text_offsets[id + 1] > t->text_offsets[id])
            put_in_slice(t, (td_token)id, slices[id], bytes);
    t->all_bytes = (bytes[0] & bytes[1] & bytes[2] & bytes[3]) == UINT64_MAX;
    return TD_OK;
}

static td_status build_slices(td_token_trie *t, td_error *err) {
    uint8_t *slices = td_calloc(t->n_vocab, 1);
    td_status st = slices ? fill_slices(t, slices, err) : oom(err);
    td_free(slices);
    if (st != TD_OK)
        return st;
    uint32_t *open = td_calloc((size_t)t->max_depth + 1, sizeof *open);
    if (!open)
        return oom(err);
    for (int k = 0; k < TD_TRIE_SLICES && st == TD_OK; k++)
        st = build_trie(t, &t->slices[k], open, err);
    td_free(open);
    return st;
}

/* ---- the interface ---- */

static td_status copy_end_tokens(td_token_trie *t, const td_token *ids, size_t n, td_error *err) {
    t->end_tokens = td_calloc(n, sizeof *t->end_tokens);
    if (!t->end_tokens)
        return oom(err);
    for (size_t i = 0; i < n; i++)
        if (ids[i] >= 0 && (size_t)ids[i] < t->n_vocab)
            t->end_tokens[t->n_end++] = ids[i];
    return TD_OK;
}

td_status td_token_trie_open(td_token_trie **out, const td_tokenizer *tokenizer, size_t n_vocab,
                             const td_token *end_tokens, size_t n_end, td_error *err) {
    *out = NULL;
    td_token_trie *t = td_calloc(1, sizeof *t);
    if (!t)
        return oom(err);
    t->tokenizer = tokenizer;
    t->n_vocab = n_vocab ? n_vocab : td_tokenizer_n_vocab(tokenizer);
    t->n_words = (t->n_vocab + 63) / 64;
    td_status st = copy_end_tokens(t, end_tokens, n_end, err);
    if (st == TD_OK)
        st = read_texts(t, err);
    if (st == TD_OK)
        st = build_slices(t, err);
    if (st != TD_OK)
        td_token_trie_close(&t);
    *out = t;
    return st;
}

void td_token_trie_close(td_token_trie **trie) {
    td_token_trie *t = trie ? *trie : NULL;
    if (!t)
        return;
    for (int k = 0; k < TD_TRIE_SLICES; k++) {
        td_free(t->slices[k].nodes);
        td_free(t->slices[k].ids);
        td_free(t->slices[k].mask);
    }
    td_free(t->end_tokens);
    td_free(t->text_offsets);
    td_free(t->text);
    td_free(t);
    *trie = NULL;
}

const char *td_token_trie_text(const td_token_trie *t, td_token id, size_t *size) {
    *size = 0;
    if (id < 0 || (size_t)id >= t->n_vocab)
        return "";
    *size = t->text_offsets[id + 1] - t->text_offsets[id];
    return t->text + t->text_offsets[id];
}

bool td_token_trie_is_end(const td_token_trie *t, td_token id) {
    for (size_t i = 0; i < t->n_end; i++)
        if (t->end_tokens[i] == id)
            return true;
    return false;
}
