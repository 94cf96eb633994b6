/* test_api_request.c - bodies of requests: what is read out of them, and what is said about those that are wrong. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "serve/request.h"

#define HI "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static const char *const server_stop[] = {"END"};
static const td_logit_bias server_bias[] = {{5, 2.5f}};

static td_api_defaults defaults(void) {
    td_api_defaults d = {.sampling = {.temperature = 0.7f, .top_k = 64, .top_p = 0.95f, .repetition_penalty = 1},
                         .max_tokens = 2048,
                         .max_n = 4,
                         .n_vocab = 1000};
    return d;
}

static td_status parse(td_api_request *r, td_api_kind kind, const char *body, td_fault *f) {
    td_api_defaults d = defaults();
    return td_api_request_parse(r, kind, body, strlen(body), &d, f);
}

static td_api_request chat(const char *members) {
    char body[4096];
    td_fault f;
    td_api_request r;
    snprintf(body, sizeof body, "{" HI "%s%s}", *members ? "," : "", members);
    if (parse(&r, TD_API_CHAT, body, &f) != TD_OK)
        fail_msg("%s: %s", body, f.message);
    return r;
}

/* ---- what is read ---- */

static void a_bare_chat_has_the_servers_defaults(void **state) {
    (void)state;
    td_api_request r = chat("");
    assert_true(r.chat);
    assert_null(r.model);
    assert_false(r.stream);
    assert_int_equal(r.n, 1);
    assert_int_equal(r.max_tokens, 2048);
    assert_true(r.sampling.temperature == 0.7f && r.sampling.top_p == 0.95f && r.sampling.top_k == 64);
    assert_int_equal(r.logprobs, -1);
    assert_int_equal(r.num_mtp_tokens, -1);
    assert_false(r.no_mtp);
    assert_null(r.tools);
    assert_int_equal(r.thinking, TD_CHAT_THINKING_UNSET);
    td_api_request_free(&r);
}

static void members_win_over_defaults(void **state) {
    (void)state;
    td_api_request r = chat("\"temperature\":0,\"top_p\":0.5,\"top_k\":-1,\"min_p\":0.05,\"repetition_penalty\":1.1,"
                            "\"presence_penalty\":0.25,\"frequency_penalty\":-0.5,\"seed\":42,\"max_tokens\":7,"
                            "\"max_completion_tokens\":9,\"stop\":[\"a\",\"bc\"],\"n\":3,\"logprobs\":true,"
                            "\"top_logprobs\":4,\"stream\":true,\"stream_options\":{\"include_usage\":true,"
                            "\"include_drafts\":true},\"mtp\":false,\"num_mtp_tokens\":2,\"ignore_eos\":true,"
                            "\"timeout\":1.5,\"user\":\"u1\",\"model\":\"m\",\"nobody_knows\":[1]");
    assert_true(r.sampling.temperature == 0 && r.sampling.top_p == 0.5f && r.sampling.top_k == 0);
    assert_true(r.sampling.min_p == 0.05f && r.sampling.repetition_penalty == 1.1f);
    assert_true(r.sampling.presence_penalty == 0.25f && r.sampling.frequency_penalty == -0.5f);
    assert_int_equal(r.sampling.seed, 42);
    assert_int_equal(r.max_tokens, 9);
    assert_int_equal(r.n_stop, 2);
    assert_string_equal(r.stop[1], "bc");
    assert_int_equal(r.n, 3);
    assert_int_equal(r.logprobs, 4);
    assert_true(r.stream && r.include_usage && r.include_drafts && r.no_mtp && r.ignore_eos);
    assert_int_equal(r.num_mtp_tokens, 2);
    assert_true(r.time_limit == 1.5);
    assert_string_equal(r.user, "u1");
    assert_string_equal(r.model, "m");
    td_api_request_free(&r);
}

static void null_members_count_as_absent(void **state) {
    (void)state;
    td_api_request r = chat("\"temperature\":null,\"stop\":null,\"n\":null,\"tools\":null,\"tool_choice\":null,"
                            "\"stream_options\":null,\"response_format\":null,\"logit_bias\":null,\"audio\":null,"
                            "\"functions\":[],\"modalities\":[\"text\"],\"typical_p\":1,\"suffix\":\"\"");
    assert_true(r.sampling.temperature == 0.7f);
    assert_int_equal(r.n_stop, 0);
    td_api_request_free(&r);
}

