/* bench_http.h - a client of OpenAI's chat interface that keeps the times: many requests in flight, answers streamed.
 *
 * Works with any server of that interface; nothing here knows Tandem's. */
#ifndef TD_CLI_BENCH_HTTP_H
#define TD_CLI_BENCH_HTTP_H

#include <jansson.h>

#include "base/buf.h"

typedef struct td_bench_http td_bench_http;

/* `url` with or without a path and a final slash ("http://host:8080", "http://host:8080/v1"); `key` or NULL.
 * TD_E_ARG: no URL of http or https. */
td_status td_bench_http_open(td_bench_http **out, const char *url, const char *key, double timeout,
                             td_error *err) TD_MUST_CHECK;
void td_bench_http_close(td_bench_http **h);

/* GET of a path under the server ("/metrics", "/v1/models") into `out`. TD_E_IO: it did not answer 200. */
td_status td_bench_http_get(td_bench_http *h, const char *path, td_buf *out, td_error *err) TD_MUST_CHECK;

/* One streamed chat completion. */
typedef struct td_bench_call {
    char *body; /* owned; set by the caller */
    /* what came of it */
    bool ok;
    char error[200];
    double began, first, ended; /* seconds on one clock; first: when the first text came */
    double *gaps;               /* [n_gaps] owned; seconds between pieces of text */
    size_t n_gaps, gaps_capacity;
    uint32_t pieces;                       /* of text */
    uint32_t tokens;                       /* as the server counts them, else the pieces */
    uint32_t prompt_tokens, cached_tokens; /* 0: the server does not say */
    td_buf text;
    td_buf line; /* of the stream, unfinished */
    double last; /* when the last piece came */
} td_bench_call;

void td_bench_call_init(td_bench_call *c);
void td_bench_call_free(td_bench_call *c);

/* Runs calls[0..n), `width` at a time, each as soon as another has ended. A call that fails says so itself; TD_E_NOMEM;
 * TD_E_CANCELLED: `tick` (or NULL), called when a call has ended, said false. */
td_status td_bench_http_run(td_bench_http *h, td_bench_call *calls, size_t n, uint32_t width,
                            bool (*tick)(void *user, size_t done), void *user, td_error *err) TD_MUST_CHECK;

#endif
