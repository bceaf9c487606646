/* Each flush takes a millisecond more: see slow_disk.py. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

static void later(void) {
    int kept = errno;
    struct timespec pause = {0, 1000000};
    nanosleep(&pause, 0);
    errno = kept;
}

static int flushes(int fd) {
    int flags = fcntl(fd, F_GETFL);
    return flags != -1 && (flags & O_DSYNC);
}

#define NEXT(type, name, ...)                                \
    static type (*next)(__VA_ARGS__);                        \
    if (!next) next = (type (*)(__VA_ARGS__))dlsym(RTLD_NEXT, #name);

int fsync(int fd) {
    NEXT(int, fsync, int)
    int found = next(fd);
    later();
    return found;
}

int fdatasync(int fd) {
    NEXT(int, fdatasync, int)
    int found = next(fd);
    later();
    return found;
}

int sync_file_range(int fd, off64_t from, off64_t size, unsigned flags) {
    NEXT(int, sync_file_range, int, off64_t, off64_t, unsigned)
    int found = next(fd, from, size, flags);
    later();
    return found;
}

int msync(void *address, size_t size, int flags) {
    NEXT(int, msync, void *, size_t, int)
    int found = next(address, size, flags);
    if (flags & MS_SYNC) later();
    return found;
}

#define WRITES(name, offset)                                              \
    ssize_t name(int fd, const void *data, size_t size, offset from) {    \
        NEXT(ssize_t, name, int, const void *, size_t, offset)            \
        ssize_t found = next(fd, data, size, from);                       \
        if (flushes(fd)) later();                                         \
        return found;                                                     \
    }

WRITES(pwrite, off_t)
WRITES(pwrite64, off64_t)

ssize_t write(int fd, const void *data, size_t size) {
    NEXT(ssize_t, write, int, const void *, size_t)
    ssize_t found = next(fd, data, size);
    if (flushes(fd)) later();
    return found;
}

ssize_t writev(int fd, const struct iovec *parts, int count) {
    NEXT(ssize_t, writev, int, const struct iovec *, int)
    ssize_t found = next(fd, parts, count);
    if (flushes(fd)) later();
    return found;
}

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t from) {
    NEXT(ssize_t, pwritev, int, const struct iovec *, int, off_t)
    ssize_t found = next(fd, parts, count, from);
    if (flushes(fd)) later();
    return found;
}
