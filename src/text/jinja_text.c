/* jinja_text.c - values as text: Python's str() and repr(), and numbers to and from their digits. */
#include <ctype.h>
#include <float.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_internal.h"

/* ---- numbers ---- */

/* The significant digits of |d| with `precision` of them, and the decimal exponent of the first. Whatever the locale
 * puts between the digits is skipped. */
static int scientific(double d, int precision, char digits[20]) {
    char text[64];
    int n = 0;
    snprintf(text, sizeof text, "%.*e", precision - 1, fabs(d));
    char *p = text;
    for (; *p && *p != 'e'; p++)
        if (*p >= '0' && *p <= '9' && n < 19)
            digits[n++] = *p;
    digits[n] = '\0';
    return *p == 'e' ? atoi(p + 1) : 0;
}

/* Fifteen digits always survive a round trip, so if they read back as d they are, without trailing zeros, the shortest
 * that do; seventeen always read back. Subnormal numbers have fewer bits, so there shorter ones must be tried. */
static int shortest(double d, char digits[20]) {
    int exponent = 0;
    for (int precision = fabs(d) < DBL_MIN ? 1 : 15; precision <= 17; precision++) {
        char text[64];
        exponent = scientific(d, precision, digits);
        snprintf(text, sizeof text, "%.*e", precision - 1, fabs(d));
        if (strtod(text, NULL) == fabs(d))
            break;
    }
    size_t n = strlen(digits);
    while (n > 1 && digits[n - 1] == '0')
        digits[--n] = '\0';
    return exponent;
}

