/* request_tools.c - the functions a chat may call, and whether it must. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "serve/request_impl.h"

static td_status check_name(const td_fields *f, const char *name) {
    size_t n = name ? strlen(name) : 0;
    if (!name)
        return td_field_missing(f, "name");
    bool good = n > 0 && n <= TD_API_MAX_NAME;
    for (size_t i = 0; good && i < n; i++)
        good = (unsigned char)name[i] > 0x20 && name[i] != 0x7F && !strchr("<>{}\"'=", name[i]);
    if (!good)
        return td_field_fail(f, "name", "invalid_value",
                             "is '%.60s', expected 1 to %d bytes without spaces, quotes, brackets and '='", name,
                             TD_API_MAX_NAME);
    return TD_OK;
}

static td_status check_tool(const td_fields *f, const json_t *tool, size_t i) {
    char path[64], inner[80];
    const char *type = NULL, *name = NULL, *text = NULL;
    json_t *function = NULL, *parameters = NULL;
    snprintf(path, sizeof path, "tools[%zu]", i);
    snprintf(inner, sizeof inner, "%s.function", path);
    td_fields t = {tool, path, f->fault};
    if (!json_is_object(tool))
        return td_field_type(&t, "", tool, "an object");
    TD_TRY(td_field_text(&t, "type", &type));
    if (!type)
        return td_field_missing(&t, "type");
    if (strcmp(type, "function") != 0)
        return td_field_fail(&t, "type", "unsupported_value", "is '%.40s', expected function", type);
    TD_TRY(td_field_object(&t, "function", &function));
    if (!function)
        return td_field_missing(&t, "function");
    td_fields q = {function, inner, f->fault};
    TD_TRY(td_field_text(&q, "name", &name));
    TD_TRY(check_name(&q, name));
    TD_TRY(td_field_text(&q, "description", &text));
    return td_field_object(&q, "parameters", &parameters);
}

static td_status check_tools(const td_fields *f, const json_t *tools) {
    size_t n = json_array_size(tools);
    if (n > TD_API_MAX_TOOLS)
        return td_field_fail(f, "tools", "invalid_value", "has %zu tools, expected at most %d", n, TD_API_MAX_TOOLS);
    for (size_t i = 0; i < n; i++)
        TD_TRY(check_tool(f, json_array_get(tools, i), i));
    return TD_OK;
}

/* ---- tool_choice ---- */

static bool is_tool(const json_t *tools, const char *name) {
    for (size_t i = 0; i < json_array_size(tools); i++) {
        const json_t *function = json_object_get(json_array_get(tools, i), "function");
        if (strcmp(json_string_value(json_object_get(function, "name")), name) == 0)
            return true;
    }
    return false;
}

static td_status read_named_choice(td_api_request *r, const td_fields *f, const json_t *choice) {
    const char *type = NULL;
    json_t *function = NULL;
    td_fields c = {choice, "tool_choice", f->fault};
    TD_TRY(td_field_text(&c, "type", &type));
    if (!type)
        return td_field_missing(&c, "type");
    if (strcmp(type, "function") != 0)
        return td_field_fail(&c, "type", "unsupported_value", "is '%.40s', expected function", type);
    TD_TRY(td_field_object(&c, "function", &function));
    if (!function)
        return td_field_missing(&c, "function");
    td_fields q = {function, "tool_choice.function", f->fault};
    TD_TRY(td_field_text(&q, "name", &r->tool_name));
    if (!r->tool_name)
        return td_field_missing(&q, "name");
    if (!is_tool(r->tools, r->tool_name))
        return td_field_fail(&q, "name", "invalid_value", "is '%.60s', which is not among 'tools'", r->tool_name);
    r->tool_choice = TD_TOOLS_REQUIRED;
    return TD_OK;
}

static td_status read_choice(td_api_request *r, const td_fields *f) {
    const json_t *choice = td_field(f, "tool_choice");
    if (!choice)
        return TD_OK;
    if (json_is_object(choice))
        return read_named_choice(r, f, choice);
    if (!json_is_string(choice))
        return td_field_type(f, "tool_choice", choice, "a string or an object");
    const char *word = json_string_value(choice);
    if (strcmp(word, "none") == 0)
        r->tool_choice = TD_TOOLS_NONE;
    else if (strcmp(word, "required") == 0)
        r->tool_choice = TD_TOOLS_REQUIRED;
    else if (strcmp(word, "auto") != 0)
        return td_field_fail(f, "tool_choice", "invalid_value",
                             "is '%.40s', expected none, auto, required or a named function", word);
    if (r->tool_choice == TD_TOOLS_REQUIRED && json_array_size(r->tools) == 0)
        return td_field_fail(f, "tool_choice", "invalid_value", "is 'required', but there are no 'tools'");
    return TD_OK;
}

static td_status dump_tools(td_api_request *r, const td_fields *f) {
    char *text = json_dumps(r->tools, JSON_COMPACT);
    r->tools_text = text ? td_strdup(text) : NULL;
    free(text);
    return r->tools_text ? TD_OK : td_fault_of(f->fault, &(td_error){.status = TD_E_NOMEM}, NULL);
}

td_status td_api_read_tools(td_api_request *r, const td_fields *f) {
    bool parallel = true;
    TD_TRY(td_field_array(f, "tools", &r->tools));
    TD_TRY(check_tools(f, r->tools));
    TD_TRY(read_choice(r, f));
    TD_TRY(td_field_bool(f, "parallel_tool_calls", &parallel));
    r->one_call = !parallel;
    if (r->tool_choice == TD_TOOLS_NONE || json_array_size(r->tools) == 0)
        r->tools = NULL;
    if (r->tools && r->tool_choice == TD_TOOLS_REQUIRED && r->grammar)
        return td_field_fail(f, "tool_choice", "invalid_value", "forces a call, while 'grammar' forces a text");
    return r->tools ? dump_tools(r, f) : TD_OK;
}
