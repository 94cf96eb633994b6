/* fuzz_request.c - libFuzzer target of request bodies: chats, completions, and what the smaller routes read.
 *
 * The first byte chooses the kind. Whatever the bytes: reading ends in a request whose numbers are in range or in a
 * fault with a status, a code and a sentence, which is written as JSON; a chat that was taken goes through a template;
 * and nothing stays allocated. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "format/checkpoint.h"
#include "serve/fields.h"
#include "serve/prompt.h"
#include "serve/request.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

enum { N_VOCAB = 1000, MAX_N = 4 };

static const char template_text[] =
    "{{ bos_token }}{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}{{ m.reasoning_content }}"
    "{% for c in m.tool_calls %}{{ c.function.name }}({{ c.function.arguments | tojson }}){% endfor %}{{ m.name }}</>"
    "{% endfor %}{% for t in tools %}{{ t.function.name }}{{ t.function.parameters | tojson }}{% endfor %}"
    "{% if enable_thinking %}<think>{% endif %}{% if add_generation_prompt %}<assistant>{% endif %}";

static td_chat_template *template(void) {
    static td_chat_template *t;
    td_error err;
    const td_chat_text text = {.name = "template", .source = template_text, .bos_token = "<s>"};
    if (!t)
        REQUIRE(td_chat_template_from_text(&t, &text, &err) == TD_OK);
    return t;
}

/* ---- faults ---- */

static void check_fault(const td_fault *f) {
    td_buf json;
    json_t *root;
    td_error err;
    REQUIRE(f->status == 400 && f->code && *f->code && *f->message);
    td_buf_init(&json, 1 << 20);
    td_fault_write(&json, f);
    const char *text = td_buf_str(&json);
    REQUIRE(text && td_json_parse(text, json.size, 8, "fault", &root, &err) == TD_OK);
    const json_t *error = json_object_get(root, "error");
    REQUIRE(json_is_string(json_object_get(error, "message")) && json_is_string(json_object_get(error, "code")));
    json_decref(root);
    td_buf_free(&json);
}

/* ---- requests ---- */

static void check_numbers(const td_api_request *r) {
    const td_sampling *s = &r->sampling;
    REQUIRE(r->n >= 1 && r->n <= MAX_N);
    REQUIRE(s->temperature >= 0 && s->temperature <= 100 && s->top_p >= 0 && s->top_p <= 1);
    REQUIRE(s->min_p >= 0 && s->min_p <= 1 && s->repetition_penalty > 0);
    REQUIRE(isfinite(s->presence_penalty) && isfinite(s->frequency_penalty));
    REQUIRE(r->logprobs >= -1 && r->logprobs <= TD_MAX_LOGPROBS);
    REQUIRE(r->num_mtp_tokens >= -1 && r->num_mtp_tokens <= TD_MAX_DRAFT);
    REQUIRE(r->time_limit >= 0 && isfinite(r->time_limit));
    REQUIRE(r->n_stop <= TD_API_MAX_STOPS);
    for (size_t i = 0; i < r->n_stop; i++)
        REQUIRE(*r->stop[i]);
    for (size_t i = 0; i < s->n_bias; i++)
        REQUIRE(s->bias[i].token < N_VOCAB && !isnan(s->bias[i].bias));
    REQUIRE((r->json_schema != NULL) + (r->grammar != NULL) + r->json_object <= 1);
    REQUIRE(!r->tools == !r->tools_text);
    REQUIRE(r->tool_choice != TD_TOOLS_REQUIRED || r->tools);
}

static void check_chat(const td_api_request *r) {
    td_buf text;
    td_error err = {0};
    const td_chat_request q = {.messages = r->messages,
                               .tools = r->tools,
                               .kwargs = r->kwargs,
                               .no_generation_prompt = r->no_generation_prompt,
                               .enable_thinking = r->thinking};
    td_buf_init(&text, 1 << 22);
    if (td_chat_template_render(template(), &q, &text, &err) == TD_OK && r->continue_final) {
        const json_t *last = json_array_get(r->messages, json_array_size(r->messages) - 1);
        size_t at = td_api_continue_at(text.data, text.size, json_string_value(json_object_get(last, "content")));
        REQUIRE(at <= text.size);
    }
    td_buf_free(&text);
}

static void check_completion(const td_api_request *r) {
    size_t n = td_api_prompt_count(r);
    REQUIRE(n >= 1 && n * r->n <= TD_API_MAX_CHOICES);
    for (size_t i = 0; i < n; i++) {
        const json_t *one = td_api_prompt_at(r, i), *id;
        size_t k;
        REQUIRE(json_is_string(one) || json_array_size(one) > 0);
        json_array_foreach(one, k, id) REQUIRE(json_is_integer(id) && json_integer_value(id) < N_VOCAB);
    }
}

static void read_request(td_api_kind kind, const char *body, size_t size) {
    static const td_logit_bias bias = {7, 1};
    static const char *const stop[] = {"END"};
    const td_api_defaults defaults = {
        .sampling = {.temperature = 1, .top_p = 1, .repetition_penalty = 1, .bias = &bias, .n_bias = 1},
        .max_tokens = 100,
        .max_n = MAX_N,
        .n_vocab = N_VOCAB,
        .stop = stop,
        .n_stop = kind == TD_API_CHAT ? 0 : 1};
    td_fault fault = {0};
    td_api_request r;
    if (td_api_request_parse(&r, kind, body, size, &defaults, &fault) != TD_OK) {
        check_fault(&fault);
        REQUIRE(!r.root && !r.stop && !r.biases);
    } else {
        check_numbers(&r);
        kind == TD_API_CHAT ? check_chat(&r) : check_completion(&r);
    }
    td_api_request_free(&r);
}

/* What /tokenize, /detokenize and /slots read of a body. */
static void read_small(const char *body, size_t size) {
    td_fault fault = {0};
    json_t *root, *list = NULL;
    if (td_api_body_parse(body, size, &root, &fault) != TD_OK) {
        check_fault(&fault);
        return;
    }
    const char *text = NULL;
    bool flag = false;
    const td_fields f = {root, "", &fault};
    if (td_field_text(&f, "content", &text) != TD_OK || td_field_text(&f, "filename", &text) != TD_OK ||
        td_field_bool(&f, "add_special", &flag) != TD_OK || td_field_array(&f, "tokens", &list) != TD_OK)
        check_fault(&fault);
    json_decref(root);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    if (size < 1)
        return 0;
    template(); /* stays */
    long live = td_alloc_live();
    const char *body = (const char *)data + 1;
    switch (data[0] % 3) {
    case 0:
        read_request(TD_API_CHAT, body, size - 1);
        break;
    case 1:
        read_request(TD_API_COMPLETION, body, size - 1);
        break;
    default:
        read_small(body, size - 1);
    }
    REQUIRE(td_alloc_live() == live);
    return 0;
}
