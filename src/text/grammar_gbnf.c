/* grammar_gbnf.c - GBNF text to the tree of expressions: a recursive descent, no deeper than TD_GRAMMAR_MAX_NESTING.
 *
 * Where a line ends a rule may end: inside brackets it does not, nor behind "::=" or "|", nor when the next thing is a
 * "|". Errors are noted with the byte they stand at, and get their line and column at the end. */
#include <string.h>

#include "base/alloc.h"
#include "format/json_scan.h"
#include "format/name_map.h"
#include "text/grammar_build.h"
#include "text/tokenizer_unicode.h"

typedef struct name {
    char *text;
    td_gb_rule rule;
} name;

typedef struct parser {
    td_gb b;
    const td_token_trie *trie;
    const char *text;
    size_t size, pos;
    unsigned nesting;
    name **names; /* [n_names] */
    size_t n_names, capacity;
    td_name_map map;
} parser;

#define FAIL(p, ...) td_gb_fail(&(p)->b, TD_E_FORMAT, (int64_t)(p)->pos, __VA_ARGS__)

static bool failed(const parser *p) {
    return td_gb_status(&p->b) != TD_OK;
}

/* '\0' at the end; U+0000 itself has been refused at the door. */
static char at(const parser *p, size_t ahead) {
    return p->pos + ahead < p->size ? p->text[p->pos + ahead] : '\0';
}

/* What stands here, for messages. */
static const char *shown(const parser *p, char out[TD_SHOWN_SIZE]) {
    if (p->pos >= p->size)
        return "the end";
    size_t left = p->size - p->pos;
    size_t n = td_uni_length(p->text[p->pos]);
    return at(p, 0) == '\n' ? "the end of the line" : td_shown(out, p->text + p->pos, n < left ? n : left);
}

static void skip_space(parser *p, bool lines) {
    for (;;) {
        char c = at(p, 0);
        if (c == '#')
            while (p->pos < p->size && at(p, 0) != '\n')
                p->pos++;
        else if (c == ' ' || c == '\t' || c == '\r' || (lines && c == '\n'))
            p->pos++;
        else
            return;
    }
}

static bool is_word(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
}

/* ---- names ---- */

static name *find_name(parser *p, const char *text, size_t n) {
    char *copy = td_strndup(text, n);
    const td_name_slot *slot = copy ? td_name_map_find(&p->map, copy) : NULL;
    if (slot) {
        td_free(copy);
        return (name *)slot->value;
    }
    if (copy && p->n_names == p->capacity) {
        size_t more = p->capacity ? p->capacity * 2 : 16;
        name **v = td_realloc(p->names, more, sizeof *v);
        p->names = v ? v : p->names;
        p->capacity = v ? more : p->capacity;
    }
    name *made = copy && p->n_names < p->capacity ? td_calloc(1, sizeof *made) : NULL;
    if (!made) {
        td_free(copy);
        td_gb_fail(&p->b, TD_E_NOMEM, -1, "out of memory for a grammar");
        return NULL;
    }
    *made = (name){copy, td_gb_rule_new(&p->b, text, n, (int64_t)p->pos)};
    p->names[p->n_names++] = made;
    if (!td_name_map_add(&p->map, made->text, made))
        td_gb_fail(&p->b, TD_E_NOMEM, -1, "out of memory for a grammar");
    return made;
}

static name *parse_name(parser *p) {
    size_t from = p->pos, n = 0;
    while (is_word(at(p, n)))
        n++;
    if (n == 0) {
        char out[TD_SHOWN_SIZE];
        FAIL(p, "expected the name of a rule, found %s", shown(p, out));
        return NULL;
    }
    name *found = find_name(p, p->text + from, n);
    p->pos += n;
    return failed(p) ? NULL : found;
}

/* ---- characters ---- */

static int hex_digit(char c) {
    return c >= '0' && c <= '9'   ? c - '0'
           : c >= 'a' && c <= 'f' ? c - 'a' + 10
           : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                  : -1;
}

static uint32_t parse_hex(parser *p, int digits) {
    uint32_t c = 0;
    for (int i = 0; i < digits; i++) {
        int d = hex_digit(at(p, 0));
        if (d < 0) {
            FAIL(p, "expected %d hexadecimal digits behind the escape", digits);
            return 0;
        }
        c = c << 4 | (uint32_t)d;
        p->pos++;
    }
    if (c > TD_CHAR_MAX || (c >= 0xD800 && c <= 0xDFFF))
        FAIL(p, "U+%04X is no character", c);
    return c;
}

