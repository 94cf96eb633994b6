/* delta.c - see delta.h. */
#include "serve/delta.h"

#include <string.h>

#include "base/alloc.h"

void td_api_delta_init(td_api_delta *d, size_t ceiling, bool with_spans) {
    *d = (td_api_delta){.ceiling = ceiling, .with_spans = with_spans};
    td_buf *const bufs[] = {&d->content.text, &d->content.spans, &d->reasoning.text, &d->reasoning.spans};
    for (size_t i = 0; i < sizeof bufs / sizeof *bufs; i++)
        td_buf_init(bufs[i], ceiling);
}

static void drop_calls(td_api_delta *d) {
    for (size_t i = 0; i < d->n_calls; i++) {
        td_free(d->calls[i].id);
        td_free(d->calls[i].name);
        td_buf_free(&d->calls[i].arguments);
    }
    d->n_calls = 0;
}

void td_api_delta_free(td_api_delta *d) {
    drop_calls(d);
    td_free(d->calls);
    td_buf_free(&d->content.text);
    td_buf_free(&d->content.spans);
    td_buf_free(&d->reasoning.text);
    td_buf_free(&d->reasoning.spans);
    td_api_delta_init(d, d->ceiling, d->with_spans);
}

void td_api_delta_clear(td_api_delta *d) {
    drop_calls(d);
    td_buf_clear(&d->content.text);
    td_buf_clear(&d->content.spans);
    td_buf_clear(&d->reasoning.text);
    td_buf_clear(&d->reasoning.spans);
}

bool td_api_delta_is_empty(const td_api_delta *d) {
    return d->content.text.size == 0 && d->reasoning.text.size == 0 && d->n_calls == 0;
}

/* ---- adding ---- */

/* Of valid UTF-8: one for each character, two for those beyond U+FFFF. */
static uint32_t utf16_units(const char *s, size_t n) {
    uint32_t units = 0;
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)s[i];
        units += (c & 0xC0) != 0x80;
        units += c >= 0xF0;
    }
    return units;
}

static td_status add_span(td_buf *spans, uint32_t units, bool drafted) {
    td_api_delta_span *last =
        spans->size ? (td_api_delta_span *)(void *)(spans->data + spans->size - sizeof(td_api_delta_span)) : NULL;
    if (last && last->drafted == drafted) {
        last->units += units;
        return TD_OK;
    }
    td_api_delta_span span;
    memset(&span, 0, sizeof span);
    span.units = units;
    span.drafted = drafted;
    return td_buf_append(spans, &span, sizeof span);
}

td_status td_api_delta_add_text(td_api_delta *d, td_api_delta_text *to, const char *text, size_t n, bool drafted) {
    if (n == 0)
        return TD_OK;
    TD_TRY(td_buf_append(&to->text, text, n));
    return d->with_spans ? add_span(&to->spans, utf16_units(text, n), drafted) : TD_OK;
}

/* The entry of call `index`, the last one or a new one. */
static td_status call_at(td_api_delta *d, uint32_t index, td_api_delta_call **out) {
    if (d->n_calls && d->calls[d->n_calls - 1].index == index) {
        *out = &d->calls[d->n_calls - 1];
        return TD_OK;
    }
    if (d->n_calls == d->capacity) {
        size_t capacity = d->capacity ? 2 * d->capacity : 4;
        td_api_delta_call *calls = td_realloc(d->calls, capacity, sizeof *calls);
        if (!calls)
            return TD_E_NOMEM;
        d->calls = calls;
        d->capacity = capacity;
    }
    *out = &d->calls[d->n_calls++];
    **out = (td_api_delta_call){.index = index};
    td_buf_init(&(*out)->arguments, d->ceiling);
    return TD_OK;
}

td_status td_api_delta_add_event(td_api_delta *d, const td_reply_event *e, bool drafted) {
    td_api_delta_call *call;
    switch (e->kind) {
    case TD_REPLY_REASONING:
        return td_api_delta_add_text(d, &d->reasoning, e->text, e->size, drafted);
    case TD_REPLY_CONTENT:
        return td_api_delta_add_text(d, &d->content, e->text, e->size, drafted);
    case TD_REPLY_CALL_BEGIN:
        TD_TRY(call_at(d, e->index, &call));
        call->id = td_strdup(e->id);
        call->name = td_strdup(e->name);
        return call->id && call->name ? TD_OK : TD_E_NOMEM;
    case TD_REPLY_CALL_ARGUMENTS:
        TD_TRY(call_at(d, e->index, &call));
        return td_buf_append(&call->arguments, e->text, e->size);
    case TD_REPLY_CALL_END:
    case TD_REPLY_FINISH:
        break;
    }
    return TD_OK;
}

/* ---- writing ---- */

static void write_call(td_json_out *o, const td_api_delta_call *c, bool with_index) {
    td_out_begin(o, '{');
    if (with_index)
        td_out_member_int(o, "index", c->index);
    if (c->id) {
        td_out_member_str(o, "id", c->id);
        td_out_member_str(o, "type", "function");
    }
    td_out_key(o, "function");
    td_out_begin(o, '{');
    if (c->name)
        td_out_member_str(o, "name", c->name);
    td_out_member_text(o, "arguments", c->arguments.data, c->arguments.size);
    td_out_end(o, '}');
    td_out_end(o, '}');
}

static void write_calls(td_json_out *o, const td_api_delta *d, bool with_index) {
    if (d->n_calls == 0)
        return;
    td_out_key(o, "tool_calls");
    td_out_begin(o, '[');
    for (size_t i = 0; i < d->n_calls; i++)
        write_call(o, &d->calls[i], with_index);
    td_out_end(o, ']');
}

static void write_members(td_json_out *o, const td_api_delta *d, bool always_content, bool with_index) {
    if (d->content.text.size)
        td_out_member_text(o, "content", d->content.text.data, d->content.text.size);
    else if (always_content)
        td_out_member_str(o, "content", d->n_calls ? NULL : "");
    if (d->reasoning.text.size)
        td_out_member_text(o, "reasoning_content", d->reasoning.text.data, d->reasoning.text.size);
    write_calls(o, d, with_index);
}

void td_api_delta_write(td_json_out *o, const td_api_delta *d, bool role) {
    td_out_begin(o, '{');
    if (role)
        td_out_member_str(o, "role", "assistant");
    write_members(o, d, role, true);
    td_out_end(o, '}');
}

void td_api_delta_write_message(td_json_out *o, const td_api_delta *d) {
    td_out_begin(o, '{');
    td_out_member_str(o, "role", "assistant");
    write_members(o, d, true, false);
    td_out_member_null(o, "refusal"); /* OpenAI's schema asks for it */
    td_out_end(o, '}');
}

void td_api_delta_write_spans(td_json_out *o, const td_api_delta_text *t) {
    const td_api_delta_span *spans = (const td_api_delta_span *)(const void *)t->spans.data;
    td_out_begin(o, '[');
    for (size_t i = 0; i < t->spans.size / sizeof *spans; i++) {
        td_out_begin(o, '[');
        td_out_int(o, spans[i].units);
        td_out_bool(o, spans[i].drafted);
        td_out_end(o, ']');
    }
    td_out_end(o, ']');
}
