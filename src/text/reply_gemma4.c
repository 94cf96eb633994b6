/* reply_gemma4.c - Gemma 4's calls: call:NAME{key:value,...}, turned into JSON while they come.
 *
 * Two layers. The lexer takes bytes and finds the markers; everything else reaches the grammar as characters. The
 * grammar keeps a stack of brackets and writes JSON as soon as a piece of it is certain: a string goes out as it comes.
 *
 * Bare words are the one thing that needs foresight. true, null and numbers end at their delimiter. Any other word may
 * be a string whose opening <|"|> the model forgot, which it does often, and such a string may hold commas and braces.
 * So a word that goes past its first delimiter is held until the next marker. If that is a <|"|> with a value in front
 * of it, it closes the string, and all that was held is the string. If it is one that opens the next string, or the end
 * of the block, the word was a plain word; what was held is read again, knowing that. Nothing is held twice. */
#include "text/reply_impl.h"

#include <string.h>

enum {
    HEAD,       /* "call:" or the end of the block must come */
    NAME,       /* the name, up to its bracket */
    PAREN,      /* behind NAME "(": an object, or nothing */
    KEY,        /* a key or the end of the object */
    KEY_BARE,   /* */
    KEY_MARKED, /* between <|"|> and <|"|> */
    KEY_QUOTED, /* in ordinary quotes */
    COLON,      /* */
    VALUE,      /* a value, or the end of the array */
    MARKED,     /* a string between <|"|> and <|"|> */
    QUOTED,     /* a string in ordinary quotes */
    BARE,       /* a word, in `value` */
    NEXT,       /* a comma or a closing bracket */
};

/* The markers: two that the grammar knows, and those that only text has, which show that the block broke off. */
enum { QUOTE, CLOSE, N_TOKENS = 7 };
static const char *const tokens[N_TOKENS] = {"<|\"|>",           "<tool_call|>", "<|tool_call>", "<|tool_response>",
                                             "<tool_response|>", "<|channel>",   "<channel|>"};

static td_reply_step step;
static td_reply_end end;

static void enter_head(td_reply_gemma *g) {
    g->state = HEAD;
    g->n_head = 0;
    g->spaced = false;
}

void td_reply_gemma_open(td_reply *r) {
    memset(&r->at.gemma, 0, sizeof r->at.gemma);
    enter_head(&r->at.gemma);
    r->step = step;
    r->end = end;
}

/* ---- the name ---- */

static td_status head_char(td_reply *r, char c) {
    static const char call[] = "call:";
    td_reply_gemma *g = &r->at.gemma;
    TD_TRY(td_buf_putc(&r->raw, c));
    bool between = td_reply_is_space(c) || (g->again && (c == ',' || c == ';' || c == ')'));
    if (g->n_head == 0 && between && r->raw.size < TD_REPLY_MAX_GAP)
        return TD_OK;
    if (g->n_head == 0 && c == ':')
        g->n_head = sizeof call - 2;
    if (c != call[g->n_head])
        return td_reply_call_reject(r);
    if (call[++g->n_head] != '\0')
        return TD_OK;
    td_buf_clear(&r->name);
    g->state = NAME;
    return TD_OK;
}

static td_status begin(td_reply *r, uint8_t state) {
    r->at.gemma.state = state;
    r->at.gemma.again = true;
    return td_reply_call_begin(r);
}

static td_status open_bracket(td_reply *r, char c);

static td_status name_char(td_reply *r, char c) {
    td_reply_gemma *g = &r->at.gemma;
    TD_TRY(td_buf_putc(&r->raw, c));
    if (td_reply_is_space(c)) {
        g->spaced = r->name.size > 0;
        return r->raw.size < TD_REPLY_MAX_GAP ? TD_OK : td_reply_call_reject(r);
    }
    if (r->name.size > 0 && c == '{') {
        TD_TRY(begin(r, VALUE));
        return open_bracket(r, c);
    }
    if (r->name.size > 0 && c == '(')
        return begin(r, PAREN);
    if (!td_reply_is_name(c) || g->spaced || r->name.size == TD_REPLY_MAX_NAME)
        return td_reply_call_reject(r);
    return td_buf_putc(&r->name, c);
}

