/* reply_qwen.c - Qwen 3.5's calls: <function=NAME> <parameter=NAME> text </parameter> ... </function>.
 *
 * The format has no escapes, so where a value ends is a judgement: "</parameter>" ends it when a tag follows that can
 * follow it, "</function>" (the tag before it was forgotten) when "</tool_call>" follows, "<parameter=" at the start of
 * a line. Anything else is text, so a value may hold these words. One newline belongs to the tags at either end.
 *
 * Text for a parameter that is a string goes out as it comes, less a newline or a tag that may turn out to be its end.
 * Other values are held, and become JSON when they are complete. For "string or null", the usual shape of an optional
 * text, only as much is held as may still be "null". */
#include "text/reply_impl.h"

#include <string.h>

enum {
    OPEN,       /* behind <tool_call>: <function=, or a JSON object */
    NAME,       /* up to '>' */
    BARE_BODY,  /* behind <function=NAME> without <tool_call>: a tag that proves it a call */
    BODY,       /* between parameters */
    BODY_TAG,   /* */
    KEY,        /* name of a parameter, up to '>' */
    VALUE,      /* */
    VALUE_TAG,  /* in a value, a tag may have begun */
    VALUE_GAP,  /* behind </parameter> or </function>: white space */
    VALUE_NEXT, /* in the tag behind it */
    AFTER,      /* behind </function> */
};

/* How a value is written. */
enum { TEXT, TEXT_OR_NULL, HELD };

/* Tags, as they stand in the sets that a state looks them up in. */
enum { T_PARAMETER, T_FUNCTION_END, T_BLOCK_END };
#define PARAMETER "<parameter="
#define PARAMETER_END "</parameter>"
#define FUNCTION "<function="
#define FUNCTION_END "</function>"
#define BLOCK_END "</tool_call>"

static td_reply_step step;
static td_reply_end end;

void td_reply_qwen_open(td_reply *r, bool bare) {
    memset(&r->at.qwen, 0, sizeof r->at.qwen);
    r->at.qwen.state = bare ? NAME : OPEN;
    r->at.qwen.bare = bare;
    td_buf_clear(&r->name);
    r->step = step;
    r->end = end;
}

/* Takes c into `tag` and looks it up. */
static int match_tag(td_reply_qwen *q, char c, const char *const *set, int n) {
    q->tag[q->n_tag++] = c;
    return td_reply_match(set, n, q->tag, q->n_tag);
}

static td_status give_back(td_reply *r, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        TD_TRY(r->step(r, text[i]));
    return TD_OK;
}

/* ---- the head ---- */

static td_status open_char(td_reply *r, char c) {
    static const char *const set[] = {FUNCTION};
    td_reply_qwen *q = &r->at.qwen;
    if (q->n_tag == 0 && (c == '{' || c == '[')) {
        td_reply_object_open(r, false);
        return r->step(r, c);
    }
    TD_TRY(td_buf_putc(&r->raw, c));
    if (q->n_tag == 0 && td_reply_is_space(c) && r->raw.size < TD_REPLY_MAX_GAP)
        return TD_OK;
    int found = match_tag(q, c, set, 1);
    if (found == TD_REPLY_NO_MATCH)
        return td_reply_call_reject(r);
    if (found == 0)
        q->state = NAME;
    return TD_OK;
}

static td_status begin(td_reply *r) {
    td_reply_qwen *q = &r->at.qwen;
    q->state = BODY;
    q->first = true;
    q->tool = td_reply_tools_find(r->tools, r->name.data);
    TD_TRY(td_reply_call_begin(r));
    return td_reply_call_write(r, "{");
}

static td_status name_char(td_reply *r, char c) {
    td_reply_qwen *q = &r->at.qwen;
    TD_TRY(td_buf_putc(&r->raw, c));
    q->n_tag = 0;
    if (c == '>' && r->name.size > 0) {
        if (!q->bare)
            return begin(r);
        q->state = BARE_BODY;
        return td_reply_tools_find(r->tools, r->name.data) ? TD_OK : td_reply_call_reject(r);
    }
    if (!td_reply_is_name(c) || r->name.size == TD_REPLY_MAX_NAME)
        return td_reply_call_reject(r);
    return td_buf_putc(&r->name, c);
}

static td_status complete(td_reply *r);

static td_status bare_body_char(td_reply *r, char c) {
    static const char *const set[] = {PARAMETER, FUNCTION_END};
    td_reply_qwen *q = &r->at.qwen;
    TD_TRY(td_buf_putc(&r->raw, c));
    if (q->n_tag == 0 && td_reply_is_space(c) && r->raw.size < TD_REPLY_MAX_GAP)
        return TD_OK;
    int found = match_tag(q, c, set, 2);
    if (found == TD_REPLY_PARTIAL)
        return TD_OK;
    if (found == TD_REPLY_NO_MATCH)
        return td_reply_call_reject(r);
    q->n_tag = 0;
    TD_TRY(begin(r));
    if (found == T_FUNCTION_END)
        return complete(r);
    td_buf_clear(&r->word);
    q->state = KEY;
    return TD_OK;
}

