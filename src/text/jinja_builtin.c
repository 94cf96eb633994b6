/* jinja_builtin.c - finding and calling what is built in, and the global functions.
 *
 * Filters, tests, methods and functions are rows of one kind of table: a name, a C function, the names of the
 * parameters. Arguments, given by position or by name, are put in parameter order before the function runs; a
 * variadic builtin gets them as they were written. */
#include <string.h>

#include "text/jinja_internal.h"

const td_jbuiltin *td_jbuiltin_find(const td_jbuiltin *table, td_jv name) {
    if (name.kind != TD_J_STRING)
        return NULL;
    for (; table->name; table++)
        if (td_jv_is_text(name, table->name))
            return table;
    return NULL;
}

const td_jbuiltin *td_jfilter_find(td_jv name) {
    const td_jbuiltin *const tables[] = {td_jfilters_text, td_jfilters_sequence, td_jfilters_number};
    const td_jbuiltin *found = NULL;
    for (size_t i = 0; !found && i < sizeof tables / sizeof tables[0]; i++)
        found = td_jbuiltin_find(tables[i], name);
    return found;
}

const td_jbuiltin *td_jmethod_find(td_jv object, td_jv name) {
    switch ((td_jkind)object.kind) {
    case TD_J_STRING:
        return td_jbuiltin_find(td_jmethods_string, name);
    case TD_J_DICT:
        return td_jbuiltin_find(td_jmethods_dict, name);
    case TD_J_LIST:
        if (object.list->flavour == TD_J_PLAIN_LIST)
            return td_jbuiltin_find(td_jmethods_list, name);
        return object.list->flavour == TD_J_TUPLE ? td_jbuiltin_find(td_jmethods_tuple, name) : NULL;
    case TD_J_LOOP:
        return td_jbuiltin_find(td_jmethods_loop, name);
    case TD_J_CYCLER:
        return td_jbuiltin_find(td_jmethods_cycler, name);
    default:
        return NULL;
    }
}

/* ---- binding ---- */

static size_t count_parameters(const td_jbuiltin *b) {
    size_t n = 0;
    while (n < TD_J_MAX_PARAMETERS && b->parameters[n])
        n++;
    return n;
}

static td_status bind_named(td_jrun *r, const td_jbuiltin *b, const td_jcall *call, td_jinvoke *in) {
    size_t n = count_parameters(b);
    for (size_t i = 0; i < call->n_named; i++) {
        size_t k = 0;
        while (k < n && !td_jv_is_text(call->names[i], b->parameters[k]))
            k++;
        if (k == n)
            return td_jrun_fail(r, TD_E_FORMAT, "'%s' has no parameter '%.*s'", b->name, (int)call->names[i].size,
                                call->names[i].text);
        if (in->arg[k].kind != TD_J_ABSENT)
            return td_jrun_fail(r, TD_E_FORMAT, "'%s' got two values for '%s'", b->name, b->parameters[k]);
        in->arg[k] = call->named[i];
    }
    return TD_OK;
}

static td_status bind(td_jrun *r, const td_jbuiltin *b, const td_jcall *call, td_jinvoke *in) {
    size_t n = count_parameters(b);
    if (call->n > n)
        return td_jrun_fail(r, TD_E_FORMAT, "'%s' takes at most %zu arguments, got %zu", b->name, n, call->n);
    for (size_t i = 0; i < call->n; i++)
        in->arg[i] = call->args[i];
    TD_TRY(bind_named(r, b, call, in));
    for (int i = 0; i < b->required; i++)
        if (in->arg[i].kind == TD_J_ABSENT)
            return td_jrun_fail(r, TD_E_FORMAT, "'%s' needs its argument '%s'", b->name, b->parameters[i]);
    return TD_OK;
}

td_status td_jbuiltin_invoke(td_jrun *r, const td_jbuiltin *b, td_jv self, const td_jcall *call, td_jv *out) {
    td_jinvoke in = {.self = self, .call = call};
    TD_TRY(td_jrun_charge(r, 0));
    if (b->required >= 0)
        TD_TRY(bind(r, b, call, &in));
    td_jv result = td_jv_none();
    TD_TRY(b->fn(r, &in, &result));
    *out = result;
    return TD_OK;
}

td_status td_jv_filter(td_jrun *r, td_jv name, td_jv self, const td_jcall *call, td_jv *out) {
    const td_jbuiltin *b = td_jfilter_find(name);
    if (!b)
        return td_jrun_fail(r, TD_E_UNSUPPORTED, "no filter named '%.*s'",
                            name.kind == TD_J_STRING ? (int)(name.size > 60 ? 60 : name.size) : 0,
                            name.kind == TD_J_STRING ? name.text : "");
    return td_jbuiltin_invoke(r, b, self, call, out);
}

td_status td_jv_test(td_jrun *r, td_jv name, td_jv self, const td_jcall *call, bool *out) {
    const td_jbuiltin *b = td_jtest_find(name);
    td_jv result;
    if (!b)
        return td_jrun_fail(r, TD_E_UNSUPPORTED, "no test named '%.*s'",
                            name.kind == TD_J_STRING ? (int)(name.size > 60 ? 60 : name.size) : 0,
                            name.kind == TD_J_STRING ? name.text : "");
    TD_TRY(td_jbuiltin_invoke(r, b, self, call, &result));
    *out = td_jv_truth(result);
    return TD_OK;
}

