/* reply.h - what a model wrote, taken apart while it is being written: thoughts, answer, tool calls.
 *
 * Text goes in, in pieces cut anywhere (inside a character too); events come out through a callback. A reply is a
 * machine that takes one byte at a time, so what it makes of a text cannot depend on how the text was cut: only where
 * a delta ends does. Markers that are special tokens (<think>, <|tool_call>, <|"|>, ...) must arrive as their literal
 * text, so the detokeniser in front must not skip special tokens; end tokens must not arrive.
 *
 * A format is two choices, made by td_reply_format_choose:
 *
 *   thoughts   CHANNEL (Gemma 4)   <|channel>thought LF ... <channel|>
 *              TAGS (Qwen and others)   <think> ... </think>; the prompt often holds the opening tag already: see
 *              `inside_reasoning`
 *   calls      GEMMA4   block = "<|tool_call>" call+ "<tool_call|>"        call = "call:" NAME object
 *                       object = "{" [ key ":" value { "," key ":" value } ] "}"     array = "[" [ value, ... ] "]"
 *                       value = string | object | array | number | true | false | null
 *                       string = <|"|> any text without that marker <|"|>          key = bare | string
 *              QWEN     block = "<tool_call>" function+ "</tool_call>"
 *                       function = "<function=" NAME ">" parameter* "</function>"
 *                       parameter = "<parameter=" NAME ">" LF text LF "</parameter>"
 *                       or block = "<tool_call>" JSON call object(s) "</tool_call>" (the Hermes form)
 *              JSON     call = {"name": NAME, "arguments" | "parameters": object}, several in an array or one after
 *                       the other, behind <tool_call>, [TOOL_CALLS] or <|python_tag|>; or as the beginning of the
 *                       answer itself, then only for a NAME among the tools given
 * Neither is "plain": everything is content, byte for byte.
 *
 * Types of Qwen's parameters come from the schema of the tool when tools are given: text for a string stays text,
 * everything else (and every parameter nobody described) is read as JSON, and is text when it is not JSON.
 *
 * What models are known to get wrong, and what is made of it:
 *   GEMMA4  a string whose opening <|"|> is missing is a string; keys and strings in ordinary quotes; "(" ")" around
 *           the object; ":NAME{" for "call:NAME{"; a comma before a closing bracket; bare words are strings; empty
 *           channels and lone <channel|> vanish.
 *   QWEN    no <tool_call> in front of <function=NAME> (taken at the start of a line, for a NAME among the tools given,
 *           when <parameter= or </function> follows); </parameter>, </function> or </tool_call> missing;
 *           "</parameter>" within a value is text unless another tag follows it; a call begun inside the thoughts ends
 *           them; <think> in the middle of a line of content vanishes.
 *   JSON    raw control characters and unknown escapes inside strings; lone surrogates (they become U+FFFD); arguments
 *           given as a string that holds the object.
 *
 * White space: what stands between two blocks, or around a block at an end of the text, belongs to neither. Where
 * content (or reasoning) goes on after a block, the white space before the block separates the parts, or if there was
 * none, that after it. Without markers nothing is ever dropped. A run of white space is held until what follows it is
 * known, at most TD_REPLY_MAX_GAP bytes of it.
 *
 * A call begins (TD_REPLY_CALL_BEGIN) as soon as it is certain to be one: its name and the opening of its arguments
 * have been read. What fails before is no call, and its text without markers is content. What fails later ends the call
 * with complete = false and a reason, and the text from there on is content. Arguments of a complete call always join
 * to one JSON object (a key that the model wrote twice is there twice); those of an incomplete one end where they broke
 * off, and are deliberately not mended to look whole, so that nobody runs half a command. No text makes push fail:
 * reaching a limit below is a failure of one of these two kinds.
 *
 * Cost: O(bytes) in time. Memory: a few times the longest thing that must be held (an argument that is not a string,
 * a JSON call whose name comes last), never the answer. A reply belongs to one thread at a time. */
#ifndef TD_TEXT_REPLY_H
#define TD_TEXT_REPLY_H

#include <jansson.h>

#include "base/status.h"

