/* chat.c - chat templates: opening, trying out, rendering.
 *
 * What form of messages a template takes is found by rendering two small conversations with words in them that no
 * template contains, and looking for the words in the prompt. That is what other engines do, and it is sturdier than
 * reading the template: templates reach the same content in many ways. */
#include <string.h>

#include "base/alloc.h"
#include "text/chat_internal.h"

#define PROBE_TEXT "tandemprobetext"
#define PROBE_NAME "tandemprobename"
#define PROBE_STEPS ((uint64_t)1000000)
enum { PROBE_OUTPUT = 1 << 20 };

static td_status nomem(td_error *err) {
    return td_fail(err, TD_E_NOMEM, "out of memory for the chat template");
}

/* ---- trying out ---- */

/* Renders `messages` (taken over; NULL: out of memory) into `text`. *shown: that went well. */
static td_status probe(const td_jinja *jinja, json_t *special, json_t *messages, td_buf *text, bool *shown) {
    td_jinja_options options = {.max_steps = PROBE_STEPS};
    td_error ignored;
    td_buf_clear(text);
    *shown = false;
    json_t *context = td_chat_copy(special);
    bool ok = context && messages && json_object_set(context, "messages", messages) == 0 &&
              json_object_set_new(context, "tools", json_null()) == 0 &&
              json_object_set_new(context, "add_generation_prompt", json_true()) == 0;
    td_status st = ok ? td_jinja_render(jinja, context, &options, text, &ignored) : TD_E_NOMEM;
    json_decref(context);
    json_decref(messages);
    *shown = st == TD_OK;
    return st == TD_E_NOMEM ? st : TD_OK; /* whatever else: this form is not taken */
}

static bool mentions(const td_buf *text, const char *what) {
    return text->data && strstr(text->data, what) != NULL;
}

static td_status probe_content(const td_jinja *jinja, json_t *special, td_buf *text, td_chat_traits *traits) {
    bool shown;
    TD_TRY(probe(jinja, special, json_pack("[{s:s, s:s}]", "role", "user", "content", PROBE_TEXT), text, &shown));
    bool takes_text = shown && mentions(text, PROBE_TEXT);
    TD_TRY(probe(jinja, special,
                 json_pack("[{s:s, s:[{s:s, s:s}]}]", "role", "user", "content", "type", "text", "text", PROBE_TEXT),
                 text, &shown));
    /* A template that prints the list as such shows the words too, among quotes and braces. */
    traits->takes_parts = shown && mentions(text, PROBE_TEXT) && !mentions(text, "'type': 'text'") &&
                          !mentions(text, "\"type\": \"text\"");
    traits->needs_parts = traits->takes_parts && !takes_text;
    return TD_OK;
}

static json_t *call_conversation(const td_chat_traits *traits, json_t *arguments) {
    json_t *content = traits->needs_parts ? json_pack("[{s:s, s:s}]", "type", "text", "text", "a") : json_string("a");
    return json_pack("[{s:s, s:O}, {s:s, s:s, s:[{s:s, s:s, s:{s:s, s:o}}]}, {s:s, s:s, s:s, s:o}]", "role", "user",
                     "content", content, "role", "assistant", "content", "", "tool_calls", "id", "abcdef123", "type",
                     "function", "function", "name", "f", "arguments", arguments, "role", "tool", "tool_call_id",
                     "abcdef123", "name", "f", "content", content);
}

static td_status probe_arguments(const td_jinja *jinja, json_t *special, td_buf *text, td_chat_traits *traits) {
    bool shown;
    TD_TRY(probe(jinja, special, call_conversation(traits, json_pack("{s:s}", PROBE_NAME, PROBE_TEXT)), text, &shown));
    bool takes_objects = shown && mentions(text, PROBE_NAME);
    json_t *as_text = json_string("{\"" PROBE_NAME "\": \"" PROBE_TEXT "\"}");
    TD_TRY(probe(jinja, special, call_conversation(traits, as_text), text, &shown));
    traits->takes_call_objects = takes_objects || !(shown && mentions(text, PROBE_NAME));
    return TD_OK;
}

static td_status find_traits(td_chat_variant *v, json_t *special, const char *source, td_error *err) {
    td_buf text;
    td_buf_init(&text, PROBE_OUTPUT);
    v->traits.knows_developer = strstr(source, "developer") != NULL;
    v->traits.uses_tools = td_jinja_uses(v->jinja, "tools");
    v->traits.uses_enable_thinking = td_jinja_uses(v->jinja, "enable_thinking");
    td_status st = probe_content(v->jinja, special, &text, &v->traits);
    if (st == TD_OK)
        st = probe_arguments(v->jinja, special, &text, &v->traits);
    td_buf_free(&text);
    return st == TD_OK ? TD_OK : nomem(err);
}

static td_status open_variant(td_chat_variant *v, const char *name, const char *source, size_t size, json_t *special,
                              td_error *err) {
    TD_TRY(td_jinja_compile(&v->jinja, source, size, name, err));
    v->source = td_strndup(source, size);
    if (!v->source)
        return nomem(err);
    return find_traits(v, special, source, err);
}

/* ---- opening ---- */

