/* bench_http.c - see bench_http.h. libcurl's multi interface on one thread: times are taken where bytes arrive. Pages
 * have a multi handle of their own, so that one can be read while answers are in flight. */
#include "cli/bench_http.h"

#include <curl/curl.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"

#define MAX_PAGE ((size_t)16 << 20)
enum { POLL_MS = 100 };

struct td_bench_http {
    char *base;  /* scheme, host, port and the path in front of /v1 */
    char *shown; /* the same without credentials */
    struct curl_slist *headers;
    double timeout;
    bool (*stop)(void);
    CURLM *multi, *pages;
};

static double now(void) {
    return (double)td_clock_ns() * 1e-9;
}

static bool stopped(const td_bench_http *h) {
    return h->stop && h->stop();
}

/* ---- opening ---- */

static size_t scheme_of(const char *url) {
    return strncmp(url, "http://", 7) == 0 ? 7 : strncmp(url, "https://", 8) == 0 ? 8 : 0;
}

/* The part of the URL that all paths are put behind, copied; NULL also when it is no URL. */
static char *base_of(const char *url) {
    size_t scheme = scheme_of(url);
    if (!scheme || url[scheme] == '\0' || strchr("/?#", url[scheme]))
        return NULL;
    size_t n = scheme + strcspn(url + scheme, "?#");
    while (url[n - 1] == '/')
        n--;
    if (n > scheme + 3 && memcmp(url + n - 3, "/v1", 3) == 0)
        n -= 3;
    while (url[n - 1] == '/')
        n--;
    return td_strndup(url, n);
}

static char *without_credentials(const char *base) {
    size_t scheme = scheme_of(base), host = scheme + strcspn(base + scheme, "/");
    while (host > scheme && base[host - 1] != '@')
        host--;
    char *out = td_strdup(base);
    if (out && host > scheme)
        memmove(out + scheme, base + host, strlen(base + host) + 1);
    return out;
}

static bool set_headers(td_bench_http *h, const char *key) {
    td_buf b;
    td_buf_init(&b, 8192);
    h->headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (key && td_buf_printf(&b, "Authorization: Bearer %s", key) == TD_OK)
        h->headers = curl_slist_append(h->headers, b.data);
    td_buf_free(&b);
    return h->headers != NULL;
}

td_status td_bench_http_open(td_bench_http **out, const td_bench_http_options *o, td_error *err) {
    *out = NULL;
    char *base = base_of(o->url);
    if (!base)
        return td_fail(err, TD_E_ARG, "'%s' is no URL of a server, expected one as http://127.0.0.1:8080", o->url);
    td_bench_http *h = td_calloc(1, sizeof *h);
    if (!h || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        td_free(base);
        td_free(h);
        return td_fail(err, TD_E_NOMEM, "out of memory for a client");
    }
    *h = (td_bench_http){.base = base,
                         .shown = without_credentials(base),
                         .timeout = o->timeout,
                         .stop = o->stop,
                         .multi = curl_multi_init(),
                         .pages = curl_multi_init()};
    if (!h->shown || !h->multi || !h->pages || !set_headers(h, o->key)) {
        td_bench_http_close(&h);
        return td_fail(err, TD_E_NOMEM, "out of memory for a client");
    }
    *out = h;
    return TD_OK;
}

void td_bench_http_close(td_bench_http **ph) {
    td_bench_http *h = *ph;
    if (!h)
        return;
    curl_multi_cleanup(h->multi);
    curl_multi_cleanup(h->pages);
    curl_slist_free_all(h->headers);
    td_free(h->base);
    td_free(h->shown);
    td_free(h);
    curl_global_cleanup();
    *ph = NULL;
}

const char *td_bench_http_url(const td_bench_http *h) {
    return h->shown;
}

static CURL *request_to(const td_bench_http *h, const char *path) {
    CURL *c = curl_easy_init();
    td_buf url;
    td_buf_init(&url, 8192);
    if (c && td_buf_printf(&url, "%s%s", h->base, path) == TD_OK) {
        curl_easy_setopt(c, CURLOPT_URL, url.data);
        curl_easy_setopt(c, CURLOPT_HTTPHEADER, h->headers);
        curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, "http,https");
        curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
        curl_easy_setopt(c, CURLOPT_NOPROXY, "*");
        curl_easy_setopt(c, CURLOPT_TCP_NODELAY, 1L);
        curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT_MS, 10000L);
        curl_easy_setopt(c, CURLOPT_TIMEOUT_MS, (long)(h->timeout * 1000));
    }
    td_buf_free(&url);
    return c;
}

/* ---- pages ---- */

static size_t take_page(char *bytes, size_t size, size_t n, void *user) {
    return td_buf_append(user, bytes, size * n) == TD_OK ? size * n : 0;
}

