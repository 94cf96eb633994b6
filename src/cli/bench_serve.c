/* bench_serve.c - tandem bench serve: a running server, measured from outside over HTTP.
 *
 * Any server of OpenAI's chat interface will do. Tokens are the server's count where it gives one; the time between
 * tokens is that between pieces of text, and a server that drafts may send several tokens in one. Every prompt begins
 * with words of its own, so that a prompt cache answers for nothing but the test that is about it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "cli/bench.h"
#include "cli/bench_http.h"
#include "cli/bench_texts.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/signals.h"

enum { MAX_COUNTS = 12, MAX_CONTEXTS = 12, MAX_METRICS = 24 };

typedef struct serve_args {
    td_bench_output output;
    td_arg_text concurrency, contexts, model, key;
    td_arg_uint requests, prompt, n, seed;
    td_arg_float temp, timeout;
    td_arg_flag quiet, no_cache_test, ignore_eos_off;
} serve_args;

#define A(field) offsetof(serve_args, field)
static const td_arg table[] = {
    {"concurrency", 0, TD_ARG_TEXT, A(concurrency), 0, 0, "LIST", "requests in flight (default 1,2,4,8)"},
    {"requests", 0, TD_ARG_UINT, A(requests), 1, 100000, "N", "requests at each (default: four times as many)"},
    {"prompt", 0, TD_ARG_UINT, A(prompt), 16, 1 << 20, "N", "tokens of a prompt, about (default 200)"},
    {"max-tokens", 'n', TD_ARG_UINT, A(n), 2, 1 << 20, "N", "tokens of an answer (default 64)"},
    {"contexts", 0, TD_ARG_TEXT, A(contexts), 0, 0, "LIST",
     "prompts after which the server's memory is read from /metrics (default: none)"},
    {"no-cache-test", 0, TD_ARG_FLAG, A(no_cache_test), 0, 0, NULL, "leave out the second turn of a conversation"},
    {"stop-at-end", 0, TD_ARG_FLAG, A(ignore_eos_off), 0, 0, NULL,
     "let answers end by themselves (default: ignore_eos is sent)"},
    {"temp", 0, TD_ARG_FLOAT, A(temp), 0, 100, "T", "temperature (default 0)"},
    {"model-name", 0, TD_ARG_TEXT, A(model), 0, 0, "NAME", "as the server calls it (default: its first)"},
    {"api-key", 0, TD_ARG_TEXT, A(key), 0, 0, "KEY", "sent as a bearer token"},
    {"timeout", 0, TD_ARG_FLOAT, A(timeout), 1, 86400, "SECONDS", "of a request (default 600)"},
    {"quiet", 'q', TD_ARG_FLAG, A(quiet), 0, 0, NULL, "no bar on stderr"},
};
#undef A

static const td_bench_column load_columns[] = {
    {"concurrency", "in flight", 0},
    {"requests", "requests", 0},
    {"failed", "failed", 0},
    {"tokens_per_s", "tokens/s", 1},
    {"requests_per_s", "requests/s", 2},
    {"ttft_p50_ms", "first token p50 ms", 1},
    {"ttft_p95_ms", "p95", 1},
    {"gap_p50_ms", "between p50 ms", 2},
    {"gap_p95_ms", "p95", 2},
    {"gap_p99_ms", "p99", 2},
    {"tokens_per_piece", "tokens/piece", 2},
};
static const td_bench_column cache_columns[] = {
    {"turn", "turn", 0},
    {"prompt_tokens", "prompt", 0},
    {"cached_tokens", "cached", 0},
    {"ttft_ms", "first token ms", 1},
};
static const td_bench_column memory_columns[] = {
    {"prompt_tokens", "prompt", 0},
    {"metric", "metric", 0},
    {"value", "value", 0},
};

typedef struct bench {
    const serve_args *args;
    td_bench_http *http;
    td_bench_report *report;
    char *model;
    uint32_t counts[MAX_COUNTS], n_counts, contexts[MAX_CONTEXTS], n_contexts, prompt, serial;
    size_t done, total; /* requests, for the bar */
} bench;

static bool tick(void *user, size_t done) {
    bench *b = user;
    return td_progress_show(NULL, "serve", b->done + done, b->total);
}

/* ---- requests ---- */

/* Text of about n tokens that no other request begins with. */
static char *message_of(bench *b, uint32_t class, uint32_t n) {
    td_buf text;
    td_buf_init(&text, (size_t)16 << 20);
    b->serial++;
    (void)td_buf_printf(&text, "Request %u of %llu. ", b->serial, (unsigned long long)b->args->seed.v);
    td_bench_message(class, n > 60 ? 4 * (size_t)(n - 60) : 0, &text);
    char *out = td_buf_steal(&text);
    td_buf_free(&text);
    return out;
}

