/* tokenizer_gguf.c - a td_tokenizer out of GGUF metadata.
 *
 * The file has the tables (words, merges, kinds of words) but only a name for the rest, so what tokenizer.json spells
 * out stands here: the normaliser, the splitting expression and the decoder of each name, as the JSON that the
 * components read anyway. Source: the published tokenizer.json files of the families, and what llama.cpp does for the
 * same names. (Gemma 4's text is one word: llama.cpp cuts it at runs of newlines, which no merge of a published
 * vocabulary crosses.)
 *
 * Kinds of words: normal ones and bytes are the model's; control and unknown ones become special added tokens, user
 * defined ones added tokens that are always found; unused ones (padding of the table) are left out. A merge is "left
 * right" with one space; a word never begins with one, so the first space that is not the first byte divides them. */
#include "text/tokenizer_gguf.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"
#include "format/checkpoint.h"
#include "format/json_scan.h"
#include "text/tokenizer_impl.h"

#define MAX_DEPTH 16
#define MAX_TOKENS (1u << 24)

enum { KIND_NORMAL = 1, KIND_UNKNOWN, KIND_CONTROL, KIND_USER, KIND_UNUSED, KIND_BYTE };

/* ---- the ways to split ---- */

#define REGEX(expression) "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" expression "\"},\"behavior\":\"Isolated\"}"
#define BYTES "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":false,\"use_regex\":false}"
#define SEQUENCE(parts) "{\"type\":\"Sequence\",\"pretokenizers\":[" parts "]}"

#define QWEN_TAIL "|\\\\s*[\\\\r\\\\n]+|\\\\s+(?!\\\\S)|\\\\s+"
#define QWEN_HEAD "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\\\r\\\\n\\\\p{L}\\\\p{N}]?"

typedef struct scheme {
    const char *model, *pre; /* pre NULL: the model alone decides */
    const char *normalizer, *pre_tokenizer, *decoder;
    bool byte_fallback, always_bos;
} scheme;

static const char byte_level_decoder[] = "{\"type\":\"ByteLevel\"}";
static const char deepseek[] =
    SEQUENCE(REGEX("\\\\p{N}{1,3}") "," REGEX("[\\u4e00-\\u9fa5\\u3040-\\u309f\\u30a0-\\u30ff]+") "," REGEX(
        "[!\\\"#$%&'()*+,\\\\-./:;<=>?@\\\\[\\\\\\\\\\\\]^_`{|}~][A-Za-z]+|[^\\\\r\\\\n\\\\p{L}\\\\p{P}\\\\p{S}]?"
        "[\\\\p{L}\\\\p{M}]+| ?[\\\\p{P}\\\\p{S}]+[\\\\r\\\\n]*" QWEN_TAIL) "," BYTES);

static const scheme schemes[] = {
    {.model = "gemma4",
     .normalizer = "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"\\u2581\"}",
     .pre_tokenizer = "{\"type\":\"Split\",\"pattern\":{\"String\":\" \"},\"behavior\":\"MergedWithPrevious\"}",
     .decoder = "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\\u2581\"},"
                "\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"}]}",
     .byte_fallback = true,
     .always_bos = true},
    {.model = "gpt2",
     .pre = "qwen35",
     .normalizer = "{\"type\":\"NFC\"}",
     .pre_tokenizer = SEQUENCE(REGEX(QWEN_HEAD "[\\\\p{L}\\\\p{M}]+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{M}\\\\p{N}]+"
                                               "[\\\\r\\\\n]*" QWEN_TAIL) "," BYTES),
     .decoder = byte_level_decoder},
    {.model = "gpt2",
     .pre = "qwen2",
     .normalizer = "{\"type\":\"NFC\"}",
     .pre_tokenizer =
         SEQUENCE(REGEX(QWEN_HEAD "\\\\p{L}+|\\\\p{N}| ?[^\\\\s\\\\p{L}\\\\p{N}]+[\\\\r\\\\n]*" QWEN_TAIL) "," BYTES),
     .decoder = byte_level_decoder},
    {.model = "gpt2", .pre = "deepseek-v3", .pre_tokenizer = deepseek, .decoder = byte_level_decoder},
    {.model = "gpt2", .pre = "joyai-llm", .pre_tokenizer = deepseek, .decoder = byte_level_decoder},
};

typedef struct loader {
    td_tokenizer *tok;
    const td_gguf *g;
    const char *path;
    const scheme *scheme;
    const td_gguf_value *tokens, *types, *merges;
    td_error *err;
} loader;

