/* test_api_http.c - the server as a client meets it: the embedded pair, a port of loopback, real requests. */
#include "support_api.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "serve/server.h"
#include "serve/generation.h"

#define HELLO "\"messages\":[{\"role\":\"user\",\"content\":\"Hello\"}]"
#define STORY "\"messages\":[{\"role\":\"user\",\"content\":\"Tell me a story.\"}]"

static td_engine *engine;
static td_server *server;
static uint16_t port;
static char slot_dir[] = "/tmp/tandem-test-slots-XXXXXX";

static td_server_model model_of(td_engine *e, uint32_t max_queue) {
    td_server_model m = {.engine = e, .id = "org/demo", .max_queue = max_queue};
    static const char *const aliases[] = {"gpt-tandem"};
    m.aliases = aliases;
    m.n_aliases = 1;
    m.defaults = (td_api_defaults){.sampling = td_engine_sampling(e), .max_tokens = 64, .max_n = 4};
    return m;
}

static td_engine *open_engine(const char *trunk, uint32_t parallel) {
    td_engine *e;
    td_error err = {0};
    td_engine_options o = td_engine_options_default();
    o.model = trunk;
    o.assistant = TD_SOURCE_DIR "/models/gemma4-demo-assistant-4bit";
    o.mtp = true;
    o.num_mtp_tokens = 3;
    o.mtp_fixed = true; /* drafts whatever they cost */
    o.n_ctx = 16384;    /* an endless answer takes much longer than what is done meanwhile */
    o.parallel = parallel;
    o.cache_bytes = 64 << 20;
    o.n_threads = 2;
    if (td_engine_open(&e, &o, &err) != TD_OK)
        fail_msg("%s", err.message);
    return e;
}

static void start(td_server **s, td_engine *e, const td_server_options *opt, uint32_t max_queue) {
    td_error err = {0};
    td_server_model m = model_of(e, max_queue);
    if (td_server_open(s, opt, &err) != TD_OK || td_server_start(*s, &m, &err) != TD_OK)
        fail_msg("%s", err.message);
}

static int set_up(void **state) {
    (void)state;
    td_server_options o = td_server_options_default();
    o.max_body_bytes = 100000;
    o.slot_path = mkdtemp(slot_dir);
    assert_non_null(o.slot_path);
    engine = open_engine(TD_SOURCE_DIR "/models/gemma4-demo-4bit", 2);
    start(&server, engine, &o, 64);
    port = td_server_port(server);
    return 0;
}

static int tear_down(void **state) {
    (void)state;
    char path[128];
    td_server_close(&server);
    td_engine_close(&engine);
    snprintf(path, sizeof path, "%s/talk", slot_dir);
    unlink(path);
    rmdir(slot_dir);
    return 0;
}

static api_reply chat(const char *members) {
    char body[8192];
    snprintf(body, sizeof body, "{%s}", members);
    api_reply r = api_post(port, "/v1/chat/completions", body);
    if (r.status != 200)
        fail_msg("%s -> %d %s", body, r.status, r.body.data);
    return r;
}

/* ---- answers ---- */

static void an_answer_says_everything(void **state) {
    (void)state;
    api_reply r = chat(HELLO ",\"seed\":7,\"temperature\":0");
    assert_string_equal(api_text(r.json, "object"), "chat.completion");
    assert_int_equal(strncmp(api_text(r.json, "id"), "chatcmpl-", 9), 0);
    assert_string_equal(api_text(r.json, "model"), "org/demo");
    assert_string_equal(api_text(r.json, "choices.0.message.role"), "assistant");
    assert_true(strlen(api_text(r.json, "choices.0.message.content")) > 5);
    assert_string_equal(api_text(r.json, "choices.0.finish_reason"), "stop");
    assert_int_equal(api_number(r.json, "seed"), 7);
    double prompt = api_number(r.json, "usage.prompt_tokens"), made = api_number(r.json, "usage.completion_tokens");
    assert_true(prompt > 3 && made > 3);
    assert_int_equal(api_number(r.json, "usage.total_tokens"), prompt + made);
    assert_int_equal(api_number(r.json, "timings.predicted_n"), made);
    assert_int_equal(api_number(r.json, "timings.prompt_n") + api_number(r.json, "timings.cached_n"), prompt);
    assert_true(api_number(r.json, "timings.queue_ms") >= 0 && api_number(r.json, "timings.prompt_ms") > 0);
    assert_true(json_is_true(api_at(r.json, "mtp.active")));
    assert_true(api_number(r.json, "timings.draft_n_accepted") <= api_number(r.json, "timings.draft_n"));
    api_reply_free(&r);
}

