/* jinja_lex.c - the source of a template as tokens, pulled one at a time, so that a source needs no memory of tokens.
 *
 * Two modes. In data, everything up to the next "{{", "{%" or "{#" is one token, with white space around tags removed
 * by the four rules that apply here: "-" beside a tag eats all white space on its side; a block or comment alone at the
 * start of its line loses the blanks before it (lstrip_blocks) unless it opens with "+"; a block or comment loses one
 * newline after it (trim_blocks) unless it closes with "+"; prints lose nothing by themselves. In a tag, the closing
 * delimiter is looked for only while no bracket is open, so that "{{ {'a': {}} }}" reads as it should.
 * Comments and raw blocks never reach the parser: a raw block is data. */
#include <string.h>

#include "text/jinja_internal.h"

void td_jlex_init(td_jlex *lex, td_jinja *t, td_error *err) {
    *lex = (td_jlex){.t = t, .err = err};
}

const char *td_jtoken_kind_text(td_jtoken_kind kind) {
    static const char *const text[] = {
        [TD_JT_END] = "end of the template",
        [TD_JT_DATA] = "text",
        [TD_JT_PRINT_BEGIN] = "'{{'",
        [TD_JT_PRINT_END] = "'}}'",
        [TD_JT_BLOCK_BEGIN] = "'{%'",
        [TD_JT_BLOCK_END] = "'%}'",
        [TD_JT_NAME] = "a name",
        [TD_JT_STRING] = "a string",
        [TD_JT_NUMBER] = "a number",
        [TD_JT_ADD] = "'+'",
        [TD_JT_SUB] = "'-'",
        [TD_JT_MUL] = "'*'",
        [TD_JT_DIV] = "'/'",
        [TD_JT_FLOORDIV] = "'//'",
        [TD_JT_MOD] = "'%'",
        [TD_JT_POW] = "'**'",
        [TD_JT_TILDE] = "'~'",
        [TD_JT_EQ] = "'=='",
        [TD_JT_NE] = "'!='",
        [TD_JT_LT] = "'<'",
        [TD_JT_LE] = "'<='",
        [TD_JT_GT] = "'>'",
        [TD_JT_GE] = "'>='",
        [TD_JT_ASSIGN] = "'='",
        [TD_JT_DOT] = "'.'",
        [TD_JT_COLON] = "':'",
        [TD_JT_COMMA] = "','",
        [TD_JT_PIPE] = "'|'",
        [TD_JT_SEMICOLON] = "';'",
        [TD_JT_LPAREN] = "'('",
        [TD_JT_RPAREN] = "')'",
        [TD_JT_LBRACKET] = "'['",
        [TD_JT_RBRACKET] = "']'",
        [TD_JT_LBRACE] = "'{'",
        [TD_JT_RBRACE] = "'}'",
    };
    return text[kind];
}

static td_status lex_fail(td_jlex *lex, size_t at, const char *what) {
    return td_jinja_fail(lex->t, at, TD_E_FORMAT, lex->err, "%s", what);
}

static bool looking_at(const td_jlex *lex, size_t pos, const char *s) {
    size_t n = strlen(s);
    return n <= lex->t->size - pos && !memcmp(lex->t->source + pos, s, n);
}

static size_t skip_space(const td_jlex *lex, size_t pos) {
    uint32_t cp;
    for (size_t step; pos < lex->t->size; pos += step) {
        step = td_jchar(lex->t->source + pos, lex->t->size - pos, &cp);
        if (!td_jchar_is_space(cp))
            break;
    }
    return pos;
}

/* The first "{{", "{%" or "{#" at or after pos; the end of the source when there is none. */
static size_t find_tag(const td_jlex *lex, size_t pos) {
    const char *s = lex->t->source;
    while (pos < lex->t->size) {
        const char *brace = memchr(s + pos, '{', lex->t->size - pos);
        if (!brace)
            break;
        pos = (size_t)(brace - s);
        if (pos + 1 < lex->t->size && strchr("{%#", s[pos + 1]) && s[pos + 1])
            return pos;
        pos++;
    }
    return lex->t->size;
}

