/* stats.c - see stats.h. */
#include "cli/stats.h"

#include "cli/report.h"

/* The first token of an answer comes with the prompt: the pass that reads the prompt's end samples it, and its time is
 * the prompt's. Speeds and tokens a round are of what follows. */
double td_stats_speed(const td_result *r) {
    return r->decode_seconds > 0 && r->n_tokens > 1 ? (double)(r->n_tokens - 1) / r->decode_seconds : 0;
}

double td_stats_per_round(const td_result *r) {
    return r->rounds > 1 ? (double)(r->n_tokens - 1) / (r->rounds - 1) : r->rounds;
}

void td_stats_acceptance(td_buf *b, const td_result *r) {
    for (int i = 0; i < TD_MAX_DRAFT && r->drafted_at[i] > 0; i++)
        td_buf_printf(b, "%s%.0f%%", i > 0 ? " " : "", 100.0 * (double)r->accepted_at[i] / (double)r->drafted_at[i]);
}

void td_stats_line(td_buf *b, const td_result *r) {
    td_buf_printf(b, "%zu tokens, %.1f tokens/s", r->n_tokens, td_stats_speed(r));
    if (r->drafted > 0) {
        td_buf_printf(b, ", %.2f tokens a round, drafts accepted by position ", td_stats_per_round(r));
        td_stats_acceptance(b, r);
    } else if (!r->mtp_active) {
        td_buf_printf(b, ", plain%s%s", r->mtp_reason && *r->mtp_reason ? ": " : "",
                      r->mtp_reason ? r->mtp_reason : "");
    }
    uint32_t evaluated = r->prompt_tokens - r->cached_tokens;
    td_buf_printf(b, "; prompt %u tokens", r->prompt_tokens);
    if (r->cached_tokens > 0)
        td_buf_printf(b, " (%u cached)", r->cached_tokens);
    if (r->prefill_seconds > 0)
        td_buf_printf(b, ", %.0f tokens/s", evaluated / r->prefill_seconds);
    if (r->finish == TD_FINISH_LENGTH)
        td_buf_puts(b, "; cut by the limit of tokens or of the context");
    if (r->finish == TD_FINISH_CANCELLED)
        td_buf_puts(b, "; stopped");
}

static json_t *counts(const uint64_t *at, uint32_t n) {
    json_t *list = json_array();
    for (uint32_t i = 0; i < n && i < TD_MAX_DRAFT; i++)
        json_array_append_new(list, json_integer((json_int_t)at[i]));
    return list;
}

json_t *td_stats_json(const td_result *r, const td_engine_info *info, uint64_t seed) {
    json_t *ids = json_array();
    for (size_t i = 0; r->tokens && i < r->n_tokens; i++)
        json_array_append_new(ids, json_integer(r->tokens[i]));
    json_t *text = json_stringn(r->text ? r->text : "", r->n_text);
    if (text == NULL) /* a tokenizer whose tokens are not UTF-8 */
        text = json_stringn_nocheck(r->text, r->n_text);
    json_t *out = json_pack("{s:s, s:o, s:o, s:s, s:I, s:I, s:I, s:I, s:I, s:o, s:o, s:I}", "model", info->model_path,
                            "ids", ids, "text", text, "finish_reason", td_finish_name(r->finish), "prompt_tokens",
                            (json_int_t)r->prompt_tokens, "cached_tokens", (json_int_t)r->cached_tokens, "generated",
                            (json_int_t)r->n_tokens, "rounds", (json_int_t)r->rounds, "drafted", (json_int_t)r->drafted,
                            "accepted", counts(r->accepted_at, r->mtp_depth), "drafted_at",
                            counts(r->drafted_at, r->mtp_depth), "seed", (json_int_t)seed);
    json_t *seconds = json_pack("{s:f, s:f, s:f}", "load", info->load_seconds, "prefill", r->prefill_seconds, "decode",
                                r->decode_seconds);
    json_t *mtp = json_pack("{s:b, s:s, s:s, s:I, s:b}", "active", r->mtp_active, "reason",
                            r->mtp_reason ? r->mtp_reason : "", "kind", info->mtp_kind ? info->mtp_kind : "", "depth",
                            (json_int_t)r->mtp_depth, "auto", info->mtp_auto);
    json_object_set_new(out, "tokens_per_second", json_real(td_stats_speed(r)));
    json_object_set_new(out, "peak_memory_mb", json_real(td_peak_memory_mb()));
    json_object_set_new(out, "seconds", seconds);
    json_object_set_new(out, "mtp", mtp);
    return out;
}

void td_stats_add(td_result *sum, const td_result *r) {
    sum->n_tokens += r->n_tokens;
    sum->prompt_tokens += r->prompt_tokens;
    sum->cached_tokens += r->cached_tokens;
    sum->rounds += r->rounds;
    sum->drafted += r->drafted;
    for (int i = 0; i < TD_MAX_DRAFT; i++) {
        sum->drafted_at[i] += r->drafted_at[i];
        sum->accepted_at[i] += r->accepted_at[i];
    }
    sum->prefill_seconds += r->prefill_seconds;
    sum->decode_seconds += r->decode_seconds;
    sum->mtp_active = sum->mtp_active || r->mtp_active;
    sum->mtp_depth = sum->mtp_depth > r->mtp_depth ? sum->mtp_depth : r->mtp_depth;
}
