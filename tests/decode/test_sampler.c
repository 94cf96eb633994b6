/* test_sampler.c - the sampler against a second one written from its description: doubles, a full sort, no shortcuts.
 *
 * Three kinds of claims. Exact ones: the token is the argmax of logit/T + noise over the tokens that the filters keep,
 * whatever the order or the selection of candidates. Statistical ones: over many positions the draws follow the softmax
 * of what is kept, and neighbouring positions are independent; each is one chi-square test at a level of 1e-4, on fixed
 * seeds, so a correct sampler that passes once passes always. And errors, word for word. All of them the plain way, and
 * again with a backend. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "decode/sampler.h"

#define N_VOCAB 512

typedef struct bench {
    td_backend *be;
    td_sampler *sampler;
    td_history history;
    td_error err;
} bench;

static bool with_backend; /* or the plain way alone */

static int set_up(void **state) {
    bench *b = test_calloc(1, sizeof *b);
    if (with_backend)
        assert_int_equal(td_backend_cpu_open(&b->be, &(td_cpu_options){.n_threads = 1}, &b->err), TD_OK);
    assert_int_equal(td_sampler_open(&b->sampler, b->be, N_VOCAB, &b->err), TD_OK);
    assert_int_equal(td_history_open(&b->history, N_VOCAB, &b->err), TD_OK);
    *state = b;
    return 0;
}

static int tear_down(void **state) {
    bench *b = *state;
    td_sampler_close(&b->sampler);
    td_history_close(&b->history);
    td_backend_close(&b->be);
    test_free(b);
    return 0;
}

static td_sampling plain(float temperature) {
    return (td_sampling){.temperature = temperature, .top_p = 1, .repetition_penalty = 1, .seed = 7};
}

static td_token sample_from(bench *b, const td_sampling *p, const float *logits, const td_token *candidate, uint32_t n,
                            uint64_t position) {
    td_token t = -1;
    td_status st = td_sample(b->sampler, p, &b->history, logits, candidate, NULL, n, position, &t, &b->err);
    if (st != TD_OK)
        fail_msg("td_sample: %s", b->err.message);
    return t;
}

static td_token sample(bench *b, const td_sampling *p, const float *logits, uint32_t n, uint64_t position) {
    return sample_from(b, p, logits, NULL, n, position);
}

/* Random numbers for the tests' own inputs: another seed than any draw's. */
static double uniform(uint64_t stream, uint64_t i) {
    return td_rng_uniform(0xfeedf00d, stream, (uint32_t)i);
}

static uint32_t below(uint64_t stream, uint64_t i, uint32_t n) {
    return (uint32_t)(uniform(stream, i) * n);
}

/* About normal, scaled. */
static void random_logits(float *x, uint32_t n, double scale, uint64_t stream) {
    for (uint32_t i = 0; i < n; i++)
        x[i] = (float)(scale * sqrt(-2 * log(uniform(stream, 2 * i))) * cos(6.283185307 * uniform(stream, 2 * i + 1)));
}

/* ---- the second sampler ---- */

typedef struct oracle {
    td_token token[N_VOCAB]; /* what the filters keep, best first */
    double value[N_VOCAB];   /* logit/T */
    double weight[N_VOCAB];  /* probabilities of the kept tokens */
    uint32_t n;
} oracle;

static const double *rank_value; /* of the sort under way, by token */

static int by_value_then_token(const void *a, const void *b) {
    td_token x = *(const td_token *)a, y = *(const td_token *)b;
    if (rank_value[x] != rank_value[y])
        return rank_value[x] > rank_value[y] ? -1 : 1;
    return x < y ? -1 : x > y;
}

static double adjusted(const td_sampling *p, const td_history *h, td_token t, double logit) {
    if (h->generated[t] || h->prompted[t])
        logit = logit > 0 ? logit / p->repetition_penalty : logit * p->repetition_penalty;
    if (h->generated[t])
        logit -= p->presence_penalty + (double)p->frequency_penalty * h->generated[t];
    for (size_t i = 0; i < p->n_bias; i++)
        if (p->bias[i].token == t)
            logit += p->bias[i].bias;
    return logit;
}

static double softmax_sum(const oracle *o, uint32_t n) {
    double sum = 0;
    for (uint32_t i = 0; i < n; i++)
        sum += exp(o->value[i] - o->value[0]);
    return sum;
}

static uint32_t nucleus(const oracle *o, double top_p) {
    double total = softmax_sum(o, o->n), sum = 1;
    uint32_t n = 1;
    while (n < o->n && sum < top_p * total)
        sum += exp(o->value[n++] - o->value[0]);
    return n;
}

static uint32_t likely_enough(const oracle *o, double min_p) {
    uint32_t n = 1;
    while (n < o->n && exp(o->value[n] - o->value[0]) >= min_p * (1 - 1e-6)) /* a tie is kept */
        n++;
    return n;
}

