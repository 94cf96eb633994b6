/* request.c - reading a body, and the members that chat and completions share. */
#include "serve/request.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>

#include "base/alloc.h"
#include "format/checkpoint.h"
#include "serve/request_impl.h"

/* ---- JSON ---- */

td_status td_api_body_parse(const char *body, size_t size, json_t **out, td_fault *fault) {
    td_error err = {.position = -1};
    *out = NULL;
    if (size == 0)
        return td_fault_set(fault, 400, "invalid_json", NULL, "the body is empty, expected a JSON object");
    td_status st = td_json_parse(body, size, TD_API_MAX_JSON_DEPTH, "body", out, &err);
    if (st == TD_E_NOMEM)
        return td_fault_of(fault, &err, NULL);
    if (st != TD_OK)
        return td_fault_set(fault, 400, "invalid_json", NULL, "%s", err.message);
    if (json_is_object(*out))
        return TD_OK;
    st = td_fault_set(fault, 400, "invalid_json", NULL, "the body is %s, expected a JSON object", td_json_kind(*out));
    json_decref(*out);
    *out = NULL;
    return st;
}

/* ---- shared members ---- */

/* max_completion_tokens is OpenAI's newer name, and wins; n_predict is llama.cpp's. -1 is the field's way of saying "no
 * limit". */
static td_status read_max_tokens(td_api_request *r, const td_fields *f, const td_api_defaults *d) {
    r->max_tokens = d->max_tokens;
    const char *name = td_field(f, "max_completion_tokens") ? "max_completion_tokens"
                       : td_field(f, "max_tokens")          ? "max_tokens"
                                                            : "n_predict";
    int64_t v = INT64_MIN;
    TD_TRY(td_field_int(f, name, -1, UINT32_MAX, &v));
    if (v == 0)
        return td_field_fail(f, name, "invalid_value", "is 0, expected at least 1, or -1 for no limit");
    if (v != INT64_MIN)
        r->max_tokens = v < 0 ? 0 : (uint32_t)v;
    return TD_OK;
}

static td_status read_stream(td_api_request *r, const td_fields *f) {
    json_t *options = NULL;
    TD_TRY(td_field_bool(f, "stream", &r->stream));
    TD_TRY(td_field_object(f, "stream_options", &options));
    if (!options)
        return TD_OK;
    if (!r->stream)
        return td_field_fail(f, "stream_options", "invalid_value", "needs 'stream': true");
    td_fields o = {options, "stream_options", f->fault};
    TD_TRY(td_field_bool(&o, "include_usage", &r->include_usage));
    return td_field_bool(&o, "include_drafts", &r->include_drafts);
}

static td_status read_drafting(td_api_request *r, const td_fields *f) {
    bool mtp = true;
    int64_t depth = -1;
    TD_TRY(td_field_bool(f, "mtp", &mtp));
    r->no_mtp = !mtp;
    const json_t *v = td_field(f, "num_mtp_tokens");
    if (!json_is_string(v) || strcmp(json_string_value(v), "auto") != 0)
        TD_TRY(td_field_int(f, "num_mtp_tokens", -1, TD_MAX_DRAFT, &depth));
    r->num_mtp_tokens = (int)depth;
    return TD_OK;
}

/* Longer than the server allows is shortened to that, as a proxy's limit would. */
static td_status read_timeout(td_api_request *r, const td_fields *f, const td_api_defaults *d) {
    r->time_limit = d->time_limit;
    double v = 0;
    TD_TRY(td_field_real(f, "timeout", 0, 1e9, &v));
    if (v > 0 && (d->time_limit == 0 || v < d->time_limit))
        r->time_limit = v;
    return TD_OK;
}

/* A prediction changes nothing but the usage: drafts come from the drafter. */
static td_status read_prediction(td_api_request *r, const td_fields *f) {
    json_t *prediction = NULL;
    TD_TRY(td_field_object(f, "prediction", &prediction));
    if (!prediction)
        return TD_OK;
    const json_t *content = json_object_get(prediction, "content");
    if (!json_is_string(content) && !json_is_array(content))
        return td_field_fail(f, "prediction", "invalid_value", "must have a 'content', a string or a list of parts");
    r->has_prediction = true;
    return TD_OK;
}

static td_status read_shared(td_api_request *r, const td_fields *f, const td_api_defaults *d) {
    bool cache = true;
    r->n = 1;
    TD_TRY(td_field_text(f, "model", &r->model));
    TD_TRY(td_field_text(f, "user", &r->user));
    TD_TRY(read_stream(r, f));
    TD_TRY(td_field_u32(f, "n", 1, d->max_n, &r->n));
    TD_TRY(read_max_tokens(r, f, d));
    TD_TRY(td_api_read_sampling(r, f, d));
    TD_TRY(td_api_read_stop(r, f, d));
    TD_TRY(td_field_bool(f, "ignore_eos", &r->ignore_eos));
    TD_TRY(read_drafting(r, f));
    TD_TRY(read_timeout(r, f, d));
    TD_TRY(td_field_bool(f, "cache_prompt", &cache)); /* the cache never changes an answer: accepted */
    return read_prediction(r, f);
}

/* ---- chat ---- */

