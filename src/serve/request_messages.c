/* request_messages.c - the conversation, as far as it can be judged without a template: roles, content, tool calls.
 *
 * Pictures and sound are refused here, whatever the template would make of them: no tower reads them. */
#include <stdio.h>
#include <string.h>

#include "serve/request_impl.h"

static const char *const roles[] = {"system", "developer", "user", "assistant", "tool"};

static td_status check_role(const td_fields *m, const char **role) {
    TD_TRY(td_field_text(m, "role", role));
    if (!*role)
        return td_field_missing(m, "role");
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (strcmp(*role, roles[i]) == 0)
            return TD_OK;
    return td_field_fail(m, "role", "invalid_value", "is '%.40s', expected system, developer, user, assistant or tool",
                         *role);
}

static td_status check_part(const td_fields *m, const json_t *part, size_t i) {
    char path[96];
    const char *type = NULL, *text = NULL;
    snprintf(path, sizeof path, "%s.content[%zu]", m->path, i);
    td_fields p = {part, path, m->fault};
    if (!json_is_object(part))
        return td_field_type(&p, "", part, "an object");
    TD_TRY(td_field_text(&p, "type", &type));
    if (!type)
        return td_field_missing(&p, "type");
    if (strcmp(type, "text") != 0)
        return td_field_fail(&p, "type", "unsupported_value",
                             "is '%.40s'; this server reads text only, no pictures, sound or files", type);
    TD_TRY(td_field_text(&p, "text", &text));
    return text ? TD_OK : td_field_missing(&p, "text");
}

static td_status check_content(const td_fields *m, const char *role, bool has_calls) {
    const json_t *content = td_field(m, "content");
    if (!content && strcmp(role, "assistant") != 0)
        return td_field_missing(m, "content");
    if (!content && !has_calls && !td_field(m, "reasoning_content") && !td_field(m, "refusal"))
        return td_field_fail(m, "content", "missing_required_parameter", "is missing, and there are no 'tool_calls'");
    if (!content || json_is_string(content))
        return TD_OK;
    if (!json_is_array(content))
        return td_field_type(m, "content", content, "a string or a list of parts");
    for (size_t i = 0; i < json_array_size(content); i++)
        TD_TRY(check_part(m, json_array_get(content, i), i));
    return TD_OK;
}

static td_status check_call(const td_fields *m, const json_t *call, size_t i) {
    char path[96], inner[112];
    const char *text = NULL, *name = NULL;
    json_t *function = NULL;
    snprintf(path, sizeof path, "%s.tool_calls[%zu]", m->path, i);
    snprintf(inner, sizeof inner, "%s.function", path);
    td_fields c = {call, path, m->fault};
    if (!json_is_object(call))
        return td_field_type(&c, "", call, "an object");
    TD_TRY(td_field_text(&c, "id", &text));
    TD_TRY(td_field_object(&c, "function", &function));
    if (!function)
        return td_field_missing(&c, "function");
    td_fields q = {function, inner, m->fault};
    TD_TRY(td_field_text(&q, "name", &name));
    if (!name)
        return td_field_missing(&q, "name");
    const json_t *arguments = td_field(&q, "arguments");
    if (arguments && !json_is_string(arguments) && !json_is_object(arguments))
        return td_field_type(&q, "arguments", arguments, "a string that holds a JSON object");
    return TD_OK;
}

static td_status check_message(const td_fields *f, const json_t *message, size_t i) {
    char path[64];
    const char *role = NULL, *text = NULL;
    json_t *calls = NULL;
    snprintf(path, sizeof path, "messages[%zu]", i);
    td_fields m = {message, path, f->fault};
    if (!json_is_object(message))
        return td_field_type(&m, "", message, "an object with 'role' and 'content'");
    TD_TRY(check_role(&m, &role));
    TD_TRY(td_field_array(&m, "tool_calls", &calls));
    TD_TRY(check_content(&m, role, json_array_size(calls) > 0));
    for (size_t k = 0; k < json_array_size(calls); k++)
        TD_TRY(check_call(&m, json_array_get(calls, k), k));
    TD_TRY(td_field_text(&m, "name", &text));
    TD_TRY(td_field_text(&m, "reasoning_content", &text));
    TD_TRY(td_field_text(&m, "tool_call_id", &text));
    if (td_field(&m, "function_call"))
        return td_field_fail(&m, "function_call", "unsupported_parameter", "is not supported; use 'tool_calls'");
    return TD_OK;
}

td_status td_api_check_messages(const td_api_request *r, const td_fields *f) {
    size_t n = json_array_size(r->messages);
    if (n == 0)
        return td_field_fail(f, "messages", "invalid_value", "is empty, expected at least one message");
    for (size_t i = 0; i < n; i++)
        TD_TRY(check_message(f, json_array_get(r->messages, i), i));
    if (!r->continue_final)
        return TD_OK;
    const json_t *last = json_array_get(r->messages, n - 1);
    const char *role = json_string_value(json_object_get(last, "role"));
    if (strcmp(role, "assistant") != 0 || !json_is_string(json_object_get(last, "content")))
        return td_field_fail(f, "continue_final_message", "invalid_value",
                             "needs a last message of the assistant with a text");
    return TD_OK;
}
