/* jinja_access.c - object.name, object[key], object[a:b:c].
 *
 * Jinja tries both ways of access in both notations: "d.items" is the method if dict has one, else the item;
 * "d['items']" is the item if there is one, else the method. What is found in neither way is undefined, and remembers
 * what was asked of what. */
#include <string.h>

#include "text/jinja_internal.h"

static td_jv undefined_attribute(td_jv object, td_jv name) {
    td_jv v = td_jv_text(name.text, name.size);
    v.kind = TD_J_UNDEFINED;
    v.origin = TD_J_FROM_ATTRIBUTE;
    v.owner = td_jv_type_index(object);
    return v;
}

static td_jv undefined_element(td_jv object, td_jv key) {
    if (key.kind == TD_J_STRING)
        return undefined_attribute(object, key);
    if (!td_jv_is_integral(key))
        return td_jv_undefined("no element has such a key");
    return (td_jv){.kind = TD_J_UNDEFINED,
                   .origin = TD_J_FROM_INDEX,
                   .owner = td_jv_type_index(object),
                   .index = td_jv_integral(key)};
}

static td_status bind_method(td_jrun *r, td_jv self, const td_jbuiltin *method, td_jv *out) {
    td_jbound *bound = td_jrun_alloc(r, 1, sizeof *bound);
    if (!bound)
        return td_jrun_nomem(r);
    *bound = (td_jbound){method, self};
    *out = (td_jv){.kind = TD_J_METHOD, .bound = bound};
    return TD_OK;
}

/* The attribute proper; ABSENT when there is none. */
static td_status find_attribute(td_jrun *r, td_jv object, td_jv name, td_jv *out) {
    td_jentry *entry;
    *out = (td_jv){.kind = TD_J_ABSENT};
    const td_jbuiltin *method = td_jmethod_find(object, name);
    if (method)
        return bind_method(r, object, method, out);
    switch ((td_jkind)object.kind) {
    case TD_J_NAMESPACE:
        TD_TRY(td_jdict_find(r, object.dict, name, &entry));
        if (entry)
            *out = entry->value;
        return TD_OK;
    case TD_J_LOOP:
        return td_jloop_attribute(r, object, name, out);
    case TD_J_MACRO:
        return td_jmacro_attribute(r, object, name, out);
    case TD_J_CYCLER:
        if (td_jv_is_text(name, "current"))
            *out = object.cycle->items[object.cycle->at];
        return TD_OK;
    case TD_J_LIST:
        if (object.list->flavour == TD_J_GROUP && td_jv_is_text(name, "grouper"))
            *out = object.list->items[0];
        if (object.list->flavour == TD_J_GROUP && td_jv_is_text(name, "list"))
            *out = object.list->items[1];
        return TD_OK;
    default:
        return TD_OK;
    }
}

/* s[i] by characters, from the front or the back. */
static td_status character_at(td_jrun *r, td_jv s, int64_t index, td_jv *out) {
    TD_TRY(td_jrun_charge(r, s.size));
    if (index < 0)
        index += (int64_t)td_jstr_count_chars(s);
    *out = (td_jv){.kind = TD_J_ABSENT};
    for (size_t i = 0, step; index >= 0 && i < s.size; i += step) {
        uint32_t cp;
        step = td_jchar(s.text + i, s.size - i, &cp);
        if (index-- == 0)
            *out = td_jv_text(s.text + i, step);
    }
    return TD_OK;
}

static bool is_indexable(const td_jlist *list) {
    return list->flavour <= TD_J_GROUP || list->flavour == TD_J_RANGE;
}

/* The item proper; ABSENT when there is none. */
static td_status find_item(td_jrun *r, td_jv object, td_jv key, td_jv *out) {
    td_jentry *entry;
    *out = (td_jv){.kind = TD_J_ABSENT};
    if (object.kind == TD_J_DICT) {
        if (key.kind == TD_J_DICT || (key.kind == TD_J_LIST && key.list->flavour == TD_J_PLAIN_LIST))
            return TD_OK; /* not hashable, so not a key */
        TD_TRY(td_jdict_find(r, object.dict, key, &entry));
        if (entry)
            *out = entry->value;
        return TD_OK;
    }
    if (!td_jv_is_integral(key))
        return TD_OK;
    int64_t index = td_jv_integral(key);
    if (object.kind == TD_J_STRING)
        return character_at(r, object, index, out);
    if (object.kind != TD_J_LIST || !is_indexable(object.list))
        return TD_OK;
    if (index < 0)
        index += (int64_t)object.list->n;
    if (index >= 0 && index < (int64_t)object.list->n)
        *out = object.list->items[index];
    return TD_OK;
}

td_status td_jv_attribute(td_jrun *r, td_jv object, td_jv name, td_jv *out) {
    if (object.kind == TD_J_UNDEFINED)
        return td_jrun_fail_undefined(r, object);
    TD_TRY(find_attribute(r, object, name, out));
    if (out->kind == TD_J_ABSENT && object.kind == TD_J_DICT)
        TD_TRY(find_item(r, object, name, out));
    if (out->kind == TD_J_ABSENT)
        *out = undefined_attribute(object, name);
    return TD_OK;
}

