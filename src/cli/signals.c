/* signals.c - see signals.h. */
#include "cli/signals.h"

#include <signal.h>

static volatile sig_atomic_t interrupted;

static void on_signal(int number) {
    if (interrupted) {
        signal(number, SIG_DFL);
        raise(number);
    }
    interrupted = 1;
}

void td_signals_install(void) {
    /* No SA_RESTART: a chat that waits for a line should notice at once. */
    struct sigaction catch = {.sa_handler = on_signal};
    struct sigaction ignore = {.sa_handler = SIG_IGN};
    sigemptyset(&catch.sa_mask);
    sigemptyset(&ignore.sa_mask);
    sigaction(SIGINT, &catch, NULL);
    sigaction(SIGTERM, &catch, NULL);
    sigaction(SIGPIPE, &ignore, NULL);
}

bool td_interrupted(void) {
    return interrupted != 0;
}

bool td_not_interrupted(void *user) {
    (void)user;
    return !td_interrupted();
}

void td_interrupt_reset(void) {
    interrupted = 0;
}
