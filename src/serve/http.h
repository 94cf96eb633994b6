/* http.h - an HTTP/1.1 server that knows no model and no JSON: routes, limits, keys, replies now or later, streams.
 *
 * A handler gets an exchange (one request and its reply) once the whole body has arrived. It may answer there and then,
 * or keep the exchange and answer from any thread, hours later: a waiting or silent connection costs no thread.
 *
 *     td_http_open(&h, &options, &err);      ... handlers run on the server's threads ...
 *     td_http_stop_accepting(h);             new connections are refused, what is under way goes on
 *     td_http_close(&h, 10.0);               waits up to 10 s for it, then cuts what is left
 *
 * Life of an exchange. The layer holds one reference while the connection needs it; a handler that keeps the pointer
 * beyond its return takes one with td_exchange_hold() and gives it back with td_exchange_release(). An exchange may
 * outlive its connection and even the server: every call stays safe, writes say TD_E_CANCELLED, alive says false.
 * A handler must bring about exactly one of: td_exchange_reply(), td_exchange_begin() .. td_exchange_end(),
 * td_exchange_abort(). When the last reference of the caller goes without any of them, the client gets a 500.
 *
 * Threads. Everything on an exchange may be called from any thread at any time. Nothing here waits for a client. A
 * handler runs on one of the server's threads, and other connections of that thread wait for it: long work goes
 * elsewhere.
 *
 * A client that closes its sending side counts as gone: it gets what is ready and nothing is waited for. Its exchange
 * is aborted without anybody asking; td_exchange_alive() tells it within the call that looks. */
#ifndef TD_SERVE_HTTP_H
#define TD_SERVE_HTTP_H

#include "base/buf.h"
#include "base/log.h"

typedef struct td_http td_http;
typedef struct td_exchange td_exchange;

typedef void (*td_http_handler)(void *user, td_exchange *x);

/* ---- routes ---- */

enum {
    TD_HTTP_PREFIX = 1, /* `path` is a prefix: "/files/" takes "/files/a/b"; the longest match wins */
    TD_HTTP_OPEN = 2,   /* needs no key */
    TD_HTTP_BODY = 4,   /* a request that says nothing of a body (neither length nor chunks) is a 411 */
    TD_HTTP_NO_CORS = 8 /* no cross-origin headers on this route */
};

typedef struct td_http_route {
    const char *method; /* "GET" serves HEAD too. OPTIONS needs no route */
    const char *path;   /* as decoded: "/v1/models" */
    unsigned flags;
    const char *content_type; /* NULL: any. Else a request with a body whose Content-Type is another one is a 415;
                               * parameters (charset) are ignored, and no Content-Type at all passes */
    td_http_handler handler;
    void *user;
} td_http_route;

/* ---- options ---- */

/* The body of a reply the layer makes itself (400, 401, 404, ...), appended to `out`. `code` is a short word that names
 * the cause: see td_http_options.error_body. Called from any thread of the server, several at once; it must call
 * nothing of the server. */
typedef void (*td_http_error_body)(void *user, unsigned status, const char *code, const char *message, td_buf *out);

/* One line of the access log: printable, no bodies, no keys, no query. `path` is cut at 255 bytes. */
typedef struct td_http_access {
    const char *peer;
    const char *id;
    const char *method;
    const char *path;
    unsigned status;     /* 0: the connection ended before a reply was chosen */
    uint64_t body_bytes; /* of the request */
    uint64_t sent_bytes; /* of the reply's body, as handed to the connection */
    double seconds;      /* from the end of the request's headers to the end of the exchange */
    bool complete;       /* the reply went out whole */
} td_http_access;
typedef void (*td_http_access_fn)(void *user, const td_http_access *entry);

