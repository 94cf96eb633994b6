/* test_reply_random.c - round trips: random thoughts, content and calls, written down in each format as its template
 * writes them, must come back the same, whole and cut at random; and what comes of such answers when they are spoilt
 * must not depend on the cuts. Everything follows from the number of the round. */
#include "test_reply_util.h"

#include "text/reply_message.h"

enum { ROUNDS = 1500, CUTS = 4, MAX_CALLS = 3 };

typedef struct dice {
    uint64_t seed;
    uint32_t n;
} dice;

static uint32_t below(dice *d, uint32_t n) {
    return (uint32_t)(td_rng_uniform(d->seed, 0, d->n++) * n);
}

/* ---- random text and values ---- */

/* Pieces that look like syntax of every format, but are no markers and do not join to one. */
static const char *const shards[] = {"a",
                                     "Z",
                                     "word",
                                     "0",
                                     " ",
                                     "\n",
                                     "\t",
                                     "\xC3\xA9",
                                     "\xE6\xBC\xA2",
                                     "\xF0\x9F\x98\x80",
                                     "\"",
                                     "\\",
                                     "'",
                                     "{",
                                     "}",
                                     "[",
                                     "]",
                                     ",",
                                     ":",
                                     "<|x",
                                     "<x",
                                     "</x>",
                                     "|>",
                                     "<| ",
                                     "call:f{",
                                     "<tool_cal ",
                                     "</think ",
                                     "<|\" ",
                                     "thought",
                                     "null",
                                     "\x01",
                                     "</parameter> x",
                                     "</function> x",
                                     "x<parameter=a> ",
                                     "\\u00e9",
                                     "<function",
                                     "&lt;",
                                     "{\"name\": \"f\"}",
                                     "1e5",
                                     "\r"};

static void put_text(dice *d, td_buf *out, uint32_t longest) {
    for (uint32_t i = below(d, longest + 1); i > 0; i--)
        assert_int_equal(td_buf_puts(out, shards[below(d, sizeof shards / sizeof *shards)]), TD_OK);
}

static json_t *random_string(dice *d) {
    td_buf b;
    td_buf_init(&b, 1 << 16);
    put_text(d, &b, 8);
    json_t *s = json_stringn(td_buf_str(&b), b.size);
    assert_non_null(s);
    td_buf_free(&b);
    return s;
}

static json_t *random_value(dice *d, int depth);

static json_t *random_object(dice *d, int depth) {
    json_t *o = json_object();
    char key[20];
    for (uint32_t i = below(d, 4); i > 0; i--) {
        snprintf(key, sizeof key, "%c%s_%u", 'a' + (int)below(d, 26), below(d, 4) ? "" : "\xC3\xA9", below(d, 100));
        json_object_set_new(o, key, random_value(d, depth + 1));
    }
    return o;
}

static json_t *random_array(dice *d, int depth) {
    json_t *a = json_array();
    for (uint32_t i = below(d, 4); i > 0; i--)
        json_array_append_new(a, random_value(d, depth + 1));
    return a;
}

static json_t *random_value(dice *d, int depth) {
    switch (below(d, depth < 4 ? 8 : 6)) {
    case 0:
        return json_integer((json_int_t)below(d, 100000) - 50000);
    case 1:
        return json_real((below(d, 2000001) - 1e6) / 64);
    case 2:
        return json_boolean(below(d, 2));
    case 3:
        return json_null();
    case 4:
    case 5:
        return random_string(d);
    case 6:
        return random_object(d, depth);
    default:
        return random_array(d, depth);
    }
}

/* ---- the formats, written ---- */

static void put(td_buf *out, const char *s) {
    assert_int_equal(td_buf_puts(out, s), TD_OK);
}

static void put_json(td_buf *out, const json_t *v, size_t flags) {
    char *s = json_dumps(v, flags | JSON_ENCODE_ANY);
    assert_non_null(s);
    put(out, s);
    free(s);
}

static void put_gemma(dice *d, td_buf *out, const json_t *v);

