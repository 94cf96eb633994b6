/* pretokenizer.c - a flat list of steps, each from words to words.
 *
 * Nearly all types are one thing, a pattern and what becomes of its matches, so Digits, Punctuation, Whitespace and
 * GPT-2's own expression are Splits with a built-in expression. Two steps rewrite text as well: ByteLevel writes each
 * byte as a printable character, Metaspace writes spaces as a mark. A step that only splits leaves the text where it
 * is and makes a new list of words. */
#include "text/pretokenizer.h"

#include <string.h>

#include "base/alloc.h"
#include "format/checkpoint.h"
#include "text/tokenizer_unicode.h"

#define MAX_STEPS 32
#define MAX_NESTING 8

/* What becomes of a match (the delimiter) between two stretches of other text. */
typedef enum behaviour {
    REMOVED,
    ISOLATED,
    MERGED_WITH_PREVIOUS,
    MERGED_WITH_NEXT,
    CONTIGUOUS, /* neighbouring matches are one word */
} behaviour;

typedef enum prepend { PREPEND_NEVER, PREPEND_FIRST, PREPEND_ALWAYS } prepend;

typedef enum step_kind { SPLIT, BYTE_LEVEL, METASPACE } step_kind;

typedef struct step {
    step_kind kind;
    td_pattern *pattern; /* SPLIT; METASPACE when it splits: the mark */
    behaviour behaviour;
    bool invert;    /* SPLIT: matches are what lies between the pattern's matches */
    bool add_space; /* BYTE_LEVEL: begin every word with a space */
    prepend prepend;
    char mark[4]; /* METASPACE */
    size_t mark_size;
} step;

struct td_pretokenizer {
    step steps[MAX_STEPS];
    size_t n;
};

/* ---- words ---- */

void td_words_init(td_words *w, size_t ceiling) {
    *w = (td_words){0};
    td_buf_init(&w->text, ceiling);
}

void td_words_free(td_words *w) {
    td_buf_free(&w->text);
    td_free(w->v);
    w->v = NULL;
    w->n = w->capacity = 0;
}

static td_status add_word(td_words *w, td_word word, td_error *err) {
    if (word.size == 0)
        return TD_OK;
    if (w->n == w->capacity) {
        size_t capacity = w->capacity ? w->capacity * 2 : 64;
        td_word *v = td_realloc(w->v, capacity, sizeof *v);
        if (!v)
            return td_fail(err, TD_E_NOMEM, "out of memory for %zu words", capacity);
        w->v = v;
        w->capacity = capacity;
    }
    w->v[w->n++] = word;
    return TD_OK;
}

/* ---- splitting ---- */

/* The splitting of one word. Its text is seen as stretches, alternately matched or not (an empty match is a stretch
 * too); each arrives at stretch(), which decides where words end. */
typedef struct splitter {
    const step *st;
    td_words *out;
    td_word whole;
    size_t start;   /* MERGED_*, CONTIGUOUS: where the word being built begins */
    size_t end;     /* and ends so far */
    bool open;      /* one is being built */
    bool was_match; /* the last stretch */
    td_error *err;
} splitter;

static td_status put(splitter *s, size_t start, size_t end) {
    td_word w = {s->whole.offset + start, end - start, s->whole.first && start == 0};
    return add_word(s->out, w, s->err);
}

static td_status close_word(splitter *s) {
    if (!s->open)
        return TD_OK;
    s->open = false;
    return put(s, s->start, s->end);
}

static td_status begin_word(splitter *s, size_t start, size_t end) {
    TD_TRY(close_word(s));
    s->open = true;
    s->start = start;
    s->end = end;
    return TD_OK;
}

/* True when this stretch continues the word that the one before it began. */
static bool joins(const splitter *s, bool match) {
    if (!s->open)
        return false;
    if (s->st->behaviour == CONTIGUOUS)
        return match == s->was_match;
    if (s->st->behaviour == MERGED_WITH_PREVIOUS)
        return match && !s->was_match;
    return !match && s->was_match; /* MERGED_WITH_NEXT */
}

static td_status stretch(splitter *s, size_t start, size_t end, bool match) {
    match ^= s->st->invert;
    if (s->st->behaviour == REMOVED)
        return match ? TD_OK : put(s, start, end);
    if (s->st->behaviour == ISOLATED)
        return put(s, start, end);
    bool join = joins(s, match);
    s->was_match = match;
    if (!join)
        return begin_word(s, start, end);
    s->end = end;
    return TD_OK;
}

