/* detok.c - the chain of machines behind a stream.
 *
 * A link gets three kinds of events from the one before it: text (whole characters of the token under way), the end of
 * a token, and the end of the stream; it sends the same to the next. The last sends text to the caller's buffer. What a
 * link holds back is bounded: a name of the vocabulary, three bytes of a character, a beginning of the text it
 * replaces, a count of characters it may strip. */
#include "text/detok.h"

#include <string.h>

#include "base/alloc.h"
#include "text/detok_chain.h"
#include "text/tokenizer_impl.h"
#include "text/tokenizer_unicode.h"

/* No link holds more than a name, and names are at most as long as a tokenizer.json; replacing may lengthen them. */
#define HOLD_CEILING ((size_t)1 << 30)

typedef struct td_detok_stage {
    const td_link *link;
    td_buf hold;            /* REPLACE*, BYTE_*: text not passed on yet */
    td_uni_assembler bytes; /* BYTE_* */
    bool later;             /* JOIN, METASPACE: a token has ended before; STRIP: the text continues one */
    bool begun;             /* JOIN: this token's space is out; BYTE_FALLBACK: in a run of bytes */
    bool inside;            /* STRIP: a character that stays has come */
    size_t cut, tail;       /* STRIP: characters dropped at the start, and held at the end */
    td_pattern_work work;   /* REPLACE_REGEX */
} stage;

static td_status send_text(td_detok *d, size_t i, const char *s, size_t size);
static td_status send_end(td_detok *d, size_t i);

static td_status no_memory(td_detok *d, const td_buf *b) {
    return td_fail(d->err, b->failed, "no memory for the text of a token (%s)", td_status_text(b->failed));
}

static td_status hold(td_detok *d, stage *s, const char *text, size_t size) {
    return td_buf_append(&s->hold, text, size) == TD_OK ? TD_OK : no_memory(d, &s->hold);
}

/* ---- a literal replaced ---- */

/* How much of the end of s could begin the literal. */
static size_t possible_start(const char *s, size_t size, const char *literal, size_t n) {
    size_t k = n - 1 < size ? n - 1 : size;
    while (k > 0 && memcmp(s + size - k, literal, k) != 0)
        k--;
    return k;
}

/* Passes on what is held, with replacements, but the last `keep`(held) bytes when the token goes on. */
static td_status replace_held(td_detok *d, size_t i, bool at_end) {
    stage *s = &d->stages[i];
    size_t n, done = 0;
    const char *literal = td_pattern_text(s->link->pattern, &n);
    const char *text = s->hold.data, *hit;
    while ((hit = memmem(text + done, s->hold.size - done, literal, n))) {
        size_t at = (size_t)(hit - text);
        TD_TRY(send_text(d, i + 1, text + done, at - done));
        TD_TRY(send_text(d, i + 1, s->link->text, s->link->size));
        done = at + n;
    }
    size_t keep = at_end ? 0 : possible_start(text + done, s->hold.size - done, literal, n);
    TD_TRY(send_text(d, i + 1, text + done, s->hold.size - done - keep));
    memmove(s->hold.data, s->hold.data + s->hold.size - keep, keep);
    s->hold.size = keep;
    return TD_OK;
}

static td_status replace_text(td_detok *d, size_t i, const char *text, size_t size) {
    TD_TRY(hold(d, &d->stages[i], text, size));
    return replace_held(d, i, false);
}

static td_status replace_end(td_detok *d, size_t i) {
    if (d->stages[i].hold.size > 0)
        TD_TRY(replace_held(d, i, true));
    return send_end(d, i + 1);
}

/* ---- an expression replaced, in a token that is held whole ---- */

static td_status regex_end(td_detok *d, size_t i) {
    stage *s = &d->stages[i];
    if (s->hold.size > 0) {
        td_pattern_walk w = td_pattern_walk_begin(s->link->pattern, &s->work, s->hold.data, s->hold.size);
        size_t done = 0;
        bool found;
        for (;;) {
            TD_TRY(td_pattern_walk_next(&w, &found, d->err));
            if (!found)
                break;
            TD_TRY(send_text(d, i + 1, s->hold.data + done, w.start - done));
            TD_TRY(send_text(d, i + 1, s->link->text, s->link->size));
            done = w.end;
        }
        TD_TRY(send_text(d, i + 1, s->hold.data + done, s->hold.size - done));
        s->hold.size = 0;
    }
    return send_end(d, i + 1);
}

/* ---- characters stripped from both ends ---- */

