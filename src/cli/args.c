/* args.c - see args.h. Options of all groups are looked up by a linear walk: a command line has a dozen words. */
#include "cli/args.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/report.h"

#define MAX_WORDS 256 /* names offered to td_args_nearest */

bool td_args_uint(const char *text, uint64_t lo, uint64_t hi, uint64_t *out) {
    uint64_t v = 0;
    if (*text == '\0')
        return false;
    for (const char *p = text; *p; p++) {
        if (*p < '0' || *p > '9' || __builtin_mul_overflow(v, 10u, &v) ||
            __builtin_add_overflow(v, (uint64_t)(*p - '0'), &v))
            return false;
    }
    *out = v;
    return v >= lo && v <= hi;
}

bool td_args_float(const char *text, bool infinite, double *out) {
    if (*text == '\0' || strspn(text, "+-.0123456789eEinfINF") != strlen(text))
        return false;
    char *end;
    double v = strtod(text, &end);
    if (*end != '\0' || isnan(v) || (isinf(v) && !infinite))
        return false;
    *out = v;
    return true;
}

/* Levenshtein distance, rows of at most 63 letters; more is far enough. */
static size_t distance(const char *a, const char *b) {
    size_t na = strlen(a), nb = strlen(b);
    if (na > 63 || nb > 63)
        return 64;
    size_t row[64];
    for (size_t j = 0; j <= nb; j++)
        row[j] = j;
    for (size_t i = 1; i <= na; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= nb; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            if (row[j] + 1 < best)
                best = row[j] + 1;
            if (row[j - 1] + 1 < best)
                best = row[j - 1] + 1;
            row[j] = best;
        }
    }
    return row[nb];
}

const char *td_args_nearest(const char *word, const char *const *words, size_t n) {
    const char *best = NULL;
    size_t best_distance = strlen(word) / 3 + 2;
    for (size_t i = 0; i < n; i++) {
        size_t d = distance(word, words[i]);
        if (d < best_distance) {
            best_distance = d;
            best = words[i];
        }
    }
    return best;
}

/* ---- finding an option ---- */

typedef struct found {
    const td_arg *arg;
    void *field;
} found;

static found find(const td_args *spec, const char *name, size_t n_name, char letter) {
    for (size_t g = 0; g < spec->n_groups; g++) {
        const td_arg_group *group = &spec->groups[g];
        for (size_t i = 0; i < group->n; i++) {
            const td_arg *a = &group->args[i];
            bool same = name ? strlen(a->name) == n_name && memcmp(a->name, name, n_name) == 0
                             : a->letter != 0 && a->letter == letter;
            if (same)
                return (found){a, (char *)group->into + a->offset};
        }
    }
    return (found){0};
}

static td_args_result unknown(const td_args *spec, const char *word, size_t n_name) {
    const char *words[MAX_WORDS];
    size_t n = 0;
    for (size_t g = 0; g < spec->n_groups; g++)
        for (size_t i = 0; i < spec->groups[g].n && n < MAX_WORDS; i++)
            words[n++] = spec->groups[g].args[i].name;
    char name[64];
    snprintf(name, sizeof name, "%.*s", (int)(n_name < 63 ? n_name : 63), word + (n_name > 0 ? 2 : 0));
    const char *near = n_name > 0 ? td_args_nearest(name, words, n) : NULL;
    if (near)
        td_report_error(spec->command, "unknown option --%s; did you mean --%s?", name, near);
    else if (n_name > 0)
        td_report_error(spec->command, "unknown option --%s; '%s --help' lists them", name, spec->command);
    else
        td_report_error(spec->command, "unknown option %s; '%s --help' lists them", word, spec->command);
    return TD_ARGS_BAD;
}

/* ---- storing a value ---- */

static bool is_choice(const char *choices, const char *value) {
    size_t n = strlen(value);
    for (const char *p = choices; n > 0 && p; p = strchr(p, '|')) {
        p += *p == '|';
        if (strncmp(p, value, n) == 0 && (p[n] == '|' || p[n] == '\0'))
            return true;
    }
    return false;
}

static td_args_result store_uint(const td_args *spec, const td_arg *a, td_arg_uint *to, const char *value) {
    const char *word = strchr(a->meta, '|');
    if (word && strcmp(word + 1, value) == 0) {
        *to = (td_arg_uint){0};
        return TD_ARGS_OK;
    }
    uint64_t hi = a->hi > 0 ? (uint64_t)a->hi : UINT64_MAX;
    if (td_args_uint(value, (uint64_t)a->lo, hi, &to->v)) {
        to->given = true;
        return TD_ARGS_OK;
    }
    if (a->hi > 0)
        td_report_error(spec->command, "--%s is '%s'; expected a whole number from %.0f to %.0f%s%s", a->name, value,
                        a->lo, a->hi, word ? " or " : "", word ? word + 1 : "");
    else
        td_report_error(spec->command, "--%s is '%s'; expected a whole number", a->name, value);
    return TD_ARGS_BAD;
}

static td_args_result store_float(const td_args *spec, const td_arg *a, td_arg_float *to, const char *value) {
    double v;
    if (td_args_float(value, false, &v) && v >= a->lo && v <= a->hi) {
        *to = (td_arg_float){true, v};
        return TD_ARGS_OK;
    }
    td_report_error(spec->command, "--%s is '%s'; expected a number from %g to %g", a->name, value, a->lo, a->hi);
    return TD_ARGS_BAD;
}

