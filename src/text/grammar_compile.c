/* grammar_compile.c - from the tree of expressions to the program.
 *
 * States are written from the end of an expression to its beginning: each part is given the state to go on with and
 * returns the one it begins with. Repetitions are written out, which keeps counting out of the automaton: a string of
 * at most a thousand characters is a chain, and each place in it knows how much is left. A body too heavy for that
 * becomes a rule, used as often. The states of a rule lie together, ends[r - 1] to ends[r]. */
#include <string.h>

#include "base/alloc.h"
#include "text/grammar_impl.h"

typedef struct writer {
    td_gr_program *p;
    td_gb *b;
    uint32_t *set_rows; /* [n_sets] first row; UINT32_MAX: not compiled yet */
    td_set_rows rows;
    /* rules, those of the builder first, then bodies of repetitions; ends: where its states end */
    td_gb_node *bodies;
    uint32_t *ends;
    size_t n_rules, rules_capacity;
    td_gr_map outlined; /* rule of each body that became one */
} writer;

static td_status oom(td_gb *b) {
    td_gb_fail(b, TD_E_NOMEM, -1, "out of memory for a grammar");
    return TD_E_NOMEM;
}

static td_status grow(td_gb *b, void *array, size_t n, size_t *capacity, size_t size) {
    if (n < *capacity)
        return TD_OK;
    size_t more = *capacity ? *capacity * 2 : 64;
    void **p = array, *v = td_realloc(*p, more, size);
    if (!v)
        return oom(b);
    *p = v;
    *capacity = more;
    return TD_OK;
}

/* ---- states ---- */

static td_status add_state(writer *w, td_gr_state s, uint32_t *out) {
    td_gr_program *p = w->p;
    if (p->n_states == TD_GRAMMAR_MAX_STATES) {
        td_gb_fail(w->b, TD_E_LIMIT, -1, "the grammar has more than %u states, its repetitions written out",
                   TD_GRAMMAR_MAX_STATES);
        return TD_E_LIMIT;
    }
    TD_TRY(grow(w->b, &p->states, p->n_states, &p->states_capacity, sizeof *p->states));
    *out = (uint32_t)p->n_states;
    p->states[p->n_states++] = s;
    return TD_OK;
}

/* A split of n ways, to be filled in by set_way. */
static td_status add_split(writer *w, uint32_t n, uint32_t *out) {
    td_gr_program *p = w->p;
    uint32_t offset = (uint32_t)p->n_lists;
    for (uint32_t i = 0; i < n; i++) {
        TD_TRY(grow(w->b, &p->lists, p->n_lists, &p->lists_capacity, sizeof *p->lists));
        p->lists[p->n_lists++] = 0;
    }
    return add_state(w, (td_gr_state){TD_GR_SPLIT, offset, n}, out);
}

static void set_way(writer *w, uint32_t split, uint32_t i, uint32_t to) {
    w->p->lists[w->p->states[split].next + i] = to;
}

static td_status add_rule(writer *w, td_gb_node body, uint32_t *out) {
    size_t capacity = w->rules_capacity;
    TD_TRY(grow(w->b, &w->bodies, w->n_rules, &capacity, sizeof *w->bodies));
    capacity = w->rules_capacity;
    TD_TRY(grow(w->b, &w->ends, w->n_rules, &capacity, sizeof *w->ends));
    w->rules_capacity = capacity;
    *out = (uint32_t)w->n_rules;
    w->bodies[w->n_rules++] = body;
    return TD_OK;
}

/* ---- expressions ---- */

static td_status write_node(writer *w, td_gb_node node, uint32_t next, uint32_t *out);

static td_status write_text(writer *w, const td_gb_item *it, uint32_t next, uint32_t *out) {
    *out = next;
    for (uint32_t i = it->b; i > 0; i--) {
        uint8_t byte = (uint8_t)w->b->text.data[it->a + i - 1];
        TD_TRY(add_state(w, (td_gr_state){TD_GR_BYTE, *out, byte}, out));
    }
    return TD_OK;
}

static td_status write_set(writer *w, uint32_t set, uint32_t next, uint32_t *out) {
    if (w->set_rows[set] == UINT32_MAX) {
        td_error err;
        td_status st = td_set_rows_add(&w->rows, &w->b->sets[set], &w->set_rows[set], &err);
        if (st != TD_OK) {
            td_gb_fail(w->b, st, -1, "%s", err.message);
            return st;
        }
    }
    return add_state(w, (td_gr_state){TD_GR_SET, next, w->set_rows[set]}, out);
}

static td_status write_alternatives(writer *w, const td_gb_item *it, uint32_t next, uint32_t *out) {
    TD_TRY(add_split(w, it->b, out));
    for (uint32_t i = 0; i < it->b; i++) {
        uint32_t way;
        TD_TRY(write_node(w, w->b->children[it->a + i], next, &way));
        set_way(w, *out, i, way);
    }
    return TD_OK;
}

