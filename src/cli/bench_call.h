/* bench_call.h - one streamed chat completion as it arrives: its text, its counts, its times.
 *
 * Works with any server of OpenAI's interface; llama.cpp's and Tandem's `timings` are read where they come. No network
 * here: whoever has the bytes hands them over. */
#ifndef TD_CLI_BENCH_CALL_H
#define TD_CLI_BENCH_CALL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/buf.h"

typedef enum td_call_state {
    TD_CALL_WAITING, /* not sent yet */
    TD_CALL_RUNNING,
    TD_CALL_OK,
    TD_CALL_FAILED, /* `error` says why */
    TD_CALL_CUT,    /* it was running when the client stopped: neither an answer nor a failure */
} td_call_state;

typedef struct td_bench_call {
    char *body; /* owned; set by the caller */
    /* what came of it */
    td_call_state state;
    char error[200];
    double began, first, last, ended; /* seconds on one clock; first, last: arrivals of text */
    double *gaps;                     /* [n_gaps] owned; seconds between arrivals: reads that brought text */
    size_t n_gaps, gaps_capacity;
    uint32_t pieces;                       /* of text; several may come in one arrival */
    uint32_t tokens;                       /* as the server counts them, else the pieces */
    uint32_t prompt_tokens, cached_tokens; /* 0: the server does not say */
    bool timed;                            /* the server told what it did: `timings` */
    uint32_t drafted, accepted;            /* tokens, of `timings`; 0: none, or it does not say */
    td_buf text;
    td_buf line;  /* of the stream, unfinished */
    void *handle; /* the client's, while it runs */
} td_bench_call;

void td_bench_call_init(td_bench_call *c);
void td_bench_call_free(td_bench_call *c);

/* Bytes of the body that arrived at `at`. False: too many, or out of memory. */
bool td_bench_call_take(td_bench_call *c, const char *bytes, size_t n, double at);

/* The end of the answer. `failure`: of the transport, or NULL; `code`: the HTTP status. */
void td_bench_call_end(td_bench_call *c, const char *failure, long code, double at);

#endif
