/* constrain.h - what a request says its answer must match, made into a constraint of the decoder.
 *
 * A grammar is compiled once for many requests: the latest ones are kept by their text, with what their automata have
 * learned, and shared by the sequences that use them. The trie of the vocabulary is built when the first constraint
 * asks for it. */
#ifndef TD_ENGINE_CONSTRAIN_H
#define TD_ENGINE_CONSTRAIN_H

#include "decode/constraint.h"
#include "engine/engine.h"

/* The store of an engine; n_vocab and the end tokens are the engine's. */
td_status td_grammars_open(td_grammars **out, td_error *err) TD_MUST_CHECK;
void td_grammars_close(td_grammars **store);

/* *out is NULL when the spec asks for nothing. Any thread. TD_E_ARG: a schema, grammar or tool that cannot be met, with
 * its place; TD_E_NOTFOUND: there is no tokenizer. */
td_status td_constrain_open(td_constraint **out, td_engine *e, const td_constraint_spec *spec,
                            td_error *err) TD_MUST_CHECK;

#endif