static void biases_add_to_the_servers_and_minus_100_bans(void **state) {
    (void)state;
    td_api_defaults d = defaults();
    d.sampling.bias = server_bias;
    d.sampling.n_bias = 1;
    d.stop = server_stop;
    d.n_stop = 1;
    td_fault f;
    td_api_request r;
    const char *body = "{" HI ",\"logit_bias\":{\"7\":-100,\"9\":3},\"stop\":\"x\"}";
    assert_int_equal(td_api_request_parse(&r, TD_API_CHAT, body, strlen(body), &d, &f), TD_OK);
    assert_int_equal(r.sampling.n_bias, 3);
    assert_int_equal(r.sampling.bias[0].token, 5);
    assert_int_equal(r.sampling.bias[1].token, 7);
    assert_true(isinf(r.sampling.bias[1].bias) && r.sampling.bias[1].bias < 0);
    assert_true(r.sampling.bias[2].bias == 3);
    assert_int_equal(r.n_stop, 2);
    assert_string_equal(r.stop[0], "x");
    assert_string_equal(r.stop[1], "END");
    td_api_request_free(&r);
}

static void seeds_are_random_unless_somebody_chose(void **state) {
    (void)state;
    td_api_request a = chat(""), b = chat(""), c = chat("\"seed\":-1"), e = chat("\"seed\":-7");
    assert_true(a.sampling.seed != b.sampling.seed || a.sampling.seed != c.sampling.seed);
    assert_true(e.sampling.seed == (uint64_t)-7);
    td_api_request_free(&a);
    td_api_request_free(&b);
    td_api_request_free(&c);
    td_api_request_free(&e);
    td_api_defaults d = defaults();
    d.has_seed = true;
    d.sampling.seed = 11;
    td_fault f;
    assert_int_equal(td_api_request_parse(&a, TD_API_CHAT, "{" HI "}", strlen("{" HI "}"), &d, &f), TD_OK);
    assert_int_equal(a.sampling.seed, 11);
    td_api_request_free(&a);
    for (uint32_t i = 1; i < 100; i++)
        for (uint32_t k = 0; k < i; k++)
            assert_true(td_api_choice_seed(11, i) != td_api_choice_seed(11, k));
    assert_int_equal(td_api_choice_seed(11, 0), 11);
}

static void thinking_has_an_order_of_who_decides(void **state) {
    (void)state;
    static const struct {
        const char *members;
        td_chat_thinking thinking;
    } cases[] = {
        {"\"reasoning_effort\":\"none\"", TD_CHAT_THINKING_OFF},
        {"\"reasoning_effort\":\"minimal\"", TD_CHAT_THINKING_OFF},
        {"\"reasoning_effort\":\"high\"", TD_CHAT_THINKING_ON},
        {"\"chat_template_kwargs\":{\"enable_thinking\":false},\"reasoning_effort\":\"high\"", TD_CHAT_THINKING_OFF},
        {"\"chat_template_kwargs\":{\"enable_thinking\":false},\"enable_thinking\":true", TD_CHAT_THINKING_ON},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        td_api_request r = chat(cases[i].members);
        assert_int_equal(r.thinking, cases[i].thinking);
        td_api_request_free(&r);
    }
}

static void formats_and_tools_are_taken_apart(void **state) {
    (void)state;
    td_api_request r = chat("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{\"name\":\"n\",\"strict\":"
                            "true,\"schema\":{\"type\":\"object\"}}}");
    assert_string_equal(r.json_schema, "{\"type\":\"object\"}");
    td_api_request_free(&r);
    r = chat("\"response_format\":{\"type\":\"json_object\"}");
    assert_true(r.json_object && !r.json_schema);
    td_api_request_free(&r);
    r = chat("\"grammar\":\"root ::= \\\"a\\\"\"");
    assert_string_equal(r.grammar, "root ::= \"a\"");
    td_api_request_free(&r);
#define TOOLS "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]"
    r = chat(TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"f\"}},\"parallel_tool_calls\":"
                   "false");
    assert_int_equal(r.tool_choice, TD_TOOLS_REQUIRED);
    assert_string_equal(r.tool_name, "f");
    assert_true(r.one_call && r.tools);
    assert_string_equal(r.tools_text, "[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}]");
    td_api_request_free(&r);
    r = chat(TOOLS ",\"tool_choice\":\"none\"");
    assert_null(r.tools);
    assert_null(r.tools_text);
    td_api_request_free(&r);
}

