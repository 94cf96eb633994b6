/* grammar_mask.c - the tokens that may come next.
 *
 * The tokens of a configuration are found by walking the trie and the automaton side by side. Two things make that
 * rare and short. Masks that took long are kept, by configuration, the least recently used making place. And inside
 * free text most tokens need no walk: if a configuration takes any plain text of n characters (its *run* is at least
 * n), it takes every token of a slice of such texts. The run is found by a breadth-first search over whole characters,
 * for the nearest configuration that some plain character kills; in a string without bounds the search closes at once,
 * in one of at most a thousand characters each place knows its neighbour's answer. */
#include <string.h>

#include "base/alloc.h"
#include "text/grammar_impl.h"

enum {
    RUN_CAP = 33,     /* a run known to be at least this long */
    RUN_ENDLESS = 34, /* */
    MAX_SEARCH = 128, /* configurations a search looks at */
    MAX_PAIRS = 64,   /* configurations inside a character */
    LONG_WALK = 2000, /* nodes of the trie after which a mask is worth keeping */
};

#define MASK_BYTES ((size_t)16 << 20) /* masks kept by a grammar */
#define MAX_MASKS 1024u

/* ---- plain text by classes of bytes ---- */

/* States of a character: 0 between characters, 1 to 3 bytes to come, and where the second byte is restricted. */
enum { BETWEEN, LAST, TWO, THREE, AFTER_E0, AFTER_ED, AFTER_F0, AFTER_F4, N_CHAR };

static int first_to(unsigned b) {
    if (b < 0x80)
        return b >= 0x20 && b != 0x7F && b != '"' && b != '\\' && b != '<' ? BETWEEN : -1;
    if (b < 0xC2 || b > 0xF4)
        return -1;
    switch (b) {
    case 0xE0:
        return AFTER_E0;
    case 0xED:
        return AFTER_ED;
    case 0xF0:
        return AFTER_F0;
    case 0xF4:
        return AFTER_F4;
    default:
        return b < 0xE0 ? LAST : b < 0xF0 ? TWO : THREE;
    }
}

static int char_to(unsigned state, unsigned b) {
    static const struct {
        uint8_t lo, hi, to;
    } next[N_CHAR] = {[LAST] = {0x80, 0xBF, BETWEEN},  [TWO] = {0x80, 0xBF, LAST},      [THREE] = {0x80, 0xBF, TWO},
                      [AFTER_E0] = {0xA0, 0xBF, LAST}, [AFTER_ED] = {0x80, 0x9F, LAST}, [AFTER_F0] = {0x90, 0xBF, TWO},
                      [AFTER_F4] = {0x80, 0x8F, TWO}};
    if (state == BETWEEN)
        return first_to(b);
    return b >= next[state].lo && b <= next[state].hi ? next[state].to : -1;
}

static void add_plain(td_gr_automaton *a, unsigned state, uint8_t class_, uint8_t to) {
    for (unsigned i = 0; i < a->n_plain[state]; i++)
        if (a->plain[state][i].class_ == class_ && a->plain[state][i].to == to)
            return;
    a->plain[state][a->n_plain[state]++] = (struct td_gr_plain){class_, to};
}

void td_gr_list_plain(td_gr_automaton *a) {
    for (unsigned state = 0; state < N_CHAR; state++)
        for (unsigned b = 0; b < 256; b++) {
            int to = char_to(state, b);
            if (to >= 0)
                add_plain(a, state, a->program->class_of[b], (uint8_t)to);
        }
}

/* ---- runs ---- */

typedef struct place {
    uint32_t config;
    uint8_t state; /* of a character */
} place;

typedef struct search {
    uint32_t configs[MAX_SEARCH]; /* found, in order of distance */
    unsigned n;
    bool full;
} search;

static void search_add(search *s, uint32_t config) {
    for (unsigned i = 0; i < s->n; i++)
        if (s->configs[i] == config)
            return;
    s->full = s->full || s->n == MAX_SEARCH;
    if (!s->full)
        s->configs[s->n++] = config;
}

/* Adds the configurations one plain character away; *all: no plain character is refused. */
static td_status add_targets(td_gr_automaton *a, uint32_t config, search *s, bool *all) {
    place places[MAX_PAIRS];
    unsigned n = 0;
    places[n++] = (place){config, BETWEEN};
    *all = true;
    for (unsigned i = 0; i < n && *all; i++) {
        place from = places[i];
        for (unsigned k = 0; k < a->n_plain[from.state] && *all; k++) {
            struct td_gr_plain edge = a->plain[from.state][k];
            place to = {.state = edge.to};
            unsigned known = 0;
            TD_TRY(td_gr_step(a, from.config, edge.class_, &to.config));
            *all = to.config != TD_GR_DEAD;
            if (*all && to.state == BETWEEN) {
                search_add(s, to.config);
                continue;
            }
            while (known < n && (places[known].config != to.config || places[known].state != to.state))
                known++;
            if (known == MAX_PAIRS)
                *all = false; /* as good as refused */
            else if (*all && known == n)
                places[n++] = to;
        }
    }
    return TD_OK;
}

