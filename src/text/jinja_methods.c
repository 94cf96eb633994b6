/* jinja_methods.c - the methods of str that templates use, with Python's parameters. */
#include <string.h>

#include "text/jinja_internal.h"

/* a * b for a charge; the largest size when it does not fit. */
static size_t product(size_t a, size_t b) {
    size_t p;
    return __builtin_mul_overflow(a, b, &p) ? SIZE_MAX : p;
}

/* ---- strip, case, prefixes ---- */

static td_status strip(td_jrun *r, const td_jinvoke *in, bool left, bool right, td_jv *out) {
    td_jv chars = in->arg[0];
    if (td_jv_missing(chars))
        chars = td_jv_none();
    else
        TD_TRY(td_jarg_text(r, "strip", chars, &chars));
    TD_TRY(td_jrun_charge(r, product(in->self.size, 1 + (chars.kind == TD_J_STRING ? chars.size / 8 : 0))));
    *out = td_jstr_strip(in->self, chars, left, right);
    return TD_OK;
}

static td_status m_strip(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return strip(r, in, true, true, out);
}

static td_status m_lstrip(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return strip(r, in, true, false, out);
}

static td_status m_rstrip(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return strip(r, in, false, true, out);
}

static td_status m_upper(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return td_jstr_case(r, in->self, TD_J_UPPER, out);
}

static td_status m_lower(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return td_jstr_case(r, in->self, TD_J_LOWER, out);
}

static td_status m_title(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return td_jstr_case(r, in->self, TD_J_TITLE, out);
}

static td_status m_capitalize(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return td_jstr_case(r, in->self, TD_J_CAPITALIZE, out);
}

static td_status m_swapcase(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return td_jstr_case(r, in->self, TD_J_SWAPCASE, out);
}

static bool has_affix(td_jv s, td_jv affix, bool at_end) {
    return affix.size <= s.size &&
           (!affix.size || !memcmp(s.text + (at_end ? s.size - affix.size : 0), affix.text, affix.size));
}

/* startswith and endswith take one string or a tuple of them. */
static td_status affix(td_jrun *r, const td_jinvoke *in, bool at_end, td_jv *out) {
    const char *what = at_end ? "endswith" : "startswith";
    td_jv given = in->arg[0], text;
    bool found = false;
    if (given.kind == TD_J_LIST && (given.list->flavour == TD_J_TUPLE || given.list->flavour == TD_J_GROUP)) {
        for (size_t i = 0; i < given.list->n && !found; i++) {
            TD_TRY(td_jarg_text(r, what, given.list->items[i], &text));
            TD_TRY(td_jrun_charge(r, text.size));
            found = has_affix(in->self, text, at_end);
        }
    } else {
        TD_TRY(td_jarg_text(r, what, given, &text));
        found = has_affix(in->self, text, at_end);
    }
    *out = td_jv_bool(found);
    return TD_OK;
}

static td_status m_startswith(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return affix(r, in, false, out);
}

static td_status m_endswith(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return affix(r, in, true, out);
}

static td_status m_removeprefix(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv s = in->self, text;
    TD_TRY(td_jarg_text(r, "removeprefix", in->arg[0], &text));
    size_t cut = has_affix(s, text, false) ? text.size : 0;
    *out = td_jv_text(s.text + cut, s.size - cut);
    return TD_OK;
}

static td_status m_removesuffix(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv s = in->self, text;
    TD_TRY(td_jarg_text(r, "removesuffix", in->arg[0], &text));
    *out = td_jv_text(s.text, s.size - (has_affix(s, text, true) ? text.size : 0));
    return TD_OK;
}

/* ---- splitting ---- */

static td_status push_view(td_jrun *r, td_jlist *list, td_jv s, size_t from, size_t to) {
    TD_TRY(td_jrun_charge(r, 0));
    return td_jlist_push(r, list, td_jv_text(s.text + from, to - from));
}

