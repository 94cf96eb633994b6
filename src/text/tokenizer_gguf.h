/* tokenizer_gguf.h - the tokenizer and the chat template out of the metadata of a GGUF file. */
#ifndef TD_TEXT_TOKENIZER_GGUF_H
#define TD_TEXT_TOKENIZER_GGUF_H

#include "format/gguf.h"
#include "text/chat.h"
#include "text/tokenizer.h"

/* From tokenizer.ggml.*: tokens, merges, token types, and the way a text is split, which the file only names: model
 * "gemma4", or model "gpt2" with pre "qwen35", "qwen2", "deepseek-v3" or "joyai-llm". Tokens that the file calls unused
 * are none. The tokens of bos, eos and pad are those of the keys; add_bos_token and add_eos_token put them around a
 * text (Gemma 4's models need <bos>, whatever the file says).
 * Errors name the file: TD_E_NOTFOUND (no tokenizer in it), TD_E_UNSUPPORTED (another model or pre), TD_E_MODEL (the
 * keys contradict each other), TD_E_FORMAT, TD_E_LIMIT, TD_E_NOMEM. */
td_status td_tokenizer_from_gguf(td_tokenizer **out, const td_gguf *g, td_error *err) TD_MUST_CHECK;

/* From tokenizer.chat_template, and for requests with tools from tokenizer.chat_template.tool_use when it is there.
 * TD_E_NOTFOUND: there is none; otherwise as td_chat_template_from_text. */
td_status td_chat_template_from_gguf(td_chat_template **out, const td_gguf *g, td_error *err) TD_MUST_CHECK;

#endif
