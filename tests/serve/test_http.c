/* test_http.c - the HTTP layer against a client that may misbehave: routes, keys, limits, framing, addresses. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "serve/http.h"
#include "serve/support_http.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define HOST "Host: t\r\n"

/* ---- a server to talk to ---- */

static void say_hello(void *user, td_exchange *x) {
    (void)user;
    td_exchange_reply(x, 200, "text/plain", "hello", 5, NULL, 0);
}

static void echo(void *user, td_exchange *x) {
    (void)user;
    size_t n;
    const char *body = td_exchange_body(x, &n);
    td_exchange_reply(x, 200, td_exchange_header(x, "content-TYPE"), body, n, NULL, 0);
}

/* "path|a|b|X-Test", with (none) for what is absent. */
static void tell(void *user, td_exchange *x) {
    (void)user;
    const char *a = td_exchange_query(x, "a"), *b = td_exchange_query(x, "b"), *h = td_exchange_header(x, "x-test");
    char text[512];
    int n = snprintf(text, sizeof text, "%s|%s|%s|%s", td_exchange_path(x), a ? a : "(none)", b ? b : "(none)",
                     h ? h : "(none)");
    td_exchange_reply(x, 200, "text/plain", text, n < 512 ? (size_t)n : 511, NULL, 0);
}

static void do_nothing(void *user, td_exchange *x) {
    (void)user, (void)x;
}

static void bad_replies(void *user, td_exchange *x) {
    int *bad = user;
    const td_http_header split = {"X-A", "1\r\nX-Evil: 1"}, length = {"Content-Length", "7"};
    *bad += td_exchange_reply(x, 200, "text/plain\r\nX-Evil: 1", "a", 1, NULL, 0) != TD_E_ARG;
    *bad += td_exchange_reply(x, 200, NULL, "a", 1, &split, 1) != TD_E_ARG;
    *bad += td_exchange_reply(x, 200, NULL, "a", 1, &length, 1) != TD_E_ARG;
    *bad += td_exchange_reply(x, 100, NULL, "a", 1, NULL, 0) != TD_E_ARG;
    *bad += td_exchange_write(x, "a", 1) != TD_E_ARG;
    *bad += td_exchange_reply(x, 429, NULL, NULL, 0, &(td_http_header){"Retry-After", "3"}, 1) != TD_OK;
    *bad += td_exchange_reply(x, 200, NULL, "a", 1, NULL, 0) != TD_E_ARG;
    *bad += td_exchange_begin(x, 200, NULL, NULL, 0) != TD_E_ARG;
}

static int n_bad;

static const td_http_route routes[] = {
    {"GET", "/hello", 0, NULL, say_hello, NULL},
    {"GET", "/open", TD_HTTP_OPEN | TD_HTTP_NO_CORS, NULL, say_hello, NULL},
    {"POST", "/echo", 0, NULL, echo, NULL},
    {"POST", "/json", TD_HTTP_BODY, "application/json", echo, NULL},
    {"GET", "/tell/", TD_HTTP_PREFIX, NULL, tell, NULL},
    {"GET", "/nothing", 0, NULL, do_nothing, NULL},
    {"GET", "/bad", 0, NULL, bad_replies, &n_bad},
};

/* The last access entry, copied. */
static struct {
    pthread_mutex_t lock;
    int n;
    char text[512];
} access_log = {.lock = PTHREAD_MUTEX_INITIALIZER};

static void on_access(void *user, const td_http_access *e) {
    (void)user;
    pthread_mutex_lock(&access_log.lock);
    access_log.n++;
    snprintf(access_log.text, sizeof access_log.text, "%s %s %u in %llu out %llu %s", e->method, e->path, e->status,
             (unsigned long long)e->body_bytes, (unsigned long long)e->sent_bytes, e->complete ? "whole" : "cut");
    pthread_mutex_unlock(&access_log.lock);
}

static void shaped(void *user, unsigned status, const char *code, const char *message, td_buf *out) {
    (void)user;
    td_buf_printf(out, "{\"%u\":\"%s\",\"message\":\"%s\"}", status, code, message);
}

static td_http_options options(void) {
    td_http_options o = td_http_options_default();
    o.routes = routes;
    o.n_routes = COUNT(routes);
    o.server = "tandem/test";
    o.error_body = shaped;
    o.access = on_access;
    return o;
}

