/* grammar_state.c - the door: grammars and their owners, and the states of sequences.
 *
 * A state is a number, the configuration, so that cloning and going back cost nothing. The numbers are the automaton's:
 * when it is swept, between two calls, all states of the grammar are renumbered, which is why they stand in a ring. */
#include <string.h>

#include "base/alloc.h"
#include "format/json_scan.h"
#include "text/grammar_impl.h"

/* ---- grammars ---- */

td_grammar *td_grammar_ref(td_grammar *g) {
    atomic_fetch_add(&g->owners, 1);
    return g;
}

void td_grammar_close(td_grammar **grammar) {
    td_grammar *g = grammar ? *grammar : NULL;
    if (!g)
        return;
    *grammar = NULL;
    if (atomic_fetch_sub(&g->owners, 1) > 1)
        return;
    if (g->automaton.program)
        td_gr_automaton_free(&g->automaton);
    td_gr_program_free(&g->program);
    pthread_mutex_destroy(&g->lock);
    td_free(g);
}

const td_token_trie *td_grammar_trie(const td_grammar *g) {
    return g->trie;
}

/* ---- the lock ---- */

static td_status sweep(td_grammar *g) {
    size_t n = 0;
    td_grammar_state *s = g->states;
    if (s)
        do
            n++;
        while ((s = s->next) != g->states);
    uint32_t **roots = td_calloc(n, sizeof *roots);
    if (!roots)
        return td_fail(g->automaton.err, TD_E_NOMEM, "out of memory for the states of a grammar");
    for (size_t i = 0; i < n; i++, s = s->next)
        roots[i] = &s->config;
    td_status st = td_gr_collect(&g->automaton, roots, n);
    td_free(roots);
    /* what is left is in use: the next sweep must have something to find */
    size_t left = 2 * td_gr_automaton_bytes(&g->automaton);
    g->soft_bytes = left > TD_GRAMMAR_CACHE_BYTES ? left : TD_GRAMMAR_CACHE_BYTES;
    return st;
}

static td_status enter(td_grammar *g, td_error *err) {
    pthread_mutex_lock(&g->lock);
    g->automaton.err = err;
    if (td_gr_automaton_bytes(&g->automaton) <= g->soft_bytes)
        return TD_OK;
    td_status st = sweep(g);
    if (st != TD_OK)
        pthread_mutex_unlock(&g->lock);
    return st;
}

static td_status leave(td_grammar *g, td_status st) {
    pthread_mutex_unlock(&g->lock);
    return st;
}

/* ---- states ---- */

static td_status new_state(td_grammar_state **out, td_grammar *g, td_error *err) {
    td_grammar_state *s = td_calloc(1, sizeof *s);
    *out = s;
    if (!s)
        return td_fail(err, TD_E_NOMEM, "out of memory for the state of a grammar");
    s->grammar = td_grammar_ref(g);
    s->next = s->before = s;
    return TD_OK;
}

/* With the lock held. */
static void join_ring(td_grammar *g, td_grammar_state *s) {
    if (g->states) {
        s->next = g->states;
        s->before = g->states->before;
        s->next->before = s->before->next = s;
    }
    g->states = s;
}

td_status td_grammar_state_open(td_grammar_state **out, td_grammar *grammar, td_error *err) {
    TD_TRY(new_state(out, grammar, err));
    pthread_mutex_lock(&grammar->lock);
    (*out)->config = grammar->automaton.initial;
    join_ring(grammar, *out);
    return leave(grammar, TD_OK);
}

td_status td_grammar_state_clone(td_grammar_state **out, const td_grammar_state *from, td_error *err) {
    TD_TRY(new_state(out, from->grammar, err));
    pthread_mutex_lock(&from->grammar->lock);
    (*out)->config = from->config;
    (*out)->ended = from->ended;
    (*out)->n_bytes = from->n_bytes;
    join_ring(from->grammar, *out);
    return leave(from->grammar, TD_OK);
}

void td_grammar_state_assign(td_grammar_state *to, const td_grammar_state *from) {
    pthread_mutex_lock(&to->grammar->lock);
    to->config = from->config;
    to->ended = from->ended;
    to->n_bytes = from->n_bytes;
    pthread_mutex_unlock(&to->grammar->lock);
}

void td_grammar_state_close(td_grammar_state **state) {
    td_grammar_state *s = state ? *state : NULL;
    if (!s)
        return;
    td_grammar *g = s->grammar;
    pthread_mutex_lock(&g->lock);
    if (g->states == s)
        g->states = s->next == s ? NULL : s->next;
    s->next->before = s->before;
    s->before->next = s->next;
    pthread_mutex_unlock(&g->lock);
    td_free(s);
    *state = NULL;
    td_grammar_close(&g);
}

/* ---- questions ---- */

static const td_gr_node *node_of(const td_grammar_state *s) {
    return &s->grammar->automaton.nodes[s->config];
}

bool td_grammar_state_is_complete(const td_grammar_state *s) {
    pthread_mutex_lock(&s->grammar->lock);
    bool complete = node_of(s)->flags & TD_GR_EMPTY_STACK;
    pthread_mutex_unlock(&s->grammar->lock);
    return complete;
}

