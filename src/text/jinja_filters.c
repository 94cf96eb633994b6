/* jinja_filters.c - the filters on text and numbers, and tojson. As in Jinja, those on text take any value and turn it
 * into text first, except where Python would not. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text/jinja_internal.h"

/* ---- text ---- */

static td_status case_filter(td_jrun *r, const td_jinvoke *in, td_jcasing casing, td_jv *out) {
    td_jv s;
    TD_TRY(td_jv_string(r, in->self, &s));
    return td_jstr_case(r, s, casing, out);
}

static td_status f_upper(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return case_filter(r, in, TD_J_UPPER, out);
}

static td_status f_lower(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return case_filter(r, in, TD_J_LOWER, out);
}

static td_status f_capitalize(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return case_filter(r, in, TD_J_CAPITALIZE, out);
}

static bool starts_word_after(uint32_t cp) {
    return cp == '-' || cp == '(' || cp == '{' || cp == '[' || cp == '<' || td_jchar_is_space(cp);
}

/* Unlike str.title, words begin only after white space and opening brackets, so "it's" keeps its small s. */
static td_status f_title(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv s;
    TD_TRY(td_jv_string(r, in->self, &s));
    TD_TRY(td_jrun_charge(r, s.size));
    size_t mark = r->out->size;
    bool start = true;
    for (size_t i = 0, step; i < s.size; i += step) {
        uint32_t cp, to[3];
        char bytes[4];
        step = td_jchar(s.text + i, s.size - i, &cp);
        size_t n = start ? td_jchar_upper(cp, to) : td_jchar_lower(cp, to);
        for (size_t k = 0; k < n; k++)
            TD_TRY(td_jrun_write(r, bytes, td_jchar_put(to[k], bytes)));
        start = starts_word_after(cp);
    }
    return td_jrun_take(r, mark, out);
}

static td_status f_trim(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv s, chars = in->arg[0];
    TD_TRY(td_jv_string(r, in->self, &s));
    if (!td_jv_missing(chars))
        TD_TRY(td_jarg_text(r, "trim", chars, &chars));
    size_t each = chars.kind == TD_J_STRING ? 1 + chars.size / 8 : 1;
    TD_TRY(td_jrun_charge(r, s.size > SIZE_MAX / each ? SIZE_MAX : s.size * each));
    *out = td_jstr_strip(s, chars, true, true);
    return TD_OK;
}

static td_status f_string(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return td_jv_string(r, in->self, out);
}

static td_status f_escape(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv s;
    TD_TRY(td_jv_string(r, in->self, &s));
    TD_TRY(td_jrun_charge(r, s.size));
    size_t mark = r->out->size;
    for (size_t i = 0; i < s.size; i++) {
        char c = s.text[i];
        if (c == '&')
            TD_TRY(td_jrun_puts(r, "&amp;"));
        else if (c == '<' || c == '>')
            TD_TRY(td_jrun_puts(r, c == '<' ? "&lt;" : "&gt;"));
        else if (c == '"' || c == '\'')
            TD_TRY(td_jrun_puts(r, c == '"' ? "&#34;" : "&#39;"));
        else
            TD_TRY(td_jrun_write(r, &c, 1));
    }
    return td_jrun_take(r, mark, out);
}

static td_status f_replace(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv s, from, to;
    int64_t count;
    TD_TRY(td_jv_string(r, in->self, &s));
    TD_TRY(td_jv_string(r, in->arg[0], &from));
    TD_TRY(td_jv_string(r, in->arg[1], &to));
    TD_TRY(td_jarg_int(r, "count", in->arg[2], -1, &count));
    return td_jstr_replace(r, s, from, to, count, out);
}

/* The lines of the text as Jinja's indent sees them: a final line break opens one more, empty line. */
static td_status indent_lines(td_jrun *r, td_jv s, td_jlist **lines) {
    TD_TRY(td_jstr_split_lines(r, s, false, lines));
    td_jv unbroken = s;
    while (unbroken.size && unbroken.text[unbroken.size - 1] != '\r') {
        uint32_t cp = 0;
        for (size_t n = 1; n <= 3 && n <= unbroken.size; n++)
            if (td_jchar(unbroken.text + unbroken.size - n, n, &cp) == n && td_jchar_is_line_break(cp))
                return td_jlist_push(r, *lines, td_jv_literal(""));
        break;
    }
    return s.size ? TD_OK : td_jlist_push(r, *lines, td_jv_literal(""));
}

