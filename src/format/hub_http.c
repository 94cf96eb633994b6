/* hub_http.c - see hub_http.h.
 *
 * Redirects are followed here and not by libcurl: the token may go to the hub's own origin (scheme, host and port) and
 * nowhere else, an https request may not become an http one, and the headers that describe a file come from the hub
 * while its bytes come from somebody's storage. Certificates are verified always; there is no option against it.
 *
 * An attempt ends as done, as refused, or as something that passes (a cut connection, a busy server). The last kind is
 * tried again after a pause that doubles, or that the server asks for. A signed address of a storage may expire, so
 * every attempt starts at the hub. */
#include "format/hub_http.h"

#include <curl/curl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/log.h"
#include "format/hub_names.h"
#include "format/json_scan.h"

#define URL_MAX_BYTES 16384
#define MAX_HOPS 10
#define CONNECT_TIMEOUT_S 30
#define MAX_PAUSE_MS 30000
#define MAX_RETRY_AFTER_S 300     /* a server that asks for longer is told no */
#define PROGRESS_BYTES (1u << 20) /* an attempt that brought this much was a good one */
#define MAX_IDLE_BODY (1u << 20)  /* of a page that nobody reads */

struct td_hub_http {
    const td_hub_options *opt;
    td_log log;
    CURL *curl;
    char *endpoint; /* without a slash at the end */
    char *origin;   /* "https://huggingface.co:443" */
    char *bearer;   /* the token's header, or NULL */
    bool reached;   /* a server has answered: a name that does not resolve is then a fault that may pass */
    bool told_clear_text;
};

/* One attempt of one request. */
typedef struct attempt {
    td_hub_http *http;
    const td_hub_request *request;
    td_hub_answer *answer;
    bool at_hub;      /* this hop is the hub's own */
    bool begun;       /* request->begin was called for this hop */
    size_t idle_body; /* bytes of a body that nobody reads */
    td_status failed; /* a callback's */
    td_error error;   /* of `failed` */
    bool passes;      /* what went wrong may go right the next time */
    long pause_s;     /* that the server asks for; 0: none */
} attempt;

/* ---- origins and URLs ---- */

/* *out: "scheme://host:port", lower case (td_free); NULL: not an http(s) URL. False: out of memory. */
static bool origin_of(const char *url, char **out) {
    CURLU *u = curl_url();
    char *scheme = NULL, *host = NULL, *port = NULL;
    bool ok = u != NULL;
    *out = NULL;
    if (u && curl_url_set(u, CURLUPART_URL, url, 0) == CURLUE_OK &&
        curl_url_get(u, CURLUPART_SCHEME, &scheme, 0) == CURLUE_OK &&
        curl_url_get(u, CURLUPART_HOST, &host, 0) == CURLUE_OK &&
        curl_url_get(u, CURLUPART_PORT, &port, CURLU_DEFAULT_PORT) == CURLUE_OK &&
        (strcasecmp(scheme, "https") == 0 || strcasecmp(scheme, "http") == 0)) {
        td_buf b;
        td_buf_init(&b, URL_MAX_BYTES);
        ok = td_buf_printf(&b, "%s://%s:%s", scheme, host, port) != TD_E_NOMEM;
        *out = td_buf_steal(&b);
    }
    for (char *p = *out; p && *p; p++)
        if (*p >= 'A' && *p <= 'Z')
            *p += 'a' - 'A';
    curl_free(scheme);
    curl_free(host);
    curl_free(port);
    curl_url_cleanup(u);
    return ok;
}

static bool is_secure(const char *origin) {
    return strncmp(origin, "https:", 6) == 0;
}

/* What is said to this machine is heard by nobody else. */
static bool is_this_machine(const char *origin) {
    const char *host = strstr(origin, "://") + 3;
    return strncmp(host, "127.", 4) == 0 || strncmp(host, "localhost:", 10) == 0 || strncmp(host, "[::1]:", 6) == 0;
}

char *td_hub_http_url(const td_hub_http *http, const char *a, const char *b, bool keep_slash, const char *tail) {
    static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~";
    td_buf u;
    td_buf_init(&u, URL_MAX_BYTES);
    (void)td_buf_printf(&u, "%s/%s", http->endpoint, a);
    for (; *b; b++)
        (void)((*b == '/' && keep_slash) || strchr(plain, *b) ? td_buf_putc(&u, *b)
                                                              : td_buf_printf(&u, "%%%02X", (unsigned char)*b));
    (void)td_buf_puts(&u, tail);
    return td_buf_steal(&u);
}