static td_status find_run(td_gr_automaton *a, uint32_t config, unsigned *run) {
    search s = {.configs = {config}, .n = 1};
    unsigned done = 0, least = RUN_ENDLESS;
    for (unsigned distance = 0; done < s.n && distance < least; distance++) {
        for (unsigned level = s.n; done < level; done++) {
            unsigned known = a->nodes[s.configs[done]].run;
            bool all = true;
            if (known == 0)
                TD_TRY(add_targets(a, s.configs[done], &s, &all));
            unsigned here = known > 0 ? known - 1u : all ? RUN_ENDLESS : 0;
            if (here < RUN_ENDLESS && distance + here < least)
                least = distance + here < RUN_CAP ? distance + here : RUN_CAP;
        }
        if (s.full && distance + 1 < least)
            least = distance + 1 < RUN_CAP ? distance + 1 : RUN_CAP;
        if (distance == RUN_CAP && done < s.n && least > RUN_CAP)
            least = RUN_CAP;
    }
    *run = least;
    return TD_OK;
}

static td_status run_of(td_gr_automaton *a, uint32_t config, unsigned *run) {
    if (a->nodes[config].run == 0) {
        TD_TRY(find_run(a, config, run));
        a->nodes[config].run = (uint8_t)(*run + 1);
    }
    *run = a->nodes[config].run - 1u;
    return TD_OK;
}

/* ---- walks ---- */

static void set_bit(uint64_t *mask, td_token id) {
    mask[id / 64] |= (uint64_t)1 << (id % 64);
}

static td_status walk(td_gr_automaton *a, const td_trie_slice *s, uint32_t config, uint64_t *mask, size_t *seen) {
    const uint8_t *class_of = a->program->class_of;
    uint32_t *path = a->walk, i = 0;
    path[0] = config;
    while (i < s->n_nodes) {
        const td_trie_node *node = &s->nodes[i];
        uint32_t next;
        TD_TRY(td_gr_step(a, path[node->depth - 1], class_of[node->byte], &next));
        ++*seen;
        if (next == TD_GR_DEAD) {
            i = node->skip;
            continue;
        }
        path[node->depth] = next;
        for (uint32_t k = i > 0 ? s->nodes[i - 1].tokens_end : 0; k < node->tokens_end; k++)
            set_bit(mask, s->ids[k]);
        i++;
    }
    return TD_OK;
}

static void add_tokens(const td_gr_automaton *a, const td_token_trie *trie, uint32_t config, uint64_t *mask) {
    const td_gr_node *node = &a->nodes[config];
    if (node->flags & TD_GR_EMPTY_STACK)
        for (size_t i = 0; i < trie->n_end; i++)
            set_bit(mask, trie->end_tokens[i]);
    for (uint32_t i = 0; i < node->n; i++) {
        const td_gr_state *s = &a->program->states[a->frames.v[node->offset + i].state];
        if (s->kind == TD_GR_TOKEN)
            set_bit(mask, (td_token)s->arg);
    }
}

static td_status fill_mask(td_gr_automaton *a, const td_token_trie *trie, uint32_t config, uint64_t *mask,
                           size_t *seen) {
    unsigned run;
    memset(mask, 0, trie->n_words * sizeof *mask);
    add_tokens(a, trie, config, mask);
    TD_TRY(run_of(a, config, &run));
    for (int k = 0; k < TD_TRIE_SLICES; k++) {
        const td_trie_slice *s = &trie->slices[k];
        if (k == 0 || (run < RUN_ENDLESS && run < s->max_chars)) {
            TD_TRY(walk(a, s, config, mask, seen));
            continue;
        }
        for (size_t i = 0; i < trie->n_words; i++)
            mask[i] |= s->mask[i];
    }
    return TD_OK;
}

/* ---- masks that are kept ---- */

/* A slot to write to: a new one while there is room, else the one that was used longest ago. NULL: none, no matter. */
static td_gr_mask_slot *free_slot(td_gr_automaton *a, size_t n_words) {
    size_t max = MASK_BYTES / (n_words * sizeof(uint64_t) + 1), oldest = 0;
    max = max < 4 ? 4 : max > MAX_MASKS ? MAX_MASKS : max;
    if (!a->masks)
        a->masks = td_calloc(max, sizeof *a->masks);
    if (!a->masks)
        return NULL;
    if (a->n_masks < max) {
        td_gr_mask_slot *s = &a->masks[a->n_masks];
        *s = (td_gr_mask_slot){.words = td_calloc(n_words, sizeof *s->words), .node = TD_GR_UNKNOWN};
        a->n_masks += s->words != NULL;
        return s->words ? s : NULL;
    }
    for (size_t i = 1; i < a->n_masks; i++)
        if (a->masks[i].used < a->masks[oldest].used)
            oldest = i;
    if (a->masks[oldest].node != TD_GR_UNKNOWN)
        a->nodes[a->masks[oldest].node].mask = 0;
    return &a->masks[oldest];
}

td_status td_gr_mask(td_gr_automaton *a, const td_token_trie *trie, uint32_t config, uint64_t *mask) {
    size_t seen = 0, size = trie->n_words * sizeof *mask;
    a->time++;
    if (a->nodes[config].mask) {
        td_gr_mask_slot *s = &a->masks[a->nodes[config].mask - 1];
        s->used = a->time;
        memcpy(mask, s->words, size);
        return TD_OK;
    }
    TD_TRY(fill_mask(a, trie, config, mask, &seen));
    td_gr_mask_slot *s = seen > LONG_WALK ? free_slot(a, trie->n_words) : NULL;
    if (s) {
        memcpy(s->words, mask, size);
        *s = (td_gr_mask_slot){s->words, config, a->time};
        a->nodes[config].mask = (uint32_t)(s - a->masks) + 1;
    }
    return TD_OK;
}
