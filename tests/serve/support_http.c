/* support_http.c - the raw HTTP client of the tests. */
#include "serve/support_http.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static int connect_to(int family, const void *address, size_t n) {
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0), on = 1;
    if (fd < 0)
        return -1;
    if (connect(fd, address, (socklen_t)n) != 0) {
        close(fd);
        return -1;
    }
    if (family != AF_UNIX)
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return fd;
}

client client_connect(const char *address, uint16_t port) {
    client c = {.fd = -1};
    struct sockaddr_un un = {.sun_family = AF_UNIX};
    struct sockaddr_in in = {.sin_family = AF_INET, .sin_port = htons(port)};
    struct sockaddr_in6 in6 = {.sin6_family = AF_INET6, .sin6_port = htons(port)};
    if (strncmp(address, "unix:", 5) == 0) {
        snprintf(un.sun_path, sizeof un.sun_path, "%s", address + 5);
        c.fd = connect_to(AF_UNIX, &un, sizeof un);
    } else if (inet_pton(AF_INET, address, &in.sin_addr) == 1)
        c.fd = connect_to(AF_INET, &in, sizeof in);
    else if (inet_pton(AF_INET6, address, &in6.sin6_addr) == 1)
        c.fd = connect_to(AF_INET6, &in6, sizeof in6);
    return c;
}

void client_close(client *c) {
    if (c->fd >= 0)
        close(c->fd);
    free(c->in);
    *c = (client){.fd = -1};
}

void client_reset(client *c) {
    struct linger hard = {.l_onoff = 1, .l_linger = 0};
    setsockopt(c->fd, SOL_SOCKET, SO_LINGER, &hard, sizeof hard);
    client_close(c);
}

void client_half_close(client *c) {
    shutdown(c->fd, SHUT_WR);
}

bool client_send(client *c, const void *bytes, size_t n) {
    const char *p = bytes;
    while (n > 0) {
        struct pollfd w = {.fd = c->fd, .events = POLLOUT};
        if (poll(&w, 1, CLIENT_PATIENCE_MS) <= 0)
            return false;
        ssize_t k = send(c->fd, p, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (k < 0 && errno == EAGAIN)
            continue;
        if (k <= 0)
            return false;
        p += k;
        n -= (size_t)k;
    }
    return true;
}

bool client_puts(client *c, const char *text) {
    return client_send(c, text, strlen(text));
}

bool client_drip(client *c, const char *text) {
    for (; *text; text++)
        if (!client_send(c, text, 1))
            return false;
    return true;
}

/* One more recv into `in`; false: end, error or out of patience. */
static bool more(client *c, int ms) {
    struct pollfd r = {.fd = c->fd, .events = POLLIN};
    if (c->eof || poll(&r, 1, ms) <= 0)
        return false;
    char buf[16384];
    ssize_t k = recv(c->fd, buf, sizeof buf, 0);
    if (k <= 0) {
        c->eof = true;
        return false;
    }
    c->in = realloc(c->in, c->n_in + (size_t)k + 1);
    memcpy(c->in + c->n_in, buf, (size_t)k);
    c->n_in += (size_t)k;
    c->in[c->n_in] = '\0';
    return true;
}

static void consume(client *c, size_t n) {
    memmove(c->in, c->in + n, c->n_in - n + 1);
    c->n_in -= n;
}

/* Offset behind the first `needle` of the input, reading as needed; 0: it does not come. */
static size_t find(client *c, const char *needle) {
    for (;;) {
        char *at = c->in ? memmem(c->in, c->n_in, needle, strlen(needle)) : NULL;
        if (at)
            return (size_t)(at - c->in) + strlen(needle);
        if (!more(c, CLIENT_PATIENCE_MS))
            return 0;
    }
}

static bool have(client *c, size_t n) {
    while (c->n_in < n)
        if (!more(c, CLIENT_PATIENCE_MS))
            return false;
    return true;
}

bool client_wait(client *c, const char *needle) {
    size_t n = find(c, needle);
    if (n)
        consume(c, n);
    return n > 0;
}

bool client_wait_closed(client *c) {
    while (more(c, CLIENT_PATIENCE_MS))
        ;
    return c->eof;
}

bool client_silent(client *c, int ms) {
    return c->n_in == 0 && !more(c, ms) && !c->eof;
}

/* ---- replies ---- */

const char *client_header(const client_reply *reply, const char *name, char out[256]) {
    size_t n = strlen(name);
    for (const char *line = strstr(reply->head, "\r\n"); line; line = strstr(line, "\r\n")) {
        line += 2;
        if (strncasecmp(line, name, n) != 0 || line[n] != ':')
            continue;
        const char *value = line + n + 1 + strspn(line + n + 1, " ");
        snprintf(out, 256, "%.*s", (int)strcspn(value, "\r"), value);
        return out;
    }
    return NULL;
}

static void take_body(client *c, client_reply *reply, size_t n) {
    reply->body = realloc(reply->body, reply->n_body + n + 1);
    memcpy(reply->body + reply->n_body, c->in, n);
    reply->n_body += n;
    reply->body[reply->n_body] = '\0';
    consume(c, n);
}

static void read_chunks(client *c, client_reply *reply) {
    for (;;) {
        size_t line = find(c, "\r\n");
        if (!line)
            return;
        size_t n = strtoul(c->in, NULL, 16);
        consume(c, line);
        if (!have(c, n + 2))
            return;
        take_body(c, reply, n);
        consume(c, 2);
        if (n == 0) {
            reply->whole = true;
            return;
        }
    }
}

static void read_body(client *c, client_reply *reply) {
    char value[256];
    if (client_header(reply, "Transfer-Encoding", value)) {
        read_chunks(c, reply);
    } else if (client_header(reply, "Content-Length", value)) {
        size_t n = strtoul(value, NULL, 10);
        reply->whole = have(c, n);
        take_body(c, reply, reply->whole ? n : c->n_in);
    } else if (reply->status != 204 && reply->status != 304) {
        reply->whole = client_wait_closed(c);
        if (c->n_in)
            take_body(c, reply, c->n_in);
    } else
        reply->whole = true;
}

bool client_read(client *c, client_reply *reply, bool to_head) {
    *reply = (client_reply){0};
    size_t n = find(c, "\r\n\r\n");
    if (!n)
        return false;
    reply->head = strndup(c->in, n);
    reply->body = strdup("");
    consume(c, n);
    sscanf(reply->head, "HTTP/1.1 %d", &reply->status);
    reply->whole = to_head;
    if (!to_head)
        read_body(c, reply);
    return true;
}

bool client_ask(client *c, client_reply *reply, const char *request) {
    *reply = (client_reply){0};
    return client_puts(c, request) && client_read(c, reply, strncmp(request, "HEAD ", 5) == 0);
}

void client_reply_free(client_reply *reply) {
    free(reply->head);
    free(reply->body);
    *reply = (client_reply){0};
}
