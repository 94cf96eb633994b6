/* tandem.h - the public C API of libtandem: open a model with its drafter, talk to it in sessions.
 *
 * Conventions of every function in this library
 *   - A function that can fail returns td_status: TD_OK (0) or a negative code. It is must-check.
 *   - `td_error *err` may be NULL. It is written only on failure, with one sentence a user can act on: what was
 *     wrong, where (file, tensor, token, byte), and what was expected.
 *   - A failed constructor leaves *out NULL. A close/free function takes the address of the handle, accepts NULL
 *     and NULL-ed handles, and NULLs the handle.
 *   - The library never exits, never prints and never reads the environment: it gets options and a log callback.
 */
#ifndef TANDEM_H
#define TANDEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define TD_MUST_CHECK __attribute__((warn_unused_result))
#define TD_PRINTF(f, a) __attribute__((format(printf, f, a)))
#else
#define TD_MUST_CHECK
#define TD_PRINTF(f, a)
#endif

/* X(name, value, text): one list yields the enum, the name and the text. */
#define TD_STATUS_LIST(X)                                                                                              \
    X(OK, 0, "success")                                                                                                \
    X(E_NOMEM, -1, "out of memory")                                                                                    \
    X(E_ARG, -2, "invalid argument")                                                                                   \
    X(E_IO, -3, "input/output error")                                                                                  \
    X(E_NOTFOUND, -4, "not found")                                                                                     \
    X(E_FORMAT, -5, "malformed file or text")                                                                          \
    X(E_MODEL, -6, "model does not fit what was asked of it")                                                          \
    X(E_SHAPE, -7, "wrong shape or type")                                                                              \
    X(E_UNSUPPORTED, -8, "not supported")                                                                              \
    X(E_LIMIT, -9, "limit exceeded")                                                                                   \
    X(E_CANCELLED, -10, "cancelled")                                                                                   \
    X(E_NUMERIC, -11, "non-finite numbers")                                                                            \
    X(E_DEVICE, -12, "device error")                                                                                   \
    X(E_BUSY, -13, "too many requests")

typedef enum td_status {
#define TD_STATUS_ENUM(name, value, text) TD_##name = (value),
    TD_STATUS_LIST(TD_STATUS_ENUM)
#undef TD_STATUS_ENUM
} td_status;

typedef struct td_error {
    td_status status;
    int64_t position; /* byte, token or row the message speaks of; -1 when it speaks of none */
    char message[500];
} td_error;

/* "TD_E_FORMAT" and "malformed file or text"; unknown codes give "TD_E_?" and "unknown status". */
const char *td_status_name(td_status status);
const char *td_status_text(td_status status);

typedef int32_t td_token;

/* ---- logging and progress ---- */

typedef enum td_log_level { TD_LOG_DEBUG, TD_LOG_INFO, TD_LOG_WARN, TD_LOG_ERROR } td_log_level;
/* One line without a newline. May be called from any thread of the library, one call at a time. */
typedef void (*td_log_fn)(void *user, td_log_level level, const char *message);

/* `done` of `total` steps of `stage` ("load", "measure", "quantize assistant", "prefill"). Return false to stop: the
 * call that reported then fails with TD_E_CANCELLED. */
typedef bool (*td_progress_fn)(void *user, const char *stage, uint64_t done, uint64_t total);

/* ---- the engine: one trunk, perhaps a drafter, a tokenizer and a chat template ---- */

typedef struct td_engine td_engine;

