/* jinja_format.c - values put into format texts: '%s' % x, '{}'.format(x), and dates for strftime_now.
 *
 * Of Python's two format languages this has what templates could want: %s %r %d %i %u %x %X %o %f %F %e %E %g %G %c %%
 * with flags, width and precision; and {}, {0}, {name}, conversions !r !s, and the format specification
 * [[fill]align][sign][0][width][,][.precision][type] with the types s d x X o b c f F e E g G %. Fields with attributes
 * or subscripts, and nested fields, are errors. Widths and precisions have a ceiling. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "text/jinja_internal.h"

enum { MAX_WIDTH = 100000, MAX_PRECISION = 300 };

typedef struct spec {
    td_jv fill; /* one character */
    char align; /* '<', '>', '^', '=' or 0 */
    char sign;  /* '-', '+' or ' ' */
    bool zero, comma, alternate;
    int64_t width, precision; /* precision -1: none */
    char type;                /* 0: none */
} spec;

/* Reads digits at *i; false when they pass the ceiling. */
static bool read_number(td_jv s, size_t *i, int64_t ceiling, int64_t *out) {
    for (*out = 0; *i < s.size && s.text[*i] >= '0' && s.text[*i] <= '9'; ++*i) {
        *out = *out * 10 + (s.text[*i] - '0');
        if (*out > ceiling)
            return false;
    }
    return true;
}

static td_status too_wide(td_jrun *r) {
    return td_jrun_fail(r, TD_E_LIMIT, "a width or precision in a format is too large");
}

/* ---- one value, formatted ---- */

static td_status write_fill(td_jrun *r, td_jv fill, int64_t n) {
    for (; n > 0; n--)
        TD_TRY(td_jrun_write(r, fill.text, fill.size));
    return TD_OK;
}

/* `prefix` (a sign, "0x") and `body`, padded to the width. */
static td_status write_padded(td_jrun *r, const spec *f, char default_align, td_jv prefix, td_jv body) {
    int64_t have = (int64_t)(td_jstr_count_chars(prefix) + td_jstr_count_chars(body));
    int64_t lack = f->width > have ? f->width - have : 0;
    char align = f->align ? f->align : f->zero && default_align == '>' ? '=' : default_align;
    td_jv fill = f->zero && !f->align ? td_jv_literal("0") : f->fill;
    int64_t left = align == '>' ? lack : align == '^' ? lack / 2 : 0;
    TD_TRY(td_jrun_charge(r, body.size + (size_t)lack));
    TD_TRY(write_fill(r, fill, left));
    TD_TRY(td_jrun_write(r, prefix.text, prefix.size));
    if (align == '=')
        TD_TRY(write_fill(r, fill, lack));
    TD_TRY(td_jrun_write(r, body.text, body.size));
    return align == '=' ? TD_OK : write_fill(r, fill, lack - left);
}

static td_status write_text(td_jrun *r, const spec *f, char default_align, td_jv s) {
    if (f->precision >= 0)
        TD_TRY(td_jv_slice(r, s, td_jv_none(), td_jv_int(f->precision), td_jv_none(), &s));
    return write_padded(r, f, default_align, td_jv_literal(""), s);
}

/* Digits of an unsigned number, most significant first; returns how many. */
static size_t digits_of(uint64_t v, unsigned base, bool upper, char out[64]) {
    const char *alphabet = upper ? "0123456789ABCDEF" : "0123456789abcdef";
    char reversed[64];
    size_t n = 0;
    do {
        reversed[n++] = alphabet[v % base];
        v /= base;
    } while (v);
    for (size_t i = 0; i < n; i++)
        out[i] = reversed[n - 1 - i];
    return n;
}

/* Puts a comma before every third digit of the first `n` bytes of text, counted from their end. */
static size_t group_thousands(const char *text, size_t n, size_t size, char *out) {
    size_t k = 0;
    for (size_t i = 0; i < size; i++) {
        if (i && i < n && (n - i) % 3 == 0)
            out[k++] = ',';
        out[k++] = text[i];
    }
    return k;
}

static const char *sign_text(const spec *f, bool negative) {
    return negative ? "-" : f->sign == '+' ? "+" : f->sign == ' ' ? " " : "";
}