static void completions_take_prompts_in_four_forms(void **state) {
    (void)state;
    static const struct {
        const char *prompt;
        size_t n;
        bool tokens;
    } cases[] = {{"\"a\"", 1, false},      {"[\"a\",\"b\",\"c\"]", 3, false}, {"[1,2,3]", 1, true},
                 {"[[1,2],[3]]", 2, true}, {"[\"a\",[1,2]]", 2, false},       {"\"\"", 1, false}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char body[256];
        td_fault f;
        td_api_request r;
        snprintf(body, sizeof body, "{\"prompt\":%s,\"echo\":true,\"best_of\":2,\"n\":2}", cases[i].prompt);
        assert_int_equal(parse(&r, TD_API_COMPLETION, body, &f), TD_OK);
        assert_int_equal(td_api_prompt_count(&r), cases[i].n);
        assert_int_equal(json_is_array(td_api_prompt_at(&r, 0)), cases[i].tokens);
        assert_true(r.echo && !r.chat);
        td_api_request_free(&r);
    }
}

/* ---- what is refused ---- */

typedef struct bad {
    const char *body;
    const char *code, *param;
    const char *says; /* part of the message */
} bad;

static const bad bad_chats[] = {
    {"", "invalid_json", "", "empty"},
    {"{\"messages\": [}", "invalid_json", "", "byte 14"},
    {"[]", "invalid_json", "", "a list"},
    {"{} x", "invalid_json", "", "byte 3"},
    {"{\"a\":\"\\ud800\"}", "invalid_json", "", "byte"},
    {"{}", "missing_required_parameter", "messages", "missing"},
    {"{\"messages\":\"hi\"}", "invalid_type", "messages", "a string, expected a list"},
    {"{\"messages\":[]}", "invalid_value", "messages", "empty"},
    {"{\"messages\":[3]}", "invalid_type", "messages[0]", "a number"},
    {"{\"messages\":[{}]}", "missing_required_parameter", "messages[0].role", "missing"},
    {"{\"messages\":[{\"role\":\"robot\",\"content\":\"\"}]}", "invalid_value", "messages[0].role", "robot"},
    {"{\"messages\":[{\"role\":\"user\"}]}", "missing_required_parameter", "messages[0].content", "missing"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "invalid_type", "messages[0].content", "a number"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}", "missing_required_parameter",
     "messages[0].content[0].text", "missing"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"what is this?\"},{\"type\":"
     "\"image_url\",\"image_url\":{\"url\":\"file:///etc/passwd\"}}]}]}",
     "unsupported_value", "messages[0].content[1].type", "text only"},
    {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"input_audio\",\"input_audio\":{}}]}]}",
     "unsupported_value", "messages[0].content[0].type", "input_audio"},
    {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}", "missing_required_parameter",
     "messages[0].tool_calls[0].function", "missing"},
    {"{" HI ",\"temperature\":\"hot\"}", "invalid_type", "temperature", "a string, expected a number"},
    {"{" HI ",\"temperature\":-1}", "invalid_value", "temperature", "-1"},
    {"{" HI ",\"top_p\":1.5}", "invalid_value", "top_p", "1.5"},
    {"{" HI ",\"max_tokens\":0}", "invalid_value", "max_tokens", "at least 1"},
    {"{" HI ",\"n_predict\":0}", "invalid_value", "n_predict", "at least 1"},
    {"{" HI ",\"chat_template\":\"{{ x }}\"}", "unsupported_parameter", "chat_template", "kwargs"},
    {"{" HI ",\"max_tokens\":1.5}", "invalid_type", "max_tokens", "whole"},
    {"{" HI ",\"max_tokens\":99999999999999999999}", "invalid_type", "max_tokens", "whole"},
    {"{" HI ",\"n\":5}", "invalid_value", "n", "1 to 4"},
    {"{" HI ",\"stream\":1}", "invalid_type", "stream", "true or false"},
    {"{" HI ",\"stream_options\":{}}", "invalid_value", "stream_options", "stream"},
    {"{" HI ",\"stop\":[\"\"]}", "invalid_value", "stop[0]", "0 bytes"},
    {"{" HI ",\"stop\":{}}", "invalid_type", "stop", "an object"},
    {"{" HI ",\"logit_bias\":{\"x\":1}}", "invalid_value", "logit_bias", "'x'"},
    {"{" HI ",\"logit_bias\":{\"1000\":1}}", "invalid_value", "logit_bias", "999"},
    {"{" HI ",\"logit_bias\":{\"1\":101}}", "invalid_value", "logit_bias.1", "101"},
    {"{" HI ",\"top_logprobs\":3}", "invalid_value", "top_logprobs", "logprobs"},
    {"{" HI ",\"logprobs\":true,\"top_logprobs\":21}", "invalid_value", "top_logprobs", "20"},
    {"{" HI ",\"num_mtp_tokens\":17}", "invalid_value", "num_mtp_tokens", "16"},
    {"{" HI ",\"response_format\":{\"type\":\"xml\"}}", "invalid_value", "response_format.type", "xml"},
    {"{" HI ",\"response_format\":{\"type\":\"json_schema\"}}", "missing_required_parameter",
     "response_format.json_schema", "missing"},
    {"{" HI ",\"response_format\":{\"type\":\"json_object\"},\"grammar\":\"root ::= \\\"a\\\"\"}", "invalid_value",
     "grammar", "exclude"},
    {"{" HI ",\"tool_choice\":\"required\"}", "invalid_value", "tool_choice", "no 'tools'"},
    {"{" HI ",\"tools\":[{\"type\":\"function\",\"function\":{}}]}", "missing_required_parameter",
     "tools[0].function.name", "missing"},
    {"{" HI ",\"tools\":[{\"type\":\"custom\"}]}", "unsupported_value", "tools[0].type", "custom"},
    {"{" HI "," TOOLS ",\"tool_choice\":{\"type\":\"function\",\"function\":{\"name\":\"g\"}}}", "invalid_value",
     "tool_choice.function.name", "'g'"},
    {"{" HI "," TOOLS ",\"tool_choice\":\"required\",\"grammar\":\"root ::= \\\"a\\\"\"}", "invalid_value",
     "tool_choice", "forces a call"},
    {"{" HI ",\"audio\":{\"voice\":\"x\"}}", "unsupported_parameter", "audio", "text"},
    {"{" HI ",\"modalities\":[\"text\",\"audio\"]}", "unsupported_value", "modalities", "audio"},
    {"{" HI ",\"functions\":[{}]}", "unsupported_parameter", "functions", "tools"},
    {"{" HI ",\"mirostat\":2}", "unsupported_parameter", "mirostat", "not supported"},
    {"{" HI ",\"continue_final_message\":true}", "invalid_value", "continue_final_message", "assistant"},
    {"{" HI ",\"prediction\":{}}", "invalid_value", "prediction", "content"},
    {"{" HI ",\"enable_thinking\":\"yes\"}", "invalid_type", "enable_thinking", "true or false"},
};