/* ---- structure ---- */

static char innermost(const td_reply_gemma *g) {
    return g->open[g->depth - 1];
}

static td_status write_char(td_reply *r, char c) {
    return td_reply_write(r, TD_REPLY_CALL_ARGUMENTS, &c, 1);
}

/* A value is about to be written. */
static td_status separate(td_reply *r) {
    td_reply_gemma *g = &r->at.gemma;
    bool comma = g->depth > 0 && innermost(g) == '[' && !g->first;
    return comma ? write_char(r, ',') : TD_OK;
}

static td_status open_bracket(td_reply *r, char c) {
    td_reply_gemma *g = &r->at.gemma;
    if (g->depth == TD_REPLY_MAX_NESTING)
        return td_reply_call_fault(r, &c, 1, "arguments nested deeper than %d levels", TD_REPLY_MAX_NESTING);
    TD_TRY(separate(r));
    g->open[g->depth++] = c;
    g->first = true;
    g->state = c == '{' ? KEY : VALUE;
    return write_char(r, c);
}

static void value_done(td_reply_gemma *g) {
    g->first = false;
    g->state = NEXT;
}

static td_status complete(td_reply *r) {
    enter_head(&r->at.gemma);
    return td_reply_call_complete(r);
}

static td_status close_bracket(td_reply *r, char c) {
    td_reply_gemma *g = &r->at.gemma;
    if (innermost(g) != (c == '}' ? '{' : '['))
        return td_reply_call_fault(r, &c, 1, "'%c' closes a '%c'", c, innermost(g));
    TD_TRY(write_char(r, c));
    g->depth--;
    value_done(g);
    return g->depth > 0 ? TD_OK : complete(r);
}

static td_status next_char(td_reply *r, char c) {
    td_reply_gemma *g = &r->at.gemma;
    if (td_reply_is_space(c))
        return TD_OK;
    if (c == '}' || c == ']')
        return close_bracket(r, c);
    if (c != ',')
        return td_reply_call_fault(r, &c, 1, "expected ',' or a closing bracket behind a value");
    g->state = innermost(g) == '{' ? KEY : VALUE;
    return TD_OK;
}

static td_status paren_char(td_reply *r, char c) {
    if (td_reply_is_space(c))
        return TD_OK;
    if (c == '{')
        return open_bracket(r, c);
    if (c != ')')
        return td_reply_call_fault(r, &c, 1, "expected an object behind '('");
    TD_TRY(td_reply_call_write(r, "{}"));
    return complete(r);
}

/* ---- keys: `word` holds the key as JSON, without its closing quote until it is complete ---- */

static td_status begin_key(td_reply *r, uint8_t state) {
    r->at.gemma.state = state;
    td_buf_clear(&r->word);
    return td_buf_putc(&r->word, '"');
}

static td_status key_fault(td_reply *r, char c) {
    size_t closed = r->at.gemma.state == COLON; /* the quote behind the key is ours, as that in front of it */
    td_buf_clear(&r->spare);
    TD_TRY(td_buf_append(&r->spare, r->word.data + 1, r->word.size - 1 - closed));
    TD_TRY(td_buf_putc(&r->spare, c));
    if (r->word.size > TD_REPLY_MAX_NAME)
        return td_reply_call_fault(r, r->spare.data, r->spare.size, "a key of more than %d bytes", TD_REPLY_MAX_NAME);
    return td_reply_call_fault(r, r->spare.data, r->spare.size, "expected ':' behind a key");
}

static td_status put_key(td_reply *r, char c) {
    return r->word.size > TD_REPLY_MAX_NAME ? key_fault(r, c) : td_reply_json_escape(&r->word, c);
}

static td_status key_done(td_reply *r) {
    r->at.gemma.state = COLON;
    return td_buf_putc(&r->word, '"');
}

static td_status write_key(td_reply *r) {
    if (!r->at.gemma.first)
        TD_TRY(write_char(r, ','));
    return td_reply_write(r, TD_REPLY_CALL_ARGUMENTS, r->word.data, r->word.size);
}

