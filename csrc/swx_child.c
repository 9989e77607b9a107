#include "swx_child.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdalign.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#if __has_include(<sanitizer/asan_interface.h>)
#include <sanitizer/asan_interface.h>
#else
#define ASAN_UNPOISON_MEMORY_REGION(from, size) ((void)0)
#endif

extern char **environ;

int swx_child_open_pidfd(pid_t pid)
{
#ifdef SYS_pidfd_open
    return (int)syscall(SYS_pidfd_open, pid, 0); /* close-on-exec by definition */
#else
    (void)pid;
    errno = ENOSYS;
    return -1;
#endif
}

/* ---- starting ---- */

enum { STACK_SIZE = 32 * 1024 };

/* All that the child needs, prepared before the clone, because the child shares our memory and must not allocate. */
typedef struct {
    const swx_spawn *spawn;
    char *const *environment;
    struct rlimit64 limit; /* the mark */
    /* a limit in real use stays as it is, even if root could raise it */
    bool possible[SWX_COUNT(SWX_MARK_LIMITS)];
    pid_t parent;
    bool marked;        /* out: it is in force, in one of the limits at least */
    const char *failed; /* out: the call that failed, NULL while all is well */
    int sys_errno;
    int pidfd; /* out: -1 where clone makes none */
} preparation;

/* A limit below those in force, random, and too large to mean anything.  Without one limit stays 0: none can be set
 * here. */
static void draw_mark(preparation *p)
{
    uint64_t random, top = SWX_MARKS_END;
    bool possible = false;
    for (size_t i = 0; i < SWX_COUNT(SWX_MARK_LIMITS); i++) {
        struct rlimit64 now;
        p->possible[i] = prlimit64(0, SWX_MARK_LIMITS[i], NULL, &now) == 0 && now.rlim_max > SWX_LOWEST_MARK;
        if (p->possible[i] && now.rlim_max < SWX_MARKS_END) { /* a session inside of a session */
            p->possible[i] = !possible; /* the last limit keeps the outer one's marks, so that its end is also ours */
            top = now.rlim_max < top ? now.rlim_max : top; /* only lower marks are allowed */
        }
        possible = possible || p->possible[i];
    }
    if (possible && getrandom(&random, sizeof(random), 0) == (ssize_t)sizeof(random)) {
        p->limit.rlim_max = SWX_LOWEST_MARK + random % (top - SWX_LOWEST_MARK);
        p->limit.rlim_cur = p->spawn->program_mark ? p->spawn->program_mark : p->limit.rlim_max;
    }
}

uint64_t swx_child_draw_program_mark(void)
{
    uint64_t random;
    bool drawn = getrandom(&random, sizeof(random), 0) == (ssize_t)sizeof(random);
    return drawn ? SWX_LOWEST_PROGRAM_MARK + random % (SWX_LOWEST_MARK - SWX_LOWEST_PROGRAM_MARK) : 0;
}

/* ---- in the child, between clone and exec: system calls only ---- */

static bool child_failed(preparation *p, const char *call)
{
    p->failed = call;
    p->sys_errno = errno;
    return false;
}

void swx_child_close_from(int lowest)
{
#ifdef SYS_close_range
    if (syscall(SYS_close_range, (unsigned)lowest, ~0U, 0U) == 0) {
        return;
    }
#endif
    struct rlimit64 limit;
    int top = prlimit64(0, RLIMIT_NOFILE, NULL, &limit) == 0 && limit.rlim_cur < 65536 ? (int)limit.rlim_cur : 65536;
    for (int fd = lowest; fd < top; fd++) {
        close(fd);
    }
}

static bool child_set_descriptors(preparation *p)
{
    const swx_spawn *spawn = p->spawn;
    if (spawn->terminal) { /* the first terminal that a session leader opens becomes its controlling one */
        int fd = open(spawn->terminal, O_RDWR);
        if (fd < 0) {
            return child_failed(p, "open(terminal)");
        }
        return (dup2(fd, 0) == 0 && dup2(fd, 1) == 1 && dup2(fd, 2) == 2) || child_failed(p, "dup2");
    }
    /* The three may be any numbers, 0 to 2 among them: first out of the way, then into place. */
    int fds[3] = { spawn->input, spawn->output, spawn->error };
    for (int i = 0; i < 3; i++) {
        fds[i] = fcntl(fds[i], F_DUPFD, 3);
        if (fds[i] < 0) {
            return child_failed(p, "fcntl(F_DUPFD)");
        }
    }
    for (int i = 0; i < 3; i++) {
        if (dup2(fds[i], i) != i) {
            return child_failed(p, "dup2");
        }
    }
    return true;
}

/* Signals that the parent ignores go back to their default too, because bash could never undo that. */
static void child_reset_signals(void)
{
    struct sigaction standard = { .sa_handler = SIG_DFL };
    sigset_t none;
    for (int number = 1; number <= SIGRTMAX; number++) {
        sigaction(number, &standard, NULL); /* KILL and STOP refuse, and so do the C library's own */
    }
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
}

static int child_begin(void *argument)
{
    preparation *p = argument;
    setsid();
    for (size_t i = 0; i < SWX_COUNT(SWX_MARK_LIMITS) && p->limit.rlim_max; i++) {
        p->marked = (p->possible[i] && prlimit64(0, SWX_MARK_LIMITS[i], &p->limit, NULL) == 0) || p->marked;
    }
    pid_t parent = getppid();
    if (parent &&
        parent != p->parent) { /* it ended before there was a mark to be found by; 0: in another pid namespace */
        return 127;
    }
    if (p->spawn->directory && chdir(p->spawn->directory) != 0) {
        child_failed(p, "chdir");
        return 127;
    }
    if (child_set_descriptors(p)) {
        swx_child_close_from(3);
        child_reset_signals();
        execve(p->spawn->file, p->spawn->argv, p->environment);
        child_failed(p, "execve");
    }
    return 127;
}

