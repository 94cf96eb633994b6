/* json_schema.c - schemas of any kind: keywords looked over, references followed, types told apart.
 *
 * A reference becomes a rule, made when it is first met and compiled after everything before it, so that recursion of
 * schemas is recursion of rules and costs no stack here. */
#include "text/json_schema.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "text/json_schema_impl.h"

/* ---- the compiler ---- */

void td_js_init(td_js *js, td_gb *b, const td_token_trie *trie, const json_t *root) {
    *js = (td_js){.b = b, .trie = trie, .root = root, .made = json_array()};
    if (!js->made)
        td_gb_fail(b, TD_E_NOMEM, -1, "out of memory for a grammar");
}

void td_js_free(td_js *js) {
    json_decref(js->made);
    td_free(js->refs);
}

td_gb_node td_js_fail(td_js *js, td_status status, const char *fmt, ...) {
    char what[300];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    return td_gb_fail(js->b, status, -1, "schema%s%s: %s", js->path[0] ? " " : "", js->path, what);
}

/* A step of a JSON pointer, ~ and / written as ~0 and ~1. */
size_t td_js_enter(td_js *js, const char *key) {
    size_t mark = strlen(js->path), n = mark;
    const size_t max = sizeof js->path - 4;
    if (n < max)
        js->path[n++] = '/';
    for (; *key && n < max; key++) {
        if (*key == '~' || *key == '/')
            js->path[n++] = '~';
        js->path[n++] = *key == '~' ? '0' : *key == '/' ? '1' : *key;
    }
    js->path[n] = '\0';
    return mark;
}

size_t td_js_enter_index(td_js *js, const char *key, size_t i) {
    char number[24];
    size_t mark = td_js_enter(js, key);
    snprintf(number, sizeof number, "%zu", i);
    td_js_enter(js, number);
    return mark;
}

void td_js_leave(td_js *js, size_t mark) {
    js->path[mark] = '\0';
}

uint32_t td_js_count(td_js *js, const json_t *schema, const char *key, uint32_t def) {
    const json_t *v = json_object_get(schema, key);
    double value = json_number_value(v);
    if (!v)
        return def;
    if (!json_is_number(v) || value < 0 || value != (double)(int64_t)value) {
        td_js_fail(js, TD_E_FORMAT, "\"%s\" is not a count", key);
        return def;
    }
    if (value > TD_GRAMMAR_MAX_STATES) {
        bool upper = strncmp(key, "max", 3) == 0;
        if (!upper)
            td_js_fail(js, TD_E_LIMIT, "\"%s\" is above %u", key, TD_GRAMMAR_MAX_STATES);
        return upper ? TD_GB_NO_MAX : def; /* more than any answer holds */
    }
    return (uint32_t)value;
}

/* ---- references ---- */

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

/* One step of a pointer, unescaped: %XX of a URI, then ~1 and ~0. */
static size_t read_step(const char *from, size_t n, char *out) {
    size_t size = 0;
    for (size_t i = 0; i < n; i++) {
        char c = from[i];
        if (c == '%' && i + 2 < n + 0 && hex_digit(from[i + 1]) >= 0 && hex_digit(from[i + 2]) >= 0) {
            c = (char)(hex_digit(from[i + 1]) * 16 + hex_digit(from[i + 2]));
            i += 2;
        } else if (c == '~' && i + 1 < n && (from[i + 1] == '0' || from[i + 1] == '1')) {
            c = from[++i] == '0' ? '~' : '/';
        }
        out[size++] = c;
    }
    return size;
}

static const json_t *step_into(const json_t *at, const char *name, size_t size) {
    if (!json_is_array(at))
        return json_object_getn(at, name, size);
    size_t i = 0;
    for (size_t k = 0; k < size; k++)
        i = i < 1000000 && name[k] >= '0' && name[k] <= '9' ? i * 10 + (size_t)(name[k] - '0') : 1000000;
    return size > 0 ? json_array_get(at, i) : NULL;
}

const json_t *td_js_resolve(td_js *js, const char *ref) {
    char name[512];
    const json_t *at = ref && *ref == '#' ? js->root : NULL;
    const char *rest = at ? ref + 1 : "";
    while (at && *rest == '/') {
        size_t n = strcspn(++rest, "/");
        at = n < sizeof name ? step_into(at, name, read_step(rest, n, name)) : NULL;
        rest += n;
    }
    if (!at || *rest) {
        td_js_fail(js, TD_E_UNSUPPORTED, "the reference \"%.100s\" does not lead to a part of this schema",
                   ref ? ref : "");
        return NULL;
    }
    return at;
}

