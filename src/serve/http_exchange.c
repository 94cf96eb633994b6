/* http_exchange.c - an exchange as its holders see it: what was asked, references, and whether the client is still
 * there.
 *
 * Everything of the request is copied out of libmicrohttpd's memory when the exchange is made, so that any thread may
 * read it without a lock and after the connection is gone. */
#include "serve/http_impl.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/rng.h"

/* ---- made ---- */

typedef struct copier {
    size_t n_headers, n_arguments, bytes; /* first pass: counted */
    td_http_header *header, *argument;    /* second pass: the next to fill; NULL in the first */
    char *text;
} copier;

static char *put_text(copier *c, const char *s, size_t n) {
    char *at = c->text;
    memcpy(at, s, n);
    at[n] = '\0';
    c->text += n + 1;
    return at;
}

static enum MHD_Result copy_field(void *cls, enum MHD_ValueKind kind, const char *name, const char *value) {
    copier *c = cls;
    value = value ? value : "";
    bool header = kind == MHD_HEADER_KIND;
    if (!c->header) {
        c->bytes += strlen(name) + strlen(value) + 2;
        *(header ? &c->n_headers : &c->n_arguments) += 1;
        return MHD_YES;
    }
    td_http_header *to = header ? c->header++ : c->argument++;
    to->name = put_text(c, name, strlen(name));
    to->value = put_text(c, value, strlen(value));
    return MHD_YES;
}

static bool copy_request(td_exchange *x, struct MHD_Connection *connection, const char *method, const char *path) {
    copier c = {0};
    const enum MHD_ValueKind kinds = MHD_HEADER_KIND | MHD_GET_ARGUMENT_KIND;
    MHD_get_connection_values(connection, kinds, copy_field, &c);
    x->n_headers = c.n_headers;
    x->n_fields = c.n_headers + c.n_arguments;
    size_t head = x->n_fields * sizeof *x->fields;
    x->text = td_malloc(head + c.bytes + strlen(method) + strlen(path) + 2);
    if (!x->text)
        return false;
    x->fields = x->text;
    c.header = x->fields;
    c.argument = x->fields + x->n_headers;
    c.text = (char *)x->text + head;
    MHD_get_connection_values(connection, kinds, copy_field, &c);
    x->method = put_text(&c, method, strlen(method));
    x->path = put_text(&c, path, strlen(path));
    return true;
}

static void choose_id(td_exchange *x) {
    const char *given = td_exchange_header(x, "X-Request-Id");
    if (given && td_http_id_ok(given)) {
        snprintf(x->id, sizeof x->id, "%s", given);
        return;
    }
    uint64_t n = atomic_fetch_add(&x->http->n_ids, 1);
    uint32_t counter[4] = {(uint32_t)n, (uint32_t)(n >> 32)}, word[4];
    td_philox4x32(counter, x->http->id_key, word);
    snprintf(x->id, sizeof x->id, "req-%08x%08x%08x", (unsigned)word[0], (unsigned)word[1], (unsigned)word[2]);
}

td_exchange *td_exchange_new(td_http *h, struct MHD_Connection *connection, const char *method, const char *path) {
    td_exchange *x = td_calloc(1, sizeof *x);
    if (!x)
        return NULL;
    if (!copy_request(x, connection, method, path)) {
        td_free(x);
        return NULL;
    }
    atomic_fetch_add(&h->refs, 1);
    x->http = h;
    x->refs = 1;
    x->connection = connection;
    x->fd = -1;
    x->started_ns = x->written_ns = td_clock_ns();
    pthread_mutex_init(&x->lock, NULL);
    td_buf_init(&x->body, h->opt.max_body_bytes);
    td_buf_init(&x->out, SIZE_MAX);
    choose_id(x);
    return x;
}

static void exchange_free(td_exchange *x) {
    if (x->destroy)
        x->destroy(x->data);
    if (x->response)
        MHD_destroy_response(x->response);
    td_exchange_drop_body(x);
    td_buf_free(&x->out);
    pthread_mutex_destroy(&x->lock);
    td_free(x->text);
    td_http_unref(x->http);
    td_free(x);
}

/* ---- held ---- */