static td_status f_indent(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv s, step = in->arg[0];
    td_jlist *lines;
    int64_t width;
    bool first = td_jv_truth(in->arg[1]), blank = td_jv_truth(in->arg[2]);
    TD_TRY(td_jarg_text(r, "indent", in->self, &s));
    if (step.kind != TD_J_STRING) {
        TD_TRY(td_jarg_int(r, "width", step, 4, &width));
        TD_TRY(td_jv_binary(r, TD_JOP_MUL, td_jv_literal(" "), td_jv_int(width), &step));
    }
    TD_TRY(indent_lines(r, s, &lines));
    size_t mark = r->out->size;
    for (size_t i = 0; i < lines->n; i++) {
        td_jv line = lines->items[i];
        TD_TRY(td_jrun_charge(r, step.size + line.size));
        if (i)
            TD_TRY(td_jrun_puts(r, "\n"));
        if (i ? blank || line.size : first)
            TD_TRY(td_jrun_write(r, step.text, step.size));
        TD_TRY(td_jrun_write(r, line.text, line.size));
    }
    return td_jrun_take(r, mark, out);
}

static td_status f_truncate(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv s, end = td_jv_literal("..."), cut;
    int64_t length, leeway;
    TD_TRY(td_jarg_text(r, "truncate", in->self, &s));
    TD_TRY(td_jarg_int(r, "length", in->arg[0], 255, &length));
    if (!td_jv_missing(in->arg[2]))
        TD_TRY(td_jarg_text(r, "end", in->arg[2], &end));
    TD_TRY(td_jarg_int(r, "leeway", in->arg[3], 5, &leeway));
    int64_t end_length = (int64_t)td_jstr_count_chars(end);
    TD_TRY(td_jrun_charge(r, s.size + end.size));
    if (length < end_length || leeway < 0)
        return td_jrun_fail(r, TD_E_FORMAT, "truncate: expected a length of at least %lld and a leeway of at least 0",
                            (long long)end_length);
    *out = s;
    int64_t have = (int64_t)td_jstr_count_chars(s);
    if (have <= length || have - length <= leeway)
        return TD_OK;
    TD_TRY(td_jv_slice(r, s, td_jv_none(), td_jv_int(length - end_length), td_jv_none(), &cut));
    if (!td_jv_truth(in->arg[1])) {
        size_t space = td_jstr_rfind(cut, td_jv_literal(" "), cut.size);
        cut.size = space == SIZE_MAX ? cut.size : space;
    }
    return td_jv_concat(r, cut, end, out);
}

static td_status f_wordcount(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv s;
    int64_t n = 0;
    bool inside = false;
    TD_TRY(td_jv_string(r, in->self, &s));
    TD_TRY(td_jrun_charge(r, s.size));
    for (size_t i = 0; i < s.size;) {
        uint32_t cp;
        i += td_jchar(s.text + i, s.size - i, &cp);
        bool word = cp == '_' || td_jchar_is_alpha(cp) || td_jchar_is_digit(cp) || td_jchar_is_numeric(cp);
        n += word && !inside;
        inside = word;
    }
    *out = td_jv_int(n);
    return TD_OK;
}

static td_status f_center(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv s;
    int64_t width;
    TD_TRY(td_jv_string(r, in->self, &s));
    TD_TRY(td_jarg_int(r, "width", in->arg[0], 80, &width));
    TD_TRY(td_jrun_charge(r, s.size));
    size_t have = td_jstr_count_chars(s), lack = width > (int64_t)have ? (size_t)width - have : 0;
    size_t left = lack / 2 + (lack & (size_t)width & 1);
    return td_jstr_pad(r, s, left, lack - left, td_jv_literal(" "), out);
}

