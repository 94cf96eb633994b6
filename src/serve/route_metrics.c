/* route_metrics.c - GET /metrics: Prometheus' text format, version 0.0.4.
 *
 * Tokens a round that drafted gives: 1 + tandem_accepted_tokens_total / tandem_draft_rounds_total, which
 * tandem_draft_length has ready. Positions of drafts count from 1. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "serve/server_impl.h"

#define TYPE "text/plain; version=0.0.4; charset=utf-8"

static void head(td_buf *b, const char *name, const char *type, const char *help) {
    td_buf_printf(b, "# HELP tandem_%s %s\n# TYPE tandem_%s %s\n", name, help, name, type);
}

static void counter(td_buf *b, const char *name, const char *help, double v) {
    head(b, name, "counter", help);
    td_buf_printf(b, "tandem_%s %.17g\n", name, v);
}

static void gauge(td_buf *b, const char *name, const char *help, double v) {
    head(b, name, "gauge", help);
    td_buf_printf(b, "tandem_%s %.17g\n", name, v);
}

/* One value a draft position that has been used. */
static void by_position(td_buf *b, const char *name, const char *help, const uint64_t *at) {
    head(b, name, "counter", help);
    for (int i = 0; i < TD_MAX_DRAFT; i++)
        if (at[i] > 0 || i == 0)
            td_buf_printf(b, "tandem_%s{position=\"%d\"} %llu\n", name, i + 1, (unsigned long long)at[i]);
}

/* A label's value: backslash, quote and newline escaped. */
static void label(td_buf *b, const char *name, const char *value) {
    td_buf_printf(b, "%s=\"", name);
    for (const char *p = value ? value : ""; *p; p++) {
        if (*p == '\\' || *p == '"')
            td_buf_putc(b, '\\');
        td_buf_putc(b, *p == '\n' ? ' ' : *p);
    }
    td_buf_putc(b, '"');
}

static double resident_bytes(void) {
    unsigned long long size, resident;
    FILE *f = fopen("/proc/self/statm", "r");
    if (!f)
        return NAN;
    int n = fscanf(f, "%llu %llu", &size, &resident);
    fclose(f);
    return n == 2 ? (double)resident * (double)sysconf(_SC_PAGESIZE) : NAN;
}

static void write_process(td_buf *b, td_server *s) {
    td_http_stats h = td_http_stats_get(s->http);
    gauge(b, "ready", "1 when requests are taken.", atomic_load(&s->state) == TD_SERVER_READY);
    gauge(b, "uptime_seconds", "Since the server began to listen.", td_clock_since(s->started_ns));
    double rss = resident_bytes();
    if (isfinite(rss))
        gauge(b, "resident_memory_bytes", "Memory of the process, mapped weights included.", rss);
    head(b, "http_replies_total", "counter", "Replies by status; 0: the client left before one.");
    for (unsigned i = 0; i < TD_HTTP_STATUS_MAX; i++) {
        unsigned long long n = atomic_load_explicit(&s->replies[i], memory_order_relaxed);
        if (n > 0 || i == 200)
            td_buf_printf(b, "tandem_http_replies_total{code=\"%u\"} %llu\n", i, n);
    }
    counter(b, "http_gone_total", "Clients that left before their reply was whole.", (double)h.n_gone);
    gauge(b, "http_connections", "Open connections.", (double)h.n_connections);
    gauge(b, "http_body_bytes", "Bodies of requests that are held.", (double)h.bodies_bytes);
}

static void write_info(td_buf *b, const td_server *s) {
    head(b, "info", "gauge", "What is served.");
    td_buf_puts(b, "tandem_info{");
    label(b, "version", s->opt.version);
    td_buf_putc(b, ',');
    label(b, "model", s->model.id);
    td_buf_putc(b, ',');
    label(b, "family", s->info->family);
    td_buf_putc(b, ',');
    label(b, "weights", s->info->weight_format);
    td_buf_putc(b, ',');
    label(b, "mtp", s->info->mtp_kind);
    td_buf_puts(b, "} 1\n");
    gauge(b, "mtp_active", "1 when there is a drafter.", s->info->mtp_active);
    gauge(b, "mtp_depth", "Drafts a round at most.", s->info->mtp_active ? s->info->mtp_depth : 0);
}

