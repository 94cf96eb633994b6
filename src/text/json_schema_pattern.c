/* json_schema_pattern.c - strings: lengths, patterns, formats.
 *
 * A pattern is ECMA's regular expression, read by recursive descent into the same tree that everything becomes; it has
 * no backtracking to run away with, since the automaton follows all ways at once. As JSON Schema has it, a pattern is
 * looked for anywhere in the string: what is not anchored has any characters on that side. Formats are patterns. */
#include <string.h>

#include "text/json_schema_impl.h"
#include "text/tokenizer_unicode.h"

enum { MAX_GROUPS = 50, MAX_COUNT = 100000 };

typedef struct regex {
    td_js *js;
    const char *text;
    size_t size, pos;
    unsigned nesting;
    /* for a length beside the pattern: the pattern is one class, this often */
    unsigned n_items;
    bool single; /* no groups or alternatives */
    td_gb_node only;
    uint32_t min, max;
} regex;

#define REFUSE(r, ...) td_js_fail((r)->js, TD_E_UNSUPPORTED, __VA_ARGS__)

static bool failed(const regex *r) {
    return td_gb_status(r->js->b) != TD_OK;
}

static char at(const regex *r, size_t ahead) {
    return r->pos + ahead < r->size ? r->text[r->pos + ahead] : '\0';
}

static bool at_end(const regex *r) {
    return r->pos >= r->size;
}

/* ---- classes ---- */

/* \d \w \s and their opposites. False: c names none. */
static bool add_class(td_char_set *s, char c) {
    static const struct {
        char name;
        const char *pairs;
    } classes[] = {{'d', "09"}, {'w', "azAZ09__"}, {'s', "\t\r  "}};
    td_char_set part = {0};
    size_t i = 0;
    while (i < 3 && classes[i].name != (c | 0x20))
        i++;
    if (i == 3)
        return false;
    for (const char *p = classes[i].pairs; *p; p += 2)
        td_char_set_add(&part, (unsigned char)p[0], (unsigned char)p[1]);
    if (i == 2) {
        static const uint32_t spaces[] = {0xA0, 0x1680, 0x2028, 0x2029, 0x202F, 0x205F, 0x3000};
        for (size_t k = 0; k < sizeof spaces / sizeof *spaces; k++)
            td_char_set_add(&part, spaces[k], spaces[k]);
        td_char_set_add(&part, 0x2000, 0x200A);
    }
    td_char_set_settle(&part);
    if (c < 'a')
        td_char_set_invert(&part);
    td_char_set_add_all(s, &part);
    td_char_set_free(&part);
    return true;
}

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static uint32_t hex(regex *r, int n) {
    uint32_t c = 0;
    for (int i = 0; i < n; i++, r->pos++) {
        int d = hex_digit(at(r, 0));
        if (d < 0) {
            REFUSE(r, "\"pattern\": %d hexadecimal digits are missing at byte %zu", n, r->pos);
            return 0;
        }
        c = c << 4 | (uint32_t)d;
    }
    return c;
}

/* \u1234, or a pair of them. */
static uint32_t unicode(regex *r) {
    uint32_t c = hex(r, 4);
    if (c >= 0xD800 && c < 0xDC00 && at(r, 0) == '\\' && at(r, 1) == 'u') {
        r->pos += 2;
        uint32_t low = hex(r, 4);
        c = 0x10000 + ((c - 0xD800) << 10) + (low - 0xDC00);
    }
    return c;
}

/* Behind a backslash: a class is added to s, a character too. False: neither, and the failure is noted. */
static bool escape(regex *r, td_char_set *s, uint32_t *c, bool *is_class) {
    static const char from[] = "nrtfv0", to[] = "\n\r\t\f\v";
    char e = at(r, 0);
    *is_class = e && strchr("dDwWsS", e) && add_class(s, e);
    if (*is_class) {
        r->pos++;
        return true;
    }
    const char *known = e ? strchr(from, e) : NULL;
    bool plain = e && !((e >= 'a' && e <= 'z') || (e >= 'A' && e <= 'Z') || (e >= '0' && e <= '9'));
    if (known) {
        *c = (unsigned char)to[known - from];
        r->pos++;
    } else if (e == 'x' || e == 'u') {
        r->pos++;
        *c = e == 'x' ? hex(r, 2) : unicode(r);
    } else if (plain) {
        r->pos += td_uni_next(r->text + r->pos, c);
    } else {
        REFUSE(r, "\"pattern\": \\%c is not supported", e ? e : ' ');
        return false;
    }
    return !failed(r);
}

