/* reply_text.c - text between blocks: thoughts, content, and the markers that open and close things.
 *
 * `mark` holds what may still become a marker, at most a few bytes; a byte that rules it out releases the front of it
 * at once. White space waits in the voice's `gap` until what follows tells whether it separates text or surrounds a
 * block. Markers where they mean nothing vanish. */
#include "text/reply_impl.h"

#include <string.h>

static td_reply_step channel_name;
static td_reply_end channel_name_end;

/* ---- which markers there are ---- */

static const td_reply_marker channel_markers[] = {
    {"<|channel>", TD_REPLY_ACT_THINK}, {"<channel|>", TD_REPLY_ACT_ANSWER}, {NULL, 0}};
static const td_reply_marker tag_markers[] = {
    {"<think>", TD_REPLY_ACT_THINK}, {"</think>", TD_REPLY_ACT_ANSWER}, {NULL, 0}};
static const td_reply_marker gemma_markers[] = {
    {"<|tool_call>", TD_REPLY_ACT_CALL},     {"<tool_call|>", TD_REPLY_ACT_DROP},
    {"<|tool_response>", TD_REPLY_ACT_DROP}, {"<tool_response|>", TD_REPLY_ACT_DROP},
    {"<|\"|>", TD_REPLY_ACT_QUOTE},          {NULL, 0}};
static const td_reply_marker qwen_markers[] = {
    {"<tool_call>", TD_REPLY_ACT_CALL},      {"</tool_call>", TD_REPLY_ACT_DROP},
    {"<function=", TD_REPLY_ACT_FUNCTION},   {"<tool_response>", TD_REPLY_ACT_DROP},
    {"</tool_response>", TD_REPLY_ACT_DROP}, {NULL, 0}};
static const td_reply_marker json_markers[] = {{"<tool_call>", TD_REPLY_ACT_CALL},
                                               {"</tool_call>", TD_REPLY_ACT_DROP},
                                               {"[TOOL_CALLS]", TD_REPLY_ACT_CALL},
                                               {"<|python_tag|>", TD_REPLY_ACT_CALL},
                                               {NULL, 0}};

static void add_markers(td_reply *r, const td_reply_marker *table) {
    for (; table->text; table++)
        r->markers[r->n_markers++] = *table;
}

void td_reply_text_open(td_reply *r, bool inside_reasoning) {
    if (r->format.think != TD_REPLY_THINK_NONE)
        add_markers(r, r->format.think == TD_REPLY_THINK_CHANNEL ? channel_markers : tag_markers);
    if (r->format.calls == TD_REPLY_CALLS_GEMMA4)
        add_markers(r, gemma_markers);
    if (r->format.calls == TD_REPLY_CALLS_QWEN)
        add_markers(r, qwen_markers);
    if (r->format.calls == TD_REPLY_CALLS_JSON)
        add_markers(r, json_markers);
    r->step = td_reply_text_step;
    r->speaking = TD_REPLY_CONTENT;
    if (inside_reasoning && r->format.think != TD_REPLY_THINK_NONE) {
        td_reply_text_seal(r);
        r->speaking = TD_REPLY_REASONING;
    }
}

/* ---- text ---- */

void td_reply_text_seal(td_reply *r) {
    for (int i = 0; i < 2; i++) {
        td_reply_voice *v = &r->voice[i];
        v->sealed = !v->started || v->gap.size > 0;
        v->marked = true;
    }
}

static td_status release_gap(td_reply *r, td_reply_event_kind kind) {
    td_buf *gap = &r->voice[kind].gap;
    if (gap->size == 0)
        return TD_OK;
    TD_TRY(td_reply_write(r, kind, gap->data, gap->size));
    td_buf_clear(gap);
    return TD_OK;
}

/* A byte of text that is no part of a marker. */
static td_status speak(td_reply *r, char c) {
    td_reply_voice *v = &r->voice[r->speaking];
    if (r->n_markers > 0 && td_reply_is_space(c)) {
        if (v->sealed)
            return TD_OK;
        if (v->gap.size < TD_REPLY_MAX_GAP)
            return td_buf_putc(&v->gap, c);
    }
    TD_TRY(release_gap(r, r->speaking));
    v->started = true;
    v->sealed = v->marked = false;
    return td_reply_write(r, r->speaking, &c, 1);
}

/* The answer itself may be a call. Tried once: what comes back from it may still wait in `mark`, unsaid. */
static bool opens_bare_object(const td_reply *r, char c) {
    return (c == '{' || c == '[') && r->format.calls == TD_REPLY_CALLS_JSON && r->tools && !r->replaying &&
           !r->bare_tried && r->speaking == TD_REPLY_CONTENT && !r->voice[TD_REPLY_CONTENT].started;
}

static td_status text_byte(td_reply *r, char c) {
    if (!opens_bare_object(r, c))
        return speak(r, c);
    r->bare_tried = true;
    td_reply_object_open(r, true);
    return r->step(r, c);
}

/* ---- markers ---- */

/* Content stands at the beginning of a line, or of itself. */
static bool at_line_start(const td_reply *r) {
    const td_reply_voice *v = &r->voice[TD_REPLY_CONTENT];
    return !v->started || v->marked || (v->gap.size > 0 && memchr(v->gap.data, '\n', v->gap.size));
}

