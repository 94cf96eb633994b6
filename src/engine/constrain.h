/* constrain.h - what a request says its answer must match, made into a constraint of the decoder. */
#ifndef TD_ENGINE_CONSTRAIN_H
#define TD_ENGINE_CONSTRAIN_H

#include "decode/constraint.h"
#include "engine/engine.h"

/* *out is NULL when the spec asks for nothing. Any thread. TD_E_ARG: a schema, grammar or tool that cannot be met, with
 * its place; TD_E_NOTFOUND: there is no tokenizer. */
td_status td_constrain_open(td_constraint **out, td_engine *e, const td_constraint_spec *spec,
                            td_error *err) TD_MUST_CHECK;

#endif
