/* http_listen.c - the sockets listened on. A name may stand for several addresses ("localhost": IPv4 and IPv6); all
 * that the machine has are taken, on one port. */
#include "serve/http_impl.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/alloc.h"

#define BACKLOG 1024
#define PORT_TRIES 8 /* a free port of one address may be taken on the next */

static td_status fail_errno(td_error *err, const char *where, int code) {
    char reason[128];
    snprintf(reason, sizeof reason, "%s", strerror(code));
    reason[0] = (char)tolower((unsigned char)reason[0]);
    return td_fail(err, TD_E_IO, "%s: %s", where, reason);
}

static void unlisten_all(td_http *h) {
    for (size_t i = 0; i < h->n_listeners; i++)
        close(h->listeners[i]);
    h->n_listeners = 0;
}

void td_http_peer_text(const void *sockaddr, char out[TD_HTTP_PEER]) {
    const struct sockaddr *any = sockaddr;
    char host[INET6_ADDRSTRLEN];
    if (any && any->sa_family == AF_INET) {
        const struct sockaddr_in *in = sockaddr;
        inet_ntop(AF_INET, &in->sin_addr, host, sizeof host);
        snprintf(out, TD_HTTP_PEER, "%s:%u", host, (unsigned)ntohs(in->sin_port));
    } else if (any && any->sa_family == AF_INET6) {
        const struct sockaddr_in6 *in = sockaddr;
        bool v4 = IN6_IS_ADDR_V4MAPPED(&in->sin6_addr);
        inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? (const void *)&in->sin6_addr.s6_addr[12] : &in->sin6_addr, host,
                  sizeof host);
        snprintf(out, TD_HTTP_PEER, v4 ? "%s:%u" : "[%s]:%u", host, (unsigned)ntohs(in->sin6_port));
    } else
        snprintf(out, TD_HTTP_PEER, "unix");
}

/* ---- Unix sockets ---- */

/* A socket file nobody listens on any more. */
static bool is_stale(const struct sockaddr_un *name) {
    struct stat st;
    if (lstat(name->sun_path, &st) != 0 || !S_ISSOCK(st.st_mode))
        return false;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    bool stale = fd >= 0 && connect(fd, (const struct sockaddr *)name, sizeof *name) != 0 && errno == ECONNREFUSED;
    if (fd >= 0)
        close(fd);
    return stale;
}

static bool bind_unix(int fd, const struct sockaddr_un *name) {
    if (bind(fd, (const struct sockaddr *)name, sizeof *name) == 0)
        return true;
    if (errno != EADDRINUSE)
        return false;
    if (is_stale(name) && unlink(name->sun_path) == 0)
        return bind(fd, (const struct sockaddr *)name, sizeof *name) == 0;
    errno = EADDRINUSE;
    return false;
}

static td_status listen_unix(td_http *h, const char *path, td_error *err) {
    struct sockaddr_un name = {.sun_family = AF_UNIX};
    if (!*path || strlen(path) >= sizeof name.sun_path)
        return td_fail(err, TD_E_ARG, "unix:%.120s: the path must have 1 to %zu bytes", path, sizeof name.sun_path - 1);
    strcpy(name.sun_path, path);
    snprintf(h->address, sizeof h->address, "unix:%s", path);
    h->unix_path = td_strdup(path);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (!h->unix_path || fd < 0 || !bind_unix(fd, &name) || listen(fd, BACKLOG) != 0) {
        int code = h->unix_path ? errno : ENOMEM;
        if (fd >= 0)
            close(fd);
        td_free(h->unix_path);
        h->unix_path = NULL;
        return fail_errno(err, h->address, code);
    }
    h->listeners[h->n_listeners++] = fd;
    return TD_OK;
}

/* ---- TCP ---- */

static void set_port(struct sockaddr *address, uint16_t port) {
    if (address->sa_family == AF_INET)
        ((struct sockaddr_in *)address)->sin_port = htons(port);
    else
        ((struct sockaddr_in6 *)address)->sin6_port = htons(port);
}

static uint16_t bound_port(int fd) {
    struct sockaddr_storage address = {0};
    socklen_t n = sizeof address;
    getsockname(fd, (struct sockaddr *)&address, &n);
    return ntohs(address.ss_family == AF_INET ? ((struct sockaddr_in *)&address)->sin_port
                                              : ((struct sockaddr_in6 *)&address)->sin6_port);
}

/* "::" serves IPv4 too; any other IPv6 address serves itself alone. */
static bool is_any6(const struct addrinfo *a) {
    return a->ai_family == AF_INET6 && IN6_IS_ADDR_UNSPECIFIED(&((struct sockaddr_in6 *)a->ai_addr)->sin6_addr);
}

/* -1 with errno. */
static int listen_on(const struct addrinfo *a) {
    int fd = socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -1;
    int on = 1, only6 = !is_any6(a);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    if (a->ai_family == AF_INET6)
        setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &only6, sizeof only6);
    if (bind(fd, a->ai_addr, a->ai_addrlen) == 0 && listen(fd, BACKLOG) == 0)
        return fd;
    int code = errno;
    close(fd);
    errno = code;
    return -1;
}

/* 0, or the errno of the first address that matters: one the machine does not have does not, beside one it has. */
static int listen_all(td_http *h, struct addrinfo *list) {
    int absent = EADDRNOTAVAIL;
    h->port = h->opt.port;
    for (struct addrinfo *a = list; a && h->n_listeners < TD_HTTP_LISTENERS; a = a->ai_next) {
        if (a->ai_family != AF_INET && a->ai_family != AF_INET6)
            continue;
        set_port(a->ai_addr, h->port);
        int fd = listen_on(a);
        if (fd >= 0) {
            h->listeners[h->n_listeners++] = fd;
            h->port = bound_port(fd);
        } else if (errno == EADDRNOTAVAIL || errno == EAFNOSUPPORT) {
            absent = errno;
        } else
            return errno;
    }
    return h->n_listeners ? 0 : absent;
}

static td_status listen_tcp(td_http *h, const char *host, td_error *err) {
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM, .ai_flags = AI_PASSIVE}, *list = NULL;
    int rc = getaddrinfo(host, NULL, &hints, &list);
    if (rc != 0)
        return td_fail(err, TD_E_IO, "%.100s: %s", host, rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
    int code = EADDRINUSE;
    for (int i = 0; i < (h->opt.port ? 1 : PORT_TRIES) && code == EADDRINUSE; i++) {
        unlisten_all(h);
        code = listen_all(h, list);
    }
    freeaddrinfo(list);
    const char *form = strchr(host, ':') ? "http://[%.100s]:%u" : "http://%.100s:%u";
    snprintf(h->address, sizeof h->address, form, host, (unsigned)h->port);
    if (code == 0)
        return TD_OK;
    unlisten_all(h);
    return fail_errno(err, h->address + strlen("http://"), code);
}

td_status td_http_listen(td_http *h, td_error *err) {
    const char *host = h->opt.host ? h->opt.host : "127.0.0.1";
    if (strncmp(host, "unix:", 5) == 0)
        return listen_unix(h, host + 5, err);
    return listen_tcp(h, host, err);
}

/* A shut down listener refuses at once; the number is closed by the thread that polls it. */
void td_http_unlisten(td_http *h) {
    pthread_mutex_lock(&h->lock);
    if (h->unix_path)
        unlink(h->unix_path);
    td_free(h->unix_path);
    h->unix_path = NULL;
    for (size_t i = 0; i < h->n_listeners; i++)
        shutdown(h->listeners[i], SHUT_RDWR);
    pthread_mutex_unlock(&h->lock);
    td_http_keeper_wake(h);
}
