/* jinja_expr.c - evaluating expressions. */
#include <string.h>

#include "text/jinja_internal.h"

/* The variable as seen from the innermost scope outwards, then the context. */
static td_jv lookup(const td_jrun *r, uint32_t symbol) {
    for (const td_jscope *s = r->scope; s; s = s->parent)
        for (uint32_t i = s->n; i-- > 0;)
            if (s->at[i].symbol == symbol)
                return s->at[i].value;
    return r->context[symbol];
}

static td_status eval_sequence(td_jrun *r, const td_jnode *node, td_jv *out) {
    td_jlist *list;
    td_jflavour flavour = node->kind == TD_JN_TUPLE ? TD_J_TUPLE : TD_J_PLAIN_LIST;
    TD_TRY(td_jlist_new(r, flavour, node->children.n, &list));
    for (uint32_t i = 0; i < node->children.n; i++)
        TD_TRY(td_jeval(r, node->children.at[i], &list->items[i]));
    list->n = node->children.n;
    *out = td_jv_list(list);
    return TD_OK;
}

static td_status eval_dict(td_jrun *r, const td_jnode *node, td_jv *out) {
    td_jdict *dict;
    td_jv key, value;
    TD_TRY(td_jdict_new(r, node->children.n / 2, &dict));
    for (uint32_t i = 0; i < node->children.n; i += 2) {
        TD_TRY(td_jeval(r, node->children.at[i], &key));
        TD_TRY(td_jeval(r, node->children.at[i + 1], &value));
        r->at = node->children.at[i];
        TD_TRY(td_jdict_set(r, dict, key, value));
    }
    *out = td_jv_dict(dict);
    return TD_OK;
}

/* a ~ b ~ c: as text, and undefined as nothing. */
static td_status eval_concat(td_jrun *r, const td_jnode *node, td_jv *out) {
    td_jv total = td_jv_literal(""), part;
    for (uint32_t i = 0; i < node->children.n; i++) {
        TD_TRY(td_jeval(r, node->children.at[i], &part));
        r->at = node;
        TD_TRY(td_jv_string(r, part, &part));
        TD_TRY(td_jv_concat(r, total, part, &total));
    }
    *out = total;
    return TD_OK;
}

static td_status eval_binary(td_jrun *r, const td_jnode *node, td_jv *out) {
    td_jv left, right;
    TD_TRY(td_jeval(r, node->binary.left, &left));
    TD_TRY(td_jeval(r, node->binary.right, &right));
    r->at = node;
    return td_jv_binary(r, node->op, left, right, out);
}

/* a < b < c: each pair, the middle evaluated once, up to the first that does not hold. */
static td_status eval_compare(td_jrun *r, const td_jnode *node, td_jv *out) {
    td_jv left, right;
    bool holds = true;
    TD_TRY(td_jeval(r, node->compare.operands.at[0], &left));
    for (uint32_t i = 1; holds && i < node->compare.operands.n; i++) {
        TD_TRY(td_jeval(r, node->compare.operands.at[i], &right));
        r->at = node;
        TD_TRY(td_jv_compare(r, node->compare.ops[i - 1], left, right, &holds));
        left = right;
    }
    *out = td_jv_bool(holds);
    return TD_OK;
}

static td_status eval_logic(td_jrun *r, const td_jnode *node, td_jv *out) {
    TD_TRY(td_jeval(r, node->binary.left, out));
    if (td_jv_truth(*out) == (node->kind == TD_JN_OR))
        return TD_OK;
    return td_jeval(r, node->binary.right, out);
}

static td_status eval_unary(td_jrun *r, const td_jnode *node, td_jv *out) {
    TD_TRY(td_jeval(r, node->operand, out));
    r->at = node;
    if (node->kind != TD_JN_NOT)
        return td_jv_signed(r, *out, node->kind == TD_JN_NEGATE, out);
    *out = td_jv_bool(!td_jv_truth(*out));
    return TD_OK;
}

static td_status eval_conditional(td_jrun *r, const td_jnode *node, td_jv *out) {
    td_jv test;
    TD_TRY(td_jeval(r, node->conditional.test, &test));
    if (td_jv_truth(test))
        return td_jeval(r, node->conditional.yes, out);
    if (node->conditional.no)
        return td_jeval(r, node->conditional.no, out);
    *out = td_jv_undefined("the inline if-expression evaluated to false and no else section was defined");
    return TD_OK;
}

