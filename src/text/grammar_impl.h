/* grammar_impl.h - the inside of a compiled grammar: a program, and the automaton that grows while it is used.
 *
 * The program is a pushdown automaton over bytes, one fragment a rule, laid out by grammar_compile.c and immutable.
 *
 * The automaton makes it deterministic as texts come by (grammar_step.c). A *node* is a set of stacks: frames (state,
 * rest), each rest again a node, and a flag for the empty stack. Nodes are hash-consed: equal sets are one number,
 * tails are shared, and of frames with one state the rests are joined to one. A *configuration*, everything the text so
 * far can still become, is such a node too: its frames are the states that wait for a byte or a token, and its flag
 * says that the text is complete. So the automaton's state is a number; its transitions are a row of numbers, by
 * classes of bytes that no part of the grammar tells apart; and masks are kept by that number.
 *
 * Nodes refer to lower numbers only, which makes collecting those out of use a pass down and a pass up. */
#ifndef TD_TEXT_GRAMMAR_IMPL_H
#define TD_TEXT_GRAMMAR_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "text/grammar.h"
#include "text/grammar_build.h"

/* ---- the program ---- */

typedef enum td_gr_kind {
    TD_GR_RETURN, /* the rule's end; state 0 is the only one */
    TD_GR_BYTE,   /* arg: the byte */
    TD_GR_SET,    /* arg: its first row */
    TD_GR_SPLIT,  /* next: offset into lists, arg: how many */
    TD_GR_CALL,   /* arg: rule; next: where it returns to */
    TD_GR_TOKEN,  /* arg: token */
} td_gr_kind;

typedef struct td_gr_state {
    uint8_t kind;
    uint32_t next;
    uint32_t arg;
} td_gr_state;

#define TD_GR_NEVER UINT16_MAX

typedef struct td_gr_program {
    td_gr_state *states; /* [n_states] */
    uint16_t *need;      /* [n_states] frames that the rest of the rule pushes at least; TD_GR_NEVER: it cannot end */
    size_t n_states, states_capacity;
    uint32_t *lists; /* [n_lists] */
    size_t n_lists, lists_capacity;
    uint32_t *starts;  /* [n_rules] */
    uint32_t *ranks;   /* [n_rules] a rule that begins with a use of another has a lower rank than it */
    uint32_t *of_rank; /* [n_rules] the rule of each rank */
    bool *nullable;    /* [n_rules] */
    size_t n_rules;
    uint32_t root;
    uint8_t class_of[256];
    uint8_t byte_of[256]; /* one byte of each class */
    unsigned n_classes;
    uint16_t *sub_rows; /* [n_rows * n_classes] targets of sub-states of sets */
    size_t n_rows;
    uint32_t max_depth;
} td_gr_program;

/* Is an error; the message stands in the builder. */
td_status td_gr_program_make(td_gr_program *p, td_gb *b, td_gb_rule root, uint32_t max_depth) TD_MUST_CHECK;
void td_gr_program_free(td_gr_program *p);

/* grammar_check.c: fills need, nullable, ranks; refuses left recursion and grammars without texts. */
td_status td_gr_program_check(td_gr_program *p, td_gb *b, const uint32_t *ends) TD_MUST_CHECK;

/* ---- the automaton ---- */

typedef struct td_gr_frame {
    uint32_t state;
    uint32_t sub; /* of a set, when some bytes of a character have been read */
    uint32_t rest;
} td_gr_frame;

enum { TD_GR_EMPTY_STACK = 1 }; /* in a configuration: the text is complete */

typedef struct td_gr_node {
    uint32_t offset, n; /* into frames; sorted */
    uint32_t hash;
    uint32_t row;                  /* + 1 of its transitions; 0: none yet */
    uint32_t mask;                 /* + 1 of its slot; 0: none */
    uint16_t min_depth, max_depth; /* of its stacks */
    uint8_t flags;
    uint8_t run; /* + 1: characters of plain text it takes whatever they are; see grammar_mask.c. 0: not known */
} td_gr_node;

enum { TD_GR_DEAD = 0, TD_GR_BOTTOM = 1 }; /* the node without stacks; that of the empty stack */
#define TD_GR_UNKNOWN UINT32_MAX

typedef struct td_gr_frames {
    td_gr_frame *v;
    size_t n, capacity;
} td_gr_frames;

typedef struct td_gr_pair {
    uint32_t state, rest;
} td_gr_pair;

/* From 64-bit keys to numbers; emptied in O(1). */
typedef struct td_gr_map {
    struct td_gr_map_slot {
        uint64_t key;
        uint32_t value, stamp;
    } * slots;
    size_t n, capacity;
    uint32_t stamp;
} td_gr_map;