/* ---- what comes ---- */

static td_status attempt_failed(attempt *a, td_status st) {
    if (a->failed == TD_OK)
        a->failed = st;
    return st;
}

/* The value of header `name` when `line` is that header, trimmed, in out; false otherwise. */
static bool header_value(const char *line, size_t n, const char *name, char *out, size_t size) {
    size_t m = strlen(name);
    if (n <= m || line[m] != ':' || strncasecmp(line, name, m) != 0)
        return false;
    const char *p = line + m + 1, *end = line + n;
    while (p < end && (*p == ' ' || *p == '\t'))
        p++;
    while (end > p && (end[-1] == '\r' || end[-1] == '\n' || end[-1] == ' '))
        end--;
    if ((size_t)(end - p) >= size)
        return false;
    memcpy(out, p, (size_t)(end - p));
    out[end - p] = '\0';
    return true;
}

static bool parse_u64(const char **p, uint64_t *out) {
    const char *start = *p;
    uint64_t v = 0;
    for (; **p >= '0' && **p <= '9'; ++*p)
        if (__builtin_mul_overflow(v, 10u, &v) || __builtin_add_overflow(v, (uint64_t)(**p - '0'), &v))
            return false;
    *out = v;
    return *p > start;
}

/* W/"abc" or "abc" -> abc, when that is a checksum. */
static void keep_etag(td_hub_answer *answer, const char *value) {
    if (strncmp(value, "W/", 2) == 0)
        value += 2;
    size_t n = strlen(value);
    if (n >= 2 && value[0] == '"' && value[n - 1] == '"') {
        value++;
        n -= 2;
    }
    if (n >= sizeof answer->etag)
        return;
    char text[sizeof answer->etag];
    memcpy(text, value, n);
    text[n] = '\0';
    if (td_hub_is_hex(text, 40) || td_hub_is_hex(text, 64))
        memcpy(answer->etag, text, n + 1);
}

static void keep_range(td_hub_answer *answer, const char *value) {
    uint64_t last;
    const char *p = value + 6;
    answer->has_range = strncmp(value, "bytes ", 6) == 0 && parse_u64(&p, &answer->range_first) && *p++ == '-' &&
                        parse_u64(&p, &last) && *p++ == '/' && parse_u64(&p, &answer->range_total) && *p == '\0';
}

static void keep_size(td_hub_answer *answer, const char *value) {
    uint64_t size;
    if (parse_u64(&value, &size) && *value == '\0') {
        answer->size = size;
        answer->has_size = true;
    }
}

static size_t on_header(char *line, size_t size, size_t n, void *user) {
    attempt *a = user;
    td_hub_answer *answer = a->answer;
    char value[300];
    n *= size;
    if (a->at_hub) {
        if (header_value(line, n, "X-Repo-Commit", value, sizeof value) && td_hub_is_commit(value))
            memcpy(answer->commit, value, sizeof answer->commit);
        else if (header_value(line, n, "X-Linked-Etag", value, sizeof value) ||
                 (answer->etag[0] == '\0' && header_value(line, n, "ETag", value, sizeof value)))
            keep_etag(answer, value);
        else if (header_value(line, n, "X-Linked-Size", value, sizeof value) ||
                 (!answer->has_size && header_value(line, n, "Content-Length", value, sizeof value)))
            keep_size(answer, value);
        else if (header_value(line, n, "X-Error-Code", value, sizeof value))
            snprintf(answer->problem, sizeof answer->problem, "%.39s", value);
    }
    if (header_value(line, n, "Content-Range", value, sizeof value))
        keep_range(answer, value);
    return n;
}

static size_t on_body(char *bytes, size_t size, size_t n, void *user) {
    attempt *a = user;
    const td_hub_request *r = a->request;
    n *= size;
    curl_easy_getinfo(a->http->curl, CURLINFO_RESPONSE_CODE, &a->answer->status);
    if (a->answer->status != 200 && a->answer->status != 206) {
        a->idle_body += n;
        return a->idle_body > MAX_IDLE_BODY ? 0 : n;
    }
    td_status st = TD_OK;
    if (!a->begun && r->begin)
        st = r->begin(r->user, a->answer, &a->error);
    a->begun = true;
    if (st == TD_OK && r->body)
        st = r->body(r->user, bytes, n, &a->error);
    return attempt_failed(a, st) == TD_OK ? n : 0;
}

