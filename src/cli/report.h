/* report.h - what the program says beside its answers: errors, notes, sizes, JSON; and what the terminal can do. */
#ifndef TD_CLI_REPORT_H
#define TD_CLI_REPORT_H

#include <jansson.h>

#include "tandem.h"

/* Exit codes of the program. */
enum {
    TD_EXIT_OK = 0,
    TD_EXIT_FAILURE = 1,       /* one line "tandem: ..." on stderr */
    TD_EXIT_USAGE = 2,         /* one line "tandem COMMAND: ..." on stderr */
    TD_EXIT_INTERRUPTED = 130, /* Ctrl-C; what was done until then has been reported */
};

/* "who: message" as one line on stderr, whatever bytes the message holds. */
void td_report_error(const char *who, const char *fmt, ...) TD_PRINTF(2, 3);
/* The failure of a library call: "tandem: message"; the status's text when there is no message. Returns the exit code:
 * TD_EXIT_INTERRUPTED when the call was cancelled by Ctrl-C. */
int td_report_failure(td_status status, const td_error *err);
/* A line on stderr for people, not for scripts. */
void td_report_note(const char *fmt, ...) TD_PRINTF(1, 2);

/* One line of compact JSON on stdout. Takes `value` over (NULL: out of memory). Returns the exit code; that stdout
 * takes no more is for td_report_end to say. */
int td_report_json(json_t *value);

/* Writes out what stdout holds back; false: it takes no more (a full disk, a reader that went away). */
bool td_report_flush(void);
/* The last word of a command that ends with `rc`: a stdout that failed makes it TD_EXIT_FAILURE with one line that says
 * why. A reader that has had enough is no failure. */
int td_report_end(int rc);

/* "17.3 MiB" into buf; returns buf. */
const char *td_bytes_text(uint64_t bytes, char *buf, size_t size);
/* "28.6 M" into buf; returns buf. */
const char *td_count_text(uint64_t count, char *buf, size_t size);
#define TD_NUMBER_TEXT_SIZE 32
/* Bits that each of `count` weights takes of `bytes`; 0 for none. */
double td_bits_each(uint64_t bytes, uint64_t count);

/* Highest resident size of this process in MiB; 0 where the system does not say. */
double td_peak_memory_mb(void);

/* Escape sequences for stdout and stderr, "" unless that is a terminal, TERM is not "dumb" and NO_COLOR is not set. */
typedef struct td_style {
    const char *dim, *draft, *bold, *off;
} td_style;
td_style td_style_for(int fd);

#endif