static const bad bad_completions[] = {
    {"{}", "missing_required_parameter", "prompt", "missing"},
    {"{\"prompt\":5}", "invalid_type", "prompt", "a number"},
    {"{\"prompt\":[]}", "invalid_value", "prompt", "at least one"},
    {"{\"prompt\":[1,\"a\"]}", "invalid_type", "prompt", "a string at 1"},
    {"{\"prompt\":[1,1000]}", "invalid_value", "prompt", "0 to 999"},
    {"{\"prompt\":[[1],[-1]]}", "invalid_value", "prompt[1]", "-1"},
    {"{\"prompt\":[\"a\",7]}", "invalid_type", "prompt[1]", "a number"},
    {"{\"prompt\":\"a\",\"suffix\":\"b\"}", "unsupported_parameter", "suffix", "continued"},
    {"{\"prompt\":\"a\",\"best_of\":3}", "unsupported_value", "best_of", "ranked"},
    {"{\"prompt\":\"a\",\"logprobs\":21}", "invalid_value", "logprobs", "20"},
    {"{\"prompt\":\"a\",\"echo\":true,\"logprobs\":0}", "unsupported_value", "logprobs", "prompt"},
};

static void refuse(td_api_kind kind, const bad *b) {
    td_fault f;
    td_api_request r;
    if (parse(&r, kind, b->body, &f) == TD_OK)
        fail_msg("taken: %s", b->body);
    if (f.status != 400 || strcmp(f.code, b->code) != 0 || strcmp(f.param, b->param) != 0 ||
        !strstr(f.message, b->says))
        fail_msg("%s\n-> %u %s %s: %s", b->body, f.status, f.code, f.param, f.message);
    assert_null(r.root);
}

