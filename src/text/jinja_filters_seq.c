/* jinja_filters_seq.c - the filters on sequences and mappings.
 *
 * What Jinja gives as a generator (map, select, unique, batch, ...) is computed at once but keeps a generator's
 * manners, which templates can see: it is true even when empty, has no length, and can be walked once. */
#include <string.h>

#include "text/jinja_internal.h"

static const td_jcall no_arguments;

static td_status new_generator(td_jrun *r, td_jlist **list, td_jv *out) {
    TD_TRY(td_jlist_new(r, TD_J_GENERATOR, 0, list));
    *out = td_jv_list(*list);
    return TD_OK;
}

/* ---- attributes named by text: "a.b.0" ---- */

static bool is_index(td_jv part, int64_t *index) {
    for (size_t i = 0; i < part.size; i++)
        if (part.text[i] < '0' || part.text[i] > '9')
            return false;
    return td_jtext_to_int(part, 10, index);
}

static td_status get_path(td_jrun *r, td_jv item, td_jv path, td_jv fallback, td_jv *out) {
    for (size_t from = 0; from <= path.size;) {
        size_t dot = td_jstr_find(path, td_jv_literal("."), from);
        size_t end = dot == SIZE_MAX ? path.size : dot;
        td_jv part = td_jv_text(path.text + from, end - from);
        int64_t index;
        TD_TRY(td_jrun_charge(r, 0));
        TD_TRY(td_jv_item(r, item, is_index(part, &index) ? td_jv_int(index) : part, &item));
        if (!td_jv_missing(fallback) && item.kind == TD_J_UNDEFINED)
            item = fallback;
        from = end + 1;
    }
    *out = item;
    return TD_OK;
}

/* attribute: text, an index, or None for the item itself. */
static td_status get_attribute(td_jrun *r, td_jv item, td_jv attribute, td_jv fallback, td_jv *out) {
    *out = item;
    if (td_jv_missing(attribute))
        return TD_OK;
    if (attribute.kind == TD_J_STRING)
        return get_path(r, item, attribute, fallback, out);
    TD_TRY(td_jv_item(r, item, attribute, out));
    if (!td_jv_missing(fallback) && out->kind == TD_J_UNDEFINED)
        *out = fallback;
    return TD_OK;
}

static td_status fold_case(td_jrun *r, td_jv v, bool case_sensitive, td_jv *out) {
    *out = v;
    return case_sensitive || v.kind != TD_J_STRING ? TD_OK : td_jstr_case(r, v, TD_J_LOWER, out);
}

/* Several attributes, "a,b", as a list of keys. */
static td_status sort_key(td_jrun *r, td_jv item, td_jv attribute, bool case_sensitive, td_jv *out) {
    td_jlist *keys;
    td_jv value;
    if (attribute.kind != TD_J_STRING || td_jstr_find(attribute, td_jv_literal(","), 0) == SIZE_MAX) {
        TD_TRY(get_attribute(r, item, attribute, td_jv_none(), &value));
        return fold_case(r, value, case_sensitive, out);
    }
    TD_TRY(td_jlist_new(r, TD_J_PLAIN_LIST, 2, &keys));
    for (size_t from = 0; from <= attribute.size;) {
        size_t comma = td_jstr_find(attribute, td_jv_literal(","), from);
        size_t end = comma == SIZE_MAX ? attribute.size : comma;
        TD_TRY(get_path(r, item, td_jv_text(attribute.text + from, end - from), td_jv_none(), &value));
        TD_TRY(fold_case(r, value, case_sensitive, &value));
        TD_TRY(td_jlist_push(r, keys, value));
        from = end + 1;
    }
    *out = td_jv_list(keys);
    return TD_OK;
}

static td_status make_keys(td_jrun *r, const td_jv *items, size_t n, td_jv attribute, bool case_sensitive,
                           td_jv **keys) {
    *keys = td_jrun_alloc(r, n, sizeof **keys);
    if (!*keys)
        return td_jrun_nomem(r);
    for (size_t i = 0; i < n; i++)
        TD_TRY(sort_key(r, items[i], attribute, case_sensitive, &(*keys)[i]));
    return TD_OK;
}

/* ---- one item, or a count ---- */

