/* reply_object.c - calls written as JSON: {"name": ..., "arguments": {...}}, one, several, or an array of them.
 *
 * Members may come in any order. With the name in front, which is how models write it, the call begins with the brace
 * of its arguments and they go out as they come; otherwise they are held until the name is there. "parameters" is
 * another word for "arguments"; arguments in a string are taken out of it; members that say neither are skipped.
 *
 * Where no marker says that a call is meant ("bare"), an answer in JSON must not become one by accident: then only the
 * members of a call may be there, the name must be that of a tool, and arguments must follow. The first byte that is
 * against it makes all of it content. */
#include "text/reply_impl.h"

#include <stdio.h>
#include <string.h>

#include "format/json_scan.h"

enum {
    TOP,    /* between calls */
    KEY,    /* a key or the end of the call, at first */
    STRING, /* inside the key */
    COLON,  /* */
    VALUE,  /* a value must come */
    NAME,   /* inside the name */
    OBJECT, /* inside the arguments */
    QUOTED, /* inside a string that holds the arguments */
    SKIP,   /* inside a value that nobody needs */
    NEXT,   /* a comma or the end of the call */
};

enum { MEMBER_NAME, MEMBER_ARGUMENTS, MEMBER_OTHER };

static td_reply_step step;
static td_reply_end end;

void td_reply_object_open(td_reply *r, bool bare) {
    memset(&r->at.object, 0, sizeof r->at.object);
    r->at.object.bare = bare;
    if (bare)
        td_buf_clear(&r->raw);
    r->step = step;
    r->end = end;
}

/* Not a call, or a broken one. c has been put into `raw`, unless the call has begun. */
static td_status bad(td_reply *r, char c, const char *what) {
    return r->begun ? td_reply_call_fault(r, &c, 1, "%s", what) : td_reply_call_reject(r);
}

/* A value that `result` says is not JSON. */
static td_status bad_value(td_reply *r, char c, td_reply_json_result result) {
    char deep[60];
    snprintf(deep, sizeof deep, "arguments nested deeper than %d levels", TD_REPLY_MAX_NESTING);
    return bad(r, c, result == TD_REPLY_JSON_DEEP ? deep : "the arguments are not JSON");
}

/* ---- between calls ---- */

static td_status open_call(td_reply *r) {
    td_reply_object *o = &r->at.object;
    o->state = KEY;
    o->named = o->have = false;
    td_buf_clear(&r->name);
    td_buf_clear(&r->value);
    return TD_OK;
}

/* The white space in front of it belongs to the block: it separates no text. */
static const char block_end[] = "</tool_call>";

static td_status leave(td_reply *r) {
    td_reply_call_leave(r);
    return TD_OK;
}

/* Behind the block's last call, inside its end. */
static td_status block_end_char(td_reply *r, char c) {
    td_reply_object *o = &r->at.object;
    if (c != block_end[o->n_end])
        return td_reply_call_reject(r);
    return block_end[++o->n_end] ? TD_OK : leave(r);
}

static td_status top_char(td_reply *r, char c) {
    td_reply_object *o = &r->at.object;
    if (o->n_end > 0 || (o->any && c == block_end[0]))
        return block_end_char(r, c);
    if (c == '{')
        return open_call(r);
    if (td_reply_is_space(c) && r->raw.size < TD_REPLY_MAX_GAP)
        return TD_OK;
    if (o->any && (c == ',' || c == ';'))
        return TD_OK;
    if (!o->any && !o->list && c == '[') {
        o->list = true;
        return TD_OK;
    }
    return o->any && o->list && c == ']' ? leave(r) : td_reply_call_reject(r);
}

/* ---- the call ---- */

static td_status begin(td_reply *r) {
    TD_TRY(td_reply_call_begin(r));
    return r->value.size ? td_reply_write(r, TD_REPLY_CALL_ARGUMENTS, r->value.data, r->value.size) : TD_OK;
}

