/* fuzz_reply.c - libFuzzer target of the reply parser.
 *
 * The first byte chooses format, tools and whether the thoughts are open, the second how the text behind them is cut.
 * Whatever the text: pushing never fails, events keep their order, all cuts give the same transcript, arguments of
 * complete calls are JSON objects, no marker is said, and nothing stays allocated. Seeds: tests/fuzz/corpus/reply. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "format/checkpoint.h"
#include "format/json_scan.h"
#include "text/reply.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

static const td_reply_format formats[] = {
    {TD_REPLY_THINK_CHANNEL, TD_REPLY_CALLS_GEMMA4}, {TD_REPLY_THINK_TAGS, TD_REPLY_CALLS_QWEN},
    {TD_REPLY_THINK_TAGS, TD_REPLY_CALLS_JSON},      {TD_REPLY_THINK_NONE, TD_REPLY_CALLS_NONE},
    {TD_REPLY_THINK_TAGS, TD_REPLY_CALLS_NONE},      {TD_REPLY_THINK_NONE, TD_REPLY_CALLS_GEMMA4},
};
enum { N_FORMATS = sizeof formats / sizeof *formats };

static const char tools_text[] =
    "[{\"name\":\"f\",\"parameters\":{\"properties\":{\"s\":{\"type\":\"string\"},\"i\":{\"type\":\"integer\"},"
    "\"n\":{\"type\":[\"string\",\"null\"]},\"m\":{\"type\":[\"string\",\"object\"]},\"o\":{\"type\":\"object\"}}}},"
    "{\"name\":\"g\"}]";

/* Markers by the choice that brings them. */
static const char *const channel[] = {"<|channel>", "<channel|>", NULL};
static const char *const tags[] = {"<think>", "</think>", NULL};
static const char *const gemma[] = {"<|tool_call>",     "<tool_call|>", "<|tool_response>",
                                    "<tool_response|>", "<|\"|>",       NULL};
static const char *const qwen[] = {"<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", NULL};
static const char *const json[] = {"<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", NULL};
static const char *const none[] = {NULL};
static const char *const *const of_think[] = {none, channel, tags};
static const char *const *const of_calls[] = {none, gemma, qwen, json};

/* ---- the transcript ---- */

typedef struct transcript {
    td_buf all;       /* kinds and texts, deltas joined */
    td_buf arguments; /* of the call under way */
    td_buf said[2];
    int kind;
    bool in_call, finished, check_json;
    uint32_t n_calls, n_incomplete;
} transcript;

static void check_arguments(const transcript *t) {
    td_json_scan scan;
    td_error err;
    if (!t->check_json || memmem(t->arguments.data, t->arguments.size, "\\u0000", 6))
        return; /* the strict reader has limits of its own */
    td_json_scan_init(&scan, t->arguments.data, t->arguments.size, 0, TD_JSON_MAX_DEPTH, "arguments");
    REQUIRE(td_json_scan_peek(&scan) == '{');
    REQUIRE(td_json_scan_skip(&scan, &err) == TD_OK && td_json_scan_end(&scan, &err) == TD_OK);
    td_json_scan_free(&scan);
}

static void on_call(transcript *t, const td_reply_event *e) {
    REQUIRE(t->in_call == (e->kind != TD_REPLY_CALL_BEGIN));
    REQUIRE(e->index == t->n_calls && e->name[0] && e->id[0]);
    if (e->kind == TD_REPLY_CALL_ARGUMENTS) {
        REQUIRE(td_buf_append(&t->arguments, e->text, e->size) == TD_OK);
        return;
    }
    t->in_call = e->kind == TD_REPLY_CALL_BEGIN;
    if (t->in_call) {
        td_buf_clear(&t->arguments);
        REQUIRE(td_buf_printf(&t->all, "\n[T %s]", e->name) == TD_OK);
        return;
    }
    REQUIRE(e->complete == !e->fault);
    if (e->complete)
        check_arguments(t);
    t->n_calls++;
    t->n_incomplete += !e->complete;
    REQUIRE(td_buf_append(&t->all, t->arguments.data, t->arguments.size) == TD_OK);
    REQUIRE(td_buf_printf(&t->all, "[%s]", e->complete ? "." : e->fault->message) == TD_OK);
}