typedef struct td_engine_options {
    const char *model;       /* a checkpoint directory, or a hub id found in hub_cache */
    bool mtp;                /* there must be draft heads, in the checkpoint or as `assistant`: an error when not.
                              * Heads in the checkpoint draft without it, too */
    bool no_mtp;             /* heads in the checkpoint stay unused */
    const char *assistant;   /* directory or hub id of the trunk's assistant checkpoint */
    const char *draft_model; /* directory or hub id of a whole smaller model of the same vocabulary */
    bool lookup;             /* prompt lookup, alone or behind the other drafter's drafts */
    const char *hub_cache;   /* a Hugging Face hub cache directory, or NULL */
    uint32_t num_mtp_tokens; /* drafts a round and sequence at most, 0..TD_MAX_DRAFT; each round makes as many of them
                              * as pay. TD_DEPTH_AUTO (the default): 8 */
    bool mtp_fixed;          /* num_mtp_tokens drafts every round, whether they pay or not */
    float mtp_min_prob;      /* 0..1: a draft ends before the product of the probabilities that the drafter gives its
                              * tokens falls below this; 0 (the default): it ends where it does not pay */
    uint32_t mtp_bits;       /* 16, 8 or 4: width the heads' matrices are kept in; 0: the trunk's width (assistant), as
                              * the file has them (heads in the checkpoint) */
    uint32_t mtp_shortlist;  /* heads in the checkpoint score this many words; 0: all. Changes speed, never text */
    bool mtp_random_weights; /* tests: the assistant's weights are replaced by noise; changes speed, never text */
    const float *forced_acceptance; /* [n_forced_acceptance] benchmarks only, for models without a meaning: the draft at
                                     * position i is accepted in this share of the rounds, whatever it is. Numbers of
                                     * 0..1 that do not grow; 0 behind the last. What such an engine answers is no text,
                                     * so it takes no request but those that say `benchmark` */
    uint32_t n_forced_acceptance;   /* 0: drafts are accepted when they are right */
    uint32_t n_ctx;       /* positions a sequence may reach, up to 2^24; 0: what the model was made for, at most 8192 */
    uint32_t n_ctx_least; /* where n_ctx does not fit the memory, the context becomes the longest that does, but no
                           * shorter than this; 0: what does not fit is an error */
    uint32_t parallel;    /* sequences that a pass may serve (td_scheduler); default 1, at most 1024 */
    uint64_t cache_bytes; /* keys and values kept for prompts to come; 0: none beyond a session's own */
    uint32_t prefill_size; /* prompt rows a pass; default 512 */
    bool kv_f32;           /* keys and values in f32 rather than bf16 */
    uint32_t kv_page;      /* positions a KV page; default 64 */
    int n_threads;         /* 0: all usable processors */
    const char *isa; /* "auto" (or NULL), "generic", "avx2", "avxvnni", "avx512", "neon", "neon+dotprod", "reference" */
    bool pin;        /* bind each thread to a processor, one of each core first; the thread that generates, too, for as
                      * long as it does (the scheduler's for good) */
    bool float_activations; /* quantised weights meet f32 activations rather than int8 ones */
    bool no_packing;        /* quantised weights are read from the file's pages, which processes share, rather than from
                             * a copy in the order of the kernels, which is faster: the same results, bit for bit */
    uint64_t memory_limit;  /* bytes the process may use; 0: what the machine has available */
    bool ignore_memory;     /* load even when the memory plan exceeds the limit */
    bool refuse_synthetic;  /* random weights made for measuring (td_engine_info.synthetic) are an error */
    bool no_calibration;    /* what drafting costs is not measured at opening, but found out by the first answers */
    td_log_fn log;
    td_progress_fn progress;
    void *user; /* passed to log and progress */
} td_engine_options;

#define TD_MAX_DRAFT 16
#define TD_DEPTH_AUTO UINT32_MAX

td_engine_options td_engine_options_default(void);

/* Loads everything. Errors name the file, tensor or option: TD_E_NOTFOUND, TD_E_FORMAT, TD_E_MODEL (a mismatched or
 * missing drafter, a tensor too many or too few), TD_E_SHAPE, TD_E_LIMIT (the memory plan does not fit), ... */
td_status td_engine_open(td_engine **out, const td_engine_options *opt, td_error *err) TD_MUST_CHECK;
/* Its sessions are closed before it. */
void td_engine_close(td_engine **engine);

typedef struct td_memory_plan {
    uint64_t weights;   /* bytes of the trunk's weights, mapped */
    uint64_t drafter;   /* bytes of the drafter's weights and scratch */
    uint64_t kv;        /* bytes of keys and values at n_ctx, one sequence */
    uint64_t scratch;   /* bytes of one pass */
    uint64_t available; /* bytes the process may use */
} td_memory_plan;

typedef struct td_engine_info {
    const char *model_path;
    const char *family;        /* "gemma4" */
    const char *weight_format; /* "bf16", "affine 4-bit group 64", ... of most of the trunk */
    const char *isa;
    uint64_t n_params;
    uint32_t n_vocab, n_embd, n_layers, n_ctx;
    int n_threads;
    bool synthetic; /* the weights are random, and say so: what the model answers means nothing */
    bool mtp_active;
    const char *mtp_reason; /* why it is not active; "" when it is */
    const char *mtp_kind; /* "assistant", "heads", "draft model", "lookup", "heads+lookup", ...; "" without a drafter */
    uint32_t mtp_depth;   /* drafts a round at most */
    bool mtp_auto;        /* each round's depth is chosen from measured costs and acceptance */
    const char *drafter_format; /* as weight_format, "" without a drafter */
    td_memory_plan memory;
    double load_seconds;
} td_engine_info;

