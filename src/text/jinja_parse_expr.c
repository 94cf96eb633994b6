/* jinja_parse_expr.c - tokens to syntax tree: expressions.
 *
 * The levels, weakest first: a if b else c; or; and; not; comparisons, in, not in (which chain as in Python); + -; ~;
 * * / // %; **; unary + -; postfix . [] (); filters and tests. Three things differ from Python and are Jinja's: filters
 * and `is` bind tighter than any operator, so "a + b|f" is a + f(b); "**" groups to the left and takes a sign as part
 * of its left side, so -2 ** 2 is 4; "~" has a level of its own. */
#include <string.h>

#include "text/jinja_internal.h"

static td_status parse_or(td_jparse *p, td_jnode **out);
static td_status parse_unary(td_jparse *p, bool with_filters, td_jnode **out);
static td_status parse_postfix(td_jparse *p, td_jnode **node);

static td_status new_binary(td_jparse *p, td_jnode_kind kind, size_t offset, td_jnode *left, td_jnode *right,
                            td_jnode **out) {
    td_jnode *node;
    TD_TRY(td_jparse_node(p, kind, offset, &node));
    node->binary.left = left;
    node->binary.right = right;
    TD_TRY(td_jparse_adopt(p, node, left));
    TD_TRY(td_jparse_adopt(p, node, right));
    *out = node;
    return TD_OK;
}

static td_status new_unary(td_jparse *p, td_jnode_kind kind, size_t offset, td_jnode *operand, td_jnode **out) {
    TD_TRY(td_jparse_node(p, kind, offset, out));
    (*out)->operand = operand;
    return td_jparse_adopt(p, *out, operand);
}

static td_status push_child(td_jparse *p, td_jnode *parent, td_jnodes *list, td_jnode *child) {
    TD_TRY(td_jparse_adopt(p, parent, child));
    return td_jparse_push(p, list, child);
}

/* ---- from the weakest operator to the strongest ---- */

static td_status parse_conditional(td_jparse *p, td_jnode **out) {
    td_jnode *node, *value;
    bool more;
    TD_TRY(parse_or(p, &value));
    for (;;) {
        size_t offset = p->token.offset;
        TD_TRY(td_jparse_skip_word(p, "if", &more));
        if (!more)
            break;
        p->conditions++;
        TD_TRY(td_jparse_node(p, TD_JN_CONDITIONAL, offset, &node));
        node->conditional.yes = value;
        TD_TRY(parse_or(p, &node->conditional.test));
        bool otherwise;
        TD_TRY(td_jparse_skip_word(p, "else", &otherwise));
        if (otherwise)
            TD_TRY(td_jparse_expression(p, &node->conditional.no));
        p->conditions--;
        TD_TRY(td_jparse_adopt(p, node, node->conditional.test));
        TD_TRY(td_jparse_adopt(p, node, value));
        TD_TRY(td_jparse_adopt(p, node, node->conditional.no));
        value = node;
    }
    *out = value;
    return TD_OK;
}

td_status td_jparse_expression(td_jparse *p, td_jnode **out) {
    TD_TRY(td_jparse_enter(p));
    TD_TRY(parse_conditional(p, out));
    td_jparse_leave(p);
    return TD_OK;
}

static td_status parse_arithmetic(td_jparse *p, unsigned level, td_jnode **out);

static bool comparison(const td_jparse *p, td_jop *op) {
    static const uint8_t ops[][2] = {{TD_JT_EQ, TD_JOP_EQ}, {TD_JT_NE, TD_JOP_NE}, {TD_JT_LT, TD_JOP_LT},
                                     {TD_JT_LE, TD_JOP_LE}, {TD_JT_GT, TD_JOP_GT}, {TD_JT_GE, TD_JOP_GE}};
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (p->token.kind == (td_jtoken_kind)ops[i][0]) {
            *op = ops[i][1];
            return true;
        }
    *op = td_jparse_at_word(p, "not") ? TD_JOP_NOT_IN : TD_JOP_IN;
    return td_jparse_at_word(p, "in") ||
           (*op == TD_JOP_NOT_IN && p->ahead.kind == TD_JT_NAME && td_jv_is_text(p->ahead.value, "in"));
}

