/* jinja_methods_seq.c - the methods of list, tuple, dict, of `loop` and of cyclers. */
#include <string.h>

#include "text/jinja_internal.h"

/* ---- lists ---- */

static td_status l_append(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    *out = td_jv_none();
    return td_jlist_push(r, in->self.list, in->arg[0]);
}

static td_status l_extend(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv *items;
    size_t n;
    *out = td_jv_none();
    TD_TRY(td_jv_iterate(r, in->arg[0], &items, &n));
    for (size_t i = 0; i < n; i++)
        TD_TRY(td_jlist_push(r, in->self.list, items[i]));
    return TD_OK;
}

static td_status l_insert(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jlist *list = in->self.list;
    int64_t at, n = (int64_t)list->n;
    *out = td_jv_none();
    TD_TRY(td_jarg_int(r, "index", in->arg[0], 0, &at));
    if (at < 0)
        at = at < -n ? 0 : at + n;
    if (at > n)
        at = n;
    TD_TRY(td_jrun_charge(r, list->n));
    TD_TRY(td_jlist_push(r, list, in->arg[1]));
    memmove(&list->items[at + 1], &list->items[at], (size_t)(n - at) * sizeof *list->items);
    list->items[at] = in->arg[1];
    return TD_OK;
}

static td_status remove_at(td_jrun *r, td_jlist *list, size_t at) {
    TD_TRY(td_jrun_charge(r, list->n));
    memmove(&list->items[at], &list->items[at + 1], (list->n - at - 1) * sizeof *list->items);
    list->n--;
    return TD_OK;
}

static td_status l_pop(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jlist *list = in->self.list;
    int64_t at;
    TD_TRY(td_jarg_int(r, "index", in->arg[0], -1, &at));
    if (at < 0)
        at += (int64_t)list->n;
    if (at < 0 || at >= (int64_t)list->n)
        return td_jrun_fail(r, TD_E_FORMAT, list->n ? "pop index out of range" : "pop from empty list");
    *out = list->items[at];
    return remove_at(r, list, (size_t)at);
}

static td_status index_of(td_jrun *r, const td_jlist *list, td_jv what, size_t *at) {
    bool same = false;
    *at = 0;
    for (size_t i = 0; i < list->n; i++) {
        TD_TRY(td_jv_equal(r, list->items[i], what, &same));
        if (same) {
            *at = i;
            return TD_OK;
        }
    }
    return td_jrun_fail(r, TD_E_FORMAT, "the value is not in the list");
}

static td_status l_index(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    size_t at;
    TD_TRY(index_of(r, in->self.list, in->arg[0], &at));
    *out = td_jv_int((int64_t)at);
    return TD_OK;
}

static td_status l_remove(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    size_t at;
    *out = td_jv_none();
    TD_TRY(index_of(r, in->self.list, in->arg[0], &at));
    return remove_at(r, in->self.list, at);
}

static td_status l_count(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    int64_t n = 0;
    for (size_t i = 0; i < in->self.list->n; i++) {
        bool same;
        TD_TRY(td_jv_equal(r, in->self.list->items[i], in->arg[0], &same));
        n += same;
    }
    *out = td_jv_int(n);
    return TD_OK;
}

static td_status l_reverse(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jlist *list = in->self.list;
    *out = td_jv_none();
    for (size_t i = 0, j = list->n; i + 1 < j; i++) {
        td_jv swap = list->items[i];
        list->items[i] = list->items[--j];
        list->items[j] = swap;
    }
    return td_jrun_charge(r, list->n);
}

static td_status l_sort(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jlist *list = in->self.list;
    td_jv keys;
    *out = td_jv_none();
    TD_TRY(td_jlist_of(r, TD_J_PLAIN_LIST, list->items, list->n, &keys));
    return td_jv_sort(r, keys.list->items, list->items, list->n, td_jv_truth(in->arg[0]));
}

