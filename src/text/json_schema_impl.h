/* json_schema_impl.h - what the files of the schema compiler share.
 *
 * The compiler writes the same schema in three syntaxes: JSON, Gemma 4's call arguments, and the text of a Qwen
 * parameter (a string as it stands, anything else as JSON). A syntax is chosen in `syntax` and may change on the way
 * down. Errors stick in the builder and name `path`. */
#ifndef TD_TEXT_JSON_SCHEMA_IMPL_H
#define TD_TEXT_JSON_SCHEMA_IMPL_H

#include "text/grammar_build.h"
#include "text/json_schema.h"

typedef enum td_js_syntax { TD_JS_JSON, TD_JS_GEMMA4, TD_JS_TEXT, TD_JS_SYNTAXES } td_js_syntax;

/* A schema that "$ref" asked for, to be compiled when its turn comes. */
typedef struct td_js_ref {
    const json_t *target;
    td_js_syntax syntax;
    td_gb_rule rule;
    char path[200];
} td_js_ref;

typedef struct td_js {
    td_gb *b;
    const td_token_trie *trie;
    const json_t *root; /* what "#" is */
    td_js_syntax syntax;
    bool tagged;    /* it stands between tags: JSON has no "</" or "<p" in it, but \u003c */
    char path[400]; /* JSON pointer of the schema at hand, cut */
    unsigned nesting;
    json_t *made; /* array of schemas made by merging, which live as long as this */
    td_js_ref *refs;
    size_t n_refs, refs_capacity, refs_done;
    /* rules made once for each syntax; 0: not yet, else the rule + 1 */
    td_gb_rule value[TD_JS_SYNTAXES], text[TD_JS_SYNTAXES], space, escape, number;
    td_gb_rule *free_digits; /* of the number at hand, see json_schema_number.c */
} td_js;

void td_js_init(td_js *js, td_gb *b, const td_token_trie *trie, const json_t *root);
void td_js_free(td_js *js);
/* Compiles what references have asked for. Call it last. */
void td_js_finish(td_js *js);

td_gb_node td_js_fail(td_js *js, td_status status, const char *fmt, ...) TD_PRINTF(3, 4);
/* Lengthens the path; returns what td_js_leave cuts it back to. */
size_t td_js_enter(td_js *js, const char *key);
size_t td_js_enter_index(td_js *js, const char *key, size_t i);
void td_js_leave(td_js *js, size_t mark);

/* json_schema.c: any schema; the flat ones, without references and combinations. */
td_gb_node td_js_schema(td_js *js, const json_t *schema);
td_gb_node td_js_flat(td_js *js, const json_t *schema);
/* The schema "#/a/b" names; NULL: it names none. */
const json_t *td_js_resolve(td_js *js, const char *ref);
/* Refuses keywords that are not known, and combinations, enums and types that are none. */
bool td_js_check(td_js *js, const json_t *schema);
/* A whole number that a keyword holds; def: it is not there. */
uint32_t td_js_count(td_js *js, const json_t *schema, const char *key, uint32_t def);
bool td_js_has_type(const json_t *schema, const char *type);

/* json_schema_merge.c: flat schemas that together are this one, appended to the array `ways`. */
void td_js_flatten(td_js *js, const json_t *schema, json_t *ways, unsigned depth);

/* json_schema_text.c: the syntaxes. */
td_gb_node td_js_space(td_js *js);      /* inside brackets */
td_gb_node td_js_comma(td_js *js);      /* between members */
td_gb_node td_js_colon(td_js *js);      /* behind a key */
td_gb_node td_js_any(td_js *js);        /* a value */
td_gb_node td_js_any_string(td_js *js); /* with its quotes */
td_gb_node td_js_quoted(td_js *js, td_gb_node content);
td_gb_node td_js_char(td_js *js);                  /* one character of a string of bounded length */
td_gb_node td_js_set(td_js *js, td_char_set *set); /* one of these, as it stands in a string; takes the set over */
td_gb_node td_js_chars(td_js *js, const char *text, size_t size); /* these, as they stand in a string */
td_gb_node td_js_literal(td_js *js, const json_t *value);
td_gb_node td_js_key(td_js *js, const char *key, size_t size);
/* Any key but those of the object `names`, which may be NULL. */
td_gb_node td_js_other_key(td_js *js, const json_t *names);

/* json_schema_object.c, _number.c, _pattern.c: flat schemas of one type. */
td_gb_node td_js_object(td_js *js, const json_t *schema);
td_gb_node td_js_array(td_js *js, const json_t *schema);
td_gb_node td_js_number(td_js *js, const json_t *schema, bool integer);
td_gb_node td_js_any_number(td_js *js);
td_gb_node td_js_string(td_js *js, const json_t *schema);

#endif