/* Requirement 31: the stream adds up to the answer; one id, one role, null finish reasons, usage at the end. */
static void a_stream_is_the_answer(void **state) {
    (void)state;
    static const char *const members = STORY ",\"seed\":3,\"max_tokens\":40";
    char body[512];
    api_reply whole = chat(members);
    snprintf(body, sizeof body,
             "{%s,\"stream\":true,\"stream_options\":{\"include_usage\":true,\"include_drafts\":true}}", members);
    api_reply r = api_post(port, "/v1/chat/completions", body);
    char value[128];
    assert_string_equal(api_header(&r, "Content-Type", value), "text/event-stream");
    assert_string_equal(api_header(&r, "Cache-Control", value), "no-cache");
    json_t *events = api_events(&r, NULL);
    size_t n = json_array_size(events), roles = 0, drafts = 0;
    assert_true(n > 4);
    assert_string_equal(api_text(json_array_get(events, n - 1), ""), "[DONE]");
    for (size_t i = 0; i + 1 < n; i++) {
        const json_t *e = json_array_get(events, i);
        assert_string_equal(api_text(e, "object"), "chat.completion.chunk");
        assert_string_equal(api_text(e, "id"), api_text(json_array_get(events, 0), "id"));
        roles += api_at(e, "choices.0.delta.role") != NULL;
        drafts += api_at(e, "choices.0.drafted") != NULL;
        assert_int_equal(json_is_null(api_at(e, "usage")), i + 2 < n);
        if (i + 3 < n)
            assert_true(json_is_null(api_at(e, "choices.0.finish_reason")));
    }
    assert_int_equal(roles, 1);
    assert_true(drafts > 2);
    assert_string_equal(api_text(json_array_get(events, n - 3), "choices.0.finish_reason"), "length");
    const json_t *last = json_array_get(events, n - 2);
    assert_int_equal(json_array_size(api_at(last, "choices")), 0);
    assert_int_equal(api_number(last, "usage.completion_tokens"), 40);
    assert_true(json_is_true(api_at(last, "mtp.active")));
    char *text = api_stream_text(events);
    assert_string_equal(text, api_text(whole.json, "choices.0.message.content"));
    free(text);
    json_decref(events);
    api_reply_free(&whole);
    api_reply_free(&r);
}

/* Requirements 49, 50, 51, 66, 71, 75: drafting changes no text, says whether it ran and why not, and comes back. */
static void drafting_is_a_choice_of_each_request(void **state) {
    (void)state;
#define DEFAULTS ",\"seed\":5,\"temperature\":0.7,\"top_p\":0.95,\"repetition_penalty\":1.1,\"max_tokens\":30"
    static const struct {
        const char *members;
        bool active;
        int depth;
    } cases[] = {{STORY DEFAULTS, true, 3},
                 {STORY DEFAULTS ",\"mtp\":false", false, 0},
                 {STORY DEFAULTS ",\"num_mtp_tokens\":0", false, 0},
                 {STORY DEFAULTS ",\"num_mtp_tokens\":1", true, 1},
                 {STORY DEFAULTS ",\"mtp\":true,\"num_mtp_tokens\":16", true, 3},
                 {STORY DEFAULTS, true, 3}};
    char first[4096] = "";
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        api_reply r = chat(cases[i].members);
        assert_int_equal(json_is_true(api_at(r.json, "mtp.active")), cases[i].active);
        assert_int_equal(api_number(r.json, "mtp.depth"), cases[i].depth);
        assert_int_equal(api_at(r.json, "timings.draft_n") != NULL, cases[i].active);
        assert_int_equal(api_at(r.json, "timings.draft_n_accepted") != NULL, cases[i].active);
        assert_int_equal(json_is_string(api_at(r.json, "mtp.reason")), !cases[i].active);
        const char *text = api_text(r.json, "choices.0.message.content");
        if (i == 0)
            snprintf(first, sizeof first, "%s", text);
        assert_string_equal(text, first);
        api_reply_free(&r);
    }
    api_reply props = api_get(port, "/props");
    assert_true(json_is_true(api_at(props.json, "mtp.active")));
    assert_int_equal(api_number(props.json, "mtp.depth"), 3);
    assert_int_equal(api_number(props.json, "total_slots"), 2);
    api_reply_free(&props);
}

static void n_answers_differ_and_the_first_is_the_only_one(void **state) {
    (void)state;
    api_reply one = chat(STORY ",\"seed\":11,\"temperature\":1,\"max_tokens\":24");
    api_reply r = chat(STORY ",\"seed\":11,\"temperature\":1,\"max_tokens\":24,\"n\":3");
    const char *texts[3];
    for (int i = 0; i < 3; i++) {
        char path[64];
        snprintf(path, sizeof path, "choices.%d.message.content", i);
        texts[i] = api_text(r.json, path);
        snprintf(path, sizeof path, "choices.%d.index", i);
        assert_int_equal(api_number(r.json, path), i);
    }
    assert_string_equal(texts[0], api_text(one.json, "choices.0.message.content"));
    assert_string_not_equal(texts[0], texts[1]);
    assert_string_not_equal(texts[1], texts[2]);
    assert_int_equal(api_number(r.json, "usage.prompt_tokens"), api_number(one.json, "usage.prompt_tokens"));
    assert_int_equal(api_number(r.json, "usage.completion_tokens"), 72);
    api_reply_free(&one);
    api_reply_free(&r);
}

