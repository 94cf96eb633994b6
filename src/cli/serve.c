/* serve.c - tandem serve: the server as a program.
 *
 * It listens before it loads, so that /health answers from the start and a port that is taken is noticed before minutes
 * of loading. SIGINT and SIGTERM: nothing new is taken, what runs may end within --drain-seconds, then it stops; a
 * second signal stops it at once. SIGHUP: the log file is opened anew. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/memory.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/report.h"
#include "cli/serve_log.h"
#include "cli/signals.h"
#include "serve/json_out.h"
#include "serve/server.h"

typedef struct serve_args {
    td_model_args model;
    td_sampling_args sampling;
    td_arg_text host, api_key_file, cors, slot_path, log_format, log_file, thinking;
    td_arg_texts api_key, alias;
    td_arg_uint port, max_tokens, max_n, max_queue, body_limit_mb;
    td_arg_float timeout, drain_seconds;
    td_arg_flag no_metrics, allow_synthetic;
} serve_args;

#define S(field) offsetof(serve_args, field)
static const td_arg server_table[] = {
    {"host", 0, TD_ARG_TEXT, S(host), 0, 0, "ADDRESS", "address to listen on, or unix:/path (default 127.0.0.1)"},
    {"port", 'p', TD_ARG_UINT, S(port), 0, 65535, "N", "port; 0 takes any that is free (default 5413)"},
    {"api-key", 0, TD_ARG_TEXTS, S(api_key), 0, 0, "KEY",
     "requests must carry it; may be repeated (also TANDEM_API_KEY)"},
    {"api-key-file", 0, TD_ARG_TEXT, S(api_key_file), 0, 0, "FILE", "the same, a key a line"},
    {"cors", 0, TD_ARG_TEXT, S(cors), 0, 0, "ORIGIN", "web pages of this origin may use it; * is any"},
    {"alias", 0, TD_ARG_TEXTS, S(alias), 0, 0, "NAME",
     "what the model is called; may be repeated, the first one is shown"},
    {"parallel", 0, TD_ARG_UINT, S(model.parallel), 1, 1024, "N", "answers at the same time (default 4)"},
    {"max-queue", 0, TD_ARG_UINT, S(max_queue), 1, 1000000, "N", "answers that may wait; more is a 429 (default 256)"},
    {"cache-mb", 0, TD_ARG_UINT, S(model.cache_mb), 0, 1 << 24, "N",
     "memory for keys of earlier prompts (default: an eighth of what is free, at most 4096)"},
    {"slot-save-path", 0, TD_ARG_TEXT, S(slot_path), 0, 0, "DIR", "where conversations may be saved"},
    {"timeout", 0, TD_ARG_FLOAT, S(timeout), 0, 1e6, "SECONDS", "an answer may take so long; 0: no limit (default 0)"},
    {"body-limit-mb", 0, TD_ARG_UINT, S(body_limit_mb), 1, 4096, "N", "largest request (default 64)"},
    {"drain-seconds", 0, TD_ARG_FLOAT, S(drain_seconds), 0, 1e6, "SECONDS",
     "how long running answers may go on after SIGTERM (default 30)"},
    {"no-metrics", 0, TD_ARG_FLAG, S(no_metrics), 0, 0, NULL, "no /metrics"},
    {"allow-synthetic", 0, TD_ARG_FLAG, S(allow_synthetic), 0, 0, NULL,
     "serve a model of random weights, to measure the server"},
    {"log-format", 0, TD_ARG_CHOICE, S(log_format), 0, 0, "text|json", "of the log, and of the line that says ready"},
    {"log-file", 0, TD_ARG_TEXT, S(log_file), 0, 0, "FILE", "instead of standard error; SIGHUP opens it anew"},
};
static const td_arg request_table[] = {
    {"max-tokens", 'n', TD_ARG_UINT, S(max_tokens), 0, INT32_MAX, "N",
     "tokens of an answer, 0: until the context is full (default 2048)"},
    {"max-n", 0, TD_ARG_UINT, S(max_n), 1, 128, "N", "answers a request may ask for (default 16)"},
    {"thinking", 0, TD_ARG_CHOICE, S(thinking), 0, 0, "on|off", "whether models think first (default: the template's)"},
};
#undef S

#define COUNT(table) (sizeof table / sizeof *table)
#define MAX_KEY_FILE ((size_t)1 << 20)
#define MANY_FILES 65536

static const char command[] = "tandem serve";

static volatile sig_atomic_t hung_up;

static void on_hangup(int number) {
    (void)number;
    hung_up = 1;
}

/* ---- keys ---- */

