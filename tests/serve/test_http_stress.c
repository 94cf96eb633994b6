/* test_http_stress.c - clients that vanish at every phase of a request, and a scheduler of several threads that answers
 * late, in pieces, not at all, or to nobody. Whatever happens, what a client reads to its end is right, no exchange and
 * no connection stays, and no memory.
 *
 * The number of requests is fixed (argv[1] sets another, for long runs under a thread sanitizer); the order of events
 * is the machine's. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "serve/http.h"
#include "serve/support_http.h"

#define N_CLIENTS 6
#define N_WORKERS 3
#define QUEUE 4096
#define HOST "Host: t\r\n"

static int n_requests = 250; /* a client */

static uint32_t rnd(uint32_t *state, uint32_t below) {
    *state ^= *state << 13;
    *state ^= *state >> 17;
    *state ^= *state << 5;
    return *state % below;
}

/* ---- the scheduler ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t some;
    td_exchange *at[QUEUE];
    unsigned head, tail;
    bool stop;
} queue = {.lock = PTHREAD_MUTEX_INITIALIZER, .some = PTHREAD_COND_INITIALIZER};

static void enqueue(td_exchange *x) {
    pthread_mutex_lock(&queue.lock);
    queue.at[queue.tail++ % QUEUE] = x;
    pthread_cond_signal(&queue.some);
    pthread_mutex_unlock(&queue.lock);
}

/* NULL: stop. */
static td_exchange *dequeue(void) {
    pthread_mutex_lock(&queue.lock);
    while (queue.head == queue.tail && !queue.stop)
        pthread_cond_wait(&queue.some, &queue.lock);
    td_exchange *x = queue.head == queue.tail ? NULL : queue.at[queue.head++ % QUEUE];
    pthread_mutex_unlock(&queue.lock);
    return x;
}

/* The handler of everything: some exchanges are answered here and now, most later. */
static void any(void *user, td_exchange *x) {
    (void)user;
    const char *how = td_exchange_query(x, "how");
    size_t n;
    const char *body = td_exchange_body(x, &n);
    if (how && strcmp(how, "now") == 0)
        td_exchange_reply(x, 200, NULL, body, n, NULL, 0);
    else
        enqueue(td_exchange_hold(x));
}

/* "0\n1\n2\n...", n lines, with pauses in which the connection falls asleep, and looks at the client. */
static void stream(td_exchange *x, uint32_t *seed, int n) {
    if (td_exchange_begin(x, 200, NULL, NULL, 0) != TD_OK)
        return;
    td_exchange_keepalive(x, 100);
    for (int i = 0; i < n; i++) {
        char line[16];
        int k = snprintf(line, sizeof line, "%d\n", i);
        if (td_exchange_write(x, line, (size_t)k) != TD_OK)
            break;
        if (rnd(seed, 4) == 0 && !td_exchange_alive(x))
            break;
        if (rnd(seed, 8) == 0)
            usleep(rnd(seed, 300));
    }
    if (rnd(seed, 16) == 0)
        td_exchange_abort(x);
    td_exchange_end(x);
}

static void serve(td_exchange *x, uint32_t *seed) {
    size_t n;
    const char *body = td_exchange_body(x, &n);
    usleep(rnd(seed, 400));
    switch (rnd(seed, 8)) {
    case 0:
        td_exchange_abort(x);
        break;
    case 1: /* forsaken: a 500 */
        break;
    case 2:
        if (!td_exchange_alive(x))
            break;
        /* fall through */
    case 3:
        td_exchange_reply(x, 200, NULL, body, n, NULL, 0);
        break;
    case 4:
        td_exchange_reply_error(x, 503, "overloaded", "later");
        break;
    default:
        stream(x, seed, (int)rnd(seed, 100));
    }
    td_exchange_release(x);
}

static void *worker(void *arg) {
    uint32_t seed = 77 + (uint32_t)(uintptr_t)arg;
    for (td_exchange *x = dequeue(); x; x = dequeue())
        serve(x, &seed);
    return NULL;
}

/* ---- the clients ---- */

static _Atomic uint16_t port;
static atomic_int n_wrong, n_whole;
static atomic_bool enough;

static void leave(client *c, uint32_t *seed) {
    switch (rnd(seed, 3)) {
    case 0:
        client_reset(c);
        break;
    case 1:
        client_half_close(c);
        usleep(rnd(seed, 300));
        /* fall through */
    default:
        client_close(c);
    }
}

static bool counts_up(const char *text) {
    for (int i = 0; *text; i++) {
        char *end;
        if (strtol(text, &end, 10) != i || *end != '\n')
            return false;
        text = end + 1;
    }
    return true;
}

/* True: the connection goes on. */
static bool read_whole(client *c, const char *body) {
    client_reply r;
    if (!client_read(c, &r, false))
        return false;
    bool whole = r.whole;
    if (whole && r.status == 200 && strcmp(r.body, body) != 0 && !counts_up(r.body))
        atomic_fetch_add(&n_wrong, 1);
    atomic_fetch_add(&n_whole, whole);
    char v[256];
    bool go_on = whole && !client_header(&r, "Connection", v);
    client_reply_free(&r);
    return go_on;
}

