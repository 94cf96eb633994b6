/* fuzz_grammar.c - libFuzzer target of grammars: GBNF text, JSON Schemas, tools.
 *
 * The first byte chooses which, a grammar follows up to a NUL byte, and what comes then chooses tokens. Whatever is
 * compiled: every mask has a token, holds exactly the tokens that can be taken, and a walk chosen by the input keeps to
 * that. Errors are the ones the headers name; nothing stays allocated. Seeds: fuzz_grammar.seeds. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "format/checkpoint.h"
#include "text/grammar_calls.h"
#include "text/json_schema.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define REQUIRE(condition)                                                                                             \
    do {                                                                                                               \
        if (!(condition))                                                                                              \
            abort();                                                                                                   \
    } while (0)

enum { MAX_STEPS = 200, N_WORDS = 8 };

static td_tokenizer *tok;
static td_token_trie *trie;

/* The bytes, a few texts, and the markers of the formats. */
static void open_vocabulary(void) {
    static const char *const texts[] = {"<end>", "<|tool_call>", "<tool_call|>", "<|\\\"|>", "ab",   "abc",
                                        "{\\\"", "\\\":",        "\\\",",        "true",     "null", " ",
                                        "12",    "\\n</",        "</parameter>", "e",        "ing"};
    td_buf b;
    td_error err;
    td_buf_init(&b, 1 << 20);
    td_buf_puts(&b, "{\"version\":\"1.0\",\"added_tokens\":[");
    for (int i = 0; i < 4; i++)
        td_buf_printf(&b, "%s{\"id\":%d,\"content\":\"%s\",\"special\":true}", i ? "," : "", i, texts[i]);
    td_buf_puts(&b,
                "],\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]},"
                "\"model\":{\"type\":\"BPE\",\"byte_fallback\":true,\"merges\":[],\"vocab\":{");
    int id = 0;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++, id++)
        td_buf_printf(&b, "%s\"%s\":%d", id ? "," : "", texts[i], id);
    for (int byte = 0; byte < 256; byte++, id++)
        td_buf_printf(&b, ",\"<0x%02X>\":%d", byte, id);
    td_buf_puts(&b, "}}}");
    const td_token end = 0;
    REQUIRE(td_tokenizer_parse(&tok, b.data, b.size, NULL, 0, "fuzz", &err) == TD_OK);
    REQUIRE(td_token_trie_open(&trie, tok, 0, &end, 1, &err) == TD_OK);
    REQUIRE(trie->n_words <= N_WORDS);
    td_buf_free(&b);
}

static td_status compile(td_grammar **out, unsigned choice, const char *text, size_t size) {
    td_error err;
    json_t *json = NULL;
    *out = NULL;
    td_grammar_options opt = {.think = (td_reply_think)(choice / 8 % 3), .inside_reasoning = choice & 64};
    if (choice % 8 < 3)
        return td_grammar_from_gbnf(out, trie, text, size, &opt, &err);
    if (td_json_parse(text, size, 32, "fuzz", &json, &err) != TD_OK)
        return TD_E_FORMAT;
    td_grammar_calls_options calls = {
        .format = {opt.think, (td_reply_calls)(choice % 8 - 4)}, .tools = json, .parallel = choice & 128};
    td_status st = choice % 8 < 5 ? td_grammar_from_json_schema(out, trie, json, &opt, &err)
                                  : td_grammar_from_tools(out, trie, &calls, &err);
    json_decref(json);
    return st;
}

/* False: the grammar has outgrown its bounds, which is no fault. */
static bool step(td_grammar_state *s, uint8_t byte) {
    uint64_t mask[N_WORDS];
    td_error err;
    size_t n, n_ok, found = 0;
    td_status st = td_grammar_state_allowed(s, mask, &n, &err);
    if (st == TD_E_LIMIT)
        return false;
    REQUIRE(st == TD_OK && n > 0);
    td_token chosen = -1;
    for (size_t k = 0; k < trie->n_vocab; k++) {
        td_token t = (td_token)((k + byte) % trie->n_vocab);
        if (td_mask_has(mask, t) && chosen < 0)
            chosen = t;
        if ((k + byte) % 5 == 0) {
            st = td_grammar_state_accepts(s, &t, 1, &n_ok, &err);
            REQUIRE(st == TD_E_LIMIT || (st == TD_OK && (n_ok == 1) == td_mask_has(mask, t)));
        }
        found += td_mask_has(mask, t);
    }
    REQUIRE(found == n);
    st = td_grammar_state_advance(s, chosen, &err);
    REQUIRE(st == TD_OK || st == TD_E_LIMIT);
    return st == TD_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    td_grammar *g;
    td_grammar_state *s;
    td_error err;
    if (size < 2)
        return 0;
    if (!trie)
        open_vocabulary();
    long live = td_alloc_live();
    const uint8_t *nul = memchr(data + 1, 0, size - 1);
    size_t n = nul ? (size_t)(nul - data - 1) : size - 1;
    td_status st = compile(&g, data[0], (const char *)data + 1, n);
    REQUIRE(st != TD_E_NOMEM && (st == TD_OK) == (g != NULL));
    if (g) {
        REQUIRE(td_grammar_state_open(&s, g, &err) == TD_OK);
        for (size_t i = 0; i < MAX_STEPS && !td_grammar_state_has_ended(s); i++)
            if (!step(s, i + n + 2 < size ? data[i + n + 2] : (uint8_t)(i * 7)))
                break;
        td_grammar_state_close(&s);
    }
    td_grammar_close(&g);
    REQUIRE(td_alloc_live() == live);
    return 0;
}
