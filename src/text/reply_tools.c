/* reply_tools.c - which tools there are, and which types their parameters may have.
 *
 * Schemas are read once, when a reply opens, into a set of types for each parameter: what is needed to tell whether
 * "42" is a number or a text. A schema says it in many ways: "type" as a name or a list, anyOf, oneOf, allOf, "enum"
 * and "const" by the types of their values, and "$ref" into the same schema. References may go in circles and branch; a
 * budget of schemas for each parameter bounds the work, and what is beyond it has said nothing. */
#include "text/reply_impl.h"

#include <string.h>

#include "base/alloc.h"
#include "format/json_scan.h"
#include "format/name_map.h"

enum { MAX_SCHEMA_DEPTH = 16, MAX_SCHEMAS = 256 };

typedef struct parameter {
    char *name;
    unsigned types;
} parameter;

struct td_reply_tool {
    char *name;
    parameter *parameters; /* [n], by name in `map` */
    size_t n;
    td_name_map map;
};

struct td_reply_tools {
    td_reply_tool *tools; /* [n] */
    size_t n;
    td_name_map map; /* the first of each name */
};

/* ---- types of a schema ---- */

typedef struct walk {
    const json_t *root;
    int budget;
} walk;

static unsigned types_of_schema(walk *w, const json_t *schema, int depth);

static unsigned type_named(const char *name) {
    static const struct {
        const char *name;
        unsigned type;
    } table[] = {{"string", TD_REPLY_STRING},   {"number", TD_REPLY_NUMBER}, {"integer", TD_REPLY_NUMBER},
                 {"boolean", TD_REPLY_BOOLEAN}, {"null", TD_REPLY_NULL},     {"object", TD_REPLY_OBJECT},
                 {"array", TD_REPLY_ARRAY}};
    for (size_t i = 0; name && i < sizeof table / sizeof *table; i++)
        if (strcasecmp(name, table[i].name) == 0)
            return table[i].type;
    return 0;
}

static unsigned type_of_value(const json_t *v) {
    switch (json_typeof(v)) {
    case JSON_STRING:
        return TD_REPLY_STRING;
    case JSON_INTEGER:
    case JSON_REAL:
        return TD_REPLY_NUMBER;
    case JSON_TRUE:
    case JSON_FALSE:
        return TD_REPLY_BOOLEAN;
    case JSON_NULL:
        return TD_REPLY_NULL;
    case JSON_OBJECT:
        return TD_REPLY_OBJECT;
    default:
        return TD_REPLY_ARRAY;
    }
}

static unsigned types_of_list(const json_t *names) {
    unsigned types = 0;
    for (size_t i = 0; i < json_array_size(names); i++)
        types |= type_named(json_string_value(json_array_get(names, i)));
    return types;
}

static unsigned types_of_values(const json_t *values) {
    unsigned types = 0;
    for (size_t i = 0; i < json_array_size(values); i++)
        types |= type_of_value(json_array_get(values, i));
    return types;
}

static unsigned types_of_choice(walk *w, const json_t *schemas, int depth) {
    unsigned types = 0;
    for (size_t i = 0; i < json_array_size(schemas); i++) {
        unsigned some = types_of_schema(w, json_array_get(schemas, i), depth + 1);
        if (!some)
            return 0; /* one branch allows anything */
        types |= some;
    }
    return types;
}

static unsigned types_of_all(walk *w, const json_t *schemas, int depth) {
    unsigned types = ~0u;
    for (size_t i = 0; i < json_array_size(schemas); i++) {
        unsigned some = types_of_schema(w, json_array_get(schemas, i), depth + 1);
        types &= some ? some : ~0u;
    }
    return types == ~0u ? 0 : types;
}

/* "#/a/b" from the root of the parameters; no escapes of JSON pointers, which no generator of schemas writes here. */
static const json_t *referred(const json_t *root, const char *ref) {
    if (!ref || *ref++ != '#')
        return NULL;
    const json_t *at = root;
    while (at && *ref == '/') {
        const char *name = ++ref;
        ref += strcspn(ref, "/");
        at = json_object_getn(at, name, (size_t)(ref - name));
    }
    return at;
}

static unsigned types_of_schema(walk *w, const json_t *schema, int depth) {
    const json_t *v;
    if (!json_is_object(schema) || depth > MAX_SCHEMA_DEPTH || w->budget-- <= 0)
        return 0;
    if ((v = json_object_get(schema, "type")) != NULL)
        return json_is_array(v) ? types_of_list(v) : type_named(json_string_value(v));
    if ((v = json_object_get(schema, "const")) != NULL)
        return type_of_value(v);
    if ((v = json_object_get(schema, "enum")) != NULL)
        return types_of_values(v);
    if ((v = json_object_get(schema, "anyOf")) != NULL || (v = json_object_get(schema, "oneOf")) != NULL)
        return types_of_choice(w, v, depth);
    if ((v = json_object_get(schema, "allOf")) != NULL)
        return types_of_all(w, v, depth);
    return types_of_schema(w, referred(w->root, json_string_value(json_object_get(schema, "$ref"))), depth + 1);
}