static void put_gemma_members(dice *d, td_buf *out, const json_t *v) {
    const char *key, *comma = "";
    json_t *item;
    size_t i;
    json_object_foreach((json_t *)v, key, item) {
        put(out, comma);
        const char *quote = below(d, 4) ? "" : "<|\"|>";
        put(out, quote);
        put(out, key);
        put(out, quote);
        put(out, ":");
        put_gemma(d, out, item);
        comma = ",";
    }
    json_array_foreach(v, i, item) {
        put(out, i ? "," : "");
        put_gemma(d, out, item);
    }
}

static void put_gemma(dice *d, td_buf *out, const json_t *v) {
    if (json_is_string(v)) {
        put(out, "<|\"|>");
        assert_int_equal(td_buf_append(out, json_string_value(v), json_string_length(v)), TD_OK);
        put(out, "<|\"|>");
    } else if (json_is_object(v) || json_is_array(v)) {
        put(out, json_is_object(v) ? "{" : "[");
        put_gemma_members(d, out, v);
        put(out, json_is_object(v) ? "}" : "]");
    } else {
        put_json(out, v, 0);
    }
}

static void put_xml(td_buf *out, const char *name, const json_t *arguments) {
    const char *key;
    json_t *item;
    put(out, "<tool_call>\n<function=");
    put(out, name);
    put(out, ">\n");
    json_object_foreach((json_t *)arguments, key, item) {
        put(out, "<parameter=");
        put(out, key);
        put(out, ">\n");
        if (json_is_string(item))
            put(out, json_string_value(item));
        else
            put_json(out, item, 0);
        put(out, "\n</parameter>\n");
    }
    put(out, "</function>\n</tool_call>");
}

static void put_hermes(dice *d, td_buf *out, const char *name, const json_t *arguments) {
    bool front = below(d, 2), ascii = below(d, 2);
    put(out, "<tool_call>\n{");
    for (int i = 0; i < 2; i++) {
        put(out, i ? ", " : "");
        put(out, front == (i == 0) ? "\"name\": \"" : "\"arguments\": ");
        if (front == (i == 0)) {
            put(out, name);
            put(out, "\"");
        } else {
            put_json(out, arguments, (ascii ? JSON_ENSURE_ASCII : 0) | (below(d, 2) ? JSON_INDENT(1) : 0));
        }
    }
    put(out, "}\n</tool_call>");
}

/* ---- a conversation's answer ---- */

typedef struct answer {
    td_buf text, reasoning, content;
    char names[MAX_CALLS][8];
    json_t *arguments[MAX_CALLS]; /* [n] */
    json_t *tools;
    size_t n;
} answer;

static const char *type_of(const json_t *v) {
    return json_is_string(v)    ? "string"
           : json_is_number(v)  ? "number"
           : json_is_boolean(v) ? "boolean"
           : json_is_null(v)    ? "null"
           : json_is_object(v)  ? "object"
                                : "array";
}

static void add_tool(answer *a, const char *name, const json_t *arguments) {
    const char *key;
    json_t *item, *properties = json_object();
    json_object_foreach((json_t *)arguments, key, item)
        json_object_set_new(properties, key, json_pack("{s:s}", "type", type_of(item)));
    json_array_append_new(a->tools, json_pack("{s:s,s:{s:s,s:{s:o}}}", "type", "function", "function", "name", name,
                                              "parameters", "properties", properties));
}

/* A paragraph that neither begins nor ends with white space; maybe none. */
static bool put_paragraph(dice *d, td_buf *out) {
    if (!below(d, 3))
        return false;
    put(out, "Say <");
    put_text(d, out, 12);
    put(out, ".");
    return true;
}

static void add_call(dice *d, answer *a, td_reply_calls calls) {
    char *name = a->names[a->n];
    json_t *arguments = random_object(d, 0);
    snprintf(name, sizeof a->names[0], "f%zu", a->n);
    add_tool(a, name, arguments);
    if (calls == TD_REPLY_CALLS_GEMMA4) {
        put(&a->text, "<|tool_call>call:");
        put(&a->text, name);
        put_gemma(d, &a->text, arguments);
        put(&a->text, "<tool_call|>");
    } else if (calls == TD_REPLY_CALLS_QWEN && below(d, 3)) {
        put_xml(&a->text, name, arguments);
    } else {
        put_hermes(d, &a->text, name, arguments);
    }
    a->arguments[a->n++] = arguments;
}