static void class_item(regex *r, td_char_set *s) {
    uint32_t lo = 0, hi;
    bool is_class = false;
    if (at(r, 0) == '\\') {
        r->pos++;
        if (!escape(r, s, &lo, &is_class))
            return;
    } else {
        r->pos += td_uni_next(r->text + r->pos, &lo);
    }
    if (is_class)
        return;
    hi = lo;
    if (at(r, 0) == '-' && at(r, 1) != ']' && r->pos + 1 < r->size) {
        r->pos++;
        if (at(r, 0) == '\\') {
            r->pos++;
            if (!escape(r, s, &hi, &is_class))
                return;
        } else {
            r->pos += td_uni_next(r->text + r->pos, &hi);
        }
        if (is_class || hi < lo)
            REFUSE(r, "\"pattern\": a range of characters that is none before byte %zu", r->pos);
    }
    td_char_set_add(s, lo, hi);
}

static td_gb_node class_(regex *r) {
    td_char_set s = {0};
    r->pos++;
    bool inverted = at(r, 0) == '^';
    r->pos += inverted;
    while (!failed(r) && !at_end(r) && at(r, 0) != ']')
        class_item(r, &s);
    if (at_end(r))
        td_js_fail(r->js, TD_E_FORMAT, "\"pattern\": a [ without its ]");
    r->pos++;
    td_char_set_settle(&s);
    if (inverted)
        td_char_set_invert(&s);
    return td_js_set(r->js, &s);
}

/* ---- expressions ---- */

static td_gb_node alternatives(regex *r);

static td_gb_node group(regex *r) {
    if (++r->nesting > MAX_GROUPS)
        return td_js_fail(r->js, TD_E_LIMIT, "\"pattern\": groups nested deeper than %d levels", MAX_GROUPS);
    r->single = false;
    r->pos++;
    if (at(r, 0) == '?') {
        bool named = at(r, 1) == '<' && at(r, 2) != '=' && at(r, 2) != '!';
        if (!named && at(r, 1) != ':')
            return REFUSE(r, "\"pattern\": (?%c is not supported", at(r, 1) ? at(r, 1) : ' ');
        while (named && !at_end(r) && at(r, 0) != '>')
            r->pos++;
        r->pos += named ? 1 : 2;
    }
    td_gb_node node = alternatives(r);
    if (at(r, 0) != ')')
        return td_js_fail(r->js, TD_E_FORMAT, "\"pattern\": a ( without its )");
    r->pos++;
    r->nesting--;
    return node;
}

static td_gb_node atom(regex *r) {
    td_char_set s = {0};
    uint32_t c = 0;
    bool is_class;
    switch (at(r, 0)) {
    case '(':
        return group(r);
    case '[':
        return class_(r);
    case '.': /* anything but the ends of lines */
        r->pos++;
        td_char_set_add(&s, '\n', '\n');
        td_char_set_add(&s, '\r', '\r');
        td_char_set_add(&s, 0x2028, 0x2029);
        td_char_set_settle(&s);
        td_char_set_invert(&s);
        return td_js_set(r->js, &s);
    case '^':
    case '$':
        return REFUSE(r, "\"pattern\": %c in the middle is not supported", at(r, 0));
    case '*':
    case '+':
    case '?':
    case '{':
        return td_js_fail(r->js, TD_E_FORMAT, "\"pattern\": nothing to repeat at byte %zu", r->pos);
    case '\\':
        r->pos++;
        if (!escape(r, &s, &c, &is_class)) {
            td_char_set_free(&s);
            return 0;
        }
        if (!is_class)
            td_char_set_add(&s, c, c);
        return td_js_set(r->js, &s);
    default:
        r->pos += td_uni_next(r->text + r->pos, &c);
        td_char_set_add(&s, c, c);
        return td_js_set(r->js, &s);
    }
}

static uint32_t count(regex *r) {
    uint32_t n = 0;
    if (at(r, 0) < '0' || at(r, 0) > '9')
        td_js_fail(r->js, TD_E_FORMAT, "\"pattern\": a number is missing at byte %zu", r->pos);
    for (; at(r, 0) >= '0' && at(r, 0) <= '9'; r->pos++)
        n = n > MAX_COUNT ? n : n * 10 + (uint32_t)(at(r, 0) - '0');
    if (n > MAX_COUNT)
        td_js_fail(r->js, TD_E_LIMIT, "\"pattern\": a repetition of more than %d times", MAX_COUNT);
    return n;
}

