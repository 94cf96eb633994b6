/* constrain.c - see constrain.h. */
#include "engine/constrain.h"

td_status td_constrain_open(td_constraint **out, td_engine *e, const td_constraint_spec *spec, td_error *err) {
    *out = NULL;
    if (!spec->json_schema && !spec->grammar && !spec->json_object && !spec->tools)
        return TD_OK;
    if (!e->tokenizer)
        return td_fail(err, TD_E_NOTFOUND, "a constraint needs a tokenizer: %s", e->tokenizer_error);
    return td_fail(err, TD_E_UNSUPPORTED, "constrained output");
}