static td_status l_clear(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    in->self.list->n = 0;
    *out = td_jv_none();
    return td_jrun_charge(r, 0);
}

static td_status l_copy(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return td_jlist_of(r, TD_J_PLAIN_LIST, in->self.list->items, in->self.list->n, out);
}

const td_jbuiltin td_jmethods_list[] = {
    {"append", l_append, 1, {"object"}},
    {"extend", l_extend, 1, {"iterable"}},
    {"insert", l_insert, 2, {"index", "object"}},
    {"pop", l_pop, 0, {"index"}},
    {"remove", l_remove, 1, {"value"}},
    {"index", l_index, 1, {"value"}},
    {"count", l_count, 1, {"value"}},
    {"reverse", l_reverse, 0, {NULL}},
    {"sort", l_sort, 0, {"reverse"}},
    {"clear", l_clear, 0, {NULL}},
    {"copy", l_copy, 0, {NULL}},
    {NULL, NULL, 0, {NULL}},
};

const td_jbuiltin td_jmethods_tuple[] = {
    {"index", l_index, 1, {"value"}},
    {"count", l_count, 1, {"value"}},
    {NULL, NULL, 0, {NULL}},
};

/* ---- dictionaries ---- */

/* A copy: a later change of the dictionary does not show in it, as it would in Python's views. */
static td_status view(td_jrun *r, const td_jdict *dict, td_jflavour flavour, td_jv *out) {
    td_jlist *list;
    TD_TRY(td_jrun_charge(r, dict->n));
    TD_TRY(td_jlist_new(r, flavour, dict->n, &list));
    for (size_t i = 0; i < dict->n; i++) {
        const td_jentry *e = &dict->entries[i];
        if (flavour == TD_J_ITEMS)
            TD_TRY(td_jv_pair(r, e->key, e->value, &list->items[i]));
        else
            list->items[i] = flavour == TD_J_KEYS ? e->key : e->value;
    }
    list->n = dict->n;
    *out = td_jv_list(list);
    return TD_OK;
}

static td_status d_items(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return view(r, in->self.dict, TD_J_ITEMS, out);
}

static td_status d_keys(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return view(r, in->self.dict, TD_J_KEYS, out);
}

static td_status d_values(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    return view(r, in->self.dict, TD_J_VALUES, out);
}

static td_status d_get(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jentry *entry;
    TD_TRY(td_jdict_find(r, in->self.dict, in->arg[0], &entry));
    *out = entry ? entry->value : in->arg[1].kind == TD_J_ABSENT ? td_jv_none() : in->arg[1];
    return TD_OK;
}

static td_status d_setdefault(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jentry *entry;
    TD_TRY(d_get(r, in, out));
    TD_TRY(td_jdict_find(r, in->self.dict, in->arg[0], &entry));
    return entry ? TD_OK : td_jdict_set(r, in->self.dict, in->arg[0], *out);
}

static td_status d_pop(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jentry *entry;
    TD_TRY(td_jdict_find(r, in->self.dict, in->arg[0], &entry));
    if (entry) {
        *out = entry->value;
        return td_jdict_remove(r, in->self.dict, (size_t)(entry - in->self.dict->entries));
    }
    if (in->arg[1].kind == TD_J_ABSENT)
        return td_jrun_fail(r, TD_E_FORMAT, "pop: the dictionary has no such key");
    *out = in->arg[1];
    return TD_OK;
}

/* One item of an iterable of pairs. */
static td_status as_pair(td_jrun *r, td_jv v, td_jv pair[2]) {
    td_jv *parts;
    size_t n;
    TD_TRY(td_jv_iterate(r, v, &parts, &n));
    if (n != 2)
        return td_jrun_fail(r, TD_E_FORMAT, "a dictionary is made of pairs, and this item has %zu parts", n);
    pair[0] = parts[0];
    pair[1] = parts[1];
    return TD_OK;
}