static td_status push_op(td_jparse *p, td_jnode *node, td_jop op) {
    uint32_t n = node->compare.operands.n - 1; /* operators so far */
    if ((n & (n - 1)) == 0) {
        uint8_t *ops = td_jarena_alloc(&p->t->arena, n ? 2 * (size_t)n : 1, 1);
        if (!ops)
            return td_fail(p->err, p->t->arena.failed, "%s: out of memory for the template", p->t->name);
        if (n)
            memcpy(ops, node->compare.ops, n);
        node->compare.ops = ops;
    }
    node->compare.ops[n] = (uint8_t)op;
    return TD_OK;
}

static td_status parse_compare(td_jparse *p, td_jnode **out) {
    td_jnode *first, *node, *operand;
    td_jop op;
    TD_TRY(parse_arithmetic(p, 0, &first));
    *out = first;
    if (!comparison(p, &op))
        return TD_OK;
    TD_TRY(td_jparse_node(p, TD_JN_COMPARE, p->token.offset, &node));
    TD_TRY(push_child(p, node, &node->compare.operands, first));
    while (comparison(p, &op)) {
        TD_TRY(td_jparse_advance(p));
        if (op == TD_JOP_NOT_IN)
            TD_TRY(td_jparse_advance(p));
        TD_TRY(parse_arithmetic(p, 0, &operand));
        TD_TRY(push_op(p, node, op));
        TD_TRY(push_child(p, node, &node->compare.operands, operand));
    }
    *out = node;
    return TD_OK;
}

static td_status parse_not(td_jparse *p, td_jnode **out) {
    size_t offset = p->token.offset;
    bool negated;
    TD_TRY(td_jparse_skip_word(p, "not", &negated));
    if (!negated)
        return parse_compare(p, out);
    td_jnode *operand;
    TD_TRY(td_jparse_enter(p));
    TD_TRY(parse_not(p, &operand));
    td_jparse_leave(p);
    return new_unary(p, TD_JN_NOT, offset, operand, out);
}

static td_status parse_and(td_jparse *p, td_jnode **out) {
    TD_TRY(parse_not(p, out));
    for (;;) {
        size_t offset = p->token.offset;
        td_jnode *right;
        bool more;
        TD_TRY(td_jparse_skip_word(p, "and", &more));
        if (!more)
            return TD_OK;
        TD_TRY(parse_not(p, &right));
        TD_TRY(new_binary(p, TD_JN_AND, offset, *out, right, out));
    }
}

static td_status parse_or(td_jparse *p, td_jnode **out) {
    TD_TRY(parse_and(p, out));
    for (;;) {
        size_t offset = p->token.offset;
        td_jnode *right;
        bool more;
        TD_TRY(td_jparse_skip_word(p, "or", &more));
        if (!more)
            return TD_OK;
        TD_TRY(parse_and(p, &right));
        TD_TRY(new_binary(p, TD_JN_OR, offset, *out, right, out));
    }
}

enum { LEVEL_SUM, LEVEL_TILDE, LEVEL_PRODUCT, LEVEL_POWER, LEVEL_UNARY };

static bool operator_of_level(td_jtoken_kind kind, unsigned level, td_jop *op) {
    static const uint8_t ops[][3] = {
        {TD_JT_ADD, LEVEL_SUM, TD_JOP_ADD},
        {TD_JT_SUB, LEVEL_SUM, TD_JOP_SUB},
        {TD_JT_MUL, LEVEL_PRODUCT, TD_JOP_MUL},
        {TD_JT_DIV, LEVEL_PRODUCT, TD_JOP_DIV},
        {TD_JT_FLOORDIV, LEVEL_PRODUCT, TD_JOP_FLOORDIV},
        {TD_JT_MOD, LEVEL_PRODUCT, TD_JOP_MOD},
        {TD_JT_POW, LEVEL_POWER, TD_JOP_POW},
    };
    for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
        if (ops[i][0] == kind && ops[i][1] == level) {
            *op = ops[i][2];
            return true;
        }
    return false;
}

/* a ~ b ~ c as one list of operands. */
static td_status parse_tilde(td_jparse *p, td_jnode **out) {
    td_jnode *first, *node, *operand;
    TD_TRY(parse_arithmetic(p, LEVEL_PRODUCT, &first));
    *out = first;
    if (p->token.kind != TD_JT_TILDE)
        return TD_OK;
    TD_TRY(td_jparse_node(p, TD_JN_CONCAT, p->token.offset, &node));
    TD_TRY(push_child(p, node, &node->children, first));
    while (p->token.kind == TD_JT_TILDE) {
        TD_TRY(td_jparse_advance(p));
        TD_TRY(parse_arithmetic(p, LEVEL_PRODUCT, &operand));
        TD_TRY(push_child(p, node, &node->children, operand));
    }
    *out = node;
    return TD_OK;
}