typedef struct td_http_options {
    const char *host; /* "127.0.0.1", "::1", "0.0.0.0", "::" (both families), a name, or "unix:/path". NULL: 127.0.0.1.
                       * A socket file nobody listens on is replaced; it is removed when accepting stops */
    uint16_t port;    /* 0: any free one, see td_http_port() */
    const char *server; /* the Server header, "tandem/0.1.0"; NULL: none */

    const td_http_route *routes; /* copied; the strings must outlive the server */
    size_t n_routes;
    const char *const *api_keys; /* copied. None: no key is asked for. Taken from "Authorization: Bearer KEY",
                                  * "Authorization: KEY" or "x-api-key: KEY" */
    size_t n_api_keys;
    const char *cors_origin; /* NULL: no cross-origin headers. "*", or one origin ("https://chat.example") */

    /* Codes: bad_request 400, invalid_api_key 401, not_found 404, method_not_allowed 405, request_timeout 408,
     * length_required 411, body_too_large 413, uri_too_long 414, unsupported_media_type 415,
     * unsupported_encoding 415, headers_too_large 431, internal_error 500, shutting_down 503, overloaded 503.
     * NULL: the message as text/plain. What libmicrohttpd refuses before the layer sees it (no HTTP/1.x line, a header
     * without a colon, a length that is no number, broken chunks, headers over twice the limit) has the right status
     * and its own short page; a first line without a space ends the connection. */
    td_http_error_body error_body;
    const char *error_type; /* its Content-Type; NULL: application/json */
    void *error_user;

    td_http_access_fn access; /* called on the server's threads, several at once; may be NULL */
    void *access_user;
    const td_log *log; /* trouble with sockets; may be NULL; must outlive the server */

    unsigned n_threads;            /* 2 */
    unsigned max_connections;      /* 4096; beyond it connections wait in the listen queue */
    unsigned max_connections_peer; /* 0: no limit; beyond it connections of that address are closed at once */
    size_t max_header_bytes;       /* 16 KiB: 431, or 414 when the URI alone is longer than half of it */
    size_t max_body_bytes;         /* 100 MiB: 413 */
    size_t max_bodies_bytes;       /* 1 GiB, all bodies held at one time: 503 */
    size_t max_unsent_bytes;       /* 4 MiB a stream: beyond it a write aborts the exchange */
    double idle_seconds;           /* 75, and up to 2 more: no request begun, a body that pauses (408), a reply of which
                                    * the client takes nothing */
    double header_seconds;         /* 20 from the connection to the end of its request's headers: 408 */
    double body_seconds;           /* 300 for a whole body: 408 */
} td_http_options;

/* The defaults above, no routes. */
td_http_options td_http_options_default(void);

/* ---- the server ---- */

/* Listens and starts the threads. *out NULL on failure.
 * Errors    TD_E_IO "127.0.0.1:5413: address already in use"; TD_E_ARG names the option. */
td_status td_http_open(td_http **out, const td_http_options *options, td_error *err);
/* The port listened on; 0 for a Unix socket. */
uint16_t td_http_port(const td_http *h);
/* Where it listens, as a user types it: "http://127.0.0.1:5413", "unix:/path". */
const char *td_http_address(const td_http *h);
/* No new connection is taken, connections of the past close after their next reply. Safe to call twice, any thread. */
void td_http_stop_accepting(td_http *h);
/* Stops accepting, waits until every exchange has ended or `drain_seconds` are over, aborts the rest, frees, sets *h to
 * NULL. Not from a handler. Accepts NULL. */
void td_http_close(td_http **h, double drain_seconds);

typedef struct td_http_stats {
    uint64_t n_connections; /* open now */
    uint64_t n_exchanges;   /* requests whose connection has not finished with them */
    uint64_t n_requests;    /* ever */
    uint64_t n_refused;     /* ever: answered by the layer itself with an error */
    uint64_t n_gone;        /* ever: the client left before its reply was whole */
    uint64_t bodies_bytes;  /* held now */
} td_http_stats;
td_http_stats td_http_stats_get(td_http *h);

/* ---- an exchange: the request ---- */

