/* constrain.c - see constrain.h. */
#include "engine/constrain.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "text/grammar.h"
#include "text/grammar_calls.h"
#include "text/json_schema.h"

#define MAX_GRAMMARS 32
#define MAX_KEY ((size_t)8 << 20)
#define MAX_NESTING 100

typedef struct entry {
    char *key; /* everything that the grammar depends on */
    td_grammar *grammar;
    uint64_t used;
} entry;

struct td_grammars {
    pthread_mutex_t lock; /* of everything here; held while a grammar is compiled, so that one is compiled once */
    td_token_trie *trie;
    entry entries[MAX_GRAMMARS];
    uint64_t clock;
};

td_status td_grammars_open(td_grammars **out, td_error *err) {
    td_grammars *s = *out = td_calloc(1, sizeof *s);
    if (!s)
        return td_fail(err, TD_E_NOMEM, "out of memory for grammars");
    pthread_mutex_init(&s->lock, NULL);
    return TD_OK;
}

void td_grammars_close(td_grammars **ps) {
    if (!*ps)
        return;
    td_grammars *s = *ps;
    for (int i = 0; i < MAX_GRAMMARS; i++) {
        td_free(s->entries[i].key);
        td_grammar_close(&s->entries[i].grammar);
    }
    td_token_trie_close(&s->trie);
    pthread_mutex_destroy(&s->lock);
    td_free(s);
    *ps = NULL;
}

/* ---- from a spec to a grammar ---- */

static const char *template_of(const td_engine *e, const td_constraint_spec *spec) {
    return e->chat ? td_chat_template_source(e->chat, spec->tools != NULL) : NULL;
}

static td_reply_format format_of(const td_engine *e, const td_constraint_spec *spec) {
    return td_reply_format_choose(e->info.family, template_of(e, spec));
}

/* The schema of a text beside calls; *out NULL: there is none. */
static td_status parse_text_schema(json_t **out, const td_constraint_spec *spec, td_error *err) {
    const char *text = spec->json_object ? "{\"type\":\"object\"}" : spec->json_schema;
    *out = NULL;
    return text ? td_json_parse(text, strlen(text), MAX_NESTING, "schema", out, err) : TD_OK;
}

static td_status compile_tools(td_grammar **out, const td_engine *e, const td_token_trie *trie,
                               const td_constraint_spec *spec, const td_grammar_options *opt, td_error *err) {
    json_t *tools, *schema;
    TD_TRY(parse_text_schema(&schema, spec, err));
    td_status st = td_json_parse(spec->tools, strlen(spec->tools), MAX_NESTING, "tools", &tools, err);
    if (st != TD_OK) {
        json_decref(schema);
        return st;
    }
    td_grammar_calls_options calls = {.format = format_of(e, spec),
                                      .tools = tools,
                                      .name = spec->tool_name,
                                      .parallel = !spec->one_call,
                                      .or_schema = schema,
                                      .chat_template = template_of(e, spec),
                                      .grammar = *opt};
    st = td_grammar_from_tools(out, trie, &calls, err);
    json_decref(tools);
    json_decref(schema);
    return st;
}

static td_status compile_schema(td_grammar **out, const td_token_trie *trie, const char *text,
                                const td_grammar_options *opt, td_error *err) {
    json_t *schema;
    td_status st = td_json_parse(text, strlen(text), MAX_NESTING, "schema", &schema, err);
    if (st != TD_OK)
        return st;
    st = td_grammar_from_json_schema(out, trie, schema, opt, err);
    json_decref(schema);
    return st;
}

static td_status compile(td_grammar **out, const td_engine *e, const td_token_trie *trie,
                         const td_constraint_spec *spec, td_error *err) {
    td_grammar_options opt = {.think = spec->may_think ? format_of(e, spec).think : TD_REPLY_THINK_NONE,
                              .inside_reasoning = spec->thinking};
    if (spec->tools)
        return compile_tools(out, e, trie, spec, &opt, err);
    if (spec->json_schema)
        return compile_schema(out, trie, spec->json_schema, &opt, err);
    if (spec->json_object)
        return td_grammar_any_json_object(out, trie, &opt, err);
    return td_grammar_from_gbnf(out, trie, spec->grammar, strlen(spec->grammar), &opt, err);
}