static void build(char *out, size_t size, uint32_t *seed, char body[3000], size_t *n_head) {
    static const char *const how[] = {"?how=now", "", "", ""};
    size_t n = rnd(seed, 6) ? rnd(seed, 50) : rnd(seed, 2999);
    memset(body, 'b', n), body[n] = '\0';
    int k =
        rnd(seed, 8)
            ? snprintf(out, size, "POST /any%s HTTP/1.1\r\n" HOST "Content-Length: %zu\r\n\r\n", how[rnd(seed, 4)], n)
            : snprintf(out, size, "POST /any HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n%zx\r\n", n);
    *n_head = (size_t)k;
    bool chunked = strstr(out, "chunked") != NULL;
    snprintf(out + k, size - (size_t)k, "%s%s", body, chunked ? n ? "\r\n0\r\n\r\n" : "\r\n" : "");
}

/* One request; false: the connection is over. */
static bool one_request(client *c, uint32_t *seed) {
    char text[4000], body[3000];
    size_t n_head;
    build(text, sizeof text, seed, body, &n_head);
    size_t n = strlen(text);
    switch (rnd(seed, 8)) {
    case 0: /* leaves before the headers end */
        client_send(c, text, rnd(seed, (uint32_t)n_head));
        break;
    case 1: /* in the body */
        client_send(c, text, n_head + rnd(seed, (uint32_t)(n - n_head + 1)));
        usleep(rnd(seed, 200));
        break;
    case 2: /* while queued, or just as it is answered */
        client_send(c, text, n);
        usleep(rnd(seed, 800));
        break;
    case 3: /* with the reply half read */
        client_send(c, text, n);
        client_wait(c, rnd(seed, 2) ? "\r\n" : "\r\n\r\n");
        break;
    default:
        return client_send(c, text, n) && read_whole(c, body);
    }
    leave(c, seed);
    return false;
}

static void *customer(void *arg) {
    uint32_t seed = 1000003u * (1 + (uint32_t)(uintptr_t)arg);
    client c = {.fd = -1};
    for (int i = 0; i < n_requests && !atomic_load(&enough); i++) {
        if (c.fd < 0)
            c = client_connect("127.0.0.1", atomic_load(&port));
        if (c.fd < 0 || !one_request(&c, &seed))
            client_close(&c);
    }
    client_close(&c);
    return NULL;
}

/* ---- together ---- */

static const td_http_route routes[] = {{"POST", "/any", 0, NULL, any, NULL}};

static td_http *open_server(void) {
    td_http_options o = td_http_options_default();
    o.routes = routes;
    o.n_routes = 1;
    o.max_body_bytes = 2900; /* some are over */
    td_http *h;
    td_error err;
    if (td_http_open(&h, &o, &err) != TD_OK)
        fail_msg("%s", err.message);
    atomic_store(&port, td_http_port(h));
    atomic_store(&enough, false);
    queue.stop = false;
    return h;
}

static void start(pthread_t *threads, int n, void *(*run)(void *)) {
    for (int i = 0; i < n; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, run, (void *)(uintptr_t)i), 0);
}

static void join(pthread_t *threads, int n) {
    for (int i = 0; i < n; i++)
        pthread_join(threads[i], NULL);
}

static void stop_workers(pthread_t *threads) {
    pthread_mutex_lock(&queue.lock);
    queue.stop = true;
    pthread_cond_broadcast(&queue.some);
    pthread_mutex_unlock(&queue.lock);
    join(threads, N_WORKERS);
}

static void clients_that_leave_at_any_time(void **state) {
    (void)state;
    long live = td_alloc_live();
    td_http *h = open_server();
    pthread_t workers[N_WORKERS], clients[N_CLIENTS];
    start(workers, N_WORKERS, worker);
    start(clients, N_CLIENTS, customer);
    join(clients, N_CLIENTS);
    stop_workers(workers);
    int64_t begin = td_clock_ns();
    td_http_stats s;
    while (s = td_http_stats_get(h), s.n_exchanges || s.n_connections) {
        if (td_clock_since(begin) > 30)
            fail_msg("%d exchanges and %d connections are stuck", (int)s.n_exchanges, (int)s.n_connections);
        usleep(1000);
    }
    assert_int_equal(s.bodies_bytes, 0);
    td_http_close(&h, 0);
    assert_int_equal(atomic_load(&n_wrong), 0);
    assert_true(atomic_load(&n_whole) > n_requests); /* and many were served */
    assert_int_equal(td_alloc_live(), live);
}

/* The same, and the server closes in the middle of it. */
static void a_server_that_closes_at_any_time(void **state) {
    (void)state;
    long live = td_alloc_live();
    uint32_t seed = 5;
    for (int round = 0; round < 10; round++) {
        td_http *h = open_server();
        pthread_t workers[N_WORKERS], clients[N_CLIENTS];
        start(workers, N_WORKERS, worker);
        start(clients, N_CLIENTS, customer);
        usleep(rnd(&seed, 30000));
        td_http_close(&h, round % 2 ? 0.01 : 0);
        atomic_store(&enough, true);
        join(clients, N_CLIENTS);
        stop_workers(workers);
    }
    assert_int_equal(atomic_load(&n_wrong), 0);
    assert_int_equal(td_alloc_live(), live);
}

int main(int argc, char **argv) {
    if (argc > 1)
        n_requests = atoi(argv[1]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(clients_that_leave_at_any_time),
        cmocka_unit_test(a_server_that_closes_at_any_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
