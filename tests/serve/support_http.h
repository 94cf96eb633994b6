/* support_http.h - an HTTP client for tests that can misbehave: send byte by byte, stop anywhere, vanish. Raw sockets,
 * loopback only; every wait ends after CLIENT_PATIENCE_MS with a failure and not with a hang. */
#ifndef TD_TESTS_SUPPORT_HTTP_H
#define TD_TESTS_SUPPORT_HTTP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define CLIENT_PATIENCE_MS 20000

typedef struct client {
    int fd;
    char *in; /* received and not yet consumed, NUL-terminated */
    size_t n_in;
    bool eof;
} client;

/* fd -1 on failure. `address` is "127.0.0.1", "::1" or "unix:/path". */
client client_connect(const char *address, uint16_t port);
void client_close(client *c);
void client_reset(client *c); /* leaves with RST */
void client_half_close(client *c);

bool client_send(client *c, const void *bytes, size_t n);
bool client_puts(client *c, const char *text);
bool client_drip(client *c, const char *text); /* one byte a packet */

typedef struct client_reply {
    int status;
    char *head; /* status line and headers */
    char *body; /* chunks joined; NUL-terminated */
    size_t n_body;
    bool whole; /* it ended as its framing says */
} client_reply;

/* Reads one reply off the connection; more may follow. False: none came. */
bool client_read(client *c, client_reply *reply, bool to_head);
/* client_puts and client_read: the common case. */
bool client_ask(client *c, client_reply *reply, const char *request);
/* The value of a header, in `out`; NULL when absent. */
const char *client_header(const client_reply *reply, const char *name, char out[256]);
void client_reply_free(client_reply *reply);

/* Reads until the unconsumed input holds `needle`, which it then starts behind. */
bool client_wait(client *c, const char *needle);
/* Reads until the end of the connection; false when it does not come. */
bool client_wait_closed(client *c);
/* Nothing arrives within `ms`. */
bool client_silent(client *c, int ms);

#endif
