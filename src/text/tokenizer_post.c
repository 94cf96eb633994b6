/* tokenizer_post.c - templates, reduced at load to a list of tokens before the text and one after it. One template
 * at most: what a second would mean is nowhere written, and the reference implementation takes its "pair" there. */
#include "text/tokenizer_post.h"

#include <string.h>

#define MAX_AROUND 64 /* tokens before or after a text */
#define MAX_NESTING 8

void td_post_init(td_post *post) {
    td_token_list_init(&post->before, MAX_AROUND);
    td_token_list_init(&post->after, MAX_AROUND);
}

void td_post_free(td_post *post) {
    td_token_list_free(&post->before);
    td_token_list_free(&post->after);
}

td_status td_post_put_after(td_post *post, td_token token, td_error *err) {
    td_status st = td_token_list_push(&post->after, token, err);
    return st == TD_OK ? TD_OK : td_error_prefix(err, st, "post_processor");
}

td_status td_post_put_before(td_post *post, td_token token, td_error *err) {
    td_token_list *list = &post->before;
    td_status st = td_token_list_push(list, token, err);
    if (st != TD_OK)
        return td_error_prefix(err, st, "post_processor");
    memmove(list->ids + 1, list->ids, (list->n - 1) * sizeof *list->ids);
    list->ids[0] = token;
    return TD_OK;
}

/* The ids behind a special token's name in the template's own table. */
static const json_t *ids_of(const json_t *spec, const char *name) {
    const json_t *entry = json_object_get(json_object_get(spec, "special_tokens"), name ? name : "");
    return json_object_get(entry, "ids");
}

/* One template under way. */
typedef struct template {
    td_post *post;
    const json_t *spec;
    const td_vocab *vocab;
    bool seen_text;
    td_error *err;
}
template;

static td_status put_special(template *t, const json_t *piece) {
    static const char where[] = "post_processor TemplateProcessing";
    const char *name = json_string_value(json_object_get(piece, "id"));
    const json_t *ids = ids_of(t->spec, name);
    if (!json_is_array(ids))
        return td_fail(t->err, TD_E_MODEL, "%s: token \"%.60s\" of the template is not in \"special_tokens\"", where,
                       name ? name : "?");
    for (size_t i = 0; i < json_array_size(ids); i++) {
        const json_t *v = json_array_get(ids, i);
        json_int_t id = json_is_integer(v) ? json_integer_value(v) : -1;
        if (id < 0 || id > INT32_MAX || !td_vocab_has(t->vocab, (td_token)id))
            return td_fail(t->err, TD_E_MODEL, "%s: \"%.60s\" has an id that no token has", where, name);
        td_status st = td_token_list_push(t->seen_text ? &t->post->after : &t->post->before, (td_token)id, t->err);
        if (st != TD_OK)
            return td_error_prefix(t->err, st, "%s", where);
    }
    return TD_OK;
}

static td_status put_sequence(template *t, const json_t *piece) {
    const char *id = json_string_value(json_object_get(piece, "id"));
    if (!id || strcmp(id, "A") != 0 || t->seen_text)
        return td_fail(t->err, TD_E_UNSUPPORTED,
                       "post_processor TemplateProcessing: expected the text itself (\"A\") once in \"single\"");
    t->seen_text = true;
    return TD_OK;
}

static td_status read_template(td_post *post, const json_t *spec, const td_vocab *vocab, td_error *err) {
    template t = {.post = post, .spec = spec, .vocab = vocab, .err = err};
    const json_t *pieces = json_object_get(spec, "single");
    if (post->have_template)
        return td_fail(err, TD_E_UNSUPPORTED, "post_processor: more than one TemplateProcessing");
    post->have_template = true;
    if (!json_is_array(pieces))
        return td_fail(err, TD_E_FORMAT, "post_processor TemplateProcessing: expected \"single\" to be an array");
    for (size_t i = 0; i < json_array_size(pieces); i++) {
        const json_t *piece = json_array_get(pieces, i);
        const json_t *special = json_object_get(piece, "SpecialToken");
        const json_t *sequence = json_object_get(piece, "Sequence");
        if (!special == !sequence)
            return td_fail(err, TD_E_FORMAT,
                           "post_processor TemplateProcessing: piece %zu is neither SpecialToken nor Sequence", i);
        TD_TRY(special ? put_special(&t, special) : put_sequence(&t, sequence));
    }
    if (!t.seen_text)
        return td_fail(err, TD_E_MODEL, "post_processor TemplateProcessing: \"single\" leaves the text out");
    return TD_OK;
}

static td_status read_any(td_post *post, const json_t *spec, const td_vocab *vocab, int nesting, td_error *err) {
    const char *type = json_string_value(json_object_get(spec, "type"));
    if (!type)
        return td_fail(err, TD_E_FORMAT, "post_processor: expected an object with a \"type\"");
    if (strcmp(type, "ByteLevel") == 0)
        return TD_OK;
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(post, spec, vocab, err);
    if (strcmp(type, "Sequence") != 0)
        return td_fail(err, TD_E_UNSUPPORTED, "post_processor of type \"%.60s\"", type);
    const json_t *list = json_object_get(spec, "processors");
    if (!json_is_array(list))
        return td_fail(err, TD_E_FORMAT, "post_processor Sequence: expected \"processors\" to be an array");
    if (nesting == MAX_NESTING)
        return td_fail(err, TD_E_LIMIT, "post_processor: more than %d levels", MAX_NESTING);
    for (size_t i = 0; i < json_array_size(list); i++)
        TD_TRY(read_any(post, json_array_get(list, i), vocab, nesting + 1, err));
    return TD_OK;
}

td_status td_post_read(td_post *post, const json_t *spec, const td_vocab *vocab, td_error *err) {
    return spec && !json_is_null(spec) ? read_any(post, spec, vocab, 0, err) : TD_OK;
}
