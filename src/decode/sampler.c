/* sampler.c - penalties, temperature, top-k, top-p, min-p, and a Gumbel draw: the plain way, which takes anything.
 *
 * It makes an item of every word, and filters items (words.h). A row that nothing but the filters changes goes another
 * way (sampler_row.c), which comes to the same token and looks at few of the words; what that way cannot decide for
 * sure comes back here. */
#include "decode/sampler.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "decode/sampler_impl.h"

td_status td_sampler_open(td_sampler **out, td_backend *be, uint32_t n_vocab, td_error *err) {
    *out = NULL;
    td_sampler *s = td_calloc(1, sizeof *s);
    if (s) {
        s->n_vocab = n_vocab;
        s->be = be;
        s->items = td_calloc(n_vocab, sizeof *s->items);
        s->peak = be ? td_calloc(td_peaks(n_vocab), sizeof *s->peak) : NULL;
    }
    if (!s || !s->items || (be && !s->peak)) {
        td_sampler_close(&s);
        return td_fail(err, TD_E_NOMEM, "out of memory for a sampler of %u words", n_vocab);
    }
    *out = s;
    return TD_OK;
}

void td_sampler_close(td_sampler **s) {
    if (!s || !*s)
        return;
    td_free((*s)->items);
    td_free((*s)->peak);
    td_free(*s);
    *s = NULL;
}

td_status td_history_open(td_history *h, uint32_t n_vocab, td_error *err) {
    *h = (td_history){.n_vocab = n_vocab};
    h->generated = td_calloc(n_vocab, sizeof *h->generated);
    h->prompted = td_calloc(n_vocab, sizeof *h->prompted);
    if (h->generated && h->prompted)
        return TD_OK;
    td_history_close(h);
    return td_fail(err, TD_E_NOMEM, "out of memory for the history of %u words", n_vocab);
}

void td_history_close(td_history *h) {
    td_free(h->generated);
    td_free(h->prompted);
    *h = (td_history){0};
}

void td_history_clear(td_history *h) {
    memset(h->generated, 0, h->n_vocab * sizeof *h->generated);
    memset(h->prompted, 0, h->n_vocab * sizeof *h->prompted);
}

static td_status range(const char *field, float value, float lo, float hi, td_error *err) {
    if (value >= lo && value <= hi)
        return TD_OK;
    return td_fail(err, TD_E_ARG, "%s is %g, expected %g to %g", field, (double)value, (double)lo, (double)hi);
}

td_status td_sampling_check(const td_sampling *p, uint32_t n_vocab, td_error *err) {
    TD_TRY(range("temperature", p->temperature, 0, 100, err));
    TD_TRY(range("top_p", p->top_p, 0, 1, err));
    TD_TRY(range("min_p", p->min_p, 0, 1, err));
    TD_TRY(range("repetition_penalty", p->repetition_penalty, 0.01f, 100, err));
    TD_TRY(range("presence_penalty", p->presence_penalty, -100, 100, err));
    TD_TRY(range("frequency_penalty", p->frequency_penalty, -100, 100, err));
    for (size_t i = 0; i < p->n_bias; i++) {
        if (p->bias[i].token < 0 || (uint32_t)p->bias[i].token >= n_vocab)
            return td_fail(err, TD_E_ARG, "logit bias of token %d, expected a token from 0 to %u", p->bias[i].token,
                           n_vocab - 1);
        if (!(p->bias[i].bias <= 1000))
            return td_fail(err, TD_E_ARG, "logit bias %g of token %d, expected at most 1000", (double)p->bias[i].bias,
                           p->bias[i].token);
    }
    return TD_OK;
}

bool td_sampling_has_penalties(const td_sampling *p) {
    return p->repetition_penalty != 1 || p->presence_penalty != 0 || p->frequency_penalty != 0;
}

static float penalised(const td_sampling *p, const td_history *h, td_token t, float logit) {
    uint32_t count = h->generated[t];
    if (count || h->prompted[t])
        logit = logit > 0 ? logit / p->repetition_penalty : logit * p->repetition_penalty;
    if (count)
        logit -= p->presence_penalty + p->frequency_penalty * (float)count;
    return logit;
}

