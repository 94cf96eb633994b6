/* bench_serve.c - tandem bench serve: a running server, measured from outside over HTTP.
 *
 * Any server of OpenAI's chat interface will do. Tokens are the server's count where it gives one. First a request that
 * is not measured, then load by requests in flight (bench_load.c), the prompt cache (bench_turns.c), and memory by
 * context (bench_memory.c). What was measured is written whatever happens after it, Ctrl-C included. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/bench_served.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/signals.h"

enum { MAX_COUNTS = 12, MAX_CONTEXTS = 12 };

typedef struct serve_args {
    td_bench_output output;
    td_arg_text concurrency, contexts, model, key;
    td_arg_uint requests, prompt, n, seed;
    td_arg_float temp, timeout;
    td_arg_flag quiet, no_cache_test, ignore_eos_off, compare;
    const char *url;
    /* read out of the above */
    uint32_t counts[MAX_COUNTS], n_counts, context[MAX_CONTEXTS], n_contexts;
} serve_args;

#define A(field) offsetof(serve_args, field)
static const td_arg table[] = {
    {"concurrency", 0, TD_ARG_TEXT, A(concurrency), 0, 0, "LIST", "requests in flight (default 1,2,4,8)"},
    {"requests", 0, TD_ARG_UINT, A(requests), 1, 100000, "N", "requests at each (default: four times as many)"},
    {"compare-mtp", 0, TD_ARG_FLAG, A(compare), 0, 0, NULL,
     "each row twice, as the server drafts and with \"mtp\": false, and the ratio"},
    {"prompt", 0, TD_ARG_UINT, A(prompt), 16, 1 << 20, "N", "tokens of a prompt, about (default 200)"},
    {"max-tokens", 'n', TD_ARG_UINT, A(n), 2, 1 << 20, "N", "tokens of an answer (default 64)"},
    {"contexts", 0, TD_ARG_TEXT, A(contexts), 0, 0, "LIST",
     "prompts behind which the server's memory is read from /metrics while it decodes (default: none)"},
    {"no-cache-test", 0, TD_ARG_FLAG, A(no_cache_test), 0, 0, NULL, "leave out the second turn of a conversation"},
    {"stop-at-end", 0, TD_ARG_FLAG, A(ignore_eos_off), 0, 0, NULL,
     "let answers end by themselves (default: ignore_eos is sent)"},
    {"temp", 0, TD_ARG_FLOAT, A(temp), 0, 100, "T", "temperature (default 0)"},
    {"seed", 0, TD_ARG_UINT, A(seed), 0, UINT32_MAX, "N",
     "of prompts and sampling; the same one again meets a warm prompt cache (default: another each time)"},
    {"model-name", 0, TD_ARG_TEXT, A(model), 0, 0, "NAME", "as the server calls it (default: its first)"},
    {"api-key", 0, TD_ARG_TEXT, A(key), 0, 0, "KEY", "sent as a bearer token"},
    {"timeout", 0, TD_ARG_FLOAT, A(timeout), 1, 86400, "SECONDS", "of a request (default 600)"},
    {"quiet", 'q', TD_ARG_FLAG, A(quiet), 0, 0, NULL, "no bar on stderr"},
};
#undef A

/* ---- options ---- */

static const char me[] = "tandem bench serve";

static void set_defaults(serve_args *a) {
    a->prompt.v = a->prompt.given ? a->prompt.v : 200;
    a->n.v = a->n.given ? a->n.v : 64;
    a->timeout.v = a->timeout.given ? a->timeout.v : 600;
    a->seed.v = a->seed.given ? a->seed.v : td_random_seed();
    a->concurrency.v = a->concurrency.given ? a->concurrency.v : "1,2,4,8";
}

/* False: one line has been printed. */
static bool check(serve_args *a) {
    if (!td_bench_list(me, "concurrency", a->concurrency.v, 1, 4096, NULL, a->counts, MAX_COUNTS, &a->n_counts) ||
        (a->contexts.given &&
         !td_bench_list(me, "contexts", a->contexts.v, 16, 1 << 22, NULL, a->context, MAX_CONTEXTS, &a->n_contexts)))
        return false;
    for (uint32_t i = 0; i < a->n_counts; i++)
        if (a->requests.given && a->requests.v < a->counts[i]) {
            td_report_error(me, "--requests is %llu; expected at least the %u in flight that --concurrency asks for",
                            (unsigned long long)a->requests.v, a->counts[i]);
            return false;
        }
    return true;
}

/* ---- the server ---- */

static td_status find_model(td_served *s, const serve_args *a, td_error *err) {
    td_buf page;
    if (a->model.given) {
        s->model = td_strdup(a->model.v);
        return s->model ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory");
    }
    td_status st = td_bench_http_get(s->http, "/v1/models", &page, err);
    json_t *o = st == TD_OK ? json_loadb(page.data ? page.data : "", page.size, 0, NULL) : NULL;
    const char *id = json_string_value(json_object_get(json_array_get(json_object_get(o, "data"), 0), "id"));
    if (st == TD_OK && !id)
        st = td_fail(err, TD_E_IO, "/v1/models names no model; give --model-name");
    if (st == TD_OK && !(s->model = td_strdup(id)))
        st = td_fail(err, TD_E_NOMEM, "out of memory");
    json_decref(o);
    td_buf_free(&page);
    return st;
}

