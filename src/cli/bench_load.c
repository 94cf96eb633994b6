/* bench_load.c - tandem bench serve: answers under load, by requests in flight.
 *
 * Two figures speak of the time between tokens. The time a token of an answer is (last - first) / (tokens - 1), one
 * value a request. The wait of a token is one value a token: what passed since the read that brought the one before,
 * and 0 for a token that came in the same read, as those of an accepted draft do; its high percentiles show stalls.
 *
 * Drafted and plain arms are asked the same kinds of text, each prompt its own. They take turns within a row, up to
 * four each, so that a machine that grows slower meets both; which goes first changes. Throughput is over the turns
 * together. */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/bench_served.h"
#include "cli/bench_texts.h"

static const td_bench_column columns[] = {
    {"way", "drafts", 0}, /* left out when there is one way alone */
    {"concurrency", "in flight", 0},
    {"requests", "requests", 0},
    {"failed", "failed", 0},
    {"prompt_tokens", "prompt", 0},
    {"cached_tokens", "cached", 0},
    {"tokens_per_s", "tokens/s", 1},
    {"requests_per_s", "requests/s", 2},
    {"ttft_p50_ms", "first token p50 ms", 1},
    {"ttft_p95_ms", "p95", 1},
    {"tpot_p50_ms", "a token p50 ms", 2},
    {"tpot_p95_ms", "p95", 2},
    {"gap_p50_ms", "wait p50 ms", 2},
    {"gap_p95_ms", "p95", 2},
    {"gap_p99_ms", "p99", 2},
    {"tokens_per_piece", "tokens/piece", 2},
    {"tokens_per_round", "tokens/round", 2},
    {"accepted", "accepted", 2},
};
enum { N_COLUMNS = sizeof columns / sizeof *columns, MAX_TURNS = 4 };

static const td_bench_column ratio_columns[] = {
    {"concurrency", "in flight", 0},
    {"drafted_tokens_per_s", "drafted tokens/s", 1},
    {"plain_tokens_per_s", "plain tokens/s", 1},
    {"ratio", "ratio", 2},
    {"ratio_min", "lowest turn", 2},
    {"ratio_max", "highest", 2},
};

size_t td_served_requests(size_t requests, uint32_t width) {
    return requests ? requests : 4 * (size_t)width;
}

/* ---- figures ---- */

typedef struct figures {
    double *ttft, *tpot, *waits; /* ms: a request, a request, a token */
    size_t n_ok, n_failed, n_cut, n_tpot, n_waits;
    double tokens, pieces, prompt, cached;
    double timed, rounds, drafted, accepted; /* of requests whose server told: tokens after the first, and so on */
    double seconds;                          /* that took */
} figures;

static void figures_free(figures *f) {
    td_free(f->ttft);
    td_free(f->tpot);
    td_free(f->waits);
}

static size_t waits_of(const td_bench_call *c) {
    size_t by_tokens = c->tokens ? c->tokens - 1 : 0;
    return by_tokens > c->n_gaps ? by_tokens : c->n_gaps;
}

/* One answer; the waits array was cleared, so that what no arrival accounts for is 0. */
static void add_answer(figures *f, const td_bench_call *c) {
    f->ttft[f->n_ok++] = 1e3 * (c->first - c->began);
    if (c->tokens > 1)
        f->tpot[f->n_tpot++] = 1e3 * (c->last - c->first) / (c->tokens - 1);
    for (size_t k = 0; k < c->n_gaps; k++)
        f->waits[f->n_waits + k] = 1e3 * c->gaps[k];
    f->n_waits += waits_of(c);
    f->tokens += c->tokens;
    f->pieces += c->pieces;
    f->prompt += c->prompt_tokens;
    f->cached += c->cached_tokens;
    if (c->timed && c->tokens > 1 && c->accepted < c->tokens) { /* the prompt's pass gave the first token */
        f->timed += c->tokens - 1;
        f->rounds += c->tokens - 1 > c->accepted ? c->tokens - 1 - c->accepted : 1;
        f->drafted += c->drafted;
        f->accepted += c->accepted;
    }
}

/* seconds: from the first request to the last answer. */
static td_status sum_up(const td_bench_call *calls, size_t n, double seconds, figures *f, td_error *err) {
    size_t most = 1;
    for (size_t i = 0; i < n; i++)
        most += waits_of(&calls[i]);
    *f = (figures){.ttft = td_calloc(n, sizeof(double)),
                   .tpot = td_calloc(n, sizeof(double)),
                   .waits = td_calloc(most, sizeof(double)),
                   .seconds = seconds};
    if (!f->ttft || !f->tpot || !f->waits)
        return td_fail(err, TD_E_NOMEM, "out of memory for latencies");
    for (size_t i = 0; i < n; i++) {
        const td_bench_call *c = &calls[i];
        f->n_failed += c->state == TD_CALL_FAILED;
        f->n_cut += c->state == TD_CALL_CUT || c->state == TD_CALL_WAITING;
        if (c->state == TD_CALL_OK)
            add_answer(f, c);
    }
    return TD_OK;
}

