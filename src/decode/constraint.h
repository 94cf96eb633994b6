/* constraint.h - what a text must match: an automaton that is asked before every token and told every token.
 *
 * Rows of a round are sampled in turn, and each row's sample is told before the next row is asked about, so a
 * constraint that begins or changes in the middle of an accepted draft holds for the very next token. Drafts are not
 * masked; those that the constraint refuses are cut off before they cost a row. */
#ifndef TD_DECODE_CONSTRAINT_H
#define TD_DECODE_CONSTRAINT_H

#include "base/status.h"

typedef struct td_constraint td_constraint;

typedef struct td_constraint_ops {
    /* *mask: bit t % 64 of word t / 64 says whether token t may come next, over the vocabulary of the model; NULL: any
     * may. Valid until the next call. At least one bit is set. */
    td_status (*allowed)(td_constraint *c, const uint64_t **mask, td_error *err);
    /* `t`, which was allowed, has come. */
    td_status (*advance)(td_constraint *c, td_token t, td_error *err);
    /* How many of a draft's leading tokens could come, one after the other; the state stays as it is. */
    uint32_t (*accepts)(td_constraint *c, const td_token *draft, uint32_t n);
    void (*close)(td_constraint *c);
} td_constraint_ops;

/* First member of every kind's own struct. */
struct td_constraint {
    const td_constraint_ops *ops;
};

static inline void td_constraint_close(td_constraint **c) {
    if (*c)
        (*c)->ops->close(*c);
    *c = NULL;
}

#endif
