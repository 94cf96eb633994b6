/* bench_http.c - see bench_http.h. libcurl's multi interface on one thread: times are taken where bytes arrive. */
#include "cli/bench_http.h"

#include <curl/curl.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"

#define MAX_ANSWER ((size_t)16 << 20)
#define MAX_LINE ((size_t)4 << 20)
#define MAX_PAGE ((size_t)16 << 20)

struct td_bench_http {
    char *base; /* scheme, host and port */
    struct curl_slist *headers;
    double timeout;
    CURLM *multi;
};

static double now(void) {
    return (double)td_clock_ns() * 1e-9;
}

/* ---- opening ---- */

/* The part of the URL that names the server. */
static char *server_of(const char *url) {
    size_t scheme = strncmp(url, "http://", 7) == 0 ? 7 : strncmp(url, "https://", 8) == 0 ? 8 : 0;
    if (!scheme || url[scheme] == '\0' || url[scheme] == '/')
        return NULL;
    size_t n = scheme + strcspn(url + scheme, "/?#");
    char *base = td_malloc(n + 1);
    if (base) {
        memcpy(base, url, n);
        base[n] = '\0';
    }
    return base;
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

td_status td_bench_http_open(td_bench_http **out, const char *url, const char *key, double timeout, td_error *err) {
    *out = NULL;
    char *base = server_of(url);
    if (!base)
        return td_fail(err, TD_E_ARG, "'%s' is no URL of a server, expected one as http://127.0.0.1:8080", url);
    td_bench_http *h = td_calloc(1, sizeof *h);
    if (!h || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        td_free(base);
        td_free(h);
        return td_fail(err, TD_E_NOMEM, "out of memory for a client");
    }
    *h = (td_bench_http){.base = base, .timeout = timeout, .multi = curl_multi_init()};
    if (!h->multi || !set_headers(h, key)) {
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
    curl_slist_free_all(h->headers);
    td_free(h->base);
    td_free(h);
    curl_global_cleanup();
    *ph = NULL;
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

td_status td_bench_http_get(td_bench_http *h, const char *path, td_buf *out, td_error *err) {
    long code = 0;
    CURL *c = request_to(h, path);
    td_buf_init(out, MAX_PAGE);
    if (!c)
        return td_fail(err, TD_E_NOMEM, "out of memory for a request");
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, take_page);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, out);
    CURLcode rc = curl_easy_perform(c);
    curl_easy_getinfo(c, CURLINFO_RESPONSE_CODE, &code);
    curl_easy_cleanup(c);
    if (rc != CURLE_OK)
        return td_fail(err, TD_E_IO, "%s%s: %s", h->base, path, curl_easy_strerror(rc));
    if (code != 200)
        return td_fail(err, TD_E_IO, "%s%s: HTTP status %ld, expected 200", h->base, path, code);
    return TD_OK;
}

/* ---- streams ---- */

void td_bench_call_init(td_bench_call *c) {
    *c = (td_bench_call){0};
    td_buf_init(&c->text, MAX_ANSWER);
    td_buf_init(&c->line, MAX_LINE);
}

void td_bench_call_free(td_bench_call *c) {
    td_buf_free(&c->text);
    td_buf_free(&c->line);
    td_free(c->gaps);
    td_free(c->body);
    *c = (td_bench_call){0};
}

static void keep_gap(td_bench_call *c, double gap) {
    if (c->n_gaps == c->gaps_capacity) {
        size_t more = 2 * c->gaps_capacity + 64;
        double *grown = td_realloc(c->gaps, more, sizeof *grown);
        if (!grown)
            return;
        c->gaps = grown;
        c->gaps_capacity = more;
    }
    c->gaps[c->n_gaps++] = gap;
}

static void take_text(td_bench_call *c, const char *text, double at) {
    if (!text || !*text)
        return;
    if (c->pieces++ == 0)
        c->first = at;
    else
        keep_gap(c, at - c->last);
    c->last = at;
    (void)td_buf_puts(&c->text, text);
}

static uint32_t count_of(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) && json_integer_value(v) > 0 ? (uint32_t)json_integer_value(v) : 0;
}