static td_status eval_attribute(td_jrun *r, const td_jnode *node, td_jv *out) {
    td_jv object;
    TD_TRY(td_jeval(r, node->attribute.object, &object));
    r->at = node;
    return td_jv_attribute(r, object, node->attribute.name, out);
}

static td_status eval_subscript(td_jrun *r, const td_jnode *node, td_jv *out) {
    td_jv object, key;
    TD_TRY(td_jeval(r, node->subscript.object, &object));
    TD_TRY(td_jeval(r, node->subscript.key, &key));
    r->at = node;
    return td_jv_item(r, object, key, out);
}

static td_status eval_optional(td_jrun *r, const td_jnode *node, td_jv *out) {
    *out = td_jv_none();
    return node ? td_jeval(r, node, out) : TD_OK;
}

static td_status eval_slice(td_jrun *r, const td_jnode *node, td_jv *out) {
    td_jv object, part[3];
    TD_TRY(td_jeval(r, node->slice.object, &object));
    TD_TRY(eval_optional(r, node->slice.start, &part[0]));
    TD_TRY(eval_optional(r, node->slice.stop, &part[1]));
    TD_TRY(eval_optional(r, node->slice.step, &part[2]));
    r->at = node;
    return td_jv_slice(r, object, part[0], part[1], part[2], out);
}

static td_status apply(td_jrun *r, const td_jnode *node, td_jv subject, const td_jcall *call, td_jv *out) {
    r->at = node;
    if (node->kind == TD_JN_CALL)
        return td_jv_call(r, subject, call, out);
    if (!node->apply.builtin)
        return td_jrun_fail(r, TD_E_UNSUPPORTED, "no %s named '%.*s'", node->kind == TD_JN_TEST ? "test" : "filter",
                            node->apply.name.size > 60 ? 60 : (int)node->apply.name.size, node->apply.name.text);
    TD_TRY(td_jbuiltin_invoke(r, node->apply.builtin, subject, call, out));
    if (node->kind == TD_JN_TEST)
        *out = td_jv_bool(td_jv_truth(*out) != (node->op != 0));
    return TD_OK;
}

/* Calls, filters and tests: the arguments live on the scratch stack while the call lasts. */
static td_status eval_apply(td_jrun *r, const td_jnode *node, td_jv *out) {
    td_jv subject;
    td_jcall call;
    TD_TRY(td_jeval(r, node->apply.subject, &subject));
    td_jmark mark = td_jarena_mark(&r->scratch);
    TD_TRY(td_jcall_evaluate(r, &node->apply.args, &call));
    TD_TRY(apply(r, node, subject, &call, out));
    td_jarena_release(&r->scratch, mark);
    return TD_OK;
}

static td_status eval_node(td_jrun *r, const td_jnode *node, td_jv *out) {
    switch ((td_jnode_kind)node->kind) {
    case TD_JN_LITERAL:
        *out = node->literal;
        return TD_OK;
    case TD_JN_NAME:
        *out = lookup(r, node->symbol);
        return TD_OK;
    case TD_JN_PIPED:
        *out = r->piped;
        return TD_OK;
    case TD_JN_TUPLE:
    case TD_JN_LIST:
        return eval_sequence(r, node, out);
    case TD_JN_DICT:
        return eval_dict(r, node, out);
    case TD_JN_CONCAT:
        return eval_concat(r, node, out);
    case TD_JN_BINARY:
        return eval_binary(r, node, out);
    case TD_JN_COMPARE:
        return eval_compare(r, node, out);
    case TD_JN_AND:
    case TD_JN_OR:
        return eval_logic(r, node, out);
    case TD_JN_NOT:
    case TD_JN_NEGATE:
    case TD_JN_PLUS:
        return eval_unary(r, node, out);
    case TD_JN_CONDITIONAL:
        return eval_conditional(r, node, out);
    case TD_JN_ATTRIBUTE:
        return eval_attribute(r, node, out);
    case TD_JN_SUBSCRIPT:
        return eval_subscript(r, node, out);
    case TD_JN_SLICE:
        return eval_slice(r, node, out);
    default:
        return eval_apply(r, node, out);
    }
}

td_status td_jeval(td_jrun *r, const td_jnode *node, td_jv *out) {
    r->at = node;
    TD_TRY(td_jrun_charge(r, 0));
    TD_TRY(td_jrun_enter(r));
    TD_TRY(eval_node(r, node, out));
    td_jrun_leave(r);
    return TD_OK;
}
