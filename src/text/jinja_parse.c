/* jinja_parse.c - tokens to syntax tree: statements. Expressions are in jinja_parse_expr.c.
 *
 * Recursive descent with one token of look-ahead. Two limits keep later recursion bounded: `depth` bounds the parser's
 * own, and the height kept in every node bounds that of everything that walks the tree. Long flat shapes (a body of
 * ten thousand prints, an elif chain, a ~ b ~ c ~ ...) are lists and have no height. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "text/jinja_internal.h"

/* ---- errors and small steps, used by both files ---- */

static void place(const td_jinja *t, size_t offset, unsigned *line, unsigned *column) {
    *line = *column = 1;
    for (size_t i = 0; i < offset && i < t->size; i++) {
        if (t->source[i] == '\n') {
            ++*line;
            *column = 1;
        } else if ((t->source[i] & 0xc0) != 0x80) {
            ++*column;
        }
    }
}

td_status td_jinja_fail(const td_jinja *t, size_t offset, td_status status, td_error *err, const char *fmt, ...) {
    char message[sizeof err->message];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    unsigned line, column;
    place(t, offset, &line, &column);
    return td_fail_at(err, status, (int64_t)offset, "%s:%u:%u: %s", t->name, line, column, message);
}

td_status td_jparse_fail(td_jparse *p, size_t offset, td_status status, const char *fmt, ...) {
    char message[sizeof p->err->message];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    return td_jinja_fail(p->t, offset, status, p->err, "%s", message);
}

static td_status parse_nomem(td_jparse *p) {
    return td_fail(p->err, p->t->arena.failed, "%s: out of memory for the template", p->t->name);
}

td_status td_jparse_unexpected(td_jparse *p, const char *expected) {
    const td_jtoken *t = &p->token;
    if (t->kind == TD_JT_NAME || t->kind == TD_JT_NUMBER)
        return td_jparse_fail(p, t->offset, TD_E_FORMAT, "unexpected '%.*s', expected %s",
                              t->size > 60 ? 60 : (int)t->size, p->t->source + t->offset, expected);
    return td_jparse_fail(p, t->offset, TD_E_FORMAT, "unexpected %s, expected %s", td_jtoken_kind_text(t->kind),
                          expected);
}

td_status td_jparse_enter(td_jparse *p) {
    if (p->depth == TD_JINJA_MAX_NESTING)
        return td_jparse_fail(p, p->token.offset, TD_E_LIMIT, "nested deeper than %d levels", TD_JINJA_MAX_NESTING);
    p->depth++;
    return TD_OK;
}

void td_jparse_leave(td_jparse *p) {
    p->depth--;
}

td_status td_jparse_advance(td_jparse *p) {
    p->token = p->ahead;
    return p->ahead.kind == TD_JT_END ? TD_OK : td_jlex_next(&p->lex, &p->ahead);
}

static bool is_word(const td_jtoken *t, const char *word) {
    return t->kind == TD_JT_NAME && td_jv_is_text(t->value, word);
}

bool td_jparse_at_word(const td_jparse *p, const char *word) {
    return is_word(&p->token, word);
}

td_status td_jparse_skip(td_jparse *p, td_jtoken_kind kind, bool *skipped) {
    *skipped = p->token.kind == kind;
    return *skipped ? td_jparse_advance(p) : TD_OK;
}

td_status td_jparse_skip_word(td_jparse *p, const char *word, bool *skipped) {
    *skipped = td_jparse_at_word(p, word);
    return *skipped ? td_jparse_advance(p) : TD_OK;
}

td_status td_jparse_expect(td_jparse *p, td_jtoken_kind kind) {
    return p->token.kind == kind ? td_jparse_advance(p) : td_jparse_unexpected(p, td_jtoken_kind_text(kind));
}

td_status td_jparse_name(td_jparse *p, td_jv *name) {
    if (p->token.kind != TD_JT_NAME)
        return td_jparse_unexpected(p, "a name");
    *name = p->token.value;
    return td_jparse_advance(p);
}

static td_status expect_word(td_jparse *p, const char *word) {
    char expected[40];
    snprintf(expected, sizeof expected, "'%s'", word);
    return td_jparse_at_word(p, word) ? td_jparse_advance(p) : td_jparse_unexpected(p, expected);
}