static td_status f_length(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    size_t n;
    TD_TRY(td_jv_length(r, in->self, &n));
    *out = td_jv_int((int64_t)n);
    return TD_OK;
}

static td_status f_first(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv *items;
    size_t n;
    TD_TRY(td_jv_iterate(r, in->self, &items, &n));
    *out = n ? items[0] : td_jv_undefined("No first item, sequence was empty.");
    return TD_OK;
}

static td_status f_last(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv *items;
    size_t n;
    if (in->self.kind == TD_J_LIST && in->self.list->flavour == TD_J_GENERATOR)
        return td_jrun_fail(r, TD_E_FORMAT, "'generator' object is not reversible");
    TD_TRY(td_jv_iterate(r, in->self, &items, &n));
    *out = n ? items[n - 1] : td_jv_undefined("No last item, sequence was empty.");
    return TD_OK;
}

static td_status extreme(td_jrun *r, const td_jinvoke *in, td_jop better, td_jv *out) {
    td_jv *items, *keys;
    size_t n, best = 0;
    TD_TRY(td_jv_iterate(r, in->self, &items, &n));
    TD_TRY(make_keys(r, items, n, in->arg[1], td_jv_truth(in->arg[0]), &keys));
    for (size_t i = 1; i < n; i++) {
        bool is_better;
        TD_TRY(td_jv_order(r, better, keys[i], keys[best], &is_better));
        best = is_better ? i : best;
    }
    *out = n ? items[best] : td_jv_undefined("No aggregated item, sequence was empty.");
    return TD_OK;
}

static td_status f_min(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return extreme(r, in, TD_JOP_LT, out);
}

static td_status f_max(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return extreme(r, in, TD_JOP_GT, out);
}

static td_status f_sum(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv *items, total = in->arg[1].kind == TD_J_ABSENT ? td_jv_int(0) : in->arg[1], value;
    size_t n;
    TD_TRY(td_jv_iterate(r, in->self, &items, &n));
    for (size_t i = 0; i < n; i++) {
        TD_TRY(get_attribute(r, items[i], in->arg[0], td_jv_none(), &value));
        TD_TRY(td_jv_binary(r, TD_JOP_ADD, total, value, &total));
    }
    *out = total;
    return TD_OK;
}

static td_status f_default(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    bool missing = in->self.kind == TD_J_UNDEFINED || (td_jv_truth(in->arg[1]) && !td_jv_truth(in->self));
    *out = !missing ? in->self : in->arg[0].kind == TD_J_ABSENT ? td_jv_literal("") : in->arg[0];
    return td_jrun_charge(r, 0);
}

static td_status f_attr(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv name;
    TD_TRY(td_jarg_text(r, "attr", in->arg[0], &name));
    if (in->self.kind == TD_J_DICT && !td_jmethod_find(in->self, name)) {
        *out = td_jv_undefined("the dictionary has no such attribute");
        return TD_OK;
    }
    return td_jv_attribute(r, in->self, name, out);
}

/* ---- sequences from sequences ---- */

static td_status f_list(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv *items;
    size_t n;
    TD_TRY(td_jv_iterate(r, in->self, &items, &n));
    return td_jlist_of(r, TD_J_PLAIN_LIST, items, n, out);
}

static td_status f_join(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv *items, value, separator = td_jv_literal("");
    size_t n;
    if (in->arg[0].kind != TD_J_ABSENT)
        TD_TRY(td_jv_string(r, in->arg[0], &separator));
    TD_TRY(td_jv_iterate(r, in->self, &items, &n));
    size_t mark = r->out->size;
    for (size_t i = 0; i < n; i++) {
        if (i)
            TD_TRY(td_jv_write(r, separator));
        TD_TRY(get_attribute(r, items[i], in->arg[1], td_jv_none(), &value));
        TD_TRY(td_jv_write(r, value));
    }
    return td_jrun_take(r, mark, out);
}

static td_status f_reverse(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv *items;
    td_jlist *list;
    size_t n;
    if (in->self.kind == TD_J_STRING)
        return td_jv_slice(r, in->self, td_jv_none(), td_jv_none(), td_jv_int(-1), out);
    TD_TRY(td_jv_iterate(r, in->self, &items, &n));
    TD_TRY(new_generator(r, &list, out));
    while (n)
        TD_TRY(td_jlist_push(r, list, items[--n]));
    return TD_OK;
}