static td_status split_at(td_jrun *r, td_jv s, td_jv sep, uint64_t times, td_jlist *list) {
    size_t start = 0;
    for (size_t at; times && (at = td_jstr_find(s, sep, start)) != SIZE_MAX; times--) {
        TD_TRY(push_view(r, list, s, start, at));
        start = at + sep.size;
    }
    return push_view(r, list, s, start, s.size);
}

/* Without a separator: runs of white space separate, and none stand at the ends. */
static td_status split_words(td_jrun *r, td_jv s, uint64_t times, td_jlist *list) {
    s = td_jstr_strip(s, td_jv_none(), true, false);
    for (; s.size; times--) {
        size_t end = 0, step;
        uint32_t cp;
        for (; times && end < s.size; end += step) {
            step = td_jchar(s.text + end, s.size - end, &cp);
            if (td_jchar_is_space(cp))
                break;
        }
        if (!times)
            return td_jlist_push(r, list, s); /* the rest keeps the space at its far end */
        TD_TRY(push_view(r, list, s, 0, end));
        s = td_jstr_strip(td_jv_text(s.text + end, s.size - end), td_jv_none(), true, false);
    }
    return TD_OK;
}

static void reverse_items(td_jlist *list) {
    for (size_t i = 0, j = list->n; i + 1 < j; i++) {
        td_jv swap = list->items[i];
        list->items[i] = list->items[--j];
        list->items[j] = swap;
    }
}

static td_status rsplit_at(td_jrun *r, td_jv s, td_jv sep, uint64_t times, td_jlist *list) {
    size_t end = s.size;
    TD_TRY(td_jrun_charge(r, product(s.size, sep.size)));
    for (size_t at; times && (at = td_jstr_rfind(s, sep, end)) != SIZE_MAX; times--) {
        TD_TRY(push_view(r, list, s, at + sep.size, end));
        end = at;
    }
    return push_view(r, list, s, 0, end);
}

static bool ends_with_space(td_jv s) {
    return s.size != td_jstr_strip(s, td_jv_none(), false, true).size;
}

static td_status rsplit_words(td_jrun *r, td_jv s, uint64_t times, td_jlist *list) {
    s = td_jstr_strip(s, td_jv_none(), false, true);
    for (; s.size; times--) {
        if (!times)
            return td_jlist_push(r, list, s);
        size_t start = s.size;
        while (start && !ends_with_space(td_jv_text(s.text, start)))
            start--;
        TD_TRY(push_view(r, list, s, start, s.size));
        s = td_jstr_strip(td_jv_text(s.text, start), td_jv_none(), false, true);
    }
    return TD_OK;
}

static td_status split(td_jrun *r, const td_jinvoke *in, bool from_right, td_jv *out) {
    td_jv s = in->self, sep = in->arg[0];
    td_jlist *list;
    int64_t most;
    TD_TRY(td_jarg_int(r, "maxsplit", in->arg[1], -1, &most));
    uint64_t times = most < 0 ? UINT64_MAX : (uint64_t)most;
    TD_TRY(td_jrun_charge(r, s.size));
    TD_TRY(td_jlist_new(r, TD_J_PLAIN_LIST, 0, &list));
    if (td_jv_missing(sep)) {
        TD_TRY((from_right ? rsplit_words : split_words)(r, s, times, list));
    } else {
        TD_TRY(td_jarg_text(r, "split", sep, &sep));
        if (!sep.size)
            return td_jrun_fail(r, TD_E_FORMAT, "empty separator");
        TD_TRY((from_right ? rsplit_at : split_at)(r, s, sep, times, list));
    }
    if (from_right)
        reverse_items(list);
    *out = td_jv_list(list);
    return TD_OK;
}

static td_status m_split(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return split(r, in, false, out);
}

static td_status m_rsplit(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return split(r, in, true, out);
}

