/* http.c - the server: its options, its start and its end.
 *
 * The end has an order. Listeners close; exchanges finish or time runs out; the keeper stops; under the lock no
 * exchange may begin any more and every one that is left is aborted, which also resumes it, because libmicrohttpd must
 * not be stopped with suspended connections; then it is stopped and closes what is open. Exchanges that somebody still
 * holds keep the server's memory, and nothing else of it. */
#include "serve/http_impl.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"

td_http_options td_http_options_default(void) {
    return (td_http_options){
        .n_threads = 2,
        .max_connections = 4096,
        .max_header_bytes = 16 * 1024,
        .max_body_bytes = 100 * 1024 * 1024,
        .max_bodies_bytes = 1024 * 1024 * 1024,
        .max_unsent_bytes = 4 * 1024 * 1024,
        .idle_seconds = 75,
        .header_seconds = 20,
        .body_seconds = 300,
    };
}

/* ---- made and freed ---- */

static td_status check_options(const td_http_options *o, td_error *err) {
    if (o->n_threads < 1 || o->n_threads > 64)
        return td_fail(err, TD_E_ARG, "n_threads is %u, expected 1 to 64", o->n_threads);
    if (o->max_connections < 1 || o->max_connections > 1000000)
        return td_fail(err, TD_E_ARG, "max_connections is %u, expected 1 to 1000000", o->max_connections);
    if (o->max_header_bytes < 1024 || o->max_header_bytes > 1024 * 1024)
        return td_fail(err, TD_E_ARG, "max_header_bytes is %zu, expected 1024 to 1048576", o->max_header_bytes);
    if (!(o->idle_seconds > 0) || !(o->header_seconds > 0) || !(o->body_seconds > 0) || o->idle_seconds > 1e6 ||
        o->header_seconds > 1e6 || o->body_seconds > 1e6)
        return td_fail(err, TD_E_ARG, "a time limit is not between 0 and 1000000 seconds");
    for (size_t i = 0; i < o->n_api_keys; i++)
        if (!o->api_keys[i] || !*o->api_keys[i])
            return td_fail(err, TD_E_ARG, "API key number %zu is empty", i + 1);
    for (size_t i = 0; i < o->n_routes; i++)
        if (!o->routes[i].method || !o->routes[i].path || !o->routes[i].handler)
            return td_fail(err, TD_E_ARG, "route number %zu lacks a method, a path or a handler", i + 1);
    const td_http_header sent[] = {{"Server", o->server ? o->server : "-"},
                                   {"Origin", o->cors_origin ? o->cors_origin : "-"}};
    if (!td_http_header_ok(&sent[0]) || !td_http_header_ok(&sent[1]))
        return td_fail(err, TD_E_ARG, "the server's name or the cross-origin option holds a control byte");
    return TD_OK;
}

static bool copy_options(td_http *h, const td_http_options *o) {
    h->opt = *o;
    h->opt.n_api_keys = 0;
    h->routes = td_calloc(o->n_routes, sizeof *h->routes);
    h->api_keys = td_calloc(o->n_api_keys, sizeof *h->api_keys);
    if (!h->routes || !h->api_keys)
        return false;
    if (o->n_routes)
        memcpy(h->routes, o->routes, o->n_routes * sizeof *h->routes);
    for (size_t i = 0; i < o->n_api_keys; i++) {
        if (!(h->api_keys[i] = td_strdup(o->api_keys[i])))
            return false;
        h->opt.n_api_keys++;
    }
    return true;
}

static td_http *http_new(void) {
    td_http *h = td_calloc(1, sizeof *h);
    if (!h)
        return NULL;
    atomic_init(&h->refs, 1);
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&h->drained, &attr);
    pthread_condattr_destroy(&attr);
    h->wake_fd = h->hangup_fd = -1;
    return h;
}