static td_status f_sort(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv *items, *keys;
    size_t n;
    TD_TRY(td_jv_iterate(r, in->self, &items, &n));
    TD_TRY(td_jlist_of(r, TD_J_PLAIN_LIST, items, n, out));
    TD_TRY(make_keys(r, items, n, in->arg[2], td_jv_truth(in->arg[1]), &keys));
    return td_jv_sort(r, keys, out->list->items, n, td_jv_truth(in->arg[0]));
}

static td_status f_unique(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv *items, key;
    td_jlist *list;
    td_jdict *seen;
    td_jentry *entry;
    size_t n;
    TD_TRY(td_jv_iterate(r, in->self, &items, &n));
    TD_TRY(new_generator(r, &list, out));
    TD_TRY(td_jdict_new(r, 0, &seen));
    for (size_t i = 0; i < n; i++) {
        TD_TRY(get_attribute(r, items[i], in->arg[1], td_jv_none(), &key));
        TD_TRY(fold_case(r, key, td_jv_truth(in->arg[0]), &key));
        TD_TRY(td_jdict_find(r, seen, key, &entry));
        if (entry)
            continue;
        TD_TRY(td_jdict_set(r, seen, key, td_jv_none()));
        TD_TRY(td_jlist_push(r, list, items[i]));
    }
    return TD_OK;
}

static td_status f_batch(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv *items, row;
    td_jlist *list;
    size_t n;
    int64_t width;
    TD_TRY(td_jarg_int(r, "linecount", in->arg[0], 0, &width));
    if (width < 1 || width > TD_JINJA_MAX_RANGE)
        return td_jrun_fail(r, TD_E_FORMAT, "batch: expected a size from 1 to %d", TD_JINJA_MAX_RANGE);
    TD_TRY(td_jv_iterate(r, in->self, &items, &n));
    TD_TRY(new_generator(r, &list, out));
    for (size_t i = 0; i < n; i += (size_t)width) {
        size_t have = n - i < (size_t)width ? n - i : (size_t)width;
        TD_TRY(td_jlist_of(r, TD_J_PLAIN_LIST, items + i, have, &row));
        for (; !td_jv_missing(in->arg[1]) && have < (size_t)width; have++)
            TD_TRY(td_jlist_push(r, row.list, in->arg[1]));
        TD_TRY(td_jlist_push(r, list, row));
    }
    return TD_OK;
}

static td_status f_slice(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv *items, column;
    td_jlist *list;
    size_t n;
    int64_t columns;
    TD_TRY(td_jarg_int(r, "slices", in->arg[0], 0, &columns));
    if (columns < 1 || columns > TD_JINJA_MAX_RANGE)
        return td_jrun_fail(r, TD_E_FORMAT, "slice: expected a count from 1 to %d", TD_JINJA_MAX_RANGE);
    TD_TRY(td_jv_iterate(r, in->self, &items, &n));
    TD_TRY(new_generator(r, &list, out));
    size_t each = n / (size_t)columns, longer = n % (size_t)columns, at = 0;
    for (size_t i = 0; i < (size_t)columns; i++) {
        size_t have = each + (i < longer);
        TD_TRY(td_jlist_of(r, TD_J_PLAIN_LIST, have ? items + at : NULL, have, &column));
        if (!td_jv_missing(in->arg[1]) && i >= longer)
            TD_TRY(td_jlist_push(r, column.list, in->arg[1]));
        TD_TRY(td_jlist_push(r, list, column));
        at += have;
    }
    return TD_OK;
}

