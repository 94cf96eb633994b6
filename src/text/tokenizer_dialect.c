/* tokenizer_dialect.c - from Oniguruma's Ruby syntax to PCRE2's, one pass, left to right.
 *
 * The two agree on most of what split expressions use. Where they do not, the same text would mean something else
 * without a word, so each of these is rewritten:
 *   \s \S      White_Space; PCRE2 adds U+180E          \h \H    a hex digit; in PCRE2 horizontal space
 *   \w \W      with marks; PCRE2 2022 has none         \b \B    follow \w
 *   \v         a vertical tab; in PCRE2 a class        \uXXXX   \x{XXXX}
 *   \p{Han}    the script; PCRE2 takes extensions      (?m:     dot matches a line end; in PCRE2 (?s:
 *   X{2,3}+    a repeat of the repeat, not possessive  X{,3}    X{0,3}
 *   [a[bc]]    a union; PCRE2 would end at the first ]
 * Refused, since nobody was seen to publish them: intersections (&&), negated classes inside classes, callouts,
 * absent operators, unknown escapes.
 *
 * A quantifier of the last row wraps the atom before it, so the translator remembers where that began. */
#include "text/tokenizer_dialect.h"

#include <string.h>

#include "format/json_scan.h"
#include "text/tokenizer_unicode.h"

/* Contents of a bracket class; each is also written alone, in brackets. */
#define SPACE                                                                                                          \
    "\\x{9}-\\x{D}\\x{20}\\x{85}\\x{A0}\\x{1680}\\x{2000}-\\x{200A}\\x{2028}\\x{2029}\\x{202F}\\x{205F}\\x{3000}"
#define NOT_SPACE                                                                                                      \
    "\\x{0}-\\x{8}\\x{E}-\\x{1F}\\x{21}-\\x{84}\\x{86}-\\x{9F}\\x{A1}-\\x{167F}\\x{1681}-\\x{1FFF}\\x{200B}-\\x{2027}" \
    "\\x{202A}-\\x{202E}\\x{2030}-\\x{205E}\\x{2060}-\\x{2FFF}\\x{3001}-\\x{D7FF}\\x{E000}-\\x{10FFFF}"
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"
/* Outside of a class Oniguruma counts the digits and fractions of Latin-1 in. */
#define WORD_ALONE WORD "\\x{B2}\\x{B3}\\x{B9}\\x{BC}-\\x{BE}"
#define HEX "0-9A-Fa-f"

typedef struct dialect {
    const char *p;
    size_t size, pos;
    td_buf *out;
    size_t atom;                         /* where in `out` the last atom begins; SIZE_MAX: nothing to repeat */
    size_t groups[TD_DIALECT_MAX_DEPTH]; /* where each open group begins in `out` */
    int depth;
    td_error *err;
} dialect;

static td_status refuse(const dialect *d, size_t pos, const char *what) {
    char shown[TD_SHOWN_SIZE];
    return td_fail_at(d->err, TD_E_UNSUPPORTED, (int64_t)pos, "%s at character %zu of the regular expression %s", what,
                      pos, td_shown(shown, d->p, d->size));
}

static bool at(const dialect *d, const char *s) {
    size_t n = strlen(s);
    return d->size - d->pos >= n && memcmp(d->p + d->pos, s, n) == 0;
}

/* Failures of the buffer stay in it and are reported once, at the end. */
static void emit(dialect *d, const char *s, size_t n) {
    (void)td_buf_append(d->out, s, n);
}

static void emit_str(dialect *d, const char *s) {
    (void)td_buf_puts(d->out, s);
}

/* Writes an atom. */
static void atom(dialect *d, const char *s) {
    d->atom = d->out->size;
    emit_str(d, s);
}

static bool is_alnum(char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

static bool is_hex(char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'F') || (c >= 'a' && c <= 'f');
}

/* ---- escapes that stand for a character or a property, in and out of classes ---- */

static bool is_name(const char *s, size_t n, const char *list) {
    for (; *list; list += strlen(list) + 1)
        if (strlen(list) == n && memcmp(list, s, n) == 0)
            return true;
    return false;
}