static td_status split_word(const step *st, td_pattern_work *patterns, const char *text, td_word word, td_words *out,
                            td_error *err) {
    splitter s = {.st = st, .out = out, .whole = word, .err = err};
    td_pattern_walk w = td_pattern_walk_begin(st->pattern, patterns, text + word.offset, word.size);
    size_t done = 0;
    bool found;
    for (;;) {
        TD_TRY(td_pattern_walk_next(&w, &found, err));
        if (!found)
            break;
        if (done != w.start)
            TD_TRY(stretch(&s, done, w.start, false));
        TD_TRY(stretch(&s, w.start, w.end, true));
        done = w.end;
    }
    if (done != word.size)
        TD_TRY(stretch(&s, done, word.size, false));
    return close_word(&s);
}

static void swap_lists(td_words *a, td_words *b) {
    td_word *v = a->v;
    size_t capacity = a->capacity, n = a->n;
    a->v = b->v;
    a->capacity = b->capacity;
    a->n = b->n;
    b->v = v;
    b->capacity = capacity;
    b->n = n;
}

static td_status run_split(const step *st, td_pattern_work *patterns, td_words *words, td_words *spare, td_error *err) {
    spare->n = 0;
    for (size_t i = 0; i < words->n; i++)
        TD_TRY(split_word(st, patterns, words->text.data, words->v[i], spare, err));
    swap_lists(words, spare);
    return TD_OK;
}

/* ---- rewriting ---- */

static void map_bytes(td_buf *out, const char *s, size_t size) {
    char block[512];
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        n += td_uni_put(td_uni_byte_char((unsigned char)s[i]), block + n);
        if (n > sizeof block - 4) {
            (void)td_buf_append(out, block, n);
            n = 0;
        }
    }
    (void)td_buf_append(out, block, n);
}

static void byte_level(const step *st, const char *s, td_word word, td_buf *out) {
    if (st->add_space && s[0] != ' ')
        map_bytes(out, " ", 1);
    map_bytes(out, s, word.size);
}

static void metaspace(const step *st, const char *s, td_word word, td_buf *out) {
    bool marked = s[0] == ' ' || (word.size >= st->mark_size && memcmp(s, st->mark, st->mark_size) == 0);
    if (!marked && (st->prepend == PREPEND_ALWAYS || (st->prepend == PREPEND_FIRST && word.first)))
        (void)td_buf_append(out, st->mark, st->mark_size);
    for (size_t i = 0; i < word.size;) {
        const char *space = memchr(s + i, ' ', word.size - i);
        size_t n = space ? (size_t)(space - (s + i)) : word.size - i;
        (void)td_buf_append(out, s + i, n);
        if (space)
            (void)td_buf_append(out, st->mark, st->mark_size);
        i += n + (space != NULL);
    }
}

/* Rewrites every word, in place in the list, into a new text. */
static td_status run_rewrite(const step *st, td_words *words, td_words *spare, td_error *err) {
    td_buf *out = &spare->text;
    td_buf_clear(out);
    for (size_t i = 0; i < words->n; i++) {
        td_word *w = &words->v[i];
        size_t offset = out->size;
        if (st->kind == BYTE_LEVEL)
            byte_level(st, words->text.data + w->offset, *w, out);
        else
            metaspace(st, words->text.data + w->offset, *w, out);
        if (out->failed)
            return td_fail(err, out->failed, "no memory for a text of %zu bytes cut into words", words->text.size);
        w->offset = offset;
        w->size = out->size - offset;
    }
    td_buf text = words->text;
    words->text = spare->text;
    spare->text = text;
    return TD_OK;
}

td_status td_pretokenizer_run(const td_pretokenizer *p, td_pattern_work *patterns, const char *text, size_t size,
                              bool first, td_words *words, td_words *spare, td_error *err) {
    td_buf_clear(&words->text);
    words->n = 0;
    if (td_buf_append(&words->text, text, size) != TD_OK)
        return td_fail(err, words->text.failed, "no memory for a text of %zu bytes", size);
    TD_TRY(add_word(words, (td_word){0, size, first}, err));
    for (size_t i = 0; p && i < p->n; i++) {
        const step *st = &p->steps[i];
        if (st->kind != SPLIT)
            TD_TRY(run_rewrite(st, words, spare, err));
        if (st->pattern)
            TD_TRY(run_split(st, patterns, words, spare, err));
    }
    return TD_OK;
}