/* The tokens kept of `n` logits and what each weighs, by the definition. Temperature above 0. */
static void keep(oracle *o, const td_sampling *p, const td_history *h, const float *logits, uint32_t n) {
    double value[N_VOCAB];
    o->n = 0;
    for (uint32_t t = 0; t < n; t++) {
        value[t] = adjusted(p, h, (td_token)t, logits[t]) / p->temperature;
        if (value[t] > -INFINITY)
            o->token[o->n++] = (td_token)t;
    }
    rank_value = value;
    qsort(o->token, o->n, sizeof o->token[0], by_value_then_token);
    for (uint32_t i = 0; i < o->n; i++)
        o->value[i] = value[o->token[i]];
    if (p->top_k && p->top_k < o->n)
        o->n = p->top_k;
    if (p->top_p < 1)
        o->n = nucleus(o, p->top_p);
    if (p->min_p > 0)
        o->n = likely_enough(o, p->min_p);
    double total = softmax_sum(o, o->n);
    for (uint32_t i = 0; i < o->n; i++)
        o->weight[i] = exp(o->value[i] - o->value[0]) / total;
}

static td_token oracle_draw(const oracle *o, uint64_t seed, uint64_t position) {
    td_token best = -1;
    double lead = -INFINITY;
    for (uint32_t i = 0; i < o->n; i++) {
        double v = o->value[i] + td_rng_gumbel(seed, position, (uint32_t)o->token[i]);
        if (v > lead || (v == lead && o->token[i] < best)) {
            lead = v;
            best = o->token[i];
        }
    }
    return best;
}

static uint32_t place_of(const oracle *o, td_token t) {
    for (uint32_t i = 0; i < o->n; i++)
        if (o->token[i] == t)
            return i;
    return UINT32_MAX;
}

/* Any mix of parameters, so that every pair of filters meets. */
static td_sampling random_sampling(uint64_t i, td_logit_bias bias[4]) {
    static const float temperatures[] = {0.05f, 0.6f, 1, 1.7f, 100};
    static const uint32_t ks[] = {0, 0, 1, 5, 40, N_VOCAB};
    static const float ps[] = {1, 1, 0, 0.3f, 0.9f, 0.9999f}, mins[] = {0, 0, 0.001f, 0.1f, 1};
    td_sampling p = plain(temperatures[below(i, 0, 5)]);
    p.seed = i * 0x9e3779b97f4a7c15ull;
    p.top_k = ks[below(i, 1, 6)];
    p.top_p = ps[below(i, 2, 6)];
    p.min_p = mins[below(i, 3, 5)];
    if (below(i, 4, 2)) {
        p.repetition_penalty = 0.7f + (float)uniform(i, 5);
        p.presence_penalty = (float)uniform(i, 6) - 0.5f;
        p.frequency_penalty = (float)uniform(i, 7) * 0.3f;
    }
    p.n_bias = below(i, 8, 5);
    p.bias = bias;
    for (size_t j = 0; j < p.n_bias; j++)
        bias[j] =
            (td_logit_bias){(td_token)below(i, 9 + 2 * j, 10), j == 0 ? -INFINITY : (float)uniform(i, 10 + 2 * j)};
    return p;
}

static void random_history(td_history *h, uint64_t stream) {
    td_history_clear(h);
    for (uint32_t i = 0; i < 100; i++)
        td_history_add(h, (td_token)below(stream, 100 + i, N_VOCAB));
    for (uint32_t i = 0; i < 100; i++)
        h->prompted[below(stream, 300 + i, N_VOCAB)] = 1;
}

/* ---- exact claims ---- */

static void greedy_takes_the_largest_and_of_equals_the_lowest(void **state) {
    bench *b = *state;
    td_sampling p = plain(0);
    float x[8] = {1, 3, 2, 3, -1, 3, 0, 2};
    assert_int_equal(sample(b, &p, x, 8, 0), 1);
    x[7] = 3.5f;
    assert_int_equal(sample(b, &p, x, 8, 0), 7);
    assert_int_equal(sample(b, &p, x, 1, 0), 0);
    float same[8] = {-2, -2, -2, -2, -2, -2, -2, -2};
    assert_int_equal(sample(b, &p, same, 8, 0), 0);
    float zeros[4] = {-5, -0.0f, 0.0f, -0.0f}; /* equal, whatever their sign */
    assert_int_equal(sample(b, &p, zeros, 4, 0), 1);
    const td_token backwards[8] = {80, 70, 60, 50, 40, 30, 20, 10};
    float y[8] = {1, 3, 2, 3, -1, 3, 0, 2};
    assert_int_equal(sample_from(b, &p, y, backwards, 8, 0), 30);
    assert_int_equal(sample_from(b, &p, same, backwards, 8, 0), 10);
}

static void the_draw_is_the_argmax_over_all_tokens(void **state) {
    bench *b = *state;
    float x[N_VOCAB];
    oracle o;
    static const float temperatures[] = {0.02f, 0.3f, 0.6f, 1, 1.7f, 10};
    for (uint32_t i = 0; i < 6000; i++) {
        td_sampling p = plain(temperatures[i % 6]);
        uint32_t n = 1 + below(1, i, N_VOCAB);
        random_logits(x, n, i % 4 ? 3 : 20, 10000 + i);
        p.seed = i;
        keep(&o, &p, &b->history, x, n);
        assert_int_equal(sample(b, &p, x, n, i), oracle_draw(&o, p.seed, i));
    }
}

/* The two largest and the smallest noise that 2^32 can give, found by search: seed 1, at these positions and tokens. A
 * token that far below the leader still wins, and one bit further it does not. */