static td_status parse_arithmetic(td_jparse *p, unsigned level, td_jnode **out) {
    if (level == LEVEL_TILDE)
        return parse_tilde(p, out);
    if (level == LEVEL_UNARY)
        return parse_unary(p, true, out);
    TD_TRY(parse_arithmetic(p, level + 1, out));
    td_jop op;
    while (operator_of_level(p->token.kind, level, &op)) {
        size_t offset = p->token.offset;
        td_jnode *right;
        TD_TRY(td_jparse_advance(p));
        TD_TRY(parse_arithmetic(p, level + 1, &right));
        TD_TRY(new_binary(p, TD_JN_BINARY, offset, *out, right, out));
        (*out)->op = (uint8_t)op;
    }
    return TD_OK;
}

/* ---- calls, filters, tests ---- */

static td_status parse_keyword(td_jparse *p, td_jnode *owner, td_jargs *args) {
    td_jnode *value;
    td_jv name = p->token.value;
    TD_TRY(td_jparse_advance(p));
    TD_TRY(td_jparse_advance(p)); /* '=' */
    TD_TRY(td_jparse_expression(p, &value));
    uint32_t n = args->named.n;
    if ((n & (n - 1)) == 0) {
        td_jv *names = td_jarena_alloc(&p->t->arena, n ? 2 * (size_t)n : 1, sizeof *names);
        if (!names)
            return td_fail(p->err, p->t->arena.failed, "%s: out of memory for the template", p->t->name);
        if (n)
            memcpy(names, args->names, n * sizeof *names);
        args->names = names;
    }
    args->names[n] = name;
    return push_child(p, owner, &args->named, value);
}

static td_status parse_argument(td_jparse *p, td_jnode *owner, td_jargs *args) {
    td_jnode *value;
    td_jtoken_kind kind = p->token.kind;
    if (kind == TD_JT_POW || (kind == TD_JT_MUL && !args->star)) {
        if (args->star_star)
            return td_jparse_unexpected(p, "')' after '**'");
        TD_TRY(td_jparse_advance(p));
        TD_TRY(td_jparse_expression(p, &value));
        *(kind == TD_JT_POW ? &args->star_star : &args->star) = value;
        return td_jparse_adopt(p, owner, value);
    }
    if (args->star_star)
        return td_jparse_unexpected(p, "')' after '**'");
    if (kind == TD_JT_NAME && p->ahead.kind == TD_JT_ASSIGN)
        return parse_keyword(p, owner, args);
    if (args->named.n || args->star)
        return td_jparse_unexpected(p, "a keyword argument, since one came before");
    TD_TRY(td_jparse_expression(p, &value));
    return push_child(p, owner, &args->positional, value);
}

/* "(...)". */
static td_status parse_arguments(td_jparse *p, td_jnode *owner, td_jargs *args) {
    bool more = true;
    TD_TRY(td_jparse_expect(p, TD_JT_LPAREN));
    while (p->token.kind != TD_JT_RPAREN) {
        if (!more)
            return td_jparse_unexpected(p, "',' or ')'");
        TD_TRY(parse_argument(p, owner, args));
        TD_TRY(td_jparse_skip(p, TD_JT_COMMA, &more));
    }
    return td_jparse_advance(p);
}

static td_status parse_call(td_jparse *p, td_jnode **node) {
    td_jnode *call;
    TD_TRY(td_jparse_node(p, TD_JN_CALL, p->token.offset, &call));
    call->apply.subject = *node;
    TD_TRY(td_jparse_adopt(p, call, *node));
    *node = call;
    return parse_arguments(p, call, &call->apply.args);
}

static td_status unknown_builtin(td_jparse *p, const td_jnode *node, const char *what) {
    if (p->conditions) /* Jinja2, too, fails only where it is reached */
        return TD_OK;
    return td_jparse_fail(p, node->offset, TD_E_UNSUPPORTED, "no %s named '%.*s'", what,
                          node->apply.name.size > 60 ? 60 : (int)node->apply.name.size, node->apply.name.text);
}

