/* test_api_answer.c - from pieces of text to responses: what is streamed adds up to what is not, however rounds cut the
 * tokens; figures; log-probabilities; which text was drafted. Pieces are made here, no model is asked. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/rng.h"
#include "serve/response.h"

#define MAX_TOKENS 256
#define GEMMA4                                                                                                         \
    { TD_REPLY_THINK_CHANNEL, TD_REPLY_CALLS_GEMMA4 }
#define QWEN                                                                                                           \
    { TD_REPLY_THINK_TAGS, TD_REPLY_CALLS_QWEN }
#define PLAIN                                                                                                          \
    { TD_REPLY_THINK_NONE, TD_REPLY_CALLS_NONE }

static const char tools_text[] = "[{\"type\":\"function\",\"function\":{\"name\":\"weather\",\"parameters\":{\"type\":"
                                 "\"object\",\"properties\":{\"city\":{\"type\":\"string\"}}}}}]";

/* ---- pieces ---- */

/* An answer cut into tokens: "~" between them, and how many each round has. */
typedef struct script {
    char text[4096];
    size_t n_text;
    uint32_t ends[MAX_TOKENS];
    size_t n;
} script;

static void write_script(script *s, const char *bars) {
    *s = (script){0};
    for (const char *p = bars; *p; p++)
        if (*p == '~')
            s->ends[s->n++] = (uint32_t)s->n_text;
        else
            s->text[s->n_text++] = *p;
    s->ends[s->n++] = (uint32_t)s->n_text;
}

/* Every byte a token, so that a round may end anywhere; only whole characters are certain. */
static void write_bytes(script *s, const char *text) {
    *s = (script){.n_text = strlen(text)};
    memcpy(s->text, text, s->n_text);
    for (size_t i = 0; i < s->n_text; i++)
        if (i + 1 == s->n_text || ((unsigned char)text[i + 1] & 0xC0) != 0x80)
            s->ends[s->n++] = (uint32_t)i + 1;
}

/* Tokens from..to of the script as a round's piece; every token but a round's first was drafted. */
static void feed(td_choice *c, const script *s, size_t from, size_t to, const td_token_prob *probs) {
    td_token tokens[MAX_TOKENS];
    bool drafted[MAX_TOKENS];
    uint32_t ends[MAX_TOKENS], begin = from ? s->ends[from - 1] : 0;
    for (size_t i = from; i < to; i++) {
        tokens[i - from] = (td_token)(100 + i);
        drafted[i - from] = i > from;
        ends[i - from] = s->ends[i] - begin;
    }
    td_piece p = {.text = s->text + begin,
                  .n_text = (to == s->n ? s->n_text : s->ends[to - 1]) - begin,
                  .tokens = tokens,
                  .n_tokens = to - from,
                  .drafted = drafted,
                  .text_end = ends,
                  .probs = probs ? probs + 2 * from : NULL,
                  .n_logprobs = 1};
    td_error err = {0};
    if (td_choice_feed(c, &p, &err) != TD_OK)
        fail_msg("%s", err.message);
}

static void open_choice(td_api_choice *c, td_reply_format format, bool inside, bool one_call) {
    json_t *tools = json_loads(tools_text, 0, NULL);
    td_choice_options o = {.format = format,
                           .inside_reasoning = inside,
                           .tools = tools,
                           .id_prefix = "call_x",
                           .one_call = one_call,
                           .with_spans = true,
                           .max_text = 1 << 20};
    td_error err = {0};
    *c = (td_api_choice){.finish = TD_FINISH_STOP};
    if (td_choice_open(&c->c, &o, &err) != TD_OK)
        fail_msg("%s", err.message);
    json_decref(tools);
}

static td_api_head head(bool chat) {
    return (td_api_head){.chat = chat, .id = "id1", .created = 7, .model = "m", .fingerprint = "f"};
}

