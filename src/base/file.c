/* file.c - POSIX files. O_NONBLOCK at open, so that a FIFO named by a hostile index cannot hang the process. */
#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

static td_status open_regular(const char *path, int *fd_out, size_t *size, td_error *err) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return td_fail(err, errno == ENOENT || errno == ENOTDIR ? TD_E_NOTFOUND : TD_E_IO, "%s: %s", path,
                       strerror(errno));
    struct stat st;
    if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
        close(fd);
        return td_fail(err, TD_E_IO, "%s: not a regular file", path);
    }
    *fd_out = fd;
    *size = (size_t)st.st_size;
    return TD_OK;
}

td_status td_file_read(const char *path, size_t ceiling, char **data, size_t *size, td_error *err) {
    *data = NULL;
    *size = 0;
    int fd;
    size_t total;
    TD_TRY(open_regular(path, &fd, &total, err));
    td_status st = TD_OK;
    char *buf = NULL;
    if (total > ceiling) {
        st = td_fail(err, TD_E_LIMIT, "%s: %zu bytes, expected at most %zu", path, total, ceiling);
        goto done;
    }
    buf = td_malloc(total + 1);
    if (!buf) {
        st = td_fail(err, TD_E_NOMEM, "%s: out of memory for %zu bytes", path, total);
        goto done;
    }
    size_t have = 0;
    while (have < total) {
        ssize_t got = read(fd, buf + have, total - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            st = td_fail(err, TD_E_IO, "%s: read stopped at byte %zu of %zu: %s", path, have, total,
                         got < 0 ? strerror(errno) : "file became shorter");
            goto done;
        }
        have += (size_t)got;
    }
    buf[total] = '\0';
    *data = buf;
    *size = total;
    buf = NULL;
done:
    td_free(buf);
    close(fd);
    return st;
}

td_status td_map_open(td_map *map, const char *path, td_error *err) {
    *map = (td_map){0};
    int fd;
    size_t size;
    TD_TRY(open_regular(path, &fd, &size, err));
    if (size == 0) {
        close(fd);
        return TD_OK;
    }
    void *p = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
    int saved = errno;
    close(fd);
    if (p == MAP_FAILED)
        return td_fail(err, TD_E_NOMEM, "%s: cannot map %zu bytes: %s", path, size, strerror(saved));
    map->data = p;
    map->size = size;
    return TD_OK;
}

void td_map_close(td_map *map) {
    if (map->data)
        munmap((void *)(uintptr_t)map->data, map->size);
    *map = (td_map){0};
}

void td_map_forget(const uint8_t *from, const uint8_t *to) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    const uintptr_t begin = ((uintptr_t)from + page - 1) / page * page, end = (uintptr_t)to / page * page;
    if (end > begin)
        madvise((void *)begin, end - begin, MADV_DONTNEED);
}

bool td_file_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

bool td_dir_exists(const char *path) {
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

char *td_path_join(const char *dir, const char *name) {
    size_t nd = strlen(dir), nn = strlen(name);
    while (nd > 1 && dir[nd - 1] == '/')
        nd--;
    char *p = td_malloc(nd + nn + 2);
    if (!p)
        return NULL;
    memcpy(p, dir, nd);
    p[nd] = '/';
    memcpy(p + nd + 1, name, nn + 1);
    return p;
}
