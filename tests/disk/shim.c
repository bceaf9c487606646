/* A library that stands between a process and its disk, for the tests in this folder.
 *
 * Preloaded, it does nothing until disk_arm() is called. From then on it counts the calls
 * that change files below one folder, records them, and acts at chosen ones: kills the
 * process before a call, or in the middle or at the end of a write, lets a call fail, or
 * writes too little.
 *
 * A record is: op (1), whether it is on disk when the call returns (1), spare (2), length of
 * the path (4), inode (8), offset (8), length of the data (8), the path, the data.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, SYNC, RENAME, UNLINK, TRUNCATE, MARK };
enum { PASS = 0, KILL, TEAR, SHORT, AFTER, FAIL }; /* FAIL + n: fail with errno n */

struct record {
    uint8_t op, synced;
    uint16_t spare;
    uint32_t path_length;
    uint64_t inode, offset, length;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char root[4096];
static int log_fd = -1;
static long count, first, last;
static int action;

static void *real(const char *name) { return dlsym(RTLD_NEXT, name); }

/* Arm: record into *log* (empty: not) what happens below *folder*; act from call *from*,
 * counted from 1, up to call *to*. */
void disk_arm(const char *folder, const char *log, long from, long to, int act) {
    pthread_mutex_lock(&lock);
    snprintf(root, sizeof root, "%s", folder);
    if (log_fd >= 0) syscall(SYS_close, log_fd);
    log_fd = *log ? open(log, O_CREAT | O_APPEND | O_WRONLY | O_CLOEXEC, 0600) : -1;
    count = 0, first = from, last = to, action = act;
    pthread_mutex_unlock(&lock);
}

long disk_count(void) { return count; }

static void put(const void *data, size_t length) {
    while (length) {
        long done = syscall(SYS_write, log_fd, data, length);
        if (done <= 0) abort();
        data = (const char *)data + done, length -= done;
    }
}

static void note(struct record head, const char *path, const struct iovec *parts, int n) {
    if (log_fd < 0) return;
    head.path_length = strlen(path);
    for (int i = 0; i < n; i++) head.length += parts[i].iov_len;
    put(&head, sizeof head);
    put(path, head.path_length);
    for (int i = 0; i < n; i++) put(parts[i].iov_base, parts[i].iov_len);
}

static int below(const char *path) {
    return *root && strncmp(path, root, strlen(root)) == 0;
}

/* Whether *fd* is a file of ours; says which. */
static int ours(int fd, char *path, uint64_t *inode) {
    char link[64];
    struct stat found;
    if (!*root) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long length = readlink(link, path, 4095);
    if (length <= 0) return 0;
    path[length] = 0;
    if (!below(path) || fstat(fd, &found)) return 0;
    *inode = found.st_ino;
    return 1;
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

/* Count a call; return what is to be done to it. */
static int due(void) {
    count++;
    int act = action && count >= first && count <= last ? action : PASS;
    if (act == KILL) die();
    return act;
}

typedef ssize_t (*writer)(int, const struct iovec *, int, off_t);

static ssize_t by_pwritev(int fd, const struct iovec *parts, int n, off_t offset) {
    static ssize_t (*call)(int, const struct iovec *, int, off_t);
    if (!call) call = real("pwritev");
    return call(fd, parts, n, offset);
}

static ssize_t by_write(int fd, const struct iovec *parts, int n, off_t offset) {
    (void)offset;
    static ssize_t (*call)(int, const struct iovec *, int);
    if (!call) call = real("writev");
    return call(fd, parts, n);
}

static ssize_t write_parts(writer call, int fd, const struct iovec *parts, int n, off_t offset) {
    char path[4096];
    struct record head = {.op = WRITE};
    if (!ours(fd, path, &head.inode)) return call(fd, parts, n, offset);
    pthread_mutex_lock(&lock);
    int act = due();
    if (offset < 0) head.offset = lseek(fd, 0, SEEK_CUR);
    else head.offset = offset;
    head.synced = (fcntl(fd, F_GETFL) & O_DSYNC) != 0;
    ssize_t done = -1;
    if (act >= FAIL) errno = act - FAIL;
    else if (act == TEAR || act == SHORT) {
        struct iovec half = {parts->iov_base, (parts->iov_len + 1) / 2};
        done = call(fd, &half, 1, offset);
        if (act == TEAR) die();
        note(head, path, &half, 1);
    } else {
        note(head, path, parts, n);
        done = call(fd, parts, n, offset);
        if (act == AFTER) die();
    }
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

ssize_t pwrite64(int fd, const void *data, size_t length, off64_t offset) {
    struct iovec part = {(void *)data, length};
    return write_parts(by_pwritev, fd, &part, 1, offset);
}
ssize_t pwrite(int fd, const void *data, size_t length, off_t offset) {
    return pwrite64(fd, data, length, offset);
}
ssize_t pwritev(int fd, const struct iovec *parts, int n, off_t offset) {
    return write_parts(by_pwritev, fd, parts, n, offset);
}
ssize_t pwritev64(int fd, const struct iovec *parts, int n, off64_t offset) {
    return write_parts(by_pwritev, fd, parts, n, offset);
}
ssize_t write(int fd, const void *data, size_t length) {
    struct iovec part = {(void *)data, length};
    return write_parts(by_write, fd, &part, 1, -1);
}
ssize_t writev(int fd, const struct iovec *parts, int n) {
    return write_parts(by_write, fd, parts, n, -1);
}

static int simple(int (*call)(int), int fd, int op) {
    char path[4096];
    struct record head = {.op = op};
    if (!ours(fd, path, &head.inode)) return call(fd);
    pthread_mutex_lock(&lock);
    int act = due(), done = -1;
    if (act >= FAIL) errno = act - FAIL;
    else {
        done = call(fd);
        if (!done) note(head, path, NULL, 0);
    }
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

int fdatasync(int fd) {
    static int (*call)(int);
    if (!call) call = real("fdatasync");
    return simple(call, fd, SYNC);
}
int fsync(int fd) {
    static int (*call)(int);
    if (!call) call = real("fsync");
    return simple(call, fd, SYNC);
}

int ftruncate64(int fd, off64_t size) {
    static int (*call)(int, off64_t);
    char path[4096];
    struct record head = {.op = TRUNCATE, .offset = size};
    if (!call) call = real("ftruncate64");
    if (!ours(fd, path, &head.inode)) return call(fd, size);
    pthread_mutex_lock(&lock);
    int act = due(), done = -1;
    if (act >= FAIL) errno = act - FAIL;
    else {
        done = call(fd, size);
        note(head, path, NULL, 0);
    }
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}
int ftruncate(int fd, off_t size) { return ftruncate64(fd, size); }

int rename(const char *from, const char *to) {
    static int (*call)(const char *, const char *);
    if (!call) call = real("rename");
    if (!below(from)) return call(from, to);
    pthread_mutex_lock(&lock);
    int act = due(), done = -1;
    if (act >= FAIL) errno = act - FAIL;
    else {
        struct iovec target = {(void *)to, strlen(to)};
        done = call(from, to);
        if (!done) note((struct record){.op = RENAME}, from, &target, 1);
    }
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

int unlink(const char *path) {
    static int (*call)(const char *);
    if (!call) call = real("unlink");
    if (!below(path)) return call(path);
    pthread_mutex_lock(&lock);
    due();
    int done = call(path);
    int error = errno;
    if (!done) note((struct record){.op = UNLINK}, path, NULL, 0);
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

/* Put *text* into the record: what was acknowledged by now. */
void disk_mark(const char *text) {
    struct iovec part = {(void *)text, strlen(text)};
    pthread_mutex_lock(&lock);
    note((struct record){.op = MARK}, "", &part, 1);
    pthread_mutex_unlock(&lock);
}