/* Requirements 29 and 30: nothing behind a stop string, never more tokens than asked for. */
static void stop_strings_and_limits(void **state) {
    (void)state;
    api_reply all = chat(STORY ",\"seed\":3,\"max_tokens\":40");
    const char *text = api_text(all.json, "choices.0.message.content");
    char stop[8] = "", escaped[16] = "";
    memcpy(stop, text + 30, 4); /* somewhere inside */
    snprintf(escaped, sizeof escaped, "%s", stop);
    assert_null(strpbrk(escaped, "\"\\\n"));
    char members[512];
    for (int streamed = 0; streamed < 2; streamed++) {
        snprintf(members, sizeof members,
                 "{" STORY ",\"seed\":3,\"max_tokens\":40,\"stop\":[\"never said\",\"%s\"],"
                 "\"stream\":%s}",
                 escaped, streamed ? "true" : "false");
        api_reply r = api_post(port, "/v1/chat/completions", members);
        json_t *events = api_events(&r, NULL);
        char *got = streamed ? api_stream_text(events) : strdup(api_text(r.json, "choices.0.message.content"));
        size_t expected = (size_t)(strstr(text, stop) - text);
        assert_int_equal(strlen(got), expected);
        assert_memory_equal(got, text, expected);
        if (!streamed) {
            assert_string_equal(api_text(r.json, "choices.0.finish_reason"), "stop");
            assert_true(api_number(r.json, "usage.completion_tokens") < 40);
        }
        free(got);
        json_decref(events);
        api_reply_free(&r);
    }
    for (int n = 1; n < 8; n++) {
        snprintf(members, sizeof members, STORY ",\"seed\":3,\"max_completion_tokens\":%d", n);
        api_reply r = chat(members);
        assert_int_equal(api_number(r.json, "usage.completion_tokens"), n);
        assert_string_equal(api_text(r.json, "choices.0.finish_reason"), "length");
        const char *got = api_text(r.json, "choices.0.message.content");
        assert_memory_equal(got, text, strlen(got));
        api_reply_free(&r);
    }
    api_reply_free(&all);
}

/* Requirement 27: those of drafted tokens equal plain's. */
static void log_probabilities_do_not_depend_on_drafts(void **state) {
    (void)state;
#define PROBS STORY ",\"seed\":3,\"max_tokens\":20,\"logprobs\":true,\"top_logprobs\":3"
    api_reply drafted = chat(PROBS), plain = chat(PROBS ",\"mtp\":false");
    assert_true(api_number(drafted.json, "timings.draft_n_accepted") > 0);
    const json_t *a = api_at(drafted.json, "choices.0.logprobs.content"),
                 *b = api_at(plain.json, "choices.0.logprobs.content");
    assert_int_equal(json_array_size(a), 20);
    assert_int_equal(json_array_size(b), 20);
    for (size_t i = 0; i < 20; i++) {
        const json_t *p = json_array_get(a, i), *q = json_array_get(b, i);
        assert_string_equal(api_text(p, "token"), api_text(q, "token"));
        assert_true(fabs(api_number(p, "logprob") - api_number(q, "logprob")) < 1e-3);
        assert_int_equal(json_array_size(api_at(p, "top_logprobs")), 3);
        assert_true(fabs(api_number(p, "top_logprobs.0.logprob") - api_number(q, "top_logprobs.0.logprob")) < 1e-3);
        assert_true(api_number(p, "top_logprobs.0.logprob") >= api_number(p, "logprob") - 1e-6);
    }
    api_reply_free(&drafted);
    api_reply_free(&plain);
}

static void completions_in_all_forms(void **state) {
    (void)state;
    api_reply r = api_post(port, "/v1/completions",
                           "{\"prompt\":\"Once upon\",\"max_tokens\":8,\"temperature\":0,"
                           "\"echo\":true}");
    assert_int_equal(r.status, 200);
    char text[256];
    snprintf(text, sizeof text, "%s", api_text(r.json, "choices.0.text"));
    assert_int_equal(strncmp(text, "Once upon a time", 16), 0);
    api_reply_free(&r);
    api_reply t = api_post(port, "/tokenize", "{\"content\":\"Once upon\",\"add_special\":true}");
    char *ids = json_dumps(api_at(t.json, "tokens"), JSON_COMPACT), body[512];
    snprintf(body, sizeof body,
             "{\"prompt\":[%s,\"Once upon\"],\"max_tokens\":8,\"temperature\":0,\"echo\":true,"
             "\"logprobs\":null}",
             ids);
    r = api_post(port, "/v1/completions", body);
    assert_int_equal(r.status, 200);
    assert_string_equal(api_text(r.json, "choices.1.text"), text);
    assert_int_equal(strncmp(api_text(r.json, "choices.0.text"), "<bos>Once upon", 14), 0);
    assert_string_equal(strstr(api_text(r.json, "choices.0.text"), "Once"), text);
    api_reply_free(&r);
    snprintf(body, sizeof body, "{\"prompt\":%s,\"max_tokens\":8,\"temperature\":0,\"stream\":true}", ids);
    r = api_post(port, "/v1/completions", body);
    json_t *events = api_events(&r, NULL);
    char *streamed = api_stream_text(events);
    assert_string_equal(streamed, text + strlen("Once upon"));
    const json_t *first = json_array_get(events, 0);
    assert_string_equal(api_text(first, "object"), "text_completion");
    free(streamed);
    free(ids);
    json_decref(events);
    api_reply_free(&r);
    api_reply_free(&t);
}