static int on_progress(void *user, curl_off_t dt, curl_off_t dn, curl_off_t ut, curl_off_t un) {
    attempt *a = user;
    (void)dt, (void)dn, (void)ut, (void)un;
    if (!a->request->tick || a->request->tick(a->request->user))
        return 0;
    return attempt_failed(a, td_fail(&a->error, TD_E_CANCELLED, "the download was stopped")) != TD_OK;
}

/* ---- what went wrong ---- */

/* "org/name" or "org/name: file". */
static const char *subject(const td_hub_request *r, char buf[400]) {
    char shown[TD_SHOWN_SIZE];
    if (!r->file)
        return r->repo;
    snprintf(buf, 400, "%s: %s", r->repo, td_shown(shown, r->file, strlen(r->file)));
    return buf;
}

static td_status refused_access(const attempt *a, td_error *err) {
    const td_hub_request *r = a->request;
    const char *endpoint = a->http->endpoint, *token = a->http->bearer ? "the token of HF_TOKEN" : NULL;
    if (a->answer->status == 403 || strcmp(a->answer->problem, "GatedRepo") == 0)
        return td_fail(err, TD_E_ARG, "%s: the hub asks for an accepted licence: accept it at %s/%s%s", r->repo,
                       endpoint, r->repo, token ? " with the account of HF_TOKEN" : ", and set HF_TOKEN");
    if (token)
        return td_fail(err, TD_E_ARG, "%s: the hub refuses %s (401), or there is no such repository at %s", r->repo,
                       token, endpoint);
    return td_fail(err, TD_E_ARG,
                   "%s: the hub answers 401: there is no such repository at %s, or it wants a token: set HF_TOKEN",
                   r->repo, endpoint);
}

static td_status refused(attempt *a, td_error *err) {
    char buf[400];
    const td_hub_request *r = a->request;
    long status = a->answer->status;
    if ((status == 401 || status == 403) && a->at_hub)
        return refused_access(a, err);
    if (status == 404 && a->at_hub && (r->file || strcmp(a->answer->problem, "EntryNotFound") == 0))
        return td_fail(err, TD_E_NOTFOUND, "%s: no such file at %s", subject(r, buf), a->http->endpoint);
    if (status == 404 && strcmp(a->answer->problem, "RevisionNotFound") == 0)
        return td_fail(err, TD_E_NOTFOUND, "%s: no such revision at %s", r->repo, a->http->endpoint);
    if (status == 404 && a->at_hub)
        return td_fail(err, TD_E_NOTFOUND, "%s: no such repository at %s", r->repo, a->http->endpoint);
    /* The address that a storage was given expires; servers that are busy say so. */
    a->passes = status == 408 || status == 429 || status >= 500 || (!a->at_hub && (status == 401 || status == 403));
    curl_off_t pause = 0;
    if (a->passes && curl_easy_getinfo(a->http->curl, CURLINFO_RETRY_AFTER, &pause) == CURLE_OK && pause > 0)
        a->pause_s = pause < MAX_RETRY_AFTER_S + 1 ? (long)pause : MAX_RETRY_AFTER_S + 1;
    return td_fail(err, TD_E_IO, "%s: the %s answers %ld", subject(r, buf), a->at_hub ? "hub" : "storage", status);
}

/* Faults of the line, as against those of the set-up. */
static bool may_pass(const td_hub_http *http, CURLcode code) {
    switch (code) {
    case CURLE_COULDNT_RESOLVE_HOST:
    case CURLE_COULDNT_RESOLVE_PROXY:
        return http->reached;
    case CURLE_COULDNT_CONNECT:
    case CURLE_WEIRD_SERVER_REPLY:
    case CURLE_PARTIAL_FILE:
    case CURLE_OPERATION_TIMEDOUT:
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_GOT_NOTHING:
    case CURLE_SEND_ERROR:
    case CURLE_RECV_ERROR:
    case CURLE_HTTP2:
    case CURLE_HTTP2_STREAM:
        return true;
    default:
        return false;
    }
}

