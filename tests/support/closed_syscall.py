"""A library to preload, for programs that are to find /proc/PID/syscall closed, as on kernels that do not tell."""

from __future__ import annotations

from pathlib import Path

from tests.support.harness import build_library

__all__ = ["build_preload"]

_SOURCE = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <unistd.h>

/* What is started from here is not concerned. */
__attribute__((constructor)) static void begin(void) { unsetenv("LD_PRELOAD"); }

static int is_refused(const char *path)
{
    size_t size = strlen(path);
    return strncmp(path, "/proc/", 6) == 0 && size > 14 && strcmp(path + size - 8, "/syscall") == 0;
}

/* A read at a prompt, as the kernel of another machine numbers it. */
static int foreign(void)
{
    static const char line[] = "9999 0x0 0x7f0000001000 0x400 0x0 0x0 0x0 0x7ffd00001000 0x7f0000002000\n";
    int fd = memfd_create("syscall", 0);
    return fd < 0 || write(fd, line, sizeof(line) - 1) < 0 || lseek(fd, 0, SEEK_SET) != 0 ? -1 : fd;
}

#define OPEN(name)                                                                  \
    int name(const char *path, int flags, ...)                                      \
    {                                                                               \
        va_list rest;                                                               \
        va_start(rest, flags);                                                      \
        mode_t mode = va_arg(rest, mode_t);                                         \
        va_end(rest);                                                               \
        if (is_refused(path)) {                                                     \
            return FOREIGN ? foreign() : (errno = EPERM, -1);                       \
        }                                                                           \
        int (*next)(const char *, int, ...);                                        \
        *(void **)&next = dlsym(RTLD_NEXT, #name);                                  \
        return next(path, flags, mode);                                             \
    }
OPEN(open)
OPEN(open64)
"""


def build_preload(directory: Path, *, foreign: bool = False) -> str:
    """Return the library's path; with `foreign` the file has another machine's calls, as below an emulator."""
    return build_library(directory, _SOURCE, f"-DFOREIGN={foreign:d}")