static void tokens_and_text(void **state) {
    (void)state;
    api_reply r = api_post(port, "/tokenize", "{\"content\":\"Hi \xC3\xA9\xF0\x9F\x98\x80\",\"with_pieces\":true}");
    td_buf body;
    td_buf_init(&body, 4096);
    td_buf_puts(&body, "{\"tokens\":[");
    for (size_t i = 0; i < json_array_size(api_at(r.json, "tokens")); i++)
        td_buf_printf(&body, "%s%d", i ? "," : "", (int)api_number(json_array_get(api_at(r.json, "tokens"), i), "id"));
    td_buf_puts(&body, "]}");
    api_reply d = api_post(port, "/detokenize", body.data);
    assert_string_equal(api_text(d.json, "content"), "Hi \xC3\xA9\xF0\x9F\x98\x80");
    td_buf_free(&body);
    api_reply_free(&r);
    api_reply_free(&d);
}

/* ---- mistakes ---- */

static void mistakes_get_their_status(void **state) {
    (void)state;
    static char long_prompt[90000], too_long[120000];
    memset(long_prompt, 0, sizeof long_prompt);
    strcpy(long_prompt, "{\"prompt\":\"");
    for (int i = 0; i < 17000; i++)
        strcat(long_prompt, "word ");
    strcat(long_prompt, "\"}");
    memset(too_long, ' ', sizeof too_long - 1);
    static const struct {
        const char *method, *path, *extra, *body;
        int status;
        const char *code, *param;
    } cases[] = {
        {"POST", "/v1/chat/completions", NULL, "{\"messages\":", 400, "invalid_json", NULL},
        {"POST", "/v1/chat/completions", NULL, "{\"messages\":5}", 400, "invalid_type", "messages"},
        {"POST", "/v1/chat/completions", NULL, "{" HELLO ",\"model\":\"gpt-4\"}", 404, "model_not_found", "model"},
        {"POST", "/v1/completions", NULL, long_prompt, 400, "context_length_exceeded", "prompt"},
        {"POST", "/v1/completions", NULL, too_long, 413, "body_too_large", NULL},
        {"POST", "/v1/completions", "Content-Type: text/plain\r\n", "{}", 415, "unsupported_media_type", NULL},
        {"GET", "/v1/completions", NULL, NULL, 405, "method_not_allowed", NULL},
        {"GET", "/v2/nothing", NULL, NULL, 404, "not_found", NULL},
        {"GET", "/v1/models/gpt-4", NULL, NULL, 404, "model_not_found", "model"},
        {"POST", "/v1/embeddings", NULL, "{\"input\":\"x\"}", 400, "unsupported_endpoint", NULL},
        {"POST", "/v1/responses", NULL, "{\"input\":\"x\"}", 404, "unsupported_endpoint", NULL},
        {"POST", "/v1/messages", NULL, "{}", 404, "unsupported_endpoint", NULL},
        {"POST", "/tokenize", NULL, "{}", 400, "missing_required_parameter", "content"},
        {"POST", "/detokenize", NULL, "{\"tokens\":[99999]}", 400, "invalid_value", "tokens"},
        {"POST", "/v1/chat/completions", NULL,
         "{" HELLO ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":"
         "\"f\"}}]}",
         400, "unsupported_parameter", "tools"},
        {"POST", "/v1/chat/completions", NULL,
         "{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{\"url\":\"data:\"}}]}]"
         "}",
         400, "unsupported_value", "messages[0].content[0].type"},
        {"POST", "/slots/9?action=erase", NULL, NULL, 400, NULL, NULL},
        {"POST", "/slots/x?action=erase", NULL, NULL, 404, "not_found", NULL},
        {"POST", "/slots/0?action=explode", NULL, NULL, 400, "invalid_value", "action"},
        {"POST", "/slots/0?action=save", NULL, "{\"filename\":\"../x\"}", 400, "invalid_value", "filename"},
        {"POST", "/slots/0?action=save", NULL, "{\"filename\":\".hidden\"}", 400, "invalid_value", "filename"},
        {"POST", "/slots/0?action=restore", NULL, "{\"filename\":\"absent\"}", 404, "not_found", "filename"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        api_reply r = api_receive(api_send(port, cases[i].method, cases[i].path, cases[i].extra, cases[i].body));
        if (r.status != cases[i].status)
            fail_msg("%s %s -> %d %s", cases[i].path, cases[i].body ? cases[i].body : "", r.status, r.body.data);
        if (cases[i].code)
            assert_string_equal(api_text(r.json, "error.code"), cases[i].code);
        assert_true(strlen(api_text(r.json, "error.message")) > 5);
        assert_string_equal(api_text(r.json, "error.type"), r.status < 500 ? "invalid_request_error" : "server_error");
        if (cases[i].param)
            assert_string_equal(api_text(r.json, "error.param"), cases[i].param);
        api_reply_free(&r);
    }
    api_reply r = api_post(port, "/v1/completions", long_prompt); /* both numbers are said */
    assert_non_null(strstr(api_text(r.json, "error.message"), "16384"));
    assert_non_null(strstr(api_text(r.json, "error.message"), "1700"));
    api_reply_free(&r);
    r = chat(HELLO ",\"seed\":1"); /* requirement 47: the next text request drafts */
    assert_true(api_number(r.json, "timings.draft_n") > 0);
    api_reply_free(&r);
}

static void a_model_has_several_names(void **state) {
    (void)state;
    static const char *const names[] = {"org/demo", "demo", "gpt-tandem", "gemma4-demo-4bit", ""};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char members[256];
        snprintf(members, sizeof members, HELLO ",\"max_tokens\":1,\"model\":\"%s\"", names[i]);
        api_reply r = chat(members);
        assert_string_equal(api_text(r.json, "model"), "org/demo");
        api_reply_free(&r);
    }
    api_reply r = api_get(port, "/v1/models/org/demo");
    assert_string_equal(api_text(r.json, "id"), "org/demo");
    api_reply_free(&r);
    r = api_get(port, "/v1/models");
    assert_string_equal(api_text(r.json, "data.0.id"), "org/demo");
    api_reply_free(&r);
}