static void bounds(regex *r, uint32_t *min, uint32_t *max) {
    r->pos++;
    *max = *min = count(r);
    if (at(r, 0) == ',') {
        r->pos++;
        *max = at(r, 0) == '}' ? TD_GB_NO_MAX : count(r);
    }
    if (at(r, 0) != '}' || *max < *min)
        td_js_fail(r->js, TD_E_FORMAT, "\"pattern\": bounds of a repetition that are none at byte %zu", r->pos);
    r->pos++;
}

static td_gb_node repeated(regex *r) {
    td_gb_node node = atom(r);
    uint32_t min = 1, max = 1;
    char c = at(r, 0);
    if (c == '*' || c == '+' || c == '?') {
        min = c == '+';
        max = c == '?' ? 1 : TD_GB_NO_MAX;
        r->pos++;
    } else if (c == '{') {
        bounds(r, &min, &max);
    }
    if ((c == '*' || c == '+' || c == '?' || c == '{') && at(r, 0) == '?')
        r->pos++; /* lazy: the same texts */
    r->n_items++;
    r->only = node;
    r->min = min;
    r->max = max;
    return td_gb_repeat(r->js->b, node, min, max);
}

static bool ends_here(const regex *r) {
    return at_end(r) || at(r, 0) == '|' || at(r, 0) == ')' ||
           (at(r, 0) == '$' && (r->pos + 1 == r->size || at(r, 1) == '|') && r->nesting == 0);
}

static td_gb_node sequence(regex *r) {
    td_gb_list items = {0};
    while (!failed(r) && !ends_here(r))
        td_gb_push(r->js->b, &items, repeated(r));
    td_gb_node node = td_gb_seq(r->js->b, items.v, items.n);
    td_gb_list_free(&items);
    return node;
}

static td_gb_node anything(td_js *js) {
    return td_gb_repeat(js->b, td_js_char(js), 0, TD_GB_NO_MAX);
}

/* At the top, each alternative has anchors of its own. */
static td_gb_node anchored(regex *r) {
    bool front = r->nesting == 0 && at(r, 0) == '^';
    r->pos += front;
    td_gb_node node = sequence(r);
    if (r->nesting > 0)
        return node;
    bool back = at(r, 0) == '$';
    r->pos += back;
    r->single = r->single && front && back;
    return TD_GB_SEQ(r->js->b, front ? 0 : anything(r->js), node, back ? 0 : anything(r->js));
}

static td_gb_node alternatives(regex *r) {
    td_gb_list ways = {0};
    td_gb_push(r->js->b, &ways, anchored(r));
    while (!failed(r) && at(r, 0) == '|') {
        r->pos++;
        r->single = false;
        td_gb_push(r->js->b, &ways, anchored(r));
    }
    td_gb_node node = td_gb_alt(r->js->b, ways.v, ways.n);
    td_gb_list_free(&ways);
    return node;
}

/* The one group around a whole pattern, "^(...)$", does not matter to its alternatives' anchors. */
static td_gb_node read_pattern(td_js *js, const char *text, size_t size, uint32_t min, uint32_t max) {
    regex r = {.js = js, .text = text, .size = size, .single = true};
    if (memchr(text, '\0', size) || td_uni_valid(text, size) != size)
        return td_js_fail(js, TD_E_FORMAT, "\"pattern\" is not text");
    td_gb_node node = alternatives(&r);
    if (!failed(&r) && !at_end(&r))
        return td_js_fail(js, TD_E_FORMAT, "\"pattern\": a ) too many at byte %zu", r.pos);
    if (failed(&r) || (min == 0 && max == TD_GB_NO_MAX))
        return node;
    if (!r.single || r.n_items != 1)
        return td_js_fail(js, TD_E_UNSUPPORTED,
                          "\"pattern\" beside a length is supported only where it is one repeated class");
    min = r.min > min ? r.min : min;
    max = r.max < max ? r.max : max;
    return max < min ? td_gb_alt(js->b, NULL, 0) : td_gb_repeat(js->b, r.only, min, max);
}

/* ---- formats ---- */

#define YEAR "([1-9][0-9]{3})"
#define LEAP "([1-9][0-9](0[48]|[2468][048]|[13579][26])|([2468][048]|[13579][26])00)"
#define DATE                                                                                                           \
    "(" YEAR                                                                                                           \
    "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)|02-(0[1-9]|1[0-9]|2[0-8]))"         \
    "|" LEAP "-02-29)"
