/* page.h - the chat page: files of src/serve/page, built into the binary. */
#ifndef TD_SERVE_PAGE_H
#define TD_SERVE_PAGE_H

#include <stdbool.h>
#include <stddef.h>

/* A file as embed.cmake writes it. */
typedef struct td_asset_file {
    const char *name;
    const unsigned char *bytes; /* [size], a NUL behind them */
    size_t size;
    const char *etag; /* a quoted hash of the bytes */
} td_asset_file;

extern const td_asset_file td_asset_files[];
extern const size_t td_asset_file_count;

typedef struct td_asset {
    const td_asset_file *file;
    const char *type; /* Content-Type */
} td_asset;

/* What is served at a path: "/" is index.html. False: nothing is. */
bool td_page_find(const char *path, td_asset *out);

/* The page may fetch from its own server only, and be framed by nobody: value of Content-Security-Policy. */
extern const char td_page_policy[];

#endif
