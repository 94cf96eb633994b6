/* bench_streams.c - tandem bench streams: tokens a second of all answers together, at 1, 2, 4 and 8 at once.
 *
 * The engine's scheduler gets as many requests as there are to be streams. What counts are the tokens that come while
 * all of them are answering: from the moment when the last one has its first token until the first one ends, so that
 * neither prompts nor stragglers are in the figure. Drafted and plain take turns as in bench mtp. */
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "base/clock.h"
#include "cli/bench.h"
#include "cli/bench_texts.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/signals.h"

enum { MAX_STREAMS = 64, MAX_COUNTS = 8 };

typedef struct streams_args {
    td_model_args model;
    td_bench_output output;
    td_sampling_args sampling;
    td_bench_forced forced;
    td_arg_uint repeats, n, context;
    td_arg_text streams;
    td_arg_flag mixed;
} streams_args;

#define A(field) offsetof(streams_args, field)
static const td_arg table[] = {
    {"streams", 0, TD_ARG_TEXT, A(streams), 0, 0, "LIST", "answers at once (default 1,2,4,8)"},
    {"context", 0, TD_ARG_UINT, A(context), 16, 1 << 20, "N", "tokens of a prompt (default 150)"},
    {"mixed", 0, TD_ARG_FLAG, A(mixed), 0, 0, NULL,
     "prompts of unlike lengths: of every second one four times as long"},
    {"max-tokens", 'n', TD_ARG_UINT, A(n), 8, 1 << 20, "N", "tokens of an answer (default 128)"},
    {"repeats", 'r', TD_ARG_UINT, A(repeats), 1, TD_BENCH_MAX_REPEATS, "N", "times each way (default 3)"},
    {"forced-acceptance", 0, TD_ARG_TEXT, A(forced.profile), 0, 0, "LIST",
     "accept drafts by position in these shares of the rounds: for random weights"},
};
#undef A

static const td_bench_column columns[] = {
    {"streams", "streams", 0}, {"way", "way", 0},       {"tokens_per_s", "tokens/s", 1},
    {"min", "min", 1},         {"max", "max", 1},       {"ratio", "ratio", 2},
    {"ratio_min", "min", 2},   {"ratio_max", "max", 2}, {"identical", "same text", 0},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns };

typedef struct bench {
    const streams_args *args;
    td_opened opened;
    td_scheduler *scheduler;
    td_bench_report *report;
    td_bench_table *table;
    td_request request;
    td_token *prompt[MAX_STREAMS];
    size_t n_prompt[MAX_STREAMS];
    uint32_t counts[MAX_COUNTS], n_counts, most, repeats;
    uint64_t plain_hash[MAX_STREAMS]; /* of each stream's tokens, answered plainly */
    bool identical;
    uint64_t done, total;
} bench;

/* ---- one batch ---- */

/* Written by the scheduler's thread, under the lock; read when all have ended. */
typedef struct batch {
    pthread_mutex_t lock;
    pthread_cond_t ended;
    uint32_t n, n_answering, n_ended;
    uint64_t tokens, at_full; /* so far; when the last stream had its first token */
    int64_t full, first_end;  /* clock; 0: not yet */
    uint64_t tokens_at_end;
    td_error error;
} batch;

typedef struct stream {
    batch *in;
    bool answering;
    uint64_t hash;
} stream;

static bool on_text(void *user, const td_piece *piece) {
    stream *s = user;
    batch *b = s->in;
    pthread_mutex_lock(&b->lock);
    if (!s->answering && piece->n_tokens) {
        s->answering = true;
        if (++b->n_answering == b->n) {
            b->full = td_clock_ns();
            b->at_full = b->tokens + piece->n_tokens;
        }
    }
    b->tokens += piece->n_tokens;
    for (size_t i = 0; i < piece->n_tokens; i++)
        s->hash = (s->hash ^ (uint64_t)piece->tokens[i]) * UINT64_C(0x100000001B3);
    pthread_mutex_unlock(&b->lock);
    return !td_interrupted();
}

static void on_end(void *user, const td_result *result, const td_error *err) {
    stream *s = user;
    batch *b = s->in;
    pthread_mutex_lock(&b->lock);
    if (!result)
        b->error = *err;
    if (b->n_ended++ == 0) {
        b->first_end = td_clock_ns();
        b->tokens_at_end = b->tokens;
    }
    pthread_cond_signal(&b->ended);
    pthread_mutex_unlock(&b->lock);
}

