/* json_scan.c - the pull reader: a cursor, a stack of open brackets, and one function a token.
 *
 * A tree of a hostile text costs up to eighty times the text ("{}," becomes a hash table), and it forgets
 * how a number was written. Formats whose shape is known in advance need neither, so they read tokens as they come.
 * Every access is bounded by `size`; nothing relies on a terminating NUL, so the text may be a mapped file. */
#include "format/json_scan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

void td_json_scan_init(td_json_scan *s, const char *text, size_t size, size_t base, int max_depth, const char *where) {
    *s = (td_json_scan){.text = text,
                        .size = size,
                        .base = base,
                        .where = where,
                        .max_depth = max_depth < TD_JSON_MAX_DEPTH ? max_depth : TD_JSON_MAX_DEPTH};
    td_buf_init(&s->scratch, size); /* decoding never lengthens a string */
}

void td_json_scan_free(td_json_scan *s) {
    td_buf_free(&s->scratch);
}

td_status td_json_scan_fail(const td_json_scan *s, size_t pos, td_error *err, const char *fmt, ...) {
    char message[sizeof err->message];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    size_t byte = s->base + pos;
    if (!s->within)
        return td_fail_at(err, TD_E_FORMAT, (int64_t)byte, "%s: byte %zu: %s", s->where, byte, message);
    char shown[TD_SHOWN_SIZE];
    td_shown(shown, s->within, strlen(s->within));
    return td_fail_at(err, TD_E_FORMAT, (int64_t)byte, "%s: byte %zu: in \"%s\": %s", s->where, byte, shown, message);
}

/* ---- characters ---- */

/* Bytes of the UTF-8 character at p, 0 when it is not one (truncated, overlong, surrogate, beyond U+10FFFF). */
static size_t utf8_length(const unsigned char *p, size_t left) {
    if (p[0] < 0x80)
        return 1;
    size_t n = p[0] >= 0xF0 ? 4 : p[0] >= 0xE0 ? 3 : 2;
    if (p[0] < 0xC2 || p[0] > 0xF4 || n > left)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xC0) != 0x80)
            return 0;
    if ((p[0] == 0xE0 && p[1] < 0xA0) || (p[0] == 0xED && p[1] > 0x9F) || (p[0] == 0xF0 && p[1] < 0x90) ||
        (p[0] == 0xF4 && p[1] > 0x8F))
        return 0;
    return n;
}

bool td_json_utf8_valid(const char *str, size_t size) {
    for (size_t n = 0, step; n < size; n += step) {
        step = utf8_length((const unsigned char *)str + n, size - n);
        if (step == 0)
            return false;
    }
    return true;
}