static td_status find_scheme(loader *l) {
    static const char model_key[] = "tokenizer.ggml.model", pre_key[] = "tokenizer.ggml.pre";
    const char *model, *pre;
    size_t model_size, pre_size;
    char a[TD_SHOWN_SIZE], b[TD_SHOWN_SIZE];
    TD_TRY(td_gguf_string_or_null(l->g, model_key, &model, &model_size, l->err));
    TD_TRY(td_gguf_string_or_null(l->g, pre_key, &pre, &pre_size, l->err));
    if (!model)
        return td_fail(l->err, TD_E_NOTFOUND, "%s: there is no tokenizer in it (no \"%s\")", l->path, model_key);
    for (size_t i = 0; i < sizeof schemes / sizeof schemes[0]; i++)
        if (td_gguf_string_is(l->g, model_key, schemes[i].model) &&
            (!schemes[i].pre || td_gguf_string_is(l->g, pre_key, schemes[i].pre))) {
            l->scheme = &schemes[i];
            return TD_OK;
        }
    return td_fail(l->err, TD_E_UNSUPPORTED,
                   "%s: a tokenizer of model \"%s\" and pre \"%s\", expected gemma4, or gpt2 with qwen35, qwen2, "
                   "deepseek-v3 or joyai-llm",
                   l->path, td_shown(a, model, model_size), pre ? td_shown(b, pre, pre_size) : "");
}

/* An array of strings, or of integers; *out NULL when the key is missing. */
static td_status find_array(const loader *l, const char *key, bool strings, const td_gguf_value **out) {
    const td_gguf_value *v = td_gguf_find(l->g, key);
    int64_t x;
    *out = v;
    if (!v)
        return TD_OK;
    bool fits = strings ? v->type == TD_GGUF_STRING : v->n == 0 || td_gguf_integer_at(v, 0, &x);
    if (!v->is_array || !fits)
        return td_fail(l->err, TD_E_MODEL, "%s: \"%s\" is no array of %s", l->path, key,
                       strings ? "strings" : "integers");
    return TD_OK;
}

static td_status find_tables(loader *l) {
    TD_TRY(find_array(l, "tokenizer.ggml.tokens", true, &l->tokens));
    TD_TRY(find_array(l, "tokenizer.ggml.token_type", false, &l->types));
    TD_TRY(find_array(l, "tokenizer.ggml.merges", true, &l->merges));
    if (!l->tokens || !l->merges)
        return td_fail(l->err, TD_E_MODEL, "%s: no \"tokenizer.ggml.%s\"", l->path, l->tokens ? "merges" : "tokens");
    if (l->tokens->n > MAX_TOKENS)
        return td_fail(l->err, TD_E_LIMIT, "%s: %" PRIu64 " tokens, expected at most %u", l->path, l->tokens->n,
                       MAX_TOKENS);
    if (l->types && l->types->n != l->tokens->n)
        return td_fail(l->err, TD_E_MODEL, "%s: %" PRIu64 " tokens, but %" PRIu64 " token types", l->path, l->tokens->n,
                       l->types->n);
    return TD_OK;
}

/* ---- words ---- */

/* Words that Gemma 4's own tokenizer has as special ones, and the converter marks as user defined so that a server that
 * parses text can see them. Here they stay special: a stranger's text must not become them. */
static bool is_marked_visible(const scheme *s, const char *text, size_t size) {
    static const char *const words[] = {"<|channel>",       "<channel|>",       "<|tool_call>", "<tool_call|>",
                                        "<|tool_response>", "<tool_response|>", "<|\"|>"};
    for (size_t i = 0; s->byte_fallback && i < sizeof words / sizeof words[0]; i++)
        if (strlen(words[i]) == size && memcmp(words[i], text, size) == 0)
            return true;
    return false;
}

static td_status put_word(loader *l, td_token id, const char *text, size_t size, int64_t kind) {
    static const uint8_t flags[] = {[KIND_NORMAL] = TD_PIECE_MODEL,
                                    [KIND_UNKNOWN] = TD_PIECE_MODEL | TD_PIECE_ADDED | TD_PIECE_SPECIAL,
                                    [KIND_CONTROL] = TD_PIECE_MODEL | TD_PIECE_ADDED | TD_PIECE_SPECIAL,
                                    [KIND_USER] = TD_PIECE_MODEL | TD_PIECE_ADDED,
                                    [KIND_BYTE] = TD_PIECE_MODEL};
    const bool special = flags[kind] & TD_PIECE_SPECIAL || is_marked_visible(l->scheme, text, size);
    const uint8_t own = (uint8_t)(flags[kind] | (special ? TD_PIECE_ADDED | TD_PIECE_SPECIAL : 0));
    TD_TRY(td_vocab_add(&l->tok->vocab, text, size, (uint64_t)id, own, l->err));
    if (!(own & TD_PIECE_ADDED) || size == 0)
        return TD_OK;
    return td_added_set_put(&l->tok->added, text, size, (td_added_token){.id = id, .special = special}, l->err);
}