static td_status line_failed(attempt *a, CURLcode code, const char *detail, td_error *err) {
    char buf[400];
    const td_hub_request *r = a->request;
    if (a->failed != TD_OK) {
        if (err)
            *err = a->error;
        return a->failed;
    }
    if (code == CURLE_WRITE_ERROR && a->idle_body > MAX_IDLE_BODY) /* it never came to an end */
        return refused(a, err);
    a->passes = may_pass(a->http, code);
    if (code == CURLE_OUT_OF_MEMORY)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", subject(r, buf));
    if (r->have && r->want && (code == CURLE_PARTIAL_FILE || code == CURLE_RECV_ERROR) && *r->have > 0)
        return td_fail(err, TD_E_IO, "%s: the connection was cut at byte %llu of %llu", subject(r, buf),
                       (unsigned long long)*r->have, (unsigned long long)*r->want);
    return td_fail(err, TD_E_IO, "%s: %s", subject(r, buf), detail[0] ? detail : curl_easy_strerror(code));
}

/* ---- one attempt ---- */

static bool may_send_token(td_hub_http *http, const char *origin) {
    if (!http->bearer || strcmp(origin, http->origin) != 0)
        return false;
    if (is_secure(origin) || is_this_machine(origin))
        return true;
    if (!http->told_clear_text)
        td_log_warn(&http->log, "the hub token is not sent to %s, which is not encrypted", http->endpoint);
    http->told_clear_text = true;
    return false;
}

static void set_protocols(CURL *c, bool secure) {
#if LIBCURL_VERSION_NUM >= 0x075500
    curl_easy_setopt(c, CURLOPT_PROTOCOLS_STR, secure ? "https" : "http,https");
#else
    curl_easy_setopt(c, CURLOPT_PROTOCOLS, (long)(CURLPROTO_HTTPS | (secure ? 0 : CURLPROTO_HTTP)));
#endif
}

static void set_options(attempt *a, const char *url, struct curl_slist *headers, char *detail) {
    CURL *c = a->http->curl;
    const td_hub_options *o = a->http->opt;
    curl_easy_reset(c); /* connections stay */
    curl_easy_setopt(c, CURLOPT_URL, url);
    curl_easy_setopt(c, CURLOPT_HTTPHEADER, headers);
    curl_easy_setopt(c, CURLOPT_USERAGENT, "tandem");
    curl_easy_setopt(c, CURLOPT_ERRORBUFFER, detail);
    curl_easy_setopt(c, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(c, CURLOPT_FOLLOWLOCATION, 0L);
    curl_easy_setopt(c, CURLOPT_SSL_VERIFYPEER, 1L);
    curl_easy_setopt(c, CURLOPT_SSL_VERIFYHOST, 2L);
    if (o->ca_file)
        curl_easy_setopt(c, CURLOPT_CAINFO, o->ca_file);
    curl_easy_setopt(c, CURLOPT_PROXY, o->proxy ? o->proxy : ""); /* "": nor one of the environment */
    curl_easy_setopt(c, CURLOPT_NOPROXY, o->no_proxy ? o->no_proxy : "");
    curl_easy_setopt(c, CURLOPT_CONNECTTIMEOUT, (long)CONNECT_TIMEOUT_S);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_LIMIT, 1L);
    curl_easy_setopt(c, CURLOPT_LOW_SPEED_TIME, (long)o->stall_s);
    curl_easy_setopt(c, CURLOPT_BUFFERSIZE, 262144L);
    curl_easy_setopt(c, CURLOPT_HEADERFUNCTION, on_header);
    curl_easy_setopt(c, CURLOPT_HEADERDATA, a);
    curl_easy_setopt(c, CURLOPT_WRITEFUNCTION, on_body);
    curl_easy_setopt(c, CURLOPT_WRITEDATA, a);
    curl_easy_setopt(c, CURLOPT_NOPROGRESS, 0L);
    curl_easy_setopt(c, CURLOPT_XFERINFOFUNCTION, on_progress);
    curl_easy_setopt(c, CURLOPT_XFERINFODATA, a);
    if (a->request->head)
        curl_easy_setopt(c, CURLOPT_NOBODY, 1L);
    set_protocols(c, is_secure(a->http->origin));
}