/* ---- reading the specification ---- */

void td_pretokenizer_free(td_pretokenizer **p) {
    if (!p || !*p)
        return;
    for (size_t i = 0; i < (*p)->n; i++)
        td_pattern_free(&(*p)->steps[i].pattern);
    td_free(*p);
    *p = NULL;
}

/* The members of one component, and where its steps go. */
typedef struct reader {
    td_pretokenizer *p;
    const json_t *spec;
    td_error *err;
} reader;

/* NULL: there are too many, and the error says so. */
static step *add_step(reader *r, step_kind kind) {
    if (r->p->n == MAX_STEPS) {
        td_fail(r->err, TD_E_LIMIT, "pre_tokenizer: more than %d steps", MAX_STEPS);
        return NULL;
    }
    step *st = &r->p->steps[r->p->n++];
    *st = (step){.kind = kind};
    return st;
}

/* A Split by one of the expressions below. */
static td_status built_in(reader *r, const char *expression, behaviour b, bool invert) {
    step *st = add_step(r, SPLIT);
    if (!st)
        return TD_E_LIMIT;
    st->behaviour = b;
    st->invert = invert;
    return td_pattern_regex(&st->pattern, expression, strlen(expression), r->err);
}

static td_status read_behaviour(reader *r, const char *where, behaviour missing, behaviour *out) {
    static const char *const names[] = {"Removed", "Isolated", "MergedWithPrevious", "MergedWithNext", "Contiguous"};
    const json_t *v = json_object_get(r->spec, "behavior");
    const char *name = json_string_value(v);
    *out = missing;
    if (!v)
        return TD_OK;
    for (int i = 0; name && i < 5; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (behaviour)i;
            return TD_OK;
        }
    return td_fail(r->err, TD_E_FORMAT,
                   "%s: \"behavior\" is \"%.40s\", expected Removed, Isolated, MergedWithPrevious, MergedWithNext or "
                   "Contiguous",
                   where, name ? name : "no string");
}

static td_status read_split(reader *r) {
    static const char where[] = "pre_tokenizer Split";
    step *st = add_step(r, SPLIT);
    if (!st)
        return TD_E_LIMIT;
    TD_TRY(read_behaviour(r, where, ISOLATED, &st->behaviour));
    TD_TRY(td_json_bool_or(r->spec, where, "invert", false, &st->invert, r->err));
    return td_pattern_parse(&st->pattern, json_object_get(r->spec, "pattern"), where, r->err);
}

static td_status read_byte_level(reader *r) {
    static const char where[] = "pre_tokenizer ByteLevel";
    static const char gpt2[] = "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";
    bool add_space, use_regex;
    step *st;
    TD_TRY(td_json_bool_or(r->spec, where, "add_prefix_space", false, &add_space, r->err));
    TD_TRY(td_json_bool_or(r->spec, where, "use_regex", true, &use_regex, r->err));
    if (add_space && use_regex) { /* the space is there before the expression sees the text */
        st = add_step(r, METASPACE);
        if (!st)
            return TD_E_LIMIT;
        st->prepend = PREPEND_ALWAYS;
        st->mark[0] = ' ';
        st->mark_size = 1;
    }
    if (use_regex)
        TD_TRY(built_in(r, gpt2, ISOLATED, false));
    st = add_step(r, BYTE_LEVEL);
    if (!st)
        return TD_E_LIMIT;
    st->add_space = add_space && !use_regex;
    return TD_OK;
}

/* "prepend_scheme", or the older "add_prefix_space". */
static td_status read_prepend(reader *r, const char *where, prepend *out) {
    static const char *const names[] = {"never", "first", "always"};
    const json_t *v = json_object_get(r->spec, "prepend_scheme");
    bool add_space;
    TD_TRY(td_json_bool_or(r->spec, where, "add_prefix_space", true, &add_space, r->err));
    *out = add_space ? PREPEND_ALWAYS : PREPEND_NEVER;
    if (!v)
        return TD_OK;
    const char *name = json_string_value(v);
    int i = 0;
    while (i < 3 && !(name && strcmp(name, names[i]) == 0))
        i++;
    if (i == 3)
        return td_fail(r->err, TD_E_FORMAT, "%s: \"prepend_scheme\" is %.40s, expected never, first or always", where,
                       name ? name : "no string");
    *out = (prepend)i;
    if (!add_space && *out != PREPEND_NEVER)
        return td_fail(r->err, TD_E_MODEL, "%s: \"add_prefix_space\" is false but \"prepend_scheme\" is %s", where,
                       names[i]);
    return TD_OK;
}

