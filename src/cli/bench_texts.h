/* bench_texts.h - prompts of the kinds of text that drafts fare differently with, of any length. */
#ifndef TD_CLI_BENCH_TEXTS_H
#define TD_CLI_BENCH_TEXTS_H

#include "base/buf.h"
#include "tandem.h"

#define TD_BENCH_CLASSES 6

/* "code", "prose", "json", "translation", "maths", "review". */
const char *td_bench_class_name(uint32_t class);

/* A request of the class with about `bytes` of material, in units that do not repeat; 0: the request alone. */
void td_bench_message(uint32_t class, size_t bytes, td_buf *out);

/* The prompt of a class that comes nearest to n tokens: as a chat when the model has a template, else as plain text,
 * else, without a tokenizer, as n token ids without a meaning. td_tokens_free. */
td_status td_bench_prompt(const td_engine *engine, uint32_t class, uint32_t n, td_token **tokens, size_t *n_tokens,
                          td_error *err) TD_MUST_CHECK;

#endif