/* Until the page is there or cannot come (`rc`); false: stopped before. */
static bool await_page(td_bench_http *h, CURLcode *rc) {
    *rc = CURLE_FAILED_INIT;
    for (int running, left; !stopped(h);) {
        if (curl_multi_perform(h->pages, &running) != CURLM_OK)
            return true;
        const CURLMsg *m = curl_multi_info_read(h->pages, &left);
        if (m && m->msg == CURLMSG_DONE) {
            *rc = m->data.result;
            return true;
        }
        curl_multi_poll(h->pages, NULL, 0, POLL_MS, NULL);
    }
    return false;
}

td_status td_bench_http_get(td_bench_http *h, const char *path, td_buf *out, td_error *err) {
    long code = 0;
    CURLcode rc;
    CURL *c = request_to(h, path);
    td_buf_init(out, MAX_PAGE);
    if (!c)
        return td_fail(err, TD_E_NOMEM, "out of memory for a request");
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_page);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, out);
    if (curl_multi_add_handle(h->pages, c) != CURLM_OK) {
        curl_easy_cleanup(c);
        return td_fail(err, TD_E_NOMEM, "out of memory for a request");
    }
    bool ended = await_page(h, &rc);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &code);
    curl_multi_remove_handle(h->pages, c);
    curl_easy_cleanup(c);
    if (!ended)
        return td_fail(err, TD_E_CANCELLED, "interrupted");
    if (rc != CURLE_OK)
        return td_fail(err, TD_E_IO, "%s%s: %s", h->shown, path, curl_easy_strerror(rc));
    if (code != 200)
        return td_fail(err, TD_E_IO, "%s%s: HTTP status %ld, expected 200", h->shown, path, code);
    return TD_OK;
}

/* ---- many at once ---- */

static size_t take_stream(char *bytes, size_t size, size_t n, void *user) {
    return td_bench_call_take(user, bytes, size * n, now()) ? size * n : 0;
}

static td_status start_call(td_bench_http *h, td_bench_call *c, td_error *err) {
    CURL *e = request_to(h, "/v1/chat/completions");
    if (!e)
        return td_fail(err, TD_E_NOMEM, "out of memory for a request");
    curl_easy_setopt(e, CURLOPT_POSTFIELDS, c->body);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, take_stream);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(e, CURLOPT_PRIVATE, c);
    if (curl_multi_add_handle(h->multi, e) != CURLM_OK) {
        curl_easy_cleanup(e);
        return td_fail(err, TD_E_NOMEM, "out of memory for a request");
    }
    c->began = now();
    c->state = TD_CALL_RUNNING;
    c->handle = e;
    return TD_OK;
}

static void drop_handle(td_bench_http *h, td_bench_call *c) {
    curl_multi_remove_handle(h->multi, c->handle);
    curl_easy_cleanup(c->handle);
    c->handle = NULL;
}

/* Ends what has ended; returns how many. */
static size_t collect(td_bench_http *h) {
    int left;
    size_t n = 0;
    for (CURLMsg *m; (m = curl_multi_info_read(h->multi, &left)) != NULL;) {
        if (m->msg != CURLMSG_DONE)
            continue;
        CURLcode rc = m->data.result;
        td_bench_call *c = NULL;
        long code = 0;
        curl_easy_getinfo(m->easy_handle, CURLINFO_PRIVATE, (char **)&c);
        curl_easy_getinfo(m->easy_handle, CURLINFO_RESPONSE_CODE, &code);
        td_bench_call_end(c, rc == CURLE_OK ? NULL : curl_easy_strerror(rc), code, now());
        drop_handle(h, c);
        n++;
    }
    return n;
}

/* Closes the connections of what still runs, so that the server need not go on. */
static void cut_off(td_bench_http *h, td_bench_call *calls, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (calls[i].handle) {
            drop_handle(h, &calls[i]);
            calls[i].state = TD_CALL_CUT;
            calls[i].ended = now();
        }
}

td_status td_bench_http_run(td_bench_http *h, td_bench_call *calls, size_t n, uint32_t width,
                            void (*tick)(void *user, size_t ended), void *user, td_error *err) {
    size_t started = 0, ended = 0;
    td_status st = TD_OK;
    while (st == TD_OK && ended < n) {
        int running;
        while (st == TD_OK && started < n && started - ended < width)
            st = start_call(h, &calls[started++], err);
        if (st == TD_OK && curl_multi_perform(h->multi, &running) != CURLM_OK)
            st = td_fail(err, TD_E_IO, "the client failed");
        size_t done = collect(h);
        ended += done;
        if (tick)
            tick(user, ended);
        if (st == TD_OK && ended < n && stopped(h))
            st = td_fail(err, TD_E_CANCELLED, "interrupted");
        else if (st == TD_OK && !done)
            curl_multi_poll(h->multi, NULL, 0, POLL_MS, NULL);
    }
    cut_off(h, calls, started);
    return st;
}
