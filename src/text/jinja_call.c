/* jinja_call.c - evaluating arguments, calling whatever can be called, and macros.
 *
 * A macro is a body and the scope it was defined in; calling it runs the body in a new scope whose parent is that one,
 * so it sees what its definition saw, as it is at the time of the call. Its value is the text its body wrote. */
#include <string.h>

#include "text/jinja_internal.h"

/* ---- arguments ---- */

static td_status star_items(td_jrun *r, const td_jnode *star, td_jv **items, size_t *n) {
    td_jv v;
    *items = NULL;
    *n = 0;
    if (!star)
        return TD_OK;
    TD_TRY(td_jeval(r, star, &v));
    return td_jv_iterate(r, v, items, n);
}

static td_status star_star_dict(td_jrun *r, const td_jnode *star, const td_jdict **dict) {
    static const td_jdict empty;
    td_jv v;
    *dict = &empty;
    if (!star)
        return TD_OK;
    TD_TRY(td_jeval(r, star, &v));
    r->at = star;
    if (v.kind != TD_J_DICT)
        return td_jrun_fail(r, TD_E_FORMAT, "argument after ** must be a mapping, not %s", td_jv_type_name(v));
    *dict = v.dict;
    for (size_t i = 0; i < v.dict->n; i++)
        if (v.dict->entries[i].key.kind != TD_J_STRING)
            return td_jrun_fail(r, TD_E_FORMAT, "keywords must be strings");
    return TD_OK;
}

td_status td_jcall_evaluate(td_jrun *r, const td_jargs *args, td_jcall *call) {
    *call = (td_jcall){0};
    if (!args->positional.n && !args->named.n && !args->star && !args->star_star)
        return TD_OK;
    /* What the stars hold decides how much room there must be, so they are evaluated before the other arguments. */
    td_jv *extra;
    const td_jdict *extra_named;
    size_t n_extra;
    TD_TRY(star_items(r, args->star, &extra, &n_extra));
    TD_TRY(star_star_dict(r, args->star_star, &extra_named));
    size_t n = args->positional.n + n_extra, n_named = args->named.n + extra_named->n;
    call->args = td_jarena_alloc(&r->scratch, n, sizeof *call->args);
    call->names = td_jarena_alloc(&r->scratch, n_named, sizeof *call->names);
    call->named = td_jarena_alloc(&r->scratch, n_named, sizeof *call->named);
    if (!call->args || !call->names || !call->named)
        return td_jrun_nomem(r);
    for (uint32_t i = 0; i < args->positional.n; i++)
        TD_TRY(td_jeval(r, args->positional.at[i], &call->args[i]));
    if (n_extra)
        memcpy(call->args + args->positional.n, extra, n_extra * sizeof *extra);
    for (uint32_t i = 0; i < args->named.n; i++) {
        call->names[i] = args->names[i];
        TD_TRY(td_jeval(r, args->named.at[i], &call->named[i]));
    }
    for (size_t i = 0; i < extra_named->n; i++) {
        call->names[args->named.n + i] = extra_named->entries[i].key;
        call->named[args->named.n + i] = extra_named->entries[i].value;
    }
    call->n = n;
    call->n_named = n_named;
    return TD_OK;
}

/* ---- macros ---- */

td_status td_jmacro_new(td_jrun *r, const td_jmacro_def *def, td_jv *out) {
    td_jmacro *macro = td_jrun_alloc(r, 1, sizeof *macro);
    if (!macro)
        return td_jrun_nomem(r);
    for (td_jscope *s = r->scope; s && !s->kept; s = s->parent)
        s->kept = true;
    *macro = (td_jmacro){def, r->scope};
    *out = (td_jv){.kind = TD_J_MACRO, .macro = macro};
    return TD_OK;
}

static td_jv not_given(const td_jrun *r, uint32_t symbol) {
    td_jv v = r->t->symbols.at[symbol].name;
    v.kind = TD_J_UNDEFINED;
    v.origin = TD_J_FROM_NAME;
    return v;
}

