/* serve_log.c - see serve_log.h. A line is made whole and written with one call, so that lines of several threads, and
 * of several servers with one file, do not mix. */
#include "cli/serve_log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "cli/progress.h"
#include "serve/json_out.h"

#define MAX_LINE ((size_t)1 << 16)

struct td_serve_log {
    pthread_mutex_t lock; /* guards fd */
    int fd;
    char *path; /* NULL: stderr */
    bool json;
    td_log messages;
};

static const char *const level_names[] = {"debug", "info", "warn", "error"};

static void now_text(char out[40]) {
    struct timespec t;
    struct tm tm;
    char date[24];
    clock_gettime(CLOCK_REALTIME, &t);
    gmtime_r(&t.tv_sec, &tm);
    strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%S", &tm);
    snprintf(out, 40, "%s.%03uZ", date, (unsigned)(t.tv_nsec / 1000000) % 1000u);
}

/* A log that cannot be written is no reason to stop serving. */
static void put(td_serve_log *l, td_buf *line) {
    td_buf_putc(line, '\n');
    const char *text = td_buf_str(line);
    pthread_mutex_lock(&l->lock);
    if (!l->path)
        td_progress_clear();
    for (size_t done = 0; text && done < line->size;) {
        ssize_t n = write(l->fd, text + done, line->size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            break;
        done += (size_t)n;
    }
    pthread_mutex_unlock(&l->lock);
}

/* ---- messages ---- */

static void write_message(void *user, td_log_level level, const char *message) {
    td_serve_log *l = user;
    td_buf line;
    char now[40];
    now_text(now);
    td_buf_init(&line, MAX_LINE);
    if (l->json) {
        td_json_out o = td_json_out_to(&line);
        td_out_begin(&o, '{');
        td_out_member_str(&o, "time", now);
        td_out_member_str(&o, "level", level_names[level]);
        td_out_member_str(&o, "message", message);
        td_out_end(&o, '}');
    } else {
        td_buf_printf(&line, "%s %-5s %s", now, level_names[level], message);
    }
    put(l, &line);
    td_buf_free(&line);
}

/* ---- requests ---- */

static void write_access_json(td_buf *line, const char *now, const td_http_access *e) {
    td_json_out o = td_json_out_to(line);
    td_out_begin(&o, '{');
    td_out_member_str(&o, "time", now);
    td_out_member_str(&o, "event", "request");
    td_out_member_str(&o, "id", e->id);
    td_out_member_str(&o, "peer", e->peer);
    td_out_member_str(&o, "method", e->method);
    td_out_member_str(&o, "path", e->path);
    td_out_member_int(&o, "status", e->status);
    td_out_member_real(&o, "ms", e->seconds * 1e3, 3);
    td_out_member_int(&o, "body_bytes", (int64_t)e->body_bytes);
    td_out_member_int(&o, "sent_bytes", (int64_t)e->sent_bytes);
    td_out_member_bool(&o, "complete", e->complete);
    td_out_end(&o, '}');
}

/* Load balancers and Prometheus ask every second or so: that all is well is no news. */
static bool is_probe(const td_http_access *e) {
    return e->status == 200 &&
           (strcmp(e->path, "/health") == 0 || strcmp(e->path, "/ready") == 0 || strcmp(e->path, "/metrics") == 0);
}

void td_serve_log_access(void *log, const td_http_access *e) {
    td_serve_log *l = log;
    td_buf line;
    char now[40];
    if (l->messages.level > (is_probe(e) ? TD_LOG_DEBUG : TD_LOG_INFO))
        return;
    now_text(now);
    td_buf_init(&line, MAX_LINE);
    if (l->json)
        write_access_json(&line, now, e);
    else
        td_buf_printf(&line, "%s info  %s %s %s %s %u, %.1f ms, %llu bytes%s", now, e->id, e->peer, e->method, e->path,
                      e->status, e->seconds * 1e3, (unsigned long long)e->sent_bytes,
                      e->complete ? "" : ", broken off");
    put(l, &line);
    td_buf_free(&line);
}

/* ---- the file ---- */

static int open_file(const char *path) {
    return open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
}

td_status td_serve_log_open(td_serve_log **out, const char *path, bool json, td_log_level level, td_error *err) {
    *out = NULL;
    td_serve_log *l = td_calloc(1, sizeof *l);
    char *copy = path ? td_strdup(path) : NULL;
    if (!l || (path && !copy)) {
        td_free(l);
        td_free(copy);
        return td_fail(err, TD_E_NOMEM, "out of memory for the log");
    }
    l->path = copy;
    l->json = json;
    l->messages = (td_log){.fn = write_message, .user = l, .level = level};
    l->fd = path ? open_file(path) : STDERR_FILENO;
    pthread_mutex_init(&l->lock, NULL);
    if (l->fd < 0) {
        td_status st = td_fail(err, TD_E_IO, "log file %s: %s", path, strerror(errno));
        td_serve_log_close(&l);
        return st;
    }
    *out = l;
    return TD_OK;
}

void td_serve_log_close(td_serve_log **log) {
    if (!*log)
        return;
    if ((*log)->path && (*log)->fd >= 0)
        close((*log)->fd);
    pthread_mutex_destroy(&(*log)->lock);
    td_free((*log)->path);
    td_free(*log);
    *log = NULL;
}

void td_serve_log_reopen(td_serve_log *l) {
    if (!l->path)
        return;
    int fd = open_file(l->path);
    if (fd < 0) {
        td_log_warn(&l->messages, "log file %s: %s; the old one stays in use", l->path, strerror(errno));
        return;
    }
    pthread_mutex_lock(&l->lock);
    int old = l->fd;
    l->fd = fd;
    pthread_mutex_unlock(&l->lock);
    close(old);
    td_log_info(&l->messages, "log file opened anew");
}

const td_log *td_serve_log_messages(td_serve_log *l) {
    return &l->messages;
}
