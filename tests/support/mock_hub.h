/* mock_hub.h - a Hugging Face hub on 127.0.0.1 for tests: one repository, "org/name", with faults to order.
 *
 * Answers GET /api/models/org/name/revision/<any>, GET and HEAD /org/name/resolve/<commit>/<file>, and, as the storage
 * behind another hub, GET /storage/<file>. A thread serves each connection; fields may be set between requests, counts
 * read after them. Memory of the server is not td_malloc's, so that sweeps of failed allocations do not reach it. */
#ifndef TD_TESTS_MOCK_HUB_H
#define TD_TESTS_MOCK_HUB_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define MOCK_COMMIT "0123456789abcdef0123456789abcdef01234567"
#define MOCK_MAX_FILES 24

/* What goes wrong with the next `times` answers (-1: with all). */
typedef struct mock_fault {
    int times;
    unsigned status;            /* this status instead; 0: none */
    const char *header, *value; /* with the answer, or NULL */
    int64_t cut_after;          /* the connection ends after so many bytes of the answer; -1: not */
    bool stall;                 /* it does not end there, it waits for mock_hub_close */
    bool whole;                 /* Range is not looked at */
    bool shifted;               /* Content-Range says one byte more than was asked for */
    bool corrupt;               /* the file's last byte is another */
} mock_fault;
#define MOCK_NO_FAULT ((mock_fault){.cut_after = -1})

typedef struct mock_file {
    char name[200];
    uint8_t *bytes;
    size_t size;
    uint64_t listed_size;
    bool lfs; /* SHA-256, and kept in the storage when there is one */
    char checksum[65];
    mock_fault fault;
    unsigned requests; /* of the content, GET */
    uint64_t sent;     /* bytes handed to the connection */
    uint64_t from;     /* where the last one started */
} mock_file;

typedef struct mock_hub {
    void *daemon;
    pthread_mutex_t lock;
    char url[64]; /* http://127.0.0.1:port */
    char commit[41];
    mock_file files[MOCK_MAX_FILES];
    size_t n_files;
    struct mock_hub *storage; /* lfs files are redirected there; NULL: served here */
    struct mock_hub *behind;  /* of a storage: the hub whose files it has */
    const char *storage_url;  /* instead of storage's; NULL: that */
    const char *token;        /* demanded; NULL: none */
    const char *listing;      /* this text instead; NULL: the files */
    bool bare;                /* the listing has names alone */
    mock_fault fault;         /* of the listing */
    unsigned requests, listings, heads;
    unsigned with_token; /* requests that brought any Authorization */
    bool closing;
} mock_hub;

/* False: no server. tls: certificate and key in PEM, or NULL for http. */
bool mock_hub_open(mock_hub *hub, const char *cert, const char *key);
/* Ends every connection, frees everything. */
void mock_hub_close(mock_hub *hub);

/* Adds a file, or gives it new bytes. `bytes` is copied. */
mock_file *mock_hub_put(mock_hub *hub, const char *name, const void *bytes, size_t size, bool lfs);
/* `size` bytes that look like nothing. */
mock_file *mock_hub_put_noise(mock_hub *hub, const char *name, size_t size, bool lfs);
mock_file *mock_hub_file(mock_hub *hub, const char *name);

#endif
