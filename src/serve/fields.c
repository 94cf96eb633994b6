/* fields.c - see fields.h. */
#include "serve/fields.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { PATH_SIZE = 160 };

const char *td_json_kind(const json_t *v) {
    switch (v ? json_typeof(v) : JSON_NULL) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a string";
    case JSON_INTEGER:
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "a boolean";
    case JSON_NULL:
        break;
    }
    return "null";
}

json_t *td_field(const td_fields *f, const char *name) {
    json_t *v = json_object_get(f->object, name);
    return json_is_null(v) ? NULL : v;
}

static void path_of(const td_fields *f, const char *name, char out[PATH_SIZE]) {
    bool both = f->path[0] && name && name[0];
    snprintf(out, PATH_SIZE, "%s%s%s", f->path, both ? "." : "", name ? name : "");
}

td_status td_field_fail(const td_fields *f, const char *name, const char *code, const char *fmt, ...) {
    char path[PATH_SIZE], message[sizeof((td_fault){0}.message)];
    path_of(f, name, path);
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    return td_fault_set(f->fault, 400, code, path, "'%s' %s", path, message);
}

td_status td_field_type(const td_fields *f, const char *name, const json_t *found, const char *expected) {
    return td_field_fail(f, name, "invalid_type", "is %s, expected %s", td_json_kind(found), expected);
}

td_status td_field_missing(const td_fields *f, const char *name) {
    return td_field_fail(f, name, "missing_required_parameter", "is missing");
}

td_status td_field_bool(const td_fields *f, const char *name, bool *out) {
    const json_t *v = td_field(f, name);
    if (v && !json_is_boolean(v))
        return td_field_type(f, name, v, "true or false");
    if (v)
        *out = json_is_true(v);
    return TD_OK;
}

td_status td_field_int(const td_fields *f, const char *name, int64_t lo, int64_t hi, int64_t *out) {
    const json_t *v = td_field(f, name);
    if (!v)
        return TD_OK;
    double d = json_number_value(v);
    bool whole = json_is_integer(v) || (json_is_real(v) && d == floor(d) && fabs(d) <= 9007199254740992.0);
    if (!json_is_number(v))
        return td_field_type(f, name, v, "a whole number");
    if (!whole)
        return td_field_fail(f, name, "invalid_type", "is %g, expected a whole number", d);
    int64_t n = json_is_integer(v) ? json_integer_value(v) : (int64_t)d;
    if (n < lo || n > hi)
        return td_field_fail(f, name, "invalid_value", "is %lld, expected %lld to %lld", (long long)n, (long long)lo,
                             (long long)hi);
    *out = n;
    return TD_OK;
}

td_status td_field_u32(const td_fields *f, const char *name, uint32_t lo, uint32_t hi, uint32_t *out) {
    int64_t v = *out;
    TD_TRY(td_field_int(f, name, lo, hi, &v));
    *out = (uint32_t)v;
    return TD_OK;
}

td_status td_field_real(const td_fields *f, const char *name, double lo, double hi, double *out) {
    const json_t *v = td_field(f, name);
    if (!v)
        return TD_OK;
    if (!json_is_number(v))
        return td_field_type(f, name, v, "a number");
    double d = json_number_value(v);
    if (!(d >= lo && d <= hi))
        return td_field_fail(f, name, "invalid_value", "is %g, expected %g to %g", d, lo, hi);
    *out = d;
    return TD_OK;
}

td_status td_field_float(const td_fields *f, const char *name, double lo, double hi, float *out) {
    if (!td_field(f, name))
        return TD_OK;
    double d = 0;
    TD_TRY(td_field_real(f, name, lo, hi, &d));
    *out = (float)d;
    return TD_OK;
}

td_status td_field_text(const td_fields *f, const char *name, const char **out) {
    const json_t *v = td_field(f, name);
    if (v && !json_is_string(v))
        return td_field_type(f, name, v, "a string");
    if (v)
        *out = json_string_value(v);
    return TD_OK;
}

td_status td_field_object(const td_fields *f, const char *name, json_t **out) {
    json_t *v = td_field(f, name);
    if (v && !json_is_object(v))
        return td_field_type(f, name, v, "an object");
    if (v)
        *out = v;
    return TD_OK;
}

td_status td_field_array(const td_fields *f, const char *name, json_t **out) {
    json_t *v = td_field(f, name);
    if (v && !json_is_array(v))
        return td_field_type(f, name, v, "a list");
    if (v)
        *out = v;
    return TD_OK;
}
