/* args.h - a table-driven reader of command lines.
 *
 * A command describes its options as constant tables over a struct of its own; td_args_parse fills the struct. Every
 * mistake is one line that names the option, the value and what was expected. Long options are written "--name value"
 * or "--name=value", short ones "-n value" or "-nvalue"; "--" ends the options. */
#ifndef TD_CLI_ARGS_H
#define TD_CLI_ARGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What an option writes. `given` tells an absent option from one given its default. */
typedef struct td_arg_flag {
    bool given;
} td_arg_flag;
typedef struct td_arg_uint {
    bool given;
    uint64_t v;
} td_arg_uint;
typedef struct td_arg_float {
    bool given;
    double v;
} td_arg_float;
typedef struct td_arg_text {
    bool given;
    const char *v; /* into argv, or a default; not owned */
} td_arg_text;
typedef struct td_arg_texts {
    const char **v; /* owned; the strings are not */
    size_t n;
} td_arg_texts;

typedef enum td_arg_kind {
    TD_ARG_FLAG,   /* td_arg_flag */
    TD_ARG_UINT,   /* td_arg_uint, within [lo, hi]; hi 0: any 64-bit number. "N|auto" as meta: the word leaves it not
                      given */
    TD_ARG_FLOAT,  /* td_arg_float, within [lo, hi] */
    TD_ARG_TEXT,   /* td_arg_text */
    TD_ARG_CHOICE, /* td_arg_text, one of `meta`'s words ("f32|bf16") */
    TD_ARG_TEXTS,  /* td_arg_texts, one more each time */
} td_arg_kind;

typedef struct td_arg {
    const char *name; /* without the dashes */
    char letter;      /* or 0 */
    td_arg_kind kind;
    size_t offset; /* of the field in the group's struct */
    double lo, hi;
    const char *meta; /* what the value is called in the help; the choices of a CHOICE; NULL for a flag */
    const char *help; /* NULL: an accepted spelling that the help leaves out */
} td_arg;

typedef struct td_arg_group {
    const char *title; /* of its section of the help */
    const td_arg *args;
    size_t n;
    void *into; /* the struct that the offsets are in */
} td_arg_group;

typedef struct td_args {
    const char *command;  /* "tandem run", before every message */
    const char *synopsis; /* what follows the command on the first line of its help */
    const char *about;    /* a paragraph */
    const td_arg_group *groups;
    size_t n_groups;
    size_t n_positional; /* operands taken exactly, written to positional[] */
    const char **positional;
    const char *const *positional_names; /* [n_positional], for messages */
} td_args;

typedef enum td_args_result { TD_ARGS_OK, TD_ARGS_HELP, TD_ARGS_BAD } td_args_result;

/* Reads argv[0..argc). TD_ARGS_HELP: the help has been printed on stdout. TD_ARGS_BAD: one line is on stderr. Either
 * way td_args_free is the caller's to call. */
td_args_result td_args_parse(const td_args *spec, int argc, char **argv);
/* Frees the lists of TD_ARG_TEXTS. */
void td_args_free(const td_args *spec);

/* The word of words[0..n) closest to `word` by edit distance, or NULL when none is close. */
const char *td_args_nearest(const char *word, const char *const *words, size_t n);

/* A whole decimal number within [lo, hi]; false for anything else, signs, spaces and fractions included. */
bool td_args_uint(const char *text, uint64_t lo, uint64_t hi, uint64_t *out);
/* A finite decimal number, "inf" and "-inf" included when `infinite`; false for anything else. */
bool td_args_float(const char *text, bool infinite, double *out);

#endif
