/* chat.h - the chat template of a checkpoint: where it is kept, and how a conversation becomes a prompt.
 *
 * Requests come in OpenAI's form; templates were written for the slightly different form that transformers gives them,
 * and differ among themselves in what they accept. So a template is tried out once, when it is opened, on small
 * conversations, and messages are then put into the form it has shown to take (see td_chat_traits). */
#ifndef TD_TEXT_CHAT_H
#define TD_TEXT_CHAT_H

#include "text/jinja.h"

#define TD_CHAT_MAX_CONFIG ((size_t)16 << 20) /* bytes of tokenizer_config.json or chat_template.json */

typedef struct td_chat_template td_chat_template; /* immutable once opened: any number of threads may render it */

/* Finds and compiles the template of the checkpoint in directory `dir`. Looked for in this order:
 *   chat_template.jinja (and additional_chat_templates/tool_use.jinja beside it);
 *   "chat_template" in tokenizer_config.json: text, or a list of {"name", "template"}: "default" and "tool_use";
 *   "chat_template" in chat_template.json, likewise.
 * The special tokens that templates mention (bos_token, eos_token, ...) come from tokenizer_config.json.
 * Errors: TD_E_NOTFOUND, naming every place; TD_E_IO, TD_E_LIMIT, TD_E_FORMAT (a config that is not JSON or not of this
 * form, a template that does not parse, with line and column), TD_E_UNSUPPORTED, TD_E_NOMEM. */
td_status td_chat_template_load(td_chat_template **out, const char *dir, td_error *err) TD_MUST_CHECK;

typedef struct td_chat_text { /* a template that is at hand, as in GGUF metadata */
    const char *name;         /* opens error messages: a file, say */
    const char *source;       /* terminated */
    const char *tool_source;  /* the one to use when there are tools; NULL: `source` */
    const char *bos_token;    /* NULL: undefined in the template */
    const char *eos_token;
} td_chat_text;

td_status td_chat_template_from_text(td_chat_template **out, const td_chat_text *text, td_error *err) TD_MUST_CHECK;
void td_chat_template_close(td_chat_template **t);

typedef struct td_chat_traits {
    bool takes_parts;          /* content given as a list of parts is shown; else texts are joined with newlines */
    bool needs_parts;          /* content given as text is not shown: it is made a list of one part */
    bool takes_call_objects;   /* arguments of tool calls as an object; else as JSON text */
    bool knows_developer;      /* the role "developer" appears in the template; else it is renamed to "system" */
    bool uses_tools;           /* the template reads `tools` */
    bool uses_enable_thinking; /* the template reads `enable_thinking` */
} td_chat_traits;

/* Of the template that serves requests with tools, or of that for requests without. */
td_chat_traits td_chat_template_traits(const td_chat_template *t, bool with_tools);

/* The text of that template. Owned by `t`. */
const char *td_chat_template_source(const td_chat_template *t, bool with_tools);

/* "<bos>", or NULL when the checkpoint names none. Owned by `t`. */
const char *td_chat_template_bos(const td_chat_template *t);
const char *td_chat_template_eos(const td_chat_template *t);

typedef enum td_chat_thinking { TD_CHAT_THINKING_UNSET, TD_CHAT_THINKING_OFF, TD_CHAT_THINKING_ON } td_chat_thinking;

typedef struct td_chat_request {
    const json_t *messages;           /* array of objects with a "role", OpenAI's form */
    const json_t *tools;              /* array, or NULL; an empty one counts as none */
    const json_t *kwargs;             /* object of further variables (chat_template_kwargs), or NULL */
    bool no_generation_prompt;        /* leave out the opening of the assistant's turn */
    td_chat_thinking enable_thinking; /* set: wins over "enable_thinking" among the kwargs */
    int64_t now;                      /* seconds since 1970 UTC, for templates that show the date */
    int32_t utc_offset_s;
} td_chat_request;

/* Appends the prompt to `out`, whose ceiling bounds it. On failure `out` holds what it held, unless it failed itself.
 * Messages are normalised first: content null or missing becomes ""; other null members, and empty tool_calls, go;
 * reasoning is also found as reasoning_content; content, call arguments and developer turns take the form of
 * td_chat_traits.
 * Errors: TD_E_ARG for messages that are no conversation (naming messages[i]) and for what the template itself refuses
 * (its own words); TD_E_UNSUPPORTED for parts that are not text when the template takes text only; and those of
 * td_jinja_render. */
td_status td_chat_template_render(const td_chat_template *t, const td_chat_request *request, td_buf *out,
                                  td_error *err) TD_MUST_CHECK;

#endif
