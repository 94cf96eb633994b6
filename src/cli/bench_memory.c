/* bench_memory.c - tandem bench serve: a server's memory by context, from the gauges of its /metrics.
 *
 * Once an answer has ended its keys and values may be given back, so the page is read while the answer is decoded, as
 * often as every 50 ms, and the highest value of each series stays; the value from before the request stands beside it.
 * Prometheus' text form: NAME{LABEL="TEXT",...} VALUE [TIMESTAMP], where a text may hold spaces, braces and \". */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "cli/bench_served.h"

enum { MAX_GAUGES = 24, KEY_SIZE = 240, SHORTEST_ANSWER = 64, EVERY_MS = 50 };

static const td_bench_column columns[] = {
    {"prompt_tokens", "prompt", 0}, {"metric", "metric", 0},         {"before", "before", 4},
    {"value", "while decoding", 4}, {"difference", "difference", 4},
};

/* ---- the text form ---- */

static bool ends_with(const char *text, size_t n, const char *end) {
    size_t k = strlen(end);
    return n >= k && memcmp(text + n - k, end, k) == 0;
}

/* Gauges that speak of memory, whoever wrote them. */
static bool is_memory(const char *name, size_t n) {
    static const char *const words[] = {"kv_", "cache_usage", "resident_memory", "cache_bytes"};
    static const char *const counters[] = {"_total", "_bucket", "_sum", "_count"};
    char text[KEY_SIZE];
    if (n >= sizeof text)
        return false;
    snprintf(text, sizeof text, "%.*s", (int)n, name);
    for (size_t i = 0; i < sizeof counters / sizeof *counters; i++)
        if (ends_with(text, n, counters[i]))
            return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(text, words[i]))
            return true;
    return false;
}

/* Behind the labels that begin at p, or at the end of the line when they do not end. */
static const char *after_labels(const char *p) {
    bool quoted = false;
    for (; *p && *p != '\n'; p++) {
        if (quoted && *p == '\\' && p[1])
            p++;
        else if (*p == '"')
            quoted = !quoted;
        else if (*p == '}' && !quoted)
            return p + 1;
    }
    return p;
}

/* The line at p: a gauge of memory with a finite value? Its name with labels into `key`. */
static bool read_gauge(const char *p, char key[KEY_SIZE], double *value) {
    size_t name = strcspn(p, "{ \t\n");
    const char *end = p[name] == '{' ? after_labels(p + name) : p + name;
    char *rest;
    if (*p == '#' || !is_memory(p, name) || end - p >= KEY_SIZE || (*end != ' ' && *end != '\t'))
        return false;
    end += strspn(end, " \t");
    *value = strtod(end, &rest);
    if (*end == '\n' || rest == end || !isfinite(*value))
        return false;
    while (end[-1] == ' ' || end[-1] == '\t')
        end--;
    snprintf(key, KEY_SIZE, "%.*s", (int)(end - p), p);
    return true;
}

/* ---- series ---- */

typedef struct gauge {
    char key[KEY_SIZE];
    double before, during; /* the highest */
} gauge;

typedef struct watch {
    td_served *s;
    const td_bench_call *call;
    gauge gauges[MAX_GAUGES];
    size_t n, samples;
    int64_t last; /* ns, of the last look */
} watch;

/* NULL: there are too many. */
static gauge *gauge_of(watch *w, const char *key) {
    for (size_t i = 0; i < w->n; i++)
        if (strcmp(w->gauges[i].key, key) == 0)
            return &w->gauges[i];
    if (w->n == MAX_GAUGES)
        return NULL;
    gauge *g = &w->gauges[w->n++];
    *g = (gauge){.before = NAN, .during = NAN};
    snprintf(g->key, sizeof g->key, "%s", key);
    return g;
}

static td_status look(watch *w, bool before, td_error *err) {
    td_buf page;
    td_status st = td_bench_http_get(w->s->http, "/metrics", &page, err);
    const char *text = st == TD_OK ? td_buf_str(&page) : NULL;
    for (const char *p = text; p && *p; p += strcspn(p, "\n"), p += *p == '\n') {
        char key[KEY_SIZE];
        double v;
        gauge *g = read_gauge(p, key, &v) ? gauge_of(w, key) : NULL;
        if (g && before)
            g->before = v;
        else if (g)
            g->during = fmax(g->during, v); /* NAN is no value to fmax */
    }
    td_buf_free(&page);
    return st;
}

/* Called while the answer runs: looks once text has come. */
static void look_now_and_then(void *user, size_t ended) {
    watch *w = user;
    const int64_t now = td_clock_ns();
    td_served_tick(w->s, ended);
    if (w->call->state != TD_CALL_RUNNING || w->call->pieces == 0)
        return;
    if (w->samples && now - w->last < (int64_t)EVERY_MS * 1000000)
        return;
    w->last = now;
    w->samples += look(w, false, NULL) == TD_OK;
}

/* ---- rows ---- */

/* Bytes and counts are whole and are shown so; shares are not. */
static json_t *number(double v) {
    return !isfinite(v) ? json_null() : v == floor(v) && fabs(v) < 9e15 ? json_integer((json_int_t)v) : json_real(v);
}

static void add_rows(td_bench_table *t, const watch *w, uint32_t tokens) {
    for (size_t i = 0; i < w->n; i++) {
        const gauge *g = &w->gauges[i];
        td_bench_row(t, json_pack("[I,s,o,o,o]", (json_int_t)tokens, g->key, number(g->before), number(g->during),
                                  number(g->during - g->before)));
    }
}

/* TD_E_IO: the answer failed. */
static td_status measure(td_served *s, td_bench_table *t, watch *w, uint32_t context, td_error *err) {
    td_bench_call c;
    char *text = td_served_text(s, 1, context);
    if (!text)
        return td_fail(err, TD_E_NOMEM, "out of memory for a prompt");
    td_bench_call_init(&c);
    w->call = &c;
    td_status st = td_served_one(s, &c, td_served_say(json_array(), "user", text),
                                 s->answer > SHORTEST_ANSWER ? s->answer : SHORTEST_ANSWER, look_now_and_then, w, err);
    td_served_learn(s, text, &c);
    const uint32_t tokens = c.prompt_tokens ? c.prompt_tokens : context;
    if (st == TD_OK && w->samples)
        add_rows(t, w, tokens);
    else if (st == TD_OK)
        td_bench_note(s->report, "no memory at %u tokens: the answer was over before /metrics had been read.", tokens);
    td_bench_call_free(&c);
    td_free(text);
    return st;
}

td_status td_served_memory(td_served *s, const uint32_t *contexts, uint32_t n, td_error *err) {
    td_bench_table *t = td_bench_table_new(s->report, "memory", "Memory while an answer is decoded", columns, 5);
    watch *w = td_calloc(1, sizeof *w);
    td_status st = t && w ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n && st == TD_OK; i++) {
        td_error failed = {0};
        *w = (watch){.s = s};
        st = look(w, true, &failed);
        if (st == TD_E_IO) { /* no /metrics is no failure of the rest, and it will not come */
            td_bench_note(s->report, "no memory by context: %s", failed.message);
            break;
        }
        st = st == TD_OK ? measure(s, t, w, contexts[i], &failed) : st;
        if (st == TD_E_IO)
            td_bench_note(s->report, "no memory at %u tokens: %s", contexts[i], failed.message);
        else if (st != TD_OK && err)
            *err = failed;
        st = st == TD_E_IO ? TD_OK : st;
    }
    td_free(w);
    return st == TD_E_IO ? TD_OK : st;
}
