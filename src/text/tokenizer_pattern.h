/* tokenizer_pattern.h - what a component of tokenizer.json searches for: a literal text or a regular expression.
 *
 * The expression is translated from Oniguruma's dialect (tokenizer_dialect.h) and compiled once by PCRE2's JIT. A
 * search has a limit of steps and of memory, so that no text can make it run on: exceeding one is an error. */
#ifndef TD_TEXT_TOKENIZER_PATTERN_H
#define TD_TEXT_TOKENIZER_PATTERN_H

#include <jansson.h>

#include "base/status.h"

typedef struct td_pattern td_pattern;

/* TD_E_UNSUPPORTED: an empty literal. */
td_status td_pattern_literal(td_pattern **out, const char *text, size_t size, td_error *err) TD_MUST_CHECK;
/* TD_E_UNSUPPORTED: beyond the dialect; TD_E_FORMAT: malformed, with PCRE2's reason and position. */
td_status td_pattern_regex(td_pattern **out, const char *expression, size_t size, td_error *err) TD_MUST_CHECK;
/* {"String": "..."} or {"Regex": "..."}, as Split and Replace have it. `where` names the component. */
td_status td_pattern_parse(td_pattern **out, const json_t *spec, const char *where, td_error *err) TD_MUST_CHECK;
void td_pattern_free(td_pattern **p);

/* The text of a literal, NULL for an expression. */
const char *td_pattern_text(const td_pattern *p, size_t *size);

/* Scratch memory of searches, one a thread; made on first use. */
typedef struct td_pattern_work {
    void *match_data, *match_context;
} td_pattern_work;

void td_pattern_work_free(td_pattern_work *w);

/* A walk over the matches in text[0..size), valid UTF-8, left to right, not overlapping; an empty match directly after
 * another match does not count, as in the reference implementation. */
typedef struct td_pattern_walk {
    const td_pattern *pattern;
    td_pattern_work *work;
    const char *text;
    size_t size;
    size_t start, end; /* the match, after a step that found one */
    size_t pos;        /* where to search next; beyond `size` when there is nothing left */
    bool matched;      /* a match ended at `end` */
} td_pattern_walk;

td_pattern_walk td_pattern_walk_begin(const td_pattern *p, td_pattern_work *work, const char *text, size_t size);
/* *found: a match is at [start, end). TD_E_LIMIT: a limit of the search, at err->position; TD_E_NOMEM. */
td_status td_pattern_walk_next(td_pattern_walk *w, bool *found, td_error *err) TD_MUST_CHECK;

#endif
