/* drafter_chain.h - a drafter and prompt lookup, one after the other.
 *
 * The drafter drafts first; where the text and its draft, taken together, end as the text did before, lookup appends
 * what followed there. The drafter's own tokens all stay. What lookup appends costs no step of the drafter, only a row
 * of the trunk's pass, so a head that is worth two tokens may stop at two and leave the rest of a quotation to lookup.
 */
#ifndef TD_DECODE_DRAFTER_CHAIN_H
#define TD_DECODE_DRAFTER_CHAIN_H

#include "decode/drafter_lookup.h"

typedef struct td_drafter_chain_options {
    td_ngrams_options ngrams; /* of each sequence; n_ctx: positions that a sequence may reach */
    uint32_t inner_depth;     /* tokens that the drafter is asked for at most; 0: the whole depth */
} td_drafter_chain_options;

td_drafter_chain_options td_drafter_chain_options_default(void);

/* The chain owns `inner` from now on, unless it fails. kind "<inner's>+lookup"; weights and sequences of a round are
 * inner's, heap_bytes counts both. Errors: TD_E_ARG, TD_E_NOMEM. */
td_status td_drafter_chain_open(td_drafter **out, td_drafter *inner, const td_drafter_chain_options *opt,
                                td_error *err) TD_MUST_CHECK;

#endif
