/* hub_blob.c - see hub_blob.h.
 *
 * Bytes go to blobs/<checksum>.incomplete and through the checksum as they come. What a killed download has left there
 * is read through the checksum first, and the request asks for the rest. The file takes its name when size and checksum
 * are right and it is on the disk; otherwise it is removed, so that the next try does not build on it. When bytes of an
 * earlier run were part of it, these are the first suspects (a crash can leave zeros), and one fresh start is made.
 *
 * The lock is flock() on <locks>/<checksum>.lock, which is what huggingface_hub's clients take on Unix, so that theirs
 * and ours wait for each other. */
#include "format/hub_blob.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/buf.h"
#include "base/file.h"
#include "format/json_scan.h"

#define READ_BYTES (1u << 20)
#define LOCK_POLL_MS 100

/* One download. */
typedef struct blob {
    const td_hub_place *place;
    const td_hub_file *file;
    td_hub_tally *tally;
    char *path, *partial; /* where it will be, where it grows */
    int fd;               /* of `partial` */
    uint64_t have;        /* bytes in it that are in the digest too */
    uint64_t inherited;   /* of these, from an earlier run */
    td_hub_digest digest;
    char shown[TD_SHOWN_SIZE]; /* the file's name */
} blob;

/* ---- paths ---- */

char *td_hub_blob_path(const char *repo_dir, const char *checksum, const char *suffix) {
    td_buf b;
    td_buf_init(&b, 1u << 16);
    (void)td_buf_printf(&b, "%s/blobs/%s%s", repo_dir, checksum, suffix);
    return td_buf_steal(&b);
}

/* Size of the regular file, or -1. */
static int64_t size_of(const char *repo_dir, const td_hub_file *file, const char *suffix) {
    struct stat info;
    char *path = td_hub_blob_path(repo_dir, file->checksum, suffix);
    int64_t size = path && stat(path, &info) == 0 && S_ISREG(info.st_mode) ? (int64_t)info.st_size : -1;
    td_free(path);
    return size;
}

bool td_hub_blob_exists(const char *repo_dir, const td_hub_file *file) {
    return size_of(repo_dir, file, "") == (int64_t)file->size;
}

uint64_t td_hub_blob_started(const char *repo_dir, const td_hub_file *file) {
    int64_t size = size_of(repo_dir, file, ".incomplete");
    return size > 0 && (uint64_t)size <= file->size ? (uint64_t)size : 0;
}

static td_status no_memory(const blob *b, td_error *err) {
    return td_fail(err, TD_E_NOMEM, "%s: %s: out of memory", b->place->repo, b->shown);
}

static bool go_on(const blob *b) {
    return !b->tally->tick || b->tally->tick(b->tally->user);
}

static td_status stopped(td_error *err) {
    return td_fail(err, TD_E_CANCELLED, "the download was stopped");
}

/* ---- the lock ---- */

/* A lock on a file that its last holder has removed meanwhile locks nothing. */
static bool still_there(int fd, const char *path) {
    struct stat held, named;
    return fstat(fd, &held) == 0 && stat(path, &named) == 0 && held.st_ino == named.st_ino &&
           held.st_dev == named.st_dev;
}

static td_status take_lock(const blob *b, const char *path, int *fd_out, td_error *err) {
    bool told = false;
    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
        if (fd < 0)
            return td_fail(err, TD_E_IO, "%s: %s", path, strerror(errno));
        while (flock(fd, LOCK_EX | LOCK_NB) != 0) {
            if (errno != EWOULDBLOCK && errno != EINTR) {
                int saved = errno;
                close(fd);
                return td_fail(err, TD_E_IO, "%s: cannot lock it: %s", path, strerror(saved));
            }
            if (!told)
                td_log_info(b->place->log, "%s: %s: another process is downloading it; waiting", b->place->repo,
                            b->shown);
            told = true;
            nanosleep(&(struct timespec){.tv_nsec = LOCK_POLL_MS * 1000000L}, NULL);
            if (!go_on(b)) {
                close(fd);
                return stopped(err);
            }
        }
        if (still_there(fd, path)) {
            *fd_out = fd;
            return TD_OK;
        }
        close(fd);
    }
}

