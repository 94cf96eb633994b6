/* test_reply_util.h - cases of replies: a text, and the transcript of what must come out of it however it is cut.
 *
 * A transcript joins deltas of one kind: [R] reasoning, [C] content, [T name] arguments of a call and [.] its end, or
 * [!] when it is not complete; [r] at the very end when the text broke off inside the thoughts. */
#ifndef TEST_REPLY_UTIL_H
#define TEST_REPLY_UTIL_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/rng.h"
#include "format/checkpoint.h"
#include "format/json_scan.h"
#include "text/reply.h"

#define GEMMA4                                                                                                         \
    { TD_REPLY_THINK_CHANNEL, TD_REPLY_CALLS_GEMMA4 }
#define QWEN                                                                                                           \
    { TD_REPLY_THINK_TAGS, TD_REPLY_CALLS_QWEN }
#define JSON_CALLS                                                                                                     \
    { TD_REPLY_THINK_TAGS, TD_REPLY_CALLS_JSON }
#define PLAIN                                                                                                          \
    { TD_REPLY_THINK_NONE, TD_REPLY_CALLS_NONE }

typedef struct reply_case {
    const char *name;
    td_reply_format format;
    const char *text;
    const char *expected;
    const char *tools; /* JSON, or NULL */
    bool inside;       /* reasoning is open at the start */
} reply_case;

typedef struct transcript {
    td_buf text, arguments;
    td_buf says[2];
    int kind; /* of the segment under way; -1: none */
    bool in_call, finished;
    bool unchecked; /* arguments are not parsed: that takes memory */
    uint32_t n_calls, n_incomplete;
    char fault[sizeof((td_error){0}.message)];
} transcript;

static inline void transcript_init(transcript *t) {
    *t = (transcript){.kind = -1};
    td_buf *const bufs[] = {&t->text, &t->arguments, &t->says[0], &t->says[1]};
    for (size_t i = 0; i < 4; i++)
        td_buf_init(bufs[i], (size_t)1 << 30);
}

static inline void transcript_free(transcript *t) {
    td_buf_free(&t->text);
    td_buf_free(&t->arguments);
    td_buf_free(&t->says[0]);
    td_buf_free(&t->says[1]);
}

/* Strict JSON, an object. A key may be there twice. */
static inline void check_object(const td_buf *json) {
    td_json_scan scan;
    td_error err;
    td_json_scan_init(&scan, json->data, json->size, 0, TD_JSON_MAX_DEPTH, "arguments");
    assert_int_equal(td_json_scan_peek(&scan), '{');
    if (td_json_scan_skip(&scan, &err) != TD_OK || td_json_scan_end(&scan, &err) != TD_OK)
        fail_msg("%s in %s", err.message, json->data);
    td_json_scan_free(&scan);
}

static inline td_status transcript_call(transcript *t, const td_reply_event *e) {
    char id[40];
    snprintf(id, sizeof id, "call_%u", e->index);
    assert_string_equal(e->id, id);
    assert_int_equal(e->index, t->n_calls);
    assert_true(e->name[0] != '\0');
    assert_int_equal(t->in_call, e->kind != TD_REPLY_CALL_BEGIN);
    t->kind = -1;
    if (e->kind == TD_REPLY_CALL_BEGIN) {
        t->in_call = true;
        td_buf_clear(&t->arguments);
        return td_buf_printf(&t->text, "[T %s]", e->name);
    }
    if (e->kind == TD_REPLY_CALL_ARGUMENTS) {
        TD_TRY(td_buf_append(&t->arguments, e->text, e->size));
        return td_buf_append(&t->text, e->text, e->size);
    }
    t->in_call = false;
    t->n_calls++;
    t->n_incomplete += !e->complete;
    assert_int_equal(e->complete, e->fault == NULL);
    if (e->complete && !t->unchecked)
        check_object(&t->arguments);
    if (!e->complete)
        snprintf(t->fault, sizeof t->fault, "%s", e->fault->message);
    return td_buf_puts(&t->text, e->complete ? "[.]" : "[!]");
}

