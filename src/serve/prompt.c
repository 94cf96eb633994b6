/* prompt.c - see prompt.h. */
#include "serve/prompt.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "serve/fields.h"

#define MAX_TEXT ((size_t)1 << 30)

void td_api_prompt_free(td_api_prompt *p) {
    td_free(p->tokens);
    td_free(p->text);
    *p = (td_api_prompt){0};
}

static td_status check_length(const td_api_prompt *p, const td_engine *e, const char *param, td_fault *fault) {
    if (p->n < e->info.n_ctx)
        return TD_OK;
    return td_fault_set(fault, 400, "context_length_exceeded", param,
                        "the prompt has %zu tokens, but this server's context holds %u, one of which must be left to "
                        "answer",
                        p->n, e->info.n_ctx);
}

/* ---- chat ---- */

static td_status check_tools(const td_engine *e, td_reply_format format, td_fault *fault) {
    if (td_chat_template_traits(e->chat, true).uses_tools && format.calls != TD_REPLY_CALLS_NONE)
        return TD_OK;
    return td_fault_set(fault, 400, "unsupported_parameter", "tools", "the chat template of this model takes no tools");
}

static td_reply_format choose_format(const td_engine *e, bool tools) {
    td_reply_format f = td_reply_format_choose(e->info.family, td_chat_template_source(e->chat, tools));
    if (!tools)
        f.calls = TD_REPLY_CALLS_NONE;
    return f;
}

static size_t skip_space(const char *s, size_t n) {
    size_t i = 0;
    while (i < n && strchr(" \t\r\n", s[i]))
        i++;
    return i;
}

/* The last message ends a prompt: behind it stands what closes a turn, never much. A content that its template shows
 * in another form is looked for nowhere else, which keeps the search from taking text times content. */
#define MAX_TURN_END 1024

size_t td_api_continue_at(const char *text, size_t n, const char *content) {
    size_t size = strlen(content), lead = skip_space(content, size);
    content += lead;
    size -= lead;
    size_t trimmed = size;
    while (trimmed > 0 && strchr(" \t\r\n", content[trimmed - 1]))
        trimmed--;
    size_t first = n > trimmed + MAX_TURN_END ? n - trimmed - MAX_TURN_END : 0;
    for (size_t at = n; at-- > first;) {
        if (size <= n - at && memcmp(text + at, content, size) == 0) /* its last spaces too, when they are there */
            return at + size;
        if (trimmed <= n - at && memcmp(text + at, content, trimmed) == 0)
            return at + trimmed;
    }
    return 0;
}

static td_status cut_for_continuing(td_buf *text, const td_api_request *r, td_fault *fault) {
    const json_t *last = json_array_get(r->messages, json_array_size(r->messages) - 1);
    size_t at = td_api_continue_at(text->data, text->size, json_string_value(json_object_get(last, "content")));
    if (at == 0)
        return td_fault_set(fault, 400, "unsupported_value", "continue_final_message",
                            "the chat template of this model does not show the last message as it is");
    text->size = at;
    text->data[at] = '\0';
    return TD_OK;
}

static td_status render(td_buf *text, const td_engine *e, const td_api_request *r, td_fault *fault) {
    td_error err = {0};
    td_chat_request q = {.messages = r->messages,
                         .tools = r->tools,
                         .kwargs = r->kwargs,
                         .no_generation_prompt = r->no_generation_prompt,
                         .enable_thinking = r->thinking,
                         .now = (int64_t)time(NULL)};
    if (td_chat_template_render(e->chat, &q, text, &err) != TD_OK)
        return td_fault_of(fault, &err, "messages");
    if (!td_buf_str(text))
        return td_fault_of(fault, &(td_error){.status = TD_E_NOMEM}, NULL);
    return r->continue_final ? cut_for_continuing(text, r, fault) : TD_OK;
}

