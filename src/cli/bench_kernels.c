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
#define MEMORY_BYTES ((uint64_t)256 << 20)

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
    td_bench_table *passes;
    uint32_t contexts[MAX_CONTEXTS], n_contexts, rows[MAX_ROWS], n_rows, repeats, prompt;
    double memory;        /* bytes a second */
    bool disturbed;       /* a pass read faster than the memory does: something else ran */
    uint64_t done, total; /* for the bar */
} kernels;

static const td_bench_column pass_columns[] = {
    {"context", "context", 0}, {"rows", "rows", 0},           {"ms", "ms", 2},         {"min_ms", "min", 2},
    {"max_ms", "max", 2},      {"over_one", "over 1 row", 2}, {"gb_per_s", "GB/s", 1}, {"of_memory", "% of memory", 0},
};
static const td_bench_column draft_columns[] = {
    {"context", "context", 0}, {"drafts", "drafts", 0}, {"ms", "ms", 3},
    {"min_ms", "min", 3},      {"max_ms", "max", 3},    {"each_of_a_row", "each, % of 1 row", 1},
};
static const td_bench_column prompt_columns[] = {
    {"tokens", "tokens", 0},
    {"tokens_per_s", "tokens/s", 1},
    {"min", "min", 1},
    {"max", "max", 1},
};

static td_status tick(kernels *k, td_error *err) {
    if (!td_progress_show(NULL, "kernels", k->done++, k->total))
        return td_fail(err, TD_E_CANCELLED, "interrupted");
    return TD_OK;
}

static td_status measure_memory(kernels *k, td_error *err) {
    double rate;
    TD_TRY(td_measure_memory(k->opened.info->n_threads, MEMORY_BYTES, 8, &rate, err));
    k->memory = rate > k->memory ? rate : k->memory;
    return TD_OK;
}

/* ---- prompts ---- */

static td_status measure_prompt(kernels *k, td_error *err) {
    double speed[TD_BENCH_MAX_REPEATS], seconds;
    uint32_t n = k->repeats < 5 ? k->repeats : 5; /* the slowest of all, and the steadiest */
    for (uint32_t i = 0; i < n; i++) {
        TD_TRY(tick(k, err));
        TD_TRY(td_measure_prompt(k->measure, k->prompt, &seconds, err));
        speed[i] = k->prompt / seconds;
    }
    td_bench_summary s = td_bench_summarise(speed, n);
    td_bench_table *t = td_bench_table_new(k->report, "prompt", "Reading a prompt", prompt_columns, 4);
    if (!t)
        return td_fail(err, TD_E_NOMEM, "out of memory");
    td_bench_row(t, json_pack("[I,f,f,f]", (json_int_t)k->prompt, s.median, s.min, s.max));
    return TD_OK;
}

/* ---- rows and drafts at a context ---- */

typedef struct timings {
    double rows[MAX_ROWS][TD_BENCH_MAX_REPEATS]; /* seconds */
    double drafts[TD_BENCH_MAX_REPEATS];
    uint32_t n_drafts, made; /* drafts timed; tokens of the last one */
} timings;

static td_status one_repeat(kernels *k, timings *t, uint32_t repeat, td_error *err) {
    for (uint32_t i = 0; i < k->n_rows; i++) {
        uint32_t at = repeat % 2 ? k->n_rows - 1 - i : i;
        TD_TRY(tick(k, err));
        TD_TRY(td_measure_rows(k->measure, k->rows[at], &t->rows[at][repeat], err));
    }
    if (!k->opened.info->mtp_active)
        return TD_OK;
    TD_TRY(td_measure_draft(k->measure, k->opened.info->mtp_depth < 4 ? k->opened.info->mtp_depth : 4, &t->made,
                            &t->drafts[repeat], err));
    t->n_drafts += t->made > 0;
    return TD_OK;
}

static double fastest_of_one(const kernels *k, const timings *t) {
    for (uint32_t i = 0; i < k->n_rows; i++)
        if (k->rows[i] == 1)
            return td_bench_summarise(t->rows[i], k->repeats).min;
    return 0;
}

static void add_rows(kernels *k, const timings *t, uint32_t context) {
    const double bytes = (double)td_measure_weight_bytes(k->measure), one = fastest_of_one(k, t);
    for (uint32_t i = 0; i < k->n_rows; i++) {
        td_bench_summary s = td_bench_summarise(t->rows[i], k->repeats);
        k->disturbed = k->disturbed || (bytes > 64e6 && bytes / s.min > 1.05 * k->memory);
        td_bench_row(k->passes,
                     json_pack("[I,I,f,f,f,o,f,o]", (json_int_t)context, (json_int_t)k->rows[i], s.median * 1e3,
                               s.min * 1e3, s.max * 1e3, td_bench_real(one > 0 ? s.min / one : 0), bytes / s.min * 1e-9,
                               td_bench_real(k->memory > 0 ? 100 * bytes / s.min / k->memory : 0)));
    }
}