/* Checks the protocol on the way. */
static inline td_status transcript_event(void *user, const td_reply_event *e) {
    transcript *t = user;
    assert_false(t->finished);
    bool speaks = e->kind == TD_REPLY_REASONING || e->kind == TD_REPLY_CONTENT;
    if (speaks || e->kind == TD_REPLY_CALL_ARGUMENTS) {
        assert_true(e->size > 0);
        assert_true(td_json_utf8_valid(e->text, e->size));
    }
    if (speaks) {
        assert_false(t->in_call);
        if (t->kind != (int)e->kind)
            TD_TRY(td_buf_puts(&t->text, e->kind == TD_REPLY_REASONING ? "[R]" : "[C]"));
        t->kind = (int)e->kind;
        TD_TRY(td_buf_append(&t->says[e->kind], e->text, e->size));
        return td_buf_append(&t->text, e->text, e->size);
    }
    if (e->kind != TD_REPLY_FINISH)
        return transcript_call(t, e);
    assert_false(t->in_call);
    assert_int_equal(e->n_calls, t->n_calls);
    assert_int_equal(e->n_incomplete, t->n_incomplete);
    t->finished = true;
    return e->in_reasoning ? td_buf_puts(&t->text, "[r]") : TD_OK;
}

static inline json_t *tools_of(const reply_case *c) {
    json_t *tools = NULL;
    td_error err;
    if (c->tools && td_json_parse(c->tools, strlen(c->tools), 32, "tools", &tools, &err) != TD_OK)
        fail_msg("%s", err.message);
    return tools;
}

/* Pushes text[0..n) in the pieces that end at the places in cuts[0..n_cuts), ascending; then the rest. */
static inline td_status run_pieces(const reply_case *c, const json_t *tools, const char *text, size_t n,
                                   const size_t *cuts, size_t n_cuts, transcript *t) {
    td_reply *r;
    td_error err;
    td_reply_options opt = {
        .format = c->format, .inside_reasoning = c->inside, .tools = tools, .on_event = transcript_event, .user = t};
    td_status st = td_reply_open(&r, &opt, &err);
    assert_int_equal(st == TD_OK, r != NULL);
    size_t from = 0;
    for (size_t i = 0; st == TD_OK && i <= n_cuts; i++) {
        size_t to = i < n_cuts ? cuts[i] : n;
        st = td_reply_push(r, text + from, to - from, &err);
        from = to;
    }
    if (st == TD_OK)
        st = td_reply_finish(r, &err);
    if (st == TD_OK)
        assert_true(t->finished);
    td_reply_close(&r);
    assert_null(r);
    return st;
}

/* No marker of the format in what was said. */
static inline void check_no_markers(const reply_case *c, const transcript *t) {
    static const char *const all[] = {"<|channel>", "<channel|>",       "<|tool_call>",     "<tool_call|>",
                                      "<|\"|>",     "<|tool_response>", "<tool_response|>", "<think>",
                                      "</think>",   "<tool_call>",      "</tool_call>"};
    bool gemma = c->format.calls == TD_REPLY_CALLS_GEMMA4;
    if (c->format.think == TD_REPLY_THINK_NONE && c->format.calls == TD_REPLY_CALLS_NONE)
        return;
    for (size_t i = gemma ? 0 : 7; i < (gemma ? 7u : sizeof all / sizeof *all); i++)
        for (int v = 0; v < 2; v++)
            if (t->says[v].size && memmem(t->says[v].data, t->says[v].size, all[i], strlen(all[i])))
                fail_msg("%s: marker %s leaked: %s", c->name, all[i], t->text.data);
}

static inline void check_transcript(const reply_case *c, const transcript *t, const char *expected, size_t n_expected,
                                    const char *how) {
    if (t->text.size != n_expected || memcmp(t->text.size ? t->text.data : "", expected, n_expected) != 0)
        fail_msg("%s, %s:\n got      %s\n expected %s", c->name, how, t->text.size ? t->text.data : "", expected);
    check_no_markers(c, t);
}

