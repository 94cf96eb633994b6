/* support_api.h - a small HTTP client for tests of the API: one request a connection, over loopback, bounded in time.
 */
#ifndef SUPPORT_API_H
#define SUPPORT_API_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <jansson.h>

#include "base/buf.h"

typedef struct api_reply {
    int status;   /* 0: the connection ended without one */
    char *head;   /* status line and headers */
    td_buf body;  /* chunks joined */
    json_t *json; /* of the body when it is JSON, else NULL */
    bool whole;   /* the body came to its announced end */
} api_reply;

/* Connects, sends; returns the socket. extra: further headers, each with "\r\n", or NULL. body NULL: none. */
int api_send(uint16_t port, const char *method, const char *path, const char *extra, const char *body);
/* Reads the reply to its end and closes. */
api_reply api_receive(int fd);
void api_reply_free(api_reply *r);

api_reply api_get(uint16_t port, const char *path);
api_reply api_post(uint16_t port, const char *path, const char *body);
/* The value of a header in `head`, into out; "" when absent. */
const char *api_header(const api_reply *r, const char *name, char out[128]);

/* Waits until the socket has something to read and reads some; 0 at the end, -1 after `seconds`. */
int api_read_some(int fd, char *to, size_t n, double seconds);

/* The value at "a.b.0.c"; NULL when it is not there. */
json_t *api_at(const json_t *v, const char *path);
/* The number or text there; fails the test when there is none. */
double api_number(const json_t *v, const char *path);
const char *api_text(const json_t *v, const char *path);

/* Data of the events of a stream, as a list of objects; [DONE] is the string "[DONE]". Named events are skipped unless
 * `named` is their name. */
json_t *api_events(const api_reply *r, const char *named);
/* choices[0].delta.content (or .text) of all events joined; free() it. */
char *api_stream_text(const json_t *events);

#endif