static void add_content(dice *d, answer *a) {
    td_buf p;
    td_buf_init(&p, 1 << 20);
    if (put_paragraph(d, &p)) {
        put(&a->text, a->n ? "\n\n" : "");
        put(&a->content, a->content.size ? "\n\n" : "");
        assert_int_equal(td_buf_append(&a->text, p.data, p.size), TD_OK);
        assert_int_equal(td_buf_append(&a->content, p.data, p.size), TD_OK);
    }
    td_buf_free(&p);
}

static void make_answer(dice *d, const reply_case *c, answer *a) {
    bool gemma = c->format.calls == TD_REPLY_CALLS_GEMMA4;
    *a = (answer){.tools = json_array()};
    td_buf_init(&a->text, 1 << 22);
    td_buf_init(&a->reasoning, 1 << 20);
    td_buf_init(&a->content, 1 << 20);
    if (put_paragraph(d, &a->reasoning)) {
        put(&a->text, c->inside ? "" : gemma ? "<|channel>thought\n" : "<think>\n");
        assert_int_equal(td_buf_append(&a->text, a->reasoning.data, a->reasoning.size), TD_OK);
    }
    if (a->reasoning.size || c->inside)
        put(&a->text, gemma ? "\n<channel|>" : "\n</think>\n\n");
    add_content(d, a);
    for (uint32_t i = below(d, MAX_CALLS + 1); i > 0; i--) {
        add_call(d, a, c->format.calls);
        if (below(d, 2))
            add_content(d, a);
    }
}

static void free_answer(answer *a) {
    td_buf_free(&a->text);
    td_buf_free(&a->reasoning);
    td_buf_free(&a->content);
    for (size_t i = 0; i < a->n; i++)
        json_decref(a->arguments[i]);
    json_decref(a->tools);
}

/* ---- there and back ---- */

static void check_text(const answer *a, const td_buf *got, const td_buf *expected) {
    if (got->size != expected->size || (got->size && memcmp(got->data, expected->data, got->size) != 0))
        fail_msg("got      %s\nexpected %s\nfrom     %s", got->size ? got->data : "",
                 expected->size ? expected->data : "", a->text.data);
}

static void check_message(const answer *a, const td_reply_message *m) {
    check_text(a, &m->reasoning, &a->reasoning);
    check_text(a, &m->content, &a->content);
    if (m->n_calls != a->n || m->n_incomplete)
        fail_msg("%zu calls, %u incomplete, of %zu: %s", m->n_calls, m->n_incomplete, a->n, a->text.data);
    for (size_t i = 0; i < a->n; i++) {
        json_error_t e;
        json_t *got = json_loadb(m->calls[i].arguments.data, m->calls[i].arguments.size, 0, &e);
        assert_string_equal(m->calls[i].name, a->names[i]);
        if (!got || !json_equal(got, a->arguments[i]))
            fail_msg("arguments %s of %s", m->calls[i].arguments.data, a->text.data);
        json_decref(got);
    }
}

static void parse(const reply_case *c, const answer *a, const size_t *cuts, size_t n_cuts, td_reply_message *m) {
    td_reply *r;
    td_error err;
    td_reply_options opt = {.format = c->format,
                            .inside_reasoning = c->inside,
                            .tools = a->tools,
                            .on_event = td_reply_message_event,
                            .user = m};
    size_t from = 0;
    assert_int_equal(td_reply_open(&r, &opt, &err), TD_OK);
    for (size_t i = 0; i <= n_cuts; i++) {
        size_t to = i < n_cuts ? cuts[i] : a->text.size;
        assert_int_equal(td_reply_push(r, a->text.data + from, to - from, &err), TD_OK);
        from = to;
    }
    assert_int_equal(td_reply_finish(r, &err), TD_OK);
    td_reply_close(&r);
}

