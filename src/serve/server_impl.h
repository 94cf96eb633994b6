/* server_impl.h - the inside of the server, for the files of its routes. */
#ifndef TD_SERVE_SERVER_IMPL_H
#define TD_SERVE_SERVER_IMPL_H

#include <pthread.h>
#include <stdatomic.h>

#include "serve/fault.h"
#include "serve/json_out.h"
#include "serve/server.h"

typedef enum td_server_state { TD_SERVER_LOADING, TD_SERVER_READY, TD_SERVER_DRAINING } td_server_state;

enum { TD_HTTP_STATUS_MAX = 600 };

struct td_server {
    td_server_options opt;
    td_http *http;
    int64_t started_ns; /* td_clock_ns */
    int64_t created;    /* seconds since 1970 */
    char fingerprint[64];
    char page_paths[64][64]; /* of routes, which borrow them */
    atomic_int state;        /* td_server_state */
    /* Set before state is READY, and not changed: read only by who has entered or seen READY. */
    td_server_model model;
    const td_engine_info *info;
    /* The scheduler goes away under handlers that may still run: they enter, and closing waits for them. */
    pthread_rwlock_t door;
    td_scheduler *scheduler;                   /* NULL: not there (yet, or any more) */
    atomic_ullong replies[TD_HTTP_STATUS_MAX]; /* by HTTP status; 0: the client left before */
};

/* The scheduler, held until td_server_leave; NULL when there is none, or the server drains and it is for `new_work`.
 * `x` has had its 503 then; it may be NULL. */
td_scheduler *td_server_enter(td_server *s, td_exchange *x, bool new_work);
void td_server_leave(td_server *s);

/* Replies. The exchange is then done; that the client has gone is nobody's trouble. */
void td_server_reply_json(td_exchange *x, unsigned status, td_buf *json);
void td_server_reply_fault(td_exchange *x, const td_fault *fault);

/* True when a request may call the served model so: its id, an alias, the last part of either, or nothing. */
bool td_server_serves(const td_server *s, const char *name);

/* A route's handler; `user` is the td_server. */
void td_route_chat(void *server, td_exchange *x);        /* generate.c */
void td_route_completions(void *server, td_exchange *x); /* generate.c */
void td_route_models(void *server, td_exchange *x);      /* route_models.c */
void td_route_model(void *server, td_exchange *x);
void td_route_tokenize(void *server, td_exchange *x); /* route_tokens.c */
void td_route_detokenize(void *server, td_exchange *x);
void td_route_health(void *server, td_exchange *x); /* route_state.c */
void td_route_ready(void *server, td_exchange *x);
void td_route_props(void *server, td_exchange *x);
void td_route_slots(void *server, td_exchange *x); /* route_slots.c */
void td_route_slot(void *server, td_exchange *x);
void td_route_metrics(void *server, td_exchange *x);  /* route_metrics.c */
void td_route_unserved(void *server, td_exchange *x); /* route_unserved.c */
void td_route_page(void *server, td_exchange *x);     /* route_page.c */

#endif
