/* json_schema_text.c - how values look in each syntax: quotes, escapes, keys, white space, and values of any kind.
 *
 * JSON        "..." with escapes, white space as json_schema.h says
 * Gemma 4     <|"|> text <|"|>, without escapes or white space, keys bare where they are plain words. The marker cannot
 *             be in the text: free text is any that does not hold it; where characters are counted or a pattern chooses
 *             them, "|" is left out of sets, which is simpler and nearly the same
 * text        the characters as they stand, up to a tag. Free text is any without one of the tags; elsewhere "<" is
 * left out of sets U+0000 is in none of them: names and arguments become C strings. */
#include <string.h>

#include "base/alloc.h"
#include "text/json_schema_impl.h"
#include "text/tokenizer_unicode.h"

#define QUOTE "<|\"|>"
#define MAX_BARE_KEY 60

/* ---- white space ---- */

td_gb_node td_js_space(td_js *js) {
    if (js->syntax == TD_JS_GEMMA4)
        return 0;
    if (!js->space) {
        td_gb_rule rule = td_gb_rule_new(js->b, NULL, 0, -1);
        td_gb_node indent = td_gb_repeat(js->b, td_gb_chars(js->b, "  \t\t"), 0, TD_JSON_SCHEMA_INDENT);
        td_gb_node line = TD_GB_SEQ(js->b, td_gb_string(js->b, "\n"), indent);
        td_gb_define(js->b, rule, TD_GB_ALT(js->b, 0, td_gb_string(js->b, " "), line));
        js->space = rule + 1;
    }
    return td_gb_use(js->b, js->space - 1);
}

td_gb_node td_js_comma(td_js *js) {
    return TD_GB_SEQ(js->b, td_gb_string(js->b, ","), td_js_space(js));
}

td_gb_node td_js_colon(td_js *js) {
    td_gb_node colon = td_gb_string(js->b, ":");
    return js->syntax == TD_JS_GEMMA4 ? colon
                                      : TD_GB_SEQ(js->b, colon, TD_GB_OPTIONAL(js->b, td_gb_string(js->b, " ")));
}

/* ---- characters of strings ---- */

/* What the syntax cannot have as it stands; JSON has escapes for that. */
static void take_out(td_js *js, td_char_set *s) {
    td_char_set_remove(s, 0, 0);
    if (js->syntax == TD_JS_JSON) {
        td_char_set_remove(s, 0, 0x1F);
        td_char_set_remove(s, '"', '"');
        td_char_set_remove(s, '\\', '\\');
    }
    if (js->syntax == TD_JS_JSON && !js->tagged)
        return;
    if (s->n > 1 || (s->n == 1 && s->v[0].lo != s->v[0].hi)) {
        uint32_t c = js->syntax == TD_JS_GEMMA4 ? '|' : '<';
        td_char_set_remove(s, c, c);
    }
}

/* \uXXXX of a character that is not U+0000, or two of a pair. */
static td_gb_node unicode_escape(td_gb *b) {
    td_gb_node hex = td_gb_chars(b, "09afAF"), one = td_gb_chars(b, "19afAF"), zero = td_gb_string(b, "0");
    td_gb_node plain = TD_GB_ALT(b, TD_GB_SEQ(b, td_gb_chars(b, "19acefACEF"), hex, hex, hex),
                                 TD_GB_SEQ(b, td_gb_chars(b, "ddDD"), td_gb_chars(b, "07"), hex, hex),
                                 TD_GB_SEQ(b, zero, one, hex, hex), TD_GB_SEQ(b, zero, zero, one, hex),
                                 TD_GB_SEQ(b, zero, zero, zero, one));
    td_gb_node high = TD_GB_SEQ(b, td_gb_chars(b, "ddDD"), td_gb_chars(b, "89abAB"), hex, hex);
    td_gb_node low = TD_GB_SEQ(b, td_gb_chars(b, "ddDD"), td_gb_chars(b, "cfCF"), hex, hex);
    return TD_GB_SEQ(b, td_gb_string(b, "u"), TD_GB_ALT(b, plain, TD_GB_SEQ(b, high, td_gb_string(b, "\\u"), low)));
}

static td_gb_node any_escape(td_js *js) {
    td_gb *b = js->b;
    if (!js->escape) {
        td_gb_rule rule = td_gb_rule_new(b, NULL, 0, -1);
        td_gb_node letter = td_gb_chars(b, "\"\"\\\\//bbffnnrrtt");
        td_gb_define(b, rule, TD_GB_SEQ(b, td_gb_string(b, "\\"), TD_GB_ALT(b, letter, unicode_escape(b))));
        js->escape = rule + 1;
    }
    return td_gb_use(b, js->escape - 1);
}

