/* prompt.h - from what a request says to the tokens the model reads, and what they mean for reading its answer. */
#ifndef TD_SERVE_PROMPT_H
#define TD_SERVE_PROMPT_H

#include "engine/engine.h"
#include "serve/request.h"
#include "text/reply.h"

typedef struct td_api_prompt {
    td_token *tokens; /* [n] owned */
    size_t n;
    char *text; /* [n_text] owned: the rendered chat, or a completion's prompt when it is to be echoed; else NULL */
    size_t n_text;
    td_reply_format format; /* of the answer: thoughts as the model writes them; calls only when it was given tools */
    bool opens_reasoning;   /* the prompt ends inside the thoughts */
    bool may_think;         /* thoughts may come first: a constraint binds behind them */
} td_api_prompt;

/* The conversation through the model's template. 400: no template, tools that the template does not take, what the
 * template refuses; context_length_exceeded with both numbers. Any thread. td_api_prompt_free either way. */
td_status td_api_prompt_chat(td_api_prompt *p, const td_engine *e, const td_api_request *r,
                             td_fault *fault) TD_MUST_CHECK;
/* Prompt i of a completion. */
td_status td_api_prompt_completion(td_api_prompt *p, const td_engine *e, const td_api_request *r, size_t i,
                                   td_fault *fault) TD_MUST_CHECK;
void td_api_prompt_free(td_api_prompt *p);

/* Where `text` must be cut so that it ends with the last message's content (spaces around it aside), for a message to
 * be continued; 0: it is not in there. */
size_t td_api_continue_at(const char *text, size_t n, const char *content);

#endif