static td_status m_splitlines(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jlist *list;
    TD_TRY(td_jstr_split_lines(r, in->self, td_jv_truth(in->arg[0]), &list));
    *out = td_jv_list(list);
    return TD_OK;
}

/* (before, separator, after); without the separator, the text stands on the side the search began. */
static td_status partition(td_jrun *r, const td_jinvoke *in, bool from_right, td_jv *out) {
    td_jv s = in->self, sep, empty = td_jv_literal("");
    TD_TRY(td_jarg_text(r, "partition", in->arg[0], &sep));
    if (!sep.size)
        return td_jrun_fail(r, TD_E_FORMAT, "empty separator");
    TD_TRY(td_jrun_charge(r, from_right ? product(s.size, sep.size) : s.size));
    size_t at = from_right ? td_jstr_rfind(s, sep, s.size) : td_jstr_find(s, sep, 0);
    td_jv parts[3] = {from_right ? empty : s, empty, from_right ? s : empty};
    if (at != SIZE_MAX) {
        parts[0] = td_jv_text(s.text, at);
        parts[1] = sep;
        parts[2] = td_jv_text(s.text + at + sep.size, s.size - at - sep.size);
    }
    return td_jlist_of(r, TD_J_TUPLE, parts, 3, out);
}

static td_status m_partition(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return partition(r, in, false, out);
}

static td_status m_rpartition(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return partition(r, in, true, out);
}

/* ---- searching, replacing, joining ---- */

/* find, rfind, index and count look at s[start:end]; *offset is the characters before it. */
static td_status window(td_jrun *r, const td_jinvoke *in, td_jv *s, size_t *offset) {
    *s = in->self;
    *offset = 0;
    if (td_jv_missing(in->arg[1]) && td_jv_missing(in->arg[2]))
        return TD_OK;
    TD_TRY(td_jv_slice(r, in->self, in->arg[1], in->arg[2], td_jv_none(), s));
    *offset = td_jstr_count_chars(td_jv_text(in->self.text, (size_t)(s->text - in->self.text)));
    return TD_OK;
}

static td_status find(td_jrun *r, const td_jinvoke *in, bool from_right, int64_t *at) {
    td_jv s, what;
    size_t offset;
    TD_TRY(td_jarg_text(r, "find", in->arg[0], &what));
    TD_TRY(window(r, in, &s, &offset));
    TD_TRY(td_jrun_charge(r, from_right ? product(s.size, what.size + 1) : s.size));
    size_t byte = from_right ? td_jstr_rfind(s, what, s.size) : td_jstr_find(s, what, 0);
    *at = byte == SIZE_MAX ? -1 : (int64_t)(offset + td_jstr_count_chars(td_jv_text(s.text, byte)));
    return TD_OK;
}

static td_status find_or_fail(td_jrun *r, const td_jinvoke *in, bool from_right, bool must, td_jv *out) {
    int64_t at;
    TD_TRY(find(r, in, from_right, &at));
    if (must && at < 0)
        return td_jrun_fail(r, TD_E_FORMAT, "substring not found");
    *out = td_jv_int(at);
    return TD_OK;
}

static td_status m_find(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return find_or_fail(r, in, false, false, out);
}

static td_status m_rfind(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return find_or_fail(r, in, true, false, out);
}

static td_status m_index(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return find_or_fail(r, in, false, true, out);
}

static td_status m_rindex(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return find_or_fail(r, in, true, true, out);
}

static td_status m_count(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv s, what;
    size_t offset, n = 0;
    TD_TRY(td_jarg_text(r, "count", in->arg[0], &what));
    TD_TRY(window(r, in, &s, &offset));
    TD_TRY(td_jrun_charge(r, s.size));
    if (!what.size)
        n = td_jstr_count_chars(s) + 1;
    for (size_t at = 0; what.size && (at = td_jstr_find(s, what, at)) != SIZE_MAX; at += what.size)
        n++;
    *out = td_jv_int((int64_t)n);
    return TD_OK;
}

