/* options.h - the options that several commands share: which model, and how to sample. */
#ifndef TD_CLI_OPTIONS_H
#define TD_CLI_OPTIONS_H

#include "base/log.h"
#include "cli/args.h"
#include "tandem.h"

/* What a command does with a model of random weights: a bench wants it, a person is told, a server refuses. */
typedef enum td_synthetic_use { TD_SYNTHETIC_TAKEN, TD_SYNTHETIC_WARNED, TD_SYNTHETIC_REFUSED } td_synthetic_use;

typedef struct td_model_args {
    td_arg_text model, assistant, draft_model, kv, isa;
    td_arg_flag mtp, no_mtp, mtp_fixed, lookup, ignore_memory, float_activations, no_packing, pin, verbose, quiet;
    td_arg_uint num_mtp_tokens, mtp_shortlist, ctx_size, prefill_size, threads, memory_limit_mb;
    td_arg_text mtp_bits;
    td_arg_float mtp_min_prob;
    td_arg_text hub_cache;
    td_arg_flag offline;
    /* Set by commands that have options for them; not in the table. */
    td_arg_uint parallel, cache_mb;
    td_arg_uint ctx_least;          /* of ctx_size, when that does not fit the memory */
    const float *forced_acceptance; /* [n_forced_acceptance] benchmarks only */
    uint32_t n_forced_acceptance;
    td_synthetic_use synthetic;
    const td_log *log; /* takes what the engine says, instead of stderr */
} td_model_args;

extern const td_arg td_model_arg_table[];
extern const size_t td_model_arg_count;

typedef struct td_sampling_args {
    td_arg_float temp, top_p, min_p, repeat_penalty, presence_penalty, frequency_penalty;
    td_arg_uint top_k, seed;
    td_arg_texts logit_bias, stop;
} td_sampling_args;

extern const td_arg td_sampling_arg_table[];
extern const size_t td_sampling_arg_count;

/* An open engine and what belongs to it. */
typedef struct td_opened {
    td_engine *engine;
    const td_engine_info *info;
    char *trunk, *assistant, *draft_model, *hub_cache; /* owned strings that the engine was given */
} td_opened;

/* Opens the model that the options name, downloaded when it is a hub id that the cache lacks (unless offline), or the
 * embedded pair with drafting on, with a bar on stderr. On failure one
 * line has been printed and the exit code is returned; 0 is success. Close either way. */
int td_open_engine(td_opened *o, const td_model_args *args);
void td_close_engine(td_opened *o);

/* Lays the options over `base`. biases: room for args->logit_bias.n entries, which the result borrows; so does it the
 * stop strings. False: one line about a bad --logit-bias has been printed after `command`. */
bool td_sampling_of(const td_sampling_args *args, td_sampling base, const char *command, td_logit_bias *biases,
                    td_sampling *out);

/* A seed that nobody chose: from the system's randomness, small enough to read out. */
uint64_t td_random_seed(void);

#endif