static td_gb_node reference(td_js *js, const char *ref) {
    const json_t *target = td_js_resolve(js, ref);
    if (!target)
        return 0;
    for (size_t i = 0; i < js->n_refs; i++)
        if (js->refs[i].target == target && js->refs[i].syntax == js->syntax)
            return td_gb_use(js->b, js->refs[i].rule);
    if (js->n_refs == js->refs_capacity) {
        size_t more = js->refs_capacity ? js->refs_capacity * 2 : 16;
        td_js_ref *v = td_realloc(js->refs, more, sizeof *v);
        if (!v)
            return td_js_fail(js, TD_E_NOMEM, "out of memory for a grammar");
        js->refs = v;
        js->refs_capacity = more;
    }
    td_js_ref *r = &js->refs[js->n_refs++];
    *r = (td_js_ref){target, js->syntax, td_gb_rule_new(js->b, ref, strlen(ref), -1), ""};
    snprintf(r->path, sizeof r->path, "%s", ref + 1);
    return td_gb_use(js->b, r->rule);
}

void td_js_finish(td_js *js) {
    for (; js->refs_done < js->n_refs && td_gb_status(js->b) == TD_OK; js->refs_done++) {
        const td_js_ref r = js->refs[js->refs_done];
        snprintf(js->path, sizeof js->path, "%s", r.path);
        js->syntax = r.syntax;
        js->nesting = 0;
        td_gb_define(js->b, r.rule, td_js_schema(js, r.target));
    }
}

/* ---- keywords ---- */

static bool is_annotation(const char *key) {
    static const char *const names[] = {
        "title", "description", "default",  "examples",  "example",       "$comment",        "$schema",
        "$id",   "deprecated",  "readOnly", "writeOnly", "discriminator", "contentEncoding", "contentMediaType",
        "$defs", "definitions", "strict",   "xml",       "externalDocs",  "$anchor"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], key) == 0)
            return true;
    return strncmp(key, "x-", 2) == 0;
}

static bool is_known(const char *key) {
    static const char *const names[] = {"type",
                                        "enum",
                                        "const",
                                        "properties",
                                        "required",
                                        "additionalProperties",
                                        "minProperties",
                                        "maxProperties",
                                        "items",
                                        "prefixItems",
                                        "additionalItems",
                                        "minItems",
                                        "maxItems",
                                        "minLength",
                                        "maxLength",
                                        "pattern",
                                        "format",
                                        "minimum",
                                        "maximum",
                                        "exclusiveMinimum",
                                        "exclusiveMaximum",
                                        "multipleOf",
                                        "anyOf",
                                        "oneOf",
                                        "allOf",
                                        "$ref",
                                        "nullable"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(names[i], key) == 0)
            return true;
    return false;
}

/* Keywords that say nothing with one value, and what no grammar says with any other. */
static bool is_idle(const char *key, const json_t *value) {
    if (strcmp(key, "uniqueItems") == 0)
        return json_is_false(value);
    return strcmp(key, "unevaluatedProperties") == 0 && json_is_boolean(value);
}

static bool is_combination(const char *key) {
    return strcmp(key, "anyOf") == 0 || strcmp(key, "oneOf") == 0 || strcmp(key, "allOf") == 0;
}

static bool type_is_known(const json_t *type) {
    static const char *const names[] = {"object", "array", "string", "number", "integer", "boolean", "null"};
    for (size_t i = 0; json_is_string(type) && i < 7; i++)
        if (strcmp(names[i], json_string_value(type)) == 0)
            return true;
    return false;
}

static bool types_are_known(const json_t *types) {
    const json_t *t;
    size_t i;
    json_array_foreach(types, i, t) {
        if (!type_is_known(t))
            return false;
    }
    return json_array_size(types) > 0 || type_is_known(types);
}

bool td_js_check(td_js *js, const json_t *schema) {
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value) {
        if (is_annotation(key) || is_idle(key, value))
            continue;
        if (!is_known(key))
            td_js_fail(js, TD_E_UNSUPPORTED, "the keyword \"%.60s\" is not supported", key);
        else if (is_combination(key) && json_array_size(value) == 0)
            td_js_fail(js, TD_E_FORMAT, "\"%s\" is not an array of schemas", key);
        else if (strcmp(key, "enum") == 0 && json_array_size(value) == 0)
            td_js_fail(js, TD_E_FORMAT, "\"enum\" is not an array of values");
        else if (strcmp(key, "type") == 0 && !types_are_known(value))
            td_js_fail(js, TD_E_FORMAT,
                       "\"type\" is not object, array, string, number, integer, boolean, null, or a list of them");
    }
    return td_gb_status(js->b) == TD_OK;
}

/* ---- types ---- */

