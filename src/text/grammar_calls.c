/* grammar_calls.c - the syntax of calls around the schemas of their arguments.
 *
 * Whether Qwen's format writes a parameter as text or as JSON is not for a schema to say but for the reader of the
 * reply, which has only the types it could gather from the tools; so that reader is asked (td_reply_tool_types), and
 * the grammar writes what it will read back. */
#include "text/grammar_calls.h"

#include <string.h>

#include "base/alloc.h"
#include "text/json_schema_impl.h"
#include "text/reply_impl.h"

#define MAX_CALLS 64 /* of one answer */
/* Nested uses of rules: a level of an array takes one, so that arguments stay within TD_REPLY_MAX_NESTING. */
#define MAX_DEPTH (TD_REPLY_MAX_NESTING - 10)

typedef struct calls {
    const td_grammar_calls_options *opt;
    const td_token_trie *trie;
    td_gb *b;
    td_reply_tools *known;
    const json_t *none; /* the schema of a tool without parameters */
} calls;

static const json_t *function_of(const json_t *tool) {
    const json_t *f = json_object_get(tool, "function");
    return f ? f : tool;
}

static const char *name_of(const json_t *tool) {
    return json_string_value(json_object_get(function_of(tool), "name"));
}

static const json_t *parameters_of(const calls *c, const json_t *tool) {
    const json_t *schema = json_object_get(function_of(tool), "parameters");
    return json_object_size(schema) > 0 ? schema : c->none;
}

/* A name that the format can hold where names of tools and parameters stand. */
static bool is_name(const char *name, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (!td_reply_is_name(name[i]))
            return false;
    return size > 0 && size <= TD_REPLY_MAX_NAME;
}

/* ---- Qwen: a parameter a line ---- */

static td_gb_node qwen_value(calls *c, td_js *js, const td_reply_tool *tool, const char *key, const json_t *schema) {
    bool text = (td_reply_tool_types(tool, key) & TD_REPLY_STRING) != 0;
    size_t mark = td_js_enter(js, "properties");
    td_js_enter(js, key);
    js->syntax = text ? TD_JS_TEXT : TD_JS_JSON;
    td_gb_node value = td_js_schema(js, schema);
    td_js_leave(js, mark);
    return TD_GB_SEQ(c->b, td_gb_string(c->b, "<parameter="), td_gb_string(c->b, key), td_gb_string(c->b, ">\n"), value,
                     td_gb_string(c->b, "\n</parameter>\n"));
}

static bool is_required(const json_t *schema, const char *key) {
    const json_t *name;
    size_t i;
    json_array_foreach(json_object_get(schema, "required"), i, name) {
        if (json_is_string(name) && strcmp(json_string_value(name), key) == 0)
            return true;
    }
    return false;
}

/* Parameters in the order of the schema; of those whose name the format cannot spell, the optional ones are left out.
 */
static td_gb_node qwen_parameters(calls *c, td_js *js, const td_reply_tool *tool, const json_t *schema) {
    td_gb_list parts = {0};
    const char *key;
    json_t *value, *properties = json_object_get(schema, "properties");
    json_object_foreach(properties, key, value) {
        bool required = is_required(schema, key);
        if (!is_name(key, strlen(key))) {
            if (required)
                td_js_fail(js, TD_E_UNSUPPORTED,
                           "the model's format of calls cannot spell the name of the parameter \"%.100s\"", key);
            continue;
        }
        if (json_is_false(value) && !required)
            continue;
        td_gb_node one = qwen_value(c, js, tool, key, value);
        td_gb_push(c->b, &parts, required ? one : TD_GB_OPTIONAL(c->b, one));
    }
    const json_t *name;
    size_t i;
    json_array_foreach(json_object_get(schema, "required"), i, name) {
        if (json_is_string(name) && !json_object_get(properties, json_string_value(name)))
            td_js_fail(js, TD_E_UNSUPPORTED, "the required parameter \"%.100s\" is not described",
                       json_string_value(name));
    }
    td_gb_node node = td_gb_seq(c->b, parts.v, parts.n);
    td_gb_list_free(&parts);
    return node;
}

/* The flat forms of the parameters' schema, which is an object that may hide behind references. */
static td_gb_node qwen_arguments(calls *c, td_js *js, const char *name, const json_t *schema) {
    const td_reply_tool *tool = td_reply_tools_find(c->known, name);
    td_gb_list ways = {0};
    json_t *flat = json_array(), *way;
    size_t i;
    json_array_append_new(js->made, flat);
    td_js_flatten(js, schema, flat, 0);
    json_array_foreach(flat, i, way) {
        if (td_js_has_type(way, "object"))
            td_gb_push(c->b, &ways, qwen_parameters(c, js, tool, way));
    }
    if (ways.n == 0)
        td_js_fail(js, TD_E_FORMAT, "the parameters of a tool must be an object");
    td_gb_node node = td_gb_alt(c->b, ways.v, ways.n);
    td_gb_list_free(&ways);
    return node;
}

