/* grammar_step.c - from one configuration to the next.
 *
 * A step moves the frames that take the byte, and closes what comes of it: returns pop, splits fork, uses of rules
 * push. The order makes the closure polynomial whatever the grammar. First everything that was on the stacks is
 * followed, and each use of a rule is only noted, with the frame to return to. Then the rules that were used are
 * entered, once each, by rank: a rule that another can begin with comes after it, so all its users are known by then
 * and become one node under one copy of its beginning. That works because there is no left recursion, and because a
 * rule that may be empty is passed by where it is used, so that no rule returns in the step it is entered in.
 *
 * A use at a rule's very end pushes nothing: what is used returns straight to the user's users. Lists that are written
 * by recursion at their end run on a stack of constant depth so. */
#include <string.h>

#include "base/alloc.h"
#include "text/grammar_impl.h"

enum { PENDING_NONE, PENDING };

static td_status oom(td_gr_automaton *a) {
    return td_fail(a->err, TD_E_NOMEM, "out of memory for the states of a grammar");
}

/* ---- rules waiting, lowest rank first ---- */

static void heap_push(td_gr_automaton *a, uint32_t rank) {
    size_t i = a->n_pending++;
    for (; i > 0 && a->pending[(i - 1) / 2] > rank; i = (i - 1) / 2)
        a->pending[i] = a->pending[(i - 1) / 2];
    a->pending[i] = rank;
}

static uint32_t heap_pop(td_gr_automaton *a) {
    uint32_t top = a->pending[0], last = a->pending[--a->n_pending];
    size_t i = 0;
    for (;;) {
        size_t k = 2 * i + 1;
        if (k + 1 < a->n_pending && a->pending[k + 1] < a->pending[k])
            k++;
        if (k >= a->n_pending || a->pending[k] >= last)
            break;
        a->pending[i] = a->pending[k];
        i = k;
    }
    a->pending[i] = last;
    return top;
}

/* ---- closure ---- */

/* Work to do: `state` on top of `rest`, unless that has been done or would grow too deep. */
static td_status add_thread(td_gr_automaton *a, uint32_t state, uint32_t rest) {
    bool fresh;
    if ((uint32_t)a->program->need[state] + a->nodes[rest].min_depth > a->program->max_depth)
        return TD_OK;
    if (!td_gr_map_put(&a->visited, (uint64_t)state << 32 | rest, 0, &fresh))
        return oom(a);
    if (!fresh)
        return TD_OK;
    if (a->n_threads == a->threads_capacity) {
        size_t capacity = a->threads_capacity ? a->threads_capacity * 2 : 64;
        td_gr_pair *v = td_realloc(a->threads, capacity, sizeof *v);
        if (!v)
            return oom(a);
        a->threads = v;
        a->threads_capacity = capacity;
    }
    a->threads[a->n_threads++] = (td_gr_pair){state, rest};
    return TD_OK;
}

/* Notes that a rule is used, to return to `next` on `rest`; at a rule's end, to return where rest returns. */
static td_status note_call(td_gr_automaton *a, uint32_t rule, uint32_t next, uint32_t rest) {
    uint32_t rank = a->program->ranks[rule];
    if (!a->is_pending[rule]) {
        a->is_pending[rule] = PENDING;
        heap_push(a, rank);
    }
    if (next != 0)
        return td_gr_push_frame(a, &a->calls[rule], (td_gr_frame){next, 0, rest});
    const td_gr_node node = a->nodes[rest];
    a->call_flags[rule] |= node.flags;
    for (uint32_t i = 0; i < node.n; i++)
        TD_TRY(td_gr_push_frame(a, &a->calls[rule], a->frames.v[node.offset + i]));
    return TD_OK;
}

static td_status return_from(td_gr_automaton *a, uint32_t rest, uint8_t *flags) {
    const td_gr_node node = a->nodes[rest];
    *flags |= node.flags;
    for (uint32_t i = 0; i < node.n; i++) {
        td_gr_frame f = a->frames.v[node.offset + i];
        TD_TRY(add_thread(a, f.state, f.rest));
    }
    return TD_OK;
}

