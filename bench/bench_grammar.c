/* bench_grammar.c - what a mask costs with a vocabulary of Gemma's size.
 *
 *   bench_grammar [words]            default 262144
 *   bench_grammar tokenizer.json
 *
 * The vocabulary is synthesised, in proportions like a published one: words with and without a space in front, pieces
 * of code with quotes, backslashes and line feeds, runs of spaces, digits, CJK. A text that each grammar accepts is cut
 * into its longest tokens, and the mask of every place is timed on the processor time of the thread: first with a
 * grammar just compiled (cold: nothing is known), then by a second sequence of the same grammar (warm). Every mask must
 * hold the text's next token, or the program stops. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file.h"
#include "text/grammar_calls.h"
#include "text/json_schema.h"

#define CEILING ((size_t)1 << 30)

static void die(const char *what) {
    fprintf(stderr, "bench_grammar: %s\n", what);
    exit(1);
}

static double now_ms(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
}

static uint32_t state = 1;

static uint32_t next(uint32_t n) {
    state = state * 1664525u + 1013904223u;
    return (uint32_t)((uint64_t)state * n >> 32);
}

/* ---- the vocabulary ---- */

static void put_cjk(td_buf *b) {
    uint32_t c = 0x4E00 + next(0x5000);
    char s[4] = {(char)(0xE0 | c >> 12), (char)(0x80 | (c >> 6 & 63)), (char)(0x80 | (c & 63)), 0};
    td_buf_puts(b, s);
}

static void put_word(td_buf *b) {
    static const char *const parts[] = {"a",  "e",   "i",    "o", "u", "th", "er", "in", "on",   "re",
                                        "st", "ing", "tion", "n", "t", "s",  "l",  "m",  "p",    "ch",
                                        "qu", "d",   "k",    "b", "f", "g",  "w",  "y",  "ness", "able"};
    for (uint32_t i = 1 + next(4); i > 0; i--)
        td_buf_puts(b, parts[next(sizeof parts / sizeof *parts)]);
}

static void put_code(td_buf *b) {
    static const char *const marks[] = {"\"", "\"", "\":",  "\",", "{",   "}",  "[",   "]",  "(", ")",
                                        ";",  "\n", "\n  ", "\\",  "\\n", "'",  "</",  "<",  ">", "=",
                                        " ",  ",",  "0",    "1",   "/",   "\t", "}\n", "\\u"};
    for (uint32_t i = 1 + next(3); i > 0; i--) {
        td_buf_puts(b, marks[next(sizeof marks / sizeof *marks)]);
        if (next(4) == 0)
            put_word(b);
    }
}

static void make_piece(td_buf *b) {
    td_buf_clear(b);
    uint32_t kind = next(100);
    if (kind < 35)
        td_buf_puts(b, " ");
    if (kind < 68)
        put_word(b);
    else if (kind < 74)
        put_code(b);
    else if (kind < 94)
        for (uint32_t i = 1 + next(4); i > 0; i--)
            put_cjk(b);
    else if (kind < 97)
        td_buf_printf(b, "%u", next(100000));
    else
        for (uint32_t i = 1 + next(40); i > 0; i--)
            td_buf_puts(b, kind == 97 ? " " : kind == 98 ? "-" : "\n");
}

static td_tokenizer *synthesise(size_t n_words) {
    json_t *vocab = json_object();
    json_int_t id = 0;
    char byte[16];
    td_buf piece;
    td_tokenizer *tok;
    td_error err;
    td_buf_init(&piece, 4096);
    static const char *const special[] = {"<end>", "<|tool_call>", "<tool_call|>", "<|\"|>"};
    for (int i = 0; i < 4; i++)
        json_object_set_new(vocab, special[i], json_integer(id++));
    for (int b = 0; b < 256; b++) {
        snprintf(byte, sizeof byte, "<0x%02X>", b);
        json_object_set_new(vocab, byte, json_integer(id++));
    }
    for (char c = ' '; c <= '~'; c++) {
        byte[0] = c;
        byte[1] = '\0';
        json_object_set_new(vocab, byte, json_integer(id++));
    }
    while ((size_t)id < n_words) {
        make_piece(&piece);
        if (!json_object_get(vocab, td_buf_str(&piece)))
            json_object_set_new(vocab, td_buf_str(&piece), json_integer(id++));
    }
    td_buf_free(&piece);
    json_t *added = json_array();
    for (int i = 0; i < 4; i++)
        json_array_append_new(added, json_pack("{s:i, s:s, s:b}", "id", i, "content", special[i], "special", 1));
    json_t *root = json_pack("{s:s, s:o, s:{s:s, s:[{s:s}, {s:s}]}, s:{s:s, s:b, s:o, s:[]}}", "version", "1.0",
                             "added_tokens", added, "decoder", "type", "Sequence", "decoders", "type", "ByteFallback",
                             "type", "Fuse", "model", "type", "BPE", "byte_fallback", 1, "vocab", vocab, "merges");
    char *text = json_dumps(root, JSON_COMPACT);
    if (td_tokenizer_parse(&tok, text, strlen(text), NULL, 0, "synthetic", &err) != TD_OK)
        die(err.message);
    free(text);
    json_decref(root);
    return tok;
}