static td_gb_node qwen_call(calls *c, td_js *js, const char *name, const json_t *schema) {
    td_gb *b = c->b;
    td_gb_node head = TD_GB_SEQ(b, td_gb_string(b, "<function="), td_gb_string(b, name), td_gb_string(b, ">\n"));
    return TD_GB_SEQ(b, head, qwen_arguments(c, js, name, schema), td_gb_string(b, "</function>"));
}

/* ---- the other formats: an object ---- */

/* The parameters as an object, whatever else their schema would allow. */
static td_gb_node object_arguments(calls *c, td_js *js, const json_t *schema) {
    td_gb_list ways = {0};
    json_t *flat = json_array(), *way;
    size_t i;
    json_array_append_new(js->made, flat);
    td_js_flatten(js, schema, flat, 0);
    json_array_foreach(flat, i, way) {
        if (td_js_has_type(way, "object"))
            td_gb_push(c->b, &ways, td_js_object(js, way));
    }
    if (ways.n == 0)
        td_js_fail(js, TD_E_FORMAT, "the parameters of a tool must be an object");
    td_gb_node node = td_gb_alt(c->b, ways.v, ways.n);
    td_gb_list_free(&ways);
    return node;
}

static td_gb_node gemma_call(calls *c, td_js *js, const char *name, const json_t *schema) {
    js->syntax = TD_JS_GEMMA4;
    return TD_GB_SEQ(c->b, td_gb_string(c->b, "call:"), td_gb_string(c->b, name), object_arguments(c, js, schema));
}

static td_gb_node json_call(calls *c, td_js *js, const char *name, const json_t *schema) {
    td_gb *b = c->b;
    td_gb_node said = td_js_quoted(js, td_js_chars(js, name, strlen(name)));
    return TD_GB_SEQ(b, td_gb_string(b, "{\"name\": "), said, td_gb_string(b, ", \"arguments\": "),
                     object_arguments(c, js, schema), td_gb_string(b, "}"));
}

/* ---- one tool ---- */

static td_gb_node write_call(calls *c, td_js *js, const char *name, const json_t *schema) {
    if (!is_name(name, strlen(name)))
        return td_js_fail(js, TD_E_UNSUPPORTED, "the model's format of calls cannot spell this name");
    switch (c->opt->format.calls) {
    case TD_REPLY_CALLS_GEMMA4:
        return gemma_call(c, js, name, schema);
    case TD_REPLY_CALLS_QWEN:
        return qwen_call(c, js, name, schema);
    default:
        return json_call(c, js, name, schema);
    }
}

static td_gb_node tool_call(calls *c, const json_t *tool) {
    td_js js;
    const json_t *schema = parameters_of(c, tool);
    bool before = td_gb_status(c->b) == TD_OK;
    td_js_init(&js, c->b, c->trie, schema);
    js.tagged = c->opt->format.calls == TD_REPLY_CALLS_QWEN;
    td_gb_rule rule = td_gb_rule_new(c->b, NULL, 0, -1);
    td_gb_define(c->b, rule, write_call(c, &js, name_of(tool), schema));
    td_js_finish(&js);
    td_js_free(&js);
    if (before && td_gb_status(c->b) != TD_OK && td_gb_status(c->b) != TD_E_NOMEM)
        c->b->status = td_error_prefix(c->b->err, c->b->status, "tool %.100s", name_of(tool));
    return td_gb_use(c->b, rule);
}

/* A call of any of the tools asked for, as a rule. */
static td_gb_node any_call(calls *c) {
    td_gb_list ways = {0};
    const json_t *tool;
    size_t i;
    json_array_foreach(c->opt->tools, i, tool) {
        if (td_gb_status(c->b) == TD_OK && (!c->opt->name || strcmp(c->opt->name, name_of(tool)) == 0))
            td_gb_push(c->b, &ways, tool_call(c, tool));
    }
    if (ways.n == 0 && c->opt->name)
        td_gb_fail(c->b, TD_E_ARG, -1, "tool_choice: there is no tool \"%.100s\"", c->opt->name);
    else if (ways.n == 0)
        td_gb_fail(c->b, TD_E_ARG, -1, "tool_choice: a call is asked for, and there are no tools");
    td_gb_rule rule = td_gb_rule_new(c->b, NULL, 0, -1);
    td_gb_define(c->b, rule, td_gb_alt(c->b, ways.v, ways.n));
    td_gb_list_free(&ways);
    return td_gb_use(c->b, rule);
}

