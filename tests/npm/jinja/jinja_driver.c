/* jinja_driver.c - renders cases for the comparison with another implementation.
 *
 * Standard input: a JSON array of {"template": text, "context": object, "now": seconds (optional)}.
 * Standard output: a JSON array of {"text": rendered} or {"error": message, "status": name}, in the same order. */
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "text/jinja.h"

static json_t *failure(const td_error *err) {
    return json_pack("{s:s, s:s}", "error", err->message, "status", td_status_name(err->status));
}

static json_t *render_case(const json_t *item) {
    const json_t *source = json_object_get(item, "template"), *context = json_object_get(item, "context");
    td_jinja_options options = {.now = json_integer_value(json_object_get(item, "now"))};
    td_jinja *t = NULL;
    td_error err = {0};
    td_buf out;
    td_buf_init(&out, TD_JINJA_MAX_OUTPUT);
    td_status st = td_jinja_compile(&t, json_string_value(source), json_string_length(source), "template", &err);
    if (st == TD_OK)
        st = td_jinja_render(t, context, &options, &out, &err);
    json_t *result = st == TD_OK ? json_pack("{s:s%}", "text", td_buf_str(&out), out.size) : failure(&err);
    td_buf_free(&out);
    td_jinja_free(&t);
    return result;
}

int main(void) {
    json_error_t error;
    json_t *cases = json_loadf(stdin, JSON_ALLOW_NUL, &error);
    json_t *results = json_array();
    if (!json_is_array(cases) || !results) {
        fprintf(stderr, "expected a JSON array of cases: %s\n", error.text);
        return 2;
    }
    for (size_t i = 0; i < json_array_size(cases); i++)
        if (json_array_append_new(results, render_case(json_array_get(cases, i))) != 0)
            return 2;
    int written = json_dumpf(results, stdout, JSON_COMPACT);
    json_decref(results);
    json_decref(cases);
    return written == 0 ? 0 : 2;
}