typedef struct td_gr_mask_slot {
    uint64_t *words;
    uint32_t node;
    uint64_t used; /* time of its last use */
} td_gr_mask_slot;

typedef struct td_gr_automaton {
    const td_gr_program *program;
    td_gr_node *nodes;
    size_t n_nodes, nodes_capacity;
    td_gr_frames frames;
    uint32_t *table; /* [table_size] node + 1 by hash; a power of two */
    size_t table_size;
    uint32_t *rows; /* [n_rows * n_classes] */
    size_t n_rows, rows_capacity;
    td_gr_map unions;
    uint32_t initial;

    /* work of a step */
    td_gr_frames scratch;
    td_gr_pair *threads;
    size_t n_threads, threads_capacity;
    td_gr_map visited;
    td_gr_frames *calls; /* [n_rules] frames to return to, of rules called in this step */
    uint8_t *call_flags; /* [n_rules] */
    uint32_t *pending;   /* ranks of rules called, a heap */
    size_t n_pending;
    uint8_t *is_pending;

    /* plain text (token_trie.h) by classes: from each state of a character, a class and the state behind it */
    struct td_gr_plain {
        uint8_t class_, to;
    } plain[8][256];
    uint16_t n_plain[8];

    /* masks */
    td_gr_mask_slot *masks; /* [n_masks] */
    size_t n_masks;
    uint64_t time;
    uint32_t *walk; /* [max_depth + 1] configurations along a branch */
    td_error *err;
} td_gr_automaton;

td_status td_gr_automaton_init(td_gr_automaton *a, const td_gr_program *p, td_error *err) TD_MUST_CHECK;
void td_gr_automaton_free(td_gr_automaton *a);

/* grammar_stack.c. Errors: TD_E_NOMEM, TD_E_LIMIT with a message in a->err. */
/* The node of frames[0..n), in any order, which are changed. */
td_status td_gr_intern(td_gr_automaton *a, td_gr_frames *frames, size_t from, uint8_t flags,
                       uint32_t *out) TD_MUST_CHECK;
td_status td_gr_union(td_gr_automaton *a, uint32_t x, uint32_t y, uint32_t *out) TD_MUST_CHECK;
td_status td_gr_push_frame(td_gr_automaton *a, td_gr_frames *f, td_gr_frame frame) TD_MUST_CHECK;
size_t td_gr_automaton_bytes(const td_gr_automaton *a);
/* Drops every node that roots[0..n) do not need, all rows and masks; roots are renumbered in place. */
td_status td_gr_collect(td_gr_automaton *a, uint32_t **roots, size_t n) TD_MUST_CHECK;
/* *fresh: the key was not there; else its value stays. False: out of memory. */
bool td_gr_map_put(td_gr_map *m, uint64_t key, uint32_t value, bool *fresh);
bool td_gr_map_get(const td_gr_map *m, uint64_t key, uint32_t *value);
void td_gr_map_clear(td_gr_map *m);
void td_gr_map_free(td_gr_map *m);

/* grammar_step.c */
td_status td_gr_start(td_gr_automaton *a, uint32_t *out) TD_MUST_CHECK;
/* Fills in a transition. */
td_status td_gr_step_slow(td_gr_automaton *a, uint32_t config, unsigned class_, uint32_t *out) TD_MUST_CHECK;
td_status td_gr_step_token(td_gr_automaton *a, uint32_t config, td_token token, uint32_t *out) TD_MUST_CHECK;
td_status td_gr_step_text(td_gr_automaton *a, uint32_t config, const char *text, size_t n, uint32_t *out,
                          size_t *taken) TD_MUST_CHECK;

static inline td_status td_gr_step(td_gr_automaton *a, uint32_t config, unsigned class_, uint32_t *out) {
    uint32_t row = a->nodes[config].row;
    if (row) {
        *out = a->rows[(size_t)(row - 1) * a->program->n_classes + class_];
        if (*out != TD_GR_UNKNOWN)
            return TD_OK;
    }
    return td_gr_step_slow(a, config, class_, out);
}

/* grammar_mask.c */
void td_gr_list_plain(td_gr_automaton *a);
td_status td_gr_mask(td_gr_automaton *a, const td_token_trie *trie, uint32_t config, uint64_t *mask) TD_MUST_CHECK;

/* ---- the whole ---- */

struct td_grammar {
    atomic_int owners;
    const td_token_trie *trie;
    td_gr_program program;
    pthread_mutex_t lock; /* of everything below */
    td_gr_automaton automaton;
    td_grammar_state *states; /* all that are open, a ring through next and before; NULL: none */
    size_t soft_bytes;        /* beyond it the automaton is swept */
};

struct td_grammar_state {
    td_grammar *grammar;
    td_grammar_state *next, *before;
    uint32_t config;
    bool ended;
    size_t n_bytes; /* taken so far, for messages */
};

#endif
