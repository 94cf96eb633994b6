/* jinja_strings.c - operations on text that filters and methods share. Positions are bytes, characters are code
 * points, and what can be a view of its input is one. */
#include <string.h>

#include "text/jinja_internal.h"

size_t td_jstr_count_chars(td_jv s) {
    size_t n = 0;
    for (size_t i = 0; i < s.size; n++) {
        uint32_t cp;
        i += (unsigned char)s.text[i] < 0x80 ? 1 : td_jchar(s.text + i, s.size - i, &cp);
    }
    return n;
}

size_t td_jstr_find(td_jv s, td_jv what, size_t from) {
    if (from > s.size || what.size > s.size - from)
        return SIZE_MAX;
    if (!what.size)
        return from;
    const char *at = memmem(s.text + from, s.size - from, what.text, what.size);
    return at ? (size_t)(at - s.text) : SIZE_MAX;
}

size_t td_jstr_rfind(td_jv s, td_jv what, size_t to) {
    if (what.size > to)
        return SIZE_MAX;
    for (size_t at = to - what.size + 1; at-- > 0;)
        if (!what.size || !memcmp(s.text + at, what.text, what.size))
            return at;
    return SIZE_MAX;
}

static bool strips(td_jv c, uint32_t cp, td_jv chars) {
    return chars.kind == TD_J_STRING ? td_jstr_find(chars, c, 0) != SIZE_MAX : td_jchar_is_space(cp);
}

/* The bytes of the last character of s. */
static size_t last_char(td_jv s, uint32_t *cp) {
    for (size_t n = 1; n <= 4 && n <= s.size; n++)
        if (td_jchar(s.text + s.size - n, n, cp) == n && (n > 1 || (unsigned char)s.text[s.size - 1] < 0x80))
            return n;
    *cp = 0xfffd;
    return 1;
}

td_jv td_jstr_strip(td_jv s, td_jv chars, bool left, bool right) {
    uint32_t cp;
    while (left && s.size) {
        size_t n = td_jchar(s.text, s.size, &cp);
        if (!strips(td_jv_text(s.text, n), cp, chars))
            break;
        s.text += n;
        s.size -= n;
    }
    while (right && s.size) {
        size_t n = last_char(s, &cp);
        if (!strips(td_jv_text(s.text + s.size - n, n), cp, chars))
            break;
        s.size -= n;
    }
    return td_jv_text(s.text, s.size);
}

/* Python's replace of an empty string: `to` before each of the first `count` characters, and at the end. */
static td_status interleave(td_jrun *r, td_jv s, td_jv to, uint64_t count, td_jv *out) {
    size_t mark = r->out->size, i = 0;
    while (count && i < s.size) {
        uint32_t cp;
        size_t step = td_jchar(s.text + i, s.size - i, &cp);
        TD_TRY(td_jrun_charge(r, to.size));
        TD_TRY(td_jrun_write(r, to.text, to.size));
        TD_TRY(td_jrun_write(r, s.text + i, step));
        i += step;
        count--;
    }
    if (count)
        TD_TRY(td_jrun_write(r, to.text, to.size));
    TD_TRY(td_jrun_write(r, s.text + i, s.size - i));
    return td_jrun_take(r, mark, out);
}

td_status td_jstr_replace(td_jrun *r, td_jv s, td_jv from, td_jv to, int64_t count, td_jv *out) {
    uint64_t left = count < 0 ? UINT64_MAX : (uint64_t)count;
    TD_TRY(td_jrun_charge(r, s.size));
    if (!from.size)
        return interleave(r, s, to, left, out);
    size_t mark = r->out->size, done = 0;
    *out = s;
    if (td_jstr_find(s, from, 0) == SIZE_MAX)
        return TD_OK;
    for (size_t at; left && (at = td_jstr_find(s, from, done)) != SIZE_MAX; left--) {
        TD_TRY(td_jrun_charge(r, to.size));
        TD_TRY(td_jrun_write(r, s.text + done, at - done));
        TD_TRY(td_jrun_write(r, to.text, to.size));
        done = at + from.size;
    }
    TD_TRY(td_jrun_write(r, s.text + done, s.size - done));
    return td_jrun_take(r, mark, out);
}

/* ---- case ---- */

static bool is_ascii(td_jv s) {
    for (size_t i = 0; i < s.size; i++)
        if ((unsigned char)s.text[i] >= 0x80)
            return false;
    return true;
}

static char ascii_upper(char c) {
    return c >= 'a' && c <= 'z' ? (char)(c - 32) : c;
}

static char ascii_lower(char c) {
    return c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
}

/* What happens to a character: `cased` tells whether the one before it was a letter with case, `first` whether there
 * was none. */
static td_jcasing casing_here(td_jcasing casing, bool first, bool cased, bool is_upper) {
    switch (casing) {
    case TD_J_CAPITALIZE:
        return first ? TD_J_TITLE : TD_J_LOWER;
    case TD_J_TITLE:
        return cased ? TD_J_LOWER : TD_J_TITLE;
    case TD_J_SWAPCASE:
        return is_upper ? TD_J_LOWER : TD_J_UPPER;
    default:
        return casing;
    }
}

