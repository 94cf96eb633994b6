/* normalizer.c - a flat list of steps; each reads one buffer and appends to another.
 *
 * The Unicode forms. utf8proc decomposes one character and composes an array of them; between the two we put the marks
 * in order ourselves, since utf8proc's own ordering is quadratic in a run of marks, and text comes from strangers.
 * ASCII is its own form in all four and composes only with a mark that follows it, so stretches of ASCII are copied,
 * and the work is done on stretches of other characters with the one ASCII character before them. */
#include "text/normalizer.h"

#include <string.h>
#include <utf8proc.h>

#include "base/alloc.h"
#include "format/checkpoint.h"
#include "text/tokenizer_unicode.h"

#define MAX_STEPS 64
#define MAX_NESTING 8

typedef enum step_kind { FORM, LOWERCASE, PREPEND, REPLACE, STRIP, STRIP_ACCENTS } step_kind;

typedef struct step {
    step_kind kind;
    bool compose, compat; /* FORM */
    bool left, right;     /* STRIP */
    char *text;           /* PREPEND, REPLACE: what comes in; owned */
    size_t size;
    td_pattern *pattern; /* REPLACE */
} step;

struct td_normalizer {
    step steps[MAX_STEPS];
    size_t n;
};

/* What a step works on. */
typedef struct job {
    const char *text;
    size_t size;
    td_buf *out;
    bool cut;
    td_normalizer_work *work;
    td_pattern_work *patterns;
    td_error *err;
} job;

/* ---- the Unicode forms ---- */

static int combining_class(int32_t c) {
    return utf8proc_get_property(c)->combining_class;
}

/* Stable order of a run of marks by class: insertion for the usual short ones, else counting (classes are 1..254). */
static void order_marks(int32_t *c, size_t n, int32_t *scratch) {
    if (n <= 16) {
        for (size_t i = 1; i < n; i++) {
            int32_t mark = c[i];
            size_t j = i;
            for (; j > 0 && combining_class(c[j - 1]) > combining_class(mark); j--)
                c[j] = c[j - 1];
            c[j] = mark;
        }
        return;
    }
    size_t start[257] = {0};
    for (size_t i = 0; i < n; i++)
        start[combining_class(c[i]) + 1]++;
    for (size_t k = 1; k < 257; k++)
        start[k] += start[k - 1];
    for (size_t i = 0; i < n; i++)
        scratch[start[combining_class(c[i])]++] = c[i];
    memcpy(c, scratch, n * sizeof *c);
}

static void order_all_marks(int32_t *c, size_t n, int32_t *scratch) {
    for (size_t i = 0; i < n; i++) {
        if (combining_class(c[i]) == 0)
            continue;
        size_t first = i;
        while (i < n && combining_class(c[i]) != 0)
            i++;
        order_marks(c + first, i - first, scratch);
    }
}

/* Decomposes a stretch into `c`, or only counts when c is NULL. */
static size_t decompose(const char *s, size_t size, int options, int32_t *c) {
    size_t n = 0;
    int32_t parts[32]; /* the longest decomposition has 18 characters */
    for (size_t i = 0; i < size;) {
        uint32_t cp;
        i += td_uni_next(s + i, &cp);
        utf8proc_ssize_t k = utf8proc_decompose_char((utf8proc_int32_t)cp, parts, 32, (utf8proc_option_t)options, NULL);
        if (k < 1 || k > 32) { /* not in the tables: stands for itself */
            parts[0] = (int32_t)cp;
            k = 1;
        }
        if (c)
            memcpy(c + n, parts, (size_t)k * sizeof *c);
        n += (size_t)k;
    }
    return n;
}

/* Blocks of characters that are their own NFC and compose with nothing before them. */
static bool is_composed(uint32_t c) {
    return c < 0x300 || (c >= 0x400 && c <= 0x482) || (c >= 0x2010 && c <= 0x205E) || (c >= 0x3041 && c <= 0x3096) ||
           (c >= 0x30A1 && c <= 0x30FA) || (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0xAC00 && c <= 0xD7A3) ||
           (c >= 0x1F300 && c <= 0x1FAFF);
}