static td_status parse_filter(td_jparse *p, td_jnode **subject) {
    td_jnode *node;
    TD_TRY(td_jparse_node(p, TD_JN_FILTER, p->token.offset, &node));
    node->apply.subject = *subject;
    TD_TRY(td_jparse_adopt(p, node, *subject));
    TD_TRY(td_jparse_name(p, &node->apply.name));
    *subject = node;
    node->apply.builtin = td_jfilter_find(node->apply.name);
    if (!node->apply.builtin)
        TD_TRY(unknown_builtin(p, node, "filter"));
    return p->token.kind == TD_JT_LPAREN ? parse_arguments(p, node, &node->apply.args) : TD_OK;
}

td_status td_jparse_filters(td_jparse *p, td_jnode *subject, bool inline_first, td_jnode **out) {
    *out = subject;
    if (inline_first)
        TD_TRY(parse_filter(p, out));
    while (p->token.kind == TD_JT_PIPE) {
        TD_TRY(td_jparse_advance(p));
        TD_TRY(parse_filter(p, out));
    }
    return TD_OK;
}

static td_status parse_primary(td_jparse *p, td_jnode **out);

/* A test takes one argument without parentheses: "x is divisibleby 3". */
static bool at_bare_argument(const td_jparse *p) {
    static const char *const words[] = {"else", "or", "and", "if", "is", "in", "not", "recursive", NULL};
    switch (p->token.kind) {
    case TD_JT_NAME:
        for (size_t i = 0; words[i]; i++)
            if (td_jparse_at_word(p, words[i]))
                return false;
        return true;
    case TD_JT_STRING:
    case TD_JT_NUMBER:
    case TD_JT_LBRACKET:
    case TD_JT_LBRACE:
        return true;
    default:
        return false;
    }
}

static td_status parse_test(td_jparse *p, td_jnode **subject) {
    td_jnode *node, *argument;
    bool negated;
    TD_TRY(td_jparse_node(p, TD_JN_TEST, p->token.offset, &node));
    TD_TRY(td_jparse_advance(p)); /* 'is' */
    TD_TRY(td_jparse_skip_word(p, "not", &negated));
    node->op = negated;
    node->apply.subject = *subject;
    TD_TRY(td_jparse_adopt(p, node, *subject));
    node->offset = p->token.offset;
    TD_TRY(td_jparse_name(p, &node->apply.name));
    *subject = node;
    node->apply.builtin = td_jtest_find(node->apply.name);
    if (!node->apply.builtin)
        TD_TRY(unknown_builtin(p, node, "test"));
    if (p->token.kind == TD_JT_LPAREN)
        return parse_arguments(p, node, &node->apply.args);
    if (td_jparse_at_word(p, "is"))
        return td_jparse_unexpected(p, "no second 'is': tests do not chain");
    if (!at_bare_argument(p))
        return TD_OK;
    TD_TRY(parse_primary(p, &argument));
    TD_TRY(parse_postfix(p, &argument));
    return push_child(p, node, &node->apply.args.positional, argument);
}

/* ---- postfix ---- */

static td_status parse_slice_part(td_jparse *p, td_jnode *slice, td_jnode **part) {
    if (p->token.kind == TD_JT_COLON || p->token.kind == TD_JT_RBRACKET)
        return TD_OK;
    TD_TRY(td_jparse_expression(p, part));
    return td_jparse_adopt(p, slice, *part);
}

/* "a:b:c]" after "[", when `first` (or nothing) has been read up to its ':'. */
static td_status parse_slice(td_jparse *p, size_t offset, td_jnode *object, td_jnode *first, td_jnode **out) {
    td_jnode *node;
    bool step;
    TD_TRY(td_jparse_node(p, TD_JN_SLICE, offset, &node));
    node->slice.object = object;
    node->slice.start = first;
    TD_TRY(td_jparse_adopt(p, node, object));
    TD_TRY(td_jparse_adopt(p, node, first));
    TD_TRY(td_jparse_expect(p, TD_JT_COLON));
    TD_TRY(parse_slice_part(p, node, &node->slice.stop));
    TD_TRY(td_jparse_skip(p, TD_JT_COLON, &step));
    if (step)
        TD_TRY(parse_slice_part(p, node, &node->slice.step));
    *out = node;
    return td_jparse_expect(p, TD_JT_RBRACKET);
}

