/* round.h - the one generation path: draft, verify, accept, commit.
 *
 * A sequence is its known tokens and the keys of some of them. A round feeds the trunk, in one pass, tokens that have
 * no key yet, and behind the newest one what a drafter proposes. When the pass reaches the newest token, rows are
 * sampled in turn with their positions' noise: the first row always gives a token, the next row counts only if the
 * token equals the draft that it was fed. Plain decoding is a round of depth 0; prefill is a round that does not reach
 * the end.
 *
 * A family with recurrent memory cannot go back by a length. Its known rows are sure and enter the state at once;
 * drafts are tentative and wait in its log. How many of them have stayed is told to the next pass and no sooner, so
 * that cutting the text behind a round (a stop string among accepted drafts) is still a number. To go back further
 * there are snapshots: copies of the state at the last page boundary of a prompt, before its last token, and where an
 * answer ended and the next prompt went on.
 *
 * Exactness: a row's logits do not depend on what else is in the pass (backend.h), and a position's draw does not
 * depend on anything but its logits, the parameters, the tokens before it and the seed (sampler.h). So the text is the
 * same for every drafter, depth and chunk size. */
#ifndef TD_DECODE_ROUND_H
#define TD_DECODE_ROUND_H

#include "cache/prompt_cache.h"
#include "cache/snapshot.h"
#include "decode/constraint.h"
#include "decode/depth.h"
#include "decode/drafter.h"

typedef struct td_decoder td_decoder;

typedef struct td_decoder_options {
    uint32_t max_seqs;     /* sequences of one round */
    uint32_t prefill_rows; /* rows of one round that only extend keys, over all sequences */
    uint32_t max_depth;    /* drafts a sequence and round at most, <= TD_MAX_DRAFT */
    uint32_t max_sampled;  /* rows of one round that are sampled, each of which needs room for its logits: >= max_seqs;
                            * 0: max_seqs * (1 + max_depth), so that every sequence may always draft to max_depth */
    float min_prob;  /* a draft ends before the product of the drafter's probabilities falls below this; 0: never */
    int n_snapshots; /* copies of recurrent memory a sequence; 0: TD_SNAPSHOTS, negative: none */
    td_prompt_cache *cache; /* of the same pool; shared by all sequences; NULL: none */
    bool forces; /* benchmarks only: whether the draft at position i is accepted is not asked of the model, but comes
                  * true in forced[i] of all rounds (numbers that do not grow with i). The text then is none */
    float forced[TD_MAX_DRAFT];
} td_decoder_options;

#define TD_SNAPSHOTS 4

/* What model options a decoder of these options needs: max_rows, max_out, max_logits and max_tentative. model->mtp is
 * read: with heads every row of a pass is an output. */
void td_decoder_model_options(const td_decoder_options *opt, td_model_options *model);

/* `drafter` may be NULL. Everything given must outlive the decoder. */
td_status td_decoder_open(td_decoder **out, td_model *model, td_drafter *drafter, td_kv_pool *pool,
                          const td_decoder_options *opt, td_error *err) TD_MUST_CHECK;
void td_decoder_close(td_decoder **d);

typedef struct td_calibration {
    uint32_t n_ctx;          /* positions that a sequence may have */
    double seconds;          /* to take at most, but for the first rounds */
    td_progress_fn progress; /* NULL: none; asked before every pass, stage "measure" */
    void *user;
} td_calibration;

/* Measures what rounds of one sequence cost at every depth, cheap ones first, so that the first answers need not. While
 * no sequence is open. Changes no text; leaves nothing but prices. What cannot be measured (no drafter, no depth, no
 * room, no time, a pass that fails) is left out. TD_E_CANCELLED: progress said so. */
td_status td_decoder_calibrate(td_decoder *d, const td_calibration *c, td_error *err) TD_MUST_CHECK;

typedef struct td_seq_params {
    td_sampling sampling;
    uint32_t max_tokens; /* to generate, >= 1 */
    uint32_t depth;      /* drafts a round at most; 0: plain */
    bool adaptive;       /* each round's depth is chosen by what pays (depth.h); else it is `depth` */
    const td_token *end; /* [n_end] tokens that end the text; borrowed */
    size_t n_end;
    bool ignore_end;
    td_constraint *constraint; /* of this text alone, at its beginning; borrowed; NULL: none */
    uint32_t n_probs; /* log-probabilities to keep of each token: 0 none, 1 its own, more: and of the n_probs - 1
                       * likeliest tokens */
} td_seq_params;