/* ---- building nodes ---- */

td_status td_jparse_node(td_jparse *p, td_jnode_kind kind, size_t offset, td_jnode **out) {
    *out = NULL;
    td_jnode *node = td_jarena_alloc(&p->t->arena, 1, sizeof *node);
    if (!node)
        return parse_nomem(p);
    *node = (td_jnode){.kind = (uint8_t)kind, .height = 1, .offset = (uint32_t)offset};
    *out = node;
    return TD_OK;
}

td_status td_jparse_adopt(td_jparse *p, td_jnode *parent, const td_jnode *child) {
    if (!child || child->height < parent->height)
        return TD_OK;
    if (child->height >= TD_JINJA_MAX_NESTING)
        return td_jparse_fail(p, parent->offset, TD_E_LIMIT, "nested deeper than %d levels", TD_JINJA_MAX_NESTING);
    parent->height = (uint16_t)(child->height + 1);
    return TD_OK;
}

/* Lists grow at powers of two, so a count needs no capacity beside it. */
td_status td_jparse_push(td_jparse *p, td_jnodes *list, td_jnode *node) {
    if ((list->n & (list->n - 1)) == 0) {
        td_jnode **at = td_jarena_alloc(&p->t->arena, list->n ? 2 * (size_t)list->n : 1, sizeof *at);
        if (!at)
            return parse_nomem(p);
        if (list->n)
            memcpy(at, list->at, list->n * sizeof *at);
        list->at = at;
    }
    list->at[list->n++] = node;
    return TD_OK;
}

static td_status grow_symbols(td_jparse *p) {
    td_jsymbols *s = &p->t->symbols;
    uint32_t capacity = s->capacity ? s->capacity * 2 : 32;
    td_jsymbol *at = td_jarena_alloc(&p->t->arena, capacity, sizeof *at);
    uint32_t *slots = td_jarena_alloc(&p->t->arena, 2 * (size_t)capacity, sizeof *slots);
    if (!at || !slots)
        return parse_nomem(p);
    if (s->n)
        memcpy(at, s->at, s->n * sizeof *at);
    memset(slots, 0, 2 * (size_t)capacity * sizeof *slots);
    s->at = at;
    s->slots = slots;
    s->capacity = capacity;
    s->n_slots = 2 * capacity;
    for (uint32_t i = 0; i < s->n; i++) {
        uint32_t slot = (uint32_t)at[i].hash & (s->n_slots - 1);
        while (slots[slot])
            slot = (slot + 1) & (s->n_slots - 1);
        slots[slot] = i + 1;
    }
    return TD_OK;
}

td_status td_jparse_symbol(td_jparse *p, td_jv name, uint32_t *symbol) {
    td_jsymbols *s = &p->t->symbols;
    if (s->n == s->capacity)
        TD_TRY(grow_symbols(p));
    uint64_t hash = td_jhash_text(name);
    uint32_t slot = (uint32_t)hash & (s->n_slots - 1);
    for (; s->slots[slot]; slot = (slot + 1) & (s->n_slots - 1)) {
        const td_jsymbol *known = &s->at[s->slots[slot] - 1];
        if (known->hash == hash && known->name.size == name.size && !memcmp(known->name.text, name.text, name.size)) {
            *symbol = s->slots[slot] - 1;
            return TD_OK;
        }
    }
    char *text = td_jarena_alloc(&p->t->arena, name.size + 1, 1);
    if (!text)
        return parse_nomem(p);
    memcpy(text, name.text, name.size);
    text[name.size] = '\0';
    s->at[s->n] = (td_jsymbol){.name = td_jv_text(text, name.size), .hash = hash};
    s->slots[slot] = *symbol = s->n++;
    s->slots[slot]++;
    return TD_OK;
}

/* ---- statements ---- */

static td_status parse_body(td_jparse *p, const char *const *ends, td_jnode *owner, td_jnode **out);