static void no_token_that_could_win_is_skipped(void **state) {
    bench *b = *state;
    const struct {
        uint64_t position;
        td_token token;
    } extreme[] = {{1711450034, 0}, {2806061650, 1}};
    td_sampling p = plain(1);
    p.seed = 1;
    for (size_t i = 0; i < 2; i++) {
        double high = td_rng_gumbel(1, extreme[i].position, (uint32_t)extreme[i].token);
        assert_true(high > 22.87 && high <= TD_GUMBEL_MAX);
        for (td_token leader = 2; leader < N_VOCAB; leader++) {
            float x[N_VOCAB];
            for (uint32_t t = 0; t < N_VOCAB; t++)
                x[t] = -100;
            double low = td_rng_gumbel(1, extreme[i].position, (uint32_t)leader);
            x[leader] = (float)(high - low) - 1e-4f;
            x[extreme[i].token] = 0;
            assert_int_equal(sample(b, &p, x, N_VOCAB, extreme[i].position), extreme[i].token);
            x[leader] = (float)(high - low) + 1e-4f;
            assert_int_equal(sample(b, &p, x, N_VOCAB, extreme[i].position), leader);
        }
    }
    assert_true(fabs(td_rng_gumbel(1, 91093890, 0)) <= TD_GUMBEL_MAX);
}

static void filters_penalties_and_bias_keep_what_they_say(void **state) {
    bench *b = *state;
    float x[N_VOCAB];
    oracle o;
    td_logit_bias bias[4];
    for (uint32_t i = 0; i < 4000; i++) {
        td_sampling p = random_sampling(i, bias);
        uint32_t n = 12 + below(2, i, N_VOCAB - 12);
        random_logits(x, n, 2 + i % 5, 20000 + i);
        for (uint32_t t = 0; i % 3 == 0 && t < n; t++)
            x[t] = roundf(x[t]); /* many ties */
        random_history(&b->history, i);
        keep(&o, &p, &b->history, x, n);
        td_token got = sample(b, &p, x, n, i), want = oracle_draw(&o, p.seed, i);
        if (got != want)
            fail_msg("case %u: token %d, expected %d (T %g, top_k %u, top_p %g, min_p %g, %u of %u kept)", i, got, want,
                     (double)p.temperature, p.top_k, (double)p.top_p, (double)p.min_p, o.n, n);
    }
}

/* Fisher and Yates. */
static void shuffle(float *x, td_token *t, uint32_t n, uint64_t stream) {
    for (uint32_t i = n; i > 1; i--) {
        uint32_t j = below(stream, i, i);
        float v = x[i - 1];
        x[i - 1] = x[j];
        x[j] = v;
        td_token u = t[i - 1];
        t[i - 1] = t[j];
        t[j] = u;
    }
}

static void the_order_of_candidates_does_not_matter(void **state) {
    bench *b = *state;
    float x[N_VOCAB], y[N_VOCAB];
    td_token t[N_VOCAB];
    td_logit_bias bias[4];
    for (uint32_t i = 0; i < 2000; i++) {
        td_sampling p = random_sampling(i, bias);
        if (i % 5 == 0)
            p.temperature = 0;
        random_logits(x, N_VOCAB, 3, 30000 + i);
        random_history(&b->history, i);
        for (uint32_t j = 0; j < N_VOCAB; j++) {
            if (i % 2)
                x[j] = roundf(x[j]); /* ties go by token, not by place */
            y[j] = x[j];
            t[j] = (td_token)j;
        }
        shuffle(y, t, N_VOCAB, 31000 + i);
        assert_int_equal(sample_from(b, &p, y, t, N_VOCAB, i), sample(b, &p, x, N_VOCAB, i));
    }
}

/* What the assistant's centroid head relies on: when the vocabulary's choice is among the candidates, so is it theirs.
 */
static void a_shortlist_agrees_with_the_vocabulary(void **state) {
    bench *b = *state;
    float x[N_VOCAB], y[64];
    td_token t[64];
    uint32_t shared = 0;
    for (uint32_t i = 0; i < 3000; i++) {
        td_sampling p = plain(i % 3 ? 0.7f : 0);
        p.repetition_penalty = i % 2 ? 1.3f : 1;
        td_logit_bias bias[2] = {{(td_token)below(3, i, N_VOCAB), 2}, {(td_token)below(4, i, N_VOCAB), -INFINITY}};
        p.bias = bias;
        p.n_bias = i % 7 ? 2 : 0;
        random_history(&b->history, i);
        random_logits(x, N_VOCAB, 4, 40000 + i);
        td_token all = sample(b, &p, x, N_VOCAB, i);
        uint32_t from = below(5, i, N_VOCAB / 64); /* every so many-th token, a different set each time */
        bool has = false;
        for (uint32_t j = 0; j < 64; j++) {
            t[j] = (td_token)(from + (63 - j) * (N_VOCAB / 64));
            y[j] = x[t[j]];
            has = has || t[j] == all;
        }
        shared += has;
        if (has)
            assert_int_equal(sample_from(b, &p, y, t, 64, i), all);
    }
    assert_true(shared > 200);
}