static td_status write_int(td_jrun *r, const spec *f, int64_t v) {
    char digits[64], grouped[96], prefix[8];
    char type = f->type ? f->type : 'd';
    unsigned base = type == 'x' || type == 'X' ? 16 : type == 'o' ? 8 : type == 'b' ? 2 : 10;
    uint64_t size = v < 0 ? 0 - (uint64_t)v : (uint64_t)v;
    size_t n = digits_of(size, base, type == 'X', digits);
    int length = snprintf(prefix, sizeof prefix, "%s", sign_text(f, v < 0));
    if (f->alternate && base != 10)
        length += snprintf(prefix + length, sizeof prefix - (size_t)length, "0%c", type);
    const char *body = digits;
    if (f->comma) {
        n = group_thousands(digits, n, n, grouped);
        body = grouped;
    }
    return write_padded(r, f, '>', td_jv_text(prefix, (size_t)length), td_jv_text(body, n));
}

static td_status write_float(td_jrun *r, const spec *f, double v) {
    char text[700], grouped[950], format[8] = "%.*f";
    char type = f->type ? f->type : f->precision >= 0 ? 'g' : 'r';
    int precision = f->precision < 0 ? 6 : (int)f->precision;
    bool percent = type == '%';
    double size = fabs(v) * (percent ? 100 : 1);
    size_t n;
    if (type == 'r') {
        n = td_jtext_float(size, text);
    } else {
        format[3] = percent ? 'f' : type;
        n = (size_t)snprintf(text, sizeof text - 2, format, precision, size);
    }
    for (size_t i = 0; i < n; i++) /* a locale may have put a comma there */
        if (text[i] == ',')
            text[i] = '.';
    if (percent)
        text[n++] = '%';
    const char *body = text, *dot = memchr(text, '.', n), *e = memchr(text, 'e', n);
    if (f->comma) {
        n = group_thousands(text, dot ? (size_t)(dot - text) : e ? (size_t)(e - text) : n - percent, n, grouped);
        body = grouped;
    }
    return write_padded(r, f, '>', td_jv_literal(sign_text(f, signbit(v) && !isnan(v))), td_jv_text(body, n));
}

static td_status no_conversion(td_jrun *r, char type, td_jv v) {
    if (v.kind == TD_J_UNDEFINED)
        return td_jrun_fail_undefined(r, v);
    return td_jrun_fail(r, TD_E_FORMAT, "format code '%c' does not fit a value of type %s", type, td_jv_type_name(v));
}

static td_status write_char(td_jrun *r, const spec *f, td_jv v, char default_align) {
    char bytes[4];
    if (td_jv_is_integral(v)) {
        int64_t cp = td_jv_integral(v);
        if (cp < 0 || cp > 0x10ffff || (cp >= 0xd800 && cp < 0xe000))
            return no_conversion(r, 'c', v);
        return write_padded(r, f, default_align, td_jv_literal(""),
                            td_jv_text(bytes, td_jchar_put((uint32_t)cp, bytes)));
    }
    if (v.kind != TD_J_STRING || td_jstr_count_chars(v) != 1)
        return no_conversion(r, 'c', v);
    return write_padded(r, f, default_align, td_jv_literal(""), v);
}

static td_status write_number(td_jrun *r, const spec *f, td_jv v) {
    if (f->type && strchr("dxXob", f->type)) {
        if (!td_jv_is_integral(v))
            return no_conversion(r, f->type, v);
        return write_int(r, f, td_jv_integral(v));
    }
    if (!td_jv_is_number(v))
        return no_conversion(r, f->type, v);
    return write_float(r, f, td_jv_real(v));
}

/* ---- % ---- */

