/* reply_impl.h - what the files of the reply parser share.
 *
 * The reply is a byte machine: `step` is the state's function, and takes every byte. reply_text.c holds the steps of
 * text between blocks; reply_gemma4.c, reply_qwen.c and reply_object.c those of a block of calls. A step consumes its
 * byte for good: what it may have to give back it keeps in `raw` (a call not yet begun) or in a few bytes of
 * look-ahead, and gives back by td_reply_call_reject and td_reply_call_fault, which feed the text step. Text that is
 * given back is never parsed as a call again, so each byte is seen a bounded number of times.
 *
 * Internal functions return TD_OK, TD_E_NOMEM, or the callback's status; messages are made at the edge. */
#ifndef TD_TEXT_REPLY_IMPL_H
#define TD_TEXT_REPLY_IMPL_H

#include "base/buf.h"
#include "text/reply.h"
#include "text/tokenizer_unicode.h"

/* ---- reply_json.c: JSON that arrives a byte at a time ---- */

typedef enum td_reply_json_result {
    TD_REPLY_JSON_MORE,
    TD_REPLY_JSON_DONE, /* the value is complete with this byte */
    TD_REPLY_JSON_OVER, /* a number was complete before this byte, which was not taken */
    TD_REPLY_JSON_BAD,
    TD_REPLY_JSON_DEEP, /* beyond TD_REPLY_MAX_NESTING */
} td_reply_json_result;

typedef struct td_reply_json {
    uint8_t state;
    uint8_t depth;
    uint8_t n;           /* characters of a literal, or hex digits of an escape, read */
    bool key;            /* the string under way is a key */
    const char *literal; /* the rest of true, false, null */
    uint32_t unit;       /* of \uXXXX under way */
    uint32_t high;       /* high surrogate that waits for its other half; 0: none */
    char open[TD_REPLY_MAX_NESTING];
} td_reply_json;

/* Reads one value; writes it to `out` as strict JSON without white space, mended as reply.h says. */
void td_reply_json_init(td_reply_json *j);
td_status td_reply_json_step(td_reply_json *j, char c, td_buf *out, td_reply_json_result *result) TD_MUST_CHECK;
/* True when the text may end here: a number at the outermost level. */
bool td_reply_json_may_end(const td_reply_json *j);
/* A whole text, white space around it allowed: *result is DONE, BAD, DEEP, or MORE when it is cut off. */
td_status td_reply_json_whole(const char *text, size_t size, td_buf *out, td_reply_json_result *result) TD_MUST_CHECK;
/* Writes a byte of text as it stands inside a JSON string. */
td_status td_reply_json_escape(td_buf *out, char c) TD_MUST_CHECK;

/* ---- reply_tools.c: names and parameter types of a request's tools ---- */

typedef enum td_reply_type {
    TD_REPLY_STRING = 1,
    TD_REPLY_NUMBER = 2,
    TD_REPLY_BOOLEAN = 4,
    TD_REPLY_NULL = 8,
    TD_REPLY_OBJECT = 16,
    TD_REPLY_ARRAY = 32,
} td_reply_type;

typedef struct td_reply_tool td_reply_tool;
typedef struct td_reply_tools td_reply_tools;

/* json NULL gives NULL. */
td_status td_reply_tools_new(td_reply_tools **out, const json_t *json, td_error *err) TD_MUST_CHECK;
void td_reply_tools_free(td_reply_tools **tools);
/* NULL: not among them, or no tools at all. */
const td_reply_tool *td_reply_tools_find(const td_reply_tools *tools, const char *name);
/* The types a parameter may have, td_reply_type or'ed; 0: nobody said. tool may be NULL. */
unsigned td_reply_tool_types(const td_reply_tool *tool, const char *parameter);

/* ---- the machine ---- */

typedef td_status td_reply_step(td_reply *r, char c);
typedef td_status td_reply_end(td_reply *r);

typedef enum td_reply_act {
    TD_REPLY_ACT_THINK,
    TD_REPLY_ACT_ANSWER,   /* the thoughts end */
    TD_REPLY_ACT_CALL,     /* a block of calls opens */
    TD_REPLY_ACT_FUNCTION, /* perhaps a call without its block */
    TD_REPLY_ACT_QUOTE,    /* Gemma's string delimiter, where no string is: an ordinary quote */
    TD_REPLY_ACT_DROP,
} td_reply_act;

typedef struct td_reply_marker {
    const char *text;
    td_reply_act act;
} td_reply_marker;

#define TD_REPLY_MAX_MARKERS 10
#define TD_REPLY_MAX_MARKER 20 /* bytes */

/* One of the two voices: reasoning and content. */
typedef struct td_reply_voice {
    td_buf gap;   /* white space that is held */
    bool started; /* it has said something */
    bool sealed;  /* further white space is dropped */
    bool marked;  /* a block has come since it last spoke */
} td_reply_voice;

enum { TD_REPLY_GEMMA_LEX = 20 };

typedef struct td_reply_gemma {
    uint8_t state, depth;
    uint8_t n_head;                  /* characters of "call:" read */
    uint8_t n_lex;                   /* bytes that may become a marker */
    bool again;                      /* a call of this block is behind us */
    bool spaced;                     /* white space behind the name */
    bool first;                      /* no comma in front of the next member */
    bool past;                       /* a bare word has gone past its first delimiter */
    bool plain;                      /* no closing <|"|> will come for bare words */
    char lex[TD_REPLY_GEMMA_LEX];    /* not NUL-terminated */
    char open[TD_REPLY_MAX_NESTING]; /* '{' or '[' */
    td_reply_json json;              /* of an ordinary string */
} td_reply_gemma;