static void filters_change_no_noise(void **state) {
    bench *b = *state;
    float x[N_VOCAB];
    oracle o;
    uint32_t kept = 0;
    for (uint32_t i = 0; i < 2000; i++) {
        random_logits(x, N_VOCAB, 3, 50000 + i);
        td_sampling open = plain(1), narrow = plain(1);
        narrow.top_k = 1 + below(6, i, 30);
        narrow.top_p = i % 2 ? 0.8f : 1;
        narrow.min_p = i % 3 ? 0.05f : 0;
        td_token free_choice = sample(b, &open, x, N_VOCAB, i);
        keep(&o, &narrow, &b->history, x, N_VOCAB);
        if (place_of(&o, free_choice) == UINT32_MAX)
            continue;
        kept++;
        assert_int_equal(sample(b, &narrow, x, N_VOCAB, i), free_choice);
    }
    assert_true(kept > 500);
}

static void edges_of_the_filters(void **state) {
    bench *b = *state;
    float x[N_VOCAB];
    td_sampling greedy = plain(0);
    for (uint32_t i = 0; i < 300; i++) {
        random_logits(x, N_VOCAB, 1, 60000 + i);
        td_token best = sample(b, &greedy, x, N_VOCAB, i);
        td_sampling p = plain(100);
        p.top_p = 0;
        assert_int_equal(sample(b, &p, x, N_VOCAB, i), best);
        p = plain(100);
        p.top_k = 1;
        assert_int_equal(sample(b, &p, x, N_VOCAB, i), best);
        p = plain(100);
        p.min_p = 1;
        assert_int_equal(sample(b, &p, x, N_VOCAB, i), best);
        td_sampling open = plain(1.3f);
        td_token free_choice = sample(b, &open, x, N_VOCAB, i);
        const uint32_t wide[] = {N_VOCAB, N_VOCAB + 1, UINT32_MAX};
        for (size_t k = 0; k < 3; k++) {
            open.top_k = wide[k];
            assert_int_equal(sample(b, &open, x, N_VOCAB, i), free_choice);
        }
    }
}

/* Probabilities that reach top_p exactly are enough: of four equal tokens, one half is two. */
static void a_nucleus_ends_where_it_reaches_top_p(void **state) {
    bench *b = *state;
    const float x[4] = {2, 2, 2, 2};
    for (uint32_t want = 1; want <= 4; want++) {
        td_sampling p = plain(1);
        p.top_p = 0.25f * (float)want;
        uint32_t seen = 0;
        for (uint64_t i = 0; i < 300; i++)
            seen |= 1u << sample(b, &p, x, 4, i);
        assert_int_equal(seen, (1u << want) - 1);
    }
}

/* Of tokens that stand equal on the border of a filter, the lower ids are kept. */
static void ties_on_a_border_go_to_lower_tokens(void **state) {
    bench *b = *state;
    float x[64];
    for (uint32_t i = 0; i < 64; i++)
        x[i] = 1.5f;
    x[50] = 2;
    bool seen[64] = {false};
    td_sampling p = plain(100);
    p.top_k = 5;
    for (uint64_t i = 0; i < 500; i++)
        seen[sample(b, &p, x, 64, i)] = true;
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(seen[i], i < 4 || i == 50);
    p = plain(1);
    p.min_p = 1;
    x[50] = 1.5f;
    x[3] = 1.4999f;
    memset(seen, 0, sizeof seen);
    for (uint64_t i = 0; i < 2000; i++)
        seen[sample(b, &p, x, 64, i)] = true;
    for (uint32_t i = 0; i < 64; i++)
        assert_int_equal(seen[i], i != 3);
}

/* logit/T of a temperature near 0 leaves the range of a float; the choice must not. */
static void a_tiny_temperature_is_greedy(void **state) {
    bench *b = *state;
    static const float tiny[] = {1e-3f, 1e-20f, 1e-37f, 1e-38f, 1e-40f, 1.4e-45f};
    float x[N_VOCAB];
    td_sampling greedy = plain(0);
    for (uint32_t i = 0; i < 200; i++) {
        random_logits(x, N_VOCAB, 20, 70000 + i);
        for (uint32_t t = 0; t < N_VOCAB; t++)
            x[t] += i % 2 ? 100.0f : -100.0f;
        for (size_t k = 0; k < sizeof tiny / sizeof tiny[0]; k++) {
            td_sampling p = plain(tiny[k]);
            p.top_k = i % 3 ? 0 : 10;
            p.top_p = i % 5 ? 1 : 0.9f;
            p.min_p = i % 7 ? 0 : 0.1f;
            assert_int_equal(sample(b, &p, x, N_VOCAB, i), sample(b, &greedy, x, N_VOCAB, i));
        }
    }
}

static void seed_and_position_count_in_all_their_bits(void **state) {
    bench *b = *state;
    float x[N_VOCAB] = {0};
    for (int bit = 0; bit < 64; bit++) {
        uint32_t other_seed = 0, other_position = 0;
        for (uint64_t i = 0; i < 8; i++) {
            td_sampling p = plain(1), q = plain(1);
            q.seed = p.seed ^ 1ull << bit;
            other_seed += sample(b, &p, x, N_VOCAB, i) != sample(b, &q, x, N_VOCAB, i);
            other_position += sample(b, &p, x, N_VOCAB, i) != sample(b, &p, x, N_VOCAB, i ^ 1ull << bit);
        }
        assert_true(other_seed >= 6); /* equal by chance: 1 in 512 each */
        assert_true(other_position >= 6);
    }
}