static bool read_percent_spec(td_jv s, size_t *i, spec *f) {
    *f = (spec){.fill = td_jv_literal(" "), .sign = '-', .precision = -1};
    for (; *i < s.size && memchr("-+ 0#", s.text[*i], 5); ++*i) {
        char c = s.text[*i];
        f->align = c == '-' ? '<' : f->align;
        f->sign = c == '+' ? '+' : c == ' ' && f->sign != '+' ? ' ' : f->sign;
        f->zero |= c == '0';
        f->alternate |= c == '#';
    }
    if (!read_number(s, i, MAX_WIDTH, &f->width))
        return false;
    if (*i < s.size && s.text[*i] == '.') {
        ++*i;
        if (!read_number(s, i, MAX_PRECISION, &f->precision))
            return false;
    }
    while (*i < s.size && memchr("hlL", s.text[*i], 3))
        ++*i;
    f->type = *i < s.size ? s.text[(*i)++] : '\0';
    return true;
}

static td_status write_percent(td_jrun *r, spec *f, td_jv v) {
    td_jv s;
    switch (f->type) {
    case 's':
    case 'r': {
        size_t mark = r->out->size;
        TD_TRY(f->type == 's' ? td_jv_write(r, v) : td_jv_repr(r, v));
        TD_TRY(td_jrun_take(r, mark, &s));
        f->zero = false;
        return write_text(r, f, '>', s);
    }
    case 'd':
    case 'i':
    case 'u':
        f->type = 'd';
        if (v.kind == TD_J_FLOAT && fabs(v.real) < 9.2e18)
            v = td_jv_int((int64_t)v.real);
        return write_number(r, f, v);
    case 'x':
    case 'X':
    case 'o':
    case 'f':
    case 'F':
    case 'e':
    case 'E':
    case 'g':
    case 'G':
        return write_number(r, f, v);
    case 'c':
        f->zero = false;
        return write_char(r, f, v, '>');
    default:
        return td_jrun_fail(r, TD_E_FORMAT, "incomplete or unknown format in '%%'");
    }
}

static td_status named_value(td_jrun *r, td_jv format, size_t *i, td_jv values, td_jv *v) {
    size_t end = td_jstr_find(format, td_jv_literal(")"), *i);
    td_jentry *entry;
    if (end == SIZE_MAX)
        return td_jrun_fail(r, TD_E_FORMAT, "incomplete format key");
    if (values.kind != TD_J_DICT)
        return td_jrun_fail(r, TD_E_FORMAT, "format requires a mapping");
    td_jv key = td_jv_text(format.text + *i + 1, end - *i - 1);
    TD_TRY(td_jdict_find(r, values.dict, key, &entry));
    if (!entry)
        return td_jrun_fail(r, TD_E_FORMAT, "the format's key '%.*s' is missing", (int)(key.size > 60 ? 60 : key.size),
                            key.text);
    *v = entry->value;
    *i = end + 1;
    return TD_OK;
}

/* A right side that could be a mapping may hold more than the format uses. */
static bool is_subscriptable(td_jv v) {
    return v.kind == TD_J_DICT || v.kind == TD_J_LIST || v.kind == TD_J_UNDEFINED;
}

td_status td_jformat_percent(td_jrun *r, td_jv format, td_jv values, td_jv *out) {
    bool tuple = values.kind == TD_J_LIST && values.list->flavour == TD_J_TUPLE;
    const td_jv *args = tuple ? values.list->items : &values;
    size_t n = tuple ? values.list->n : 1, used = 0, mark = r->out->size;
    bool by_name = false;
    TD_TRY(td_jrun_charge(r, format.size));
    for (size_t i = 0; i < format.size;) {
        size_t percent = td_jstr_find(format, td_jv_literal("%"), i);
        size_t end = percent == SIZE_MAX ? format.size : percent;
        TD_TRY(td_jrun_write(r, format.text + i, end - i));
        if (percent == SIZE_MAX)
            break;
        i = percent + 1;
        if (i < format.size && format.text[i] == '%') {
            TD_TRY(td_jrun_puts(r, "%"));
            i++;
            continue;
        }
        td_jv v = td_jv_none();
        bool named = i < format.size && format.text[i] == '(';
        if (named)
            TD_TRY(named_value(r, format, &i, values, &v));
        spec f;
        if (!read_percent_spec(format, &i, &f))
            return too_wide(r);
        if (!named && used == n)
            return td_jrun_fail(r, TD_E_FORMAT, "not enough arguments for format string");
        by_name |= named;
        TD_TRY(write_percent(r, &f, named ? v : args[used++]));
    }
    if (!by_name && used < n && (tuple || !is_subscriptable(values)))
        return td_jrun_fail(r, TD_E_FORMAT, "not all arguments converted during string formatting");
    return td_jrun_take(r, mark, out);
}

