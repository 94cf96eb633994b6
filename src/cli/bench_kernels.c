/* bench_kernels.c - tandem bench kernels: what the loaded model's passes cost.
 *
 * Passes of 1 to 16 rows take turns, repeat after repeat, so that a machine that changes its speed changes it for all;
 * the memory's rate is measured between them, and the best one counts. Shares of the bandwidth are of the best repeat:
 * on a machine that others use, too, that is the least disturbed one. Passes are the model's own, keys, norms and head
 * included. */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "cli/bench.h"
#include "cli/progress.h"
#include "cli/report.h"
#include "cli/signals.h"
#include "engine/measure.h"

enum { MAX_ROWS = TD_MAX_DRAFT, MAX_CONTEXTS = 16 };

typedef struct kernels_args {
    td_model_args model;
    td_bench_output output;
    td_arg_uint repeats, prompt;
    td_arg_text contexts, rows;
} kernels_args;

#define K(field) offsetof(kernels_args, field)
static const td_arg table[] = {
    {"contexts", 0, TD_ARG_TEXT, K(contexts), 0, 0, "LIST", "tokens before the rows (default 150)"},
    {"rows", 0, TD_ARG_TEXT, K(rows), 0, 0, "LIST", "rows of a pass (default 1-16)"},
    {"prompt", 0, TD_ARG_UINT, K(prompt), 1, 1 << 20, "N", "tokens of the prompt that is read (default 512)"},
    {"repeats", 'r', TD_ARG_UINT, K(repeats), 1, TD_BENCH_MAX_REPEATS, "N", "times each (default 9)"},
};
#undef K

typedef struct kernels {
    const kernels_args *args;
    td_opened opened;
    td_measure *measure;
    td_bench_report *report;
    td_bench_table *passes, *drafting;
    uint32_t contexts[MAX_CONTEXTS], n_contexts, repeats, prompt;
    uint32_t rows[MAX_ROWS + 1], n_rows, n_shown; /* one row is measured even where it is not asked for, as the last */
    uint32_t drafts;                              /* tokens of a draft; 0: none */
    double memory;                                /* bytes a second */
    bool beyond;                                  /* a pass read faster than the memory was measured to */
    uint64_t done, total;                         /* for the bar */
} kernels;

static const td_bench_column pass_columns[] = {
    {"context", "context", 0}, {"rows", "rows", 0},     {"ms", "ms", 2},
    {"min_ms", "min", 2},      {"max_ms", "max", 2},    {"over_one", "over 1 row", 2},
    {"read_mb", "MB read", 0}, {"gb_per_s", "GB/s", 1}, {"of_memory", "% of memory", 0},
};
static const td_bench_column draft_columns[] = {
    {"context", "context", 0},
    {"drafts", "drafts", 0},
    {"made", "made", 1},
    {"ms_each", "ms each", 3},
    {"min_ms", "min", 3},
    {"max_ms", "max", 3},
    {"each_of_a_row", "each, % of 1 row", 1},
};
static const td_bench_column prompt_columns[] = {
    {"tokens", "tokens", 0},
    {"tokens_per_s", "tokens/s", 1},
    {"min", "min", 1},
    {"max", "max", 1},
};
#define COUNT(columns) (sizeof(columns) / sizeof *(columns))

static td_status tick(kernels *k, td_error *err) {
    if (!td_progress_show(NULL, "kernels", k->done++, k->total))
        return td_fail(err, TD_E_CANCELLED, "interrupted");
    return TD_OK;
}

static td_status measure_memory(kernels *k, td_error *err) {
    double rate;
    td_measure_memory_options o = {
        .n_threads = k->opened.info->n_threads, .pin = k->args->model.pin.given, .repeats = 2};
    TD_TRY(td_measure_memory(&o, &rate, err));
    k->memory = rate > k->memory ? rate : k->memory;
    return TD_OK;
}

/* ---- prompts ---- */

static td_status measure_prompt(kernels *k, td_error *err) {
    double speed[TD_BENCH_MAX_REPEATS], seconds;
    uint32_t most = k->repeats < 5 ? k->repeats : 5, n = 0; /* the slowest of all, and the steadiest */
    td_status st = TD_OK;
    td_bench_table *t =
        td_bench_table_new(k->report, "prompt", "Reading a prompt", prompt_columns, COUNT(prompt_columns));
    if (!t)
        return td_fail(err, TD_E_NOMEM, "out of memory");
    td_bench_where(k->report, "a prompt of %u tokens", k->prompt);
    while (n < most && st == TD_OK) {
        st = tick(k, err);
        if (st == TD_OK)
            st = td_measure_prompt(k->measure, k->prompt, &seconds, err);
        if (st == TD_OK)
            speed[n++] = k->prompt / seconds;
    }
    td_bench_summary s = td_bench_summarise(speed, n);
    if (n)
        td_bench_row(t, json_pack("[I,f,f,f]", (json_int_t)k->prompt, s.median, s.min, s.max));
    return st;
}

/* ---- rows and drafts at a context ---- */

