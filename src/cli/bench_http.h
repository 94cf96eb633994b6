/* bench_http.h - an HTTP client for load: pages, and many streamed answers in flight, with the times kept.
 *
 * Works with any server of OpenAI's chat interface; nothing here knows Tandem's. */
#ifndef TD_CLI_BENCH_HTTP_H
#define TD_CLI_BENCH_HTTP_H

#include "cli/bench_call.h"

typedef struct td_bench_http td_bench_http;

typedef struct td_bench_http_options {
    const char *url; /* of the server, final slashes and a final "/v1" or not: "http://host:8080", "http://h/llm/v1" */
    const char *key; /* sent as a bearer token, or NULL */
    double timeout;  /* seconds, of a request */
    bool (*stop)(void); /* asked at least ten times a second while waiting; true: TD_E_CANCELLED at once */
} td_bench_http_options;

/* TD_E_ARG: no URL of http or https. */
td_status td_bench_http_open(td_bench_http **out, const td_bench_http_options *o, td_error *err) TD_MUST_CHECK;
void td_bench_http_close(td_bench_http **h);

/* The server's URL as requests use it, without a user's name and password. Valid until the client is closed. */
const char *td_bench_http_url(const td_bench_http *h);

/* GET of a path under the server ("/metrics", "/v1/models") into `out` (td_buf_free). May be called from a tick of
 * td_bench_http_run. TD_E_IO: it did not answer 200; TD_E_CANCELLED. */
td_status td_bench_http_get(td_bench_http *h, const char *path, td_buf *out, td_error *err) TD_MUST_CHECK;

/* Runs calls[0..n), `width` at a time, each as soon as another has ended. A call that fails says so itself. `tick` (or
 * NULL) is told how many have ended, each time something arrived and ten times a second. On TD_E_NOMEM, TD_E_IO (the
 * client failed) and TD_E_CANCELLED what was running is cut off, and the rest stays waiting. */
td_status td_bench_http_run(td_bench_http *h, td_bench_call *calls, size_t n, uint32_t width,
                            void (*tick)(void *user, size_t ended), void *user, td_error *err) TD_MUST_CHECK;

#endif