td_exchange *td_exchange_hold(td_exchange *x); /* returns x */
void td_exchange_release(td_exchange *x);      /* accepts NULL */

/* All text is the exchange's, unchanging, and valid as long as the reference. */
const char *td_exchange_method(const td_exchange *x);
const char *td_exchange_path(const td_exchange *x); /* decoded, no query; bytes of the client's choice */
/* "req-3f2a..." or the client's X-Request-Id when that is 1 to 64 of [A-Za-z0-9._-]; sent back as X-Request-Id. */
const char *td_exchange_id(const td_exchange *x);
const char *td_exchange_peer(const td_exchange *x);                     /* "127.0.0.1:40112", "[::1]:4", "unix" */
const char *td_exchange_query(const td_exchange *x, const char *name);  /* first of that name, decoded; NULL: none */
const char *td_exchange_header(const td_exchange *x, const char *name); /* any case; NULL: none */
/* The body, NUL-terminated behind its *n bytes. Never NULL. */
const char *td_exchange_body(const td_exchange *x, size_t *n);
/* Frees the body early: a parsed request need not be kept twice. Only by one thread, and nobody reads it afterwards. */
void td_exchange_drop_body(td_exchange *x);
/* td_clock_ns() when the headers had arrived. */
int64_t td_exchange_started_ns(const td_exchange *x);

/* One pointer of the caller's, for what belongs to the exchange. `destroy` (may be NULL) runs when it is freed. */
void td_exchange_set_data(td_exchange *x, void *data, void (*destroy)(void *data));
void *td_exchange_data(const td_exchange *x);

/* ---- an exchange: the reply ---- */

typedef struct td_http_header {
    const char *name, *value;
} td_http_header;

/* The whole reply; `bytes` are copied. content_type may be NULL. headers may be NULL when n_headers is 0; one with a
 * control byte in it is TD_E_ARG. X-Request-Id, Server, Date, cross-origin and framing headers are the layer's.
 * Errors    TD_E_CANCELLED: the client is gone or the exchange aborted. TD_E_ARG: already replied, or headers.
 *           TD_E_NOMEM. After TD_E_ARG for headers and TD_E_NOMEM another reply may be tried. */
td_status td_exchange_reply(td_exchange *x, unsigned status, const char *content_type, const void *bytes, size_t n,
                            const td_http_header *headers, size_t n_headers);
/* A reply in the layer's error shape (options.error_body). */
td_status td_exchange_reply_error(td_exchange *x, unsigned status, const char *code, const char *message);

/* A reply in pieces of unknown total length: the status and headers go out at once. Errors as td_exchange_reply. */
td_status td_exchange_begin(td_exchange *x, unsigned status, const char *content_type, const td_http_header *headers,
                            size_t n_headers);
/* Queues n bytes; never waits for the client.
 * Errors    TD_E_CANCELLED: the client is gone, or the exchange ended or was aborted. TD_E_LIMIT: the client is too
 * slow, more than max_unsent_bytes wait for it; the exchange is now aborted. TD_E_NOMEM: likewise aborted. TD_E_ARG:
 * not begun. */
td_status td_exchange_write(td_exchange *x, const void *bytes, size_t n);
/* Bytes written and not yet taken by the connection (the kernel holds some more): for a producer with a policy. */
size_t td_exchange_unsent(td_exchange *x);
/* No more will be written; what is queued still goes out. */
void td_exchange_end(td_exchange *x);
/* Cuts the connection: nothing queued goes out any more. For a stream it tells the client that it is not whole. */
void td_exchange_abort(td_exchange *x);
/* While nothing is written for `seconds` (0: off, the default), ": keep-alive\n\n" is, an SSE comment. */
void td_exchange_keepalive(td_exchange *x, double seconds);

/* False once the client has gone (or closed its sending side), the exchange was aborted, or the reply is complete.
 * Looks at the socket itself, so it sees a client leave while the exchange waits for its turn; costs one system call.
 */
bool td_exchange_alive(td_exchange *x);

#endif
