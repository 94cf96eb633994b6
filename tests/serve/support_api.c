/* support_api.c - see support_api.h. */
#include "support_api.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

enum { SECONDS = 120 };

int api_send(uint16_t port, const char *method, const char *path, const char *extra, const char *body) {
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port)};
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    if (connect(fd, (struct sockaddr *)&to, sizeof to) != 0) {
        close(fd);
        return -1;
    }
    td_buf b;
    td_buf_init(&b, (size_t)1 << 30);
    td_buf_printf(&b, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s", method, path, extra ? extra : "");
    if (body && !(extra && strcasestr(extra, "content-type:")))
        td_buf_puts(&b, "Content-Type: application/json\r\n");
    if (body)
        td_buf_printf(&b, "Content-Length: %zu\r\n", strlen(body));
    td_buf_puts(&b, "\r\n");
    td_buf_puts(&b, body ? body : "");
    for (size_t done = 0; done < b.size;) {
        ssize_t n = send(fd, b.data + done, b.size - done, MSG_NOSIGNAL);
        if (n <= 0)
            break; /* it answers before it has read everything (413) */
        done += (size_t)n;
    }
    td_buf_free(&b);
    return fd;
}

int api_read_some(int fd, char *to, size_t n, double seconds) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, (int)(seconds * 1e3)) <= 0)
        return -1;
    ssize_t got = recv(fd, to, n, 0);
    return got < 0 ? 0 : (int)got;
}

/* Chunks of a body joined; false: the last one is not there. */
static bool join_chunks(td_buf *out, const char *p, const char *end) {
    while (p < end) {
        char *after;
        unsigned long n = strtoul(p, &after, 16);
        if (after == p || after + 2 > end)
            return false;
        p = after + 2;
        if (n == 0)
            return true;
        if ((size_t)(end - p) < n + 2)
            return false;
        td_buf_append(out, p, n);
        p += n + 2;
    }
    return false;
}

api_reply api_receive(int fd) {
    api_reply r = {0};
    td_buf all;
    char some[16384], value[128];
    int n;
    td_buf_init(&all, (size_t)1 << 30);
    td_buf_init(&r.body, (size_t)1 << 30);
    td_buf_puts(&r.body, "");
    while (fd >= 0 && (n = api_read_some(fd, some, sizeof some, SECONDS)) > 0)
        td_buf_append(&all, some, (size_t)n);
    if (fd >= 0)
        close(fd);
    char *split = all.data ? strstr(all.data, "\r\n\r\n") : NULL;
    if (split) {
        r.status = atoi(all.data + strcspn(all.data, " "));
        r.head = strndup(all.data, (size_t)(split - all.data) + 2);
        const char *body = split + 4, *end = all.data + all.size;
        if (strcasecmp(api_header(&r, "Transfer-Encoding", value), "chunked") == 0)
            r.whole = join_chunks(&r.body, body, end);
        else if (*api_header(&r, "Content-Length", value)) {
            td_buf_append(&r.body, body, (size_t)(end - body));
            r.whole = (size_t)atoll(value) == r.body.size;
        } else {
            td_buf_append(&r.body, body, (size_t)(end - body));
            r.whole = true;
        }
        r.json = json_loadb(r.body.data, r.body.size, 0, NULL);
    }
    td_buf_free(&all);
    return r;
}

void api_reply_free(api_reply *r) {
    free(r->head);
    td_buf_free(&r->body);
    json_decref(r->json);
    *r = (api_reply){0};
}

api_reply api_get(uint16_t port, const char *path) {
    return api_receive(api_send(port, "GET", path, NULL, NULL));
}

api_reply api_post(uint16_t port, const char *path, const char *body) {
    return api_receive(api_send(port, "POST", path, NULL, body));
}

const char *api_header(const api_reply *r, const char *name, char out[128]) {
    size_t n = strlen(name);
    out[0] = '\0';
    for (const char *line = r->head; line && *line; line = strstr(line, "\r\n") ? strstr(line, "\r\n") + 2 : NULL)
        if (strncasecmp(line, name, n) == 0 && line[n] == ':') {
            const char *v = line + n + 1;
            v += strspn(v, " ");
            snprintf(out, 128, "%.*s", (int)strcspn(v, "\r\n"), v);
        }
    return out;
}

json_t *api_at(const json_t *v, const char *path) {
    char key[64];
    while (v && *path) {
        size_t n = strcspn(path, ".");
        snprintf(key, sizeof key, "%.*s", (int)n, path);
        v = json_is_array(v) ? json_array_get(v, (size_t)atoi(key)) : json_object_get(v, key);
        path += n + (path[n] == '.');
    }
    return (json_t *)(uintptr_t)v;
}

static void show_missing(const json_t *v, const char *path) {
    char *text = v ? json_dumps(v, 0) : NULL;
    print_error("no %s in %s\n", path, text ? text : "nothing");
    free(text);
    fail();
}

double api_number(const json_t *v, const char *path) {
    const json_t *at = api_at(v, path);
    if (!json_is_number(at))
        show_missing(v, path);
    return json_number_value(at);
}

const char *api_text(const json_t *v, const char *path) {
    const json_t *at = api_at(v, path);
    if (!json_is_string(at))
        show_missing(v, path);
    return json_string_value(at);
}

/* ---- streams ---- */

static void take_event(json_t *list, const char *event, size_t n, const char *named) {
    const char *data = memmem(event, n, "data: ", 6);
    bool has_name = strncmp(event, "event: ", 7) == 0;
    bool wanted = named ? has_name && strncmp(event + 7, named, strlen(named)) == 0 : !has_name;
    if (!data || !wanted || event[0] == ':')
        return;
    size_t size = n - (size_t)(data + 6 - event);
    if (size == 6 && memcmp(data + 6, "[DONE]", 6) == 0) {
        json_array_append_new(list, json_string("[DONE]"));
        return;
    }
    json_t *v = json_loadb(data + 6, size, 0, NULL);
    if (!v)
        fail_msg("an event that is no JSON: %.*s", (int)n, event);
    json_array_append_new(list, v);
}

json_t *api_events(const api_reply *r, const char *named) {
    json_t *list = json_array();
    for (const char *p = r->body.data, *end; (end = strstr(p, "\n\n")); p = end + 2)
        take_event(list, p, (size_t)(end - p), named);
    return list;
}

char *api_stream_text(const json_t *events) {
    td_buf b;
    td_buf_init(&b, (size_t)1 << 30);
    td_buf_puts(&b, "");
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *v = json_array_get(events, i);
        const char *content = json_string_value(api_at(v, "choices.0.delta.content"));
        const char *text = json_string_value(api_at(v, "choices.0.text"));
        td_buf_puts(&b, content ? content : text ? text : "");
    }
    char *copy = strdup(b.data);
    td_buf_free(&b);
    return copy;
}