typedef struct keys {
    const char **list; /* [n] */
    size_t n;
    char *file; /* what the file held, cut into keys */
} keys;

static void keys_free(keys *k) {
    td_free(k->list);
    td_free(k->file);
}

static bool keys_add(keys *k, const char *key) {
    const char **grown = td_realloc(k->list, k->n + 1, sizeof *grown);
    if (!grown)
        return false;
    k->list = grown;
    k->list[k->n++] = key;
    return true;
}

static td_status keys_from_file(keys *k, const char *path, td_error *err) {
    size_t size;
    TD_TRY(td_file_read(path, MAX_KEY_FILE, &k->file, &size, err));
    char *state = NULL;
    size_t before = k->n;
    for (char *line = strtok_r(k->file, "\r\n", &state); line; line = strtok_r(NULL, "\r\n", &state)) {
        line += strspn(line, " \t");
        line[strcspn(line, " \t")] = '\0';
        if (*line && *line != '#' && !keys_add(k, line))
            return td_fail(err, TD_E_NOMEM, "out of memory for the keys");
    }
    return k->n > before ? TD_OK : td_fail(err, TD_E_ARG, "%s: no key in it, expected one a line", path);
}

/* A key that is given and empty would let everybody in: it is a mistake. */
static td_status keys_collect(keys *k, const serve_args *args, td_error *err) {
    const char *env = getenv("TANDEM_API_KEY");
    *k = (keys){0};
    for (size_t i = 0; i < args->api_key.n; i++) {
        if (!*args->api_key.v[i])
            return td_fail(err, TD_E_ARG, "--api-key is empty, expected a key");
        if (!keys_add(k, args->api_key.v[i]))
            return td_fail(err, TD_E_NOMEM, "out of memory for the keys");
    }
    if (env && *env && !keys_add(k, env))
        return td_fail(err, TD_E_NOMEM, "out of memory for the keys");
    return args->api_key_file.given ? keys_from_file(k, args->api_key_file.v, err) : TD_OK;
}

/* ---- what is served ---- */

typedef struct service {
    const serve_args *args;
    keys keys;
    td_serve_log *log;
    td_server *server;
    td_opened opened;
    td_logit_bias *biases;
    const char **names; /* other names of the model */
    td_server_model model;
} service;

/* "name" of "/a/b/name/". */
static const char *base_name(char *path) {
    size_t n = strlen(path);
    while (n > 1 && path[n - 1] == '/')
        path[--n] = '\0';
    const char *slash = strrchr(path, '/');
    return slash && slash[1] ? slash + 1 : path;
}

/* The first alias, else a hub id as it was given, else the directory's name; whatever it is not called then still
 * reaches it. */
static bool name_model(service *v) {
    const serve_args *a = v->args;
    size_t n = 0;
    v->names = td_calloc(a->alias.n + 2, sizeof *v->names);
    if (!v->names)
        return false;
    bool is_path = !a->model.model.given || td_dir_exists(a->model.model.v) || td_file_exists(a->model.model.v);
    for (size_t i = 1; i < a->alias.n; i++)
        v->names[n++] = a->alias.v[i];
    if (a->model.model.given)
        v->names[n++] = a->model.model.v;
    v->model.id = a->alias.n ? a->alias.v[0] : is_path ? base_name(v->opened.trunk) : a->model.model.v;
    v->model.aliases = v->names;
    v->model.n_aliases = n;
    return true;
}

static bool set_defaults(service *v) {
    const serve_args *a = v->args;
    td_api_defaults *d = &v->model.defaults;
    v->biases = td_calloc(a->sampling.logit_bias.n, sizeof *v->biases);
    if (!v->biases ||
        !td_sampling_of(&a->sampling, td_engine_sampling(v->opened.engine), command, v->biases, &d->sampling))
        return false;
    d->has_seed = a->sampling.seed.given;
    d->max_tokens = a->max_tokens.given ? (uint32_t)a->max_tokens.v : 2048;
    d->max_n = a->max_n.given ? (uint32_t)a->max_n.v : 16;
    d->time_limit = a->timeout.v;
    d->stop = a->sampling.stop.v;
    d->n_stop = a->sampling.stop.n;
    if (a->thinking.given)
        d->thinking = strcmp(a->thinking.v, "on") == 0 ? TD_CHAT_THINKING_ON : TD_CHAT_THINKING_OFF;
    v->model.max_queue = a->max_queue.given ? (uint32_t)a->max_queue.v : 256;
    return true;
}

