#include "swx_child.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int open_pidfd(pid_t pid)
{
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, pid, 0); /* close-on-exec by definition */
#else
    (void)pid;
    errno = ENOSYS;
    return -1;
#endif
}

static int set_actions(posix_spawn_file_actions_t *actions, const swx_spawn *spawn)
{
    int failed = 0;
    if (spawn->directory) {
        failed = posix_spawn_file_actions_addchdir_np(actions, spawn->directory);
    }
    if (spawn->terminal) { /* the first terminal that a session leader opens becomes its controlling one */
        failed = failed ? failed : posix_spawn_file_actions_addopen(actions, 0, spawn->terminal, O_RDWR, 0);
        failed = failed ? failed : posix_spawn_file_actions_adddup2(actions, 0, 1);
        failed = failed ? failed : posix_spawn_file_actions_adddup2(actions, 0, 2);
    } else {
        failed = failed ? failed : posix_spawn_file_actions_adddup2(actions, spawn->input, 0);
        failed = failed ? failed : posix_spawn_file_actions_adddup2(actions, spawn->output, 1);
        failed = failed ? failed : posix_spawn_file_actions_adddup2(actions, spawn->error, 2);
    }
#if defined(__GLIBC__) && (__GLIBC__ > 2 || __GLIBC_MINOR__ >= 34)
    failed = failed ? failed : posix_spawn_file_actions_addclosefrom_np(actions, 3);
#endif
    return failed;
}

static int set_attributes(posix_spawnattr_t *attributes)
{
    sigset_t all, none;
    sigfillset(&all);
    sigemptyset(&none);
    int failed = posix_spawnattr_setflags(attributes,
                                          POSIX_SPAWN_SETSID | POSIX_SPAWN_SETSIGDEF | POSIX_SPAWN_SETSIGMASK);
    failed = failed ? failed : posix_spawnattr_setsigdefault(attributes, &all);
    return failed ? failed : posix_spawnattr_setsigmask(attributes, &none);
}

/* A limit below the one in force, random, and too large to mean anything. */
static uint64_t put_mark(pid_t pid)
{
    struct rlimit64 limit;
    uint64_t random;
    const uint64_t low = UINT64_C(1) << 60;
    if (prlimit64(pid, RLIMIT_RTTIME, NULL, &limit) != 0 || limit.rlim_max <= low ||
        getrandom(&random, sizeof(random), 0) != (ssize_t)sizeof(random)) {
        return 0;
    }
    uint64_t top = UINT64_C(1) << 62;
    if (limit.rlim_max < top) { /* a session inside of a session: only lower marks are allowed */
        top = limit.rlim_max;
    }
    uint64_t mark = low + random % (top - low);
    limit.rlim_cur = limit.rlim_max = mark;
    return prlimit64(pid, RLIMIT_RTTIME, &limit, NULL) == 0 ? mark : 0;
}

swx_status swx_child_start(swx_child *child, const swx_spawn *spawn, swx_error *err)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    swx_status status = SWX_OK;
    *child = (swx_child){ .pidfd = -1 };
    int failed = posix_spawn_file_actions_init(&actions);
    if (failed) {
        return swx_fail_sys(err, "posix_spawn_file_actions_init", failed);
    }
    failed = posix_spawnattr_init(&attributes);
    if (failed) {
        posix_spawn_file_actions_destroy(&actions);
        return swx_fail_sys(err, "posix_spawnattr_init", failed);
    }
    failed = set_actions(&actions, spawn);
    failed = failed ? failed : set_attributes(&attributes);
    if (failed) {
        status = swx_fail_sys(err, "posix_spawn (preparation)", failed);
        goto done;
    }
    failed = posix_spawnp(&child->pid, spawn->file, &actions, &attributes, spawn->argv,
                          spawn->environment ? spawn->environment : environ);
    if (failed) {
        child->pid = 0;
        status = swx_fail_sys(err, "posix_spawn", failed);
        goto done;
    }
    child->mark = put_mark(child->pid);
    child->pidfd = open_pidfd(child->pid);