static td_status close_call(td_reply *r, char c) {
    td_reply_object *o = &r->at.object;
    if (!o->named || (o->bare && !o->have))
        return bad(r, c, "a call without a name");
    if (!o->have)
        TD_TRY(td_buf_puts(&r->value, "{}"));
    if (!r->begun)
        TD_TRY(begin(r));
    o->any = true;
    o->state = TOP;
    return td_reply_call_complete(r);
}

/* `word` as text, out of JSON; into `spare`. False: it holds what neither a name nor JSON can (U+0000). */
static td_status decode(td_reply *r, bool *ok) {
    const char *text;
    size_t size;
    td_json_scan scan;
    td_buf_clear(&r->spare);
    td_json_scan_init(&scan, r->word.data, r->word.size, 0, 1, "a string");
    td_status st = td_json_scan_string(&scan, &text, &size, NULL);
    *ok = st == TD_OK;
    if (*ok)
        st = td_buf_append(&r->spare, text, size);
    td_json_scan_free(&scan);
    return st == TD_E_FORMAT ? TD_OK : st;
}

static td_status name_done(td_reply *r, char c) {
    td_reply_object *o = &r->at.object;
    bool ok;
    TD_TRY(decode(r, &ok));
    ok = ok && !o->named && r->spare.size > 0 && r->spare.size <= TD_REPLY_MAX_NAME;
    for (size_t i = 0; ok && i < r->spare.size; i++)
        ok = td_reply_is_name(r->spare.data[i]);
    if (!ok)
        return bad(r, c, "a name that no tool can have");
    TD_TRY(td_buf_append(&r->name, r->spare.data, r->spare.size));
    if (o->bare && !td_reply_tools_find(r->tools, r->name.data))
        return td_reply_call_reject(r);
    o->named = true;
    o->state = NEXT;
    return o->have ? begin(r) : TD_OK;
}

/* The arguments were a string: what it holds must be an object; nothing counts as an empty one. */
static td_status quoted_done(td_reply *r, char c) {
    td_reply_object *o = &r->at.object;
    td_reply_json_result result = TD_REPLY_JSON_BAD;
    bool ok;
    TD_TRY(decode(r, &ok));
    if (ok && r->spare.size == 0)
        TD_TRY(td_buf_puts(&r->spare, "{}"));
    if (ok)
        TD_TRY(td_reply_json_whole(r->spare.data, r->spare.size, &r->value, &result));
    if (result != TD_REPLY_JSON_DONE || r->value.data[0] != '{')
        return bad_value(r, c, result);
    o->have = true;
    o->state = NEXT;
    return o->named ? begin(r) : TD_OK;
}

/* ---- members ---- */

static td_status key_char(td_reply *r, char c) {
    td_reply_object *o = &r->at.object;
    if (td_reply_is_space(c))
        return TD_OK;
    if (c == '}')
        return close_call(r, c);
    if (c != '"')
        return bad(r, c, "expected a key");
    o->state = STRING;
    td_buf_clear(&r->word);
    td_reply_json_init(&o->json);
    td_reply_json_result result;
    return td_reply_json_step(&o->json, c, &r->word, &result);
}

static bool key_is(const td_reply *r, const char *key) {
    size_t n = strlen(key);
    return r->word.size == n + 2 && memcmp(r->word.data + 1, key, n) == 0;
}

static uint8_t member_of(const td_reply *r) {
    if (key_is(r, "name"))
        return MEMBER_NAME;
    return key_is(r, "arguments") || key_is(r, "parameters") ? MEMBER_ARGUMENTS : MEMBER_OTHER;
}

static td_status string_char(td_reply *r, char c) {
    td_reply_object *o = &r->at.object;
    td_reply_json_result result;
    TD_TRY(td_reply_json_step(&o->json, c, &r->word, &result));
    if (result == TD_REPLY_JSON_BAD || r->word.size > TD_REPLY_MAX_NAME)
        return bad(r, c, "a broken key");
    if (result != TD_REPLY_JSON_DONE)
        return TD_OK;
    o->member = member_of(r);
    o->state = COLON;
    bool known = o->member != MEMBER_OTHER || key_is(r, "id") || key_is(r, "type");
    return o->bare && !known ? bad(r, c, "not a call") : TD_OK;
}