/* The rest of a block tag, the body, and the opening of the tag that ends it: one of `ends`. */
static td_status parse_block(td_jparse *p, const char *const *ends, td_jnode *owner, td_jnode **body) {
    bool colon;
    TD_TRY(td_jparse_skip(p, TD_JT_COLON, &colon)); /* allowed, as in Python */
    TD_TRY(td_jparse_expect(p, TD_JT_BLOCK_END));
    TD_TRY(parse_body(p, ends, owner, body));
    return td_jparse_adopt(p, owner, *body);
}

static td_status parse_simple_block(td_jparse *p, const char *end, td_jnode *owner, td_jnode **body) {
    const char *const ends[] = {end, NULL};
    TD_TRY(parse_block(p, ends, owner, body));
    return td_jparse_advance(p); /* past the end word */
}

static td_status parse_if(td_jparse *p, td_jnode **out) {
    static const char *const ends[] = {"elif", "else", "endif", NULL};
    td_jnode *node = *out;
    node->kind = TD_JN_IF;
    p->conditions++;
    for (bool more = true; more;) {
        td_jnode *test, *body;
        TD_TRY(td_jparse_tuple(p, TD_JEXPR_NO_CONDITIONAL, &test));
        TD_TRY(parse_block(p, ends, node, &body));
        TD_TRY(td_jparse_adopt(p, node, test));
        TD_TRY(td_jparse_push(p, &node->branch.tests, test));
        TD_TRY(td_jparse_push(p, &node->branch.bodies, body));
        TD_TRY(td_jparse_skip_word(p, "elif", &more));
    }
    bool otherwise;
    TD_TRY(td_jparse_skip_word(p, "else", &otherwise));
    if (otherwise)
        TD_TRY(parse_simple_block(p, "endif", node, &node->branch.otherwise));
    else
        TD_TRY(expect_word(p, "endif"));
    p->conditions--;
    return TD_OK;
}

static td_status parse_for(td_jparse *p, td_jnode **out) {
    static const char *const ends[] = {"else", "endfor", NULL};
    td_jnode *node = *out;
    node->kind = TD_JN_FOR;
    TD_TRY(td_jparse_target(p, false, &node->loop.target));
    TD_TRY(expect_word(p, "in"));
    TD_TRY(td_jparse_tuple(p, TD_JEXPR_NO_CONDITIONAL | TD_JEXPR_OF_LOOP, &node->loop.items));
    bool filtered, otherwise;
    TD_TRY(td_jparse_skip_word(p, "if", &filtered));
    if (filtered)
        TD_TRY(td_jparse_expression(p, &node->loop.filter));
    TD_TRY(td_jparse_skip_word(p, "recursive", &node->loop.recursive));
    TD_TRY(td_jparse_adopt(p, node, node->loop.target));
    TD_TRY(td_jparse_adopt(p, node, node->loop.items));
    TD_TRY(td_jparse_adopt(p, node, node->loop.filter));
    p->loops++;
    TD_TRY(parse_block(p, ends, node, &node->loop.body));
    p->loops--;
    TD_TRY(td_jparse_skip_word(p, "else", &otherwise));
    if (otherwise)
        return parse_simple_block(p, "endfor", node, &node->loop.otherwise);
    return expect_word(p, "endfor");
}

static td_status parse_set(td_jparse *p, td_jnode **out) {
    td_jnode *node = *out, *piped;
    TD_TRY(td_jparse_target(p, true, &node->set.target));
    TD_TRY(td_jparse_adopt(p, node, node->set.target));
    bool assign;
    TD_TRY(td_jparse_skip(p, TD_JT_ASSIGN, &assign));
    if (assign) {
        node->kind = TD_JN_SET;
        TD_TRY(td_jparse_tuple(p, 0, &node->set.value));
        return td_jparse_adopt(p, node, node->set.value);
    }
    if (p->token.kind != TD_JT_PIPE && p->token.kind != TD_JT_BLOCK_END)
        return td_jparse_unexpected(p, "'=' or '%}'");
    node->kind = TD_JN_SET_BLOCK;
    TD_TRY(td_jparse_node(p, TD_JN_PIPED, node->offset, &piped));
    TD_TRY(td_jparse_filters(p, piped, false, &node->set.value));
    TD_TRY(td_jparse_adopt(p, node, node->set.value));
    return parse_simple_block(p, "endset", node, &node->set.body);
}

