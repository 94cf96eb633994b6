/* chat_messages.c - messages of a request, in OpenAI's form, put into the form a template takes.
 *
 * Messages are copied one level deep and changed there; what is not changed is shared with the request. */
#include <string.h>

#include "base/buf.h"
#include "text/chat_internal.h"

enum { JOINED_CEILING = 1 << 30 }; /* of texts that the request holds already */

static td_status nomem(td_error *err) {
    return td_fail(err, TD_E_NOMEM, "out of memory for the messages");
}

/* Sets a member to a new value; a NULL value is a failed allocation. */
static td_status set_new(json_t *object, const char *name, json_t *value, td_error *err) {
    return json_object_set_new(object, name, value) == 0 ? TD_OK : nomem(err);
}

json_t *td_chat_copy(const json_t *value) {
    bool object = json_is_object(value);
    json_t *copy = object ? json_object() : json_array(), *from = (json_t *)value; /* jansson takes it so, and reads */
    if (copy && (object ? json_object_update(copy, from) : json_array_extend(copy, from)) == 0)
        return copy;
    json_decref(copy);
    return NULL;
}

/* ---- content ---- */

/* The text of a part, or NULL when it is of another kind. */
static const json_t *part_text(const json_t *part) {
    const char *type = json_string_value(json_object_get(part, "type"));
    const json_t *text = json_object_get(part, "text");
    return (!type || !strcmp(type, "text") || !strcmp(type, "input_text")) && json_is_string(text) ? text : NULL;
}

static td_status not_text(const json_t *part, size_t index, td_error *err) {
    const char *type = json_string_value(json_object_get(part, "type"));
    if (!type)
        return td_fail(err, TD_E_ARG,
                       "messages[%zu]: a part of the content must be an object with \"type\" and, for a "
                       "text, \"text\"",
                       index);
    if (!strcmp(type, "text"))
        return td_fail(err, TD_E_ARG, "messages[%zu]: a part of type \"text\" must have a string \"text\"", index);
    return td_fail(err, TD_E_UNSUPPORTED,
                   "messages[%zu]: a part of type \"%s\"; the chat template of this model takes text only", index,
                   type);
}

static td_status join_parts(const json_t *parts, size_t index, json_t **out, td_error *err) {
    td_buf text;
    td_buf_init(&text, JOINED_CEILING);
    for (size_t i = 0; i < json_array_size(parts); i++) {
        const json_t *part = json_array_get(parts, i), *piece = part_text(part);
        if (!piece) {
            td_buf_free(&text);
            return not_text(part, index, err);
        }
        if (i)
            td_buf_putc(&text, '\n');
        td_buf_append(&text, json_string_value(piece), json_string_length(piece));
    }
    const char *joined = td_buf_str(&text);
    *out = joined ? json_stringn_nocheck(joined, text.size) : NULL;
    td_buf_free(&text);
    return *out ? TD_OK : nomem(err);
}

static td_status check_parts(const json_t *parts, size_t index, td_error *err) {
    for (size_t i = 0; i < json_array_size(parts); i++)
        if (!json_is_string(json_object_get(json_array_get(parts, i), "type")))
            return not_text(json_array_get(parts, i), index, err);
    return TD_OK;
}

static td_status normalise_content(json_t *message, size_t index, const td_chat_traits *traits, td_error *err) {
    json_t *content = json_object_get(message, "content"), *made;
    if (!content || json_is_null(content)) {
        TD_TRY(set_new(message, "content", json_string(""), err));
        content = json_object_get(message, "content");
    }
    if (json_is_array(content) && traits->takes_parts)
        return check_parts(content, index, err);
    if (json_is_array(content)) {
        TD_TRY(join_parts(content, index, &made, err));
        return set_new(message, "content", made, err);
    }
    if (!json_is_string(content) && !json_is_object(content)) /* an object: the result of a tool, unserialised */
        return td_fail(err, TD_E_ARG, "messages[%zu]: \"content\" must be a string, a list of parts, or null", index);
    if (!traits->needs_parts || !json_is_string(content))
        return TD_OK;
    return set_new(message, "content", json_pack("[{s:s, s:O}]", "type", "text", "text", content), err);
}

/* ---- tool calls ---- */

static int append_json(const char *bytes, size_t n, void *buf) {
    return td_buf_append(buf, bytes, n) == TD_OK ? 0 : -1;
}

/* Spaced as Python's json.dumps does it, since that is what models were trained on. */
static json_t *json_as_text(const json_t *value) {
    td_buf text;
    td_buf_init(&text, JOINED_CEILING);
    bool ok = json_dump_callback(value, append_json, &text, 0) == 0;
    json_t *made = ok ? json_stringn_nocheck(text.data, text.size) : NULL;
    td_buf_free(&text);
    return made;
}

