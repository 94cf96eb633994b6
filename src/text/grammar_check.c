/* grammar_check.c - what must be known of a program before it runs, and what makes it refuse to.
 *
 *   need      how many frames the rest of a rule pushes at least, on its way that pushes fewest. A state whose need
 * does not fit under the depth allowed is never entered, so a text is never begun that could not be ended; a state that
 * cannot end at all needs TD_GR_NEVER. Least fixed point, over rules by a work list. nullable  rules that the empty
 * text satisfies: a use of one is passed by at once. ranks     an order of rules in which each comes before those it
 * can begin with. There is none when a rule can begin with itself (left recursion), which no machine that reads from
 * the left gets out of. */
#include <string.h>

#include "base/alloc.h"
#include "text/grammar_impl.h"

#define MAX_WORK ((uint64_t)1 << 27) /* states looked at: about a second */

typedef struct checker {
    td_gr_program *p;
    td_gb *b;
    const uint32_t *ends;
    bool *empty;       /* [n_states] the rest of the rule may be empty */
    uint32_t *callers; /* [n_calls] rules that use a rule, at callers_at[rule] .. callers_at[rule + 1] */
    uint32_t *callers_at;
    uint32_t *queue; /* [n_rules] a ring of rules to look at */
    bool *queued;
    uint32_t *seen;  /* [n_states] by which rule's search, + 1 */
    uint32_t *stack; /* [n_states] */
    uint64_t work;
} checker;

static td_status oom(checker *c) {
    td_gb_fail(c->b, TD_E_NOMEM, -1, "out of memory for a grammar");
    return TD_E_NOMEM;
}

static uint32_t first_of(const checker *c, size_t rule) {
    return rule == 0 ? 1 : c->ends[rule - 1];
}

/* The name of a rule for messages, or of one near it. */
static const char *shown(const checker *c, uint32_t rule) {
    return rule < c->b->n_rules && c->b->rules[rule].shown ? c->b->rules[rule].name : "";
}

/* ---- who uses whom ---- */

static td_status list_callers(checker *c) {
    td_gr_program *p = c->p;
    c->callers_at = td_calloc(p->n_rules + 2, sizeof *c->callers_at);
    if (!c->callers_at)
        return oom(c);
    size_t n = 0;
    for (size_t q = 0; q < p->n_states; q++)
        if (p->states[q].kind == TD_GR_CALL) {
            c->callers_at[p->states[q].arg + 2]++;
            n++;
        }
    for (size_t r = 2; r < p->n_rules + 2; r++)
        c->callers_at[r] += c->callers_at[r - 1];
    c->callers = td_calloc(n, sizeof *c->callers);
    if (!c->callers)
        return oom(c);
    for (size_t r = 0; r < p->n_rules; r++)
        for (uint32_t q = first_of(c, r); q < c->ends[r]; q++)
            if (p->states[q].kind == TD_GR_CALL)
                c->callers[c->callers_at[p->states[q].arg + 1]++] = (uint32_t)r;
    return TD_OK;
}

/* ---- fixed points ---- */

static uint16_t need_of(const td_gr_program *p, const td_gr_state *s) {
    uint16_t best = TD_GR_NEVER;
    switch (s->kind) {
    case TD_GR_RETURN:
        return 0;
    case TD_GR_SPLIT:
        for (uint32_t i = 0; i < s->arg; i++) {
            uint16_t way = p->need[p->lists[s->next + i]];
            best = way < best ? way : best;
        }
        return best;
    case TD_GR_CALL: {
        uint32_t inside = p->need[p->starts[s->arg]] + (s->next != 0 ? 1u : 0u);
        best = p->need[s->next];
        return inside >= TD_GR_NEVER ? TD_GR_NEVER : inside > best ? (uint16_t)inside : best;
    }
    default:
        return p->need[s->next];
    }
}

static bool empty_of(const checker *c, const td_gr_state *s) {
    bool any = false;
    switch (s->kind) {
    case TD_GR_RETURN:
        return true;
    case TD_GR_SPLIT:
        for (uint32_t i = 0; i < s->arg && !any; i++)
            any = c->empty[c->p->lists[s->next + i]];
        return any;
    case TD_GR_CALL:
        return c->empty[c->p->starts[s->arg]] && c->empty[s->next];
    default:
        return false;
    }
}