/* \p{...} and \P{...}: general categories and a few binary properties go through, other names are scripts. */
static td_status property(dialect *d) {
    static const char binary[] = "Any\0Alphabetic\0White_Space\0Uppercase\0Lowercase\0Emoji\0Ideographic\0";
    size_t start = d->pos - 2;
    if (!at(d, "{"))
        return refuse(d, start, "a property without braces");
    const char *name = d->p + d->pos + 1;
    const char *close = memchr(name, '}', d->size - d->pos - 1);
    if (!close)
        return refuse(d, start, "a property without a closing brace");
    size_t n = (size_t)(close - name);
    d->pos += n + 2;
    emit(d, d->p + start, 3);
    if (n > 0 && name[0] == '^') {
        emit(d, name++, 1);
        n--;
    }
    for (size_t i = 0; i < n; i++)
        if (!is_alnum(name[i]) && name[i] != '_')
            return refuse(d, start, "an unknown property");
    if (n > 2 && !is_name(name, n, binary))
        emit_str(d, "sc:");
    emit(d, name, n);
    emit_str(d, "}");
    return TD_OK;
}

/* After "\x" or "\u". */
static td_status code_point(dialect *d, char kind) {
    size_t start = d->pos - 2, n = 0;
    bool braces = kind == 'x' && at(d, "{");
    const char *digits = d->p + d->pos + braces;
    size_t left = d->size - d->pos - braces;
    size_t most = kind == 'u' ? 4 : braces ? 6 : 2;
    while (n < left && n < most && is_hex(digits[n]))
        n++;
    if (n == 0 || (kind == 'u' && n < 4) || (braces && (n == left || digits[n] != '}')))
        return refuse(d, start, "a malformed code point");
    if (kind == 'x' && !braces && n == 2 && digits[0] >= '8')
        return refuse(d, start, "a raw byte");
    emit_str(d, "\\x{");
    emit(d, digits, n);
    emit_str(d, "}");
    d->pos += n + 2u * braces;
    return TD_OK;
}

/* The escape c, already read, as a plain character. */
static td_status character_escape(dialect *d, char c) {
    switch (c) {
    case 'p':
    case 'P':
        return property(d);
    case 'x':
    case 'u':
        return code_point(d, c);
    case 'v':
        emit_str(d, "\\x{B}");
        return TD_OK;
    case 'a':
    case 'e':
    case 'f':
    case 'n':
    case 'r':
    case 't':
        break;
    default:
        if (is_alnum(c))
            return refuse(d, d->pos - 2, "an escape of another dialect");
        if ((unsigned char)c >= 0x80) { /* a character that needs no escape: the whole of it */
            size_t n = td_uni_length(c);
            emit(d, d->p + d->pos - 1, n);
            d->pos += n - 1;
            return TD_OK;
        }
    }
    char two[2] = {'\\', c};
    emit(d, two, 2);
    return TD_OK;
}

/* ---- classes ---- */

/* A class escape inside brackets: its contents, or NULL when c is none. */
static const char *set_in_class(char c) {
    switch (c) {
    case 's':
        return SPACE;
    case 'S':
        return NOT_SPACE;
    case 'w':
        return WORD;
    case 'h':
        return HEX;
    case 'd':
        return "\\p{Nd}";
    case 'D':
        return "\\P{Nd}";
    default:
        return NULL;
    }
}

static const struct {
    const char *name, *set;
} posix_sets[] = {
    {"[:alpha:]", "\\p{Alphabetic}"},
    {"[:digit:]", "\\p{Nd}"},
    {"[:alnum:]", "\\p{Alphabetic}\\p{Nd}"},
    {"[:space:]", SPACE},
    {"[:upper:]", "\\p{Upper}"},
    {"[:lower:]", "\\p{Lower}"},
    {"[:word:]", WORD},
    {"[:xdigit:]", HEX},
    {"[:cntrl:]", "\\p{Cc}"},
};

/* At "[:": a POSIX set. */
static td_status posix_set(dialect *d) {
    for (size_t i = 0; i < sizeof posix_sets / sizeof posix_sets[0]; i++)
        if (at(d, posix_sets[i].name)) {
            d->pos += strlen(posix_sets[i].name);
            emit_str(d, posix_sets[i].set);
            return TD_OK;
        }
    return refuse(d, d->pos, "an unknown POSIX class");
}