/* Takes the special tokens over. */
static td_status open_files(td_chat_template **out, td_chat_files *files, td_error *err) {
    td_chat_template *t = td_calloc(1, sizeof *t);
    if (!t)
        return nomem(err);
    t->special = files->special;
    files->special = NULL;
    td_status st = open_variant(&t->plain, files->name, files->source, files->size, t->special, err);
    if (st == TD_OK && files->tool_source)
        st = open_variant(&t->with_tools, files->name, files->tool_source, files->tool_size, t->special, err);
    if (st != TD_OK)
        td_chat_template_close(&t);
    *out = t;
    return st;
}

td_status td_chat_template_load(td_chat_template **out, const char *dir, td_error *err) {
    *out = NULL;
    td_chat_files files;
    TD_TRY(td_chat_files_read(&files, dir, err));
    td_status st = open_files(out, &files, err);
    td_chat_files_free(&files);
    return st;
}

static td_status set_token(json_t *special, const char *name, const char *token, td_error *err) {
    if (!token)
        return TD_OK;
    json_t *text = json_string(token);
    if (!text)
        return td_fail(err, TD_E_FORMAT, "%s is not UTF-8 text", name);
    return json_object_set_new(special, name, text) == 0 ? TD_OK : nomem(err);
}

td_status td_chat_template_from_text(td_chat_template **out, const td_chat_text *text, td_error *err) {
    *out = NULL;
    td_chat_files files = {.name = (char *)text->name,
                           .source = (char *)text->source,
                           .size = strlen(text->source),
                           .tool_source = (char *)text->tool_source,
                           .tool_size = text->tool_source ? strlen(text->tool_source) : 0,
                           .special = json_object()};
    td_status st = files.special ? TD_OK : nomem(err);
    if (st == TD_OK)
        st = set_token(files.special, "bos_token", text->bos_token, err);
    if (st == TD_OK)
        st = set_token(files.special, "eos_token", text->eos_token, err);
    if (st == TD_OK)
        st = open_files(out, &files, err);
    json_decref(files.special);
    return st;
}

void td_chat_template_close(td_chat_template **t) {
    if (!t || !*t)
        return;
    td_jinja_free(&(*t)->plain.jinja);
    td_jinja_free(&(*t)->with_tools.jinja);
    td_free((*t)->plain.source);
    td_free((*t)->with_tools.source);
    json_decref((*t)->special);
    td_free(*t);
    *t = NULL;
}

/* ---- asking ---- */

static const td_chat_variant *variant(const td_chat_template *t, bool with_tools) {
    return with_tools && t->with_tools.jinja ? &t->with_tools : &t->plain;
}

td_chat_traits td_chat_template_traits(const td_chat_template *t, bool with_tools) {
    return variant(t, with_tools)->traits;
}

const char *td_chat_template_source(const td_chat_template *t, bool with_tools) {
    return variant(t, with_tools)->source;
}

const char *td_chat_template_bos(const td_chat_template *t) {
    return json_string_value(json_object_get(t->special, "bos_token"));
}

const char *td_chat_template_eos(const td_chat_template *t) {
    return json_string_value(json_object_get(t->special, "eos_token"));
}

/* ---- rendering ---- */

static bool set(json_t *context, const char *name, json_t *value) {
    return json_object_set_new(context, name, value) == 0;
}

/* Later ones win: the special tokens, the request's own variables, what the call says in its fields. As transformers
 * has it, `tools` and `documents` are None rather than undefined when there are none. */
static td_status make_context(const td_chat_template *t, const td_chat_request *q, bool tools, json_t *messages,
                              json_t **out, td_error *err) {
    json_t *context = td_chat_copy(t->special);
    bool ok = context && set(context, "documents", json_null());
    if (ok && q->kwargs)
        ok = json_object_update(context, (json_t *)q->kwargs) == 0;
    ok = ok && json_object_set(context, "messages", messages) == 0 &&
         set(context, "tools", tools ? json_incref((json_t *)q->tools) : json_null()) &&
         set(context, "add_generation_prompt", json_boolean(!q->no_generation_prompt));
    if (ok && q->enable_thinking != TD_CHAT_THINKING_UNSET)
        ok = set(context, "enable_thinking", json_boolean(q->enable_thinking == TD_CHAT_THINKING_ON));
    if (!ok) {
        json_decref(context);
        return nomem(err);
    }
    *out = context;
    return TD_OK;
}

td_status td_chat_template_render(const td_chat_template *t, const td_chat_request *request, td_buf *out,
                                  td_error *err) {
    if (request->tools && !json_is_array(request->tools))
        return td_fail(err, TD_E_ARG, "tools must be a list");
    if (request->kwargs && !json_is_object(request->kwargs))
        return td_fail(err, TD_E_ARG, "chat_template_kwargs must be an object");
    bool tools = json_array_size(request->tools) > 0;
    const td_chat_variant *v = variant(t, tools);
    json_t *messages, *context = NULL;
    TD_TRY(td_chat_messages_normalise(request->messages, &v->traits, &messages, err));
    td_status st = make_context(t, request, tools, messages, &context, err);
    json_decref(messages);
    if (st != TD_OK)
        return st;
    td_jinja_options options = {.now = request->now, .utc_offset_s = request->utc_offset_s};
    st = td_jinja_render(v->jinja, context, &options, out, err);
    json_decref(context);
    return st;
}
