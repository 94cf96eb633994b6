/* detok_chain.c - a decoder read from JSON: a flat list of links, checked to work on a stream.
 *
 * A link that needs a token in one piece (a regular expression, a name like <0x0A>, a byte-level name) holds it until
 * its end. That is fine while tokens are names of the vocabulary. Behind Fuse or ByteLevel the whole text is one token,
 * and behind ByteFallback a run of bytes is, so such a link there would hold back without bound: it is refused. */
#include <string.h>

#include "base/alloc.h"
#include "format/checkpoint.h"
#include "text/detok_chain.h"
#include "text/tokenizer_unicode.h"

#define MAX_NESTING 8
#define MAX_STRIP 4096
#define MAX_LITERAL 256  /* bytes of a text to replace, which the stream may have to hold */
#define MAX_GROWTH 65536 /* times a name, through all links together: replacements multiply */

void td_detok_spec_free(td_detok_spec **decoder) {
    if (!decoder || !*decoder)
        return;
    for (size_t i = 0; i < (*decoder)->n; i++) {
        td_pattern_free(&(*decoder)->links[i].pattern);
        td_free((*decoder)->links[i].text);
    }
    td_free(*decoder);
    *decoder = NULL;
}

typedef struct reader {
    td_detok_spec *decoder;
    const json_t *spec;
    bool names; /* tokens are still names of the vocabulary */
    bool fused; /* there is one token, the text */
    size_t growth;
    td_error *err;
} reader;

/* NULL: there are too many, and the error says so. */
static td_link *add_link(reader *r, td_link_kind kind) {
    if (r->decoder->n == TD_DECODER_MAX_LINKS) {
        td_fail(r->err, TD_E_LIMIT, "decoder: more than %d components", TD_DECODER_MAX_LINKS);
        return NULL;
    }
    td_link *l = &r->decoder->links[r->decoder->n++];
    *l = (td_link){.kind = kind};
    return l;
}

static td_status needs_names(const reader *r, const char *what) {
    if (r->names)
        return TD_OK;
    return td_fail(r->err, TD_E_UNSUPPORTED, "decoder %s behind %s: it cannot work on a stream there", what,
                   r->fused ? "a component that joins all tokens" : "ByteFallback");
}

static td_status copy_text(reader *r, td_link *l, const char *key, const char *where, bool one_character) {
    const json_t *v = json_object_get(r->spec, key);
    const char *text = json_string_value(v);
    l->size = json_string_length(v);
    if (!text)
        return td_fail(r->err, TD_E_FORMAT, "%s: expected \"%s\" to be a string", where, key);
    if (one_character && (l->size == 0 || l->size != td_uni_length(text[0])))
        return td_fail(r->err, TD_E_FORMAT, "%s: expected \"%s\" to be one character", where, key);
    l->text = td_strndup(text, l->size);
    return l->text ? TD_OK : td_fail(r->err, TD_E_NOMEM, "out of memory for a decoder");
}

/* A replacement may make `times` as much of a name. */
static td_status count_growth(reader *r, size_t times) {
    if (times > MAX_GROWTH / r->growth)
        return td_fail(r->err, TD_E_LIMIT, "decoder Replace: names would grow more than %d times", MAX_GROWTH);
    r->growth *= times;
    return TD_OK;
}

static td_status read_replace(reader *r) {
    static const char where[] = "decoder Replace";
    size_t size;
    td_link *l = add_link(r, TD_LINK_REPLACE);
    if (!l)
        return TD_E_LIMIT;
    TD_TRY(copy_text(r, l, "content", where, false));
    TD_TRY(td_pattern_parse(&l->pattern, json_object_get(r->spec, "pattern"), where, r->err));
    if (!td_pattern_text(l->pattern, &size)) {
        l->kind = TD_LINK_REPLACE_REGEX;
        TD_TRY(needs_names(r, "Replace with a regular expression"));
        return count_growth(r, 1 + l->size);
    }
    if (size > MAX_LITERAL)
        return td_fail(r->err, TD_E_LIMIT, "%s: a pattern of %zu bytes, expected at most %d", where, size, MAX_LITERAL);
    return count_growth(r, 1 + l->size / size);
}