bool td_grammar_state_must_end(const td_grammar_state *s) {
    pthread_mutex_lock(&s->grammar->lock);
    bool must = s->ended || (node_of(s)->n == 0 && (node_of(s)->flags & TD_GR_EMPTY_STACK));
    pthread_mutex_unlock(&s->grammar->lock);
    return must;
}

bool td_grammar_state_has_ended(const td_grammar_state *s) {
    return s->ended;
}

static size_t count_bits(const uint64_t *mask, size_t n_words) {
    size_t n = 0;
    for (size_t i = 0; i < n_words; i++)
        n += (size_t)__builtin_popcountll(mask[i]);
    return n;
}

td_status td_grammar_state_allowed(td_grammar_state *s, uint64_t *mask, size_t *n_allowed, td_error *err) {
    td_grammar *g = s->grammar;
    size_t n = 0;
    if (s->ended) {
        memset(mask, 0, g->trie->n_words * sizeof *mask);
    } else {
        TD_TRY(enter(g, err));
        TD_TRY(leave(g, td_gr_mask(&g->automaton, g->trie, s->config, mask)));
        n = count_bits(mask, g->trie->n_words);
        if (n == 0)
            return td_fail(err, TD_E_MODEL,
                           "byte %zu of the answer: no token of the vocabulary can go on as the grammar asks",
                           s->n_bytes);
    }
    if (n_allowed)
        *n_allowed = n;
    return TD_OK;
}

/* ---- tokens ---- */

/* What a token makes of a configuration: its text's way and its literals' together. TD_GR_DEAD: it does not fit. */
static td_status step_token(td_grammar *g, uint32_t config, td_token token, uint32_t *out) {
    td_gr_automaton *a = &g->automaton;
    uint32_t by_text = TD_GR_DEAD, by_name;
    size_t size, taken;
    const char *text = td_token_trie_text(g->trie, token, &size);
    if (size > 0)
        TD_TRY(td_gr_step_text(a, config, text, size, &by_text, &taken));
    TD_TRY(td_gr_step_token(a, config, token, &by_name));
    return td_gr_union(a, by_text, by_name, out);
}

/* *fits: whether it did. An end token changes only `ended`. */
static td_status take(td_grammar *g, uint32_t *config, bool *ended, td_token token, bool *fits) {
    uint32_t next;
    *fits = false;
    if (*ended)
        return TD_OK;
    if (td_token_trie_is_end(g->trie, token)) {
        *fits = *ended = g->automaton.nodes[*config].flags & TD_GR_EMPTY_STACK;
        return TD_OK;
    }
    TD_TRY(step_token(g, *config, token, &next));
    *fits = next != TD_GR_DEAD;
    *config = *fits ? next : *config;
    return TD_OK;
}

static td_status refuse(const td_grammar_state *s, td_token token, td_error *err) {
    char shown[TD_SHOWN_SIZE];
    size_t size;
    const char *name = td_tokenizer_piece(s->grammar->trie->tokenizer, token, &size);
    td_shown(shown, name ? name : "", size);
    return td_fail_at(err, TD_E_ARG, (int64_t)s->n_bytes,
                      "token %d (%s) is not one that the grammar allows at byte %zu%s", (int)token, shown, s->n_bytes,
                      s->ended ? ", behind the end of the text" : "");
}

td_status td_grammar_state_advance(td_grammar_state *s, td_token token, td_error *err) {
    td_grammar *g = s->grammar;
    bool fits;
    size_t size;
    TD_TRY(enter(g, err));
    TD_TRY(leave(g, take(g, &s->config, &s->ended, token, &fits)));
    if (!fits)
        return refuse(s, token, err);
    td_token_trie_text(g->trie, token, &size);
    s->n_bytes += size;
    return TD_OK;
}

static td_status accepts(td_grammar_state *s, const td_token *tokens, size_t n, size_t *n_accepted) {
    uint32_t config = s->config;
    bool ended = s->ended, fits = true;
    for (size_t i = 0; i < n; i++) {
        TD_TRY(take(s->grammar, &config, &ended, tokens[i], &fits));
        if (!fits)
            break;
        *n_accepted = i + 1;
    }
    return TD_OK;
}

td_status td_grammar_state_accepts(td_grammar_state *s, const td_token *tokens, size_t n, size_t *n_accepted,
                                   td_error *err) {
    *n_accepted = 0;
    TD_TRY(enter(s->grammar, err));
    return leave(s->grammar, accepts(s, tokens, n, n_accepted));
}

td_status td_grammar_state_advance_text(td_grammar_state *s, const char *text, size_t size, td_error *err) {
    uint32_t config;
    size_t taken = 0;
    if (s->ended && size > 0)
        return td_fail_at(err, TD_E_ARG, 0, "text behind the end of the text");
    TD_TRY(enter(s->grammar, err));
    td_status st = td_gr_step_text(&s->grammar->automaton, s->config, text, size, &config, &taken);
    if (st == TD_OK && config != TD_GR_DEAD)
        s->config = config; /* under the lock: a sweep renumbers what stands in states */
    TD_TRY(leave(s->grammar, st));
    if (config == TD_GR_DEAD)
        return td_fail_at(err, TD_E_ARG, (int64_t)taken,
                          "byte %zu of the text, 0x%02X, is not what the grammar expects", taken,
                          (unsigned char)text[taken]);
    s->n_bytes += size;
    return TD_OK;
}