static td_status read_words(loader *l) {
    td_gguf_strings s = {.v = l->tokens};
    const char *text;
    size_t size;
    for (td_token id = 0; td_gguf_next_string(&s, &text, &size); id++) {
        int64_t kind = KIND_NORMAL;
        if (l->types && (!td_gguf_integer_at(l->types, (uint64_t)id, &kind) || kind < KIND_NORMAL || kind > KIND_BYTE))
            return td_fail_at(l->err, TD_E_MODEL, id, "token %d: type %" PRId64 ", expected 1 to 6", id, kind);
        if (kind == KIND_UNUSED)
            continue;
        if (!td_json_utf8_valid(text, size))
            return td_fail_at(l->err, TD_E_FORMAT, id, "token %d is not UTF-8", id);
        TD_TRY(put_word(l, id, text, size, kind));
    }
    return TD_OK;
}

static td_status read_merges(loader *l) {
    td_gguf_strings s = {.v = l->merges};
    const char *text;
    size_t size;
    td_buf pair;
    TD_TRY(td_bpe_new(&l->tok->bpe, &l->tok->vocab, (size_t)l->merges->n, l->err));
    td_buf_init(&pair, l->merges->size + 1);
    td_status st = TD_OK;
    while (st == TD_OK && td_gguf_next_string(&s, &text, &size)) {
        const char *space = size > 1 ? memchr(text + 1, ' ', size - 1) : NULL;
        size_t left = space ? (size_t)(space - text) : 0;
        if (!space || left + 1 == size || memchr(space + 1, ' ', size - left - 1)) {
            st = td_fail_at(l->err, TD_E_MODEL, (int64_t)s.i - 1, "merge %" PRIu64 " is not two words with one space",
                            s.i - 1);
            break;
        }
        td_buf_clear(&pair);
        (void)td_buf_append(&pair, text, left);
        (void)td_buf_append(&pair, space + 1, size - left - 1);
        st = pair.failed ? td_fail(l->err, TD_E_NOMEM, "out of memory")
                         : td_bpe_add_merge(l->tok->bpe, pair.data, left, size - left - 1, l->err);
    }
    td_buf_free(&pair);
    return st;
}

/* ---- the rest ---- */

static td_status parse(const char *text, const char *name, json_t **out, td_error *err) {
    *out = NULL;
    return text ? td_json_parse(text, strlen(text), MAX_DEPTH, name, out, err) : TD_OK;
}

static td_status build_components(loader *l) {
    td_tokenizer *t = l->tok;
    json_t *normalizer = NULL, *pre = NULL, *decoder = NULL;
    td_status st = parse(l->scheme->normalizer, "normalizer", &normalizer, l->err);
    if (st == TD_OK)
        st = parse(l->scheme->pre_tokenizer, "pre_tokenizer", &pre, l->err);
    if (st == TD_OK)
        st = parse(l->scheme->decoder, "decoder", &decoder, l->err);
    if (st == TD_OK)
        st = td_normalizer_new(&t->normalizer, normalizer, l->err);
    if (st == TD_OK)
        st = td_pretokenizer_new(&t->pretokenizer, pre, l->err);
    if (st == TD_OK)
        st = td_detok_spec_new(&t->decoder, decoder, l->err);
    json_decref(normalizer);
    json_decref(pre);
    json_decref(decoder);
    return st;
}

/* The token of a key; -1 when the key is missing. */
static td_status read_id(loader *l, const char *key, td_token *out) {
    uint32_t id;
    *out = -1;
    if (!td_gguf_find(l->g, key))
        return TD_OK;
    TD_TRY(td_gguf_u32(l->g, key, 0, INT32_MAX, &id, l->err));
    if (!td_vocab_has(&l->tok->vocab, (td_token)id))
        return td_fail(l->err, TD_E_MODEL, "\"%s\" is %u, which is no token", key, id);
    *out = (td_token)id;
    return TD_OK;
}

