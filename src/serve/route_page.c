/* route_page.c - GET / and the files beside it: the chat page. */
#include <string.h>

#include "serve/page.h"
#include "serve/server_impl.h"

void td_route_page(void *server, td_exchange *x) {
    td_asset a;
    (void)server;
    if (!td_page_find(td_exchange_path(x), &a)) {
        (void)!td_exchange_reply_error(x, 404, "not_found", "there is no such file");
        return;
    }
    const td_http_header headers[] = {{"ETag", a.file->etag},
                                      {"Cache-Control", "no-cache"},
                                      {"X-Content-Type-Options", "nosniff"},
                                      {"Content-Security-Policy", td_page_policy}};
    const char *known = td_exchange_header(x, "If-None-Match");
    if (known && strstr(known, a.file->etag))
        (void)!td_exchange_reply(x, 304, NULL, "", 0, headers, 2);
    else
        (void)!td_exchange_reply(x, 200, a.type, a.file->bytes, a.file->size, headers, 4);
}