static td_status write_body(writer *w, td_gb_node node, bool outline, uint32_t next, uint32_t *out) {
    uint32_t rule;
    bool fresh;
    if (!outline)
        return write_node(w, node, next, out);
    if (!td_gr_map_get(&w->outlined, node, &rule)) {
        TD_TRY(add_rule(w, node, &rule));
        if (!td_gr_map_put(&w->outlined, node, rule, &fresh))
            return oom(w->b);
    }
    return add_state(w, (td_gr_state){TD_GR_CALL, next, rule}, out);
}

static td_status write_repeat(writer *w, const td_gb_item *it, uint32_t next, uint32_t *out) {
    uint32_t min = it->b, max = it->c, way, end = next;
    uint32_t times = max == TD_GB_NO_MAX ? min : max;
    bool outline = w->b->items[it->a].weight > TD_GB_HEAVY && times > 1;
    *out = next;
    if (max == TD_GB_NO_MAX) {
        TD_TRY(add_split(w, 2, out));
        TD_TRY(write_body(w, it->a, outline, *out, &way));
        set_way(w, *out, 0, way);
        set_way(w, *out, 1, next);
    }
    for (uint32_t i = min; max != TD_GB_NO_MAX && i < max; i++) {
        uint32_t split;
        TD_TRY(write_body(w, it->a, outline, *out, &way));
        TD_TRY(add_split(w, 2, &split));
        set_way(w, split, 0, way);
        set_way(w, split, 1, end);
        *out = split;
    }
    for (uint32_t i = 0; i < min; i++)
        TD_TRY(write_body(w, it->a, outline, *out, out));
    return TD_OK;
}

static td_status write_node(writer *w, td_gb_node node, uint32_t next, uint32_t *out) {
    const td_gb_item it = w->b->items[node];
    switch (it.kind) {
    case TD_GB_TEXT:
        return write_text(w, &it, next, out);
    case TD_GB_SET:
        return write_set(w, it.a, next, out);
    case TD_GB_SEQ:
        *out = next;
        for (uint32_t i = it.b; i > 0; i--)
            TD_TRY(write_node(w, w->b->children[it.a + i - 1], *out, out));
        return TD_OK;
    case TD_GB_ALT:
        return write_alternatives(w, &it, next, out);
    case TD_GB_REPEAT:
        return write_repeat(w, &it, next, out);
    case TD_GB_RULE:
        return add_state(w, (td_gr_state){TD_GR_CALL, next, it.a}, out);
    default:
        return add_state(w, (td_gr_state){TD_GR_TOKEN, next, it.a}, out);
    }
}

/* ---- rules ---- */

static td_status write_rules(writer *w, td_gb_rule root) {
    td_gr_program *p = w->p;
    uint32_t state;
    size_t capacity = 0;
    TD_TRY(add_state(w, (td_gr_state){.kind = TD_GR_RETURN}, &state));
    for (size_t i = 0; i < w->b->n_rules; i++)
        TD_TRY(add_rule(w, w->b->rules[i].body, &state));
    for (; p->n_rules < w->n_rules; p->n_rules++) { /* more may come while they are written */
        TD_TRY(grow(w->b, &p->starts, p->n_rules, &capacity, sizeof *p->starts));
        TD_TRY(write_node(w, w->bodies[p->n_rules], 0, &p->starts[p->n_rules]));
        w->ends[p->n_rules] = (uint32_t)p->n_states;
    }
    p->root = root;
    return TD_OK;
}

/* ---- classes of bytes ---- */

/* Splits classes whose bytes have different targets. Pairs of class and target are found by hashing. */
static void refine(td_gr_program *p, const uint16_t row[256]) {
    struct {
        uint32_t pair;
        uint16_t class_;
        bool used;
    } seen[512] = {0};
    uint8_t fresh[256];
    unsigned n = 0;
    for (unsigned byte = 0; byte < 256; byte++) {
        uint32_t pair = (uint32_t)p->class_of[byte] << 16 | row[byte];
        size_t i = (pair * 2654435761u) >> 23;
        while (seen[i].used && seen[i].pair != pair)
            i = (i + 1) % 512;
        if (!seen[i].used) {
            seen[i].used = true;
            seen[i].pair = pair;
            seen[i].class_ = (uint16_t)n++;
        }
        fresh[byte] = (uint8_t)seen[i].class_;
    }
    memcpy(p->class_of, fresh, sizeof fresh);
    p->n_classes = n;
}

static td_status find_classes(writer *w) {
    td_gr_program *p = w->p;
    uint16_t row[256] = {0};
    for (size_t i = 0; i < p->n_states; i++)
        if (p->states[i].kind == TD_GR_BYTE)
            row[p->states[i].arg] = (uint16_t)(p->states[i].arg + 1);
    refine(p, row);
    for (size_t i = 0; i < w->rows.n && p->n_classes < 256; i++)
        refine(p, w->rows.v[i]);
    for (unsigned byte = 256; byte > 0; byte--)
        p->byte_of[p->class_of[byte - 1]] = (uint8_t)(byte - 1);
    p->n_rows = w->rows.n;
    p->sub_rows = td_calloc(p->n_rows * p->n_classes, sizeof *p->sub_rows);
    if (!p->sub_rows)
        return oom(w->b);
    for (size_t i = 0; i < p->n_rows; i++)
        for (unsigned c = 0; c < p->n_classes; c++)
            p->sub_rows[i * p->n_classes + c] = w->rows.v[i][p->byte_of[c]];
    return TD_OK;
}