typedef struct timings {
    double rows[MAX_ROWS + 1][TD_BENCH_MAX_REPEATS]; /* seconds */
    double drafts[TD_BENCH_MAX_REPEATS];             /* seconds a token that was made */
    uint32_t n;                                      /* repeats that are whole */
    uint32_t n_drafts, made;                         /* drafts that made a token; tokens of all of them */
    uint64_t kv_bytes;                               /* that a pass of one row reads at the context */
} timings;

/* Drafts stop early where their drafter is unsure, so what they cost is counted by the token. */
static td_status one_draft(kernels *k, timings *t, td_error *err) {
    uint32_t made;
    double seconds;
    if (!k->drafts)
        return TD_OK;
    TD_TRY(td_measure_draft(k->measure, k->drafts, &made, &seconds, err));
    if (made) {
        t->drafts[t->n_drafts++] = seconds / made;
        t->made += made;
    }
    return TD_OK;
}

static td_status one_repeat(kernels *k, timings *t, uint32_t repeat, td_error *err) {
    for (uint32_t i = 0; i < k->n_rows; i++) {
        uint32_t at = repeat % 2 ? k->n_rows - 1 - i : i;
        TD_TRY(tick(k, err));
        TD_TRY(td_measure_rows(k->measure, k->rows[at], &t->rows[at][repeat], err));
    }
    return one_draft(k, t, err);
}

static double fastest_of_one(const kernels *k, const timings *t) {
    for (uint32_t i = 0; i < k->n_rows; i++)
        if (k->rows[i] == 1)
            return td_bench_summarise(t->rows[i], t->n).min;
    return 0;
}

static void add_rows(kernels *k, const timings *t, uint32_t context) {
    const double bytes = (double)(td_measure_weight_bytes(k->measure) + t->kv_bytes), one = fastest_of_one(k, t);
    for (uint32_t i = 0; i < k->n_shown; i++) {
        td_bench_summary s = td_bench_summarise(t->rows[i], t->n);
        k->beyond = k->beyond || bytes / s.min > 1.02 * k->memory;
        td_bench_row(k->passes, json_pack("[I,I,f,f,f,o,f,f,o]", (json_int_t)context, (json_int_t)k->rows[i],
                                          s.median * 1e3, s.min * 1e3, s.max * 1e3,
                                          td_bench_real(one > 0 ? s.min / one : 0), bytes * 1e-6, bytes / s.min * 1e-9,
                                          td_bench_real(k->memory > 0 ? 100 * bytes / s.min / k->memory : 0)));
    }
}

static void add_drafts(kernels *k, const timings *t, uint32_t context) {
    if (!t->n_drafts)
        return;
    td_bench_summary s = td_bench_summarise(t->drafts, t->n_drafts);
    double one = fastest_of_one(k, t);
    td_bench_row(k->drafting,
                 json_pack("[I,I,f,f,f,f,o]", (json_int_t)context, (json_int_t)k->drafts, (double)t->made / t->n_drafts,
                           s.median * 1e3, s.min * 1e3, s.max * 1e3, td_bench_real(one > 0 ? 100 * s.min / one : 0)));
}

/* The memory takes its turn, too. Its rate has to be known before rows are written. */
static td_status measure_context(kernels *k, uint32_t context, timings *t, td_error *err) {
    double seconds;
    td_bench_where(k->report, "rows at %u tokens", context);
    TD_TRY(td_measure_prompt(k->measure, context, &seconds, err));
    TD_TRY(td_measure_rows(k->measure, 1, &seconds, err));
    t->kv_bytes = td_measure_kv_bytes(k->measure);
    for (uint32_t r = 0; r < k->repeats; r++) {
        TD_TRY(one_repeat(k, t, r, err));
        t->n++;
        TD_TRY(measure_memory(k, err));
    }
    return TD_OK;
}

static td_status open_tables(kernels *k, td_error *err) {
    k->passes =
        td_bench_table_new(k->report, "rows", "Passes of the model, by rows", pass_columns, COUNT(pass_columns));
    if (k->drafts)
        k->drafting = td_bench_table_new(k->report, "drafts", "Drafting", draft_columns, COUNT(draft_columns));
    return k->passes && (k->drafting || !k->drafts) ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory");
}

/* What was measured before a failure is in the tables, too. */
static td_status measure_contexts(kernels *k, td_error *err) {
    timings *t = td_calloc(k->n_contexts, sizeof *t);
    td_status st = t ? measure_memory(k, err) : td_fail(err, TD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < k->n_contexts && st == TD_OK; i++)
        st = measure_context(k, k->contexts[i], &t[i], err);
    for (uint32_t i = 0; i < k->n_contexts && t; i++)
        if (t[i].n) {
            add_rows(k, &t[i], k->contexts[i]);
            add_drafts(k, &t[i], k->contexts[i]);
        }
    td_free(t);
    return st;
}

/* ---- the command ---- */

static void add_notes(kernels *k) {
    td_bench_note(k->report,
                  "%% of memory: what a pass of one row reads, weights and at the context keys and values, over the "
                  "fastest pass, against the fastest reading of memory by the same threads in this run. Experts of "
                  "further rows are not counted.");
    if (k->beyond)
        td_bench_note(k->report,
                      "A pass read faster than the memory was measured to: what it reads lies in part in the caches, "
                      "as that of a small model does, or other programs ran whenever the memory was measured.");
}