static td_http *open_with(const td_http_options *o) {
    td_http *h;
    td_error err;
    if (td_http_open(&h, o, &err) != TD_OK)
        fail_msg("%s", err.message);
    return h;
}

/* Every test ends with no exchange and no memory left. */
static void close_clean(td_http **h) {
    td_http_close(h, 20);
    assert_null(*h);
}

static int count_blocks(void **state) {
    *state = (void *)(intptr_t)td_alloc_live();
    return 0;
}

static int check_blocks(void **state) {
    if (td_alloc_live() == (long)(intptr_t)*state)
        return 0;
    fprintf(stderr, "%ld blocks left\n", td_alloc_live() - (long)(intptr_t)*state);
    return 1;
}

/* One request on a connection of its own: the status, and the body in `body`. */
static int ask(const td_http *h, const char *request, char body[512]) {
    client c = client_connect("127.0.0.1", td_http_port(h));
    client_reply r;
    int status = client_ask(&c, &r, request) ? r.status : 0;
    snprintf(body, 512, "%s", r.body ? r.body : "");
    client_reply_free(&r);
    client_close(&c);
    return status;
}

/* ---- requests ---- */

static void a_connection_serves_many_requests(void **state) {
    (void)state;
    td_http_options o = options();
    td_http *h = open_with(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    client_reply r;
    char v[256];
    for (int i = 0; i < 3; i++) {
        assert_true(client_ask(&c, &r, "GET /hello HTTP/1.1\r\n" HOST "\r\n"));
        assert_int_equal(r.status, 200);
        assert_string_equal(r.body, "hello");
        assert_string_equal(client_header(&r, "Content-Type", v), "text/plain");
        assert_string_equal(client_header(&r, "Server", v), "tandem/test");
        assert_memory_equal(client_header(&r, "X-Request-Id", v), "req-", 4);
        assert_null(client_header(&r, "Access-Control-Allow-Origin", v));
        client_reply_free(&r);
    }
    assert_true(client_puts(&c, "GET /hello HTTP/1.1\r\n" HOST "\r\nPOST /echo HTTP/1.1\r\n" HOST
                                "Content-Length: 2\r\n\r\nabGET /tell/x HTTP/1.1\r\n" HOST "\r\n"));
    static const char *const want[] = {"hello", "ab", "/tell/x|(none)|(none)|(none)"};
    for (size_t i = 0; i < COUNT(want); i++) {
        assert_true(client_read(&c, &r, false));
        assert_string_equal(r.body, want[i]);
        client_reply_free(&r);
    }
    assert_true(client_ask(&c, &r, "GET /hello HTTP/1.1\r\n" HOST "Connection: close\r\n\r\n"));
    assert_true(client_wait_closed(&c));
    client_reply_free(&r);
    client_close(&c);
    assert_int_equal(td_http_stats_get(h).n_requests, 7);
    close_clean(&h);
}

static void heads_have_no_body(void **state) {
    (void)state;
    td_http_options o = options();
    td_http *h = open_with(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    client_reply r;
    char v[256];
    assert_true(client_ask(&c, &r, "HEAD /hello HTTP/1.1\r\n" HOST "\r\n"));
    assert_int_equal(r.status, 200);
    assert_string_equal(client_header(&r, "Content-Length", v), "5");
    client_reply_free(&r);
    assert_true(client_ask(&c, &r, "HEAD /none HTTP/1.1\r\n" HOST "\r\n"));
    assert_int_equal(r.status, 404);
    client_reply_free(&r);
    assert_true(client_ask(&c, &r, "GET /hello HTTP/1.1\r\n" HOST "\r\n")); /* no stray bytes before it */
    assert_string_equal(r.body, "hello");
    client_reply_free(&r);
    client_close(&c);
    close_clean(&h);
}

static void paths_queries_and_headers_are_decoded_once(void **state) {
    (void)state;
    td_http_options o = options();
    td_http *h = open_with(&o);
    char body[512];
    assert_int_equal(ask(h, "GET /tell/a%20b%2525?b=1%262&a&a=2 HTTP/1.1\r\n" HOST "X-Test:  q \r\n\r\n", body), 200);
    assert_string_equal(body, "/tell/a b%25||1&2|q ");
    assert_int_equal(ask(h, "GET /tell/%00x HTTP/1.1\r\n" HOST "\r\n", body), 400);
    assert_int_equal(ask(h, "GET /hello?x=%00 HTTP/1.1\r\n" HOST "\r\n", body), 400);
    close_clean(&h);
}

typedef struct status_case {
    const char *request;
    int status;
    const char *body; /* NULL: any; else it contains this */
} status_case;

static void run_cases(const td_http *h, const status_case *cases, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char body[512];
        int status = ask(h, cases[i].request, body);
        if (status != cases[i].status || (cases[i].body && !strstr(body, cases[i].body)))
            fail_msg("case %zu: %.60s...: %d %s", i, cases[i].request, status, body);
    }
}

static void refusals(void **state) {
    (void)state;
    td_http_options o = options();
    o.max_body_bytes = 1000;
    td_http *h = open_with(&o);
    static const status_case cases[] = {
        {"GET /none HTTP/1.1\r\n" HOST "\r\n", 404, "{\"404\":\"not_found\""},
        {"PUT /hello HTTP/1.1\r\n" HOST "\r\n", 405, "method_not_allowed"},
        {"OPTIONS /hello HTTP/1.1\r\n" HOST "\r\n", 204, ""},
        {"OPTIONS /none HTTP/1.1\r\n" HOST "\r\n", 404, NULL},
        {"GET /hello HTTP/1.1\r\n\r\n", 400, "Host"},
        {"GET /hello HTTP/1.0\r\n\r\n", 200, "hello"},
        {"GET /hello HTTP/2.0\r\n" HOST "\r\n", 505, NULL},
        {"GET /hello HTTP/1.1\r\n" HOST "no colon\r\n\r\n", 400, NULL},
        {"POST /echo HTTP/1.1\r\n" HOST "Content-Length: x\r\n\r\n", 400, NULL},
        {"POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1\r\nContent-Length: 2\r\n\r\nab", 400, "more than once"},
        {"POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400,
         "exclude"},
        {"POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: gzip\r\n\r\nab", 400, "chunked"},
        {"POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\nxyz\r\n", 400, NULL},
        {"POST /echo HTTP/1.1\r\n" HOST "Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\nab", 415,
         "unsupported_encoding"},
        {"POST /echo HTTP/1.1\r\n" HOST "Content-Encoding: identity\r\nContent-Length: 2\r\n\r\nab", 200, "ab"},
        {"POST /json HTTP/1.1\r\n" HOST "Content-Type: text/plain\r\nContent-Length: 2\r\n\r\nab", 415,
         "application/json"},
        {"POST /json HTTP/1.1\r\n" HOST "Content-Type: application/json; charset=utf-8\r\nContent-Length: 2\r\n\r\n{}",
         200, "{}"},
        {"POST /json HTTP/1.1\r\n" HOST "Content-Length: 2\r\n\r\n{}", 200, "{}"},
        {"POST /json HTTP/1.1\r\n" HOST "\r\n", 411, "length_required"},
        {"POST /echo HTTP/1.1\r\n" HOST "\r\n", 200, ""},
        {"POST /echo HTTP/1.1\r\n" HOST "Content-Length: 1001\r\nExpect: 100-continue\r\n\r\n", 413, "limit of 1000"},
        {"POST /echo HTTP/1.1\r\n" HOST "Content-Length: 9000000000\r\n\r\n", 413, "9000000000 bytes"},
        {"GET /nothing HTTP/1.1\r\n" HOST "\r\n", 500, "internal_error"},
    };
    run_cases(h, cases, COUNT(cases));
    close_clean(&h);
}

static void wrong_methods_name_the_right_ones(void **state) {
    (void)state;
    td_http_options o = options();
    td_http *h = open_with(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    client_reply r;
    char v[256];
    assert_true(client_ask(&c, &r, "DELETE /hello HTTP/1.1\r\n" HOST "\r\n"));
    assert_int_equal(r.status, 405);
    assert_string_equal(client_header(&r, "Allow", v), "GET, HEAD, OPTIONS");
    assert_string_equal(client_header(&r, "Content-Type", v), "application/json");
    client_reply_free(&r);
    client_close(&c);
    close_clean(&h);
}

static void keys_guard_all_but_open_routes(void **state) {
    (void)state;
    static const char *const keys[] = {"one", "two"};
    td_http_options o = options();
    o.api_keys = keys;
    o.n_api_keys = 2;
    td_http *h = open_with(&o);
    static const status_case cases[] = {
        {"GET /open HTTP/1.1\r\n" HOST "\r\n", 200, "hello"},
        {"GET /hello HTTP/1.1\r\n" HOST "\r\n", 401, "invalid_api_key"},
        {"GET /none HTTP/1.1\r\n" HOST "\r\n", 401, NULL},
        {"GET /hello HTTP/1.1\r\n" HOST "Authorization: Bearer two\r\n\r\n", 200, "hello"},
        {"GET /hello HTTP/1.1\r\n" HOST "Authorization: one\r\n\r\n", 200, "hello"},
        {"GET /hello HTTP/1.1\r\n" HOST "X-API-Key: one\r\n\r\n", 200, "hello"},
        {"GET /hello HTTP/1.1\r\n" HOST "Authorization: Bearer on\r\n\r\n", 401, NULL},
        {"POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\n\r\nabc", 401, NULL},
        {"POST /echo HTTP/1.1\r\n" HOST "Content-Length: 300000\r\n\r\n", 401, NULL},
        {"OPTIONS /hello HTTP/1.1\r\n" HOST "\r\n", 204, NULL},
    };
    run_cases(h, cases, COUNT(cases));
    close_clean(&h);
}

/* origin sent -> origin allowed, and whether Vary is there */
static void cross_origin(void **state) {
    (void)state;
    static const struct {
        const char *option, *request, *allowed;
        bool vary;
    } cases[] = {
        {"*", "GET /hello HTTP/1.1\r\n" HOST "Origin: http://a\r\n\r\n", "*", false},
        {"*", "GET /none HTTP/1.1\r\n" HOST "\r\n", "*", false},
        {"*", "OPTIONS /anything HTTP/1.1\r\n" HOST "Origin: http://a\r\n\r\n", "*", false},
        {"*", "GET /open HTTP/1.1\r\n" HOST "Origin: http://a\r\n\r\n", NULL, false},
        {"http://a", "GET /hello HTTP/1.1\r\n" HOST "Origin: http://a\r\n\r\n", "http://a", true},
        {"http://a", "GET /hello HTTP/1.1\r\n" HOST "Origin: http://b\r\n\r\n", NULL, true},
        {"http://a", "GET /hello HTTP/1.1\r\n" HOST "\r\n", NULL, true},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        td_http_options o = options();
        o.cors_origin = cases[i].option;
        td_http *h = open_with(&o);
        client c = client_connect("127.0.0.1", td_http_port(h));
        client_reply r;
        char v[256];
        assert_true(client_ask(&c, &r, cases[i].request));
        const char *got = client_header(&r, "Access-Control-Allow-Origin", v);
        if (!got != !cases[i].allowed || (got && strcmp(got, cases[i].allowed) != 0))
            fail_msg("case %zu: %s", i, got ? got : "(none)");
        assert_int_equal(client_header(&r, "Vary", v) != NULL, cases[i].vary);
        assert_int_equal(client_header(&r, "Access-Control-Allow-Headers", v) != NULL, r.status == 204);
        client_reply_free(&r);
        client_close(&c);
        close_clean(&h);
    }
}

static void request_ids_are_echoed_or_made(void **state) {
    (void)state;
    td_http_options o = options();
    td_http *h = open_with(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    client_reply r;
    char v[256], first[256];
    assert_true(client_ask(&c, &r, "GET /hello HTTP/1.1\r\n" HOST "X-Request-Id: abc-1.2_Z\r\n\r\n"));
    assert_string_equal(client_header(&r, "X-Request-Id", v), "abc-1.2_Z");
    client_reply_free(&r);
    assert_true(client_ask(&c, &r, "GET /hello HTTP/1.1\r\n" HOST "X-Request-Id: no good\r\n\r\n"));
    assert_memory_equal(client_header(&r, "X-Request-Id", first), "req-", 4);
    client_reply_free(&r);
    assert_true(client_ask(&c, &r, "GET /none HTTP/1.1\r\n" HOST "\r\n"));
    assert_memory_equal(client_header(&r, "X-Request-Id", v), "req-", 4);
    assert_string_not_equal(v, first);
    client_reply_free(&r);
    client_close(&c);
    close_clean(&h);
}

static void replies_are_checked(void **state) {
    (void)state;
    td_http_options o = options();
    td_http *h = open_with(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    client_reply r;
    char v[256];
    n_bad = 0;
    assert_true(client_ask(&c, &r, "GET /bad HTTP/1.1\r\n" HOST "\r\n"));
    assert_int_equal(n_bad, 0);
    assert_int_equal(r.status, 429);
    assert_string_equal(client_header(&r, "Retry-After", v), "3");
    assert_null(client_header(&r, "X-Evil", v));
    client_reply_free(&r);
    client_close(&c);
    close_clean(&h);
}

/* ---- bodies ---- */

static void bodies_arrive_however_they_are_cut(void **state) {
    (void)state;
    td_http_options o = options();
    td_http *h = open_with(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    client_reply r;
    assert_true(client_drip(&c, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 11\r\n\r\nhello world"));
    assert_true(client_read(&c, &r, false));
    assert_string_equal(r.body, "hello world");
    client_reply_free(&r);
    assert_true(client_drip(&c, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"
                                "5\r\nhello\r\n1;ext=1\r\n \r\n5\r\nworld\r\n0\r\nX-Trailer: 1\r\n\r\n"));
    assert_true(client_read(&c, &r, false));
    assert_string_equal(r.body, "hello world");
    client_reply_free(&r);
    client_close(&c);
    close_clean(&h);
}

static void a_large_body_comes_through_whole(void **state) {
    (void)state;
    td_http_options o = options();
    td_http *h = open_with(&o);
    const size_t n = 5 * 1000 * 1000;
    char *big = malloc(n);
    for (size_t i = 0; i < n; i++)
        big[i] = (char)(i * 2654435761u >> 13);
    client c = client_connect("127.0.0.1", td_http_port(h));
    client_reply r;
    assert_true(client_puts(&c, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5000000\r\n\r\n"));
    assert_true(client_send(&c, big, n));
    assert_true(client_read(&c, &r, false));
    assert_int_equal(r.n_body, n);
    assert_memory_equal(r.body, big, n);
    client_reply_free(&r);
    client_close(&c);
    free(big);
    close_clean(&h);
    assert_string_equal(access_log.text, "POST /echo 200 in 5000000 out 5000000 whole");
}

static void a_client_that_asks_first_is_told_to_go_on(void **state) {
    (void)state;
    td_http_options o = options();
    td_http *h = open_with(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    client_reply r;
    assert_true(client_puts(&c, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 3\r\nExpect: 100-continue\r\n\r\n"));
    assert_true(client_wait(&c, "HTTP/1.1 100 Continue\r\n\r\n"));
    assert_true(client_puts(&c, "abc"));
    assert_true(client_read(&c, &r, false));
    assert_string_equal(r.body, "abc");
    client_reply_free(&r);
    client_close(&c);
    close_clean(&h);
}

static void a_short_refused_body_keeps_the_connection(void **state) {
    (void)state;
    td_http_options o = options();
    o.max_body_bytes = 10;
    td_http *h = open_with(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    client_reply r;
    for (int i = 0; i < 2; i++) {
        assert_true(client_ask(&c, &r, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 11\r\n\r\nhello world"));
        assert_int_equal(r.status, 413);
        assert_non_null(strstr(r.body, "body_too_large"));
        client_reply_free(&r);
    }
    assert_true(client_ask(&c, &r, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 10\r\n\r\nhelloworld"));
    assert_int_equal(r.status, 200);
    client_reply_free(&r);
    client_close(&c);
    close_clean(&h);
}

/* Chunks over the limit: the refusal comes in the middle of the upload, and survives the rest of it. */
static void chunks_over_the_limit_are_refused_in_the_middle(void **state) {
    (void)state;
    td_http_options o = options();
    o.max_body_bytes = 100000;
    td_http *h = open_with(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    client_reply r;
    char chunk[10010];
    int head = snprintf(chunk, sizeof chunk, "2710\r\n");
    memset(chunk + head, 'x', 10000);
    memcpy(chunk + head + 10000, "\r\n", 2);
    assert_true(client_puts(&c, "POST /echo HTTP/1.1\r\n" HOST "Transfer-Encoding: chunked\r\n\r\n"));
    for (int i = 0; i < 400; i++) /* more than the sockets hold */
        assert_true(client_send(&c, chunk, (size_t)head + 10002));
    assert_true(client_read(&c, &r, false));
    assert_int_equal(r.status, 413);
    assert_true(r.whole);
    assert_non_null(strstr(r.body, "limit of 100000 bytes"));
    client_reply_free(&r);
    client_close(&c);
    close_clean(&h);
    assert_non_null(strstr(access_log.text, "POST /echo 413"));
}

static void bodies_together_have_a_limit(void **state) {
    (void)state;
    td_http_options o = options();
    o.max_bodies_bytes = 1000;
    td_http *h = open_with(&o);
    char body[512], request[1400];
    char filler[701];
    memset(filler, 'x', 700), filler[700] = '\0';
    snprintf(request, sizeof request, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 701\r\n\r\n%s", filler);
    client first = client_connect("127.0.0.1", td_http_port(h));
    assert_true(client_puts(&first, request)); /* one byte short */
    while (td_http_stats_get(h).bodies_bytes < 700)
        usleep(1000);
    snprintf(request, sizeof request, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 700\r\n\r\n%s", filler);
    assert_int_equal(ask(h, request, body), 503);
    assert_non_null(strstr(body, "overloaded"));
    client_reply r;
    assert_true(client_ask(&first, &r, "y"));
    assert_int_equal(r.status, 200);
    client_reply_free(&r);
    client_close(&first);
    while (td_http_stats_get(h).bodies_bytes > 0) /* a client may have its reply before the body is freed */
        usleep(1000);
    assert_int_equal(ask(h, request, body), 200);
    close_clean(&h);
}

static void long_headers_and_uris(void **state) {
    (void)state;
    td_http_options o = options();
    o.max_header_bytes = 2048;
    td_http *h = open_with(&o);
    static const struct {
        size_t path, header;
        int status;
    } cases[] = {{1000, 0, 200},  {1100, 0, 414},  {3000, 0, 414},  {100000, 0, 414},
                 {10, 1000, 200}, {10, 2100, 431}, {10, 2800, 431}, {10, 100000, 431}};
    char *request = malloc(300000), *filler = malloc(100001), body[512];
    memset(filler, 'x', 100000), filler[100000] = '\0';
    for (size_t i = 0; i < COUNT(cases); i++) {
        snprintf(request, 300000, "GET /tell/%.*s HTTP/1.1\r\n" HOST "X-Test: %.*s\r\n\r\n", (int)cases[i].path - 6,
                 filler, (int)cases[i].header, filler);
        int status = ask(h, request, body);
        if (status != cases[i].status)
            fail_msg("path %zu, header %zu: %d", cases[i].path, cases[i].header, status);
    }
    free(request);
    free(filler);
    close_clean(&h);
}

/* ---- slow clients ---- */

static void slow_headers_are_a_408(void **state) {
    (void)state;
    td_http_options o = options();
    o.header_seconds = 0.15;
    td_http *h = open_with(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    client_reply r;
    assert_true(client_puts(&c, "GET /hello HTTP/1.1\r\nHo"));
    assert_true(client_read(&c, &r, false));
    assert_int_equal(r.status, 408);
    assert_non_null(strstr(r.body, "request_timeout"));
    assert_true(client_wait_closed(&c));
    client_reply_free(&r);
    client_close(&c);
    close_clean(&h);
}

static void slow_bodies_are_a_408(void **state) {
    (void)state;
    for (int stall = 0; stall < 2; stall++) {
        td_http_options o = options();
        *(stall ? &o.idle_seconds : &o.body_seconds) = 0.15;
        td_http *h = open_with(&o);
        client c = client_connect("127.0.0.1", td_http_port(h));
        client_reply r;
        assert_true(client_puts(&c, "POST /echo HTTP/1.1\r\n" HOST "Content-Length: 5\r\n\r\nab"));
        assert_true(client_read(&c, &r, false));
        assert_int_equal(r.status, 408);
        assert_non_null(strstr(r.body, "request_timeout"));
        assert_true(client_wait_closed(&c));
        client_reply_free(&r);
        client_close(&c);
        close_clean(&h);
        assert_string_equal(access_log.text, "POST /echo 408 in 2 out 0 cut");
    }
}

/* A trickle that would restart a plain idle timer for ever. */
static void a_trickle_does_not_hold_a_connection(void **state) {
    (void)state;
    td_http_options o = options();
    o.header_seconds = 0.3;
    td_http *h = open_with(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    bool open = client_puts(&c, "GET /hello HTTP/1.1\r\nX: ");
    int n = 0;
    for (; open && n < 2000; n++, usleep(10000))
        open = client_send(&c, "x", 1) && client_silent(&c, 0);
    assert_in_range(n, 1, 1999);
    client_close(&c);
    close_clean(&h);
}

static void idle_connections_are_closed(void **state) {
    (void)state;
    td_http_options o = options();
    o.idle_seconds = 0.1;
    td_http *h = open_with(&o);
    client c = client_connect("127.0.0.1", td_http_port(h));
    client_reply r;
    assert_true(client_ask(&c, &r, "GET /hello HTTP/1.1\r\n" HOST "\r\n"));
    client_reply_free(&r);
    assert_true(client_wait_closed(&c));
    client_close(&c);
    close_clean(&h);
}

/* ---- addresses ---- */

static void a_taken_port_is_named(void **state) {
    (void)state;
    td_http_options o = options();
    td_http *h = open_with(&o), *second;
    td_error err;
    o.port = td_http_port(h);
    assert_int_equal(td_http_open(&second, &o, &err), TD_E_IO);
    assert_null(second);
    char want[100];
    snprintf(want, sizeof want, "127.0.0.1:%u: address already in use", o.port);
    assert_string_equal(err.message, want);
    snprintf(want, sizeof want, "http://127.0.0.1:%u", o.port);
    assert_string_equal(td_http_address(h), want);
    close_clean(&h);
    o.host = "192.0.2.1"; /* a documentation address: nobody has it */
    assert_int_equal(td_http_open(&second, &o, &err), TD_E_IO);
    assert_non_null(strstr(err.message, "cannot assign requested address"));
    h = NULL;
    td_http_close(&h, 0);
}

static void options_are_checked(void **state) {
    (void)state;
    td_http *h;
    td_error err;
    static const char *const keys[] = {"a", ""};
    td_http_options o = options();
    o.n_threads = 0;
    assert_int_equal(td_http_open(&h, &o, &err), TD_E_ARG);
    o = options();
    o.api_keys = keys;
    o.n_api_keys = 2;
    assert_int_equal(td_http_open(&h, &o, &err), TD_E_ARG);
    assert_string_equal(err.message, "API key number 2 is empty");
    o = options();
    o.server = "a\r\nb";
    assert_int_equal(td_http_open(&h, &o, &err), TD_E_ARG);
    o = options();
    o.host = "unix:";
    assert_int_equal(td_http_open(&h, &o, &err), TD_E_ARG);
}

static void every_failed_allocation_at_the_start_is_an_error(void **state) {
    (void)state;
    static const char *const keys[] = {"a", "b"};
    td_http_options o = options();
    o.api_keys = keys;
    o.n_api_keys = 2;
    for (long k = 0;; k++) {
        td_http *h;
        td_error err;
        td_alloc_fail_at(k);
        td_status st = td_http_open(&h, &o, &err);
        int struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        if (!struck) {
            assert_int_equal(st, TD_OK);
            close_clean(&h);
            break;
        }
        assert_int_equal(st, TD_E_NOMEM);
        assert_null(h);
    }
}

static void other_addresses(void **state) {
    (void)state;
    static const struct {
        const char *host, *reached[2];
    } cases[] = {
        {"::1", {"::1"}}, {"::", {"::1", "127.0.0.1"}}, {"localhost", {"127.0.0.1"}}, {"0.0.0.0", {"127.0.0.1"}}};
    client probe = client_connect("::1", 1);
    client_close(&probe);
    for (size_t i = 0; i < COUNT(cases); i++) {
        td_http_options o = options();
        o.host = cases[i].host;
        td_http *h;
        td_error err;
        if (td_http_open(&h, &o, &err) != TD_OK) {
            assert_non_null(strchr(cases[i].host, ':')); /* a machine without IPv6 */
            continue;
        }
        for (int k = 0; k < 2 && cases[i].reached[k]; k++) {
            client c = client_connect(cases[i].reached[k], td_http_port(h));
            client_reply r;
            assert_true(client_ask(&c, &r, "GET /hello HTTP/1.1\r\n" HOST "\r\n"));
            assert_int_equal(r.status, 200);
            client_reply_free(&r);
            client_close(&c);
        }
        close_clean(&h);
    }
}

static void a_unix_socket_comes_and_goes(void **state) {
    (void)state;
    char dir[] = "/tmp/tandem-http-XXXXXX", address[64];
    assert_non_null(mkdtemp(dir));
    snprintf(address, sizeof address, "unix:%s/s", dir);
    td_http_options o = options();
    o.host = address;
    for (int i = 0; i < 2; i++) {
        td_http *h = open_with(&o), *second;
        td_error err;
        assert_string_equal(td_http_address(h), address);
        assert_int_equal(td_http_open(&second, &o, &err), TD_E_IO);
        assert_non_null(strstr(err.message, "/s: address already in use"));
        client c = client_connect(address, 0);
        client_reply r;
        assert_true(client_ask(&c, &r, "GET /hello HTTP/1.1\r\n" HOST "\r\n"));
        assert_int_equal(r.status, 200);
        client_reply_free(&r);
        client_close(&c);
        close_clean(&h);
        struct stat st;
        assert_int_not_equal(stat(address + 5, &st), 0);
    }
    FILE *f = fopen(address + 5, "w"); /* not a socket: not ours to remove */
    fclose(f);
    td_http *h;
    td_error err;
    assert_int_equal(td_http_open(&h, &o, &err), TD_E_IO);
    assert_int_equal(unlink(address + 5), 0);
    rmdir(dir);
}

static void connections_over_the_limit_wait(void **state) {
    (void)state;
    td_http_options o = options();
    o.max_connections = 2;
    td_http *h = open_with(&o);
    client c[3];
    client_reply r;
    for (int i = 0; i < 3; i++)
        c[i] = client_connect("127.0.0.1", td_http_port(h));
    for (int i = 0; i < 2; i++) {
        assert_true(client_ask(&c[i], &r, "GET /hello HTTP/1.1\r\n" HOST "\r\n"));
        client_reply_free(&r);
    }
    assert_true(client_puts(&c[2], "GET /hello HTTP/1.1\r\n" HOST "\r\n"));
    assert_true(client_silent(&c[2], 50));
    client_close(&c[0]);
    assert_true(client_read(&c[2], &r, false));
    assert_int_equal(r.status, 200);
    client_reply_free(&r);
    client_close(&c[1]);
    client_close(&c[2]);
    close_clean(&h);
}

static void connections_of_one_peer_are_limited(void **state) {
    (void)state;
    td_http_options o = options();
    o.max_connections_peer = 2;
    o.header_seconds = 1000; /* so that nothing else closes it */
    td_http *h = open_with(&o);
    client c[3];
    for (int i = 0; i < 3; i++)
        c[i] = client_connect("127.0.0.1", td_http_port(h));
    assert_true(client_wait_closed(&c[2]));
    client_reply r;
    assert_true(client_ask(&c[1], &r, "GET /hello HTTP/1.1\r\n" HOST "\r\n"));
    client_reply_free(&r);
    for (int i = 0; i < 3; i++)
        client_close(&c[i]);
    close_clean(&h);
}

static void the_access_log_is_printable(void **state) {
    (void)state;
    td_http_options o = options();
    td_http *h = open_with(&o);
    char body[512];
    ask(h, "GET /tell/%1b%0a?key=secret HTTP/1.1\r\n" HOST "\r\n", body);
    close_clean(&h);
    assert_non_null(strstr(access_log.text, "GET /tell/?? 200 in 0 out"));
    assert_null(strstr(access_log.text, "secret"));
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, count_blocks, check_blocks)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(a_connection_serves_many_requests),
        TEST(heads_have_no_body),
        TEST(paths_queries_and_headers_are_decoded_once),
        TEST(refusals),
        TEST(wrong_methods_name_the_right_ones),
        TEST(keys_guard_all_but_open_routes),
        TEST(cross_origin),
        TEST(request_ids_are_echoed_or_made),
        TEST(replies_are_checked),
        TEST(bodies_arrive_however_they_are_cut),
        TEST(a_large_body_comes_through_whole),
        TEST(a_client_that_asks_first_is_told_to_go_on),
        TEST(a_short_refused_body_keeps_the_connection),
        TEST(chunks_over_the_limit_are_refused_in_the_middle),
        TEST(bodies_together_have_a_limit),
        TEST(long_headers_and_uris),
        TEST(slow_headers_are_a_408),
        TEST(slow_bodies_are_a_408),
        TEST(a_trickle_does_not_hold_a_connection),
        TEST(idle_connections_are_closed),
        TEST(a_taken_port_is_named),
        TEST(options_are_checked),
        TEST(every_failed_allocation_at_the_start_is_an_error),
        TEST(other_addresses),
        TEST(a_unix_socket_comes_and_goes),
        TEST(connections_over_the_limit_wait),
        TEST(connections_of_one_peer_are_limited),
        TEST(the_access_log_is_printable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
