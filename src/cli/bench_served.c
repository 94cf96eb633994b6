/* bench_served.c - the requests of tandem bench serve: prompts that begin with words of their own, so that a prompt
 * cache answers for nothing but the test that is about it, and bodies that any server of the interface takes. */
#include "cli/bench_served.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "cli/bench_texts.h"
#include "cli/progress.h"

#define MAX_TEXT ((size_t)32 << 20)
enum { WARM_UP_TOKENS = 8 };

void td_served_tick(void *served, size_t ended) {
    const td_served *s = served;
    (void)td_progress_show(NULL, "serve", s->done + ended, s->total);
}

/* ---- prompts ---- */

static void compose(const td_served *s, uint32_t class, size_t material, td_buf *text) {
    td_buf_init(text, MAX_TEXT);
    (void)td_buf_printf(text, "%u-%08llx: ", s->serial, (unsigned long long)s->seed);
    td_bench_message(class, material, text);
}

char *td_served_text(td_served *s, uint32_t class, uint32_t n) {
    const size_t wanted = (size_t)((double)n * s->bytes_per_token);
    td_buf text;
    s->serial++;
    compose(s, class, wanted, &text);
    size_t over = text.size > wanted ? text.size - wanted : 0; /* what stands around the material */
    td_buf_free(&text);
    compose(s, class, wanted > over ? wanted - over : 0, &text);
    char *out = td_buf_steal(&text);
    td_buf_free(&text);
    return out;
}

json_t *td_served_say(json_t *messages, const char *role, const char *text) {
    json_t *content = json_string(text);
    json_array_append_new(
        messages, json_pack("{s:s,s:o}", "role", role, "content", content ? content : json_string_nocheck(text)));
    return messages;
}

/* ---- bodies ---- */

td_status td_served_body(const td_served *s, td_bench_call *c, json_t *messages, uint32_t n, bool plain,
                         td_error *err) {
    json_t *o = json_pack("{s:s,s:o,s:I,s:f,s:I,s:b,s:{s:b}}", "model", s->model, "messages", messages, "max_tokens",
                          (json_int_t)n, "temperature", s->temperature, "seed", (json_int_t)s->seed, "stream", 1,
                          "stream_options", "include_usage", 1);
    if (s->ignore_eos)
        json_object_set_new(o, "ignore_eos", json_true());
    if (plain)
        json_object_set_new(o, "mtp", json_false());
    char *text = json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(9));
    c->body = text ? td_strdup(text) : NULL;
    free(text);
    json_decref(o);
    return c->body ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for a request");
}

void td_served_count(td_served *s, const td_bench_call *calls, size_t n) {
    for (size_t i = 0; i < n; i++) {
        s->ended += calls[i].state == TD_CALL_OK || calls[i].state == TD_CALL_FAILED;
        if (calls[i].state != TD_CALL_FAILED)
            continue;
        if (s->failed++ == 0)
            snprintf(s->first_failure, sizeof s->first_failure, "%s", calls[i].error);
    }
}

td_status td_served_one(td_served *s, td_bench_call *c, json_t *messages, uint32_t n,
                        void (*tick)(void *user, size_t ended), void *user, td_error *err) {
    TD_TRY(td_served_body(s, c, messages, n, false, err));
    TD_TRY(td_bench_http_run(s->http, c, 1, 1, tick ? tick : td_served_tick, tick ? user : s, err));
    s->done++;
    td_served_count(s, c, 1);
    return c->state == TD_CALL_OK ? TD_OK : td_fail(err, TD_E_IO, "%s", c->error);
}

/* ---- the warm-up ---- */

void td_served_learn(td_served *s, const char *text, const td_bench_call *c) {
    const double bytes = c->state == TD_CALL_OK && c->prompt_tokens ? (double)strlen(text) / c->prompt_tokens : 0;
    if (bytes > 0.1 && bytes < 100) /* a server that counts otherwise shall not make prompts without end */
        s->bytes_per_token = bytes;
}

/* Some of every kind of text, about the size of a prompt. */
static char *mixed_text(td_served *s) {
    td_buf text;
    compose(s, 0, (size_t)s->prompt * 4 / TD_BENCH_CLASSES, &text);
    for (uint32_t k = 1; k < TD_BENCH_CLASSES; k++)
        td_bench_message(k, (size_t)s->prompt * 4 / TD_BENCH_CLASSES, &text);
    char *out = td_buf_steal(&text);
    td_buf_free(&text);
    return out;
}

td_status td_served_warm_up(td_served *s, td_error *err) {
    td_bench_call c;
    td_error failed = {0};
    char *text = mixed_text(s);
    if (!text)
        return td_fail(err, TD_E_NOMEM, "out of memory for a prompt");
    td_bench_call_init(&c);
    td_status st = td_served_one(s, &c, td_served_say(json_array(), "user", text), WARM_UP_TOKENS, NULL, NULL, &failed);
    td_served_learn(s, text, &c);
    if (st == TD_OK && !c.prompt_tokens)
        td_bench_note(s->report, "the server counts no tokens of prompts: 4 bytes were taken for one.");
    else if (st == TD_E_IO)
        td_bench_note(s->report, "the warm-up failed, 4 bytes of a prompt were taken for a token: %s", failed.message);
    else if (err)
        *err = failed;
    td_bench_call_free(&c);
    td_free(text);
    return st == TD_E_IO ? TD_OK : st;
}
