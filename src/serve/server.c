/* server.c - see server.h. */
#include "serve/server_impl.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "serve/page.h"

enum {
    MAX_ROUTES = 64,
    /* Reading a long conversation or compiling a schema keeps a thread for a while, and /health should not wait. */
    HTTP_THREADS = 4,
};

td_server_options td_server_options_default(void) {
    return (td_server_options){.max_body_bytes = (size_t)64 << 20, .keepalive = 10, .version = "0"};
}

/* ---- routes ---- */

#define JSON "application/json"

static const td_http_route routes[] = {
    {"POST", "/v1/chat/completions", TD_HTTP_BODY, JSON, td_route_chat, NULL},
    {"POST", "/chat/completions", TD_HTTP_BODY, JSON, td_route_chat, NULL},
    {"POST", "/v1/completions", TD_HTTP_BODY, JSON, td_route_completions, NULL},
    {"POST", "/completions", TD_HTTP_BODY, JSON, td_route_completions, NULL},
    {"GET", "/v1/models", 0, NULL, td_route_models, NULL},
    {"GET", "/models", 0, NULL, td_route_models, NULL},
    {"GET", "/v1/models/", TD_HTTP_PREFIX, NULL, td_route_model, NULL},
    {"POST", "/v1/embeddings", 0, NULL, td_route_unserved, NULL},
    {"POST", "/embeddings", 0, NULL, td_route_unserved, NULL},
    {"POST", "/v1/responses", 0, NULL, td_route_unserved, NULL},
    {"POST", "/responses", 0, NULL, td_route_unserved, NULL},
    {"POST", "/v1/messages", 0, NULL, td_route_unserved, NULL},
    {"POST", "/completion", 0, NULL, td_route_unserved, NULL},
    {"POST", "/tokenize", TD_HTTP_BODY, JSON, td_route_tokenize, NULL},
    {"POST", "/detokenize", TD_HTTP_BODY, JSON, td_route_detokenize, NULL},
    {"GET", "/health", TD_HTTP_OPEN, NULL, td_route_health, NULL},
    {"GET", "/ready", TD_HTTP_OPEN, NULL, td_route_ready, NULL},
    {"GET", "/props", 0, NULL, td_route_props, NULL},
    {"GET", "/slots", 0, NULL, td_route_slots, NULL},
    {"POST", "/slots/", TD_HTTP_PREFIX, NULL, td_route_slot, NULL},
    {"GET", "/metrics", TD_HTTP_OPEN, NULL, td_route_metrics, NULL},
};

/* The table above and the files of the page. */
static size_t collect_routes(td_server *s, td_http_route *out, char (*paths)[64]) {
    size_t n = 0;
    for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
        if (!s->opt.no_metrics || routes[i].handler != td_route_metrics)
            out[n++] = routes[i];
    out[n++] = (td_http_route){"GET", "/", TD_HTTP_OPEN, NULL, td_route_page, NULL};
    for (size_t i = 0; i < td_asset_file_count && n < MAX_ROUTES; i++) {
        snprintf(paths[n], sizeof paths[n], "/%s", td_asset_files[i].name);
        out[n] = (td_http_route){"GET", paths[n], TD_HTTP_OPEN, NULL, td_route_page, NULL};
        n++;
    }
    for (size_t i = 0; i < n; i++)
        out[i].user = s;
    return n;
}

static void count_reply(void *server, const td_http_access *entry) {
    td_server *s = server;
    unsigned status = entry->status < TD_HTTP_STATUS_MAX ? entry->status : 0;
    atomic_fetch_add_explicit(&s->replies[status], 1, memory_order_relaxed);
    if (s->opt.access)
        s->opt.access(s->opt.access_user, entry);
}

static td_status listen_for(td_server *s, td_error *err) {
    td_http_route all[MAX_ROUTES];
    td_http_options h = td_http_options_default();
    h.host = s->opt.host;
    h.port = s->opt.port;
    h.server = s->fingerprint;
    h.routes = all;
    h.n_routes = collect_routes(s, all, s->page_paths);
    h.api_keys = s->opt.api_keys;
    h.n_api_keys = s->opt.n_api_keys;
    h.cors_origin = s->opt.cors_origin;
    h.max_body_bytes = s->opt.max_body_bytes;
    h.n_threads = HTTP_THREADS;
    h.error_body = td_fault_http_body;
    h.access = count_reply;
    h.access_user = s;
    h.log = s->opt.log;
    return td_http_open(&s->http, &h, err);
}

/* ---- life ---- */