static td_status new_subscript(td_jparse *p, size_t offset, td_jnode *object, td_jnode *key, td_jnode **out) {
    td_jnode *node;
    TD_TRY(td_jparse_node(p, TD_JN_SUBSCRIPT, offset, &node));
    node->subscript.object = object;
    node->subscript.key = key;
    TD_TRY(td_jparse_adopt(p, node, object));
    TD_TRY(td_jparse_adopt(p, node, key));
    *out = node;
    return TD_OK;
}

static td_status parse_subscript(td_jparse *p, td_jnode **node) {
    size_t offset = p->token.offset;
    td_jnode *key = NULL;
    TD_TRY(td_jparse_advance(p)); /* '[' */
    if (p->token.kind != TD_JT_COLON)
        TD_TRY(td_jparse_tuple(p, 0, &key));
    if (p->token.kind == TD_JT_COLON)
        return parse_slice(p, offset, *node, key, node);
    TD_TRY(td_jparse_expect(p, TD_JT_RBRACKET));
    return new_subscript(p, offset, *node, key, node);
}

static td_status parse_dot(td_jparse *p, td_jnode **node) {
    td_jnode *made;
    TD_TRY(td_jparse_advance(p)); /* '.' */
    size_t offset = p->token.offset;
    if (p->token.kind == TD_JT_NUMBER && p->token.value.kind == TD_J_INT) { /* list.0 */
        TD_TRY(td_jparse_node(p, TD_JN_LITERAL, offset, &made));
        made->literal = p->token.value;
        TD_TRY(td_jparse_advance(p));
        return new_subscript(p, offset, *node, made, node);
    }
    TD_TRY(td_jparse_node(p, TD_JN_ATTRIBUTE, offset, &made));
    made->attribute.object = *node;
    TD_TRY(td_jparse_adopt(p, made, *node));
    *node = made;
    return td_jparse_name(p, &made->attribute.name);
}

static td_status parse_postfix(td_jparse *p, td_jnode **node) {
    for (;;) {
        if (p->token.kind == TD_JT_DOT)
            TD_TRY(parse_dot(p, node));
        else if (p->token.kind == TD_JT_LBRACKET)
            TD_TRY(parse_subscript(p, node));
        else if (p->token.kind == TD_JT_LPAREN)
            TD_TRY(parse_call(p, node));
        else
            return TD_OK;
    }
}

static td_status parse_filters_and_tests(td_jparse *p, td_jnode **node) {
    for (;;) {
        if (p->token.kind == TD_JT_PIPE)
            TD_TRY(td_jparse_filters(p, *node, false, node));
        else if (td_jparse_at_word(p, "is"))
            TD_TRY(parse_test(p, node));
        else if (p->token.kind == TD_JT_LPAREN)
            TD_TRY(parse_call(p, node));
        else
            return TD_OK;
    }
}

static td_status parse_unary(td_jparse *p, bool with_filters, td_jnode **out) {
    size_t offset = p->token.offset;
    td_jtoken_kind kind = p->token.kind;
    if (kind == TD_JT_SUB || kind == TD_JT_ADD) {
        td_jnode *operand;
        TD_TRY(td_jparse_enter(p));
        TD_TRY(td_jparse_advance(p));
        TD_TRY(parse_unary(p, false, &operand));
        td_jparse_leave(p);
        TD_TRY(new_unary(p, kind == TD_JT_SUB ? TD_JN_NEGATE : TD_JN_PLUS, offset, operand, out));
    } else {
        TD_TRY(parse_primary(p, out));
    }
    TD_TRY(parse_postfix(p, out));
    return with_filters ? parse_filters_and_tests(p, out) : TD_OK;
}

/* ---- primaries ---- */

static td_status new_literal(td_jparse *p, size_t offset, td_jv value, td_jnode **out) {
    TD_TRY(td_jparse_node(p, TD_JN_LITERAL, offset, out));
    (*out)->literal = value;
    return TD_OK;
}