/* What the engine would take with a context of n_ctx tokens (>= 1); nothing is allocated. At info.n_ctx it is
 * info.memory. */
td_memory_plan td_engine_plan(const td_engine *engine, uint32_t n_ctx);

/* Borrowed from the engine. */
const td_engine_info *td_engine_describe(const td_engine *engine);

/* Text to tokens (td_tokens_free). add_bos: as the tokenizer's own template adds it; special: names of special tokens
 * in the text become those tokens (leave it off for text from strangers). */
td_status td_engine_tokenize(const td_engine *engine, const char *text, size_t n_text, bool add_bos, bool special,
                             td_token **tokens, size_t *n_tokens, td_error *err) TD_MUST_CHECK;
/* Tokens to text (td_text_free), NUL-terminated. */
td_status td_engine_detokenize(const td_engine *engine, const td_token *tokens, size_t n_tokens, bool special,
                               char **text, size_t *n_text, td_error *err) TD_MUST_CHECK;

/* Applies the model's chat template. messages: a JSON array in OpenAI's form; tools: a JSON array or NULL; kwargs: a
 * JSON object of further template variables or NULL. The text is td_text_free'd; tokenize it with special = true and
 * add_bos = false. */
td_status td_engine_chat_prompt(const td_engine *engine, const char *messages, const char *tools, const char *kwargs,
                                bool add_generation_prompt, char **text, td_error *err) TD_MUST_CHECK;

void td_tokens_free(td_token *tokens);
void td_text_free(char *text);

/* ---- sampling ---- */

typedef struct td_logit_bias {
    td_token token;
    float bias; /* added to the logit; -INFINITY bans the token */
} td_logit_bias;

/* Order: penalties and bias on the logits, temperature, top-k, top-p, min-p, then a draw by Gumbel noise that is a
 * function of (seed, position, token) alone, so that a drafter changes no draw. */
typedef struct td_sampling {
    float temperature;        /* 0: the most likely token (ties: the lower id) */
    uint32_t top_k;           /* 0: all */
    float top_p;              /* 1: all */
    float min_p;              /* 0: all */
    float repetition_penalty; /* 1: none; > 1 divides positive and multiplies negative logits of tokens seen */
    float presence_penalty;   /* subtracted from tokens generated before */
    float frequency_penalty;  /* times how often */
    uint64_t seed;
    const td_logit_bias *bias; /* [n_bias], borrowed */
    size_t n_bias;
} td_sampling;

/* Temperature 0 and everything off. */
td_sampling td_sampling_default(void);

/* The model's published defaults (generation_config.json), with seed 0. */
td_sampling td_engine_sampling(const td_engine *engine);

/* ---- generation ---- */

typedef enum td_finish {
    TD_FINISH_NONE,
    TD_FINISH_STOP,      /* an end token or a stop string */
    TD_FINISH_LENGTH,    /* max_tokens or the context is full */
    TD_FINISH_CANCELLED, /* the callback said so */
    TD_FINISH_TIME,      /* time_limit is over */
} td_finish;

const char *td_finish_name(td_finish f); /* "stop", "length", "cancelled", "time" */

typedef struct td_token_prob {
    td_token token;
    float logprob; /* natural log; of the softmax of the model's logits, before penalties, bias, temperature, filters */
} td_token_prob;

/* What a round has added to an answer. All of it is the engine's and lives until the callback returns. */
typedef struct td_piece {
    const char *text; /* [n_text] whole characters only, never part of a stop string; may be empty */
    size_t n_text;
    const td_token *tokens; /* [n_tokens] the round's tokens; one that a stop string cut off is not among them */
    size_t n_tokens;
    const bool *drafted;        /* [n_tokens] whether it came from an accepted draft */
    const uint32_t *text_end;   /* [n_tokens] bytes of `text` that were certain once this token was there */
    const td_token_prob *probs; /* [n_tokens][1 + n_logprobs] the token, then the likeliest ones in order; or NULL */
    uint32_t n_logprobs;
} td_piece;

/* Return false to cancel. */
typedef bool (*td_text_fn)(void *user, const td_piece *piece);

