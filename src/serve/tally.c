/* tally.c - see tally.h. The first token of an answer comes out of the pass that reads the prompt's end, and its time
 * is the prompt's; speeds are of the tokens behind it. */
#include "serve/tally.h"

#include <string.h>

void td_tally_add(td_tally *t, const td_result *r, const td_choice *c, bool first) {
    if (first) {
        t->prompt_tokens += r->prompt_tokens;
        t->cached_tokens += r->cached_tokens;
    }
    if (!t->mtp_reason) {
        t->mtp_reason = r->mtp_reason ? r->mtp_reason : "";
        t->mtp_active = r->mtp_active;
        t->mtp_depth = r->mtp_depth;
    }
    t->completion_tokens += c->done ? c->n_tokens : r->n_tokens;
    t->reasoning_tokens += c->n_reasoning;
    t->evaluated += r->prompt_tokens - r->cached_tokens;
    t->generated += r->n_tokens;
    t->timed += r->n_tokens ? r->n_tokens - 1 : 0;
    t->queue_seconds += r->queue_seconds;
    t->prefill_seconds += r->prefill_seconds;
    t->decode_seconds += r->decode_seconds;
    t->drafted += r->drafted;
    for (int i = 0; i < TD_MAX_DRAFT; i++) {
        t->drafted_at[i] += r->drafted_at[i];
        t->accepted_at[i] += r->accepted_at[i];
        t->accepted += r->accepted_at[i];
    }
}

void td_tally_write_usage(td_json_out *o, const td_tally *t) {
    td_out_begin(o, '{');
    td_out_member_int(o, "prompt_tokens", (int64_t)t->prompt_tokens);
    td_out_member_int(o, "completion_tokens", (int64_t)t->completion_tokens);
    td_out_member_int(o, "total_tokens", (int64_t)(t->prompt_tokens + t->completion_tokens));
    td_out_key(o, "prompt_tokens_details");
    td_out_begin(o, '{');
    td_out_member_int(o, "cached_tokens", (int64_t)t->cached_tokens);
    td_out_end(o, '}');
    td_out_key(o, "completion_tokens_details");
    td_out_begin(o, '{');
    td_out_member_int(o, "reasoning_tokens", (int64_t)t->reasoning_tokens);
    if (t->has_prediction) { /* the drafter proposes by itself: none of the prediction was tried */
        td_out_member_int(o, "accepted_prediction_tokens", 0);
        td_out_member_int(o, "rejected_prediction_tokens", 0);
    }
    td_out_end(o, '}');
    td_out_end(o, '}');
}

/* ---- timings ---- */

static double per_second(uint64_t n, double seconds) {
    return seconds > 0 ? (double)n / seconds : 0;
}

static uint32_t positions(const td_tally *t) {
    uint32_t n = TD_MAX_DRAFT;
    while (n > 0 && t->drafted_at[n - 1] == 0)
        n--;
    return n;
}

static void write_counts(td_json_out *o, const char *name, const uint64_t *at, uint32_t n) {
    td_out_key(o, name);
    td_out_begin(o, '[');
    for (uint32_t i = 0; i < n; i++)
        td_out_int(o, (int64_t)at[i]);
    td_out_end(o, ']');
}

/* Drafts are accepted from the front, so a round that accepted position i and not i + 1 accepted i + 1 of them. */
static void write_drafts(td_json_out *o, const td_tally *t) {
    uint32_t n = positions(t);
    uint64_t lengths[TD_MAX_DRAFT + 1] = {0};
    for (uint32_t i = 0; i <= n; i++) {
        uint64_t reached = i == 0 ? t->drafted_at[0] : t->accepted_at[i - 1];
        lengths[i] = reached - (i < n ? t->accepted_at[i] : 0);
    }
    td_out_member_int(o, "draft_n", (int64_t)t->drafted);
    td_out_member_int(o, "draft_n_accepted", (int64_t)t->accepted);
    write_counts(o, "draft_n_by_position", t->drafted_at, n);
    write_counts(o, "draft_n_accepted_by_position", t->accepted_at, n);
    write_counts(o, "accepted_length_histogram", lengths, n + 1);
}

void td_tally_write_timings(td_json_out *o, const td_tally *t) {
    td_out_begin(o, '{');
    td_out_member_real(o, "queue_ms", t->queue_seconds * 1e3, 3);
    td_out_member_int(o, "prompt_n", (int64_t)t->evaluated);
    td_out_member_real(o, "prompt_ms", t->prefill_seconds * 1e3, 3);
    td_out_member_real(o, "prompt_per_second", per_second(t->evaluated, t->prefill_seconds), 3);
    td_out_member_int(o, "cached_n", (int64_t)t->cached_tokens);
    td_out_member_int(o, "cache_n", (int64_t)t->cached_tokens); /* llama.cpp's name for it */
    td_out_member_int(o, "predicted_n", (int64_t)t->generated);
    td_out_member_real(o, "predicted_ms", t->decode_seconds * 1e3, 3);
    td_out_member_real(o, "predicted_per_second", per_second(t->timed, t->decode_seconds), 3);
    if (t->drafted > 0)
        write_drafts(o, t);
    td_out_end(o, '}');
}

void td_tally_write_mtp(td_json_out *o, const td_tally *t) {
    bool said = t->mtp_reason && t->mtp_reason[0];
    const char *reason = said ? t->mtp_reason : NULL;
    if (!said && t->mtp_active && t->drafted == 0)
        reason = t->timed ? "no round drafted: drafts do not pay at the moment" : "the answer ended before a draft";
    td_out_begin(o, '{');
    td_out_member_bool(o, "active", t->mtp_active);
    td_out_member_str(o, "reason", reason);
    td_out_member_int(o, "depth", t->mtp_depth);
    td_out_end(o, '}');
}
