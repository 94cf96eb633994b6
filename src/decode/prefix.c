/* prefix.c - the shared prefix of two token sequences, from a guess that is checked at its end. */
#include "decode/prefix.h"

#define TAIL 32u                   /* tokens before the guess that have to be the same */
#define GROWTH (1u + TD_MAX_DRAFT) /* what a round can add */

static bool has_grown(const td_token *kept, uint32_t agreed, const td_token *now, uint32_t n_now) {
    if (agreed > n_now || n_now - agreed > GROWTH)
        return false;
    for (uint32_t i = agreed > TAIL ? agreed - TAIL : 0; i < agreed; i++)
        if (kept[i] != now[i])
            return false;
    return true;
}

uint32_t td_prefix_shared(const td_token *kept, uint32_t n_kept, uint32_t agreed, const td_token *now, uint32_t n_now) {
    uint32_t most = n_kept < n_now ? n_kept : n_now;
    uint32_t i = has_grown(kept, agreed, now, n_now) ? agreed : 0;
    while (i < most && kept[i] == now[i])
        i++;
    return i;
}
