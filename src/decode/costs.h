/* costs.h - what passes and draft steps cost on this machine, from what they have cost.
 *
 * A pass is priced by its rows, whoever's rows they are: one sequence with three drafts and four plain sequences are
 * passes of four rows. A draft step is priced by the sequences that take part in it. Prices are kept apart by how many
 * keys the round reads, in powers of two.
 *
 * A price is the mean of the cheaper of a cell's last measurements, those that are alike; rounds that were interrupted
 * do not enter into it, and a machine that has become slower is believed after some. What has not been measured lies on
 * the line through what has; and as no pass is cheaper than one of fewer rows, a dear measurement is overruled by a
 * cheaper one of more rows, and as no row is dearer than it is in passes of fewer rows, by those. Nothing here reads a
 * clock. */
#ifndef TD_DECODE_COSTS_H
#define TD_DECODE_COSTS_H

#include "tandem.h"

#define TD_COSTS_BUCKETS 24
#define TD_COSTS_CELLS 72  /* rows 1 to 16 have a cell each, beyond that eight cells share every doubling */
#define TD_COSTS_WINDOW 8  /* measurements that count */
#define TD_COSTS_FRESH 512 /* rounds of its bucket for which a plain pass's price holds */
#define TD_COSTS_RECENT                                                                                                \
    4096 /* and for which a measurement is one at all, when it is asked whether there are enough                       \
          */

typedef struct td_cost {
    float recent[TD_COSTS_WINDOW]; /* seconds, the latest at index (n - 1) % TD_COSTS_WINDOW */
    float seconds;                 /* the price; 0: none */
    float rows;                    /* that it is the price of */
    float lent;                    /* another bucket's price, when this one was new; 0: none */
    uint32_t n;                    /* measurements */
    uint32_t at;                   /* round of the bucket in which the latest was taken */
} td_cost;

typedef struct td_cost_bucket {
    td_cost pass[TD_COSTS_CELLS];
    td_cost mixed[TD_COSTS_CELLS]; /* passes with rows of prompts among theirs, by all their rows */
    td_cost first[TD_COSTS_CELLS], later[TD_COSTS_CELLS]; /* draft steps: the first of a round, any other */
    uint32_t rounds;
    bool borrowed;
} td_cost_bucket;

/* Zeroed: nothing is known. */
typedef struct td_costs {
    td_cost_bucket bucket[TD_COSTS_BUCKETS];
} td_costs;

/* The bucket of a round that reads so many keys, of all its sequences. One that is new begins with its neighbour's
 * prices. */
td_cost_bucket *td_costs_bucket(td_costs *costs, uint64_t n_keys);

/* out[i], 0 <= i <= n: seconds of a pass of rows + i rows; all 0 when no pass has been measured. mixed: with rows of
 * prompts among them, which are cheaper (nothing is sampled from them) in another way. */
void td_costs_passes(const td_cost_bucket *b, bool mixed, uint32_t rows, uint32_t n, double *out);
/* Recent measurements of a pass of `rows` rows, TD_COSTS_WINDOW at most. */
uint32_t td_costs_seen(const td_cost_bucket *b, uint32_t rows);
/* The price of a pass of `rows` rows, or of about as many, has been measured often enough. */
bool td_costs_settled(const td_cost_bucket *b, uint32_t rows);
/* A pass of `rows` rows has been measured in the last TD_COSTS_FRESH rounds. */
bool td_costs_fresh(const td_cost_bucket *b, uint32_t rows);

/* first[m], later[m], 0 <= m <= n: seconds of a draft step of m sequences; 0 for m = 0. `plain` is what a plain pass
 * costs: the guess begins with a part of it. */
void td_costs_steps(const td_cost_bucket *b, uint32_t n, double plain, double *first, double *later);

/* A round's pass had `rows` rows. */
void td_costs_saw_pass(td_cost_bucket *b, bool mixed, uint32_t rows, double seconds);
/* A round's draft had n_steps steps, the j-th of live[j] sequences. */
void td_costs_saw_draft(td_cost_bucket *b, const uint32_t *live, uint32_t n_steps, double plain, double seconds);

#endif