td_status td_server_open(td_server **out, const td_server_options *opt, td_error *err) {
    *out = NULL;
    td_server *s = td_calloc(1, sizeof *s);
    if (!s)
        return td_fail(err, TD_E_NOMEM, "out of memory for a server");
    s->opt = *opt;
    s->started_ns = td_clock_ns();
    s->created = (int64_t)time(NULL);
    snprintf(s->fingerprint, sizeof s->fingerprint, "tandem/%s", opt->version);
    pthread_rwlock_init(&s->door, NULL);
    td_status st = listen_for(s, err);
    if (st != TD_OK)
        td_server_close(&s);
    *out = s;
    return st;
}

td_status td_server_start(td_server *s, const td_server_model *model, td_error *err) {
    td_scheduler_options o = td_scheduler_options_default();
    td_scheduler *scheduler;
    o.max_queue = model->max_queue;
    TD_TRY(td_scheduler_open(&scheduler, model->engine, &o, err));
    pthread_rwlock_wrlock(&s->door);
    s->model = *model;
    s->info = td_engine_describe(model->engine);
    s->model.defaults.n_vocab = s->info->n_vocab;
    s->scheduler = scheduler;
    atomic_store(&s->state, TD_SERVER_READY);
    pthread_rwlock_unlock(&s->door);
    return TD_OK;
}

bool td_server_drain(td_server *s, double seconds) {
    atomic_store(&s->state, TD_SERVER_DRAINING);
    td_http_stop_accepting(s->http);
    return s->scheduler == NULL || td_scheduler_drain(s->scheduler, seconds);
}

void td_server_close(td_server **ps) {
    if (!ps || !*ps)
        return;
    td_server *s = *ps;
    atomic_store(&s->state, TD_SERVER_DRAINING);
    if (s->http)
        td_http_stop_accepting(s->http);
    pthread_rwlock_wrlock(&s->door);
    td_scheduler *scheduler = s->scheduler;
    s->scheduler = NULL;
    pthread_rwlock_unlock(&s->door);
    td_scheduler_close(&scheduler); /* its requests end, and say so to their clients */
    td_http_close(&s->http, 2);
    pthread_rwlock_destroy(&s->door);
    td_free(s);
    *ps = NULL;
}

const char *td_server_address(const td_server *s) {
    return td_http_address(s->http);
}

uint16_t td_server_port(const td_server *s) {
    return td_http_port(s->http);
}

/* ---- for the routes ---- */

static void turn_away(td_exchange *x, int state) {
    td_fault fault;
    bool loading = state == TD_SERVER_LOADING;
    td_fault_set(&fault, 503, loading ? "loading" : "shutting_down", NULL, "%s",
                 loading ? "the model is being loaded" : "the server is shutting down");
    fault.retry_after = loading ? 2 : 5;
    td_server_reply_fault(x, &fault);
}

td_scheduler *td_server_enter(td_server *s, td_exchange *x, bool new_work) {
    int state = atomic_load(&s->state);
    pthread_rwlock_rdlock(&s->door);
    if (s->scheduler && (!new_work || state == TD_SERVER_READY))
        return s->scheduler;
    pthread_rwlock_unlock(&s->door);
    if (x)
        turn_away(x, state);
    return NULL;
}

void td_server_leave(td_server *s) {
    pthread_rwlock_unlock(&s->door);
}

void td_server_reply_json(td_exchange *x, unsigned status, td_buf *json) {
    const char *text = td_buf_str(json);
    td_status st = TD_E_NOMEM;
    if (text)
        st = td_exchange_reply(x, status, JSON, text, json->size, NULL, 0);
    if (st == TD_E_NOMEM)
        st = td_exchange_reply_error(x, 503, "out_of_memory", "out of memory for the reply");
    (void)st;
}

void td_server_reply_fault(td_exchange *x, const td_fault *fault) {
    td_buf json;
    char seconds[16];
    td_buf_init(&json, 8192);
    td_fault_write(&json, fault);
    snprintf(seconds, sizeof seconds, "%u", fault->retry_after);
    const td_http_header header = {"Retry-After", seconds};
    const char *text = td_buf_str(&json);
    td_status st = TD_E_NOMEM;
    if (text)
        st = td_exchange_reply(x, fault->status, JSON, text, json.size, &header, fault->retry_after > 0);
    if (st == TD_E_NOMEM)
        td_exchange_abort(x);
    td_buf_free(&json);
}

static bool is_called(const char *name, const char *given) {
    const char *last = strrchr(name, '/');
    return strcmp(name, given) == 0 || (last && strcmp(last + 1, given) == 0);
}

bool td_server_serves(const td_server *s, const char *given) {
    if (!given || !*given || is_called(s->model.id, given))
        return true;
    for (size_t i = 0; i < s->model.n_aliases; i++)
        if (is_called(s->model.aliases[i], given))
            return true;
    return is_called(s->info->model_path, given);
}