/* Types that a schema without "type" describes, by the keywords it has; NULL: any value. */
static const char *implied_type(const json_t *schema) {
    static const struct {
        const char *key, *type;
    } table[] = {{"properties", "object"},       {"required", "object"},         {"additionalProperties", "object"},
                 {"minProperties", "object"},    {"maxProperties", "object"},    {"items", "array"},
                 {"prefixItems", "array"},       {"minItems", "array"},          {"maxItems", "array"},
                 {"minLength", "string"},        {"maxLength", "string"},        {"pattern", "string"},
                 {"format", "string"},           {"minimum", "number"},          {"maximum", "number"},
                 {"exclusiveMinimum", "number"}, {"exclusiveMaximum", "number"}, {"multipleOf", "number"}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (json_object_get(schema, table[i].key))
            return table[i].type;
    return NULL;
}

bool td_js_has_type(const json_t *schema, const char *type) {
    const json_t *types = json_object_get(schema, "type"), *t;
    const char *implied = types ? NULL : implied_type(schema);
    size_t i;
    if (!types)
        return !implied || strcmp(implied, type) == 0;
    if (json_is_string(types))
        return strcmp(json_string_value(types), type) == 0;
    json_array_foreach(types, i, t) {
        if (strcmp(json_string_value(t), type) == 0)
            return true;
    }
    return false;
}

static bool value_has_type(const json_t *schema, const json_t *value) {
    switch (json_typeof(value)) {
    case JSON_STRING:
        return td_js_has_type(schema, "string");
    case JSON_OBJECT:
        return td_js_has_type(schema, "object");
    case JSON_ARRAY:
        return td_js_has_type(schema, "array");
    case JSON_NULL:
        return td_js_has_type(schema, "null");
    case JSON_INTEGER:
        return td_js_has_type(schema, "integer") || td_js_has_type(schema, "number");
    case JSON_REAL:
        return td_js_has_type(schema, "number");
    default:
        return td_js_has_type(schema, "boolean");
    }
}

/* The values of an enum that have the type; other keywords beside it would need a validator. */
static td_gb_node values(td_js *js, const json_t *schema) {
    const json_t *list = json_object_get(schema, "enum"), *value;
    const char *implied = json_object_get(schema, "type") ? NULL : implied_type(schema), *key;
    td_gb_list ways = {0};
    size_t i;
    json_t *other;
    if (implied)
        return td_js_fail(js, TD_E_UNSUPPORTED, "\"enum\" or \"const\" beside other keywords than \"type\"");
    json_object_foreach((json_t *)(uintptr_t)schema, key, other) {
        if (strcmp(key, "type") != 0 && strcmp(key, "enum") != 0 && strcmp(key, "format") != 0 && is_known(key))
            return td_js_fail(js, TD_E_UNSUPPORTED, "\"%s\" beside \"enum\" or \"const\"", key);
    }
    json_array_foreach(list, i, value) {
        if (value_has_type(schema, value))
            td_gb_push(js->b, &ways, td_js_literal(js, value));
    }
    td_gb_node node = td_gb_alt(js->b, ways.v, ways.n);
    td_gb_list_free(&ways);
    return node;
}

/* Anything but strings is JSON, also where text is as it stands. */
static td_gb_node in_json(td_js *js, const json_t *schema, td_gb_node (*write)(td_js *, const json_t *)) {
    td_js_syntax before = js->syntax;
    js->syntax = before == TD_JS_TEXT ? TD_JS_JSON : before;
    td_gb_node node = write(js, schema);
    js->syntax = before;
    return node;
}

static td_gb_node write_decimal(td_js *js, const json_t *schema) {
    return td_js_number(js, schema, false);
}

static td_gb_node write_integer(td_js *js, const json_t *schema) {
    return td_js_number(js, schema, true);
}

td_gb_node td_js_flat(td_js *js, const json_t *schema) {
    td_gb *b = js->b;
    td_gb_list ways = {0};
    if (json_object_get(schema, "enum"))
        return values(js, schema);
    if (!json_object_get(schema, "type") && !implied_type(schema))
        return td_js_any(js);
    if (td_js_has_type(schema, "object"))
        td_gb_push(b, &ways, in_json(js, schema, td_js_object));
    if (td_js_has_type(schema, "array"))
        td_gb_push(b, &ways, in_json(js, schema, td_js_array));
    if (td_js_has_type(schema, "string"))
        td_gb_push(b, &ways, td_js_string(js, schema));
    if (td_js_has_type(schema, "number"))
        td_gb_push(b, &ways, in_json(js, schema, write_decimal));
    else if (td_js_has_type(schema, "integer"))
        td_gb_push(b, &ways, in_json(js, schema, write_integer));
    if (td_js_has_type(schema, "boolean"))
        td_gb_push(b, &ways, TD_GB_ALT(b, td_gb_string(b, "true"), td_gb_string(b, "false")));
    if (td_js_has_type(schema, "null"))
        td_gb_push(b, &ways, td_gb_string(b, "null"));
    td_gb_node node = td_gb_alt(b, ways.v, ways.n);
    td_gb_list_free(&ways);
    return node;
}

/* ---- any schema ---- */

/* The schema's one combination or reference when it says nothing else; NULL when it says more, or has none. */
static const char *only_keyword(const json_t *schema) {
    const char *key, *only = NULL;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)schema, key, value) {
        if (is_annotation(key) || is_idle(key, value) || (strcmp(key, "nullable") == 0 && !json_is_true(value)))
            continue;
        if (only || !(is_combination(key) || strcmp(key, "$ref") == 0))
            return NULL;
        only = key;
    }
    return only;
}

