/* bench_report.c - a report of tables, written as text, Markdown, CSV or JSON, and drawn through gnuplot.
 *
 * Everything is kept as JSON values from the start, and the other forms are made of them at the end, so that a figure
 * is the same in all of them. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "cli/bench.h"
#include "cli/progress.h"
#include "cli/report.h"

enum { MAX_TABLES = 8, MAX_COLUMNS = 24, CELL_SIZE = 256 };
#define MAX_OUTPUT ((size_t)64 << 20)

struct td_bench_table {
    const char *key, *title;
    const td_bench_column *columns;
    size_t n_columns;
    json_t *rows; /* array of arrays */
};

struct td_bench_report {
    const char *command;
    json_t *facts, *notes;
    td_bench_table tables[MAX_TABLES];
    size_t n_tables;
};

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

td_bench_table *td_bench_table_new(td_bench_report *r, const char *key, const char *title,
                                   const td_bench_column *columns, size_t n) {
    if (r->n_tables == MAX_TABLES || n > MAX_COLUMNS)
        return NULL;
    td_bench_table *t = &r->tables[r->n_tables++];
    *t = (td_bench_table){key, title, columns, n, json_array()};
    return t->rows ? t : NULL;
}

void td_bench_row(td_bench_table *t, json_t *cells) {
    json_array_append_new(t->rows, cells);
}

/* ---- cells ---- */

static const char *cell_text(const json_t *v, const td_bench_column *c, char out[CELL_SIZE]) {
    out[0] = '\0';
    if (json_is_string(v))
        snprintf(out, CELL_SIZE, "%s", json_string_value(v));
    else if (json_is_integer(v))
        snprintf(out, CELL_SIZE, "%lld", (long long)json_integer_value(v));
    else if (json_is_real(v))
        snprintf(out, CELL_SIZE, "%.*f", c->decimals, json_real_value(v));
    else if (json_is_boolean(v))
        snprintf(out, CELL_SIZE, "%s", json_is_true(v) ? "yes" : "NO");
    return out;
}

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

/* ---- text and Markdown ---- */

static void put_cell(td_buf *b, const char *text, int width, bool left, bool last) {
    int pad = width - width_of(text);
    if (!left)
        (void)td_buf_printf(b, "%*s", pad > 0 ? pad : 0, "");
    (void)td_buf_puts(b, text);
    if (left && !last)
        (void)td_buf_printf(b, "%*s", pad > 0 ? pad : 0, "");
}

static void put_line(td_buf *b, const td_bench_table *t, const json_t *row, const int *width, const bool *left,
                     bool md) {
    char text[CELL_SIZE];
    (void)td_buf_puts(b, md ? "| " : "  ");
    for (size_t c = 0; c < t->n_columns; c++) {
        bool last = c + 1 == t->n_columns;
        put_cell(b, row ? cell_text(json_array_get(row, c), &t->columns[c], text) : t->columns[c].title, width[c],
                 left[c], last && !md);
        (void)td_buf_puts(b, last ? (md ? " |\n" : "\n") : md ? " | " : "  ");
    }
}

static void put_table(td_buf *b, const td_bench_table *t, bool md) {
    int width[MAX_COLUMNS];
    bool left[MAX_COLUMNS];
    char text[CELL_SIZE];
    for (size_t c = 0; c < t->n_columns; c++) {
        width[c] = width_of(t->columns[c].title);
        left[c] = is_text_column(t, c);
        for (size_t i = 0; i < json_array_size(t->rows); i++) {
            int w = width_of(cell_text(json_array_get(json_array_get(t->rows, i), c), &t->columns[c], text));
            width[c] = w > width[c] ? w : width[c];
        }
    }
    (void)td_buf_printf(b, md ? "\n### %s\n\n" : "\n%s\n", t->title);
    put_line(b, t, NULL, width, left, md);
    if (md) {
        (void)td_buf_putc(b, '|');
        for (size_t c = 0; c < t->n_columns; c++)
            (void)td_buf_puts(b, left[c] ? " --- |" : " ---: |");
        (void)td_buf_putc(b, '\n');
    }
    for (size_t i = 0; i < json_array_size(t->rows); i++)
        put_line(b, t, json_array_get(t->rows, i), width, left, md);
}

