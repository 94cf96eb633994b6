/* http_reply.c - what goes back: whole replies, streams, and refusals that libmicrohttpd has no moment for.
 *
 * A reply is built as a libmicrohttpd response on the thread that gives it and handed over when libmicrohttpd asks
 * (http_request.c). A stream is a byte buffer: writers append under the exchange's lock, libmicrohttpd takes from the
 * front. An empty buffer suspends the connection, a write resumes it. */
#include "serve/http_impl.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "serve/sse.h"

/* What libmicrohttpd may take of an HTTP/1.0 stream at a time; HTTP/1.1 chunks go through the connection's own memory.
 */
#define STREAM_BLOCK 1024

/* ---- headers ---- */

#define COMMON_HEADERS 6

/* The layer's own headers of every reply. */
static size_t common_headers(const td_exchange *x, td_http_header out[COMMON_HEADERS]) {
    const td_http_options *opt = &x->http->opt;
    size_t n = 0;
    out[n++] = (td_http_header){"X-Request-Id", x->id};
    if (opt->server)
        out[n++] = (td_http_header){"Server", opt->server};
    if (!opt->cors_origin || !x->cors)
        return n;
    bool any = strcmp(opt->cors_origin, "*") == 0;
    const char *origin = td_exchange_header(x, "Origin");
    if (any || (origin && strcmp(origin, opt->cors_origin) == 0)) {
        out[n++] = (td_http_header){"Access-Control-Allow-Origin", opt->cors_origin};
        out[n++] = (td_http_header){"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"};
    }
    if (!any)
        out[n++] = (td_http_header){"Vary", "Origin"};
    return n;
}

static bool add_headers(struct MHD_Response *r, const td_http_header *headers, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (MHD_add_response_header(r, headers[i].name, headers[i].value) != MHD_YES)
            return false;
    return true;
}

static bool dress(td_exchange *x, struct MHD_Response *r, const char *content_type, const td_http_header *headers,
                  size_t n_headers) {
    td_http_header common[COMMON_HEADERS];
    if (!add_headers(r, common, common_headers(x, common)) || !add_headers(r, headers, n_headers))
        return false;
    if (content_type && !add_headers(r, &(td_http_header){"Content-Type", content_type}, 1))
        return false;
    return !atomic_load(&x->http->stopping) || add_headers(r, &(td_http_header){"Connection", "close"}, 1);
}

static bool headers_ok(const char *content_type, const td_http_header *headers, size_t n_headers) {
    if (content_type && !td_http_header_ok(&(td_http_header){"Content-Type", content_type}))
        return false;
    for (size_t i = 0; i < n_headers; i++)
        if (!td_http_header_ok(&headers[i]) || strcasecmp(headers[i].name, "Content-Length") == 0 ||
            strcasecmp(headers[i].name, "Transfer-Encoding") == 0)
            return false;
    return true;
}

/* ---- the choice of a reply ---- */

/* Takes `r`, which may be NULL (out of memory). n_bytes: of a whole reply. */
static td_status choose(td_exchange *x, unsigned status, struct MHD_Response *r, bool streaming, size_t n_bytes) {
    pthread_mutex_lock(&x->lock);
    td_status st = TD_OK;
    if (!x->connection || x->aborted || x->cut)
        st = TD_E_CANCELLED;
    else if (x->replied)
        st = TD_E_ARG;
    else if (!r)
        st = TD_E_NOMEM;
    else {
        x->replied = true;
        x->streaming = streaming;
        x->status = status;
        x->response = r;
        x->sent = n_bytes;
        x->written_ns = td_clock_ns();
        td_exchange_resume_locked(x);
    }
    pthread_mutex_unlock(&x->lock);
    if (st && r)
        MHD_destroy_response(r);
    return st;
}

static struct MHD_Response *whole_response(const void *bytes, size_t n) {
    if (n == 0)
        return MHD_create_response_from_buffer(0, NULL, MHD_RESPMEM_PERSISTENT);
    void *copy = td_malloc(n);
    if (!copy)
        return NULL;
    memcpy(copy, bytes, n);
    struct MHD_Response *r = MHD_create_response_from_buffer_with_free_callback(n, copy, td_free);
    if (!r)
        td_free(copy);
    return r;
}