static json_t *say(json_t *messages, const char *role, const char *text) {
    json_t *content = json_string(text);
    json_array_append_new(
        messages, json_pack("{s:s,s:o}", "role", role, "content", content ? content : json_string_nocheck(text)));
    return messages;
}

/* Takes `messages` over. */
static td_status set_body(const bench *b, td_bench_call *c, json_t *messages, uint32_t n, td_error *err) {
    json_t *o = json_pack("{s:s,s:o,s:I,s:f,s:I,s:b,s:{s:b}}", "model", b->model, "messages", messages, "max_tokens",
                          (json_int_t)n, "temperature", b->args->temp.v, "seed", (json_int_t)b->args->seed.v, "stream",
                          1, "stream_options", "include_usage", 1);
    if (!b->args->ignore_eos_off.given)
        json_object_set_new(o, "ignore_eos", json_true());
    char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
    c->body = text ? td_strdup(text) : NULL;
    free(text);
    json_decref(o);
    return c->body ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for a request");
}

static uint32_t answer_tokens(const bench *b) {
    return b->args->n.given ? (uint32_t)b->args->n.v : 64;
}

/* One conversation's next turn, alone. */
static td_status one_call(bench *b, td_bench_call *c, json_t *messages, uint32_t n, td_error *err) {
    TD_TRY(set_body(b, c, messages, n, err));
    TD_TRY(td_bench_http_run(b->http, c, 1, 1, tick, b, err));
    b->done++;
    return c->ok ? TD_OK : td_fail(err, TD_E_IO, "the server: %s", c->error);
}

/* ---- load ---- */

typedef struct figures {
    double *ttft, *gaps;
    size_t n_ok, n_gaps;
    uint64_t tokens, pieces;
    double began, ended;
} figures;

static td_status sum_up(const td_bench_call *calls, size_t n, figures *f, td_error *err) {
    size_t most = 1;
    for (size_t i = 0; i < n; i++)
        most += calls[i].n_gaps;
    *f = (figures){.ttft = td_calloc(n, sizeof(double)), .gaps = td_calloc(most, sizeof(double))};
    if (!f->ttft || !f->gaps)
        return td_fail(err, TD_E_NOMEM, "out of memory for latencies");
    for (size_t i = 0; i < n; i++) {
        const td_bench_call *c = &calls[i];
        f->began = i == 0 || c->began < f->began ? c->began : f->began;
        f->ended = c->ended > f->ended ? c->ended : f->ended;
        if (!c->ok)
            continue;
        f->ttft[f->n_ok++] = 1e3 * (c->first - c->began);
        f->tokens += c->tokens;
        f->pieces += c->pieces;
        for (size_t k = 0; k < c->n_gaps; k++)
            f->gaps[f->n_gaps++] = 1e3 * c->gaps[k];
    }
    return TD_OK;
}

static td_status add_load(td_bench_table *t, uint32_t width, const td_bench_call *calls, size_t n, td_error *err) {
    figures f;
    td_status st = sum_up(calls, n, &f, err);
    double seconds = f.ended - f.began;
    if (st == TD_OK)
        td_bench_row(t, json_pack("[I,I,I,o,o,o,o,o,o,o,o]", (json_int_t)width, (json_int_t)n, (json_int_t)(n - f.n_ok),
                                  td_bench_real((double)f.tokens / seconds), td_bench_real((double)f.n_ok / seconds),
                                  td_bench_real(td_bench_percentile(f.ttft, f.n_ok, 0.5)),
                                  td_bench_real(td_bench_percentile(f.ttft, f.n_ok, 0.95)),
                                  td_bench_real(td_bench_percentile(f.gaps, f.n_gaps, 0.5)),
                                  td_bench_real(td_bench_percentile(f.gaps, f.n_gaps, 0.95)),
                                  td_bench_real(td_bench_percentile(f.gaps, f.n_gaps, 0.99)),
                                  td_bench_real(f.pieces ? (double)f.tokens / (double)f.pieces : 0)));
    td_free(f.ttft);
    td_free(f.gaps);
    return st;
}

static void note_failures(bench *b, const td_bench_call *calls, size_t n) {
    for (size_t i = 0; i < n; i++)
        if (!calls[i].ok) {
            td_bench_note(b->report, "a request failed: %s", calls[i].error);
            return;
        }
}

static size_t requests_at(const bench *b, uint32_t width) {
    return b->args->requests.given ? (size_t)b->args->requests.v : 4 * (size_t)width;
}