static td_status parse_filter_block(td_jparse *p, td_jnode **out) {
    td_jnode *node = *out, *piped;
    node->kind = TD_JN_FILTER_BLOCK;
    TD_TRY(td_jparse_node(p, TD_JN_PIPED, node->offset, &piped));
    TD_TRY(td_jparse_filters(p, piped, true, &node->set.value));
    TD_TRY(td_jparse_adopt(p, node, node->set.value));
    return parse_simple_block(p, "endfilter", node, &node->set.body);
}

/* "(a, b=1)" of a macro or call block. */
static td_status parse_signature(td_jparse *p, td_jnode *owner, td_jmacro_def *def) {
    td_jnodes defaults = {0}, names = {0}; /* names only as a growing list */
    bool more = true;
    TD_TRY(td_jparse_expect(p, TD_JT_LPAREN));
    while (p->token.kind != TD_JT_RPAREN) {
        if (!more)
            return td_jparse_unexpected(p, "',' or ')'");
        td_jnode *name, *value = NULL;
        td_jv text;
        bool assign;
        TD_TRY(td_jparse_node(p, TD_JN_NAME, p->token.offset, &name));
        TD_TRY(td_jparse_name(p, &text));
        TD_TRY(td_jparse_symbol(p, text, &name->symbol));
        TD_TRY(td_jparse_skip(p, TD_JT_ASSIGN, &assign));
        if (assign)
            TD_TRY(td_jparse_expression(p, &value));
        else if (defaults.n && defaults.at[defaults.n - 1])
            return td_jparse_fail(p, name->offset, TD_E_FORMAT, "a parameter without a default follows one with");
        TD_TRY(td_jparse_adopt(p, owner, value));
        TD_TRY(td_jparse_push(p, &names, name));
        TD_TRY(td_jparse_push(p, &defaults, value));
        TD_TRY(td_jparse_skip(p, TD_JT_COMMA, &more));
    }
    TD_TRY(td_jparse_advance(p));
    def->parameters = td_jarena_alloc(&p->t->arena, names.n, sizeof *def->parameters);
    if (!def->parameters)
        return parse_nomem(p);
    for (uint32_t i = 0; i < names.n; i++)
        def->parameters[i] = names.at[i]->symbol;
    def->defaults = defaults.at;
    def->n_parameters = names.n;
    return TD_OK;
}

/* The body of a macro or call block; notes which of the names caller, varargs and kwargs it reads. */
static td_status parse_macro_body(td_jparse *p, const char *end, td_jnode *node, td_jmacro_def *def) {
    struct td_jmacro_open open = {.outer = p->macro};
    unsigned loops = p->loops;
    p->macro = &open;
    p->loops = 0; /* a break inside cannot leave a loop outside */
    TD_TRY(parse_simple_block(p, end, node, &def->body));
    p->macro = open.outer;
    p->loops = loops;
    def->takes_caller = open.caller;
    def->takes_varargs = open.varargs;
    def->takes_kwargs = open.kwargs;
    if (open.outer) {
        open.outer->caller |= open.caller;
        open.outer->varargs |= open.varargs;
        open.outer->kwargs |= open.kwargs;
    }
    return TD_OK;
}

static td_status new_macro(td_jparse *p, td_jnode *node, td_jnode_kind kind) {
    node->kind = (uint8_t)kind;
    node->macro.def = td_jarena_alloc(&p->t->arena, 1, sizeof *node->macro.def);
    if (!node->macro.def)
        return parse_nomem(p);
    *node->macro.def = (td_jmacro_def){.name = td_jv_literal("caller")};
    return TD_OK;
}

static td_status parse_macro(td_jparse *p, td_jnode **out) {
    td_jnode *node = *out;
    TD_TRY(new_macro(p, node, TD_JN_MACRO));
    td_jmacro_def *def = node->macro.def;
    TD_TRY(td_jparse_name(p, &def->name));
    TD_TRY(td_jparse_symbol(p, def->name, &node->macro.symbol));
    TD_TRY(parse_signature(p, node, def));
    return parse_macro_body(p, "endmacro", node, def);
}

