/* engine.h - the engine's inside, for the files of this room. */
#ifndef TD_ENGINE_ENGINE_H
#define TD_ENGINE_ENGINE_H

#include <stdatomic.h>

#include "base/log.h"
#include "decode/round.h"
#include "text/chat.h"
#include "text/tokenizer.h"

typedef struct td_grammars td_grammars; /* constrain.h */

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
    td_decoder_options decoder_options;
    td_decoder *decoder;
    td_prompt_cache *cache; /* or NULL */
    td_grammars *grammars;
    bool float_activations;
    uint64_t kv_limit; /* bytes that the keys of all sequences may take; 0: no limit */
    td_token *end;     /* [n_end] tokens that end an answer */
    size_t n_end;
    td_logit_bias *banned; /* [n_banned] tokens the model must not give (suppress_tokens) */
    size_t n_banned;
    td_sampling sampling; /* published defaults */
    char reason[600];     /* info.mtp_reason */
    atomic_flag busy;
};

/* The checkpoint's generation settings: end tokens, banned tokens, default sampling. */
td_status td_engine_load_generation(td_engine *e, td_error *err) TD_MUST_CHECK;

/* ---- what a sequence leaves behind ---- */

/* Its keys go to the cache when there is one; else they stay with it. */
void td_engine_keep(td_engine *e, td_seq *seq);
void td_engine_note_memory(const td_engine *e, td_scheduler_stats *stats);
/* As td_scheduler_save, _restore and _erase. */
td_status td_engine_save(td_engine *e, td_seq *seq, const char *path, uint64_t *n_tokens, uint64_t *n_bytes,
                         td_error *err) TD_MUST_CHECK;
td_status td_engine_restore(td_engine *e, td_seq *seq, const char *path, uint64_t *n_tokens, uint64_t *n_bytes,
                            td_error *err) TD_MUST_CHECK;
uint64_t td_engine_erase(td_engine *e, td_seq *seq);

#endif
