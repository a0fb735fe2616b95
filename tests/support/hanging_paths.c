/* Makes a file system hang, for one program: every look at a path below $HANG_BELOW (several, divided by colons) waits for ever, as
   one at an NFS server that is gone. Preloaded by tests. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>
#include <dirent.h>

static void hang_below(const char *path) {
    const char *one = getenv("HANG_BELOW");
    while (path && one && *one) {
        size_t length = strcspn(one, ":");
        if (length && !strncmp(path, one, length) && (path[length] == 0 || path[length] == '/'))
            for (;;) pause();
        one += length + (one[length] == ':');
    }
}

#define REAL(name) (__typeof__(&name))dlsym(RTLD_NEXT, #name)
#define CHECKED(type, name, path, parameters, arguments) \
    type name parameters { hang_below(path); return (REAL(name)) arguments; }

CHECKED(int, stat, path, (const char *path, struct stat *buffer), (path, buffer))
CHECKED(int, lstat, path, (const char *path, struct stat *buffer), (path, buffer))
CHECKED(int, fstatat, path, (int folder, const char *path, struct stat *buffer, int flags), (folder, path, buffer, flags))
CHECKED(int, statx, path, (int folder, const char *path, int flags, unsigned mask, struct statx *buffer), (folder, path, flags, mask, buffer))
CHECKED(int, statvfs, path, (const char *path, struct statvfs *buffer), (path, buffer))
CHECKED(int, access, path, (const char *path, int mode), (path, mode))
CHECKED(int, faccessat, path, (int folder, const char *path, int mode, int flags), (folder, path, mode, flags))
CHECKED(ssize_t, readlink, path, (const char *path, char *buffer, size_t size), (path, buffer, size))
CHECKED(ssize_t, readlinkat, path, (int folder, const char *path, char *buffer, size_t size), (folder, path, buffer, size))
CHECKED(DIR *, opendir, path, (const char *path), (path))

static mode_t mode_of(int flags, va_list rest) { return flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; }

#define OPENS(name, parameters, path, arguments) \
    int name parameters { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = mode_of(flags, rest); \
        va_end(rest); \
        hang_below(path); \
        return (REAL(name)) arguments; \
    }

OPENS(open, (const char *path, int flags, ...), path, (path, flags, mode))
OPENS(open64, (const char *path, int flags, ...), path, (path, flags, mode))
OPENS(openat, (int folder, const char *path, int flags, ...), path, (folder, path, flags, mode))
OPENS(openat64, (int folder, const char *path, int flags, ...), path, (folder, path, flags, mode))