typedef struct td_seq_stats {
    uint32_t rounds; /* that sampled */
    uint64_t drafted;
    uint64_t drafted_at[TD_MAX_DRAFT];
    uint64_t accepted_at[TD_MAX_DRAFT];
} td_seq_stats;

/* One sequence being generated. Fields are for reading. */
typedef struct td_seq {
    td_decoder *decoder;
    td_seq_params params;
    td_token *tokens;     /* [n_tokens] prompt, then text */
    bool *was_drafted;    /* [n_tokens] the token was an accepted draft */
    td_token_prob *probs; /* [n_tokens - n_prompt][n_probs] */
    size_t probs_capacity;
    uint32_t n_tokens, n_prompt, capacity;
    uint32_t n_reused; /* prompt tokens whose keys were there already */
    td_kv_seq *kv;
    uint8_t *state;          /* recurrent memory, or NULL; it stands at the keys' length less `uncommitted` */
    uint32_t uncommitted;    /* accepted drafts that are still in its log */
    td_snapshots *snapshots; /* or NULL */
    td_cache_trail trail;    /* through the prompt cache, if there is one */
    uint32_t branch;         /* where the prompt parts from others in the cache, to be copied there; 0: nowhere */
    td_history history;
    td_depth depth; /* how drafts have fared on this text */
    float *hidden;  /* [n_embd] of position n_tokens-2, when has_hidden */
    bool has_hidden;
    void *drafter_state;
    td_finish finish; /* TD_FINISH_NONE while it goes on */
    td_status status; /* why it failed; TD_OK while it has not */
    td_error error;
    td_seq_stats stats;
} td_seq;

/* A sequence of up to n_ctx positions. */
td_status td_seq_open(td_seq **out, td_decoder *d, uint32_t n_ctx, td_error *err) TD_MUST_CHECK;
void td_seq_close(td_seq **seq);

/* Sets the sequence to exactly this prompt, keeping the longest prefix that it shares with what the sequence held and
 * that its keys and its recurrent memory can go back to. Errors: TD_E_LIMIT (longer than the context, both numbers),
 * TD_E_ARG (empty, a token or a parameter out of range); the sequence then is as before. */
td_status td_seq_start(td_seq *seq, const td_token *prompt, uint32_t n_prompt, const td_seq_params *params,
                       td_error *err) TD_MUST_CHECK;

/* Hands what the sequence has computed to the prompt cache, if there is one, and clears it: keys, memory. Its tokens
 * and statistics can be read until it is started again. At any time between rounds; a sequence that failed has nothing.
 */
void td_seq_finish(td_seq *seq);

/* The sequence becomes what td_seq_finish leaves of a text of these tokens: its tokens, and none of their keys. n 0:
 * it is as new. TD_E_LIMIT: more than its context. */
td_status td_seq_recall(td_seq *seq, const td_token *tokens, uint32_t n, td_error *err) TD_MUST_CHECK;

/* Known tokens that have no key yet. */
uint32_t td_seq_pending(const td_seq *seq);

/* Ends the sequence after n_tokens of its tokens (n_prompt <= n_tokens <= seq->n_tokens), as if the rest had never been
 * made. Within the last round this costs nothing; further back, recurrent memory falls back to a snapshot. */
void td_seq_cut(td_seq *seq, uint32_t n_tokens, td_finish finish);

/* Prompt rows of the rounds to come: 1 up to the options' prefill_rows. They are shared out evenly among the sequences
 * that have some, so that a short prompt does not wait for the end of a long one. */
void td_decoder_set_prefill(td_decoder *d, uint32_t rows);

/* One round of `n` unfinished sequences, 1 <= n <= max_seqs. A sequence that fails alone (non-finite logits) has its
 * status set and its keys dropped; the others go on. A failure of the pass itself is returned, and every sequence may
 * be closed or started again (one with recurrent memory from nothing). */
td_status td_round(td_decoder *d, td_seq *const *seqs, uint32_t n, td_error *err) TD_MUST_CHECK;

#endif