static td_status colon_char(td_reply *r, char c) {
    if (td_reply_is_space(c))
        return TD_OK;
    if (c != ':')
        return bad(r, c, "expected ':' behind a key");
    r->at.object.state = VALUE;
    return TD_OK;
}

static td_status next_char(td_reply *r, char c) {
    if (td_reply_is_space(c))
        return TD_OK;
    if (c == '}')
        return close_call(r, c);
    if (c != ',')
        return bad(r, c, "expected ',' or '}' behind a member");
    r->at.object.state = KEY;
    return TD_OK;
}

/* ---- their values ---- */

static td_status value_part(td_reply *r, char c);

static td_status value_char(td_reply *r, char c) {
    td_reply_object *o = &r->at.object;
    if (td_reply_is_space(c))
        return TD_OK;
    td_reply_json_init(&o->json);
    td_buf_clear(&r->word);
    if (o->member == MEMBER_NAME && c != '"')
        return bad(r, c, "a name that is no string");
    if (o->member == MEMBER_ARGUMENTS && (o->have || (c != '{' && c != '"' && c != 'n')))
        return bad(r, c, o->have ? "arguments given twice" : "arguments that are no object");
    if (o->member == MEMBER_NAME)
        o->state = NAME;
    else if (o->member == MEMBER_ARGUMENTS && c != 'n')
        o->state = c == '{' ? OBJECT : QUOTED;
    else
        o->state = SKIP;
    if (o->state == OBJECT && o->named)
        TD_TRY(begin(r));
    return value_part(r, c);
}

/* Where the JSON of the value under way goes. */
static td_status value_out(td_reply *r, td_buf **out) {
    if (r->at.object.state == OBJECT && r->begun)
        return td_reply_out(r, TD_REPLY_CALL_ARGUMENTS, out);
    *out = r->at.object.state == OBJECT ? &r->value : &r->word;
    if (r->at.object.state == SKIP)
        td_buf_clear(*out);
    return TD_OK;
}

static td_status value_done(td_reply *r, char c) {
    td_reply_object *o = &r->at.object;
    if (o->state == NAME)
        return name_done(r, c);
    if (o->state == QUOTED)
        return quoted_done(r, c);
    o->have = o->have || o->state == OBJECT;
    o->state = NEXT;
    return TD_OK;
}

static td_status value_part(td_reply *r, char c) {
    td_reply_object *o = &r->at.object;
    td_reply_json_result result;
    td_buf *out;
    TD_TRY(value_out(r, &out));
    TD_TRY(td_reply_json_step(&o->json, c, out, &result));
    switch (result) {
    case TD_REPLY_JSON_MORE:
        return TD_OK;
    case TD_REPLY_JSON_DONE:
        return value_done(r, c);
    case TD_REPLY_JSON_OVER: /* a number to skip */
        o->state = NEXT;
        return next_char(r, c);
    default:
        return bad_value(r, c, result);
    }
}

/* ---- the machine ---- */

static td_status step(td_reply *r, char c) {
    if (!r->begun)
        TD_TRY(td_buf_putc(&r->raw, c));
    if (r->raw.size > TD_REPLY_MAX_VALUE)
        return td_reply_call_reject(r);
    switch (r->at.object.state) {
    case TOP:
        return top_char(r, c);
    case KEY:
        return key_char(r, c);
    case STRING:
        return string_char(r, c);
    case COLON:
        return colon_char(r, c);
    case VALUE:
        return value_char(r, c);
    case NEXT:
        return next_char(r, c);
    default:
        return value_part(r, c);
    }
}

static td_status end(td_reply *r) {
    return r->begun ? td_reply_call_fault(r, "", 0, "the answer ended inside the call") : td_reply_call_reject(r);
}
