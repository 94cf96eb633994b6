/* grammar_build.c - the tree of expressions: four growable arrays and a sticky error. */
#include "text/grammar_build.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

void td_gb_init(td_gb *b, td_error *err) {
    *b = (td_gb){.err = err};
    td_buf_init(&b->text, TD_GB_MAX_BYTES);
    td_gb_seq(b, NULL, 0); /* node 0 */
}

void td_gb_free(td_gb *b) {
    for (size_t i = 0; i < b->n_sets; i++)
        td_char_set_free(&b->sets[i]);
    td_free(b->items);
    td_free(b->children);
    td_free(b->rules);
    td_free(b->sets);
    td_buf_free(&b->text);
    *b = (td_gb){0};
}

td_gb_node td_gb_fail(td_gb *b, td_status status, int64_t position, const char *fmt, ...) {
    if (b->status != TD_OK)
        return 0;
    char what[400];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    b->status = td_fail_at(b->err, status, position, "%s", what);
    return 0;
}

static td_gb_node oom(td_gb *b) {
    return td_gb_fail(b, TD_E_NOMEM, -1, "out of memory for a grammar");
}

/* Makes place for one more; false: the failure has been recorded. */
static bool grow(td_gb *b, void *array, size_t n, size_t *capacity, size_t size) {
    if (b->status != TD_OK)
        return false;
    if (n < *capacity)
        return true;
    size_t more = *capacity ? *capacity * 2 : 64;
    void **p = array, *v = td_realloc(*p, more, size);
    if (!v) {
        oom(b);
        return false;
    }
    *p = v;
    *capacity = more;
    return true;
}

static uint32_t add_weight(uint32_t a, uint64_t x) {
    return x > UINT32_MAX - a ? UINT32_MAX : a + (uint32_t)x;
}

static td_gb_node add_item(td_gb *b, td_gb_item item) {
    if (!grow(b, &b->items, b->n_items, &b->items_capacity, sizeof *b->items))
        return 0;
    if (b->n_items == TD_GB_MAX_NODES)
        return td_gb_fail(b, TD_E_LIMIT, -1, "the grammar has more than %u parts", TD_GB_MAX_NODES);
    if (item.depth > TD_GB_MAX_DEPTH)
        return td_gb_fail(b, TD_E_LIMIT, -1, "the grammar is nested deeper than %u levels", TD_GB_MAX_DEPTH);
    b->items[b->n_items] = item;
    return (td_gb_node)b->n_items++;
}

/* ---- leaves ---- */

td_gb_node td_gb_text(td_gb *b, const char *bytes, size_t n) {
    td_gb_item item = {.kind = TD_GB_TEXT,
                       .weight = n > UINT32_MAX ? UINT32_MAX : (uint32_t)n,
                       .a = (uint32_t)b->text.size,
                       .b = (uint32_t)n};
    if (b->status != TD_OK || n == 0)
        return 0;
    td_status st = td_buf_append(&b->text, bytes, n);
    if (st == TD_E_LIMIT)
        return td_gb_fail(b, st, -1, "the literal texts of a grammar have more than %zu bytes", TD_GB_MAX_BYTES);
    return st == TD_OK ? add_item(b, item) : oom(b);
}

td_gb_node td_gb_string(td_gb *b, const char *s) {
    return td_gb_text(b, s, strlen(s));
}

enum { N_COMPARED = 64 }; /* sets that a new one is compared with: most grammars have a few kinds */

td_gb_node td_gb_set(td_gb *b, td_char_set *s) {
    td_gb_item item = {.kind = TD_GB_SET, .weight = 1};
    td_char_set_settle(s);
    if (s->n == 0 && !s->failed) {
        td_char_set_free(s);
        return td_gb_alt(b, NULL, 0);
    }
    size_t i = b->n_sets > N_COMPARED ? b->n_sets - N_COMPARED : 0;
    while (i < b->n_sets && (b->sets[i].n != s->n || memcmp(b->sets[i].v, s->v, s->n * sizeof *s->v) != 0))
        i++;
    bool known = !s->failed && i < b->n_sets;
    if (s->failed)
        oom(b);
    if (!known && grow(b, &b->sets, b->n_sets, &b->sets_capacity, sizeof *b->sets))
        b->sets[b->n_sets++] = *s;
    else
        td_free(s->v);
    *s = (td_char_set){0};
    item.a = (uint32_t)i;
    return b->status == TD_OK ? add_item(b, item) : 0;
}

