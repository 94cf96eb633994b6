/* page.c - see page.h. */
#include "serve/page.h"

#include <string.h>

const char td_page_policy[] = "default-src 'self'; object-src 'none'; base-uri 'none'; frame-ancestors 'none'";

static const char *type_of(const char *name) {
    static const struct {
        const char *end, *type;
    } types[] = {{".html", "text/html; charset=utf-8"},
                 {".css", "text/css; charset=utf-8"},
                 {".js", "text/javascript; charset=utf-8"},
                 {".svg", "image/svg+xml"}};
    size_t n = strlen(name);
    for (size_t i = 0; i < sizeof types / sizeof *types; i++) {
        size_t m = strlen(types[i].end);
        if (n > m && strcmp(name + n - m, types[i].end) == 0)
            return types[i].type;
    }
    return "application/octet-stream";
}

bool td_page_find(const char *path, td_asset *out) {
    const char *name = strcmp(path, "/") == 0 ? "index.html" : path + (path[0] == '/');
    for (size_t i = 0; i < td_asset_file_count; i++)
        if (strcmp(td_asset_files[i].name, name) == 0) {
            *out = (td_asset){&td_asset_files[i], type_of(name)};
            return true;
        }
    return false;
}