static td_status colon_char(td_reply *r, char c) {
    if (td_reply_is_space(c))
        return TD_OK;
    if (c != ':')
        return key_fault(r, c);
    TD_TRY(write_key(r));
    r->at.gemma.state = VALUE;
    return write_char(r, ':');
}

static td_status bare_key_char(td_reply *r, char c) {
    if (c == ':' || (td_reply_is_space(c) && c != ' ')) {
        while (r->word.data[r->word.size - 1] == ' ')
            r->word.size--;
        TD_TRY(key_done(r));
        return colon_char(r, c);
    }
    return c == ' ' || td_reply_is_name(c) ? put_key(r, c) : key_fault(r, c);
}

static td_status quoted_key_char(td_reply *r, char c) {
    td_reply_json_result result;
    if (r->word.size > TD_REPLY_MAX_NAME)
        return key_fault(r, c);
    TD_TRY(td_reply_json_step(&r->at.gemma.json, c, &r->word, &result));
    if (result == TD_REPLY_JSON_DONE)
        r->at.gemma.state = COLON;
    return result == TD_REPLY_JSON_BAD ? key_fault(r, c) : TD_OK;
}

static td_status key_char(td_reply *r, char c) {
    td_reply_gemma *g = &r->at.gemma;
    if (td_reply_is_space(c))
        return TD_OK;
    if (c == '}' || c == ']')
        return close_bracket(r, c);
    if (c == '"') {
        g->state = KEY_QUOTED;
        td_buf_clear(&r->word);
        td_reply_json_init(&g->json);
        return quoted_key_char(r, c);
    }
    if (!td_reply_is_name(c))
        return td_reply_call_fault(r, &c, 1, "expected a key");
    TD_TRY(begin_key(r, KEY_BARE));
    return put_key(r, c);
}

/* ---- values ---- */

static td_status quoted_char(td_reply *r, char c) {
    td_reply_gemma *g = &r->at.gemma;
    td_reply_json_result result;
    td_buf *out;
    TD_TRY(td_reply_out(r, TD_REPLY_CALL_ARGUMENTS, &out));
    TD_TRY(td_reply_json_step(&g->json, c, out, &result));
    if (result == TD_REPLY_JSON_DONE)
        value_done(g);
    return result == TD_REPLY_JSON_BAD ? td_reply_call_fault(r, &c, 1, "a broken escape in a string") : TD_OK;
}

static td_status marked_char(td_reply *r, char c) {
    td_buf *out;
    TD_TRY(td_reply_out(r, TD_REPLY_CALL_ARGUMENTS, &out));
    return td_reply_json_escape(out, c);
}

static td_status begin_string(td_reply *r) {
    TD_TRY(separate(r));
    r->at.gemma.state = MARKED;
    return write_char(r, '"');
}

static td_status bare_char(td_reply *r, char c);

static td_status value_char(td_reply *r, char c) {
    td_reply_gemma *g = &r->at.gemma;
    if (td_reply_is_space(c))
        return TD_OK;
    if (c == '{' || c == '[')
        return open_bracket(r, c);
    if (c == ']' && innermost(g) == '[')
        return close_bracket(r, c);
    if (c == '"') {
        TD_TRY(separate(r));
        g->state = QUOTED;
        td_reply_json_init(&g->json);
        return quoted_char(r, c);
    }
    if (c == ',' || c == '}' || c == ']' || c == ':')
        return td_reply_call_fault(r, &c, 1, "expected a value, found '%c'", c);
    g->state = BARE;
    g->past = false;
    td_buf_clear(&r->value);
    return bare_char(r, c);
}

/* ---- bare words ---- */

static size_t trimmed(const td_buf *word) {
    size_t n = word->size;
    while (n > 0 && td_reply_is_space(word->data[n - 1]))
        n--;
    return n;
}

/* *literal: the word is a number, true, false or null. */
static td_status check_literal(td_reply *r, bool *literal) {
    td_reply_json_result result;
    td_buf_clear(&r->spare);
    *literal = false;
    if (r->value.data[0] == '"')
        return TD_OK;
    TD_TRY(td_reply_json_whole(r->value.data, r->value.size, &r->spare, &result));
    *literal = result == TD_REPLY_JSON_DONE;
    return TD_OK;
}

