/* hub_http.h - requests to the hub: redirects, the token, time limits, retries and what its refusals mean.
 *
 * One object, one thread. Connections are kept between requests. */
#ifndef TD_FORMAT_HUB_HTTP_H
#define TD_FORMAT_HUB_HTTP_H

#include "format/hub.h"
#include "format/hub_digest.h"

typedef struct td_hub_http td_hub_http;

/* `opt` is borrowed until close. TD_E_ARG: the endpoint is no http(s) URL. */
td_status td_hub_http_open(td_hub_http **out, const td_hub_options *opt, td_error *err) TD_MUST_CHECK;
void td_hub_http_close(td_hub_http **http);

/* What the hub itself said in its headers (commit, etag, size of the file behind a redirect), and the last server's
 * range. */
typedef struct td_hub_answer {
    long status;
    char commit[41];                    /* X-Repo-Commit; "": none */
    char etag[TD_HUB_DIGEST_TEXT_SIZE]; /* X-Linked-Etag, else ETag; "" unless 40 or 64 hex digits */
    bool has_size, has_range;           /* of the next ones */
    uint64_t size;                      /* X-Linked-Size, else Content-Length */
    uint64_t range_first, range_total;  /* Content-Range: bytes <first>-.../<total> */
    char problem[40];                   /* X-Error-Code */
    bool moved;                         /* a redirect to another server was not followed (head) */
} td_hub_answer;

typedef struct td_hub_request {
    const char *url;
    const char *repo; /* org/name, for messages */
    const char *file; /* in it, for messages; NULL: the request is about the repository */
    bool head;        /* headers alone, from the hub itself */
    /* A body in parts: bytes that are there, and bytes that there should be. Read anew at each attempt; NULL: whole. */
    const uint64_t *have, *want;
    /* Before the first byte of a body (status 200 or 206), and at 416 (what is there cannot be added to): the receiver
     * looks where the body starts, and starts over when it must. */
    td_status (*begin)(void *user, const td_hub_answer *answer, td_error *err);
    td_status (*body)(void *user, const char *bytes, size_t n, td_error *err);
    bool (*tick)(void *user); /* a few times a second; false: TD_E_CANCELLED */
    void *user;
} td_hub_request;

/* Runs it, with retries. Statuses: see td_hub_fetch. */
td_status td_hub_http_run(td_hub_http *http, const td_hub_request *request, td_hub_answer *answer,
                          td_error *err) TD_MUST_CHECK;

/* <endpoint>/<a><b>, each byte of `b` that is not plain percent-encoded, "/" too unless keep_slash. NULL: no memory. */
char *td_hub_http_url(const td_hub_http *http, const char *a, const char *b, bool keep_slash, const char *tail);

#endif