td_gb_node td_gb_chars(td_gb *b, const char *pairs) {
    td_char_set s = {0};
    for (; pairs[0] && pairs[1]; pairs += 2)
        td_char_set_add(&s, (unsigned char)pairs[0], (unsigned char)pairs[1]);
    return td_gb_set(b, &s);
}

td_gb_node td_gb_token(td_gb *b, td_token token) {
    return add_item(b, (td_gb_item){.kind = TD_GB_TOKEN, .weight = 1, .a = (uint32_t)token});
}

td_gb_node td_gb_use(td_gb *b, td_gb_rule rule) {
    return add_item(b, (td_gb_item){.kind = TD_GB_RULE, .weight = 1, .a = rule});
}

/* ---- inner nodes ---- */

static td_gb_node add_list(td_gb *b, td_gb_kind kind, const td_gb_node *nodes, size_t n) {
    td_gb_item item = {
        .kind = (uint8_t)kind, .a = (uint32_t)b->n_children, .b = (uint32_t)n, .weight = kind == TD_GB_ALT};
    for (size_t i = 0; i < n; i++) {
        if (!grow(b, &b->children, b->n_children, &b->children_capacity, sizeof *b->children))
            return 0;
        const td_gb_item *child = &b->items[nodes[i]];
        item.depth = child->depth >= item.depth ? (uint16_t)(child->depth + 1) : item.depth;
        item.weight = add_weight(item.weight, child->weight);
        b->children[b->n_children++] = nodes[i];
    }
    return add_item(b, item);
}

td_gb_node td_gb_seq(td_gb *b, const td_gb_node *nodes, size_t n) {
    return n == 1 ? nodes[0] : n == 0 && b->n_items > 0 ? 0 : add_list(b, TD_GB_SEQ, nodes, n);
}

td_gb_node td_gb_alt(td_gb *b, const td_gb_node *nodes, size_t n) {
    return n == 1 ? nodes[0] : add_list(b, TD_GB_ALT, nodes, n);
}

td_gb_node td_gb_repeat(td_gb *b, td_gb_node node, uint32_t min, uint32_t max) {
    if (b->status != TD_OK || (min == 1 && max == 1))
        return node;
    const td_gb_item *child = &b->items[node];
    uint32_t times = max == TD_GB_NO_MAX ? min : max;
    td_gb_item item = {.kind = TD_GB_REPEAT, .depth = (uint16_t)(child->depth + 1), .a = node, .b = min, .c = max};
    /* a heavy body is written out once, as a rule */
    uint32_t body = child->weight > TD_GB_HEAVY && times > 1 ? 1 : child->weight;
    item.weight = add_weight(2, (uint64_t)(times > 0 ? times : 1) * ((uint64_t)body + 1));
    return add_item(b, item);
}

/* ---- rules ---- */

td_gb_rule td_gb_rule_new(td_gb *b, const char *name, size_t size, int64_t position) {
    if (!grow(b, &b->rules, b->n_rules, &b->rules_capacity, sizeof *b->rules))
        return 0;
    if (b->n_rules == TD_GRAMMAR_MAX_RULES)
        return td_gb_fail(b, TD_E_LIMIT, position, "the grammar has more than %u rules", TD_GRAMMAR_MAX_RULES);
    td_gb_rule_item *r = &b->rules[b->n_rules];
    *r = (td_gb_rule_item){.shown = name != NULL, .position = position};
    size_t n = !name ? 0 : size < sizeof r->name ? size : sizeof r->name - 1;
    memcpy(r->name, name ? name : "", n);
    return (td_gb_rule)b->n_rules++;
}