td_gb_node td_js_char(td_js *js) {
    td_char_set s = {0};
    td_char_set_invert(&s);
    take_out(js, &s);
    td_gb_node plain = td_gb_set(js->b, &s);
    return js->syntax == TD_JS_JSON ? TD_GB_ALT(js->b, plain, any_escape(js)) : plain;
}

/* How JSON writes a character that it must escape; *n: its bytes. */
static const char *escaped(uint32_t c, char out[8], size_t *n) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *known = c > 0 && c < 0x80 ? strchr(from, (int)c) : NULL;
    memcpy(out, "\\u00", 4);
    out[4] = "0123456789abcdef"[c >> 4 & 15];
    out[5] = "0123456789abcdef"[c & 15];
    if (known)
        out[1] = to[known - from];
    *n = known ? 2 : 6;
    return out;
}

td_gb_node td_js_set(td_js *js, td_char_set *set) {
    td_gb_list ways = {0};
    td_char_set_settle(set);
    for (uint32_t c = 1; js->syntax == TD_JS_JSON && c < 0x60; c++) {
        char out[8];
        size_t n;
        bool special = c < 0x20 || c == '"' || c == '\\';
        if (special && td_char_set_has(set, c)) {
            escaped(c, out, &n);
            td_gb_push(js->b, &ways, td_gb_text(js->b, out, n));
        }
    }
    take_out(js, set);
    td_gb_push(js->b, &ways, td_gb_set(js->b, set));
    td_gb_node node = td_gb_alt(js->b, ways.v, ways.n);
    td_gb_list_free(&ways);
    return node;
}

td_gb_node td_js_chars(td_js *js, const char *text, size_t size) {
    td_buf out;
    td_buf_init(&out, TD_GB_MAX_BYTES);
    for (size_t i = 0; i < size; i++) {
        char e[8];
        size_t n;
        unsigned char c = (unsigned char)text[i];
        bool tag = js->tagged && c == '<';
        if (js->syntax == TD_JS_JSON && (c < 0x20 || c == '"' || c == '\\' || tag)) {
            escaped(c, e, &n);
            td_buf_append(&out, e, n);
        } else {
            td_buf_append(&out, text + i, 1);
        }
    }
    bool marked = js->syntax == TD_JS_GEMMA4 && size && memmem(text, size, QUOTE, strlen(QUOTE));
    bool tagged =
        js->syntax == TD_JS_TEXT && size && (memmem(text, size, "</", 2) || memmem(text, size, "<parameter=", 11));
    td_gb_node node = out.failed ? td_js_fail(js, out.failed, "%s for a literal text", td_status_text(out.failed))
                                 : td_gb_text(js->b, out.data, out.size);
    td_buf_free(&out);
    if (marked || tagged)
        return td_js_fail(js, TD_E_UNSUPPORTED,
                          "a text that the model's format of calls cannot hold, as it ends there");
    return node;
}

/* ---- strings ---- */

td_gb_node td_js_quoted(td_js *js, td_gb_node content) {
    if (js->syntax == TD_JS_TEXT)
        return content;
    td_gb_node quote = js->syntax == TD_JS_GEMMA4 ? td_gb_marker(js->b, js->trie, QUOTE) : td_gb_string(js->b, "\"");
    return TD_GB_SEQ(js->b, quote, content, quote);
}

/* Characters of JSON between tags: "<" is followed by nothing that makes it a tag. */
static td_gb_node tagged_content(td_js *js) {
    td_gb *b = js->b;
    td_char_set s = {0};
    td_char_set_add(&s, '/', '/');
    td_char_set_add(&s, 'p', 'p');
    td_char_set_settle(&s);
    td_char_set_invert(&s);
    take_out(js, &s);
    td_gb_node open = td_gb_string(b, "<"), behind = TD_GB_ALT(b, td_gb_set(b, &s), any_escape(js));
    td_gb_node some = TD_GB_SEQ(b, td_gb_repeat(b, open, 1, TD_GB_NO_MAX), behind);
    return TD_GB_SEQ(b, td_gb_repeat(b, TD_GB_ALT(b, td_js_char(js), some), 0, TD_GB_NO_MAX),
                     td_gb_repeat(b, open, 0, TD_GB_NO_MAX));
}