static td_status strip_text(td_detok *d, size_t i, const char *text, size_t size) {
    stage *s = &d->stages[i];
    const td_link *l = s->link;
    for (size_t k = 0; k < size;) {
        size_t n = td_uni_length(text[k]);
        const char *c = text + k;
        bool same = n == l->size && memcmp(c, l->text, n) == 0;
        k += n;
        if (same && !s->inside && s->cut < l->start) {
            s->cut++;
            continue;
        }
        s->inside = true;
        if (same && s->tail < l->stop) {
            s->tail++;
            continue;
        }
        /* one of these may not be at the end: with the tail full, the first of it; else all, and the new one */
        for (; !same && s->tail > 0; s->tail--)
            TD_TRY(send_text(d, i + 1, l->text, l->size));
        TD_TRY(send_text(d, i + 1, c, n));
    }
    return TD_OK;
}

static td_status strip_end(td_detok *d, size_t i) {
    stage *s = &d->stages[i];
    s->inside = s->later && s->link->once;
    s->cut = s->tail = 0;
    return send_end(d, i + 1);
}

/* ---- space marks ---- */

static td_status metaspace_text(td_detok *d, size_t i, const char *text, size_t size) {
    stage *s = &d->stages[i];
    const td_link *l = s->link;
    bool drop = l->drop_first && !s->later;
    for (size_t done = 0; done < size;) {
        const char *hit = memmem(text + done, size - done, l->text, l->size);
        size_t n = hit ? (size_t)(hit - text) - done : size - done;
        TD_TRY(send_text(d, i + 1, text + done, n));
        if (hit && !drop)
            TD_TRY(send_text(d, i + 1, " ", 1));
        done += n + (hit ? l->size : 0);
    }
    return TD_OK;
}

/* ---- bytes ---- */

static td_status send_byte(td_detok *d, size_t i, unsigned char byte) {
    char out[8];
    return send_text(d, i + 1, out, td_uni_assemble(&d->stages[i].bytes, byte, out));
}

static td_status send_last_byte(td_detok *d, size_t i) {
    char out[8];
    return send_text(d, i + 1, out, td_uni_assemble_end(&d->stages[i].bytes, out));
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
                                  : -1;
}

