/* depth.c - decayed counts, the best ratio of tokens to seconds, and the price of finding out. */
#include "decode/depth.h"

#include <math.h>
#include <string.h>

#define COUNT_DECAY 0.97f   /* a count's weight after one more trial: a memory of some thirty */
#define SHARED_DECAY 0.995f /* of the counts over all sequences */
#define UNTRIED_DECAY 0.98f /* of a position's, after a round that did not come to it: after fifty, hope is back */
#define SURE_DECAY 0.99f    /* of counts by probability, after a round */
#define BIN_WEIGHT 4.0f     /* trials that what all sequences have shown of a probability counts for */
#define PRIOR_WEIGHT 5.0f   /* trials that what all sequences have shown counts for: texts are more alike than not */
#define PRIOR_ACCEPT 0.6f
#define PRIOR_FALL 0.97f  /* a position nobody has reached is accepted a little less than the one before */
#define ALARM 6.0f        /* of evidence: a false one every e^6 rounds at most */
#define SUSPICION 0.4f    /* of evidence a draft: enough to look again at once */
#define LOOK_WEIGHT 0.1f  /* of a first draft of any sequence beside one of this one */
#define PROBE_SHARE 0.01  /* of the time, for drafts while none pay */
#define TRIAL_SHARE 0.004 /* of the time, for trials */
#define TRIAL_LEAST 0.85  /* of the best rate, which a trial may be expected to make */

/* ---- acceptance ---- */

/* Of counts and a prior; evidence pushes the prior out, not merely aside. */
static float estimate(float hit, float tried, float prior) {
    float weight = PRIOR_WEIGHT / (1 + tried);
    return (hit + weight * prior) / (tried + weight);
}

/* How likely the i-th draft is accepted, once the ones before it were; and at best, as far as anyone knows. Of few
 * counts, what all sequences have shown weighs more. */
static void by_position(const td_depth *d, const td_acceptance *all, uint32_t most, float *p, float *hope) {
    const td_acceptance *own = &d->seen, *others = d->changed ? own : all;
    float prior = PRIOR_ACCEPT;
    for (uint32_t i = 0; i < most; i++) {
        p[i] = estimate(own->hit[i], own->tried[i], estimate(others->hit[i], others->tried[i], prior));
        hope[i] = (own->hit[i] + 1) / (own->tried[i] + 1);
        prior = p[i] * PRIOR_FALL;
    }
}

/* Of few counts, what all sequences have shown weighs more; until they have, a drafter is right as often as it says. */
static void by_confidence(const td_acceptance *a, const td_acceptance *all, float *worth) {
    static const float says[TD_CONFIDENCE_BINS] = {0.05f, 0.17f, 0.35f, 0.55f, 0.72f, 0.86f, 0.95f, 0.99f};
    for (uint32_t b = 0; b < TD_CONFIDENCE_BINS; b++) {
        float prior = estimate(all->right[b], all->sure[b], says[b]);
        worth[b] = (a->right[b] + BIN_WEIGHT * prior) / (a->sure[b] + BIN_WEIGHT);
    }
}

void td_depth_init(td_depth *d, const td_depth_costs *costs) {
    const td_acceptance *all = &costs->all;
    *d = (td_depth){.since_draft = 0};
    for (uint32_t i = 0; i < TD_MAX_DRAFT; i++) {
        float weight = all->tried[i] < PRIOR_WEIGHT ? all->tried[i] : PRIOR_WEIGHT;
        d->seen.tried[i] = weight;
        d->seen.hit[i] = all->tried[i] > 0 ? weight * all->hit[i] / all->tried[i] : 0;
    }
}

static void count(float *tried, float *hit, float decay, float accepted) {
    *tried = *tried * decay + 1;
    *hit = *hit * decay + accepted;
}

static void fade(float *tried, float *hit, float decay) {
    *tried *= decay;
    *hit *= decay;
}

static void count_first(td_acceptance *a, uint32_t bin) {
    for (uint32_t b = 0; b < TD_CONFIDENCE_BINS; b++)
        a->first[b] = a->first[b] * SURE_DECAY + (b == bin);
}