static td_status case_ascii(td_jrun *r, td_jv s, td_jcasing casing, td_jv *out) {
    char *text = td_jrun_alloc(r, s.size, 1);
    if (!text)
        return td_jrun_nomem(r);
    bool cased = false;
    for (size_t i = 0; i < s.size; i++) {
        char c = s.text[i];
        bool upper = c >= 'A' && c <= 'Z';
        text[i] = casing_here(casing, i == 0, cased, upper) == TD_J_LOWER ? ascii_lower(c) : ascii_upper(c);
        cased = upper || (c >= 'a' && c <= 'z');
    }
    *out = td_jv_text(text, s.size);
    return TD_OK;
}

static bool is_cased(uint32_t cp) {
    return td_jchar_is_upper(cp) || td_jchar_is_lower(cp) || td_jchar_is_title(cp);
}

/* A capital sigma in lower case: another letter at the end of a word. */
static uint32_t lower_sigma(td_jv s, size_t after, bool cased_before) {
    uint32_t next = 0;
    if (after < s.size)
        td_jchar(s.text + after, s.size - after, &next);
    return cased_before && !(next && is_cased(next)) ? 0x3c2 : 0x3c3;
}

td_status td_jstr_case(td_jrun *r, td_jv s, td_jcasing casing, td_jv *out) {
    TD_TRY(td_jrun_charge(r, s.size));
    if (is_ascii(s))
        return case_ascii(r, s, casing, out);
    size_t mark = r->out->size;
    bool cased = false;
    for (size_t i = 0, step; i < s.size; i += step) {
        uint32_t cp, to[3];
        char bytes[4];
        step = td_jchar(s.text + i, s.size - i, &cp);
        td_jcasing here = casing_here(casing, i == 0, cased, td_jchar_is_upper(cp));
        size_t n = here == TD_J_UPPER   ? td_jchar_upper(cp, to)
                   : here == TD_J_TITLE ? td_jchar_title(cp, to)
                                        : td_jchar_lower(cp, to);
        if (here == TD_J_LOWER && cp == 0x3a3)
            to[0] = lower_sigma(s, i + step, cased);
        for (size_t k = 0; k < n; k++)
            TD_TRY(td_jrun_write(r, bytes, td_jchar_put(to[k], bytes)));
        cased = is_cased(cp);
    }
    return td_jrun_take(r, mark, out);
}

/* All cased characters are of the one case, and there is at least one. */
static bool all_of_case(td_jv s, bool upper) {
    bool any = false;
    for (size_t i = 0; i < s.size;) {
        uint32_t cp;
        i += td_jchar(s.text + i, s.size - i, &cp);
        if (upper ? td_jchar_is_lower(cp) || td_jchar_is_title(cp) : td_jchar_is_upper(cp) || td_jchar_is_title(cp))
            return false;
        any |= upper ? td_jchar_is_upper(cp) : td_jchar_is_lower(cp);
    }
    return any;
}

bool td_jstr_is_upper(td_jv s) {
    return all_of_case(s, true);
}

bool td_jstr_is_lower(td_jv s) {
    return all_of_case(s, false);
}

/* ---- lines and padding ---- */

td_status td_jstr_split_lines(td_jrun *r, td_jv s, bool keep_ends, td_jlist **out) {
    TD_TRY(td_jrun_charge(r, s.size));
    TD_TRY(td_jlist_new(r, TD_J_PLAIN_LIST, 0, out));
    size_t start = 0;
    for (size_t i = 0, step; i < s.size; i += step) {
        uint32_t cp;
        step = td_jchar(s.text + i, s.size - i, &cp);
        if (!td_jchar_is_line_break(cp))
            continue;
        if (cp == '\r' && i + 1 < s.size && s.text[i + 1] == '\n')
            step++;
        TD_TRY(td_jlist_push(r, *out, td_jv_text(s.text + start, (keep_ends ? i + step : i) - start)));
        start = i + step;
    }
    return start < s.size ? td_jlist_push(r, *out, td_jv_text(s.text + start, s.size - start)) : TD_OK;
}

td_status td_jstr_pad(td_jrun *r, td_jv s, size_t left, size_t right, td_jv fill, td_jv *out) {
    size_t mark = r->out->size;
    if (!left && !right) {
        *out = s;
        return TD_OK;
    }
    for (; left; left--) {
        TD_TRY(td_jrun_charge(r, 0));
        TD_TRY(td_jrun_write(r, fill.text, fill.size));
    }
    TD_TRY(td_jrun_write(r, s.text, s.size));
    for (; right; right--) {
        TD_TRY(td_jrun_charge(r, 0));
        TD_TRY(td_jrun_write(r, fill.text, fill.size));
    }
    return td_jrun_take(r, mark, out);
}
