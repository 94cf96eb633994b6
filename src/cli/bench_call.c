/* bench_call.c - see bench_call.h. Server-sent events, line by line. What one read brings has one arrival time: a token
 * that came with the one before it has waited for nothing, and makes no gap. */
#include "cli/bench_call.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

#define MAX_ANSWER ((size_t)16 << 20)
#define MAX_LINE ((size_t)4 << 20)

void td_bench_call_init(td_bench_call *c) {
    *c = (td_bench_call){0};
    td_buf_init(&c->text, MAX_ANSWER);
    td_buf_init(&c->line, MAX_LINE);
}

void td_bench_call_free(td_bench_call *c) {
    td_buf_free(&c->text);
    td_buf_free(&c->line);
    td_free(c->gaps);
    td_free(c->body);
    *c = (td_bench_call){0};
}

/* ---- events ---- */

static void keep_gap(td_bench_call *c, double gap) {
    if (c->n_gaps == c->gaps_capacity) {
        size_t more = 2 * c->gaps_capacity + 64;
        double *grown = td_realloc(c->gaps, more, sizeof *grown);
        if (!grown)
            return;
        c->gaps = grown;
        c->gaps_capacity = more;
    }
    c->gaps[c->n_gaps++] = gap;
}

static void take_text(td_bench_call *c, const char *text, double at) {
    if (!text || !*text)
        return;
    if (c->pieces++ == 0)
        c->first = at;
    else if (at > c->last)
        keep_gap(c, at - c->last);
    c->last = at;
    (void)td_buf_puts(&c->text, text);
}

static uint32_t count_of(const json_t *o, const char *key) {
    const json_t *v = json_object_get(o, key);
    return json_is_integer(v) && json_integer_value(v) > 0 ? (uint32_t)json_integer_value(v) : 0;
}

static void take_counts(td_bench_call *c, const json_t *usage, const json_t *timings) {
    if (json_is_object(usage)) {
        c->tokens = count_of(usage, "completion_tokens");
        c->prompt_tokens = count_of(usage, "prompt_tokens");
        c->cached_tokens = count_of(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
    }
    if (json_is_object(timings)) {
        c->timed = true;
        c->drafted = count_of(timings, "draft_n");
        c->accepted = count_of(timings, "draft_n_accepted");
    }
}

static void take_event(td_bench_call *c, const json_t *o, double at) {
    const json_t *choice = json_array_get(json_object_get(o, "choices"), 0), *delta = json_object_get(choice, "delta");
    const json_t *error = json_object_get(o, "error");
    take_text(c, json_string_value(json_object_get(delta, "reasoning_content")), at);
    take_text(c, json_string_value(json_object_get(delta, "content")), at);
    take_counts(c, json_object_get(o, "usage"), json_object_get(o, "timings"));
    if (error && !c->error[0]) {
        const char *text = json_string_value(json_object_get(error, "message"));
        snprintf(c->error, sizeof c->error, "%s", text ? text : "an error without a message");
    }
}

/* One line of a stream, without its end. */
static void take_line(td_bench_call *c, const char *line, size_t n, double at) {
    while (n && (line[n - 1] == '\r' || line[n - 1] == ' '))
        n--;
    if (n > 5 && memcmp(line, "data:", 5) == 0) {
        line += 5;
        n -= 5;
    } else if (n == 0 || line[0] != '{') { /* comments, other fields; an error may come as bare JSON */
        return;
    }
    json_t *o = json_loadb(line, n, JSON_REJECT_DUPLICATES, NULL);
    if (json_is_object(o))
        take_event(c, o, at);
    json_decref(o);
}

/* ---- bytes ---- */

bool td_bench_call_take(td_bench_call *c, const char *bytes, size_t n, double at) {
    const char *p = bytes, *end = bytes + n;
    while (p < end) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));
        if (td_buf_append(&c->line, p, (size_t)((stop ? stop : end) - p)) != TD_OK)
            return false;
        if (!stop)
            break;
        take_line(c, td_buf_str(&c->line), c->line.size, at);
        td_buf_clear(&c->line);
        p = stop + 1;
    }
    return true;
}

void td_bench_call_end(td_bench_call *c, const char *failure, long code, double at) {
    c->ended = at;
    if (c->line.size)
        take_line(c, td_buf_str(&c->line), c->line.size, at);
    if (failure)
        snprintf(c->error, sizeof c->error, "%s", failure);
    else if (code != 200 && !c->error[0])
        snprintf(c->error, sizeof c->error, "HTTP status %ld", code);
    else if (!c->error[0] && c->pieces == 0)
        snprintf(c->error, sizeof c->error, "an answer without text");
    c->tokens = c->tokens ? c->tokens : c->pieces;
    c->state = c->error[0] ? TD_CALL_FAILED : TD_CALL_OK;
}
