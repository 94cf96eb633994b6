/* jinja_value.c - values: from JSON, what Python calls their types, truth, length, and walking them. */
#include <string.h>

#include "text/jinja_internal.h"

static td_status array_from_json(td_jrun *r, const json_t *json, td_jv *out) {
    td_jlist *list;
    size_t n = json_array_size(json);
    TD_TRY(td_jlist_new(r, TD_J_PLAIN_LIST, n, &list));
    for (size_t i = 0; i < n; i++)
        TD_TRY(td_jv_from_json(r, json_array_get(json, i), &list->items[i]));
    list->n = n;
    *out = td_jv_list(list);
    return TD_OK;
}

static td_status object_from_json(td_jrun *r, const json_t *json, td_jv *out) {
    td_jdict *dict;
    TD_TRY(td_jdict_new(r, json_object_size(json), &dict));
    json_t *object = (json_t *)json; /* jansson's iterators take it so, but change nothing */
    for (void *at = json_object_iter(object); at; at = json_object_iter_next(object, at)) {
        td_jv value;
        TD_TRY(td_jv_from_json(r, json_object_iter_value(at), &value));
        TD_TRY(td_jdict_set(r, dict, td_jv_text(json_object_iter_key(at), json_object_iter_key_len(at)), value));
    }
    *out = td_jv_dict(dict);
    return TD_OK;
}

td_status td_jv_from_json(td_jrun *r, const json_t *json, td_jv *out) {
    td_status st = TD_OK;
    TD_TRY(td_jrun_charge(r, 0));
    switch (json_typeof(json)) {
    case JSON_OBJECT:
    case JSON_ARRAY:
        TD_TRY(td_jrun_enter(r));
        st = json_is_object(json) ? object_from_json(r, json, out) : array_from_json(r, json, out);
        td_jrun_leave(r);
        return st;
    case JSON_STRING:
        *out = td_jv_text(json_string_value(json), json_string_length(json));
        return TD_OK;
    case JSON_INTEGER:
        *out = td_jv_int(json_integer_value(json));
        return TD_OK;
    case JSON_REAL:
        *out = td_jv_float(json_real_value(json));
        return TD_OK;
    case JSON_TRUE:
    case JSON_FALSE:
        *out = td_jv_bool(json_is_true(json));
        return TD_OK;
    default:
        *out = td_jv_none();
        return TD_OK;
    }
}

/* ---- types ---- */

enum { FLAVOURS_AT = 16 };

static const char *const type_names[] = {
    [TD_J_ABSENT] = "Undefined",
    [TD_J_UNDEFINED] = "Undefined",
    [TD_J_NONE] = "NoneType",
    [TD_J_BOOL] = "bool",
    [TD_J_INT] = "int",
    [TD_J_FLOAT] = "float",
    [TD_J_STRING] = "str",
    [TD_J_LIST] = "list",
    [TD_J_DICT] = "dict",
    [TD_J_NAMESPACE] = "Namespace",
    [TD_J_FUNCTION] = "function",
    [TD_J_METHOD] = "builtin_function_or_method",
    [TD_J_MACRO] = "Macro",
    [TD_J_LOOP] = "LoopContext",
    [TD_J_CYCLER] = "Cycler",
    [TD_J_JOINER] = "Joiner",
    [FLAVOURS_AT + TD_J_PLAIN_LIST] = "list",
    [FLAVOURS_AT + TD_J_TUPLE] = "tuple",
    [FLAVOURS_AT + TD_J_GROUP] = "tuple",
    [FLAVOURS_AT + TD_J_GENERATOR] = "generator",
    [FLAVOURS_AT + TD_J_RANGE] = "range",
    [FLAVOURS_AT + TD_J_KEYS] = "dict_keys",
    [FLAVOURS_AT + TD_J_VALUES] = "dict_values",
    [FLAVOURS_AT + TD_J_ITEMS] = "dict_items",
};

uint8_t td_jv_type_index(td_jv v) {
    return v.kind == TD_J_LIST ? (uint8_t)(FLAVOURS_AT + v.list->flavour) : v.kind;
}

const char *td_jv_type_name_at(uint8_t index) {
    return type_names[index];
}

const char *td_jv_type_name(td_jv v) {
    return type_names[td_jv_type_index(v)];
}

/* ---- truth, length, items ---- */

bool td_jv_truth(td_jv v) {
    switch ((td_jkind)v.kind) {
    case TD_J_ABSENT:
    case TD_J_UNDEFINED:
    case TD_J_NONE:
        return false;
    case TD_J_BOOL:
        return v.boolean;
    case TD_J_INT:
        return v.integer != 0;
    case TD_J_FLOAT:
        return v.real != 0;
    case TD_J_STRING:
        return v.size != 0;
    case TD_J_LIST:
        return v.list->flavour == TD_J_GENERATOR || v.list->n != 0;
    case TD_J_DICT:
        return v.dict->n != 0;
    default:
        return true;
    }
}

td_status td_jv_length(td_jrun *r, td_jv v, size_t *n) {
    switch ((td_jkind)v.kind) {
    case TD_J_UNDEFINED:
        *n = 0;
        return TD_OK;
    case TD_J_STRING:
        *n = td_jstr_count_chars(v);
        return td_jrun_charge(r, v.size);
    case TD_J_DICT:
        *n = v.dict->n;
        return TD_OK;
    case TD_J_LOOP:
        *n = v.loop->n;
        return TD_OK;
    case TD_J_LIST:
        if (v.list->flavour != TD_J_GENERATOR) {
            *n = v.list->n;
            return TD_OK;
        }
        break;
    default:
        break;
    }
    return td_jrun_fail(r, TD_E_FORMAT, "object of type '%s' has no len()", td_jv_type_name(v));
}

static td_status characters(td_jrun *r, td_jv s, td_jv **items, size_t *n) {
    size_t count = td_jstr_count_chars(s), at = 0;
    TD_TRY(td_jrun_charge(r, s.size));
    td_jv *out = td_jrun_alloc(r, count, sizeof *out);
    if (!out)
        return td_jrun_nomem(r);
    for (size_t i = 0, step; i < s.size; i += step) {
        uint32_t cp;
        step = td_jchar(s.text + i, s.size - i, &cp);
        out[at++] = td_jv_text(s.text + i, step);
    }
    *items = out;
    *n = count;
    return TD_OK;
}

static td_status keys(td_jrun *r, const td_jdict *dict, td_jv **items, size_t *n) {
    TD_TRY(td_jrun_charge(r, dict->n));
    td_jv *out = td_jrun_alloc(r, dict->n, sizeof *out);
    if (!out)
        return td_jrun_nomem(r);
    for (size_t i = 0; i < dict->n; i++)
        out[i] = dict->entries[i].key;
    *items = out;
    *n = dict->n;
    return TD_OK;
}

td_status td_jv_iterate(td_jrun *r, td_jv v, td_jv **items, size_t *n) {
    *items = NULL;
    *n = 0;
    switch ((td_jkind)v.kind) {
    case TD_J_UNDEFINED:
        return TD_OK;
    case TD_J_STRING:
        return characters(r, v, items, n);
    case TD_J_DICT:
        return keys(r, v.dict, items, n);
    case TD_J_LIST:
        *items = v.list->items;
        *n = v.list->walked ? 0 : v.list->n;
        v.list->walked = v.list->flavour == TD_J_GENERATOR;
        return td_jrun_charge(r, *n);
    default:
        return td_jrun_fail(r, TD_E_FORMAT, "'%s' object is not iterable", td_jv_type_name(v));
    }
}