static json_t *parse(const char *text) {
    json_error_t e;
    json_t *v = json_loads(text, 0, &e);
    if (!v)
        fail_msg("%s at %d in %s", e.text, e.position, text);
    return v;
}

/* ---- a client: adds the chunks of a stream up to a message ---- */

typedef struct client {
    td_buf content, reasoning, units;
    json_t *calls;
    const char *finish;
    char finish_text[32];
    int n_events, n_roles, n_usage;
    bool done;
} client;

static void client_free(client *k) {
    td_buf_free(&k->content);
    td_buf_free(&k->reasoning);
    json_decref(k->calls);
}

static void client_calls(client *k, const json_t *calls) {
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *call = json_array_get(calls, i), *f = json_object_get(call, "function");
        assert_true(json_is_integer(json_object_get(call, "index")));
        assert_true(json_is_string(json_object_get(f, "arguments")));
        size_t index = (size_t)json_integer_value(json_object_get(call, "index"));
        if (index == json_array_size(k->calls)) { /* requirement 32: the first chunk of a call names it in full */
            assert_true(json_is_string(json_object_get(call, "id")));
            assert_string_equal(json_string_value(json_object_get(call, "type")), "function");
            assert_true(json_is_string(json_object_get(f, "name")));
            json_array_append_new(k->calls, json_pack("{s:O, s:O, s:s}", "id", json_object_get(call, "id"), "name",
                                                      json_object_get(f, "name"), "arguments", ""));
        } else {
            assert_null(json_object_get(call, "id"));
            assert_null(json_object_get(f, "name"));
        }
        json_t *mine = json_array_get(k->calls, index);
        assert_non_null(mine);
        json_object_set_new(mine, "arguments",
                            json_sprintf("%s%s", json_string_value(json_object_get(mine, "arguments")),
                                         json_string_value(json_object_get(f, "arguments"))));
    }
}

static void client_spans(const json_t *choice, const json_t *text, const char *name) {
    const json_t *spans = json_object_get(choice, name);
    size_t units = 0;
    if (!spans)
        return;
    for (size_t i = 0; i < json_array_size(spans); i++)
        units += (size_t)json_integer_value(json_array_get(json_array_get(spans, i), 0));
    const char *s = json_string_value(text);
    for (; *s; s++) {
        units -= ((unsigned char)*s & 0xC0) != 0x80;
        units -= (unsigned char)*s >= 0xF0;
    }
    assert_int_equal(units, 0);
}

static void client_event(client *k, const char *data) {
    if (strcmp(data, "[DONE]") == 0) {
        k->done = true;
        return;
    }
    assert_false(k->done);
    json_t *v = parse(data); /* requirement 31: each event is one whole object */
    k->n_events++;
    k->n_usage += json_is_object(json_object_get(v, "usage"));
    assert_string_equal(json_string_value(json_object_get(v, "id")), "id1");
    json_t *choice = json_array_get(json_object_get(v, "choices"), 0), *delta = json_object_get(choice, "delta");
    if (choice) {
        const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
        assert_null(k->finish);
        assert_non_null(json_object_get(choice, "finish_reason"));
        if (finish) {
            snprintf(k->finish_text, sizeof k->finish_text, "%s", finish);
            k->finish = k->finish_text;
        }
    }
    const char *content = json_string_value(json_object_get(delta ? delta : choice, delta ? "content" : "text"));
    const char *reasoning = json_string_value(json_object_get(delta, "reasoning_content"));
    k->n_roles += json_object_get(delta, "role") != NULL;
    td_buf_puts(&k->content, content ? content : "");
    td_buf_puts(&k->reasoning, reasoning ? reasoning : "");
    client_calls(k, json_object_get(delta, "tool_calls"));
    client_spans(choice, json_object_get(delta, "content"), "drafted");
    client_spans(choice, json_object_get(delta, "reasoning_content"), "reasoning_drafted");
    json_decref(v);
}

