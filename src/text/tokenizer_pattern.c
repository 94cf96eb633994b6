/* tokenizer_pattern.c - searching, by memmem or by PCRE2.
 *
 * Limits. Published expressions are linear: they step over a run of a class once or twice. MATCH_LIMIT backtracking
 * points a match are enough to walk a run of ten million characters back, and end an expression like (a+)+$ in well
 * under a second. The JIT's own stack is 32 KiB; an expression that needs more (a repeated group on a long run) is
 * done again by the interpreter, which works on the heap, up to HEAP_LIMIT.
 *
 * Subjects have been checked to be UTF-8 at the door, so PCRE2 does not check them again for each match: that would
 * make a walk quadratic. */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "text/tokenizer_pattern.h"

#include <pcre2.h>
#include <string.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "format/json_scan.h"
#include "text/tokenizer_dialect.h"
#include "text/tokenizer_unicode.h"

#define MATCH_LIMIT 10000000u
#define HEAP_LIMIT_KIB (64u * 1024)
#define PATTERN_CEILING (1u << 20) /* bytes of a translated expression */

struct td_pattern {
    pcre2_code *code; /* NULL: a literal */
    bool jit;
    char *text; /* the literal, or the expression as the file has it */
    size_t size;
};

static void *pcre_malloc(size_t n, void *user) {
    (void)user;
    return td_malloc(n);
}

static void pcre_free(void *p, void *user) {
    (void)user;
    td_free(p);
}

static pcre2_general_context *new_context(void) {
    return pcre2_general_context_create(pcre_malloc, pcre_free, NULL);
}

void td_pattern_free(td_pattern **p) {
    if (!p || !*p)
        return;
    pcre2_code_free((*p)->code);
    td_free((*p)->text);
    td_free(*p);
    *p = NULL;
}

static td_status new_pattern(td_pattern **out, const char *text, size_t size, td_error *err) {
    td_pattern *p = td_calloc(1, sizeof *p);
    *out = p;
    if (p)
        p->text = td_strndup(text, size);
    if (p && p->text) {
        p->size = size;
        return TD_OK;
    }
    td_pattern_free(out);
    return td_fail(err, TD_E_NOMEM, "out of memory for a pattern of %zu bytes", size);
}

td_status td_pattern_literal(td_pattern **out, const char *text, size_t size, td_error *err) {
    *out = NULL;
    if (size == 0)
        return td_fail(err, TD_E_UNSUPPORTED, "an empty pattern");
    return new_pattern(out, text, size, err);
}

/* ---- compiling ---- */

static td_status compile(td_pattern *p, const td_buf *translated, td_error *err) {
    pcre2_general_context *general = new_context();
    pcre2_compile_context *context = general ? pcre2_compile_context_create(general) : NULL;
    int code = PCRE2_ERROR_NOMEMORY;
    size_t offset = 0;
    if (context) {
        pcre2_set_newline(context, PCRE2_NEWLINE_LF);
        pcre2_set_bsr(context, PCRE2_BSR_UNICODE);
        pcre2_set_parens_nest_limit(context, TD_DIALECT_MAX_DEPTH * 2);
        p->code =
            pcre2_compile((PCRE2_SPTR)translated->data, translated->size,
                          PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &code, &offset, context);
    }
    pcre2_compile_context_free(context);
    pcre2_general_context_free(general);
    if (p->code) {
        p->jit = pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE) == 0;
        return TD_OK;
    }
    /* 121: "failed to allocate heap memory" */
    if (code == PCRE2_ERROR_NOMEMORY || code == PCRE2_ERROR_HEAP_FAILED)
        return td_fail(err, TD_E_NOMEM, "out of memory for a regular expression");
    PCRE2_UCHAR reason[160];
    pcre2_get_error_message(code, reason, sizeof reason);
    char shown[TD_SHOWN_SIZE];
    return td_fail(err, TD_E_FORMAT, "the regular expression %s: %s", td_shown(shown, p->text, p->size),
                   (const char *)reason);
}

td_status td_pattern_regex(td_pattern **out, const char *expression, size_t size, td_error *err) {
    TD_TRY(new_pattern(out, expression, size, err));
    td_buf translated;
    td_buf_init(&translated, PATTERN_CEILING);
    td_status st = td_dialect_translate(expression, size, &translated, err);
    if (st == TD_OK && !td_buf_str(&translated))
        st = td_fail(err, TD_E_NOMEM, "out of memory for a regular expression");
    if (st == TD_OK)
        st = compile(*out, &translated, err);
    td_buf_free(&translated);
    if (st != TD_OK)
        td_pattern_free(out);
    return st;
}