/* What an answer must match. At most one of the first three is set. With tools beside a schema or json_object the
 * answer is either calls or a text of that kind; tools and a grammar exclude each other. */
typedef struct td_constraint_spec {
    const char *json_schema; /* a JSON Schema */
    const char *grammar;     /* a grammar in GBNF */
    bool json_object;        /* any JSON object */
    const char *tools;       /* OpenAI's array of tools: the answer must be calls of them, in the model's own form */
    const char *tool_name;   /* of this one; NULL: of any */
    bool one_call;           /* a single call */
    bool may_think;          /* thoughts in the model's form may come first, and are not constrained */
    bool thinking;           /* the prompt has opened them: they do come first */
} td_constraint_spec;

typedef struct td_request {
    const td_token *prompt; /* [n_prompt], n_prompt >= 1 */
    size_t n_prompt;
    uint32_t max_tokens; /* 0: until the context is full */
    td_sampling sampling;
    bool ignore_eos;         /* end tokens are ordinary */
    const char *const *stop; /* [n_stop] strings that end the answer and are not part of it */
    size_t n_stop;
    bool benchmark;     /* the answer is measured, not read: an engine with forced_acceptance takes no other request */
    bool no_mtp;        /* plain decoding for this request */
    int num_mtp_tokens; /* drafts a round at most, up to the engine's depth; -1: the engine's depth. When that is fixed
                         * (mtp_fixed), so is this */
    bool mtp_fixed;     /* num_mtp_tokens is this request's depth, every round, paid or not */
    bool special;       /* special tokens appear in the text */
    int n_logprobs;     /* alternatives a token to report, 0..TD_MAX_LOGPROBS; -1: no log-probabilities */
    td_constraint_spec constraint;
    double time_limit;             /* seconds from the start of the prompt; 0: none */
    td_text_fn on_text;            /* or NULL */
    td_progress_fn on_prefill;     /* or NULL */
    bool (*is_wanted)(void *user); /* asked about once a round, while waiting too; false cancels; or NULL */
    void *user;
} td_request;

#define TD_MAX_LOGPROBS 20

td_request td_request_default(void);

typedef struct td_result {
    td_token *tokens; /* [n_tokens] generated, an end token included */
    size_t n_tokens;
    char *text; /* without the end token */
    size_t n_text;
    td_finish finish;
    uint32_t prompt_tokens;
    uint32_t cached_tokens; /* of the prompt, not evaluated again */
    uint32_t rounds;        /* passes that sampled */
    uint64_t drafted;
    uint64_t drafted_at[TD_MAX_DRAFT];  /* rounds that drafted at this position (0: the first draft) */
    uint64_t accepted_at[TD_MAX_DRAFT]; /* rounds that accepted it */
    double queue_seconds;               /* waiting for a place (td_scheduler) */
    double prefill_seconds, decode_seconds;
    bool mtp_active;
    const char *mtp_reason; /* why drafting did not run; "" when it did; static or the engine's */
    uint32_t mtp_depth;
} td_result;

void td_result_free(td_result *result);

/* A conversation: it keeps its keys and values, so that the next prompt evaluates only what is new. */
typedef struct td_session td_session;
td_status td_session_open(td_session **out, td_engine *engine, td_error *err) TD_MUST_CHECK;
void td_session_close(td_session **session);

/* Generates. One call at a time an engine (TD_E_ARG otherwise). On failure *result is zeroed and the session stays
 * usable. TD_E_LIMIT: the prompt is longer than the context, with both numbers; TD_E_NUMERIC: the model gave
 * non-finite logits; TD_E_ARG: a token or parameter out of range. Cancelling through on_text is no failure. */
td_status td_session_generate(td_session *session, const td_request *request, td_result *result,
                              td_error *err) TD_MUST_CHECK;

/* ---- many answers at once ---- */

/* Runs requests of any number of threads on the engine, up to td_engine_options.parallel of them in each pass: drafts
 * of different sequences ride together, prompts enter in chunks between the rounds of those that are answering. While
 * it is open the engine's sessions cannot generate (TD_E_BUSY). Waiting requests are taken fairly: of each owner in
 * turn, the oldest first. */
typedef struct td_scheduler td_scheduler;

typedef struct td_scheduler_options {
    uint32_t max_queue; /* requests that may wait; default 256 */
    double max_stall;   /* seconds that a round may take because of a prompt while others are answering; default 0.25 */
} td_scheduler_options;