static td_gb_node branches(td_js *js, const json_t *list, const char *key) {
    td_gb_list ways = {0};
    const json_t *branch;
    size_t i;
    json_array_foreach(list, i, branch) {
        size_t mark = td_js_enter_index(js, key, i);
        td_gb_push(js->b, &ways, td_js_schema(js, branch));
        td_js_leave(js, mark);
    }
    td_gb_node node = td_gb_alt(js->b, ways.v, ways.n);
    td_gb_list_free(&ways);
    return node;
}

/* Everything else is multiplied out. */
static td_gb_node flattened(td_js *js, const json_t *schema) {
    td_gb_list ways = {0};
    json_t *flat = json_array(), *way;
    size_t i;
    json_array_append_new(js->made, flat);
    td_js_flatten(js, schema, flat, 0);
    if (td_gb_status(js->b) == TD_OK && json_array_size(flat) == 0)
        return td_js_fail(js, TD_E_FORMAT, "no value can satisfy this schema: its parts contradict each other");
    json_array_foreach(flat, i, way) {
        td_gb_push(js->b, &ways, td_gb_status(js->b) == TD_OK ? td_js_flat(js, way) : 0);
    }
    td_gb_node node = td_gb_alt(js->b, ways.v, ways.n);
    td_gb_list_free(&ways);
    return node;
}

static td_gb_node write_schema(td_js *js, const json_t *schema) {
    const char *only = only_keyword(schema);
    if (!td_js_check(js, schema))
        return 0;
    const json_t *value = only ? json_object_get(schema, only) : NULL;
    if (only && strcmp(only, "$ref") == 0)
        return json_is_string(value) ? reference(js, json_string_value(value))
                                     : td_js_fail(js, TD_E_FORMAT, "\"$ref\" is not a string");
    if (only && (strcmp(only, "allOf") != 0 || json_array_size(value) == 1))
        return branches(js, value, only);
    bool combined = only || json_object_get(schema, "allOf") || json_object_get(schema, "anyOf") ||
                    json_object_get(schema, "oneOf") || json_object_get(schema, "$ref") ||
                    json_object_get(schema, "const") || json_object_get(schema, "nullable");
    return combined ? flattened(js, schema) : td_js_flat(js, schema);
}

td_gb_node td_js_schema(td_js *js, const json_t *schema) {
    if (td_gb_status(js->b) != TD_OK)
        return 0;
    if (json_is_true(schema))
        return td_js_any(js);
    if (json_is_false(schema))
        return td_gb_alt(js->b, NULL, 0);
    if (!json_is_object(schema))
        return td_js_fail(js, TD_E_FORMAT, "expected a schema: an object, true or false");
    if (++js->nesting > TD_GRAMMAR_MAX_NESTING / 4)
        return td_js_fail(js, TD_E_LIMIT, "schemas nested deeper than %u levels", TD_GRAMMAR_MAX_NESTING / 4);
    td_gb_node node = write_schema(js, schema);
    js->nesting--;
    return node;
}

/* ---- the interface ---- */

td_status td_grammar_from_json_schema(td_grammar **out, const td_token_trie *trie, const json_t *schema,
                                      const td_grammar_options *opt, td_error *err) {
    td_gb b;
    td_js js;
    *out = NULL;
    td_gb_init(&b, err);
    td_js_init(&js, &b, trie, schema);
    td_gb_rule root = td_gb_rule_new(&b, NULL, 0, -1);
    td_gb_define(&b, root, td_js_schema(&js, schema));
    td_js_finish(&js);
    td_status st = td_grammar_compile(out, &b, root, trie, opt);
    td_js_free(&js);
    td_gb_free(&b);
    return st;
}

td_status td_grammar_any_json_object(td_grammar **out, const td_token_trie *trie, const td_grammar_options *opt,
                                     td_error *err) {
    json_t *schema = json_pack("{s:s}", "type", "object");
    td_status st = schema ? td_grammar_from_json_schema(out, trie, schema, opt, err)
                          : td_fail(err, TD_E_NOMEM, "out of memory for a grammar");
    json_decref(schema);
    return st;
}