/* Brings a rule's states up to date; true when something about its start has changed. */
static bool settle(checker *c, uint32_t rule) {
    td_gr_program *p = c->p;
    uint32_t start = p->starts[rule];
    uint16_t need = p->need[start];
    bool empty = c->empty[start], changed = true;
    while (changed) {
        changed = false;
        for (uint32_t q = first_of(c, rule); q < c->ends[rule]; q++) {
            uint16_t n = need_of(p, &p->states[q]);
            bool e = empty_of(c, &p->states[q]);
            changed = changed || n != p->need[q] || e != c->empty[q];
            p->need[q] = n;
            c->empty[q] = e;
        }
        c->work += c->ends[rule] - first_of(c, rule) + 1;
        if (c->work > MAX_WORK)
            return false;
    }
    return need != p->need[start] || empty != c->empty[start];
}

static td_status find_needs(checker *c) {
    td_gr_program *p = c->p;
    size_t n = p->n_rules, head = 0, left = n;
    memset(p->need, 0xFF, p->n_states * sizeof *p->need);
    p->need[0] = 0;
    c->empty[0] = true;
    for (size_t i = 0; i < n; i++) { /* what is used tends to come behind its user */
        c->queue[i] = (uint32_t)(n - 1 - i);
        c->queued[i] = true;
    }
    for (; left > 0 && c->work <= MAX_WORK; left--) {
        uint32_t rule = c->queue[head];
        head = (head + 1) % n;
        c->queued[rule] = false;
        if (!settle(c, rule))
            continue;
        /* list_callers has moved each beginning to its end, which is the next one's beginning */
        for (uint32_t i = c->callers_at[rule]; i < c->callers_at[rule + 1]; i++) {
            uint32_t user = c->callers[i];
            if (c->queued[user])
                continue;
            c->queued[user] = true;
            c->queue[(head + left - 1) % n] = user;
            left++;
        }
    }
    if (c->work > MAX_WORK) {
        td_gb_fail(c->b, TD_E_LIMIT, -1,
                   "the grammar is too intricate: its rules depend on each other in too many ways");
        return TD_E_LIMIT;
    }
    for (size_t r = 0; r < n; r++)
        p->nullable[r] = c->empty[p->starts[r]];
    return TD_OK;
}

/* ---- beginnings ---- */

/* Rules that `rule` can begin with, appended to `edges`. */
static td_status find_edges(checker *c, uint32_t rule, td_gb_list *edges) {
    const td_gr_program *p = c->p;
    size_t n = 0;
    c->stack[n++] = p->starts[rule];
    c->seen[p->starts[rule]] = rule + 1;
    while (n > 0) {
        const td_gr_state *s = &p->states[c->stack[--n]];
        uint32_t ways = s->kind == TD_GR_SPLIT ? s->arg : 0;
        uint32_t passed = s->kind == TD_GR_CALL && p->nullable[s->arg] ? s->next : 0;
        if (s->kind == TD_GR_CALL)
            td_gb_push(c->b, edges, s->arg);
        for (uint32_t i = 0; i < ways + (passed != 0); i++) {
            uint32_t to = i < ways ? p->lists[s->next + i] : passed;
            if (c->seen[to] != rule + 1) {
                c->seen[to] = rule + 1;
                c->stack[n++] = to;
            }
        }
    }
    return td_gb_status(c->b);
}

/* Depth first, without recursion; a rule gets its rank when all it begins with have theirs, from the back. */
typedef struct visit {
    uint32_t rule, next; /* edge to look at */
} visit;

static td_status left_recursion(checker *c, const visit *path, size_t n, uint32_t rule) {
    const char *name = shown(c, rule);
    int64_t position = rule < c->b->n_rules ? c->b->rules[rule].position : -1;
    for (size_t i = n; i > 0 && !*name && path[i - 1].rule != rule; i--) {
        name = shown(c, path[i - 1].rule);
        position = path[i - 1].rule < c->b->n_rules ? c->b->rules[path[i - 1].rule].position : position;
    }
    td_gb_fail(c->b, TD_E_FORMAT, position,
               "the rule \"%s\" can begin with itself (left recursion): put what it repeats behind",
               *name ? name : "(a repetition)");
    return TD_E_FORMAT;
}