/* ---- str.format ---- */

static td_status read_brace_spec(td_jrun *r, td_jv s, spec *f) {
    size_t i = 0, first = 0;
    uint32_t cp;
    *f = (spec){.fill = td_jv_literal(" "), .sign = '-', .precision = -1};
    if (s.size)
        first = td_jchar(s.text, s.size, &cp);
    if (first < s.size && memchr("<>^=", s.text[first], 4)) {
        f->fill = td_jv_text(s.text, first);
        f->align = s.text[first];
        i = first + 1;
    } else if (s.size && memchr("<>^=", s.text[0], 4)) {
        f->align = s.text[0];
        i = 1;
    }
    if (i < s.size && memchr("+- ", s.text[i], 3))
        f->sign = s.text[i++];
    if (i < s.size && s.text[i] == '#') {
        f->alternate = true;
        i++;
    }
    if (i < s.size && s.text[i] == '0') {
        f->zero = true;
        i++;
    }
    if (!read_number(s, &i, MAX_WIDTH, &f->width))
        return too_wide(r);
    if (i < s.size && s.text[i] == ',') {
        f->comma = true;
        i++;
    }
    if (i < s.size && s.text[i] == '.') {
        i++;
        if (!read_number(s, &i, MAX_PRECISION, &f->precision))
            return too_wide(r);
    }
    if (i < s.size)
        f->type = s.text[i++];
    if (i < s.size || (f->type && !strchr("sdxXobcfFeEgG%", f->type)))
        return td_jrun_fail(r, TD_E_FORMAT, "malformed format specification '%.*s'", (int)(s.size > 60 ? 60 : s.size),
                            s.text);
    return TD_OK;
}

static td_status write_brace(td_jrun *r, spec *f, td_jv v) {
    td_jv s;
    bool text = v.kind == TD_J_STRING || f->type == 's' || (!f->type && !td_jv_is_number(v)) ||
                (!f->type && v.kind == TD_J_BOOL);
    if (v.kind == TD_J_STRING && f->type && f->type != 's')
        return no_conversion(r, f->type, v);
    if (text) {
        TD_TRY(td_jv_string(r, v, &s));
        return write_text(r, f, '<', s);
    }
    if (f->type == 'c')
        return write_char(r, f, v, '<');
    if (!f->type && v.kind == TD_J_INT)
        return write_int(r, f, v.integer);
    return write_number(r, f, v);
}

typedef struct field {
    td_jv name, spec;
    char conversion; /* 0, 'r', 's' */
} field;

/* Splits the inside of {...}. */
static td_status read_field(td_jrun *r, td_jv inside, field *f) {
    size_t colon = td_jstr_find(inside, td_jv_literal(":"), 0);
    size_t bang = td_jstr_find(inside, td_jv_literal("!"), 0);
    *f = (field){.spec = td_jv_literal("")};
    size_t end = colon == SIZE_MAX ? inside.size : colon;
    if (colon != SIZE_MAX)
        f->spec = td_jv_text(inside.text + colon + 1, inside.size - colon - 1);
    if (bang < end) {
        f->conversion = bang + 1 < end ? inside.text[bang + 1] : '?';
        if (bang + 2 != end || !memchr("rs", f->conversion, 2))
            return td_jrun_fail(r, TD_E_FORMAT, "expected !r or !s in a format field");
        end = bang;
    }
    f->name = td_jv_text(inside.text, end);
    if (memchr(inside.text, '{', inside.size) || memchr(f->name.text, '.', f->name.size) ||
        memchr(f->name.text, '[', f->name.size))
        return td_jrun_fail(r, TD_E_UNSUPPORTED, "format fields with attributes, subscripts or nested fields");
    return TD_OK;
}

