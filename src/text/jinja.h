/* jinja.h - compile a chat template once, render it many times.
 *
 * The language is Jinja as Hugging Face transformers runs it for chat templates: trim_blocks and lstrip_blocks on, one
 * trailing newline of the source dropped, no autoescape, the loop controls (break, continue), the `generation` block
 * and the `do` statement, `tojson` as Python's json.dumps with ensure_ascii off, `raise_exception` and `strftime_now`.
 * Values follow Python: truth, printing, integer division, slices, `'x' * 3`, methods of str, list and dict. Undefined
 * prints as nothing, is walked as an empty list, and fails on most other uses.
 *
 * Known departures from Jinja2 under Python: integers have 64 bits (overflow is an error, not a longer integer);
 * `safe` and `escape` give plain strings, since nothing is escaped automatically; list and dict methods that change
 * their object work (the sandbox of transformers forbids them); there is no loader, so no extends, include or import;
 * the filters pprint, random, striptags, urlencode, urlize, wordwrap, xmlattr and filesizeformat are left out; and a
 * variable given from outside keeps its value until it is set (Jinja2 shows nothing in an inner block when the outer
 * one sets the name further on).
 *
 * A template and the values it is given are not trusted. Everything that could grow has a ceiling below, and passing
 * one is TD_E_LIMIT with the place in the template. The deepest nesting allowed takes less than 1 MiB of stack. */
#ifndef TD_TEXT_JINJA_H
#define TD_TEXT_JINJA_H

#include <jansson.h>

#include "base/buf.h"

#define TD_JINJA_MAX_TEMPLATE ((size_t)256 << 10) /* bytes of source */
#define TD_JINJA_MAX_NESTING 400                  /* levels of the syntax tree */
#define TD_JINJA_MAX_DEPTH 2000                   /* levels of evaluation, macro calls included; nesting of values */
#define TD_JINJA_MAX_CALLS 128                    /* macros that have been called and have not returned */
#define TD_JINJA_MAX_STEPS ((uint64_t)30000000)   /* nodes evaluated plus 1 for every 256 bytes or item handled */
#define TD_JINJA_MAX_MEMORY ((size_t)256 << 20)   /* bytes of values that one rendering makes */
#define TD_JINJA_MAX_OUTPUT ((size_t)64 << 20)    /* bytes of text: a sensible ceiling for the buffer given to render */
#define TD_JINJA_MAX_RANGE 100000                 /* items of range(), as Jinja2's sandbox has it */

typedef struct td_jinja td_jinja; /* immutable once compiled: any number of threads may render it at the same time */

/* Compiles source[0..size), UTF-8. `name` (a file name, say) opens every error message, as "name:line:column: ...";
 * lines and columns count from 1, columns in characters; err->position is the byte, every line end counting as one.
 * Errors: TD_E_FORMAT (syntax, or not UTF-8), TD_E_UNSUPPORTED (extends, include, import, block, an unknown filter or
 * test outside a condition), TD_E_LIMIT, TD_E_NOMEM. */
td_status td_jinja_compile(td_jinja **out, const char *source, size_t size, const char *name,
                           td_error *err) TD_MUST_CHECK;
void td_jinja_free(td_jinja **t);

/* True when the template reads a variable of this name anywhere ("tools", "enable_thinking"). */
bool td_jinja_uses(const td_jinja *t, const char *variable);

typedef struct td_jinja_options {
    int64_t now;          /* seconds since 1970-01-01 00:00 UTC: what strftime_now shows */
    int32_t utc_offset_s; /* added to `now` before it is taken apart; "%z" shows it */
    uint64_t max_steps;   /* 0: TD_JINJA_MAX_STEPS */
    size_t max_memory;    /* 0: TD_JINJA_MAX_MEMORY */
} td_jinja_options;

/* Appends the rendered text to `out`, whose ceiling bounds it.
 * context   a JSON object: the variables. Only read; it must not change until the call returns.
 * options   NULL: the epoch, UTC, default limits.
 * On failure `out` holds what it held before, except when the buffer itself failed (out of memory, over its ceiling).
 * Errors: TD_E_ARG with exactly the template's words when it called raise_exception; TD_E_FORMAT when an operation
 * does not fit its values (an undefined variable used, 'a' + 1); TD_E_UNSUPPORTED; TD_E_LIMIT; TD_E_NOMEM. */
td_status td_jinja_render(const td_jinja *t, const json_t *context, const td_jinja_options *options, td_buf *out,
                          td_error *err) TD_MUST_CHECK;

#endif
