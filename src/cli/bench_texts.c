/* bench_texts.c - see bench_texts.h.
 *
 * A message opens with what is asked, then comes material, then the request again, shorter, since a model that has read
 * 40,000 tokens should not have to remember the first line. Material is made of units whose words are drawn by their
 * number: no unit is like another, so that neither a drafter nor prompt lookup finds a text that repeats itself by
 * construction. */
#include "cli/bench_texts.h"

#include <string.h>

#include "base/alloc.h"
#include "cli/answer.h"

#define MAX_MESSAGE ((size_t)16 << 20)

static const char *const things[] = {"river",  "lantern", "orchard", "harbour",  "violin",  "bridge",
                                     "winter", "garden",  "letter",  "mountain", "kitchen", "market",
                                     "engine", "forest",  "window",  "island"};
static const char *const people[] = {"Mara", "Jonas", "Ilse", "Tariq", "Noor", "Felix", "Anouk", "Pavel"};
static const char *const acts[] = {"repaired", "remembered", "painted", "measured", "followed", "described",
                                   "left",     "counted",    "crossed", "borrowed", "opened",   "searched for"};
static const char *const traits[] = {"old", "quiet", "narrow", "bright", "distant", "broken", "green", "familiar"};

#define OF(list, k) list[(k) % (sizeof(list) / sizeof *(list))]

/* A number that belongs to (unit, place). */
static uint32_t pick(uint32_t unit, uint32_t place) {
    uint32_t x = unit * 0x9E3779B1u ^ (place + 1) * 0x85EBCA6Bu;
    x = (x ^ x >> 15) * 0x2C1B3C6Du;
    return x ^ x >> 13;
}

/* ---- units of material ---- */

static void code_unit(td_buf *b, uint32_t k) {
    const char *noun = OF(things, pick(k, 0)), *trait = OF(traits, pick(k, 1));
    (void)td_buf_printf(b,
                        "/* Distance from the %s %s to post %u, in metres. */\n"
                        "static int %s_%s_%u(int from, int to) {\n"
                        "    if (from > %u)\n        return from - to;\n"
                        "    return %u * to - from / %u;\n}\n\n",
                        trait, noun, k, trait, noun, k, pick(k, 2) % 900, pick(k, 3) % 40 + 2, pick(k, 4) % 9 + 1);
}

static void prose_unit(td_buf *b, uint32_t k) {
    (void)td_buf_printf(b, "In the %s %s, %s %s the %s %s while %s waited by the %s. ", OF(traits, pick(k, 0)),
                        OF(things, pick(k, 1)), OF(people, pick(k, 2)), OF(acts, pick(k, 3)), OF(traits, pick(k, 4)),
                        OF(things, pick(k, 5)), OF(people, pick(k, 6)), OF(things, pick(k, 7)));
}

static void json_unit(td_buf *b, uint32_t k) {
    (void)td_buf_printf(b,
                        "{\"id\": %u, \"owner\": \"%s\", \"item\": \"%s %s\", \"weight\": %u.%u, \"sold\": %s, "
                        "\"tags\": [\"%s\", \"%s\"]},\n",
                        1000 + k, OF(people, pick(k, 0)), OF(traits, pick(k, 1)), OF(things, pick(k, 2)),
                        pick(k, 3) % 90, pick(k, 4) % 10, pick(k, 5) % 2 ? "true" : "false", OF(things, pick(k, 6)),
                        OF(traits, pick(k, 7)));
}

static void translation_unit(td_buf *b, uint32_t k) {
    (void)td_buf_printf(b, "%u. Yesterday %s %s a %s %s near the %s.\n", k + 1, OF(people, pick(k, 0)),
                        OF(acts, pick(k, 1)), OF(traits, pick(k, 2)), OF(things, pick(k, 3)), OF(things, pick(k, 4)));
}

static void maths_unit(td_buf *b, uint32_t k) {
    uint32_t x = pick(k, 0) % 90 + 10, y = pick(k, 1) % 90 + 10;
    (void)td_buf_printf(b, "Problem %u: %s has %u apples and buys %u baskets of %u. Answer: %u + %u * %u = %u.\n",
                        k + 1, OF(people, pick(k, 2)), x, y, k % 12 + 2, x, y, k % 12 + 2, x + y * (k % 12 + 2));
}

static void review_unit(td_buf *b, uint32_t k) {
    (void)td_buf_printf(b,
                        "@@ %s/%s.c line %u @@\n-    int n = count_%s(%u);\n+    size_t n = count_%s(%u);\n"
                        "%s: why is the %s counted here, and not where it is %s?\n",
                        OF(things, pick(k, 0)), OF(traits, pick(k, 1)), pick(k, 2) % 2000, OF(things, pick(k, 3)),
                        pick(k, 4) % 100, OF(things, pick(k, 3)), pick(k, 4) % 100 + 1, OF(people, pick(k, 5)),
                        OF(things, pick(k, 6)), OF(acts, pick(k, 7)));
}