void td_http_unref(td_http *h) {
    if (atomic_fetch_sub(&h->refs, 1) != 1)
        return;
    for (size_t i = 0; i < h->opt.n_api_keys; i++) {
        explicit_bzero(h->api_keys[i], strlen(h->api_keys[i]));
        td_free(h->api_keys[i]);
    }
    td_free(h->api_keys);
    td_free(h->routes);
    td_free(h->unix_path);
    if (h->wake_fd >= 0)
        close(h->wake_fd);
    if (h->hangup_fd >= 0)
        close(h->hangup_fd);
    pthread_cond_destroy(&h->drained);
    pthread_mutex_destroy(&h->lock);
    td_free(h);
}

/* ---- connections ---- */

static void conn_open(td_http *h, struct MHD_Connection *connection, void **socket_context) {
    td_conn *c = td_calloc(1, sizeof *c);
    *socket_context = c;
    if (!c)
        return; /* its first request will be refused */
    c->fd = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)->connect_fd;
    td_http_peer_text(MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS)->client_addr, c->peer);
    c->deadline_ns = td_clock_ns() + (int64_t)(h->opt.header_seconds * 1e9);
    pthread_mutex_lock(&h->lock);
    c->next = h->conns;
    if (c->next)
        c->next->prev = c;
    h->conns = c;
    td_http_keeper_watch(h, c);
    td_http_keeper_by(h, c->deadline_ns);
    pthread_mutex_unlock(&h->lock);
}

static void conn_close(td_http *h, td_conn *c) {
    if (c) {
        pthread_mutex_lock(&h->lock);
        if (c->prev)
            c->prev->next = c->next;
        else
            h->conns = c->next;
        if (c->next)
            c->next->prev = c->prev;
        td_http_keeper_bury(h, c);
        pthread_mutex_unlock(&h->lock);
    }
    if (atomic_fetch_sub(&h->n_connections, 1) == h->opt.max_connections)
        td_http_keeper_wake(h); /* there is room again */
}

static void connection_changed(void *cls, struct MHD_Connection *connection, void **socket_context,
                               enum MHD_ConnectionNotificationCode what) {
    if (what == MHD_CONNECTION_NOTIFY_STARTED) {
        conn_open(cls, connection, socket_context);
        return;
    }
    conn_close(cls, *socket_context);
    *socket_context = NULL;
}

/* libmicrohttpd tells of every client that leaves early; that is not news. */
static void log_line(void *cls, const char *format, va_list ap) TD_PRINTF(2, 0);
static void log_line(void *cls, const char *format, va_list ap) {
    const td_http *h = cls;
    char line[300];
    vsnprintf(line, sizeof line, format, ap);
    line[strcspn(line, "\n")] = '\0';
    td_make_printable(line);
    td_log_write(h->opt.log, TD_LOG_DEBUG, "http: %s", line);
}

/* ---- start ---- */

/* Its limits are only a second line behind the keeper's: connections a worker, and silence. */
static td_status start_daemon(td_http *h, td_error *err) {
    const unsigned flags = MHD_USE_EPOLL_INTERNAL_THREAD | MHD_ALLOW_SUSPEND_RESUME | MHD_USE_ITC |
                           MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ERROR_LOG;
    const td_http_options *o = &h->opt;
    struct MHD_OptionItem items[] = {
        {MHD_OPTION_EXTERNAL_LOGGER, (intptr_t)log_line, h},
        {MHD_OPTION_NOTIFY_COMPLETED, (intptr_t)td_http_request_completed, h},
        {MHD_OPTION_NOTIFY_CONNECTION, (intptr_t)connection_changed, h},
        {MHD_OPTION_URI_LOG_CALLBACK, (intptr_t)td_http_request_line, h},
        {MHD_OPTION_CONNECTION_MEMORY_LIMIT, (intptr_t)(o->max_header_bytes * 2), NULL},
        {MHD_OPTION_CONNECTION_LIMIT, (intptr_t)(o->max_connections * o->n_threads), NULL},
        {MHD_OPTION_PER_IP_CONNECTION_LIMIT, (intptr_t)o->max_connections_peer, NULL},
        {MHD_OPTION_CONNECTION_TIMEOUT, (intptr_t)ceil(o->idle_seconds) + 1, NULL},
        {o->n_threads > 1 ? MHD_OPTION_THREAD_POOL_SIZE : MHD_OPTION_END, (intptr_t)o->n_threads, NULL},
        {MHD_OPTION_END, 0, NULL},
    };
    errno = 0;
    h->daemon = MHD_start_daemon(flags, 0, NULL, NULL, td_http_request, h, MHD_OPTION_ARRAY, items, MHD_OPTION_END);
    if (h->daemon)
        return TD_OK;
    return td_fail(err, TD_E_IO, "starting the HTTP server: %s", errno ? strerror(errno) : "libmicrohttpd refuses");
}

