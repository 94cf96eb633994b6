/* measure.h - times single passes of an open engine: a prompt, n rows at a context, draft steps. For benchmarks.
 *
 * The passes are those that rounds make: one newest token and n - 1 tentative rows behind it, with logits of all. They
 * are made again and again from one state, and nothing of them stays. */
#ifndef TD_ENGINE_MEASURE_H
#define TD_ENGINE_MEASURE_H

#include "tandem.h"

typedef struct td_measure td_measure;

/* The engine must outlive it and generate nothing meanwhile. TD_E_NOMEM, TD_E_LIMIT. */
td_status td_measure_open(td_measure **out, td_engine *engine, td_error *err) TD_MUST_CHECK;
void td_measure_close(td_measure **m);

/* Rows of one pass that can have logits: 1 + the engine's deepest draft. */
uint32_t td_measure_max_rows(const td_measure *m);
/* Bytes of weights that a pass of one row reads. */
uint64_t td_measure_weight_bytes(const td_measure *m);
/* Bytes of keys and values that a pass of one row reads behind the prompt that was read last: every layer of the trunk
 * those that it sees, a sliding one its window, one that shares another's keys the same ones once more. */
uint64_t td_measure_kv_bytes(const td_measure *m);

/* Asked before every pass of a prompt; false ends it with TD_E_CANCELLED. NULL: nobody is asked. */
void td_measure_watch(td_measure *m, bool (*goes_on)(void *user), void *user);

/* Reads a new prompt of n random tokens, of which n - 1 enter the cache before the last, and samples the next token:
 * what comes before the first token of an answer. The context is then n. TD_E_LIMIT: n is 0 or does not fit;
 * TD_E_CANCELLED: td_measure_watch. */
td_status td_measure_prompt(td_measure *m, uint32_t n, double *seconds, td_error *err) TD_MUST_CHECK;

/* One pass of n rows behind the prompt. 1 <= n <= td_measure_max_rows. */
td_status td_measure_rows(td_measure *m, uint32_t n, double *seconds, td_error *err) TD_MUST_CHECK;

/* One draft of up to `depth` tokens behind the prompt; *n is how many were made. TD_E_ARG: there is no drafter. */
td_status td_measure_draft(td_measure *m, uint32_t depth, uint32_t *n, double *seconds, td_error *err) TD_MUST_CHECK;

typedef struct td_measure_memory_options {
    int n_threads;    /* 0: usable processors */
    bool pin;         /* as the engine's threads are */
    uint64_t bytes;   /* of the buffer that is read; 0: more than the caches hold, as far as memory goes */
    uint32_t repeats; /* of every way of reading */
} td_measure_memory_options;

/* Bytes a second at which the threads read memory together: the best of several ways to read (measure_memory.c) and of
 * the repeats. TD_E_NOMEM and what td_pool_open says. */
td_status td_measure_memory(const td_measure_memory_options *opt, double *rate, td_error *err) TD_MUST_CHECK;

#endif