static td_status rank_from(checker *c, uint32_t root, const td_gb_list *edges, const size_t *at, uint8_t *color,
                           visit *path, uint32_t *rank) {
    size_t n = 0;
    path[n++] = (visit){root, 0};
    color[root] = 1;
    while (n > 0) {
        visit *v = &path[n - 1];
        if (at[v->rule] + v->next == at[v->rule + 1]) {
            color[v->rule] = 2;
            c->p->ranks[v->rule] = --*rank;
            c->p->of_rank[*rank] = v->rule;
            n--;
            continue;
        }
        uint32_t to = edges->v[at[v->rule] + v->next++];
        if (color[to] == 1)
            return left_recursion(c, path, n, to);
        if (color[to] == 0) {
            color[to] = 1;
            path[n++] = (visit){to, 0};
        }
    }
    return TD_OK;
}

static td_status find_ranks(checker *c) {
    size_t n = c->p->n_rules;
    uint32_t rank = (uint32_t)n;
    td_gb_list edges = {0};
    size_t *at = td_calloc(n + 1, sizeof *at);
    uint8_t *color = td_calloc(n, 1);
    visit *path = td_calloc(n + 1, sizeof *path);
    td_status st = at && color && path ? TD_OK : oom(c);
    for (uint32_t r = 0; r < n && st == TD_OK; r++) {
        st = find_edges(c, r, &edges);
        if (st == TD_OK)
            at[r + 1] = edges.n;
    }
    for (uint32_t r = 0; r < n && st == TD_OK; r++)
        if (color[r] == 0)
            st = rank_from(c, r, &edges, at, color, path, &rank);
    td_gb_list_free(&edges);
    td_free(at);
    td_free(color);
    td_free(path);
    return st;
}

/* ---- all ---- */

static td_status check_root(checker *c) {
    const td_gr_program *p = c->p;
    uint16_t need = p->need[p->starts[p->root]];
    if (need == TD_GR_NEVER)
        td_gb_fail(c->b, TD_E_FORMAT, -1,
                   "no text can satisfy the grammar: every way through it needs another round, or a "
                   "choice among nothing");
    else if (need > p->max_depth)
        td_gb_fail(c->b, TD_E_LIMIT, -1,
                   "the shortest text of the grammar nests its rules %u deep, at most %u is allowed", need,
                   p->max_depth);
    return td_gb_status(c->b);
}

static td_status check(checker *c) {
    td_gr_program *p = c->p;
    p->need = td_calloc(p->n_states, sizeof *p->need);
    p->nullable = td_calloc(p->n_rules, sizeof *p->nullable);
    p->ranks = td_calloc(p->n_rules, sizeof *p->ranks);
    p->of_rank = td_calloc(p->n_rules, sizeof *p->of_rank);
    c->empty = td_calloc(p->n_states, sizeof *c->empty);
    c->queue = td_calloc(p->n_rules, sizeof *c->queue);
    c->queued = td_calloc(p->n_rules, sizeof *c->queued);
    c->seen = td_calloc(p->n_states, sizeof *c->seen);
    c->stack = td_calloc(p->n_states, sizeof *c->stack);
    if (!p->need || !p->nullable || !p->ranks || !p->of_rank || !c->empty || !c->queue || !c->queued || !c->seen ||
        !c->stack)
        return oom(c);
    TD_TRY(list_callers(c));
    TD_TRY(find_needs(c));
    TD_TRY(find_ranks(c));
    return check_root(c);
}

td_status td_gr_program_check(td_gr_program *p, td_gb *b, const uint32_t *ends) {
    checker c = {.p = p, .b = b, .ends = ends};
    td_status st = check(&c);
    td_free(c.empty);
    td_free(c.callers);
    td_free(c.callers_at);
    td_free(c.queue);
    td_free(c.queued);
    td_free(c.seen);
    td_free(c.stack);
    return st;
}