/* ---- cutting a text into its longest tokens ---- */

static td_token longest(const td_token_trie *t, const char *text, size_t n, size_t *size) {
    td_token best = -1;
    *size = 0;
    for (int k = 0; k < TD_TRIE_SLICES; k++) {
        const td_trie_slice *s = &t->slices[k];
        for (uint32_t i = 0; i < s->n_nodes;) {
            const td_trie_node *node = &s->nodes[i];
            if (node->depth > n || (uint8_t)text[node->depth - 1] != node->byte) {
                i = node->skip;
                continue;
            }
            uint32_t from = i > 0 ? s->nodes[i - 1].tokens_end : 0;
            if (node->tokens_end > from && node->depth > *size) {
                best = s->ids[from];
                *size = node->depth;
            }
            i++;
        }
    }
    return best;
}

static void cut(const td_token_trie *t, const char *text, td_token_list *out) {
    size_t n = strlen(text), size;
    for (; n > 0; text += size, n -= size) {
        td_token token = longest(t, text, n, &size);
        if (token < 0 || td_token_list_push(out, token, NULL) != TD_OK)
            die("the text cannot be cut into tokens");
    }
}

/* ---- timing ---- */

typedef struct times {
    double sum, most, advance;
    size_t n;
} times;

static times follow(td_grammar *g, const td_token_list *tokens, uint64_t *mask) {
    td_grammar_state *s;
    td_error err;
    times t = {0};
    if (td_grammar_state_open(&s, g, &err) != TD_OK)
        die(err.message);
    for (size_t i = 0; i < tokens->n; i++) {
        double start = now_ms();
        if (td_grammar_state_allowed(s, mask, NULL, &err) != TD_OK)
            die(err.message);
        double took = now_ms() - start;
        if (!td_mask_has(mask, tokens->ids[i]))
            die("a mask without the text's next token");
        t.sum += took;
        t.most = took > t.most ? took : t.most;
        t.n++;
        start = now_ms();
        if (td_grammar_state_advance(s, tokens->ids[i], &err) != TD_OK)
            die(err.message);
        t.advance += now_ms() - start;
    }
    if (!td_grammar_state_is_complete(s))
        die("the text is not complete");
    td_grammar_state_close(&s);
    return t;
}

static void measure(const char *name, const td_token_trie *trie, td_grammar *g, double compiled, const char *text) {
    td_token_list tokens;
    uint64_t *mask = td_calloc(trie->n_words, sizeof *mask);
    td_token_list_init(&tokens, 1 << 20);
    cut(trie, text, &tokens);
    times cold = follow(g, &tokens, mask), warm = follow(g, &tokens, mask);
    printf("%-34s %5zu %9.2f %9.3f %9.2f %9.4f %9.3f %9.4f\n", name, tokens.n, compiled, cold.sum / (double)cold.n,
           cold.most, warm.sum / (double)warm.n, warm.most, warm.advance / (double)warm.n);
    td_token_list_free(&tokens);
    td_free(mask);
    td_grammar_close(&g);
}

static void measure_schema(const char *name, const td_token_trie *trie, const char *schema, const char *text) {
    json_t *s = json_loads(schema, JSON_DECODE_ANY, NULL);
    td_grammar *g;
    td_error err;
    if (!s)
        die(schema);
    double start = now_ms();
    if (td_grammar_from_json_schema(&g, trie, s, NULL, &err) != TD_OK)
        die(err.message);
    measure(name, trie, g, now_ms() - start, text);
    json_decref(s);
}

static void measure_gbnf(const char *name, const td_token_trie *trie, const char *grammar, const char *text) {
    td_grammar *g;
    td_error err;
    double start = now_ms();
    if (td_grammar_from_gbnf(&g, trie, grammar, strlen(grammar), NULL, &err) != TD_OK)
        die(err.message);
    measure(name, trie, g, now_ms() - start, text);
}

static void measure_calls(const char *name, const td_token_trie *trie, const char *text) {
    td_grammar *g;
    td_error err;
    json_t *tools = json_loads(
        "[{\"name\":\"search\",\"parameters\":{\"type\":\"object\",\"properties\":{\"query\":{\"type\":\"string\"},"
        "\"limit\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":50}},\"required\":[\"query\"]}}]",
        0, NULL);
    td_grammar_calls_options opt = {.format = {TD_REPLY_THINK_TAGS, TD_REPLY_CALLS_QWEN}, .tools = tools};
    double start = now_ms();
    if (td_grammar_from_tools(&g, trie, &opt, &err) != TD_OK)
        die(err.message);
    measure(name, trie, g, now_ms() - start, text);
    json_decref(tools);
}