static void inputs_are_only_read_and_nothing_is_allocated(void **state) {
    bench *b = *state;
    float x[N_VOCAB], copy[N_VOCAB];
    td_token t[N_VOCAB], t_copy[N_VOCAB];
    td_logit_bias bias[4];
    random_logits(x, N_VOCAB, 3, 1);
    memcpy(copy, x, sizeof x);
    for (uint32_t i = 0; i < N_VOCAB; i++)
        t_copy[i] = t[i] = (td_token)(N_VOCAB - 1 - i);
    random_history(&b->history, 1);
    long live = td_alloc_live();
    for (uint32_t i = 0; i < 50; i++) {
        td_sampling p = random_sampling(i, bias);
        td_alloc_fail_at(0);
        sample(b, &p, x, N_VOCAB, i);
        sample_from(b, &p, x, t, N_VOCAB, i);
        assert_false(td_alloc_failed());
        td_alloc_fail_at(-1);
    }
    assert_int_equal(td_alloc_live(), live);
    assert_memory_equal(x, copy, sizeof x);
    assert_memory_equal(t, t_copy, sizeof t);
}

/* ---- penalties and bias ---- */

/* Token 1 with a logit, a past and parameters; its adjusted value must be `want`: it loses against a clean token 0 just
 * above and wins against one just below. */
static const struct {
    const char *name;
    float logit;
    bool prompted;
    uint32_t generated;
    float repetition, presence, frequency, bias;
    float want;
} penalty_cases[] = {
    {"clean", 2, false, 0, 1.5f, 1, 1, 0, 2},
    {"repetition, prompt only", 3, true, 0, 1.5f, 1, 1, 0, 2},
    {"repetition, negative", -2, true, 0, 1.5f, 0, 0, 0, -3},
    {"repetition below 1", 3, true, 0, 0.5f, 0, 0, 0, 6},
    {"repetition counts once", 3, true, 9, 1.5f, 0, 0, 0, 2},
    {"repetition, generated", 3, false, 1, 1.5f, 0, 0, 0, 2},
    {"repetition of zero", 0, true, 3, 1.5f, 0, 0, 0, 0},
    {"presence", 3, false, 4, 1, 0.5f, 0, 0, 2.5f},
    {"presence not for the prompt", 3, true, 0, 1, 0.5f, 0.5f, 0, 3},
    {"frequency", 3, false, 4, 1, 0, 0.25f, 0, 2},
    {"negative frequency", 3, false, 4, 1, 0, -0.25f, 0, 4},
    {"repetition first", 3, true, 2, 2, 0.5f, 0.25f, 0, 0.5f},
    {"bias last", 3, true, 2, 2, 0.5f, 0.25f, 4, 4.5f},
    {"bias alone", 3, false, 0, 1, 0, 0, -5, -2},
};

static void penalties_move_logits_by_what_they_say(void **state) {
    bench *b = *state;
    for (size_t i = 0; i < sizeof penalty_cases / sizeof penalty_cases[0]; i++) {
        td_logit_bias bias = {1, penalty_cases[i].bias};
        td_sampling p = plain(0);
        p.repetition_penalty = penalty_cases[i].repetition;
        p.presence_penalty = penalty_cases[i].presence;
        p.frequency_penalty = penalty_cases[i].frequency;
        p.bias = &bias;
        p.n_bias = bias.bias != 0;
        td_history_clear(&b->history);
        b->history.prompted[1] = penalty_cases[i].prompted;
        for (uint32_t n = 0; n < penalty_cases[i].generated; n++)
            td_history_add(&b->history, 1);
        for (int side = -1; side <= 1; side += 2) {
            float x[2] = {penalty_cases[i].want + (float)side * 1e-5f, penalty_cases[i].logit};
            const td_token candidate[2] = {0, 1};
            td_token want = side > 0 ? 0 : 1;
            if (sample(b, &p, x, 2, 0) != want || sample_from(b, &p, x, candidate, 2, 0) != want)
                fail_msg("%s: not %g", penalty_cases[i].name, (double)penalty_cases[i].want);
        }
    }
}

static void a_history_counts_and_forgets(void **state) {
    bench *b = *state;
    td_history *h = &b->history;
    td_history_add(h, 5);
    td_history_add(h, 5);
    td_history_add(h, N_VOCAB - 1);
    td_history_remove(h, 5);
    h->prompted[9] = 1;
    assert_int_equal(h->generated[5], 1);
    assert_int_equal(h->generated[N_VOCAB - 1], 1);
    td_history_clear(h);
    for (uint32_t i = 0; i < N_VOCAB; i++)
        assert_true(h->generated[i] == 0 && h->prompted[i] == 0);
    td_sampling p = plain(0);
    assert_false(td_sampling_has_penalties(&p));
    p.repetition_penalty = 1.1f;
    assert_true(td_sampling_has_penalties(&p));
    p = plain(0);
    p.presence_penalty = -1;
    assert_true(td_sampling_has_penalties(&p));
    p = plain(0);
    p.frequency_penalty = 1;
    assert_true(td_sampling_has_penalties(&p));
}

static void without_a_history_there_are_no_penalties(void **state) {
    bench *b = *state;
    td_sampling p = plain(0);
    p.repetition_penalty = 2;
    float x[2] = {1, 1.5f};
    td_token t;
    assert_int_equal(td_sample(b->sampler, &p, NULL, x, NULL, NULL, 2, 0, &t, &b->err), TD_OK);
    assert_int_equal(t, 1);
}

