/* http_impl.h - what the files of the HTTP layer share.
 *
 * Who does what. libmicrohttpd's threads parse requests and write replies (http_request.c, http_reply.c). One more
 * thread, the keeper (http_keeper.c), accepts connections and watches the clock. Anybody may act on an exchange.
 *
 * Locks, outermost first: td_http.lock, td_exchange.lock, then whatever libmicrohttpd takes. libmicrohttpd calls us
 * with no lock held but a response's own, which nobody else takes.
 *
 * The heart is the pair suspend/resume. libmicrohttpd asks for a reply or for more of a stream; when there is none, the
 * exchange is suspended, and whoever brings some resumes it. Both happen under td_exchange.lock together with the flag
 * `suspended` and the look at what there is, so a resume always follows its suspend, once, and none is lost.
 *
 * A socket belongs to libmicrohttpd, which closes it some time after request_completed() or connection_changed() told
 * us. Those clear `fd` under the lock, so holding the lock with fd >= 0 keeps the number from being somebody else's. */
#ifndef TD_SERVE_HTTP_IMPL_H
#define TD_SERVE_HTTP_IMPL_H

#include <microhttpd.h>
#include <pthread.h>
#include <stdatomic.h>

#include "serve/http.h"
#include "serve/http_rules.h"

#define TD_HTTP_LISTENERS 8
#define TD_HTTP_PEER 80
/* A refused body up to this size is read and dropped so that the connection lives on. */
#define TD_HTTP_DISCARD_BYTES (64 * 1024)
/* A refused longer one is read for so long after the refusal went out: closing a socket with unread bytes resets the
 * connection, and the client would lose the reply that explains. */
#define TD_HTTP_LINGER_NS 2000000000
/* Between a client's hanging up and the end of its connection: what it sent before is still read, and answered when
 * that takes no longer. */
#define TD_HTTP_HANGUP_NS 1000000000

/* Where a connection is, for the keeper. Guarded by td_http.lock. */
typedef enum td_conn_phase {
    TD_CONN_WAITING,  /* for the end of a request's headers */
    TD_CONN_BODY,     /* for the rest of a body */
    TD_CONN_ANSWERED, /* a handler or libmicrohttpd has the word: the keeper stays out */
    TD_CONN_CUT       /* refused; lingers until its deadline */
} td_conn_phase;

typedef struct td_conn {
    struct td_conn *prev, *next; /* td_http.conns; `next` also td_http.dead */
    td_exchange *exchange;       /* the current one, borrowed; NULL between requests */
    td_conn_phase phase;
    int fd;                   /* -1: dead, and only the keeper may still have its address */
    bool hung_up;             /* the client has closed, or half closed */
    bool over;                /* we have */
    int64_t deadline_ns;      /* 0: none */
    int64_t body_deadline_ns; /* of the whole body; deadline_ns may come sooner, when it stalls */
    bool uri_nul;             /* the request line holds %00. Only libmicrohttpd's thread looks */
    size_t uri_bytes;
    char peer[TD_HTTP_PEER];
} td_conn;

struct td_http {
    atomic_int refs; /* the server's own, and one for each exchange in memory */
    td_http_options opt;
    td_http_route *routes;
    char **api_keys;
    uint32_t id_key[2];
    atomic_uint_fast64_t n_ids;

    struct MHD_Daemon *daemon;
    int listeners[TD_HTTP_LISTENERS]; /* -1 when closed */
    size_t n_listeners;
    char *unix_path; /* to remove; NULL when not a Unix socket */
    uint16_t port;
    char address[160];

    pthread_mutex_t lock;
    pthread_cond_t drained; /* n_exchanges became 0 */
    td_conn *conns;
    td_conn *dead; /* to be freed by the keeper */
    td_exchange *exchanges;
    uint64_t n_exchanges;
    bool closing; /* no exchange may begin */

    pthread_t keeper;
    int wake_fd;            /* eventfd */
    int hangup_fd;          /* epoll: connections whose client hangs up */
    int64_t keeper_wake_ns; /* when the keeper will look next; INT64_MAX: when woken */
    bool keeper_stop;

    atomic_bool stopping; /* no connection is taken */
    atomic_uint_fast64_t n_connections, n_requests, n_refused, n_gone, bodies_bytes;
};

struct td_exchange {
    td_exchange *prev, *next; /* td_http.exchanges, under td_http.lock */
    td_http *http;

