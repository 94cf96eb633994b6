/* json_schema_merge.c - allOf, anyOf and $ref beside other keywords, multiplied out to flat schemas.
 *
 * A flat schema has none of them. Two are merged keyword by keyword; two that contradict each other make none, and if
 * no way is left the schema is one that nothing satisfies. Where members of merged schemas meet, they are put together
 * under allOf again, to be flattened when their turn comes. */
#include <string.h>

#include "text/json_schema_impl.h"

enum { MAX_FLATTEN = 40 }; /* references and combinations inside each other */

/* ---- types ---- */

static bool list_has(const json_t *types, const char *type) {
    const json_t *t;
    size_t i;
    if (json_is_string(types))
        return strcmp(json_string_value(types), type) == 0;
    json_array_foreach(types, i, t) {
        if (json_is_string(t) && strcmp(json_string_value(t), type) == 0)
            return true;
    }
    return false;
}

/* An integer is a number too. */
static json_t *common_types(const json_t *a, const json_t *b) {
    static const char *const names[] = {"null", "boolean", "string", "object", "array", "integer", "number"};
    json_t *both = json_array();
    for (size_t i = 0; i < 7; i++) {
        bool in_a = list_has(a, names[i]), in_b = list_has(b, names[i]);
        if (i == 5) {
            in_a = in_a || list_has(a, "number");
            in_b = in_b || list_has(b, "number");
            if (list_has(a, "number") && list_has(b, "number"))
                continue;
        }
        if (in_a && in_b)
            json_array_append_new(both, json_string(names[i]));
    }
    return both;
}

/* ---- keywords ---- */

static json_t *both_of(json_t *a, json_t *b) {
    return json_pack("{s:[O,O]}", "allOf", a, b);
}

static bool in_list(const json_t *list, const json_t *value) {
    const json_t *v;
    size_t i;
    json_array_foreach(list, i, v) {
        if (json_equal(v, value))
            return true;
    }
    return false;
}

static json_t *common_values(const json_t *a, const json_t *b) {
    json_t *both = json_array(), *v;
    size_t i;
    json_array_foreach(a, i, v) {
        if (in_list(b, v))
            json_array_append(both, v);
    }
    return both;
}

/* Names that this schema has no place for, or another one than the properties, as `out` has them from elsewhere. */
static void close_properties(json_t *properties, const json_t *schema) {
    json_t *rest = json_object_get(schema, "additionalProperties"), *value;
    const char *key;
    size_t size;
    void *next;
    if (!rest || json_is_true(rest))
        return;
    json_object_keylen_foreach_safe(properties, next, key, size, value) {
        if (json_object_getn(json_object_get(schema, "properties"), key, size))
            continue;
        json_t *closed = json_is_false(rest) ? json_false() : both_of(value, rest);
        json_object_setn_new(properties, key, size, closed);
    }
}

static json_t *merge_properties(const json_t *a, const json_t *b) {
    json_t *out = json_object(), *value;
    const char *key;
    size_t size;
    json_object_keylen_foreach(json_object_get(a, "properties"), key, size, value) {
        json_object_setn(out, key, size, value);
    }
    json_object_keylen_foreach(json_object_get(b, "properties"), key, size, value) {
        json_t *other = json_object_getn(out, key, size);
        json_object_setn_new(out, key, size, other ? both_of(other, value) : json_incref(value));
    }
    close_properties(out, a);
    close_properties(out, b);
    return out;
}

static json_t *joined(const json_t *a, const json_t *b) {
    json_t *out = json_copy((json_t *)(uintptr_t)a);
    json_array_extend(out, (json_t *)(uintptr_t)b);
    return out;
}

/* One keyword that both have. NULL: they cannot both hold, or (and the failure is noted) nobody can tell. */
static json_t *merge_keyword(td_js *js, const char *key, json_t *a, json_t *b) {
    static const char *const lower[] = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"};
    static const char *const upper[] = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"};
    if (json_equal(a, b))
        return json_incref(a);
    if (strcmp(key, "type") == 0)
        return common_types(a, b);
    if (strcmp(key, "enum") == 0)
        return common_values(a, b);
    if (strcmp(key, "required") == 0)
        return joined(a, b);
    if (strcmp(key, "items") == 0 || strcmp(key, "additionalProperties") == 0) {
        if (json_is_false(a) || json_is_false(b))
            return json_false();
        return json_is_array(a) || json_is_array(b) ? NULL : both_of(a, b);
    }
    for (size_t i = 0; i < 5 && json_is_number(a) && json_is_number(b); i++) {
        bool a_is_more = json_number_value(a) > json_number_value(b);
        if (strcmp(key, lower[i]) == 0)
            return json_incref(a_is_more ? a : b);
        if (strcmp(key, upper[i]) == 0)
            return json_incref(a_is_more ? b : a);
    }
    td_js_fail(js, TD_E_UNSUPPORTED, "two different \"%.60s\" that would both have to hold", key);
    return NULL;
}