static void add_drafts(kernels *k, td_bench_table *drafts, const timings *t, uint32_t context) {
    if (!t->n_drafts || !t->made)
        return;
    td_bench_summary s = td_bench_summarise(t->drafts, k->repeats);
    double one = fastest_of_one(k, t);
    td_bench_row(drafts, json_pack("[I,I,f,f,f,o]", (json_int_t)context, (json_int_t)t->made, s.median * 1e3,
                                   s.min * 1e3, s.max * 1e3, td_bench_real(one > 0 ? 100 * s.min / t->made / one : 0)));
}

/* The memory takes its turn, too. Its rate has to be known before rows are written. */
static td_status measure_context(kernels *k, uint32_t context, timings *t, td_error *err) {
    double seconds;
    *t = (timings){0};
    TD_TRY(td_measure_prompt(k->measure, context, &seconds, err));
    TD_TRY(td_measure_rows(k->measure, 1, &seconds, err));
    for (uint32_t r = 0; r < k->repeats; r++) {
        TD_TRY(one_repeat(k, t, r, err));
        TD_TRY(measure_memory(k, err));
    }
    return TD_OK;
}

static td_status measure_all(kernels *k, td_error *err) {
    timings *t = td_calloc(k->n_contexts, sizeof *t);
    td_bench_table *drafts = NULL;
    td_status st = t ? measure_memory(k, err) : td_fail(err, TD_E_NOMEM, "out of memory");
    k->passes = td_bench_table_new(k->report, "rows", "Passes of the model, by rows", pass_columns, 8);
    if (k->opened.info->mtp_active)
        drafts = td_bench_table_new(k->report, "drafts", "Drafting", draft_columns, 6);
    for (uint32_t i = 0; i < k->n_contexts && st == TD_OK; i++)
        st = measure_context(k, k->contexts[i], &t[i], err);
    for (uint32_t i = 0; i < k->n_contexts && st == TD_OK; i++) {
        add_rows(k, &t[i], k->contexts[i]);
        if (drafts)
            add_drafts(k, drafts, &t[i], k->contexts[i]);
    }
    td_free(t);
    if (st == TD_OK)
        st = measure_prompt(k, err);
    return st;
}

/* ---- the command ---- */

static int measure_and_report(kernels *k) {
    td_error err = {0};
    uint32_t most = td_measure_max_rows(k->measure), kept = 0;
    for (uint32_t i = 0; i < k->n_rows; i++)
        if (k->rows[i] <= most)
            k->rows[kept++] = k->rows[i];
    k->n_rows = kept;
    k->total = (uint64_t)k->n_contexts * k->repeats * k->n_rows + 5;
    td_status st = measure_all(k, &err);
    td_progress_clear();
    if (st != TD_OK)
        return td_report_failure(st, &err);
    td_bench_model(k->report, k->opened.info);
    td_bench_fact(k->report, "memory_gb_per_s", json_real(k->memory * 1e-9));
    td_bench_fact(k->report, "weights_mb_a_row", json_real((double)td_measure_weight_bytes(k->measure) * 1e-6));
    td_bench_note(k->report,
                  "%% of memory: bytes of weights of one row over the fastest pass, against the rate at which "
                  "the same threads read memory in this run. Experts of further rows are not counted.");
    if (k->disturbed)
        td_bench_note(k->report,
                      "A pass read faster than the memory was measured to: the machine was not quiet, and the "
                      "shares are worth nothing.");
    td_bench_plot plot = {k->passes, "Cost of rows", "rows", "over_one", "context", false, NULL};
    return td_bench_finish(k->report, &k->args->output, &plot);
}

static int kernels_with_args(kernels_args *args) {
    kernels k = {.args = args};
    const char *me = "tandem bench kernels";
    k.repeats = args->repeats.given ? (uint32_t)args->repeats.v : 9;
    k.prompt = args->prompt.given ? (uint32_t)args->prompt.v : 512;
    if (!td_bench_list(me, "contexts", args->contexts.given ? args->contexts.v : "150", 1, 1 << 20, NULL, k.contexts,
                       MAX_CONTEXTS, &k.n_contexts) ||
        !td_bench_list(me, "rows", args->rows.given ? args->rows.v : "1-16", 1, MAX_ROWS, NULL, k.rows, MAX_ROWS,
                       &k.n_rows))
        return TD_EXIT_USAGE;
    uint32_t longest = k.prompt;
    for (uint32_t i = 0; i < k.n_contexts; i++)
        longest = k.contexts[i] > longest ? k.contexts[i] : longest;
    if (!args->model.ctx_size.given)
        args->model.ctx_size = (td_arg_uint){true, longest + MAX_ROWS + 16};
    if (!args->model.num_mtp_tokens.given)
        args->model.num_mtp_tokens = (td_arg_uint){true, MAX_ROWS - 1};
    int rc = td_open_engine(&k.opened, &args->model);
    td_error err = {0};
    k.report = td_bench_report_new(me);
    if (rc == TD_EXIT_OK && (!k.report || td_measure_open(&k.measure, k.opened.engine, &err) != TD_OK))
        rc = td_report_failure(k.report ? err.status : TD_E_NOMEM, &err);
    if (rc == TD_EXIT_OK)
        rc = measure_and_report(&k);
    td_measure_close(&k.measure);
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