/* The byte that a token's name gives, -1 when it gives none. */
static int fallback_byte(const td_buf *name) {
    const char *s = name->data;
    if (name->size != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>')
        return -1;
    int high = hex_digit(s[3]), low = hex_digit(s[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

static td_status end_run(td_detok *d, size_t i) {
    if (!d->stages[i].begun)
        return TD_OK;
    d->stages[i].begun = false;
    TD_TRY(send_last_byte(d, i));
    return send_end(d, i + 1);
}

static td_status fallback_end(td_detok *d, size_t i) {
    stage *s = &d->stages[i];
    int byte = fallback_byte(&s->hold);
    if (byte >= 0) {
        s->begun = true;
        s->hold.size = 0;
        return send_byte(d, i, (unsigned char)byte);
    }
    TD_TRY(end_run(d, i));
    TD_TRY(send_text(d, i + 1, s->hold.data, s->hold.size));
    s->hold.size = 0;
    return send_end(d, i + 1);
}

/* True when every character of a name stands for a byte. */
static bool is_byte_level(const char *s, size_t size) {
    for (size_t i = 0; i < size;) {
        uint32_t cp;
        i += td_uni_next(s + i, &cp);
        if (td_uni_char_byte(cp) < 0)
            return false;
    }
    return true;
}

/* An added token's name is text as it stands, even when its letters are in the alphabet of bytes. */
static td_status byte_level_end(td_detok *d, size_t i) {
    stage *s = &d->stages[i];
    bool mapped = !d->added && is_byte_level(s->hold.data, s->hold.size);
    for (size_t k = 0; k < s->hold.size;) {
        uint32_t cp = (unsigned char)s->hold.data[k];
        k += mapped ? td_uni_next(s->hold.data + k, &cp) : 1;
        TD_TRY(send_byte(d, i, (unsigned char)(mapped ? td_uni_char_byte(cp) : (int)cp)));
    }
    s->hold.size = 0;
    return TD_OK;
}

/* ---- names joined by spaces ---- */

static td_status join_space(td_detok *d, size_t i) {
    stage *s = &d->stages[i];
    bool due = s->later && !s->begun;
    s->begun = true;
    return due ? send_text(d, i + 1, " ", 1) : TD_OK;
}

/* ---- events ---- */

static td_status send_text(td_detok *d, size_t i, const char *s, size_t size) {
    if (size == 0)
        return TD_OK;
    if (i == d->tok->decoder->n)
        return td_buf_append(d->out, s, size) == TD_OK ? TD_OK : no_memory(d, d->out);
    switch (d->stages[i].link->kind) {
    case TD_LINK_JOIN:
        TD_TRY(join_space(d, i));
        return send_text(d, i + 1, s, size);
    case TD_LINK_REPLACE:
        return replace_text(d, i, s, size);
    case TD_LINK_STRIP:
        return strip_text(d, i, s, size);
    case TD_LINK_METASPACE:
        return metaspace_text(d, i, s, size);
    case TD_LINK_REPLACE_REGEX:
    case TD_LINK_BYTE_FALLBACK:
    case TD_LINK_BYTE_LEVEL:
        return hold(d, &d->stages[i], s, size);
    case TD_LINK_FUSE:
        return send_text(d, i + 1, s, size);
    }
    return TD_OK;
}

/* The token under way has ended. */
static td_status send_end(td_detok *d, size_t i) {
    if (i == d->tok->decoder->n)
        return TD_OK;
    stage *s = &d->stages[i];
    switch (s->link->kind) {
    case TD_LINK_JOIN:
        TD_TRY(join_space(d, i)); /* of an empty name */
        s->begun = false;
        s->later = true;
        return send_end(d, i + 1);
    case TD_LINK_REPLACE:
        return replace_end(d, i);
    case TD_LINK_REPLACE_REGEX:
        return regex_end(d, i);
    case TD_LINK_STRIP:
        return strip_end(d, i);
    case TD_LINK_METASPACE:
        s->later = true;
        return send_end(d, i + 1);
    case TD_LINK_BYTE_FALLBACK:
        return fallback_end(d, i);
    case TD_LINK_BYTE_LEVEL:
        return byte_level_end(d, i);
    case TD_LINK_FUSE:
        return TD_OK;
    }
    return TD_OK;
}

/* The stream has ended: what each link has open is closed, in the order of the chain. */
static td_status send_last(td_detok *d) {
    for (size_t i = 0; i < d->tok->decoder->n; i++) {
        td_link_kind kind = d->stages[i].link->kind;
        if (kind == TD_LINK_BYTE_FALLBACK)
            TD_TRY(end_run(d, i));
        if (kind == TD_LINK_BYTE_LEVEL)
            TD_TRY(send_last_byte(d, i));
        if (kind == TD_LINK_BYTE_LEVEL || kind == TD_LINK_FUSE)
            TD_TRY(send_end(d, i + 1));
    }
    return TD_OK;
}

/* ---- the stream ---- */

static void begin(td_detok *d) {
    bool continues = (d->flags & TD_DETOK_CONTINUE) != 0;
    for (size_t i = 0; i < d->tok->decoder->n; i++) {
        stage *s = &d->stages[i];
        s->later = continues;
        s->begun = false;
        s->inside = continues && s->link->once;
        s->cut = s->tail = 0;
    }
}

td_status td_detok_init(td_detok *d, const td_tokenizer *tok, unsigned flags, td_error *err) {
    *d = (td_detok){.tok = tok, .flags = flags};
    d->stages = td_calloc(tok->decoder->n, sizeof *d->stages);
    if (!d->stages)
        return td_fail(err, TD_E_NOMEM, "out of memory for a stream of text");
    for (size_t i = 0; i < tok->decoder->n; i++) {
        d->stages[i].link = &tok->decoder->links[i];
        td_buf_init(&d->stages[i].hold, HOLD_CEILING);
    }
    begin(d);
    return TD_OK;
}

void td_detok_free(td_detok *d) {
    for (size_t i = 0; d->stages && i < d->tok->decoder->n; i++) {
        td_buf_free(&d->stages[i].hold);
        td_pattern_work_free(&d->stages[i].work);
    }
    td_free(d->stages);
    *d = (td_detok){0};
}

td_status td_detok_push(td_detok *d, td_token token, td_buf *out, td_error *err) {
    const td_vocab *v = &d->tok->vocab;
    if (!td_vocab_has(v, token))
        return TD_OK;
    if ((d->flags & TD_DETOK_SKIP_SPECIAL) && (v->flags[token] & TD_PIECE_SPECIAL))
        return TD_OK;
    size_t size;
    const char *name = td_vocab_name(v, token, &size);
    d->added = (v->flags[token] & TD_PIECE_ADDED) != 0;
    d->out = out;
    d->err = err;
    TD_TRY(send_text(d, 0, name, size));
    return send_end(d, 0);
}

td_status td_detok_flush(td_detok *d, td_buf *out, td_error *err) {
    d->out = out;
    d->err = err;
    TD_TRY(send_last(d));
    begin(d);
    return TD_OK;
}

td_status td_tokenizer_decode(const td_tokenizer *tok, const td_token *ids, size_t n, unsigned flags, td_buf *out,
                              td_error *err) {
    td_detok d;
    TD_TRY(td_detok_init(&d, tok, flags, err));
    td_status st = TD_OK;
    for (size_t i = 0; i < n && st == TD_OK; i++)
        st = td_detok_push(&d, ids[i], out, err);
    if (st == TD_OK)
        st = td_detok_flush(&d, out, err);
    td_detok_free(&d);
    return st;
}
