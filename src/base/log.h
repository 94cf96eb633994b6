/* log.h - one callback takes every message; the library itself prints nothing. */
#ifndef TD_BASE_LOG_H
#define TD_BASE_LOG_H

#include "tandem.h"

typedef struct td_log {
    td_log_fn fn; /* NULL: silence */
    void *user;
    td_log_level level; /* messages below it are dropped before formatting */
} td_log;

/* One line, no trailing newline. `log` may be NULL. Thread-safe when the callback is. */
void td_log_write(const td_log *log, td_log_level level, const char *fmt, ...) TD_PRINTF(3, 4);

#define td_log_warn(log, ...) td_log_write(log, TD_LOG_WARN, __VA_ARGS__)
#define td_log_info(log, ...) td_log_write(log, TD_LOG_INFO, __VA_ARGS__)

#endif
