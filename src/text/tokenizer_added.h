/* tokenizer_added.h - added tokens: texts that become a token as they stand, found before anything else looks at the
 * text. A set of them is a trie, so that thousands cost what one does.
 *
 * A tokenizer has two sets: one is searched in the text itself, one (tokens flagged "normalized") in what the
 * normaliser made of it. */
#ifndef TD_TEXT_TOKENIZER_ADDED_H
#define TD_TEXT_TOKENIZER_ADDED_H

#include "base/status.h"

/* Bytes of the longest added token: bounds what a byte of text can cost. */
#define TD_ADDED_MAX_SIZE 4096

typedef struct td_added_token {
    td_token id;
    bool special;
    bool single_word; /* only where no letter, digit or mark adjoins */
    bool lstrip;      /* takes the white space before it */
    bool rstrip;      /* and after it */
} td_added_token;

typedef struct td_added_node {
    int32_t child, sibling; /* -1: none */
    int32_t token;          /* index into tokens of the set; -1: nothing ends here */
    unsigned char byte;
} td_added_node;

typedef struct td_added_set {
    td_added_node *nodes; /* [n_nodes] */
    size_t n_nodes, nodes_capacity;
    td_added_token *tokens; /* [n_tokens] */
    size_t n_tokens, tokens_capacity;
    int32_t root[256]; /* node of each first byte, -1: none */
} td_added_set;

void td_added_set_init(td_added_set *set);
void td_added_set_free(td_added_set *set);

/* Adds a token to be found by text[0..size), which is not empty. Of two with one text the first stays.
 * TD_E_LIMIT: too long; TD_E_NOMEM. */
td_status td_added_set_put(td_added_set *set, const char *text, size_t size, td_added_token token,
                           td_error *err) TD_MUST_CHECK;

/* A walk over the tokens in a text, left to right, the longest of those that begin at a place. */
typedef struct td_added_walk {
    const td_added_set *set;
    const char *text; /* valid UTF-8 */
    size_t size;
    bool special;      /* special tokens are looked for too */
    size_t pos;        /* where to search next; everything before is done with */
    size_t start, end; /* after a step that found one: what it covers, with the white space it takes */
    td_token id;
} td_added_walk;

td_added_walk td_added_walk_begin(const td_added_set *set, const char *text, size_t size, bool special);
bool td_added_walk_next(td_added_walk *w);

#endif
