/* mock_hub.c - see mock_hub.h. */
#include "support/mock_hub.h"

#include <arpa/inet.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>

#include "format/hub_digest.h"

#define REPO "org/name"
#define LISTING_SIZE (1u << 20)

/* ---- files ---- */

static void name_content(mock_file *f) {
    td_hub_digest d;
    char head[40];
    td_hub_digest_init(&d, f->lfs ? TD_HUB_SHA256 : TD_HUB_SHA1);
    if (!f->lfs)
        td_hub_digest_add(&d, head, (size_t)snprintf(head, sizeof head, "blob %zu", f->size) + 1);
    td_hub_digest_add(&d, f->bytes, f->size);
    td_hub_digest_text(&d, f->checksum);
}

mock_file *mock_hub_file(mock_hub *hub, const char *name) {
    for (size_t i = 0; i < hub->n_files; i++)
        if (strcmp(hub->files[i].name, name) == 0)
            return &hub->files[i];
    return NULL;
}

mock_file *mock_hub_put(mock_hub *hub, const char *name, const void *bytes, size_t size, bool lfs) {
    mock_file *f = mock_hub_file(hub, name);
    if (!f) {
        if (hub->n_files == MOCK_MAX_FILES)
            abort();
        f = &hub->files[hub->n_files++];
    }
    free(f->bytes);
    *f = (mock_file){.size = size, .listed_size = size, .lfs = lfs, .fault = MOCK_NO_FAULT};
    snprintf(f->name, sizeof f->name, "%s", name);
    f->bytes = malloc(size + 1);
    if (!f->bytes)
        abort();
    memcpy(f->bytes, bytes, size);
    name_content(f);
    return f;
}

mock_file *mock_hub_put_noise(mock_hub *hub, const char *name, size_t size, bool lfs) {
    uint8_t *bytes = malloc(size + 1);
    uint32_t x = (uint32_t)size * 2654435761u + (uint32_t)strlen(name);
    if (!bytes)
        abort();
    for (size_t i = 0; i < size; i++) {
        x = x * 1664525u + 1013904223u;
        bytes[i] = (uint8_t)(x >> 24);
    }
    mock_file *f = mock_hub_put(hub, name, bytes, size, lfs);
    free(bytes);
    return f;
}

/* ---- answers ---- */

typedef enum MHD_Result result;

static mock_fault take_fault(mock_fault *f) {
    mock_fault now = *f;
    if (now.times == 0)
        return MOCK_NO_FAULT;
    if (f->times > 0)
        f->times--;
    return now;
}

static result answer(struct MHD_Connection *c, unsigned status, struct MHD_Response *r) {
    result ok = MHD_queue_response(c, status, r);
    MHD_destroy_response(r);
    return ok;
}

static result answer_text(struct MHD_Connection *c, unsigned status, const char *text, const mock_fault *f) {
    struct MHD_Response *r = MHD_create_response_from_buffer(strlen(text), (void *)text, MHD_RESPMEM_MUST_COPY);
    if (f && f->header)
        MHD_add_response_header(r, f->header, f->value);
    return answer(c, status, r);
}

static size_t listing_of(const mock_hub *hub, char *out, size_t size) {
    size_t n =
        (size_t)snprintf(out, size, "{\"_id\":\"x\",\"sha\":\"%s\",\"tags\":[\"a\"],\"siblings\":[", hub->commit);
    for (size_t i = 0; i < hub->n_files; i++) {
        const mock_file *f = &hub->files[i];
        n += (size_t)snprintf(out + n, size - n, "%s{\"rfilename\":\"%s\"", i ? "," : "", f->name);
        if (!hub->bare && f->lfs)
            n += (size_t)snprintf(out + n, size - n,
                                  ",\"size\":%llu,\"blobId\":\"%040d\",\"lfs\":{\"sha256\":\"%s\",\"size\":%llu,"
                                  "\"pointerSize\":134}",
                                  (unsigned long long)f->listed_size, 7, f->checksum,
                                  (unsigned long long)f->listed_size);
        else if (!hub->bare)
            n += (size_t)snprintf(out + n, size - n, ",\"size\":%llu,\"blobId\":\"%s\"",
                                  (unsigned long long)f->listed_size, f->checksum);
        n += (size_t)snprintf(out + n, size - n, "}");
    }
    return n + (size_t)snprintf(out + n, size - n, "],\"gated\":false}");
}