static td_status fill(td_sampler *s, const td_sampling *p, const td_history *h, const float *logits,
                      const td_token *candidate, uint32_t n, td_error *err) {
    bool penalties = h && td_sampling_has_penalties(p);
    for (uint32_t i = 0; i < n; i++) {
        td_token t = candidate ? candidate[i] : (td_token)i;
        if (!(logits[i] < INFINITY)) /* NaN or +inf */
            return td_fail_at(err, TD_E_NUMERIC, t, "the model gave the logit %g for token %d", (double)logits[i], t);
        s->items[i] = (td_word){penalties ? penalised(p, h, t, logits[i]) : logits[i], t};
    }
    for (size_t b = 0; b < p->n_bias; b++) {
        if (!candidate) {
            s->items[p->bias[b].token].value += p->bias[b].bias;
            continue;
        }
        for (uint32_t i = 0; i < n; i++)
            if (s->items[i].id == p->bias[b].token)
                s->items[i].value += p->bias[b].bias;
    }
    return TD_OK;
}

static uint32_t keep_allowed(td_word *items, uint32_t n, const uint64_t *allowed) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < n; i++)
        if (allowed[items[i].id / 64] >> (items[i].id % 64) & 1)
            items[kept++] = items[i];
    return kept;
}

/* ---- the plain way: an item a word ---- */

static uint32_t filter(td_word *items, uint32_t n, const td_sampling *p, float best) {
    if (p->top_k)
        n = td_words_top_k(items, n, p->top_k);
    if (p->top_p < 1) {
        double total = td_words_mass(items, n, best);
        td_words_nucleus(items, &n, best, p->top_p, total, total); /* short: all of them */
    }
    if (p->min_p > 0)
        n = td_words_within(items, n, best + logf(p->min_p));
    return n;
}

static td_status sample_plainly(td_sampler *s, const td_sampling *p, const td_history *h, const float *logits,
                                const td_token *candidate, const uint64_t *allowed, uint32_t n, uint64_t position,
                                td_token *out, td_error *err) {
    TD_TRY(fill(s, p, h, logits, candidate, n, err));
    if (allowed)
        n = keep_allowed(s->items, n, allowed);
    if (n == 0)
        return td_fail(err, TD_E_NUMERIC, "no token is left to choose: the constraint allows none");
    td_word drawn = s->items[td_words_best(s->items, n)];
    if (drawn.value == -INFINITY)
        return td_fail(err, TD_E_NUMERIC, "no token is left to choose: every logit is -inf");
    /* Next to 0 logit/T leaves a float's range, and no noise could matter. */
    if (p->temperature > 0 && isfinite(drawn.value / p->temperature)) {
        for (uint32_t i = 0; i < n; i++)
            s->items[i].value /= p->temperature;
        n = filter(s->items, n, p, drawn.value / p->temperature);
        drawn = td_words_draw(s->items, n, p->seed, position);
    }
    *out = drawn.id;
    s->n_kept = n;
    s->drawn = drawn.value;
    return TD_OK;
}

/* ---- ---- */

td_status td_sample(td_sampler *s, const td_sampling *p, const td_history *h, const float *logits,
                    const td_token *candidate, const uint64_t *allowed, uint32_t n, uint64_t position, td_token *out,
                    td_error *err) {
    bool done = false;
    s->n_kept = 0;
    s->row = NULL;
    if (s->be && n && !p->n_bias && !(h && td_sampling_has_penalties(p)))
        TD_TRY(td_sample_row(s, p, logits, candidate, allowed, n, position, &done, out, err));
    return done ? TD_OK : sample_plainly(s, p, h, logits, candidate, allowed, n, position, out, err);
}

/* Of a large vocabulary nearly all words are so far below the best that their exponentials are not worth computing. */
#define FAR_BELOW 16.0f

float td_sampler_confidence(const td_sampler *s) {
    if (!s->n_kept)
        return 0;
    if (s->row)
        return td_row_confidence(s);
    float best = s->items[td_words_best(s->items, s->n_kept)].value;
    double sum = 0;
    for (uint32_t i = 0; i < s->n_kept; i++) {
        float below = best - s->items[i].value;
        if (below < FAR_BELOW)
            sum += (double)expf(-below);
    }
    return (float)((double)expf(s->drawn - best) / sum);
}