static void take_event(td_bench_call *c, const json_t *o, double at) {
    const json_t *choice = json_array_get(json_object_get(o, "choices"), 0), *delta = json_object_get(choice, "delta");
    const json_t *usage = json_object_get(o, "usage"), *error = json_object_get(o, "error");
    take_text(c, json_string_value(json_object_get(delta, "reasoning_content")), at);
    take_text(c, json_string_value(json_object_get(delta, "content")), at);
    if (json_is_object(usage)) {
        c->tokens = count_of(usage, "completion_tokens");
        c->prompt_tokens = count_of(usage, "prompt_tokens");
        c->cached_tokens = count_of(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    }
    if (error && !c->error[0]) {
        const char *text = json_string_value(json_object_get(error, "message"));
        snprintf(c->error, sizeof c->error, "%s", text ? text : "an error without a message");
    }
}

/* One line of a stream, without its end. */
static void take_line(td_bench_call *c, const char *line, size_t n, double at) {
    while (n && (line[n - 1] == '\r' || line[n - 1] == ' '))
        n--;
    if (n > 5 && memcmp(line, "data:", 5) == 0) {
        line += 5;
        n -= 5;
    } else if (n == 0 || line[0] != '{') { /* comments, other fields; an error may come as bare JSON */
        return;
    }
    json_t *o = json_loadb(line, n, JSON_REJECT_DUPLICATES, NULL);
    if (json_is_object(o))
        take_event(c, o, at);
    json_decref(o);
}

static size_t take_stream(char *bytes, size_t size, size_t n, void *user) {
    td_bench_call *c = user;
    const double at = now();
    const char *p = bytes, *end = bytes + size * n;
    while (p < end) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        if (td_buf_append(&c->line, p, (size_t)((stop ? stop : end) - p)) != TD_OK)
            return 0;
        if (!stop)
            break;
        take_line(c, td_buf_str(&c->line), c->line.size, at);
        td_buf_clear(&c->line);
        p = stop + 1;
    }
    return size * n;
}

/* ---- many at once ---- */

static bool start_call(td_bench_http *h, td_bench_call *c) {
    CURL *e = request_to(h, "/v1/chat/completions");
    if (!e)
        return false;
    curl_easy_setopt(e, CURLOPT_POSTFIELDS, c->body);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, take_stream);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, c);
    curl_easy_setopt(e, CURLOPT_PRIVATE, c);
    c->began = now();
    if (curl_multi_add_handle(h->multi, e) == CURLM_OK)
        return true;
    curl_easy_cleanup(e);
    return false;
}

static void end_call(td_bench_http *h, CURL *e, CURLcode rc) {
    td_bench_call *c = NULL;
    long code = 0;
    curl_easy_getinfo(e, CURLINFO_PRIVATE, (char **)&c);
    curl_easy_getinfo(e, CURLINFO_RESPONSE_CODE, &code);
    c->ended = now();
    if (c->line.size)
        take_line(c, td_buf_str(&c->line), c->line.size, c->ended);
    if (rc != CURLE_OK)
        snprintf(c->error, sizeof c->error, "%s", curl_easy_strerror(rc));
    else if (code != 200 && !c->error[0])
        snprintf(c->error, sizeof c->error, "HTTP status %ld", code);
    else if (!c->error[0] && c->pieces == 0)
        snprintf(c->error, sizeof c->error, "an answer without text");
    c->tokens = c->tokens ? c->tokens : c->pieces;
    c->ok = c->error[0] == '\0';
    curl_multi_remove_handle(h->multi, e);
    curl_easy_cleanup(e);
}

/* Ends what has ended; returns how many. */
static size_t collect(td_bench_http *h) {
    int left;
    size_t n = 0;
    for (CURLMsg *m; (m = curl_multi_info_read(h->multi, &left)) != NULL;)
        if (m->msg == CURLMSG_DONE) {
            end_call(h, m->easy_handle, m->data.result);
            n++;
        }
    return n;
}

td_status td_bench_http_run(td_bench_http *h, td_bench_call *calls, size_t n, uint32_t width,
                            bool (*tick)(void *user, size_t done), void *user, td_error *err) {
    size_t started = 0, ended = 0;
    bool wanted = true;
    while (ended < started || (wanted && started < n)) {
        int running;
        while (wanted && started < n && started - ended < width) {
            if (!start_call(h, &calls[started]))
                return td_fail(err, TD_E_NOMEM, "out of memory for a request");
            started++;
        }
        if (curl_multi_perform(h->multi, &running) != CURLM_OK)
            return td_fail(err, TD_E_IO, "the client failed");
        size_t done = collect(h);
        ended += done;
        wanted = wanted && (!tick || tick(user, ended));
        if (!done)
            curl_multi_poll(h->multi, NULL, 0, 100, NULL);
    }
    return wanted ? TD_OK : td_fail(err, TD_E_CANCELLED, "interrupted");
}