static struct MHD_Response *dressed(td_exchange *x, struct MHD_Response *r, const char *content_type,
                                    const td_http_header *headers, size_t n_headers) {
    if (r && !dress(x, r, content_type, headers, n_headers)) {
        MHD_destroy_response(r);
        r = NULL;
    }
    return r;
}

td_status td_exchange_reply(td_exchange *x, unsigned status, const char *content_type, const void *bytes, size_t n,
                            const td_http_header *headers, size_t n_headers) {
    if (status < 200 || status > 599 || !headers_ok(content_type, headers, n_headers))
        return TD_E_ARG;
    struct MHD_Response *r = dressed(x, whole_response(bytes, n), content_type, headers, n_headers);
    return choose(x, status, r, false, strcmp(x->method, "HEAD") == 0 ? 0 : n);
}

/* The body of an error in the caller's shape, else the message. *type is its Content-Type. */
static void error_body(td_http *h, unsigned status, const char *code, const char *message, td_buf *out,
                       const char **type) {
    td_buf_init(out, 64 * 1024);
    *type = h->opt.error_type ? h->opt.error_type : "application/json";
    if (h->opt.error_body) {
        h->opt.error_body(h->opt.error_user, status, code, message, out);
        return;
    }
    *type = "text/plain; charset=utf-8";
    td_buf_printf(out, "%s\n", message);
}

td_status td_exchange_refuse(td_exchange *x, unsigned status, const char *code, const char *message,
                             const td_http_header *headers, size_t n_headers) {
    td_buf body;
    const char *type;
    error_body(x->http, status, code, message, &body, &type);
    td_status st = td_exchange_reply(x, status, type, body.data, body.size, headers, n_headers);
    td_buf_free(&body);
    return st;
}

td_status td_exchange_reply_error(td_exchange *x, unsigned status, const char *code, const char *message) {
    return td_exchange_refuse(x, status, code, message, NULL, 0);
}

/* ---- streams ---- */

static size_t unsent(const td_exchange *x) {
    return x->out.size - x->out_head;
}

/* An idle stream keeps no buffer: there may be thousands. */
static void forget_sent(td_exchange *x) {
    if (unsent(x) == 0)
        td_buf_free(&x->out);
    else if (x->out_head >= 4096 && x->out_head >= x->out.size / 2) {
        memmove(x->out.data, x->out.data + x->out_head, unsent(x));
        x->out.size -= x->out_head;
        x->out.data[x->out.size] = '\0';
    } else
        return;
    x->out_head = 0;
}

/* libmicrohttpd has room for `room` bytes of the stream. */
static ssize_t take(void *cls, uint64_t position, char *to, size_t room) {
    (void)position;
    td_exchange *x = cls;
    ssize_t n = 0;
    pthread_mutex_lock(&x->lock);
    if (x->hung_up && unsent(x) == 0 && !x->ended)
        td_exchange_abort_locked(x);
    if (x->aborted)
        n = MHD_CONTENT_READER_END_WITH_ERROR;
    else if (unsent(x) > 0) {
        n = (ssize_t)(unsent(x) < room ? unsent(x) : room);
        memcpy(to, x->out.data + x->out_head, (size_t)n);
        x->out_head += (size_t)n;
        x->sent += (uint64_t)n;
        forget_sent(x);
    } else if (x->ended)
        n = MHD_CONTENT_READER_END_OF_STREAM;
    else {
        x->suspended = true;
        MHD_suspend_connection(x->connection);
    }
    pthread_mutex_unlock(&x->lock);
    return n;
}

td_status td_exchange_begin(td_exchange *x, unsigned status, const char *content_type, const td_http_header *headers,
                            size_t n_headers) {
    if (status < 200 || status > 599 || !headers_ok(content_type, headers, n_headers))
        return TD_E_ARG;
    struct MHD_Response *r = MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, take, x, NULL);
    return choose(x, status, dressed(x, r, content_type, headers, n_headers), true, 0);
}

/* May the stream be written to? */
static td_status writable(const td_exchange *x) {
    if (!x->connection || x->aborted || x->cut || x->ended)
        return TD_E_CANCELLED;
    return x->streaming ? TD_OK : TD_E_ARG;
}

static td_status append(td_exchange *x, const void *bytes, size_t n) {
    size_t limit = x->http->opt.max_unsent_bytes;
    td_status st = n > limit || unsent(x) > limit - n ? TD_E_LIMIT : td_buf_append(&x->out, bytes, n);
    if (st) {
        td_exchange_abort_locked(x);
        return st;
    }
    x->written_ns = td_clock_ns();
    td_exchange_resume_locked(x);
    return TD_OK;
}

