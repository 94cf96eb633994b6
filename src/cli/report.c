/* report.c - see report.h. */
#include "cli/report.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/progress.h"
#include "cli/signals.h"

static void print_line(const char *who, const char *fmt, va_list ap) {
    char line[1024];
    vsnprintf(line, sizeof line, fmt, ap);
    for (char *p = line; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7F)
            *p = '?';
    td_progress_clear();
    fflush(stdout);
    fprintf(stderr, "%s%s%s\n", who ? who : "", who ? ": " : "", line);
}

void td_report_error(const char *who, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    print_line(who, fmt, ap);
    va_end(ap);
}

void td_report_note(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    print_line(NULL, fmt, ap);
    va_end(ap);
}

/* ---- stdout ---- */

static int stdout_error; /* errno of its first failure, 0: none; there is one stdout, and it does not recover */

bool td_report_flush(void) {
    bool ok = fflush(stdout) == 0 && !ferror(stdout);
    if (!ok && stdout_error == 0)
        stdout_error = errno;
    return ok;
}

int td_report_end(int rc) {
    if (td_report_flush() || stdout_error == EPIPE)
        return rc;
    td_report_error("tandem", "cannot write to standard output: %s", strerror(stdout_error));
    return rc == TD_EXIT_OK ? TD_EXIT_FAILURE : rc;
}

/* ---- failures ---- */

int td_report_failure(td_status status, const td_error *err) {
    if (status == TD_E_CANCELLED && td_interrupted()) {
        td_report_error("tandem", "interrupted");
        return TD_EXIT_INTERRUPTED;
    }
    if (status == TD_E_CANCELLED && !td_report_flush())
        return TD_EXIT_OK; /* it was stopped because nobody reads; td_report_end says so where that is a failure */
    bool told = err && err->message[0] != '\0';
    td_report_error("tandem", "%s", told ? err->message : td_status_text(status));
    return TD_EXIT_FAILURE;
}

int td_report_json(json_t *value) {
    if (value == NULL) {
        td_report_error("tandem", "out of memory while writing JSON");
        return TD_EXIT_FAILURE;
    }
    td_progress_clear();
    int failed = json_dumpf(value, stdout, JSON_COMPACT | JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    json_decref(value);
    putchar('\n');
    if (td_report_flush() && failed) {
        td_report_error("tandem", "the result holds text that is not UTF-8, and cannot be written as JSON");
        return TD_EXIT_FAILURE;
    }
    return TD_EXIT_OK;
}

static const char *scaled(double value, double step, const char *const *units, int n_units, char *buf, size_t size) {
    int unit = 0;
    while (value >= step && unit + 1 < n_units) {
        value /= step;
        unit++;
    }
    snprintf(buf, size, unit == 0 ? "%.0f%s" : value < 100 ? "%.1f%s" : "%.0f%s", value, units[unit]);
    return buf;
}

const char *td_bytes_text(uint64_t bytes, char *buf, size_t size) {
    static const char *const units[] = {" bytes", " KiB", " MiB", " GiB", " TiB"};
    return scaled((double)bytes, 1024, units, 5, buf, size);
}

const char *td_count_text(uint64_t count, char *buf, size_t size) {
    static const char *const units[] = {"", " thousand", " M", " B", " T"};
    return scaled((double)count, 1000, units, 5, buf, size);
}

double td_bits_each(uint64_t bytes, uint64_t count) {
    return count > 0 ? 8.0 * (double)bytes / (double)count : 0;
}

double td_peak_memory_mb(void) {
    FILE *f = fopen("/proc/self/status", "r");
    if (f == NULL)
        return 0;
    char line[256];
    double kib = 0;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, "VmHWM:", 6) == 0)
            kib = strtod(line + 6, NULL);
    fclose(f);
    return kib / 1024;
}

td_style td_style_for(int fd) {
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    bool plain = !isatty(fd) || (no && *no) || term == NULL || strcmp(term, "dumb") == 0;
    if (plain)
        return (td_style){"", "", "", ""};
    return (td_style){"\033[2m", "\033[32m", "\033[1m", "\033[0m"};
}