td_status td_jdict_update(td_jrun *r, td_jdict *dict, const td_jcall *call) {
    if (call->n > 1)
        return td_jrun_fail(r, TD_E_FORMAT, "expected at most 1 positional argument, got %zu", call->n);
    if (call->n && call->args[0].kind == TD_J_DICT) {
        const td_jdict *other = call->args[0].dict;
        for (size_t i = 0, n = other->n; i < n; i++)
            TD_TRY(td_jdict_set(r, dict, other->entries[i].key, other->entries[i].value));
    } else if (call->n) {
        td_jv *items, pair[2];
        size_t n;
        TD_TRY(td_jv_iterate(r, call->args[0], &items, &n));
        for (size_t i = 0; i < n; i++) {
            TD_TRY(as_pair(r, items[i], pair));
            TD_TRY(td_jdict_set(r, dict, pair[0], pair[1]));
        }
    }
    for (size_t i = 0; i < call->n_named; i++)
        TD_TRY(td_jdict_set(r, dict, call->names[i], call->named[i]));
    return TD_OK;
}

static td_status d_update(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    *out = td_jv_none();
    return td_jdict_update(r, in->self.dict, in->call);
}

static td_status d_copy(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jdict *made;
    const td_jdict *dict = in->self.dict;
    TD_TRY(td_jdict_new(r, dict->n, &made));
    for (size_t i = 0; i < dict->n; i++)
        TD_TRY(td_jdict_set(r, made, dict->entries[i].key, dict->entries[i].value));
    *out = td_jv_dict(made);
    return TD_OK;
}

static td_status d_clear(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    *in->self.dict = (td_jdict){0};
    *out = td_jv_none();
    return td_jrun_charge(r, 0);
}

const td_jbuiltin td_jmethods_dict[] = {
    {"items", d_items, 0, {NULL}},
    {"keys", d_keys, 0, {NULL}},
    {"values", d_values, 0, {NULL}},
    {"get", d_get, 1, {"key", "default"}},
    {"setdefault", d_setdefault, 1, {"key", "default"}},
    {"pop", d_pop, 1, {"key", "default"}},
    {"update", d_update, -1, {NULL}},
    {"copy", d_copy, 0, {NULL}},
    {"clear", d_clear, 0, {NULL}},
    {NULL, NULL, 0, {NULL}},
};

/* ---- loop, cycler ---- */

static td_status loop_cycle(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    if (!in->call->n)
        return td_jrun_fail(r, TD_E_FORMAT, "no items for cycling given");
    *out = in->call->args[in->self.loop->index % in->call->n];
    return TD_OK;
}

/* True when the arguments are not those of the call before. */
static td_status loop_changed(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jloop *loop = in->self.loop;
    td_jv now;
    bool same = false;
    TD_TRY(td_jlist_of(r, TD_J_TUPLE, in->call->args, in->call->n, &now));
    if (loop->changed.kind != TD_J_ABSENT)
        TD_TRY(td_jv_equal(r, loop->changed, now, &same));
    loop->changed = now;
    *out = td_jv_bool(!same);
    return TD_OK;
}

const td_jbuiltin td_jmethods_loop[] = {
    {"cycle", loop_cycle, -1, {NULL}},
    {"changed", loop_changed, -1, {NULL}},
    {NULL, NULL, 0, {NULL}},
};

static td_status cycler_next(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jcycle *c = in->self.cycle;
    *out = c->items[c->at];
    c->at = (c->at + 1) % c->n;
    return td_jrun_charge(r, 0);
}

static td_status cycler_reset(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    in->self.cycle->at = 0;
    *out = td_jv_none();
    return td_jrun_charge(r, 0);
}

const td_jbuiltin td_jmethods_cycler[] = {
    {"next", cycler_next, 0, {NULL}},
    {"reset", cycler_reset, 0, {NULL}},
    {NULL, NULL, 0, {NULL}},
};