static td_status start(td_http *h, td_error *err) {
    if (getrandom(h->id_key, sizeof h->id_key, 0) != (ssize_t)sizeof h->id_key)
        return td_fail(err, TD_E_IO, "no random numbers to be had: %s", strerror(errno));
    h->wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    h->hangup_fd = epoll_create1(EPOLL_CLOEXEC);
    if (h->wake_fd < 0 || h->hangup_fd < 0)
        return td_fail(err, TD_E_IO, "making an eventfd and an epoll: %s", strerror(errno));
    TD_TRY(td_http_listen(h, err));
    td_status st = start_daemon(h, err);
    if (st == TD_OK)
        st = td_http_keeper_start(h, err);
    if (st == TD_OK)
        return TD_OK;
    td_http_unlisten(h);
    for (size_t i = 0; i < h->n_listeners; i++)
        close(h->listeners[i]);
    if (h->daemon)
        MHD_stop_daemon(h->daemon);
    return st;
}

td_status td_http_open(td_http **out, const td_http_options *options, td_error *err) {
    *out = NULL;
    TD_TRY(check_options(options, err));
    td_http *h = http_new();
    if (!h)
        return td_fail(err, TD_E_NOMEM, "out of memory");
    td_status st = copy_options(h, options) ? start(h, err) : td_fail(err, TD_E_NOMEM, "out of memory");
    if (st != TD_OK)
        td_http_unref(h);
    else
        *out = h;
    return st;
}

uint16_t td_http_port(const td_http *h) {
    return h->port;
}

const char *td_http_address(const td_http *h) {
    return h->address;
}

td_http_stats td_http_stats_get(td_http *h) {
    td_http_stats s = {.n_connections = atomic_load(&h->n_connections),
                       .n_requests = atomic_load(&h->n_requests),
                       .n_refused = atomic_load(&h->n_refused),
                       .n_gone = atomic_load(&h->n_gone),
                       .bodies_bytes = atomic_load(&h->bodies_bytes)};
    pthread_mutex_lock(&h->lock);
    s.n_exchanges = h->n_exchanges;
    pthread_mutex_unlock(&h->lock);
    return s;
}

/* ---- end ---- */

void td_http_stop_accepting(td_http *h) {
    if (!atomic_exchange(&h->stopping, true))
        td_http_unlisten(h);
}

static void drain(td_http *h, double seconds) {
    int64_t until = td_clock_ns() + (int64_t)(fmin(fmax(seconds, 0), 1e8) * 1e9);
    struct timespec t = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    pthread_mutex_lock(&h->lock);
    while (h->n_exchanges && pthread_cond_timedwait(&h->drained, &h->lock, &t) == 0)
        ;
    pthread_mutex_unlock(&h->lock);
}

static void abort_all(td_http *h) {
    pthread_mutex_lock(&h->lock);
    h->closing = true;
    for (td_exchange *x = h->exchanges; x; x = x->next)
        td_exchange_abort(x);
    pthread_mutex_unlock(&h->lock);
}

void td_http_close(td_http **h, double drain_seconds) {
    if (!*h)
        return;
    td_http_stop_accepting(*h);
    drain(*h, drain_seconds);
    td_http_keeper_join(*h);
    abort_all(*h);
    MHD_stop_daemon((*h)->daemon);
    td_http_keeper_free_dead(*h);
    td_http_unref(*h);
    *h = NULL;
}