static td_status load_at(bench *b, td_bench_table *t, uint32_t width, td_error *err) {
    const size_t n = requests_at(b, width);
    td_bench_call *calls = td_calloc(n, sizeof *calls);
    td_status st = calls ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for %zu requests", n);
    for (size_t i = 0; i < n && calls; i++)
        td_bench_call_init(&calls[i]);
    for (size_t i = 0; i < n && st == TD_OK; i++) {
        char *text = message_of(b, (uint32_t)i % TD_BENCH_CLASSES, b->prompt);
        st = text ? set_body(b, &calls[i], say(json_array(), "user", text), answer_tokens(b), err)
                  : td_fail(err, TD_E_NOMEM, "out of memory for a request");
        td_free(text);
    }
    if (st == TD_OK)
        st = td_bench_http_run(b->http, calls, n, width, tick, b, err);
    if (st == TD_OK) {
        b->done += n;
        note_failures(b, calls, n);
        st = add_load(t, width, calls, n, err);
    }
    for (size_t i = 0; i < n && calls; i++)
        td_bench_call_free(&calls[i]);
    td_free(calls);
    return st;
}

/* ---- the prompt cache ---- */

static void add_turn(td_bench_table *t, const char *turn, const td_bench_call *c) {
    td_bench_row(t, json_pack("[s,I,I,f]", turn, (json_int_t)c->prompt_tokens, (json_int_t)c->cached_tokens,
                              1e3 * (c->first - c->began)));
}

/* A long first turn, its second turn, and the second turn's length anew. */
static td_status cache_test(bench *b, td_error *err) {
    td_bench_table *t = td_bench_table_new(b->report, "cache", "Second turn of a conversation", cache_columns, 4);
    td_bench_call call[3];
    for (int i = 0; i < 3; i++)
        td_bench_call_init(&call[i]);
    char *text = message_of(b, 1, 4 * b->prompt), *other = message_of(b, 1, 4 * b->prompt);
    td_status st = t && text && other ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for a conversation");
    if (st == TD_OK)
        st = one_call(b, &call[0], say(json_array(), "user", text), answer_tokens(b), err);
    if (st == TD_OK) {
        json_t *turns = say(say(say(json_array(), "user", text), "assistant", td_buf_str(&call[0].text)), "user",
                            "And what would you change about that?");
        st = one_call(b, &call[1], turns, answer_tokens(b), err);
    }
    if (st == TD_OK)
        st = one_call(b, &call[2], say(json_array(), "user", other), answer_tokens(b), err);
    if (st == TD_OK) {
        add_turn(t, "first", &call[0]);
        add_turn(t, "second", &call[1]);
        add_turn(t, "another first", &call[2]);
    }
    td_free(text);
    td_free(other);
    for (int i = 0; i < 3; i++)
        td_bench_call_free(&call[i]);
    return st;
}

/* ---- memory ---- */

/* Gauges of Prometheus text that speak of memory, whoever wrote them. */
static bool is_memory(const char *name, size_t n) {
    static const char *const words[] = {"kv_", "cache_usage", "resident_memory", "cache_bytes"};
    char text[128];
    snprintf(text, sizeof text, "%.*s", (int)(n < 127 ? n : 127), name);
    if (strstr(text, "_total") || strstr(text, "_bucket"))
        return false;
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (strstr(text, words[i]))
            return true;
    return false;
}

static void add_memory(td_bench_table *t, uint32_t tokens, const char *page) {
    size_t found = 0;
    for (const char *p = page; *p && found < MAX_METRICS; p += strcspn(p, "\n"), p += *p == '\n') {
        size_t name = strcspn(p, "{ \n"), line = strcspn(p, "\n"), at = line;
        while (at > name && p[at - 1] != ' ')
            at--;
        if (*p == '#' || at == name || !is_memory(p, name))
            continue;
        td_bench_row(t, json_pack("[I,s#,f]", (json_int_t)tokens, p, (int)name, strtod(p + at, NULL)));
        found++;
    }
}

static td_status memory_by_context(bench *b, td_error *err) {
    td_bench_table *t = td_bench_table_new(b->report, "memory", "Memory after a prompt", memory_columns, 3);
    td_status st = t ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < b->n_contexts && st == TD_OK; i++) {
        td_bench_call c;
        td_buf page = {0};
        td_bench_call_init(&c);
        char *text = message_of(b, 1, b->contexts[i]);
        st = text ? one_call(b, &c, say(json_array(), "user", text), 8, err)
                  : td_fail(err, TD_E_NOMEM, "out of memory for a prompt");
        if (st == TD_OK)
            st = td_bench_http_get(b->http, "/metrics", &page, err);
        if (st == TD_OK)
            add_memory(t, c.prompt_tokens ? c.prompt_tokens : b->contexts[i], td_buf_str(&page));
        td_buf_free(&page);
        td_bench_call_free(&c);
        td_free(text);
    }
    if (st == TD_E_IO) { /* no /metrics is no failure of the rest */
        td_bench_note(b->report, "no memory by context: %s", err->message);
        st = TD_OK;
    }
    return st;
}

