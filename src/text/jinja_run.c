/* jinja_run.c - compiling and rendering from the outside, and what every part of a run leans on: its limits, its
 * failures, its output. */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "text/jinja_internal.h"

enum { COMPILED_BYTES_PER_BYTE = 512, COMPILED_LEAST = 1 << 16, SCRATCH_CEILING = 64 << 20 };

/* ---- compiling ---- */

/* Line ends become "\n", and one at the very end goes, as Jinja has it. */
static td_status normalise(td_jinja *t, const char *source, size_t size, td_error *err) {
    char *text = td_jarena_alloc(&t->arena, size, 1);
    if (!text)
        return td_fail(err, t->arena.failed, "%s: out of memory for the template", t->name);
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        bool carriage = source[i] == '\r';
        text[n++] = carriage ? '\n' : source[i];
        i += carriage && i + 1 < size && source[i + 1] == '\n';
    }
    if (n && text[n - 1] == '\n')
        n--;
    t->source = text;
    t->size = n;
    size_t bad = td_jutf8_invalid(text, n);
    return bad == SIZE_MAX ? TD_OK : td_jinja_fail(t, bad, TD_E_FORMAT, err, "not UTF-8");
}

static td_status set_name(td_jinja *t, const char *name, td_error *err) {
    size_t n = strlen(name);
    char *copy = td_jarena_alloc(&t->arena, n + 1, 1);
    if (!copy)
        return td_fail(err, t->arena.failed, "%s: out of memory for the template", name);
    memcpy(copy, name, n + 1);
    t->name = copy;
    return TD_OK;
}

static td_status compile(td_jinja *t, const char *source, size_t size, const char *name, td_error *err) {
    TD_TRY(set_name(t, name, err));
    TD_TRY(normalise(t, source, size, err));
    return td_jparse_template(t, err);
}

td_status td_jinja_compile(td_jinja **out, const char *source, size_t size, const char *name, td_error *err) {
    *out = NULL;
    td_error local;
    err = err ? err : &local;
    if (size > TD_JINJA_MAX_TEMPLATE)
        return td_fail(err, TD_E_LIMIT, "%s: a template of %zu bytes, expected at most %zu", name, size,
                       TD_JINJA_MAX_TEMPLATE);
    td_jinja *t = td_calloc(1, sizeof *t);
    if (!t)
        return td_fail(err, TD_E_NOMEM, "%s: out of memory for the template", name);
    td_jarena_init(&t->arena, COMPILED_LEAST + strlen(name) + size * COMPILED_BYTES_PER_BYTE, false);
    td_status st = compile(t, source, size, name, err);
    if (st != TD_OK)
        td_jinja_free(&t);
    *out = t;
    return st;
}

void td_jinja_free(td_jinja **t) {
    if (!t || !*t)
        return;
    td_jarena_free(&(*t)->arena);
    td_free(*t);
    *t = NULL;
}

bool td_jinja_uses(const td_jinja *t, const char *variable) {
    for (uint32_t i = 0; i < t->symbols.n; i++)
        if (td_jv_is_text(t->symbols.at[i].name, variable))
            return t->symbols.at[i].read;
    return false;
}

/* ---- failures and limits ---- */

td_status td_jrun_fail(td_jrun *r, td_status status, const char *fmt, ...) {
    char message[sizeof r->err->message];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(message, sizeof message, fmt, ap);
    va_end(ap);
    return td_jinja_fail(r->t, r->at->offset, status, r->err, "%s", message);
}

td_status td_jrun_nomem(td_jrun *r) {
    td_jarena *full = r->heap.failed ? &r->heap : &r->scratch;
    if (full->failed == TD_E_NOMEM)
        return td_jrun_fail(r, TD_E_NOMEM, "out of memory");
    return td_jrun_fail(r, TD_E_LIMIT, "the values take more than %zu bytes", full->ceiling);
}

td_status td_jrun_fail_undefined(td_jrun *r, td_jv v) {
    int n = v.size > 200 ? 200 : (int)v.size;
    const char *owner = td_jv_type_name_at(v.owner), *object = v.owner == TD_J_NONE ? "" : " object";
    owner = v.owner == TD_J_NONE ? "None" : owner;
    switch ((td_jorigin)v.origin) {
    case TD_J_FROM_NAME:
        return td_jrun_fail(r, TD_E_FORMAT, "'%.*s' is undefined", n, v.text);
    case TD_J_FROM_ATTRIBUTE:
        return td_jrun_fail(r, TD_E_FORMAT, "'%s%s' has no attribute '%.*s'", owner, object, n, v.text);
    case TD_J_FROM_INDEX:
        return td_jrun_fail(r, TD_E_FORMAT, "%s%s has no element %lld", owner, object, (long long)v.index);
    default:
        return td_jrun_fail(r, TD_E_FORMAT, "%.*s", n, v.text);
    }
}

