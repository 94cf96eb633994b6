/* prefix.h - how much of what a drafter has taken in is still true.
 *
 * A drafter that keeps something of a sequence is not told when the sequence is cut, or set to another prompt. It keeps
 * the tokens it has taken in and compares. A text that merely grew, which is every round but the first of a prompt, is
 * recognised by its newest tokens alone, so that a round does not read a million of them; anything else is compared
 * from the start. What slips through (a prompt changed far back, of the old length, with the old end) costs accepted
 * drafts until the next comparison, never text. */
#ifndef TD_DECODE_PREFIX_H
#define TD_DECODE_PREFIX_H

#include "tandem.h"

/* Leading tokens that `kept` [n_kept] and `now` [n_now] share. The first `agreed` (<= n_kept) are those that agreed the
 * last time. */
uint32_t td_prefix_shared(const td_token *kept, uint32_t n_kept, uint32_t agreed, const td_token *now, uint32_t n_now);

#endif