/* NULL: out of memory, or too long to keep. */
static char *key_of(const td_constraint_spec *spec) {
    td_buf b;
    td_buf_init(&b, MAX_KEY);
    const char *kind = spec->json_schema ? "schema" : spec->json_object ? "object" : spec->grammar ? "gbnf" : "calls";
    const char *text = spec->json_schema ? spec->json_schema : spec->grammar ? spec->grammar : "";
    const char *name = spec->tool_name;
    (void)td_buf_printf(&b, "%s %d%d%d %lld %s\n%s\n", kind, spec->may_think, spec->thinking, spec->one_call,
                        name ? (long long)strlen(name) : -1, name ? name : "", spec->tools ? spec->tools : "");
    (void)td_buf_puts(&b, text);
    return td_buf_steal(&b);
}

/* ---- the store ---- */

static td_status need_trie(td_grammars *s, const td_engine *e, td_error *err) {
    return s->trie ? TD_OK : td_token_trie_open(&s->trie, e->tokenizer, e->info.n_vocab, e->end, e->n_end, err);
}

/* A reference to the spec's grammar. */
static td_status find(td_grammars *s, const td_engine *e, const td_constraint_spec *spec, td_grammar **out,
                      td_error *err) {
    TD_TRY(need_trie(s, e, err));
    char *key = key_of(spec);
    entry *place = &s->entries[0];
    for (int i = 0; i < MAX_GRAMMARS && key; i++) {
        entry *at = &s->entries[i];
        if (at->key && strcmp(at->key, key) == 0) {
            td_free(key);
            at->used = ++s->clock;
            *out = td_grammar_ref(at->grammar);
            return TD_OK;
        }
        if (at->used < place->used)
            place = at;
    }
    td_status st = compile(out, e, s->trie, spec, err);
    if (st != TD_OK || !key) {
        td_free(key);
        return st;
    }
    td_free(place->key);
    td_grammar_close(&place->grammar);
    *place = (entry){.key = key, .grammar = td_grammar_ref(*out), .used = ++s->clock};
    return TD_OK;
}

/* ---- the constraint ---- */

typedef struct grammatical {
    td_constraint base;
    td_grammar_state *state;
    uint64_t *mask;
} grammatical;

static td_status allowed(td_constraint *c, const uint64_t **mask, td_error *err) {
    grammatical *g = (grammatical *)c;
    *mask = g->mask;
    return td_grammar_state_allowed(g->state, g->mask, NULL, err);
}

static td_status advance(td_constraint *c, td_token t, td_error *err) {
    return td_grammar_state_advance(((grammatical *)c)->state, t, err);
}

static uint32_t accepts(td_constraint *c, const td_token *draft, uint32_t n) {
    size_t accepted = 0;
    if (td_grammar_state_accepts(((grammatical *)c)->state, draft, n, &accepted, NULL) != TD_OK)
        return 0;
    return (uint32_t)accepted;
}

static void close_constraint(td_constraint *c) {
    grammatical *g = (grammatical *)c;
    td_grammar_state_close(&g->state);
    td_free(g->mask);
    td_free(g);
}

static const td_constraint_ops ops = {allowed, advance, accepts, close_constraint};

td_status td_constrain_open(td_constraint **out, td_engine *e, const td_constraint_spec *spec, td_error *err) {
    *out = NULL;
    int n = (spec->json_schema != NULL) + (spec->grammar != NULL) + spec->json_object;
    if (n == 0 && !spec->tools)
        return TD_OK;
    n += spec->tools && spec->grammar;
    if (n > 1)
        return td_fail(err, TD_E_ARG, "%d constraints on one answer, expected one", n);
    if (!e->tokenizer)
        return td_fail(err, TD_E_NOTFOUND, "a constraint needs a tokenizer: %s", e->tokenizer_error);
    grammatical *g = td_calloc(1, sizeof *g);
    if (!g)
        return td_fail(err, TD_E_NOMEM, "out of memory for a constraint");
    g->base.ops = &ops;
    td_grammar *grammar = NULL;
    pthread_mutex_lock(&e->grammars->lock);
    td_status st = find(e->grammars, e, spec, &grammar, err);
    size_t words = st == TD_OK ? e->grammars->trie->n_words : 0;
    pthread_mutex_unlock(&e->grammars->lock);
    if (st == TD_OK)
        st = td_grammar_state_open(&g->state, grammar, err);
    td_grammar_close(&grammar);
    g->mask = td_calloc(words + 1, sizeof *g->mask);
    if (st == TD_OK && !g->mask)
        st = td_fail(err, TD_E_NOMEM, "out of memory for a mask");
    if (st != TD_OK) {
        close_constraint(&g->base);
        return st == TD_E_FORMAT || st == TD_E_UNSUPPORTED ? td_error_prefix(err, TD_E_ARG, "constraint") : st;
    }
    *out = &g->base;
    return TD_OK;
}