static void client_read(client *k, char *stream) {
    *k = (client){.calls = json_array()};
    td_buf_init(&k->content, 1 << 20);
    td_buf_init(&k->reasoning, 1 << 20);
    for (char *p = stream, *end; (end = strstr(p, "\n\n")); p = end + 2) {
        *end = '\0';
        assert_memory_equal(p, "data: ", 6);
        client_event(k, p + 6);
    }
}

/* ---- streamed against whole ---- */

typedef struct answer {
    const char *name;
    td_reply_format format;
    bool inside, one_call;
    const char *text;
    const char *message; /* of the whole response; NULL: any */
    const char *finish;
} answer;

#define CALL "<|tool_call>call:weather{city:<|\"|>Par\xC3\xADs, \"TX\"<|\"|>}<tool_call|>"
#define CALLS "<|tool_call>call:weather{city:<|\"|>a<|\"|>}call:weather{city:<|\"|>b<|\"|>}<tool_call|>"
#define XML "<tool_call>\n<function=weather>\n<parameter=city>\nOslo\n</parameter>\n</function>\n</tool_call>"

static const answer answers[] = {
    {"plain", PLAIN, false, false, "Hi \xF0\x9F\x98\x80 there",
     "{\"role\":\"assistant\",\"content\":\"Hi \xF0\x9F\x98\x80 there\"}", "stop"},
    {"empty", PLAIN, false, false, "", "{\"role\":\"assistant\",\"content\":\"\"}", "stop"},
    {"thoughts", GEMMA4, false, false, "<|channel>thought\nso\xE2\x80\xA6<channel|>Yes.",
     "{\"role\":\"assistant\",\"content\":\"Yes.\",\"reasoning_content\":\"so\xE2\x80\xA6\"}", "stop"},
    {"inside", QWEN, true, false, "let me see\n</think>\n\nYes.",
     "{\"role\":\"assistant\",\"content\":\"Yes.\",\"reasoning_content\":\"let me see\"}", "stop"},
    {"call", GEMMA4, false, false, CALL,
     "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"call_x0\",\"type\":\"function\",\"function\":{"
     "\"name\":\"weather\",\"arguments\":\"{\\\"city\\\":\\\"Par\xC3\xADs, \\\\\\\"TX\\\\\\\"\\\"}\"}}]}",
     "tool_calls"},
    {"two calls", GEMMA4, false, false, "Look: " CALLS, NULL, "tool_calls"},
    {"only one of two", GEMMA4, false, true, CALLS,
     "{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"id\":\"call_x0\",\"type\":\"function\",\"function\":{"
     "\"name\":\"weather\",\"arguments\":\"{\\\"city\\\":\\\"a\\\"}\"}}]}",
     "tool_calls"},
    {"xml", QWEN, true, false, "hm</think>I ask.\n\n" XML "\n" XML, NULL, "tool_calls"},
    {"broken call", GEMMA4, false, false, "<|tool_call>call:weather{city:<|\"|>a", NULL, "stop"},
};

/* Streams the answer in rounds of these sizes (0 ends the list, which begins anew), and writes it whole too. */
static void stream_and_whole(const answer *a, const script *s, const size_t *rounds, td_buf *stream, td_buf *whole) {
    td_api_choice streamed, kept;
    td_error err = {0};
    td_tally t = {0};
    td_api_head h = head(true);
    h.include_usage = h.include_drafts = true;
    open_choice(&streamed, a->format, a->inside, a->one_call);
    open_choice(&kept, a->format, a->inside, a->one_call);
    size_t r = 0;
    for (size_t from = 0; from < s->n && !streamed.c.done;) {
        size_t to = from + (rounds[r] ? rounds[r] : rounds[r = 0]);
        r++;
        to = to < s->n ? to : s->n;
        feed(&streamed.c, s, from, to, NULL);
        td_chunk_delta(stream, &h, &streamed);
        from = to;
    }
    feed(&kept.c, s, 0, s->n, NULL);
    assert_int_equal(td_choice_finish(&streamed.c, &err), TD_OK);
    assert_int_equal(td_choice_finish(&kept.c, &err), TD_OK);
    assert_int_equal(streamed.c.n_tokens, kept.c.n_tokens);
    assert_int_equal(streamed.c.n_reasoning, kept.c.n_reasoning);
    td_chunk_delta(stream, &h, &streamed);
    td_chunk_finish(stream, &h, &streamed, NULL);
    td_chunk_usage(stream, &h, &t);
    td_chunk_done(stream);
    td_response_write(whole, &h, &kept, 1, &t);
    td_choice_close(&streamed.c);
    td_choice_close(&kept.c);
}