static td_status parse_call_block(td_jparse *p, td_jnode **out) {
    td_jnode *node = *out;
    TD_TRY(new_macro(p, node, TD_JN_CALL_BLOCK));
    if (p->token.kind == TD_JT_LPAREN)
        TD_TRY(parse_signature(p, node, node->macro.def));
    TD_TRY(td_jparse_expression(p, &node->macro.call));
    if (node->macro.call->kind != TD_JN_CALL)
        return td_jparse_fail(p, node->offset, TD_E_FORMAT, "a call block needs a call, as in {%% call name() %%}");
    TD_TRY(td_jparse_adopt(p, node, node->macro.call));
    return parse_macro_body(p, "endcall", node, node->macro.def);
}

static td_status parse_with(td_jparse *p, td_jnode **out) {
    td_jnode *node = *out;
    node->kind = TD_JN_WITH;
    while (p->token.kind != TD_JT_BLOCK_END) {
        td_jnode *target, *value;
        if (node->with.targets.n)
            TD_TRY(td_jparse_expect(p, TD_JT_COMMA));
        TD_TRY(td_jparse_target(p, false, &target));
        TD_TRY(td_jparse_expect(p, TD_JT_ASSIGN));
        TD_TRY(td_jparse_expression(p, &value));
        TD_TRY(td_jparse_adopt(p, node, value));
        TD_TRY(td_jparse_push(p, &node->with.targets, target));
        TD_TRY(td_jparse_push(p, &node->with.values, value));
    }
    return parse_simple_block(p, "endwith", node, &node->with.body);
}

static td_status parse_generation(td_jparse *p, td_jnode **out) {
    (*out)->kind = TD_JN_SCOPE;
    return parse_simple_block(p, "endgeneration", *out, &(*out)->operand);
}

static td_status parse_do(td_jparse *p, td_jnode **out) {
    (*out)->kind = TD_JN_DO;
    TD_TRY(td_jparse_tuple(p, 0, &(*out)->operand));
    return td_jparse_adopt(p, *out, (*out)->operand);
}

static td_status parse_loop_control(td_jparse *p, td_jnode **out, td_jnode_kind kind) {
    (*out)->kind = (uint8_t)kind;
    if (!p->loops)
        return td_jparse_fail(p, (*out)->offset, TD_E_FORMAT, "'%s' outside of a loop",
                              kind == TD_JN_BREAK ? "break" : "continue");
    return TD_OK;
}

static td_status parse_break(td_jparse *p, td_jnode **out) {
    return parse_loop_control(p, out, TD_JN_BREAK);
}

static td_status parse_continue(td_jparse *p, td_jnode **out) {
    return parse_loop_control(p, out, TD_JN_CONTINUE);
}

static td_status parse_unsupported(td_jparse *p, td_jnode **out) {
    return td_jparse_fail(p, (*out)->offset, TD_E_UNSUPPORTED,
                          "chat templates stand alone: extends, include, import, from, block and autoescape are not "
                          "supported");
}

static const struct {
    const char *word;
    td_status (*parse)(td_jparse *p, td_jnode **out); /* *out: the node, made; the word has been read */
} statements[] = {
    {"if", parse_if},
    {"for", parse_for},
    {"set", parse_set},
    {"macro", parse_macro},
    {"call", parse_call_block},
    {"filter", parse_filter_block},
    {"with", parse_with},
    {"generation", parse_generation},
    {"do", parse_do},
    {"break", parse_break},
    {"continue", parse_continue},
    {"extends", parse_unsupported},
    {"include", parse_unsupported},
    {"import", parse_unsupported},
    {"from", parse_unsupported},
    {"block", parse_unsupported},
    {"autoescape", parse_unsupported},
};

static td_status parse_statement(td_jparse *p, td_jnode **out) {
    td_jtoken word = p->token;
    if (word.kind != TD_JT_NAME)
        return td_jparse_unexpected(p, "the name of a block");
    TD_TRY(td_jparse_node(p, TD_JN_BODY, word.offset, out));
    for (size_t i = 0; i < sizeof statements / sizeof statements[0]; i++) {
        if (!is_word(&word, statements[i].word))
            continue;
        TD_TRY(td_jparse_enter(p));
        TD_TRY(td_jparse_advance(p));
        TD_TRY(statements[i].parse(p, out));
        td_jparse_leave(p);
        return td_jparse_expect(p, TD_JT_BLOCK_END);
    }
    return td_jparse_fail(p, word.offset, TD_E_FORMAT, "unknown block '%.*s'", word.size > 60 ? 60 : (int)word.size,
                          word.value.text);
}