td_exchange *td_exchange_hold(td_exchange *x) {
    pthread_mutex_lock(&x->lock);
    x->refs++;
    pthread_mutex_unlock(&x->lock);
    return x;
}

/* The last holder leaves; one reference more is the layer's. What nobody can finish any more is finished here. */
static void finish_forsaken(td_exchange *x) {
    bool silent = !x->replied;
    if (!silent && x->streaming && !x->ended)
        td_exchange_abort_locked(x);
    pthread_mutex_unlock(&x->lock);
    if (silent && td_exchange_refuse(x, 500, "internal_error", "The request was dropped without an answer.", NULL, 0))
        td_exchange_abort(x);
    pthread_mutex_lock(&x->lock);
}

void td_exchange_release(td_exchange *x) {
    if (!x)
        return;
    pthread_mutex_lock(&x->lock);
    if (x->refs == 2 && x->connection && !x->aborted && !x->cut)
        finish_forsaken(x);
    unsigned left = --x->refs;
    pthread_mutex_unlock(&x->lock);
    if (left == 0)
        exchange_free(x);
}

void td_exchange_set_data(td_exchange *x, void *data, void (*destroy)(void *data)) {
    x->data = data;
    x->destroy = destroy;
}

void *td_exchange_data(const td_exchange *x) {
    return x->data;
}

/* ---- read ---- */

const char *td_exchange_method(const td_exchange *x) {
    return x->method;
}

const char *td_exchange_path(const td_exchange *x) {
    return x->path;
}

const char *td_exchange_id(const td_exchange *x) {
    return x->id;
}

const char *td_exchange_peer(const td_exchange *x) {
    return x->peer;
}

int64_t td_exchange_started_ns(const td_exchange *x) {
    return x->started_ns;
}

const char *td_exchange_header(const td_exchange *x, const char *name) {
    return td_http_field(x->fields, x->n_headers, name);
}

const char *td_exchange_query(const td_exchange *x, const char *name) {
    for (size_t i = x->n_headers; i < x->n_fields; i++)
        if (strcmp(x->fields[i].name, name) == 0)
            return x->fields[i].value;
    return NULL;
}

const char *td_exchange_body(const td_exchange *x, size_t *n) {
    *n = x->body.size;
    return x->body.data ? x->body.data : "";
}

void td_exchange_drop_body(td_exchange *x) {
    td_buf_free(&x->body);
    atomic_fetch_sub(&x->http->bodies_bytes, x->body_counted);
    x->body_counted = 0;
}

/* ---- is anybody there? ---- */

void td_exchange_resume_locked(td_exchange *x) {
    if (!x->suspended)
        return;
    x->suspended = false;
    MHD_resume_connection(x->connection);
}

/* A suspended connection is closed by libmicrohttpd when it asks again and hears of the abort; one that waits for a
 * client to read is woken by the shutdown. */
void td_exchange_abort_locked(td_exchange *x) {
    if (x->aborted || !x->connection)
        return;
    x->aborted = true;
    td_buf_free(&x->out);
    x->out_head = 0;
    if (x->fd >= 0)
        shutdown(x->fd, SHUT_RDWR);
    td_exchange_resume_locked(x);
}

void td_exchange_abort(td_exchange *x) {
    pthread_mutex_lock(&x->lock);
    td_exchange_abort_locked(x);
    pthread_mutex_unlock(&x->lock);
}

void td_exchange_hung_up(td_exchange *x) {
    pthread_mutex_lock(&x->lock);
    x->hung_up = true;
    if (x->suspended)
        td_exchange_abort_locked(x);
    pthread_mutex_unlock(&x->lock);
}

static bool peer_left(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLRDHUP};
    return poll(&p, 1, 0) > 0 && (p.revents & (POLLRDHUP | POLLHUP | POLLERR | POLLNVAL));
}

bool td_exchange_alive(td_exchange *x) {
    pthread_mutex_lock(&x->lock);
    if (x->connection && !x->aborted && !x->cut && peer_left(x->fd))
        td_exchange_abort_locked(x);
    bool alive = x->connection && !x->aborted && !x->cut;
    pthread_mutex_unlock(&x->lock);
    return alive;
}