/* The word in `value` is a value. */
static td_status write_bare(td_reply *r, bool literal) {
    TD_TRY(separate(r));
    value_done(&r->at.gemma);
    size_t n = trimmed(&r->value);
    if (literal)
        return td_reply_write(r, TD_REPLY_CALL_ARGUMENTS, r->value.data, n);
    return td_reply_call_string(r, r->value.data, n);
}

static td_status bare_char(td_reply *r, char c) {
    td_reply_gemma *g = &r->at.gemma;
    if (!g->past && (c == ',' || c == '}' || c == ']')) {
        bool literal, ours = c == ',' || c == (innermost(g) == '{' ? '}' : ']');
        TD_TRY(check_literal(r, &literal));
        if (literal || (g->plain && ours)) {
            TD_TRY(write_bare(r, literal));
            return next_char(r, c);
        }
        g->past = ours;
    }
    TD_TRY(td_buf_putc(&r->value, c));
    if (r->value.size <= TD_REPLY_MAX_VALUE)
        return TD_OK;
    return td_reply_call_fault(r, r->value.data, r->value.size, "a word of more than %zu bytes", TD_REPLY_MAX_VALUE);
}

static td_status give_back(td_reply *r, const char *text, size_t n) {
    for (size_t i = 0; i < n; i++)
        TD_TRY(r->step(r, text[i]));
    return TD_OK;
}

static td_status flush_lexer(td_reply *r);

/* A word that went past a delimiter was a plain one: reads it again, to the end. */
static td_status resolve_plain(td_reply *r) {
    td_reply_gemma *g = &r->at.gemma;
    td_buf held = r->value;
    td_buf_init(&r->value, held.ceiling);
    g->state = VALUE;
    g->plain = true;
    td_status st = give_back(r, held.data, held.size);
    if (st == TD_OK && r->step == step)
        st = flush_lexer(r);
    g->plain = false;
    td_buf_free(&held);
    return st;
}

/* What stands in front of a <|"|> says whether it may open a string. */
static bool opens_string(const td_buf *held) {
    size_t n = trimmed(held);
    return n > 0 && held->data[n - 1] != '\0' && strchr(":,[{", held->data[n - 1]);
}

/* ---- markers ---- */

/* The call breaks off: shows what has been read of the word or key under way, a beginning of JSON, as with a string. */
static td_status write_open_word(td_reply *r) {
    uint8_t state = r->at.gemma.state;
    if (state == BARE) {
        bool literal;
        TD_TRY(check_literal(r, &literal));
        TD_TRY(write_bare(r, literal));
        return TD_OK;
    }
    bool in_key = state == KEY_BARE || state == KEY_MARKED || state == KEY_QUOTED || state == COLON;
    return in_key ? write_key(r) : TD_OK;
}

static td_status marker(td_reply *r, int token);

/* The text step, which is in charge now, knows what a marker is: it may open the next block. */
static td_status give_back_marker(td_reply *r, int token) {
    for (const char *s = tokens[token]; *s; s++)
        TD_TRY(td_reply_text_step(r, *s));
    return TD_OK;
}

/* A marker where the grammar has none: the call is not one, or broken. */
static td_status stray(td_reply *r, int token) {
    static const char *const why[] = {"the block ended inside the arguments", "a string where none can be"};
    if (!r->begun) {
        TD_TRY(td_reply_call_reject(r));
    } else {
        TD_TRY(write_open_word(r));
        TD_TRY(td_reply_call_fault(r, "", 0, "%s", why[token == QUOTE]));
    }
    return give_back_marker(r, token);
}

static td_status bare_marker(td_reply *r, int token) {
    td_reply_gemma *g = &r->at.gemma;
    if (token == QUOTE && !(g->past && opens_string(&r->value)))
        return write_bare(r, false);
    if (!g->past)
        return stray(r, token);
    TD_TRY(resolve_plain(r));
    return r->step == step ? marker(r, token) : give_back_marker(r, token);
}