/* Follows threads to the states that wait, which go to the scratch frames. entered: they are in a rule that this step
 * has entered, whose return has been seen to already. */
static td_status follow(td_gr_automaton *a, bool entered, uint8_t *flags) {
    const td_gr_program *p = a->program;
    while (a->n_threads > 0) {
        td_gr_pair t = a->threads[--a->n_threads];
        const td_gr_state *s = &p->states[t.state];
        switch (s->kind) {
        case TD_GR_RETURN:
            if (!entered)
                TD_TRY(return_from(a, t.rest, flags));
            break;
        case TD_GR_SPLIT:
            for (uint32_t i = 0; i < s->arg; i++)
                TD_TRY(add_thread(a, p->lists[s->next + i], t.rest));
            break;
        case TD_GR_CALL:
            TD_TRY(note_call(a, s->arg, s->next, t.rest));
            if (p->nullable[s->arg])
                TD_TRY(add_thread(a, s->next, t.rest));
            break;
        default:
            TD_TRY(td_gr_push_frame(a, &a->scratch, (td_gr_frame){t.state, 0, t.rest}));
        }
    }
    return TD_OK;
}

static td_status enter_rules(td_gr_automaton *a, uint8_t *flags) {
    const td_gr_program *p = a->program;
    while (a->n_pending > 0) {
        uint32_t rule = p->of_rank[heap_pop(a)], users;
        uint8_t bottom = a->call_flags[rule];
        a->is_pending[rule] = PENDING_NONE;
        a->call_flags[rule] = 0;
        td_status st = td_gr_intern(a, &a->calls[rule], 0, bottom, &users);
        a->calls[rule].n = 0;
        if (st != TD_OK)
            return st;
        TD_TRY(add_thread(a, p->starts[rule], users));
        TD_TRY(follow(a, true, flags));
    }
    return TD_OK;
}

/* The configuration of the threads, and of frames that wait already, in the scratch array from `from`. */
static td_status close_threads(td_gr_automaton *a, size_t from, uint32_t *out) {
    uint8_t flags = 0;
    TD_TRY(follow(a, false, &flags));
    TD_TRY(enter_rules(a, &flags));
    return td_gr_intern(a, &a->scratch, from, flags, out);
}

/* A step that failed may have left things lying about. */
static void begin(td_gr_automaton *a) {
    for (; a->n_pending > 0; a->n_pending--) {
        uint32_t rule = a->program->of_rank[a->pending[a->n_pending - 1]];
        a->is_pending[rule] = PENDING_NONE;
        a->calls[rule].n = 0;
        a->call_flags[rule] = 0;
    }
    a->n_threads = 0;
    a->scratch.n = 0;
    td_gr_map_clear(&a->visited);
}

/* ---- steps ---- */

td_status td_gr_start(td_gr_automaton *a, uint32_t *out) {
    begin(a);
    TD_TRY(note_call(a, a->program->root, 0, TD_GR_BOTTOM));
    if (a->program->nullable[a->program->root])
        TD_TRY(add_thread(a, 0, TD_GR_BOTTOM));
    return close_threads(a, 0, out);
}

static td_status take_class(td_gr_automaton *a, td_gr_frame f, unsigned class_) {
    const td_gr_program *p = a->program;
    const td_gr_state *s = &p->states[f.state];
    if (s->kind == TD_GR_BYTE)
        return p->class_of[s->arg] == class_ ? add_thread(a, s->next, f.rest) : TD_OK;
    if (s->kind != TD_GR_SET)
        return TD_OK;
    uint16_t to = p->sub_rows[(size_t)(s->arg + f.sub) * p->n_classes + class_];
    if (to == TD_SUB_ACCEPT)
        return add_thread(a, s->next, f.rest);
    return to == TD_SUB_DEAD ? TD_OK : td_gr_push_frame(a, &a->scratch, (td_gr_frame){f.state, to, f.rest});
}