#define TIME "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9])"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"
#define HEX4 "[0-9A-Fa-f]{1,4}"

static const struct {
    const char *name, *pattern; /* NULL: says nothing */
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^P([0-9]{1,4}W|[0-9]{1,4}Y([0-9]{1,2}M([0-9]{1,2}D)?)?|[0-9]{1,2}M([0-9]{1,2}D)?|[0-9]{1,3}D"
                 "|([0-9]{1,3}D)?T([0-9]{1,3}H([0-9]{1,2}M([0-9]{1,2}S)?)?|[0-9]{1,3}M([0-9]{1,2}S)?|[0-9]{1,3}S))$"},
    {"uuid", "^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$"},
    {"email", "^[A-Za-z0-9_+-]{1,30}(\\.[A-Za-z0-9_+-]{1,15}){0,2}@(" LABEL "\\.){1,3}[A-Za-z]{2,12}$"},
    {"hostname", "^(" LABEL "\\.){0,5}[A-Za-z]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?$"},
    {"ipv4", "^(" OCTET "\\.){3}" OCTET "$"},
    {"ipv6", "^((" HEX4 ":){7}" HEX4 "|(" HEX4 ":){6}:" HEX4 "|(" HEX4 ":){5}(:" HEX4 "){1,2}|(" HEX4 ":){4}(:" HEX4
             "){1,3}|(" HEX4 ":){3}(:" HEX4 "){1,4}|(" HEX4 ":){2}(:" HEX4 "){1,5}|" HEX4 ":(:" HEX4 "){1,6}|:(:" HEX4
             "){1,7}|::)$"},
    {"uri", "^(https?|ftp)://(" LABEL "\\.){0,4}" LABEL "(:[1-9][0-9]{0,3})?(/[A-Za-z0-9._~%+-]{0,60}){0,12}"
            "(\\?[A-Za-z0-9._~+=&-]{0,120})?(#[A-Za-z0-9._~-]{0,60})?$"},
    {"int32", NULL},
    {"int64", NULL},
    {"float", NULL},
    {"double", NULL},
    {"password", NULL},
    {"binary", NULL},
    {"byte", NULL},
};

/* The pattern of a format; *found: it is one of ours. */
static const char *format_pattern(const char *name, bool *found) {
    *found = true;
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (strcmp(formats[i].name, name) == 0)
            return formats[i].pattern;
    *found = false;
    return NULL;
}

/* ---- strings ---- */

static td_gb_node content(td_js *js, const json_t *schema) {
    const json_t *pattern = json_object_get(schema, "pattern"), *format = json_object_get(schema, "format");
    uint32_t min = td_js_count(js, schema, "minLength", 0), max = td_js_count(js, schema, "maxLength", TD_GB_NO_MAX);
    bool found = true;
    if ((pattern && !json_is_string(pattern)) || (format && !json_is_string(format)))
        return td_js_fail(js, TD_E_FORMAT, "\"%s\" is not a string",
                          pattern && !json_is_string(pattern) ? "pattern" : "format");
    if (max < min)
        return td_js_fail(js, TD_E_FORMAT, "\"minLength\" is %u and \"maxLength\" %u", min, max);
    const char *of_format = format ? format_pattern(json_string_value(format), &found) : NULL;
    if (!found)
        return td_js_fail(js, TD_E_UNSUPPORTED, "the format \"%.60s\" is not supported", json_string_value(format));
    if (of_format && (pattern || min > 0 || max != TD_GB_NO_MAX))
        return td_js_fail(js, TD_E_UNSUPPORTED, "\"format\" beside \"pattern\" or a length is not supported");
    if (of_format)
        return read_pattern(js, of_format, strlen(of_format), 0, TD_GB_NO_MAX);
    if (pattern)
        return read_pattern(js, json_string_value(pattern), json_string_length(pattern), min, max);
    return td_gb_repeat(js->b, td_js_char(js), min, max);
}

td_gb_node td_js_string(td_js *js, const json_t *schema) {
    static const char *const limits[] = {"pattern", "minLength", "maxLength", "format"};
    bool limited = false, found;
    for (size_t i = 0; i < 3; i++)
        limited = limited || json_object_get(schema, limits[i]);
    const char *format = json_string_value(json_object_get(schema, "format"));
    limited = limited || (json_object_get(schema, "format") && !format) ||
              (format && (format_pattern(format, &found) || !found));
    return limited ? td_js_quoted(js, content(js, schema)) : td_js_any_string(js);
}