static uint32_t parse_escape(parser *p) {
    static const char from[] = "nrt\\\"[]-^.'/", to[] = "\n\r\t\\\"[]-^.'/";
    char c = at(p, 0);
    const char *known = c ? strchr(from, c) : NULL;
    if (!known && c != 'x' && c != 'u' && c != 'U') {
        char out[TD_SHOWN_SIZE];
        FAIL(p, "an escape that is not known: \\%s", shown(p, out));
        return 0;
    }
    p->pos++;
    return known ? (uint32_t)to[known - from] : parse_hex(p, c == 'x' ? 2 : c == 'u' ? 4 : 8);
}

/* A character of a literal or a set. `quote` is what ends it. */
static uint32_t parse_char(parser *p, char quote) {
    uint32_t c;
    if (p->pos >= p->size || at(p, 0) == '\n') {
        FAIL(p, "expected %c before the end of the line", quote);
        return 0;
    }
    if (at(p, 0) == '\\') {
        p->pos++;
        return parse_escape(p);
    }
    p->pos += td_uni_next(p->text + p->pos, &c);
    return c;
}

static td_gb_node parse_literal(parser *p) {
    td_buf text;
    td_buf_init(&text, TD_GRAMMAR_MAX_TEXT);
    p->pos++;
    while (!failed(p) && at(p, 0) != '"') {
        char out[4];
        uint32_t c = parse_char(p, '"');
        if (!failed(p) && td_buf_append(&text, out, td_uni_put(c, out)) != TD_OK)
            td_gb_fail(&p->b, TD_E_NOMEM, -1, "out of memory for a grammar");
    }
    p->pos++;
    td_gb_node node = td_gb_text(&p->b, text.data, text.size);
    td_buf_free(&text);
    return node;
}

static td_gb_node parse_set(parser *p) {
    td_char_set set = {0};
    p->pos++;
    bool inverted = at(p, 0) == '^';
    p->pos += inverted;
    while (!failed(p) && at(p, 0) != ']') {
        uint32_t lo = parse_char(p, ']'), hi = lo;
        if (at(p, 0) == '-' && at(p, 1) != ']' && at(p, 1) != '\0') {
            p->pos++;
            hi = parse_char(p, ']');
        }
        if (hi < lo)
            FAIL(p, "a range of characters that ends before it begins");
        td_char_set_add(&set, lo, hi);
    }
    p->pos++;
    td_char_set_settle(&set);
    if (inverted)
        td_char_set_invert(&set);
    return td_gb_set(&p->b, &set);
}

static td_gb_node parse_any(parser *p) {
    td_char_set set = {0};
    p->pos++;
    td_char_set_invert(&set);
    return td_gb_set(&p->b, &set);
}

/* ---- tokens ---- */

static td_gb_node named_token(parser *p, const char *text, size_t n) {
    char out[TD_SHOWN_SIZE];
    td_token token = td_tokenizer_find(p->trie->tokenizer, text, n);
    if (token < 0 || (size_t)token >= p->trie->n_vocab)
        return FAIL(p, "the vocabulary has no token %s", td_shown(out, text, n));
    if (td_token_trie_is_end(p->trie, token))
        return FAIL(p, "%s ends the answer: it comes by itself where the text is complete", td_shown(out, text, n));
    return td_gb_token(&p->b, token);
}

static td_gb_node numbered_token(parser *p, const char *digits, size_t n) {
    uint64_t id = 0;
    size_t size;
    for (size_t i = 0; i < n && id <= INT32_MAX; i++)
        id = id * 10 + (uint64_t)(digits[i] - '0');
    const char *text = id < p->trie->n_vocab ? td_tokenizer_piece(p->trie->tokenizer, (td_token)id, &size) : NULL;
    return text ? named_token(p, text, size)
                : FAIL(p, "the vocabulary has no token %.*s", (int)(n < 20 ? n : 20), digits);
}

