/* tokenizer_post.h - the "post_processor" of a tokenizer.json, for single texts: the tokens put before and after.
 *
 * Types: TemplateProcessing, ByteLevel (which changes offsets only, so nothing here), Sequence. */
#ifndef TD_TEXT_TOKENIZER_POST_H
#define TD_TEXT_TOKENIZER_POST_H

#include <jansson.h>

#include "text/tokenizer.h"
#include "text/tokenizer_vocab.h"

typedef struct td_post {
    td_token_list before, after;
    bool have_template;
} td_post;

void td_post_init(td_post *post);
void td_post_free(td_post *post);

/* spec: the JSON value, or NULL or null for nothing. Ids are checked against the vocabulary. */
td_status td_post_read(td_post *post, const json_t *spec, const td_vocab *vocab, td_error *err) TD_MUST_CHECK;

/* Puts a token in front of all, or behind all. */
td_status td_post_put_before(td_post *post, td_token token, td_error *err) TD_MUST_CHECK;
td_status td_post_put_after(td_post *post, td_token token, td_error *err) TD_MUST_CHECK;

#endif
