/* bench_report.h - the inside of a report, for the files that write and draw it. */
#ifndef TD_CLI_BENCH_REPORT_H
#define TD_CLI_BENCH_REPORT_H

#include "cli/bench.h"

enum { TD_BENCH_MAX_TABLES = 8, TD_BENCH_MAX_COLUMNS = 24, TD_BENCH_CELL_SIZE = 256 };

struct td_bench_table {
    const char *key, *title;
    const td_bench_column *columns;
    size_t n_columns;
    json_t *rows; /* array of arrays */
};

struct td_bench_report {
    const char *command;
    json_t *facts, *notes;
    td_bench_table tables[TD_BENCH_MAX_TABLES];
    size_t n_tables;
    char where[128];
};

/* A cell as text: numbers with so many decimals, of an array its elements between spaces. Returns `out`. */
const char *td_bench_cell_text(const json_t *v, int decimals, char out[TD_BENCH_CELL_SIZE]);

/* Number of the column with this key; there is one. */
size_t td_bench_column_of(const td_bench_table *t, const char *key);

/* True when gnuplot can be run. */
bool td_bench_can_draw(void);
/* True when the plot would show a point. */
bool td_bench_has_points(const td_bench_plot *plot);
/* Draws into `path`, as SVG; a file that failed is removed. Returns the exit code; one line has been printed when that
 * is not 0. */
int td_bench_draw(const td_bench_plot *plot, const char *path);

#endif