static td_status f_format(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv format, values;
    TD_TRY(td_jv_string(r, in->self, &format));
    if (in->call->n_named) {
        td_jdict *named;
        if (in->call->n)
            return td_jrun_fail(r, TD_E_FORMAT, "format: arguments by position or by name, not both");
        TD_TRY(td_jdict_new(r, 0, &named));
        TD_TRY(td_jdict_update(r, named, in->call));
        return td_jformat_percent(r, format, td_jv_dict(named), out);
    }
    TD_TRY(td_jlist_of(r, TD_J_TUPLE, in->call->args, in->call->n, &values));
    return td_jformat_percent(r, format, values, out);
}

/* ---- tojson, with the signature transformers gives it ---- */

static td_status json_separators(td_jrun *r, td_jv v, td_jjson_style *style) {
    td_jv *parts;
    size_t n;
    style->item_separator = td_jv_literal(style->indented ? "," : ", ");
    style->key_separator = td_jv_literal(": ");
    if (td_jv_missing(v))
        return TD_OK;
    TD_TRY(td_jv_iterate(r, v, &parts, &n));
    if (n != 2)
        return td_jrun_fail(r, TD_E_FORMAT, "tojson: separators are two strings, got %zu", n);
    TD_TRY(td_jarg_text(r, "separators", parts[0], &style->item_separator));
    return td_jarg_text(r, "separators", parts[1], &style->key_separator);
}

static td_status f_tojson(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv indent = in->arg[1];
    td_jjson_style style = {.ascii = td_jv_truth(in->arg[0]), .sort_keys = td_jv_truth(in->arg[3])};
    int64_t width;
    style.indented = !td_jv_missing(indent);
    style.indent = indent;
    if (style.indented && indent.kind != TD_J_STRING) {
        TD_TRY(td_jarg_int(r, "indent", indent, 0, &width));
        TD_TRY(td_jv_binary(r, TD_JOP_MUL, td_jv_literal(" "), td_jv_int(width), &style.indent));
    }
    TD_TRY(json_separators(r, in->arg[2], &style));
    size_t mark = r->out->size;
    TD_TRY(td_jv_json(r, in->self, &style));
    return td_jrun_take(r, mark, out);
}

