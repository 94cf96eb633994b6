/* tokenizer_load.c - tokenizer.json to a td_tokenizer.
 *
 * Gemma's file has 262 thousand words, 514 thousand merges and 30 MB. A tree of it (jansson) takes 0.5 s and 180 MB
 * before the first table is begun, so the two big tables are read by the pull reader, straight into the vocabulary and
 * the merge table. All else is small and comes as JSON trees, which the components read themselves.
 *
 * Order. Merges need the whole vocabulary and may stand before it in the file: then they are passed over and read at
 * the end of the model. Added tokens come last, since the normaliser makes the texts that some of them are found by. */
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "format/checkpoint.h"
#include "format/json_scan.h"
#include "text/tokenizer_impl.h"

#define FILE_CEILING ((size_t)1 << 30)
#define MAX_DEPTH 64
#define MIN_MAX_ID 65536 /* ids that a file of any size may have; beyond, one a byte of the file */

/* Members of the file that become JSON trees. */
enum { VERSION, ADDED_TOKENS, NORMALIZER, PRE_TOKENIZER, POST_PROCESSOR, DECODER, N_TREES };
static const char *const tree_names[N_TREES] = {"version",       "added_tokens",   "normalizer",
                                                "pre_tokenizer", "post_processor", "decoder"};

/* Scalar members of the model. */
enum { TYPE, UNK_TOKEN, BYTE_FALLBACK, FUSE_UNK, IGNORE_MERGES, DROPOUT, PREFIX, SUFFIX, N_SCALARS };
static const char *const scalar_names[N_SCALARS] = {"type",
                                                    "unk_token",
                                                    "byte_fallback",
                                                    "fuse_unk",
                                                    "ignore_merges",
                                                    "dropout",
                                                    "continuing_subword_prefix",
                                                    "end_of_word_suffix"};

typedef struct loader {
    td_tokenizer *tok;
    td_json_scan scan;
    const char *name; /* of the file, for messages */
    json_t *trees[N_TREES];
    json_t *scalars[N_SCALARS];
    bool have_model, have_vocab, have_merges;
    td_json_scan merges; /* where to read on, when the merges stood before the vocabulary */
    bool merges_wait;
    td_buf pair; /* a merge's two parts, one behind the other */
    td_error *err;
} loader;

static td_status fail(const loader *l, td_status st, const char *message) {
    return td_fail(l->err, st, "%s: %s", l->name, message);
}

/* Names the file in a failure of a part that does not know it. */
static td_status named(const loader *l, td_status st) {
    return st == TD_OK ? TD_OK : td_error_prefix(l->err, st, "%s", l->name);
}

static int name_index(const char *const *names, int n, const char *key, size_t size) {
    for (int i = 0; i < n; i++)
        if (strlen(names[i]) == size && memcmp(names[i], key, size) == 0)
            return i;
    return -1;
}

static td_status twice(loader *l, const char *key) {
    return td_json_scan_fail(&l->scan, l->scan.pos, l->err, "\"%s\" occurs twice", key);
}

/* The value at the cursor as a tree. */
static td_status read_tree(loader *l, const char *key, json_t **out) {
    if (*out)
        return twice(l, key);
    td_json_scan_peek(&l->scan);
    size_t start = l->scan.pos;
    TD_TRY(td_json_scan_skip(&l->scan, l->err));
    td_status st = td_json_parse(l->scan.text + start, l->scan.pos - start, MAX_DEPTH, key, out, l->err);
    return st == TD_OK ? TD_OK : td_error_prefix(l->err, st, "%s: from byte %zu", l->name, start);
}

/* ---- the model ---- */

static td_status read_vocab(loader *l) {
    if (l->have_vocab)
        return twice(l, "vocab");
    l->have_vocab = true;
    td_json_scan *s = &l->scan;
    TD_TRY(td_json_scan_enter(s, '{', l->err));
    for (bool more;;) {
        const char *word;
        size_t size;
        uint64_t id;
        TD_TRY(td_json_scan_next(s, &more, l->err));
        if (!more)
            return TD_OK;
        TD_TRY(td_json_scan_key(s, &word, &size, l->err));
        td_buf_clear(&l->pair); /* reading the id may overwrite a word that had escapes */
        if (td_buf_append(&l->pair, word, size) != TD_OK)
            return fail(l, TD_E_NOMEM, "out of memory");
        TD_TRY(td_json_scan_uint(s, &id, l->err));
        TD_TRY(named(l, td_vocab_add(&l->tok->vocab, l->pair.data, size, id, TD_PIECE_MODEL, l->err)));
    }
}