static void round_trips(const reply_case *c) {
    for (uint64_t round = 0; round < ROUNDS; round++) {
        dice d = {.seed = round};
        answer a;
        make_answer(&d, c, &a);
        size_t *cuts = malloc((a.text.size + 1) * sizeof *cuts);
        assert_non_null(cuts);
        for (uint64_t k = 0; k < CUTS; k++) {
            td_reply_message m;
            td_reply_message_init(&m, 1 << 22);
            size_t n_cuts = k ? random_cuts(cuts, a.text.size, round * CUTS + k, 1.0 + 6 * (double)(k - 1)) : 0;
            parse(c, &a, cuts, n_cuts, &m);
            check_message(&a, &m);
            td_reply_message_free(&m);
        }
        free(cuts);
        free_answer(&a);
    }
}

static void gemma4_comes_back(void **state) {
    (void)state;
    const reply_case closed = {"", GEMMA4, "", "", NULL, false}, open = {"", GEMMA4, "", "", NULL, true};
    round_trips(&closed);
    round_trips(&open);
}

static void qwen_comes_back(void **state) {
    (void)state;
    const reply_case closed = {"", QWEN, "", "", NULL, false}, open = {"", QWEN, "", "", NULL, true};
    round_trips(&closed);
    round_trips(&open);
}

static void json_comes_back(void **state) {
    (void)state;
    const reply_case closed = {"", JSON_CALLS, "", "", NULL, false};
    round_trips(&closed);
}

/* ---- answers that went wrong ---- */

/* A few bytes gone, doubled, exchanged, or the text cut off. */
static void spoil(dice *d, td_buf *text) {
    for (uint32_t i = 1 + below(d, 4); i > 0 && text->size > 1; i--) {
        size_t at = below(d, (uint32_t)text->size), n = 1 + below(d, 12);
        n = n < text->size - at ? n : text->size - at;
        switch (below(d, 4)) {
        case 0:
            memmove(text->data + at, text->data + at + n, text->size - at - n);
            text->size -= n;
            break;
        case 1: {
            size_t from = below(d, (uint32_t)(text->size - n + 1));
            memmove(text->data + at, text->data + from, n);
            break;
        }
        case 2:
            text->data[at] = "<>{}[]\",:|/= \n\xFF"[below(d, 16)];
            break;
        default:
            text->size = below(d, 4) ? text->size : at;
        }
    }
}

/* Nothing is known of what must come out, but it must be the same for every cut, and keep to the protocol. */
static void spoilt_answers_of_any_cut(void **state) {
    (void)state;
    const reply_case formats[] = {
        {"", GEMMA4, "", "", NULL, false}, {"", QWEN, "", "", NULL, true}, {"", JSON_CALLS, "", "", NULL, false}};
    for (uint64_t round = 0; round < ROUNDS; round++) {
        const reply_case *c = &formats[round % 3];
        dice d = {.seed = 1000000 + round};
        answer a;
        transcript whole, t;
        make_answer(&d, c, &a);
        spoil(&d, &a.text);
        size_t *cuts = malloc((a.text.size + 1) * sizeof *cuts);
        assert_non_null(cuts);
        bool nul = a.text.size && memchr(a.text.data, '\0', a.text.size); /* which the strict reader does not have */
        transcript_init(&whole);
        whole.unchecked = nul;
        assert_int_equal(run_pieces(c, a.tools, a.text.data, a.text.size, NULL, 0, &whole), TD_OK);
        for (uint64_t k = 0; k < CUTS; k++) {
            size_t n_cuts = random_cuts(cuts, a.text.size, round * CUTS + k, 1.0 + 6 * (double)k);
            transcript_init(&t);
            t.unchecked = nul;
            assert_int_equal(run_pieces(c, a.tools, a.text.data, a.text.size, cuts, n_cuts, &t), TD_OK);
            if (t.text.size != whole.text.size ||
                (t.text.size && memcmp(t.text.data, whole.text.data, t.text.size) != 0))
                fail_msg("whole %s\ncut   %s", whole.text.data, t.text.data);
            assert_string_equal(t.fault, whole.fault);
            transcript_free(&t);
        }
        transcript_free(&whole);
        free(cuts);
        free_answer(&a);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gemma4_comes_back),
        cmocka_unit_test(qwen_comes_back),
        cmocka_unit_test(json_comes_back),
        cmocka_unit_test(spoilt_answers_of_any_cut),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
