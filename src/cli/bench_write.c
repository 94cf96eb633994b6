/* bench_write.c - writes a report as text for people, as Markdown, CSV or JSON.
 *
 * Where it goes is looked at before anything is measured: hours of figures should not meet a directory that is not
 * there. What cannot be written at the end all the same goes to standard output. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/buf.h"
#include "cli/bench_report.h"
#include "cli/progress.h"
#include "cli/report.h"

#define MAX_OUTPUT ((size_t)64 << 20)

/* One way to write a report. */
typedef struct form {
    const char *name, *suffix;
    void (*write)(const td_bench_report *r, td_buf *b);
} form;

/* ---- text and Markdown ---- */

/* Characters, for columns that line up. */
static int width_of(const char *s) {
    int n = 0;
    for (; *s; s++)
        n += ((unsigned char)*s & 0xC0) != 0x80;
    return n;
}

static bool is_text_column(const td_bench_table *t, size_t c) {
    for (size_t i = 0; i < json_array_size(t->rows); i++)
        if (json_is_string(json_array_get(json_array_get(t->rows, i), c)))
            return true;
    return false;
}

static void put_cell(td_buf *b, const char *text, int width, bool left, bool last) {
    int pad = width - width_of(text);
    if (!left)
        (void)td_buf_printf(b, "%*s", pad > 0 ? pad : 0, "");
    (void)td_buf_puts(b, text);
    if (left && !last)
        (void)td_buf_printf(b, "%*s", pad > 0 ? pad : 0, "");
}

/* How a table is laid out for people: the columns that they see. */
typedef struct layout {
    const td_bench_table *t;
    size_t column[TD_BENCH_MAX_COLUMNS], n;
    int width[TD_BENCH_MAX_COLUMNS];
    bool left[TD_BENCH_MAX_COLUMNS];
    bool md;
} layout;

static layout lay_out(const td_bench_table *t, bool md) {
    layout l = {.t = t, .md = md};
    char text[TD_BENCH_CELL_SIZE];
    for (size_t c = 0; c < t->n_columns; c++) {
        if (!t->columns[c].title)
            continue;
        int width = width_of(t->columns[c].title);
        for (size_t i = 0; i < json_array_size(t->rows); i++) {
            const json_t *cell = json_array_get(json_array_get(t->rows, i), c);
            int w = width_of(td_bench_cell_text(cell, t->columns[c].decimals, text));
            width = w > width ? w : width;
        }
        l.column[l.n] = c;
        l.width[l.n] = width;
        l.left[l.n++] = is_text_column(t, c);
    }
    return l;
}

/* row NULL: the titles. */
static void put_line(td_buf *b, const layout *l, const json_t *row) {
    char text[TD_BENCH_CELL_SIZE];
    (void)td_buf_puts(b, l->md ? "| " : "  ");
    for (size_t i = 0; i < l->n; i++) {
        const td_bench_column *c = &l->t->columns[l->column[i]];
        bool last = i + 1 == l->n;
        put_cell(b, row ? td_bench_cell_text(json_array_get(row, l->column[i]), c->decimals, text) : c->title,
                 l->width[i], l->left[i], last && !l->md);
        (void)td_buf_puts(b, last ? (l->md ? " |\n" : "\n") : l->md ? " | " : "  ");
    }
}

static void put_table(td_buf *b, const td_bench_table *t, bool md) {
    layout l = lay_out(t, md);
    (void)td_buf_printf(b, md ? "\n### %s\n\n" : "\n%s\n", t->title);
    put_line(b, &l, NULL);
    if (md) {
        (void)td_buf_putc(b, '|');
        for (size_t i = 0; i < l.n; i++)
            (void)td_buf_puts(b, l.left[i] ? " --- |" : " ---: |");
        (void)td_buf_putc(b, '\n');
    }
    for (size_t i = 0; i < json_array_size(t->rows); i++)
        put_line(b, &l, json_array_get(t->rows, i));
}

static bool is_said(const json_t *fact) {
    return !json_is_null(fact) && !json_is_object(fact) && !json_is_array(fact);
}

