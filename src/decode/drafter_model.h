/* drafter_model.h - a whole smaller model of the trunk's vocabulary as drafter.
 *
 * It reads the text itself: keys, values and recurrent memory of its own for every sequence. Tokens that it drafted and
 * that were accepted it has read already. A new prompt it reads one pass a draft() and drafts nothing meanwhile. Of a
 * trunk's own checkpoint it drafts exactly what the trunk will say. */
#ifndef TD_DECODE_DRAFTER_MODEL_H
#define TD_DECODE_DRAFTER_MODEL_H

#include "decode/drafter.h"

typedef struct td_drafter_model_options {
    uint32_t max_seqs;     /* sequences of a round */
    uint32_t n_ctx;        /* positions that a sequence may reach; behind them nothing is drafted */
    uint32_t prefill_rows; /* rows of a pass in which it reads a prompt; default 512 */
    td_kv_type kv_type;    /* default TD_KV_BF16 */
    uint32_t page_tokens;  /* default 64 */
    const td_log *log;
} td_drafter_model_options;

td_drafter_model_options td_drafter_model_options_default(void);

/* kind "draft model". Opens the model of `ck` on `be`; both must outlive the drafter. n_vocab is the trunk's:
 * TD_E_MODEL with both numbers when the model's is another. That words with one number are the same word is the
 * caller's to check (td_tokenizer_same_vocab). heap_bytes counts the model's scratch and what max_seqs sequences of
 * n_ctx positions need. Errors otherwise as td_model_open. */
td_status td_drafter_model_open(td_drafter **out, td_checkpoint *ck, td_backend *be, uint32_t n_vocab,
                                const td_drafter_model_options *opt, td_error *err) TD_MUST_CHECK;

#endif