/* The next string, appended to the pair. */
static td_status read_part(loader *l, size_t *size) {
    const char *part;
    TD_TRY(td_json_scan_string(&l->scan, &part, size, l->err));
    return td_buf_append(&l->pair, part, *size) == TD_OK ? TD_OK : fail(l, TD_E_NOMEM, "out of memory");
}

/* "left right", the older form. */
static td_status read_joined(loader *l, size_t *left, size_t *right, bool *comment) {
    static const char version[] = "#version";
    size_t start = l->scan.pos, size;
    TD_TRY(read_part(l, &size));
    char *text = l->pair.data;
    *comment = size >= sizeof version - 1 && memcmp(text, version, sizeof version - 1) == 0;
    char *space = size > 0 ? memchr(text, ' ', size) : NULL;
    if (*comment)
        return TD_OK;
    if (!space || memchr(space + 1, ' ', (size_t)(text + size - space) - 1))
        return td_json_scan_fail(&l->scan, start, l->err, "a merge is not two words with one space between");
    *left = (size_t)(space - text);
    *right = size - *left - 1;
    memmove(space, space + 1, *right);
    return TD_OK;
}

/* ["left", "right"]. */
static td_status read_pair(loader *l, size_t *left, size_t *right) {
    td_json_scan *s = &l->scan;
    bool more;
    size_t start = s->pos;
    size_t *sizes[2] = {left, right};
    TD_TRY(td_json_scan_enter(s, '[', l->err));
    for (int i = 0; i < 2; i++) {
        TD_TRY(td_json_scan_next(s, &more, l->err));
        if (!more)
            return td_json_scan_fail(s, start, l->err, "a merge has fewer than two words");
        TD_TRY(read_part(l, sizes[i]));
    }
    TD_TRY(td_json_scan_next(s, &more, l->err));
    return more ? td_json_scan_fail(s, start, l->err, "a merge has more than two words") : TD_OK;
}

static td_status read_merge_list(loader *l) {
    td_json_scan *s = &l->scan;
    TD_TRY(named(l, td_bpe_new(&l->tok->bpe, &l->tok->vocab, 0, l->err)));
    TD_TRY(td_json_scan_enter(s, '[', l->err));
    for (bool more;;) {
        size_t left = 0, right = 0;
        bool comment = false;
        TD_TRY(td_json_scan_next(s, &more, l->err));
        if (!more)
            return TD_OK;
        td_buf_clear(&l->pair);
        if (td_json_scan_peek(s) == '"')
            TD_TRY(read_joined(l, &left, &right, &comment));
        else
            TD_TRY(read_pair(l, &left, &right));
        if (!comment)
            TD_TRY(named(l, td_bpe_add_merge(l->tok->bpe, td_buf_str(&l->pair), left, right, l->err)));
    }
}

static td_status read_merges(loader *l) {
    if (l->have_merges)
        return twice(l, "merges");
    l->have_merges = true;
    if (l->have_vocab)
        return read_merge_list(l);
    l->merges_wait = true;
    l->merges = l->scan;
    return td_json_scan_skip(&l->scan, l->err);
}

/* Merges that stood before the vocabulary: the cursor goes back for them. */
static td_status read_waiting_merges(loader *l) {
    td_json_scan after = l->scan;
    l->scan.pos = l->merges.pos;
    l->scan.depth = l->merges.depth;
    l->scan.fresh = l->merges.fresh;
    memcpy(l->scan.open, l->merges.open, sizeof after.open);
    TD_TRY(read_merge_list(l));
    l->scan.pos = after.pos;
    l->scan.depth = after.depth;
    l->scan.fresh = after.fresh;
    memcpy(l->scan.open, after.open, sizeof after.open);
    return TD_OK;
}

static td_status read_model_member(loader *l, const char *key, size_t size) {
    static const char *const tables[] = {"vocab", "merges"};
    int table = name_index(tables, 2, key, size);
    if (table >= 0)
        return table == 0 ? read_vocab(l) : read_merges(l);
    int i = name_index(scalar_names, N_SCALARS, key, size);
    if (i < 0)
        return td_json_scan_skip(&l->scan, l->err);
    TD_TRY(read_tree(l, scalar_names[i], &l->scalars[i]));
    const char *type = json_string_value(l->scalars[TYPE]);
    if (i == TYPE && type && strcmp(type, "BPE") != 0) /* said at once: its vocabulary may have another form */
        return td_fail(l->err, TD_E_UNSUPPORTED, "%s: model of type \"%.60s\", expected BPE", l->name, type);
    return TD_OK;
}

