/* fault.c - see fault.h. */
#include "serve/fault.h"

#include <stdarg.h>
#include <stdio.h>

#include "serve/json_out.h"

td_status td_fault_set(td_fault *f, unsigned status, const char *code, const char *param, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    *f = (td_fault){.status = status, .code = code};
    vsnprintf(f->message, sizeof f->message, fmt, ap);
    va_end(ap);
    td_make_printable(f->message);
    snprintf(f->param, sizeof f->param, "%s", param ? param : "");
    td_make_printable(f->param);
    return TD_E_ARG;
}

typedef struct cause {
    td_status status;
    unsigned http;
    const char *code;
    unsigned retry_after;
} cause;

static const cause causes[] = {
    {TD_E_ARG, 400, "invalid_value", 0},
    {TD_E_FORMAT, 400, "invalid_value", 0},
    {TD_E_UNSUPPORTED, 400, "unsupported_value", 0},
    {TD_E_NOTFOUND, 400, "unsupported_value", 0}, /* a model without a tokenizer or a template */
    {TD_E_MODEL, 400, "invalid_value", 0},        /* a character that the vocabulary lacks */
    {TD_E_LIMIT, 400, "limit_exceeded", 0},
    {TD_E_BUSY, 429, "queue_full", 1},
    {TD_E_CANCELLED, 503, "shutting_down", 5},
    {TD_E_NOMEM, 503, "out_of_memory", 5},
    {TD_E_NUMERIC, 500, "non_finite_numbers", 0},
};

td_status td_fault_of(td_fault *f, const td_error *err, const char *param) {
    cause c = {err->status, 500, "internal_error", 0};
    for (size_t i = 0; i < sizeof causes / sizeof *causes; i++)
        if (causes[i].status == err->status)
            c = causes[i];
    td_fault_set(f, c.http, c.code, c.http == 400 ? param : NULL, "%s",
                 err->message[0] ? err->message : td_status_text(err->status));
    f->retry_after = c.retry_after;
    return err->status == TD_OK ? TD_E_ARG : err->status;
}

const char *td_fault_type(unsigned status) {
    if (status == 429)
        return "rate_limit_error";
    return status >= 500 ? "server_error" : "invalid_request_error";
}

void td_fault_write(td_buf *out, const td_fault *f) {
    td_json_out o = td_json_out_to(out);
    td_out_begin(&o, '{');
    td_out_key(&o, "error");
    td_out_begin(&o, '{');
    td_out_member_str(&o, "message", f->message);
    td_out_member_str(&o, "type", td_fault_type(f->status));
    td_out_member_str(&o, "param", f->param[0] ? f->param : NULL);
    td_out_member_str(&o, "code", f->code);
    td_out_end(&o, '}');
    td_out_end(&o, '}');
}

void td_fault_http_body(void *user, unsigned status, const char *code, const char *message, td_buf *out) {
    (void)user;
    td_fault f;
    td_fault_set(&f, status, code, NULL, "%s", message);
    td_fault_write(out, &f);
}