static char sign_at(const td_jlex *lex, size_t pos) {
    char c = pos < lex->t->size ? lex->t->source[pos] : '\0';
    return c == '-' || c == '+' ? c : '\0';
}

/* Blanks between the last newline (or the start of a line at `from`) and the tag that follows the text. */
static size_t without_indent(const td_jlex *lex, size_t from, size_t to) {
    const char *s = lex->t->source;
    size_t line = to;
    while (line > from && s[line - 1] != '\n')
        line--;
    if (line == from && from > 0 && s[from - 1] != '\n')
        return to;
    return skip_space(lex, line) >= to ? line : to;
}

/* The data in [from, to) before a tag of this kind and sign. */
static td_jv trimmed_data(const td_jlex *lex, size_t from, size_t to, bool print, char sign) {
    td_jv data = td_jv_text(lex->t->source + from, to - from);
    if (sign == '-')
        return td_jstr_strip(data, td_jv_none(), false, true);
    if (sign != '+' && !print)
        data.size = without_indent(lex, from, to) - from;
    return data;
}

/* Past the end of a tag whose two closing characters are at `pos`: what its sign and trim_blocks eat as well. */
static size_t after_close(const td_jlex *lex, size_t pos, char sign) {
    pos += 2;
    if (sign == '-')
        return skip_space(lex, pos);
    if (sign != '+' && pos < lex->t->size && lex->t->source[pos] == '\n')
        pos++;
    return pos;
}

static td_status skip_comment(td_jlex *lex, size_t tag) {
    size_t body = tag + 2 + (sign_at(lex, tag + 2) != '\0');
    const char *end = body <= lex->t->size ? memmem(lex->t->source + body, lex->t->size - body, "#}", 2) : NULL;
    if (!end)
        return lex_fail(lex, tag, "this comment has no end: expected '#}'");
    size_t close = (size_t)(end - lex->t->source);
    lex->pos = after_close(lex, close, close > body ? sign_at(lex, close - 1) : '\0');
    return TD_OK;
}

/* Reads "{%", a sign, `word`, and a closing delimiter; *close is where "%}" stands. */
static bool match_block_word(const td_jlex *lex, size_t tag, const char *word, char *end_sign, size_t *close) {
    size_t pos = skip_space(lex, tag + 2 + (sign_at(lex, tag + 2) != '\0'));
    if (!looking_at(lex, pos, word))
        return false;
    pos = skip_space(lex, pos + strlen(word));
    *end_sign = sign_at(lex, pos);
    *close = pos + (*end_sign != '\0');
    return *close <= lex->t->size && looking_at(lex, *close, "%}");
}

/* A raw block opens at `tag`: its content is data up to "endraw". */
static td_status lex_raw(td_jlex *lex, size_t tag, size_t close, char sign, td_jv *data) {
    size_t from = close + 2;
    if (sign == '-')
        from = skip_space(lex, from);
    for (size_t end = find_tag(lex, from); end < lex->t->size; end = find_tag(lex, end + 1)) {
        char end_sign;
        size_t end_close;
        if (lex->t->source[end + 1] != '%' || !match_block_word(lex, end, "endraw", &end_sign, &end_close))
            continue;
        *data = trimmed_data(lex, from, end, false, sign_at(lex, end + 2));
        lex->pos = after_close(lex, end_close, end_sign);
        return TD_OK;
    }
    return lex_fail(lex, tag, "this raw block has no end: expected '{% endraw %}'");
}

static td_status data_token(td_jlex *lex, td_jv data, td_jtoken *token) {
    token->kind = TD_JT_DATA;
    token->offset = (uint32_t)(data.text - lex->t->source);
    token->size = (uint32_t)data.size;
    token->value = data;
    return TD_OK;
}

static td_status open_tag(td_jlex *lex, size_t tag, td_jtoken *token) {
    bool print = lex->t->source[tag + 1] == '{';
    lex->state = print ? TD_JLEX_PRINT : TD_JLEX_BLOCK;
    lex->n_closers = 0;
    lex->pos = tag + 2 + (sign_at(lex, tag + 2) != '\0');
    *token = (td_jtoken){print ? TD_JT_PRINT_BEGIN : TD_JT_BLOCK_BEGIN, (uint32_t)tag, 2, td_jv_none()};
    return TD_OK;
}