/* <name>, <[id]>, <[name]>. The name of the last may hold anything but "]>". */
static td_gb_node parse_token(parser *p) {
    const char *from = p->text + p->pos, *line = memchr(from, '\n', p->size - p->pos);
    size_t left = line ? (size_t)(line - from) : p->size - p->pos;
    bool bracket = left > 1 && from[1] == '[';
    const char *end = bracket ? memmem(from, left, "]>", 2) : memchr(from, '>', left);
    if (!end)
        return FAIL(p, "expected %s behind the name of a token", bracket ? "]>" : ">");
    td_gb_node node;
    size_t n = (size_t)(end - from);
    if (bracket && n > 2 && strspn(from + 2, "0123456789") == n - 2)
        node = numbered_token(p, from + 2, n - 2);
    else
        node = bracket ? named_token(p, from + 2, n - 2) : named_token(p, from, n + 1);
    p->pos += n + (bracket ? 2 : 1);
    return node;
}

/* ---- repetition ---- */

static uint32_t parse_count(parser *p) {
    uint64_t n = 0;
    size_t from = p->pos;
    for (; at(p, 0) >= '0' && at(p, 0) <= '9'; p->pos++)
        n = n > TD_GRAMMAR_MAX_STATES ? n : n * 10 + (uint64_t)(at(p, 0) - '0');
    if (p->pos == from)
        FAIL(p, "expected a number");
    if (n > TD_GRAMMAR_MAX_STATES)
        td_gb_fail(&p->b, TD_E_LIMIT, (int64_t)from, "a repetition of more than %u times", TD_GRAMMAR_MAX_STATES);
    return (uint32_t)n;
}

static td_gb_node parse_bounds(parser *p, td_gb_node node) {
    p->pos++;
    skip_space(p, false);
    uint32_t min = at(p, 0) == ',' ? 0 : parse_count(p), max = min;
    skip_space(p, false);
    if (at(p, 0) == ',') {
        p->pos++;
        skip_space(p, false);
        max = at(p, 0) == '}' ? TD_GB_NO_MAX : parse_count(p);
        skip_space(p, false);
    }
    if (at(p, 0) != '}')
        return FAIL(p, "expected } behind the bounds of a repetition");
    p->pos++;
    return max < min ? FAIL(p, "a repetition of at least %u and at most %u times", min, max)
                     : td_gb_repeat(&p->b, node, min, max);
}

static td_gb_node parse_repetitions(parser *p, td_gb_node node, bool lines) {
    for (;; skip_space(p, lines)) {
        switch (at(p, 0)) {
        case '*':
            node = td_gb_repeat(&p->b, node, 0, TD_GB_NO_MAX);
            break;
        case '+':
            node = td_gb_repeat(&p->b, node, 1, TD_GB_NO_MAX);
            break;
        case '?':
            node = td_gb_repeat(&p->b, node, 0, 1);
            break;
        case '{':
            node = parse_bounds(p, node);
            p->pos--;
            break;
        default:
            return node;
        }
        p->pos++;
        if (failed(p))
            return 0;
    }
}

/* ---- expressions ---- */

static td_gb_node parse_alternatives(parser *p, bool lines);

static td_gb_node parse_group(parser *p) {
    if (++p->nesting > TD_GRAMMAR_MAX_NESTING)
        return td_gb_fail(&p->b, TD_E_LIMIT, (int64_t)p->pos, "brackets nested deeper than %u levels",
                          TD_GRAMMAR_MAX_NESTING);
    p->pos++;
    skip_space(p, true);
    td_gb_node node = parse_alternatives(p, true);
    char out[TD_SHOWN_SIZE];
    if (at(p, 0) != ')')
        return FAIL(p, "expected ), found %s", shown(p, out));
    p->pos++;
    p->nesting--;
    return node;
}

/* False: nothing begins here. */
static bool parse_item(parser *p, td_gb_node *node) {
    char c = at(p, 0);
    if (c == '"') {
        *node = parse_literal(p);
    } else if (c == '[') {
        *node = parse_set(p);
    } else if (c == '.') {
        *node = parse_any(p);
    } else if (c == '(') {
        *node = parse_group(p);
    } else if (c == '<') {
        *node = parse_token(p);
    } else if (is_word(c)) {
        name *used = parse_name(p);
        *node = used ? td_gb_use(&p->b, used->rule) : 0;
    } else {
        return false;
    }
    return true;
}

static td_gb_node parse_sequence(parser *p, bool lines) {
    td_gb_list items = {0};
    td_gb_node node;
    while (!failed(p) && parse_item(p, &node) && !failed(p)) {
        skip_space(p, lines);
        td_gb_push(&p->b, &items, parse_repetitions(p, node, lines));
    }
    node = td_gb_seq(&p->b, items.v, items.n);
    td_gb_list_free(&items);
    return node;
}