static td_status on_event(void *user, const td_reply_event *e) {
    transcript *t = user;
    REQUIRE(!t->finished);
    if (e->kind == TD_REPLY_REASONING || e->kind == TD_REPLY_CONTENT) {
        REQUIRE(!t->in_call && e->size > 0 && td_json_utf8_valid(e->text, e->size));
        if (t->kind != (int)e->kind)
            REQUIRE(td_buf_printf(&t->all, "\n[%d]", (int)e->kind) == TD_OK);
        REQUIRE(td_buf_append(&t->all, e->text, e->size) == TD_OK);
        REQUIRE(td_buf_append(&t->said[e->kind], e->text, e->size) == TD_OK);
    } else if (e->kind == TD_REPLY_FINISH) {
        REQUIRE(!t->in_call && e->n_calls == t->n_calls && e->n_incomplete == t->n_incomplete);
        REQUIRE(td_buf_printf(&t->all, "\n[F%d]", e->in_reasoning) == TD_OK);
        t->finished = true;
    } else {
        on_call(t, e);
    }
    t->kind = (int)e->kind;
    return TD_OK;
}

static void transcript_init(transcript *t, bool check_json) {
    *t = (transcript){.kind = -1, .check_json = check_json};
    td_buf *const bufs[] = {&t->all, &t->arguments, &t->said[0], &t->said[1]};
    for (size_t i = 0; i < 4; i++)
        td_buf_init(bufs[i], (size_t)1 << 30);
}

static void transcript_free(transcript *t) {
    td_buf_free(&t->all);
    td_buf_free(&t->arguments);
    td_buf_free(&t->said[0]);
    td_buf_free(&t->said[1]);
}

/* ---- markers ---- */

static bool marker_at(const char *const *set, const char *text, size_t left) {
    for (; *set; set++)
        if (strlen(*set) <= left && memcmp(*set, text, strlen(*set)) == 0)
            return true;
    return false;
}

/* Text that ends in a part of a marker. */
static bool ends_in_part(const char *const *set, const char *text, size_t size) {
    for (; *set; set++)
        for (size_t n = 1; n < strlen(*set) && n <= size; n++)
            if (memcmp(*set, text + size - n, n) == 0)
                return true;
    return false;
}

/* A marker that vanishes behind a part of a marker can let the text around it join to one: no marker of the model. */
static bool may_join(td_reply_format f, const char *text, size_t size) {
    for (size_t i = 0; i < size; i++) {
        bool marker =
            marker_at(of_think[f.think], text + i, size - i) || marker_at(of_calls[f.calls], text + i, size - i);
        if (marker && (ends_in_part(of_think[f.think], text, i) || ends_in_part(of_calls[f.calls], text, i)))
            return true;
    }
    return false;
}

static void check_said(const char *const *set, const td_buf *said) {
    for (; *set; set++)
        REQUIRE(!said->size || !memmem(said->data, said->size, *set, strlen(*set)));
}

/* ---- the runs ---- */

static void run(const td_reply_options *opt, const char *text, size_t size, unsigned cut) {
    td_reply *r;
    td_error err;
    REQUIRE(td_reply_open(&r, opt, &err) == TD_OK);
    for (size_t at = 0, n; at < size; at += n) {
        n = cut ? 1 + (at * 7 + cut) % cut : size;
        n = n < size - at ? n : size - at;
        REQUIRE(td_reply_push(r, text + at, n, &err) == TD_OK);
    }
    REQUIRE(td_reply_finish(r, &err) == TD_OK);
    td_reply_close(&r);
}

static void compare(td_reply_options *opt, const char *text, size_t size, unsigned cut) {
    transcript whole, pieces;
    transcript_init(&whole, size < 900);
    transcript_init(&pieces, false);
    opt->on_event = on_event;
    opt->user = &whole;
    run(opt, text, size, 0);
    opt->user = &pieces;
    run(opt, text, size, cut);
    REQUIRE(whole.finished && pieces.finished);
    REQUIRE(whole.all.size == pieces.all.size && memcmp(whole.all.data, pieces.all.data, whole.all.size) == 0);
    if (!may_join(opt->format, text, size))
        for (int i = 0; i < 2; i++) {
            check_said(of_think[opt->format.think], &whole.said[i]);
            check_said(of_calls[opt->format.calls], &whole.said[i]);
        }
    transcript_free(&whole);
    transcript_free(&pieces);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static json_t *tools;
    td_error err;
    if (size < 2)
        return 0;
    if (!tools && td_json_parse(tools_text, sizeof tools_text - 1, 32, "tools", &tools, &err) != TD_OK)
        abort();
    long live = td_alloc_live();
    unsigned choice = data[0] % (4 * N_FORMATS);
    td_reply_options opt = {
        .format = formats[choice / 4], .inside_reasoning = choice & 1, .tools = choice & 2 ? tools : NULL};
    compare(&opt, (const char *)data + 2, size - 2, 1 + data[1] % 16);
    REQUIRE(td_alloc_live() == live);
    return 0;
}
