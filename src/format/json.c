/* json.c - JSON trees for configuration files, and their fields with errors a user can act on.
 *
 * jansson builds the tree, but the text is first walked by the pull reader (json_scan.h). That pass costs no memory,
 * holds every rule (depth, NUL, UTF-8, garbage after the value) and gives the byte position in our own words; what is
 * left for jansson to refuse is a key that occurs twice, a real beyond the doubles, and a failed allocation.
 *
 * Integers beyond 64 bits occur in the wild (tokenizer configs write "no limit" as 10^30), and jansson fails the whole
 * text on one. Such a text is copied with an exponent "e0" behind each of them, which makes them reals: they parse,
 * and a field that wants an integer still refuses them. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "format/checkpoint.h"
#include "format/json_scan.h"

/* ---- parsing ---- */

/* Decimal text of an integer against the range of int64_t. */
static bool fits_int64(const char *str, size_t size) {
    bool negative = str[0] == '-';
    const char *limit = negative ? "9223372036854775808" : "9223372036854775807";
    str += negative;
    size -= negative;
    return size < 19 || (size == 19 && memcmp(str, limit, 19) <= 0);
}

/* Walks the text by the strict rules. *wide gets a copy of the text with "e0" behind integers beyond 64 bits, and
 * stays empty when there are none. */
static td_status check_text(td_json_scan *s, td_buf *wide, td_error *err) {
    size_t copied = 0;
    do {
        char c = td_json_scan_peek(s);
        const char *str;
        size_t size;
        bool integral;
        if (c == '{' || c == '[') {
            TD_TRY(td_json_scan_enter(s, c, err));
        } else if (c == '0') {
            TD_TRY(td_json_scan_number(s, &str, &size, &integral, err));
            if (integral && !fits_int64(str, size)) {
                (void)td_buf_append(wide, s->text + copied, s->pos - copied);
                (void)td_buf_puts(wide, "e0");
                copied = s->pos;
            }
        } else {
            TD_TRY(td_json_scan_skip(s, err));
        }
        bool more = false;
        while (s->depth > 0 && !more) {
            TD_TRY(td_json_scan_next(s, &more, err));
            if (more && s->open[s->depth - 1] == '{')
                TD_TRY(td_json_scan_key(s, &str, &size, err));
        }
    } while (s->depth > 0);
    TD_TRY(td_json_scan_end(s, err));
    if (copied > 0)
        (void)td_buf_append(wide, s->text + copied, s->size - copied);
    if (wide->failed)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", s->where);
    return TD_OK;
}

static td_status jansson_failed(const json_error_t *e, const char *where, td_error *err) {
    switch (json_error_code(e)) {
    case json_error_duplicate_key:
        return td_fail_at(err, TD_E_FORMAT, e->position, "%s: byte %d: a key occurs twice", where, e->position);
    case json_error_numeric_overflow:
        return td_fail_at(err, TD_E_FORMAT, e->position, "%s: byte %d: a number is beyond the range of a double", where,
                          e->position);
    default: /* the text is well formed, so it can only be memory */
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", where);
    }
}

td_status td_json_parse(const char *text, size_t size, int max_depth, const char *where, json_t **out, td_error *err) {
    *out = NULL;
    td_json_scan s;
    td_json_scan_init(&s, text, size, 0, max_depth, where);
    td_buf wide;
    td_buf_init(&wide, size < SIZE_MAX / 4 ? size * 3 : size);
    td_status st;
    if (size >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0)
        st = td_json_scan_fail(&s, 0, err, "the text begins with a byte order mark, expected plain UTF-8");
    else
        st = check_text(&s, &wide, err);
    if (st == TD_OK) {
        json_error_t e;
        const size_t flags = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY;
        *out = wide.size > 0 ? json_loadb(wide.data, wide.size, flags, &e) : json_loadb(text, size, flags, &e);
        if (!*out)
            st = jansson_failed(&e, where, err);
    }
    td_buf_free(&wide);
    td_json_scan_free(&s);
    return st;
}

/* ---- fields ---- */

/* What a field holds, for "is ..., expected ...". */
static const char *describe(const json_t *v, char *buf, size_t size) {
    char shown[TD_SHOWN_SIZE];
    switch (json_typeof(v)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "an array";
    case JSON_STRING:
        snprintf(buf, size, "\"%s\"", td_shown(shown, json_string_value(v), json_string_length(v)));
        return buf;
    case JSON_INTEGER:
        snprintf(buf, size, "%" JSON_INTEGER_FORMAT, json_integer_value(v));
        return buf;
    case JSON_REAL:
        snprintf(buf, size, "%.17g", json_real_value(v));
        return buf;
    case JSON_TRUE:
        return "true";
    case JSON_FALSE:
        return "false";
    case JSON_NULL:
        return "null";
    }
    return "?";
}

static td_status wrong(const json_t *v, const char *where, const char *key, const char *want, td_error *err) {
    char buf[TD_SHOWN_SIZE + 8];
    if (!v)
        return td_fail(err, TD_E_MODEL, "%s: \"%s\" is missing, expected %s", where, key, want);
    return td_fail(err, TD_E_MODEL, "%s: \"%s\" is %s, expected %s", where, key, describe(v, buf, sizeof buf), want);
}

td_status td_json_u32(const json_t *o, const char *where, const char *key, uint32_t lo, uint32_t hi, uint32_t *out,
                      td_error *err) {
    const json_t *v = json_object_get(o, key);
    if (!v || !json_is_integer(v) || json_integer_value(v) < (json_int_t)lo || json_integer_value(v) > (json_int_t)hi) {
        char want[80];
        snprintf(want, sizeof want, "an integer in [%" PRIu32 ", %" PRIu32 "]", lo, hi);
        return wrong(v, where, key, want, err);
    }
    *out = (uint32_t)json_integer_value(v);
    return TD_OK;
}

td_status td_json_u32_or(const json_t *o, const char *where, const char *key, uint32_t lo, uint32_t hi, uint32_t def,
                         uint32_t *out, td_error *err) {
    const json_t *v = json_object_get(o, key);
    if (v && !json_is_null(v))
        return td_json_u32(o, where, key, lo, hi, out, err);
    *out = def;
    return TD_OK;
}

td_status td_json_f64_or(const json_t *o, const char *where, const char *key, double def, double *out, td_error *err) {
    const json_t *v = json_object_get(o, key);
    if (v && !json_is_null(v) && !json_is_number(v))
        return wrong(v, where, key, "a number", err);
    *out = v && !json_is_null(v) ? json_number_value(v) : def;
    return TD_OK;
}

td_status td_json_bool_or(const json_t *o, const char *where, const char *key, bool def, bool *out, td_error *err) {
    const json_t *v = json_object_get(o, key);
    if (v && !json_is_null(v) && !json_is_boolean(v))
        return wrong(v, where, key, "true or false", err);
    *out = v && !json_is_null(v) ? json_is_true(v) : def;
    return TD_OK;
}