static void count_round(td_acceptance *a, float decay, const float *worth, uint32_t made, uint32_t kept,
                        uint32_t accepted, const float *confidence) {
    for (uint32_t b = 0; b < TD_CONFIDENCE_BINS; b++)
        fade(&a->sure[b], &a->right[b], SURE_DECAY);
    if (confidence && confidence[0] >= 0)
        count_first(a, td_confidence_bin(confidence[0]));
    uint32_t i = 0;
    for (; i < kept && i <= accepted; i++) {
        count(&a->tried[i], &a->hit[i], decay, i < accepted);
        if (confidence && confidence[i] >= 0) {
            uint32_t b = td_confidence_bin(confidence[i]);
            count(&a->sure[b], &a->right[b], 1, i < accepted);
        }
    }
    /* A draft that was reached but not fed would have been accepted as often as such drafts are; or positions would be
     * judged by their best drafts alone. */
    if (i == kept && accepted == kept && kept < made && confidence && confidence[kept] >= 0)
        count(&a->tried[i], &a->hit[i], decay, worth[td_confidence_bin(confidence[i])]);
}

/* What a sequence has not tried of late says less and less: others and hope take its place. */
static void fade_untried(td_acceptance *a, uint32_t from) {
    for (uint32_t i = from; i < TD_MAX_DRAFT; i++)
        fade(&a->tried[i], &a->hit[i], UNTRIED_DECAY);
}

/* ---- a text that changes ---- */

/* Adds the log of how much likelier the outcome is at rate q than at rate p; true: q it is. */
static bool shifted(td_depth_shift *s, float p, float q, bool hit) {
    s->score += logf(hit ? q / p : (1 - q) / (1 - p));
    s->n++;
    s->hits = (uint16_t)(s->hits + hit);
    if (s->score <= 0 || s->n == UINT16_MAX)
        *s = (td_depth_shift){0};
    return s->score > ALARM;
}

/* The counts are those of another text; what has come since it changed remains. */
static void start_over(td_depth *d, const td_depth_shift *since) {
    td_acceptance *a = &d->seen;
    memset(a, 0, sizeof *a);
    a->tried[0] = since->n;
    a->hit[0] = since->hits;
    d->changed = since == &d->worse;
    d->worse = d->better = (td_depth_shift){0};
}

static void watch(td_depth *d, float p, bool hit) {
    p = p < 0.02f ? 0.02f : p > 0.98f ? 0.98f : p;
    bool worse = shifted(&d->worse, p, p / 2, hit), better = shifted(&d->better, p, (1 + p) / 2, hit);
    if (worse || better)
        start_over(d, worse ? &d->worse : &d->better);
}

void td_depth_learn(td_depth *d, td_depth_costs *costs, uint32_t made, uint32_t kept, uint32_t accepted,
                    const float *confidence) {
    d->since_draft = kept ? 0 : d->since_draft + 1;
    fade_untried(&d->seen, accepted < kept ? accepted + 1 : kept);
    if (!made || made > TD_MAX_DRAFT)
        return;
    costs->has_confidence = costs->has_confidence || (confidence && confidence[0] >= 0);
    float p, hope, worth[TD_CONFIDENCE_BINS];
    by_position(d, &costs->all, 1, &p, &hope);
    by_confidence(&d->seen, &costs->all, worth);
    count_round(&d->seen, COUNT_DECAY, worth, made, kept, accepted, confidence);
    count_round(&costs->all, SHARED_DECAY, worth, made, kept, accepted, confidence);
    if (kept)
        watch(d, p, accepted > 0);
}

/* ---- the plan ---- */

/* What a round may come to, draft by draft in the order in which they would be given. */
typedef struct plan {
    uint32_t n;                                                    /* drafts */
    double pass[1 + TD_DEPTH_DRAFTS];                              /* seconds of the pass with k of them */
    double draft[1 + TD_DEPTH_DRAFTS];                             /* and of drafting them */
    double tokens[1 + TD_DEPTH_DRAFTS];                            /* expected */
    double hoped[1 + TD_DEPTH_DRAFTS];                             /* at best */
    uint16_t to[TD_DEPTH_DRAFTS];                                  /* the ask that the k-th is given to */
    double first[1 + TD_DEPTH_DRAFTS], later[1 + TD_DEPTH_DRAFTS]; /* draft steps, by sequences in them */
} plan;

static double step(const plan *p, uint32_t j, uint32_t live) {
    return j ? p->later[live] : p->first[live];
}

/* The order: always the draft likeliest to be accepted with all before it. depth[i]: drafts of ask i so far. */
static uint32_t next_ask(const td_depth_round *r, const uint8_t *depth, const float *reach) {
    uint32_t best = r->n_asks;
    float most = -1;
    for (uint32_t i = 0; i < r->n_asks; i++) {
        if (depth[i] >= r->asks[i].most)
            continue;
        float here = reach[i] * r->asks[i].p[depth[i]];
        if (here > most) {
            most = here;
            best = i;
        }
    }
    return best;
}