static td_gb_node free_content(td_js *js) {
    static const char *const quote[] = {QUOTE};
    static const char *const tags[] = {"</parameter>", "<parameter=", "</function>", "</tool_call>"};
    if (js->syntax == TD_JS_JSON)
        return js->tagged ? tagged_content(js) : td_gb_repeat(js->b, td_js_char(js), 0, TD_GB_NO_MAX);
    return js->syntax == TD_JS_GEMMA4 ? td_gb_text_without(js->b, quote, 1) : td_gb_text_without(js->b, tags, 4);
}

td_gb_node td_js_any_string(td_js *js) {
    td_gb_rule *rule = &js->text[js->syntax];
    if (!*rule) {
        *rule = td_gb_rule_new(js->b, NULL, 0, -1) + 1;
        td_gb_define(js->b, *rule - 1, td_js_quoted(js, free_content(js)));
    }
    return td_gb_use(js->b, *rule - 1);
}

/* ---- keys ---- */

/* A word that Gemma's arguments have as a key without quotes. */
static bool is_bare(const char *key, size_t size) {
    for (size_t i = 0; i < size; i++)
        if (!((key[i] >= 'a' && key[i] <= 'z') || (key[i] >= 'A' && key[i] <= 'Z') ||
              (key[i] >= '0' && key[i] <= '9') || key[i] == '_' || key[i] == '-' || key[i] == '$' || key[i] == '.'))
            return false;
    return size > 0;
}

td_gb_node td_js_key(td_js *js, const char *key, size_t size) {
    if (js->syntax == TD_JS_GEMMA4 && size > TD_REPLY_MAX_NAME)
        return td_js_fail(js, TD_E_UNSUPPORTED, "a name of more than %d bytes", TD_REPLY_MAX_NAME);
    if (js->syntax == TD_JS_GEMMA4 && is_bare(key, size))
        return td_gb_text(js->b, key, size);
    return td_js_quoted(js, td_js_chars(js, key, size));
}

/* A name out of a list of them that still fits what has been read, and the rest of it. */
typedef struct rest {
    const char *text;
    size_t size;
} rest;

/* Characters of names that are made up: those that need no escape. */
static void key_chars(td_js *js, td_char_set *s) {
    if (js->syntax == TD_JS_GEMMA4) {
        td_char_set_add(s, 'a', 'z');
        td_char_set_add(s, 'A', 'Z');
        td_char_set_add(s, '0', '9');
        td_char_set_add(s, '_', '_');
        td_char_set_settle(s);
        return;
    }
    td_char_set_invert(s);
    take_out(js, s);
}

/* Any more characters; names in Gemma's calls have a greatest length. */
static td_gb_node more_of_key(td_js *js) {
    td_char_set s = {0};
    key_chars(js, &s);
    return td_gb_repeat(js->b, td_gb_set(js->b, &s), 0, js->syntax == TD_JS_GEMMA4 ? MAX_BARE_KEY : TD_GB_NO_MAX);
}

static td_gb_node different(td_js *js, const rest *names, size_t n, bool may_end);

/* Names that go on with this character, and differ later. */
static td_gb_node go_on(td_js *js, const rest *names, size_t n, const char *c, size_t size) {
    rest *fewer = td_calloc(n, sizeof *fewer);
    size_t n_fewer = 0;
    bool may_end = true;
    if (!fewer)
        return td_js_fail(js, TD_E_NOMEM, "out of memory for a grammar");
    for (size_t i = 0; i < n; i++)
        if (names[i].size >= size && memcmp(names[i].text, c, size) == 0) {
            fewer[n_fewer++] = (rest){names[i].text + size, names[i].size - size};
            may_end = may_end && names[i].size > size;
        }
    td_gb_rule rule = td_gb_rule_new(js->b, NULL, 0, -1);
    if (++js->nesting > 600)
        td_js_fail(js, TD_E_LIMIT, "names of properties longer than 600 characters beside additional properties");
    td_gb_define(js->b, rule, td_gb_status(js->b) == TD_OK ? different(js, fewer, n_fewer, may_end) : 0);
    js->nesting--;
    td_free(fewer);
    return TD_GB_SEQ(js->b, td_gb_text(js->b, c, size), td_gb_use(js->b, rule));
}

