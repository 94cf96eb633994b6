/* test_http_stream.c - replies given later and in pieces, clients that leave, and the server's end.
 *
 * Handlers hand their exchange to the test, which then plays the scheduler. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "serve/http.h"
#include "serve/sse.h"
#include "serve/support_http.h"

#define HOST "Host: t\r\n"
#define GET "GET /later HTTP/1.1\r\n" HOST "\r\n"

/* ---- the desk where handlers leave exchanges ---- */

static struct {
    pthread_mutex_t lock;
    pthread_cond_t some;
    td_exchange *held[64];
    int n;
} desk = {.lock = PTHREAD_MUTEX_INITIALIZER, .some = PTHREAD_COND_INITIALIZER};

static void later(void *user, td_exchange *x) {
    (void)user;
    pthread_mutex_lock(&desk.lock);
    desk.held[desk.n++] = td_exchange_hold(x);
    pthread_cond_signal(&desk.some);
    pthread_mutex_unlock(&desk.lock);
}

static td_exchange *take(void) {
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += CLIENT_PATIENCE_MS / 1000;
    pthread_mutex_lock(&desk.lock);
    while (desk.n == 0)
        if (pthread_cond_timedwait(&desk.some, &desk.lock, &until) != 0)
            fail_msg("no request came to the handler");
    td_exchange *x = desk.held[--desk.n];
    pthread_mutex_unlock(&desk.lock);
    return x;
}

static void now(void *user, td_exchange *x) {
    (void)user;
    td_exchange_reply(x, 200, NULL, "now", 3, NULL, 0);
}

static const td_http_route routes[] = {
    {"GET", "/now", 0, NULL, now, NULL},
    {"GET", "/later", 0, NULL, later, NULL},
    {"POST", "/later", 0, NULL, later, NULL},
};

static td_http *open_server(td_http_options *o) {
    o->routes = routes;
    o->n_routes = sizeof routes / sizeof routes[0];
    td_http *h;
    td_error err;
    if (td_http_open(&h, o, &err) != TD_OK)
        fail_msg("%s", err.message);
    return h;
}

/* Waits until the layer has done with every exchange: none is stuck. */
static void settle(td_http *h) {
    int64_t start = td_clock_ns();
    while (td_http_stats_get(h).n_exchanges > 0) {
        if (td_clock_since(start) > 20)
            fail_msg("an exchange is stuck");
        usleep(500);
    }
}

/* And with every connection: all limits of time are far away in these tests. */
static void settle_connections(td_http *h) {
    int64_t start = td_clock_ns();
    while (td_http_stats_get(h).n_connections > 0) {
        if (td_clock_since(start) > 15)
            fail_msg("a connection is stuck");
        usleep(500);
    }
}

/* Only when the test has closed its clients. */
static void close_server(td_http **h) {
    settle(*h);
    settle_connections(*h);
    td_http_close(h, 5);
}

static int count_blocks(void **state) {
    *state = (void *)(intptr_t)td_alloc_live();
    return 0;
}

static int check_blocks(void **state) {
    return td_alloc_live() == (long)(intptr_t)*state ? 0 : 1;
}

/* The first look tells that a client has left; over TCP, the first after the news has come round the loopback. */
static bool seen_gone(td_exchange *x, bool tcp) {
    for (int i = 0; i < (tcp ? 2000 : 1); i++, usleep(1000))
        if (!td_exchange_alive(x))
            return true;
    return false;
}

/* Listening on TCP and on a Unix socket in a directory of its own. */
typedef struct place {
    char dir[32], address[64];
} place;

static place make_place(bool tcp) {
    place p = {"/tmp/tandem-http-XXXXXX", "127.0.0.1"};
    if (!tcp) {
        assert_non_null(mkdtemp(p.dir));
        snprintf(p.address, sizeof p.address, "unix:%s/s", p.dir);
    }
    return p;
}

/* ---- later ---- */