static void lay_out(plan *p, const td_depth_round *r) {
    uint8_t depth[TD_DEPTH_DRAFTS] = {0};
    float reach[TD_DEPTH_DRAFTS], hope[TD_DEPTH_DRAFTS];
    uint32_t live[TD_MAX_DRAFT] = {0};
    for (uint32_t i = 0; i < r->n_asks; i++)
        reach[i] = hope[i] = 1;
    p->tokens[0] = p->hoped[0] = r->n_seqs;
    p->draft[0] = 0;
    for (uint32_t k = 0; k < p->n; k++) {
        uint32_t i = next_ask(r, depth, reach), j = depth[i]++;
        reach[i] *= r->asks[i].p[j];
        p->to[k] = (uint16_t)i;
        hope[i] *= r->asks[i].hope[j] > r->asks[i].p[j] ? r->asks[i].hope[j] : r->asks[i].p[j];
        p->tokens[k + 1] = p->tokens[k] + (double)reach[i];
        p->hoped[k + 1] = p->hoped[k] + (double)hope[i];
        p->draft[k + 1] = p->draft[k];
        if (j < r->free_from) {
            p->draft[k + 1] += step(p, j, live[j] + 1) - step(p, j, live[j]);
            live[j]++;
        }
    }
}

static uint32_t drafts_possible(const td_depth_round *r) {
    uint32_t sum = 0, most = r->most < TD_DEPTH_DRAFTS ? r->most : TD_DEPTH_DRAFTS;
    for (uint32_t i = 0; i < r->n_asks && sum < most; i++)
        sum += r->asks[i].most;
    return sum < most ? sum : most;
}

static uint32_t best_of(const plan *p, double *rate) {
    uint32_t best = 0;
    for (uint32_t k = 0; k <= p->n; k++) {
        double r = p->tokens[k] / (p->pass[k] + p->draft[k]);
        if (k == 0 || r > *rate) {
            *rate = r;
            best = k;
        }
    }
    return best;
}

/* A number of drafts that would be best if it were accepted as well as may be hoped, and its pass, unless it has been
 * measured often enough, cost no more than of the fewer rows that have; or `best`. What it may be expected to lose is
 * little. */
static uint32_t worth_a_trial(const td_depth_costs *c, const plan *p, const td_depth_round *r, uint32_t best,
                              double rate) {
    double floor = p->pass[0], known = rate, least = 1 - TRIAL_SHARE * c->since_explore;
    least = least > TRIAL_LEAST ? least : TRIAL_LEAST;
    uint32_t trial = best;
    for (uint32_t k = 1; k <= p->n; k++) {
        bool settled = td_costs_settled(c->bucket, r->n_rows + k);
        floor = settled && p->pass[k] > floor ? p->pass[k] : floor;
        double might = p->hoped[k] / ((p->pass[k] < floor ? p->pass[k] : floor) + p->draft[k]);
        bool cheap = p->tokens[k] / (p->pass[k] + p->draft[k]) > least * known;
        if (k != best && cheap && might > rate) {
            rate = might;
            trial = k;
        }
    }
    return trial;
}

/* Beside rows of prompts a row costs what it does in such a pass, but a token is worth what it is in other rounds. */
static bool mixed_passes(const td_depth_costs *c, const td_depth_round *r, plan *p) {
    td_costs_passes(c->bucket, true, r->n_rows + r->n_prompt, p->n, p->pass);
    if (p->pass[0] > 0)
        return true;
    td_costs_passes(c->bucket, false, r->n_rows, p->n, p->pass);
    return false;
}

/* The number of drafts that brings most beyond what its time would bring at `rate`. */
static uint32_t most_gain(const plan *p, double rate) {
    uint32_t best = 0;
    double most = -INFINITY;
    for (uint32_t k = 0; k <= p->n; k++) {
        double gain = p->tokens[k] - rate * (p->pass[k] + p->draft[k]);
        if (gain > most) {
            most = gain;
            best = k;
        }
    }
    return best;
}

static void grant(const plan *p, const td_depth_round *r, uint32_t n) {
    for (uint32_t k = 0; k < n; k++)
        r->asks[p->to[k]].wanted++;
}

/* ---- how a draft may end otherwise than planned ---- */

/* least[j-1]: with j drafts made it pays to go on, to some depth, if the expected tokens bring more than the rate that
 * the round makes anyway. at: rows of the pass without this sequence's drafts, beyond r->n_rows. */