static td_status lex_data(td_jlex *lex, td_jtoken *token) {
    for (;;) {
        size_t tag = find_tag(lex, lex->pos);
        char kind = tag < lex->t->size ? lex->t->source[tag + 1] : '\0';
        td_jv data = td_jv_text(lex->t->source + lex->pos, tag - lex->pos);
        if (kind)
            data = trimmed_data(lex, lex->pos, tag, kind == '{', sign_at(lex, tag + 2));
        lex->pos = tag;
        if (data.size)
            return data_token(lex, data, token);
        if (!kind) {
            *token = (td_jtoken){TD_JT_END, (uint32_t)tag, 0, td_jv_none()};
            return TD_OK;
        }
        char raw_sign;
        size_t raw_close;
        if (kind == '#') {
            TD_TRY(skip_comment(lex, tag));
        } else if (kind == '%' && match_block_word(lex, tag, "raw", &raw_sign, &raw_close) && raw_sign != '+') {
            TD_TRY(lex_raw(lex, tag, raw_close, raw_sign, &data));
            if (data.size)
                return data_token(lex, data, token);
        } else {
            return open_tag(lex, tag, token);
        }
    }
}

/* ---- inside a tag ---- */

static bool is_word_start(unsigned char c) {
    return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c >= 0x80;
}

static bool is_digit(int c) {
    return c >= '0' && c <= '9';
}

