/* gguf_values.c - metadata of a GGUF file by type: numbers of any width, strings, and what is said when a key is of
 * another kind than its reader needs. Writers choose integer widths as they like, so readers ask for a range. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "format/gguf.h"

bool td_gguf_integer_at(const td_gguf_value *v, uint64_t i, int64_t *out) {
    union {
        uint8_t u8;
        int8_t i8;
        uint16_t u16;
        int16_t i16;
        uint32_t u32;
        int32_t i32;
        uint64_t u64;
        int64_t i64;
    } x;
    if (i >= v->n)
        return false;
    switch (v->type) {
    case TD_GGUF_U8:
    case TD_GGUF_BOOL:
        *out = v->data[i];
        return true;
    case TD_GGUF_I8:
        *out = (int8_t)v->data[i];
        return true;
    case TD_GGUF_U16:
        memcpy(&x, v->data + 2 * i, 2);
        *out = x.u16;
        return true;
    case TD_GGUF_I16:
        memcpy(&x, v->data + 2 * i, 2);
        *out = x.i16;
        return true;
    case TD_GGUF_U32:
        memcpy(&x, v->data + 4 * i, 4);
        *out = x.u32;
        return true;
    case TD_GGUF_I32:
        memcpy(&x, v->data + 4 * i, 4);
        *out = x.i32;
        return true;
    case TD_GGUF_U64:
        memcpy(&x, v->data + 8 * i, 8);
        *out = x.i64;
        return x.u64 <= INT64_MAX;
    case TD_GGUF_I64:
        memcpy(&x, v->data + 8 * i, 8);
        *out = x.i64;
        return true;
    default:
        return false;
    }
}

bool td_gguf_real_at(const td_gguf_value *v, uint64_t i, double *out) {
    float f;
    if (i >= v->n)
        return false;
    if (v->type == TD_GGUF_F32) {
        memcpy(&f, v->data + 4 * i, 4);
        *out = f;
        return true;
    }
    if (v->type == TD_GGUF_F64) {
        memcpy(out, v->data + 8 * i, 8);
        return true;
    }
    return false;
}

bool td_gguf_next_string(td_gguf_strings *s, const char **str, size_t *size) {
    uint64_t n;
    if (s->v->type != TD_GGUF_STRING || s->i >= s->v->n)
        return false;
    memcpy(&n, s->v->data + s->pos, 8);
    *str = (const char *)s->v->data + s->pos + 8;
    *size = (size_t)n;
    s->pos += 8 + (size_t)n;
    s->i++;
    return true;
}

/* ---- by key ---- */

/* What a value is, for messages: "an array of 3 i32", "-5", "a string". */
static const char *describe(const td_gguf_value *v, char buf[64]) {
    int64_t i;
    double d;
    if (v->is_array)
        snprintf(buf, 64, "an array of %" PRIu64 " %s", v->n, td_gguf_type_name(v->type));
    else if (v->type != TD_GGUF_BOOL && td_gguf_integer_at(v, 0, &i))
        snprintf(buf, 64, "%" PRId64, i);
    else if (td_gguf_real_at(v, 0, &d))
        snprintf(buf, 64, "%g", d);
    else
        snprintf(buf, 64, "a %s", td_gguf_type_name(v->type));
    return buf;
}

static td_status unexpected(const td_gguf *g, const td_gguf_value *v, const char *expected, td_error *err) {
    char found[64];
    return td_fail(err, TD_E_MODEL, "%s: \"%s\" is %s, expected %s", td_gguf_path(g), v->key, describe(v, found),
                   expected);
}

static td_status read_u32(const td_gguf *g, const td_gguf_value *v, uint32_t lo, uint32_t hi, uint32_t *out,
                          td_error *err) {
    int64_t x;
    char expected[64];
    if (!v->is_array && v->type != TD_GGUF_BOOL && td_gguf_integer_at(v, 0, &x) && x >= lo && x <= hi) {
        *out = (uint32_t)x;
        return TD_OK;
    }
    snprintf(expected, sizeof expected, "an integer from %" PRIu32 " to %" PRIu32, lo, hi);
    return unexpected(g, v, expected, err);
}

td_status td_gguf_u32(const td_gguf *g, const char *key, uint32_t lo, uint32_t hi, uint32_t *out, td_error *err) {
    const td_gguf_value *v = td_gguf_find(g, key);
    if (!v)
        return td_fail(err, TD_E_MODEL, "%s: no key \"%s\"", td_gguf_path(g), key);
    return read_u32(g, v, lo, hi, out, err);
}

td_status td_gguf_u32_or(const td_gguf *g, const char *key, uint32_t lo, uint32_t hi, uint32_t def, uint32_t *out,
                         td_error *err) {
    const td_gguf_value *v = td_gguf_find(g, key);
    *out = def;
    return v ? read_u32(g, v, lo, hi, out, err) : TD_OK;
}

td_status td_gguf_f64_or(const td_gguf *g, const char *key, double def, double *out, td_error *err) {
    const td_gguf_value *v = td_gguf_find(g, key);
    double x;
    *out = def;
    if (!v)
        return TD_OK;
    if (v->is_array || !td_gguf_real_at(v, 0, &x) || !isfinite(x))
        return unexpected(g, v, "a finite f32 or f64", err);
    *out = x;
    return TD_OK;
}

td_status td_gguf_bool_or(const td_gguf *g, const char *key, bool def, bool *out, td_error *err) {
    const td_gguf_value *v = td_gguf_find(g, key);
    *out = def;
    if (!v)
        return TD_OK;
    if (v->is_array || v->type != TD_GGUF_BOOL)
        return unexpected(g, v, "a bool", err);
    *out = v->data[0] != 0;
    return TD_OK;
}

td_status td_gguf_string_or_null(const td_gguf *g, const char *key, const char **str, size_t *size, td_error *err) {
    const td_gguf_value *v = td_gguf_find(g, key);
    *str = NULL;
    *size = 0;
    if (!v)
        return TD_OK;
    if (v->is_array || v->type != TD_GGUF_STRING)
        return unexpected(g, v, "a string", err);
    td_gguf_next_string(&(td_gguf_strings){.v = v}, str, size);
    return TD_OK;
}

bool td_gguf_string_is(const td_gguf *g, const char *key, const char *text) {
    const char *str;
    size_t size;
    return td_gguf_string_or_null(g, key, &str, &size, NULL) == TD_OK && str && size == strlen(text) &&
           memcmp(str, text, size) == 0;
}
