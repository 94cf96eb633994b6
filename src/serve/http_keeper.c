/* http_keeper.c - one thread that accepts connections and watches the clock and clients that hang up.
 *
 * Why not let libmicrohttpd accept: stopping to listen races with its workers' own epoll bookkeeping in 0.9.75 and can
 * end the process, it listens on one address only, and at its connection limit it drops what it has accepted. Here
 * connections over the limit stay in the kernel's queue.
 *
 * Why a clock of our own: libmicrohttpd's time limit starts anew with every byte, so one byte a minute holds a
 * connection for ever, and it says nothing to the client.
 *
 * Why a look at hang-ups of our own: libmicrohttpd does not watch a suspended connection; and in 0.9.75 it misses a
 * close that arrives together with data (edge-triggered, it reads less than it has room for and waits for an edge that
 * was there already), so the connection would stay until its time is over.
 *
 * Deadlines are few in kind and seldom due, so a scan of all connections when the earliest comes is cheaper than a heap
 * that every request would have to update. Two scans are at least SCAN_GAP apart. */
#include "serve/http_impl.h"

#include <errno.h>
#include <poll.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/clock.h"

#define SCAN_GAP_NS 20000000
#define ACCEPT_PAUSE_NS 500000000 /* after accept() failed for want of something */
#define ACCEPT_BURST 64

void td_http_keeper_wake(td_http *h) {
    uint64_t one = 1;
    ssize_t n = write(h->wake_fd, &one, sizeof one);
    (void)n; /* fails only when the counter is full, and then the keeper is awake */
}

void td_http_keeper_by(td_http *h, int64_t ns) {
    if (ns >= h->keeper_wake_ns)
        return;
    h->keeper_wake_ns = ns;
    td_http_keeper_wake(h);
}

/* ---- the clock ---- */

/* The shutdown makes libmicrohttpd see the end of the connection. */
static void expire(td_http *h, td_conn *c) {
    if (c->phase == TD_CONN_WAITING && !c->hung_up)
        td_http_cut_waiting(h, c->fd);
    if (c->phase == TD_CONN_BODY && !c->hung_up && c->exchange) {
        pthread_mutex_lock(&c->exchange->lock);
        td_exchange_cut(c->exchange, 408, "request_timeout", "The request's body did not arrive in time.");
        pthread_mutex_unlock(&c->exchange->lock);
    }
    c->phase = TD_CONN_CUT;
    c->deadline_ns = 0;
    c->over = true;
    shutdown(c->fd, SHUT_RDWR);
}

/* Does what is due; returns when the next is. Under td_http.lock. */
static int64_t tend(td_http *h, int64_t now) {
    int64_t next = INT64_MAX;
    for (td_conn *c = h->conns; c; c = c->next) {
        if (c->deadline_ns && c->deadline_ns <= now)
            expire(h, c);
        if (c->deadline_ns && c->deadline_ns < next)
            next = c->deadline_ns;
    }
    for (td_exchange *x = h->exchanges; x; x = x->next) {
        int64_t due = td_exchange_keepalive_due(x, now);
        next = due < next ? due : next;
    }
    return next < now + SCAN_GAP_NS ? now + SCAN_GAP_NS : next;
}

/* ---- hang-ups ---- */

void td_http_keeper_watch(td_http *h, td_conn *c) {
    struct epoll_event event = {.events = EPOLLRDHUP | EPOLLET, .data.ptr = c};
    if (epoll_ctl(h->hangup_fd, EPOLL_CTL_ADD, c->fd, &event) != 0)
        td_log_warn(h->opt.log, "watching a connection of %s: %s", c->peer, strerror(errno));
}

/* The keeper may have fetched an event of `c` and wait for the lock we hold: it alone frees. */
void td_http_keeper_bury(td_http *h, td_conn *c) {
    epoll_ctl(h->hangup_fd, EPOLL_CTL_DEL, c->fd, NULL);
    c->fd = -1;
    c->next = h->dead;
    h->dead = c;
}

void td_http_keeper_free_dead(td_http *h) {
    for (td_conn *c = h->dead, *next; c; c = next) {
        next = c->next;
        td_free(c);
    }
    h->dead = NULL;
}

static void hang_up(td_http *h, td_conn *c) {
    if (c->fd < 0 || c->over)
        return;
    c->hung_up = true;
    if (c->exchange)
        td_exchange_hung_up(c->exchange);
    if (c->phase == TD_CONN_ANSWERED)
        return;
    int64_t soon = td_clock_ns() + TD_HTTP_HANGUP_NS;
    if (!c->deadline_ns || c->deadline_ns > soon)
        c->deadline_ns = soon;
    if (h->keeper_wake_ns > c->deadline_ns)
        h->keeper_wake_ns = c->deadline_ns;
}