static td_status submit_all(bench *b, batch *in, stream *streams, bool plain, uint32_t *submitted, td_error *err) {
    for (uint32_t i = 0; i < in->n; i++) {
        td_request q = b->request;
        uint64_t id;
        streams[i] = (stream){.in = in, .hash = UINT64_C(0xCBF29CE484222325)};
        q.prompt = b->prompt[i];
        q.n_prompt = b->n_prompt[i];
        q.no_mtp = plain;
        q.on_text = on_text;
        q.is_wanted = td_not_interrupted; /* while its prompt is read, too */
        q.user = &streams[i];
        q.sampling.seed += i;
        TD_TRY(td_scheduler_submit(b->scheduler, &q, i, on_end, &id, err));
        ++*submitted;
    }
    return TD_OK;
}

/* Tokens a second while all n streams were answering; 0 when they never were. */
static td_status run_batch(bench *b, uint32_t n, bool plain, double *speed, bool *same, td_error *err) {
    batch in = {.n = n};
    stream streams[MAX_STREAMS];
    uint32_t submitted = 0;
    pthread_mutex_init(&in.lock, NULL);
    pthread_cond_init(&in.ended, NULL);
    td_status st = submit_all(b, &in, streams, plain, &submitted, err);
    pthread_mutex_lock(&in.lock);
    while (in.n_ended < submitted)
        pthread_cond_wait(&in.ended, &in.lock);
    pthread_mutex_unlock(&in.lock);
    pthread_cond_destroy(&in.ended);
    pthread_mutex_destroy(&in.lock);
    if (st == TD_OK && td_interrupted())
        st = td_fail(err, TD_E_CANCELLED, "interrupted");
    if (st == TD_OK && in.error.status != TD_OK) {
        *err = in.error;
        st = in.error.status;
    }
    bool overlap = in.full && in.first_end > in.full;
    *speed = overlap ? (double)(in.tokens_at_end - in.at_full) / ((double)(in.first_end - in.full) * 1e-9) : 0;
    for (uint32_t i = 0; i < n && st == TD_OK; i++) {
        if (!b->plain_hash[i])
            b->plain_hash[i] = streams[i].hash;
        *same = *same && b->plain_hash[i] == streams[i].hash;
    }
    return st;
}

/* ---- the table ---- */

typedef struct outcome {
    double speed[2][TD_BENCH_MAX_REPEATS], ratio[TD_BENCH_MAX_REPEATS]; /* drafted, plain */
    bool same[2];
} outcome;

static void add_rows(bench *b, uint32_t n, const outcome *o) {
    td_bench_summary ratio = td_bench_summarise(o->ratio, b->repeats);
    bool forced = b->args->forced.n > 0;
    for (int plain = 1; plain >= 0; plain--) {
        td_bench_summary s = td_bench_summarise(o->speed[plain], b->repeats);
        td_bench_row(b->table, json_pack("[I,s,o,o,o,o,o,o,o]", (json_int_t)n, plain ? "plain" : "drafted",
                                         td_bench_real(s.median), td_bench_real(s.min), td_bench_real(s.max),
                                         plain ? json_null() : td_bench_real(ratio.median),
                                         plain ? json_null() : td_bench_real(ratio.min),
                                         plain ? json_null() : td_bench_real(ratio.max),
                                         forced ? json_null() : json_boolean(o->same[plain])));
    }
    b->identical = b->identical && (forced || (o->same[0] && o->same[1]));
}

static td_status run_count(bench *b, uint32_t n, td_error *err) {
    outcome *o = td_calloc(1, sizeof *o);
    td_status st = o ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory");
    if (o)
        o->same[0] = o->same[1] = true;
    for (uint32_t k = 0; k < b->repeats && st == TD_OK; k++) {
        for (int side = 0; side < 2 && st == TD_OK; side++) {
            bool plain = (side + (int)k) % 2 == 0; /* plain first in the first repeat: it gives the texts */
            if (!td_progress_show(NULL, "streams", b->done++, b->total))
                st = td_fail(err, TD_E_CANCELLED, "interrupted");
            else
                st = run_batch(b, n, plain, &o->speed[plain][k], &o->same[plain], err);
        }
        o->ratio[k] = o->speed[1][k] > 0 ? o->speed[0][k] / o->speed[1][k] : 0;
    }
    if (st == TD_OK)
        add_rows(b, n, o);
    td_free(o);
    return st;
}

static td_status run_all(bench *b, uint32_t context, td_error *err) {
    td_scheduler_options o = td_scheduler_options_default();
    for (uint32_t i = 0; i < b->most; i++) {
        uint32_t n = b->args->mixed.given && i % 2 ? 4 * context : context;
        TD_TRY(td_bench_prompt(b->opened.engine, i % TD_BENCH_CLASSES, n, &b->prompt[i], &b->n_prompt[i], err));
    }
    TD_TRY(td_scheduler_open(&b->scheduler, b->opened.engine, &o, err));
    for (uint32_t i = 0; i < b->n_counts; i++) {
        td_bench_where(b->report, "%u streams", b->counts[i]);
        TD_TRY(run_count(b, b->counts[i], err));
    }
    return TD_OK;
}