static bool all_composed(const char *s, size_t size) {
    for (size_t i = 0; i < size;) {
        uint32_t cp;
        i += td_uni_next(s + i, &cp);
        if (!is_composed(cp))
            return false;
    }
    return true;
}

static td_status form_stretch(job *j, const step *st, const char *s, size_t size) {
    if (st->compose && !st->compat && all_composed(s, size)) {
        (void)td_buf_append(j->out, s, size);
        return TD_OK;
    }
    int options = UTF8PROC_STABLE | UTF8PROC_DECOMPOSE | (st->compat ? UTF8PROC_COMPAT : 0);
    size_t n = decompose(s, size, options, NULL);
    if (2 * n > j->work->n_chars) { /* the second half is scratch for the ordering */
        int32_t *chars = td_realloc(j->work->chars, 2 * n, sizeof *chars);
        if (!chars)
            return td_fail(j->err, TD_E_NOMEM, "out of memory to normalise a text of %zu bytes", j->size);
        j->work->chars = chars;
        j->work->n_chars = 2 * n;
    }
    int32_t *c = j->work->chars;
    decompose(s, size, options, c);
    order_all_marks(c, n, c + n);
    if (st->compose) {
        utf8proc_ssize_t k = utf8proc_normalize_utf32(c, (utf8proc_ssize_t)n, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
        n = k >= 0 ? (size_t)k : n;
    }
    for (size_t i = 0; i < n; i++) {
        char bytes[4];
        (void)td_buf_append(j->out, bytes, td_uni_put((uint32_t)c[i], bytes));
    }
    return TD_OK;
}

static size_t ascii_run(const char *s, size_t size) {
    size_t n = 0;
    uint64_t eight;
    while (size - n >= 8 && (memcpy(&eight, s + n, 8), !(eight & 0x8080808080808080u)))
        n += 8;
    while (n < size && (unsigned char)s[n] < 0x80)
        n++;
    return n;
}

static td_status run_form(job *j, const step *st) {
    for (size_t i = 0; i < j->size;) {
        size_t ascii = ascii_run(j->text + i, j->size - i);
        bool more = i + ascii < j->size;
        size_t copied = ascii > 0 && more ? ascii - 1 : ascii; /* the last one may carry the mark that follows */
        (void)td_buf_append(j->out, j->text + i, copied);
        i += copied;
        if (!more)
            break;
        size_t end = i + (ascii > 0);
        while (end < j->size && (unsigned char)j->text[end] >= 0x80)
            end++;
        TD_TRY(form_stretch(j, st, j->text + i, end - i));
        i = end;
    }
    return TD_OK;
}

/* ---- the other steps ---- */

/* One character at a time, without the final sigma's context, as the reference does it. */
static td_status run_lowercase(job *j) {
    for (size_t i = 0; i < j->size;) {
        uint32_t cp;
        char bytes[4];
        i += td_uni_next(j->text + i, &cp);
        if (cp == 0x130) /* the only capital whose small letter is two characters */
            (void)td_buf_append(j->out, "i\xCC\x87", 3);
        else
            (void)td_buf_append(j->out, bytes, td_uni_put((uint32_t)utf8proc_tolower((utf8proc_int32_t)cp), bytes));
    }
    return TD_OK;
}

static td_status run_prepend(job *j, const step *st) {
    if (j->size > 0)
        (void)td_buf_append(j->out, st->text, st->size);
    (void)td_buf_append(j->out, j->text, j->size);
    return TD_OK;
}

static td_status run_replace(job *j, const step *st) {
    td_pattern_walk w = td_pattern_walk_begin(st->pattern, j->patterns, j->text, j->size);
    size_t copied = 0;
    bool found;
    for (;;) {
        TD_TRY(td_pattern_walk_next(&w, &found, j->err));
        if (!found)
            break;
        (void)td_buf_append(j->out, j->text + copied, w.start - copied);
        (void)td_buf_append(j->out, st->text, st->size);
        copied = w.end;
        if (j->out->failed) /* do not search on for nothing */
            return TD_OK;
        /* What replaces the first character alone stands in its place; otherwise the front has moved. */
        if (w.start == 0 && w.end > 0 && (st->size == 0 || w.end > td_uni_length(j->text[0])))
            j->cut = true;
    }
    (void)td_buf_append(j->out, j->text + copied, j->size - copied);
    return TD_OK;
}

static td_status run_strip(job *j, const step *st) {
    size_t from = 0, to = j->size;
    uint32_t cp;
    while (st->left && from < to) {
        size_t n = td_uni_next(j->text + from, &cp);
        if (!td_uni_is_space(cp))
            break;
        from += n;
    }
    while (st->right && to > from) {
        size_t before = td_uni_before(j->text, to);
        td_uni_next(j->text + before, &cp);
        if (!td_uni_is_space(cp))
            break;
        to = before;
    }
    j->cut |= from > 0;
    (void)td_buf_append(j->out, j->text + from, to - from);
    return TD_OK;
}

static td_status run_strip_accents(job *j) {
    for (size_t i = 0; i < j->size;) {
        uint32_t cp;
        size_t n = td_uni_next(j->text + i, &cp);
        if (!td_uni_is_mark(cp))
            (void)td_buf_append(j->out, j->text + i, n);
        else
            j->cut |= i == 0;
        i += n;
    }
    return TD_OK;
}

static td_status run_step(job *j, const step *st) {
    switch (st->kind) {
    case FORM:
        return run_form(j, st);
    case LOWERCASE:
        return run_lowercase(j);
    case PREPEND:
        return run_prepend(j, st);
    case REPLACE:
        return run_replace(j, st);
    case STRIP:
        return run_strip(j, st);
    case STRIP_ACCENTS:
        return run_strip_accents(j);
    }
    return TD_OK;
}

void td_normalizer_work_free(td_normalizer_work *w) {
    td_buf_free(&w->spare);
    td_free(w->chars);
    *w = (td_normalizer_work){0};
}

td_status td_normalizer_run(const td_normalizer *n, td_normalizer_work *work, td_pattern_work *patterns,
                            const char *text, size_t size, td_buf *out, bool *cut, td_error *err) {
    td_buf_clear(out);
    size_t n_steps = n ? n->n : 0;
    if (n_steps == 0)
        (void)td_buf_append(out, text, size);
    work->spare.ceiling = out->ceiling;
    job j = {.text = text, .size = size, .work = work, .patterns = patterns, .err = err};
    for (size_t i = 0; i < n_steps; i++) {
        /* The last step writes to `out`, the one before it to the spare buffer, and so on. */
        j.out = (n_steps - i) % 2 == 1 ? out : &work->spare;
        td_buf_clear(j.out);
        TD_TRY(run_step(&j, &n->steps[i]));
        j.text = td_buf_str(j.out);
        j.size = j.out->size;
        if (!j.text)
            return td_fail(err, j.out->failed, "no memory for a normalised text (at most %zu bytes)", out->ceiling);
    }
    if (!td_buf_str(out))
        return td_fail(err, out->failed, "no memory for a text of %zu bytes", size);
    if (cut)
        *cut = j.cut;
    return TD_OK;
}

/* ---- reading the specification ---- */

void td_normalizer_free(td_normalizer **n) {
    if (!n || !*n)
        return;
    for (size_t i = 0; i < (*n)->n; i++) {
        td_pattern_free(&(*n)->steps[i].pattern);
        td_free((*n)->steps[i].text);
    }
    td_free(*n);
    *n = NULL;
}

/* A required string member, copied. */
static td_status text_member(step *st, const json_t *spec, const char *key, const char *where, td_error *err) {
    const json_t *v = json_object_get(spec, key);
    if (!json_is_string(v))
        return td_fail(err, TD_E_FORMAT, "%s: expected \"%s\" to be a string", where, key);
    st->size = json_string_length(v);
    st->text = td_strndup(json_string_value(v), st->size);
    return st->text ? TD_OK : td_fail(err, TD_E_NOMEM, "out of memory for a normalizer");
}

static td_status read_replace(step *st, const json_t *spec, td_error *err) {
    static const char where[] = "normalizer Replace";
    TD_TRY(text_member(st, spec, "content", where, err));
    return td_pattern_parse(&st->pattern, json_object_get(spec, "pattern"), where, err);
}

static td_status read_strip(step *st, const json_t *spec, td_error *err) {
    static const char where[] = "normalizer Strip";
    TD_TRY(td_json_bool_or(spec, where, "strip_left", true, &st->left, err));
    return td_json_bool_or(spec, where, "strip_right", true, &st->right, err);
}

static td_status read_form(step *st, const char *type) {
    st->compose = type[strlen(type) - 1] == 'C';
    st->compat = type[2] == 'K';
    return TD_OK;
}

static td_status read_any(td_normalizer *n, const json_t *spec, int nesting, td_error *err);

static td_status read_sequence(td_normalizer *n, const json_t *spec, int nesting, td_error *err) {
    const json_t *list = json_object_get(spec, "normalizers");
    if (!json_is_array(list))
        return td_fail(err, TD_E_FORMAT, "normalizer Sequence: expected \"normalizers\" to be an array");
    for (size_t i = 0; i < json_array_size(list); i++)
        TD_TRY(read_any(n, json_array_get(list, i), nesting + 1, err));
    return TD_OK;
}

static td_status read_any(td_normalizer *n, const json_t *spec, int nesting, td_error *err) {
    static const struct {
        const char *type;
        step_kind kind;
    } types[] = {{"NFC", FORM},
                 {"NFD", FORM},
                 {"NFKC", FORM},
                 {"NFKD", FORM},
                 {"Lowercase", LOWERCASE},
                 {"Prepend", PREPEND},
                 {"Replace", REPLACE},
                 {"Strip", STRIP},
                 {"StripAccents", STRIP_ACCENTS}};
    const char *type = json_string_value(json_object_get(spec, "type"));
    if (!type)
        return td_fail(err, TD_E_FORMAT, "normalizer: expected an object with a \"type\"");
    if (nesting > MAX_NESTING || n->n == MAX_STEPS)
        return td_fail(err, TD_E_LIMIT, "normalizer: more than %d steps or %d levels", MAX_STEPS, MAX_NESTING);
    if (strcmp(type, "Sequence") == 0)
        return read_sequence(n, spec, nesting, err);
    size_t i = 0, count = sizeof types / sizeof types[0];
    while (i < count && strcmp(type, types[i].type) != 0)
        i++;
    if (i == count)
        return td_fail(err, TD_E_UNSUPPORTED, "normalizer of type \"%.60s\"", type);
    step *st = &n->steps[n->n++]; /* counted first: what it owns is freed with the rest */
    *st = (step){.kind = types[i].kind};
    switch (st->kind) {
    case FORM:
        return read_form(st, type);
    case PREPEND:
        return text_member(st, spec, "prepend", "normalizer Prepend", err);
    case REPLACE:
        return read_replace(st, spec, err);
    case STRIP:
        return read_strip(st, spec, err);
    case LOWERCASE:
    case STRIP_ACCENTS:
        break;
    }
    return TD_OK;
}

td_status td_normalizer_new(td_normalizer **out, const json_t *spec, td_error *err) {
    *out = NULL;
    if (!spec || json_is_null(spec))
        return TD_OK;
    td_normalizer *n = td_calloc(1, sizeof *n);
    if (!n)
        return td_fail(err, TD_E_NOMEM, "out of memory for a normalizer");
    td_status st = read_any(n, spec, 0, err);
    if (st != TD_OK)
        td_normalizer_free(&n);
    *out = n;
    return st;
}
