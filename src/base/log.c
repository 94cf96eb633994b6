/* log.c - formats a message on the stack and hands it to the callback. */
#include "base/log.h"

#include <stdarg.h>
#include <stdio.h>

#include "base/status.h"

void td_log_write(const td_log *log, td_log_level level, const char *fmt, ...) {
    if (!log || !log->fn || level < log->level)
        return;
    char line[1024];
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    td_make_printable(line);
    log->fn(log->user, level, line);
}