static void write_people(const td_bench_report *r, td_buf *b, bool md) {
    static const td_bench_column plain = {"", "", 2};
    const char *key;
    json_t *v;
    char text[CELL_SIZE];
    (void)td_buf_printf(b, md ? "## %s\n\n" : "%s\n", r->command);
    json_object_foreach(r->facts, key, v) {
        if (!json_is_null(v) && !json_is_object(v) && !json_is_array(v))
            (void)td_buf_printf(b, md ? "- %s: %s\n" : "  %-16s %s\n", key, cell_text(v, &plain, text));
    }
    for (size_t i = 0; i < r->n_tables; i++)
        put_table(b, &r->tables[i], md);
    for (size_t i = 0; i < json_array_size(r->notes); i++)
        (void)td_buf_printf(b, "%s%s\n", i ? "" : "\n", json_string_value(json_array_get(r->notes, i)));
}

/* ---- CSV and JSON ---- */

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

/* Tables one after the other, each under its header; the first column names the table. */
static void write_csv(const td_bench_report *r, td_buf *b) {
    char text[CELL_SIZE];
    for (size_t k = 0; k < r->n_tables; k++) {
        const td_bench_table *t = &r->tables[k];
        (void)td_buf_puts(b, k ? "\ntable" : "table");
        for (size_t c = 0; c < t->n_columns; c++)
            (void)td_buf_printf(b, ",%s", t->columns[c].key);
        (void)td_buf_putc(b, '\n');
        for (size_t i = 0; i < json_array_size(t->rows); i++) {
            (void)td_buf_puts(b, t->key);
            for (size_t c = 0; c < t->n_columns; c++) {
                td_bench_column exact = t->columns[c];
                exact.decimals = 6;
                (void)td_buf_putc(b, ',');
                put_csv(b, cell_text(json_array_get(json_array_get(t->rows, i), c), &exact, text));
            }
            (void)td_buf_putc(b, '\n');
        }
    }
}

static int put_chunk(const char *bytes, size_t n, void *to) {
    return td_buf_append(to, bytes, n) == TD_OK ? 0 : -1;
}

/* {"command", facts..., "tables": {key: [{column: cell}]}, "notes"} */
static void write_json(const td_bench_report *r, td_buf *b) {
    json_t *o = json_copy(r->facts), *tables = json_object();
    json_object_set_new(o, "command", json_string(r->command));
    for (size_t k = 0; k < r->n_tables; k++) {
        const td_bench_table *t = &r->tables[k];
        json_t *rows = json_array();
        for (size_t i = 0; i < json_array_size(t->rows); i++) {
            json_t *row = json_object();
            for (size_t c = 0; c < t->n_columns; c++)
                json_object_set(row, t->columns[c].key, json_array_get(json_array_get(t->rows, i), c));
            json_array_append_new(rows, row);
        }
        json_object_set_new(tables, t->key, rows);
    }
    json_object_set_new(o, "tables", tables);
    json_object_set(o, "notes", r->notes);
    json_dump_callback(o, put_chunk, b, JSON_COMPACT | JSON_REAL_PRECISION(9));
    (void)td_buf_putc(b, '\n');
    json_decref(o);
}

/* ---- the plot ---- */

static size_t column_of(const td_bench_table *t, const char *key) {
    for (size_t c = 0; c < t->n_columns; c++)
        if (strcmp(t->columns[c].key, key) == 0)
            return c;
    return 0;
}

/* Into a gnuplot string in single quotes, where only those need care. */
static void put_quoted(FILE *f, const char *s) {
    putc('\'', f);
    for (; *s; s++)
        if (*s == '\'')
            fputs("''", f);
        else
            putc((unsigned char)*s < 0x20 ? ' ' : *s, f);
    putc('\'', f);
}

static void group_name(const td_bench_plot *p, const json_t *row, char out[CELL_SIZE]) {
    out[0] = '\0';
    if (p->group) {
        size_t c = column_of(p->table, p->group);
        cell_text(json_array_get(row, c), &p->table->columns[c], out);
    }
}

/* Every group once, in the order of its first row. */
static json_t *groups_of(const td_bench_plot *p) {
    json_t *seen = json_object(), *list = json_array();
    for (size_t i = 0; i < json_array_size(p->table->rows); i++) {
        char name[CELL_SIZE];
        group_name(p, json_array_get(p->table->rows, i), name);
        if (!json_object_get(seen, name)) {
            json_object_set_new(seen, name, json_true());
            json_array_append_new(list, json_string(name));
        }
    }
    json_decref(seen);
    return list;
}

