/* json_schema_object.c - objects and arrays.
 *
 * Members come in the order of the schema. Each place between two of them is a rule that says what may still come:
 * rest[i], behind a member, with a comma first; first[i], when none has come yet. A member that is not required may be
 * passed by. The rules use each other at their ends, so the stack does not grow along an object. */
#include <string.h>

#include "base/alloc.h"
#include "text/json_schema_impl.h"

typedef struct members {
    td_js *js;
    size_t n;
    td_gb_node *pairs; /* [n] key, colon, value */
    bool *required;
    td_gb_node more; /* an additional member */
    bool open;       /* there may be some */
    td_gb_node comma;
} members;

static bool is_required(const json_t *schema, const char *key, size_t size) {
    const json_t *list = json_object_get(schema, "required"), *name;
    size_t i;
    json_array_foreach(list, i, name) {
        if (json_string_length(name) == size && json_string_value(name) &&
            memcmp(json_string_value(name), key, size) == 0)
            return true;
    }
    return false;
}

static td_gb_node pair(td_js *js, const char *key, size_t size, const json_t *schema) {
    size_t mark = td_js_enter(js, "properties");
    td_js_enter(js, key);
    td_gb_node value = td_js_schema(js, schema);
    td_gb_node node = TD_GB_SEQ(js->b, td_js_key(js, key, size), td_js_colon(js), value);
    td_js_leave(js, mark);
    return node;
}

/* Additional members: what the schema says of them, and what silence means. */
static const json_t *additional(const json_t *schema) {
    const json_t *v = json_object_get(schema, "additionalProperties"),
                 *no = json_object_get(schema, "unevaluatedProperties");
    v = v ? v : no;
    if (v)
        return json_is_false(v) ? NULL : v;
    return json_object_size(json_object_get(schema, "properties")) > 0 ? NULL : json_true();
}

/* Names that are required but not described are described as additional members are. */
static void add_required(members *m, const json_t *schema, const json_t *rest, json_t *names) {
    const json_t *list = json_object_get(schema, "required"), *name;
    size_t i;
    json_array_foreach(list, i, name) {
        const char *key = json_string_value(name);
        if (!key || json_object_getn(names, key, json_string_length(name)))
            continue;
        if (!rest) {
            td_js_fail(m->js, TD_E_FORMAT,
                       "the required property \"%.100s\" is not among the properties, and no others are allowed", key);
            return;
        }
        json_object_setn_new(names, key, json_string_length(name), json_true());
        m->pairs[m->n] = pair(m->js, key, json_string_length(name), rest);
        m->required[m->n++] = true;
    }
}

static void list_members(members *m, const json_t *schema) {
    td_js *js = m->js;
    json_t *properties = json_object_get(schema, "properties"), *value, *names = json_object();
    const json_t *rest = additional(schema);
    const char *key;
    size_t size;
    json_object_keylen_foreach(properties, key, size, value) {
        if (td_gb_status(js->b) != TD_OK)
            break;
        json_object_setn_new(names, key, size, json_true());
        bool required = is_required(schema, key, size);
        if (json_is_false(value) && !required)
            continue; /* merged away */
        m->pairs[m->n] = pair(js, key, size, value);
        m->required[m->n++] = required;
    }
    add_required(m, schema, rest, names);
    m->open = rest != NULL;
    if (m->open) {
        size_t mark = td_js_enter(js, "additionalProperties");
        td_gb_node item = td_js_schema(js, rest);
        m->more = TD_GB_SEQ(js->b, td_js_other_key(js, names), td_js_colon(js), item);
        td_js_leave(js, mark);
    }
    json_decref(names);
}

static td_gb_node more_members(members *m, uint32_t min, uint32_t max) {
    return td_gb_repeat(m->js->b, TD_GB_SEQ(m->js->b, m->comma, m->more), min, max);
}

