/* Kills the process at the k-th call that changes a file, or lets that call fail, alone or with all after it.
 * faults.py loads it by LD_PRELOAD and arms it in a forked child. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *below; /* files whose path has this in it count */
static long target;
static int number, lasts;
static atomic_long calls;

/* error 0 kills; stays: the calls after that one fail as well; at 0 only counts. */
void faults_arm(const char *path, long at, int error, int stays) {
    calls = 0, target = at, number = error, lasts = stays, below = path;
}

long faults_calls(void) { return calls; }

static int fails(const char *path, int file) {
    char name[64], named[4096];
    if (!below) return 0;
    if (!path) {
        snprintf(name, sizeof name, "/proc/self/fd/%d", file);
        ssize_t length = readlink(name, named, sizeof named - 1);
        if (length <= 0) return 0;
        named[length] = 0, path = named;
    }
    if (path[0] == '/' && !strstr(path, below)) return 0;
    long call = ++calls;
    if (!target || call < target || (call > target && !lasts)) return 0;
    if (!number) kill(getpid(), SIGKILL), pause();
    errno = number;
    return 1;
}

#define WRAP(type, call, declared, passed, path, file)    \
    type call declared {                                  \
        static type(*next) declared;                      \
        if (!next) next = dlsym(RTLD_NEXT, #call);        \
        return fails(path, file) ? -1 : next passed;      \
    }

WRAP(int, rename, (const char *from, const char *to), (from, to), from, 0)
WRAP(int, link, (const char *from, const char *to), (from, to), to, 0)
WRAP(int, linkat, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags), to, 0)
WRAP(int, unlink, (const char *path), (path), path, 0)
WRAP(int, unlinkat, (int folder, const char *path, int flags), (folder, path, flags), NULL, folder)
WRAP(int, rmdir, (const char *path), (path), path, 0)
WRAP(int, mkdir, (const char *path, mode_t mode), (path, mode), path, 0)
WRAP(int, fchmod, (int file, mode_t mode), (file, mode), NULL, file)
WRAP(int, fsync, (int file), (file), NULL, file)
WRAP(int, fdatasync, (int file), (file), NULL, file)
WRAP(int, ftruncate64, (int file, off64_t length), (file, length), NULL, file)
WRAP(ssize_t, write, (int file, const void *bytes, size_t length), (file, bytes, length), NULL, file)

int open64(const char *path, int flags, ...) {
    static int (*next)(const char *, int, ...);
    va_list more;
    va_start(more, flags);
    mode_t mode = va_arg(more, mode_t);
    va_end(more);
    if (!next) next = dlsym(RTLD_NEXT, "open64");
    return flags & (O_CREAT | O_WRONLY | O_RDWR) && fails(path, 0) ? -1 : next(path, flags, mode);
}