/* Bodies that are almost right, thousands of them: a status below 500, always. */
static void no_body_is_the_servers_fault(void **state) {
    (void)state;
    static const char seed_body[] =
        "{" HELLO ",\"temperature\":0.5,\"stop\":[\"a\"],\"n\":1,\"max_tokens\":2,\"logit_bias\":{\"5\":1},\"stream\":"
        "false,\"logprobs\":true,\"top_logprobs\":2,\"tools\":[],\"seed\":1}";
    static const char alphabet[] = "{}[]\",:0123456789.eE-+truefalsnl\\ u\x01\xC3\xFF";
    unsigned counts[6] = {0};
    for (uint32_t i = 0; i < 400; i++) {
        char body[sizeof seed_body];
        memcpy(body, seed_body, sizeof body);
        uint32_t n = 1 + (uint32_t)(td_rng_uniform(1, i, 0) * 3);
        for (uint32_t k = 0; k < n; k++)
            body[(size_t)(td_rng_uniform(2, i, k) * (sizeof body - 1))] =
                alphabet[(size_t)(td_rng_uniform(3, i, k) * (sizeof alphabet - 1))];
        api_reply r = api_post(port, "/v1/chat/completions", body);
        if (r.status < 200 || r.status >= 500)
            fail_msg("%d for %s: %s", r.status, body, r.body.data);
        counts[r.status / 100]++;
        if (r.status >= 400)
            assert_true(json_is_string(api_at(r.json, "error.message")));
        api_reply_free(&r);
    }
    assert_true(counts[4] > 100);
    assert_true(counts[2] > 10);
}

static double metric(const char *text, const char *name) {
    char line[160];
    snprintf(line, sizeof line, "\n%s ", name);
    const char *at = strstr(text, line);
    if (!at)
        fail_msg("no %s in %s", name, text);
    return at ? strtod(at + strlen(line), NULL) : 0;
}

/* ---- several at once ---- */

static void wait_until_idle(uint16_t at) {
    for (int i = 0; i < 600; i++) {
        api_reply r = api_get(at, "/slots");
        bool busy = false;
        for (size_t k = 0; k < json_array_size(r.json); k++)
            busy = busy || json_is_true(api_at(json_array_get(r.json, k), "is_processing"));
        api_reply_free(&r);
        if (!busy)
            return;
        usleep(10000);
    }
    fail_msg("a slot stays busy");
}

#define ENDLESS_WHOLE STORY ",\"max_tokens\":-1,\"ignore_eos\":true,\"seed\":9"
#define ENDLESS ENDLESS_WHOLE ",\"stream\":true"