/* rest[0..n], made from the last to the first. */
static void define_rests(members *m, td_gb_node *rests) {
    td_gb *b = m->js->b;
    rests[m->n] = m->open ? more_members(m, 0, TD_GB_NO_MAX) : 0;
    for (size_t i = m->n; i > 0; i--) {
        td_gb_rule rule = td_gb_rule_new(b, NULL, 0, -1);
        td_gb_node with = TD_GB_SEQ(b, m->comma, m->pairs[i - 1], rests[i]);
        td_gb_define(b, rule, m->required[i - 1] ? with : TD_GB_ALT(b, with, rests[i]));
        rests[i - 1] = td_gb_use(b, rule);
    }
}

/* The members, at least one. */
static td_gb_node some_members(members *m, td_gb_node *rests) {
    td_gb *b = m->js->b;
    td_gb_node first = m->open ? TD_GB_SEQ(b, m->more, rests[m->n]) : td_gb_alt(b, NULL, 0);
    for (size_t i = m->n; i > 0; i--) {
        td_gb_rule rule = td_gb_rule_new(b, NULL, 0, -1);
        td_gb_node with = TD_GB_SEQ(b, m->pairs[i - 1], rests[i]);
        td_gb_define(b, rule, m->required[i - 1] ? with : TD_GB_ALT(b, with, first));
        first = td_gb_use(b, rule);
    }
    return first;
}

static td_gb_node counted_members(members *m, uint32_t min, uint32_t max) {
    td_js *js = m->js;
    if (m->n > 0 || !m->open)
        return td_js_fail(js, TD_E_UNSUPPORTED,
                          "minProperties above 1, or maxProperties, beside \"properties\" or \"required\"");
    return TD_GB_SEQ(js->b, m->more, more_members(m, min > 0 ? min - 1 : 0, max == TD_GB_NO_MAX ? max : max - 1));
}

static td_gb_node write_object(members *m, td_gb_node *rests, const json_t *schema) {
    td_js *js = m->js;
    td_gb *b = js->b;
    uint32_t min = td_js_count(js, schema, "minProperties", 0),
             max = td_js_count(js, schema, "maxProperties", TD_GB_NO_MAX);
    bool may_be_empty = min == 0;
    for (size_t i = 0; i < m->n; i++)
        may_be_empty = may_be_empty && !m->required[i];
    td_gb_node some;
    if (max == 0) {
        some = td_gb_alt(b, NULL, 0);
    } else if (min > 1 || max != TD_GB_NO_MAX) {
        some = counted_members(m, min, max);
    } else {
        define_rests(m, rests);
        some = some_members(m, rests);
    }
    td_gb_node space = td_js_space(js), body = TD_GB_SEQ(b, space, some, space);
    return TD_GB_SEQ(b, td_gb_string(b, "{"), may_be_empty ? TD_GB_ALT(b, 0, body) : body, td_gb_string(b, "}"));
}

static bool required_is_list(const json_t *schema) {
    const json_t *list = json_object_get(schema, "required"), *name;
    size_t i;
    json_array_foreach(list, i, name) {
        if (!json_is_string(name))
            return false;
    }
    return !list || json_is_array(list);
}

td_gb_node td_js_object(td_js *js, const json_t *schema) {
    const json_t *properties = json_object_get(schema, "properties");
    if (properties && !json_is_object(properties))
        return td_js_fail(js, TD_E_FORMAT, "\"properties\" is not an object");
    if (!required_is_list(schema))
        return td_js_fail(js, TD_E_FORMAT, "\"required\" is not an array of names");
    size_t n = json_object_size(properties) + json_array_size(json_object_get(schema, "required"));
    members m = {.js = js, .pairs = td_calloc(n, sizeof *m.pairs), .required = td_calloc(n, sizeof *m.required)};
    td_gb_node *rests = td_calloc(n + 1, sizeof *rests), node = 0;
    if (!m.pairs || !m.required || !rests) {
        td_js_fail(js, TD_E_NOMEM, "out of memory for a grammar");
    } else {
        m.comma = td_js_comma(js);
        list_members(&m, schema);
        node = td_gb_status(js->b) == TD_OK ? write_object(&m, rests, schema) : 0;
    }
    td_free(m.pairs);
    td_free(m.required);
    td_free(rests);
    return node;
}

