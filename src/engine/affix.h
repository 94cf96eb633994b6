/* affix.h - how strings begin and end. */
#ifndef TD_ENGINE_AFFIX_H
#define TD_ENGINE_AFFIX_H

#include <stdbool.h>
#include <string.h>

static inline bool td_begins_with(const char *s, const char *prefix) {
    return strncmp(s, prefix, strlen(prefix)) == 0;
}

static inline bool td_ends_with(const char *s, const char *suffix) {
    size_t n = strlen(s), m = strlen(suffix);
    return n >= m && memcmp(s + n - m, suffix, m) == 0;
}

#endif