/* Neighbouring strings are one string. */
static td_status parse_string(td_jparse *p, td_jnode **out) {
    td_jv text = p->token.value;
    TD_TRY(new_literal(p, p->token.offset, text, out));
    TD_TRY(td_jparse_advance(p));
    size_t room = text.size;
    while (p->token.kind == TD_JT_STRING) {
        td_jv next = p->token.value;
        if (room - text.size < next.size || text.text == (*out)->literal.text) {
            room = 2 * (text.size + next.size) + 16;
            char *grown = td_jarena_alloc(&p->t->arena, room, 1);
            if (!grown)
                return td_fail(p->err, p->t->arena.failed, "%s: out of memory for the template", p->t->name);
            memcpy(grown, text.text, text.size);
            text.text = grown;
        }
        memcpy((char *)text.text + text.size, next.text, next.size);
        text.size += next.size;
        TD_TRY(td_jparse_advance(p));
    }
    (*out)->literal = text;
    return TD_OK;
}

static bool is_constant(td_jv word, td_jv *value) {
    static const struct {
        const char *word;
        td_jv value;
    } constants[] = {
        {"true", {.kind = TD_J_BOOL, .boolean = true}},
        {"True", {.kind = TD_J_BOOL, .boolean = true}},
        {"false", {.kind = TD_J_BOOL, .boolean = false}},
        {"False", {.kind = TD_J_BOOL, .boolean = false}},
        {"none", {.kind = TD_J_NONE}},
        {"None", {.kind = TD_J_NONE}},
    };
    for (size_t i = 0; i < sizeof constants / sizeof constants[0]; i++)
        if (td_jv_is_text(word, constants[i].word)) {
            *value = constants[i].value;
            return true;
        }
    return false;
}

static td_status new_name(td_jparse *p, td_jnode **out) {
    TD_TRY(td_jparse_node(p, TD_JN_NAME, p->token.offset, out));
    TD_TRY(td_jparse_symbol(p, p->token.value, &(*out)->symbol));
    return td_jparse_advance(p);
}

static td_status parse_word(td_jparse *p, td_jnode **out) {
    td_jv word = p->token.value, constant;
    if (is_constant(word, &constant)) {
        TD_TRY(new_literal(p, p->token.offset, constant, out));
        return td_jparse_advance(p);
    }
    TD_TRY(new_name(p, out));
    p->t->symbols.at[(*out)->symbol].read = true;
    if (p->macro) {
        p->macro->caller |= td_jv_is_text(word, "caller");
        p->macro->varargs |= td_jv_is_text(word, "varargs");
        p->macro->kwargs |= td_jv_is_text(word, "kwargs");
    }
    return TD_OK;
}

static td_status parse_list(td_jparse *p, td_jnode **out) {
    bool more = true;
    TD_TRY(td_jparse_node(p, TD_JN_LIST, p->token.offset, out));
    TD_TRY(td_jparse_advance(p));
    while (p->token.kind != TD_JT_RBRACKET) {
        td_jnode *item;
        if (!more)
            return td_jparse_unexpected(p, "',' or ']'");
        TD_TRY(td_jparse_expression(p, &item));
        TD_TRY(push_child(p, *out, &(*out)->children, item));
        TD_TRY(td_jparse_skip(p, TD_JT_COMMA, &more));
    }
    return td_jparse_advance(p);
}

static td_status parse_dict(td_jparse *p, td_jnode **out) {
    bool more = true;
    TD_TRY(td_jparse_node(p, TD_JN_DICT, p->token.offset, out));
    TD_TRY(td_jparse_advance(p));
    while (p->token.kind != TD_JT_RBRACE) {
        td_jnode *key, *value;
        if (!more)
            return td_jparse_unexpected(p, "',' or '}'");
        TD_TRY(td_jparse_expression(p, &key));
        TD_TRY(td_jparse_expect(p, TD_JT_COLON));
        TD_TRY(td_jparse_expression(p, &value));
        TD_TRY(push_child(p, *out, &(*out)->children, key));
        TD_TRY(push_child(p, *out, &(*out)->children, value));
        TD_TRY(td_jparse_skip(p, TD_JT_COMMA, &more));
    }
    return td_jparse_advance(p);
}

static td_status parse_primary(td_jparse *p, td_jnode **out) {
    switch (p->token.kind) {
    case TD_JT_NAME:
        return parse_word(p, out);
    case TD_JT_STRING:
        return parse_string(p, out);
    case TD_JT_NUMBER:
        TD_TRY(new_literal(p, p->token.offset, p->token.value, out));
        return td_jparse_advance(p);
    case TD_JT_LPAREN:
        TD_TRY(td_jparse_advance(p));
        TD_TRY(td_jparse_tuple(p, TD_JEXPR_PARENTHESES, out));
        return td_jparse_expect(p, TD_JT_RPAREN);
    case TD_JT_LBRACKET:
        return parse_list(p, out);
    case TD_JT_LBRACE:
        return parse_dict(p, out);
    default:
        return td_jparse_unexpected(p, "an expression");
    }
}