typedef struct td_reply_qwen {
    uint8_t state;
    uint8_t value; /* how the value under way is written */
    uint8_t n_tag;
    bool bare;     /* without <tool_call> */
    bool first;    /* no parameter yet */
    bool fresh;    /* nothing of the value read */
    bool newline;  /* one is held, it may be the last */
    bool function; /* the tag in front of the gap is </function>, not </parameter> */
    unsigned types;
    char tag[TD_REPLY_MAX_MARKER];
    const td_reply_tool *tool;
} td_reply_qwen;

typedef struct td_reply_object {
    uint8_t state;
    uint8_t member; /* what the key under way means */
    uint8_t n_end;  /* bytes of the block's end read */
    bool list;      /* inside an array of calls */
    bool bare;      /* the answer itself */
    bool any;       /* a call of this block is behind us */
    bool named;     /* name is known */
    bool have;      /* arguments have been read, into `value` when the call has not begun */
    td_reply_json json;
} td_reply_object;

struct td_reply {
    td_reply_format format;
    td_reply_fn on_event;
    void *user;
    td_reply_tools *tools;
    char *id_prefix;
    uint64_t first_id;
    td_status failed; /* of an earlier call; TD_OK: none */
    bool stopped;     /* it was the callback that failed */
    bool finished;
    size_t pos; /* bytes of text taken */
    td_uni_assembler utf8;

    td_buf out; /* the delta under way */
    td_reply_event_kind out_kind;

    /* text */
    td_reply_step *step;
    td_reply_marker markers[TD_REPLY_MAX_MARKERS];
    size_t n_markers;
    char mark[TD_REPLY_MAX_MARKER]; /* text that may become a marker */
    size_t n_mark;
    td_reply_voice voice[2]; /* by TD_REPLY_REASONING, TD_REPLY_CONTENT */
    td_reply_event_kind speaking;
    bool replaying;  /* text that was given back: opens no calls */
    bool bare_tried; /* the answer itself has been read as a call */

    /* a block of calls */
    td_reply_end *end; /* the text ends inside it; leaves the text step in charge */
    td_buf raw;        /* its text while the call has not begun */
    td_buf name, id;
    bool begun;
    uint32_t n_calls, n_incomplete;
    td_error fault;
    td_buf word, value, spare; /* of the steps */
    union {
        td_reply_gemma gemma;
        td_reply_qwen qwen;
        td_reply_object object;
    } at;
};

static inline bool td_reply_is_space(char c) {
    return c == ' ' || c == '\n' || c == '\t' || c == '\r';
}

static inline bool td_reply_is_name(char c) { /* of a tool: a letter of any script, a digit, or _-.:/ and the like */
    return (unsigned char)c > ' ' && c != 0x7F && c != '<' && c != '>' && c != '{' && c != '}' && c != '(' &&
           c != ')' && c != '[' && c != ']' && c != '"' && c != '\'' && c != '=' && c != ',' && c != ';';
}

/* Looks held[0..n) up among n_set texts: the index of the one it equals, or one of these. */
enum { TD_REPLY_NO_MATCH = -1, TD_REPLY_PARTIAL = -2 };
int td_reply_match(const char *const *set, int n_set, const char *held, size_t n);

/* ---- reply.c: events ---- */

/* The buffer of the delta under way, after a change of kind has been sent. */
td_status td_reply_out(td_reply *r, td_reply_event_kind kind, td_buf **out) TD_MUST_CHECK;
td_status td_reply_write(td_reply *r, td_reply_event_kind kind, const char *text, size_t size) TD_MUST_CHECK;
td_status td_reply_send(td_reply *r, td_reply_event *event) TD_MUST_CHECK;

/* ---- reply_text.c ---- */

void td_reply_text_open(td_reply *r, bool inside_reasoning);
td_reply_step td_reply_text_step;
/* Feeds text back, to the text step, without opening calls. */
td_status td_reply_text_replay(td_reply *r, const char *text, size_t size) TD_MUST_CHECK;
/* A block has been passed: see reply.h on white space. */
void td_reply_text_seal(td_reply *r);
td_status td_reply_text_end(td_reply *r) TD_MUST_CHECK;

/* ---- reply_call.c: a call's begin and end ---- */

/* `name` holds its name. The thoughts end, if they had not. */
td_status td_reply_call_begin(td_reply *r) TD_MUST_CHECK;
td_status td_reply_call_write(td_reply *r, const char *json) TD_MUST_CHECK;
/* text as a whole JSON string. */
td_status td_reply_call_string(td_reply *r, const char *text, size_t size) TD_MUST_CHECK;
td_status td_reply_call_complete(td_reply *r) TD_MUST_CHECK;
/* Not a call: the text step takes over and gets what `raw` holds. */
td_status td_reply_call_reject(td_reply *r) TD_MUST_CHECK;
/* A call that began is broken: it ends, and the text step takes over with held[0..n). */
td_status td_reply_call_fault(td_reply *r, const char *held, size_t n, const char *fmt, ...)
    TD_PRINTF(4, 5) TD_MUST_CHECK;
/* The block is over: text follows. Its end has been sealed with the last call, or with the opening marker. */
void td_reply_call_leave(td_reply *r);

/* ---- the formats: the text behind an opening marker ---- */

void td_reply_gemma_open(td_reply *r);
void td_reply_qwen_open(td_reply *r, bool bare);
void td_reply_object_open(td_reply *r, bool bare);

#endif