/* ---- the command ---- */

static td_status find_model(bench *b, td_error *err) {
    td_buf page = {0};
    if (b->args->model.given) {
        b->model = td_strdup(b->args->model.v);
        return b->model ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory");
    }
    td_status st = td_bench_http_get(b->http, "/v1/models", &page, err);
    json_t *o = st == TD_OK ? json_loadb(page.data ? page.data : "", page.size, 0, NULL) : NULL;
    const char *id = json_string_value(json_object_get(json_array_get(json_object_get(o, "data"), 0), "id"));
    if (st == TD_OK && !id)
        st = td_fail(err, TD_E_IO, "/v1/models names no model; give --model-name");
    if (st == TD_OK && !(b->model = td_strdup(id)))
        st = td_fail(err, TD_E_NOMEM, "out of memory");
    json_decref(o);
    td_buf_free(&page);
    return st;
}

static td_status run_all(bench *b, td_error *err) {
    TD_TRY(find_model(b, err));
    td_bench_fact(b->report, "served_model", json_string(b->model));
    td_bench_table *t = td_bench_table_new(b->report, "load", "Answers under load", load_columns, 11);
    if (!t)
        return td_fail(err, TD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < b->n_counts; i++)
        TD_TRY(load_at(b, t, b->counts[i], err));
    if (!b->args->no_cache_test.given)
        TD_TRY(cache_test(b, err));
    return b->n_contexts ? memory_by_context(b, err) : TD_OK;
}

static int perform(bench *b) {
    td_error err = {0};
    for (uint32_t i = 0; i < b->n_counts; i++)
        b->total += requests_at(b, b->counts[i]);
    b->total += b->n_contexts + (b->args->no_cache_test.given ? 0 : 3);
    td_status st = run_all(b, &err);
    td_progress_clear();
    if (st != TD_OK)
        return td_report_failure(st, &err);
    td_bench_note(b->report, "between: milliseconds between two pieces of text of an answer, which may hold several "
                             "tokens.");
    return td_bench_finish(b->report, &b->args->output, NULL);
}

static int serve_with_args(const serve_args *args, const char *url) {
    const char *me = "tandem bench serve";
    bench b = {.args = args, .prompt = args->prompt.given ? (uint32_t)args->prompt.v : 200};
    td_error err = {0};
    if (!td_bench_list(me, "concurrency", args->concurrency.given ? args->concurrency.v : "1,2,4,8", 1, 4096, NULL,
                       b.counts, MAX_COUNTS, &b.n_counts) ||
        (args->contexts.given &&
         !td_bench_list(me, "contexts", args->contexts.v, 16, 1 << 22, NULL, b.contexts, MAX_CONTEXTS, &b.n_contexts)))
        return TD_EXIT_USAGE;
    td_progress_enable(!args->quiet.given);
    td_status st = td_bench_http_open(&b.http, url, args->key.given ? args->key.v : NULL,
                                      args->timeout.given ? args->timeout.v : 600, &err);
    int rc = TD_EXIT_OK;
    if (st != TD_OK)
        rc = td_report_failure(st, &err);
    else if (!(b.report = td_bench_report_new(me)))
        rc = td_report_failure(TD_E_NOMEM, NULL);
    else
        rc = perform(&b);
    td_free(b.model);
    td_bench_report_free(&b.report);
    td_bench_http_close(&b.http);
    return rc;
}

int td_bench_serve(int argc, char **argv) {
    static const char *const names[] = {"URL"};
    serve_args args = {0};
    const char *url = NULL;
    const td_arg_group groups[] = {
        {"What is measured", table, sizeof table / sizeof *table, &args},
        {"Result", td_bench_output_table, td_bench_output_count, &args.output},
    };
    const td_args spec = {
        .command = "tandem bench serve",
        .synopsis = "[OPTIONS] URL",
        .about = "Drives a running server of OpenAI's chat interface (Tandem's, llama.cpp's, vLLM's): throughput and\n"
                 "latencies by requests in flight, what a prompt cache saves the second turn of a conversation, and\n"
                 "memory by context where the server has /metrics.",
        .groups = groups,
        .n_groups = 2,
        .n_positional = 1,
        .positional = &url,
        .positional_names = names,
    };
    td_args_result parsed = td_args_parse(&spec, argc, argv);
    int rc = parsed == TD_ARGS_OK ? serve_with_args(&args, url) : parsed == TD_ARGS_HELP ? TD_EXIT_OK : TD_EXIT_USAGE;
    td_args_free(&spec);
    return rc;
}