td_status td_jv_item(td_jrun *r, td_jv object, td_jv key, td_jv *out) {
    if (object.kind == TD_J_UNDEFINED)
        return td_jrun_fail_undefined(r, object);
    TD_TRY(find_item(r, object, key, out));
    if (out->kind == TD_J_ABSENT && key.kind == TD_J_STRING)
        TD_TRY(find_attribute(r, object, key, out));
    if (out->kind == TD_J_ABSENT)
        *out = undefined_element(object, key);
    return TD_OK;
}

/* ---- slices ---- */

typedef struct bounds {
    int64_t start, stop, step;
    size_t n; /* how many items */
} bounds;

static td_status slice_index(td_jrun *r, td_jv v, int64_t fallback, int64_t *out) {
    *out = fallback;
    if (td_jv_missing(v))
        return TD_OK;
    if (v.kind == TD_J_UNDEFINED)
        return td_jrun_fail_undefined(r, v);
    if (!td_jv_is_integral(v))
        return td_jrun_fail(r, TD_E_FORMAT, "slice indices must be integers or None, not %s", td_jv_type_name(v));
    *out = td_jv_integral(v);
    return TD_OK;
}

static int64_t clamp_index(int64_t i, int64_t length, bool backwards) {
    if (i < 0)
        i = i < -length ? -1 : i + length; /* -1: before the first */
    if (i < 0)
        return backwards ? -1 : 0;
    if (i >= length)
        return backwards ? length - 1 : length;
    return i;
}

static td_status slice_bounds(td_jrun *r, td_jv start, td_jv stop, td_jv step, size_t length, bounds *b) {
    int64_t n = (int64_t)length;
    TD_TRY(slice_index(r, step, 1, &b->step));
    if (b->step == 0)
        return td_jrun_fail(r, TD_E_FORMAT, "slice step cannot be zero");
    bool backwards = b->step < 0;
    TD_TRY(slice_index(r, start, 0, &b->start));
    TD_TRY(slice_index(r, stop, 0, &b->stop));
    b->start = td_jv_missing(start) ? (backwards ? n - 1 : 0) : clamp_index(b->start, n, backwards);
    b->stop = td_jv_missing(stop) ? (backwards ? -1 : n) : clamp_index(b->stop, n, backwards);
    uint64_t span = 0, stride = backwards ? 0 - (uint64_t)b->step : (uint64_t)b->step;
    if (!backwards && b->stop > b->start)
        span = (uint64_t)(b->stop - b->start);
    if (backwards && b->start > b->stop)
        span = (uint64_t)(b->start - b->stop);
    b->n = span ? (size_t)((span - 1) / stride + 1) : 0;
    return TD_OK;
}

/* base + a * b; these are only printed, so at the edge of 64 bits they may wrap. */
static int64_t wrapping(int64_t base, int64_t a, int64_t b) {
    return (int64_t)((uint64_t)base + (uint64_t)a * (uint64_t)b);
}

static td_status slice_list(td_jrun *r, const td_jlist *list, const bounds *b, td_jv *out) {
    td_jlist *made;
    td_jflavour flavour = list->flavour == TD_J_GROUP ? TD_J_TUPLE : list->flavour;
    TD_TRY(td_jrun_charge(r, b->n));
    TD_TRY(td_jlist_new(r, flavour, b->n, &made));
    for (size_t i = 0; i < b->n; i++)
        made->items[i] = list->items[b->start + (int64_t)i * b->step];
    made->n = b->n;
    if (flavour == TD_J_RANGE) {
        made->range[0] = wrapping(list->range[0], b->start, list->range[2]);
        made->range[1] = wrapping(list->range[0], b->stop, list->range[2]);
        made->range[2] = wrapping(0, b->step, list->range[2]);
    }
    *out = td_jv_list(made);
    return TD_OK;
}

static size_t byte_of_char(td_jv s, size_t index) {
    size_t i = 0;
    uint32_t cp;
    while (index-- && i < s.size)
        i += td_jchar(s.text + i, s.size - i, &cp);
    return i;
}

static td_status slice_text(td_jrun *r, td_jv s, const bounds *b, td_jv *out) {
    if (b->n == 0 || b->step == 1) {
        size_t from = byte_of_char(s, (size_t)b->start);
        td_jv rest = td_jv_text(s.text + from, s.size - from);
        *out = td_jv_text(rest.text, byte_of_char(rest, b->n));
        return TD_OK;
    }
    td_jv *chars;
    size_t n, mark = r->out->size;
    TD_TRY(td_jv_iterate(r, s, &chars, &n));
    for (size_t i = 0; i < b->n; i++) {
        td_jv c = chars[b->start + (int64_t)i * b->step];
        TD_TRY(td_jrun_write(r, c.text, c.size));
    }
    return td_jrun_take(r, mark, out);
}

td_status td_jv_slice(td_jrun *r, td_jv object, td_jv start, td_jv stop, td_jv step, td_jv *out) {
    bounds b;
    if (object.kind == TD_J_UNDEFINED)
        return td_jrun_fail_undefined(r, object);
    if (object.kind == TD_J_STRING) {
        TD_TRY(td_jrun_charge(r, 2 * object.size));
        TD_TRY(slice_bounds(r, start, stop, step, td_jstr_count_chars(object), &b));
        return slice_text(r, object, &b, out);
    }
    if (object.kind == TD_J_LIST && is_indexable(object.list)) {
        TD_TRY(slice_bounds(r, start, stop, step, object.list->n, &b));
        return slice_list(r, object.list, &b, out);
    }
    return td_jrun_fail(r, TD_E_FORMAT, "'%s' object is not subscriptable", td_jv_type_name(object));
}