/* Neighbours with equal keys after a sort, as (key, items) tuples. */
static td_status f_groupby(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv *items, *keys, sorted, group[2];
    td_jlist *list;
    size_t n;
    bool case_sensitive = td_jv_truth(in->arg[2]);
    TD_TRY(td_jv_iterate(r, in->self, &items, &n));
    TD_TRY(td_jlist_of(r, TD_J_PLAIN_LIST, items, n, &sorted));
    keys = td_jrun_alloc(r, n, sizeof *keys);
    if (!keys)
        return td_jrun_nomem(r);
    for (size_t i = 0; i < n; i++) {
        TD_TRY(get_attribute(r, items[i], in->arg[0], in->arg[1], &keys[i]));
        TD_TRY(fold_case(r, keys[i], case_sensitive, &keys[i]));
    }
    TD_TRY(td_jv_sort(r, keys, sorted.list->items, n, false));
    TD_TRY(td_jlist_new(r, TD_J_PLAIN_LIST, 0, &list));
    for (size_t i = 0, end; i < n; i = end) {
        bool same = true;
        for (end = i + 1; end < n; end++) {
            TD_TRY(td_jv_equal(r, keys[i], keys[end], &same));
            if (!same)
                break;
        }
        TD_TRY(get_attribute(r, sorted.list->items[i], in->arg[0], in->arg[1], &group[0]));
        TD_TRY(td_jlist_of(r, TD_J_PLAIN_LIST, sorted.list->items + i, end - i, &group[1]));
        TD_TRY(td_jlist_of(r, TD_J_GROUP, group, 2, &group[0]));
        TD_TRY(td_jlist_push(r, list, group[0]));
    }
    *out = td_jv_list(list);
    return TD_OK;
}

/* ---- mappings ---- */

static td_status pairs_of(td_jrun *r, td_jv v, td_jflavour flavour, td_jv *out) {
    td_jlist *list;
    TD_TRY(td_jlist_new(r, flavour, v.kind == TD_J_DICT ? v.dict->n : 0, &list));
    for (size_t i = 0; v.kind == TD_J_DICT && i < v.dict->n; i++) {
        TD_TRY(td_jrun_charge(r, 0));
        TD_TRY(td_jv_pair(r, v.dict->entries[i].key, v.dict->entries[i].value, &list->items[i]));
        list->n++;
    }
    *out = td_jv_list(list);
    return TD_OK;
}

static td_status f_items(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    if (in->self.kind != TD_J_DICT && in->self.kind != TD_J_UNDEFINED)
        return td_jrun_fail(r, TD_E_FORMAT, "items: expected a mapping, got %s", td_jv_type_name(in->self));
    return pairs_of(r, in->self, TD_J_GENERATOR, out);
}

static td_status f_dictsort(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv by = td_jv_missing(in->arg[1]) ? td_jv_literal("key") : in->arg[1], *keys;
    if (in->self.kind == TD_J_UNDEFINED)
        return td_jrun_fail_undefined(r, in->self);
    if (in->self.kind != TD_J_DICT)
        return td_jrun_fail(r, TD_E_FORMAT, "dictsort: expected a mapping, got %s", td_jv_type_name(in->self));
    bool by_value = td_jv_is_text(by, "value");
    if (!by_value && !td_jv_is_text(by, "key"))
        return td_jrun_fail(r, TD_E_FORMAT, "dictsort: by must be \"key\" or \"value\"");
    TD_TRY(pairs_of(r, in->self, TD_J_PLAIN_LIST, out));
    size_t n = out->list->n;
    TD_TRY(make_keys(r, out->list->items, n, td_jv_int(by_value), td_jv_truth(in->arg[0]), &keys));
    return td_jv_sort(r, keys, out->list->items, n, td_jv_truth(in->arg[2]));
}

/* ---- map, select and their kin ---- */

static bool is_named(const td_jcall *call, size_t i, const char *name) {
    return td_jv_is_text(call->names[i], name);
}

/* map(attribute="a.b", default=x) */
static td_status map_attribute(td_jrun *r, const td_jinvoke *in, td_jlist *list) {
    td_jv *items, attribute = td_jv_none(), fallback = td_jv_none(), value;
    size_t n;
    for (size_t i = 0; i < in->call->n_named; i++) {
        if (is_named(in->call, i, "attribute"))
            attribute = in->call->named[i];
        else if (is_named(in->call, i, "default"))
            fallback = in->call->named[i];
        else
            return td_jrun_fail(r, TD_E_FORMAT, "map: unexpected keyword argument '%.*s'", (int)in->call->names[i].size,
                                in->call->names[i].text);
    }
    if (td_jv_missing(attribute))
        return td_jrun_fail(r, TD_E_FORMAT, "map: expected the name of a filter, or attribute=");
    TD_TRY(td_jv_iterate(r, in->self, &items, &n));
    for (size_t i = 0; i < n; i++) {
        TD_TRY(get_attribute(r, items[i], attribute, fallback, &value));
        TD_TRY(td_jlist_push(r, list, value));
    }
    return TD_OK;
}