static const char document[] = "{\n  \"name\": \"Annual meeting of the northern station\",\n  \"id\": 20417,\n  "
                               "\"open\": true,\n  \"score\": 0.875,\n"
                               "  \"tags\": [\"station\", \"meeting\", \"research and training\", "
                               "\"\xE5\x8C\x97\xE6\x96\xB9\"],\n  \"people\": [\n"
                               "    {\"name\": \"Inger Strand\", \"role\": \"chair\", \"note\": \"She said: \\\"we "
                               "begin at ten\\\", and meant it.\"},\n"
                               "    {\"name\": \"Tor Berg\", \"role\": \"notes\", \"note\": \"Takes the minutes\\nand "
                               "sends them around the same evening.\"},\n"
                               "    {\"name\": \"Ren\xC3\xA9"
                               "e Holm\", \"role\": \"guest\", \"note\": \"\"}\n  ],\n"
                               "  \"summary\": \"The station reports on its work of the year: two new buoys, three "
                               "hundred samples taken, one boat lost "
                               "in the ice and found again in spring. The budget was passed without a vote. Training "
                               "begins in March; those who want a "
                               "place write to the office before the end of the month.\"\n}";

static const char document_schema[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"id\":{\"type\":\"integer\",\"minimum\":0,"
    "\"maximum\":99999},"
    "\"open\":{\"type\":\"boolean\"},\"score\":{\"type\":\"number\"},\"tags\":{\"type\":\"array\",\"items\":{\"type\":"
    "\"string\"}},\"people\":{"
    "\"type\":\"array\",\"items\":{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\"},\"role\":{"
    "\"enum\":[\"chair\",\"notes\",\"guest\"]},"
    "\"note\":{\"type\":\"string\"%s}},\"required\":[\"name\",\"role\",\"note\"],\"additionalProperties\":false}},"
    "\"summary\":{\"type\":\"string\"%s}},"
    "\"required\":[\"name\",\"id\",\"open\",\"score\",\"tags\",\"people\",\"summary\"],\"additionalProperties\":false}";

static void measure_all(const td_token_trie *trie) {
    char schema[2000];
    printf("%-34s %5s %9s %9s %9s %9s %9s %9s\n", "ms of processor time", "masks", "compile", "cold avg", "cold max",
           "warm avg", "warm max", "advance");
    measure_schema("any JSON", trie, "{\"type\":\"object\"}", document);
    snprintf(schema, sizeof schema, document_schema, "", "");
    measure_schema("schema", trie, schema, document);
    snprintf(schema, sizeof schema, document_schema, ",\"maxLength\":120", ",\"minLength\":10,\"maxLength\":2000");
    measure_schema("schema with lengths", trie, schema, document);
    measure_schema("pattern of letters", trie, "{\"type\":\"string\",\"pattern\":\"^[A-Za-z ,.]+$\"}",
                   "\"The station reports on its work of the year, and goes on with it in the next one.\"");
    measure_schema("string of at most 20000", trie, "{\"type\":\"string\",\"maxLength\":20000}",
                   "\"The station reports on its work of the year, and goes on with it in the next one.\"");
    measure_gbnf("GBNF, lines of text", trie, "root ::= (\"- \" [^\\n]+ \"\\n\")+",
                 "- The station reports\n- \"quoted\" and more\n");
    measure_gbnf("GBNF, letters and digits", trie, "root ::= [a-z0-9 ]{10,200}",
                 "the station reports on its work of the year 2024 and of the next");
    measure_calls(
        "call, Qwen", trie,
        "<tool_call>\n<function=search>\n<parameter=query>\nthe northern station, \"annual meeting\"\n</parameter>\n"
        "<parameter=limit>\n10\n</parameter>\n</function>\n</tool_call>");
}

int main(int argc, char **argv) {
    td_tokenizer *tok = NULL;
    td_token_trie *trie = NULL;
    td_error err;
    const char *path = argc > 1 && strchr(argv[1], '.') ? argv[1] : NULL;
    size_t n_words = argc > 1 && !path ? strtoull(argv[1], NULL, 10) : 262144;
    if (path && td_tokenizer_load(&tok, path, NULL, &err) != TD_OK)
        die(err.message);
    if (!path)
        tok = synthesise(n_words < 1000 ? 1000 : n_words);
    const td_token end = 0;
    double start = now_ms();
    if (td_token_trie_open(&trie, tok, 0, &end, 1, &err) != TD_OK)
        die(err.message);
    printf("%zu tokens, trie built in %.0f ms; tokens by slice:", trie->n_vocab, now_ms() - start);
    for (int k = 0; k < TD_TRIE_SLICES; k++)
        printf(" %zu", trie->slices[k].n_ids);
    printf("\n");
    measure_all(trie);
    td_token_trie_close(&trie);
    td_tokenizer_close(&tok);
    return 0;
}