/* One member of a class. *set: it was a set, after which a hyphen is a character. */
static td_status class_member(dialect *d, bool *set) {
    char c = d->p[d->pos];
    if (c == '-' && *set) {
        d->pos++;
        *set = false;
        emit_str(d, "\\-");
        return TD_OK;
    }
    *set = false;
    if (at(d, "[:")) {
        *set = true;
        return posix_set(d);
    }
    if (c == '\\' && d->size - d->pos >= 2) {
        char e = d->p[d->pos + 1];
        const char *contents = set_in_class(e);
        d->pos += 2;
        *set = contents || e == 'p' || e == 'P';
        if (contents)
            emit_str(d, contents);
        else if (e == 'b')
            emit_str(d, "\\x{8}");
        else
            return character_escape(d, e);
        return TD_OK;
    }
    size_t n = td_uni_length(c);
    emit(d, d->p + d->pos, n);
    d->pos += n;
    return TD_OK;
}

/* At '[': a whole class. Classes within it are poured into it. */
static td_status class(dialect *d) {
    size_t start = d->pos++;
    int depth = 1;
    bool set = false;
    atom(d, "[");
    if (at(d, "^")) {
        d->pos++;
        emit_str(d, "^");
    }
    if (at(d, "]")) {
        d->pos++;
        emit_str(d, "\\]");
    }
    while (d->pos < d->size) {
        if (at(d, "]")) {
            d->pos++;
            set = true;
            if (--depth > 0)
                continue;
            emit_str(d, "]");
            return TD_OK;
        }
        if (at(d, "&&"))
            return refuse(d, d->pos, "an intersection of classes");
        if (at(d, "[^"))
            return refuse(d, d->pos, "a negated class inside a class");
        if (at(d, "[") && !at(d, "[:")) {
            if (++depth > TD_DIALECT_MAX_DEPTH)
                return refuse(d, d->pos, "too deep a nesting");
            d->pos++;
            set = true;
            continue;
        }
        TD_TRY(class_member(d, &set));
    }
    return refuse(d, start, "a class without an end");
}

/* ---- the rest of the syntax ---- */

/* Escapes outside of classes. */
static td_status escape(dialect *d) {
    static const struct {
        char c;
        const char *out;
    } sets[] = {
        {'s', "[" SPACE "]"},
        {'S', "[^" SPACE "]"},
        {'w', "[" WORD_ALONE "]"},
        {'W', "[^" WORD_ALONE "]"},
        {'h', "[" HEX "]"},
        {'H', "[^" HEX "]"},
        {'d', "\\p{Nd}"},
        {'D', "\\P{Nd}"},
        {'A', "\\A"},
        {'z', "\\z"},
        {'Z', "\\Z"},
        {'R', "\\R"},
        {'X', "\\X"},
        {'b', "(?:(?<=[" WORD_ALONE "])(?![" WORD_ALONE "])|(?<![" WORD_ALONE "])(?=[" WORD_ALONE "]))"},
        {'B', "(?:(?<=[" WORD_ALONE "])(?=[" WORD_ALONE "])|(?<![" WORD_ALONE "])(?![" WORD_ALONE "]))"},
    };
    if (d->size - d->pos < 2)
        return refuse(d, d->pos, "a backslash at the end");
    char c = d->p[d->pos + 1];
    d->pos += 2;
    d->atom = d->out->size;
    for (size_t i = 0; i < sizeof sets / sizeof sets[0]; i++)
        if (sets[i].c == c) {
            emit_str(d, sets[i].out);
            return TD_OK;
        }
    if (c >= '1' && c <= '9') {
        emit(d, d->p + d->pos - 2, 2);
        return TD_OK;
    }
    return character_escape(d, c);
}

