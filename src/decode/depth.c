/* depth.c - decayed counts, smoothed costs, and the best ratio of the two. */
#include "decode/depth.h"

#include <string.h>

#define COUNT_DECAY 0.95   /* a count's weight after one round: a memory of some twenty rounds */
#define SHARED_DECAY 0.995 /* of the counts over all sequences */
#define COST_WEIGHT 0.15   /* of a new measurement */
#define PRIOR_WEIGHT 3.0   /* rounds that the prior counts for */
#define PRIOR_ACCEPT 0.6
#define PRIOR_FALL 0.97 /* a position nobody has reached is accepted a little less than the one before */
#define OUTLIER 4.0     /* a measurement this many times the smoothed cost is an interruption, not a cost */

static uint32_t bucket_of(uint32_t n_keys) {
    uint32_t b = 0;
    while (n_keys > 127 && b < TD_DEPTH_BUCKETS - 1) {
        n_keys /= 2;
        b++;
    }
    return b;
}

void td_depth_costs_init(td_depth_costs *costs) {
    memset(costs, 0, sizeof *costs);
}

void td_depth_init(td_depth *d, const td_depth_costs *costs) {
    *d = (td_depth){.since_draft = 0};
    for (int i = 0; i < TD_MAX_DRAFT; i++) {
        double weight = costs->tried[i] < PRIOR_WEIGHT ? costs->tried[i] : PRIOR_WEIGHT;
        d->tried[i] = weight;
        d->hit[i] = costs->tried[i] > 0 ? weight * costs->hit[i] / costs->tried[i] : 0;
    }
}

/* How likely the i-th draft is accepted, once the ones before it were. */
static void acceptance(const td_depth *d, uint32_t most, double p[TD_MAX_DRAFT]) {
    double prior = PRIOR_ACCEPT;
    for (uint32_t i = 0; i < most; i++) {
        double weight = PRIOR_WEIGHT / (1 + d->tried[i]); /* evidence pushes the prior out, not merely aside */
        p[i] = (d->hit[i] + weight * prior) / (d->tried[i] + weight);
        prior = p[i] * PRIOR_FALL;
    }
}

/* The pass of 1 + i rows: measured, or on the line through the measured neighbours; beyond them, along the line from
 * the plain round. A plain round that was never measured is asked for first (td_depth_choose). */
static double verify_cost(const double *verify, uint32_t i) {
    if (verify[i] > 0)
        return verify[i];
    uint32_t lo = 0, hi = 0;
    for (uint32_t j = 0; j <= TD_MAX_DRAFT; j++)
        if (verify[j] > 0) {
            if (j < i)
                lo = j;
            else if (!hi)
                hi = j;
        }
    if (hi)
        return verify[lo] + (verify[hi] - verify[lo]) * (double)(i - lo) / (double)(hi - lo);
    if (lo == 0) /* only the plain round is known: optimistic, so that it is tried */
        return verify[0] * (1 + 0.05 * (double)i);
    double slope = (verify[lo] - verify[0]) / (double)lo;
    return verify[lo] + (slope > 0 ? slope : 0) * (double)(i - lo);
}

uint32_t td_depth_choose(const td_depth *d, const td_depth_costs *costs, uint32_t n_keys, uint32_t most) {
    most = most < TD_MAX_DRAFT ? most : TD_MAX_DRAFT;
    uint32_t b = bucket_of(n_keys);
    const double *verify = costs->bucket[b].verify;
    if (most == 0 || verify[0] <= 0 || costs->bucket[b].since_plain >= TD_DEPTH_REFRESH)
        return 0;
    double p[TD_MAX_DRAFT], tokens = 1, reach = 1, best = 1 / verify[0];
    double draft = costs->bucket[b].draft > 0 ? costs->bucket[b].draft : 0.05 * verify[0];
    uint32_t choice = 0;
    acceptance(d, most, p);
    for (uint32_t i = 1; i <= most; i++) {
        reach *= p[i - 1];
        tokens += reach;
        double rate = tokens / (verify_cost(verify, i) + draft * (double)i);
        if (rate > best) {
            best = rate;
            choice = i;
        }
    }
    /* A probe that was accepted is followed by another at once: a text that has become predictable is seen in a few
     * rounds, and one that has not costs no more. */
    if (choice == 0 && (d->since_draft >= TD_DEPTH_PROBE || d->last_accepted))
        return 1;
    return choice;
}

static void smooth(double *cost, double seconds) {
    if (seconds <= 0)
        return;
    if (*cost <= 0 || seconds < *cost / OUTLIER)
        *cost = seconds;
    else if (seconds < *cost * OUTLIER)
        *cost += COST_WEIGHT * (seconds - *cost);
    else /* if it is the new normal, many of these will say so */
        *cost *= 1 + COST_WEIGHT;
}

static void count(double *tried, double *hit, double decay, uint32_t drafted, uint32_t accepted) {
    for (uint32_t i = 0; i < drafted && i <= accepted; i++) {
        tried[i] = tried[i] * decay + 1;
        hit[i] = hit[i] * decay + (i < accepted);
    }
}

void td_depth_observe(td_depth *d, td_depth_costs *costs, uint32_t n_keys, uint32_t drafted, uint32_t accepted,
                      double draft_seconds, double verify_seconds) {
    uint32_t b = bucket_of(n_keys);
    if (drafted > TD_MAX_DRAFT)
        return;
    smooth(&costs->bucket[b].verify[drafted], verify_seconds);
    costs->bucket[b].since_plain = drafted ? costs->bucket[b].since_plain + 1 : 0;
    d->since_draft = drafted ? 0 : d->since_draft + 1;
    d->last_accepted = accepted > 0;
    if (!drafted)
        return;
    smooth(&costs->bucket[b].draft, draft_seconds / drafted);
    count(d->tried, d->hit, COUNT_DECAY, drafted, accepted);
    count(costs->tried, costs->hit, SHARED_DECAY, drafted, accepted);
}