static void thresholds(const td_depth_costs *c, const plan *p, const td_depth_round *r, td_depth_ask *a, uint32_t rows,
                       const uint32_t *live) {
    for (uint32_t j = 1; j < a->wanted; j++) {
        double gain = 0, reach = 1, draft = 0, least = 1;
        for (uint32_t k = j; k < a->wanted; k++) {
            reach *= (double)a->p[k];
            gain += reach;
            if (k < r->free_from)
                draft += live[k] ? step(p, k, live[k]) - step(p, k, live[k] - 1) : step(p, k, 1);
            uint32_t from = rows + j < p->n ? rows + j : p->n, to = rows + k + 1 < p->n ? rows + k + 1 : p->n;
            double need = gain > 0 ? c->rate * (p->pass[to] - p->pass[from] + draft) / gain : 1;
            least = need < least ? need : least;
        }
        a->stop.least[j - 1] = (float)least;
    }
    a->stop.least[a->wanted - 1] = 0;
}

/* With a drafter that knows when it is unsure, drafts may go beyond the plan: they end where that does not pay. */
static void set_stops(td_depth_costs *c, const plan *p, const td_depth_round *r, uint32_t n) {
    uint32_t live[TD_MAX_DRAFT] = {0}, given = 0;
    for (uint32_t i = 0; i < r->n_asks; i++) {
        given += r->asks[i].wanted;
        for (uint32_t j = 0; j < r->asks[i].wanted; j++)
            live[j]++;
    }
    uint32_t spare = c->has_confidence ? (r->most - given) / r->n_asks : 0;
    for (uint32_t i = 0; i < r->n_asks; i++) {
        td_depth_ask *a = &r->asks[i];
        uint32_t planned = a->wanted;
        if (!planned || a->forced)
            continue;
        a->wanted = planned + spare < a->most ? planned + spare : a->most;
        thresholds(c, p, r, a, n - planned, live);
    }
}

/* What a draft of this sequence gains if only as much of it is fed as pays once its first token's probability is known.
 * granted: drafts of the pass besides. */
static double worth_a_look(const td_depth_costs *c, const plan *p, const td_depth_ask *a, uint32_t granted) {
    const float *own = a->depth->seen.first, *all = c->all.first;
    double gain = 0, sum = 0;
    for (uint32_t b = 0; b < TD_CONFIDENCE_BINS; b++) {
        double often = (double)(own[b] + LOOK_WEIGHT * all[b]);
        double reach = (double)a->stop.worth[b], so_far = 0, best = 0;
        for (uint32_t k = 0; k < a->most && granted + k < p->n; k++) {
            so_far += reach - c->rate * (p->pass[granted + k + 1] - p->pass[granted + k] + (k ? step(p, k, 1) : 0));
            best = so_far > best ? so_far : best;
            reach *= k + 1 < a->most ? (double)a->p[k + 1] : 0;
        }
        gain += often * best;
        sum += often;
    }
    return sum > 0 ? gain / sum - c->rate * step(p, 0, 1) : 0;
}

/* Where an average draft does not pay, looking what the drafter says may. */
static uint32_t look(const td_depth_costs *c, const plan *p, const td_depth_round *r, uint32_t granted) {
    for (uint32_t i = 0; i < r->n_asks && granted < r->most && c->has_confidence; i++) {
        td_depth_ask *a = &r->asks[i];
        if (!a->most || a->wanted || worth_a_look(c, p, a, granted) <= 0)
            continue;
        a->wanted = 1;
        granted++;
    }
    return granted;
}

/* ---- finding out ---- */

/* Drafts have been accepted of late as was not to be expected. */
static bool suspects(const td_depth *d) {
    return d->better.score > SUSPICION * d->better.n;
}

/* A first draft for sequences that get none: the one that has gone longest without, as often as takes up a small share
 * of the time; and at once, one whose drafts have begun to be accepted. */
static void probe(td_depth_costs *c, const plan *p, const td_depth_round *r, uint32_t granted) {
    uint32_t next = granted < p->n ? granted + 1 : granted, longest = 0;
    double cost = (p->pass[next] - p->pass[granted]) + step(p, 0, 1);
    double share = cost / (PROBE_SHARE * (p->pass[granted] + p->draft[granted]));
    uint32_t gap = share > TD_DEPTH_PROBE ? TD_DEPTH_PROBE : share < 1 ? 1 : (uint32_t)share, left = r->most - granted;
    td_depth_ask *chosen = NULL;
    for (uint32_t i = 0; i < r->n_asks && left; i++) {
        td_depth_ask *a = &r->asks[i];
        if (!a->most || a->wanted)
            continue;
        if (suspects(a->depth)) {
            a->wanted = 1;
            a->forced = true;
            left--;
        } else if (a->depth->since_draft >= longest) {
            longest = a->depth->since_draft;
            chosen = a;
        }
    }
    if (chosen && left && longest >= gap && c->since_probe >= gap) {
        chosen->wanted = 1;
        chosen->forced = true;
        c->since_probe = 0;
    }
}

