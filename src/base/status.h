/* status.h - how a function of this house fails: fill the error, return its status, in one expression. */
#ifndef TD_BASE_STATUS_H
#define TD_BASE_STATUS_H

#include "tandem.h"

/* Fills *err (when not NULL) and returns `status`, so that `return td_fail(...)` is the whole failure path.
 * The message is cut at the size of td_error.message, on a UTF-8 boundary; control bytes become '?', so that text
 * out of a hostile file cannot write to a terminal. */
td_status td_fail(td_error *err, td_status status, const char *fmt, ...) TD_PRINTF(3, 4);

/* As td_fail, with the position (byte, token, row) the message speaks of. */
td_status td_fail_at(td_error *err, td_status status, int64_t position, const char *fmt, ...) TD_PRINTF(4, 5);

/* Puts "prefix: " before the message of an error that a callee has filled; returns err's status.
 * `status` is returned when err is NULL. */
td_status td_error_prefix(td_error *err, td_status status, const char *fmt, ...) TD_PRINTF(3, 4);

/* Cuts half a UTF-8 character off the end and turns control bytes into '?': what td_fail does to its message. */
void td_make_printable(char *s);

/* Runs `call`; on failure returns its status from the calling function. Only where nothing must be cleaned up. */
#define TD_TRY(call)                                                                                                   \
    do {                                                                                                               \
        td_status td_try_status_ = (call);                                                                             \
        if (td_try_status_ != TD_OK)                                                                                   \
            return td_try_status_;                                                                                     \
    } while (0)

#endif
