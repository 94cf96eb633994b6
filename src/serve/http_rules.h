/* http_rules.h - the decisions of the HTTP layer that need no socket: keys, names, routes, how a body is framed. */
#ifndef TD_SERVE_HTTP_RULES_H
#define TD_SERVE_HTTP_RULES_H

#include "serve/http.h"

/* Does a request carry one of the keys? `authorization` and `x_api_key` are header values or NULL. The time depends on
 * the lengths and not on where two keys differ. */
bool td_http_key_ok(const char *const *keys, size_t n_keys, const char *authorization, const char *x_api_key);

/* May a client's X-Request-Id be used and sent back? 1 to 64 of [A-Za-z0-9._-]. */
bool td_http_id_ok(const char *id);

/* May this header be sent? A token for a name, no control bytes in the value. */
bool td_http_header_ok(const td_http_header *header);

/* Is `content_type` ("application/json; charset=utf-8") the media type `want` ("application/json")? Any case. */
bool td_http_media_is(const char *content_type, const char *want);

/* The first field called `name` (any case), or NULL. */
const char *td_http_field(const td_http_header *fields, size_t n_fields, const char *name);

typedef struct td_http_match {
    const td_http_route *route; /* NULL: see path_known */
    bool path_known;            /* some route has this path: 405 and not 404 */
    char allow[96];             /* "GET, HEAD, POST, OPTIONS", when path_known */
} td_http_match;
/* An exact path before a prefix, a longer prefix before a shorter; then the method. */
void td_http_route_find(const td_http_route *routes, size_t n_routes, const char *method, const char *path,
                        td_http_match *out);

typedef struct td_http_framing {
    const char *wrong; /* NULL, or why the request is a 400: two parties could see its end at two places */
    bool stated;       /* there is a length or there are chunks */
    bool chunked;
    uint64_t length; /* when not chunked; 0 when not stated */
} td_http_framing;
/* RFC 9112, section 6.3, without its leniences. `version` is "HTTP/1.1". */
td_http_framing td_http_framing_read(const td_http_header *fields, size_t n_fields, const char *version);

#endif