static int measure_and_report(kernels *k) {
    td_error err = {0};
    k->total = (uint64_t)k->n_contexts * k->repeats * k->n_rows + 5;
    td_measure_watch(k->measure, td_not_interrupted, NULL);
    td_status st = open_tables(k, &err);
    if (st == TD_OK)
        st = measure_contexts(k, &err);
    if (st == TD_OK)
        st = measure_prompt(k, &err);
    td_progress_clear();
    td_bench_model(k->report, k->opened.info);
    td_bench_fact(k->report, "memory_gb_per_s", td_bench_real(k->memory * 1e-9));
    td_bench_fact(k->report, "weights_mb_a_row", json_real((double)td_measure_weight_bytes(k->measure) * 1e-6));
    add_notes(k);
    td_bench_plot plot = {k->passes, "Cost of rows", "rows", "over_one", "context", false, NULL};
    return td_bench_end(k->report, &k->args->output, &plot, st, &err);
}

/* The rows that are asked for, and one row, which the others are compared with. */
static bool choose_rows(kernels *k, const char *me) {
    const td_arg_text *rows = &k->args->rows;
    if (!td_bench_list(me, "rows", rows->given ? rows->v : "1-16", 1, MAX_ROWS, NULL, k->rows, MAX_ROWS, &k->n_rows))
        return false;
    bool has_one = false;
    for (uint32_t i = 0; i < k->n_rows; i++)
        has_one = has_one || k->rows[i] == 1;
    k->n_shown = k->n_rows;
    if (!has_one)
        k->rows[k->n_rows++] = 1;
    return true;
}

/* Rows of a pass have room where drafts have: the engine is opened for as many, whatever is drafted. */
static void settle_engine(kernels *k, kernels_args *args) {
    uint32_t longest = k->prompt, most = 0;
    for (uint32_t i = 0; i < k->n_contexts; i++)
        longest = k->contexts[i] > longest ? k->contexts[i] : longest;
    for (uint32_t i = 0; i < k->n_rows; i++)
        most = k->rows[i] > most ? k->rows[i] : most;
    if (!args->model.ctx_size.given)
        args->model.ctx_size = (td_arg_uint){true, longest + MAX_ROWS + 16};
    k->drafts = args->model.num_mtp_tokens.given ? (uint32_t)args->model.num_mtp_tokens.v : 4;
    most = most - 1 > k->drafts ? most - 1 : k->drafts;
    args->model.num_mtp_tokens = (td_arg_uint){true, most};
}

static int measure_opened(kernels *k) {
    td_error err = {0};
    if (!k->opened.info->mtp_active)
        k->drafts = 0;
    td_status st = td_measure_open(&k->measure, k->opened.engine, &err);
    int rc = st == TD_OK ? measure_and_report(k) : td_report_failure(st, &err);
    td_measure_close(&k->measure);
    return rc;
}

static int kernels_with_args(kernels_args *args) {
    kernels k = {.args = args};
    const char *me = "tandem bench kernels";
    k.repeats = args->repeats.given ? (uint32_t)args->repeats.v : 9;
    k.prompt = args->prompt.given ? (uint32_t)args->prompt.v : 512;
    if (!td_bench_list(me, "contexts", args->contexts.given ? args->contexts.v : "150", 1, 1 << 20, NULL, k.contexts,
                       MAX_CONTEXTS, &k.n_contexts) ||
        !choose_rows(&k, me))
        return TD_EXIT_USAGE;
    int rc = td_bench_check_output(me, &args->output);
    if (rc != TD_EXIT_OK)
        return rc;
    settle_engine(&k, args);
    k.report = td_bench_report_new(me);
    rc = k.report ? td_open_engine(&k.opened, &args->model) : td_report_failure(TD_E_NOMEM, NULL);
    if (rc == TD_EXIT_OK)
        rc = measure_opened(&k);
    td_bench_report_free(&k.report);
    td_close_engine(&k.opened);
    return rc;
}

int td_bench_kernels(int argc, char **argv) {
    kernels_args args = {0};
    const td_arg_group groups[] = {
        {"What is measured", table, sizeof table / sizeof *table, &args},
        {"Result", td_bench_output_table, td_bench_output_count, &args.output},
        {"Model", td_model_arg_table, td_model_arg_count, &args.model},
    };
    const td_args spec = {
        .command = "tandem bench kernels",
        .synopsis = "[OPTIONS]",
        .about = "Times passes of a model: one row against the memory's bandwidth, further rows against one, a draft\n"
                 "against a row, and a prompt. What drafting can give follows from these.",
        .groups = groups,
        .n_groups = 3,
    };
    td_args_result parsed = td_args_parse(&spec, argc, argv);
    int rc = parsed == TD_ARGS_OK ? kernels_with_args(&args) : parsed == TD_ARGS_HELP ? TD_EXIT_OK : TD_EXIT_USAGE;
    td_args_free(&spec);
    return rc;
}
