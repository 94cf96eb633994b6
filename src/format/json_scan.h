/* json_scan.h - a strict pull reader of JSON text that builds nothing.
 *
 * For texts whose tree nobody wants: a safetensors header, a shard index. The caller asks for what the format says must
 * come next; the reader answers with slices of the text, or fails with the byte position. It accepts exactly RFC 8259
 * with valid UTF-8 and with these limits: nesting at most `max_depth`, numbers of at most TD_JSON_MAX_NUMBER
 * characters, no U+0000 in strings (names become C strings), no lone surrogates. Memory: one scratch buffer, no longer
 * than the longest string with an escape in it. Never recursive.
 *
 *   td_json_scan_enter(s, '{', err);
 *   while (td_json_scan_next(s, &more, err) == TD_OK && more) {
 *       td_json_scan_key(s, &name, &size, err);
 *       ... exactly one value ...
 *   }
 *   td_json_scan_end(s, err);
 */
#ifndef TD_FORMAT_JSON_SCAN_H
#define TD_FORMAT_JSON_SCAN_H

#include "base/buf.h"

#define TD_JSON_MAX_DEPTH 128
#define TD_JSON_MAX_NUMBER 1000

typedef struct td_json_scan {
    const char *text; /* not NUL-terminated, not owned */
    size_t size;
    size_t pos;
    size_t base;        /* position of `text` in its file; messages count from the file's start */
    const char *where;  /* names the text in messages; not owned */
    const char *within; /* the member that is being read, for messages; NULL: none; not owned */
    int depth;
    int max_depth;
    bool fresh;                   /* the innermost container has just been opened: no comma yet */
    char open[TD_JSON_MAX_DEPTH]; /* '{' or '[' of each open container */
    td_buf scratch;               /* the last string, when it had escapes */
} td_json_scan;

/* max_depth is cut to TD_JSON_MAX_DEPTH. Free with td_json_scan_free. */
void td_json_scan_init(td_json_scan *s, const char *text, size_t size, size_t base, int max_depth, const char *where);
void td_json_scan_free(td_json_scan *s);

/* First character of the next token: '{' '[' '"' 't' 'f' 'n', '0' for any number; 0 at the end or at anything else. */
char td_json_scan_peek(td_json_scan *s);

td_status td_json_scan_enter(td_json_scan *s, char bracket, td_error *err) TD_MUST_CHECK;
/* *more: a key (in an object) or value (in an array) follows; otherwise the container has been closed. */
td_status td_json_scan_next(td_json_scan *s, bool *more, td_error *err) TD_MUST_CHECK;
/* The decoded text: not NUL-terminated, valid until the next call on `s`. _key reads the colon too. */
td_status td_json_scan_key(td_json_scan *s, const char **str, size_t *size, td_error *err) TD_MUST_CHECK;
td_status td_json_scan_string(td_json_scan *s, const char **str, size_t *size, td_error *err) TD_MUST_CHECK;
/* The number's own characters; *integral: neither fraction nor exponent. */
td_status td_json_scan_number(td_json_scan *s, const char **str, size_t *size, bool *integral,
                              td_error *err) TD_MUST_CHECK;
/* 0 or [1-9][0-9]*, below 2^64. -0, 1.0, 1e2 and anything else is an error that shows what was found. */
td_status td_json_scan_uint(td_json_scan *s, uint64_t *out, td_error *err) TD_MUST_CHECK;
/* Any value, checked and thrown away. */
td_status td_json_scan_skip(td_json_scan *s, td_error *err) TD_MUST_CHECK;
/* Nothing but white space is left. */
td_status td_json_scan_end(td_json_scan *s, td_error *err) TD_MUST_CHECK;

/* TD_E_FORMAT at position `pos` of the text: "where: byte N: in "within": message". */
td_status td_json_scan_fail(const td_json_scan *s, size_t pos, td_error *err, const char *fmt, ...) TD_PRINTF(4, 5);

/* True when the bytes are whole UTF-8 characters. */
bool td_json_utf8_valid(const char *str, size_t size);

/* Text out of a file as it is shown in a message: cut, on a character, to fit a line. Returns out. */
#define TD_SHOWN_SIZE 100
const char *td_shown(char out[TD_SHOWN_SIZE], const char *str, size_t size);

#endif