/* Once with these cuts. */
static inline void run_and_check(const reply_case *c, const json_t *tools, const char *text, size_t n,
                                 const size_t *cuts, size_t n_cuts, const char *expected, size_t n_expected) {
    char how[60];
    transcript t;
    transcript_init(&t);
    snprintf(how, sizeof how, "%zu cuts, the first at %zu", n_cuts, n_cuts ? cuts[0] : n);
    assert_int_equal(run_pieces(c, tools, text, n, cuts, n_cuts, &t), TD_OK);
    check_transcript(c, &t, expected, n_expected, how);
    transcript_free(&t);
}

/* Ascending random places; about one byte in `every`. */
static inline size_t random_cuts(size_t *cuts, size_t n, uint64_t seed, double every) {
    size_t n_cuts = 0;
    for (size_t i = 1; i < n; i++)
        if (td_rng_uniform(seed, i, 0) < 1 / every)
            cuts[n_cuts++] = i;
    return n_cuts;
}

/* Whole, cut at every place, cut everywhere, cut at random. */
static inline void run_all_cuts(const reply_case *c, const json_t *tools, const char *text, size_t n,
                                const char *expected, size_t n_expected) {
    size_t *cuts = malloc((n + 1) * sizeof *cuts);
    assert_non_null(cuts);
    run_and_check(c, tools, text, n, NULL, 0, expected, n_expected);
    for (size_t i = 0; i <= n; i++)
        run_and_check(c, tools, text, n, &i, 1, expected, n_expected);
    run_and_check(c, tools, text, n, cuts, random_cuts(cuts, n, 0, 1), expected, n_expected);
    for (uint64_t seed = 1; seed <= 30; seed++)
        run_and_check(c, tools, text, n, cuts, random_cuts(cuts, n, seed, 1.0 + (double)(seed % 7) * 3), expected,
                      n_expected);
    free(cuts);
}

static inline void run_case(const reply_case *c) {
    long live = td_alloc_live();
    json_t *tools = tools_of(c);
    run_all_cuts(c, tools, c->text, strlen(c->text), c->expected, strlen(c->expected));
    json_decref(tools);
    assert_int_equal(td_alloc_live(), live);
}

/* Fails every allocation in turn. */
static inline void run_sweep(const reply_case *c) {
    json_t *tools = tools_of(c);
    long live = td_alloc_live();
    for (long k = 0;; k++) {
        /* The transcript's own memory is taken before, so that only the parser can fail. */
        transcript t;
        transcript_init(&t);
        td_buf *const bufs[] = {&t.text, &t.arguments, &t.says[0], &t.says[1]};
        char zeros[4096] = {0};
        for (size_t i = 0; i < 4; i++) {
            assert_int_equal(td_buf_append(bufs[i], zeros, sizeof zeros), TD_OK);
            td_buf_clear(bufs[i]);
        }
        t.unchecked = true;
        td_alloc_fail_at(k);
        td_status st = run_pieces(c, tools, c->text, strlen(c->text), NULL, 0, &t);
        bool struck = td_alloc_failed();
        td_alloc_fail_at(-1);
        assert_int_equal(st, struck ? TD_E_NOMEM : TD_OK);
        transcript_free(&t);
        assert_int_equal(td_alloc_live(), live);
        if (!struck)
            break;
    }
    json_decref(tools);
}

#define RUN_TABLE(table)                                                                                               \
    for (size_t i_ = 0; i_ < sizeof(table) / sizeof *(table); i_++)                                                    \
        run_case(&(table)[i_]);
#define SWEEP_TABLE(table)                                                                                             \
    for (size_t i_ = 0; i_ < sizeof(table) / sizeof *(table); i_++)                                                    \
        run_sweep(&(table)[i_]);

#endif