/* ---- classes ---- */

static const struct {
    const char *name, *opening, *closing;
    void (*unit)(td_buf *b, uint32_t k);
} classes[TD_BENCH_CLASSES] = {
    {"code",
     "Write a C function that returns the length of the longest run of equal numbers in an array, with a short "
     "comment and a test.",
     "Now write that function.", code_unit},
    {"prose", "Write the first page of a story about a lighthouse keeper who finds a letter in a bottle.",
     "Now write that page.", prose_unit},
    {"json", "Write a JSON array of eight fictional books, each with id, title, author, year and a list of two tags.",
     "Now write that array.", json_unit},
    {"translation",
     "Translate into German: The train was late, so we walked along the river. The old bridge was closed, "
     "and a woman sold apples from a small cart. She told us that the market opens at nine.",
     "Now translate the sentences of the first paragraph into German.", translation_unit},
    {"maths",
     "A shop sells pens at 3 for 2 euros and notebooks at 4 euros each. Anna buys 12 pens and 5 notebooks and "
     "pays with 50 euros. Work out her change, step by step.",
     "Now work out Anna's change, step by step.", maths_unit},
    {"review",
     "Review this change: a cache that kept every entry for ever now drops the least recently used one when it "
     "holds more than a thousand. Say what could go wrong, point by point, in detail.",
     "Now write that review, point by point.", review_unit},
};

const char *td_bench_class_name(uint32_t class) {
    return class < TD_BENCH_CLASSES ? classes[class].name : "";
}

void td_bench_message(uint32_t class, size_t bytes, td_buf *out) {
    (void)td_buf_puts(out, classes[class].opening);
    if (bytes == 0)
        return;
    (void)td_buf_puts(out, "\n\n");
    size_t end = out->size + bytes;
    for (uint32_t k = 0; out->size < end && !out->failed; k++)
        classes[class].unit(out, k);
    (void)td_buf_printf(out, "\n\n%s", classes[class].closing);
}

/* ---- prompts ---- */

static td_status tokens_of(const td_engine *e, const char *text, td_token **tokens, size_t *n, td_error *err) {
    json_t *messages = json_array();
    td_error none = {0};
    td_status st = td_chat_append(messages, "user", text) ? td_chat_tokens(e, messages, tokens, n, &none) : TD_E_NOMEM;
    json_decref(messages);
    if (st == TD_E_NOTFOUND) /* no chat template */
        return td_engine_tokenize(e, text, strlen(text), true, false, tokens, n, err);
    if (st != TD_OK && err)
        *err = none;
    return st;
}

static bool has_tokenizer(const td_engine *e) {
    td_token *t = NULL;
    size_t n;
    bool yes = td_engine_tokenize(e, "a", 1, false, false, &t, &n, NULL) == TD_OK;
    td_tokens_free(t);
    return yes;
}

static td_status bare_ids(const td_engine *e, uint32_t class, uint32_t n, td_token **tokens, size_t *n_tokens,
                          td_error *err) {
    uint32_t n_vocab = td_engine_describe(e)->n_vocab;
    *tokens = td_calloc(n, sizeof **tokens);
    if (!*tokens)
        return td_fail(err, TD_E_NOMEM, "out of memory for a prompt");
    for (uint32_t i = 0; i < n; i++)
        (*tokens)[i] = (td_token)(pick(i, class) % n_vocab);
    *n_tokens = n;
    return TD_OK;
}

td_status td_bench_prompt(const td_engine *e, uint32_t class, uint32_t n, td_token **tokens, size_t *n_tokens,
                          td_error *err) {
    *tokens = NULL;
    *n_tokens = 0;
    if (!has_tokenizer(e))
        return bare_ids(e, class, n, tokens, n_tokens, err);
    double bytes = 0, per_token = 4;
    for (int attempt = 0; attempt < 6; attempt++) {
        td_buf text;
        td_buf_init(&text, MAX_MESSAGE);
        td_tokens_free(*tokens);
        *tokens = NULL;
        td_bench_message(class, (size_t)bytes, &text);
        td_status st = text.failed ? td_fail(err, TD_E_NOMEM, "out of memory for a prompt of %u tokens", n)
                                   : tokens_of(e, text.data, tokens, n_tokens, err);
        double size = (double)text.size;
        td_buf_free(&text);
        if (st != TD_OK)
            return st;
        double missing = (double)n - (double)*n_tokens;
        if (attempt > 0)
            per_token = size / (double)*n_tokens;
        if (missing < 24 && (missing > -(double)n / 50 || bytes == 0))
            break;
        bytes = bytes + missing * per_token > 0 ? bytes + missing * per_token : 0;
    }
    return TD_OK;
}