static td_status read_model(loader *l) {
    if (l->have_model)
        return twice(l, "model");
    l->have_model = true;
    TD_TRY(td_json_scan_enter(&l->scan, '{', l->err));
    for (bool more;;) {
        const char *key;
        size_t size;
        TD_TRY(td_json_scan_next(&l->scan, &more, l->err));
        if (!more)
            break;
        TD_TRY(td_json_scan_key(&l->scan, &key, &size, l->err));
        TD_TRY(read_model_member(l, key, size));
    }
    if (!l->have_vocab || !l->have_merges)
        return fail(l, TD_E_FORMAT, l->have_vocab ? "the model has no \"merges\"" : "the model has no \"vocab\"");
    return l->merges_wait ? read_waiting_merges(l) : TD_OK;
}

static td_status read_file(loader *l) {
    td_json_scan *s = &l->scan;
    TD_TRY(td_json_scan_enter(s, '{', l->err));
    for (bool more;;) {
        const char *key;
        size_t size;
        TD_TRY(td_json_scan_next(s, &more, l->err));
        if (!more)
            break;
        TD_TRY(td_json_scan_key(s, &key, &size, l->err));
        int i = name_index(tree_names, N_TREES, key, size);
        if (i >= 0)
            TD_TRY(read_tree(l, tree_names[i], &l->trees[i]));
        else if (size == 5 && memcmp(key, "model", 5) == 0)
            TD_TRY(read_model(l));
        else
            TD_TRY(td_json_scan_skip(s, l->err));
    }
    TD_TRY(td_json_scan_end(s, l->err));
    const json_t *version = l->trees[VERSION];
    if (version && !(json_is_string(version) && strcmp(json_string_value(version), "1.0") == 0))
        return fail(l, TD_E_UNSUPPORTED, "\"version\" is not \"1.0\"");
    return l->have_model ? TD_OK : fail(l, TD_E_FORMAT, "there is no \"model\"");
}

/* ---- added tokens ---- */

typedef struct added_token {
    const char *content;
    size_t size;
    td_added_token token;
    bool normalized;
} added_token;

static td_status read_added(const json_t *spec, added_token *a, td_error *err) {
    static const char where[] = "added_tokens";
    const json_t *content = json_object_get(spec, "content");
    a->content = json_string_value(content);
    a->size = json_string_length(content);
    if (!a->content)
        return td_fail(err, TD_E_FORMAT, "%s: expected objects with a \"content\"", where);
    uint32_t id;
    TD_TRY(td_json_u32(spec, where, "id", 0, INT32_MAX, &id, err));
    a->token = (td_added_token){.id = (td_token)id};
    TD_TRY(td_json_bool_or(spec, where, "special", false, &a->token.special, err));
    TD_TRY(td_json_bool_or(spec, where, "single_word", false, &a->token.single_word, err));
    TD_TRY(td_json_bool_or(spec, where, "lstrip", false, &a->token.lstrip, err));
    TD_TRY(td_json_bool_or(spec, where, "rstrip", false, &a->token.rstrip, err));
    return td_json_bool_or(spec, where, "normalized", !a->token.special, &a->normalized, err);
}

/* Makes sure that the vocabulary has it, under the same id. */
static td_status enter_added(td_vocab *v, const added_token *a, td_error *err) {
    td_token id = td_vocab_find(v, a->content, a->size);
    char shown[TD_SHOWN_SIZE];
    if (id >= 0 && id != a->token.id)
        return td_fail(err, TD_E_MODEL, "added_tokens: \"%s\" has id %d, but the vocabulary gives it id %d",
                       td_shown(shown, a->content, a->size), a->token.id, id);
    if (id >= 0 && (v->flags[id] & TD_PIECE_ADDED))
        return td_fail(err, TD_E_MODEL, "added_tokens: \"%s\" is listed twice", td_shown(shown, a->content, a->size));
    if (id < 0) {
        td_status st = td_vocab_add(v, a->content, a->size, (uint64_t)a->token.id, TD_PIECE_ADDED, err);
        if (st != TD_OK)
            return td_error_prefix(err, st, "added_tokens");
    }
    v->flags[a->token.id] |= (uint8_t)(TD_PIECE_ADDED | (a->token.special ? TD_PIECE_SPECIAL : 0));
    return TD_OK;
}