/* ---- reading ---- */

static td_status oom(td_error *err) {
    return td_fail(err, TD_E_NOMEM, "out of memory for the tools of a reply");
}

static td_status add_parameter(td_reply_tool *t, const char *key, unsigned types, td_error *err) {
    parameter *p = &t->parameters[t->n];
    *p = (parameter){.name = td_strdup(key), .types = types};
    if (!p->name)
        return oom(err);
    t->n++;
    return td_name_map_add(&t->map, p->name, p) ? TD_OK : oom(err);
}

static td_status read_parameters(td_reply_tool *t, const json_t *schema, size_t *left, td_error *err) {
    json_t *properties = json_object_get(schema, "properties"), *property;
    size_t n = json_object_size(properties);
    const char *key;
    if (n > *left)
        return td_fail(err, TD_E_LIMIT, "the tools have more than %d parameters together", TD_REPLY_MAX_PARAMETERS);
    *left -= n;
    t->parameters = td_calloc(n, sizeof *t->parameters);
    if (!t->parameters)
        return oom(err);
    json_object_foreach(properties, key, property) {
        walk w = {.root = schema, .budget = MAX_SCHEMAS};
        TD_TRY(add_parameter(t, key, types_of_schema(&w, property, 0), err));
    }
    return TD_OK;
}

static td_status read_tool(td_reply_tools *tools, size_t i, const json_t *spec, size_t *left, td_error *err) {
    const json_t *f = json_object_get(spec, "function") ? json_object_get(spec, "function") : spec;
    const char *name = json_string_value(json_object_get(f, "name"));
    td_reply_tool *t = &tools->tools[i];
    if (!name || !*name)
        return td_fail(err, TD_E_ARG, "tools[%zu]: expected a function with a name", i);
    if (strlen(name) > TD_REPLY_MAX_NAME)
        return td_fail(err, TD_E_LIMIT, "tools[%zu]: the name has more than %d bytes", i, TD_REPLY_MAX_NAME);
    t->name = td_strdup(name);
    if (!t->name)
        return oom(err);
    TD_TRY(read_parameters(t, json_object_get(f, "parameters"), left, err));
    if (!td_name_map_find(&tools->map, t->name) && !td_name_map_add(&tools->map, t->name, t))
        return oom(err);
    return TD_OK;
}

static td_status read_tools(td_reply_tools *tools, const json_t *json, td_error *err) {
    size_t left = TD_REPLY_MAX_PARAMETERS, n = json_array_size(json);
    td_name_map_init(&tools->map);
    tools->tools = td_calloc(n, sizeof *tools->tools);
    if (!tools->tools)
        return oom(err);
    for (; tools->n < n; tools->n++)
        td_name_map_init(&tools->tools[tools->n].map);
    for (size_t i = 0; i < n; i++)
        TD_TRY(read_tool(tools, i, json_array_get(json, i), &left, err));
    return TD_OK;
}

td_status td_reply_tools_new(td_reply_tools **out, const json_t *json, td_error *err) {
    *out = NULL;
    if (!json)
        return TD_OK;
    if (!json_is_array(json))
        return td_fail(err, TD_E_ARG, "tools: expected an array");
    if (json_array_size(json) > TD_REPLY_MAX_TOOLS)
        return td_fail(err, TD_E_LIMIT, "tools: %zu of them, at most %d are allowed", json_array_size(json),
                       TD_REPLY_MAX_TOOLS);
    td_reply_tools *tools = td_calloc(1, sizeof *tools);
    if (!tools)
        return oom(err);
    td_status st = read_tools(tools, json, err);
    if (st != TD_OK)
        td_reply_tools_free(&tools);
    *out = tools;
    return st;
}

static void free_tool(td_reply_tool *t) {
    for (size_t i = 0; i < t->n; i++)
        td_free(t->parameters[i].name);
    td_free(t->parameters);
    td_free(t->name);
    td_name_map_free(&t->map);
}

void td_reply_tools_free(td_reply_tools **tools) {
    td_reply_tools *t = *tools;
    if (!t)
        return;
    for (size_t i = 0; i < t->n; i++)
        free_tool(&t->tools[i]);
    td_free(t->tools);
    td_name_map_free(&t->map);
    td_free(t);
    *tools = NULL;
}

/* ---- asking ---- */

const td_reply_tool *td_reply_tools_find(const td_reply_tools *tools, const char *name) {
    const td_name_slot *slot = tools ? td_name_map_find(&tools->map, name) : NULL;
    return slot ? slot->value : NULL;
}

unsigned td_reply_tool_types(const td_reply_tool *tool, const char *name) {
    const td_name_slot *slot = tool ? td_name_map_find(&tool->map, name) : NULL;
    return slot ? ((const parameter *)slot->value)->types : 0;
}