/* Everything that it takes to ask the same again. */
static void say_facts(const td_served *s, const serve_args *a) {
    td_bench_report *r = s->report;
    td_bench_fact(r, "url", json_string(td_bench_http_url(s->http)));
    td_bench_fact(r, "served_model", json_string(s->model));
    td_bench_fact(r, "seed", json_integer((json_int_t)s->seed));
    td_bench_fact(r, "prompt", json_integer(s->prompt));
    td_bench_fact(r, "max_tokens", json_integer(s->answer));
    td_bench_fact(r, "temperature", json_real(s->temperature));
    td_bench_fact(r, "ignore_eos", json_boolean(s->ignore_eos));
    td_bench_fact(r, "timeout_s", json_real(a->timeout.v));
    td_bench_fact(r, "version", json_string(TD_VERSION));
}

static size_t count_requests(const serve_args *a) {
    size_t total = 1 + a->n_contexts + (a->no_cache_test.given ? 0 : 3);
    for (uint32_t i = 0; i < a->n_counts; i++)
        total += td_served_requests((size_t)a->requests.v, a->counts[i]) * (a->compare.given ? 2 : 1);
    return total;
}

static td_status measure(td_served *s, const serve_args *a, td_error *err) {
    TD_TRY(td_served_warm_up(s, err));
    td_bench_fact(s->report, "bytes_per_token", json_real(s->bytes_per_token));
    TD_TRY(td_served_load(s, a->counts, a->n_counts, (size_t)a->requests.v, a->compare.given, err));
    if (!a->no_cache_test.given)
        TD_TRY(td_served_turns(s, err));
    return a->n_contexts ? td_served_memory(s, a->context, a->n_contexts, err) : TD_OK;
}

/* ---- the report ---- */

static void explain(const td_served *s) {
    td_bench_note(s->report,
                  "prompt, cached: tokens of a prompt as the server counts them, and those of them it had in "
                  "its cache; means.");
    td_bench_note(s->report,
                  "a token: (last - first) / (tokens - 1) of an answer. wait: of each token for the read that "
                  "brought it; 0 for one that came with the token before.");
    td_bench_note(s->report, "tokens/round, accepted: by the server's timings, where it sends them.");
}

/* Writes what there is, then says how it ended. */
static int conclude(const td_served *s, const serve_args *a, td_status st, const td_error *err) {
    const td_bench_plot plot = {.table = s->load,
                                .title = "Throughput by requests in flight",
                                .x = "concurrency",
                                .y = "tokens_per_s",
                                .group = a->compare.given ? "way" : NULL,
                                .log_x = true};
    td_progress_clear();
    if (s->with_rate == 0 && a->output.plot.given)
        td_bench_note(s->report, "%s was not drawn: there is no throughput.", a->output.plot.v);
    int rc = td_bench_end(s->report, &a->output, s->with_rate ? &plot : NULL, st, err);
    if (rc == TD_EXIT_OK && s->failed) {
        td_report_error("tandem", "%zu of %zu requests failed, the first with: %s", s->failed, s->ended,
                        s->first_failure);
        rc = TD_EXIT_FAILURE;
    }
    return rc;
}

static int perform(td_served *s, const serve_args *a) {
    td_error err = {0};
    td_status st = find_model(s, a, &err);
    if (st != TD_OK) {
        td_progress_clear();
        return td_report_failure(st, &err);
    }
    s->total = count_requests(a);
    say_facts(s, a);
    st = measure(s, a, &err);
    explain(s);
    return conclude(s, a, st, &err);
}

static int serve_with_args(serve_args *a) {
    set_defaults(a);
    if (!check(a))
        return TD_EXIT_USAGE;
    int rc = td_bench_check_output(me, &a->output);
    if (rc != TD_EXIT_OK)
        return rc;
    td_progress_enable(!a->quiet.given);
    td_served s = {.seed = a->seed.v,
                   .temperature = a->temp.v,
                   .ignore_eos = !a->ignore_eos_off.given,
                   .prompt = (uint32_t)a->prompt.v,
                   .answer = (uint32_t)a->n.v,
                   .bytes_per_token = 4};
    const td_bench_http_options options = {
        .url = a->url, .key = a->key.given ? a->key.v : NULL, .timeout = a->timeout.v, .stop = td_interrupted};
    td_error err = {0};
    td_status st = td_bench_http_open(&s.http, &options, &err);
    if (st != TD_OK)
        rc = td_report_failure(st, &err);
    else if (!(s.report = td_bench_report_new(me)))
        rc = td_report_failure(TD_E_NOMEM, NULL);
    else
        rc = perform(&s, a);
    td_free(s.model);
    td_bench_report_free(&s.report);
    td_bench_http_close(&s.http);
    return rc;
}

int td_bench_serve(int argc, char **argv) {
    static const char *const names[] = {"URL"};
    serve_args args = {0};
    const td_arg_group groups[] = {
        {"What is measured", table, sizeof table / sizeof *table, &args},
        {"Result", td_bench_output_table, td_bench_output_count, &args.output},
    };
    const td_args spec = {
        .command = me,
        .synopsis = "[OPTIONS] URL",
        .about = "Drives a running server of OpenAI's chat interface (Tandem's, llama.cpp's, vLLM's): throughput and\n"
                 "latencies by requests in flight, what a prompt cache saves the second turn of a conversation, and\n"
                 "memory by context where the server has /metrics. What was measured is always written; the exit code\n"
                 "is 1 when any request failed, and 130 after Ctrl-C.",
        .groups = groups,
        .n_groups = 2,
        .n_positional = 1,
        .positional = &args.url,
        .positional_names = names,
    };
    td_args_result parsed = td_args_parse(&spec, argc, argv);
    int rc = parsed == TD_ARGS_OK ? serve_with_args(&args) : parsed == TD_ARGS_HELP ? TD_EXIT_OK : TD_EXIT_USAGE;
    td_args_free(&spec);
    return rc;
}
