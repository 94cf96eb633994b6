/* request_format.c - what the text must match: response_format as OpenAI has it, grammar as llama.cpp has it. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "serve/request_impl.h"

static td_status dump_schema(td_api_request *r, const td_fields *f, const json_t *schema) {
    td_buf b;
    td_buf_init(&b, (size_t)1 << 30);
    char *text = json_dumps(schema, JSON_COMPACT);
    if (text)
        td_buf_puts(&b, text);
    free(text);
    r->json_schema = text ? td_buf_steal(&b) : NULL;
    td_buf_free(&b);
    return r->json_schema ? TD_OK : td_fault_of(f->fault, &(td_error){.status = TD_E_NOMEM}, NULL);
}

/* {"type": "json_schema", "json_schema": {"name", "schema", "strict"}}. A schema always holds, strict or not: a model
 * that is held to it loses nothing. */
static td_status read_schema(td_api_request *r, const td_fields *f, const json_t *format) {
    json_t *given = NULL, *schema = NULL;
    td_fields o = {format, "response_format", f->fault};
    TD_TRY(td_field_object(&o, "json_schema", &given));
    if (!given)
        return td_field_missing(&o, "json_schema");
    td_fields s = {given, "response_format.json_schema", f->fault};
    bool strict = false;
    const char *name = NULL;
    TD_TRY(td_field_text(&s, "name", &name));
    TD_TRY(td_field_bool(&s, "strict", &strict));
    TD_TRY(td_field_object(&s, "schema", &schema));
    if (!schema)
        return td_field_missing(&s, "schema");
    return dump_schema(r, f, schema);
}

static td_status read_response_format(td_api_request *r, const td_fields *f) {
    json_t *format = NULL, *schema = NULL;
    const char *type = NULL;
    TD_TRY(td_field_object(f, "response_format", &format));
    if (!format)
        return TD_OK;
    td_fields o = {format, "response_format", f->fault};
    TD_TRY(td_field_text(&o, "type", &type));
    if (!type)
        return td_field_missing(&o, "type");
    if (strcmp(type, "text") == 0)
        return TD_OK;
    if (strcmp(type, "json_schema") == 0)
        return read_schema(r, f, format);
    if (strcmp(type, "json_object") != 0)
        return td_field_fail(&o, "type", "invalid_value", "is '%.40s', expected text, json_object or json_schema",
                             type);
    TD_TRY(td_field_object(&o, "schema", &schema)); /* llama.cpp's way to give a schema */
    r->json_object = !schema;
    return schema ? dump_schema(r, f, schema) : TD_OK;
}

td_status td_api_read_format(td_api_request *r, const td_fields *f) {
    TD_TRY(read_response_format(r, f));
    TD_TRY(td_field_text(f, "grammar", &r->grammar));
    if (r->grammar && r->grammar[0] == '\0')
        r->grammar = NULL;
    if (r->grammar && (r->json_schema || r->json_object))
        return td_field_fail(f, "grammar", "invalid_value", "and 'response_format' exclude each other");
    return TD_OK;
}
