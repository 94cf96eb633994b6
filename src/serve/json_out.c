/* json_out.c - see json_out.h. */
#include "serve/json_out.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/tokenizer_unicode.h"

static void before_value(td_json_out *o) {
    if (o->comma)
        td_buf_putc(o->buf, ',');
    o->comma = true;
}

void td_out_begin(td_json_out *o, char bracket) {
    before_value(o);
    td_buf_putc(o->buf, bracket);
    o->comma = false;
}

void td_out_end(td_json_out *o, char bracket) {
    td_buf_putc(o->buf, bracket);
    o->comma = true;
}

void td_out_key(td_json_out *o, const char *name) {
    td_out_str(o, name);
    td_buf_putc(o->buf, ':');
    o->comma = false;
}

/* ---- text ---- */

static bool is_plain(unsigned char c) {
    return c >= 0x20 && c != '"' && c != '\\' && c != 0x7F;
}

static void escape(td_buf *b, unsigned char c) {
    static const char short_form[] = "\"\"\\\\\bb\ff\nn\rr\tt";
    for (const char *p = short_form; *p; p += 2)
        if ((unsigned char)*p == c) {
            char two[2] = {'\\', p[1]};
            td_buf_append(b, two, 2);
            return;
        }
    td_buf_printf(b, "\\u%04x", c);
}

/* Valid UTF-8. */
static void escaped(td_buf *b, const char *s, size_t n) {
    for (size_t i = 0; i < n;) {
        size_t run = i;
        while (run < n && is_plain((unsigned char)s[run]))
            run++;
        td_buf_append(b, s + i, run - i);
        if (run < n)
            escape(b, (unsigned char)s[run++]);
        i = run;
    }
}

void td_out_text(td_json_out *o, const char *text, size_t n) {
    before_value(o);
    td_buf_putc(o->buf, '"');
    for (size_t i = 0; i < n;) {
        size_t valid = td_uni_valid(text + i, n - i);
        escaped(o->buf, text + i, valid);
        i += valid;
        if (i < n) {
            td_buf_puts(o->buf, "\xEF\xBF\xBD");
            i++;
        }
    }
    td_buf_putc(o->buf, '"');
}

void td_out_str(td_json_out *o, const char *text) {
    if (text)
        td_out_text(o, text, strlen(text));
    else
        td_out_null(o);
}

/* ---- the rest ---- */

void td_out_int(td_json_out *o, int64_t v) {
    before_value(o);
    td_buf_printf(o->buf, "%lld", (long long)v);
}

void td_out_real(td_json_out *o, double v, int decimals) {
    char text[400];
    if (!isfinite(v)) {
        td_out_null(o);
        return;
    }
    int n = snprintf(text, sizeof text, "%.*f", decimals, v);
    for (; decimals > 0 && n > 1 && text[n - 1] == '0'; n--)
        ;
    n -= decimals > 0 && n > 1 && text[n - 1] == '.';
    before_value(o);
    td_buf_append(o->buf, text, (size_t)n);
}

void td_out_bool(td_json_out *o, bool v) {
    before_value(o);
    td_buf_puts(o->buf, v ? "true" : "false");
}

void td_out_null(td_json_out *o) {
    before_value(o);
    td_buf_puts(o->buf, "null");
}

void td_out_raw(td_json_out *o, const char *json, size_t n) {
    before_value(o);
    td_buf_append(o->buf, json, n);
}

static int append(const char *bytes, size_t n, void *buf) {
    return td_buf_append(buf, bytes, n) == TD_OK ? 0 : -1;
}

void td_out_json(td_json_out *o, const json_t *v) {
    before_value(o);
    if (json_dump_callback(v, append, o->buf, JSON_COMPACT | JSON_ENCODE_ANY) != 0)
        td_out_fail(o, TD_E_NOMEM); /* of jansson's: half a value must not pass for one */
}

void td_out_fail(td_json_out *o, td_status status) {
    if (o->buf->failed != TD_OK)
        return;
    td_buf_free(o->buf);
    o->buf->failed = status;
}

void td_out_member_text(td_json_out *o, const char *name, const char *text, size_t n) {
    td_out_key(o, name);
    td_out_text(o, text, n);
}

void td_out_member_str(td_json_out *o, const char *name, const char *text) {
    td_out_key(o, name);
    td_out_str(o, text);
}

void td_out_member_int(td_json_out *o, const char *name, int64_t v) {
    td_out_key(o, name);
    td_out_int(o, v);
}

void td_out_member_real(td_json_out *o, const char *name, double v, int decimals) {
    td_out_key(o, name);
    td_out_real(o, v, decimals);
}

void td_out_member_bool(td_json_out *o, const char *name, bool v) {
    td_out_key(o, name);
    td_out_bool(o, v);
}

void td_out_member_null(td_json_out *o, const char *name) {
    td_out_key(o, name);
    td_out_null(o);
}
