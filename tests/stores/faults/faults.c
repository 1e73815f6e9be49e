/* What a file system may do to a process, and a record of what the process did to it.
 *
 * Preloaded (LD_PRELOAD), since Python cannot reach the calls of libsqlite3. Nothing happens before
 * the process itself calls `faults_arm`; from then on every call that changes something within one
 * folder is counted, and the n-th of those that were asked for is struck.
 *
 * The record is for `disk.py`, which makes of it what a disk may hold after a loss of power.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

/* Kinds of calls, as `preload.Calls` has them. */
enum { WRITES = 1, SYNCS = 2, NAMES = 4 };

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

static char folder[PATH_MAX]; /* empty: not armed */
static int counted_kinds;     /* of calls */
static long strike_at;        /* which of them is struck, from 1; 0 for none */
static int error_given;       /* what the struck call fails with; 0: the process is killed */
static int is_lasting;        /* whether those after it fail as well */
static int is_half;           /* whether half of a struck write is written all the same */
static int record_to = -1;
static long calls;

void faults_arm(const char *path, int kinds, long at, int error, int lasts, int half, int record)
{
    pthread_mutex_lock(&turn);
    snprintf(folder, sizeof folder, "%s/", path);
    counted_kinds = kinds, strike_at = at, error_given = error;
    is_lasting = lasts, is_half = half, record_to = record, calls = 0;
    pthread_mutex_unlock(&turn);
}

/* No more faults. Gives how many calls of the kinds that were asked for there have been. */
long faults_clear(void)
{
    pthread_mutex_lock(&turn);
    strike_at = 0;
    long counted = calls;
    pthread_mutex_unlock(&turn);
    return counted;
}

/* Which files are meant. */

static int is_within(const char *path)
{
    return folder[0] && path && strncmp(path, folder, strlen(folder)) == 0;
}

/* The path of an open file, if it is within the folder; or else NULL. */
static const char *path_of(int fd, char path[PATH_MAX])
{
    char link[32];
    if (!folder[0])
        return NULL;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    if (length < 0)
        return NULL;
    path[length] = 0;
    int is_the_folder = strlen(path) + 1 == strlen(folder) && !strncmp(path, folder, strlen(path));
    return is_the_folder || is_within(path) ? path : NULL;
}

/* The record: one header a call, then its path, its second path and its data. */

struct header {
    char call;
    uint64_t inode;
    int64_t offset;
    uint64_t path, other, data;
} __attribute__((packed));

static void record(char call, uint64_t inode, const char *path, const char *other, int64_t offset,
                   const void *data, size_t size)
{
    struct header header = {call, inode, offset, strlen(path), strlen(other), size};
    struct iovec parts[] = {{&header, sizeof header},
                            {(void *)path, header.path},
                            {(void *)other, header.other},
                            {(void *)data, size}};
    if (record_to >= 0)
        syscall(SYS_writev, record_to, parts, 4);
}

static uint64_t inode_of(int fd)
{
    struct stat status;
    return fstat(fd, &status) == 0 ? status.st_ino : 0;
}

/* Faults. */

/* Whether this call is the one, or one of those after it. */
static int is_struck(int kind)
{
    if (!(kind & counted_kinds))
        return 0;
    calls++;
    return strike_at && (calls == strike_at || (is_lasting && calls > strike_at));
}

/* The end of a struck call: no return from it, or its error. */
static int strike(void)
{
    if (!error_given)
        kill(getpid(), SIGKILL);
    errno = error_given;
    return -1;
}

/* Writes. */

static ssize_t write_at(int fd, const void *data, size_t size, off_t offset)
{
    return offset < 0 ? syscall(SYS_write, fd, data, size)
                      : syscall(SYS_pwrite64, fd, data, size, offset);
}

/* `offset` is -1 for a write at the file's own position. */
static ssize_t any_write(int fd, const void *data, size_t size, off_t offset)
{
    char path[PATH_MAX];
    if (!path_of(fd, path))
        return write_at(fd, data, size, offset);
    pthread_mutex_lock(&turn);
    int struck = is_struck(WRITES);
    ssize_t written = 0;
    if (!struck || (is_half && calls == strike_at && size > 1))
        written = write_at(fd, data, struck ? size / 2 : size, offset);
    if (written > 0) {
        off_t start = offset < 0 ? lseek(fd, 0, SEEK_CUR) - written : offset;
        record('w', inode_of(fd), path, "", start, data, written);
    }
    if (struck && (written == 0 || !error_given))
        written = strike();
    pthread_mutex_unlock(&turn);
    return written;
}

