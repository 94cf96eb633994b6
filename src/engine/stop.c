/* stop.c - stop strings. A string cannot begin before `sent`: a tail that could begin one has been held back. */
#include "engine/stop.h"

#include <string.h>

void td_stop_init(td_stop *s, const char *const *stop, size_t n_stop, size_t ceiling) {
    *s = (td_stop){.stop = stop, .n_stop = n_stop};
    td_buf_init(&s->text, ceiling);
}

void td_stop_free(td_stop *s) {
    td_buf_free(&s->text);
}

/* Where the stop string begins that ends first (of two that end together, the longer), or size. Going by ends makes the
 * answer independent of how the text was cut into pieces. */
static size_t first_stop(const td_stop *s) {
    const char *from = s->text.data + s->sent;
    size_t begin = s->text.size, end = SIZE_MAX;
    for (size_t i = 0; i < s->n_stop; i++) {
        size_t n = strlen(s->stop[i]);
        const char *at = memmem(from, s->text.size - s->sent, s->stop[i], n);
        if (!at)
            continue;
        size_t b = (size_t)(at - s->text.data), e = b + n;
        if (e < end || (e == end && b < begin)) {
            begin = b;
            end = e;
        }
    }
    return begin;
}

/* Length of the longest tail of the unsent text that begins a stop string. */
static size_t held_back(const td_stop *s) {
    size_t unsent = s->text.size - s->sent, held = 0;
    for (size_t i = 0; i < s->n_stop; i++) {
        size_t n = strlen(s->stop[i]) - 1;
        n = n < unsent ? n : unsent;
        while (n > held && memcmp(s->text.data + s->text.size - n, s->stop[i], n) != 0)
            n--;
        held = n > held ? n : held;
    }
    return held;
}

bool td_stop_release(td_stop *s, bool last, const char **fresh, size_t *n_fresh) {
    *fresh = "";
    *n_fresh = 0;
    if (s->stopped || !s->text.data)
        return s->stopped;
    size_t end = first_stop(s);
    if (end < s->text.size) {
        s->stopped = true;
        s->text.size = end;
        s->text.data[end] = '\0';
    } else if (!last) {
        end -= held_back(s);
    }
    *fresh = s->text.data + s->sent;
    *n_fresh = end - s->sent;
    s->sent = end;
    return s->stopped;
}

void td_stop_drop(td_stop *s) {
    s->text.size = s->sent;
    if (s->text.data)
        s->text.data[s->sent] = '\0';
}
