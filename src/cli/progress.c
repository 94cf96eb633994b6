/* progress.c - a bar drawn with a carriage return and spaces alone, so that it needs no escape sequences. There is one
 * stderr, and so one bar: its state is the file's. A bar that would be drawn for less than a fifth of a second is never
 * drawn. */
#include "cli/progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "cli/signals.h"

enum { WIDTH = 30 };

static struct {
    bool enabled;
    int drawn; /* columns on the line now */
    char stage[40];
    int64_t began, last;
} bar;

void td_progress_enable(bool wanted) {
    const char *term = getenv("TERM");
    bar.enabled = wanted && isatty(STDERR_FILENO) && !(term && strcmp(term, "dumb") == 0);
}

void td_progress_clear(void) {
    if (bar.drawn == 0)
        return;
    fprintf(stderr, "\r%*s\r", bar.drawn, "");
    fflush(stderr);
    bar.drawn = 0;
}

static void draw(uint64_t done, uint64_t total) {
    double share = total > 0 ? (double)done / (double)total : 0;
    int full = (int)(share * WIDTH);
    char line[120];
    int n = snprintf(line, sizeof line, "%-20s [%.*s%*s] %3.0f%%", bar.stage, full, "##############################",
                     WIDTH - full, "", 100 * share);
    fprintf(stderr, "\r%s%*s", line, bar.drawn > n ? bar.drawn - n : 0, "");
    fflush(stderr);
    bar.drawn = n;
}

bool td_progress_show(void *user, const char *stage, uint64_t done, uint64_t total) {
    (void)user;
    if (!bar.enabled)
        return !td_interrupted();
    int64_t now = td_clock_ns();
    if (strncmp(bar.stage, stage, sizeof bar.stage - 1) != 0 || done == 0) {
        snprintf(bar.stage, sizeof bar.stage, "%s", stage);
        bar.began = now;
        bar.last = now;
    }
    if (done >= total) {
        td_progress_clear();
    } else if (now - bar.began > 200000000 && now - bar.last > 100000000) {
        bar.last = now;
        draw(done, total);
    }
    return !td_interrupted();
}