static td_status too_many(td_jrun *r, const td_jmacro_def *def) {
    return td_jrun_fail(r, TD_E_FORMAT, "macro '%.*s' takes not more than %u argument(s)", (int)def->name.size,
                        def->name.text, def->n_parameters);
}

static td_status no_such_keyword(td_jrun *r, const td_jmacro_def *def, td_jv name) {
    return td_jrun_fail(r, TD_E_FORMAT, "macro '%.*s' takes no keyword argument '%.*s'", (int)def->name.size,
                        def->name.text, (int)(name.size > 60 ? 60 : name.size), name.text);
}

static bool is_parameter(const td_jrun *r, const td_jmacro_def *def, td_jv name, uint32_t *symbol) {
    for (uint32_t i = 0; i < def->n_parameters; i++) {
        td_jv parameter = r->t->symbols.at[def->parameters[i]].name;
        if (parameter.size == name.size && !memcmp(parameter.text, name.text, name.size)) {
            *symbol = def->parameters[i];
            return true;
        }
    }
    return false;
}

static bool in_scope(const td_jscope *scope, uint32_t symbol) {
    for (uint32_t i = 0; i < scope->n; i++)
        if (scope->at[i].symbol == symbol)
            return true;
    return false;
}

static td_status bind_keywords(td_jrun *r, const td_jmacro_def *def, const td_jcall *call, td_jscope *scope) {
    td_jdict *rest;
    uint32_t symbol;
    TD_TRY(td_jdict_new(r, 0, &rest));
    for (size_t i = 0; i < call->n_named; i++) {
        td_jv name = call->names[i];
        bool known = is_parameter(r, def, name, &symbol);
        if (known && in_scope(scope, symbol))
            return td_jrun_fail(r, TD_E_FORMAT, "macro '%.*s' got two values for its argument '%.*s'",
                                (int)def->name.size, def->name.text, (int)name.size, name.text);
        if (known)
            TD_TRY(td_jscope_set(r, scope, symbol, call->named[i]));
        else if (td_jv_is_text(name, "caller") && def->takes_caller)
            TD_TRY(td_jscope_set(r, scope, r->t->sym_caller, call->named[i]));
        else if (def->takes_kwargs)
            TD_TRY(td_jdict_set(r, rest, name, call->named[i]));
        else
            return no_such_keyword(r, def, name);
    }
    return def->takes_kwargs ? td_jscope_set(r, scope, r->t->sym_kwargs, td_jv_dict(rest)) : TD_OK;
}

static td_status bind_rest(td_jrun *r, const td_jmacro_def *def, const td_jcall *call, td_jscope *scope) {
    size_t taken = call->n < def->n_parameters ? call->n : def->n_parameters;
    td_jv rest;
    if (def->takes_varargs) {
        const td_jv *extra = taken < call->n ? call->args + taken : NULL;
        TD_TRY(td_jlist_of(r, TD_J_TUPLE, extra, call->n - taken, &rest));
        TD_TRY(td_jscope_set(r, scope, r->t->sym_varargs, rest));
    }
    if (!def->takes_caller || in_scope(scope, r->t->sym_caller))
        return TD_OK;
    return td_jscope_set(r, scope, r->t->sym_caller, td_jv_undefined("No caller defined"));
}

/* Parameters without an argument get their default, evaluated now, in the macro's scope: it may use earlier ones. */
static td_status bind_defaults(td_jrun *r, const td_jmacro_def *def, td_jscope *scope) {
    for (uint32_t i = 0; i < def->n_parameters; i++) {
        td_jv value;
        if (in_scope(scope, def->parameters[i]))
            continue;
        if (def->defaults[i])
            TD_TRY(td_jeval(r, def->defaults[i], &value));
        else
            value = not_given(r, def->parameters[i]);
        TD_TRY(td_jscope_set(r, scope, def->parameters[i], value));
    }
    return TD_OK;
}