/* Gives a configuration its row, all unknown. */
static td_status add_row(td_gr_automaton *a, uint32_t config) {
    size_t n = a->program->n_classes;
    if (a->nodes[config].row)
        return TD_OK;
    if (a->n_rows == a->rows_capacity) {
        size_t capacity = a->rows_capacity ? a->rows_capacity * 2 : 16;
        uint32_t *rows = td_realloc(a->rows, capacity, n * sizeof *rows);
        if (!rows)
            return oom(a);
        a->rows = rows;
        a->rows_capacity = capacity;
    }
    memset(a->rows + a->n_rows * n, 0xFF, n * sizeof *a->rows);
    a->nodes[config].row = (uint32_t)++a->n_rows;
    return TD_OK;
}

td_status td_gr_step_slow(td_gr_automaton *a, uint32_t config, unsigned class_, uint32_t *out) {
    const td_gr_node node = a->nodes[config];
    begin(a);
    for (uint32_t i = 0; i < node.n; i++)
        TD_TRY(take_class(a, a->frames.v[node.offset + i], class_));
    TD_TRY(close_threads(a, 0, out));
    TD_TRY(add_row(a, config));
    a->rows[(size_t)(a->nodes[config].row - 1) * a->program->n_classes + class_] = *out;
    return TD_OK;
}

td_status td_gr_step_token(td_gr_automaton *a, uint32_t config, td_token token, uint32_t *out) {
    const td_gr_program *p = a->program;
    const td_gr_node node = a->nodes[config];
    begin(a);
    for (uint32_t i = 0; i < node.n; i++) {
        td_gr_frame f = a->frames.v[node.offset + i];
        const td_gr_state *s = &p->states[f.state];
        if (s->kind == TD_GR_TOKEN && s->arg == (uint32_t)token)
            TD_TRY(add_thread(a, s->next, f.rest));
    }
    return close_threads(a, 0, out);
}

td_status td_gr_step_text(td_gr_automaton *a, uint32_t config, const char *text, size_t n, uint32_t *out,
                          size_t *taken) {
    *out = config;
    for (*taken = 0; *taken < n; (*taken)++) {
        uint32_t next;
        TD_TRY(td_gr_step(a, *out, a->program->class_of[(uint8_t)text[*taken]], &next));
        *out = next;
        if (next == TD_GR_DEAD)
            break;
    }
    return TD_OK;
}

/* ---- the automaton ---- */

td_status td_gr_automaton_init(td_gr_automaton *a, const td_gr_program *p, td_error *err) {
    *a = (td_gr_automaton){.program = p, .err = err};
    a->calls = td_calloc(p->n_rules, sizeof *a->calls);
    a->call_flags = td_calloc(p->n_rules, 1);
    a->is_pending = td_calloc(p->n_rules, 1);
    a->pending = td_calloc(p->n_rules, sizeof *a->pending);
    if (!a->calls || !a->call_flags || !a->is_pending || !a->pending)
        return oom(a);
    uint32_t node;
    TD_TRY(td_gr_intern(a, &a->scratch, 0, 0, &node)); /* TD_GR_DEAD */
    TD_TRY(td_gr_intern(a, &a->scratch, 0, TD_GR_EMPTY_STACK, &node));
    td_gr_list_plain(a);
    return td_gr_start(a, &a->initial);
}

void td_gr_automaton_free(td_gr_automaton *a) {
    for (size_t i = 0; a->calls && i < a->program->n_rules; i++)
        td_free(a->calls[i].v);
    for (size_t i = 0; i < a->n_masks; i++)
        td_free(a->masks[i].words);
    void *const blocks[] = {a->nodes, a->frames.v, a->table,      a->rows,       a->scratch.v, a->threads,
                            a->calls, a->pending,  a->call_flags, a->is_pending, a->masks,     a->walk};
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        td_free(blocks[i]);
    td_gr_map_free(&a->unions);
    td_gr_map_free(&a->visited);
    *a = (td_gr_automaton){0};
}
