/* test_http_rules.c - the decisions of the HTTP layer as tables of cases. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "serve/http_rules.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static void keys(void **state) {
    (void)state;
    static const char *const two[] = {"alpha", "beta-2"};
    static const struct {
        size_t n_keys;
        const char *authorization, *x_api_key;
        bool ok;
    } cases[] = {
        {0, NULL, NULL, true},
        {0, "Bearer anything", NULL, true},
        {2, NULL, NULL, false},
        {2, "Bearer alpha", NULL, true},
        {2, "bearer   beta-2", NULL, true},
        {2, "beta-2", NULL, true},
        {2, NULL, "alpha", true},
        {2, "Bearer wrong", "alpha", true},
        {2, "Bearer", NULL, false},
        {2, "Bearer ", NULL, false},
        {2, "", "", false},
        {2, "Bearer alph", NULL, false},
        {2, "Bearer alphaa", NULL, false},
        {2, "Bearer alpha ", NULL, false},
        {2, "Bearer ALPHA", NULL, false},
        {2, "Basic alpha", NULL, false},
        {1, "Bearer beta-2", NULL, false},
    };
    for (size_t i = 0; i < COUNT(cases); i++)
        if (td_http_key_ok(two, cases[i].n_keys, cases[i].authorization, cases[i].x_api_key) != cases[i].ok)
            fail_msg("case %zu (%s, %s)", i, cases[i].authorization ? cases[i].authorization : "-",
                     cases[i].x_api_key ? cases[i].x_api_key : "-");
}

static void ids(void **state) {
    (void)state;
    char n64[65], n65[66];
    memset(n64, 'a', 64), n64[64] = '\0';
    memset(n65, 'a', 65), n65[65] = '\0';
    assert_true(td_http_id_ok("a-1._Z"));
    assert_true(td_http_id_ok(n64));
    assert_false(td_http_id_ok(n65));
    assert_false(td_http_id_ok(""));
    assert_false(td_http_id_ok("a b"));
    assert_false(td_http_id_ok("a\r\nSet-Cookie: b"));
    assert_false(td_http_id_ok("\xC3\xA9"));
}

static void headers_that_may_be_sent(void **state) {
    (void)state;
    assert_true(td_http_header_ok(&(td_http_header){"Retry-After", "1"}));
    assert_true(td_http_header_ok(&(td_http_header){"X-A", ""}));
    assert_true(td_http_header_ok(&(td_http_header){"X-A", "\xC3\xA9"}));
    assert_false(td_http_header_ok(&(td_http_header){"X-A", "1\r\nX-B: 2"}));
    assert_false(td_http_header_ok(&(td_http_header){"X-A", "\x7F"}));
    assert_false(td_http_header_ok(&(td_http_header){"X A", "1"}));
    assert_false(td_http_header_ok(&(td_http_header){"X-A:", "1"}));
    assert_false(td_http_header_ok(&(td_http_header){"", "1"}));
    assert_false(td_http_header_ok(&(td_http_header){"X-A", NULL}));
}

static void media_types(void **state) {
    (void)state;
    assert_true(td_http_media_is("application/json", "application/json"));
    assert_true(td_http_media_is(" Application/JSON ; charset=utf-8", "application/json"));
    assert_false(td_http_media_is("application/json5", "application/json"));
    assert_false(td_http_media_is("text/plain", "application/json"));
    assert_false(td_http_media_is("", "application/json"));
}

static void nothing(void *user, td_exchange *x) {
    (void)user, (void)x;
}

static void routes(void **state) {
    (void)state;
    static const td_http_route table[] = {
        {"GET", "/v1/models", 0, NULL, nothing, NULL},
        {"POST", "/v1/chat", 0, NULL, nothing, NULL},
        {"GET", "/v1/", TD_HTTP_PREFIX, NULL, nothing, NULL},
        {"GET", "/v1/models/", TD_HTTP_PREFIX, NULL, nothing, NULL},
        {"DELETE", "/v1/models/", TD_HTTP_PREFIX, NULL, nothing, NULL},
        {"POST", "/v1/models", 0, NULL, nothing, NULL},
    };
    static const struct {
        const char *method, *path;
        int route; /* -1: none */
        const char *allow;
    } cases[] = {
        {"GET", "/v1/models", 0, "GET, HEAD, POST, OPTIONS"},
        {"HEAD", "/v1/models", 0, "GET, HEAD, POST, OPTIONS"},
        {"POST", "/v1/models", 5, "GET, HEAD, POST, OPTIONS"},
        {"PUT", "/v1/models", -1, "GET, HEAD, POST, OPTIONS"},
        {"GET", "/v1/chat", -1, "POST, OPTIONS"}, /* an exact path hides the prefix */
        {"HEAD", "/v1/chat", -1, "POST, OPTIONS"},
        {"GET", "/v1/models/a/b", 3, "GET, HEAD, DELETE, OPTIONS"},
        {"DELETE", "/v1/models/a", 4, "GET, HEAD, DELETE, OPTIONS"},
        {"GET", "/v1/other", 2, "GET, HEAD, OPTIONS"},
        {"get", "/v1/other", -1, "GET, HEAD, OPTIONS"},
        {"GET", "/v1", -1, ""},
        {"GET", "/V1/models", -1, ""},
        {"GET", "", -1, ""},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        td_http_match m;
        td_http_route_find(table, COUNT(table), cases[i].method, cases[i].path, &m);
        int got = m.route ? (int)(m.route - table) : -1;
        if (got != cases[i].route || strcmp(m.allow, cases[i].allow) != 0 || m.path_known != (*cases[i].allow != 0))
            fail_msg("%s %s: route %d, allow \"%s\"", cases[i].method, cases[i].path, got, m.allow);
    }
}