/* ---- between parameters ---- */

static td_status complete(td_reply *r) {
    r->at.qwen.state = AFTER;
    r->at.qwen.n_tag = 0;
    TD_TRY(td_reply_call_write(r, "}"));
    return td_reply_call_complete(r);
}

/* A tag that stands behind a parameter, or behind the function's own. */
static td_status structure(td_reply *r, int tag) {
    td_reply_qwen *q = &r->at.qwen;
    q->n_tag = 0;
    if (tag == T_PARAMETER) {
        td_buf_clear(&r->word);
        q->state = KEY;
        return TD_OK;
    }
    TD_TRY(complete(r));
    if (tag == T_BLOCK_END)
        td_reply_call_leave(r);
    return TD_OK;
}

static td_status body_char(td_reply *r, char c) {
    static const char *const set[] = {PARAMETER, FUNCTION_END, BLOCK_END};
    td_reply_qwen *q = &r->at.qwen;
    if (q->n_tag == 0 && td_reply_is_space(c))
        return TD_OK;
    int found = match_tag(q, c, set, 3);
    if (found == TD_REPLY_PARTIAL)
        return TD_OK;
    if (found == TD_REPLY_NO_MATCH) {
        TD_TRY(td_reply_call_fault(r, q->tag, q->n_tag - 1u, "expected " PARAMETER " or " FUNCTION_END));
        return td_reply_text_step(r, c);
    }
    return structure(r, found);
}

/* ---- values ---- */

static bool may_be_null(const td_buf *text) {
    return text->size <= 4 && memcmp("null", text->data, text->size) == 0;
}

static td_status write_text(td_reply *r, const char *text, size_t n) {
    td_buf *out;
    TD_TRY(td_reply_out(r, TD_REPLY_CALL_ARGUMENTS, &out));
    for (size_t i = 0; i < n; i++)
        TD_TRY(td_reply_json_escape(out, text[i]));
    return TD_OK;
}

static td_status begin_value(td_reply *r) {
    td_reply_qwen *q = &r->at.qwen;
    if (!q->first)
        TD_TRY(td_reply_call_write(r, ","));
    TD_TRY(td_reply_call_string(r, r->word.data, r->word.size));
    TD_TRY(td_reply_call_write(r, ":"));
    q->first = false;
    q->types = td_reply_tool_types(q->tool, r->word.data);
    q->value = q->types == TD_REPLY_STRING ? TEXT : q->types == (TD_REPLY_STRING | TD_REPLY_NULL) ? TEXT_OR_NULL : HELD;
    q->state = VALUE;
    q->fresh = true;
    q->newline = false;
    td_buf_clear(&r->value);
    return q->value == TEXT ? td_reply_call_write(r, "\"") : TD_OK;
}

static td_status key_char(td_reply *r, char c) {
    if (c == '>' && r->word.size > 0)
        return begin_value(r);
    if (td_reply_is_name(c) && r->word.size < TD_REPLY_MAX_NAME)
        return td_buf_putc(&r->word, c);
    TD_TRY(td_buf_putc(&r->word, c));
    return td_reply_call_fault(r, r->word.data, r->word.size, "expected the name of a parameter and '>'");
}

/* A byte of the value that is certain to be one. */
static td_status put(td_reply *r, char c) {
    td_reply_qwen *q = &r->at.qwen;
    if (q->value == TEXT)
        return write_text(r, &c, 1);
    TD_TRY(td_buf_putc(&r->value, c));
    if (q->value == TEXT_OR_NULL && !may_be_null(&r->value)) {
        q->value = TEXT;
        TD_TRY(td_reply_call_write(r, "\""));
        return write_text(r, r->value.data, r->value.size);
    }
    if (r->value.size <= TD_REPLY_MAX_VALUE)
        return TD_OK;
    return td_reply_call_fault(r, r->value.data, r->value.size, "a parameter of more than %zu bytes that is no text",
                               TD_REPLY_MAX_VALUE);
}

/* A byte of the value; a newline waits, and the one behind <parameter=...> is none of it. */
static td_status value_byte(td_reply *r, char c) {
    td_reply_qwen *q = &r->at.qwen;
    bool fresh = q->fresh, held = q->newline;
    q->fresh = false;
    q->newline = c == '\n' && !fresh;
    if (held) {
        TD_TRY(put(r, '\n'));
        if (r->step != step)
            return td_reply_text_step(r, c);
    }
    return c == '\n' ? TD_OK : put(r, c);
}