static td_args_result store_one_more(const td_args *spec, td_arg_texts *to, const char *value) {
    const char **grown = td_realloc(to->v, to->n + 1, sizeof *grown);
    if (grown == NULL) {
        td_report_error(spec->command, "out of memory");
        return TD_ARGS_BAD;
    }
    to->v = grown;
    to->v[to->n++] = value;
    return TD_ARGS_OK;
}

static td_args_result store(const td_args *spec, found f, const char *value) {
    switch (f.arg->kind) {
    case TD_ARG_FLAG:
        ((td_arg_flag *)f.field)->given = true;
        return TD_ARGS_OK;
    case TD_ARG_UINT:
        return store_uint(spec, f.arg, f.field, value);
    case TD_ARG_FLOAT:
        return store_float(spec, f.arg, f.field, value);
    case TD_ARG_CHOICE:
        if (!is_choice(f.arg->meta, value)) {
            td_report_error(spec->command, "--%s is '%s'; expected one of %s", f.arg->name, value, f.arg->meta);
            return TD_ARGS_BAD;
        }
        /* fall through */
    case TD_ARG_TEXT:
        *(td_arg_text *)f.field = (td_arg_text){true, value};
        return TD_ARGS_OK;
    case TD_ARG_TEXTS:
        return store_one_more(spec, f.field, value);
    }
    return TD_ARGS_BAD;
}

/* ---- the help ---- */

static void print_option(const td_arg *a) {
    char left[64];
    char letter[8] = "    ";
    if (a->letter)
        snprintf(letter, sizeof letter, "-%c, ", a->letter);
    snprintf(left, sizeof left, "  %s--%s%s%s", letter, a->name, a->meta ? " " : "", a->meta ? a->meta : "");
    printf("%-36s%s%s\n", left, strlen(left) > 35 ? "\n                                    " : "", a->help);
}

static void print_help(const td_args *spec) {
    printf("Usage: %s %s\n\n%s\n", spec->command, spec->synopsis, spec->about);
    for (size_t g = 0; g < spec->n_groups; g++) {
        printf("\n%s\n", spec->groups[g].title);
        for (size_t i = 0; i < spec->groups[g].n; i++)
            if (spec->groups[g].args[i].help)
                print_option(&spec->groups[g].args[i]);
    }
}

/* ---- the walk ---- */

/* The value of an option is the rest of its word, or the next word, unless that is itself an option of ours (a prompt
 * may begin with a dash, a forgotten value should not swallow the next option). */
static td_args_result take(const td_args *spec, found f, const char *attached, int argc, char **argv, int *i) {
    if (f.arg->kind == TD_ARG_FLAG) {
        if (attached) {
            td_report_error(spec->command, "--%s takes no value, but '%s' was given", f.arg->name, attached);
            return TD_ARGS_BAD;
        }
        return store(spec, f, NULL);
    }
    if (attached)
        return store(spec, f, attached);
    const char *next = *i + 1 < argc ? argv[*i + 1] : NULL;
    if (next && strncmp(next, "--", 2) == 0 && find(spec, next + 2, strcspn(next + 2, "="), 0).arg)
        next = NULL;
    if (next == NULL) {
        td_report_error(spec->command, "--%s needs a value: %s", f.arg->name, f.arg->meta);
        return TD_ARGS_BAD;
    }
    ++*i;
    return store(spec, f, next);
}

static td_args_result take_word(const td_args *spec, int argc, char **argv, int *i) {
    const char *word = argv[*i];
    if (word[1] == '-') {
        size_t n = strcspn(word + 2, "=");
        found f = find(spec, word + 2, n, 0);
        if (f.arg == NULL)
            return unknown(spec, word, n);
        return take(spec, f, word[2 + n] == '=' ? word + 3 + n : NULL, argc, argv, i);
    }
    found f = find(spec, NULL, 0, word[1]);
    if (f.arg == NULL)
        return unknown(spec, word, 0);
    return take(spec, f, word[2] ? word + 2 : NULL, argc, argv, i);
}

static td_args_result check_positional(const td_args *spec, size_t n) {
    if (n >= spec->n_positional)
        return TD_ARGS_OK;
    td_report_error(spec->command, "missing %s; usage: %s %s", spec->positional_names[n], spec->command,
                    spec->synopsis);
    return TD_ARGS_BAD;
}

td_args_result td_args_parse(const td_args *spec, int argc, char **argv) {
    size_t n_positional = 0;
    bool options = true;
    for (int i = 0; i < argc; i++) {
        const char *word = argv[i];
        if (options && strcmp(word, "--") == 0) {
            options = false;
        } else if (options && (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0)) {
            print_help(spec);
            return TD_ARGS_HELP;
        } else if (options && word[0] == '-' && word[1] != '\0') {
            td_args_result r = take_word(spec, argc, argv, &i);
            if (r != TD_ARGS_OK)
                return r;
        } else if (n_positional < spec->n_positional) {
            spec->positional[n_positional++] = word;
        } else {
            td_report_error(spec->command, "unexpected argument '%s'; usage: %s %s", word, spec->command,
                            spec->synopsis);
            return TD_ARGS_BAD;
        }
    }
    return check_positional(spec, n_positional);
}

void td_args_free(const td_args *spec) {
    for (size_t g = 0; g < spec->n_groups; g++)
        for (size_t i = 0; i < spec->groups[g].n; i++) {
            const td_arg *a = &spec->groups[g].args[i];
            if (a->kind != TD_ARG_TEXTS)
                continue;
            td_arg_texts *list = (td_arg_texts *)(void *)((char *)spec->groups[g].into + a->offset);
            td_free(list->v);
            *list = (td_arg_texts){0};
        }
}