/* After "(?": flags, as in (?i) and (?i-m:. Copies up to and with the ':' or ')'. */
static td_status flags(dialect *d, size_t start) {
    emit_str(d, "(?");
    for (; d->pos < d->size; d->pos++) {
        char c = d->p[d->pos];
        if (c == 'm')
            c = 's'; /* what Ruby calls multi-line */
        else if (!strchr("ix-:)", c))
            return refuse(d, start, "an unknown group");
        emit(d, &c, 1);
        if (c == ':' || c == ')') {
            d->pos++;
            if (c == ')') { /* no group. Ruby lets it hold all alternatives that follow: the same at the start only */
                if (start > 0)
                    return refuse(d, start, "flags without a group after the start");
                d->depth--;
            }
            return TD_OK;
        }
    }
    return refuse(d, start, "a group without an end");
}

/* At '('. */
static td_status group(dialect *d) {
    static const char *const known[] = {"(?:", "(?=", "(?!", "(?>", "(?<=", "(?<!"};
    size_t start = d->pos;
    if (d->depth == TD_DIALECT_MAX_DEPTH)
        return refuse(d, start, "too deep a nesting");
    d->groups[d->depth++] = d->out->size;
    d->atom = SIZE_MAX;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
        if (at(d, known[i])) {
            emit_str(d, known[i]);
            d->pos += strlen(known[i]);
            return TD_OK;
        }
    if (at(d, "(*"))
        return refuse(d, start, "a callout");
    if (at(d, "(?")) {
        d->pos += 2;
        return flags(d, start);
    }
    emit_str(d, "(");
    d->pos++;
    return TD_OK;
}

/* At '{': the length of an interval such as {2} {2,} {,3} {2,3}, 0 when the brace is a character. */
static size_t interval(const dialect *d, bool *no_minimum) {
    size_t i = d->pos + 1, low = i;
    while (i < d->size && d->p[i] >= '0' && d->p[i] <= '9')
        i++;
    *no_minimum = i == low;
    bool comma = i < d->size && d->p[i] == ',';
    i += comma;
    size_t high = i;
    while (i < d->size && d->p[i] >= '0' && d->p[i] <= '9')
        i++;
    bool any = !*no_minimum || (comma && i > high);
    return any && i < d->size && d->p[i] == '}' ? i + 1 - d->pos : 0;
}

/* Puts "(?:" before the last atom and ")" after it. */
static void wrap_atom(dialect *d) {
    emit_str(d, "(?:)");
    if (d->out->failed)
        return;
    char *a = d->out->data + d->atom;
    size_t n = d->out->size - d->atom - 4;
    memmove(a + 3, a, n);
    memcpy(a, "(?:", 3);
    a[3 + n] = ')';
}

/* At '{': an interval, perhaps repeated by a '+' or '*' behind it, or a brace. */
static td_status brace(dialect *d) {
    bool no_minimum;
    size_t n = interval(d, &no_minimum);
    if (n == 0 || d->atom == SIZE_MAX) {
        atom(d, "\\{");
        d->pos++;
        return TD_OK;
    }
    emit_str(d, no_minimum ? "{0" : "{");
    emit(d, d->p + d->pos + 1, n - 1);
    d->pos += n;
    if (at(d, "+") || at(d, "*"))
        wrap_atom(d);
    return TD_OK;
}

static td_status element(dialect *d) {
    char c = d->p[d->pos];
    switch (c) {
    case '\\':
        return escape(d);
    case '[':
        return class(d);
    case '(':
        return group(d);
    case '{':
        return brace(d);
    case ')':
        d->atom = d->depth > 0 ? d->groups[--d->depth] : SIZE_MAX;
        break;
    case '|':
    case '^':
    case '$':
        d->atom = SIZE_MAX;
        break;
    case '*':
    case '+':
    case '?':
        break;
    default:
        d->atom = d->out->size;
    }
    size_t n = td_uni_length(c);
    emit(d, d->p + d->pos, n);
    d->pos += n;
    return TD_OK;
}

td_status td_dialect_translate(const char *pattern, size_t size, td_buf *out, td_error *err) {
    dialect d = {.p = pattern, .size = size, .out = out, .atom = SIZE_MAX, .err = err};
    while (d.pos < d.size)
        TD_TRY(element(&d));
    if (out->failed)
        return td_fail(err, out->failed, "no memory for a regular expression of %zu bytes", size);
    return TD_OK;
}
