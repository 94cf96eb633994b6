/* http_rules.c - pure decisions, kept apart from sockets and threads so that tables of cases can test them. */
#include "serve/http_rules.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- keys ---- */

static bool same_secret(const char *given, const char *key) {
    size_t n = strlen(given), n_key = strlen(key);
    volatile unsigned char differ = n != n_key;
    for (size_t i = 0; i < n; i++)
        differ = (unsigned char)(differ | ((unsigned char)given[i] ^ (unsigned char)key[i < n_key ? i : 0]));
    return !differ;
}

/* Every key is compared, also after one has fitted. */
static bool any_key(const char *const *keys, size_t n_keys, const char *given) {
    unsigned found = 0;
    for (size_t i = 0; i < n_keys; i++)
        found |= same_secret(given, keys[i]);
    return found;
}

bool td_http_key_ok(const char *const *keys, size_t n_keys, const char *authorization, const char *x_api_key) {
    bool ok = n_keys == 0;
    if (authorization) {
        if (strncasecmp(authorization, "Bearer ", 7) == 0)
            authorization += 7 + strspn(authorization + 7, " ");
        ok |= any_key(keys, n_keys, authorization);
    }
    if (x_api_key)
        ok |= any_key(keys, n_keys, x_api_key);
    return ok;
}

/* ---- names and values ---- */

static bool is_word(unsigned char c) {
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z');
}

bool td_http_id_ok(const char *id) {
    size_t n = 0;
    for (; id[n]; n++)
        if (n == 64 || !(is_word((unsigned char)id[n]) || strchr("._-", id[n])))
            return false;
    return n > 0;
}

bool td_http_header_ok(const td_http_header *header) {
    if (!header->name || !header->value || !*header->name)
        return false;
    for (const char *p = header->name; *p; p++)
        if (!is_word((unsigned char)*p) && !strchr("!#$%&'*+-.^_`|~", *p))
            return false;
    for (const char *p = header->value; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7F)
            return false;
    return true;
}

bool td_http_media_is(const char *content_type, const char *want) {
    size_t n = strlen(want);
    content_type += strspn(content_type, " \t");
    if (strncasecmp(content_type, want, n) != 0)
        return false;
    content_type += n;
    content_type += strspn(content_type, " \t");
    return *content_type == '\0' || *content_type == ';';
}

const char *td_http_field(const td_http_header *fields, size_t n_fields, const char *name) {
    for (size_t i = 0; i < n_fields; i++)
        if (strcasecmp(fields[i].name, name) == 0)
            return fields[i].value;
    return NULL;
}

/* ---- routes ---- */

/* 0: not this path; a prefix counts its length, an exact path is longer than any prefix. */
static size_t path_fits(const td_http_route *route, const char *path) {
    if (!(route->flags & TD_HTTP_PREFIX))
        return strcmp(route->path, path) == 0 ? SIZE_MAX : 0;
    size_t n = strlen(route->path);
    return strncmp(route->path, path, n) == 0 ? n : 0;
}

static void allow_add(td_http_match *out, const char *method) {
    size_t n = strlen(out->allow);
    snprintf(out->allow + n, sizeof out->allow - n, "%s%s", n ? ", " : "", method);
}

void td_http_route_find(const td_http_route *routes, size_t n_routes, const char *method, const char *path,
                        td_http_match *out) {
    *out = (td_http_match){0};
    size_t best = 0;
    for (size_t i = 0; i < n_routes; i++) {
        size_t fit = path_fits(&routes[i], path);
        best = fit > best ? fit : best;
    }
    out->path_known = best > 0;
    for (size_t i = 0; best && i < n_routes; i++) {
        if (path_fits(&routes[i], path) != best)
            continue;
        bool get = strcmp(routes[i].method, "GET") == 0;
        if (!out->route && (strcmp(routes[i].method, method) == 0 || (get && strcmp(method, "HEAD") == 0)))
            out->route = &routes[i];
        allow_add(out, routes[i].method);
        if (get)
            allow_add(out, "HEAD");
    }
    if (best)
        allow_add(out, "OPTIONS");
}

/* ---- where a body ends ---- */

static bool read_length(const char *s, uint64_t *out) {
    uint64_t value = 0;
    if (!*s)
        return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || value > (UINT64_MAX - 9) / 10)
            return false;
        value = value * 10 + (uint64_t)(*s - '0');
    }
    *out = value;
    return true;
}

td_http_framing td_http_framing_read(const td_http_header *fields, size_t n_fields, const char *version) {
    td_http_framing f = {0};
    unsigned n_lengths = 0, n_codings = 0;
    for (size_t i = 0; i < n_fields; i++) {
        if (strcasecmp(fields[i].name, "Content-Length") == 0) {
            n_lengths++;
            if (!read_length(fields[i].value, &f.length))
                f.wrong = "Content-Length is not a number";
        } else if (strcasecmp(fields[i].name, "Transfer-Encoding") == 0) {
            n_codings++;
            if (strcasecmp(fields[i].value, "chunked") != 0)
                f.wrong = "Transfer-Encoding other than \"chunked\" is not supported";
        }
    }
    f.stated = n_lengths || n_codings;
    f.chunked = n_codings > 0;
    if (n_lengths > 1)
        f.wrong = "Content-Length is given more than once";
    else if (n_codings > 1)
        f.wrong = "Transfer-Encoding is given more than once";
    else if (n_lengths && n_codings)
        f.wrong = "Content-Length and Transfer-Encoding exclude each other";
    else if (n_codings && strcmp(version, "HTTP/1.0") == 0)
        f.wrong = "HTTP/1.0 has no Transfer-Encoding";
    return f;
}
