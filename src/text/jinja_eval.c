/* jinja_eval.c - executing statements.
 *
 * Scopes. The template, each turn of a loop, each call of a macro, and each with, filter, set and generation block has
 * a scope; an if has none. Assignment is always to the innermost scope, so what a loop's body sets is gone at the end
 * of the turn, which is why templates use namespace() for state. A turn reuses the memory of the turn before it, unless
 * a macro was defined there and holds on to the scope. */
#include <string.h>

#include "text/jinja_internal.h"

/* ---- scopes ---- */

td_status td_jscope_new(td_jrun *r, td_jscope *parent, td_jscope **out) {
    *out = NULL;
    td_jscope *s = td_jrun_alloc(r, 1, sizeof *s);
    if (!s)
        return td_jrun_nomem(r);
    *s = (td_jscope){.parent = parent};
    *out = s;
    return TD_OK;
}

td_status td_jscope_set(td_jrun *r, td_jscope *scope, uint32_t symbol, td_jv value) {
    for (uint32_t i = 0; i < scope->n; i++)
        if (scope->at[i].symbol == symbol) {
            scope->at[i].value = value;
            return TD_OK;
        }
    if (scope->n == scope->capacity) {
        uint32_t capacity = scope->capacity ? 2 * scope->capacity : 4;
        td_jvariable *at = td_jrun_alloc(r, capacity, sizeof *at);
        if (!at)
            return td_jrun_nomem(r);
        if (scope->n)
            memcpy(at, scope->at, scope->n * sizeof *at);
        scope->at = at;
        scope->capacity = capacity;
    }
    scope->at[scope->n++] = (td_jvariable){symbol, value};
    return TD_OK;
}

/* ---- assignment ---- */

static td_status assign_attribute(td_jrun *r, const td_jnode *target, td_jv value) {
    td_jnode name = {.kind = TD_JN_NAME, .height = 1, .offset = target->offset, .symbol = target->namespace_ref.symbol};
    td_jv object;
    TD_TRY(td_jeval(r, &name, &object));
    r->at = target;
    if (object.kind == TD_J_UNDEFINED)
        return td_jrun_fail_undefined(r, object);
    if (object.kind != TD_J_NAMESPACE)
        return td_jrun_fail(r, TD_E_FORMAT, "only a namespace() has attributes that can be assigned to, not a %s",
                            td_jv_type_name(object));
    return td_jdict_set(r, object.dict, target->namespace_ref.attribute, value);
}

static td_status unpack(td_jrun *r, const td_jnode *target, td_jv value) {
    td_jv *items;
    size_t n;
    r->at = target;
    TD_TRY(td_jv_iterate(r, value, &items, &n));
    if (n != target->children.n)
        return td_jrun_fail(r, TD_E_FORMAT, "%s values to unpack (expected %u, got %zu)",
                            n < target->children.n ? "not enough" : "too many", target->children.n, n);
    for (size_t i = 0; i < n; i++)
        TD_TRY(td_jassign(r, target->children.at[i], items[i]));
    return TD_OK;
}

td_status td_jassign(td_jrun *r, const td_jnode *target, td_jv value) {
    switch ((td_jnode_kind)target->kind) {
    case TD_JN_NAME:
        return td_jscope_set(r, r->scope, target->symbol, value);
    case TD_JN_NAMESPACE_REF:
        return assign_attribute(r, target, value);
    default:
        return unpack(r, target, value);
    }
}

/* ---- bodies ---- */

static td_status exec_body(td_jrun *r, const td_jnode *body) {
    for (uint32_t i = 0; i < body->children.n && r->flow == TD_J_NEXT; i++)
        TD_TRY(td_jexec(r, body->children.at[i]));
    return TD_OK;
}

static td_status exec_scoped(td_jrun *r, const td_jnode *body) {
    td_jscope *outer = r->scope;
    TD_TRY(td_jscope_new(r, outer, &r->scope));
    TD_TRY(td_jexec(r, body));
    r->scope = outer;
    return TD_OK;
}

static td_status exec_branch(td_jrun *r, const td_jnode *node) {
    for (uint32_t i = 0; i < node->branch.tests.n; i++) {
        td_jv test;
        TD_TRY(td_jeval(r, node->branch.tests.at[i], &test));
        if (td_jv_truth(test))
            return td_jexec(r, node->branch.bodies.at[i]);
    }
    return node->branch.otherwise ? td_jexec(r, node->branch.otherwise) : TD_OK;
}

/* ---- loops ---- */