/* Until the server has taken on `n` answers in all. */
static void wait_for_requests(double n) {
    for (int i = 0; i < 600; i++) {
        api_reply r = api_get(port, "/metrics");
        double now = metric(r.body.data, "tandem_requests_total");
        api_reply_free(&r);
        if (now >= n)
            return;
        usleep(10000);
    }
    fail_msg("a request is not taken on");
}

/* Requirements 33 and 34: a client that goes away frees its slot, and nobody else notices. */
static void a_client_that_goes_away_frees_its_slot(void **state) {
    (void)state;
    api_reply alone = chat(STORY ",\"seed\":3,\"max_tokens\":40"), before = api_get(port, "/metrics");
    for (int i = 0; i < 6; i++) {
        char some[256];
        /* a stream notices when it is written to; an answer that is not streamed must be looked after */
        int fd =
            api_send(port, "POST", "/v1/chat/completions", NULL, i % 2 == 0 ? "{" ENDLESS "}" : "{" ENDLESS_WHOLE "}");
        int other = api_send(port, "POST", "/v1/chat/completions", NULL, "{" STORY ",\"seed\":3,\"max_tokens\":40}");
        assert_true(fd >= 0 && other >= 0);
        if (i % 2 == 0)
            assert_true(api_read_some(fd, some, sizeof some, 20) > 0);
        wait_for_requests(metric(before.body.data, "tandem_requests_total") + 2 * (i + 1));
        close(fd);
        api_reply r = api_receive(other);
        assert_string_equal(api_text(r.json, "choices.0.message.content"),
                            api_text(alone.json, "choices.0.message.content"));
        api_reply_free(&r);
        wait_until_idle(port);
    }
    api_reply after = api_get(port, "/metrics");
    assert_int_equal(metric(after.body.data, "tandem_requests_cancelled_total") -
                         metric(before.body.data, "tandem_requests_cancelled_total"),
                     6);
    api_reply_free(&before);
    api_reply_free(&after);
    api_reply_free(&alone);
}

static void a_full_queue_is_a_429(void **state) {
    (void)state;
    td_server *s;
    td_server_options o = td_server_options_default();
    td_engine *e = open_engine(TD_SOURCE_DIR "/models/gemma4-demo-4bit", 1);
    start(&s, e, &o, 1);
    uint16_t at = td_server_port(s);
    char some[256], value[128];
    int running = api_send(at, "POST", "/v1/chat/completions", NULL, "{" ENDLESS "}");
    assert_true(api_read_some(running, some, sizeof some, 20) > 0);
    int waiting = api_send(at, "POST", "/v1/chat/completions", NULL, "{" ENDLESS "}");
    assert_true(api_read_some(waiting, some, sizeof some, 20) > 0); /* the head of its stream: it waits */
    api_reply r = api_post(at, "/v1/chat/completions", "{" HELLO "}");
    assert_int_equal(r.status, 429);
    assert_string_equal(api_text(r.json, "error.type"), "rate_limit_error");
    assert_string_equal(api_text(r.json, "error.code"), "queue_full");
    assert_true(atoi(api_header(&r, "Retry-After", value)) >= 1);
    api_reply_free(&r);
    r = api_post(at, "/v1/chat/completions", "{" HELLO ",\"n\":3}"); /* its answers do not all find a place */
    assert_int_equal(r.status, 429);
    api_reply_free(&r);
    close(running);
    close(waiting);
    wait_until_idle(at);
    r = api_post(at, "/v1/chat/completions", "{" HELLO ",\"max_tokens\":2}");
    assert_int_equal(r.status, 200);
    api_reply_free(&r);
    td_server_close(&s);
    td_engine_close(&e);
}

static void progress_of_the_prompt_when_asked_for(void **state) {
    (void)state;
    static const char *const body = "{" STORY ",\"max_tokens\":2,\"stream\":true,\"seed\":1,\"prediction\":{\"type\":"
                                    "\"content\",\"content\":\"x\"},\"stream_options\":{\"include_usage\":true}}";
    api_reply r = api_receive(api_send(port, "POST", "/v1/chat/completions", "X-Tandem-Prefill-Progress: 1\r\n", body));
    json_t *progress = api_events(&r, "prefill_progress"), *events = api_events(&r, NULL);
    assert_true(json_array_size(progress) >= 1);
    assert_string_equal(api_text(json_array_get(progress, 0), "status"), "processing");
    assert_true(api_number(json_array_get(progress, 0), "n_prompt_tokens") > 0);
    const json_t *usage = json_array_get(events, json_array_size(events) - 2); /* requirement 74 */
    assert_non_null(api_at(usage, "usage.completion_tokens_details.accepted_prediction_tokens"));
    json_decref(progress);
    json_decref(events);
    api_reply_free(&r);
    r = api_post(port, "/v1/chat/completions", body);
    progress = api_events(&r, "prefill_progress");
    assert_int_equal(json_array_size(progress), 0);
    json_decref(progress);
    api_reply_free(&r);
}

/* ---- state ---- */