/* The JSON type of a text that is JSON. */
static unsigned type_of(char first) {
    switch (first) {
    case '"':
        return TD_REPLY_STRING;
    case '{':
        return TD_REPLY_OBJECT;
    case '[':
        return TD_REPLY_ARRAY;
    case 't':
    case 'f':
        return TD_REPLY_BOOLEAN;
    case 'n':
        return TD_REPLY_NULL;
    default:
        return TD_REPLY_NUMBER;
    }
}

/* Python's names of true, false and none, where the schema has a place for them. */
static const char *python_literal(unsigned types, const char *text, size_t size) {
    if (types & TD_REPLY_BOOLEAN && size == 4 && memcmp(text, "True", 4) == 0)
        return "true";
    if (types & TD_REPLY_BOOLEAN && size == 5 && memcmp(text, "False", 5) == 0)
        return "false";
    return types & TD_REPLY_NULL && size == 4 && memcmp(text, "None", 4) == 0 ? "null" : NULL;
}

/* A held value: JSON when it is JSON, unless the schema allows strings but not what the JSON is. */
static td_status write_held(td_reply *r) {
    unsigned types = r->at.qwen.types;
    const char *text = td_buf_str(&r->value), *python;
    td_reply_json_result result;
    if (!text)
        return TD_E_NOMEM;
    if ((python = python_literal(types, text, r->value.size)) != NULL)
        return td_reply_call_write(r, python);
    td_buf_clear(&r->spare);
    TD_TRY(td_reply_json_whole(text, r->value.size, &r->spare, &result));
    bool json = result == TD_REPLY_JSON_DONE;
    if (json && types & TD_REPLY_STRING)
        json = (types & type_of(r->spare.data[0]) & ~(unsigned)TD_REPLY_STRING) != 0;
    if (json)
        return td_reply_write(r, TD_REPLY_CALL_ARGUMENTS, r->spare.data, r->spare.size);
    if (result == TD_REPLY_JSON_DEEP && !(types & TD_REPLY_STRING))
        return td_reply_call_fault(r, text, r->value.size, "arguments nested deeper than %d levels",
                                   TD_REPLY_MAX_NESTING);
    return td_reply_call_string(r, text, r->value.size);
}

static td_status end_value(td_reply *r) {
    td_reply_qwen *q = &r->at.qwen;
    if (q->value == TEXT)
        return td_reply_call_write(r, "\"");
    if (q->value == HELD)
        return write_held(r);
    if (r->value.size == 4)
        return td_reply_call_write(r, "null");
    return td_reply_call_string(r, r->value.data, r->value.size);
}

/* ---- where a value ends ---- */

static td_status value_char(td_reply *r, char c) {
    td_reply_qwen *q = &r->at.qwen;
    if (c != '<')
        return value_byte(r, c);
    q->tag[0] = c;
    q->n_tag = 1;
    q->state = VALUE_TAG;
    return TD_OK;
}

/* What looked like the end of the value was text: `front` and, when it is there, white space, and the tag behind them,
 * which may begin another end. */
static td_status not_the_end(td_reply *r, const char *front, bool gap) {
    td_reply_qwen *q = &r->at.qwen;
    char rest[TD_REPLY_MAX_MARKER];
    size_t n = q->n_tag;
    memcpy(rest, q->tag, n);
    q->n_tag = 0;
    q->state = VALUE;
    for (; *front; front++)
        TD_TRY(r->step == step ? value_byte(r, *front) : td_reply_text_step(r, *front));
    for (size_t i = 0; gap && i < r->word.size; i++)
        TD_TRY(r->step == step ? value_byte(r, r->word.data[i]) : td_reply_text_step(r, r->word.data[i]));
    return give_back(r, rest, n);
}

static td_status value_tag_char(td_reply *r, char c) {
    static const char *const set[] = {PARAMETER, FUNCTION_END, PARAMETER_END};
    td_reply_qwen *q = &r->at.qwen;
    int found = match_tag(q, c, set, 3);
    if (found == TD_REPLY_PARTIAL)
        return TD_OK;
    if (found == T_PARAMETER && (q->newline || q->fresh)) { /* at the start of a line */
        TD_TRY(end_value(r));
        return r->step == step ? structure(r, found) : td_reply_text_replay(r, PARAMETER, strlen(PARAMETER));
    }
    if (found <= 0) { /* text, but for the last byte, which may begin another tag */
        char text[TD_REPLY_MAX_MARKER + 1] = {0};
        memcpy(text, q->tag, q->n_tag - 1u);
        q->tag[0] = c;
        q->n_tag = 1;
        return not_the_end(r, text, false);
    }
    q->function = found == T_FUNCTION_END;
    q->n_tag = 0;
    q->state = VALUE_GAP;
    td_buf_clear(&r->word);
    return TD_OK;
}

