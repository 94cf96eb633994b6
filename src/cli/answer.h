/* answer.h - one answer, streamed to stdout: what run, chat and demo share. */
#ifndef TD_CLI_ANSWER_H
#define TD_CLI_ANSWER_H

#include <jansson.h>

#include "cli/report.h"
#include "tandem.h"

typedef struct td_answer {
    td_engine *engine;
    td_session *session;
    td_request request; /* prompt and callbacks are set here */
    bool stream;        /* text goes to stdout as it comes */
    bool show_drafts;   /* text that came from accepted drafts is coloured */
    td_style style;     /* of stdout */
    bool broken;        /* out: stdout takes no more */
    char last;          /* out: the last byte written; 0: none */
} td_answer;

/* Generates after `prompt`; td_result_free the result. A broken pipe or Ctrl-C ends it early, and is no failure. */
td_status td_answer_prompt(td_answer *a, const td_token *prompt, size_t n_prompt, td_result *result, td_error *err);

/* The same tokens and the same text. */
bool td_answer_same(const td_result *a, const td_result *b);

/* The tokens of a conversation's prompt, through the model's template; td_tokens_free. messages: an array in OpenAI's
 * form. */
td_status td_chat_tokens(const td_engine *engine, const json_t *messages, td_token **tokens, size_t *n_tokens,
                         td_error *err);

/* Appends {"role", "content"}; false when the text is not UTF-8 or memory is out. */
bool td_chat_append(json_t *messages, const char *role, const char *content);

#endif
