/* http_request.c - a request from its headers to its reply, on libmicrohttpd's threads.
 *
 * libmicrohttpd calls td_http_request() once when the headers are there (judge: route, key, limits), once for each
 * piece of a body (gather), and at the end again and again until a reply is queued (finish: the handler runs the first
 * time, then the exchange sleeps until somebody has replied). A request that is refused while its body still comes in
 * has three ways out, because libmicrohttpd takes no reply in the middle of a body: a short body is read and dropped
 * and the reply waits for its end; a client that asked first (Expect: 100-continue) is answered before it sends; and
 * for a long one the reply goes straight to the socket (td_exchange_cut) and the connection ends. */
#include "serve/http_impl.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "base/clock.h"

/* ---- begin and end ---- */

static td_conn *conn_of(struct MHD_Connection *connection) {
    const union MHD_ConnectionInfo *info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

void *td_http_request_line(void *cls, const char *uri, struct MHD_Connection *connection) {
    (void)cls;
    td_conn *c = conn_of(connection);
    if (c && uri) {
        c->uri_bytes = strlen(uri);
        c->uri_nul = strstr(uri, "%00") != NULL;
    }
    return NULL;
}

static int64_t after(double seconds) {
    return td_clock_ns() + (int64_t)(seconds * 1e9);
}

/* A body must come whole within body_seconds and never pause for idle_seconds. Under td_http.lock. */
static void body_progress(td_http *h, td_conn *c) {
    int64_t stall = c->hung_up ? td_clock_ns() + TD_HTTP_HANGUP_NS : after(h->opt.idle_seconds);
    c->deadline_ns = stall < c->body_deadline_ns ? stall : c->body_deadline_ns;
    td_http_keeper_by(h, c->deadline_ns);
}

/* False: the server is closing. */
static bool enlist(td_http *h, td_exchange *x, td_conn *c) {
    pthread_mutex_lock(&h->lock);
    bool open = !h->closing;
    if (open) {
        x->next = h->exchanges;
        if (x->next)
            x->next->prev = x;
        h->exchanges = x;
        h->n_exchanges++;
        x->conn = c;
        x->fd = c->fd;
        x->hung_up = c->hung_up;
        memcpy(x->peer, c->peer, sizeof x->peer);
        c->exchange = x;
        c->phase = TD_CONN_BODY;
        c->body_deadline_ns = after(h->opt.body_seconds);
        body_progress(h, c);
    }
    pthread_mutex_unlock(&h->lock);
    atomic_fetch_add(&h->n_requests, open);
    return open;
}

/* The connection waits again. Under td_http.lock. */
static void next_request(td_http *h, td_conn *c) {
    c->exchange = NULL;
    c->phase = TD_CONN_WAITING;
    c->deadline_ns = after(h->opt.idle_seconds + h->opt.header_seconds);
    if (c->hung_up)
        c->deadline_ns = td_clock_ns() + TD_HTTP_HANGUP_NS;
    if (c->over)
        c->deadline_ns = 0;
    else
        td_http_keeper_by(h, c->deadline_ns);
}

/* Under td_http.lock. */
static void delist(td_http *h, td_exchange *x) {
    if (x->prev)
        x->prev->next = x->next;
    else
        h->exchanges = x->next;
    if (x->next)
        x->next->prev = x->prev;
    next_request(h, x->conn);
    if (--h->n_exchanges == 0)
        pthread_cond_broadcast(&h->drained);
}

static void report(td_http *h, const td_exchange *x, bool complete) {
    if (!h->opt.access)
        return;
    char method[32], path[256];
    snprintf(method, sizeof method, "%s", x->method);
    snprintf(path, sizeof path, "%s", x->path);
    td_make_printable(method);
    td_make_printable(path);
    td_http_access entry = {.peer = x->peer, .id = x->id, .method = method, .path = path, .status = x->status};
    entry.body_bytes = x->body_bytes;
    entry.sent_bytes = x->sent;
    entry.seconds = td_clock_since(x->started_ns);
    entry.complete = complete;
    h->opt.access(h->opt.access_user, &entry);
}

/* libmicrohttpd 0.9.75 forgets a connection that ends inside its content reader: closed, and in no list that it looks
 * at before the idle limit. A connection with a time limit of its own is looked at in every turn, and a turn comes
 * within that second. */
static void hurry_cleanup(struct MHD_Connection *connection) {
    MHD_set_connection_option(connection, MHD_CONNECTION_OPTION_TIMEOUT, 1u);
}

void td_http_request_completed(void *cls, struct MHD_Connection *connection, void **context,
                               enum MHD_RequestTerminationCode how) {
    td_http *h = cls;
    td_exchange *x = *context;
    if (!x)
        return;
    if (how != MHD_REQUEST_TERMINATED_COMPLETED_OK || (x->streaming && x->http10))
        hurry_cleanup(connection);
    *context = NULL;
    pthread_mutex_lock(&h->lock);
    pthread_mutex_lock(&x->lock);
    x->connection = NULL;
    x->fd = -1;
    x->suspended = false;
    bool whole = how == MHD_REQUEST_TERMINATED_COMPLETED_OK && x->queued && !x->aborted;
    atomic_fetch_add(&h->n_gone, !whole && !x->cut);
    td_buf_free(&x->out);
    x->out_head = 0;
    pthread_mutex_unlock(&x->lock);
    delist(h, x);
    pthread_mutex_unlock(&h->lock);
    report(h, x, whole);
    td_exchange_release(x);
}

/* ---- judged by its headers ---- */

typedef struct verdict {
    unsigned status; /* 0: welcome */
    const char *code;
    char message[200];
    td_http_header headers[6];
    size_t n_headers;
    td_http_match match;
    td_http_framing framing;
} verdict;

static bool refuse(verdict *v, unsigned status, const char *code, const char *message) {
    v->status = status;
    v->code = code;
    snprintf(v->message, sizeof v->message, "%s", message);
    return false;
}

static void say(verdict *v, const char *name, const char *value) {
    v->headers[v->n_headers++] = (td_http_header){name, value};
}

static bool well_formed(verdict *v, td_exchange *x, const td_conn *c, const char *version) {
    v->framing = td_http_framing_read(x->fields, x->n_headers, version);
    if (v->framing.wrong)
        return refuse(v, 400, "bad_request", v->framing.wrong);
    if (strcmp(version, "HTTP/1.0") != 0 && !td_exchange_header(x, "Host"))
        return refuse(v, 400, "bad_request", "The request has no Host header.");
    if (c->uri_nul)
        return refuse(v, 400, "bad_request", "The request's path holds a NUL byte.");
    return true;
}

static bool header_size_fits(verdict *v, td_exchange *x, const td_conn *c) {
    size_t limit = x->http->opt.max_header_bytes;
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(x->connection, MHD_CONNECTION_INFO_REQUEST_HEADER_SIZE);
    if (c->uri_bytes > limit / 2) {
        refuse(v, 414, "uri_too_long", "");
        snprintf(v->message, sizeof v->message, "The request's URI is over the limit of %zu bytes.", limit / 2);
    } else if (info && info->header_size > limit) {
        refuse(v, 431, "headers_too_large", "");
        snprintf(v->message, sizeof v->message, "The request's headers are over the limit of %zu bytes.", limit);
    }
    return v->status == 0;
}

/* What an OPTIONS request hears, cross-origin or not. */
static bool preflight(verdict *v, const td_http *h) {
    if (!v->match.path_known && !h->opt.cors_origin)
        return refuse(v, 404, "not_found", "There is nothing at this path.");
    const char *methods = v->match.path_known ? v->match.allow : "GET, HEAD, POST, OPTIONS";
    v->status = 204;
    say(v, "Allow", methods);
    if (h->opt.cors_origin) {
        say(v, "Access-Control-Allow-Methods", methods);
        say(v, "Access-Control-Allow-Headers", "Authorization, Content-Type, X-Api-Key, X-Request-Id, *");
        say(v, "Access-Control-Max-Age", "86400");
    }
    return false;
}

static bool permitted(verdict *v, td_exchange *x) {
    const td_http *h = x->http;
    if (v->match.route && (v->match.route->flags & TD_HTTP_OPEN))
        return true;
    if (td_http_key_ok((const char *const *)h->api_keys, h->opt.n_api_keys, td_exchange_header(x, "Authorization"),
                       td_exchange_header(x, "x-api-key")))
        return true;
    say(v, "WWW-Authenticate", "Bearer");
    return refuse(v, 401, "invalid_api_key", "The API key is missing or wrong: send \"Authorization: Bearer KEY\".");
}

static bool routed(verdict *v) {
    if (!v->match.path_known)
        return refuse(v, 404, "not_found", "There is nothing at this path.");
    if (v->match.route)
        return true;
    say(v, "Allow", v->match.allow);
    refuse(v, 405, "method_not_allowed", "");
    snprintf(v->message, sizeof v->message, "This path takes %s.", v->match.allow);
    return false;
}

static bool body_welcome(verdict *v, td_exchange *x) {
    const td_http_route *route = v->match.route;
    const char *coding = td_exchange_header(x, "Content-Encoding"), *type = td_exchange_header(x, "Content-Type");
    bool body = v->framing.chunked || v->framing.length > 0;
    if (coding && strcasecmp(coding, "identity") != 0)
        return refuse(v, 415, "unsupported_encoding", "Compressed request bodies are not supported.");
    if (body && route->content_type && type && !td_http_media_is(type, route->content_type)) {
        refuse(v, 415, "unsupported_media_type", "");
        snprintf(v->message, sizeof v->message, "The Content-Type is %.80s, expected %s.", type, route->content_type);
    } else if ((route->flags & TD_HTTP_BODY) && !v->framing.stated)
        refuse(v, 411, "length_required", "The request has no body: send Content-Length or chunks.");
    else if (v->framing.length > x->http->opt.max_body_bytes) {
        refuse(v, 413, "body_too_large", "");
        snprintf(v->message, sizeof v->message, "The request's body of %" PRIu64 " bytes is over the limit of %zu.",
                 v->framing.length, x->http->opt.max_body_bytes);
    }
    return v->status == 0;
}

static bool judge(verdict *v, td_exchange *x, const td_conn *c, const char *version) {
    x->cors = true;
    if (!well_formed(v, x, c, version) || !header_size_fits(v, x, c))
        return false;
    td_http_route_find(x->http->routes, x->http->opt.n_routes, x->method, x->path, &v->match);
    if (strcmp(x->method, "OPTIONS") == 0)
        return preflight(v, x->http);
    x->cors = !v->match.route || !(v->match.route->flags & TD_HTTP_NO_CORS);
    return permitted(v, x) && routed(v) && body_welcome(v, x);
}

/* ---- refused ---- */

static void set_answered(td_http *h, td_exchange *x) {
    pthread_mutex_lock(&h->lock);
    if (x->conn->phase == TD_CONN_BODY) {
        x->conn->phase = TD_CONN_ANSWERED;
        x->conn->deadline_ns = 0;
    }
    pthread_mutex_unlock(&h->lock);
}

/* Answers around libmicrohttpd and lets the connection linger. */
static void cut(td_exchange *x, unsigned status, const char *code, const char *message) {
    td_http *h = x->http;
    pthread_mutex_lock(&h->lock);
    pthread_mutex_lock(&x->lock);
    if (x->conn->phase == TD_CONN_BODY) {
        td_exchange_cut(x, status, code, message);
        x->conn->phase = TD_CONN_CUT;
        x->conn->deadline_ns = td_clock_ns() + TD_HTTP_LINGER_NS;
        td_http_keeper_by(h, x->conn->deadline_ns);
    }
    pthread_mutex_unlock(&x->lock);
    pthread_mutex_unlock(&h->lock);
    x->discard = true;
    td_exchange_drop_body(x);
}

/* Hands a chosen reply to libmicrohttpd, or sleeps until there is one. */
static enum MHD_Result deliver(td_exchange *x) {
    pthread_mutex_lock(&x->lock);
    struct MHD_Response *r = x->response;
    if (!r && x->hung_up)
        td_exchange_abort_locked(x);
    if (x->aborted || x->cut) {
        pthread_mutex_unlock(&x->lock);
        return MHD_NO;
    }
    if (!r) {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
        pthread_mutex_unlock(&x->lock);
        return MHD_YES;
    }
    x->response = NULL;
    x->queued = true;
    pthread_mutex_unlock(&x->lock);
    enum MHD_Result queued = MHD_queue_response(x->connection, x->status, r);
    MHD_destroy_response(r);
    return queued;
}

static td_status answer(td_exchange *x, const verdict *v) {
    if (v->status < 400)
        return td_exchange_reply(x, v->status, NULL, NULL, 0, v->headers, v->n_headers);
    atomic_fetch_add(&x->http->n_refused, 1);
    return td_exchange_refuse(x, v->status, v->code, v->message, v->headers, v->n_headers);
}

static enum MHD_Result turn_away(td_exchange *x, const verdict *v) {
    const td_http_framing *f = &v->framing;
    const char *expect = td_exchange_header(x, "Expect");
    bool body = f->wrong || f->chunked || f->length > 0;
    bool asks_first = expect && strcasecmp(expect, "100-continue") == 0;
    x->discard = true;
    if (body && !asks_first && (f->wrong || f->chunked || f->length > TD_HTTP_DISCARD_BYTES)) {
        cut(x, v->status, v->code ? v->code : "bad_request", v->message);
        return MHD_YES;
    }
    if (answer(x, v) != TD_OK)
        return MHD_NO;
    if (!body || !asks_first)
        return MHD_YES; /* finish() delivers, and the connection lives on */
    set_answered(x->http, x);
    return deliver(x);
}

/* ---- the calls ---- */

static enum MHD_Result begin(td_http *h, struct MHD_Connection *connection, const char *url, const char *method,
                             const char *version, void **context) {
    td_conn *c = conn_of(connection);
    td_exchange *x = c ? td_exchange_new(h, connection, method, url) : NULL;
    if (!x)
        return MHD_NO;
    if (!enlist(h, x, c)) {
        x->connection = NULL;
        td_exchange_release(x);
        return MHD_NO;
    }
    x->http10 = strcmp(version, "HTTP/1.0") == 0;
    *context = x;
    verdict v = {0};
    if (!judge(&v, x, c, version))
        return turn_away(x, &v);
    x->route = v.match.route;
    return MHD_YES;
}

static void gather(td_exchange *x, const char *bytes, size_t n) {
    td_http *h = x->http;
    x->body_bytes += n;
    if (x->discard)
        return;
    pthread_mutex_lock(&h->lock);
    if (x->conn->phase == TD_CONN_BODY)
        body_progress(h, x->conn);
    pthread_mutex_unlock(&h->lock);
    char message[100];
    snprintf(message, sizeof message, "The request's body is over the limit of %zu bytes.", h->opt.max_body_bytes);
    if (n > h->opt.max_body_bytes - x->body.size) {
        cut(x, 413, "body_too_large", message);
        return;
    }
    x->body_counted += n;
    if (atomic_fetch_add(&h->bodies_bytes, n) + n > h->opt.max_bodies_bytes || td_buf_append(&x->body, bytes, n))
        cut(x, 503, "overloaded", "The server holds as many request bodies as it can; try again later.");
}

static enum MHD_Result finish(td_exchange *x) {
    if (!x->handled) {
        x->handled = true;
        set_answered(x->http, x);
        if (!x->discard) {
            td_exchange_hold(x);
            x->route->handler(x->route->user, x);
            td_exchange_release(x);
        }
    }
    return deliver(x);
}

enum MHD_Result td_http_request(void *cls, struct MHD_Connection *connection, const char *url, const char *method,
                                const char *version, const char *upload, size_t *n_upload, void **context) {
    if (!*context)
        return begin(cls, connection, url, method, version, context);
    if (*n_upload == 0)
        return finish(*context);
    gather(*context, upload, *n_upload);
    *n_upload = 0;
    return MHD_YES;
}