/* Requirement 72. */
static void metrics_count_drafts(void **state) {
    (void)state;
    char value[128];
    wait_until_idle(port);
    api_reply before = api_get(port, "/metrics");
    assert_string_equal(api_header(&before, "Content-Type", value), "text/plain; version=0.0.4; charset=utf-8");
    api_reply a = chat(STORY ",\"seed\":21,\"max_tokens\":30");
    wait_until_idle(port);
    api_reply after = api_get(port, "/metrics");
#define GREW(name) (metric(after.body.data, name) - metric(before.body.data, name))
    assert_int_equal(GREW("tandem_requests_total"), 1);
    assert_int_equal(GREW("tandem_generated_tokens_total"), 30);
    assert_int_equal(GREW("tandem_drafted_tokens_total"), api_number(a.json, "timings.draft_n"));
    assert_int_equal(GREW("tandem_accepted_tokens_total"), api_number(a.json, "timings.draft_n_accepted"));
    assert_int_equal(GREW("tandem_draft_rounds_total"), api_number(a.json, "timings.draft_n_by_position.0"));
    assert_int_equal(GREW("tandem_accepted_tokens_at_total{position=\"1\"}"),
                     api_number(a.json, "timings.draft_n_accepted_by_position.0"));
    double length = 1 + metric(after.body.data, "tandem_accepted_tokens_total") /
                            metric(after.body.data, "tandem_draft_rounds_total");
    assert_true(fabs(metric(after.body.data, "tandem_draft_length") - length) < 1e-9);
    assert_true(metric(after.body.data, "tandem_resident_memory_bytes") > 1e6);
    assert_true(metric(after.body.data, "tandem_kv_bytes") > 0);
    assert_int_equal(metric(after.body.data, "tandem_slots"), 2);
    assert_true(metric(after.body.data, "tandem_http_replies_total{code=\"200\"}") > 1);
    api_reply_free(&before);
    api_reply_free(&a);
    api_reply_free(&after);
}

static void conversations_are_saved_and_restored(void **state) {
    (void)state;
    wait_until_idle(port);
    api_reply a = chat(STORY ",\"seed\":31,\"max_tokens\":30");
    wait_until_idle(port);
    api_reply slots = api_get(port, "/slots");
    int slot = -1;
    double newest = 0;
    for (int i = 0; i < (int)json_array_size(slots.json); i++) {
        double id = api_number(json_array_get(slots.json, (size_t)i), "id_task");
        if (id > newest) {
            newest = id;
            slot = i;
        }
    }
    api_reply_free(&slots);
    char path[64];
    snprintf(path, sizeof path, "/slots/%d?action=save", slot);
    api_reply r = api_post(port, path, "{\"filename\":\"talk\"}");
    assert_null(strstr(r.body.data, "/tmp"));
    if (r.status != 200)
        fail_msg("%s", r.body.data);
    assert_true(api_number(r.json, "n_saved") > 5);
    double saved = api_number(r.json, "n_saved");
    api_reply_free(&r);
    snprintf(path, sizeof path, "/slots/%d?action=erase", slot);
    r = api_receive(api_send(port, "POST", path, NULL, NULL));
    assert_int_equal(r.status, 200);
    api_reply_free(&r);
    snprintf(path, sizeof path, "/slots/%d?action=restore", slot);
    r = api_post(port, path, "{\"filename\":\"talk\"}");
    assert_int_equal(r.status, 200);
    assert_int_equal(api_number(r.json, "n_restored"), saved);
    api_reply_free(&r);
    r = chat(STORY ",\"seed\":31,\"max_tokens\":30");
    assert_true(api_number(r.json, "usage.prompt_tokens_details.cached_tokens") > 3);
    assert_string_equal(api_text(r.json, "choices.0.message.content"), api_text(a.json, "choices.0.message.content"));
    api_reply_free(&r);
    api_reply_free(&a);
}

static void the_page_is_served(void **state) {
    (void)state;
    char etag[128], header[160];
    api_reply r = api_get(port, "/");
    assert_int_equal(r.status, 200);
    assert_non_null(strstr(r.body.data, "<html"));
    snprintf(header, sizeof header, "If-None-Match: %s\r\n", api_header(&r, "ETag", etag));
    api_reply_free(&r);
    r = api_receive(api_send(port, "GET", "/", header, NULL));
    assert_int_equal(r.status, 304);
    api_reply_free(&r);
}

