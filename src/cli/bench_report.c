/* bench_report.c - a report under construction: facts, tables, notes.
 *
 * Everything is kept as JSON values from the start, and the other forms are made of them at the end (bench_write.c,
 * bench_plot.c), so that a figure is the same in all of them. */
#include "cli/bench_report.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/report.h"

td_bench_report *td_bench_report_new(const char *command) {
    td_bench_report *r = td_calloc(1, sizeof *r);
    if (!r)
        return NULL;
    r->command = command;
    r->facts = json_object();
    r->notes = json_array();
    return r;
}

void td_bench_report_free(td_bench_report **pr) {
    td_bench_report *r = *pr;
    if (!r)
        return;
    json_decref(r->facts);
    json_decref(r->notes);
    for (size_t i = 0; i < r->n_tables; i++)
        json_decref(r->tables[i].rows);
    td_free(r);
    *pr = NULL;
}

void td_bench_fact(td_bench_report *r, const char *key, json_t *value) {
    json_object_set_new(r->facts, key, value);
}

void td_bench_model(td_bench_report *r, const td_engine_info *i) {
    td_bench_fact(r, "model", json_string(i->model_path));
    td_bench_fact(r, "weights", json_string(i->weight_format));
    td_bench_fact(r, "isa", json_string(i->isa));
    td_bench_fact(r, "threads", json_integer(i->n_threads));
    td_bench_fact(r, "drafter", i->mtp_active ? json_string(i->mtp_kind) : json_null());
    td_bench_fact(r, "drafter_weights", i->mtp_active ? json_string(i->drafter_format) : json_null());
    td_bench_fact(r, "version", json_string(TD_VERSION));
}

void td_bench_note(td_bench_report *r, const char *fmt, ...) {
    char text[512];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    json_array_append_new(r->notes, json_string(text));
}

void td_bench_where(td_bench_report *r, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(r->where, sizeof r->where, fmt, ap);
    va_end(ap);
}

td_bench_table *td_bench_table_new(td_bench_report *r, const char *key, const char *title,
                                   const td_bench_column *columns, size_t n) {
    if (r->n_tables == TD_BENCH_MAX_TABLES || n > TD_BENCH_MAX_COLUMNS)
        return NULL;
    td_bench_table *t = &r->tables[r->n_tables];
    *t = (td_bench_table){key, title, columns, n, json_array()};
    if (!t->rows)
        return NULL;
    r->n_tables++;
    return t;
}

void td_bench_row(td_bench_table *t, json_t *cells) {
    json_array_append_new(t->rows, cells);
}

/* ---- cells ---- */

static void array_text(const json_t *list, int decimals, char out[TD_BENCH_CELL_SIZE]) {
    size_t size = 0;
    char one[TD_BENCH_CELL_SIZE];
    for (size_t i = 0; i < json_array_size(list) && size < TD_BENCH_CELL_SIZE; i++) {
        int n = snprintf(out + size, TD_BENCH_CELL_SIZE - size, "%s%s", i ? " " : "",
                         td_bench_cell_text(json_array_get(list, i), decimals, one));
        size += n > 0 ? (size_t)n : 0;
    }
}

const char *td_bench_cell_text(const json_t *v, int decimals, char out[TD_BENCH_CELL_SIZE]) {
    out[0] = '\0';
    if (json_is_string(v))
        snprintf(out, TD_BENCH_CELL_SIZE, "%s", json_string_value(v));
    else if (json_is_integer(v))
        snprintf(out, TD_BENCH_CELL_SIZE, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        snprintf(out, TD_BENCH_CELL_SIZE, "%.*f", decimals, json_real_value(v));
    else if (json_is_boolean(v))
        snprintf(out, TD_BENCH_CELL_SIZE, "%s", json_is_true(v) ? "yes" : "NO");
    else if (json_is_array(v))
        array_text(v, decimals, out);
    return out;
}

size_t td_bench_column_of(const td_bench_table *t, const char *key) {
    for (size_t c = 0; c < t->n_columns; c++)
        if (t->columns[c].key && strcmp(t->columns[c].key, key) == 0)
            return c;
    return 0;
}

/* ---- the end ---- */

static bool has_rows(const td_bench_report *r) {
    for (size_t i = 0; i < r->n_tables; i++)
        if (json_array_size(r->tables[i].rows) > 0)
            return true;
    return false;
}

int td_bench_end(td_bench_report *r, const td_bench_output *output, const td_bench_plot *plot, td_status st,
                 const td_error *err) {
    if (st == TD_OK)
        return td_bench_finish(r, output, plot);
    if (has_rows(r)) {
        td_bench_fact(r, "complete", json_false());
        td_bench_note(r, "ended at %s: %s", r->where[0] ? r->where : "the start",
                      err && err->message[0] ? err->message : td_status_text(st));
        (void)td_bench_finish(r, output, plot && td_bench_has_points(plot) ? plot : NULL);
    }
    return td_report_failure(st, err);
}