static void write_people(const td_bench_report *r, td_buf *b, bool md) {
    const char *key;
    json_t *v;
    char text[TD_BENCH_CELL_SIZE];
    (void)td_buf_printf(b, md ? "## %s\n\n" : "%s\n", r->command);
    json_object_foreach(r->facts, key, v) {
        if (is_said(v))
            (void)td_buf_printf(b, md ? "- %s: %s\n" : "  %-16s %s\n", key, td_bench_cell_text(v, 2, text));
    }
    for (size_t i = 0; i < r->n_tables; i++)
        put_table(b, &r->tables[i], md);
    for (size_t i = 0; i < json_array_size(r->notes); i++)
        (void)td_buf_printf(b, "%s%s\n", i ? "" : "\n", json_string_value(json_array_get(r->notes, i)));
}

static void write_text(const td_bench_report *r, td_buf *b) {
    write_people(r, b, false);
}

static void write_markdown(const td_bench_report *r, td_buf *b) {
    write_people(r, b, true);
}

/* ---- CSV ---- */

static void put_csv(td_buf *b, const char *text) {
    if (!strpbrk(text, ",\"\n")) {
        (void)td_buf_puts(b, text);
        return;
    }
    (void)td_buf_putc(b, '"');
    for (; *text; text++)
        (void)td_buf_puts(b, *text == '"' ? "\"\"" : (char[]){*text, '\0'});
    (void)td_buf_putc(b, '"');
}

/* "# name: value", one line whatever the value holds. */
static void put_remark(td_buf *b, const char *name, const char *value) {
    (void)td_buf_printf(b, "# %s: ", name);
    for (; *value; value++)
        (void)td_buf_putc(b, *value == '\n' || *value == '\r' ? ' ' : *value);
    (void)td_buf_putc(b, '\n');
}

static void put_csv_facts(const td_bench_report *r, td_buf *b) {
    const char *key;
    json_t *v;
    char text[TD_BENCH_CELL_SIZE];
    put_remark(b, "command", r->command);
    json_object_foreach(r->facts, key, v) {
        if (is_said(v))
            put_remark(b, key, td_bench_cell_text(v, 6, text));
    }
}

static void put_csv_row(td_buf *b, const td_bench_table *t, const json_t *row) {
    char text[TD_BENCH_CELL_SIZE];
    (void)td_buf_puts(b, t->key);
    for (size_t c = 0; c < t->n_columns; c++) {
        if (!t->columns[c].key)
            continue;
        (void)td_buf_putc(b, ',');
        put_csv(b, td_bench_cell_text(json_array_get(row, c), 6, text));
    }
    (void)td_buf_putc(b, '\n');
}

/* Facts as remarks, tables one after the other, each under its header; the first column names the table. */
static void write_csv(const td_bench_report *r, td_buf *b) {
    put_csv_facts(r, b);
    for (size_t k = 0; k < r->n_tables; k++) {
        const td_bench_table *t = &r->tables[k];
        (void)td_buf_puts(b, k ? "\ntable" : "table");
        for (size_t c = 0; c < t->n_columns; c++)
            if (t->columns[c].key)
                (void)td_buf_printf(b, ",%s", t->columns[c].key);
        (void)td_buf_putc(b, '\n');
        for (size_t i = 0; i < json_array_size(t->rows); i++)
            put_csv_row(b, t, json_array_get(t->rows, i));
    }
    for (size_t i = 0; i < json_array_size(r->notes); i++)
        put_remark(b, "note", json_string_value(json_array_get(r->notes, i)));
}

/* ---- JSON ---- */

static int put_chunk(const char *bytes, size_t n, void *to) {
    return td_buf_append(to, bytes, n) == TD_OK ? 0 : -1;
}

static json_t *rows_of(const td_bench_table *t) {
    json_t *rows = json_array();
    for (size_t i = 0; i < json_array_size(t->rows); i++) {
        json_t *row = json_object();
        for (size_t c = 0; c < t->n_columns; c++)
            if (t->columns[c].key)
                json_object_set(row, t->columns[c].key, json_array_get(json_array_get(t->rows, i), c));
        json_array_append_new(rows, row);
    }
    return rows;
}

/* {"command", facts..., "tables": {key: [{column: cell}]}, "notes"} */
static void write_json(const td_bench_report *r, td_buf *b) {
    json_t *o = json_copy(r->facts), *tables = json_object();
    json_object_set_new(o, "command", json_string(r->command));
    for (size_t k = 0; k < r->n_tables; k++)
        json_object_set_new(tables, r->tables[k].key, rows_of(&r->tables[k]));
    json_object_set_new(o, "tables", tables);
    json_object_set(o, "notes", r->notes);
    json_dump_callback(o, put_chunk, b, JSON_COMPACT | JSON_REAL_PRECISION(9));
    (void)td_buf_putc(b, '\n');
    json_decref(o);
}