static void a_reply_may_come_later_from_any_thread(void **state) {
    (void)state;
    td_http_options o = td_http_options_default();
    td_http *h = open_server(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    client_reply r;
    for (int i = 0; i < 3; i++) {
        assert_true(client_puts(&c, GET));
        td_exchange *x = take();
        assert_true(client_silent(&c, 5));
        assert_true(td_exchange_alive(x));
        assert_int_equal(td_exchange_reply(x, 200, "text/plain", "late", 4, NULL, 0), TD_OK);
        assert_true(client_read(&c, &r, false));
        assert_string_equal(r.body, "late");
        client_reply_free(&r);
        td_exchange_release(x);
    }
    client_close(&c);
    close_server(&h);
}

static int n_destroyed;
static void count_destroy(void *data) {
    n_destroyed += *(int *)data;
}

static void a_forsaken_exchange_is_a_500(void **state) {
    (void)state;
    td_http_options o = td_http_options_default();
    td_http *h = open_server(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    client_reply r;
    int one = 1;
    n_destroyed = 0;
    assert_true(client_puts(&c, GET));
    td_exchange *x = take();
    td_exchange_set_data(x, &one, count_destroy);
    assert_ptr_equal(td_exchange_data(x), &one);
    td_exchange_release(td_exchange_hold(x));
    assert_true(client_silent(&c, 5));
    td_exchange_release(x);
    assert_true(client_read(&c, &r, false));
    assert_int_equal(r.status, 500);
    client_reply_free(&r);
    client_close(&c);
    close_server(&h);
    assert_int_equal(n_destroyed, 1);
}

/* ---- the client leaves ---- */

typedef void (*leave_fn)(client *c);

/* Queued, nothing said yet: one look at the socket tells, the place is free again, the neighbour lives on. */
static void leave_the_queue(td_http *h, const char *address, leave_fn leave, bool tcp) {
    client c = client_connect(address, td_http_port(h)), other = client_connect(address, td_http_port(h));
    assert_true(client_puts(&c, GET));
    td_exchange *x = take();
    assert_true(client_puts(&other, GET));
    td_exchange *y = take();
    assert_true(td_exchange_alive(x));
    leave(&c);
    assert_true(seen_gone(x, tcp));
    assert_int_equal(td_exchange_reply(x, 200, NULL, "a", 1, NULL, 0), TD_E_CANCELLED);
    assert_int_equal(td_exchange_begin(x, 200, NULL, NULL, 0), TD_E_CANCELLED);
    assert_int_equal(td_exchange_write(x, "a", 1), TD_E_CANCELLED);
    td_exchange_end(x);
    td_exchange_abort(x);
    td_exchange_release(x);
    assert_true(td_exchange_alive(y));
    assert_int_equal(td_exchange_reply(y, 200, NULL, "a", 1, NULL, 0), TD_OK);
    client_reply r;
    assert_true(client_read(&other, &r, false));
    assert_int_equal(r.status, 200);
    client_reply_free(&r);
    td_exchange_release(y);
    client_close(&other);
    client_close(&c);
}

static void a_client_that_leaves_the_queue_is_seen(void **state) {
    (void)state;
    static const leave_fn leave[] = {client_close, client_reset, client_half_close};
    for (int tcp = 0; tcp < 2; tcp++) {
        place p = make_place(tcp);
        td_http_options o = td_http_options_default();
        o.host = p.address;
        td_http *h = open_server(&o);
        for (int i = 0; i < 3; i++)
            leave_the_queue(h, p.address, leave[i], tcp);
        settle(h);
        assert_int_equal(td_http_stats_get(h).n_gone, 3);
        close_server(&h);
        rmdir(p.dir);
    }
}

/* In the middle of a silent stream. */
static void a_client_that_leaves_a_stream_is_seen(void **state) {
    (void)state;
    for (int tcp = 0; tcp < 2; tcp++) {
        place p = make_place(tcp);
        td_http_options o = td_http_options_default();
        o.host = p.address;
        td_http *h = open_server(&o);
        client c = client_connect(p.address, td_http_port(h));
        assert_true(client_puts(&c, GET));
        td_exchange *x = take();
        assert_int_equal(td_exchange_begin(x, 200, TD_SSE_TYPE, NULL, 0), TD_OK);
        assert_int_equal(td_exchange_write(x, "data: 1\n\n", 9), TD_OK);
        assert_true(client_wait(&c, "data: 1\n\n"));
        assert_true(td_exchange_alive(x));
        client_close(&c);
        assert_true(seen_gone(x, tcp));
        assert_int_equal(td_exchange_write(x, "data: 2\n\n", 9), TD_E_CANCELLED);
        td_exchange_release(x);
        close_server(&h);
        rmdir(p.dir);
    }
}

/* Nobody looks: the exchange is aborted all the same, so that a stuck producer's place is free. */
static void a_client_that_leaves_is_noticed_unasked(void **state) {
    (void)state;
    td_http_options o = td_http_options_default();
    td_http *h = open_server(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    assert_true(client_puts(&c, GET));
    td_exchange *x = take();
    client_close(&c);
    settle(h);
    td_exchange_release(x);
    close_server(&h);
}

/* A client that has half closed after its request still gets an answer that is there at once. */
static void a_half_closed_request_is_answered_when_that_is_quick(void **state) {
    (void)state;
    td_http_options o = td_http_options_default();
    td_http *h = open_server(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    client_reply r;
    assert_true(client_puts(&c, "GET /now HTTP/1.1\r\n" HOST "\r\n"));
    client_half_close(&c);
    assert_true(client_read(&c, &r, false));
    assert_int_equal(r.status, 200);
    assert_true(client_wait_closed(&c));
    client_reply_free(&r);
    client_close(&c);
    close_server(&h);
}

/* Nobody asks alive(): the writes themselves find out. */
static void writes_find_out_too(void **state) {
    (void)state;
    td_http_options o = td_http_options_default();
    td_http *h = open_server(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    assert_true(client_puts(&c, GET));
    td_exchange *x = take();
    assert_int_equal(td_exchange_begin(x, 200, TD_SSE_TYPE, NULL, 0), TD_OK);
    client_reset(&c);
    td_status st = TD_OK;
    for (int i = 0; i < 5000 && st == TD_OK; i++, usleep(1000))
        st = td_exchange_write(x, "data: 1\n\n", 9);
    assert_int_equal(st, TD_E_CANCELLED);
    td_exchange_release(x);
    close_server(&h);
}

/* ---- streams ---- */

static void each_write_reaches_the_client_by_itself(void **state) {
    (void)state;
    td_http_options o = td_http_options_default();
    td_http *h = open_server(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    client_reply r;
    const td_http_header no_cache = {"Cache-Control", "no-cache"};
    for (int round = 0; round < 2; round++) {
        assert_true(client_puts(&c, GET));
        td_exchange *x = take();
        assert_int_equal(td_exchange_begin(x, 200, TD_SSE_TYPE, &no_cache, 1), TD_OK);
        assert_int_equal(td_exchange_begin(x, 200, TD_SSE_TYPE, NULL, 0), TD_E_ARG);
        assert_true(client_wait(&c, "Cache-Control: no-cache")); /* headers do not wait for data */
        assert_true(client_wait(&c, "\r\n\r\n"));
        int64_t start = td_clock_ns();
        for (int i = 0; i < 200; i++) {
            char event[32];
            int n = snprintf(event, sizeof event, "data: %d\n\n", i);
            assert_int_equal(td_exchange_write(x, event, (size_t)n), TD_OK);
            assert_true(client_wait(&c, event));
        }
        if (td_clock_since(start) > 10) /* 50 ms each: somebody waits for more before sending */
            fail_msg("200 events took %.1f s", td_clock_since(start));
        td_exchange_end(x);
        td_exchange_end(x);
        assert_int_equal(td_exchange_write(x, "a", 1), TD_E_CANCELLED);
        assert_true(client_wait(&c, "0\r\n\r\n"));
        td_exchange_release(x);
    }
    assert_true(client_puts(&c, GET)); /* the connection lives on */
    td_exchange *x = take();
    td_exchange_reply(x, 200, NULL, "x", 1, NULL, 0);
    assert_true(client_read(&c, &r, false));
    assert_int_equal(r.status, 200);
    client_reply_free(&r);
    td_exchange_release(x);
    client_close(&c);
    close_server(&h);
}

static void what_is_written_before_the_end_arrives_whole(void **state) {
    (void)state;
    td_http_options o = td_http_options_default();
    td_http *h = open_server(&o);
    const size_t n = 3 * 1000 * 1000;
    char *bytes = malloc(n);
    for (size_t i = 0; i < n; i++)
        bytes[i] = (char)(i * 2654435761u >> 11);
    static const char *const requests[] = {GET, "GET /later HTTP/1.0\r\n\r\n"};
    for (int i = 0; i < 2; i++) { /* in chunks, and to the end of the connection */
        client c = client_connect("127.0.0.1", td_http_port(h));
        client_reply r;
        assert_true(client_puts(&c, requests[i]));
        td_exchange *x = take();
        assert_int_equal(td_exchange_begin(x, 200, NULL, NULL, 0), TD_OK);
        for (size_t at = 0; at < n; at += 30000)
            assert_int_equal(td_exchange_write(x, bytes + at, 30000), TD_OK);
        td_exchange_end(x);
        td_exchange_release(x);
        assert_true(client_read(&c, &r, false));
        assert_true(r.whole);
        assert_int_equal(r.n_body, n);
        assert_memory_equal(r.body, bytes, n);
        client_reply_free(&r);
        client_close(&c);
    }
    free(bytes);
    close_server(&h);
}

static void a_client_that_does_not_read_is_cut(void **state) {
    (void)state;
    td_http_options o = td_http_options_default();
    o.max_unsent_bytes = 100000;
    td_http *h = open_server(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    assert_true(client_puts(&c, GET));
    td_exchange *x = take();
    assert_int_equal(td_exchange_begin(x, 200, NULL, NULL, 0), TD_OK);
    char block[1000] = {0};
    td_status st = TD_OK;
    size_t written = 0, most = 0;
    for (; st == TD_OK && written < 100u * 1000 * 1000; written += sizeof block) {
        st = td_exchange_write(x, block, sizeof block);
        size_t now = td_exchange_unsent(x);
        most = now > most ? now : most;
    }
    assert_int_equal(st, TD_E_LIMIT);
    assert_in_range(most, 90000, 100000);
    assert_int_equal(td_exchange_unsent(x), 0);
    assert_false(td_exchange_alive(x));
    assert_int_equal(td_exchange_write(x, "a", 1), TD_E_CANCELLED);
    settle(h); /* although the client still has not read */
    td_exchange_release(x);
    client_close(&c);
    close_server(&h);
}

static void an_aborted_stream_is_seen_to_be_cut(void **state) {
    (void)state;
    td_http_options o = td_http_options_default();
    td_http *h = open_server(&o);
    for (int forsaken = 0; forsaken < 2; forsaken++) {
        client c = client_connect("127.0.0.1", td_http_port(h));
        client_reply r;
        assert_true(client_puts(&c, GET));
        td_exchange *x = take();
        assert_int_equal(td_exchange_begin(x, 200, NULL, NULL, 0), TD_OK);
        assert_int_equal(td_exchange_write(x, "part", 4), TD_OK);
        assert_true(client_wait(&c, "\r\n\r\n4\r\npart\r\n"));
        if (!forsaken)
            td_exchange_abort(x);
        td_exchange_release(x); /* the last holder of a stream without end: the same */
        assert_true(client_wait_closed(&c));
        assert_int_equal(c.n_in, 0); /* no closing chunk */
        (void)r;
        client_close(&c);
    }
    close_server(&h);
}

static void an_exchange_may_be_aborted_before_it_is_answered(void **state) {
    (void)state;
    td_http_options o = td_http_options_default();
    td_http *h = open_server(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    assert_true(client_puts(&c, GET));
    td_exchange *x = take();
    td_exchange_abort(x);
    assert_true(client_wait_closed(&c));
    assert_int_equal(td_exchange_reply(x, 200, NULL, NULL, 0, NULL, 0), TD_E_CANCELLED);
    td_exchange_release(x);
    client_close(&c);
    close_server(&h);
}

static void silence_is_filled_with_comments(void **state) {
    (void)state;
    td_http_options o = td_http_options_default();
    td_http *h = open_server(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    assert_true(client_puts(&c, GET));
    td_exchange *x = take();
    td_exchange_keepalive(x, 0.05);
    assert_true(client_silent(&c, 150)); /* not before the stream has begun */
    assert_int_equal(td_exchange_begin(x, 200, TD_SSE_TYPE, NULL, 0), TD_OK);
    for (int i = 0; i < 3; i++)
        assert_true(client_wait(&c, TD_SSE_KEEPALIVE));
    td_exchange_keepalive(x, 0);
    while (!client_silent(&c, 100)) /* the last may be under way */
        c.n_in = 0;
    td_exchange_keepalive(x, 0.05);
    assert_true(client_wait(&c, TD_SSE_KEEPALIVE));
    td_exchange_end(x);
    assert_true(client_wait(&c, "0\r\n\r\n"));
    td_exchange_release(x);
    client_close(&c);
    close_server(&h);
}

/* ---- the end ---- */

static void a_server_that_stops_finishes_what_it_has(void **state) {
    (void)state;
    td_http_options o = td_http_options_default();
    td_http *h = open_server(&o);
    uint16_t port = td_http_port(h);
    client c = client_connect("127.0.0.1", port);
    client_reply r;
    char v[256];
    assert_true(client_puts(&c, GET));
    td_exchange *x = take();
    td_http_stop_accepting(h);
    td_http_stop_accepting(h);
    client refused = client_connect("127.0.0.1", port);
    assert_int_equal(refused.fd, -1);
    assert_true(td_exchange_alive(x));
    assert_int_equal(td_exchange_reply(x, 200, NULL, "done", 4, NULL, 0), TD_OK);
    assert_true(client_read(&c, &r, false));
    assert_string_equal(r.body, "done");
    assert_string_equal(client_header(&r, "Connection", v), "close");
    assert_true(client_wait_closed(&c));
    client_reply_free(&r);
    td_exchange_release(x);
    client_close(&c);
    close_server(&h);
}

static void *reply_soon(void *x) {
    usleep(50000);
    td_exchange_reply(x, 200, NULL, "in time", 7, NULL, 0);
    td_exchange_release(x);
    return NULL;
}

static void a_closing_server_waits_for_exchanges(void **state) {
    (void)state;
    td_http_options o = td_http_options_default();
    td_http *h = open_server(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    client_reply r;
    pthread_t thread;
    assert_true(client_puts(&c, GET));
    td_exchange *x = take();
    pthread_create(&thread, NULL, reply_soon, x);
    td_http_close(&h, 20);
    assert_true(client_read(&c, &r, false));
    assert_string_equal(r.body, "in time");
    client_reply_free(&r);
    client_close(&c);
    pthread_join(thread, NULL);
}

static void a_closing_server_cuts_what_is_left_and_exchanges_outlive_it(void **state) {
    (void)state;
    for (int threads = 1; threads < 4; threads++) {
        td_http_options o = td_http_options_default();
        o.n_threads = (unsigned)threads;
        td_http *h = open_server(&o);
        client c[3];
        td_exchange *x[3];
        for (int i = 0; i < 3; i++) {
            c[i] = client_connect("127.0.0.1", td_http_port(h));
            assert_true(client_puts(&c[i], "POST /later?q=1 HTTP/1.1\r\n" HOST "Content-Length: 4\r\n\r\nbody"));
            x[i] = take();
        }
        assert_int_equal(td_exchange_begin(x[1], 200, NULL, NULL, 0), TD_OK);
        assert_int_equal(td_exchange_begin(x[2], 200, NULL, NULL, 0), TD_OK);
        assert_int_equal(td_exchange_write(x[2], "a", 1), TD_OK);
        td_http_close(&h, 0);
        for (int i = 0; i < 3; i++) {
            size_t n;
            assert_true(client_wait_closed(&c[i]));
            assert_false(td_exchange_alive(x[i]));
            assert_int_equal(td_exchange_reply(x[i], 200, NULL, NULL, 0, NULL, 0), TD_E_CANCELLED);
            assert_int_equal(td_exchange_write(x[i], "a", 1), TD_E_CANCELLED);
            td_exchange_keepalive(x[i], 1);
            assert_string_equal(td_exchange_body(x[i], &n), "body");
            assert_string_equal(td_exchange_query(x[i], "q"), "1");
            td_exchange_release(x[i]);
            client_close(&c[i]);
        }
    }
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, count_blocks, check_blocks)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_reply_may_come_later_from_any_thread),
        TEST(a_forsaken_exchange_is_a_500),
        TEST(a_client_that_leaves_the_queue_is_seen),
        TEST(a_client_that_leaves_a_stream_is_seen),
        TEST(a_client_that_leaves_is_noticed_unasked),
        TEST(a_half_closed_request_is_answered_when_that_is_quick),
        TEST(writes_find_out_too),
        TEST(each_write_reaches_the_client_by_itself),
        TEST(what_is_written_before_the_end_arrives_whole),
        TEST(a_client_that_does_not_read_is_cut),
        TEST(an_aborted_stream_is_seen_to_be_cut),
        TEST(an_exchange_may_be_aborted_before_it_is_answered),
        TEST(silence_is_filled_with_comments),
        TEST(a_server_that_stops_finishes_what_it_has),
        TEST(a_closing_server_waits_for_exchanges),
        TEST(a_closing_server_cuts_what_is_left_and_exchanges_outlive_it),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
