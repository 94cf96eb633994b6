/* drafter_lookup.h - prompt lookup: the text continues as it did the last time it said the same.
 *
 * Costs no weights and no pass. It guesses well where text repeats itself: code that is edited, documents that are
 * quoted, lists, loops. */
#ifndef TD_DECODE_DRAFTER_LOOKUP_H
#define TD_DECODE_DRAFTER_LOOKUP_H

#include "decode/drafter.h"
#include "decode/ngrams.h"

typedef struct td_drafter_lookup_options {
    uint32_t max_seqs;        /* sequences of a round */
    td_ngrams_options ngrams; /* of each sequence; n_ctx: positions that a sequence may reach */
} td_drafter_lookup_options;

td_drafter_lookup_options td_drafter_lookup_options_default(void);

/* kind "lookup". heap_bytes is what max_seqs sequences take. Errors: TD_E_ARG, TD_E_NOMEM. */
td_status td_drafter_lookup_open(td_drafter **out, const td_drafter_lookup_options *opt, td_error *err) TD_MUST_CHECK;

/* Appends to the draft's n_out tokens what followed the last place where they, and the text before them, stood, up to
 * depth tokens and not past an end token. `g` becomes the index of the draft's text. */
void td_lookup_extend(td_ngrams *g, td_draft *b);

#endif
