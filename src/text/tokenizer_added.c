/* tokenizer_added.c - a trie of bytes, children in sibling lists, and a table of first bytes.
 *
 * The search tries each position of the text. A position whose byte begins no token costs one look; others cost the
 * length of the longest token that the text goes along with. An Aho-Corasick automaton would save that second part, but
 * it cannot leave out tokens by a flag without a second automaton.
 *
 * Where the reference implementation meets a special token that it was told not to parse, it passes over the text of
 * that token; here the text is searched on, so that an ordinary added token inside it is still found. */
#include "text/tokenizer_added.h"

#include <string.h>

#include "base/alloc.h"
#include "text/tokenizer_unicode.h"

void td_added_set_init(td_added_set *set) {
    *set = (td_added_set){0};
    memset(set->root, 0xFF, sizeof set->root);
}

void td_added_set_free(td_added_set *set) {
    td_free(set->nodes);
    td_free(set->tokens);
    td_added_set_init(set);
}

/* ---- building ---- */

/* Room for one more element in an array that doubles. */
static bool reserve(void **array, size_t n, size_t *capacity, size_t element) {
    if (n < *capacity)
        return true;
    size_t more = *capacity ? *capacity * 2 : 64;
    void *p = td_realloc(*array, more, element);
    if (!p)
        return false;
    *array = p;
    *capacity = more;
    return true;
}

/* A new node; -1: out of memory. */
static int32_t new_node(td_added_set *set, unsigned char byte) {
    if (!reserve((void **)&set->nodes, set->n_nodes, &set->nodes_capacity, sizeof *set->nodes) ||
        set->n_nodes >= INT32_MAX)
        return -1;
    set->nodes[set->n_nodes] = (td_added_node){-1, -1, -1, byte};
    return (int32_t)set->n_nodes++;
}

static int32_t child_of(const td_added_set *set, int32_t node, unsigned char byte) {
    int32_t child = set->nodes[node].child;
    while (child >= 0 && set->nodes[child].byte != byte)
        child = set->nodes[child].sibling;
    return child;
}

/* The node that text leads to, made where it is missing; -1: out of memory. */
static int32_t make_path(td_added_set *set, const unsigned char *text, size_t size) {
    if (set->root[text[0]] < 0)
        set->root[text[0]] = new_node(set, text[0]);
    int32_t node = set->root[text[0]];
    for (size_t i = 1; node >= 0 && i < size; i++) {
        int32_t child = child_of(set, node, text[i]);
        if (child < 0) {
            child = new_node(set, text[i]);
            if (child >= 0) {
                set->nodes[child].sibling = set->nodes[node].child;
                set->nodes[node].child = child;
            }
        }
        node = child;
    }
    return node;
}

td_status td_added_set_put(td_added_set *set, const char *text, size_t size, td_added_token token, td_error *err) {
    if (size > TD_ADDED_MAX_SIZE)
        return td_fail(err, TD_E_LIMIT, "added token %d has %zu bytes, expected at most %d", token.id, size,
                       TD_ADDED_MAX_SIZE);
    int32_t node = make_path(set, (const unsigned char *)text, size);
    if (node < 0 || !reserve((void **)&set->tokens, set->n_tokens, &set->tokens_capacity, sizeof *set->tokens))
        return td_fail(err, TD_E_NOMEM, "out of memory for %zu added tokens", set->n_tokens + 1);
    if (set->nodes[node].token >= 0)
        return TD_OK;
    set->nodes[node].token = (int32_t)set->n_tokens;
    set->tokens[set->n_tokens++] = token;
    return TD_OK;
}

/* ---- searching ---- */

td_added_walk td_added_walk_begin(const td_added_set *set, const char *text, size_t size, bool special) {
    return (td_added_walk){.set = set, .text = text, .size = size, .special = special, .id = -1};
}

/* The longest token that the text goes along with from `start`; *end is where it ends. */
static const td_added_token *longest(const td_added_walk *w, size_t start, size_t *end) {
    const td_added_set *set = w->set;
    const td_added_token *best = NULL;
    int32_t node = set->root[(unsigned char)w->text[start]];
    for (size_t i = start + 1; node >= 0; i++) {
        int32_t token = set->nodes[node].token;
        if (token >= 0 && (w->special || !set->tokens[token].special)) {
            best = &set->tokens[token];
            *end = i;
        }
        if (i == w->size)
            break;
        node = child_of(set, node, (unsigned char)w->text[i]);
    }
    return best;
}

static bool word_before(const td_added_walk *w, size_t i) {
    uint32_t cp;
    if (i == 0)
        return false;
    td_uni_next(w->text + td_uni_before(w->text, i), &cp);
    return td_uni_is_word(cp);
}

static bool word_after(const td_added_walk *w, size_t i) {
    uint32_t cp;
    if (i == w->size)
        return false;
    td_uni_next(w->text + i, &cp);
    return td_uni_is_word(cp);
}

/* Widens [start, end) over white space, to the left not beyond what is done with. */
static void take_space(td_added_walk *w, const td_added_token *t, size_t done) {
    uint32_t cp;
    while (t->lstrip && w->start > done) {
        size_t before = td_uni_before(w->text, w->start);
        td_uni_next(w->text + before, &cp);
        if (!td_uni_is_space(cp))
            break;
        w->start = before;
    }
    while (t->rstrip && w->end < w->size) {
        size_t n = td_uni_next(w->text + w->end, &cp);
        if (!td_uni_is_space(cp))
            break;
        w->end += n;
    }
}

bool td_added_walk_next(td_added_walk *w) {
    size_t done = w->pos;
    while (w->pos < w->size) {
        const td_added_token *t = longest(w, w->pos, &w->end);
        if (!t) {
            w->pos++;
            continue;
        }
        w->start = w->pos;
        w->pos = w->end;
        if (t->single_word && (word_before(w, w->start) || word_after(w, w->end)))
            continue;
        take_space(w, t, done);
        w->pos = w->end;
        w->id = t->id;
        return true;
    }
    return false;
}
