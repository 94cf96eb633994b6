/* engine.h - the engine's inside, for the files of this room. */
#ifndef TD_ENGINE_ENGINE_H
#define TD_ENGINE_ENGINE_H

#include <stdatomic.h>

#include "base/log.h"
#include "decode/round.h"
#include "text/chat.h"
#include "text/tokenizer.h"

struct td_engine {
    td_engine_info info;
    td_log log;
    td_progress_fn progress;
    void *user;
    char *trunk_path, *drafter_path;
    td_backend *be;
    td_checkpoint *ck, *drafter_ck;
    td_tokenizer *tokenizer; /* NULL when the checkpoint has none: token ids only */
    char *tokenizer_error;   /* why, for whoever asks for text */
    td_chat_template *chat;  /* NULL when the checkpoint has none */
    char *chat_error;
    td_model *model;
    td_drafter *drafter; /* or NULL */
    td_kv_pool *pool;
    td_decoder *decoder;
    td_token *end; /* [n_end] tokens that end an answer */
    size_t n_end;
    td_logit_bias *banned; /* [n_banned] tokens the model must not give (suppress_tokens) */
    size_t n_banned;
    td_sampling sampling; /* published defaults */
    char reason[600];     /* info.mtp_reason */
    atomic_flag busy;
};

/* The checkpoint's generation settings: end tokens, banned tokens, default sampling. */
td_status td_engine_load_generation(td_engine *e, td_error *err) TD_MUST_CHECK;

#endif