static result answer_listing(mock_hub *hub, struct MHD_Connection *c) {
    hub->listings++;
    mock_fault f = take_fault(&hub->fault);
    if (f.status)
        return answer_text(c, f.status, "no", &f);
    if (hub->listing)
        return answer_text(c, 200, hub->listing, NULL);
    char *text = malloc(LISTING_SIZE);
    if (!text)
        abort();
    listing_of(hub, text, LISTING_SIZE);
    result ok = answer_text(c, 200, text, NULL);
    free(text);
    return ok;
}

/* ---- contents ---- */

typedef struct content {
    mock_hub *hub;
    mock_file *file;
    mock_fault fault;
    uint64_t from;
} content;

static void wait_for_close(mock_hub *hub) {
    for (bool over = false; !over;) {
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
        pthread_mutex_lock(&hub->lock);
        over = hub->closing;
        pthread_mutex_unlock(&hub->lock);
    }
}

static ssize_t read_content(void *user, uint64_t pos, char *out, size_t max) {
    content *k = user;
    if (k->fault.cut_after >= 0 && pos >= (uint64_t)k->fault.cut_after) {
        if (k->fault.stall)
            wait_for_close(k->hub);
        return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    uint64_t left = k->file->size - (k->from + pos);
    if (k->fault.cut_after >= 0 && left > (uint64_t)k->fault.cut_after - pos)
        left = (uint64_t)k->fault.cut_after - pos;
    size_t n = left < max ? (size_t)left : max;
    memcpy(out, k->file->bytes + k->from + pos, n);
    if (k->fault.corrupt && k->from + pos + n == k->file->size)
        out[n - 1] ^= 1;
    pthread_mutex_lock(&k->hub->lock);
    k->file->sent += n;
    pthread_mutex_unlock(&k->hub->lock);
    return (ssize_t)n;
}

static result answer_content(mock_hub *hub, struct MHD_Connection *c, mock_file *file) {
    content *k = calloc(1, sizeof *k);
    if (!k)
        abort();
    *k = (content){.hub = hub, .file = file, .fault = take_fault(&file->fault)};
    const char *range = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Range");
    file->requests++;
    if (k->fault.status) {
        mock_fault f = k->fault;
        free(k);
        return answer_text(c, f.status, "no", &f);
    }
    if (range && !k->fault.whole)
        k->from = strtoull(range + strlen("bytes="), NULL, 10);
    file->from = k->from;
    struct MHD_Response *r = MHD_create_response_from_callback(file->size - k->from, 65536, read_content, k, free);
    if (k->from > 0) {
        char text[100];
        snprintf(text, sizeof text, "bytes %llu-%zu/%zu", (unsigned long long)k->from + k->fault.shifted,
                 file->size - 1, file->size);
        MHD_add_response_header(r, "Content-Range", text);
    }
    if (file->lfs && hub->storage == NULL && hub->behind == NULL)
        MHD_add_response_header(r, "X-Linked-Etag", file->checksum);
    unsigned status = k->from > 0 ? 206 : 200;
    if (file->size == k->from) { /* a response of no bytes */
        MHD_destroy_response(r);
        return answer_text(c, status, "", NULL);
    }
    return answer(c, status, r);
}

/* What the hub says of a file: a redirect for one that the storage has. */
static result answer_resolve(mock_hub *hub, struct MHD_Connection *c, mock_file *file, bool head) {
    char text[400];
    hub->heads += head;
    bool away = file->lfs && (hub->storage || hub->storage_url);
    if (!away && !head)
        return answer_content(hub, c, file);
    struct MHD_Response *r = MHD_create_response_from_buffer(away ? 2 : file->size, away ? "->" : (void *)file->bytes,
                                                             MHD_RESPMEM_MUST_COPY);
    snprintf(text, sizeof text, "%s\"%s\"", file->lfs ? "" : "W/", file->checksum);
    MHD_add_response_header(r, file->lfs ? "X-Linked-Etag" : "ETag", text);
    if (file->lfs) {
        MHD_add_response_header(r, "ETag", "\"0000000000000000000000000000000000000000\"");
        snprintf(text, sizeof text, "%zu", file->size);
        MHD_add_response_header(r, "X-Linked-Size", text);
    }
    MHD_add_response_header(r, "X-Repo-Commit", hub->commit);
    if (away) {
        const char *base = hub->storage_url ? hub->storage_url : hub->storage->url;
        snprintf(text, sizeof text, "%s/storage/%s", base, file->name);
        MHD_add_response_header(r, "Location", text);
    }
    return answer(c, away ? 302 : 200, r);
}

static result route(mock_hub *hub, struct MHD_Connection *c, const char *url, const char *method) {
    static const char list[] = "/api/models/" REPO "/revision/", get[] = "/" REPO "/resolve/", store[] = "/storage/";
    const mock_fault no_repo = {.header = "X-Error-Code", .value = "RepoNotFound"};
    const char *auth = MHD_lookup_connection_value(c, MHD_HEADER_KIND, "Authorization");
    char want[300];
    hub->requests++;
    hub->with_token += auth != NULL;
    snprintf(want, sizeof want, "Bearer %s", hub->token ? hub->token : "");
    if (hub->token && (!auth || strcmp(auth, want) != 0))
        return answer_text(c, 401, "Invalid username or password.", &no_repo);
    if (strncmp(url, list, sizeof list - 1) == 0)
        return answer_listing(hub, c);
    mock_file *f = NULL;
    bool stored = hub->behind && strncmp(url, store, sizeof store - 1) == 0;
    if (stored)
        f = mock_hub_file(hub->behind, url + sizeof store - 1);
    else if (strncmp(url, get, sizeof get - 1) == 0 && strncmp(url + sizeof get - 1, hub->commit, 40) == 0)
        f = mock_hub_file(hub, url + sizeof get + 40);
    if (!f)
        return answer_text(c, 404, "Repository not found", &no_repo);
    return stored ? answer_content(hub, c, f) : answer_resolve(hub, c, f, strcmp(method, "HEAD") == 0);
}

static result on_request(void *user, struct MHD_Connection *c, const char *url, const char *method, const char *version,
                         const char *upload, size_t *upload_size, void **state) {
    mock_hub *hub = user;
    (void)version, (void)upload, (void)upload_size, (void)state;
    pthread_mutex_lock(&hub->lock);
    result ok = route(hub, c, url, method);
    pthread_mutex_unlock(&hub->lock);
    return ok;
}

/* ---- life ---- */

bool mock_hub_open(mock_hub *hub, const char *cert, const char *key) {
    *hub = (mock_hub){.fault = MOCK_NO_FAULT};
    snprintf(hub->commit, sizeof hub->commit, "%s", MOCK_COMMIT);
    pthread_mutex_init(&hub->lock, NULL);
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_THREAD_PER_CONNECTION | (cert ? MHD_USE_TLS : 0);
    hub->daemon =
        cert ? MHD_start_daemon(flags, 0, NULL, NULL, on_request, hub, MHD_OPTION_SOCK_ADDR, &at,
                                MHD_OPTION_HTTPS_MEM_CERT, cert, MHD_OPTION_HTTPS_MEM_KEY, key, MHD_OPTION_END)
             : MHD_start_daemon(flags, 0, NULL, NULL, on_request, hub, MHD_OPTION_SOCK_ADDR, &at, MHD_OPTION_END);
    if (!hub->daemon)
        return false;
    const union MHD_DaemonInfo *info = MHD_get_daemon_info(hub->daemon, MHD_DAEMON_INFO_BIND_PORT);
    snprintf(hub->url, sizeof hub->url, "%s://127.0.0.1:%u", cert ? "https" : "http", info->port);
    return true;
}

void mock_hub_close(mock_hub *hub) {
    pthread_mutex_lock(&hub->lock);
    hub->closing = true;
    pthread_mutex_unlock(&hub->lock);
    if (hub->daemon)
        MHD_stop_daemon(hub->daemon);
    for (size_t i = 0; i < hub->n_files; i++)
        free(hub->files[i].bytes);
    pthread_mutex_destroy(&hub->lock);
    *hub = (mock_hub){0};
}