/* ---- the line that says ready ---- */

static void print_ready_json(const service *v) {
    const td_engine_info *i = v->opened.info;
    td_buf line;
    td_buf_init(&line, 1 << 16);
    td_json_out o = td_json_out_to(&line);
    td_out_begin(&o, '{');
    td_out_member_str(&o, "event", "ready");
    td_out_member_str(&o, "model", v->model.id);
    td_out_member_str(&o, "address", td_server_address(v->server));
    td_out_member_int(&o, "port", td_server_port(v->server));
    td_out_member_str(&o, "engine", "tandem");
    td_out_key(&o, "mtp");
    td_out_begin(&o, '{');
    td_out_member_bool(&o, "active", i->mtp_active);
    td_out_member_str(&o, "kind", i->mtp_kind);
    td_out_member_str(&o, "reason", i->mtp_active ? NULL : i->mtp_reason);
    td_out_member_int(&o, "depth", i->mtp_active ? i->mtp_depth : 0);
    td_out_end(&o, '}');
    td_out_end(&o, '}');
    puts(td_buf_str(&line) ? line.data : "{\"event\":\"ready\"}");
    td_buf_free(&line);
}

static bool wants_json(const serve_args *a) {
    return a->log_format.given && strcmp(a->log_format.v, "json") == 0;
}

static void print_ready(const service *v) {
    const td_engine_info *i = v->opened.info;
    if (wants_json(v->args))
        print_ready_json(v);
    else if (i->mtp_active)
        printf("tandem: serving %s at %s (mtp: %s, %s%u drafts a round)\n", v->model.id, td_server_address(v->server),
               i->mtp_kind, i->mtp_auto ? "up to " : "", i->mtp_depth);
    else
        printf("tandem: serving %s at %s (mtp: off, %s)\n", v->model.id, td_server_address(v->server), i->mtp_reason);
    td_report_flush();
}

/* ---- running ---- */

/* A connection is a descriptor, and shells give a thousand of them where the system would give many more. */
static void raise_file_limit(void) {
    struct rlimit files;
    if (getrlimit(RLIMIT_NOFILE, &files) != 0 || files.rlim_cur >= MANY_FILES)
        return;
    files.rlim_cur = files.rlim_max < MANY_FILES ? files.rlim_max : MANY_FILES;
    (void)setrlimit(RLIMIT_NOFILE, &files); /* what there is has to do */
}

static td_status listen_first(service *v, td_error *err) {
    const serve_args *a = v->args;
    td_server_options o = td_server_options_default();
    o.host = a->host.v;
    o.port = a->port.given ? (uint16_t)a->port.v : 5413;
    o.api_keys = v->keys.list;
    o.n_api_keys = v->keys.n;
    o.cors_origin = a->cors.v;
    if (a->body_limit_mb.given)
        o.max_body_bytes = (size_t)a->body_limit_mb.v << 20;
    o.version = TD_VERSION;
    o.slot_path = a->slot_path.v;
    o.no_metrics = a->no_metrics.given;
    o.log = td_serve_log_messages(v->log);
    o.access = td_serve_log_access;
    o.access_user = v->log;
    if (o.slot_path && !td_dir_exists(o.slot_path))
        return td_fail(err, TD_E_NOTFOUND, "--slot-save-path %s: there is no such directory", o.slot_path);
    if (o.slot_path && access(o.slot_path, W_OK) != 0)
        td_log_warn(o.log, "--slot-save-path %s cannot be written to: conversations can be restored, not saved",
                    o.slot_path);
    return td_server_open(&v->server, &o, err);
}

static void warn_if_open_to_all(const service *v) {
    const char *host = v->args->host.v;
    bool local = !host || strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0 || strcmp(host, "localhost") == 0 ||
                 strncmp(host, "unix:", 5) == 0;
    if (!local && v->keys.n == 0)
        td_log_warn(td_serve_log_messages(v->log), "anybody who reaches %s may use it: there is no --api-key",
                    td_server_address(v->server));
}

static void wait_for_signal(service *v) {
    const struct timespec nap = {.tv_nsec = 200000000};
    while (!td_interrupted()) {
        nanosleep(&nap, NULL); /* signals cut it short on this thread, not on others */
        if (hung_up) {
            hung_up = 0;
            td_serve_log_reopen(v->log);
        }
    }
}