static td_status read_chat_logprobs(td_api_request *r, const td_fields *f) {
    bool wanted = false;
    int64_t top = 0;
    TD_TRY(td_field_bool(f, "logprobs", &wanted));
    TD_TRY(td_field_int(f, "top_logprobs", 0, TD_MAX_LOGPROBS, &top));
    if (top > 0 && !wanted)
        return td_field_fail(f, "top_logprobs", "invalid_value", "needs 'logprobs': true");
    r->logprobs = wanted ? (int)top : -1;
    return TD_OK;
}

/* enable_thinking, else that among the template's variables, else reasoning_effort, else the server's. */
static td_status read_thinking(td_api_request *r, const td_fields *f, const td_api_defaults *d) {
    bool on = false;
    const char *effort = NULL;
    r->thinking = d->thinking;
    TD_TRY(td_field_object(f, "chat_template_kwargs", &r->kwargs));
    TD_TRY(td_field_text(f, "reasoning_effort", &effort));
    if (effort)
        r->thinking =
            strcmp(effort, "none") == 0 || strcmp(effort, "minimal") == 0 ? TD_CHAT_THINKING_OFF : TD_CHAT_THINKING_ON;
    td_fields k = {r->kwargs, "chat_template_kwargs", f->fault};
    if (td_field(&k, "enable_thinking")) {
        TD_TRY(td_field_bool(&k, "enable_thinking", &on));
        r->thinking = on ? TD_CHAT_THINKING_ON : TD_CHAT_THINKING_OFF;
    }
    if (td_field(f, "enable_thinking")) {
        TD_TRY(td_field_bool(f, "enable_thinking", &on));
        r->thinking = on ? TD_CHAT_THINKING_ON : TD_CHAT_THINKING_OFF;
    }
    return TD_OK;
}

static td_status read_turn_ends(td_api_request *r, const td_fields *f) {
    bool add = true;
    TD_TRY(td_field_bool(f, "continue_final_message", &r->continue_final));
    TD_TRY(td_field_bool(f, "add_generation_prompt", &add));
    r->no_generation_prompt = !add || r->continue_final;
    if (r->continue_final && json_is_true(td_field(f, "add_generation_prompt")))
        return td_field_fail(f, "continue_final_message", "invalid_value",
                             "and 'add_generation_prompt' exclude each "
                             "other");
    return TD_OK;
}

static td_status read_chat(td_api_request *r, const td_fields *f, const td_api_defaults *d) {
    TD_TRY(td_field_array(f, "messages", &r->messages));
    if (!r->messages)
        return td_field_missing(f, "messages");
    TD_TRY(read_shared(r, f, d));
    TD_TRY(read_chat_logprobs(r, f));
    TD_TRY(read_thinking(r, f, d));
    TD_TRY(read_turn_ends(r, f));
    TD_TRY(td_api_read_format(r, f));
    TD_TRY(td_api_read_tools(r, f));
    return td_api_check_messages(r, f);
}

/* ---- completions ---- */

static td_status read_completion(td_api_request *r, const td_fields *f, const td_api_defaults *d) {
    int64_t logprobs = -1, best_of = 0;
    TD_TRY(read_shared(r, f, d));
    TD_TRY(td_field_bool(f, "echo", &r->echo));
    TD_TRY(td_field_int(f, "logprobs", 0, TD_MAX_LOGPROBS, &logprobs));
    r->logprobs = (int)logprobs;
    if (r->echo && r->logprobs >= 0)
        return td_field_fail(f, "logprobs", "unsupported_value",
                             "with 'echo' asks for log-probabilities of the prompt, which are not computed");
    TD_TRY(td_field_int(f, "best_of", 1, INT32_MAX, &best_of));
    if (best_of != 0 && best_of != (int64_t)r->n)
        return td_field_fail(f, "best_of", "unsupported_value",
                             "is %lld, but answers are not ranked; expected it to be absent or equal to 'n' (%u)",
                             (long long)best_of, r->n);
    TD_TRY(td_api_read_format(r, f));
    return td_api_check_prompt(r, f, d);
}

/* ---- all of it ---- */

static td_status read_request(td_api_request *r, td_api_kind kind, const td_api_defaults *d, td_fault *fault) {
    td_fields f = {r->root, "", fault};
    TD_TRY(td_api_refuse(kind, &f));
    return kind == TD_API_CHAT ? read_chat(r, &f, d) : read_completion(r, &f, d);
}

td_status td_api_request_parse(td_api_request *out, td_api_kind kind, const char *body, size_t size,
                               const td_api_defaults *defaults, td_fault *fault) {
    *out = (td_api_request){.chat = kind == TD_API_CHAT, .logprobs = -1, .num_mtp_tokens = -1};
    TD_TRY(td_api_body_parse(body, size, &out->root, fault));
    td_status st = read_request(out, kind, defaults, fault);
    if (st != TD_OK)
        td_api_request_free(out);
    return st;
}

void td_api_request_free(td_api_request *r) {
    td_free(r->biases);
    td_free(r->stop);
    td_free(r->json_schema);
    td_free(r->tools_text);
    json_decref(r->root);
    *r = (td_api_request){0};
}