/* At the end of a line: goes to a "|" that begins one of the next. */
static bool goes_on(parser *p, bool lines) {
    size_t from = p->pos;
    if (at(p, 0) != '|' && !lines)
        skip_space(p, true);
    if (at(p, 0) == '|')
        return true;
    p->pos = from;
    return false;
}

static td_gb_node parse_alternatives(parser *p, bool lines) {
    td_gb_list ways = {0};
    td_gb_push(&p->b, &ways, parse_sequence(p, lines));
    while (!failed(p) && goes_on(p, lines)) {
        p->pos++;
        skip_space(p, true);
        td_gb_push(&p->b, &ways, parse_sequence(p, lines));
    }
    td_gb_node node = td_gb_alt(&p->b, ways.v, ways.n);
    td_gb_list_free(&ways);
    return node;
}

static void parse_rule(parser *p) {
    char out[TD_SHOWN_SIZE];
    size_t from = p->pos;
    name *rule = parse_name(p);
    skip_space(p, false);
    if (!failed(p) && !(at(p, 0) == ':' && at(p, 1) == ':' && at(p, 2) == '='))
        FAIL(p, "expected ::= behind the name of a rule, found %s", shown(p, out));
    if (failed(p))
        return;
    if (p->b.rules[rule->rule].defined)
        td_gb_fail(&p->b, TD_E_FORMAT, (int64_t)from, "the rule \"%s\" is defined twice", p->b.rules[rule->rule].name);
    p->b.rules[rule->rule].position = (int64_t)from;
    p->pos += 3;
    skip_space(p, true);
    td_gb_node body = parse_alternatives(p, false);
    if (!failed(p) && p->pos < p->size && at(p, 0) != '\n')
        FAIL(p, "expected the end of the rule, found %s", shown(p, out));
    td_gb_define(&p->b, rule->rule, body);
}

/* ---- the whole ---- */

static void parse(parser *p, td_gb_rule *root) {
    size_t bad = td_uni_valid(p->text, p->size);
    const char *nul = memchr(p->text, '\0', p->size);
    p->pos = bad < p->size ? bad : nul ? (size_t)(nul - p->text) : 0;
    if (bad < p->size || nul)
        FAIL(p, bad < p->size ? "the grammar is not UTF-8" : "the grammar holds a zero byte");
    for (skip_space(p, true); !failed(p) && p->pos < p->size; skip_space(p, true))
        parse_rule(p);
    const td_name_slot *slot = td_name_map_find(&p->map, "root");
    if (slot)
        *root = ((const name *)slot->value)->rule;
    else
        td_gb_fail(&p->b, TD_E_FORMAT, -1, "the grammar has no rule \"root\", which is where a text begins");
}

static td_status show_place(const parser *p, td_status st, td_error *err) {
    int64_t position = err ? err->position : -1;
    unsigned line = 1, column = 1;
    if (position < 0)
        return td_error_prefix(err, st, "grammar");
    for (int64_t i = 0; i < position && (size_t)i < p->size; i++) {
        bool inside = ((unsigned char)p->text[i] & 0xC0) == 0x80;
        line += p->text[i] == '\n';
        column = p->text[i] == '\n' ? 1 : column + !inside;
    }
    return td_error_prefix(err, st, "grammar, line %u, column %u", line, column);
}

td_status td_grammar_from_gbnf(td_grammar **out, const td_token_trie *trie, const char *text, size_t size,
                               const td_grammar_options *opt, td_error *err) {
    *out = NULL;
    if (size > TD_GRAMMAR_MAX_TEXT)
        return td_fail(err, TD_E_LIMIT, "a grammar of %zu bytes, at most %zu are allowed", size, TD_GRAMMAR_MAX_TEXT);
    parser p = {.trie = trie, .text = text, .size = size};
    td_gb_rule root = 0;
    td_gb_init(&p.b, err);
    td_name_map_init(&p.map);
    parse(&p, &root);
    td_status st = td_grammar_compile(out, &p.b, root, trie, opt);
    if (st != TD_OK)
        st = show_place(&p, st, err);
    td_name_map_free(&p.map);
    for (size_t i = 0; i < p.n_names; i++) {
        td_free(p.names[i]->text);
        td_free(p.names[i]);
    }
    td_free(p.names);
    td_gb_free(&p.b);
    return st;
}