static bool at_one_of(const td_jparse *p, const char *const *words) {
    for (; words && *words; words++)
        if (td_jparse_at_word(p, *words))
            return true;
    return false;
}

/* The body ended where none of its end words stood. */
static td_status missing_end(td_jparse *p, const char *const *ends, const td_jnode *owner) {
    const char *last = NULL;
    for (; *ends; ends++)
        last = *ends;
    unsigned line, column;
    place(p->t, owner->offset, &line, &column);
    char expected[100];
    snprintf(expected, sizeof expected, "'%s' for the block of line %u, column %u", last, line, column);
    return td_jparse_unexpected(p, expected);
}

static bool is_end_word(const td_jparse *p) {
    return p->token.kind == TD_JT_NAME && p->token.size > 3 &&
           (!memcmp(p->token.value.text, "end", 3) || is_word(&p->token, "else") || is_word(&p->token, "elif"));
}

static td_status parse_print(td_jparse *p, td_jnode **out) {
    TD_TRY(td_jparse_node(p, TD_JN_PRINT, p->token.offset, out));
    TD_TRY(td_jparse_advance(p));
    TD_TRY(td_jparse_tuple(p, 0, &(*out)->operand));
    TD_TRY(td_jparse_adopt(p, *out, (*out)->operand));
    return td_jparse_expect(p, TD_JT_PRINT_END);
}

static td_status parse_text(td_jparse *p, td_jnode **out) {
    TD_TRY(td_jparse_node(p, TD_JN_TEXT, p->token.offset, out));
    (*out)->literal = p->token.value;
    return td_jparse_advance(p);
}

/* Up to a tag that opens with one of `ends` (left as the current token), or, with none, to the end of the source. */
static td_status parse_body(td_jparse *p, const char *const *ends, td_jnode *owner, td_jnode **out) {
    td_jnode *body, *child;
    TD_TRY(td_jparse_node(p, TD_JN_BODY, p->token.offset, &body));
    for (;;) {
        if (p->token.kind == TD_JT_END) {
            *out = body;
            return ends ? missing_end(p, ends, owner) : TD_OK;
        }
        if (p->token.kind == TD_JT_DATA) {
            TD_TRY(parse_text(p, &child));
        } else if (p->token.kind == TD_JT_PRINT_BEGIN) {
            TD_TRY(parse_print(p, &child));
        } else {
            TD_TRY(td_jparse_expect(p, TD_JT_BLOCK_BEGIN));
            *out = body;
            if (at_one_of(p, ends))
                return TD_OK;
            if (is_end_word(p))
                return ends ? missing_end(p, ends, owner) : td_jparse_unexpected(p, "a block to have been opened");
            TD_TRY(parse_statement(p, &child));
        }
        TD_TRY(td_jparse_adopt(p, body, child));
        TD_TRY(td_jparse_push(p, &body->children, child));
    }
}

td_status td_jparse_template(td_jinja *t, td_error *err) {
    td_jparse p = {.t = t, .err = err};
    td_jlex_init(&p.lex, t, err);
    TD_TRY(td_jlex_next(&p.lex, &p.token));
    if (p.token.kind != TD_JT_END)
        TD_TRY(td_jlex_next(&p.lex, &p.ahead));
    TD_TRY(td_jparse_symbol(&p, td_jv_literal("loop"), &t->sym_loop));
    TD_TRY(td_jparse_symbol(&p, td_jv_literal("caller"), &t->sym_caller));
    TD_TRY(td_jparse_symbol(&p, td_jv_literal("varargs"), &t->sym_varargs));
    TD_TRY(td_jparse_symbol(&p, td_jv_literal("kwargs"), &t->sym_kwargs));
    return parse_body(&p, NULL, NULL, &t->body);
}