static void a_banned_token_never_comes(void **state) {
    bench *b = *state;
    float x[32];
    for (uint32_t i = 0; i < 32; i++)
        x[i] = (float)i;
    td_logit_bias bans[31];
    for (td_token i = 1; i < 32; i++)
        bans[i - 1] = (td_logit_bias){i, -INFINITY};
    td_sampling p = plain(100);
    p.bias = bans;
    p.n_bias = 31;
    p.top_k = 10; /* more than are left */
    for (uint64_t i = 0; i < 100; i++)
        assert_int_equal(sample(b, &p, x, 32, i), 0);
    p.n_bias = 30; /* 0 and 31 remain */
    p.bias = bans;
    for (uint64_t i = 0; i < 500; i++) {
        p.temperature = i % 2 ? 100 : 0;
        p.top_p = i % 3 ? 1 : 0.999f;
        p.min_p = i % 5 ? 0 : 1e-6f;
        td_token t = sample(b, &p, x, 32, i);
        assert_true(t == 0 || t == 31);
    }
    x[7] = -INFINITY; /* banned by the model itself: legal */
    p = plain(1);
    p.bias = &(td_logit_bias){7, 1000};
    p.n_bias = 1;
    for (uint64_t i = 0; i < 100; i++)
        assert_int_not_equal(sample(b, &p, x, 32, i), 7);
}

static void biases_of_one_token_add_up(void **state) {
    bench *b = *state;
    const td_logit_bias bias[] = {{2, 1}, {2, 1.5f}, {9, 100}};
    td_sampling p = plain(0);
    p.bias = bias;
    p.n_bias = 3;
    const td_token candidate[2] = {2, 5}; /* 9 is no candidate */
    assert_int_equal(sample_from(b, &p, (float[]){0, 2.4f}, candidate, 2, 0), 2);
    assert_int_equal(sample_from(b, &p, (float[]){0, 2.6f}, candidate, 2, 0), 5);
}

/* ---- statistics ---- */

/* The value that a chi-square variable of df degrees exceeds with probability 1e-4 (Wilson and Hilferty 1931). */
static double chi_square_limit(double df) {
    double a = 2 / (9 * df), z = 3.719;
    return df * pow(1 - a + z * sqrt(a), 3);
}

/* Cells expected to hold fewer than 5 draws are counted as one. */
static void check_distribution(const char *name, const oracle *o, const uint32_t *count, uint32_t n_draws) {
    double stat = 0, rest_want = 0, rest_got = 0;
    int cells = 0;
    for (uint32_t i = 0; i < o->n; i++) {
        double want = o->weight[i] * n_draws, got = count[i];
        if (want < 5) {
            rest_want += want;
            rest_got += got;
            continue;
        }
        stat += (got - want) * (got - want) / want;
        cells++;
    }
    if (rest_want >= 5) {
        stat += (rest_got - rest_want) * (rest_got - rest_want) / rest_want;
        cells++;
    }
    if (cells > 1 && stat > chi_square_limit(cells - 1))
        fail_msg("%s: chi-square %.1f over %d cells, allowed %.1f", name, stat, cells, chi_square_limit(cells - 1));
}

static void draws_follow_the_softmax_of_what_is_kept(void **state) {
    bench *b = *state;
    static const struct {
        const char *name;
        uint32_t top_k;
        float top_p, min_p, repetition;
    } filters[] = {{"no filter", 0, 1, 0, 1},          {"top-k", 20, 1, 0, 1},
                   {"top-p", 0, 0.9f, 0, 1},           {"min-p", 0, 1, 0.05f, 1},
                   {"top-k, top-p", 50, 0.95f, 0, 1},  {"top-p, min-p", 0, 0.95f, 0.02f, 1},
                   {"all three", 64, 0.95f, 0.02f, 1}, {"chat defaults", 64, 0.95f, 0, 1.1f}};
    static const float temperatures[] = {0.6f, 1, 1.7f};
    enum { N = 200, DRAWS = 40000 };
    float x[N];
    oracle o;
    random_logits(x, N, 2, 80000);
    random_history(&b->history, 5);
    for (size_t f = 0; f < sizeof filters / sizeof filters[0]; f++)
        for (size_t t = 0; t < 3; t++) {
            td_sampling p = plain(temperatures[t]);
            p.top_k = filters[f].top_k;
            p.top_p = filters[f].top_p;
            p.min_p = filters[f].min_p;
            p.repetition_penalty = filters[f].repetition;
            p.seed = 1000 + 10 * f + t;
            keep(&o, &p, &b->history, x, N);
            uint32_t count[N] = {0};
            for (uint32_t i = 0; i < DRAWS; i++) { /* half of the positions lie beyond 32 bits */
                uint64_t position = i + ((uint64_t)(i % 2) << 33);
                uint32_t place = place_of(&o, sample(b, &p, x, N, position));
                if (place == UINT32_MAX)
                    fail_msg("%s, T %g: a token that the filters drop", filters[f].name, (double)p.temperature);
                count[place]++;
            }
            char name[64];
            snprintf(name, sizeof name, "%s, T %g", filters[f].name, (double)p.temperature);
            check_distribution(name, &o, count, DRAWS);
        }
}

