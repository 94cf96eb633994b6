/* server.h - the OpenAI-compatible server: it listens, and answers with a model once it has one.
 *
 *     td_server_open(&s, &options, &err);        it listens; /health answers, everything that needs a model is a 503
 *     td_engine_open(&e, ...);
 *     td_server_start(s, &model, &err);          ready
 *     td_server_drain(s, 30);                    /ready is a 503, nothing new is taken, what runs may end
 *     td_server_close(&s);                       what still runs ends with an error
 *     td_engine_close(&e);
 *
 * Paths
 *     POST /v1/chat/completions  /v1/completions       generation (generate.h)
 *     GET  /v1/models  /v1/models/ID                    chat, completions and models without /v1, too
 *     POST /v1/embeddings, /v1/responses, /v1/messages refused, with the path to use (route_unserved.c)
 *     POST /tokenize  /detokenize                       as llama.cpp's server has them
 *     GET  /health  /ready  /props  /slots  /metrics
 *     POST /slots/ID?action=save|restore|erase          with options.slot_path
 *     GET  /                                            the chat page
 * Errors have OpenAI's shape (fault.h). */
#ifndef TD_SERVE_SERVER_H
#define TD_SERVE_SERVER_H

#include "serve/http.h"
#include "serve/request.h"

typedef struct td_server td_server;

typedef struct td_server_options {
    const char *host; /* NULL: 127.0.0.1; see td_http_options */
    uint16_t port;    /* 0: any free one */
    const char *const *api_keys;
    size_t n_api_keys; /* 0: no key is asked for */
    const char *cors_origin;
    size_t max_body_bytes;
    const char *version;   /* "0.1.0"; must outlive the server, as all text here */
    const char *slot_path; /* directory of saved conversations; NULL: saving is refused */
    bool no_metrics;       /* /metrics is a 404 */
    double keepalive;      /* seconds of silence in a stream before a comment; 0: none */
    const td_log *log;     /* or NULL */
    td_http_access_fn access;
    void *access_user;
} td_server_options;

/* max_body_bytes 64 MiB, keepalive 10 s, version "0". */
td_server_options td_server_options_default(void);

typedef struct td_server_model {
    td_engine *engine;          /* borrowed until td_server_close */
    const char *id;             /* what it is called: the answer's "model" */
    const char *const *aliases; /* [n_aliases] other names that requests may use */
    size_t n_aliases;
    td_api_defaults defaults; /* n_vocab is filled in */
    uint32_t max_queue;
} td_server_model;

/* Errors of td_http_open. */
td_status td_server_open(td_server **out, const td_server_options *opt, td_error *err) TD_MUST_CHECK;
/* Once. Errors of td_scheduler_open. `model` is copied, its texts and lists must outlive the server. */
td_status td_server_start(td_server *s, const td_server_model *model, td_error *err) TD_MUST_CHECK;
/* True when everything had ended within `seconds`. */
bool td_server_drain(td_server *s, double seconds);
void td_server_close(td_server **s);

const char *td_server_address(const td_server *s); /* "http://127.0.0.1:5413" */
uint16_t td_server_port(const td_server *s);

#endif
