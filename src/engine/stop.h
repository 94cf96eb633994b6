/* stop.h - text of a growing answer, released only when it can no longer become a stop string.
 *
 * Text is appended as tokens come; what may be sent is everything but the longest tail that begins some stop string.
 * The stop string that is complete first ends the answer and is not part of it. */
#ifndef TD_ENGINE_STOP_H
#define TD_ENGINE_STOP_H

#include "base/buf.h"

typedef struct td_stop {
    const char *const *stop; /* [n_stop], borrowed; none is empty */
    size_t n_stop;
    td_buf text;  /* the answer so far, held-back tail included */
    size_t sent;  /* bytes released */
    bool stopped; /* a stop string came; text ends before it */
} td_stop;

void td_stop_init(td_stop *s, const char *const *stop, size_t n_stop, size_t ceiling);
void td_stop_free(td_stop *s);

/* To be called after text was appended to s->text. *fresh is what is released now (it stays valid until the next
 * append). `last`: nothing more will come, so nothing is held back. Returns true when a stop string ended the answer.
 */
bool td_stop_release(td_stop *s, bool last, const char **fresh, size_t *n_fresh);

/* Takes back what is still held back: the text ends with what was released. */
void td_stop_drop(td_stop *s);

#endif