static td_status f_map(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv *items, value;
    td_jlist *list;
    size_t n;
    TD_TRY(new_generator(r, &list, out));
    if (!td_jv_truth(in->self))
        return TD_OK;
    if (!in->call->n)
        return map_attribute(r, in, list);
    td_jcall rest = *in->call;
    rest.args++;
    rest.n--;
    TD_TRY(td_jv_iterate(r, in->self, &items, &n));
    for (size_t i = 0; i < n; i++) {
        TD_TRY(td_jv_filter(r, in->call->args[0], items[i], &rest, &value));
        TD_TRY(td_jlist_push(r, list, value));
    }
    return TD_OK;
}

/* The items, or their attribute, that pass (or fail) a test; without a test, their truth counts. */
static td_status choose(td_jrun *r, const td_jinvoke *in, bool by_attribute, bool wanted, td_jv *out) {
    td_jv *items, value;
    td_jlist *list;
    size_t n, used = by_attribute;
    TD_TRY(new_generator(r, &list, out));
    if (!td_jv_truth(in->self))
        return TD_OK;
    if (by_attribute && !in->call->n)
        return td_jrun_fail(r, TD_E_FORMAT, "expected the name of an attribute");
    bool tested = in->call->n > used;
    td_jcall rest = no_arguments;
    if (tested) {
        rest = *in->call;
        rest.args += used + 1;
        rest.n -= used + 1;
    }
    TD_TRY(td_jv_iterate(r, in->self, &items, &n));
    for (size_t i = 0; i < n; i++) {
        TD_TRY(get_attribute(r, items[i], by_attribute ? in->call->args[0] : td_jv_none(), td_jv_none(), &value));
        bool passes = td_jv_truth(value);
        if (tested)
            TD_TRY(td_jv_test(r, in->call->args[used], value, &rest, &passes));
        if (passes == wanted)
            TD_TRY(td_jlist_push(r, list, items[i]));
    }
    return TD_OK;
}

static td_status f_select(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return choose(r, in, false, true, out);
}

static td_status f_reject(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return choose(r, in, false, false, out);
}

static td_status f_selectattr(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return choose(r, in, true, true, out);
}

static td_status f_rejectattr(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return choose(r, in, true, false, out);
}

const td_jbuiltin td_jfilters_sequence[] = {
    {"length", f_length, 0, {NULL}},
    {"count", f_length, 0, {NULL}},
    {"first", f_first, 0, {NULL}},
    {"last", f_last, 0, {NULL}},
    {"join", f_join, 0, {"d", "attribute"}},
    {"default", f_default, 0, {"default_value", "boolean"}},
    {"d", f_default, 0, {"default_value", "boolean"}},
    {"list", f_list, 0, {NULL}},
    {"items", f_items, 0, {NULL}},
    {"dictsort", f_dictsort, 0, {"case_sensitive", "by", "reverse"}},
    {"sort", f_sort, 0, {"reverse", "case_sensitive", "attribute"}},
    {"unique", f_unique, 0, {"case_sensitive", "attribute"}},
    {"reverse", f_reverse, 0, {NULL}},
    {"map", f_map, -1, {NULL}},
    {"select", f_select, -1, {NULL}},
    {"reject", f_reject, -1, {NULL}},
    {"selectattr", f_selectattr, -1, {NULL}},
    {"rejectattr", f_rejectattr, -1, {NULL}},
    {"min", f_min, 0, {"case_sensitive", "attribute"}},
    {"max", f_max, 0, {"case_sensitive", "attribute"}},
    {"sum", f_sum, 0, {"attribute", "start"}},
    {"attr", f_attr, 1, {"name"}},
    {"batch", f_batch, 1, {"linecount", "fill_with"}},
    {"slice", f_slice, 1, {"slices", "fill_with"}},
    {"groupby", f_groupby, 1, {"attribute", "default", "case_sensitive"}},
    {NULL, NULL, 0, {NULL}},
};