td_status td_exchange_write(td_exchange *x, const void *bytes, size_t n) {
    pthread_mutex_lock(&x->lock);
    td_status st = writable(x);
    if (st == TD_OK && n > 0)
        st = append(x, bytes, n);
    pthread_mutex_unlock(&x->lock);
    return st;
}

size_t td_exchange_unsent(td_exchange *x) {
    pthread_mutex_lock(&x->lock);
    size_t n = unsent(x);
    pthread_mutex_unlock(&x->lock);
    return n;
}

void td_exchange_end(td_exchange *x) {
    pthread_mutex_lock(&x->lock);
    if (writable(x) == TD_OK) {
        x->ended = true;
        td_exchange_resume_locked(x);
    }
    pthread_mutex_unlock(&x->lock);
}

void td_exchange_keepalive(td_exchange *x, double seconds) {
    td_http *h = x->http;
    pthread_mutex_lock(&h->lock);
    pthread_mutex_lock(&x->lock);
    x->keepalive_ns = seconds > 0 ? (int64_t)(seconds * 1e9) : 0;
    if (x->keepalive_ns)
        td_http_keeper_by(h, x->written_ns + x->keepalive_ns);
    pthread_mutex_unlock(&x->lock);
    pthread_mutex_unlock(&h->lock);
}

int64_t td_exchange_keepalive_due(td_exchange *x, int64_t now_ns) {
    int64_t next = INT64_MAX;
    pthread_mutex_lock(&x->lock);
    if (x->keepalive_ns && (writable(x) == TD_OK || !x->replied)) {
        if (now_ns >= x->written_ns + x->keepalive_ns) {
            if (writable(x) == TD_OK && unsent(x) == 0)
                append(x, TD_SSE_KEEPALIVE, sizeof TD_SSE_KEEPALIVE - 1);
            x->written_ns = now_ns;
        }
        next = x->written_ns + x->keepalive_ns;
    }
    pthread_mutex_unlock(&x->lock);
    return next;
}

/* ---- around libmicrohttpd ---- */

static void put_header(td_buf *out, const td_http_header *header) {
    td_buf_printf(out, "%s: %s\r\n", header->name, header->value);
}

/* One attempt: what the socket's buffer does not take is lost, and so is a client that has not read for so long. */
static void send_last(int fd, const td_buf *head, const td_buf *body, bool with_body) {
    if (head->failed || body->failed || fd < 0)
        return;
    ssize_t n = send(fd, head->data, head->size, MSG_DONTWAIT | MSG_NOSIGNAL | (with_body ? MSG_MORE : 0));
    if (n == (ssize_t)head->size && with_body)
        n = send(fd, body->data, body->size, MSG_DONTWAIT | MSG_NOSIGNAL);
    (void)n;
}

static void send_cut(td_http *h, int fd, const td_exchange *x, unsigned status, const char *code, const char *message) {
    td_buf head, body;
    const char *type;
    error_body(h, status, code, message, &body, &type);
    td_buf_init(&head, 8 * 1024);
    td_buf_printf(&head, "HTTP/1.1 %u %s\r\nConnection: close\r\nContent-Type: %s\r\nContent-Length: %zu\r\n", status,
                  MHD_get_reason_phrase_for(status), type, body.size);
    td_http_header common[COMMON_HEADERS];
    size_t n = x ? common_headers(x, common) : 0;
    for (size_t i = 0; i < n; i++)
        put_header(&head, &common[i]);
    td_buf_puts(&head, "\r\n");
    send_last(fd, &head, &body, body.size && (!x || strcmp(x->method, "HEAD") != 0));
    td_buf_free(&head);
    td_buf_free(&body);
}

void td_exchange_cut(td_exchange *x, unsigned status, const char *code, const char *message) {
    if (!x->connection || x->aborted || x->replied)
        return;
    send_cut(x->http, x->fd, x, status, code, message);
    shutdown(x->fd, SHUT_WR);
    x->replied = x->cut = true;
    x->status = status;
    atomic_fetch_add(&x->http->n_refused, 1);
}

void td_http_cut_waiting(td_http *h, int fd) {
    send_cut(h, fd, NULL, 408, "request_timeout", "The request's headers did not arrive in time.");
    atomic_fetch_add(&h->n_refused, 1);
}
