/* grammar_build.h - a grammar as a tree of expressions, which every front end (GBNF, JSON Schema, tool calls) writes
 * and grammar_compile.c reads.
 *
 * Nodes are numbers, made by the td_gb_ functions and immutable: a node may be used in several places. Errors stick:
 * after the first, every call does nothing and returns node 0, so a front end checks once, at its end
 * (td_gb_status). Rules make recursion; everything else is a tree of bounded depth. */
#ifndef TD_TEXT_GRAMMAR_BUILD_H
#define TD_TEXT_GRAMMAR_BUILD_H

#include "base/buf.h"
#include "text/grammar.h"
#include "text/grammar_set.h"

typedef uint32_t td_gb_node; /* 0: the empty text */
typedef uint32_t td_gb_rule;

#define TD_GB_NO_MAX UINT32_MAX
#define TD_GB_MAX_DEPTH 1000u              /* of nested nodes */
#define TD_GB_HEAVY 32u                    /* states; a heavier body of a repetition becomes a rule */
#define TD_GB_MAX_NODES 4000000u           /* */
#define TD_GB_MAX_BYTES ((size_t)32 << 20) /* of literal text */

typedef enum td_gb_kind {
    TD_GB_TEXT,
    TD_GB_SET,
    TD_GB_SEQ,
    TD_GB_ALT,
    TD_GB_REPEAT,
    TD_GB_RULE,
    TD_GB_TOKEN
} td_gb_kind;

typedef struct td_gb_item {
    uint8_t kind;
    uint16_t depth;
    uint32_t weight; /* states it takes, cut at UINT32_MAX */
    uint32_t a, b,
        c; /* TEXT offset, size; SET index; SEQ, ALT offset, n in children; REPEAT node, min, max; RULE; TOKEN */
} td_gb_item;

typedef struct td_gb_rule_item {
    td_gb_node body;
    bool defined;
    bool shown;       /* name is the user's */
    char name[64];    /* cut; "" for rules the front end made up */
    int64_t position; /* of its first use or its definition in the source; -1 */
} td_gb_rule_item;

typedef struct td_gb {
    td_gb_item *items; /* [n_items] */
    size_t n_items, items_capacity;
    uint32_t *children; /* [n_children] */
    size_t n_children, children_capacity;
    td_gb_rule_item *rules; /* [n_rules] */
    size_t n_rules, rules_capacity;
    td_char_set *sets; /* [n_sets] */
    size_t n_sets, sets_capacity;
    td_buf text;
    td_status status;
    td_error *err; /* of the caller */
} td_gb;

void td_gb_init(td_gb *b, td_error *err);
void td_gb_free(td_gb *b);
static inline td_status td_gb_status(const td_gb *b) {
    return b->status;
}
/* Records a failure, unless there is one; always returns node 0. */
td_gb_node td_gb_fail(td_gb *b, td_status status, int64_t position, const char *fmt, ...) TD_PRINTF(4, 5);

td_gb_node td_gb_text(td_gb *b, const char *bytes, size_t n);
td_gb_node td_gb_string(td_gb *b, const char *s);
/* Takes the set over and empties *s. Equal sets become one. */
td_gb_node td_gb_set(td_gb *b, td_char_set *s);
/* From pairs of characters, lo and hi, e.g. "azAZ__": ASCII only. */
td_gb_node td_gb_chars(td_gb *b, const char *pairs);
td_gb_node td_gb_seq(td_gb *b, const td_gb_node *nodes, size_t n);
/* No alternative at all is a text that cannot be. */
td_gb_node td_gb_alt(td_gb *b, const td_gb_node *nodes, size_t n);
td_gb_node td_gb_repeat(td_gb *b, td_gb_node node, uint32_t min, uint32_t max);
td_gb_node td_gb_token(td_gb *b, td_token token);
td_gb_node td_gb_use(td_gb *b, td_gb_rule rule);

/* A rule to be defined later. name: the user's, for messages, or NULL. */
td_gb_rule td_gb_rule_new(td_gb *b, const char *name, size_t size, int64_t position);
void td_gb_define(td_gb *b, td_gb_rule rule, td_gb_node body);

#define TD_GB_SEQ(b, ...)                                                                                              \
    td_gb_seq(b, (const td_gb_node[]){__VA_ARGS__}, sizeof((const td_gb_node[]){__VA_ARGS__}) / sizeof(td_gb_node))
#define TD_GB_ALT(b, ...)                                                                                              \
    td_gb_alt(b, (const td_gb_node[]){__VA_ARGS__}, sizeof((const td_gb_node[]){__VA_ARGS__}) / sizeof(td_gb_node))
#define TD_GB_OPTIONAL(b, node) td_gb_repeat(b, node, 0, 1)

/* A growable list of nodes. */
typedef struct td_gb_list {
    td_gb_node *v;
    size_t n, capacity;
} td_gb_list;
void td_gb_push(td_gb *b, td_gb_list *list, td_gb_node node);
void td_gb_list_free(td_gb_list *list);

/* Any text that holds none of the n texts, which are ASCII, not empty, and none inside another: a rule over the
 * beginnings of them (Aho and Corasick's automaton, turned round). U+0000 is not in it. */
td_gb_node td_gb_text_without(td_gb *b, const char *const *texts, size_t n);

/* ---- grammar_compile.c ---- */

/* A marker of a chat format: the special token of this name if there is one, else its text. */
td_gb_node td_gb_marker(td_gb *b, const td_token_trie *trie, const char *marker);

/* Compiles the rules, from `root`. The builder is only read. Errors that stuck in it come out here. */
td_status td_grammar_compile(td_grammar **out, td_gb *b, td_gb_rule root, const td_token_trie *trie,
                             const td_grammar_options *opt) TD_MUST_CHECK;

#endif