const char *td_shown(char out[TD_SHOWN_SIZE], const char *str, size_t size) {
    size_t n = 0;
    if (size < TD_SHOWN_SIZE) {
        memcpy(out, str, size);
        out[size] = '\0';
        return out;
    }
    while (n < size) {
        size_t step = utf8_length((const unsigned char *)str + n, size - n);
        if (step == 0)
            step = 1;
        if (n + step > TD_SHOWN_SIZE - 4)
            break;
        n += step;
    }
    memcpy(out, str, n);
    memcpy(out + n, "...", 4);
    return out;
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static void skip_space(td_json_scan *s) {
    while (s->pos < s->size) {
        char c = s->text[s->pos];
        if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
            return;
        s->pos++;
    }
}

/* What stands at the cursor, for "found ...". */
static const char *found(const td_json_scan *s, char out[TD_SHOWN_SIZE]) {
    if (s->pos >= s->size)
        return "the end";
    unsigned char c = (unsigned char)s->text[s->pos];
    snprintf(out, TD_SHOWN_SIZE, c > 0x20 && c < 0x7F ? "'%c'" : "byte 0x%02X", c);
    return out;
}

static td_status expected(const td_json_scan *s, const char *what, td_error *err) {
    char shown[TD_SHOWN_SIZE];
    return td_json_scan_fail(s, s->pos, err, "expected %s, found %s", what, found(s, shown));
}

static bool at(const td_json_scan *s, char c) {
    return s->pos < s->size && s->text[s->pos] == c;
}

char td_json_scan_peek(td_json_scan *s) {
    skip_space(s);
    if (s->pos >= s->size)
        return 0;
    char c = s->text[s->pos];
    if (c == '-' || is_digit(c))
        return '0';
    return c != '\0' && strchr("{[\"tfn", c) ? c : 0;
}

/* ---- containers ---- */

td_status td_json_scan_enter(td_json_scan *s, char bracket, td_error *err) {
    skip_space(s);
    if (!at(s, bracket))
        return expected(s, bracket == '{' ? "an object" : "an array", err);
    if (s->depth >= s->max_depth)
        return td_json_scan_fail(s, s->pos, err, "nested deeper than %d levels", s->max_depth);
    s->pos++;
    s->open[s->depth++] = bracket;
    s->fresh = true;
    return TD_OK;
}

td_status td_json_scan_next(td_json_scan *s, bool *more, td_error *err) {
    bool object = s->open[s->depth - 1] == '{';
    skip_space(s);
    *more = false;
    if (at(s, object ? '}' : ']')) {
        s->pos++;
        s->depth--;
        s->fresh = false;
        return TD_OK;
    }
    if (!s->fresh) {
        if (!at(s, ','))
            return expected(s, object ? "',' or '}'" : "',' or ']'", err);
        s->pos++;
    }
    s->fresh = false;
    *more = true;
    return TD_OK;
}

td_status td_json_scan_key(td_json_scan *s, const char **str, size_t *size, td_error *err) {
    TD_TRY(td_json_scan_string(s, str, size, err));
    skip_space(s);
    if (!at(s, ':'))
        return expected(s, "':'", err);
    s->pos++;
    return TD_OK;
}

/* ---- strings ---- */

static int hex_value(char c) {
    return is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* XXXX of a \uXXXX at the cursor; -1 when there are not four hex digits. */
static int32_t hex4(td_json_scan *s) {
    if (s->size - s->pos < 4)
        return -1;
    int32_t v = 0;
    for (int i = 0; i < 4; i++) {
        int d = hex_value(s->text[s->pos + (size_t)i]);
        if (d < 0)
            return -1;
        v = v << 4 | d;
    }
    s->pos += 4;
    return v;
}

static void put_utf8(td_buf *b, int32_t c) {
    char out[4];
    size_t n = 0;
    if (c < 0x80) {
        out[n++] = (char)c;
    } else if (c < 0x800) {
        out[n++] = (char)(0xC0 | c >> 6);
        out[n++] = (char)(0x80 | (c & 63));
    } else if (c < 0x10000) {
        out[n++] = (char)(0xE0 | c >> 12);
        out[n++] = (char)(0x80 | (c >> 6 & 63));
        out[n++] = (char)(0x80 | (c & 63));
    } else {
        out[n++] = (char)(0xF0 | c >> 18);
        out[n++] = (char)(0x80 | (c >> 12 & 63));
        out[n++] = (char)(0x80 | (c >> 6 & 63));
        out[n++] = (char)(0x80 | (c & 63));
    }
    (void)td_buf_append(b, out, n); /* a failure stays in the buffer */
}

/* After "\u": one character, of two escapes when it is beyond the basic plane. */
static td_status unicode_escape(td_json_scan *s, size_t start, td_error *err) {
    int32_t c = hex4(s);
    if (c < 0)
        return td_json_scan_fail(s, start, err, "expected four hex digits after \\u");
    if (c == 0)
        return td_json_scan_fail(s, start, err, "a string holds \\u0000, which is not allowed");
    if (c >= 0xD800 && c < 0xE000) {
        bool pair = c < 0xDC00 && s->size - s->pos >= 6 && s->text[s->pos] == '\\' && s->text[s->pos + 1] == 'u';
        if (pair)
            s->pos += 2;
        int32_t low = pair ? hex4(s) : -1;
        if (low < 0xDC00 || low > 0xDFFF)
            return td_json_scan_fail(s, start, err, "a string holds a lone surrogate (\\u%04X)", (unsigned)c);
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    put_utf8(&s->scratch, c);
    return TD_OK;
}

/* At a backslash: decodes one escape into the scratch buffer. */
static td_status escape(td_json_scan *s, td_error *err) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    size_t start = s->pos++;
    if (s->pos >= s->size)
        return expected(s, "an escape", err);
    char c = s->text[s->pos++];
    if (c == 'u')
        return unicode_escape(s, start, err);
    const char *hit = c ? strchr(from, c) : NULL;
    if (!hit)
        return td_json_scan_fail(s, start, err, "unknown escape in a string");
    (void)td_buf_putc(&s->scratch, to[hit - from]);
    return TD_OK;
}

/* Moves the cursor over characters that stand for themselves. */
static td_status plain_run(td_json_scan *s, td_error *err) {
    while (s->pos < s->size) {
        unsigned char c = (unsigned char)s->text[s->pos];
        if (c == '"' || c == '\\')
            return TD_OK;
        if (c < 0x20)
            return td_json_scan_fail(s, s->pos, err, "control byte 0x%02X in a string", c);
        size_t n = utf8_length((const unsigned char *)s->text + s->pos, s->size - s->pos);
        if (n == 0)
            return td_json_scan_fail(s, s->pos, err, "invalid UTF-8 (byte 0x%02X)", c);
        s->pos += n;
    }
    return td_json_scan_fail(s, s->pos, err, "the text ends inside a string");
}

td_status td_json_scan_string(td_json_scan *s, const char **str, size_t *size, td_error *err) {
    skip_space(s);
    if (!at(s, '"'))
        return expected(s, "a string", err);
    size_t start = ++s->pos;
    TD_TRY(plain_run(s, err));
    if (s->text[s->pos] == '"') { /* the common case: a slice of the text */
        *str = s->text + start;
        *size = s->pos++ - start;
        return TD_OK;
    }
    td_buf_clear(&s->scratch);
    (void)td_buf_append(&s->scratch, s->text + start, s->pos - start);
    while (s->text[s->pos] != '"') {
        TD_TRY(escape(s, err));
        start = s->pos;
        TD_TRY(plain_run(s, err));
        (void)td_buf_append(&s->scratch, s->text + start, s->pos - start);
    }
    s->pos++;
    if (s->scratch.failed)
        return td_fail(err, s->scratch.failed, "%s: out of memory for a string", s->where);
    *str = td_buf_str(&s->scratch);
    *size = s->scratch.size;
    return TD_OK;
}

/* ---- numbers and the other scalars ---- */

/* Digits at the cursor; false when there are none. */
static bool digits(td_json_scan *s) {
    size_t start = s->pos;
    while (s->pos < s->size && is_digit(s->text[s->pos]))
        s->pos++;
    return s->pos > start;
}

td_status td_json_scan_number(td_json_scan *s, const char **str, size_t *size, bool *integral, td_error *err) {
    skip_space(s);
    size_t start = s->pos;
    *integral = true;
    if (at(s, '-'))
        s->pos++;
    size_t first = s->pos;
    if (!digits(s))
        return expected(s, "a number", err);
    if (s->text[first] == '0' && s->pos - first > 1)
        return td_json_scan_fail(s, start, err, "a number begins with a superfluous 0");
    if (at(s, '.')) {
        *integral = false;
        s->pos++;
        if (!digits(s))
            return expected(s, "a digit", err);
    }
    if (at(s, 'e') || at(s, 'E')) {
        *integral = false;
        s->pos++;
        if (at(s, '+') || at(s, '-'))
            s->pos++;
        if (!digits(s))
            return expected(s, "a digit", err);
    }
    *str = s->text + start;
    *size = s->pos - start;
    if (*size > TD_JSON_MAX_NUMBER)
        return td_json_scan_fail(s, start, err, "a number of %zu characters, expected at most %d", *size,
                                 TD_JSON_MAX_NUMBER);
    return TD_OK;
}

td_status td_json_scan_uint(td_json_scan *s, uint64_t *out, td_error *err) {
    static const char want[] = "a plain non-negative integer";
    const char *str;
    size_t size;
    bool integral;
    if (td_json_scan_peek(s) != '0')
        return expected(s, want, err);
    size_t start = s->pos;
    TD_TRY(td_json_scan_number(s, &str, &size, &integral, err));
    char shown[TD_SHOWN_SIZE];
    if (!integral || str[0] == '-')
        return td_json_scan_fail(s, start, err, "expected %s, found %s", want, td_shown(shown, str, size));
    uint64_t v = 0;
    for (size_t i = 0; i < size; i++) {
        uint64_t d = (uint64_t)(str[i] - '0');
        if (v > (UINT64_MAX - d) / 10)
            return td_json_scan_fail(s, start, err, "expected an integer below 2^64, found %s",
                                     td_shown(shown, str, size));
        v = v * 10 + d;
    }
    *out = v;
    return TD_OK;
}

static td_status word(td_json_scan *s, const char *w, td_error *err) {
    size_t n = strlen(w);
    if (s->size - s->pos < n || memcmp(s->text + s->pos, w, n) != 0)
        return expected(s, "a value", err);
    s->pos += n;
    return TD_OK;
}

static td_status skip_scalar(td_json_scan *s, td_error *err) {
    const char *str;
    size_t size;
    bool integral;
    switch (td_json_scan_peek(s)) {
    case '"':
        return td_json_scan_string(s, &str, &size, err);
    case '0':
        return td_json_scan_number(s, &str, &size, &integral, err);
    case 't':
        return word(s, "true", err);
    case 'f':
        return word(s, "false", err);
    case 'n':
        return word(s, "null", err);
    default:
        return expected(s, "a value", err);
    }
}

td_status td_json_scan_skip(td_json_scan *s, td_error *err) {
    const int floor = s->depth;
    do {
        char c = td_json_scan_peek(s);
        if (c == '{' || c == '[')
            TD_TRY(td_json_scan_enter(s, c, err));
        else
            TD_TRY(skip_scalar(s, err));
        bool more = false;
        while (s->depth > floor && !more) { /* to the next value, leaving what closes on the way */
            TD_TRY(td_json_scan_next(s, &more, err));
            const char *key;
            size_t size;
            if (more && s->open[s->depth - 1] == '{')
                TD_TRY(td_json_scan_key(s, &key, &size, err));
        }
    } while (s->depth > floor);
    return TD_OK;
}

td_status td_json_scan_end(td_json_scan *s, td_error *err) {
    skip_space(s);
    return s->pos == s->size ? TD_OK : expected(s, "the end of the text", err);
}