static void put_points(FILE *f, const td_bench_plot *p, const char *group) {
    size_t x = column_of(p->table, p->x), y = column_of(p->table, p->y);
    for (size_t i = 0; i < json_array_size(p->table->rows); i++) {
        const json_t *row = json_array_get(p->table->rows, i);
        const json_t *a = json_array_get(row, x), *b = json_array_get(row, y);
        char name[CELL_SIZE];
        group_name(p, row, name);
        if (strcmp(name, group) == 0 && json_is_number(a) && json_is_number(b))
            fprintf(f, "%.9g %.9g\n", json_number_value(a), json_number_value(b));
    }
    fputs("e\n", f);
}

static void put_script(FILE *f, const td_bench_plot *p, const char *path) {
    const td_bench_table *t = p->table;
    json_t *groups = groups_of(p);
    fputs("set terminal svg size 800,500 font 'sans-serif,12' background 'white'\nset output ", f);
    put_quoted(f, path);
    fputs("\nset key outside right noenhanced\nset grid\nset yrange [0:*]\nset title ", f);
    put_quoted(f, p->title);
    fputs(" noenhanced\nset xlabel ", f);
    put_quoted(f, t->columns[column_of(t, p->x)].title);
    fputs("\nset ylabel ", f);
    put_quoted(f, t->columns[column_of(t, p->y)].title);
    fputs(p->log_x ? "\nset logscale x 2\nplot " : "\nplot ", f);
    for (size_t i = 0; i < json_array_size(groups); i++) {
        fputs(i ? ", '-' with linespoints title " : "'-' with linespoints title ", f);
        put_quoted(f, json_string_value(json_array_get(groups, i)));
    }
    putc('\n', f);
    for (size_t i = 0; i < json_array_size(groups); i++)
        put_points(f, p, json_string_value(json_array_get(groups, i)));
    json_decref(groups);
}

static bool have_gnuplot(void) {
    return system("command -v gnuplot >/dev/null 2>&1") == 0; /* the words are ours */
}

static int draw(const td_bench_plot *p, const char *path) {
    if (!have_gnuplot()) {
        td_report_error("tandem bench", "--plot needs gnuplot, which is not installed: %s was not drawn", path);
        return TD_EXIT_FAILURE;
    }
    if (json_array_size(p->table->rows) == 0) {
        td_report_error("tandem bench", "there is nothing to draw in %s", path);
        return TD_EXIT_FAILURE;
    }
    FILE *f = popen("gnuplot", "w");
    if (!f) {
        td_report_error("tandem bench", "cannot run gnuplot: %s", strerror(errno));
        return TD_EXIT_FAILURE;
    }
    put_script(f, p, path);
    int status = pclose(f);
    if (status != 0) {
        td_report_error("tandem bench", "gnuplot failed: %s was not drawn", path);
        return TD_EXIT_FAILURE;
    }
    return TD_EXIT_OK;
}

/* ---- the end ---- */

static int write_out(const td_buf *b, const char *path) {
    if (b->failed) {
        td_report_error("tandem", "out of memory for the report");
        return TD_EXIT_FAILURE;
    }
    if (!path) {
        fwrite(b->data, 1, b->size, stdout);
        return td_report_flush() ? TD_EXIT_OK : TD_EXIT_FAILURE;
    }
    FILE *f = fopen(path, "wbe");
    bool ok = f && fwrite(b->data, 1, b->size, f) == b->size;
    int saved = errno;
    if (f && fclose(f) != 0 && ok) {
        ok = false;
        saved = errno;
    }
    if (!ok)
        td_report_error("tandem", "%s: cannot write: %s", path, strerror(saved));
    return ok ? TD_EXIT_OK : TD_EXIT_FAILURE;
}

int td_bench_finish(td_bench_report *r, const td_bench_output *output, const td_bench_plot *plot) {
    const char *format = output->format.given ? output->format.v : "text";
    td_buf b;
    td_buf_init(&b, MAX_OUTPUT);
    td_progress_clear();
    if (strcmp(format, "json") == 0)
        write_json(r, &b);
    else if (strcmp(format, "csv") == 0)
        write_csv(r, &b);
    else
        write_people(r, &b, strcmp(format, "md") == 0);
    int rc = write_out(&b, output->out.given ? output->out.v : NULL);
    td_buf_free(&b);
    if (rc == TD_EXIT_OK && output->plot.given && plot)
        rc = draw(plot, output->plot.v);
    return rc;
}