/* a / b, or null without a b. */
static json_t *share(double a, double b) {
    return b > 0 ? json_real(a / b) : json_null();
}

/* 0 is a figure; nothing measured is none. */
static json_t *percentile(double *values, size_t n, double p) {
    return n ? json_real(td_bench_percentile(values, n, p)) : json_null();
}

/* Throughput of a row that was broken off would count the work of answers that never came as none. */
static double rate(const figures *f, double what) {
    return f->n_cut || !f->n_ok || f->seconds <= 0 ? 0 : what / f->seconds;
}

static json_t *cells_of(const figures *f, uint32_t width) {
    const double n = (double)f->n_ok;
    return json_pack("[I,I,I,o,o,o,o,o,o,o,o,o,o,o,o,o,o]", (json_int_t)width, (json_int_t)(f->n_ok + f->n_failed),
                     (json_int_t)f->n_failed, f->prompt > 0 ? share(f->prompt, n) : json_null(),
                     f->prompt > 0 ? share(f->cached, n) : json_null(), td_bench_real(rate(f, f->tokens)),
                     td_bench_real(rate(f, n)), percentile(f->ttft, f->n_ok, 0.5), percentile(f->ttft, f->n_ok, 0.95),
                     percentile(f->tpot, f->n_tpot, 0.5), percentile(f->tpot, f->n_tpot, 0.95),
                     percentile(f->waits, f->n_waits, 0.5), percentile(f->waits, f->n_waits, 0.95),
                     percentile(f->waits, f->n_waits, 0.99), share(f->tokens, f->pieces), share(f->timed, f->rounds),
                     share(f->accepted, f->drafted));
}

/* ---- a row ---- */

typedef struct arm {
    const char *way; /* NULL: the only one */
    bool plain;
    td_bench_call *calls;                 /* owned */
    double seconds, turn_rate[MAX_TURNS]; /* of all turns; tokens a second of each */
    double tokens_per_s;                  /* 0: none */
} arm;

static void add_row(td_served *s, arm *a, uint32_t width, figures *f) {
    json_t *cells = cells_of(f, width);
    if (a->way)
        json_array_insert_new(cells, 0, json_string(a->way));
    td_bench_row(s->load, cells);
    a->tokens_per_s = rate(f, f->tokens);
    s->with_rate += a->tokens_per_s > 0;
    if (a->way && !a->plain && f->n_ok && f->drafted == 0)
        td_bench_note(s->report, "by the server's own count nothing was drafted at %u in flight.", width);
    if (a->plain && f->drafted > 0)
        td_bench_note(s->report, "the server drafted at %u in flight although it was asked not to.", width);
}

static td_status report_arm(td_served *s, arm *a, uint32_t width, size_t n, td_error *err) {
    const td_bench_call *calls = a->calls;
    figures f;
    td_served_count(s, calls, n);
    for (size_t i = 0; i < n; i++)
        if (calls[i].state == TD_CALL_FAILED) {
            td_bench_note(s->report, "a request failed at %u in flight: %s", width, calls[i].error);
            break;
        }
    td_status st = sum_up(calls, n, a->seconds, &f, err);
    if (st == TD_OK && f.n_cut)
        td_bench_note(s->report, "broken off at %u in flight after %zu of %zu requests: no throughput there.", width,
                      f.n_ok + f.n_failed, f.n_ok + f.n_failed + f.n_cut);
    if (st == TD_OK && f.n_ok + f.n_failed)
        add_row(s, a, width, &f);
    figures_free(&f);
    return st;
}

static td_status prepare(td_served *s, td_bench_call *calls, size_t n, bool plain, td_error *err) {
    for (size_t i = 0; i < n; i++) {
        char *text = td_served_text(s, (uint32_t)i % TD_BENCH_CLASSES, s->prompt);
        td_status st =
            text ? td_served_body(s, &calls[i], td_served_say(json_array(), "user", text), s->answer, plain, err)
                 : td_fail(err, TD_E_NOMEM, "out of memory for a request");
        td_free(text);
        TD_TRY(st);
    }
    return TD_OK;
}

