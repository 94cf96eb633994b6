/* normalizer.h - the "normalizer" of a tokenizer.json: text rewritten before it is split.
 *
 * Types: Sequence, Replace, NFC, NFD, NFKC, NFKD, Lowercase, Prepend, Strip, StripAccents. */
#ifndef TD_TEXT_NORMALIZER_H
#define TD_TEXT_NORMALIZER_H

#include "base/buf.h"
#include "text/tokenizer_pattern.h"

typedef struct td_normalizer td_normalizer;

/* spec: the JSON value, or NULL or null for none, which leaves text as it is. Errors name the component. */
td_status td_normalizer_new(td_normalizer **out, const json_t *spec, td_error *err) TD_MUST_CHECK;
void td_normalizer_free(td_normalizer **n);

/* Scratch memory, one a thread; a zeroed one is ready. */
typedef struct td_normalizer_work {
    td_buf spare;   /* ping-pong partner of the result */
    int32_t *chars; /* [n_chars] for the Unicode forms */
    size_t n_chars;
} td_normalizer_work;

void td_normalizer_work_free(td_normalizer_work *w);

/* Rewrites text[0..size), valid UTF-8, into `out`, which is emptied first and must not overlap it; the result is valid
 * UTF-8. n may be NULL. *cut, when not NULL, is set if characters went from the front of the text, so that what is
 * first in the result was not first in the text ("prepend_scheme": "first" asks).
 * TD_E_LIMIT: the result would exceed the ceiling of `out`, or a limit of a search; TD_E_NOMEM. */
td_status td_normalizer_run(const td_normalizer *n, td_normalizer_work *work, td_pattern_work *patterns,
                            const char *text, size_t size, td_buf *out, bool *cut, td_error *err) TD_MUST_CHECK;

#endif