static bool is_base_digit(int c, int base) {
    if (base <= 10)
        return c >= '0' && c < '0' + base;
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

/* Digits of a base, single underscores between them; returns the end. */
static size_t digits_end(const td_jlex *lex, size_t pos, int base) {
    const char *s = lex->t->source;
    while (pos < lex->t->size && (is_base_digit(s[pos], base) ||
                                  (s[pos] == '_' && pos + 1 < lex->t->size && is_base_digit(s[pos + 1], base))))
        pos++;
    return pos;
}

static size_t float_end(const td_jlex *lex, size_t pos) {
    const char *s = lex->t->source;
    size_t n = lex->t->size, end = pos;
    if (end + 1 < n && s[end] == '.' && is_digit(s[end + 1]))
        end = digits_end(lex, end + 1, 10);
    size_t exponent = end;
    if (exponent < n && (s[exponent] == 'e' || s[exponent] == 'E')) {
        exponent++;
        if (exponent < n && (s[exponent] == '+' || s[exponent] == '-'))
            exponent++;
        if (exponent < n && is_digit(s[exponent]))
            end = digits_end(lex, exponent, 10);
    }
    return end;
}

static td_status lex_number(td_jlex *lex, td_jtoken *token) {
    const char *s = lex->t->source;
    size_t start = lex->pos;
    int base = 10;
    if (s[start] == '0' && start + 1 < lex->t->size) {
        int mark = s[start + 1] | 0x20;
        base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    }
    size_t end = digits_end(lex, start + (base != 10 ? 2 : 0), base);
    token->kind = TD_JT_NUMBER;
    size_t real_end = base == 10 && (start == 0 || s[start - 1] != '.') ? float_end(lex, end) : end;
    if (real_end > end) {
        double value;
        if (!td_jtext_to_float(td_jv_text(s + start, real_end - start), &value))
            return lex_fail(lex, start, "malformed number");
        token->value = td_jv_float(value);
        end = real_end;
    } else {
        int64_t value;
        if (base == 10 && s[start] == '0') /* leading zeros stand alone, so "007" is not a number */
            for (end = start; end < lex->t->size && (s[end] == '0' || s[end] == '_'); end++) {
            }
        if (!td_jtext_to_int(td_jv_text(s + start, end - start), base == 10 ? 10 : 0, &value))
            return lex_fail(lex, start, "malformed number, or one that does not fit 64 bits");
        token->value = td_jv_int(value);
    }
    token->size = (uint32_t)(end - start);
    lex->pos = end;
    return TD_OK;
}

static int hex_digits(const char *s, size_t n, uint32_t *value) {
    *value = 0;
    for (size_t i = 0; i < n; i++) {
        if (!is_base_digit(s[i], 16))
            return 0;
        *value = *value * 16 + (uint32_t)(is_digit(s[i]) ? s[i] - '0' : (s[i] | 0x20) - 'a' + 10);
    }
    return 1;
}

/* The escape at s[0] == '\\' of s[0..n): writes its character, returns the bytes read, 0 when malformed. */
static size_t unescape(const char *s, size_t n, char *out, size_t *written) {
    static const char letters[] = "\\'\"abfnrtv", meanings[] = "\\'\"\a\b\f\n\r\t\v";
    const char *letter = memchr(letters, s[1], sizeof letters - 1);
    uint32_t cp;
    *written = 0;
    if (s[1] == '\n')
        return 2;
    if (letter) {
        out[(*written)++] = meanings[letter - letters];
        return 2;
    }
    if (s[1] >= '0' && s[1] <= '7') {
        size_t length = 1;
        for (cp = 0; length < n && length < 4 && s[length] >= '0' && s[length] <= '7'; length++)
            cp = cp * 8 + (uint32_t)(s[length] - '0');
        *written = td_jchar_put(cp, out);
        return length;
    }
    size_t width = s[1] == 'x' ? 2 : s[1] == 'u' ? 4 : s[1] == 'U' ? 8 : 0;
    if (!width) { /* not an escape: the backslash stands for itself */
        out[(*written)++] = '\\';
        return s[1] == 'N' ? 0 : 1;
    }
    if (n < 2 + width || !hex_digits(s + 2, width, &cp))
        return 0;
    size_t length = 2 + width;
    uint32_t low;
    if (cp >= 0xd800 && cp < 0xdc00 && n >= length + 6 && s[length] == '\\' && s[length + 1] == 'u' &&
        hex_digits(s + length + 2, 4, &low) && low >= 0xdc00 && low < 0xe000) {
        cp = 0x10000 + ((cp - 0xd800) << 10) + (low - 0xdc00);
        length += 6;
    }
    if (cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
        return 0;
    *written = td_jchar_put(cp, out);
    return length;
}

static td_status unescape_string(td_jlex *lex, size_t from, size_t to, td_jv *value) {
    const char *s = lex->t->source;
    char *out = td_jarena_alloc(&lex->t->arena, to - from, 1); /* no escape is shorter than its character */
    if (!out)
        return td_fail(lex->err, lex->t->arena.failed, "out of memory for a chat template");
    size_t n = 0;
    while (from < to) {
        if (s[from] != '\\') {
            out[n++] = s[from++];
            continue;
        }
        size_t written, length = unescape(s + from, to - from, out + n, &written);
        if (!length)
            return lex_fail(lex, from, "malformed escape in a string");
        n += written;
        from += length;
    }
    *value = td_jv_text(out, n);
    return TD_OK;
}

static td_status lex_string(td_jlex *lex, td_jtoken *token) {
    const char *s = lex->t->source;
    char quote = s[lex->pos];
    size_t start = lex->pos + 1, end = start;
    bool escapes = false;
    while (end < lex->t->size && s[end] != quote) {
        if (s[end] == '\\') {
            escapes = true;
            end++;
        }
        end++;
    }
    if (end >= lex->t->size)
        return lex_fail(lex, lex->pos, "this string has no end");
    token->kind = TD_JT_STRING;
    token->value = td_jv_text(s + start, end - start);
    token->size = (uint32_t)(end + 1 - lex->pos);
    lex->pos = end + 1;
    return escapes ? unescape_string(lex, start, end, &token->value) : TD_OK;
}

static td_status lex_bracket(td_jlex *lex, char c) {
    static const char openers[] = "([{", closers[] = ")]}";
    const char *opener = strchr(openers, c);
    if (opener) {
        if (lex->n_closers == TD_JINJA_MAX_NESTING)
            return td_jinja_fail(lex->t, lex->pos, TD_E_LIMIT, lex->err, "brackets nested deeper than %d levels",
                                 TD_JINJA_MAX_NESTING);
        lex->closers[lex->n_closers++] = closers[opener - openers];
        return TD_OK;
    }
    if (!strchr(closers, c))
        return TD_OK;
    if (lex->n_closers == 0)
        return td_jinja_fail(lex->t, lex->pos, TD_E_FORMAT, lex->err, "unexpected '%c'", c);
    char expected = lex->closers[--lex->n_closers];
    if (c != expected)
        return td_jinja_fail(lex->t, lex->pos, TD_E_FORMAT, lex->err, "unexpected '%c', expected '%c'", c, expected);
    return TD_OK;
}

static const struct {
    char text[3];
    uint8_t kind;
} operators[] = {
    /* longer ones first */
    {"//", TD_JT_FLOORDIV}, {"**", TD_JT_POW},   {"==", TD_JT_EQ},      {"!=", TD_JT_NE},      {">=", TD_JT_GE},
    {"<=", TD_JT_LE},       {"+", TD_JT_ADD},    {"-", TD_JT_SUB},      {"/", TD_JT_DIV},      {"*", TD_JT_MUL},
    {"%", TD_JT_MOD},       {"~", TD_JT_TILDE},  {"[", TD_JT_LBRACKET}, {"]", TD_JT_RBRACKET}, {"(", TD_JT_LPAREN},
    {")", TD_JT_RPAREN},    {"{", TD_JT_LBRACE}, {"}", TD_JT_RBRACE},   {">", TD_JT_GT},       {"<", TD_JT_LT},
    {"=", TD_JT_ASSIGN},    {".", TD_JT_DOT},    {":", TD_JT_COLON},    {"|", TD_JT_PIPE},     {",", TD_JT_COMMA},
    {";", TD_JT_SEMICOLON},
};

static td_status lex_operator(td_jlex *lex, td_jtoken *token) {
    for (size_t i = 0; i < sizeof operators / sizeof operators[0]; i++) {
        if (!looking_at(lex, lex->pos, operators[i].text))
            continue;
        token->kind = operators[i].kind;
        token->size = (uint32_t)strlen(operators[i].text);
        if (token->size == 1)
            TD_TRY(lex_bracket(lex, operators[i].text[0]));
        lex->pos += token->size;
        return TD_OK;
    }
    uint32_t cp;
    size_t n = td_jchar(lex->t->source + lex->pos, lex->t->size - lex->pos, &cp);
    return td_jinja_fail(lex->t, lex->pos, TD_E_FORMAT, lex->err, "unexpected character '%.*s'", (int)n,
                         lex->t->source + lex->pos);
}

static bool lex_close(td_jlex *lex, td_jtoken *token) {
    bool print = lex->state == TD_JLEX_PRINT;
    const char *close = print ? "}}" : "%}";
    char sign = sign_at(lex, lex->pos);
    if (sign == '+' && print) /* "+}}" is an operator and a bracket */
        sign = '\0';
    size_t at = lex->pos + (sign != '\0');
    if (lex->n_closers || at > lex->t->size || !looking_at(lex, at, close))
        return false;
    token->kind = print ? TD_JT_PRINT_END : TD_JT_BLOCK_END;
    token->size = 2;
    lex->pos = print && sign == '\0' ? at + 2 : after_close(lex, at, sign);
    lex->state = TD_JLEX_DATA;
    return true;
}

static td_status lex_tag(td_jlex *lex, td_jtoken *token) {
    const char *s = lex->t->source;
    lex->pos = skip_space(lex, lex->pos);
    *token = (td_jtoken){TD_JT_END, (uint32_t)lex->pos, 0, td_jv_none()};
    if (lex->pos >= lex->t->size || lex_close(lex, token))
        return TD_OK;
    unsigned char c = (unsigned char)s[lex->pos];
    if (is_digit(c))
        return lex_number(lex, token);
    if (c == '"' || c == '\'')
        return lex_string(lex, token);
    if (!is_word_start(c))
        return lex_operator(lex, token);
    size_t start = lex->pos;
    while (lex->pos < lex->t->size && (is_word_start((unsigned char)s[lex->pos]) || is_digit(s[lex->pos])))
        lex->pos++;
    token->kind = TD_JT_NAME;
    token->size = (uint32_t)(lex->pos - start);
    token->value = td_jv_text(s + start, lex->pos - start);
    return TD_OK;
}

td_status td_jlex_next(td_jlex *lex, td_jtoken *token) {
    return lex->state == TD_JLEX_DATA ? lex_data(lex, token) : lex_tag(lex, token);
}