static void write_requests(td_buf *b, const td_scheduler_stats *t) {
    counter(b, "requests_total", "Answers that were asked for and taken on.", (double)t->requests);
    counter(b, "requests_finished_total", "Answers that came to their end.", (double)t->finished);
    counter(b, "requests_cancelled_total", "Answers nobody wanted any more.", (double)t->cancelled);
    counter(b, "requests_failed_total", "Answers that ended with an error.", (double)t->failed);
    counter(b, "requests_refused_total", "Answers refused because the queue was full.", (double)t->refused);
    gauge(b, "requests_active", "Answers under way.", t->active);
    gauge(b, "requests_queued", "Answers that wait for a slot.", t->queued);
    gauge(b, "queue_limit", "Answers that may wait.", t->max_queue);
    gauge(b, "slots", "Answers that may be under way.", t->parallel);
}

static void write_tokens(td_buf *b, const td_scheduler_stats *t) {
    counter(b, "prompt_tokens_total", "Tokens of prompts.", (double)t->prompt_tokens);
    counter(b, "cached_tokens_total", "Tokens of prompts that were not evaluated again.", (double)t->cached_tokens);
    counter(b, "generated_tokens_total", "Tokens generated.", (double)t->generated_tokens);
    counter(b, "passes_total", "Passes of the model.", (double)t->passes);
    counter(b, "rounds_total", "Rounds of an answer that gave tokens.", (double)t->rounds);
    counter(b, "busy_seconds_total", "Time in passes.", t->busy_seconds);
    counter(b, "prefill_seconds_total", "Time of answers until their first token.", t->prefill_seconds);
    counter(b, "decode_seconds_total", "Time of answers from their first token on.", t->decode_seconds);
}

static void write_drafts(td_buf *b, const td_scheduler_stats *t) {
    double rounds = (double)t->draft_rounds;
    counter(b, "draft_rounds_total", "Rounds that had drafts.", rounds);
    counter(b, "drafted_tokens_total", "Tokens proposed by the drafter.", (double)t->drafted);
    counter(b, "accepted_tokens_total", "Proposed tokens that were accepted.", (double)t->accepted);
    by_position(b, "drafted_tokens_at_total", "Rounds that proposed a token at this position.", t->drafted_at);
    by_position(b, "accepted_tokens_at_total", "Rounds that accepted the token at this position.", t->accepted_at);
    gauge(b, "draft_length", "Tokens a round with drafts gave: 1 + accepted / rounds.",
          rounds > 0 ? 1 + (double)t->accepted / rounds : 1);
}

static void write_memory(td_buf *b, const td_scheduler_stats *t) {
    gauge(b, "kv_bytes", "Keys and values in use by answers and cache.", (double)t->kv_bytes);
    gauge(b, "kv_allocated_bytes", "Keys and values allocated.", (double)t->kv_allocated);
    gauge(b, "cache_bytes", "Keys and values kept for prompts to come.", (double)t->cache_bytes);
    gauge(b, "cache_limit_bytes", "What may be kept.", (double)t->cache_limit);
    gauge(b, "cache_pages", "Pages kept.", (double)t->cache_pages);
    counter(b, "cache_hits_total", "Prompts that found a beginning.", (double)t->cache_hits);
    counter(b, "cache_misses_total", "Prompts that found none.", (double)t->cache_misses);
    counter(b, "cache_evictions_total", "Pages given up for others.", (double)t->cache_evictions);
    counter(b, "cache_hit_tokens_total", "Tokens found in the cache.", (double)t->cache_hit_tokens);
}

/* While there is no model the process is described all the same. */
void td_route_metrics(void *server, td_exchange *x) {
    td_server *s = server;
    td_buf b;
    td_buf_init(&b, 1 << 20);
    write_process(&b, s);
    td_scheduler *scheduler = td_server_enter(s, NULL, false);
    if (scheduler) {
        td_scheduler_stats stats;
        td_scheduler_describe(scheduler, &stats);
        write_info(&b, s);
        write_requests(&b, &stats);
        write_tokens(&b, &stats);
        write_drafts(&b, &stats);
        write_memory(&b, &stats);
        td_server_leave(s);
    }
    const char *text = td_buf_str(&b);
    if (!text || td_exchange_reply(x, 200, TYPE, text, b.size, NULL, 0) == TD_E_NOMEM)
        (void)!td_exchange_reply_error(x, 503, "out_of_memory", "out of memory for the metrics");
    td_buf_free(&b);
}