static td_status convert_arguments(json_t *function, bool objects, td_error *err) {
    const json_t *arguments = json_object_get(function, "arguments");
    if (!objects)
        return json_is_object(arguments) ? set_new(function, "arguments", json_as_text(arguments), err) : TD_OK;
    if (!json_is_string(arguments))
        return TD_OK;
    json_error_t error = {.line = -1};
    size_t size = json_string_length(arguments);
    json_t *parsed = size ? json_loadb(json_string_value(arguments), size, 0, &error) : json_object();
    if (json_is_object(parsed))
        return set_new(function, "arguments", parsed, err);
    if (!parsed && error.line < 0)
        return nomem(err);
    json_decref(parsed); /* no object: the template gets what the client sent */
    return TD_OK;
}

static td_status normalise_call(json_t *calls, size_t at, size_t index, bool objects, td_error *err) {
    const json_t *given = json_array_get(calls, at);
    if (!json_is_object(given))
        return td_fail(err, TD_E_ARG, "messages[%zu].tool_calls[%zu] must be an object", index, at);
    json_t *call = td_chat_copy(given);
    if (!call || json_array_set_new(calls, at, call) != 0)
        return nomem(err);
    const json_t *function = json_object_get(call, "function");
    if (!json_is_object(function))
        return TD_OK; /* the bare form: name and arguments at this level */
    json_t *copy = td_chat_copy(function);
    if (!copy || json_object_set_new(call, "function", copy) != 0)
        return nomem(err);
    if (!json_is_string(json_object_get(copy, "name")))
        return td_fail(err, TD_E_ARG, "messages[%zu].tool_calls[%zu]: the function has no \"name\"", index, at);
    return convert_arguments(copy, objects, err);
}

static td_status normalise_calls(json_t *message, size_t index, const td_chat_traits *traits, td_error *err) {
    const json_t *given = json_object_get(message, "tool_calls");
    if (!given)
        return TD_OK;
    if (!json_is_array(given))
        return td_fail(err, TD_E_ARG, "messages[%zu]: \"tool_calls\" must be a list", index);
    if (json_array_size(given) == 0) { /* templates ask whether the member is there */
        json_object_del(message, "tool_calls");
        return TD_OK;
    }
    json_t *calls = td_chat_copy(given);
    TD_TRY(set_new(message, "tool_calls", calls, err));
    for (size_t i = 0; i < json_array_size(calls); i++)
        TD_TRY(normalise_call(calls, i, index, traits->takes_call_objects, err));
    return TD_OK;
}

/* ---- messages ---- */

static void drop_nulls(json_t *message) {
    void *next;
    for (void *at = json_object_iter(message); at; at = next) {
        const char *name = json_object_iter_key(at);
        next = json_object_iter_next(message, at);
        if (json_is_null(json_object_iter_value(at)) && strcmp(name, "content") != 0)
            json_object_del(message, name);
    }
}

static td_status normalise_role(json_t *message, size_t index, const td_chat_traits *traits, td_error *err) {
    const char *role = json_string_value(json_object_get(message, "role"));
    if (!role)
        return td_fail(err, TD_E_ARG, "messages[%zu]: expected an object with a \"role\"", index);
    if (strcmp(role, "developer") != 0 || traits->knows_developer)
        return TD_OK;
    return set_new(message, "role", json_string("system"), err);
}

/* Clients send thoughts back under either of two names; templates mostly read this one. */
static td_status normalise_reasoning(json_t *message, td_error *err) {
    json_t *reasoning = json_object_get(message, "reasoning");
    if (!json_is_string(reasoning) || json_object_get(message, "reasoning_content"))
        return TD_OK;
    return json_object_set(message, "reasoning_content", reasoning) == 0 ? TD_OK : nomem(err);
}

static td_status normalise_message(json_t *message, size_t index, const td_chat_traits *traits, td_error *err) {
    drop_nulls(message);
    TD_TRY(normalise_role(message, index, traits, err));
    TD_TRY(normalise_reasoning(message, err));
    TD_TRY(normalise_content(message, index, traits, err));
    return normalise_calls(message, index, traits, err);
}

static td_status normalise_all(const json_t *messages, const td_chat_traits *traits, json_t *out, td_error *err) {
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *given = json_array_get(messages, i);
        if (!json_is_object(given))
            return td_fail(err, TD_E_ARG, "messages[%zu]: expected an object with a \"role\"", i);
        json_t *copy = td_chat_copy(given);
        if (!copy || json_array_append_new(out, copy) != 0)
            return nomem(err);
        TD_TRY(normalise_message(copy, i, traits, err));
    }
    return TD_OK;
}

td_status td_chat_messages_normalise(const json_t *messages, const td_chat_traits *traits, json_t **out,
                                     td_error *err) {
    *out = NULL;
    if (!json_is_array(messages))
        return td_fail(err, TD_E_ARG, "messages must be a list");
    json_t *made = json_array();
    td_status st = made ? normalise_all(messages, traits, made, err) : nomem(err);
    if (st != TD_OK)
        json_decref(made);
    else
        *out = made;
    return st;
}