static td_status m_replace(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv from, to;
    int64_t count;
    TD_TRY(td_jarg_text(r, "replace", in->arg[0], &from));
    TD_TRY(td_jarg_text(r, "replace", in->arg[1], &to));
    TD_TRY(td_jarg_int(r, "count", in->arg[2], -1, &count));
    return td_jstr_replace(r, in->self, from, to, count, out);
}

static td_status m_join(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv *items, text;
    size_t n, mark = r->out->size;
    TD_TRY(td_jv_iterate(r, in->arg[0], &items, &n));
    for (size_t i = 0; i < n; i++) {
        TD_TRY(td_jarg_text(r, "join", items[i], &text));
        TD_TRY(td_jrun_charge(r, in->self.size + text.size));
        if (i)
            TD_TRY(td_jrun_write(r, in->self.text, in->self.size));
        TD_TRY(td_jrun_write(r, text.text, text.size));
    }
    return td_jrun_take(r, mark, out);
}

static td_status m_format(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jdict *named;
    TD_TRY(td_jdict_new(r, in->call->n_named, &named));
    for (size_t i = 0; i < in->call->n_named; i++)
        TD_TRY(td_jdict_set(r, named, in->call->names[i], in->call->named[i]));
    return td_jformat_braces(r, in->self, in->call->args, in->call->n, named, out);
}

/* ---- padding ---- */

enum { PAD_LEFT, PAD_RIGHT, PAD_BOTH };

static td_status pad(td_jrun *r, const td_jinvoke *in, int side, td_jv *out) {
    int64_t width;
    td_jv fill = td_jv_literal(" ");
    TD_TRY(td_jarg_int(r, "width", in->arg[0], 0, &width));
    if (!td_jv_missing(in->arg[1]))
        TD_TRY(td_jarg_text(r, "fill character", in->arg[1], &fill));
    if (td_jstr_count_chars(fill) != 1)
        return td_jrun_fail(r, TD_E_FORMAT, "the fill character must be exactly one character long");
    size_t have = td_jstr_count_chars(in->self), lack = width > (int64_t)have ? (size_t)width - have : 0;
    TD_TRY(td_jrun_charge(r, in->self.size));
    size_t left = side == PAD_LEFT ? lack : side == PAD_RIGHT ? 0 : lack / 2 + (lack & (size_t)width & 1);
    return td_jstr_pad(r, in->self, left, lack - left, fill, out);
}

static td_status m_rjust(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return pad(r, in, PAD_LEFT, out);
}

static td_status m_ljust(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return pad(r, in, PAD_RIGHT, out);
}

static td_status m_center(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return pad(r, in, PAD_BOTH, out);
}

/* Zeros go between a sign and the digits. */
static td_status m_zfill(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv s = in->self, sign = td_jv_literal("");
    int64_t width;
    TD_TRY(td_jarg_int(r, "width", in->arg[0], 0, &width));
    size_t have = td_jstr_count_chars(s), lack = width > (int64_t)have ? (size_t)width - have : 0;
    TD_TRY(td_jrun_charge(r, s.size));
    if (s.size && (s.text[0] == '+' || s.text[0] == '-')) {
        sign = td_jv_text(s.text, 1);
        s = td_jv_text(s.text + 1, s.size - 1);
    }
    TD_TRY(td_jstr_pad(r, s, lack, 0, td_jv_literal("0"), out));
    return td_jv_concat(r, sign, *out, out);
}

/* ---- is... ---- */

/* Not empty, and every character is of the class. */
static td_status all_chars(td_jrun *r, td_jv s, bool (*is)(uint32_t), td_jv *out) {
    bool all = s.size != 0;
    TD_TRY(td_jrun_charge(r, s.size));
    for (size_t i = 0; all && i < s.size;) {
        uint32_t cp;
        i += td_jchar(s.text + i, s.size - i, &cp);
        all = is(cp);
    }
    *out = td_jv_bool(all);
    return TD_OK;
}