/* ---- in the parent ---- */

#ifndef CLONE_PIDFD
#define CLONE_PIDFD 0x1000
#endif

pid_t swx_child_clone(int (*function)(void *), void *argument, char *stack, size_t size, int flags, int *pidfd)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t pid = clone(function, stack + size, CLONE_VM | CLONE_VFORK | SIGCHLD | flags, argument, pidfd);
    int failed = errno;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    ASAN_UNPOISON_MEMORY_REGION(stack, size); /* the child did not return from its functions */
    errno = failed;
    return pid;
}

/* The pidfd comes with the clone: if the application reaps the child, one opened later may be another process's. */
static pid_t begin_program(preparation *p)
{
    alignas(16) char stack[STACK_SIZE];
    pid_t pid = swx_child_clone(child_begin, p, stack, STACK_SIZE, CLONE_PIDFD, &p->pidfd);
    if (pid < 0) { /* no descriptor is left, or the system does not know the flag: the program can be had without */
        p->pidfd = -1;
        pid = swx_child_clone(child_begin, p, stack, STACK_SIZE, 0, NULL);
    }
    return pid;
}

/* waitpid(2) of the child, by its pidfd if there is one: if the application reaps, its number may be reused. */
static pid_t collect(swx_child *child, int options)
{
    siginfo_t info = { .si_pid = 0 };
    int failed = child->pidfd < 0 ? EINVAL : 0;
    if (!failed && waitid((idtype_t)3, (id_t)child->pidfd, &info, WEXITED | options) != 0) { /* P_PIDFD */
        failed = errno;
    }
    if (failed && failed != ECHILD && failed != EINTR) { /* before Linux 5.4, or where it is forbidden */
        return waitpid(child->pid, &child->wait_status, options);
    }
    if (failed || info.si_pid == 0) {
        errno = failed;
        return failed ? -1 : 0;
    }
    bool exited = info.si_code == CLD_EXITED;
    child->wait_status =
        exited ? (info.si_status & 0xFF) << 8 : info.si_status | (info.si_code == CLD_DUMPED ? 0x80 : 0);
    return child->pid;
}

swx_status swx_child_start(swx_child *child, const swx_spawn *spawn, swx_error *err)
{
    *child = (swx_child){ .pidfd = -1 };
    preparation p = { .spawn = spawn,
                      .environment = spawn->environment ? spawn->environment : environ,
                      .parent = getpid(),
                      .pidfd = -1 };
    draw_mark(&p);
    pid_t pid = begin_program(&p);
    int failed = errno;
    if (pid < 0) {
        return swx_fail_sys(err, "clone", failed);
    }
    child->pid = pid;
    child->pidfd = p.pidfd >= 0 ? p.pidfd : swx_child_open_pidfd(pid);
    if (p.failed) {
        while (collect(child, 0) < 0 && errno == EINTR) {
        }
        swx_child_close(child);
        child->pid = 0;
        return swx_fail_sys(err, p.failed, p.sys_errno);
    }
    child->mark = p.marked ? p.limit.rlim_max : 0;
    return SWX_OK;
}

/* ---- its end ---- */

/* As linux/pidfd.h has it since 6.15. */
typedef struct {
    uint64_t mask, cgroup;
    uint32_t numbers[11]; /* of processes, users and groups */
    int32_t wait_status;
} pidfd_info;

static const uint64_t PIDFD_INFO_WITH_EXIT = 1 << 3;

static bool ask_pidfd(int pidfd, pidfd_info *info) { return ioctl(pidfd, _IOWR(0xFF, 11, pidfd_info), info) == 0; }

/* Asks for the status of a child that the application reaps.  False: it may still be reaping, ask again.  True:
 * wait_status is set. */
static bool ask_status(swx_child *child)
{
    pidfd_info info = { .mask = PIDFD_INFO_WITH_EXIT };
    /* ESRCH comes once if the child is reaped between the kernel's looks at its status and at itself. */
    bool told =
        child->pidfd >= 0 && (ask_pidfd(child->pidfd, &info) || (errno == ESRCH && ask_pidfd(child->pidfd, &info)));
    if (!told) {
        child->wait_status = SWX_STATUS_LOST;
        return true;
    }
    child->wait_status = info.wait_status;
    return info.mask & PIDFD_INFO_WITH_EXIT;
}

bool swx_child_ended(swx_child *child)
{
    if (child->reaped || child->pid <= 0) {
        return true;
    }
    pid_t got;
    do {
        got = collect(child, WNOHANG);
    } while (got < 0 && errno == EINTR);
    child->reaped = got > 0 || (got < 0 && ask_status(child));
    return child->reaped;
}

int swx_child_code(const swx_child *child)
{
    if (child->wait_status == SWX_STATUS_LOST) {
        return -1;
    }
    return WIFEXITED(child->wait_status) ? WEXITSTATUS(child->wait_status) : 128 + WTERMSIG(child->wait_status);
}

void swx_child_signal(const swx_child *child, int signal_number)
{
    if (child->pid > 0 && !child->reaped) {
        /* A session leader never leaves its group.  One signal: a second SIGHUP would end a shell that saves its
         * history. */
        kill(-child->pid, signal_number);
    }
}

void swx_child_close(swx_child *child) { swx_close(&child->pidfd); }