static td_status read_strip(reader *r) {
    static const char where[] = "decoder Strip";
    uint32_t start, stop;
    td_link *l = add_link(r, TD_LINK_STRIP);
    if (!l)
        return TD_E_LIMIT;
    TD_TRY(copy_text(r, l, "content", where, true));
    TD_TRY(td_json_u32_or(r->spec, where, "start", 0, MAX_STRIP, 0, &start, r->err));
    TD_TRY(td_json_u32_or(r->spec, where, "stop", 0, MAX_STRIP, 0, &stop, r->err));
    l->start = start;
    l->stop = stop;
    l->once = r->fused;
    return TD_OK;
}

static td_status read_metaspace(reader *r) {
    static const char where[] = "decoder Metaspace";
    bool add_space;
    td_link *l = add_link(r, TD_LINK_METASPACE);
    if (!l)
        return TD_E_LIMIT;
    TD_TRY(copy_text(r, l, "replacement", where, true));
    TD_TRY(td_json_bool_or(r->spec, where, "add_prefix_space", true, &add_space, r->err));
    const json_t *scheme = json_object_get(r->spec, "prepend_scheme");
    const char *name = json_string_value(scheme);
    if (scheme && !(name && (!strcmp(name, "always") || !strcmp(name, "first") || !strcmp(name, "never"))))
        return td_fail(r->err, TD_E_FORMAT, "%s: \"prepend_scheme\" is %.40s, expected never, first or always", where,
                       name ? name : "no string");
    l->drop_first = name ? strcmp(name, "never") != 0 : add_space;
    return TD_OK;
}

static td_status read_byte_fallback(reader *r) {
    TD_TRY(needs_names(r, "ByteFallback"));
    r->names = false;
    return add_link(r, TD_LINK_BYTE_FALLBACK) ? TD_OK : TD_E_LIMIT;
}

static td_status read_byte_level(reader *r) {
    TD_TRY(needs_names(r, "ByteLevel"));
    r->names = false;
    r->fused = true;
    return add_link(r, TD_LINK_BYTE_LEVEL) ? TD_OK : TD_E_LIMIT;
}

static td_status read_fuse(reader *r) {
    r->names = false;
    r->fused = true;
    return add_link(r, TD_LINK_FUSE) ? TD_OK : TD_E_LIMIT;
}

static td_status read_any(reader *r, const json_t *spec, int nesting);

static td_status read_sequence(reader *r, const json_t *spec, int nesting) {
    const json_t *list = json_object_get(spec, "decoders");
    if (!json_is_array(list))
        return td_fail(r->err, TD_E_FORMAT, "decoder Sequence: expected \"decoders\" to be an array");
    if (nesting == MAX_NESTING)
        return td_fail(r->err, TD_E_LIMIT, "decoder: more than %d levels", MAX_NESTING);
    for (size_t i = 0; i < json_array_size(list); i++)
        TD_TRY(read_any(r, json_array_get(list, i), nesting + 1));
    return TD_OK;
}

static td_status read_any(reader *r, const json_t *spec, int nesting) {
    static const struct {
        const char *type;
        td_status (*read)(reader *);
    } types[] = {{"Replace", read_replace},      {"Strip", read_strip},
                 {"Metaspace", read_metaspace},  {"ByteFallback", read_byte_fallback},
                 {"ByteLevel", read_byte_level}, {"Fuse", read_fuse}};
    const char *type = json_string_value(json_object_get(spec, "type"));
    if (!type)
        return td_fail(r->err, TD_E_FORMAT, "decoder: expected an object with a \"type\"");
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(r, spec, nesting);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(type, types[i].type) == 0) {
            r->spec = spec;
            return types[i].read(r);
        }
    return td_fail(r->err, TD_E_UNSUPPORTED, "decoder of type \"%.60s\"", type);
}

td_status td_detok_spec_new(td_detok_spec **out, const json_t *spec, td_error *err) {
    *out = td_calloc(1, sizeof **out);
    if (!*out)
        return td_fail(err, TD_E_NOMEM, "out of memory for a decoder");
    reader r = {.decoder = *out, .names = true, .growth = 1, .err = err};
    td_status st = TD_OK;
    if (spec && !json_is_null(spec))
        st = read_any(&r, spec, 0);
    else
        add_link(&r, TD_LINK_JOIN); /* the first always fits */
    if (st != TD_OK)
        td_detok_spec_free(out);
    return st;
}