/* ---- which form, and where to ---- */

static const form forms[] = {
    {"text", ".txt", write_text},
    {"md", ".md", write_markdown},
    {"csv", ".csv", write_csv},
    {"json", ".json", write_json},
};
enum { N_FORMS = sizeof forms / sizeof *forms };

/* What --format says, or else the end of the name; NULL: a name with an end that says nothing. path NULL: none. */
static const form *form_of(const td_bench_output *o, const char *path) {
    const char *slash = path ? strrchr(path, '/') : NULL;
    const char *suffix = path ? strrchr(slash ? slash : path, '.') : NULL;
    for (int i = 0; i < N_FORMS; i++) {
        if (o->format.given && strcmp(forms[i].name, o->format.v) == 0)
            return &forms[i];
        if (!o->format.given && suffix && strcmp(forms[i].suffix, suffix) == 0)
            return &forms[i];
    }
    return suffix ? NULL : &forms[0];
}

/* A file that can be written now; one that was not there is not left behind. */
static bool can_write(const char *command, const char *path) {
    bool was_there = access(path, F_OK) == 0;
    int fd = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (fd < 0) {
        td_report_error(command, "%s: cannot write: %s", path, strerror(errno));
        return false;
    }
    close(fd);
    if (!was_there)
        (void)remove(path);
    return true;
}

int td_bench_check_output(const char *command, const td_bench_output *o) {
    for (size_t i = 0; i < o->out.n; i++) {
        const char *path = o->out.v[i];
        if (!form_of(o, path)) {
            td_report_error(command,
                            "--out is '%s'; expected a name that ends in .txt, .md, .csv or .json, or --format", path);
            return TD_EXIT_USAGE;
        }
        for (size_t k = 0; k < i; k++)
            if (strcmp(path, o->out.v[k]) == 0) {
                td_report_error(command, "--out is '%s' twice", path);
                return TD_EXIT_USAGE;
            }
        if (!can_write(command, path))
            return TD_EXIT_FAILURE;
    }
    if (!o->plot.given)
        return TD_EXIT_OK;
    if (!td_bench_can_draw()) {
        td_report_error(command, "--plot needs gnuplot, which is not installed");
        return TD_EXIT_FAILURE;
    }
    return can_write(command, o->plot.v) ? TD_EXIT_OK : TD_EXIT_FAILURE;
}

static bool write_file(const td_buf *b, const char *path) {
    FILE *f = fopen(path, "wbe");
    bool ok = f && fwrite(b->data, 1, b->size, f) == b->size;
    int saved = errno;
    if (f && fclose(f) != 0 && ok) {
        ok = false;
        saved = errno;
    }
    if (!ok)
        td_report_error("tandem", "%s: cannot write: %s; the result follows on standard output", path, strerror(saved));
    return ok;
}

/* path NULL: standard output. */
static int write_one(const td_bench_report *r, const td_bench_output *o, const char *path) {
    const form *f = form_of(o, path);
    td_buf b;
    td_buf_init(&b, MAX_OUTPUT);
    (f ? f : &forms[0])->write(r, &b);
    int rc = TD_EXIT_OK;
    if (b.failed) {
        td_report_error("tandem", "out of memory for the report");
        rc = TD_EXIT_FAILURE;
    } else if (!path || !write_file(&b, path)) {
        rc = path ? TD_EXIT_FAILURE : TD_EXIT_OK;
        fwrite(b.data, 1, b.size, stdout);
        if (!td_report_flush())
            rc = TD_EXIT_FAILURE;
    }
    td_buf_free(&b);
    return rc;
}

int td_bench_finish(td_bench_report *r, const td_bench_output *output, const td_bench_plot *plot) {
    int rc = TD_EXIT_OK;
    td_progress_clear();
    for (size_t i = 0; i < output->out.n; i++)
        if (write_one(r, output, output->out.v[i]) != TD_EXIT_OK)
            rc = TD_EXIT_FAILURE;
    if (output->out.n == 0)
        rc = write_one(r, output, NULL);
    if (output->plot.given && plot && td_bench_draw(plot, output->plot.v) != TD_EXIT_OK)
        rc = TD_EXIT_FAILURE;
    return rc;
}