static void begin_round(td_depth_costs *c, const td_depth_round *r) {
    c->bucket = td_costs_bucket(&c->costs, r->n_keys);
    c->since_probe++;
    c->since_explore++;
    c->rate = 0;
    c->forced = false;
    for (uint32_t i = 0; i < r->n_asks; i++) {
        td_depth_ask *a = &r->asks[i];
        a->wanted = a->n_out = a->kept = 0;
        a->forced = false;
        a->most = a->most < TD_MAX_DRAFT ? a->most : TD_MAX_DRAFT;
        by_position(a->depth, &c->all, a->most, a->p, a->hope);
        memcpy(a->stop.typical, a->p, sizeof a->p);
        by_confidence(&a->depth->seen, &c->all, a->stop.worth);
        memset(a->stop.least, 0, sizeof a->stop.least);
    }
}

/* The plain pass of this round has a price that can be trusted; the first of all is measured twice, because the first
 * pass of a process is like no other. */
static bool plain_is_known(const td_cost_bucket *b, uint32_t rows) {
    return td_costs_fresh(b, rows) && (b->rounds > 1 || td_costs_seen(b, rows) > 1);
}

void td_depth_plan(td_depth_costs *c, const td_depth_round *r) {
    plan p;
    begin_round(c, r);
    p.n = r->n_asks <= TD_DEPTH_DRAFTS ? drafts_possible(r) : 0;
    if (!p.n || !plain_is_known(c->bucket, r->n_rows))
        return;
    uint32_t n_asks = r->n_asks;
    td_costs_passes(c->bucket, false, r->n_rows, p.n, p.pass);
    td_costs_steps(c->bucket, n_asks, p.pass[0], p.first, p.later);
    lay_out(&p, r);
    uint32_t best = best_of(&p, &c->rate);
    if (r->n_prompt && mixed_passes(c, r, &p)) {
        best = most_gain(&p, c->rate);
    } else if (c->since_explore >= TD_DEPTH_EXPLORE) {
        uint32_t trial = worth_a_trial(c, &p, r, best, c->rate);
        c->forced = trial != best;
        c->since_explore = c->forced ? 0 : c->since_explore;
        best = trial;
    }
    grant(&p, r, best);
    if (!c->forced)
        best = look(c, &p, r, best);
    probe(c, &p, r, best);
    if (best && !c->forced)
        set_stops(c, &p, r, best);
}

/* ---- which drafts are fed ---- */

/* The likelihoods of the drafts that were made take the place of the typical ones. */
static void take_confidence(td_depth_ask *a) {
    for (uint32_t j = 0; j < a->n_out; j++)
        if (a->confidence && a->confidence[j] >= 0)
            a->p[j] = a->stop.worth[td_confidence_bin(a->confidence[j])];
    a->most = a->n_out;
}

void td_depth_keep(td_depth_costs *c, const td_depth_round *r) {
    plan p;
    for (uint32_t i = 0; i < r->n_asks; i++) {
        td_depth_ask *a = &r->asks[i];
        a->kept = 0;
        take_confidence(a);
    }
    p.n = r->n_asks <= TD_DEPTH_DRAFTS ? drafts_possible(r) : 0;
    if (!p.n)
        return;
    if (!r->n_prompt || !mixed_passes(c, r, &p))
        td_costs_passes(c->bucket, false, r->n_rows, p.n, p.pass);
    memset(p.first, 0, sizeof p.first);
    memset(p.later, 0, sizeof p.later);
    lay_out(&p, r);
    uint32_t best = c->forced ? p.n : most_gain(&p, c->rate); /* what they took to draft is spent */
    for (uint32_t i = 0; i < r->n_asks; i++)
        r->asks[i].kept = r->asks[i].forced ? r->asks[i].n_out : 0;
    for (uint32_t k = 0; k < best; k++)
        if (!r->asks[p.to[k]].forced)
            r->asks[p.to[k]].kept++;
}

/* ---- measuring ---- */

void td_depth_saw_round(td_depth_costs *c, const td_depth_round *r, uint32_t n_drafts, double pass_seconds,
                        const uint32_t *live, uint32_t n_steps, double draft_seconds) {
    double plain;
    td_costs_saw_pass(c->bucket, r->n_prompt > 0, r->n_seqs + r->n_prompt + n_drafts, pass_seconds);
    td_costs_passes(c->bucket, false, 1, 0, &plain);
    if (n_steps)
        td_costs_saw_draft(c->bucket, live, n_steps, plain, draft_seconds);
}
