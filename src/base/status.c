/* status.c - statuses, their texts, and error messages that are safe to print. */
#include "base/status.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *td_status_name(td_status status) {
    switch (status) {
#define TD_STATUS_CASE(name, value, text)                                                                              \
    case TD_##name:                                                                                                    \
        return "TD_" #name;
        TD_STATUS_LIST(TD_STATUS_CASE)
#undef TD_STATUS_CASE
    }
    return "TD_E_?";
}

const char *td_status_text(td_status status) {
    switch (status) {
#define TD_STATUS_CASE(name, value, text)                                                                              \
    case TD_##name:                                                                                                    \
        return text;
        TD_STATUS_LIST(TD_STATUS_CASE)
#undef TD_STATUS_CASE
    }
    return "unknown status";
}

void td_make_printable(char *s) {
    size_t n = strlen(s);
    size_t tail = 0;
    while (tail < 3 && tail < n && ((unsigned char)s[n - 1 - tail] & 0xC0) == 0x80)
        tail++;
    if (n > tail) {
        unsigned char lead = (unsigned char)s[n - 1 - tail];
        size_t want = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : lead >= 0xC0 ? 1 : 0;
        if (want > tail)
            s[n - 1 - tail] = '\0';
    }
    for (; *s; s++)
        if ((unsigned char)*s < 0x20 || *s == 0x7F)
            *s = '?';
}

static td_status fail_va(td_error *err, td_status status, int64_t position, const char *fmt, va_list ap) {
    if (err) {
        err->status = status;
        err->position = position;
        vsnprintf(err->message, sizeof err->message, fmt, ap);
        td_make_printable(err->message);
    }
    return status;
}

td_status td_fail(td_error *err, td_status status, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fail_va(err, status, -1, fmt, ap);
    va_end(ap);
    return status;
}

td_status td_fail_at(td_error *err, td_status status, int64_t position, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fail_va(err, status, position, fmt, ap);
    va_end(ap);
    return status;
}

td_status td_error_prefix(td_error *err, td_status status, const char *fmt, ...) {
    if (!err)
        return status;
    char old[sizeof err->message];
    memcpy(old, err->message, sizeof old);
    int64_t position = err->position;
    char prefix[256];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(prefix, sizeof prefix, fmt, ap);
    va_end(ap);
    return td_fail_at(err, status, position, "%s: %s", prefix, old);
}