static td_status field_value(td_jrun *r, const field *f, size_t *automatic, const td_jv *args, size_t n,
                             const td_jdict *named, td_jv *v) {
    int64_t at;
    td_jentry *entry = NULL;
    bool is_number = f->name.size == 0 || (f->name.text[0] >= '0' && f->name.text[0] <= '9');
    if (is_number) {
        at = (int64_t)*automatic;
        if (!f->name.size)
            ++*automatic;
        else if (!td_jtext_to_int(f->name, 10, &at))
            at = -1;
        if (at < 0 || (size_t)at >= n)
            return td_jrun_fail(r, TD_E_FORMAT, "a format field has no argument");
        *v = args[at];
        return TD_OK;
    }
    if (named)
        TD_TRY(td_jdict_find(r, named, f->name, &entry));
    if (!entry)
        return td_jrun_fail(r, TD_E_FORMAT, "the format field '%.*s' has no argument",
                            (int)(f->name.size > 60 ? 60 : f->name.size), f->name.text);
    *v = entry->value;
    return TD_OK;
}

static td_status write_field(td_jrun *r, const field *f, td_jv v) {
    spec s;
    TD_TRY(read_brace_spec(r, f->spec, &s));
    if (f->conversion) {
        size_t mark = r->out->size;
        TD_TRY(f->conversion == 'r' ? td_jv_repr(r, v) : td_jv_write(r, v));
        TD_TRY(td_jrun_take(r, mark, &v));
    }
    return write_brace(r, &s, v);
}

td_status td_jformat_braces(td_jrun *r, td_jv format, const td_jv *args, size_t n, const td_jdict *named, td_jv *out) {
    size_t mark = r->out->size, automatic = 0;
    TD_TRY(td_jrun_charge(r, format.size));
    for (size_t i = 0; i < format.size;) {
        char c = format.text[i];
        if ((c == '{' || c == '}') && i + 1 < format.size && format.text[i + 1] == c) {
            TD_TRY(td_jrun_write(r, &c, 1));
            i += 2;
        } else if (c == '{') {
            size_t end = td_jstr_find(format, td_jv_literal("}"), i);
            if (end == SIZE_MAX)
                return td_jrun_fail(r, TD_E_FORMAT, "expected '}' before end of string");
            field f;
            td_jv v;
            TD_TRY(read_field(r, td_jv_text(format.text + i + 1, end - i - 1), &f));
            TD_TRY(field_value(r, &f, &automatic, args, n, named, &v));
            TD_TRY(write_field(r, &f, v));
            i = end + 1;
        } else if (c == '}') {
            return td_jrun_fail(r, TD_E_FORMAT, "single '}' encountered in format string");
        } else {
            TD_TRY(td_jrun_write(r, &c, 1));
            i++;
        }
    }
    return td_jrun_take(r, mark, out);
}

/* ---- strftime ---- */

/* English names, whatever the locale: a prompt must not depend on the machine it is made on. */
static const char *const days[] = {"Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"};
static const char *const months[] = {"January", "February", "March",     "April",   "May",      "June",
                                     "July",    "August",   "September", "October", "November", "December"};

static int iso_week(const struct tm *t, int *year) {
    int weekday = (t->tm_wday + 6) % 7; /* Monday: 0 */
    int week = (t->tm_yday - weekday + 10) / 7;
    *year = t->tm_year + 1900;
    int before = *year - 1;
    bool leap = (*year % 4 == 0 && *year % 100 != 0) || *year % 400 == 0;
    bool leap_before = (before % 4 == 0 && before % 100 != 0) || before % 400 == 0;
    if (week < 1) {
        int last = (t->tm_yday + (leap_before ? 366 : 365) - weekday + 10) / 7;
        *year = before;
        return last;
    }
    int days_left = (leap ? 366 : 365) - t->tm_yday;
    if (week == 53 && days_left <= 3 - weekday) {
        ++*year;
        return 1;
    }
    return week;
}