/* ---- growing ---- */

static void restart_digest(blob *b) {
    char head[40];
    bool git = strlen(b->file->checksum) == 40;
    td_hub_digest_init(&b->digest, git ? TD_HUB_SHA1 : TD_HUB_SHA256);
    if (git) /* git hashes "blob <size>", a NUL, and the content */
        td_hub_digest_add(&b->digest, head,
                          (size_t)snprintf(head, sizeof head, "blob %llu", (unsigned long long)b->file->size) + 1);
}

static td_status disk_failed(const blob *b, int error, td_error *err) {
    struct statvfs fs;
    unsigned long long left = b->file->size - b->have;
    if ((error == ENOSPC || error == EDQUOT || error == EFBIG) && statvfs(b->place->repo_dir, &fs) == 0)
        return td_fail(err, TD_E_LIMIT, "%s: %s: cannot write to %s (%s): %llu more bytes needed, %llu free",
                       b->place->repo, b->shown, b->place->repo_dir, strerror(error), left,
                       (unsigned long long)fs.f_bavail * fs.f_frsize);
    return td_fail(err, TD_E_IO, "%s: %s: %s: %s", b->place->repo, b->shown, b->partial, strerror(error));
}

/* Forgets what is there. */
static td_status start_over(blob *b, td_error *err) {
    if (ftruncate(b->fd, 0) != 0)
        return disk_failed(b, errno, err);
    b->tally->done -= b->have;
    b->have = b->inherited = 0;
    restart_digest(b);
    return TD_OK;
}

static void count(blob *b, const void *bytes, size_t n) {
    td_hub_digest_add(&b->digest, bytes, n);
    b->have += n;
    b->tally->done += n;
}

/* Reads what an earlier run has left through the digest. */
static td_status inherit(blob *b, td_error *err) {
    struct stat info;
    restart_digest(b);
    if (fstat(b->fd, &info) != 0 || !S_ISREG(info.st_mode))
        return td_fail(err, TD_E_IO, "%s: not a regular file", b->partial);
    if (info.st_size == 0 || (uint64_t)info.st_size > b->file->size)
        return start_over(b, err);
    char *chunk = td_malloc(READ_BYTES);
    td_status st = chunk ? TD_OK : no_memory(b, err);
    ssize_t got = 1;
    while (st == TD_OK && got > 0) {
        got = pread(b->fd, chunk, READ_BYTES, (off_t)b->have);
        if (got < 0)
            st = disk_failed(b, errno, err);
        else
            count(b, chunk, (size_t)got);
        if (st == TD_OK && !go_on(b))
            st = stopped(err);
    }
    td_free(chunk);
    b->inherited = b->have;
    return st;
}

/* Where does the body start? */
static td_status on_begin(void *user, const td_hub_answer *a, td_error *err) {
    blob *b = user;
    if (a->status != 206)
        return b->have > 0 ? start_over(b, err) : TD_OK;
    if (!a->has_range || a->range_first != b->have || a->range_total != b->file->size)
        return td_fail(err, TD_E_FORMAT, "%s: %s: asked for bytes %llu to the end of %llu, the server sends others",
                       b->place->repo, b->shown, (unsigned long long)b->have, (unsigned long long)b->file->size);
    return TD_OK;
}

static td_status on_body(void *user, const char *bytes, size_t n, td_error *err) {
    blob *b = user;
    if (n > b->file->size - b->have)
        return td_fail(err, TD_E_FORMAT, "%s: %s: more bytes than the %llu that the hub lists", b->place->repo,
                       b->shown, (unsigned long long)b->file->size);
    while (n > 0) {
        ssize_t put = pwrite(b->fd, bytes, n, (off_t)b->have);
        if (put < 0 && errno == EINTR)
            continue;
        if (put <= 0)
            return disk_failed(b, put < 0 ? errno : ENOSPC, err);
        count(b, bytes, (size_t)put);
        bytes += put;
        n -= (size_t)put;
    }
    return TD_OK;
}

