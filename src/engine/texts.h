/* texts.h - the tokenizer and the chat template of a checkpoint, wherever its format keeps them. */
#ifndef TD_ENGINE_TEXTS_H
#define TD_ENGINE_TEXTS_H

#include "format/checkpoint.h"
#include "text/chat.h"
#include "text/tokenizer.h"

/* TD_E_NOTFOUND: it has none; other errors: it has a broken one. */
td_status td_texts_tokenizer(td_tokenizer **out, const td_checkpoint *ck, td_error *err) TD_MUST_CHECK;
td_status td_texts_chat(td_chat_template **out, const td_checkpoint *ck, td_error *err) TD_MUST_CHECK;

#endif
