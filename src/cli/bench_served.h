/* bench_served.h - tandem bench serve: what its parts share. A server that is measured, the requests it gets, and the
 * parts of the report.
 *
 * A request that fails ends nothing: it is counted, its reason becomes a note, and what was measured stays. The parts
 * return other statuses than TD_OK only for TD_E_NOMEM, for a client that cannot go on, and for TD_E_CANCELLED. */
#ifndef TD_CLI_BENCH_SERVED_H
#define TD_CLI_BENCH_SERVED_H

#include "cli/bench.h"
#include "cli/bench_http.h"

typedef struct td_served {
    td_bench_http *http;
    td_bench_report *report;
    char *model;             /* owned; as the server calls it */
    uint64_t seed;           /* of the prompts' first words, and of sampling */
    double temperature;      /* of every request */
    bool ignore_eos;         /* sent with every request */
    uint32_t prompt, answer; /* tokens, about; at most */
    double bytes_per_token;  /* of prompts */
    uint32_t serial;         /* of the last prompt */
    size_t done, total;      /* requests, for the bar */
    size_t ended, failed;    /* requests that counted, and those of them that failed */
    char first_failure[300]; /* empty: none */
    td_bench_table *load;    /* NULL before td_served_load */
    size_t with_rate;        /* rows of `load` that have a throughput */
} td_served;

/* ---- requests ---- */

/* Text of about n tokens that no other request of this or another seed begins with. td_free. NULL: out of memory. */
char *td_served_text(td_served *s, uint32_t class, uint32_t n);
/* Appends a message and returns `messages`. */
json_t *td_served_say(json_t *messages, const char *role, const char *text);
/* The body of a request for n tokens; plain: without drafts, by a field of Tandem's. Takes `messages` over. */
td_status td_served_body(const td_served *s, td_bench_call *c, json_t *messages, uint32_t n, bool plain,
                         td_error *err) TD_MUST_CHECK;
/* One request alone, counted. Takes `messages` over; `tick` NULL: the bar alone. TD_E_IO: it failed, err says why. */
td_status td_served_one(td_served *s, td_bench_call *c, json_t *messages, uint32_t n,
                        void (*tick)(void *user, size_t ended), void *user, td_error *err) TD_MUST_CHECK;
/* Moves the bar: `ended` requests since the last ones that were counted. */
void td_served_tick(void *served, size_t ended);
/* Counts calls that have ended. */
void td_served_count(td_served *s, const td_bench_call *calls, size_t n);

/* Takes the size of a token from a prompt that was counted: later texts come nearer to what they should have. */
void td_served_learn(td_served *s, const char *text, const td_bench_call *c);

/* One request that is not measured: it wakes the server and says how many bytes of the prompts a token has. */
td_status td_served_warm_up(td_served *s, td_error *err) TD_MUST_CHECK;

/* ---- parts ---- */

/* Answers under load, a row for each of counts[n] in flight; requests 0: four times as many. compare: drafted and plain
 * arms in turns, and a table of their ratios. */
td_status td_served_load(td_served *s, const uint32_t *counts, uint32_t n, size_t requests, bool compare,
                         td_error *err) TD_MUST_CHECK;
size_t td_served_requests(size_t requests, uint32_t width);

/* What a prompt cache saves the second turn of a conversation. */
td_status td_served_turns(td_served *s, td_error *err) TD_MUST_CHECK;

/* Gauges of /metrics before and while an answer is decoded, for prompts of contexts[n] tokens. */
td_status td_served_memory(td_served *s, const uint32_t *contexts, uint32_t n, td_error *err) TD_MUST_CHECK;

#endif
