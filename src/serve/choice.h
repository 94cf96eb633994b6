/* choice.h - one answer while it is being written: pieces of text go in, what they mean comes out as a delta.
 *
 * Text is taken token by token (td_piece.text_end says what each one made certain), so what is counted - tokens of
 * thoughts, tokens up to the end of a call - does not depend on how many of them a round accepted. */
#ifndef TD_SERVE_CHOICE_H
#define TD_SERVE_CHOICE_H

#include "serve/delta.h"
#include "serve/probs.h"

typedef struct td_choice_options {
    td_reply_format format; /* nothing in it: text is content as it stands */
    bool inside_reasoning;  /* the prompt has opened the thoughts */
    const json_t *tools;    /* or NULL; only read in open */
    const char *id_prefix;  /* of tool calls; copied */
    bool one_call;          /* the end of the first tool call ends the answer */
    bool with_spans;        /* td_api_delta's */
    bool with_probs, legacy_probs;
    const td_tokenizer *tokenizer; /* for log-probabilities; or NULL */
    const td_token *end;           /* [n_end] tokens that end the answer, borrowed: no log-probabilities of them */
    size_t n_end;
    size_t max_text; /* bytes of each of its texts */
} td_choice_options;

typedef struct td_choice {
    td_reply *reply; /* NULL: text is content */
    td_api_delta delta;
    td_api_probs probs;
    const td_token *end;
    size_t n_end;
    bool one_call;
    bool drafted;      /* the token at hand came from a draft */
    bool in_reasoning; /* what was last said was a thought */
    bool done;         /* one_call: the call has ended; nothing more is taken */
    uint32_t n_tokens, n_reasoning;
    uint32_t n_calls, n_complete;
} td_choice;

td_status td_choice_open(td_choice *c, const td_choice_options *opt, td_error *err) TD_MUST_CHECK;
/* Accepts a zeroed one. */
void td_choice_close(td_choice *c);

/* Adds to c->delta and c->probs. Whether the answer should go on: !c->done. TD_E_NOMEM, TD_E_LIMIT. */
td_status td_choice_feed(td_choice *c, const td_piece *piece, td_error *err) TD_MUST_CHECK;
/* Nothing more will come: adds what was held back. */
td_status td_choice_finish(td_choice *c, td_error *err) TD_MUST_CHECK;

/* "stop", "length", "tool_calls". */
const char *td_choice_finish_reason(const td_choice *c, td_finish finish);

#endif
