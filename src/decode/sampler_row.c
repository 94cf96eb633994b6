/* sampler_row.c - the short way: a row of logits without penalties or bias, by the backend's operations.
 *
 * The token is that of the plain way, always. One pass over the row finds its best word and the peaks of its blocks;
 * after that only words that can matter are looked at. Of top-k they are those not below the k-th largest peak, which k
 * words reach; of min-p those that it keeps.
 *
 * Of top-p they are the words within some reach of the best. Words come off their heap in the order of all words, so if
 * these get to top_p before they run out, no other word comes into it; else the reach grows. The total is a sum in
 * float with a bound on its error (td_backend_ops.sum_exp). Where that leaves open whether a sum has got there, it is
 * summed as the plain way does.
 *
 * A draw from all words asks of each how much noise its random word can make at most, which the number of ones that it
 * begins with says (td_rng_gumbel_below). Few could take the lead, and only their noise is computed.
 *
 * Thresholds are values, logit/T rounded to f32, and equal values go by token: so a threshold becomes a logit with room
 * for that rounding, and then the values decide. A mask is looked at when there is nothing to draw: the best of all
 * words is the best of those allowed, if it is one of them. What this way cannot say, it leaves to the plain way;
 * errors too. */
#include <math.h>

#include "base/rng.h"
#include "decode/sampler_impl.h"

#define FIRST_WORDS 64 /* that the first reach of a top-p takes in, about */
#define FARTHEST 128   /* exponentials further below the best are nothing beside its own */

/* One call's work. */
typedef struct row {
    td_sampler *s;
    const td_sampling *p;
    const float *x;            /* [n] logits */
    const td_token *candidate; /* [n] their tokens; NULL: their places */
    uint32_t n;
    uint64_t position;
    td_word best; /* its logit */
    float top;    /* the largest value */
} row;

/* The least logit whose value may be as large as that. Division and the conversion here err by 2^-24 each, near zero by
 * less than 2^-140. */
static float logit_of(const row *r, float value) {
    double x = (double)value * r->p->temperature;
    return (float)(x - fabs(x) * 0x1p-22 - 1e-30);
}

/* The words whose logit is not below `least`, as the sampler's items. */
static td_status find(const row *r, float least, uint32_t *n, td_error *err) {
    td_sampler *s = r->s;
    s->be->ops->top(s->be, s->items, n, r->x, s->peak, 1, r->n, &least);
    TD_TRY(s->be->ops->wait(s->be, err));
    for (uint32_t i = 0; i < *n && r->candidate; i++)
        s->items[i].id = r->candidate[s->items[i].id];
    return TD_OK;
}

/* Those whose value is not below `least`, with their values. */
static td_status collect(const row *r, float least, uint32_t *n, td_error *err) {
    td_word *items = r->s->items;
    TD_TRY(find(r, logit_of(r, least), n, err));
    for (uint32_t i = 0; i < *n; i++)
        items[i].value /= r->p->temperature;
    *n = td_words_within(items, *n, least);
    return TD_OK;
}

/* A value that at least k words have, the k-th largest peak's; -inf when there are fewer peaks. Uses the items. */
static float kth_peak(const row *r, uint32_t k) {
    td_sampler *s = r->s;
    uint32_t n = td_peaks(r->n);
    float least = INFINITY;
    if (k > n)
        return -INFINITY;
    for (uint32_t i = 0; i < n; i++)
        s->items[i] = (td_word){s->peak[i], (int32_t)i};
    k = td_words_top_k(s->items, n, k);
    for (uint32_t i = 0; i < k; i++)
        least = s->items[i].value < least ? s->items[i].value : least;
    return least / r->p->temperature;
}

/* ---- filters: *n words are kept; 0: this way cannot say ---- */

/* After top-k the plain way's total has the same terms in another order. */
static td_status keep_top_k(const row *r, uint32_t *n, td_error *err) {
    float least = kth_peak(r, r->p->top_k);
    *n = 0;
    if (!(least > -INFINITY))
        return TD_OK;
    TD_TRY(collect(r, least, n, err));
    *n = td_words_top_k(r->s->items, *n, r->p->top_k);
    if (r->p->top_p >= 1)
        return TD_OK;
    double total = td_words_mass(r->s->items, *n, r->top), error = total * 0x1p-50 * *n;
    if (td_words_nucleus(r->s->items, n, r->top, r->p->top_p, total - error, total + error) != TD_NUCLEUS_REACHED)
        *n = 0;
    return TD_OK;
}

/* As the plain way sums it. */
static double exact_total(const row *r) {
    double total = 0;
    for (uint32_t i = 0; i < r->n; i++)
        total += exp(r->x[i] / r->p->temperature - (double)r->top);
    return total;
}

/* Where the bounds of the total are too wide to say, they become what it is. */
static td_nucleus nucleus(const row *r, uint32_t *n, double *lo, double *hi) {
    td_nucleus got = td_words_nucleus(r->s->items, n, r->top, r->p->top_p, *lo, *hi);
    if (got != TD_NUCLEUS_UNSURE)
        return got;
    *lo = *hi = exact_total(r);
    return td_words_nucleus(r->s->items, n, r->top, r->p->top_p, *lo, *hi);
}

