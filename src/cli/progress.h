/* progress.h - one progress bar on stderr, when that is a terminal. */
#ifndef TD_CLI_PROGRESS_H
#define TD_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

/* Bars are drawn only after this, and only when stderr is a terminal that can move its cursor. */
void td_progress_enable(bool wanted);

/* A td_progress_fn: draws at most ten times a second, and asks to stop once Ctrl-C was pressed. `user` is not used. */
bool td_progress_show(void *user, const char *stage, uint64_t done, uint64_t total);

/* Takes the bar off the line, so that something else can be printed. */
void td_progress_clear(void);

#endif
