/* probs.c - see probs.h. */
#include "serve/probs.h"

#include <math.h>
#include <string.h>

#include "text/token_trie.h"
#include "text/tokenizer_unicode.h"

#define MAX_ITEMS ((size_t)1 << 30)
#define NEVER (-9999.0) /* OpenAI's way to write minus infinity */

static td_buf *const *all(td_api_probs *p, td_buf *out[5]) {
    out[0] = &p->items;
    out[1] = &p->values;
    out[2] = &p->tops;
    out[3] = &p->offsets;
    out[4] = &p->bytes;
    return out;
}

void td_api_probs_init(td_api_probs *p, const td_tokenizer *tokenizer, bool wanted, bool legacy) {
    td_buf *bufs[5];
    *p = (td_api_probs){.tokenizer = tokenizer, .wanted = wanted, .legacy = legacy};
    for (int i = 0; i < 5; i++)
        td_buf_init(all(p, bufs)[i], MAX_ITEMS);
}

void td_api_probs_free(td_api_probs *p) {
    td_buf *bufs[5];
    for (int i = 0; i < 5; i++)
        td_buf_free(all(p, bufs)[i]);
}

void td_api_probs_clear(td_api_probs *p) {
    td_buf *bufs[5];
    for (int i = 0; i < 5; i++)
        td_buf_clear(all(p, bufs)[i]);
}

/* ---- a token ---- */

static td_status take_bytes(td_api_probs *p, td_token token, td_error *err) {
    td_buf_clear(&p->bytes);
    td_buf_puts(&p->bytes, "");
    return p->tokenizer ? td_token_bytes(p->tokenizer, token, &p->bytes, err) : TD_OK;
}

static td_json_out list(td_buf *items) {
    return (td_json_out){.buf = items, .comma = items->size > 0};
}

static double written(float logprob) {
    return isfinite(logprob) ? (double)logprob : NEVER;
}

/* "token", "logprob", "bytes" of the token at hand. */
static void write_chat_members(td_api_probs *p, td_json_out *o, const td_token_prob *t) {
    td_out_member_text(o, "token", p->bytes.data, p->bytes.size);
    td_out_member_real(o, "logprob", written(t->logprob), 6);
    td_out_key(o, "bytes");
    td_out_begin(o, '[');
    for (size_t i = 0; i < p->bytes.size; i++)
        td_out_int(o, (unsigned char)p->bytes.data[i]);
    td_out_end(o, ']');
}

static td_status add_chat(td_api_probs *p, const td_token_prob *probs, uint32_t n, td_error *err) {
    td_json_out o = list(&p->items);
    td_out_begin(&o, '{');
    TD_TRY(take_bytes(p, probs[0].token, err));
    write_chat_members(p, &o, &probs[0]);
    td_out_key(&o, "top_logprobs");
    td_out_begin(&o, '[');
    for (uint32_t i = 1; i <= n; i++) {
        TD_TRY(take_bytes(p, probs[i].token, err));
        td_out_begin(&o, '{');
        write_chat_members(p, &o, &probs[i]);
        td_out_end(&o, '}');
    }
    td_out_end(&o, ']');
    td_out_end(&o, '}');
    return p->items.failed;
}

/* ---- completions ---- */

/* The token at hand as text; "bytes:\x.." when it is none. */
static void write_legacy_token(td_api_probs *p, td_json_out *o) {
    if (td_uni_valid(p->bytes.data, p->bytes.size) == p->bytes.size) {
        td_out_text(o, p->bytes.data, p->bytes.size);
        return;
    }
    td_buf spelt;
    td_buf_init(&spelt, MAX_ITEMS);
    td_buf_puts(&spelt, "bytes:");
    for (size_t i = 0; i < p->bytes.size; i++)
        td_buf_printf(&spelt, "\\x%02x", (unsigned char)p->bytes.data[i]);
    td_out_str(o, td_buf_str(&spelt));
    td_buf_free(&spelt);
}

/* The alternatives by name; the token itself too when it is not among them. */
static td_status write_legacy_tops(td_api_probs *p, td_json_out *o, const td_token_prob *probs, uint32_t n,
                                   td_error *err) {
    bool among = false;
    td_out_begin(o, '{');
    for (uint32_t i = 1; i <= n + 1; i++) {
        const td_token_prob *t = i <= n ? &probs[i] : &probs[0];
        if (i > n && among)
            break;
        among = among || t->token == probs[0].token;
        TD_TRY(take_bytes(p, t->token, err));
        write_legacy_token(p, o);
        td_buf_putc(o->buf, ':');
        o->comma = false;
        td_out_real(o, written(t->logprob), 6);
    }
    td_out_end(o, '}');
    return TD_OK;
}

static uint32_t count_chars(const char *text, size_t n) {
    uint32_t chars = 0;
    for (size_t i = 0; i < n; i++)
        chars += ((unsigned char)text[i] & 0xC0) != 0x80;
    return chars;
}

static td_status add_legacy(td_api_probs *p, const td_token_prob *probs, uint32_t n, td_error *err) {
    td_json_out tokens = list(&p->items), values = list(&p->values), tops = list(&p->tops), offsets = list(&p->offsets);
    TD_TRY(take_bytes(p, probs[0].token, err));
    write_legacy_token(p, &tokens);
    td_out_real(&values, written(probs[0].logprob), 6);
    td_out_int(&offsets, p->n_chars);
    TD_TRY(write_legacy_tops(p, &tops, probs, n, err));
    return p->items.failed ? p->items.failed : p->tops.failed;
}

td_status td_api_probs_add(td_api_probs *p, const td_token_prob *probs, uint32_t n, const char *text, size_t n_text,
                           td_error *err) {
    if (!p->wanted)
        return TD_OK;
    td_status st = p->legacy ? add_legacy(p, probs, n, err) : add_chat(p, probs, n, err);
    if (p->legacy)
        p->n_chars += count_chars(text, n_text);
    return st;
}

static void write_list(td_json_out *o, const char *name, const td_buf *items) {
    td_out_key(o, name);
    td_out_begin(o, '[');
    if (items->size)
        td_out_raw(o, items->data, items->size);
    td_out_end(o, ']');
}

void td_api_probs_write(td_json_out *o, const td_api_probs *p) {
    if (!p->wanted) {
        td_out_null(o);
        return;
    }
    td_out_begin(o, '{');
    write_list(o, p->legacy ? "tokens" : "content", &p->items);
    if (p->legacy) {
        write_list(o, "token_logprobs", &p->values);
        write_list(o, "top_logprobs", &p->tops);
        write_list(o, "text_offset", &p->offsets);
    } else {
        td_out_member_null(o, "refusal"); /* OpenAI's schema asks for it */
    }
    td_out_end(o, '}');
}
