/* reply_json.c - a push reader of JSON (RFC 8259) that writes what it reads: strict, compact, mended.
 *
 * The pull reader of the format room wants its text whole and gives its tokens; here a byte comes at a time and must go
 * out at once, because a client waits for it. Mended on the way are the slips of models that have one meaning only:
 * control characters inside strings, escapes that do not exist, halves of surrogate pairs. Everything else that is not
 * JSON is BAD. The stack of brackets is a fixed array: no recursion, no allocation of its own. */
#include "text/reply_impl.h"

#include <string.h>

enum {
    VALUE,         /* a value must come */
    FIRST_VALUE,   /* or the end of the array */
    FIRST_KEY,     /* a key or the end of the object */
    KEY,           /* a key must come */
    COLON,         /* */
    NEXT,          /* a comma or a closing bracket */
    STRING,        /* inside a string */
    ESCAPE,        /* behind a backslash */
    HEX,           /* behind \u */
    LITERAL,       /* inside true, false, null */
    MINUS,         /* a number: behind its sign, */
    ZERO,          /* behind a leading 0, */
    INTEGER,       /* among other digits, */
    POINT,         /* behind the point, */
    FRACTION,      /* among the digits behind it, */
    EXPONENT,      /* behind e, */
    EXPONENT_SIGN, /* behind its sign, */
    POWER,         /* among its digits */
    END,
};

void td_reply_json_init(td_reply_json *j) {
    memset(j, 0, sizeof *j);
    j->state = VALUE;
}

static td_status put_unit(td_buf *out, uint32_t unit) {
    return td_buf_printf(out, "\\u%04x", (unsigned)unit);
}

td_status td_reply_json_escape(td_buf *out, char c) {
    static const char plain[] = "\"\\\n\r\t\b\f", letter[] = "\"\\nrtbf";
    if ((unsigned char)c >= 0x20 && c != '"' && c != '\\')
        return td_buf_putc(out, c);
    const char *at = c ? strchr(plain, c) : NULL;
    if (!at)
        return put_unit(out, (unsigned char)c);
    const char pair[2] = {'\\', letter[at - plain]};
    return td_buf_append(out, pair, 2);
}

/* ---- values ---- */

static td_reply_json_result value_done(td_reply_json *j) {
    j->state = j->depth ? NEXT : END;
    return j->depth ? TD_REPLY_JSON_MORE : TD_REPLY_JSON_DONE;
}

static td_reply_json_result open_bracket(td_reply_json *j, char c) {
    if (j->depth == TD_REPLY_MAX_NESTING)
        return TD_REPLY_JSON_DEEP;
    j->open[j->depth++] = c;
    j->state = c == '{' ? FIRST_KEY : FIRST_VALUE;
    return TD_REPLY_JSON_MORE;
}

static td_reply_json_result close_bracket(td_reply_json *j, char c) {
    if (j->depth == 0 || j->open[j->depth - 1] != (c == '}' ? '{' : '['))
        return TD_REPLY_JSON_BAD;
    j->depth--;
    return value_done(j);
}

static td_reply_json_result begin_literal(td_reply_json *j, const char *rest) {
    j->literal = rest;
    j->state = LITERAL;
    return TD_REPLY_JSON_MORE;
}

static td_reply_json_result begin_state(td_reply_json *j, uint8_t state) {
    j->state = state;
    return TD_REPLY_JSON_MORE;
}

static td_reply_json_result begin_value(td_reply_json *j, char c) {
    switch (c) {
    case '{':
    case '[':
        return open_bracket(j, c);
    case ']':
        return j->state == FIRST_VALUE ? close_bracket(j, c) : TD_REPLY_JSON_BAD;
    case '"':
        j->key = false;
        return begin_state(j, STRING);
    case 't':
        return begin_literal(j, "rue");
    case 'f':
        return begin_literal(j, "alse");
    case 'n':
        return begin_literal(j, "ull");
    case '-':
        return begin_state(j, MINUS);
    case '0':
        return begin_state(j, ZERO);
    default:
        return c >= '1' && c <= '9' ? begin_state(j, INTEGER) : TD_REPLY_JSON_BAD;
    }
}

/* The structure between values; white space has been skipped. */
static td_reply_json_result structure(td_reply_json *j, char c) {
    switch (j->state) {
    case VALUE:
    case FIRST_VALUE:
        return begin_value(j, c);
    case FIRST_KEY:
        if (c == '}')
            return close_bracket(j, c);
        /* fall through */
    case KEY:
        j->key = true;
        return c == '"' ? begin_state(j, STRING) : TD_REPLY_JSON_BAD;
    case COLON:
        return c == ':' ? begin_state(j, VALUE) : TD_REPLY_JSON_BAD;
    default: /* NEXT */
        if (c == ',')
            return begin_state(j, j->open[j->depth - 1] == '{' ? KEY : VALUE);
        return c == '}' || c == ']' ? close_bracket(j, c) : TD_REPLY_JSON_BAD;
    }
}

static td_reply_json_result literal(td_reply_json *j, char c) {
    if (c != *j->literal)
        return TD_REPLY_JSON_BAD;
    return *++j->literal ? TD_REPLY_JSON_MORE : value_done(j);
}

/* ---- numbers ---- */

static uint8_t after_digit(uint8_t state, char c) {
    switch (state) {
    case MINUS:
        return c == '0' ? ZERO : INTEGER;
    case INTEGER:
        return INTEGER;
    case POINT:
    case FRACTION:
        return FRACTION;
    case EXPONENT:
    case EXPONENT_SIGN:
    case POWER:
        return POWER;
    default: /* ZERO: no digit may follow */
        return END;
    }
}