/* One exchange with one server. *next: where it redirects to (td_free), or NULL. */
static td_status hop(attempt *a, const char *url, char **next, td_error *err) {
    td_hub_http *http = a->http;
    char detail[CURL_ERROR_SIZE] = "", range[32], buf[400];
    *next = NULL;
    char *origin;
    if (!origin_of(url, &origin))
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", subject(a->request, buf));
    if (!origin)
        return td_fail(err, TD_E_FORMAT, "%s: the hub redirects to something that is no http(s) URL",
                       subject(a->request, buf));
    a->at_hub = strcmp(origin, http->origin) == 0;
    a->begun = false;
    a->idle_body = 0;
    if (a->at_hub) /* what the hub says last counts, what it said before a redirect to a storage stays */
        *a->answer = (td_hub_answer){0};
    a->answer->has_range = false;
    struct curl_slist *headers = may_send_token(http, origin) ? curl_slist_append(NULL, http->bearer) : NULL;
    td_free(origin);
    set_options(a, url, headers, detail);
    if (a->request->have && *a->request->have > 0) {
        snprintf(range, sizeof range, "%llu-", (unsigned long long)*a->request->have);
        curl_easy_setopt(http->curl, CURLOPT_RANGE, range);
    }
    CURLcode code = curl_easy_perform(http->curl);
    curl_slist_free_all(headers);
    if (code != CURLE_OK)
        return line_failed(a, code, detail, err);
    http->reached = true;
    curl_easy_getinfo(http->curl, CURLINFO_RESPONSE_CODE, &a->answer->status);
    char *target = NULL;
    curl_easy_getinfo(http->curl, CURLINFO_REDIRECT_URL, &target);
    if (target && a->answer->status / 100 == 3 && (*next = td_strdup(target)) == NULL)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", subject(a->request, buf));
    return TD_OK;
}

/* A redirect may go from http to https, and not back. *leaves: it goes to another server than the hub. */
static td_status check_redirect(attempt *a, const char *from, const char *to, bool *leaves, td_error *err) {
    char buf[400], shown[TD_SHOWN_SIZE], *origin;
    if (strncasecmp(from, "https:", 6) == 0 && strncasecmp(to, "https:", 6) != 0)
        return td_fail(err, TD_E_FORMAT, "%s: the server redirects to %s, which is not encrypted",
                       subject(a->request, buf), td_shown(shown, to, strlen(to)));
    if (!origin_of(to, &origin))
        return td_fail(err, TD_E_NOMEM, "%s: out of memory", subject(a->request, buf));
    *leaves = !origin || strcmp(origin, a->http->origin) != 0;
    td_free(origin);
    return TD_OK;
}

static td_status judge(attempt *a, td_error *err) {
    char buf[400];
    const td_hub_request *r = a->request;
    long status = a->answer->status;
    if (status == 416 && r->begin) {
        a->passes = true;
        TD_TRY(r->begin(r->user, a->answer, err));
        return td_fail(err, TD_E_IO, "%s: the server has no such range", subject(r, buf));
    }
    if (a->answer->moved)
        return TD_OK;
    if (status != 200 && status != 206)
        return refused(a, err);
    if (!a->begun && r->begin && !r->head) /* an empty body */
        TD_TRY(r->begin(r->user, a->answer, err));
    if (r->have && *r->have < *r->want) {
        a->passes = true;
        return td_fail(err, TD_E_IO, "%s: the body ended at byte %llu of %llu", subject(r, buf),
                       (unsigned long long)*r->have, (unsigned long long)*r->want);
    }
    return TD_OK;
}

static td_status run_attempt(attempt *a, td_error *err) {
    char buf[400];
    char *url = td_strdup(a->request->url), *next = NULL;
    td_status st = url ? TD_OK : td_fail(err, TD_E_NOMEM, "%s: out of memory", a->request->repo);
    for (int n = 0; st == TD_OK; n++) {
        st = hop(a, url, &next, err);
        if (st != TD_OK || !next)
            break;
        bool leaves = false;
        st = check_redirect(a, url, next, &leaves, err);
        if (st == TD_OK && leaves && a->request->head) {
            a->answer->moved = true;
            break;
        }
        if (st == TD_OK && n + 1 == MAX_HOPS)
            st = td_fail(err, TD_E_IO, "%s: more than %d redirects", subject(a->request, buf), MAX_HOPS);
        td_free(url);
        url = next;
        next = NULL;
    }
    td_free(next);
    td_free(url);
    return st == TD_OK ? judge(a, err) : st;
}

/* ---- attempts ---- */

static td_status nap(const td_hub_request *r, long ms, td_error *err) {
    while (ms > 0) {
        long slice = ms < 100 ? ms : 100;
        nanosleep(&(struct timespec){.tv_nsec = slice * 1000000}, NULL);
        ms -= slice;
        if (r->tick && !r->tick(r->user))
            return td_fail(err, TD_E_CANCELLED, "the download was stopped");
    }
    return TD_OK;
}