td_status td_jrun_charge(td_jrun *r, size_t work) {
    r->steps += 1 + work / 256;
    if (r->steps > r->options.max_steps)
        return td_jrun_fail(r, TD_E_LIMIT, "the template takes more than %llu steps",
                            (unsigned long long)r->options.max_steps);
    return TD_OK;
}

td_status td_jrun_enter(td_jrun *r) {
    if (r->depth == TD_JINJA_MAX_DEPTH)
        return td_jrun_fail(r, TD_E_LIMIT, "nested deeper than %d levels", TD_JINJA_MAX_DEPTH);
    r->depth++;
    return TD_OK;
}

void td_jrun_leave(td_jrun *r) {
    r->depth--;
}

void *td_jrun_alloc(td_jrun *r, size_t n, size_t size) {
    return td_jarena_alloc(&r->heap, n, size);
}

td_status td_jrun_copy(td_jrun *r, const char *text, size_t size, td_jv *out) {
    char *copy = td_jrun_alloc(r, size, 1);
    if (!copy)
        return td_jrun_nomem(r);
    if (size)
        memcpy(copy, text, size);
    *out = td_jv_text(copy, size);
    return TD_OK;
}

/* ---- output ---- */

static td_status check_output(td_jrun *r, td_status st) {
    if (st == TD_E_LIMIT)
        return td_jrun_fail(r, st, "the text is longer than %zu bytes", r->out->ceiling);
    if (st == TD_E_NOMEM)
        return td_jrun_fail(r, st, "out of memory for the text");
    return st;
}

td_status td_jrun_write(td_jrun *r, const char *text, size_t size) {
    return check_output(r, td_buf_append(r->out, text, size));
}

td_status td_jrun_puts(td_jrun *r, const char *text) {
    return td_jrun_write(r, text, strlen(text));
}

td_status td_jrun_writef(td_jrun *r, const char *fmt, ...) {
    char text[256]; /* every use is short: numbers and names of types */
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    return td_jrun_write(r, text, n < (int)sizeof text ? (size_t)n : sizeof text - 1);
}

td_status td_jrun_take(td_jrun *r, size_t mark, td_jv *out) {
    size_t size = r->out->size - mark;
    TD_TRY(td_jrun_charge(r, size));
    TD_TRY(td_jrun_copy(r, size ? r->out->data + mark : NULL, size, out));
    r->out->size = mark;
    return TD_OK;
}

/* ---- rendering ---- */

/* Every name the template mentions: what the caller gave, else a global function, else undefined. */
static td_status resolve_context(td_jrun *r, const json_t *context) {
    const td_jsymbols *s = &r->t->symbols;
    r->context = td_jrun_alloc(r, s->n, sizeof *r->context);
    if (!r->context)
        return td_jrun_nomem(r);
    for (uint32_t i = 0; i < s->n; i++) {
        td_jv name = s->at[i].name;
        const json_t *given = s->at[i].read ? json_object_get(context, name.text) : NULL;
        const td_jbuiltin *function = td_jfunction_find(name);
        if (given) {
            TD_TRY(td_jv_from_json(r, given, &r->context[i]));
        } else if (function) {
            r->context[i] = (td_jv){.kind = TD_J_FUNCTION, .function = function};
        } else {
            r->context[i] = td_jv_text(name.text, name.size);
            r->context[i].kind = TD_J_UNDEFINED;
            r->context[i].origin = TD_J_FROM_NAME;
        }
    }
    return TD_OK;
}

static td_status run(td_jrun *r, const json_t *context) {
    TD_TRY(resolve_context(r, context));
    TD_TRY(td_jscope_new(r, NULL, &r->scope));
    return td_jexec(r, r->t->body);
}

td_status td_jinja_render(const td_jinja *t, const json_t *context, const td_jinja_options *options, td_buf *out,
                          td_error *err) {
    td_error local;
    td_jrun r = {.t = t, .out = out, .at = t->body, .err = err ? err : &local};
    if (context && !json_is_object(context))
        return td_fail(err, TD_E_ARG, "%s: the variables must be a JSON object", t->name);
    if (out->failed)
        return td_fail(err, out->failed, "%s: the buffer for the text has failed before", t->name);
    if (options)
        r.options = *options;
    r.options.max_steps = r.options.max_steps ? r.options.max_steps : TD_JINJA_MAX_STEPS;
    r.options.max_memory = r.options.max_memory ? r.options.max_memory : TD_JINJA_MAX_MEMORY;
    td_jarena_init(&r.heap, r.options.max_memory, false);
    td_jarena_init(&r.scratch, SCRATCH_CEILING, true);
    size_t mark = out->size;
    td_status st = run(&r, context);
    td_jarena_free(&r.heap);
    td_jarena_free(&r.scratch);
    if (st != TD_OK && !out->failed)
        out->size = mark;
    if (out->data)
        out->data[out->size] = '\0';
    return st;
}