/* NULL: nothing satisfies both, or a failure. */
static json_t *merge(td_js *js, json_t *a, json_t *b) {
    json_t *out = json_copy(a), *value;
    const char *key;
    json_object_foreach(b, key, value) {
        json_t *other = json_object_get(a, key);
        if (strcmp(key, "properties") == 0)
            continue;
        json_t *both = other ? merge_keyword(js, key, other, value) : json_incref(value);
        bool impossible = !both || ((strcmp(key, "type") == 0 || strcmp(key, "enum") == 0) && json_is_array(both) &&
                                    json_array_size(both) == 0);
        if (impossible) {
            json_decref(both);
            json_decref(out);
            return NULL;
        }
        json_object_set_new(out, key, both);
    }
    if (json_object_get(a, "properties") || json_object_get(b, "properties"))
        json_object_set_new(out, "properties", merge_properties(a, b));
    return out;
}

/* ---- flattening ---- */

/* Every way with every other. */
static json_t *multiply(td_js *js, const json_t *a, const json_t *b) {
    json_t *out = json_array(), *x, *y;
    size_t i, k;
    json_array_foreach(a, i, x) {
        json_array_foreach(b, k, y) {
            json_t *both = td_gb_status(js->b) == TD_OK ? merge(js, x, y) : NULL;
            if (both)
                json_array_append_new(out, both);
            if (json_array_size(out) > TD_JSON_SCHEMA_MAX_WAYS)
                td_js_fail(js, TD_E_LIMIT, "allOf and anyOf make more than %d alternatives", TD_JSON_SCHEMA_MAX_WAYS);
        }
    }
    return out;
}

static void multiply_into(td_js *js, json_t **ways, json_t *more) {
    json_t *out = multiply(js, *ways, more);
    json_decref(*ways);
    json_decref(more);
    *ways = out;
}

/* The schema's own keywords, "const" as an "enum" of one. */
static json_t *own_keywords(const json_t *schema) {
    static const char *const combined[] = {"allOf",    "anyOf", "oneOf", "$ref",
                                           "nullable", "const", "$defs", "definitions"};
    json_t *own = json_object(), *value;
    const char *key;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value) {
        bool skip = false;
        for (size_t i = 0; i < sizeof combined / sizeof *combined; i++)
            skip = skip || strcmp(key, combined[i]) == 0;
        if (!skip)
            json_object_set(own, key, value);
    }
    json_t *only = json_object_get(schema, "const");
    if (only && (!json_object_get(own, "enum") || in_list(json_object_get(own, "enum"), only)))
        json_object_set_new(own, "enum", json_pack("[O]", only));
    else if (only)
        json_object_set_new(own, "enum", json_array());
    return own;
}

static json_t *flat_branches(td_js *js, const json_t *list, unsigned depth) {
    json_t *ways = json_array(), *branch;
    size_t i;
    json_array_foreach(list, i, branch) {
        td_js_flatten(js, branch, ways, depth + 1);
    }
    return ways;
}

static json_t *flat_reference(td_js *js, const json_t *ref, unsigned depth) {
    json_t *ways = json_array();
    const json_t *target = td_js_resolve(js, json_string_value(ref));
    if (target)
        td_js_flatten(js, target, ways, depth + 1);
    return ways;
}

static void flatten_object(td_js *js, const json_t *schema, json_t *ways, unsigned depth) {
    json_t *all = json_pack("[o]", own_keywords(schema)), *part;
    static const char *const choices[] = {"anyOf", "oneOf"};
    size_t i;
    if (json_object_get(schema, "$ref"))
        multiply_into(js, &all, flat_reference(js, json_object_get(schema, "$ref"), depth));
    json_array_foreach(json_object_get(schema, "allOf"), i, part) {
        json_t *flat = json_array();
        td_js_flatten(js, part, flat, depth + 1);
        multiply_into(js, &all, flat);
    }
    for (size_t k = 0; k < 2; k++)
        if (json_object_get(schema, choices[k]))
            multiply_into(js, &all, flat_branches(js, json_object_get(schema, choices[k]), depth));
    json_array_extend(ways, all);
    json_decref(all);
    if (json_is_true(json_object_get(schema, "nullable")))
        json_array_append_new(ways, json_pack("{s:s}", "type", "null"));
}

void td_js_flatten(td_js *js, const json_t *schema, json_t *ways, unsigned depth) {
    if (td_gb_status(js->b) != TD_OK || json_is_false(schema))
        return;
    if (depth > MAX_FLATTEN || json_array_size(ways) > TD_JSON_SCHEMA_MAX_WAYS)
        td_js_fail(js, TD_E_LIMIT,
                   "references and combinations inside each other without end: a $ref that leads to itself "
                   "beside other keywords, or more than %d alternatives",
                   TD_JSON_SCHEMA_MAX_WAYS);
    else if (json_is_true(schema))
        json_array_append_new(ways, json_object());
    else if (!json_is_object(schema))
        td_js_fail(js, TD_E_FORMAT, "expected a schema: an object, true or false");
    else if (td_js_check(js, schema))
        flatten_object(js, schema, ways, depth);
}