td_status td_pattern_parse(td_pattern **out, const json_t *spec, const char *where, td_error *err) {
    *out = NULL;
    const json_t *literal = json_object_get(spec, "String");
    const json_t *regex = json_object_get(spec, "Regex");
    if (json_object_size(spec) != 1 || !(json_is_string(literal) || json_is_string(regex)))
        return td_fail(err, TD_E_FORMAT, "%s: expected \"pattern\" to be {\"String\": ...} or {\"Regex\": ...}", where);
    td_status st = literal ? td_pattern_literal(out, json_string_value(literal), json_string_length(literal), err)
                           : td_pattern_regex(out, json_string_value(regex), json_string_length(regex), err);
    return st == TD_OK ? TD_OK : td_error_prefix(err, st, "%s", where);
}

const char *td_pattern_text(const td_pattern *p, size_t *size) {
    *size = p->size;
    return p->code ? NULL : p->text;
}

/* ---- searching ---- */

void td_pattern_work_free(td_pattern_work *w) {
    pcre2_match_data_free(w->match_data);
    pcre2_match_context_free(w->match_context);
    *w = (td_pattern_work){0};
}

static td_status ready(td_pattern_work *w, td_error *err) {
    if (w->match_data)
        return TD_OK;
    pcre2_general_context *general = new_context();
    if (general) {
        w->match_context = pcre2_match_context_create(general);
        w->match_data = w->match_context ? pcre2_match_data_create(1, general) : NULL;
    }
    pcre2_general_context_free(general);
    if (!w->match_data) {
        td_pattern_work_free(w);
        return td_fail(err, TD_E_NOMEM, "out of memory for a search");
    }
    pcre2_set_match_limit(w->match_context, MATCH_LIMIT);
    pcre2_set_heap_limit(w->match_context, HEAP_LIMIT_KIB);
    return TD_OK;
}

static int run_pcre(const td_pattern_walk *w) {
    const td_pattern *p = w->pattern;
    PCRE2_SPTR text = (PCRE2_SPTR)w->text;
    if (p->jit) {
        int rc = pcre2_jit_match(p->code, text, w->size, w->pos, 0, w->work->match_data, w->work->match_context);
        if (rc != PCRE2_ERROR_JIT_STACKLIMIT)
            return rc;
    }
    return pcre2_match(p->code, text, w->size, w->pos, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, w->work->match_data,
                       w->work->match_context);
}

static td_status search_regex(td_pattern_walk *w, bool *found, td_error *err) {
    TD_TRY(ready(w->work, err));
    int rc = run_pcre(w);
    *found = rc >= 0;
    if (rc >= 0) {
        const PCRE2_SIZE *at = pcre2_get_ovector_pointer(w->work->match_data);
        w->start = at[0] < at[1] ? at[0] : at[1]; /* \K in a lookahead could turn them round */
        w->end = at[1];
        return TD_OK;
    }
    if (rc == PCRE2_ERROR_NOMATCH)
        return TD_OK;
    if (rc == PCRE2_ERROR_NOMEMORY)
        return td_fail(err, TD_E_NOMEM, "out of memory for a search");
    char shown[TD_SHOWN_SIZE];
    PCRE2_UCHAR reason[160];
    pcre2_get_error_message(rc, reason, sizeof reason);
    return td_fail_at(err, TD_E_LIMIT, (int64_t)w->pos, "the regular expression %s fails at byte %zu of a text: %s",
                      td_shown(shown, w->pattern->text, w->pattern->size), w->pos, (const char *)reason);
}

static bool search_literal(td_pattern_walk *w) {
    const td_pattern *p = w->pattern;
    const char *hit = memmem(w->text + w->pos, w->size - w->pos, p->text, p->size);
    if (!hit)
        return false;
    w->start = (size_t)(hit - w->text);
    w->end = w->start + p->size;
    return true;
}

td_pattern_walk td_pattern_walk_begin(const td_pattern *p, td_pattern_work *work, const char *text, size_t size) {
    /* an empty text has no match, not even an empty one, as in the reference implementation */
    return (td_pattern_walk){.pattern = p, .work = work, .text = text, .size = size, .pos = size == 0};
}

td_status td_pattern_walk_next(td_pattern_walk *w, bool *found, td_error *err) {
    size_t last = w->end;
    *found = false;
    while (w->pos <= w->size) {
        if (!w->pattern->code)
            *found = search_literal(w);
        else
            TD_TRY(search_regex(w, found, err));
        if (!*found)
            break;
        if (w->start < w->end || !w->matched || w->end != last) {
            w->matched = true;
            w->pos = w->end;
            return TD_OK;
        }
        /* an empty match where the last one ended: look from the next character on */
        w->pos += w->pos < w->size ? td_uni_length(w->text[w->pos]) : 1;
        *found = false;
    }
    w->pos = w->size + 1;
    return TD_OK;
}