static void take_hangups(td_http *h) {
    struct epoll_event events[64];
    int n = epoll_wait(h->hangup_fd, events, 64, 0);
    pthread_mutex_lock(&h->lock);
    for (int i = 0; i < n; i++)
        hang_up(h, events[i].data.ptr);
    pthread_mutex_unlock(&h->lock);
}

/* ---- accepting ---- */

static bool full(td_http *h) {
    return atomic_load(&h->n_connections) >= h->opt.max_connections;
}

static bool hand_over(td_http *h, int fd, const struct sockaddr *address, socklen_t n) {
    atomic_fetch_add(&h->n_connections, 1);
    if (MHD_add_connection(h->daemon, fd, address, n) == MHD_YES)
        return true;
    atomic_fetch_sub(&h->n_connections, 1); /* over the limit of its address, or out of memory; it is closed */
    return false;
}

/* False: pause. */
static bool accept_some(td_http *h, int listener) {
    for (int i = 0; i < ACCEPT_BURST && !full(h); i++) {
        struct sockaddr_storage address = {0};
        socklen_t n = sizeof address;
        int fd = accept4(listener, (struct sockaddr *)&address, &n, SOCK_NONBLOCK | SOCK_CLOEXEC);
        if (fd >= 0) {
            hand_over(h, fd, (struct sockaddr *)&address, n);
            continue;
        }
        if (errno == ECONNABORTED || errno == EINTR)
            continue;
        if (errno == EAGAIN || atomic_load(&h->stopping))
            return true;
        td_log_warn(h->opt.log, "accepting a connection on %s: %s", h->address, strerror(errno));
        return false;
    }
    return true;
}

static void close_listeners(td_http *h) {
    pthread_mutex_lock(&h->lock);
    for (size_t i = 0; i < h->n_listeners; i++)
        close(h->listeners[i]);
    h->n_listeners = 0;
    pthread_mutex_unlock(&h->lock);
}

/* ---- the thread ---- */

static bool keeper_turn(td_http *h, int64_t *wake_ns) {
    pthread_mutex_lock(&h->lock);
    int64_t now = td_clock_ns();
    if (now >= h->keeper_wake_ns)
        h->keeper_wake_ns = tend(h, now);
    td_http_keeper_free_dead(h);
    *wake_ns = h->keeper_wake_ns;
    bool go_on = !h->keeper_stop;
    pthread_mutex_unlock(&h->lock);
    return go_on;
}

static int wait_ms(int64_t until_ns) {
    if (until_ns == INT64_MAX)
        return -1;
    int64_t ms = (until_ns - td_clock_ns()) / 1000000 + 1;
    return ms < 0 ? 0 : ms > 3600000 ? 3600000 : (int)ms;
}

/* Sleeps until something happens; false when accepting should pause. */
static bool wait_and_accept(td_http *h, int64_t wake_ns, bool accepting) {
    struct pollfd fds[2 + TD_HTTP_LISTENERS] = {{.fd = h->wake_fd, .events = POLLIN},
                                                {.fd = h->hangup_fd, .events = POLLIN}};
    nfds_t n = 2;
    for (size_t i = 0; accepting && i < h->n_listeners; i++)
        fds[n++] = (struct pollfd){.fd = h->listeners[i], .events = POLLIN};
    if (poll(fds, n, wait_ms(wake_ns)) <= 0)
        return true;
    uint64_t count;
    if (fds[0].revents && read(h->wake_fd, &count, sizeof count) < 0)
        return true;
    if (fds[1].revents)
        take_hangups(h);
    bool fine = true;
    for (nfds_t i = 2; i < n; i++)
        if (fds[i].revents)
            fine &= accept_some(h, fds[i].fd);
    return fine;
}

static void *keeper_main(void *arg) {
    td_http *h = arg;
    int64_t wake_ns, pause_until = 0;
    while (keeper_turn(h, &wake_ns)) {
        if (atomic_load(&h->stopping) && h->n_listeners)
            close_listeners(h);
        bool pausing = td_clock_ns() < pause_until;
        if (pausing && pause_until < wake_ns)
            wake_ns = pause_until;
        if (!wait_and_accept(h, wake_ns, !pausing && !full(h)))
            pause_until = td_clock_ns() + ACCEPT_PAUSE_NS;
    }
    close_listeners(h);
    return NULL;
}

td_status td_http_keeper_start(td_http *h, td_error *err) {
    h->keeper_wake_ns = INT64_MAX;
    int rc = pthread_create(&h->keeper, NULL, keeper_main, h);
    return rc == 0 ? TD_OK : td_fail(err, TD_E_IO, "starting a thread: %s", strerror(rc));
}

void td_http_keeper_join(td_http *h) {
    pthread_mutex_lock(&h->lock);
    h->keeper_stop = true;
    pthread_mutex_unlock(&h->lock);
    td_http_keeper_wake(h);
    pthread_join(h->keeper, NULL);
}