ssize_t write(int fd, const void *data, size_t size) { return any_write(fd, data, size, -1); }

ssize_t pwrite(int fd, const void *data, size_t size, off_t offset)
{
    return any_write(fd, data, size, offset);
}

ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset)
{
    return any_write(fd, data, size, offset);
}

int ftruncate(int fd, off_t size)
{
    char path[PATH_MAX];
    if (!path_of(fd, path))
        return syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&turn);
    int result = is_struck(WRITES) ? strike() : syscall(SYS_ftruncate, fd, size);
    if (result == 0)
        record('t', inode_of(fd), path, "", size, "", 0);
    pthread_mutex_unlock(&turn);
    return result;
}

int ftruncate64(int fd, off64_t size) { return ftruncate(fd, size); }

/* Syncs. */

static int any_sync(int fd, long number)
{
    char path[PATH_MAX];
    if (!path_of(fd, path))
        return syscall(number, fd);
    pthread_mutex_lock(&turn);
    int result = is_struck(SYNCS) ? strike() : syscall(number, fd);
    record(result == 0 ? 's' : 'f', inode_of(fd), path, "", 0, "", 0);
    pthread_mutex_unlock(&turn);
    return result;
}

int fsync(int fd) { return any_sync(fd, SYS_fsync); }

int fdatasync(int fd) { return any_sync(fd, SYS_fdatasync); }

/* Names. */

int openat(int at, const char *path, int flags, ...)
{
    va_list rest;
    va_start(rest, flags);
    int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;
    va_end(rest);
    struct stat status;
    if (!(flags & (O_CREAT | O_TRUNC)) || !is_within(path))
        return syscall(SYS_openat, at, path, flags, mode);
    pthread_mutex_lock(&turn);
    int is_there = stat(path, &status) == 0;
    int changes = is_there ? flags & O_TRUNC && status.st_size : flags & O_CREAT;
    int fd = changes && is_struck(NAMES) ? strike() : syscall(SYS_openat, at, path, flags, mode);
    if (fd >= 0 && changes)
        record(is_there ? 't' : 'c', inode_of(fd), path, "", 0, "", 0);
    pthread_mutex_unlock(&turn);
    return fd;
}

#define OPEN(name, at_parameter, at)                                                               \
    int name(at_parameter const char *path, int flags, ...)                                        \
    {                                                                                              \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        int mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0;                          \
        va_end(rest);                                                                              \
        return openat(at, path, flags, mode);                                                      \
    }
#define NO_PARAMETER
#define FOLDER_PARAMETER int at,
OPEN(open, NO_PARAMETER, AT_FDCWD)
OPEN(open64, NO_PARAMETER, AT_FDCWD)
OPEN(openat64, FOLDER_PARAMETER, at)

/* A change of names: `path` is where it takes place, `other` what it takes from. */
#define NAMING(call, path, other, ...)                                                             \
    do {                                                                                           \
        if (!is_within(path))                                                                      \
            return syscall(__VA_ARGS__);                                                           \
        pthread_mutex_lock(&turn);                                                                 \
        int result = is_struck(NAMES) ? strike() : syscall(__VA_ARGS__);                           \
        if (result == 0)                                                                           \
            record(call, 0, path, other, 0, "", 0);                                                \
        pthread_mutex_unlock(&turn);                                                               \
        return result;                                                                             \
    } while (0)

int rename(const char *from, const char *to)
{
    NAMING('r', to, from, SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int unlink(const char *path) { NAMING('u', path, "", SYS_unlinkat, AT_FDCWD, path, 0); }

int rmdir(const char *path) { NAMING('u', path, "", SYS_unlinkat, AT_FDCWD, path, AT_REMOVEDIR); }

int mkdir(const char *path, mode_t mode) { NAMING('m', path, "", SYS_mkdirat, AT_FDCWD, path, mode); }

int link(const char *from, const char *to)
{
    NAMING('l', to, from, SYS_linkat, AT_FDCWD, from, AT_FDCWD, to, 0);
}

int symlink(const char *target, const char *path)
{
    NAMING('y', path, target, SYS_symlinkat, target, AT_FDCWD, path);
}