/* A server without a model yet, with a key: alive, not ready, patient with clients. */
static void before_the_model_is_there(void **state) {
    (void)state;
    td_server *s;
    td_error err;
    static const char *const keys[] = {"secret"};
    td_server_options o = td_server_options_default();
    o.api_keys = keys;
    o.n_api_keys = 1;
    assert_int_equal(td_server_open(&s, &o, &err), TD_OK);
    uint16_t at = td_server_port(s);
    char value[128];
    api_reply r = api_get(at, "/health");
    assert_int_equal(r.status, 200);
    assert_string_equal(api_text(r.json, "status"), "loading");
    api_reply_free(&r);
    r = api_get(at, "/ready");
    assert_int_equal(r.status, 503);
    api_reply_free(&r);
    r = api_get(at, "/metrics");
    assert_int_equal(r.status, 200);
    assert_int_equal(metric(r.body.data, "tandem_ready"), 0);
    api_reply_free(&r);
    r = api_post(at, "/v1/chat/completions", "{" HELLO "}");
    assert_int_equal(r.status, 401);
    assert_string_equal(api_text(r.json, "error.code"), "invalid_api_key");
    api_reply_free(&r);
    r = api_receive(api_send(at, "POST", "/v1/chat/completions", "Authorization: Bearer secret\r\n", "{" HELLO "}"));
    assert_int_equal(r.status, 503);
    assert_string_equal(api_text(r.json, "error.code"), "loading");
    assert_true(atoi(api_header(&r, "Retry-After", value)) >= 1);
    api_reply_free(&r);
    r = api_receive(api_send(at, "POST", "/slots/0?action=erase", "Authorization: Bearer secret\r\n", NULL));
    assert_int_equal(r.status, 503);
    api_reply_free(&r);
    td_server_close(&s);
}

/* Closing ends what runs with an error that the client sees: an event, no [DONE]; and an error object. */
static void closing_tells_those_who_wait(void **state) {
    (void)state;
    td_server *s;
    td_server_options o = td_server_options_default();
    td_engine *e = open_engine(TD_SOURCE_DIR "/models/gemma4-demo-4bit", 2);
    start(&s, e, &o, 8);
    char some[256];
    int stream = api_send(td_server_port(s), "POST", "/v1/chat/completions", NULL, "{" ENDLESS "}");
    assert_true(api_read_some(stream, some, sizeof some, 20) > 0);
    int whole = api_send(td_server_port(s), "POST", "/v1/chat/completions", NULL,
                         "{" STORY ",\"max_tokens\":-1,\"ignore_eos\":true,\"n\":3}");
    usleep(20000);
    assert_false(td_server_drain(s, 0));
    td_server_close(&s);
    td_buf rest;
    int n;
    td_buf_init(&rest, 1 << 26);
    while ((n = api_read_some(stream, some, sizeof some, 5)) > 0)
        td_buf_append(&rest, some, (size_t)n);
    close(stream);
    assert_non_null(strstr(td_buf_str(&rest), "data: {\"error\":{"));
    assert_null(strstr(td_buf_str(&rest), "[DONE]"));
    td_buf_free(&rest);
    api_reply r = api_receive(whole);
    assert_int_equal(r.status, 503);
    api_reply_free(&r);
    td_engine_close(&e);
}

static void owners_are_users_then_keys_then_addresses(void **state) {
    (void)state;
    uint64_t a = td_generation_owner("ann", NULL, "1.2.3.4:5");
    assert_true(a == td_generation_owner("ann", NULL, "9.9.9.9:1"));
    assert_true(a != td_generation_owner("bob", NULL, "1.2.3.4:5"));
    assert_true(a != td_generation_owner("ann", "Bearer k", "1.2.3.4:5"));
    assert_true(td_generation_owner(NULL, "k", "1.2.3.4:5") == td_generation_owner("", "k", "8.8.8.8:5"));
    assert_true(td_generation_owner(NULL, NULL, "1.2.3.4:5") == td_generation_owner(NULL, NULL, "1.2.3.4:6"));
    assert_true(td_generation_owner(NULL, NULL, "[::1]:5") != td_generation_owner(NULL, NULL, "[::2]:5"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_answer_says_everything),
        cmocka_unit_test(a_stream_is_the_answer),
        cmocka_unit_test(drafting_is_a_choice_of_each_request),
        cmocka_unit_test(n_answers_differ_and_the_first_is_the_only_one),
        cmocka_unit_test(stop_strings_and_limits),
        cmocka_unit_test(log_probabilities_do_not_depend_on_drafts),
        cmocka_unit_test(completions_in_all_forms),
        cmocka_unit_test(tokens_and_text),
        cmocka_unit_test(mistakes_get_their_status),
        cmocka_unit_test(a_model_has_several_names),
        cmocka_unit_test(no_body_is_the_servers_fault),
        cmocka_unit_test(a_client_that_goes_away_frees_its_slot),
        cmocka_unit_test(a_full_queue_is_a_429),
        cmocka_unit_test(progress_of_the_prompt_when_asked_for),
        cmocka_unit_test(metrics_count_drafts),
        cmocka_unit_test(conversations_are_saved_and_restored),
        cmocka_unit_test(the_page_is_served),
        cmocka_unit_test(before_the_model_is_there),
        cmocka_unit_test(closing_tells_those_who_wait),
        cmocka_unit_test(owners_are_users_then_keys_then_addresses),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