static long pause_ms(const td_hub_options *o, const attempt *a, unsigned failures) {
    uint64_t ms = (uint64_t)o->backoff_ms << (failures - 1 < 16 ? failures - 1 : 16);
    if (a->pause_s > 0)
        return a->pause_s * 1000;
    return ms < MAX_PAUSE_MS ? (long)ms : MAX_PAUSE_MS;
}

td_status td_hub_http_run(td_hub_http *http, const td_hub_request *request, td_hub_answer *answer, td_error *err) {
    const td_hub_options *o = http->opt;
    td_error local;
    err = err ? err : &local;
    for (unsigned failures = 0;;) {
        uint64_t before = request->have ? *request->have : 0;
        *answer = (td_hub_answer){0};
        attempt a = {.http = http, .request = request, .answer = answer};
        td_status st = run_attempt(&a, err);
        if (st == TD_OK || !a.passes)
            return st;
        if (request->have && *request->have >= before + PROGRESS_BYTES)
            failures = 0;
        if (++failures >= o->attempts)
            return td_error_prefix(err, st, "gave up after %u attempts", failures);
        if (a.pause_s > MAX_RETRY_AFTER_S)
            return td_error_prefix(err, st, "the server asks to come back in more than %d s", MAX_RETRY_AFTER_S);
        long ms = pause_ms(o, &a, failures);
        td_log_info(&http->log, "%s; trying again in %.1f s", err->message, (double)ms / 1000);
        TD_TRY(nap(request, ms, err));
    }
}

/* ---- life ---- */

static pthread_once_t curl_once = PTHREAD_ONCE_INIT;
static CURLcode curl_ready;

static void start_curl(void) {
    curl_ready = curl_global_init(CURL_GLOBAL_DEFAULT);
}

/* A token goes into a header line: nothing but visible ASCII. */
static td_status keep_token(td_hub_http *http, const char *token, td_error *err) {
    if (!token || !*token)
        return TD_OK;
    for (const char *p = token; *p; p++)
        if (*p <= 0x20 || *p >= 0x7F)
            return td_fail(err, TD_E_ARG, "the hub token (HF_TOKEN) has a character that no token has, at byte %td",
                           p - token);
    td_buf b;
    td_buf_init(&b, 8192);
    td_status st = td_buf_printf(&b, "Authorization: Bearer %s", token);
    http->bearer = td_buf_steal(&b);
    if (st == TD_E_LIMIT)
        return td_fail(err, TD_E_ARG, "the hub token (HF_TOKEN) is too long");
    return http->bearer ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory");
}

static td_status keep_endpoint(td_hub_http *http, const char *endpoint, td_error *err) {
    char shown[TD_SHOWN_SIZE];
    if (!endpoint || !*endpoint)
        endpoint = "https://huggingface.co";
    size_t n = strlen(endpoint);
    while (n > 0 && endpoint[n - 1] == '/')
        n--;
    http->endpoint = td_strndup(endpoint, n);
    if (!http->endpoint || !origin_of(http->endpoint, &http->origin))
        return td_fail(err, TD_E_NOMEM, "out of memory");
    if (!http->origin || !strstr(http->endpoint, "://"))
        return td_fail(err, TD_E_ARG, "the hub's endpoint is '%s', expected an http(s) URL",
                       td_shown(shown, endpoint, n));
    return TD_OK;
}

td_status td_hub_http_open(td_hub_http **out, const td_hub_options *opt, td_error *err) {
    *out = NULL;
    pthread_once(&curl_once, start_curl);
    td_hub_http *http = td_calloc(1, sizeof *http);
    if (!http)
        return td_fail(err, TD_E_NOMEM, "out of memory");
    http->opt = opt;
    http->log = (td_log){.fn = opt->log, .user = opt->user, .level = TD_LOG_DEBUG};
    http->curl = curl_ready == CURLE_OK ? curl_easy_init() : NULL;
    td_status st = http->curl ? TD_OK : td_fail(err, TD_E_NOMEM, "libcurl does not start");
    if (st == TD_OK)
        st = keep_endpoint(http, opt->endpoint, err);
    if (st == TD_OK)
        st = keep_token(http, opt->token, err);
    if (st == TD_OK)
        *out = http;
    else
        td_hub_http_close(&http);
    return st;
}

void td_hub_http_close(td_hub_http **http) {
    if (!http || !*http)
        return;
    curl_easy_cleanup((*http)->curl);
    td_free((*http)->endpoint);
    td_free((*http)->origin);
    td_free((*http)->bearer);
    td_free(*http);
    *http = NULL;
}