void td_gb_define(td_gb *b, td_gb_rule rule, td_gb_node body) {
    if (b->status != TD_OK)
        return;
    b->rules[rule].body = body;
    b->rules[rule].defined = true;
}

/* ---- lists ---- */

void td_gb_push(td_gb *b, td_gb_list *list, td_gb_node node) {
    if (grow(b, &list->v, list->n, &list->capacity, sizeof *list->v))
        list->v[list->n++] = node;
}

void td_gb_list_free(td_gb_list *list) {
    td_free(list->v);
    *list = (td_gb_list){0};
}

/* ---- text without some texts ---- */

enum { MAX_WITHOUT = 128 }; /* bytes of all texts together */

/* A beginning of one of the texts: what has been read of it. */
typedef struct beginning {
    const char *text;
    size_t size;
} beginning;

/* The longest beginning that ends text[0..n) followed by c; -1: one of the texts is complete. */
static int follow(const beginning *all, size_t n_all, const char *const *texts, size_t n_texts, beginning at, char c) {
    char read[MAX_WITHOUT + 1];
    memcpy(read, at.text, at.size);
    read[at.size] = c;
    for (size_t skip = 0; skip <= at.size; skip++) {
        size_t n = at.size + 1 - skip;
        for (size_t i = 0; i < n_texts; i++)
            if (strlen(texts[i]) == n && memcmp(texts[i], read + skip, n) == 0)
                return -1;
        for (size_t i = 1; i < n_all; i++)
            if (all[i].size == n && memcmp(all[i].text, read + skip, n) == 0)
                return (int)i;
    }
    return 0;
}

static size_t list_beginnings(beginning *all, const char *const *texts, size_t n) {
    size_t n_all = 1;
    all[0] = (beginning){"", 0};
    for (size_t i = 0; i < n; i++)
        for (size_t size = 1; size < strlen(texts[i]); size++) {
            size_t k = 0;
            while (k < n_all && !(all[k].size == size && memcmp(all[k].text, texts[i], size) == 0))
                k++;
            if (k == n_all && n_all < MAX_WITHOUT)
                all[n_all++] = (beginning){texts[i], size};
        }
    return n_all;
}

/* What may follow a beginning: characters that lead to another one each, all others, or the end. */
static td_gb_node after_beginning(td_gb *b, const beginning *all, size_t n_all, const char *const *texts, size_t n,
                                  size_t at, td_gb_rule first) {
    td_gb_list ways = {0};
    td_char_set others = {0};
    td_gb_push(b, &ways, 0);
    for (char c = 1; c > 0 && c < 127; c++) {
        int to = follow(all, n_all, texts, n, all[at], c);
        if (to != 0)
            td_char_set_add(&others, (uint32_t)c, (uint32_t)c);
        if (to > 0)
            td_gb_push(b, &ways, TD_GB_SEQ(b, td_gb_text(b, &c, 1), td_gb_use(b, first + (td_gb_rule)to)));
    }
    td_char_set_invert(&others);
    td_gb_push(b, &ways, TD_GB_SEQ(b, td_gb_set(b, &others), td_gb_use(b, first)));
    td_gb_node node = td_gb_alt(b, ways.v, ways.n);
    td_gb_list_free(&ways);
    return node;
}

td_gb_node td_gb_text_without(td_gb *b, const char *const *texts, size_t n) {
    beginning all[MAX_WITHOUT];
    size_t n_all = list_beginnings(all, texts, n);
    td_gb_rule first = 0;
    for (size_t i = 0; i < n_all; i++) {
        td_gb_rule rule = td_gb_rule_new(b, NULL, 0, -1);
        first = i == 0 ? rule : first;
    }
    for (size_t i = 0; i < n_all; i++)
        td_gb_define(b, first + (td_gb_rule)i, after_beginning(b, all, n_all, texts, n, i, first));
    return td_gb_use(b, first);
}