size_t td_jtext_float(double d, char out[32]) {
    char digits[20], *p = out;
    if (isnan(d))
        return (size_t)sprintf(out, "nan");
    if (isinf(d))
        return (size_t)sprintf(out, "%s", d < 0 ? "-inf" : "inf");
    if (signbit(d))
        *p++ = '-';
    int exponent = shortest(d, digits), n = (int)strlen(digits);
    if (exponent < -4 || exponent >= 16) {
        p += sprintf(p, "%c%s%s", digits[0], n > 1 ? "." : "", digits + 1);
        p += sprintf(p, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
        return (size_t)(p - out);
    }
    if (exponent < 0)
        return (size_t)(p - out) + (size_t)sprintf(p, "0.%.*s%s", -exponent - 1, "0000", digits);
    for (int i = 0; i <= exponent; i++)
        *p++ = i < n ? digits[i] : '0';
    *p++ = '.';
    p += sprintf(p, "%s", n > exponent + 1 ? digits + exponent + 1 : "0");
    return (size_t)(p - out);
}

/* Copies the text without surrounding space and without single underscores between digits; false when it is too long
 * to be a number or has an underscore elsewhere. */
static bool number_text(td_jv text, char *out, size_t room) {
    text = td_jstr_strip(text, td_jv_none(), true, true);
    size_t n = 0;
    for (size_t i = 0; i < text.size; i++) {
        unsigned char c = (unsigned char)text.text[i];
        if (c >= 0x80 || c == '\0' || n + 1 >= room)
            return false;
        if (c == '_') {
            if (i == 0 || i + 1 == text.size || !isalnum((unsigned char)text.text[i - 1]) ||
                !isalnum((unsigned char)text.text[i + 1]))
                return false;
            continue;
        }
        out[n++] = (char)c;
    }
    out[n] = '\0';
    return n > 0;
}

static bool is_decimal_number(const char *s) {
    size_t digits = 0;
    if (*s == '+' || *s == '-')
        s++;
    for (; *s >= '0' && *s <= '9'; s++)
        digits++;
    if (*s == '.')
        for (s++; *s >= '0' && *s <= '9'; s++)
            digits++;
    if (!digits)
        return false;
    if (*s != 'e' && *s != 'E')
        return *s == '\0';
    s++;
    if (*s == '+' || *s == '-')
        s++;
    if (!(*s >= '0' && *s <= '9'))
        return false;
    while (*s >= '0' && *s <= '9')
        s++;
    return *s == '\0';
}

/* strtod wants the locale's decimal point; a program that embeds the library may have set a locale. */
static double read_decimal(const char *s) {
    const char *point = localeconv()->decimal_point, *dot = strchr(s, '.');
    char local[560];
    if (!dot || !strcmp(point, "."))
        return strtod(s, NULL);
    snprintf(local, sizeof local, "%.*s%s%s", (int)(dot - s), s, point, dot + 1);
    return strtod(local, NULL);
}

bool td_jtext_to_float(td_jv text, double *out) {
    char s[512];
    if (!number_text(text, s, sizeof s))
        return false;
    if (is_decimal_number(s)) {
        *out = read_decimal(s);
        return true;
    }
    const char *word = s + (*s == '+' || *s == '-');
    double value;
    if (!strcasecmp(word, "inf") || !strcasecmp(word, "infinity"))
        value = HUGE_VAL;
    else if (!strcasecmp(word, "nan"))
        value = NAN;
    else
        return false;
    *out = *s == '-' ? -value : value;
    return true;
}

static unsigned digit_value(char c) {
    if (c >= '0' && c <= '9')
        return (unsigned)(c - '0');
    c = (char)(c | 0x20);
    return c >= 'a' && c <= 'z' ? (unsigned)(c - 'a') + 10 : 99;
}

/* "0x", "0o", "0b": fits the base asked for, or, with base 0, decides it. */
static const char *skip_prefix(const char *s, unsigned *base) {
    unsigned marked = 0;
    if (s[0] == '0' && s[1])
        marked = (s[1] | 0x20) == 'x' ? 16 : (s[1] | 0x20) == 'o' ? 8 : (s[1] | 0x20) == 'b' ? 2 : 0;
    bool fits = marked && (*base == 0 || *base == marked);
    if (*base == 0)
        *base = marked ? marked : 10;
    return fits ? s + 2 : s;
}

bool td_jtext_to_int(td_jv text, unsigned base, int64_t *out) {
    char s[512];
    if (!number_text(text, s, sizeof s))
        return false;
    bool negative = *s == '-';
    const char *p = skip_prefix(s + (*s == '+' || *s == '-'), &base);
    if (!*p)
        return false;
    int64_t value = 0; /* kept negative, where there is one more number */
    for (; *p; p++) {
        unsigned digit = digit_value(*p);
        if (digit >= base || __builtin_mul_overflow(value, (int64_t)base, &value) ||
            __builtin_sub_overflow(value, (int64_t)digit, &value))
            return false;
    }
    if (!negative && value == INT64_MIN)
        return false;
    *out = negative ? value : -value;
    return true;
}

/* ---- repr ---- */

static td_status repr_char(td_jrun *r, td_jv c, uint32_t cp, char quote) {
    if (cp == (uint32_t)quote || cp == '\\')
        return td_jrun_writef(r, "\\%c", (int)cp);
    if (cp == '\n' || cp == '\r' || cp == '\t')
        return td_jrun_puts(r, cp == '\n' ? "\\n" : cp == '\r' ? "\\r" : "\\t");
    if (td_jchar_is_printable(cp))
        return td_jrun_write(r, c.text, c.size);
    return td_jrun_writef(r, cp < 0x100 ? "\\x%02x" : cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
}

static td_status repr_text(td_jrun *r, td_jv s) {
    char quote = s.size && memchr(s.text, '\'', s.size) && !memchr(s.text, '"', s.size) ? '"' : '\'';
    TD_TRY(td_jrun_charge(r, s.size));
    TD_TRY(td_jrun_write(r, &quote, 1));
    for (size_t i = 0, step; i < s.size; i += step) {
        uint32_t cp;
        step = td_jchar(s.text + i, s.size - i, &cp);
        TD_TRY(repr_char(r, td_jv_text(s.text + i, step), cp, quote));
    }
    return td_jrun_write(r, &quote, 1);
}

static td_status repr_items(td_jrun *r, const char *open, const td_jlist *list, const char *close) {
    TD_TRY(td_jrun_puts(r, open));
    for (size_t i = 0; i < list->n; i++) {
        if (i)
            TD_TRY(td_jrun_puts(r, ", "));
        TD_TRY(td_jv_repr(r, list->items[i]));
    }
    return td_jrun_puts(r, close);
}

static td_status repr_list(td_jrun *r, const td_jlist *list) {
    switch (list->flavour) {
    case TD_J_TUPLE:
    case TD_J_GROUP:
        return repr_items(r, "(", list, list->n == 1 ? ",)" : ")");
    case TD_J_GENERATOR:
        return td_jrun_puts(r, "<generator object>");
    case TD_J_RANGE:
        TD_TRY(td_jrun_writef(r, "range(%lld, %lld", (long long)list->range[0], (long long)list->range[1]));
        return list->range[2] == 1 ? td_jrun_puts(r, ")") : td_jrun_writef(r, ", %lld)", (long long)list->range[2]);
    case TD_J_KEYS:
        return repr_items(r, "dict_keys([", list, "])");
    case TD_J_VALUES:
        return repr_items(r, "dict_values([", list, "])");
    case TD_J_ITEMS:
        return repr_items(r, "dict_items([", list, "])");
    default:
        return repr_items(r, "[", list, "]");
    }
}

static td_status repr_dict(td_jrun *r, const td_jdict *dict) {
    TD_TRY(td_jrun_puts(r, "{"));
    for (size_t i = 0; i < dict->n; i++) {
        if (i)
            TD_TRY(td_jrun_puts(r, ", "));
        TD_TRY(td_jv_repr(r, dict->entries[i].key));
        TD_TRY(td_jrun_puts(r, ": "));
        TD_TRY(td_jv_repr(r, dict->entries[i].value));
    }
    return td_jrun_puts(r, "}");
}

static td_status repr_nested(td_jrun *r, td_jv v) {
    TD_TRY(td_jrun_enter(r));
    if (v.kind == TD_J_LIST) {
        TD_TRY(repr_list(r, v.list));
    } else {
        TD_TRY(td_jrun_puts(r, v.kind == TD_J_NAMESPACE ? "<Namespace " : ""));
        TD_TRY(repr_dict(r, v.dict));
        TD_TRY(td_jrun_puts(r, v.kind == TD_J_NAMESPACE ? ">" : ""));
    }
    td_jrun_leave(r);
    return TD_OK;
}

td_status td_jv_repr(td_jrun *r, td_jv v) {
    char number[32];
    TD_TRY(td_jrun_charge(r, 0));
    switch ((td_jkind)v.kind) {
    case TD_J_UNDEFINED:
        return td_jrun_puts(r, "Undefined");
    case TD_J_NONE:
        return td_jrun_puts(r, "None");
    case TD_J_BOOL:
        return td_jrun_puts(r, v.boolean ? "True" : "False");
    case TD_J_INT:
        return td_jrun_writef(r, "%lld", (long long)v.integer);
    case TD_J_FLOAT:
        return td_jrun_write(r, number, td_jtext_float(v.real, number));
    case TD_J_STRING:
        return repr_text(r, v);
    case TD_J_LIST:
    case TD_J_DICT:
    case TD_J_NAMESPACE:
        return repr_nested(r, v);
    case TD_J_FUNCTION:
        return td_jrun_writef(r, "<function %s>", v.function->name);
    case TD_J_METHOD:
        return td_jrun_writef(r, "<built-in method %s of %s object>", v.bound->method->name,
                              td_jv_type_name(v.bound->self));
    case TD_J_MACRO:
        return td_jrun_writef(r, "<Macro '%.*s'>", (int)v.macro->def->name.size, v.macro->def->name.text);
    case TD_J_LOOP:
        return td_jrun_writef(r, "<LoopContext %zu/%zu>", v.loop->index + 1, v.loop->n);
    default:
        return td_jrun_writef(r, "<%s>", td_jv_type_name(v));
    }
}

td_status td_jv_write(td_jrun *r, td_jv v) {
    if (v.kind == TD_J_STRING) {
        TD_TRY(td_jrun_charge(r, v.size));
        return td_jrun_write(r, v.text, v.size);
    }
    return v.kind == TD_J_UNDEFINED ? TD_OK : td_jv_repr(r, v);
}

td_status td_jv_string(td_jrun *r, td_jv v, td_jv *out) {
    *out = v;
    if (v.kind == TD_J_STRING)
        return TD_OK;
    size_t mark = r->out->size;
    TD_TRY(td_jv_write(r, v));
    return td_jrun_take(r, mark, out);
}