/* ---- the program ---- */

static td_status check_defined(td_gb *b) {
    for (size_t i = 0; i < b->n_rules && b->status == TD_OK; i++)
        if (!b->rules[i].defined)
            td_gb_fail(b, TD_E_FORMAT, b->rules[i].position, "the rule \"%s\" is used but not defined",
                       b->rules[i].name);
    return b->status;
}

static td_status make(writer *w, td_gb_rule root) {
    w->set_rows = td_calloc(w->b->n_sets, sizeof *w->set_rows);
    if (!w->set_rows)
        return oom(w->b);
    memset(w->set_rows, 0xFF, w->b->n_sets * sizeof *w->set_rows);
    TD_TRY(write_rules(w, root));
    TD_TRY(find_classes(w));
    return td_gr_program_check(w->p, w->b, w->ends);
}

td_status td_gr_program_make(td_gr_program *p, td_gb *b, td_gb_rule root, uint32_t max_depth) {
    *p = (td_gr_program){.max_depth = max_depth ? max_depth : TD_GRAMMAR_MAX_DEPTH};
    writer w = {.p = p, .b = b};
    TD_TRY(check_defined(b));
    td_status st = make(&w, root);
    td_free(w.set_rows);
    td_free(w.bodies);
    td_free(w.ends);
    td_set_rows_free(&w.rows);
    td_gr_map_free(&w.outlined);
    return st;
}

void td_gr_program_free(td_gr_program *p) {
    td_free(p->states);
    td_free(p->need);
    td_free(p->lists);
    td_free(p->starts);
    td_free(p->ranks);
    td_free(p->of_rank);
    td_free(p->nullable);
    td_free(p->sub_rows);
    *p = (td_gr_program){0};
}

/* ---- the grammar ---- */

/* Thoughts in front of the root, in the model's markers. */
static td_gb_rule with_thoughts(td_gb *b, td_gb_rule root, const td_token_trie *trie, const td_grammar_options *opt) {
    bool tags = opt->think == TD_REPLY_THINK_TAGS;
    const char *open = tags ? "<think>" : "<|channel>", *close = tags ? "</think>" : "<channel|>";
    td_gb_node text = td_gb_text_without(b, &close, 1);
    td_gb_node gap = td_gb_repeat(b, td_gb_chars(b, "\n\n"), 0, 2);
    td_gb_node rest = TD_GB_SEQ(b, text, td_gb_marker(b, trie, close), gap);
    td_gb_node first = TD_GB_SEQ(b, td_gb_marker(b, trie, open), td_gb_string(b, tags ? "" : "thought"), rest);
    td_gb_rule all = td_gb_rule_new(b, NULL, 0, -1);
    td_gb_node front = opt->inside_reasoning ? rest : TD_GB_OPTIONAL(b, first);
    td_gb_define(b, all, TD_GB_SEQ(b, front, td_gb_use(b, root)));
    return all;
}

td_gb_node td_gb_marker(td_gb *b, const td_token_trie *trie, const char *marker) {
    td_token token = td_tokenizer_find(trie->tokenizer, marker, strlen(marker));
    bool special = token >= 0 && (size_t)token < trie->n_vocab && td_tokenizer_is_special(trie->tokenizer, token);
    return special ? td_gb_token(b, token) : td_gb_string(b, marker);
}

static td_status open_automaton(td_grammar *g, td_gb *b) {
    td_error err;
    td_status st = td_gr_automaton_init(&g->automaton, &g->program, &err);
    if (st == TD_OK) {
        g->automaton.walk = td_calloc((size_t)g->trie->max_depth + 1, sizeof *g->automaton.walk);
        st = g->automaton.walk ? TD_OK : td_fail(&err, TD_E_NOMEM, "out of memory for a grammar");
    }
    if (st != TD_OK)
        td_gb_fail(b, st, -1, "%s", err.message);
    return st;
}

td_status td_grammar_compile(td_grammar **out, td_gb *b, td_gb_rule root, const td_token_trie *trie,
                             const td_grammar_options *opt) {
    *out = NULL;
    if (b->status == TD_OK && opt && opt->think != TD_REPLY_THINK_NONE)
        root = with_thoughts(b, root, trie, opt);
    if (b->status != TD_OK)
        return b->status;
    td_grammar *g = td_calloc(1, sizeof *g);
    if (!g)
        return oom(b);
    atomic_init(&g->owners, 1);
    pthread_mutex_init(&g->lock, NULL);
    g->trie = trie;
    g->soft_bytes = TD_GRAMMAR_CACHE_BYTES;
    td_status st = td_gr_program_make(&g->program, b, root, opt ? opt->max_depth : 0);
    if (st == TD_OK)
        st = open_automaton(g, b);
    if (st != TD_OK)
        td_grammar_close(&g);
    *out = g;
    return st;
}