const td_jbuiltin td_jfilters_text[] = {
    {"trim", f_trim, 0, {"chars"}},
    {"tojson", f_tojson, 0, {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {"upper", f_upper, 0, {NULL}},
    {"lower", f_lower, 0, {NULL}},
    {"title", f_title, 0, {NULL}},
    {"capitalize", f_capitalize, 0, {NULL}},
    {"string", f_string, 0, {NULL}},
    {"safe", f_string, 0, {NULL}},
    {"escape", f_escape, 0, {NULL}},
    {"e", f_escape, 0, {NULL}},
    {"forceescape", f_escape, 0, {NULL}},
    {"replace", f_replace, 2, {"old", "new", "count"}},
    {"indent", f_indent, 0, {"width", "first", "blank"}},
    {"truncate", f_truncate, 0, {"length", "killwords", "end", "leeway"}},
    {"wordcount", f_wordcount, 0, {NULL}},
    {"center", f_center, 0, {"width"}},
    {"format", f_format, -1, {NULL}},
    {NULL, NULL, 0, {NULL}},
};

/* ---- numbers ---- */

static td_status f_abs(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv v = in->self;
    if (v.kind == TD_J_UNDEFINED)
        return td_jrun_fail_undefined(r, v);
    if (!td_jv_is_number(v))
        return td_jrun_fail(r, TD_E_FORMAT, "bad operand type for abs(): '%s'", td_jv_type_name(v));
    return td_jv_signed(r, v, td_jv_real(v) < 0, out);
}

/* A float cut to an integer; false when it is none of 64 bits. */
static bool truncate_float(double d, int64_t *out) {
    if (!(d > -9223372036854775808.0 && d < 9223372036854775808.0))
        return false;
    *out = (int64_t)d;
    return true;
}

static td_status f_int(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv v = in->self;
    int64_t base, value = 0;
    double real;
    TD_TRY(td_jarg_int(r, "base", in->arg[1], 10, &base));
    if (v.kind == TD_J_UNDEFINED)
        return td_jrun_fail_undefined(r, v);
    if (base != 0 && (base < 2 || base > 36))
        return td_jrun_fail(r, TD_E_FORMAT, "int: the base must be 0 or between 2 and 36");
    bool ok = false;
    if (td_jv_is_integral(v)) {
        value = td_jv_integral(v);
        ok = true;
    } else if (v.kind == TD_J_FLOAT) {
        ok = truncate_float(v.real, &value);
    } else if (v.kind == TD_J_STRING) {
        ok =
            td_jtext_to_int(v, (unsigned)base, &value) || (td_jtext_to_float(v, &real) && truncate_float(real, &value));
    }
    *out = ok ? td_jv_int(value) : in->arg[0].kind == TD_J_ABSENT ? td_jv_int(0) : in->arg[0];
    return TD_OK;
}

static td_status f_float(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv v = in->self;
    double value = 0;
    if (v.kind == TD_J_UNDEFINED)
        return td_jrun_fail_undefined(r, v);
    bool ok = td_jv_is_number(v) || (v.kind == TD_J_STRING && td_jtext_to_float(v, &value));
    if (td_jv_is_number(v))
        value = td_jv_real(v);
    *out = ok ? td_jv_float(value) : in->arg[0].kind == TD_J_ABSENT ? td_jv_float(0) : in->arg[0];
    return TD_OK;
}

/* Python rounds the exact decimal expansion, half to even. So does printf. */
static double round_decimals(double v, int64_t precision) {
    char text[700];
    if (!isfinite(v) || precision > 330)
        return v;
    if (precision < 0) {
        double unit = pow(10, (double)-precision);
        return isfinite(unit) ? rint(v / unit) * unit : 0 * v;
    }
    snprintf(text, sizeof text, "%.*f", (int)precision, v);
    return strtod(text, NULL);
}

static int64_t round_tens(int64_t v, int64_t places) {
    if (places > 18)
        return 0;
    int64_t unit = 1;
    while (places-- > 0)
        unit *= 10;
    int64_t rest = v % unit, base = v - rest, half = unit / 2;
    int64_t size = rest < 0 ? -rest : rest;
    bool up = size > half || (size == half && (base / unit) % 2 != 0);
    int64_t rounded;
    if (!up || __builtin_add_overflow(base, v < 0 ? -unit : unit, &rounded))
        return base;
    return rounded;
}

static td_status f_round(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv v = in->self, method = td_jv_missing(in->arg[1]) ? td_jv_literal("common") : in->arg[1];
    int64_t precision;
    TD_TRY(td_jarg_int(r, "precision", in->arg[0], 0, &precision));
    if (v.kind == TD_J_UNDEFINED)
        return td_jrun_fail_undefined(r, v);
    if (!td_jv_is_number(v))
        return td_jrun_fail(r, TD_E_FORMAT, "round: expected a number, got %s", td_jv_type_name(v));
    if (td_jv_is_text(method, "common")) {
        if (v.kind == TD_J_FLOAT)
            *out = td_jv_float(round_decimals(v.real, precision));
        else
            *out = td_jv_int(precision < 0 ? round_tens(td_jv_integral(v), precision < -18 ? 19 : -precision)
                                           : td_jv_integral(v));
        return TD_OK;
    }
    bool up = td_jv_is_text(method, "ceil");
    if (!up && !td_jv_is_text(method, "floor"))
        return td_jrun_fail(r, TD_E_FORMAT, "round: the method must be common, ceil or floor");
    double unit = pow(10, (double)precision), scaled = td_jv_real(v) * unit;
    *out = td_jv_float((up ? ceil(scaled) : floor(scaled)) / unit);
    return TD_OK;
}

const td_jbuiltin td_jfilters_number[] = {
    {"abs", f_abs, 0, {NULL}},
    {"int", f_int, 0, {"default", "base"}},
    {"float", f_float, 0, {"default"}},
    {"round", f_round, 0, {"precision", "method"}},
    {NULL, NULL, 0, {NULL}},
};