td_status td_jarg_int(td_jrun *r, const char *what, td_jv v, int64_t fallback, int64_t *out) {
    *out = fallback;
    if (td_jv_missing(v))
        return TD_OK;
    if (v.kind == TD_J_UNDEFINED)
        return td_jrun_fail_undefined(r, v);
    if (!td_jv_is_integral(v))
        return td_jrun_fail(r, TD_E_FORMAT, "%s: expected an integer, got %s", what, td_jv_type_name(v));
    *out = td_jv_integral(v);
    return TD_OK;
}

td_status td_jarg_text(td_jrun *r, const char *what, td_jv v, td_jv *out) {
    if (v.kind == TD_J_UNDEFINED)
        return td_jrun_fail_undefined(r, v);
    if (v.kind != TD_J_STRING)
        return td_jrun_fail(r, TD_E_FORMAT, "%s: expected a string, got %s", what, td_jv_type_name(v));
    *out = v;
    return TD_OK;
}

/* ---- global functions ---- */

static td_status range_bounds(td_jrun *r, const td_jinvoke *in, int64_t range[3], uint64_t *n) {
    TD_TRY(td_jarg_int(r, "range", in->arg[0], 0, &range[0]));
    TD_TRY(td_jarg_int(r, "range", in->arg[1], 0, &range[1]));
    TD_TRY(td_jarg_int(r, "range", in->arg[2], 1, &range[2]));
    if (in->arg[1].kind == TD_J_ABSENT) {
        range[1] = range[0];
        range[0] = 0;
    }
    if (range[2] == 0)
        return td_jrun_fail(r, TD_E_FORMAT, "range: the step must not be zero");
    bool up = range[2] > 0;
    uint64_t span = up ? (uint64_t)range[1] - (uint64_t)range[0] : (uint64_t)range[0] - (uint64_t)range[1];
    uint64_t stride = up ? (uint64_t)range[2] : 0 - (uint64_t)range[2];
    *n = (up ? range[1] > range[0] : range[0] > range[1]) ? (span - 1) / stride + 1 : 0;
    if (*n > TD_JINJA_MAX_RANGE)
        return td_jrun_fail(r, TD_E_LIMIT, "a range of %llu items, expected at most %d", (unsigned long long)*n,
                            TD_JINJA_MAX_RANGE);
    return TD_OK;
}

static td_status g_range(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    int64_t range[3] = {0, 0, 1};
    uint64_t n = 0;
    td_jlist *list;
    TD_TRY(range_bounds(r, in, range, &n));
    TD_TRY(td_jrun_charge(r, n));
    TD_TRY(td_jlist_new(r, TD_J_RANGE, n, &list));
    for (uint64_t i = 0; i < n; i++)
        list->items[i] = td_jv_int((int64_t)((uint64_t)range[0] + i * (uint64_t)range[2]));
    list->n = n;
    memcpy(list->range, range, sizeof list->range);
    *out = td_jv_list(list);
    return TD_OK;
}

static td_status g_dict(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jdict *dict;
    TD_TRY(td_jdict_new(r, 0, &dict));
    TD_TRY(td_jdict_update(r, dict, in->call));
    *out = td_jv_dict(dict);
    return TD_OK;
}

static td_status g_namespace(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    TD_TRY(g_dict(r, in, out));
    out->kind = TD_J_NAMESPACE;
    return TD_OK;
}

/* The words go to the caller as they are, without a place in the template: they speak of the conversation. */
static td_status g_raise_exception(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    TD_TRY(td_jv_string(r, in->arg[0], out));
    int n = out->size > sizeof r->err->message ? (int)sizeof r->err->message : (int)out->size;
    return td_fail(r->err, TD_E_ARG, "%.*s", n, out->text);
}

static td_status g_strftime_now(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv format;
    TD_TRY(td_jarg_text(r, "strftime_now", in->arg[0], &format));
    return td_jformat_time(r, format, out);
}

static td_status new_cycle(td_jrun *r, const td_jv *items, size_t n, td_jkind kind, td_jv *out) {
    td_jcycle *c = td_jrun_alloc(r, 1, sizeof *c);
    td_jv *copy = td_jrun_alloc(r, n, sizeof *copy);
    if (!c || !copy)
        return td_jrun_nomem(r);
    memcpy(copy, items, n * sizeof *copy);
    *c = (td_jcycle){.items = copy, .n = n};
    *out = (td_jv){.kind = (uint8_t)kind, .cycle = c};
    return TD_OK;
}

static td_status g_cycler(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    if (!in->call->n)
        return td_jrun_fail(r, TD_E_FORMAT, "cycler: at least one item has to be provided");
    return new_cycle(r, in->call->args, in->call->n, TD_J_CYCLER, out);
}

static td_status g_joiner(td_jrun *r, const td_jinvoke *in, td_jv *out) {
    td_jv sep = in->arg[0].kind == TD_J_ABSENT ? td_jv_literal(", ") : in->arg[0];
    return new_cycle(r, &sep, 1, TD_J_JOINER, out);
}

static const td_jbuiltin functions[] = {
    {"range", g_range, 1, {"start", "stop", "step"}},
    {"dict", g_dict, -1, {NULL}},
    {"namespace", g_namespace, -1, {NULL}},
    {"raise_exception", g_raise_exception, 1, {"message"}},
    {"strftime_now", g_strftime_now, 1, {"format"}},
    {"cycler", g_cycler, -1, {NULL}},
    {"joiner", g_joiner, 0, {"sep"}},
    {NULL, NULL, 0, {NULL}},
};

const td_jbuiltin *td_jfunction_find(td_jv name) {
    return td_jbuiltin_find(functions, name);
}
