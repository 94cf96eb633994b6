/* bench_plot.c - draws a table of a report through gnuplot.
 *
 * The rows become series: one a group, of the rows whose y is a number. An x that is a word ("auto" among depths) is no
 * place on the axis, so such a row is a level, a dashed line from one end to the other. Where all x are words they are
 * the axis. Series are known, and so is whether there is anything to draw, before gnuplot starts. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/bench_report.h"
#include "cli/report.h"

typedef struct chart {
    const td_bench_plot *plot;
    size_t x, y;     /* columns */
    json_t *words;   /* {word: place} when all x are words; else NULL */
    json_t *groups;  /* {title: number} */
    json_t *series;  /* {title: {"group", "level", "points": [[x, y]]}} in the order of their first points */
    double from, to; /* of the axis */
    bool any_x, log;
} chart;

/* ---- series ---- */

/* "prose", "prose 2", or "" without groups. */
static void group_title(const td_bench_plot *p, const json_t *row, char out[TD_BENCH_CELL_SIZE]) {
    const char *const keys[] = {p->group, p->and_group};
    size_t size = 0;
    out[0] = '\0';
    for (int i = 0; i < 2; i++) {
        char text[TD_BENCH_CELL_SIZE];
        if (!keys[i])
            continue;
        size_t column = td_bench_column_of(p->table, keys[i]);
        td_bench_cell_text(json_array_get(row, column), p->table->columns[column].decimals, text);
        int n = snprintf(out + size, TD_BENCH_CELL_SIZE - size, "%s%s", size ? " " : "", text);
        size += n > 0 ? (size_t)n : 0;
        if (size >= TD_BENCH_CELL_SIZE)
            return;
    }
}

static json_int_t number_in(json_t *names, const char *name) {
    if (!json_object_get(names, name))
        json_object_set_new(names, name, json_integer((json_int_t)json_object_size(names)));
    return json_integer_value(json_object_get(names, name));
}

static bool all_words(const chart *c) {
    const json_t *rows = c->plot->table->rows;
    for (size_t i = 0; i < json_array_size(rows); i++)
        if (!json_is_string(json_array_get(json_array_get(rows, i), c->x)))
            return false;
    return true;
}

static void reach(chart *c, double x) {
    c->from = c->any_x && c->from < x ? c->from : x;
    c->to = c->any_x && c->to > x ? c->to : x;
    c->any_x = true;
}

static void add_point(chart *c, const json_t *row) {
    const json_t *x = json_array_get(row, c->x), *y = json_array_get(row, c->y);
    char group[TD_BENCH_CELL_SIZE], title[2 * TD_BENCH_CELL_SIZE];
    if (!json_is_number(y) || !(json_is_number(x) || json_is_string(x)))
        return;
    bool level = json_is_string(x) && !c->words;
    group_title(c->plot, row, group);
    snprintf(title, sizeof title, "%s%s%s", group, level && group[0] ? " " : "", level ? json_string_value(x) : "");
    if (!json_object_get(c->series, title))
        json_object_set_new(
            c->series, title,
            json_pack("{s:I, s:b, s:[]}", "group", number_in(c->groups, group), "level", (int)level, "points"));
    double at = level ? 0 : c->words ? (double)number_in(c->words, json_string_value(x)) : json_number_value(x);
    if (!level)
        reach(c, at);
    json_array_append_new(json_object_get(json_object_get(c->series, title), "points"),
                          json_pack("[f,f]", at, json_number_value(y)));
}

/* A single place on the axis still wants an axis around it. */
static void widen(chart *c) {
    c->log = c->plot->log_x && !c->words && c->from > 0;
    if (c->words || c->from == c->to) {
        double by = c->words ? 0.5 : 1;
        c->from = c->log ? c->from / 2 : c->from - by;
        c->to = c->log ? c->to * 2 : c->to + by;
    }
}

static void open_chart(chart *c, const td_bench_plot *p) {
    *c = (chart){.plot = p, .groups = json_object(), .series = json_object()};
    c->x = td_bench_column_of(p->table, p->x);
    c->y = td_bench_column_of(p->table, p->y);
    if (all_words(c))
        c->words = json_object();
    for (size_t i = 0; i < json_array_size(p->table->rows); i++)
        add_point(c, json_array_get(p->table->rows, i));
    widen(c);
}