    /* Set when made, then never. */
    char id[72];
    char peer[TD_HTTP_PEER];
    const char *method, *path; /* in `text` */
    td_http_header *fields;    /* headers, then query arguments */
    size_t n_headers, n_fields;
    const td_http_route *route; /* NULL when refused */
    bool cors;                  /* send cross-origin headers */
    bool http10;
    int64_t started_ns;
    void *text; /* one block */

    /* Only libmicrohttpd's thread of this connection, until the handler has run. */
    td_conn *conn;
    td_buf body;
    size_t body_counted; /* in td_http.bodies_bytes */
    uint64_t body_bytes; /* received */
    bool discard;        /* what comes is dropped */
    bool handled;        /* the handler has run, or need not */

    void *data;
    void (*destroy)(void *data);

    pthread_mutex_t lock;
    unsigned refs;
    struct MHD_Connection *connection; /* NULL: libmicrohttpd has done with it */
    int fd;                            /* -1 likewise */
    bool suspended;
    bool replied; /* a status is chosen */
    bool queued;  /* and libmicrohttpd has it */
    bool streaming, ended;
    bool hung_up; /* the client has closed, or half closed: nothing is waited for */
    bool aborted;
    bool cut; /* the reply went past libmicrohttpd, which must close */
    unsigned status;
    struct MHD_Response *response; /* from the choice until it is queued */
    td_buf out;                    /* what a stream has still to send: from out_head on */
    size_t out_head;
    uint64_t sent;
    int64_t keepalive_ns, written_ns;
};

/* http_listen.c */
/* Fills listeners, address, port, unix_path from opt. On failure nothing stays open. */
td_status td_http_listen(td_http *h, td_error *err);
/* Refuses new connections at once; the keeper closes the sockets. */
void td_http_unlisten(td_http *h);
void td_http_peer_text(const void *sockaddr, char out[TD_HTTP_PEER]);

/* http_keeper.c */
td_status td_http_keeper_start(td_http *h, td_error *err);
void td_http_keeper_join(td_http *h);
/* The keeper looks again at `ns` or sooner. Under td_http.lock. */
void td_http_keeper_by(td_http *h, int64_t ns);
void td_http_keeper_wake(td_http *h);
/* Watches a new connection for a hang-up. Under td_http.lock. */
void td_http_keeper_watch(td_http *h, td_conn *c);
/* Takes a connection out before its socket is closed, and frees it when that is safe. Under td_http.lock. */
void td_http_keeper_bury(td_http *h, td_conn *c);
void td_http_keeper_free_dead(td_http *h);

/* http_request.c: libmicrohttpd's callbacks; cls is the td_http */
enum MHD_Result td_http_request(void *cls, struct MHD_Connection *connection, const char *url, const char *method,
                                const char *version, const char *upload, size_t *n_upload, void **context);
void td_http_request_completed(void *cls, struct MHD_Connection *connection, void **context,
                               enum MHD_RequestTerminationCode how);
void *td_http_request_line(void *cls, const char *uri, struct MHD_Connection *connection);

/* http_reply.c */
/* Sends a whole reply around libmicrohttpd, whose answer is not to be had while a body comes in, and marks the exchange
 * cut. Under td_http.lock and td_exchange.lock; never waits. */
void td_exchange_cut(td_exchange *x, unsigned status, const char *code, const char *message);
/* A reply for a connection that has no exchange yet: only its headers are late. Under td_http.lock. */
void td_http_cut_waiting(td_http *h, int fd);
/* ": keep-alive" when due; the time of the next, or INT64_MAX. Under td_http.lock. */
int64_t td_exchange_keepalive_due(td_exchange *x, int64_t now_ns);
td_status td_exchange_refuse(td_exchange *x, unsigned status, const char *code, const char *message,
                             const td_http_header *headers, size_t n_headers);

/* http_exchange.c */
td_exchange *td_exchange_new(td_http *h, struct MHD_Connection *connection, const char *method, const char *path);
void td_exchange_abort_locked(td_exchange *x);
void td_exchange_resume_locked(td_exchange *x);
/* The client has hung up: it gets what is there, and when that runs out the exchange is aborted. Under td_http.lock. */
void td_exchange_hung_up(td_exchange *x);

/* http.c */
void td_http_unref(td_http *h);

#endif
