/* json.c - JSON trees for configuration files, and their fields with errors a user can act on.
 *
 * The trees are jansson's, the parser is not: the pull reader (json_scan.h) holds every rule and gives the byte
 * position, and what it reads is put into jansson's containers here, with a stack instead of recursion. jansson's own
 * parser was used first; when an allocation fails while it collects a string, it drops a character and succeeds, and it
 * refuses a whole text for one integer beyond 64 bits. Such integers occur in the wild (tokenizer configs write "no
 * limit" as 10^30); here they become reals: they parse, and a field that wants an integer still refuses them. */
#include <errno.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "format/checkpoint.h"
#include "format/json_scan.h"

/* ---- parsing ---- */

typedef struct tree {
    td_json_scan scan;
    td_buf key;                      /* of the value being read, in an object */
    json_t *open[TD_JSON_MAX_DEPTH]; /* the containers on the way to it; borrowed, each is in the one before */
    json_t *root;                    /* owned until it is handed out */
} tree;

static td_status no_memory(const tree *t, td_error *err) {
    return td_fail(err, TD_E_NOMEM, "%s: out of memory", t->scan.where);
}

/* An integer when it is one and fits, else a real. */
static td_status read_number(tree *t, json_t **out, td_error *err) {
    const char *str;
    size_t size;
    bool integral;
    char text[TD_JSON_MAX_NUMBER + 1];
    TD_TRY(td_json_scan_number(&t->scan, &str, &size, &integral, err));
    memcpy(text, str, size);
    text[size] = '\0';
    if (integral) {
        errno = 0;
        long long v = strtoll(text, NULL, 10);
        if (errno == 0) {
            *out = json_integer(v);
            return TD_OK;
        }
    }
    char *point = strchr(text, '.');
    if (point)
        *point = localeconv()->decimal_point[0]; /* what strtod wants to see */
    double d = strtod(text, NULL);
    if (!isfinite(d))
        return td_json_scan_fail(&t->scan, t->scan.pos - size, err, "a number is beyond the range of a double");
    *out = json_real(d);
    return TD_OK;
}

/* A value; of a container only the beginning. A failed allocation leaves *out NULL. */
static td_status read_value(tree *t, json_t **out, td_error *err) {
    const char *str;
    size_t size;
    char c = td_json_scan_peek(&t->scan);
    *out = NULL;
    switch (c) {
    case '{':
    case '[':
        TD_TRY(td_json_scan_enter(&t->scan, c, err));
        *out = c == '{' ? json_object() : json_array();
        return TD_OK;
    case '"':
        TD_TRY(td_json_scan_string(&t->scan, &str, &size, err));
        *out = json_stringn_nocheck(str, size);
        return TD_OK;
    case '0':
        return read_number(t, out, err);
    default:
        TD_TRY(td_json_scan_skip(&t->scan, err)); /* one of three words, or an error */
        *out = c == 't' ? json_true() : c == 'f' ? json_false() : json_null();
        return TD_OK;
    }
}

/* To the key of the next member of the innermost object. */
static td_status read_key(tree *t, const json_t *object, td_error *err) {
    const char *str;
    size_t size;
    char shown[TD_SHOWN_SIZE];
    (void)td_json_scan_peek(&t->scan);
    size_t pos = t->scan.pos;
    TD_TRY(td_json_scan_key(&t->scan, &str, &size, err));
    td_buf_clear(&t->key);
    if (td_buf_append(&t->key, str, size) != TD_OK)
        return no_memory(t, err);
    if (json_object_get(object, t->key.data))
        return td_json_scan_fail(&t->scan, pos, err, "key \"%s\" occurs twice", td_shown(shown, str, size));
    return TD_OK;
}

/* Puts a value (its ownership too) into the container that holds it. */
static td_status attach(tree *t, json_t *parent, json_t *value, td_error *err) {
    if (!value)
        return no_memory(t, err);
    if (!parent)
        t->root = value;
    else if (json_is_object(parent) ? json_object_set_new_nocheck(parent, t->key.data, value)
                                    : json_array_append_new(parent, value))
        return no_memory(t, err);
    return TD_OK;
}

static td_status read_tree(tree *t, td_error *err) {
    td_json_scan *s = &t->scan;
    do {
        int depth = s->depth;
        json_t *value;
        TD_TRY(read_value(t, &value, err));
        TD_TRY(attach(t, depth ? t->open[depth - 1] : NULL, value, err));
        if (s->depth > depth)
            t->open[depth] = value;
        bool more = false;
        while (s->depth > 0 && !more) { /* to the next value, leaving what closes on the way */
            TD_TRY(td_json_scan_next(s, &more, err));
            if (more && json_is_object(t->open[s->depth - 1]))
                TD_TRY(read_key(t, t->open[s->depth - 1], err));
        }
    } while (s->depth > 0);
    return td_json_scan_end(s, err);
}

td_status td_json_parse(const char *text, size_t size, int max_depth, const char *where, json_t **out, td_error *err) {
    tree t = {0};
    td_json_scan_init(&t.scan, text, size, 0, max_depth, where);
    td_buf_init(&t.key, size);
    td_status st;
    if (size >= 3 && memcmp(text, "\xEF\xBB\xBF", 3) == 0)
        st = td_json_scan_fail(&t.scan, 0, err, "the text begins with a byte order mark, expected plain UTF-8");
    else
        st = read_tree(&t, err);
    if (st != TD_OK) {
        json_decref(t.root);
        t.root = NULL;
    }
    *out = t.root;
    td_buf_free(&t.key);
    td_json_scan_free(&t.scan);
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