/* The conversions that are a number of a fixed width, or of its own with "-" after the percent sign. */
static bool date_number(char c, const struct tm *t, int *value, int *width) {
    int week_year, week = iso_week(t, &week_year);
    const struct {
        char code;
        int value, width;
    } numbers[] = {
        {'d', t->tm_mday, 2},
        {'e', t->tm_mday, 2},
        {'m', t->tm_mon + 1, 2},
        {'y', t->tm_year % 100, 2},
        {'Y', t->tm_year + 1900, 1},
        {'H', t->tm_hour, 2},
        {'I', t->tm_hour % 12 ? t->tm_hour % 12 : 12, 2},
        {'M', t->tm_min, 2},
        {'S', t->tm_sec, 2},
        {'j', t->tm_yday + 1, 3},
        {'w', t->tm_wday, 1},
        {'u', t->tm_wday ? t->tm_wday : 7, 1},
        {'U', (t->tm_yday + 7 - t->tm_wday) / 7, 2},
        {'W', (t->tm_yday + 7 - (t->tm_wday + 6) % 7) / 7, 2},
        {'V', week, 2},
        {'G', week_year, 1},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++)
        if (numbers[i].code == c) {
            *value = numbers[i].value;
            *width = numbers[i].width;
            return true;
        }
    return false;
}

static const char *date_shorthand(char c) {
    switch (c) {
    case 'c':
        return "%a %b %e %H:%M:%S %Y";
    case 'D':
    case 'x':
        return "%m/%d/%y";
    case 'F':
        return "%Y-%m-%d";
    case 'R':
        return "%H:%M";
    case 'T':
    case 'X':
        return "%H:%M:%S";
    default:
        return NULL;
    }
}

static td_status write_dates(td_jrun *r, td_jv format, const struct tm *t);

static td_status write_date(td_jrun *r, char c, bool pad, const struct tm *t) {
    int value, width, offset = r->options.utc_offset_s, size = offset < 0 ? -offset : offset;
    if (date_number(c, t, &value, &width))
        return td_jrun_writef(r, pad && c == 'e' ? "%*d" : "%0*d", pad ? width : 1, value);
    if (date_shorthand(c))
        return write_dates(r, td_jv_literal(date_shorthand(c)), t);
    switch (c) {
    case 'a':
        return td_jrun_writef(r, "%.3s", days[t->tm_wday]);
    case 'A':
        return td_jrun_puts(r, days[t->tm_wday]);
    case 'b':
    case 'h':
        return td_jrun_writef(r, "%.3s", months[t->tm_mon]);
    case 'B':
        return td_jrun_puts(r, months[t->tm_mon]);
    case 'f':
        return td_jrun_puts(r, "000000"); /* microseconds: the time given has whole seconds */
    case 'p':
        return td_jrun_puts(r, t->tm_hour < 12 ? "AM" : "PM");
    case 's':
        return td_jrun_writef(r, "%lld", (long long)r->options.now);
    case 'z':
        return td_jrun_writef(r, "%c%02d%02d", offset < 0 ? '-' : '+', size / 3600 % 100, size / 60 % 60);
    case 'Z':
        return td_jrun_puts(r, offset ? "" : "UTC");
    case 'n':
        return td_jrun_puts(r, "\n");
    case 't':
        return td_jrun_puts(r, "\t");
    case '%':
        return td_jrun_puts(r, "%");
    default:
        return td_jrun_writef(r, "%%%s%c", pad ? "" : "-", c);
    }
}

static td_status write_dates(td_jrun *r, td_jv format, const struct tm *t) {
    for (size_t i = 0; i < format.size; i++) {
        if (format.text[i] != '%' || i + 1 == format.size) {
            TD_TRY(td_jrun_write(r, format.text + i, 1));
            continue;
        }
        i++;
        bool pad = !(format.text[i] == '-' && i + 1 < format.size);
        i += !pad;
        TD_TRY(write_date(r, format.text[i], pad, t));
    }
    return TD_OK;
}

td_status td_jformat_time(td_jrun *r, td_jv format, td_jv *out) {
    struct tm t;
    int64_t now;
    size_t mark = r->out->size;
    TD_TRY(td_jrun_charge(r, format.size));
    if (__builtin_add_overflow(r->options.now, (int64_t)r->options.utc_offset_s, &now) || now < -62135596800 ||
        now > 253402300799) /* the years 1 to 9999 */
        return td_jrun_fail(r, TD_E_ARG, "the time given to strftime_now is out of range");
    time_t clock = (time_t)now;
    gmtime_r(&clock, &t);
    TD_TRY(write_dates(r, format, &t));
    return td_jrun_take(r, mark, out);
}