static void compare(const answer *a, const script *s, const size_t *rounds) {
    td_buf stream, whole;
    td_buf_init(&stream, 1 << 20);
    td_buf_init(&whole, 1 << 20);
    stream_and_whole(a, s, rounds, &stream, &whole);
    client k;
    client_read(&k, stream.data);
    json_t *v = parse(whole.data), *choice = json_array_get(json_object_get(v, "choices"), 0);
    json_t *message = json_object_get(choice, "message"), *calls = json_object_get(message, "tool_calls");
    const char *content = json_string_value(json_object_get(message, "content"));
    const char *reasoning = json_string_value(json_object_get(message, "reasoning_content"));
    assert_string_equal(td_buf_str(&k.content), content ? content : "");
    assert_string_equal(td_buf_str(&k.reasoning), reasoning ? reasoning : "");
    assert_int_equal(json_array_size(k.calls), json_array_size(calls));
    for (size_t i = 0; i < json_array_size(calls); i++) {
        json_t *call = json_array_get(calls, i), *mine = json_array_get(k.calls, i);
        json_t *f = json_object_get(call, "function");
        assert_true(json_equal(json_object_get(mine, "id"), json_object_get(call, "id")));
        assert_true(json_equal(json_object_get(mine, "name"), json_object_get(f, "name")));
        assert_true(json_equal(json_object_get(mine, "arguments"), json_object_get(f, "arguments")));
    }
    assert_string_equal(k.finish, a->finish);
    assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")), a->finish);
    assert_int_equal(k.n_roles, 1);
    assert_int_equal(k.n_usage, 1);
    assert_true(k.done);
    if (a->message) {
        json_t *expected = parse(a->message);
        json_object_set_new(expected, "refusal", json_null());
        if (!json_equal(expected, message))
            fail_msg("%s: %s", a->name, whole.data);
        json_decref(expected);
    }
    json_decref(v);
    client_free(&k);
    td_buf_free(&stream);
    td_buf_free(&whole);
}

/* Requirements 28 and 31: every way of cutting gives the same message, streamed or not. */
static void a_stream_adds_up_to_the_answer(void **state) {
    (void)state;
    for (size_t i = 0; i < sizeof answers / sizeof *answers; i++) {
        script s;
        write_bytes(&s, answers[i].text);
        for (size_t step = 1; step < 40; step++)
            compare(&answers[i], &s, (const size_t[]){step, 0});
        for (uint64_t seed = 0; seed < 50; seed++) {
            size_t rounds[9] = {0};
            for (uint32_t k = 0; k < 8; k++)
                rounds[k] = 1 + (size_t)(td_rng_uniform(seed, k, 0) * 7);
            compare(&answers[i], &s, rounds);
        }
    }
}