static bool is_alnum(uint32_t cp) {
    return td_jchar_is_alpha(cp) || td_jchar_is_digit(cp) || td_jchar_is_numeric(cp);
}

static bool is_ascii(uint32_t cp) {
    return cp < 0x80;
}

static td_status m_isalpha(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return all_chars(r, in->self, td_jchar_is_alpha, out);
}

static td_status m_isalnum(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return all_chars(r, in->self, is_alnum, out);
}

static td_status m_isdecimal(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return all_chars(r, in->self, td_jchar_is_decimal, out);
}

static td_status m_isdigit(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return all_chars(r, in->self, td_jchar_is_digit, out);
}

static td_status m_isnumeric(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return all_chars(r, in->self, td_jchar_is_numeric, out);
}

static td_status m_isspace(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return all_chars(r, in->self, td_jchar_is_space, out);
}

static td_status m_isascii(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    TD_TRY(all_chars(r, in->self, is_ascii, out));
    out->boolean |= in->self.size == 0;
    return TD_OK;
}

static td_status m_isupper(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    *out = td_jv_bool(td_jstr_is_upper(in->self));
    return td_jrun_charge(r, in->self.size);
}

static td_status m_islower(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    *out = td_jv_bool(td_jstr_is_lower(in->self));
    return td_jrun_charge(r, in->self.size);
}

const td_jbuiltin td_jmethods_string[] = {
    {"strip", m_strip, 0, {"chars"}},
    {"lstrip", m_lstrip, 0, {"chars"}},
    {"rstrip", m_rstrip, 0, {"chars"}},
    {"split", m_split, 0, {"sep", "maxsplit"}},
    {"rsplit", m_rsplit, 0, {"sep", "maxsplit"}},
    {"splitlines", m_splitlines, 0, {"keepends"}},
    {"partition", m_partition, 1, {"sep"}},
    {"rpartition", m_rpartition, 1, {"sep"}},
    {"startswith", m_startswith, 1, {"prefix"}},
    {"endswith", m_endswith, 1, {"suffix"}},
    {"removeprefix", m_removeprefix, 1, {"prefix"}},
    {"removesuffix", m_removesuffix, 1, {"suffix"}},
    {"upper", m_upper, 0, {NULL}},
    {"lower", m_lower, 0, {NULL}},
    {"title", m_title, 0, {NULL}},
    {"capitalize", m_capitalize, 0, {NULL}},
    {"swapcase", m_swapcase, 0, {NULL}},
    {"replace", m_replace, 2, {"old", "new", "count"}},
    {"find", m_find, 1, {"sub", "start", "end"}},
    {"rfind", m_rfind, 1, {"sub", "start", "end"}},
    {"index", m_index, 1, {"sub", "start", "end"}},
    {"rindex", m_rindex, 1, {"sub", "start", "end"}},
    {"count", m_count, 1, {"sub", "start", "end"}},
    {"join", m_join, 1, {"iterable"}},
    {"format", m_format, -1, {NULL}},
    {"rjust", m_rjust, 1, {"width", "fillchar"}},
    {"ljust", m_ljust, 1, {"width", "fillchar"}},
    {"center", m_center, 1, {"width", "fillchar"}},
    {"zfill", m_zfill, 1, {"width"}},
    {"isalpha", m_isalpha, 0, {NULL}},
    {"isalnum", m_isalnum, 0, {NULL}},
    {"isdecimal", m_isdecimal, 0, {NULL}},
    {"isdigit", m_isdigit, 0, {NULL}},
    {"isnumeric", m_isnumeric, 0, {NULL}},
    {"isspace", m_isspace, 0, {NULL}},
    {"isascii", m_isascii, 0, {NULL}},
    {"isupper", m_isupper, 0, {NULL}},
    {"islower", m_islower, 0, {NULL}},
    {NULL, NULL, 0, {NULL}},
};
