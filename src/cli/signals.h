/* signals.h - Ctrl-C as a flag, and writes to a closed pipe as errors rather than as the end of the process. */
#ifndef TD_CLI_SIGNALS_H
#define TD_CLI_SIGNALS_H

#include <stdbool.h>

/* From here on the first SIGINT or SIGTERM raises the flag, a second one ends the process; SIGPIPE is ignored. */
void td_signals_install(void);
bool td_interrupted(void);
/* The opposite, for who asks by a callback whether to go on. */
bool td_not_interrupted(void *user);
/* Lowers the flag, for a chat that goes on after one answer was stopped. */
void td_interrupt_reset(void);

#endif