static td_status bind_macro(td_jrun *r, const td_jmacro_def *def, const td_jcall *call, td_jscope *scope) {
    if (call->n > def->n_parameters && !def->takes_varargs)
        return too_many(r, def);
    for (size_t i = 0; i < call->n && i < def->n_parameters; i++)
        TD_TRY(td_jscope_set(r, scope, def->parameters[i], call->args[i]));
    TD_TRY(bind_keywords(r, def, call, scope));
    TD_TRY(bind_rest(r, def, call, scope));
    r->scope = scope;
    return bind_defaults(r, def, scope);
}

td_status td_jmacro_call(td_jrun *r, const td_jmacro *macro, const td_jcall *call, td_jv *out) {
    td_jscope *outer = r->scope, *scope;
    size_t mark = r->out->size;
    if (r->calls == TD_JINJA_MAX_CALLS)
        return td_jrun_fail(r, TD_E_LIMIT, "macro '%.*s': calls nested deeper than %d levels",
                            (int)macro->def->name.size, macro->def->name.text, TD_JINJA_MAX_CALLS);
    r->calls++;
    TD_TRY(td_jscope_new(r, macro->scope, &scope));
    TD_TRY(bind_macro(r, macro->def, call, scope));
    TD_TRY(td_jexec(r, macro->def->body));
    r->scope = outer;
    r->calls--;
    return td_jrun_take(r, mark, out);
}

td_status td_jmacro_attribute(td_jrun *r, td_jv object, td_jv name, td_jv *out) {
    const td_jmacro_def *def = object.macro->def;
    if (td_jv_is_text(name, "name"))
        *out = def->name;
    if (td_jv_is_text(name, "catch_kwargs"))
        *out = td_jv_bool(def->takes_kwargs);
    if (td_jv_is_text(name, "catch_varargs"))
        *out = td_jv_bool(def->takes_varargs);
    if (td_jv_is_text(name, "caller"))
        *out = td_jv_bool(def->takes_caller);
    if (!td_jv_is_text(name, "arguments"))
        return TD_OK;
    TD_TRY(td_jlist_of(r, TD_J_TUPLE, NULL, 0, out));
    for (uint32_t i = 0; i < def->n_parameters; i++)
        TD_TRY(td_jlist_push(r, out->list, r->t->symbols.at[def->parameters[i]].name));
    return TD_OK;
}

/* ---- calls ---- */

static td_status call_loop(td_jrun *r, const td_jloop *loop, const td_jcall *call, td_jv *out) {
    if (call->n != 1 || call->n_named)
        return td_jrun_fail(r, TD_E_FORMAT, "a recursive loop is called with one argument: the items");
    return td_jloop_recurse(r, loop, call->args[0], out);
}

static td_status call_joiner(td_jrun *r, td_jcycle *joiner, td_jv *out) {
    *out = joiner->at ? joiner->items[0] : td_jv_literal("");
    joiner->at = 1;
    return td_jrun_charge(r, 0);
}

td_status td_jv_call(td_jrun *r, td_jv callee, const td_jcall *call, td_jv *out) {
    switch ((td_jkind)callee.kind) {
    case TD_J_MACRO:
        return td_jmacro_call(r, callee.macro, call, out);
    case TD_J_METHOD:
        return td_jbuiltin_invoke(r, callee.bound->method, callee.bound->self, call, out);
    case TD_J_FUNCTION:
        return td_jbuiltin_invoke(r, callee.function, td_jv_none(), call, out);
    case TD_J_LOOP:
        return call_loop(r, callee.loop, call, out);
    case TD_J_JOINER:
        return call_joiner(r, callee.cycle, out);
    case TD_J_UNDEFINED:
        return td_jrun_fail_undefined(r, callee);
    default:
        return td_jrun_fail(r, TD_E_FORMAT, "'%s' object is not callable", td_jv_type_name(callee));
    }
}