/* The text that a normalised token is found by. */
static td_status put_normalized(td_tokenizer *t, const added_token *a, td_error *err) {
    td_normalizer_work work = {0};
    td_pattern_work patterns = {0};
    td_buf text;
    td_buf_init(&text, TD_ADDED_MAX_SIZE);
    td_status st = td_normalizer_run(t->normalizer, &work, &patterns, a->content, a->size, &text, NULL, err);
    if (st == TD_OK && text.size > 0)
        st = td_added_set_put(&t->added_normalized, text.data, text.size, a->token, err);
    td_buf_free(&text);
    td_pattern_work_free(&patterns);
    td_normalizer_work_free(&work);
    return st;
}

static td_status add_tokens(loader *l) {
    const json_t *list = l->trees[ADDED_TOKENS];
    td_tokenizer *t = l->tok;
    if (!list || json_is_null(list))
        return TD_OK;
    if (!json_is_array(list))
        return fail(l, TD_E_FORMAT, "expected \"added_tokens\" to be an array");
    for (size_t i = 0; i < json_array_size(list); i++) {
        added_token a;
        TD_TRY(read_added(json_array_get(list, i), &a, l->err));
        TD_TRY(enter_added(&t->vocab, &a, l->err));
        if (a.size == 0) /* a token, but not one that a text can hold */
            continue;
        if (a.normalized)
            TD_TRY(put_normalized(t, &a, l->err));
        else
            TD_TRY(td_added_set_put(&t->added, a.content, a.size, a.token, l->err));
    }
    return TD_OK;
}

/* ---- putting it together ---- */

static td_status flag(const loader *l, int i, bool *out) {
    const json_t *v = l->scalars[i];
    *out = json_is_true(v);
    if (v && !json_is_boolean(v) && !json_is_null(v))
        return td_fail(l->err, TD_E_FORMAT, "model: expected \"%s\" to be true or false", scalar_names[i]);
    return TD_OK;
}

