/* grammar.h - constrained output: which tokens may come next, so that what a model writes keeps to a grammar.
 *
 * A grammar is compiled once, for one vocabulary (token_trie.h), from GBNF text, from a JSON Schema (json_schema.h), or
 * for forced tool calls (grammar_calls.h). A state follows one sequence; for every row it gives a mask of the tokens
 * that keep the text on a way to its end. From every state an end can be reached, so a mask is never empty (as long as
 * the vocabulary can write every byte the grammar asks for, which every published one can).
 *
 *     td_grammar_state_open(&s, grammar, err);
 *     for each row:  td_grammar_state_allowed(s, mask, NULL, err);  ... sample under the mask ...
 *                    td_grammar_state_advance(s, token, err);
 *     a draft:       td_grammar_state_accepts(s, draft, n, &n_ok, err);  cut the draft there, or, for the rows of one
 *                    pass, clone the state and take allowed() and advance() in turns
 *
 * Texts are bytes: an element of a grammar is a character, but a token may end inside one. Special tokens match no
 * text, only token literals; end tokens are allowed exactly where the text is complete.
 *
 * Threads: a td_grammar may be used by any number of threads. Its caches (states of the automaton met so far, masks)
 * stand behind a lock that each call on a state holds while it works: sequences of one grammar share what they learn.
 * A state belongs to one thread at a time.
 *
 * Cost. A mask is remembered by the state of the automaton, so that most rows copy one. Memory: the caches of a grammar
 * are emptied when they pass TD_GRAMMAR_CACHE_BYTES. Time is bounded: ambiguity makes sets of stacks that share their
 * tails, never lists of parses; a grammar that outgrows TD_GRAMMAR_MAX_BYTES in one step is TD_E_LIMIT. */
#ifndef TD_TEXT_GRAMMAR_H
#define TD_TEXT_GRAMMAR_H

#include "base/status.h"
#include "text/reply.h"
#include "text/token_trie.h"

#define TD_GRAMMAR_MAX_TEXT ((size_t)1 << 20) /* bytes of GBNF */
#define TD_GRAMMAR_MAX_STATES 1000000u        /* of a compiled grammar, its repetitions written out */
#define TD_GRAMMAR_MAX_RULES 100000u
#define TD_GRAMMAR_MAX_NESTING 200u /* brackets in GBNF; levels of a schema */
#define TD_GRAMMAR_MAX_DEPTH 250u   /* nested uses of rules in a text, the default: about as many levels of brackets */
#define TD_GRAMMAR_CACHE_BYTES ((size_t)48 << 20)
#define TD_GRAMMAR_MAX_BYTES ((size_t)192 << 20)

typedef struct td_grammar td_grammar;

/* What may stand in front of the text that the grammar describes: thoughts, in the model's form. Zeroed: nothing. */
typedef struct td_grammar_options {
    td_reply_think think;  /* not NONE: thoughts may come first, any text up to their closing marker */
    bool inside_reasoning; /* the prompt has opened them: they come first */
    uint32_t max_depth;    /* 0: TD_GRAMMAR_MAX_DEPTH. Deeper texts are masked out, never begun */
} td_grammar_options;

/* Compiles GBNF, the dialect of llama.cpp:
 *
 *   name ::= alternates      names of letters, digits, - and _; the text is `root`; a rule ends at its line's end,
 *                            unless inside ( ) or behind | or ::=; # begins a comment
 *   "text"  [a-zA-Z_]  [^"]  .      characters; escapes \n \r \t \\ \" \[ \] \- \^ \xHH \uHHHH \UHHHHHHHH; "." is any
 *                            character. [^...] and "." leave U+0000 out, which no answer can hold
 *   a b     a | b     (a)    sequence, alternatives, group; nothing at all is the empty text
 *   a* a+ a? a{3} a{3,} a{3,5}
 *   <[1234]>                 the token with this id, special or not
 *   <name>                   the token whose name is "<name>", as <think> or <|tool_call>
 *   <[name]>                 the token of any other name: <[[TOOL_CALLS]]>
 *
 * opt may be NULL. The trie is borrowed.
 * Errors: TD_E_FORMAT "line 3, column 7: ..." (position: the byte), for syntax, rules without definition or with two,
 * left recursion, a token that the vocabulary lacks, and a grammar no text can satisfy; TD_E_LIMIT; TD_E_NOMEM. */
td_status td_grammar_from_gbnf(td_grammar **out, const td_token_trie *trie, const char *text, size_t size,
                               const td_grammar_options *opt, td_error *err) TD_MUST_CHECK;

/* One more owner; returns grammar. Each owner closes. */
td_grammar *td_grammar_ref(td_grammar *grammar);
void td_grammar_close(td_grammar **grammar);
const td_token_trie *td_grammar_trie(const td_grammar *grammar);

/* ---- a sequence ---- */

typedef struct td_grammar_state td_grammar_state;

/* At the beginning of the text. Owns a reference to the grammar. TD_E_NOMEM, TD_E_LIMIT. */
td_status td_grammar_state_open(td_grammar_state **out, td_grammar *grammar, td_error *err) TD_MUST_CHECK;
/* A copy at the same place, a few dozen bytes. TD_E_NOMEM. */
td_status td_grammar_state_clone(td_grammar_state **out, const td_grammar_state *from, td_error *err) TD_MUST_CHECK;
/* Puts `to` where `from` is; both of one grammar. Allocates nothing: for a scratch state kept through many rounds. */
void td_grammar_state_assign(td_grammar_state *to, const td_grammar_state *from);
void td_grammar_state_close(td_grammar_state **state);

/* Writes the mask of the tokens that may come next: bit t % 64 of word t / 64.
 * mask       [td_token_trie.n_words], the caller's; written only on TD_OK
 * n_allowed  how many there are; may be NULL. After an end token: 0.
 * Errors: TD_E_MODEL when no token of this vocabulary can go on (see above); TD_E_LIMIT; TD_E_NOMEM. The state stays
 * as it is. */
td_status td_grammar_state_allowed(td_grammar_state *state, uint64_t *mask, size_t *n_allowed,
                                   td_error *err) TD_MUST_CHECK;

/* Takes a token. TD_E_ARG when it is not allowed here (names it; the state stays as it is); TD_E_LIMIT; TD_E_NOMEM. */
td_status td_grammar_state_advance(td_grammar_state *state, td_token token, td_error *err) TD_MUST_CHECK;

/* *n_accepted: how many of tokens[0..n) could be taken from here one after the other, an end token included, after
 * which nothing can. The state stays as it is. */
td_status td_grammar_state_accepts(td_grammar_state *state, const td_token *tokens, size_t n, size_t *n_accepted,
                                   td_error *err) TD_MUST_CHECK;

/* Takes text as it stands, of no token. TD_E_ARG, at err->position, when a byte does not fit: the state stays as it was
 * before the text. */
td_status td_grammar_state_advance_text(td_grammar_state *state, const char *text, size_t size,
                                        td_error *err) TD_MUST_CHECK;

/* The text so far is one that the grammar describes: an end token may come. */
bool td_grammar_state_is_complete(const td_grammar_state *state);
/* Nothing but an end token may come, or one has come. */
bool td_grammar_state_must_end(const td_grammar_state *state);
/* An end token has been taken. */
bool td_grammar_state_has_ended(const td_grammar_state *state);

static inline bool td_mask_has(const uint64_t *mask, td_token token) {
    return mask[token / 64] >> (token % 64) & 1;
}

#endif