static void stop(service *v) {
    const td_log *log = td_serve_log_messages(v->log);
    double seconds = v->args->drain_seconds.given ? v->args->drain_seconds.v : 30;
    td_log_info(log, "stopping: running answers have %g seconds", seconds);
    if (!td_server_drain(v->server, seconds))
        td_log_warn(log, "answers were cut off after %g seconds", seconds);
    td_server_close(&v->server);
    td_log_info(log, "stopped");
}

static int load_and_serve(service *v) {
    td_error err = {0};
    int rc = td_open_engine(&v->opened, &v->args->model);
    if (rc != TD_EXIT_OK)
        return rc;
    if (!set_defaults(v) || !name_model(v))
        return TD_EXIT_USAGE;
    v->model.engine = v->opened.engine;
    td_status st = td_server_start(v->server, &v->model, &err);
    if (st != TD_OK)
        return td_report_failure(st, &err);
    print_ready(v);
    td_log_info(td_serve_log_messages(v->log), "ready: %s", v->model.id);
    wait_for_signal(v);
    stop(v);
    return TD_EXIT_OK;
}

static int serve_with_log(service *v) {
    td_error err = {0};
    td_status st = keys_collect(&v->keys, v->args, &err);
    if (st == TD_OK)
        st = listen_first(v, &err);
    if (st != TD_OK)
        return td_report_failure(st, &err);
    warn_if_open_to_all(v);
    td_log_info(td_serve_log_messages(v->log), "listening at %s", td_server_address(v->server));
    return load_and_serve(v);
}

static uint64_t default_cache_mb(void) {
    uint64_t mb = td_memory_available() >> 23; /* an eighth, in MiB */
    return mb < 4096 ? mb : 4096;
}

static td_log_level wanted_level(const serve_args *a) {
    return a->model.quiet.given ? TD_LOG_WARN : a->model.verbose.given ? TD_LOG_DEBUG : TD_LOG_INFO;
}

static int serve(serve_args *args) {
    struct sigaction hangup = {.sa_handler = on_hangup, .sa_flags = SA_RESTART};
    service v = {.args = args};
    td_error err = {0};
    td_status st = td_serve_log_open(&v.log, args->log_file.v, wants_json(args), wanted_level(args), &err);
    if (st != TD_OK)
        return td_report_failure(st, &err);
    sigaction(SIGHUP, &hangup, NULL);
    raise_file_limit();
    args->model.synthetic = args->allow_synthetic.given ? TD_SYNTHETIC_WARNED : TD_SYNTHETIC_REFUSED;
    if (!args->model.parallel.given)
        args->model.parallel = (td_arg_uint){true, 4};
    if (!args->model.cache_mb.given)
        args->model.cache_mb = (td_arg_uint){true, default_cache_mb()};
    args->model.log = td_serve_log_messages(v.log);
    int rc = serve_with_log(&v);
    td_server_close(&v.server);
    td_close_engine(&v.opened);
    td_serve_log_close(&v.log);
    td_free(v.biases);
    td_free(v.names);
    keys_free(&v.keys);
    return rc;
}

int td_command_serve(int argc, char **argv) {
    serve_args args = {0};
    const td_arg_group groups[] = {
        {"Server", server_table, COUNT(server_table), &args},
        {"Requests that do not say otherwise", request_table, COUNT(request_table), &args},
        {"Sampling, likewise (default: as the model's publisher recommends, with random seeds)", td_sampling_arg_table,
         td_sampling_arg_count, &args.sampling},
        {"Model", td_model_arg_table, td_model_arg_count, &args.model},
    };
    const td_args spec = {
        .command = command,
        .synopsis = "[OPTIONS]",
        .about =
            "Serves a model with OpenAI's API: /v1/chat/completions, /v1/completions, /v1/models; a chat page at /.\n"
            "Also /health, /ready, /props, /slots, /metrics, /tokenize, /detokenize.",
        .groups = groups,
        .n_groups = 4,
    };
    td_args_result parsed = td_args_parse(&spec, argc, argv);
    int rc = parsed == TD_ARGS_OK ? serve(&args) : parsed == TD_ARGS_HELP ? TD_EXIT_OK : TD_EXIT_USAGE;
    td_args_free(&spec);
    return rc;
}
