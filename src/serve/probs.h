/* probs.h - log-probabilities of an answer's tokens, in the two shapes of OpenAI's API.
 *
 * chat         {"content": [{"token", "logprob", "bytes", "top_logprobs": [{"token", "logprob", "bytes"}]}]}
 * completions  {"tokens": [], "token_logprobs": [], "top_logprobs": [{token: logprob}], "text_offset": []}
 * Every token that was generated is there, those of thoughts and markers too; an end token is not. `bytes` are the
 * token's own, so half a character is there although `token` can only show U+FFFD; completions write such a token as
 * "bytes:\xe2\x82". */
#ifndef TD_SERVE_PROBS_H
#define TD_SERVE_PROBS_H

#include "serve/json_out.h"
#include "text/tokenizer.h"

typedef struct td_api_probs {
    const td_tokenizer *tokenizer; /* borrowed; NULL: tokens have no text */
    bool wanted, legacy;           /* legacy: the shape of completions */
    td_buf items;                  /* chat: the list's inside. Completions: `tokens` */
    td_buf values, tops, offsets;  /* completions */
    td_buf bytes;                  /* of the token at hand */
    uint32_t n_chars;              /* completions: characters of the answer before the next token */
} td_api_probs;

void td_api_probs_init(td_api_probs *p, const td_tokenizer *tokenizer, bool wanted, bool legacy);
void td_api_probs_free(td_api_probs *p);
/* Forgets the tokens, not how far the text has come. */
void td_api_probs_clear(td_api_probs *p);

/* A token with its n likeliest alternatives behind it: probs[1 + n]; text[n_text] is what it added to the answer. */
td_status td_api_probs_add(td_api_probs *p, const td_token_prob *probs, uint32_t n, const char *text, size_t n_text,
                           td_error *err) TD_MUST_CHECK;

/* The object, or null when none is wanted. */
void td_api_probs_write(td_json_out *o, const td_api_probs *p);

#endif