done:
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    return status;
}

bool swx_child_ended(swx_child *child)
{
    if (child->reaped || child->pid <= 0) {
        return true;
    }
    pid_t got;
    do {
        got = waitpid(child->pid, &child->wait_status, WNOHANG);
    } while (got < 0 && errno == EINTR);
    if (got == 0) {
        return false;
    }
    if (got < 0) { /* someone else reaped it; its status is lost */
        child->wait_status = 255 << 8;
    }
    child->reaped = true;
    return true;
}

int swx_child_code(const swx_child *child)
{
    return WIFEXITED(child->wait_status) ? WEXITSTATUS(child->wait_status) : 128 + WTERMSIG(child->wait_status);
}

void swx_child_signal(const swx_child *child, int signal_number)
{
    if (child->pid > 0 && !child->reaped) {
        kill(-child->pid, signal_number);
        kill(child->pid, signal_number);
    }
}

/* Where the kernel has no handles.  A process whose first thread has ended also says Z, but has other threads. */
static bool is_gone(pid_t pid)
{
    char path[48], text[512], state;
    long threads;
    snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) {
        return errno == ENOENT; /* else it could not be looked at now */
    }
    ssize_t size = read(fd, text, sizeof(text) - 1);
    close(fd);
    if (size <= 0) {
        return true;
    }
    text[size] = 0;
    const char *name_end = strrchr(text, ')'); /* the name may hold anything */
    const char *fields = " %c %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %*s %ld"; /* proc(5): 3, 20 */
    if (!name_end || sscanf(name_end + 1, fields, &state, &threads) != 2) {
        return false;
    }
    return (state == 'Z' || state == 'X') && threads < 2;
}

static bool is_marked(pid_t pid, const uint64_t *marks, size_t count)
{
    struct rlimit64 limit;
    if (prlimit64(pid, RLIMIT_RTTIME, NULL, &limit) != 0) {
        return false;
    }
    for (size_t i = 0; i < count; i++) {
        if (marks[i] && limit.rlim_max == marks[i]) {
            return true;
        }
    }
    return false;
}

/* The mark is read again through a handle of the process, so that a reused pid is never hit; and nothing slow comes
 * before the signal, because a process that forks and leaves all the time is gone in a moment.  Returns whether it was
 * alive. */
static bool kill_one(pid_t pid, const uint64_t *marks, size_t count)
{
    bool alive = false;
    int fd = open_pidfd(pid);
    if (fd < 0) {
        alive = errno != ESRCH && !is_gone(pid);
        if (alive) {
            kill(pid, SIGKILL);
        }
        return alive;
    }
    struct pollfd ended = { .fd = fd, .events = POLLIN };
    if (is_marked(pid, marks, count) && poll(&ended, 1, 0) == 0) {
        alive = syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0) == 0;
    }
    close(fd);
    return alive;
}

static long kill_once(const uint64_t *marks, size_t count)
{
    DIR *processes = opendir("/proc");
    if (!processes) {
        return errno == ENOENT || errno == EACCES ? -1 : 1;
    }
    long found = 0;
    const struct dirent *entry;
    while ((entry = readdir(processes))) {
        if (entry->d_name[0] < '1' || entry->d_name[0] > '9') {
            continue;
        }
        pid_t pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (is_marked(pid, marks, count) && kill_one(pid, marks, count)) {
            found++;
        }
    }
    closedir(processes);
    return found;
}

long swx_child_kill_marked(const uint64_t *marks, size_t count)
{
    long found = kill_once(marks, count);
    return found ? found : kill_once(marks, count); /* a look misses who forks behind it and ends before it */
}

void swx_child_close(swx_child *child)
{
    if (child->pidfd >= 0) {
        close(child->pidfd);
    }
    child->pidfd = -1;
}