/* The items that pass "if ...", each seen by the condition under the loop's own names. */
static td_status filter_items(td_jrun *r, const td_jnode *node, td_jv **items, size_t *n) {
    td_jlist *kept;
    td_jscope *outer = r->scope, *scope;
    TD_TRY(td_jlist_new(r, TD_J_PLAIN_LIST, 0, &kept));
    TD_TRY(td_jscope_new(r, outer, &scope));
    for (size_t i = 0; i < *n; i++) {
        td_jv passes;
        r->scope = scope;
        TD_TRY(td_jassign(r, node->loop.target, (*items)[i]));
        TD_TRY(td_jeval(r, node->loop.filter, &passes));
        if (td_jv_truth(passes))
            TD_TRY(td_jlist_push(r, kept, (*items)[i]));
    }
    r->scope = outer;
    *items = kept->items;
    *n = kept->n;
    return TD_OK;
}

static td_status exec_turn(td_jrun *r, td_jloop *loop, td_jscope **scope) {
    if (!*scope || (*scope)->kept)
        TD_TRY(td_jscope_new(r, loop->outer, scope));
    (*scope)->n = 0;
    r->scope = *scope;
    TD_TRY(td_jscope_set(r, *scope, r->t->sym_loop, (td_jv){.kind = TD_J_LOOP, .loop = loop}));
    TD_TRY(td_jassign(r, loop->node->loop.target, loop->items[loop->index]));
    return td_jexec(r, loop->node->loop.body);
}

static td_status exec_turns(td_jrun *r, td_jloop *loop) {
    td_jscope *scope = NULL;
    for (loop->index = 0; loop->index < loop->n; loop->index++) {
        TD_TRY(td_jrun_charge(r, 0));
        TD_TRY(exec_turn(r, loop, &scope));
        bool stop = r->flow == TD_J_BREAK;
        r->flow = TD_J_NEXT;
        if (stop)
            break;
    }
    r->scope = loop->outer;
    return TD_OK;
}

static td_status run_loop(td_jrun *r, const td_jnode *node, td_jv over, unsigned depth) {
    td_jloop *loop = td_jrun_alloc(r, 1, sizeof *loop);
    if (!loop)
        return td_jrun_nomem(r);
    *loop = (td_jloop){.node = node, .depth = depth, .outer = r->scope};
    TD_TRY(td_jv_iterate(r, over, &loop->items, &loop->n));
    if (node->loop.filter)
        TD_TRY(filter_items(r, node, &loop->items, &loop->n));
    if (loop->n)
        return exec_turns(r, loop);
    return node->loop.otherwise ? exec_scoped(r, node->loop.otherwise) : TD_OK;
}

static td_status exec_for(td_jrun *r, const td_jnode *node) {
    td_jv over;
    TD_TRY(td_jeval(r, node->loop.items, &over));
    r->at = node;
    return run_loop(r, node, over, 0);
}

td_status td_jloop_recurse(td_jrun *r, const td_jloop *loop, td_jv items, td_jv *out) {
    size_t mark = r->out->size;
    td_jscope *outer = r->scope;
    if (!loop->node->loop.recursive)
        return td_jrun_fail(r, TD_E_FORMAT, "this loop is not recursive: it needs the word 'recursive' to be called");
    TD_TRY(td_jrun_enter(r));
    r->scope = loop->outer;
    TD_TRY(run_loop(r, loop->node, items, loop->depth + 1));
    r->scope = outer;
    td_jrun_leave(r);
    return td_jrun_take(r, mark, out);
}

td_status td_jloop_attribute(td_jrun *r, td_jv object, td_jv name, td_jv *out) {
    const td_jloop *loop = object.loop;
    int64_t index = (int64_t)loop->index, n = (int64_t)loop->n;
    const struct {
        const char *name;
        td_jv value;
    } attributes[] = {
        {"index", td_jv_int(index + 1)},
        {"index0", td_jv_int(index)},
        {"first", td_jv_bool(index == 0)},
        {"last", td_jv_bool(index + 1 == n)},
        {"length", td_jv_int(n)},
        {"revindex", td_jv_int(n - index)},
        {"revindex0", td_jv_int(n - index - 1)},
        {"depth", td_jv_int(loop->depth + 1)},
        {"depth0", td_jv_int(loop->depth)},
    };
    if (td_jv_is_text(name, "previtem"))
        *out = index > 0 ? loop->items[index - 1] : td_jv_undefined("there is no previous item");
    if (td_jv_is_text(name, "nextitem"))
        *out = index + 1 < n ? loop->items[index + 1] : td_jv_undefined("there is no next item");
    for (size_t i = 0; i < sizeof attributes / sizeof attributes[0]; i++)
        if (td_jv_is_text(name, attributes[i].name))
            *out = attributes[i].value;
    return td_jrun_charge(r, 0);
}

/* ---- blocks that make a text of their body ---- */

static td_status capture(td_jrun *r, const td_jnode *body, td_jv *out) {
    size_t mark = r->out->size;
    TD_TRY(exec_scoped(r, body));
    return td_jrun_take(r, mark, out);
}