/* ---- blocks ---- */

/* one, and further ones behind a separator if there may be some */
static td_gb_node one_or_more(calls *c, td_gb_node one, const char *between) {
    td_gb_node more = TD_GB_SEQ(c->b, td_gb_string(c->b, between), one);
    return c->opt->parallel ? TD_GB_SEQ(c->b, one, td_gb_repeat(c->b, more, 0, MAX_CALLS - 1)) : one;
}

static td_gb_node block(calls *c, const char *open, const char *close, const char *line, td_gb_node call) {
    td_gb *b = c->b;
    td_gb_rule rule = td_gb_rule_new(b, NULL, 0, -1);
    td_gb_node space = td_gb_string(b, line);
    td_gb_define(b, rule,
                 TD_GB_SEQ(b, td_gb_marker(b, c->trie, open), space, call, space, td_gb_marker(b, c->trie, close)));
    return td_gb_use(b, rule);
}

/* The model knows a marker when its template has it, or, without a template, its vocabulary. */
static bool knows(const calls *c, const char *marker) {
    if (c->opt->chat_template)
        return strstr(c->opt->chat_template, marker) != NULL;
    return td_tokenizer_find(c->trie->tokenizer, marker, strlen(marker)) >= 0;
}

static td_gb_node json_calls(calls *c, td_gb_node call) {
    td_gb *b = c->b;
    if (knows(c, "<tool_call>"))
        return one_or_more(c, block(c, "<tool_call>", "</tool_call>", "\n", call), "\n");
    if (knows(c, "[TOOL_CALLS]"))
        return TD_GB_SEQ(b, td_gb_marker(b, c->trie, "[TOOL_CALLS]"), td_gb_string(b, "["), one_or_more(c, call, ", "),
                         td_gb_string(b, "]"));
    td_gb_node all = one_or_more(c, call, "; ");
    return knows(c, "<|python_tag|>") ? TD_GB_SEQ(b, td_gb_marker(b, c->trie, "<|python_tag|>"), all) : all;
}

static td_gb_node write_calls(calls *c) {
    td_gb_node call = any_call(c);
    switch (c->opt->format.calls) {
    case TD_REPLY_CALLS_GEMMA4:
        return one_or_more(c, block(c, "<|tool_call>", "<tool_call|>", "", call), "");
    case TD_REPLY_CALLS_QWEN:
        return one_or_more(c, block(c, "<tool_call>", "</tool_call>", "\n", call), "\n");
    case TD_REPLY_CALLS_JSON:
        return json_calls(c, call);
    default:
        return td_gb_fail(c->b, TD_E_UNSUPPORTED, -1,
                          "tool_choice: the model's chat template has no form for tool calls");
    }
}

/* The text that may come instead, as json_schema.c writes it. */
static td_gb_node write_text(calls *c, const json_t *schema) {
    td_js js;
    td_gb_rule rule = td_gb_rule_new(c->b, NULL, 0, -1);
    td_js_init(&js, c->b, c->trie, schema);
    td_gb_define(c->b, rule, td_js_schema(&js, schema));
    td_js_finish(&js);
    td_js_free(&js);
    return td_gb_use(c->b, rule);
}

static td_gb_node write_answer(calls *c) {
    td_gb_node made = write_calls(c);
    return c->opt->or_schema ? TD_GB_ALT(c->b, made, write_text(c, c->opt->or_schema)) : made;
}

td_status td_grammar_from_tools(td_grammar **out, const td_token_trie *trie, const td_grammar_calls_options *opt,
                                td_error *err) {
    td_gb b;
    *out = NULL;
    calls c = {.opt = opt, .trie = trie, .b = &b, .none = json_pack("{s:s, s:{}}", "type", "object", "properties")};
    td_gb_init(&b, err);
    td_status st = c.none ? td_reply_tools_new(&c.known, opt->tools, err)
                          : td_fail(err, TD_E_NOMEM, "out of memory for a grammar");
    if (st == TD_OK) {
        td_gb_rule root = td_gb_rule_new(&b, NULL, 0, -1);
        td_grammar_options how = opt->grammar;
        how.max_depth = how.max_depth ? how.max_depth : MAX_DEPTH;
        td_gb_define(&b, root, write_answer(&c));
        st = td_grammar_compile(out, &b, root, trie, &how);
    }
    td_reply_tools_free(&c.known);
    json_decref((json_t *)(uintptr_t)c.none);
    td_gb_free(&b);
    return st;
}