static void a_round_is_one_event(void **state) {
    (void)state;
    td_api_choice c;
    td_api_head h = head(true);
    td_buf out;
    script s;
    td_buf_init(&out, 1 << 20);
    open_choice(&c, (td_reply_format)GEMMA4, false, false);
    write_bytes(&s, "<|channel>thought\nso<channel|>Look: " CALLS); /* a round with everything in it */
    feed(&c.c, &s, 0, s.n, NULL);
    td_chunk_delta(&out, &h, &c);
    client k;
    client_read(&k, out.data);
    assert_int_equal(k.n_events, 1);
    assert_int_equal(json_array_size(k.calls), 2);
    assert_string_equal(td_buf_str(&k.reasoning), "so");
    client_free(&k);
    td_buf_clear(&out);
    td_chunk_delta(&out, &h, &c); /* nothing new: nothing said */
    assert_int_equal(out.size, 0);
    td_buf_free(&out);
    td_choice_close(&c.c);
}

static void drafted_text_is_marked_character_by_character(void **state) {
    (void)state;
    td_api_choice c;
    td_api_head h = head(true);
    td_buf out;
    script s;
    h.include_drafts = true;
    td_buf_init(&out, 1 << 20);
    open_choice(&c, (td_reply_format)PLAIN, false, false);
    write_script(&s, "a\xC3\xA9~\xF0\x9F\x98\x80~xy~z");
    feed(&c.c, &s, 0, 3, NULL);
    td_chunk_delta(&out, &h, &c);
    assert_non_null(strstr(out.data, "\"drafted\":[[2,false],[4,true]]"));
    td_buf_clear(&out);
    feed(&c.c, &s, 3, 4, NULL);
    td_chunk_delta(&out, &h, &c);
    assert_non_null(strstr(out.data, "\"drafted\":[[1,false]]"));
    td_choice_close(&c.c);
    td_buf_free(&out);
}

static void tokens_of_thoughts_are_counted_apart(void **state) {
    (void)state;
    td_api_choice c;
    script s;
    open_choice(&c, (td_reply_format)QWEN, true, false);
    write_script(&s, "let ~me ~see~</think>~\n\n~Yes~.");
    feed(&c.c, &s, 0, s.n, NULL);
    assert_int_equal(c.c.n_tokens, 7);
    assert_int_equal(c.c.n_reasoning, 5); /* up to the first word of the answer */
    td_choice_close(&c.c);
}

/* What comes behind the first call is neither said nor counted, wherever the round ends. */
static void one_call_ends_the_answer(void **state) {
    (void)state;
    for (size_t step = 1; step < 12; step++) {
        td_api_choice c;
        script s;
        open_choice(&c, (td_reply_format)GEMMA4, false, true);
        write_script(&s, "<|tool_call>~call:weather{~city:~<|\"|>~a~<|\"|>~}~call:weather{~}~<tool_call|>");
        for (size_t from = 0; from < s.n && !c.c.done; from += step)
            feed(&c.c, &s, from, from + step < s.n ? from + step : s.n, NULL);
        assert_true(c.c.done);
        assert_string_equal(td_choice_finish_reason(&c.c, TD_FINISH_CANCELLED), "tool_calls");
        assert_int_equal(c.c.n_calls, 1);
        assert_int_equal(c.c.n_tokens, 7);
        td_choice_close(&c.c);
    }
}

static void finish_reasons(void **state) {
    (void)state;
    td_choice c = {0};
    assert_string_equal(td_choice_finish_reason(&c, TD_FINISH_STOP), "stop");
    assert_string_equal(td_choice_finish_reason(&c, TD_FINISH_LENGTH), "length");
    assert_string_equal(td_choice_finish_reason(&c, TD_FINISH_TIME), "length");
    c.n_calls = 2;
    c.n_complete = 1;
    assert_string_equal(td_choice_finish_reason(&c, TD_FINISH_STOP), "tool_calls");
    assert_string_equal(td_choice_finish_reason(&c, TD_FINISH_LENGTH), "length");
}

/* ---- figures ---- */