#define TD_REPLY_MAX_NESTING 100             /* levels of arguments */
#define TD_REPLY_MAX_NAME 256                /* bytes of the name of a tool or a parameter; of a key */
#define TD_REPLY_MAX_VALUE ((size_t)8 << 20) /* bytes of an argument, or a call, that must be held */
#define TD_REPLY_MAX_GAP 1024                /* bytes of white space that can be a separator */
#define TD_REPLY_MAX_TOOLS 4096              /* tools of one request */
#define TD_REPLY_MAX_PARAMETERS 65536        /* parameters of all tools of one request */

typedef enum td_reply_think { TD_REPLY_THINK_NONE, TD_REPLY_THINK_CHANNEL, TD_REPLY_THINK_TAGS } td_reply_think;

typedef enum td_reply_calls {
    TD_REPLY_CALLS_NONE,
    TD_REPLY_CALLS_GEMMA4,
    TD_REPLY_CALLS_QWEN,
    TD_REPLY_CALLS_JSON,
} td_reply_calls;

typedef struct td_reply_format {
    td_reply_think think;
    td_reply_calls calls;
} td_reply_format;

/* By the markers that the model's chat template mentions; the family decides where the template leaves it open. A
 * template without markers, or none, is plain. Either may be NULL. */
td_reply_format td_reply_format_choose(const char *family, const char *chat_template);

/* True when a rendered prompt ends by opening the thoughts, white space aside, as Qwen's generation prompt does and
 * Gemma's after a tool response: what td_reply_options.inside_reasoning wants to know. */
bool td_reply_prompt_opens_reasoning(td_reply_format format, const char *prompt, size_t size);

typedef enum td_reply_event_kind {
    TD_REPLY_REASONING, /* text */
    TD_REPLY_CONTENT,   /* text */
    TD_REPLY_CALL_BEGIN,
    TD_REPLY_CALL_ARGUMENTS, /* text: a piece of JSON */
    TD_REPLY_CALL_END,       /* complete, fault */
    TD_REPLY_FINISH,         /* n_calls, n_incomplete, in_reasoning */
} td_reply_event_kind;

/* In time: any number of REASONING and CONTENT, and of calls, each a BEGIN, its ARGUMENTS, an END, with nothing in
 * between; one FINISH. Everything pointed to lives until the callback returns. */
typedef struct td_reply_event {
    td_reply_event_kind kind;
    const char *text; /* [size] whole UTF-8 characters, not NUL-terminated; never empty */
    size_t size;
    uint32_t index;   /* CALL_*: 0, 1, ... */
    const char *id;   /* CALL_*: prefix and number */
    const char *name; /* CALL_*: NUL-terminated */
    bool complete;    /* CALL_END */
    /* CALL_END that is not complete: what was wrong; position is the byte of the answer where that became certain. */
    const td_error *fault;
    uint32_t n_calls;      /* FINISH: calls that began */
    uint32_t n_incomplete; /* FINISH: of these, not complete */
    bool in_reasoning;     /* FINISH: the text ended inside the thoughts */
} td_reply_event;

/* Not TD_OK: parsing stops, and push or finish returns that status. Must not call the reply. */
typedef td_status (*td_reply_fn)(void *user, const td_reply_event *event);

typedef struct td_reply td_reply;

typedef struct td_reply_options {
    td_reply_format format;
    bool inside_reasoning; /* the prompt has opened the thoughts */
    const json_t *tools; /* OpenAI's array (of {"type", "function": {...}} or bare functions) or NULL; only read here */
    const char *id_prefix; /* copied; NULL: "call_" */
    uint64_t first_id;     /* call number i of the answer has the id prefix + (first_id + i) in decimal */
    td_reply_fn on_event;
    void *user;
} td_reply_options;

/* TD_E_ARG: no callback, or tools that are not what is said above (the message names the place); TD_E_LIMIT;
 * TD_E_NOMEM. */
td_status td_reply_open(td_reply **out, const td_reply_options *opt, td_error *err) TD_MUST_CHECK;
void td_reply_close(td_reply **reply);

/* Takes the next piece and sends what it makes certain. Bytes that are not UTF-8 become U+FFFD.
 * TD_E_NOMEM, or the callback's own status: the reply then only accepts td_reply_close. TD_E_ARG: after finish. */
td_status td_reply_push(td_reply *reply, const char *text, size_t size, td_error *err) TD_MUST_CHECK;

/* The text is over: sends what was held, ends what was open, sends FINISH. Errors as push. */
td_status td_reply_finish(td_reply *reply, td_error *err) TD_MUST_CHECK;

#endif
