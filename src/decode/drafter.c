/* drafter.c - what all drafters share. */
#include "decode/drafter.h"

void td_drafter_close(td_drafter **d) {
    if (!d || !*d)
        return;
    (*d)->ops->close(*d);
    *d = NULL;
}