static td_gb_node different(td_js *js, const rest *names, size_t n, bool may_end) {
    td_gb_list ways = {0};
    td_char_set others = {0};
    key_chars(js, &others);
    if (may_end)
        td_gb_push(js->b, &ways, 0);
    for (size_t i = 0; i < n && td_gb_status(js->b) == TD_OK; i++) {
        uint32_t c;
        if (names[i].size == 0)
            continue;
        size_t size = td_uni_next(names[i].text, &c);
        if (!td_char_set_has(&others, c)) /* seen before, or a character that no name made up here has */
            continue;
        td_char_set_remove(&others, c, c);
        td_gb_push(js->b, &ways, go_on(js, names, n, names[i].text, size));
    }
    td_gb_push(js->b, &ways, TD_GB_SEQ(js->b, td_gb_set(js->b, &others), more_of_key(js)));
    td_gb_node node = td_gb_alt(js->b, ways.v, ways.n);
    td_gb_list_free(&ways);
    return node;
}

td_gb_node td_js_other_key(td_js *js, const json_t *names) {
    size_t n = json_object_size(names), i = 0;
    if (n == 0 && js->syntax == TD_JS_JSON)
        return td_js_any_string(js);
    rest *list = td_calloc(n, sizeof *list);
    if (!list)
        return td_js_fail(js, TD_E_NOMEM, "out of memory for a grammar");
    const char *key;
    size_t size;
    json_t *schema;
    json_object_keylen_foreach((json_t *)(uintptr_t)names, key, size, schema) {
        (void)schema;
        list[i++] = (rest){key, size};
    }
    td_gb_node content = different(js, list, n, false);
    td_free(list);
    return js->syntax == TD_JS_GEMMA4 ? content : td_js_quoted(js, content);
}

/* ---- values ---- */

static td_gb_node literal_members(td_js *js, const json_t *value) {
    td_gb_list parts = {0};
    const char *key;
    size_t size, i;
    json_t *member;
    bool object = json_is_object(value);
    td_gb_push(js->b, &parts, td_gb_string(js->b, object ? "{" : "["));
    json_object_keylen_foreach((json_t *)(uintptr_t)value, key, size, member) {
        td_gb_push(js->b, &parts, td_gb_string(js->b, parts.n > 1 ? "," : ""));
        td_gb_push(js->b, &parts, td_js_key(js, key, size));
        td_gb_push(js->b, &parts, td_gb_string(js->b, ":"));
        td_gb_push(js->b, &parts, td_js_literal(js, member));
    }
    json_array_foreach(value, i, member) {
        td_gb_push(js->b, &parts, td_gb_string(js->b, i > 0 ? "," : ""));
        td_gb_push(js->b, &parts, td_js_literal(js, member));
    }
    td_gb_push(js->b, &parts, td_gb_string(js->b, object ? "}" : "]"));
    td_gb_node node = td_gb_seq(js->b, parts.v, parts.n);
    td_gb_list_free(&parts);
    return node;
}

td_gb_node td_js_literal(td_js *js, const json_t *value) {
    if (json_is_string(value))
        return td_js_quoted(js, td_js_chars(js, json_string_value(value), json_string_length(value)));
    if (js->nesting > TD_GRAMMAR_MAX_NESTING)
        return td_js_fail(js, TD_E_LIMIT, "a value nested deeper than %u levels", TD_GRAMMAR_MAX_NESTING);
    td_js_syntax before = js->syntax;
    js->syntax = before == TD_JS_TEXT ? TD_JS_JSON : before;
    js->nesting++;
    td_gb_node node;
    if (json_is_object(value) || json_is_array(value)) {
        node = literal_members(js, value);
    } else {
        char *text = json_dumps(value, JSON_ENCODE_ANY);
        node = text ? td_gb_string(js->b, text) : td_js_fail(js, TD_E_NOMEM, "out of memory for a grammar");
        free(text);
    }
    js->nesting--;
    js->syntax = before;
    return node;
}

td_gb_node td_js_any(td_js *js) {
    td_js_syntax before = js->syntax;
    js->syntax = before == TD_JS_TEXT ? TD_JS_JSON : before;
    td_gb_rule *rule = &js->value[js->syntax];
    if (!*rule) {
        *rule = td_gb_rule_new(js->b, NULL, 0, -1) + 1;
        td_gb_node object = td_js_object(js, NULL), array = td_js_array(js, NULL);
        td_gb_define(js->b, *rule - 1,
                     TD_GB_ALT(js->b, object, array, td_js_any_string(js), td_js_any_number(js),
                               td_gb_string(js->b, "true"), td_gb_string(js->b, "false"), td_gb_string(js->b, "null")));
    }
    td_gb_node node = td_gb_use(js->b, *rule - 1);
    js->syntax = before;
    return node;
}