static int perform(bench *b, uint32_t context) {
    td_error err = {0};
    b->total = 2 * (uint64_t)b->repeats * b->n_counts;
    b->identical = true;
    td_bench_model(b->report, b->opened.info);
    td_bench_fact(b->report, "lengths", json_string(b->args->mixed.given ? "mixed" : "equal"));
    if (b->args->forced.n)
        td_bench_fact(b->report, "forced_acceptance", json_string(b->args->forced.profile.v));
    td_status st = run_all(b, context, &err);
    td_scheduler_close(&b->scheduler);
    td_progress_clear();
    if (!b->opened.info->mtp_active)
        td_bench_note(b->report, "no drafts: %s", b->opened.info->mtp_reason);
    td_bench_fact(b->report, "identical", b->args->forced.n ? json_null() : json_boolean(b->identical));
    td_bench_note(b->report, "Tokens a second of all streams together, while all of them were answering.");
    td_bench_plot plot = {b->table, "Tokens a second of all streams", "streams", "tokens_per_s", "way", true, NULL};
    int rc = td_bench_end(b->report, &b->args->output, &plot, st, &err);
    if (!b->identical && st == TD_OK) {
        td_report_error("tandem", "the drafted and the plain text differ: this is a defect of Tandem");
        rc = TD_EXIT_FAILURE;
    }
    return rc;
}

static int streams_with_args(streams_args *args, td_logit_bias *biases) {
    const char *me = "tandem bench streams";
    bench b = {.args = args, .repeats = args->repeats.given ? (uint32_t)args->repeats.v : 3};
    uint32_t context = args->context.given ? (uint32_t)args->context.v : 150;
    b.request = td_request_default();
    b.request.max_tokens = args->n.given ? (uint32_t)args->n.v : 128;
    b.request.ignore_eos = true;
    b.request.benchmark = true;
    if (!td_bench_forced_profile(me, &args->forced) ||
        !td_sampling_of(&args->sampling, td_sampling_default(), me, biases, &b.request.sampling) ||
        !td_bench_list(me, "streams", args->streams.given ? args->streams.v : "1,2,4,8", 1, MAX_STREAMS, NULL, b.counts,
                       MAX_COUNTS, &b.n_counts))
        return TD_EXIT_USAGE;
    int rc = td_bench_check_output(me, &args->output);
    if (rc != TD_EXIT_OK)
        return rc;
    for (uint32_t i = 0; i < b.n_counts; i++)
        b.most = b.counts[i] > b.most ? b.counts[i] : b.most;
    if (!args->model.ctx_size.given)
        args->model.ctx_size = (td_arg_uint){true, 5 * context + b.request.max_tokens + 320};
    args->model.parallel = (td_arg_uint){true, b.most};
    args->model.forced_acceptance = args->forced.p;
    args->model.n_forced_acceptance = args->forced.n;
    rc = td_open_engine(&b.opened, &args->model);
    b.report = td_bench_report_new(me);
    if (b.report)
        b.table = td_bench_table_new(b.report, "streams", "Many answers at once", columns, N_COLUMNS);
    if (rc == TD_EXIT_OK)
        rc = b.table ? perform(&b, context) : td_report_failure(TD_E_NOMEM, NULL);
    for (uint32_t i = 0; i < b.most; i++)
        td_tokens_free(b.prompt[i]);
    td_bench_report_free(&b.report);
    td_close_engine(&b.opened);
    return rc;
}

int td_bench_streams(int argc, char **argv) {
    streams_args args = {0};
    const td_arg_group groups[] = {
        {"What is measured", table, sizeof table / sizeof *table, &args},
        {"Result", td_bench_output_table, td_bench_output_count, &args.output},
        {"Sampling (default: temperature 0, everything off)", td_sampling_arg_table, td_sampling_arg_count,
         &args.sampling},
        {"Model", td_model_arg_table, td_model_arg_count, &args.model},
    };
    const td_args spec = {
        .command = "tandem bench streams",
        .synopsis = "[OPTIONS]",
        .about =
            "Answers several prompts at once, with drafts and plainly, in turn. What counts is the number of tokens\n"
            "a second of all answers together. Exit code 1 when a text differs.",
        .groups = groups,
        .n_groups = 4,
    };
    td_args_result parsed = td_args_parse(&spec, argc, argv);
    int rc = parsed == TD_ARGS_HELP ? TD_EXIT_OK : TD_EXIT_USAGE;
    td_logit_bias *biases = td_calloc(args.sampling.logit_bias.n, sizeof *biases);
    if (parsed == TD_ARGS_OK)
        rc = biases ? streams_with_args(&args, biases) : td_report_failure(TD_E_NOMEM, NULL);
    td_free(biases);
    td_args_free(&spec);
    return rc;
}