static bool on_tick(void *user) {
    return go_on(user);
}

static td_status receive(blob *b, td_hub_http *http, const char *url, td_error *err) {
    td_hub_answer answer;
    const td_hub_request r = {
        .url = url,
        .repo = b->place->repo,
        .file = b->file->name,
        .have = &b->have,
        .want = &b->file->size,
        .begin = on_begin,
        .body = on_body,
        .tick = on_tick,
        .user = b,
    };
    return b->have < b->file->size ? td_hub_http_run(http, &r, &answer, err) : TD_OK;
}

/* ---- the end ---- */

static td_status verify(blob *b, td_error *err) {
    char got[TD_HUB_DIGEST_TEXT_SIZE];
    td_hub_digest_text(&b->digest, got);
    if (strcmp(got, b->file->checksum) == 0)
        return TD_OK;
    return td_fail(err, TD_E_FORMAT, "%s: %s: the checksum is %s, expected %s; the file has been removed",
                   b->place->repo, b->shown, got, b->file->checksum);
}

static td_status keep(blob *b, td_error *err) {
    if (fsync(b->fd) != 0)
        return disk_failed(b, errno, err);
    if (rename(b->partial, b->path) != 0)
        return td_fail(err, TD_E_IO, "%s: %s", b->path, strerror(errno));
    return TD_OK;
}

static td_status grow(blob *b, td_hub_http *http, const char *url, td_error *err) {
    td_error local;
    err = err ? err : &local;
    TD_TRY(inherit(b, err));
    TD_TRY(receive(b, http, url, err));
    td_status st = verify(b, err);
    if (st != TD_OK && b->inherited > 0) {
        td_log_warn(b->place->log, "%s: %s: what an earlier download left is damaged; starting over", b->place->repo,
                    b->shown);
        TD_TRY(start_over(b, err));
        TD_TRY(receive(b, http, url, err));
        st = verify(b, err);
    }
    if (st == TD_OK)
        return keep(b, err);
    unlink(b->partial);
    return st;
}

/* With the lock held. */
static td_status fetch(blob *b, td_hub_http *http, const char *url, td_error *err) {
    if (td_hub_blob_exists(b->place->repo_dir, b->file)) { /* another process has been faster */
        b->tally->done += b->file->size;
        return TD_OK;
    }
    b->fd = open(b->partial, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (b->fd < 0)
        return td_fail(err, TD_E_IO, "%s: %s", b->partial, strerror(errno));
    td_status st = grow(b, http, url, err);
    close(b->fd);
    if (st != TD_OK)
        b->tally->done -= b->have;
    return st;
}

td_status td_hub_blob_fetch(const td_hub_place *place, const td_hub_file *file, td_hub_http *http, const char *url,
                            td_hub_tally *tally, td_error *err) {
    blob b = {.place = place, .file = file, .tally = tally};
    int lock = -1;
    char name[TD_HUB_DIGEST_TEXT_SIZE + 8];
    td_shown(b.shown, file->name, strlen(file->name));
    snprintf(name, sizeof name, "%s.lock", file->checksum);
    char *lock_path = td_path_join(place->locks, name);
    b.path = td_hub_blob_path(place->repo_dir, file->checksum, "");
    b.partial = td_hub_blob_path(place->repo_dir, file->checksum, ".incomplete");
    td_status st = lock_path && b.path && b.partial ? TD_OK : no_memory(&b, err);
    if (st == TD_OK)
        st = take_lock(&b, lock_path, &lock, err);
    if (st == TD_OK)
        st = fetch(&b, http, url, err);
    if (lock >= 0)
        close(lock);
    td_free(lock_path);
    td_free(b.path);
    td_free(b.partial);
    return st;
}