static void close_chart(chart *c) {
    json_decref(c->words);
    json_decref(c->groups);
    json_decref(c->series);
}

/* ---- the script ---- */

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

static const char *title_of(const td_bench_table *t, const char *key) {
    const td_bench_column *c = &t->columns[td_bench_column_of(t, key)];
    return c->title ? c->title : c->key;
}

static void put_axis(FILE *f, const chart *c) {
    const char *word, *before = "\nset xtics (";
    json_t *place;
    fprintf(f, "\nset xrange [%.9g:%.9g]%s", c->from, c->to, c->log ? "\nset logscale x 2" : "");
    json_object_foreach(c->words, word, place) {
        fputs(before, f);
        put_quoted(f, word);
        fprintf(f, " %lld", (long long)json_integer_value(place));
        before = ", ";
    }
    fputs(json_object_size(c->words) ? ")" : "", f);
}

static void put_series(FILE *f, const chart *c) {
    const char *title, *before = "\nplot ";
    json_t *s;
    json_object_foreach(c->series, title, s) {
        fprintf(f, "%s'-' with %s linecolor %lld title ", before,
                json_is_true(json_object_get(s, "level")) ? "lines dashtype 2"
                : c->words                                ? "points" /* words have no order */
                                                          : "linespoints",
                (long long)json_integer_value(json_object_get(s, "group")) + 1);
        put_quoted(f, title);
        before = ", ";
    }
    putc('\n', f);
}

static void put_points(FILE *f, const chart *c) {
    const char *title;
    json_t *s;
    json_object_foreach(c->series, title, s) {
        bool level = json_is_true(json_object_get(s, "level"));
        const json_t *points = json_object_get(s, "points");
        for (size_t i = 0; i < json_array_size(points); i++) {
            const json_t *p = json_array_get(points, i);
            double x = json_number_value(json_array_get(p, 0)), y = json_number_value(json_array_get(p, 1));
            if (level)
                fprintf(f, "%.9g %.9g\n%.9g %.9g\n\n", c->from, y, c->to, y);
            else
                fprintf(f, "%.9g %.9g\n", x, y);
        }
        fputs("e\n", f);
    }
}

static void put_script(FILE *f, const chart *c, const char *path) {
    const td_bench_plot *p = c->plot;
    fputs("set terminal svg size 800,500 font 'sans-serif,12' background 'white'\nset output ", f);
    put_quoted(f, path);
    fputs("\nset key outside right noenhanced\nset grid\nset yrange [0:*]\nset title ", f);
    put_quoted(f, p->title);
    fputs(" noenhanced\nset xlabel ", f);
    put_quoted(f, title_of(p->table, p->x));
    fputs(" noenhanced\nset ylabel ", f);
    put_quoted(f, title_of(p->table, p->y));
    fputs(" noenhanced", f);
    put_axis(f, c);
    put_series(f, c);
    put_points(f, c);
}

/* ---- gnuplot ---- */

bool td_bench_can_draw(void) {
    return system("command -v gnuplot >/dev/null 2>&1") == 0; /* the words are ours */
}

bool td_bench_has_points(const td_bench_plot *plot) {
    chart c;
    open_chart(&c, plot);
    bool any = json_object_size(c.series) > 0;
    close_chart(&c);
    return any;
}

static int draw_chart(const chart *c, const char *path) {
    FILE *f = popen("gnuplot", "w");
    if (!f) {
        td_report_error("tandem bench", "cannot run gnuplot: %s", strerror(errno));
        return TD_EXIT_FAILURE;
    }
    put_script(f, c, path);
    if (pclose(f) == 0)
        return TD_EXIT_OK;
    (void)unlink(path); /* what it has begun */
    td_report_error("tandem bench", "gnuplot failed: %s was not drawn", path);
    return TD_EXIT_FAILURE;
}

int td_bench_draw(const td_bench_plot *plot, const char *path) {
    chart c;
    open_chart(&c, plot);
    int rc = TD_EXIT_FAILURE;
    if (json_object_size(c.series) > 0)
        rc = draw_chart(&c, path);
    else
        td_report_error("tandem bench", "there is nothing to draw in %s", path);
    close_chart(&c);
    return rc;
}
