/* tokenizer_dialect.h - regular expressions of tokenizer.json, written for Oniguruma, in the words of PCRE2. */
#ifndef TD_TEXT_TOKENIZER_DIALECT_H
#define TD_TEXT_TOKENIZER_DIALECT_H

#include "base/buf.h"

/* Nesting of groups, and of classes in classes, that a pattern may have. */
#define TD_DIALECT_MAX_DEPTH 64

/* Appends to `out` a pattern for PCRE2 (options UTF, UCP, MULTILINE, newline LF) that matches what pattern[0..size),
 * valid UTF-8, matches in Oniguruma's Ruby syntax. TD_E_UNSUPPORTED: a construct that has no translation here, named
 * and with its position in the pattern. What is malformed in both dialects is left to PCRE2 to say. */
td_status td_dialect_translate(const char *pattern, size_t size, td_buf *out, td_error *err) TD_MUST_CHECK;

#endif