static bool at_tuple_end(const td_jparse *p, unsigned flags) {
    switch (p->token.kind) {
    case TD_JT_PRINT_END:
    case TD_JT_BLOCK_END:
    case TD_JT_RPAREN:
    case TD_JT_RBRACKET:
    case TD_JT_END:
        return true;
    default:
        return (flags & TD_JEXPR_OF_LOOP) && td_jparse_at_word(p, "recursive");
    }
}

static td_status parse_tuple_item(td_jparse *p, unsigned flags, td_jnode **out) {
    if (!(flags & TD_JEXPR_NO_CONDITIONAL))
        return td_jparse_expression(p, out);
    TD_TRY(td_jparse_enter(p));
    TD_TRY(parse_or(p, out));
    td_jparse_leave(p);
    return TD_OK;
}

/* One expression, or several with commas between them: a tuple, as is a single one followed by a comma. */
td_status td_jparse_tuple(td_jparse *p, unsigned flags, td_jnode **out) {
    size_t offset = p->token.offset;
    td_jnode *first = NULL, *tuple;
    if (!at_tuple_end(p, flags))
        TD_TRY(parse_tuple_item(p, flags, &first));
    else if (!(flags & TD_JEXPR_PARENTHESES))
        return td_jparse_unexpected(p, "an expression");
    *out = first;
    if (first && p->token.kind != TD_JT_COMMA)
        return TD_OK;
    TD_TRY(td_jparse_node(p, TD_JN_TUPLE, offset, &tuple));
    *out = tuple;
    if (!first)
        return TD_OK;
    TD_TRY(push_child(p, tuple, &tuple->children, first));
    while (p->token.kind == TD_JT_COMMA) {
        td_jnode *item;
        TD_TRY(td_jparse_advance(p));
        if (at_tuple_end(p, flags))
            break;
        TD_TRY(parse_tuple_item(p, flags, &item));
        TD_TRY(push_child(p, tuple, &tuple->children, item));
    }
    return TD_OK;
}

/* ---- what can be assigned to ---- */

static td_status parse_target_item(td_jparse *p, bool namespaces, td_jnode **out) {
    td_jv constant;
    if (p->token.kind == TD_JT_LPAREN) {
        TD_TRY(td_jparse_enter(p));
        TD_TRY(td_jparse_advance(p));
        TD_TRY(td_jparse_target(p, namespaces, out));
        td_jparse_leave(p);
        return td_jparse_expect(p, TD_JT_RPAREN);
    }
    if (p->token.kind != TD_JT_NAME)
        return td_jparse_unexpected(p, "a name to assign to");
    if (is_constant(p->token.value, &constant))
        return td_jparse_unexpected(p, "a name to assign to, not a constant");
    TD_TRY(new_name(p, out));
    if (!namespaces || p->token.kind != TD_JT_DOT)
        return TD_OK;
    uint32_t symbol = (*out)->symbol;
    (*out)->kind = TD_JN_NAMESPACE_REF;
    TD_TRY(td_jparse_advance(p));
    (*out)->namespace_ref.symbol = symbol;
    return td_jparse_name(p, &(*out)->namespace_ref.attribute);
}

td_status td_jparse_target(td_jparse *p, bool namespaces, td_jnode **out) {
    size_t offset = p->token.offset;
    td_jnode *tuple;
    TD_TRY(parse_target_item(p, namespaces, out));
    if (p->token.kind != TD_JT_COMMA)
        return TD_OK;
    TD_TRY(td_jparse_node(p, TD_JN_TUPLE, offset, &tuple));
    TD_TRY(push_child(p, tuple, &tuple->children, *out));
    *out = tuple;
    while (p->token.kind == TD_JT_COMMA) {
        td_jnode *item;
        TD_TRY(td_jparse_advance(p));
        if (p->token.kind == TD_JT_ASSIGN || td_jparse_at_word(p, "in") || at_tuple_end(p, 0))
            break;
        TD_TRY(parse_target_item(p, namespaces, &item));
        TD_TRY(push_child(p, tuple, &tuple->children, item));
    }
    return TD_OK;
}