/* A table of pairs against the product of its margins. */
static void check_independence(const char *name, uint32_t *table, uint32_t k, uint32_t n) {
    double stat = 0;
    for (uint32_t i = 0; i < k; i++)
        for (uint32_t j = 0; j < k; j++) {
            double row = 0, column = 0;
            for (uint32_t m = 0; m < k; m++) {
                row += table[i * k + m];
                column += table[m * k + j];
            }
            double want = row * column / n, got = table[i * k + j];
            stat += (got - want) * (got - want) / want;
        }
    double limit = chi_square_limit((double)(k - 1) * (k - 1));
    if (stat > limit)
        fail_msg("%s: chi-square %.1f, allowed %.1f: draws depend on each other", name, stat, limit);
}

static void positions_and_seeds_draw_independently(void **state) {
    bench *b = *state;
    enum { K = 8, DRAWS = 40000 };
    float x[K];
    random_logits(x, K, 0.5, 90000);
    td_token *drawn = test_calloc(DRAWS + 64, sizeof *drawn);
    td_sampling p = plain(1);
    for (uint32_t i = 0; i < DRAWS + 64; i++)
        drawn[i] = sample(b, &p, x, K, i);
    static const uint32_t lags[] = {1, 2, 3, 4, 5, 8, 16, 17, 64};
    char name[32];
    for (size_t l = 0; l < sizeof lags / sizeof lags[0]; l++) {
        uint32_t table[K * K] = {0};
        for (uint32_t i = 0; i < DRAWS; i++)
            table[drawn[i] * K + drawn[i + lags[l]]]++;
        snprintf(name, sizeof name, "positions %u apart", lags[l]);
        check_independence(name, table, K, DRAWS);
    }
    for (uint64_t other = 1; other < 4; other++) {
        uint32_t table[K * K] = {0};
        td_sampling q = p;
        q.seed = p.seed + other;
        for (uint32_t i = 0; i < DRAWS; i++)
            table[drawn[i] * K + sample(b, &q, x, K, i)]++;
        snprintf(name, sizeof name, "seeds %u apart", (unsigned)other);
        check_independence(name, table, K, DRAWS);
    }
    test_free(drawn);
}

/* Noise of neighbouring tokens comes out of one Philox block; it must be independent all the same. */
static void tokens_of_one_position_have_noise_of_their_own(void **state) {
    (void)state;
    enum { K = 8, DRAWS = 40000 };
    for (uint32_t other = 1; other < 9; other++) {
        uint32_t table[K * K] = {0};
        for (uint32_t i = 0; i < DRAWS; i++)
            table[(uint32_t)(td_rng_uniform(3, i, 100) * K) * K + (uint32_t)(td_rng_uniform(3, i, 100 + other) * K)]++;
        char name[32];
        snprintf(name, sizeof name, "tokens %u apart", other);
        check_independence(name, table, K, DRAWS);
    }
}

/* ---- errors ---- */

static void refuses(bench *b, const td_sampling *p, const float *x, const td_token *candidate, uint32_t n,
                    int64_t position, const char *message) {
    td_token t;
    b->err = (td_error){0};
    assert_int_equal(td_sample(b->sampler, p, &b->history, x, candidate, NULL, n, 0, &t, &b->err), TD_E_NUMERIC);
    assert_string_equal(b->err.message, message);
    assert_int_equal(b->err.position, position);
    assert_int_equal(td_sample(b->sampler, p, &b->history, x, candidate, NULL, n, 0, &t, NULL), TD_E_NUMERIC);
}

static void logits_that_are_no_numbers_are_refused(void **state) {
    bench *b = *state;
    td_logit_bias bias[4];
    for (uint32_t i = 0; i < 40; i++) {
        td_sampling p = random_sampling(i, bias);
        p.temperature = i % 2 ? p.temperature : 0;
        float x[16] = {0};
        const td_token candidate[16] = {[3] = 303, [15] = 415};
        x[3] = NAN;
        refuses(b, &p, x, NULL, 16, 3, "the model gave the logit nan for token 3");
        refuses(b, &p, x, candidate, 16, 303, "the model gave the logit nan for token 303");
        x[3] = 0;
        x[15] = INFINITY;
        refuses(b, &p, x, NULL, 16, 15, "the model gave the logit inf for token 15");
        refuses(b, &p, x, candidate, 16, 415, "the model gave the logit inf for token 415");
        for (uint32_t j = 0; j < 16; j++)
            x[j] = -INFINITY;
        refuses(b, &p, x, NULL, 16, -1, "no token is left to choose: every logit is -inf");
    }
    const td_logit_bias all[] = {{0, -INFINITY}, {1, -INFINITY}};
    td_sampling p = plain(1);
    p.bias = all;
    p.n_bias = 2;
    refuses(b, &p, (float[]){3, 4}, NULL, 2, -1, "no token is left to choose: every logit is -inf");
}

static const struct {
    size_t field; /* of td_sampling, a float */
    const char *name;
    float lo, hi;
} ranges[] = {
    {offsetof(td_sampling, temperature), "temperature", 0, 100},
    {offsetof(td_sampling, top_p), "top_p", 0, 1},
    {offsetof(td_sampling, min_p), "min_p", 0, 1},
    {offsetof(td_sampling, repetition_penalty), "repetition_penalty", 0.01f, 100},
    {offsetof(td_sampling, presence_penalty), "presence_penalty", -100, 100},
    {offsetof(td_sampling, frequency_penalty), "frequency_penalty", -100, 100},
};

