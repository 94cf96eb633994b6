/* pretokenizer.h - the "pre_tokenizer" of a tokenizer.json: text split into words, which tokens never cross.
 *
 * Types: Sequence, Split, ByteLevel, Metaspace, Digits, Whitespace, WhitespaceSplit, Punctuation. */
#ifndef TD_TEXT_PRETOKENIZER_H
#define TD_TEXT_PRETOKENIZER_H

#include "base/buf.h"
#include "text/tokenizer_pattern.h"

typedef struct td_pretokenizer td_pretokenizer;

/* spec: the JSON value, or NULL or null for none: a text is one word. Errors name the component. */
td_status td_pretokenizer_new(td_pretokenizer **out, const json_t *spec, td_error *err) TD_MUST_CHECK;
void td_pretokenizer_free(td_pretokenizer **p);

typedef struct td_word {
    size_t offset, size; /* into the text of the words; size > 0 */
    bool first;          /* begins where the whole text began */
} td_word;

/* Words and the text they lie in, which components may have rewritten. */
typedef struct td_words {
    td_buf text;
    td_word *v; /* [n] */
    size_t n, capacity;
} td_words;

/* ceiling: bytes that the text may grow to. */
void td_words_init(td_words *w, size_t ceiling);
void td_words_free(td_words *w);

/* Splits text[0..size), valid UTF-8, into words->v; `spare` is scratch. first: the text begins where the user's began
 * (Metaspace may put a mark there). p may be NULL. TD_E_LIMIT, TD_E_NOMEM. */
td_status td_pretokenizer_run(const td_pretokenizer *p, td_pattern_work *patterns, const char *text, size_t size,
                              bool first, td_words *words, td_words *spare, td_error *err) TD_MUST_CHECK;

#endif
