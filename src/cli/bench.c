/* bench.c - tandem bench: finds the subcommand; options and numbers that they share. */
#include "cli/bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "cli/commands.h"
#include "cli/report.h"

static const td_command subcommands[] = {
    {"kernels", "bytes a second against the memory's, the cost of rows, prefill", td_bench_kernels},
    {"mtp", "drafted against plain, by text, context and depth", td_bench_mtp},
    {"streams", "many answers at once, drafted against plain", td_bench_streams},
    {"serve", "drive a running OpenAI server: latencies, throughput, prompt cache", td_bench_serve},
    {"synth", "write a model of random weights in a published shape", td_bench_synth},
};
enum { N_SUBCOMMANDS = sizeof subcommands / sizeof *subcommands };

static int help(void) {
    printf("Usage: tandem bench WHAT [OPTIONS]\n\n"
           "Measures speed. Ways that are compared alternate in one run; figures are medians with their spread.\n\n"
           "What\n");
    for (int i = 0; i < N_SUBCOMMANDS; i++)
        printf("  %-10s %s\n", subcommands[i].name, subcommands[i].about);
    printf("\n'tandem bench WHAT --help' lists the options.\n");
    return TD_EXIT_OK;
}

int td_command_bench(int argc, char **argv) {
    const char *names[N_SUBCOMMANDS];
    for (int i = 0; i < N_SUBCOMMANDS; i++)
        names[i] = subcommands[i].name;
    if (argc < 1) {
        td_report_error("tandem bench", "nothing to measure given; expected kernels, mtp, streams, serve or synth");
        return TD_EXIT_USAGE;
    }
    if (strcmp(argv[0], "--help") == 0 || strcmp(argv[0], "-h") == 0)
        return help();
    for (int i = 0; i < N_SUBCOMMANDS; i++)
        if (strcmp(argv[0], names[i]) == 0)
            return subcommands[i].run(argc - 1, argv + 1);
    const char *near = td_args_nearest(argv[0], names, N_SUBCOMMANDS);
    td_report_error("tandem bench", "unknown subcommand '%s'%s%s%s", argv[0], near ? "; did you mean '" : "",
                    near ? near : "; 'tandem bench --help' lists them", near ? "'?" : "");
    return TD_EXIT_USAGE;
}

/* ---- options ---- */

#define O(field) offsetof(td_bench_output, field)
const td_arg td_bench_output_table[] = {
    {"format", 0, TD_ARG_CHOICE, O(format), 0, 0, "text|md|csv|json",
     "how the result is written (default: as the file's name ends, else text)"},
    {"out", 'o', TD_ARG_TEXTS, O(out), 0, 0, "FILE",
     "where to: .txt, .md, .csv or .json; may be repeated (default: standard output)"},
    {"plot", 0, TD_ARG_TEXT, O(plot), 0, 0, "FILE.svg", "draw the result, too (needs gnuplot)"},
};
#undef O
const size_t td_bench_output_count = sizeof td_bench_output_table / sizeof *td_bench_output_table;

/* One element of a list: "3", "0-8" or the word. */
static bool element(const char *text, uint32_t lo, uint32_t hi, const char *word, uint32_t *from, uint32_t *to) {
    char first[24];
    uint64_t a, b;
    size_t n = strcspn(text, "-");
    if (word && strcmp(text, word) == 0) {
        *from = *to = UINT32_MAX;
        return true;
    }
    if (n == 0 || n >= sizeof first)
        return false;
    memcpy(first, text, n);
    first[n] = '\0';
    if (!td_args_uint(first, lo, hi, &a) || (text[n] && !td_args_uint(text + n + 1, a, hi, &b)))
        return false;
    *from = (uint32_t)a;
    *to = text[n] ? (uint32_t)b : *from;
    return true;
}

bool td_bench_list(const char *command, const char *name, const char *text, uint32_t lo, uint32_t hi, const char *word,
                   uint32_t *out, uint32_t max, uint32_t *n) {
    *n = 0;
    for (const char *p = text;; p++) {
        char one[48];
        uint32_t from = 0, to = 0;
        size_t size = strcspn(p, ",");
        bool ok = size > 0 && size < sizeof one;
        if (ok) {
            memcpy(one, p, size);
            one[size] = '\0';
            ok = element(one, lo, hi, word, &from, &to);
        }
        if (!ok || to - from >= max - *n) {
            td_report_error(command, "--%s is '%s'; expected up to %u numbers from %u to %u, as in 1,2,4 or 0-8%s%s",
                            name, text, max, lo, hi, word ? ", or " : "", word ? word : "");
            return false;
        }
        for (uint32_t v = from; v != to; v++)
            out[(*n)++] = v;
        out[(*n)++] = to;
        p += size;
        if (*p == '\0')
            return true;
    }
}

bool td_bench_forced_profile(const char *command, td_bench_forced *forced) {
    double before = 1;
    forced->n = 0;
    if (!forced->profile.given)
        return true;
    for (const char *p = forced->profile.v;; p++) {
        char one[32];
        double v = -1;
        size_t size = strcspn(p, ",");
        if (size < sizeof one) {
            memcpy(one, p, size);
            one[size] = '\0';
        }
        if (size >= sizeof one || forced->n == TD_MAX_DRAFT || !td_args_float(one, false, &v) || v < 0 || v > before) {
            td_report_error(command,
                            "--forced-acceptance is '%s'; expected up to %d shares from 1 to 0 that do not grow, as in "
                            "0.8,0.65,0.5",
                            forced->profile.v, TD_MAX_DRAFT);
            return false;
        }
        forced->p[forced->n++] = (float)v;
        before = v;
        p += size;
        if (*p == '\0')
            return true;
    }
}

/* ---- numbers ---- */

static int by_value(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

td_bench_summary td_bench_summarise(const double *values, size_t n) {
    double sorted[TD_BENCH_MAX_REPEATS];
    n = n < TD_BENCH_MAX_REPEATS ? n : TD_BENCH_MAX_REPEATS;
    if (!n)
        return (td_bench_summary){0};
    memcpy(sorted, values, n * sizeof *sorted);
    qsort(sorted, n, sizeof *sorted, by_value);
    return (td_bench_summary){n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2, sorted[0],
                              sorted[n - 1]};
}

double td_bench_percentile(double *values, size_t n, double p) {
    if (!n)
        return 0;
    qsort(values, n, sizeof *values, by_value);
    size_t i = (size_t)ceil(p * (double)n);
    return values[i > 0 ? i - 1 : 0];
}

json_t *td_bench_real(double v) {
    return isfinite(v) && v > 0 ? json_real(v) : json_null();
}

json_t *td_bench_shares(const uint64_t *accepted, const uint64_t *drafted) {
    td_buf b;
    td_buf_init(&b, 512);
    for (int i = 0; i < TD_MAX_DRAFT && drafted[i] > 0; i++)
        (void)td_buf_printf(&b, "%s%.0f%%", i ? " " : "", 100.0 * (double)accepted[i] / (double)drafted[i]);
    json_t *v = b.size ? json_string(td_buf_str(&b)) : json_null();
    td_buf_free(&b);
    return v;
}

json_t *td_bench_counts(const uint64_t *at, const uint64_t *drafted) {
    json_t *list = json_array();
    for (int i = 0; i < TD_MAX_DRAFT && drafted[i] > 0; i++)
        json_array_append_new(list, json_integer((json_int_t)at[i]));
    return list;
}