static json_t *figures(const td_tally *t) {
    td_buf b;
    td_buf_init(&b, 1 << 16);
    td_json_out o = td_json_out_to(&b);
    td_out_begin(&o, '{');
    td_out_key(&o, "usage");
    td_tally_write_usage(&o, t);
    td_out_key(&o, "timings");
    td_tally_write_timings(&o, t);
    td_out_key(&o, "mtp");
    td_tally_write_mtp(&o, t);
    td_out_end(&o, '}');
    json_t *v = parse(td_buf_str(&b));
    td_buf_free(&b);
    return v;
}

static void figures_of_drafting(void **state) {
    (void)state;
    td_choice c = {0};
    td_tally t = {0};
    td_result r = {.n_tokens = 12,
                   .prompt_tokens = 100,
                   .cached_tokens = 64,
                   .rounds = 6,
                   .drafted = 12,
                   .drafted_at = {5, 4, 3},
                   .accepted_at = {4, 2, 1},
                   .queue_seconds = 0.5,
                   .prefill_seconds = 2,
                   .decode_seconds = 4,
                   .mtp_active = true,
                   .mtp_reason = "",
                   .mtp_depth = 3};
    td_tally_add(&t, &r, &c, true);
    json_t *v = figures(&t), *timings = json_object_get(v, "timings"), *mtp = json_object_get(v, "mtp");
    json_t *expected = parse("{\"queue_ms\":500,\"prompt_n\":36,\"prompt_ms\":2000,\"prompt_per_second\":18,"
                             "\"cached_n\":64,\"cache_n\":64,\"predicted_n\":12,\"predicted_ms\":4000,"
                             "\"predicted_per_second\":2.75,\"draft_n\":12,\"draft_n_accepted\":7,"
                             "\"draft_n_by_position\":[5,4,3],\"draft_n_accepted_by_position\":[4,2,1],"
                             "\"accepted_length_histogram\":[1,2,1,1]}");
    if (!json_equal(timings, expected))
        fail_msg("%s", json_dumps(timings, 0));
    json_decref(expected);
    expected = parse("{\"active\":true,\"reason\":null,\"depth\":3}");
    assert_true(json_equal(mtp, expected));
    json_decref(expected);
    expected = parse("{\"prompt_tokens\":100,\"completion_tokens\":12,\"total_tokens\":112,\"prompt_tokens_details\":{"
                     "\"cached_tokens\":64},\"completion_tokens_details\":{\"reasoning_tokens\":0}}");
    assert_true(json_equal(json_object_get(v, "usage"), expected)); /* requirement 74: no prediction, no fields */
    json_decref(expected);
    json_decref(v);
}

/* Requirements 71, 50 and 74. */
static void figures_without_drafting(void **state) {
    (void)state;
    td_choice c = {.n_reasoning = 2};
    td_tally t = {.has_prediction = true};
    td_result r = {.n_tokens = 3, .prompt_tokens = 10, .mtp_reason = "switched off by the request"};
    td_tally_add(&t, &r, &c, true);
    td_tally_add(&t, &r, &c, false); /* a second answer to the prompt */
    json_t *v = figures(&t), *timings = json_object_get(v, "timings"), *usage = json_object_get(v, "usage");
    assert_null(json_object_get(timings, "draft_n"));
    assert_null(json_object_get(timings, "draft_n_accepted"));
    assert_null(json_object_get(timings, "accepted_length_histogram"));
    assert_int_equal(json_integer_value(json_object_get(usage, "prompt_tokens")), 10);
    assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), 6);
    json_t *details = json_object_get(usage, "completion_tokens_details");
    assert_int_equal(json_integer_value(json_object_get(details, "reasoning_tokens")), 4);
    assert_non_null(json_object_get(details, "accepted_prediction_tokens"));
    assert_non_null(json_object_get(details, "rejected_prediction_tokens"));
    json_t *mtp = json_object_get(v, "mtp");
    assert_true(json_is_false(json_object_get(mtp, "active")));
    assert_string_equal(json_string_value(json_object_get(mtp, "reason")), "switched off by the request");
    json_decref(v);
    td_tally quiet = {.mtp_active = true, .mtp_reason = "", .timed = 5};
    v = figures(&quiet); /* it could draft and did not: that has a reason too */
    assert_true(json_is_string(json_object_get(json_object_get(v, "mtp"), "reason")));
    json_decref(v);
}