static bool may_think(const td_api_prompt *p, const td_api_request *r) {
    return p->format.think != TD_REPLY_THINK_NONE && (p->opens_reasoning || r->thinking == TD_CHAT_THINKING_ON);
}

static td_status take_chat(td_api_prompt *p, td_buf *text, const td_engine *e, const td_api_request *r,
                           td_fault *fault) {
    td_error err = {0};
    TD_TRY(render(text, e, r, fault));
    p->opens_reasoning = td_reply_prompt_opens_reasoning(p->format, text->data, text->size);
    p->may_think = may_think(p, r);
    if (td_engine_tokenize(e, text->data, text->size, false, true, &p->tokens, &p->n, &err) != TD_OK)
        return td_fault_of(fault, &err, "messages");
    if (p->n == 0)
        return td_fault_set(fault, 400, "invalid_value", "messages", "the conversation comes to an empty prompt");
    return check_length(p, e, "messages", fault);
}

td_status td_api_prompt_chat(td_api_prompt *p, const td_engine *e, const td_api_request *r, td_fault *fault) {
    *p = (td_api_prompt){0};
    if (!e->chat)
        return td_fault_set(fault, 400, "unsupported_value", NULL, "this model has no chat template: %s",
                            e->chat_error        ? e->chat_error
                            : e->tokenizer_error ? e->tokenizer_error
                                                 : "");
    p->format = choose_format(e, r->tools != NULL);
    if (r->tools)
        TD_TRY(check_tools(e, p->format, fault));
    td_buf text;
    td_buf_init(&text, TD_JINJA_MAX_OUTPUT);
    td_status st = take_chat(p, &text, e, r, fault);
    td_buf_free(&text);
    return st;
}

/* ---- completions ---- */

static td_status keep_text(td_api_prompt *p, const char *text, size_t n, td_fault *fault) {
    p->text = td_strndup(text, n);
    p->n_text = n;
    return p->text ? TD_OK : td_fault_of(fault, &(td_error){.status = TD_E_NOMEM}, NULL);
}

static td_status from_ids(td_api_prompt *p, const td_engine *e, const json_t *ids, bool echo, td_fault *fault) {
    td_error err = {0};
    size_t n = json_array_size(ids), n_text;
    p->tokens = td_calloc(n, sizeof *p->tokens);
    if (!p->tokens)
        return td_fault_of(fault, &(td_error){.status = TD_E_NOMEM}, NULL);
    for (p->n = 0; p->n < n; p->n++)
        p->tokens[p->n] = (td_token)json_integer_value(json_array_get(ids, p->n));
    if (!echo)
        return TD_OK;
    char *text;
    if (td_engine_detokenize(e, p->tokens, p->n, true, &text, &n_text, &err) != TD_OK)
        return td_fault_of(fault, &err, "echo");
    td_status st = keep_text(p, text, n_text, fault);
    td_text_free(text);
    return st;
}

static td_status from_text(td_api_prompt *p, const td_engine *e, const json_t *text, bool echo, td_fault *fault) {
    td_error err = {0};
    const char *s = json_string_value(text);
    size_t n = json_string_length(text);
    if (td_engine_tokenize(e, s, n, true, true, &p->tokens, &p->n, &err) != TD_OK)
        return td_fault_of(fault, &err, "prompt");
    if (p->n == 0)
        return td_fault_set(fault, 400, "invalid_value", "prompt", "the prompt comes to no tokens");
    return echo ? keep_text(p, s, n, fault) : TD_OK;
}

td_status td_api_prompt_completion(td_api_prompt *p, const td_engine *e, const td_api_request *r, size_t i,
                                   td_fault *fault) {
    *p = (td_api_prompt){0};
    const json_t *one = td_api_prompt_at(r, i);
    TD_TRY(json_is_array(one) ? from_ids(p, e, one, r->echo, fault) : from_text(p, e, one, r->echo, fault));
    return check_length(p, e, "prompt", fault);
}