static void framing(void **state) {
    (void)state;
    static const struct {
        td_http_header fields[2];
        size_t n;
        const char *version;
        bool right, stated, chunked;
        uint64_t length;
    } cases[] = {
        {{{0}}, 0, "HTTP/1.1", true, false, false, 0},
        {{{"content-length", "12"}}, 1, "HTTP/1.1", true, true, false, 12},
        {{{"Content-Length", "0"}}, 1, "HTTP/1.0", true, true, false, 0},
        {{{"Content-Length", "18446744073709551609"}}, 1, "HTTP/1.1", true, true, false, 18446744073709551609u},
        {{{"Transfer-Encoding", "Chunked"}}, 1, "HTTP/1.1", true, true, true, 0},
        {{{"Content-Length", ""}}, 1, "HTTP/1.1", false, true, false, 0},
        {{{"Content-Length", "+1"}}, 1, "HTTP/1.1", false, true, false, 0},
        {{{"Content-Length", "0x10"}}, 1, "HTTP/1.1", false, true, false, 0},
        {{{"Content-Length", "99999999999999999999999"}}, 1, "HTTP/1.1", false, true, false, 0},
        {{{"Content-Length", "1"}, {"Content-Length", "1"}}, 2, "HTTP/1.1", false, true, false, 0},
        {{{"Content-Length", "1"}, {"Transfer-Encoding", "chunked"}}, 2, "HTTP/1.1", false, true, true, 0},
        {{{"Transfer-Encoding", "chunked"}, {"Transfer-Encoding", "chunked"}}, 2, "HTTP/1.1", false, true, true, 0},
        {{{"Transfer-Encoding", "gzip, chunked"}}, 1, "HTTP/1.1", false, true, true, 0},
        {{{"Transfer-Encoding", "identity"}}, 1, "HTTP/1.1", false, true, true, 0},
        {{{"Transfer-Encoding", "chunked"}}, 1, "HTTP/1.0", false, true, true, 0},
    };
    for (size_t i = 0; i < COUNT(cases); i++) {
        td_http_framing f = td_http_framing_read(cases[i].fields, cases[i].n, cases[i].version);
        bool same = !f.wrong == cases[i].right && f.stated == cases[i].stated && f.chunked == cases[i].chunked;
        if (!same || (cases[i].right && f.length != cases[i].length))
            fail_msg("case %zu: %s", i, f.wrong ? f.wrong : "taken");
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(keys),        cmocka_unit_test(ids),    cmocka_unit_test(headers_that_may_be_sent),
        cmocka_unit_test(media_types), cmocka_unit_test(routes), cmocka_unit_test(framing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