static void every_mistake_is_named(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof bad_chats / sizeof *bad_chats; i++)
        refuse(TD_API_CHAT, &bad_chats[i]);
    for (size_t i = 0; i < sizeof bad_completions / sizeof *bad_completions; i++)
        refuse(TD_API_COMPLETION, &bad_completions[i]);
}

static void faults_are_openais_error_objects(void **state) {
    (void)state;
    td_fault f;
    td_buf b;
    td_buf_init(&b, 4096);
    td_fault_set(&f, 400, "invalid_type", "a\"b", "said \"%s\"\n", "x");
    td_fault_write(&b, &f);
    assert_string_equal(td_buf_str(&b),
                        "{\"error\":{\"message\":\"said \\\"x\\\"?\",\"type\":\"invalid_request_error\","
                        "\"param\":\"a\\\"b\",\"code\":\"invalid_type\"}}");
    td_buf_clear(&b);
    td_fault_http_body(NULL, 401, "invalid_api_key", "no", &b);
    assert_string_equal(td_buf_str(&b), "{\"error\":{\"message\":\"no\",\"type\":\"invalid_request_error\",\"param\":"
                                        "null,\"code\":\"invalid_api_key\"}}");
    td_buf_free(&b);
    td_error busy = {.status = TD_E_BUSY, .message = "256 requests wait"};
    td_fault_of(&f, &busy, "prompt");
    assert_int_equal(f.status, 429);
    assert_int_equal(f.retry_after, 1);
    assert_string_equal(f.param, "");
    assert_string_equal(td_fault_type(429), "rate_limit_error");
    td_error odd = {.status = TD_E_IO};
    td_fault_of(&f, &odd, NULL);
    assert_int_equal(f.status, 500);
    assert_string_equal(f.message, "input/output error");
}

/* The k-th allocation fails, for every k: an answer or a fault, and nothing is lost. */
static void running_out_of_memory_is_a_fault(void **state) {
    (void)state;
    const char *body = "{" HI "," TOOLS ",\"stop\":[\"a\"],\"logit_bias\":{\"1\":2},\"response_format\":{\"type\":"
                       "\"json_schema\",\"json_schema\":{\"schema\":{}}}}";
    long live = td_alloc_live();
    for (long k = 0;; k++) {
        td_fault f;
        td_api_request r;
        td_alloc_fail_at(k);
        td_status st = parse(&r, TD_API_CHAT, body, &f);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        if (!struck) {
            assert_int_equal(st, TD_OK);
            td_api_request_free(&r);
            break;
        }
        assert_int_equal(st, TD_E_NOMEM);
        assert_int_equal(f.status, 503);
        assert_int_equal(td_alloc_live(), live);
    }
    assert_int_equal(td_alloc_live(), live);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_bare_chat_has_the_servers_defaults),
        cmocka_unit_test(members_win_over_defaults),
        cmocka_unit_test(null_members_count_as_absent),
        cmocka_unit_test(biases_add_to_the_servers_and_minus_100_bans),
        cmocka_unit_test(seeds_are_random_unless_somebody_chose),
        cmocka_unit_test(thinking_has_an_order_of_who_decides),
        cmocka_unit_test(formats_and_tools_are_taken_apart),
        cmocka_unit_test(completions_take_prompts_in_four_forms),
        cmocka_unit_test(every_mistake_is_named),
        cmocka_unit_test(faults_are_openais_error_objects),
        cmocka_unit_test(running_out_of_memory_is_a_fault),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
