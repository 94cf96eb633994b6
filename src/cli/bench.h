/* bench.h - tandem bench: the parts that its subcommands share.
 *
 * A subcommand looks whether its result can be written, measures, and fills a report: facts about what was measured,
 * tables, notes. The report is then written as text for people, as Markdown, CSV or JSON, and one of its tables can be
 * drawn; a run that ends early reports what it has. A cell is a JSON value, null where there is nothing to say. */
#ifndef TD_CLI_BENCH_H
#define TD_CLI_BENCH_H

#include <jansson.h>

#include "cli/options.h"

/* ---- subcommands ---- */

int td_bench_kernels(int argc, char **argv);
int td_bench_mtp(int argc, char **argv);
int td_bench_streams(int argc, char **argv);
int td_bench_serve(int argc, char **argv);
int td_bench_synth(int argc, char **argv);

/* ---- options ---- */

typedef struct td_bench_output {
    td_arg_text format;
    td_arg_texts out; /* none: standard output */
    td_arg_text plot;
} td_bench_output;

extern const td_arg td_bench_output_table[];
extern const size_t td_bench_output_count;

/* Before anything is measured: can all of it be written, and drawn? Returns the exit code, after one line when it is
 * not 0. Leaves no file that was not there. */
int td_bench_check_output(const char *command, const td_bench_output *output);

typedef struct td_bench_forced {
    td_arg_text profile;
    float p[TD_MAX_DRAFT];
    uint32_t n;
} td_bench_forced;

/* "8", "1,2,4" or "0-8": ascending or not, each within [lo, hi]; `word` (or NULL) stands for UINT32_MAX. At most `max`.
 * False: one line about option --name has been printed after `command`. */
bool td_bench_list(const char *command, const char *name, const char *text, uint32_t lo, uint32_t hi, const char *word,
                   uint32_t *out, uint32_t max, uint32_t *n);
/* "0.8,0.65": reads forced->profile, when given, into p and n. */
bool td_bench_forced_profile(const char *command, td_bench_forced *forced);

/* ---- the report ---- */

typedef struct td_bench_column {
    const char *key;   /* in JSON and CSV; NULL: not there */
    const char *title; /* for people; NULL: not for them */
    int decimals;      /* of numbers that are not whole */
} td_bench_column;

typedef struct td_bench_report td_bench_report;
typedef struct td_bench_table td_bench_table;

/* NULL: out of memory. */
td_bench_report *td_bench_report_new(const char *command);
void td_bench_report_free(td_bench_report **r);

/* A fact: takes `value` over. */
void td_bench_fact(td_bench_report *r, const char *key, json_t *value);
/* What is known of a model and its drafter. */
void td_bench_model(td_bench_report *r, const td_engine_info *info);
/* A sentence behind the tables. */
void td_bench_note(td_bench_report *r, const char *fmt, ...) TD_PRINTF(2, 3);

/* `columns` [n] are constant. The table is the report's. NULL: out of memory. */
td_bench_table *td_bench_table_new(td_bench_report *r, const char *key, const char *title,
                                   const td_bench_column *columns, size_t n);
/* Takes the array over: a cell a column. */
void td_bench_row(td_bench_table *t, json_t *cells);

/* What is being measured, for the note of a run that ends there: "prose at 9000 tokens, depth 3". */
void td_bench_where(td_bench_report *r, const char *fmt, ...) TD_PRINTF(2, 3);

/* One line a value of `group` (NULL: one line) and of `and_group` (or NULL), y over x, keys of columns. Rows whose y is
 * no number are left out; an x that is a word makes a level, unless all are words. */
typedef struct td_bench_plot {
    const td_bench_table *table;
    const char *title, *x, *y, *group;
    bool log_x;
    const char *and_group;
} td_bench_plot;

/* Writes the report where and how the options say, and the plot when one was asked for and `plot` is there. What cannot
 * be written to its file goes to standard output. Returns the exit code. */
int td_bench_finish(td_bench_report *r, const td_bench_output *output, const td_bench_plot *plot);

/* The same for a run that ended with `st`: one that failed or was interrupted writes what its tables hold, if that is
 * anything, says where it ended, and returns the exit code of the failure. */
int td_bench_end(td_bench_report *r, const td_bench_output *output, const td_bench_plot *plot, td_status st,
                 const td_error *err);

/* ---- numbers ---- */

#define TD_BENCH_MAX_REPEATS 99

typedef struct td_bench_summary {
    double median, min, max;
} td_bench_summary;

td_bench_summary td_bench_summarise(const double *values, size_t n);
/* The value below which a share p of them lies; 0 for none. Sorts `values`. */
double td_bench_percentile(double *values, size_t n, double p);
/* A real number, or null when it is not finite or not above 0. */
json_t *td_bench_real(double v);
/* Shares of drafts accepted by position, for people: "62% 38%", or null without any. */
json_t *td_bench_shares(const uint64_t *accepted, const uint64_t *drafted);
/* One of the counts behind them, as an array as long as there were positions drafted at. */
json_t *td_bench_counts(const uint64_t *at, const uint64_t *drafted);

#endif