/* ---- log-probabilities ---- */

static td_tokenizer *tokenizer(void) {
    td_tokenizer *tok;
    td_error err = {0};
    if (td_tokenizer_load(&tok, TD_SOURCE_DIR "/models/gemma4-demo-4bit/tokenizer.json", NULL, &err) != TD_OK)
        fail_msg("%s", err.message);
    return tok;
}

static void log_probabilities_of_a_chat(void **state) {
    (void)state;
    td_tokenizer *tok = tokenizer();
    td_api_choice c = {.finish = TD_FINISH_STOP};
    td_token e3 = td_tokenizer_find(tok, "<0xE3>", 6), a = td_tokenizer_find(tok, "a", 1);
    td_token end = 100 + 1;
    td_choice_options o = {.with_probs = true, .tokenizer = tok, .end = &end, .n_end = 1, .max_text = 1000};
    td_token_prob probs[] = {{a, -0.5f}, {e3, -1.25f}, {a, -9}, {a, -9}};
    td_error err;
    script s;
    write_script(&s, "a~"); /* the second token is an end token */
    assert_int_equal(td_choice_open(&c.c, &o, &err), TD_OK);
    feed(&c.c, &s, 0, 2, probs);
    td_buf out;
    td_buf_init(&out, 1 << 16);
    td_api_head h = head(true);
    td_tally t = {0};
    td_response_write(&out, &h, &c, 1, &t);
    json_t *v = parse(td_buf_str(&out)), *choice = json_array_get(json_object_get(v, "choices"), 0);
    json_t *expected = parse("{\"content\":[{\"token\":\"a\",\"logprob\":-0.5,\"bytes\":[97],\"top_logprobs\":[{"
                             "\"token\":\"\xEF\xBF\xBD\",\"logprob\":-1.25,\"bytes\":[227]}]}],\"refusal\":null}");
    if (!json_equal(json_object_get(choice, "logprobs"), expected))
        fail_msg("%s", out.data);
    json_decref(expected);
    json_decref(v);
    td_buf_clear(&out);
    td_chunk_delta(&out, &h, &c); /* a stream says them once */
    td_chunk_finish(&out, &h, &c, NULL);
    char *first = strstr(out.data, "\"logprobs\":{\"content\":[{\"token\":\"a\"");
    assert_non_null(first);
    assert_null(strstr(first + 1, "\"logprobs\":{"));
    td_buf_free(&out);
    td_choice_close(&c.c);
    td_tokenizer_close(&tok);
}

static void log_probabilities_of_a_completion(void **state) {
    (void)state;
    td_tokenizer *tok = tokenizer();
    td_api_choice c = {.finish = TD_FINISH_LENGTH, .echo = "Q: ", .n_echo = 3};
    td_token e3 = td_tokenizer_find(tok, "<0xE3>", 6), a = td_tokenizer_find(tok, "a", 1);
    td_choice_options o = {.with_probs = true, .legacy_probs = true, .tokenizer = tok, .max_text = 1000};
    td_token_prob probs[] = {{a, -0.5f}, {e3, -1.25f}, {e3, -2}, {e3, -2}};
    td_error err;
    script s;
    write_script(&s, "\xC3\xA9~x");
    assert_int_equal(td_choice_open(&c.c, &o, &err), TD_OK);
    feed(&c.c, &s, 0, 2, probs);
    td_buf out;
    td_buf_init(&out, 1 << 16);
    td_api_head h = head(false);
    td_tally t = {0};
    td_response_write(&out, &h, &c, 1, &t);
    json_t *v = parse(td_buf_str(&out)), *choice = json_array_get(json_object_get(v, "choices"), 0);
    json_t *expected = parse("{\"tokens\":[\"a\",\"bytes:\\\\xe3\"],\"token_logprobs\":[-0.5,-2],\"top_logprobs\":[{"
                             "\"bytes:\\\\xe3\":-1.25,\"a\":-0.5},{\"bytes:\\\\xe3\":-2}],\"text_offset\":[0,1]}");
    if (!json_equal(json_object_get(choice, "logprobs"), expected))
        fail_msg("%s", out.data);
    assert_string_equal(json_string_value(json_object_get(choice, "text")), "Q: \xC3\xA9x");
    assert_string_equal(json_string_value(json_object_get(v, "object")), "text_completion");
    json_decref(expected);
    json_decref(v);
    td_buf_free(&out);
    td_choice_close(&c.c);
    td_tokenizer_close(&tok);
}