static td_status quote(td_reply *r) {
    switch (r->at.gemma.state) {
    case KEY:
        return begin_key(r, KEY_MARKED);
    case KEY_MARKED:
        return key_done(r);
    case VALUE:
        return begin_string(r);
    case MARKED:
        value_done(&r->at.gemma);
        return write_char(r, '"');
    default:
        return stray(r, QUOTE);
    }
}

static td_status close_block(td_reply *r) {
    td_reply_gemma *g = &r->at.gemma;
    if (g->state == HEAD && g->n_head == 0) {
        td_reply_call_leave(r);
        return TD_OK;
    }
    if (g->state != NAME || r->name.size == 0)
        return stray(r, CLOSE);
    TD_TRY(begin(r, HEAD)); /* a call without arguments, and without brackets */
    TD_TRY(td_reply_call_write(r, "{}"));
    TD_TRY(complete(r));
    td_reply_call_leave(r);
    return TD_OK;
}

static td_status marker(td_reply *r, int token) {
    if (r->at.gemma.state == BARE)
        return bare_marker(r, token);
    return token == QUOTE ? quote(r) : token == CLOSE ? close_block(r) : stray(r, token);
}

/* ---- the lexer ---- */

static td_status character(td_reply *r, char c) {
    switch (r->at.gemma.state) {
    case HEAD:
        return head_char(r, c);
    case NAME:
        return name_char(r, c);
    case PAREN:
        return paren_char(r, c);
    case KEY:
        return key_char(r, c);
    case KEY_BARE:
        return bare_key_char(r, c);
    case KEY_MARKED:
        return put_key(r, c);
    case KEY_QUOTED:
        return quoted_key_char(r, c);
    case COLON:
        return colon_char(r, c);
    case VALUE:
        return value_char(r, c);
    case MARKED:
        return marked_char(r, c);
    case QUOTED:
        return quoted_char(r, c);
    case BARE:
        return bare_char(r, c);
    default:
        return next_char(r, c);
    }
}

/* The markers that are markers here: inside a string only its end, inside ordinary quotes none. */
static int lex(const td_reply_gemma *g) {
    if (g->state == QUOTED || g->state == KEY_QUOTED)
        return TD_REPLY_NO_MATCH;
    int n = g->state == MARKED || g->state == KEY_MARKED ? 1 : N_TOKENS; /* QUOTE is the first */
    return td_reply_match(tokens, n, g->lex, g->n_lex);
}

/* The first held byte is a character. When it ends the block, the others go to whoever is in charge then. */
static td_status release_first(td_reply *r) {
    td_reply_gemma *g = &r->at.gemma;
    char first = g->lex[0], rest[TD_REPLY_GEMMA_LEX];
    size_t n = --g->n_lex;
    memmove(g->lex, g->lex + 1, n);
    TD_TRY(character(r, first));
    if (r->step == step)
        return TD_OK;
    memcpy(rest, g->lex, n);
    g->n_lex = 0;
    return give_back(r, rest, n);
}

static td_status flush_lexer(td_reply *r) {
    while (r->step == step && r->at.gemma.n_lex > 0)
        TD_TRY(release_first(r));
    return TD_OK;
}

static td_status step(td_reply *r, char c) {
    td_reply_gemma *g = &r->at.gemma;
    if (g->n_lex == 0 && c != '<')
        return character(r, c);
    g->lex[g->n_lex++] = c;
    while (r->step == step && g->n_lex > 0) {
        int token = lex(g);
        if (token == TD_REPLY_PARTIAL)
            return TD_OK;
        if (token == TD_REPLY_NO_MATCH) {
            TD_TRY(release_first(r));
            continue;
        }
        g->n_lex = 0;
        return marker(r, token);
    }
    return TD_OK;
}

/* ---- the end of the text ---- */

static td_status end(td_reply *r) {
    TD_TRY(flush_lexer(r));
    if (r->step == step && r->at.gemma.state == BARE && r->at.gemma.past)
        TD_TRY(resolve_plain(r));
    if (r->step != step)
        return TD_OK;
    if (!r->begun)
        return td_reply_call_reject(r);
    TD_TRY(write_open_word(r));
    return td_reply_call_fault(r, "", 0, "the answer ended inside the arguments");
}
