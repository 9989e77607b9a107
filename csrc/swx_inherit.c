#include "swx_inherit.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "swx_child.h"

enum { TEXT_ROOM = 16384 };

/* The lines of /proc/PID/status that a child has from its parent.  Source: proc(5). */
static const char *const STATUS_LINES[] = {
    "Umask:",
    "Uid:",
    "Gid:",
    "Groups:",
    "CapInh:",
    "CapPrm:",
    "CapEff:",
    "CapBnd:",
    "CapAmb:",
    "NoNewPrivs:",
    "Seccomp:",
    "Seccomp_filters:",
    "Speculation_Store_Bypass:",
    "SpeculationIndirectBranch:",
    "Cpus_allowed:",
    "Mems_allowed:",
    "THP_enabled:",
};

/* For a process, and for the calling thread, whose children may go elsewhere than it is itself. */
static const char *const NAMESPACES[][2] = {
    { "cgroup", "cgroup" },
    { "ipc", "ipc" },
    { "mnt", "mnt" },
    { "net", "net" },
    { "pid", "pid_for_children" },
    { "time", "time_for_children" },
    { "user", "user" },
    { "uts", "uts" },
};

typedef struct {
    pid_t pid;
    int directory; /* its own in /proc: what is below is found there without another walk */
    swx_buf *out;
    swx_error *err;
} look;

static swx_status add(const look *l, const void *bytes, size_t size)
{
    return swx_buf_append(l->out, bytes, size) == SWX_OK ? SWX_OK : swx_fail(l->err, SWX_ENOMEM, "out of memory");
}

static swx_status add_number(const look *l, const char *name, long long number)
{
    char text[64];
    int size = snprintf(text, sizeof(text), "%s %lld\n", name, number);
    return add(l, text, (size_t)size);
}

static swx_status read_file(int directory, const char *name, char text[TEXT_ROOM], size_t *size, swx_error *err)
{
    int fd = openat(directory, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return swx_fail_sys(err, "open(/proc)", errno);
    }
    /* Each of them is one record, which the kernel gives whole where there is room.  What is longer than that is cut,
     * for everyone alike. */
    ssize_t got = read(fd, text, TEXT_ROOM - 1);
    int failed = errno;
    close(fd);
    *size = got > 0 ? (size_t)got : 0;
    text[*size] = 0;
    return got < 0 ? swx_fail_sys(err, "read(/proc)", failed) : SWX_OK;
}

static bool is_inherited(const char *line)
{
    for (size_t i = 0; i < SWX_COUNT(STATUS_LINES); i++) {
        if (*line == *STATUS_LINES[i] && strncmp(line, STATUS_LINES[i], strlen(STATUS_LINES[i])) == 0) {
            return true;
        }
    }
    return false;
}

static swx_status add_status(const look *l)
{
    char text[TEXT_ROOM];
    size_t size, kept = 0;
    swx_status status = read_file(l->directory, "status", text, &size, l->err);
    for (char *line = text, *end; status == SWX_OK && (end = memchr(line, '\n', (size_t)(text + size - line)));
         line = end + 1) {
        if (is_inherited(line)) {
            memmove(text + kept, line, (size_t)(end + 1 - line));
            kept += (size_t)(end + 1 - line);
        }
    }
    return status == SWX_OK ? add(l, text, kept) : status;
}

/* A kernel without control groups has the file for nobody. */
static swx_status add_groups(const look *l)
{
    char text[TEXT_ROOM];
    size_t size;
    swx_error failed = { .status = SWX_OK };
    if (read_file(l->directory, "cgroup", text, &size, &failed) == SWX_OK) {
        return add(l, text, size);
    }
    return failed.sys_errno == ENOENT ? SWX_OK : swx_fail_sys(l->err, failed.call, failed.sys_errno);
}

static swx_status add_namespaces(const look *l)
{
    char names[SWX_COUNT(NAMESPACES) * 64];
    size_t size = 0;
    int directory = openat(l->directory, "ns", O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0) {
        return swx_fail_sys(l->err, "open(/proc)", errno);
    }
    for (size_t i = 0; i < SWX_COUNT(NAMESPACES); i++) {
        ssize_t length = readlinkat(directory, NAMESPACES[i][l->pid == 0], names + size, 64);
        if (length < 0 && errno != ENOENT) {
            int failed = errno;
            close(directory);
            return swx_fail_sys(l->err, "readlink(/proc)", failed);
        }
        size += length > 0 ? (size_t)length : 0;
    }
    close(directory);
    return add(l, names, size);
}

static swx_status add_place(const look *l, const char *name, const char *own)
{
    struct stat found;
    int failed = l->pid ? fstatat(l->directory, name, &found, 0) : stat(own, &found);
    if (failed) {
        return swx_fail_sys(l->err, "stat", errno);
    }
    swx_status status = add_number(l, name, (long long)found.st_dev);
    return status == SWX_OK ? add_number(l, name, (long long)found.st_ino) : status;
}

static swx_status add_limits(const look *l)
{
    struct rlimit64 limits[RLIMIT_NLIMITS];
    for (int which = 0; which < RLIMIT_NLIMITS; which++) {
        if (prlimit64(l->pid, which, NULL, &limits[which]) != 0) {
            return swx_fail_sys(l->err, "prlimit", errno);
        }
        if (swx_child_may_mark(which, limits[which].rlim_max)) {
            limits[which].rlim_cur = limits[which].rlim_max = RLIM64_INFINITY;
        }
    }
    return add(l, limits, sizeof(limits));
}

static swx_status add_priority(const look *l)
{
    errno = 0;
    int priority = getpriority(PRIO_PROCESS, (id_t)l->pid);
    return errno ? swx_fail_sys(l->err, "getpriority", errno) : add_number(l, "nice", priority);
}

static swx_status add_all(const look *l)
{
    swx_status status = add_status(l);
    status = status == SWX_OK ? add_groups(l) : status;
    status = status == SWX_OK ? add_namespaces(l) : status;
    status = status == SWX_OK ? add_place(l, "root", "/") : status;
    status = status == SWX_OK ? add_place(l, "cwd", ".") : status;
    status = status == SWX_OK ? add_limits(l) : status;
    return status == SWX_OK ? add_priority(l) : status;
}

swx_status swx_inherit_look(pid_t pid, swx_buf *out, swx_error *err)
{
    char path[48] = "/proc/thread-self";
    if (pid) {
        snprintf(path, sizeof(path), "/proc/%d", (int)pid);
    }
    const look l = { pid, open(path, O_PATH | O_DIRECTORY | O_CLOEXEC), out, err };
    if (l.directory < 0) {
        return swx_fail_sys(err, "open(/proc)", errno);
    }
    swx_status status = add_all(&l);
    close(l.directory);
    return status;
}