/* The state behind c, END when the number cannot go on with it. */
static uint8_t after(uint8_t state, char c) {
    if (c >= '0' && c <= '9')
        return after_digit(state, c);
    if (c == '.' && (state == ZERO || state == INTEGER))
        return POINT;
    if ((c == 'e' || c == 'E') && (state == ZERO || state == INTEGER || state == FRACTION))
        return EXPONENT;
    if ((c == '+' || c == '-') && state == EXPONENT)
        return EXPONENT_SIGN;
    return END;
}

static bool is_number(uint8_t state) {
    return state == ZERO || state == INTEGER || state == FRACTION || state == POWER;
}

static td_status number(td_reply_json *j, char c, td_buf *out, td_reply_json_result *result) {
    uint8_t next = after(j->state, c);
    *result = TD_REPLY_JSON_MORE;
    if (next != END) {
        j->state = next;
        return td_buf_putc(out, c);
    }
    if (!is_number(j->state)) {
        *result = TD_REPLY_JSON_BAD;
        return TD_OK;
    }
    if (value_done(j) == TD_REPLY_JSON_MORE)
        return td_reply_json_step(j, c, out, result); /* once: the state is NEXT */
    *result = TD_REPLY_JSON_OVER;
    return TD_OK;
}

/* ---- strings ---- */

/* A high surrogate whose other half did not come. */
static td_status drop_half(td_reply_json *j, td_buf *out) {
    if (!j->high)
        return TD_OK;
    j->high = 0;
    return put_unit(out, 0xFFFD);
}

static td_status string_byte(td_reply_json *j, char c, td_buf *out, td_reply_json_result *result) {
    *result = TD_REPLY_JSON_MORE;
    if (c == '\\') {
        j->state = ESCAPE;
        return TD_OK;
    }
    TD_TRY(drop_half(j, out));
    if (c != '"')
        return td_reply_json_escape(out, c);
    *result = j->key ? begin_state(j, COLON) : value_done(j);
    return td_buf_putc(out, c);
}

static td_status escape(td_reply_json *j, char c, td_buf *out, td_reply_json_result *result) {
    *result = TD_REPLY_JSON_MORE;
    j->state = STRING;
    if (c == 'u') {
        j->state = HEX;
        j->unit = j->n = 0;
        return TD_OK;
    }
    TD_TRY(drop_half(j, out));
    if (c == '\'')
        return td_buf_putc(out, c);
    bool known = c && strchr("\"\\/bfnrt", c);
    TD_TRY(td_buf_puts(out, known ? "\\" : "\\\\"));
    return known ? td_buf_putc(out, c) : td_reply_json_escape(out, c);
}

static td_status unit_done(td_reply_json *j, td_buf *out) {
    bool low = j->unit >= 0xDC00 && j->unit <= 0xDFFF, high = j->unit >= 0xD800 && j->unit < 0xDC00;
    if (low && j->high) {
        TD_TRY(put_unit(out, j->high));
        j->high = 0;
        return put_unit(out, j->unit);
    }
    TD_TRY(drop_half(j, out));
    if (high) {
        j->high = j->unit;
        return TD_OK;
    }
    return put_unit(out, low ? 0xFFFD : j->unit);
}

static td_status hex(td_reply_json *j, char c, td_buf *out, td_reply_json_result *result) {
    static const char digits[] = "0123456789abcdef";
    const char *at = c ? strchr(digits, c >= 'A' && c <= 'F' ? c | 0x20 : c) : NULL;
    *result = at ? TD_REPLY_JSON_MORE : TD_REPLY_JSON_BAD;
    if (!at)
        return TD_OK;
    j->unit = j->unit << 4 | (uint32_t)(at - digits);
    if (++j->n < 4)
        return TD_OK;
    j->state = STRING;
    return unit_done(j, out);
}

/* ---- the reader ---- */

td_status td_reply_json_step(td_reply_json *j, char c, td_buf *out, td_reply_json_result *result) {
    if (j->state == STRING)
        return string_byte(j, c, out, result);
    if (j->state == ESCAPE)
        return escape(j, c, out, result);
    if (j->state == HEX)
        return hex(j, c, out, result);
    if (j->state >= MINUS && j->state <= POWER)
        return number(j, c, out, result);
    *result = TD_REPLY_JSON_MORE;
    if (j->state != LITERAL && td_reply_is_space(c))
        return TD_OK;
    *result = j->state == LITERAL ? literal(j, c) : j->state == END ? TD_REPLY_JSON_BAD : structure(j, c);
    bool taken = *result == TD_REPLY_JSON_MORE || *result == TD_REPLY_JSON_DONE;
    return taken ? td_buf_putc(out, c) : TD_OK;
}

bool td_reply_json_may_end(const td_reply_json *j) {
    return j->state == END || (j->depth == 0 && is_number(j->state));
}

td_status td_reply_json_whole(const char *text, size_t size, td_buf *out, td_reply_json_result *result) {
    td_reply_json j;
    td_reply_json_init(&j);
    *result = TD_REPLY_JSON_MORE;
    for (size_t i = 0; i < size; i++) {
        if (j.state == END && td_reply_is_space(text[i]))
            continue;
        TD_TRY(td_reply_json_step(&j, text[i], out, result));
        if (*result == TD_REPLY_JSON_BAD || *result == TD_REPLY_JSON_DEEP)
            return TD_OK;
        if (*result == TD_REPLY_JSON_OVER && !td_reply_is_space(text[i])) {
            *result = TD_REPLY_JSON_BAD;
            return TD_OK;
        }
    }
    *result = td_reply_json_may_end(&j) ? TD_REPLY_JSON_DONE : TD_REPLY_JSON_MORE;
    return TD_OK;
}