static void writing_escapes_and_mends(void **state) {
    (void)state;
    td_buf b;
    td_buf_init(&b, 1 << 12);
    td_json_out o = td_json_out_to(&b);
    td_out_begin(&o, '[');
    td_out_text(&o, "a\"\\\n\x01\x7F\xFF\xC3\xA9", 9);
    td_out_real(&o, 1.5, 3);
    td_out_real(&o, -2.0, 3);
    td_out_real(&o, 0.0 / 0.0, 3);
    td_out_end(&o, ']');
    assert_string_equal(td_buf_str(&b), "[\"a\\\"\\\\\\n\\u0001\\u007f\xEF\xBF\xBD\xC3\xA9\",1.5,-2,null]");
    td_buf_free(&b);
}

/* A failed allocation anywhere is a failed buffer or status, never half an event. */
static void running_out_of_memory_leaves_no_half_event(void **state) {
    (void)state;
    script s;
    write_bytes(&s, "<|channel>thought\nso<channel|>Look: " CALLS);
    td_api_choice warm;
    open_choice(&warm, (td_reply_format)GEMMA4, false, false);
    td_choice_close(&warm.c);
    long live = td_alloc_live();
    for (long k = 0;; k++) {
        td_api_choice c;
        td_api_head h = head(true);
        td_buf out;
        td_error err;
        td_buf_init(&out, 1 << 20);
        open_choice(&c, (td_reply_format)GEMMA4, false, false);
        td_token tokens[1] = {1};
        bool drafted[1] = {false};
        uint32_t end[1] = {(uint32_t)s.n_text};
        td_piece p = {
            .text = s.text, .n_text = s.n_text, .tokens = tokens, .n_tokens = 1, .drafted = drafted, .text_end = end};
        td_alloc_fail_at(k);
        td_status st = td_choice_feed(&c.c, &p, &err);
        if (st == TD_OK)
            td_chunk_delta(&out, &h, &c);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        const char *text = td_buf_str(&out);
        if (st == TD_OK && text)
            assert_memory_equal(text + out.size - 3, "}\n\n", 3);
        td_buf_free(&out);
        td_choice_close(&c.c);
        assert_int_equal(td_alloc_live(), live);
        if (!struck)
            break;
        assert_true(st != TD_OK || text == NULL);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_stream_adds_up_to_the_answer),
        cmocka_unit_test(a_round_is_one_event),
        cmocka_unit_test(drafted_text_is_marked_character_by_character),
        cmocka_unit_test(tokens_of_thoughts_are_counted_apart),
        cmocka_unit_test(one_call_ends_the_answer),
        cmocka_unit_test(finish_reasons),
        cmocka_unit_test(figures_of_drafting),
        cmocka_unit_test(figures_without_drafting),
        cmocka_unit_test(log_probabilities_of_a_chat),
        cmocka_unit_test(log_probabilities_of_a_completion),
        cmocka_unit_test(writing_escapes_and_mends),
        cmocka_unit_test(running_out_of_memory_leaves_no_half_event),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