/* calls[from..from + n), `width` at a time. */
static td_status run_turn(td_served *s, arm *a, uint32_t width, size_t from, size_t n, size_t turn, td_error *err) {
    const td_bench_call *calls = a->calls + from;
    double began = INFINITY, ended = 0, tokens = 0;
    TD_TRY(td_bench_http_run(s->http, a->calls + from, n, width, td_served_tick, s, err));
    s->done += n;
    for (size_t i = 0; i < n; i++) {
        began = fmin(began, calls[i].began);
        ended = fmax(ended, calls[i].ended);
        tokens += calls[i].state == TD_CALL_OK ? calls[i].tokens : 0;
    }
    a->seconds += ended - began;
    a->turn_rate[turn] = ended > began ? tokens / (ended - began) : 0;
    return TD_OK;
}

/* Arms in turns: a b, b a, ... */
static td_status run_turns(td_served *s, arm *arms, size_t n_arms, uint32_t width, size_t n, size_t n_turns,
                           td_error *err) {
    for (size_t t = 0; t < n_turns; t++) {
        const size_t from = n * t / n_turns, to = n * (t + 1) / n_turns;
        for (size_t k = 0; k < n_arms; k++)
            TD_TRY(run_turn(s, &arms[t % 2 ? n_arms - 1 - k : k], width, from, to - from, t, err));
    }
    return TD_OK;
}

static td_status arm_open(td_served *s, arm *a, size_t n, td_error *err) {
    a->calls = td_calloc(n, sizeof *a->calls);
    if (!a->calls)
        return td_fail(err, TD_E_NOMEM, "out of memory for %zu requests", n);
    for (size_t i = 0; i < n; i++)
        td_bench_call_init(&a->calls[i]);
    return prepare(s, a->calls, n, a->plain, err);
}

static void arm_close(arm *a, size_t n) {
    for (size_t i = 0; i < n && a->calls; i++)
        td_bench_call_free(&a->calls[i]);
    td_free(a->calls);
}

/* What ran is reported also when it was broken off. */
static td_status load_at(td_served *s, arm *arms, size_t n_arms, uint32_t width, size_t n, size_t n_turns,
                         td_error *err) {
    td_status st = TD_OK;
    for (size_t k = 0; k < n_arms && st == TD_OK; k++)
        st = arm_open(s, &arms[k], n, err);
    if (st == TD_OK) {
        td_error none = {0};
        st = run_turns(s, arms, n_arms, width, n, n_turns, err);
        for (size_t k = 0; k < n_arms; k++) {
            td_status told = report_arm(s, &arms[k], width, n, st == TD_OK ? err : &none);
            st = st == TD_OK ? told : st;
        }
    }
    for (size_t k = 0; k < n_arms; k++)
        arm_close(&arms[k], n);
    return st;
}

/* ---- the table ---- */

static td_status both_at(td_served *s, td_bench_table *ratios, uint32_t width, size_t n, td_error *err) {
    arm arms[2] = {{.way = "drafted"}, {.way = "plain", .plain = true}};
    double ratio[MAX_TURNS];
    size_t n_turns = n / (2 * (size_t)width);
    n_turns = n_turns < 1 ? 1 : n_turns > MAX_TURNS ? MAX_TURNS : n_turns;
    TD_TRY(load_at(s, arms, 2, width, n, n_turns, err));
    for (size_t t = 0; t < n_turns; t++)
        ratio[t] = arms[0].turn_rate[t] / arms[1].turn_rate[t];
    const td_bench_summary spread = td_bench_summarise(ratio, n_turns);
    td_bench_row(ratios, json_pack("[I,o,o,o,o,o]", (json_int_t)width, td_bench_real(arms[0].tokens_per_s),
                                   td_bench_real(arms[1].tokens_per_s),
                                   td_bench_real(arms[0].tokens_per_s / arms[1].tokens_per_s),
                                   td_bench_real(spread.min), td_bench_real(spread.max)));
    return TD_OK;
}

td_status td_served_load(td_served *s, const uint32_t *counts, uint32_t n, size_t requests, bool compare,
                         td_error *err) {
    const size_t skip = !compare;
    s->load = td_bench_table_new(s->report, "load", "Answers under load", columns + skip, N_COLUMNS - skip);
    td_bench_table *ratios =
        compare ? td_bench_table_new(s->report, "compare", "Drafted over plain", ratio_columns, 6) : NULL;
    if (!s->load || (compare && !ratios))
        return td_fail(err, TD_E_NOMEM, "out of memory");
    for (uint32_t i = 0; i < n; i++) {
        const size_t each = td_served_requests(requests, counts[i]);
        arm only = {0};
        TD_TRY(compare ? both_at(s, ratios, counts[i], each, err) : load_at(s, &only, 1, counts[i], each, 1, err));
    }
    return TD_OK;
}