static td_status check_with(size_t field, float value, td_error *err) {
    td_sampling p = plain(1);
    memcpy((char *)&p + field, &value, sizeof value);
    return td_sampling_check(&p, N_VOCAB, err);
}

static void parameters_out_of_range_are_named(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof ranges / sizeof ranges[0]; i++) {
        size_t f = ranges[i].field;
        float lo = ranges[i].lo, hi = ranges[i].hi;
        assert_int_equal(check_with(f, lo, NULL), TD_OK);
        assert_int_equal(check_with(f, hi, NULL), TD_OK);
        const float bad[] = {nextafterf(lo, -1e9f), nextafterf(hi, 1e9f), NAN, INFINITY, -INFINITY};
        for (size_t j = 0; j < sizeof bad / sizeof bad[0]; j++) {
            td_error err = {0};
            char want[120];
            assert_int_equal(check_with(f, bad[j], &err), TD_E_ARG);
            snprintf(want, sizeof want, "%s is %g, expected %g to %g", ranges[i].name, (double)bad[j], (double)lo,
                     (double)hi);
            assert_string_equal(err.message, want);
        }
    }
}

static void a_bias_outside_the_vocabulary_is_named(void **state) {
    (void)state;
    const struct {
        td_logit_bias bias;
        const char *message; /* NULL: fine */
    } cases[] = {
        {{-1, 0}, "logit bias of token -1, expected a token from 0 to 511"},
        {{N_VOCAB, 0}, "logit bias of token 512, expected a token from 0 to 511"},
        {{INT32_MIN, 0}, "logit bias of token -2147483648, expected a token from 0 to 511"},
        {{3, NAN}, "logit bias nan of token 3, expected at most 1000"},
        {{3, INFINITY}, "logit bias inf of token 3, expected at most 1000"},
        {{3, 1001}, "logit bias 1001 of token 3, expected at most 1000"},
        {{0, 1000}, NULL},
        {{N_VOCAB - 1, -INFINITY}, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const td_logit_bias bias[2] = {{0, 0}, cases[i].bias};
        td_sampling p = plain(1);
        p.bias = bias;
        p.n_bias = 2;
        td_error err = {0};
        assert_int_equal(td_sampling_check(&p, N_VOCAB, &err), cases[i].message ? TD_E_ARG : TD_OK);
        assert_string_equal(err.message, cases[i].message ? cases[i].message : "");
    }
}

static void no_memory_leaves_nothing_behind(void **state) {
    bench *own = *state;
    for (long k = 0;; k++) {
        long live = td_alloc_live();
        td_sampler *s = (td_sampler *)&k;
        td_history h;
        td_error err;
        td_alloc_fail_at(k);
        td_status a = td_sampler_open(&s, own->be, 100, &err), b = td_history_open(&h, 100, &err);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        assert_true(a == TD_OK || (a == TD_E_NOMEM && !s));
        assert_true(b == TD_OK || (b == TD_E_NOMEM && !h.generated && !h.prompted));
        assert_int_equal(struck, a != TD_OK || b != TD_OK);
        td_sampler_close(&s);
        td_sampler_close(&s);
        td_sampler_close(NULL);
        td_history_close(&h);
        assert_int_equal(td_alloc_live(), live);
        if (!struck)
            return;
    }
}

int main(void) {
#define CASE(f) cmocka_unit_test_setup_teardown(f, set_up, tear_down)
    const struct CMUnitTest tests[] = {
        CASE(greedy_takes_the_largest_and_of_equals_the_lowest),
        CASE(the_draw_is_the_argmax_over_all_tokens),
        CASE(no_token_that_could_win_is_skipped),
        CASE(filters_penalties_and_bias_keep_what_they_say),
        CASE(the_order_of_candidates_does_not_matter),
        CASE(a_shortlist_agrees_with_the_vocabulary),
        CASE(filters_change_no_noise),
        CASE(edges_of_the_filters),
        CASE(a_nucleus_ends_where_it_reaches_top_p),
        CASE(ties_on_a_border_go_to_lower_tokens),
        CASE(a_tiny_temperature_is_greedy),
        CASE(seed_and_position_count_in_all_their_bits),
        CASE(inputs_are_only_read_and_nothing_is_allocated),
        CASE(penalties_move_logits_by_what_they_say),
        CASE(a_history_counts_and_forgets),
        CASE(without_a_history_there_are_no_penalties),
        CASE(a_banned_token_never_comes),
        CASE(biases_of_one_token_add_up),
        CASE(draws_follow_the_softmax_of_what_is_kept),
        CASE(positions_and_seeds_draw_independently),
        CASE(tokens_of_one_position_have_noise_of_their_own),
        CASE(logits_that_are_no_numbers_are_refused),
        CASE(parameters_out_of_range_are_named),
        CASE(a_bias_outside_the_vocabulary_is_named),
        CASE(no_memory_leaves_nothing_behind),
    };
    int plainly = cmocka_run_group_tests_name("plain", tests, NULL, NULL);
    with_backend = true;
    return plainly + cmocka_run_group_tests_name("with a backend", tests, NULL, NULL);
}