static td_status read_metaspace(reader *r) {
    static const char where[] = "pre_tokenizer Metaspace";
    const json_t *mark = json_object_get(r->spec, "replacement");
    size_t n = json_string_length(mark);
    const char *text = json_string_value(mark);
    if (!text || n == 0 || n != td_uni_length(text[0]))
        return td_fail(r->err, TD_E_FORMAT, "%s: expected \"replacement\" to be one character", where);
    step *st = add_step(r, METASPACE);
    if (!st)
        return TD_E_LIMIT;
    memcpy(st->mark, text, n);
    st->mark_size = n;
    TD_TRY(read_prepend(r, where, &st->prepend));
    bool split;
    TD_TRY(td_json_bool_or(r->spec, where, "split", true, &split, r->err));
    st->behaviour = MERGED_WITH_NEXT;
    return split ? td_pattern_literal(&st->pattern, text, n, r->err) : TD_OK;
}

static td_status read_digits(reader *r) {
    bool one;
    TD_TRY(td_json_bool_or(r->spec, "pre_tokenizer Digits", "individual_digits", false, &one, r->err));
    return built_in(r, "\\p{N}", one ? ISOLATED : CONTIGUOUS, false);
}

static td_status read_punctuation(reader *r) {
    behaviour b;
    TD_TRY(read_behaviour(r, "pre_tokenizer Punctuation", ISOLATED, &b));
    return built_in(r, "[\\p{P}!-/:-@\\[-`{-~]", b, false);
}

static td_status read_whitespace(reader *r) {
    return built_in(r, "[\\w\\x{200C}\\x{200D}]+|[^\\w\\s\\x{200C}\\x{200D}]+", REMOVED, true);
}

static td_status read_whitespace_split(reader *r) {
    return built_in(r, "\\s", REMOVED, false);
}

static td_status read_any(reader *r, const json_t *spec, int nesting);

static td_status read_sequence(reader *r, const json_t *spec, int nesting) {
    const json_t *list = json_object_get(spec, "pretokenizers");
    if (!json_is_array(list))
        return td_fail(r->err, TD_E_FORMAT, "pre_tokenizer Sequence: expected \"pretokenizers\" to be an array");
    if (nesting == MAX_NESTING)
        return td_fail(r->err, TD_E_LIMIT, "pre_tokenizer: more than %d levels", MAX_NESTING);
    for (size_t i = 0; i < json_array_size(list); i++)
        TD_TRY(read_any(r, json_array_get(list, i), nesting + 1));
    return TD_OK;
}

static td_status read_any(reader *r, const json_t *spec, int nesting) {
    static const struct {
        const char *type;
        td_status (*read)(reader *);
    } types[] = {{"Split", read_split},
                 {"ByteLevel", read_byte_level},
                 {"Metaspace", read_metaspace},
                 {"Digits", read_digits},
                 {"Whitespace", read_whitespace},
                 {"WhitespaceSplit", read_whitespace_split},
                 {"Punctuation", read_punctuation}};
    const char *type = json_string_value(json_object_get(spec, "type"));
    if (!type)
        return td_fail(r->err, TD_E_FORMAT, "pre_tokenizer: expected an object with a \"type\"");
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(r, spec, nesting);
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(type, types[i].type) == 0) {
            r->spec = spec;
            return types[i].read(r);
        }
    return td_fail(r->err, TD_E_UNSUPPORTED, "pre_tokenizer of type \"%.60s\"", type);
}

td_status td_pretokenizer_new(td_pretokenizer **out, const json_t *spec, td_error *err) {
    *out = NULL;
    if (!spec || json_is_null(spec))
        return TD_OK;
    td_pretokenizer *p = td_calloc(1, sizeof *p);
    if (!p)
        return td_fail(err, TD_E_NOMEM, "out of memory for a pre_tokenizer");
    reader r = {.p = p, .err = err};
    td_status st = read_any(&r, spec, 0);
    if (st != TD_OK)
        td_pretokenizer_free(&p);
    *out = p;
    return st;
}
