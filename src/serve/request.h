/* request.h - the body of POST /v1/chat/completions or /v1/completions, from JSON to parameters. No input or output,
 * no model: what a request asks for, checked and with the server's defaults laid under it.
 *
 * Members nobody knows are ignored, as OpenAI's clients expect of a server; members that are known and that Tandem does
 * not do are refused unless they ask for nothing (null, false, an empty list, the neutral number), so that no answer
 * pretends to be what was asked for. A null member counts as absent. */
#ifndef TD_SERVE_REQUEST_H
#define TD_SERVE_REQUEST_H

#include <jansson.h>

#include "serve/fault.h"
#include "text/chat.h"

#define TD_API_MAX_JSON_DEPTH 100
#define TD_API_MAX_STOPS 64
#define TD_API_MAX_STOP_BYTES 1024
#define TD_API_MAX_BIASES 65536
#define TD_API_MAX_TOOLS 1024
#define TD_API_MAX_NAME 256    /* bytes of the name of a tool */
#define TD_API_MAX_CHOICES 256 /* prompts times n */

typedef struct td_api_defaults {
    td_sampling sampling; /* bias: [n_bias] of the command line, borrowed; a request adds to it */
    bool has_seed;        /* sampling.seed was chosen by somebody; else each request draws one */
    uint32_t max_tokens;  /* 0: until the context is full */
    uint32_t max_n;
    uint32_t n_vocab;
    double time_limit;       /* seconds, also the most a request may ask for; 0: none */
    const char *const *stop; /* [n_stop] for every request, borrowed */
    size_t n_stop;
    td_chat_thinking thinking;
} td_api_defaults;

typedef enum td_tool_choice {
    TD_TOOLS_AUTO,
    TD_TOOLS_NONE,
    TD_TOOLS_REQUIRED, /* of tool_name when that is set */
} td_tool_choice;

typedef struct td_api_request {
    json_t *root; /* owned; texts and trees below are in it unless said otherwise */
    bool chat;
    const char *model; /* NULL or "": whatever is served */
    const char *user;  /* NULL: not said */
    bool stream, include_usage, include_drafts;
    uint32_t n;
    uint32_t max_tokens; /* 0: until the context is full */
    td_sampling sampling;
    td_logit_bias *biases; /* owned; sampling.bias */
    const char **stop;     /* owned list of borrowed texts */
    size_t n_stop;
    int logprobs; /* alternatives a token; -1: none wanted */
    bool ignore_eos;
    bool no_mtp;
    int num_mtp_tokens; /* -1: the server's */
    double time_limit;
    bool has_prediction;

    /* What the text must match; at most one is set. Beside tools a format
     * holds when none of them is called, and a grammar always: it may describe calls itself. */
    char *json_schema; /* owned */
    const char *grammar;
    bool json_object;

    /* chat */
    json_t *messages;
    json_t *tools;    /* NULL: none, or tool_choice "none" */
    char *tools_text; /* owned, JSON; NULL: none */
    td_tool_choice tool_choice;
    const char *tool_name;
    bool one_call;  /* parallel_tool_calls: false */
    json_t *kwargs; /* of the template, or NULL */
    td_chat_thinking thinking;
    bool no_generation_prompt, continue_final;

    /* completions */
    json_t *prompt; /* a string, a list of strings, of tokens, or of lists of tokens: checked */
    bool echo;
} td_api_request;

typedef enum td_api_kind { TD_API_CHAT, TD_API_COMPLETION } td_api_kind;

/* Reads a body. On failure *out is empty and *fault says what was wrong: 400 with the byte of malformed JSON
 * (code invalid_json), or with the member. td_api_request_free either way. */
td_status td_api_request_parse(td_api_request *out, td_api_kind kind, const char *body, size_t size,
                               const td_api_defaults *defaults, td_fault *fault) TD_MUST_CHECK;
void td_api_request_free(td_api_request *r);

/* Parses a body that must be a JSON object; *out is json_decref'd by the caller. */
td_status td_api_body_parse(const char *body, size_t size, json_t **out, td_fault *fault) TD_MUST_CHECK;

/* The seed of choice i: the first is the request's, so that n = 1 and the first of n are the same answer. */
uint64_t td_api_choice_seed(uint64_t seed, uint32_t i);

/* Prompts in `prompt` of a completion: 1, or the length of a list of prompts. */
size_t td_api_prompt_count(const td_api_request *r);
/* Prompt i: a string or a list of tokens. */
const json_t *td_api_prompt_at(const td_api_request *r, size_t i);

#endif
