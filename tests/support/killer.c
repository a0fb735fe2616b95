/* Loaded before libc: counts the calls that change anything on a disk while it is armed, writes them down, and at one of
 * them ends the process (before it, after it, or when half is written) or lets it fail. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum mode { OFF, BEFORE, AFTER, HALF, FAIL_ONCE, FAIL_FROM_THERE, SHORT };

static int armed, count, target, mode, error, log_file = -1;

/* Counts from now on. logged: a file open for what is counted, or -1. */
void killer_arm(int at, int how, int number, int logged) {
    count = 0, target = at, mode = how, error = number, log_file = logged, armed = 1;
}

int killer_disarm(void) {
    armed = 0;
    return count;
}

static void note(const char *name, const char *path, const char *other, long at, const void *data, size_t length) {
    char line[9000];
    if (log_file < 0) return;
    int size = snprintf(line, sizeof line, "%s\t%s\t%s\t%ld\t%zu\n", name, path, other, at, data ? length : 0);
    syscall(SYS_write, log_file, line, size);
    if (data) syscall(SYS_write, log_file, data, length);
}

static const char *path_of(int file, char *into) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t size = syscall(SYS_readlinkat, AT_FDCWD, link, into, 4095);
    into[size < 0 ? 0 : size] = 0;
    return into;
}

static void die(void) {
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

/* What is to happen at this call: 0 nothing, 1 end after it, 2 half of it and the end, 3 fail, 4 half of it. */
static int enter(int writes) {
    if (!armed) return 0;
    int here = ++count == target;
    if (here && mode == BEFORE) die();
    if (here && mode == AFTER) return 1;
    if (here && mode == HALF) return writes ? 2 : 0;
    if (here && mode == SHORT) return writes ? 4 : 0;
    if ((here && mode == FAIL_ONCE) || (count >= target && mode == FAIL_FROM_THERE)) return 3;
    return 0;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define WRAP(writes, noted, call, halved)             \
    do {                                              \
        int what = enter(writes);                     \
        if (what == 3) { errno = error; return -1; }  \
        if (armed && what != 2) { char one[4096], two[4096]; (void)one; (void)two; noted; } \
        if (what == 2) { halved; die(); }             \
        if (what == 4) return halved;                 \
        __typeof__(call) result = call;               \
        if (what == 1) die();                         \
        return result;                                \
    } while (0)
#define WHOLE(noted, call) WRAP(0, noted, call, 0)

#define WRITE_AT(name, type)                                                                         \
    ssize_t name(int file, const void *data, size_t length, type at) {                               \
        WRAP(1, note("write", path_of(file, one), "", at, data, length),                             \
             NEXT(name)(file, data, length, at), NEXT(name)(file, data, length / 2, at));            \
    }
WRITE_AT(pwrite, off_t)
WRITE_AT(pwrite64, off64_t)

ssize_t write(int file, const void *data, size_t length) {
    WRAP(1, note("write", path_of(file, one), "", lseek(file, 0, SEEK_CUR), data, length),
         NEXT(write)(file, data, length), NEXT(write)(file, data, length / 2));
}

#define TRUNCATE(name, type)                                                                          \
    int name(int file, type length) {                                                                \
        WHOLE(note("truncate", path_of(file, one), "", length, NULL, 0), NEXT(name)(file, length));  \
    }
TRUNCATE(ftruncate, off_t)
TRUNCATE(ftruncate64, off64_t)

int fsync(int file) { WHOLE(note("fsync", path_of(file, one), "", 0, NULL, 0), NEXT(fsync)(file)); }
int fdatasync(int file) { WHOLE(note("fsync", path_of(file, one), "", 0, NULL, 0), NEXT(fdatasync)(file)); }
int futimens(int file, const struct timespec times[2]) {
    WHOLE(note("date", path_of(file, one), "", times[1].tv_sec * 1000000000L + times[1].tv_nsec, NULL, 0),
          NEXT(futimens)(file, times));
}
int fchmod(int file, mode_t mode) { WHOLE(note("mode", path_of(file, one), "", mode, NULL, 0), NEXT(fchmod)(file, mode)); }
int fchown(int file, uid_t user, gid_t group) {
    WHOLE(note("owner", path_of(file, one), "", user, NULL, 0), NEXT(fchown)(file, user, group));
}

static const char *within(int folder, const char *name, char *into) {
    path_of(folder, into);
    strcat(into, "/");
    return strncat(into, name, 255);
}

int renameat(int from, const char *old, int to, const char *new) {
    WHOLE(note("rename", within(from, old, one), within(to, new, two), 0, NULL, 0), NEXT(renameat)(from, old, to, new));
}
int unlinkat(int folder, const char *name, int flags) {
    WHOLE(note("unlink", within(folder, name, one), "", 0, NULL, 0), NEXT(unlinkat)(folder, name, flags));
}

#define OPEN_AT(name)                                                                                  \
    int name(int folder, const char *path, int flags, ...) {                                           \
        va_list rest;                                                                                  \
        va_start(rest, flags);                                                                         \
        mode_t rights = flags & O_CREAT ? va_arg(rest, mode_t) : 0;                                    \
        va_end(rest);                                                                                  \
        if (!(flags & O_CREAT)) return NEXT(name)(folder, path, flags);                                \
        WHOLE(note("create", within(folder, path, one), "", 0, NULL, 0), NEXT(name)(folder, path, flags, rights)); \
    }
OPEN_AT(openat)
OPEN_AT(openat64)