static td_status value_gap_char(td_reply *r, char c) {
    td_reply_qwen *q = &r->at.qwen;
    if (td_reply_is_space(c) && r->word.size < TD_REPLY_MAX_GAP)
        return td_buf_putc(&r->word, c);
    if (c == '<')
        q->state = VALUE_NEXT;
    q->tag[q->n_tag++] = c;
    return c == '<' ? TD_OK : not_the_end(r, q->function ? FUNCTION_END : PARAMETER_END, true);
}

static td_status value_next_char(td_reply *r, char c) {
    static const char *const set[] = {PARAMETER, FUNCTION_END, BLOCK_END}, *const block_end[] = {"", "", BLOCK_END};
    td_reply_qwen *q = &r->at.qwen;
    int found = match_tag(q, c, q->function ? block_end : set, 3);
    if (found == TD_REPLY_PARTIAL)
        return TD_OK;
    if (found == TD_REPLY_NO_MATCH)
        return not_the_end(r, q->function ? FUNCTION_END : PARAMETER_END, true);
    TD_TRY(end_value(r));
    return r->step == step ? structure(r, found) : td_reply_text_replay(r, set[found], strlen(set[found]));
}

/* ---- behind a function ---- */

static td_status after_char(td_reply *r, char c) {
    static const char *const set[] = {BLOCK_END, FUNCTION};
    td_reply_qwen *q = &r->at.qwen;
    TD_TRY(td_buf_putc(&r->raw, c));
    if (q->n_tag == 0 && td_reply_is_space(c) && r->raw.size < TD_REPLY_MAX_GAP)
        return TD_OK;
    int found = match_tag(q, c, set, 2);
    if (found == TD_REPLY_NO_MATCH)
        return td_reply_call_reject(r);
    if (found == 0) {
        td_reply_call_leave(r);
    } else if (found == 1) {
        td_buf_clear(&r->name);
        q->n_tag = 0;
        q->state = NAME;
    }
    return TD_OK;
}

static td_status step(td_reply *r, char c) {
    switch (r->at.qwen.state) {
    case OPEN:
        return open_char(r, c);
    case NAME:
        return name_char(r, c);
    case BARE_BODY:
        return bare_body_char(r, c);
    case BODY:
        return body_char(r, c);
    case KEY:
        return key_char(r, c);
    case VALUE:
        return value_char(r, c);
    case VALUE_TAG:
        return value_tag_char(r, c);
    case VALUE_GAP:
        return value_gap_char(r, c);
    case VALUE_NEXT:
        return value_next_char(r, c);
    default:
        return after_char(r, c);
    }
}

/* ---- the end of the text ---- */

/* Shows what there is of a value that the text broke off: a beginning of JSON. */
static td_status end_open_value(td_reply *r) {
    td_reply_qwen *q = &r->at.qwen;
    td_reply_json_result result = TD_REPLY_JSON_BAD;
    if (q->value == TEXT)
        return TD_OK;
    td_buf_clear(&r->spare);
    if (q->value == HELD && !(q->types & TD_REPLY_STRING))
        TD_TRY(td_reply_json_whole(r->value.data, r->value.size, &r->spare, &result));
    if (result == TD_REPLY_JSON_DONE || result == TD_REPLY_JSON_MORE)
        return td_reply_write(r, TD_REPLY_CALL_ARGUMENTS, r->spare.data, r->spare.size);
    TD_TRY(td_reply_call_write(r, "\""));
    return write_text(r, r->value.data, r->value.size);
}

/* The tag under way was text. */
static td_status end_tag(td_reply *r) {
    td_reply_qwen *q = &r->at.qwen;
    char text[TD_REPLY_MAX_MARKER + 1] = {0};
    memcpy(text, q->tag, q->n_tag);
    q->n_tag = 0;
    return not_the_end(r, text, false);
}

static td_status end_inside(td_reply *r) {
    td_reply_qwen *q = &r->at.qwen;
    bool closed = q->state == VALUE_GAP || q->state == VALUE_NEXT;
    if (closed && q->function && q->n_tag == 0) { /* </function>, and not even the start of something else */
        TD_TRY(end_value(r));
        return r->step == step ? structure(r, T_BLOCK_END) : TD_OK;
    }
    if (closed)
        TD_TRY(end_value(r));
    else if (q->state == VALUE_TAG)
        TD_TRY(end_tag(r));
    if (q->state == VALUE)
        TD_TRY(end_open_value(r));
    if (q->state == KEY && r->word.size > 0)
        TD_TRY(td_reply_call_string(r, r->word.data, r->word.size));
    if (r->step != step)
        return TD_OK;
    return td_reply_call_fault(r, "", 0, "the answer ended inside the call");
}

static td_status end(td_reply *r) {
    return r->begun ? end_inside(r) : td_reply_call_reject(r);
}