/* ---- arrays ---- */

/* Items from number `i` on of those described one by one; behind a comma unless it is the first. */
typedef struct items {
    td_gb_node *prefix; /* [n] */
    size_t n;
    td_gb_node rest; /* of further ones */
    bool open;
    td_gb_node comma;
} items;

static td_gb_node write_items(td_js *js, const items *it, uint32_t min, uint32_t max) {
    td_gb *b = js->b;
    td_gb_node tail = 0;
    uint32_t n = (uint32_t)it->n < max ? (uint32_t)it->n : max;
    if (it->open && max > n) {
        td_gb_node more = TD_GB_SEQ(b, it->comma, it->rest);
        uint32_t left = max == TD_GB_NO_MAX ? max : max - n, least = min > n ? min - n : 0;
        if (n > 0)
            tail = td_gb_repeat(b, more, least, left);
        else /* the first has no comma in front */
            tail = TD_GB_SEQ(b, it->rest,
                             td_gb_repeat(b, more, least > 0 ? least - 1 : 0, left == TD_GB_NO_MAX ? left : left - 1));
    } else if (min > n) {
        return td_js_fail(js, TD_E_FORMAT, "at least %u items are asked for, and only %u can be there", min, n);
    } else if (n == 0) {
        return td_gb_alt(b, NULL, 0);
    }
    for (uint32_t i = n; i > 0; i--) {
        td_gb_rule rule = td_gb_rule_new(b, NULL, 0, -1);
        bool optional = i < n && i >= min;
        td_gb_define(b, rule,
                     TD_GB_SEQ(b, i > 1 ? it->comma : 0, it->prefix[i - 1], optional ? TD_GB_OPTIONAL(b, tail) : tail));
        tail = td_gb_use(b, rule);
    }
    return tail;
}

static void list_items(td_js *js, const json_t *schema, items *it) {
    const json_t *prefix = json_object_get(schema, "prefixItems"), *rest = json_object_get(schema, "items"), *item;
    size_t i;
    if (json_is_array(rest)) { /* as drafts before 2020 wrote it */
        prefix = rest;
        rest = json_object_get(schema, "additionalItems");
    }
    json_array_foreach(prefix, i, item) {
        size_t mark = td_js_enter_index(js, "prefixItems", i);
        it->prefix[it->n++] = td_js_schema(js, item);
        td_js_leave(js, mark);
        if (td_gb_status(js->b) != TD_OK)
            return;
    }
    rest = rest ? rest : it->n > 0 ? NULL : json_true();
    it->open = rest && !json_is_false(rest);
    if (it->open) {
        size_t mark = td_js_enter(js, "items");
        it->rest = td_js_schema(js, rest);
        td_js_leave(js, mark);
    }
}

td_gb_node td_js_array(td_js *js, const json_t *schema) {
    td_gb *b = js->b;
    const json_t *prefix = json_object_get(schema, "prefixItems"), *rest = json_object_get(schema, "items");
    uint32_t min = td_js_count(js, schema, "minItems", 0), max = td_js_count(js, schema, "maxItems", TD_GB_NO_MAX);
    if (prefix && !json_is_array(prefix))
        return td_js_fail(js, TD_E_FORMAT, "\"prefixItems\" is not an array");
    if (max < min)
        return td_js_fail(js, TD_E_FORMAT, "at least %u items and at most %u", min, max);
    items it = {.comma = td_js_comma(js)};
    it.prefix = td_calloc(json_array_size(prefix) + json_array_size(rest), sizeof *it.prefix);
    if (!it.prefix)
        return td_js_fail(js, TD_E_NOMEM, "out of memory for a grammar");
    list_items(js, schema, &it);
    td_gb_node space = td_js_space(js), some = td_gb_status(b) == TD_OK ? write_items(js, &it, min, max) : 0;
    td_free(it.prefix);
    td_gb_node body = TD_GB_SEQ(b, space, some, space);
    return TD_GB_SEQ(b, td_gb_string(b, "["), min == 0 ? TD_GB_ALT(b, 0, body) : body, td_gb_string(b, "]"));
}