static td_status speak_all(td_reply *r, const char *text) {
    for (; *text; text++)
        TD_TRY(speak(r, *text));
    return TD_OK;
}

static void think(td_reply *r) {
    bool literal = r->format.think == TD_REPLY_THINK_TAGS && !at_line_start(r);
    td_reply_text_seal(r);
    if (r->speaking == TD_REPLY_CONTENT && literal)
        return;
    r->speaking = TD_REPLY_REASONING;
    if (r->format.think == TD_REPLY_THINK_CHANNEL && !r->replaying) {
        td_buf_clear(&r->raw);
        r->step = channel_name;
        r->end = channel_name_end;
    }
}

static void open_block(td_reply *r) {
    td_reply_text_seal(r);
    if (r->replaying)
        return;
    td_buf_clear(&r->raw);
    if (r->format.calls == TD_REPLY_CALLS_GEMMA4)
        td_reply_gemma_open(r);
    else if (r->format.calls == TD_REPLY_CALLS_QWEN)
        td_reply_qwen_open(r, false);
    else
        td_reply_object_open(r, false);
}

static td_status open_function(td_reply *r, const char *marker) {
    if (r->replaying || !r->tools || r->speaking == TD_REPLY_REASONING || !at_line_start(r))
        return speak_all(r, marker);
    td_buf_clear(&r->raw);
    TD_TRY(td_buf_puts(&r->raw, marker));
    td_reply_qwen_open(r, true);
    return TD_OK;
}

static td_status act(td_reply *r, const td_reply_marker *m) {
    switch (m->act) {
    case TD_REPLY_ACT_THINK:
        think(r);
        return TD_OK;
    case TD_REPLY_ACT_ANSWER:
        td_reply_text_seal(r);
        r->speaking = TD_REPLY_CONTENT;
        return TD_OK;
    case TD_REPLY_ACT_CALL:
        open_block(r);
        return TD_OK;
    case TD_REPLY_ACT_FUNCTION:
        return open_function(r, m->text);
    case TD_REPLY_ACT_QUOTE:
        return speak(r, '"');
    case TD_REPLY_ACT_DROP:
        td_reply_text_seal(r);
        return TD_OK;
    }
    return TD_OK;
}

/* The marker that `mark` equals; else NULL and whether it begins one. */
static const td_reply_marker *match(const td_reply *r, bool *partial) {
    *partial = false;
    for (size_t i = 0; i < r->n_markers; i++) {
        const td_reply_marker *m = &r->markers[i];
        size_t size = strlen(m->text);
        if (r->n_mark > size || memcmp(m->text, r->mark, r->n_mark) != 0)
            continue;
        if (r->n_mark == size)
            return m;
        *partial = true;
    }
    return NULL;
}

/* The first held byte is text. A bare object may open with it, and then takes the others. */
static td_status release_first(td_reply *r) {
    char rest[TD_REPLY_MAX_MARKER], first = r->mark[0];
    size_t n = --r->n_mark;
    memmove(r->mark, r->mark + 1, n);
    TD_TRY(text_byte(r, first));
    if (r->step == td_reply_text_step)
        return TD_OK;
    memcpy(rest, r->mark, n);
    r->n_mark = 0;
    for (size_t i = 0; i < n; i++)
        TD_TRY(r->step(r, rest[i]));
    return TD_OK;
}

td_status td_reply_text_step(td_reply *r, char c) {
    if (r->n_mark == 0 && c != '<' && c != '[')
        return text_byte(r, c);
    r->mark[r->n_mark++] = c;
    while (r->n_mark > 0) {
        bool partial;
        const td_reply_marker *m = match(r, &partial);
        if (m) {
            r->n_mark = 0;
            return act(r, m);
        }
        if (partial)
            return TD_OK;
        TD_TRY(release_first(r));
    }
    return TD_OK;
}

td_status td_reply_text_replay(td_reply *r, const char *text, size_t size) {
    bool before = r->replaying;
    r->replaying = true;
    for (size_t i = 0; i < size; i++)
        TD_TRY(td_reply_text_step(r, text[i]));
    r->replaying = before;
    return TD_OK;
}

td_status td_reply_text_end(td_reply *r) {
    for (size_t i = 0; i < r->n_mark; i++)
        TD_TRY(speak(r, r->mark[i]));
    r->n_mark = 0;
    return r->voice[r->speaking].marked ? TD_OK : release_gap(r, r->speaking);
}

/* ---- the name of Gemma's channel: "thought", which is not part of the thoughts ---- */

static const char channel_thought[] = "thought";

static td_status channel_name_end(td_reply *r) {
    r->step = td_reply_text_step;
    if (r->raw.size == sizeof channel_thought - 1)
        return TD_OK;
    return r->raw.size ? td_reply_text_replay(r, r->raw.data, r->raw.size) : TD_OK;
}

static td_status channel_name(td_reply *r, char c) {
    size_t n = r->raw.size;
    if (n < sizeof channel_thought - 1 && c == channel_thought[n])
        return td_buf_putc(&r->raw, c);
    r->step = td_reply_text_step;
    bool whole = n == sizeof channel_thought - 1 && (td_reply_is_space(c) || c == '<');
    if (!whole && n > 0)
        TD_TRY(td_reply_text_replay(r, r->raw.data, n));
    return td_reply_text_step(r, c);
}
