/* detok.h - token ids to text, as they come.
 *
 * The "decoder" of a tokenizer.json is a chain of components, which the reference implementation runs over the whole
 * list of tokens. Here each is a little machine that passes text on as soon as it is certain, so a stream costs the
 * same for the thousandth token as for the first, and a whole list is decoded by streaming it: there is one way to
 * decode, and the pieces of a stream always add up to the text of the list.
 *
 * Types: Sequence, Replace, ByteFallback, Fuse, Strip, ByteLevel, Metaspace; with no decoder, names joined by spaces.
 *
 * Bytes that are not UTF-8 (a model may emit any bytes) become U+FFFD, one for each maximal well-formed beginning, as
 * in web browsers; characters around them stay. For ByteLevel the reference does the same. For ByteFallback it throws
 * a whole run of byte tokens away when one byte in it is wrong, which a stream cannot know in time; there we differ. */
#ifndef TD_TEXT_DETOK_H
#define TD_TEXT_DETOK_H

#include <jansson.h>

#include "base/buf.h"
#include "text/tokenizer.h"

typedef enum td_detok_flags {
    TD_DETOK_SKIP_SPECIAL = 1, /* tokens flagged special give no text */
    /* The tokens continue a text: the first is not the beginning, where Llama's and T5's decoders take a space off. */
    TD_DETOK_CONTINUE = 2,
} td_detok_flags;

/* A stream. Belongs to one thread at a time; the tokenizer must outlive it. The fields are private. */
typedef struct td_detok {
    const td_tokenizer *tok;
    struct td_detok_stage *stages; /* state of each component; NULL: not open */
    unsigned flags;
    bool added; /* the token under way is an added one */
    td_buf *out;
    td_error *err;
} td_detok;

/* flags: td_detok_flags. TD_E_NOMEM. */
td_status td_detok_init(td_detok *d, const td_tokenizer *tok, unsigned flags, td_error *err) TD_MUST_CHECK;
/* Accepts a zeroed and a freed one. */
void td_detok_free(td_detok *d);

/* Appends to `out` the text that this token makes certain: whole characters, perhaps none. An id that no token has
 * gives no text. TD_E_NOMEM, TD_E_LIMIT (the ceiling of `out`): the stream is then of no further use. */
td_status td_detok_push(td_detok *d, td_token token, td_buf *out, td_error *err) TD_MUST_CHECK;

/* Appends what was held back, and begins anew. */
td_status td_detok_flush(td_detok *d, td_buf *out, td_error *err) TD_MUST_CHECK;

/* Appends the text of a whole list. Any thread. */
td_status td_tokenizer_decode(const td_tokenizer *tok, const td_token *ids, size_t n, unsigned flags, td_buf *out,
                              td_error *err) TD_MUST_CHECK;

/* ---- for the loader ---- */

/* The chain as the file gives it. spec: the JSON value, or NULL or null. TD_E_UNSUPPORTED: a type that is not known,
 * or one that cannot work on a stream where it stands. */
typedef struct td_detok_spec td_detok_spec;
td_status td_detok_spec_new(td_detok_spec **out, const json_t *spec, td_error *err) TD_MUST_CHECK;
void td_detok_spec_free(td_detok_spec **decoder);

#endif
