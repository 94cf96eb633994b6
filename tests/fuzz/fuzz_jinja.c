/* fuzz_jinja.c - libFuzzer target of chat templates: sources and conversations from anyone.
 *
 * The input is a template, a NUL, and JSON: the variables of the template or, when it is a list, the messages of a
 * request to a template of ours. Without a NUL the JSON is a small fixed one. Limits are low, so that a run is short;
 * the code that keeps them is the same. Text comes out as UTF-8, a failure leaves nothing behind and says why, and no
 * block of memory outlives the call. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <utf8proc.h>

#include "base/alloc.h"
#include "text/chat.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char usual[] = "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, {\"role\": \"assistant\", "
                            "\"tool_calls\": [{\"id\": \"c\", "
                            "\"function\": {\"name\": \"f\", \"arguments\": \"{}\"}}]}], \"s\": \"a b\", \"n\": 3, "
                            "\"f\": 1.5, \"l\": [1, 2, 3], "
                            "\"d\": {\"a\": {\"b\": null}}}";

static const char shown[] = "{% for m in messages %}{{ m|tojson }}{{ m.content }}{% for c in m.tool_calls or [] %}"
                            "{{ c.function.arguments|tojson }}{% endfor %}{% endfor %}";

static void check(td_status st, td_buf *out, const td_error *err) {
    if (st == TD_OK) {
        const utf8proc_uint8_t *text = (const utf8proc_uint8_t *)td_buf_str(out);
        utf8proc_int32_t cp;
        for (size_t i = 0; i < out->size;) {
            utf8proc_ssize_t n = utf8proc_iterate(text + i, (utf8proc_ssize_t)(out->size - i), &cp);
            if (n < 1)
                abort();
            i += (size_t)n;
        }
    } else if (out->size || err->status != st) {
        abort();
    }
}

static void render_template(const char *source, size_t size, const json_t *context) {
    td_jinja *t;
    td_buf out;
    td_error err = {0};
    td_jinja_options options = {.now = 1700000000, .max_steps = 20000, .max_memory = 4 << 20};
    td_buf_init(&out, 1 << 20);
    td_status st = td_jinja_compile(&t, source, size, "fuzz", &err);
    if ((st == TD_OK) != (t != NULL) || (st != TD_OK && !strchr(err.message, ':')))
        abort();
    if (st == TD_OK)
        check(td_jinja_render(t, context, &options, &out, &err), &out, &err);
    td_jinja_free(&t);
    td_buf_free(&out);
}

static void render_messages(const json_t *messages) {
    td_chat_template *t;
    td_chat_text text = {.name = "fuzz", .source = shown};
    td_chat_request request = {.messages = messages, .tools = messages, .kwargs = NULL};
    td_buf out;
    td_error err = {0};
    td_buf_init(&out, 1 << 20);
    if (td_chat_template_from_text(&t, &text, &err) != TD_OK)
        abort();
    check(td_chat_template_render(t, &request, &out, &err), &out, &err);
    td_buf_free(&out);
    td_chat_template_close(&t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    long live = td_alloc_live();
    const char *source = (const char *)data;
    const uint8_t *nul = size ? memchr(data, 0, size) : NULL;
    size_t n = nul ? (size_t)(nul - data) : size;
    json_t *json = nul ? json_loadb(source + n + 1, size - n - 1, JSON_ALLOW_NUL, NULL) : json_loads(usual, 0, NULL);
    render_template(source, n, json_is_object(json) ? json : NULL);
    if (json_is_array(json))
        render_messages(json);
    json_decref(json);
    if (td_alloc_live() != live)
        abort();
    return 0;
}
