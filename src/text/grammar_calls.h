/* grammar_calls.h - grammars of tool calls, forced or beside a text that is under a schema itself: the model's own
 * syntax (reply.h), with arguments under the schema of each tool's parameters. What is written under one is taken apart
 * by a td_reply of the same format into complete calls whose arguments validate.
 *
 *   GEMMA4   <|tool_call>call:NAME{key:<|"|>text<|"|>,...}<tool_call|>, a block for each call
 *   QWEN     <tool_call> <function=NAME> <parameter=KEY> text </parameter> ... </function> </tool_call>, each on its
 *            line, a block for each call. A parameter that the reply reads as text is written as it stands, any other
 * as JSON. Names of tools and parameters must be ones that the format can spell JSON     {"name": NAME, "arguments":
 * {...}} behind the marker the model knows: <tool_call> ... </tool_call>, a block for each; [TOOL_CALLS] and an array;
 * <|python_tag|>; or bare, several one behind the other Markers that are special tokens of the vocabulary are token
 * literals, others text. */
#ifndef TD_TEXT_GRAMMAR_CALLS_H
#define TD_TEXT_GRAMMAR_CALLS_H

#include <jansson.h>

#include "text/grammar.h"
#include "text/reply.h"

typedef struct td_grammar_calls_options {
    td_reply_format format;
    const json_t *tools; /* OpenAI's array, as td_reply_options.tools; only read here */
    const char *name;    /* the one tool to call; NULL: any of them (tool_choice "required") */
    bool parallel;       /* more than one call may come; else exactly one does */
    /* A text under this JSON Schema may come instead of calls (tool_choice "auto" beside a response_format). NULL:
     * calls must come. Where calls have no marker, a text that reads as one is one */
    const json_t *or_schema;
    /* JSON: the model's chat template, which tells the marker; NULL: the vocabulary does. May be NULL */
    const char *chat_template;
    td_grammar_options grammar;
} td_grammar_calls_options;

/* Errors: TD_E_ARG (no tools, or no tool of this name), TD_E_UNSUPPORTED (a format without calls, a name that it cannot
 * spell), and those of td_grammar_from_json_schema, with "tool NAME: " in front. */
td_status td_grammar_from_tools(td_grammar **out, const td_token_trie *trie, const td_grammar_calls_options *opt,
                                td_error *err) TD_MUST_CHECK;

#endif