td_scheduler_options td_scheduler_options_default(void);

/* The last call about a request, exactly one: `result` is the scheduler's and NULL when it failed, with the reason in
 * `err` (TD_E_NUMERIC, TD_E_LIMIT, TD_E_CANCELLED: the scheduler was closed, ...). */
typedef void (*td_end_fn)(void *user, const td_result *result, const td_error *err);

/* Starts a thread that everything runs on, callbacks included: they must not block. */
td_status td_scheduler_open(td_scheduler **out, td_engine *engine, const td_scheduler_options *opt,
                            td_error *err) TD_MUST_CHECK;
/* Waiting and running requests end with TD_E_CANCELLED. */
void td_scheduler_close(td_scheduler **scheduler);

/* Takes a request on; everything in it is copied. `owner` tells users apart for fairness. *id names it for
 * td_scheduler_cancel. Any thread. Errors come at once and on_end is then not called: what td_session_generate refuses,
 * a constraint that cannot be met (TD_E_ARG), TD_E_BUSY: the queue is full or the scheduler is draining. */
td_status td_scheduler_submit(td_scheduler *scheduler, const td_request *request, uint64_t owner, td_end_fn on_end,
                              uint64_t *id, td_error *err) TD_MUST_CHECK;
/* Ends it within a round, as cancelled; an id that is over is ignored. Any thread. */
void td_scheduler_cancel(td_scheduler *scheduler, uint64_t id);

/* Nothing new is taken; returns true when all have ended, false after `seconds`. Any thread. */
bool td_scheduler_drain(td_scheduler *scheduler, double seconds);

typedef struct td_slot_info {
    bool busy;
    uint64_t id;       /* of the request, or of the last one; 0: none yet */
    uint32_t n_prompt; /* tokens */
    uint32_t n_cached, n_generated, n_pending;
    uint64_t drafted, accepted;
} td_slot_info;

typedef struct td_scheduler_stats {
    uint32_t parallel, active, queued, max_queue;
    bool draining;
    uint64_t requests, finished, cancelled, failed, refused; /* refused: TD_E_BUSY */
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    uint64_t rounds;       /* of a sequence that sampled */
    uint64_t passes;       /* of the model */
    uint64_t draft_rounds; /* rounds that had drafts */
    uint64_t drafted, accepted;
    uint64_t drafted_at[TD_MAX_DRAFT], accepted_at[TD_MAX_DRAFT];
    double busy_seconds, prefill_seconds, decode_seconds; /* the latter two summed over requests */
    uint64_t kv_bytes, kv_allocated;                      /* in use by sequences and cache; allocated */
    uint64_t cache_bytes, cache_limit, cache_pages, cache_hits, cache_misses, cache_evictions;
    uint64_t cache_hit_tokens;
} td_scheduler_stats;

/* A snapshot. Any thread. */
void td_scheduler_describe(td_scheduler *scheduler, td_scheduler_stats *stats);
/* One of td_engine_options.parallel slots; TD_E_ARG: no such. Any thread. */
td_status td_scheduler_slot(td_scheduler *scheduler, uint32_t slot, td_slot_info *info, td_error *err) TD_MUST_CHECK;

/* Writes what is cached of the conversation that a slot holds, or held last, to a file, atomically; reads such a file
 * back into the cache, where the next prompt that begins like it finds it (and makes it the slot's conversation);
 * forgets it. *n_tokens: of the conversation in the file; *n_bytes: its size. They wait for the round under way. Any
 * thread but the scheduler's. TD_E_BUSY: the slot is generating; TD_E_NOTFOUND: nothing to save, or no such file;
 * TD_E_MODEL: a file of another model; TD_E_FORMAT: a damaged file; TD_E_IO. */
td_status td_scheduler_save(td_scheduler *scheduler, uint32_t slot, const char *path, uint64_t *n_tokens,
                            uint64_t *n_bytes, td_error *err) TD_MUST_CHECK;
td_status td_scheduler_restore(td_scheduler *scheduler, uint32_t slot, const char *path, uint64_t *n_tokens,
                               uint64_t *n_bytes, td_error *err) TD_MUST_CHECK;
td_status td_scheduler_erase(td_scheduler *scheduler, uint32_t slot, uint64_t *n_tokens, td_error *err) TD_MUST_CHECK;

#ifdef __cplusplus
}
#endif
#endif