static td_status keep_top_p(const row *r, uint32_t *n, td_error *err) {
    td_sampler *s = r->s;
    uint32_t n_peaks = td_peaks(r->n);
    float reach = r->top - kth_peak(r, n_peaks < FIRST_WORDS ? n_peaks : FIRST_WORDS);
    double total;
    s->be->ops->sum_exp(s->be, &total, r->x, 1, r->n, &r->best.value, r->p->temperature);
    TD_TRY(s->be->ops->wait(s->be, err));
    double lo = total * (1 - TD_SUM_EXP_ERROR), hi = total * (1 + TD_SUM_EXP_ERROR);
    for (reach = reach > 1 ? reach : 1; reach < FARTHEST; reach *= 1.5f) {
        TD_TRY(collect(r, r->top - reach, n, err));
        if (td_words_mass(s->items, *n, r->top) * (1 + 1e-9) < r->p->top_p * lo)
            continue; /* without a heap: they do not reach it together */
        if (nucleus(r, n, &lo, &hi) == TD_NUCLEUS_REACHED)
            return TD_OK;
    }
    *n = 0;
    return TD_OK;
}

static td_status keep(const row *r, uint32_t *n, td_error *err) {
    bool top_k = r->p->top_k && r->p->top_k < r->n, top_p = r->p->top_p < 1;
    float least = r->p->min_p > 0 ? r->top + logf(r->p->min_p) : -INFINITY;
    if (!top_k && !top_p)
        return collect(r, least, n, err);
    TD_TRY(top_k ? keep_top_k(r, n, err) : keep_top_p(r, n, err));
    *n = td_words_within(r->s->items, *n, least);
    return TD_OK;
}

/* ---- a draw from all words ---- */

/* The least random word that could carry the value to the lead: it begins with so many ones. False: none could. */
static bool least_word(double value, double lead, uint32_t *word) {
    int ones = 0;
    while (ones <= 32 && value + td_rng_gumbel_below(ones) < lead)
        ones++;
    if (ones > 32)
        return false;
    *word = (uint32_t)(0 - ((uint64_t)1 << (32 - ones)));
    return true;
}

/* Of words that stand at their tokens' places. */
static td_word draw_from_all(const row *r) {
    const float t = r->p->temperature;
    td_word winner = {r->top, r->best.id};
    double lead = r->top + td_rng_gumbel(r->p->seed, r->position, (uint32_t)winner.id);
    for (uint32_t b = 0, least; b < td_peaks(r->n); b++) {
        uint32_t first = b * TD_PEAK_BLOCK, n = r->n - first < TD_PEAK_BLOCK ? r->n - first : TD_PEAK_BLOCK;
        uint32_t word[TD_RNG_WORDS];
        if (!least_word(r->s->peak[b] / t, lead, &least))
            continue;
        td_rng_words(r->p->seed, r->position, first, word);
        for (uint32_t i = 0; i < n; i++) {
            if (word[i] < least)
                continue;
            float value = r->x[first + i] / t;
            double v = value + td_rng_gumbel_of(word[i]);
            if (v > lead || (v == lead && (int32_t)(first + i) < winner.id)) {
                lead = v;
                winner = (td_word){value, (int32_t)(first + i)};
            }
        }
    }
    return winner;
}

/* ---- ---- */

_Static_assert(TD_PEAK_BLOCK == TD_RNG_WORDS, "the random words of a block come together");

/* Everything was kept. */
static void kept_all(const row *r, float temperature, td_word drawn, td_token *out) {
    td_sampler *s = r->s;
    *out = drawn.id;
    s->n_kept = r->n;
    s->drawn = drawn.value;
    s->row = r->x;
    s->temperature = temperature;
    s->top = r->best.value;
}

/* The best word, of equals the lowest token. */
static td_status greedy(const row *r, const uint64_t *allowed, bool *done, td_token *out, td_error *err) {
    td_word best = {r->best.value, r->best.id};
    if (r->candidate) {
        uint32_t n;
        TD_TRY(find(r, r->best.value, &n, err));
        best = r->s->items[td_words_best(r->s->items, n)];
    }
    *done = !allowed || (allowed[best.id / 64] >> (best.id % 64) & 1);
    if (*done)
        kept_all(r, 1, best, out);
    return TD_OK;
}

static td_status draw_from_kept(const row *r, bool *done, td_token *out, td_error *err) {
    td_sampler *s = r->s;
    uint32_t n;
    TD_TRY(keep(r, &n, err));
    *done = n > 0;
    if (!*done)
        return TD_OK;
    td_word drawn = td_words_draw(s->items, n, r->p->seed, r->position);
    *out = drawn.id;
    s->n_kept = n;
    s->drawn = drawn.value;
    return TD_OK;
}

td_status td_sample_row(td_sampler *s, const td_sampling *p, const float *logits, const td_token *candidate,
                        const uint64_t *allowed, uint32_t n, uint64_t position, bool *done, td_token *out,
                        td_error *err) {
    row r = {.s = s, .p = p, .x = logits, .candidate = candidate, .n = n, .position = position};
    s->be->ops->argmax(s->be, &r.best, s->peak, logits, 1, n);
    TD_TRY(s->be->ops->wait(s->be, err));
    if (!isfinite(r.best.value)) /* no number, or none at all */
        return TD_OK;
    r.top = r.best.value / p->temperature;
    if (!(p->temperature > 0 && isfinite(r.top)))
        return greedy(&r, allowed, done, out, err);
    if (allowed)
        return TD_OK;
    if ((p->top_k && p->top_k < n) || p->top_p < 1 || p->min_p > 0)
        return draw_from_kept(&r, done, out, err);
    if (candidate)
        return TD_OK;
    kept_all(&r, p->temperature, draw_from_all(&r), out);
    *done = true;
    return TD_OK;
}

float td_row_confidence(const td_sampler *s) {
    double sum;
    s->be->ops->sum_exp(s->be, &sum, s->row, 1, s->n_kept, &s->top, s->temperature);
    if (s->be->ops->wait(s->be, NULL) != TD_OK)
        return 0;
    return (float)(exp((double)s->drawn - s->top / s->temperature) / sum);
}