/* Options that BPE has and nobody's published LLM uses. */
static td_status refuse_options(const loader *l) {
    const json_t *dropout = l->scalars[DROPOUT];
    if (dropout && !json_is_null(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        return td_fail(l->err, TD_E_UNSUPPORTED, "model: \"dropout\" other than null or 0");
    for (int i = PREFIX; i <= SUFFIX; i++) {
        const json_t *v = l->scalars[i];
        if (v && !json_is_null(v) && !(json_is_string(v) && json_string_length(v) == 0))
            return td_fail(l->err, TD_E_UNSUPPORTED, "model: \"%s\" other than null or empty", scalar_names[i]);
    }
    return TD_OK;
}

static td_status finish_model(loader *l) {
    td_bpe_options o = {.unk = -1};
    const json_t *unk = l->scalars[UNK_TOKEN];
    TD_TRY(refuse_options(l));
    TD_TRY(flag(l, BYTE_FALLBACK, &o.byte_fallback));
    TD_TRY(flag(l, FUSE_UNK, &o.fuse_unk));
    TD_TRY(flag(l, IGNORE_MERGES, &o.ignore_merges));
    if (unk && !json_is_null(unk)) {
        const char *name = json_string_value(unk);
        o.unk = name ? td_vocab_find(&l->tok->vocab, name, json_string_length(unk)) : -1;
        if (o.unk < 0)
            return td_fail(l->err, TD_E_MODEL, "model: \"unk_token\" is \"%.60s\", which is no token",
                           name ? name : "no string");
    }
    l->tok->unk = o.unk;
    td_bpe_finish(l->tok->bpe, o);
    return TD_OK;
}

static td_status build(loader *l) {
    td_tokenizer *t = l->tok;
    TD_TRY(td_normalizer_new(&t->normalizer, l->trees[NORMALIZER], l->err));
    TD_TRY(td_pretokenizer_new(&t->pretokenizer, l->trees[PRE_TOKENIZER], l->err));
    TD_TRY(td_detok_spec_new(&t->decoder, l->trees[DECODER], l->err));
    TD_TRY(add_tokens(l));
    TD_TRY(td_post_read(&t->post, l->trees[POST_PROCESSOR], &t->vocab, l->err));
    return finish_model(l);
}

/* ---- tokenizer_config.json ---- */

/* The token that the configuration names, as a string or as an object with "content". */
static td_status named_token(const td_tokenizer *t, const json_t *config, const char *key, bool required, td_token *out,
                             td_error *err) {
    const json_t *v = json_object_get(config, key);
    if (json_is_object(v))
        v = json_object_get(v, "content");
    if (!v || json_is_null(v))
        return TD_OK;
    const char *name = json_string_value(v);
    *out = name ? td_vocab_find(&t->vocab, name, json_string_length(v)) : -1;
    if (*out < 0 && required)
        return td_fail(err, TD_E_MODEL, "tokenizer_config.json: \"%s\" is \"%.60s\", which is no token", key,
                       name ? name : "no string");
    return TD_OK;
}

/* add_bos_token and add_eos_token: true asks for what the template may lack. False takes nothing away: some files say
 * false beside a template that has the token, and models are trained with the template's. */
static td_status complete_post(td_tokenizer *t, const json_t *config, td_error *err) {
    bool bos, eos;
    td_token_list *before = &t->post.before, *after = &t->post.after;
    TD_TRY(td_json_bool_or(config, "tokenizer_config.json", "add_bos_token", false, &bos, err));
    TD_TRY(td_json_bool_or(config, "tokenizer_config.json", "add_eos_token", false, &eos, err));
    if (bos && t->bos >= 0 && !(before->n > 0 && before->ids[0] == t->bos))
        TD_TRY(td_post_put_before(&t->post, t->bos, err));
    if (eos && t->eos >= 0 && !(after->n > 0 && after->ids[after->n - 1] == t->eos))
        TD_TRY(td_post_put_after(&t->post, t->eos, err));
    return TD_OK;
}

static td_status apply_config(td_tokenizer *t, const char *text, size_t size, td_error *err) {
    json_t *config = NULL;
    TD_TRY(td_json_parse(text, size, MAX_DEPTH, "tokenizer_config.json", &config, err));
    td_status st =
        json_is_object(config) ? TD_OK : td_fail(err, TD_E_FORMAT, "tokenizer_config.json: expected an object");
    if (st == TD_OK)
        st = named_token(t, config, "bos_token", true, &t->bos, err);
    if (st == TD_OK)
        st = named_token(t, config, "eos_token", true, &t->eos, err);
    if (st == TD_OK) /* nothing here pads, and some files name a token that only training had */
        st = named_token(t, config, "pad_token", false, &t->pad, err);
    if (st == TD_OK)
        st = complete_post(t, config, err);
    json_decref(config);
    return st;
}

/* ---- entry points ---- */

static td_status parse(td_tokenizer *t, const char *json, size_t size, const char *name, td_error *err) {
    loader l = {.tok = t, .name = name, .err = err};
    td_json_scan_init(&l.scan, json, size, 0, MAX_DEPTH, name);
    td_buf_init(&l.pair, size);
    td_status st = read_file(&l);
    if (st == TD_OK)
        st = named(&l, build(&l));
    td_json_scan_free(&l.scan);
    td_buf_free(&l.pair);
    for (int i = 0; i < N_TREES; i++)
        json_decref(l.trees[i]);
    for (int i = 0; i < N_SCALARS; i++)
        json_decref(l.scalars[i]);
    return st;
}

td_status td_tokenizer_parse(td_tokenizer **out, const char *json, size_t json_size, const char *config,
                             size_t config_size, const char *name, td_error *err) {
    *out = NULL;
    td_tokenizer *t = td_calloc(1, sizeof *t);
    if (!t)
        return td_fail(err, TD_E_NOMEM, "out of memory for a tokenizer");
    t->bos = t->eos = t->pad = t->unk = -1;
    td_vocab_init(&t->vocab, json_size > MIN_MAX_ID ? json_size : MIN_MAX_ID);
    td_added_set_init(&t->added);
    td_added_set_init(&t->added_normalized);
    td_post_init(&t->post);
    td_status st = parse(t, json, json_size, name, err);
    if (st == TD_OK && config)
        st = apply_config(t, config, config_size, err);
    if (st != TD_OK)
        td_tokenizer_close(&t);
    *out = t;
    return st;
}

td_status td_tokenizer_load(td_tokenizer **out, const char *path, const char *config, td_error *err) {
    char *text = NULL, *config_text = NULL;
    size_t size = 0, config_size = 0;
    *out = NULL;
    td_status st = td_file_read(path, FILE_CEILING, &text, &size, err);
    if (st == TD_E_NOTFOUND)
        return td_fail(err, st,
                       "%s: there is no such file; a checkpoint needs its tokenizer.json (tokenizer.model is "
                       "not read)",
                       path);
    if (st == TD_OK && config)
        st = td_file_read(config, FILE_CEILING, &config_text, &config_size, err);
    if (st == TD_OK)
        st = td_tokenizer_parse(out, text, size, config_text, config_size, path, err);
    td_free(text);
    td_free(config_text);
    return st;
}