/* The body's text, through the filters of a filter block or a block set. */
static td_status piped_value(td_jrun *r, const td_jnode *node, td_jv *out) {
    td_jv text, outer = r->piped;
    TD_TRY(capture(r, node->set.body, &text));
    r->piped = text;
    TD_TRY(td_jeval(r, node->set.value, out));
    r->piped = outer;
    return TD_OK;
}

static td_status exec_set(td_jrun *r, const td_jnode *node) {
    td_jv value;
    if (node->kind == TD_JN_SET_BLOCK)
        TD_TRY(piped_value(r, node, &value));
    else
        TD_TRY(td_jeval(r, node->set.value, &value));
    return td_jassign(r, node->set.target, value);
}

static td_status exec_filter_block(td_jrun *r, const td_jnode *node) {
    td_jv value;
    TD_TRY(piped_value(r, node, &value));
    r->at = node;
    return td_jv_write(r, value);
}

static td_status exec_print(td_jrun *r, const td_jnode *node) {
    td_jv value;
    TD_TRY(td_jeval(r, node->operand, &value));
    r->at = node;
    return td_jv_write(r, value);
}

static td_status exec_macro(td_jrun *r, const td_jnode *node) {
    td_jv macro;
    TD_TRY(td_jmacro_new(r, node->macro.def, &macro));
    return td_jscope_set(r, r->scope, node->macro.symbol, macro);
}

/* The call gets the block's body as the keyword argument "caller". */
static td_status exec_call_block(td_jrun *r, const td_jnode *node) {
    const td_jnode *expr = node->macro.call;
    td_jv callee, caller, value;
    td_jcall call;
    TD_TRY(td_jmacro_new(r, node->macro.def, &caller));
    TD_TRY(td_jeval(r, expr->apply.subject, &callee));
    td_jmark mark = td_jarena_mark(&r->scratch);
    TD_TRY(td_jcall_evaluate(r, &expr->apply.args, &call));
    size_t n = call.n_named;
    td_jv *names = td_jarena_alloc(&r->scratch, n + 1, sizeof *names);
    td_jv *named = td_jarena_alloc(&r->scratch, n + 1, sizeof *named);
    if (!names || !named)
        return td_jrun_nomem(r);
    if (n) {
        memcpy(names, call.names, n * sizeof *names);
        memcpy(named, call.named, n * sizeof *named);
    }
    names[n] = td_jv_literal("caller");
    named[n] = caller;
    call = (td_jcall){call.args, call.n, names, named, n + 1};
    r->at = expr;
    TD_TRY(td_jv_call(r, callee, &call, &value));
    td_jarena_release(&r->scratch, mark);
    return td_jv_write(r, value);
}

static td_status exec_with(td_jrun *r, const td_jnode *node) {
    td_jscope *outer = r->scope, *scope;
    TD_TRY(td_jscope_new(r, outer, &scope));
    for (uint32_t i = 0; i < node->with.targets.n; i++) {
        td_jv value;
        r->scope = outer; /* values see the variables outside */
        TD_TRY(td_jeval(r, node->with.values.at[i], &value));
        r->scope = scope;
        TD_TRY(td_jassign(r, node->with.targets.at[i], value));
    }
    r->scope = scope;
    TD_TRY(td_jexec(r, node->with.body));
    r->scope = outer;
    return TD_OK;
}

static td_status exec_node(td_jrun *r, const td_jnode *node) {
    td_jv ignored;
    switch ((td_jnode_kind)node->kind) {
    case TD_JN_BODY:
        return exec_body(r, node);
    case TD_JN_TEXT:
        TD_TRY(td_jrun_charge(r, node->literal.size));
        return td_jrun_write(r, node->literal.text, node->literal.size);
    case TD_JN_PRINT:
        return exec_print(r, node);
    case TD_JN_IF:
        return exec_branch(r, node);
    case TD_JN_FOR:
        return exec_for(r, node);
    case TD_JN_SET:
    case TD_JN_SET_BLOCK:
        return exec_set(r, node);
    case TD_JN_MACRO:
        return exec_macro(r, node);
    case TD_JN_CALL_BLOCK:
        return exec_call_block(r, node);
    case TD_JN_FILTER_BLOCK:
        return exec_filter_block(r, node);
    case TD_JN_WITH:
        return exec_with(r, node);
    case TD_JN_SCOPE:
        return exec_scoped(r, node->operand);
    case TD_JN_DO:
        return td_jeval(r, node->operand, &ignored);
    default:
        r->flow = node->kind == TD_JN_BREAK ? TD_J_BREAK : TD_J_CONTINUE;
        return TD_OK;
    }
}

td_status td_jexec(td_jrun *r, const td_jnode *node) {
    r->at = node;
    TD_TRY(td_jrun_charge(r, 0));
    TD_TRY(td_jrun_enter(r));
    TD_TRY(exec_node(r, node));
    td_jrun_leave(r);
    return TD_OK;
}