static td_status read_special(loader *l) {
    td_tokenizer *t = l->tok;
    bool bos, eos, space;
    TD_TRY(read_id(l, "tokenizer.ggml.bos_token_id", &t->bos));
    TD_TRY(read_id(l, "tokenizer.ggml.eos_token_id", &t->eos));
    TD_TRY(read_id(l, "tokenizer.ggml.padding_token_id", &t->pad));
    TD_TRY(read_id(l, "tokenizer.ggml.unknown_token_id", &t->unk));
    TD_TRY(td_gguf_bool_or(l->g, "tokenizer.ggml.add_bos_token", false, &bos, l->err));
    TD_TRY(td_gguf_bool_or(l->g, "tokenizer.ggml.add_eos_token", false, &eos, l->err));
    TD_TRY(td_gguf_bool_or(l->g, "tokenizer.ggml.add_space_prefix", false, &space, l->err));
    if (space && l->scheme->byte_fallback)
        return td_fail(l->err, TD_E_UNSUPPORTED, "\"tokenizer.ggml.add_space_prefix\" is true, expected false");
    if ((bos || l->scheme->always_bos) && t->bos >= 0)
        TD_TRY(td_post_put_before(&t->post, t->bos, l->err));
    if (eos && t->eos >= 0)
        TD_TRY(td_post_put_after(&t->post, t->eos, l->err));
    return TD_OK;
}

static td_status load(loader *l) {
    TD_TRY(read_words(l));
    TD_TRY(read_merges(l));
    TD_TRY(build_components(l));
    TD_TRY(read_special(l));
    td_bpe_finish(l->tok->bpe, (td_bpe_options){.byte_fallback = l->scheme->byte_fallback,
                                                .fuse_unk = l->scheme->byte_fallback,
                                                .unk = l->scheme->byte_fallback ? l->tok->unk : -1});
    return TD_OK;
}

td_status td_tokenizer_from_gguf(td_tokenizer **out, const td_gguf *g, td_error *err) {
    loader l = {.g = g, .path = td_gguf_path(g), .err = err};
    *out = NULL;
    TD_TRY(find_scheme(&l));
    TD_TRY(find_tables(&l));
    td_tokenizer *t = td_calloc(1, sizeof *t);
    if (!t)
        return td_fail(err, TD_E_NOMEM, "out of memory for a tokenizer");
    t->bos = t->eos = t->pad = t->unk = -1;
    td_vocab_init(&t->vocab, (size_t)l.tokens->n);
    td_added_set_init(&t->added);
    td_added_set_init(&t->added_normalized);
    td_post_init(&t->post);
    l.tok = t;
    td_status st = load(&l);
    if (st != TD_OK) {
        td_tokenizer_close(&t);
        return td_error_prefix(err, st, "%s: tokenizer", l.path);
    }
    *out = t;
    return TD_OK;
}

/* ---- the chat template ---- */

static td_status copy_string(const td_gguf *g, const char *key, char **out, td_error *err) {
    const char *str;
    size_t size;
    *out = NULL;
    TD_TRY(td_gguf_string_or_null(g, key, &str, &size, err));
    if (!str)
        return TD_OK;
    *out = td_strndup(str, size);
    return *out ? TD_OK : td_fail(err, TD_E_NOMEM, "%s: out of memory for the chat template", td_gguf_path(g));
}

/* The word of a token id, by its key. */
static td_status copy_word(const td_gguf *g, const char *key, char **out, td_error *err) {
    const td_gguf_value *tokens = td_gguf_find(g, "tokenizer.ggml.tokens");
    const char *str;
    size_t size;
    uint32_t id;
    *out = NULL;
    if (!tokens || !td_gguf_find(g, key))
        return TD_OK;
    TD_TRY(td_gguf_u32(g, key, 0, INT32_MAX, &id, err));
    td_gguf_strings s = {.v = tokens};
    while (td_gguf_next_string(&s, &str, &size))
        if (s.i == (uint64_t)id + 1) {
            *out = td_strndup(str, size);
            return *out ? TD_OK : td_fail(err, TD_E_NOMEM, "%s: out of memory", td_gguf_path(g));
        }
    return TD_OK;
}

td_status td_chat_template_from_gguf(td_chat_template **out, const td_gguf *g, td_error *err) {
    char *source = NULL, *tools = NULL, *bos = NULL, *eos = NULL;
    *out = NULL;
    td_status st = copy_string(g, "tokenizer.chat_template", &source, err);
    if (st == TD_OK)
        st = copy_string(g, "tokenizer.chat_template.tool_use", &tools, err);
    if (st == TD_OK)
        st = copy_word(g, "tokenizer.ggml.bos_token_id", &bos, err);
    if (st == TD_OK)
        st = copy_word(g, "tokenizer.ggml.eos_token_id", &eos, err);
    if (st == TD_OK && !source)
        st = td_fail(err, TD_E_NOTFOUND, "%s has no chat template (no \"tokenizer.chat_template\")", td_gguf_path(g));
    if (st == TD_OK)
        st = td_chat_template_from_text(out, &(td_chat_text){td_gguf_path(g), source, tools, bos, eos}, err);
    td_free(source);
    td_free(tools);
    td_free(bos);
    td_free(eos);
    return st;
}
